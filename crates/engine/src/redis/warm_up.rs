//! Copies a key from a warm backend to a cold one, beside the client's request: DUMP and PTTL there, RESTORE
//! here. Where the versions of the servers do not agree on that, strings are copied by GET and SET.
//!
//! What the cold backend has got meanwhile stays: neither replaces anything.

use std::sync::atomic::{AtomicU32, Ordering};

use cashew_protocol::resp::{self, Reply, encode};

use crate::base::failure::NamedFailure;
use crate::base::id::{BackendId, ClientId, LaneId, RequestId};
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::route::answer::{Fill, Seat};
use cashew_protocol::redis::Access;

/// Keys that one process copies at a time; what comes beyond that is left for the next miss.
const FILLS_MAX: u32 = 64;
/// Larger values are not copied.
const VALUE_MAX: usize = 1 << 20;

static BUSY: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
struct WarmUp {
    fill: Fill,
    seat: Seat,
    epoch: u64,
    state: State,
    ttl: Option<i64>,
    value: Option<Vec<u8>>,
    by_value: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// PTTL and DUMP, or GET, are on their way.
    Asking { ttl: RequestId, value: RequestId },
    /// RESTORE, or SET.
    Storing,
}

/// Begins to copy a key; returns whether it has begun.
pub(super) fn begin(engine: &mut Engine, seat: Seat, fill: Fill) -> bool {
    if BUSY.load(Ordering::Relaxed) >= FILLS_MAX {
        return false;
    }
    BUSY.fetch_add(1, Ordering::Relaxed);
    let (request, _) = engine.requests.add(fill.warm.backend, ClientId::NONE, engine.now);
    let asking = State::Asking { ttl: RequestId::NONE, value: RequestId::NONE };
    let warm_up = WarmUp {
        fill,
        seat,
        epoch: engine.epoch,
        state: asking,
        ttl: None,
        value: None,
        by_value: false,
    };
    engine.start_flow(request, Box::new(warm_up));
    true
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    encode::write_array_header(&mut out, words.len());
    words.iter().for_each(|word| encode::write_bulk(&mut out, word));
    out
}

impl WarmUp {
    fn lane(
        &self,
        cx: &mut FlowContext<'_>,
        backend: BackendId,
        key: &[u8],
        size: usize,
    ) -> Option<LaneId> {
        if cx.engine.epoch != self.epoch {
            return None;
        }
        let access = if backend == self.fill.cold.backend { Access::Write } else { Access::Read };
        cx.engine.lane_from(self.seat, backend, (key, access), size).ok()
    }

    fn send(cx: &mut FlowContext<'_>, lane: LaneId, text: &[u8]) -> RequestId {
        let backend = cx.engine.lane(lane).backend;
        let attempt = cx.engine.add_attempt(cx.request, RequestId::NONE);
        cx.engine.requests[attempt].backend = backend;
        cx.engine.send(lane, attempt, Payload::Bytes(text));
        attempt
    }

    fn ask(&mut self, cx: &mut FlowContext<'_>) -> Step {
        let key = self.fill.warm.key.clone();
        let Some(lane) = self.lane(cx, self.fill.warm.backend, &key, 0) else {
            return Self::end(cx);
        };
        let ttl = Self::send(cx, lane, &command(&[b"PTTL", &key]));
        let verb: &[u8] = if self.by_value { b"GET" } else { b"DUMP" };
        let value = Self::send(cx, lane, &command(&[verb, &key]));
        (self.ttl, self.value) = (None, None);
        self.state = State::Asking { ttl, value };
        Step::Wait
    }

    fn store(&mut self, cx: &mut FlowContext<'_>) -> Step {
        let (Some(own), Some(value)) = (self.ttl.take(), self.value.take()) else {
            return Self::end(cx);
        };
        // -1 is for ever, -2 gone.
        if own == -2 || own == 0 {
            return Self::end(cx);
        }
        let own = u64::try_from(own).ok();
        let ttl = match (own, self.fill.ttl_ms) {
            (Some(own), Some(most)) => own.min(most),
            (own, most) => own.or(most).unwrap_or(0),
        };
        let (key, ttl) = (self.fill.cold.key.clone(), ttl.to_string());
        let text = match (self.by_value, ttl.as_str()) {
            (false, _) => command(&[b"RESTORE", &key, ttl.as_bytes(), &value]),
            (true, "0") => command(&[b"SET", &key, &value, b"NX"]),
            (true, _) => command(&[b"SET", &key, &value, b"NX", b"PX", ttl.as_bytes()]),
        };
        let Some(lane) = self.lane(cx, self.fill.cold.backend, &key, text.len()) else {
            return Self::end(cx);
        };
        Self::send(cx, lane, &text);
        self.state = State::Storing;
        Step::Wait
    }

    /// It is over: nobody waits for an answer.
    fn end(cx: &mut FlowContext<'_>) -> Step {
        Step::Reply(cx.engine.bufs.take())
    }
}

impl Flow for WarmUp {
    fn on_begin(&mut self, cx: &mut FlowContext<'_>) -> Step {
        self.ask(cx)
    }

    fn on_reply(&mut self, cx: &mut FlowContext<'_>, attempt: RequestId, reply: &[u8]) -> Step {
        match self.state {
            State::Asking { ttl, value } => {
                match resp::reply(reply) {
                    Some(Reply::Integer(number)) if attempt == ttl => self.ttl = Some(number),
                    Some(Reply::Bulk(text)) if attempt == value => self.value = Some(text.to_vec()),
                    // Gone, of another type, or longer than is kept.
                    _ => {}
                }
                match cx.pending() {
                    0 => self.store(cx),
                    _ => Step::Wait,
                }
            }
            State::Storing if !self.by_value && reply.starts_with(b"-ERR DUMP payload") => {
                self.by_value = true;
                self.ask(cx)
            }
            State::Storing => Self::end(cx),
        }
    }

    fn on_failure(&mut self, cx: &mut FlowContext<'_>, _: RequestId, _: NamedFailure) -> Step {
        match (self.state, cx.pending()) {
            (State::Asking { .. }, 1..) => Step::Wait,
            _ => Self::end(cx),
        }
    }

    fn outlives_client(&self) -> bool {
        true
    }

    fn keeps(&self) -> usize {
        VALUE_MAX
    }

    fn recycle(self: Box<Self>, _: &mut Engine) {
        BUSY.fetch_sub(1, Ordering::Relaxed);
    }
}
