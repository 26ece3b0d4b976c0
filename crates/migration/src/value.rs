//! Values of Redis by their types: for servers that do not take each other's DUMP, and to compare.

use std::io;

use crate::link::Link;
use crate::reply::Reply;

/// What a key has, in an order that does not depend on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    Set(Vec<Vec<u8>>),
    Hash(Vec<(Vec<u8>, Vec<u8>)>),
    /// Members and scores, as Redis writes them.
    SortedSet(Vec<(Vec<u8>, Vec<u8>)>),
    Stream(Stream),
    /// Of a type that only DUMP can tell.
    Other(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stream {
    entries: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
    last: Vec<u8>,
    groups: Vec<Group>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    name: Vec<u8>,
    last: Vec<u8>,
    consumers: Vec<Vec<u8>>,
    /// Id, consumer, and how often it was delivered.
    pending: Vec<(Vec<u8>, Vec<u8>, i64)>,
}

/// Elements of one command.
const CHUNK: usize = 512;
/// Deliveries that are pending in a group; those beyond are not copied, and the key is told of.
const PENDING_MAX: usize = 1_000_000;

/// How often a key is read anew whose type changes meanwhile.
const TRIES_MAX: u32 = 3;

fn odd() -> io::Error {
    io::Error::other("it answers what fits no type")
}

fn texts(reply: Reply) -> io::Result<Vec<Vec<u8>>> {
    let all = reply.array().ok_or_else(odd)?;
    all.into_iter().map(|it| it.bytes().ok_or_else(odd)).collect()
}

fn pairs(reply: Reply) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = texts(reply)?.into_iter();
    let mut pairs = Vec::new();
    while let (Some(one), Some(other)) = (all.next(), all.next()) {
        pairs.push((one, other));
    }
    Ok(pairs)
}

/// A field of what XINFO says.
fn field(about: &[Reply], name: &str) -> Option<Reply> {
    let is_named = |it: &Reply| matches!(it, Reply::Bulk(text) if text == name.as_bytes());
    about.chunks(2).find(|pair| is_named(&pair[0])).and_then(|pair| pair.get(1)).cloned()
}

/// What tells all of a key of this type, if one question does.
fn question<'k>(kind: &[u8], key: &'k [u8]) -> Option<Vec<&'k [u8]>> {
    Some(match kind {
        b"string" => vec![b"GET", key],
        b"list" => vec![b"LRANGE", key, b"0", b"-1"],
        b"set" => vec![b"SMEMBERS", key],
        b"hash" => vec![b"HGETALL", key],
        b"zset" => vec![b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"],
        _ => return None,
    })
}

impl Value {
    /// What the key has; `None` if it is not there.
    pub(crate) fn read(link: &mut Link, key: &[u8]) -> io::Result<Option<Self>> {
        let mut tries = TRIES_MAX;
        loop {
            tries -= 1;
            let kind = link.demand(&[b"TYPE", key])?.bytes().ok_or_else(odd)?;
            let Some(words) = question(&kind, key) else {
                return Self::without_question(link, &kind, key);
            };
            match link.demand(&words) {
                // It has another type since it was asked for that.
                Err(why) if why.to_string().starts_with("WRONGTYPE") && tries > 0 => {}
                reply => return Self::of(&kind, reply?),
            }
        }
    }

    /// As [`Value::read`] of each, with two waits for all of them but streams.
    pub(crate) fn read_all(link: &mut Link, keys: &[&[u8]]) -> io::Result<Vec<Option<Self>>> {
        keys.iter().for_each(|key| link.send(&[b"TYPE", key]));
        let mut kinds = Vec::with_capacity(keys.len());
        for _ in keys {
            kinds.push(link.reply()?.bytes().unwrap_or_default());
        }
        let questions = || kinds.iter().zip(keys).map(|(kind, key)| question(kind, key));
        questions().flatten().for_each(|words| link.send(&words));
        let mut replies = Vec::with_capacity(keys.len());
        for words in questions() {
            replies.push(words.map(|_| link.reply()).transpose()?);
        }
        let all = keys.iter().zip(kinds.iter().zip(replies));
        let value = |(key, (kind, reply)): (&&[u8], (&Vec<u8>, Option<Reply>))| match reply {
            Some(Reply::Error(_)) => Self::read(link, key),
            Some(reply) => Self::of(kind, reply),
            None if kind.is_empty() => Self::read(link, key),
            None => Self::without_question(link, kind, key),
        };
        all.map(value).collect()
    }

