//! The servers that sources have named for pools: when they are put into effect, and what they change.
//!
//! Discovery has settled and paced them, so each answer is an epoch as soon as there may be one.

use std::collections::BTreeMap;
use std::time::Instant;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Server};
use cashew_discovery::{FoundServers, SourceStatus};

use crate::retry::Retry;
use crate::status::{SourceChange, now};

/// Servers that a line names.
const SHOWN_MAX: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct Found {
    /// By the name of the pool: not in effect yet.
    wanted: BTreeMap<String, FoundServers>,
    retry: Retry,
    /// By the name of the pool: how its source is.
    statuses: BTreeMap<String, SourceStatus>,
    /// The last change.
    last: BTreeMap<String, SourceChange>,
}

impl Found {
    /// Sources have named these. `current` is in effect, and may be about to be replaced by one with others.
    pub(crate) fn told(
        &mut self,
        found: Vec<FoundServers>,
        (current, is_changing): (&Snapshot, bool),
    ) {
        for it in found {
            let Some(pool) = pool_of(current, &it) else { continue };
            match is_changing || pool.clone().set_found(&it.servers) {
                true => _ = self.wanted.insert(it.pool.clone(), it),
                false => _ = self.wanted.remove(&it.pool),
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.retry.not_before().filter(|_| !self.wanted.is_empty())
    }

    pub(crate) fn are_due(&self, now: Instant) -> bool {
        !self.wanted.is_empty() && self.retry.is_due(now)
    }

    /// Puts all into a snapshot, and returns those that are not in effect, which are lost if the snapshot is not to be
    /// either.
    pub(crate) fn take(
        &mut self,
        snapshot: &mut Snapshot,
        current: &Snapshot,
    ) -> Vec<FoundServers> {
        let wanted = std::mem::take(&mut self.wanted).into_values();
        let is_news = |it: &FoundServers| {
            put(snapshot, it);
            pool_of(current, it).is_some_and(|pool| pool.clone().set_found(&it.servers))
        };
        wanted.filter(is_news).collect()
    }

    /// A snapshot with everything that has been told, in effect or not.
    pub(crate) fn put(&self, snapshot: &mut Snapshot) {
        self.wanted.values().for_each(|it| put(snapshot, it));
    }

    /// They are in effect. Returns a line for each, with its pool.
    pub(crate) fn done(
        &mut self,
        moves: &[FoundServers],
        before: &Snapshot,
        current: &Snapshot,
    ) -> Vec<(String, String)> {
        self.retry.done();
        self.drop_known(current);
        let mut lines = Vec::new();
        for it in moves {
            let Some(is) = pool_of(current, it) else { continue };
            if is.clone().set_found(&it.servers) {
                // Its source is another one by now.
                continue;
            }
            let was = before.pools.iter().find(|pool| pool.name == it.pool);
            let was = was.map_or(&[][..], Pool::found);
            let what = described(was, is.found());
            self.last.insert(it.pool.clone(), SourceChange { at: now(), what: what.clone() });
            lines.push((it.pool.clone(), format!("{what} ({} in all)", is.found().len())));
        }
        lines
    }

    /// They could not be put into effect, and are tried again.
    pub(crate) fn failed(&mut self, moves: Vec<FoundServers>, current: &Snapshot, now: Instant) {
        self.give_back(moves);
        self.drop_known(current);
        self.retry.failed(now);
    }

    /// These have been taken, and are not to be in effect as they are.
    pub(crate) fn give_back(&mut self, moves: Vec<FoundServers>) {
        for it in moves {
            // What has been told since is newer.
            self.wanted.entry(it.pool.clone()).or_insert(it);
        }
    }

    /// Nothing is changing any more: what is in effect need not be put into effect.
    fn drop_known(&mut self, current: &Snapshot) {
        self.wanted.retain(|_, it| {
            pool_of(current, it).is_some_and(|pool| pool.clone().set_found(&it.servers))
        });
    }

    pub(crate) fn set_status(&mut self, status: SourceStatus) {
        self.statuses.insert(status.pool.clone(), status);
    }

    /// Who told of it is gone, and it may be otherwise by now.
    pub(crate) fn forget_statuses(&mut self) {
        self.statuses.clear();
    }

    /// Forgets what is not of this snapshot.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot) {
        let source = |name: &str| {
            let pool = snapshot.pools.iter().find(|it| it.name == name)?;
            pool.source().map(ToString::to_string)
        };
        self.wanted.retain(|_, it| pool_of(snapshot, it).is_some());
        self.last.retain(|pool, _| source(pool).is_some());
        self.statuses.retain(|pool, it| source(pool).as_ref() == Some(&it.source));
    }

    /// `None` of a pool whose servers the file names.
    pub(crate) fn status_of(&self, pool: &Pool) -> Option<SourceStatus> {
        let source = pool.source()?;
        let unknown = || SourceStatus {
            pool: pool.name.clone(),
            kind: source.kind().to_owned(),
            source: source.to_string(),
            ..SourceStatus::default()
        };
        Some(self.statuses.get(&pool.name).cloned().unwrap_or_else(unknown))
    }

    pub(crate) fn last_change_of(&self, pool: &Pool) -> Option<SourceChange> {
        self.last.get(&pool.name).cloned()
    }
}

/// The pool that they are for, if the same source names its servers.
fn pool_of<'a>(snapshot: &'a Snapshot, found: &FoundServers) -> Option<&'a Pool> {
    let pool = snapshot.pools.iter().find(|pool| pool.name == found.pool)?;
    (pool.source() == Some(&found.source)).then_some(pool)
}

