//! The order of what nodes of a cluster have sent to others.
//!
//! What a client asks of one slot runs in its order, also when nodes send it to and fro. So such requests stand in a
//! queue for each client and slot, from the first redirect to the answer. A queue is made of runs: requests that are on
//! their way on one connection, which answers them in their order, and requests that wait here. A request is sent when it
//! is the first of its queue, or when all before it are on their way on the connection that it goes to, too. Whatever
//! else waits goes on when the first run has gone, or has gone elsewhere. Nothing is looked at again and again.
//!
//! Who has gone keeps the number by which its queues are known: its requests have it.
//!
//! All steps are constant, or logarithmic, as long as a connection answers in order and no request has been sent to and
//! fro much more often than others: there are few runs.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::base::id::{LaneId, RequestId};
use crate::base::time::Time;

/// Names a queue: by the number of who has asked, and the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) asker: u32,
    pub(crate) slot: u16,
}

/// Where a request stands that is in no run: before the one of that number. It is good until the queue changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap(usize);

impl Gap {
    /// Nothing stands before it.
    pub(crate) fn is_first(self) -> bool {
        self.0 == 0
    }
}

/// `W` is what is kept of a request that waits.
pub(crate) struct SentOn<W> {
    queues: BTreeMap<Key, Queue<W>>,
    /// In which queue a request stands.
    keys: HashMap<RequestId, Key>,
    /// When queues are looked at again.
    due: BTreeSet<(Time, Key)>,
    /// Queues of which something may go on.
    ready: Vec<Key>,
    /// The number of who came last.
    askers: u32,
    /// Requests and runs that were looked at: for tests.
    pub(crate) steps: u64,
}

struct Queue<W> {
    runs: VecDeque<Run<W>>,
    due: Option<Time>,
    is_ready: bool,
}

enum Run<W> {
    /// On their way on a connection, or [`LaneId::NONE`]: on several perhaps.
    Sent {
        lane: LaneId,
        requests: VecDeque<RequestId>,
    },
    Waiting(VecDeque<(RequestId, W)>),
}

impl<W> Run<W> {
    fn first(&self) -> Option<RequestId> {
        match self {
            Self::Sent { requests, .. } => requests.front().copied(),
            Self::Waiting(waiting) => waiting.front().map(|it| it.0),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Sent { requests, .. } => requests.len(),
            Self::Waiting(waiting) => waiting.len(),
        }
    }

    fn place_of(&self, request: RequestId) -> Option<usize> {
        if self.first() == Some(request) {
            return Some(0);
        }
        match self {
            Self::Sent { requests, .. } => requests.iter().position(|&it| it == request),
            Self::Waiting(waiting) => waiting.iter().position(|it| it.0 == request),
        }
    }

    fn remove(&mut self, place: usize) -> Option<W> {
        match self {
            Self::Sent { requests, .. } => {
                requests.remove(place);
                None
            }
            Self::Waiting(waiting) => waiting.remove(place).map(|it| it.1),
        }
    }

    fn split_off(&mut self, place: usize) -> Self {
        match self {
            Self::Sent { lane, requests } => {
                Self::Sent { lane: *lane, requests: requests.split_off(place) }
            }
            Self::Waiting(waiting) => Self::Waiting(waiting.split_off(place)),
        }
    }
}

impl<W> Default for SentOn<W> {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            keys: HashMap::new(),
            due: BTreeSet::new(),
            ready: Vec::new(),
            askers: 0,
            steps: 0,
        }
    }
}

impl<W> SentOn<W> {
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A number for who has none yet.
    pub(crate) fn new_asker(&mut self) -> u32 {
        // After so many the first ones may have to wait for strangers, if they are still here.
        self.askers = self.askers.wrapping_add(1).max(1);
        self.askers
    }

    /// A request is about to go on, or to wait, and is in no queue any more: says where it stood. A new one comes last.
    /// The caller puts it there at once, by [`SentOn::send`] or [`SentOn::wait`], unless it fails.
    pub(crate) fn take_out(&mut self, request: RequestId, key: Key) -> Gap {
        let known = self.keys.remove(&request);
        debug_assert!(known.is_none_or(|known| known == key), "who has asked stays the same");
        let empty = || Queue { runs: VecDeque::new(), due: None, is_ready: false };
        let queue = self.queues.entry(key).or_insert_with(empty);
        let found = known.and_then(|_| Self::find(queue, request, &mut self.steps));
        let Some((at, place)) = found else {
            let gap = Gap(queue.runs.len());
            self.note_ready(key);
            return gap;
        };
        let run = &mut queue.runs[at];
        run.remove(place);
        let gap = if place > 0 { at + 1 } else { at };
        if run.len() == 0 {
            queue.runs.remove(at);
        } else if place > 0 && place < run.len() {
            let behind = run.split_off(place);
            queue.runs.insert(gap, behind);
        }
        self.note_ready(key);
        Gap(gap)
    }

