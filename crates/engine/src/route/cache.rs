//! What a worker keeps of replies for a node `cache`: a bounded number of bytes, for hot keys.
//!
//! Here is only the store. When something may be kept, and what drops it, is in [`crate::engine::cache`].
//!
//! A key is admitted when it is missed for the second time in a while: what is read once takes no room. When there is
//! no room a hand goes round: what was hit since it passed last stays, the first that was not leaves.

use std::collections::HashMap;
use std::sync::Arc;

use cashew_metrics::{HotAct, HotDeed, KeyWord, Stamp};

use crate::base::id::{BackendId, ConnId, ServerId};
use crate::base::time::Time;
use crate::route::copies::{Copies, Unwritten};
use crate::topology::cache_rules::CacheRules;

/// What an entry takes besides its key and its reply, about: a slot, its place in the table, two allocations.
const ENTRY_SIZE: usize = 192;
/// How many keys are remembered at most that were missed once. The list takes four bytes for each.
const MISSED_MAX: usize = 1 << 14;
/// That list has no larger part of a store than this one.
const MISSED_PART: u64 = 16;
/// A key whose copies were not worth it is not split again so soon after its last fill.
const REST_US: u64 = 1_000_000;
/// Copies of which some are lost are made anew when they are so old.
const RENEW_US: u64 = 5_000_000;
/// Replies that are on their way, and those whose life is asked for, have no larger part than this one.
const FILLING_PART: u64 = 2;

/// A fill or an entry of a store, by which it is found again as long as it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    slot: u32,
    number: u32,
}

/// Where and when a reply was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) backend: BackendId,
    pub(crate) server: ServerId,
    /// The connection.
    pub(crate) conn: ConnId,
    /// Of the server's tracker then; 0 where there is none.
    pub(crate) epoch: u64,
    pub(crate) at: Time,
    pub(crate) word: KeyWord,
    pub(crate) stamp: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its reply is awaited, or how long it lives is.
    Filling,
    /// The same, but the key has changed meanwhile.
    Spoilt,
    Ready,
}

#[derive(Debug)]
struct Slot {
    key: Arc<[u8]>,
    number: u32,
    state: State,
    origin: Origin,
    expires: Time,
    /// As the server replied. `None` if there is no such key.
    reply: Option<Box<[u8]>>,
    /// Where else it is read, if the key is split; then there is no reply.
    copies: Option<Box<Copies>>,
    /// It was hit since the hand passed.
    was_hit: bool,
}

impl Slot {
    fn is_over(&self, now: Time) -> bool {
        let renews = self.copies.as_ref().is_some_and(|copies| copies.are_short());
        self.expires <= now || renews && self.origin.at.plus_micros(RENEW_US) <= now
    }

    /// It is known that there is no such key.
    fn holds_nothing(&self) -> bool {
        self.reply.is_none() && self.copies.is_none()
    }

    fn size(&self) -> usize {
        let reply = self.reply.as_ref().map_or(0, |reply| reply.len());
        // Its copies are counted with the entry.
        ENTRY_SIZE + 2 * self.key.len() + reply
    }
}

/// What is found in a store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'s> {
    Reply(&'s [u8]),
    /// There is no such key.
    NoKey,
    /// The key's own server has it, and so have these.
    Copies(Ticket),
    Nothing,
    /// It was there, and the key has been written since.
    Stale,
}

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) rules: CacheRules,
    /// Where only hot keys are kept: those.
    hot: Box<[HotAct]>,
    places: HashMap<Arc<[u8]>, u32>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// Numbers slots' contents.
    numbered: u32,
    hand: usize,
    /// Bytes of all slots, and of those that are not ready.
    size: usize,
    filling: usize,
    ready: u64,
    /// Replies that had to leave, and were not told of yet.
    left: u64,
    /// Copies of fills that are none any more, and where these came from.
    dropped: Vec<(Origin, Box<Copies>)>,
    /// Until when keys are not split again.
    resting: HashMap<Arc<[u8]>, Time>,
    /// By hash: that of a key that was missed.
    missed: Box<[u32]>,
}

impl Store {
    pub(crate) fn new(rules: CacheRules) -> Self {
        let missed = rules.bytes / MISSED_PART / size_of::<u32>() as u64;
        let missed = missed.clamp(1, MISSED_MAX as u64) as usize;
        Self {
            rules,
            hot: Box::default(),
            places: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            numbered: 0,
            hand: 0,
            size: 0,
            filling: 0,
            ready: 0,
            left: 0,
            dropped: Vec::new(),
            resting: HashMap::new(),
            missed: vec![0; missed].into(),
        }
    }

