//! One request on its way.

pub(crate) mod replay;
pub(crate) mod seal;
pub(crate) mod slab;

use std::fmt::Debug;

use cashew_config::snapshot::Reads;
use cashew_protocol::Span;
use cashew_protocol::memcached::{Expect, Reticence};

use crate::base::buffer::BufPool;
use crate::base::cache_mark::CacheMark;
use crate::base::id::{BackendId, ClientId, ConnId, FlowId, HedgeId, LaneId, RequestId, ServerId};
use crate::base::mark::Mark;
use crate::base::time::Time;
use crate::request::seal::Seal;

/// How often a read that is not sent may go to another server.
const MOVES_MAX: u8 = 3;

/// A request of a client, one per-server part of it, or a question of the gateway's own.
///
/// It stands in up to two queues at once, linked through its own fields: that of its client, in
/// the order of arrival, and that of a lane, in the order of sending. Its slot is free again when
/// it stands in neither.
pub(crate) struct Request {
    pub(crate) backend: BackendId,
    /// The client that waits for the reply, or [`ClientId::NONE`]: it has gone, or there never was one.
    pub(crate) client: ClientId,
    pub(crate) next_in_client: RequestId,
    pub(crate) next_in_lane: RequestId,
    pub(crate) role: Role,
    /// The slot is taken: see [`crate::request::slab::Requests`].
    pub(crate) is_used: bool,
    pub(crate) in_lane: bool,
    /// The reply is complete: in `reply`, or already with the client.
    pub(crate) done: bool,
    /// Part of the reply is already in the client's output, and all that follows goes there too.
    pub(crate) streaming: bool,
    /// memcached's noreply, or CLIENT REPLY: the reply is for nobody.
    pub(crate) silent: bool,
    /// What to say of it if its server fails is noted: see [`crate::memcached::Notes`].
    pub(crate) is_noted: bool,
    /// Uniques of its server come in the reply in text and get a tag.
    pub(crate) is_tagged: bool,
    /// It stands in its lane right behind an equal read, has no bytes there, and gets the same reply: see
    /// [`crate::upstream::equal_reads`].
    pub(crate) follows: bool,
    /// A node of a cluster has sent it elsewhere, and it stands in a queue of [`crate::redis::sent_on`].
    pub(crate) is_sent_on: bool,
    /// How often it may still go to another server that has the same keys while it is not sent: it is
    /// a read.
    pub(crate) moves_left: u8,
    /// It was sent again since its server failed.
    pub(crate) is_retried: bool,
    /// How often a node of a cluster has sent it elsewhere: see [`crate::redis::redirects`].
    pub(crate) hops: u8,
    /// Of a request whose client has gone: by which its requests are known, see [`crate::redis::sent_on`].
    pub(crate) asker: u32,
    /// Where it may go, by whose policy, if that is not the pool's: see [`Request::may_move`].
    pub(crate) reads: Option<Reads>,
    pub(crate) expect: Expect,
    /// Only where `expect` is of the binary protocol, or of a reply that is sifted.
    pub(crate) asked: Asked,
    /// Only of Redis' fragments, and on connections for sessions.
    pub(crate) due: Due,
    /// When the request was complete.
    pub(crate) started: Time,
    /// Its bytes in the lane's output.
    pub(crate) wire_len: u64,
    /// What its reply means to what is kept of replies, if anything: see [`crate::engine::cache`].
    pub(crate) cache_mark: CacheMark,
    /// Bytes that have arrived of the reply so far.
    pub(crate) arrived: u64,
    /// Of its key, when there is one and the reply may be large.
    pub(crate) mark: Mark,
    /// What has arrived of the reply and is not with the client yet.
    pub(crate) reply: Vec<u8>,
}

