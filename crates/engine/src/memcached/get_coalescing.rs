//! Gets that leave together, as one get of all their keys.
//!
//! memcached writes to its connection after each `get`, however many have come by one read, and
//! writes once for a `get` of many keys. So of the gets that wait for one write of a lane each
//! takes its place in one, `get a b c`, and the reply is dealt out by the keys that it names:
//! a server spends a fraction of its system calls, and so does the gateway on reading. A get of several
//! keys on several servers takes part with each of them as if it were a get of its own, whose reply is
//! put together with the others' in the end.
//!
//! What waits so stands in up to [`STAGES_MAX`] stages at the end of the lane's queue, each a get
//! and behind it what clients of that get have asked since. Whoever asks stands as far in front as
//! the order of its own requests allows: other clients' are on their way at the same time, so that
//! they may be passed by. The stages are put behind the lane's output when that is about to be
//! written, when there are no more of them, or when something comes that has to stand behind all.
//!
//! A server names its hits in the order of the keys, but a proxy in its place may not. So whose key is
//! named comes to the front, and who is passed by has missed only when the reply ends.

use cashew_metrics::PoolCounter;
use cashew_protocol::memcached::{self, Expect, REPLY_LINE_SIZE_MAX};

use crate::base::buffer::BufPool;
use crate::base::id::{ClientId, LaneId, RequestId};
use crate::engine::Engine;
use crate::exchange::dispatch::Split;
use crate::request::slab::Requests;
use crate::request::{Gather, Merge, Request, Role};
use crate::upstream::bulk::Mark;
use crate::upstream::lane::{Lane, Link, Scan};

/// In a batch of pipelines of gets and sets by turns each turn takes one.
const STAGES_MAX: usize = 4;
/// Longest get that is made of several. Before 1.4.8 memcached closed on lines of more than 2,048
/// bytes.
const LINE_SIZE_MAX: usize = 2000;
/// A get of more keys has enough in common on each server to go by itself, as one request to each.
pub(super) const JOINED_KEYS_MAX: usize = 32;
/// Keys that are answered are forgotten when they take this much.
const ANSWERED_MAX: usize = 4096;
const JOINED_EXPECTED: &str = "VALUE with a key that was asked for, or END";
const VERB: &[u8] = b"get";
const LINE_END: &[u8] = b"\r\n";
/// What of a line is counted to the last of its gets.
const FRAME_LEN: usize = VERB.len() + LINE_END.len();
/// What ends a reply to a get.
pub(crate) const END: &[u8; 5] = b"END\r\n";

/// A lane's gets of several keys.
pub(crate) struct Coalesced {
    /// Keys of those that are joined and in the output, or sent, in the order of the lane, each
    /// behind a space. From a pool.
    keys: Vec<u8>,
    /// Where those begin that are not answered.
    answered: usize,
    /// Bytes of keys from there on that the reply has passed by, or that were brought to the front.
    passed: usize,
    /// The last request of these, while there are any.
    last_passed: RequestId,
    stages: Stages,
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

/// What waits behind the lane's output.
#[derive(Default)]
struct Stages {
    list: [Stage; STAGES_MAX],
    /// So many are in use, from the first on.
    count: usize,
    /// Bytes of all of them.
    len: usize,
    /// Whose requests there are: [`mark_of`] them.
    clients: u128,
    /// The first request: from there on the lane's queue has what is here, and nothing else.
    first: RequestId,
    /// The one in front of `first`, if there is one.
    before: RequestId,
}

/// A get that takes more keys, and what stands behind it.
#[derive(Default)]
struct Stage {
    /// The get's line without the end. From a pool.
    line: Vec<u8>,
    /// Whose keys it has.
    request_ctx: u128,
    /// The requests of its first and its last key.
    first: RequestId,
    last: RequestId,
    /// The last one of those that share the reply of `last`.
    last_sharing: RequestId,
    /// The bytes behind it. From a pool.
    rest: Vec<u8>,
    /// Whose they are.
    behind: u128,
    /// The last request of all.
    end: RequestId,
}

impl Default for Coalesced {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            answered: 0,
            passed: 0,
            last_passed: RequestId::NONE,
            stages: Stages::default(),
            line: Vec::new(),
            is_in_block: false,
        }
    }
}

