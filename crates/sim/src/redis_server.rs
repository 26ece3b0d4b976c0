//! A Redis with strings that loses everything when told to.

use cashew_config::snapshot::Pool;

use crate::oracle::owner_of;
use crate::redis_client::FORBIDDEN;
use crate::request::{Outcome, SessionParams, line_end};
use crate::route::split_key;
use crate::server::{Blocked, Done, Place, Session};
use crate::store::Store;

pub(crate) struct RedisServer {
    /// A node of a cluster has its shard's while it executes something.
    pub(crate) store: Store,
    /// Where something was written since this was asked for.
    written: Vec<Place>,
    /// Elements that lists have had.
    elements: u64,
    password: Option<Vec<u8>>,
}

/// What some pools still have first among the credentials of their servers.
pub(crate) const OLD_PASSWORD: &[u8] = b"old word";
const OK: &[u8] = b"+OK\r\n";
const NIL: &[u8] = b"$-1\r\n";
pub(crate) const OUT_OF_MEMORY: &[u8] =
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";
const NOT_A_NUMBER: &[u8] = b"-ERR value is not an integer or out of range\r\n";

impl RedisServer {
    pub(crate) fn new(config: &Pool) -> Self {
        let password = config.redis_auth.as_ref().map(|password| password.as_bytes().to_vec());
        Self { store: Store::default(), written: Vec::new(), elements: 0, password }
    }

    pub(crate) fn value(&self, place: &Place) -> Option<&Vec<u8>> {
        self.store.values.get(place)
    }

    /// As its primary has it.
    pub(crate) fn put(&mut self, place: Place, value: Option<Vec<u8>>) {
        match value {
            Some(value) => drop(self.store.values.insert(place, value)),
            None => drop(self.store.values.remove(&place)),
        }
    }

