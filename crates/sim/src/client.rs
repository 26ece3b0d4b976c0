//! A client: sends requests, reads replies or does not, and leaves in one way or another.

use cashew_config::snapshot::{Pool, Protocol};
use cashew_placement::Distribution;

use crate::binary_client::BinaryClient;
use crate::clock::Event;
use crate::memcached_client::MemcachedClient;
use crate::meta_client::MetaClient;
use crate::network::{Side, piece};
use crate::random::Random;
use crate::redis_client::RedisClient;
use crate::request::{Answer, Framing, Request};
use crate::world::Fabric;

/// A client's temper.
#[derive(Clone, Debug)]
pub(crate) struct Temper {
    pub(crate) requests: u32,
    /// The most requests sent and not answered.
    pub(crate) pipeline: u64,
    pub(crate) think_max_us: u64,
    /// How often, in percent, it stops reading for a while.
    pub(crate) stalls: u64,
    /// How often, in percent of its actions, it vanishes.
    pub(crate) vanishes: u64,
    pub(crate) value_size_max: u64,
    /// How many values, in percent, are of any size up to the largest.
    pub(crate) large_values: u64,
    /// How often, in percent, it sends something wrong or unusual.
    pub(crate) oddity: u64,
    /// How often, in percent, it begins a transaction or a blocking call.
    pub(crate) sessions: u64,
    /// Keys may move in the middle of a transaction.
    pub(crate) unsettled: bool,
    /// Whole requests larger than this are refused.
    pub(crate) request_size_max: u64,
    /// Some of its keys are shared by all clients.
    pub(crate) shares: bool,
    /// It uses memcached's text protocol without meta commands.
    pub(crate) text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Talking,
    /// It has sent everything, and reads.
    Finishing,
    Gone,
}

pub(crate) struct Client {
    pub(crate) id: u32,
    pub(crate) conn: u32,
    temper: Temper,
    random: Random,
    speaker: Speaker,
    stage: Stage,
    output: Vec<u8>,
    input: Vec<u8>,
    asked: u32,
    stalled_until: u64,
    /// When the next action is planned; later ones are stale.
    wake_at: u64,
    /// The last request ends the session: nothing may follow.
    is_last: bool,
    half_closed: bool,
}

enum Speaker {
    Redis(RedisClient),
    Memcached(MemcachedClient),
    Meta(MetaClient),
    Binary(BinaryClient),
}

/// What is needed to make up a request.
pub(crate) struct RequestCtx<'a> {
    pub(crate) client: u32,
    pub(crate) temper: &'a Temper,
    pub(crate) random: &'a mut Random,
    pub(crate) fabric: &'a Fabric,
}

impl RequestCtx<'_> {
    /// Whether no request in flight has this tag for any of the keys.
    pub(crate) fn is_free(&self, tag: &[u8], keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| self.fabric.oracle.is_free(self.client, tag, key))
    }

    /// A value that no other write writes.
    pub(crate) fn value(&mut self, number: u32) -> Vec<u8> {
        let mut value = format!("{}.{number}.", self.client).into_bytes();
        let large = self.temper.value_size_max;
        let size = match self.random.below(100) {
            chance if chance < self.temper.large_values => self.random.below(large),
            chance if chance < 30 => self.random.below(large.min(2000)),
            _ => self.random.below(40),
        };
        let mut bits = self.random.next();
        while (value.len() as u64) < size {
            bits = bits.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            value.extend_from_slice(&bits.to_le_bytes());
        }
        value
    }
}

