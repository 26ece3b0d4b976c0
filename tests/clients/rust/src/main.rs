//! redis-rs: https://github.com/redis-rs/redis-rs
//!
//! Sections run one after another with RESP2 and with RESP3, and the first wrong answer ends the
//! program. Arguments, if there are any, name the sections to run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt;
use redis::{
    Client, Commands, Connection, ConnectionLike, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisResult, Value, cmd, pipe,
};

const PATIENCE: Duration = Duration::from_secs(30);

const SECTIONS: &[(&str, fn(&Gateway) -> RedisResult<()>)] = &[
    ("defaults", defaults),
    ("types", types),
    ("pipeline", pipeline),
    ("transaction", transaction),
    ("script", script),
    ("pubsub", pubsub),
    ("blocking", blocking),
    ("scan", scan),
    ("databases", databases),
    ("errors", errors),
    ("asynchronous", asynchronous),
];

struct Gateway {
    address: String,
    protocol: ProtocolVersion,
    /// What the keys of this run begin with.
    at: &'static str,
}

impl Gateway {
    fn client(&self, database: i64) -> Client {
        let info = self.address.as_str().into_connection_info().expect("an address");
        let settings = info.redis_settings().clone().set_protocol(self.protocol).set_db(database);
        Client::open(info.set_redis_settings(settings)).expect("a client")
    }

    fn connect(&self) -> RedisResult<Connection> {
        self.database(0)
    }

    fn database(&self, number: i64) -> RedisResult<Connection> {
        let connection = self.client(number).get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.at)
    }

    fn resp3(&self) -> bool {
        self.protocol == ProtocolVersion::RESP3
    }
}

fn main() {
    let address = std::env::var("CASHEW_REDIS")
        .expect("CASHEW_REDIS=HOST:PORT is not set; tests/python/test_languages.py does that");
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    for (name, section) in SECTIONS {
        if !chosen.is_empty() && !chosen.iter().any(|each| each == name) {
            continue;
        }
        for (protocol, at) in [(ProtocolVersion::RESP2, "rs2"), (ProtocolVersion::RESP3, "rs3")] {
            let gateway = Gateway { address: format!("redis://{address}"), protocol, at };
            if let Err(error) = section(&gateway) {
                eprintln!("{name} ({at}): {error:?}");
                std::process::exit(1);
            }
        }
        println!("ok {name}");
    }
}

fn defaults(gateway: &Gateway) -> RedisResult<()> {
    // Nothing is chosen here: the library opens the connection as it likes to.
    let mut connection = Client::open(gateway.address.as_str())?.get_connection()?;
    assert!(connection.check_connection());
    assert_eq!(connection.set::<_, _, String>("rs:default", 1)?, "OK");
    assert_eq!(connection.incr::<_, _, i64>("rs:default", 41)?, 42);
    assert_eq!(connection.expire::<_, i64>("rs:default", 60)?, 1);
    assert_eq!(connection.ttl::<_, i64>("rs:default")?, 60);
    assert_eq!(connection.del::<_, i64>("rs:default")?, 1);
    assert_eq!(connection.get::<_, Option<String>>("rs:default")?, None);
    Ok(())
}

