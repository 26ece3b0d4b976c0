//! Building blocks: ids, buffers, queues, time. They know nothing of clients, servers or commands.

pub(crate) mod action;
pub(crate) mod bucket;
pub(crate) mod buffer;
pub(crate) mod cache_mark;
pub(crate) mod command_stats;
pub(crate) mod failure;
pub(crate) mod fifo;
pub(crate) mod free_ids;
pub(crate) mod id;
pub(crate) mod latency_batch;
pub(crate) mod mark;
pub(crate) mod outcome;
pub(crate) mod pace;
pub(crate) mod prefixes;
pub(crate) mod recycler;
pub(crate) mod rng;
pub(crate) mod slab;
pub(crate) mod standing;
pub(crate) mod table;
pub(crate) mod time;
pub(crate) mod timers;
pub(crate) mod work_budget;
