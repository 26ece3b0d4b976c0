//! What requests count as by class of commands and by prefix of keys, from their beginning to their way
//! into the statistics. Only clients of listeners with `command_stats` have their requests here: none of
//! it is at hand in a [`Request`](crate::request::Request), so that the others pay nothing.

use cashew_config::PREFIXES_MAX;
use cashew_metrics::{CommandCounter, CommandCounts, PoolId, Writer};
use cashew_protocol::{CommandClass, Outcome, OutcomeReader, ReplyForm};

use crate::base::id::RequestId;
use crate::base::prefixes::PrefixNumber;

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

/// A request on its way. Small, as there is one for each: what few of them need is in [`Pieces`].
#[derive(Clone, Copy, Default)]
struct Entry {
    counting: Counting,
    progress: Progress,
}

/// How far a request's reply is.
#[derive(Clone, Copy, Default)]
enum Progress {
    /// The request is none that counts, or began before it was to.
    #[default]
    Uncounted,
    /// Nothing of it has gone to the client.
    Awaited(ReplyForm),
    InPieces(ReplyForm),
}

/// A reply that goes to its client in pieces, as far as it has.
#[derive(Clone, Copy, Default)]
struct Pieces {
    reader: OutcomeReader,
    bytes: u64,
}

impl Pieces {
    fn read(&mut self, form: ReplyForm, class: CommandClass, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.reader.read(form, class == CommandClass::Get, bytes);
    }
}

/// What is counted and not published yet is of requests of one pool that took equally long: which and how
/// long, [`LatencyBatch`](crate::base::latency_batch::LatencyBatch) knows.
#[derive(Default)]
pub(crate) struct CommandStats {
    /// What the request that is being dispatched counts as, where that is of interest.
    pub(crate) current: Counting,
    entries: Vec<Entry>,
    /// By request; as many as have been needed.
    pieces: Vec<Pieces>,
    /// By number: the classes that have been counted, and the prefixes.
    used: u32,
    used_prefixes: u32,
    classes: [CommandCounts; CommandClass::COUNT],
    prefixes: [CommandCounts; PREFIXES_MAX],
}

const _: () = assert!(CommandClass::COUNT <= 32 && PREFIXES_MAX <= 32);

