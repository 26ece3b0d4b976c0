//! Which keys are hot, and what is done about them: `hot_keys`.

use std::fmt;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{Complaint, Report};
use crate::file::HotKeysSection;
use crate::section;
use crate::snapshot::HotRule;
use crate::tree::{Kind, Node};
use crate::value::Value;

/// Whether samples of requests tell which keys are hot, and by what rule something is done about them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HotKeysText {
    pub(crate) is_on: bool,
    pub(crate) rule: Option<HotRule>,
}

impl Value for HotKeysText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "true" => Ok(Self { is_on: true, rule: None }),
            "false" => Ok(Self { is_on: false, rule: None }),
            _ => {
                let complaint = Complaint::new(format!("\"{text}\" is not \"true\" or \"false\""));
                Err(complaint.hint(Self::expected()))
            }
        }
    }

    fn schema() -> Schema {
        let rule = section::schema::<HotKeysSection>(&mut SchemaGenerator::default());
        json_schema!({ "anyOf": [{ "type": "boolean" }, rule] })
    }

    fn describe() -> String {
        "`true`, `false`, or a section like `{above: 5%, do: cache}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            let Kind::Scalar { text, .. } = &node.kind else {
                let complaint = Complaint::new(format!("option \"{key}\" has no value"));
                report.error(node.pos, complaint.hint(Self::expected()));
                return None;
            };
            let parsed = Self::parse(text).map_err(|complaint| Complaint {
                message: format!("option \"{key}\": {}", complaint.message),
                ..complaint
            });
            return parsed.map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let what = format!("option \"{key}\"");
        let HotKeysSection { above, r#do, most } = section::read(&what, node.pos, node, report);
        // That it is there has been found wanting already, if it is not.
        r#do?;
        let above_percent = above?.value.0;
        let keys_max = most.value.0 as u32;
        if above_percent == 0 {
            let complaint = Complaint::new("all keys have more than 0% of the requests");
            report.error(node.pos, complaint.hint("expected \"above\" to be 1% to 100%"));
            return None;
        }
        Some(Self { is_on: true, rule: Some(HotRule { above_percent, keys_max }) })
    }
}

/// What is done about a hot key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HotAction;

impl Value for HotAction {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "cache" => Ok(Self),
            _ => Err(Complaint::new(format!("there is nothing called \"{text}\" to do"))
                .hint(Self::expected())),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "enum": ["cache"] })
    }

    fn describe() -> String {
        "`cache`".to_owned()
    }
}

/// As in a file.
impl fmt::Display for HotRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { above_percent, keys_max } = self;
        write!(f, "above {above_percent}% do cache, most {keys_max}")
    }
}
