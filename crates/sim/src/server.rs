//! A server process: its health and its connections. The model executes its requests.

use std::collections::{BTreeMap, BTreeSet};

use cashew_config::snapshot::{Pool, Protocol};

use crate::cas_tags;
use crate::clock::Event;
use crate::memcached_server::MemcachedServer;
use crate::network::{Side, piece};
use crate::oracle::{Execution, owner_of};
use crate::redis_server::RedisServer;
use crate::request::{Outcome, SessionParams};
use crate::surprise::Surprise;
use crate::world::Fabric;

/// The reply to a call that CLIENT UNBLOCK has ended with ERROR.
const ENDED: &[u8] = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

/// Whether and how a server can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// The kernel accepts connections and bytes, the process does nothing.
    Hung,
    /// Nobody listens.
    Down,
    /// Packets are dropped.
    Unreachable,
    /// Every command takes long.
    Slow,
    /// AUTH and SELECT are refused.
    Unfriendly,
    /// Commands are refused now and then.
    Moody,
}

pub(crate) struct Server {
    pub(crate) id: u32,
    pub(crate) pool: u32,
    pub(crate) index: u32,
    pub(crate) health: Health,
    pub(crate) protocol: Protocol,
    model: Model,
    pub(crate) sessions: BTreeMap<u32, Session>,
}

/// A server's model, by protocol.
enum Model {
    Redis(RedisServer),
    Memcached(MemcachedServer),
}

/// One connection, as the server sees it.
#[derive(Default)]
pub(crate) struct Session {
    input: Vec<u8>,
    output: Vec<u8>,
    /// A node of a cluster: ASKING was the last command, and READONLY holds.
    pub(crate) asking: bool,
    pub(crate) reads: bool,
    /// Redis only: the session parameters.
    pub(crate) authenticated: bool,
    pub(crate) params: SessionParams,
    /// The connection's number, as in CLIENT ID.
    pub(crate) id: u32,
    /// Commands queued since MULTI.
    pub(crate) queue: Option<Vec<Vec<Vec<u8>>>>,
    /// One of them was refused.
    pub(crate) is_dirty: bool,
    /// Keys watched, and how often they had changed then.
    pub(crate) watched: Vec<(Place, u64)>,
    /// The owner of this transaction or watch.
    pub(crate) owner: Option<u32>,
    pub(crate) blocked: Option<Blocked>,
    /// The last request was a binary packet.
    pub(crate) is_binary: bool,
    /// The next reply is garbage.
    pub(crate) garbles: bool,
    /// The connection ends in the middle of the next reply of this minimum size.
    pub(crate) breaks: Option<usize>,
    /// The surprise for the next reply, and a reply delayed until after the next.
    pub(crate) surprise: Option<Surprise>,
    kept_back: Option<Vec<u8>>,
    planned: bool,
}

/// A database's number, and a key.
pub(crate) type Place = (u32, Vec<u8>);

/// What a connection is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionKind {
    Shared,
    Transaction,
    Watch,
    Wait,
}

impl Session {
    pub(crate) fn kind(&self) -> SessionKind {
        if self.blocked.is_some() {
            SessionKind::Wait
        } else if self.queue.is_some() {
            SessionKind::Transaction
        } else if !self.watched.is_empty() {
            SessionKind::Watch
        } else {
            SessionKind::Shared
        }
    }

    /// No array.
    pub(crate) fn nil(&self) -> &'static [u8] {
        if self.params.resp3 { b"_\r\n" } else { b"*-1\r\n" }
    }

    pub(crate) fn forget_transaction(&mut self) {
        self.queue = None;
        self.is_dirty = false;
        self.watched.clear();
        self.owner = None;
    }
}

/// A blocking call.
pub(crate) struct Blocked {
    pub(crate) tag: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// When there is an element, or the time is over.
    pub(crate) until: u64,
    /// The element; `None` for none.
    pub(crate) element: Option<u64>,
}

/// One command that a model has executed.
pub(crate) struct Done {
    /// The number of input bytes it consumed.
    pub(crate) used: usize,
    /// Its name, as the client wrote it.
    pub(crate) tag: Vec<u8>,
    /// The outcome for each key, and the data that came with it.
    pub(crate) keys: Vec<(Vec<u8>, Option<Vec<u8>>, Outcome)>,
    pub(crate) reply: Vec<u8>,
    /// The names of the commands that EXEC executed, by key.
    pub(crate) tags: Option<Vec<Vec<u8>>>,
    /// The blocking call of this connection ends.
    pub(crate) unblocks: Option<u32>,
}

