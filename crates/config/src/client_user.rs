//! Which user a client's certificate makes it: a name in the certificate, or what a map says of that name.

use std::collections::BTreeMap;

use cashew_acl::Users;
use cashew_tls::{ClientNames, ClientUser};
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{Complaint, Pos, Report, nearest};
use crate::file::ClientUserSection;
use crate::section;
use crate::snapshot::Pool;
use crate::tree::{Kind, Node};
use crate::value::Value;

/// Most names of a map.
const NAMES_MAX: usize = 10_000;

/// The plain form is the kind of the name alone.
#[derive(Clone, Debug)]
pub(crate) struct ClientUserText {
    pub(crate) from: ClientUser,
    pub(crate) names: ClientNames,
}

impl Value for ClientUserText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let from = ClientUser::parse(text)?;
        Ok(Self { from, names: ClientNames::default() })
    }

    fn schema() -> Schema {
        let section = section::schema::<ClientUserSection>(&mut SchemaGenerator::default());
        json_schema!({ "anyOf": [ClientUser::schema(), section] })
    }

    fn describe() -> String {
        format!(
            "{}, or a section like `{{from: cn, map: {{web.example.com: web}}}}`",
            ClientUser::describe()
        )
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            let from = ClientUser::read(key, node, report)?;
            return Some(Self { from, names: ClientNames::default() });
        };
        let section: ClientUserSection =
            section::read(&format!("option \"{key}\""), node.pos, node, report);
        let from = section.from?;
        if from.value == ClientUser::Off {
            let complaint = Complaint::new("\"from\" is off: no certificate makes a user");
            report.error(from.pos, complaint.hint("leave \"client_user\" away instead"));
        }
        let names = ClientNames {
            map: section.map.map_or_else(BTreeMap::new, |map| map.value.0),
            default: section.default.map(|user| user.value.0),
        };
        Some(Self { from: from.value, names })
    }
}

/// Users by names in certificates.
#[derive(Clone, Debug)]
pub(crate) struct NameMap(BTreeMap<String, String>);

impl Value for NameMap {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"map\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "object",
            "minProperties": 1,
            "maxProperties": NAMES_MAX,
            "additionalProperties": { "type": ["string", "integer"], "minLength": 1 },
        })
    }

    fn describe() -> String {
        "a section of names, each with its user, like `{web.example.com: web}`".to_owned()
    }

    fn read(_: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(entries) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        if entries.is_empty() || entries.len() > NAMES_MAX {
            let complaint = Complaint::new(format!("option \"map\" has {} names", entries.len()));
            report.error(node.pos, complaint.hint(format!("expected 1 to {NAMES_MAX}")));
            return None;
        }
        let read = entries.iter().map(|(name, user)| match &user.kind {
            Kind::Scalar { text, .. } if !text.is_empty() => {
                Some((name.value.clone(), text.clone()))
            }
            _ => {
                let complaint = Complaint::new(format!("\"{}\" has no user", name.value));
                report.error(user.pos, complaint.hint(Self::expected()));
                None
            }
        });
        let read: Vec<Option<(String, String)>> = read.collect();
        read.into_iter().collect::<Option<_>>().map(Self)
    }
}

/// Users that names stand for must be there.
pub(crate) fn check(pool: &Pool, pos: Pos, report: &mut Report<'_>) {
    let Some(tls) = &pool.tls else { return };
    if pool.users.is_empty() {
        return;
    }
    let users = Users::of_lines(&pool.users);
    let ClientNames { map, default } = &tls.client_names;
    for user in map.values().chain(default) {
        if users.named(user.as_bytes()).is_none() {
            let complaint = Complaint::new(format!("\"client_user\": there is no user \"{user}\""));
            let near = nearest(user, users.iter().map(|user| user.name()));
            report.error(
                pos,
                match near {
                    Some(near) => complaint.hint(format!("did you mean \"{near}\"?")),
                    None => complaint.hint("users are those of \"users\" or of the \"acl_file\""),
                },
            );
        }
    }
}

/// In words for an operator.
pub(crate) fn shown(from: ClientUser, names: &ClientNames) -> String {
    let ClientNames { map, default } = names;
    let mut text = from.name().to_owned();
    if !map.is_empty() {
        let pairs: Vec<String> = map.iter().map(|(name, user)| format!("{name}: {user}")).collect();
        text += &format!(", map {{{}}}", pairs.join(", "));
    }
    if let Some(user) = default {
        text += &format!(", default {user}");
    }
    text
}
