//! One worker without a master or an admin, in a process of one thread: for profilers that follow
//! neither children nor threads.
//!
//! `alone CONFIGURATION` serves the TCP pools of the file until it is killed.

use cashew_config::snapshot::TopologyState;
use std::collections::BTreeMap;
use std::error::Error;
use std::net::TcpListener;
use std::os::fd::AsFd;

use cashew_config::snapshot::Listen;
use cashew_control::{Epoch, MasterChannel, PoolState, ToChild, pair};
use cashew_metrics::{Layout, Segments, Shared};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: alone CONFIGURATION")?;
    let snapshot = cashew_config::load(path.as_ref())?.snapshot;
    let (ours, control) = pair()?;
    // The channel holds everything a worker is told before it starts; nobody reads its answers.
    let master = MasterChannel::new(ours);
    let pools = snapshot.pools.iter().zip(0..).map(|(pool, quota)| PoolState {
        quota,
        ring_version: 0,
        topology: TopologyState::whole(pool),
    });
    let (pools, addresses) = (pools.collect(), BTreeMap::new());
    let sealed = Epoch { snapshot: snapshot.clone(), pools, addresses, tickets: None }.seal()?;
    let (shared, _) = Shared::create()?;
    let (metrics, _segments) = Segments::create(&Layout::new(&snapshot))?;
    master.send(
        &ToChild::Init { slot: 0, rank: 0, workers: 1 },
        &[sealed.as_fd(), metrics.as_fd(), shared.as_fd()],
    )?;
    for (pool, config) in snapshot.pools.iter().enumerate() {
        let Listen::Tcp(address) = config.listen else {
            return Err(format!("pool {}: only TCP is served here", config.name).into());
        };
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        // Accepted connections inherit it; without it small writes wait for acknowledgements.
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        master.send(
            &ToChild::Listen { listener: pool as u32, pool: pool as u32 },
            &[socket.as_fd()],
        )?;
    }
    master.send(&ToChild::Start, &[])?;
    Ok(cashew_worker::run(control)?)
}
