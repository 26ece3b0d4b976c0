//! From nodes as in the file to the tree of a route.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use schemars::{Schema, SchemaGenerator, json_schema};

use super::keys::{self, KEYS_MAX};
use super::sections::{
    ArmSection, Branches, CacheSection, FailoverSection, FastestSection, KeySplitSection,
    KeysSection, LimitSection, MigrateSection, Miss, OperationSection, OutstandingSection,
    RegionsSection, ShadowSection, WarmUpSection,
};
use super::{Branch, Reach};
use crate::diagnostic::{At, Complaint, Pos, Report, nearest};
use crate::migration::MoveState;
use crate::resolve::Context;
use crate::section::{self, Section};
use crate::snapshot::{
    FailoverOn, Follow, KeepRules, PrefixArm, Protocol, Reads, Route, SHARE_ALL,
};
use crate::tree::{Kind, Node};
use crate::value::{SizeText, Text, Value};

/// Most nodes from the root of a route to a leaf, both included.
const DEPTH_MAX: usize = 16;

/// Most nodes of a route; pools that `keys` lead to do not count.
const NODES_MAX: usize = 65_536;

/// Lines of a file with keys that are complained of; the rest is counted.
const LINES_SHOWN_MAX: usize = 10;

/// Names that are listed in a hint.
const NAMES_SHOWN_MAX: usize = 12;

/// Longest key of memcached.
const MEMCACHED_KEY_MAX: usize = 250;

const KINDS: [&str; 18] = [
    "prefix",
    "keys",
    "operation",
    "all_sync",
    "all_async",
    "all_majority",
    "all_fastest",
    "all_initial",
    "failover",
    "miss_failover",
    "warm_up",
    "shadow",
    "migrate",
    "key_split",
    "limit",
    "outstanding",
    "cache",
    "regions",
];

/// Nodes that only choose by the key and what is done with it.
const CHOOSING: [&str; 3] = ["prefix", "keys", "operation"];

/// How long replies are kept of Redis, which tells what changes, and of memcached, which does not.
const REDIS_KEPT_FOR_MS: u64 = 10_000;
const MEMCACHED_KEPT_FOR_MS: u64 = 1000;

/// So many of the longest replies have room in a cache.
const CACHED_VALUES_MIN: u64 = 16;
/// How long these are unless it is said.
const CACHED_VALUE_MAX: u64 = 64 << 10;

type Entries = [(At<String>, Node)];

/// Reads the nodes of one route.
pub(super) struct Reader<'a, 'f, 'r> {
    reach: &'a mut Reach<'f>,
    nodes: &'a Entries,
    protocol: Protocol,
    context: &'a Context<'a>,
    report: &'a mut Report<'r>,
    /// Named nodes that are being read, from the root on.
    open: Vec<&'a str>,
    used: HashSet<&'a str>,
    count: usize,
    /// A node above that does more than to choose.
    in_the_way: Option<String>,
    /// The longest prefix that keys have here.
    prefix: String,
}

impl<'a, 'f, 'r> Reader<'a, 'f, 'r> {
    pub(super) fn new(
        reach: &'a mut Reach<'f>,
        nodes: &'a Entries,
        protocol: Protocol,
        context: &'a Context<'a>,
        report: &'a mut Report<'r>,
    ) -> Self {
        let (open, used) = (Vec::new(), HashSet::new());
        let (in_the_way, prefix) = (None, String::new());
        let count = 0;
        Self { reach, nodes, protocol, context, report, open, used, count, in_the_way, prefix }
    }

    /// `None` after an error.
    pub(super) fn root(&mut self, node: &Node) -> Option<Route> {
        self.node(node, 1)
    }

    /// Nodes that nothing leads to may have errors as well.
    pub(super) fn check_the_rest(&mut self) {
        for (name, node) in self.nodes {
            if self.used.contains(name.value.as_str()) {
                continue;
            }
            let message = format!("no node of the route leads to node \"{}\"", name.value);
            self.report.warning(name.pos, Complaint::new(message));
            let before =
                (self.reach.reached.clone(), self.reach.uses.clone(), self.reach.moves.clone());
            self.count = 0;
            self.named(&name.value, name.pos, node, 1);
            (self.reach.reached, self.reach.uses, self.reach.moves) = before;
        }
    }

    fn error(&mut self, pos: Pos, complaint: Complaint) {
        self.report.error(pos, complaint);
    }

    fn given_twice(&mut self, what: &str, name: &At<String>, first: usize) {
        // The reader of YAML has seen it, too, if there was nothing else.
        if !self.report.has_error_at(name.pos) {
            let complaint = Complaint::new(format!("{what}\"{}\" is given twice", name.value));
            self.error(name.pos, complaint.hint(format!("first given on line {first}")));
        }
    }

    /// False if there are too many.
    fn count(&mut self, nodes: usize, pos: Pos) -> bool {
        let was_fine = self.count <= NODES_MAX;
        self.count = self.count.saturating_add(nodes);
        if was_fine && self.count > NODES_MAX {
            let complaint = Complaint::new("the route has too many nodes");
            self.error(
                pos,
                complaint.hint(format!("at most {NODES_MAX}; a named one counts where it is used")),
            );
        }
        self.count <= NODES_MAX
    }