    /// The run that a request stands in, and its place there.
    fn find(queue: &Queue<W>, request: RequestId, steps: &mut u64) -> Option<(usize, usize)> {
        *steps += queue.runs.len() as u64;
        let first = queue.runs.iter().position(|run| run.first() == Some(request));
        if let Some(at) = first {
            return Some((at, 0));
        }
        *steps += queue.runs.iter().map(|run| run.len() as u64).sum::<u64>();
        let mut runs = queue.runs.iter().enumerate();
        runs.find_map(|(at, run)| Some((at, run.place_of(request)?)))
    }

    /// Whether what stands there overtakes nothing if it is sent on the lane.
    pub(crate) fn may_send(&self, key: Key, gap: Gap, lane: LaneId) -> bool {
        match gap.0 {
            0 => true,
            1 => self.queues.get(&key).is_some_and(|queue| match queue.runs.front() {
                Some(Run::Sent { lane: other, .. }) => *other == lane && lane != LaneId::NONE,
                _ => false,
            }),
            _ => false,
        }
    }

    /// The request is sent on the lane, behind all that was sent there.
    pub(crate) fn send(&mut self, key: Key, gap: Gap, request: RequestId, lane: LaneId) {
        let Some(queue) = self.queues.get_mut(&key) else { return };
        self.keys.insert(request, key);
        let before = gap.0.checked_sub(1).and_then(|before| queue.runs.get_mut(before));
        match before {
            Some(Run::Sent { requests, .. }) => requests.push_back(request),
            _ => {
                let requests = VecDeque::from([request]);
                queue.runs.insert(gap.0, Run::Sent { lane, requests });
            }
        }
    }

    /// The request waits.
    pub(crate) fn wait(&mut self, key: Key, gap: Gap, request: RequestId, what: W) {
        let Some(queue) = self.queues.get_mut(&key) else { return };
        self.keys.insert(request, key);
        if let Some(before) = gap.0.checked_sub(1)
            && let Some(Run::Waiting(waiting)) = queue.runs.get_mut(before)
        {
            waiting.push_back((request, what));
        } else if let Some(Run::Waiting(waiting)) = queue.runs.get_mut(gap.0) {
            waiting.push_front((request, what));
        } else {
            queue.runs.insert(gap.0, Run::Waiting(VecDeque::from([(request, what)])));
        }
        self.note_ready(key);
    }

    /// The request is answered, or about to be. Returns what was kept of it if it waited.
    pub(crate) fn forget(&mut self, request: RequestId) -> Option<W> {
        let key = self.keys.remove(&request)?;
        let queue = self.queues.get_mut(&key)?;
        let mut kept = None;
        if let Some((at, place)) = Self::find(queue, request, &mut self.steps) {
            kept = queue.runs[at].remove(place);
            if queue.runs[at].len() == 0 {
                queue.runs.remove(at);
            }
        }
        self.note_ready(key);
        kept
    }

    /// The request has left its connection for another one: whatever stands behind it waits for it. So it does for the
    /// others of the queue, which mostly have left, too, so that none need be looked for.
    #[cold]
    pub(crate) fn scatter(&mut self, request: RequestId) {
        let Some(key) = self.keys.get(&request) else { return };
        let Some(queue) = self.queues.get_mut(key) else { return };
        self.steps += queue.runs.len() as u64;
        for run in &mut queue.runs {
            if let Run::Sent { lane, .. } = run {
                *lane = LaneId::NONE;
            }
        }
    }

    fn note_ready(&mut self, key: Key) {
        let Some(queue) = self.queues.get_mut(&key) else { return };
        let waits = queue.runs.iter().any(|run| matches!(run, Run::Waiting(_)));
        self.steps += queue.runs.len() as u64;
        if (waits || queue.runs.is_empty()) && !queue.is_ready {
            queue.is_ready = true;
            self.ready.push(key);
        }
    }