/// One bit, which several clients may have.
#[inline(always)]
fn mark_of(client: ClientId) -> u128 {
    1 << (client.number() % u128::BITS)
}

impl Stages {
    /// The last stage with requests of a client, and whether some are behind its get.
    #[inline(always)]
    fn of(&self, client: u128) -> Option<(usize, bool)> {
        if self.clients & client == 0 {
            return None;
        }
        let used = self.list[..self.count].iter().enumerate().rev();
        used.into_iter().find_map(|(at, stage)| {
            let is_behind = stage.behind & client != 0;
            (is_behind || stage.request_ctx & client != 0).then_some((at, is_behind))
        })
    }
}

impl Coalesced {
    /// Whether a client has nothing behind the keys of that stage, if there is one, or else nothing in any.
    pub(crate) fn may_join(&self, client: ClientId, stage: Option<usize>) -> bool {
        match (self.stages.of(mark_of(client)), stage) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some((at, is_behind)), Some(stage)) => at + usize::from(is_behind) <= stage,
        }
    }

    /// A client shares what stands in that stage.
    pub(crate) fn note_joined(&mut self, client: ClientId, stage: usize) {
        let mark = mark_of(client);
        self.stages.clients |= mark;
        self.stages.list[stage].request_ctx |= mark;
    }

    /// Behind `before`, which is not written, comes what shares its reply.
    pub(crate) fn lengthen_group(&mut self, before: RequestId, request: RequestId) {
        let Stages { list, count, before: in_front, .. } = &mut self.stages;
        for stage in &mut list[..*count] {
            for end in [&mut stage.last_sharing, &mut stage.end] {
                if *end == before {
                    *end = request;
                }
            }
        }
        if *in_front == before {
            *in_front = request;
        }
    }

    /// Bytes that wait outside of the lane's output.
    #[inline(always)]
    pub(crate) fn waiting(&self) -> usize {
        self.stages.len
    }

    /// The key of the lane's head, which is joined.
    #[inline(always)]
    pub(crate) fn key(&self, head: &Request) -> &[u8] {
        &self.keys[self.answered + 1..self.answered + word_len(head)]
    }

    /// Writes a get for the key of a request that is joined. `skipped` are the bytes of keys from the first
    /// that is not answered to this one; it grows by this one's.
    pub(crate) fn write_get(&self, request: &Request, skipped: &mut usize, out: &mut Vec<u8>) {
        let start = self.answered + *skipped;
        let len = word_len(request);
        *skipped += len;
        for part in [VERB, &self.keys[start..start + len], LINE_END] {
            out.extend_from_slice(part);
        }
    }

    /// The lane's head, which is joined, has left it.
    #[inline(always)]
    pub(crate) fn pop_key(&mut self, head: &Request, bufs: &mut BufPool) {
        let len = word_len(head);
        self.answered += len;
        if self.passed > 0 {
            self.passed -= len;
            if self.passed == 0 {
                self.last_passed = RequestId::NONE;
            }
        }
        if self.answered == self.keys.len() || self.answered > ANSWERED_MAX {
            self.forget_answered(bufs);
        }
    }

    #[inline(never)]
    fn forget_answered(&mut self, bufs: &mut BufPool) {
        self.keys.drain(..self.answered);
        self.answered = 0;
        if self.keys.is_empty() {
            bufs.take_back(&mut self.keys);
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
        if head.expect == Expect::Coalesced {
            let is_hit = !block.is_empty();
            if !is_hit && !rest.starts_with(END) {
                // Another's value, which may come out of turn.
                return None;
            }
            return Some(Part { reply: if is_hit { block } else { END }, is_open: is_hit, rest });
        }
        let rest = rest.strip_prefix(END)?;
        Some(Part { reply: &buf[..block.len() + END.len()], is_open: false, rest })
    }

    /// What has come in part has no end: the connection is gone.
    pub(crate) fn reset(&mut self) {
        self.line = Vec::new();
        self.is_in_block = false;
        (self.passed, self.last_passed) = (0, RequestId::NONE);
    }
}

