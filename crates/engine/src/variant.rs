//! What a connection has agreed on, so that a reply can be passed on as it comes.
//!
//! A client takes lanes that speak its dialect and have its database selected. Most clients of a
//! pool agree on the same; lanes for the others are made when the first of them comes.

use cashew_config::snapshot::{self, Protocol, Wire};

use crate::engine::Engine;

/// How requests and replies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Resp2,
    Resp3,
    /// memcached's text protocol, meta commands included.
    Text,
    /// memcached's binary protocol.
    Binary,
}

impl Dialect {
    /// As it is told to other processes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resp2 => "resp2",
            Self::Resp3 => "resp3",
            Self::Text => "text",
            Self::Binary => "binary",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Resp2, Self::Resp3, Self::Text, Self::Binary];
        all.into_iter().find(|dialect| dialect.name() == name)
    }

    /// What a connection speaks that has not said anything about it.
    pub(crate) fn first_of(config: &snapshot::Pool) -> Self {
        match (config.protocol, config.memcached.wire) {
            (Protocol::Redis, _) => Self::Resp2,
            (Protocol::Memcached, Wire::Auto | Wire::Text) => Self::Text,
            (Protocol::Memcached, Wire::Binary) => Self::Binary,
        }
    }
}

/// A kind of lanes. A pool knows its variants by their index; the first is that of clients which
/// have not asked for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) dialect: Dialect,
    pub(crate) database: u32,
}

/// Each takes lanes, and so connections, to every server of its pool.
pub(crate) const VARIANTS_MAX: usize = 64;

impl Engine {
    /// The index of a variant, whose lanes are made if there are none; `None` if the pool has as
    /// many as it may have.
    pub(crate) fn variant(&mut self, pool_index: u32, variant: Variant) -> Option<u16> {
        let pool = &mut self.pools[pool_index as usize];
        if let Some(index) = pool.variants.iter().position(|&known| known == variant) {
            return Some(index as u16);
        }
        if pool.variants.len() >= VARIANTS_MAX {
            return None;
        }
        pool.variants.push(variant);
        self.complete_variants(pool_index);
        Some((self.pools[pool_index as usize].variants.len() - 1) as u16)
    }

    /// Gives every server of the pool lanes of all variants.
    pub(crate) fn complete_variants(&mut self, pool_index: u32) {
        for server_index in 0..self.pools[pool_index as usize].servers.len() {
            loop {
                let pool = &self.pools[pool_index as usize];
                let server = &pool.servers[server_index];
                let variant = 1 + server.others.len();
                let Some(&Variant { dialect, .. }) = pool.variants.get(variant) else { break };
                let lanes = server.lanes + 1;
                let place = (pool_index, server_index as u32);
                let first = self.add_lanes(lanes, place, variant as u16, dialect);
                self.pools[pool_index as usize].servers[server_index].others.push(first);
            }
        }
    }
}
