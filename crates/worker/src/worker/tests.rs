use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cashew_config::Context;
use cashew_control::{MasterChannel, SESSION_VERSION, Session, ToChild, seal};
use cashew_driver::{Address, CloseKind, Handler};
use cashew_engine::{Activity, ListenerId, Plan};
use cashew_metrics::{Layout, Pause, PoolCounter, Segments, Shared};

use super::*;
use crate::sessions::UNSENT_MAX;

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

/// A driver that connects to nothing and writes into memory.
#[derive(Default)]
struct Fake {
    connects: Vec<(Token, Address)>,
    written: HashMap<Token, Vec<u8>>,
    /// Writes to these fail.
    broken: Vec<Token>,
    /// Something is watched and readable.
    is_watching: bool,
    /// Nothing more can be watched.
    is_full: bool,
    waits: Rc<Cell<u32>>,
    /// When the last wait began, and its timeout.
    waited: Option<(Instant, Duration)>,
    /// For a client from another worker: whether it still had output when a wait began.
    adopted: Option<Token>,
    was_late: Rc<Cell<bool>>,
    /// What the next waits report, one request or reply each.
    found: VecDeque<(Token, Vec<u8>)>,
    /// What had been written on each connection when a wait began.
    written_before: Vec<HashMap<Token, Vec<u8>>>,
}

impl Driver for Fake {
    const LATE_MAX: u64 = 0;

    fn listen(&mut self, _: u32, _: OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn unlisten(&mut self, _: u32, _: bool, _: &mut impl Handler) {}

    fn stop_listening(&mut self) {}

    fn watch(&mut self, _: u32, _: BorrowedFd<'_>) -> io::Result<()> {
        self.is_watching = true;
        if self.is_full { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
    }

    fn unwatch(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        self.is_watching = false;
        Ok(())
    }

    fn connect(&mut self, conn: Token, address: &Address) -> Result<(), CloseKind> {
        self.connects.push((conn, address.clone()));
        Ok(())
    }

    fn adopt(&mut self, conn: Token, _: OwnedFd) -> io::Result<()> {
        self.adopted = Some(conn);
        Ok(())
    }

    fn detach(&mut self, _: Token) {}

    fn close(&mut self, _: Token) {}

    fn give_up(&mut self, _: Token) {}

    fn pause(&mut self, _: Token) {}

    fn resume(&mut self, _: Token) {}

    fn acknowledge(&mut self, _: Token) {}

    fn set_low_water(&mut self, _: Token, _: u32) {}

    fn descriptor(&self, _: Token) -> Option<BorrowedFd<'_>> {
        None
    }

    fn send(&mut self, conn: Token, handler: &mut impl Handler) {
        if self.broken.contains(&conn) {
            handler.closed(conn, CloseKind::Reset);
            return;
        }
        let mut slices = [IoSlice::new(&[]); 8];
        let count = handler.output(conn, &mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        if !bytes.is_empty() {
            handler.sent(conn, bytes.len() as u64);
            self.written.entry(conn).or_default().extend(bytes);
        }
    }

    fn flush(&mut self, _: &mut impl Handler) {}

    fn take_released(&mut self) -> usize {
        0
    }

    fn wait(&mut self, timeout: Option<Duration>, handler: &mut impl Handler) -> io::Result<()> {
        self.waits.set(self.waits.get() + 1);
        self.waited = timeout.map(|timeout| (Instant::now(), timeout));
        if self.adopted.is_some_and(|conn| !handler.front(conn).0.is_empty()) {
            self.was_late.set(true);
        }
        self.written_before.push(self.written.clone());
        if let Some((conn, mut bytes)) = self.found.pop_front() {
            handler.woken();
            handler.received(conn, &mut bytes);
        } else if self.is_watching {
            handler.readable(WATCH_CONTROL);
        } else {
            std::thread::sleep(timeout.expect("there is a deadline"));
        }
        Ok(())
    }

    fn is_behind(&self) -> bool {
        !self.found.is_empty()
    }
}

fn worker<D: Driver>(driver: D) -> Worker<D> {
    worker_of(driver, "127.0.0.1:2:1")
}

fn worker_of<D: Driver>(driver: D, server: &str) -> Worker<D> {
    let yaml = format!(
        "p:\n  listen: 127.0.0.1:1\n  redis: true\n  command_policy: admin\n  servers:\n   - {server}\n"
    );
    let Ok(loaded) = cashew_config::parse("test.yml", &yaml, &Context::of_system()) else {
        panic!("{yaml}");
    };
    let snapshot = loaded.snapshot;
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 1));
    let (_, socket) = cashew_control::pair().unwrap();
    let start = Start {
        slot: 0,
        rank: 0,
        plan: Plan::whole(&snapshot, 0, 1),
        tls: Default::default(),
        snapshot,
        segments,
        shared: Shared::in_memory(),
        listeners: vec![(7, 0, socket)],
        rings: Vec::new(),
    };
    Worker::new(start, driver).unwrap_or_else(|error| panic!("{error}"))
}

