//! The stats port's event loop: one thread polls all connections and never blocks on one.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use crate::connection::Connection;
use crate::source::Source;

/// The most connections at a time. One more replaces the connection that has been idle for longest.
/// So clients that send a request and read are served at once, however many others do not.
const CONNECTIONS_MAX: usize = 64;
/// The most connections accepted per tick, so that each gets to send its request before others can
/// replace it.
const ACCEPTS_MAX: usize = CONNECTIONS_MAX / 4;
/// The most unread response bytes of all connections, or two of the largest responses. Beyond it
/// the connections idle for longest are closed.
const OUTPUT_MAX: usize = 64 << 20;
/// How often the loop renews its heartbeat.
const BEAT: Duration = Duration::from_millis(100);
/// Pause after a failed accept, as for lack of a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A change for a running [`serve`] from another thread.
pub enum Change {
    /// Serve this source from now on.
    Source(Source),
    /// Accept from this listener from now on.
    Listener(TcpListener),
}

/// Changes on their way.
pub struct Changes {
    receiver: Receiver<Change>,
    /// Readable when there may be changes, or when none will come any more.
    wake: PipeReader,
}

/// The sending side of changes. Dropping it stops the server.
pub struct Changer {
    sender: Sender<Change>,
    waker: PipeWriter,
}

pub fn changes() -> io::Result<(Changer, Changes)> {
    let (sender, receiver) = channel();
    let (wake, waker) = io::pipe()?;
    Ok((Changer { sender, waker }, Changes { receiver, wake }))
}

impl Changer {
    /// Fails if the server has stopped.
    pub fn change(&mut self, change: Change) -> io::Result<()> {
        self.sender.send(change).map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.waker.write_all(&[0])
    }
}

/// Serves until the [`Changer`] is dropped, then answers the open connections. Fails only if it
/// cannot poll the listener.
pub fn serve(
    mut listener: TcpListener,
    mut source: Source,
    mut changes: Changes,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut connections: Vec<Connection> = Vec::with_capacity(CONNECTIONS_MAX);
    // Replaced listeners, as long as clients wait there: closing them would reset these.
    let mut leaving: Vec<TcpListener> = Vec::new();
    let mut accept_from = Instant::now();
    loop {
        source.beat();
        let now = Instant::now();
        let accepting = accept_from <= now;
        let wake = connections
            .iter()
            .map(Connection::deadline)
            .chain((!accepting).then_some(accept_from))
            // Clients may still wait there.
            .chain((!leaving.is_empty()).then_some(now))
            .fold(now + BEAT, Instant::min);
        let ready = wait(&listener, accepting, &connections, &changes.wake, wake)?;
        if ready.changes && changes.wake.read(&mut [0; 64])? == 0 {
            let now = Instant::now();
            connections.iter_mut().for_each(|connection| connection.part(&source, now));
            return Ok(());
        }
        // Each response is made in one go, so it has one snapshot only.
        let mut is_new_listener = false;
        for change in changes.receiver.try_iter() {
            match change {
                Change::Source(new) => source = new,
                Change::Listener(new) => {
                    new.set_nonblocking(true)?;
                    leaving.push(std::mem::replace(&mut listener, new));
                    is_new_listener = true;
                }
            }
        }
        let now = Instant::now();
        for (at, is_ready) in ready.connections.into_iter().enumerate() {
            let connection = &mut connections[at];
            if is_ready {
                connection.handle_ready(&source, now);
            }
            if connection.deadline() <= now {
                connection.handle_timeout(&source, now);
            }
            bound_output(&mut connections, at);
        }
        connections.retain(|connection| !connection.is_closed());
        let mut accept = |listener: &TcpListener| accept(listener, &mut connections, &source, now);
        leaving.retain(|old| accept(old) == Accepted::Many);
        if (ready.listener || is_new_listener) && accept(&listener) == Accepted::Failed {
            accept_from = now + ACCEPT_PAUSE;
        }
    }
}

struct Ready {
    changes: bool,
    listener: bool,
    connections: Vec<bool>,
}

fn wait(
    listener: &TcpListener,
    accepting: bool,
    connections: &[Connection],
    changes: &PipeReader,
    wake: Instant,
) -> io::Result<Ready> {
    let listening = if accepting { PollFlags::IN } else { PollFlags::empty() };
    let mut fds = vec![PollFd::new(changes, PollFlags::IN), PollFd::new(listener, listening)];
    fds.extend(connections.iter().map(|connection| {
        let interest = if connection.wants_write() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(connection.stream(), interest)
    }));
    let timeout = timespec(wake.saturating_duration_since(Instant::now()));
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok(Ready {
        changes: ready.next().expect("changes are polled"),
        listener: ready.next().expect("the listener is polled") && accepting,
        connections: ready.collect(),
    })
}

