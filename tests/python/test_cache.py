"""The node `cache` of routes, with real servers: what it saves, and that nothing it answers is too old."""

import collections
import json
import random
import threading
import time

import pytest

from cluster import Cluster
from harness import ReplyError, newer_servers, server_lines, wait_until
from test_sentinel import FAILOVER_MAX, Group, pools as sentinel_pools, role

# Longer than any test: what drops a reply here is what is tested, not its age.
FOR_EVER = "1h"


def server_programs():
    named = {"distribution": "redis-server"}
    named.update({f"newer{number}": str(path) for number, path in enumerate(newer_servers())})
    return named


PROGRAMS = server_programs()


class Cached:
    """A route with a cache in front of a pool, which has a port of its own as well."""

    def __init__(self, place, server, redis=True, workers=1, options=f"ttl: {FOR_EVER}", tree=None, **settings):
        head = {"redis": True} if redis else {}
        servers = server if isinstance(server, list) else [server]
        self.server = servers[0]
        self.route = {**head, "route": tree or f"{{cache: {{to: a, {options}}}}}"}
        self.pool = {**head, "servers": server_lines(servers), "timeout": 2000}
        self.gateway = place.cashew({"alpha": self.route, "a": self.pool},
                                    {"worker_processes": workers, **settings})

    def stat(self, name):
        return self.gateway.stats()["alpha"][name]

    def is_kept(self, conn, key, value):
        """Reads until one is answered without the server."""
        def hit():
            before = self.stat("cache_hits")
            assert conn.call("GET", key) == value
            return self.stat("cache_hits") > before
        wait_until(hit, f"{key} is kept")


def quiet(conn, *words):
    """The reply, or "error" while connections to the server are made anew."""
    try:
        return conn.call(*words)
    except ReplyError:
        return "error"


@pytest.fixture(params=PROGRAMS)
def server(request, place):
    return place.redis(program=PROGRAMS[request.param])


def test_hot_keys_need_no_server(place, server):
    cached = Cached(place, server)
    server.call("SET", "k", "x")
    with cached.gateway.connect() as conn:
        cached.is_kept(conn, "k", b"x")
        server.call("CONFIG", "RESETSTAT")
        hits = cached.stat("cache_hits")
        assert [conn.call("GET", "k") for _ in range(1000)] == [b"x"] * 1000
        assert conn.call("MGET", "k", "k") == [b"x", b"x"]
        assert server.stat("get") + server.stat("mget") == 0
        assert cached.stat("cache_hits") == hits + 1002
        assert conn.call("HELLO", "3")
        assert conn.call("GET", "k") == b"x"
    wait_until(lambda: cached.stat("cache_entries") == 1, "the gauge is there")
    assert cached.stat("cache_bytes") > 0
    assert cached.stat("cache_bound_ms") == 3_600_000


def test_what_others_write_is_told(place, server):
    cached = Cached(place, server)
    with cached.gateway.connect() as conn, server.connect() as other:
        def seen(*command, value):
            assert other.call(*command) not in (None, 0)
            # Nobody waits for the name of the key, but it is on its way.
            wait_until(lambda: conn.call("GET", "k") == value, " ".join(command))
            if value is not None:
                cached.is_kept(conn, "k", value)
        seen("SET", "k", "1", value=b"1")
        seen("INCR", "k", value=b"2")
        seen("EVAL", "return redis.call('SET', 'k', 'x')", "0", value=b"x")
        seen("DEL", "k", value=None)
        seen("SET", "k", "y", value=b"y")
        seen("FLUSHALL", value=None)
        seen("SET", "k", "y", value=b"y")
        # What expires is gone here when it is there.
        assert other.call("PEXPIRE", "k", "300") == 1
        expires = time.monotonic() + 0.3
        cached.is_kept(conn, "k", b"y")
        # Servers round to milliseconds.
        time.sleep(max(0, expires + 0.005 - time.monotonic()))
        assert conn.call("GET", "k") is None
    assert cached.stat("cache_invalidations") > 5


