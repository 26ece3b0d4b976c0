//! Replies that are kept for nodes `cache`, so that reads of hot keys need no server.
//!
//! # What holds
//!
//! - No reply is older than a write that was acknowledged through any connection of the instance before the read came.
//!   What goes to a server is looked at where it is put into a lane, so that no feature has to think of it: a
//!   write counts up its keys' words ([`cashew_metrics::Generations`], which all workers share) when it is put there,
//!   and again when its reply is here, before anybody is told. A reply is kept with the stamp that its key had when it
//!   was asked for, and is good as long as that is the key's stamp.
//! - A client's own order holds: what it reads behind a write of its own that is not answered is not answered from
//!   here.
//! - Of what others write, Redis tells ([`crate::redis::tracking`]), and what may have been missed is dropped. In any
//!   case a reply lives no longer than the node's `ttl`, from when it was asked for, and no longer than its key: that is
//!   asked behind the read, by PTTL, or by `me` and `mg` of memcached. A memcached that knows neither leaves `ttl`.
//!
//! A hot key that is split has copies in place of a kept reply: see [`crate::engine::copies`].
//!
//! A node's store is one worker's. It is empty after every change of the configuration. Where a node keeps hot keys
//! only, which ones these are is looked up once a second ([`cashew_metrics::HotActs`]); a key that is new is kept when
//! its server is known to tell of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cashew_config::snapshot::Protocol;
use cashew_metrics::{Generations, HotAct, HotActs, KeyWord, PoolCounter, PoolGauge};
use cashew_protocol::Span;
use cashew_protocol::memcached::{self, Answer, Expect};
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, Reply, RequestParser, encode};

use crate::base::cache_mark::CacheMark;
use crate::base::id::{BackendId, ClientId, LaneId, ListenerId, RequestId, ServerId};
use crate::base::time::Time;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::engine::copies::{CopyOf, CopyRead, Splitting};
use crate::exchange::dispatch::Payload;
use crate::memcached::key_life::{KeyLife, ask_me, ask_mg, by_me, by_mg};
use crate::memcached::{END, KeyWritten, key_written};
use crate::redis::cached_writes::{Writes, writes};
use crate::redis::tracking::Changed;
use crate::request::slab::Requests;
use crate::request::{Own, Role};
use crate::route::cache::{Found, Origin, Store, Ticket};
use crate::topology::route_tree::Tree;
use crate::upstream::lane::Lane;
use crate::upstream::session_params::WireProtocol;
use crate::upstream::tracking::{Needed, TrackedKeys, Tracker, is_question_refused, time_to_live};

/// So much of a request is looked at; it is the start of large ones.
const LOOKED_AT_MAX: u64 = 64 * 1024;
/// Of a client that waits for more requests than this nothing is answered from here.
const PIPELINE_MAX: usize = 64;
/// A read of more keys goes to the servers.
const KEYS_MAX: usize = 256;
/// A transaction that writes more keys is taken to write all.
const TRANSACTION_KEYS_MAX: usize = 4096;
/// A server that does not know how to tell how long keys live is asked again after so long.
const UNTOLD_FOR_MS: u64 = 60_000;
/// The same of one whose connection was lost while it was asked. Till then nothing of it is kept.
const UNASKED_FOR_MS: u64 = 10_000;

/// The caches of a worker.
#[derive(Default)]
pub(crate) struct Caches {
    pub(crate) generations: Generations,
    /// What is known of keys that are split.
    pub(crate) splitting: Splitting,
    /// Which keys are hot, and the version of it that has been taken up.
    pub(crate) acts: HotActs,
    acts_version: u64,
    /// By the numbers that nodes have.
    pub(crate) stores: Vec<StoreOf>,
    /// Another one whenever `stores` are made anew.
    pub(crate) round: u32,
    /// What requests that are on their way mean to caches, and places that are free.
    marks: Vec<Mark>,
    free: Vec<usize>,
    /// The next request of a client is a read whose reply is to be kept.
    pub(crate) wanted: Option<Wanted>,
    /// Servers of memcached that are not asked how long keys live, until when.
    untold: HashMap<(BackendId, ServerId), Untold>,
    /// By the lane on which a transaction is open: what it writes.
    transactions: HashMap<LaneId, Written>,
    parser: RequestParser,
    text: Vec<u8>,
    keys: Vec<Span>,
    /// Bytes that are counted as held.
    charged: usize,
}

pub(crate) struct StoreOf {
    pub(crate) store: Store,
    /// Whose node it is.
    pub(crate) listener: ListenerId,
    pub(crate) tree: Arc<Tree>,
}

