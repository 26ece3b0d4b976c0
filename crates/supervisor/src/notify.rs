//! Tells systemd, or whoever else started the instance, how it is: sd_notify(3).
//!
//! A datagram of our own instead of a crate, since the master waits for nobody: what does not fit
//! in the queue at once is not told. That costs nothing but a status, or one sign of life of two.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tracing::{debug, warn};

/// What systemd tells a service by its environment and its children must not believe to be for
/// them.
pub(crate) const VARIABLES: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

pub(crate) struct Notify {
    /// `None` when nobody wants to know.
    socket: Option<UnixDatagram>,
    watchdog: Option<Watchdog>,
}

/// Whoever started the instance ends it when it gives no sign of life for a time.
struct Watchdog {
    /// Half of that time.
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

    fn new(path: Option<OsString>, timeout: Option<Duration>, now: Instant) -> Self {
        let socket = path.and_then(|path| match connect(&path) {
            Ok(socket) => Some(socket),
            Err(error) => {
                warn!("cannot tell {} how the instance is: {error}", path.display());
                None
            }
        });
        let watchdog = |timeout: Duration| Watchdog { interval: timeout / 2, due: now };
        let watchdog = timeout.filter(|_| socket.is_some()).map(watchdog);
        Self { socket, watchdog }
    }

    /// For the first time, or again after [`Notify::reloading`].
    pub(crate) fn ready(&self, status: &str) {
        // The process may not be the one that was started: it can be a daemon.
        let pid = std::process::id();
        self.send(&format!("READY=1\nMAINPID={pid}\nSTATUS={}\n", one_line(status)));
    }

    /// Until [`Notify::ready`] a reload that systemd asked for is not over.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reloading\n"));
    }

    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=finishing what is in flight\n");
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.watchdog.as_ref().map(|watchdog| watchdog.due)
    }

    /// Gives a sign of life when it is time for one. `is_well` says whether the instance serves.
    pub(crate) fn handle_timeout(&mut self, now: Instant, is_well: impl FnOnce() -> bool) {
        let Some(watchdog) = &mut self.watchdog else { return };
        if watchdog.due > now {
            return;
        }
        if is_well() {
            watchdog.due = now + watchdog.interval;
            self.send("WATCHDOG=1\n");
        } else {
            // Soon enough to be in time yet.
            watchdog.due = now + watchdog.interval / 8;
            warn!("nobody serves: the watchdog gets no sign of life");
        }
    }

    fn send(&self, text: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(text.as_bytes()) {
            debug!("systemd cannot be told {text:?}: {error}");
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
    fn it_is_told_in_the_words_of_sd_notify() {
        let (systemd, notify, _) = start("words", None);
        notify.ready("serving\nREADY=0");
        let pid = std::process::id();
        assert_eq!(heard(&systemd), format!("READY=1\nMAINPID={pid}\nSTATUS=serving\n"));
        notify.reloading();
        let text = heard(&systemd);
        let usec = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        let (usec, rest) = usec.split_once('\n').unwrap();
        assert!(usec.parse::<u64>().unwrap() > 0 && rest == "STATUS=reloading\n");
        notify.stopping();
        assert!(heard(&systemd).starts_with("STOPPING=1\n"));
    }

    #[test]
    fn signs_of_life_come_at_half_of_the_time_while_the_instance_is_well() {
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
    fn nobody_is_told_where_nobody_wants_to_know() {
        let now = Instant::now();
        for path in [None, Some("relative".into()), Some("/nonexistent/notify".into())] {
            let mut notify = Notify::new(path, Some(Duration::from_secs(1)), now);
            notify.ready("serving");
            assert_eq!(notify.poll_timeout(), None);
            notify.handle_timeout(now, || panic!("nobody asks"));
        }
    }

    #[test]
    fn who_does_not_listen_holds_nobody_up() {
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
