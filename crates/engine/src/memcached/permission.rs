//! What users may do with memcached, by Redis's rules: each command is taken for the one of Redis that does
//! the same.

use std::sync::LazyLock;

use cashew_acl::{Denial, Touch, User};
use cashew_protocol::memcached::binary::{Opcode, RequestParser as BinaryParser};
use cashew_protocol::memcached::{KEY_SIZE_MAX, RequestParser, Verb, words};
use cashew_protocol::redis::{COMMANDS, Command};

use super::meta::plain_key;
use crate::base::id::ClientId;
use crate::downstream::key_prefix::KeyPrefix;
use crate::engine::Engine;

const READS: Touch = Touch { reads: true, writes: false };
const WRITES: Touch = Touch { reads: false, writes: true };
const BOTH: Touch = Touch { reads: true, writes: true };

/// Flags of `mg` that change the item.
const CHANGING_FLAGS: &[u8] = b"ENRT";

/// What a command of memcached is to the rules.
struct Meaning {
    command: &'static Command,
    touch: Touch,
}

static MEANINGS: LazyLock<[Meaning; 11]> = LazyLock::new(|| {
    let meaning = |name: &str, touch| {
        let command = COMMANDS.iter().find(|command| command.name == name);
        Meaning { command: command.expect("the table has it"), touch }
    };
    [
        meaning("get", READS),
        meaning("getex", BOTH),
        meaning("set", WRITES),
        meaning("setnx", WRITES),
        meaning("append", WRITES),
        meaning("del", WRITES),
        meaning("incrby", BOTH),
        meaning("expire", WRITES),
        meaning("flushall", Touch { reads: false, writes: false }),
        meaning("config|set", Touch { reads: false, writes: false }),
        meaning("info", Touch { reads: false, writes: false }),
    ]
});

/// What requests about keys are to the rules: only those take the fast path.
pub(crate) fn commands_of_keys() -> impl Iterator<Item = &'static Command> {
    let meant = MEANINGS.iter().filter(|it| it.touch.reads || it.touch.writes);
    meant.map(|it| it.command)
}

/// Their places in the table above.
#[derive(Clone, Copy)]
enum Kind {
    Get,
    GetEx,
    Set,
    SetNx,
    Append,
    Del,
    IncrBy,
    Expire,
    FlushAll,
    ConfigSet,
    Info,
}

impl Engine {
    /// Why a restricted user may not make a text request, as it is answered. Its keys have the user's
    /// prefix already, or not yet.
    pub(super) fn text_denial(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
        has_full_keys: bool,
    ) -> Option<String> {
        let user = self.clients[client].session.restricted_user()?.clone();
        let kind = kind_of_text(parser, bytes)?;
        let prefix = self.key_prefix_of(client).filter(|_| has_full_keys);
        let mut buf = [0; KEY_SIZE_MAX];
        if parser.meta().is_base64 {
            let key = own_key(prefix.as_deref(), plain_key(parser, bytes, &mut buf));
            return self.denial(client, &user, kind, std::iter::once(key));
        }
        let keys = parser.keys().iter().map(|key| own_key(prefix.as_deref(), key.of(bytes)));
        self.denial(client, &user, kind, keys)
    }

    /// The same for a packet.
    pub(super) fn packet_denial(
        &mut self,
        client: ClientId,
        parser: &BinaryParser,
        bytes: &[u8],
        has_full_keys: bool,
    ) -> Option<String> {
        let user = self.clients[client].session.restricted_user()?.clone();
        let opcode = parser.opcode();
        let kind = kind_of_packet(opcode)?;
        let prefix = self.key_prefix_of(client).filter(|_| has_full_keys);
        let key = opcode.has_key().then(|| own_key(prefix.as_deref(), parser.key().of(bytes)));
        self.denial(client, &user, kind, key.into_iter())
    }

    /// Notes a text request that is let through.
    #[cold]
    pub(super) fn audit_text(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) {
        let Some(kind) = kind_of_text(parser, bytes) else { return };
        let command = MEANINGS[kind as usize].command;
        let mut buf = [0; KEY_SIZE_MAX];
        if parser.meta().is_base64 {
            let key = plain_key(parser, bytes, &mut buf);
            return self.audit_command(client, command, std::iter::once(key));
        }
        self.audit_command(client, command, parser.keys().iter().map(|key| key.of(bytes)));
    }

