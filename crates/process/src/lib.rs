//! What every process of an instance does to itself, be it master, worker or admin: where its log
//! goes and how much of it, whose rights it runs with, and what memory it keeps.
#![deny(unsafe_code)]

pub mod log;
pub mod memory;
mod privileges;

pub use privileges::{PrivilegesError, drop_privileges};
