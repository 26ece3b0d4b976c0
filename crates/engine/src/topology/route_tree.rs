//! The tree of a route, as requests walk it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cashew_config::snapshot::{self, FailoverOn, Route, SHARE_ALL, share_of};

use crate::base::bucket::Bucket;
use crate::base::id::BackendId;
use crate::base::time::Time;
use crate::topology::cache_rules::CacheRules;

/// A node's place in its [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u32);

/// What a request does with a key, as far as a route is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    Delete,
}

/// A route's tree. Nodes stand behind their parents; backends are named by their numbers.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    root: NodeId,
    /// The backends that it leads to, in the order of the tree.
    backends: Vec<BackendId>,
    /// What they are called, in the same order.
    names: Vec<String>,
    has_caches: bool,
}

#[derive(Debug)]
pub(crate) enum Node {
    Leaf(BackendId),
    /// Of `to` the primary gets writes first. `busy` writes of `busy_size` bytes are on their way to the others.
    Regions {
        to: Vec<NodeId>,
        primary: usize,
        reads: usize,
        outstanding_max: u32,
        busy: AtomicU32,
        busy_size: AtomicU64,
    },
    /// A leaf that keeps what it could not delete, and with `overwrites` what it could not write over.
    Spool {
        to: NodeId,
        overwrites: bool,
    },
    /// Sorted by prefix.
    Prefix(Vec<Arm>),
    Keys {
        exact: HashMap<Box<[u8]>, NodeId>,
        otherwise: NodeId,
    },
    Operation {
        read: NodeId,
        write: NodeId,
        delete: NodeId,
    },
    AllSync(Vec<NodeId>),
    AllAsync(Vec<NodeId>),
    AllMajority(Vec<NodeId>),
    AllFastest {
        to: Vec<NodeId>,
        miss_last: bool,
    },
    AllInitial(Vec<NodeId>),
    Failover {
        to: Vec<NodeId>,
        on: FailoverOn,
        ttl_ms: Option<u64>,
    },
    MissFailover(Vec<NodeId>),
    WarmUp {
        to: [NodeId; 2],
        ttl_ms: Option<u64>,
    },
    /// `busy` requests to the shadow are on their way.
    Shadow {
        to: [NodeId; 2],
        share: u32,
        compare: bool,
        outstanding_max: u32,
        busy: AtomicU32,
    },
    Migrate {
        to: [NodeId; 2],
        share: u32,
        dual_write: bool,
        read_other: bool,
    },
    KeySplit {
        to: NodeId,
        copies: u32,
    },
    Limit {
        to: NodeId,
        bucket: Bucket,
    },
    /// Replies to reads are kept: see [`crate::engine::cache`].
    Cache {
        to: NodeId,
        rules: Box<CacheRules>,
        /// Of its store.
        number: AtomicU32,
    },
    /// `busy` requests are on their way.
    Outstanding {
        to: NodeId,
        max: u32,
        busy: AtomicU32,
    },
}

/// Keys that begin alike.
#[derive(Debug)]
pub(crate) struct Arm {
    prefix: Box<[u8]>,
    /// What servers see in its place.
    pub(crate) rewrite: Option<Box<[u8]>>,
    to: NodeId,
}

impl Arm {
    /// The prefix, and what servers see in its place.
    pub(crate) fn rewriting(&self) -> Option<(&[u8], &[u8])> {
        self.rewrite.as_deref().map(|rewrite| (&*self.prefix, rewrite))
    }
}

/// Where a key's requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To one backend, as they are.
    Straight(BackendId),
    /// By a node that asks several, or changes the request.
    Forked(NodeId),
    /// Nowhere: no prefix is the key's.
    None,
}

impl Tree {
    /// `backend` names the backend of a pool.
    pub(crate) fn new(route: &Route, backend: &impl Fn(&str) -> (BackendId, Option<bool>)) -> Self {
        let (nodes, backends, names) = (Vec::new(), Vec::new(), Vec::new());
        let mut tree = Self { nodes, root: NodeId(0), backends, names, has_caches: false };
        tree.root = tree.add(route, backend);
        tree.has_caches = tree.nodes.iter().any(|node| matches!(node, Node::Cache { .. }));
        let mut backends = Vec::new();
        for pool in route.pools() {
            let (backend, _) = backend(pool);
            if !backends.contains(&backend) {
                backends.push(backend);
                tree.names.push(pool.to_owned());
            }
        }
        tree.backends = backends;
        tree
    }

