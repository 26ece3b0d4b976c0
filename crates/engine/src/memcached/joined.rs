//! Gets of one key that leave together, as one get of all their keys.
//!
//! memcached writes to its connection after each `get`, however many have come by one read, and
//! writes once for a `get` of many keys. So of the gets that wait for one write of a lane each
//! takes its place in one, `get a b c`, and the reply is dealt out by the keys that it names:
//! a server spends a fraction of its system calls, and so does the gateway on reading.
//!
//! That get stands at the end of the lane's queue, and is put behind the lane's output when it can
//! take no more: when the output is about to be written, or something comes that has to stand behind
//! it. What other clients ask may pass by, as all of it is on its way at once, but nothing that a
//! client asks behind a get of its own.

use cashew_protocol::memcached::{self, Expect, REPLY_LINE_SIZE_MAX};

use crate::buffer::BufPool;
use crate::engine::{Closed, Engine};
use crate::failure::Failure;
use crate::lane::{Lane, Scan};
use crate::request::Request;
use crate::requests::Requests;

/// Longest get that is made of several. Before 1.4.8 memcached closed on lines of more than 2,048
/// bytes.
const LINE_SIZE_MAX: usize = 2000;
/// Keys that are answered are forgotten when they take this much.
const ANSWERED_MAX: usize = 4096;
/// So much room for keys is kept while there are none.
const ROOM_KEPT_MAX: usize = 4096;
const VERB: &[u8] = b"get";
const LINE_END: &[u8] = b"\r\n";
/// What of a line is counted to the last of its gets.
const FRAME_LEN: usize = VERB.len() + LINE_END.len();
/// What ends a reply to a get.
pub(crate) const END: &[u8; 5] = b"END\r\n";

/// A lane's gets of several keys.
#[derive(Default)]
pub(crate) struct Joined {
    /// Keys of those that are joined and in the output, or sent, in the order of the lane, each
    /// behind a space.
    keys: Vec<u8>,
    /// Where those begin that are not answered.
    answered: usize,
    open: Open,
    /// The line of the reply that is to be looked at next, as far as it has come, when it has not
    /// come whole at once.
    line: Vec<u8>,
    /// What comes is the value of the lane's head.
    is_in_block: bool,
}

/// The reply to one of several that are joined.
pub(crate) struct Part<'b> {
    pub(crate) reply: &'b [u8],
    /// It goes without its end, [`END`].
    pub(crate) is_open: bool,
    /// What is not for it.
    pub(crate) rest: &'b [u8],
}

/// The get that takes more keys, or nothing.
#[derive(Default)]
struct Open {
    /// Its line without the end, not in the lane's output yet. From a pool; empty if there is none.
    text: Vec<u8>,
    /// The request of its first key: from there on the lane's queue has its requests and no others.
    first: u32,
    /// The one in front of `first`, if there is one.
    before: u32,
    /// Whose they are: [`mark_of`] them.
    clients: u64,
}

/// One bit, which several clients may have.
#[inline(always)]
fn mark_of(client: u32) -> u64 {
    1 << (client % u64::BITS)
}

impl Joined {
    /// Bytes that wait outside of the lane's output.
    #[inline(always)]
    pub(crate) fn waiting(&self) -> usize {
        self.open.text.len()
    }

    /// The key of the lane's head, which is joined.
    #[inline(always)]
    pub(crate) fn key(&self, head: &Request) -> &[u8] {
        &self.keys[self.answered + 1..self.answered + word_len(head)]
    }

    /// The lane's head, which is joined, has left it.
    #[inline(always)]
    pub(crate) fn pop_key(&mut self, head: &Request, bufs: &mut BufPool) {
        self.answered += word_len(head);
        if self.answered == self.keys.len() || self.answered > ANSWERED_MAX {
            self.forget_answered(bufs);
        }
    }

    #[inline(never)]
    fn forget_answered(&mut self, bufs: &mut BufPool) {
        bufs.discharge(self.answered);
        self.keys.drain(..self.answered);
        self.answered = 0;
        if self.keys.is_empty() && self.keys.capacity() > ROOM_KEPT_MAX {
            self.keys = Vec::new();
        }
    }