    fn node(&mut self, node: &Node, depth: usize) -> Option<Route> {
        if !self.count(1, node.pos) {
            return None;
        }
        if depth > DEPTH_MAX {
            let complaint = Complaint::new("the route is too deep");
            self.error(
                node.pos,
                complaint.hint(format!("at most {DEPTH_MAX} nodes from its root to a pool")),
            );
            return None;
        }
        match &node.kind {
            Kind::Scalar { text, .. } if !text.is_empty() => self.name(text, node.pos, depth),
            Kind::Empty | Kind::Scalar { .. } => {
                let complaint = Complaint::new("a pool or a node is missing here");
                self.error(node.pos, complaint.hint("expected a pool's name, or a node"));
                None
            }
            Kind::List(_) => {
                let complaint = Complaint::new("a list is no node");
                self.error(
                    node.pos,
                    complaint.hint("a node says who is asked: {failover: [a, b]}"),
                );
                None
            }
            Kind::Section(entries) => self.section(node, entries, depth),
        }
    }

    fn name(&mut self, name: &str, pos: Pos, depth: usize) -> Option<Route> {
        let nodes = self.nodes;
        if let Some((name, node)) = nodes.iter().find(|(it, _)| it.value == name) {
            return self.named(&name.value, pos, node, depth);
        }
        let Some(pool) = self.reach.pools.get(name) else {
            let complaint = self.unknown(name);
            self.error(pos, complaint);
            return None;
        };
        let protocol = pool.spoken();
        self.reach.reached.insert(name.to_owned());
        *self.reach.uses.entry(name.to_owned()).or_default() += 1;
        if protocol == Protocol::Tcp {
            let message = format!("pool \"{name}\" passes bytes through, and no route leads there");
            self.error(pos, Complaint::new(message).hint("routes go by requests and their keys"));
            return None;
        }
        if protocol != self.protocol {
            let message = format!(
                "pool \"{name}\" is one of {}, and the route's clients speak {}",
                protocol.title(),
                self.protocol.title()
            );
            let hint = "\"redis: true\" must be in both or in neither";
            self.error(pos, Complaint::new(message).hint(hint));
            return None;
        }
        Some(Route::Pool(name.to_owned()))
    }

    fn named(&mut self, name: &'a str, pos: Pos, node: &Node, depth: usize) -> Option<Route> {
        self.used.insert(name);
        if self.open.contains(&name) {
            let way: Vec<&str> = self.open.iter().copied().chain([name]).collect();
            let complaint = Complaint::new(format!("node \"{name}\" leads back to itself"));
            let hint = format!("by {}", way.join(", "));
            self.error(pos, complaint.hint(hint));
            return None;
        }
        self.open.push(name);
        // It stands where its name does.
        self.count = self.count.saturating_sub(1);
        let route = self.node(node, depth);
        self.open.pop();
        route
    }

    fn unknown(&self, name: &str) -> Complaint {
        if self.reach.routes.contains(name) {
            return Complaint::new(format!("\"{name}\" is a route, and routes lead to pools only"))
                .hint("what several have in common can be one of the \"nodes\" of each");
        }
        let mut pools: Vec<&str> = self.reach.pools.keys().copied().collect();
        pools.sort_unstable();
        let nodes = self.nodes.iter().map(|(name, _)| name.value.as_str());
        let names: Vec<&str> = pools.into_iter().chain(nodes).collect();
        let suggestion = nearest(name, names.iter().copied())
            .map_or_else(String::new, |it| format!("; did you mean \"{it}\"?"));
        let complaint = Complaint::new(format!("there is no pool or node \"{name}\"{suggestion}"));
        match names.len() {
            0..=NAMES_SHOWN_MAX => complaint.hint(format!("there are {}", names.join(", "))),
            _ => complaint,
        }
    }

    fn section(&mut self, node: &Node, entries: &Entries, depth: usize) -> Option<Route> {
        let is_kind = |(key, _): &&(At<String>, Node)| KINDS.contains(&key.value.as_str());
        let kinds: Vec<&At<String>> = entries.iter().filter(is_kind).map(|(key, _)| key).collect();
        let kind = match kinds[..] {
            [kind] => kind,
            [] => {
                let (pos, complaint) = no_kind(node, entries);
                self.error(pos, complaint);
                return None;
            }
            [one, other, ..] if one.value == other.value => {
                self.given_twice("", other, one.pos.line);
                return None;
            }
            [one, other, ..] => {
                let message = format!("\"{}\" and \"{}\" are two nodes", one.value, other.value);
                self.error(
                    other.pos,
                    Complaint::new(message).hint("one can be a child of the other"),
                );
                return None;
            }
        };
        let before = (self.in_the_way.clone(), self.prefix.clone());
        if !CHOOSING.contains(&kind.value.as_str()) && kind.value != "cache" {
            self.in_the_way.get_or_insert(format!("\"{}\"", kind.value));
        }
        let route = self.of_kind(kind, entries, depth + 1);
        (self.in_the_way, self.prefix) = before;
        route
    }

