//! Connections that stay: closed loop (a reply allows the next request) and open loop (requests
//! arrive at a constant rate, one by one or in bursts, whatever the replies do).

use crate::meter::{Group, Meter};
use crate::socket::{self, Poller};
use crate::wire::{Checker, Op, Pending, Wire};
use crate::{Failure, Plan};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::VecDeque;
use std::time::Duration;

const RECEIVE_BUFFER: usize = 1 << 20;
/// Without a single reply for this long the run is given up.
const STALL: u64 = 10_000_000_000;
/// How long replies may still come in after the measured window.
const DRAIN: u64 = 5_000_000_000;
/// Open loop: requests on their way, for each connection, at which arrivals wait (still timed from
/// when they were due). A client has a bound, and beyond any bound a gateway only fills memory.
const MOST_IN_FLIGHT: usize = 100;
const BESIDE_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Chooses the next request.
pub enum Source {
    Mix { state: u64, get_percent: u32, multi: bool },
    Fill { next: u32 },
}

impl Source {
    pub fn mix(get_percent: u32, multi: bool, seed: u64) -> Self {
        Self::Mix { state: seed | 1, get_percent, multi }
    }

    pub fn next(&mut self, keys: u32) -> (Op, u32) {
        match self {
            Self::Fill { next } => {
                let key = *next % keys;
                *next += 1;
                (Op::Set, key)
            }
            Self::Mix { state, get_percent, multi } => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                let key = ((u64::from((*state >> 32) as u32) * u64::from(keys)) >> 32) as u32;
                let op = match *state % 100 < u64::from(*get_percent) {
                    true if *multi => Op::MultiGet,
                    true => Op::Get,
                    false => Op::Set,
                };
                (op, key)
            }
        }
    }
}

/// Who asks at a constant rate, in turn.
pub struct Open {
    pub group: Group,
    /// Which of all connections is their first.
    pub first: usize,
    pub clients: u64,
    /// Requests per second of all of them.
    pub rate: f64,
    pub burst: u64,
}

impl Open {
    /// When a request is due, in nanoseconds from the start.
    pub fn due(&self, arrival: u64) -> u64 {
        let first = arrival - arrival % self.burst;
        (first as f64 * 1e9 / self.rate) as u64
    }

    /// Whose request it is.
    fn connection(&self, arrival: u64) -> usize {
        self.first + (arrival % self.clients) as usize
    }
}

/// When a connection sends its next request.
#[derive(Clone, Copy)]
enum Pace {
    /// When it is due.
    Open,
    /// When replies came, so that this many are on their way: all anew when the last is answered,
    /// or, sliding, one for every reply.
    Closed { depth: usize, sliding: bool },
}

struct Connection {
    fd: OwnedFd,
    group: Group,
    pace: Pace,
    out: Vec<u8>,
    sent: usize,
    pending: VecDeque<Pending>,
    checker: Checker,
}

/// Agrees on RESP3: what that says of the other side ends where the answer to a PING begins.
fn greet(fd: &OwnedFd) -> Result<(), Failure> {
    const PONG: &[u8] = b"+PONG\r\n";
    socket::wait(fd, PollFlags::OUT)?;
    let greeting = b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*1\r\n$4\r\nPING\r\n";
    if socket::transmit(fd, greeting)? != greeting.len() {
        return Err(Failure::Closed);
    }
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 1 << 12]);
    while !answer.ends_with(PONG) {
        socket::wait(fd, PollFlags::IN)?;
        match socket::receive(fd, &mut buffer)? {
            None => {}
            Some(0) => return Err(Failure::Closed),
            Some(count) => answer.extend_from_slice(&buffer[..count]),
        }
    }
    match answer.first() {
        Some(b'%') => Ok(()),
        _ => Err(Failure::Refused(answer.escape_ascii().to_string())),
    }
}

struct Steady<'a> {
    plan: &'a Plan,
    wire: &'a Wire,
    meter: &'a mut Meter,
    source: Source,
    beside_source: Source,
    poller: Poller,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    in_flight: usize,
    arrivals: u64,
    last_reply: u64,
}

pub fn run(plan: &Plan, wire: &Wire, meter: &mut Meter, source: Source) -> Result<(), Failure> {
    let mut steady = Steady {
        plan,
        wire,
        meter,
        source,
        beside_source: Source::mix(100, false, BESIDE_SEED),
        poller: Poller::new()?,
        connections: Vec::new(),
        buffer: vec![0; RECEIVE_BUFFER],
        in_flight: 0,
        arrivals: 0,
        last_reply: 0,
    };
    steady.connect()?;
    steady.meter.begin();
    let outcome = steady.serve();
    for connection in &mut steady.connections {
        if let Some(error) = connection.checker.first_error.take() {
            steady.meter.first_error.get_or_insert(error);
        }
    }
    if outcome.is_ok() && plan.events {
        // Leaves the other side undisturbed while somebody reads its clocks.
        std::thread::sleep(Duration::from_millis(50));
    }
    outcome
}

