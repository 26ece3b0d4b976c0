"""What servers could not be told to forget is kept on disk, and told them before they answer reads."""

import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from harness import Crowd, ReplyError, resp, server_lines, wait_until

KEYS = 100_000


def spool(place, **options):
    options = {"directory": place.directory / "spool", "max": "64mb", **options}
    return "{" + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}"


def segments(place):
    return [path for path in Path(place.directory / "spool").rglob("*.spool")]


def depth(gateway, pool="alpha"):
    return sum(numbers.get("spool_depth", 0) for numbers in gateway.stats()[pool].values()
               if isinstance(numbers, dict))


class Speaks:
    """What is said of keys, in many requests at once."""

    def __init__(self, kind, gateway):
        self.kind, self.gateway = kind, gateway

    def each(self, request, answers, keys, step=500, conn=None):
        """The answers, one for each key; errors are one line."""
        conn = conn or self.gateway.connect(timeout=30)
        got = []
        for start in range(0, len(keys), step):
            part = keys[start:start + step]
            conn.send(b"".join(request(key) for key in part))
            got += [answers(conn) for _ in part]
        return got

    def store(self, keys, conn=None):
        if self.kind == "redis":
            return self.each(lambda key: resp("SET", key, "v@1"), lambda it: it.raw_reply(), keys, conn=conn)
        return self.each(lambda key: b"set %b 0 0 3\r\nv@1\r\n" % key, lambda it: it.read_line(), keys, conn=conn)

    def delete(self, keys, conn=None):
        if self.kind == "redis":
            return self.each(lambda key: resp("DEL", key), lambda it: it.raw_reply(), keys, conn=conn)
        return self.each(lambda key: b"delete %b\r\n" % key, lambda it: it.read_line(), keys, conn=conn)

    def read(self, keys, conn=None):
        if self.kind == "redis":
            return self.each(lambda key: resp("GET", key), lambda it: it.raw_reply(), keys, conn=conn)

        def answer(conn):
            line = conn.read_line()
            if line.startswith(b"VALUE"):
                return conn.read_line() + conn.read_line()
            return line
        return self.each(lambda key: b"get %b\r\n" % key, answer, keys, conn=conn)

    @property
    def gone(self):
        return b":0\r\n" if self.kind == "redis" else b"NOT_FOUND"


def pool(kind, servers, place, **options):
    return {"servers": server_lines(servers), "timeout": 300, "redis": kind == "redis", "preconnect": True,
            "spool": spool(place), **options}


def server(kind, place):
    return place.redis() if kind == "redis" else place.memcached("-m", "256")


def names(count):
    return [b"key-%06d" % number for number in range(count)]


class Readers(Crowd):
    """Clients of all workers that read keys all the time, and keep what was stale."""

    def __init__(self, speaks, keys, count=4):
        super().__init__(self.run, count)
        self.speaks, self.keys = speaks, keys
        self.stale, self.good, self.errors = [], 0, 0

    def run(self, number):
        with self.speaks.gateway.connect(timeout=30) as conn:
            at = number
            while not self.ended.is_set():
                part = [self.keys[(at + step * 7919) % len(self.keys)] for step in range(20)]
                at += 20
                for key, answer in zip(part, self.speaks.read(part, conn)):
                    if b"v@1" in answer:
                        self.stale.append(key)
                    elif b"ERR" in answer:
                        self.errors += 1
                    else:
                        self.good += 1
                time.sleep(0.002)


