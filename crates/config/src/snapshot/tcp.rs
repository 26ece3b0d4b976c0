//! Pools that pass bytes through as they are.

use serde::{Deserialize, Serialize};

/// What only pools with `protocol: tcp` have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tcp {
    pub balance: Balance,
    /// Connections over which nothing went for so long, either way, are closed; 0 is no limit.
    pub idle_timeout_ms: u64,
    /// Connections to each server over all workers; 0 is no limit.
    pub connections_max: u32,
    /// How long a client waits for a place where all servers have so many.
    pub wait_ms: u64,
    pub send_proxy: SendProxy,
    /// Names of servers that get connections only while all others are out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backup: Vec<String>,
    /// So many checks in a row take a server back.
    pub rise: u32,
}

/// Which server the next connection goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// One after the other, by their weights.
    #[default]
    RoundRobin,
    /// The one with the fewest connections for its weight.
    LeastConnections,
    /// By the address of the client's host.
    Source,
    /// Of two that are drawn by their weights the one with fewer connections.
    Random,
}

impl Balance {
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastConnections => "least_connections",
            Self::Source => "source",
            Self::Random => "random",
        }
    }
}

/// Whether servers are told whose connections they get, by a header of the PROXY protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendProxy {
    #[default]
    Off,
    /// By a line of text.
    V1,
    /// In binary.
    V2,
}

impl SendProxy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}
