//! However the bytes are cut on their way, peers get the same.

use std::collections::VecDeque;

use crate::world::{World, pool, redis};
use cashew_engine::ConnId;
use proptest::prelude::*;

const SERVERS: usize = 3;

/// A server that answers whole requests, in its own way but always the same.
struct Model {
    conn: ConnId,
    is_redis: bool,
    input: Vec<u8>,
    /// All that it ever got.
    seen: Vec<u8>,
    /// Answers on their way.
    output: VecDeque<u8>,
}

impl Model {
    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while let Some((len, reply)) = self.answer() {
            let request: Vec<u8> = self.input.drain(..len).collect();
            match request.strip_prefix(b"get ") {
                // Gets that come together leave as one.
                Some(keys) => keys[..keys.len() - 2].split(|&byte| byte == b' ').for_each(|key| {
                    self.seen.extend([b"get ", key, b"\r\n"].concat());
                }),
                None => self.seen.extend(request),
            }
            self.output.extend(reply);
        }
    }

    fn answer(&self) -> Option<(usize, Vec<u8>)> {
        if self.is_redis { answer_redis(&self.input) } else { answer_memcached(&self.input) }
    }
}

fn line(input: &[u8]) -> Option<(usize, &str)> {
    let end = input.windows(2).position(|pair| pair == b"\r\n")?;
    Some((end + 2, std::str::from_utf8(&input[..end]).expect("the tests send text")))
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn answer_redis(input: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (mut at, header) = line(input)?;
    let count: usize = header[1..].parse().expect("the gateway sends arrays");
    let mut words = Vec::new();
    for _ in 0..count {
        let (used, header) = line(&input[at..])?;
        let len: usize = header[1..].parse().expect("of bulks");
        words.push(input.get(at + used..at + used + len)?.to_vec());
        at += used + len + 2;
    }
    if at > input.len() {
        return None;
    }
    let keys = &words[1..];
    let reply = match words[0].as_slice() {
        b"MGET" => {
            let values = keys.iter().flat_map(|key| match key.len() % 3 {
                0 => b"$-1\r\n".to_vec(),
                _ => bulk(&key.repeat(3)),
            });
            format!("*{}\r\n", keys.len()).into_bytes().into_iter().chain(values).collect()
        }
        b"DEL" => format!(":{}\r\n", keys.len()).into_bytes(),
        b"MSET" | b"SET" => b"+OK\r\n".to_vec(),
        b"LRANGE" => b"*3\r\n*1\r\n:1\r\n*0\r\n$4\r\n\r\n\r\n\r\n".to_vec(),
        b"INCR" => b"-ERR value is not an integer or out of range\r\n".to_vec(),
        _ => bulk(&keys[0].repeat(40)),
    };
    Some((at, reply))
}

fn answer_memcached(input: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (mut at, command) = line(input)?;
    let words: Vec<&str> = command.split(' ').collect();
    let reply = match words[0] {
        "get" | "gets" => {
            let mut reply = Vec::new();
            for key in words[1..].iter().filter(|key| key.len() % 3 > 0) {
                let value = key.repeat(3);
                let unique = if words[0] == "gets" { " 77" } else { "" };
                reply.extend(format!("VALUE {key} 5 {}{unique}\r\n", value.len()).into_bytes());
                reply.extend(value.into_bytes());
                reply.extend(b"\r\n");
            }
            reply.extend(b"END\r\n");
            reply
        }
        "set" | "append" => {
            at += words[4].parse::<usize>().expect("a size") + 2;
            if at > input.len() {
                return None;
            }
            b"STORED\r\n".to_vec()
        }
        "flush_all" => b"OK\r\n".to_vec(),
        "delete" => b"DELETED\r\n".to_vec(),
        _ => b"17\r\n".to_vec(),
    };
    Some((at, reply))
}

/// What everybody got: clients first, then servers.
type Outcome = Vec<Vec<u8>>;

/// Plays what the clients send, taking turns and cut as `cuts` says; servers' answers are cut by
/// it as well.
fn play(options: &str, is_redis: bool, streams: &[Vec<u8>], cuts: &[usize]) -> Outcome {
    let (mut world, lanes): (World, [ConnId; SERVERS]) =
        World::connected(&pool(&format!("preconnect: true\n{options}"), SERVERS));
    let clients: Vec<ConnId> = streams.iter().map(|_| world.client()).collect();
    let mut rest: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
    let mut models = lanes.map(|conn| Model {
        conn,
        is_redis,
        input: Vec::new(),
        seen: Vec::new(),
        output: VecDeque::new(),
    });
    // Not in turn, or the same party might meet the same size for ever.
    let mut state = 1u32;
    let mut cut = |len: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        cuts[(state >> 16) as usize % cuts.len()].min(len)
    };
    loop {
        let mut is_over = true;
        for (&client, rest) in clients.iter().zip(&mut rest) {
            if rest.is_empty() || world.paused.contains(&client) {
                continue;
            }
            is_over = false;
            let (now, later) = rest.split_at(cut(rest.len()));
            *rest = later;
            if !now.is_empty() {
                world.engine.handle_received(client, now, world.now);
            }
            // Zero: the next event is in the same tick.
            if cut(1) > 0 {
                world.tick();
            }
        }
        world.tick();
        for model in &mut models {
            let bytes = world.received(model.conn);
            model.receive(&bytes);
            let now: Vec<u8> = model.output.drain(..cut(model.output.len())).collect();
            is_over &= now.is_empty() && model.output.is_empty() && bytes.is_empty();
            if !now.is_empty() {
                world.send(model.conn, now);
            }
        }
        if is_over {
            break;
        }
    }
    for &client in &clients {
        world.read_closed(client);
        assert!(world.closed.contains(&client), "it has all it is owed");
    }
    world.assert_idle();
    let to_clients = clients.iter().map(|&client| world.received(client)).collect::<Vec<_>>();
    let to_servers = models.into_iter().map(|model| {
        assert!(model.input.is_empty(), "servers get whole requests");
        model.seen
    });
    to_clients.into_iter().chain(to_servers).collect()
}

