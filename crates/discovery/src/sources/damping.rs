//! When the answers of a source take effect: settled, at a bounded pace, and with doubt where much is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cashew_config::snapshot::{SERVERS_MAX, Server};

/// A change waits until there was none for so long, and for so long at most.
const SETTLE: Duration = Duration::from_millis(200);
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// More servers than this share do not go at once: within that time, unless so many answers say so over it.
const GONE_PERCENT_MAX: usize = 30;
const DOUBT: Duration = Duration::from_secs(30);
const ANSWERS: u32 = 3;
/// How long after its last answer a source is asked again while something is held back.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Changes that may follow each other at once, and how often another one may.
const BURST: u32 = 2;
const INTERVAL: Duration = Duration::from_secs(1);

/// Of all pools together, as each change is an epoch.
#[derive(Debug)]
pub(crate) struct Pace {
    left: u32,
    /// Since when there may be another one, if not all are left.
    since: Instant,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { left: BURST, since: now }
    }

    /// When the next change may be.
    pub(crate) fn next(&self, now: Instant) -> Instant {
        match self.left {
            0 => self.since + INTERVAL,
            _ => now,
        }
    }

    /// False if it is too early for a change.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        while self.left < BURST && now >= self.since + INTERVAL {
            self.left += 1;
            self.since += INTERVAL;
        }
        if self.left == BURST {
            self.since = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

/// Servers of one pool by their names.
type ByName = BTreeMap<String, Server>;

#[derive(Debug, Default)]
pub(crate) struct Damper {
    /// In effect, or on its way there.
    effective: ByName,
    /// The last answer.
    wanted: Option<ByName>,
    /// When the servers that are in effect and not in the last answers were missing first.
    missing: BTreeMap<String, Missing>,
    /// Servers that have gone, and when.
    gone: Vec<(Instant, String)>,
    /// Since when there is a change, and when it may take effect.
    changing: Option<(Instant, Instant)>,
    answered_at: Option<Instant>,
    checked_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    since: Instant,
    answers: u32,
    /// Enough of them, for long enough.
    is_sure: bool,
}

/// Servers that stay although the source does not name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) names: Vec<String>,
    /// How many servers the pool has with them.
    pub(crate) of: usize,
    pub(crate) since: Instant,
    /// Answers that have said so.
    pub(crate) answers: u32,
}

impl Damper {
    /// Of a pool in which these are in effect.
    pub(crate) fn new(effective: &[Server]) -> Self {
        Self { effective: by_name(effective), ..Self::default() }
    }

    /// The source has answered.
    pub(crate) fn answered(&mut self, found: &[Server], now: Instant) {
        let found = by_name(found);
        self.answered_at = Some(now);
        self.gone.retain(|(at, name)| now < *at + DOUBT && !found.contains_key(name));
        self.missing.retain(|name, _| !found.contains_key(name));
        let mut has_more = false;
        for name in self.effective.keys().filter(|name| !found.contains_key(*name)) {
            let new = Missing { since: now, answers: 0, is_sure: false };
            let missing = self.missing.entry(name.clone()).or_insert(new);
            missing.answers = missing.answers.saturating_add(1);
            let is_sure = missing.answers >= ANSWERS && now >= missing.since + DOUBT;
            has_more |= is_sure && !missing.is_sure;
            missing.is_sure = is_sure;
        }
        let is_first = self.effective.is_empty() && !found.is_empty();
        if self.wanted.as_ref() != Some(&found) {
            let since = self.changing.map_or(now, |(since, _)| since);
            let due = if is_first { now } else { (now + SETTLE).min(since + SETTLE_MAX) };
            self.changing = Some((since, due));
        }
        if has_more {
            self.changing = Some((now, now));
        }
        self.wanted = Some(found);
        match self.target(now) == self.effective {
            // It is as it was, or all that would change is held back.
            true => self.changing = None,
            // What was held back may be few by now.
            false => _ = self.changing.get_or_insert((now, now + SETTLE)),
        }
    }

