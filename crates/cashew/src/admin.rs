//! The admin process: the master's channel on one side, the stats port on the other.

use std::cell::RefCell;
use std::error::Error;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cashew_admin::{Change, Changer, Discovery, GroupState, Said, Source};
use cashew_config::Snapshot;
use cashew_control::{ChildChannel, Epoch, ReceiveError, SendError, ToChild, ToMaster, unseal};
use cashew_metrics::{Layout, Segments, Shared};
use cashew_process::{drop_privileges, log, memory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{error, warn};

use crate::output::VERSION;

/// How long after a commit the stats server certainly uses the new epoch.
const TRIM_AFTER: Duration = Duration::from_secs(2);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Serves until the master orders a stop or is gone.
pub(crate) fn serve(control: OwnedFd, started: SystemTime) -> Result<()> {
    let mut channel = ChildChannel::new(control);
    let (listener, source, instance) = match prepare(&mut channel, started) {
        Ok(Some(prepared)) => prepared,
        Ok(None) => return Ok(()),
        Err(error) => {
            channel.send(&ToMaster::Failed { why: error.to_string() }, &[])?;
            return Err(error);
        }
    };
    source.beat();
    channel.send(&ToMaster::Ready, &[])?;
    // Messages are whole, so another thread may send some, too.
    let orders = RefCell::new(ChildChannel::new(channel.as_fd().try_clone_to_owned()?));
    let send = move |number, command, place| {
        let order = ToMaster::Operate { number, command, place };
        orders.borrow_mut().send(&order, &[]).map_err(io::Error::other)
    };
    let (changer, changes) = cashew_admin::changes();
    let control = Control { channel, changer, instance, prepared: None, trim_at: None };
    thread::Builder::new().name("control".into()).spawn(move || control.run())?;
    Ok(cashew_admin::serve(listener, source, changes, Box::new(send))?)
}

/// Receives all that is needed to serve, until the master's start message. `None` if the master
/// orders a stop instead.
fn prepare(
    channel: &mut ChildChannel,
    started: SystemTime,
) -> Result<Option<(TcpListener, Source, Instance)>> {
    let mut source = None;
    let mut listener = None;
    loop {
        let Some((message, mut descriptors)) = receive(channel)? else { return Ok(None) };
        match message {
            ToChild::Init { .. } => {
                let [epoch, metrics, memory] = <[OwnedFd; 3]>::try_from(descriptors)
                    .map_err(|_| "the epoch, the metrics or what all share is missing")?;
                let snapshot = Epoch::unseal(epoch)?.snapshot;
                drop_privileges(snapshot.global.user.as_deref(), snapshot.global.group.as_deref())?;
                let shared = Shared::open(memory)?;
                log::record_events(shared.events());
                let instance = Instance { shared, started, discovery: Discovery::default() };
                source = Some((instance.open(snapshot, metrics)?, instance));
            }
            ToChild::Listen { .. } => listener = descriptors.pop().map(TcpListener::from),
            ToChild::Start => {
                return match (listener, source) {
                    (Some(listener), Some((source, instance))) => {
                        Ok(Some((listener, source, instance)))
                    }
                    _ => Err("there is nothing to serve".into()),
                };
            }
            ToChild::Shutdown => return Ok(None),
            other => log_or_warn(other, descriptors),
        }
    }
}

/// What is the same for all epochs.
struct Instance {
    shared: Shared,
    started: SystemTime,
    discovery: Discovery,
}

impl Instance {
    fn open(&self, snapshot: Snapshot, metrics: OwnedFd) -> Result<Source> {
        let segments = Arc::new(Segments::open(metrics, &Layout::new(&snapshot))?);
        let (snapshot, shared) = (Arc::new(snapshot), self.shared.clone());
        let source = Source::new(snapshot, segments, shared, self.started, VERSION);
        Ok(source.with_discovery(self.discovery.clone()).with_routes(crate::route::tell))
    }

    fn open_epoch(&self, descriptors: Vec<OwnedFd>) -> Result<Source> {
        let [epoch, metrics] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_| "the epoch or the metrics are missing")?;
        let snapshot = Epoch::unseal(epoch)?.snapshot;
        check_logs(&snapshot)?;
        self.open(snapshot, metrics)
    }
}

/// A file that cannot be opened is a reason to refuse a configuration, as it is with that of the log.
fn check_logs(snapshot: &Snapshot) -> Result<()> {
    let access_log = snapshot.global.access_log.as_ref().map(|log| ("access", &log.file));
    let audit_log = snapshot.global.audit_log.as_ref().map(|log| ("audit", &log.file));
    for (name, file) in access_log.into_iter().chain(audit_log) {
        if let Err(error) = log::open(file) {
            return Err(format!("cannot open the {name} log {}: {error}", file.display()).into());
        }
    }
    Ok(())
}

