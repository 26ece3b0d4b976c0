//! CAS uniques on their way: see [`cashew_protocol::memcached::Tag`].
//!
//! What a reply tells gets the tag of the server whose lane it comes on; what a request names loses
//! that of the server it is sent to. Neither needs to know of the other, so that nothing has to be
//! kept, and all workers, and those of the next epoch, say the same.

use cashew_config::snapshot::{self, CasUniques};
use cashew_protocol::memcached::binary::HEADER_SIZE;
use cashew_protocol::memcached::{
    Expect, RequestParser, Tag, Uniques, retagged_header, write_untagged,
};

use super::text::edits;
use crate::base::id::{ClientId, LaneId, RequestId};
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::upstream::backend::Backend;
use crate::upstream::lane::Scanner;

/// The tag of each server of a pool.
fn tags(pool: &snapshot::Pool, is_of_several: bool) -> impl Iterator<Item = Tag> {
    let has_tags = match pool.memcached.cas_uniques {
        _ if pool.protocol != snapshot::Protocol::Memcached => false,
        CasUniques::Auto => is_of_several || pool.servers.len() > 1,
        CasUniques::Tagged => true,
        CasUniques::Plain => false,
    };
    // By the address, since another address means another process with numbers of its own.
    pool.servers.iter().map(move |server| match has_tags {
        true => Tag::of(server.endpoint.to_string().as_bytes()),
        false => Tag::default(),
    })
}

impl Backend {
    /// Gives its servers their tags.
    pub(crate) fn tag_servers(&mut self) {
        self.set_tags(false);
    }

    /// The same where a route leads to other pools as well, whose uniques are not to be taken for its own.
    pub(crate) fn tag_servers_of_several(&mut self) {
        self.set_tags(true);
    }

    fn set_tags(&mut self, is_of_several: bool) {
        for (server, tag) in self.servers.iter_mut().zip(tags(&self.config, is_of_several)) {
            server.tag = tag;
        }
    }

    /// Whether uniques have tags here.
    #[inline]
    pub(crate) fn has_tags(&self) -> bool {
        self.servers.first().is_some_and(|server| server.tag.is_some())
    }
}

impl Engine {
    pub(super) fn has_tags(&self, client: ClientId) -> bool {
        self.backends[self.backend_of(client)].has_tags()
    }

    fn tag_at(&self, lane: LaneId) -> Tag {
        let lane = self.lane(lane);
        self.backends[lane.backend].servers[lane.server].tag
    }

    /// Notes what the request that is being dispatched has to do with uniques.
    pub(super) fn ask_cas_tags(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) {
        let cas_tags = match self.has_tags(client) {
            true => Uniques::of(parser, bytes),
            false => Uniques::default(),
        };
        self.request_ctx.is_tagged = cas_tags.asked;
        self.request_ctx.names_cas_tags = cas_tags.named;
    }

    /// Sends a request that names uniques, as its server knows them.
    #[cold]
    pub(super) fn send_untagged(
        &mut self,
        lane: LaneId,
        request: RequestId,
        parser: &RequestParser,
        bytes: &[u8],
    ) {
        // Without the data, with which it would be long.
        let end = parser.data().map_or(bytes.len(), |data| data.start as usize);
        let mut head = std::mem::take(&mut self.scratch.text);
        head.clear();
        self.write_untagged_head(lane, parser, &bytes[..end], &mut head);
        self.send(lane, request, Payload::Two(&head, &bytes[end..]));
        self.scratch.text = head;
    }

    /// The head of an upload that names uniques.
    pub(super) fn untagged_head(
        &self,
        lane: LaneId,
        parser: &RequestParser,
        head: &[u8],
    ) -> Vec<u8> {
        let mut text = Vec::new();
        self.write_untagged_head(lane, parser, head, &mut text);
        text
    }

    fn write_untagged_head(
        &self,
        lane: LaneId,
        parser: &RequestParser,
        head: &[u8],
        out: &mut Vec<u8>,
    ) {
        let (cut, foot) = edits(parser);
        let at = write_untagged(parser, head, cut, self.tag_at(lane), out);
        out.extend_from_slice(&head[at..]);
        out.extend_from_slice(foot);
    }

    /// The header of a packet as the lane's server knows its unique.
    pub(super) fn untagged_header(
        &self,
        lane: LaneId,
        header: &[u8; HEADER_SIZE],
    ) -> [u8; HEADER_SIZE] {
        retagged_header(self.tag_at(lane), header)
    }

    /// The tag that goes on what a reply tells: the server's when its first byte comes. A reload
    /// that gives the server another leaves what has begun as it is.
    #[inline]
    pub(crate) fn tag_of_reply(&self, lane: LaneId, request: RequestId) -> Tag {
        let slot = &self.requests[request];
        if !(slot.is_tagged || matches!(slot.expect, Expect::Packet | Expect::PacketQuiet)) {
            return Tag::default();
        }
        match slot.arrived {
            0 => self.tag_at(lane),
            _ => self.lane(lane).tagger.as_ref().map_or(Tag::default(), |tagger| tagger.tag()),
        }
    }

    /// Delivers bytes of a reply with the tag on its uniques.
    #[cold]
    pub(crate) fn deliver_tagged(
        &mut self,
        lane: LaneId,
        request: RequestId,
        tag: Tag,
        (bytes, is_last): (&[u8], bool),
    ) {
        let mut text = std::mem::take(&mut self.scratch.tagged);
        text.clear();
        let lane = &mut self.lanes[lane];
        let tagger = lane.tagger.get_or_insert_default();
        if self.requests[request].arrived == 0 {
            tagger.begin(tag);
        }
        match lane.scanner {
            Scanner::Binary(_) => tagger.write_packet(bytes, &mut text),
            Scanner::Redis(_) | Scanner::Memcached(_) => tagger.write_text(bytes, &mut text),
        }
        if is_last {
            tagger.reset();
            self.deliver(request, &text);
        } else if text.is_empty() {
            // So that it is known to have begun.
            self.requests[request].arrived += bytes.len() as u64;
        } else {
            self.deliver_part(request, &text);
        }
        self.scratch.tagged = text;
    }
}
