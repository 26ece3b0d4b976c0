package cashew;

import static cashew.Sections.equal;
import static cashew.Sections.set;
import static cashew.Sections.waitUntil;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.JedisShardedPubSub;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.util.JedisClusterCRC16;

/** Jedis as a client of Redis Cluster: https://github.com/redis/jedis */
public final class JedisClusterClient {
    private interface OneProtocol {
        void run(JedisCluster client, String at) throws Exception;
    }

    private static JedisCluster connect(RedisProtocol protocol) {
        var config = DefaultJedisClientConfig.builder().protocol(protocol)
            .timeoutMillis(Sections.PATIENCE_MS).blockingSocketTimeoutMillis(Sections.PATIENCE_MS)
            .build();
        return new JedisCluster(Set.of(new HostAndPort(Sections.host(), Sections.port())), config, 1);
    }

    private static Sections.Section both(OneProtocol section) {
        return () -> {
            for (var protocol : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
                try (var client = connect(protocol)) {
                    section.run(client, protocol == RedisProtocol.RESP2 ? "jc2" : "jc3");
                }
            }
        };
    }

    public static void main(String[] chosen) {
        new Sections()
            .add("topology", both(JedisClusterClient::topology))
            .add("types", both(JedisClusterClient::types))
            .add("manyKeys", both(JedisClusterClient::manyKeys))
            .add("pipeline", both(JedisClusterClient::pipeline))
            .add("transaction", both(JedisClusterClient::transaction))
            .add("script", both(JedisClusterClient::script))
            .add("pubsub", both(JedisClusterClient::pubsub))
            .add("sharded", both(JedisClusterClient::sharded))
            .add("blocking", both(JedisClusterClient::blocking))
            .add("scan", both(JedisClusterClient::scan))
            .run(chosen);
    }

    private static void topology(JedisCluster client, String at) {
        equal(new TreeSet<>(client.getClusterNodes().keySet()), Sections.nodes());
    }

    private static void types(JedisCluster client, String at) {
        client.del(at + "h");
        equal(client.hset(at + "h", Map.of("a", "1", "b", "2")), 2L);
        equal(client.hgetAll(at + "h"), Map.of("a", "1", "b", "2"));
        for (int n = 0; n < 200; n++) {
            equal(client.set(at + n, Integer.toString(n)), "OK");
        }
        for (int n = 0; n < 200; n++) {
            equal(client.get(at + n), Integer.toString(n));
        }
        equal(client.get(at + "none"), null);
    }

    private static void manyKeys(JedisCluster client, String at) {
        var keys = Sections.keys("{" + at + "}:many:", 500);
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

    private static void pipeline(JedisCluster client, String at) {
        var answers = new ArrayList<Response<String>>();
        try (var pipeline = client.pipelined()) {
            for (int n = 0; n < 300; n++) {
                pipeline.set(at + ":p:" + n, Integer.toString(n));
                answers.add(pipeline.get(at + ":p:" + n));
            }
            pipeline.sync();
        }
        for (int n = 0; n < 300; n++) {
            equal(answers.get(n).get(), Integer.toString(n));
        }
    }

    private static void transaction(JedisCluster client, String at) throws Exception {
        var a = "{" + at + "}a";
        client.del(a);
        // JedisCluster has none of its own: they are at the node of the key.
        try (var node = new Jedis(client.getConnectionFromSlot(JedisClusterCRC16.getSlot(a)));
                var transaction = node.multi()) {
            transaction.set(a, "1");
            transaction.incr(a);
            transaction.get("{" + at + "}none");
            equal(transaction.exec(), Arrays.asList("OK", 2L, null));
        }
    }

    private static void script(JedisCluster client, String at) {
        var code = "return {redis.call('incrby', KEYS[1], ARGV[1]), ARGV[1] * 2, KEYS[1]}";
        client.del(at + ":script");
        equal(client.eval(code, 1, at + ":script", "5"), List.of(5L, 10L, at + ":script"));
        var digest = client.scriptLoad(code, at + ":script");
        equal(client.evalsha(digest, 1, at + ":script", "5"), List.of(10L, 10L, at + ":script"));
    }

    private static void pubsub(JedisCluster client, String at) throws Exception {
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
        var listening = CompletableFuture.runAsync(() -> client.subscribe(listener, at + ":news"));
        waitUntil("subscribed", () -> listener.getSubscribedChannels() == 1);
        listener.psubscribe(at + ":n*");
        waitUntil("the pattern", () -> listener.getSubscribedChannels() == 2);
        equal(client.publish(at + ":news", "1"), 2L);
        equal(client.publish(at + ":nobody's", "2"), 1L);
        waitUntil("messages", () -> heard.size() == 3);
        equal(new TreeSet<>(heard), set(at + ":news 1", at + ":n* " + at + ":news 1",
            at + ":n* " + at + ":nobody's 2"));
        listener.unsubscribe();
        listener.punsubscribe();
        listening.get();
    }

    private static void sharded(JedisCluster client, String at) throws Exception {
        List<String> heard = Sections.list();
        var listener = new JedisShardedPubSub() {
            @Override
            public void onSMessage(String channel, String message) {
                heard.add(channel + " " + message);
            }
        };
        var listening = CompletableFuture.runAsync(() -> client.ssubscribe(listener, at + ":shard"));
        waitUntil("subscribed", () -> listener.getSubscribedChannels() == 1);
        equal(client.spublish(at + ":shard", "1"), 1L);
        waitUntil("a message", () -> heard.size() == 1);
        equal(heard.get(0), at + ":shard 1");
        listener.sunsubscribe();
        listening.get();
    }

    private static void blocking(JedisCluster client, String at) throws Exception {
        client.del(at + ":queue");
        var popped = CompletableFuture.supplyAsync(() -> client.blpop(20, at + ":queue"));
        equal(client.rpush(at + ":queue", "job"), 1L);
        equal(popped.get(), List.of(at + ":queue", "job"));
    }

    /** Every gateway has all keys, so that one of them tells of all. */
    private static void scan(JedisCluster client, String at) {
        var keys = Sections.keys(at + ":scan:", 300);
        for (var key : keys) {
            client.set(key, "v");
        }
        for (var node : client.getClusterNodes().values()) {
            var found = new TreeSet<String>();
            try (var one = new Jedis(node.getResource())) {
                var cursor = ScanParams.SCAN_POINTER_START;
                do {
                    var part = one.scan(cursor, new ScanParams().match(at + ":scan:*").count(20));
                    found.addAll(part.getResult());
                    cursor = part.getCursor();
                } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            }
            equal(found, set(keys));
        }
    }
}
