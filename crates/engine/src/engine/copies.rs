//! Hot keys that are split: reads of them go to copies on other servers as well.
//!
//! When a reply is ready that a node `cache` would keep ([`crate::engine::cache`]), the store keeps none, but names of
//! *copies*: the gateway writes the value to other servers, under names that nobody has had before
//! ([`crate::route::copies`]). A read of the key is then sent to the key's own server by its own name, or to one of the
//! copies by that one's name, at random. Who finds no copy, or gets no answer, asks the key's own server.
//!
//! # What holds
//!
//! - **A name is of one fill only, and what is there never changes. So what is read there is what the key had when that
//!   fill was asked for. And a read is sent there only while the entry is current**: exactly as long as a node `cache` would
//!   answer from here. So what holds for replies that are kept holds for copies, whatever becomes of them: a copy that is
//!   late, evicted, flushed or on a replica that is behind is missing, and never wrong.
//! - A copy is read from when its server has said that it has it. So of two reads by one name it is not the later one that
//!   finds it.
//! - A client's own order holds. A read that has found no copy is sent to the key's own server, later than what its client
//!   has asked since. So what may change the key, and what reads it in another way, waits until the client has no read of a
//!   copy under way. What it has under way of one key it reads in one place, as two could be of different times. Until a
//!   write is acknowledged, or its server has told of another's, a client may read the old value in a copy after it has
//!   read the new one at the key's own server, which has it earlier.
//! - Copies are removed when their entry is dropped, as well as that can be done, and expire with it in any case.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cashew_config::snapshot::Protocol;
use cashew_metrics::{KeyWord, PoolCounter};
use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{Access, Command, Rule};
use cashew_protocol::resp::encode;

use crate::base::action::Action;
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, ClientId, ConnId, LaneId, RequestId, ServerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::engine::cache::{Caches, Fill, Mark, StoreOf, Wanted};
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::request::{Own, Role};
use crate::route::cache::{Found, Ticket};
use crate::route::copies::{Copies, Copy, Names, State, Unwritten, is_value, value_of, whole_len};
use crate::topology::route_tree::Tree;
use crate::upstream::bulk::{self, BULK_SIZE};
use crate::upstream::lane::Link;

/// So many names are tried to find servers that have no copy yet.
const NAMES_MAX: u8 = 64;
/// So many requests of a client are looked at: no copy is read behind more.
const PIPELINE_MAX: usize = 64;
/// A server that has refused a copy, or to remove one, gets none for so long.
const REFUSED_FOR_MS: u64 = 60_000;
/// Of a server's error so much is shown.
const ERROR_SHOWN_MAX: usize = 200;
/// What a server says that takes no copy now, and will.
const FOR_NOW: [&[u8]; 8] = [
    b"-MOVED",
    b"-ASK",
    b"-TRYAGAIN",
    b"-CLUSTERDOWN",
    b"-LOADING",
    b"-BUSY",
    b"-READONLY",
    b"-MASTERDOWN",
];

/// What a worker knows of keys that are split, besides its stores.
#[derive(Default)]
pub(crate) struct Splitting {
    /// Some key is, or was.
    pub(crate) is_any: bool,
    names: Names,
    /// Copies that are to go.
    gone: Vec<Gone>,
    /// Servers that have refused something, and until when they get no copies.
    refusing: HashMap<(BackendId, ServerId), Time>,
    /// Those of which it was told.
    told: HashSet<(BackendId, ServerId)>,
}

impl Splitting {
    /// Whether a server gets no copies for now.
    fn refuses(&self, place: (BackendId, ServerId), now: Time) -> bool {
        self.refusing.get(&place).is_some_and(|&until| now < until)
    }

    pub(crate) fn forget_refusals(&mut self) {
        self.refusing.clear();
        self.told.clear();
    }
}

struct Gone {
    place: (BackendId, ServerId),
    name: Vec<u8>,
}

/// A copy of a fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyOf {
    entry: Fill,
    place: (BackendId, ServerId),
    /// Of its name.
    fill: u64,
    number: u8,
}

/// A read of a copy.
#[derive(Debug)]
pub(crate) struct CopyRead {
    pub(crate) copy: CopyOf,
    key: Arc<[u8]>,
    word: KeyWord,
}

