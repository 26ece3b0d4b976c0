//! The life of whoever holds a slot: when to start it, when to give it up, when to start the next.
//!
//! A pure state machine: it is told what happened and the time, and [`Slot::poll`] tells what to do.

use std::time::{Duration, Instant};

use crate::fleet::Life;

/// How long a child may take from its start to `Ready`.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a child may live on after it closed its channel, or after its time was up.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(1);

/// How long it may take to die of SIGABRT: the kernel may be writing a core.
const ABORT_GRACE: Duration = Duration::from_millis(200);

/// Who served this long did not crash in a loop.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The pause before the second restart in a row; it doubles with each further one. There is none
/// before the first.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// Not longer: the others do this worker's share meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Slot {
    state: State,
    /// Deaths in a row, none of which followed a stable time of serving.
    crashes: u32,
    /// It is handing its work over, nobody follows it, and it should be gone by then.
    retire_by: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Empty until it is time for the next try.
    Vacant {
        until: Instant,
    },
    Starting {
        since: Instant,
    },
    Serving {
        since: Instant,
    },
    /// Should be dead by the deadline. `last` when nobody is to follow. Who was told to stop still
    /// has a duty meanwhile.
    Dying {
        deadline: Instant,
        last: bool,
        duty: Option<Duty>,
    },
    /// Empty for ever.
    Closed,
}

/// By what it is seen whether the one that holds a slot hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// It starts, and does not beat before it serves: it must not be stopped.
    Start { since: Instant },
    /// It has had to beat since then.
    Beat { since: Instant },
}

