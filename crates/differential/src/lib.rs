//! Checks the gateway's parsing of requests and replies against real servers.
//!
//! - [`compare`]: the differential test. The engine gets random and corrupted requests. Its output goes
//!   to a real server, and its expectations are compared with the server's replies.
//! - [`watched`]: the gateway itself between real servers and hostile clients, with watched clients
//!   whose every reply is checked.
//!
//! - [`foreign`]: the engine between model servers, one hostile client and watched ones; also a fuzzer's target.
//!
//! docs/testing.md explains how to run both, and how to replay a finding.
#![forbid(unsafe_code)]

pub mod case;
mod companion;
pub mod compare;
mod fence;
pub mod foreign;
pub mod generate;
mod port;
pub mod random;
pub mod report;
pub mod rig;
pub mod servers;
pub mod setup;
mod shrink;
pub mod sole_engine;
pub mod watched;
