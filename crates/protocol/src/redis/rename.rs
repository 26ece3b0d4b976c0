//! Commands that clients know by other names, or not at all, as by `rename-command` of Redis.

use std::borrow::Cow;

use super::lookup::{by_name, find_as, plain_commands};
use super::policy::WORDS;
use super::{COMMANDS, Command, CustomCommands, Lookup};
use crate::Span;

/// Longest other name.
pub const RENAMED_SIZE_MAX: usize = 64;

/// What a name is to clients.
#[derive(Clone, Copy, Debug)]
pub enum Called {
    /// What it is to servers.
    AsEver,
    /// Another name of this command.
    Renamed(&'static Command),
    /// No command any more.
    Gone,
}

/// An error of a pair of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameFault {
    Unknown,
    /// It has none but by its container.
    Subcommand,
    /// Without it no client could log in or leave.
    Needed,
    /// Some command has it.
    Taken,
    /// It is too long, or has characters that names have not.
    Unusable,
}

/// By the commands' own names.
#[derive(Clone, Debug, Default)]
pub struct Renames {
    /// Other names in lower case, with the commands' places.
    names: Vec<(Box<str>, u16)>,
    /// Commands whose own name is none to clients.
    gone: [u64; WORDS],
    /// Commands that have no other name.
    disabled: [u64; WORDS],
    hides_plain: bool,
}

fn has(set: &[u64; WORDS], id: u16) -> bool {
    let id = usize::from(id);
    set.get(id / 64).is_some_and(|word| word & (1 << (id % 64)) != 0)
}

impl Renames {
    /// Of pairs of a name and another one, which is empty for a command that is to have none. What is not
    /// known is left out.
    pub fn new(pairs: &[(String, String)]) -> Self {
        let mut renames = Self::default();
        for (name, other) in pairs {
            let Some((at, _)) = by_name(name.as_bytes()) else { continue };
            renames.gone[at / 64] |= 1 << (at % 64);
            match other.is_empty() {
                true => renames.disabled[at / 64] |= 1 << (at % 64),
                false => {
                    renames.names.push((other.to_ascii_lowercase().into_boxed_str(), at as u16));
                }
            }
        }
        renames.hides_plain = plain_commands().any(|command| has(&renames.gone, command.id));
        renames
    }

