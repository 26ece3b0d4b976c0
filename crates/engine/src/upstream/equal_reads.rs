//! Equal reads that wait to be written are sent once, and share the reply: `coalesce_reads`.
//!
//! Who asks for what another client has asked for, when that is on the same lane and no byte of it is written,
//! becomes its *follower*: a request that stands right behind it in the lane and has no bytes there. When the
//! reply comes it answers the first, and then the next, as if the server had sent it once more, until the last
//! one of the group has had it. So whatever a reply does to a request – a redirect, a refusal that is waited
//! for, a connection that is lost, a client that has gone – it does to each of them by the same rules. Whoever
//! is first has the bytes of all: when it leaves the lane the next one gets them ([`Lane::hand_on`]).
//!
//! A client's requests run in the order in which it sent them. So nobody follows what stands in front of
//! something else of its own. Nor does anybody follow a read if something has come since that may change the
//! key. What does not come the shortest way ([`crate::engine`]'s `fast_path`) is taken to be that, and ends all
//! of it.
//!
//! What may be sent to a second server ([`crate::upstream::hedge`]) is not shared: backends have one or the
//! other.

use crate::base::id::{ClientId, RequestId};
use crate::base::mark::Mark;
use crate::request::slab::Requests;
use crate::upstream::lane::Lane;

/// Keys share one of so many places.
const SETS: usize = 64;
/// So many different reads are known in one place.
const WAYS: usize = 4;
/// Larger requests are not shared.
const TEXT_MAX: usize = 512;
/// Bytes of requests that are known at once.
const TEXTS_MAX: usize = 32 * 1024;
/// Clients share one of so many places.
const CLIENTS: usize = 128;

/// What a request is to reads that others may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// It changes nothing, and its reply is the same for all who ask it at that time.
    Yes,
    /// It changes nothing.
    No,
    /// It may change its key, and nothing else.
    Ends,
}

/// The reads that wait to be written on a lane.
pub(crate) struct EqualReads {
    sets: Box<[[Entry; WAYS]; SETS]>,
    /// What counts now; all older entries are forgotten.
    stamp: u64,
    texts: Vec<u8>,
    /// How many requests were noted.
    ordinal: u64,
    /// By client: which of its requests was the last one.
    last: [u64; CLIENTS],
}

/// A read, and those that follow it.
#[derive(Clone, Copy)]
struct Entry {
    stamp: u64,
    start: u32,
    len: u32,
    /// The last one of them.
    last: RequestId,
    place: Place,
}

/// Where a read stands among those that wait.
#[derive(Clone, Copy)]
enum Place {
    /// In the order of arrival.
    Line(u64),
    /// In one of memcached's gets of several keys.
    Get(usize),
}

impl Default for EqualReads {
    fn default() -> Self {
        let none =
            Entry { stamp: 0, start: 0, len: 0, last: RequestId::NONE, place: Place::Line(0) };
        Self {
            sets: Box::new([[none; WAYS]; SETS]),
            stamp: 1,
            texts: Vec::new(),
            ordinal: 0,
            last: [0; CLIENTS],
        }
    }
}

impl EqualReads {
    /// What comes from here on is shared with nothing that came before.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.stamp += 1;
        self.texts.clear();
    }

    fn text(&self, entry: &Entry) -> &[u8] {
        &self.texts[entry.start as usize..][..entry.len as usize]
    }

    /// The read that is the same and that the client may follow, where it has asked for nothing that stands behind
    /// the read: `may_join` tells that of memcached's gets of several keys, if the client has anything there.
    fn find(
        &mut self,
        key: Mark,
        text: &[u8],
        client: ClientId,
        may_join: impl Fn(Option<usize>) -> bool,
    ) -> Option<&mut Entry> {
        let own = self.last[client.number() as usize % CLIENTS];
        let set = &self.sets[key.place(SETS)];
        let way = set.iter().position(|entry| {
            let is_in_order = || match entry.place {
                Place::Line(at) => own <= at && may_join(None),
                Place::Get(stage) => may_join(Some(stage)),
            };
            entry.stamp == self.stamp && self.text(entry) == text && is_in_order()
        })?;
        Some(&mut self.sets[key.place(SETS)][way])
    }

    /// Others may follow the request, which was put there.
    fn add(&mut self, key: Mark, text: &[u8], request: RequestId, place: Place) {
        if text.len() > TEXT_MAX || self.texts.len() + text.len() > TEXTS_MAX {
            return;
        }
        let (start, len) = (self.texts.len() as u32, text.len() as u32);
        self.texts.extend_from_slice(text);
        let set = &mut self.sets[key.place(SETS)];
        let stamp = self.stamp;
        // Of one that is full the newest makes room, so that what is asked for most is likely to stay.
        let way = set.iter().position(|entry| entry.stamp != stamp).unwrap_or(WAYS - 1);
        set[way] = Entry { stamp, start, len, last: request, place };
    }

    fn end(&mut self, key: Mark) {
        self.sets[key.place(SETS)].iter_mut().for_each(|entry| entry.stamp = 0);
    }
}

