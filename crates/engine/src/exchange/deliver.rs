//! Replies on their way back: to the right request, merged, in the client's order.

use cashew_metrics::PoolCounter;
use cashew_protocol::memcached;
use cashew_protocol::resp::{self, Reply, encode};

use crate::base::buffer::LARGE;
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{ClientId, RequestId};
use crate::engine::Engine;
use crate::request::{Due, Merge, Own, Role};
use crate::upstream::bulk::BULK_SIZE;
use crate::upstream::low_water::STREAM_WRITE_MIN;

/// What is looked at of a probe's reply.
pub(crate) const PROBE_REPLY_MAX: usize = 64;

/// What is left of a value is waited for, and leaves with the piece before it, if it is no more than this.
const STREAM_END_MAX: u64 = 64 * 1024;

/// What a merged reply has beyond the replies that it is made of, at most: its header.
const HEADER_MAX: usize = 32;

impl Engine {
    /// Who waits for the request's reply in the end, or [`ClientId::NONE`].
    pub(crate) fn waiting_client(&self, index: RequestId) -> ClientId {
        self.requests.waiting_client(index)
    }

    /// Counts `bytes` more of replies kept for a client.
    pub(crate) fn charge(&mut self, index: RequestId, bytes: usize) {
        let client = self.waiting_client(index);
        if client != ClientId::NONE {
            self.clients[client].held += bytes as u64;
        }
    }

    /// Forgets what has arrived of a reply.
    pub(crate) fn drop_reply(&mut self, index: RequestId) {
        let reply = self.take_reply(index);
        self.bufs.give(reply);
    }

    /// What has arrived of a reply, which is not kept for the client any more.
    pub(crate) fn take_reply(&mut self, index: RequestId) -> Vec<u8> {
        let client = self.waiting_client(index);
        let reply = std::mem::take(&mut self.requests[index].reply);
        if client != ClientId::NONE {
            self.clients[client].held -= reply.len() as u64;
        }
        reply
    }

    /// The last bytes of a reply; the request has left its lane.
    #[inline]
    pub(crate) fn deliver(&mut self, index: RequestId, bytes: &[u8]) {
        if self.requests[index].expect.is_quiet_filtered() {
            return self.deliver_quiet_filtered(index, bytes);
        }
        self.learn_size(index, bytes.len());
        let request = &mut self.requests[index];
        if let Role::Single = request.role {
            let client = request.client;
            if client == ClientId::NONE {
                self.free_request(index);
                return;
            }
            if request.silent {
                request.done = true;
                self.client_ready(client);
                return;
            }
            // Errors are short: what is streamed is none. What is held goes on below.
            if request.reply.is_empty() && !request.streaming {
                self.note_reply(client, bytes);
            }
            let request = &mut self.requests[index];
            let owner = &mut self.clients[client];
            // The common case: the reply is the client's next, and goes there by one copy.
            if owner.head == index && (request.reply.is_empty() || request.streaming) {
                request.done = true;
                owner.output.push(bytes, &mut self.bufs);
                if self.command_stats.is_used() {
                    self.command_stats.reply_goes(index, bytes);
                }
                self.client_ready(client);
                self.check_output(client);
                return;
            }
            // The next most common: it comes whole, and before its turn.
            if request.reply.is_empty() {
                request.done = true;
                request.hold(bytes, &mut self.bufs);
                owner.held += bytes.len() as u64;
                self.check_output(client);
                return;
            }
        }
        if let Role::Flow { .. } = self.requests[index].role {
            self.watched_reply(index, bytes);
            return;
        }
        self.hold(index, bytes);
        let reply = std::mem::take(&mut self.requests[index].reply);
        self.deliver_buf(index, reply);
    }

    /// Remembers whether the reply, of which these are the last bytes, was large.
    #[inline]
    fn learn_size(&mut self, index: RequestId, bytes: usize) {
        let request = &self.requests[index];
        let size = request.arrived + bytes as u64;
        let is_large = size >= BULK_SIZE as u64;
        let replies = &mut self.backends[request.backend].large_replies;
        if (is_large || !replies.is_empty()) && is_large != replies.contains(request.mark) {
            replies.learn(request.mark, is_large);
        }
        self.learn_window(index, size);
    }