    fn of_kind(&mut self, kind: &At<String>, entries: &Entries, below: usize) -> Option<Route> {
        match kind.value.as_str() {
            "prefix" => self.prefix(entries, below),
            "keys" => self.keys(kind, entries, below),
            "operation" => self.operation(kind, entries, below),
            "all_sync" => self.plain(kind, entries, below).map(Route::AllSync),
            "all_async" => self.plain(kind, entries, below).map(Route::AllAsync),
            "all_majority" => self.plain(kind, entries, below).map(Route::AllMajority),
            "all_initial" => self.plain(kind, entries, below).map(Route::AllInitial),
            "miss_failover" => self.plain(kind, entries, below).map(Route::MissFailover),
            "all_fastest" => {
                let section: FastestSection = self.of_node(kind, entries);
                let to = self.branches(&section.all_fastest?, below)?;
                Some(Route::AllFastest { to, miss_last: matches!(section.miss.value, Miss::Last) })
            }
            "failover" => {
                let section: FailoverSection = self.of_node(kind, entries);
                let to = self.branches(&section.failover?, below)?;
                let on = section.on.map_or_else(FailoverOn::default, |on| on.value.0);
                Some(Route::Failover { to, on, ttl_ms: section.ttl.map(|ttl| ttl.value.0) })
            }
            "warm_up" => {
                let section: WarmUpSection = self.of_value(kind, entries)?;
                let [cold, warm] = self.pair([&section.cold, &section.warm], below)?;
                let ttl_ms = section.ttl.map(|ttl| ttl.value.0);
                let leaves = [(&section.cold, &cold), (&section.warm, &warm)];
                let is_good = leaves.map(|(at, route)| self.is_leaf("warm_up", at, route));
                (is_good == [true, true]).then(|| Route::WarmUp {
                    cold: cold.into(),
                    warm: warm.into(),
                    ttl_ms,
                })
            }
            "shadow" => {
                let section: ShadowSection = self.of_value(kind, entries)?;
                let [to, shadow] = self.pair([&section.to, &section.shadow], below)?;
                Some(Route::Shadow {
                    to: to.into(),
                    shadow: shadow.into(),
                    share: section.share.value.0,
                    compare: section.compare.value.0,
                    outstanding_max: section.outstanding.value.0 as u32,
                })
            }
            "migrate" => {
                let section: MigrateSection = self.of_value(kind, entries)?;
                let [from, to] = self.pair([&section.from, &section.to], below)?;
                if section.directory.is_some() {
                    return self.followed(kind, &section, from, to);
                }
                let Some(share) = section.share else {
                    let is_given = entries.iter().any(|(_, value)| match &value.kind {
                        Kind::Section(options) => {
                            options.iter().any(|(key, _)| key.value == "share")
                        }
                        _ => false,
                    });
                    // What is wrong with it was told.
                    if !is_given {
                        let complaint =
                            Complaint::new("node \"migrate\" lacks the option \"share\"");
                        let hint = "expected a share like 25%, or a \"directory\" for what \
                                    `cashew migrate` copies";
                        self.error(kind.pos, complaint.hint(hint));
                    }
                    return None;
                };
                Some(Route::Migrate {
                    from: from.into(),
                    to: to.into(),
                    share: share.value.0,
                    dual_write: section.dual_write.value.0,
                    read_other: section.read_other.value.0,
                    follow: None,
                })
            }
            "key_split" => {
                let section: KeySplitSection = self.of_value(kind, entries)?;
                let to = self.branch(&section.to, below)?;
                let copies = section.copies?.value.0 as u32;
                let is_good = self.is_leaf("key_split", &section.to, &to);
                is_good.then(|| Route::KeySplit { to: to.into(), copies })
            }
            "limit" => {
                let section: LimitSection = self.of_value(kind, entries)?;
                let to = self.branch(&section.to, below)?;
                let per_second = section.rate?.value.0 as u32;
                let burst = section.burst.map_or(per_second, |burst| burst.value.0 as u32);
                Some(Route::Limit { to: to.into(), per_second, burst })
            }
            "outstanding" => {
                let section: OutstandingSection = self.of_value(kind, entries)?;
                let to = self.branch(&section.to, below)?;
                Some(Route::Outstanding { to: to.into(), max: section.max?.value.0 as u32 })
            }
            "cache" => self.cache(kind, entries, below),
            "regions" => self.regions(kind, entries, below),
            _ => unreachable!("every kind is one of those"),
        }
    }

