"""Servers under SIGSTOP: one request waits for `timeout`, and the others are told at once."""

import signal
import time

import pytest
import redis as redis_py

from harness import HOST, PATIENCE, ReplyError, resp, server_lines, wait_until, unnamed

TIMED_OUT = "ERR Connection timed out"
SILENT = "ERR Server does not answer"
TIMEOUT = 1.5

pytestmark = pytest.mark.alone


def timed(work):
    begin = time.monotonic()
    return work(), time.monotonic() - begin


def at_once(work, times=20):
    """If it waited it would take four times as long at least."""
    took = []
    # Again where the machine stands still.
    while not took or (took[-1] >= times * TIMEOUT / 4 and len(took) < 3):
        results, seconds = timed(lambda: [work() for _ in range(times)])
        assert all(result == results[0] for result in results)
        took.append(seconds)
    assert took[-1] < times * TIMEOUT / 4, took
    return results[0]


class Shards:
    """Three shards, of which the first can be stopped, and a key on each."""

    def __init__(self, place, is_redis=True, **options):
        self.servers = [place.redis() if is_redis else place.memcached() for _ in range(3)]
        pool = {"redis": is_redis, "hash": "murmur", "timeout": int(TIMEOUT * 1000),
                "servers": server_lines(self.servers, ["one", "two", "three"]), **options}
        self.gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
        self.stopped = self.servers[0]

    def keys(self):
        names = [f"key-{n}" for n in range(60)]
        with self.gateway.connect() as conn:
            for name in names:
                conn.call("SET", name, "v")
        return [next(n for n in names if server.call("EXISTS", n)) for server in self.servers]

    def stop(self):
        self.stopped.process.signal(signal.SIGSTOP)

    def go_on(self):
        self.stopped.process.signal(signal.SIGCONT)

    def is_silent(self):
        return self.gateway.stats()["alpha"]["one"]["silent"] == 1


@pytest.fixture
def shards(place):
    shards = Shards(place)
    yield shards
    shards.go_on()


def pipeline(conn, keys):
    conn.send(b"".join(resp("GET", key) for key in keys))
    replies = [conn.reply() for _ in keys]
    return [unnamed(r) if isinstance(r, ReplyError) else r for r in replies]


def test_the_first_pipeline_waits_and_the_next_ones_do_not(shards):
    dead, *well = shards.keys()
    keys = [well[0], dead, well[1]]
    with shards.gateway.connect() as conn, shards.gateway.connect() as other:
        shards.stop()
        replies, seconds = timed(lambda: pipeline(conn, keys))
        assert replies == [b"v", TIMED_OUT, b"v"] and seconds > TIMEOUT * 0.9
        # Whether it is silent, or was only slow, takes a moment; then nobody waits.
        assert pipeline(conn, keys) == [b"v", SILENT, b"v"]
        assert shards.is_silent()
        for one in (conn, other):
            assert at_once(lambda: pipeline(one, keys)) == [b"v", SILENT, b"v"]
        shards.go_on()
        begin = time.monotonic()
        wait_until(lambda: pipeline(conn, keys) == [b"v"] * 3, "it serves again")
        assert time.monotonic() - begin < 8.0
    assert not shards.is_silent()
    lines = [line for line in shards.gateway.log().splitlines() if "server one" in line]
    assert sum("does not answer" in line for line in lines) == 1
    assert sum("answers again, after" in line for line in lines) == 1


def test_what_needs_the_silent_server_fails_and_the_rest_goes_on(shards):
    dead, *well = shards.keys()
    client = redis_py.Redis(host=HOST, port=shards.gateway.addresses["alpha"], retry=None,
                            socket_timeout=PATIENCE)
    shards.stop()
    with pytest.raises(redis_py.ResponseError, match="timed out"):
        client.get(dead)
    wait_until(shards.is_silent, "a PING is not answered either")

    def fails(call, *args):
        def once():
            with pytest.raises(redis_py.ResponseError, match="Server does not answer"):
                call(*args)

        at_once(once)

    fails(client.get, dead)
    fails(client.mget, [dead, *well])
    fails(client.dbsize)
    fails(client.blpop, dead, 1)
    fails(client.set, dead, "x" * (2 << 20))

    def execute():
        transaction = client.pipeline(transaction=True)
        transaction.get(dead)
        transaction.execute()

    fails(execute)
    assert client.mget(well) == [b"v", b"v"]
    transaction = client.pipeline(transaction=True)
    transaction.get(well[0])
    assert transaction.execute() == [b"v"]
    assert client.info("cashew")["server0"] == {"name": "one", "state": "silent"}
    shards.go_on()
    wait_until(lambda: not shards.is_silent(), "it has answered")
    assert client.get(dead) == b"v"
    assert client.mget([dead, *well]) == [b"v"] * 3


