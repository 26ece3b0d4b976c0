"""Why no rule splits a hot key over copies, tried with real servers: docs/how-to.md, "Why there is no `do: split`".

Two ways give wrong answers: copies that are all written, as a node `key_split` has them, and copies that gateways fill
and Redis's invalidation messages spoil. The first test is of Cashew; the second plays gateways step by step.
"""

import threading
import time

import pytest

from harness import resp, server_lines

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
    """And cost each instance a copy on each server for each write: the reply that `do: cache` has at hand."""
    written, found = played(place, ["hot::1.1", "hot::2.1"])
    assert written == found