impl<'a> Steady<'a> {
    fn connect(&mut self) -> Result<(), Failure> {
        let closed = Pace::Closed { depth: self.plan.pipeline, sliding: self.plan.sliding };
        let (main, slow) = match &self.plan.open {
            Some(open) if open.group == Group::Main => (Pace::Open, 0),
            Some(open) => (closed, open.clients),
            None => (closed, 0),
        };
        for _ in 0..self.plan.connections {
            self.connect_one(Group::Main, main)?;
        }
        for _ in 0..slow {
            self.connect_one(Group::Beside, Pace::Open)?;
        }
        if let Some(depth) = self.plan.greedy {
            self.connect_one(Group::Beside, Pace::Closed { depth, sliding: true })?;
        }
        Ok(())
    }

    fn connect_one(&mut self, group: Group, pace: Pace) -> Result<(), Failure> {
        let fd = socket::open(self.plan.target(self.connections.len()), None, false)?;
        if self.plan.resp3 {
            greet(&fd)?;
        }
        self.poller.add(fd.as_fd(), self.connections.len() as u64)?;
        self.connections.push(Connection {
            fd,
            group,
            pace,
            out: Vec::new(),
            sent: 0,
            pending: VecDeque::new(),
            checker: Checker::default(),
        });
        Ok(())
    }

    fn serve(&mut self) -> Result<(), Failure> {
        for index in 0..self.connections.len() {
            self.refill(index, self.meter.now())?;
        }
        loop {
            let now = self.meter.now();
            self.meter.advance(now);
            let patience = self.arrive(now)?;
            let done = self.in_flight == 0 && self.next_arrival().is_none();
            if self.meter.over() && (done || now > self.meter.closed() + DRAIN) {
                self.abandon(now);
                return Ok(());
            }
            if self.in_flight > 0 && now > self.last_reply + STALL {
                return Err(Failure::Stalled(self.in_flight));
            }
            self.poller.wait(patience)?;
            for event in 0..self.poller.count() {
                let (token, readable, writable) = self.poller.event(event);
                if readable {
                    self.replies(token as usize)?;
                }
                if writable {
                    self.flush(token as usize)?;
                }
            }
        }
    }

    fn abandon(&mut self, now: u64) {
        for connection in &mut self.connections {
            for request in connection.pending.drain(..) {
                self.meter.abandon(connection.group, now, request);
            }
        }
        while let Some((open, since)) = self.next_arrival() {
            self.meter.abandon(open.group, now, Pending { since, op: Op::Get, key: 0 });
            self.arrivals += 1;
        }
    }

    fn replies(&mut self, index: usize) -> Result<(), Failure> {
        let mut drained = false;
        while !drained {
            let connection = &mut self.connections[index];
            let received = match socket::receive(&connection.fd, &mut self.buffer)? {
                None => return Ok(()),
                Some(0) => return Err(Failure::Closed),
                Some(count) => count,
            };
            drained = received < self.buffer.len();
            let now = self.meter.now();
            let before = connection.pending.len();
            let (group, meter) = (connection.group, &mut *self.meter);
            connection.checker.feed(
                self.wire,
                &self.buffer[..received],
                &mut connection.pending,
                |request, outcome| meter.finish(group, now, request, outcome),
            )?;
            self.in_flight -= before - connection.pending.len();
            self.last_reply = now;
            self.meter.advance(now);
            self.refill(index, now)?;
        }
        Ok(())
    }

    /// Closed loop: brings a connection back to its depth and sends all of it at once.
    fn refill(&mut self, index: usize, now: u64) -> Result<(), Failure> {
        let connection = &self.connections[index];
        let depth = match connection.pace {
            Pace::Closed { depth, sliding } if sliding || connection.pending.is_empty() => depth,
            _ => return Ok(()),
        };
        while self.connections[index].pending.len() < depth && self.meter.may_send() {
            self.ask(index, now);
        }
        self.flush(index)
    }

    /// Has one more request to be sent on a connection.
    fn ask(&mut self, index: usize, since: u64) {
        let connection = &mut self.connections[index];
        let source = match connection.group {
            Group::Main => &mut self.source,
            Group::Beside => &mut self.beside_source,
        };
        let (op, key) = source.next(self.wire.key_count());
        self.wire.append(&mut connection.out, op, key);
        connection.pending.push_back(Pending { since, op, key });
        self.in_flight += 1;
    }