@pytest.mark.certain
@pytest.mark.parametrize("kind", ["memcached", "redis"])
def test_a_server_that_hung_answers_nothing_that_was_deleted_meanwhile(place, kind):
    it = server(kind, place)
    # A busy machine may take longer than usual.
    options = {"spool": spool(place, hold="60s")}
    gateway = place.cashew({"alpha": pool(kind, [it], place) | options}, {"worker_processes": 2})
    speaks, keys = Speaks(kind, gateway), names(KEYS)
    speaks.store(keys)
    # Connections of all workers are there and stay.
    with Readers(speaks, keys[:100]) as readers:
        wait_until(lambda: len(readers.stale) > 100, "they are read")
        it.process.signal(signal.SIGSTOP)
        said = speaks.delete(keys[:1])
        assert said == [speaks.gone]
        said = speaks.delete(keys)
        assert set(said) == {speaks.gone}
        wait_until(lambda: depth(gateway) >= KEYS, "all are on disk")
    with Readers(speaks, keys) as readers:
        time.sleep(0.3)
        it.process.signal(signal.SIGCONT)
        wait_until(lambda: readers.good > 2000, "it answers", seconds=20)
    assert readers.stale == []
    assert set(speaks.read(keys)) == {b"$-1\r\n" if kind == "redis" else b"END"}
    wait_until(lambda: not segments(place), "nothing is left")
    assert depth(gateway) == 0
    # It goes on as ever.
    speaks.store(keys[:100])
    assert b"v@1" in speaks.read(keys[:1])[0]
    assert "has forgotten" in gateway.log()


def packet(opcode, key, extras=b"", value=b""):
    body = extras + key + value
    return struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, len(body), 0, 0) + body


def status_of(conn):
    header = conn.read(24)
    conn.read(int.from_bytes(header[8:12], "big"))
    return int.from_bytes(header[6:8], "big")


def test_a_server_that_hung_forgets_keys_that_no_line_can_name(place):
    """The binary protocol has keys of any bytes. In base64 these would be longer than a line's key may be."""
    it = place.memcached()
    gateway = place.cashew({"alpha": pool("memcached", [it], place) | {"spool": spool(place, hold="60s")}},
                           {"worker_processes": 1})
    keys = [(b"a key of %d \r\n" % length + b" \0" * 125)[:length] for length in (1, 186, 187, 233, 250)]
    keys += [b"noreply", b"plain"]
    with gateway.connect(timeout=30) as conn:
        for key in keys:
            conn.send(packet(0x01, key, b"\0" * 8, b"old") + packet(0x00, key))
            assert (status_of(conn), status_of(conn)) == (0, 0), key
        it.process.signal(signal.SIGSTOP)
        for key in keys:
            conn.send(packet(0x04, key))
            assert status_of(conn) == 1, key
        wait_until(lambda: depth(gateway) >= len(keys), "all are on disk")
        it.process.signal(signal.SIGCONT)

        def answers():
            conn.send(packet(0x00, b"other"))
            return status_of(conn) == 1

        wait_until(answers, "it answers", seconds=20)
        for key in keys:
            conn.send(packet(0x00, key))
            assert status_of(conn) == 1, key
    wait_until(lambda: not segments(place), "nothing is left")


def test_a_server_that_restarts_with_old_data_forgets_before_it_answers(place):
    it = place.redis("--save", "3600 1000000")
    gateway = place.cashew({"alpha": pool("redis", [it], place)}, {"worker_processes": 2})
    speaks, keys = Speaks("redis", gateway), names(5000)
    speaks.store(keys)
    it.call("SELECT", "0")
    it.call("SAVE")
    it.process.kill()
    with gateway.connect() as conn:
        wait_until(lambda: unanswered(conn), "it is gone")
    assert set(speaks.delete(keys)) == {speaks.gone}
    with Readers(speaks, keys) as readers:
        it.start()
        wait_until(lambda: readers.good > 500, "it answers", seconds=20)
    assert readers.stale == []


def unanswered(conn):
    try:
        conn.call("GET", "other")
    except ReplyError:
        return True
    return False


def stores(conn, key, value):
    try:
        return conn.call("SET", key, value) == "OK"
    except ReplyError:
        return False