    /// What keeps replies. Reads come to it, and go on from it, as they are.
    fn cache(&mut self, kind: &At<String>, entries: &Entries, depth: usize) -> Option<Route> {
        let section: CacheSection = self.of_value(kind, entries)?;
        if let Some(above) = &self.in_the_way {
            let complaint = Complaint::new(format!("\"cache\" stands below {above}"));
            let hint = "above it there can be \"prefix\", \"keys\" and \"operation\" only; it can stand above others";
            self.error(kind.pos, complaint.hint(hint));
            return None;
        }
        let to = self.branch(&section.to, depth)?;
        let pos = section.to.as_ref().map_or(kind.pos, |to| to.pos);
        if let Some(obstacle) = to.obstacle() {
            let complaint = Complaint::new(format!("below \"cache\" there is {obstacle}"));
            let hint = "what is kept is what one pool has: below it there can be \"prefix\", \"keys\", \
                        \"operation\" and \"regions\" only";
            self.error(pos, complaint.hint(hint));
            return None;
        }
        let from_replicas = to.pools().into_iter().find(|&pool| {
            let reads = self.reach.pools.get(pool).and_then(|pool| pool.reads.as_ref());
            reads.is_some_and(|reads| reads.value != Reads::Primary)
        });
        if let Some(pool) = from_replicas {
            let message =
                format!("\"cache\" leads to pool \"{pool}\", whose replicas answer reads");
            let hint = "what a replica answers may be old already: keep \"reads: primary\"";
            self.error(pos, Complaint::new(message).hint(hint));
            return None;
        }
        let hot_only = section.hot_only.value.0;
        let without_samples = to.pools().into_iter().find(|&pool| {
            self.reach.pools.get(pool).is_some_and(|pool| !pool.hot_keys.value.is_on)
        });
        if let Some(pool) = without_samples.filter(|_| hot_only) {
            let message = format!("\"hot_only\" with pool \"{pool}\", whose hot keys nobody knows");
            let hint = format!("take \"hot_keys: false\" out of pool \"{pool}\"");
            self.error(section.hot_only.pos, Complaint::new(message).hint(hint));
            return None;
        }
        let ttl_ms = section.ttl.as_ref().map(|ttl| ttl.value.0);
        let ttl_ms = ttl_ms.unwrap_or(match self.protocol {
            Protocol::Redis => REDIS_KEPT_FOR_MS,
            Protocol::Memcached | Protocol::Tcp => MEMCACHED_KEPT_FOR_MS,
        });
        let negative_ms = section.negative.value.0;
        if negative_ms > ttl_ms {
            let complaint = Complaint::new("\"negative\" is longer than \"ttl\"");
            let hint = "that there is no such key is known no longer than what a key has";
            self.error(section.negative.pos, complaint.hint(hint));
            return None;
        }
        let bytes = section.bytes.value.0;
        let longest = bytes / CACHED_VALUES_MIN;
        let value_max = match &section.value_max {
            Some(value_max) if value_max.value.0 > longest => {
                let message = "\"value_max\" is too much of \"bytes\"".to_owned();
                let hint = format!("at most a {CACHED_VALUES_MIN}th of it, {}", SizeText(longest));
                self.error(value_max.pos, Complaint::new(message).hint(hint));
                return None;
            }
            Some(value_max) => value_max.value.0,
            None => longest.min(CACHED_VALUE_MAX),
        };
        let keys = match section.keys {
            Some(keys) => keys.value.0,
            None if self.prefix.is_empty() => Vec::new(),
            None => vec![self.prefix.clone()],
        };
        let keep = KeepRules { bytes, ttl_ms, negative_ms, value_max, keys, hot_only };
        Some(Route::Cache { to: to.into(), keep })
    }

