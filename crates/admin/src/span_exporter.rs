//! Sends requests as spans to the collector, in batches. Nobody waits for it: what finds no room is dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use cashew_config::snapshot::Tracing;
use cashew_metrics::{ExportCounter, ExportKind, Exports, SeenRequest};
use hyper::body::Bytes;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::collector::{self, Taken};
use crate::request_tap::{Random, TraceId};
use crate::source::Source;
use crate::span::{self, Resource};

/// Spans of one export.
const BATCH_MAX: usize = 512;
/// Spans that wait, those of the export under way not included.
const QUEUE_MAX: usize = 8192;
/// How often it is looked whether there are any.
const PACE: Duration = Duration::from_millis(100);
/// How long spans wait for others at most.
const GATHER: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(16);
/// How long one export is tried again before it is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// What is left when the process stops has so much time to be sent.
const PARTING: Duration = Duration::from_secs(1);

/// Requests that wait to be exported.
#[derive(Default)]
struct Queue {
    requests: VecDeque<(SeenRequest, TraceId)>,
    spans: usize,
}

pub(crate) struct SpanExporter {
    queue: RefCell<Queue>,
    /// Spans of the exports under way.
    under_way: Cell<u64>,
    exports: Exports,
}

impl SpanExporter {
    pub(crate) fn new(exports: Exports) -> Self {
        Self { queue: RefCell::default(), under_way: Cell::new(0), exports }
    }

    pub(crate) fn push(&self, request: SeenRequest, trace_id: TraceId) {
        let spans = span::count(&request);
        let mut queue = self.queue.borrow_mut();
        if queue.spans + spans > QUEUE_MAX {
            self.exports.add(ExportCounter::SpansDropped, spans as u64);
            return;
        }
        queue.spans += spans;
        queue.requests.push_back((request, trace_id));
    }

    fn is_full(&self) -> bool {
        self.queue.borrow().spans >= BATCH_MAX
    }

    fn is_empty(&self) -> bool {
        self.queue.borrow().requests.is_empty()
    }

    /// The oldest ones, as many as go together, and how many spans they are.
    fn take(&self) -> (Vec<(SeenRequest, TraceId)>, u64) {
        let mut queue = self.queue.borrow_mut();
        let (mut batch, mut spans) = (Vec::new(), 0);
        while let Some((next, _)) = queue.requests.front() {
            let more = span::count(next);
            if spans + more > BATCH_MAX {
                break;
            }
            spans += more;
            batch.extend(queue.requests.pop_front());
        }
        queue.spans -= spans;
        (batch, spans as u64)
    }

