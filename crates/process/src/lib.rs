//! What every process of an instance does to itself, be it master, worker or admin: where its log
//! goes and how much of it, whose rights it runs with, what memory it keeps, and how it becomes
//! another program.
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

pub mod exec;
mod file_size;
mod hardening;
pub mod log;
pub mod memory;
mod privileges;
mod signals;

pub use file_size::{explain_limit, is_out_of_room, survive_limit};
pub use hardening::{harden, keep_memory_out_of_core_dumps};
pub use privileges::{PrivilegesError, drop_privileges};
pub use signals::leave_signals_to_master;
