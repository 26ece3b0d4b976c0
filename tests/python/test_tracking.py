"""CLIENT TRACKING: clients that keep what they read are told of what has changed, with real servers."""

import json
import random
import socket
import threading
import time

import pytest
import redis
from redis.cache import CacheConfig

from harness import HOST, ReplyError, server_lines, wait_until

PATIENCE = 20


class Tracker:
    """A connection in RESP3 that sorts what comes: replies, and keys that it is told of. `None` stands for all keys."""

    def __init__(self, gateway, *how):
        host, port = gateway.address if isinstance(gateway.address, tuple) else (HOST, gateway.address)
        self.socket = socket.create_connection((host, port), timeout=PATIENCE)
        self.file = self.socket.makefile("rb")
        self.told = []
        self.call("HELLO", "3")
        if how != ("off",):
            assert self.call("CLIENT", "TRACKING", "ON", *how) == "OK"

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(it), it) for it in words))

    def read(self):
        line = self.file.readline()
        if not line:
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind in b"*~>":
            items = [self.read() for _ in range(int(rest))]
            return ("push", items) if kind == b">" else items
        if kind == b"%":
            return {self.read().decode(): self.read() for _ in range(int(rest))}
        if kind == b"-":
            raise ReplyError(rest.decode())
        return {b"+": rest.decode(), b"_": None}.get(kind, rest)

    def reply(self):
        while True:
            item = self.read()
            if not (isinstance(item, tuple) and item[0] == "push"):
                return item
            what, keys = item[1]
            assert what == b"invalidate", item
            self.told += [None] if keys is None else keys

    def call(self, *words):
        self.send(*words)
        return self.reply()

    def heard(self, *keys):
        """Waits until it has been told of all these; they are forgotten then."""
        deadline = time.monotonic() + PATIENCE
        while not set(keys) <= set(self.told):
            assert time.monotonic() < deadline, (keys, self.told)
            time.sleep(0.005)
            self.call("PING")
        told, self.told = self.told, []
        return told

    def heard_nothing(self, seconds=0.3):
        time.sleep(seconds)
        self.call("PING")
        return self.told == []

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture
def tracker(place):
    return lambda gateway, *how: place.keep(Tracker(gateway, *how))


def pool(servers, **options):
    return {"alpha": {"redis": True, "preconnect": True, "servers": server_lines(servers), **options}}


@pytest.mark.parametrize("workers", [1, 3])
def test_whoever_changes_a_key_its_readers_are_told(place, tracker, workers):
    servers = [place.redis() for _ in range(2)]
    gateway = place.cashew(pool(servers), {"worker_processes": workers})
    readers = [tracker(gateway) for _ in range(6)]
    keys = [f"k{number}".encode() for number in range(20)]
    with gateway.connect() as writer:
        for key in keys:
            writer.call("SET", key, "1")
        for reader in readers:
            for key in keys:
                assert reader.call("GET", key) == b"1"
            reader.told = []
        for key in keys:
            writer.call("SET", key, "2")
        for reader in readers:
            assert sorted(reader.heard(*keys)) == sorted(keys)
        # Who has not read it since is not told again.
        writer.call("SET", keys[0], "3")
        assert all(reader.heard_nothing(0.1) for reader in readers)
        # Past the gateway, by expiry, and by what is no plain write.
        for reader in readers:
            reader.call("MGET", *keys)
        of_servers = {server: [key for key in keys if server.call("EXISTS", key)] for server in servers}
        direct, mine = max(of_servers.items(), key=lambda it: len(it[1]))
        direct.call("SET", mine[0], "direct")
        direct.call("PEXPIRE", mine[1], 20)
        for reader in readers:
            reader.heard(mine[0], mine[1])
            reader.call("MGET", *keys)
        for server in servers:
            server.call("FLUSHALL")
        for reader in readers:
            reader.heard(None)
    assert gateway.stats()["alpha"]["keys_invalidated"] >= 120


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_that_a_client_keeps_is_older_than_what_it_was_told(place, tracker, workers):
    """Clients keep what they read and drop what they are told of. In the end all that they keep is what there is."""
    server = place.redis()
    gateway = place.cashew(pool([server], tracking_keys_max=40), {"worker_processes": workers})
    stopped = threading.Event()
    problems = []
    keys = [f"k{number}".encode() for number in range(60)]

    def write():
        with gateway.connect(timeout=60) as conn:
            number = 0
            while not stopped.is_set():
                number += 1
                conn.call("SET", random.choice(keys), number)

    def read(seed):
        rng = random.Random(seed)
        client = Tracker(gateway)
        kept = {}
        try:
            while not stopped.is_set():
                asked = rng.sample(keys, rng.randint(1, 5))
                for key in asked:
                    client.send("GET", key)
                for key in asked:
                    # In the order in which it comes: what it is told behind a reply is about that one, too.
                    value = client.reply()
                    for told in client.told:
                        kept.clear() if told is None else kept.pop(told, None)
                    client.told = []
                    kept[key] = value
            deadline = time.monotonic() + PATIENCE
            while True:
                client.call("PING")
                for told in client.told:
                    kept.clear() if told is None else kept.pop(told, None)
                client.told = []
                there = dict(zip(keys, server.call("MGET", *keys)))
                old = {key: value for key, value in kept.items() if there[key] != value}
                if not old:
                    return
                if time.monotonic() > deadline:
                    problems.append(old)
                    return
                time.sleep(0.05)
        except Exception as error:  # noqa: BLE001
            problems.append(repr(error))
        finally:
            client.close()

    writers = [threading.Thread(target=write) for _ in range(2)]
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in writers + readers:
        thread.start()
    time.sleep(3)
    stopped.set()
    for thread in writers + readers:
        thread.join()
    assert problems == []


