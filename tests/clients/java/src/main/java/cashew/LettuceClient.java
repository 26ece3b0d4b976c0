package cashew;

import static cashew.Sections.check;
import static cashew.Sections.equal;
import static cashew.Sections.fails;
import static cashew.Sections.set;
import static cashew.Sections.waitUntil;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScoredValue;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.TrackingArgs;
import io.lettuce.core.XReadArgs;
import io.lettuce.core.XAddArgs;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.support.caching.CacheAccessor;
import io.lettuce.core.support.caching.ClientSideCaching;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/** Lettuce: https://github.com/redis/lettuce */
public final class LettuceClient {
    private interface OneProtocol {
        void run(RedisClient client, String at) throws Exception;
    }

    private static RedisURI address(int database) {
        return RedisURI.builder().withHost(Sections.host()).withPort(Sections.port())
            .withDatabase(database).withTimeout(Duration.ofMillis(Sections.PATIENCE_MS)).build();
    }

    private static Sections.Section both(OneProtocol section) {
        return () -> {
            for (var protocol : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
                try (var client = RedisClient.create(address(0))) {
                    client.setOptions(ClientOptions.builder().protocolVersion(protocol)
                        .autoReconnect(false).build());
                    section.run(client, protocol == ProtocolVersion.RESP2 ? "l2" : "l3");
                    client.shutdown(Duration.ZERO, Duration.ofSeconds(5));
                }
            }
        };
    }

    private static <T> T answer(RedisFuture<T> future) throws Exception {
        return future.get(Sections.PATIENCE_MS, TimeUnit.MILLISECONDS);
    }

    public static void main(String[] chosen) {
        new Sections()
            .add("defaults", LettuceClient::defaults)
            .add("types", both(LettuceClient::types))
            .add("manyKeys", both(LettuceClient::manyKeys))
            .add("pipeline", both(LettuceClient::pipeline))
            .add("transaction", both(LettuceClient::transaction))
            .add("script", both(LettuceClient::script))
            .add("pubsub", both(LettuceClient::pubsub))
            .add("blocking", both(LettuceClient::blocking))
            .add("scan", both(LettuceClient::scan))
            .add("databases", both(LettuceClient::databases))
            .add("errors", both(LettuceClient::errors))
            .add("tracking", both(LettuceClient::tracking))
            .run(chosen);
    }

    private static void defaults() {
        var client = RedisClient.create(
            "redis://" + Sections.host() + ":" + Sections.port());
        try (var connection = client.connect()) {
            var redis = connection.sync();
            equal(redis.ping(), "PONG");
            equal(redis.setex("l:default", 60, "1"), "OK");
            equal(redis.incrby("l:default", 41), 42L);
            equal(redis.ttl("l:default"), 60L);
            equal(redis.del("l:default"), 1L);
            equal(redis.get("l:default"), null);
        }
        client.shutdown(Duration.ZERO, Duration.ofSeconds(5));
    }

    private static void types(RedisClient client, String at) {
        try (var connection = client.connect()) {
            var redis = connection.sync();
            for (var name : "hlszxg".split("")) {
                redis.del(at + name);
            }
            equal(redis.hset(at + "h", Map.of("a", "1", "b", "2")), 2L);
            equal(redis.hgetall(at + "h"), Map.of("a", "1", "b", "2"));
            equal(redis.rpush(at + "l", "a", "b", "c"), 3L);
            equal(redis.lrange(at + "l", 0, -1), List.of("a", "b", "c"));
            equal(redis.sadd(at + "s", "a", "b"), 2L);
            equal(new TreeSet<>(redis.smembers(at + "s")), set("a", "b"));
            equal(redis.zadd(at + "z", ScoredValue.just(1.5, "a"), ScoredValue.just(2, "b")), 2L);
            equal(redis.zscore(at + "z", "a"), 1.5);
            equal(redis.zrangeWithScores(at + "z", 0, -1),
                List.of(ScoredValue.just(1.5, "a"), ScoredValue.just(2, "b")));
            equal(redis.xadd(at + "x", new XAddArgs().id("1-1"), Map.of("f", "v")), "1-1");
            equal(redis.xread(XReadArgs.StreamOffset.from(at + "x", "0")).get(0).getBody(),
                Map.of("f", "v"));
            equal(redis.geoadd(at + "g", 13.4, 52.5, "here"), 1L);
            check(Math.abs(redis.geopos(at + "g", "here").get(0).getX().doubleValue() - 13.4) < 1e-4,
                "the longitude");
        }
    }