def test_what_was_kept_outlives_the_gateway(place):
    it = server("memcached", place)
    options = pool("memcached", [it], place)
    gateway = place.cashew({"alpha": options}, {"worker_processes": 2})
    speaks, keys = Speaks("memcached", gateway), names(3000)
    speaks.store(keys)
    it.process.signal(signal.SIGSTOP)
    assert set(speaks.delete(keys)) == {speaks.gone}
    wait_until(lambda: depth(gateway) >= len(keys), "all are on disk")
    for pid in gateway.workers():
        os.kill(pid, signal.SIGKILL)
    gateway.process.kill()
    it.process.signal(signal.SIGCONT)
    gateway = place.cashew({"alpha": options}, {"worker_processes": 2})
    with Readers(Speaks("memcached", gateway), keys) as readers:
        wait_until(lambda: readers.good > 500, "it answers", seconds=20)
    assert readers.stale == []


def test_a_worker_that_is_killed_loses_a_tenth_of_a_second_at_most(place):
    it = server("memcached", place)
    gateway = place.cashew({"alpha": pool("memcached", [it], place)}, {"worker_processes": 1})
    speaks, keys = Speaks("memcached", gateway), names(20_000)
    speaks.store(keys)
    it.process.signal(signal.SIGSTOP)
    speaks.delete(keys[:1])
    told = []
    with gateway.connect(timeout=30) as conn:
        began = time.monotonic()
        for start in range(0, len(keys), 100):
            speaks.delete(keys[start:start + 100], conn)
            told.append((time.monotonic(), start + 100))
            if time.monotonic() - began > 0.6:
                break
    killed = time.monotonic()
    os.kill(gateway.workers()[0], signal.SIGKILL)
    it.process.signal(signal.SIGCONT)
    safe = max(count for at, count in told if at < killed - 0.1)
    wait_until(lambda: not segments(place), "it has forgotten", seconds=20)
    with it.connect() as conn:
        for key in keys[:safe]:
            conn.send(b"get %b\r\n" % key)
        for key in keys[:safe]:
            assert conn.read_line() == b"END", key


def test_a_failed_write_counts_where_that_is_said(place):
    for kind in ("redis", "memcached"):
        it = server(kind, place)
        options = pool(kind, [it], place, spool=spool(place, overwrites="true"))
        gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
        speaks, keys = Speaks(kind, gateway), names(100)
        speaks.store(keys)
        it.process.signal(signal.SIGSTOP)
        said = speaks.store(keys)
        assert all(b"ERR" in line for line in said), "the client is told"
        it.process.signal(signal.SIGCONT)
        with Readers(speaks, keys) as readers:
            wait_until(lambda: readers.good > 200, "it answers", seconds=20)
        # What was on its way when it stopped may have been stored; what came later was not.
        assert len(set(readers.stale)) <= len(keys)
        wait_until(lambda: not segments(place), "nothing is left")
        assert not any(b"v@1" in answer for answer in speaks.read(keys))
        gateway.stop()


def test_what_finds_no_room_is_an_error_and_service_goes_on(place):
    dead, well = server("memcached", place), server("memcached", place)
    base = place.directory / "spool"
    base.write_text("a file is in the way")
    options = pool("memcached", [dead, well], place, distribution="modula", hash="one_at_a_time")
    gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
    speaks, keys = Speaks("memcached", gateway), names(1000)
    speaks.store(keys)
    dead.process.kill()
    wait_until(lambda: any(b"ERR" in it for it in speaks.read(keys)), "it is gone")
    speaks.delete(keys)
    wait_until(lambda: "takes no keys" in gateway.log(), "the log tells")
    said = speaks.delete(keys)
    assert any(b"SERVER_ERROR" in line for line in said)
    assert any(line in (b"DELETED", b"NOT_FOUND") for line in said)
    speaks.store(keys)
    assert sum(b"v@1" in answer for answer in speaks.read(keys)) > 300
    # Once there is room it goes on.
    base.unlink()
    wait_until(lambda: set(speaks.delete(keys)) <= {b"DELETED", b"NOT_FOUND"}, "there is room")


