//! Sessions on their way between workers: who gets them, and how many may wait here.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cashew_control::Session;

use crate::ring::Slot;

/// With this many waiting sessions, workers that hand sessions over are not read.
const WAITING_MAX: usize = 1024;

/// The most descriptors of one session.
const DESCRIPTORS_EACH: usize = 3;

/// Descriptors reserved for everything else while sessions move.
const SPARE: usize = 64;

/// The maximum age of the count of free descriptors.
const ROOM_AGE_MAX: Duration = Duration::from_millis(100);

/// The most messages that may wait for a worker that still gets sessions.
pub(crate) const MAIL_MAX: usize = 64;

/// The maximum age of the client counts by which the target is chosen.
const LOADS_AGE_MAX: Duration = Duration::from_millis(100);

/// How long after the last session moved its client may be missing in the workers' figures.
const SETTLING: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    waiting: VecDeque<Parcel>,
    /// Of all waiting sessions.
    descriptors: usize,
    /// How many descriptors may be used for sessions, here and on the way to a worker.
    room: Option<usize>,
    measured_at: Option<Instant>,
    /// How many clients each worker has: its own count plus what it was sent since.
    clients: BTreeMap<Slot, u64>,
    counted_at: Option<Instant>,
    moved_at: Option<Instant>,
}

/// A session with its socket and possibly its bytes.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) from: Slot,
    pub(crate) session: Session,
    pub(crate) descriptors: Vec<Rc<OwnedFd>>,
}

/// A worker that could get a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) slot: Slot,
    /// Messages it has not taken yet.
    pub(crate) mail: usize,
}

impl Sessions {
    pub(crate) fn push(&mut self, parcel: Parcel, now: Instant) {
        self.moved_at = Some(now);
        self.descriptors += parcel.descriptors.len();
        self.waiting.push_back(parcel);
    }

    /// Could not be delivered, so it is the first again.
    pub(crate) fn push_back(&mut self, parcel: Parcel) {
        self.descriptors += parcel.descriptors.len();
        self.waiting.push_front(parcel);
    }

    /// The next session and its target: `wanted(from)` if that takes messages, else the worker with
    /// the fewest clients. The sender gets it back only if there is nobody else.
    pub(crate) fn next(
        &mut self,
        targets: &[Target],
        wanted: impl Fn(Slot) -> Option<Slot>,
    ) -> Option<(Slot, Parcel)> {
        let from = self.waiting.front()?.from;
        let takes_mail = |target: &&Target| target.mail < MAIL_MAX;
        let wanted = wanted(from).filter(|&slot| targets.iter().any(|it| it.slot == slot));
        let slot = match wanted {
            // It waits for this worker rather than go to another.
            Some(slot) => targets.iter().find(|it| it.slot == slot).filter(takes_mail)?.slot,
            None => {
                let others = targets.iter().filter(|it| it.slot != from || targets.len() == 1);
                let clients = |it: &&Target| self.clients.get(&it.slot).copied().unwrap_or(0);
                others.filter(takes_mail).min_by_key(clients)?.slot
            }
        };
        *self.clients.entry(slot).or_default() += 1;
        let parcel = self.waiting.pop_front()?;
        self.descriptors -= parcel.descriptors.len();
        Some((slot, parcel))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether workers that hand sessions over should not be read. `sent` counts messages not taken
    /// and sessions not confirmed: each may be a session.
    pub(crate) fn is_full(&self, sent: usize) -> bool {
        let held = self.descriptors + DESCRIPTORS_EACH * sent;
        // A single session moves in any case.
        let has_no_room = |room| held > 0 && held + DESCRIPTORS_EACH > room;
        self.waiting.len() >= WAITING_MAX || self.room.is_some_and(has_no_room)
    }

    /// Whether the free descriptors must be counted again.
    pub(crate) fn is_unmeasured(&self, now: Instant) -> bool {
        self.measured_at.is_none_or(|measured_at| now - measured_at >= ROOM_AGE_MAX)
    }

    /// This process may have `limit` descriptors and has `open`, including those of `sent`
    /// sessions.
    pub(crate) fn handle_files(&mut self, limit: u64, open: usize, sent: usize, now: Instant) {
        let others = open.saturating_sub(self.descriptors + sent) + SPARE;
        self.room = Some(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(others));
        self.measured_at = Some(now);
    }

    /// Whether a client may be counted at no worker or at two.
    pub(crate) fn is_moving(&self, now: Instant) -> bool {
        let recently = self.moved_at.is_some_and(|moved_at| now - moved_at < SETTLING);
        recently || !self.waiting.is_empty()
    }

    pub(crate) fn is_uncounted(&self, now: Instant) -> bool {
        self.counted_at.is_none_or(|counted_at| now - counted_at >= LOADS_AGE_MAX)
    }

    /// The number of clients that each worker reports.
    pub(crate) fn handle_counts(&mut self, clients: BTreeMap<Slot, u64>, now: Instant) {
        self.clients = clients;
        self.counted_at = Some(now);
    }

    /// Closes the connections of all waiting sessions.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.descriptors = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_with_the_fewest_clients_gets_the_next_session() {
        let mut sessions = with(5);
        sessions.handle_counts(BTreeMap::from([(1, 4), (2, 2), (3, 3)]), Instant::now());
        let got = targets(&mut sessions, &[idle(1), idle(2), idle(3)], None);
        assert_eq!(got, [2, 2, 3, 1, 2]);
        assert!(sessions.is_empty());
    }

