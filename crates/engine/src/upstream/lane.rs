//! A shared connection to a server, with its queue.

use std::collections::VecDeque;

use cashew_config::snapshot::Limits;
use cashew_protocol::memcached::binary::Opcode;
use cashew_protocol::memcached::{self, Expect, Tagger, binary};
use cashew_protocol::resp;

use crate::base::buffer::{BufPool, LARGE, Output};
use crate::base::failure::Failure;
use crate::base::fifo::Fifo;
use crate::base::id::{BackendId, ClientId, ConnId, LaneId, RequestId, ServerId};
use crate::base::pace::Pace;
use crate::base::time::Time;
use crate::base::timers::{Timer, Timers};
use crate::memcached::Coalesced;
use crate::request::slab::Requests;
use crate::request::{Asked, Request};
use crate::upstream::equal_reads::EqualReads;
use crate::upstream::low_water::LowWater;
use crate::upstream::redirect::{RefusedPart, Users};
use crate::upstream::refused::Refused;
use crate::upstream::server::Queues;
use crate::upstream::session_params::WireProtocol;

/// Bytes of requests in flight that a lane keeps, to send them again, or to show them. Where there are more,
/// none of those can be.
pub(crate) const SENT_MAX: u64 = 1 << 20;
/// As many are kept of what is written at once, where that is only to be shown (see [`crate::observe`]), or if
/// requests are small by the mean: who shows many of them has copied each already.
const SHOWN_MAX: u64 = LARGE as u64;
const SMALL: u64 = 1024;
/// As many bytes are kept of the start of a large request.
const START_MAX: usize = 512;

