package cashew;

import static cashew.Sections.check;
import static cashew.Sections.equal;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import net.rubyeye.xmemcached.GetsResponse;
import net.rubyeye.xmemcached.MemcachedClient;
import net.rubyeye.xmemcached.XMemcachedClientBuilder;
import net.rubyeye.xmemcached.command.BinaryCommandFactory;
import net.rubyeye.xmemcached.command.TextCommandFactory;

/** Xmemcached, in text and binary: https://github.com/killme2008/xmemcached */
public final class XmemcachedClient {
    private interface WithClient {
        void run(MemcachedClient client) throws Exception;
    }

    private static Sections.Section with(boolean isBinary, WithClient section) {
        return () -> {
            var builder = new XMemcachedClientBuilder(
                String.join(":", Sections.address("CASHEW_MEMCACHED")));
            builder.setCommandFactory(isBinary ? new BinaryCommandFactory() : new TextCommandFactory());
            builder.setOpTimeout(Sections.PATIENCE_MS);
            builder.setConnectTimeout(Sections.PATIENCE_MS);
            var client = builder.build();
            client.setEnableHeartBeat(false);
            client.flushAll();
            section.run(client);
            client.shutdown();
        };
    }

    public static void main(String[] chosen) {
        var sections = new Sections();
        for (var isBinary : List.of(false, true)) {
            var protocol = isBinary ? "-binary" : "-text";
            sections
                .add("storage" + protocol, with(isBinary, XmemcachedClient::storage))
                .add("unique" + protocol, with(isBinary, XmemcachedClient::unique))
                .add("many" + protocol, with(isBinary, XmemcachedClient::many))
                .add("large" + protocol, with(isBinary, XmemcachedClient::large));
        }
        sections.run(chosen);
    }

    private static void storage(MemcachedClient client) throws Exception {
        equal(client.set("x:a", 100, "1"), true);
        equal(client.get("x:a"), "1");
        equal(client.get("x:none"), null);
        equal(client.add("x:a", 0, "2"), false);
        equal(client.add("x:b", 0, "x"), true);
        equal(client.replace("x:none", 0, "2"), false);
        equal(client.append("x:b", "y"), true);
        equal(client.prepend("x:b", "w"), true);
        equal(client.get("x:b"), "wxy");
        equal(client.touch("x:b", 100), true);
        equal(client.delete("x:b"), true);
        equal(client.delete("x:b"), false);
        equal(client.incr("x:n", 1, 41), 41L);
        equal(client.incr("x:n", 1), 42L);
        equal(client.decr("x:n", 40), 2L);
        equal(client.set("x:e", 0, ""), true);
        equal(client.get("x:e"), "");
        client.setWithNoReply("x:quiet", 0, "1");
        equal(client.get("x:quiet"), "1");
        client.deleteWithNoReply("x:quiet");
        equal(client.get("x:quiet"), null);
    }

    private static void unique(MemcachedClient client) throws Exception {
        equal(client.set("x:c", 0, "1"), true);
        GetsResponse<String> got = client.gets("x:c");
        equal(got.getValue(), "1");
        equal(client.cas("x:c", 0, "2", got.getCas()), true);
        equal(client.cas("x:c", 0, "3", got.getCas()), false);
        equal(client.get("x:c"), "2");
    }

    private static void many(MemcachedClient client) throws Exception {
        var wanted = new HashMap<String, Object>();
        for (var key : Sections.keys("x:many:", 500)) {
            wanted.put(key, key);
            equal(client.set(key, 0, key), true);
        }
        var asked = new java.util.ArrayList<>(wanted.keySet());
        asked.add("x:many:none");
        equal(client.get(asked), wanted);
        equal(client.gets(asked).size(), 500);
        equal(client.getVersions().size(), 1);
        var stats = client.getStats().values().iterator().next();
        check(Integer.parseInt(stats.get("curr_items")) >= 500, stats.toString());
        client.flushAll();
        equal(client.get("x:many:1"), null);
    }

    private static void large(MemcachedClient client) throws Exception {
        var value = new byte[900_000];
        new java.util.Random(1).nextBytes(value);
        equal(client.set("x:large", 0, value), true);
        check(Arrays.equals(client.<byte[]>get("x:large"), value), "the value came back changed");
    }
}