fn types(gateway: &Gateway) -> RedisResult<()> {
    let mut connection = gateway.connect()?;
    let key = |name: &str| gateway.key(name);
    for name in ["h", "l", "s", "z", "x"] {
        connection.del::<_, i64>(key(name))?;
    }
    connection.hset_multiple::<_, _, _, String>(key("h"), &[("a", 1), ("b", 2)])?;
    let hash: BTreeMap<String, i64> = connection.hgetall(key("h"))?;
    assert_eq!(hash, BTreeMap::from([("a".into(), 1), ("b".into(), 2)]));
    assert_eq!(connection.rpush::<_, _, i64>(key("l"), &["a", "b", "c"])?, 3);
    assert_eq!(connection.lrange::<_, Vec<String>>(key("l"), 0, -1)?, ["a", "b", "c"]);
    assert_eq!(connection.sadd::<_, _, i64>(key("s"), &["a", "b"])?, 2);
    let set: BTreeSet<String> = connection.smembers(key("s"))?;
    assert_eq!(set, BTreeSet::from(["a".into(), "b".into()]));
    assert_eq!(connection.zadd::<_, _, _, i64>(key("z"), "a", 1.5)?, 1);
    assert_eq!(connection.zscore::<_, _, f64>(key("z"), "a")?, 1.5);
    let ranked: Vec<(String, f64)> = connection.zrange_withscores(key("z"), 0, -1)?;
    assert_eq!(ranked, [("a".to_owned(), 1.5)]);
    assert_eq!(connection.xadd::<_, _, _, _, String>(key("x"), "1-1", &[("f", "v")])?, "1-1");
    let entries: redis::streams::StreamRangeReply = connection.xrange_all(key("x"))?;
    assert_eq!(entries.ids[0].get::<String>("f").as_deref(), Some("v"));
    // The raw form of a reply is that of the protocol.
    let raw: Value = cmd("HGETALL").arg(key("h")).query(&mut connection)?;
    assert_eq!(matches!(raw, Value::Map(_)), gateway.resp3(), "{raw:?}");
    let binary = [0u8, 255, 13, 10, 36];
    connection.set::<_, _, ()>(key("binary"), &binary[..])?;
    assert_eq!(connection.get::<_, Vec<u8>>(key("binary"))?, binary);
    let keys: Vec<String> = (0..500).map(|n| key(&format!("many:{n}"))).collect();
    let pairs: Vec<(&String, usize)> = keys.iter().zip(0..).collect();
    connection.mset::<_, _, ()>(&pairs)?;
    assert_eq!(connection.mget::<_, Vec<usize>>(&keys)?, (0..500).collect::<Vec<_>>());
    assert_eq!(connection.del::<_, i64>(&keys)?, 500);
    Ok(())
}

fn pipeline(gateway: &Gateway) -> RedisResult<()> {
    let mut connection = gateway.connect()?;
    let mut pipeline = pipe();
    for n in 0..300 {
        let key = gateway.key(&format!("p:{n}"));
        pipeline.set(&key, n).ignore();
        pipeline.get(&key);
        pipeline.mget(&[key, gateway.key("none")]);
    }
    let answers: Vec<Value> = pipeline.query(&mut connection)?;
    assert_eq!(answers.len(), 600);
    for (n, pair) in answers.chunks(2).enumerate() {
        let text = n.to_string().into_bytes();
        assert_eq!(pair[0], Value::BulkString(text.clone()));
        assert_eq!(pair[1], Value::Array(vec![Value::BulkString(text), Value::Nil]));
    }
    Ok(())
}

fn transaction(gateway: &Gateway) -> RedisResult<()> {
    let mut connection = gateway.connect()?;
    let (a, b) = (format!("{{{}}}a", gateway.at), format!("{{{}}}b", gateway.at));
    let (set, sum, none): (String, i64, Option<String>) =
        pipe().atomic().set(&a, 1).incr(&a, 1).get(&b).query(&mut connection)?;
    assert_eq!((set.as_str(), sum, none), ("OK", 2, None));

    // The watched key changes while the first attempt is under way, and the second succeeds.
    let mut other = gateway.connect()?;
    let mut attempts = 0;
    let (changed,): (i64,) =
        redis::transaction(&mut connection, std::slice::from_ref(&a), |connection, pipe| {
            attempts += 1;
            let seen: i64 = connection.get(&a)?;
            if attempts == 1 {
                other.set::<_, _, ()>(&a, 40)?;
            }
            pipe.set(&a, seen + 1).ignore().incr(&a, 1).query(connection)
        })?;
    assert_eq!((attempts, changed), (2, 42));
    assert_eq!(connection.get::<_, i64>(&a)?, 42);
    Ok(())
}

