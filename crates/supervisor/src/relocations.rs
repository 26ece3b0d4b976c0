//! Servers that have said where they move to: when that is put into effect, and how it is with all that are asked to
//! say so.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use cashew_config::Snapshot;
use cashew_config::snapshot::Pool;
use cashew_discovery::{MaintenanceStatus, Relocated};

use crate::retry::Retry;

/// By the names of the pool and of the server.
type Name = (String, String);

#[derive(Debug, Default)]
pub(crate) struct Relocations {
    /// Not in effect yet, the last of each server.
    wanted: BTreeMap<Name, Relocated>,
    retry: Retry,
    statuses: BTreeMap<Name, MaintenanceStatus>,
}

impl Relocations {
    pub(crate) fn told(&mut self, it: Relocated) {
        self.wanted.insert((it.pool.clone(), it.server.clone()), it);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.retry.not_before().filter(|_| !self.wanted.is_empty())
    }

    pub(crate) fn are_due(&self, now: Instant) -> bool {
        !self.wanted.is_empty() && self.retry.is_due(now)
    }

    /// Puts all into a snapshot, and returns what is news there, with where names lead. It is lost if the snapshot is not
    /// to be in effect, and is not [given back](Self::give_back).
    pub(crate) fn take(
        &mut self,
        snapshot: &mut Snapshot,
        addresses: &mut BTreeMap<String, Vec<IpAddr>>,
    ) -> Vec<Relocated> {
        let wanted = std::mem::take(&mut self.wanted).into_values();
        let is_news = |it: &Relocated| put(snapshot, it);
        let news: Vec<Relocated> = wanted.filter(is_news).collect();
        for it in news.iter().filter(|it| !it.addresses.is_empty()) {
            let pool = snapshot.pools.iter().find(|pool| pool.name == it.pool);
            let server =
                pool.and_then(|pool| pool.servers.iter().find(|server| server.name == it.server));
            if let Some(address) = server.and_then(|server| server.endpoint.address()) {
                addresses.insert(address.host, it.addresses.clone());
            }
        }
        news
    }

    /// A snapshot with everything that has been told, in effect or not.
    pub(crate) fn put(&self, snapshot: &mut Snapshot) {
        self.wanted.values().for_each(|it| _ = put(snapshot, it));
    }

    pub(crate) fn done(&mut self) {
        self.retry.done();
    }

    /// They could not be put into effect, and are tried again.
    pub(crate) fn failed(&mut self, moves: Vec<Relocated>, now: Instant) {
        self.give_back(moves);
        self.retry.failed(now);
    }

    /// These have been taken, and are not to be in effect as they are.
    pub(crate) fn give_back(&mut self, moves: Vec<Relocated>) {
        for it in moves {
            // What has been told since is newer.
            self.wanted.entry((it.pool.clone(), it.server.clone())).or_insert(it);
        }
    }

    pub(crate) fn set_status(&mut self, status: MaintenanceStatus) {
        self.statuses.insert((status.pool.clone(), status.server.clone()), status);
    }

    /// Who told of it is gone, and it may be otherwise by now.
    pub(crate) fn forget_statuses(&mut self) {
        self.statuses.clear();
    }

    /// Forgets what is not of this snapshot.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot) {
        let is_asked = |(pool, server): &Name| {
            let pool = snapshot.pools.iter().find(|it| it.name == *pool);
            pool.is_some_and(|pool| {
                pool.server_maintenance.is_some()
                    && pool.servers.iter().any(|it| it.name == *server)
            })
        };
        self.wanted.retain(|name, _| is_asked(name));
        self.statuses.retain(|name, _| is_asked(name));
    }

    /// Of the servers of a pool, if they are asked.
    pub(crate) fn statuses_of(&self, pool: &Pool) -> Vec<MaintenanceStatus> {
        let is_asked = pool.server_maintenance.is_some();
        let status = |server: &cashew_config::snapshot::Server| {
            let name = (pool.name.clone(), server.name.clone());
            self.statuses.get(&name).cloned().unwrap_or_else(|| MaintenanceStatus {
                pool: pool.name.clone(),
                server: server.name.clone(),
                address: server.endpoint.to_string(),
                state: "asked".to_owned(),
                ..MaintenanceStatus::default()
            })
        };
        pool.servers.iter().filter(|_| is_asked).map(status).collect()
    }
}

fn put(snapshot: &mut Snapshot, it: &Relocated) -> bool {
    let pool = snapshot.pools.iter_mut().find(|pool| pool.name == it.pool);
    pool.is_some_and(|pool| pool.relocate(&it.server, it.to.as_ref()))
}

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::Address;

    use super::*;

    fn snapshot(option: &str) -> Snapshot {
        let yaml = format!(
            "a: {{listen: 127.0.0.1:1, redis: true, {option}, servers: ['n:1:1 s1', 'h:2:1 s2']}}\n"
        );
        let loaded = cashew_config::parse("t.yml", &yaml, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    fn to(server: &str, port: Option<u16>) -> Relocated {
        let address = |port| Address { host: "10.0.0.1".to_owned(), port };
        Relocated {
            pool: "a".to_owned(),
            server: server.to_owned(),
            to: port.map(address),
            addresses: if port.is_none() { vec![[10, 0, 0, 2].into()] } else { Vec::new() },
            why: "it has said so".to_owned(),
        }
    }

    #[test]
    fn moves_take_effect_once_and_are_tried_again() {
        let (mut state, now) = (Relocations::default(), Instant::now());
        let mut current = snapshot("server_maintenance: true");
        state.told(to("s2", Some(7)));
        state.told(to("s2", Some(8)));
        state.told(to("s9", Some(8)));
        let mut addresses = BTreeMap::new();
        let moves = state.take(&mut current.clone(), &mut addresses);
        assert_eq!(moves, [to("s2", Some(8))]);
        state.failed(moves, now);
        assert!(!state.are_due(now) && state.are_due(state.poll_timeout().unwrap()));
        let mut told = current.clone();
        state.put(&mut told);
        assert_eq!(told.pools[0].servers[1].endpoint.to_string(), "10.0.0.1:8");
        assert_eq!(state.take(&mut current, &mut addresses).len(), 1);
        state.done();
        state.told(to("s2", Some(8)));
        assert_eq!(state.take(&mut current, &mut addresses), []);
        assert!(addresses.is_empty());
        // Connections are made anew, to where its name leads.
        state.told(to("s1", None));
        assert_eq!(state.take(&mut current, &mut addresses).len(), 1);
        assert_eq!(addresses["n"], [IpAddr::from([10, 0, 0, 2])]);
        assert_eq!(current.pools[0].relocation_of("s1").unwrap().renewals, 1);
    }

    #[test]
    fn who_is_asked_has_a_status_and_nobody_else() {
        let mut state = Relocations::default();
        let (asked, off) =
            (snapshot("server_maintenance: true"), snapshot("server_maintenance: false"));
        let told = MaintenanceStatus {
            pool: "a".to_owned(),
            server: "s1".to_owned(),
            state: "tells".to_owned(),
            ..MaintenanceStatus::default()
        };
        state.set_status(told);
        state.keep(&asked);
        let states: Vec<String> =
            state.statuses_of(&asked.pools[0]).into_iter().map(|it| it.state).collect();
        assert_eq!(states, ["tells", "asked"]);
        state.told(to("s1", None));
        state.keep(&off);
        assert_eq!(state.statuses_of(&off.pools[0]), []);
        assert!(!state.are_due(Instant::now()));
        assert_eq!(state.statuses_of(&asked.pools[0])[0].state, "asked");
    }
}
