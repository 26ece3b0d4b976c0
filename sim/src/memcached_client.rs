//! A client's requests in memcached's text protocol.

use cashew_config::snapshot::Pool;

use crate::cas_tags::Uniques;
use crate::client::{Keys, RequestCtx};
use crate::memcached_server::{OK, REQUESTS_MAX, VERSION, broadcast_key, shared};
use crate::random::Random;
use crate::request::{Access, Answer, Framing, Outcome, Part, Request};

pub(crate) struct MemcachedClient {
    pub(crate) keys: Keys,
    cas_tags: Uniques,
    number: u32,
}

impl MemcachedClient {
    pub(crate) fn new(client: u32, config: &Pool, random: &mut Random) -> Self {
        let (keys, cas_tags) = (Keys::new(client, config, random), Uniques::new(config));
        Self { keys, cas_tags, number: 0 }
    }

    pub(crate) fn request(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        self.number += 1;
        if ctx.random.percent(ctx.temper.oddity) {
            return self.oddity(ctx);
        }
        match ctx.random.below(20) {
            0..=7 => self.retrieve(ctx),
            8..=14 => self.store(ctx),
            _ => self.change(ctx),
        }
    }

    fn retrieve(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let verb = match ctx.temper.text && ctx.random.percent(70) {
            true => "get",
            false => ctx.random.pick(&["get", "get", "gets", "gat", "gats"]),
        };
        let count = match ctx.random.percent(40) {
            true => 1,
            false => ctx.random.range(2, 9),
        };
        let (keys, tag) = self.keys.choose(count, true, &tags(verb), ctx);
        let is_touch = verb.starts_with("gat");
        let mut line = [indent(ctx), tag.clone()].concat();
        let exptime = is_touch.then(|| self.number.to_string().into_bytes());
        if let Some(exptime) = &exptime {
            line.push(b' ');
            line.extend_from_slice(exptime);
        }
        let mut parts = Vec::new();
        for key in keys {
            line.push(b' ');
            line.extend_from_slice(&key);
            let is_shared = key.starts_with(b"s:");
            let outcome = is_shared.then(|| Outcome::good(shared(&key, verb.ends_with('s'))));
            parts.push(Part { outcome, shared: is_shared, ..Part::new(key, exptime.clone()) });
        }
        line.extend_from_slice(if ctx.random.percent(5) { b"  \r\n" } else { b"\r\n" });
        let mut request = Request::new(line, Answer::Values, Framing::Values);
        request.access = if is_touch { Access::Write } else { Access::Read };
        (request.tag, request.parts) = (tag, parts);
        request
    }

    fn store(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let verb = ctx
            .random
            .pick(&["set", "set", "set", "set", "add", "replace", "append", "prepend", "cas"]);
        let (keys, tag) = self.keys.choose(1, false, &tags(verb), ctx);
        let key = &keys[0];
        let value = match ctx.random.percent(15) {
            true => self.number.to_string().into_bytes(),
            false => ctx.value(self.number),
        };
        let unique = match verb {
            "cas" => format!(" {}", self.cas_tags.guess(ctx.random)),
            _ => String::new(),
        };
        let noreply = ctx.random.percent(20);
        let words = format!(" {} 0 {}{unique}", self.number, value.len());
        let end: &[u8] = if noreply { b" noreply\r\n" } else { b"\r\n" };
        let bytes =
            [&indent(ctx)[..], &tag, b" ", key, words.as_bytes(), end, &value, b"\r\n"].concat();
        if value.len() as u64 > ctx.temper.request_size_max {
            return self.too_large(verb, bytes, &keys[0], noreply, ctx);
        }
        Self::one(bytes, tag, keys, Some(value), noreply)
    }

    /// The gateway refuses it, and deletes what a set would have replaced.
    fn too_large(
        &mut self,
        verb: &str,
        bytes: Vec<u8>,
        key: &[u8],
        no_reply: bool,
        ctx: &RequestCtx<'_>,
    ) -> Request {
        let drops = verb == "set";
        let keys = [key.to_vec()];
        if drops && !ctx.is_free(b"delete", &keys) {
            return local("foo bar\r\n", "ERROR\r\n");
        }
        let reply = "SERVER_ERROR object too large for cache\r\n";
        let mut request = Request { no_reply, ..local(bytes, reply) };
        if drops {
            let [key] = keys;
            request.access = Access::Write;
            request.tag = b"delete".to_vec();
            request.parts = vec![Part::new(key, None)];
        }
        request
    }