/// Bytes of a joined get's key and the space in front.
#[inline(always)]
fn word_len(request: &Request) -> usize {
    let frame = if request.expect == Expect::CoalescedLast { FRAME_LEN } else { 0 };
    request.wire_len as usize - frame
}

impl Lane {
    /// Puts a `get` of one key, whose `word` has the space in front of it, into the first get that
    /// waits and may have it. Returns the stage.
    #[inline(always)]
    pub(crate) fn append_get(
        &mut self,
        request: RequestId,
        word: &[u8],
        client: ClientId,
        requests: &mut Requests,
        bufs: &mut BufPool,
    ) -> usize {
        let wire_len = (FRAME_LEN + word.len()) as u64;
        let mark = mark_of(client);
        let stages = &mut self.coalesced.stages;
        let mut at = stages.of(mark).map_or(0, |(at, is_behind)| at + usize::from(is_behind));
        while at < stages.count
            && stages.list[at].line.len() + word.len() + LINE_END.len() > LINE_SIZE_MAX
        {
            at += 1;
        }
        if at == STAGES_MAX {
            self.close_gets(bufs);
            at = 0;
        }
        let before = self.tail;
        let stages = &mut self.coalesced.stages;
        stages.clients |= mark;
        let stage = &mut stages.list[at];
        stage.request_ctx |= mark;
        if at == stages.count {
            stage.line = bufs.take_for(LINE_SIZE_MAX);
            stage.line.extend_from_slice(VERB);
            stage.line.extend_from_slice(word);
            stage.first = request;
            stage.last = request;
            stage.last_sharing = request;
            stage.end = request;
            stages.count += 1;
            stages.len += VERB.len() + word.len();
            if at == 0 {
                (stages.first, stages.before) = (request, before);
            }
            self.append(request, wire_len, requests);
            return at;
        }
        stage.line.extend_from_slice(word);
        stages.len += word.len();
        let last = std::mem::replace(&mut stage.last, request);
        let before = std::mem::replace(&mut stage.last_sharing, request);
        if stage.end == before {
            stage.end = request;
        }
        requests[last].expect = Expect::Coalesced;
        requests[last].wire_len -= FRAME_LEN as u64;
        requests[request].expect = Expect::CoalescedLast;
        self.insert_behind(before, request, wire_len, requests);
        self.uncounted_size -= FRAME_LEN as u64;
        at
    }

    /// Puts `bytes`, which are no `get` of one key, in front of the gets that wait, or behind the
    /// last one that its client has something in.
    #[inline(always)]
    pub(crate) fn append_beside_gets(
        &mut self,
        request: RequestId,
        bytes: &[u8],
        client: ClientId,
        requests: &mut Requests,
        bufs: &mut BufPool,
    ) {
        let wire_len = bytes.len() as u64;
        let mark = mark_of(client);
        let stages = &mut self.coalesced.stages;
        if let Some((at, _)) = stages.of(mark) {
            stages.len += bytes.len();
            let stage = &mut stages.list[at];
            stage.behind |= mark;
            if stage.rest.capacity() == 0 {
                stage.rest = bufs.take_for(bytes.len());
            }
            bufs.reserve(&mut stage.rest, bytes.len());
            stage.rest.extend_from_slice(bytes);
            let end = std::mem::replace(&mut stage.end, request);
            self.insert_behind(end, request, wire_len, requests);
            return;
        }
        self.output.push(bytes, bufs);
        if stages.count == 0 {
            self.append(request, wire_len, requests);
            return;
        }
        let first = stages.first;
        let before = std::mem::replace(&mut stages.before, request);
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
    }