    /// When a change may take effect.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.changing.map(|(_, due)| due)
    }

    /// When the source is to be asked again since something is held back.
    pub(crate) fn next_check(&self, now: Instant) -> Option<Instant> {
        let last = self.answered_at?.max(self.checked_at.unwrap_or(self.answered_at?));
        self.held(now).map(|_| last + CHECK_INTERVAL)
    }

    pub(crate) fn checking(&mut self, now: Instant) {
        self.checked_at = Some(now);
    }

    /// What is to be in effect now. `None` if that is what is, or if it is too early.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Vec<Server>> {
        self.changing.take_if(|(_, due)| now >= *due)?;
        let target = self.target(now);
        if target == self.effective {
            return None;
        }
        let gone = self.effective.keys().filter(|name| !target.contains_key(*name));
        self.gone.extend(gone.map(|name| (now, name.clone())));
        self.missing.retain(|name, _| target.contains_key(name));
        self.effective = target;
        Some(self.effective.values().cloned().collect())
    }

    pub(crate) fn held(&self, now: Instant) -> Option<Held> {
        let names: Vec<&String> = self.held_names(now).into_iter().collect();
        let missing: Vec<Missing> = names.iter().map(|name| self.missing[*name]).collect();
        Some(Held {
            names: names.into_iter().cloned().collect(),
            of: self.effective.len(),
            since: missing.iter().map(|it| it.since).max()?,
            answers: missing.iter().map(|it| it.answers).min()?,
        })
    }

    fn held_names(&self, now: Instant) -> BTreeSet<&String> {
        let gone: BTreeSet<&String> = self
            .gone
            .iter()
            .filter(|(at, name)| now < *at + DOUBT && !self.effective.contains_key(name))
            .map(|(_, name)| name)
            .collect();
        let lost = gone.len() + self.missing.len();
        let all = gone.len() + self.effective.len();
        if lost * 100 <= all * GONE_PERCENT_MAX {
            return BTreeSet::new();
        }
        // What is named comes first: with more than a pool may have, nothing would come of it.
        let room =
            self.wanted.as_ref().map_or(SERVERS_MAX, |it| SERVERS_MAX.saturating_sub(it.len()));
        let held = self.missing.iter().filter(|(_, missing)| !missing.is_sure);
        held.map(|(name, _)| name).take(room).collect()
    }

    /// What the source says, with what is held back.
    fn target(&self, now: Instant) -> ByName {
        let Some(wanted) = &self.wanted else { return self.effective.clone() };
        let mut target = wanted.clone();
        for name in self.held_names(now) {
            target.extend(self.effective.get_key_value(name).map(|(k, v)| (k.clone(), v.clone())));
        }
        target
    }
}

