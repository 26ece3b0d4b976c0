//! What requests count as by class of commands and by prefix of keys, from their beginning to their way
//! into the statistics. Only clients of listeners with `command_stats` have their requests here: none of
//! it is at hand in a [`Request`](crate::request::Request), so that the others pay nothing.

use cashew_metrics::{CommandCounter, PoolId, Writer};
use cashew_protocol::{CommandClass, Outcome, OutcomeReader, ReplyForm};

use crate::base::id::RequestId;

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

    /// The number that stands in the place of this one.
    pub(crate) fn of(self, numbers: &[Self]) -> Self {
        self.index().and_then(|at| numbers.get(at)).copied().unwrap_or_default()
    }

    fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

/// A request on its way.
#[derive(Clone, Copy, Default)]
struct Entry {
    counting: Counting,
    /// How its reply is read. A request that began before it was to be counted has none.
    form: Option<ReplyForm>,
    /// Of a reply that is read already.
    outcome: Option<Outcome>,
    /// Reads a reply that goes to its client in pieces.
    reader: OutcomeReader,
    is_read: bool,
    /// As far as they are read.
    reply_bytes: u64,
}

impl Entry {
    fn read(&mut self, bytes: &[u8]) {
        let Some(form) = self.form else { return };
        self.is_read = true;
        self.reply_bytes += bytes.len() as u64;
        self.reader.read(form, self.counting.class == CommandClass::Get, bytes);
    }

    /// What the reply says, of which this is the rest.
    fn finish(&mut self, form: ReplyForm, rest: &[u8]) -> Outcome {
        let Counting { class, keys, .. } = self.counting;
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        if !self.is_read
            && let Some(outcome) = Outcome::of(form, class == CommandClass::Get, keys, rest)
        {
            self.reply_bytes = rest.len() as u64;
            return outcome;
        }
        self.read(rest);
        self.reader.finish(keys)
    }
}

/// What is counted is of one pool at a time.
#[derive(Default)]
pub(crate) struct CommandStats {
    /// What the request that is being dispatched counts as, where that is of interest.
    pub(crate) current: Counting,
    entries: Vec<Entry>,
    pool: Option<PoolId>,
    /// By number: the classes that have been counted.
    used: u32,
    classes: [Counts; CommandClass::COUNT],
    /// By prefix; as many as have been counted.
    prefixes: Vec<Counts>,
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
    /// Returns how many took another time, and which, if there were any.
    fn add(&mut self, entry: &Entry, outcome: Outcome, latency_us: u64) -> Option<(u64, u64)> {
        let mut before = None;
        if self.latency_us != latency_us {
            before = self.take_latency();
            self.latency_us = latency_us;
        }
        let Outcome { hits, misses, is_error } = outcome;
        self.count += 1;
        self.errors += u64::from(is_error);
        self.hits += u64::from(hits);
        self.misses += u64::from(misses);
        self.request_bytes += entry.counting.size;
        self.reply_bytes += entry.reply_bytes;
        before
    }

    fn take_latency(&mut self) -> Option<(u64, u64)> {
        let count = std::mem::take(&mut self.count);
        (count > 0).then_some((self.latency_us, count))
    }

    /// Adds what is not 0 to the statistics.
    fn publish(&mut self, mut add: impl FnMut(CommandCounter, u64)) {
        let Self { errors, hits, misses, request_bytes, reply_bytes, .. } = std::mem::take(self);
        for (counter, n) in [
            (CommandCounter::Errors, errors),
            (CommandCounter::Hits, hits),
            (CommandCounter::Misses, misses),
            (CommandCounter::RequestBytes, request_bytes),
            (CommandCounter::ReplyBytes, reply_bytes),
        ] {
            if n > 0 {
                add(counter, n);
            }
        }
    }
}