fn script(gateway: &Gateway) -> RedisResult<()> {
    let mut connection = gateway.connect()?;
    let script = redis::Script::new(
        "return {redis.call('incrby', KEYS[1], ARGV[1]), ARGV[1] * 2, redis.status_reply('OK')}",
    );
    let key = gateway.key("script");
    connection.del::<_, ()>(&key)?;
    let first: (i64, i64, String) = script.key(&key).arg(5).invoke(&mut connection)?;
    assert_eq!(first, (5, 10, "OK".to_owned()));
    let second: (i64, i64, String) = script.key(&key).arg(6).invoke(&mut connection)?;
    assert_eq!(second, (11, 12, "OK".to_owned()));
    let digest = script.prepare_invoke().load(&mut connection)?;
    for n in 0..10 {
        let key = gateway.key(&format!("script:{n}"));
        connection.del::<_, ()>(&key)?;
        let reply: (i64, i64, String) =
            cmd("EVALSHA").arg(&digest).arg(1).arg(key).arg(n).query(&mut connection)?;
        assert_eq!(reply, (n, 2 * n, "OK".to_owned()));
    }
    let known: Vec<bool> =
        cmd("SCRIPT").arg("EXISTS").arg(&digest).arg("0".repeat(40)).query(&mut connection)?;
    assert_eq!(known, [true, false]);
    Ok(())
}

fn pubsub(gateway: &Gateway) -> RedisResult<()> {
    let (news, pattern) = (gateway.key("news"), gateway.key("n*"));
    let mut publisher = gateway.connect()?;
    let mut subscriber = gateway.connect()?;
    {
        let mut pubsub = subscriber.as_pubsub();
        pubsub.subscribe(&news)?;
        pubsub.psubscribe(&pattern)?;
        assert_eq!(publisher.publish::<_, _, i64>(&news, "1")?, 2);
        assert_eq!(publisher.publish::<_, _, i64>(gateway.key("nobody's"), "2")?, 1);
        let mut heard = BTreeSet::new();
        for _ in 0..3 {
            let message = pubsub.get_message()?;
            heard.insert(format!(
                "{} {} {}",
                message.from_pattern(),
                message.get_channel_name(),
                message.get_payload::<String>()?
            ));
        }
        let expected = [
            format!("false {news} 1"),
            format!("true {news} 1"),
            format!("true {} 2", gateway.key("nobody's")),
        ];
        assert_eq!(heard, BTreeSet::from(expected));
        pubsub.unsubscribe(&news)?;
        pubsub.punsubscribe(&pattern)?;
    }
    assert_eq!(subscriber.get::<_, Option<String>>(gateway.key("none"))?, None);
    Ok(())
}

fn blocking(gateway: &Gateway) -> RedisResult<()> {
    let (queue, stream) = (gateway.key("queue"), gateway.key("stream"));
    let mut pusher = gateway.connect()?;
    pusher.del::<_, ()>(&queue)?;
    pusher.del::<_, ()>(&stream)?;
    let mut waiting = gateway.connect()?;
    std::thread::scope(|threads| {
        let popped = threads.spawn(|| waiting.blpop::<_, (String, String)>(&queue, 20.0));
        assert_eq!(pusher.rpush::<_, _, i64>(&queue, "job")?, 1);
        assert_eq!(popped.join().expect("no panic")?, (queue.clone(), "job".to_owned()));
        Ok::<_, redis::RedisError>(())
    })?;
    assert_eq!(waiting.brpop::<_, Option<(String, String)>>(&queue, 0.05)?, None);
    std::thread::scope(|threads| {
        let options = redis::streams::StreamReadOptions::default().block(20_000);
        let waiting = &mut waiting;
        let read = threads.spawn(move || {
            waiting.xread_options::<_, _, redis::streams::StreamReadReply>(
                &[gateway.key("stream")],
                &["0"],
                &options,
            )
        });
        pusher.xadd::<_, _, _, _, String>(&stream, "1-1", &[("f", "v")])?;
        let reply = read.join().expect("no panic")?;
        assert_eq!(reply.keys[0].key, stream);
        assert_eq!(reply.keys[0].ids[0].id, "1-1");
        Ok::<_, redis::RedisError>(())
    })
}

