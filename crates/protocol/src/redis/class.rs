//! What each command counts as.

use super::command::{Command, Group};
use super::lookup::CommandId;
use super::table::COMMANDS;
use crate::CommandClass;

/// Commands that are not counted with their group.
const OTHERWISE: [(CommandClass, &[&str]); 5] = [
    // Each answers a value, or nil for a key that is not there.
    (CommandClass::Get, &["get", "getdel", "getex", "getset", "mget"]),
    (
        CommandClass::Store,
        &["append", "mset", "msetex", "msetnx", "psetex", "set", "setex", "setnx", "setrange"],
    ),
    (CommandClass::Delete, &["del", "delex", "unlink"]),
    (CommandClass::Counter, &["decr", "decrby", "incr", "incrby", "incrbyfloat"]),
    (
        CommandClass::Blocking,
        &[
            "blmove",
            "blmpop",
            "blpop",
            "brpop",
            "brpoplpush",
            "bzmpop",
            "bzpopmax",
            "bzpopmin",
            "wait",
            "waitaof",
        ],
    ),
];

/// By place in the table.
static CLASSES: [CommandClass; COMMANDS.len()] = {
    let mut classes = [CommandClass::Other; COMMANDS.len()];
    let mut at = 0;
    while at < classes.len() {
        classes[at] = class(&COMMANDS[at]);
        at += 1;
    }
    classes
};

impl CommandId {
    /// What it counts as; commands that are not in the table have no class of their own.
    #[inline]
    pub fn class(self) -> CommandClass {
        CLASSES.get(self.number().wrapping_sub(1)).copied().unwrap_or_default()
    }
}

const fn class(command: &Command) -> CommandClass {
    let mut at = 0;
    while at < OTHERWISE.len() {
        let (class, names) = OTHERWISE[at];
        let mut name = 0;
        while name < names.len() {
            if is_same(command.name, names[name]) {
                return class;
            }
            name += 1;
        }
        at += 1;
    }
    match command.group {
        Group::String | Group::Bitmap | Group::Hyperloglog => CommandClass::String,
        Group::Generic => CommandClass::Key,
        Group::Hash => CommandClass::Hash,
        Group::List => CommandClass::List,
        Group::Set => CommandClass::Set,
        Group::SortedSet | Group::Geo => CommandClass::SortedSet,
        Group::Stream => CommandClass::Stream,
        Group::Scripting => CommandClass::Script,
        Group::Pubsub => CommandClass::PubSub,
        Group::Transactions => CommandClass::Transaction,
        Group::Array | Group::Cluster | Group::Connection | Group::Module | Group::Server => {
            CommandClass::Other
        }
    }
}

/// Strings cannot be compared by `==` at compile time.
const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_class_of_what_they_do() {
        let class = |name| CommandId::named(name).class();
        for (expected, names) in OTHERWISE {
            for name in names {
                assert!(CommandId::named(name) != CommandId::NONE, "{name} is not in the table");
                assert_eq!(class(name), expected, "{name}");
            }
        }
        let by_group = [
            ("strlen", CommandClass::String),
            ("expire", CommandClass::Key),
            ("hget", CommandClass::Hash),
            ("geoadd", CommandClass::SortedSet),
            ("xgroup|create", CommandClass::Stream),
            ("eval", CommandClass::Script),
            ("publish", CommandClass::PubSub),
            ("exec", CommandClass::Transaction),
            ("ping", CommandClass::Other),
        ];
        for (name, expected) in by_group {
            assert_eq!(class(name), expected, "{name}");
        }
        assert_eq!(CommandId::NONE.class(), CommandClass::Other);
    }
}