/// What the slot asks for.
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
        Self { state: State::Vacant { until: now }, crashes: 0, retire_by: None }
    }

    pub(crate) fn spawned(&mut self, now: Instant) {
        self.state = State::Starting { since: now };
    }

    pub(crate) fn ready(&mut self, now: Instant) {
        if let State::Starting { .. } = self.state {
            self.state = State::Serving { since: now };
        }
    }

    /// It is about to die, by itself or by what was done to it.
    pub(crate) fn doomed(&mut self, now: Instant) {
        self.expect_death(now, KILL_GRACE);
    }

    /// It is sent SIGABRT.
    pub(crate) fn aborted(&mut self, now: Instant) {
        self.expect_death(now, ABORT_GRACE);
        // Who was stopping had more.
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
            State::Vacant { .. } | State::Closed => {}
        }
    }

    /// Nobody follows the one that holds the slot now, who must be gone by the deadline.
    pub(crate) fn stop(&mut self, deadline: Instant) {
        self.state = match self.state {
            State::Vacant { .. } | State::Closed => State::Closed,
            State::Starting { .. } | State::Serving { .. } | State::Dying { .. } => {
                State::Dying { deadline, last: true, duty: self.duty() }
            }
        };
    }

    /// Who serves here was told to hand everything over and go. Being watched as before, it has
    /// time for that until the deadline. Means nothing to who does not serve.
    pub(crate) fn retire(&mut self, deadline: Instant) {
        if self.is_serving() {
            self.retire_by = Some(deadline);
        }
    }

    /// How much of its time is left, if it retires.
    pub(crate) fn retire_within(&self, now: Instant) -> Option<Duration> {
        self.retire_by.map(|deadline| deadline.saturating_duration_since(now))
    }

    /// It has that much more time, if it retires.
    pub(crate) fn postpone(&mut self, by: Duration) {
        self.retire_by = self.retire_by.map(|deadline| deadline + by);
    }

    pub(crate) fn unretire(&mut self) {
        self.retire_by = None;
    }

    /// Who held the slot is dead, or could not be started at all. Tells how long the slot stays
    /// empty, unless for ever.
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
        self.state = State::Vacant { until: now + pause };
        Some(pause)
    }

    /// What to do now, if anything.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Order> {
        if self.retire_by.is_some_and(|deadline| deadline <= now) && self.is_retiring() {
            self.state = State::Dying { deadline: now + KILL_GRACE, last: true, duty: None };
            return Some(Order::Kill);
        }
        match &mut self.state {
            State::Vacant { until } if *until <= now => Some(Order::Spawn),
            State::Starting { since } if *since + START_TIMEOUT <= now => {
                self.aborted(now);
                Some(Order::Abort)
            }
            State::Dying { deadline, .. } if *deadline <= now => {
                *deadline = now + KILL_GRACE;
                Some(Order::Kill)
            }
            State::Vacant { .. }
            | State::Starting { .. }
            | State::Serving { .. }
            | State::Dying { .. }
            | State::Closed => None,
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let retire_by = self.retire_by.filter(|_| self.is_retiring());
        let at = match self.state {
            State::Vacant { until } => Some(until),
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
            State::Vacant { .. } | State::Starting { .. } | State::Dying { .. } => Life::Coming,
        }
    }

    /// What is expected of the one that holds the slot, if anything.
    pub(crate) fn duty(&self) -> Option<Duty> {
        match self.state {
            State::Starting { since } => Some(Duty::Start { since }),
            State::Serving { since } => Some(Duty::Beat { since }),
            State::Dying { duty, .. } => duty,
            State::Vacant { .. } | State::Closed => None,
        }
    }

    /// How often in a row whoever held the slot died before it had served for a while.
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
    fn who_served_for_a_while_is_replaced_at_once_again() {
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
    fn who_does_not_get_ready_is_aborted_then_killed() {
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
    fn who_is_aborted_is_killed_soon() {
        let (mut slot, now) = serving();
        assert_eq!(slot.duty(), Some(Duty::Beat { since: now }));
        slot.aborted(now);
        assert_eq!(slot.duty(), None);
        assert_eq!(slot.poll_timeout(), Some(now + ABORT_GRACE));
        assert_eq!(slot.poll(now + ABORT_GRACE), Some(Order::Kill));
        assert_eq!(slot.died(now + ABORT_GRACE), Some(Duration::ZERO));
    }

    #[test]
    fn who_closed_its_channel_and_lives_on_is_killed() {
        let (mut slot, now) = serving();
        slot.doomed(now);
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

        let mut vacant = Slot::new(now);
        vacant.stop(deadline);
        assert!(vacant.is_closed());
    }

    #[test]
    fn who_stops_is_watched_as_before_and_soon_gone_when_it_hangs() {
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
        // It goes by itself, and has its time for it.
        slot.doomed(now);
        assert_eq!((slot.duty(), slot.poll_timeout()), (None, Some(deadline)));
    }

    #[test]
    fn who_retires_has_its_time_and_is_not_followed() {
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
        slot.doomed(now);
        assert_eq!((slot.life(), slot.died(now)), (Life::Going, None));
    }

    #[test]
    fn who_dies_already_does_not_retire() {
        let (mut slot, now) = serving();
        slot.aborted(now);
        slot.retire(now + Duration::from_secs(3600));
        assert_eq!((slot.life(), slot.retire_within(now)), (Life::Coming, None));
        assert_eq!(slot.died(now), Some(Duration::ZERO));

        let mut slot = Slot::new(now);
        slot.retire(now);
        assert_eq!((slot.life(), slot.poll(now)), (Life::Coming, Some(Order::Spawn)));
    }

    #[test]
    fn who_retires_may_be_given_more_time() {
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
    fn who_is_taken_back_serves_on() {
        let (mut slot, now) = serving();
        let deadline = now + Duration::from_millis(300);
        slot.retire(deadline);
        slot.unretire();
        assert_eq!((slot.life(), slot.poll(deadline)), (Life::Serving, None));
        assert_eq!(slot.died(deadline), Some(Duration::ZERO));
    }

    #[test]
    fn who_retires_has_to_beat_and_if_it_does_not_is_not_followed() {
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