/// Pieces of these sizes; at least one of them is not empty.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![6 => 0..12usize, 2 => 12..200usize, 1 => 200..40_000usize];
    prop::collection::vec(size, 1..40).prop_map(|mut sizes| {
        sizes.push(5);
        sizes
    })
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "bb", "ccc", "d", "ee", "fff", "key:7", "user:1000"])
        .prop_map(str::to_owned)
}

fn keys() -> impl Strategy<Value = String> {
    prop::collection::vec(key(), 1..8).prop_map(|keys| keys.join(" "))
}

fn redis_request() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => key().prop_map(|key| redis(&format!("GET {key}"))),
        2 => (key(), 0..300usize).prop_map(|(key, len)| redis(&format!("SET {key} {}", "v".repeat(len)))),
        1 => key().prop_map(|key| redis(&format!("SET {key} {}", "v".repeat(20_000)))),
        1 => key().prop_map(|key| redis(&format!("LRANGE {key} 0 -1"))),
        1 => key().prop_map(|key| redis(&format!("INCR {key}"))),
        3 => keys().prop_map(|keys| redis(&format!("MGET {keys}"))),
        2 => keys().prop_map(|keys| redis(&format!("DEL {keys}"))),
        2 => keys().prop_map(|keys| redis(&format!("MSET {} v", keys.replace(' ', " v ")))),
        1 => Just("PING\r\n".to_owned()),
        1 => Just("\r\n".to_owned()),
        1 => Just("*0\r\n".to_owned()),
        1 => Just("get  'a'\r\n".to_owned()),
        1 => Just(redis("NOSUCH a b")),
        1 => Just(redis("GET")),
        1 => keys().prop_map(|keys| redis(&format!("SINTER {keys} a d"))),
    ]
    .prop_map(String::into_bytes)
}

fn memcached_request() -> impl Strategy<Value = Vec<u8>> {
    let noreply = || prop::sample::select(vec!["", " noreply"]);
    prop_oneof![
        4 => keys().prop_map(|keys| format!("get {keys}\r\n")),
        2 => keys().prop_map(|keys| format!("gets {keys}\r\n")),
        3 => (key(), 0..300usize, noreply()).prop_map(|(key, len, noreply)| {
            format!("set {key} 0 0 {len}{noreply}\r\n{}\r\n", "v".repeat(len))
        }),
        1 => (key(), noreply()).prop_map(|(key, noreply)| {
            format!("append {key} 0 0 20000{noreply}\r\n{}\r\n", "v".repeat(20_000))
        }),
        // Too large.
        1 => (key(), noreply()).prop_map(|(key, noreply)| {
            format!("set {key} 0 0 30000{noreply}\r\n{}\r\n", "get a\r\n".repeat(5000)[..30_000].to_owned())
        }),
        1 => (key(), noreply()).prop_map(|(key, noreply)| format!("incr {key} 1{noreply}\r\n")),
        1 => noreply().prop_map(|noreply| format!("flush_all{noreply}\r\n")),
        1 => Just("nosuch\r\n".to_owned()),
        1 => Just("set a 0 0 3\r\nabcde\r\n".to_owned()),
        1 => Just("get\n".to_owned()),
    ]
    .prop_map(String::into_bytes)
}

fn streams(request: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(request, 1..12), 1..3)
        .prop_map(|clients| clients.into_iter().map(|requests| requests.concat()).collect())
}

/// One client after the other: what two of them send to one server may come in any order.
fn alone(
    options: &str,
    is_redis: bool,
    streams: &[Vec<u8>],
    cuts: &[usize],
) -> Result<(), TestCaseError> {
    for stream in streams {
        let stream = std::slice::from_ref(stream);
        let whole = play(options, is_redis, stream, &[usize::MAX]);
        let cut = play(options, is_redis, stream, cuts);
        for (whole, cut) in whole.iter().zip(&cut) {
            prop_assert_eq!(String::from_utf8_lossy(whole), String::from_utf8_lossy(cut));
        }
    }
    // Together each client gets what it gets alone.
    let together = play(options, is_redis, streams, cuts);
    for (stream, together) in streams.iter().zip(&together) {
        let whole = play(options, is_redis, std::slice::from_ref(stream), &[usize::MAX]);
        prop_assert_eq!(String::from_utf8_lossy(&whole[0]), String::from_utf8_lossy(together));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn redis_is_the_same_however_it_is_cut(
        streams in streams(redis_request()),
        cuts in cuts(),
        requests_max in 1..6u32,
    ) {
        let options = format!("redis: true\ntimeout: 400\nclient_requests_max: {requests_max}");
        alone(&options, true, &streams, &cuts)?;
    }

    #[test]
    fn memcached_is_the_same_however_it_is_cut(
        streams in streams(memcached_request()),
        cuts in cuts(),
        requests_max in 1..6u32,
    ) {
        let options = format!(
            "timeout: 400\nrequest_size_max: 25kb\nclient_output_pause: 1kb\n\
             client_requests_max: {requests_max}"
        );
        alone(&options, false, &streams, &cuts)?;
    }
}
