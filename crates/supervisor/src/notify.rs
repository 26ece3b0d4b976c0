//! Reports the instance's state to systemd, or to whatever else started it: sd_notify(3).
//!
//! Our own datagrams instead of a crate, since the master must not block: what does not fit in the
//! queue is dropped. That costs only a status, or one of two watchdog pings.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tracing::{debug, warn};

/// Variables by which systemd addresses a service. Children must not take them for theirs.
pub(crate) const VARIABLES: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

pub(crate) struct Notify {
    /// `None` if nobody is to be notified.
    socket: Option<UnixDatagram>,
    watchdog: Option<Watchdog>,
}

/// The service manager ends the instance if no ping comes in time.
struct Watchdog {
    /// Half of the allowed time.
    interval: Duration,
    due: Instant,
}

impl Notify {
    pub(crate) fn from_env(now: Instant) -> Self {
        let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let timeout = number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0);
        Self::new(env::var_os("NOTIFY_SOCKET"), timeout.map(Duration::from_micros), now)
    }

    /// Whether a service manager is notified.
    pub(crate) fn is_heard(&self) -> bool {
        self.socket.is_some()
    }

    fn new(path: Option<OsString>, timeout: Option<Duration>, now: Instant) -> Self {
        let socket = path.and_then(|path| match connect(&path) {
            Ok(socket) => Some(socket),
            Err(error) => {
                warn!("cannot notify {}: {error}", path.display());
                None
            }
        });
        let watchdog = |timeout: Duration| Watchdog { interval: timeout / 2, due: now };
        let watchdog = timeout.filter(|_| socket.is_some()).map(watchdog);
        Self { socket, watchdog }
    }

    /// After the start, or again after [`Notify::reloading`].
    pub(crate) fn ready(&self, status: &str) {
        // The process may not be the one that was started: it can be a daemon.
        let pid = std::process::id();
        self.send(&format!("READY=1\nMAINPID={pid}\nSTATUS={}\n", one_line(status)));
    }

    /// A reload that systemd requested lasts until [`Notify::ready`].
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reloading\n"));
    }

    /// The instance ends within that time. systemd waits for so long, whatever `TimeoutStopSec` its unit has.
    pub(crate) fn stopping(&self, within: Duration) {
        let usec = within.as_micros();
        self.send(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={usec}\nSTATUS=finishing what is in flight\n"
        ));
    }

    /// The same of one that serves for a while before it stops.
    pub(crate) fn draining(&self, within: Duration) {
        let usec = within.as_micros();
        self.send(&format!("EXTEND_TIMEOUT_USEC={usec}\nSTATUS=draining\n"));
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.watchdog.as_ref().map(|watchdog| watchdog.due)
    }

    /// Pings the watchdog when it is due. `is_well` says whether the instance serves.
    pub(crate) fn handle_timeout(&mut self, now: Instant, is_well: impl FnOnce() -> bool) {
        let Some(watchdog) = &mut self.watchdog else { return };
        if watchdog.due > now {
            return;
        }
        if is_well() {
            watchdog.due = now + watchdog.interval;
            self.send("WATCHDOG=1\n");
        } else {
            // Soon enough to be in time.
            watchdog.due = now + watchdog.interval / 8;
            warn!("no worker serves: systemd's watchdog is not pinged");
        }
    }

    fn send(&self, text: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(text.as_bytes()) {
            debug!("cannot notify systemd of {text:?}: {error}");
        }
    }
}

fn connect(path: &OsString) -> io::Result<UnixDatagram> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(path)?,
        _ => return Err(io::Error::other("it is neither a path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// A line end would begin another variable.
fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_sd_notify() {
        let (systemd, notify, _) = start("words", None);
        notify.ready("serving\nREADY=0");
        let pid = std::process::id();
        assert_eq!(heard(&systemd), format!("READY=1\nMAINPID={pid}\nSTATUS=serving\n"));
        notify.reloading();
        let text = heard(&systemd);
        let usec = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        let (usec, rest) = usec.split_once('\n').unwrap();
        assert!(usec.parse::<u64>().unwrap() > 0 && rest == "STATUS=reloading\n");
        let within = Duration::from_millis(1500);
        notify.draining(within);
        assert_eq!(heard(&systemd), "EXTEND_TIMEOUT_USEC=1500000\nSTATUS=draining\n");
        notify.stopping(within);
        assert!(heard(&systemd).starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=1500000\n"));
    }

    #[test]
    fn the_watchdog_is_pinged_at_half_its_time_while_all_is_well() {
        let second = Duration::from_secs(1);
        let (systemd, mut notify, now) = start("watchdog", Some(4 * second));
        notify.handle_timeout(now, || true);
        assert_eq!(heard(&systemd), "WATCHDOG=1\n");
        assert_eq!(notify.poll_timeout(), Some(now + 2 * second));
        notify.handle_timeout(now + second, || panic!("it is not time yet"));
        notify.handle_timeout(now + 2 * second, || false);
        systemd.set_nonblocking(true).unwrap();
        assert!(systemd.recv(&mut [0; 8]).is_err());
        assert!(notify.poll_timeout() < Some(now + 3 * second));
        notify.handle_timeout(now + 3 * second, || true);
        assert_eq!(heard(&systemd), "WATCHDOG=1\n");
    }

    #[test]
    fn without_a_socket_nothing_is_sent() {
        let now = Instant::now();
        for path in [None, Some("relative".into()), Some("/nonexistent/notify".into())] {
            let mut notify = Notify::new(path, Some(Duration::from_secs(1)), now);
            notify.ready("serving");
            assert_eq!(notify.poll_timeout(), None);
            notify.handle_timeout(now, || panic!("nobody asks"));
        }
    }

    #[test]
    fn a_full_notify_socket_does_not_block() {
        let (_systemd, notify, _) = start("deaf", None);
        for _ in 0..10_000 {
            notify.ready(&"x".repeat(1000));
        }
    }

    fn start(name: &str, timeout: Option<Duration>) -> (UnixDatagram, Notify, Instant) {
        let name = format!("cashew-notify-{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        let now = Instant::now();
        (systemd, Notify::new(Some(format!("@{name}").into()), timeout, now), now)
    }

    fn heard(systemd: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let count = systemd.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }
}
