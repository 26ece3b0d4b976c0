//! Users of a pool: in the file itself, or in one of Redis's ACL files.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use cashew_acl::{User, Users, split_rules};
use schemars::{Schema, json_schema};

use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::file::PoolSection;
use crate::resolve::Context;
use crate::tree::{Kind, Node};
use crate::value::Value;

/// Most users of one pool.
const USERS_MAX: usize = 10_000;

/// Of each user, who is known to be right, the line that an ACL file would have, with the SHA-256
/// of passwords only.
#[derive(Debug)]
pub(crate) struct UserList(BTreeMap<String, String>);

impl Value for UserList {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"users\" takes a section").hint(USERS_HINT))
    }

    fn schema() -> Schema {
        let text = json_schema!({ "type": "string" });
        let rules = json_schema!({ "anyOf": [text, { "type": "array", "items": text }] });
        json_schema!({ "type": "object", "maxProperties": USERS_MAX, "additionalProperties": rules })
    }

    fn describe() -> String {
        "a section of names, each with rules as text or as a list".to_owned()
    }

    fn read(_: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(entries) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        // Every user is read, so that every error is reported.
        let read = entries.iter().map(|(name, rules)| {
            let line = user_line(name, rules, report)?;
            Some((name.value.clone(), line))
        });
        let users: BTreeMap<_, _> = read.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?;
        check_count(users.len(), node.pos, report).then_some(Self(users))
    }
}

const USERS_HINT: &str = "expected entries like \"ann: on >password ~ann:* +@read\"";

fn check_count(count: usize, pos: Pos, report: &mut Report<'_>) -> bool {
    if count > USERS_MAX {
        let complaint = Complaint::new(format!("{count} users are too many"));
        report.error(pos, complaint.hint(format!("at most {USERS_MAX}")));
    }
    count <= USERS_MAX
}

/// A user's rules, in one text or in a list.
fn user_line(name: &At<String>, node: &Node, report: &mut Report<'_>) -> Option<String> {
    let text = |node: &Node| match &node.kind {
        Kind::Scalar { text, .. } => Some(text.clone()),
        Kind::Empty | Kind::List(_) | Kind::Section(_) => None,
    };
    let texts = match &node.kind {
        Kind::List(items) => items.iter().map(text).collect(),
        Kind::Empty => Some(Vec::new()),
        _ => text(node).map(|text| vec![text]),
    };
    let Some(texts) = texts else {
        let complaint = Complaint::new(format!("user \"{}\": rules are texts", name.value));
        report.error(node.pos, complaint.hint(USERS_HINT));
        return None;
    };
    if matches!(node.kind, Kind::Scalar { .. }) && report.has_hidden_comment(node.pos) {
        let message =
            format!("user \"{}\": what stands behind \" #\" is a comment to YAML", name.value);
        report.error(
            node.pos,
            Complaint::new(message)
                .hint("put the rules into quotes, or a space behind a comment's #"),
        );
        return None;
    }
    let is_list = matches!(node.kind, Kind::List(_));
    let rules = texts.iter().try_fold(Vec::new(), |mut rules, text| {
        // A password in a list may have spaces.
        match is_list && text.starts_with(['>', '<']) {
            true => rules.push(text.clone()),
            false => rules.extend(split_rules(text)?),
        }
        Ok(rules)
    });
    let user = rules
        .map_err(|fault: cashew_acl::Fault| fault.to_string())
        .and_then(|rules| User::named(&name.value, &rules).map_err(|fault| fault.to_string()));
    match user {
        Ok(user) => Some(user.line()),
        Err(why) => {
            let message = format!("user \"{}\": {why}", name.value);
            report.error(node.pos, Complaint::new(message));
            None
        }
    }
}

/// The users of a pool as lines of an ACL file, sorted by name; none if it has no users of its own.
pub(crate) fn resolve(
    section: &PoolSection,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Vec<String> {
    let given = section.users.as_ref().map(|users| (users.pos, "users"));
    let file = section.acl_file.as_ref().map(|file| (file.pos, "acl_file"));
    let Some((pos, key)) = given.or(file) else { return Vec::new() };
    if given.is_some() && file.is_some() {
        let complaint = Complaint::new("a pool has \"users\" or an \"acl_file\", not both");
        report.error(pos, complaint);
    }
    if section.client_auth.is_some() {
        let complaint =
            Complaint::new(format!("a pool has \"client_auth\" or \"{key}\", not both"));
        report.error(pos, complaint.hint("users log in with the same protocols"));
    }
    let mut users =
        section.users.as_ref().map_or_else(BTreeMap::new, |users| users.value.0.clone());
    if let Some(file) = &section.acl_file {
        users.extend(read_file(&file.value.0, file.pos, context, report));
    }
    // A pool without users would be open to all.
    if users.is_empty() {
        report.error(pos, Complaint::new(format!("option \"{key}\" has no users")));
    }
    let lines: Vec<String> = users.into_values().collect();
    if !lines.is_empty() && !Users::of_lines(&lines).iter().any(|user| user.is_on()) {
        let complaint = Complaint::new("all users are off: nobody can log in");
        report.warning(pos, complaint.hint("a user is off unless its rules have \"on\""));
    }
    lines
}

/// The users of an ACL file.
fn read_file(
    path: &Path,
    pos: Pos,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> BTreeMap<String, String> {
    let shown = path.display();
    let mut users = BTreeMap::new();
    let file = match (context.read_secret)(path) {
        Ok(file) => file,
        Err(error) => {
            let complaint =
                Complaint::new(format!("option \"acl_file\": {shown} cannot be read: {error}"));
            report.error(pos, complaint);
            return users;
        }
    };
    for (at, line) in file.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut refuse = |why: &str| {
            report.error(pos, Complaint::new(format!("{shown}:{}: {why}", at + 1)));
        };
        match User::parse(line) {
            Ok(user) => match users.entry(user.name().to_owned()) {
                Entry::Vacant(entry) => {
                    entry.insert(user.line());
                }
                Entry::Occupied(_) => refuse(&cashew_acl::Fault::DuplicateUser.to_string()),
            },
            Err(fault) => refuse(&fault.to_string()),
        }
    }
    check_count(users.len(), pos, report);
    if file.is_public {
        let complaint = Complaint::new(format!("every user of this machine can read {shown}"));
        report.warning(pos, complaint.hint("it holds passwords: chmod 0600, or 0640 for a group"));
    }
    users
}

/// The name of the user of a line.
pub(crate) fn name_of(line: &str) -> &str {
    line.split(' ').nth(1).unwrap_or_default()
}
