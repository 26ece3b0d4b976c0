//! What indices name, and names of connections, which are shared with the driver.

use std::fmt;

/// A number that names one thing of its kind, so that indices of two kinds cannot be exchanged.
pub(crate) trait Id: Copy + Eq {
    fn new(number: u32) -> Self;
    fn number(self) -> u32;
}

macro_rules! ids {
    ($($(#[$meta:meta])* $visibility:vis $name:ident)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility struct $name(u32);

        #[allow(dead_code)]
        impl $name {
            /// Names nothing.
            $visibility const NONE: Self = Self(u32::MAX);

            #[inline(always)]
            $visibility const fn new(number: u32) -> Self {
                Self(number)
            }

            #[inline(always)]
            $visibility const fn number(self) -> u32 {
                self.0
            }

            #[inline(always)]
            $visibility const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl Id for $name {
            #[inline(always)]
            fn new(number: u32) -> Self {
                Self(number)
            }

            #[inline(always)]
            fn number(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    /// A client's slot. Another client may have it later: see [`ConnId`].
    pub(crate) ClientId
    /// A request's slot.
    pub(crate) RequestId
    /// What goes on after the reply to a request.
    pub(crate) FlowId
    /// A read that is on its way to two servers.
    pub(crate) HedgeId
    /// A connection to a server, while connections of it come and go.
    pub(crate) LaneId
    /// What a port promises its clients. First come those of the epoch in use, in its order.
    pub ListenerId
    /// A set of servers. First come those of the epoch in use, in its order.
    pub BackendId
    /// A pool of an epoch: a listener and the backend behind it.
    pub(crate) PoolId
    /// A server among those of its backend.
    pub ServerId
    /// A shard among those of its backend.
    pub(crate) ShardId
    /// A client's connection that bytes pass through, or a server's that they pass to.
    pub(crate) PairId
    /// The place of a topic among those of its backend; another topic may have it later.
    pub(crate) TopicSlot
}

/// A client's or a server's connection. A stale id (its connection closed, its slot used anew)
/// names nothing: the generation differs.
///
/// As a token: bits 0..30 index, bit 30 set for one of a pair, bit 31 for a server connection, bits 32..64 generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId(u64);

const LANE: u64 = 1 << 31;
/// Of connections that bytes pass through, from a client to a server of its own. Neither clients nor lanes have such an
/// index.
const PAIRED: u64 = 1 << 30;

impl ConnId {
    pub(crate) fn of_client(index: ClientId, generation: u32) -> Self {
        let index = u64::from(index.number());
        debug_assert!(index < LANE);
        Self(u64::from(generation) << 32 | index)
    }

    pub(crate) fn of_lane(index: u32, generation: u32) -> Self {
        debug_assert!(u64::from(index) < LANE);
        Self(u64::from(generation) << 32 | LANE | u64::from(index))
    }

    pub(crate) fn of_pair(index: PairId, generation: u32) -> Self {
        debug_assert!(u64::from(index.number()) < PAIRED);
        Self(u64::from(generation) << 32 | PAIRED | u64::from(index.number()))
    }

    pub(crate) fn of_pair_to_server(index: PairId, generation: u32) -> Self {
        Self(Self::of_pair(index, generation).0 | LANE)
    }

    pub fn from_token(token: u64) -> Self {
        Self(token)
    }

    pub fn token(self) -> u64 {
        self.0
    }

    /// Whether this is a connection to a server.
    pub fn is_lane(self) -> bool {
        self.0 & LANE != 0
    }

    /// Whether bytes pass through it as they are: it is neither a client's that sends requests nor a lane.
    #[inline]
    pub fn is_paired(self) -> bool {
        self.0 & PAIRED != 0
    }

    /// Of one of a pair: its slot.
    pub(crate) fn pair(self) -> PairId {
        PairId((self.0 & (PAIRED - 1)) as u32)
    }

    /// Of a connection to a server: the slot that it is named by.
    pub(crate) fn slot(self) -> u32 {
        (self.0 & (LANE - 1)) as u32
    }

    /// Of a client's connection.
    pub(crate) fn client(self) -> ClientId {
        ClientId(self.slot())
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}
