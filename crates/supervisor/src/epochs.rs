//! The change from one epoch to the next, agreed on by all workers.
//!
//! First every worker *prepares* the new epoch beside the old one. When all have, every worker
//! *pauses*: it dispatches nothing more in the pools whose keys may move. When all have paused they
//! get the same message once more: only then is nothing published any more, and a worker reads
//! everything published before it confirms the pause. Then every worker *commits*. So at no instant
//! do two workers dispatch by different rings of one pool.
//!
//! A change may be *gated*: then something outside has to be done while all have paused, and nothing may be on its way
//! ([`Output::CatchUp`], [`Epochs::caught_up`]).
//!
//! Up to the commit, a refusal, a death or a delay aborts the change, and the old epoch stays in
//! effect. From the commit on nothing stops it: a worker that does not confirm is condemned. At any
//! time, a worker that delays the change and has never served is condemned too; the others continue
//! when it is dead.
//!
//! A pure state machine: events and the time go in, [`Output`] comes out of [`Epochs::poll_output`]
//! and is acted on in order. It relies on two things: a channel delivers in order, and a worker
//! that has [left](Epochs::left) is dead, not just unreachable. No worker may join between the
//! beginning and [`Output::Switch`]; one that joins then starts with the new epoch.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::ring::Slot;

/// How long workers may take to prepare: read the snapshot, build rings and connect.
pub(crate) const PREPARE_TIMEOUT: Duration = Duration::from_secs(10);
/// So much longer they may take for each server: rings of very many take seconds to build where processors are slow.
const PREPARE_EACH_SERVER: Duration = Duration::from_millis(2);

/// How long a pause may take beyond the time allowed for requests in flight.
pub(crate) const PAUSE_GRACE: Duration = Duration::from_secs(2);

/// The most drain time for the second pause message.
pub(crate) const SETTLE_MAX_MS: u64 = 200;

/// How long it may take what a gated change waits for, while clients wait.
pub(crate) const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(6);

/// How long a condemned worker may take to die.
pub(crate) const DEATH_GRACE: Duration = Duration::from_secs(3);

/// How long workers may take to confirm the commit.
pub(crate) const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Epochs {
    change: Option<Change>,
    /// How many servers the next epoch has.
    servers: usize,
    /// Of the next change.
    pause_max: Option<Duration>,
    outputs: VecDeque<Output>,
}