    /// A queue of which something may go on. Those of which nothing is left are dropped.
    pub(crate) fn next_ready(&mut self) -> Option<Key> {
        while let Some(key) = self.ready.pop() {
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            queue.is_ready = false;
            if !queue.runs.is_empty() {
                return Some(key);
            }
            self.arm(key, None);
            self.queues.remove(&key);
        }
        None
    }

    /// The first that waits in a queue.
    pub(crate) fn first_waiting(&mut self, key: Key) -> Option<(RequestId, Gap, &mut W)> {
        let queue = self.queues.get_mut(&key)?;
        let mut runs = queue.runs.iter_mut().enumerate();
        self.steps += 1;
        runs.find_map(|(at, run)| match run {
            Run::Waiting(waiting) => {
                let (request, what) = waiting.front_mut()?;
                Some((*request, Gap(at), what))
            }
            Run::Sent { .. } => None,
        })
    }

    /// Takes out the first that waits in a queue, to be put back, or sent, or to fail.
    pub(crate) fn take_first_waiting(&mut self, key: Key) -> Option<(RequestId, Gap, W)> {
        let queue = self.queues.get_mut(&key)?;
        let at = queue.runs.iter().position(|run| matches!(run, Run::Waiting(_)))?;
        let Run::Waiting(waiting) = &mut queue.runs[at] else { return None };
        let (request, what) = waiting.pop_front()?;
        if waiting.is_empty() {
            queue.runs.remove(at);
        }
        self.keys.remove(&request);
        self.note_ready(key);
        Some((request, Gap(at), what))
    }

    /// The queue is looked at again then.
    pub(crate) fn arm(&mut self, key: Key, at: Option<Time>) {
        let Some(queue) = self.queues.get_mut(&key) else { return };
        if queue.due == at {
            return;
        }
        if let Some(before) = std::mem::replace(&mut queue.due, at) {
            self.due.remove(&(before, key));
        }
        if let Some(at) = at {
            self.due.insert((at, key));
        }
    }

