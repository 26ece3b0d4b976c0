"""Hot keys that are split, with real servers: `hot_keys: {above: 5%, do: split}`, and `cashew hot --do split`.

Two other ways to do it give wrong answers: copies that are all written, as a node `key_split` has them, and copies of one
name that gateways fill and Redis's invalidation messages spoil. Why is shown here, too; see docs/how-to.md, "Split over
servers". That shows Cashew first, and then plays gateways step by step.
"""

import json
import os
import random
import signal
import threading
import time

import pytest

from cluster import Cluster
from harness import ReplyError, resp, server_lines, wait_until
from test_events import events
from test_hot_answered import Load
from test_slow_hot import hot, metrics

WRITES = 200
ROUNDS = 50


class Split:
    """Two instances that have copies of keys on two servers, and who has which."""

    def __init__(self, place):
        self.servers = [place.redis(), place.redis()]
        self.gateways = [self.instance(place) for _ in range(2)]
        # A key whose copies are not together: the names say where they are.
        self.key = next(key for key in (f"hot{at}" for at in range(50)) if self.is_apart(key))
        names = [self.key, f"{self.key}::1"]
        self.copies = [(name, server) for name in names for server in self.servers if server.call("EXISTS", name)]
        assert [name for name, _ in self.copies] == names

    def is_apart(self, key):
        self.gateways[0].call("SET", key, "0")
        return all(server.call("EXISTS", key, f"{key}::1") == 1 for server in self.servers)

    def instance(self, place):
        gateway = place.cashew({
            "alpha": {"redis": True, "route": "{key_split: {to: data, copies: 2}}"},
            "data": {"redis": True, "servers": server_lines(self.servers), "timeout": 3000},
        }, {"worker_processes": 2})
        gateway.wait_serving()
        return gateway

    def stored(self):
        return [server.call("GET", name) for name, server in self.copies]

    def write_at_once(self, word):
        """Both instances have a client who writes; returns when all is acknowledged."""
        def write(number):
            with self.gateways[number].connect() as conn:
                barrier.wait()
                conn.send(b"".join(resp("SET", self.key, f"{word}-{number}-{at}") for at in range(WRITES)))
                for _ in range(WRITES):
                    assert conn.reply() == "OK"
                done.append(number)

        barrier, done = threading.Barrier(2), []
        threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(done) == 2


def test_copies_that_all_are_written_differ_when_two_write(place):
    split = Split(place)
    for at in range(ROUNDS):
        split.write_at_once(at)
        one, other = split.stored()
        if one != other:
            break
    else:
        pytest.fail("they never differed: may a key be split by a rule after all?")
    # Nobody writes any more, all is acknowledged, and a client reads now this and now that, for ever.
    with split.gateways[0].connect() as conn:
        for _ in range(2):
            assert {conn.call("GET", split.key) for _ in range(60)} == {one, other}
            time.sleep(0.5)
        # What writes one copy alone is refused: it would begin to fail when the key gets hot.
        conn.call("MULTI")
        assert "by another name" in conn.error("INCR", split.key)
        conn.call("DISCARD")
        assert "by another name" in conn.error("EVAL", "return redis.call('GET', KEYS[1])", "1", split.key)
        # Who writes past the gateway, or by a pool of it without the node, is not read by all.
        name, server = split.copies[0]
        server.call("SET", name, "foreign")
        assert {conn.call("GET", split.key) for _ in range(60)} == {b"foreign", other}
        # A copy that was evicted has a part of a value after the next write.
        conn.call("HSET", "hash", "a", "1", "b", "2")
        for server in split.servers:
            server.call("DEL", "hash::1")
        conn.call("HSET", "hash", "c", "3")
        sizes = {conn.call("HLEN", "hash") for _ in range(60)}
        assert sizes == {1, 3}