def test_a_slow_command_is_no_silence(shards):
    """It takes longer than `timeout`, and is over before the question has waited long enough."""
    dead, *_ = shards.keys()
    with shards.gateway.connect() as conn, shards.stopped.connect() as direct:
        slow = (TIMEOUT + 0.05) * 1000
        script = """local ends = redis.call('TIME')
            ends = ends[1] * 1000 + ends[2] / 1000 + tonumber(ARGV[1])
            repeat local now = redis.call('TIME') until now[1] * 1000 + now[2] / 1000 > ends"""
        assert unnamed(conn.error("EVAL", script, 1, dead, slow)) == TIMED_OUT
        wait_until(lambda: pipeline(conn, [dead]) == [b"v"], "it serves again")
        assert direct.call("PING") == "PONG"


def test_reads_pass_over_a_silent_replica_and_writes_to_a_silent_master_fail(place):
    master = place.redis()
    replicas = [place.redis("--replicaof", HOST, str(master.port)) for _ in range(2)]
    pool = {"redis": True, "hash": "murmur", "timeout": int(TIMEOUT * 1000),
            "servers": server_lines([master, *replicas], ["master", "one", "two"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    keys = [f"key-{n}" for n in range(20)]
    stats = lambda server: gateway.stats()["alpha"][server]["silent"]  # noqa: E731

    def are_fit():
        members = gateway.stats()["cashew"].get("members", [])
        return [member["reads"] for member in members] == ["fit"] * 3

    with gateway.connect() as conn:
        for key in keys:
            conn.call("SET", key, "v")
        wait_until(lambda: all(r.call("GET", keys[-1]) == b"v" for r in replicas), "in step")
        # Until the gateway knows that, the master answers all reads.
        wait_until(are_fit, "the gateway has found the replicas in step")
        replicas[0].process.signal(signal.SIGSTOP)
        pipeline(conn, keys)
        wait_until(lambda: stats("one") == 1, "its silence is noticed")
        assert pipeline(conn, keys) == [b"v"] * 20
        replicas[0].process.signal(signal.SIGCONT)
        wait_until(lambda: stats("one") == 0, "it answers")
        master.process.signal(signal.SIGSTOP)
        assert unnamed(conn.error("SET", "a", "1")) == TIMED_OUT
        wait_until(lambda: stats("master") == 1, "its silence is noticed")
        assert unnamed(at_once(lambda: conn.error("SET", "a", "1"))) == SILENT
        assert pipeline(conn, keys) == [b"v"] * 20
        master.process.signal(signal.SIGCONT)
        wait_until(lambda: stats("master") == 0, "it answers")
        assert conn.call("SET", "a", "1") == "OK"


def test_a_silent_memcached(place):
    shards = Shards(place, is_redis=False)
    with shards.gateway.connect() as conn:
        keys = [b"key-%d" % n for n in range(60)]
        conn.send(b"".join(b"set %b 0 0 1\r\nv\r\n" % key for key in keys))
        conn.expect(b"STORED\r\n" * 60)
        shards.stop()

        def gets():
            conn.send(b"".join(b"get %b\r\n" % key for key in keys))
            found = []
            for _ in keys:
                line = conn.read_line()
                found.append(unnamed(line.decode()) if line.startswith(b"SERVER_ERROR") else "")
                if line.startswith(b"VALUE"):
                    conn.expect(b"v\r\nEND\r\n")
            return set(found)

        assert gets() == {"", "SERVER_ERROR Connection timed out"}
        wait_until(shards.is_silent, "its version is not told either")
        assert at_once(gets) == {"", "SERVER_ERROR Server does not answer"}
        shards.go_on()
        wait_until(lambda: gets() == {""}, "it serves again")
