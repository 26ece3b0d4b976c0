package cashew;

import static cashew.Sections.equal;
import static cashew.Sections.set;
import static cashew.Sections.waitUntil;

import io.lettuce.core.KeyValue;
import io.lettuce.core.ReadFrom;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

/** Lettuce as a client of Redis Cluster: https://github.com/redis/lettuce */
public final class LettuceClusterClient {
    private interface OneProtocol {
        void run(RedisClusterClient client, String at) throws Exception;
    }

    private static Sections.Section both(OneProtocol section) {
        return () -> {
            for (var protocol : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
                var address = RedisURI.builder().withHost(Sections.host()).withPort(Sections.port())
                    .withTimeout(Duration.ofMillis(Sections.PATIENCE_MS)).build();
                try (var client = RedisClusterClient.create(address)) {
                    client.setOptions(ClusterClientOptions.builder().protocolVersion(protocol)
                        .maxRedirects(0).build());
                    section.run(client, protocol == ProtocolVersion.RESP2 ? "lc2" : "lc3");
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
            .add("topology", both(LettuceClusterClient::topology))
            .add("types", both(LettuceClusterClient::types))
            .add("manyKeys", both(LettuceClusterClient::manyKeys))
            .add("pipeline", both(LettuceClusterClient::pipeline))
            .add("transaction", both(LettuceClusterClient::transaction))
            .add("script", both(LettuceClusterClient::script))
            .add("pubsub", both(LettuceClusterClient::pubsub))
            .add("blocking", both(LettuceClusterClient::blocking))
            .add("scan", both(LettuceClusterClient::scan))
            .run(chosen);
    }

    /** As CLUSTER NODES tells it, where each gateway has to find itself. */
    private static void topology(RedisClusterClient client, String at) {
        client.refreshPartitions();
        var found = new TreeSet<String>();
        int slots = 0;
        for (var node : client.getPartitions()) {
            found.add(node.getUri().getHost() + ":" + node.getUri().getPort());
            slots += node.getSlots().size();
        }
        equal(found, Sections.nodes());
        equal(slots, 16384);
    }

    private static void types(RedisClusterClient client, String at) {
        try (var connection = client.connect()) {
            connection.setReadFrom(ReadFrom.ANY);
            var redis = connection.sync();
            redis.del(at + "h");
            equal(redis.hset(at + "h", Map.of("a", "1", "b", "2")), 2L);
            equal(redis.hgetall(at + "h"), Map.of("a", "1", "b", "2"));
            for (int n = 0; n < 200; n++) {
                equal(redis.set(at + n, Integer.toString(n)), "OK");
            }
            for (int n = 0; n < 200; n++) {
                equal(redis.get(at + n), Integer.toString(n));
            }
            equal(redis.get(at + "none"), null);
        }
    }

    /** Of many slots: Lettuce splits them, by slot. */
    private static void manyKeys(RedisClusterClient client, String at) {
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

    private static void pipeline(RedisClusterClient client, String at) throws Exception {
        try (var connection = client.connect()) {
            var redis = connection.async();
            var gets = new ArrayList<RedisFuture<String>>();
            for (int n = 0; n < 300; n++) {
                redis.set(at + ":p:" + n, Integer.toString(n));
                gets.add(redis.get(at + ":p:" + n));
            }
            for (int n = 0; n < 300; n++) {
                equal(answer(gets.get(n)), Integer.toString(n));
            }
        }
    }

    private static void transaction(RedisClusterClient client, String at) throws Exception {
        var a = "{" + at + "}a";
        try (var connection = client.connect()) {
            connection.sync().del(a);
            var node = connection.getConnection(client.getPartitions()
                .getPartitionBySlot(connection.sync().clusterKeyslot(a).intValue()).getNodeId());
            var redis = node.sync();
            equal(redis.multi(), "OK");
            redis.set(a, "1");
            redis.incr(a);
            var done = redis.exec();
            equal(done.get(0), "OK");
            equal(done.get(1), 2L);
        }
    }

    private static void script(RedisClusterClient client, String at) {
        try (var connection = client.connect()) {
            var redis = connection.sync();
            var code = "return {redis.call('incrby', KEYS[1], ARGV[1]), ARGV[1] * 2, KEYS[1]}";
            var key = at + ":script";
            redis.del(key);
            List<Object> got = redis.eval(code, ScriptOutputType.MULTI, new String[] {key}, "5");
            equal(got, List.of(5L, 10L, key));
            var digest = redis.scriptLoad(code);
            got = redis.evalsha(digest, ScriptOutputType.MULTI, new String[] {key}, "5");
            equal(got, List.of(10L, 10L, key));
        }
    }

    private static void pubsub(RedisClusterClient client, String at) throws Exception {
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
            subscriber.sync().subscribe(at + ":news");
            subscriber.sync().psubscribe(at + ":n*");
            subscriber.sync().ssubscribe(at + ":shard");
            equal(redis.publish(at + ":news", "1"), 2L);
            equal(redis.publish(at + ":nobody's", "2"), 1L);
            equal(redis.spublish(at + ":shard", "3"), 1L);
            waitUntil("messages", () -> heard.size() == 4);
            equal(new TreeSet<>(heard), set(at + ":news 1", at + ":n* " + at + ":news 1",
                at + ":n* " + at + ":nobody's 2", "shard " + at + ":shard 3"));
        }
    }

    private static void blocking(RedisClusterClient client, String at) throws Exception {
        try (var connection = client.connect(); var waiting = client.connect()) {
            var redis = connection.sync();
            redis.del(at + ":queue");
            var popped = waiting.async().blpop(20, at + ":queue");
            equal(redis.rpush(at + ":queue", "job"), 1L);
            equal(answer(popped), KeyValue.just(at + ":queue", "job"));
        }
    }

    /** Lettuce scans one node after the other, each of which has all keys. */
    private static void scan(RedisClusterClient client, String at) {
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
        }
    }
}