fn by_name(servers: &[Server]) -> ByName {
    servers.iter().map(|server| (server.name.clone(), server.clone())).collect()
}

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::Endpoint;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn server(number: u16) -> Server {
        let endpoint = Endpoint::Tcp { host: "10.0.0.1".to_owned(), port: number + 1 };
        Server { name: format!("s{number}"), endpoint, weight: 1, zone: None }
    }

    fn servers(numbers: impl IntoIterator<Item = u16>) -> Vec<Server> {
        numbers.into_iter().map(server).collect()
    }

    fn names(servers: Option<Vec<Server>>) -> Option<String> {
        let name = |server: &Server| server.name.clone();
        servers.map(|servers| servers.iter().map(name).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn two_changes_may_be_at_once_and_then_one_a_second() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.take(start) && pace.take(start) && !pace.take(start));
        assert_eq!(pace.next(start), start + INTERVAL);
        assert!(!pace.take(start + 999 * MS) && pace.take(start + 1000 * MS));
        assert!(!pace.take(start + 1999 * MS) && pace.take(start + 2500 * MS));
        // Half a second of the last pause counts.
        assert!(pace.take(start + 3000 * MS) && !pace.take(start + 3999 * MS));
        let later = start + 60 * INTERVAL;
        assert!(pace.take(later) && pace.take(later) && !pace.take(later));
        let mut all = 0;
        let mut pace = Pace::new(start);
        for at in 0..=10_000 {
            all += u32::from(pace.take(start + at * MS));
        }
        assert_eq!(all, 12);
    }

    #[test]
    fn a_change_settles() {
        let start = Instant::now();
        let mut damper = Damper::new(&servers(0..4));
        damper.answered(&servers(0..4), start);
        assert_eq!(damper.due(), None);
        damper.answered(&servers(0..5), start);
        assert_eq!(damper.due(), Some(start + SETTLE));
        assert_eq!(damper.take(start + 199 * MS), None);
        // Another one begins the wait anew.
        damper.answered(&servers(0..6), start + 150 * MS);
        assert_eq!(damper.take(start + 349 * MS), None);
        assert_eq!(names(damper.take(start + 350 * MS)).as_deref(), Some("s0 s1 s2 s3 s4 s5"));
        assert_eq!((damper.take(start + 350 * MS), damper.due()), (None, None));
        // One that is taken back is none.
        damper.answered(&servers(0..7), start + 400 * MS);
        damper.answered(&servers(0..6), start + 410 * MS);
        assert_eq!(damper.due(), None);
        // Changes without an end wait a second.
        let start = start + 500 * MS;
        let mut at = start;
        while damper.due().is_none_or(|due| at < due) {
            let weight = (at - start).as_millis() as u32 + 2;
            let mut all = servers(0..6);
            all[0].weight = weight;
            damper.answered(&all, at);
            at += 20 * MS;
        }
        assert_eq!(damper.due(), Some(start + SETTLE_MAX));
        assert!(damper.take(start + SETTLE_MAX).is_some());
    }

    #[test]
    fn the_first_servers_wait_for_nothing() {
        let start = Instant::now();
        let mut damper = Damper::new(&[]);
        damper.answered(&[], start);
        assert_eq!(damper.due(), None);
        damper.answered(&servers(0..2), start);
        assert_eq!(names(damper.take(start)).as_deref(), Some("s0 s1"));
    }

    #[test]
    fn few_go_at_once_and_many_after_three_answers_over_thirty_seconds() {
        let start = Instant::now();
        let mut damper = Damper::new(&servers(0..10));
        damper.answered(&servers(0..7), start);
        assert_eq!(damper.held(start), None);
        assert!(damper.take(start + SETTLE).is_some());
        // A fourth one within half a minute is too much, also by itself.
        let at = start + 5 * INTERVAL;
        damper.answered(&servers(0..6), at);
        let held = damper.held(at).unwrap();
        assert_eq!((held.names, held.of, held.answers), (vec!["s6".to_owned()], 7, 1));
        assert_eq!((damper.due(), damper.take(at + INTERVAL)), (None, None));
        assert_eq!(damper.next_check(at), Some(at + CHECK_INTERVAL));
        // Once the first three have been away for long enough it is one of seven, as any other answer finds.
        let later = start + SETTLE + DOUBT;
        damper.answered(&servers(0..6), later);
        assert_eq!(damper.held(later), None);
        assert_eq!(names(damper.take(later + SETTLE)).as_deref(), Some("s0 s1 s2 s3 s4 s5"));
    }

    #[test]
    fn all_may_go_when_the_source_keeps_saying_so() {
        let start = Instant::now();
        let mut damper = Damper::new(&servers(0..3));
        for seconds in [0, 10, 20, 29] {
            let at = start + seconds * INTERVAL;
            damper.answered(&[], at);
            assert_eq!(damper.take(at + INTERVAL / 2), None);
            assert_eq!(damper.held(at).map(|held| held.names.len()), Some(3));
        }
        // Silence is no answer.
        assert_eq!(damper.take(start + 2 * DOUBT), None);
        damper.answered(&[], start + DOUBT);
        assert_eq!(names(damper.take(start + DOUBT)).as_deref(), Some(""));
        assert_eq!(damper.held(start + DOUBT), None);
    }

    #[test]
    fn two_answers_are_too_few_and_one_that_differs_begins_anew() {
        let start = Instant::now();
        let mut damper = Damper::new(&servers(0..4));
        damper.answered(&servers(0..1), start);
        damper.answered(&servers(0..1), start + DOUBT);
        assert_eq!(damper.take(start + DOUBT), None);
        // s1 is back: of the others three answers are not lost.
        damper.answered(&servers(0..2), start + DOUBT + INTERVAL);
        assert_eq!(names(damper.take(start + DOUBT + INTERVAL)).as_deref(), Some("s0 s1"));
        let start = start + 3 * DOUBT;
        damper.answered(&[], start);
        damper.answered(&servers(0..2), start + 10 * INTERVAL);
        damper.answered(&[], start + 20 * INTERVAL);
        damper.answered(&[], start + 30 * INTERVAL);
        damper.answered(&[], start + 40 * INTERVAL);
        assert_eq!(damper.take(start + 40 * INTERVAL), None);
        damper.answered(&[], start + 50 * INTERVAL);
        assert_eq!(names(damper.take(start + 50 * INTERVAL)).as_deref(), Some(""));
    }

    #[test]
    fn no_more_is_held_back_than_a_pool_may_have() {
        let start = Instant::now();
        let many = |name: &str, count: usize| -> Vec<Server> {
            (0..count).map(|at| Server { name: format!("{name}{at}"), ..server(1) }).collect()
        };
        let mut damper = Damper::new(&many("a", 100));
        damper.answered(&many("b", SERVERS_MAX - 40), start);
        let taken = damper.take(start + SETTLE).unwrap();
        assert_eq!(taken.len(), SERVERS_MAX);
        assert_eq!(taken.iter().filter(|it| it.name.starts_with('a')).count(), 40);
    }

    #[test]
    fn what_is_new_does_not_wait_for_what_is_held_back() {
        let start = Instant::now();
        let mut damper = Damper::new(&servers(0..2));
        let mut moved = server(1);
        moved.endpoint = Endpoint::Unix("/s".into());
        damper.answered(&[moved.clone(), server(7)], start);
        let taken = damper.take(start + SETTLE).unwrap();
        assert_eq!(names(Some(taken.clone())).as_deref(), Some("s0 s1 s7"));
        assert_eq!(taken[1], moved);
        assert_eq!(damper.held(start + SETTLE).unwrap().names, ["s0"]);
        assert_eq!(damper.take(start + INTERVAL), None);
    }
}