/// A client whose request waits for a server connection. Returns both.
fn with_request(worker: &mut Worker<Fake>) -> (Token, Token) {
    let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    worker.core.received(client, &mut GET.to_vec());
    worker.end_tick();
    let (conn, _) = worker.driver.below().connects.pop().expect("it connects");
    (client, conn)
}

/// As [`with_request`], with the request sent to the server.
fn with_server(worker: &mut Worker<Fake>) -> (Token, Token) {
    let (client, conn) = with_request(worker);
    worker.core.connected(conn);
    worker.end_tick();
    (client, conn)
}

#[test]
fn the_busy_share_covers_whole_periods() {
    let mut busy = Busy::default();
    assert_eq!(busy.end_tick(500_000, 100_000), None);
    assert_eq!(busy.end_tick(200_000, 200_000), Some(300));
    // One tick may be longer than the period.
    assert_eq!(busy.end_tick(0, 5_000_000), Some(1000));
    assert_eq!(busy.end_tick(9_000_000, 1_000_000), Some(100));
}

/// Requests that the worker of [`busy_worker`] has answered.
const ANSWERED: u64 = 600;

fn busy_worker() -> Worker<Fake> {
    let mut worker = worker(Fake { is_watching: true, ..Fake::default() });
    let (client, conn) = with_request(&mut worker);
    worker.core.received(client, &mut GET.repeat(ANSWERED as usize - 1));
    worker.core.connected(conn);
    worker.end_tick();
    worker.core.received(conn, &mut b"$-1\r\n".repeat(ANSWERED as usize));
    worker.end_tick();
    assert_eq!(worker.core.engine.answered().count, ANSWERED);
    worker.pace = napping();
    worker
}

/// After these requests of many clients, which kept the worker busy a few at a time.
fn napping() -> Pace {
    let mut pace = Pace::new(600);
    let mut work = Work::default();
    while work.answered < ANSWERED {
        work.answered += 20;
        pace.end_tick(0, 2_000, work, 600);
    }
    pace
}

#[test]
fn a_nap_comes_before_polling() {
    let mut worker = busy_worker();
    for _ in 0..100 {
        worker.pace = napping();
        let nap = worker.pace.nap();
        assert!(nap >= Duration::from_micros(20), "{nap:?}");
        let start = Instant::now();
        worker.wait().unwrap();
        let (began, timeout) = worker.driver.below().waited.take().expect("it waits, too");
        // It may be time for something else.
        let is_cut_short = timeout.is_zero();
        assert!(began - start >= nap || is_cut_short, "{:?} of {nap:?}", began - start);
        assert!(timeout <= HEARTBEAT - nap, "{timeout:?} after {nap:?}");
    }
}

#[test]
fn a_nap_ends_when_held_output_is_due() {
    let mut worker = busy_worker();
    let limit = Duration::from_micros(7);
    assert!(limit < worker.pace.nap());
    assert_eq!(worker.nap(limit), limit);
    // Held-back output has long been due.
    assert!(!worker.pace.may_go(&Activity::with(1, 600), Time::ZERO));
    assert!(worker.pace.wake_at() < Some(worker.core.now));
    worker.wait().unwrap();
    let (_, timeout) = worker.driver.below().waited.take().expect("it looks for events");
    assert_eq!(timeout, Duration::ZERO);
}

fn del(keys: usize) -> Vec<u8> {
    let head = format!("*{}\r\n$3\r\nDEL\r\n", keys + 1);
    [head.as_bytes(), &b"$1\r\nk\r\n".repeat(keys)].concat()
}