#[derive(Clone, Copy, Debug)]
struct Untold {
    until: Time,
    /// What it answers is kept all the same, for as long as the node says.
    is_kept: bool,
}

/// What the reply to a request means to caches.
#[derive(Debug)]
pub(crate) enum Mark {
    Nothing,
    /// It is to be kept.
    Fill(Fill),
    /// It says how long the key lives of what is to be kept.
    Life(Fill),
    /// The same of memcached, which could not say it at first.
    LifeByMg(Fill),
    Written(Written),
    /// It asks a copy in place of the key's own server.
    CopyRead(CopyRead),
    /// It asks the own server of a key that is split.
    AtOwner(KeyWord),
    /// It says whether a server has a copy.
    CopyWritten(CopyOf),
    /// It says whether a server has removed a copy.
    CopyGone((BackendId, ServerId)),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) round: u32,
    pub(crate) store: u32,
    pub(crate) ticket: Ticket,
    /// How long the key lives is asked.
    pub(crate) asks_life: bool,
}

/// Keys that are written.
#[derive(Debug)]
pub(crate) enum Written {
    One(KeyWord),
    Many(Vec<KeyWord>),
    All,
}

impl Written {
    fn count(&self, generations: &Generations) {
        match self {
            Self::One(key) => generations.count(*key),
            Self::Many(keys) => keys.iter().for_each(|key| generations.count(*key)),
            Self::All => generations.count_all(),
        }
    }

    fn add(&mut self, other: &Self) {
        let Self::Many(keys) = self else { return };
        match other {
            Self::One(key) => keys.push(*key),
            Self::Many(others) => keys.extend_from_slice(others),
            Self::All => *self = Self::All,
        }
        if matches!(self, Self::Many(keys) if keys.len() > TRANSACTION_KEYS_MAX) {
            *self = Self::All;
        }
    }
}

pub(crate) struct Wanted {
    pub(crate) client: ClientId,
    pub(crate) store: u32,
    pub(crate) word: KeyWord,
    /// Otherwise it is only to be known that it asks the key's own server.
    pub(crate) is_fill: bool,
}

impl Caches {
    pub(crate) fn add_mark(&mut self, mark: Mark) -> CacheMark {
        let place = match self.free.pop() {
            Some(place) => {
                self.marks[place] = mark;
                place
            }
            None => {
                self.marks.push(mark);
                self.marks.len() - 1
            }
        };
        CacheMark::at(place)
    }

    pub(crate) fn mark(&self, mark: CacheMark) -> &Mark {
        mark.place().map_or(&Mark::Nothing, |place| &self.marks[place])
    }

    pub(crate) fn take_mark(&mut self, mark: CacheMark) -> Mark {
        let Some(place) = mark.place() else { return Mark::Nothing };
        self.free.push(place);
        std::mem::replace(&mut self.marks[place], Mark::Nothing)
    }

    pub(crate) fn store(&mut self, fill: Fill) -> Option<&mut StoreOf> {
        if fill.round != self.round {
            return None;
        }
        self.stores.get_mut(fill.store as usize)
    }

    fn size(&self) -> usize {
        self.stores.iter().map(|it| it.store.size()).sum()
    }
}

/// Reads.
impl Engine {
    /// A client reads keys that a route may have a cache for. Returns what becomes of it if it is answered from there;
    /// else its reply may be kept that is on its way next.
    pub(crate) fn read_kept(
        &mut self,
        client: ClientId,
        tree: &Tree,
        command: &Command,
        (bytes, keys): (&[u8], &[Span]),
    ) -> Option<Plan> {
        self.caches.wanted = None;
        if self.waits_for_copies(client, command, (bytes, keys)) {
            return Some(Plan::Wait);
        }
        let is_array = match command.name {
            "get" => false,
            "mget" if keys.len() <= KEYS_MAX => true,
            _ => return None,
        };
        if !is_array
            && self.caches.splitting.is_any
            && let Some(plan) = self.read_split(client, tree, keys[0].of(bytes))
        {
            return Some(plan);
        }
        let mut text = std::mem::take(&mut self.scratch.text);
        text.clear();
        if is_array {
            encode::write_array_header(&mut text, keys.len());
        }
        let found = !keys.is_empty() && self.may_read_kept(client);
        let found =
            found && keys.iter().all(|key| self.find_kept(client, tree, key.of(bytes), &mut text));
        let plan = found.then(|| self.reply_with(client, |out| out.extend_from_slice(&text)));
        if plan.is_none() && !is_array {
            self.want(client, tree, keys[0].of(bytes));
        }
        text.clear();
        self.scratch.text = text;
        plan
    }