/// One multiplexed connection to a server; it stays a lane while connections come and go.
///
/// Its requests form one chain through `next_in_lane`: from `head` those sent, whose replies are
/// owed in this order, from `first_unsent` those not wholly written. `output` holds exactly the
/// bytes of the latter, less `partial`, but for those that wait in `coalesced`.
pub(crate) struct Lane {
    pub(crate) backend: BackendId,
    pub(crate) server: ServerId,
    /// What its connection agrees on, by the backend's numbers.
    pub(crate) variant: u16,
    pub(crate) link: Link,
    /// By which its connections are named, together with `generation`. Two lanes exchange theirs,
    /// never more than one has the same.
    pub(crate) slot: u32,
    /// How many connections have been named by `slot`.
    pub(crate) generation: u32,
    /// The current connection, or the last one.
    pub(crate) conn: ConnId,
    /// Failures in a row, for the backoff.
    pub(crate) attempts: u32,
    /// Why the last connection ended or did not come about.
    pub(crate) last_failure: Failure,
    /// Its next connection, or the one that is being made, asks for a sign of life first: see
    /// [`crate::upstream::liveness`].
    pub(crate) asks: bool,
    /// When the current connection, or the last one, was begun.
    pub(crate) tried_at: Time,
    /// When the last one failed.
    pub(crate) failed_at: Time,
    /// When the backoff is over. What is tried before that is early: see [`crate::upstream::connect_attempts`].
    pub(crate) due_at: Time,
    /// The connection that is being made is such an attempt.
    pub(crate) is_early: bool,
    /// There was a connection, or an attempt, that has ended, and none stands since.
    pub(crate) was_lost: bool,
    pub(crate) handshake: Handshake,
    pub(crate) output: Output,
    /// The last bytes of those in flight, up to [`SENT_MAX`], where requests may be sent again, or are looked at: see
    /// [`Lane::trim_sent`].
    pub(crate) sent: Output,
    /// How the last large request began that was written with nothing in flight, of which no more is kept: see
    /// [`crate::observe`].
    pub(crate) large_start: Option<Box<Start>>,
    /// Requests that the server refused to run. While there are some nothing is sent.
    pub(crate) refused: Option<Box<Refused>>,
    /// Whose requests are here, as far as it is known: see [`Users`].
    pub(crate) users: Option<Box<Users>>,
    pub(crate) head: RequestId,
    pub(crate) tail: RequestId,
    pub(crate) first_unsent: RequestId,
    /// Bytes already written of `first_unsent`.
    pub(crate) partial: u64,
    pub(crate) in_flight: u32,
    pub(crate) unsent: u32,
    /// Bytes of the requests in flight.
    pub(crate) in_flight_size: u64,
    /// When which requests in flight were written.
    pub(crate) batches: VecDeque<Batch>,
    /// Up to which of those written, as `written` counts them, it was seen whether another server is to be
    /// asked, too: see [`crate::upstream::hedge`].
    pub(crate) hedged: u64,
    /// Requests written, and requests answered, on this connection.
    pub(crate) written: u64,
    pub(crate) answered: u64,
    /// How many of those answered are in the statistics.
    pub(crate) recorded: u64,
    /// When bytes were last written; of a private lane also, when some were last read.
    pub(crate) progress_at: Time,
    pub(crate) scanner: Scanner,
    /// Where the reply that is arriving has uniques that get tags.
    pub(crate) tagger: Option<Box<Tagger>>,
    /// Its gets of several keys: see [`Coalesced`].
    pub(crate) coalesced: Coalesced,
    /// How many of its requests share the reply of another one.
    pub(crate) followers: u32,
    /// What has been answered last shares its reply with the head.
    pub(crate) replays: bool,
    /// Which reads wait to be written that others may share, once there were any.
    pub(crate) equal_reads: Option<Box<EqualReads>>,
    /// Requests and their bytes that are not in the statistics yet.
    pub(crate) uncounted: u32,
    pub(crate) uncounted_size: u64,
    /// Its server's statistics are to be brought up to date with it.
    pub(crate) is_unpublished: bool,
    /// The earliest armed timer.
    pub(crate) armed: Time,
    /// Listed among the connections with something to send.
    pub(crate) dirty: bool,
    /// One client at a time has it: see [`crate::upstream::streaming`] and [`crate::upstream::exclusive`].
    pub(crate) is_private: bool,
    /// Messages come on it, and nobody's replies: see [`crate::redis::pubsub`].
    pub(crate) is_feed: bool,
    /// What comes are names of keys that have changed: see [`crate::upstream::tracking`]. It is a feed, too.
    pub(crate) is_tracker: bool,
    /// It is for transactions and blocking calls; other private lanes have one request at a time.
    pub(crate) is_session: bool,
    /// The client that has it for its next requests, too, or [`ClientId::NONE`].
    pub(crate) lease: ClientId,
    /// The count `written` when it was taken last.
    pub(crate) leased_at: u64,
    /// When that was.
    pub(crate) leased_since: Time,
    /// What the server's CLIENT ID says of the connection; 0 while that is not known.
    pub(crate) peer_id: u64,
    /// What its server's statistics know of it.
    pub(crate) counted: Counted,
    /// The client is to take more of the reply before it gets any.
    pub(crate) paused: bool,
    /// It is not paused any more, though its client is slow: others wait for its connection.
    pub(crate) is_hurried: bool,
    /// How fast its client moves what is large.
    pub(crate) pace: Pace,
    /// Its connection is not read.
    pub(crate) is_muted: bool,
    /// What the node of a cluster has refused of the transaction that was sent here as a whole.
    pub(crate) refused_part: Option<Box<RefusedPart>>,
    /// Of a node of a cluster: READONLY was said on its connection.
    pub(crate) reads_replica: bool,
    /// What came while it was paused, in order.
    pub(crate) kept: Output,
    pub(crate) low_water: LowWater,
    /// The client whose upload is passing and goes on, or [`ClientId::NONE`]. It is the only request here.
    pub(crate) upload: ClientId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// No connection, and none wanted before there is a request.
    Idle,
    Connecting {
        deadline: Time,
    },
    /// Connected; AUTH, HELLO, SELECT, or the question for a sign of life, is not answered yet.
    Handshaking {
        deadline: Time,
    },
    Ready {
        since: Time,
    },
    /// The server could not be reached: until then requests fail at once, or try again early.
    Backoff {
        until: Time,
    },
}

/// What is said on a new connection before any request.
#[derive(Default)]
pub(crate) struct Handshake {
    pub(crate) output: Output,
    pub(crate) replies_owed: u32,
    /// By bit, which of these answer HELLO, that of the next one lowest.
    pub(crate) greetings: u64,
    /// How many replies are owed when the next one answers the credentials; 0: there are none.
    pub(crate) auth_at: u32,
    /// Replies that say nothing any more, as the server took none of the credentials that came first.
    pub(crate) void: u32,
    /// Which of the server's credentials were given last.
    pub(crate) credentials: usize,
    /// How many of them were given on this connection.
    pub(crate) tried: usize,
    /// The reply that is arriving.
    pub(crate) reply: Vec<u8>,
}

