//! What discovery has told: where primaries have moved, and how groups and Sentinels are.

use std::collections::BTreeMap;
use std::time::Instant;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Address, Lineage, Pool};
use serde::{Deserialize, Serialize};

use crate::retry::Retry;
use crate::status::{GroupStatus, SentinelStatus, SwitchStatus, now};

/// The primary of a group is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) pool: String,
    pub(crate) server: String,
    pub(crate) to: Address,
    pub(crate) config_epoch: Option<u64>,
    pub(crate) why: String,
}

/// A group by the names of its pool and of its server.
type Name = (String, String);

/// What discovery knows of a group, for the one that watches it next: after a death, a reload or an
/// upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) pool: String,
    pub(crate) server: String,
    pub(crate) primary: Address,
    #[serde(default)]
    pub(crate) config_epoch: Option<u64>,
    #[serde(default)]
    pub(crate) lineage: Lineage,
}

/// The last move of a group's primary, and how many there were, for the program after an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Switched {
    pub(crate) pool: String,
    pub(crate) server: String,
    pub(crate) last: SwitchStatus,
}

#[derive(Debug, Default)]
pub(crate) struct Discovered {
    /// Not put into effect yet, the last of each group.
    moves: BTreeMap<Name, Move>,
    retry: Retry,
    groups: BTreeMap<Name, (String, Option<u64>)>,
    sentinels: BTreeMap<(String, Address), Option<String>>,
    switches: BTreeMap<Name, SwitchStatus>,
    known: BTreeMap<Name, Known>,
}

impl Discovered {
    /// As the program before has left it. What it could not put into effect any more is left to do.
    pub(crate) fn resume(known: Vec<Known>, switches: Vec<Switched>, snapshot: &Snapshot) -> Self {
        let by_name = |it: Switched| ((it.pool, it.server), it.last);
        let switches = switches.into_iter().map(by_name).collect();
        let mut discovered = Self { switches, ..Self::default() };
        for known in known {
            let Known { pool, server, primary, config_epoch, .. } = known.clone();
            if Snapshot::clone(snapshot).set_primary(&pool, &server, &primary, config_epoch) {
                let why = "discovery knew it before the upgrade".to_owned();
                discovered.moved(Move { pool, server, to: primary, config_epoch, why });
            }
            discovered.know(known);
        }
        discovered
    }

    /// Returns whether that is worth to be kept on disk.
    pub(crate) fn know(&mut self, known: Known) -> bool {
        let name = (known.pool.clone(), known.server.clone());
        let main =
            |it: &Known| (it.primary.clone(), it.config_epoch, it.lineage.superseded.clone());
        let main_now = main(&known);
        self.known.insert(name, known).as_ref().map(main) != Some(main_now)
    }

    pub(crate) fn switches(&self) -> Vec<Switched> {
        let told = |((pool, server), last): (&Name, &SwitchStatus)| Switched {
            pool: pool.clone(),
            server: server.clone(),
            last: last.clone(),
        };
        self.switches.iter().map(told).collect()
    }

    pub(crate) fn known(&self) -> Vec<Known> {
        self.known.values().cloned().collect()
    }

    /// Notes in a snapshot what is known of its groups' primaries.
    pub(crate) fn fill(&self, snapshot: &mut Snapshot) {
        for Known { pool, server, primary, config_epoch, lineage } in self.known.values() {
            snapshot.set_lineage(pool, server, primary, *config_epoch, lineage);
        }
    }

    /// A snapshot with everything that has been told, in effect or not.
    pub(crate) fn told(&self, mut snapshot: Snapshot) -> Snapshot {
        for it in self.moves.values() {
            snapshot.set_primary(&it.pool, &it.server, &it.to, it.config_epoch);
        }
        self.fill(&mut snapshot);
        snapshot
    }

    pub(crate) fn moved(&mut self, to: Move) {
        self.moves.insert((to.pool.clone(), to.server.clone()), to);
    }

    /// Whether there is a move to be put into effect now.
    pub(crate) fn has_moves(&self, now: Instant) -> bool {
        !self.moves.is_empty() && self.retry.is_due(now)
    }

