"""Writes go to one region, and from there to the others: all have the same, or nothing."""

import random
import select
import socket
import threading
import time

import pytest

from harness import HOST, Crowd, ReplyError, free_port, resp, wait_until

KEYS = [b"key-%03d" % number for number in range(200)]


def has_ended(end):
    """Whether the other side has closed a connection, whatever it has said before."""
    poller = select.poll()
    poller.register(end, select.POLLRDHUP)
    return bool(poller.poll(0))


class Line:
    """A connection to another region: what is said takes a while, and it can be cut."""

    def __init__(self, port, delay=(0.0, 0.0), seed=5):
        self.target, self.delay, self.seed = port, delay, seed
        self.cut, self.stopped = threading.Event(), threading.Event()
        self.port = free_port()
        self.listener = socket.create_server((HOST, self.port))
        self.listener.settimeout(0.1)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        chance = random.Random(self.seed)
        while not self.stopped.is_set():
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection((HOST, self.target))
            except (TimeoutError, OSError):
                continue
            # Each connection takes its own way, so that they overtake each other.
            late = chance.uniform(*self.delay)
            threading.Thread(target=self._pass_on, args=(near, far, late), daemon=True).start()

    def _pass_on(self, near, far, late):
        waiting, was_cut = [], False
        try:
            while not self.stopped.is_set():
                if self.cut.is_set():
                    # Packets are lost: nothing comes through, and what was on its way never will. Who closes its
                    # end meanwhile sends nothing again.
                    was_cut = True
                    if waiting:
                        return
                    time.sleep(0.01)
                    continue
                if was_cut and any(has_ended(end) for end in (near, far)):
                    return
                was_cut = False
                readable, _, _ = select.select([near, far], [], [], 0.002)
                for one, other in ((near, far), (far, near)):
                    if one in readable:
                        data = one.recv(1 << 16)
                        if not data:
                            return
                        waiting.append((time.monotonic() + late, other, data))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, to, data = waiting.pop(0)
                    to.sendall(data)
        except OSError:
            pass
        finally:
            near.close()
            far.close()

    def close(self):
        self.stopped.set()
        self.listener.close()


@pytest.fixture
def lines():
    made = []
    yield made
    for line in made:
        line.close()


def two_regions(place, lines, kind, delay=(0.0, 0.0), node="", timeout=500, settings=None, **options):
    """The servers of both regions, the way to the second, and the gateway."""
    eu, us = ((place.redis() if kind == "redis" else place.memcached()) for _ in range(2))
    line = Line(us.port, delay)
    lines.append(line)
    common = {"redis": kind == "redis", "timeout": timeout, "listen": None}
    spool = "{directory: %s, max: 64mb}" % (place.directory / "spool")
    gateway = place.cashew({
        "eu": {"servers": [f"{HOST}:{eu.port}:1 eu1"], **common},
        "us": {"servers": [f"{HOST}:{line.port}:1 us1"], "spool": spool, **common},
        "alpha": {"redis": kind == "redis",
                  "route": "{regions: {here: eu, to: {eu: eu, us: us}%s}}" % node, **options},
    }, {"worker_processes": 2, **(settings or {})})
    return eu, us, line, gateway


def has(server, kind, keys=KEYS):
    """What a server has of the keys."""
    with server.connect() as conn:
        if kind == "redis":
            for key in keys:
                conn.send(resp("GET", key))
            return {key: conn.reply() for key in keys}
        found = {}
        for key in keys:
            conn.send(b"get %b\r\n" % key)
            line = conn.read_line()
            found[key] = None
            if line.startswith(b"VALUE"):
                found[key] = conn.read_line().strip()
                conn.read_line()
        return found


def differing(eu, us, kind, keys=KEYS):
    """Keys of which the second region has something else than the first."""
    first, second = has(eu, kind, keys), has(us, kind, keys)
    return {key: (first[key], second[key]) for key in keys
            if second[key] is not None and second[key] != first[key]}


def settled(gateway):
    us = gateway.stats()["us"]["us1"]
    return us["spool_depth"] == 0 and us["spool_held"] == 0 and us["in_queue"] == 0 and us["out_queue"] == 0