/// Handles the master's messages while the stats port is served. Dropping it stops the server.
struct Control {
    channel: ChildChannel,
    changer: Changer,
    instance: Instance,
    /// The next epoch, until it is committed or aborted.
    prepared: Option<(u64, Source)>,
    /// When to return the former epoch's memory to the system: the stats server has released it by
    /// then.
    trim_at: Option<Instant>,
}

impl Control {
    fn run(mut self) {
        loop {
            let done = match self.receive() {
                Ok(None | Some((ToChild::Shutdown, _))) => return,
                Ok(Some((message, descriptors))) => self.obey(message, descriptors),
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                return error!("{error}");
            }
        }
    }

    fn receive(&mut self) -> Result<Option<(ToChild, Vec<OwnedFd>)>> {
        while let Some(at) = self.trim_at {
            match self.channel.receive() {
                Ok(None) => {}
                Ok(message) => return Ok(message),
                Err(ReceiveError::Closed) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                memory::trim();
                self.trim_at = None;
                break;
            }
            wait_for(&self.channel, PollFlags::IN, Some(left))?;
        }
        receive(&mut self.channel)
    }

    fn obey(&mut self, message: ToChild, mut descriptors: Vec<OwnedFd>) -> Result<()> {
        match message {
            ToChild::Prepare { epoch, .. } => {
                let answer = match self.instance.open_epoch(descriptors) {
                    Ok(source) => {
                        self.prepared = Some((epoch, source));
                        ToMaster::Prepared { epoch }
                    }
                    Err(error) => ToMaster::Refused { epoch, why: error.to_string() },
                };
                self.send(&answer)
            }
            ToChild::Commit { epoch } => {
                let prepared = self.prepared.take().filter(|(number, _)| *number == epoch);
                // A process that was started after the decision began with the new epoch.
                if let Some((_, source)) = prepared {
                    log::set_format(source.log_format());
                    self.changer.change(Change::Source(source))?;
                    self.trim_at = Some(Instant::now() + TRIM_AFTER);
                }
                self.send(&ToMaster::Committed { epoch })
            }
            ToChild::Abort { .. } => {
                self.prepared = None;
                Ok(())
            }
            ToChild::Group { pool, server, state, config_epoch, switches, switched_at, why } => {
                let state = GroupState { state, config_epoch, switches, switched_at, why };
                self.instance.discovery.group(pool, server, state);
                Ok(())
            }
            ToChild::Sentinel { pool, address, is_answering } => {
                self.instance.discovery.sentinel(pool, address, is_answering);
                Ok(())
            }
            ToChild::Seed { pool, address, is_answering } => {
                self.instance.discovery.seed(pool, address, is_answering);
                Ok(())
            }
            ToChild::Source { json } => {
                match serde_json::from_str(&json) {
                    Ok(status) => self.instance.discovery.source(status),
                    Err(error) => warn!("what was told of a source cannot be read: {error}"),
                }
                Ok(())
            }
            ToChild::Maintained { json } => {
                match serde_json::from_str(&json) {
                    Ok(status) => self.instance.discovery.maintained(status),
                    Err(error) => warn!("what was told of a server cannot be read: {error}"),
                }
                Ok(())
            }
            ToChild::Moves { json } => {
                match serde_json::from_str(&json) {
                    Ok(moves) => self.instance.discovery.moves(moves),
                    Err(error) => warn!("what was told of moves cannot be read: {error}"),
                }
                Ok(())
            }
            ToChild::Operated { number, text, is_ok, unchanged } => {
                let document = match descriptors.pop().map(unseal) {
                    None => None,
                    Some(Ok(document)) => Some(document),
                    Some(Err(error)) => {
                        warn!("an answer of the master cannot be read: {error}");
                        None
                    }
                };
                let said = Said { number, text, is_ok, unchanged, document };
                Ok(self.changer.change(Change::Said(said))?)
            }
            ToChild::LogReopen => {
                log_or_warn(ToChild::LogReopen, descriptors);
                Ok(self.changer.change(Change::Reopen)?)
            }
            ToChild::Listen { .. } => {
                let socket = descriptors.pop().ok_or("a socket to listen at is missing")?;
                Ok(self.changer.change(Change::Listener(TcpListener::from(socket)))?)
            }
            other => {
                log_or_warn(other, descriptors);
                Ok(())
            }
        }
    }

    /// The master keeps reading, so a blocking send ends.
    fn send(&self, message: &ToMaster) -> Result<()> {
        loop {
            match self.channel.send(message, &[]) {
                Err(SendError::WouldBlock) => wait(&self.channel, PollFlags::OUT)?,
                done => return Ok(done?),
            }
        }
    }
}

