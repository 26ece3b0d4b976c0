//! Gets of one key that leave together, as one get of all their keys.
//!
//! memcached writes to its connection after each `get`, however many have come by one read, and
//! writes once for a `get` of many keys. So of the gets that wait for one write of a lane each
//! takes its place in the first, `get a b c`, and the reply is dealt out by the keys that it names:
//! a server spends a fraction of its system calls, and so does the gateway on reading.
//!
//! A get may pass by what others have asked, as all of that is on its way at once, but not by what
//! its own client has.

use cashew_protocol::memcached::{self, Expect, REPLY_LINE_SIZE_MAX};

use crate::buffer::BufPool;
use crate::engine::{Closed, Engine};
use crate::failure::Failure;
use crate::lane::{Lane, Scan};
use crate::requests::Requests;
use crate::slab::NONE;

/// Longest get that is made of several. Before 1.4.8 memcached closed on lines of more than 2,048
/// bytes.
const LINE_SIZE_MAX: usize = 2000;
/// A get is not put in front of more bytes than these, which have to be moved.
const BEHIND_MAX: u64 = 4096;
/// Keys that are answered are forgotten when they take this much.
const ANSWERED_MAX: usize = 4096;
/// So much room for keys is kept while there are none.
const ROOM_KEPT_MAX: usize = 4096;
const VERB: &[u8] = b"get ";
const LINE_END: &[u8] = b"\r\n";
/// What ends a reply to a get.
const END: &[u8] = b"END\r\n";

/// A lane's gets of several keys.
#[derive(Default)]
pub(crate) struct Joined {
    /// Keys of those that are joined, in the order of the lane, each behind its length.
    keys: Vec<u8>,
    /// Where those begin that are not answered.
    answered: usize,
    /// The last of the gets that may take another key, or nothing.
    open: Option<Open>,
    /// The line of the reply that is to be looked at next, as far as it has come, when it has not
    /// come whole at once.
    line: Vec<u8>,
    /// What comes is the value of the lane's head.
    is_in_block: bool,
}

/// The reply to one of several that are joined.
pub(crate) struct Part<'b> {
    pub(crate) block: &'b [u8],
    /// What stands behind it.
    pub(crate) last: &'b [u8],
    /// What is not for it.
    pub(crate) rest: &'b [u8],
}

/// A get that waits to be written, all of it.
#[derive(Clone, Copy)]
struct Open {
    /// The request of its last key.
    last: u32,
    /// Where it ends in the lane's output.
    end: u64,
    /// Bytes of its line.
    size: usize,
}

impl Joined {
    /// The first that waits to be written is no more what it was.
    #[inline]
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// The key of the lane's head, which is joined.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        match self.keys[self.answered..].split_first() {
            Some((&len, rest)) => &rest[..usize::from(len)],
            None => &[],
        }
    }

    #[inline]
    fn add_key(&mut self, key: &[u8], bufs: &mut BufPool) {
        self.keys.push(key.len() as u8);
        self.keys.extend_from_slice(key);
        bufs.charge(1 + key.len());
    }

    /// The lane's head, which is joined, has left it.
    #[inline]
    pub(crate) fn pop_key(&mut self, bufs: &mut BufPool) {
        let len = 1 + self.key().len();
        bufs.discharge(len);
        self.answered += len;
        if self.answered == self.keys.len() {
            self.keys.clear();
            self.answered = 0;
            if self.keys.capacity() > ROOM_KEPT_MAX {
                self.keys = Vec::new();
            }
        } else if self.answered > ANSWERED_MAX {
            self.keys.drain(..self.answered);
            self.answered = 0;
        }
    }

    /// What the bytes at the start of the buffer are to the lane's head, if they tell it.
    #[inline]
    pub(crate) fn plain_part<'b>(&self, expect: Expect, buf: &'b [u8]) -> Option<Part<'b>> {
        if !self.line.is_empty() || self.is_in_block {
            return None;
        }
        let (block, rest) = memcached::plain_block(self.key(), buf)?;
        if expect == Expect::Joined {
            return Some(Part { block, last: END, rest });
        }
        let (last, rest) = rest.split_at_checked(END.len())?;
        (last == END).then_some(Part { block, last, rest })
    }

    /// What has come in part has no end: the connection is gone.
    pub(crate) fn reset(&mut self) {
        self.open = None;
        self.line = Vec::new();
        self.is_in_block = false;
    }
}

impl Lane {
    /// The request that was appended last is `get` of one key, to which others may be joined.
    #[inline]
    pub(crate) fn open_get(&mut self, request: u32, size: usize) {
        self.joined.open = Some(Open { last: request, end: self.output.len(), size });
    }

