//! What clients of a pool may call, by its `command_policy`, and what becomes of the rest.

use cashew_metrics::PoolCounter;
use cashew_protocol::memcached::RequestParser as TextParser;
use cashew_protocol::memcached::Verb;
use cashew_protocol::memcached::binary::Opcode;
use cashew_protocol::memcached::words;
use cashew_protocol::redis::{Command, Local, Policy, Rule, SessionRule};

use crate::base::action::Notice;
use crate::base::id::ClientId;
use crate::downstream::listener::Listener;
use crate::downstream::receive::Plan;
use crate::engine::Engine;

/// The answer to what is asked before AUTH.
pub(crate) const NOT_AUTHENTICATED: &[u8] = b"-NOAUTH Authentication required.\r\n";

impl Listener {
    /// Decides about every command anew: its rules, or the commands that it has, have changed.
    pub(crate) fn decide_policy(&mut self) {
        let policy = self.config.policy();
        self.policy = Policy::new(&policy.rules(), &self.commands).with_renames(&policy.rename);
        self.fast_policy = match &self.audit {
            Some(rules) => self.policy.without(|command| rules.has(command)),
            None => self.policy.clone(),
        };
        self.chores = policy.chores();
    }
}

impl Engine {
    /// Whether the client's pool lets nobody call the command.
    #[inline]
    pub(crate) fn may_not_call(&self, client: ClientId, command: &Command) -> bool {
        self.listener_of(client).policy.refuses(command)
    }

    /// Answers a request that clients may not make, as Redis does by its ACL: a transaction is
    /// spoilt by it.
    #[cold]
    pub(crate) fn refuse_command(&mut self, client: ClientId, command: &'static Command) -> Plan {
        if !self.clients[client].session.authenticated && !is_open_to_all(command) {
            return self.say(client, NOT_AUTHENTICATED);
        }
        let is_queueing = self.is_queueing(client);
        if is_queueing && command.has_flag("no_multi") {
            return self.refuse_queued(client, "ERR Command not allowed inside a transaction");
        }
        self.note_refusal(client, command.name);
        let name = command.name.to_ascii_uppercase();
        let text =
            format!("NOPERM this gateway does not let clients call {name}; see command_policy");
        match is_queueing {
            true => self.refuse_queued(client, &text),
            false => self.reply_error(client, &text),
        }
    }

    /// The answer to a text request that clients may not make.
    pub(crate) fn text_refusal(
        &mut self,
        client: ClientId,
        parser: &TextParser,
        bytes: &[u8],
    ) -> Option<Vec<u8>> {
        let is_chore =
            matches!(parser.verb(), Verb::FlushAll | Verb::Verbosity | Verb::Tune | Verb::Stats);
        if !is_chore {
            return None;
        }
        let chores = self.listener_of(client).chores;
        let name = chores.refusal(parser.line().of(bytes))?;
        self.note_refusal(client, name);
        Some(format!("CLIENT_ERROR {}\r\n", refusal_of_chore(name)).into_bytes())
    }

    /// The same for a binary request with this key: what is said in its answer.
    pub(crate) fn binary_refusal(
        &mut self,
        client: ClientId,
        opcode: Opcode,
        key: &[u8],
    ) -> Option<String> {
        let chores = self.listener_of(client).chores;
        let name = match opcode {
            Opcode::Flush => chores.refusal(b"flush_all"),
            Opcode::Verbosity => chores.refusal(b"verbosity"),
            Opcode::Stat => chores.refusal_of_stats(words(key).next()?),
            _ => None,
        }?;
        self.note_refusal(client, name);
        Some(refusal_of_chore(name))
    }

    fn note_refusal(&mut self, client: ClientId, command: &'static str) {
        let listener = self.clients[client].listener;
        self.metrics.add_pool(self.listeners[listener].metrics, PoolCounter::CommandsRefused, 1);
        self.notice(client, Notice::Refused { command });
        self.audit_denial(client, command, b"", "policy");
    }
}

fn refusal_of_chore(name: &str) -> String {
    let name = name.replace('|', " ");
    format!("this gateway does not let clients call {name}; see command_policy")
}

/// Whether the command may be called before AUTH.
pub(crate) fn is_open_to_all(command: &Command) -> bool {
    matches!(
        command.rule,
        Rule::Local(Local::Auth | Local::Hello | Local::Quit) | Rule::Session(SessionRule::Reset)
    )
}