def test_a_server_is_not_kept_from_reads_for_longer_than_hold(place):
    it = server("memcached", place)
    options = pool("memcached", [it], place, spool=spool(place, hold="0"))
    gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
    speaks, keys = Speaks("memcached", gateway), names(2000)
    speaks.store(keys)
    it.process.signal(signal.SIGSTOP)
    speaks.delete(keys)
    it.process.signal(signal.SIGCONT)
    with Readers(speaks, keys) as readers:
        wait_until(lambda: readers.good > 200, "it answers", seconds=20)
    wait_until(lambda: not segments(place), "nothing is left")
    assert not any(b"v@1" in answer for answer in speaks.read(keys))


@pytest.mark.parametrize("form", ["meta", "binary", "several"])
def test_every_form_of_a_deletion_is_answered_in_its_own_words(place, form):
    it = server("redis" if form == "several" else "memcached", place)
    kind = "redis" if form == "several" else "memcached"
    gateway = place.cashew({"alpha": pool(kind, [it], place)}, {"worker_processes": 1})
    speaks = Speaks(kind, gateway)
    speaks.store([b"a", b"b", b"c"])
    it.process.kill()
    with gateway.connect() as conn:
        if form == "meta":
            wait_until(lambda: b"ERR" in speaks.read([b"x"])[0], "it is gone")
            conn.send(b"md a Oabc k\r\nmd YiBi b k q\r\nmn\r\n")
            assert conn.read_line() == b"NF Oabc ka"
            assert conn.read_line() == b"NF kYiBi b"
            assert conn.read_line() == b"MN"
        elif form == "binary":
            wait_until(lambda: b"ERR" in speaks.read([b"x"])[0], "it is gone")
            header = b"\x80\x04\x00\x01" + bytes(4) + b"\0\0\0\x01" + b"abcd" + bytes(8)
            conn.send(header + b"a")
            answer = conn.read(24)
            assert answer[:2] == b"\x81\x04" and answer[6:8] == b"\0\x01" and answer[12:16] == b"abcd"
        else:
            wait_until(lambda: unanswered(conn), "it is gone")
            assert conn.call("DEL", "a", "b", "c") == 0
            assert conn.call("UNLINK", "a") == 0
            # What is no deletion is an error as ever.
            assert conn.error("INCR", "a").startswith("ERR")
    wait_until(lambda: depth(gateway) == {"meta": 2, "binary": 1, "several": 4}[form], "they are kept")


def gone(conn):
    wait_until(lambda: unanswered(conn), "it is gone")


def test_keys_are_forgotten_in_the_database_where_they_were(place):
    it = place.redis("--save", "3600 1000000")
    gateway = place.cashew({"alpha": pool("redis", [it], place)}, {"worker_processes": 1})
    with gateway.connect() as conn:
        for database in ("0", "3", "7"):
            conn.call("SELECT", database)
            conn.call("MSET", "a", database, "b", database)
        it.call("SAVE")
        it.process.kill()
        gone(conn)
        conn.call("SELECT", "3")
        assert conn.call("DEL", "a") == 0
        conn.call("SELECT", "7")
        assert conn.call("UNLINK", "b", "nothing") == 0
        it.start()
        wait_until(lambda: not unanswered(conn) and not segments(place), "it is back", seconds=20)
        for database, a, b in (("0", b"0", b"0"), ("3", None, b"3"), ("7", b"7", None)):
            conn.call("SELECT", database)
            assert conn.call("MGET", "a", "b") == [a, b]


