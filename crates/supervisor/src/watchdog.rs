//! Tells children that hang, workers and the admin process, from those that are only delayed.
//!
//! An old heartbeat is a reason to check, not to kill: an overloaded machine, or one that was
//! suspended, stops the heartbeats of healthy children. So the kernel's view of the child's main
//! thread has to agree, over two checks: it was stopped, or has used the processor without
//! finishing a tick, or sleeps although its timer should have woken it long ago. A child that waits
//! for a processor or for a disk gets [`STARVED_MAX`]. When the master itself is late, the time of
//! all children begins anew.
//!
//! A child that starts does not beat yet and may take its time. It hangs only if it was stopped
//! over two checks.
//!
//! The decision depends only on arguments, see [`Watchdog::judge`]; only [`look`] asks the kernel.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;

use crate::child::Role;

/// The oldest heartbeat of a child with an excuse.
pub(crate) const STARVED_MAX: Duration = Duration::from_secs(10);

pub(crate) struct Watchdog {
    /// The oldest heartbeat that needs no excuse. Zero if nothing is watched.
    timeout: Duration,
    /// When the next round is due. One for all children, so that it wakes the master once.
    due: Instant,
    /// Time before this does not count against any child.
    fair_since: Instant,
    suspects: BTreeMap<Role, Suspect>,
    /// Children that are starting and were seen stopped, and since when.
    stopped: BTreeMap<Role, Instant>,
}

/// A child as the master knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vitals {
    pub(crate) role: Role,
    /// Since when it has been expected to beat.
    pub(crate) since: Instant,
    /// When it last beat, by any clock, and how long ago that is.
    pub(crate) beat_ms: u64,
    pub(crate) age: Duration,
}

/// The kernel's view of a child's main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) state: RunState,
    /// The processor time it has used in all.
    pub(crate) cpu: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Runs, or would if it got a processor.
    Runnable,
    /// Waits for an event.
    Asleep,
    /// Waits for a disk, or for memory from one.
    Blocked,
    /// By a signal, or by a debugger.
    Stopped,
}

/// Why a child is taken for hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hang {
    Stopped,
    Spinning,
    Asleep,
    /// For [`STARVED_MAX`], whatever the excuse.
    Stuck,
}

/// A child whose heartbeat is getting old.
#[derive(Clone, Copy)]
struct Suspect {
    beat_ms: u64,
    /// Since when it has been checked, and what it had used then.
    since: Instant,
    cpu: Option<Duration>,
    was_asleep: bool,
}

impl Watchdog {
    /// Without a timeout nothing is watched.
    pub(crate) fn new(timeout_ms: u64, now: Instant) -> Self {
        let timeout = Duration::from_millis(timeout_ms);
        let (suspects, stopped) = (BTreeMap::new(), BTreeMap::new());
        Self { timeout, due: now, fair_since: now, suspects, stopped }
    }

    /// Changes the timeout.
    pub(crate) fn set_timeout(&mut self, timeout_ms: u64, now: Instant) {
        let timeout = Duration::from_millis(timeout_ms);
        if timeout != self.timeout {
            *self = Self::new(timeout_ms, now);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (!self.timeout.is_zero()).then_some(self.due)
    }

    /// Begins a round if one is due: then all children that should beat are to be judged.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        if self.timeout.is_zero() || now < self.due {
            return false;
        }
        if now - self.due > self.timeout / 2 {
            // The master did not get a processor either, or the machine was suspended.
            self.fair_since = now;
            self.suspects.clear();
            self.stopped.clear();
        }
        self.due = now + self.timeout / 4;
        true
    }

    /// Whether a child hangs. `look` returns the kernel's view, if there is one. It is called for
    /// suspects only.
    pub(crate) fn judge(
        &mut self,
        vitals: Vitals,
        now: Instant,
        look: impl FnOnce() -> Option<Look>,
    ) -> Option<Hang> {
        // Until its first beat, the heartbeat is that of the slot's former holder.
        let fair = now.saturating_duration_since(vitals.since.max(self.fair_since));
        let age = vitals.age.min(fair);
        if age < self.timeout / 2 {
            self.suspects.remove(&vitals.role);
            return None;
        }
        let suspect = self.suspects.entry(vitals.role).or_insert(Suspect::new(vitals.beat_ms, now));
        if suspect.beat_ms != vitals.beat_ms {
            *suspect = Suspect::new(vitals.beat_ms, now);
        }
        let hang = suspect.examine(self.timeout, age, look(), now);
        if hang.is_some() {
            self.suspects.remove(&vitals.role);
        } else if age < self.timeout {
            // The second check comes as soon as it can decide. This saves part of the second that a
            // replacement may take.
            self.due = self.due.min(now + (self.timeout - age).max(self.timeout / 8));
        }
        hang
    }

    /// Whether a child hangs that was started then and has not beaten yet.
    pub(crate) fn judge_start(
        &mut self,
        role: Role,
        since: Instant,
        now: Instant,
        look: Option<Look>,
    ) -> Option<Hang> {
        if look.is_none_or(|look| look.state != RunState::Stopped) {
            self.stopped.remove(&role);
            return None;
        }
        let seen = self.stopped.entry(role).or_insert(now);
        if *seen < since {
            // That was its predecessor.
            *seen = now;
        }
        let at = *seen + self.timeout;
        if now < at {
            self.due = self.due.min(at);
            return None;
        }
        self.stopped.remove(&role);
        Some(Hang::Stopped)
    }
}

