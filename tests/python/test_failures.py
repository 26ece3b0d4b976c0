"""Servers that are down, slow, silent, wrong or not alone: what clients see meanwhile and after."""

import contextlib
import os
import socket
import stat
import threading
import time

import pytest

from harness import (
    Conn,
    FakeServer,
    FullListener,
    HOST,
    ReplyError,
    commands,
    config_text,
    free_port,
    in_time,
    measured,
    resp,
    server_lines,
    silent,
    wait_until, unnamed,
)
from test_placement import KEYS, compare

REFUSED = "ERR Connection refused"
TIMED_OUT = "ERR Connection timed out"
SILENT = "ERR Server does not answer"


def pool_of(servers, names=None, **options):
    # Of the hashes, murmur spreads few and similar keys best.
    return {"redis": True, "hash": "murmur", "servers": server_lines(servers, names), **options}


def sorted_keys(gateway, servers, count=60):
    """By server, the keys among `count` that live there."""
    keys = [f"key-{n}" for n in range(count)]
    with gateway.connect() as conn:
        for key in keys:
            conn.call("SET", key, "v")
    return [[key for key in keys if server.call("EXISTS", key)] for server in servers]


def timed(work):
    begin = time.monotonic()
    return work(), time.monotonic() - begin


def succeeds(gateway, *words):
    """Whether the command works at the moment, on a connection of its own."""
    try:
        return gateway.call(*words) is not None
    except ReplyError:
        return False


class Watch:
    """Runs one command again and again beside a test, and remembers the slowest and the errors."""

    def __init__(self, gateway, *words, pool=None):
        self.slowest = 0.0
        self.errors = []
        self.count = 0
        self.running = True
        self.conn = gateway.connect(pool)
        self.words = words
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            while self.running:
                _, seconds = timed(lambda: self.conn.call(*self.words))
                self.slowest = max(self.slowest, seconds)
                self.count += 1
                time.sleep(0.005)
        except (ReplyError, AssertionError, OSError, EOFError) as error:
            self.errors.append(error)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.running = False
        self.thread.join(15)
        self.conn.close()

    def check(self, seconds):
        assert not self.errors, self.errors
        assert self.count > 0
        in_time(self.slowest, seconds, f"for one of {self.count}")


# ------------------------------------------------------------------------------------ server down


@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_keys_of_a_dead_server_fail(place, workers):
    servers = [place.redis() for _ in range(3)]
    gateway = place.cashew({"alpha": pool_of(servers)}, {"worker_processes": workers})
    by_server = sorted_keys(gateway, servers)
    dead, living = by_server[1], by_server[0] + by_server[2]
    with gateway.connect() as conn:
        conn.call("GET", dead[0])
        servers[1].stop()
        for _ in range(3):
            for key in living:
                assert conn.call("GET", key) == b"v"
            for key in dead[:5]:
                error, seconds = timed(lambda: conn.error("GET", key, seconds=5))
                assert unnamed(error) == REFUSED and seconds < 4.0
        # A command that touches it fails as a whole, and nothing around it does.
        conn.send(resp("GET", living[0]) + resp("MGET", *living, *dead) + resp("MGET", *living))
        assert conn.reply() == b"v"
        assert unnamed(conn.reply()) == REFUSED
        assert conn.reply() == [b"v"] * len(living)
        assert unnamed(conn.error("MSET", dead[0], "1", living[0], "v")) == REFUSED
        assert unnamed(conn.error("DEL", dead[0], "none-1", "none-2", "none-3")) == REFUSED

        servers[1].start()
        wait_until(lambda: succeeds(gateway, "SET", dead[0], "again"), "the server is back")
        wait_until(lambda: _get(conn, dead[0]) == b"again", "on the old connection too")
        assert conn.call("MGET", *living, dead[0]) == [b"v"] * len(living) + [b"again"]


def _get(conn, key):
    try:
        return conn.call("GET", key)
    except ReplyError:
        return None


def test_a_server_that_was_never_there(place):
    """It may come up after the gateway."""
    port = free_port()
    gateway = place.cashew({"alpha": pool_of([port])})
    with gateway.connect() as conn:
        assert unnamed(conn.error("GET", "a")) == REFUSED
        place.redis(port=port)
        wait_until(lambda: succeeds(gateway, "SET", "a", "1"), "the server is used")
        wait_until(lambda: _get(conn, "a") == b"1", "on the old connection too")