    /// Puts a request behind one that is not written.
    #[inline(always)]
    fn insert_behind(
        &mut self,
        before: RequestId,
        request: RequestId,
        wire_len: u64,
        requests: &mut Requests,
    ) {
        let next = std::mem::replace(&mut requests[before].next_in_lane, request);
        let slot = &mut requests[request];
        slot.wire_len = wire_len;
        slot.in_lane = true;
        slot.next_in_lane = next;
        if next == RequestId::NONE {
            self.tail = request;
        }
        self.count_unsent(wire_len);
    }

    /// Has the request with this key, of those in the get that is being answered, be the head: it is
    /// answered before others, and those with it that share its reply. Returns whether there is one. In a
    /// reply that keeps the order of the keys each is looked at once.
    fn bring_forward(&mut self, key: &[u8], requests: &mut Requests) -> bool {
        let Coalesced { answered, passed, last_passed, .. } = self.coalesced;
        let first = Joined { at: self.head, before: RequestId::NONE, start: answered };
        let found = if last_passed == RequestId::NONE {
            self.find_coalesced(key, first, requests)
        } else {
            let behind = match requests[last_passed].expect {
                Expect::Coalesced => {
                    let end = self.end_of_group(last_passed, requests);
                    requests[end].next_in_lane
                }
                _ => RequestId::NONE,
            };
            let behind = Joined { at: behind, before: last_passed, start: answered + passed };
            self.find_coalesced(key, behind, requests)
                .or_else(|| self.find_coalesced(key, first, requests))
        };
        let Some(Joined { at: request, before, start }) =
            found.filter(|found| found.before != RequestId::NONE)
        else {
            return false;
        };
        let len = word_len(&requests[request]);
        let coalesced = &mut self.coalesced;
        if start >= answered + passed {
            (coalesced.passed, coalesced.last_passed) = (start - answered + len, before);
        } else if last_passed == request {
            coalesced.last_passed = before;
        }
        if requests[request].expect == Expect::CoalescedLast {
            requests[request].expect = Expect::Coalesced;
            requests[request].wire_len -= FRAME_LEN as u64;
            requests[before].expect = Expect::CoalescedLast;
            requests[before].wire_len += FRAME_LEN as u64;
        }
        coalesced.keys[answered..start + len].rotate_right(len);
        let (end_before, end) =
            (self.end_of_group(before, requests), self.end_of_group(request, requests));
        requests[end_before].next_in_lane = requests[end].next_in_lane;
        if self.tail == end {
            self.tail = end_before;
        }
        if self.coalesced.stages.before == end {
            self.coalesced.stages.before = end_before;
        }
        requests[end].next_in_lane = std::mem::replace(&mut self.head, request);
        true
    }

    /// The first request with this key from `from` on.
    fn find_coalesced(&self, key: &[u8], from: Joined, requests: &Requests) -> Option<Joined> {
        let Joined { mut at, mut before, mut start } = from;
        // Of what is not wholly written the server cannot know.
        while at != RequestId::NONE && at != self.first_unsent {
            let request = &requests[at];
            let end = start + word_len(request);
            if &self.coalesced.keys[start + 1..end] == key {
                return Some(Joined { at, before, start });
            }
            if request.expect != Expect::Coalesced {
                return None;
            }
            let next = requests[self.end_of_group(at, requests)].next_in_lane;
            (before, at, start) = (at, next, end);
        }
        None
    }

    /// Puts what waits into the output: from here on the gets take no more keys, and nothing shares what is there.
    #[inline(always)]
    pub(crate) fn close_gets(&mut self, bufs: &mut BufPool) {
        if let Some(equal) = &mut self.equal_reads {
            equal.forget();
        }
        self.write_gets(bufs);
    }

    /// Puts what waits into the output.
    #[inline(always)]
    pub(crate) fn write_gets(&mut self, bufs: &mut BufPool) {
        if self.coalesced.stages.count > 0 {
            self.write_stages(bufs);
        }
    }

