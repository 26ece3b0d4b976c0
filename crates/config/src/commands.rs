//! Commands that Redis itself does not have, as listed in the file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use cashew_protocol::redis::{CUSTOM_MAX, FaultOf};
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::file::CommandSection;
use crate::section;
use crate::snapshot::{CommandKeys, CustomCommand};
use crate::tree::{Kind, Node};
use crate::value::{Text, Value};

/// A whole number that may be negative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole(pub(crate) i16);

impl Value for Whole {
    fn parse(text: &str) -> Result<Self, Complaint> {
        text.parse().map(Self).map_err(|_| {
            Complaint::new(format!("\"{text}\" is not a number")).hint(Self::expected())
        })
    }

    fn schema() -> Schema {
        json_schema!({ "type": "integer", "minimum": i16::MIN, "maximum": i16::MAX })
    }

    fn describe() -> String {
        format!("{} to {}", i16::MIN, i16::MAX)
    }
}

/// A list of words, or one.
#[derive(Clone, Debug)]
pub(crate) struct Words(pub(crate) Vec<String>);

impl Value for Words {
    fn parse(text: &str) -> Result<Self, Complaint> {
        if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            Ok(Self(vec![text.to_ascii_lowercase()]))
        } else {
            Err(Complaint::new(format!("\"{text}\" is not a word")).hint(Self::expected()))
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "array", "items": { "type": "string", "pattern": "^[A-Za-z0-9_]+$" } })
    }

    fn describe() -> String {
        "a list of words, like `[readonly, fast]`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let items = match &node.kind {
            Kind::List(items) => items.as_slice(),
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => std::slice::from_ref(node),
        };
        // Every word is read, so that every error is reported.
        let words: Vec<_> = items.iter().map(|item| Text::read(key, item, report)).collect();
        let words = words.into_iter().collect::<Option<Vec<_>>>()?;
        let parsed: Vec<_> = words
            .iter()
            .zip(items)
            .map(|(text, item)| {
                let word = Self::parse(&text.0).map(|words| words.0);
                word.map_err(|complaint| report.error(item.pos, complaint)).ok()
            })
            .collect();
        parsed.into_iter().collect::<Option<Vec<_>>>().map(|words| Self(words.concat()))
    }
}

/// Sorted by name.
#[derive(Debug)]
pub(crate) struct Commands(pub(crate) Vec<CustomCommand>);

impl Value for Commands {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"commands\" takes a list").hint(COMMANDS_HINT))
    }

    fn schema() -> Schema {
        let item = section::schema::<CommandSection>(&mut SchemaGenerator::default());
        json_schema!({ "type": "array", "maxItems": CUSTOM_MAX, "items": item })
    }

    fn describe() -> String {
        "a list of commands".to_owned()
    }

    fn read(_: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::List(items) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        if items.len() > CUSTOM_MAX {
            let complaint = Complaint::new(format!("{} commands are too many", items.len()));
            report.error(node.pos, complaint.hint(format!("at most {CUSTOM_MAX}")));
            return None;
        }
        // Every command is read, so that every error is reported.
        let read: Vec<_> = items.iter().map(|item| command(item, report)).collect();
        let mut commands = read.into_iter().collect::<Option<Vec<_>>>()?;
        let mut first_lines = HashMap::new();
        let before = commands.len();
        commands.retain(|command| is_first(command, &mut first_lines, report));
        if commands.len() < before {
            return None;
        }
        let mut commands: Vec<_> = commands.into_iter().map(|command| command.value).collect();
        commands.sort_by(|a, b| a.name.cmp(&b.name));
        Some(Self(commands))
    }
}

const COMMANDS_HINT: &str =
    "expected items like \"- {name: json.get, arity: -2, first_key: 1, flags: [readonly]}\"";

fn is_first(
    command: &At<CustomCommand>,
    first_lines: &mut HashMap<String, usize>,
    report: &mut Report<'_>,
) -> bool {
    match first_lines.entry(command.value.name.clone()) {
        Entry::Vacant(entry) => {
            entry.insert(command.pos.line);
            true
        }
        Entry::Occupied(first) => {
            let message = format!("command \"{}\" is given twice", command.value.name);
            let hint = format!("first given on line {}", first.get());
            report.error(command.pos, Complaint::new(message).hint(hint));
            false
        }
    }
}

/// `None` after an error was reported.
fn command(node: &Node, report: &mut Report<'_>) -> Option<At<CustomCommand>> {
    if !matches!(node.kind, Kind::Section(_)) {
        let complaint = Complaint::new("a command is a section of options").hint(COMMANDS_HINT);
        report.error(node.pos, complaint);
        return None;
    }
    let section: CommandSection = section::read("a command", node.pos, node, report);
    let (name, arity) = (section.name?, section.arity?);
    let first = section.first_key.value.0 as u16;
    let step = section.step.value.0 as u16;
    let (keys, keys_pos) = match (first, &section.numkeys) {
        (0, None) => (CommandKeys::None, node.pos),
        (0, Some(at)) => (CommandKeys::Numkeys { at: at.value.0 as u16, step }, at.pos),
        (_, None) => {
            let last = section.last_key.as_ref().map_or(first as i16, |last| last.value.0);
            (CommandKeys::Range { first, last, step }, section.first_key.pos)
        }
        (_, Some(at)) => {
            let message = "a command has either \"first_key\" or \"numkeys\"";
            report.error(at.pos, Complaint::new(message));
            return None;
        }
    };
    let command = CustomCommand {
        name: name.value.0.to_ascii_lowercase(),
        arity: arity.value.0,
        keys,
        flags: section.flags.map_or_else(Vec::new, |flags| flags.value.0),
    };
    if let Some(fault) = command.definition().fault() {
        let pos = match fault.of {
            FaultOf::Name => name.pos,
            FaultOf::Arity => arity.pos,
            FaultOf::Keys if keys_pos == Pos::NONE => node.pos,
            FaultOf::Keys => keys_pos,
        };
        let message = format!("command \"{}\": {}", command.name, fault.text);
        report.error(pos, Complaint::new(message));
        return None;
    }
    Some(At { value: command, pos: node.pos })
}