def test_all_servers_down_and_back(place):
    servers = [place.redis() for _ in range(3)]
    gateway = place.cashew({"alpha": pool_of(servers)})
    keys = [keys[0] for keys in sorted_keys(gateway, servers)]
    with gateway.connect() as conn:
        for server in servers:
            server.stop()
        for key in keys:
            assert conn.error("GET", key).startswith("ERR Connection re")
        assert conn.call("PING") == "PONG"
        assert unnamed(conn.error("MGET", *keys)) == REFUSED
        for server in servers:
            server.start()
        for key in keys:
            wait_until(lambda: succeeds(gateway, "SET", key, "1"), "a server is back")


def test_a_server_killed_under_load_gives_one_reply_for_each_request(place):
    servers = [place.redis() for _ in range(2)]
    gateway = place.cashew({"alpha": pool_of(servers)}, {"worker_processes": 2})
    conns = [gateway.connect() for _ in range(20)]
    for n, conn in enumerate(conns):
        conn.send(b"".join(resp("SET", f"{n}:{m}", m) for m in range(200)))
    servers[0].stop()
    for conn in conns:
        conn.send(resp("ECHO", "end"))
        for _ in range(200):
            reply = conn.reply()
            assert reply == "OK" or str(reply).startswith("ERR "), reply
        assert conn.reply() == b"end"
        conn.close()


def test_memcached_server_down(place):
    servers = [place.memcached() for _ in range(2)]
    gateway = place.cashew({"beta": {"hash": "murmur", "servers": server_lines(servers)}})
    keys = [b"key-%d" % n for n in range(20)]
    with gateway.connect() as conn:
        conn.send(b"".join(b"set %b 0 0 1\r\nx\r\n" % key for key in keys))
        conn.expect(b"STORED\r\n" * 20)
        with servers[0].connect() as direct:
            direct.send(b"get " + b" ".join(keys) + b"\r\n")
            held = {line.split(b" ")[1] for line in direct.read_until(b"END\r\n").split(b"\r\n")
                    if line.startswith(b"VALUE")}
        dead = [key for key in keys if key in held]
        living = [key for key in keys if key not in held]
        servers[0].stop()
        named = b"(server %b:%d)" % (HOST.encode(), servers[0].port)
        refused = b"SERVER_ERROR Connection refused %b\r\n" % named
        value = b"VALUE %b 0 1\r\nx\r\n"
        wait_until(lambda: _line(conn, b"get %b\r\n" % dead[0]) + b"\r\n" == refused, "refusal")
        for key in living:
            conn.send(b"get %b\r\n" % key)
            conn.expect(value % key + b"END\r\n")
        conn.send(b"get " + b" ".join(keys) + b"\r\nget %b\r\n" % living[0])
        conn.expect(refused + value % living[0] + b"END\r\n")
        # Nothing answers a noreply, not even an error.
        conn.send(b"set %b 0 0 1 noreply\r\ny\r\nincr %b 1 noreply\r\n" % (dead[0], dead[0]))
        conn.send(b"set %b 0 0 1\r\ny\r\nget %b\r\n" % (dead[0], living[0]))
        conn.expect(refused + value % living[0] + b"END\r\n")
        conn.send(b"delete %b\r\nflush_all\r\n" % dead[0])
        of_one = b"SERVER_ERROR %b:%d: Connection refused %b\r\n" % (
            HOST.encode(), servers[0].port, named)
        conn.expect(refused + of_one)
        servers[0].start()
        wait_until(lambda: _line(conn, b"incr %b 1\r\n" % dead[0]) == b"NOT_FOUND", "back")


def _line(conn, request):
    conn.send(request)
    line = conn.read_line()
    if line.startswith(b"VALUE"):
        conn.read_until(b"END\r\n")
    return line


# --------------------------------------------------------------------------------------- timeouts


@pytest.mark.alone
@measured
def test_a_silent_server_times_out_and_no_other_waits(place):
    fake = place.keep(FakeServer(silent))
    server = place.redis()
    gateway = place.cashew({"alpha": pool_of([fake, server], ["fake", "real"], timeout=1000)},
                           {"worker_processes": 1})
    with gateway.connect() as conn:
        keys = [f"key-{n}" for n in range(20)]
        conn.send(b"".join(resp("SET", key, "v") for key in keys))
        replies, seconds = timed(lambda: [conn.reply() for _ in keys])
        assert 0.9 < seconds < 8.0
        errors = {unnamed(reply) for reply in replies if isinstance(reply, ReplyError)}
        assert errors == {TIMED_OUT}
        living = next(k for k, reply in zip(keys, replies) if reply == "OK")
        dead = next(k for k, reply in zip(keys, replies) if reply != "OK")
        with Watch(gateway, "GET", living) as watch:
            for _ in range(3):
                # It fails sooner now that the server is known to be unwell.
                error, seconds = timed(lambda: conn.error("GET", dead))
                assert unnamed(error) == SILENT
                in_time(seconds, 0.9)
        watch.check(0.8)
        # Gathered from a server that answers and one that does not.
        error, seconds = timed(lambda: conn.error("MGET", *keys))
        assert unnamed(error) == SILENT
        in_time(seconds, 0.9)