/// What to do now, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Send(Slot, Step),
    /// All have paused: what the gate waits for can be done.
    CatchUp,
    /// The new epoch takes effect. Always before the first [`Step::Commit`]. `unfinished` requests
    /// were still in flight when the drain time was over.
    Switch {
        unfinished: u64,
    },
    /// Kill this worker: it did not answer in time.
    Condemn(Slot, &'static str),
    /// All living workers serve by the new epoch.
    Done,
    /// No worker wanted the change. The old epoch stays.
    Needless,
    Aborted(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Prepare,
    Pause { drain_ms: u64 },
    Commit,
    Abort,
}

#[derive(Debug)]
struct Change {
    epoch: u64,
    phase: Phase,
    workers: BTreeSet<Slot>,
    /// Workers that have not answered in this phase.
    waiting: BTreeSet<Slot>,
    deadline: Instant,
    /// The workers in `waiting` are condemned already.
    is_mourning: bool,
    drain_ms: u64,
    unfinished: u64,
    is_gated: bool,
    /// How long workers may be paused until it is decided, if it is gated; see [`CATCH_UP_TIMEOUT`].
    pause_max: Option<Duration>,
    paused_at: Instant,
    /// The change is wanted. If not, it ends when all have prepared it.
    is_wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Preparing,
    Pausing,
    /// All have paused and get the message again.
    Settling,
    /// Nobody's answer is waited for but that of the gate.
    CatchingUp,
    Committing,
}

impl Epochs {
    /// Begins a change, with a gate or without.
    ///
    /// # Panics
    ///
    /// If a change is under way.
    pub(crate) fn begin(
        &mut self,
        epoch: u64,
        workers: impl IntoIterator<Item = Slot>,
        (drain_ms, is_gated): (u64, bool),
        now: Instant,
    ) {
        assert!(self.change.is_none(), "one change at a time");
        let workers: BTreeSet<Slot> = workers.into_iter().collect();
        self.change = Some(Change {
            epoch,
            phase: Phase::Preparing,
            waiting: workers.clone(),
            workers,
            deadline: now + PREPARE_TIMEOUT + PREPARE_EACH_SERVER * self.servers as u32,
            is_mourning: false,
            drain_ms,
            unfinished: 0,
            is_gated,
            pause_max: self.pause_max.take(),
            paused_at: now,
            is_wanted: true,
        });
        self.send(Step::Prepare);
        self.advance(now);
    }

    /// The next change is to an epoch with so many servers.
    pub(crate) fn expect(&mut self, servers: usize) {
        self.servers = servers.min(u32::MAX as usize);
    }

    /// If the next change is gated it has no effect unless the gate opens so soon after the pause has begun.
    pub(crate) fn pause_within(&mut self, most: Duration) {
        self.pause_max = Some(most);
    }

    /// The current change takes effect only if a worker [wants](Self::wanted) it; otherwise it ends
    /// when all have prepared. Only workers can know.
    pub(crate) fn only_if_wanted(&mut self) {
        if let Some(change) = &mut self.change {
            change.is_wanted = false;
        }
    }

    pub(crate) fn wanted(&mut self, epoch: u64) {
        if let Some(change) = &mut self.change
            && change.epoch == epoch
        {
            change.is_wanted = true;
        }
    }

    pub(crate) fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Whether a worker started now would start with an epoch that may soon be replaced.
    pub(crate) fn is_undecided(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.phase != Phase::Committing)
    }

    /// Whether the worker has been sent the commit and has not confirmed it, so that its messages
    /// may still refer to the old epoch.
    pub(crate) fn is_behind(&self, slot: Slot) -> bool {
        self.change.as_ref().is_some_and(|change| {
            change.phase == Phase::Committing && change.waiting.contains(&slot)
        })
    }

    pub(crate) fn prepared(&mut self, slot: Slot, epoch: u64, now: Instant) {
        self.answered(slot, epoch, Phase::Preparing, now);
    }

    pub(crate) fn paused(&mut self, slot: Slot, epoch: u64, unfinished: u64, now: Instant) {
        if let Some(change) = &mut self.change
            && change.epoch == epoch
            && matches!(change.phase, Phase::Pausing | Phase::Settling)
        {
            change.unfinished += unfinished;
            let phase = change.phase;
            self.answered(slot, epoch, phase, now);
        }
    }

    /// Whether that change waits for its gate.
    pub(crate) fn is_catching_up(&self, epoch: u64) -> bool {
        self.change.as_ref().is_some_and(|it| it.epoch == epoch && it.phase == Phase::CatchingUp)
    }

    /// The gate is open.
    pub(crate) fn caught_up(&mut self, epoch: u64, now: Instant) {
        if self.is_catching_up(epoch) {
            self.commit(now);
            self.advance(now);
        }
    }

    pub(crate) fn committed(&mut self, slot: Slot, epoch: u64, now: Instant) {
        self.answered(slot, epoch, Phase::Committing, now);
    }

    pub(crate) fn refused(&mut self, slot: Slot, epoch: u64, why: &str) {
        let Some(change) = &self.change else { return };
        if change.epoch == epoch && change.workers.contains(&slot) {
            self.abort(format!("worker {slot} refuses it: {why}"));
        }
    }

    /// A worker is dead. `is_missed` is false for one that never got ready or was about to end:
    /// then the change goes on.
    pub(crate) fn left(&mut self, slot: Slot, is_missed: bool, now: Instant) {
        self.outputs.retain(|output| !matches!(output, Output::Send(to, _) if *to == slot));
        let Some(change) = &mut self.change else { return };
        change.waiting.remove(&slot);
        if !change.workers.remove(&slot) {
            return;
        }
        if is_missed && change.phase != Phase::Committing {
            self.abort(format!("worker {slot} died meanwhile"));
        } else {
            self.advance(now);
        }
    }

    /// Aborts the change, unless it is decided.
    pub(crate) fn abort(&mut self, why: String) {
        let undecided = |change: &mut Change| change.phase != Phase::Committing;
        if let Some(change) = self.change.take_if(undecided) {
            let abort = |slot| Output::Send(slot, Step::Abort);
            self.outputs.extend(change.workers.into_iter().map(abort));
            self.outputs.push_back(Output::Aborted(why));
        }
    }

    /// `has_served` says whether a worker has ever been ready.
    pub(crate) fn handle_timeout(&mut self, has_served: impl Fn(Slot) -> bool, now: Instant) {
        let Some(change) = &mut self.change else { return };
        if now < change.deadline {
            return;
        }
        let condemn = |why| move |&slot: &Slot| Output::Condemn(slot, why);
        let late = match change.phase {
            Phase::Preparing => "prepared",
            Phase::Pausing | Phase::Settling => "paused",
            Phase::CatchingUp => {
                let why = match change.pause_max {
                    Some(most) => format!("clients would wait longer than {} s", most.as_secs()),
                    None => "the copy was not complete in time".to_owned(),
                };
                return self.abort(why);
            }
            Phase::Committing => {
                let why = "it does not confirm a commit";
                self.outputs.extend(change.waiting.iter().map(condemn(why)));
                change.waiting.clear();
                return self.advance(now);
            }
        };
        if change.is_mourning || change.waiting.iter().any(|&slot| has_served(slot)) {
            let why = format!("{} not {late} in time", have(&change.waiting));
            return self.abort(why);
        }
        // It may have begun to serve just now, so it must be dead before anything else happens.
        change.is_mourning = true;
        change.deadline = now + DEATH_GRACE;
        let why = "it is not ready, and delays a reload";
        self.outputs.extend(change.waiting.iter().map(condemn(why)));
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.change.as_ref().map(|change| change.deadline)
    }

    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn answered(&mut self, slot: Slot, epoch: u64, phase: Phase, now: Instant) {
        let Some(change) = &mut self.change else { return };
        if change.epoch == epoch && change.phase == phase && change.waiting.remove(&slot) {
            self.advance(now);
        }
    }

    /// Moves to the next phase when all workers have answered. Without workers, passes through all
    /// phases at once.
    fn advance(&mut self, now: Instant) {
        while let Some(change) = &mut self.change
            && change.waiting.is_empty()
            && change.phase != Phase::CatchingUp
        {
            change.waiting.clone_from(&change.workers);
            change.is_mourning = false;
            match change.phase {
                Phase::Preparing if !change.is_wanted => {
                    self.send(Step::Abort);
                    self.change = None;
                    self.outputs.push_back(Output::Needless);
                    return;
                }
                Phase::Preparing => {
                    let drain_ms = change.drain_ms;
                    change.phase = Phase::Pausing;
                    change.paused_at = now;
                    change.deadline = now + Duration::from_millis(drain_ms) + PAUSE_GRACE;
                    self.send(Step::Pause { drain_ms });
                }
                // Unfinished requests may still publish, and a single worker knows what it has
                // published.
                Phase::Pausing if change.workers.len() > 1 && change.unfinished == 0 => {
                    let drain_ms = change.drain_ms.min(SETTLE_MAX_MS);
                    change.phase = Phase::Settling;
                    change.deadline = now + Duration::from_millis(drain_ms) + PAUSE_GRACE;
                    self.send(Step::Pause { drain_ms });
                }
                Phase::Pausing | Phase::Settling if change.is_gated && change.unfinished > 0 => {
                    let unfinished = change.unfinished;
                    self.abort(format!("{unfinished} requests were not answered in time"));
                }
                Phase::Pausing | Phase::Settling if change.is_gated => {
                    change.phase = Phase::CatchingUp;
                    change.waiting.clear();
                    let limit = change.pause_max.map(|most| change.paused_at + most);
                    change.deadline = limit.unwrap_or(now + CATCH_UP_TIMEOUT);
                    self.outputs.push_back(Output::CatchUp);
                }
                Phase::Pausing | Phase::Settling => self.commit(now),
                Phase::CatchingUp => return,
                Phase::Committing => {
                    self.change = None;
                    self.outputs.push_back(Output::Done);
                }
            }
        }
    }

    /// Decides it.
    fn commit(&mut self, now: Instant) {
        let Some(change) = &mut self.change else { return };
        change.phase = Phase::Committing;
        change.waiting.clone_from(&change.workers);
        change.deadline = now + COMMIT_TIMEOUT;
        let unfinished = change.unfinished;
        self.outputs.push_back(Output::Switch { unfinished });
        self.send(Step::Commit);
    }

    fn send(&mut self, step: Step) {
        let change = self.change.as_ref().expect("a change is under way");
        self.outputs.extend(change.workers.iter().map(|&slot| Output::Send(slot, step)));
    }
}