impl Client {
    pub(crate) fn new(
        id: u32,
        conn: u32,
        config: &Pool,
        temper: Temper,
        mut random: Random,
        fabric: &mut Fabric,
    ) -> Self {
        let speaker = match config.protocol {
            Protocol::Redis => Speaker::Redis(RedisClient::new(id, config, &mut random)),
            Protocol::Memcached | Protocol::Tcp => match id % 3 {
                _ if temper.text => {
                    Speaker::Memcached(MemcachedClient::new(id, config, &mut random))
                }
                0 => Speaker::Memcached(MemcachedClient::new(id, config, &mut random)),
                1 => Speaker::Meta(MetaClient::new(id, config, &mut random)),
                _ => Speaker::Binary(BinaryClient::new(id, config, &mut random)),
            },
        };
        let mut client = Self {
            id,
            conn,
            temper,
            random,
            speaker,
            stage: Stage::Talking,
            output: Vec::new(),
            input: Vec::new(),
            asked: 0,
            stalled_until: 0,
            wake_at: u64::MAX,
            is_last: false,
            half_closed: false,
        };
        if !client.temper.shares {
            client.keys().shared.clear();
        }
        client.wake(fabric.clock.now(), fabric);
        client
    }

    fn keys(&mut self) -> &mut Keys {
        match &mut self.speaker {
            Speaker::Redis(redis) => &mut redis.keys,
            Speaker::Memcached(memcached) => &mut memcached.keys,
            Speaker::Meta(meta) => &mut meta.keys,
            Speaker::Binary(binary) => &mut binary.keys,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    /// The gateway is full: it sends an error and closes.
    pub(crate) fn expect_refusal(&mut self, protocol: Protocol, fabric: &mut Fabric) {
        let (text, framing) = match protocol {
            Protocol::Redis => ("-ERR max number of clients reached\r\n", Framing::Resp),
            Protocol::Memcached | Protocol::Tcp => {
                ("ERROR Too many open connections\r\n", Framing::Line)
            }
        };
        let mut request = Request::new("", Answer::Local(text.into()), framing);
        request.last = true;
        (self.is_last, self.stage) = (true, Stage::Finishing);
        fabric.oracle.asked(self.id, request, fabric.clock.now());
    }

    /// The keys are restricted to those for which `allowed` is true.
    pub(crate) fn restrict(&mut self, allowed: impl FnMut(&[u8]) -> bool) {
        self.keys().restrict(allowed);
    }

    pub(crate) fn wake(&mut self, at: u64, fabric: &mut Fabric) {
        if at < self.wake_at {
            self.wake_at = at;
            fabric.clock.plan(at, Event::Client { client: self.id });
        }
    }

    /// Something arrived, or there is room to write.
    pub(crate) fn notice(&mut self, fabric: &mut Fabric) {
        let at = fabric.clock.now() + self.random.below(50);
        self.wake(at, fabric);
    }

    /// From now on it reads everything and stays to the end.
    pub(crate) fn calm(&mut self, fabric: &mut Fabric) {
        self.temper.stalls = 0;
        self.temper.vanishes = 0;
        self.stalled_until = 0;
        self.notice(fabric);
    }

    pub(crate) fn act(&mut self, fabric: &mut Fabric) {
        if self.wake_at != fabric.clock.now() || self.stage == Stage::Gone {
            return;
        }
        self.wake_at = u64::MAX;
        let is_given_up = fabric.oracle.is_given_up(self.id);
        if is_given_up || self.random.below(1000) < self.temper.vanishes {
            self.vanish(fabric);
            return;
        }
        self.read(fabric);
        if self.stage == Stage::Gone {
            return;
        }
        if self.stage == Stage::Talking {
            self.ask(fabric);
        }
        self.write(fabric);
        self.finish(fabric);
        if self.stage != Stage::Gone {
            let pause = self.random.range(1, self.temper.think_max_us);
            let busy = self.stage == Stage::Talking || !self.output.is_empty();
            let wake = fabric.clock.now() + if busy { pause } else { 20_000 + pause };
            self.wake(wake, fabric);
        }
    }

    fn read(&mut self, fabric: &mut Fabric) {
        let now = fabric.clock.now();
        if now < self.stalled_until {
            return;
        }
        if self.random.percent(self.temper.stalls) {
            self.stalled_until = now + self.random.range(500, 30_000);
            return;
        }
        let ready = fabric.network.readable(self.conn, Side::Peer);
        let max = piece(ready, fabric.cuts, &mut self.random);
        let bytes = fabric.network.read(self.conn, Side::Peer, max, &mut fabric.clock);
        if !bytes.is_empty() {
            fabric.trace.quote(now, "client reads", [self.id.into(), self.conn.into(), 0], &bytes);
            self.input.extend_from_slice(&bytes);
            fabric.oracle.answered(self.id, &mut self.input, now);
            self.notice(fabric);
        } else if fabric.network.at_end(self.conn, Side::Peer) {
            fabric.trace.note(now, "client sees the end", [self.id.into(), self.conn.into(), 0]);
            fabric.oracle.closed(self.id, &self.input, now);
            self.leave(fabric);
        }
    }

    fn ask(&mut self, fabric: &mut Fabric) {
        if self.output.len() > 4096 {
            return;
        }
        let burst = self.random.below(self.temper.pipeline.min(12) + 1);
        for _ in 0..burst {
            let full = fabric.oracle.owed(self.id) as u64 >= self.temper.pipeline;
            if full || self.is_last || self.asked >= self.temper.requests {
                break;
            }
            let ends = self.asked + 1 == self.temper.requests;
            let request = self.make(ends, fabric);
            self.asked += 1;
            self.is_last = request.last;
            self.output.extend_from_slice(&request.bytes);
            let now = fabric.clock.now();
            fabric.trace.quote(now, "client asks", [self.id.into(), 0, 0], &request.bytes);
            fabric.oracle.asked(self.id, request, now);
        }
        if self.is_last || self.asked >= self.temper.requests {
            self.stage = Stage::Finishing;
        }
    }

    fn make(&mut self, ends: bool, fabric: &Fabric) -> Request {
        let mut ctx =
            RequestCtx { client: self.id, temper: &self.temper, random: &mut self.random, fabric };
        // Some clients end with a request.
        let farewell = ends && ctx.random.percent(40);
        match &mut self.speaker {
            Speaker::Redis(redis) if farewell => redis.farewell(&mut ctx),
            Speaker::Redis(redis) => redis.request(&mut ctx),
            Speaker::Memcached(memcached) if farewell => memcached.farewell(&mut ctx),
            Speaker::Memcached(memcached) => memcached.request(&mut ctx),
            Speaker::Meta(meta) if farewell => meta.farewell(&mut ctx),
            Speaker::Meta(meta) => meta.request(&mut ctx),
            Speaker::Binary(binary) if farewell => binary.farewell(&mut ctx),
            Speaker::Binary(binary) => binary.request(&mut ctx),
        }
    }

    fn write(&mut self, fabric: &mut Fabric) {
        if self.output.is_empty() || self.half_closed {
            return;
        }
        let len = piece(self.output.len(), fabric.cuts, &mut self.random);
        let Fabric { network, clock, random, .. } = fabric;
        let taken = network.write(self.conn, Side::Peer, &self.output[..len], clock, random);
        self.output.drain(..taken);
    }

    fn finish(&mut self, fabric: &mut Fabric) {
        if self.stage != Stage::Finishing || !self.output.is_empty() || self.half_closed {
            return;
        }
        let answered = fabric.oracle.owed(self.id) == 0;
        let waits = self.is_last || (!answered && self.random.percent(50));
        if waits {
            // After its last request the gateway closes.
            return;
        }
        self.half_closed = true;
        fabric.trace.note(fabric.clock.now(), "client half-closes", [self.id.into(), 0, 0]);
        fabric.oracle.half_closed(self.id);
        let Fabric { network, clock, random, .. } = fabric;
        network.end(self.conn, Side::Peer, clock, random);
    }

    /// Leaves without a request, with or without a reset.
    fn vanish(&mut self, fabric: &mut Fabric) {
        let abruptly = self.random.percent(60);
        let numbers = [self.id.into(), self.conn.into(), abruptly.into()];
        fabric.trace.note(fabric.clock.now(), "client vanishes", numbers);
        fabric.oracle.left(self.id);
        if abruptly {
            self.stage = Stage::Gone;
            let Fabric { network, clock, random, .. } = fabric;
            network.reset(self.conn, Side::Peer, clock, random);
        } else {
            self.leave(fabric);
        }
    }

    fn leave(&mut self, fabric: &mut Fabric) {
        self.stage = Stage::Gone;
        let Fabric { network, clock, random, .. } = fabric;
        network.close(self.conn, Side::Peer, clock, random);
    }

    /// The gateway reset the connection.
    pub(crate) fn lost(&mut self, fabric: &mut Fabric) {
        if self.stage != Stage::Gone {
            fabric.oracle.closed(self.id, b"", fabric.clock.now());
            self.leave(fabric);
        }
    }
}

/// The keys of one client, and those that all share.
pub(crate) struct Keys {
    own: Vec<Vec<u8>>,
    shared: Vec<Vec<u8>>,
    made: u32,
    client: u32,
    tagged: bool,
    /// One key of a request may stand for several servers: then it is unknown which of them handled
    /// which of two equal keys.
    scattered: bool,
}

impl Keys {
    pub(crate) fn new(client: u32, config: &Pool, random: &mut Random) -> Self {
        let mut keys = Self {
            own: Vec::new(),
            shared: (0..4).map(|n| format!("s:{n}").into_bytes()).collect(),
            made: 0,
            client,
            tagged: config.hash_tag.is_some(),
            // Of a route each key is asked for by itself, maybe of several servers that may answer.
            scattered: config.distribution == Distribution::Random || config.route.is_some(),
        };
        for _ in 0..random.range(3, 10) {
            let key = keys.fresh(random);
            keys.own.push(key);
        }
        keys
    }

    fn fresh(&mut self, random: &mut Random) -> Vec<u8> {
        self.made += 1;
        let mut key = format!("c{}:{}", self.client, self.made);
        if self.tagged && random.percent(70) {
            key.push_str(&format!("{{{}}}", random.below(3)));
        }
        if random.percent(5) {
            key.push_str(&"k".repeat(random.range(20, 200) as usize));
        }
        key.into_bytes()
    }

    /// One of its own.
    pub(crate) fn any(&self, random: &mut Random) -> Vec<u8> {
        self.own[random.below(self.own.len() as u64) as usize].clone()
    }

    fn restrict(&mut self, mut allowed: impl FnMut(&[u8]) -> bool) {
        self.shared.clear();
        let mut made = 0;
        let client = self.client;
        for key in &mut self.own {
            *key = loop {
                made += 1;
                let key = format!("c{client}:{made}").into_bytes();
                if allowed(&key) {
                    break key;
                }
            };
        }
    }

    /// Some keys, possibly repeated, and one of the given tags that no request in flight has for
    /// any of them.
    pub(crate) fn choose(
        &mut self,
        count: u64,
        with_shared: bool,
        tags: &[Vec<u8>],
        ctx: &mut RequestCtx<'_>,
    ) -> (Vec<Vec<u8>>, Vec<u8>) {
        loop {
            let mut keys = Vec::new();
            for _ in 0..count {
                let shared = with_shared && !self.shared.is_empty() && ctx.random.percent(15);
                let from = if shared { &self.shared } else { &self.own };
                keys.push(from[ctx.random.below(from.len() as u64) as usize].clone());
            }
            if self.scattered {
                keys.sort_unstable();
                keys.dedup();
            }
            if let Some(tag) = tags.iter().find(|tag| ctx.is_free(tag, &keys)) {
                return (keys, tag.clone());
            }
            // After an error it is unknown whether the request will still be executed: such a key
            // is eventually replaced.
            let worn = ctx.random.below(self.own.len() as u64) as usize;
            self.own[worn] = self.fresh(ctx.random);
        }
    }
}