impl Lane {
    /// Has the request follow an equal one that waits to be written, if there is one that it may follow; otherwise
    /// notes it, as it is about to be put into the lane by itself. Returns whether it follows.
    pub(crate) fn follow(
        &mut self,
        request: RequestId,
        (sharing, key, text): (Sharing, Mark, &[u8]),
        client: ClientId,
        requests: &mut Requests,
    ) -> bool {
        let equal = self.equal_reads.get_or_insert_default();
        if sharing != Sharing::Yes {
            if sharing == Sharing::Ends {
                equal.end(key);
            }
            return false;
        }
        let gets = &mut self.coalesced;
        let may_join = |stage| gets.may_join(client, stage);
        let Some(entry) = equal.find(key, text, client, may_join) else { return false };
        let before = std::mem::replace(&mut entry.last, request);
        let place = entry.place;
        let last = &mut equal.last[client.number() as usize % CLIENTS];
        match place {
            Place::Line(at) => *last = at.max(*last),
            Place::Get(stage) => gets.note_joined(client, stage),
        }
        gets.lengthen_group(before, request);
        let expect = requests[before].expect;
        let next = std::mem::replace(&mut requests[before].next_in_lane, request);
        let slot = &mut requests[request];
        (slot.wire_len, slot.in_lane, slot.follows) = (0, true, true);
        (slot.expect, slot.next_in_lane) = (expect, next);
        if next == RequestId::NONE {
            self.tail = request;
        }
        // What was looked at stands at other places.
        self.users = None;
        self.unsent += 1;
        self.followers += 1;
        true
    }

    /// The request was put into the lane by itself, in one of memcached's gets if `get` says so: others may follow
    /// it.
    pub(crate) fn note_unsent(
        &mut self,
        request: RequestId,
        (sharing, key, text): (Sharing, Mark, &[u8]),
        client: ClientId,
        get: Option<usize>,
    ) {
        let is_behind_gets = !self.coalesced.may_join(client, None);
        let Some(equal) = &mut self.equal_reads else { return };
        let place = match get {
            Some(stage) => Place::Get(stage),
            None => {
                equal.ordinal += 1;
                equal.last[client.number() as usize % CLIENTS] = equal.ordinal;
                Place::Line(equal.ordinal)
            }
        };
        // What stands behind a get of its client's has no place of its own.
        if sharing == Sharing::Yes && (get.is_some() || !is_behind_gets) {
            equal.add(key, text, request, place);
        }
    }

    /// The lane's head is about to leave it: if `next` follows it, that has its bytes from here on, and gets the same
    /// reply. Returns whether it does.
    #[inline]
    pub(crate) fn hand_on(
        &mut self,
        head: RequestId,
        next: RequestId,
        requests: &mut Requests,
    ) -> bool {
        if self.followers == 0 || next == RequestId::NONE || !requests[next].follows {
            return false;
        }
        let (wire_len, expect) = (requests[head].wire_len, requests[head].expect);
        let slot = &mut requests[next];
        (slot.follows, slot.wire_len, slot.expect) = (false, wire_len, expect);
        self.followers -= 1;
        true
    }

    /// The last one of those that get the same reply.
    pub(crate) fn end_of_group(&self, mut at: RequestId, requests: &Requests) -> RequestId {
        while let next = requests[at].next_in_lane
            && next != RequestId::NONE
            && requests[next].follows
        {
            at = next;
        }
        at
    }
}