/// What the statistics have of one lane for sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) queues: Queues,
    pub(crate) is_taken: bool,
}

/// The first bytes of a request.
#[derive(Default)]
pub(crate) struct Start {
    /// How many were answered on this connection before it.
    ordinal: u64,
    text: Vec<u8>,
}

/// Requests written by one send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// The count `written` after it.
    pub(crate) end: u64,
    pub(crate) at: Time,
}

/// Finds the ends of replies.
pub(crate) enum Scanner {
    Redis(resp::ReplyScanner),
    Memcached(memcached::ReplyScanner),
    Binary(binary::ReplyScanner),
}

pub(crate) enum Scan {
    /// The reply ends after so many bytes.
    Complete(usize),
    /// All bytes belong to it, and more.
    Partial,
    Invalid,
}

impl From<memcached::Scan> for Scan {
    #[inline]
    fn from(scan: memcached::Scan) -> Self {
        match scan {
            memcached::Scan::Complete(len) => Self::Complete(len),
            memcached::Scan::Partial => Self::Partial,
            memcached::Scan::Invalid => Self::Invalid,
        }
    }
}

impl Scanner {
    pub(crate) fn new(wire_protocol: WireProtocol) -> Self {
        match wire_protocol {
            WireProtocol::Resp2 | WireProtocol::Resp3 => {
                let mut scanner = resp::ReplyScanner::default();
                scanner.set_resp3(wire_protocol == WireProtocol::Resp3);
                Self::Redis(scanner)
            }
            WireProtocol::Text => Self::Memcached(memcached::ReplyScanner::default()),
            WireProtocol::Binary => Self::Binary(binary::ReplyScanner::default()),
        }
    }

    /// How many of the next bytes at least are known to belong to one value.
    pub(crate) fn remaining(&self) -> u64 {
        match self {
            Self::Redis(scanner) => scanner.remaining_hint(),
            Self::Memcached(scanner) => scanner.remaining_hint(),
            Self::Binary(scanner) => scanner.remaining_hint(),
        }
    }

    /// Whether no byte of a reply has come whose end has not.
    #[inline]
    pub(crate) fn at_start(&self) -> bool {
        match self {
            Self::Redis(scanner) => scanner.at_start(),
            Self::Memcached(_) | Self::Binary(_) => true,
        }
    }

    /// Whether what goes on, or begins, with these bytes answers no request.
    #[inline]
    pub(crate) fn is_push(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Redis(scanner) => scanner.is_push(bytes),
            Self::Memcached(_) | Self::Binary(_) => false,
        }
    }

    /// Whether the packet that has been scanned last names what the request does. True of other
    /// dialects, whose replies name nothing.
    #[inline]
    pub(crate) fn names(&self, request: &Request) -> bool {
        let (Self::Binary(scanner), Asked { opcode, opaque, .. }) = (self, request.asked) else {
            return true;
        };
        let Some(header) = scanner.header() else { return true };
        let sent = Opcode::from_byte(opcode).map_or(opcode, |(opcode, _)| opcode.byte());
        header[1] == sent && header[12..16] == opaque
    }

    #[inline]
    pub(crate) fn scan(&mut self, expect: Expect, bytes: &[u8]) -> Scan {
        match self {
            Self::Redis(scanner) => match scanner.scan(bytes) {
                resp::Scan::Complete(len) => Scan::Complete(len),
                resp::Scan::Partial => Scan::Partial,
                resp::Scan::Invalid => Scan::Invalid,
            },
            Self::Memcached(scanner) => scanner.scan(expect, bytes).into(),
            Self::Binary(scanner) => scanner.scan(expect, bytes).into(),
        }
    }
}

