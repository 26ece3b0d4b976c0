"""Chaos with real processes, for a minute (`scripts/long chaos` goes on for longer), and that its checks find what is
wrong: a history that no register has must not pass."""

import os
import subprocess
import sys

import pytest

from chaos import leaks
from chaos.client import Memcached, Odd, Redis
from chaos.history import History, read_notes
from chaos.register import NEVER, Undecided, check, check_not_stale, check_own, loss, read, wipe, write
from chaos.values import value_of, write_of
from harness import ROOT

SECONDS = 60


def test_an_order_is_found_where_there_is_one():
    assert check([]) is None
    assert check([write("a", 1, 4), write("b", 2, 3), read("a", 5, 6)]) is None
    assert check([write("a", 1, 4), write("b", 2, 3), read("b", 5, 6)]) is None
    # It is seen before its writer knows.
    assert check([write("a", 1, 9), read("a", 2, 3), read("a", 4, 5)], initial="old") is None
    assert check([write(None, 1, 2), read(None, 3, 4)], initial="old") is None


@pytest.mark.parametrize("operations", [
    # Older than what was acknowledged.
    [write("a", 1, 2), write("b", 3, 4), read("a", 5, 6)],
    # Seen, and then not.
    [write("a", 1, 9), read("a", 2, 3), read("old", 4, 5)],
    # Twice: what was overwritten comes back.
    [write("a", 1, 2), write("b", 3, 4), read("b", 5, 6), read("a", 7, 8)],
    # One reader sees them in one order, another one in the other.
    [write("a", 1, 9), write("b", 1, 9), read("a", 2, 3), read("b", 4, 5), read("a", 6, 7)],
    # From nowhere, and lost.
    [read("foreign", 1, 2)],
    [write("a", 1, 2), read(None, 3, 4)],
    # What was deleted comes back.
    [write(None, 1, 2), read("old", 3, 4)],
])
def test_what_no_register_does_is_found(operations):
    assert check(operations, initial="old")


def test_a_write_without_an_answer_may_take_effect_at_any_time_but_once():
    unknown = write("a", 1, NEVER)
    assert check([unknown, read("old", 2, 3), read("a", 4, 5), read("a", 6, 7)], initial="old") is None
    assert check([unknown, read("old", 2, 3), write("b", 4, 5), read("b", 6, 7)], initial="old") is None
    assert check([unknown, write("b", 4, 5), read("b", 6, 7), read("a", 8, 9)], initial="old") is None
    assert check([unknown, read("a", 2, 3), write("b", 4, 5), read("b", 6, 7), read("a", 8, 9)], initial="old")
    assert check([read("a", 0.1, 0.2), unknown], initial="old")
    # Deletions cannot be told apart, but each of them happens once.
    deletion = [write(None, 1, NEVER), read(None, 2, 3), write("b", 4, 5)]
    assert check([*deletion, read(None, 6, 7)], initial="old")
    assert check([*deletion, write(None, 1, NEVER), read(None, 6, 7)], initial="old") is None


def test_one_connection_keeps_its_order():
    first = write("a", 1, 5)
    second = write("b", 1, 6, after=first)
    assert check([first, second, read("b", 7, 8)]) is None
    assert check([first, second, read("a", 7, 8)])
    early = read("old", 1, 6, after=first)
    assert check([first, early], initial="old")


def test_a_cache_that_was_killed_is_empty_and_stays_so():
    history = [write("a", 1, 2), wipe(3, 5)]
    assert check([*history, read("a", 3.1, 3.2), read(None, 4, 4.5)]) is None
    assert check([*history, read(None, 6, 7)]) is None
    assert check([*history, read("a", 6, 7)])
    assert check([write("a", 1, 2), read(None, 6, 7)])


