//! The shortest way of a reply to a part of a split request: whole and plain, to where it waits for
//! the others. As with [`crate::engine::fast_path`], whatever gives cause for thought is left to the general
//! way, which comes to the same result.

use cashew_protocol::memcached::{self, Expect};
use cashew_protocol::resp;

use crate::base::buffer::LARGE;
use crate::base::id::{ClientId, LaneId};
use crate::engine::Engine;
use crate::memcached::{END, Part};
use crate::request::Role;
use crate::upstream::lane::{Link, Scanner};

impl Engine {
    /// Takes replies to fragments from the start of `buf`, which come from a lane; returns what it
    /// leaves.
    #[inline(never)]
    pub(crate) fn express_parts<'b>(&mut self, index: LaneId, mut buf: &'b [u8]) -> &'b [u8] {
        let lane = &self.lanes[index];
        if lane.refused.is_some() {
            return buf;
        }
        let generation = lane.generation;
        while !buf.is_empty() {
            let lane = &mut self.lanes[index];
            // Answering a client may end the connection that the bytes came on.
            let is_clear = lane.generation == generation
                && matches!(lane.link, Link::Ready { .. })
                && lane.in_flight > 0
                && !lane.scanner.is_push(b"");
            if !is_clear {
                break;
            }
            let fragment = lane.head;
            let request = &mut self.requests[fragment];
            let age_us = self.now.micros_since(request.started);
            let slow_after_us = self.backends[lane.backend].slow_after_us;
            if self.observer.left <= 1 || self.observer.is_suspect(age_us, slow_after_us) {
                break;
            }
            let Role::Fragment { parent, .. } = request.role else { break };
            let mut end: &[u8] = b"";
            // Where nothing of the reply has arrived, and no push, the lane's scanner is at its start.
            if request.arrived > 0 || request.is_tagged {
                break;
            }
            let is_coalesced = request.expect.is_coalesced();
            let plain = match (&lane.scanner, request.expect) {
                // It may have to be sent again.
                (Scanner::Redis(_), _)
                    if buf[0] == b'-' && self.backends[lane.backend].repeats_refused =>
                {
                    None
                }
                (Scanner::Redis(scanner), _) => {
                    let plain = match scanner.is_resp3() {
                        true => resp::plain_reply_or_array::<true>(buf),
                        false => resp::plain_reply_or_array::<false>(buf),
                    };
                    plain.filter(|(reply, _)| request.due.is_met_by(reply) == Some(true))
                }
                (Scanner::Memcached(_), Expect::Values) => memcached::plain_values(buf),
                (Scanner::Memcached(_), _) if is_coalesced => {
                    let part = lane.coalesced.plain_part(request, buf);
                    part.map(|Part { reply, is_open, rest }| {
                        end = if is_open { END } else { b"" };
                        (reply, rest)
                    })
                }
                _ => None,
            };
            let Some((reply, rest)) = plain.filter(|(reply, _)| reply.len() < LARGE) else { break };
            buf = rest;
            self.observer.left -= 1;
            request.in_lane = false;
            request.done = true;
            lane.pop_head(request.next_in_lane, request.wire_len);
            if is_coalesced {
                lane.coalesced.pop_key(request, &mut self.bufs);
            }
            let client = self.requests[parent].client;
            if client != ClientId::NONE {
                let request = &mut self.requests[fragment];
                request.hold(reply, &mut self.bufs);
                request.hold(end, &mut self.bufs);
                self.clients[client].held += (reply.len() + end.len()) as u64;
            } else {
                // A flow may go on without its client.
                self.hold(fragment, reply);
            }
            self.end_batch(index);
            self.fragment_done(fragment, parent);
        }
        buf
    }
}
