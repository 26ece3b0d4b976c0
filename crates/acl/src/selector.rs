//! A set of permissions that go together: commands, and the keys and channels for them.

use std::borrow::Cow;

use cashew_protocol::redis::{Command, glob_matches};

use crate::commands::CommandSet;
use crate::denial::{Call, Channel, Denial};
use crate::fault::Fault;
use crate::keys::{KeyPatterns, Touch};

/// A new one allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    commands: CommandSet,
    keys: KeyPatterns,
    all_channels: bool,
    channels: Vec<String>,
}

impl Selector {
    /// Changes it by a rule about commands, keys or channels.
    pub(crate) fn apply(&mut self, rule: &str) -> Result<(), Fault> {
        let is = |text: &str| rule.eq_ignore_ascii_case(text);
        if is("allkeys") || rule == "~*" {
            self.keys.set_all(true);
        } else if is("resetkeys") {
            self.keys.set_all(false);
        } else if is("allchannels") || rule == "&*" {
            (self.all_channels, self.channels) = (true, Vec::new());
        } else if is("resetchannels") {
            (self.all_channels, self.channels) = (false, Vec::new());
        } else if is("allcommands") || is("+@all") {
            self.commands.set_all(true);
        } else if is("nocommands") || is("-@all") {
            self.commands.set_all(false);
        } else if rule.starts_with(['~', '%']) {
            self.add_keys(rule)?;
        } else if let Some(channel) = rule.strip_prefix('&') {
            self.add_channels(channel)?;
        } else if let Some(category) = rule.strip_prefix("+@") {
            self.commands.change_category(category, true)?;
        } else if let Some(category) = rule.strip_prefix("-@") {
            self.commands.change_category(category, false)?;
        } else if let Some(name) = rule.strip_prefix('+') {
            self.commands.change(name, true)?;
        } else if let Some(name) = rule.strip_prefix('-') {
            self.commands.change(name, false)?;
        } else {
            return Err(Fault::Syntax);
        }
        Ok(())
    }

    /// `~pattern`, `%R~pattern`, `%W~pattern` or `%RW~pattern`.
    fn add_keys(&mut self, rule: &str) -> Result<(), Fault> {
        if self.keys.all {
            return Err(Fault::KeyBehindAll);
        }
        let (letters, pattern) = rule.split_once('~').ok_or(Fault::Syntax)?;
        let touch = match letters.to_ascii_uppercase().as_str() {
            "" | "%RW" | "%WR" => Touch::ANY,
            "%R" => Touch { reads: true, writes: false },
            "%W" => Touch { reads: false, writes: true },
            _ => return Err(Fault::Syntax),
        };
        check_pattern(pattern)?;
        self.keys.add(pattern, touch);
        Ok(())
    }

    fn add_channels(&mut self, pattern: &str) -> Result<(), Fault> {
        if self.all_channels {
            return Err(Fault::ChannelBehindAll);
        }
        check_pattern(pattern)?;
        if !self.channels.iter().any(|known| known == pattern) {
            self.channels.push(pattern.to_owned());
        }
        Ok(())
    }

    pub(crate) fn check(&self, call: &Call<'_>, keys: &mut CallKeys) -> Result<(), Denial> {
        // AUTH, HELLO, QUIT and RESET.
        if !call.command.has_flag("no_auth") && !self.commands.allow(call.command, call.words()) {
            return Err(Denial::Command);
        }
        if !self.keys.all {
            for &(at, touch) in keys.of(call)? {
                if !self.keys.allow(call.args[at].of(call.buf), touch) {
                    return Err(Denial::Key(at));
                }
            }
        }
        if !self.all_channels {
            for channel in call.channels() {
                if !self.allows_channel(&channel) {
                    return Err(Denial::Channel(channel.at));
                }
            }
        }
        Ok(())
    }

    fn allows_channel(&self, channel: &Channel<'_>) -> bool {
        // A pattern must have been allowed as it is: it might match more than one that matches it.
        self.channels.iter().any(|known| match channel.is_pattern {
            true => known.as_bytes() == channel.name,
            false => glob_matches(known.as_bytes(), channel.name),
        })
    }

    /// Whatever its arguments.
    pub(crate) fn allows_command(&self, command: &Command) -> bool {
        self.commands.allow(command, std::iter::empty())
    }

    pub(crate) fn allows_key(&self, key: &[u8], touch: Touch) -> bool {
        self.keys.allow(key, touch)
    }

    /// Whether it may read every key.
    pub(crate) fn reads_every_key(&self) -> bool {
        self.keys.allow_every(Touch { reads: true, writes: false })
    }

    /// Whether it allows everything, also commands that are not known yet.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.commands.is_all && self.keys.all && self.all_channels
    }

    /// What it says of commands, as rules.
    pub fn command_rules(&self) -> String {
        self.commands.rules().join(" ")
    }

    /// What it says of keys, as rules.
    pub fn key_rules(&self) -> String {
        self.keys.rules().join(" ")
    }

    /// What it says of channels, as rules.
    pub fn channel_rules(&self) -> String {
        self.channel_list().join(" ")
    }

    fn channel_list(&self) -> Vec<String> {
        match self.all_channels {
            true => vec!["&*".to_owned()],
            false => self.channels.iter().map(|channel| format!("&{channel}")).collect(),
        }
    }

    /// All of it, as rules that make a new selector like this one.
    pub(crate) fn rules(&self) -> Vec<String> {
        let reset = (!self.all_channels).then(|| "resetchannels".to_owned());
        let keys = self.keys.rules().into_iter().chain(reset);
        keys.chain(self.channel_list()).chain(self.commands.rules()).collect()
    }

    /// The same in parentheses. Unlike Redis's listing it can be read again whatever is in patterns.
    pub(crate) fn in_parentheses(&self) -> String {
        let rules: Vec<String> =
            self.rules().iter().map(|rule| quoted(rule).into_owned()).collect();
        format!("({})", rules.join(" "))
    }
}

/// The keys of a call, found when a selector first wants them.
#[derive(Default)]
pub(crate) enum CallKeys {
    #[default]
    Unknown,
    /// Most commands have one: nothing is allocated.
    One([(usize, Touch); 1]),
    Many(Vec<(usize, Touch)>),
}

impl CallKeys {
    fn of(&mut self, call: &Call<'_>) -> Result<&[(usize, Touch)], Denial> {
        if let Self::Unknown = self {
            *self = match call.only_key() {
                Some(key) => Self::One([key]),
                None => Self::Many(call.keys()?),
            };
        }
        Ok(match self {
            Self::Unknown => &[],
            Self::One(key) => key,
            Self::Many(keys) => keys,
        })
    }
}

/// In quotes if it would be read as something else in parentheses: behind a parenthesis nothing follows there, and
/// quotes are not of a rule.
fn quoted(rule: &str) -> Cow<'_, str> {
    let is_plain = !rule.ends_with(')') && !rule.contains(['"', '\'', ' ']);
    if is_plain && !rule.bytes().any(is_separator) {
        return Cow::Borrowed(rule);
    }
    let mut text = String::from("\"");
    for letter in rule.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            ')' | '\0'..=' ' => text += &format!("\\x{:02x}", u32::from(letter)),
            _ => text.push(letter),
        }
    }
    Cow::Owned(text + "\"")
}

/// As Redis: spaces and zeros could not be told from what separates rules.
fn check_pattern(text: &str) -> Result<(), Fault> {
    match text.bytes().any(is_separator) {
        true => Err(Fault::Syntax),
        false => Ok(()),
    }
}

pub(crate) fn is_separator(byte: u8) -> bool {
    byte == 0 || matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}
