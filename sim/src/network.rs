//! Connections as pairs of byte streams that delay and cut at will.

use std::collections::VecDeque;

use crate::clock::{Clock, Event};
use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Gateway,
    Peer,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Gateway => Self::Peer,
            Self::Peer => Self::Gateway,
        }
    }
}

/// The peer of a gateway's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Client(u32),
    Server(u32),
}

/// How streams behave in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) latency_min_us: u64,
    pub(crate) latency_max_us: u64,
    /// Unread bytes that one direction of a connection holds.
    pub(crate) capacity: usize,
    /// How often, in percent, a write is cut into small pieces.
    pub(crate) cuts: u64,
    /// How often, in percent, the kernel takes only part of a write that it has room for.
    pub(crate) short_writes: u64,
    /// The longest delay of a gateway's next tick after an event.
    pub(crate) tick_max_us: u64,
}

enum Chunk {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// One direction. What is written arrives in order.
///
/// size == bytes in `flight` + bytes in `ready` <= capacity
#[derive(Default)]
struct Stream {
    flight: VecDeque<(u64, Chunk)>,
    ready: VecDeque<u8>,
    size: usize,
    last_arrival: u64,
    /// The writer has ended its side.
    ended: bool,
    /// The end has been reported to the reader.
    end_arrived: bool,
    /// The writer waits for room.
    starving: bool,
}

pub(crate) struct Conn {
    pub(crate) gateway: u32,
    pub(crate) peer: Peer,
    /// The engine's token; 0 before there is one.
    pub(crate) token: u64,
    to_gateway: Stream,
    to_peer: Stream,
    /// By side: it has closed its end.
    closed: [bool; 2],
    reset_arrived: [bool; 2],
}

/// The content of an [`Event::Arrive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Nothing,
    Readable,
    Reset,
}

pub(crate) struct Network {
    weather: Weather,
    conns: Vec<Conn>,
}

impl Network {
    pub(crate) fn new(weather: Weather) -> Self {
        Self { weather, conns: Vec::new() }
    }

    pub(crate) fn open(&mut self, gateway: u32, peer: Peer) -> u32 {
        self.conns.push(Conn {
            gateway,
            peer,
            token: 0,
            to_gateway: Stream::default(),
            to_peer: Stream::default(),
            closed: [false; 2],
            reset_arrived: [false; 2],
        });
        self.conns.len() as u32 - 1
    }

    pub(crate) fn conn(&self, conn: u32) -> &Conn {
        &self.conns[conn as usize]
    }

    pub(crate) fn name(&mut self, conn: u32, token: u64) {
        self.conns[conn as usize].token = token;
    }

    /// Another gateway has it from now on.
    pub(crate) fn belong(&mut self, conn: u32, gateway: u32) {
        self.conns[conn as usize].gateway = gateway;
    }

    pub(crate) fn latency(&self, random: &mut Random) -> u64 {
        random.range(self.weather.latency_min_us, self.weather.latency_max_us)
    }

    fn stream(&mut self, conn: u32, to: Side) -> &mut Stream {
        let conn = &mut self.conns[conn as usize];
        match to {
            Side::Gateway => &mut conn.to_gateway,
            Side::Peer => &mut conn.to_peer,
        }
    }

    pub(crate) fn tick_max_us(&self) -> u64 {
        self.weather.tick_max_us
    }

    /// Takes as much of `bytes` as there is room for, or less in bad weather; returns how much. The
    /// writer of a partial write gets [`Event::Writable`].
    pub(crate) fn write(
        &mut self,
        conn: u32,
        from: Side,
        bytes: &[u8],
        clock: &mut Clock,
        random: &mut Random,
    ) -> usize {
        let weather = self.weather;
        let to = from.other();
        // A closed reader discards everything.
        if self.conns[conn as usize].closed[to as usize] {
            return bytes.len();
        }
        let now = clock.now();
        let stream = self.stream(conn, to);
        assert!(!stream.ended, "written after the end");
        let room = weather.capacity - stream.size;
        let mut taken = bytes.len().min(room);
        if taken > 1 && random.percent(weather.short_writes) {
            taken = random.range(1, taken as u64) as usize;
        }
        if taken < bytes.len() {
            if taken < room {
                clock.plan(now + random.range(1, 300), Event::Writable { conn, at: from });
            } else {
                stream.starving = true;
            }
        }
        let mut rest = &bytes[..taken];
        stream.size += taken;
        while !rest.is_empty() {
            let len = piece(rest.len(), weather.cuts, random);
            let delay = random.range(weather.latency_min_us, weather.latency_max_us);
            let arrival = stream.last_arrival.max(now + delay);
            stream.last_arrival = arrival;
            stream.flight.push_back((arrival, Chunk::Bytes(rest[..len].to_vec())));
            clock.plan(arrival, Event::Arrive { conn, at: to });
            rest = &rest[len..];
        }
        taken
    }

    /// Bytes that appear at one end at once, without travelling.
    pub(crate) fn materialise(&mut self, conn: u32, at: Side, bytes: &[u8]) {
        let stream = self.stream(conn, at);
        stream.size += bytes.len();
        stream.ready.extend(bytes);
    }

