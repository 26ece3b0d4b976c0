//! Hostile and watched clients of the gateway itself, in front of real servers.
//!
//! Every reply to a watched client is compared with a model of its own keys, which nobody else
//! uses.

mod gateway;
mod hostile;
mod lap;
mod minimise;
mod watcher;

pub use lap::{Finding, Lap, Totals, run_lap};

use std::path::PathBuf;

use crate::generate::Protocol;
use crate::port::{self, trees};
use crate::servers::Kind;

/// A pool of the gateway, with the servers behind it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub kind: Kind,
    /// Protocols of hostile clients.
    pub hostile: &'static [Protocol],
    /// Protocols of watched clients.
    pub watched: &'static [Protocol],
    pub options: &'static [&'static str],
    /// Servers of each pool.
    pub servers: usize,
    /// The route in front of the pools.
    pub tree: Option<&'static str>,
}

impl Scenario {
    /// Servers of all pools.
    pub(crate) fn servers(&self) -> usize {
        self.servers * port::pools(self.tree)
    }

    /// Whether a watched client's reads see what it has written before, and nothing that it writes after them in the
    /// same pipeline. A read that misses a copy goes to the key itself later.
    pub(crate) fn has_order(&self) -> bool {
        self.tree != Some(trees::SPLIT)
    }
}

use Protocol::{Binary, Redis, Text};

/// Keys of clients have this in front of them.
const PREFIX: &str = "users: {default: {rules: 'on nopass ~* &* +@all', key_prefix: 'p:'}}";

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "redis-1",
        kind: Kind::Redis,
        hostile: &[Redis],
        watched: &[Redis],
        options: &["redis: true", "command_policy: admin"],
        servers: 1,
        tree: None,
    },
    Scenario {
        name: "redis-3",
        kind: Kind::Redis,
        hostile: &[Redis],
        watched: &[Redis],
        options: &["redis: true", "command_policy: admin"],
        servers: 3,
        tree: None,
    },
    Scenario {
        name: "auto-1",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &["command_policy: admin"],
        servers: 1,
        tree: None,
    },
    Scenario {
        name: "auto-3",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &["command_policy: admin"],
        servers: 3,
        tree: None,
    },
    Scenario {
        name: "text-1",
        kind: Kind::Memcached,
        hostile: &[Text],
        watched: &[Text],
        options: &["protocol: text", "command_policy: admin"],
        servers: 1,
        tree: None,
    },
    Scenario {
        name: "text-3",
        kind: Kind::Memcached,
        hostile: &[Text],
        watched: &[Text],
        options: &["protocol: text", "command_policy: admin"],
        servers: 3,
        tree: None,
    },
    Scenario {
        name: "binary-1",
        kind: Kind::Memcached,
        hostile: &[Binary],
        watched: &[Binary],
        options: &["protocol: binary", "command_policy: admin"],
        servers: 1,
        tree: None,
    },
    Scenario {
        name: "binary-3",
        kind: Kind::Memcached,
        hostile: &[Binary],
        watched: &[Binary],
        options: &["protocol: binary", "command_policy: admin"],
        servers: 3,
        tree: None,
    },
    Scenario {
        name: "rewrite",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &["command_policy: admin"],
        servers: 1,
        tree: Some(trees::REWRITE),
    },
    Scenario {
        name: "strip",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &["command_policy: admin"],
        servers: 1,
        tree: Some(trees::STRIP),
    },
    Scenario {
        name: "split",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &["command_policy: admin"],
        servers: 2,
        tree: Some(trees::SPLIT),
    },
    Scenario {
        name: "initial",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &[PREFIX],
        servers: 1,
        tree: Some(trees::INITIAL),
    },
    Scenario {
        name: "shadow",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &["command_policy: admin"],
        servers: 1,
        tree: Some(trees::SHADOW),
    },
    Scenario {
        name: "failover",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &[PREFIX],
        servers: 1,
        tree: Some(trees::FAILOVER),
    },
    Scenario {
        name: "redis-rewrite",
        kind: Kind::Redis,
        hostile: &[Redis],
        watched: &[Redis],
        options: &["redis: true", PREFIX],
        servers: 2,
        tree: Some(trees::REWRITE),
    },
    Scenario {
        name: "redis-split",
        kind: Kind::Redis,
        hostile: &[Redis],
        watched: &[Redis],
        options: &["redis: true", "command_policy: admin"],
        servers: 2,
        tree: Some(trees::SPLIT),
    },
];

/// The gateway to watch: `CASHEW`, or the debug build of this checkout.
pub fn gateway_program() -> PathBuf {
    std::env::var_os("CASHEW").map_or_else(|| PathBuf::from("target/debug/cashew"), PathBuf::from)
}
