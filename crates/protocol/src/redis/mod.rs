//! The Redis commands that the gateway understands: which keys they name, what they may touch, and
//! how the gateway serves them. Facts are those of redis-server 7.0, and the tests hold the table
//! against a running one.

mod command;
mod describe;
mod error;
mod glob;
mod keys;
mod lookup;
mod table;

pub use command::{
    Access, Command, Fan, Group, Keys, Local, Merge, NumkeysFaults, Rule, SessionRule, Subscription,
};
pub use describe::command_reply;
pub use glob::matches as glob_matches;
pub use error::{unknown_command_error, unknown_subcommand_error, wrong_arity_error};
pub use lookup::{Lookup, find, find_begun, find_plain};
pub use table::COMMANDS;