    /// Ends one side's stream; it may still read.
    pub(crate) fn end(&mut self, conn: u32, from: Side, clock: &mut Clock, random: &mut Random) {
        let (now, delay) = (clock.now(), self.latency(random));
        let stream = self.stream(conn, from.other());
        if std::mem::replace(&mut stream.ended, true) {
            return;
        }
        let arrival = stream.last_arrival.max(now + delay);
        stream.last_arrival = arrival;
        stream.flight.push_back((arrival, Chunk::End));
        clock.plan(arrival, Event::Arrive { conn, at: from.other() });
    }

    /// One side closes: its output still arrives, further input is discarded.
    pub(crate) fn close(&mut self, conn: u32, from: Side, clock: &mut Clock, random: &mut Random) {
        self.end(conn, from, clock, random);
        self.conns[conn as usize].closed[from as usize] = true;
        let stream = self.stream(conn, from);
        stream.ready.clear();
        stream.flight.retain(|(_, chunk)| !matches!(chunk, Chunk::Bytes(_)));
        stream.size = 0;
        if std::mem::take(&mut stream.starving) {
            clock.plan(clock.now() + 1, Event::Writable { conn, at: from.other() });
        }
    }

    /// One side resets the connection. Bytes in flight are lost.
    pub(crate) fn reset(&mut self, conn: u32, from: Side, clock: &mut Clock, random: &mut Random) {
        let arrival = clock.now() + self.latency(random);
        let to = from.other();
        self.conns[conn as usize].closed[from as usize] = true;
        let mine = self.stream(conn, from);
        (mine.size, mine.starving) = (0, false);
        mine.ready.clear();
        mine.flight.clear();
        let stream = self.stream(conn, to);
        stream.ended = true;
        stream.last_arrival = arrival;
        stream.flight.retain(|(at, _)| *at < arrival);
        stream.flight.push_back((arrival, Chunk::Reset));
        clock.plan(arrival, Event::Arrive { conn, at: to });
    }

    pub(crate) fn arrive(&mut self, conn: u32, at: Side, now: u64) -> Arrival {
        if self.conns[conn as usize].closed[at as usize] {
            return Arrival::Nothing;
        }
        let stream = self.stream(conn, at);
        let mut arrival = Arrival::Nothing;
        while let Some((due, _)) = stream.flight.front()
            && *due <= now
        {
            let (_, chunk) = stream.flight.pop_front().expect("it was just looked at");
            match chunk {
                Chunk::Bytes(bytes) => stream.ready.extend(bytes),
                Chunk::End => stream.end_arrived = true,
                Chunk::Reset => {
                    stream.ready.clear();
                    stream.flight.clear();
                    self.conns[conn as usize].reset_arrived[at as usize] = true;
                    return Arrival::Reset;
                }
            }
            arrival = Arrival::Readable;
        }
        arrival
    }

    /// Takes up to `max` bytes that have arrived.
    pub(crate) fn read(&mut self, conn: u32, at: Side, max: usize, clock: &mut Clock) -> Vec<u8> {
        let now = clock.now();
        let stream = self.stream(conn, at);
        let len = stream.ready.len().min(max);
        let bytes: Vec<u8> = stream.ready.drain(..len).collect();
        stream.size -= len;
        if len > 0 && std::mem::take(&mut stream.starving) {
            clock.plan(now + 20, Event::Writable { conn, at: at.other() });
        }
        bytes
    }

    pub(crate) fn readable(&self, conn: u32, at: Side) -> usize {
        self.to(conn, at).ready.len()
    }

    /// The readable bytes fill all room, or are all that will ever come.
    pub(crate) fn is_complete(&self, conn: u32, at: Side) -> bool {
        let stream = self.to(conn, at);
        stream.end_arrived || (stream.starving && stream.flight.is_empty())
    }

    /// All has been read and nothing more will come.
    pub(crate) fn at_end(&self, conn: u32, at: Side) -> bool {
        let stream = self.to(conn, at);
        stream.end_arrived && stream.ready.is_empty()
    }

    pub(crate) fn is_closed(&self, conn: u32, side: Side) -> bool {
        self.conns[conn as usize].closed[side as usize]
    }

    /// Whether the other side's reset has been reported to this side.
    pub(crate) fn is_reset(&self, conn: u32, side: Side) -> bool {
        self.conns[conn as usize].reset_arrived[side as usize]
    }

    /// Nothing is in flight in either direction.
    pub(crate) fn is_idle(&self, conn: u32) -> bool {
        [Side::Gateway, Side::Peer].iter().all(|&at| {
            let stream = self.to(conn, at);
            stream.size == 0 && stream.flight.is_empty() && !stream.ended && !stream.starving
        })
    }

    fn to(&self, conn: u32, at: Side) -> &Stream {
        let conn = &self.conns[conn as usize];
        match at {
            Side::Gateway => &conn.to_gateway,
            Side::Peer => &conn.to_peer,
        }
    }
}

/// Length of the next piece of `len` bytes: mostly all, sometimes very little.
pub(crate) fn piece(len: usize, cuts: u64, random: &mut Random) -> usize {
    if len < 2 || !random.percent(cuts) {
        return len;
    }
    // Large values are not cut into single bytes, which would show nothing new and take very long.
    let least = if len > 8192 { len as u64 / 16 } else { 1 };
    match random.below(4) {
        0 => least as usize,
        1 => random.range(least, (least + 8).min(len as u64)) as usize,
        _ => random.range(least, len as u64) as usize,
    }
}
