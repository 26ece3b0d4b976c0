//! Replicas that Sentinels name: when those that are news are put into effect.
//!
//! An epoch each time, so not for every word of theirs: only what has stayed so for a moment, and at most once
//! in a while. What fails is tried again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::Address;

/// What has been told is left to settle for so long.
const SETTLE: Duration = Duration::from_millis(200);

/// The least time from one change to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// A group by the names of its pool and of its primary.
type Name = (String, String);

#[derive(Debug, Default)]
pub(crate) struct Joining {
    wanted: BTreeMap<Name, Wanted>,
    /// When something was last put into effect, or should have been.
    changed_at: Option<Instant>,
}

#[derive(Debug)]
struct Wanted {
    primary: Address,
    replicas: Vec<Address>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InEffect,
    /// Until then.
    Settles(Instant),
    Ripe,
}

impl Joining {
    /// The replicas of that primary are these. `current` is in effect.
    pub(crate) fn told(
        &mut self,
        name: Name,
        primary: Address,
        replicas: Vec<Address>,
        current: &Snapshot,
        now: Instant,
    ) {
        self.wanted.insert(name, Wanted { primary, replicas, state: State::InEffect });
        self.compare(current, now);
    }

    /// Has what is not in effect wait for its time. What is not of this snapshot any more is forgotten, and
    /// what is about another primary than the one in effect waits for that.
    fn compare(&mut self, current: &Snapshot, now: Instant) {
        let is_group = |(pool, server): &Name| {
            current.groups().any(|(its, group, _)| (&its.name, &group.server) == (pool, server))
        };
        self.wanted.retain(|name, _| is_group(name));
        let earliest = self.changed_at.map_or(now, |at| at + INTERVAL);
        for (name, wanted) in &mut self.wanted {
            let is_news = wanted.put(name, &mut current.clone());
            wanted.state = match wanted.state {
                _ if !is_news => State::InEffect,
                State::InEffect => State::Settles(earliest.max(now + SETTLE)),
                state => state,
            };
        }
    }

    /// Another snapshot is in effect, or a change has failed.
    pub(crate) fn changed(&mut self, current: &Snapshot, now: Instant) {
        self.changed_at = Some(now);
        self.compare(current, now);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = self.wanted.values().filter_map(|wanted| match wanted.state {
            State::Settles(until) => Some(until),
            State::InEffect | State::Ripe => None,
        });
        due.min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for wanted in self.wanted.values_mut() {
            if matches!(wanted.state, State::Settles(until) if until <= now) {
                wanted.state = State::Ripe;
            }
        }
    }

    /// Whether something is to be put into effect now.
    pub(crate) fn is_ripe(&self) -> bool {
        self.wanted.values().any(|wanted| wanted.state == State::Ripe)
    }

    /// Puts what is ripe into the next snapshot. Returns whether that is other than before. Not where the
    /// next snapshot has another primary than the current one: that comes first.
    pub(crate) fn put(&mut self, next: &mut Snapshot, current: &Snapshot) -> bool {
        let mut is_news = false;
        for (name, wanted) in &mut self.wanted {
            if wanted.state != State::Ripe {
                continue;
            }
            wanted.state = State::InEffect;
            if wanted.is_of(name, current) {
                is_news |= wanted.put(name, next);
            }
        }
        is_news
    }
}

impl Wanted {
    fn put(&self, (pool, server): &Name, snapshot: &mut Snapshot) -> bool {
        snapshot.set_replicas(pool, server, &self.primary, &self.replicas)
    }

