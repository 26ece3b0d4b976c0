//! The commands of a selector: a bit for each, and the rules as they were written.

use std::collections::HashMap;
use std::sync::OnceLock;

use cashew_protocol::redis::{COMMANDS, CUSTOM_ID, Command};

use crate::category::commands_of;
use crate::fault::Fault;

const WORDS: usize = COMMANDS.len().div_ceil(64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandSet {
    /// By the commands' ids.
    bits: [u64; WORDS],
    /// The set began with all commands, also those that are not in the table.
    base: bool,
    /// Nothing was taken away since: no bit need be looked at.
    pub(crate) is_all: bool,
    /// What came after the base, without repetitions, lower case: `true` allows.
    written: Vec<(bool, String)>,
    /// Commands that are allowed with this first argument only.
    first_args: Vec<(u16, String)>,
}

impl Default for CommandSet {
    fn default() -> Self {
        let (written, first_args) = (Vec::new(), Vec::new());
        Self { bits: [0; WORDS], base: false, is_all: false, written, first_args }
    }
}

/// By the name that Redis's rules have for it: "container|subcommand".
pub(crate) fn named(name: &str) -> Option<&'static Command> {
    static NAMES: OnceLock<HashMap<&str, &Command>> = OnceLock::new();
    let names =
        NAMES.get_or_init(|| COMMANDS.iter().map(|command| (command.name, command)).collect());
    let found = *names.get(name.to_ascii_lowercase().as_str())?;
    // To Redis its subcommands are only words.
    (!container(found).is_some_and(|container| container.facts.is_open)).then_some(found)
}

/// As Redis names it.
pub(crate) fn shown_name(command: &Command) -> &'static str {
    container(command).filter(|of| of.facts.is_open).map_or(command.name, |of| of.name)
}

fn container(command: &Command) -> Option<&'static Command> {
    let (name, _) = command.name.split_once('|')?;
    // It stands before its subcommands.
    COMMANDS[..usize::from(command.id)].iter().rev().find(|command| command.name == name)
}

pub(crate) fn subcommands(command: &Command) -> &'static [Command] {
    let start = usize::from(command.id) + 1;
    &COMMANDS[start..start + usize::from(command.subcommands)]
}

/// A command of a module, of which the table knows nothing: these have a dot in their names.
fn is_custom_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-|".contains(&byte))
    };
    name.split_once('.').is_some_and(|(module, command)| is_part(module) && is_part(command))
}

impl CommandSet {
    pub(crate) fn set_all(&mut self, all: bool) {
        *self = Self { base: all, is_all: all, ..Self::default() };
        self.bits = [if all { u64::MAX } else { 0 }; WORDS];
    }

    /// `+name`, `+container|subcommand`, `+name|first-argument`, or any of these but the last with
    /// `-`.
    pub(crate) fn change(&mut self, name: &str, allow: bool) -> Result<(), Fault> {
        if let Some(command) = named(name) {
            self.set_family(command, allow);
        } else if let Some((command, word)) = name.rsplit_once('|')
            && !is_custom_name(name)
        {
            let command = named(command).ok_or(Fault::UnknownCommand)?;
            if !allow {
                return Err(Fault::UnknownCommand);
            }
            if command.name.contains('|') {
                return Err(Fault::FirstArgOfSubcommand);
            }
            if word.is_empty() {
                return Err(Fault::Syntax);
            }
            if command.subcommands > 0 && !command.facts.is_open {
                return Err(Fault::UnknownCommand);
            }
            let first_arg = (command.id, word.to_ascii_lowercase());
            if !self.first_args.contains(&first_arg) {
                self.first_args.push(first_arg);
            }
        } else if !is_custom_name(name) {
            return Err(Fault::UnknownCommand);
        }
        self.write(name, allow);
        Ok(())
    }

    /// `+@category`, `-@category`, without the first two letters.
    pub(crate) fn change_category(&mut self, category: &str, allow: bool) -> Result<(), Fault> {
        let commands = commands_of(category).ok_or(Fault::UnknownCommand)?;
        commands.for_each(|command| self.set_family(command, allow));
        self.write(&format!("@{category}"), allow);
        Ok(())
    }

    /// With its subcommands.
    fn set_family(&mut self, command: &Command, allow: bool) {
        self.set(command.id, allow);
        self.first_args.retain(|(id, _)| *id != command.id);
        subcommands(command).iter().for_each(|command| self.set(command.id, allow));
    }

    fn set(&mut self, id: u16, allow: bool) {
        let bit = 1 << (id % 64);
        match allow {
            true => self.bits[usize::from(id / 64)] |= bit,
            false => {
                self.bits[usize::from(id / 64)] &= !bit;
                self.is_all = false;
            }
        }
    }

    /// Notes a rule. Those before it that are about the same, or about subcommands of it, no longer
    /// matter.
    fn write(&mut self, rule: &str, allow: bool) {
        let rule = rule.to_ascii_lowercase();
        let is_other = |(_, known): &(bool, String)| {
            known.strip_prefix(&rule).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('|'))
        };
        self.written.retain(is_other);
        self.written.push((allow, rule));
    }

    /// Whether the command may be called, with these words behind its name.
    pub(crate) fn allow<'a>(
        &self,
        command: &Command,
        mut words: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        if self.is_all {
            return true;
        }
        if command.id == CUSTOM_ID {
            return self.allow_custom(command);
        }
        if self.bits[usize::from(command.id / 64)] >> (command.id % 64) & 1 == 1 {
            return true;
        }
        if self.first_args.is_empty() {
            return false;
        }
        let owner = container(command).filter(|of| of.facts.is_open).map_or(command.id, |of| of.id);
        let Some(word) = words.next() else { return false };
        let is_fit = |(id, first): &(u16, String)| {
            *id == owner && first.as_bytes().eq_ignore_ascii_case(word)
        };
        self.first_args.iter().any(is_fit)
    }

    /// By the rules one after the other: no bit stands for the command.
    fn allow_custom(&self, command: &Command) -> bool {
        let categories = command.categories();
        self.written.iter().fold(self.base, |is_allowed, (allow, rule)| {
            let is_named = command
                .name
                .strip_prefix(rule.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('|'));
            if is_named || categories.contains(&rule.as_str()) { *allow } else { is_allowed }
        })
    }

    /// As rules, beginning with `+@all` or `-@all`.
    pub(crate) fn rules(&self) -> Vec<String> {
        let sign = |allow: bool| if allow { '+' } else { '-' };
        let written = self.written.iter().map(|(allow, rule)| format!("{}{rule}", sign(*allow)));
        std::iter::once(format!("{}@all", sign(self.base))).chain(written).collect()
    }
}
