//! Clients: who asks, and what the port promises them.

pub(crate) mod acl_log;
pub(crate) mod activity;
pub(crate) mod audit;
pub(crate) mod client;
pub(crate) mod command_policy;
pub(crate) mod external_auth;
pub(crate) mod handoff;
pub(crate) mod key_prefix;
pub(crate) mod listener;
pub(crate) mod notice;
pub(crate) mod password_guessing;
pub(crate) mod pressure;
pub(crate) mod receive;
pub(crate) mod session;
pub(crate) mod session_modes;
pub(crate) mod shares;
pub(crate) mod slow_clients;
pub(crate) mod standpoints;
pub(crate) mod totals;
pub(crate) mod tracking_mode;
pub(crate) mod upload;
pub(crate) mod user_limits;
pub(crate) mod window;
