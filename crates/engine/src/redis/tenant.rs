//! A user's key prefix: added to all keys and channels that its clients name, and taken off where
//! replies name them.
//!
//! A request is written anew before anything else is decided about it, so that all that follows –
//! placement, routes, transactions, monitors, the slow log – knows full names only. What a command may
//! do to names is known by a list of those that are let through: see [`tenancy`]. All others are
//! refused, as what cannot be kept apart: scripts above all, which may call anything.

use std::collections::HashSet;
use std::sync::Arc;

use cashew_protocol::Span;
use cashew_protocol::redis::{CUSTOM_ID, Command, Group, Keys, Rule};
use cashew_protocol::resp::{self, Reply, encode};

use crate::base::id::RequestId;
use crate::downstream::key_prefix::KeyPrefix;
use crate::exchange::flow::{Flow, FlowContext, Step};

/// What a command may do to names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenancy {
    /// It names nothing, or what it names is the client's own.
    Nothing,
    /// It names keys, and its reply may name some.
    Keys(Named),
    /// All its arguments are channels, or patterns of them.
    Channels,
    /// The first is a channel.
    Channel,
    /// KEYS, whose argument is a pattern.
    KeyList,
    Scan,
    Refused,
}

/// Where a reply names keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Nowhere,
    /// In errors only.
    Errors,
    /// Its first element.
    First,
    /// Each stream's first element, or in RESP3 every other one.
    Streams,
    All,
    /// The second element has them.
    Page,
}

/// What commands without keys may be called, besides COMMAND and its subcommands.
const WITHOUT_NAMES: [&str; 31] = [
    "acl|cat",
    "acl|genpass",
    "acl|whoami",
    "auth",
    "client|caching",
    "client|getname",
    "client|getredir",
    "client|id",
    "client|info",
    "client|maint_notifications",
    "client|no-touch",
    "client|reads",
    "client|reply",
    "client|setinfo",
    "client|setname",
    "client|tracking",
    "client|trackinginfo",
    "discard",
    "echo",
    "exec",
    "hello",
    "multi",
    "ping",
    "quit",
    "readonly",
    "readwrite",
    "reset",
    "time",
    "unwatch",
    "wait",
    "waitaof",
];

/// What a command may do to names. What is not known for sure is refused.
pub(crate) fn tenancy(command: &Command) -> Tenancy {
    if command.id == CUSTOM_ID {
        return Tenancy::Refused;
    }
    match command.name {
        "keys" => return Tenancy::KeyList,
        "scan" => return Tenancy::Scan,
        "watch" => return Tenancy::Keys(Named::Nowhere),
        "publish" | "spublish" => return Tenancy::Channel,
        "blpop" | "brpop" | "blmpop" | "lmpop" | "zmpop" | "bzmpop" | "bzpopmin" | "bzpopmax" => {
            return Tenancy::Keys(Named::First);
        }
        "xread" | "xreadgroup" => return Tenancy::Keys(Named::Streams),
        // To another server, and to another database.
        "migrate" | "move" => return Tenancy::Refused,
        name if WITHOUT_NAMES.contains(&name) || name.split('|').next() == Some("command") => {
            return Tenancy::Nothing;
        }
        _ => {}
    }
    let is_about_data = matches!(
        command.group,
        Group::Bitmap
            | Group::Generic
            | Group::Geo
            | Group::Hash
            | Group::Hyperloglog
            | Group::List
            | Group::Set
            | Group::SortedSet
            | Group::Stream
            | Group::String
    );
    match command.rule {
        Rule::Subscribe(_) => Tenancy::Channels,
        Rule::Forward | Rule::Split(_) | Rule::Block
            if is_about_data && command.keys != Keys::None =>
        {
            Tenancy::Keys(match command.group {
                Group::Stream => Named::Errors,
                _ => Named::Nowhere,
            })
        }
        _ => Tenancy::Refused,
    }
}

