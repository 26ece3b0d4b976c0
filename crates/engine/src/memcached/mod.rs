//! Pools of memcached: two protocols on one port, and what memcached promises its clients.
//!
//! Whatever is sent to a server has exactly one answer, whichever way the client asked: a request
//! that wants to hear less is sent in its loud form, or with something behind it that is always
//! answered, and what the client does not want to hear is left out here. So replies keep their
//! places on shared connections, and what closes a batch of quiet requests – `mn`, a binary NOOP –
//! needs no server: it is answered here when all before it is.

mod auth;
mod binary;
mod cas_tag;
mod copies;
mod explain;
mod fallback;
mod get_coalescing;
mod invalidation;
mod meta;
mod multiget_paging;
mod own_stats;
mod permission;
mod quiet_filter;
mod routed;
mod stats;
mod stream;
mod tenant;
mod text;
mod warm_up;

pub use explain::memcached_reach;
pub(crate) use fallback::Notes;
pub(crate) use get_coalescing::{Coalesced, END, Part};
pub(crate) use invalidation::Invalidations;
pub(crate) use multiget_paging::Many;
pub(crate) use tenant::Stripping;

use cashew_config::snapshot::{Protocol, Wire};
use cashew_protocol::memcached::{BINARY_REQUEST, Expect};

use crate::base::failure::NamedFailure;
use crate::base::id::{ClientId, ListenerId, RequestId};
use crate::engine::Engine;
pub(crate) use crate::request::Asked;
use crate::upstream::session_params::WireProtocol;

/// The request of memcached that is being dispatched.
pub(crate) struct RequestCtx {
    pub(crate) asked: Asked,
    pub(crate) expect: Expect,
    /// Uniques of its servers come in the reply and get tags.
    pub(crate) is_tagged: bool,
    /// It names uniques, with tags.
    pub(crate) names_cas_tags: bool,
    /// What a server that has not got the key would say, where that is more than the words for it.
    pub(crate) miss: Vec<u8>,
    /// Why some of its fragments were not sent.
    pub(crate) failure: Option<NamedFailure>,
    /// It was answered with an error, as its user has used up a limit.
    pub(crate) is_over_quota: bool,
    /// It is asked a part at a time, and its keys are as the client has named them.
    pub(crate) is_apart: bool,
}

impl Default for RequestCtx {
    fn default() -> Self {
        Self {
            asked: Asked::default(),
            expect: Expect::Line,
            is_tagged: false,
            names_cas_tags: false,
            miss: Vec::new(),
            failure: None,
            is_over_quota: false,
            is_apart: false,
        }
    }
}

impl Engine {
    /// Whether the client's first byte is still to tell what it speaks.
    pub(crate) fn is_undecided(&self, listener: ListenerId) -> bool {
        let config = &self.listeners[listener].config;
        config.protocol == Protocol::Memcached && config.memcached.wire == Wire::Auto
    }

    /// Takes a client for what its first byte says. Returns whether it speaks the binary protocol.
    #[cold]
    fn decide_wire_protocol(&mut self, index: ClientId, first: u8) -> bool {
        self.clients[index].undecided = false;
        self.update_off_fast_path(index);
        if first != BINARY_REQUEST {
            return false;
        }
        self.clients[index].session.wire_protocol = WireProtocol::Binary;
        let is_followed = self.follow_session(index);
        debug_assert!(is_followed, "two protocols are no more than a pool may have");
        true
    }

    /// Notes what the answer to the request that is dispatched is to be like if its server fails.
    fn note_miss(&mut self, request: RequestId) {
        if !self.request_ctx.miss.is_empty() {
            self.miss_notes.keep(request, &self.request_ctx.miss, &mut self.requests);
        }
    }
}
