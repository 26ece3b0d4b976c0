//! The stats port's event loop: one thread serves all connections and never blocks on one.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use cashew_metrics::{AuditTrail, DeedOutcome, EventKind, Exports, NewDeed};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::warn;

use crate::history::{self, History};
use crate::line_log::LineLog;
use crate::operate::{Operations, Said, SendCommand};
use crate::place::Place;
use crate::request_tap::RequestTap;
use crate::source::Source;
use crate::span_exporter::SpanExporter;
use crate::{access_log, audit_log, connection};

/// The most connections at a time. One more replaces the connection that has been idle for longest.
/// So clients that send a request and read are served at once, however many others do not.
const CONNECTIONS_MAX: usize = 64;
/// The most connections accepted in a row, so that each gets to send its request before others can
/// replace it.
const ACCEPTS_MAX: usize = CONNECTIONS_MAX / 4;
/// Lines of the audit log that are written before anybody else is served, and how often in a row.
const AUDITED_AT_ONCE: usize = 256;
const AUDIT_ROUNDS_MAX: usize = 32;
/// The most clients that are accepted at a listener that is left: more cannot wait there.
const LEAVING_MAX: usize = 8192;
/// The most unread response bytes of all connections, or two of the largest responses. Beyond it
/// the connections idle for longest are closed.
const OUTPUT_MAX: usize = 64 << 20;
/// How often the loop renews its heartbeat.
const BEAT: Duration = Duration::from_millis(100);
/// Pause after a failed accept, as for lack of a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is told that a token is wrong.
const TOKENS_TOLD_EVERY: Duration = Duration::from_secs(10);
/// How often connections are looked after when the server stops. Each ends within a few times.
const PARTINGS_MAX: usize = 64;

/// A change for a running [`serve`] from another thread.
pub enum Change {
    /// Serve this source from now on.
    Source(Source),
    /// Accept from this listener from now on.
    Listener(StdListener),
    /// The master says something of a command.
    Said(Said),
    /// Open the access log and the audit log anew.
    Reopen,
}

/// Changes on their way.
pub struct Changes(UnboundedReceiver<Change>);

/// The sending side of changes. Dropping it stops the server.
pub struct Changer(UnboundedSender<Change>);

pub fn changes() -> (Changer, Changes) {
    let (sender, receiver) = unbounded_channel();
    (Changer(sender), Changes(receiver))
}