    /// What the bytes at the start of the buffer are to the lane's head, if they tell it. Nothing of
    /// its reply has arrived, so that no block is begun.
    #[inline(always)]
    pub(crate) fn plain_part<'b>(&self, head: &Request, buf: &'b [u8]) -> Option<Part<'b>> {
        debug_assert!(!self.is_in_block);
        if !self.line.is_empty() {
            return None;
        }
        let (block, rest) = memcached::plain_block(self.key(head), buf)?;
        if head.expect == Expect::Joined {
            let is_hit = !block.is_empty();
            return Some(Part { reply: if is_hit { block } else { END }, is_open: is_hit, rest });
        }
        let rest = rest.strip_prefix(END)?;
        Some(Part { reply: &buf[..block.len() + END.len()], is_open: false, rest })
    }

    /// What has come in part has no end: the connection is gone.
    pub(crate) fn reset(&mut self) {
        self.line = Vec::new();
        self.is_in_block = false;
    }
}

/// Bytes of a joined get's key and the space in front.
#[inline(always)]
fn word_len(request: &Request) -> usize {
    let frame = if request.expect == Expect::JoinedLast { FRAME_LEN } else { 0 };
    request.wire_len as usize - frame
}

impl Lane {
    /// Puts `bytes`, a `get` of one key, at the end of the queue, in one with those that are there
    /// already.
    #[inline(always)]
    pub(crate) fn append_get(
        &mut self,
        request: u32,
        bytes: &[u8],
        client: u32,
        requests: &mut Requests,
        bufs: &mut BufPool,
    ) {
        let (text, _) = bytes.split_at(bytes.len() - LINE_END.len());
        let (_, word) = text.split_at(VERB.len());
        if self.joined.open.text.len() + word.len() + LINE_END.len() > LINE_SIZE_MAX {
            self.close_gets(bufs);
        }
        let open = &mut self.joined.open;
        let is_joined = !open.text.is_empty();
        let added = if is_joined {
            let last = &mut requests[self.tail];
            last.expect = Expect::Joined;
            last.wire_len -= FRAME_LEN as u64;
            word
        } else {
            open.text = bufs.take_for(LINE_SIZE_MAX);
            (open.first, open.before) = (request, self.tail);
            text
        };
        open.text.extend_from_slice(added);
        open.clients |= mark_of(client);
        self.append(request, bytes.len() as u64, requests);
        if is_joined {
            requests[request].expect = Expect::JoinedLast;
            self.uncounted_size -= FRAME_LEN as u64;
        }
    }

    /// As [`Lane::append`], but what is no get passes by gets that wait, if they are others'.
    #[inline(always)]
    pub(crate) fn append_beside_gets(
        &mut self,
        request: u32,
        wire_len: u64,
        client: u32,
        requests: &mut Requests,
        bufs: &mut BufPool,
    ) {
        let open = &mut self.joined.open;
        if open.clients & mark_of(client) != 0 {
            self.close_gets(bufs);
        } else if open.clients != 0 {
            let first = open.first;
            let before = std::mem::replace(&mut open.before, request);
            // Only what is the head can be answered.
            let in_front = match self.head == first {
                true => &mut self.head,
                false => &mut requests[before].next_in_lane,
            };
            *in_front = request;
            if self.first_unsent == first {
                self.first_unsent = request;
            }
            let slot = &mut requests[request];
            slot.wire_len = wire_len;
            slot.in_lane = true;
            slot.next_in_lane = first;
            self.count_unsent(wire_len);
            return;
        }
        self.append(request, wire_len, requests);
    }

    /// Puts the get that takes more keys into the output: from here on it does not.
    #[inline(always)]
    pub(crate) fn close_gets(&mut self, bufs: &mut BufPool) {
        if !self.joined.open.text.is_empty() {
            self.write_gets(bufs);
        }
    }

    #[inline(never)]
    fn write_gets(&mut self, bufs: &mut BufPool) {
        let open = &mut self.joined.open;
        let mut text = std::mem::take(&mut open.text);
        open.clients = 0;
        if open.first != self.tail {
            let keys = &text[VERB.len()..];
            self.joined.keys.extend_from_slice(keys);
            bufs.charge(keys.len());
        }
        text.extend_from_slice(LINE_END);
        self.output.push(&text, bufs);
        bufs.give(text);
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
            Some(key) if key == lane.joined.key(request) && request.arrived == 0 => Meaning::Value,
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
        lane.joined.pop_key(&self.requests[request], &mut self.bufs);
        self.pop_answered(index);
        self.deliver(request, last);
    }
}
