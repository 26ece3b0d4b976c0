//! Routes: what clients connect to that has no servers of its own, and whose requests go to pools by a tree
//! of nodes.

mod keys;
mod node;
mod sections;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use cashew_placement::Distribution;
use schemars::{Schema, json_schema};

use self::node::Reader;
pub(crate) use self::node::schema as node_schema;
pub(crate) use self::sections::is_of_node;
use crate::address::check_name;
use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::file::PoolSection;
use crate::resolve::{Context, databases};
use crate::section::{self, OptionInfo, Section};
use crate::snapshot::{Pool, Protocol, route_of_hot};
use crate::tree::{Kind, Node};
use crate::value::Value;

pub(crate) use self::keys::lines;
pub(crate) use self::keys::read_file as read_keys_file;

/// Options of pools that concern clients, and so are those of routes as well.
const CLIENT_OPTIONS: [&str; 42] = [
    "listen",
    "redis",
    "backlog",
    "client_connections",
    "tcpkeepalive",
    "tcp_quickack",
    "reuseport",
    "redis_auth",
    "users",
    "acl_file",
    "external_auth",
    "databases",
    "protocol",
    "client_auth",
    "request_size_max",
    "client_requests_max",
    "client_output_pause",
    "client_output_max",
    "pubsub_output_max",
    "pubsub_output_soft_max",
    "pubsub_output_soft_time",
    "client_subscriptions_max",
    "subscriptions_max",
    "pipeline_start",
    "transfer_rate_min",
    "transfer_stall_timeout",
    "commands",
    "command_policy",
    "pose",
    "redis_version",
    "advertise",
    "hide_topology",
    "slow_log",
    "hot_keys",
    "command_stats",
    "prefixes",
    "client_pause_max",
    "tls",
    "tls_listen",
    "allow_from",
    "deny_from",
    "proxy_protocol",
];