impl CommandStats {
    /// A request begins, of a client whose requests are counted.
    #[inline(always)]
    pub(crate) fn begin(&mut self, request: RequestId, form: ReplyForm, counting: Counting) {
        match self.entries.get_mut(request.index()) {
            Some(entry) => *entry = Entry { counting, progress: Progress::Awaited(form) },
            None => self.begin_beyond(request, form, counting),
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_beyond(&mut self, request: RequestId, form: ReplyForm, counting: Counting) {
        self.entries.resize(request.index() + 1, Entry::default());
        self.begin(request, form, counting);
    }

    /// Part of the reply to such a request goes to its client's output.
    #[cold]
    #[inline(never)]
    pub(crate) fn reply_goes(&mut self, request: RequestId, bytes: &[u8]) {
        let at = request.index();
        let Some(entry) = self.entries.get_mut(at) else { return };
        let class = entry.counting.class;
        match entry.progress {
            Progress::Uncounted => {}
            Progress::Awaited(form) => {
                entry.progress = Progress::InPieces(form);
                self.first_piece(at).read(form, class, bytes);
            }
            Progress::InPieces(form) => {
                if let Some(pieces) = self.pieces.get_mut(at) {
                    pieces.read(form, class, bytes);
                }
            }
        }
    }

    fn first_piece(&mut self, at: usize) -> &mut Pieces {
        if self.pieces.len() <= at {
            self.pieces.resize(at + 1, Pieces::default());
        }
        self.pieces[at] = Pieces::default();
        &mut self.pieces[at]
    }

    /// Such a request ends, and has been added to the batch of latencies before. `reply` is what has not
    /// [gone](Self::reply_goes) yet: of that, and of what may stand behind it, the client gets so many
    /// bytes.
    ///
    /// Most requests are counted here without a call, for which registers would have to be saved.
    #[cold]
    #[inline(never)]
    pub(crate) fn end(&mut self, request: RequestId, reply: &[u8], bytes: u64) {
        if let Some(entry) = self.entries.get_mut(request.index())
            && let Progress::Awaited(form) = entry.progress
            && let Counting { class, keys, .. } = entry.counting
            && let Some((hit, miss)) = Outcome::usual(form, class == CommandClass::Get, keys, reply)
        {
            entry.progress = Progress::Uncounted;
            let counting = entry.counting;
            let (hits, misses) = (u32::from(hit), u32::from(miss));
            self.count(counting, Outcome { hits, misses, is_error: false }, bytes);
        } else {
            self.end_at_length(request, reply, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_at_length(&mut self, request: RequestId, reply: &[u8], bytes: u64) {
        let at = request.index();
        let Some(entry) = self.entries.get_mut(at) else { return };
        let Entry { counting, progress } = *entry;
        entry.progress = Progress::Uncounted;
        let gets = counting.class == CommandClass::Get;
        match progress {
            Progress::Uncounted => {}
            Progress::Awaited(form) => match Outcome::of(form, gets, counting.keys, reply) {
                Some(outcome) => self.count(counting, outcome, bytes),
                None => {
                    self.first_piece(at);
                    self.end_in_pieces(at, (form, counting), reply, bytes);
                }
            },
            Progress::InPieces(form) => self.end_in_pieces(at, (form, counting), reply, bytes),
        }
    }

    #[inline(never)]
    fn end_in_pieces(
        &mut self,
        at: usize,
        (form, counting): (ReplyForm, Counting),
        rest: &[u8],
        bytes: u64,
    ) {
        let Some(pieces) = self.pieces.get_mut(at) else { return };
        let bytes = pieces.bytes + bytes;
        pieces.read(form, counting.class, rest);
        let outcome = pieces.reader.finish(counting.keys);
        self.count(counting, outcome, bytes);
    }

    #[inline(always)]
    fn count(&mut self, counting: Counting, outcome: Outcome, reply_bytes: u64) {
        let Counting { size, class, prefix, .. } = counting;
        let add = |counts: &mut CommandCounts| {
            counts[CommandCounter::Requests as usize] += 1;
            if outcome.is_error {
                counts[CommandCounter::Errors as usize] += 1;
            }
            counts[CommandCounter::Hits as usize] += u64::from(outcome.hits);
            counts[CommandCounter::Misses as usize] += u64::from(outcome.misses);
            counts[CommandCounter::RequestBytes as usize] += size;
            counts[CommandCounter::ReplyBytes as usize] += reply_bytes;
        };
        self.used |= 1 << class as u32;
        add(&mut self.classes[class as usize]);
        if let Some(prefix) = prefix.index()
            && let Some(counts) = self.prefixes.get_mut(prefix)
        {
            self.used_prefixes |= 1 << prefix;
            add(counts);
        }
    }

    /// Of requests from this number on there is none.
    pub(crate) fn shrink(&mut self, requests: usize) {
        if self.entries.len() > requests {
            self.entries.truncate(requests);
            self.entries.shrink_to(requests);
        }
        if self.pieces.len() > requests {
            self.pieces.truncate(requests);
            self.pieces.shrink_to(requests);
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

    /// What is not published yet is for nobody.
    pub(crate) fn drop_unpublished(&mut self) {
        (self.used, self.used_prefixes) = (0, 0);
        (self.classes, self.prefixes) = Default::default();
    }

    /// The prefixes of the pool whose numbers are not published yet have other numbers.
    pub(crate) fn renumber_unpublished(&mut self, numbers: &[PrefixNumber]) {
        let before = std::mem::take(&mut self.prefixes);
        let used = std::mem::take(&mut self.used_prefixes);
        for (at, counts) in before.into_iter().enumerate() {
            if let Some(to) = PrefixNumber::new(at).of(numbers).index()
                && let Some(place) = self.prefixes.get_mut(to)
            {
                self.used_prefixes |= ((used >> at) & 1) << to;
                *place = counts;
            }
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

    /// Publishes what [is due](Self::is_due): requests of this pool that took so long.
    #[cold]
    #[inline(never)]
    pub(crate) fn publish(&mut self, pool: PoolId, latency_us: u64, metrics: &Writer) {
        while self.used != 0 {
            let number = self.used.trailing_zeros() as usize;
            self.used &= self.used - 1;
            let counts = std::mem::take(&mut self.classes[number]);
            metrics.count_class(pool, CommandClass::ALL[number], latency_us, &counts);
        }
        while self.used_prefixes != 0 {
            let number = self.used_prefixes.trailing_zeros() as usize;
            self.used_prefixes &= self.used_prefixes - 1;
            let counts = std::mem::take(&mut self.prefixes[number]);
            metrics.count_prefix(pool, number, latency_us, &counts);
        }
    }
}