def test_deletions_over_several_servers_say_what_was_there(place):
    dead, well = place.redis(), place.redis()
    options = pool("redis", [dead, well], place, distribution="modula", hash="one_at_a_time")
    gateway = place.cashew({"alpha": options}, {"worker_processes": 2})
    keys = [f"k{number}" for number in range(40)]
    with gateway.connect() as conn:
        for key in keys:
            conn.call("SET", key, "v")
        there = sum(well.call("EXISTS", key) for key in keys)
        assert 5 < there < 35
        dead.process.kill()
        wait_until(lambda: any("ERR" in str(failing(conn, key)) for key in keys), "it is gone")
        assert conn.call("DEL", *keys) == there
        # A key that is too long to be kept is an error as ever, and nothing else is hurt.
        long = "x" * 70_000
        said = [failing(conn, long + str(number), "DEL") for number in range(8)]
        assert any("ERR" in str(answer) for answer in said)
        conn.send(resp("DEL", "k1") + resp("GET", "nothing") + resp("DEL", "k2") + resp("PING"))
        assert [conn.raw_reply()[:1] for _ in range(4)][3] == b"+"
        conn.call("HELLO", "3")
        assert conn.call("DEL", *keys) == 0


def failing(conn, key, command="GET"):
    try:
        return conn.call(command, key)
    except ReplyError as error:
        return error


def test_a_quiet_deletion_is_kept_too(place):
    it = place.memcached()
    gateway = place.cashew({"alpha": pool("memcached", [it], place)}, {"worker_processes": 1})
    speaks = Speaks("memcached", gateway)
    speaks.store([b"a", b"b", b"c"])
    it.process.signal(signal.SIGSTOP)
    with gateway.connect(timeout=30) as conn:
        conn.send(b"delete a noreply\r\nmd b q\r\nmn\r\n")
        assert conn.read_line() == b"NF"
        assert conn.read_line() == b"MN"
    wait_until(lambda: depth(gateway) == 2, "both are kept")
    it.process.signal(signal.SIGCONT)
    wait_until(lambda: not segments(place), "it is told", seconds=20)
    with it.connect() as conn:
        conn.send(b"get a b c\r\n")
        conn.expect(b"VALUE c 0 3\r\nv@1\r\nEND\r\n")


def test_a_reload_and_a_killed_worker_lose_nothing_that_is_kept(place):
    it = place.memcached()
    options = pool("memcached", [it], place)
    gateway = place.cashew({"alpha": options}, {"worker_processes": 2})
    speaks, keys = Speaks("memcached", gateway), names(2000)
    speaks.store(keys)
    it.process.signal(signal.SIGSTOP)
    assert set(speaks.delete(keys[:1000])) == {b"NOT_FOUND"}
    wait_until(lambda: depth(gateway) >= 1000, "they are on disk")
    other = place.memcached()
    gateway.configure({"alpha": options, "beta": {"servers": server_lines([other])}})
    gateway.reload()
    os.kill(gateway.workers()[0], signal.SIGKILL)
    wait_until(lambda: len(gateway.workers()) == 2, "another one serves")
    assert set(speaks.delete(keys[1000:])) == {b"NOT_FOUND"}
    wait_until(lambda: depth(gateway) >= 2000, "all are on disk")
    it.process.signal(signal.SIGCONT)
    with Readers(speaks, keys) as readers:
        wait_until(lambda: readers.good > 500, "it answers", seconds=20)
    assert readers.stale == []


def test_a_group_is_told_whoever_takes_its_writes(place):
    primary = place.redis()
    replica = place.redis("--replicaof", f"127.0.0.1 {primary.port}")
    wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), "it follows")
    group = f"{{name: g, primary: '127.0.0.1:{primary.port}', replicas: ['127.0.0.1:{replica.port}']}}"
    gateway = place.cashew({"alpha": {"redis": True, "timeout": 300, "servers": [group],
                                      "spool": spool(place)}}, {"worker_processes": 1})
    with gateway.connect() as conn:
        for number in range(50):
            conn.call("SET", f"k{number}", "v")
        primary.wait_replicated()
        primary.process.kill()
        gone(conn)
        assert conn.call("DEL", *(f"k{number}" for number in range(25))) == 0
        replica.call("REPLICAOF", "NO", "ONE")
        gateway.order("failover", "alpha", "g", f"g/127.0.0.1:{replica.port}")
        # What is written before it was told everything would be deleted then.
        wait_until(lambda: stores(conn, "k4", "new"), "it takes writes", seconds=20)
        wait_until(lambda: not segments(place), "the new one is told", seconds=20)
        wait_until(lambda: not unanswered(conn), "it serves")
        assert conn.call("GET", "k3") is None
        assert conn.call("GET", "k4") == b"new"
        assert conn.call("GET", "k30") == b"v"


