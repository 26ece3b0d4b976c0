//! Users of a pool: in the file itself, or in one of Redis's ACL files.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cashew_acl::{User, Users, split_rules};
use cashew_protocol::memcached::KEY_PREFIX_MAX;
use cashew_tls::ClientUser;
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Pos, Report, nearest};
use crate::file::{PoolSection, UserSection};
use crate::resolve::Context;
use crate::section;
use crate::snapshot::{OverLimit, Pool, Priority, Protocol, Reads, USER_ROUTES_MAX, UserOptions};
use crate::tree::{Kind, Node};
use crate::value::{Value, list_of, named};

/// Most users of one pool.
const USERS_MAX: usize = 10_000;
/// Most of them who have limits: each has statistics of its own.
const LIMITED_MAX: usize = 1000;

/// More pools and routes are not listed.
const NAMES_SHOWN_MAX: usize = 10;

const OVER_LIMITS: [&str; 2] = ["error", "delay"];

impl Value for OverLimit {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "way to keep a user within its limits", &OVER_LIMITS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": OVER_LIMITS })
    }

    fn describe() -> String {
        list_of(&OVER_LIMITS)
    }
}

const PRIORITIES: [&str; 3] = ["normal", "low", "high"];

impl Value for Priority {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "priority", &PRIORITIES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": PRIORITIES })
    }

    fn describe() -> String {
        list_of(&PRIORITIES)
    }
}

/// Users by name.
#[derive(Debug)]
pub(crate) struct UserList(BTreeMap<String, UserEntry>);

/// What a file has of one user.
#[derive(Clone, Debug)]
struct UserEntry {
    pos: Pos,
    /// The line that an ACL file would have, known to be right, with the SHA-256 of passwords only;
    /// `None` if it has no rules, which are in an ACL file then.
    line: Option<String>,
    /// Where `options` have it from.
    route_pos: Pos,
    options: UserOptions,
}