#[test]
fn waiting_large_requests_flush_held_output() {
    let mut worker = worker(Fake::default());
    let (first, conn) = with_request(&mut worker);
    worker.core.connected(conn);
    let mut clients = vec![first];
    for _ in 0..30 {
        let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
        worker.core.received(client, &mut GET.to_vec());
        clients.push(client);
    }
    worker.end_tick();
    worker.core.received(conn, &mut b"$-1\r\n".repeat(clients.len()));
    worker.end_tick();
    worker.pace = napping();
    worker.driver.below().written.clear();
    worker.core.received(clients[0], &mut GET.to_vec());
    worker.end_tick();
    assert!(!worker.driver.below().written.contains_key(&conn), "others may come");
    worker.pace = napping();
    for client in &clients[1..3] {
        worker.core.received(*client, &mut del(70_000));
    }
    assert!(worker.core.engine.has_put_off());
    worker.end_tick();
    assert_eq!(worker.driver.below().written[&conn], GET);
    assert_eq!(worker.pace.wake_at(), None);
}

#[test]
fn first_replies_are_written_while_more_is_read() {
    let mut worker = worker(Fake::default());
    let (client, conn) = with_server(&mut worker);
    worker.driver.below().written.clear();
    worker.driver.below().written_before.clear();
    let other = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    let found =
        [(conn, b"$1\r\nx\r\n".to_vec()), (other, GET.to_vec()), (conn, b"$1\r\ny\r\n".to_vec())];
    worker.driver.below().found = VecDeque::from(found);
    worker.wait().unwrap();
    let written_before = worker.driver.below().written_before.clone();
    let written = |wait: usize, conn| {
        let before: &HashMap<Token, Vec<u8>> = &written_before[wait];
        before.get(&conn).cloned().unwrap_or_default()
    };
    assert_eq!(written_before.len(), 3);
    assert_eq!((written(0, client), written(0, conn)), (Vec::new(), Vec::new()));
    assert_eq!((written(1, client), written(1, conn)), (b"$1\r\nx\r\n".to_vec(), Vec::new()));
    assert_eq!(written(2, conn), GET);
    // The end of the tick is the caller's.
    assert!(!worker.driver.below().written.contains_key(&other));
    worker.end_tick();
    assert_eq!(worker.driver.below().written[&other], b"$1\r\ny\r\n");
}