    pub(crate) fn take_written(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.written)
    }

    fn note_write(&mut self, place: &Place) {
        self.store.note_change(place);
        self.written.push(place.clone());
    }

    pub(crate) fn forget(&mut self) {
        self.store.values.clear();
    }

    /// Executes the command at the front of `input`, if it is complete.
    pub(crate) fn execute(
        &mut self,
        input: &[u8],
        session: &mut Session,
        refuse: bool,
        unfriendly: bool,
    ) -> Option<Done> {
        let (args, used) = parse(input)?;
        let tag = args[0].to_vec();
        let name = args[0].to_ascii_uppercase();
        let simple = |reply: &[u8]| Some(Done::new(used, &tag, reply));
        match (name.as_slice(), &args[1..]) {
            (b"AUTH" | b"SELECT" | b"HELLO", _) if unfriendly => {
                return simple(b"-ERR not today\r\n");
            }
            (b"AUTH", [password]) => {
                if self.password.as_deref() != Some(*password) {
                    assert_eq!(*password, OLD_PASSWORD, "a password that nobody ever had");
                    return simple(
                        b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
                    );
                }
                session.authenticated = true;
                return simple(OK);
            }
            // The rest of a handshake whose AUTH was just refused.
            (b"SELECT" | b"HELLO" | b"PING", _)
                if self.password.is_some() && !session.authenticated =>
            {
                return simple(b"-NOAUTH Authentication required.\r\n");
            }
            _ if self.password.is_some() && !session.authenticated => {
                panic!("I1: a command before AUTH: {}", input.escape_ascii());
            }
            (b"SELECT", [index]) => {
                let index = std::str::from_utf8(index).ok().and_then(|text| text.parse().ok());
                session.params.database = index.expect("the engine selects a number");
                return simple(OK);
            }
            (b"HELLO", [version]) => {
                session.params.resp3 = *version == b"3";
                return simple(match session.params.resp3 {
                    true => b"%1\r\n$5\r\nproto\r\n:3\r\n",
                    false => b"*2\r\n$5\r\nproto\r\n:2\r\n",
                });
            }
            (b"CLIENT", [b"ID"]) => return simple(format!(":{}\r\n", session.id).as_bytes()),
            (b"CLIENT", [b"UNBLOCK", id, b"ERROR"]) => {
                let id = std::str::from_utf8(id).ok().and_then(|text| text.parse().ok());
                let unblocks = Some(id.expect("the engine has it from here"));
                return Some(Done { unblocks, ..Done::new(used, &tag, "") });
            }
            _ => {}
        }
        let is_forbidden = args[1..].contains(&FORBIDDEN);
        assert!(!is_forbidden, "I11: a server is sent what no user may do: {}", tag.escape_ascii());
        if session.owner.is_some()
            && let Some(other) = args[1..].iter().find_map(|key| owner_of(key))
        {
            assert_eq!(session.owner, Some(other), "I1: another client's request in a transaction");
        }
        if let Some(reply) = self.session(&name, &args, session, refuse) {
            return Some(Done { used, tag, ..reply });
        }
        if name == b"PING" {
            return simple(b"+PONG\r\n");
        }
        let with_values = name == b"MSET" || name == b"SET" || name == b"INCRBY";
        let keys: Vec<(&[u8], Option<&[u8]>)> = match with_values {
            true => args[1..].chunks(2).map(|pair| (pair[0], pair.get(1).copied())).collect(),
            false => args[1..].iter().map(|&key| (key, None)).collect(),
        };
        // The oracle does not track commands on shared keys, so they never fail.
        let refuse = refuse && keys.iter().any(|(key, _)| owner_of(key).is_some());
        let outcomes: Vec<Outcome> = keys
            .iter()
            .map(|&(key, payload)| match refuse {
                true => Outcome::refused(OUT_OF_MEMORY),
                false => self.one(&name, key, payload, session.params),
            })
            .collect();
        let reply = reply(&name, &outcomes);
        let keys = keys
            .iter()
            .zip(outcomes)
            .map(|(&(key, payload), outcome)| (key.to_vec(), payload.map(<[u8]>::to_vec), outcome));
        Some(Done { keys: keys.collect(), ..Done::new(used, &tag, reply) })
    }

    /// Transactions and blocking calls; `None` for commands that are executed as usual.
    fn session(
        &mut self,
        name: &[u8],
        args: &[&[u8]],
        session: &mut Session,
        refuse: bool,
    ) -> Option<Done> {
        let reply = |text: &[u8]| Some(Done::new(0, b"", text));
        let owner = args[1..].iter().find_map(|key| owner_of(key));
        match name {
            b"MULTI" => {
                assert!(session.queue.is_none(), "I1: MULTI in MULTI");
                session.queue = Some(Vec::new());
                reply(OK)
            }
            b"DISCARD" => {
                assert!(session.queue.is_some(), "I1: DISCARD without MULTI");
                self.end(session);
                reply(OK)
            }
            b"UNWATCH" if session.queue.is_none() => {
                self.end(session);
                reply(OK)
            }
            b"EXEC" => Some(self.exec(session)),
            _ if session.queue.is_some() => {
                session.owner = session.owner.or(owner);
                if refuse {
                    session.is_dirty = true;
                    return reply(OUT_OF_MEMORY);
                }
                let words = args.iter().map(|arg| arg.to_vec()).collect();
                session.queue.get_or_insert_default().push(words);
                reply(b"+QUEUED\r\n")
            }
            b"WATCH" => {
                session.owner = owner;
                for &key in &args[1..] {
                    let place = (session.params.database, key.to_vec());
                    let changes = self.store.changes_of(&place);
                    session.watched.push((place, changes));
                }
                reply(OK)
            }
            b"BLPOP" => {
                let timeout = std::str::from_utf8(args[2]).ok().and_then(|t| t.parse::<f64>().ok());
                let timeout = timeout.expect("clients say how long");
                self.elements += 1;
                session.blocked = Some(Blocked {
                    tag: args[0].to_vec(),
                    key: args[1].to_vec(),
                    until: (timeout * 1e6) as u64,
                    element: (timeout == 0.0).then_some(self.elements),
                });
                reply(b"")
            }
            _ => None,
        }
    }

    fn end(&mut self, session: &mut Session) {
        session.forget_transaction();
    }

    fn exec(&mut self, session: &mut Session) -> Done {
        let queue = session.queue.take().expect("I1: EXEC without MULTI");
        let is_same = |(place, changes): &(Place, u64)| self.store.changes_of(place) == *changes;
        let (is_dirty, is_unchanged) = (session.is_dirty, session.watched.iter().all(is_same));
        self.end(session);
        if is_dirty {
            let text = "-EXECABORT Transaction discarded because of previous errors.\r\n";
            return Done::new(0, b"", text);
        }
        if !is_unchanged {
            return Done::new(0, b"", session.nil());
        }
        let mut done = Done::new(0, b"", format!("*{}\r\n", queue.len()));
        let mut tags = Vec::new();
        for words in queue {
            if words[0].eq_ignore_ascii_case(b"PING") {
                done.reply.extend_from_slice(b"+PONG\r\n");
                continue;
            }
            let [tag, key, value] = <[Vec<u8>; 3]>::try_from(words).expect("clients queue SET");
            let outcome = self.one(b"SET", &key, Some(&value), session.params);
            done.reply.extend_from_slice(&outcome.reply);
            tags.push(tag);
            done.keys.push((key, Some(value), outcome));
        }
        done.tags = Some(tags);
        done
    }

    fn one(
        &mut self,
        name: &[u8],
        key: &[u8],
        payload: Option<&[u8]>,
        params: SessionParams,
    ) -> Outcome {
        if key.starts_with(b"s:") {
            return shared(name, key);
        }
        let place = (params.database, key.to_vec());
        let nil = if params.resp3 { b"_\r\n" } else { NIL };
        let count = |is: bool| Outcome::good(format!(":{}\r\n", u8::from(is)));
        match name {
            b"GET" | b"MGET" => match self.store.values.get(&place) {
                Some(value) => Outcome::good(bulk(value)),
                None => Outcome::good(nil),
            },
            b"SET" | b"MSET" => {
                self.note_write(&place);
                self.store.values.insert(place, payload.unwrap_or_default().to_vec());
                Outcome::good(OK)
            }
            b"INCRBY" => {
                let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
                let old = self.store.values.get(&place).map_or(Some(0), |text| number(text));
                match old.zip(payload.and_then(number)) {
                    Some((old, by)) => {
                        self.note_write(&place);
                        let new = old.wrapping_add(by).to_string();
                        self.store.values.insert(place, new.clone().into_bytes());
                        Outcome::good(format!(":{new}\r\n"))
                    }
                    None => Outcome::refused(NOT_A_NUMBER),
                }
            }
            b"STRLEN" => {
                let len = self.store.values.get(&place).map_or(0, Vec::len);
                Outcome::good(format!(":{len}\r\n"))
            }
            b"DEL" | b"UNLINK" => {
                self.note_write(&place);
                count(self.store.values.remove(&place).is_some())
            }
            b"EXISTS" | b"TOUCH" => count(self.store.values.contains_key(&place)),
            _ => panic!("I1: a server is sent {}", name.escape_ascii()),
        }
    }
}