/// Where a client's requests are that read a key, and are not answered.
enum Before {
    Nothing,
    /// The key's own server.
    Owner,
    /// A copy: of which fill, and which one.
    Copy(u64, u8),
    /// Several places.
    Several,
}

impl Caches {
    /// `noise` is all that makes names differ from those that others give.
    pub(crate) fn name_copies(&mut self, noise: [u64; 2]) {
        self.splitting.names = Names::new(noise);
    }

    fn copies(&mut self, entry: Fill) -> Option<&mut Copies> {
        self.store(entry)?.store.copies(entry.ticket)
    }
}

/// Reads.
impl Engine {
    /// A client reads a key that may be split. Returns what becomes of it if it goes to a copy, or has to wait.
    #[cold]
    pub(crate) fn read_split(&mut self, client: ClientId, tree: &Tree, key: &[u8]) -> Option<Plan> {
        let number = tree.cache_of(key)?;
        let store = &self.caches.stores.get(number as usize)?.store;
        store.split_of(key)?;
        let word = KeyWord::of(key);
        let before = self.reads_before(client, word);
        let entry = self.find_copies(number, key, word);
        if let Before::Owner = before {
            self.note_at_owner(client, number, word);
            return None;
        }
        let forced = match before {
            Before::Several => return Some(Plan::Wait),
            Before::Copy(fill, number) => Some((fill, number)),
            Before::Nothing | Before::Owner => None,
        };
        let may_read = self.may_read_kept(client) && self.clients[client].modes.tracking.is_none();
        let Some(entry) = entry.filter(|_| may_read) else {
            return forced.map(|_| Plan::Wait);
        };
        let copy = match forced {
            None => self.choose_copy(entry),
            Some((fill, number)) => {
                let copies = self.caches.copies(entry).filter(|it| it.fill == fill);
                let Some(copy) = copies.and_then(|it| it.readable(number)) else {
                    return Some(Plan::Wait);
                };
                Some(copy)
            }
        };
        let plan = copy.and_then(|copy| self.read_copy(client, entry, copy));
        match plan {
            None if forced.is_some() => Some(Plan::Wait),
            None => {
                self.note_at_owner(client, number, word);
                None
            }
            plan => plan,
        }
    }

    /// What the client asks next goes to the key's own server.
    fn note_at_owner(&mut self, client: ClientId, store: u32, word: KeyWord) {
        self.caches.wanted = Some(Wanted { client, store, word, is_fill: false });
    }

    /// The entry of a key that has copies, if it is current.
    fn find_copies(&mut self, number: u32, key: &[u8], word: KeyWord) -> Option<Fill> {
        let stamp = self.caches.generations.stamp(word)?;
        let round = self.caches.round;
        let StoreOf { store, listener, .. } = self.caches.stores.get_mut(number as usize)?;
        let before = store.size();
        let found = match store.find(key, stamp, self.now) {
            Found::Copies(ticket) => Some(ticket),
            Found::Stale => {
                let metrics = self.listeners[*listener].metrics;
                self.metrics.add_pool(metrics, PoolCounter::CacheWritten, 1);
                None
            }
            Found::Reply(_) | Found::NoKey | Found::Nothing => None,
        };
        if store.size() != before {
            self.recharge_caches();
        }
        let entry = |ticket: Ticket| Fill { round, store: number, ticket, asks_life: false };
        found.map(entry)
    }

    /// One of the places that have a value: a copy, or none, which is the key's own server.
    fn choose_copy(&mut self, entry: Fill) -> Option<Copy> {
        let random = self.rng.next() as usize;
        let copies = self.caches.copies(entry)?;
        let places = 1 + copies.there().count();
        copies.there().nth((random % places).checked_sub(1)?).copied()
    }