    /// Sends what comes, for as long as the server runs. `source` is the one of the moment.
    pub(crate) async fn run(&self, source: impl Fn() -> Rc<Source>) {
        let mut random = Random::new();
        let mut is_failing = false;
        loop {
            self.gather().await;
            let (batch, spans) = self.take();
            self.begin(spans);
            let began = Instant::now();
            let mut backoff = BACKOFF_MIN;
            loop {
                // A reload may have changed where it goes, and may be what makes it succeed.
                let now = source();
                let Some(tracing) = now.tracing() else {
                    self.exports.add(ExportCounter::SpansDropped, spans);
                    break;
                };
                let body = body(&batch, &now, tracing, &mut random);
                let (why, after) = match collector::post(tracing, &body).await {
                    Taken::All { rejected, why } => {
                        self.taken(spans, rejected, &why);
                        if std::mem::take(&mut is_failing) {
                            info!("spans are exported again");
                        }
                        break;
                    }
                    Taken::Never { why } => {
                        self.failed(&mut is_failing, tracing, &why);
                        self.exports.add(ExportCounter::SpansDropped, spans);
                        break;
                    }
                    Taken::Later { why, after } => (why, after),
                };
                self.failed(&mut is_failing, tracing, &why);
                if began.elapsed() >= GIVE_UP_AFTER {
                    self.exports.add(ExportCounter::SpansDropped, spans);
                    break;
                }
                self.pause(after.unwrap_or(backoff), &source).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
            self.end(spans);
        }
    }

    /// Waits until there is a whole batch, or until what there is has waited long enough.
    async fn gather(&self) {
        let mut first_seen = None;
        loop {
            let is_ripe = first_seen.is_some_and(|seen: Instant| seen.elapsed() >= GATHER);
            if self.is_full() || is_ripe {
                return;
            }
            if first_seen.is_none() && !self.is_empty() {
                first_seen = Some(Instant::now());
            }
            sleep(PACE).await;
        }
    }

    /// Until it is time for another try, or until spans go elsewhere.
    async fn pause(&self, span: Duration, source: &impl Fn() -> Rc<Source>) {
        let (until, before) = (Instant::now() + span, source());
        while Instant::now() < until {
            sleep(PACE).await;
            if source().tracing() != before.tracing() {
                return;
            }
        }
    }

    /// One try for each batch that is left, all of them within a short time.
    pub(crate) async fn part(&self, source: &Source) {
        let Some(tracing) = source.tracing() else { return };
        let mut random = Random::new();
        let sending = async {
            while !self.is_empty() {
                let (batch, spans) = self.take();
                let body = body(&batch, source, tracing, &mut random);
                self.begin(spans);
                let taken = collector::post(tracing, &body).await;
                self.end(spans);
                match taken {
                    Taken::All { rejected, why } => self.taken(spans, rejected, &why),
                    Taken::Later { .. } | Taken::Never { .. } => {
                        self.exports.add(ExportCounter::SpansDropped, spans);
                        return;
                    }
                }
            }
        };
        // Whoever has not taken them by then does not get them.
        let _ = timeout(PARTING, sending).await;
        let left = std::mem::take(&mut *self.queue.borrow_mut());
        let left = left.spans as u64 + self.under_way.take();
        self.exports.add(ExportCounter::SpansDropped, left);
    }

    fn begin(&self, spans: u64) {
        self.under_way.set(self.under_way.get() + spans);
    }

    fn end(&self, spans: u64) {
        self.under_way.set(self.under_way.get() - spans);
    }

    fn taken(&self, spans: u64, rejected: u64, why: &str) {
        let rejected = rejected.min(spans);
        self.exports.add(ExportCounter::Spans, spans - rejected);
        self.exports.add(ExportCounter::SpansDropped, rejected);
        if rejected > 0 {
            self.exports.failed(ExportKind::Tracing, &format!("{rejected} spans refused: {why}"));
        }
    }

    /// The log has it once, until an export succeeds.
    fn failed(&self, is_failing: &mut bool, tracing: &Tracing, why: &str) {
        self.exports.add(ExportCounter::SpanErrors, 1);
        self.exports.failed(ExportKind::Tracing, why);
        if !std::mem::replace(is_failing, true) {
            warn!("cannot export spans to {}: {why}", tracing.endpoint);
        }
    }
}

fn body(
    batch: &[(SeenRequest, TraceId)],
    source: &Source,
    tracing: &Tracing,
    random: &mut Random,
) -> Bytes {
    let resource = Resource {
        snapshot: source.snapshot(),
        tracing,
        version: source.version(),
        host: source.host(),
        started_at: source.started_at(),
    };
    span::export(batch, &resource, random).to_string().into()
}

#[cfg(test)]
mod tests {
    use cashew_metrics::{Shared, Times};

    use super::*;

    fn request(parts: u64) -> SeenRequest {
        let us = |part| u64::from(part < parts);
        let times = Times {
            gateway_us: us(0),
            queue_us: us(1),
            server_us: us(2),
            order_us: us(3),
            client_us: us(4),
        };
        SeenRequest { times, ..SeenRequest::default() }
    }

    #[test]
    fn batches_are_bounded_and_so_is_what_waits() {
        let exports = Shared::in_memory().exports();
        let exporter = SpanExporter::new(exports.clone());
        assert!(exporter.is_empty() && exporter.take().0.is_empty());
        for _ in 0..2000 {
            exporter.push(request(5), TraceId(1));
        }
        // 1365 requests of six spans have room.
        assert_eq!(exports.count(ExportCounter::SpansDropped), (2000 - 1365) * 6);
        let mut sizes = Vec::new();
        while !exporter.is_empty() {
            let (batch, spans) = exporter.take();
            assert_eq!(batch.len() as u64 * 6, spans);
            sizes.push(spans);
        }
        assert!(sizes.iter().all(|&size| size <= BATCH_MAX as u64));
        assert_eq!(sizes.iter().sum::<u64>(), 1365 * 6);
        exporter.push(request(0), TraceId(1));
        assert_eq!(exporter.take().1, 1);
    }
}