def test_a_timeout_costs_only_what_is_behind_it_on_its_connection(place):
    """The fake falls silent on the connection where it is told so, and serves the others."""

    def moody(client, _number):
        for words in commands(client):
            if words[1:] == [b"be-silent"]:
                silent(client, 0)
                return
            client.sendall(b"$4\r\nfine\r\n")

    fake = place.keep(FakeServer(moody))
    gateway = place.cashew({"alpha": pool_of([fake], timeout=3000, server_connections=4)},
                           {"worker_processes": 1})
    conns = [gateway.connect() for _ in range(16)]
    for conn in conns:
        assert conn.call("GET", "warm") == b"fine"
    assert 2 <= len(fake.clients) <= 4
    conns[0].send(resp("GET", "before") + resp("GET", "be-silent") + resp("GET", "behind"))
    conns[0].expect(b"$4\r\nfine\r\n")
    for conn in conns[1:]:
        conn.send(resp("GET", "x"))
    served = 0
    for conn in conns[1:]:
        reply = conn.reply()
        assert reply == b"fine" or unnamed(reply) == TIMED_OUT
        served += reply == b"fine"
    assert served >= 8, "clients of the other connections are not concerned"
    assert unnamed(conns[0].reply()) == TIMED_OUT
    assert unnamed(conns[0].reply()) == TIMED_OUT
    for conn in conns:
        wait_until(lambda: _get(conn, "after") == b"fine", "a new connection")
        conn.close()
    assert not fake.errors


@pytest.mark.alone
@measured
def test_a_slow_script_times_out_and_a_fast_one_does_not(place):
    servers = [place.redis() for _ in range(2)]
    gateway = place.cashew({"alpha": pool_of(servers, timeout=1500)}, {"worker_processes": 1})
    by_server = sorted_keys(gateway, servers)
    loop = """
        local ends = redis.call('TIME')
        ends = ends[1] * 1000 + ends[2] / 1000 + tonumber(ARGV[1])
        repeat local now = redis.call('TIME') until now[1] * 1000 + now[2] / 1000 > ends
        return 'done'
    """
    with gateway.connect() as conn:
        assert conn.call("EVAL", loop, 1, by_server[0][0], 50) == b"done"
        with Watch(gateway, "GET", by_server[1][0]) as watch:
            error, seconds = timed(lambda: conn.error("EVAL", loop, 1, by_server[0][0], 5000))
        assert unnamed(error) == TIMED_OUT and 1.4 < seconds
        in_time(seconds, 4.5)
        watch.check(1.2)
        wait_until(lambda: _get(conn, by_server[0][0]) == b"v", "the server answers again")
        # The answer of the script, given up long ago, goes to nobody.
        for _ in range(20):
            assert conn.call("GET", by_server[0][1]) == b"v"


def test_without_a_timeout_a_slow_server_is_waited_for(place):
    servers = [place.redis()]
    gateway = place.cashew({"alpha": pool_of(servers)})
    with gateway.connect() as conn, servers[0].connect() as direct:
        conn.call("SET", "a", "1")
        for _ in range(5):
            direct.send(resp("DEBUG", "SLEEP", "1.5"))
            # Who is faster than that is answered before.
            time.sleep(0.1)
            value, seconds = timed(lambda: conn.call("GET", "a"))
            assert value == b"1" and direct.reply() == "OK"
            if seconds > 1.0:
                break
        assert seconds > 1.0


@pytest.mark.alone
@measured
def test_a_connection_that_never_completes(place):
    full = place.keep(FullListener())
    server = place.redis()
    gateway = place.cashew({"alpha": pool_of([full, server], ["full", "real"], timeout=1000)},
                           {"worker_processes": 1})
    keys = [f"key-{n}" for n in range(20)]
    with gateway.connect() as conn:
        conn.send(b"".join(resp("SET", key, "v") for key in keys))
        replies, seconds = timed(lambda: [conn.reply() for _ in keys])
        assert 0.9 < seconds < 8.0
        assert {unnamed(r) for r in replies if r != "OK"} == {TIMED_OUT}
        dead = next(k for k, reply in zip(keys, replies) if reply != "OK")
        living = next(k for k, reply in zip(keys, replies) if reply == "OK")
        with Watch(gateway, "GET", living) as watch:
            for _ in range(3):
                error, seconds = timed(lambda: conn.error("GET", dead))
                assert unnamed(error) == SILENT
                in_time(seconds, 0.9)
        watch.check(0.8)


