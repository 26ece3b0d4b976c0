//! The Redis commands that the gateway understands: their keys, their effects, and how the gateway
//! serves them. The values are those of the newest Redis, or of Valkey, and the tests compare the
//! table with a running server.

mod class;
mod command;
mod custom;
mod describe;
mod error;
mod glob;
mod keys;
mod lookup;
mod policy;
mod rename;
mod specs;
mod table;
mod wait;

pub use command::{
    Access, CUSTOM_ID, Clearance, Command, Facts, Fan, Group, Keys, Local, Merge, NumkeysFaults,
    Rule, SessionRule, Subscription,
};
pub use custom::{
    CUSTOM_MAX, CUSTOM_NAME_MAX, CustomCommands, Definition, Fault, FaultOf, KeyPlaces, definitions,
};
pub use describe::command_reply;
pub use error::{unknown_command_error, unknown_subcommand_error, wrong_arity_error};
pub use glob::matches as glob_matches;
pub use lookup::{CommandId, Lookup, PlainCommand, find, find_begun, find_plain};
pub use policy::{Policy, PolicyFault, Rules, most_specific};
pub use rename::{Called, RENAMED_SIZE_MAX, RenameFault, Renames};
pub use specs::{BeginSearch, FindKeys, KeySpec};
pub use table::{COMMANDS, NO_CLUSTER_TEXT};
pub use wait::Wait;
