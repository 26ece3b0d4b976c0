//! A client's requests in memcached's binary protocol: single ones, or a quiet batch followed by a
//! NOOP.

use cashew_config::snapshot::Pool;

use crate::cas_tags::Uniques;
use crate::client::{Keys, RequestCtx};
use crate::packet::{self, Opcode, Packet};
use crate::random::Random;
use crate::request::{Access, Answer, Framing, Part, Request};

/// Commands of one batch.
const BATCH_MAX: u64 = 12;

pub(crate) struct BinaryClient {
    pub(crate) keys: Keys,
    cas_tags: Uniques,
    number: u32,
}

impl BinaryClient {
    pub(crate) fn new(client: u32, config: &Pool, random: &mut Random) -> Self {
        let (keys, cas_tags) = (Keys::new(client, config, random), Uniques::new(config));
        Self { keys, cas_tags, number: 0 }
    }

    pub(crate) fn request(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        self.number += 1;
        if ctx.random.percent(ctx.temper.oddity) {
            return self.oddity(ctx);
        }
        let is_batch = ctx.random.percent(40);
        let count = if is_batch { ctx.random.range(2, BATCH_MAX) } else { 1 };
        let tag = packet::tag_of(self.opaque(0)).to_vec();
        let (keys, tag) = self.keys.choose(count, false, &[tag], ctx);
        let mut bytes = Vec::new();
        let mut parts = Vec::new();
        for (at, key) in keys.into_iter().enumerate() {
            let payload = self.command(at as u32, &key, is_batch, ctx, &mut bytes);
            parts.push(Part::new(key, Some(payload)));
        }
        let mut request = match is_batch {
            true => {
                let opaque = self.opaque(0xff);
                bytes.extend(
                    Packet { opcode: Opcode::Noop.byte(), opaque, ..Packet::REQUEST }.bytes(),
                );
                let fence = Packet { opcode: Opcode::Noop.byte(), opaque, ..Packet::REPLY }.bytes();
                Request::new(bytes, Answer::Batch(fence), Framing::PacketBatch)
            }
            false => Request::new(bytes, Answer::Forward, Framing::Packet),
        };
        request.access = Access::Write;
        (request.tag, request.parts) = (tag, parts);
        request
    }

    fn opaque(&self, at: u32) -> u32 {
        self.number << 8 | at
    }

    /// Writes a packet; returns what a server must receive.
    fn command(
        &self,
        at: u32,
        key: &[u8],
        is_quiet: bool,
        ctx: &mut RequestCtx<'_>,
        out: &mut Vec<u8>,
    ) -> Vec<u8> {
        use Opcode::*;
        let all =
            [Get, Get, Get, GetK, Set, Set, Set, Add, Replace, Append, Prepend, Delete, Increment];
        let opcode = ctx.random.pick(&all);
        let mut value = Vec::new();
        let mut extras = Vec::new();
        match opcode {
            Set | Add | Replace => extras.extend([0, 0, 0, 7, 0, 0, 0, 0]),
            Increment => {
                extras.extend(u64::from(self.number).to_be_bytes());
                extras.extend([0; 12]);
            }
            _ => {}
        }
        if matches!(opcode, Set | Add | Replace | Append | Prepend) {
            value = match ctx.random.percent(15) {
                true => self.number.to_string().into_bytes(),
                false => ctx.value(self.number),
            };
            value.truncate(ctx.temper.request_size_max as usize);
        }
        let is_named = !matches!(opcode, Get | GetK | Add) && ctx.random.percent(30);
        let unique = if is_named { self.cas_tags.guess(ctx.random) } else { 0 };
        let byte = if is_quiet { opcode.quiet() } else { opcode.byte() };
        let opaque = self.opaque(at);
        let packet = Packet {
            opcode: byte,
            opaque,
            unique,
            extras: &extras,
            key,
            value: &value,
            ..Packet::REQUEST
        };
        out.extend(packet.bytes());
        packet::payload(opcode.byte(), opaque, &value)
    }

    fn oddity(&self, ctx: &mut RequestCtx<'_>) -> Request {
        let opaque = self.opaque(0);
        let (opcode, status, value) = ctx
            .random
            .pick(&[(Opcode::Noop.byte(), 0, &b""[..]), (0x7f, 0x81, b"Unknown command")]);
        let bytes = Packet { opcode, opaque, ..Packet::REQUEST }.bytes();
        let reply = Packet { opcode, opaque, status, value, ..Packet::REPLY }.bytes();
        Request::new(bytes, Answer::Local(reply), Framing::Packet)
    }

    /// The last request: the gateway closes after it.
    pub(crate) fn farewell(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        self.number += 1;
        let (opaque, is_quiet) = (self.opaque(0), ctx.random.percent(50));
        let opcode = if is_quiet { Opcode::Quit.quiet() } else { Opcode::Quit.byte() };
        let bytes = Packet { opcode, opaque, ..Packet::REQUEST }.bytes();
        let reply = Packet { opcode, opaque, ..Packet::REPLY }.bytes();
        let quit = Request::new(bytes, Answer::Local(reply), Framing::Packet);
        Request { last: true, no_reply: is_quiet, ..quit }
    }
}