class Instance:
    """A gateway that reads copies of a key only while it knows them to be current, as carefully as can be: it has filled
    them itself, its server has told of no change since, and nobody has written through it since."""

    def __init__(self, place, owner, other, name):
        self.owner, self.other, self.tracker = (place.keep(it.connect()) for it in (owner, other, owner))
        self.name = name
        self.tracker.send(resp("HELLO", "3") + resp("CLIENT", "TRACKING", "ON", "BCAST"))
        self.tracker.read_until(b"+OK\r\n")
        self.is_current, self.read = False, None

    def hear(self):
        """Takes what the server has told of changes."""
        self.tracker.send(resp("PING"))
        if b"invalidate" in self.tracker.read_until(b"+PONG\r\n"):
            self.is_current, self.read = False, None

    def begin_fill(self):
        self.read = self.owner.call("GET", "hot")

    def send_fill(self):
        """The copy is on its way. As is the case with everything that is, nobody can call it back."""
        value = self.read
        return lambda: self.other.call("SET", self.name, value, "PX", "10000")

    def filled(self):
        self.is_current = self.read is not None

    def write(self, value):
        self.is_current, self.read = False, None
        assert self.owner.call("SET", "hot", value) == "OK"

    def get(self):
        copy = self.other.call("GET", self.name) if self.is_current else None
        return copy or self.owner.call("GET", "hot")


def played(place, names):
    """One instance fills a copy slowly while the other writes the key, fills, and reads. Returns what was written and
    acknowledged there, and what is read there afterwards."""
    owner, other = place.redis(), place.redis()
    one, two = (Instance(place, owner, other, name) for name in names)
    one.write("1")
    one.hear()
    two.hear()
    one.begin_fill()
    arrives = one.send_fill()
    two.write("2")
    two.hear()
    two.begin_fill()
    two.send_fill()()
    two.hear()
    two.filled()
    assert two.is_current and two.get() == b"2"
    arrives()
    two.hear()
    assert two.is_current, "nobody has changed the key, and it is told of no more"
    found = two.get()
    # That instance hears that what it has read is old. It has stored it by then.
    one.hear()
    one.filled()
    assert not one.is_current
    return b"2", found


def test_copies_of_one_name_that_invalidation_spoils_are_older_than_acknowledged_writes(place):
    written, found = played(place, ["hot::1", "hot::1"])
    assert (written, found) == (b"2", b"1"), "may a key be split by a rule after all?"


def test_copies_of_which_each_fill_has_its_own_are_right(place):
    """As Cashew has them."""
    written, found = played(place, ["hot::1.1", "hot::2.1"])
    assert written == found


class Spread:
    """Instances with hot keys split over servers."""

    def __init__(self, place, servers=3, instances=1, hot_keys="true", workers=2, options="ttl: 1h", pool=None,
                 users=None, **settings):
        self.place = place
        self.servers = [place.redis() for _ in range(servers)] if pool is None else []
        pool = pool or {"redis": True, "servers": server_lines(self.servers), "timeout": 3000}
        self.pools = {
            "alpha": {"redis": True, "route": f"{{cache: {{to: data, hot_only: true, {options}}}}}",
                      **({"users": users} if users else {})},
            "data": {**pool, "hot_keys": hot_keys},
        }
        self.gateways = [place.cashew(self.pools, {"worker_processes": workers, **settings}) for _ in range(instances)]
        self.gateway = self.gateways[0]
        for gateway in self.gateways:
            gateway.wait_serving()

    def order(self, *words, fails=False):
        done = self.gateway.order("hot", *words)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        return said

    def split(self, key="hot", copies=3):
        for gateway in self.gateways:
            done = gateway.order("hot", "--do", "split", "--copies", str(copies), key)
            assert done.returncode == 0, done.stderr

    def stat(self, name, gateway=None):
        return (gateway or self.gateway).stats()["alpha"][name]

    def happened(self, kind):
        return [it["message"] for it in events(self.gateway, f"?kind={kind}")]

    def sizes(self):
        return [server.call("DBSIZE") for server in self.servers]

    def gets(self):
        return [server.stat("get") for server in self.servers]

    def owner(self, key="hot"):
        return next(server for server in self.servers if server.call("EXISTS", key))

    def read_until_spread(self, conn, value, key="hot"):
        """Reads until copies have answered."""
        before = self.stat("copy_reads")

        def is_spread():
            assert {conn.call("GET", key) for _ in range(20)} == {value}
            return self.stat("copy_reads") > before + 20
        wait_until(is_spread, "copies answer")