    /// When the next queue is looked at again.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// A queue whose time has come.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Key> {
        let &(at, key) = self.due.first()?;
        if at > now {
            return None;
        }
        self.arm(key, None);
        Some(key)
    }

    /// Takes out all that wait of which `is_it` says so.
    pub(crate) fn take_waiting(&mut self, is_it: impl Fn(RequestId) -> bool) -> Vec<W> {
        let (mut taken, mut found) = (Vec::new(), Vec::new());
        for (&key, queue) in &mut self.queues {
            let before = taken.len();
            for run in &mut queue.runs {
                let Run::Waiting(waiting) = run else { continue };
                self.steps += waiting.len() as u64;
                for (request, what) in std::mem::take(waiting) {
                    if is_it(request) {
                        self.keys.remove(&request);
                        taken.push(what);
                    } else {
                        waiting.push_back((request, what));
                    }
                }
            }
            if taken.len() > before {
                queue.runs.retain(|run| run.len() > 0);
                found.push(key);
            }
        }
        found.into_iter().for_each(|key| self.note_ready(key));
        taken
    }

    /// Does something to all that wait, and has their queues looked at.
    pub(crate) fn each_waiting(&mut self, mut act: impl FnMut(RequestId, &mut W) -> bool) {
        let mut found = Vec::new();
        for (&key, queue) in &mut self.queues {
            let mut is_found = false;
            for run in &mut queue.runs {
                if let Run::Waiting(waiting) = run {
                    self.steps += waiting.len() as u64;
                    waiting.iter_mut().for_each(|(request, what)| is_found |= act(*request, what));
                }
            }
            if is_found {
                found.push(key);
            }
        }
        found.into_iter().for_each(|key| self.note_ready(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { asker: 1, slot: 7 };

    fn request(number: u32) -> RequestId {
        RequestId::new(number)
    }

    fn lane(number: u32) -> LaneId {
        LaneId::new(number)
    }

    /// A request comes back, and goes to a lane if it may; returns whether it does.
    fn go(sent_on: &mut SentOn<()>, number: u32, to: u32) -> bool {
        let gap = sent_on.take_out(request(number), KEY);
        let may = sent_on.may_send(KEY, gap, lane(to));
        match may {
            true => sent_on.send(KEY, gap, request(number), lane(to)),
            false => sent_on.wait(KEY, gap, request(number), ()),
        }
        may
    }

    /// What waits goes to a lane, as far as it may; returns what does.
    fn go_on(sent_on: &mut SentOn<()>, to: u32) -> Vec<u32> {
        let mut gone = Vec::new();
        while let Some((_, gap, ())) = sent_on.first_waiting(KEY) {
            if !sent_on.may_send(KEY, gap, lane(to)) {
                break;
            }
            let (request, gap, ()) = sent_on.take_first_waiting(KEY).unwrap();
            sent_on.send(KEY, gap, request, lane(to));
            gone.push(request.number());
        }
        gone
    }

    #[test]
    fn what_goes_the_same_way_goes_at_once_and_the_rest_waits_for_it() {
        let mut sent_on = SentOn::default();
        assert!(go(&mut sent_on, 1, 10) && go(&mut sent_on, 2, 10));
        assert!(!go(&mut sent_on, 3, 20));
        // It is behind one that waits.
        assert!(!go(&mut sent_on, 4, 10));
        assert_eq!(go_on(&mut sent_on, 20), [0; 0]);
        sent_on.forget(request(1));
        assert_eq!(go_on(&mut sent_on, 20), [0; 0]);
        sent_on.forget(request(2));
        assert_eq!(sent_on.next_ready(), Some(KEY));
        assert_eq!(go_on(&mut sent_on, 20), [3, 4]);
        assert_eq!([3, 4].map(|it| sent_on.forget(request(it))), [None; 2]);
        assert_eq!(sent_on.next_ready(), None);
        assert!(sent_on.is_empty() && sent_on.queues.is_empty());
    }

    #[test]
    fn who_comes_back_keeps_its_place() {
        let mut sent_on = SentOn::default();
        for number in 1..=4 {
            assert!(go(&mut sent_on, number, 10));
        }
        assert!(go(&mut sent_on, 1, 20));
        // The next one comes back from there before that.
        assert!(!go(&mut sent_on, 2, 30));
        assert!(go(&mut sent_on, 1, 30));
        assert_eq!(go_on(&mut sent_on, 30), [2]);
        assert!(go(&mut sent_on, 3, 30));
        // It is sent where it was: what is still there is behind it all the same.
        assert!(!go(&mut sent_on, 4, 10));
        for number in 1..=3 {
            sent_on.forget(request(number));
        }
        assert_eq!(go_on(&mut sent_on, 10), [4]);
    }

    #[test]
    fn what_is_on_its_way_on_several_connections_is_waited_for() {
        let mut sent_on = SentOn::default();
        assert!(go(&mut sent_on, 1, 10) && go(&mut sent_on, 2, 10));
        sent_on.scatter(request(1));
        assert!(!go(&mut sent_on, 3, 10));
        // In the midst of others.
        assert!(!go(&mut sent_on, 2, 10));
        sent_on.forget(request(1));
        assert_eq!(go_on(&mut sent_on, 10), [2, 3]);
    }

    #[test]
    fn what_waits_is_taken_out_and_the_rest_keeps_its_order() {
        let mut sent_on = SentOn::default();
        assert!(go(&mut sent_on, 1, 10));
        for number in 2..=5 {
            assert!(!go(&mut sent_on, number, 20));
        }
        let is_even = |it: RequestId| it.number().is_multiple_of(2);
        assert_eq!(sent_on.take_waiting(is_even).len(), 2);
        assert_eq!(sent_on.take_waiting(is_even).len(), 0);
        sent_on.forget(request(1));
        assert_eq!(go_on(&mut sent_on, 20), [3, 5]);
        [3, 5].into_iter().for_each(|it| assert!(sent_on.forget(request(it)).is_none()));
        assert!(sent_on.next_ready().is_none() && sent_on.queues.is_empty());
    }

    #[test]
    fn queues_are_looked_at_when_their_time_comes() {
        let mut sent_on = SentOn::<()>::default();
        let other = Key { slot: 8, ..KEY };
        for (key, number) in [(KEY, 1), (other, 2)] {
            let gap = sent_on.take_out(request(number), key);
            sent_on.wait(key, gap, request(number), ());
        }
        sent_on.arm(KEY, Some(Time::from_micros(20)));
        sent_on.arm(other, Some(Time::from_micros(10)));
        sent_on.arm(KEY, Some(Time::from_micros(5)));
        assert_eq!(sent_on.next_due(), Some(Time::from_micros(5)));
        assert_eq!(sent_on.pop_due(Time::from_micros(4)), None);
        let now = Time::from_micros(10);
        assert_eq!([(); 3].map(|()| sent_on.pop_due(now)), [Some(KEY), Some(other), None]);
    }
}