def test_a_failover_loses_what_was_not_copied_and_nothing_else():
    history = [write("a", 1, 2), write("b", 4, 5), write("c", 6, 7)]
    lost = loss(8, 10, floor=3)
    for left in "abc":
        assert check([*history, lost, read(left, 11, 12)]) is None
    # It was copied.
    assert check([*history, loss(8, 10, floor=5.5), read("a", 11, 12)])
    assert check([*history, loss(8, 10, floor=3), read("older", 11, 12)], initial="older")
    # There was none.
    assert check([*history, read("b", 11, 12)])
    # What is lost does not come back, and none is lost before or after.
    assert check([*history, lost, read("a", 11, 12), read("c", 13, 14)])
    assert check([*history, lost, read("c", 11, 12), read("b", 13, 14)])
    assert check([*history, lost, write("d", 13, 14), read("c", 15, 16)])
    assert check([*history, lost, read("b", 7.1, 7.2)])
    # A deletion is lost like any other write, and other deletions tell nothing of it.
    deletion = write(None, 7.5, 7.6)
    assert check([*history, lost, read(None, 0.1, 0.2), deletion, read("c", 11, 12)]) is None
    assert check([*history, read(None, 0.1, 0.2), deletion, read("c", 11, 12)])
    # All of it may be lost, where nothing was copied.
    early = loss(8, 10, floor=0.5)
    assert check([*history, deletion, early, read(None, 11, 12)]) is None
    assert check([*history, early, read(None, 11, 12)]) is None
    assert check([*history, early, read("old", 11, 12)], initial="old") is None
    # What is acknowledged while it happens may be lost as well.
    assert check([*history, lost, write("d", 9, 11), read("b", 12, 13)]) is None
    assert check([*history, lost, write("d", 9, 11), read("d", 12, 13)]) is None


def test_a_search_without_end_is_given_up():
    crowd = [write(str(number), 1, 50 + number) for number in range(30)]
    with pytest.raises(Undecided):
        check([*crowd, read("29", 90, 91), read("28", 92, 93)], most=1000)


def test_a_cache_of_the_gateway_is_never_older_than_what_was_acknowledged():
    assert check_not_stale([write("a", 1, 4), read("a", 2, 3), read("old", 2, 3.5)], "old") is None
    assert check_not_stale([write("a", 1, 2), read("old", 3, 4)], "old")
    assert check_not_stale([write("a", 1, 2), write("b", 3, 4), read("a", 5, 6)])
    assert check_not_stale([write("a", 5, 6), read("a", 1, 2)])
    assert check_not_stale([read("foreign", 1, 2)])


def test_a_cache_whose_servers_come_and_go_has_only_what_was_written():
    assert check_own([write("a", 1, 2), write("b", 3, 4), read("a", 5, 6), read(None, 7, 8)]) is None
    assert check_own([read("foreign", 1, 2)])
    assert check_own([write("a", 5, 6), read("a", 1, 2)])


def test_notes_become_histories(tmp_path):
    """Also those of a client that was killed while it wrote, and of one that never began."""
    notes = tmp_path / "notes"
    lines = ['["ask", "c.1", "c", "plain", 1.0, [["write", "k", "c.1"], ["write", "k", "c.2"], ["read", "k", null]]]',
             '["told", "c.1", [[1.5, "ok", "c.1"], [1.6, "error", "ERR x"], [1.7, "ok", "c.2"]]]',
             '["ask", "c.2", "c", "plain", 2.0, [["delete", "k", null], ["read", "k", null]]]',
             '["told", "c.2", [[2.5, "foreign", "b\'?\'"], [2.6, "silent", "no']
    notes.write_text("\n".join(lines))
    parts, findings = read_notes([notes, tmp_path / "missing"])
    history = History()
    [first, second, third, deletion] = history.take(parts)["k"]
    assert (first.value, first.end, second.end, third.value) == ("c.1", 1.5, NEVER, "c.2")
    assert (second.after, third.after, deletion.end) == (first, first, NEVER)
    assert history.errors == {"ERR x": 1} and findings == []
    history.end_round({"k": [first, second, third, deletion]}, {"k": "c.2"})
    # It may yet be deleted.
    assert history.initial == {"k": "c.2"} and history.pending["k"] == [deletion]
    notes.write_text("\n".join([*lines[:3], lines[3] + '"]]]']))
    assert [it.kind for it in read_notes([notes])[1]] == ["foreign", "silent"]