class Writers(Crowd):
    """Clients of all workers that write the same keys, all the time."""

    def __init__(self, kind, gateway, count=4, keys=KEYS):
        super().__init__(self.run, count)
        self.kind, self.gateway, self.keys = kind, gateway, keys
        self.took, self.errors = [], []

    def run(self, number):
        chance = random.Random(number)
        with self.gateway.connect("alpha", timeout=30) as conn:
            step = 0
            while not self.ended.is_set():
                step += 1
                key, value = chance.choice(self.keys), b"%d-%d" % (number, step)
                began = time.monotonic()
                what = chance.random()
                try:
                    if self.kind == "redis":
                        if what < 0.8:
                            conn.call("SET", key, value)
                        elif what < 0.9:
                            conn.call("DEL", key)
                        else:
                            conn.call("APPEND", key, b"+")
                    else:
                        if what < 0.8:
                            conn.send(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value))
                        elif what < 0.9:
                            conn.send(b"delete %b\r\n" % key)
                        else:
                            conn.send(b"append %b 0 0 1\r\n+\r\n" % key)
                        said = conn.read_line()
                        if b"ERROR" in said:
                            self.errors.append(said)
                except ReplyError as error:
                    self.errors.append(str(error))
                self.took.append(time.monotonic() - began)
                time.sleep(0.0005)


@pytest.mark.certain
@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_writes_at_once_leave_the_same_or_nothing_in_all_regions(place, lines, kind):
    eu, us, _, gateway = two_regions(place, lines, kind, delay=(0.0, 0.03))
    with Writers(kind, gateway, keys=KEYS[:20]) as writers:
        time.sleep(5)
    wait_until(lambda: settled(gateway), "all has arrived")
    time.sleep(0.2)
    assert writers.errors == []
    assert differing(eu, us, kind) == {}
    # It is no wonder if it has nothing: what is written by itself is there.
    with gateway.connect("alpha") as conn:
        for key in KEYS[50:]:
            if kind == "redis":
                conn.call("SET", key, "alone")
            else:
                conn.send(b"set %b 0 0 5\r\nalone\r\n" % key)
                conn.expect(b"STORED\r\n")
    wait_until(lambda: all(has(us, kind, KEYS[50:]).values()), "they are there")
    stats = gateway.stats()["alpha"]
    assert stats["region_copies"] > 1000 and stats["region_forgets"] > 0


@pytest.mark.certain
@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_after_a_cut_all_regions_have_the_same_or_nothing(place, lines, kind):
    eu, us, line, gateway = two_regions(place, lines, kind)
    with Writers(kind, gateway) as writers:
        time.sleep(1)
        before = has(us, kind)
        assert sum(value is not None for value in before.values()) > 100
        line.cut.set()
        time.sleep(5)
    # What is written later would hide what was not.
    line.cut.clear()
    assert writers.errors == []
    wait_until(lambda: settled(gateway), "all is told", seconds=20)
    time.sleep(0.2)
    assert differing(eu, us, kind) == {}
    assert gateway.stats()["us"]["us1"]["spool_replayed"] > 0


