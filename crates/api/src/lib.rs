//! What operators ask an instance for, and what it answers: at its control socket, and by HTTP at its stats port.
//!
//! [`Command`] is the request of both. [`OPERATIONS`] has what can be asked for by HTTP: it dispatches, and
//! [`openapi`] is made of it and of the types themselves, so that the description says what is.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod action;
mod command;
mod failure;
pub mod key;
mod openapi;
mod operation;
mod parameters;
mod route;
pub mod status;

pub use action::{Action, ActionList, ActionState};
pub use command::{
    Answer, COMMAND_SIZE_MAX, Command, DRAIN_MAX_SECONDS, EVERY_DEFAULT, EVERY_MAX, HotAction,
    MoveAction, STEPS_DEFAULT, STEPS_MAX,
};
pub use failure::{Failure, FailureKind};
pub use openapi::{is_integer, openapi};
pub use operation::{BASE, Does, Misfit, OPERATIONS, Operation, Role, WAIT_DEFAULT, WAIT_MAX};
pub use parameters::Parameters;
pub use route::{RouteList, RouteQuestion};

/// Events, as they are answered.
#[derive(
    Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct EventList {
    /// The oldest first.
    pub events: Vec<cashew_process::log::EventRecord>,
}
