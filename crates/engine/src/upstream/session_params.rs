//! What a connection has agreed on, so that a reply can be passed on as it comes.
//!
//! A client takes lanes that speak its dialect and have its database selected. Most clients of a
//! pool agree on the same; lanes for the others are made when the first of them comes, and given
//! back some time after the last of them has gone. A client changes from one variant to another
//! only while it is owed nothing, so that its requests to a server stay in their order.

use cashew_config::snapshot::{self, Protocol, Wire};
use cashew_protocol::{ReplyForm, resp};

use crate::base::id::{BackendId, LaneId};
use crate::base::time::Time;
use crate::engine::Engine;
use crate::upstream::backend::Backend;
use crate::upstream::server::Server;

/// How requests and replies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireProtocol {
    Resp2,
    Resp3,
    /// memcached's text protocol, meta commands included.
    Text,
    /// memcached's binary protocol.
    Binary,
}

impl WireProtocol {
    /// As it is told to other processes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resp2 => "resp2",
            Self::Resp3 => "resp3",
            Self::Text => "text",
            Self::Binary => "binary",
        }
    }

    #[inline(always)]
    pub(crate) fn reply_form(self) -> ReplyForm {
        match self {
            Self::Resp2 | Self::Resp3 => ReplyForm::Resp,
            Self::Text => ReplyForm::Text,
            Self::Binary => ReplyForm::Packet,
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Resp2, Self::Resp3, Self::Text, Self::Binary];
        all.into_iter().find(|wire_protocol| wire_protocol.name() == name)
    }

    /// Of RESP, for what the gateway itself says.
    pub(crate) fn resp(self) -> resp::Version {
        match self {
            Self::Resp3 => resp::Version::Resp3,
            Self::Resp2 | Self::Text | Self::Binary => resp::Version::Resp2,
        }
    }

    /// What a connection speaks that has not said anything about it.
    pub(crate) fn first_of(config: &snapshot::Pool) -> Self {
        match (config.protocol, config.memcached.wire) {
            (Protocol::Redis, _) => Self::Resp2,
            (_, Wire::Binary) => Self::Binary,
            // Where requests are not read, nobody asks.
            _ => Self::Text,
        }
    }
}

/// A kind of lanes. A pool knows its variants by their index; the first is that of clients which
/// have not asked for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionParams {
    pub(crate) wire_protocol: WireProtocol,
    pub(crate) database: u32,
}

/// Who uses a variant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Servers have lanes of it; otherwise its index is free for a variant to come.
    pub(crate) is_open: bool,
    /// Clients that are of it; those of the first variant are not counted.
    pub(crate) clients: u32,
    /// When the last of them left.
    left_at: Time,
}

impl Usage {
    pub(crate) const OPEN: Self = Self { is_open: true, clients: 0, left_at: Time::ZERO };
}

/// Variants of one pool. Each takes lanes, and connections as they are used, to every server.
pub(crate) const VARIANTS_MAX: usize = 64;
/// How long the lanes of a variant stay that no client is of.
const UNUSED_MAX_US: u64 = 10_000_000;

impl Engine {
    /// One client more is of the variant.
    pub(crate) fn enter_variant(&mut self, backend: BackendId, variant: u16) {
        if variant > 0 {
            self.backends[backend].usage[usize::from(variant)].clients += 1;
        }
    }

    /// One client less is of the variant.
    pub(crate) fn leave_variant(&mut self, backend: BackendId, variant: u16) {
        if variant > 0 {
            let usage = &mut self.backends[backend].usage[usize::from(variant)];
            usage.clients -= 1;
            usage.left_at = self.now;
        }
    }