    /// A whole reply in a buffer; the request has left its lane.
    pub(crate) fn deliver_buf(&mut self, index: RequestId, reply: Vec<u8>) {
        if let Role::Flow { .. } = self.requests[index].role {
            self.end_flow(index);
        }
        let request = &mut self.requests[index];
        match request.role {
            Role::Single => {
                let (client, is_told) = (request.client, !request.silent && !request.streaming);
                if client != ClientId::NONE && is_told {
                    self.note_reply(client, &reply);
                }
                let request = &mut self.requests[index];
                self.bufs.give(std::mem::replace(&mut request.reply, reply));
                request.done = true;
                if client == ClientId::NONE {
                    self.free_request(index);
                } else {
                    self.client_ready(client);
                    self.check_output(client);
                }
            }
            Role::Fragment { parent, .. } => {
                self.bufs.give(std::mem::replace(&mut request.reply, reply));
                request.done = true;
                self.fragment_done(index, parent);
            }
            Role::Probe { server } => {
                let backend = request.backend;
                self.probed(backend, server, &reply);
                self.bufs.give(reply);
                self.free_request(index);
            }
            Role::Own(own @ Own::Invalidation { .. }) => {
                self.invalidated(index, own, &reply);
                self.bufs.give(reply);
                self.free_request(index);
            }
            Role::Own(own) => {
                self.own_reply(own, &reply);
                self.bufs.give(reply);
                self.free_request(index);
            }
            Role::Parent { .. } => unreachable!("only fragments of a split request are sent"),
            Role::Flow { .. } => unreachable!("it was ended above"),
        }
    }

    /// Bytes of a reply that goes on.
    pub(crate) fn deliver_part(&mut self, index: RequestId, bytes: &[u8]) {
        if let Role::Flow { .. } = self.requests[index].role
            && self.requests[index].arrived == 0
        {
            self.watched_start(index, bytes);
        }
        if self.requests[index].expect.is_quiet_filtered() {
            return self.deliver_part_quiet_filtered(index, bytes);
        }
        let request = &mut self.requests[index];
        request.arrived += bytes.len() as u64;
        let client = request.client;
        let is_single = matches!(request.role, Role::Single);
        // Some replies say what is to be done next, whoever wants them.
        let is_telling = matches!(request.role, Role::Flow { .. });
        let is_for_nothing = request.silent && !is_telling;
        if is_for_nothing || (is_single && client == ClientId::NONE) {
            return;
        }
        let is_next = is_single && self.clients[client].head == index;
        if !is_next {
            self.hold(index, bytes);
            let client = self.waiting_client(index);
            if client != ClientId::NONE {
                self.check_output(client);
                self.stream_values(index);
            }
            return;
        }
        // Small replies are kept together, so that a server's failure can still be answered.
        if !request.streaming && request.reply.len() + bytes.len() < LARGE {
            self.hold(index, bytes);
            return;
        }
        if !request.streaming && request.cache_mark.is_some() && self.keeps_whole(index, bytes) {
            self.hold(index, bytes);
            return;
        }
        let request = &mut self.requests[index];
        request.streaming = true;
        let start = std::mem::take(&mut request.reply);
        let owner = &mut self.clients[client];
        owner.held -= start.len() as u64;
        if self.command_stats.is_used() {
            self.command_stats.reply_goes(index, &start);
            self.command_stats.reply_goes(index, bytes);
        }
        owner.output.push_buf(start, &mut self.bufs);
        owner.output.push(bytes, &mut self.bufs);
        self.mark_streaming(client, 0);
        self.check_output_before(client, bytes.len());
    }

    /// Sends what has come of a large reply when it is worth a write: each one wakes the client. So
    /// does what is `left` of a value (0 if unknown) when that is little.
    pub(crate) fn mark_streaming(&mut self, client: ClientId, left: u64) {
        let owner = &self.clients[client];
        // What is kept back must not make a client that reads look like one that does not.
        let allowed = self.listeners[owner.listener].limits.client_output_max / 4;
        let len = owner.output.len();
        let ends = (1..=STREAM_END_MAX).contains(&left) && len < 2 * STREAM_WRITE_MIN.min(allowed);
        if len >= STREAM_WRITE_MIN.min(allowed) && !ends {
            self.mark_client(client);
        }
    }

    /// A buffer full of bytes of a reply that is being passed on; so many of the value that they
    /// belong to are `left`.
    pub(crate) fn deliver_middle(&mut self, index: RequestId, buffer: Vec<u8>, left: u64) {
        let request = &mut self.requests[index];
        request.arrived += buffer.len() as u64;
        let client = request.client;
        if client == ClientId::NONE {
            self.bufs.give(buffer);
            return;
        }
        let len = buffer.len();
        if self.command_stats.is_used() {
            self.command_stats.reply_goes(index, &buffer);
        }
        self.clients[client].output.push_buf(buffer, &mut self.bufs);
        self.mark_streaming(client, left);
        self.check_output_before(client, len);
    }

