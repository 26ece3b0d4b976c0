//! Single requests that are worth a look, as all workers have seen them: slow ones, and samples.
//!
//! They are kept in rings in the memory that all processes share, so whoever reads them there sees those of workers
//! that have died, too. Each is a [record](crate::record) of its ring. Who writes has limited how many there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::digest::fnv1a;
use crate::mapping::{Mapping, View};
use crate::record::{self, Record};

/// Slow requests that are kept.
pub const SLOW_MAX: usize = 512;
/// Pools whose requests can be forgotten apart from those of others.
const POOLS_MAX: usize = 60;
/// Sampled requests that are kept: for readers that come several times a second.
const SAMPLES_MAX: usize = 2048;
/// Arguments kept of a request, as in Redis' slow log: the last one says how many more there were.
pub const ARGUMENTS_MAX: usize = 32;
/// Bytes kept of an argument, as in Redis' slow log, behind which it says how many more there were.
pub const ARGUMENT_SIZE_MAX: usize = 128;

/// Words of a record: a KiB.
const WORDS_EACH: usize = 128;
const NUMBERS: usize = 13;
const TEXTS: usize = 7;
/// Which of the numbers is a digest of the pool's name.
const POOL_NUMBER: usize = NUMBERS - 1;
const NAME_MAX: usize = 80;
const ADDRESS_MAX: usize = 128;
const FAILURE_MAX: usize = 64;

mod word {
    /// How many records were ever begun.
    pub(super) const TICKETS: usize = 0;
    /// Those of lower tickets are forgotten, of whatever pool.
    pub(super) const SINCE: usize = 1;
    /// How many there were that found no room in the limits.
    pub(super) const LEFT_OUT: usize = 2;
    /// 1 while somebody reads it.
    pub(super) const WANTED: usize = 3;
    /// Of pools whose requests were forgotten: a digest of the name, and up to which ticket they are.
    pub(super) const POOLS: usize = 8;
    pub(super) const RECORDS: usize = POOLS + 2 * super::POOLS_MAX;
}

const fn words(records: usize) -> usize {
    word::RECORDS + records * WORDS_EACH
}

/// Words of both rings.
pub(crate) const WORDS: usize = words(SLOW_MAX) + words(SAMPLES_MAX);

/// Where the time of a request went. The parts do not overlap; all are microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The gateway was busy with others, before the request was read or before its reply was.
    pub gateway_us: u64,
    /// It waited for its turn, or for a connection, to be sent to its server.
    pub queue_us: u64,
    /// From its last byte sent to the last byte of the reply.
    pub server_us: u64,
    /// The reply waited for those to earlier requests of the client.
    pub order_us: u64,
    /// The reply waited for the client to take it.
    pub client_us: u64,
}

impl Times {
    pub fn total_us(&self) -> u64 {
        self.gateway_us + self.queue_us + self.server_us + self.order_us + self.client_us
    }

    /// The name of the part that took longest.
    pub fn longest(&self) -> &'static str {
        let parts = [
            ("gateway", self.gateway_us),
            ("queue", self.queue_us),
            ("order", self.order_us),
            ("client", self.client_us),
            ("server", self.server_us),
        ];
        parts.into_iter().max_by_key(|(_, us)| *us).map_or("server", |(name, _)| name)
    }
}

/// A request that has ended just now.
#[derive(Clone, Copy, Debug)]
pub struct NewRequest<'a> {
    /// Where its client is connected.
    pub pool: &'a str,
    /// `pool/server` if that pool is another one. Empty if none was asked.
    pub server: &'a str,
    /// The client's address. Empty if it is gone.
    pub client: &'a str,
    pub client_id: u64,
    /// Of CLIENT SETNAME.
    pub client_name: &'a [u8],
    pub user: &'a str,
    /// The slot of the worker.
    pub worker: u32,
    /// The command and what follows it, each cut to [`ARGUMENT_SIZE_MAX`].
    pub arguments: &'a [Vec<u8>],
    pub request_bytes: u64,
    pub reply_bytes: u64,
    pub times: Times,
    /// A digest of its first key, for where keys must not be shown; 0 if it has none.
    pub key_hash: u64,
    /// Why it was not answered by its server. Empty if it was.
    pub failure: &'a str,
    /// It is what one server got of a client's request.
    pub is_part: bool,
    pub is_slow: bool,
}