    /// Of the types that one question does not tell all of.
    fn without_question(link: &mut Link, kind: &[u8], key: &[u8]) -> io::Result<Option<Self>> {
        Ok(match kind {
            b"none" => None,
            b"stream" => Stream::read(link, key)?.map(Self::Stream),
            other => Some(Self::Other(String::from_utf8_lossy(other).into_owned())),
        })
    }

    /// What a server has answered to [`question`].
    fn of(kind: &[u8], reply: Reply) -> io::Result<Option<Self>> {
        let value = match kind {
            b"string" => match reply {
                Reply::Nil => return Ok(None),
                reply => return Ok(Some(Self::Text(reply.bytes().ok_or_else(odd)?))),
            },
            b"list" => Self::List(texts(reply)?),
            b"set" => {
                let mut all = texts(reply)?;
                all.sort_unstable();
                Self::Set(all)
            }
            b"hash" => {
                let mut all = pairs(reply)?;
                all.sort_unstable();
                Self::Hash(all)
            }
            _ => Self::SortedSet(pairs(reply)?),
        };
        let is_empty = match &value {
            Self::List(all) | Self::Set(all) => all.is_empty(),
            Self::Hash(all) | Self::SortedSet(all) => all.is_empty(),
            Self::Text(_) | Self::Stream(_) | Self::Other(_) => false,
        };
        Ok((!is_empty).then_some(value))
    }

    /// Gives a key this value and nothing else, in one transaction. `ttl_ms` of 0 is for ever. An error of the inner
    /// result is the server's about this key.
    pub(crate) fn write(
        &self,
        link: &mut Link,
        key: &[u8],
        ttl_ms: u64,
    ) -> io::Result<Result<(), String>> {
        let mut commands: Vec<Vec<Vec<u8>>> = vec![vec![b"DEL".to_vec(), key.to_vec()]];
        let mut in_chunks = |name: &[u8], items: Vec<Vec<u8>>| {
            for chunk in items.chunks(CHUNK) {
                commands.push([&[name.to_vec(), key.to_vec()], chunk].concat());
            }
        };
        match self {
            Self::Text(text) => in_chunks(b"SET", vec![text.clone()]),
            Self::List(all) => in_chunks(b"RPUSH", all.clone()),
            Self::Set(all) => in_chunks(b"SADD", all.clone()),
            Self::Hash(all) => in_chunks(
                b"HSET",
                all.iter().flat_map(|(field, value)| [field.clone(), value.clone()]).collect(),
            ),
            Self::SortedSet(all) => in_chunks(
                b"ZADD",
                all.iter().flat_map(|(member, score)| [score.clone(), member.clone()]).collect(),
            ),
            Self::Stream(stream) => stream.write(key, &mut commands),
            Self::Other(kind) => return Ok(Err(format!("it is of type {kind}"))),
        }
        if ttl_ms > 0 {
            commands.push(vec![b"PEXPIRE".to_vec(), key.to_vec(), ttl_ms.to_string().into_bytes()]);
        }
        link.send(&[b"MULTI"]);
        for command in &commands {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            link.send(&words);
        }
        link.send(&[b"EXEC"]);
        let mut refusal = None;
        for _ in 0..commands.len() + 1 {
            if let Reply::Error(why) = link.reply()? {
                refusal.get_or_insert(why);
            }
        }
        match link.reply()? {
            Reply::Error(why) => drop(refusal.get_or_insert(why)),
            Reply::Array(replies) => {
                for reply in replies {
                    if let Reply::Error(why) = reply {
                        refusal.get_or_insert(why);
                    }
                }
            }
            _ => drop(refusal.get_or_insert("the transaction was not executed".to_owned())),
        }
        Ok(refusal.map_or(Ok(()), Err))
    }
}