    /// Sends a read to a copy, if that can be.
    fn read_copy(&mut self, client: ClientId, entry: Fill, copy: Copy) -> Option<Plan> {
        let (key, origin) = self.caches.store(entry)?.store.entry(entry.ticket)?;
        let (key, backend) = (Arc::clone(key), origin.backend);
        let copies = self.caches.copies(entry)?;
        let (fill, reply_len) = (copies.fill, copies.reply_len);
        self.stand_at(client, backend).ok()?;
        let name = self.caches.splitting.names.name(fill, copy.number);
        let is_large = reply_len >= BULK_SIZE || self.clients[client].window == 0;
        let size = if is_large { BULK_SIZE } else { name.len() + 32 };
        let lane = self.lane_for(client, copy.server, size).ok()?;
        if !matches!(self.lanes[lane].link, Link::Ready { .. }) {
            // It is being connected: the key's own server need not be waited for.
            return None;
        }
        let plan = match is_large {
            true => self.forward_large(client, copy.server, Access::Read, Expect::Line, size),
            false => self.forward_on(client, lane, Expect::Line),
        };
        let Plan::Forward { lane, request } = plan else { return Some(plan) };
        if let Some(copies) = self.caches.copies(entry) {
            copies.reads += 1;
        }
        let place = (backend, copy.server);
        let copy = CopyOf { entry, place, fill, number: copy.number };
        let conn = self.lanes[lane].conn;
        let reading = CopyRead { copy, key: Arc::clone(&key), word: KeyWord::of(&key) };
        self.requests[request].cache_mark = self.caches.add_mark(Mark::CopyRead(reading));
        self.watch_reply(request, Box::new(Reading { key, copy, lane, conn }), None);
        let text = self.written(name.len() + 32, |out| {
            encode::write_command(out, &[b"GET", &name]);
        });
        self.send(lane, request, Payload::Owned(text));
        Some(Plan::Done)
    }

    /// Where the requests of a client are that read this key as one that is split, and are not answered.
    fn reads_before(&self, client: ClientId, word: KeyWord) -> Before {
        let mut before = Before::Nothing;
        self.for_unanswered(client, |mark| {
            let here = match mark {
                Mark::CopyRead(read) if read.word == word => {
                    Before::Copy(read.copy.fill, read.copy.number)
                }
                Mark::AtOwner(its) if *its == word => Before::Owner,
                _ => return,
            };
            before = match (&before, here) {
                (Before::Nothing, here) => here,
                (Before::Owner, Before::Owner) => Before::Owner,
                (&Before::Copy(fill, number), Before::Copy(other, its))
                    if (fill, number) == (other, its) =>
                {
                    Before::Copy(fill, number)
                }
                _ => Before::Several,
            };
        });
        before
    }

    fn for_unanswered(&self, client: ClientId, mut look: impl FnMut(&Mark)) {
        let mut at = self.clients[client].head;
        for _ in 0..PIPELINE_MAX {
            if at == RequestId::NONE {
                return;
            }
            let request = &self.requests[at];
            if !request.done && request.cache_mark.is_some() {
                look(self.caches.mark(request.cache_mark));
            }
            at = request.next_in_client;
        }
    }

    /// Whether what a client asks has to wait for its reads of copies: these may still be sent to the key's own server,
    /// behind it.
    pub(crate) fn waits_for_copies(
        &mut self,
        client: ClientId,
        command: &Command,
        (bytes, keys): (&[u8], &[Span]),
    ) -> bool {
        self.caches.splitting.is_any && self.is_behind_copies(client, command, (bytes, keys))
    }

    #[cold]
    fn is_behind_copies(
        &mut self,
        client: ClientId,
        command: &Command,
        (bytes, keys): (&[u8], &[Span]),
    ) -> bool {
        let mut words: Vec<KeyWord> = Vec::new();
        self.for_unanswered(client, |mark| {
            if let Mark::CopyRead(read) = mark {
                words.push(read.word);
            }
        });
        // Where these are read again is decided by itself.
        if words.is_empty() || command.name == "get" || matches!(command.rule, Rule::Local(_)) {
            return false;
        }
        match keys.is_empty() {
            true => !command.access.reads(),
            false => keys.iter().any(|key| words.contains(&KeyWord::of(key.of(bytes)))),
        }
    }

    /// The key for which a request asks a copy.
    pub(crate) fn key_of_copy(&self, request: RequestId) -> Option<Arc<[u8]>> {
        match self.caches.mark(self.requests[request].cache_mark) {
            Mark::CopyRead(read) => Some(Arc::clone(&read.key)),
            _ => None,
        }
    }

