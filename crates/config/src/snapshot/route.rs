//! Where the requests of a route go: a tree of nodes whose leaves are pools.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The share that has all keys.
pub const SHARE_ALL: u32 = 10_000;

/// A node of a route's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// A pool, by its name. It has servers of its own: no route leads to a route.
    Pool(String),
    /// By the start of the key: the longest prefix that it has. Sorted by the prefixes' bytes, without
    /// duplicates; the empty prefix, the first then, has all other keys. Without it their requests are
    /// refused. Never empty.
    Prefix(Vec<PrefixArm>),
    /// By the whole key.
    Keys {
        /// Sorted by the keys' bytes, without duplicates.
        exact: Vec<(String, Self)>,
        otherwise: Box<Self>,
        /// Where those that are not in the configuration itself are listed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
    },
    /// By what the command does.
    Operation { read: Box<Self>, write: Box<Self>, delete: Box<Self> },
    /// Every child is asked; the worst answer is the client's, the first child's among equals.
    AllSync(Vec<Self>),
    /// Every child is asked; the client has its answer at once, whatever becomes of it. Reads go to the first.
    AllAsync(Vec<Self>),
    /// Every child is asked; the client has what more than half of them answer.
    AllMajority(Vec<Self>),
    /// Every child is asked; the first good answer is the client's.
    AllFastest {
        to: Vec<Self>,
        /// A miss is an answer only when no child has a hit.
        miss_last: bool,
    },
    /// Every child is asked; the first child's answer is the client's.
    AllInitial(Vec<Self>),
    /// The next child is asked if one has failed.
    Failover {
        to: Vec<Self>,
        on: FailoverOn,
        /// What is stored in another child than the first lives no longer, in milliseconds; `None` is as
        /// long as the client says.
        ttl_ms: Option<u64>,
    },
    /// Reads: the next child is asked if one has a miss or has failed. Writes go to the first.
    MissFailover(Vec<Self>),
    /// Reads that miss in `cold` are asked of `warm`, and what that has is added to `cold`. Writes go to
    /// `cold`.
    WarmUp {
        cold: Box<Self>,
        warm: Box<Self>,
        /// How long what is added lives, in milliseconds; `None` is as long as `warm` says, of
        /// memcached, and as in `warm`, of Redis.
        ttl_ms: Option<u64>,
    },
    /// A share of the keys is asked of `shadow` as well, whose answers nobody waits for.
    Shadow {
        to: Box<Self>,
        shadow: Box<Self>,
        /// Of 10,000 keys, so many.
        share: u32,
        /// Whether answers are compared, and those that differ counted.
        compare: bool,
        /// Requests to `shadow` that may be on their way from one worker; beyond that none is made.
        outstanding_max: u32,
    },
    /// Keys move from one child to another, a share of them at a time.
    Migrate {
        from: Box<Self>,
        to: Box<Self>,
        /// Of 10,000 keys, so many are served by `to`.
        share: u32,
        /// Writes of all keys go to both: to the one that serves the key first.
        dual_write: bool,
        /// Reads that miss where the key is served now are asked of the other one.
        read_other: bool,
        /// The gateway copies what one pool has to the other. Both children are pools then, one of them serves all
        /// keys, and nothing is written to both.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        follow: Option<Follow>,
    },
    /// Keys have several copies, under names of their own, in the same child: reads take one at random, writes
    /// go to all.
    KeySplit {
        to: Box<Self>,
        /// 2 to 1,000.
        copies: u32,
    },
    /// Beyond so many requests per second and worker there is an error.
    Limit { to: Box<Self>, per_second: u32, burst: u32 },
    /// Beyond so many requests on their way from one worker there is an error.
    Outstanding { to: Box<Self>, max: u32 },
    /// Replies to reads of hot keys are kept by the gateway. Reads go straight to one pool from here, and to here.
    Cache { to: Box<Self>, keep: KeepRules },
    /// Writes go to one region first, and when that has done them to the others, whom nobody waits for.
    Regions {
        /// By their names. All but the primary are pools that keep what they are to forget.
        to: Vec<(String, Self)>,
        /// Who gets writes first, by its place.
        primary: u32,
        /// Who answers reads, by its place.
        reads: u32,
        /// Writes that may be on their way to the others from one worker. What is beyond that is removed there.
        outstanding_max: u32,
    },
}

