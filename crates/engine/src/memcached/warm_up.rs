//! Copies a key from a warm backend to a cold one, beside the client's request: `mg` there, and `ms` in the mode
//! that adds here, so that what the cold backend has got meanwhile stays. Both need memcached 1.6.

use std::sync::atomic::{AtomicU32, Ordering};

use cashew_protocol::memcached::{Answer, Expect, words};
use cashew_protocol::redis::Access;

use crate::base::failure::NamedFailure;
use crate::base::id::{BackendId, ClientId, RequestId};
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::route::answer::{Fill, Seat};
use crate::upstream::session_params::WireProtocol;

/// Keys that one process copies at a time; what comes beyond that is left for the next miss.
const FILLS_MAX: u32 = 64;
/// memcached's largest value as it is by default, and its line.
const VALUE_MAX: usize = (1 << 20) + 1024;

static BUSY: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
struct WarmUp {
    fill: Fill,
    seat: Seat,
    epoch: u64,
    stores: bool,
}

/// Begins to copy a key; returns whether it has begun.
pub(super) fn begin(engine: &mut Engine, seat: Seat, fill: Fill) -> bool {
    let is_writable =
        |key: &[u8]| !key.is_empty() && key.iter().all(|&byte| byte > b' ' && byte != 127);
    let sides = [&fill.warm, &fill.cold];
    // Lanes of the text protocol are those that come first, if there are any.
    let has_text = |backend: BackendId| {
        engine
            .backends
            .get(backend)
            .is_some_and(|it| it.params_set[0].wire_protocol == WireProtocol::Text)
    };
    if BUSY.load(Ordering::Relaxed) >= FILLS_MAX
        || !sides.iter().all(|side| has_text(side.backend) && is_writable(&side.key))
    {
        return false;
    }
    BUSY.fetch_add(1, Ordering::Relaxed);
    let (request, _) = engine.requests.add(fill.warm.backend, ClientId::NONE, engine.now);
    let seat = Seat { wire_protocol: WireProtocol::Text, ..seat };
    let warm_up = WarmUp { fill, seat, epoch: engine.epoch, stores: false };
    engine.start_flow(request, Box::new(warm_up));
    true
}

/// What to store, of what `mg` says.
fn store_of(reply: &[u8], key: &[u8], ttl_ms: Option<u64>) -> Option<Vec<u8>> {
    let end = reply.iter().position(|&byte| byte == b'\r')?;
    let (line, rest) = reply.split_at(end);
    let mut words = words(line);
    if words.next()? != b"VA" {
        return None;
    }
    let size: usize = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let data = rest.strip_prefix(b"\r\n")?.strip_suffix(b"\r\n")?;
    if data.len() != size {
        // Longer than is kept.
        return None;
    }
    let (mut life, mut flags) = (-1, 0u64);
    for word in words {
        let number = std::str::from_utf8(&word[1..]).ok()?;
        match word[0] {
            b't' => life = number.parse::<i64>().ok()?,
            b'f' => flags = number.parse().ok()?,
            _ => {}
        }
    }
    let most = ttl_ms.map(|ttl| i64::try_from(ttl.div_ceil(1000)).unwrap_or(i64::MAX));
    let life = match (life, most) {
        (-1, None) => 0,
        (-1, Some(most)) => most,
        (life, most) => life.min(most.unwrap_or(life)).max(1),
    };
    let mut out = b"ms ".to_vec();
    out.extend_from_slice(key);
    out.extend_from_slice(format!(" {size} T{life} F{flags} ME\r\n").as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
    Some(out)
}

impl WarmUp {
    /// Says something to one side; ends if that cannot be.
    fn say(
        &self,
        cx: &mut FlowContext<'_>,
        (backend, key, access): (BackendId, &[u8], Access),
        text: &[u8],
        expect: Expect,
    ) -> Step {
        if cx.engine.epoch != self.epoch {
            return Self::end(cx);
        }
        match cx.engine.lane_from(self.seat, backend, (key, access), text.len()) {
            Ok(lane) => {
                let attempt = cx.engine.add_attempt(cx.request, RequestId::NONE);
                let slot = &mut cx.engine.requests[attempt];
                (slot.backend, slot.expect) = (backend, expect);
                cx.engine.send(lane, attempt, Payload::Bytes(text));
                Step::Wait
            }
            Err(_) => Self::end(cx),
        }
    }

    /// It is over: nobody waits for an answer.
    fn end(cx: &mut FlowContext<'_>) -> Step {
        Step::Reply(cx.engine.bufs.take())
    }
}

impl Flow for WarmUp {
    fn on_begin(&mut self, cx: &mut FlowContext<'_>) -> Step {
        let warm = &self.fill.warm;
        let text = [b"mg ", &warm.key[..], b" t f v\r\n"].concat();
        self.say(cx, (warm.backend, &warm.key, Access::Read), &text, Expect::Meta)
    }

    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _: RequestId, reply: &[u8]) -> Step {
        let cold = &self.fill.cold;
        match store_of(reply, &cold.key, self.fill.ttl_ms).filter(|_| !self.stores) {
            None => Self::end(cx),
            Some(text) => {
                self.stores = true;
                let expect = Expect::Answer(Answer::MetaSet);
                let cold = &self.fill.cold;
                self.say(cx, (cold.backend, &cold.key, Access::Write), &text, expect)
            }
        }
    }

    fn on_failure(&mut self, cx: &mut FlowContext<'_>, _: RequestId, _: NamedFailure) -> Step {
        Self::end(cx)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_lives_as_long_and_no_longer_than_it_may() {
        let of = |reply: &str, ttl| {
            store_of(reply.as_bytes(), b"k", ttl).map(|out| String::from_utf8(out).unwrap())
        };
        let stored = |life| Some(format!("ms k 3 T{life} F7 ME\r\nabc\r\n"));
        assert_eq!(of("VA 3 t-1 f7\r\nabc\r\n", None), stored(0));
        assert_eq!(of("VA 3 t-1 f7\r\nabc\r\n", Some(1500)), stored(2));
        assert_eq!(of("VA 3 t90 f7\r\nabc\r\n", None), stored(90));
        assert_eq!(of("VA 3 t90 f7\r\nabc\r\n", Some(60_000)), stored(60));
        assert_eq!(of("VA 3 t0 f7\r\nabc\r\n", None), stored(1));
        assert_eq!(of("VA 9 t0 f7\r\nabc\r\n", None), None, "it was cut");
        assert_eq!(of("EN\r\n", None), None);
        assert_eq!(of("ERROR\r\n", None), None);
    }
}
