//! Users and what they may do, by Redis's ACL rules.
//!
//! [`Users`] are made of lines as Redis's ACL files have them. [`User::check`] decides about a
//! request. Rules, decisions and texts are those of Redis 7.0; the tests compare decisions with a
//! running server. The listing keeps the command rules as they were written, as Redis does since
//! 7.2: the gateway's table has more commands than any one server, so that a list of what a rule
//! comes to would be longer and mean less.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod category;
mod commands;
mod denial;
mod fault;
mod keys;
mod password;
mod selector;
mod user;
mod users;

pub use category::{categories, commands_meant, commands_of};
pub use denial::{Call, Denial};
pub use fault::Fault;
pub use keys::{OWN_KEYS, Touch};
pub use selector::Selector;
pub use user::{User, split_rules};
pub use users::{LineFault, Users};