    /// The same for memcached's `get` of one key.
    pub(crate) fn get_kept(&mut self, client: ClientId, tree: &Tree, key: &[u8]) -> Option<Plan> {
        self.caches.wanted = None;
        let mut text = std::mem::take(&mut self.scratch.text);
        text.clear();
        let found = self.may_read_kept(client) && self.find_kept(client, tree, key, &mut text);
        let plan = found.then(|| self.reply_with(client, |out| out.extend_from_slice(&text)));
        if plan.is_none() {
            self.want(client, tree, key);
        }
        text.clear();
        self.scratch.text = text;
        plan
    }

    /// Whether the client's next request may be answered from what is kept: it sees what others do, and nothing that
    /// it has asked to be written is on its way.
    pub(crate) fn may_read_kept(&self, client: ClientId) -> bool {
        let state = &self.clients[client];
        let is_plain = state.modes.transaction.is_none()
            && !state.noreply
            && state.session.database.number().is_none()
            && state.reads.is_none();
        is_plain && self.reads_only(&self.requests, state.head)
    }

    fn reads_only(&self, requests: &Requests, mut at: RequestId) -> bool {
        for _ in 0..PIPELINE_MAX {
            if at == RequestId::NONE {
                return true;
            }
            let request = &requests[at];
            let is_read = match self.caches.mark(request.cache_mark) {
                Mark::Written(_) => false,
                Mark::CopyRead(_) => true,
                _ => matches!(request.role, Role::Single),
            };
            if !request.done && !is_read {
                return false;
            }
            at = request.next_in_client;
        }
        false
    }

    /// Writes what is kept of a key. Returns whether something is.
    fn find_kept(&mut self, client: ClientId, tree: &Tree, key: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(number) = tree.cache_of(key) else { return false };
        let word = KeyWord::of(key);
        let Some(stamp) = self.caches.generations.stamp(word) else { return false };
        let Some(StoreOf { store, listener, .. }) = self.caches.stores.get_mut(number as usize)
        else {
            return false;
        };
        if !store.takes(key) {
            return false;
        }
        let metrics = self.listeners[*listener].metrics;
        let (before, start) = (store.size(), out.len());
        let is_found = match store.find(key, stamp, self.now) {
            Found::Reply(reply) => {
                out.extend_from_slice(reply);
                true
            }
            Found::NoKey => {
                out.extend_from_slice(match self.clients[client].session.wire_protocol {
                    WireProtocol::Resp3 => b"_\r\n",
                    WireProtocol::Resp2 => b"$-1\r\n",
                    WireProtocol::Text | WireProtocol::Binary => END,
                });
                true
            }
            Found::Stale => {
                self.metrics.add_pool(metrics, PoolCounter::CacheWritten, 1);
                false
            }
            // Its own server is asked, or a copy: in neither case the cache had it.
            Found::Copies(_) => return false,
            Found::Nothing => false,
        };
        let source = store.source(key).filter(|_| is_found);
        let counter = if is_found { PoolCounter::CacheHits } else { PoolCounter::CacheMisses };
        self.metrics.add_pool(metrics, counter, 1);
        if store.size() != before {
            self.recharge_caches();
        }
        if let Some(place) = source {
            self.observe_kept(place, key, (out.len() - start) as u64);
        }
        is_found
    }

    /// The reply to what a client asks next is to be kept, if it may be.
    fn want(&mut self, client: ClientId, tree: &Tree, key: &[u8]) {
        let state = &self.clients[client];
        let is_plain = state.modes.transaction.is_none()
            && !state.noreply
            && state.session.database.number().is_none()
            && state.reads.is_none();
        let Some(number) = tree.cache_of(key).filter(|_| is_plain) else { return };
        let Some(StoreOf { store, .. }) = self.caches.stores.get_mut(number as usize) else {
            return;
        };
        let word = KeyWord::of(key);
        let is_split = store.split_of(key).is_some();
        let may_fill = !is_split || !store.rests(key, self.now);
        let is_fill = store.takes(key) && may_fill && store.admits(key, word);
        if is_fill || is_split {
            self.caches.wanted = Some(Wanted { client, store: number, word, is_fill });
        }
    }

    /// Whether the reply to what a client asks next is to be kept.
    pub(crate) fn is_wanted_to_keep(&self, client: ClientId) -> bool {
        self.caches.wanted.as_ref().is_some_and(|wanted| wanted.client == client)
    }
}