def test_memcached_timeout(place):
    fake = place.keep(FakeServer(silent))
    gateway = place.cashew({"beta": {"servers": server_lines([fake]), "timeout": 400}})
    with gateway.connect() as conn:
        conn.send(b"get a\r\nset a 0 0 1 noreply\r\nx\r\nget b\r\n")
        conn.expect(b"SERVER_ERROR Connection timed out (server %b:%d)\r\n" % (HOST.encode(), fake.port) * 2)
        conn.send(b"nosuch\r\n")
        conn.expect(b"ERROR\r\n")


# --------------------------------------------------------------------------------------- ejection

EJECT = {"auto_eject_hosts": True, "server_failure_limit": 2}


def write_until_all_are_taken(gateway, keys):
    """Retries what a dead server cost, as an application would."""
    left = list(keys)
    deadline = time.monotonic() + 60
    with gateway.connect(timeout=30) as conn:
        while left and time.monotonic() < deadline:
            conn.send(b"".join(resp("SET", key, "") for key in left), 16_000)
            left = [key for key in left if conn.reply() != "OK"]
    assert not left, f"{len(left)} keys are still refused"


@pytest.mark.parametrize("distribution", ["ketama", "modula"])
@pytest.mark.parametrize("weights", [None, [1, 2, 3, 5, 10]], ids=["equal", "weighted"])
def test_the_ring_after_an_ejection_is_that_of_nutcracker(place, distribution, weights):
    servers = [place.redis() for _ in range(5)]
    pools = {"alpha": {
        "redis": True, "distribution": distribution, "hash": "murmur", "timeout": 2000,
        "server_retry_timeout": 600_000, **EJECT,
        "servers": server_lines(servers, None, weights)}}
    mine = place.cashew(pools, {"worker_processes": 2})
    theirs = place.nutcracker(pools)
    maps = []
    dead = 2
    servers[dead].stop()
    living = [server for n, server in enumerate(servers) if n != dead]
    for gateway in (theirs, mine):
        write_until_all_are_taken(gateway, KEYS)
        for server in living:
            server.call("FLUSHALL")
        write_until_all_are_taken(gateway, KEYS)
        maps.append({key: server.port for server in living for key in server.call("KEYS", "*")})
        assert len(maps[-1]) == len(KEYS)
    compare(maps[1], maps[0])


def test_an_ejected_server_returns_only_after_it_answered(place):
    servers = [place.redis() for _ in range(3)]
    gateway = place.cashew(
        {"alpha": pool_of(servers, timeout=5000, server_retry_timeout=500, **EJECT)},
        {"worker_processes": 2})
    by_server = sorted_keys(gateway, servers)
    dead = by_server[0]
    servers[0].stop()
    wait_until(lambda: succeeds(gateway, "SET", dead[0], "moved"), "the server is ejected")
    holders = [server for server in servers[1:] if server.call("EXISTS", dead[0])]
    assert len(holders) == 1
    # Several retry periods, and no request is risked on it.
    ends = time.monotonic() + 3
    with gateway.connect() as conn:
        while time.monotonic() < ends:
            for key in dead:
                conn.call("SET", key, "moved")
            time.sleep(0.02)
    stats = gateway.stats()["alpha"]
    assert stats["server_ejects"] >= 1
    name = f"{HOST}:{servers[0].port}"
    assert abs(stats[name]["server_ejected_at"] / 1e6 - time.time()) < 60
    assert all(s["server_ejected_at"] == 0 for n, s in stats.items()
               if isinstance(s, dict) and "server_ejected_at" in s and n != name)
    # Clients of all workers see it return, and none of them an error.
    watches = [Watch(gateway, "SET", dead[0], "moved") for _ in range(8)]
    with contextlib.ExitStack() as stack:
        for watch in watches:
            stack.enter_context(watch)
        servers[0].start()
        wait_until(lambda: servers[0].call("EXISTS", dead[0]), "the server has its keys again")
        time.sleep(0.5)
    for watch in watches:
        watch.check(4.0)
    with gateway.connect() as conn:
        for key in dead:
            conn.call("SET", key, "home")
    for key in dead:
        assert servers[0].call("GET", key) == b"home"


def test_a_silent_server_is_ejected_too(place):
    fake = place.keep(FakeServer(silent))
    server = place.redis()
    gateway = place.cashew(
        {"alpha": pool_of([fake, server], ["fake", "real"], timeout=1000,
                          server_retry_timeout=60_000, **EJECT)})
    write_until_all_are_taken(gateway, [f"key-{n}" for n in range(50)])
    with gateway.connect() as conn:
        for n in range(50):
            conn.call("SET", f"key-{n}", "v")
    assert server.call("DBSIZE") == 50


