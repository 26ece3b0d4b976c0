//! What clients do that the audit log is to tell: which of it, and what is told.

use cashew_acl::commands_meant;
use cashew_config::snapshot::AuditLog;
use cashew_metrics::DeedOutcome;
use cashew_protocol::redis::{COMMANDS, CUSTOM_ID, Command};
use std::borrow::Cow;

use crate::base::id::ConnId;

const WORDS: usize = COMMANDS.len().div_ceil(64);
/// More are not kept for whoever takes them.
const KEPT_MAX: usize = 1024;

/// What the configuration wants to be told.
#[derive(Debug)]
pub(crate) struct AuditRules {
    /// By the commands' ids.
    commands: [u64; WORDS],
    /// What modules' commands are known by: their categories and names.
    words: Vec<String>,
    pub(crate) share_percent: u32,
    pub(crate) denied: bool,
    pub(crate) logins: bool,
}

/// What a client did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audited {
    pub outcome: DeedOutcome,
    pub pool: String,
    pub client: Option<ConnId>,
    pub client_id: u64,
    pub client_name: Vec<u8>,
    /// Empty where its pool has no users.
    pub user: Vec<u8>,
    /// As Redis calls it, in capitals.
    pub command: String,
    /// The first key, cut.
    pub key: Vec<u8>,
    pub keys: u32,
    pub reason: Cow<'static, str>,
}

/// What is to be told next.
#[derive(Debug, Default)]
pub(crate) struct AuditQueue {
    seen: Vec<Audited>,
    lost: u64,
}

impl AuditRules {
    /// `None` if clients are of no interest.
    pub(crate) fn new(config: &AuditLog) -> Option<Self> {
        let AuditLog { commands: words, share_percent, denied, logins, .. } = config;
        let mut commands = [0; WORDS];
        for word in words.iter().filter(|_| *share_percent > 0) {
            match word == AuditLog::ALL {
                true => commands = [u64::MAX; WORDS],
                false => {
                    for command in commands_meant(word).unwrap_or_default() {
                        let id = usize::from(command.id);
                        commands[id / 64] |= 1 << (id % 64);
                    }
                }
            }
        }
        let rules = Self {
            commands,
            words: words.clone(),
            share_percent: *share_percent,
            denied: *denied,
            logins: *logins,
        };
        config.is_about_clients().then_some(rules)
    }

    /// Whether the command is told when it is let through.
    pub(crate) fn has(&self, command: &Command) -> bool {
        if command.id != CUSTOM_ID {
            let id = usize::from(command.id);
            return self.commands[id / 64] >> (id % 64) & 1 == 1;
        }
        let categories = command.categories();
        let is_meant = |word: &String| {
            let category = word.strip_prefix('@').unwrap_or(word);
            word == AuditLog::ALL
                || categories.iter().any(|it| it.strip_prefix('@') == Some(category))
        };
        self.share_percent > 0 && self.words.iter().any(is_meant)
    }

    /// Whether any command is.
    pub(crate) fn has_commands(&self) -> bool {
        self.share_percent > 0 && !self.words.is_empty()
    }
}

impl AuditQueue {
    pub(crate) fn push(&mut self, audited: Audited) {
        match self.seen.len() < KEPT_MAX {
            true => self.seen.push(audited),
            false => self.lost += 1,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// And how many there was no room for.
    pub(crate) fn take(&mut self) -> (Vec<Audited>, u64) {
        (std::mem::take(&mut self.seen), std::mem::take(&mut self.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(words: &[&str], share_percent: u32) -> Option<AuditRules> {
        AuditRules::new(&AuditLog {
            file: "/audit".into(),
            commands: words.iter().map(|word| (*word).to_owned()).collect(),
            share_percent,
            denied: false,
            logins: false,
            operators: true,
        })
    }

    #[test]
    fn commands_are_told_by_name_and_category() {
        let has = |words: &[&str], name: &str| {
            let command = COMMANDS.iter().find(|command| command.name == name).unwrap();
            rules(words, 100).unwrap().has(command)
        };
        assert!(has(&["write"], "set") && has(&["all"], "get") && has(&["get"], "get"));
        assert!(!has(&["write"], "get") && has(&["admin"], "config|set"));
        assert!(rules(&[], 100).is_none() && rules(&["write"], 0).is_none());
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let mut queue = AuditQueue::default();
        (0..KEPT_MAX + 2).for_each(|_| queue.push(Audited::default()));
        let (seen, lost) = queue.take();
        assert_eq!((seen.len(), lost, queue.is_empty()), (KEPT_MAX, 2, true));
    }
}