/// What goes to servers whose replies are kept, and comes from there.
impl Engine {
    /// A request has been put into a lane whose server's replies are kept: its bytes are the last of the output.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_for_caches(&mut self, index: LaneId, request: RequestId, wire_len: u64) {
        let slot = &self.requests[request];
        if slot.cache_mark.is_some()
            || matches!(slot.role, Role::Probe { .. } | Role::Own(Own::Seal(_)))
        {
            // It is put there once more, and means what it did; or it is the gateway's own.
            return self.note_again(request);
        }
        let lane = &self.lanes[index];
        let (backend, client) = (lane.backend, slot.client);
        let is_single = matches!(slot.role, Role::Single);
        let mut text = std::mem::take(&mut self.caches.text);
        text.clear();
        let start = lane.output.len() - wire_len;
        lane.output.copy_range(start as usize, wire_len.min(LOOKED_AT_MAX) as usize, &mut text);
        match self.what_is_written(index, &text) {
            Some(written) => {
                written.count(&self.caches.generations);
                let mark = self.caches.add_mark(Mark::Written(written));
                self.requests[request].cache_mark = mark;
            }
            None if is_single
                && client != ClientId::NONE
                && self.is_wanted_to_keep(client)
                && wire_len <= LOOKED_AT_MAX =>
            {
                self.begin_fill(index, request, backend, &text);
            }
            None => {}
        }
        self.caches.text = text;
    }

    /// What was put into a lane before is so again.
    fn note_again(&mut self, request: RequestId) {
        if let Mark::Written(written) = self.caches.mark(self.requests[request].cache_mark) {
            written.count(&self.caches.generations);
        }
    }

    fn what_is_written(&mut self, index: LaneId, text: &[u8]) -> Option<Written> {
        let Lane { backend, is_session, .. } = self.lanes[index];
        if self.backends[backend].protocol == Protocol::Memcached {
            return match key_written(text) {
                KeyWritten::Nothing => None,
                KeyWritten::Key(key) => Some(Written::One(KeyWord::of(key))),
                KeyWritten::Any => Some(Written::All),
            };
        }
        let Caches { parser, keys, transactions, .. } = &mut self.caches;
        keys.clear();
        let written = match writes(parser, text, keys) {
            Writes::Nothing => return None,
            Writes::Any => Written::All,
            Writes::Keys => match keys[..] {
                [key] => Written::One(KeyWord::of(key.of(text))),
                _ => Written::Many(keys.iter().map(|key| KeyWord::of(key.of(text))).collect()),
            },
            Writes::Multi => {
                transactions.insert(index, Written::Many(Vec::new()));
                return None;
            }
            Writes::Discard => {
                transactions.remove(&index);
                return None;
            }
            // Where it began has been lost, it is none.
            Writes::Exec => return transactions.remove(&index),
        };
        if is_session && let Some(transaction) = transactions.get_mut(&index) {
            transaction.add(&written);
        }
        Some(written)
    }

    /// The read that a client has asked goes to a server: its reply is to be kept.
    fn begin_fill(&mut self, index: LaneId, request: RequestId, backend: BackendId, text: &[u8]) {
        let Some(wanted) = self.caches.wanted.take() else { return };
        let Wanted { store: number, word, is_fill, .. } = wanted;
        if !is_fill {
            self.requests[request].cache_mark = self.caches.add_mark(Mark::AtOwner(word));
            return;
        }
        let is_redis = self.backends[backend].protocol == Protocol::Redis;
        let key = match is_redis {
            true => self.caches.parser.args().get(1).map(|key| key.of(text)),
            false => text.strip_prefix(b"get ").and_then(|rest| rest.strip_suffix(b"\r\n")),
        };
        let Some(key) = key.filter(|&key| KeyWord::of(key) == word) else { return };
        let lane = &self.lanes[index];
        let (conn, server) = (lane.conn, lane.server);
        let is_primary = self.backends[backend].topology.primary_of(server) == server;
        let epoch = match is_redis {
            true => self.tracker(backend, server).filter(|it| it.is_up()).map(|it| it.epoch()),
            false => Some(0),
        };
        let untold = self.caches.untold.get(&(backend, server)).copied();
        let untold = untold.filter(|it| !is_redis && self.now < it.until);
        let may_fill = is_primary && untold.is_none_or(|it| it.is_kept);
        let (Some(epoch), Some(stamp), true) =
            (epoch, self.caches.generations.stamp(word), may_fill)
        else {
            return;
        };
        let origin = Origin { backend, server, conn, epoch, at: self.now, word, stamp };
        let round = self.caches.round;
        let Some(StoreOf { store, .. }) = self.caches.stores.get_mut(number as usize) else {
            return;
        };
        let (ticket, asks_life) = (store.begin(key, origin), untold.is_none());
        let fill = Fill { round, store: number, ticket, asks_life };
        let mark = self.caches.add_mark(Mark::Fill(fill));
        self.requests[request].cache_mark = mark;
        match is_redis {
            true => self.ask_for_life(index, fill, key),
            false if asks_life => self.ask_memcached(index, Mark::Life(fill), key),
            false => {}
        }
        self.recharge_caches();
    }

    /// How long a key lives is asked behind the read of it.
    fn ask_for_life(&mut self, index: LaneId, fill: Fill, key: &[u8]) {
        let backend = self.lanes[index].backend;
        let (request, slot) = self.requests.add(backend, ClientId::NONE, self.now);
        slot.role = Role::Own(Own::Whatever);
        let question = self.written(key.len() + 32, |out| {
            encode::write_command(out, &[b"PTTL", key]);
        });
        self.requests[request].cache_mark = self.caches.add_mark(Mark::Life(fill));
        self.send(index, request, Payload::Owned(question));
    }

    /// The same of memcached, by one of its two questions.
    fn ask_memcached(&mut self, index: LaneId, mark: Mark, key: &[u8]) {
        let backend = self.lanes[index].backend;
        let (question, expect) = match mark {
            Mark::LifeByMg(_) => (ask_mg(key), Expect::Meta),
            _ => (ask_me(key), Expect::Answer(Answer::MetaDebug)),
        };
        let mark = self.caches.add_mark(mark);
        let (request, slot) = self.requests.add(backend, ClientId::NONE, self.now);
        (slot.role, slot.expect, slot.cache_mark) = (Role::Own(Own::Whatever), expect, mark);
        self.send(index, request, Payload::Bytes(&question));
    }

    /// The whole reply to a request is here, of which these are the last bytes, and nobody has been told yet.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle_cache_mark(&mut self, index: LaneId, request: RequestId, end: &[u8]) {
        let slot = &mut self.requests[request];
        let number = std::mem::take(&mut slot.cache_mark);
        let mark = self.caches.take_mark(number);
        match mark {
            Mark::Nothing | Mark::AtOwner(_) => {}
            Mark::CopyGone(place) => self.copy_gone(place, end),
            Mark::CopyRead(read) => self.copy_read(&read, request, end),
            Mark::CopyWritten(copy) => self.copy_written(&copy, end),
            Mark::Written(written) => written.count(&self.caches.generations),
            Mark::Fill(fill) => {
                let slot = &self.requests[request];
                let is_kept = !slot.streaming && slot.arrived == slot.reply.len() as u64;
                match (is_kept, slot.reply.is_empty()) {
                    (false, _) => self.abandon_fill(fill),
                    (true, true) => self.fill(index, fill, end),
                    (true, false) => {
                        let whole = [&slot.reply, end].concat();
                        self.fill(index, fill, &whole);
                    }
                }
            }
            Mark::Life(fill) | Mark::LifeByMg(fill)
                if self.backends[self.lanes[index].backend].protocol == Protocol::Memcached =>
            {
                let slot = &self.requests[request];
                let reply = [&slot.reply, end].concat();
                match mark {
                    Mark::LifeByMg(_) => self.fill_lives_of_memcached(index, fill, by_mg(&reply)),
                    _ => self.fill_lives_of_memcached(index, fill, by_me(&reply)),
                }
            }
            Mark::Life(fill) | Mark::LifeByMg(fill) => self.fill_lives(index, fill, end),
        }
    }

    /// A request with a mark gets no reply.
    #[cold]
    #[inline(never)]
    pub(crate) fn drop_cache_mark(&mut self, request: RequestId) {
        let number = std::mem::take(&mut self.requests[request].cache_mark);
        match self.caches.take_mark(number) {
            Mark::Nothing | Mark::AtOwner(_) | Mark::CopyGone(_) => {}
            Mark::CopyRead(read) => self.lose_copy(&read.copy),
            Mark::CopyWritten(copy) => self.copy_unwritten(&copy),
            // It may have run.
            Mark::Written(written) => written.count(&self.caches.generations),
            Mark::Fill(fill) => self.abandon_fill(fill),
            Mark::Life(fill) | Mark::LifeByMg(fill) => {
                self.note_unanswered(fill);
                self.abandon_fill(fill);
            }
        }
    }

    /// Nobody has answered how long a key lives. What does not know the question may have hung up, and would again.
    fn note_unanswered(&mut self, fill: Fill) {
        let Some(origin) = self.caches.store(fill).and_then(|it| it.store.origin(fill.ticket))
        else {
            return;
        };
        if self.backends[origin.backend].protocol == Protocol::Memcached {
            let untold = Untold { until: self.now.plus_millis(UNASKED_FOR_MS), is_kept: false };
            self.caches.untold.insert((origin.backend, origin.server), untold);
        }
    }

    fn abandon_fill(&mut self, fill: Fill) {
        if let Some(StoreOf { store, .. }) = self.caches.store(fill) {
            store.abandon(fill.ticket);
            self.recharge_caches();
        }
    }

    /// Whether a fill was answered on the connection where it was asked for, and nothing has changed since.
    fn is_fill_good(&mut self, index: LaneId, fill: Fill) -> bool {
        let conn = self.lanes[index].conn;
        let origin = self.caches.store(fill).and_then(|it| it.store.origin(fill.ticket));
        let Some(Origin { backend, server, epoch, word, stamp, conn: asked, .. }) = origin else {
            return false;
        };
        let is_redis = self.backends[backend].protocol == Protocol::Redis;
        let is_told = !is_redis
            || self.tracker(backend, server).is_some_and(|it| it.is_up() && it.epoch() == epoch);
        conn == asked && is_told && self.caches.generations.stamp(word) == Some(stamp)
    }

    /// Whether it may be kept that there is no such key: where slots move, all that may have it next tell of it.
    fn may_keep_absent(&self, backend: BackendId) -> bool {
        let topology = &self.backends[backend].topology;
        let is_told = |server| self.tracker(backend, server).is_some_and(Tracker::is_up);
        !topology.has_slots() || topology.primaries().all(is_told)
    }

    /// The reply to a read is here that is to be kept.
    fn fill(&mut self, index: LaneId, fill: Fill, reply: &[u8]) {
        let is_good = self.is_fill_good(index, fill);
        let backend = self.lanes[index].backend;
        let is_redis = self.backends[backend].protocol == Protocol::Redis;
        let may_keep_absent = self.may_keep_absent(backend);
        let kept = match is_redis {
            true => kept_of_redis(reply),
            false => kept_of_memcached(reply),
        };
        let Some(StoreOf { store, .. }) = self.caches.store(fill) else { return };
        let (value_max, negative_us) = (store.rules.value_max, store.rules.negative_us);
        match kept.filter(|_| is_good) {
            Some(Some(reply)) if reply.len() <= value_max => {
                store.set_reply(fill.ticket, Some(reply));
                match fill.asks_life {
                    true => self.recharge_caches(),
                    false => self.finish_fill(fill, None),
                }
            }
            Some(None) if negative_us > 0 && may_keep_absent => self.finish_fill(fill, None),
            _ => self.abandon_fill(fill),
        }
    }

    /// How long the key of a fill lives is known.
    fn fill_lives(&mut self, index: LaneId, fill: Fill, reply: &[u8]) {
        let place = (self.lanes[index].backend, self.lanes[index].server);
        match is_question_refused(reply) {
            true => self.note_needed(place, Needed::Life, Some(reply)),
            false if time_to_live(reply).is_some() => self.note_needed(place, Needed::Life, None),
            false => {}
        }
        let has_reply = self.caches.store(fill).is_some_and(|it| it.store.has_reply(fill.ticket));
        if !has_reply {
            // It was found that there is no such key, or it is not to be kept.
            return;
        }
        match time_to_live(reply).filter(|_| self.is_fill_good(index, fill)) {
            Some(left_ms) => {
                self.finish_fill(fill, left_ms.map(|ms| ms.saturating_mul(1000)));
                self.write_copies(index, fill);
            }
            None => self.abandon_fill(fill),
        }
    }

    fn fill_lives_of_memcached(&mut self, index: LaneId, fill: Fill, life: KeyLife) {
        let place = (self.lanes[index].backend, self.lanes[index].server);
        if life == KeyLife::NotTold {
            let untold = Untold { until: self.now.plus_millis(UNTOLD_FOR_MS), is_kept: true };
            self.caches.untold.insert(place, untold);
        }
        let key = self.caches.store(fill).and_then(|it| it.store.key_with_reply(fill.ticket));
        let Some(key) = key else { return };
        if !self.is_fill_good(index, fill) {
            return self.abandon_fill(fill);
        }
        match life {
            KeyLife::Left(left_us) => self.finish_fill(fill, left_us),
            KeyLife::NotTold => self.finish_fill(fill, None),
            KeyLife::AskMg => self.ask_memcached(index, Mark::LifeByMg(fill), &key),
            KeyLife::Gone => self.abandon_fill(fill),
        }
    }

    fn finish_fill(&mut self, fill: Fill, key_lives_us: Option<u64>) {
        let Some(StoreOf { store, listener, .. }) = self.caches.store(fill) else { return };
        let left = store.finish(fill.ticket, key_lives_us);
        let metrics = self.listeners[*listener].metrics;
        self.metrics.add_pool(metrics, PoolCounter::CacheFills, 1);
        self.metrics.add_pool(metrics, PoolCounter::CacheEvictions, left);
        self.recharge_caches();
    }
}