/// What a node keeps of replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepRules {
    /// Bytes of all workers together; each has an equal share.
    pub bytes: u64,
    /// The longest life of a reply, in milliseconds, from when the server was asked.
    pub ttl_ms: u64,
    /// The same of a reply that says that there is no such key; 0 keeps none.
    pub negative_ms: u64,
    /// The longest reply, in bytes.
    pub value_max: u64,
    /// What keys begin with that may be kept; all if it is empty. Sorted, without duplicates.
    pub keys: Vec<String>,
    /// Only keys that are hot.
    #[serde(default)]
    pub hot_only: bool,
}

/// How what one pool has is copied to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follow {
    /// Where it is kept how far it is.
    pub directory: PathBuf,
    /// Keys that are copied in a second at most; 0 is as many as possible.
    pub keys_per_second: u64,
    /// Bytes of values that are copied in a second at most; 0 is as many as possible.
    pub bytes_per_second: u64,
}

/// One pool that is copied to another, as a tree says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'r> {
    pub from: &'r str,
    pub to: &'r str,
    pub follow: &'r Follow,
    /// Clients are served by `to`, and `from` is the copy.
    pub is_cut_over: bool,
}

/// Keys that begin alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixArm {
    pub prefix: String,
    /// What servers see in the prefix' place, if not the prefix itself: the empty text where it is stripped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<String>,
    pub to: Route,
}

/// After what a request is sent to the next child. What may have run is repeated only if it reads, or if
/// repeating it leaves the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailoverOn {
    /// It was not sent: no server, refused, out, queue full.
    pub refused: bool,
    /// No answer in time, or none since the connection ended.
    pub timeout: bool,
    /// The server answered with an error about itself: LOADING, READONLY, CLUSTERDOWN, MASTERDOWN, OOM, `SERVER_ERROR`.
    pub error: bool,
}

impl Default for FailoverOn {
    fn default() -> Self {
        Self { refused: true, timeout: true, error: true }
    }
}

impl Route {
    /// The children in their order.
    pub fn children(&self) -> Vec<&Self> {
        match self {
            Self::Pool(_) => Vec::new(),
            Self::Prefix(arms) => arms.iter().map(|arm| &arm.to).collect(),
            Self::Keys { exact, otherwise, .. } => {
                exact.iter().map(|(_, route)| route).chain([&**otherwise]).collect()
            }
            Self::Operation { read, write, delete } => vec![read, write, delete],
            Self::AllSync(to)
            | Self::AllAsync(to)
            | Self::AllMajority(to)
            | Self::AllFastest { to, .. }
            | Self::AllInitial(to)
            | Self::Failover { to, .. }
            | Self::MissFailover(to) => to.iter().collect(),
            Self::WarmUp { cold, warm, .. } => vec![cold, warm],
            Self::Shadow { to, shadow, .. } => vec![to, shadow],
            Self::Migrate { from, to, .. } => vec![from, to],
            Self::KeySplit { to, .. }
            | Self::Limit { to, .. }
            | Self::Outstanding { to, .. }
            | Self::Cache { to, .. } => vec![to],
            Self::Regions { to, .. } => to.iter().map(|(_, route)| route).collect(),
        }
    }