impl Changer {
    /// Fails if the server has stopped.
    pub fn change(&mut self, change: Change) -> io::Result<()> {
        self.0.send(change).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// What all connections share.
pub(crate) struct Hub {
    source: RefCell<Rc<Source>>,
    pub(crate) history: RefCell<History>,
    places: RefCell<Vec<Rc<Place>>>,
    tap: RefCell<RequestTap>,
    spans: SpanExporter,
    access_log: RefCell<LineLog<Exports>>,
    audit_log: RefCell<LineLog<AuditTrail>>,
    pub(crate) operations: RefCell<Operations>,
    /// When it was told last that a token is wrong, and how often one was since.
    wrong_tokens: Cell<(Option<Instant>, u64)>,
}

/// Serves until the [`Changer`] is dropped, then answers the open connections. Fails only if the
/// listener cannot be watched.
pub fn serve(
    listener: StdListener,
    source: Source,
    changes: Changes,
    send: SendCommand,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let hub = Rc::new(Hub {
        tap: RefCell::new(RequestTap::new()),
        spans: SpanExporter::new(source.exports()),
        access_log: RefCell::new(LineLog::new(source.exports())),
        audit_log: RefCell::new(LineLog::new(source.shared().audit())),
        operations: RefCell::new(Operations::new(send)),
        wrong_tokens: Cell::default(),
        source: RefCell::new(Rc::new(source)),
        history: RefCell::new(History::default()),
        places: RefCell::new(Vec::with_capacity(CONNECTIONS_MAX)),
    });
    let result = LocalSet::new().block_on(&runtime, run(hub, listener, changes));
    // A look-up of the collector's name may take long, and nobody needs the answer.
    runtime.shutdown_background();
    result
}

async fn run(hub: Rc<Hub>, listener: StdListener, mut changes: Changes) -> io::Result<()> {
    let mut listener = watch(listener)?;
    spawn_local(tick(Rc::clone(&hub)));
    spawn_local(export(Rc::clone(&hub)));
    let mut in_a_row = 0;
    loop {
        match poll_fn(|cx| next(&listener, &mut changes, cx)).await {
            Event::Stop => break,
            Event::Change(Change::Source(source)) => {
                // What was done until now is for the audit log of the configuration until now.
                hub.drain_audit().await;
                hub.source.replace(Rc::new(source));
                hub.tap_requests();
                continue;
            }
            Event::Change(Change::Said(said)) => {
                hub.operations.borrow_mut().said(said);
                continue;
            }
            Event::Change(Change::Reopen) => {
                hub.access_log.borrow_mut().reopen();
                hub.audit_log.borrow_mut().reopen();
                continue;
            }
            Event::Change(Change::Listener(new)) => {
                let old = std::mem::replace(&mut listener, watch(new)?);
                hub.accept_waiting(&old).await;
                continue;
            }
            Event::Client(Ok(stream)) => {
                hub.admit(stream);
                in_a_row += 1;
                if in_a_row >= ACCEPTS_MAX {
                    in_a_row = 0;
                    yield_now().await;
                }
                continue;
            }
            Event::Client(Err(error)) => {
                if !is_of_the_client(&error) {
                    warn!(%error, "cannot accept on the stats port");
                    sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        }
    }
    hub.part_with_all().await;
    hub.part_with_requests().await;
    Ok(())
}

enum Event {
    Stop,
    Change(Change),
    Client(io::Result<TcpStream>),
}

/// Changes come first: a client that is accepted later sees them.
fn next(listener: &TcpListener, changes: &mut Changes, cx: &mut Context<'_>) -> Poll<Event> {
    match changes.0.poll_recv(cx) {
        Poll::Ready(change) => Poll::Ready(change.map_or(Event::Stop, Event::Change)),
        Poll::Pending => {
            listener.poll_accept(cx).map(|it| Event::Client(it.map(|(stream, _)| stream)))
        }
    }
}

fn watch(listener: StdListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn is_of_the_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

/// Renews the heartbeat and samples the history.
async fn tick(hub: Rc<Hub>) {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next_sample = Instant::now();
    loop {
        beats.tick().await;
        let source = hub.source();
        source.beat();
        hub.tap_requests();
        hub.drain_audit().await;
        let now = Instant::now();
        if now >= next_sample {
            // What was missed while the machine stood still is not made up for.
            next_sample = (next_sample + history::INTERVAL).max(now + history::INTERVAL / 2);
            hub.history.borrow_mut().sample(&source);
        }
    }
}

/// Sends spans to the collector.
async fn export(hub: Rc<Hub>) {
    hub.spans.run(|| hub.source()).await;
}

impl Hub {
    /// Somebody has shown a token that is none.
    pub(crate) fn token_is_wrong(&self, peer: Option<SocketAddr>, path: &str) {
        let audit = self.source().shared().audit();
        audit.add_token_refused();
        let peer =
            peer.map_or_else(|| "an address that is gone".to_owned(), |peer| peer.to_string());
        let command = format!("HTTP {}", path.escape_debug());
        let outcome = DeedOutcome::Denied;
        audit.record(&NewDeed {
            outcome,
            client: &peer,
            command: &command,
            reason: "token",
            ..NewDeed::default()
        });
        let (told, times) = self.wrong_tokens.get();
        if told.is_some_and(|told| told.elapsed() < TOKENS_TOLD_EVERY) {
            return self.wrong_tokens.set((told, times + 1));
        }
        self.wrong_tokens.set((Some(Instant::now()), 0));
        let before = match times {
            0 => String::new(),
            times => format!(" ({times} more since the last such line)"),
        };
        warn!(
            kind = EventKind::TokenWrong.name(),
            "{peer} asks the statistics with a wrong token{before}"
        );
    }

    /// Takes the newest requests to where they are wanted.
    fn tap_requests(&self) {
        let source = self.source();
        let global = &source.snapshot().global;
        let mut access_log = self.access_log.borrow_mut();
        access_log.follow(global.access_log.as_ref().map(|log| log.file.as_path()));
        for tapped in self.tap.borrow_mut().read(source.shared(), global) {
            if let Some(config) = global.access_log.as_ref().filter(|_| tapped.is_logged) {
                access_log.write(access_log::line(&tapped.request, tapped.trace_id, config));
            }
            if let Some(trace_id) = tapped.trace_id {
                self.spans.push(tapped.request, trace_id);
            }
        }
        access_log.settle();
    }

    /// Writes down what was done since the last time, as far as that takes no long time.
    async fn drain_audit(&self) {
        for _ in 0..AUDIT_ROUNDS_MAX {
            let source = self.source();
            if !self.write_audit(&source) {
                break;
            }
            // Others want to be served.
            yield_now().await;
            source.beat();
        }
    }

    /// Writes down what was done since the last time, or a part of it: returns whether there may be more.
    fn write_audit(&self, source: &Source) -> bool {
        let audit = source.shared().audit();
        let mut log = self.audit_log.borrow_mut();
        let config = source.snapshot().global.audit_log.as_ref();
        log.follow(config.map(|log| log.file.as_path()));
        let mut is_all = true;
        match config {
            Some(config) => {
                let deeds = audit.take(AUDITED_AT_ONCE);
                is_all = deeds.len() < AUDITED_AT_ONCE;
                let wanted = deeds
                    .into_iter()
                    .filter(|deed| config.operators || !deed.outcome.is_of_operators());
                wanted.for_each(|deed| log.write(audit_log::line(&deed)));
            }
            None => audit.skip(),
        }
        log.settle();
        !is_all
    }

    /// Writes and sends what there is, as far as that takes no long time.
    async fn part_with_requests(&self) {
        self.tap_requests();
        self.drain_audit().await;
        self.spans.part(&self.source()).await;
        let exports = self.source().exports();
        self.access_log.replace(LineLog::new(exports)).part();
        let audit = self.source().shared().audit();
        self.audit_log.replace(LineLog::new(audit)).part();
    }

    /// A response is made of one source, so it has one snapshot only.
    pub(crate) fn source(&self) -> Rc<Source> {
        Rc::clone(&self.source.borrow())
    }

    /// Accepts those who wait at a listener that is left: closing it would reset them.
    async fn accept_waiting(self: &Rc<Self>, listener: &TcpListener) {
        for at in 1..=LEAVING_MAX {
            let poll = |cx: &mut Context<'_>| Poll::Ready(listener.poll_accept(cx));
            match poll_fn(poll).await {
                Poll::Ready(Ok((stream, _))) => self.admit(stream),
                Poll::Ready(Err(error)) if is_of_the_client(&error) => {}
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
            if at % ACCEPTS_MAX == 0 {
                yield_now().await;
            }
        }
    }

    fn admit(self: &Rc<Self>, stream: TcpStream) {
        self.make_room();
        let place = Rc::new(Place::new());
        self.places.borrow_mut().push(Rc::clone(&place));
        let hub = Rc::clone(self);
        spawn_local(async move {
            connection::serve(stream, &place, &hub).await;
            hub.places.borrow_mut().retain(|other| !Rc::ptr_eq(other, &place));
        });
    }

    /// Makes room for one more connection.
    fn make_room(&self) {
        let places = self.places.borrow();
        let staying = || places.iter().filter(|place| !place.is_parting());
        if staying().count() >= CONNECTIONS_MAX
            && let Some(least) = staying().min_by_key(|place| place.claim())
        {
            // It may just be slow to speak.
            least.part();
        }
    }

    /// Closes connections that do not read, if all of them together hold too much. The newest one
    /// has just got its response and may stay.
    pub(crate) fn bound_output(&self, newest: &Rc<Place>) {
        let max = OUTPUT_MAX.max(2 * newest.output());
        let places = self.places.borrow();
        while places.iter().map(|place| place.output()).sum::<usize>() > max {
            let others = places.iter().filter(|place| !Rc::ptr_eq(place, newest));
            let holders = others.filter(|place| place.output() > 0);
            let Some(least) = holders.min_by_key(|place| place.claim()) else { return };
            least.close();
        }
    }

    async fn part_with_all(&self) {
        self.places.borrow().iter().for_each(|place| place.part());
        for _ in 0..PARTINGS_MAX {
            if self.places.borrow().is_empty() {
                return;
            }
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::thread::JoinHandle;
    use std::time::Instant;

    use cashew_config::snapshot::AuditLog;

    use super::*;
    use crate::testing::{busy_source, snapshot, source_of, source_with};

    struct Server {
        address: SocketAddr,
        changer: Option<Changer>,
        thread: Option<JoinHandle<io::Result<()>>>,
    }

    impl Server {
        fn start(source: Source) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let (changer, changes) = changes();
            let thread = std::thread::spawn(move || {
                serve(listener, source, changes, Box::new(|_, _, _| Ok(())))
            });
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
        assert!(server.ask(b"GET /nothing HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 404 "));
        assert!(server.ask(b"GET nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let closing = server.connect();
        (&closing).write_all(b"GET / HTTP/1.1\r\n").unwrap();
        closing.shutdown(Shutdown::Write).unwrap();
        assert!(answer(closing).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn head_has_the_length_and_no_body() {
        let server = Server::start(busy_source());
        let text = server.ask(b"HEAD /healthz HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains("\r\nContent-Length: 3\r\n"));
        assert!(text.contains("\r\nConnection: close\r\n") && text.ends_with("\r\n\r\n"));
    }

    #[test]
    fn malformed_requests_are_refused() {
        let server = Server::start(busy_source());
        for request in ["GET / HTTP/9\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/1.1\r\n\0\r\n\r\n"] {
            assert!(server.ask(request.as_bytes()).starts_with("HTTP/1.1 400 "), "{request}");
        }
        let post = b"POST /stats HTTP/1.1\r\nContent-Length: 5\r\n\r\n";
        let refused = server.ask(post);
        assert!(refused.starts_with("HTTP/1.1 405 "), "{refused}");
        assert!(refused.contains("\r\nAllow: GET, HEAD\r\n"), "{refused}");
    }

    #[test]
    fn who_asks_to_keep_the_connection_may_ask_again() {
        let server = Server::start(busy_source());
        let mut stream = server.connect();
        for _ in 0..3 {
            let request = b"GET /healthz HTTP/1.1\r\nConnection: keep-alive\r\n\r\n";
            stream.write_all(request).unwrap();
            let mut text = String::new();
            while !text.ends_with("\r\n\r\nok\n") {
                let mut piece = [0; 1000];
                let size = stream.read(&mut piece).unwrap();
                assert!(size > 0, "{text}");
                text.push_str(str::from_utf8(&piece[..size]).unwrap());
            }
            assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        }
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        assert!(answer(stream).ends_with("ok\n"));
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
        assert!(server.ask(&request).starts_with("HTTP/1.1 431 "));
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
        // A request has two seconds, which a busy machine may use up.
        assert!((0..10).any(|_| who_was_connected_stays_so()));
    }

    #[test]
    fn what_was_done_before_the_audit_log_is_turned_off_is_in_it() {
        let file = std::env::temp_dir().join(format!("cashew-audit-{}.log", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let mut audited = snapshot(&[("alpha", &["one"])]);
        let nobody = audited.clone();
        audited.global.audit_log = Some(AuditLog {
            file: file.clone(),
            commands: Vec::new(),
            share_percent: 100,
            denied: true,
            logins: true,
            operators: true,
        });
        let (source, _) = source_of(audited, 1);
        let (shared, audit) = (source.shared().clone(), source.shared().audit());
        let next = source_with(nobody, shared, 1).0;
        let mut server = Server::start(source);
        let done = |command: &str| audit.record(&NewDeed { command, ..NewDeed::default() });
        let written = || std::fs::read_to_string(&file).unwrap_or_default();
        done("first");
        let start = Instant::now();
        while !written().contains("first") {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
        // The next look is in a tenth of a second.
        (0..2 * AUDITED_AT_ONCE).for_each(|at| done(&format!("last {at}")));
        server.changer.as_mut().unwrap().change(Change::Source(next)).unwrap();
        assert!(server.ask(b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
        drop(server);
        assert_eq!(written().lines().count(), 1 + 2 * AUDITED_AT_ONCE);
        std::fs::remove_file(&file).unwrap();
    }

    fn who_was_connected_stays_so() -> bool {
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
        if waiting.write_all(b"\r\n").is_err() {
            return false;
        }
        let mut text = String::new();
        waiting.read_to_string(&mut text).is_ok_and(|_| text.contains("\"other\""))
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
