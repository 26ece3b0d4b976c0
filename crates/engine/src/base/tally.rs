//! What was answered in a tick, by class of commands and by prefix, on its way into the statistics.

use cashew_metrics::{CommandCounter, PoolCounter, PoolId, Writer};
use cashew_protocol::{CommandClass, Outcome};

use crate::base::time::Time;

/// What a request counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counting {
    /// Bytes of the request, as its client sent it.
    pub(crate) size: u64,
    /// How many keys it asks memcached for, whose replies leave out those that are not there.
    pub(crate) keys: u32,
    pub(crate) class: CommandClass,
    pub(crate) prefix: PrefixNumber,
}

/// One of a pool's prefixes, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixNumber(u8);

impl PrefixNumber {
    pub(crate) const NONE: Self = Self(0);

    /// By its place in the configuration.
    pub(crate) fn new(at: usize) -> Self {
        Self(u8::try_from(at + 1).unwrap_or(0))
    }

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The number that stands in the place of this one.
    pub(crate) fn of(self, numbers: &[Self]) -> Self {
        self.index().and_then(|at| numbers.get(at)).copied().unwrap_or_default()
    }

    pub(crate) fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

/// A request that is over.
pub(crate) struct Ended {
    pub(crate) started: Time,
    pub(crate) counting: Counting,
    pub(crate) outcome: Outcome,
    /// Bytes of the reply, as the client gets it.
    pub(crate) reply_bytes: u64,
}

/// Counts up what is answered, of one pool at a time. Requests that arrived together and were answered
/// together take equally long: their latencies are recorded at once.
#[derive(Default)]
pub(crate) struct Tally {
    pool: Option<PoolId>,
    /// By number: the classes that have been counted.
    used: u32,
    classes: [Counts; CommandClass::COUNT],
    /// By prefix; as many as have been counted.
    prefixes: Vec<Counts>,
    /// All that has been published so far.
    pub(crate) total: Answered,
}

/// Requests that have been answered, and how long they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub count: u64,
    pub latency_us: u64,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    /// Requests that took so long and are not recorded yet.
    count: u64,
    latency_us: u64,
    errors: u64,
    hits: u64,
    misses: u64,
    request_bytes: u64,
    reply_bytes: u64,
}

impl Counts {
    /// Returns what was counted of another latency, if anything was.
    #[inline(always)]
    fn add(&mut self, ended: &Ended, latency_us: u64) -> Option<Answered> {
        let mut before = None;
        if self.latency_us != latency_us {
            before = self.take_latency();
            self.latency_us = latency_us;
        }
        let Outcome { hits, misses, is_error } = ended.outcome;
        self.count += 1;
        self.errors += u64::from(is_error);
        self.hits += u64::from(hits);
        self.misses += u64::from(misses);
        self.request_bytes += ended.counting.size;
        self.reply_bytes += ended.reply_bytes;
        before
    }

    #[inline(always)]
    fn take_latency(&mut self) -> Option<Answered> {
        let count = std::mem::take(&mut self.count);
        (count > 0).then_some(Answered { count, latency_us: self.latency_us })
    }

    /// Adds what is not 0 to the statistics.
    #[inline(always)]
    fn publish(&mut self, mut add: impl FnMut(CommandCounter, u64)) {
        let Self { errors, hits, misses, request_bytes, reply_bytes, .. } = std::mem::take(self);
        add(CommandCounter::RequestBytes, request_bytes);
        add(CommandCounter::ReplyBytes, reply_bytes);
        for (counter, n) in [
            (CommandCounter::Errors, errors),
            (CommandCounter::Hits, hits),
            (CommandCounter::Misses, misses),
        ] {
            if n > 0 {
                add(counter, n);
            }
        }
    }
}

impl Tally {
    #[inline(always)]
    pub(crate) fn add(&mut self, pool: PoolId, ended: &Ended, now: Time, metrics: &Writer) {
        if self.pool != Some(pool) {
            self.publish(metrics);
            self.pool = Some(pool);
        }
        let class = ended.counting.class;
        let latency_us = now.micros_since(ended.started);
        self.used |= 1 << class as u32;
        if let Some(before) = self.classes[class as usize].add(ended, latency_us) {
            self.record(pool, class, before, metrics);
        }
        if !ended.counting.prefix.is_none() {
            self.add_prefix(pool, ended, latency_us, metrics);
        }
    }

    #[cold]
    #[inline(never)]
    fn add_prefix(&mut self, pool: PoolId, ended: &Ended, latency_us: u64, metrics: &Writer) {
        let Some(prefix) = ended.counting.prefix.index() else { return };
        if self.prefixes.len() <= prefix {
            self.prefixes.resize(prefix + 1, Counts::default());
        }
        if let Some(Answered { count, latency_us }) = self.prefixes[prefix].add(ended, latency_us) {
            metrics.record_prefix(pool, prefix, latency_us, count);
        }
    }

    #[inline]
    fn record(&mut self, pool: PoolId, class: CommandClass, answered: Answered, metrics: &Writer) {
        let Answered { count, latency_us } = answered;
        metrics.record_class(pool, class, latency_us, count);
        metrics.add_pool(pool, PoolCounter::Responses, count);
        self.total.count += count;
        self.total.latency_us += latency_us * count;
    }

    /// The pool that the numbers not published yet are of.
    pub(crate) fn pool(&mut self) -> Option<&mut PoolId> {
        self.pool.as_mut()
    }

    /// The pool's prefixes have other numbers.
    pub(crate) fn renumber_prefixes(&mut self, number: impl Fn(PrefixNumber) -> PrefixNumber) {
        let before = std::mem::take(&mut self.prefixes);
        for (at, counts) in before.into_iter().enumerate() {
            let Some(to) = number(PrefixNumber::new(at)).index() else { continue };
            if self.prefixes.len() <= to {
                self.prefixes.resize(to + 1, Counts::default());
            }
            self.prefixes[to] = counts;
        }
    }

    /// To be called at the end of every tick.
    #[inline]
    pub(crate) fn publish(&mut self, metrics: &Writer) {
        let Some(pool) = self.pool else { return };
        while self.used != 0 {
            let number = self.used.trailing_zeros() as usize;
            self.used &= self.used - 1;
            let class = CommandClass::ALL[number];
            if let Some(answered) = self.classes[number].take_latency() {
                self.record(pool, class, answered, metrics);
            }
            self.classes[number].publish(|counter, n| metrics.add_class(pool, class, counter, n));
        }
        if !self.prefixes.is_empty() {
            self.publish_prefixes(pool, metrics);
        }
    }

    #[cold]
    #[inline(never)]
    fn publish_prefixes(&mut self, pool: PoolId, metrics: &Writer) {
        for (prefix, counts) in self.prefixes.iter_mut().enumerate() {
            if let Some(Answered { count, latency_us }) = counts.take_latency() {
                metrics.record_prefix(pool, prefix, latency_us, count);
                counts.publish(|counter, n| metrics.add_prefix(pool, prefix, counter, n));
            }
        }
        self.prefixes.clear();
    }
}