/// Where the reply to a command names keys.
pub(crate) fn named_by(command: &Command) -> Named {
    match tenancy(command) {
        Tenancy::Keys(named) => named,
        Tenancy::KeyList => Named::All,
        Tenancy::Scan => Named::Page,
        Tenancy::Nothing | Tenancy::Channels | Tenancy::Channel | Tenancy::Refused => {
            Named::Nowhere
        }
    }
}

impl KeyPrefix {
    /// A key of the user's as servers have it.
    pub(crate) fn full(&self, name: &[u8]) -> Vec<u8> {
        [&self.0, name].concat()
    }

    fn write(&self, name: &[u8], out: &mut Vec<u8>) {
        encode::write_bulk(out, &self.full(name));
    }

    /// As a pattern that matches the prefix and then what the other one does.
    fn write_pattern(&self, pattern: &[u8], out: &mut Vec<u8>) {
        let mut text = Vec::with_capacity(2 * self.0.len() + pattern.len());
        for &byte in &self.0 {
            if b"*?[]^\\-".contains(&byte) {
                text.push(b'\\');
            }
            text.push(byte);
        }
        text.extend_from_slice(pattern);
        encode::write_bulk(out, &text);
    }

    /// The name without the prefix; as it is if it has none.
    pub(crate) fn strip<'n>(&self, name: &'n [u8]) -> &'n [u8] {
        name.strip_prefix(&*self.0).unwrap_or(name)
    }

    /// A pattern as [`KeyPrefix::write_pattern`] made it.
    pub(crate) fn strip_pattern<'n>(&self, pattern: &'n [u8]) -> &'n [u8] {
        let mut text = Vec::new();
        self.write_pattern(b"", &mut text);
        match resp::reply(&text) {
            Some(Reply::Bulk(prefix)) => pattern.strip_prefix(prefix).unwrap_or(pattern),
            _ => pattern,
        }
    }

    /// The request with full names. The error is the reply.
    pub(super) fn request(
        &self,
        (command, tenancy): (&Command, Tenancy),
        bytes: &[u8],
        args: &[Span],
    ) -> Result<Vec<u8>, &'static str> {
        let mut out = Vec::with_capacity(bytes.len() + 64);
        let all = || args.iter().map(|arg| arg.of(bytes));
        match tenancy {
            Tenancy::Nothing | Tenancy::Refused => out.extend_from_slice(bytes),
            Tenancy::Keys(_) => {
                let mut keys = Vec::new();
                command.keys(bytes, args, &mut keys)?;
                // SORT completes these: what has no asterisk is no key.
                let patterns = command.patterns(bytes, args).map(<[u8]>::as_ptr);
                let keys = keys.iter().map(|key| key.of(bytes).as_ptr());
                // There may be many thousands.
                let names: HashSet<*const u8> = patterns.chain(keys).collect();
                encode::write_array_header(&mut out, args.len());
                for text in all() {
                    match names.contains(&text.as_ptr()) {
                        true => self.write(text, &mut out),
                        false => encode::write_bulk(&mut out, text),
                    }
                }
            }
            Tenancy::Channels | Tenancy::Channel => {
                let is_pattern = command.name.starts_with('p') && tenancy == Tenancy::Channels;
                encode::write_array_header(&mut out, args.len());
                for (at, text) in all().enumerate() {
                    match (at, tenancy) {
                        (0, _) | (2.., Tenancy::Channel) => encode::write_bulk(&mut out, text),
                        _ if is_pattern => self.write_pattern(text, &mut out),
                        _ => self.write(text, &mut out),
                    }
                }
            }
            Tenancy::KeyList => {
                encode::write_array_header(&mut out, args.len());
                for (at, text) in all().enumerate() {
                    match at {
                        0 => encode::write_bulk(&mut out, text),
                        _ => self.write_pattern(text, &mut out),
                    }
                }
            }
            Tenancy::Scan => {
                // A server's name may stand behind the options, where keys are listed as they are.
                if !args.len().is_multiple_of(2) {
                    return Err("ERR syntax error");
                }
                let is_match = |at: usize| {
                    at > 2
                        && !at.is_multiple_of(2)
                        && args[at - 1].of(bytes).eq_ignore_ascii_case(b"match")
                };
                let has_pattern = (0..args.len()).any(is_match);
                let more = if has_pattern { 0 } else { 2 };
                encode::write_array_header(&mut out, args.len() + more);
                for (at, text) in all().enumerate() {
                    match is_match(at) {
                        true => self.write_pattern(text, &mut out),
                        false => encode::write_bulk(&mut out, text),
                    }
                }
                if !has_pattern {
                    encode::write_bulk(&mut out, b"MATCH");
                    self.write_pattern(b"*", &mut out);
                }
            }
        }
        Ok(out)
    }

    /// A reply without the prefix. `None` if it is as it should be.
    pub(crate) fn reply(&self, named: Named, reply: &[u8]) -> Option<Vec<u8>> {
        if resp::is_error(reply) {
            return self.error(reply);
        }
        let mut out = Vec::with_capacity(reply.len());
        let parsed = resp::reply(reply)?;
        match (named, parsed) {
            (Named::First, Reply::Array(mut elements)) => {
                encode::write_array_header(&mut out, elements.len());
                self.element(elements.next()?, &mut out);
                elements.for_each(|element| out.extend_from_slice(element));
            }
            (Named::Streams, Reply::Array(elements)) => {
                encode::write_array_header(&mut out, elements.len());
                for stream in elements {
                    out.extend(self.reply(Named::First, stream).as_deref().unwrap_or(stream));
                }
            }
            (Named::Streams, Reply::Map(elements)) => {
                encode::write_map_header(&mut out, resp::Version::Resp3, elements.len() / 2);
                for (at, element) in elements.enumerate() {
                    match at.is_multiple_of(2) {
                        true => self.element(element, &mut out),
                        false => out.extend_from_slice(element),
                    }
                }
            }
            (Named::All, Reply::Array(elements)) => self.list(elements, &mut out),
            (Named::Page, Reply::Array(mut elements)) => {
                encode::write_array_header(&mut out, elements.len());
                out.extend_from_slice(elements.next()?);
                match resp::reply(elements.next()?)? {
                    Reply::Array(keys) => self.list(keys, &mut out),
                    _ => return None,
                }
            }
            _ => return None,
        }
        Some(out)
    }

    /// Of keys those with the prefix, which are all if the server has matched as it should.
    fn list<'e>(&self, keys: impl Iterator<Item = &'e [u8]>, out: &mut Vec<u8>) {
        let own = |element: &&[u8]| match resp::reply(element) {
            Some(Reply::Bulk(key)) => key.starts_with(&self.0),
            _ => false,
        };
        let keys: Vec<&[u8]> = keys.filter(own).collect();
        encode::write_array_header(out, keys.len());
        keys.into_iter().for_each(|key| self.element(key, out));
    }

    fn element(&self, element: &[u8], out: &mut Vec<u8>) {
        match resp::reply(element) {
            Some(Reply::Bulk(name)) => encode::write_bulk(out, self.strip(name)),
            _ => out.extend_from_slice(element),
        }
    }

    /// A server's error without the prefix, wherever it stands.
    fn error(&self, reply: &[u8]) -> Option<Vec<u8>> {
        let Some(Reply::Error(text)) = resp::reply(reply) else { return None };
        let mut rest = text;
        let mut clean = Vec::with_capacity(text.len());
        while let Some(at) = rest.windows(self.0.len()).position(|part| part == &*self.0) {
            clean.extend_from_slice(&rest[..at]);
            rest = &rest[at + self.0.len()..];
        }
        clean.extend_from_slice(rest);
        if clean.len() == text.len() {
            return None;
        }
        let mut out = Vec::with_capacity(reply.len());
        encode::write_error(&mut out, &clean);
        Some(out)
    }

    /// A message of a channel, as the client is to see it.
    pub(crate) fn message(&self, message: &[u8]) -> Option<Vec<u8>> {
        let Some(Reply::Array(elements) | Reply::Push(elements)) = resp::reply(message) else {
            return None;
        };
        let count = elements.len();
        let mut out = Vec::with_capacity(message.len());
        encode::write_array_header(&mut out, count);
        for (at, element) in elements.enumerate() {
            let name = match resp::reply(element) {
                Some(Reply::Bulk(name)) if (1..count - 1).contains(&at) => name,
                _ => {
                    out.extend_from_slice(element);
                    continue;
                }
            };
            // Of four, the second is a pattern.
            match (count, at) {
                (4, 1) => encode::write_bulk(&mut out, self.strip_pattern(name)),
                _ => encode::write_bulk(&mut out, self.strip(name)),
            }
        }
        Some(out)
    }
}

