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
const GREEDY_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

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
    greedy_source: Source,
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
        greedy_source: Source::mix(100, false, GREEDY_SEED),
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

impl Steady<'_> {
    fn connect(&mut self) -> Result<(), Failure> {
        let pace = match self.plan.rate {
            Some(_) => Pace::Open,
            None => Pace::Closed { depth: self.plan.pipeline, sliding: self.plan.sliding },
        };
        for _ in 0..self.plan.connections {
            self.connect_one(Group::Main, pace)?;
        }
        if let Some(depth) = self.plan.greedy {
            self.connect_one(Group::Greedy, Pace::Closed { depth, sliding: true })?;
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
            let done = self.in_flight == 0 && !self.arrives_within_window();
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
        while self.arrives_within_window() {
            let since = self.plan.due(self.arrivals);
            self.meter.abandon(Group::Main, now, Pending { since, op: Op::Get, key: 0 });
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
        let connection = &mut self.connections[index];
        let depth = match connection.pace {
            Pace::Closed { depth, sliding } if sliding || connection.pending.is_empty() => depth,
            _ => return Ok(()),
        };
        let source = match connection.group {
            Group::Main => &mut self.source,
            Group::Greedy => &mut self.greedy_source,
        };
        while connection.pending.len() < depth && self.meter.may_send() {
            let (op, key) = source.next(self.wire.key_count());
            self.wire.append(&mut connection.out, op, key);
            connection.pending.push_back(Pending { since: now, op, key });
            self.in_flight += 1;
        }
        self.flush(index)
    }

    /// Open loop: sends what is due and says how long nothing else is.
    fn arrive(&mut self, now: u64) -> Result<Duration, Failure> {
        let clients = self.plan.connections as u64;
        let most = self.plan.connections * MOST_IN_FLIGHT;
        let first = self.arrivals;
        while self.arrives_within_window()
            && self.plan.due(self.arrivals) <= now
            && self.in_flight < most
        {
            let since = self.plan.due(self.arrivals);
            self.meter.send();
            let connection = &mut self.connections[(self.arrivals % clients) as usize];
            let (op, key) = self.source.next(self.wire.key_count());
            self.wire.append(&mut connection.out, op, key);
            connection.pending.push_back(Pending { since, op, key });
            self.in_flight += 1;
            self.arrivals += 1;
        }
        for back in 1..=(self.arrivals - first).min(clients) {
            self.flush(((self.arrivals - back) % clients) as usize)?;
        }
        let wait = if self.arrives_within_window() && self.in_flight < most {
            self.plan.due(self.arrivals).saturating_sub(now)
        } else {
            u64::MAX
        };
        Ok(Duration::from_nanos(wait.min(20_000_000)))
    }

    /// Open loop: whether requests that must be sent, now or later, are still to come.
    fn arrives_within_window(&self) -> bool {
        self.plan.rate.is_some() && self.meter.wants(self.plan.due(self.arrivals))
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
