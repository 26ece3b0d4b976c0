//! Categories of commands.

use std::sync::OnceLock;

use cashew_protocol::redis::{COMMANDS, Command};

/// Redis 7.0's, in the order of ACL CAT; those that newer commands have follow.
const OF_REDIS: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

struct Table {
    names: Vec<&'static str>,
    /// Of each command of the table, a bit for each category.
    members: Vec<u64>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut names = OF_REDIS.to_vec();
        let mut bits = |command: &Command| {
            command.categories().into_iter().fold(0, |bits, category| {
                let name = &category[1..];
                let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                bits | 1 << at
            })
        };
        let members = COMMANDS.iter().map(&mut bits).collect();
        Table { names, members }
    })
}

/// All of them, without "@".
pub fn categories() -> &'static [&'static str] {
    &table().names
}

/// The commands and subcommands of a category, which is named in any case and without "@"; `None`
/// if there is no such category.
pub fn commands_of(category: &str) -> Option<impl Iterator<Item = &'static Command>> {
    let table = table();
    let at = table.names.iter().position(|name| name.eq_ignore_ascii_case(category))?;
    let commands = COMMANDS.iter().zip(&table.members);
    Some(commands.filter(move |(_, bits)| *bits >> at & 1 == 1).map(|(command, _)| command))
}

/// What a word stands for: `@category`, or a command with its subcommands, or, where no command is called so, a
/// category. `None` if there is nothing of that name.
pub fn commands_meant(word: &str) -> Option<Vec<&'static Command>> {
    if let Some(category) = word.strip_prefix('@') {
        return commands_of(category).map(Iterator::collect);
    }
    match crate::commands::named(word) {
        Some(command) => {
            let subcommands = crate::commands::subcommands(command);
            Some(std::iter::once(command).chain(subcommands).collect())
        }
        None => commands_of(word).map(Iterator::collect),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_have_the_commands_that_say_so() {
        assert!(categories().len() <= u64::BITS as usize);
        for category in categories() {
            let of_it = format!("@{category}");
            let listed: Vec<u16> =
                commands_of(category).unwrap().map(|command| command.id).collect();
            let expected = COMMANDS.iter().filter(|c| c.categories().contains(&of_it.as_str()));
            assert_eq!(listed, expected.map(|command| command.id).collect::<Vec<u16>>());
            assert!(!listed.is_empty(), "{category}");
        }
        assert!(commands_of("nope").is_none() && commands_of("@read").is_none());
        assert!(commands_of("READ").is_some());
        let names = |word: &str| {
            commands_meant(word).map(|all| all.iter().map(|it| it.name).collect::<Vec<_>>())
        };
        assert_eq!(names("GET"), Some(vec!["get"]));
        assert!(names("config").unwrap().contains(&"config|set"));
        assert_eq!(names("Config|Set"), Some(vec!["config|set"]));
        assert_eq!((names("@admin"), names("nope")), (names("admin"), None));
        // Here a command has the name of a category.
        assert_eq!(names("set"), Some(vec!["set"]));
        assert!(names("@set").unwrap().contains(&"sadd"));
    }
}