def feeds(server):
    """The numbers of the connections on which a server tells."""
    lines = server.call("CLIENT", "LIST").decode().splitlines()
    words = [dict(word.split("=", 1) for word in line.split()) for line in lines]
    return [it["id"] for it in words if "B" in it["flags"]]


def test_a_feed_that_is_killed_and_a_server_that_is_restarted_cost_nothing_but_what_is_kept(place, tracker):
    server = place.redis()
    gateway = place.cashew(pool([server], failover_wait=3000))
    reader = tracker(gateway)
    gateway.call("SET", "a", "1")
    assert reader.call("GET", "a") == b"1"
    reader.told = []

    def told_of_all_and_then_of_a(value):
        wait_until(lambda: feeds(server), "the server tells")
        wait_until(lambda: gateway.call("SET", "a", value) == "OK", "it can be written")
        reader.heard(None) if None not in reader.told else None
        time.sleep(0.2)
        reader.call("GET", "a")
        reader.told = []
        gateway.call("SET", "a", value + "!")
        reader.heard(b"a")

    server.call("CLIENT", "KILL", "ID", feeds(server)[0])
    told_of_all_and_then_of_a("2")
    server.stop()
    reader.heard(None)
    server.start()
    told_of_all_and_then_of_a("3")


def test_what_no_server_tells_of_is_not_kept(place, tracker):
    server = place.redis()
    gateway = place.cashew(pool([server]))
    reader, other = tracker(gateway), tracker(gateway, "BCAST", "PREFIX", "a")
    gateway.call("SET", "a", "1")
    other.heard(b"a")
    reader.call("GET", "a")
    reader.told = []
    # The lanes go on, and who would tell is refused.
    server.call("ACL", "SETUSER", "default", "-client|tracking")
    for feed in feeds(server):
        server.call("CLIENT", "KILL", "ID", feed)
    for client in (reader, other):
        client.heard(None)
    time.sleep(0.5)
    for client in (reader, other):
        client.told = []
        for _ in range(3):
            assert client.call("GET", "a") == b"1"
            client.call("PING")
            assert client.told.count(b"a") >= 1
            client.told = []
    gateway.call("SET", "a", "2")
    assert reader.call("GET", "a") == b"2"


def test_replicas_tell_what_they_have_got(place, tracker):
    primary = place.redis("--repl-diskless-sync-delay", "0")
    replica = place.redis("--replicaof", HOST, primary.port)
    wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), "it has a copy")
    gateway = place.cashew({"alpha": {
        "redis": True, "preconnect": True, "reads": "prefer_replica",
        "servers": [f"{{name: s1, primary: '{HOST}:{primary.port}', replicas: ['{HOST}:{replica.port}']}}"],
    }})
    reader = tracker(gateway)
    for number in range(200):
        gateway.call("SET", "a", number)
        deadline = time.monotonic() + PATIENCE
        while True:
            value = reader.call("GET", "a")
            if value == str(number).encode():
                break
            # It is what the replica has not got yet: the reader is told when it has.
            reader.heard(b"a")
            assert time.monotonic() < deadline
        reader.told = []