/// The reply of any server for a shared key, which always exists.
pub(crate) fn shared(name: &[u8], key: &[u8]) -> Outcome {
    let key = split_key(key).unwrap_or(key);
    match name {
        b"GET" | b"MGET" => Outcome::good(bulk(&[b"value of ", key].concat())),
        _ => Outcome::good(":1\r\n"),
    }
}

fn bulk(value: &[u8]) -> Vec<u8> {
    let mut text = format!("${}\r\n", value.len()).into_bytes();
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
    text
}

fn reply(name: &[u8], outcomes: &[Outcome]) -> Vec<u8> {
    if let Some(refused) = outcomes.iter().find(|outcome| outcome.refused) {
        return refused.reply.clone();
    }
    match name {
        b"MGET" => {
            let mut all = format!("*{}\r\n", outcomes.len()).into_bytes();
            outcomes.iter().for_each(|outcome| all.extend_from_slice(&outcome.reply));
            all
        }
        b"DEL" | b"UNLINK" | b"EXISTS" | b"TOUCH" => {
            let ones = outcomes.iter().filter(|outcome| outcome.reply == b":1\r\n");
            format!(":{}\r\n", ones.count()).into_bytes()
        }
        _ => outcomes[0].reply.clone(),
    }
}

/// The arguments at the front, which are always an array of bulks, and where they end.
pub(crate) fn parse(input: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let header = |at: usize, kind: u8| {
        let end = line_end(input, at)?;
        assert_eq!(input[at], kind, "I1: a server is sent {}", input.escape_ascii());
        let text = std::str::from_utf8(&input[at + 1..end - 2]).expect("a length is text");
        Some((text.parse::<usize>().expect("a length is a number"), end))
    };
    let (count, mut at) = header(0, b'*')?;
    let mut args = Vec::new();
    for _ in 0..count {
        let (len, start) = header(at, b'$')?;
        at = start + len + 2;
        if at > input.len() {
            return None;
        }
        assert!(input[..at].ends_with(b"\r\n"), "I1: an argument longer than announced");
        args.push(&input[start..start + len]);
    }
    Some((args, at))
}
