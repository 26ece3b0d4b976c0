//! The start of a worker: what the master hands over.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cashew_config::Snapshot;
use cashew_control::{ChildChannel, ReceiveError, ToChild, ToMaster};
use cashew_engine::Plan;
use cashew_metrics::{Layout, SLOTS_MAX, Segments, Shared};
use cashew_process::drop_privileges;
use rustix::event::{PollFd, PollFlags, poll};

use crate::preparer::open_epoch;
use crate::secured::Tls;

/// Why a worker cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Io(io::Error),
    #[error("the master's channel failed: {0}")]
    Channel(ReceiveError),
    #[error("the master sent {0:?} where it had to send something else")]
    Unexpected(Box<ToChild>),
    /// The kernel drops descriptors that a process may not take.
    #[error(
        "a socket that the master sent did not arrive: this process may open no more files (RLIMIT_NOFILE)"
    )]
    NoDescriptor,
    #[error("the configuration handed over cannot be read: {0}")]
    Snapshot(String),
    #[error("the metrics handed over cannot be used: {0}")]
    Metrics(io::Error),
    #[error("{0}")]
    Privileges(String),
}

/// All that a worker starts with.
pub(crate) struct Start {
    pub(crate) slot: u32,
    pub(crate) rank: u32,
    pub(crate) snapshot: Snapshot,
    pub(crate) plan: Plan,
    pub(crate) tls: Tls,
    pub(crate) segments: Arc<Segments>,
    pub(crate) shared: Shared,
    /// Number, pool and socket of each listener.
    pub(crate) listeners: Vec<(u32, u32, OwnedFd)>,
    /// Ring messages that came before the start, in order.
    pub(crate) rings: Vec<ToChild>,
}

/// Receives everything up to [`ToChild::Start`]. A failure is reported to the master.
pub(crate) fn receive(control: OwnedFd) -> Result<(Start, ChildChannel), Error> {
    let mut control = ChildChannel::new(control);
    match take_over(&mut control) {
        Ok(start) => Ok((start, control)),
        Err(error) => {
            report_failure(&mut control, &error);
            Err(error)
        }
    }
}

pub(crate) fn report_failure(control: &mut ChildChannel, error: &Error) {
    // If the master is gone, nobody needs the report.
    let _ = control.send(&ToMaster::Failed { why: error.to_string() }, &[]);
}

fn take_over(control: &mut ChildChannel) -> Result<Start, Error> {
    let (slot, rank, workers, descriptors) = match next(control)? {
        (ToChild::Init { slot, rank, workers }, descriptors) => (slot, rank, workers, descriptors),
        (other, _) => return Err(Error::Unexpected(Box::new(other))),
    };
    let Ok([epoch, metrics, shared]) = <[OwnedFd; 3]>::try_from(descriptors) else {
        return Err(Error::NoDescriptor);
    };
    let (mut snapshot, states, tickets) = open_epoch(&epoch).map_err(Error::Snapshot)?;
    let tls = Tls::take(&mut snapshot, tickets.as_ref()).map_err(Error::Snapshot)?;
    let segments = Segments::open(metrics, &Layout::new(&snapshot)).map_err(Error::Metrics)?;
    if slot >= SLOTS_MAX {
        return Err(Error::Unexpected(Box::new(ToChild::Init { slot, rank, workers })));
    }
    let shared = Shared::open(shared).map_err(Error::Metrics)?;
    cashew_process::log::record_events(shared.events());
    drop_privileges(snapshot.global.user.as_deref(), snapshot.global.group.as_deref())
        .map_err(|error| Error::Privileges(error.to_string()))?;
    let mut start = Start {
        slot,
        rank,
        plan: Plan::new(&snapshot, &states, rank, workers),
        tls,
        snapshot,
        segments: Arc::new(segments),
        shared,
        listeners: Vec::new(),
        rings: Vec::new(),
    };
    loop {
        match next(control)? {
            (ToChild::Start, _) => return Ok(start),
            (ToChild::Listen { listener, pool }, mut descriptors) => {
                let socket = descriptors.pop().ok_or(Error::NoDescriptor)?;
                if pool as usize >= start.snapshot.pools.len() {
                    return Err(Error::Unexpected(Box::new(ToChild::Listen { listener, pool })));
                }
                start.listeners.push((listener, pool, socket));
            }
            (ToChild::Unlisten { listener, .. }, _) => {
                start.listeners.retain(|(name, ..)| *name != listener);
            }
            (ring @ (ToChild::Hold { .. } | ToChild::Release { .. }), _) => start.rings.push(ring),
            (ToChild::LogLevel { level }, _) => cashew_process::log::set_level(level),
            (ToChild::LogReopen, descriptors) => reopen_log(descriptors),
            (other, _) => {
                return Err(Error::Unexpected(Box::new(other)));
            }
        }
    }
}

pub(crate) fn reopen_log(descriptors: Vec<OwnedFd>) {
    let Some(file) = descriptors.into_iter().next() else {
        return tracing::warn!("cannot reopen the log: no file came with the order");
    };
    if let Err(error) = cashew_process::log::redirect_aside(file) {
        tracing::warn!("cannot reopen the log: {error}");
    }
}

/// Waits for the next message.
fn next(control: &mut ChildChannel) -> Result<(ToChild, Vec<OwnedFd>), Error> {
    loop {
        if let Some(message) = control.receive().map_err(Error::Channel)? {
            return Ok(message);
        }
        match poll(&mut [PollFd::new(&*control, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::Io(errno.into())),
        }
    }
}