    /// Bytes that it takes, about.
    pub(crate) fn size(&self) -> usize {
        self.size + size_of_val(&*self.missed)
    }

    /// How many replies it has.
    pub(crate) fn entries(&self) -> u64 {
        self.ready
    }

    /// Whether replies to reads of a key may be kept.
    pub(crate) fn takes(&self, key: &[u8]) -> bool {
        if self.rules.hot_only && !self.hot.iter().any(|act| act.is_about(key)) {
            return false;
        }
        let prefixes = &self.rules.prefixes;
        prefixes.is_empty() || prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// How many copies a key may have besides itself, if it is split.
    pub(crate) fn split_of(&self, key: &[u8]) -> Option<u8> {
        if !self.rules.hot_only {
            return None;
        }
        match self.hot.iter().find(|act| act.is_about(key))?.deed {
            HotDeed::Split { copies } => Some(copies.saturating_sub(1)),
            HotDeed::Cache | HotDeed::Move => None,
        }
    }

    /// Whether any key is split.
    pub(crate) fn splits(&self) -> bool {
        self.hot.iter().any(|act| matches!(act.deed, HotDeed::Split { .. }))
    }

    /// Whether a key is to be left alone for a while, as its copies were not read as often as they took commands.
    pub(crate) fn rests(&self, key: &[u8], now: Time) -> bool {
        self.resting.get(key).is_some_and(|&until| now < until)
    }

    /// The copies of a fill, as long as it is current for all that is known here.
    pub(crate) fn copies(&mut self, ticket: Ticket) -> Option<&mut Copies> {
        let slot = self.slots.get_mut(ticket.slot as usize)?.as_mut()?;
        slot.copies.as_deref_mut().filter(|_| slot.number == ticket.number)
    }

    /// The key and the origin of an entry.
    pub(crate) fn entry(&self, ticket: Ticket) -> Option<(&Arc<[u8]>, Origin)> {
        let slot = self.slots.get(ticket.slot as usize)?.as_ref()?;
        (slot.number == ticket.number).then_some((&slot.key, slot.origin))
    }

    /// What is to be written of a fill that is ready, if its key is split. Its reply is not kept any more.
    pub(crate) fn take_unwritten(&mut self, ticket: Ticket) -> Option<Unwritten> {
        let slot = self.slots.get(ticket.slot as usize)?.as_ref()?;
        if slot.number != ticket.number || slot.state != State::Ready {
            return None;
        }
        let copies = self.split_of(&slot.key)?;
        let slot = self.slots[ticket.slot as usize].as_mut()?;
        let reply = slot.reply.take()?;
        slot.copies = Some(Box::default());
        self.size -= reply.len();
        Some(Unwritten { reply, origin: slot.origin, expires: slot.expires, copies })
    }

    pub(crate) fn has_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    /// Copies that nobody is to read any more.
    pub(crate) fn take_dropped(&mut self) -> Vec<(Origin, Box<Copies>)> {
        std::mem::take(&mut self.dropped)
    }

    /// Whether a reply of so many bytes may be kept whole until it is ready.
    pub(crate) fn has_room_for(&self, len: usize) -> bool {
        len <= self.rules.value_max && self.has_room_to_fill(len)
    }

    /// What keys begin with of which changes must be known. No prefix is no key; an empty one is all.
    pub(crate) fn starts(&self) -> Vec<&[u8]> {
        if self.rules.hot_only {
            return self.hot.iter().map(|act| &*act.key).collect();
        }
        match self.rules.prefixes.is_empty() {
            true => vec![&b""[..]],
            false => self.rules.prefixes.iter().map(|prefix| &**prefix).collect(),
        }
    }

    /// Keeps these keys only, from here on, where only hot ones are kept. Returns how many replies were dropped.
    pub(crate) fn set_hot(&mut self, hot: Vec<HotAct>) -> u64 {
        self.hot = hot.into();
        self.resting.clear();
        let before = self.ready;
        for place in 0..self.slots.len() {
            let Some(slot) = &self.slots[place] else { continue };
            let is_split = self.split_of(&slot.key).is_some();
            let is_as_it_was = match slot.state {
                // That there is no such key is known in either case.
                State::Ready => slot.copies.is_some() == is_split || slot.holds_nothing(),
                State::Filling | State::Spoilt => true,
            };
            if self.takes(&slot.key) && is_as_it_was {
                continue;
            }
            match slot.state {
                State::Ready => self.remove(place as u32),
                State::Filling | State::Spoilt => {
                    let slot = self.slots[place].as_mut().expect("it was just looked at");
                    slot.state = State::Spoilt;
                }
            }
        }
        self.shrink();
        before - self.ready
    }

    /// Whose reply is kept of a key.
    pub(crate) fn source(&self, key: &[u8]) -> Option<(BackendId, ServerId)> {
        let slot = self.slots[*self.places.get(key)? as usize].as_ref()?;
        Some((slot.origin.backend, slot.origin.server))
    }

    /// What is known of a key whose stamp is this now.
    pub(crate) fn find(&mut self, key: &[u8], stamp: Stamp, now: Time) -> Found<'_> {
        let Some(&place) = self.places.get(key) else { return Found::Nothing };
        let Some(slot) = &self.slots[place as usize] else { return Found::Nothing };
        let is_current = slot.origin.stamp == stamp;
        if slot.state != State::Ready {
            return Found::Nothing;
        }
        if !is_current || slot.expires <= now {
            self.remove(place);
            return if is_current { Found::Nothing } else { Found::Stale };
        }
        let slot = self.slots[place as usize].as_mut().expect("it was just looked at");
        slot.was_hit = true;
        match &slot.reply {
            Some(reply) => Found::Reply(reply),
            None if slot.copies.is_some() => {
                Found::Copies(Ticket { slot: place, number: slot.number })
            }
            None => Found::NoKey,
        }
    }