fn put(snapshot: &mut Snapshot, found: &FoundServers) {
    let is_its = pool_of(snapshot, found).is_some();
    let mut pools = snapshot.pools.iter_mut().filter(|pool| is_its && pool.name == found.pool);
    if let Some(pool) = pools.next() {
        pool.set_found(&found.servers);
    }
}

fn described(before: &[Server], after: &[Server]) -> String {
    let by_name = |servers: &[Server]| -> BTreeMap<String, Server> {
        servers.iter().map(|server| (server.name.clone(), server.clone())).collect()
    };
    let (was, is) = (by_name(before), by_name(after));
    let (mut joined, mut moved, mut weighted) = (Vec::new(), Vec::new(), Vec::new());
    for (name, server) in &is {
        match was.get(name) {
            None => joined.push(name),
            Some(before) if before.endpoint != server.endpoint => moved.push(name),
            Some(before) if before.weight != server.weight => weighted.push(name),
            Some(_) => {}
        }
    }
    let left: Vec<&String> = was.keys().filter(|name| !is.contains_key(*name)).collect();
    let names = |names: &[&String]| {
        let shown: Vec<&str> = names.iter().take(SHOWN_MAX).map(|it| it.as_str()).collect();
        match names.len().saturating_sub(SHOWN_MAX) {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    };
    let all = [
        (joined, "joined"),
        (left, "left"),
        (moved, "moved to another address"),
        (weighted, "changed weight"),
    ];
    let parts = all.iter().filter(|(changed, _)| !changed.is_empty());
    let parts: Vec<String> =
        parts.map(|(changed, what)| format!("{} {what}", names(changed))).collect();
    match parts.is_empty() {
        true => "servers have other zones".to_owned(),
        false => parts.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::parse_server;

    use super::*;
    use crate::retry::PAUSE_MIN;

    fn snapshot(file: &str) -> Snapshot {
        let yaml = format!(
            "a: {{listen: 127.0.0.1:1, servers_from: {{file: {file}}}}}\n\
             b: {{listen: 127.0.0.1:2, servers: [127.0.0.1:3:1]}}\n"
        );
        let loaded = cashew_config::parse("t.yml", &yaml, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    fn found(pool: &str, lines: &[&str]) -> FoundServers {
        let servers = lines.iter().map(|line| parse_server(line, "").unwrap()).collect();
        let source = snapshot("/s").pools[0].source().unwrap().clone();
        FoundServers { pool: pool.to_owned(), source, servers }
    }

    fn change(state: &mut Found, current: &mut Snapshot) -> Vec<(String, String)> {
        let before = current.clone();
        let moves = state.take(current, &before);
        state.done(&moves, &before, current)
    }

    #[test]
    fn what_is_found_takes_effect_once_and_is_told_in_words() {
        let (mut state, mut current, now) = (Found::default(), snapshot("/s"), Instant::now());
        state.told(
            vec![found("a", &["h:1:1 s1", "h:2:1 s2"]), found("b", &["h:1:1"])],
            (&current, false),
        );
        assert!(state.are_due(now) && state.poll_timeout().is_none());
        let mut told = current.clone();
        state.put(&mut told);
        assert_eq!(
            (told.pools[0].found().len(), told.pools[1].servers[0].name.as_str()),
            (2, "127.0.0.1:3")
        );
        let line = |text: &str| vec![("a".to_owned(), text.to_owned())];
        assert_eq!(change(&mut state, &mut current), line("s1, s2 joined (2 in all)"));
        assert!(!state.are_due(now));
        state.told(vec![found("a", &["h:1:1 s1", "h:2:1 s2"])], (&current, false));
        assert!(!state.are_due(now));
        state.told(vec![found("a", &["h:9:1 s1", "h:2:2 s2", "h:3:1 s3"])], (&current, false));
        let text = "s3 joined; s1 moved to another address; s2 changed weight (3 in all)";
        assert_eq!(change(&mut state, &mut current), line(text));
        assert_eq!(
            state.last_change_of(&current.pools[0]).unwrap().what,
            text.replace(" (3 in all)", "")
        );
        // The last one counts.
        state.told(vec![found("a", &[])], (&current, false));
        state.told(vec![found("a", &["h:3:1 s3"])], (&current, false));
        assert_eq!(change(&mut state, &mut current), line("s1, s2 left (1 in all)"));
        state.told(vec![found("a", &[])], (&current, false));
        state.told(vec![found("a", &["h:3:1 s3"])], (&current, false));
        assert!(!state.are_due(now), "it is so already");
    }

    #[test]
    fn what_fails_is_tried_again_and_what_another_source_has_named_is_not() {
        let (mut state, current, now) = (Found::default(), snapshot("/s"), Instant::now());
        state.told(vec![found("a", &["h:1:1 s1"])], (&current, false));
        let moves = state.take(&mut current.clone(), &current);
        assert!(!state.are_due(now));
        state.failed(moves, &current, now);
        assert!(!state.are_due(now));
        let at = state.poll_timeout().unwrap();
        assert_eq!(at, now + PAUSE_MIN);
        assert!(state.are_due(at));
        let mut other = snapshot("/t");
        assert_eq!(change(&mut state, &mut other), []);
        assert!(other.pools[0].found().is_empty());
        // A reload may be about to take back what was told just now.
        let mut known = snapshot("/s");
        known.pools[0].set_found(&found("a", &["h:1:1 s1"]).servers);
        state.told(vec![found("a", &["h:1:1 s1"])], (&known, true));
        assert!(state.are_due(at));
        state.keep(&snapshot("/t"));
        assert!(!state.are_due(at));
    }

    #[test]
    fn how_a_source_is_is_told_as_long_as_it_is_the_same() {
        let (mut state, current) = (Found::default(), snapshot("/s"));
        let unknown = state.status_of(&current.pools[0]).unwrap();
        assert_eq!(
            (&*unknown.kind, &*unknown.source, unknown.is_answering),
            ("file", "file /s", None)
        );
        let status = SourceStatus { is_answering: Some(true), ..unknown.clone() };
        state.set_status(status.clone());
        assert_eq!(state.status_of(&current.pools[0]), Some(status));
        assert_eq!(state.status_of(&current.pools[1]), None);
        state.keep(&snapshot("/t"));
        assert_eq!(state.status_of(&current.pools[0]), Some(unknown));
    }
}
