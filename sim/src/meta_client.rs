//! A client's requests in memcached's meta commands: single ones, or a quiet batch followed by an
//! `mn`.

use cashew_config::snapshot::Pool;

use crate::cas_tags::Uniques;
use crate::client::{Keys, RequestCtx};
use crate::random::Random;
use crate::request::{Access, Answer, Framing, Part, Request};

/// Commands of one batch.
const BATCH_MAX: u64 = 12;

pub(crate) struct MetaClient {
    pub(crate) keys: Keys,
    cas_tags: Uniques,
    number: u32,
}

impl MetaClient {
    pub(crate) fn new(client: u32, config: &Pool, random: &mut Random) -> Self {
        let (keys, cas_tags) = (Keys::new(client, config, random), Uniques::new(config));
        Self { keys, cas_tags, number: 0 }
    }

    pub(crate) fn request(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        self.number += 1;
        if ctx.random.percent(ctx.temper.oddity) {
            return oddity(ctx);
        }
        let is_batch = ctx.random.percent(40);
        let count = if is_batch { ctx.random.range(2, BATCH_MAX) } else { 1 };
        let tag = format!("O{}", self.number).into_bytes();
        let (keys, tag) = self.keys.choose(count, false, &[tag], ctx);
        let mut bytes = Vec::new();
        let mut parts = Vec::new();
        for (at, key) in keys.into_iter().enumerate() {
            let (line, data) = self.command(at, &key, is_batch, ctx);
            bytes.extend_from_slice(&line);
            let mut payload = format!("{}.{at} ", String::from_utf8_lossy(&line[..2])).into_bytes();
            if let Some(data) = data {
                bytes.extend_from_slice(&data);
                bytes.extend_from_slice(b"\r\n");
                payload.extend_from_slice(&data);
            }
            parts.push(Part::new(key, Some(payload)));
        }
        let mut request = match is_batch {
            true => {
                bytes.extend_from_slice(b"mn\r\n");
                Request::new(bytes, Answer::Batch(b"MN\r\n".to_vec()), Framing::MetaBatch)
            }
            false => Request::new(bytes, Answer::Forward, Framing::Meta),
        };
        request.access = Access::Write;
        (request.tag, request.parts) = (tag, parts);
        request
    }

    /// A line, and the data after it.
    fn command(
        &self,
        at: usize,
        key: &[u8],
        is_quiet: bool,
        ctx: &mut RequestCtx<'_>,
    ) -> (Vec<u8>, Option<Vec<u8>>) {
        let verb = ctx.random.pick(&["mg", "mg", "mg", "ms", "ms", "ms", "md", "ma"]);
        let mut flags = vec![format!("O{}.{at}", self.number)];
        let mut data = None;
        let mut head = verb.as_bytes().to_vec();
        head.push(b' ');
        head.extend_from_slice(key);
        match verb {
            "mg" => {
                for flag in ["v", "c", "k"] {
                    if ctx.random.percent(60) {
                        flags.push(flag.to_owned());
                    }
                }
            }
            "ms" => {
                let mut value = match ctx.random.percent(15) {
                    true => self.number.to_string().into_bytes(),
                    false => ctx.value(self.number),
                };
                value.truncate(ctx.temper.request_size_max as usize);
                head.extend_from_slice(format!(" {}", value.len()).as_bytes());
                data = Some(value);
                if ctx.random.percent(40) {
                    flags.push(ctx.random.pick(&["ME", "MA", "MP", "MR"]).to_owned());
                }
            }
            _ => {}
        }
        if verb != "mg" && ctx.random.percent(30) {
            flags.push(format!("C{}", self.cas_tags.guess(ctx.random)));
        }
        if matches!(verb, "ms" | "ma") && ctx.random.percent(40) {
            flags.push("c".to_owned());
        }
        if is_quiet {
            // At any position.
            let place = ctx.random.below(flags.len() as u64 + 1) as usize;
            flags.insert(place, "q".to_owned());
        }
        for flag in flags {
            head.push(b' ');
            head.extend_from_slice(flag.as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        (head, data)
    }

    /// The last request: the gateway closes after it.
    pub(crate) fn farewell(&mut self, _: &mut RequestCtx<'_>) -> Request {
        self.number += 1;
        let quit = Request::new("quit\r\n", Answer::Local(Vec::new()), Framing::Meta);
        Request { last: true, no_reply: true, ..quit }
    }
}

fn oddity(ctx: &mut RequestCtx<'_>) -> Request {
    let (bytes, reply) = ctx.random.pick(&[
        ("mn\r\n", "MN\r\n"),
        ("foo bar\r\n", "ERROR\r\n"),
        ("ms k x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("ms k 2 q\r\nabXY", "CLIENT_ERROR bad data chunk\r\n"),
    ]);
    Request::new(bytes, Answer::Local(reply.into()), Framing::Meta)
}