def test_all_servers_ejected_and_back(place):
    servers = [place.redis() for _ in range(2)]
    gateway = place.cashew(
        {"alpha": pool_of(servers, timeout=5000, server_retry_timeout=500, **EJECT)},
        {"worker_processes": 2})
    by_server = sorted_keys(gateway, servers)
    for server in servers:
        server.stop()
    ends = time.monotonic() + 2
    with gateway.connect() as conn:
        while time.monotonic() < ends:
            for keys in by_server:
                error, seconds = timed(lambda: conn.error("GET", keys[0]))
                assert error.startswith("ERR Connection re") and seconds < 4.0
            time.sleep(0.05)
        assert conn.error("GET", by_server[0][0]) == REFUSED
        for server in servers:
            server.start()
        for keys in by_server:
            wait_until(lambda: succeeds(gateway, "SET", keys[0], "1"), "a server is back")
        wait_until(lambda: all(s.call("EXISTS", k[0]) or not succeeds(gateway, "SET", k[0], "1")
                               for s, k in zip(servers, by_server)), "the first ring again")


def test_without_auto_eject_nothing_moves(place):
    servers = [place.redis() for _ in range(2)]
    gateway = place.cashew({"alpha": pool_of(servers, server_failure_limit=1)})
    by_server = sorted_keys(gateway, servers)
    servers[0].stop()
    with gateway.connect() as conn:
        for _ in range(30):
            assert conn.error("SET", by_server[0][0], "v").startswith("ERR Connection re")
    assert gateway.stats()["alpha"]["server_ejects"] == 0
    assert not servers[1].call("EXISTS", by_server[0][0])


def test_recycling_idle_connections_ejects_nobody(place):
    """A server that closes idle connections, and is there again at once, has not failed."""
    servers = [place.redis() for _ in range(2)]
    gateway = place.cashew(
        {"alpha": pool_of(servers, server_connections=4, server_retry_timeout=60_000, **EJECT)},
        {"worker_processes": 1})
    by_server = sorted_keys(gateway, servers)
    ends = 0
    for _ in range(5):
        conns = [gateway.connect() for _ in range(8)]
        for conn in conns:
            # It is connected to again at once the first time, and soon after that.
            wait_until(lambda: _get(conn, by_server[0][0]) == b"v", "the server is used")
            conn.close()
        ends += servers[0].call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        name = f"{HOST}:{servers[0].port}"
        wait_until(lambda: gateway.stats()["alpha"][name]["server_eof"] >= ends, "it is noticed")
    assert gateway.stats()["alpha"]["server_ejects"] == 0


def test_workers_never_disagree_about_the_ring(place):
    """What one connection wrote while the ring changes, every other one reads."""
    servers = [place.redis() for _ in range(3)]
    gateway = place.cashew(
        {"alpha": pool_of(servers, timeout=5000, server_retry_timeout=300, **EJECT)},
        {"worker_processes": 2})
    dead = sorted_keys(gateway, servers)[0][:10]
    conns = [gateway.connect() for _ in range(8)]
    taken = 0
    begin = time.monotonic()
    number = 0
    stopped = False
    while (elapsed := time.monotonic() - begin) < 8 or (taken <= 30 and elapsed < 60):
        number += 1
        if elapsed > 0.5 and not stopped:
            servers[0].stop()
            stopped = True
        if stopped and elapsed > 4 and not servers[0].process.running():
            servers[0].start()
        key = dead[number % len(dead)]
        writer = conns[number % len(conns)]
        before = _ring_changes(gateway)
        writer.send(resp("SET", key, number))
        if writer.reply() != "OK":
            continue
        taken += 1
        seen = [_read(conn, key) for conn in conns]
        seen = [value for value in seen if not isinstance(value, ReplyError)]
        # A change in between moves the key to a server that does not have it, and so each
        # reader may find it or not, but once one does not, those after it do not either.
        found = [value == b"%d" % number for value in seen]
        assert found == sorted(found, reverse=True), (number, seen)
        if not all(found):
            wait_until(lambda: _ring_changes(gateway) != before, f"a change explains {seen}")
    assert taken > 30
    for conn in conns:
        conn.close()


def _ring_changes(gateway):
    return gateway.stats()["alpha"]["ring_version"]


def _read(conn, key):
    conn.send(resp("GET", key))
    return conn.reply()


# ------------------------------------------------------------------------------- replies gone wrong