    /// The whole reply of a copy is here, of which `end` are the last bytes.
    pub(crate) fn copy_read(&mut self, read: &CopyRead, request: RequestId, end: &[u8]) {
        let slot = &self.requests[request];
        if slot.client == ClientId::NONE {
            // Of what nobody waits for the start may not be here.
            return;
        }
        let start = [&slot.reply[..slot.reply.len().min(2)], &end[..end.len().min(2)]].concat();
        if slot.streaming || is_value(&start) {
            self.count_copies(read.copy.entry, PoolCounter::CopyReads);
            return;
        }
        let whole = [&slot.reply, end].concat();
        if whole.starts_with(b"-NOPERM") {
            self.count_copies(read.copy.entry, PoolCounter::CopiesRefused);
            self.note_copy_refused(read.copy.place, &whole);
        }
        self.lose_copy(&read.copy);
    }

    /// A copy was not there, or its server did not answer. It is not read any more.
    pub(crate) fn lose_copy(&mut self, copy: &CopyOf) {
        self.count_copies(copy.entry, PoolCounter::CopiesMissing);
        self.set_copy(copy, State::Lost);
    }

    fn set_copy(&mut self, copy: &CopyOf, state: State) -> bool {
        let copies = self.caches.copies(copy.entry).filter(|it| it.fill == copy.fill);
        let is_there = copies.is_some();
        if let Some(copies) = copies {
            copies.set_state(copy.number, state);
        }
        is_there
    }

    /// Counts for the route that an entry is of, if it is there still.
    fn count_copies(&mut self, entry: Fill, counter: PoolCounter) {
        let Some(StoreOf { listener, .. }) = self.caches.store(entry) else { return };
        let metrics = self.listeners[*listener].metrics;
        self.metrics.add_pool(metrics, counter, 1);
    }
}

/// A read that has gone to a copy of this key.
#[derive(Debug)]
struct Reading {
    key: Arc<[u8]>,
    copy: CopyOf,
    /// Where it was sent. If it had to wait for another connection its client's reads before it may have got no answer from
    /// the copy, and a newer one from the key's own server.
    lane: LaneId,
    conn: ConnId,
}

impl Reading {
    fn is_answered_by(&self, engine: &Engine, start: &[u8]) -> bool {
        is_value(start) && engine.lanes.get(self.lane).is_some_and(|lane| lane.conn == self.conn)
    }
}

impl Flow for Reading {
    fn on_start(&mut self, cx: &mut FlowContext<'_>, start: &[u8]) -> bool {
        !self.is_answered_by(cx.engine, start)
    }

    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        match cx.client() == ClientId::NONE || self.is_answered_by(cx.engine, reply) {
            true => Step::Answer,
            false => self.ask_owner(cx),
        }
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        _attempt: RequestId,
        why: NamedFailure,
    ) -> Step {
        if cx.client() == ClientId::NONE {
            return Step::Fail(why);
        }
        // The connection that is being given up may be the one to the key's own server, whose slot has moved there: nothing
        // is sent on it before that is over. Until then it is a read of a copy still, which nothing of its client overtakes.
        let Self { key, copy, .. } = self;
        let reading = CopyRead { copy: *copy, key: Arc::clone(key), word: KeyWord::of(key) };
        let mark = cx.engine.caches.add_mark(Mark::CopyRead(reading));
        cx.engine.requests[cx.request].cache_mark = mark;
        let now = cx.engine.now;
        cx.engine.wake_flow(cx.request, now);
        Step::Wait
    }

    fn on_timeout(&mut self, cx: &mut FlowContext<'_>) -> Step {
        let mark = std::mem::take(&mut cx.engine.requests[cx.request].cache_mark);
        _ = cx.engine.caches.take_mark(mark);
        self.ask_owner(cx)
    }
}

impl Reading {
    fn ask_owner(&self, cx: &mut FlowContext<'_>) -> Step {
        let (key, client, backend, request) = (&*self.key, cx.client(), cx.backend(), cx.request);
        let engine = &mut *cx.engine;
        let Some(server) = engine.server_for(client, backend, key, Access::Read) else {
            let has_slots = engine.backends[backend].topology.has_slots();
            let why = if has_slots { Failure::ClusterDown } else { Failure::NoServer };
            return Step::Fail(why.into());
        };
        let size = key.len() + 32;
        let lane = match engine.backend_of(client) == backend {
            true => engine.lane_for(client, server, size),
            false => engine.lane_at_other(client, (backend, server), size),
        };
        let lane: LaneId = match lane {
            Ok(lane) => lane,
            Err(why) => return Step::Fail(engine.backends[backend].named(server, why)),
        };
        let mark = engine.caches.add_mark(Mark::AtOwner(KeyWord::of(key)));
        let slot = &mut engine.requests[request];
        (slot.cache_mark, slot.mark) = (mark, bulk::Mark::of(key));
        engine.note_access(backend, request, Access::Read);
        let text = engine.written(size, |out| encode::write_command(out, &[b"GET", key]));
        Step::Again(lane, text)
    }
}