    /// Keeps bytes of a reply with its request, as far as somebody waits for them.
    pub(crate) fn hold(&mut self, index: RequestId, mut bytes: &[u8]) {
        if self.waiting_client(index) == ClientId::NONE {
            let request = &self.requests[index];
            let mut most = PROBE_REPLY_MAX;
            if let Role::Fragment { parent, .. } = request.role
                && let Role::Flow { flow, .. } = self.requests[parent].role
            {
                most = self.flows.keeps(flow);
            }
            match request.role {
                Role::Probe { .. } | Role::Own(_) | Role::Flow { .. } => {}
                // Its start still has to tell whether it answers this request.
                Role::Fragment { .. } if request.due != Due::Anything || self.is_attempt(index) => {
                }
                _ => return,
            }
            let room = most.saturating_sub(request.reply.len());
            bytes = &bytes[..bytes.len().min(room)];
        }
        self.requests[index].hold(bytes, &mut self.bufs);
        self.charge(index, bytes.len());
    }

    /// Cuts a client off that lets replies pile up.
    pub(crate) fn check_output(&mut self, index: ClientId) {
        self.check_output_before(index, 0);
    }

    /// The same without the last so many bytes: part of a reply may be more than the limit by itself.
    fn check_output_before(&mut self, index: ClientId, last: usize) {
        let client = &self.clients[index];
        let limit = self.listeners[client.listener].limits.client_output_max;
        if client.output.len() + client.held - last as u64 > limit {
            self.cut_client(index, PoolCounter::ClientsOverflowed);
        }
    }

    pub(crate) fn fragment_done(&mut self, index: RequestId, parent: RequestId) {
        let pending = match &mut self.requests[parent].role {
            Role::Parent { pending, .. } => pending,
            _ => return self.attempt_done(parent, index, None),
        };
        *pending -= 1;
        if *pending > 0 {
            self.stream_values(index);
            return;
        }
        self.fragments_done(parent);
    }

    /// All fragments of a request are answered.
    pub(crate) fn fragments_done(&mut self, parent: RequestId) {
        let role = std::mem::replace(&mut self.requests[parent].role, Role::Single);
        let Role::Parent { fragments, merge, .. } = role else {
            unreachable!("only a parent has fragments");
        };
        if self.requests[parent].client == ClientId::NONE {
            self.free_fragments(fragments);
            self.recycle_merge(merge);
            self.free_request(parent);
            return;
        }
        if self.deal_out(parent, fragments, &merge) {
            let client = self.requests[parent].client;
            self.free_fragments(fragments);
            self.recycle_merge(merge);
            self.client_ready(client);
            self.check_output(client);
            return;
        }
        let mut reply = self.merge(parent, fragments, &merge);
        self.spend(reply.len());
        let client = self.requests[parent].client;
        if let Some(many) = self.clients[client].modes.many() {
            many.add_bytes(reply.len());
        }
        self.filter_quiet_merged(parent, &mut reply);
        self.free_fragments(fragments);
        self.recycle_merge(merge);
        self.charge(parent, reply.len());
        self.deliver_buf(parent, reply);
    }

    /// Merges replies to fragments straight into the client's output, if that is where they belong
    /// now, they are small, and none of them is an error. Returns whether it did.
    pub(crate) fn deal_out(
        &mut self,
        parent: RequestId,
        fragments: RequestId,
        merge: &Merge,
    ) -> bool {
        let request = &self.requests[parent];
        let client = &mut self.clients[request.client];
        let (gather, is_error): (_, fn(&[u8]) -> bool) = match merge {
            Merge::Elements(gather) => (gather, resp::is_error),
            Merge::Values(gather) if !gather.is_part => (gather, memcached::is_error),
            _ => return false,
        };
        if client.head != parent || request.silent || request.streaming {
            return false;
        }
        let mut size = HEADER_MAX;
        for reply in self.requests.replies(fragments) {
            size += reply.len();
            if is_error(reply) {
                return false;
            }
        }
        if size >= LARGE {
            return false;
        }
        let places = &mut self.scratch.places;
        places.clear();
        let mut merged = None;
        client.output.write_with(&mut self.bufs, size, |out| {
            let start = out.len();
            merged = match merge {
                Merge::Elements(_) => self.requests.merge_elements(fragments, gather, places, out),
                _ => self.requests.merge_values(fragments, gather, places, out),
            };
            if merged.is_none() {
                out.truncate(start);
            } else if self.command_stats.is_used() {
                self.command_stats.reply_goes(parent, &out[start..]);
            }
        });
        self.requests[parent].done = merged.is_some();
        merged.is_some()
    }

