//! What every process of an instance does to itself, be it master, worker or admin: where its log
//! goes and how much of it, and whose rights it runs with.
#![forbid(unsafe_code)]

pub mod log;
mod privileges;

pub use privileges::{PrivilegesError, drop_privileges};