def test_a_server_that_cannot_be_told_is_let_go_after_hold(place):
    it = place.redis("--rename-command", "DEL", "")
    options = pool("redis", [it], place, spool=spool(place, hold="1s"))
    gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
    speaks = Speaks("redis", gateway)
    speaks.store([b"a", b"b"])
    it.process.signal(signal.SIGSTOP)
    assert speaks.delete([b"a"]) == [b":0\r\n"]
    time.sleep(1.5)
    it.process.signal(signal.SIGCONT)
    with gateway.connect() as conn:
        assert "told what to forget" in str(failing(conn, "b")), "not before"
        wait_until(lambda: not unanswered(conn), "it answers", seconds=10)
        assert conn.call("GET", "b") == b"v@1"
    assert "cannot be told what to forget: the server says" in gateway.log()
    assert depth(gateway) == 1, "it is kept"


@pytest.mark.parametrize("how", ["leaves", "stops"])
def test_who_deletes_and_does_not_wait_is_served_too(place, how):
    it = place.memcached()
    gateway = place.cashew({"alpha": pool("memcached", [it], place)}, {"worker_processes": 2})
    speaks, keys = Speaks("memcached", gateway), names(50)
    speaks.store(keys)
    it.process.signal(signal.SIGSTOP)
    for key in keys:
        with gateway.connect() as conn:
            conn.send(b"delete %b\r\n" % key)
            # It has come, and its server has not failed yet.
            time.sleep(0.002)
    if how == "stops":
        gateway.stop()
        gateway = place.cashew({"alpha": gateway.pools["alpha"]}, {"worker_processes": 2})
    else:
        wait_until(lambda: depth(gateway) >= len(keys), "all are kept")
    it.process.signal(signal.SIGCONT)
    wait_until(lambda: not segments(place), "it is told", seconds=20)
    with it.connect() as conn:
        for key in keys:
            conn.send(b"get %b\r\n" % key)
            conn.expect(b"END\r\n")


def test_a_full_queue_keeps_nothing_and_holds_nobody(place):
    it = place.redis()
    options = pool("redis", [it], place, server_queue_max=8)
    gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(b"".join(resp("DEL", f"k{number}") for number in range(500)))
        said = [conn.reply() for _ in range(500)]
        refused = [line for line in said if isinstance(line, ReplyError)]
        assert refused and all("queue is full" in str(line) for line in refused), refused[:3]
        assert conn.call("GET", "a") is None
    numbers = next(it for it in gateway.stats()["alpha"].values() if isinstance(it, dict) and "spooled" in it)
    assert (numbers["spooled"], numbers["spool_held"]) == (0, 0)


# The server has 200 ms for what it has taken, which a busy machine does not give it.
@pytest.mark.alone
def test_what_a_hung_server_has_in_its_sockets_does_not_outlive_its_deletion(place):
    # It serves connections by turns, twenty requests of each.
    it = place.memcached("-m", "256", "-t", "1")
    gateway = place.cashew({"alpha": pool("memcached", [it], place)}, {"worker_processes": 2})
    speaks, keys = Speaks("memcached", gateway), names(32_000)
    # Other clients, or connections that a gateway has given up: nobody reads what they say for now.
    writers = [it.connect() for _ in range(32)]
    it.process.signal(signal.SIGSTOP)
    for number, conn in enumerate(writers):
        conn.send(b"".join(b"set %b 0 0 3\r\nv@1\r\n" % key for key in keys[number::32]))
    # What it will store last it is told first to forget.
    assert set(speaks.delete(keys[::-1])) == {speaks.gone}
    wait_until(lambda: depth(gateway) >= len(keys), "all are on disk")
    it.process.signal(signal.SIGCONT)
    wait_until(lambda: not segments(place), "it is told", seconds=20)
    for conn in writers:
        assert {conn.read_line() for _ in range(1000)} == {b"STORED"}, "it had taken them"
        conn.close()
    assert not any(b"v@1" in answer for answer in speaks.read(keys))