    #[inline(never)]
    fn write_stages(&mut self, bufs: &mut BufPool) {
        let stages = &mut self.coalesced.stages;
        let count = std::mem::take(&mut stages.count);
        (stages.len, stages.clients) = (0, 0);
        for stage in &mut stages.list[..count] {
            let Stage { mut line, first, last, rest, .. } = std::mem::take(stage);
            if first != last {
                bufs.extend(&mut self.coalesced.keys, &line[VERB.len()..]);
            }
            line.extend_from_slice(LINE_END);
            self.output.push(&line, bufs);
            bufs.give(line);
            if !rest.is_empty() {
                self.output.push_buf(rest, bufs);
            }
        }
    }
}

/// One of those in a get of several keys.
#[derive(Clone, Copy)]
struct Joined {
    at: RequestId,
    /// The one in front of it, without those that share its reply.
    before: RequestId,
    /// Where its key is.
    start: usize,
}

/// What a line of a reply means for the request whose turn it is.
enum Meaning {
    /// Its value follows.
    Value,
    /// The value of another one follows, whose turn it is then.
    Other,
    /// Its key is not there, nor are others.
    Miss,
    /// It is the last line of the reply.
    Last,
    /// The server has broken off: it is so for the other keys, too.
    Error,
    Nonsense,
}