@pytest.mark.parametrize("part", [
    b"$10\r\nabc", b"$100000\r\n" + b"x" * 50_000, b"*3\r\n$1\r\na\r\n$1\r\n", b"+O", b":12", b"$",
], ids=["bulk", "large bulk", "array", "status", "integer", "length"])
def test_a_server_that_closes_in_the_middle_of_a_reply(place, part):
    def cutting(client, _number):
        for words in commands(client):
            if words[1] == b"cut":
                client.sendall(part)
                return
            client.sendall(b"$4\r\nfine\r\n")

    fake = place.keep(FakeServer(cutting))
    gateway = place.cashew({"alpha": pool_of([fake], timeout=2000)})
    with gateway.connect() as conn, gateway.connect() as other:
        other.call("GET", "x")
        conn.send(resp("GET", "x") + resp("GET", "cut") + resp("GET", "y"))
        conn.expect(b"$4\r\nfine\r\n")
        # Either nothing of it went out, and both get an error or y is asked again;
        # or a part did, and there is nothing left but to close.
        try:
            first, second = conn.reply(), conn.reply()
            assert isinstance(first, ReplyError), first
            assert isinstance(second, ReplyError) or second == b"fine", second
        except (EOFError, ConnectionResetError):
            pass
        for one in (other, conn) if _alive(conn) else (other,):
            wait_until(lambda: _get(one, "z") == b"fine", "the server is used again")


def _alive(conn):
    try:
        conn.expect_silence(0.05)
        return True
    except (AssertionError, OSError):
        return False


@pytest.mark.parametrize("garbage", [
    b"garbage\r\n", b"$-5\r\n", b"*99999999999999\r\n", b"$abc\r\nabc\r\n", b"\0\0\0\0\r\n",
], ids=repr)
def test_a_server_that_talks_nonsense(place, garbage):
    def wrong(client, _number):
        for words in commands(client):
            client.sendall(garbage if words[1] == b"wrong" else b"$4\r\nfine\r\n")

    fake = place.keep(FakeServer(wrong))
    gateway = place.cashew({"alpha": pool_of([fake], timeout=1000)})
    with gateway.connect() as conn:
        conn.send(resp("GET", "wrong"))
        error = conn.reply()
        assert isinstance(error, ReplyError) and str(error).startswith("ERR "), error
        wait_until(lambda: _get(conn, "x") == b"fine", "the server is used again")


def test_stray_bytes_are_no_ones_reply(place):
    """Whatever comes without having been asked for, a later request must not get it."""

    begun, over = [], []

    def stray(client, number):
        for words in commands(client):
            if words == [b"PING"]:
                client.sendall(b"+PONG\r\n")
                continue
            client.sendall(b"$4\r\nfine\r\n")
            time.sleep(0.05)
            begun.append(number)
            client.sendall(b"$5\r\nwrong\r\n")
            # Nobody can use this connection any more.
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
            over.append(number)
            return

    fake = place.keep(FakeServer(stray))
    gateway = place.cashew({"alpha": pool_of([fake], timeout=2000)})
    asked, fine = 0, 0
    with gateway.connect() as conn:
        # Between two connections the gateway waits for some milliseconds, and answers errors.
        while asked < 10 or len(over) < 2:
            assert asked < 10_000, f"{len(over)} connections were given up"
            conn.send(resp("GET", "a"))
            reply = conn.reply()
            assert reply == b"fine" or str(reply).startswith("ERR "), reply
            asked += 1
            # One for each that was fine.
            fine = fine + 1 if reply == b"fine" else fine
            wait_until(lambda: len(begun) >= fine and len(over) == len(begun), "it is given up")
    assert not fake.errors and len(over) > 1


def test_more_replies_than_requests_in_one_piece(place):
    def double(client, _number):
        for _ in commands(client):
            client.sendall(b"$4\r\nfine\r\n$5\r\nwrong\r\n")

    fake = place.keep(FakeServer(double))
    gateway = place.cashew({"alpha": pool_of([fake], timeout=2000)})
    with gateway.connect() as conn:
        for _ in range(10):
            conn.send(resp("GET", "a"))
            reply = conn.reply()
            assert reply == b"fine" or str(reply).startswith("ERR "), reply
            time.sleep(0.02)


# ------------------------------------------------------------------------- passwords and databases


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_password_and_database_together(place, over):
    servers = [place.redis("--requirepass", "secret") for _ in range(2)]
    lines = server_lines(servers) if over == "tcp" else [f"{s.path}:1" for s in servers]
    gateway = place.cashew({"alpha": {
        "redis": True, "hash": "murmur", "redis_auth": "secret", "redis_db": 3,
        "servers": lines}})
    with gateway.connect() as conn:
        assert conn.call("AUTH", "secret") == "OK"
        for n in range(50):
            assert conn.call("SET", f"k{n}", n) == "OK"
    sizes = []
    for server in servers:
        with server.connect() as direct:
            assert direct.call("DBSIZE") == 0
            direct.call("SELECT", "3")
            sizes.append(direct.call("DBSIZE"))
    assert sum(sizes) == 50 and all(sizes)


