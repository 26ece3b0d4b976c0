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
    pub servers: usize,
}

use Protocol::{Binary, Redis, Text};

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "redis-1",
        kind: Kind::Redis,
        hostile: &[Redis],
        watched: &[Redis],
        options: &["redis: true", "command_policy: admin"],
        servers: 1,
    },
    Scenario {
        name: "redis-3",
        kind: Kind::Redis,
        hostile: &[Redis],
        watched: &[Redis],
        options: &["redis: true", "command_policy: admin"],
        servers: 3,
    },
    Scenario {
        name: "auto-1",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &["command_policy: admin"],
        servers: 1,
    },
    Scenario {
        name: "auto-3",
        kind: Kind::Memcached,
        hostile: &[Text, Binary],
        watched: &[Text, Binary],
        options: &["command_policy: admin"],
        servers: 3,
    },
    Scenario {
        name: "text-1",
        kind: Kind::Memcached,
        hostile: &[Text],
        watched: &[Text],
        options: &["protocol: text", "command_policy: admin"],
        servers: 1,
    },
    Scenario {
        name: "text-3",
        kind: Kind::Memcached,
        hostile: &[Text],
        watched: &[Text],
        options: &["protocol: text", "command_policy: admin"],
        servers: 3,
    },
    Scenario {
        name: "binary-1",
        kind: Kind::Memcached,
        hostile: &[Binary],
        watched: &[Binary],
        options: &["protocol: binary", "command_policy: admin"],
        servers: 1,
    },
    Scenario {
        name: "binary-3",
        kind: Kind::Memcached,
        hostile: &[Binary],
        watched: &[Binary],
        options: &["protocol: binary", "command_policy: admin"],
        servers: 3,
    },
];

/// The gateway to watch: `CASHEW`, or the debug build of this checkout.
pub fn gateway_program() -> PathBuf {
    std::env::var_os("CASHEW").map_or_else(|| PathBuf::from("target/debug/cashew"), PathBuf::from)
}