/// A request as it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenRequest {
    /// Later ones of the same ring have higher numbers.
    pub number: u64,
    /// When it ended, in microseconds since 1970.
    pub at_us: u64,
    pub pool: String,
    pub server: String,
    pub client: String,
    pub client_id: u64,
    pub client_name: Vec<u8>,
    pub user: String,
    pub worker: u32,
    pub arguments: Vec<Vec<u8>>,
    pub request_bytes: u64,
    pub reply_bytes: u64,
    pub times: Times,
    pub key_hash: u64,
    pub failure: String,
    /// It is what one server got of a client's request.
    pub is_part: bool,
    pub is_slow: bool,
}

/// The digest of a key, where keys must not be shown: FNV-1a, 64 bits. It is never 0.
pub fn key_hash(key: &[u8]) -> u64 {
    fnv1a(key).max(1)
}

/// One ring of requests. None are kept in memory that an older version made.
#[derive(Clone)]
pub struct RequestRing(Option<View>);

impl RequestRing {
    /// The ring of slow requests, whose words and those of all that follows begin at `start`.
    pub(crate) fn slow(mapping: &Arc<Mapping>, start: usize) -> Self {
        Self::new(mapping, start, SLOW_MAX)
    }

    /// The ring of samples.
    pub(crate) fn samples(mapping: &Arc<Mapping>, start: usize) -> Self {
        Self::new(mapping, start + words(SLOW_MAX), SAMPLES_MAX)
    }

    fn new(mapping: &Arc<Mapping>, start: usize, records: usize) -> Self {
        Self(View::of_part(mapping, start, words(records)))
    }

    /// A ring that keeps nothing.
    pub fn none() -> Self {
        Self(None)
    }

    fn place(&self) -> Option<(&[AtomicU64], usize)> {
        let words = self.0.as_ref()?.words();
        Some((words, (words.len() - word::RECORDS) / WORDS_EACH))
    }

    pub fn record(&self, request: &NewRequest<'_>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.record_at(request, now.as_micros() as u64);
    }

    fn record_at(&self, request: &NewRequest<'_>, at_us: u64) {
        let Some((words, records)) = self.place() else { return };
        let ticket = words[word::TICKETS].fetch_add(1, Relaxed);
        let Times { gateway_us, queue_us, server_us, order_us, client_us } = request.times;
        let what = u64::from(request.worker) << 1 | u64::from(request.is_slow);
        let numbers = [
            at_us,
            what,
            request.client_id,
            request.request_bytes,
            request.reply_bytes,
            request.key_hash,
            gateway_us,
            queue_us,
            server_us,
            order_us,
            client_us,
            u64::from(request.is_part),
            digest(request.pool),
        ];
        let mut arguments = Vec::with_capacity(256);
        for argument in request.arguments {
            arguments.extend_from_slice(&(argument.len() as u16).to_le_bytes());
            arguments.extend_from_slice(argument);
        }
        let texts = [
            (request.pool.as_bytes(), NAME_MAX),
            (request.server.as_bytes(), 2 * NAME_MAX),
            (request.client.as_bytes(), ADDRESS_MAX),
            (request.client_name, NAME_MAX),
            (request.user.as_bytes(), NAME_MAX),
            (request.failure.as_bytes(), FAILURE_MAX),
            (arguments.as_slice(), usize::MAX),
        ];
        record::write::<NUMBERS, TEXTS>(record_of(words, records, ticket), ticket, numbers, texts);
    }

    /// Counts some that were not recorded, since there were too many.
    pub fn leave_out(&self, count: u64) {
        if let Some((words, _)) = self.place() {
            words[word::LEFT_OUT].fetch_add(count, Relaxed);
        }
    }

    /// How many were not recorded, since there were too many.
    pub fn left_out(&self) -> u64 {
        self.place().map_or(0, |(words, _)| words[word::LEFT_OUT].load(Relaxed))
    }

    /// How many were ever recorded.
    pub fn count(&self) -> u64 {
        self.place().map_or(0, |(words, _)| words[word::TICKETS].load(Relaxed))
    }

