//! Commands whose keys are on several servers, where one would have to have them all.
//!
//! They are refused, with words that help, unless the pool has `cross_server_copy` and the command is
//! RENAME, RENAMENX or COPY. Then the key is carried: DUMP and PTTL where it is, RESTORE where it is to
//! be, and only when that has succeeded DEL where it was. So it is never lost, but for a while it is in
//! both places, and what others write to it meanwhile is lost if it is removed then.

use cashew_placement::HashTag;
use cashew_protocol::Span;
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, encode};

use crate::base::failure::NamedFailure;
use crate::base::id::{BackendId, ClientId, RequestId, ServerId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::dispatch::Split;
use crate::exchange::flow::{Attempts, Flow, FlowContext, Step, Target, Text};
use crate::redis::keyless::{self, Walk};

/// An error shows so much of a key.
const KEY_SHOWN_MAX: usize = 64;

const NO_SUCH_KEY: &[u8] = b"-ERR no such key\r\n";
const NOT_DONE: &[u8] = b":0\r\n";
const SERVERS_CHANGED: &[u8] = b"-ERR the servers of this pool have changed meanwhile\r\n";

/// A key on its way from one server to another.
#[derive(Debug)]
pub(crate) struct CrossShardCopy {
    task: Task,
    stage: Stage,
    source: Vec<u8>,
    target: Vec<u8>,
    from: ServerId,
    to: ServerId,
    /// By which servers and which ring `from` and `to` are meant.
    walk: Walk,
    ring_version: u64,
    /// As the client has them, which may be gone.
    variant: u16,
    lane_choice: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Rename,
    RenameUnlessThere,
    Copy { replaces: bool },
}

/// What is being waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fetch,
    Store,
    Remove,
}

impl CrossShardCopy {
    /// Sends what the next stage is made of to a server.
    fn send(
        &self,
        engine: &mut Engine,
        request: RequestId,
        server: ServerId,
        first: Vec<u8>,
        second: Option<Vec<u8>>,
    ) -> Step {
        let backend = engine.requests[request].backend;
        let size = first.len() + second.as_ref().map_or(0, Vec::len);
        let mut error = Vec::new();
        let lane = if self.is_still_meant(engine, backend) {
            let lane = engine.lane_of((backend, server), self.variant, self.lane_choice, size);
            let protocol = engine.backends[backend].protocol;
            let named = |why| engine.backends[backend].named(server, why);
            lane.map_err(|why| named(why).write_reply(protocol, &mut error)).ok()
        } else {
            error.extend_from_slice(SERVERS_CHANGED);
            None
        };
        let Some(lane) = lane else {
            engine.bufs.give(first);
            engine.bufs.give(second.unwrap_or_default());
            return self.end(engine, &error);
        };
        let (to, first) = (Target::Lane(lane), Text::Owned(first));
        Step::Send(match second {
            Some(second) => Attempts::two(to, first, Text::Owned(second)),
            None => Attempts::one(to, first),
        })
    }

    /// Whether the numbers of servers still mean the same, and the keys still belong to them.
    fn is_still_meant(&self, engine: &Engine, backend: BackendId) -> bool {
        engine.redis_backends[backend].walk == self.walk
            && engine.backends[backend].ring_version == self.ring_version
    }

    /// Gives the value to the other server.
    fn store(&mut self, cx: &mut FlowContext<'_>) -> Step {
        let size: usize = cx.replies().map(<[u8]>::len).sum();
        let mut text = cx.engine.bufs.take_for(size + self.target.len() + 128);
        let mut replies = cx.replies();
        let (dump, ttl) = (replies.next().unwrap_or_default(), replies.next().unwrap_or_default());
        match payload(dump, ttl) {
            Some((payload, ttl)) if cx.client() != ClientId::NONE => {
                let ttl = ttl.to_string();
                let words = [b"RESTORE", &*self.target, ttl.as_bytes(), payload, b"REPLACE"];
                let words = if self.task.replaces() { &words[..] } else { &words[..4] };
                encode::write_command(&mut text, words);
            }
            _ => {
                drop(replies);
                cx.engine.bufs.give(text);
                return self.end(cx.engine, self.task.nothing());
            }
        }
        drop(replies);
        self.stage = Stage::Store;
        self.send(cx.engine, cx.request, self.to, text, None)
    }

    /// Answers with a reply; an error says where the key is.
    fn end(&self, engine: &mut Engine, reply: &[u8]) -> Step {
        if self.stage == Stage::Remove && resp::is_error(reply) {
            let why = String::from_utf8_lossy(&reply[1..]);
            let why = why.trim_end();
            let text = format!("ERR the key was copied, but not removed where it was: {why}");
            return Step::Reply(
                engine.written(text.len() + 3, |out| encode::write_error(out, text.as_bytes())),
            );
        }
        Step::Reply(engine.written(reply.len(), |out| out.extend_from_slice(reply)))
    }
}

