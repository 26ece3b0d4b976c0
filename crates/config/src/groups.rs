//! Groups among the servers of a pool: a primary and its replicas.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::address::{ServerLine, check_name, parse_host, parse_port, unix_path};
use crate::diagnostic::{At, Complaint, Pos, Report, nearest};
use crate::file::{Dialect, MemberSection, PoolSection, ServerGroupSection};
use crate::foreign;
use crate::loops::numeric_address;
use crate::resolve::{MASTER, by_length_then_bytes};
use crate::section;
use crate::snapshot::{
    CasUniques, Endpoint, Protocol, Reads, SERVERS_MAX, Server, ServerGroup, Topology, UserOptions,
    Writes,
};
use crate::tree::{Kind, Node};
use crate::value::Value;

/// Most replicas of a group.
pub(crate) const REPLICAS_MAX: usize = 64;

const REPLICAS_HINT: &str = "expected a list like \"[10.0.0.2:6379, 10.0.0.3:6379]\"";

/// The address of a server that has no name and no weight of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberAddress(Endpoint);

impl Value for MemberAddress {
    fn parse(text: &str) -> Result<Self, Complaint> {
        if let Some(complaint) = foreign::url(text, "server", "") {
            return Err(complaint);
        }
        if let Some((before, _)) = text.strip_prefix('/').and_then(|path| path.split_once(':')) {
            return Err(Complaint::new(format!("\"{text}\" has a \":\" in its path"))
                .hint(format!("the weight is the group's: expected /path, such as /{before}")));
        }
        if text.starts_with('/') {
            return unix_path(text).map(|path| Self(Endpoint::Unix(path)));
        }
        let malformed = || {
            Complaint::new(format!("\"{text}\" is not the address of a server"))
                .hint("expected host:port, or /path of a Unix socket")
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        let has_weight = host.rsplit_once(':').is_some_and(|(before, port)| {
            !before.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit())
        });
        if has_weight {
            let hint = "the weight is the group's: expected host:port";
            return Err(malformed().hint(hint));
        }
        if host == "*" {
            return Err(malformed().hint("\"*\" is every address: that is for \"listen\""));
        }
        let port = parse_port(port).map_err(|c| c.offset(host.chars().count() + 1))?;
        Ok(Self(Endpoint::Tcp { host: parse_host(host)?.to_owned(), port }))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^(/[^:]+|[^/].*:0*[1-9][0-9]*)$" })
    }

    fn describe() -> String {
        "`host:port` or `/path`".to_owned()
    }
}

/// A server of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint,
    pub(crate) zone: Option<String>,
}

impl Value for Member {
    fn parse(text: &str) -> Result<Self, Complaint> {
        MemberAddress::parse(text).map(|address| Self { endpoint: address.0, zone: None })
    }

    fn schema() -> Schema {
        let section = section::schema::<MemberSection>(&mut SchemaGenerator::default());
        json_schema!({ "anyOf": [MemberAddress::schema(), section] })
    }

    fn describe() -> String {
        "`host:port` or `/path`, or `{address: host:port, zone: name}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return MemberAddress::read(key, node, report)
                .map(|address| Self { endpoint: address.0, zone: None });
        };
        let section: MemberSection = section::read("a server of a group", node.pos, node, report);
        let zone = match section.zone {
            Some(zone) => Some(check_zone(zone, report)?),
            None => None,
        };
        Some(Self { endpoint: section.address?.value.0, zone })
    }
}

/// `None` after a complaint.
pub(crate) fn check_zone(zone: At<crate::value::Text>, report: &mut Report<'_>) -> Option<String> {
    check_name("zone", &zone.value.0)
        .map_err(|complaint| report.error(zone.pos, complaint))
        .ok()?;
    Some(zone.value.0)
}

/// The replicas of a group, in the order of the file.
#[derive(Debug)]
pub(crate) struct Members(pub(crate) Vec<At<Member>>);

impl Value for Members {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"replicas\" takes a list").hint(REPLICAS_HINT))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "array", "maxItems": REPLICAS_MAX, "items": Member::schema() })
    }

    fn describe() -> String {
        "a list of `host:port`, `/path` or `{address: host:port, zone: name}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let items = match &node.kind {
            Kind::List(items) if items.len() <= REPLICAS_MAX => items,
            Kind::List(items) => {
                let message = format!("{} replicas are too many for one group", items.len());
                let hint = format!("at most {REPLICAS_MAX}");
                report.error(node.pos, Complaint::new(message).hint(hint));
                return None;
            }
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => {
                return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
            }
        };
        // Every address is read, so that every complaint is made.
        let member = |item: &Node| {
            let pos = item.pos;
            Member::read(key, item, report).map(|value| At { value, pos })
        };
        let members: Vec<_> = items.iter().map(member).collect();
        members.into_iter().collect::<Option<_>>().map(Self)
    }
}

