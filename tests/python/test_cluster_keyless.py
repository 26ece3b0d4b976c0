"""Pools in front of a real cluster: publishing, SCAN while slots move, and commands without keys."""

import subprocess
import threading

import pytest

from cluster import Cluster
from harness import HOST, wait_until


@pytest.fixture(scope="module")
def cluster(module_place):
    return Cluster(module_place, primaries=3, replicas=0)


@pytest.fixture(scope="module")
def gateway(module_place, cluster):
    pools = cluster.pools(command_policy="admin")
    gateway = module_place.cashew(pools, {"worker_processes": 2})
    gateway.wait_serving()
    return gateway


def test_patterns_hear_everything_once(gateway, cluster):
    with gateway.connect() as subscriber, gateway.connect() as publisher:
        subscriber.call("PSUBSCRIBE", "n*")
        channels = [f"n{number}" for number in range(30)]
        subscriber.send(b"SUBSCRIBE n7\r\n")
        assert subscriber.reply() == [b"subscribe", b"n7", 2]
        for channel in channels:
            assert publisher.call("PUBLISH", channel, channel) == (2 if channel == "n7" else 1)
        # Clients of the nodes themselves are heard, too.
        for server in cluster.servers:
            server.call("PUBLISH", "other", "x")
            server.call("PUBLISH", "n-direct", "x")
        heard = [subscriber.reply() for _ in range(34)]
        patterns = [message[2].decode() for message in heard if message[0] == b"pmessage"]
        assert sorted(patterns) == sorted([*channels, *["n-direct"] * 3])
        assert [message for message in heard if message[0] == b"message"] == [
            [b"message", b"n7", b"n7"]]
        subscriber.expect_silence(0.3)


def test_shard_channels_follow_their_slots(gateway, cluster):
    slot = 12182  # of foo
    with gateway.connect() as subscriber, gateway.connect() as publisher:
        assert subscriber.call("SSUBSCRIBE", "foo") == [b"ssubscribe", b"foo", 1]
        source = cluster.primary_of(slot)
        target = next(server for server in cluster.servers if server is not source)
        for at in range(4):
            assert publisher.call("SPUBLISH", "foo", str(at)) == 1
            assert subscriber.reply() == [b"smessage", b"foo", str(at).encode()]
            cluster.move([slot], source, target)
            source, target = target, source
            wait_until(lambda: publisher.call("SPUBLISH", "foo", "again") == 1,
                       "it is at the new owner")
            while (message := subscriber.reply())[2] != b"again":
                assert message[0] == b"smessage"
        assert subscriber.call("SUNSUBSCRIBE", "foo") == [b"sunsubscribe", b"foo", 0]


def test_scan_misses_nothing_that_has_moved(gateway, cluster):
    """Slots go from the node that is walked last to the one that has been walked."""
    keys = {f"scan:{number}" for number in range(3000)}
    with gateway.connect() as conn:
        for key in keys:
            conn.send(f"SET {key} v\r\n".encode())
        assert {conn.reply() for _ in keys} == {"OK"}
        target, *_, source = sorted(cluster.servers, key=lambda server: server.port)
        slots = sorted(cluster.node(source).slots)
        found, cursor, pages = set(), "0", 0
        while pages == 0 or cursor != "0":
            cursor, page = conn.call("SCAN", cursor, "COUNT", "200", seconds=30)
            cursor = cursor.decode()
            found |= {key.decode() for key in page}
            pages += 1
            if 6 <= pages < 9:
                cluster.move([slots.pop() for _ in range(20)], source, target)
        assert not keys - found, pages
        assert pages > 20, "all nodes are walked again"


def fill(conn, keys):
    """Nothing else is there then."""
    assert conn.call("FLUSHALL") == "OK"
    for start in range(0, len(keys), 10_000):
        some = keys[start:start + 10_000]
        for key in some:
            conn.send(f"SET {key} v\r\n".encode())
        assert {conn.reply() for _ in some} == {"OK"}