impl Flow for CrossShardCopy {
    /// A stage is over when all of it is answered. Its client may have left: nothing more is begun
    /// then, but a key that is in both places is removed where it was.
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, _reply: &[u8]) -> Step {
        if cx.pending() > 0 {
            return Step::Wait;
        }
        let error = cx.replies().find(|reply| resp::is_error(reply)).map(<[u8]>::to_vec);
        match (self.stage, error) {
            (Stage::Store, Some(error)) if error.starts_with(b"-BUSYKEY") => {
                self.end(cx.engine, NOT_DONE)
            }
            (_, Some(error)) => self.end(cx.engine, &error),
            (Stage::Fetch, None) => self.store(cx),
            (Stage::Store, None) if self.task.removes() => {
                let text = cx.engine.about_key(b"DEL", &self.source);
                self.stage = Stage::Remove;
                self.send(cx.engine, cx.request, self.from, text, None)
            }
            (Stage::Store | Stage::Remove, None) => self.end(cx.engine, self.task.done()),
        }
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        attempt: RequestId,
        _: NamedFailure,
    ) -> Step {
        self.on_reply(cx, attempt, b"")
    }

    fn outlives_client(&self) -> bool {
        true
    }

    /// Besides the keys, which are in buffers.
    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn recycle(self: Box<Self>, engine: &mut Engine) {
        engine.bufs.give(self.source);
        engine.bufs.give(self.target);
    }
}

impl Task {
    /// `None` if the command has to find all of its keys on one server.
    fn of(command: &Command, bytes: &[u8], args: &[Span]) -> Option<Self> {
        match command.name {
            "rename" => Some(Self::Rename),
            "renamenx" => Some(Self::RenameUnlessThere),
            "copy" => {
                let is_replace = |arg: &Span| arg.of(bytes).eq_ignore_ascii_case(b"replace");
                let options = &args[3..];
                // Another database would take another lane.
                let replaces = !options.is_empty();
                options.iter().all(is_replace).then_some(Self::Copy { replaces })
            }
            _ => None,
        }
    }

    fn replaces(self) -> bool {
        match self {
            Self::Rename => true,
            Self::RenameUnlessThere => false,
            Self::Copy { replaces } => replaces,
        }
    }

    fn removes(self) -> bool {
        matches!(self, Self::Rename | Self::RenameUnlessThere)
    }

    /// The reply where there is nothing under the first name.
    fn nothing(self) -> &'static [u8] {
        if self.removes() { NO_SUCH_KEY } else { NOT_DONE }
    }

    fn done(self) -> &'static [u8] {
        if self == Self::Rename { b"+OK\r\n" } else { b":1\r\n" }
    }
}

impl Engine {
    /// A command whose `keys` are on several servers, as `split` says.
    #[cold]
    pub(crate) fn cross_servers(
        &mut self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
        keys: &[Span],
        split: &Split,
    ) -> Plan {
        let copies_across = self.destination_of(client).copies_across;
        let task = Task::of(command, bytes, args).filter(|_| copies_across);
        if let (Some(task), [source, target]) = (task, keys) {
            let keys = [source.of(bytes), target.of(bytes)];
            return self.cross_shard_copy(
                client,
                task,
                keys,
                [split.parts[0].server, split.parts[1].server],
            );
        }
        let text = self.crossing(client, command, bytes, keys, split);
        self.reply_error(client, &text)
    }

    /// What is said of such a command where it cannot be done.
    pub(crate) fn crossing(
        &self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        keys: &[Span],
        split: &Split,
    ) -> String {
        let config = &self.backends[self.backend_of(client)].config;
        // The first key of the second part is the first one that is somewhere else.
        let other = split.owners.iter().position(|&owner| owner != 0).unwrap_or(0);
        let (one, other) = (keys[0].of(bytes), keys[other].of(bytes));
        match config.is_cluster() {
            true => slots_error(command, one, other),
            false => crossing_error(command, config.hash_tag, one, other),
        }
    }

