//! From a key to a shard to a server.

pub(crate) mod router;