def walk(conn, count, between=lambda: None):
    """All keys that a SCAN finds."""
    found, cursor = set(), b""
    while cursor != b"0":
        cursor, page = conn.call("SCAN", cursor.decode() or "0", "COUNT", str(count), seconds=30)
        found |= {key.decode() for key in page}
        between()
    return found


def test_scan_misses_nothing_during_a_reshard(gateway, cluster):
    """Walks end while slots are on their way, from the node that is walked last to the first one."""
    keys = {f"reshard:{number}" for number in range(100_000)}
    target, *_, source = sorted(cluster.servers, key=lambda server: server.port)
    with gateway.connect() as conn:
        fill(conn, sorted(keys))
        reshard = subprocess.Popen(
            ["redis-cli", "--cluster", "reshard", f"{HOST}:{source.port}",
             "--cluster-from", cluster.id(source), "--cluster-to", cluster.id(target),
             "--cluster-slots", "400", "--cluster-pipeline", "1", "--cluster-yes"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        walks = 0
        try:
            while reshard.poll() is None or walks == 0:
                missed = keys - walk(conn, 2000)
                assert not missed, (walks, len(missed), sorted(missed)[:9])
                walks += 1
            output = reshard.communicate()[0]
        finally:
            reshard.kill()
            reshard.wait()
        assert reshard.returncode == 0, output[-2000:]
        assert conn.call("FLUSHALL") == "OK"


def test_scan_misses_nothing_of_slots_that_move_slowly(gateway, cluster):
    """A slot may be half moved from before a walk's end until long after."""
    keys = {f"{{slow}}:{number}" for number in range(2000)}
    slot = 8903  # of slow
    source = cluster.primary_of(slot)
    first, *_, last = sorted(cluster.servers, key=lambda server: server.port)
    target = first if source is not first else last
    here, there = cluster.id(source), cluster.id(target)

    def move_some(count):
        some = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
        if some:
            source.call("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *some)
        return len(some)

    with gateway.connect() as conn:
        fill(conn, sorted(keys))
        assert conn.call("CLUSTER", "KEYSLOT", "{slow}") == slot
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
        # Some with each page, and then no more.
        left = [30]

        def between():
            left[0] -= 1
            if left[0] > 0:
                move_some(20)

        assert walk(conn, 100, between) == keys
        assert left[0] <= 0, "walked again until no key has moved"
        # It stays half moved: that is no reason to walk for ever.
        assert walk(conn, 100) == keys
        stop = threading.Event()

        def move_all():
            while not stop.wait(0.01) and move_some(20):
                pass

        mover = threading.Thread(target=move_all)
        mover.start()
        try:
            while mover.is_alive():
                assert walk(conn, 100) == keys
        finally:
            stop.set()
            mover.join()
        for server in (target, source):
            server.call("CLUSTER", "SETSLOT", slot, "NODE", there)
        assert walk(conn, 100) == keys
        assert conn.call("FLUSHALL") == "OK"


def test_commands_without_keys_are_for_all_primaries(gateway, cluster):
    with gateway.connect() as conn:
        conn.call("FLUSHALL")
        for number in range(100):
            conn.call("SET", f"k{number}", "v")
        assert conn.call("DBSIZE") == 100
        assert len(conn.call("KEYS", "k*")) == 100
        assert conn.call("RANDOMKEY").startswith(b"k")
        digest = conn.call("SCRIPT", "LOAD", "return redis.call('get', KEYS[1])").decode()
        assert [conn.call("EVALSHA", digest, "1", f"k{number}") for number in range(50)] == [b"v"] * 50
        assert conn.call("CLUSTER", "KEYSLOT", "foo") == 12182
        assert "cluster support disabled" in conn.error("CLUSTER", "SLOTS")
        assert conn.call("FLUSHALL") == "OK"
        assert conn.call("DBSIZE") == 0 and conn.call("RANDOMKEY") is None
    assert sum(server.call("DBSIZE") for server in cluster.servers) == 0