def test_a_lost_connection_leaves_nothing_old(place, server):
    cached = Cached(place, server)
    server.call("SET", "k", "1")
    with cached.gateway.connect() as conn, server.connect() as other:
        for round_ in range(2, 7):
            cached.is_kept(conn, "k", b"%d" % (round_ - 1))
            # All connections but its own, the one that tells of changes among them.
            assert other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") >= 2
            assert other.call("SET", "k", str(round_)) == "OK"
            wait_until(lambda: quiet(conn, "GET", "k") == b"%d" % round_, "the new value is seen")
    with cached.gateway.connect() as conn:
        cached.is_kept(conn, "k", b"6")
        server.stop()
        wait_until(lambda: cached.stat("cache_entries") == 0, "nothing is left", seconds=20)
        server.start()
        # Errors while it is away, but never what was there before.
        wait_until(lambda: quiet(conn, "GET", "k") in (None, "error"), "nothing old is read")
        wait_until(lambda: quiet(conn, "GET", "k") is None, "the empty server is asked")


@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_is_older_than_a_write_that_was_acknowledged(place, server, workers):
    """Writers have keys of their own, so that it is known which value was acknowledged last."""
    cached = Cached(place, server, workers=workers)
    acknowledged = collections.defaultdict(int)
    until = time.monotonic() + 6
    failures, reads = [], collections.Counter()

    def guarded(run):
        def thread():
            try:
                run()
            except Exception as error:
                failures.append(repr(error))
        return threading.Thread(target=thread)

    def writer(number):
        def run():
            rng = random.Random(number)
            key, value = f"k{number}", 0
            while time.monotonic() < until:
                value += 1
                # Each time by another connection, which may be another worker's, and by the pool's own port.
                with cached.gateway.connect(rng.choice(["alpha", "a"])) as conn:
                    way = rng.randrange(5)
                    if way == 0:
                        assert conn.call("MSET", key, str(value), f"{key}:other", "x") == "OK"
                    elif way == 1:
                        assert conn.call("MULTI") == "OK"
                        assert conn.call("SET", key, str(value)) == "QUEUED"
                        assert conn.call("EXEC") == ["OK"]
                    elif way == 2:
                        script = "return redis.call('SET', KEYS[1], ARGV[1])"
                        assert conn.call("EVAL", script, "1", key, str(value)) in ("OK", b"OK")
                    elif way == 3:
                        assert conn.call("SET", f"{key}:from", str(value)) == "OK"
                        assert conn.call("RENAME", f"{key}:from", key) == "OK"
                    else:
                        assert conn.call("SET", key, str(value)) == "OK"
                acknowledged[number] = value
                time.sleep(rng.random() * 0.02)
        return guarded(run)

    def reader(number):
        def run():
            rng = random.Random(1000 + number)
            with cached.gateway.connect() as conn:
                while time.monotonic() < until:
                    key = rng.randrange(4)
                    least = acknowledged[key]
                    found = int(conn.call("GET", f"k{key}") or 0)
                    reads["all"] += 1
                    if found < least:
                        failures.append((key, found, least))
        return guarded(run)

    threads = [writer(number) for number in range(4)] + [reader(number) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert reads["all"] > 1000 and sum(acknowledged.values()) > 100
    # It was of use meanwhile.
    assert cached.stat("cache_hits") > reads["all"] / 10


def test_pipelines_read_what_they_wrote(place, server):
    cached = Cached(place, server)
    with cached.gateway.connect() as conn:
        assert conn.call("SET", "k", "0") == "OK"
        for number in range(1, 200):
            cached_before = number % 3 == 0
            if cached_before:
                cached.is_kept(conn, "k", b"%d" % (number - 1))
            value = b"%d" % number
            conn.send(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n" % (len(value), value)
                      + b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" * 2)
            replies = [conn.reply() for _ in range(4)]
            assert replies == [b"%d" % (number - 1), "OK", value, value]


def test_a_reload_brings_it_and_takes_it(place, server):
    cached = Cached(place, server)
    server.call("SET", "k", "x")
    plain = {**cached.route, "route": "{prefix: {'': a}}"}
    with cached.gateway.connect() as conn:
        for _ in range(2):
            cached.is_kept(conn, "k", b"x")
            cached.gateway.configure({"alpha": plain, "a": cached.pool})
            cached.gateway.reload()
            hits = cached.stat("cache_hits")
            assert [conn.call("GET", "k") for _ in range(10)] == [b"x"] * 10
            assert cached.stat("cache_hits") == hits
            wait_until(lambda: b"tracking_clients:0" in server.call("INFO", "clients"), "nobody tracks")
            cached.gateway.configure({"alpha": cached.route, "a": cached.pool})
            cached.gateway.reload()


def test_only_keys_of_its_prefix_are_told_and_kept(place, server):
    tree = f"{{prefix: {{'user:': {{cache: {{to: a, ttl: {FOR_EVER}, negative: 30s}}}}, '': a}}}}"
    cached = Cached(place, server, tree=tree)
    with cached.gateway.connect() as conn:
        assert conn.call("MSET", "user:1", "x", "other", "y") == "OK"
        cached.is_kept(conn, "user:1", b"x")
        hits = cached.stat("cache_hits")
        assert [conn.call("GET", "other") for _ in range(5)] == [b"y"] * 5
        assert cached.stat("cache_hits") == hits
        assert b"tracking_total_prefixes:1" in server.call("INFO", "stats")
        # That there is no such key is kept until there is one.
        cached.is_kept(conn, "user:none", None)
        server.call("SET", "user:none", "z")
        wait_until(lambda: conn.call("GET", "user:none") == b"z", "the new key is seen")
        # Databases that are not the pool's have keys of their own.
        assert conn.call("SELECT", "3") == "OK"
        assert conn.call("GET", "user:1") is None


def test_room_is_bounded(place):
    server = place.redis()
    cached = Cached(place, server, options=f"ttl: {FOR_EVER}, bytes: 256kb, value_max: 4kb")
    with cached.gateway.connect() as conn:
        for number in range(400):
            assert conn.call("SET", f"k{number}", "x" * 2000) == "OK"
        for _ in range(3):
            for number in range(400):
                assert conn.call("GET", f"k{number}") == b"x" * 2000
        wait_until(lambda: cached.stat("cache_entries") > 0, "some are kept")
        assert cached.stat("cache_evictions") > 200
        assert cached.stat("cache_bytes") < 400 * 1024
        assert conn.call("SET", "long", "y" * 5000) == "OK"
        hits = cached.stat("cache_hits")
        assert [conn.call("GET", "long") for _ in range(5)] == [b"y" * 5000] * 5
        assert cached.stat("cache_hits") == hits


def get(conn, key=b"k"):
    """What memcached has by that name."""
    conn.send(b"get %s\r\n" % key)
    line = conn.read_line()
    if line == b"END":
        return None
    value = conn.read(int(line.split()[3]))
    conn.expect(b"\r\nEND\r\n")
    return value


def test_memcached_is_told_of_writes_through_this_instance(place):
    server = place.memcached()
    cached = Cached(place, server, redis=False, workers=2, options="ttl: 600ms")

    with cached.gateway.connect() as conn, server.connect() as direct:
        for number in range(1, 60):
            with cached.gateway.connect() as writer:
                value = b"%d" % number
                writer.send(b"set k 5 0 %d\r\n%s\r\n" % (len(value), value))
                writer.expect(b"STORED\r\n")
            assert [get(conn) for _ in range(4)] == [value] * 4
        assert cached.stat("cache_hits") > 50
        # Of others it learns when the reply is old.
        direct.send(b"set k 0 0 5\r\nother\r\n")
        direct.expect(b"STORED\r\n")
        written = time.monotonic()
        while time.monotonic() - written < 0.7:
            get(conn)
        assert get(conn) == b"other"


def test_keys_of_memcached_do_not_outlive_their_expiry(place):
    server = place.memcached()
    cached = Cached(place, server, redis=False)
    lives = {b"one": 1, b"two": 2, b"three": 3, b"ever": 0}
    with cached.gateway.connect() as conn, server.connect() as direct:
        for number, (key, seconds) in enumerate(lives.items()):
            # Whoever has said how long it lives.
            writer = [conn, direct][number % 2]
            writer.send(b"set %s 0 %d 1\r\nx\r\n" % (key, seconds))
            writer.expect(b"STORED\r\n")
        gone, until = set(), time.monotonic() + 4.5
        while time.monotonic() < until:
            for key in lives:
                if get(direct, key) is None:
                    gone.add(key)
                # The server is asked first: what is gone there then is gone here.
                assert get(conn, key) is None or key not in gone, key
            time.sleep(0.005)
        assert gone == set(lives) - {b"ever"}
    assert cached.stat("cache_hits") > 500


def test_a_server_that_refuses_what_keeping_takes_is_told_of(place):
    server = place.redis()
    server.call("ACL", "SETUSER", "default", "-client|tracking", "-hello")
    cached = Cached(place, server, workers=2)
    gateway = cached.gateway

    def told(kind):
        lines = gateway.order("events", "--json", "--kind", kind).stdout.splitlines()
        return [json.loads(line)["message"] for line in lines]

    with gateway.connect() as conn:
        wait_until(lambda: cached.stat("cache_refused") == 1, "the gauge is there")
        assert [conn.call("GET", "k") for _ in range(50)] == [None] * 50
    assert cached.stat("cache_hits") == 0
    (text,) = told("cache_refused")
    assert "NOPERM" in text and "client|tracking" in text, text
    assert gateway.log().count("are not kept by the cache of routes") == 1
    assert "a server refuses what it takes to keep its replies" in gateway.order("status").stdout
    assert "its cache keeps nothing of a server" in gateway.order("doctor").stdout
    assert told("cache_taken") == []
    # HELLO needs no permission, but PTTL does: that is known when something is to be kept.
    server.call("SET", "k", "x")
    server.call("ACL", "SETUSER", "default", "+client|tracking", "-pttl")
    gateway.process.kill()
    gateway.process.start()
    with gateway.connect() as conn:
        def is_told():
            conn.call("GET", "k")
            return cached.stat("cache_refused") == 1
        wait_until(is_told, "it is told of PTTL")
        (text,) = told("cache_refused")
        assert "pttl" in text, text
        server.call("ACL", "SETUSER", "default", "+pttl")
        cached.is_kept(conn, "k", b"x")
        wait_until(lambda: cached.stat("cache_refused") == 0, "it works again")
    assert len(told("cache_taken")) == 1


def kept_anywhere(gateway):
    """Whether something was answered without a server since the last call."""
    before = gateway.stats()["alpha"]["cache_hits"]
    return lambda: gateway.stats()["alpha"]["cache_hits"] > before


def test_a_failover_drops_what_the_old_primary_said(place):
    group = Group(place)
    pools = sentinel_pools(group.addresses())
    pool = {**pools["alpha"], "failover_wait": 20_000, "timeout": 30_000}
    route = {"redis": True, "route": f"{{cache: {{to: a, ttl: {FOR_EVER}}}}}"}
    gateway = place.cashew({"alpha": route, "a": pool}, {"worker_processes": 2})
    with gateway.connect() as conn, gateway.connect("a") as writer:
        assert conn.call("SET", "k", "1") == "OK"
        hit = kept_anywhere(gateway)
        wait_until(lambda: conn.call("GET", "k") == b"1" and hit(), "it is kept")
        group.servers[0].stop()
        # It waits for the new primary, whose value is the only one that may be read from then on.
        assert writer.call("SET", "k", "2", seconds=FAILOVER_MAX) == "OK"
        hit = kept_anywhere(gateway)
        reads = 0
        while reads < 20 or not hit():
            assert conn.call("GET", "k") == b"2"
            reads += 1
            assert reads < 10_000
        # And others' writes are told by the new one.
        # The gateway may know it before all Sentinels do.
        primary = wait_until(lambda: next((it for it in group.servers if role(it) == b"master"), None), "it leads")
        assert primary.call("SET", "k", "3") == "OK"
        wait_until(lambda: conn.call("GET", "k") == b"3", "the change is told")


def test_slots_that_move_and_nodes_that_fail_over_leave_nothing_old(place):
    cluster = Cluster(place)
    pool = cluster.pools(timeout=5000)["alpha"]
    route = {"redis": True, "route": f"{{cache: {{to: a, ttl: {FOR_EVER}}}}}"}
    gateway = place.cashew({"alpha": route, "a": pool}, {"worker_processes": 2})
    slot = 12182  # That of "foo".
    with gateway.connect() as conn:
        assert conn.call("SET", "foo", "0") == "OK"
        for number in range(1, 5):
            hit = kept_anywhere(gateway)
            wait_until(lambda: conn.call("GET", "foo") == b"%d" % (number - 1) and hit(), "it is kept")
            owner = cluster.primary_of(slot)
            if number % 2:
                cluster.move([slot], owner, next(it for it in cluster.primaries() if it is not owner))
            else:
                cluster.fail_over(owner)
            # By nobody who would tell the gateway.
            cluster.wait_ok()
            assert cluster.primary_of(slot).call("SET", "foo", str(number)) == "OK"
            wait_until(lambda: conn.call("GET", "foo") == b"%d" % number, "the change is seen")