def test_database_alone_and_after_a_restart(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool_of([server], redis_db=5)})
    gateway.call("SET", "a", "1")
    server.stop()
    server.start()
    wait_until(lambda: succeeds(gateway, "SET", "b", "2"), "the server is back")
    with server.connect() as direct:
        assert direct.call("KEYS", "*") == []
        direct.call("SELECT", "5")
        assert direct.call("KEYS", "*") == [b"b"]


@pytest.mark.parametrize("option, value", [("redis_auth", "wrong"), ("redis_db", 99)])
def test_a_server_that_refuses_the_greeting_serves_nobody(place, option, value):
    """Data must not land in database 0, and nobody waits for ever."""
    options = ["--requirepass", "secret"] if option == "redis_auth" else []
    server = place.redis(*options)
    gateway = place.cashew({"alpha": pool_of([server], timeout=1000, **{option: value})})
    with gateway.connect() as conn:
        if option == "redis_auth":
            assert conn.call("AUTH", value) == "OK"
        for _ in range(3):
            conn.send(resp("SET", "a", "1"))
            assert isinstance(conn.reply(), ReplyError)
    with server.connect() as direct:
        assert direct.call("DBSIZE") == 0


# ------------------------------------------------------------------------------ master and replicas


class Replicated:
    def __init__(self, place, replicas=2, **options):
        self.master = place.redis("--repl-diskless-sync-delay", "0")
        self.replicas = [place.redis("--replicaof", HOST, self.master.port)
                         for _ in range(replicas)]
        for replica in self.replicas:
            wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"),
                       "replica in step")
        self.all = [self.master, *self.replicas]
        names = ["master"] + [f"replica-{n}" for n in range(replicas)]
        self.gateway = place.cashew(
            {"alpha": pool_of(self.all, names, **options)}, {"worker_processes": 2})

    def in_step(self, key, value):
        for replica in self.replicas:
            wait_until(lambda: replica.call("GET", key) == value, "replicated")

    def reset_counts(self):
        for server in self.all:
            server.call("CONFIG", "RESETSTAT")


def test_writes_at_the_master_and_reads_at_the_replicas(place):
    world = Replicated(place)
    keys = [f"key-{n}" for n in range(100)]
    with world.gateway.connect() as conn:
        for key in keys:
            assert conn.call("SET", key, "v") == "OK"
        world.in_step(keys[-1], b"v")
        # Replication itself runs the writes on the replicas; after this only clients count.
        world.reset_counts()
        for key in keys:
            assert conn.call("GET", key) == b"v"
        assert conn.call("MGET", *keys) == [b"v"] * 100
        assert conn.call("EXISTS", *keys) == 100
        reads = {"strlen": ["k"], "getrange": ["k", 0, 1], "ttl": ["k"], "type": ["k"],
                 "hmget": ["h", "f"], "bitpos": ["k", 1], "zrevrangebyscore": ["z", 1, 0],
                 "sort_ro": ["l"], "hgetall": ["h"], "zrange": ["z", 0, -1], "xrange": ["x", "-", "+"],
                 "geosearch": ["g", "FROMLONLAT", 1, 1, "BYRADIUS", 1, "m"], "lrange": ["l", 0, 1],
                 "eval_ro": ["return 1", 1, "k"], "dump": ["k"], "smismember": ["s", "m"]}
        for command, words in reads.items():
            conn.call(command, *words)
        for command in ("get", "mget", "exists", *reads):
            assert world.master.stat(command) == 0, command
            assert sum(replica.stat(command) for replica in world.replicas) > 0, command
        counts = [replica.stat("get") for replica in world.replicas]
        assert sum(counts) == 100 and all(count > 10 for count in counts), counts

        world.reset_counts()
        writes = {"incr": ["n"], "hset": ["h", "f", "v"], "getdel": ["d"], "expire": ["n", 100],
                  "eval": ["return 1", 1, "k"], "getex": ["k", "PERSIST"],
                  "mset": [w for key in keys for w in (key, "w")], "spop": ["s"],
                  "rename": [keys[0], "renamed"], "msetnx": ["m1", 1, "m2", 2],
                  "sunionstore": ["u1", "u2", "u3"], "bitop": ["NOT", "b1", "b2"]}
        for command, words in writes.items():
            conn.call(command, *words)
            assert world.master.stat(command) == 1, command
        assert conn.call("DEL", *keys) == 99


