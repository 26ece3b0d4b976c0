"""Slow requests as clients are told of them, with where their time went; hot keys likewise."""

import re
import signal
import socket
import time

import pytest
import redis as redis_py

from harness import HOST, PATIENCE, ReplyError, resp, server_lines, wait_until
from relay import Relay

PARTS = re.compile(r"gateway=(\d+) queue=(\d+) server=(\d+) order=(\d+) client=(\d+)")
NAMES = ("gateway", "queue", "server", "order", "client")


def parts(text):
    return dict(zip(NAMES, map(int, PARTS.search(text).groups())))


def text(reply):
    """Bulk strings as text."""
    if isinstance(reply, list):
        return [text(part) for part in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


def slow(conn):
    """The entries without the words that were added, and where their time went."""
    entries = text(conn.call("SLOWLOG", "GET", "-1"))
    return [(entry[3][:-1], parts(entry[3][-1]), entry) for entry in entries]


def only_part(split, name, least, most):
    """What a reply may have lain in the socket while the worker was busy is the gateway's time."""
    busy = split["gateway"] if name == "server" else 0
    assert least <= split[name] + busy and split[name] >= least * 0.7, split
    assert split[name] <= most, split
    for other in NAMES:
        assert other == name or split[other] < least / 3, split


@pytest.fixture
def one(place):
    server = place.redis()
    relay = Relay(server.port)
    pool = {"redis": True, "slow_log": "30ms", "preconnect": True,
            "servers": [f"{HOST}:{relay.port}:1 r1"]}
    yield place.cashew({"alpha": pool}, {"worker_processes": 1}), server, relay
    relay.stopped.set()


def test_a_server_slowed_by_a_known_amount_shows_in_its_own_part(one):
    gateway, _, relay = one
    with gateway.connect() as conn:
        conn.call("CLIENT", "SETNAME", "app")
        assert conn.call("SET", "some:key", "v" * 300) == "OK"
        assert conn.call("SLOWLOG", "LEN") == 0
        for delay in (0.05, 0.2):
            relay.delay = lambda delay=delay: delay
            assert conn.call("GET", "some:key") == b"v" * 300
            relay.delay = lambda: 0.0
            words, split, entry = slow(conn)[0]
            assert words == ["GET", "some:key"]
            only_part(split, "server", delay * 1e6, delay * 1e6 + 25_000)
            host, port = conn.socket.getsockname()
            assert entry[4:] == [f"{host}:{port}", "app"]
            assert entry[2] == sum(split.values())
            assert abs(entry[1] - time.time()) < 5
        assert [entry[2][0] for entry in slow(conn)] == sorted(
            (entry[2][0] for entry in slow(conn)), reverse=True)
        assert conn.call("SLOWLOG", "LEN") == 2
        assert conn.error("SLOWLOG", "RESET").startswith("NOPERM")


def test_only_admins_reset_it_and_servers_are_asked_by_name(place):
    server = place.redis()
    server.call("CONFIG", "SET", "slowlog-log-slower-than", "0")
    pool = {"redis": True, "slow_log": "20ms", "command_policy": "admin",
            "servers": server_lines([server], ["r1"])}
    gateway = place.cashew({"alpha": pool, "beta": {**pool}}, {"worker_processes": 2})
    with gateway.connect("alpha") as conn, gateway.connect("beta") as other:
        for each in (conn, other):
            each.call("EVAL", "local t = redis.call('TIME') local e = t[1] * 1000000 + t[2] + 40000 "
                      "repeat t = redis.call('TIME') until t[1] * 1000000 + t[2] > e return 1", "1", "k")
        words, split, _ = slow(conn)[0]
        assert words[0] == "EVAL" and words[2:] == ["1", "k"]
        assert "more bytes" in words[1]
        only_part(split, "server", 39_000, 90_000)
        assert (conn.call("SLOWLOG", "LEN"), other.call("SLOWLOG", "LEN")) == (1, 1)
        theirs = text(conn.call("SLOWLOG", "GET", "100", "server:r1"))
        assert ["CONFIG", "SET", "slowlog-log-slower-than", "0"] not in [it[0] for it in slow(conn)]
        assert len(theirs) > 1 and all(len(entry) == 6 for entry in theirs)
        assert conn.call("SLOWLOG", "RESET") == "OK"
        assert (conn.call("SLOWLOG", "LEN"), other.call("SLOWLOG", "LEN")) == (0, 1)
        assert "SLOWLOG" in text(conn.call("SLOWLOG", "HELP"))[0]
        for wrong in (["GET", "x"], ["GET", "-2"], ["GET", "1", "2"]):
            assert conn.error("SLOWLOG", *wrong).startswith("ERR")
    client = redis_py.Redis(HOST, gateway.address)
    client.eval("for i = 1, 30000000 do end return 1", 0)
    assert client.slowlog_get()[0]["command"].startswith(b"EVAL")
    client.close()


def test_a_client_that_reads_slowly_shows_in_its_own_part(one):
    gateway, server, _ = one
    value = "v" * 12_000_000
    server.call("SET", "big", value)
    with gateway.connect() as conn, gateway.connect() as other:
        conn.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        conn.send(resp("GET", "big"))
        time.sleep(0.6)
        assert conn.reply(seconds=PATIENCE) == value.encode()
        seen = []
        wait_until(lambda: seen.extend(slow(other)) or seen, "the slow client")
        split = max((split for _, split, _ in seen), key=lambda split: split["client"])
        assert split["client"] > 400_000, seen


def test_a_lane_without_a_connection_shows_in_the_queue(place):
    server = place.redis()
    pool = {"redis": True, "slow_log": "50ms", "failover_wait": 5000,
            "servers": server_lines([server], ["r1"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert conn.call("SET", "k", "v") == "OK"
        server.stop()
        conn.send(resp("GET", "k"))
        time.sleep(0.5)
        server.start()
        # What the server had is gone, unless it was written down.
        assert conn.reply(seconds=PATIENCE) in (None, b"v")
        words, split, _ = slow(conn)[0]
        assert words == ["GET", "k"]
        assert split["queue"] > 300_000, split
        assert all(split[name] < 50_000 for name in NAMES if name != "queue"), split


def test_a_worker_that_is_busy_shows_in_the_gateway_s_part(place):
    """A request for many keys keeps the worker from all others for a while."""
    servers = [place.redis() for _ in range(2)]
    pool = {"redis": True, "slow_log": "2ms", "timeout": 20000, "preconnect": True,
            "servers": server_lines(servers, ["r1", "r2"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    heavy = resp("MGET", *(f"key:{n}" for n in range(150_000)))
    with gateway.connect() as busy, gateway.connect() as conn:
        found = []
        for _ in range(20):
            busy.send(heavy)
            conn.send(resp("GET", "tiny"))
            busy.reply(seconds=PATIENCE)
            conn.reply(seconds=PATIENCE)
            found = [split for words, split, _ in slow(conn) if words == ["GET", "tiny"]]
            if any(split["gateway"] > sum(split.values()) * 0.6 for split in found):
                return
        raise AssertionError(found)


def test_what_times_out_is_told_of_with_why(place):
    server = place.redis()
    pool = {"redis": True, "slow_log": "20ms", "timeout": 300, "preconnect": True,
            "servers": server_lines([server], ["r1"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert conn.call("SET", "k", "v") == "OK"
        server.process.signal(signal.SIGSTOP)
        try:
            conn.error("GET", "k")
        finally:
            server.process.signal(signal.SIGCONT)
        words, split, entry = slow(conn)[0]
        assert words == ["GET", "k"]
        only_part(split, "server", 290_000, 600_000)
        assert 'failure="Connection timed out"' in entry[3][-1] and "at=r1" in entry[3][-1]


def test_topology_and_secrets_are_not_told(place):
    server = place.redis()
    pool = {"redis": True, "slow_log": "1ms", "command_policy": "admin", "hide_topology": True,
            "servers": server_lines([server], ["r1"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn:
        server.process.signal(signal.SIGSTOP)
        conn.send(resp("CONFIG", "SET", "requirepass", "hunter2")
                  + resp("CONFIG", "SET", "requirepass", ""))
        time.sleep(0.05)
        server.process.signal(signal.SIGCONT)
        conn.reply(), conn.reply()
        told = str(conn.call("SLOWLOG", "GET"))
        assert "redacted" in told and "hunter2" not in told and "r1" not in told


def test_memcached_clients_are_told_of_slow_requests_and_hot_keys(place):
    server = place.memcached()
    pool = {"slow_log": "30ms", "preconnect": True, "servers": server_lines([server], ["m1"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(b"set k 0 0 1\r\nv\r\n")
        conn.expect(b"STORED\r\n")
        server.process.signal(signal.SIGSTOP)
        conn.send(b"get k\r\n")
        time.sleep(0.1)
        server.process.signal(signal.SIGCONT)
        conn.expect(b"VALUE k 0 1\r\nv\r\nEND\r\n")
        conn.send(b"stats slow\r\n")
        lines = conn.read_until(b"END\r\n").decode().splitlines()
        assert len(lines) == 2 and " us get k (gateway=" in lines[0]
        only_part(parts(lines[0]), "server", 60_000, 200_000)
        for _ in range(50):
            conn.send(b"get hot\r\n")
            conn.expect(b"END\r\n")
        conn.send(b"stats hot\r\n")
        lines = conn.read_until(b"END\r\n").decode().splitlines()
        assert re.fullmatch(r"STAT hot \d+ \d+\.\d% m1", lines[0]), lines
        conn.send(b"stats hot size\r\nstats hot nonsense\r\n")
        assert b"STAT k 21 m1" in conn.read_until(b"END\r\n")
        conn.expect(b"CLIENT_ERROR usage: stats hot [requests|bytes|time|size]\r\n")


def test_hot_and_big_keys_are_told_with_their_shares(place):
    servers = [place.redis() for _ in range(2)]
    pool = {"redis": True, "servers": server_lines(servers, ["r1", "r2"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    with gateway.connect() as conn:
        conn.call("SET", "large", "x" * 1_000_000)
        pipeline = []
        for n in range(4000):
            key = "first" if n % 2 == 0 else "second" if n % 5 == 0 else f"other:{n}"
            pipeline.append(resp("GET", key))
        for start in range(0, len(pipeline), 100):
            conn.send(b"".join(pipeline[start:start + 100]))
            for _ in range(100):
                conn.reply()
        top = text(conn.call("HOTKEYS", "TOP", "requests", "10"))
        shares = {row[0]: float(row[2].rstrip("%")) for row in top}
        assert top[0][0] == "first" and abs(shares["first"] - 50) < 15, top
        assert 2 < shares["second"] < 25, top
        assert {row[3] for row in top} <= {"r1", "r2"}
        assert [row[1] for row in top] == sorted((row[1] for row in top), reverse=True)
        large = text(conn.call("HOTKEYS", "TOP", "size", "1"))[0]
        assert large[0] == "large" and large[1] > 1_000_000
        for wrong in (["x"], ["time", "0"], ["time", "x"], ["time", "1", "2"]):
            with pytest.raises(ReplyError):
                conn.call("HOTKEYS", "TOP", *wrong)


def stopped(server, seconds, work):
    """What `work` does while the server stands still for so long."""
    server.process.signal(signal.SIGSTOP)
    try:
        work()
        time.sleep(seconds)
    finally:
        server.process.signal(signal.SIGCONT)


def test_a_part_of_a_request_is_told_as_a_part(place):
    servers = [place.redis() for _ in range(2)]
    pool = {"redis": True, "slow_log": "20ms", "preconnect": True, "hash": "murmur",
            "servers": server_lines(servers, ["r1", "r2"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn:
        keys = [f"k{n}" for n in range(40)]
        for key in keys:
            conn.call("SET", key, "v")
        here = [key for key in keys if servers[0].call("EXISTS", key)]
        assert 0 < len(here) < 40
        stopped(servers[0], 0.06, lambda: conn.send(resp("MGET", *keys)))
        assert conn.reply() == [b"v"] * 40
        (words, _, entry), = slow(conn)
        assert (words[0], sorted(words[1:32])) == ("MGET", sorted(here[:31]))
        assert entry[3][-1].endswith(" at=r1 part=yes)"), entry
        stopped(servers[0], 0.06, lambda: conn.send(resp("GET", here[0])))
        assert conn.reply() == b"v"
        words, _, entry = slow(conn)[0]
        assert words == ["GET", here[0]] and "part" not in entry[3][-1]


def test_joined_gets_that_time_out_are_told_with_their_keys(place):
    server = place.memcached()
    pool = {"slow_log": "20ms", "timeout": 200, "preconnect": True,
            "servers": server_lines([server], ["m1"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn, gateway.connect() as other:
        conn.send(b"get k\r\n")
        conn.expect(b"END\r\n")
        ask = "get " + " ".join(f"mk{n}" for n in range(10)) + "\r\n"
        stopped(server, 0.5, lambda: conn.send(ask.encode()))
        conn.read_line()
        other.send(b"stats slow\r\n")
        lines = other.read_until(b"END\r\n").decode().splitlines()[:-1]
        asked = {word for line in lines for word in line.split(" us ")[1].split(" (")[0].split()[1:]}
        assert asked == {f"mk{n}" for n in range(10)}, lines
        assert all('failure="Connection timed out"' in line for line in lines)


def test_what_is_beside_a_large_request_does_not_get_another_one_s_words(place):
    """Its text is not kept, which is said, and nothing is guessed."""
    server = place.redis()
    pool = {"redis": True, "slow_log": "20ms", "preconnect": True,
            "servers": server_lines([server], ["r1"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.call("SET", "k", "v")
        requests = resp("GET", "before") + resp("SET", "large", "x" * 100_000) + resp("GET", "behind")
        stopped(server, 0.1, lambda: conn.send(requests))
        assert [conn.reply() for _ in range(3)] == [None, "OK", None]
        for words, _, _ in slow(conn):
            known = words in (["GET", "before"], ["GET", "behind"]) or words[:2] == ["SET", "large"]
            assert known or words[0].startswith("(not kept, the last one called was "), words


def test_cold_keys_of_requests_for_many_are_not_the_hottest(place):
    server = place.redis()
    pool = {"redis": True, "servers": server_lines([server], ["r1"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    many = resp("MGET", *(f"hk{n}" for n in range(100)))
    with gateway.connect() as conn:
        for _ in range(150):
            conn.send(many + resp("GET", "realhot") * 20)
            for _ in range(21):
                conn.reply()
        top = text(conn.call("HOTKEYS", "TOP", "requests", "5"))
        # Of 120 keys asked for each time 20 are this one.
        assert top[0][0] == "realhot", top
        assert all(float(row[2].rstrip("%")) < 8 for row in top[1:]), top


@pytest.mark.alone
def test_an_application_that_asks_for_the_log_all_the_time_holds_nobody_up(place):
    """Looking through the log is work, and a client that wants much of it waits for its turn."""
    server = place.redis()
    pool = {"redis": True, "slow_log": "1ms", "preconnect": True, "servers": server_lines([server], ["r1"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn, gateway.connect() as other:
        for _ in range(6):
            stopped(server, 0.01, lambda: conn.send(resp("GET", "k") * 100))
            for _ in range(100):
                conn.reply()
            time.sleep(1)
        assert conn.call("SLOWLOG", "LEN") > 300
        conn.send((resp("SLOWLOG", "LEN") + resp("HOTKEYS", "TOP") + resp("SLOWLOG", "GET")) * 700)
        longest = 0
        for _ in range(50):
            begin = time.monotonic()
            other.call("GET", "k")
            longest = max(longest, time.monotonic() - begin)
        for _ in range(2100):
            conn.reply(seconds=PATIENCE)
        assert longest < 0.5, longest