    /// The error of a pair, for a pool that also has these commands.
    pub fn fault(name: &str, other: &str, custom: &CustomCommands) -> Option<RenameFault> {
        if name.contains('|') {
            return Some(RenameFault::Subcommand);
        }
        let Some((_, command)) = by_name(name.as_bytes()) else {
            return Some(RenameFault::Unknown);
        };
        if command.has_flag("no_auth") {
            return Some(RenameFault::Needed);
        }
        let is_usable = other.len() <= RENAMED_SIZE_MAX
            && other.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'|');
        if !is_usable {
            return Some(RenameFault::Unusable);
        }
        let is_taken = by_name(other.as_bytes()).is_some()
            || custom.all().any(|command| command.name.eq_ignore_ascii_case(other));
        is_taken.then_some(RenameFault::Taken)
    }

    /// Whether the fast path has to look.
    pub fn hides_plain(&self) -> bool {
        self.hides_plain
    }

    /// Whether a command's own name, by its place in the table, is none to clients.
    #[inline]
    pub fn hides_id(&self, id: u16) -> bool {
        has(&self.gone, id)
    }

    /// Whether clients have no name for the command.
    pub fn disables(&self, command: &Command) -> bool {
        // Subcommands go with their container.
        let container = command.name.split('|').next().unwrap_or_default();
        by_name(container.as_bytes()).is_some_and(|(at, _)| has(&self.disabled, at as u16))
    }

    pub fn called(&self, name: &[u8]) -> Called {
        let other = self.names.iter().find(|(it, _)| it.as_bytes().eq_ignore_ascii_case(name));
        if let Some(&(_, at)) = other {
            return Called::Renamed(&COMMANDS[usize::from(at)]);
        }
        match by_name(name) {
            Some((at, _)) if has(&self.gone, at as u16) => Called::Gone,
            _ => Called::AsEver,
        }
    }

    /// What a command, or a subcommand as "container|subcommand", is to servers that clients call this;
    /// empty if it is none.
    pub fn own_name(&self, name: &[u8]) -> Cow<'static, [u8]> {
        let (container, rest) = name.split_at(memchr::memchr(b'|', name).unwrap_or(name.len()));
        match self.called(container) {
            Called::AsEver => name.to_vec().into(),
            Called::Renamed(command) => [command.name.as_bytes(), rest].concat().into(),
            Called::Gone => b"".as_slice().into(),
        }
    }

    /// What clients call the command that servers call this, if they have another name for it.
    pub fn clients_name(&self, name: &[u8]) -> Option<&str> {
        let (at, _) = by_name(name)?;
        let other = self.names.iter().find(|&&(_, id)| usize::from(id) == at);
        other.map(|(name, _)| &**name)
    }

    /// As [`super::find`], by the names that clients have.
    pub fn find(&self, buf: &[u8], args: &[Span]) -> Lookup {
        match args.first().map(|name| self.called(name.of(buf))) {
            Some(Called::Renamed(command)) => find_as(command.name.as_bytes(), buf, args),
            Some(Called::Gone) => Lookup::UnknownCommand,
            _ => super::find(buf, args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_clients() {
        let pairs = [("config", "Cfg"), ("flushall", ""), ("get", "fetch")];
        let renames = Renames::new(&pairs.map(|(name, other)| (name.into(), other.into())));
        for (name, expected) in [
            ("CFG", "config"),
            ("cfg", "config"),
            ("fetch", "get"),
            ("config", "gone"),
            ("FLUSHALL", "gone"),
            ("get", "gone"),
            ("set", "as ever"),
            ("nothing", "as ever"),
            ("", "as ever"),
        ] {
            let seen = match renames.called(name.as_bytes()) {
                Called::AsEver => "as ever",
                Called::Renamed(command) => command.name,
                Called::Gone => "gone",
            };
            assert_eq!(seen, expected, "{name}");
        }
        let command = |name: &str| COMMANDS.iter().find(|command| command.name == name).unwrap();
        assert!(renames.hides_plain() && renames.hides_id(command("get").id));
        assert!(renames.disables(command("flushall")) && !renames.disables(command("config|get")));
        for (name, own) in [("cfg|get", "config|get"), ("config|get", ""), ("set", "set")] {
            assert_eq!(*renames.own_name(name.as_bytes()), *own.as_bytes());
        }
        for (name, other) in [("CONFIG", Some("cfg")), ("flushall", None), ("set", None)] {
            assert_eq!(renames.clients_name(name.as_bytes()), other, "{name}");
        }
        let buf = b"cfgget*";
        let args = [Span::new(0, 3), Span::new(3, 3), Span::new(6, 1)];
        let Lookup::Found(found) = renames.find(buf, &args) else { panic!() };
        assert_eq!(found.name, "config|get");
    }

    #[test]
    fn pairs_that_cannot_be() {
        use RenameFault::*;
        for (name, other, expected) in [
            ("config", "", None),
            ("config", "c:1", None),
            ("config|get", "", Some(Subcommand)),
            ("nothing", "", Some(Unknown)),
            ("auth", "", Some(Needed)),
            ("quit", "leave", Some(Needed)),
            ("get", "SET", Some(Taken)),
            ("get", "get", Some(Taken)),
            ("get", "a b", Some(Unusable)),
            ("get", "a|b", Some(Unusable)),
        ] {
            let fault = Renames::fault(name, other, &CustomCommands::default());
            assert_eq!(fault, expected, "{name} {other}");
        }
    }
}