impl Engine {
    /// Finds the lanes for a get of these keys, where each can be a get of its own. What is known to be
    /// large is not put together with what is small.
    pub(super) fn find_lanes_to_join<'k>(
        &mut self,
        client: ClientId,
        split: &mut Split,
        mut keys: impl Iterator<Item = &'k [u8]>,
        size: usize,
    ) -> bool {
        let backend = &self.backends[self.backend_of(client)];
        let queue_max = backend.limits.server_queue_max;
        let has_large = !backend.large_replies.is_empty()
            && keys.any(|key| backend.large_replies.contains(Mark::of(key)));
        // Joined ones could not go on with another server.
        let can_join = !has_large
            && !backend.topology.has_choice(None)
            && (0..split.parts.len()).all(|at| {
                let found = self.lane_for(client, split.parts[at].server, size);
                let part = &mut split.parts[at];
                found.is_ok_and(|index| {
                    let lane = &self.lanes[index];
                    part.lane = index;
                    lane.is_shared()
                        && matches!(lane.link, Link::Ready { .. })
                        && lane.in_flight + lane.unsent + part.keys <= queue_max
                })
            });
        if !can_join {
            split.parts.iter_mut().for_each(|part| part.lane = LaneId::NONE);
        }
        can_join
    }

    /// Asks for each of the keys, whose `words` have the space in front of them, by a get of its own, on
    /// the lanes that [`Engine::find_lanes_to_join`] has found.
    pub(super) fn join_gets<'b>(
        &mut self,
        client: ClientId,
        split: &Split,
        mut gather: Box<Gather>,
        words: impl Iterator<Item = &'b [u8]>,
    ) {
        let parent = self.new_request(client);
        let backend_id = self.backend_of(client);
        let backend = &self.backends[backend_id];
        let expiry = backend.expiry(self.now);
        let (mut first, mut last) = (RequestId::NONE, RequestId::NONE);
        for (&owner, word) in split.owners.iter().zip(words) {
            let (fragment, slot) = self.requests.add(backend_id, ClientId::NONE, self.now);
            slot.role = Role::Fragment { parent, next: RequestId::NONE };
            slot.mark = Mark::of(&word[1..]);
            slot.expect = Expect::Values;
            slot.asked = self.request_ctx.asked;
            match last {
                RequestId::NONE => first = fragment,
                last => self.requests[last].role = Role::Fragment { parent, next: fragment },
            }
            last = fragment;
            let index = split.parts[owner as usize].lane;
            let lane = &mut self.lanes[index];
            lane.append_get(fragment, word, client, &mut self.requests, &mut self.bufs);
            lane.mark(&mut self.dirty_lanes);
            lane.arm(index, expiry, &mut self.timers);
        }
        // The fragment of each key is its own.
        (0..).zip(&mut gather.owners).for_each(|(at, owner)| *owner = at);
        let pending = gather.owners.len() as u32;
        let merge = Merge::Values(gather);
        self.requests[parent].role = Role::Parent { fragments: first, pending, merge };
        self.metrics.add_pool(backend.metrics, PoolCounter::Fragments, split.parts.len() as u64);
    }

    /// Takes bytes of the reply to a get of several keys; returns what is left of them.
    pub(crate) fn coalesced_received<'b>(&mut self, index: LaneId, bytes: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index];
        if lane.coalesced.is_in_block {
            return self.block_received(index, bytes);
        }
        let mut kept = std::mem::take(&mut lane.coalesced.line);
        let room = REPLY_LINE_SIZE_MAX - kept.len();
        let Some(end) = bytes.iter().take(room).position(|&byte| byte == b'\n') else {
            if bytes.len() >= room {
                self.misfit_of_head(index, bytes);
                return &[];
            }
            kept.extend_from_slice(bytes);
            lane.coalesced.line = kept;
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
        while self.lanes[index].in_flight > 0 {
            match self.meaning(index, line) {
                Meaning::Value => {
                    let lane = &mut self.lanes[index];
                    lane.coalesced.is_in_block = true;
                    let Scan::Partial = lane.scanner.scan(Expect::Coalesced, line) else { break };
                    self.deliver_part_to_all(index, line);
                    return rest;
                }
                Meaning::Other => {
                    let key = memcached::value_key(line).unwrap_or_default();
                    let lane = &mut self.lanes[index];
                    if !lane.bring_forward(key, &mut self.requests) {
                        break;
                    }
                    if line.as_ptr() == bytes.as_ptr() {
                        // All of it is at hand, perhaps for the shortest way.
                        return bytes;
                    }
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
        let line = line.to_vec();
        self.misfit(index, JOINED_EXPECTED, &line);
        &[]
    }

    fn meaning(&self, index: LaneId, line: &[u8]) -> Meaning {
        let lane = &self.lanes[index];
        let request = &self.requests[lane.head];
        let is_last = request.expect == Expect::CoalescedLast;
        if !is_last && request.expect != Expect::Coalesced {
            return Meaning::Nonsense;
        }
        match memcached::value_key(line) {
            Some(key) if key == lane.coalesced.key(request) && request.arrived == 0 => {
                Meaning::Value
            }
            Some(_) if is_last => Meaning::Nonsense,
            Some(_) => Meaning::Other,
            None if line == END && is_last => Meaning::Last,
            None if line == END => Meaning::Miss,
            None if !memcached::is_error(line) => Meaning::Nonsense,
            None if is_last => Meaning::Last,
            None => Meaning::Error,
        }
    }

    fn block_received<'b>(&mut self, index: LaneId, bytes: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index];
        match lane.scanner.scan(Expect::Coalesced, bytes) {
            Scan::Complete(len) => {
                lane.coalesced.is_in_block = false;
                self.deliver_part_to_all(index, &bytes[..len]);
                let head = self.lanes[index].head;
                if head != RequestId::NONE && self.requests[head].expect == Expect::Coalesced {
                    self.part_answered(index, END);
                }
                &bytes[len..]
            }
            Scan::Partial => {
                self.deliver_part_to_all(index, bytes);
                &[]
            }
            Scan::Invalid => {
                self.misfit(index, "the end of a value", bytes);
                &[]
            }
        }
    }

    /// The head of the lane's queue, which is joined, is answered, and with it those that share its reply: `last`
    /// is the end of that.
    fn part_answered(&mut self, index: LaneId, last: &[u8]) {
        loop {
            self.observe_head(index, last);
            let request = self.lanes[index].head;
            if !self.is_shared_by_next(index) {
                let lane = &mut self.lanes[index];
                lane.coalesced.pop_key(&self.requests[request], &mut self.bufs);
            }
            self.pop_answered(index);
            self.deliver(request, last);
            if !std::mem::take(&mut self.lanes[index].replays) {
                return;
            }
        }
    }
}