/// What a reply of Redis to GET has that may be kept: the reply, or that there is no such key.
fn kept_of_redis(reply: &[u8]) -> Option<Option<&[u8]>> {
    match resp::reply(reply)? {
        Reply::Bulk(_) => Some(Some(reply)),
        Reply::Nil => Some(None),
        _ => None,
    }
}

/// The same of memcached's `get`.
fn kept_of_memcached(reply: &[u8]) -> Option<Option<&[u8]>> {
    match reply {
        _ if reply == END => Some(None),
        _ if memcached::plain_reply(Expect::Values, reply)?.1.is_empty() => Some(Some(reply)),
        _ => None,
    }
}

/// What drops replies.
impl Engine {
    /// Something has changed at a server, by whomever.
    pub(crate) fn caches_hear(&mut self, place: (BackendId, ServerId), changed: Changed<'_>) {
        // Slots move: a key that was nowhere may come to be here, and a map tells only later.
        let has_slots = self.backends[place.0].topology.has_slots();
        for at in 0..self.caches.stores.len() {
            let StoreOf { store, listener, .. } = &mut self.caches.stores[at];
            let dropped = match changed {
                // Also what another server of the backend has answered, which had the key's slot.
                Changed::Key(key) => u64::from(store.drop_key(place.0, key)),
                Changed::Everything => {
                    let absent = if has_slots { store.drop_absent(place.0) } else { 0 };
                    absent + store.drop_where(|it| (it.backend, it.server) == place)
                }
            };
            if dropped > 0 {
                let metrics = self.listeners[*listener].metrics;
                self.metrics.add_pool(metrics, PoolCounter::CacheInvalidations, dropped);
                self.recharge_caches();
            }
        }
    }