    /// Whether the primary is there in the snapshot.
    fn is_of(&self, (pool, server): &Name, snapshot: &Snapshot) -> bool {
        snapshot.groups().any(|(its, group, endpoint)| {
            (&its.name, &group.server) == (pool, server)
                && endpoint.address().as_ref() == Some(&self.primary)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let yaml = "alpha:
  listen: 127.0.0.1:1
  redis: true
  reads: prefer_replica
  sentinels: [10.0.0.7:26379, 10.0.0.8:26379]
  servers:
   - {name: s1, sentinel: one}
   - 10.0.0.9:6379:1 s3
";
        let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
        let mut snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
        assert!(snapshot.set_primary("alpha", "s1", &at(1), Some(1)));
        snapshot
    }

    fn at(port: u16) -> Address {
        Address { host: "10.0.0.1".to_owned(), port }
    }

    fn name() -> Name {
        ("alpha".to_owned(), "s1".to_owned())
    }

    fn replicas(snapshot: &Snapshot) -> Vec<u16> {
        snapshot.pools[0].replicas_of("s1").iter().map(|it| it.port).collect()
    }

    /// Puts into effect what is due.
    fn change(joining: &mut Joining, current: &mut Snapshot, now: Instant) -> bool {
        joining.handle_timeout(now);
        let mut next = current.clone();
        let is_ripe = joining.is_ripe();
        assert_eq!(joining.put(&mut next, current), is_ripe);
        if is_ripe {
            *current = next;
            joining.changed(current, now);
        }
        is_ripe
    }

    #[test]
    fn replicas_join_when_that_has_settled_and_once_in_a_while() {
        let (mut joining, mut current, start) = (Joining::default(), snapshot(), Instant::now());
        joining.told(name(), at(1), vec![at(2)], &current, start);
        assert_eq!(joining.poll_timeout(), Some(start + SETTLE));
        assert!(!change(&mut joining, &mut current, start));
        let later = start + SETTLE;
        joining.told(name(), at(1), vec![at(2), at(3)], &current, later - SETTLE / 2);
        assert!(!change(&mut joining, &mut current, later));
        let first = joining.poll_timeout().unwrap();
        assert!(change(&mut joining, &mut current, first));
        assert_eq!((replicas(&current), joining.poll_timeout()), (vec![2, 3], None));
        // The same again is no news; another one waits.
        joining.told(name(), at(1), vec![at(3), at(2)], &current, first);
        assert_eq!(joining.poll_timeout(), None);
        joining.told(name(), at(1), vec![at(3)], &current, first);
        assert_eq!(joining.poll_timeout(), Some(first + INTERVAL));
        assert!(change(&mut joining, &mut current, first + INTERVAL));
        assert_eq!(replicas(&current), [3]);
        // One that was taken back meanwhile does not come.
        joining.told(name(), at(1), vec![], &current, first + INTERVAL);
        joining.told(name(), at(1), vec![at(3)], &current, first + INTERVAL);
        assert_eq!(joining.poll_timeout(), None);
    }

    #[test]
    fn the_replicas_of_the_next_primary_wait_for_it() {
        let (mut joining, mut current, now) = (Joining::default(), snapshot(), Instant::now());
        joining.told(name(), at(1), vec![at(2), at(3)], &current, now);
        assert!(change(&mut joining, &mut current, now + SETTLE));
        let now = now + INTERVAL * 2;
        joining.told(name(), at(2), vec![at(1), at(3)], &current, now);
        assert_eq!(joining.poll_timeout(), None);
        // Who takes the writes is no replica any more, and who took them is none yet.
        assert!(current.set_primary("alpha", "s1", &at(2), Some(2)));
        assert_eq!(replicas(&current), [3]);
        joining.changed(&current, now);
        assert!(change(&mut joining, &mut current, now + INTERVAL));
        assert_eq!(replicas(&current), [1, 3]);
    }

    #[test]
    fn what_fails_is_tried_again_and_what_is_no_group_is_forgotten() {
        let (mut joining, mut current, now) = (Joining::default(), snapshot(), Instant::now());
        joining.told(name(), at(1), vec![at(2)], &current, now);
        joining.handle_timeout(now + SETTLE);
        assert!(joining.put(&mut current.clone(), &current));
        joining.changed(&current, now + SETTLE);
        assert_eq!(joining.poll_timeout(), Some(now + SETTLE + INTERVAL));
        current.pools[0].sentinel.as_mut().unwrap().groups.clear();
        joining.changed(&current, now);
        assert!(joining.wanted.is_empty());
    }

    #[test]
    fn a_server_of_its_own_is_nobodys_replica() {
        let mut current = snapshot();
        let own = Address { host: "10.0.0.9".to_owned(), port: 6379 };
        let told = [own, at(1), at(2), at(2)];
        assert!(current.set_replicas("alpha", "s1", &at(1), &told));
        assert_eq!(replicas(&current), [2]);
        let names: Vec<&str> = current.pools[0].servers.iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["s1", "s3", "s1/10.0.0.1:2"]);
        // Nor is there any where all reads are the primary's.
        current.pools[0].reads = None;
        assert!(!current.set_replicas("alpha", "s1", &at(1), &[at(3)]));
    }
}