impl Suspect {
    fn new(beat_ms: u64, now: Instant) -> Self {
        Self { beat_ms, since: now, cpu: None, was_asleep: false }
    }

    fn examine(
        &mut self,
        timeout: Duration,
        age: Duration,
        look: Option<Look>,
        now: Instant,
    ) -> Option<Hang> {
        let is_asleep = look.is_some_and(|look| look.state == RunState::Asleep);
        let was_asleep = std::mem::replace(&mut self.was_asleep, is_asleep);
        let cpu_before = self.cpu;
        self.cpu = cpu_before.or(look.map(|look| look.cpu));
        let watched = now - self.since;
        if age < timeout {
            return None;
        }
        // Not by the clock alone, which may have jumped.
        if age >= STARVED_MAX && watched >= timeout {
            return Some(Hang::Stuck);
        }
        let look = look?;
        if look.state == RunState::Stopped {
            return Some(Hang::Stopped);
        }
        let used = look.cpu.saturating_sub(cpu_before?);
        match look.state {
            // It used all of the time, or enough in total to have finished a tick.
            RunState::Runnable if used >= (timeout / 2).min(watched / 2) => Some(Hang::Spinning),
            RunState::Asleep if was_asleep => Some(Hang::Asleep),
            RunState::Runnable | RunState::Asleep | RunState::Blocked | RunState::Stopped => None,
        }
    }
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "it is stopped",
            Self::Spinning => "it is busy and gets nowhere",
            Self::Asleep => "it sleeps and does not wake",
            Self::Stuck => "it has not got on for too long",
        })
    }
}

/// Asks the kernel about the main thread of a child, which must not have been reaped. `None` if it
/// is dead, or nothing is known about it.
pub(crate) fn look(pid: u32) -> Option<Look> {
    parse(&fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).ok()?)
}