    /// Frees the fragments of one parent from this one on.
    pub(crate) fn free_fragments(&mut self, mut at: RequestId) {
        let client = if at == RequestId::NONE { ClientId::NONE } else { self.waiting_client(at) };
        while at != RequestId::NONE {
            let request = &mut self.requests[at];
            let Role::Fragment { next, .. } = std::mem::replace(&mut request.role, Role::Single)
            else {
                unreachable!("fragments are linked to fragments");
            };
            if client != ClientId::NONE {
                self.clients[client].held -= request.reply.len() as u64;
            }
            request.reply.clear();
            self.requests.remove(at, &mut self.bufs);
            at = next;
        }
    }

    /// The replies of a request's fragments, in their order.
    pub(crate) fn fragment_replies(&self, first: RequestId) -> impl Iterator<Item = &[u8]> + Clone {
        self.requests.replies(first)
    }

    /// One reply of many.
    fn merge(&mut self, parent: RequestId, fragments: RequestId, merge: &Merge) -> Vec<u8> {
        let sizes = self.fragment_replies(fragments).map(|reply| reply.len());
        // Few merged replies are longer than what they are made of, but for a number's digits.
        let mut out = self.bufs.take_for(sizes.sum::<usize>() + 32);
        let room = out.capacity();
        let is_error: fn(&[u8]) -> bool = match merge {
            Merge::Sum | Merge::Elements(_) => resp::is_error,
            Merge::Same => |reply| resp::is_error(reply) || memcached::is_error(reply),
            Merge::Values(_) => memcached::is_error,
            Merge::Whole(_) => |_| false,
        };
        let is_part = match merge {
            Merge::Values(gather) if gather.is_part => {
                self.take_faults(parent, fragments, gather);
                true
            }
            _ => false,
        };
        let errors = self.fragment_replies(fragments).filter(|reply| is_error(reply));
        let error = errors.take(usize::from(!is_part)).next();
        if error.map(|error| out.extend_from_slice(error)).is_some() {
            return out;
        }
        let mut places = std::mem::take(&mut self.scratch.places);
        places.clear();
        let merged = match merge {
            Merge::Sum => merge_sum(self.fragment_replies(fragments), &mut out),
            Merge::Same => merge_same(self.fragment_replies(fragments), &mut out),
            Merge::Elements(gather) => {
                self.requests.merge_elements(fragments, gather, &mut places, &mut out)
            }
            Merge::Values(gather) => {
                self.requests.merge_values(fragments, gather, &mut places, &mut out)
            }
            Merge::Whole(rule) => {
                let replies: Vec<&[u8]> = self.fragment_replies(fragments).collect();
                let mut text = Vec::new();
                let merged = rule.merge(&replies, self.requests[parent].asked, &mut text);
                // With names of servers it is longer than what it is made of.
                self.bufs.reserve(&mut out, text.len());
                out.extend_from_slice(&text);
                merged
            }
        };
        self.scratch.places = places;
        if merged.is_none() {
            let backend = self.requests[parent].backend;
            self.count_forward_error(backend);
            out.clear();
            NamedFailure::from(Failure::BadReply)
                .write_reply(self.backends[backend].protocol, &mut out);
        }
        self.bufs.charge(out.capacity() - room);
        out
    }
}

fn merge_sum<'r>(replies: impl Iterator<Item = &'r [u8]>, out: &mut Vec<u8>) -> Option<()> {
    let mut sum: i64 = 0;
    for reply in replies {
        let Some(Reply::Integer(count)) = resp::reply(reply) else { return None };
        sum = sum.checked_add(count)?;
    }
    encode::write_integer(out, sum);
    Some(())
}

fn merge_same<'r>(mut replies: impl Iterator<Item = &'r [u8]>, out: &mut Vec<u8>) -> Option<()> {
    let first = replies.next()?;
    out.extend_from_slice(first);
    replies.all(|reply| reply == first).then_some(())
}