def test_a_key_that_many_ask_for_is_split_by_a_rule(place):
    spread = Spread(place, hot_keys="{above: 20%, do: split, copies: 3, most: 2}")
    spread.gateway.call("SET", "hot", "0")
    owner = spread.owner()
    with Load(spread.gateway, 0.8) as load:
        wait_until(lambda: spread.happened("hot_key_split"), "it is found", seconds=60)
        text, = spread.happened("hot_key_split")
        assert text.startswith('pool data: reads of key "hot" go to copies, over 3 servers: it has ')
        wait_until(lambda: spread.stat("copy_reads") > 1000, "it is split", seconds=30)
        for server in spread.servers:
            server.call("CONFIG", "RESETSTAT")
        asked = load.asked
        wait_until(lambda: load.asked > asked + 20_000, "it is asked for", seconds=60)
        gets = {server: server.stat("get") for server in spread.servers}
        # The others' keys are a fifth, so that the key's own server would have more than four fifths of all.
        assert gets[owner] < 0.6 * sum(gets.values()), gets
        assert min(gets.values()) > 0.15 * sum(gets.values()), gets
        # It stays hot: what copies answer counts for the key, and names of copies are no keys.
        assert [it for it in hot(spread.gateway, pool="data") if it["share_percent"] > 40][0]["kept"] == "rule"
        assert not [it for it in hot(spread.gateway, pool="data") if it["key"].startswith("cashew:copy:")]
        assert spread.happened("hot_key_released") == []
        # What a client writes all others read at once, whichever workers they are at.
        conns = [place.keep(spread.gateway.connect()) for _ in range(8)]
        for value in range(1, 200):
            writer, reader = random.sample(conns, 2)
            assert writer.call("SET", "hot", str(value)) == "OK"
            assert [conn.call("GET", "hot") for conn in (reader, writer)] == [b"%d" % value] * 2
        # And what others write, when the server has told.
        owner.call("SET", "hot", "other")
        wait_until(lambda: all(conn.call("GET", "hot") == b"other" for conn in conns), "it is told of")
    assert 'pool data: hot key "hot" is split over 3 servers by rule: ' in spread.gateway.order("status").stdout


def test_an_operator_splits_a_key_and_takes_it_back(place):
    spread = Spread(place)
    gateway = spread.gateway
    gateway.call("SET", "hot", "x")
    owner = spread.owner()
    said = spread.order("--do", "split", "--copies", "3", "hot")
    assert "go to copies, over 3 servers: an operator wants it" in said
    assert "is split over 3 servers already" in spread.order("--do", "split", "--copies", "3", "hot")
    assert "--undo first" in spread.order("--do", "cache", "hot", fails=True)
    with gateway.connect() as conn:
        spread.read_until_spread(conn, b"x")
        for server in spread.servers:
            server.call("CONFIG", "RESETSTAT")
        assert {conn.call("GET", "hot") for _ in range(600)} == {b"x"}
        assert min(spread.gets()) > 120, spread.gets()
        # All else is for the key's own server.
        assert conn.call("MGET", "hot") == [b"x"] and conn.call("STRLEN", "hot") == 1
        names = [name for server in spread.servers for name in server.call("KEYS", "*")]
        copies = [name for name in names if name != b"hot"]
        assert len(copies) in (2, 4) and all(name.startswith(b"cashew:copy:") and b"hot" not in name for name in copies)
        assert all(server.call("PTTL", name) > 0 for server in spread.servers if server is not owner
                   for name in server.call("KEYS", "*"))
        assert spread.stat("copies_written") >= 2 and spread.stat("copies_missing") == 0
        assert ("cashew_hot_keys_split", {"pool": "data"}, 1.0) in metrics(gateway)
        status = json.loads(gateway.order("status", "--json").stdout)
        it, = next(pool for pool in status["pools"] if pool["name"] == "data")["hot_keys"]
        assert (it["action"], it["copies"], it["cause"]) == ("split", 3, "command")
        # It outlives a reload.
        gateway.reload()
        spread.read_until_spread(conn, b"x")
        assert "go to its own server alone" in spread.order("--undo", "hot")
        wait_until(lambda: sum(spread.sizes()) == 1, "copies are gone")
        for server in spread.servers:
            server.call("CONFIG", "RESETSTAT")
        assert {conn.call("GET", "hot") for _ in range(100)} == {b"x"}
        assert sum(spread.gets()) == owner.stat("get") == 100
    assert [len(spread.happened(f"hot_key_{kind}")) for kind in ("split", "released")] == [1, 1]