#[derive(Debug)]
pub(crate) enum Role {
    /// Goes to one server as it is, or was answered here.
    Single,
    /// Was split; its fragments are linked by [`Role::Fragment`]'s `next`.
    Parent {
        fragments: RequestId,
        pending: u32,
        merge: Merge,
    },
    Fragment {
        parent: RequestId,
        next: RequestId,
    },
    /// A flow sees the reply before the client does, or has sent fragments of its own in the
    /// request's place: see [`crate::exchange::flow`].
    Flow {
        flow: FlowId,
        attempts: RequestId,
        pending: u32,
    },
    /// Asks an ejected server whether it is well.
    Probe {
        server: ServerId,
    },
    /// Nobody has asked for it but the gateway.
    Own(Own),
}

/// What the gateway says on a lane for its own purposes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    /// Whatever the reply is.
    Whatever,
    /// A command of a transaction that is sent as a whole: see [`crate::redis::cluster`].
    Queued { lane: LaneId },
    /// What follows is good for nothing if it is refused.
    Demand { lane: LaneId },
    /// CLIENT ID.
    PeerId { lane: LaneId },
    /// CLIENT UNBLOCK, for that client's call.
    Unblock { client: ConnId },
    /// ECHO behind a request: see [`crate::request::seal`].
    Seal(Seal),
    /// A copy is to forget a key: see [`crate::memcached::Invalidations`].
    Invalidation { number: u32, copy: u32 },
    /// EXISTS with the keys of a script of that asker's and slot's, perhaps behind ASKING: see
    /// [`crate::redis::redirects`].
    Together { asker: u32, slot: u16, lane: LaneId, asks: bool },
    /// A read in whose place it stands: see [`crate::upstream::hedge`].
    Twin { hedge: HedgeId, of: RequestId },
}

/// How the replies of fragments become one. An error of any fragment is the answer of all.
#[derive(Debug)]
pub(crate) enum Merge {
    /// Add the integers.
    Sum,
    /// Every reply says the same: pass one on.
    Same,
    /// Arrays whose elements are dealt back to the positions of the keys.
    Elements(Box<Gather>),
    /// memcached's VALUE blocks, in the order of the keys, and one END.
    Values(Box<Gather>),
    /// By a rule of the feature that asked all servers, errors included.
    Whole(Box<dyn MergeReplies>),
}

/// Makes one reply of those of all servers.
pub(crate) trait MergeReplies: Debug {
    /// `asked` is how the reply has to look. `None` if one of them is none.
    fn merge(&self, replies: &[&[u8]], asked: Asked, out: &mut Vec<u8>) -> Option<()>;
}

/// How the reply to a request has to look, or when it is left out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// What a binary reply names.
    pub(crate) opcode: u8,
    pub(crate) opaque: [u8; 4],
    /// What is left out of a reply that is sifted.
    pub(crate) quiet: Reticence,
    /// Its reply was sifted: what has begun is wanted, and what takes its place may not be.
    pub(crate) is_quiet_filtered: bool,
}

/// What the reply of Redis must be: to a fragment, for the replies of all to become one, and on a
/// connection that clients have one after the other. An error is as good. A reply that is something
/// else answers another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Anything,
    Integer,
    Status,
    Array(u32),
    /// The line, of which so many bytes have come.
    Said(Said, u8),
    /// Elements, or none: what EXEC is answered, and a call that waits for elements with their names.
    Elements,
    /// One element, or none: what a call is answered that waits to move one.
    Element,
}

/// A reply that is always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Ok,
    Queued,
    NoElement,
}

impl Said {
    const fn line(self) -> &'static [u8] {
        match self {
            Self::Ok => b"+OK\r\n",
            Self::Queued => b"+QUEUED\r\n",
            Self::NoElement => b"*-1\r\n",
        }
    }
}

impl Due {
    /// So much of a reply tells.
    pub(crate) const START_MAX: usize = 16;

    pub(crate) const OK: Self = Self::Said(Said::Ok, 0);
    pub(crate) const QUEUED: Self = Self::Said(Said::Queued, 0);