impl Lane {
    pub(crate) fn new(
        place: (BackendId, ServerId),
        variant: u16,
        wire_protocol: WireProtocol,
    ) -> Self {
        let (backend, server) = place;
        Self {
            backend,
            server,
            variant,
            link: Link::Idle,
            slot: u32::MAX,
            generation: 0,
            conn: ConnId::of_lane(0, 0),
            attempts: 0,
            last_failure: Failure::Closed,
            asks: false,
            tried_at: Time::ZERO,
            failed_at: Time::ZERO,
            due_at: Time::ZERO,
            is_early: false,
            was_lost: false,
            handshake: Handshake::default(),
            output: Output::default(),
            sent: Output::default(),
            large_start: None,
            refused: None,
            users: None,
            head: RequestId::NONE,
            tail: RequestId::NONE,
            first_unsent: RequestId::NONE,
            partial: 0,
            in_flight: 0,
            unsent: 0,
            in_flight_size: 0,
            batches: VecDeque::new(),
            hedged: 0,
            written: 0,
            answered: 0,
            recorded: 0,
            progress_at: Time::ZERO,
            scanner: Scanner::new(wire_protocol),
            tagger: None,
            coalesced: Coalesced::default(),
            followers: 0,
            replays: false,
            equal_reads: None,
            uncounted: 0,
            uncounted_size: 0,
            is_unpublished: false,
            armed: Time::NEVER,
            dirty: false,
            is_private: false,
            is_feed: false,
            is_tracker: false,
            is_session: false,
            lease: ClientId::NONE,
            leased_at: 0,
            leased_since: Time::ZERO,
            peer_id: 0,
            counted: Counted::default(),
            refused_part: None,
            reads_replica: false,
            paused: false,
            is_hurried: false,
            pace: Pace::new(Time::ZERO, 0),
            is_muted: false,
            kept: Output::default(),
            low_water: LowWater::Byte,
            upload: ClientId::NONE,
        }
    }

    /// Makes it another lane, whose connections get names that none had before.
    pub(crate) fn renew(&mut self, lane: Self) {
        let Self { slot, generation, .. } = *self;
        *self = Self { slot, generation, ..lane };
    }

    /// How many were written on this connection when all that is here is.
    pub(crate) fn end_ordinal(&self) -> u64 {
        self.answered + u64::from(self.in_flight) + u64::from(self.unsent)
    }

    /// Whether nothing is on its way here.
    pub(crate) fn is_free(&self) -> bool {
        self.head == RequestId::NONE
    }

    /// Whether it is somebody's for now.
    pub(crate) fn is_taken(&self) -> bool {
        self.lease != ClientId::NONE || !self.is_free()
    }

    /// Puts a request, whose bytes are the last `wire_len` of what waits, at the end of the queue.
    #[inline(always)]
    pub(crate) fn append(&mut self, request: RequestId, wire_len: u64, requests: &mut Requests) {
        requests[request].enter_lane(wire_len);
        self.link(request, wire_len, requests);
    }

    /// The same for one that was told so: see [`Request::enter_lane`].
    ///
    /// [`Request::enter_lane`]: crate::request::Request::enter_lane
    #[inline(always)]
    pub(crate) fn link(&mut self, request: RequestId, wire_len: u64, requests: &mut Requests) {
        if self.tail == RequestId::NONE {
            self.head = request;
        } else {
            requests[self.tail].next_in_lane = request;
        }
        self.tail = request;
        if self.first_unsent == RequestId::NONE {
            self.first_unsent = request;
        }
        self.count_unsent(wire_len);
    }

    #[inline(always)]
    pub(crate) fn count_unsent(&mut self, wire_len: u64) {
        self.unsent += 1;
        self.uncounted += 1;
        self.uncounted_size += wire_len;
    }

    /// The head is answered: the request behind it is the head.
    #[inline]
    pub(crate) fn pop_head(&mut self, next: RequestId, wire_len: u64) {
        self.head = next;
        if next == RequestId::NONE {
            self.tail = RequestId::NONE;
        }
        self.in_flight -= 1;
        self.in_flight_size -= wire_len;
        self.answered += 1;
    }

    /// Whether the oldest batch is answered and not forgotten yet.
    #[inline]
    pub(crate) fn is_batch_answered(&self) -> bool {
        self.batches.front().is_some_and(|batch| batch.end == self.answered)
    }

    /// Bytes that wait to be written.
    #[inline(always)]
    pub(crate) fn unsent_size(&self) -> u64 {
        self.output.len() + self.coalesced.waiting() as u64
    }

    /// Whether a request of this size is more than may wait here.
    #[inline]
    pub(crate) fn is_full(&self, limits: &Limits, size: usize) -> bool {
        let queued = self.unsent_size();
        self.in_flight + self.unsent >= limits.server_queue_max
            || (queued > 0 && queued + size as u64 > limits.server_queue_size_max)
    }

    /// Whether so many more requests may wait here.
    pub(crate) fn has_room_for(&self, limits: &Limits, requests: usize) -> bool {
        let waiting = u64::from(self.in_flight) + u64::from(self.unsent);
        waiting + requests as u64 <= u64::from(limits.server_queue_max)
    }