def test_values_name_their_keys_and_writes():
    value = value_of("key:1", "c1.2")
    assert write_of("key:1", value) == "c1.2"
    assert write_of("key:2", value) is None
    assert write_of("key:1", value[:-1]) is None
    assert write_of("key:1", value[:-1] + b"?") is None
    assert write_of("key:1", b"") is None


class Said:
    """A connection on which this was said."""

    def __init__(self, place, data):
        server, self.conn = place
        server.sendall(data)

    def redis(self, kind, *parts):
        client = Redis.__new__(Redis)
        client.conn = self.conn
        return client.replies(kind, parts)

    def memcached(self, kind, *parts):
        return Memcached(self.conn, None).replies(kind, parts)


@pytest.fixture
def pair():
    import socket

    from harness import Conn
    left, right = socket.socketpair()
    conn = Conn.__new__(Conn)
    conn.socket, conn.timeout, conn.buffer = right, 5.0, bytearray()
    with left, right:
        yield left, conn


def test_replies_that_are_none_to_what_was_asked_are_found(pair):
    own, foreign = value_of("k", "c.1"), value_of("other", "c.2")
    bulk = lambda value: b"$%d\r\n%b\r\n" % (len(value), value)  # noqa: E731
    assert Said(pair, bulk(own)).redis("read", ("k", None)) == [("ok", "c.1")]
    assert Said(pair, bulk(foreign)).redis("read", ("k", None))[0][0] == "foreign"
    assert Said(pair, b"-ERR x\r\n").redis("write", ("k", "c.1")) == [("error", "ERR x")]
    for said, kind in ((b"+OK\r\n", "read"), (bulk(own), "write"), (b":2\r\n", "delete"), (b"*1\r\n+OK\r\n", "reads")):
        with pytest.raises(Odd):
            Said(pair, said).redis(kind, ("k", "c.1"))
    hit = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n"
    assert Said(pair, hit % (b"k", len(own), own)).memcached("read", ("k", None)) == [("ok", "c.1")]
    assert Said(pair, hit % (b"k", len(foreign), foreign)).memcached("read", ("k", None))[0][0] == "foreign"
    for said, kind in ((b"STORED\r\n", "read"), (b"END\r\n", "write"), (b"VALUE other 0 1\r\nx\r\nEND\r\n", "read")):
        with pytest.raises(Odd):
            Said(pair, said).memcached(kind, ("k", "c.1"))
        pair[1].buffer.clear()


def test_what_grows_is_a_leak():
    before = {"worker: sockets": 40, "worker: processes": 2, "buffered": 0, "worker: memory": 50 << 20}
    assert leaks.grown(before, dict(before)) == []
    assert leaks.grown(before, {**before, "buffered": 1 << 20}) == ["buffered: 1048576, not 0"]
    assert leaks.grown({"plain: waiting": 0}, {"plain: waiting": 1}) == ["plain: waiting: 1, not 0"]
    assert leaks.grown(before, {**before, "worker: processes": 1}) == ["worker: processes: 1, not 2"]
    assert leaks.grown(before, {**before, "worker: memory": 200 << 20})
    assert leaks.grown(before, {**before, "new: files": 1}) == ["new: files: 1, not 0"]


@pytest.mark.alone
@pytest.mark.certain
@pytest.mark.timeout(600)
def test_a_minute_of_chaos_finds_nothing(tmp_path):
    command = [sys.executable, "-m", "chaos", "--seconds", str(SECONDS), "--findings", tmp_path / "findings"]
    if seed := os.environ.get("CASHEW_SEED"):
        command += ["--seed", seed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "tests/python")})
    print(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert " 0 findings" in done.stdout