    fn add(
        &mut self,
        route: &Route,
        backend: &impl Fn(&str) -> (BackendId, Option<bool>),
    ) -> NodeId {
        let place = self.nodes.len();
        // Its place is in front of its children's.
        self.nodes.push(Node::Leaf(BackendId::NONE));
        let mut add = |route: &Route| self.add(route, backend);
        let node = match route {
            Route::Pool(pool) => match backend(pool) {
                (backend, None) => Node::Leaf(backend),
                (backend, Some(overwrites)) => {
                    self.nodes.push(Node::Leaf(backend));
                    Node::Spool { to: NodeId(self.nodes.len() as u32 - 1), overwrites }
                }
            },
            Route::Prefix(arms) => {
                let arm = |arm: &snapshot::PrefixArm| Arm {
                    prefix: arm.prefix.as_bytes().into(),
                    rewrite: arm.rewrite.as_ref().map(|text| text.as_bytes().into()),
                    to: add(&arm.to),
                };
                Node::Prefix(arms.iter().map(arm).collect())
            }
            Route::Keys { exact, otherwise, .. } => {
                // A file may list a million keys, most of them for the same few nodes.
                let mut known: HashMap<String, NodeId> = HashMap::new();
                let entry = |(key, route): &(String, Route)| {
                    let to = match route {
                        Route::Pool(pool) => match known.get(pool) {
                            Some(&to) => to,
                            None => *known.entry(pool.clone()).or_insert(add(route)),
                        },
                        route => add(route),
                    };
                    (key.as_bytes().into(), to)
                };
                let exact = exact.iter().map(entry).collect();
                Node::Keys { exact, otherwise: add(otherwise) }
            }
            Route::Operation { read, write, delete } => {
                Node::Operation { read: add(read), write: add(write), delete: add(delete) }
            }
            Route::AllSync(to) => Node::AllSync(to.iter().map(add).collect()),
            Route::AllAsync(to) => Node::AllAsync(to.iter().map(add).collect()),
            Route::AllMajority(to) => Node::AllMajority(to.iter().map(add).collect()),
            Route::AllFastest { to, miss_last } => {
                Node::AllFastest { to: to.iter().map(add).collect(), miss_last: *miss_last }
            }
            Route::AllInitial(to) => Node::AllInitial(to.iter().map(add).collect()),
            Route::Failover { to, on, ttl_ms } => {
                Node::Failover { to: to.iter().map(add).collect(), on: *on, ttl_ms: *ttl_ms }
            }
            Route::MissFailover(to) => Node::MissFailover(to.iter().map(add).collect()),
            Route::WarmUp { cold, warm, ttl_ms } => {
                Node::WarmUp { to: [add(cold), add(warm)], ttl_ms: *ttl_ms }
            }
            Route::Shadow { to, shadow, share, compare, outstanding_max } => Node::Shadow {
                to: [add(to), add(shadow)],
                share: *share,
                compare: *compare,
                outstanding_max: *outstanding_max,
                busy: AtomicU32::new(0),
            },
            Route::Migrate { from, to, share, dual_write, read_other, .. } => Node::Migrate {
                to: [add(from), add(to)],
                share: *share,
                dual_write: *dual_write,
                read_other: *read_other,
            },
            Route::KeySplit { to, copies } => Node::KeySplit { to: add(to), copies: *copies },
            Route::Limit { to, per_second, burst } => {
                Node::Limit { to: add(to), bucket: Bucket::new(*per_second, *burst) }
            }
            Route::Regions { to, primary, reads, outstanding_max } => Node::Regions {
                to: to.iter().map(|(_, route)| add(route)).collect(),
                primary: *primary as usize,
                reads: *reads as usize,
                outstanding_max: *outstanding_max,
                busy: AtomicU32::new(0),
                busy_size: AtomicU64::new(0),
            },
            Route::Cache { to, keep } => Node::Cache {
                to: add(to),
                rules: Box::new(CacheRules::of(keep)),
                number: AtomicU32::new(u32::MAX),
            },
            Route::Outstanding { to, max } => {
                Node::Outstanding { to: add(to), max: *max, busy: AtomicU32::new(0) }
            }
        };
        self.nodes[place] = node;
        NodeId(place as u32)
    }

    /// The backends that it leads to, in the order of the tree, each once.
    pub(crate) fn backends(&self) -> &[BackendId] {
        &self.backends
    }

    /// What a backend is called, by its number when the tree was made.
    pub(crate) fn name_of(&self, backend: BackendId) -> Option<&str> {
        let at = self.backends.iter().position(|it| *it == backend)?;
        Some(&self.names[at])
    }

