//! The life of a slot's holder: when to start it, when to give it up, when to start the next.
//!
//! A pure state machine: events and the time go in, [`Slot::poll`] returns what to do.

use std::time::{Duration, Instant};

use crate::fleet::Life;

/// How long a child may take from its start to `Ready`.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a child may live on after it closed its channel, or after its deadline.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(1);

/// How long it may take to die of SIGABRT: the kernel may be writing a core.
const ABORT_GRACE: Duration = Duration::from_millis(200);

/// A child that served this long does not crash in a loop.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The pause before the second restart in a row. It doubles with each further one. The first
/// restart comes without a pause.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// The longest pause: the others do this worker's share meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Slot {
    state: State,
    /// Deaths in a row without a stable time of serving before them.
    crashes: u32,
    /// It is retiring without a successor, and should have ended by then.
    retire_by: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Empty until the next attempt.
    Empty {
        until: Instant,
    },
    Starting {
        since: Instant,
    },
    Serving {
        since: Instant,
    },
    /// Should be dead by the deadline. `last` if no successor follows. A child that was told to
    /// stop still has a duty meanwhile.
    Dying {
        deadline: Instant,
        last: bool,
        duty: Option<Duty>,
    },
    /// Empty for ever.
    Closed,
}

/// What shows whether the slot's holder hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// It is starting and need not beat yet, but must not be stopped.
    Start { since: Instant },
    /// It must have beaten since then.
    Beat { since: Instant },
}

/// What the slot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Spawn,
    /// It did not get ready: send SIGABRT, for a core dump.
    Abort,
    /// Send SIGKILL.
    Kill,
}

impl Slot {
    pub(crate) fn new(now: Instant) -> Self {
        Self { state: State::Empty { until: now }, crashes: 0, retire_by: None }
    }

    pub(crate) fn spawned(&mut self, now: Instant) {
        self.state = State::Starting { since: now };
    }

    pub(crate) fn ready(&mut self, now: Instant) {
        if let State::Starting { .. } = self.state {
            self.state = State::Serving { since: now };
        }
    }

    /// It is about to die, by itself or because of an order.
    pub(crate) fn mark_dying(&mut self, now: Instant) {
        self.expect_death(now, KILL_GRACE);
    }

    /// It gets SIGABRT.
    pub(crate) fn aborted(&mut self, now: Instant) {
        self.expect_death(now, ABORT_GRACE);
        // If it was stopping, its deadline was later.
        if let State::Dying { deadline, .. } = &mut self.state {
            *deadline = (*deadline).min(now + ABORT_GRACE);
        }
    }

    fn expect_death(&mut self, now: Instant, grace: Duration) {
        match self.state {
            State::Starting { .. } | State::Serving { .. } => {
                self.note_stability(now);
                let last = self.retire_by.is_some();
                self.state = State::Dying { deadline: now + grace, last, duty: None };
            }
            State::Dying { ref mut duty, .. } => *duty = None,
            State::Empty { .. } | State::Closed => {}
        }
    }

    /// No successor follows the current holder, which must have ended by the deadline.
    pub(crate) fn stop(&mut self, deadline: Instant) {
        self.state = match self.state {
            State::Empty { .. } | State::Closed => State::Closed,
            State::Starting { .. } | State::Serving { .. } | State::Dying { .. } => {
                State::Dying { deadline, last: true, duty: self.duty() }
            }
        };
    }

    /// The serving holder was told to hand everything over and end. It is watched as before and has
    /// time until the deadline. No effect if it does not serve.
    pub(crate) fn retire(&mut self, deadline: Instant) {
        if self.is_serving() {
            self.retire_by = Some(deadline);
        }
    }

    /// The time left, if it is retiring.
    pub(crate) fn retire_within(&self, now: Instant) -> Option<Duration> {
        self.retire_by.map(|deadline| deadline.saturating_duration_since(now))
    }

    /// Extends its time, if it is retiring.
    pub(crate) fn postpone(&mut self, by: Duration) {
        self.retire_by = self.retire_by.map(|deadline| deadline + by);
    }

    pub(crate) fn unretire(&mut self) {
        self.retire_by = None;
    }

    /// The holder is dead, or could not be started. Returns how long the slot stays empty; `None`
    /// is for ever.
    pub(crate) fn died(&mut self, now: Instant) -> Option<Duration> {
        self.note_stability(now);
        let last = matches!(self.state, State::Closed | State::Dying { last: true, .. });
        if last || self.retire_by.is_some() {
            self.state = State::Closed;
            return None;
        }
        let pause = match self.crashes {
            0 => Duration::ZERO,
            crashes => PAUSE_FIRST.saturating_mul(1 << (crashes - 1).min(16)).min(PAUSE_MAX),
        };
        self.crashes = self.crashes.saturating_add(1);
        self.state = State::Empty { until: now + pause };
        Some(pause)
    }

