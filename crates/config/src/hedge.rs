//! When reads are sent to a second server: `hedge`.

use schemars::{Schema, SchemaGenerator};

use crate::diagnostic::{Complaint, Report};
use crate::file::{HedgeSection, PoolSection};
use crate::section;
use crate::snapshot::{Hedge, Pool, Reads, Topology};
use crate::tree::{Kind, Node};
use crate::value::Value;

#[derive(Debug)]
pub(crate) struct HedgeText(pub(crate) Hedge);

impl Value for HedgeText {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"hedge\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<HedgeSection>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        "a section like `{after: 3ms, budget: 5%}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let what = format!("option \"{key}\"");
        let HedgeSection { after, budget } = section::read(&what, node.pos, node, report);
        let (after_ms, budget_percent) = (after?.value.0, budget.value.0);
        if budget_percent == 0 {
            let complaint = Complaint::new("with a \"budget\" of 0% nothing is hedged");
            report.error(budget.pos, complaint.hint("expected 1% to 100%, or no \"hedge\""));
        }
        Some(Self(Hedge { after_ms, budget_percent }))
    }
}

/// A read is sent to two servers, or for several clients, but not both.
pub(crate) fn check_coalescing(section: &PoolSection, report: &mut Report<'_>) {
    if section.hedge.is_some() && section.coalesce_reads.value.0 {
        let complaint = Complaint::new("\"coalesce_reads\" and \"hedge\" exclude each other");
        let hint = "a read is sent to a second server, or for several clients at once";
        report.error(section.coalesce_reads.pos, complaint.hint(hint));
    }
}

/// Where no read has a choice of servers it is a mistake, though a harmless one.
pub(crate) fn warn_without_choice(pool: &Pool, section: &PoolSection, report: &mut Report<'_>) {
    let Some(hedge) = &section.hedge else { return };
    let is_primarys = matches!(pool.reads, None | Some(Reads::Primary))
        && !matches!(pool.topology, Topology::Sharded)
        && pool.reads_by_class.is_empty()
        && !pool.writes_to_all();
    let hint = match pool.has_copies() || pool.is_cluster() {
        false => "no two servers of the pool have the same keys",
        true if is_primarys => "\"reads\" leaves reads no choice; prefer_replica is one that does",
        true => return,
    };
    let complaint = Complaint::new("\"hedge\" has no effect");
    report.warning(hedge.pos, complaint.hint(hint));
}