pub(crate) fn log_or_warn(message: ToChild, descriptors: Vec<OwnedFd>) {
    match message {
        ToChild::LogLevel { level } => log::set_level(level),
        ToChild::LogReopen => match descriptors.into_iter().next().map(log::redirect_aside) {
            Some(Ok(())) => {}
            Some(Err(error)) => error!("cannot reopen the log: {error}"),
            None => error!("cannot reopen the log: no file came with the order"),
        },
        other => warn!("not expected now: {other:?}"),
    }
}

/// Waits for the next message. `None` if the master is gone.
fn receive(channel: &mut ChildChannel) -> Result<Option<(ToChild, Vec<OwnedFd>)>> {
    loop {
        match channel.receive() {
            Ok(Some(message)) => return Ok(Some(message)),
            Ok(None) => wait(channel, PollFlags::IN)?,
            Err(ReceiveError::Closed) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

fn wait(channel: &ChildChannel, until: PollFlags) -> Result<()> {
    wait_for(channel, until, None)
}

fn wait_for(channel: &ChildChannel, until: PollFlags, at_most: Option<Duration>) -> Result<()> {
    let at_most = at_most.map(|span| Timespec::try_from(span).expect("a short duration"));
    match poll(&mut [PollFd::new(channel, until)], at_most.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use cashew_config::Context;
    use cashew_control::{MasterChannel, PoolState, pair};

    use super::*;

    /// A sealed epoch with a pool of that name, and its metrics.
    fn epoch(number: u64, pool: &str) -> (OwnedFd, OwnedFd) {
        let yaml = format!(
            "{pool}:\n  listen: 127.0.0.1:1\n  redis: true\n  servers:\n   - 127.0.0.1:2:1\n"
        );
        let Ok(loaded) = cashew_config::parse("test.yml", &yaml, &Context::of_system()) else {
            panic!("{yaml}");
        };
        let mut snapshot = loaded.snapshot;
        snapshot.epoch = number;
        let (metrics, _) = Segments::create(&Layout::new(&snapshot)).unwrap();
        let pools = vec![PoolState { quota: 0, ring_version: 1, topology: vec![true].into() }];
        (
            Epoch { snapshot, pools, addresses: BTreeMap::new(), tickets: None }.seal().unwrap(),
            metrics,
        )
    }

    fn answer(master: &mut MasterChannel) -> ToMaster {
        loop {
            if let Some((message, _)) = master.receive().unwrap() {
                return message;
            }
            poll(&mut [PollFd::new(&*master, PollFlags::IN)], None).unwrap();
        }
    }

    fn stats(listener: &TcpListener) -> String {
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // What is said unasked is nutcracker's alone.
        stream.write_all(b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn epochs_are_prepared_aborted_refused_and_committed() {
        let (ours, theirs) = pair().unwrap();
        let mut master = MasterChannel::new(ours);
        let thread = thread::spawn(move || serve(theirs, SystemTime::now()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (sealed, metrics) = epoch(1, "first");
        let init = ToChild::Init { slot: 0, rank: 0, workers: 1 };
        let (shared, memory) = Shared::create().unwrap();
        master.send(&init, &[sealed.as_fd(), metrics.as_fd(), shared.as_fd()]).unwrap();
        master.send(&ToChild::Listen { listener: 0, pool: 0 }, &[listener.as_fd()]).unwrap();
        master.send(&ToChild::Start, &[]).unwrap();
        assert_eq!(answer(&mut master), ToMaster::Ready);
        assert!(stats(&listener).contains("\"first\""));

        let (sealed, metrics) = epoch(2, "second");
        let prepare = |epoch| ToChild::Prepare { epoch, rank: 0, workers: 1 };
        let descriptors = [sealed.as_fd(), metrics.as_fd()];
        master.send(&prepare(2), &descriptors).unwrap();
        assert_eq!(answer(&mut master), ToMaster::Prepared { epoch: 2 });
        master.send(&ToChild::Abort { epoch: 2 }, &[]).unwrap();
        master.send(&prepare(3), &descriptors[..1]).unwrap();
        assert!(matches!(answer(&mut master), ToMaster::Refused { epoch: 3, .. }));
        memory.add_reload(1_700_000_000, Some("it is too hard"));
        let told = stats(&listener);
        assert!(told.contains("\"first\"") && told.contains("it is too hard"), "{told}");

        master.send(&prepare(4), &descriptors).unwrap();
        assert_eq!(answer(&mut master), ToMaster::Prepared { epoch: 4 });
        master.send(&ToChild::Commit { epoch: 4 }, &[]).unwrap();
        assert_eq!(answer(&mut master), ToMaster::Committed { epoch: 4 });
        assert!(stats(&listener).contains("\"second\""));

        master.send(&ToChild::Shutdown, &[]).unwrap();
        thread.join().unwrap().unwrap();
    }
}
