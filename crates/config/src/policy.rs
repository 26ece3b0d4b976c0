//! The policy of commands in a file: a word, or a section with lists of what is allowed and denied.

use cashew_protocol::memcached::chores;
use cashew_protocol::redis;
use cashew_protocol::redis::{
    COMMANDS, CustomCommands, Definition, PolicyFault, RENAMED_SIZE_MAX, RenameFault, Renames,
    Rule, Rules,
};
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Report, nearest};
use crate::file::{PolicySection, PoolSection};
use crate::section;
use crate::snapshot::{CommandPolicy, PolicyBase, Pool, Protocol, Snapshot};
use crate::tree::{Kind, Node};
use crate::value::{Text, Value, list_of, named};

/// As [`PolicyBase`] is serialized.
const BASES: [&str; 3] = ["application", "cache", "admin"];

/// The most entries of a list.
const ENTRIES_MAX: usize = 1024;

impl Value for PolicyBase {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "policy", &BASES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": BASES })
    }

    fn describe() -> String {
        list_of(&BASES)
    }
}

/// Commands, subcommands and categories with their places, in lower case.
#[derive(Debug)]
pub(crate) struct Entries(Vec<At<String>>);

impl Value for Entries {
    fn parse(text: &str) -> Result<Self, Complaint> {
        Err(Complaint::new(format!("\"{text}\" is not a list")).hint(Self::expected()))
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "array",
            "maxItems": ENTRIES_MAX,
            "items": { "type": "string", "pattern": "^[^ ]+$" },
        })
    }

    fn describe() -> String {
        "a list like `[CONFIG|SET, KEYS, \"@dangerous\"]`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let items = match &node.kind {
            Kind::List(items) => items.as_slice(),
            Kind::Empty => &[],
            Kind::Scalar { .. } | Kind::Section(_) => {
                let complaint = Complaint::new(format!("option \"{key}\" takes a list"));
                report.error(node.pos, complaint.hint(Self::expected()));
                return None;
            }
        };
        if items.len() > ENTRIES_MAX {
            let complaint = Complaint::new(format!("{} entries are too many", items.len()));
            report.error(node.pos, complaint.hint(format!("at most {ENTRIES_MAX}")));
            return None;
        }
        let entry = |item: &Node, report: &mut Report<'_>| {
            let value = Text::read(key, item, report)?.0.to_ascii_lowercase();
            Some(At { value, pos: item.pos })
        };
        // Every entry is read, so that every error is reported.
        let entries: Vec<_> = items.iter().map(|item| entry(item, report)).collect();
        entries.into_iter().collect::<Option<Vec<_>>>().map(Self)
    }
}

/// A base and its exceptions.
#[derive(Debug)]
pub(crate) struct PolicyText {
    base: PolicyBase,
    allow: Vec<At<String>>,
    deny: Vec<At<String>>,
    rename: Vec<(At<String>, At<String>)>,
}

/// Names of commands, in lower case, and what clients are to call them.
#[derive(Debug)]
pub(crate) struct RenameList(Vec<(At<String>, At<String>)>);

const RENAME_HINT: &str = "expected a section like \"{CONFIG: my-config, KEYS: ''}\"";

impl Value for RenameList {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"rename\" takes a section").hint(RENAME_HINT))
    }

    fn schema() -> Schema {
        let name = json_schema!({ "type": "string", "maxLength": RENAMED_SIZE_MAX });
        json_schema!({ "type": "object", "maxProperties": ENTRIES_MAX, "additionalProperties": name })
    }

    fn describe() -> String {
        "a section like `{CONFIG: my-config, KEYS: \"\"}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(entries) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let pair = |name: &At<String>, node: &Node, report: &mut Report<'_>| {
            let other = match &node.kind {
                Kind::Scalar { text, .. } if text.is_empty() => String::new(),
                _ => Text::read(key, node, report)?.0.to_ascii_lowercase(),
            };
            let name = At { value: name.value.to_ascii_lowercase(), pos: name.pos };
            Some((name, At { value: other, pos: node.pos }))
        };
        let pairs: Vec<_> = entries.iter().map(|(name, node)| pair(name, node, report)).collect();
        pairs.into_iter().collect::<Option<Vec<_>>>().map(Self)
    }
}