    /// What a command is answered that may wait.
    pub(crate) fn of_wait(command: &str) -> Self {
        match command {
            "blpop" | "brpop" | "blmpop" | "bzpopmin" | "bzpopmax" | "bzmpop" | "xread"
            | "xreadgroup" | "waitaof" => Self::Elements,
            "blmove" | "brpoplpush" => Self::Element,
            "wait" => Self::Integer,
            _ => Self::Anything,
        }
    }

    pub(crate) fn of(merge: &Merge, keys: u32) -> Self {
        match merge {
            Merge::Sum => Self::Integer,
            Merge::Same => Self::Status,
            Merge::Elements(_) => Self::Array(keys),
            _ => Self::Anything,
        }
    }

    /// Whether a reply that begins so is it; `None` while that cannot be said.
    #[inline]
    pub(crate) fn is_met_by(self, start: &[u8]) -> Option<bool> {
        if self == Self::Anything {
            return Some(true);
        }
        let kind = *start.first()?;
        match self {
            _ if matches!(kind, b'-' | b'!') => Some(true),
            Self::Anything => Some(true),
            Self::Integer => Some(kind == b':'),
            Self::Status => Some(kind == b'+'),
            Self::Elements => Some(matches!(kind, b'*' | b'%' | b'_')),
            Self::Element | Self::Said(..) => unreachable!("they are met bit by bit"),
            Self::Array(_) if kind != b'*' => Some(false),
            Self::Array(count) => is_length(&start[1..], count),
        }
    }
}

impl Due {
    /// Whether a reply can be it that begins, or goes on, with `bytes`, of which nothing need be kept.
    pub(crate) fn goes_on(&mut self, bytes: &[u8]) -> bool {
        let Some(&first) = bytes.first() else { return true };
        let is_error = matches!(first, b'-' | b'!');
        *self = match *self {
            Self::Anything => return true,
            Self::Said(_, 0) if is_error => Self::Anything,
            Self::Said(said, at) => {
                let rest = &said.line()[usize::from(at)..];
                let len = rest.len().min(bytes.len());
                if rest[..len] != bytes[..len] {
                    return false;
                }
                match len == rest.len() {
                    true => Self::Anything,
                    false => Self::Said(said, at + len as u8),
                }
            }
            Self::Element if is_error || matches!(first, b'$' | b'_') => Self::Anything,
            Self::Element => {
                *self = Self::Said(Said::NoElement, 0);
                return self.goes_on(bytes);
            }
            due => match due.is_met_by(bytes) {
                Some(true) => Self::Anything,
                is_met => return is_met.is_none(),
            },
        };
        true
    }

    /// In the words of the log.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Anything => "a reply of RESP",
            Self::Integer => "a number, or an error",
            Self::Status => "a line of success, or an error",
            Self::Array(_) => "an array with an element for each key, or an error",
            Self::Said(Said::Ok, _) => "OK, or an error",
            Self::Said(Said::Queued, _) => "QUEUED, or an error",
            Self::Elements => "an array, null or an error",
            Self::Said(Said::NoElement, _) | Self::Element => "a string, null or an error",
        }
    }
}

/// Whether a header's number, which `digits` begin with, is this one; `None` while that cannot be said.
#[inline]
fn is_length(digits: &[u8], count: u32) -> Option<bool> {
    let mut number = 0u32;
    for (at, &byte) in digits.iter().enumerate().take(Due::START_MAX - 2) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let is_number = at > 0 && byte == b'\r';
            return match digits.get(at + 1) {
                _ if !is_number || number != count => Some(false),
                Some(&next) => Some(next == b'\n'),
                None => None,
            };
        }
        number = number.saturating_mul(10).saturating_add(digit.into());
    }
    if digits.len() + 2 > Due::START_MAX { Some(false) } else { None }
}