/// Whether a server that is given as a section is meant to be a group: it has servers, or nothing but
/// what groups have.
pub(crate) fn is_group(entries: &[(At<String>, Node)]) -> bool {
    let is_one_of = |(key, _): &(At<String>, Node), known: &[&str]| {
        nearest(&key.value, known.iter().copied()).is_some()
    };
    let servers = ["primary", "replicas", "master", "slaves"];
    let has_servers = entries.iter().any(|entry| is_one_of(entry, &servers));
    has_servers
        || !entries.is_empty() && entries.iter().all(|it| is_one_of(it, &["name", "weight"]))
}

pub(crate) fn schema() -> Schema {
    section::schema::<ServerGroupSection>(&mut SchemaGenerator::default())
}

/// `None` after a complaint.
pub(crate) fn read(node: &Node, report: &mut Report<'_>) -> Option<ServerLine> {
    let section: ServerGroupSection = section::read("a group", node.pos, node, report);
    let (name, primary) = (section.name?, section.primary?);
    check_name("group", &name.value.0).map_err(|c| report.error(name.pos, c)).ok()?;
    Some(ServerLine {
        is_group: true,
        name: name.value.0,
        endpoint: primary.value.endpoint,
        zone: primary.value.zone,
        weight: section.weight.value.0 as u32,
        group: None,
        replicas: section.replicas.map_or_else(Vec::new, |replicas| replicas.value.0),
    })
}

/// The name of one of several servers of a group. It stays the same when another one is promoted, or
/// when the file names another primary.
fn member_name(group: &str, endpoint: &Endpoint) -> String {
    format!("{group}/{endpoint}")
}

/// What is wrong with groups beside each other, and beside lines.
pub(crate) fn check(
    section: &PoolSection,
    lines: &[At<ServerLine>],
    protocol: Protocol,
    dialect: Dialect,
    report: &mut Report<'_>,
) {
    let is_group = |line: &At<ServerLine>| line.value.is_group;
    let master = lines.iter().find(|line| line.value.name == MASTER);
    if let (Dialect::Sectioned, Protocol::Redis, true, Some(line)) =
        (dialect, protocol, lines.len() > 1 && lines.iter().any(is_group), master)
    {
        let complaint = Complaint::new("a server named \"master\" cannot be beside groups")
            .hint("it would have the other servers as its replicas: give it another name");
        report.error(line.pos, complaint);
    }
    let has_replicas = |line: &&At<ServerLine>| !line.value.replicas.is_empty();
    let Some(first) = lines.iter().find(has_replicas) else { return };
    let servers: usize = lines.iter().map(|line| 1 + line.value.replicas.len()).sum();
    if servers > SERVERS_MAX {
        let pos = section.servers.as_ref().map_or(first.pos, |servers| servers.pos);
        let complaint = Complaint::new(format!("{servers} servers are too many for one pool"));
        report.error(pos, complaint.hint(format!("at most {SERVERS_MAX}")));
    }
    check_names(lines, report);
    check_addresses(lines, report);
}

/// Names of servers of groups can be too long, or those of other servers.
fn check_names(lines: &[At<ServerLine>], report: &mut Report<'_>) {
    let names: HashMap<&str, usize> =
        lines.iter().map(|line| (&*line.value.name, line.pos.line)).collect();
    for line in lines.iter().filter(|line| !line.value.replicas.is_empty()) {
        let replicas = line.value.replicas.iter().map(|it| (&it.value.endpoint, it.pos));
        for (endpoint, pos) in std::iter::once((&line.value.endpoint, line.pos)).chain(replicas) {
            let name = member_name(&line.value.name, endpoint);
            if let Err(complaint) = check_name("server", &name) {
                report.error(pos, complaint.hint("it has the name of its group and its address"));
            }
            if let Some(other) = names.get(&*name) {
                let message = format!("this server is named \"{name}\", as another one is");
                report.error(pos, Complaint::new(message).hint(format!("that is on line {other}")));
            }
        }
    }
}

/// A server cannot be a replica of two, and not of itself. Hosts are compared as written.
fn check_addresses(lines: &[At<ServerLine>], report: &mut Report<'_>) {
    let mut first: HashMap<String, (&str, usize, bool)> = HashMap::new();
    for line in lines.iter().filter(|line| line.value.group.is_none()) {
        let ServerLine { name, endpoint, replicas, .. } = &line.value;
        let replicas = replicas.iter().map(|it| (&it.value.endpoint, it.pos));
        let is_several = replicas.len() > 0;
        for (endpoint, pos) in std::iter::once((endpoint, line.pos)).chain(replicas) {
            let Some((group, at, others)) =
                first.insert(address_of(endpoint), (name, pos.line, is_several))
            else {
                continue;
            };
            let message = match group == name {
                true => format!("{endpoint} is in group \"{name}\" twice"),
                false if is_several || others => {
                    format!("{endpoint} is a server of \"{group}\" already")
                }
                // Of two lines: that is a warning.
                false => continue,
            };
            let hint = format!("the other is on line {at}; a server has one share of the keys");
            report.error(pos, Complaint::new(message).hint(hint));
        }
    }
}