/// Errors of other names of commands.
fn check_renames(
    pairs: &[(At<String>, At<String>)],
    protocol: Protocol,
    custom: &CustomCommands,
    report: &mut Report<'_>,
) {
    for (at, (name, other)) in pairs.iter().enumerate() {
        if protocol == Protocol::Memcached {
            let complaint = Complaint::new("commands of memcached have no other names");
            report.error(name.pos, complaint.hint("\"deny\" forbids some"));
            return;
        }
        let (shown, others) = (name.value.to_ascii_uppercase(), &pairs[..at]);
        if others.iter().any(|(before, _)| before.value == name.value) {
            report.error(name.pos, Complaint::new(format!("{shown} is renamed twice")));
        }
        if !other.value.is_empty() && others.iter().any(|(_, it)| it.value == other.value) {
            let complaint = Complaint::new("two commands would have this name");
            report.error(other.pos, complaint);
        }
        let Some(fault) = Renames::fault(&name.value, &other.value, custom) else { continue };
        let (pos, complaint) = match fault {
            RenameFault::Unknown => {
                let near =
                    nearest(&name.value, Rules::entries().filter(|it| !it.contains(['|', '@'])));
                let near = near.map_or_else(String::new, |it| {
                    format!("; did you mean {}?", it.to_uppercase())
                });
                (name.pos, Complaint::new(format!("there is no command {shown}{near}")))
            }
            RenameFault::Subcommand => {
                let container = shown.split('|').next().unwrap_or_default();
                let hint = format!("{container} can be renamed with all of them, or one be denied");
                (name.pos, Complaint::new("a subcommand cannot be renamed").hint(hint))
            }
            RenameFault::Needed => {
                let message = format!("{shown} cannot be renamed: every client may call it");
                (name.pos, Complaint::new(message))
            }
            RenameFault::Taken => {
                (other.pos, Complaint::new("there is a command of this name already"))
            }
            RenameFault::Unusable => {
                let hint =
                    format!("at most {RENAMED_SIZE_MAX} printable characters, none of them |");
                (other.pos, Complaint::new("no command can have this name").hint(hint))
            }
        };
        report.error(pos, complaint);
    }
}

impl Value for PolicyText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let base = PolicyBase::parse(text)?;
        Ok(Self { base, allow: Vec::new(), deny: Vec::new(), rename: Vec::new() })
    }

    fn schema() -> Schema {
        let section = section::schema::<PolicySection>(&mut SchemaGenerator::default());
        json_schema!({ "anyOf": [PolicyBase::schema(), section] })
    }

    fn describe() -> String {
        format!(
            "{}, or a section with `base`, `allow`, `deny` and `rename`",
            PolicyBase::describe()
        )
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            let base = PolicyBase::read(key, node, report)?;
            return Some(Self { base, allow: Vec::new(), deny: Vec::new(), rename: Vec::new() });
        };
        let section: PolicySection =
            section::read(&format!("option \"{key}\""), node.pos, node, report);
        let entries = |list: Option<At<Entries>>| list.map_or_else(Vec::new, |list| list.value.0);
        let (allow, deny) = (entries(section.allow), entries(section.deny));
        let rename = section.rename.map_or_else(Vec::new, |list| list.value.0);
        Some(Self { base: section.base.value, allow, deny, rename })
    }
}