/// Which fragment answers which key.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// By position in the request: the ordinal of the fragment that carries the key.
    pub(crate) owners: Vec<u32>,
    /// Keys, and what stands between them, for replies that omit missing ones.
    pub(crate) text: Vec<u8>,
    pub(crate) keys: Vec<Span>,
    /// The reply goes on: no END.
    pub(crate) is_part: bool,
    /// How many of the keys have been dealt with before all replies were there.
    pub(crate) dealt: u32,
    /// By fragment: where what is not dealt out begins in its reply; empty before the first is.
    pub(crate) places: Vec<usize>,
}

impl Gather {
    /// Bytes allocated.
    pub(crate) fn size(&self) -> usize {
        let owners = self.owners.capacity() * size_of::<u32>();
        let keys = self.keys.capacity() * size_of::<Span>();
        let places = self.places.capacity() * size_of::<usize>();
        size_of::<Self>() + owners + self.text.capacity() + keys + places
    }

    pub(crate) fn clear(&mut self) {
        self.owners.clear();
        self.text.clear();
        self.keys.clear();
        self.is_part = false;
        self.dealt = 0;
        self.places.clear();
    }
}

impl Request {
    /// What was kept of its reply for its client.
    #[inline]
    pub(crate) fn kept_reply(&self) -> &[u8] {
        if self.silent { &[] } else { &self.reply }
    }

    /// Whether this is what is left to be written of a request that was answered already.
    pub(crate) fn is_remnant(&self) -> bool {
        self.done && self.in_lane
    }

    /// It is a read that other servers may answer, too, by a policy that may be another than the pool's.
    #[inline]
    pub(crate) fn may_move(&mut self, own: Option<Reads>) {
        self.moves_left = MOVES_MAX;
        self.reads = own;
    }

    /// Whether other servers may answer it, too, and for whom it is.
    pub(crate) fn is_movable_read(&self) -> bool {
        self.moves_left > 0
    }

    /// Whether something of its reply has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.arrived > 0 || !self.reply.is_empty()
    }

    /// A free slot.
    pub(crate) fn free() -> Self {
        Self {
            backend: BackendId::new(0),
            client: ClientId::NONE,
            next_in_client: RequestId::NONE,
            next_in_lane: RequestId::NONE,
            role: Role::Single,
            is_used: false,
            in_lane: false,
            done: false,
            streaming: false,
            silent: false,
            is_noted: false,
            is_tagged: false,
            follows: false,
            is_sent_on: false,
            moves_left: 0,
            is_retried: false,
            hops: 0,
            asker: 0,
            reads: None,
            expect: Expect::Line,
            asked: Asked::default(),
            due: Due::Anything,
            started: Time::ZERO,
            wire_len: 0,
            cache_mark: CacheMark::NONE,
            arrived: 0,
            mark: Mark::default(),
            reply: Vec::new(),
        }
    }

    /// It stands in a lane's queue, with so many bytes in the lane's output.
    #[inline(always)]
    pub(crate) fn enter_lane(&mut self, wire_len: u64) {
        self.wire_len = wire_len;
        self.in_lane = true;
    }

    /// Keeps bytes of the reply.
    #[inline]
    pub(crate) fn hold(&mut self, bytes: &[u8], bufs: &mut BufPool) {
        bufs.extend(&mut self.reply, bytes);
    }

    /// Makes a request of a free slot, where the reply is empty and the role single.
    #[inline]
    pub(crate) fn begin(&mut self, backend: BackendId, client: ClientId, started: Time) {
        self.backend = backend;
        self.client = client;
        self.next_in_client = RequestId::NONE;
        self.next_in_lane = RequestId::NONE;
        self.is_used = true;
        self.in_lane = false;
        self.done = false;
        self.streaming = false;
        self.silent = false;
        self.is_noted = false;
        self.is_tagged = false;
        self.follows = false;
        self.moves_left = 0;
        self.is_retried = false;
        self.hops = 0;
        self.asker = 0;
        self.expect = Expect::Line;
        self.due = Due::Anything;
        self.started = started;
        self.wire_len = 0;
        self.cache_mark = CacheMark::NONE;
        self.arrived = 0;
        self.mark = Mark::default();
    }
}