    private static void manyKeys(RedisClient client, String at) {
        try (var connection = client.connect()) {
            var redis = connection.sync();
            var keys = Sections.keys(at + ":many:", 500);
            var pairs = new TreeMap<String, String>();
            for (int n = 0; n < 500; n++) {
                pairs.put(keys[n], Integer.toString(n));
            }
            equal(redis.mset(pairs), "OK");
            var values = redis.mget(keys);
            for (int n = 0; n < 500; n++) {
                equal(values.get(n), KeyValue.just(keys[n], Integer.toString(n)));
            }
            equal(redis.exists(keys), 500L);
            equal(redis.unlink(keys), 500L);
        }
    }

    private static void pipeline(RedisClient client, String at) throws Exception {
        try (var connection = client.connect()) {
            var redis = connection.async();
            var gets = new ArrayList<RedisFuture<String>>();
            var pairs = new ArrayList<RedisFuture<List<KeyValue<String, String>>>>();
            connection.setAutoFlushCommands(false);
            for (int n = 0; n < 300; n++) {
                var key = at + ":p:" + n;
                redis.set(key, Integer.toString(n));
                gets.add(redis.get(key));
                pairs.add(redis.mget(key, at + ":none"));
            }
            connection.flushCommands();
            for (int n = 0; n < 300; n++) {
                equal(answer(gets.get(n)), Integer.toString(n));
                equal(answer(pairs.get(n)), List.of(
                    KeyValue.just(at + ":p:" + n, Integer.toString(n)),
                    KeyValue.empty(at + ":none")));
            }
            connection.setAutoFlushCommands(true);
        }
    }

    private static void transaction(RedisClient client, String at) {
        var a = "{" + at + "}a";
        try (var connection = client.connect(); var another = client.connect()) {
            var redis = connection.sync();
            redis.del(a);
            equal(redis.multi(), "OK");
            redis.set(a, "1");
            redis.incr(a);
            var done = redis.exec();
            equal(done.get(0), "OK");
            equal(done.get(1), 2L);
            equal(redis.watch(a), "OK");
            another.sync().set(a, "other");
            redis.multi();
            redis.set(a, "mine");
            check(redis.exec().wasDiscarded(), "a watched key changed");
            equal(redis.get(a), "other");
            redis.multi();
            redis.set(a, "mine");
            equal(redis.discard(), "OK");
            equal(redis.get(a), "other");
        }
    }

    private static void script(RedisClient client, String at) throws Exception {
        try (var connection = client.connect()) {
            var redis = connection.sync();
            var code = "return {redis.call('incrby', KEYS[1], ARGV[1]), ARGV[1] * 2, KEYS[1]}";
            var key = at + ":script";
            redis.del(key);
            List<Object> got = redis.eval(code, ScriptOutputType.MULTI, new String[] {key}, "5");
            equal(got, List.of(5L, 10L, key));
            var digest = redis.scriptLoad(code);
            for (int n = 0; n < 10; n++) {
                redis.del(key + n);
                got = redis.evalsha(digest, ScriptOutputType.MULTI, new String[] {key + n}, "5");
                equal(got, List.of(5L, 10L, key + n));
            }
            equal(redis.scriptExists(digest, "0".repeat(40)), List.of(true, false));
            fails("NOSCRIPT", () -> redis.evalsha("0".repeat(40), ScriptOutputType.MULTI, key));
        }
    }

    private static void pubsub(RedisClient client, String at) throws Exception {
        List<String> heard = Sections.list();
        try (var connection = client.connect(); var subscriber = client.connectPubSub()) {
            subscriber.addListener(new RedisPubSubAdapter<>() {
                @Override
                public void message(String channel, String message) {
                    heard.add(channel + " " + message);
                }

                @Override
                public void message(String pattern, String channel, String message) {
                    heard.add(pattern + " " + channel + " " + message);
                }

                @Override
                public void smessage(String channel, String message) {
                    heard.add("shard " + channel + " " + message);
                }
            });
            var redis = connection.sync();
            subscriber.sync().subscribe(at + ":news", at + ":other");
            subscriber.sync().psubscribe(at + ":n*");
            subscriber.sync().ssubscribe(at + ":shard");
            equal(redis.publish(at + ":news", "1"), 2L);
            equal(redis.publish(at + ":other", "2"), 1L);
            equal(redis.publish(at + ":nobody's", "3"), 1L);
            equal(redis.spublish(at + ":shard", "4"), 1L);
            waitUntil("messages", () -> heard.size() == 5);
            equal(new TreeSet<>(heard), set(at + ":news 1", at + ":n* " + at + ":news 1",
                at + ":other 2", at + ":n* " + at + ":nobody's 3", "shard " + at + ":shard 4"));
            equal(redis.pubsubNumsub(at + ":news"), Map.of(at + ":news", 1L));
            subscriber.sync().unsubscribe(at + ":news");
            equal(redis.publish(at + ":news", "5"), 1L);
        }
    }

