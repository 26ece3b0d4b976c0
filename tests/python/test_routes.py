"""Routes: one port in front of several pools."""

import base64
import signal

from harness import HOST, server_lines, wait_until


def backend(servers, redis=True, **options):
    """A pool that only routes lead to."""
    head = {"redis": True} if redis else {}
    return {"listen": None, **head, "servers": server_lines(servers), **options}


def route(tree, redis=True, **options):
    head = {"redis": True} if redis else {}
    return {**head, "route": tree, **options}


class Pools:
    """Pools of a server each behind one route."""

    def __init__(self, place, tree, names="ab", redis=True, options=None, **settings):
        make = place.redis if redis else place.memcached
        self.servers = {name: make() for name in names}
        options = options or {}
        pools = {name: backend([server], redis, **options) for name, server in self.servers.items()}
        self.gateway = place.cashew({"alpha": route(tree, redis), **pools},
                                    {"worker_processes": 1, **settings})

    def __getitem__(self, name):
        return self.servers[name]

    def call(self, *words):
        return self.gateway.call(*words)

    def configure(self, **changes):
        """Reloads with other options of some pools; with `None` without the pool."""
        pools = {**self.gateway.pools, **{name: {} for name in changes if name not in self.gateway.pools}}
        for name, options in changes.items():
            pools[name] = options if options is None else {**pools[name], **options}
        self.gateway.configure({name: {"listen": None, **options} for name, options in pools.items()
                                if options is not None})
        self.gateway.reload()

    def stat(self, name):
        return self.gateway.stats()["alpha"][name]