    /// What to do now, if anything.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Order> {
        if self.retire_by.is_some_and(|deadline| deadline <= now) && self.is_retiring() {
            self.state = State::Dying { deadline: now + KILL_GRACE, last: true, duty: None };
            return Some(Order::Kill);
        }
        match &mut self.state {
            State::Empty { until } if *until <= now => Some(Order::Spawn),
            State::Starting { since } if *since + START_TIMEOUT <= now => {
                self.aborted(now);
                Some(Order::Abort)
            }
            State::Dying { deadline, .. } if *deadline <= now => {
                *deadline = now + KILL_GRACE;
                Some(Order::Kill)
            }
            State::Empty { .. }
            | State::Starting { .. }
            | State::Serving { .. }
            | State::Dying { .. }
            | State::Closed => None,
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let retire_by = self.retire_by.filter(|_| self.is_retiring());
        let at = match self.state {
            State::Empty { until } => Some(until),
            State::Starting { since } => Some(since + START_TIMEOUT),
            State::Dying { deadline, .. } => Some(deadline),
            State::Serving { .. } | State::Closed => None,
        };
        at.into_iter().chain(retire_by).min()
    }

    pub(crate) fn life(&self) -> Life {
        match self.state {
            State::Serving { .. } if self.retire_by.is_some() => Life::Retiring,
            State::Serving { .. } => Life::Serving,
            State::Dying { last: true, .. } | State::Closed => Life::Going,
            State::Empty { .. } | State::Starting { .. } | State::Dying { .. } => Life::Pending,
        }
    }

    /// What is expected of the holder, if anything.
    pub(crate) fn duty(&self) -> Option<Duty> {
        match self.state {
            State::Starting { since } => Some(Duty::Start { since }),
            State::Serving { since } => Some(Duty::Beat { since }),
            State::Dying { duty, .. } => duty,
            State::Empty { .. } | State::Closed => None,
        }
    }

    /// How often in a row the holder died before it had served for a while.
    pub(crate) fn crashes(&self) -> u32 {
        self.crashes
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.life() == Life::Serving
    }

    pub(crate) fn is_retiring(&self) -> bool {
        self.life() == Life::Retiring
    }