fn scan(gateway: &Gateway) -> RedisResult<()> {
    let mut connection = gateway.connect()?;
    let keys: BTreeSet<String> = (0..300).map(|n| gateway.key(&format!("scan:{n}"))).collect();
    for key in &keys {
        connection.set::<_, _, ()>(key, "v")?;
    }
    let found: BTreeSet<String> =
        connection.scan_match::<_, String>(gateway.key("scan:*"))?.collect::<RedisResult<_>>()?;
    assert_eq!(found, keys);
    let listed: BTreeSet<String> = connection.keys(gateway.key("scan:*"))?;
    assert_eq!(listed, keys);
    Ok(())
}

fn databases(gateway: &Gateway) -> RedisResult<()> {
    let (mut zero, mut three) = (gateway.database(0)?, gateway.database(3)?);
    let key = gateway.key("db");
    zero.set::<_, _, ()>(&key, "0")?;
    three.set::<_, _, ()>(&key, "3")?;
    assert_eq!(zero.get::<_, String>(&key)?, "0");
    assert_eq!(three.get::<_, String>(&key)?, "3");
    cmd("SELECT").arg(3).query::<()>(&mut zero)?;
    assert_eq!(zero.get::<_, String>(&key)?, "3");
    Ok(())
}

fn errors(gateway: &Gateway) -> RedisResult<()> {
    let mut connection = gateway.connect()?;
    let key = gateway.key("text");
    connection.set::<_, _, ()>(&key, "abc")?;
    let error = connection.incr::<_, _, i64>(&key, 1).expect_err("text is no number");
    assert!(error.to_string().contains("not an integer"), "{error}");
    let error = connection.lpush::<_, _, i64>(&key, "x").expect_err("a string is no list");
    assert_eq!(error.code(), Some("WRONGTYPE"));
    let error = cmd("nosuch").arg("a").query::<()>(&mut connection).expect_err("no such command");
    assert_eq!(error.kind(), ErrorKind::Server(redis::ServerErrorKind::ResponseError));
    assert!(error.to_string().contains("unknown command 'nosuch'"), "{error}");
    assert_eq!(connection.get::<_, String>(&key)?, "abc");
    Ok(())
}

/// Many tasks on one connection, and messages as pushes beside their answers in RESP3.
fn asynchronous(gateway: &Gateway) -> RedisResult<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let all = async {
        let client = gateway.client(0);
        let mut connection = client.get_multiplexed_async_connection().await?;
        let asked = (0..200).map(|n| {
            let mut connection = connection.clone();
            let key = gateway.key(&format!("task:{n}"));
            async move {
                redis::AsyncCommands::set::<_, _, ()>(&mut connection, &key, n).await?;
                redis::AsyncCommands::get::<_, i64>(&mut connection, &key).await
            }
        });
        for (n, answer) in futures_util::future::join_all(asked).await.into_iter().enumerate() {
            assert_eq!(answer?, n as i64);
        }
        let channel = gateway.key("pushed");
        if gateway.resp3() {
            let (sender, mut pushes) = tokio::sync::mpsc::unbounded_channel::<PushInfo>();
            let config = redis::AsyncConnectionConfig::new().set_push_sender(sender);
            let mut subscriber =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            subscriber.subscribe(&channel).await?;
            redis::AsyncCommands::publish::<_, _, i64>(&mut connection, &channel, "1").await?;
            let none: Option<String> =
                redis::AsyncCommands::get(&mut subscriber, gateway.key("none")).await?;
            assert_eq!(none, None);
            let kinds =
                [pushes.recv().await, pushes.recv().await].map(|push| push.expect("a push").kind);
            assert_eq!(kinds, [PushKind::Subscribe, PushKind::Message]);
        } else {
            let mut subscriber = client.get_async_pubsub().await?;
            subscriber.subscribe(&channel).await?;
            redis::AsyncCommands::publish::<_, _, i64>(&mut connection, &channel, "1").await?;
            let message = subscriber.on_message().next().await.expect("a message");
            assert_eq!(message.get_payload::<String>()?, "1");
        }
        Ok(())
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, all).await }).expect("within its time")
}