/// A request whose reply names keys.
#[derive(Debug)]
pub(super) struct Strip {
    pub(super) prefix: Arc<KeyPrefix>,
    pub(super) named: Named,
}

impl Flow for Strip {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        stripped(cx, Some(&self.prefix), self.named, reply)
    }
}

/// The answer to a request of a user with this prefix, if it has one.
pub(crate) fn stripped(
    cx: &mut FlowContext<'_>,
    prefix: Option<&Arc<KeyPrefix>>,
    named: Named,
    reply: &[u8],
) -> Step {
    match prefix.and_then(|prefix| prefix.reply(named, reply)) {
        Some(text) => cx.reply(text.len(), |out| out.extend_from_slice(&text)),
        None => Step::Answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cashew_protocol::redis::{COMMANDS, Lookup, find};

    fn prefix() -> KeyPrefix {
        KeyPrefix(b"a*:".as_slice().into())
    }

    fn asked(line: &str) -> String {
        let line = format!("{line}\r\n");
        let mut parser = resp::RequestParser::default();
        assert!(matches!(parser.parse(line.as_bytes(), line.len()), resp::Parsed::Complete { .. }));
        let (bytes, args) = (parser.inline_encoded().unwrap().to_vec(), parser.args().to_vec());
        let Lookup::Found(command) = find(&bytes, &args) else { panic!("{line}") };
        match prefix().request((command, tenancy(command)), &bytes, &args) {
            Ok(text) => {
                let Some(Reply::Array(words)) = resp::reply(&text) else { panic!("{line}") };
                let word = |word: &[u8]| match resp::reply(word) {
                    Some(Reply::Bulk(word)) => String::from_utf8(word.to_vec()).unwrap(),
                    other => panic!("{other:?}"),
                };
                words.map(word).collect::<Vec<_>>().join(" ")
            }
            Err(why) => why.to_owned(),
        }
    }

    #[test]
    fn names_are_full_ones() {
        for (line, full) in [
            ("GET k", "GET a*:k"),
            ("GET get", "GET a*:get"),
            ("MSET k k l m", "MSET a*:k k a*:l m"),
            (
                "SORT k BY w_* LIMIT 0 1 GET # GET o:* STORE d",
                "SORT a*:k BY a*:w_* LIMIT 0 1 GET # GET a*:o:* STORE a*:d",
            ),
            ("SORT k BY nosort", "SORT a*:k BY nosort"),
            (
                "XREADGROUP GROUP g c COUNT 1 STREAMS s t > >",
                "XREADGROUP GROUP g c COUNT 1 STREAMS a*:s a*:t > >",
            ),
            ("ZUNIONSTORE d 2 k l WEIGHTS 1 2", "ZUNIONSTORE a*:d 2 a*:k a*:l WEIGHTS 1 2"),
            ("GEORADIUS g 0 0 1 m STORE d", "GEORADIUS a*:g 0 0 1 m STORE a*:d"),
            ("BLPOP k l 0", "BLPOP a*:k a*:l 0"),
            ("KEYS *", "KEYS a\\*:*"),
            ("SCAN 0", "SCAN 0 MATCH a\\*:*"),
            ("SCAN 0 match x* COUNT 5", "SCAN 0 match a\\*:x* COUNT 5"),
            ("SCAN 0 COUNT match", "SCAN 0 COUNT match MATCH a\\*:*"),
            ("SCAN 0 server:s", "ERR syntax error"),
            ("SUBSCRIBE c d", "SUBSCRIBE a*:c a*:d"),
            ("PSUBSCRIBE c*", "PSUBSCRIBE a\\*:c*"),
            ("PUBLISH c c", "PUBLISH a*:c c"),
            ("PING k", "PING k"),
        ] {
            assert_eq!(asked(line), full, "{line}");
        }
    }

    #[test]
    fn replies_have_the_clients_names() {
        let prefix = prefix();
        for (named, reply, expected) in [
            (Named::First, "*2\r\n$4\r\na*:k\r\n$4\r\na*:v\r\n", "*2\r\n$1\r\nk\r\n$4\r\na*:v\r\n"),
            (Named::All, "*2\r\n$4\r\na*:k\r\n$3\r\nb:k\r\n", "*1\r\n$1\r\nk\r\n"),
            (
                Named::Page,
                "*2\r\n$1\r\n7\r\n*1\r\n$4\r\na*:k\r\n",
                "*2\r\n$1\r\n7\r\n*1\r\n$1\r\nk\r\n",
            ),
            (Named::Streams, "*1\r\n*2\r\n$4\r\na*:s\r\n*0\r\n", "*1\r\n*2\r\n$1\r\ns\r\n*0\r\n"),
            (Named::Streams, "%1\r\n$4\r\na*:s\r\n*0\r\n", "%1\r\n$1\r\ns\r\n*0\r\n"),
            (Named::Errors, "-NOGROUP No such key 'a*:s'\r\n", "-NOGROUP No such key 's'\r\n"),
        ] {
            let stripped = prefix.reply(named, reply.as_bytes()).expect(reply);
            assert_eq!(String::from_utf8(stripped).unwrap(), expected, "{reply}");
        }
        for reply in ["*-1\r\n", "$-1\r\n", "-ERR no\r\n", ":1\r\n"] {
            assert_eq!(prefix.reply(Named::First, reply.as_bytes()), None);
        }
    }

    #[test]
    fn messages_have_the_clients_names() {
        let message = b"*4\r\n$8\r\npmessage\r\n$6\r\na\\*:c*\r\n$4\r\na*:c\r\n$4\r\na*:c\r\n";
        let expected = b"*4\r\n$8\r\npmessage\r\n$2\r\nc*\r\n$1\r\nc\r\n$4\r\na*:c\r\n";
        assert_eq!(prefix().message(message).as_deref(), Some(&expected[..]));
    }

    /// Whoever adds a command thinks of tenants: these have keys, and are refused.
    #[test]
    fn what_is_refused_though_it_names_keys() {
        let refused: Vec<&str> = COMMANDS
            .iter()
            .filter(|command| {
                command.keys != Keys::None && !matches!(command.rule, Rule::Refuse(_))
            })
            .filter(|command| tenancy(command) == Tenancy::Refused)
            .map(|command| command.name)
            .collect();
        let expected = REFUSED_WITH_KEYS.split_whitespace().collect::<Vec<_>>();
        assert_eq!(refused, expected);
    }

    const REFUSED_WITH_KEYS: &str = "
        migrate move arcount ardel ardelrange arget argetrange argrep arinfo arinsert
        arlastitems arlen armget armset arnext arop arring arscan arseek arset vadd vcard vdim
        vemb vgetattr vinfo vismember vlinks vrandmember vrange vrem vsetattr vsim eval eval_ro
        evalsha evalsha_ro fcall fcall_ro debug|digest-value debug|htstats-key debug|listpack
        debug|object debug|quicklist debug|sdslen debug|ziplist memory|usage restore-asking";
}
