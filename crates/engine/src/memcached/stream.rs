//! Retrievals of many keys whose values are passed on while they arrive, in the order of the keys.

use cashew_protocol::memcached::Values;

use crate::base::buffer::LARGE;
use crate::base::id::{ClientId, RequestId};
use crate::engine::Engine;
use crate::request::{Gather, Merge, Role};

impl Engine {
    /// Bytes came of a fragment of a retrieval: passes on what is next for the client, and whole.
    /// Small replies are kept together, so that a server's failure can still be answered.
    #[inline]
    pub(crate) fn stream_values(&mut self, fragment: RequestId) {
        let Role::Fragment { parent, .. } = self.requests[fragment].role else { return };
        if self.requests[parent].streaming || self.requests[fragment].reply.len() >= LARGE {
            self.stream_large(parent);
        }
    }

    #[inline(never)]
    fn stream_large(&mut self, parent: RequestId) {
        let state = &self.requests[parent];
        let client = state.client;
        let is_next = client != ClientId::NONE && self.clients[client].head == parent;
        let is_values = matches!(state.role, Role::Parent { merge: Merge::Values(_), .. });
        if !(is_next && is_values) {
            return;
        }
        let mut role = std::mem::replace(&mut self.requests[parent].role, Role::Single);
        if let Role::Parent { fragments, merge: Merge::Values(gather), .. } = &mut role {
            self.requests[parent].streaming = true;
            self.deal_values(client, parent, *fragments, gather);
        }
        self.requests[parent].role = role;
        self.mark_streaming(client, 0);
        self.check_output(client);
    }

    /// Moves whole values, as far as they are next, to the client's output.
    fn deal_values(
        &mut self,
        client: ClientId,
        parent: RequestId,
        fragments: RequestId,
        gather: &mut Gather,
    ) {
        let mut places = std::mem::take(&mut self.scratch.places);
        places.clear();
        self.requests.places_of_values(fragments, gather, &mut places);
        let owner = &mut self.clients[client];
        let mut bytes = 0;
        while let Some(key) = gather.keys.get(gather.dealt as usize) {
            let place = &mut places[gather.owners[gather.dealt as usize] as usize];
            let request = &self.requests[place.fragment];
            match Values::new(request.reply.get(place.at..).unwrap_or_default()).next() {
                Some(hit) if hit.key == key.of(&gather.text) => {
                    if self.command_stats.is_used() {
                        self.command_stats.reply_goes(parent, hit.block);
                    }
                    owner.output.push(hit.block, &mut self.bufs);
                    place.at += hit.block.len();
                    bytes += hit.block.len();
                }
                Some(_) => {}
                None if request.done => {}
                None => break,
            }
            gather.dealt += 1;
        }
        if let Some(many) = owner.modes.many() {
            many.add_bytes(bytes);
        }
        // What has been dealt out is let go of, though not for every few bytes.
        for place in &mut places {
            let reply = &mut self.requests[place.fragment].reply;
            if place.at > reply.len() / 2 {
                reply.drain(..place.at);
                owner.held -= place.at as u64;
                place.at = 0;
            }
        }
        self.bufs.discharge(gather.size());
        gather.places.clear();
        gather.places.extend(places.iter().map(|place| place.at));
        self.bufs.charge(gather.size());
        self.scratch.places = places;
    }

    /// Another reply takes the place of what has come of a fragment's.
    pub(super) fn restart_fragment(&mut self, index: RequestId) {
        let Role::Fragment { parent, .. } = self.requests[index].role else { return };
        let Role::Parent { fragments, .. } = self.requests[parent].role else { return };
        let (mut at, mut ordinal) = (fragments, 0);
        while at != index {
            let Role::Fragment { next, .. } = self.requests[at].role else { return };
            (at, ordinal) = (next, ordinal + 1);
        }
        if let Role::Parent { merge: Merge::Values(gather), .. } = &mut self.requests[parent].role
            && let Some(place) = gather.places.get_mut(ordinal)
        {
            *place = 0;
        }
    }
}
