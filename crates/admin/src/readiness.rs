//! Whether the instance is to get clients.

use crate::source::Source;

/// A worker whose heartbeat is older does not serve. They beat some hundred times within it.
const SERVES_AGE_MAX_MS: u64 = 2000;

/// Why the instance is not to get clients, a line each. None if it is ready.
pub(crate) fn reasons_against(source: &Source) -> Vec<String> {
    let mut reasons = Vec::new();
    if source.is_stopping() {
        reasons.push("the instance is stopping".to_owned());
    }
    if source.is_draining() {
        reasons.push("the instance is draining".to_owned());
    }
    let global = &source.snapshot().global;
    let serves = |age: u64| age <= SERVES_AGE_MAX_MS;
    let serving =
        source.workers().filter(|worker| worker.heartbeat_age_ms().is_some_and(serves)).count();
    if serving < global.ready_workers as usize {
        reasons.push(format!("{serving} workers serve, {} are needed", global.ready_workers));
    }
    if global.ready_needs_primaries {
        reasons.extend(pools_without_primary(source));
    }
    reasons
}

/// The pools whose servers are all down. Of a group one server is enough: it may have been promoted.
fn pools_without_primary(source: &Source) -> impl Iterator<Item = String> {
    let pools = source.snapshot().pools.iter().enumerate();
    // Nobody looks after the servers of the others: without clients they would stay down for ever.
    let checked =
        pools.filter(|(_, pool)| pool.server_check_interval_ms > 0 && pool.route.is_none());
    let dead = checked.filter(|&(at, pool)| {
        (0..pool.servers.len())
            .all(|server| !source.health(source.layout().server(at, server)).is_up())
    });
    dead.map(|(_, pool)| format!("pool {}: no primary is up", pool.name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cashew_config::Snapshot;
    use cashew_metrics::{Cause, Evidence, Segments, monotonic_ms};

    use super::*;
    use crate::testing::{snapshot, source_of};

    fn checked() -> Snapshot {
        snapshot(&[("a", &["one", "two"]), ("b", &["three"])])
    }

    fn beating(snapshot: Snapshot, slots: u32) -> (Source, Arc<Segments>) {
        let (source, segments) = source_of(snapshot, slots);
        for slot in 0..slots {
            segments.writer(slot).set_pid(1 + slot);
            segments.writer(slot).beat(monotonic_ms());
        }
        (source, segments)
    }

    #[test]
    fn an_instance_is_ready_when_enough_workers_serve() {
        let mut wants_two = checked();
        wants_two.global.ready_workers = 2;
        let (source, segments) = beating(wants_two, 2);
        assert_eq!(reasons_against(&source), [""; 0]);
        segments.vacate(1);
        assert_eq!(reasons_against(&source), ["1 workers serve, 2 are needed"]);
        // It has begun, but served nobody yet.
        segments.writer(1).set_pid(7);
        assert_eq!(reasons_against(&source).len(), 1);
        segments.writer(1).beat(monotonic_ms());
        assert_eq!(reasons_against(&source), [""; 0]);
        // It hangs.
        if monotonic_ms() > 60_000 {
            segments.writer(1).beat(1);
            assert_eq!(reasons_against(&source).len(), 1);
        }
    }

    #[test]
    fn an_instance_that_has_not_begun_to_serve_is_not_ready() {
        let (source, _) = source_of(checked(), 1);
        assert_eq!(reasons_against(&source), ["0 workers serve, 1 are needed"]);
    }

    #[test]
    fn an_instance_that_stops_is_not_ready() {
        let (source, _) = beating(checked(), 1);
        source.stops();
        assert_eq!(reasons_against(&source), ["the instance is stopping"]);
    }

    #[test]
    fn an_instance_that_drains_is_not_ready_until_it_stays() {
        let (source, _) = beating(checked(), 1);
        source.shared().drains();
        assert_eq!(reasons_against(&source), ["the instance is draining"]);
        source.shared().stays();
        assert_eq!(reasons_against(&source), [""; 0]);
    }

    #[test]
    fn servers_matter_if_the_option_says_so() {
        let gone = Evidence::Unreachable(Cause::Refused);
        let (source, segments) = beating(checked(), 1);
        let note = |segments: &Arc<Segments>, pool, server, evidence| {
            let server = segments.layout().server(pool, server);
            segments.writer(0).note(server, evidence, monotonic_ms() * 1000);
        };
        note(&segments, 0, 0, gone);
        assert_eq!(reasons_against(&source), [""; 0]);

        let mut needs = checked();
        needs.global.ready_needs_primaries = true;
        needs.pools.iter_mut().for_each(|pool| pool.server_check_interval_ms = 1000);
        let (source, segments) = beating(needs.clone(), 1);
        let none = |pool| format!("pool {pool}: no primary is up");
        assert_eq!(reasons_against(&source), [none("a"), none("b")]);
        note(&segments, 0, 1, Evidence::Answered);
        note(&segments, 1, 0, Evidence::Answered);
        note(&segments, 0, 0, gone);
        assert_eq!(reasons_against(&source), [""; 0]);
        note(&segments, 1, 0, gone);
        assert_eq!(reasons_against(&source), [none("b")]);
        note(&segments, 0, 1, gone);
        assert_eq!(reasons_against(&source), [none("a"), none("b")]);

        needs.pools[1].server_check_interval_ms = 0;
        let (source, _) = beating(needs, 1);
        assert_eq!(reasons_against(&source), [none("a")]);
    }
}