    /// The same for a packet.
    #[cold]
    pub(super) fn audit_packet(&mut self, client: ClientId, parser: &BinaryParser, bytes: &[u8]) {
        let Some(kind) = kind_of_packet(parser.opcode()) else { return };
        let key = parser.opcode().has_key().then(|| parser.key().of(bytes));
        self.audit_command(client, MEANINGS[kind as usize].command, key.into_iter());
    }

    fn denial<'k>(
        &mut self,
        client: ClientId,
        user: &User,
        kind: Kind,
        mut keys: impl Iterator<Item = &'k [u8]>,
    ) -> Option<String> {
        let Meaning { command, touch } = MEANINGS[kind as usize];
        let (denial, object) = match user.may_call(command) {
            false => (Denial::Command, command.name.as_bytes()),
            true => keys.find_map(|key| {
                user.may_touch(command, key, touch).err().map(|denial| (denial, key))
            })?,
        };
        let key = if let Denial::Command = denial { b"" } else { object };
        self.audit_denial(client, command.name, key, denial.reason());
        self.count_denial(client, denial.reason(), object, user);
        Some(match denial {
            Denial::Command => format!("user has no permissions to run '{}'", command.name),
            Denial::Key(_) | Denial::Channel(_) => {
                "user has no permissions to access one of the keys".to_owned()
            }
        })
    }
}

/// A key as the client names it, which is what rules are about.
fn own_key<'k>(prefix: Option<&KeyPrefix>, key: &'k [u8]) -> &'k [u8] {
    prefix.map_or(key, |prefix| prefix.strip(key))
}

/// `None`: everybody may.
fn kind_of_text(parser: &RequestParser, bytes: &[u8]) -> Option<Kind> {
    Some(match parser.verb() {
        Verb::Get | Verb::Gets => Kind::Get,
        Verb::MetaGet => {
            let mut flags = words(parser.line().of(bytes)).skip(2);
            match flags.any(|flag| CHANGING_FLAGS.contains(&flag[0])) {
                true => Kind::GetEx,
                false => Kind::Get,
            }
        }
        Verb::Gat | Verb::Gats => Kind::GetEx,
        Verb::Set | Verb::Replace | Verb::Cas | Verb::MetaSet => Kind::Set,
        Verb::Add => Kind::SetNx,
        Verb::Append | Verb::Prepend => Kind::Append,
        Verb::Delete | Verb::MetaDelete => Kind::Del,
        Verb::Incr | Verb::Decr | Verb::MetaArithmetic => Kind::IncrBy,
        Verb::Touch => Kind::Expire,
        Verb::MetaDebug => Kind::Get,
        Verb::FlushAll => Kind::FlushAll,
        Verb::Verbosity | Verb::Tune => Kind::ConfigSet,
        Verb::Stats => Kind::Info,
        Verb::Version | Verb::Quit | Verb::MetaNoop | Verb::Refused => return None,
    })
}

/// The same.
fn kind_of_packet(opcode: Opcode) -> Option<Kind> {
    Some(match opcode {
        Opcode::Get | Opcode::GetK => Kind::Get,
        Opcode::Gat | Opcode::GatK => Kind::GetEx,
        Opcode::Set | Opcode::Replace => Kind::Set,
        Opcode::Add => Kind::SetNx,
        Opcode::Append | Opcode::Prepend => Kind::Append,
        Opcode::Delete => Kind::Del,
        Opcode::Increment | Opcode::Decrement => Kind::IncrBy,
        Opcode::Touch => Kind::Expire,
        Opcode::Flush => Kind::FlushAll,
        Opcode::Verbosity => Kind::ConfigSet,
        Opcode::Stat => Kind::Info,
        Opcode::Quit
        | Opcode::Noop
        | Opcode::Version
        | Opcode::SaslList
        | Opcode::SaslAuth
        | Opcode::SaslStep => return None,
    })
}