/// Copies come and go.
impl Engine {
    /// Whether a reply of which these bytes have come is to be kept until it is whole, though it is large: copies are to be
    /// made of it.
    #[cold]
    pub(crate) fn keeps_whole(&mut self, request: RequestId, bytes: &[u8]) -> bool {
        let slot = &self.requests[request];
        let &Mark::Fill(fill) = self.caches.mark(slot.cache_mark) else { return false };
        let start = if slot.reply.is_empty() { bytes } else { &slot.reply };
        let (Some(len), client) = (whole_len(start), slot.client) else { return false };
        let owner = &self.clients[client];
        let most = self.listeners[owner.listener].limits.client_output_max / 2;
        if owner.output.len() + owner.held + len as u64 > most {
            return false;
        }
        self.caches.store(fill).is_some_and(|StoreOf { store, .. }| {
            let key = store.entry(fill.ticket).map(|(key, _)| Arc::clone(key));
            key.is_some_and(|key| store.split_of(&key).is_some()) && store.has_room_for(len)
        })
    }

    /// A fill is ready, whose reply has come on this lane. If its key is split its copies are written.
    pub(crate) fn write_copies(&mut self, index: LaneId, entry: Fill) {
        if !self.caches.splitting.is_any {
            return;
        }
        let unwritten =
            self.caches.store(entry).and_then(|it| it.store.take_unwritten(entry.ticket));
        let Some(Unwritten { reply, origin, expires, copies: most }) = unwritten else { return };
        self.recharge_caches();
        let (backend, variant) = (origin.backend, self.lanes[index].variant);
        let Some(value) = value_of(&reply).filter(|_| !self.backends[backend].is_held()) else {
            return;
        };
        let fill = self.caches.splitting.names.next_fill();
        let left_ms = expires.micros_since(self.now).div_ceil(1000).max(1).to_string();
        let mut all = Vec::new();
        for (server, number) in self.places_for_copies((backend, origin.server), fill, most) {
            let place = (backend, server);
            let Ok(lane) = self.lane_of(place, variant, 0, value.len() + 128) else { continue };
            let name = self.caches.splitting.names.name(fill, number);
            let text = self.written(value.len() + 128, |out| {
                let words: [&[u8]; 5] = [b"SET", &name, value, b"PX", left_ms.as_bytes()];
                encode::write_command(out, &words);
            });
            let copy = CopyOf { entry, place, fill, number };
            self.ask_by_itself(lane, Mark::CopyWritten(copy), text);
            all.push(Copy { server, number, state: State::Writing });
        }
        if let Some(copies) = self.caches.copies(entry) {
            *copies = Copies { fill, reply_len: reply.len(), all, reads: 0 };
        }
    }

    /// Servers for copies, each with the number of a name that falls there: no two are the same, and none is the key's own.
    fn places_for_copies(
        &mut self,
        (backend, owner): (BackendId, ServerId),
        fill: u64,
        most: u8,
    ) -> Vec<(ServerId, u8)> {
        let mut places: Vec<(ServerId, u8)> = Vec::new();
        for number in 0..NAMES_MAX {
            if places.len() >= usize::from(most) {
                break;
            }
            let name = self.caches.splitting.names.name(fill, number);
            let Some(server) = self.route(backend, &name, Access::Write) else { continue };
            let is_refusing = self.caches.splitting.refuses((backend, server), self.now);
            if server != owner && !is_refusing && places.iter().all(|&(other, _)| other != server) {
                places.push((server, number));
            }
        }
        places
    }

    /// The gateway asks something for nobody.
    fn ask_by_itself(&mut self, lane: LaneId, mark: Mark, text: Vec<u8>) {
        let backend = self.lanes[lane].backend;
        let mark = self.caches.add_mark(mark);
        let (request, slot) = self.requests.add(backend, ClientId::NONE, self.now);
        (slot.role, slot.cache_mark) = (Role::Own(Own::Whatever), mark);
        self.send(lane, request, Payload::Owned(text));
    }