/// "worker 3 has", "workers 1, 2 have".
fn have(slots: &BTreeSet<Slot>) -> String {
    let list: Vec<String> = slots.iter().map(Slot::to_string).collect();
    match list.len() {
        1 => format!("worker {} has", list[0]),
        _ => format!("workers {} have", list.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN_MS: u64 = 500;
    const ALL_SERVED: fn(Slot) -> bool = |_| true;

    #[test]
    fn very_many_servers_have_more_time_to_be_prepared() {
        let (mut epochs, now) = (Epochs::default(), Instant::now());
        epochs.expect(10_000);
        epochs.begin(2, [0], (0, false), now);
        assert_eq!(epochs.poll_timeout(), Some(now + PREPARE_TIMEOUT + Duration::from_secs(20)));
    }

    #[test]
    fn all_phases_wait_for_all_workers() {
        let (mut epochs, now) = begun([0, 1]);
        assert_eq!(outputs(&mut epochs), sent_to([0, 1], Step::Prepare));
        epochs.prepared(1, 2, now);
        assert_eq!(outputs(&mut epochs), []);
        epochs.prepared(0, 2, now);
        assert_eq!(outputs(&mut epochs), sent_to([0, 1], Step::Pause { drain_ms: DRAIN_MS }));
        epochs.paused(0, 2, 3, now);
        epochs.paused(1, 2, 4, now);
        let mut expected = vec![Output::Switch { unfinished: 7 }];
        expected.extend(sent_to([0, 1], Step::Commit));
        assert_eq!(outputs(&mut epochs), expected);
        epochs.committed(0, 2, now);
        assert!(epochs.is_behind(1) && !epochs.is_behind(0) && !epochs.is_undecided());
        epochs.committed(1, 2, now);
        assert_eq!(outputs(&mut epochs), [Output::Done]);
        assert!(!epochs.is_changing());
        assert_eq!(epochs.poll_timeout(), None);
    }

    #[test]
    fn an_unwanted_change_ends_when_all_have_prepared() {
        let (mut epochs, now) = begun([0, 1]);
        epochs.only_if_wanted();
        outputs(&mut epochs);
        epochs.wanted(1);
        epochs.prepared(0, 2, now);
        assert_eq!(outputs(&mut epochs), []);
        epochs.prepared(1, 2, now);
        let mut expected = sent_to([0, 1], Step::Abort);
        expected.push(Output::Needless);
        assert_eq!(outputs(&mut epochs), expected);
        assert!(!epochs.is_changing());

        let (mut epochs, now) = begun([0, 1]);
        epochs.only_if_wanted();
        outputs(&mut epochs);
        epochs.wanted(2);
        epochs.prepared(0, 2, now);
        epochs.prepared(1, 2, now);
        assert_eq!(outputs(&mut epochs), sent_to([0, 1], Step::Pause { drain_ms: DRAIN_MS }));
    }

    #[test]
    fn a_refusal_aborts() {
        let (mut epochs, now) = begun([0, 1]);
        epochs.prepared(0, 2, now);
        outputs(&mut epochs);
        epochs.refused(1, 2, "no memory");
        let mut expected = sent_to([0, 1], Step::Abort);
        expected.push(Output::Aborted("worker 1 refuses it: no memory".into()));
        assert_eq!(outputs(&mut epochs), expected);
        epochs.prepared(1, 2, now);
        assert_eq!(outputs(&mut epochs), []);
    }

    #[test]
    fn answers_to_another_change_are_ignored() {
        let (mut epochs, now) = begun([0]);
        outputs(&mut epochs);
        epochs.prepared(0, 1, now);
        epochs.refused(0, 1, "late");
        epochs.paused(0, 2, 0, now);
        epochs.committed(0, 2, now);
        assert_eq!(outputs(&mut epochs), []);
    }

    #[test]
    fn a_gated_change_is_decided_when_the_gate_opens_and_nothing_is_on_its_way() {
        let paused = |unfinished| {
            let (mut epochs, now) = (Epochs::default(), Instant::now());
            epochs.begin(2, [0, 1], (DRAIN_MS, true), now);
            for slot in [0, 1] {
                epochs.prepared(slot, 2, now);
            }
            for slot in [0, 1, 0, 1] {
                epochs.paused(slot, 2, unfinished, now);
            }
            let last = outputs(&mut epochs).pop();
            (epochs, now, last)
        };
        let (mut epochs, now, last) = paused(0);
        assert_eq!(last, Some(Output::CatchUp));
        epochs.caught_up(1, now);
        assert!(
            outputs(&mut epochs).is_empty() && epochs.is_undecided() && epochs.is_catching_up(2)
        );
        epochs.caught_up(2, now);
        let mut expected = vec![Output::Switch { unfinished: 0 }];
        expected.extend(sent_to([0, 1], Step::Commit));
        assert_eq!(outputs(&mut epochs), expected);
        for slot in [0, 1] {
            epochs.committed(slot, 2, now);
        }
        assert_eq!(outputs(&mut epochs), [Output::Done]);

        let (mut epochs, now, _) = paused(0);
        epochs.handle_timeout(ALL_SERVED, now + CATCH_UP_TIMEOUT);
        let why = "the copy was not complete in time".to_owned();
        assert_eq!(outputs(&mut epochs).pop(), Some(Output::Aborted(why)));
        epochs.caught_up(2, now);
        assert_eq!(outputs(&mut epochs), []);

        // Where the pause has a limit, waiting for requests is a part of it.
        let (mut epochs, now) = (Epochs::default(), Instant::now());
        epochs.pause_within(Duration::from_secs(4));
        epochs.begin(2, [0], (DRAIN_MS, true), now);
        epochs.prepared(0, 2, now);
        epochs.paused(0, 2, 0, now + Duration::from_secs(1));
        assert_eq!(outputs(&mut epochs).pop(), Some(Output::CatchUp));
        assert_eq!(epochs.poll_timeout(), Some(now + Duration::from_secs(4)));
        epochs.handle_timeout(ALL_SERVED, now + Duration::from_secs(4));
        let why = "clients would wait longer than 4 s".to_owned();
        assert_eq!(outputs(&mut epochs).pop(), Some(Output::Aborted(why)));
        // It was that of one change.
        epochs.begin(3, [], (DRAIN_MS, true), now);
        assert_eq!(epochs.poll_timeout(), Some(now + CATCH_UP_TIMEOUT));

        let (mut epochs, now, _) = paused(0);
        epochs.left(1, true, now);
        epochs.caught_up(2, now);
        let why = "worker 1 died meanwhile".to_owned();
        assert_eq!(outputs(&mut epochs).pop(), Some(Output::Aborted(why)));

        let (_, _, last) = paused(3);
        assert_eq!(last, Some(Output::Aborted("6 requests were not answered in time".to_owned())));

        // Also without workers.
        let (mut epochs, now) = (Epochs::default(), Instant::now());
        epochs.begin(2, [], (DRAIN_MS, true), now);
        assert_eq!(outputs(&mut epochs), [Output::CatchUp]);
        epochs.caught_up(2, now);
        assert_eq!(outputs(&mut epochs), [Output::Switch { unfinished: 0 }, Output::Done]);
    }

    #[test]
    fn a_death_aborts_an_undecided_change() {
        let (mut epochs, now) = begun([0, 1]);
        outputs(&mut epochs);
        epochs.left(1, true, now);
        let aborted = Output::Aborted("worker 1 died meanwhile".into());
        assert_eq!(outputs(&mut epochs), [Output::Send(0, Step::Abort), aborted]);

        let (mut epochs, now) = begun([0, 1]);
        for slot in [0, 1] {
            epochs.prepared(slot, 2, now);
        }
        for slot in [0, 1, 0, 1] {
            epochs.paused(slot, 2, 0, now);
        }
        epochs.committed(0, 2, now);
        outputs(&mut epochs);
        epochs.left(1, true, now);
        assert_eq!(outputs(&mut epochs), [Output::Done]);
    }

    #[test]
    fn all_workers_pause_again_when_all_have_paused() {
        let (mut epochs, now) = begun([0, 1]);
        for slot in [0, 1] {
            epochs.prepared(slot, 2, now);
        }
        outputs(&mut epochs);
        for slot in [0, 1] {
            assert_eq!(outputs(&mut epochs), []);
            epochs.paused(slot, 2, 0, now);
        }
        assert_eq!(outputs(&mut epochs), sent_to([0, 1], Step::Pause { drain_ms: SETTLE_MAX_MS }));
        assert!(epochs.is_undecided());
        epochs.paused(0, 2, 0, now);
        assert_eq!(outputs(&mut epochs), []);
        epochs.left(1, false, now);
        let committed = [Output::Switch { unfinished: 0 }, Output::Send(0, Step::Commit)];
        assert_eq!(outputs(&mut epochs), committed);
        // A single worker knows what it has published.
        let (mut epochs, now) = begun([0]);
        epochs.prepared(0, 2, now);
        outputs(&mut epochs);
        epochs.paused(0, 2, 0, now);
        assert_eq!(outputs(&mut epochs), committed);
    }

    #[test]
    fn a_worker_that_is_not_missed_aborts_nothing() {
        let (mut epochs, now) = begun([0, 1]);
        epochs.prepared(0, 2, now);
        outputs(&mut epochs);
        epochs.left(1, false, now);
        assert_eq!(outputs(&mut epochs), sent_to([0], Step::Pause { drain_ms: DRAIN_MS }));
    }

    #[test]
    fn delays_abort_before_the_commit_and_condemn_after_it() {
        let (mut epochs, now) = begun([0, 1]);
        epochs.prepared(0, 2, now);
        epochs.handle_timeout(ALL_SERVED, now + PREPARE_TIMEOUT - Duration::from_millis(1));
        assert!(epochs.is_undecided());
        epochs.handle_timeout(ALL_SERVED, now + PREPARE_TIMEOUT);
        let why = "worker 1 has not prepared in time".into();
        assert_eq!(outputs(&mut epochs).last(), Some(&Output::Aborted(why)));

        let (mut epochs, now) = begun([0, 1]);
        epochs.prepared(0, 2, now);
        epochs.prepared(1, 2, now);
        let late = epochs.poll_timeout().unwrap();
        assert_eq!(late, now + Duration::from_millis(DRAIN_MS) + PAUSE_GRACE);
        epochs.handle_timeout(ALL_SERVED, late);
        let why = "workers 0, 1 have not paused in time".into();
        assert_eq!(outputs(&mut epochs).last(), Some(&Output::Aborted(why)));

        let (mut epochs, now) = begun([0]);
        epochs.prepared(0, 2, now);
        epochs.paused(0, 2, 0, now);
        outputs(&mut epochs);
        epochs.abort("too late".into());
        assert_eq!(outputs(&mut epochs), []);
        epochs.handle_timeout(ALL_SERVED, now + COMMIT_TIMEOUT);
        let why = "it does not confirm a commit";
        assert_eq!(outputs(&mut epochs), [Output::Condemn(0, why), Output::Done]);
    }

    #[test]
    fn a_delaying_worker_that_never_served_is_condemned_and_the_others_continue() {
        const CONDEMNED: [Output; 1] = [Output::Condemn(1, "it is not ready, and delays a reload")];
        let zero_has_served = |slot| slot == 0;
        let (mut epochs, mut now) = begun([0, 1]);
        outputs(&mut epochs);
        epochs.prepared(0, 2, now);
        now += PREPARE_TIMEOUT;
        epochs.handle_timeout(zero_has_served, now);
        assert_eq!(outputs(&mut epochs), CONDEMNED);
        // Nothing happens before it is dead.
        epochs.handle_timeout(zero_has_served, now + DEATH_GRACE - Duration::from_millis(1));
        assert_eq!(outputs(&mut epochs), []);
        epochs.left(1, false, now);
        assert_eq!(outputs(&mut epochs), sent_to([0], Step::Pause { drain_ms: DRAIN_MS }));
        epochs.paused(0, 2, 0, now);
        epochs.committed(0, 2, now);
        assert_eq!(outputs(&mut epochs).last(), Some(&Output::Done));

        let (mut epochs, mut now) = begun([0, 1]);
        epochs.prepared(0, 2, now);
        epochs.prepared(1, 2, now);
        epochs.paused(0, 2, 0, now);
        outputs(&mut epochs);
        now = epochs.poll_timeout().unwrap();
        epochs.handle_timeout(zero_has_served, now);
        assert_eq!(outputs(&mut epochs), CONDEMNED);
        // It does not die either.
        epochs.handle_timeout(zero_has_served, now + DEATH_GRACE);
        let why = "worker 1 has not paused in time".into();
        assert_eq!(outputs(&mut epochs).last(), Some(&Output::Aborted(why)));

        let (mut epochs, now) = begun([0, 1]);
        outputs(&mut epochs);
        epochs.handle_timeout(zero_has_served, now + PREPARE_TIMEOUT);
        let why = "workers 0, 1 have not prepared in time".into();
        assert_eq!(outputs(&mut epochs).last(), Some(&Output::Aborted(why)));
    }

    #[test]
    fn without_workers_a_change_is_done_at_once() {
        let (mut epochs, _) = begun([]);
        assert_eq!(outputs(&mut epochs), [Output::Switch { unfinished: 0 }, Output::Done]);
    }

    /// Workers that read their messages late, refuse, die and are replaced at random moments never
    /// dispatch by two epochs at once.
    #[test]
    fn no_two_workers_ever_dispatch_by_different_epochs() {
        let mut changes = 0;
        let mut aborts = 0;
        let mut needless = 0;
        let mut condemned = 0;
        for seed in 1..=300 {
            let mut simulation = Simulation::new(seed);
            simulation.run();
            changes += simulation.changes;
            aborts += simulation.aborts;
            needless += simulation.needless;
            condemned += simulation.condemned;
        }
        let happened = (changes, aborts, needless, condemned);
        let enough = changes > 1000 && aborts > 1000 && needless > 100 && condemned > 100;
        assert!(enough, "too little: {happened:?}");
    }

    struct Simulation {
        random: u64,
        epochs: Epochs,
        now: Instant,
        /// In effect, as the master sees it.
        epoch: u64,
        /// Numbers are not reused, not even that of an aborted change.
        last: u64,
        workers: [Option<Worker>; 3],
        changes: u32,
        aborts: u32,
        needless: u32,
        condemned: u32,
    }

    struct Worker {
        inbox: VecDeque<(u64, Step)>,
        epoch: u64,
        prepared: Option<u64>,
        paused: bool,
        is_ready: bool,
    }

    impl Simulation {
        fn new(random: u64) -> Self {
            Self {
                random,
                epochs: Epochs::default(),
                now: Instant::now(),
                epoch: 1,
                last: 1,
                workers: [(); 3].map(|()| None),
                changes: 0,
                aborts: 0,
                needless: 0,
                condemned: 0,
            }
        }

        fn run(&mut self) {
            for _ in 0..1000 {
                self.step();
                self.act();
                self.check();
            }
        }

        fn step(&mut self) {
            let slot = self.below(3);
            match self.below(40) {
                0 if self.workers[slot].is_some() => {
                    self.kill(slot);
                }
                1..=4 if self.workers[slot].is_none() && !self.epochs.is_undecided() => {
                    let (epoch, inbox) = (self.epoch, VecDeque::new());
                    let (prepared, paused, is_ready) = (None, false, false);
                    self.workers[slot] = Some(Worker { inbox, epoch, prepared, paused, is_ready });
                }
                5..=7 if !self.epochs.is_changing() => {
                    self.last += 1;
                    let alive = (0..).zip(&self.workers).filter(|(_, worker)| worker.is_some());
                    let alive: Vec<Slot> = alive.map(|(slot, _)| slot).collect();
                    self.epochs.begin(self.last, alive, (DRAIN_MS, false), self.now);
                    if self.below(4) == 0 {
                        self.epochs.only_if_wanted();
                    }
                }
                8 => {
                    let pause = Duration::from_millis(self.below(6000) as u64);
                    self.now += pause;
                    let served = self.workers.each_ref().map(Self::has_served);
                    self.epochs.handle_timeout(|slot| served[slot as usize], self.now);
                }
                9 if self.below(8) == 0 => {
                    if let Some(worker) = &mut self.workers[slot] {
                        worker.is_ready = true;
                    }
                }
                _ => self.read(slot),
            }
        }

        fn act(&mut self) {
            while let Some(output) = self.epochs.poll_output() {
                match output {
                    Output::Send(slot, step) => {
                        let worker = self.workers[slot as usize].as_mut();
                        let worker = worker.expect("messages of the dead are dropped");
                        worker.inbox.push_back((self.last, step));
                    }
                    Output::Switch { .. } => self.epoch = self.last,
                    Output::Condemn(slot, _) => {
                        self.condemned += 1;
                        self.kill(slot as usize);
                    }
                    Output::CatchUp => unreachable!("no change is gated"),
                    Output::Done => self.changes += 1,
                    Output::Needless => self.needless += 1,
                    Output::Aborted(_) => self.aborts += 1,
                }
            }
        }

        fn kill(&mut self, slot: usize) {
            let is_missed = Self::has_served(&self.workers[slot].take());
            self.epochs.left(slot as Slot, is_missed, self.now);
        }

        fn has_served(worker: &Option<Worker>) -> bool {
            worker.as_ref().is_some_and(|worker| worker.is_ready)
        }

        fn read(&mut self, slot: usize) {
            let refuses = self.below(20) == 0;
            let Some(worker) = &mut self.workers[slot] else { return };
            let Some((epoch, step)) = worker.inbox.pop_front() else { return };
            let slot = slot as Slot;
            match step {
                Step::Prepare if refuses => self.epochs.refused(slot, epoch, "no"),
                Step::Prepare => {
                    worker.prepared = Some(epoch);
                    self.epochs.prepared(slot, epoch, self.now);
                }
                Step::Pause { .. } => {
                    worker.paused = true;
                    self.epochs.paused(slot, epoch, 0, self.now);
                }
                Step::Commit => {
                    worker.epoch = worker.prepared.take().expect("only who prepared commits");
                    assert!(worker.paused && worker.epoch == epoch);
                    worker.paused = false;
                    self.epochs.committed(slot, epoch, self.now);
                }
                Step::Abort => {
                    worker.prepared = None;
                    worker.paused = false;
                }
            }
        }

        fn check(&self) {
            let mut dispatching = self.workers.iter().flatten().filter(|worker| !worker.paused);
            if let Some(first) = dispatching.next() {
                assert!(dispatching.all(|other| other.epoch == first.epoch));
            }
        }

        fn below(&mut self, limit: usize) -> usize {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 33) as usize % limit
        }
    }

    fn begun<const N: usize>(slots: [Slot; N]) -> (Epochs, Instant) {
        let now = Instant::now();
        let mut epochs = Epochs::default();
        epochs.begin(2, slots, (DRAIN_MS, false), now);
        (epochs, now)
    }

    fn sent_to<const N: usize>(slots: [Slot; N], step: Step) -> Vec<Output> {
        slots.into_iter().map(|slot| Output::Send(slot, step)).collect()
    }

    fn outputs(epochs: &mut Epochs) -> Vec<Output> {
        std::iter::from_fn(|| epochs.poll_output()).collect()
    }
}