/// See proc_pid_stat(5). The name, in parentheses, may contain anything.
fn parse(stat: &str) -> Option<Look> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let state = match *fields.first()? {
        "R" => RunState::Runnable,
        "S" => RunState::Asleep,
        "D" => RunState::Blocked,
        "T" | "t" => RunState::Stopped,
        _ => return None,
    };
    // utime and stime, fields 14 and 15.
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let cpu = Duration::from_millis(ticks * 1000 / clock_ticks_per_second());
    Some(Look { state, cpu })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(700);
    const WORKER: Role = Role::Worker { slot: 3 };

    #[test]
    fn a_beating_child_is_not_checked() {
        let mut world = World::new();
        for _ in 0..100 {
            assert_eq!(world.run(100, |_| unreachable!()), None);
            world.beat();
        }
    }

    #[test]
    fn a_child_that_sleeps_past_its_timer_hangs() {
        let mut world = World::new();
        assert_eq!(world.run(5000, |_| looks(RunState::Asleep, 0)), Some(Hang::Asleep));
        assert_eq!(world.age(), 700);
    }

    #[test]
    fn a_child_that_spins_hangs() {
        let mut world = World::new();
        assert_eq!(world.run(5000, |ms| looks(RunState::Runnable, ms)), Some(Hang::Spinning));
        assert_eq!(world.age(), 700);
    }

    #[test]
    fn a_stopped_child_hangs() {
        let mut world = World::new();
        assert_eq!(world.run(5000, |_| looks(RunState::Stopped, 0)), Some(Hang::Stopped));
        assert_eq!(world.age(), 700);
    }

    #[test]
    fn a_starting_child_hangs_only_if_stopped() {
        let mut world = World::new();
        for state in [RunState::Runnable, RunState::Asleep, RunState::Blocked] {
            assert_eq!(world.start(60_000, |_| looks(state, 0)), None);
        }
        // Short stops do not count.
        let is_stopped = |ms| ms % 1000 < 500;
        let state = |ms| if is_stopped(ms) { RunState::Stopped } else { RunState::Asleep };
        assert_eq!(world.start(10_000, |ms| looks(state(ms), 0)), None);
        let before = world.now;
        assert_eq!(world.start(5000, |_| looks(RunState::Stopped, 0)), Some(Hang::Stopped));
        assert!((700..900).contains(&(world.now - before).as_millis()));
    }

    #[test]
    fn one_child_hangs_and_others_do_not() {
        let mut world = World::new();
        let mut found = Vec::new();
        for _ in 0..5000 {
            world.now += Duration::from_millis(1);
            if !world.watchdog.begin(world.now) {
                continue;
            }
            let hung = Vitals { role: Role::Admin, ..world.vitals() };
            let well = Vitals { age: Duration::ZERO, ..world.vitals() };
            let now = world.now;
            assert_eq!(world.watchdog.judge(well, now, || unreachable!()), None);
            found.extend(world.watchdog.judge(hung, now, || looks(RunState::Stopped, 0)));
            if !found.is_empty() {
                break;
            }
        }
        assert_eq!((found, world.age()), (vec![Hang::Stopped], 700));
    }

    #[test]
    fn a_starting_child_is_not_blamed_for_its_predecessor() {
        let mut world = World::new();
        assert_eq!(world.start(690, |_| looks(RunState::Stopped, 0)), None);
        world.since = world.now;
        assert_eq!(world.start(690, |_| looks(RunState::Stopped, 0)), None);
        assert_eq!(world.start(200, |_| looks(RunState::Stopped, 0)), Some(Hang::Stopped));
    }

    #[test]
    fn a_starved_child_gets_time() {
        for state in [RunState::Runnable, RunState::Blocked] {
            let mut world = World::new();
            assert_eq!(world.run(9000, |_| looks(state, 0)), None);
            world.beat();
            assert_eq!(world.run(60_000, |_| looks(state, 0)), Some(Hang::Stuck));
            assert!((10_000..10_200).contains(&world.age()), "{}", world.age());
        }
    }

    #[test]
    fn a_child_that_spins_with_little_processor_time_is_found_later() {
        let mut world = World::new();
        assert_eq!(
            world.run(60_000, |ms| looks(RunState::Runnable, ms / 10)),
            Some(Hang::Spinning)
        );
        assert!((3500..4200).contains(&world.age()), "{}", world.age());
    }

    #[test]
    fn a_child_that_happened_to_sleep_is_checked_again() {
        let mut world = World::new();
        let mut states = [RunState::Asleep, RunState::Runnable].into_iter().cycle();
        let hang = world.run(5000, |_| looks(states.next().unwrap(), 0));
        assert_eq!(hang, None);
    }

    #[test]
    fn processor_time_before_the_last_heartbeat_does_not_count() {
        let mut world = World::new();
        for _ in 0..20 {
            assert_eq!(world.run(600, |ms| looks(RunState::Runnable, ms)), None);
            world.beat();
        }
    }

    #[test]
    fn a_machine_that_was_suspended_kills_nobody() {
        let mut world = World::new();
        world.run(1000, |_| looks(RunState::Runnable, 0));
        world.now += Duration::from_secs(3600);
        assert_eq!(world.run(500, |_| looks(RunState::Asleep, 0)), None);
        world.beat();
        assert_eq!(world.run(340, |_| unreachable!()), None);
    }

    #[test]
    fn a_jump_of_the_clock_in_a_round_kills_nobody() {
        let mut world = World::new();
        let now = world.now;
        assert!(world.watchdog.begin(now + TIMEOUT / 4));
        let vitals = Vitals { age: Duration::from_secs(60), ..world.vitals() };
        let at = now + Duration::from_secs(60);
        assert_eq!(world.watchdog.judge(vitals, at, || looks(RunState::Asleep, 0)), None);
        assert!(world.watchdog.begin(at));
        let vitals = Vitals { age: Duration::from_secs(60), ..world.vitals() };
        assert_eq!(world.watchdog.judge(vitals, at, || unreachable!()), None);
    }

    #[test]
    fn the_predecessor_s_heartbeat_does_not_count() {
        let mut world = World::new();
        world.now += Duration::from_secs(60);
        world.since = world.now;
        assert!(world.watchdog.begin(world.now));
        assert_eq!(world.run(340, |_| unreachable!()), None);
        assert_eq!(world.run(200, |_| looks(RunState::Asleep, 0)), None);
        assert_eq!(world.run(200, |_| looks(RunState::Asleep, 0)), Some(Hang::Asleep));
    }

    #[test]
    fn without_procfs_only_time_decides() {
        let mut world = World::new();
        assert_eq!(world.run(60_000, |_| None), Some(Hang::Stuck));
        assert!((10_000..10_200).contains(&world.age()), "{}", world.age());
    }

    #[test]
    fn without_a_timeout_nothing_is_watched() {
        let mut world = World::new();
        world.watchdog.set_timeout(0, world.now);
        assert_eq!(world.watchdog.poll_timeout(), None);
        assert_eq!(world.run(60_000, |_| unreachable!()), None);
    }

    #[test]
    fn proc_stat_is_understood() {
        let stat = |state| {
            format!("7 (a) R 1 (x) {state} 1 1 1 0 -1 4194304 92 0 0 0 30 12 0 0 20 0 1 0 9\n")
        };
        let cpu = Duration::from_millis(42 * 1000 / clock_ticks_per_second());
        for (letter, state) in [
            ("R", RunState::Runnable),
            ("S", RunState::Asleep),
            ("D", RunState::Blocked),
            ("T", RunState::Stopped),
            ("t", RunState::Stopped),
        ] {
            assert_eq!(parse(&stat(letter)), Some(Look { state, cpu }));
        }
        assert_eq!(parse(&stat("Z")), None);
        for garbage in ["", "7", "7 (a", "7 (a) ", "7 (a) R", "7 (a) R 1 1 1 0 -1 4 9 0 0 0 x y"] {
            assert_eq!(parse(garbage), None, "{garbage}");
        }
        assert!(look(std::process::id()).is_some());
        assert_eq!(look(u32::MAX), None);
    }

    struct World {
        watchdog: Watchdog,
        now: Instant,
        since: Instant,
        beat_at: Instant,
        beats: u64,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            let watchdog = Watchdog::new(TIMEOUT.as_millis() as u64, now);
            Self { watchdog, now, since: now, beat_at: now, beats: 0 }
        }

        fn beat(&mut self) {
            self.beats += 1;
            self.beat_at = self.now;
        }

        fn age(&self) -> u128 {
            (self.now - self.beat_at).as_millis()
        }

        fn vitals(&self) -> Vitals {
            let age = self.now - self.beat_at;
            Vitals { role: WORKER, since: self.since, beat_ms: self.beats, age }
        }

        /// Lets so much time pass, or less if a hang is found. `look` gets the elapsed time.
        fn run(
            &mut self,
            milliseconds: u64,
            mut look: impl FnMut(u64) -> Option<Look>,
        ) -> Option<Hang> {
            for passed in 0..milliseconds {
                self.now += Duration::from_millis(1);
                if self.watchdog.begin(self.now) {
                    let vitals = self.vitals();
                    let hang = self.watchdog.judge(vitals, self.now, || look(passed));
                    if hang.is_some() {
                        return hang;
                    }
                }
            }
            None
        }

        /// Like [`run`](Self::run), for a child that is not ready yet.
        fn start(&mut self, milliseconds: u64, look: impl Fn(u64) -> Option<Look>) -> Option<Hang> {
            for passed in 0..milliseconds {
                self.now += Duration::from_millis(1);
                if self.watchdog.begin(self.now) {
                    let look = look(passed);
                    let hang = self.watchdog.judge_start(WORKER, self.since, self.now, look);
                    if hang.is_some() {
                        return hang;
                    }
                }
            }
            None
        }
    }

    fn looks(state: RunState, cpu_ms: u64) -> Option<Look> {
        Some(Look { state, cpu: Duration::from_millis(cpu_ms) })
    }
}