    /// Those that are kept with numbers above `since`, in order. The first number is 1. One that is being written
    /// is not among them.
    pub fn since(&self, since: u64) -> Vec<SeenRequest> {
        let Some((words, records)) = self.place() else { return Vec::new() };
        let end = words[word::TICKETS].load(Relaxed);
        let from =
            words[word::SINCE].load(Relaxed).max(since).max(end.saturating_sub(records as u64));
        let read = |ticket| {
            let record = record::read(record_of(words, records, ticket), ticket)?;
            let request = seen(ticket + 1, record);
            (ticket >= since_of(words, &request.pool)).then_some(request)
        };
        (from.min(end)..end).filter_map(read).collect()
    }

    /// The newest ones of a pool, the newest first. This looks at no more than so many of them closely.
    pub fn newest_of(&self, pool: &str, most: usize) -> Vec<SeenRequest> {
        let Some((words, records)) = self.place() else { return Vec::new() };
        let read = |ticket| {
            let record = record::read(record_of(words, records, ticket), ticket)?;
            Some(seen(ticket + 1, record))
        };
        self.tickets_of(pool).filter_map(read).filter(|it| it.pool == pool).take(most).collect()
    }

    /// How many of a pool are kept.
    pub fn len_of(&self, pool: &str) -> usize {
        self.tickets_of(pool).count()
    }

    /// Those of a pool, the newest first, without a look at what they are.
    fn tickets_of(&self, pool: &str) -> impl Iterator<Item = u64> {
        let name = digest(pool);
        let (words, records) = self.place().unwrap_or((&[], 0));
        let end = words.get(word::TICKETS).map_or(0, |tickets| tickets.load(Relaxed));
        let oldest = end.saturating_sub(records as u64);
        let since = words.get(word::SINCE).map_or(0, |since| since.load(Relaxed));
        let from = oldest.max(since).max(since_of(words, pool)).min(end);
        let is_of = move |ticket: &u64| {
            record::number(record_of(words, records, *ticket), *ticket, POOL_NUMBER) == Some(name)
        };
        (from..end).rev().filter(is_of)
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.since(0).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets those of a pool that were recorded up to now; those of all pools if there are too many that were
    /// forgotten apart.
    pub fn reset(&self, pool: &str) {
        let Some((words, _)) = self.place() else { return };
        let until = words[word::TICKETS].load(Relaxed);
        let name = digest(pool);
        for place in words[word::POOLS..word::RECORDS].chunks_exact(2) {
            let taken = place[0].compare_exchange(0, name, Relaxed, Relaxed);
            if taken.is_ok() || taken == Err(name) {
                place[1].fetch_max(until, Relaxed);
                return;
            }
        }
        words[word::SINCE].fetch_max(until, Relaxed);
    }

    /// Whether somebody wants them.
    pub fn is_wanted(&self) -> bool {
        self.place().is_some_and(|(words, _)| words[word::WANTED].load(Relaxed) != 0)
    }

    /// Says whether somebody wants them from now on.
    pub fn set_wanted(&self, is_wanted: bool) {
        if let Some((words, _)) = self.place() {
            words[word::WANTED].store(is_wanted.into(), Relaxed);
        }
    }
}

/// Up to which ticket those of a pool are forgotten.
fn since_of(words: &[AtomicU64], pool: &str) -> u64 {
    let name = digest(pool);
    let mut places = words.get(word::POOLS..word::RECORDS).unwrap_or_default().chunks_exact(2);
    let place = places.find(|place| place[0].load(Relaxed) == name);
    place.map_or(0, |place| place[1].load(Relaxed))
}

/// Of a pool's name; never 0.
fn digest(name: &str) -> u64 {
    fnv1a(name.as_bytes()).max(1)
}

fn record_of(words: &[AtomicU64], records: usize, ticket: u64) -> &[AtomicU64] {
    let start = word::RECORDS + (ticket % records as u64) as usize * WORDS_EACH;
    &words[start..start + WORDS_EACH]
}

fn seen(number: u64, record: Record<NUMBERS, TEXTS>) -> SeenRequest {
    let [at_us, what, client_id, request_bytes, reply_bytes, key_hash, times @ .., is_part, _] =
        record.numbers;
    let [gateway_us, queue_us, server_us, order_us, client_us] = times;
    let [pool, server, client, client_name, user, failure, arguments] = record.texts;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    SeenRequest {
        number,
        at_us,
        pool: text(pool),
        server: text(server),
        client: text(client),
        client_id,
        client_name,
        user: text(user),
        worker: (what >> 1) as u32,
        arguments: split_arguments(&arguments),
        request_bytes,
        reply_bytes,
        times: Times { gateway_us, queue_us, server_us, order_us, client_us },
        key_hash,
        failure: text(failure),
        is_part: is_part == 1,
        is_slow: what & 1 == 1,
    }
}

/// The last one may be cut.
fn split_arguments(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut arguments = Vec::new();
    while let Some((&len, rest)) = bytes.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes(len)).min(rest.len());
        let (argument, rest) = rest.split_at(len);
        arguments.push(argument.to_vec());
        bytes = rest;
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shared;