/// Servers as groups of one each, where Sentinels name replicas that answer reads.
pub(crate) fn await_replicas(
    section: &PoolSection,
    lines: &[At<ServerLine>],
    servers: &[Server],
    topology: Topology,
) -> Topology {
    let classes = section.reads_by_class.iter().flat_map(|classes| &classes.value.0);
    let mut reads = section.reads.iter().chain(classes.map(|class| &class.reads));
    let is_named = section.sentinels.is_some() && lines.iter().any(|it| it.value.group.is_some());
    if topology != Topology::Sharded || !is_named || reads.all(|it| it.value == Reads::Primary) {
        return topology;
    }
    let group = |(primary, server): (u32, &Server)| ServerGroup {
        name: server.name.clone(),
        weight: server.weight,
        primary,
        replicas: Vec::new(),
    };
    Topology::Groups((0..).zip(servers).map(group).collect())
}

/// What is wrong with the choice of servers for reads.
pub(crate) fn check_reads(
    section: &PoolSection,
    lines: &[At<ServerLine>],
    topology: &Topology,
    report: &mut Report<'_>,
) {
    let classes = section.reads_by_class.iter().flat_map(|classes| &classes.value.0);
    let classes = classes.map(|class| ("reads_by_class", &class.reads));
    let mut told = HashSet::new();
    for (key, reads) in section.reads.iter().map(|reads| ("reads", reads)).chain(classes) {
        if told.insert(reads.value) {
            check_policy(section, (key, reads), lines, topology, report);
        }
    }
}

/// The same of users.
pub(crate) fn check_user_reads(
    section: &PoolSection,
    options: &[UserOptions],
    lines: &[At<ServerLine>],
    topology: &Topology,
    report: &mut Report<'_>,
) {
    let pos = section.users.as_ref().map_or(Pos::NONE, |users| users.pos);
    let all: HashSet<Reads> = options
        .iter()
        // Others' servers are looked at when it is known which they are.
        .filter(|user| user.route.is_none())
        .filter_map(|user| user.reads)
        .collect();
    for reads in Reads::ALL.iter().map(|(reads, _)| *reads).filter(|reads| all.contains(reads)) {
        check_policy(section, ("reads", &At { value: reads, pos }), lines, topology, report);
    }
}

pub(crate) fn check_policy(
    section: &PoolSection,
    (key, reads): (&str, &At<Reads>),
    lines: &[At<ServerLine>],
    topology: &Topology,
    report: &mut Report<'_>,
) {
    let zones = |line: &At<ServerLine>| {
        let replicas = line.value.replicas.iter().map(|it| it.value.zone.clone());
        replicas.chain([line.value.zone.clone()]).flatten().collect::<Vec<_>>()
    };
    match (reads.value, topology) {
        (Reads::Primary, _) => {}
        (reads_from, Topology::Sharded) => {
            let complaint = Complaint::new(format!("\"{key}: {reads_from}\" and no replicas"));
            let hint = "a group with replicas is \"- {name: s1, primary: host:port, replicas: [host:port]}\"";
            report.error(reads.pos, complaint.hint(hint));
        }
        (Reads::Replica, Topology::Groups(_)) => {
            // Who those are Sentinels say later.
            let is_alone = |line: &&At<ServerLine>| {
                line.value.replicas.is_empty() && line.value.group.is_none()
            };
            for line in lines.iter().filter(is_alone) {
                let message = format!(
                    "\"{}\" has no replicas, and \"{key}\" is \"replica\"",
                    line.value.name
                );
                let hint = "reads: prefer_replica has the primary answer where there is no replica";
                report.error(line.pos, Complaint::new(message).hint(hint));
            }
        }
        (Reads::Zone, _) => match &section.zone {
            None => {
                let complaint =
                    Complaint::new(format!("\"{key}: zone\" needs \"zone\", that of the gateway"));
                report.error(reads.pos, complaint.hint("for example zone: eu-1a"));
            }
            Some(zone)
                if section.cluster.is_none()
                    && !lines.iter().flat_map(zones).any(|it| it == zone.value.0) =>
            {
                let complaint =
                    Complaint::new(format!("no server is in zone \"{}\"", zone.value.0));
                let hint = "servers have zones in groups: {address: host:port, zone: eu-1a}";
                report.warning(zone.pos, complaint.hint(hint));
            }
            Some(_) => {}
        },
        _ => {}
    }
}