    fn change(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let verb = ctx.random.pick(&["delete", "delete", "incr", "decr", "touch"]);
        let (keys, tag) = self.keys.choose(1, false, &tags(verb), ctx);
        let payload = match verb {
            "delete" => None,
            _ => Some(self.number.to_string().into_bytes()),
        };
        let noreply = ctx.random.percent(20);
        let mut line = [&indent(ctx)[..], &tag, b" ", &keys[0]].concat();
        if let Some(payload) = &payload {
            line.push(b' ');
            line.extend_from_slice(payload);
        }
        line.extend_from_slice(if noreply { b" noreply\r\n" } else { b"\r\n" });
        Self::one(line, tag, keys, payload, noreply)
    }

    fn one(
        bytes: Vec<u8>,
        tag: Vec<u8>,
        keys: Vec<Vec<u8>>,
        payload: Option<Vec<u8>>,
        no_reply: bool,
    ) -> Request {
        let part = |key| Part::new(key, payload.clone());
        let parts = keys.into_iter().map(part).collect();
        let mut request = Request::new(bytes, Answer::Forward, Framing::Line);
        request.access = Access::Write;
        (request.tag, request.parts, request.no_reply) = (tag, parts, no_reply);
        request
    }

    fn broadcast(&mut self, verb: &str, ctx: &mut RequestCtx<'_>) -> Request {
        let number = u64::from(ctx.client) * REQUESTS_MAX + u64::from(self.number);
        let no_reply = ctx.random.percent(20);
        let end = if no_reply { " noreply" } else { "" };
        let bytes = format!("{verb} {number}{end}\r\n");
        let key = broadcast_key(number);
        let mut request = Request::new(bytes, Answer::Broadcast(OK), Framing::Line);
        request.tag = verb.as_bytes().to_vec();
        request.parts = vec![Part::new(key, None)];
        request.no_reply = no_reply;
        request
    }

    fn oddity(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        match ctx.random.below(10) {
            0 => self.broadcast("flush_all", ctx),
            1 => self.broadcast("verbosity", ctx),
            2 => Request::new("version\r\n", Answer::Constant(VERSION), Framing::Line),
            3 => local("foo bar\r\n", "ERROR\r\n"),
            4 => local("get\r\n", "ERROR\r\n"),
            5 => local(
                format!("get {}\r\n", "k".repeat(251)),
                "CLIENT_ERROR bad command line format\r\n",
            ),
            6 => local("set k 0 0 3\r\nabcXY", "CLIENT_ERROR bad data chunk\r\n"),
            7 => local("incr k abc\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
            8 => local("touch k\r\n", "ERROR\r\n"),
            _ => {
                let bytes = "set k 0 0 3 noreply\r\nabcXY";
                Request { no_reply: true, ..local(bytes, "CLIENT_ERROR bad data chunk\r\n") }
            }
        }
    }

    /// The last request: the gateway closes after it.
    pub(crate) fn farewell(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        self.number += 1;
        match ctx.random.below(3) {
            0 => {
                Request { last: true, ..local(vec![b'x'; 3000], "CLIENT_ERROR line too long\r\n") }
            }
            _ => Request { last: true, no_reply: true, ..local("quit\r\n", "") },
        }
    }
}

fn local(bytes: impl Into<Vec<u8>>, reply: impl Into<Vec<u8>>) -> Request {
    Request::new(bytes, Answer::Local(reply.into()), Framing::Line)
}

/// Verb and keys identify a request: servers see nothing else of it.
fn tags(verb: &str) -> [Vec<u8>; 1] {
    [verb.as_bytes().to_vec()]
}

/// Bytes that may precede a verb. Servers do not see them.
fn indent(ctx: &mut RequestCtx<'_>) -> Vec<u8> {
    match ctx.random.percent(10) {
        true => vec![b' '; ctx.random.range(1, 4) as usize],
        false => Vec::new(),
    }
}
