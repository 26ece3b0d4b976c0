//! The file with who did what: `audit_log`.

use cashew_acl::{categories, commands_meant};
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Report, nearest};
use crate::file::AuditLogSection;
use crate::section;
use crate::snapshot::AuditLog;
use crate::tree::{Kind, Node};
use crate::value::{FilePath, Text, Value};

#[derive(Debug)]
pub(crate) struct AuditLogText {
    pub(crate) log: AuditLog,
    pub(crate) file: At<FilePath>,
}

impl Value for AuditLogText {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"audit_log\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<AuditLogSection>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        "a section like `{file: /var/log/cashew/audit.log, commands: [write, admin]}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let what = format!("option \"{key}\"");
        let section: AuditLogSection = section::read(&what, node.pos, node, report);
        let file = section.file?;
        let log = AuditLog {
            file: file.value.0.clone(),
            commands: section.commands.value.0,
            share_percent: section.share.value.0,
            denied: section.denied.value.0,
            logins: section.logins.value.0,
            operators: section.operators.value.0,
        };
        if !log.is_about_clients() && !log.operators {
            let complaint = Complaint::new("with these options \"audit_log\" has no lines");
            report.error(node.pos, complaint.hint("leave it away instead"));
        }
        Some(Self { log, file })
    }
}

/// Commands and categories, lower case; `all` or none.
#[derive(Clone, Debug)]
pub(crate) struct Audited(Vec<String>);

const NONE: &str = "none";

impl Value for Audited {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let words = text.split([' ', ',']).filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(str::to_ascii_lowercase).collect();
        for word in &words {
            let is_known = word == AuditLog::ALL || word == NONE || commands_meant(word).is_some();
            if !is_known {
                let complaint =
                    Complaint::new(format!("\"{word}\" is neither a command nor a category"));
                let name = word.strip_prefix('@').unwrap_or(word);
                return Err(match nearest(name, categories().iter().copied()) {
                    Some(near) => complaint.hint(format!("perhaps `{near}`")),
                    None => complaint.hint(Self::expected()),
                });
            }
        }
        Ok(Self(words))
    }

    fn schema() -> Schema {
        let word = json_schema!({ "type": "string", "minLength": 1 });
        json_schema!({ "anyOf": [word, { "type": "array", "items": word, "maxItems": 1024 }] })
    }

    fn describe() -> String {
        "a list like `[write, dangerous, GET]`, or `all`, or `none`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let items = match &node.kind {
            Kind::List(items) => items.as_slice(),
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => std::slice::from_ref(node),
        };
        // Every word is read, so that every error is reported.
        let words = items.iter().map(|item| {
            let text = Text::read(key, item, report)?;
            let parsed = Self::parse(&text.0).map_err(|complaint| Complaint {
                message: format!("option \"{key}\": {}", complaint.message),
                ..complaint
            });
            parsed.map_err(|complaint| report.error(item.pos, complaint)).ok()
        });
        let words: Vec<Option<Self>> = words.collect();
        let words = words.into_iter().collect::<Option<Vec<Self>>>()?;
        let words: Vec<String> = words.into_iter().flat_map(|words| words.0).collect();
        if words.len() > 1 && words.iter().any(|word| word == NONE) {
            let complaint = Complaint::new(format!("option \"{key}\": \"{NONE}\" stands alone"));
            report.error(node.pos, complaint.hint(Self::expected()));
        }
        Some(Self(words.into_iter().filter(|word| word != NONE).collect()))
    }
}

/// In words for an operator.
pub(crate) fn shown(log: &Option<AuditLog>) -> String {
    let Some(log) = log else { return "none".to_owned() };
    let AuditLog { file, commands, share_percent, denied, logins, operators } = log;
    let commands = if commands.is_empty() { NONE.to_owned() } else { commands.join(" ") };
    format!(
        "{}, commands {commands}, share {share_percent}%, denied {denied}, logins {logins}, operators {operators}",
        file.display()
    )
}