    /// Open loop: sends what is due and says how long nothing else is.
    fn arrive(&mut self, now: u64) -> Result<Duration, Failure> {
        let first = self.arrivals;
        while let Some((open, since)) = self.next_arrival()
            && since <= now
            && self.has_room(open)
        {
            self.meter.send();
            self.ask(open.connection(self.arrivals), since);
            self.arrivals += 1;
        }
        if let Some(open) = &self.plan.open {
            for back in 1..=(self.arrivals - first).min(open.clients) {
                self.flush(open.connection(self.arrivals - back))?;
            }
        }
        let wait = match self.next_arrival() {
            Some((open, due)) if self.has_room(open) => due.saturating_sub(now),
            _ => u64::MAX,
        };
        Ok(Duration::from_nanos(wait.min(20_000_000)))
    }

    /// Open loop: whose turn it is and when, while requests that must be sent are still to come.
    fn next_arrival(&self) -> Option<(&'a Open, u64)> {
        let open = self.plan.open.as_ref()?;
        let due = open.due(self.arrivals);
        self.meter.wants(due).then_some((open, due))
    }

    /// Open loop: whether the next request may be sent when it is due.
    fn has_room(&self, open: &Open) -> bool {
        match open.group {
            Group::Main => self.in_flight < self.plan.connections * MOST_IN_FLIGHT,
            // A slow client asks for one thing at a time.
            Group::Beside => self.connections[open.connection(self.arrivals)].pending.is_empty(),
        }
    }

    fn flush(&mut self, index: usize) -> Result<(), Failure> {
        let connection = &mut self.connections[index];
        while connection.sent < connection.out.len() {
            match socket::transmit(&connection.fd, &connection.out[connection.sent..])? {
                0 => break,
                count => connection.sent += count,
            }
        }
        if connection.sent == connection.out.len() {
            connection.out.clear();
            connection.sent = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Bound;
    use crate::wire::{Protocol, Sizes};
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::thread::{self, JoinHandle};

    const MISS: &[u8] = b"$-1\r\n";
    const GET_LEN: usize = "*2\r\n$3\r\nGET\r\n$14\r\nkey:0000000000\r\n".len();

    /// A server without keys whose first answer on each connection takes a while. In the end it
    /// tells how many requests it has read at a time at most.
    fn server(clients: usize, first: Duration) -> (SocketAddr, JoinHandle<usize>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let served = thread::spawn(move || {
            let accept = || listener.accept().expect("a client").0;
            let serve = |client| thread::spawn(move || answer(client, first));
            let threads: Vec<_> = (0..clients).map(|_| serve(accept())).collect();
            threads.into_iter().map(|each| each.join().expect("its end")).max().unwrap_or(0)
        });
        (address, served)
    }

    fn answer(mut client: TcpStream, first: Duration) -> usize {
        let (mut buffer, mut most, mut delay) = ([0; 4096], 0, first);
        while let Ok(received @ 1..) = client.read(&mut buffer) {
            thread::sleep(delay);
            delay = Duration::ZERO;
            most = most.max(received / GET_LEN);
            client.write_all(&MISS.repeat(received / GET_LEN)).expect("a reader");
        }
        most
    }

    fn number(report: &str, field: &str) -> f64 {
        let (_, rest) = report.split_once(&format!("\"{field}\":")).expect("the field");
        rest.split([',', '}']).next().and_then(|text| text.parse().ok()).expect("a number")
    }

    #[test]
    fn slow_clients_ask_one_at_a_time_and_are_told_apart() {
        let (target, served) = server(7, Duration::from_millis(20));
        let plan = Plan {
            targets: vec![target],
            connections: 2,
            pipeline: 1,
            sliding: false,
            open: Some(Open { group: Group::Beside, first: 2, clients: 5, rate: 1000.0, burst: 1 }),
            greedy: None,
            reset: false,
            resp3: false,
            events: false,
        };
        let sizes = Sizes { small: 100, large: 100, large_percent: 0 };
        let wire = Wire::new(Protocol::Redis, 100, sizes, 1);
        let bound = Bound::Time { warmup: Duration::ZERO, measured: Duration::from_millis(100) };
        let mut meter = Meter::new(bound, false, Some(Group::Beside));
        run(&plan, &wire, &mut meter, Source::mix(100, false, 1)).expect("a run");
        let report = meter.report("closed");
        // Every reply is a miss; those of the others are timed when they end within the window.
        assert_eq!(number(&report, "misses") - number(&report, "timed"), 100.0, "{report}");
        // Each has one answer after 20 ms, and timed since they were due three that waited for it.
        let (_, beside) = report.split_once("beside_latency_us").expect("their latency");
        assert!(number(beside, "mean") > 2000.0, "{report}");
        assert_eq!(served.join().expect("the server's end"), 1);
    }
}