impl Value for UserList {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"users\" takes a section").hint(USERS_HINT))
    }

    fn schema() -> Schema {
        let text = json_schema!({ "type": "string" });
        let section = section::schema::<UserSection>(&mut SchemaGenerator::default());
        let rules = json_schema!({ "anyOf": [text, { "type": "array", "items": text }, section] });
        json_schema!({ "type": "object", "maxProperties": USERS_MAX, "additionalProperties": rules })
    }

    fn describe() -> String {
        "a section of names, each with rules as text or as a list, or a section".to_owned()
    }

    fn read(_: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(entries) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        // Every user is read, so that every error is reported.
        let read = entries.iter().map(|(name, node)| {
            let entry = read_entry(name, node, report)?;
            Some((name.value.clone(), entry))
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

/// A user's rules, or a section with rules and limits.
fn read_entry(name: &At<String>, node: &Node, report: &mut Report<'_>) -> Option<UserEntry> {
    let pos = name.pos;
    let Kind::Section(_) = &node.kind else {
        let options = UserOptions::of(&name.value);
        let line = Some(user_line(name, node, report)?);
        return Some(UserEntry { pos, line, route_pos: Pos::NONE, options });
    };
    let what = format!("user \"{}\"", name.value);
    let section: UserSection = section::read(&what, pos, node, report);
    let line = match &section.rules {
        Some(rules) => Some(user_line(name, &rules.value.0, report)?),
        None => None,
    };
    if let Some(prefix) = &section.key_prefix
        && prefix.value.0.contains('*')
    {
        let complaint = Complaint::new(format!("{what}: a \"key_prefix\" has no asterisk"));
        report.error(
            prefix.pos,
            complaint.hint("SORT puts keys in the place of the first asterisk of a pattern"),
        );
    }
    let options = UserOptions {
        name: name.value.clone(),
        requests_per_second: section.requests_per_second.value.0 as u32,
        bytes_per_second: section.bytes_per_second.value.0,
        connections_max: section.connections_max.value.0 as u32,
        in_flight_max: section.in_flight_max.value.0 as u32,
        over_limit: section.over_limit.value,
        reads: section.reads.as_ref().map(|reads| reads.value),
        priority: section.priority.value,
        key_prefix: section.key_prefix.as_ref().map_or_else(String::new, |it| it.value.0.clone()),
        route: section.route.as_ref().map(|route| route.value.0.clone()),
    };
    let route_pos = section.route.as_ref().map_or(Pos::NONE, |route| route.pos);
    Some(UserEntry { pos, line, route_pos, options })
}

/// Rules that have not been looked at.
#[derive(Debug)]
pub(crate) struct RulesText(Node);

impl Value for RulesText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let kind = Kind::Scalar { text: text.to_owned(), plain: false };
        Ok(Self(Node { pos: Pos::NONE, kind }))
    }

    fn schema() -> Schema {
        let text = json_schema!({ "type": "string" });
        json_schema!({ "anyOf": [text, { "type": "array", "items": text }] })
    }

    fn describe() -> String {
        "rules as text or as a list".to_owned()
    }

    fn read(_: &str, node: &Node, _: &mut Report<'_>) -> Option<Self> {
        Some(Self(node.clone()))
    }
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

/// The users of a pool as lines of an ACL file, and those that have more than rules, both sorted by
/// name; none if it has no users of its own.
pub(crate) fn resolve(
    section: &PoolSection,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> (Vec<String>, Vec<UserOptions>) {
    let given = section.users.as_ref().map(|users| (users.pos, "users"));
    let file = section.acl_file.as_ref().map(|file| (file.pos, "acl_file"));
    let Some((pos, key)) = given.or(file) else { return (Vec::new(), Vec::new()) };
    if section.client_auth.is_some() {
        let complaint =
            Complaint::new(format!("a pool has \"client_auth\" or \"{key}\", not both"));
        report.error(pos, complaint.hint("users log in with the same protocols"));
    }
    let entries = section.users.as_ref().map_or_else(BTreeMap::new, |users| users.value.0.clone());
    let mut users: BTreeMap<String, String> = BTreeMap::new();
    if let Some(file) = &section.acl_file {
        if let Some((pos, _)) = given
            && entries.values().any(|entry| entry.line.is_some())
        {
            let complaint =
                Complaint::new("a pool has rules in \"users\" or in an \"acl_file\", not both");
            report.error(pos, complaint.hint("users of the file may have limits in \"users\""));
        }
        users.extend(read_file(&file.value.0, file.pos, context, report));
    }
    for (name, entry) in &entries {
        match &entry.line {
            Some(line) => {
                users.insert(name.clone(), line.clone());
            }
            None if section.acl_file.is_none() => {
                let complaint = Complaint::new(format!("user \"{name}\" has no rules"));
                report.error(entry.pos, complaint.hint("expected \"rules\", or an \"acl_file\""));
            }
            None if !users.contains_key(name) && !users.is_empty() => {
                let similar = nearest(name, users.keys().map(String::as_str))
                    .map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
                let message = format!("the \"acl_file\" has no user \"{name}\"{similar}");
                report.error(entry.pos, Complaint::new(message));
            }
            None => {}
        }
    }
    // A pool without users would be open to all.
    if users.is_empty() {
        report.error(pos, Complaint::new(format!("option \"{key}\" has no users")));
    }
    let options: Vec<UserOptions> = entries
        .into_values()
        .map(|entry| entry.options)
        .filter(|options| *options != UserOptions::of(&options.name))
        .collect();
    if options.iter().filter(|options| options.is_limited()).count() > LIMITED_MAX {
        let complaint = Complaint::new("too many users have limits");
        report.error(pos, complaint.hint(format!("at most {LIMITED_MAX} of a pool")));
    }
    check_prefixes(section, &options, pos, report);
    let lines: Vec<String> = users.into_values().collect();
    if !lines.is_empty() && !Users::of_lines(&lines).iter().any(|user| user.is_on()) {
        let complaint = Complaint::new("all users are off: nobody can log in");
        report.warning(pos, complaint.hint("a user is off unless its rules have \"on\""));
    }
    (lines, options)
}

/// Has users who say so go to another pool or route of the file. `names` are all of these, with their protocols.
///
/// `reached` is told of each pool that a user gets to.
pub(crate) fn route(
    owner: &str,
    section: &PoolSection,
    names: &BTreeMap<&str, Protocol>,
    reached: &mut impl FnMut(&str),
    report: &mut Report<'_>,
) -> BTreeSet<String> {
    let Some(users) = &section.users else { return BTreeSet::new() };
    let protocol = protocol_of(section);
    let mut found = BTreeSet::new();
    for (user, entry) in &users.value.0 {
        let Some(to) = &entry.options.route else { continue };
        let Some(&spoken) = names.get(to.as_str()) else {
            report.error(entry.route_pos, unknown(user, to, names));
            continue;
        };
        reached(to);
        if to == owner {
            let message = format!("user \"{user}\" would go where everybody goes here");
            let hint = "leave \"route\" out, or name another pool or route";
            report.error(entry.route_pos, Complaint::new(message).hint(hint));
        } else if spoken != protocol {
            let message = format!(
                "\"{to}\" is for {}, and user \"{user}\" speaks {}",
                spoken.title(),
                protocol.title()
            );
            let hint = "\"redis: true\" must be in both or in neither";
            report.error(entry.route_pos, Complaint::new(message).hint(hint));
        } else {
            found.insert(to.clone());
        }
    }
    if found.len() > USER_ROUTES_MAX {
        let message = format!("the users' routes lead to {} places", found.len());
        let hint = format!("at most {USER_ROUTES_MAX} of a pool");
        report.error(users.pos, Complaint::new(message).hint(hint));
    }
    found
}

fn protocol_of(section: &PoolSection) -> Protocol {
    section.spoken()
}

fn unknown(user: &str, to: &str, names: &BTreeMap<&str, Protocol>) -> Complaint {
    let similar = nearest(to, names.keys().copied())
        .map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
    let message = format!("user \"{user}\": there is no pool or route \"{to}\"{similar}");
    let complaint = Complaint::new(message);
    match names.len() {
        0..=NAMES_SHOWN_MAX => {
            let names: Vec<&str> = names.keys().copied().collect();
            complaint.hint(format!("there are {}", names.join(", ")))
        }
        _ => complaint,
    }
}

/// Whether some user of the section has its requests go there.
pub(crate) fn leads_to(section: &PoolSection, name: &str) -> bool {
    let entries = section.users.iter().flat_map(|users| users.value.0.values());
    entries.into_iter().any(|entry| entry.options.route.as_deref() == Some(name))
}

/// The pools and routes of a file, by which users name them.
pub(crate) fn places<'f>(
    sections: impl Iterator<Item = (&'f str, &'f PoolSection)>,
) -> BTreeMap<&'f str, Protocol> {
    sections.map(|(name, section)| (name, protocol_of(section))).collect()
}

/// What `reads` say of users who have a route of their own is about the servers there.
pub(crate) fn reads_elsewhere(section: &PoolSection, to: &str) -> Vec<At<Reads>> {
    let entries = section.users.iter().flat_map(|users| users.value.0.values());
    let entries = entries.filter(|entry| entry.options.route.as_deref() == Some(to));
    entries
        .filter_map(|entry| Some(At { value: entry.options.reads?, pos: entry.route_pos }))
        .collect()
}

/// Who is on and has no password can log in by a certificate alone, or by what an external authoriser says.
pub(crate) fn warn_of_unknown_passwords(
    pool: &Pool,
    section: &PoolSection,
    report: &mut Report<'_>,
) {
    let given = section.users.as_ref().map(|users| users.pos);
    let Some(pos) = given.or(section.acl_file.as_ref().map(|file| file.pos)) else { return };
    let by_certificate = pool.tls.as_ref().is_some_and(|tls| tls.client_user != ClientUser::Off);
    if by_certificate || pool.external_auth.is_some() {
        return;
    }
    let users = Users::of_lines(&pool.users);
    let locked: Vec<&str> = users
        .iter()
        .filter(|user| user.is_on() && !user.has_password())
        .map(|it| it.name())
        .collect();
    let Some(first) = locked.first() else { return };
    let more = match locked.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let message =
        format!("user \"{first}\"{more} is on and has no password: nobody can log in as it");
    report.warning(
        pos,
        Complaint::new(message).hint("give it one by \">password\", or turn it \"off\""),
    );
}

/// Nobody's keys may begin like another one's.
fn check_prefixes(
    section: &PoolSection,
    options: &[UserOptions],
    pos: Pos,
    report: &mut Report<'_>,
) {
    let mut prefixed: Vec<&UserOptions> =
        options.iter().filter(|user| !user.key_prefix.is_empty()).collect();
    if !section.redis.value.0 {
        for user in &prefixed {
            let prefix = user.key_prefix.as_bytes();
            if prefix.len() > KEY_PREFIX_MAX
                || prefix.iter().any(|&byte| byte <= b' ' || byte == 0x7f)
            {
                let message =
                    format!("user \"{}\": no key can begin with its key_prefix", user.name);
                let hint = format!("at most {KEY_PREFIX_MAX} bytes without spaces");
                report.error(pos, Complaint::new(message).hint(hint));
            }
        }
    }
    prefixed.sort_by_key(|user| user.key_prefix.as_bytes());
    for pair in prefixed.windows(2) {
        let (one, other) = (pair[0], pair[1]);
        if one.key_prefix != other.key_prefix && other.key_prefix.starts_with(&one.key_prefix) {
            let message = format!(
                "user \"{}\" would have keys of \"{}\", whose key_prefix begins with its own",
                one.name, other.name
            );
            report.error(pos, Complaint::new(message).hint("end each with a colon, for example"));
        }
    }
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