    /// Makes the request a part of the get that waits to be written, if there is one. `before`
    /// is what its client has asked before it and is not answered yet, or [`NONE`].
    #[inline]
    pub(crate) fn join_get(
        &mut self,
        request: u32,
        key: &[u8],
        before: u32,
        requests: &mut Requests,
        bufs: &mut BufPool,
    ) -> bool {
        let Some(open) = self.joined.open else { return false };
        let behind = self.output.len() - open.end;
        let is_possible = ([NONE, open.last].contains(&before) || open.last == self.tail)
            && behind <= BEHIND_MAX
            && open.size + 1 + key.len() <= LINE_SIZE_MAX;
        if !is_possible {
            return false;
        }
        let behind = behind as usize + LINE_END.len();
        let last = &mut requests[open.last];
        if last.expect == Expect::Values {
            let len = last.wire_len as usize - VERB.len() - LINE_END.len();
            let Some(first) = self.output.before(behind, len) else { return false };
            self.joined.add_key(first, bufs);
            last.expect = Expect::JoinedLast;
        }
        if !self.output.insert_word(behind, key, bufs) {
            return false;
        }
        last.expect = Expect::Joined;
        let next = std::mem::replace(&mut last.next_in_lane, request);
        self.joined.add_key(key, bufs);
        let wire_len = 1 + key.len();
        let slot = &mut requests[request];
        slot.expect = Expect::JoinedLast;
        slot.wire_len = wire_len as u64;
        slot.in_lane = true;
        slot.next_in_lane = next;
        if next == NONE {
            self.tail = request;
        }
        self.unsent += 1;
        self.uncounted += 1;
        self.uncounted_size += wire_len as u64;
        let end = open.end + wire_len as u64;
        self.joined.open = Some(Open { last: request, end, size: open.size + wire_len });
        true
    }
}

/// What a line of a reply means for the request whose turn it is.
enum Meaning {
    /// Its value follows.
    Value,
    /// Its key is not there. What the line says is for the next request.
    Miss,
    /// It is the last line of the reply.
    Last,
    /// The server has broken off: it is so for the other keys, too.
    Error,
    Nonsense,
}

impl Engine {
    /// Takes bytes of the reply to a get of several keys; returns what is left of them.
    pub(crate) fn joined_received<'b>(&mut self, index: u32, bytes: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index as usize];
        if lane.joined.is_in_block {
            return self.block_received(index, bytes);
        }
        let mut kept = std::mem::take(&mut lane.joined.line);
        let room = REPLY_LINE_SIZE_MAX - kept.len();
        let Some(end) = bytes.iter().take(room).position(|&byte| byte == b'\n') else {
            if bytes.len() >= room {
                self.lane_down(index, Failure::BadReply, Closed::ByUs);
                return &[];
            }
            kept.extend_from_slice(bytes);
            lane.joined.line = kept;
            return &[];
        };
        let (line, rest) = bytes.split_at(end + 1);
        let line = if kept.is_empty() {
            line
        } else {
            kept.extend_from_slice(line);
            &kept
        };
        // Of what is not wholly written the server cannot know what it is asked for.
        while self.lanes[index as usize].in_flight > 0 {
            match self.meaning(index, line) {
                Meaning::Value => {
                    let lane = &mut self.lanes[index as usize];
                    let request = lane.head;
                    lane.joined.is_in_block = true;
                    let Scan::Partial = lane.scanner.scan(Expect::Joined, line) else { break };
                    self.deliver_part(request, line);
                    return rest;
                }
                Meaning::Miss => self.part_answered(index, END),
                Meaning::Error => self.part_answered(index, line),
                Meaning::Last => {
                    self.part_answered(index, line);
                    return rest;
                }
                Meaning::Nonsense => break,
            }
        }
        self.lane_down(index, Failure::BadReply, Closed::ByUs);
        &[]
    }

    fn meaning(&self, index: u32, line: &[u8]) -> Meaning {
        let lane = &self.lanes[index as usize];
        let request = &self.requests[lane.head];
        let is_last = request.expect == Expect::JoinedLast;
        if !is_last && request.expect != Expect::Joined {
            return Meaning::Nonsense;
        }
        match memcached::value_key(line) {
            Some(key) if key == lane.joined.key() && request.arrived == 0 => Meaning::Value,
            Some(_) if is_last => Meaning::Nonsense,
            Some(_) => Meaning::Miss,
            None if line == END && is_last => Meaning::Last,
            None if line == END => Meaning::Miss,
            None if !memcached::is_error(line) => Meaning::Nonsense,
            None if is_last => Meaning::Last,
            None => Meaning::Error,
        }
    }

    fn block_received<'b>(&mut self, index: u32, bytes: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index as usize];
        let request = lane.head;
        match lane.scanner.scan(Expect::Joined, bytes) {
            Scan::Complete(len) => {
                lane.joined.is_in_block = false;
                self.deliver_part(request, &bytes[..len]);
                if self.requests[request].expect == Expect::Joined {
                    self.part_answered(index, END);
                }
                &bytes[len..]
            }
            Scan::Partial => {
                self.deliver_part(request, bytes);
                &[]
            }
            Scan::Invalid => {
                self.lane_down(index, Failure::BadReply, Closed::ByUs);
                &[]
            }
        }
    }

    /// The head of the lane's queue, which is joined, is answered: `last` is the end of its reply.
    fn part_answered(&mut self, index: u32, last: &[u8]) {
        let lane = &mut self.lanes[index as usize];
        let request = lane.head;
        lane.joined.pop_key(&mut self.bufs);
        self.pop_answered(index);
        self.deliver(request, last);
    }
}
