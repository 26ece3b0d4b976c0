//! Which keys are hot, and what is done about them: `hot_keys`.

use std::fmt;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{Complaint, Report};
use crate::file::HotKeysSection;
use crate::section;
use crate::snapshot::{COPIES_DEFAULT, HotRule};
use crate::tree::{Kind, Node};
use crate::value::Value;

/// Whether samples of requests tell which keys are hot, and by what rule something is done about them.
#[derive(Clone, Debug)]
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
        let HotKeysSection { above, r#do, to, copies, most } =
            section::read(&what, node.pos, node, report);
        // That it is there has been found wanting already, if it is not.
        let act = r#do?.value;
        let above_percent = above?.value.0;
        let keys_max = most.value.0 as u32;
        if above_percent == 0 {
            let complaint = Complaint::new("all keys have more than 0% of the requests");
            report.error(node.pos, complaint.hint("expected \"above\" to be 1% to 100%"));
            return None;
        }
        let moves_to = to.as_ref().map(|to| to.value.0.clone());
        let copies = copies.map(|it| it.value.0 as u8);
        let is_wrong = match (act, &moves_to, copies) {
            (HotAction::Cache | HotAction::Split, Some(_), _) => {
                Some(("only keys that move go \"to\" a pool", "do: move"))
            }
            (HotAction::Move, None, _) => Some(("keys that move have to go somewhere", "to: POOL")),
            (HotAction::Cache | HotAction::Move, _, Some(_)) => {
                Some(("only keys that are split have \"copies\"", "do: split"))
            }
            _ => None,
        };
        if let Some((message, hint)) = is_wrong {
            report.error(node.pos, Complaint::new(message).hint(format!("expected \"{hint}\"")));
            return None;
        }
        let copies = matches!(act, HotAction::Split).then_some(copies.unwrap_or(COPIES_DEFAULT));
        let rule = HotRule { above_percent, keys_max, moves_to, copies };
        Some(Self { is_on: true, rule: Some(rule) })
    }
}

/// What is done about a hot key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HotAction {
    Cache,
    Move,
    Split,
}

impl Value for HotAction {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "cache" => Ok(Self::Cache),
            "move" => Ok(Self::Move),
            "split" => Ok(Self::Split),
            _ => Err(Complaint::new(format!("there is nothing called \"{text}\" to do"))
                .hint(Self::expected())),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "enum": ["cache", "split", "move"] })
    }

    fn describe() -> String {
        "`cache`, `split` or `move`".to_owned()
    }
}

/// As in a file.
impl fmt::Display for HotRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { above_percent, keys_max, moves_to, copies } = self;
        write!(f, "above {above_percent}% do ")?;
        match (moves_to, copies) {
            (Some(to), _) => write!(f, "move to {to}")?,
            (None, Some(copies)) => write!(f, "split, copies {copies}")?,
            (None, None) => write!(f, "cache")?,
        }
        write!(f, ", most {keys_max}")
    }
}