    /// Where everything goes that has no key.
    pub(crate) fn home(&self) -> BackendId {
        self.first_of(self.root)
    }

    /// Whether what deletes may go elsewhere than what writes.
    pub(crate) fn tells_deletions(&self) -> bool {
        let tells = |node: &Node| match node {
            Node::Operation { write, delete, .. } => write != delete,
            Node::Spool { .. } | Node::Regions { .. } => true,
            _ => false,
        };
        self.nodes.iter().any(tells)
    }

    /// Whether there are nodes that keep replies.
    pub(crate) fn has_caches(&self) -> bool {
        self.has_caches
    }

    /// The number of the store for reads of a key, if they pass a node that keeps replies. Above one there are only
    /// nodes that choose by the key.
    pub(crate) fn cache_of(&self, key: &[u8]) -> Option<u32> {
        if !self.has_caches {
            return None;
        }
        let mut at = self.root;
        loop {
            if let Node::Cache { number, .. } = self.node(at) {
                return Some(number.load(Ordering::Relaxed));
            }
            match self.choice(at, (key, key), Operation::Read) {
                Choice::Child(child, _) => at = child,
                Choice::Itself | Choice::Nothing => return None,
            }
        }
    }

    /// What nodes may keep, in their order, each with the number of its store, which is this one and the next ones.
    pub(crate) fn number_caches(&self, first: u32) -> Vec<CacheRules> {
        let mut all = Vec::new();
        for node in &self.nodes {
            if let Node::Cache { rules, number, .. } = node {
                number.store(first + all.len() as u32, Ordering::Relaxed);
                all.push((**rules).clone());
            }
        }
        all
    }

    pub(crate) fn root(&self) -> NodeId {
        self.root
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Where the requests for a key go.
    #[inline]
    pub(crate) fn way(&self, key: &[u8], operation: Operation) -> Way {
        let mut at = self.root;
        loop {
            at = match self.node(at) {
                Node::Leaf(backend) => return Way::Straight(*backend),
                Node::Prefix(arms) => match arm_of(arms, key) {
                    None => return Way::None,
                    Some(arm) if arm.rewrite.is_some() => return Way::Forked(at),
                    Some(arm) => arm.to,
                },
                node => match node.step(key, key, operation) {
                    Some(next) => next,
                    None => return Way::Forked(at),
                },
            }
        }
    }

    /// The child that a node which only chooses sends a key's requests to, and the arm by which, if a prefix
    /// decides.
    ///
    /// `own` is the key as the client has it, by which it is of a share or not; `key` as it is at this node.
    pub(crate) fn choice(
        &self,
        node: NodeId,
        (key, own): (&[u8], &[u8]),
        operation: Operation,
    ) -> Choice<'_> {
        match self.node(node) {
            Node::Prefix(arms) => match arm_of(arms, key) {
                Some(arm) => Choice::Child(arm.to, Some(arm)),
                None => Choice::Nothing,
            },
            node => match node.step(key, own, operation) {
                Some(child) => Choice::Child(child, None),
                None => Choice::Itself,
            },
        }
    }

    /// The first leaf below a node.
    pub(crate) fn first_of(&self, node: NodeId) -> BackendId {
        match self.node(node) {
            Node::Leaf(backend) => *backend,
            // That of all other keys, if there is one.
            Node::Prefix(arms) => arms.first().map_or(BackendId::NONE, |arm| self.first_of(arm.to)),
            Node::Keys { otherwise, .. } => self.first_of(*otherwise),
            Node::Operation { write, .. } => self.first_of(*write),
            Node::Regions { to, primary, .. } => self.first_of(to[*primary]),
            Node::Migrate { to, share, .. } => self.first_of(to[usize::from(*share >= SHARE_ALL)]),
            node => node.children().first().map_or(BackendId::NONE, |&child| self.first_of(child)),
        }
    }

    /// Where a key's requests go that are not for several pools: at each node to the first child. With a time
    /// they count for the limits on their way.
    pub(crate) fn first_for(
        &self,
        node: NodeId,
        key: &[u8],
        operation: Operation,
        now: Option<Time>,
    ) -> First {
        self.walk_first(node, key, operation, now, |_| {})
    }

    /// The nodes of regions on that way.
    pub(crate) fn regions_on_way(&self, key: &[u8], operation: Operation) -> Vec<NodeId> {
        let mut found = Vec::new();
        self.walk_first(self.root, key, operation, None, |at| {
            if let Node::Regions { .. } = self.node(at) {
                found.push(at);
            }
        });
        found
    }

