//! Servers and the connections to them.

pub(crate) mod backend;
pub(crate) mod bulk;
pub(crate) mod connect_attempts;
pub(crate) mod detach_large;
pub(crate) mod exclusive;
pub(crate) mod greeting;
pub(crate) mod handshake;
pub(crate) mod health;
pub(crate) mod hedge;
pub(crate) mod inspect;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod liveness;
pub(crate) mod low_water;
pub(crate) mod misfit;
pub(crate) mod outage;
pub(crate) mod probe;
pub(crate) mod redirect;
pub(crate) mod refused;
pub(crate) mod replica_reads;
pub(crate) mod retry;
pub(crate) mod server;
pub(crate) mod session_params;
pub(crate) mod spool;
pub(crate) mod streaming;
pub(crate) mod trial;