    /// A key was missed. Returns whether it is to be kept: it was missed before, nobody is about to, and there is room.
    pub(crate) fn admits(&mut self, key: &[u8], word: KeyWord) -> bool {
        if self.places.contains_key(key)
            || key.len() > self.rules.value_max
            || !self.has_room_to_fill(ENTRY_SIZE + 2 * key.len())
        {
            return false;
        }
        let hash = word.hash();
        let place = hash as usize % self.missed.len();
        // 0 is none.
        let mark = hash | 1 << 31;
        std::mem::replace(&mut self.missed[place], mark) == mark
    }

    /// Whether so many bytes more may wait until they are ready.
    fn has_room_to_fill(&self, more: usize) -> bool {
        (self.filling + more) as u64 <= self.rules.bytes / FILLING_PART
    }

    /// Its reply is on its way.
    pub(crate) fn begin(&mut self, key: &[u8], origin: Origin) -> Ticket {
        self.numbered = self.numbered.wrapping_add(1);
        let key: Arc<[u8]> = key.into();
        let slot = Slot {
            key: Arc::clone(&key),
            number: self.numbered,
            state: State::Filling,
            origin,
            expires: Time::NEVER,
            reply: None,
            copies: None,
            was_hit: false,
        };
        self.size += slot.size();
        self.filling += slot.size();
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[place as usize] = Some(slot);
        self.places.insert(key, place);
        self.make_room();
        Ticket { slot: place, number: self.numbered }
    }

    fn filling(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(ticket.slot as usize)?.as_mut()?;
        (slot.number == ticket.number && slot.state != State::Ready).then_some(slot)
    }

    /// Where a fill was asked for, if it is awaited still and nothing has spoilt it.
    pub(crate) fn origin(&mut self, ticket: Ticket) -> Option<Origin> {
        let slot = self.filling(ticket)?;
        (slot.state == State::Filling).then_some(slot.origin)
    }

    /// The reply of a fill, which is not ready before it is known how long it lives. If too much is not, it is not kept.
    pub(crate) fn set_reply(&mut self, ticket: Ticket, reply: Option<&[u8]>) {
        let more = reply.map_or(0, <[u8]>::len);
        if !self.has_room_to_fill(more) {
            return self.abandon(ticket);
        }
        let Some(slot) = self.filling(ticket) else { return };
        slot.reply = reply.map(Into::into);
        self.size += more;
        self.filling += more;
        self.make_room();
    }

    /// The key of a fill that has a reply.
    pub(crate) fn key_with_reply(&mut self, ticket: Ticket) -> Option<Arc<[u8]>> {
        let slot = self.filling(ticket)?;
        slot.reply.as_ref()?;
        Some(Arc::clone(&slot.key))
    }

    /// Whether a fill has a reply.
    pub(crate) fn has_reply(&mut self, ticket: Ticket) -> bool {
        self.filling(ticket).is_some_and(|slot| slot.reply.is_some())
    }