/// What is said of an option of pools otherwise for routes.
fn doc_of_route(key: &str, doc: &'static str) -> &'static str {
    match key {
        "listen" => {
            "Address for clients: host and port, or the path of a Unix socket with an optional octal file \
             mode. A name is resolved once, when the file is loaded, to its first address."
        }
        "redis" => {
            "Whether clients speak the Redis protocol; otherwise memcached's. The pools that it leads to \
             speak the same."
        }
        "client_connections" => {
            "Client connections of this route over all workers. 0 is no limit other than the open files \
             available for clients."
        }
        "redis_auth" => {
            "Password that clients must give, or [a file](#passwords-in-files) with it. Servers are given \
             that of their pool. Redis only."
        }
        "databases" => {
            "How many databases clients may SELECT: those below this number. At most as many as each pool \
             has; the least of these unless set. Redis only."
        }
        _ => doc,
    }
}

/// A route as in the file.
#[derive(Debug)]
pub(crate) struct RouteSection {
    /// Its options that pools have as well.
    pub(crate) clients: PoolSection,
    route: Option<At<Branch>>,
    nodes: Option<At<NamedNodes>>,
}

impl Section for RouteSection {
    const NAME: &'static str = "RouteSection";
    const DOC: &'static str =
        "One route: an address that clients connect to, and the pools behind it.";

    fn options() -> Vec<OptionInfo> {
        let of_route = |option: OptionInfo| {
            CLIENT_OPTIONS.contains(&option.key).then(|| OptionInfo {
                doc: doc_of_route(option.key, option.doc),
                required: option.key == "listen",
                ..option
            })
        };
        let mut options: Vec<_> = PoolSection::options().into_iter().filter_map(of_route).collect();
        options.insert(
            1,
            OptionInfo {
                key: "route",
                doc: "Where requests go: a pool's name, the name of one of the `nodes`, or \
                      [a node](routes.md#nodes).",
                default: None,
                required: true,
                schema: Branch::schema,
                describe: Branch::describe,
                expected: Branch::expected,
            },
        );
        options.insert(
            2,
            OptionInfo {
                key: "nodes",
                doc: "Nodes by names, which may stand wherever a pool's name may.",
                default: None,
                required: false,
                schema: NamedNodes::schema,
                describe: NamedNodes::describe,
                expected: NamedNodes::expected,
            },
        );
        options
    }

    fn defaults() -> Self {
        Self { clients: PoolSection::defaults(), route: None, nodes: None }
    }

    fn set(&mut self, key: &str, node: &Node, report: &mut Report<'_>) -> bool {
        match key {
            "route" => {
                self.route =
                    Branch::read(key, node, report).map(|value| At { value, pos: node.pos });
            }
            "nodes" => {
                let nodes = NamedNodes::read(key, node, report);
                self.nodes = nodes.map(|value| At { value, pos: node.pos });
            }
            _ if CLIENT_OPTIONS.contains(&key) => return self.clients.set(key, node, report),
            _ => return false,
        }
        true
    }
}

/// Warns of options about clients in a pool that has none.
pub(crate) fn warn_without_clients(section: &PoolSection, report: &mut Report<'_>) {
    let policy = section.command_policy.pos;
    let client_auth = section.client_auth.as_ref().map_or(Pos::NONE, |auth| auth.pos);
    let tls = section.tls.as_ref().map_or(Pos::NONE, |tls| tls.pos);
    for (key, pos) in [
        ("backlog", section.backlog.pos),
        ("client_connections", section.client_connections.pos),
        ("tcpkeepalive", section.tcpkeepalive.pos),
        ("tcp_quickack", section.tcp_quickack.pos),
        ("protocol", section.protocol.pos),
        ("client_auth", client_auth),
        ("users", section.users.as_ref().map_or(Pos::NONE, |users| users.pos)),
        ("acl_file", section.acl_file.as_ref().map_or(Pos::NONE, |file| file.pos)),
        ("external_auth", section.external_auth.as_ref().map_or(Pos::NONE, |auth| auth.pos)),
        ("command_policy", policy),
        ("tls", tls),
        ("allow_from", section.allow_from.as_ref().map_or(Pos::NONE, |list| list.pos)),
        ("deny_from", section.deny_from.as_ref().map_or(Pos::NONE, |list| list.pos)),
        ("proxy_protocol", section.proxy_protocol.pos),
        ("pose", section.pose.as_ref().map_or(Pos::NONE, |pose| pose.pos)),
    ] {
        if pos != Pos::NONE {
            let complaint = Complaint::new(format!("\"{key}\" has no effect"));
            let hint = "the pool does not listen: this is for the routes that lead to it";
            report.warning(pos, complaint.hint(hint));
        }
    }
}

/// A hint for an option of pools in a route.
pub(crate) fn hint_of_option(key: &str) -> Option<String> {
    let is_of_pools = PoolSection::options().iter().any(|option| option.key == key);
    is_of_pools.then(|| {
        "a route has no servers: this belongs to the pools that it leads to, under \"pools:\""
            .to_owned()
    })
}

/// A node that is read when all names are known.
#[derive(Clone, Debug)]
pub(crate) struct Branch(pub(crate) Node);

impl Value for Branch {
    fn parse(_: &str) -> Result<Self, Complaint> {
        unreachable!("nodes are read, not parsed")
    }

    fn schema() -> Schema {
        json_schema!({ "$ref": "#/$defs/RouteNode" })
    }

    fn describe() -> String {
        "a pool's name, or a node".to_owned()
    }

    fn read(_: &str, node: &Node, _: &mut Report<'_>) -> Option<Self> {
        Some(Self(node.clone()))
    }
}

/// Nodes by their names.
#[derive(Debug)]
struct NamedNodes(Vec<(At<String>, Node)>);

impl Value for NamedNodes {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"nodes\" takes a section of nodes by their names")
            .hint("for example nodes: {hot: {all_initial: [eu, us]}}"))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "object", "additionalProperties": Branch::schema() })
    }

    fn describe() -> String {
        "a section of nodes by their names".to_owned()
    }

    fn read(_: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        match &node.kind {
            Kind::Section(entries) => Some(Self(entries.clone())),
            Kind::Empty => Some(Self(Vec::new())),
            Kind::Scalar { .. } | Kind::List(_) => {
                Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok()
            }
        }
    }
}

/// What routes lead to, and which of that some route does.
pub(crate) struct Reach<'f> {
    pools: HashMap<&'f str, &'f PoolSection>,
    routes: HashSet<&'f str>,
    reached: HashSet<String>,
    /// Of these the ones that a user's route names.
    users_to: HashSet<String>,
    /// How often each pool is a leaf.
    uses: HashMap<String, usize>,
    /// Pools that are copied: from, to, and where that is kept.
    moves: Vec<(String, String, PathBuf, Pos)>,
    /// Some tree has errors, so that not everything it leads to is known.
    is_partial: bool,
    /// Keys that are listed in all routes.
    keys: usize,
    /// Protocols of routes that list keys in files.
    lists: Vec<Protocol>,
}

impl<'f> Reach<'f> {
    pub(crate) fn new(
        pools: &'f [(At<String>, PoolSection)],
        routes: &'f [(At<String>, RouteSection)],
    ) -> Self {
        Self {
            pools: pools.iter().map(|(name, section)| (&*name.value, section)).collect(),
            routes: routes.iter().map(|(name, _)| &*name.value).collect(),
            reached: HashSet::new(),
            users_to: HashSet::new(),
            uses: HashMap::new(),
            moves: Vec::new(),
            is_partial: false,
            keys: 0,
            lists: Vec::new(),
        }
    }