#[test]
fn a_tick_does_one_share_of_large_requests_however_often_it_writes() {
    let mut worker = worker(Fake::default());
    let (_, conn) = with_server(&mut worker);
    let clients: Vec<Token> = (0..6)
        .map(|_| worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome"))
        .collect();
    worker.driver.below().found = clients.iter().map(|&client| (client, del(30_000))).collect();
    worker.wait().unwrap();
    // Three are a share.
    assert!(worker.core.engine.has_put_off());
    let sent =
        worker.driver.below().written[&conn].windows(4).filter(|word| word == b"DEL\r").count();
    assert_eq!(sent, 3);
}

#[test]
fn a_tick_of_large_requests_renews_the_heartbeat() {
    let mut worker = worker(Fake::default());
    let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    let beat = |worker: &Worker<Fake>| worker.core.segments.header(0).heartbeat_ms;
    worker.core.received(client, &mut del(1000));
    assert_eq!(beat(&worker), 0);
    worker.core.received(client, &mut del(200_000));
    assert!(beat(&worker) > 0, "the turn is not over");
}

#[test]
fn handoffs_are_bounded_and_closed_clients_are_forgotten() {
    let mut worker = worker(Fake::default());
    let clients: Vec<Token> = (0..600)
        .map(|_| worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome"))
        .collect();
    worker.obey(ToChild::Retire { timeout_ms: 1000 }, Vec::new());
    for _ in 0..5 {
        worker.end_tick();
    }
    // The driver has not detached any yet.
    assert_eq!(worker.core.detaching.len(), UNSENT_MAX);
    assert_eq!(worker.core.detaching.len() + worker.handoffs.len(), UNSENT_MAX);
    let going: Vec<Token> = worker.core.detaching.iter().copied().collect();
    for &conn in &going[..100] {
        worker.core.closed(conn, CloseKind::Reset);
    }
    for &conn in &going[100..] {
        let (_, socket) = cashew_control::pair().unwrap();
        worker.core.detached(conn, socket);
    }
    for _ in 0..5 {
        worker.end_tick();
    }
    // Exported sessions are not taken: others follow only in place of closed ones.
    assert_eq!(worker.outbox.sessions(), UNSENT_MAX - 100);
    assert_eq!(worker.core.detaching.len(), 100);
    assert_eq!(worker.core.engine.clients(), clients.len() - UNSENT_MAX);
    assert_eq!(worker.core.shared.taken(0), 500, "those that closed gave their places back");
    worker.core.now = worker.core.now.plus_millis(1000);
    assert!(worker.is_over());
    worker.cut();
    assert_eq!(worker.core.segments.header(0).sessions_cut, 500);
    assert_eq!(worker.core.shared.taken(0), (clients.len() - UNSENT_MAX) as u64);
}

#[test]
fn clients_get_no_files_that_servers_may_need() {
    let mut worker = worker(Fake::default());
    let core = &mut worker.core;
    let all = OpenFiles { limit: 96, ..core.files };
    assert_eq!((all.listeners, all.server_connections), (1, 9));
    core.files = all;
    let clients: Vec<Token> = (0..all.clients())
        .map(|_| core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome"))
        .collect();
    assert_eq!(clients.len() as u64 + all.reserved(), 96);
    for _ in 0..3 {
        assert_eq!(
            core.accepted(7, std::io::stdin().as_fd()),
            Err(&b"-ERR max number of clients reached\r\n"[..])
        );
    }
    assert_eq!(core.shared.taken(0), clients.len() as u64, "they take nobody's place");
    let pool = Layout::new(&core.snapshot).pool(0);
    let counted = |counter| core.segments.pool_counter(0, pool, counter);
    assert_eq!(counted(PoolCounter::ClientsRefused), 3);
    assert_eq!(counted(PoolCounter::ClientsAccepted), clients.len() as u64 + 3);
    // When one client leaves, another may come.
    core.closed(clients[0], CloseKind::Reset);
    assert!(
        core.accepted(7, std::io::stdin().as_fd()).is_ok()
            && core.accepted(7, std::io::stdin().as_fd()).is_err()
    );
    // Sessions of other workers are always accepted, and count.
    let session =
        Session { version: SESSION_VERSION, pool: "p".to_owned(), id: 1000, ..Session::default() };
    let (_, socket) = cashew_control::pair().unwrap();
    worker.adopt(session, vec![socket]);
    let core = &mut worker.core;
    assert_eq!(core.engine.clients(), clients.len() + 1);
    core.closed(clients[1], CloseKind::Reset);
    assert!(core.accepted(7, std::io::stdin().as_fd()).is_err());
}

#[test]
fn a_pause_of_another_worker_applies_here() {
    let mut worker = worker(Fake::default());
    let paused = |worker: &Worker<Fake>| worker.core.engine.client_pause(ListenerId::new(0));
    let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    worker.core.received(client, &mut b"CLIENT PAUSE 60000 WRITE\r\n".to_vec());
    worker.end_tick();
    // The other workers have not answered, but a worker that starts knows already.
    let now_ms = monotonic_ms();
    let shared = worker.core.shared.pause(0, now_ms).expect("all are to know");
    assert!(shared.writes_only && shared.until_ms.abs_diff(now_ms + 60_000) < 30_000);
    assert!(!worker.driver.below().written.contains_key(&client));
    let pause = paused(&worker).expect("its own clients are held back");
    worker.core.follow_pauses();
    assert_eq!(paused(&worker), Some(pause), "it is the same");
    // Another worker's client ends the pause or begins one; this worker was not asked.
    worker.core.shared.set_pause(0, None, now_ms);
    worker.core.follow_pauses();
    assert_eq!(paused(&worker), None);
    let pause = Pause { until_ms: now_ms + 60_000, writes_only: false };
    worker.core.shared.set_pause(0, Some(pause), now_ms);
    let _ = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    assert!(paused(&worker).is_some_and(|pause| !pause.writes_only));
}

#[test]
fn a_pause_without_room_applies_to_no_worker() {
    let mut worker = worker(Fake::default());
    let now_ms = monotonic_ms();
    let pause = Pause { until_ms: now_ms + 60_000, writes_only: true };
    for quota in 1..=cashew_metrics::PAUSES_MAX as u32 {
        assert!(worker.core.shared.set_pause(quota, Some(pause), now_ms));
    }
    let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    worker.core.received(client, &mut b"CLIENT PAUSE 60000\r\nPING\r\n".to_vec());
    worker.end_tick();
    worker.end_tick();
    assert_eq!(worker.core.engine.client_pause(ListenerId::new(0)), None);
    let written = String::from_utf8_lossy(&worker.driver.below().written[&client]);
    assert!(written.starts_with("-ERR ") && written.ends_with("\r\n+PONG\r\n"), "{written}");
}

/// A worker whose server has a host name with these addresses.
fn with_name(addresses: [SocketAddr; 3]) -> Worker<Fake> {
    let server = "name.test:2:1\n  timeout: 400";
    let mut worker = worker_of(Fake::default(), server);
    let resolver = Resolver::with(move |_| addresses.to_vec()).unwrap();
    worker.resolver = Some(resolver);
    worker
}

#[test]
fn a_name_is_looked_up_once_in_a_second() {
    let looked_up = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&looked_up);
    let options = "name.test:2:1\n  preconnect: true\n  server_connections: 1";
    let mut worker = worker_of(Fake::default(), options);
    let address = SocketAddr::from(([127, 0, 0, 1], 2));
    let resolver = Resolver::with(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        vec![address]
    });
    worker.resolver = Some(resolver.unwrap());
    let (mut first, mut soon) = (None, 0);
    loop {
        let (conn, to) = next_attempt(&mut worker);
        assert!(matches!(to, Address::Tcp(to) if to == address));
        let now = worker.core.now;
        if now - *first.get_or_insert(now) >= Duration::from_secs(1) {
            break;
        }
        assert_eq!(looked_up.load(Ordering::Relaxed), 1);
        soon += 1;
        worker.core.closed(conn, CloseKind::Refused);
        worker.retry_connects();
        // Until the lane's backoff is over.
        while worker.driver.below().connects.is_empty() && worker.core.attempts.is_empty() {
            worker.core.now = worker.core.now.plus_millis(10);
            worker.core.engine.handle_timeout(worker.core.now);
            worker.end_tick();
        }
    }
    assert!(soon > 2, "{soon} attempts within a second");
    assert_eq!(looked_up.load(Ordering::Relaxed), 2);
}

/// The next address that the worker connects to.
fn next_attempt(worker: &mut Worker<Fake>) -> (Token, Address) {
    let start = Instant::now();
    while worker.driver.below().connects.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not connect");
        worker.end_tick();
        if worker.core.attempts.values().any(|attempt| attempt.address.is_none()) {
            worker.take_addresses();
        }
    }
    worker.driver.below().connects.remove(0)
}