    fn request(arguments: &[Vec<u8>]) -> NewRequest<'_> {
        NewRequest {
            pool: "alpha",
            server: "one",
            client: "10.0.0.1:5",
            client_id: 7,
            client_name: b"app",
            user: "",
            worker: 3,
            arguments,
            request_bytes: 30,
            reply_bytes: 5,
            times: Times { server_us: 20_000, queue_us: 3, ..Times::default() },
            key_hash: 9,
            failure: "",
            is_part: false,
            is_slow: true,
        }
    }

    #[test]
    fn a_request_is_seen_by_all_as_it_was_recorded() {
        let (fd, shared) = Shared::create().unwrap();
        let arguments = [b"get".to_vec(), b"k\0\xff".to_vec()];
        shared.slow_requests().record_at(&request(&arguments), 1_000_000);
        let seen = Shared::open(&fd).unwrap().slow_requests().since(0);
        let expected = SeenRequest {
            number: 1,
            at_us: 1_000_000,
            pool: "alpha".into(),
            server: "one".into(),
            client: "10.0.0.1:5".into(),
            client_id: 7,
            client_name: b"app".to_vec(),
            user: String::new(),
            worker: 3,
            arguments: arguments.to_vec(),
            request_bytes: 30,
            reply_bytes: 5,
            times: Times { server_us: 20_000, queue_us: 3, ..Times::default() },
            key_hash: 9,
            failure: String::new(),
            is_part: false,
            is_slow: true,
        };
        assert_eq!(seen, [expected]);
        assert_eq!((seen[0].times.total_us(), seen[0].times.longest()), (20_003, "server"));
        assert!(shared.sampled_requests().is_empty());
    }

    #[test]
    fn the_newest_stay_and_a_reset_forgets_them() {
        let slow = Shared::in_memory().slow_requests();
        let total = SLOW_MAX as u64 + 5;
        for at in 0..total {
            slow.record_at(&request(&[]), at);
        }
        let kept = slow.since(0);
        assert_eq!((kept.len(), slow.len(), kept[0].number), (SLOW_MAX, SLOW_MAX, 6));
        assert_eq!(slow.since(total - 2).len(), 2);
        assert_eq!((slow.len_of("alpha"), slow.len_of("beta")), (SLOW_MAX, 0));
        let newest = slow.newest_of("alpha", 2);
        assert_eq!(newest.iter().map(|it| it.number).collect::<Vec<_>>(), [total, total - 1]);
        assert_eq!(slow.newest_of("beta", 2), []);
        slow.reset("beta");
        assert_eq!(slow.len(), SLOW_MAX);
        slow.reset("alpha");
        assert_eq!((slow.since(0), slow.len(), slow.count()), (vec![], 0, total));
        assert_eq!((slow.len_of("alpha"), RequestRing::none().len_of("alpha")), (0, 0));
        slow.record_at(&request(&[]), 1);
        assert_eq!((slow.since(0).len(), slow.len()), (1, 1));
    }

    #[test]
    fn long_requests_are_cut_and_others_stay_whole() {
        let slow = Shared::in_memory().slow_requests();
        let arguments: Vec<Vec<u8>> = (0..ARGUMENTS_MAX).map(|at| vec![at as u8; 128]).collect();
        slow.record_at(&request(&arguments), 1);
        let seen = &slow.since(0)[0];
        assert!((6..ARGUMENTS_MAX).contains(&seen.arguments.len()), "{}", seen.arguments.len());
        assert_eq!(seen.arguments[..5], arguments[..5]);
        assert_eq!(seen.pool, "alpha");
    }
}