# It measures.
@pytest.mark.alone
def test_clients_do_not_wait_for_another_region(place, lines):
    _, us, _, gateway = two_regions(place, lines, "redis", delay=(0.08, 0.08))
    with Writers("redis", gateway, count=2) as writers:
        time.sleep(2)
    took = sorted(writers.took)
    assert took[len(took) * 9 // 10] < 0.04
    wait_until(lambda: any(has(us, "redis").values()), "it arrives")


def test_reads_are_answered_where_it_is_said(place, lines):
    for node, expected in (("", "eu"), (", reads: us", "us"), (", primary: us", "eu")):
        eu, us, _, gateway = two_regions(place, lines, "redis", node=node) \
            if "primary" not in node else primary_elsewhere(place, lines)
        eu.call("SET", "where", "eu")
        us.call("SET", "where", "us")
        with gateway.connect("alpha") as conn:
            assert conn.call("GET", "where") == expected.encode()
            conn.call("SET", "k", "v")
            wait_until(lambda: eu.call("GET", "k") == us.call("GET", "k") == b"v", "both have it")
            assert conn.call("INCRBY", "number", "5") == 5
            # What is no whole value is in the primary region only.
            primary, other = (us, eu) if "primary" in node else (eu, us)
            assert primary.call("GET", "number") == b"5"
            wait_until(lambda: other.call("EXISTS", "number") == 0, "the other one has nothing")
        gateway.stop()


def primary_elsewhere(place, lines):
    eu, us = place.redis(), place.redis()
    spool = "{directory: %s, max: 64mb}" % (place.directory / "spool")
    common = {"redis": True, "timeout": 500, "listen": None}
    gateway = place.cashew({
        "eu": {"servers": [f"{HOST}:{eu.port}:1 eu1"], "spool": spool, **common},
        "us": {"servers": [f"{HOST}:{us.port}:1 us1"], **common},
        "alpha": {"redis": True,
                  "route": "{regions: {here: eu, primary: us, to: {eu: eu, us: us}}}"},
    }, {"worker_processes": 1})
    return eu, us, None, gateway


def test_what_is_too_much_at_once_is_forgotten_there(place, lines):
    eu, us, _, gateway = two_regions(place, lines, "redis", delay=(0.1, 0.1), node=", outstanding: 5")
    for key in KEYS:
        us.call("SET", key, "old")
    with gateway.connect("alpha") as conn:
        for key in KEYS:
            conn.send(resp("SET", key, "new"))
        for _ in KEYS:
            conn.expect(b"+OK\r\n")
    wait_until(lambda: settled(gateway), "all is told", seconds=20)
    wait_until(lambda: differing(eu, us, "redis") == {}, "nothing old is left")
    assert gateway.stats()["alpha"]["region_forgets"] > 100


@pytest.mark.certain
def test_a_reload_amid_writes_leaves_the_same_or_nothing(place, lines):
    eu, us, _, gateway = two_regions(place, lines, "redis", delay=(0.0, 0.03))
    other = place.redis()
    base = dict(gateway.pools)
    # Its name is the first, so that all others have another number.
    more = {"aaa": {"redis": True, "servers": [f"{HOST}:{other.port}:1"]}}
    with Writers("redis", gateway, keys=KEYS[:20]) as writers:
        for step in range(6):
            time.sleep(0.4)
            gateway.configure(base if step % 2 else {**base, **more})
            gateway.reload()
    assert writers.errors == []
    wait_until(lambda: settled(gateway), "all has arrived")
    time.sleep(0.2)
    assert differing(eu, us, "redis") == {}


@pytest.mark.certain
def test_who_writes_and_leaves_has_it_in_all_regions(place, lines):
    eu, us = place.redis(), place.redis()
    line = Line(eu.port, (0.05, 0.05))
    lines.append(line)
    common = {"redis": True, "timeout": 2000, "listen": None}
    spool = "{directory: %s, max: 64mb}" % (place.directory / "spool")
    gateway = place.cashew({
        "eu": {"servers": [f"{HOST}:{line.port}:1 eu1"], **common},
        "us": {"servers": [f"{HOST}:{us.port}:1 us1"], "spool": spool, **common},
        "alpha": {"redis": True, "route": "{regions: {here: eu, to: {eu: eu, us: us}}}"},
    }, {"worker_processes": 2})
    for key in KEYS[:50]:
        eu.call("SET", key, "old")
        us.call("SET", key, "old")
    for key in KEYS[:50]:
        with gateway.connect("alpha") as conn:
            conn.send(resp("SET", key, "new"))
            time.sleep(0.005)
    wait_until(lambda: set(has(eu, "redis", KEYS[:50]).values()) == {b"new"}, "all are written")
    wait_until(lambda: differing(eu, us, "redis", KEYS[:50]) == {}, "they follow", seconds=5)


# What it is before, and what changes it.
CHANGES = [
    (["HSET", "k", "f", "1"], ["HSET", "k", "f", "2"]),
    (["ZADD", "k", "1", "a"], ["ZADD", "k", "2", "a"]),
    (["GEOADD", "k", "1", "1", "a"], ["GEOADD", "k", "2", "2", "a"]),
    (["SETBIT", "k", "7", "0"], ["SETBIT", "k", "7", "1"]),
    (["SET", "k", "-1"], ["INCR", "k"]),
    (["SET", "k", "1"], ["DECRBY", "k", "1"]),
    (["HSET", "k", "f", "-1"], ["HINCRBY", "k", "f", "1"]),
    (["SET", "k", "old"], ["GETSET", "k", "new"]),
    (["SET", "k", "old"], ["SET", "k", "new", "GET"]),
    (["SET", "k", "old"], ["SET", "k", "new", "KEEPTTL"]),
    (["SET", "k", "old"], ["SET", "k", "new", "XX"]),
    (["SET", "k", "old", "EX", "1000"], ["PERSIST", "k"]),
    (["SET", "k", "old"], ["EXPIRE", "k", "1000"]),
    (["RPUSH", "k", "a", "b"], ["LPOP", "k"]),
    (["RPUSH", "k", "a", "b"], ["LSET", "k", "0", "c"]),
    (["XADD", "k", "1-1", "f", "v"], ["XADD", "k", "2-1", "f", "v"]),
]


@pytest.mark.parametrize("before", ["the same", "only in the other"])
@pytest.mark.parametrize("made, change", CHANGES, ids=[" ".join(change) for _, change in CHANGES])
def test_what_changes_a_key_leaves_the_same_or_nothing(place, lines, made, change, before):
    eu, us, _, gateway = two_regions(place, lines, "redis")
    us.call(*made)
    if before == "the same":
        eu.call(*made)

    def is_alike():
        there = us.call("DUMP", "k")
        lasts = us.call("TTL", "k")
        return there is None or (there, lasts > 0) == (eu.call("DUMP", "k"), eu.call("TTL", "k") > 0)

    try:
        with gateway.connect("alpha") as conn:
            conn.call(*change)
    except ReplyError:
        # It is not there.
        assert before != "the same"
        return
    if before == "only in the other" and not eu.call("EXISTS", "k"):
        return
    wait_until(is_alike, "the other region follows")


@pytest.mark.parametrize("change", [b"mg k T40 v\r\n", b"touch k 40\r\n", b"gat 40 k\r\n", b"mg k N30 R600 v\r\n"])
def test_what_touches_an_item_touches_it_in_all_regions(place, lines, change):
    eu, us, _, gateway = two_regions(place, lines, "memcached")
    for server in (eu, us):
        with server.connect() as conn:
            conn.send(b"set k 0 500 1\r\nv\r\n")
            conn.expect(b"STORED\r\n")
    with gateway.connect("alpha") as conn:
        conn.send(change)
        conn.read_line()

    def is_alike():
        with us.connect() as conn:
            conn.send(b"mg k t\r\n")
            said = conn.read_line()
        return said == b"EN" or int(said.removeprefix(b"HD t")) <= 40

    wait_until(is_alike, "the other region follows")


def test_a_region_that_hangs_takes_little_memory_from_others(place, lines):
    _, us, line, gateway = two_regions(place, lines, "redis", timeout=20000, settings={"memory_max": "64mb"})
    with gateway.connect("alpha", timeout=10) as conn:
        conn.call("SET", "a", "b")
        line.cut.set()
        # Ten times what may be kept of them.
        for number in range(2000):
            assert conn.call("SET", f"k{number % 100}", "x" * 100_000) == "OK", number
    assert gateway.stats()["us"]["us1"]["spooled"] > 1000
    line.cut.clear()
    wait_until(lambda: settled(gateway), "it is told", seconds=60)
    assert us.call("EXISTS", *(f"k{number}" for number in range(100))) <= 100


def test_what_a_transaction_writes_is_forgotten_elsewhere(place, lines):
    eu, us, _, gateway = two_regions(place, lines, "redis", delay=(0.0, 0.01))
    keys = [f"{{t}}{number}" for number in range(6)]
    for server in (eu, us):
        for key in keys:
            server.call("SET", key, "old")
        server.call("SELECT", "0")
    with gateway.connect("alpha") as conn:
        conn.call("MULTI")
        conn.call("SET", keys[0], "new")
        conn.call("GET", keys[1])
        conn.call("RENAME", keys[2], "{t}other")
        conn.call("EVAL", "return redis.call('set', KEYS[1], 'new')", "1", keys[3])
        conn.call("APPEND", keys[4], "+")
        assert conn.call("EXEC") == ["OK", b"old", "OK", "OK", 4]
        wait_until(lambda: us.call("EXISTS", *keys) == 2, "it has forgotten four")
        assert us.call("MGET", keys[1], keys[5]) == [b"old", b"old"]
        assert eu.call("MGET", keys[0], keys[3], keys[4]) == [b"new", b"new", b"old+"]
        assert us.call("EXISTS", "{t}other") == 0
    assert gateway.stats()["alpha"]["region_forgets"] == 5


@pytest.mark.parametrize("how", ["watched", "refused", "discarded", "gone"])
def test_a_transaction_that_is_not_executed_has_nothing_forgotten(place, lines, how):
    eu, us, _, gateway = two_regions(place, lines, "redis")
    for server in (eu, us):
        server.call("SET", "k", "old")
    with gateway.connect("alpha") as conn:
        if how == "watched":
            conn.call("WATCH", "k")
            eu.call("SET", "k", "changed")
        conn.call("MULTI")
        assert conn.call("SET", "k", "new") == "QUEUED"
        if how == "watched":
            assert conn.call("EXEC") is None
        elif how == "refused":
            conn.error("NONSENSE")
            assert conn.error("EXEC").startswith("EXECABORT")
        elif how == "discarded":
            conn.call("DISCARD")
    time.sleep(0.3)
    assert us.call("GET", "k") == b"old"
    assert gateway.stats()["alpha"]["region_forgets"] == 0


def test_a_transaction_is_forgotten_in_the_database_that_it_selects(place, lines):
    eu, us, _, gateway = two_regions(place, lines, "redis")
    for server in (eu, us):
        with server.connect() as conn:
            for database in range(3):
                conn.call("SELECT", str(database))
                conn.call("MSET", "a", "old", "b", "old")
    with gateway.connect("alpha") as conn:
        conn.call("SELECT", "1")
        conn.call("MULTI")
        conn.call("SET", "a", "new")
        conn.call("SELECT", "2")
        conn.call("SET", "b", "new")
        conn.call("EXEC")
    with us.connect() as conn:
        def found():
            answers = []
            for database in range(3):
                conn.call("SELECT", str(database))
                answers.append(conn.call("EXISTS", "a", "b"))
            return answers
        wait_until(lambda: found() == [2, 1, 1], "it has forgotten them")
        assert conn.call("MGET", "a", "b") == [b"old", None]


def test_what_a_transaction_of_a_gone_client_did_is_forgotten_too(place, lines):
    eu, us = place.redis(), place.redis()
    line = Line(eu.port, (0.1, 0.1))
    lines.append(line)
    common = {"redis": True, "timeout": 2000, "listen": None}
    spool = "{directory: %s, max: 64mb}" % (place.directory / "spool")
    gateway = place.cashew({
        "eu": {"servers": [f"{HOST}:{line.port}:1 eu1"], **common},
        "us": {"servers": [f"{HOST}:{us.port}:1 us1"], "spool": spool, **common},
        "alpha": {"redis": True, "route": "{regions: {here: eu, to: {eu: eu, us: us}}}"},
    }, {"worker_processes": 1})
    us.call("SET", "k", "old")
    eu.call("SET", "k", "old")
    with gateway.connect("alpha") as conn:
        conn.call("MULTI")
        conn.call("SET", "k", "new")
        conn.send(resp("EXEC"))
        time.sleep(0.02)
    wait_until(lambda: eu.call("GET", "k") == b"new", "it is written")
    wait_until(lambda: us.call("GET", "k") is None, "it is forgotten")
    # A server that is killed has perhaps executed it.
    with gateway.connect("alpha") as conn:
        us.call("SET", "l", "old")
        conn.call("MULTI")
        conn.call("SET", "l", "new")
        line.cut.set()
        conn.send(resp("EXEC"))
        assert isinstance(conn.reply(), ReplyError)
    wait_until(lambda: us.call("GET", "l") is None, "nobody knows, so it is forgotten")


def test_a_large_answer_to_a_transaction_is_forgotten_elsewhere_too(place, lines):
    eu, us, _, gateway = two_regions(place, lines, "redis")
    large = "x" * 3_000_000
    for server in (eu, us):
        server.call("SET", "{t}small", "old")
        server.call("SET", "{t}large", large)
    with gateway.connect("alpha") as conn:
        conn.call("MULTI")
        conn.call("GET", "{t}large")
        conn.call("SET", "{t}small", "new")
        assert conn.call("EXEC") == [large.encode(), "OK"]
        wait_until(lambda: us.call("EXISTS", "{t}small", "{t}large") == 1, "it has forgotten one")
        # What is written by more commands than can be noted is refused.
        conn.call("MULTI")
        conn.send(b"".join(resp("SET", "{t}%d" % number, "v") for number in range(10_001)))
        said = [conn.reply() for _ in range(10_001)]
        assert said[:10_000] == ["QUEUED"] * 10_000 and "too many keys" in str(said[-1])
        assert conn.error("EXEC").startswith("EXECABORT")
        assert eu.call("EXISTS", "{t}1") == 0


class Transactions(Crowd):
    """Clients that write the same keys within transactions and outside of them."""

    def __init__(self, gateway, keys, count=4):
        super().__init__(self.run, count)
        self.gateway, self.keys, self.done, self.aborted = gateway, keys, 0, 0

    def run(self, number):
        chance, step = random.Random(number), 0
        with self.gateway.connect("alpha", timeout=30) as conn:
            while not self.ended.is_set():
                step += 1
                key, other = chance.sample(self.keys, 2)
                value = b"%d-%d" % (number, step)
                if chance.random() < 0.5:
                    conn.call("SET", key, value)
                    continue
                if chance.random() < 0.5:
                    conn.call("WATCH", key)
                conn.call("MULTI")
                conn.call("SET", key, value)
                conn.call("APPEND", other, "+")
                if conn.call("EXEC") is None:
                    self.aborted += 1
                self.done += 1
                time.sleep(0.0005)


@pytest.mark.certain
def test_transactions_and_writes_at_once_leave_the_same_or_nothing(place, lines):
    eu, us, line, gateway = two_regions(place, lines, "redis", delay=(0.0, 0.03))
    with Transactions(gateway, KEYS[:20]) as crowd:
        time.sleep(4)
        line.cut.set()
        time.sleep(2)
        line.cut.clear()
        time.sleep(2)
    assert crowd.done > 1000 and crowd.aborted > 0
    wait_until(lambda: settled(gateway), "all has arrived", seconds=20)
    time.sleep(0.2)
    assert differing(eu, us, "redis", KEYS[:20]) == {}


@pytest.mark.certain
def test_a_write_that_crosses_a_transaction_does_not_outlive_it_elsewhere(place, lines):
    eu, us, _, gateway = two_regions(place, lines, "redis", delay=(0.0, 0.03))
    for attempt in range(6):
        # Other connections to the other region, of which some are later than others.
        with gateway.connect("alpha") as one, gateway.connect("alpha") as other:
            for key in KEYS:
                one.send(resp("SET", key, b"%d" % attempt))
                other.send(resp("MULTI") + resp("APPEND", key, "+") + resp("EXEC"))
                assert one.reply() == "OK"
                assert [other.reply() for _ in range(2)] == ["OK", "QUEUED"]
                assert other.reply()
        wait_until(lambda: settled(gateway), "all has arrived")
        time.sleep(0.1)
        assert differing(eu, us, "redis") == {}


class Owners(Crowd):
    """Clients that have keys of their own, or share some, which they write one after the other, by several
    connections."""

    def __init__(self, kind, gateway, count=6, each=20, shared=None):
        super().__init__(self.run, count)
        self.kind, self.gateway, self.each, self.shared = kind, gateway, each, shared
        self.last, self.errors = {}, []

    def request(self, key, value):
        if self.kind == "redis":
            return resp("DEL", key) if value is None else resp("SET", key, value)
        if value is None:
            return b"delete %b\r\n" % key
        return b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value)

    def run(self, number):
        chance, step = random.Random(number), 0
        conns = [self.gateway.connect("alpha", timeout=30) for _ in range(6)]
        own = self.shared or [b"key-%d-%d" % (number, at) for at in range(self.each)]
        while not self.ended.is_set():
            conn, step = chance.choice(conns), step + 1
            values = {key: None if chance.random() < 0.15 else b"%d-%d" % (number, step) for key in chance.sample(own, 10)}
            conn.send(b"".join(self.request(key, value) for key, value in values.items()))
            for key, value in values.items():
                said = conn.reply() if self.kind == "redis" else conn.read_line()
                if isinstance(said, ReplyError) or (self.kind == "memcached" and b"ERROR" in said):
                    self.errors.append(said)
                self.last[key] = value
        for conn in conns:
            conn.close()


