//! The pools to compare: their configuration and their clients' protocol.

use std::path::Path;

use cashew_config::{Context, Snapshot};

use crate::generate::Protocol;
use crate::servers::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub name: &'static str,
    pub kind: Kind,
    pub protocol: Protocol,
    /// Lines of the pool's configuration.
    pub options: &'static [&'static str],
    /// All at the same address, so that one real server has all keys.
    pub servers: usize,
}

pub const SETUPS: &[Setup] = &[
    Setup {
        name: "redis-1",
        kind: Kind::Redis,
        protocol: Protocol::Redis,
        options: &["redis: true", "command_policy: admin"],
        servers: 1,
    },
    Setup {
        name: "redis-3",
        kind: Kind::Redis,
        protocol: Protocol::Redis,
        options: &["redis: true", "command_policy: admin"],
        servers: 3,
    },
    Setup {
        name: "auto-1",
        kind: Kind::Memcached,
        protocol: Protocol::Text,
        options: &["command_policy: admin"],
        servers: 1,
    },
    Setup {
        name: "auto-3",
        kind: Kind::Memcached,
        protocol: Protocol::Text,
        options: &["command_policy: admin"],
        servers: 3,
    },
    Setup {
        name: "text-1",
        kind: Kind::Memcached,
        protocol: Protocol::Text,
        options: &["protocol: text", "command_policy: admin"],
        servers: 1,
    },
    Setup {
        name: "text-3",
        kind: Kind::Memcached,
        protocol: Protocol::Text,
        options: &["protocol: text", "command_policy: admin"],
        servers: 3,
    },
    Setup {
        name: "auto-binary-1",
        kind: Kind::Memcached,
        protocol: Protocol::Binary,
        options: &["command_policy: admin"],
        servers: 1,
    },
    Setup {
        name: "binary-1",
        kind: Kind::Memcached,
        protocol: Protocol::Binary,
        options: &["protocol: binary", "command_policy: admin"],
        servers: 1,
    },
    Setup {
        name: "binary-3",
        kind: Kind::Memcached,
        protocol: Protocol::Binary,
        options: &["protocol: binary", "command_policy: admin"],
        servers: 3,
    },
];

impl Setup {
    pub fn named(name: &str) -> Option<Self> {
        SETUPS.iter().find(|setup| setup.name == name).copied()
    }

    /// The configuration, with all servers at that socket.
    pub fn snapshot(&self, socket: &Path) -> Snapshot {
        let mut yaml = String::from("p:\n  listen: 127.0.0.1:6000\n  distribution: modula\n");
        for option in self.options {
            yaml.push_str(&format!("  {option}\n"));
        }
        yaml.push_str("  servers:\n");
        for server in 0..self.servers {
            yaml.push_str(&format!("   - {}:1 s{server}\n", socket.display()));
        }
        match cashew_config::parse("differential.yml", &yaml, &Context::of_system()) {
            Ok(loaded) => loaded.snapshot,
            Err(errors) => panic!("{errors}"),
        }
    }
}
