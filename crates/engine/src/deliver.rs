//! Replies on their way back: to the right request, merged, in the client's order.

use cashew_metrics::PoolCounter;
use cashew_protocol::memcached;
use cashew_protocol::resp::{self, Reply, encode};

use crate::buffer::LARGE;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::request::{Gather, Merge, Role};
use crate::slab::NONE;

impl Engine {
    /// Who waits for the request's reply in the end, or [`NONE`].
    fn waiting_client(&self, index: u32) -> u32 {
        let request = &self.requests[index];
        match request.role {
            Role::Fragment { parent, .. } => self.requests[parent].client,
            Role::Single | Role::Parent { .. } | Role::Probe { .. } => request.client,
        }
    }

    /// Counts `bytes` more of replies kept for a client.
    pub(crate) fn charge(&mut self, index: u32, bytes: usize) {
        let client = self.waiting_client(index);
        if client != NONE {
            self.clients[client].held += bytes as u64;
        }
    }

    /// Forgets what has arrived of a reply.
    pub(crate) fn drop_reply(&mut self, index: u32) {
        let client = self.waiting_client(index);
        let reply = std::mem::take(&mut self.requests[index].reply);
        if client != NONE {
            self.clients[client].held -= reply.len() as u64;
        }
        self.bufs.give(reply);
    }

    /// The last bytes of a reply; the request has left its lane.
    #[inline]
    pub(crate) fn deliver(&mut self, index: u32, bytes: &[u8]) {
        let request = &mut self.requests[index];
        if let Role::Single = request.role {
            let client = request.client;
            if client == NONE {
                self.free_request(index);
                return;
            }
            if request.silent {
                request.done = true;
                self.client_ready(client);
                return;
            }
            let owner = &mut self.clients[client];
            // The common case: the reply is the client's next, and goes there by one copy.
            if owner.head == index && (request.reply.is_empty() || request.streaming) {
                request.done = true;
                owner.output.push(bytes, &mut self.bufs);
                self.pop_head(client);
                self.mark_client(client);
                self.client_ready(client);
                self.check_output(client);
                return;
            }
        }
        self.hold(index, bytes);
        let reply = std::mem::take(&mut self.requests[index].reply);
        self.deliver_buf(index, reply);
    }

    /// A whole reply in a buffer; the request has left its lane.
    pub(crate) fn deliver_buf(&mut self, index: u32, reply: Vec<u8>) {
        let request = &mut self.requests[index];
        match request.role {
            Role::Single => {
                let client = request.client;
                request.reply = reply;
                request.done = true;
                if client == NONE {
                    self.free_request(index);
                } else {
                    self.client_ready(client);
                    self.check_output(client);
                }
            }
            Role::Fragment { parent, .. } => {
                request.reply = reply;
                request.done = true;
                self.fragment_done(parent);
            }
            Role::Probe { server } => {
                let pool = request.pool;
                self.probed(pool, server, &reply);
                self.bufs.give(reply);
                self.free_request(index);
            }
            Role::Parent { .. } => unreachable!("only fragments of a split request are sent"),
        }
    }

    /// Bytes of a reply that goes on.
    pub(crate) fn deliver_part(&mut self, index: u32, bytes: &[u8]) {
        let request = &mut self.requests[index];
        let client = request.client;
        let is_single = matches!(request.role, Role::Single);
        if request.silent || (is_single && client == NONE) {
            return;
        }
        let is_next = is_single && self.clients[client].head == index;
        if !is_next {
            self.hold(index, bytes);
            let client = self.waiting_client(index);
            if client != NONE {
                self.check_output(client);
            }
            return;
        }
        // Small replies are kept together, so that a server's failure can still be answered.
        if !request.streaming && request.reply.len() + bytes.len() < LARGE {
            self.hold(index, bytes);
            return;
        }
        request.streaming = true;
        let start = std::mem::take(&mut request.reply);
        let owner = &mut self.clients[client];
        owner.held -= start.len() as u64;
        owner.output.push_buf(start, &mut self.bufs);
        owner.output.push(bytes, &mut self.bufs);
        self.mark_client(client);
        self.check_output(client);
    }

    /// Keeps bytes of a reply with its request.
    fn hold(&mut self, index: u32, bytes: &[u8]) {
        let request = &mut self.requests[index];
        if request.reply.capacity() == 0 {
            request.reply = self.bufs.take();
        }
        request.reply.extend_from_slice(bytes);
        self.charge(index, bytes.len());
    }