    #[test]
    fn a_session_returns_to_its_sender_only_if_there_is_no_other_worker() {
        assert_eq!(targets(&mut with(2), &[idle(0), idle(1)], None), [1, 1]);
        assert_eq!(targets(&mut with(2), &[idle(0)], None), [0, 0]);
        assert!(targets(&mut with(2), &[], None).is_empty());
    }

    #[test]
    fn rebalanced_sessions_go_where_they_are_wanted() {
        let targets_of = [idle(1), idle(2)];
        assert_eq!(targets(&mut with(2), &targets_of, Some(2)), [2, 2]);
        assert_eq!(targets(&mut with(2), &targets_of, Some(9)), [1, 2], "which is not there");
    }

    #[test]
    fn a_worker_with_many_messages_gets_no_sessions() {
        let busy = Target { slot: 1, mail: MAIL_MAX };
        assert_eq!(targets(&mut with(2), &[busy, idle(2)], None), [2, 2]);
        assert!(targets(&mut with(2), &[busy, idle(2)], Some(1)).is_empty());
        let mut sessions = with(WAITING_MAX - 1);
        assert!(!sessions.is_full(0));
        sessions.push(parcel(), Instant::now());
        assert!(sessions.is_full(0));
        assert!(targets(&mut sessions, &[busy], None).is_empty());
    }

    #[test]
    fn waiting_sessions_are_bounded_by_descriptors() {
        let now = Instant::now();
        let mut sessions = Sessions::default();
        assert!(sessions.is_unmeasured(now));
        // Twenty of the hundred open descriptors belong to sessions that were sent.
        sessions.handle_files(80 + SPARE as u64 + 9, 100, 20, now);
        assert!(!sessions.is_unmeasured(now) && sessions.is_unmeasured(now + ROOM_AGE_MAX));
        assert!(sessions.is_full(3), "each may have three");
        assert!(!sessions.is_full(2));
        let socket: Rc<OwnedFd> = Rc::new(std::io::pipe().unwrap().0.into());
        let push = |sessions: &mut Sessions| {
            let descriptors = vec![Rc::clone(&socket); 3];
            sessions.push(Parcel { descriptors, ..parcel() }, now);
        };
        push(&mut sessions);
        assert!(!sessions.is_full(1) && sessions.is_full(2));
        push(&mut sessions);
        assert!(!sessions.is_full(0) && sessions.is_full(1));
        push(&mut sessions);
        assert!(sessions.is_full(0));
        assert_eq!(targets(&mut sessions, &[idle(1)], None).len(), 3);
        assert!(!sessions.is_full(0) && !sessions.is_full(2) && sessions.is_full(3));
        sessions.handle_files(10, 100, 0, now);
        assert!(!sessions.is_full(0), "one at a time");
        push(&mut sessions);
        assert!(sessions.is_full(0));
    }

    #[test]
    fn client_counts_settle_after_a_while() {
        let mut sessions = with(1);
        let now = Instant::now();
        assert!(sessions.is_moving(now + SETTLING));
        targets(&mut sessions, &[idle(1)], None);
        assert!(sessions.is_moving(now) && !sessions.is_moving(now + SETTLING));
    }

    fn targets(sessions: &mut Sessions, targets: &[Target], wanted: Option<Slot>) -> Vec<Slot> {
        std::iter::from_fn(|| sessions.next(targets, |_| wanted).map(|(slot, _)| slot)).collect()
    }

    fn with(count: usize) -> Sessions {
        let mut sessions = Sessions::default();
        (0..count).for_each(|_| sessions.push(parcel(), Instant::now()));
        sessions
    }

    fn parcel() -> Parcel {
        Parcel { from: 0, session: Session::default(), descriptors: Vec::new() }
    }

    fn idle(slot: Slot) -> Target {
        Target { slot, mail: 0 }
    }
}