@pytest.mark.certain
@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_another_primary_region_amid_writes_leaves_the_last_value_or_nothing(place, lines, kind):
    eu, us = ((place.redis() if kind == "redis" else place.memcached()) for _ in range(2))
    ways = [Line(server.port, (0.0, 0.03), seed) for seed, server in enumerate((eu, us))]
    lines += ways

    def pools(primary):
        def pool(name, way):
            spool = "{directory: %s, max: 64mb}" % (place.directory / f"spool-{name}")
            return {"redis": kind == "redis", "timeout": 2000, "listen": None, "spool": spool,
                    "servers": [f"{HOST}:{way.port}:1 {name}1"]}
        node = "{regions: {here: eu, primary: %s, to: {eu: eu, us: us}}}" % primary
        return {"eu": pool("eu", ways[0]), "us": pool("us", ways[1]),
                "alpha": {"redis": kind == "redis", "route": node}}

    gateway = place.cashew(pools("eu"), {"worker_processes": 2})
    with Owners(kind, gateway) as owners, Owners(kind, gateway, shared=KEYS) as others:
        for step in range(10):
            time.sleep(0.4)
            gateway.configure(pools(("us", "eu")[step % 2]))
            gateway.reload()
        time.sleep(0.1)
    assert owners.errors == others.errors == []

    def is_settled():
        servers = [gateway.stats()[name][f"{name}1"] for name in ("eu", "us")]
        depths = ("spool_depth", "spool_held", "in_queue", "out_queue")
        return all(server[depth] == 0 for server in servers for depth in depths)
    wait_until(is_settled, "all has arrived", seconds=20)
    time.sleep(0.2)
    keys = sorted(owners.last)
    found = [has(server, kind, keys) for server in (eu, us)]
    wrong = {key: (*(region[key] for region in found), owners.last[key]) for key in keys
             if any(region[key] not in (None, owners.last[key]) for region in found)}
    assert wrong == {}
    # Of several writers nobody knows who was the last, but all regions have the same one's, or nothing.
    one, other = (has(server, kind) for server in (eu, us))
    assert {key: (one[key], other[key]) for key in KEYS
            if None not in (one[key], other[key]) and one[key] != other[key]} == {}
    assert sum(all(region[key] is not None for region in found) for key in keys) > len(keys) // 10


def test_a_transaction_may_not_write_keys_of_another_database(place, lines):
    eu, us, _, gateway = two_regions(place, lines, "redis")
    with gateway.connect("alpha") as conn:
        for words in (["MOVE", "a", "4"], ["COPY", "a", "b", "DB", "4"], ["copy", "a", "b", "replace", "db", "4"]):
            assert conn.call("MULTI") == "OK"
            assert "another database" in conn.error(*words)
            assert conn.error("EXEC").startswith("EXECABORT")
        assert conn.call("SET", "a", "v") == "OK"
        assert conn.call("MULTI") == "OK"
        assert conn.call("COPY", "a", "b") == "QUEUED"
        assert conn.call("EXEC") == [1]
