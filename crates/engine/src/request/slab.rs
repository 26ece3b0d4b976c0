//! Where requests live while they are on their way.

use std::ops::{Index, IndexMut};

use crate::base::buffer::BufPool;
use crate::base::id::{BackendId, ClientId, RequestId};
use crate::base::time::Time;
use crate::request::{Own, Request, Role};

/// A buffer of at most this capacity stays with the slot of its request.
const REPLY_KEPT_MAX: usize = 512;
/// Buffers of so many bytes stay with free slots.
pub(crate) const KEPT_SIZE_MAX: usize = 4 << 20;

/// Slots with stable indices, reused last in, first out so that the hot ones stay in cache.
///
/// Requests come and go with every message, so a slot is not made anew each time: a free one is
/// [`Role::Single`], its reply empty though perhaps with a small buffer, and it is linked to the
/// next free one by `next_in_client`.
pub(crate) struct Requests {
    slots: Vec<Request>,
    free: RequestId,
    len: u32,
    /// The largest `len` at the end of a turn since the last [`Requests::shrink`].
    peak: u32,
    /// Bytes of the buffers of free slots.
    kept: usize,
}

impl Requests {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: RequestId::NONE, len: 0, peak: 0, kept: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// How many slots there are, free ones among them.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of buffers that no request needs.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Who waits for a request's reply in the end, or [`ClientId::NONE`].
    pub(crate) fn waiting_client(&self, index: RequestId) -> ClientId {
        let request = &self[index];
        match request.role {
            Role::Fragment { parent, .. } => self[parent].client,
            Role::Own(Own::Twin { of, .. }) => self.waiting_client(of),
            Role::Single
            | Role::Parent { .. }
            | Role::Flow { .. }
            | Role::Probe { .. }
            | Role::Own(_) => request.client,
        }
    }

    /// A new request in no queue, and its index; `client` is [`ClientId::NONE`] if none waits for it.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        backend: BackendId,
        client: ClientId,
        started: Time,
    ) -> (RequestId, &mut Request) {
        self.len += 1;
        if self.free == RequestId::NONE {
            self.grow();
        }
        let index = self.free;
        let slot = &mut self.slots[index.index()];
        self.free = slot.next_in_client;
        self.kept -= slot.reply.capacity();
        slot.begin(backend, client, started);
        (index, slot)
    }

    /// One more slot, which is free.
    #[cold]
    fn grow(&mut self) {
        let index = RequestId::new(self.slots.len() as u32);
        assert!(index.number() < u32::MAX >> 1, "too many requests");
        self.slots.push(Request::free());
        self.free = index;
    }

    /// Frees a slot whose reply and role have been taken care of, and its buffer if it is large or
    /// many are kept.
    #[inline(always)]
    pub(crate) fn remove(&mut self, index: RequestId, bufs: &mut BufPool) {
        let slot = &mut self.slots[index.index()];
        debug_assert!(slot.is_used && slot.reply.is_empty());
        debug_assert!(matches!(slot.role, Role::Single));
        debug_assert!(!slot.is_sent_on, "others of its client would wait for it for ever");
        slot.is_used = false;
        slot.next_in_client = self.free;
        let capacity = slot.reply.capacity();
        if capacity > REPLY_KEPT_MAX || self.kept + capacity > KEPT_SIZE_MAX {
            give_reply(slot, bufs);
        } else {
            self.kept += capacity;
        }
        self.free = index;
        self.len -= 1;
    }

    /// A turn is over.
    #[inline]
    pub(crate) fn note_peak(&mut self) {
        self.peak = self.peak.max(self.len);
    }

    /// Gives trailing free slots and the buffers of all free ones back when most of the array was
    /// unused since the last call: O(slots), so only for now and then.
    pub(crate) fn shrink(&mut self, bufs: &mut BufPool) {
        const KEPT: usize = 256;
        let needed = std::mem::replace(&mut self.peak, self.len) as usize;
        if self.slots.len() < KEPT.max(4 * needed) {
            return;
        }
        self.release(bufs);
        let kept = KEPT.max(2 * needed);
        while self.slots.len() > kept && self.slots.last().is_some_and(|slot| !slot.is_used) {
            self.slots.pop();
        }
        self.free = RequestId::NONE;
        for (index, slot) in self.slots.iter_mut().enumerate().rev() {
            if !slot.is_used {
                slot.next_in_client = self.free;
                self.free = RequestId::new(index as u32);
            }
        }
        self.slots.shrink_to(self.slots.len() * 2);
    }

    pub(crate) fn get(&self, index: RequestId) -> Option<&Request> {
        self.slots.get(index.index()).filter(|slot| slot.is_used)
    }

    /// All requests there are: O(slots).
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.slots.iter_mut().filter(|slot| slot.is_used)
    }

    /// The same with their indices.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (RequestId, &Request)> {
        let slots = (0..).map(RequestId::new).zip(&self.slots);
        slots.filter(|(_, slot)| slot.is_used)
    }

    /// Gives the buffers of free slots back: O(slots).
    pub(crate) fn release(&mut self, bufs: &mut BufPool) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.is_used) {
            bufs.give(std::mem::take(&mut slot.reply));
        }
        self.kept = 0;
    }
}

#[inline(never)]
fn give_reply(slot: &mut Request, bufs: &mut BufPool) {
    bufs.take_back(&mut slot.reply);
}

impl Index<RequestId> for Requests {
    type Output = Request;

    #[inline]
    fn index(&self, index: RequestId) -> &Request {
        &self.slots[index.index()]
    }
}

impl IndexMut<RequestId> for Requests {
    #[inline]
    fn index_mut(&mut self, index: RequestId) -> &mut Request {
        &mut self.slots[index.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_some_buffers_stay_with_free_slots() {
        let (mut requests, mut bufs) = (Requests::new(), BufPool::default());
        let count = 2 * KEPT_SIZE_MAX / REPLY_KEPT_MAX;
        let all: Vec<RequestId> = (0..count)
            .map(|_| requests.add(BackendId::new(0), ClientId::NONE, Time::ZERO).0)
            .collect();
        for index in all {
            requests[index].hold(b"+OK\r\n", &mut bufs);
            requests[index].reply.clear();
            requests.remove(index, &mut bufs);
        }
        assert_eq!(requests.kept(), KEPT_SIZE_MAX);
        assert_eq!(bufs.held(), requests.kept());
        requests.release(&mut bufs);
        assert_eq!((requests.kept(), bufs.held()), (0, 0));
    }

    #[test]
    fn a_peak_is_forgotten_and_slots_in_use_stay() {
        let mut requests = Requests::new();
        let all: Vec<RequestId> = (0..10_000)
            .map(|_| requests.add(BackendId::new(0), ClientId::NONE, Time::ZERO).0)
            .collect();
        let (kept, gone) = all.split_at(10);
        gone.iter().for_each(|&index| requests.remove(index, &mut BufPool::default()));
        for _ in 0..3 {
            requests.shrink(&mut BufPool::default());
        }
        assert!(requests.slots.capacity() <= 1024, "{}", requests.slots.capacity());
        let fresh: Vec<RequestId> = (0..1000)
            .map(|_| requests.add(BackendId::new(0), ClientId::NONE, Time::ZERO).0)
            .collect();
        assert!(fresh.iter().all(|index| !kept.contains(index)));
        assert_eq!(requests.len(), 1010);
    }
}
