//! What servers are to forget while they cannot be reached: `spool`.

use schemars::{Schema, SchemaGenerator};

use crate::diagnostic::{Complaint, Report};
use crate::file::{PoolSection, SpoolSection};
use crate::section;
use crate::snapshot::{Pool, Protocol, Spool, Topology, Wire};
use crate::tree::{Kind, Node};
use crate::value::Value;

#[derive(Debug)]
pub(crate) struct SpoolText(pub(crate) Spool);

impl Value for SpoolText {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"spool\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<SpoolSection>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        "a section like `{directory: /var/spool/cashew, max: 1gb}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let what = format!("option \"{key}\"");
        let section: SpoolSection = section::read(&what, node.pos, node, report);
        Some(Self(Spool {
            directory: section.directory?.value.0,
            max: section.max.value.0,
            overwrites: section.overwrites.value.0,
            hold_ms: section.hold.value.0,
            ttl_ms: section.ttl.map(|ttl| ttl.value.0),
        }))
    }
}

/// What would not do what it promises.
pub(crate) fn check(pool: &Pool, section: &PoolSection, report: &mut Report<'_>) {
    let Some(spool) = &section.spool else { return };
    if pool.auto_eject_hosts {
        let complaint = Complaint::new("\"spool\" and \"auto_eject_hosts\" exclude each other");
        report.error(
            spool.pos,
            complaint.hint(
                "the keys of a server that is ejected have another one, which is told instead",
            ),
        );
    }
    if pool.writes_to_all() {
        let complaint = Complaint::new("\"spool\" does not go with groups of memcached");
        let hint = "a copy that was away is told by the others, or emptied; servers by themselves may have it";
        report.error(spool.pos, complaint.hint(hint));
    }
    let needs_packets = !pool.server_auth.is_empty() && pool.memcached.wire == Wire::Binary;
    if pool.protocol == Protocol::Memcached && needs_packets {
        let complaint =
            Complaint::new("\"spool\" does not go with \"server_auth\" of the binary protocol");
        report.error(spool.pos, complaint.hint("servers are told in the text protocol"));
    }
    if let Topology::MasterReplica { .. } = pool.topology {
        let complaint = Complaint::new("\"spool\" does not go with \"master\"");
        report.error(spool.pos, complaint.hint("groups of servers may have it"));
    }
}
