//! Single requests on their way from the workers to the spans and the access log: read often, since the ring that
//! they are in is small, and chosen by share.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use cashew_config::snapshot::Global;
use cashew_metrics::{ExportCounter, SeenRequest, Shared};

/// A request that is exported, written down, or both.
#[derive(Debug)]
pub(crate) struct Tapped {
    pub(crate) request: SeenRequest,
    /// `None` if it is not exported.
    pub(crate) trace_id: Option<TraceId>,
    pub(crate) is_logged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(pub(crate) u128);

/// Reads the ring of samples while somebody wants them.
pub(crate) struct RequestTap {
    random: Random,
    /// The newest request that was read; `None` while nobody wants any.
    newest: Option<u64>,
}

impl RequestTap {
    pub(crate) fn new() -> Self {
        Self { random: Random::new(), newest: None }
    }

    /// Those since the last time that somebody wants, in order. Tells workers whether anybody wants any.
    pub(crate) fn read(&mut self, shared: &Shared, global: &Global) -> Vec<Tapped> {
        let ring = shared.sampled_requests();
        let is_wanted = global.tracing.is_some() || global.access_log.is_some();
        if ring.is_wanted() != is_wanted {
            ring.set_wanted(is_wanted);
        }
        if !is_wanted {
            self.newest = None;
            return Vec::new();
        }
        // What came before it was switched on, or before this process, is nothing new.
        let Some(newest) = self.newest else {
            self.newest = Some(ring.count());
            return Vec::new();
        };
        let seen = ring.since(newest);
        let Some(last) = seen.last() else { return Vec::new() };
        let missed = (last.number - newest).saturating_sub(seen.len() as u64);
        shared.exports().add(ExportCounter::SamplesMissed, missed);
        self.newest = Some(last.number);
        seen.into_iter().filter_map(|request| self.choose(request, global)).collect()
    }

    /// With equal shares the same requests are exported and written down.
    fn choose(&mut self, request: SeenRequest, global: &Global) -> Option<Tapped> {
        let trace_id = self.random.trace_id();
        let draw = (trace_id.0 % 100) as u32;
        let is_traced =
            global.tracing.as_ref().is_some_and(|it| request.is_slow || draw < it.share_percent);
        let is_logged = global
            .access_log
            .as_ref()
            .is_some_and(|it| (request.is_slow && it.slow) || draw < it.share_percent);
        let trace_id = is_traced.then_some(trace_id);
        (is_traced || is_logged).then_some(Tapped { request, trace_id, is_logged })
    }
}

/// Numbers that nobody draws twice. They are no secrets.
pub(crate) struct Random {
    /// Has random keys of its own.
    state: RandomState,
    count: u64,
}

impl Random {
    pub(crate) fn new() -> Self {
        Self { state: RandomState::new(), count: 0 }
    }

    /// Never 0.
    pub(crate) fn number(&mut self) -> u64 {
        self.count += 1;
        self.state.hash_one(self.count).max(1)
    }

    fn trace_id(&mut self) -> TraceId {
        TraceId(u128::from(self.number()) << 64 | u128::from(self.number()))
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::{AccessLog, CollectorUrl, KeysShown, LogFormat, Tracing};
    use cashew_metrics::{NewRequest, Times};

    use super::*;
    use crate::testing::snapshot;

    fn record(shared: &Shared, count: usize, is_slow: bool) {
        for _ in 0..count {
            shared.sampled_requests().record(&NewRequest {
                pool: "alpha",
                server: "one",
                client: "",
                client_id: 1,
                client_name: b"",
                user: "",
                worker: 0,
                arguments: &[],
                request_bytes: 1,
                reply_bytes: 1,
                times: Times::default(),
                key_hash: 0,
                failure: "",
                is_part: false,
                is_slow,
            });
        }
    }

    fn global(traced: Option<u32>, logged: Option<(u32, bool)>) -> Global {
        let tracing = |share_percent| Tracing {
            endpoint: CollectorUrl { host: "c".into(), port: 1, path: "/".into() },
            share_percent,
            headers: Vec::new(),
            service_name: "cashew".into(),
            keys: KeysShown::Hash,
        };
        let access_log = |(share_percent, slow)| AccessLog {
            file: "/access".into(),
            format: LogFormat::Plain,
            share_percent,
            slow,
            arguments: true,
        };
        let global = snapshot(&[("alpha", &["one"])]).global;
        Global { tracing: traced.map(tracing), access_log: logged.map(access_log), ..global }
    }

    #[test]
    fn workers_are_told_whether_anybody_wants_samples() {
        let shared = Shared::in_memory();
        let mut tap = RequestTap::new();
        let off = global(None, None);
        record(&shared, 3, true);
        assert!(tap.read(&shared, &off).is_empty() && !shared.sampled_requests().is_wanted());
        let on = global(Some(100), None);
        assert!(tap.read(&shared, &on).is_empty(), "they are old");
        assert!(shared.sampled_requests().is_wanted());
        record(&shared, 3, false);
        let tapped = tap.read(&shared, &on);
        assert!(tapped.iter().all(|it| it.trace_id.is_some() && !it.is_logged));
        assert_eq!((tapped.len(), tap.read(&shared, &on).len()), (3, 0));
        assert!(tap.read(&shared, &off).is_empty() && !shared.sampled_requests().is_wanted());
    }

    #[test]
    fn shares_are_of_samples_and_slow_ones_come_all() {
        let shared = Shared::in_memory();
        let mut tap = RequestTap::new();
        let mut counts = |on: &Global, is_slow| {
            tap.read(&shared, on);
            record(&shared, 1000, is_slow);
            let tapped = tap.read(&shared, on);
            let traced = tapped.iter().filter(|it| it.trace_id.is_some()).count();
            (traced, tapped.iter().filter(|it| it.is_logged).count())
        };
        let (traced, logged) = counts(&global(Some(10), Some((50, false))), false);
        assert!((50..200).contains(&traced) && (400..600).contains(&logged), "{traced} {logged}");
        assert_eq!(counts(&global(Some(0), Some((0, false))), true), (1000, 0));
        assert_eq!(counts(&global(None, Some((0, true))), true), (0, 1000));
        assert_eq!(counts(&global(Some(0), Some((0, true))), false), (0, 0));
    }

    #[test]
    fn what_was_overwritten_is_counted() {
        let shared = Shared::in_memory();
        let mut tap = RequestTap::new();
        let on = global(Some(100), None);
        tap.read(&shared, &on);
        record(&shared, 3000, false);
        let read = tap.read(&shared, &on).len() as u64;
        let missed = shared.exports().count(ExportCounter::SamplesMissed);
        assert!(missed > 0 && read + missed == 3000, "{read} {missed}");
    }
}