#[test]
fn output_of_an_adopted_session_is_written_before_the_next_wait() {
    let was_late = Rc::default();
    let mut worker = worker(Fake { was_late: Rc::clone(&was_late), ..Fake::default() });
    let (master, control) = cashew_control::pair().unwrap();
    let (mut master, control) = (MasterChannel::new(master), ChildChannel::new(control));
    while control.send(&ToMaster::Ready, &[]).is_ok() {}
    let session = Session {
        version: SESSION_VERSION,
        pool: "p".to_owned(),
        id: 1000,
        output: 5,
        ..Session::default()
    };
    let (_, socket) = cashew_control::pair().unwrap();
    worker.arrivals.push_back((session, vec![socket, seal(b"+OK\r\n").unwrap()]));
    worker.deadline = Some(worker.core.now.plus_millis(300));
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            match master.receive() {
                Ok(Some((ToMaster::Adopted, _))) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    });
    worker.run(control).unwrap();
    assert!(reader.join().unwrap(), "it is adopted");
    assert!(!was_late.get());
}

#[test]
fn other_addresses_are_for_connecting_only() {
    let addresses = [2, 3, 4].map(|host| SocketAddr::from(([127, 0, 0, host], 2)));
    let mut worker = with_name(addresses);
    let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    worker.core.received(client, &mut GET.to_vec());
    let (conn, first) = next_attempt(&mut worker);
    assert_eq!(first, Address::Tcp(addresses[0]));
    worker.core.closed(conn, CloseKind::Refused);
    assert_eq!(next_attempt(&mut worker), (conn, Address::Tcp(addresses[1])));
    worker.core.connected(conn);
    worker.end_tick();
    assert_eq!(worker.driver.below().written[&conn], GET);
    worker.core.closed(conn, CloseKind::Reset);
    worker.end_tick();
    assert_eq!(
        worker.driver.below().written[&client],
        b"-ERR Connection reset by peer (server name.test:2)\r\n"
    );
    assert!(worker.driver.below().connects.is_empty());
    assert!(worker.core.attempts.is_empty());
}