    /// Whether there is a node of regions anywhere.
    pub(crate) fn has_regions(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node, Node::Regions { .. }))
    }

    fn walk_first(
        &self,
        node: NodeId,
        key: &[u8],
        operation: Operation,
        now: Option<Time>,
        mut pass: impl FnMut(NodeId),
    ) -> First {
        let (mut at, mut is_rewritten, mut is_refused) = (node, false, false);
        loop {
            pass(at);
            at = match self.choice(at, (key, key), operation) {
                Choice::Nothing => {
                    return First { backend: BackendId::NONE, is_rewritten, is_refused };
                }
                Choice::Child(child, arm) => {
                    is_rewritten |= arm.is_some_and(|arm| arm.rewrite.is_some());
                    child
                }
                Choice::Itself => match self.node(at) {
                    Node::Leaf(backend) => {
                        return First { backend: *backend, is_rewritten, is_refused };
                    }
                    Node::Migrate { to, share, .. } => to[usize::from(share_of(key) < *share)],
                    Node::Regions { to, primary, .. } => to[*primary],
                    Node::KeySplit { to, .. } => {
                        is_rewritten = true;
                        *to
                    }
                    Node::Limit { to, bucket } => {
                        is_refused |= now.is_some_and(|now| !bucket.take(now));
                        *to
                    }
                    node => node.children()[0],
                },
            }
        }
    }
}

/// What a node that only chooses says of a key.
pub(crate) enum Choice<'t> {
    Child(NodeId, Option<&'t Arm>),
    /// It does not only choose.
    Itself,
    /// It has no child for it.
    Nothing,
}

/// Where what follows the first child goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    /// [`BackendId::NONE`] if nowhere.
    pub(crate) backend: BackendId,
    /// Servers know the key by another name.
    pub(crate) is_rewritten: bool,
    /// A limit does not let it through.
    pub(crate) is_refused: bool,
}

impl Node {
    /// The next node, of one that chooses by key and operation alone.
    #[inline]
    fn step(&self, key: &[u8], own: &[u8], operation: Operation) -> Option<NodeId> {
        match self {
            Self::Regions { to, reads, .. } if operation == Operation::Read => Some(to[*reads]),
            Self::Spool { to, overwrites } => match operation {
                Operation::Read => Some(*to),
                Operation::Write if !overwrites => Some(*to),
                Operation::Write | Operation::Delete => None,
            },
            Self::Keys { exact, otherwise } => Some(exact.get(key).copied().unwrap_or(*otherwise)),
            Self::Operation { read, write, delete } => Some(match operation {
                Operation::Read => *read,
                Operation::Write => *write,
                Operation::Delete => *delete,
            }),
            Self::Migrate { to, share, dual_write: false, read_other: false } => {
                Some(to[usize::from(share_of(own) < *share)])
            }
            Self::Cache { to, .. } => Some(*to),
            Self::AllAsync(to) if operation == Operation::Read => Some(to[0]),
            Self::MissFailover(to) if operation != Operation::Read => Some(to[0]),
            Self::WarmUp { to, .. } if operation != Operation::Read => Some(to[0]),
            Self::Shadow { to, share, .. } if share_of(own) >= *share => Some(to[0]),
            _ => None,
        }
    }

    /// How many children it may ask. Copies of a key are as many children.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::KeySplit { copies, .. } => *copies as usize,
            node => node.children().len(),
        }
    }

    pub(crate) fn child(&self, at: usize) -> NodeId {
        match self {
            Self::KeySplit { to, .. } => *to,
            node => node.children()[at],
        }
    }

    pub(crate) fn children(&self) -> &[NodeId] {
        match self {
            Self::Leaf(_) | Self::Prefix(_) | Self::Keys { .. } | Self::Operation { .. } => &[],
            Self::AllSync(to)
            | Self::AllAsync(to)
            | Self::AllMajority(to)
            | Self::AllFastest { to, .. }
            | Self::AllInitial(to)
            | Self::Failover { to, .. }
            | Self::Regions { to, .. }
            | Self::MissFailover(to) => to,
            Self::WarmUp { to, .. } | Self::Shadow { to, .. } | Self::Migrate { to, .. } => to,
            Self::KeySplit { to, .. }
            | Self::Limit { to, .. }
            | Self::Outstanding { to, .. }
            | Self::Cache { to, .. }
            | Self::Spool { to, .. } => std::slice::from_ref(to),
        }
    }
}