/// What is wrong with the choice of servers for writes. That it is for memcached is checked elsewhere.
pub(crate) fn check_writes(
    section: &PoolSection,
    protocol: Protocol,
    lines: &[At<ServerLine>],
    topology: &Topology,
    report: &mut Report<'_>,
) {
    let writes_to_all = protocol == Protocol::Memcached && matches!(topology, Topology::Groups(_));
    let is_first = section.writes.as_ref().is_some_and(|writes| writes.value == Writes::First);
    if writes_to_all && !is_first && section.cas_uniques.value == CasUniques::Plain {
        let complaint = Complaint::new("\"cas_uniques: plain\" with writes to all of a group");
        let hint = "servers of a group give different values the same unique: leave it out";
        report.error(section.cas_uniques.pos, complaint.hint(hint));
    }
    let group = lines.iter().find(|line| !line.value.replicas.is_empty());
    if let (true, false, None, Some(group)) =
        (writes_to_all, is_first, section.timeout.value.0, group)
    {
        let complaint =
            Complaint::new("writes go to all servers of a group, without a \"timeout\"");
        let hint = "a server that hangs holds them up for ever: for example timeout: 400";
        report.warning(group.pos, complaint.hint(hint));
    }
    let Some(writes) = &section.writes else { return };
    if (protocol, topology) == (Protocol::Memcached, &Topology::Sharded) {
        let complaint = Complaint::new("\"writes\" and no groups of several servers");
        let hint = "a group is \"- {name: s1, primary: host:port, replicas: [host:port]}\"";
        report.error(writes.pos, complaint.hint(hint));
    }
}

/// The same for endpoints that are surely the same.
pub(crate) fn address_of(endpoint: &Endpoint) -> String {
    match (numeric_address(endpoint), endpoint) {
        (Some(address), _) => address.to_string(),
        (None, Endpoint::Tcp { host, port }) => format!("{}:{port}", host.to_ascii_lowercase()),
        // Without what is doubled or stands for the same directory.
        (None, Endpoint::Unix(path)) => {
            path.components().collect::<PathBuf>().display().to_string()
        }
    }
}

/// The servers in their order, and how they share the keys. Only the forks that have `pools:` know
/// masters. In a flat file a server of that name has always held its share of the keys, and must keep
/// it.
pub(crate) fn resolve(
    lines: &[At<ServerLine>],
    protocol: Protocol,
    dialect: Dialect,
) -> (Vec<Server>, Topology) {
    let has_groups = lines.iter().any(|line| !line.value.replicas.is_empty());
    let mut servers: Vec<(Server, usize)> = Vec::with_capacity(lines.len());
    for (at, line) in lines.iter().enumerate() {
        let ServerLine { name, endpoint, zone, weight, replicas, .. } = &line.value;
        let mut add = |name: String, endpoint: &Endpoint, zone: &Option<String>| {
            let (endpoint, zone, weight) = (endpoint.clone(), zone.clone(), *weight);
            servers.push((Server { name, endpoint, weight, zone }, at));
        };
        if replicas.is_empty() {
            add(name.clone(), endpoint, zone);
            continue;
        }
        add(member_name(name, endpoint), endpoint, zone);
        for Member { endpoint, zone } in replicas.iter().map(|replica| &replica.value) {
            add(member_name(name, endpoint), endpoint, zone);
        }
    }
    servers.sort_by(|(a, _), (b, _)| by_length_then_bytes(&a.name, &b.name));
    if !has_groups {
        let servers: Vec<Server> = servers.into_iter().map(|(server, _)| server).collect();
        let may_replicate =
            protocol == Protocol::Redis && dialect == Dialect::Sectioned && servers.len() > 1;
        let master = servers.iter().position(|server| may_replicate && server.name == MASTER);
        let topology = master
            .map_or(Topology::Sharded, |master| Topology::MasterReplica { master: master as u32 });
        return (servers, topology);
    }
    let place: HashMap<(usize, &Endpoint), u32> =
        (0..).zip(&servers).map(|(place, (server, at))| ((*at, &server.endpoint), place)).collect();
    // Two of one address are an error, so it does not matter which place one of them gets.
    let group = |(at, line): (usize, &At<ServerLine>)| ServerGroup {
        name: line.value.name.clone(),
        weight: line.value.weight,
        primary: place[&(at, &line.value.endpoint)],
        replicas: line.value.replicas.iter().map(|it| place[&(at, &it.value.endpoint)]).collect(),
    };
    let mut groups: Vec<ServerGroup> = lines.iter().enumerate().map(group).collect();
    groups.sort_by(|a, b| by_length_then_bytes(&a.name, &b.name));
    (servers.into_iter().map(|(server, _)| server).collect(), Topology::Groups(groups))
}