    /// The pools that are copied to others.
    pub fn moves(&self) -> Vec<Move<'_>> {
        let mut moves: Vec<Move<'_>> = self.children().into_iter().flat_map(Self::moves).collect();
        if let Self::Migrate { from, to, share, follow: Some(follow), .. } = self
            && let (Self::Pool(from), Self::Pool(to)) = (&**from, &**to)
        {
            moves.push(Move { from, to, follow, is_cut_over: *share > 0 });
        }
        moves
    }

    /// What its nodes keep of replies.
    pub fn kept(&self) -> Vec<&KeepRules> {
        let mut kept: Vec<&KeepRules> = self.children().into_iter().flat_map(Self::kept).collect();
        if let Self::Cache { keep, .. } = self {
            kept.push(keep);
        }
        kept
    }

    /// Whether a node keeps replies to reads of a pool's hot keys.
    pub fn keeps_hot_of(&self, pool: &str) -> bool {
        match self {
            Self::Cache { to, keep } if keep.hot_only => to.pools().contains(&pool),
            _ => self.children().into_iter().any(|child| child.keeps_hot_of(pool)),
        }
    }

    /// Why reads of a key do not go straight to one pool by the name that the key has here, if they do not: the node
    /// that stands in the way.
    pub fn obstacle(&self) -> Option<&'static str> {
        match self {
            Self::Pool(_) => None,
            Self::Prefix(arms) if arms.iter().any(|arm| arm.rewrite.is_some()) => {
                Some("a prefix with \"strip\" or \"rewrite\"")
            }
            Self::Prefix(_) | Self::Keys { .. } | Self::Operation { .. } => {
                self.children().into_iter().find_map(Self::obstacle)
            }
            Self::Regions { to, .. } => to.iter().find_map(|(_, route)| route.obstacle()),
            Self::AllSync(_) => Some("\"all_sync\""),
            Self::AllAsync(_) => Some("\"all_async\""),
            Self::AllMajority(_) => Some("\"all_majority\""),
            Self::AllFastest { .. } => Some("\"all_fastest\""),
            Self::AllInitial(_) => Some("\"all_initial\""),
            Self::Failover { .. } => Some("\"failover\""),
            Self::MissFailover(_) => Some("\"miss_failover\""),
            Self::WarmUp { .. } => Some("\"warm_up\""),
            Self::Shadow { .. } => Some("\"shadow\""),
            Self::Migrate { .. } => Some("\"migrate\""),
            Self::KeySplit { .. } => Some("\"key_split\""),
            Self::Limit { .. } => Some("\"limit\""),
            Self::Outstanding { .. } => Some("\"outstanding\""),
            Self::Cache { .. } => Some("another \"cache\""),
        }
    }

    /// Has all moves that are kept in a directory served by `to`, or by `from`.
    pub fn set_cut_over(&mut self, directory: &Path, is_cut_over: bool) {
        if let Self::Migrate { share, follow: Some(follow), .. } = self
            && follow.directory == directory
        {
            *share = if is_cut_over { SHARE_ALL } else { 0 };
        }
        for child in self.children_mut() {
            child.set_cut_over(directory, is_cut_over);
        }
    }

    fn children_mut(&mut self) -> Vec<&mut Self> {
        match self {
            Self::Pool(_) => Vec::new(),
            Self::Prefix(arms) => arms.iter_mut().map(|arm| &mut arm.to).collect(),
            Self::Keys { exact, otherwise, .. } => {
                exact.iter_mut().map(|(_, route)| route).chain([&mut **otherwise]).collect()
            }
            Self::Operation { read, write, delete } => vec![read, write, delete],
            Self::AllSync(to)
            | Self::AllAsync(to)
            | Self::AllMajority(to)
            | Self::AllFastest { to, .. }
            | Self::AllInitial(to)
            | Self::Failover { to, .. }
            | Self::MissFailover(to) => to.iter_mut().collect(),
            Self::WarmUp { cold, warm, .. } => vec![cold, warm],
            Self::Shadow { to, shadow, .. } => vec![to, shadow],
            Self::Migrate { from, to, .. } => vec![from, to],
            Self::KeySplit { to, .. }
            | Self::Limit { to, .. }
            | Self::Outstanding { to, .. }
            | Self::Cache { to, .. } => vec![to],
            Self::Regions { to, .. } => to.iter_mut().map(|(_, route)| route).collect(),
        }
    }

    /// The pools that it leads to, in the order of the tree, each once.
    pub fn pools(&self) -> Vec<&str> {
        let mut pools = Vec::new();
        self.collect_pools(&mut pools);
        pools
    }

    fn collect_pools<'r>(&'r self, pools: &mut Vec<&'r str>) {
        if let Self::Pool(pool) = self
            && !pools.contains(&pool.as_str())
        {
            pools.push(pool);
        }
        for child in self.children() {
            child.collect_pools(pools);
        }
    }
}

/// By what keys are told whose requests are a share's: a number below 10,000, which is FNV-1a of 64 bits of
/// the whole key, modulo that.
pub fn share_of(key: &[u8]) -> u32 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let hash = key.iter().fold(OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    (hash % 10_000) as u32
}
