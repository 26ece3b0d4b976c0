//! The loop of the stats port: one thread, all connections polled, none waited for.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use crate::connection::Connection;
use crate::source::Source;

/// Connections served at a time; more wait in the listen queue. Each holds one response.
const CONNECTIONS_MAX: usize = 32;
/// How long nothing is accepted after accepting failed, as it does without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop` becomes readable or its other end is closed, as a pipe's does with its
/// writer. Fails only when it cannot wait for the listener.
pub fn serve(listener: TcpListener, source: Source, stop: impl AsFd) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut connections: Vec<Connection> = Vec::with_capacity(CONNECTIONS_MAX);
    let mut accept_from = Instant::now();
    loop {
        let now = Instant::now();
        let accepting = connections.len() < CONNECTIONS_MAX && accept_from <= now;
        let wake = connections
            .iter()
            .map(Connection::deadline)
            .chain((accept_from > now).then_some(accept_from))
            .min();
        let ready = wait(&listener, accepting, &connections, &stop, wake)?;
        if ready.stop {
            return Ok(());
        }
        let now = Instant::now();
        for (connection, is_ready) in connections.iter_mut().zip(ready.connections) {
            if is_ready {
                connection.handle_ready(&source, now);
            }
            if connection.deadline() <= now {
                connection.handle_timeout(&source, now);
            }
        }
        connections.retain(|connection| !connection.is_closed());
        if ready.listener && !accept(&listener, &mut connections, now) {
            accept_from = now + ACCEPT_PAUSE;
        }
    }
}

struct Ready {
    stop: bool,
    listener: bool,
    connections: Vec<bool>,
}

fn wait(
    listener: &TcpListener,
    accepting: bool,
    connections: &[Connection],
    stop: &impl AsFd,
    wake: Option<Instant>,
) -> io::Result<Ready> {
    let listening = if accepting { PollFlags::IN } else { PollFlags::empty() };
    let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(listener, listening)];
    fds.extend(connections.iter().map(|connection| {
        let interest = if connection.wants_write() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(connection.stream(), interest)
    }));
    let timeout = wake.map(|wake| timespec(wake.saturating_duration_since(Instant::now())));
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok(Ready {
        stop: ready.next().expect("stop is polled"),
        listener: ready.next().expect("the listener is polled") && accepting,
        connections: ready.collect(),
    })
}

fn timespec(duration: Duration) -> Timespec {
    // Deadlines are seconds away, so this cannot fail.
    Timespec::try_from(duration).expect("a short duration")
}

/// Takes what waits, as far as there is room. False when accepting failed.
fn accept(listener: &TcpListener, connections: &mut Vec<Connection>, now: Instant) -> bool {
    while connections.len() < CONNECTIONS_MAX {
        match listener.accept() {
            Ok((stream, _)) => {
                // A connection that cannot be made non-blocking would hold up all others.
                if stream.set_nonblocking(true).is_ok() {
                    connections.push(Connection::new(stream, now));
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return true,
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                _ => {
                    warn!(%error, "cannot accept on the stats port");
                    return false;
                }
            },
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, PipeWriter, Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::thread::JoinHandle;

    use super::*;
    use crate::testing::{busy_source, snapshot, source_of};

    struct Server {
        address: SocketAddr,
        stop: Option<PipeWriter>,
        thread: Option<JoinHandle<io::Result<()>>>,
    }

    impl Server {
        fn start(source: Source) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let (stopped, stop) = io::pipe().unwrap();
            let thread = std::thread::spawn(move || serve(listener, source, stopped));
            Self { address, stop: Some(stop), thread: Some(thread) }
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
            drop(self.stop.take());
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
    fn who_says_nothing_gets_json() {
        let server = Server::start(busy_source());
        let asked = Instant::now();
        assert_raw(&answer(server.connect()));
        assert!(asked.elapsed() < Duration::from_secs(1));
        let closing = server.connect();
        closing.shutdown(Shutdown::Write).unwrap();
        assert_raw(&answer(closing));
    }

    #[test]
    fn who_says_anything_but_http_gets_json() {
        let server = Server::start(busy_source());
        for request in [&b"stats\r\n"[..], b"\x16\x03\x01\x02\0", b"GET", b"\r\n\r\n", &[0; 4000]] {
            assert_raw(&server.ask(request));
        }
    }

    #[test]
    fn who_speaks_http_gets_http() {
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
        let mut stream = server.connect();
        for piece in [&b"GET /hea"[..], b"lthz HTTP/1.1\r\nHo", b"st: x\r\n\r\n"] {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(answer(stream).ends_with("\r\n\r\nok\n"));
        let asked = Instant::now();
        assert!(server.ask(b"GET / HTTP/1.1\r\n").starts_with("HTTP/1.1 408 "));
        assert!(asked.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn an_oversized_request_is_answered_though_more_is_sent() {
        let server = Server::start(busy_source());
        let mut request = b"GET / HTTP/1.1\r\nX: ".to_vec();
        request.resize(20_000, b'x');
        assert!(server.ask(&request).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn clients_that_do_not_read_hold_up_nobody() {
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
        // The first write after the close is answered with a reset, which the next one meets.
        let failed = (0..50).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            stream.write_all(b"x").is_err_and(|error| {
                matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
            })
        });
        assert!(failed);
    }

    #[test]
    fn stops_at_once_whoever_is_connected() {
        let server = Server::start(busy_source());
        let mut stream = server.connect();
        stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let stopping = Instant::now();
        drop(server);
        assert!(stopping.elapsed() < Duration::from_secs(1));
    }
}
