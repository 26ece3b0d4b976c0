//! Pools that look like a cluster to their clients: `pose` and `advertise`.

use schemars::{Schema, json_schema};

use crate::address::{parse_host, parse_port};
use crate::diagnostic::{At, Complaint, Report};
use crate::file::PoolSection;
use crate::snapshot::{Address, Listen, Pose};
use crate::tree::{Kind, Node};
use crate::value::{Text, Value};

/// Most gateways that are advertised.
const ADVERTISED_MAX: usize = 256;

/// What a pool may look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoseText {
    Cluster,
}

impl Value for PoseText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "cluster" => Ok(Self::Cluster),
            _ => Err(Complaint::new(format!("\"{text}\" is nothing that a pool can look like"))
                .hint("expected cluster")),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "enum": ["cluster"] })
    }

    fn describe() -> String {
        "`cluster`".to_owned()
    }
}

/// A list of gateways.
#[derive(Debug)]
pub(crate) struct Advertised(Vec<At<Address>>);

const ADVERTISED_HINT: &str = "expected a list like \"[10.0.0.7:6379, 10.0.0.8:6379]\"";

impl Value for Advertised {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"advertise\" takes a list").hint(ADVERTISED_HINT))
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "array", "minItems": 1, "maxItems": ADVERTISED_MAX,
            "items": { "type": "string", "pattern": "^.+:0*[1-9][0-9]*$" },
        })
    }

    fn describe() -> String {
        "a list of `host:port`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::List(items) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        if items.is_empty() || items.len() > ADVERTISED_MAX {
            let message = match items.len() {
                0 => format!("option \"{key}\" is an empty list"),
                many => format!("option \"{key}\" has {many} entries"),
            };
            let hint = format!("expected 1 to {ADVERTISED_MAX}");
            report.error(node.pos, Complaint::new(message).hint(hint));
            return None;
        }
        // Every address is read, so that every complaint is made.
        let addresses: Vec<_> = items.iter().map(|item| address(key, item, report)).collect();
        addresses.into_iter().collect::<Option<Vec<_>>>().map(Self)
    }
}

fn address(key: &str, node: &Node, report: &mut Report<'_>) -> Option<At<Address>> {
    let text = Text::read(key, node, report)?.0;
    let parse = || {
        let (host, port) = text.rsplit_once(':').ok_or_else(|| {
            let message = format!("\"{text}\" is not the address of a gateway");
            Complaint::new(message).hint("expected host:port, as clients are to connect to it")
        })?;
        let port = parse_port(port).map_err(|c| c.offset(host.chars().count() + 1))?;
        Ok(Address { host: parse_host(host)?.to_owned(), port })
    };
    parse()
        .map(|value| At { value, pos: node.pos })
        .map_err(|complaint: Complaint| report.error(node.pos_of(complaint.offset), complaint))
        .ok()
}

/// `listens` are those that the pool has, as far as they are known.
pub(crate) fn resolve(
    section: &PoolSection,
    listens: [Option<&Listen>; 2],
    report: &mut Report<'_>,
) -> Option<Pose> {
    let addresses = section.advertise.as_ref().map_or(&[][..], |list| &list.value.0);
    for (at, address) in addresses.iter().enumerate() {
        if addresses[..at].iter().any(|other| other.value == address.value) {
            let message = format!("the gateway {} is given twice", address.value);
            report.error(address.pos, Complaint::new(message));
        }
    }
    let Some(pose) = &section.pose else {
        if let Some(list) = &section.advertise {
            let complaint = Complaint::new("\"advertise\" has no effect");
            report.warning(list.pos, complaint.hint("only \"pose: cluster\" tells clients of it"));
        }
        return None;
    };
    let is_tcp = |listen: &Listen| matches!(listen, Listen::Tcp(_));
    let is_unix = |listen: &Listen| matches!(listen, Listen::Unix { .. });
    let known = || listens.into_iter().flatten();
    if addresses.is_empty() && known().any(is_unix) && !known().any(is_tcp) {
        let complaint = Complaint::new("a Unix socket is no address for clients of a cluster");
        let hint = "\"advertise: [10.0.0.7:6379]\" says where they are to connect to";
        report.error(pose.pos, complaint.hint(hint));
    }
    if let (Some(list), [Some(_), Some(_)]) = (&section.advertise, listens) {
        let complaint = Complaint::new(
            "clients with TLS and those without are given the same addresses of \"advertise\"",
        );
        let hint = "one pool for each of them, or no \"advertise\", gives each what it can use";
        report.warning(list.pos, complaint.hint(hint));
    }
    Some(Pose { advertise: addresses.iter().map(|address| address.value.clone()).collect() })
}

/// For a line about what is new.
pub(crate) fn shown(pose: Option<&Pose>) -> String {
    pose.map_or_else(|| "none".to_owned(), ToString::to_string)
}