impl Stream {
    /// Whether they differ at most by who has read what.
    pub(crate) fn has_entries_of(&self, other: &Self) -> bool {
        self.entries == other.entries && self.last == other.last
    }

    fn read(link: &mut Link, key: &[u8]) -> io::Result<Option<Self>> {
        let entries = link.demand(&[b"XRANGE", key, b"-", b"+"])?.array().ok_or_else(odd)?;
        let about = match link.ask(&[b"XINFO", b"STREAM", key])? {
            Reply::Error(why) if why.contains("no such key") => return Ok(None),
            Reply::Error(why) => return Err(io::Error::other(why)),
            about => about.array().ok_or_else(odd)?,
        };
        let last = field(&about, "last-generated-id").and_then(Reply::bytes).ok_or_else(odd)?;
        let mut stream = Self { last, ..Self::default() };
        for entry in entries {
            let mut entry = entry.array().ok_or_else(odd)?.into_iter();
            let (Some(id), Some(fields)) = (entry.next().and_then(Reply::bytes), entry.next())
            else {
                return Err(odd());
            };
            stream.entries.push((id, texts(fields)?));
        }
        let groups = match link.ask(&[b"XINFO", b"GROUPS", key])? {
            Reply::Error(why) if why.contains("no such key") => return Ok(None),
            reply => reply.array().unwrap_or_default(),
        };
        for group in groups {
            let about = group.array().ok_or_else(odd)?;
            let text = |name| field(&about, name).and_then(Reply::bytes).ok_or_else(odd);
            let mut group =
                Group { name: text("name")?, last: text("last-delivered-id")?, ..Group::default() };
            let consumers = link.ask(&[b"XINFO", b"CONSUMERS", key, &group.name])?;
            for consumer in consumers.array().unwrap_or_default() {
                let about = consumer.array().ok_or_else(odd)?;
                group.consumers.extend(field(&about, "name").and_then(Reply::bytes));
            }
            group.consumers.sort_unstable();
            let count = PENDING_MAX.to_string();
            let pending: [&[u8]; 6] = [b"XPENDING", key, &group.name, b"-", b"+", count.as_bytes()];
            for pending in link.ask(&pending)?.array().unwrap_or_default() {
                let mut it = pending.array().ok_or_else(odd)?.into_iter();
                let (id, consumer) = (it.next(), it.next());
                let (Some(id), Some(consumer), Some(count)) = (
                    id.and_then(Reply::bytes),
                    consumer.and_then(Reply::bytes),
                    it.nth(1).and_then(|count| count.integer()),
                ) else {
                    return Err(odd());
                };
                // Of an entry that was deleted nothing can be delivered.
                if stream.entries.iter().any(|(entry, _)| *entry == id) {
                    group.pending.push((id, consumer, count));
                }
            }
            stream.groups.push(group);
        }
        stream.groups.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(Some(stream))
    }

    fn write(&self, key: &[u8], commands: &mut Vec<Vec<Vec<u8>>>) {
        let mut push = |words: &[&[u8]]| {
            commands.push(words.iter().map(|word| word.to_vec()).collect());
        };
        for (id, fields) in &self.entries {
            let mut words: Vec<&[u8]> = vec![b"XADD", key, id];
            words.extend(fields.iter().map(Vec::as_slice));
            push(&words);
        }
        if self.entries.is_empty() {
            push(&[b"XGROUP", b"CREATE", key, b"cashew-move", b"0", b"MKSTREAM"]);
            push(&[b"XGROUP", b"DESTROY", key, b"cashew-move"]);
        }
        push(&[b"XSETID", key, &self.last]);
        for group in &self.groups {
            push(&[b"XGROUP", b"CREATE", key, &group.name, &group.last]);
            for consumer in &group.consumers {
                push(&[b"XGROUP", b"CREATECONSUMER", key, &group.name, consumer]);
            }
            for (id, consumer, count) in &group.pending {
                let count = count.to_string();
                let start: [&[u8]; 6] = [b"XCLAIM", key, &group.name, consumer, b"0", id];
                let end: [&[u8]; 4] = [b"RETRYCOUNT", count.as_bytes(), b"FORCE", b"JUSTID"];
                push(&[&start[..], &end[..]].concat());
            }
        }
    }
}