impl CommandStats {
    /// A request begins, of a client whose requests are counted.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin(&mut self, request: RequestId, form: ReplyForm, counting: Counting) {
        let at = request.index();
        if self.entries.len() <= at {
            self.entries.resize(at + 1, Entry::default());
        }
        self.entries[at] = Entry { counting, form: Some(form), ..Entry::default() };
    }

    /// Part of the reply to such a request goes to its client's output.
    #[cold]
    #[inline(never)]
    pub(crate) fn reply_goes(&mut self, request: RequestId, bytes: &[u8]) {
        if let Some(entry) = self.entries.get_mut(request.index()) {
            entry.read(bytes);
        }
    }

    /// The reply to such a request has come whole; with what stands behind it the client gets so many
    /// bytes.
    #[cold]
    #[inline(never)]
    pub(crate) fn reply_is(&mut self, request: RequestId, reply: &[u8], bytes: u64) {
        if let Some(entry) = self.entries.get_mut(request.index())
            && let Some(form) = entry.form
        {
            entry.outcome = Some(entry.finish(form, reply));
            entry.reply_bytes = bytes;
        }
    }

    /// Such a request ends; this is what was kept of its reply.
    #[cold]
    #[inline(never)]
    pub(crate) fn end(
        &mut self,
        (request, pool): (RequestId, PoolId),
        kept: &[u8],
        latency_us: u64,
        metrics: &Writer,
    ) {
        let Some(entry) = self.entries.get_mut(request.index()) else { return };
        let Some(form) = entry.form else { return };
        let outcome = entry.finish(form, kept);
        let entry = std::mem::take(entry);
        if self.pool != Some(pool) {
            self.publish(metrics);
            self.pool = Some(pool);
        }
        let class = entry.counting.class;
        self.used |= 1 << class as u32;
        let before = self.classes[class as usize].add(&entry, outcome, latency_us);
        if let Some((latency_us, count)) = before {
            metrics.record_class(pool, class, latency_us, count);
        }
        let Some(prefix) = entry.counting.prefix.index() else { return };
        if self.prefixes.len() <= prefix {
            self.prefixes.resize(prefix + 1, Counts::default());
        }
        if let Some((latency_us, count)) = self.prefixes[prefix].add(&entry, outcome, latency_us) {
            metrics.record_prefix(pool, prefix, latency_us, count);
        }
    }

    /// Of requests from this number on there is none.
    pub(crate) fn shrink(&mut self, requests: usize) {
        if self.entries.len() > requests {
            self.entries.truncate(requests);
            self.entries.shrink_to(requests);
        }
    }

    /// A request on its way is counted no more.
    pub(crate) fn forget(&mut self, request: RequestId) {
        if let Some(entry) = self.entries.get_mut(request.index()) {
            *entry = Entry::default();
        }
    }

    /// The prefixes of its pool have other numbers.
    pub(crate) fn renumber_prefix(&mut self, request: RequestId, numbers: &[PrefixNumber]) {
        if let Some(entry) = self.entries.get_mut(request.index()) {
            entry.counting.prefix = entry.counting.prefix.of(numbers);
        }
    }

    /// The pool that the numbers not published yet are of.
    pub(crate) fn pool(&mut self) -> Option<&mut PoolId> {
        self.pool.as_mut()
    }

    /// What is not published yet is for nobody.
    pub(crate) fn drop_unpublished(&mut self) {
        self.pool = None;
        self.used = 0;
        self.classes = Default::default();
        self.prefixes.clear();
    }

    /// The prefixes of the pool whose numbers are not published yet have other numbers.
    pub(crate) fn renumber_unpublished(&mut self, numbers: &[PrefixNumber]) {
        let before = std::mem::take(&mut self.prefixes);
        for (at, counts) in before.into_iter().enumerate() {
            let Some(to) = PrefixNumber::new(at).of(numbers).index() else { continue };
            if self.prefixes.len() <= to {
                self.prefixes.resize(to + 1, Counts::default());
            }
            self.prefixes[to] = counts;
        }
    }

    /// Whether any requests are counted.
    #[inline(always)]
    pub(crate) fn is_used(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Whether there is anything to [publish](Self::publish).
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.used != 0
    }

    /// To be called at the end of every tick in which [`Self::is_due`].
    #[cold]
    #[inline(never)]
    pub(crate) fn publish(&mut self, metrics: &Writer) {
        let Some(pool) = self.pool else { return };
        while self.used != 0 {
            let number = self.used.trailing_zeros() as usize;
            self.used &= self.used - 1;
            let class = CommandClass::ALL[number];
            if let Some((latency_us, count)) = self.classes[number].take_latency() {
                metrics.record_class(pool, class, latency_us, count);
            }
            self.classes[number].publish(|counter, n| metrics.add_class(pool, class, counter, n));
        }
        for (prefix, counts) in self.prefixes.iter_mut().enumerate() {
            if let Some((latency_us, count)) = counts.take_latency() {
                metrics.record_prefix(pool, prefix, latency_us, count);
                counts.publish(|counter, n| metrics.add_prefix(pool, prefix, counter, n));
            }
        }
        self.prefixes.clear();
    }
}