    fn cross_shard_copy(
        &mut self,
        client: ClientId,
        task: Task,
        keys: [&[u8]; 2],
        servers: [ServerId; 2],
    ) -> Plan {
        let state = &mut self.clients[client];
        if state.requests > 0 {
            return Plan::Wait;
        }
        state.fenced = true;
        let (variant, lane_choice) = (state.variant, state.lane_choice);
        let backend = self.backend_of(client);
        let cross_shard_copy = CrossShardCopy {
            task,
            stage: Stage::Fetch,
            source: self.bufs.copy_of(keys[0]),
            target: self.bufs.copy_of(keys[1]),
            from: servers[0],
            to: servers[1],
            walk: self.redis_backends[backend].walk,
            ring_version: self.backends[backend].ring_version,
            variant,
            lane_choice,
        };
        let dump = self.about_key(b"DUMP", keys[0]);
        let ttl = self.about_key(b"PTTL", keys[0]);
        let request = self.new_request(client);
        let step = cross_shard_copy.send(self, request, servers[0], dump, Some(ttl));
        self.begin_flow(request, Box::new(cross_shard_copy), None, step);
        Plan::Done
    }

    /// A command with a key, in a buffer that need not grow.
    fn about_key(&mut self, name: &[u8], key: &[u8]) -> Vec<u8> {
        let mut text = self.bufs.take_for(key.len() + 64);
        encode::write_command(&mut text, &[name, key]);
        text
    }
}

/// What DUMP and PTTL say: the value and how many milliseconds it has left, 0 for ever. `None` if
/// there is none.
fn payload<'r>(dump: &'r [u8], ttl: &[u8]) -> Option<(&'r [u8], i64)> {
    if keyless::is_null(dump) {
        return None;
    }
    let ttl: i64 = std::str::from_utf8(ttl.strip_prefix(b":")?).ok()?.trim_end().parse().ok()?;
    let ttl = match ttl {
        -1 => 0,
        // It has expired in between.
        ..-1 => return None,
        // Less than a millisecond is not for ever.
        ttl => ttl.max(1),
    };
    Some((keyless::text(dump)?, ttl))
}

/// Names two keys that are on different servers, and what to do about it.
pub(crate) fn crossing_error(
    command: &Command,
    tag: Option<HashTag>,
    one: &[u8],
    other: &[u8],
) -> String {
    let name = command.name.to_ascii_uppercase().replace('|', " ");
    let (one, other, remedy) = (shown(one), shown(other), remedy(tag));
    format!(
        "CROSSSLOT {name} needs its keys on one server, but {one} and {other} are on two: {remedy}"
    )
}

/// The same of a cluster, where keys of two slots are not asked for together.
fn slots_error(command: &Command, one: &[u8], other: &[u8]) -> String {
    let name = command.name.to_ascii_uppercase().replace('|', " ");
    let (one, other) = (shown(one), shown(other));
    format!(
        "CROSSSLOT {name} needs its keys in one slot, but {one} and {other} are in two: keys with the \
         same part between {{ and }} share a slot"
    )
}

/// How keys come to be on one server.
pub(crate) fn remedy(tag: Option<HashTag>) -> String {
    match tag.map(|HashTag { open, close }| (char::from(open), char::from(close))) {
        Some((open, close)) => {
            format!("keys with the same part between {open} and {close} share a server")
        }
        None => "with hash_tag: \"{}\" for this pool, keys with the same part between { and } \
                 would share a server"
            .to_owned(),
    }
}

/// A key in quotes, printable and not too long.
pub(crate) fn shown(key: &[u8]) -> String {
    let part = &key[..key.len().min(KEY_SHOWN_MAX)];
    let more = if part.len() < key.len() { "…" } else { "" };
    format!("'{}{more}'", part.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cashew_protocol::redis::COMMANDS;

    #[test]
    fn the_error_names_keys_and_remedy_in_few_words() {
        let command = COMMANDS.iter().find(|command| command.name == "rename").unwrap();
        let tag = HashTag::parse("<>");
        assert_eq!(
            crossing_error(command, tag, b"a", b"b\n"),
            "CROSSSLOT RENAME needs its keys on one server, but 'a' and 'b\\n' are on two: keys \
             with the same part between < and > share a server"
        );
        let long = crossing_error(command, None, &[b'x'; 5000], &[0; 5000]);
        assert!(long.len() < 600 && long.contains("hash_tag: \"{}\""), "{long}");
    }

    #[test]
    fn what_is_dumped_keeps_its_time() {
        assert_eq!(payload(b"$2\r\nab\r\n", b":-1\r\n"), Some((&b"ab"[..], 0)));
        assert_eq!(payload(b"$2\r\nab\r\n", b":0\r\n"), Some((&b"ab"[..], 1)));
        assert_eq!(payload(b"$2\r\nab\r\n", b":77\r\n"), Some((&b"ab"[..], 77)));
        assert_eq!(payload(b"$2\r\nab\r\n", b":-2\r\n"), None);
        assert_eq!(payload(b"$-1\r\n", b":-2\r\n"), None);
        assert_eq!(payload(b"_\r\n", b":-2\r\n"), None);
    }
}