    private static void blocking(RedisClient client, String at) throws Exception {
        try (var connection = client.connect(); var waiting = client.connect()) {
            var redis = connection.sync();
            redis.del(at + ":queue");
            redis.del(at + ":stream");
            var popped = waiting.async().blpop(20, at + ":queue");
            var after = waiting.async().get(at + ":none");
            equal(redis.rpush(at + ":queue", "job"), 1L);
            equal(answer(popped), KeyValue.just(at + ":queue", "job"));
            equal(answer(after), null);
            equal(waiting.sync().brpop(0.05, at + ":queue"), null);
            var read = waiting.async().xread(XReadArgs.Builder.block(20_000),
                XReadArgs.StreamOffset.from(at + ":stream", "0"));
            redis.xadd(at + ":stream", new XAddArgs().id("1-1"), Map.of("f", "v"));
            equal(answer(read).get(0).getBody(), Map.of("f", "v"));
        }
    }

    private static void scan(RedisClient client, String at) {
        try (var connection = client.connect()) {
            var redis = connection.sync();
            var keys = Sections.keys(at + ":scan:", 300);
            for (var key : keys) {
                redis.set(key, "v");
            }
            var found = new TreeSet<String>();
            ScanIterator.scan(redis, ScanArgs.Builder.matches(at + ":scan:*").limit(20))
                .forEachRemaining(found::add);
            equal(found, set(keys));
            equal(new TreeSet<>(redis.keys(at + ":scan:*")), set(keys));
        }
    }

    private static void databases(RedisClient client, String at) {
        StatefulRedisConnection<String, String> zero = client.connect();
        StatefulRedisConnection<String, String> three = client.connect(address(3));
        zero.sync().set(at + ":db", "0");
        three.sync().set(at + ":db", "3");
        equal(zero.sync().get(at + ":db"), "0");
        equal(three.sync().get(at + ":db"), "3");
        equal(zero.sync().select(3), "OK");
        equal(zero.sync().get(at + ":db"), "3");
        zero.close();
        three.close();
    }

    /** Its client-side cache, which is told of what others write. */
    private static void tracking(RedisClient client, String at) throws Exception {
        if (at.equals("l2")) {
            try (var connection = client.connect()) {
                fails("needs RESP3", () -> connection.sync()
                    .clientTracking(TrackingArgs.Builder.enabled()));
            }
            return;
        }
        keeps(client, at + ":default:", TrackingArgs.Builder.enabled());
        keeps(client, at + ":all:", TrackingArgs.Builder.enabled().bcast().prefixes(at + ":all:"));
        keeps(client, at + ":others:", TrackingArgs.Builder.enabled().noloop());
    }

    private static void keeps(RedisClient client, String at, TrackingArgs how) throws Exception {
        var kept = new ConcurrentHashMap<String, String>();
        try (var reader = client.connect(); var writing = client.connect()) {
            var writer = writing.sync();
            var keys = Sections.keys(at, 30);
            for (var key : keys) {
                writer.set(key, "0");
            }
            var cache = ClientSideCaching.enable(CacheAccessor.forMap(kept), reader, how);
            for (var round = 1; round < 20; round++) {
                for (var key : keys) {
                    equal(cache.get(key), Integer.toString(round - 1));
                    // What was written before the first read may be told of after it.
                    waitUntil(key + " is kept", () -> cache.get(key) != null && kept.containsKey(key));
                }
                for (var key : keys) {
                    equal(writer.set(key, Integer.toString(round)), "OK");
                    waitUntil(key + " is dropped", () -> !kept.containsKey(key));
                }
            }
            var key = keys[0];
            equal(cache.get(key), "19");
            writer.pexpire(key, 20);
            waitUntil("it expires", () -> !kept.containsKey(key) && writer.exists(key) == 0);
            equal(cache.get(key, () -> "loaded"), "loaded");
            waitUntil("it is stored", () -> "loaded".equals(writer.get(key)));
            cache.close();
        }
    }

    private static void errors(RedisClient client, String at) throws Exception {
        try (var connection = client.connect()) {
            var redis = connection.sync();
            redis.set(at + ":text", "abc");
            fails("not an integer", () -> redis.incr(at + ":text"));
            fails("WRONGTYPE", () -> redis.lpush(at + ":text", "x"));
            equal(redis.get(at + ":text"), "abc");
        }
    }
}