    /// A fill is ready, and lives so long, from when it was asked for. Returns how many others have left for this one and
    /// for those that are not ready.
    pub(crate) fn finish(&mut self, ticket: Ticket, key_lives_us: Option<u64>) -> u64 {
        let Self { rules: CacheRules { ttl_us, negative_us, .. }, .. } = *self;
        let Some(slot) = self.filling(ticket) else { return 0 };
        let longest = if slot.reply.is_some() { ttl_us } else { negative_us };
        let lives_us = key_lives_us.map_or(longest, |key| key.min(longest));
        slot.state = State::Ready;
        slot.expires = slot.origin.at.plus_micros(lives_us);
        let size = slot.size();
        self.filling -= size;
        self.ready += 1;
        self.make_room();
        std::mem::take(&mut self.left)
    }

    /// A fill comes to nothing.
    pub(crate) fn abandon(&mut self, ticket: Ticket) {
        if self.filling(ticket).is_some() {
            self.remove(ticket.slot);
        }
    }

    /// A key has changed at its server. Returns whether something was dropped.
    pub(crate) fn drop_key(&mut self, backend: BackendId, key: &[u8]) -> bool {
        let Some(&place) = self.places.get(key) else { return false };
        let Some(slot) = &mut self.slots[place as usize] else { return false };
        if slot.origin.backend != backend {
            return false;
        }
        match slot.state {
            State::Ready => {
                self.remove(place);
                true
            }
            State::Filling => {
                slot.state = State::Spoilt;
                true
            }
            State::Spoilt => false,
        }
    }

    /// What was read from a place may have changed. Returns how many replies were dropped.
    pub(crate) fn drop_where(&mut self, is_there: impl Fn(&Origin) -> bool) -> u64 {
        self.drop_slots(|slot| is_there(&slot.origin))
    }

    /// Any server of a backend may have keys now that there were none of. What is on its way may say that there is none.
    /// Returns how many replies were dropped.
    pub(crate) fn drop_absent(&mut self, backend: BackendId) -> u64 {
        self.drop_slots(|slot| slot.origin.backend == backend && slot.holds_nothing())
    }

    fn drop_slots(&mut self, is_it: impl Fn(&Slot) -> bool) -> u64 {
        let before = self.ready;
        for place in 0..self.slots.len() {
            match &mut self.slots[place] {
                Some(slot) if is_it(slot) => match slot.state {
                    State::Ready => self.remove(place as u32),
                    State::Filling | State::Spoilt => slot.state = State::Spoilt,
                },
                _ => {}
            }
        }
        self.shrink();
        before - self.ready
    }

    /// Drops what has lived its time, and what has lost copies, so that they are made anew. For now and then.
    pub(crate) fn sweep(&mut self, now: Time) {
        for place in 0..self.slots.len() {
            let slot = self.slots[place].as_ref();
            if slot.is_some_and(|it| it.state == State::Ready && it.is_over(now)) {
                self.remove(place as u32);
            }
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        if self.places.is_empty() && self.slots.capacity() > 0 {
            (self.slots, self.free, self.hand) = (Vec::new(), Vec::new(), 0);
            self.places = HashMap::new();
        }
    }

    fn remove(&mut self, place: u32) {
        let Some(mut slot) = self.slots[place as usize].take() else { return };
        self.places.remove(&slot.key);
        self.size -= slot.size();
        if let Some(copies) = slot.copies.take() {
            if !copies.have_paid() {
                let until = slot.origin.at.plus_micros(REST_US);
                self.resting.insert(Arc::clone(&slot.key), until);
            }
            self.dropped.push((slot.origin, copies));
        }
        match slot.state {
            State::Ready => self.ready -= 1,
            State::Filling | State::Spoilt => self.filling -= slot.size(),
        }
        self.free.push(place);
    }

    fn make_room(&mut self) {
        let before = self.ready;
        // After two rounds nothing is left that may leave.
        for _ in 0..2 * self.slots.len() {
            if self.size() as u64 <= self.rules.bytes {
                break;
            }
            let place = self.hand;
            self.hand = (place + 1) % self.slots.len();
            match &mut self.slots[place] {
                Some(slot) if slot.state != State::Ready => {}
                Some(slot) if slot.was_hit => slot.was_hit = false,
                Some(_) => self.remove(place as u32),
                None => {}
            }
        }
        self.left += before - self.ready;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1000;

    fn store(bytes: u64) -> Store {
        Store::new(CacheRules {
            bytes,
            ttl_us: 1000 * MS,
            negative_us: 100 * MS,
            value_max: 4096,
            prefixes: Box::default(),
            hot_only: false,
        })
    }

    fn origin(key: &[u8], at: Time) -> Origin {
        Origin {
            backend: BackendId::new(0),
            server: ServerId::new(0),
            conn: ConnId::of_lane(0, 1),
            epoch: 0,
            at,
            word: KeyWord::of(key),
            stamp: Stamp::default(),
        }
    }

    fn fill(store: &mut Store, key: &[u8], reply: Option<&[u8]>, lives: Option<u64>) -> u64 {
        let ticket = store.begin(key, origin(key, Time::ZERO));
        store.set_reply(ticket, reply);
        store.finish(ticket, lives)
    }

    fn find<'s>(store: &'s mut Store, key: &[u8], at_ms: u64) -> Found<'s> {
        store.find(key, Stamp::default(), Time::ZERO.plus_millis(at_ms))
    }