    pub(crate) fn is_starting(&self) -> bool {
        matches!(self.state, State::Starting { .. })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn note_stability(&mut self, now: Instant) {
        if let State::Serving { since } = self.state
            && now - since >= STABLE_AFTER
        {
            self.crashes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_replacement_comes_at_once_and_crash_loops_slow_down() {
        let mut now = Instant::now();
        let mut slot = Slot::new(now);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            assert_eq!(slot.poll(now), Some(Order::Spawn));
            slot.spawned(now);
            assert_eq!(slot.poll(now), None);
            slot.ready(now);
            let pause = slot.died(now).unwrap();
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]);
    }

    #[test]
    fn a_child_that_served_for_a_while_is_replaced_at_once() {
        let (mut slot, now) = serving();
        slot.died(now);
        slot.spawned(now);
        slot.ready(now);
        assert_eq!(slot.died(now + STABLE_AFTER), Some(Duration::ZERO));
    }

    #[test]
    fn an_empty_slot_waits_for_its_time() {
        let (mut slot, now) = serving();
        slot.died(now);
        slot.spawned(now);
        let pause = slot.died(now).unwrap();
        assert_eq!(slot.poll(now), None);
        assert_eq!(slot.poll_timeout(), Some(now + pause));
        assert_eq!(slot.poll(now + pause), Some(Order::Spawn));
    }

    #[test]
    fn a_child_that_does_not_get_ready_is_aborted_then_killed() {
        let now = Instant::now();
        let mut slot = Slot::new(now);
        slot.spawned(now);
        let late = now + START_TIMEOUT;
        assert_eq!(slot.poll_timeout(), Some(late));
        assert_eq!(slot.poll(late), Some(Order::Abort));
        assert_eq!(slot.poll(late), None);
        assert_eq!(slot.poll(late + ABORT_GRACE), Some(Order::Kill));
        assert!(slot.died(late + ABORT_GRACE).is_some());
    }

    #[test]
    fn an_aborted_child_is_killed_soon() {
        let (mut slot, now) = serving();
        assert_eq!(slot.duty(), Some(Duty::Beat { since: now }));
        slot.aborted(now);
        assert_eq!(slot.duty(), None);
        assert_eq!(slot.poll_timeout(), Some(now + ABORT_GRACE));
        assert_eq!(slot.poll(now + ABORT_GRACE), Some(Order::Kill));
        assert_eq!(slot.died(now + ABORT_GRACE), Some(Duration::ZERO));
    }

    #[test]
    fn a_child_that_outlives_its_channel_is_killed() {
        let (mut slot, now) = serving();
        slot.mark_dying(now);
        assert_eq!(slot.poll(now), None);
        assert_eq!(slot.poll(now + KILL_GRACE), Some(Order::Kill));
        assert_eq!(slot.poll(now + 2 * KILL_GRACE), Some(Order::Kill));
    }

    #[test]
    fn a_stopped_slot_stays_empty() {
        let (mut slot, now) = serving();
        let deadline = now + Duration::from_secs(30);
        slot.stop(deadline);
        assert_eq!(slot.poll(now), None);
        assert_eq!(slot.poll(deadline), Some(Order::Kill));
        assert_eq!(slot.died(deadline), None);
        assert!(slot.is_closed());
        assert_eq!(slot.poll(deadline), None);

        let mut empty = Slot::new(now);
        empty.stop(deadline);
        assert!(empty.is_closed());
    }

    #[test]
    fn a_stopping_child_is_still_watched() {
        let (mut slot, now) = serving();
        let deadline = now + Duration::from_secs(3600);
        slot.stop(deadline);
        assert_eq!(slot.duty(), Some(Duty::Beat { since: now }));
        slot.aborted(now);
        assert_eq!((slot.duty(), slot.poll_timeout()), (None, Some(now + ABORT_GRACE)));
        assert_eq!(slot.poll(now + ABORT_GRACE), Some(Order::Kill));
        assert_eq!(slot.died(now + ABORT_GRACE), None);

        let mut slot = Slot::new(now);
        slot.spawned(now);
        slot.stop(deadline);
        assert_eq!(slot.duty(), Some(Duty::Start { since: now }));
        // It ends by itself, and has time for that.
        slot.mark_dying(now);
        assert_eq!((slot.duty(), slot.poll_timeout()), (None, Some(deadline)));
    }

    #[test]
    fn a_retiring_child_has_its_time_and_no_successor() {
        let (mut slot, now) = serving();
        let deadline = now + Duration::from_millis(300);
        slot.retire(deadline);
        assert_eq!((slot.life(), slot.poll_timeout()), (Life::Retiring, Some(deadline)));
        assert_eq!(slot.poll(now), None);
        assert_eq!(slot.poll(deadline), Some(Order::Kill));
        assert_eq!(slot.died(deadline), None);
        assert!(slot.is_closed());

        let (mut slot, now) = serving();
        slot.retire(deadline);
        slot.mark_dying(now);
        assert_eq!((slot.life(), slot.died(now)), (Life::Going, None));
    }

    #[test]
    fn a_dying_child_does_not_retire() {
        let (mut slot, now) = serving();
        slot.aborted(now);
        slot.retire(now + Duration::from_secs(3600));
        assert_eq!((slot.life(), slot.retire_within(now)), (Life::Pending, None));
        assert_eq!(slot.died(now), Some(Duration::ZERO));

        let mut slot = Slot::new(now);
        slot.retire(now);
        assert_eq!((slot.life(), slot.poll(now)), (Life::Pending, Some(Order::Spawn)));
    }

    #[test]
    fn a_retiring_child_may_get_more_time() {
        let (mut slot, now) = serving();
        slot.postpone(Duration::from_secs(1));
        assert_eq!(slot.life(), Life::Serving);
        slot.retire(now + Duration::from_millis(300));
        slot.postpone(Duration::from_millis(200));
        assert_eq!(slot.retire_within(now), Some(Duration::from_millis(500)));
        assert_eq!(slot.poll(now + Duration::from_millis(499)), None);
        assert_eq!(slot.poll(now + Duration::from_millis(500)), Some(Order::Kill));
    }

    #[test]
    fn a_child_that_is_taken_back_keeps_serving() {
        let (mut slot, now) = serving();
        let deadline = now + Duration::from_millis(300);
        slot.retire(deadline);
        slot.unretire();
        assert_eq!((slot.life(), slot.poll(deadline)), (Life::Serving, None));
        assert_eq!(slot.died(deadline), Some(Duration::ZERO));
    }

    #[test]
    fn a_retiring_child_must_beat_and_gets_no_successor() {
        let (mut slot, now) = serving();
        slot.retire(now + Duration::from_secs(3600));
        assert_eq!(slot.duty(), Some(Duty::Beat { since: now }));
        slot.aborted(now);
        assert_eq!(slot.poll(now + ABORT_GRACE), Some(Order::Kill));
        assert_eq!(slot.died(now + ABORT_GRACE), None);
    }

    fn serving() -> (Slot, Instant) {
        let now = Instant::now();
        let mut slot = Slot::new(now);
        slot.spawned(now);
        slot.ready(now);
        assert!(slot.is_serving());
        (slot, now)
    }
}
