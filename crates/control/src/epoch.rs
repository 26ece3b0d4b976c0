//! An epoch as the master hands it to its children.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use cashew_config::Snapshot;
use cashew_config::snapshot::TopologyState;
use serde::{Deserialize, Serialize};

use cashew_tls::TicketSecret;

use crate::sealed::{seal, unseal};

/// A snapshot, with the state of its pools that is not configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    pub snapshot: Snapshot,
    /// One for each pool of the snapshot.
    pub pools: Vec<PoolState>,
    /// Current addresses of server hosts: those looked up for this change, and found.
    #[serde(default)]
    pub addresses: BTreeMap<String, Vec<IpAddr>>,
    /// By which all workers resume the sessions of clients with TLS; `None` where there are none.
    #[serde(default)]
    pub tickets: Option<TicketSecret>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolState {
    /// The number under which the pool's clients are counted over all workers. It stays as long as
    /// a pool of that name exists.
    pub quota: u32,
    pub ring_version: u64,
    #[serde(flatten)]
    pub topology: TopologyState,
}

impl Epoch {
    /// Writes it into a sealed memfd.
    pub fn seal(&self) -> io::Result<OwnedFd> {
        seal(&serde_json::to_vec(self)?)
    }

    /// Reads what [`Epoch::seal`] wrote.
    pub fn unseal(memfd: impl AsFd) -> io::Result<Self> {
        let epoch: Self = serde_json::from_slice(&unseal(memfd)?)?;
        let fits = epoch.pools.len() == epoch.snapshot.pools.len()
            && epoch
                .pools
                .iter()
                .zip(&epoch.snapshot.pools)
                .all(|(state, pool)| state.topology.is_of(pool));
        if !fits {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "pools and states differ"));
        }
        Ok(epoch)
    }
}