    #[test]
    fn a_key_is_admitted_when_it_is_missed_again() {
        let mut store = store(1 << 20);
        let admits = |store: &mut Store, key: &[u8]| store.admits(key, KeyWord::of(key));
        assert!(!admits(&mut store, b"a"));
        assert!(!admits(&mut store, b"b"));
        assert!(admits(&mut store, b"a"));
        store.begin(b"a", origin(b"a", Time::ZERO));
        assert!(!admits(&mut store, b"a"), "somebody is about to");
        let long = vec![b'k'; 4097];
        assert!(!admits(&mut store, &long) && !admits(&mut store, &long));
    }

    #[test]
    fn what_is_kept_lives_as_long_as_it_may_and_no_longer_than_its_key() {
        let mut store = store(1 << 20);
        fill(&mut store, b"a", Some(b"$1\r\nx\r\n"), None);
        fill(&mut store, b"b", Some(b"$1\r\ny\r\n"), Some(50 * MS));
        fill(&mut store, b"c", None, None);
        assert_eq!(find(&mut store, b"a", 999), Found::Reply(b"$1\r\nx\r\n"));
        assert_eq!(find(&mut store, b"b", 49), Found::Reply(b"$1\r\ny\r\n"));
        assert_eq!(find(&mut store, b"c", 99), Found::NoKey);
        assert_eq!(store.entries(), 3);
        for (key, at_ms) in [(b"a", 1000), (b"b", 50), (b"c", 100)] {
            assert_eq!(find(&mut store, key, at_ms), Found::Nothing);
        }
        assert_eq!((store.entries(), store.size), (0, 0));
    }

    #[test]
    fn only_what_is_hot_is_taken_as_long_as_it_is() {
        let act = |key: &[u8]| HotAct::of_key("p", key, cashew_metrics::HotCause::Rule);
        let mut store = store(1 << 20);
        store.rules.hot_only = true;
        assert!(!store.takes(b"a") && store.starts().is_empty());
        assert_eq!(store.set_hot(vec![act(b"a"), act(b"b")]), 0);
        assert!(store.takes(b"a") && !store.takes(b"ab"));
        assert_eq!(store.starts(), [b"a", b"b"]);
        fill(&mut store, b"a", Some(b"x"), None);
        fill(&mut store, b"b", Some(b"y"), None);
        let ticket = store.begin(b"c", origin(b"c", Time::ZERO));
        assert_eq!(store.set_hot(vec![act(b"b")]), 1);
        assert!(store.origin(ticket).is_none(), "what is on its way is not kept");
        assert_eq!(find(&mut store, b"a", 1), Found::Nothing);
        assert_eq!(find(&mut store, b"b", 1), Found::Reply(b"y"));
        assert_eq!(store.source(b"b"), Some((BackendId::new(0), ServerId::new(0))));
        // Prefixes hold besides.
        store.rules.prefixes = Box::new([b"u:"[..].into()]);
        assert!(!store.takes(b"b"));
    }

    #[test]
    fn a_key_that_was_written_since_is_stale() {
        let generations = cashew_metrics::Generations::private();
        let mut store = store(1 << 20);
        fill(&mut store, b"a", Some(b"x"), None);
        generations.count(KeyWord::of(b"a"));
        let stamp = generations.stamp(KeyWord::of(b"a")).unwrap();
        assert_eq!(store.find(b"a", stamp, Time::ZERO), Found::Stale);
        assert_eq!(store.find(b"a", stamp, Time::ZERO), Found::Nothing);
    }

