//! Who answers reads of some commands: `reads_by_class`.

use cashew_protocol::redis::{COMMANDS, CustomCommands, PolicyFault, Rules, most_specific};
use schemars::{Schema, json_schema};

use crate::diagnostic::{At, Complaint, Report, nearest};
use crate::file::PoolSection;
use crate::snapshot::Reads;
use crate::tree::{Kind, Node};
use crate::value::Value;

/// The most entries.
const ENTRIES_MAX: usize = 256;

const HINT: &str = "expected a section like \"{get: primary, '@slow': prefer_replica}\"";

/// A command, in lower case, or a category, and who answers its reads.
#[derive(Debug)]
pub(crate) struct ClassReads {
    pub(crate) class: At<String>,
    pub(crate) reads: At<Reads>,
}

/// In the order of the file.
#[derive(Debug)]
pub(crate) struct ReadsByClass(pub(crate) Vec<ClassReads>);

impl Value for ReadsByClass {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"reads_by_class\" takes a section").hint(HINT))
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "object",
            "maxProperties": ENTRIES_MAX,
            "additionalProperties": Reads::schema(),
        })
    }

    fn describe() -> String {
        "a section like `{get: primary, \"@slow\": prefer_replica}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let entries = match &node.kind {
            Kind::Section(entries) if entries.len() <= ENTRIES_MAX => entries,
            Kind::Section(entries) => {
                let complaint = Complaint::new(format!("{} entries are too many", entries.len()));
                report.error(node.pos, complaint.hint(format!("at most {ENTRIES_MAX}")));
                return None;
            }
            Kind::Empty | Kind::Scalar { .. } | Kind::List(_) => {
                return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
            }
        };
        // Every entry is read, so that every complaint is made.
        let class = |(class, node): &(At<String>, Node)| {
            let reads = At { value: Reads::read(key, node, report)?, pos: node.pos };
            let class = At { value: class.value.to_ascii_lowercase(), pos: class.pos };
            Some(ClassReads { class, reads })
        };
        let classes: Vec<_> = entries.iter().map(class).collect();
        classes.into_iter().collect::<Option<_>>().map(Self)
    }
}

/// The classes of a pool, and errors for those that are none.
pub(crate) fn resolve(section: &PoolSection, report: &mut Report<'_>) -> Vec<(String, Reads)> {
    let Some(classes) = &section.reads_by_class else { return Vec::new() };
    let classes = &classes.value.0;
    for (at, ClassReads { class, .. }) in classes.iter().enumerate() {
        let is_same = |other: &&ClassReads| other.class.value == class.value;
        if let Some(first) = classes[..at].iter().find(is_same) {
            let complaint = Complaint::new(format!("{} is given twice", shown(&class.value)));
            let hint = format!("first given on line {}", first.class.pos.line);
            report.error(class.pos, complaint.hint(hint));
        } else if let Some(complaint) = complaint(&class.value) {
            report.error(class.pos, complaint);
        }
    }
    classes.iter().map(|it| (it.class.value.clone(), it.reads.value)).collect()
}

fn shown(class: &str) -> String {
    if class.starts_with('@') { class.to_owned() } else { class.to_ascii_uppercase() }
}

fn complaint(class: &str) -> Option<Complaint> {
    let shown = shown(class);
    match Rules::fault(class, false, &CustomCommands::default()) {
        // Those are told of below, as far as it matters.
        None | Some(PolicyFault::Undeniable | PolicyFault::Unserved(_)) => {}
        Some(_) => {
            let near = nearest(class, Rules::entries());
            let near = near.map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
            let complaint = Complaint::new(format!("there is no class of commands {shown}{near}"));
            let hint = "expected a command of Redis's, or one of its categories, as \"@slow\"";
            return Some(complaint.hint(hint));
        }
    }
    let is_about = |command: &cashew_protocol::redis::Command| {
        most_specific(std::iter::once(class), command).is_some()
    };
    let mut reads = COMMANDS.iter().filter(|command| command.may_be_read_from_replicas());
    let is_vain = !reads.any(is_about);
    is_vain.then(|| {
        Complaint::new(format!("{shown} is nothing that a replica could answer"))
            .hint("writes, cursors and what has no keys are always for the primary")
    })
}