    /// Puts what has moved into a snapshot, and returns what is news there.
    pub(crate) fn take_moves(&mut self, snapshot: &mut Snapshot) -> Vec<Move> {
        let moves = std::mem::take(&mut self.moves).into_values();
        let is_news =
            |it: &Move| snapshot.set_primary(&it.pool, &it.server, &it.to, it.config_epoch);
        let moves = moves.filter(is_news).collect();
        self.fill(snapshot);
        moves
    }

    /// They are in effect.
    pub(crate) fn done(&mut self, moves: Vec<Move>, before: &Snapshot) {
        self.retry.done();
        for Move { pool, server, to, why, .. } in moves {
            let name = (pool, server);
            let from = primary_of(before, &name);
            let switches = self.switches.get(&name).map_or(0, |it| it.switches) + 1;
            let switch =
                SwitchStatus { at: now(), from, to: to.to_string(), why: why.clone(), switches };
            self.switches.insert(name, switch);
        }
    }

    /// They could not be put into effect, and are tried again.
    pub(crate) fn failed(&mut self, moves: Vec<Move>, now: Instant) {
        for failed in moves {
            // What has been told since is newer.
            self.moves.entry((failed.pool.clone(), failed.server.clone())).or_insert(failed);
        }
        self.retry.failed(now);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.retry.not_before().filter(|_| !self.moves.is_empty())
    }

    pub(crate) fn group(
        &mut self,
        pool: String,
        server: String,
        state: String,
        config_epoch: Option<u64>,
    ) {
        self.groups.insert((pool, server), (state, config_epoch));
    }

    pub(crate) fn sentinel(&mut self, pool: String, sentinel: Address, failure: Option<String>) {
        self.sentinels.insert((pool, sentinel), failure);
    }

    /// Who told of it is gone, and it may be otherwise by now.
    pub(crate) fn forget_state(&mut self) {
        self.groups.clear();
        self.sentinels.clear();
    }

    /// Forgets what is not of this snapshot.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot) {
        let is_group = |(pool, server): &Name| {
            snapshot.groups().any(|(its, group, _)| (&its.name, &group.server) == (pool, server))
        };
        self.groups.retain(|name, _| is_group(name));
        self.switches.retain(|name, _| is_group(name));
        self.known.retain(|name, _| is_group(name));
        self.moves.retain(|name, _| is_group(name));
        self.sentinels.retain(|(pool, sentinel), _| {
            let pool = snapshot.pools.iter().find(|it| it.name == *pool);
            let its = pool.and_then(|pool| pool.sentinel.as_ref());
            its.is_some_and(|it| it.addresses.contains(sentinel))
        });
    }

    pub(crate) fn groups_of(&self, pool: &Pool) -> Vec<GroupStatus> {
        let groups = pool.sentinel.iter().flat_map(|sentinel| &sentinel.groups);
        let status = |group: &cashew_config::snapshot::Group| {
            let name = (pool.name.clone(), group.server.clone());
            let server = pool.servers.iter().find(|server| server.name == group.server);
            let address = server.and_then(|server| server.endpoint.address());
            let told = self.groups.get(&name);
            GroupStatus {
                server: group.server.clone(),
                master: group.master.clone(),
                primary: address.map(|address| address.to_string()),
                config_epoch: told.map_or(group.config_epoch, |(_, epoch)| *epoch),
                state: told.map_or_else(|| "not watched".to_owned(), |(state, _)| state.clone()),
                last_switch: self.switches.get(&name).cloned(),
            }
        };
        groups.map(status).collect()
    }

    /// `None` while that is not known.
    pub(crate) fn is_answering(&self, pool: &str, sentinel: &Address) -> Option<bool> {
        self.sentinels.get(&(pool.to_owned(), sentinel.clone())).map(Option::is_none)
    }

    pub(crate) fn sentinels_of(&self, pool: &Pool) -> Vec<SentinelStatus> {
        let addresses = pool.sentinel.iter().flat_map(|sentinel| &sentinel.addresses);
        let status = |address: &Address| {
            let told = self.sentinels.get(&(pool.name.clone(), address.clone()));
            SentinelStatus {
                address: address.to_string(),
                is_answering: told.map(Option::is_none),
                failure: told.cloned().flatten(),
            }
        };
        addresses.map(status).collect()
    }
}