#[test]
fn a_local_error_hides_no_failure_of_the_server() {
    let addresses = [2, 3, 4].map(|host| SocketAddr::from(([127, 0, 0, host], 2)));
    let cases = [
        ([CloseKind::Refused, CloseKind::NoPort, CloseKind::NoSocket], "Connection refused"),
        ([CloseKind::NoSocket, CloseKind::NoPort, CloseKind::Refused], "Connection refused"),
        ([CloseKind::NoPort, CloseKind::Refused, CloseKind::Unreachable], "No route to host"),
        (
            [CloseKind::NoPort, CloseKind::NoPort, CloseKind::Forbidden],
            "Permission denied to connect to the server",
        ),
    ];
    for (kinds, text) in cases {
        let mut worker = with_name(addresses);
        let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
        worker.core.received(client, &mut GET.to_vec());
        for (kind, address) in kinds.into_iter().zip(addresses) {
            let (conn, tried) = next_attempt(&mut worker);
            assert_eq!(tried, Address::Tcp(address));
            worker.core.closed(conn, kind);
        }
        worker.end_tick();
        let told = String::from_utf8_lossy(&worker.driver.below().written[&client]);
        assert_eq!(told, format!("-ERR {text} (server name.test:2)\r\n"));
    }
}

#[test]
fn a_failed_lookup_is_no_failure_of_the_server() {
    let driver = Fake { is_full: true, ..Fake::default() };
    let mut worker = worker_of(driver, "name.test:2:1");
    let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    worker.core.received(client, &mut GET.to_vec());
    worker.end_tick();
    let told = String::from_utf8_lossy(&worker.driver.below().written[&client]);
    let words = "Cannot look up the server's name: no descriptor or memory for it";
    assert_eq!(told, format!("-ERR {words} (server name.test:2)\r\n"));
}

#[test]
fn an_unresponsive_address_is_tried_last() {
    let addresses = [2, 3, 4].map(|host| SocketAddr::from(([127, 0, 0, host], 2)));
    let mut worker = with_name(addresses);
    let client = worker.core.accepted(7, std::io::stdin().as_fd()).expect("it is welcome");
    // The whole timeout passes with one address.
    let mut last = None;
    for (n, expected) in [0, 1, 2, 0].into_iter().enumerate() {
        worker.core.received(client, &mut GET.to_vec());
        let (conn, tried) = next_attempt(&mut worker);
        assert_eq!(tried, Address::Tcp(addresses[expected]), "attempt {n}");
        assert_ne!(last.replace(conn), Some(conn), "it is another attempt");
    }
}

#[test]
fn a_failed_write_is_answered_in_the_same_tick() {
    let mut worker = worker(Fake::default());
    let (client, conn) = with_server(&mut worker);
    worker.core.received(client, &mut GET.to_vec());
    worker.driver.below().broken.push(conn);
    worker.end_tick();
    let told = b"-ERR Connection reset by peer (server 127.0.0.1:2)\r\n".repeat(2);
    assert_eq!(worker.driver.below().written[&client], told);
}

#[test]
fn the_shutdown_keeps_its_time_limit_when_the_master_dies() {
    let waits = Rc::default();
    let mut worker = worker(Fake { waits: Rc::clone(&waits), ..Fake::default() });
    // The server never answers.
    let _ = with_request(&mut worker);
    worker.begin_shutdown();
    worker.deadline = Some(worker.core.now.plus_millis(300));
    let (master, control) = cashew_control::pair().unwrap();
    drop(master);
    worker.run(ChildChannel::new(control)).unwrap();
    assert!(waits.get() < 100, "it waited {} times", waits.get());
}