    /// A server has said whether it has a copy.
    pub(crate) fn copy_written(&mut self, copy: &CopyOf, reply: &[u8]) {
        if reply == b"+OK\r\n" {
            self.count_copies(copy.entry, PoolCounter::CopiesWritten);
            if !self.set_copy(copy, State::There) {
                // Its entry was dropped in the meantime.
                self.remove_copy(copy.place, copy.fill, copy.number);
            }
            return;
        }
        self.count_copies(copy.entry, PoolCounter::CopiesRefused);
        self.note_copy_refused(copy.place, reply);
        self.set_copy(copy, State::Lost);
    }

    /// A server has refused a copy, to remove it, or to tell what it is.
    fn note_copy_refused(&mut self, place: (BackendId, ServerId), reply: &[u8]) {
        if FOR_NOW.iter().any(|word| reply.starts_with(word)) {
            return;
        }
        let splitting = &mut self.caches.splitting;
        splitting.refusing.insert(place, self.now.plus_millis(REFUSED_FOR_MS));
        if splitting.told.insert(place) {
            let text = reply.strip_prefix(b"-").unwrap_or(reply).trim_ascii_end();
            let why = String::from_utf8_lossy(&text[..text.len().min(ERROR_SHOWN_MAX)]).into();
            let (backend, server) = place;
            self.actions.push_back(Action::CopyRefused { backend, server, why });
        }
    }

    /// A server has said whether it has removed a copy.
    pub(crate) fn copy_gone(&mut self, place: (BackendId, ServerId), reply: &[u8]) {
        if !reply.starts_with(b"-") {
            return;
        }
        // Of which route it was is not known any more; mostly there is one.
        let mut stores = self.caches.stores.iter();
        if let Some(of) = stores.find(|it| it.tree.backends().contains(&place.0)) {
            let metrics = self.listeners[of.listener].metrics;
            self.metrics.add_pool(metrics, PoolCounter::CopiesRefused, 1);
        }
        self.note_copy_refused(place, reply);
    }

    /// A server has not said whether it has a copy: it may have one.
    pub(crate) fn copy_unwritten(&mut self, copy: &CopyOf) {
        self.set_copy(copy, State::Lost);
        self.remove_copy(copy.place, copy.fill, copy.number);
    }

    /// Entries were dropped: so are their copies. Those that are on their way are when they have arrived.
    #[cold]
    pub(crate) fn collect_dropped(&mut self) {
        for at in 0..self.caches.stores.len() {
            for (origin, copies) in self.caches.stores[at].store.take_dropped() {
                for copy in copies.all.iter().filter(|it| it.state != State::Writing) {
                    self.remove_copy((origin.backend, copy.server), copies.fill, copy.number);
                }
            }
        }
    }

    fn remove_copy(&mut self, place: (BackendId, ServerId), fill: u64, number: u8) {
        let splitting = &mut self.caches.splitting;
        let name = splitting.names.name(fill, number);
        if splitting.gone.is_empty() {
            self.timers.arm(self.now, Timer::Copies);
        }
        splitting.gone.push(Gone { place, name });
    }

    /// Has servers remove copies that nobody reads any more. What they do not do now they do when these expire. Numbers
    /// may be other servers' after a reload: no name is anything else there.
    pub(crate) fn unlink_copies(&mut self) {
        for Gone { place: (backend, server), name } in
            std::mem::take(&mut self.caches.splitting.gone)
        {
            let is_there = self.backends.get(backend).is_some_and(|it| {
                let is_redis = it.protocol == Protocol::Redis;
                is_redis && it.is_in_use() && it.servers.get(server).is_some()
            });
            if !is_there {
                continue;
            }
            if self.backends[backend].is_held() {
                // Nothing new is sent until it is let go.
                let place = (backend, server);
                self.caches.splitting.gone.push(Gone { place, name });
                continue;
            }
            // In a cluster its slot may have moved.
            let server = match self.backends[backend].topology.has_slots() {
                true => self.route(backend, &name, Access::Write).unwrap_or(server),
                false => server,
            };
            let Ok(lane) = self.lane_of((backend, server), 0, 0, name.len() + 32) else { continue };
            let text = self.written(name.len() + 32, |out| {
                encode::write_command(out, &[b"UNLINK", &name]);
            });
            self.ask_by_itself(lane, Mark::CopyGone((backend, server)), text);
        }
    }
}