@pytest.mark.parametrize("by", ["restart", "reload"])
def test_the_log_names_what_is_kept_for_a_server_that_is_called_otherwise_now(place, by):
    it = place.memcached()

    def named(name):
        return {"alpha": pool("memcached", [it], place) | {"servers": server_lines([it], names=[name])}}
    gateway = place.cashew(named("before"), {"worker_processes": 1})
    speaks, keys = Speaks("memcached", gateway), names(100)
    speaks.store(keys)
    it.process.signal(signal.SIGSTOP)
    assert set(speaks.delete(keys)) == {speaks.gone}
    wait_until(lambda: depth(gateway) >= len(keys), "they are on disk")
    kept = segments(place)[0].parent
    if by == "restart":
        gateway.stop()
        gateway = place.cashew(named("after"), {"worker_processes": 1})
    else:
        gateway.configure(named("after"))
        gateway.reload()
    wait_until(lambda: f"nobody is told what is in {kept}: no server of its pool has this name" in gateway.log(),
               "the log tells")
    it.process.signal(signal.SIGCONT)
    speaks = Speaks("memcached", gateway)
    wait_until(lambda: b"ERR" not in speaks.read(keys[:1])[0], "it serves")
    assert segments(place), "it is there for whoever gives the server its name back"
    gateway.configure(named("before"))
    gateway.reload()
    wait_until(lambda: not segments(place), "it is told", seconds=20)
    wait_until(lambda: b"ERR" not in speaks.read(keys[:1])[0], "it serves")
    assert set(speaks.read(keys)) == {b"END"}


@pytest.fixture
def small_disk(place):
    """A file system of 1 MiB where the spool is."""
    base = place.directory / "spool"
    base.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "cashew-test", str(base)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system is for root")
    yield base
    subprocess.run(["umount", "-l", str(base)], check=True)


def test_a_full_disk_loses_nothing_and_stops_nobody(place, small_disk):
    hung, well = server("memcached", place), server("memcached", place)
    options = pool("memcached", [hung, well], place, distribution="modula", hash="one_at_a_time")
    gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
    speaks, keys = Speaks("memcached", gateway), names(60_000)
    speaks.store(keys)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(700_000))
    hung.process.signal(signal.SIGSTOP)
    said = dict(zip(keys, speaks.delete(keys)))
    errors = [key for key, line in said.items() if line.startswith(b"SERVER_ERROR")]
    kept = [key for key, line in said.items() if line == speaks.gone]
    assert errors and kept, (len(errors), len(kept))
    # The other server deletes on.
    assert sum(line == b"DELETED" for line in said.values()) > len(keys) // 3
    wait_until(lambda: "takes no keys" in gateway.log() and "No space left" in gateway.log(), "the log tells")
    refused = sum(it["spool_refused"] for it in gateway.stats()["alpha"].values()
                  if isinstance(it, dict) and "spool_refused" in it)
    assert refused >= len(errors)
    # There is room again: who was refused may ask again.
    filler.unlink()
    wait_until(lambda: speaks.delete(errors[:1]) == [speaks.gone], "there is room")
    small = errors[:1000]
    assert set(speaks.delete(small)) == {speaks.gone}
    hung.process.signal(signal.SIGCONT)
    wait_until(lambda: not segments(place), "it is told", seconds=30)
    wait_until(lambda: b"ERR" not in speaks.read(small[:1])[0], "it serves")
    # Whatever was said to be gone is gone, and what was refused is there.
    assert set(speaks.read(kept)) == {b"END"} and set(speaks.read(small)) == {b"END"}
    assert any(b"v@1" in answer for answer in speaks.read(errors[1000:]))
