//! The last hour of each pool and server: requests, errors and latencies.
//!
//! A series has a point for every five seconds, of 24 bytes, and the histograms of the last ten: some 30 KiB
//! after an hour. So where there are very many servers, only pools have one.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cashew_config::snapshot::Pool;
use cashew_metrics::{Histogram, PoolCounter, ServerCounter};

use crate::json::{Json, Object};
use crate::query;
use crate::source::Source;

/// How often [`History::sample`] is to be called.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);
/// Samples for each point.
const SAMPLES_PER_POINT: u64 = 5;
/// An hour.
const POINTS_MAX: usize = 3600 / 5;
/// With more servers in all pools none of them has a series.
const SERVERS_MAX: usize = 512;
/// Samples that a current rate is made of.
const RATE_SAMPLES: usize = 3;
/// Histograms that current latencies are made of: those of the last ten seconds.
const HISTOGRAMS: usize = 3;
/// Samples for which counters may be lower than before, as while workers hand on theirs to another epoch.
const LOWER_MAX: u32 = 10;

#[derive(Default)]
pub(crate) struct History {
    samples: u64,
    /// Of all series' points, in milliseconds since 1970. Younger series have only the newest of them.
    times: VecDeque<u64>,
    pools: BTreeMap<String, PoolHistory>,
    has_servers: bool,
}

#[derive(Default)]
struct PoolHistory {
    series: Series,
    servers: BTreeMap<String, Series>,
}

/// What is known of a pool or server.
#[derive(Default)]
pub(crate) struct Series {
    /// The last samples and when they were made, in milliseconds since 1970.
    recent: VecDeque<(u64, Counts)>,
    /// Of the last points.
    histograms: VecDeque<Histogram>,
    points: VecDeque<Point>,
    /// Counts at the last point.
    at_point: Option<(u64, Counts)>,
    /// Samples in a row that were lower than the one before.
    lower: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    requests: u64,
    errors: u64,
}

/// What happened since the point before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    /// Milliseconds that it covers.
    span_ms: u32,
    requests: u32,
    errors: u32,
    latency: Option<Latency>,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latency {
    pub(crate) p50: u32,
    pub(crate) p99: u32,
    pub(crate) p999: u32,
}

/// Per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
}

impl Latency {
    /// `None` of an empty histogram.
    fn of(histogram: &Histogram) -> Option<Self> {
        let quantile = |q| histogram.quantile(q).map(short);
        Some(Self { p50: quantile(0.5)?, p99: quantile(0.99)?, p999: quantile(0.999)? })
    }
}

fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Series {
    /// `histogram` is asked for if a point is due.
    fn sample(
        &mut self,
        now_ms: u64,
        counts: Counts,
        is_point: bool,
        histogram: impl Fn() -> Histogram,
    ) {
        let counts = self.settle(counts);
        push(&mut self.recent, (now_ms, counts), RATE_SAMPLES);
        if !is_point && self.at_point.is_some() {
            return;
        }
        let histogram = self.settle_histogram(histogram());
        if let (Some((then_ms, then)), Some(before)) = (self.at_point, self.histograms.back()) {
            let point = Point {
                span_ms: short(now_ms.saturating_sub(then_ms)),
                requests: short(counts.requests.saturating_sub(then.requests)),
                errors: short(counts.errors.saturating_sub(then.errors)),
                latency: Latency::of(&histogram.since(before)),
            };
            push(&mut self.points, point, POINTS_MAX);
        }
        push(&mut self.histograms, histogram, HISTOGRAMS);
        self.at_point = Some((now_ms, counts));
    }

    /// A worker's counters are handed on to the next epoch a little later than that is shown. They are taken
    /// for what they were until then.
    fn settle(&mut self, counts: Counts) -> Counts {
        let Some(&(_, last)) = self.recent.back() else { return counts };
        if counts.requests >= last.requests && counts.errors >= last.errors {
            self.lower = 0;
            return counts;
        }
        self.lower += 1;
        if self.lower <= LOWER_MAX {
            return last;
        }
        // They do begin anew.
        *self = Self { points: std::mem::take(&mut self.points), ..Self::default() };
        counts
    }

    fn settle_histogram(&self, histogram: Histogram) -> Histogram {
        match self.histograms.back() {
            Some(last) if last.count() > histogram.count() => last.clone(),
            _ => histogram,
        }
    }

    pub(crate) fn rates(&self) -> Option<Rates> {
        let (&(from_ms, from), &(to_ms, to)) = (self.recent.front()?, self.recent.back()?);
        let span_ms = Some(to_ms.saturating_sub(from_ms)).filter(|&span| span > 0)?;
        let rate = |from: u64, to: u64| (to.saturating_sub(from) * 1000).div_ceil(span_ms);
        Some(Rates {
            requests: rate(from.requests, to.requests),
            errors: rate(from.errors, to.errors),
        })
    }

    /// Of the last ten seconds. `None` if there was nothing.
    pub(crate) fn latency(&self) -> Option<Latency> {
        Latency::of(&self.histograms.back()?.since(self.histograms.front()?))
    }

    fn told<'a>(&self, times: &VecDeque<u64>, last: usize) -> Object<'a> {
        let shown = self.points.len().min(times.len()).min(last);
        let times = times.iter().skip(times.len() - shown);
        let points = || self.points.iter().skip(self.points.len() - shown);
        let numbers = |of: fn(&Point) -> u32| {
            points().map(|point| u64::from(of(point))).collect::<Json<'a>>()
        };
        let latencies = |of: fn(Latency) -> u32| {
            points().map(|point| point.latency.map(|it| u64::from(of(it)))).collect::<Json<'a>>()
        };
        let mut object = Object::default();
        object.insert("at_ms", times.copied().collect::<Json<'a>>());
        object.insert("span_ms", numbers(|point| point.span_ms));
        object.insert("requests", numbers(|point| point.requests));
        object.insert("errors", numbers(|point| point.errors));
        object.insert("p50_us", latencies(|it| it.p50));
        object.insert("p99_us", latencies(|it| it.p99));
        object.insert("p999_us", latencies(|it| it.p999));
        object
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, max: usize) {
    if queue.len() >= max {
        queue.pop_front();
    }
    queue.push_back(item);
}

impl History {
    /// Takes the numbers of now. Only what the source has is kept.
    pub(crate) fn sample(&mut self, source: &Source) {
        let pools = &source.snapshot().pools;
        let is_point = self.samples.is_multiple_of(SAMPLES_PER_POINT);
        self.samples += 1;
        let now_ms = unix_ms();
        // The first samples are what the first points are counted from.
        if is_point && self.samples > 1 {
            push(&mut self.times, now_ms, POINTS_MAX);
        }
        self.has_servers =
            pools.iter().map(|pool| pool.servers.len()).sum::<usize>() <= SERVERS_MAX;
        self.forget(pools);
        let numbers = source.total();
        for (at, pool) in pools.iter().enumerate() {
            let known = self.pools.entry(pool.name.clone()).or_default();
            let id = source.layout().pool(at);
            let counts = Counts {
                requests: numbers.pool_counter(id, PoolCounter::Requests),
                errors: numbers.pool_counter(id, PoolCounter::ForwardError),
            };
            known.series.sample(now_ms, counts, is_point, || numbers.pool_latency(id));
            let servers = if self.has_servers { pool.servers.as_slice() } else { &[] };
            for (index, server) in servers.iter().enumerate() {
                source.beat();
                let id = source.layout().server(at, index);
                let errors = [
                    ServerCounter::ServerErr,
                    ServerCounter::ServerEof,
                    ServerCounter::ServerTimedout,
                    ServerCounter::ConnectErrors,
                ];
                let counts = Counts {
                    requests: numbers.server_counter(id, ServerCounter::Requests),
                    errors: errors.into_iter().map(|it| numbers.server_counter(id, it)).sum(),
                };
                let series = known.servers.entry(server.name.clone()).or_default();
                series.sample(now_ms, counts, is_point, || numbers.server_latency(id));
            }
        }
    }

    fn forget(&mut self, pools: &[Pool]) {
        let has_servers = self.has_servers;
        self.pools.retain(|name, known| {
            let Some(pool) = pools.iter().find(|pool| &pool.name == name) else { return false };
            // Names are compared only where something has changed.
            let is_same = known.servers.len() == pool.servers.len()
                && pool.servers.iter().all(|server| known.servers.contains_key(&server.name));
            if !has_servers {
                known.servers.clear();
            } else if !is_same {
                known.servers.retain(|name, _| pool.servers.iter().any(|it| &it.name == name));
            }
            true
        });
    }

    pub(crate) fn pool(&self, pool: &str) -> Option<&Series> {
        self.pools.get(pool).map(|known| &known.series)
    }

    pub(crate) fn server(&self, pool: &str, server: &str) -> Option<&Series> {
        self.pools.get(pool)?.servers.get(server)
    }

    /// What a query asks for: a `pool`, perhaps its `server`, and how many of the `last` points. An error says
    /// why that is not there.
    pub(crate) fn told(&self, query: &str) -> Result<Json<'_>, String> {
        let (mut pool, mut server, mut last) = (None, None, POINTS_MAX);
        for (name, value) in query::pairs(query) {
            match name {
                "pool" => pool = Some(value),
                "server" => server = Some(value),
                "last" => last = value.parse().map_err(|_| "last is not a number")?,
                _ => {}
            }
        }
        let pool = pool.ok_or("which pool? /history.json?pool=POOL or ?pool=POOL&server=SERVER")?;
        let known = self.pools.get(&pool).ok_or_else(|| format!("no pool '{pool}'"))?;
        let series = match &server {
            None => &known.series,
            Some(_) if !self.has_servers => {
                return Err(format!(
                    "with more than {SERVERS_MAX} servers only pools have a history"
                ));
            }
            Some(server) => known
                .servers
                .get(server)
                .ok_or_else(|| format!("no server '{server}' in pool '{pool}'"))?,
        };
        let mut object = Object::default();
        object.insert("pool", Some(pool));
        object.insert("server", server);
        object.extend(series.told(&self.times, last));
        Ok(object.into())
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{snapshot, source_of};

    fn histogram(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|&value| histogram.record(value));
        histogram
    }

    #[test]
    fn points_are_differences() {
        let mut series = Series::default();
        let sample = |series: &mut Series, ms, requests, values: &[u64]| {
            let counts = Counts { requests, errors: requests / 10 };
            series.sample(ms, counts, true, || histogram(values));
        };
        sample(&mut series, 1000, 100, &[900; 3]);
        assert_eq!((series.points.len(), series.rates(), series.latency()), (0, None, None));
        sample(&mut series, 6000, 150, &[900, 900, 900, 100, 100]);
        let latency = Latency { p50: 100, p99: 100, p999: 100 };
        let point = Point { span_ms: 5000, requests: 50, errors: 5, latency: Some(latency) };
        assert_eq!(series.points, [point]);
        assert_eq!(series.rates(), Some(Rates { requests: 10, errors: 1 }));
        assert_eq!(series.latency(), Some(latency));
        sample(&mut series, 11_000, 150, &[900, 900, 900, 100, 100]);
        assert_eq!(series.points[1].latency, None);
        // What was in the last ten seconds counts.
        assert_eq!(series.latency(), Some(latency));
        sample(&mut series, 16_000, 150, &[900, 900, 900, 100, 100]);
        assert_eq!(series.latency(), None);
    }

    #[test]
    fn counters_that_are_handed_on_late_make_no_peak() {
        let mut series = Series::default();
        let sample = |series: &mut Series, ms, requests| {
            let values = vec![10; requests as usize];
            let counts = Counts { requests, errors: 0 };
            series.sample(ms, counts, true, || histogram(&values));
        };
        for (at, requests) in [100, 110, 0, 40, 130].into_iter().enumerate() {
            sample(&mut series, 1000 * at as u64, requests);
        }
        let requests: Vec<_> = series.points.iter().map(|point| point.requests).collect();
        assert_eq!(requests, [10, 0, 0, 20]);
        for at in 5..20 {
            sample(&mut series, 1000 * at, 0);
        }
        sample(&mut series, 20_000, 7);
        assert_eq!(series.points.back().unwrap().requests, 7);
    }

    #[test]
    fn an_hour_is_kept_of_what_the_source_has() {
        let (source, segments) = source_of(snapshot(&[("a", &["x", "y"]), ("b", &["x"])]), 1);
        let mut history = History::default();
        let worker = segments.writer(0);
        for _ in 0..SAMPLES_PER_POINT * (POINTS_MAX as u64 + 5) {
            worker.add_pool(segments.layout().pool(0), PoolCounter::Requests, 1);
            history.sample(&source);
        }
        assert_eq!((history.times.len(), history.pools.len()), (POINTS_MAX, 2));
        let series = history.pool("a").unwrap();
        assert_eq!(series.points.len(), POINTS_MAX);
        assert!(series.points.iter().all(|point| point.requests == 5));
        assert_eq!(history.pool("b").unwrap().points[0].requests, 0);

        let of_pool = serde_json::to_value(history.told("pool=a&last=3").unwrap()).unwrap();
        assert_eq!(of_pool["requests"], serde_json::json!([5, 5, 5]));
        assert_eq!(of_pool["p50_us"], serde_json::json!([null, null, null]));

        let (source, _) = source_of(snapshot(&[("a", &["y", "z"])]), 1);
        history.sample(&source);
        assert!(history.pool("b").is_none() && history.server("a", "x").is_none());
        assert_eq!(history.server("a", "y").unwrap().points.len(), POINTS_MAX);
        assert!(history.server("a", "z").unwrap().points.is_empty());
        let told = serde_json::to_value(history.told("pool=a&server=z").unwrap()).unwrap();
        assert_eq!(told["at_ms"], serde_json::json!([]));
        for query in ["", "pool=b", "pool=a&server=x", "pool=a&last=x"] {
            assert!(history.told(query).is_err(), "{query}");
        }
    }

    #[test]
    fn very_many_servers_have_no_series() {
        let names: Vec<String> = (0..=SERVERS_MAX).map(|at| format!("s{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut history = History::default();
        let (source, _) = source_of(snapshot(&[("a", &names[1..])]), 1);
        history.sample(&source);
        assert!(history.server("a", "s1").is_some());
        let (source, _) = source_of(snapshot(&[("a", &names)]), 1);
        history.sample(&source);
        assert!(history.server("a", "s1").is_none() && history.pool("a").is_some());
        assert!(history.told("pool=a&server=s1").is_err_and(|why| why.contains("only pools")));
    }
}
