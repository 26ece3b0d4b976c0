"""Clients see their own writes, though replicas are behind."""

import threading
import time

import pytest

from harness import wait_until
from relay import Relay, between
from test_fitness import HOST, Fed, gets, linked


def late(place, replicas=2, most=0.3, **options):
    """Replicas that are fed late."""
    world = Fed(place, replicas=replicas, **options)
    for relay in world.relays:
        relay.delay = between(0, most)
    return world


class Client(threading.Thread):
    """Writes and reads its own key, and reads an older one."""

    def __init__(self, gateway, name, until):
        super().__init__()
        self.gateway, self.key, self.until = gateway, f"key:{name}", until
        self.stale, self.rounds, self.failures = [], 0, []

    def run(self):
        try:
            with self.gateway.connect() as conn:
                while time.monotonic() < self.until:
                    self.rounds += 1
                    value = b"%d" % self.rounds
                    assert conn.call("SET", self.key, value) == "OK"
                    for pause in (0, 0.05, 0.15, 0.4):
                        time.sleep(pause)
                        reply = conn.call("GET", self.key)
                        if reply != value:
                            self.stale.append((pause, reply, value))
        except Exception as error:
            self.failures.append(repr(error))


def run_clients(world, count, seconds):
    until = time.monotonic() + seconds
    clients = [Client(world.gateway, n, until) for n in range(count)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert not [failure for client in clients for failure in client.failures]
    return clients


def test_by_offset_nobody_reads_what_is_older_than_what_it_wrote(place):
    world = late(place, read_your_writes="offset")
    before = [gets(replica) for replica in world.replicas]
    clients = run_clients(world, 100, 5)
    assert [client.stale for client in clients if client.stale] == []
    rounds = sum(client.rounds for client in clients)
    from_replicas = sum(gets(it) for it in world.replicas) - sum(before)
    # Of four reads in a round one or two are of something older than the replicas' delay.
    print(f"{rounds} rounds, {from_replicas} of {4 * rounds} reads from replicas")
    assert from_replicas > rounds / 2


def test_in_groups_too(place):
    world = late(place, replicas=2, read_your_writes="offset")
    servers = [f"{HOST}:{port}" for port in [it.port for it in (world.primary, *world.replicas)]]
    other = place.redis()
    group = f"{{name: s1, weight: 1, primary: {servers[0]}, replicas: [{', '.join(servers[1:])}]}}"
    world.gateway = place.cashew({"alpha": {
        "redis": True, "reads": "prefer_replica", "read_your_writes": "offset",
        "servers": [group, f"{HOST}:{other.port}:1 s2"]}}, {"worker_processes": 2})
    before = sum(gets(replica) for replica in world.replicas)
    clients = run_clients(world, 40, 3)
    assert [client.stale for client in clients if client.stale] == []
    assert sum(gets(replica) for replica in world.replicas) > before


def test_without_it_they_would(place):
    """The proof that the test above can fail."""
    world = late(place)
    clients = run_clients(world, 20, 2)
    assert any(client.stale for client in clients)


def test_for_a_time_reads_go_to_the_primary(place):
    world = late(place, read_your_writes="500ms")
    clients = run_clients(world, 20, 3)
    assert [client.stale for client in clients if client.stale] == []
    with world.gateway.connect() as conn:
        # Who has not written reads from replicas at once.
        before = sum(gets(replica) for replica in world.replicas)
        for _ in range(10):
            conn.call("GET", "key:1")
        assert sum(gets(replica) for replica in world.replicas) == before + 10


@pytest.mark.parametrize("write", [
    ("SET", "key", "new"), ("MSET", "key", "new", "other", "1"),
    ("EVAL", "return redis.call('SET', KEYS[1], 'new')", "1", "key"),
    ("RENAME", "source", "key"), ("FLUSHALL",), ("MULTI",),
])
@pytest.mark.parametrize("way", ["offset", "5s"])
def test_whatever_writes_is_seen(place, write, way):
    world = Fed(place, read_your_writes=way)
    (replica,), (relay,) = world.replicas, world.relays
    with world.gateway.connect() as conn:
        assert conn.call("SET", "source", "new") == "OK"
        assert conn.call("SET", "key", "old") == "OK"
        wait_until(lambda: replica.call("GET", "key") == b"old", "it is fed")
    with world.gateway.connect() as conn:
        before = gets(replica)

        def is_read():
            assert conn.call("GET", "key") == b"old"
            return gets(replica) > before
        wait_until(is_read, "who has not written reads from the replica", 5)
        relay.stalled.set()
        if write == ("MULTI",):
            conn.send(b"MULTI\r\nSET key new\r\nEXEC\r\nGET key\r\n")
            assert [conn.reply() for _ in range(4)] == ["OK", "QUEUED", ["OK"], b"new"]
        else:
            conn.call(*write)
        expected = None if write == ("FLUSHALL",) else b"new"
        for _ in range(20):
            assert conn.call("GET", "key") == expected
            assert conn.call("MGET", "key", "key") == [expected] * 2
            time.sleep(0.01)
        # In one piece, before the reply to the write.
        conn.send(b"SET key newest\r\nGET key\r\n")
        assert [conn.reply(), conn.reply()] == ["OK", b"newest"]
        relay.stalled.clear()


def test_who_has_read_its_writes_reads_from_replicas_again(place):
    world = Fed(place, read_your_writes="offset")
    (replica,) = world.replicas
    with world.gateway.connect() as conn:
        assert conn.call("SET", "key", "v") == "OK"
        before = gets(replica)

        def is_read():
            assert conn.call("GET", "key") == b"v"
            return gets(replica) > before
        wait_until(is_read, "it reads from the replica", 5)


def test_over_a_failover_a_reload_an_upgrade_and_a_resize(place):
    world = Fed(place, read_your_writes="offset")
    (replica,), (relay,) = world.replicas, world.relays
    with world.gateway.connect() as conn:
        assert conn.call("SET", "key", "old") == "OK"
        wait_until(lambda: replica.call("GET", "key") == b"old", "it is fed")
        relay.stalled.set()
        assert conn.call("SET", "key", "new") == "OK"
        for change in (lambda: world.gateway.reload(), lambda: world.gateway.order("upgrade"),
                       lambda: (world.gateway.configure(worker_processes=1),
                                world.gateway.reload())):
            change()
            for _ in range(30):
                assert conn.call("GET", "key") == b"new"
                time.sleep(0.005)
        relay.stalled.clear()
        wait_until(lambda: replica.call("GET", "key") == b"new", "it is fed", 20)
        # The replica takes over, and the former primary follows it, but not quite.
        replica.call("REPLICAOF", "NO", "ONE")
        late_feed = place.keep(Relay(replica.port))
        world.primary.call("REPLICAOF", HOST, late_feed.port)
        done = world.gateway.order("failover", "alpha", "r0")
        # The gateway may have followed by itself.
        assert done.returncode == 0 or "is the primary already" in done.stderr, done.stderr
        wait_until(lambda: linked(world.primary), "the former primary follows", 20)
        late_feed.stalled.set()
        assert conn.call("SET", "key", "newest") == "OK"
        for _ in range(60):
            assert conn.call("GET", "key") == b"newest"
            time.sleep(0.005)
        late_feed.stalled.clear()
        before = gets(world.primary)

        def is_read():
            assert conn.call("GET", "key") == b"newest"
            return gets(world.primary) > before
        wait_until(is_read, "it reads from the former primary", 10)
