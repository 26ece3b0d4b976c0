//! Pools whose servers are the nodes of a cluster: `cluster`.

use schemars::{Schema, SchemaGenerator};

use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::file::{ClusterSection, PoolSection};
use crate::resolve::Context;
use crate::section;
use crate::sentinel::AddressList;
use crate::snapshot::{Address, Cluster, Listen};
use crate::tree::{Kind, Node};
use crate::value::Value;

const LIST: AddressList = AddressList {
    option: "seeds",
    one: "a node",
    many: "seeds",
    example: "[10.0.0.1:6379, 10.0.0.2:6379]",
    port_hint: "expected host:port of a node of the cluster",
    max: 32,
};

/// A list of `host:port`.
#[derive(Debug)]
pub(crate) struct Seeds(Vec<At<Address>>);

impl Value for Seeds {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(LIST.is_none())
    }

    fn schema() -> Schema {
        LIST.schema()
    }

    fn describe() -> String {
        "a list of `host:port`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        LIST.read(key, node, report).map(Self)
    }
}

#[derive(Debug)]
pub(crate) struct ClusterText {
    seeds: Vec<At<Address>>,
    connections_max: u32,
}

impl Value for ClusterText {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"cluster\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<ClusterSection>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        "a section like `{seeds: [10.0.0.1:6379, 10.0.0.2:6379]}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let what = format!("option \"{key}\"");
        let section: ClusterSection = section::read(&what, node.pos, node, report);
        let connections_max = section.connections_max.value.0 as u32;
        Some(Self { seeds: section.seeds?.value.0, connections_max })
    }
}

/// `None` where the pool's servers are in the file. Without a map, which only the nodes have.
pub(crate) fn resolve(
    section: &PoolSection,
    listen: Option<&Listen>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<Cluster> {
    let At { value: ClusterText { seeds, connections_max }, pos } = section.cluster.as_ref()?;
    refuse_others(section, *pos, report);
    LIST.check_twice(seeds, report);
    if let Some(listen) = listen {
        LIST.check_listen(seeds, listen, context, report);
    }
    Some(Cluster {
        seeds: seeds.iter().map(|seed| seed.value.clone()).collect(),
        connections_max: *connections_max,
        slots: Vec::new(),
        moving: Vec::new(),
        epoch: 0,
        changes: 0,
    })
}

/// What is for servers that the file names, or says how they share the keys.
fn refuse_others(section: &PoolSection, pos: Pos, report: &mut Report<'_>) {
    let mut refuse = |key: &str, pos: Pos, hint: &str| {
        let complaint = format!("\"cluster\" and \"{key}\" exclude each other");
        report.error(pos, Complaint::new(complaint).hint(hint));
    };
    if !section.redis.value.0 {
        let complaint = Complaint::new("\"cluster\" is only valid for a redis pool");
        report.error(pos, complaint.hint("a redis pool has \"redis: true\""));
        return;
    }
    let mut refuse_given = |key: &str, pos: Option<Pos>, hint: &str| {
        if let Some(pos) = pos.filter(|pos| *pos != Pos::NONE) {
            refuse(key, pos, hint);
        }
    };
    let found = "the nodes are found by asking those that \"seeds\" names";
    refuse_given("servers", section.servers.as_ref().map(|it| it.pos), found);
    let sentinels = "a cluster fails over by itself, without Sentinels";
    refuse_given("sentinels", section.sentinels.as_ref().map(|it| it.pos), sentinels);
    refuse_given("sentinel_auth", section.sentinel_auth.as_ref().map(|it| it.pos), sentinels);
    refuse_given("sentinel_tls", section.sentinel_tls.as_ref().map(|it| it.pos), sentinels);
    let slots =
        "the cluster's slots say where keys are: CRC16, of what is in braces where there are any";
    refuse_given("hash", Some(section.hash.pos), slots);
    refuse_given("distribution", Some(section.distribution.pos), slots);
    refuse_given("hash_tag", section.hash_tag.as_ref().map(|it| it.pos), slots);
    let ejects = section.auto_eject_hosts.value.0.then_some(section.auto_eject_hosts.pos);
    let owned =
        "the keys of a node that is away have no other place; the cluster promotes a replica";
    refuse_given("auto_eject_hosts", ejects, owned);
    let spool =
        "what a node of a cluster is to forget may be another node's by the time it is back";
    refuse_given("spool", section.spool.as_ref().map(|it| it.pos), spool);
}