def test_the_longest_prefix_decides(place):
    pools = Pools(place, "{prefix: {'': a, 'b:': b, 'b:c:': c}}", "abc")
    keys = {"x": "a", "b": "a", "b:": "b", "b:x": "b", "b:c": "b", "b:c:": "c", "b:c:x": "c"}
    with pools.gateway.connect() as conn:
        for key in keys:
            assert conn.call("SET", key, key) == "OK"
        for key, name in keys.items():
            assert conn.call("GET", key) == key.encode()
            for other, server in pools.servers.items():
                assert server.call("EXISTS", key) == (other == name), (key, other)
        # Requests of several keys are put together.
        assert conn.call("MGET", *keys) == [key.encode() for key in keys]
        assert conn.call("EXISTS", *keys, "none") == len(keys)
        assert conn.call("MSET", "x", "1", "b:x", "2", "b:c:x", "3") == "OK"
        assert conn.call("MGET", "b:c:x", "x", "b:x") == [b"3", b"1", b"2"]
        assert conn.call("DEL", "x", "b:x", "b:c:x") == 3
        # A pipeline keeps its order.
        for n in range(200):
            conn.send(b"*3\r\n$6\r\nAPPEND\r\n$%d\r\n%s\r\n$1\r\n.\r\n"
                      % ((1, b"y") if n % 2 else (3, b"b:y")))
        assert [conn.reply() for _ in range(200)] == [1 + n // 2 for n in range(200)]
    assert pools.gateway.stats()["alpha"]["forward_error"] == 0


def test_what_needs_one_pool_is_refused_over_two(place):
    pools = Pools(place, "{prefix: {'': a, 'b:': b}}")
    with pools.gateway.connect() as conn:
        assert "CROSSSLOT" in conn.error("RENAME", "x", "b:x")
        assert "CROSSSLOT" in conn.error("SINTER", "x", "b:x")
        assert "2 pools" in conn.error("DBSIZE")
        assert "2 pools" in conn.error("FLUSHALL")
        assert "2 pools" in conn.error("SCAN", "0")
        assert conn.call("PING") == "PONG"
        # A transaction is where its first key is.
        assert conn.call("MULTI") == "OK"
        assert conn.call("SET", "b:x", "1") == "QUEUED"
        assert "CROSSSLOT" in conn.error("SET", "x", "1")
        assert "EXECABORT" in conn.error("EXEC")
        assert conn.call("MULTI") == "OK"
        assert conn.call("SET", "b:x", "1") == "QUEUED"
        assert conn.call("INCR", "b:x") == "QUEUED"
        assert conn.call("EXEC") == ["OK", 2]
        assert conn.call("WATCH", "b:x") == "OK"
        assert conn.call("GET", "x") is None
        assert "CROSSSLOT" in conn.error("WATCH", "x")
        assert conn.call("MULTI") == "OK"
        assert conn.call("INCR", "b:x") == "QUEUED"
        assert pools["b"].call("SET", "b:x", "7") == "OK"
        assert conn.call("EXEC") is None
        assert conn.call("LPUSH", "b:list", "1") == 1
        assert conn.call("BLPOP", "b:list", "1") == [b"b:list", b"1"]
        with pools.gateway.connect() as other:
            conn.send(b"*3\r\n$5\r\nBLPOP\r\n$6\r\nb:list\r\n$1\r\n5\r\n")
            wait_until(lambda: pools["b"].call("INFO", "clients").count(b"blocked_clients:1"), "it waits")
            assert other.call("RPUSH", "b:list", "2") == 1
            assert conn.reply() == [b"b:list", b"2"]


def test_databases_and_dialects_hold_in_all_pools(place):
    pools = Pools(place, "{prefix: {'': a, 'b:': b}}")
    with pools.gateway.connect() as conn:
        for database in (3, 0):
            assert conn.call("SELECT", str(database)) == "OK"
            conn.call("MSET", "x", str(database), "b:x", str(database))
        assert conn.call("HELLO", "3")
        assert conn.call("SELECT", "3") == "OK"
        assert conn.call("MGET", "x", "b:x") == [b"3", b"3"]
        assert conn.call("HSET", "b:h", "f", "v") == 1
        assert conn.call("HGETALL", "b:h") == {b"f": b"v"}
        assert conn.call("SELECT", "0") == "OK"
        assert conn.call("GET", "b:x") == b"0" and conn.call("GET", "x") == b"0"


def test_prefixes_are_stripped_and_rewritten(place):
    tree = "{prefix: {'': a, 'tmp:': {strip: true, to: b}, 'old:': {rewrite: 'new:', to: b}}}"
    pools = Pools(place, tree)
    with pools.gateway.connect() as conn:
        assert conn.call("SET", "tmp:x", "1") == "OK"
        assert conn.call("INCRBY", "old:y", "5") == 5
        assert conn.call("MSET", "tmp:z", "7", "x", "8") == "OK"
        assert conn.call("MGET", "x", "tmp:z", "old:y", "none") == [b"8", b"7", b"5", None]
        assert sorted(pools["b"].call("KEYS", "*")) == [b"new:y", b"x", b"z"]
        assert pools["a"].call("KEYS", "*") == [b"x"]
        assert conn.call("DEL", "tmp:x", "x") == 2
        assert "another name" in conn.error("BLPOP", "tmp:l", "1")


def test_failover_asks_the_next_pool(place):
    pools = Pools(place, "{failover: [a, b], ttl: 30s}")
    with pools.gateway.connect() as conn:
        assert conn.call("SET", "k", "1") == "OK"
        pools["a"].stop()
        wait_until(lambda: conn.call("SET", "k", "2") == "OK", "the next takes it")
        assert conn.call("GET", "k") == b"2"
        assert conn.call("INCR", "k") == 3
        assert 25000 < pools["b"].call("PTTL", "k") <= 30000
        assert conn.call("MSET", "x", "1", "y", "2") == "OK"
        assert conn.call("MGET", "x", "y", "z") == [b"1", b"2", None]
        assert pools.stat("route_failovers") > 5
        pools["a"].start()
        wait_until(lambda: conn.call("GET", "k") in (None, b"1"), "the first is back")


def test_what_may_have_run_is_not_run_elsewhere(place):
    pools = Pools(place, "{failover: [a, b]}", options={"timeout": 300})
    with pools.gateway.connect() as conn:
        assert conn.call("SET", "k", "1") == "OK"
        pools["a"].process.signal(signal.SIGSTOP)
        try:
            assert "timed out" in conn.error("INCR", "k")
            assert pools["b"].call("EXISTS", "k") == 0
        finally:
            pools["a"].process.signal(signal.SIGCONT)


def test_a_miss_is_looked_for_elsewhere_and_copied_to_the_cold_pool(place):
    pools = Pools(place, "{prefix: {'m:': {miss_failover: [a, b]}, '': {warm_up: {cold: a, warm: b}}}}")
    with pools.gateway.connect() as conn:
        pools["b"].call("SET", "m:x", "1")
        assert conn.call("GET", "m:x") == b"1"
        assert pools["a"].call("EXISTS", "m:x") == 0
        pools["b"].call("SET", "x", "1", "PX", "50000")
        pools["b"].call("RPUSH", "l", "1", "2")
        assert conn.call("GET", "x") == b"1"
        assert conn.call("LRANGE", "l", "0", "-1") == [b"1", b"2"]
        wait_until(lambda: pools["a"].call("EXISTS", "x", "l") == 2, "they are copied")
        assert 40000 < pools["a"].call("PTTL", "x") <= 50000 and pools["a"].call("TTL", "l") == -1
        assert conn.call("GET", "none") is None
        assert conn.call("SET", "new", "1") == "OK" and pools["b"].call("EXISTS", "new") == 0
        assert pools.stat("warm_up_fills") == 2


def test_all_children_are_asked(place):
    tree = ("{prefix: {'s:': {all_sync: [a, b, c]}, 'y:': {all_async: [a, b, c]}, 'm:': {all_majority: [a, b, c]},"
            " 'f:': {all_fastest: [a, b, c]}, 'i:': {all_initial: [a, b, c]}}}")
    pools = Pools(place, tree, "abc")
    with pools.gateway.connect() as conn:
        for kind in "symfi":
            assert conn.call("SET", f"{kind}:k", "1") == "OK"
            for server in pools.servers.values():
                wait_until(lambda: server.call("GET", f"{kind}:k") == b"1", "all have it")
            assert conn.call("GET", f"{kind}:k") == b"1"
            # What must run once runs at the first.
            conn.call("INCR", f"{kind}:n")
            wait_until(lambda: pools["a"].call("GET", f"{kind}:n") == b"1", "the first has it")
            assert pools["b"].call("EXISTS", f"{kind}:n") == 0
        for name in "bc":
            pools[name].call("SET", "m:k", "2")
        assert conn.call("GET", "m:k") == b"2"
        pools["c"].call("SET", "m:k", "3")
        assert "no majority" in conn.error("GET", "m:k")
        pools["b"].call("DEL", "s:k")
        assert conn.call("GET", "s:k") is None
        pools["c"].stop()
        wait_until(lambda: "refused" in conn.error("SET", "s:k", "3"), "one is gone")
        assert conn.call("SET", "f:k", "3") == "OK" and conn.call("SET", "i:k", "3") == "OK"
        assert conn.call("SET", "m:k", "3") == "OK"


def test_limits(place):
    tree = "{prefix: {'l:': {limit: {to: a, rate: 10, burst: 5}}, 'o:': {outstanding: {to: a, max: 3}}}}"
    pools = Pools(place, tree, "a")
    with pools.gateway.connect() as conn:
        for _ in range(20):
            conn.send(b"*2\r\n$3\r\nGET\r\n$3\r\nl:x\r\n")
        replies = [conn.raw_reply() for _ in range(20)]
        assert replies.count(b"$-1\r\n") in (5, 6, 7)
        assert all(b"overloaded" in reply for reply in replies if reply != b"$-1\r\n")
        conn.send(b"*2\r\n$3\r\nGET\r\n$3\r\no:x\r\n" * 10)
        replies = [conn.raw_reply() for _ in range(10)]
        assert replies.count(b"$-1\r\n") == 3
        assert conn.call("GET", "o:x") is None
        assert pools.stat("route_refused") >= 20


def test_a_shadow_is_asked_and_compared(place):
    tree = "{shadow: {to: a, shadow: b, share: 100%, compare: true, outstanding: 100}}"
    pools = Pools(place, tree)
    with pools.gateway.connect() as conn:
        assert conn.call("SET", "k", "1") == "OK"
        wait_until(lambda: pools["b"].call("GET", "k") == b"1", "the shadow has it")
        assert conn.call("GET", "k") == b"1"
        wait_until(lambda: pools.stat("shadow_sent") == 2, "both were sent")
        assert pools.stat("shadow_differs") == 0
        pools["b"].call("SET", "k", "2")
        assert conn.call("GET", "k") == b"1"
        wait_until(lambda: pools.stat("shadow_differs") == 1, "it differs")
        pools["b"].stop()
        for _ in range(50):
            assert conn.call("GET", "k") == b"1"


def test_keys_migrate_by_share(place):
    tree = "{migrate: {from: a, to: b, share: 30%, dual_write: true, read_other: true}}"
    pools = Pools(place, tree)
    keys = [f"key:{n}" for n in range(400)]
    with pools.gateway.connect() as conn:
        for key in keys:
            pools["a"].call("SET", key, "old")
        assert all(conn.call("GET", key) == b"old" for key in keys)
        for key in keys[:200]:
            assert conn.call("SET", key, "new") == "OK"
        assert pools["b"].call("EXISTS", *keys[:200]) == 200
        assert pools["a"].call("MGET", *keys[:200]) == [b"new"] * 200
        assert all(conn.call("GET", key) == (b"new" if n < 200 else b"old") for n, key in enumerate(keys))
        # What may not run twice is never older at the other one.
        assert conn.call("APPEND", keys[0], "!") == 4
        values = [server.call("GET", keys[0]) for server in pools.servers.values()]
        assert sorted(values, key=str) == [None, b"new!"] or values == [b"new!", None]


def test_copies_of_hot_keys(place):
    pools = Pools(place, "{prefix: {'hot': {key_split: {to: a, copies: 4}}, '': a}}", "a")
    with pools.gateway.connect() as conn:
        assert conn.call("SET", "hot", "1") == "OK"
        assert sorted(pools["a"].call("KEYS", "*")) == [b"hot", b"hot::1", b"hot::2", b"hot::3"]
        assert {conn.call("GET", "hot") for _ in range(50)} == {b"1"}
        assert conn.call("INCR", "hot") == 2
        assert {conn.call("GET", "hot") for _ in range(50)} == {b"2"}
        assert conn.call("DEL", "hot") == 1 and pools["a"].call("DBSIZE") == 0


def test_reload_changes_the_tree_under_load(place):
    pools = Pools(place, "{prefix: {'': a, 'b:': b}}")
    gateway = pools.gateway
    with gateway.connect() as conn:
        conn.call("SET", "b:x", "1")
        pools.configure(alpha={"route": "{prefix: {'': b, 'b:': a}}"})
        assert conn.call("GET", "b:x") is None
        assert conn.call("SET", "b:x", "2") == "OK" and pools["a"].call("GET", "b:x") == b"2"
        assert conn.call("PING") == "PONG"
        # The pools may stand in another order, and others come and go.
        pools.configure(zz=gateway.pools["b"], alpha={"route": "{prefix: {'': zz, 'b:': a}}"}, b=None)
        assert conn.call("GET", "b:x") == b"2"
        assert conn.call("SET", "y", "2") == "OK" and pools["b"].call("GET", "y") == b"2"


def test_a_request_that_is_asked_of_several_outlives_a_reload_that_takes_pools_away(place):
    pools = Pools(place, "{prefix: {'f:': {failover: [a, b]}, 's:': {shadow: {to: b, shadow: a, share: 100%}}, '': b,"
                  " '1': {all_sync: [c, d, e, g]}}}", "cdegab", options={"timeout": 20000}, reload_drain_timeout=200)
    gateway = pools.gateway
    with gateway.connect() as conn, gateway.connect() as other:
        assert conn.call("SET", "f:k", "1") == "OK"
        pools["a"].process.signal(signal.SIGSTOP)
        try:
            conn.send(b"*2\r\n$3\r\nGET\r\n$3\r\nf:k\r\n")
            assert other.call("SET", "s:k", "1") == "OK"
            pools.configure(c=None, d=None, e=None, g=None, alpha={"route": "{prefix: {'f:': {failover: [a, b]}, '': b}}"})
        finally:
            pools["a"].process.signal(signal.SIGCONT)
        assert conn.reply() == b"1"
        assert conn.call("GET", "f:k") == b"1" and other.call("GET", "s:k") == b"1"
        # A pool that somebody still waits for may go, too.
        pools["a"].process.signal(signal.SIGSTOP)
        try:
            conn.send(b"*2\r\n$3\r\nGET\r\n$3\r\nf:k\r\n")
            pools.configure(a=None, alpha={"route": "b"})
            # Its server was removed, or it waits for that still.
            assert conn.raw_reply(seconds=30)
            assert conn.call("GET", "f:k") is None
        finally:
            pools["a"].process.signal(signal.SIGCONT)
    assert "panicked" not in gateway.log()


def test_what_has_no_key_is_answered_by_a_first_pool_of_several_servers(place):
    servers = [place.redis() for _ in range(4)]
    pools = {"a": backend(servers[:3]), "b": backend(servers[3:]), "alpha": route("{prefix: {'': a, 'b:': b}}")}
    gateway = place.cashew(pools, {"worker_processes": 1})
    with gateway.connect() as conn, gateway.connect() as subscriber:
        for command in ("INFO", "INFO memory", "MEMORY STATS", "LATENCY DOCTOR", "COMMAND COUNT"):
            assert conn.call(*command.split()), command
        assert subscriber.call("SSUBSCRIBE", "b:chan", "chan") is not None
        assert subscriber.reply()
        assert conn.call("SPUBLISH", "b:chan", "1") == 1
        assert subscriber.reply() == [b"smessage", b"b:chan", b"1"]
        sha = conn.call("SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])")
        assert conn.call("SET", "b:k", "1") == "OK" and conn.call("SET", "k", "2") == "OK"
        assert conn.call("EVALSHA", sha, "1", "b:k") == b"1"
        assert conn.call("EVALSHA", sha, "1", "k") == b"2"
        assert "2 pools" in conn.error("FUNCTION", "LIST")
    assert "panicked" not in gateway.log()


def test_a_subscriber_may_not_ask_for_data_wherever_the_route_leads(place):
    pools = Pools(place, "{prefix: {'': a, 's:': {strip: true, to: b}, 'c:': b}}",
                  options={"command_policy": "admin"})
    pools.configure(alpha={"command_policy": "admin"})
    with pools.gateway.connect() as conn, pools.gateway.connect() as other:
        assert conn.call("SUBSCRIBE", "chan") == [b"subscribe", b"chan", 1]
        for words in (["GET", "s:x"], ["SET", "s:x", "1"], ["MGET", "s:x", "x"], ["GET", "c:x"], ["GET", "x"],
                      ["SET", "s:x", "1" * (3 << 20)], ["DBSIZE"], ["MULTI"], ["BLPOP", "s:x", "1"]):
            assert conn.error(*words).startswith(f"ERR Can't execute '{words[0].lower()}'"), words
        assert conn.call("PING") == [b"pong", b""]
        assert conn.call("PSUBSCRIBE", "s:*") == [b"psubscribe", b"s:*", 2]
        assert other.call("PUBLISH", "chan", "1") == 1
        assert conn.reply() == [b"message", b"chan", b"1"]
        conn.call("UNSUBSCRIBE")
        assert conn.call("PUNSUBSCRIBE") == [b"punsubscribe", b"s:*", 0]
        assert conn.call("SET", "s:x", "1") == "OK"
        assert pools["b"].call("GET", "x") == b"1"
        # With RESP3 it may.
        conn.call("HELLO", "3")
        conn.send(b"SUBSCRIBE chan\r\n")
        conn.expect(b">3\r\n$9\r\nsubscribe\r\n$4\r\nchan\r\n:1\r\n")
        assert conn.call("GET", "s:x") == b"1"
    with pools.gateway.connect() as conn:
        assert conn.call("MULTI") == "OK"
        assert conn.call("SET", "c:y", "1") == "QUEUED"
        assert conn.call("EXEC") == ["OK"]


def test_subscribers_are_closed_when_channels_are_elsewhere(place):
    pools = Pools(place, "{prefix: {'': a, 'b:': b}}")
    gateway = pools.gateway
    with gateway.connect() as subscriber, gateway.connect() as conn:
        assert subscriber.call("SUBSCRIBE", "chan") == [b"subscribe", b"chan", 1]
        assert conn.call("PUBLISH", "chan", "1") == 1
        assert subscriber.reply() == [b"message", b"chan", b"1"]
        pools.configure(alpha={"route": "{prefix: {'': b, 'b:': a}}"})
        subscriber.expect_closed()
        with gateway.connect() as other:
            assert other.call("SUBSCRIBE", "chan") == [b"subscribe", b"chan", 1]
            assert conn.call("PUBLISH", "chan", "2") == 1
            assert other.reply() == [b"message", b"chan", b"2"]
        assert conn.call("SET", "k", "1") == "OK" and pools["b"].call("GET", "k") == b"1"
    assert "panicked" not in gateway.log()


def test_nodes_below_a_rewritten_prefix_know_the_key_as_it_is_there(place):
    tree = ("{prefix: {'x:': {strip: true, to: {shadow: {to: a, shadow: b, share: 100%}}},"
            " 'y:': {strip: true, to: {all_async: [a, b]}}, 'e:': {miss_failover: [a, b]}}}")
    pools = Pools(place, tree)
    with pools.gateway.connect() as conn:
        assert conn.call("SET", "x:k", "1") == "OK" and conn.call("SET", "y:l", "1") == "OK"
        wait_until(lambda: all(server.call("EXISTS", "k", "l") == 2 for server in pools.servers.values()), "both have it")
        # What tells what was there is waited for.
        assert conn.call("GETSET", "y:l", "2") == b"1"
        assert conn.call("SET", "y:l", "3", "GET") == b"2"
        assert conn.call("XADD", "y:s", "1-1", "f", "v") == b"1-1"
        pools["a"].call("RPUSH", "e:list", "1")
        assert "WRONGTYPE" in conn.error("GET", "e:list")
        pools["a"].stop()
        for n in range(20):
            assert conn.call("SET", "y:z", str(n)) == "OK", "nobody waits for it"
        wait_until(lambda: pools["b"].call("GET", "z") == b"19", "the other one has it")


# ------------------------------------------------------------------------------------------ memcached

def test_memcached_prefixes(place):
    tree = "{prefix: {'': a, 'b:': b, 'tmp:': {strip: true, to: b}}}"
    pools = Pools(place, tree, redis=False)
    with pools.gateway.connect() as conn:
        for key in (b"x", b"b:x", b"tmp:y"):
            conn.send(b"set %b 5 0 1\r\n1\r\n" % key)
            conn.expect(b"STORED\r\n")
        conn.send(b"get x b:x none tmp:y\r\n")
        conn.expect(b"VALUE x 5 1\r\n1\r\nVALUE b:x 5 1\r\n1\r\nVALUE tmp:y 5 1\r\n1\r\nEND\r\n")
        conn.send(b"get x b:x none\r\nget tmp:y\r\nmg tmp:y k v\r\nmn\r\n")
        conn.expect(b"VALUE x 5 1\r\n1\r\nVALUE b:x 5 1\r\n1\r\nEND\r\n"
                    b"VALUE tmp:y 5 1\r\n1\r\nEND\r\nVA 1 ktmp:y\r\n1\r\nMN\r\n")
        conn.send(b"incr tmp:y 4\r\ndelete tmp:y noreply\r\nmg tmp:y v q\r\nmg x v q\r\nmn\r\n")
        conn.expect(b"5\r\nVA 1\r\n1\r\nMN\r\n")
        conn.send(b"flush_all\r\nversion\r\n")
        assert conn.read_line().startswith(b"SERVER_ERROR flush_all")
        assert conn.read_line().startswith(b"VERSION")
        with pools["b"].connect() as server:
            server.send(b"get b:x y\r\n")
            server.expect(b"VALUE b:x 5 1\r\n1\r\nEND\r\n")


def test_memcached_nodes(place):
    tree = ("{prefix: {'f:': {failover: [a, b], ttl: 30s}, 'w:': {warm_up: {cold: a, warm: b}},"
            " 's:': {all_sync: [a, b]}, 'm:': {miss_failover: [a, b]}}}")
    pools = Pools(place, tree, redis=False)

    def of(name, request, end=b"\r\n"):
        with pools[name].connect() as server:
            server.send(request)
            return server.read_until(end)

    with pools.gateway.connect() as conn:
        conn.send(b"set s:x 1 0 2\r\nab\r\nmg s:x f v\r\n")
        conn.expect(b"STORED\r\nVA 2 f1\r\nab\r\n")
        assert of("b", b"get s:x\r\n", b"END\r\n") == b"VALUE s:x 1 2\r\nab\r\nEND\r\n"
        assert of("b", b"set w:x 7 100 3\r\nabc\r\n") == b"STORED\r\n"
        conn.send(b"get w:x w:none\r\n")
        conn.expect(b"VALUE w:x 7 3\r\nabc\r\nEND\r\n")
        wait_until(lambda: of("a", b"mg w:x f v t\r\n").startswith(b"VA 3 f7 t"), "it is copied")
        assert of("b", b"set m:x 7 100 3\r\nabc\r\n") == b"STORED\r\n"
        conn.send(b"gets m:x\r\nget m:y\r\n")
        assert conn.read_line().startswith(b"VALUE m:x 7 3 ")
        conn.expect(b"abc\r\nEND\r\nEND\r\n")
        pools["a"].stop()

        def stored():
            conn.send(b"set f:x 0 0 1\r\n1\r\n")
            return conn.read_line() == b"STORED"

        wait_until(stored, "the next takes it")
        assert 20 < int(of("b", b"mg f:x t\r\n").split(b"t")[1]) <= 30
        conn.send(b"ms f:y 1 T5\r\n1\r\nget f:x f:y\r\n")
        conn.expect(b"HD\r\nVALUE f:x 0 1\r\n1\r\nVALUE f:y 0 1\r\n1\r\nEND\r\n")
        assert int(of("b", b"mg f:y t\r\n").split(b"t")[1]) <= 5


def test_copies_of_a_group_behind_a_route_are_never_wrong(place):
    one, other, spare = place.memcached(), place.memcached(), place.memcached()
    group = f"{{name: g, primary: {HOST}:{one.port}, replicas: [{HOST}:{other.port}]}}"
    pools = {"a": {"listen": None, "servers": [group]}, "b": backend([spare], redis=False),
             "alpha": route("{prefix: {'s:': {all_sync: [a, b]}, '': a}}", redis=False)}
    gateway = place.cashew(pools, {"worker_processes": 1})

    def at(server, key):
        with server.connect() as conn:
            conn.send(b"mg %b v\r\nmn\r\n" % key)
            return conn.read_until(b"MN\r\n")

    with gateway.connect() as conn:
        for key in (b"k", b"s:k"):
            conn.send(b"set %b 0 0 3\r\nold\r\n" % key)
            conn.expect(b"STORED\r\n")
        assert all(at(server, b"k") == b"VA 3\r\nold\r\nMN\r\n" for server in (one, other))
        with other.connect() as copy:
            copy.send(b"set s:k 0 0 3\r\nold\r\n")
            copy.expect(b"STORED\r\n")
        conn.send(b"set s:k 0 0 3\r\nnew\r\n")
        conn.expect(b"STORED\r\n")
        assert at(one, b"s:k") == at(spare, b"s:k") == b"VA 3\r\nnew\r\nMN\r\n"
        wait_until(lambda: at(other, b"s:k") == b"EN\r\nMN\r\n", "the copy has forgotten it")


def test_uniques_of_pools_are_not_taken_for_each_other(place):
    tree = "{prefix: {'m:': {migrate: {from: a, to: b, share: %s}}, 'q:': {all_majority: [a, b, c]}}}"
    pools = Pools(place, tree % "0%", "abc", redis=False)

    def unique(conn, request):
        conn.send(request)
        line = conn.read_until(b"END\r\n")
        return line.split(b"\r\n")[0].split()[-1]

    with pools.gateway.connect() as conn:
        conn.send(b"set m:k 0 0 1\r\n1\r\nset q:k 0 0 1\r\n1\r\n")
        conn.expect(b"STORED\r\nSTORED\r\n")
        old = unique(conn, b"gets m:k\r\n")
        # Servers have uniques of their own for what is the same.
        with pools["b"].connect() as server:
            server.send(b"set q:k 0 0 1\r\n1\r\n" * 3)
            server.expect(b"STORED\r\n" * 3)
        assert unique(conn, b"gets q:k\r\n").isdigit()
        pools.configure(alpha={"route": tree % "100%"})
        for _ in range(3):
            conn.send(b"set m:k 0 0 1\r\n2\r\n")
            conn.expect(b"STORED\r\n")
            conn.send(b"cas m:k 0 0 1 %b\r\n3\r\n" % old)
            conn.expect(b"EXISTS\r\n")
        new = unique(conn, b"gets m:k\r\n")
        conn.send(b"cas m:k 0 0 1 %b\r\n3\r\n" % new)
        conn.expect(b"STORED\r\n")


def test_meta_replies_name_the_key_as_the_client_has_it_whatever_its_encoding(place):
    tree = "{prefix: {'st:': {strip: true, to: a}, 'as:': {all_async: [a, b]}}}"
    pools = Pools(place, tree, redis=False)
    with pools.gateway.connect() as conn:
        conn.send(b"set st:B1 0 0 1\r\n1\r\n")
        conn.expect(b"STORED\r\n")
        encoded = base64.b64encode(b"st:B1")
        conn.send(b"mg %b b k v\r\nmg st:B1 k v\r\n" % encoded)
        conn.expect(b"VA 1 kst:B1\r\n1\r\nVA 1 kst:B1\r\n1\r\n")
        # What was stored by a name in base64 is told by that.
        encoded = base64.b64encode(b"st:B2")
        conn.send(b"ms %b 1 b\r\n1\r\nmg st:B2 k v\r\nme st:B2\r\n" % encoded)
        conn.expect(b"HD\r\nVA 1 k%b b\r\n1\r\n" % encoded)
        assert conn.read_line().startswith(b"ME %b " % encoded)
        # What tells more than that it was done is waited for.
        conn.send(b"set as:k 0 0 1\r\n1\r\ngat 100 as:k\r\nmd as:k O6 k\r\n")
        conn.expect(b"NOT_STORED\r\nVALUE as:k 0 1\r\n1\r\nEND\r\nHD O6 kas:k\r\n")


def test_a_request_for_very_many_keys_keeps_the_worker_alive(place):
    pools = Pools(place, "{prefix: {'': {failover: [a, b]}}}", worker_heartbeat_timeout=2000)
    pools.call("PING")
    workers = pools.gateway.workers()
    keys = [f"key{number}" for number in range(8000)]
    assert pools.call("MSET", *(word for key in keys for word in (key, "v"))) == "OK"
    assert pools.call("MGET", *keys) == [b"v"] * len(keys)
    assert pools.call("EXISTS", *keys) == pools.call("UNLINK", *keys) == len(keys)
    assert pools.gateway.workers() == workers
