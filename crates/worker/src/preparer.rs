//! Reads the next epoch and builds its rings on a separate thread, since this may take long.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use cashew_config::Snapshot;
use cashew_config::snapshot::Pool;
use cashew_control::Epoch;
use cashew_engine::{BackendId, Plan, PoolState, ServerId};
use cashew_metrics::{Layout, QUOTAS_MAX, Segments};
use cashew_tls::TicketSecret;

use crate::affinity::Processors;
use crate::secured::Tls;

/// Prepares epochs, each on its own short-lived thread.
pub(crate) struct Preparer {
    answers: Receiver<Answer>,
    answer: Sender<Answer>,
    /// Readable when there may be answers.
    wake: PipeReader,
    waker: Arc<PipeWriter>,
    orders: u64,
}

/// What to prepare, and for which worker.
pub(crate) struct Order {
    pub(crate) epoch: u64,
    pub(crate) slot: u32,
    pub(crate) rank: u32,
    pub(crate) workers: u32,
    /// The sealed epoch and the metrics.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// What is in use now.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) processors: Processors,
}

/// A prepared epoch, or why it cannot be served.
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) result: Result<(Next, Plan), String>,
}

/// What takes effect when the epoch is committed.
pub(crate) struct Next {
    pub(crate) epoch: u64,
    pub(crate) rank: u32,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) tls: Tls,
    /// Current addresses of server hosts, of those that were looked up.
    pub(crate) addresses: BTreeMap<String, Vec<IpAddr>>,
}

impl Preparer {
    pub(crate) fn new() -> io::Result<Self> {
        let (answer, answers) = channel();
        let (wake, waker) = io::pipe()?;
        Ok(Self { answers, answer, wake, waker: Arc::new(waker), orders: 0 })
    }

    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns the number of the answer. An aborted epoch may be prepared again under the same
    /// epoch number with other content.
    pub(crate) fn prepare(&mut self, order: Order) -> io::Result<u64> {
        self.orders += 1;
        let number = self.orders;
        let (answer, waker) = (self.answer.clone(), Arc::clone(&self.waker));
        let work = move || {
            // A failure only makes it slower.
            let _ = order.processors.free();
            let result = read(order);
            if answer.send(Answer { number, result }).is_ok() {
                // The worker may have ended; then there is nobody to wake.
                let _ = (&*waker).write_all(&[0]);
            }
        };
        thread::Builder::new().name("prepare".to_owned()).spawn(work)?;
        Ok(number)
    }

    /// Takes the answers that are there. Call it when [`Preparer::wake`] is readable.
    pub(crate) fn answers(&mut self) -> Vec<Answer> {
        let mut bytes = [0; 64];
        let count = self.wake.read(&mut bytes).unwrap_or(0);
        self.answers.try_iter().take(count).collect()
    }
}

fn read(order: Order) -> Result<(Next, Plan), String> {
    let Order { epoch, slot, rank, workers, descriptors, .. } = order;
    let Ok([sealed, metrics]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Err("the epoch or its metrics are missing".to_owned());
    };
    let Epoch { mut snapshot, pools, addresses, tickets } = open_sealed(&sealed)?;
    let states = states_of(pools);
    if snapshot.epoch != epoch {
        return Err(format!("epoch {} was handed over for {epoch}", snapshot.epoch));
    }
    let layout = Layout::new(&snapshot);
    let segments = Segments::open(metrics, &layout).map_err(|error| error.to_string())?;
    // Counters are carried over at the commit. This only touches the memory pages in advance.
    if !segments.is_same(&order.segments) {
        segments.carry(&order.segments, &order.snapshot, &snapshot, slot);
    }
    let renewed = renewed(&order.snapshot, &snapshot);
    let tls = Tls::take(&mut snapshot, tickets.as_ref())?;
    let mut plan = Plan::new(&snapshot, &states, rank, workers);
    for (pool, server) in renewed {
        plan.move_server(pool, server);
    }
    let (snapshot, segments) = (Arc::new(snapshot), Arc::new(segments));
    Ok((Next { epoch, rank, snapshot, segments, tls, addresses }, plan))
}

/// The servers to which connections that stand are not right any more: they are secured in another way than before, or
/// have said that they go.
fn renewed(old: &Snapshot, new: &Snapshot) -> Vec<(BackendId, ServerId)> {
    let mut found = Vec::new();
    for (at, pool) in (0..).zip(&new.pools) {
        let Some(before) = old.pools.iter().find(|it| it.name == pool.name) else { continue };
        let is_same = match (&before.server_tls, &pool.server_tls) {
            (None, None) => true,
            (Some(before), Some(now)) => before.trusts_as(now),
            _ => false,
        };
        let renewals = |pool: &Pool, server: &str| pool.relocation_of(server).map(|it| it.renewals);
        for (place, server) in (0..).zip(&pool.servers) {
            if !is_same || renewals(before, &server.name) != renewals(pool, &server.name) {
                found.push((BackendId::new(at), ServerId::new(place)));
            }
        }
    }
    found
}

/// The snapshot in the memfd, the engine's state for each pool, and what tickets are made by.
pub(crate) fn open_epoch(
    sealed: &OwnedFd,
) -> Result<(Snapshot, Vec<PoolState>, Option<TicketSecret>), String> {
    let Epoch { snapshot, pools, tickets, .. } = open_sealed(sealed)?;
    Ok((snapshot, states_of(pools), tickets))
}

fn open_sealed(sealed: &OwnedFd) -> Result<Epoch, String> {
    let epoch = Epoch::unseal(sealed).map_err(|error| error.to_string())?;
    match epoch.pools.iter().find(|state| state.quota >= QUOTAS_MAX) {
        Some(state) => Err(format!("there is no quota {}", state.quota)),
        None => Ok(epoch),
    }
}

fn states_of(pools: Vec<cashew_control::PoolState>) -> Vec<PoolState> {
    let state = |state: cashew_control::PoolState| PoolState {
        quota: state.quota,
        ring_version: state.ring_version,
        topology: state.topology,
    };
    pools.into_iter().map(state).collect()
}