fn primary_of(snapshot: &Snapshot, (pool, server): &Name) -> Option<String> {
    let mut groups = snapshot.groups();
    let (.., endpoint) =
        groups.find(|(its, group, _)| (&its.name, &group.server) == (pool, server))?;
    endpoint.address().map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let yaml = "alpha:
  listen: 127.0.0.1:1
  redis: true
  sentinels: [10.0.0.7:26379, 10.0.0.8:26379]
  servers:
   - {name: s1, sentinel: one}
   - {name: s2, sentinel: two}
   - 10.0.0.9:6379:1 s3
";
        let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    fn at(port: u16) -> Address {
        Address { host: "10.0.0.1".to_owned(), port }
    }

    fn to(server: &str, port: u16, config_epoch: Option<u64>) -> Move {
        let (pool, why) = ("alpha".to_owned(), "they say so".to_owned());
        Move { pool, server: server.to_owned(), to: at(port), config_epoch, why }
    }

    #[test]
    fn the_last_move_of_each_group_is_put_into_effect_once() {
        let (mut discovered, mut snapshot, now) =
            (Discovered::default(), snapshot(), Instant::now());
        discovered.moved(to("s1", 1, Some(1)));
        discovered.moved(to("s1", 2, Some(2)));
        discovered.moved(to("s3", 3, None));
        assert!(discovered.has_moves(now));
        // One that is no group stays where it is.
        let before = snapshot.clone();
        let moves = discovered.take_moves(&mut snapshot);
        assert_eq!(moves, [to("s1", 2, Some(2))]);
        assert!(!discovered.has_moves(now));
        discovered.done(moves, &before);
        let [one, two] = &discovered.groups_of(&snapshot.pools[0])[..] else { panic!("two") };
        let last = one.last_switch.as_ref().unwrap();
        assert_eq!((one.primary.as_deref(), one.config_epoch), (Some("10.0.0.1:2"), Some(2)));
        assert_eq!((last.from.as_deref(), &*last.to, last.switches), (None, "10.0.0.1:2", 1));
        assert_eq!((two.primary.as_deref(), &*two.state), (None, "not watched"));
        // Where it is already it does not move to.
        discovered.moved(to("s1", 2, Some(2)));
        assert_eq!(discovered.take_moves(&mut snapshot), []);
        discovered.moved(to("s1", 4, None));
        let before = snapshot.clone();
        let moves = discovered.take_moves(&mut snapshot);
        discovered.done(moves, &before);
        let one = &discovered.groups_of(&snapshot.pools[0])[0];
        let last = one.last_switch.as_ref().unwrap();
        assert_eq!((last.from.as_deref(), last.switches), (Some("10.0.0.1:2"), 2));
        let next = Discovered::resume(Vec::new(), discovered.switches(), &snapshot);
        assert_eq!(next.groups_of(&snapshot.pools[0])[0].last_switch, one.last_switch);
        // Whose epoch is not known is not that of the one before, but the newest known.
        assert_eq!(one.config_epoch, Some(2));
    }

    #[test]
    fn what_failed_is_tried_again_later_and_later_unless_it_has_moved_since() {
        let (mut discovered, mut now) = (Discovered::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            discovered.moved(to("s1", 1, None));
            let moves = discovered.take_moves(&mut snapshot());
            discovered.failed(moves, now);
            let next = discovered.poll_timeout().unwrap();
            assert!(!discovered.has_moves(now) && discovered.has_moves(next));
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        discovered.moved(to("s1", 2, None));
        discovered.failed(vec![to("s1", 1, None)], now);
        let mut snapshot = snapshot();
        assert_eq!(discovered.take_moves(&mut snapshot), [to("s1", 2, None)]);
        assert_eq!(discovered.poll_timeout(), None);
        discovered.done(Vec::new(), &snapshot);
        discovered.moved(to("s1", 5, None));
        assert!(discovered.has_moves(now));
    }

    #[test]
    fn a_snapshot_takes_over_where_the_primaries_of_its_groups_are() {
        let mut old = snapshot();
        assert!(old.set_primary("alpha", "s1", &at(1), Some(3)));
        assert!(old.set_primary("alpha", "s2", &at(2), Some(4)));
        let mut new = snapshot();
        let group = &mut new.pools[0].sentinel.as_mut().unwrap().groups[1];
        group.master = "another".to_owned();
        new.keep_primaries(&old);
        let found: Vec<_> =
            new.groups().map(|(_, group, at)| (group.config_epoch, at.address())).collect();
        assert_eq!(found, [(Some(3), Some(at(1))), (None, None)]);
        // A group is known by what its Sentinels call it, whatever its pool and its server are called.
        let lineage = Lineage { superseded: vec![at(7)], ..Lineage::default() };
        old.set_lineage("alpha", "s1", &at(1), Some(3), &lineage);
        let renamed = |addresses: &[Address]| {
            let mut other = snapshot();
            other.pools[0].name = "beta".to_owned();
            other.pools[0].servers.iter_mut().filter(|it| it.name == "s1").for_each(|it| {
                it.name = "s9".to_owned();
            });
            let sentinel = other.pools[0].sentinel.as_mut().unwrap();
            sentinel.groups[0].server = "s9".to_owned();
            sentinel.addresses = addresses.to_vec();
            other.keep_primaries(&old);
            other
        };
        let same = old.pools[0].sentinel.as_ref().unwrap().addresses[1].clone();
        let other = renamed(&[same, at(5)]);
        let (_, group, found) = other.groups().next().unwrap();
        assert_eq!((found.address(), &group.lineage), (Some(at(1)), &lineage));
        assert!(renamed(&[at(5)]).groups().all(|(.., at)| at.is_unknown()));
    }

    #[test]
    fn what_is_known_of_a_group_is_handed_on() {
        let (mut discovered, mut snapshot) = (Discovered::default(), snapshot());
        let lineage = Lineage { superseded: vec![at(1)], ..Lineage::default() };
        let known = Known {
            pool: "alpha".to_owned(),
            server: "s1".to_owned(),
            primary: at(2),
            config_epoch: Some(1),
            lineage: lineage.clone(),
        };
        assert!(snapshot.set_primary("alpha", "s1", &at(1), Some(1)));
        assert!(discovered.know(known.clone()));
        // It is about another primary than the one in effect.
        discovered.fill(&mut snapshot);
        assert_eq!(snapshot.groups().next().unwrap().1.lineage, Lineage::default());
        discovered.moved(to("s1", 2, None));
        let moved = discovered.told(snapshot.clone());
        assert_eq!(moved.groups().next().unwrap().1.lineage, lineage);
        assert!(discovered.has_moves(Instant::now()));
        // How far replicas have come is not worth a write to the disk; a confirmation is.
        let mut further = known.clone();
        further.lineage.followers = vec![(at(3), 9)];
        assert!(!discovered.know(further.clone()));
        assert_eq!(discovered.known(), [further.clone()]);
        let confirmed = Known { config_epoch: Some(2), lineage: Lineage::default(), ..known };
        assert!(discovered.know(confirmed));
        // The next program goes on with it, also with what is not in effect yet.
        let mut next = Discovered::resume(vec![further], Vec::new(), &snapshot);
        assert_eq!(next.take_moves(&mut snapshot).len(), 1);
        let (_, group, found) = snapshot.groups().next().unwrap();
        assert_eq!((found.address(), group.config_epoch), (Some(at(2)), Some(1)));
        assert_eq!(group.lineage.superseded, [at(1)]);
    }

    #[test]
    fn what_is_not_configured_any_more_is_forgotten() {
        let (mut discovered, mut snapshot) = (Discovered::default(), snapshot());
        let name = |server: &str| ("alpha".to_owned(), server.to_owned());
        for server in ["s1", "s2"] {
            let (pool, server) = name(server);
            discovered.group(pool, server, "stable".to_owned(), None);
            discovered.moved(to("s2", 1, None));
        }
        for port in [26379, 1] {
            let sentinel = Address { host: "10.0.0.7".to_owned(), port };
            discovered.sentinel("alpha".to_owned(), sentinel, None);
        }
        snapshot.pools[0].sentinel.as_mut().unwrap().groups.pop();
        discovered.keep(&snapshot);
        assert_eq!(discovered.groups.keys().collect::<Vec<_>>(), [&name("s1")]);
        assert_eq!(discovered.sentinels.len(), 1);
        assert!(discovered.moves.is_empty());
        let answers = discovered.sentinels_of(&snapshot.pools[0]);
        assert_eq!(answers[0].is_answering, Some(true));
        discovered.forget_state();
        let answers = discovered.sentinels_of(&snapshot.pools[0]);
        assert_eq!(answers[0].is_answering, None);
    }
}