/// The arm of the longest prefix that a key has. Arms are sorted by prefix, so that those of which one begins
/// as another are behind it.
#[inline]
fn arm_of<'a>(arms: &'a [Arm], key: &[u8]) -> Option<&'a Arm> {
    // Of all prefixes that are not behind the key the last is the longest that fits, or shares with the key
    // what a shorter one that fits has.
    let mut end = arms.partition_point(|arm| *arm.prefix <= *key);
    while end > 0 {
        let arm = &arms[end - 1];
        if key.starts_with(&arm.prefix) {
            return Some(arm);
        }
        let common = arm.prefix.iter().zip(key).take_while(|(one, other)| one == other).count();
        end = arms[..end - 1].partition_point(|arm| *arm.prefix <= key[..common]);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(route: Route) -> Tree {
        let number = |pool: &str| (BackendId::new(pool.parse().unwrap()), None);
        Tree::new(&route, &number)
    }

    fn pool(number: u32) -> Route {
        Route::Pool(number.to_string())
    }

    fn arms(prefixes: &[&str]) -> Route {
        let mut arms: Vec<_> = (0..)
            .zip(prefixes)
            .map(|(number, prefix)| snapshot::PrefixArm {
                prefix: (*prefix).to_owned(),
                rewrite: None,
                to: pool(number),
            })
            .collect();
        arms.sort_by(|one, other| one.prefix.cmp(&other.prefix));
        Route::Prefix(arms)
    }

    #[test]
    fn the_longest_prefix_decides_whatever_stands_between() {
        let prefixes = ["", "a", "ab", "abc", "abz", "b", "user:", "user:1:"];
        let tree = tree(arms(&prefixes));
        let keys = [
            "", "a", "ab", "abc", "abd", "abzz", "ac", "b", "c", "user", "user:1", "user:1:x",
            "user:2", "zz",
        ];
        for key in keys {
            let fits = (0..).zip(prefixes).filter(|(_, prefix)| key.starts_with(prefix));
            let longest = fits.max_by_key(|(_, prefix)| prefix.len()).unwrap().0;
            let way = tree.way(key.as_bytes(), Operation::Read);
            assert_eq!(way, Way::Straight(BackendId::new(longest)), "{key}");
        }
    }

    #[test]
    fn a_key_without_a_prefix_goes_nowhere() {
        let tree = tree(arms(&["a", "ab"]));
        assert_eq!(tree.way(b"b", Operation::Read), Way::None);
        assert_eq!(tree.way(b"", Operation::Read), Way::None);
        assert_eq!(tree.way(b"abc", Operation::Read), Way::Straight(BackendId::new(1)));
    }

    #[test]
    fn operations_have_ways_of_their_own() {
        let (read, write, delete) = (pool(1), pool(2), pool(3));
        let [read, write, delete] = [read, write, delete].map(Box::new);
        let tree = tree(Route::Operation { read, write, delete });
        let of = |operation| tree.way(b"k", operation);
        assert_eq!(of(Operation::Read), Way::Straight(BackendId::new(1)));
        assert_eq!(of(Operation::Write), Way::Straight(BackendId::new(2)));
        assert_eq!(of(Operation::Delete), Way::Straight(BackendId::new(3)));
        assert_eq!(tree.home(), BackendId::new(2));
    }

    #[test]
    fn what_has_no_key_goes_where_all_keys_go() {
        for (share, first) in [(0, 1), (SHARE_ALL - 1, 1), (SHARE_ALL, 2)] {
            let [from, to] = [1, 2].map(|number| Box::new(pool(number)));
            let (dual_write, read_other, follow) = (false, false, None);
            let tree = tree(Route::Migrate { from, to, share, dual_write, read_other, follow });
            assert_eq!(tree.first_of(tree.root()), BackendId::new(first), "{share}");
        }
    }

    #[test]
    fn keys_that_migrate_alone_go_straight() {
        let [from, to] = [1, 2].map(|number| Box::new(pool(number)));
        let tree = tree(Route::Migrate {
            from,
            to,
            share: 5000,
            dual_write: false,
            read_other: false,
            follow: None,
        });
        let keys = (0..10_000).map(|number| format!("key-{number}"));
        let there = keys.filter(|key| {
            tree.way(key.as_bytes(), Operation::Read) == Way::Straight(BackendId::new(2))
        });
        let there = there.count();
        assert!((4700..5300).contains(&there), "{there} of 10,000");
    }
}