    /// Gives a pool without servers the tree of its route. False after an error.
    pub(crate) fn resolve(
        &mut self,
        section: &RouteSection,
        pool: &mut Pool,
        context: &Context<'_>,
        report: &mut Report<'_>,
    ) -> bool {
        let hot_keys = &section.clients.hot_keys;
        if hot_keys.value.rule.is_some() {
            let complaint = Complaint::new("a route has no hot keys of its own");
            let hint = "give this to the pool that it leads to; here \"hot_keys\" is true or false";
            report.error(hot_keys.pos, complaint.hint(hint));
        }
        let nodes = section.nodes.as_ref().map_or(&[][..], |nodes| &nodes.value.0);
        self.check_names(nodes, report);
        let Some(route) = &section.route else {
            self.is_partial = true;
            return false;
        };
        let mut reader = Reader::new(self, nodes, pool.protocol, context, report);
        let tree = reader.root(&route.value.0);
        reader.check_the_rest();
        let Some(tree) = tree else {
            self.is_partial = true;
            return false;
        };
        self.check_databases(section, pool, &tree.pools(), report);
        pool.route = Some(tree);
        true
    }

    fn check_names(&self, nodes: &[(At<String>, Node)], report: &mut Report<'_>) {
        let mut first = HashMap::new();
        for (name, _) in nodes {
            if let Err(complaint) = check_name("node", &name.value) {
                report.error(name.pos, complaint);
            }
            let what = match name.value.as_str() {
                it if self.pools.contains_key(it) => "pool",
                it if self.routes.contains(it) => "route",
                it => {
                    let before = first.insert(it, name.pos.line);
                    if let Some(line) = before.filter(|_| !report.has_error_at(name.pos)) {
                        let complaint = Complaint::new(format!("node \"{it}\" is given twice"));
                        report
                            .error(name.pos, complaint.hint(format!("first given on line {line}")));
                    }
                    continue;
                }
            };
            let message = format!("node \"{}\" is named as a {what} is", name.value);
            report.error(name.pos, Complaint::new(message).hint("names tell them apart"));
        }
    }

    /// Clients may use as many databases as all pools have.
    fn check_databases(
        &self,
        section: &RouteSection,
        pool: &mut Pool,
        leaves: &[&str],
        report: &mut Report<'_>,
    ) {
        if pool.protocol != Protocol::Redis {
            return;
        }
        let of_leaf = |&name| Some((databases(self.pools.get(name)?), name));
        let Some((least, name)) = leaves.iter().filter_map(of_leaf).min() else { return };
        match &section.clients.databases {
            None => pool.databases = least,
            Some(given) if pool.databases > least => {
                let message =
                    format!("pool \"{name}\", where the route leads, has {least} databases");
                let hint = format!("at most {least} here, or more \"databases\" there");
                report.error(given.pos, Complaint::new(message).hint(hint));
            }
            Some(_) => {}
        }
    }

    /// Clients of some user get to this pool or route.
    pub(crate) fn reach(&mut self, name: &str) {
        self.reached.insert(name.to_owned());
        self.users_to.insert(name.to_owned());
    }

    /// Reports moves that others could write to behind their back, or that cannot be right.
    fn check_moves(&self, report: &mut Report<'_>) {
        for (at, (from, to, directory, pos)) in self.moves.iter().enumerate() {
            let mut complain = |message: String, hint: &str| {
                report.error(*pos, Complaint::new(message).hint(hint));
            };
            if self.moves[..at].iter().any(|(_, _, other, _)| other == directory) {
                let message = format!("two moves are kept in {}", directory.display());
                complain(message, "each has a directory of its own");
            }
            for name in [from, to] {
                let Some(pool) = self.pools.get(name.as_str()) else { continue };
                if self.uses.get(name).copied().unwrap_or(0) > 1 {
                    let message =
                        format!("pool \"{name}\" is copied, and another node leads to it, too");
                    complain(message, "only the move may write to its pools");
                }
                if self.users_to.contains(name) {
                    let message = format!("pool \"{name}\" is copied, and a user's route is to it");
                    complain(message, "let the user's route be to the one with the move");
                }
                if pool.listen.is_some() || pool.tls_listen.is_some() {
                    let message =
                        format!("pool \"{name}\" is copied, and clients can connect to it");
                    complain(
                        message,
                        "take its \"listen\" out: what is written there would be lost",
                    );
                }
                for (is_so, what) in [
                    (pool.auto_eject_hosts.value.0, "auto_eject_hosts"),
                    (pool.spool.is_some(), "spool"),
                    (pool.distribution.value == Distribution::Random, "distribution: random"),
                ] {
                    if is_so {
                        let message = format!("pool \"{name}\" with \"{what}\" cannot be copied");
                        complain(message, "which server has a key has to be known, and to stay");
                    }
                }
            }
            if let (Some(one), Some(other)) =
                (self.pools.get(from.as_str()), self.pools.get(to.as_str()))
                && one.redis_db.value.0 != other.redis_db.value.0
            {
                let message = format!("pools \"{from}\" and \"{to}\" differ in \"redis_db\"");
                complain(message, "keys are copied to the database that they are in");
            }
        }
    }