    /// Keys of a backend may be elsewhere from here on.
    pub(crate) fn forget_kept(&mut self, backend: BackendId) {
        if !self.backends[backend].is_cached {
            return;
        }
        for StoreOf { store, listener, .. } in &mut self.caches.stores {
            let dropped = store.drop_where(|it| it.backend == backend);
            let metrics = self.listeners[*listener].metrics;
            self.metrics.add_pool(metrics, PoolCounter::CacheInvalidations, dropped);
        }
        self.recharge_caches();
        self.maintain_trackers();
    }

    /// Memory is short: what is kept is what is needed least. Returns whether there was anything.
    pub(crate) fn drop_kept(&mut self) -> bool {
        let mut is_any = false;
        for StoreOf { store, listener, .. } in &mut self.caches.stores {
            let dropped = store.drop_where(|_| true);
            is_any |= dropped > 0;
            let metrics = self.listeners[*listener].metrics;
            self.metrics.add_pool(metrics, PoolCounter::CacheEvictions, dropped);
        }
        if is_any {
            self.recharge_caches();
        }
        is_any
    }

    /// Drops what has lived its time, and brings the statistics up to date. To be called once a second.
    pub(crate) fn maintain_caches(&mut self) {
        if self.caches.stores.is_empty() {
            return;
        }
        if self.caches.acts.version() != self.caches.acts_version {
            self.take_hot_acts();
            self.track_kept();
        }
        let now = self.now;
        self.caches.stores.iter_mut().for_each(|it| it.store.sweep(now));
        self.unlink_copies();
        self.recharge_caches();
        self.publish_caches();
    }