    /// A pool that is copied to another.
    fn followed(
        &mut self,
        kind: &At<String>,
        section: &MigrateSection,
        from: Route,
        to: Route,
    ) -> Option<Route> {
        let directory = section.directory.as_ref()?;
        let others = [
            ("share", section.share.as_ref().map(|it| it.pos)),
            ("dual_write", section.dual_write.value.0.then_some(section.dual_write.pos)),
            ("read_other", section.read_other.value.0.then_some(section.read_other.pos)),
        ];
        let mut is_good = true;
        for (key, pos) in others.into_iter().filter_map(|(key, pos)| Some((key, pos?))) {
            let complaint =
                Complaint::new(format!("\"{key}\" and \"directory\" exclude each other"));
            let hint = "what is copied is served by one pool alone; `cashew migrate cut-over` changes which";
            self.error(pos, complaint.hint(hint));
            is_good = false;
        }
        let (Route::Pool(from), Route::Pool(to)) = (from, to) else {
            let complaint = Complaint::new("with \"directory\" both \"from\" and \"to\" are pools");
            self.error(kind.pos, complaint.hint("what is copied is all that a pool has"));
            return None;
        };
        let path = &directory.value.0;
        let state = match (self.context.read_keys)(&MoveState::file(path)) {
            Ok(text) => match MoveState::parse(&text) {
                Ok(state) => state,
                Err(why) => {
                    let message = format!("{} cannot be read: {why}", path.display());
                    self.error(directory.pos, Complaint::new(message));
                    return None;
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                MoveState::new(&from, &to)
            }
            Err(error) => {
                let message = format!("{} cannot be read: {error}", path.display());
                self.error(directory.pos, Complaint::new(message));
                return None;
            }
        };
        if (&state.from, &state.to) != (&from, &to) {
            let message = format!(
                "{} belongs to the move from pool \"{}\" to \"{}\"",
                path.display(),
                state.from,
                state.to
            );
            self.error(
                directory.pos,
                Complaint::new(message).hint("another move has a directory of its own"),
            );
            is_good = false;
        }
        self.reach.moves.push((from.clone(), to.clone(), path.clone(), kind.pos));
        is_good.then(|| Route::Migrate {
            from: Route::Pool(from).into(),
            to: Route::Pool(to).into(),
            share: if state.is_cut_over { SHARE_ALL } else { 0 },
            dual_write: false,
            read_other: false,
            follow: Some(Follow {
                directory: path.clone(),
                keys_per_second: section.rate.value.0,
                bytes_per_second: section.bandwidth.as_ref().map_or(0, |it| it.value.0),
            }),
        })
    }

    fn regions(&mut self, kind: &At<String>, entries: &Entries, depth: usize) -> Option<Route> {
        let section: RegionsSection = self.of_value(kind, entries)?;
        let (regions, here) = (section.to?.value.0, section.here?);
        let names: Vec<&str> = regions.iter().map(|(name, _)| name.value.as_str()).collect();
        let mut is_good = true;
        let mut place = |region: &At<Text>, option: &str, reader: &mut Self| {
            let at = names.iter().position(|name| *name == region.value.0);
            if at.is_none() {
                let message = format!("\"{option}\" is no region: \"{}\"", region.value.0);
                let hint = format!("there are {}", names.join(", "));
                reader.error(region.pos, Complaint::new(message).hint(hint));
                is_good = false;
            }
            at.unwrap_or(0) as u32
        };
        let own = place(&here, "here", self);
        let primary = section.primary.as_ref().map_or(own, |it| place(it, "primary", self));
        let reads = section.reads.as_ref().map_or(own, |it| place(it, "reads", self));
        let mut to = Vec::new();
        for (at, (name, node)) in (0..).zip(&regions) {
            let Some(route) = self.node(node, depth) else {
                is_good = false;
                continue;
            };
            let is_kept =
                |pool: &&str| self.reach.pools.get(*pool).is_some_and(|pool| pool.spool.is_some());
            let unkept = match &route {
                Route::Pool(pool) => Some(pool.as_str()).filter(|pool| !is_kept(pool)),
                _ => None,
            };
            if !matches!(route, Route::Pool(_)) && at != primary {
                let complaint = Complaint::new("a region that is not the primary one is a pool");
                self.error(node.pos, complaint.hint("expected a pool's name"));
                is_good = false;
            } else if at != primary
                && let Some(pool) = unkept
            {
                let message =
                    format!("pool \"{pool}\" of region \"{}\" has no \"spool\"", name.value);
                let hint =
                    "what cannot be sent to a region is deleted there later, and kept until then";
                self.error(node.pos, Complaint::new(message).hint(hint));
                is_good = false;
            }
            to.push((name.value.clone(), route));
        }
        let outstanding_max = section.outstanding.value.0 as u32;
        is_good.then_some(Route::Regions { to, primary, reads, outstanding_max })
    }

    /// The options of a node, its kind among them.
    fn of_node<S: Section>(&mut self, kind: &At<String>, entries: &Entries) -> S {
        let node = Node { pos: kind.pos, kind: Kind::Section(entries.to_vec()) };
        section::read(&format!("node \"{}\"", kind.value), kind.pos, &node, self.report)
    }

    /// The options of a node that are its kind's value. `None` if there is something beside it.
    fn of_value<S: Section>(&mut self, kind: &At<String>, entries: &Entries) -> Option<S> {
        let (_, value) = entries.iter().find(|(key, _)| key.pos == kind.pos)?;
        let section =
            section::read(&format!("node \"{}\"", kind.value), kind.pos, value, self.report);
        let names: Vec<&str> = S::options().iter().map(|option| option.key).collect();
        let expected =
            format!("its options are in it: {{{}: {{{}: …}}}}", kind.value, names.join(": …, "));
        self.only(kind, entries, &[], &expected).then_some(section)
    }

    /// Whether nothing but what is known stands beside the kind of a node.
    fn only(&mut self, kind: &At<String>, entries: &Entries, known: &[&str], hint: &str) -> bool {
        let is_known = |key: &str| key == kind.value || known.contains(&key);
        let mut is_good = true;
        for (key, _) in entries.iter().filter(|(key, _)| !is_known(&key.value)) {
            let suggestion = nearest(&key.value, known.iter().copied())
                .map_or_else(String::new, |it| format!("; did you mean \"{it}\"?"));
            let message =
                format!("\"{}\" has no \"{}\" beside it{suggestion}", kind.value, key.value);
            self.error(key.pos, Complaint::new(message).hint(hint));
            is_good = false;
        }
        is_good
    }

    /// The children of a node that has nothing but a list of them.
    fn plain(&mut self, kind: &At<String>, entries: &Entries, depth: usize) -> Option<Vec<Route>> {
        let (_, value) = entries.iter().find(|(key, _)| key.pos == kind.pos)?;
        let is_good = self.only(kind, entries, &[], "it has a list of children only");
        let branches = Branches::read(&kind.value, value, self.report)?;
        let children = self.branches(&At { value: branches, pos: value.pos }, depth)?;
        is_good.then_some(children)
    }

    fn branches(&mut self, branches: &At<Branches>, depth: usize) -> Option<Vec<Route>> {
        // All are read, so that every complaint is made.
        let nodes = &branches.value.0;
        let children: Vec<_> = nodes.iter().map(|node| self.node(node, depth)).collect();
        let children = children.into_iter().collect::<Option<Vec<_>>>()?;
        let mut is_good = true;
        for (at, child) in children.iter().enumerate() {
            if let Some(first) = children[..at].iter().position(|it| it == child) {
                self.same_child(nodes[at].pos, nodes[first].pos);
                is_good = false;
            }
        }
        is_good.then_some(children)
    }

    fn same_child(&mut self, pos: Pos, first: Pos) {
        let complaint = Complaint::new("this child is the same as another one");
        self.error(pos, complaint.hint(format!("that is on line {}", first.line)));
    }

    fn branch(&mut self, branch: &Option<At<Branch>>, depth: usize) -> Option<Route> {
        self.node(&branch.as_ref()?.value.0, depth)
    }

    fn pair(&mut self, branches: [&Option<At<Branch>>; 2], depth: usize) -> Option<[Route; 2]> {
        let [one, other] = branches.map(|branch| self.branch(branch, depth));
        let (one, other) = (one?, other?);
        if one == other {
            let places = branches.map(|branch| branch.as_ref().map_or(Pos::NONE, |it| it.pos));
            self.same_child(places[1], places[0]);
            return None;
        }
        Some([one, other])
    }

    fn is_leaf(&mut self, kind: &str, branch: &Option<At<Branch>>, route: &Route) -> bool {
        if matches!(route, Route::Pool(_)) {
            return true;
        }
        let pos = branch.as_ref().map_or(Pos::NONE, |branch| branch.pos);
        let complaint = Complaint::new(format!("\"{kind}\" leads to pools only"));
        self.error(pos, complaint.hint("expected a pool's name; other nodes can stand above it"));
        false
    }

    fn prefix(&mut self, entries: &Entries, depth: usize) -> Option<Route> {
        let (kind, value) = entries.iter().find(|(key, _)| key.value == "prefix")?;
        let is_good = self.only(kind, entries, &[], "the prefix '' is that of all other keys");
        let arms = match &value.kind {
            Kind::Section(arms) if !arms.is_empty() => arms,
            _ => {
                let complaint = Complaint::new("\"prefix\" takes a section of prefixes");
                self.error(
                    value.pos,
                    complaint.hint("for example prefix: {'user:': users, '': others}"),
                );
                return None;
            }
        };
        let mut first: HashMap<&str, usize> = HashMap::new();
        let mut is_good = is_good;
        let mut read = Vec::with_capacity(arms.len());
        for (prefix, node) in arms {
            if let Some(line) = first.insert(&prefix.value, prefix.pos.line) {
                self.given_twice("prefix ", prefix, line);
                is_good = false;
            }
            self.check_key_part("prefix", &prefix.value, prefix.pos);
            match self.arm(prefix, node, depth) {
                Some(arm) => read.push(arm),
                None => is_good = false,
            }
        }
        read.sort_by(|a, b| a.prefix.as_bytes().cmp(b.prefix.as_bytes()));
        is_good.then_some(Route::Prefix(read))
    }

    fn arm(&mut self, prefix: &At<String>, node: &Node, depth: usize) -> Option<PrefixArm> {
        let own = ["to", "strip", "rewrite"];
        let is_arm = matches!(&node.kind, Kind::Section(entries)
            if entries.iter().any(|(key, _)| own.contains(&key.value.as_str())));
        let before = (self.in_the_way.clone(), self.prefix.clone());
        if prefix.value.len() > self.prefix.len() {
            self.prefix.clone_from(&prefix.value);
        }
        let arm = self.arm_below(prefix, node, depth, is_arm);
        (self.in_the_way, self.prefix) = before;
        arm
    }

    fn arm_below(
        &mut self,
        prefix: &At<String>,
        node: &Node,
        depth: usize,
        is_arm: bool,
    ) -> Option<PrefixArm> {
        if !is_arm {
            let to = self.node(node, depth)?;
            return Some(PrefixArm { prefix: prefix.value.clone(), rewrite: None, to });
        }
        let what = format!("prefix \"{}\"", prefix.value);
        let section: ArmSection = section::read(&what, prefix.pos, node, self.report);
        if section.strip.value.0 || section.rewrite.is_some() {
            self.in_the_way.get_or_insert("a prefix with \"strip\" or \"rewrite\"".to_owned());
        }
        let to = self.branch(&section.to, depth);
        let rewrite = match (&section.rewrite, section.strip.value.0) {
            (Some(rewrite), true) => {
                let complaint = Complaint::new("\"strip\" and \"rewrite\" exclude each other");
                self.error(
                    rewrite.pos,
                    complaint.hint("one removes the prefix, the other replaces it"),
                );
                return None;
            }
            (None, true) if prefix.value.is_empty() => {
                let complaint = Complaint::new("there is nothing to strip of the prefix ''");
                self.error(section.strip.pos, complaint);
                return None;
            }
            (None, true) => Some(String::new()),
            (Some(rewrite), false) => {
                self.check_key_part("rewrite", &rewrite.value.0, rewrite.pos);
                Some(rewrite.value.0.clone())
            }
            (None, false) => None,
        };
        Some(PrefixArm { prefix: prefix.value.clone(), rewrite, to: to? })
    }

    /// What cannot be in a key of memcached.
    fn check_key_part(&mut self, what: &str, text: &str, pos: Pos) {
        if self.protocol != Protocol::Memcached {
            return;
        }
        let is_bad = |c: char| c == ' ' || c.is_ascii_control();
        let complaint = match text {
            it if it.len() > MEMCACHED_KEY_MAX => {
                Complaint::new(format!("{what} is longer than any key"))
                    .hint(format!("memcached's keys have at most {MEMCACHED_KEY_MAX} bytes"))
            }
            it if it.contains(is_bad) => Complaint::new(format!("{what} \"{it}\" is in no key"))
                .hint("memcached's keys have no spaces and no control characters"),
            _ => return,
        };
        self.error(pos, complaint);
    }

    fn keys(&mut self, kind: &At<String>, entries: &Entries, depth: usize) -> Option<Route> {
        let (_, value) = entries.iter().find(|(key, _)| key.pos == kind.pos)?;
        let section: KeysSection = section::read("node \"keys\"", kind.pos, value, self.report);
        let otherwise = self.rest(kind, entries, depth);
        let is_good = self.only(kind, entries, &["else"], "\"else\" is where all other keys go");
        if otherwise == Some(None) {
            let complaint = Complaint::new("\"keys\" lacks an \"else\" beside it");
            self.error(kind.pos, complaint.hint("it says where all other keys go"));
        }
        if let (None, None, Kind::Section(_) | Kind::Empty) =
            (&section.exact, &section.file, &value.kind)
        {
            let complaint = Complaint::new("\"keys\" lists no keys");
            self.error(kind.pos, complaint.hint("expected exact: {key: pool}, or file: /path"));
            return None;
        }
        let mut found = Vec::new();
        let mut is_good = is_good;
        if let Some(table) = &section.exact {
            for (key, node) in &table.value.0 {
                self.check_key_part("this", &key.value, key.pos);
                match self.node(node, depth) {
                    Some(route) => {
                        // Those are not counted.
                        self.count -= usize::from(matches!(route, Route::Pool(_)));
                        found.push((key.value.clone(), route, key.pos.line));
                    }
                    None => is_good = false,
                }
            }
            is_good &= self.are_single(&mut found, None, table.pos);
        }
        if let Some(file) = &section.file {
            self.reach.lists.push(self.protocol);
            is_good &= self.keys_of_file(&file.value.0, file.pos, depth, &mut found);
        }
        self.reach.keys += found.len();
        if self.reach.keys > KEYS_MAX {
            if self.reach.keys - found.len() <= KEYS_MAX {
                let message = format!("{} keys are too many", self.reach.keys);
                self.error(
                    kind.pos,
                    Complaint::new(message).hint(format!("at most {KEYS_MAX} in all routes")),
                );
            }
            return None;
        }
        let exact = found.into_iter().map(|(key, route, _)| (key, route)).collect();
        let otherwise = otherwise??;
        let file = section.file.as_ref().map(|it| it.value.0.clone());
        is_good.then(|| Route::Keys { exact, otherwise: otherwise.into(), file })
    }

    /// Sorts keys; false if one is there twice.
    fn are_single(
        &mut self,
        found: &mut [(String, Route, usize)],
        file: Option<&Path>,
        pos: Pos,
    ) -> bool {
        // Those of the lines before come first.
        found.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        let twice = found.windows(2).filter(|two| two[0].0 == two[1].0);
        let twice: Vec<_> = twice.map(|two| (two[1].0.clone(), two[0].2, two[1].2)).collect();
        for (key, first, line) in twice.iter().take(LINES_SHOWN_MAX) {
            let complaint = match file {
                None => {
                    let complaint = Complaint::new(format!("key \"{key}\" is given twice"));
                    complaint.hint(format!("on line {first}, and on line {line}"))
                }
                Some(path) => Complaint::new(format!(
                    "{}:{line}: key \"{key}\" is given twice",
                    path.display()
                ))
                .hint(match first {
                    0 => "the other is among the \"exact\" ones".to_owned(),
                    first => format!("the other is on line {first}"),
                }),
            };
            self.error(pos, complaint);
        }
        twice.is_empty()
    }

    /// Adds the keys of a file; false after an error.
    fn keys_of_file(
        &mut self,
        path: &Path,
        pos: Pos,
        depth: usize,
        found: &mut Vec<(String, Route, usize)>,
    ) -> bool {
        let text = match (self.context.read_keys)(path) {
            Ok(text) => text,
            Err(error) => {
                let message =
                    format!("option \"file\": {} cannot be read: {error}", path.display());
                self.error(pos, Complaint::new(message));
                return false;
            }
        };
        // What is in the configuration itself has no line there.
        found.iter_mut().for_each(|it| it.2 = 0);
        let mut targets: HashMap<&str, Option<(Route, usize)>> = HashMap::new();
        let mut bad: Vec<(usize, Complaint)> = Vec::new();
        let mut bad_lines = 0_usize;
        let mut refuse = |number: usize, complaint: Complaint| {
            bad_lines += 1;
            if bad.len() < LINES_SHOWN_MAX {
                bad.push((number, complaint));
            }
        };
        let mut is_known_bad = false;
        for line in keys::lines(&text) {
            let line = match line {
                Ok(line) => line,
                Err(number) => {
                    let complaint = Complaint::new("this is no key with a target");
                    refuse(number, complaint.hint("expected lines like \"key pool\""));
                    continue;
                }
            };
            if self.protocol == Protocol::Memcached && line.key.contains([' ', '\t']) {
                let complaint = Complaint::new(format!("\"{}\" is no key", line.key));
                refuse(line.number, complaint.hint("memcached's keys have no spaces"));
                continue;
            }
            if !targets.contains_key(line.target) {
                let is_known = self.reach.pools.contains_key(line.target)
                    || self.nodes.iter().any(|(name, _)| name.value == line.target);
                let route = match is_known {
                    true => self.name(line.target, pos, depth).map(|route| {
                        let size = size(&route);
                        (route, size)
                    }),
                    false => {
                        refuse(line.number, self.unknown(line.target));
                        None
                    }
                };
                is_known_bad |= route.is_none();
                targets.insert(line.target, route);
            }
            let Some(Some((route, size))) = targets.get(line.target) else { continue };
            if !self.count(*size, pos) {
                return false;
            }
            found.push((line.key.to_owned(), route.clone(), line.number));
        }
        let more = bad_lines - bad.len();
        for (number, Complaint { message, hint, .. }) in bad {
            let complaint = Complaint::new(format!("{}:{number}: {message}", path.display()));
            self.error(pos, Complaint { hint, ..complaint });
        }
        if more > 0 {
            let message = format!("{}: {more} more lines cannot be read", path.display());
            self.error(pos, Complaint::new(message));
        }
        let is_single = self.are_single(found, Some(path), pos);
        is_single && bad_lines == 0 && !is_known_bad
    }

    /// What stands in "else": `None` if that has an error, `Some(None)` if there is none.
    fn rest(
        &mut self,
        kind: &At<String>,
        entries: &Entries,
        depth: usize,
    ) -> Option<Option<Route>> {
        let mut found = entries.iter().filter(|(key, _)| key.value == "else");
        let Some((_, node)) = found.next() else { return Some(None) };
        if let Some((key, _)) = found.next() {
            let complaint =
                Complaint::new(format!("\"{}\" has two \"else\" beside it", kind.value));
            self.error(key.pos, complaint);
            return None;
        }
        self.node(node, depth).map(Some)
    }

    fn operation(&mut self, kind: &At<String>, entries: &Entries, depth: usize) -> Option<Route> {
        let (_, value) = entries.iter().find(|(key, _)| key.pos == kind.pos)?;
        let section: OperationSection =
            section::read("node \"operation\"", kind.pos, value, self.report);
        let rest = self.rest(kind, entries, depth);
        let is_good = self.only(kind, entries, &["else"], "\"else\" is where all others go");
        let given = [&section.read, &section.write, &section.delete];
        let [read, write, delete] =
            given.map(|branch| branch.as_ref().map(|branch| self.node(&branch.value.0, depth)));
        if given.iter().all(|branch| branch.is_none()) {
            let complaint = Complaint::new("\"operation\" names none");
            self.error(kind.pos, complaint.hint("expected read, write or delete"));
            return None;
        }
        let rest = rest?;
        let delete = delete.or_else(|| write.clone());
        let mut fill = |what: &str, route: Option<Option<Route>>| match (route, &rest) {
            (Some(route), _) => route,
            (None, Some(rest)) => Some(rest.clone()),
            (None, None) => {
                let message =
                    format!("\"operation\" lacks \"{what}\", and there is no \"else\" beside it");
                self.error(kind.pos, Complaint::new(message));
                None
            }
        };
        let (read, write) = (fill("read", read), fill("write", write));
        let delete = match (delete, &write) {
            // The complaint about writes is enough.
            (None, None) => None,
            (delete, _) => fill("delete", delete),
        };
        let (read, write, delete) = (read?.into(), write?.into(), delete?.into());
        is_good.then_some(Route::Operation { read, write, delete })
    }
}

/// How many nodes a child counts as that stands in the place of a name.
fn size(route: &Route) -> usize {
    match route {
        Route::Pool(_) => 0,
        route => 1 + route.children().into_iter().map(|child| size(child).max(1)).sum::<usize>(),
    }
}

fn no_kind(node: &Node, entries: &Entries) -> (Pos, Complaint) {
    let Some((key, _)) = entries.first() else {
        return (node.pos, Complaint::new("this node is empty").hint(kinds()));
    };
    let suggestion = entries
        .iter()
        .find_map(|(key, _)| nearest(&key.value, KINDS))
        .map_or_else(String::new, |kind| format!("; did you mean \"{kind}\"?"));
    let message = format!("\"{}\" is no kind of node{suggestion}", key.value);
    (key.pos, Complaint::new(message).hint(kinds()))
}

fn kinds() -> String {
    format!("there are {}", KINDS.join(", "))
}

/// The schema of a node.
pub(crate) fn schema(generator: &mut SchemaGenerator) -> Schema {
    fn beside<S: Section>(generator: &mut SchemaGenerator) -> Schema {
        section::schema::<S>(generator)
    }
    let node = Branch::schema;
    let with = |kind: &str, value: Schema| {
        json_schema!({
            "type": "object",
            "properties": { kind: value },
            "required": [kind],
            "additionalProperties": false,
        })
    };
    let with_else = |kind: &str, value: Schema, required: &[&str]| {
        json_schema!({
            "type": "object",
            "properties": { kind: value, "else": node() },
            "required": required,
            "additionalProperties": false,
        })
    };
    let arm = json_schema!({ "anyOf": [node(), section::schema::<ArmSection>(generator)] });
    let prefix =
        json_schema!({ "type": "object", "minProperties": 1, "additionalProperties": arm });
    let mut kinds = vec![
        json_schema!({ "type": "string", "minLength": 1, "description": "The name of a pool or a node." }),
        with("prefix", prefix),
        with_else("keys", section::schema::<KeysSection>(generator), &["keys", "else"]),
        with_else("operation", section::schema::<OperationSection>(generator), &["operation"]),
    ];
    for kind in ["all_sync", "all_async", "all_majority", "all_initial", "miss_failover"] {
        kinds.push(with(kind, Branches::schema()));
    }
    kinds.push(beside::<FastestSection>(generator));
    kinds.push(beside::<FailoverSection>(generator));
    for (kind, value) in [
        ("warm_up", section::schema::<WarmUpSection>(generator)),
        ("shadow", section::schema::<ShadowSection>(generator)),
        ("migrate", section::schema::<MigrateSection>(generator)),
        ("key_split", section::schema::<KeySplitSection>(generator)),
        ("limit", section::schema::<LimitSection>(generator)),
        ("outstanding", section::schema::<OutstandingSection>(generator)),
        ("cache", section::schema::<CacheSection>(generator)),
        ("regions", section::schema::<RegionsSection>(generator)),
    ] {
        kinds.push(with(kind, value));
    }
    json_schema!({ "description": "Where requests go.", "anyOf": kinds })
}