fn timespec(duration: Duration) -> Timespec {
    // Deadlines are seconds away, so this cannot fail.
    Timespec::try_from(duration).expect("a short duration")
}

#[derive(PartialEq, Eq)]
enum Accepted {
    /// No more clients wait.
    All,
    /// The limit was reached, and there may be more.
    Many,
    Failed,
}

/// Accepts some of the waiting clients.
fn accept(
    listener: &TcpListener,
    connections: &mut Vec<Connection>,
    source: &Source,
    now: Instant,
) -> Accepted {
    for _ in 0..ACCEPTS_MAX {
        match listener.accept() {
            Ok((stream, _)) => {
                // A connection that cannot be made non-blocking would delay all others.
                if stream.set_nonblocking(true).is_ok() {
                    make_room(connections, source, now);
                    connections.push(Connection::new(stream, now));
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Accepted::All,
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                _ => {
                    warn!(%error, "cannot accept on the stats port");
                    return Accepted::Failed;
                }
            },
        }
    }
    Accepted::Many
}

/// Makes room for one more connection.
fn make_room(connections: &mut Vec<Connection>, source: &Source, now: Instant) {
    if connections.len() < CONNECTIONS_MAX {
        return;
    }
    let least = (0..connections.len()).min_by_key(|&at| connections[at].claim());
    let mut connection = connections.swap_remove(least.expect("there are some"));
    // It may just be slow to speak.
    connection.part(source, now);
}

/// Closes connections that do not read, if all of them together hold too much. The one at `newest`
/// has just got its response and may stay.
fn bound_output(connections: &mut [Connection], newest: usize) {
    let max = OUTPUT_MAX.max(2 * connections[newest].output_size());
    while connections.iter().map(Connection::output_size).sum::<usize>() > max {
        let others = (0..connections.len()).filter(|&at| at != newest);
        let holders = others.filter(|&at| connections[at].output_size() > 0);
        let Some(least) = holders.min_by_key(|&at| connections[at].claim()) else { return };
        connections[least].close();
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::thread::JoinHandle;

    use super::*;
    use crate::testing::{busy_source, snapshot, source_of};

    struct Server {
        address: SocketAddr,
        changer: Option<Changer>,
        thread: Option<JoinHandle<io::Result<()>>>,
    }

    impl Server {
        fn start(source: Source) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let (changer, changes) = changes().unwrap();
            let thread = std::thread::spawn(move || serve(listener, source, changes));
            Self { address, changer: Some(changer), thread: Some(thread) }
        }

        fn connect(&self) -> TcpStream {
            let stream = TcpStream::connect(self.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream
        }

        fn ask(&self, request: &[u8]) -> String {
            let mut stream = self.connect();
            stream.write_all(request).unwrap();
            answer(stream)
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            drop(self.changer.take());
            self.thread.take().unwrap().join().unwrap().unwrap();
        }
    }

    fn answer(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn assert_raw(text: &str) {
        assert!(text.starts_with("{\"service\":\"nutcracker\"") && text.ends_with("}\n"), "{text}");
    }

    #[test]
    fn a_client_that_sends_nothing_gets_json() {
        let server = Server::start(busy_source());
        assert_quick(Duration::from_secs(1), || {
            let asked = Instant::now();
            assert_raw(&answer(server.connect()));
            asked.elapsed()
        });
        let closing = server.connect();
        closing.shutdown(Shutdown::Write).unwrap();
        assert_raw(&answer(closing));
    }

    #[test]
    fn a_client_that_sends_anything_but_http_gets_json() {
        let server = Server::start(busy_source());
        for request in [&b"stats\r\n"[..], b"\x16\x03\x01\x02\0", b"GET", b"\r\n\r\n", &[0; 4000]] {
            assert_raw(&server.ask(request));
        }
    }

    #[test]
    fn a_client_that_speaks_http_gets_http() {
        let server = Server::start(busy_source());
        let text = server.ask(b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"));
        assert_raw(body);
        assert!(server.ask(b"GET /nothing HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(server.ask(b"GET nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let closing = server.connect();
        (&closing).write_all(b"GET / HTTP/1.1\r\n").unwrap();
        closing.shutdown(Shutdown::Write).unwrap();
        assert!(answer(closing).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn a_request_may_come_in_pieces_but_not_for_ever() {
        let server = Server::start(busy_source());
        let in_pieces = || {
            let mut stream = server.connect();
            for piece in [&b"GET /hea"[..], b"lthz HTTP/1.1\r\nHo", b"st: x\r\n\r\n"] {
                stream.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(150));
            }
            answer(stream).ends_with("\r\n\r\nok\n")
        };
        // It has two seconds, which a busy machine may use up.
        assert!((0..10).any(|_| in_pieces()));
        assert_quick(Duration::from_secs(5), || {
            let asked = Instant::now();
            assert!(server.ask(b"GET / HTTP/1.1\r\n").starts_with("HTTP/1.1 408 "));
            asked.elapsed()
        });
    }

    #[test]
    fn an_oversized_request_is_answered_though_more_is_sent() {
        let server = Server::start(busy_source());
        let mut request = b"GET / HTTP/1.1\r\nX: ".to_vec();
        request.resize(20_000, b'x');
        assert!(server.ask(&request).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn clients_that_do_not_read_delay_nobody() {
        let servers: Vec<String> = (0..4000).map(|at| format!("server-{at}")).collect();
        let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
        let (source, _) = source_of(snapshot(&[("a", &servers)]), 1);
        let server = Server::start(source);
        let stuck: Vec<_> = (0..4)
            .map(|_| {
                let mut stream = server.connect();
                stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
                stream
            })
            .collect();
        for _ in 0..3 {
            assert!(server.ask(b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
        }
        drop(stuck);
    }

    #[test]
    fn more_clients_than_places_are_all_served_in_turn() {
        let server = Server::start(busy_source());
        let silent: Vec<_> = (0..3 * CONNECTIONS_MAX).map(|_| server.connect()).collect();
        for stream in silent {
            assert_raw(&answer(stream));
        }
    }

    #[test]
    fn a_client_that_never_closes_is_closed() {
        let server = Server::start(busy_source());
        let mut stream = server.connect();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_raw(&text);
        std::thread::sleep(Duration::from_millis(700));
        // The first write after the close is answered with a reset, which the next one sees.
        let start = Instant::now();
        while !stream.write_all(b"x").is_err_and(|error| {
            matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
        }) {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn serves_another_snapshot_and_listens_elsewhere_on_order() {
        let mut server = Server::start(busy_source());
        let mut waiting = server.connect();
        waiting.write_all(b"GET /stats HTTP/1.1\r\n").unwrap();
        let (source, _) = source_of(snapshot(&[("other", &["x"])]), 1);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let changer = server.changer.as_mut().unwrap();
        changer.change(Change::Source(source)).unwrap();
        changer.change(Change::Listener(listener)).unwrap();
        let old = std::mem::replace(&mut server.address, address);
        let text = server.ask(b"GET /stats HTTP/1.1\r\n\r\n");
        assert!(text.contains("\"other\"") && !text.contains("\"alpha\""), "{text}");
        assert!(TcpStream::connect(old).is_err());
        waiting.write_all(b"\r\n").unwrap();
        assert!(answer(waiting).contains("\"other\""), "who was connected stays so");
    }

    #[test]
    fn all_clients_that_wait_at_the_old_address_are_answered() {
        let mut server = Server::start(busy_source());
        let waiting: Vec<_> = (0..3 * CONNECTIONS_MAX).map(|_| server.connect()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        server.changer.as_mut().unwrap().change(Change::Listener(listener)).unwrap();
        let old = std::mem::replace(&mut server.address, address);
        assert_raw(&server.ask(b"stats\r\n"));
        waiting.into_iter().for_each(|stream| assert_raw(&answer(stream)));
        assert!(TcpStream::connect(old).is_err());
    }

    #[test]
    fn stops_at_once_and_answers_open_connections() {
        assert_quick(Duration::from_secs(1), || {
            let server = Server::start(busy_source());
            let [mut speaking, silent] = [(); 2].map(|()| server.connect());
            speaking.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            // In order: clients that came before are connected and answered.
            assert!(server.ask(b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
            let stopping = Instant::now();
            let late = server.connect();
            drop(server);
            let took = stopping.elapsed();
            assert!(answer(speaking).starts_with("HTTP/1.1 408 "));
            assert_raw(&answer(silent));
            drop(late);
            took
        });
    }

    /// Repeats a measurement that took too long: the machine may be busy.
    #[track_caller]
    fn assert_quick(limit: Duration, measure: impl FnMut() -> Duration) {
        let mut times = std::iter::repeat_with(measure).take(10);
        assert!(times.any(|time| time < limit), "ten times longer than {limit:?}");
    }
}
