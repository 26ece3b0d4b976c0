//! The admin child: what the master says on one side, the stats port on the other.

use std::error::Error;
use std::io::{self, PipeWriter};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use cashew_admin::Source;
use cashew_config::Snapshot;
use cashew_control::{ChildChannel, ReceiveError, ToChild, ToMaster};
use cashew_metrics::{Layout, Segments};
use cashew_process::{drop_privileges, log};
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{error, warn};

use crate::tell::VERSION;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Serves until the master says to stop or is gone.
pub(crate) fn serve(control: OwnedFd, started: SystemTime) -> Result<()> {
    let mut channel = ChildChannel::new(control);
    let (listener, source) = match prepare(&mut channel, started) {
        Ok(Some(prepared)) => prepared,
        Ok(None) => return Ok(()),
        Err(error) => {
            channel.send(&ToMaster::Failed { why: error.to_string() }, &[])?;
            return Err(error);
        }
    };
    channel.send(&ToMaster::Ready, &[])?;
    let (stop, stopping) = io::pipe()?;
    thread::Builder::new().name("control".into()).spawn(move || obey(channel, stopping))?;
    Ok(cashew_admin::serve(listener, source, stop)?)
}

/// Takes everything there is to serve with, until the master says to start. `None` when it says to
/// stop instead.
fn prepare(
    channel: &mut ChildChannel,
    started: SystemTime,
) -> Result<Option<(TcpListener, Source)>> {
    let mut source = None;
    let mut listener = None;
    loop {
        let Some((message, mut descriptors)) = receive(channel)? else { return Ok(None) };
        match message {
            ToChild::Init { .. } => {
                let [snapshot, metrics] = <[OwnedFd; 2]>::try_from(descriptors)
                    .map_err(|_| "the snapshot or the metrics are missing")?;
                let snapshot = cashew_config::from_json(&cashew_control::unseal(snapshot)?)?;
                drop_privileges(snapshot.global.user.as_deref(), snapshot.global.group.as_deref())?;
                source = Some(open(snapshot, metrics, started)?);
            }
            ToChild::Listen { .. } => listener = descriptors.pop().map(TcpListener::from),
            ToChild::Start => {
                return match (listener, source) {
                    (Some(listener), Some(source)) => Ok(Some((listener, source))),
                    _ => Err("there is nothing to serve".into()),
                };
            }
            ToChild::Shutdown => return Ok(None),
            other => handle(other, &descriptors),
        }
    }
}

fn open(snapshot: Snapshot, metrics: OwnedFd, started: SystemTime) -> Result<Source> {
    let segments = Segments::open(metrics, &Layout::new(&snapshot))?;
    Ok(Source::new(Arc::new(snapshot), Arc::new(segments), started, VERSION))
}

/// Does what the master says. Dropping `_stopping` ends the serving.
fn obey(mut channel: ChildChannel, _stopping: PipeWriter) {
    loop {
        match receive(&mut channel) {
            Ok(None | Some((ToChild::Shutdown, _))) => return,
            Ok(Some((message, descriptors))) => handle(message, &descriptors),
            Err(error) => return error!("{error}"),
        }
    }
}

fn handle(message: ToChild, descriptors: &[OwnedFd]) {
    match message {
        ToChild::LogLevel { level } => log::set_level(level),
        ToChild::LogReopen => {
            if let Some(Err(error)) = descriptors.first().map(log::redirect) {
                error!("cannot reopen the log: {error}");
            }
        }
        other => warn!("not expected now: {other:?}"),
    }
}

/// Waits for the next message. `None` when the master is gone.
fn receive(channel: &mut ChildChannel) -> Result<Option<(ToChild, Vec<OwnedFd>)>> {
    loop {
        match channel.receive() {
            Ok(Some(message)) => return Ok(Some(message)),
            Ok(None) => match poll(&mut [PollFd::new(channel, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            },
            Err(ReceiveError::Closed) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
