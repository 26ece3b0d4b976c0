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

use crate::base::id::{ClientId, PoolId, RequestId, ServerId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::dispatch::{Payload, Split};
use crate::redis::keyless::{self, Walk};
use crate::request::{Merge, Role};

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
    /// Bytes allocated besides the keys, which are in buffers.
    fn size(&self) -> usize {
        size_of_val(self)
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
        let config = &self.pools[self.clients[client].pool].config;
        let task = Task::of(command, bytes, args).filter(|_| config.cross_server_copy);
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
        let config = &self.pools[self.clients[client].pool].config;
        // The first key of the second part is the first one that is somewhere else.
        let other = split.owners.iter().position(|&owner| owner != 0).unwrap_or(0);
        let (one, other) = (keys[0].of(bytes), keys[other].of(bytes));
        crossing_error(command, config.hash_tag, one, other)
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
        let pool = &self.pools[state.pool];
        let cross_shard_copy = CrossShardCopy {
            task,
            stage: Stage::Fetch,
            source: self.bufs.copy_of(keys[0]),
            target: self.bufs.copy_of(keys[1]),
            from: servers[0],
            to: servers[1],
            walk: pool.walk,
            ring_version: pool.ring_version,
            variant,
            lane_choice,
        };
        self.bufs.charge(cross_shard_copy.size());
        let dump = self.about_key(b"DUMP", keys[0]);
        let ttl = self.about_key(b"PTTL", keys[0]);
        let parent = self.new_request(client);
        self.send_stage(parent, Box::new(cross_shard_copy), servers[0], vec![dump, ttl]);
        Plan::Done
    }

    /// Sends requests of the next stage to a server; their replies come to [`Engine::end_stage`].
    fn send_stage(
        &mut self,
        parent: RequestId,
        cross_shard_copy: Box<CrossShardCopy>,
        server: ServerId,
        mut requests: Vec<Vec<u8>>,
    ) {
        let size = requests.iter().map(Vec::len).sum();
        let pool = self.requests[parent].pool;
        let mut error = Vec::new();
        let lane = if self.is_still_meant(pool, &cross_shard_copy) {
            let lane = self.lane_of(
                (pool, server),
                cross_shard_copy.variant,
                cross_shard_copy.lane_choice,
                size,
            );
            let protocol = self.pools[pool].protocol;
            lane.map_err(|failure| failure.write_reply(protocol, &mut error)).ok()
        } else {
            error.extend_from_slice(SERVERS_CHANGED);
            None
        };
        let Some(lane) = lane else {
            requests.into_iter().for_each(|request| self.bufs.give(request));
            self.end_copy(parent, cross_shard_copy, &error);
            return;
        };
        // Fragments are linked from the last one on, and sent from the first one on.
        let mut added = vec![RequestId::NONE; requests.len()];
        let mut fragments = RequestId::NONE;
        for fragment in added.iter_mut().rev() {
            fragments = self.add_fragment(parent, fragments);
            *fragment = fragments;
        }
        for (&fragment, request) in added.iter().zip(requests.drain(..)) {
            self.send(lane, fragment, Payload::Owned(request));
        }
        let merge = Merge::CrossShardCopy(cross_shard_copy);
        self.requests[parent].role = Role::Parent { fragments, pending: 0, merge };
        self.begin_fragments(parent, fragments, added.len() as u32);
    }

    /// Whether the numbers of servers still mean the same, and the keys still belong to them.
    fn is_still_meant(&self, pool: PoolId, cross_shard_copy: &CrossShardCopy) -> bool {
        let pool = &self.pools[pool];
        pool.walk == cross_shard_copy.walk && pool.ring_version == cross_shard_copy.ring_version
    }

    /// A stage is over. Its client may have left: nothing more is begun then, but a key that is in
    /// both places is removed where it was.
    pub(crate) fn end_stage(
        &mut self,
        parent: RequestId,
        fragments: RequestId,
        mut cross_shard_copy: Box<CrossShardCopy>,
    ) {
        let Role::Fragment { next, .. } = self.requests[fragments].role else {
            unreachable!("it is what was sent");
        };
        let first = self.take_reply(fragments);
        let second = if next == RequestId::NONE { Vec::new() } else { self.take_reply(next) };
        self.free_fragments(fragments);
        let is_client_gone = self.requests[parent].client == ClientId::NONE;
        let error = [&first, &second].into_iter().find(|reply| resp::is_error(reply));
        let reply: &[u8] = match (cross_shard_copy.stage, error) {
            (Stage::Store, Some(error)) if error.starts_with(b"-BUSYKEY") => NOT_DONE,
            (_, Some(error)) => error,
            (Stage::Fetch, None) => match payload(&first, &second) {
                Some((payload, ttl)) if !is_client_gone => {
                    let text = self.restore(&cross_shard_copy, payload, ttl);
                    let to = cross_shard_copy.to;
                    cross_shard_copy.stage = Stage::Store;
                    self.send_stage(parent, cross_shard_copy, to, vec![text]);
                    self.bufs.give(first);
                    self.bufs.give(second);
                    return;
                }
                _ => cross_shard_copy.task.nothing(),
            },
            (Stage::Store, None) if cross_shard_copy.task.removes() => {
                let text = self.about_key(b"DEL", &cross_shard_copy.source);
                let from = cross_shard_copy.from;
                cross_shard_copy.stage = Stage::Remove;
                self.send_stage(parent, cross_shard_copy, from, vec![text]);
                self.bufs.give(first);
                return;
            }
            (Stage::Store | Stage::Remove, None) => cross_shard_copy.task.done(),
        };
        self.end_copy(parent, cross_shard_copy, reply);
        self.bufs.give(first);
        self.bufs.give(second);
    }

    /// A command with a key, in a buffer that need not grow.
    fn about_key(&mut self, name: &[u8], key: &[u8]) -> Vec<u8> {
        let mut text = self.bufs.take_for(key.len() + 64);
        encode::write_command(&mut text, &[name, key]);
        text
    }

    fn restore(&mut self, cross_shard_copy: &CrossShardCopy, payload: &[u8], ttl: i64) -> Vec<u8> {
        let mut text = self.bufs.take_for(payload.len() + cross_shard_copy.target.len() + 128);
        let ttl = ttl.to_string();
        let words = [b"RESTORE", &*cross_shard_copy.target, ttl.as_bytes(), payload, b"REPLACE"];
        let words = if cross_shard_copy.task.replaces() { &words[..] } else { &words[..4] };
        encode::write_command(&mut text, words);
        text
    }

    /// Answers with a reply; an error says where the key is.
    fn end_copy(&mut self, parent: RequestId, cross_shard_copy: Box<CrossShardCopy>, reply: &[u8]) {
        let is_in_both = cross_shard_copy.stage == Stage::Remove && resp::is_error(reply);
        self.recycle_merge(Merge::CrossShardCopy(cross_shard_copy));
        if self.requests[parent].client == ClientId::NONE {
            self.free_request(parent);
            return;
        }
        self.answer_instead(parent, |out| match is_in_both {
            true => {
                let why = String::from_utf8_lossy(&reply[1..]);
                let why = why.trim_end();
                let text = format!("ERR the key was copied, but not removed where it was: {why}");
                encode::write_error(out, text.as_bytes());
            }
            false => out.extend_from_slice(reply),
        });
    }

    pub(crate) fn recycle_copy(&mut self, cross_shard_copy: CrossShardCopy) {
        self.bufs.discharge(cross_shard_copy.size());
        self.bufs.give(cross_shard_copy.source);
        self.bufs.give(cross_shard_copy.target);
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