    /// Lists it among the connections with something to send, if it can be written to.
    #[inline(always)]
    pub(crate) fn mark(&mut self, dirty: &mut Fifo<ConnId>) {
        if !self.dirty && matches!(self.link, Link::Handshaking { .. } | Link::Ready { .. }) {
            self.dirty = true;
            dirty.push(self.conn);
        }
    }

    /// Makes sure that a timer fires at that time at the latest.
    #[inline(always)]
    pub(crate) fn arm(&mut self, index: LaneId, at: Time, timers: &mut Timers) {
        if at < self.armed {
            self.armed = at;
            timers.arm(at, Timer::Lane(index));
        }
    }

    #[inline]
    pub(crate) fn has_connection(&self) -> bool {
        matches!(self.link, Link::Connecting { .. } | Link::Handshaking { .. } | Link::Ready { .. })
    }

    /// Whether requests may be sent again that are refused on it: not what belongs together.
    pub(crate) fn keeps_sent(&self) -> bool {
        !self.is_session && !self.is_feed
    }

    /// How many of the first bytes of the output are worth keeping only to be shown.
    #[inline]
    pub(crate) fn shown_max(&self, bytes: u64) -> u64 {
        if bytes <= u64::from(self.unsent) * SMALL { SENT_MAX } else { SHOWN_MAX }
    }

    /// The first request of the output is about to leave it, or part of it is, and is too large to be kept. If nothing
    /// stands before it, its start is.
    #[cold]
    pub(crate) fn keep_start(&mut self, bytes: u64) {
        if self.in_flight > 0 || self.in_flight_size > 0 {
            return;
        }
        let start = self.large_start.get_or_insert_default();
        start.ordinal = self.answered;
        start.text.clear();
        self.output.copy_front(START_MAX.min(bytes as usize), &mut start.text);
    }

    /// The start of the first request in flight, if it is kept apart from the rest.
    pub(crate) fn start_of_head(&self) -> Option<&[u8]> {
        let start = self.large_start.as_deref()?;
        (start.ordinal == self.answered).then_some(&start.text)
    }

    /// The first bytes of the output leave it, and are kept, if they are no more than `most`.
    pub(crate) fn keep_sent(&mut self, bytes: u64, most: u64, bufs: &mut BufPool) {
        self.trim_sent(bufs);
        if self.sent.len() + bytes > SENT_MAX || bytes > most {
            self.sent.clear(bufs);
        }
        if bytes > most {
            self.keep_start(bytes);
            self.output.advance(bytes, bufs);
        } else if bytes == self.output.len() {
            self.output.move_to(&mut self.sent, bufs);
        } else {
            self.output.copy_front_to(bytes as usize, &mut self.sent, bufs);
            self.output.advance(bytes, bufs);
        }
    }

    /// Forgets what is answered of what was kept: the rest is the end of what is in flight.
    #[inline]
    pub(crate) fn trim_sent(&mut self, bufs: &mut BufPool) {
        if self.sent.len() > self.in_flight_size {
            self.sent.advance(self.sent.len() - self.in_flight_size, bufs);
        }
    }

    /// Whether the bytes of the first request in flight are kept.
    pub(crate) fn keeps_head(&mut self, bufs: &mut BufPool) -> bool {
        self.trim_sent(bufs);
        self.in_flight > 0 && self.sent.len() == self.in_flight_size
    }

    /// Takes back the part of a request that is written, if that is kept and nothing else is in flight.
    pub(crate) fn take_partial_back(&mut self, bufs: &mut BufPool) {
        self.trim_sent(bufs);
        let is_kept = self.in_flight == 0 && self.sent.len() == self.partial;
        if self.partial == 0 || !is_kept || self.upload != ClientId::NONE {
            return;
        }
        let mut output = std::mem::take(&mut self.sent);
        output.append(std::mem::take(&mut self.output), bufs);
        self.output = output;
        (self.partial, self.in_flight_size) = (0, 0);
    }

    /// What the driver may write now.
    #[inline]
    pub(crate) fn writable(&self) -> Option<&Output> {
        match self.link {
            Link::Ready { .. } if self.refused.is_some() => None,
            Link::Ready { .. } => Some(&self.output),
            Link::Handshaking { .. } => Some(&self.handshake.output),
            Link::Idle | Link::Connecting { .. } | Link::Backoff { .. } => None,
        }
    }
}