    /// Reports pools of moves that have servers in common: what the copy has too much would be removed from what
    /// serves. Names that lead to the same server are found before a move begins.
    fn check_apart(&self, pools: &[Pool], report: &mut Report<'_>) {
        let sides = self.moves.iter().flat_map(|(from, to, _, pos)| [(from, *pos), (to, *pos)]);
        let find = |name: &String| pools.iter().find(|pool| pool.name == *name);
        let sides: Vec<(&Pool, Pos)> =
            sides.filter_map(|(name, pos)| Some((find(name)?, pos))).collect();
        for (at, (pool, pos)) in sides.iter().enumerate() {
            let marks = pool.shard_marks(false).concat();
            for (other, _) in sides[..at].iter().filter(|(other, _)| other.name != pool.name) {
                let theirs = other.shard_marks(false).concat();
                if let Some(mark) = marks.iter().find(|mark| theirs.contains(mark)) {
                    let message = format!(
                        "pools \"{}\" and \"{}\" have {mark} in common",
                        other.name, pool.name
                    );
                    let hint = "what is copied would be removed where it is: each pool of a move has servers of its own";
                    report.error(*pos, Complaint::new(message).hint(hint));
                }
            }
        }
    }

    /// Reports rules about hot keys that nobody follows.
    fn check_hot(&self, pools: &[Pool], report: &mut Report<'_>) {
        let routes = pools.iter().filter_map(|pool| pool.route.as_ref());
        for pool in pools.iter().filter(|it| it.hot_rule.is_some() && it.route.is_none()) {
            let pos = self.pools.get(pool.name.as_str()).map_or(Pos::NONE, |it| it.hot_keys.pos);
            if let Some(to) = pool.hot_rule.as_ref().and_then(|rule| rule.moves_to.as_ref()) {
                if let Err(why) = route_of_hot(pools, (&pool.name, to)) {
                    let message = format!("hot keys of pool \"{}\" cannot move: {why}", pool.name);
                    let hint = format!(
                        "have a route lead to it by {{keys: {{file: PATH}}, else: {}}}",
                        pool.name
                    );
                    report.error(pos, Complaint::new(message).hint(hint));
                }
                continue;
            }
            let is_split = pool.hot_rule.as_ref().is_some_and(|rule| rule.copies.is_some());
            if let Some(why) = pool.cannot_split().filter(|_| is_split) {
                let message = format!("hot keys of pool \"{}\" cannot be split: {why}", pool.name);
                report.error(pos, Complaint::new(message).hint("use \"do: cache\""));
                continue;
            }
            if !routes.clone().any(|route| route.keeps_hot_of(&pool.name)) {
                let message =
                    format!("nothing keeps replies of the hot keys of pool \"{}\"", pool.name);
                let hint = format!(
                    "have a route lead to it by {{cache: {{to: {}, hot_only: true}}}}, and clients connect there",
                    pool.name
                );
                report.error(pos, Complaint::new(message).hint(hint));
            }
        }
    }

    /// Reports those of the pools without `listen` that no client can reach.
    pub(crate) fn check_pools(
        &self,
        without_listen: &[At<String>],
        pools: &[Pool],
        report: &mut Report<'_>,
    ) {
        self.check_moves(report);
        self.check_apart(pools, report);
        if !self.is_partial {
            self.check_hot(pools, report);
        }
        if self.is_partial || self.routes.is_empty() {
            return;
        }
        // A list of keys may name any pool later on, and no pool again.
        let is_listable = |name: &str| {
            let pool = pools.iter().find(|pool| pool.name == name);
            pool.is_some_and(|pool| self.lists.contains(&pool.protocol))
        };
        let unreached = without_listen.iter().filter(|name| !self.reached.contains(&name.value));
        for name in unreached.filter(|name| !is_listable(&name.value)) {
            let message = format!("nobody can reach pool \"{}\"", name.value);
            let hint = "it lacks \"listen\", and no route or user leads to it";
            report.error(name.pos, Complaint::new(message).hint(hint));
        }
    }
}

/// As `section::read` does, with a name for messages.
pub(crate) fn read(name: &At<String>, node: &Node, report: &mut Report<'_>) -> RouteSection {
    section::read(&format!("route \"{}\"", name.value), name.pos, node, report)
}