def test_what_cannot_be_split_is_refused(place):
    spread = Spread(place, servers=1)
    for words, why in [
        (("--do", "split", "k"), "no route has a node `cache` with `hot_only: true` for a pool of several servers of Redis"),
        (("--do", "split", "--pool", "data", "k"), "keys of pool 'data' cannot be split: it has one server"),
        (("--do", "cache", "--copies", "3", "k"), "only keys that are split have --copies"),
        (("--do", "split", "--copies", "1", "k"), "1 is not in 2..=16"),
        (("--do", "split", "--to", "b", "k"), "only keys that move go --to a pool"),
    ]:
        assert why in spread.order(*words, fails=True), words
    memcached = [place.memcached() for _ in range(2)]
    gateway = place.cashew({
        "alpha": {"route": "{cache: {to: data, hot_only: true}}"},
        "data": {"servers": server_lines(memcached), "timeout": 3000},
    }, {"worker_processes": 1})
    gateway.wait_serving()
    done = gateway.order("hot", "--do", "split", "--pool", "data", "k")
    assert done.returncode != 0 and "only servers of Redis tell of changes" in done.stderr


def test_nothing_that_is_read_is_older_than_an_acknowledged_write(place):
    """Two instances and several workers. Servers take copies late, all of them, lose them, and others write as well."""
    spread = Spread(place, instances=2)
    spread.gateway.call("SET", "hot", "0")
    owner = spread.owner()
    others = [server for server in spread.servers if server is not owner]
    spread.split()
    acknowledged, written, lock = [0], [0], threading.Lock()
    wrong, ended = [], threading.Event()

    def write(gateway):
        with gateway.connect() as conn:
            while not ended.is_set():
                # Of one writer at a time, so that numbers grow.
                with lock:
                    written[0] += 1
                    number = written[0]
                    assert conn.call("SET", "hot", str(number)) == "OK"
                    told[gateway] = number
                time.sleep(random.choice((0.01, 0.05, 1.2)))

    def read(gateway):
        with gateway.connect(timeout=30) as conn:
            last = 0
            while not ended.is_set():
                # What was acknowledged by this instance.
                least, depth = max(told[gateway], last), random.choice((1, 1, 5))
                conn.send(resp("GET", "hot") * depth)
                for _ in range(depth):
                    found = int(conn.reply())
                    if found < least:
                        wrong.append((found, least))
                    last = least = max(found, least)

    told = dict.fromkeys(spread.gateways, 0)
    jobs = [threading.Thread(target=job, args=(gateway,)) for gateway in spread.gateways for job in (write, read, read, read)]
    for job in jobs:
        job.start()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        victim = random.choice(others)
        if random.random() < 0.5:
            victim.call("CLIENT", "PAUSE", "150", "WRITE")
        else:
            victim.call("FLUSHALL")
        time.sleep(0.2)
    ended.set()
    for job in jobs:
        job.join(30)
    assert not wrong, wrong[:5]
    assert acknowledged and all(not job.is_alive() for job in jobs)
    assert all(spread.stat("copy_reads", gateway) > 200 for gateway in spread.gateways)
    assert sum(spread.stat("copies_missing", gateway) for gateway in spread.gateways) > 0