    fn publish_caches(&self) {
        let mut sums: HashMap<ListenerId, [u64; 3]> = HashMap::new();
        let mut backends: HashMap<ListenerId, HashSet<BackendId>> = HashMap::new();
        for StoreOf { store, listener, tree } in &self.caches.stores {
            backends.entry(*listener).or_default().extend(tree.backends());
            let [entries, bytes, bound] = sums.entry(*listener).or_default();
            *entries += store.entries();
            *bytes += store.size() as u64;
            *bound = (*bound).max(store.rules.ttl_us / 1000);
        }
        for (listener, [entries, bytes, bound]) in sums {
            let metrics = self.listeners[listener].metrics;
            self.metrics.set_pool(metrics, PoolGauge::CacheEntries, entries);
            self.metrics.set_pool(metrics, PoolGauge::CacheBytes, bytes);
            self.metrics.set_pool(metrics, PoolGauge::CacheBoundMs, bound);
            let backends = backends[&listener].iter();
            let refused = backends.map(|&it| self.refusing_to_be_kept(it)).sum();
            self.metrics.set_pool(metrics, PoolGauge::CacheRefused, refused);
        }
    }

    pub(crate) fn recharge_caches(&mut self) {
        if self.caches.stores.iter().any(|it| it.store.has_dropped()) {
            self.collect_dropped();
        }
        let size = self.caches.size();
        match size.checked_sub(self.caches.charged) {
            Some(more) => self.bufs.charge(more),
            None => {
                let less = self.caches.charged - size;
                self.bufs.discharge(less);
                self.bufs.note_released(less);
            }
        }
        self.caches.charged = size;
    }

