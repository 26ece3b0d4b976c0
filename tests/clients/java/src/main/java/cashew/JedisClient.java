package cashew;

import static cashew.Sections.check;
import static cashew.Sections.equal;
import static cashew.Sections.fails;
import static cashew.Sections.set;
import static cashew.Sections.waitUntil;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.params.XReadParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.resps.Tuple;

/** Jedis: https://github.com/redis/jedis */
public final class JedisClient {
    private interface OneProtocol {
        void run(RedisProtocol protocol, String at) throws Exception;
    }

    private static Sections.Section both(OneProtocol section) {
        return () -> {
            section.run(RedisProtocol.RESP2, "j2");
            section.run(RedisProtocol.RESP3, "j3");
        };
    }

    private static Jedis connect(RedisProtocol protocol) {
        return connect(protocol, 0);
    }

    private static Jedis connect(RedisProtocol protocol, int database) {
        var config = DefaultJedisClientConfig.builder().protocol(protocol).database(database)
            .timeoutMillis(Sections.PATIENCE_MS).blockingSocketTimeoutMillis(Sections.PATIENCE_MS)
            .build();
        return new Jedis(new HostAndPort(Sections.host(), Sections.port()), config);
    }

    public static void main(String[] chosen) {
        new Sections()
            .add("defaults", JedisClient::defaults)
            .add("types", both(JedisClient::types))
            .add("manyKeys", both(JedisClient::manyKeys))
            .add("pipeline", both(JedisClient::pipeline))
            .add("transaction", both(JedisClient::transaction))
            .add("script", both(JedisClient::script))
            .add("pubsub", both(JedisClient::pubsub))
            .add("blocking", both(JedisClient::blocking))
            .add("scan", both(JedisClient::scan))
            .add("databases", both(JedisClient::databases))
            .add("errors", both(JedisClient::errors))
            .run(chosen);
    }

    /** The pooled client that the library advises, and the single connection. */
    private static void defaults() {
        try (var client = RedisClient.create(Sections.host(), Sections.port())) {
            equal(client.ping(), "PONG");
            equal(client.set("j:default", "1", new SetParams().ex(60)), "OK");
            equal(client.incrBy("j:default", 41), 42L);
            equal(client.ttl("j:default"), 60L);
            equal(client.del("j:default"), 1L);
            equal(client.get("j:default"), null);
        }
        try (var single = new Jedis(Sections.host(), Sections.port())) {
            equal(single.set("j:single", "1"), "OK");
            equal(single.get("j:single"), "1");
        }
    }

    private static void types(RedisProtocol protocol, String at) {
        try (var client = connect(protocol)) {
            for (var name : "hlszxg".split("")) {
                client.del(at + name);
            }
            equal(client.hset(at + "h", Map.of("a", "1", "b", "2")), 2L);
            equal(client.hgetAll(at + "h"), Map.of("a", "1", "b", "2"));
            equal(client.rpush(at + "l", "a", "b", "c"), 3L);
            equal(client.lrange(at + "l", 0, -1), List.of("a", "b", "c"));
            equal(client.sadd(at + "s", "a", "b"), 2L);
            equal(new TreeSet<>(client.smembers(at + "s")), set("a", "b"));
            equal(client.zadd(at + "z", Map.of("a", 1.5, "b", 2.0)), 2L);
            equal(client.zscore(at + "z", "a"), 1.5);
            equal(client.zrangeWithScores(at + "z", 0, -1),
                List.of(new Tuple("a", 1.5), new Tuple("b", 2.0)));
            client.xadd(at + "x", new StreamEntryID(1, 1), Map.of("f", "v"));
            equal(client.xrange(at + "x", "-", "+").get(0).getFields(), Map.of("f", "v"));
            equal(client.geoadd(at + "g", 13.4, 52.5, "here"), 1L);
            check(Math.abs(client.geopos(at + "g", "here").get(0).getLongitude() - 13.4) < 1e-4,
                "the longitude");
            byte[] binary = {0, -1, 13, 10, 36};
            client.set((at + "binary").getBytes(), binary);
            check(Arrays.equals(client.get((at + "binary").getBytes()), binary), "binary");
        }
    }

    private static void manyKeys(RedisProtocol protocol, String at) {
        try (var client = connect(protocol)) {
            var keys = Sections.keys(at + ":many:", 500);
            var pairs = new String[1000];
            Arrays.setAll(pairs, n -> n % 2 == 0 ? keys[n / 2] : Integer.toString(n / 2));
            equal(client.mset(pairs), "OK");
            var values = client.mget(keys);
            for (int n = 0; n < 500; n++) {
                equal(values.get(n), Integer.toString(n));
            }
            equal(client.exists(keys), 500L);
            equal(client.unlink(keys), 500L);
        }
    }

    private static void pipeline(RedisProtocol protocol, String at) {
        try (var client = connect(protocol)) {
            var pipeline = client.pipelined();
            for (int n = 0; n < 300; n++) {
                var key = at + ":p:" + n;
                pipeline.set(key, Integer.toString(n));
                pipeline.get(key);
                pipeline.mget(key, at + ":none");
            }
            var answers = pipeline.syncAndReturnAll();
            for (int n = 0; n < 300; n++) {
                equal(answers.get(3 * n), "OK");
                equal(answers.get(3 * n + 1), Integer.toString(n));
                equal(answers.get(3 * n + 2), Arrays.asList(Integer.toString(n), null));
            }
        }
    }