def test_servers_of_copies_may_forget_them_or_go(place):
    spread = Spread(place, workers=1, options="ttl: 1h")
    spread.gateway.call("SET", "hot", "x")
    owner = spread.owner()
    one, other = [server for server in spread.servers if server is not owner]
    spread.split()
    with spread.gateway.connect() as conn:
        spread.read_until_spread(conn, b"x")
        one.call("FLUSHALL")
        one.call("CONFIG", "RESETSTAT")
        assert {conn.call("GET", "hot") for _ in range(200)} == {b"x"}
        assert one.stat("get") == 1, "what is missing is not asked for again"
        assert spread.stat("copies_missing") == 1
        other.stop()
        assert {conn.call("GET", "hot") for _ in range(200)} == {b"x"}
        # Once more, with what is there.
        assert conn.call("SET", "hot", "y") == "OK"
        time.sleep(1.1)
        assert {conn.call("GET", "hot") for _ in range(200)} == {b"y"}
        wait_until(lambda: one.call("DBSIZE") == 1, "the one that is there has a copy")
        other.start()
        conn.call("SET", "hot", "z")

        def has_copy():
            assert {conn.call("GET", "hot") for _ in range(20)} == {b"z"}
            has = other.call("DBSIZE") > 0
            conn.call("SET", "hot", "z")
            return has
        wait_until(has_copy, "it has copies again", pause=0.5)


@pytest.mark.parametrize("size", [60_000, 1_000_000])
def test_large_values(place, size):
    spread = Spread(place, workers=1, options="ttl: 1h, bytes: 64mb, value_max: 1mb")
    values = [bytes(random.choices(b"ab", k=size)) for _ in range(2)]
    spread.gateway.call("SET", "hot", values[0])
    spread.split()
    with spread.gateway.connect() as conn:
        spread.read_until_spread(conn, values[0])
        for server in spread.servers:
            server.call("CONFIG", "RESETSTAT")
        for _ in range(5):
            conn.send(resp("GET", "hot") * 20)
            assert all(conn.reply() == values[0] for _ in range(20))
        assert conn.call("SET", "hot", values[1]) == "OK"
        spread.read_until_spread(conn, values[1])
        for server in spread.servers:
            if not server.call("EXISTS", "hot"):
                server.call("FLUSHALL")
        assert {conn.call("GET", "hot") for _ in range(50)} == {values[1]}


def test_a_server_that_takes_no_copies(place):
    spread = Spread(place, workers=1)
    spread.gateway.call("SET", "hot", "x")
    for server in spread.servers:
        server.call("ACL", "SETUSER", "default", "resetkeys", "~hot*")
    spread.split()
    with spread.gateway.connect() as conn:
        assert {conn.call("GET", "hot") for _ in range(200)} == {b"x"}
        wait_until(lambda: conn.call("GET", "hot") and spread.stat("copies_refused") >= 2, "they are refused")
        assert spread.stat("copies_written") == 0
    texts = spread.happened("copy_refused")
    assert len(texts) == 2 and all("refuses copies of hot keys" in text and "NOPERM" in text for text in texts)