    /// The index of a variant, whose lanes are made if there are none.
    pub(crate) fn variant(&mut self, backend_id: BackendId, variant: SessionParams) -> Option<u16> {
        let backend = &self.backends[backend_id];
        let known =
            |&index: &usize| backend.usage[index].is_open && backend.params_set[index] == variant;
        if let Some(index) = (0..backend.params_set.len()).find(known) {
            return Some(index as u16);
        }
        let closed = backend.usage.iter().position(|usage| !usage.is_open);
        let index = match closed {
            Some(index) => index,
            None if backend.params_set.len() < VARIANTS_MAX => backend.params_set.len(),
            None => self.close_unused(backend_id)?,
        };
        let backend = &mut self.backends[backend_id];
        if index == backend.params_set.len() {
            backend.params_set.push(variant);
            backend.usage.push(Usage::OPEN);
        } else {
            (backend.params_set[index], backend.usage[index]) = (variant, Usage::OPEN);
        }
        backend.usage[index].left_at = self.now;
        self.complete_variants(backend_id);
        Some(index as u16)
    }

    /// Makes room for another variant, if one is of no use any more.
    fn close_unused(&mut self, backend: BackendId) -> Option<usize> {
        let all = 1..self.backends[backend].params_set.len();
        let unused = all.into_iter().find(|&index| self.is_unused(backend, index))?;
        self.close_variant(backend, unused);
        Some(unused)
    }

    /// Gives every server of the pool lanes of all variants.
    pub(crate) fn complete_variants(&mut self, backend_id: BackendId) {
        let backend = &self.backends[backend_id];
        let (servers, params_set) = (backend.servers.ids(), backend.params_set.len());
        for server_index in servers {
            let server = &mut self.backends[backend_id].servers[server_index];
            server.others.resize(params_set - 1, LaneId::NONE);
            for variant in 1..params_set {
                let backend = &self.backends[backend_id];
                let server = &backend.servers[server_index];
                if !backend.usage[variant].is_open || server.others[variant - 1] != LaneId::NONE {
                    continue;
                }
                let (lanes, wire_protocol) =
                    (server.lanes + 1, backend.params_set[variant].wire_protocol);
                let place = (backend_id, server_index);
                let first = self.add_lanes(lanes, place, variant as u16, wire_protocol);
                self.backends[backend_id].servers[server_index].others[variant - 1] = first;
            }
        }
    }

    /// Closes the lanes of variants that nobody has used for a while; for now and then.
    pub(crate) fn maintain_params(&mut self) {
        for backend in self.backends.ids() {
            for index in 1..self.backends[backend].params_set.len() {
                let left_at = self.backends[backend].usage[index].left_at;
                if self.now.micros_since(left_at) >= UNUSED_MAX_US && self.is_unused(backend, index)
                {
                    self.close_variant(backend, index);
                }
            }
        }
    }

    /// Whether a variant has lanes, and neither clients nor anything on its way: what clients asked
    /// that have gone runs to its end.
    fn is_unused(&self, backend: BackendId, index: usize) -> bool {
        let backend = &self.backends[backend];
        let Usage { is_open, clients, .. } = backend.usage[index];
        is_open
            && clients == 0
            && backend.sent_back == 0
            && self.lanes_of(backend, index).all(|lane| !self.lane(lane).is_taken())
    }

    fn lanes_of<'p>(
        &'p self,
        backend: &'p Backend,
        index: usize,
    ) -> impl Iterator<Item = LaneId> + 'p {
        let lanes = backend.servers.iter().flat_map(Server::all_lanes);
        lanes.filter(move |&lane| usize::from(self.lane(lane).variant) == index)
    }

    /// Gives back the lanes of a variant that is not used.
    fn close_variant(&mut self, backend_id: BackendId, index: usize) {
        let backend = &self.backends[backend_id];
        for lane in self.lanes_of(backend, index).collect::<Vec<LaneId>>() {
            // A private one stays, for whoever comes.
            self.reassign(lane, 0);
        }
        for server in self.backends[backend_id].servers.ids() {
            let server = &mut self.backends[backend_id].servers[server];
            let first = std::mem::replace(&mut server.others[index - 1], LaneId::NONE);
            let range = first.number()..first.number() + server.lanes + 1;
            self.vacate(range);
        }
        self.backends[backend_id].usage[index].is_open = false;
    }
}