    /// Cuts a client off that lets replies pile up.
    fn check_output(&mut self, index: u32) {
        let client = &self.clients[index];
        let limit = self.pools[client.pool as usize].limits.client_output_max;
        if client.output.len() + client.held > limit {
            self.cut_client(index, PoolCounter::ClientsOverflowed);
        }
    }

    fn fragment_done(&mut self, parent: u32) {
        let Role::Parent { pending, .. } = &mut self.requests[parent].role else {
            unreachable!("a fragment's parent is a parent");
        };
        *pending -= 1;
        if *pending > 0 {
            return;
        }
        let role = std::mem::replace(&mut self.requests[parent].role, Role::Single);
        let Role::Parent { fragments, merge, .. } = role else { unreachable!("checked above") };
        let client = self.requests[parent].client;
        if client == NONE {
            self.free_fragments(fragments);
            self.recycle_merge(merge);
            self.free_request(parent);
            return;
        }
        let reply = self.merge(parent, fragments, &merge);
        self.free_fragments(fragments);
        self.recycle_merge(merge);
        self.charge(parent, reply.len());
        self.deliver_buf(parent, reply);
    }

    fn free_fragments(&mut self, mut at: u32) {
        while at != NONE {
            let Role::Fragment { next, .. } = self.requests[at].role else {
                unreachable!("fragments are linked to fragments");
            };
            self.drop_reply(at);
            self.free_request(at);
            at = next;
        }
    }

    /// The replies of a request's fragments, in their order.
    fn fragment_replies(&self, first: u32) -> impl Iterator<Item = &[u8]> {
        let mut at = first;
        std::iter::from_fn(move || {
            if at == NONE {
                return None;
            }
            let fragment = &self.requests[at];
            if let Role::Fragment { next, .. } = fragment.role {
                at = next;
            }
            Some(fragment.reply.as_slice())
        })
    }

    /// One reply of many.
    fn merge(&mut self, parent: u32, fragments: u32, merge: &Merge) -> Vec<u8> {
        let mut out = self.bufs.take();
        let is_error: fn(&[u8]) -> bool = match merge {
            Merge::Sum | Merge::Elements(_) => |reply| reply.starts_with(b"-"),
            Merge::Same => |reply| reply.starts_with(b"-") || memcached::is_error(reply),
            Merge::Values(_) => memcached::is_error,
        };
        if let Some(error) = self.fragment_replies(fragments).find(|reply| is_error(reply)) {
            out.extend_from_slice(error);
            return out;
        }
        let merged = match merge {
            Merge::Sum => merge_sum(self.fragment_replies(fragments), &mut out),
            Merge::Same => {
                self.fragment_replies(fragments).next().map(|reply| out.extend_from_slice(reply))
            }
            Merge::Elements(gather) => {
                merge_elements(self.fragment_replies(fragments), gather, &mut out)
            }
            Merge::Values(gather) => {
                merge_values(self.fragment_replies(fragments), gather, &mut out)
            }
        };
        if merged.is_none() {
            let pool = self.requests[parent].pool;
            self.count_forward_error(pool);
            out.clear();
            Failure::BadReply.write_reply(self.pools[pool as usize].protocol, &mut out);
        }
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

/// Deals the elements of the fragments' arrays to the positions of the keys.
fn merge_elements<'r>(
    replies: impl Iterator<Item = &'r [u8]>,
    gather: &Gather,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut arrays = Vec::new();
    for reply in replies {
        let Some(Reply::Array(elements)) = resp::reply(reply) else { return None };
        arrays.push(elements);
    }
    encode::write_array_header(out, gather.owners.len());
    for &owner in &gather.owners {
        out.extend_from_slice(arrays[owner as usize].next()?);
    }
    Some(())
}

/// Puts the VALUE blocks of the fragments' replies in the order of the keys. A server names its
/// hits in the order it was asked, so a key that is not the next hit is a miss.
fn merge_values<'r>(
    replies: impl Iterator<Item = &'r [u8]>,
    gather: &Gather,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut hits: Vec<_> = replies.map(|reply| memcached::Values::new(reply).peekable()).collect();
    for (key, &owner) in gather.keys.iter().zip(&gather.owners) {
        let key = key.of(&gather.text);
        if let Some(hit) = hits[owner as usize].next_if(|hit| hit.key == key) {
            out.extend_from_slice(hit.block);
        }
    }
    if hits.iter_mut().any(|rest| rest.peek().is_some()) {
        return None;
    }
    out.extend_from_slice(b"END\r\n");
    Some(())
}