/// The policy of a pool, and errors for unknown entries.
pub(crate) fn resolve(
    section: &PoolSection,
    protocol: Protocol,
    report: &mut Report<'_>,
) -> CommandPolicy {
    let PolicyText { base, allow, deny, rename } = &section.command_policy.value;
    let commands = section.commands.iter().flat_map(|commands| &commands.value.0);
    let definitions: Vec<Definition> = commands.map(|c| c.definition()).collect();
    let custom = &CustomCommands::new(&definitions, &CustomCommands::default());
    let check: &dyn Fn(&str, bool) -> Option<Complaint> = match protocol {
        Protocol::Redis => {
            let asks = section.commands_from_servers.value.0;
            &move |entry, allows| complaint(entry, allows, asks, custom)
        }
        Protocol::Memcached | Protocol::Tcp => &|entry, _| chore_complaint(entry),
    };
    for (list, allows) in [(allow, true), (deny, false)] {
        for entry in list {
            if let Some(complaint) = check(&entry.value, allows) {
                report.error(entry.pos, complaint);
            }
        }
    }
    let names = |list: &[At<String>]| {
        let mut names: Vec<String> = list.iter().map(|entry| entry.value.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    check_renames(rename, protocol, custom, report);
    let mut rename: Vec<_> =
        rename.iter().map(|(name, other)| (name.value.clone(), other.value.clone())).collect();
    rename.sort_unstable();
    CommandPolicy { base: *base, allow: names(allow), deny: names(deny), rename }
}

/// The error of an entry of a Redis pool. `asks`: the pool queries its servers about unknown
/// commands.
fn complaint(entry: &str, allows: bool, asks: bool, custom: &CustomCommands) -> Option<Complaint> {
    let fault = Rules::fault(entry, allows, custom)?;
    let shown = entry.to_ascii_uppercase();
    let suggested = |what: &str, prefix: &str| {
        let near = nearest(entry, Rules::entries().filter(|other| other.starts_with(prefix)));
        let near = near.map_or_else(String::new, |near| {
            format!(
                "; did you mean {}?",
                if prefix == "@" { near.into() } else { near.to_ascii_uppercase() }
            )
        });
        Complaint::new(format!("{what}{near}"))
    };
    Some(match fault {
        // The form of modules' commands: only the servers know which exist.
        PolicyFault::UnknownCommand if asks && entry.contains('.') => return None,
        PolicyFault::UnknownCommand => suggested(&format!("there is no command {shown}"), "")
            .hint("a command of a module has to be among \"commands\""),
        PolicyFault::UnknownCategory => suggested(&format!("there is no category {entry}"), "@")
            .hint("expected one of Redis's categories, as COMMAND INFO tells them, or @all"),
        PolicyFault::UnknownSubcommand(container) => {
            let what = format!("{} has no subcommand of that name", container.to_ascii_uppercase());
            suggested(&format!("there is no command {shown}"), &format!("{container}|")).hint(what)
        }
        PolicyFault::NotTold(container) => {
            let container = container.to_ascii_uppercase();
            Complaint::new(format!("{shown} cannot be told apart from {container}"))
                .hint(format!("name {container} to mean all of them"))
        }
        PolicyFault::Unserved(why) => {
            let why = why.split_once(' ').map_or(why, |(_, text)| text);
            Complaint::new(format!("{shown} cannot be allowed: the gateway does not serve it"))
                .hint(why)
        }
        PolicyFault::Undeniable => {
            Complaint::new(format!("{shown} cannot be denied: every client may call it"))
        }
    })
}

/// The same for a memcached pool.
fn chore_complaint(entry: &str) -> Option<Complaint> {
    if chores().any(|chore| chore == entry) {
        return None;
    }
    let near = nearest(entry, chores())
        .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    let names: Vec<&str> = chores().collect();
    let message = format!("\"{entry}\" is nothing that a memcached pool allows or denies{near}");
    Some(Complaint::new(message).hint(format!("expected one of {}", names.join(", "))))
}

/// The change between two policies: the names of commands that are no longer allowed, and of those
/// that are now.
pub(crate) fn changes(
    protocol: Protocol,
    old: &CommandPolicy,
    new: &CommandPolicy,
) -> (Vec<String>, Vec<String>) {
    let refused = |policy: &CommandPolicy| -> Vec<String> {
        match protocol {
            Protocol::Redis => {
                let (rules, renames) = (policy.rules(), Renames::new(&policy.rename));
                let is_served = |command: &&redis::Command| {
                    !matches!(command.rule, Rule::Refuse(_) | Rule::Unsupported)
                };
                let served = COMMANDS.iter().filter(is_served);
                let refused =
                    served.filter(|command| !rules.permit(command) || renames.disables(command));
                refused.map(|command| command.name.to_ascii_uppercase()).collect()
            }
            Protocol::Tcp => Vec::new(),
            Protocol::Memcached => policy.chores().refused().map(str::to_owned).collect(),
        }
    };
    let (before, after) = (refused(old), refused(new));
    let without = |one: &[String], other: &[String]| {
        one.iter().filter(|name| !other.contains(name)).cloned().collect()
    };
    (without(&after, &before), without(&before, &after))
}

/// The most names shown of a list of commands.
const SHOWN_MAX: usize = 12;

/// The commands that another snapshot forbids, a line for each pool.
pub fn warnings_of_change(old: &Snapshot, new: &Snapshot) -> Vec<String> {
    let former = |pool: &Pool| {
        let same = |old: &&Pool| old.name == pool.name && old.protocol == pool.protocol;
        old.pools.iter().find(same)
    };
    let warning = |pool: &Pool| {
        let old = former(pool)?;
        let (refused, _) = changes(pool.protocol, &old.policy(), &pool.policy());
        let count = refused.len();
        (count > 0).then(|| {
            let more = if count > SHOWN_MAX { ", …" } else { "" };
            let shown = refused[..count.min(SHOWN_MAX)].join(", ");
            format!(
                "pool '{}': by command_policy clients may no longer call {shown}{more} ({count} \
                 commands; before: {})",
                pool.name,
                shown_policy(old)
            )
        })
    };
    new.pools.iter().filter_map(warning).collect()
}

/// A pool's policy in words.
pub(crate) fn shown_policy(pool: &Pool) -> String {
    match &pool.command_policy {
        Some(policy) => policy.to_string(),
        None => "everything, as in versions without this option".to_owned(),
    }
}

/// The pools of a snapshot of an older version, in which clients may call all commands.
pub fn pools_without_policy(snapshot: &Snapshot) -> impl Iterator<Item = &Pool> {
    snapshot.pools.iter().filter(|pool| pool.command_policy.is_none())
}