    private static void transaction(RedisProtocol protocol, String at) throws Exception {
        var a = "{" + at + "}a";
        try (var client = connect(protocol); var other = connect(protocol)) {
            client.del(a);
            try (var transaction = client.multi()) {
                transaction.set(a, "1");
                var sum = transaction.incr(a);
                transaction.get("{" + at + "}none");
                equal(transaction.exec(), Arrays.asList("OK", 2L, null));
                equal(sum.get(), 2L);
            }
            equal(client.watch(a), "OK");
            other.set(a, "other");
            try (var transaction = client.multi()) {
                transaction.set(a, "mine");
                equal(transaction.exec(), null);
            }
            equal(client.get(a), "other");
            try (var transaction = client.multi()) {
                transaction.set(a, "mine");
                equal(transaction.discard(), "OK");
            }
            equal(client.get(a), "other");
        }
    }

    private static void script(RedisProtocol protocol, String at) throws Exception {
        try (var client = connect(protocol)) {
            var code = "return {redis.call('incrby', KEYS[1], ARGV[1]), ARGV[1] * 2, KEYS[1]}";
            client.del(at + ":script");
            equal(client.eval(code, 1, at + ":script", "5"), List.of(5L, 10L, at + ":script"));
            var digest = client.scriptLoad(code);
            for (int n = 0; n < 10; n++) {
                client.del(at + ":" + n);
                equal(client.evalsha(digest, 1, at + ":" + n, "5"),
                    List.of(5L, 10L, at + ":" + n));
            }
            equal(client.scriptExists(digest, "0".repeat(40)), List.of(true, false));
            fails("NOSCRIPT", () -> client.evalsha("0".repeat(40), 1, "a"));
            equal(client.functionLoadReplace("#!lua name=" + at + "\nredis.register_function('" + at
                + "', function(keys, args) return args[1] end)"), at);
            for (int n = 0; n < 10; n++) {
                equal(client.fcall(at, List.of(at + ":" + n), List.of("x")), "x");
            }
            equal(client.functionDelete(at), "OK");
        }
    }

    private static void pubsub(RedisProtocol protocol, String at) throws Exception {
        List<String> heard = Sections.list();
        var listener = new JedisPubSub() {
            @Override
            public void onMessage(String channel, String message) {
                heard.add(channel + " " + message);
            }

            @Override
            public void onPMessage(String pattern, String channel, String message) {
                heard.add(pattern + " " + channel + " " + message);
            }
        };
        try (var publisher = connect(protocol); var subscriber = connect(protocol)) {
            var listening = CompletableFuture.runAsync(
                () -> subscriber.subscribe(listener, at + ":news", at + ":other"));
            waitUntil("subscribed", () -> listener.getSubscribedChannels() == 2);
            listener.psubscribe(at + ":n*");
            waitUntil("the pattern", () -> listener.getSubscribedChannels() == 3);
            equal(publisher.publish(at + ":news", "1"), 2L);
            equal(publisher.publish(at + ":other", "2"), 1L);
            equal(publisher.publish(at + ":nobody's", "3"), 1L);
            waitUntil("messages", () -> heard.size() == 4);
            equal(new TreeSet<>(heard), set(at + ":news 1", at + ":n* " + at + ":news 1",
                at + ":other 2", at + ":n* " + at + ":nobody's 3"));
            listener.unsubscribe();
            listener.punsubscribe();
            listening.get();
            equal(subscriber.get(at + ":none"), null);
        }
    }

    private static void blocking(RedisProtocol protocol, String at) throws Exception {
        try (var client = connect(protocol); var waiting = connect(protocol)) {
            client.del(at + ":queue");
            client.del(at + ":stream");
            var popped = CompletableFuture.supplyAsync(() -> waiting.blpop(20, at + ":queue"));
            equal(client.rpush(at + ":queue", "job"), 1L);
            equal(popped.get(), List.of(at + ":queue", "job"));
            equal(waiting.brpop(0.05, at + ":queue"), null);
            var read = CompletableFuture.supplyAsync(() -> waiting.xread(
                new XReadParams().block(20_000), Map.of(at + ":stream", new StreamEntryID(0))));
            client.xadd(at + ":stream", new StreamEntryID(1, 1), Map.of("f", "v"));
            var streams = read.get();
            equal(streams.get(0).getKey(), at + ":stream");
            equal(streams.get(0).getValue().get(0).getFields(), Map.of("f", "v"));
        }
    }

    private static void scan(RedisProtocol protocol, String at) {
        try (var client = connect(protocol)) {
            var keys = Sections.keys(at + ":scan:", 300);
            for (var key : keys) {
                client.set(key, "v");
            }
            var found = new TreeSet<String>();
            var cursor = ScanParams.SCAN_POINTER_START;
            do {
                ScanResult<String> part =
                    client.scan(cursor, new ScanParams().match(at + ":scan:*").count(20));
                found.addAll(part.getResult());
                cursor = part.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            equal(found, set(keys));
            equal(new TreeSet<>(client.keys(at + ":scan:*")), set(keys));
            check(client.dbSize() >= 300, "DBSIZE");
        }
    }

    private static void databases(RedisProtocol protocol, String at) {
        try (var zero = connect(protocol); var three = connect(protocol, 3)) {
            zero.set(at + ":db", "0");
            three.set(at + ":db", "3");
            equal(zero.get(at + ":db"), "0");
            equal(three.get(at + ":db"), "3");
            equal(zero.select(3), "OK");
            equal(zero.get(at + ":db"), "3");
        }
    }

    private static void errors(RedisProtocol protocol, String at) throws Exception {
        try (var client = connect(protocol)) {
            client.set(at + ":text", "abc");
            fails("not an integer", () -> client.incr(at + ":text"));
            fails("WRONGTYPE", () -> client.lpush(at + ":text", "x"));
            fails("unknown command 'NOSUCH'",
                () -> client.sendCommand(() -> "NOSUCH".getBytes(), "a"));
            equal(client.get(at + ":text"), "abc");
        }
    }
}