def test_with_no_replica_up_reads_go_to_the_master(place):
    world = Replicated(place, timeout=5000, server_retry_timeout=500)
    with world.gateway.connect() as conn:
        conn.call("SET", "a", "1")
        world.in_step("a", b"1")
        for replica in world.replicas:
            replica.stop()
        wait_until(lambda: _get(conn, "a") == b"1", "reads go to the master")
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            assert conn.call("MGET", "a", "b", "c", "d", "e") == [b"1"] + [None] * 4
            assert conn.call("SET", "a", "1") == "OK"
            time.sleep(0.02)
        for replica in world.replicas:
            replica.start()

        def replicas_read():
            _get(conn, "a")
            return any(replica.stat("get") for replica in world.replicas)

        wait_until(replicas_read, "replicas read again")


def test_without_its_master_a_write_fails_and_never_reaches_a_replica(place):
    world = Replicated(place, timeout=1000)
    with world.gateway.connect() as conn:
        conn.call("SET", "a", "1")
        world.in_step("a", b"1")
        world.reset_counts()

        def replicas_read():
            conn.call("GET", "a")
            return any(replica.stat("get") for replica in world.replicas)

        # Whoever is not connected yet does not read, and the master would be asked.
        wait_until(replicas_read, "replicas read")
        for replica in world.replicas:
            # A write that came here by mistake would succeed and be seen.
            replica.call("CONFIG", "SET", "replica-read-only", "no")
        world.master.stop()
        for replica in world.replicas:
            replica.call("CONFIG", "RESETSTAT")
        for n in range(30):
            assert conn.error("SET", f"k{n}", "v").startswith("ERR Connection re")
            assert conn.error("DEL", f"k{n}", "a").startswith("ERR Connection re")
            assert conn.call("GET", "a") == b"1"
        for replica in world.replicas:
            assert replica.stat("set") == replica.stat("del") == 0


# ------------------------------------------------------------------------------ addresses of all kinds


def test_unix_sockets_on_both_sides(place):
    servers = [place.redis() for _ in range(2)]
    path = place.directory / "gateway.sock"
    pools = {"alpha": {"redis": True, "hash": "murmur", "listen": f"{path} 0620",
                       "servers": [f"{server.path}:1" for server in servers]}}
    gateway = place.cashew(pools, {"worker_processes": 2})
    mode = os.stat(path)
    assert stat.S_ISSOCK(mode.st_mode) and stat.S_IMODE(mode.st_mode) == 0o620
    for _ in range(20):
        with Conn(path) as conn:
            pairs = [w for n in range(40) for w in (f"k{n}", n)]
            assert conn.call("MSET", *pairs) == "OK"
    assert all(server.call("DBSIZE") for server in servers)
    # A path left behind by a crash does not hinder the next start.
    gateway.stop()
    if not path.exists():
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    place.cashew(pools, {"worker_processes": 2})
    with Conn(path) as conn:
        assert conn.call("EXISTS", "k1") == 1


def test_a_unix_socket_of_memcached(place):
    path = place.directory / "memcached.sock"
    place.memcached("-s", path)
    gateway = place.cashew({"beta": {"servers": [f"{path}:1"]}})
    with gateway.connect() as conn:
        conn.send(b"set a 0 0 1\r\nx\r\nget a\r\n")
        conn.expect(b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n")


def test_ipv6_on_both_sides(place):
    server = place.redis(bind="::1")
    listen = f"::1:{free_port()}"
    gateway = place.cashew({"alpha": {
        "redis": True, "listen": listen, "servers": [f"::1:{server.port}:1 six"]}})
    with gateway.connect() as conn:
        assert conn.socket.family == socket.AF_INET6
        assert conn.call("SET", "a", "1") == "OK"
    assert server.call("GET", "a") == b"1"


def test_a_name_for_a_server(place):
    """localhost may have two addresses, of which one has no server."""
    server = place.redis()
    gateway = place.cashew({"alpha": {
        "redis": True, "servers": [f"localhost:{server.port}:1"], "timeout": 3000}})
    assert gateway.call("SET", "a", "1") == "OK"
    server.stop()
    with gateway.connect() as conn:
        assert conn.error("GET", "a").startswith("ERR Connection re")
    server.start()
    wait_until(lambda: succeeds(gateway, "SET", "a", "2"), "looked up again")
    assert f"localhost:{server.port}" in gateway.stats()["alpha"]


def test_both_dialects_are_the_same_gateway(place):
    server = place.redis()
    pools = {"alpha": pool_of([server])}
    assert config_text(pools) != config_text(pools, {"worker_processes": "auto"})
    for settings in (None, {"worker_processes": "auto"}):
        gateway = place.cashew(pools, settings)
        assert gateway.call("SET", "a", "1") == "OK"