    #[test]
    fn a_change_drops_what_is_kept_and_spoils_what_is_on_its_way() {
        let mut store = store(1 << 20);
        fill(&mut store, b"a", Some(b"x"), None);
        let ticket = store.begin(b"b", origin(b"b", Time::ZERO));
        let elsewhere = BackendId::new(1);
        assert!(!store.drop_key(elsewhere, b"a"));
        for key in [b"a", b"b"] {
            assert!(store.drop_key(BackendId::new(0), key));
            assert!(!store.drop_key(BackendId::new(0), key));
        }
        assert!(store.origin(ticket).is_none());
        store.abandon(ticket);
        assert_eq!((store.entries(), store.size), (0, 0));
        fill(&mut store, b"a", Some(b"x"), None);
        fill(&mut store, b"b", Some(b"x"), None);
        assert_eq!(store.drop_where(|it| it.backend == elsewhere), 0);
        assert_eq!(store.drop_where(|_| true), 2);
        assert_eq!((store.slots.capacity(), store.size), (0, 0));
    }

    #[test]
    fn a_ticket_is_of_one_fill() {
        let mut store = store(1 << 20);
        let ticket = store.begin(b"a", origin(b"a", Time::ZERO));
        store.abandon(ticket);
        let other = store.begin(b"b", origin(b"b", Time::ZERO));
        assert_eq!(ticket.slot, other.slot);
        store.set_reply(ticket, Some(b"of a"));
        assert!(!store.has_reply(other));
        assert_eq!(store.finish(ticket, None), 0);
        assert_eq!(find(&mut store, b"b", 0), Found::Nothing);
    }

    #[test]
    fn what_is_hit_stays_when_others_have_to_leave() {
        // Besides the list of what was missed.
        let room = 8 * (ENTRY_SIZE as u64 + 2 + 100) * 16 / 15 + 1;
        let mut store = store(room);
        let mut left = 0;
        for round in 0..200u8 {
            let key = [round];
            left += fill(&mut store, &key, Some(&[b'x'; 100]), None);
            assert!(store.size() as u64 <= room, "{} of {room}", store.size());
            if round > 0 {
                assert!(matches!(find(&mut store, &[0], 0), Found::Reply(_)), "round {round}");
            }
        }
        assert_eq!(store.entries() + left, 200);
        assert_eq!(store.entries(), 8);
    }

    #[test]
    fn what_is_not_ready_counts_and_leaves_room() {
        for bytes in [16 << 10, 1 << 20] {
            let mut store = store(bytes);
            let mut waiting = Vec::new();
            for number in 0..50_000u32 {
                let key = number.to_be_bytes();
                let word = KeyWord::of(&key);
                store.admits(&key, word);
                if store.admits(&key, word) {
                    let ticket = store.begin(&key, origin(&key, Time::ZERO));
                    waiting.push(ticket);
                    let is_large = number % 3 == 0;
                    store.set_reply(ticket, is_large.then_some(&[b'x'; 1000][..]));
                }
                assert!(store.size() as u64 <= bytes, "{} of {bytes}", store.size());
                // Of some the life is never told.
                if waiting.len() > 4 && number % 7 < 5 {
                    store.finish(waiting.remove(0), None);
                }
            }
            assert!(store.entries() > 4);
            waiting.into_iter().for_each(|ticket| store.abandon(ticket));
            store.drop_where(|_| true);
            assert_eq!((store.size, store.filling, store.ready), (0, 0, 0));
        }
    }

    #[test]
    fn what_has_lived_its_time_is_swept() {
        let mut store = store(1 << 20);
        fill(&mut store, b"a", Some(b"x"), None);
        fill(&mut store, b"b", Some(b"x"), Some(MS));
        store.sweep(Time::ZERO.plus_millis(1));
        assert_eq!(store.entries(), 1);
        store.sweep(Time::ZERO.plus_millis(1000));
        assert_eq!((store.entries(), store.slots.capacity()), (0, 0));
    }

    #[test]
    fn only_keys_with_a_prefix_are_taken_where_there_are_some() {
        let mut store = store(1 << 20);
        assert!(store.takes(b"any"));
        store.rules.prefixes = [b"user:"[..].into(), b"x"[..].into()].into();
        assert!(store.takes(b"user:1") && store.takes(b"x") && !store.takes(b"user"));
    }
}
