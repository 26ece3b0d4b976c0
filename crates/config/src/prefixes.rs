//! Prefixes of keys that are counted by themselves.

use schemars::{Schema, json_schema};

use crate::diagnostic::{Complaint, Report};
use crate::file::PoolSection;
use crate::tree::{Kind, Node};
use crate::value::{Text, Value};

/// Each takes memory in each worker, and time at each request.
pub const PREFIXES_MAX: usize = 16;
/// In bytes. Longer ones would not fit where they are shown.
const PREFIX_SIZE_MAX: usize = 64;

const HINT: &str = "expected a list like \"[user:, session:]\"";

/// A list of prefixes, of which none is empty and none is there twice.
#[derive(Clone, Debug)]
pub(crate) struct Prefixes(pub(crate) Vec<String>);

impl Value for Prefixes {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"prefixes\" takes a list").hint(HINT))
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "array", "minItems": 1, "maxItems": PREFIXES_MAX, "uniqueItems": true,
            "items": { "type": "string", "minLength": 1, "maxLength": PREFIX_SIZE_MAX },
        })
    }

    fn describe() -> String {
        "a list of texts".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let items = match &node.kind {
            Kind::List(items) if (1..=PREFIXES_MAX).contains(&items.len()) => items,
            Kind::List(items) => {
                let complaint = match items.len() {
                    0 => Complaint::new("option \"prefixes\" is an empty list"),
                    many => Complaint::new(format!("{many} prefixes are too many for one pool"))
                        .hint(format!("at most {PREFIXES_MAX}")),
                };
                report.error(node.pos, complaint);
                return None;
            }
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => {
                return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
            }
        };
        let mut prefixes: Vec<String> = Vec::with_capacity(items.len());
        let mut is_good = true;
        for item in items {
            let Some(prefix) = prefix_of(key, item, report) else {
                is_good = false;
                continue;
            };
            let complaint = if prefix.len() > PREFIX_SIZE_MAX {
                Complaint::new(format!("a prefix of {} bytes is too long", prefix.len()))
                    .hint(format!("at most {PREFIX_SIZE_MAX} bytes"))
            } else if prefixes.contains(&prefix) {
                Complaint::new(format!("the prefix \"{prefix}\" is there twice"))
            } else {
                prefixes.push(prefix);
                continue;
            };
            report.error(item.pos, complaint);
            is_good = false;
        }
        is_good.then_some(Self(prefixes))
    }
}

/// Whether requests are counted by class of commands, without which they are not by prefix.
pub(crate) fn counts(section: &PoolSection, report: &mut Report<'_>) -> bool {
    let prefixes = section.prefixes.as_ref();
    let Some(switch) = &section.command_stats else { return prefixes.is_some() };
    if let Some(prefixes) = prefixes.filter(|_| !switch.value.0) {
        let complaint =
            Complaint::new("\"prefixes\" are not counted with \"command_stats: false\"");
        report.error(prefixes.pos, complaint.hint("expected one of the two options"));
    }
    switch.value.0
}

/// To YAML `user:` in a list is a section with an empty option, which nobody means.
fn prefix_of(key: &str, item: &Node, report: &mut Report<'_>) -> Option<String> {
    if let Kind::Section(options) = &item.kind
        && let [(name, value)] = options.as_slice()
        && matches!(value.kind, Kind::Empty)
    {
        return Some(format!("{}:", name.value));
    }
    Text::read(key, item, report).map(|Text(prefix)| prefix)
}
