package cashew;

import static cashew.Sections.check;
import static cashew.Sections.equal;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.CASResponse;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;

/** spymemcached, in text and binary: https://github.com/couchbase/spymemcached */
public final class SpymemcachedClient {
    private interface WithClient {
        void run(MemcachedClient client) throws Exception;
    }

    private static Sections.Section with(Protocol protocol, WithClient section) {
        return () -> {
            var factory = new ConnectionFactoryBuilder().setProtocol(protocol)
                .setOpTimeout(Sections.PATIENCE_MS).build();
            var client = new MemcachedClient(factory,
                AddrUtil.getAddresses(String.join(":", Sections.address("CASHEW_MEMCACHED"))));
            is(client.flush(), true);
            section.run(client);
            client.shutdown(Sections.PATIENCE_MS, TimeUnit.MILLISECONDS);
        };
    }

    private static void is(Future<?> got, Object wanted) throws Exception {
        equal(got.get(Sections.PATIENCE_MS, TimeUnit.MILLISECONDS), wanted);
    }

    public static void main(String[] chosen) {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SLF4JLogger");
        var sections = new Sections();
        for (var protocol : List.of(Protocol.TEXT, Protocol.BINARY)) {
            sections
                .add("storage-" + protocol, with(protocol, SpymemcachedClient::storage))
                .add("unique-" + protocol, with(protocol, SpymemcachedClient::unique))
                .add("many-" + protocol, with(protocol, SpymemcachedClient::many))
                .add("large-" + protocol, with(protocol, SpymemcachedClient::large));
        }
        sections.add("get-and-touch", with(Protocol.BINARY, SpymemcachedClient::getAndTouch));
        sections.run(chosen);
    }

    private static void storage(MemcachedClient client) throws Exception {
        is(client.set("s:a", 100, "1"), true);
        equal(client.get("s:a"), "1");
        equal(client.get("s:none"), null);
        is(client.add("s:a", 0, "2"), false);
        is(client.add("s:b", 0, "x"), true);
        is(client.replace("s:none", 0, "2"), false);
        is(client.append("s:b", "y"), true);
        is(client.prepend("s:b", "w"), true);
        equal(client.get("s:b"), "wxy");
        is(client.touch("s:b", 100), true);
        is(client.delete("s:b"), true);
        is(client.delete("s:b"), false);
        equal(client.incr("s:n", 1, 41), 41L);
        equal(client.incr("s:n", 1), 42L);
        equal(client.decr("s:n", 40), 2L);
        equal(client.incr("s:none", 1), -1L);
        is(client.set("s:e", 0, ""), true);
        equal(client.get("s:e"), "");
    }

    /** Not to be had in text. */
    private static void getAndTouch(MemcachedClient client) throws Exception {
        is(client.set("s:g", 0, "x"), true);
        equal(client.getAndTouch("s:g", 100).getValue(), "x");
        equal(client.getAndTouch("s:none", 100), null);
    }

    private static void unique(MemcachedClient client) throws Exception {
        is(client.set("s:c", 0, "1"), true);
        var got = client.gets("s:c");
        equal(got.getValue(), "1");
        equal(client.cas("s:c", got.getCas(), "2"), CASResponse.OK);
        equal(client.cas("s:c", got.getCas(), "3"), CASResponse.EXISTS);
        equal(client.cas("s:none", 1, "3"), CASResponse.NOT_FOUND);
        equal(client.get("s:c"), "2");
    }

    /** Sent without a wait between them, and retrieved in quiet batches. */
    private static void many(MemcachedClient client) throws Exception {
        var wanted = new HashMap<String, Object>();
        var stored = new ArrayList<Future<Boolean>>();
        for (var key : Sections.keys("s:many:", 500)) {
            wanted.put(key, key);
            stored.add(client.set(key, 0, key));
        }
        for (var one : stored) {
            is(one, true);
        }
        var asked = new ArrayList<>(wanted.keySet());
        asked.add("s:many:none");
        equal(client.getBulk(asked), wanted);
        equal(client.getVersions().size(), 1);
        var stats = client.getStats().values().iterator().next();
        check(Integer.parseInt(stats.get("curr_items")) >= 500, stats.toString());
        is(client.flush(), true);
        equal(client.get("s:many:1"), null);
    }

    private static void large(MemcachedClient client) throws Exception {
        var value = new byte[900_000];
        new java.util.Random(1).nextBytes(value);
        is(client.set("s:large", 0, value), true);
        check(Arrays.equals((byte[]) client.get("s:large"), value), "the value came back changed");
    }
}