    /// Makes the stores of all nodes anew, which have nothing then.
    pub(crate) fn lay_caches(&mut self) {
        let caches = &mut self.caches;
        for StoreOf { store, .. } in &mut caches.stores {
            _ = store.drop_where(|_| true);
        }
        self.collect_dropped();
        let caches = &mut self.caches;
        caches.round = caches.round.wrapping_add(1);
        caches.wanted = None;
        caches.untold.clear();
        caches.splitting.forget_refusals();
        caches.stores.clear();
        let mut cached: HashSet<BackendId> = HashSet::new();
        for listener in self.listeners.ids() {
            let routes = self.listeners[listener].destinations();
            let routes: Vec<Arc<Tree>> = routes.filter_map(|it| it.route.clone()).collect();
            for tree in routes.iter().filter(|tree| tree.has_caches()) {
                let workers = u64::from(self.workers.max(1));
                let first = self.caches.stores.len() as u32;
                for mut rules in tree.number_caches(first) {
                    rules.bytes /= workers;
                    cached.extend(tree.backends());
                    let (store, tree) = (Store::new(rules), Arc::clone(tree));
                    self.caches.stores.push(StoreOf { store, listener, tree });
                }
            }
        }
        let mut is_other = false;
        for backend in self.backends.ids() {
            // Where only hot keys are kept, too, while there are none: a write that is on its way when there is one has
            // to be known.
            let is_cached = cached.contains(&backend);
            is_other |= is_cached != self.backends[backend].is_cached;
            self.backends[backend].is_cached = is_cached;
        }
        self.take_hot_acts();
        self.track_kept();
        if is_other {
            self.listeners.ids().for_each(|listener| self.update_held(listener));
        }
        self.recharge_caches();
        self.publish_caches();
    }

    /// Other keys are hot.
    fn take_hot_acts(&mut self) {
        let caches = &mut self.caches;
        caches.acts_version = caches.acts.version();
        let acts = caches.acts.all();
        for StoreOf { store, listener, tree } in &mut caches.stores {
            if !store.rules.hot_only {
                continue;
            }
            let pools = || tree.backends().iter().map(|&it| &self.backends[it].config.name);
            let is_own = |act: &&HotAct| pools().any(|pool| act.is_of_pool(pool));
            let own = acts.iter().filter(|act| act.deed.is_of_caches()).filter(is_own);
            let dropped = store.set_hot(own.cloned().collect());
            let metrics = self.listeners[*listener].metrics;
            self.metrics.add_pool(metrics, PoolCounter::CacheEvictions, dropped);
            caches.splitting.is_any |= store.splits();
        }
        self.recharge_caches();
    }

    /// Has servers tell of the keys whose replies are kept.
    fn track_kept(&mut self) {
        let mut tracked: HashMap<BackendId, TrackedKeys> = HashMap::new();
        for StoreOf { store, tree, .. } in &self.caches.stores {
            let starts = store.starts();
            if starts.is_empty() {
                continue;
            }
            let keys = TrackedKeys::new(starts);
            for &backend in tree.backends() {
                let all = tracked.entry(backend).or_insert_with(|| keys.clone());
                *all = all.with(&keys);
            }
        }
        for backend in self.backends.ids() {
            let keys = tracked.remove(&backend);
            let keys = keys.filter(|_| self.backends[backend].protocol == Protocol::Redis);
            if keys.is_some() || self.backends[backend].tracked.is_some() {
                self.track(backend, keys);
            }
        }
    }
}