def test_a_server_that_removes_no_copies_gets_no_more(place):
    spread = Spread(place, workers=1)
    spread.gateway.call("SET", "hot", "x")
    for server in spread.servers:
        server.call("ACL", "SETUSER", "default", "-unlink")
    spread.split()
    with spread.gateway.connect() as conn:
        spread.read_until_spread(conn, b"x")
        for at in range(30):
            assert conn.call("SET", "hot", str(at)) == "OK"
            assert {conn.call("GET", "hot") for _ in range(20)} == {str(at).encode()}
        wait_until(lambda: len(spread.happened("copy_refused")) == 2, "it is told")
    assert all("unlink" in text for text in spread.happened("copy_refused"))
    assert sum(server.call("DBSIZE") for server in spread.servers) <= 1 + 2 * 3


def test_a_server_that_hangs_is_waited_for_as_long_as_any_and_no_longer(place):
    servers = [place.redis() for _ in range(3)]
    pool = {"redis": True, "servers": server_lines(servers), "timeout": 400}
    spread = Spread(place, workers=1, pool=pool)
    spread.servers = servers
    spread.gateway.call("SET", "hot", "x")
    spread.split()
    with spread.gateway.connect() as conn:
        spread.read_until_spread(conn, b"x")
        copy = next(server for server in servers if not server.call("EXISTS", "hot"))
        os.kill(copy.process.pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            assert {conn.call("GET", "hot") for _ in range(200)} == {b"x"}
            # Each read is from its own server after 0.4 s, and the one that hangs is asked no more.
            assert time.monotonic() - begin < 20
        finally:
            os.kill(copy.process.pid, signal.SIGCONT)


def test_copies_are_not_for_users_who_have_some_keys(place):
    users = "{default: 'on nopass ~* &* +@all', guest: 'on >p ~cashew:* +@all'}"
    spread = Spread(place, workers=1, users=users)
    spread.gateway.call("SET", "hot", "x")
    spread.split()
    with spread.gateway.connect() as conn:
        spread.read_until_spread(conn, b"x")
    names = [name.decode() for server in spread.servers for name in server.call("KEYS", "cashew:copy:*")]
    assert names
    with spread.gateway.connect() as conn:
        assert conn.call("AUTH", "guest", "p") == "OK"
        assert conn.call("SET", "cashew:own", "x") == "OK"
        for name in names:
            assert "NOPERM" in conn.error("GET", name) and "NOPERM" in conn.error("SET", name, "forged")


def test_keys_of_a_cluster(place):
    cluster = Cluster(place, replicas=0)
    # What is on a node that is not known to have it goes in time.
    spread = Spread(place, pool=cluster.pools(timeout=5000)["alpha"], options="ttl: 15s")
    slot = 12182  # That of "foo".
    with spread.gateway.connect() as conn:
        assert conn.call("SET", "foo", "0") == "OK"
        spread.split("foo")
        spread.read_until_spread(conn, b"0", "foo")
        for server in cluster.servers:
            server.call("CONFIG", "RESETSTAT")
        assert {conn.call("GET", "foo") for _ in range(300)} == {b"0"}
        assert min(server.stat("get") for server in cluster.servers) > 40
        # Its slot moves, and that of a copy.
        owner = cluster.primary_of(slot)
        other = next(it for it in cluster.primaries() if it is not owner)
        cluster.move([slot], owner, other)
        cluster.wait_ok()
        assert other.call("SET", "foo", "1") == "OK"
        wait_until(lambda: conn.call("GET", "foo") == b"1", "the change is seen")
        spread.read_until_spread(conn, b"1", "foo")
        name = next(it for it in owner.call("KEYS", "cashew:copy:*"))
        assert owner.call("GET", name) in (b"0", b"1")
        its_slot = owner.call("CLUSTER", "KEYSLOT", name)
        cluster.move([its_slot], owner, other)
        cluster.wait_ok()
        assert {conn.call("GET", "foo") for _ in range(100)} == {b"1"}
        spread.order("--undo", "foo")
        wait_until(lambda: sum(server.call("DBSIZE") for server in cluster.servers) == 1, "copies are gone")
        with pytest.raises(ReplyError):
            conn.call("INCRBYFLOAT", "foo", "x")
