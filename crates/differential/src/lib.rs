//! Holds the gateway's reading of requests and replies against real servers.
//!
//! - [`compare`]: the differential test. The engine is driven with random and spoiled requests; what it
//!   would send goes to a real server, and what it waits for is held against what the server says.
//! - [`watched`]: the gateway itself between real servers and hostile clients, beside watched ones whose
//!   every reply is checked.
//!
//! docs/testing.md tells how to run both, and how to play a finding again.
#![forbid(unsafe_code)]

pub mod case;
mod companion;
pub mod compare;
mod fence;
pub mod generate;
pub mod random;
pub mod report;
pub mod rig;
pub mod servers;
pub mod setup;
mod shrink;
pub mod watched;