USERS = {
    "default": {"rules": "on nopass ~* &* +@all"},
    "few": {"rules": "on >few ~open:* &* +@all"},
    "ann": {"rules": "on >ann ~* &* +@all", "key_prefix": "app1:"},
    "bob": {"rules": "on >bob ~* &* +@all", "key_prefix": "app2:"},
}


def test_who_is_told_of_what_by_prefixes_and_rights_and_tenants(place, tracker):
    server = place.redis()
    gateway = place.cashew(pool([server], users=json.dumps(USERS)))
    some = tracker(gateway, "BCAST", "PREFIX", "open:", "PREFIX", "x")

    def user(name, *how):
        client = tracker(gateway, "off")
        assert client.call("AUTH", name, name) == "OK"
        assert client.call("CLIENT", "TRACKING", "ON", *how) == "OK"
        return client

    few, ann, bob = user("few", "BCAST"), user("ann", "BCAST"), user("bob")
    assert bob.call("GET", "k") is None
    for client in (some, few, ann, bob):
        client.told = []
    gateway.call("MSET", "open:1", "1", "closed:1", "1", "xy", "1", "app1:k", "1", "app2:k", "1", "k", "1")
    assert sorted(some.heard(b"open:1", b"xy")) == [b"open:1", b"xy"]
    assert few.heard(b"open:1") == [b"open:1"]
    assert ann.heard(b"k") == [b"k"]
    assert bob.heard(b"k") == [b"k"]
    assert some.call("CLIENT", "TRACKINGINFO")["prefixes"] == [b"open:", b"x"]
    assert some.call("CLIENT", "TRACKING", "OFF") == "OK"
    gateway.call("SET", "open:1", "2")
    assert some.heard_nothing()
    # Somebody else's keys are others: all that it has kept may be.
    bob.call("GET", "k")
    assert bob.call("AUTH", "ann", "ann") == "OK"
    bob.heard(None)
    gateway.call("SET", "app2:k", "2")
    assert bob.heard_nothing()


def test_a_reload_a_resize_and_an_upgrade_keep_it(place, tracker):
    server = place.redis()
    gateway = place.cashew(pool([server]), {"worker_processes": 2})
    readers = [tracker(gateway, "NOLOOP") for _ in range(8)]
    gateway.call("SET", "a", "1")

    def works():
        for reader in readers:
            reader.call("GET", "a")
            reader.told = []
        gateway.call("SET", "a", "2")
        for reader in readers:
            reader.heard(b"a")

    works()
    gateway.configure(worker_processes=1)
    gateway.reload()
    for reader in readers:
        reader.heard(None)
    wait_until(lambda: len(gateway.workers()) == 1, "one worker is left")
    for reader in readers:
        # Those who have come hear it again when the feed there tells.
        reader.heard_nothing(0.2)
    works()
    gateway.configure(worker_processes=3)
    gateway.reload()
    works()


@pytest.mark.parametrize("workers", [1, 2])
def test_redis_py_with_its_cache(place, workers):
    server = place.redis()
    gateway = place.cashew(pool([server], redis_version="7.4.0"), {"worker_processes": workers})
    host, port = gateway.address if isinstance(gateway.address, tuple) else (HOST, gateway.address)
    with redis.Redis(host=host, port=port, protocol=3, cache_config=CacheConfig()) as cached, \
            redis.Redis(host=host, port=port) as plain:
        plain.set("a", "1")
        assert cached.get("a") == b"1"
        before = server.stat("get")
        for _ in range(200):
            assert cached.get("a") == b"1"
        assert server.stat("get") - before <= 2, "it is answered from the cache"
        for number in range(50):
            plain.set("a", number)
            wait_until(lambda: cached.get("a") == str(number).encode(), "it has heard of it")
        plain.hset("h", mapping={"f": 1})
        assert cached.hgetall("h") == {b"f": b"1"}
        plain.hset("h", "f", 2)
        wait_until(lambda: cached.hgetall("h") == {b"f": b"2"}, "hashes, too")
        plain.flushall()
        wait_until(lambda: cached.get("a") is None, "also of all keys")