impl Done {
    pub(crate) fn new(used: usize, tag: &[u8], reply: impl Into<Vec<u8>>) -> Self {
        let (tag, reply) = (tag.to_vec(), reply.into());
        Self { used, tag, keys: Vec::new(), reply, tags: None, unblocks: None }
    }
}

impl Server {
    pub(crate) fn new(id: u32, pool: u32, index: u32, config: &Pool) -> Self {
        let model = match config.protocol {
            Protocol::Redis => Model::Redis(RedisServer::new(config)),
            Protocol::Memcached | Protocol::Tcp => {
                let tag = cas_tags::tag(config, &config.servers[index as usize]);
                Model::Memcached(MemcachedServer::new(tag))
            }
        };
        let protocol = config.protocol;
        Self { id, pool, index, health: Health::Well, protocol, model, sessions: BTreeMap::new() }
    }

    pub(crate) fn accept(&mut self, conn: u32) {
        self.sessions.insert(conn, Session { id: conn, ..Session::default() });
    }

    /// Something arrived, or there is room to write.
    pub(crate) fn notice(&mut self, conn: u32, fabric: &mut Fabric) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        if std::mem::replace(&mut session.planned, true) {
            return;
        }
        let delay = match self.health {
            Health::Slow => fabric.random.range(500, 4000),
            _ => fabric.random.below(80),
        };
        fabric.clock.plan(fabric.clock.now() + delay, Event::Serve { conn });
    }

    /// The gateway reset the connection.
    pub(crate) fn lost(&mut self, conn: u32) {
        self.sessions.remove(&conn);
    }

    /// Reads, executes and answers what has come on a connection.
    pub(crate) fn serve(&mut self, conn: u32, fabric: &mut Fabric) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        session.planned = false;
        if matches!(self.health, Health::Hung | Health::Down) {
            return;
        }
        if session.blocked.is_some() && !self.end_wait(conn, fabric) {
            // Earlier replies may not have been sent completely.
            self.flush(conn, fabric);
            self.look_for_end(conn, fabric);
            return;
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let ready = fabric.network.readable(conn, Side::Peer);
        let max = piece(ready, fabric.cuts, &mut fabric.random);
        let bytes = fabric.network.read(conn, Side::Peer, max, &mut fabric.clock);
        session.input.extend_from_slice(&bytes);
        let commands_max = if self.health == Health::Slow { 1 } else { usize::MAX };
        let mut more = fabric.network.readable(conn, Side::Peer) > 0;
        for count in 0.. {
            if count == commands_max {
                more = true;
                break;
            }
            if !self.execute(conn, fabric) {
                break;
            }
        }
        if !self.sessions.contains_key(&conn) {
            return;
        }
        self.flush(conn, fabric);
        if self.sessions.get(&conn).is_none_or(|session| session.blocked.is_some()) {
            return;
        }
        if more {
            self.notice(conn, fabric);
        } else if fabric.network.at_end(conn, Side::Peer) {
            let Fabric { network, clock, random, .. } = fabric;
            network.close(conn, Side::Peer, clock, random);
            self.sessions.remove(&conn);
        }
    }

    /// Ends the blocking call if its element has come or its time is over; returns whether it did.
    fn end_wait(&mut self, conn: u32, fabric: &mut Fabric) -> bool {
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        let now = fabric.clock.now();
        let Some(blocked) = session.blocked.take_if(|blocked| blocked.until <= now) else {
            return false;
        };
        let key = &blocked.key;
        let reply = match blocked.element {
            Some(element) => {
                let element = element.to_string();
                let head = format!("*2\r\n${}\r\n", key.len());
                let tail = format!("\r\n${}\r\n{element}\r\n", element.len());
                [head.as_bytes(), key, tail.as_bytes()].concat()
            }
            None => session.nil().to_vec(),
        };
        session.output.extend_from_slice(&reply);
        fabric.trace.quote(now, "server ends a wait", [self.id.into(), conn.into(), 0], &reply);
        // An element for a connection that ends at the same moment is lost, as with real servers.
        let is_lost = fabric.network.is_closed(conn, Side::Gateway);
        if blocked.element.is_some() && !is_lost {
            fabric.oracle.counts.waits += 1;
            let outcome = Outcome::good(reply);
            self.report(conn, &blocked.tag, key, None, &outcome, false, fabric);
        }
        self.flush(conn, fabric);
        true
    }

    /// A node of a cluster: ends calls that wait for keys of slots that have gone.
    pub(crate) fn send_away(&mut self, fabric: &mut Fabric) {
        if matches!(self.health, Health::Hung | Health::Down) {
            return;
        }
        let conns: Vec<u32> = self.sessions.keys().copied().collect();
        for conn in conns {
            let Some(session) = self.sessions.get_mut(&conn) else { continue };
            let Some(cluster) = &fabric.cluster else { return };
            let Some(blocked) = &session.blocked else { continue };
            let Some(reply) = cluster.ends_wait(self.id, &blocked.key) else { continue };
            let Some(Blocked { tag, key, .. }) = session.blocked.take() else { continue };
            session.output.extend_from_slice(&reply);
            let (now, numbers) = (fabric.clock.now(), [self.id.into(), conn.into(), 0]);
            fabric.trace.quote(now, "server sends away", numbers, &reply);
            if let Some(client) = owner_of(&key) {
                let is_redirect = reply.starts_with(b"-MOVED");
                fabric.oracle.refused(client, (&tag, &key), &reply, is_redirect, (self.id, now));
            }
            self.flush(conn, fabric);
            self.notice(conn, fabric);
        }
    }

    /// Checks whether the gateway has left meanwhile.
    fn look_for_end(&mut self, conn: u32, fabric: &mut Fabric) {
        if fabric.network.readable(conn, Side::Peer) == 0 && fabric.network.at_end(conn, Side::Peer)
        {
            let Fabric { network, clock, random, .. } = fabric;
            network.close(conn, Side::Peer, clock, random);
            self.sessions.remove(&conn);
        }
    }

    /// CLIENT UNBLOCK with ERROR: the call ends without a result.
    fn unblock(&mut self, conn: u32, fabric: &mut Fabric) -> bool {
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        if session.blocked.take().is_none() {
            return false;
        }
        fabric.oracle.counts.withdrawals += 1;
        session.output.extend_from_slice(ENDED);
        self.flush(conn, fabric);
        self.notice(conn, fabric);
        true
    }

    /// A copy of what another server of the group has executed.
    pub(crate) fn copy(&mut self, place: Place, value: Option<Vec<u8>>) {
        if let Model::Redis(redis) = &mut self.model {
            redis.put(place, value);
        }
    }

    /// Reports an execution for a key to the oracle.
    #[expect(clippy::too_many_arguments, reason = "they are those of an execution")]
    fn report(
        &self,
        conn: u32,
        tag: &[u8],
        key: &[u8],
        payload: Option<&[u8]>,
        outcome: &Outcome,
        by_exec: bool,
        fabric: &mut Fabric,
    ) {
        let Some(client) = owner_of(key) else { return };
        let now = fabric.clock.now();
        let place = (self.sessions.get(&conn).map_or(0, |s| s.params.database), key.to_vec());
        let is_stale = match &self.model {
            Model::Redis(redis) => {
                fabric.replication.is_stale(self.pool, &place, redis.value(&place))
            }
            Model::Memcached(_) => false,
        };
        let execution = Execution {
            is_stale,
            pool: self.pool,
            server: self.index,
            gateway: fabric.network.conn(conn).gateway,
            late: fabric.network.is_closed(conn, Side::Gateway) || fabric.oracle.is_touched(conn),
            params: self.sessions.get(&conn).map_or_else(SessionParams::default, |s| s.params),
            tag,
            key,
            payload,
            outcome,
            by_exec,
        };
        fabric.oracle.executed(client, &execution, now);
    }

    /// Whether a connection has a transaction, a watch or a call that waits.
    pub(crate) fn has_sessions(&self) -> bool {
        self.sessions.values().any(|session| session.kind() != SessionKind::Shared)
    }

    /// All clients are gone: nothing is left behind.
    pub(crate) fn check_clean(&self) {
        for (conn, session) in &self.sessions {
            let is_clean =
                session.queue.is_none() && session.watched.is_empty() && session.blocked.is_none();
            assert!(is_clean, "I1: a transaction or a wait is left on connection {conn}");
        }
    }

    /// Executes the command at the front of the input; returns whether there was one.
    fn execute(&mut self, conn: u32, fabric: &mut Fabric) -> bool {
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        if session.blocked.is_some() {
            return false;
        }
        let refuse = self.health == Health::Moody && fabric.random.percent(30);
        let owner = session.owner;
        let input = std::mem::take(&mut session.input);
        session.is_binary = input.first().map_or(session.is_binary, |&byte| byte == 0x80);
        let done = match &mut self.model {
            Model::Redis(redis) => fabric.refuse(self.id, &input, session).or_else(|| {
                let cluster = &mut fabric.cluster;
                let mut swap = |redis: &mut RedisServer| {
                    if let Some(cluster) = cluster {
                        std::mem::swap(&mut redis.store, cluster.store_of(self.id));
                    }
                };
                swap(redis);
                let unfriendly = self.health == Health::Unfriendly;
                let done = redis.execute(&input, session, refuse, unfriendly);
                swap(redis);
                done
            }),
            Model::Memcached(memcached) => memcached.execute(&input, refuse),
        };
        session.input = input;
        if let Model::Redis(redis) = &mut self.model {
            for place in redis.take_written() {
                let value = redis.value(&place).cloned();
                fabric.replicate(self.id, place, value);
            }
        }
        let owner = owner.or(session.owner);
        let owner = owner.or_else(|| session.blocked.as_ref().and_then(|b| owner_of(&b.key)));
        // A queued command on a shared key has its client in the value.
        let queued = session.queue.iter().flatten().filter_map(|words| words.last());
        let owner = owner.or_else(|| {
            queued.filter_map(|word| owner_of(&[b"c", word.strip_prefix(b"x")?].concat())).next()
        });
        let Some(done) = done else { return false };
        session.input.drain(..done.used);
        // It holds for one command, or for a transaction.
        session.asking &= session.queue.is_some() || done.tag == b"ASKING";
        let mut done = done;
        if let Some(blocked) = &mut session.blocked {
            let delay = match blocked.element {
                // Without a limit.
                Some(_) => fabric.random.range(50, 30_000),
                None => blocked.until,
            };
            blocked.until = fabric.clock.now() + delay;
            fabric.clock.plan(blocked.until, Event::Serve { conn });
        }
        if let Some(other) = done.unblocks {
            let is_done = self.unblock(other, fabric);
            done.reply = format!(":{}\r\n", u8::from(is_done)).into_bytes();
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        let params = session.params;
        // Push messages come between replies.
        if params.resp3 && fabric.random.percent(5) {
            session.output.extend_from_slice(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n");
        }
        session.output.extend_from_slice(&done.reply);
        let (now, number) = (fabric.clock.now(), u64::from(self.id));
        fabric.trace.quote(now, "server executes", [number, u64::from(conn), 0], &done.tag);
        fabric.oracle.counts.transactions += u64::from(done.tags.is_some());
        let owners: BTreeSet<u32> = done.keys.iter().filter_map(|key| owner_of(&key.0)).collect();
        fabric.oracle.counts.shared += u64::from(owners.len() > 1);
        for (at, (key, payload, outcome)) in done.keys.iter().enumerate() {
            let tag = done.tags.as_ref().map_or(&done.tag, |tags| &tags[at]);
            let by_exec = done.tags.is_some();
            self.report(conn, tag, key, payload.as_deref(), outcome, by_exec, fabric);
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        let reply_len = done.reply.len();
        let breaks = session.breaks.is_some_and(|size| reply_len >= size);
        if session.garbles || breaks {
            fabric.oracle.trouble(self.pool, self.index, now);
        }
        if std::mem::take(&mut session.garbles) {
            session.output.truncate(session.output.len() - reply_len);
            session.output.extend(match self.model {
                Model::Redis(_) => b"!this is no reply\r\n".to_vec(),
                // A line of any text is a reply; a line without end is none.
                Model::Memcached(_) => vec![b'x'; 10_000],
            });
        }
        if session.surprise.is_some() || session.kept_back.is_some() {
            self.surprise(conn, &done, fabric);
        }
        if let Some(owner) = owner.filter(|_| fabric.oracle.is_touched(conn)) {
            // The result of a transaction or a blocking call with a surprising reply concerns its
            // owner only. It must not reach anybody else.
            fabric.oracle.give_up(owner);
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        if breaks {
            // Less of it is left if it is garbled, too.
            let kept = session.output.len().saturating_sub(reply_len.div_ceil(2));
            session.output.truncate(kept);
            self.flush(conn, fabric);
            self.hang_up(conn, false, fabric);
            return false;
        }
        true
    }

    /// Replaces the reply that was just written.
    fn surprise(&mut self, conn: u32, done: &Done, fabric: &mut Fabric) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let is_greeting = done.keys.is_empty();
        let is_ready = |surprise: &mut Surprise| !is_greeting || surprise.may_greet();
        let kept_back = session.kept_back.take();
        let surprise = session.surprise.take_if(is_ready);
        if let Some(surprise) = surprise {
            let (protocol, resp3) = (self.protocol, session.params.resp3);
            session.output.truncate(session.output.len() - done.reply.len());
            let bytes = surprise.instead(&done.reply, protocol, resp3, &mut fabric.random);
            let numbers = [self.id.into(), conn.into(), surprise.code()];
            fabric.trace.quote(fabric.clock.now(), "server surprises", numbers, &bytes);
            session.output.extend_from_slice(&bytes);
            fabric.oracle.counts.surprises += 1;
            fabric.oracle.touch(conn);
            if surprise == Surprise::Late {
                session.kept_back = Some(done.reply.clone());
            }
        }
        if let Some(reply) = kept_back {
            session.output.extend_from_slice(&reply);
        }
    }

    fn flush(&mut self, conn: u32, fabric: &mut Fabric) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        while !session.output.is_empty() {
            let Fabric { network, clock, random, .. } = fabric;
            let taken = network.write(conn, Side::Peer, &session.output, clock, random);
            session.output.drain(..taken);
            if !session.output.is_empty() {
                return;
            }
        }
    }

    /// Ends a connection, regularly or by a reset.
    pub(crate) fn hang_up(&mut self, conn: u32, abruptly: bool, fabric: &mut Fabric) {
        let number = u64::from(self.id);
        let now = fabric.clock.now();
        fabric.trace.note(now, "server hangs up", [number, conn.into(), abruptly.into()]);
        if self.sessions.remove(&conn).is_some() {
            let Fabric { network, clock, random, .. } = fabric;
            if abruptly {
                network.reset(conn, Side::Peer, clock, random);
            } else {
                network.close(conn, Side::Peer, clock, random);
            }
        }
    }

    /// All connections end; possibly all data is lost too.
    pub(crate) fn restart(&mut self, fabric: &mut Fabric) {
        let conns: Vec<u32> = self.sessions.keys().copied().collect();
        let abruptly = fabric.random.percent(50);
        for conn in conns {
            self.hang_up(conn, abruptly, fabric);
        }
        if fabric.random.percent(50) {
            match &mut self.model {
                Model::Redis(redis) => redis.forget(),
                Model::Memcached(memcached) => memcached.forget(),
            }
        }
    }

    /// Handles what has come while it was not healthy.
    pub(crate) fn recover(&mut self, fabric: &mut Fabric) {
        self.health = Health::Well;
        for session in self.sessions.values_mut() {
            session.surprise = None;
        }
        let conns: Vec<u32> = self.sessions.keys().copied().collect();
        for conn in conns {
            self.notice(conn, fabric);
        }
    }

    /// Sends an unsolicited reply on a connection without requests in flight.
    pub(crate) fn stray(&mut self, conn: u32, fabric: &mut Fabric) -> bool {
        let Some(session) = self.sessions.get(&conn) else { return false };
        let is_idle =
            session.input.is_empty() && session.output.is_empty() && session.blocked.is_none();
        if !is_idle || !fabric.network.is_idle(conn) || fabric.network.conn(conn).token == 0 {
            return false;
        }
        let bytes: &[u8] = match self.model {
            Model::Redis(_) => b"+OK\r\n",
            Model::Memcached(_) => b"STORED\r\n",
        };
        fabric.network.materialise(conn, Side::Gateway, bytes);
        true
    }
}
