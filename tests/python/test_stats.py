"""The stats port: twemproxy's JSON with additions, and Prometheus."""

import contextlib
import http.client
import json
import os
import signal
import socket
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import (
    FakeServer,
    HOST,
    ReplyError,
    children,
    resp,
    server_lines,
    silent,
    wait_until,
    worker_processes,
)

SERVERS = ["one", "two"]


@pytest.fixture
def world(place):
    servers = [place.redis() for _ in range(2)]
    memcached = place.memcached()
    pools = {
        "alpha": {"redis": True, "hash": "murmur", "servers": server_lines(servers, SERVERS)},
        "beta": {"servers": server_lines([memcached], ["cache"])},
    }
    gateway = place.cashew(pools, {"worker_processes": 2})
    gateway.servers = servers
    return gateway


def total(gateway, field, pool="alpha"):
    servers = gateway.stats()[pool]
    return sum(servers[name][field] for name in SERVERS)


def settled(gateway, field, expected):
    wait_until(lambda: total(gateway, field) == expected, f"{field} is {expected}")


def http_get(gateway, path, method="GET"):
    client = http.client.HTTPConnection(HOST, gateway.stats_port, timeout=20)
    try:
        client.request(method, path)
        response = client.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()
    finally:
        client.close()


def metrics(gateway):
    status, kind, text = http_get(gateway, "/metrics")
    assert status == 200 and kind.startswith("text/plain")
    return {sample_key(sample): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def sample_key(sample):
    return (sample.name, *sorted(sample.labels.items()))


def test_every_key_of_nutcracker_is_there(place, world):
    theirs = place.nutcracker({name: {k: v for k, v in pool.items() if k != "listen"}
                               for name, pool in world.pools.items()}).stats()
    mine = world.stats()
    assert theirs.keys() <= mine.keys()
    for name in ("service", "source", "version"):
        assert isinstance(mine[name], str)
    for pool in ("alpha", "beta"):
        assert theirs[pool].keys() <= mine[pool].keys()
        for name, value in theirs[pool].items():
            if isinstance(value, dict):
                assert value.keys() <= mine[pool][name].keys()
                assert all(isinstance(mine[pool][name][key], int) for key in value)
            else:
                assert isinstance(mine[pool][name], int)


def test_ten_sets_and_ten_gets_are_twenty_requests(world):
    with world.connect() as conn:
        for n in range(10):
            conn.call("SET", f"k{n}", n)
        for n in range(10):
            conn.call("GET", f"k{n}")
    settled(world, "requests", 20)
    settled(world, "responses", 20)
    sent = sum(len(resp("SET", f"k{n}", n)) + len(resp("GET", f"k{n}")) for n in range(10))
    received = 10 * len(b"+OK\r\n") + 10 * len(b"$1\r\n1\r\n")
    assert total(world, "request_bytes") == sent
    assert total(world, "response_bytes") == received
    assert world.stats()["alpha"]["fragments"] == 0


def test_a_gathered_command_counts_its_parts(world):
    keys = [f"k{n}" for n in range(10)]
    with world.connect() as conn:
        conn.call("MGET", *keys)
    settled(world, "requests", 2)
    settled(world, "responses", 2)
    assert world.stats()["alpha"]["fragments"] == 2
    assert all(world.stats()["alpha"][name]["requests"] == 1 for name in SERVERS)


def test_counts_are_summed_over_workers(world):
    """40 connections surely reach both workers."""
    conns = [world.connect() for _ in range(40)]
    for conn in conns:
        for _ in range(5):
            conn.call("SET", "k", "v")
    settled(world, "requests", 200)
    assert world.stats()["alpha"]["client_connections"] == 40
    for conn in conns:
        conn.close()


def test_connection_gauges_are_true(world):
    def pool():
        return world.stats()["alpha"]

    world.wait_empty()
    before = world.stats()
    conns = [world.connect() for _ in range(7)]
    for conn in conns:
        conn.call("PING")
    wait_until(lambda: pool()["client_connections"] == 7, "seven clients")
    assert world.stats()["curr_connections"] >= before["curr_connections"] + 7
    assert world.stats()["total_connections"] >= before["total_connections"] + 7
    for conn in conns:
        for n in range(10):
            conn.call("SET", f"k{n}", n)

    def at_the_servers():
        return [server.call("CLIENT", "LIST").count(b"\n") - 1 for server in world.servers]

    wait_until(lambda: [pool()[name]["server_connections"] for name in SERVERS] ==
               at_the_servers(), "as many as the servers see")
    assert all(pool()[name]["server_connections"] > 0 for name in SERVERS)
    for conn in conns[:3]:
        conn.close()
    wait_until(lambda: pool()["client_connections"] == 4, "four clients")
    for conn in conns[3:]:
        conn.reset()
    wait_until(lambda: pool()["client_connections"] == 0, "nobody any more")
    wait_until(lambda: pool()["client_eof"] >= 3, "three left in order")
    world.servers[0].stop()
    wait_until(lambda: pool()["one"]["server_connections"] == 0, "its connections are gone")
    assert pool()["two"]["server_connections"] > 0


def test_connections_of_a_killed_worker_are_not_counted_for_ever(world):
    conns = [world.connect() for _ in range(20)]
    for conn in conns:
        conn.call("PING")
    for pid in world.workers():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: world.stats()["alpha"]["client_connections"] == 0, "nobody")
    for conn in conns:
        conn.close()


def test_errors_and_ends_of_clients(world):
    with world.connect() as conn:
        conn.call("PING")
    with world.connect() as conn:
        conn.call("QUIT")
    world.wait_empty()
    assert world.stats()["alpha"]["client_err"] == 0
    with world.connect() as conn:
        conn.send(b"*1\r\n!\r\n")
        conn.read_to_end()
    wait_until(lambda: world.stats()["alpha"]["client_err"] == 1, "a protocol error counts")


def test_errors_of_servers(place):
    fake = place.keep(FakeServer(silent))
    server = place.redis()
    gateway = place.cashew({"alpha": {
        "redis": True, "hash": "murmur", "timeout": 3000, "servers": server_lines([fake, server], SERVERS)}})
    with gateway.connect() as conn:
        conn.send(b"".join(resp("GET", f"k{n}") for n in range(20)))

        def queues():
            waiting = gateway.stats()["alpha"]["one"]
            return (waiting["out_queue"] + waiting["in_queue"] > 0
                    and waiting["out_queue_bytes"] + waiting["in_queue_bytes"] > 0)

        wait_until(queues, "requests wait")
        errors = sum(isinstance(conn.reply(), ReplyError) for _ in range(20))
    assert 0 < errors < 20
    wait_until(lambda: gateway.stats()["alpha"]["one"]["server_timedout"] >= 1, "a timeout")
    pool = gateway.stats()["alpha"]
    assert pool["forward_error"] == errors
    assert pool["two"]["server_timedout"] == pool["two"]["server_err"] == 0
    assert pool["one"]["in_queue"] == pool["one"]["out_queue"] == 0
    server.stop()
    wait_until(lambda: gateway.stats()["alpha"]["two"]["server_eof"] +
               gateway.stats()["alpha"]["two"]["server_err"] >= 1, "an end")


@pytest.mark.alone
def test_latency_in_the_buckets_of_the_fork(world):
    """11 counts for 1, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000 ms and above, not cumulative."""
    with world.connect() as conn:
        for n in range(30):
            conn.call("SET", f"k{n}", n)
        conn.call("MGET", *[f"k{n}" for n in range(30)])
    wait_until(lambda: sum(world.stats()["alpha"]["request_latency"]) == 31, "31 requests")
    pool = world.stats()["alpha"]
    assert len(pool["request_latency"]) == 11
    assert sum(sum(pool[name]["server_latency"]) for name in SERVERS) == 32
    assert all(len(pool[name]["server_latency"]) == 11 for name in SERVERS)
    with world.connect() as conn, world.servers[0].connect() as direct:
        key = next(f"k{n}" for n in range(30) if direct.call("EXISTS", f"k{n}"))
        before = slow_ones(world)
        for count in range(32, 42):
            direct.send(resp("DEBUG", "SLEEP", "0.3"))
            # Who is faster than that is answered before.
            time.sleep(0.05)
            conn.call("GET", key)
            direct.reply()
            wait_until(lambda: sum(world.stats()["alpha"]["request_latency"]) == count, "all")
            if slow_ones(world) != before:
                break
    client, server = slow_ones(world)
    assert client == before[0] + 1 and server == before[1] + 1


def slow_ones(gateway):
    """Requests that took 0.2 s or more, and those that the server took it for."""
    pool = gateway.stats()["alpha"]
    return sum(pool["request_latency"][6:]), sum(pool["one"]["server_latency"][6:])


def test_http(world):
    status, kind, text = http_get(world, "/")
    assert status == 200 and kind.startswith("application/json")
    assert json.loads(text).keys() == world.stats().keys()
    assert http_get(world, "/nothing-here")[0] == 404
    assert http_get(world, "/", "DELETE")[0] == 405


def test_raw_tcp_gets_json_in_any_manner(world):
    """nc with and without input, and twice at once."""
    for said in (b"", b"\n", b"stats\r\n"):
        with socket.create_connection((HOST, world.stats_port), 5) as client:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            text = b""
            while piece := client.recv(65536):
                text += piece
        assert text.endswith(b"\n") and "alpha" in json.loads(text)
    with socket.create_connection((HOST, world.stats_port), 10) as client:
        assert "alpha" in json.loads(b"".join(iter(lambda: client.recv(65536), b"")))


@pytest.mark.alone
def test_a_silent_client_of_the_stats_port_holds_up_nobody(world):
    times = []
    # More often where the machine has other things to do.
    while not times or (min(times) > 1.5 and len(times) < 5):
        idle = [socket.create_connection((HOST, world.stats_port), 5) for _ in range(20)]
        idle[0].sendall(b"GET / HT")
        begin = time.monotonic()
        world.stats()
        assert metrics(world)
        times.append(time.monotonic() - begin)
        for client in idle:
            client.close()
    assert min(times) < 1.5, times


def test_prometheus(world):
    with world.connect() as conn:
        for n in range(25):
            conn.call("SET", f"k{n}", n)
    pool = ("pool", "alpha")
    name = "cashew_request_duration_seconds"
    wait_until(lambda: metrics(world).get((f"{name}_count", pool)) == 25, "25 requests")
    seen = metrics(world)
    assert 0 < seen[(f"{name}_sum", pool)] < 25
    buckets = sorted((float(dict(key[1:])["le"]), value) for key, value in seen.items()
                     if key[0] == f"{name}_bucket" and pool in key)
    assert buckets[-1] == (float("inf"), 25)
    assert [value for _, value in buckets] == sorted(value for _, value in buckets)
    assert len(buckets) > 5 and buckets[0][0] < 0.001
    counts = [seen[("cashew_server_duration_seconds_count", pool, ("server", server))]
              for server in SERVERS]
    assert sum(counts) == 25 and all(counts)
    for text in (key[0] for key in seen):
        assert text.startswith(("cashew_", "process_")), text


def test_the_statistics_tell_of_reloads(place):
    one, two = ({"redis": True, "servers": server_lines([place.redis()])} for _ in range(2))
    gateway = place.cashew({"alpha": one}, {"worker_processes": 2})
    gateway.wait_serving()

    def seen():
        numbers = metrics(gateway)
        keys = [*(("cashew_reloads_total", ("result", result)) for result in ("ok", "failed")),
                ("cashew_last_reload_timestamp_seconds",), ("cashew_last_reload_success",)]
        return gateway.stats()["cashew"]["reloads"], [numbers.get(key) for key in keys]

    never = {"ok": 0, "failed": 0, "last_at": None, "last_result": None, "last_failure": None}
    assert seen() == (never, [0, 0, None, None])
    begin = int(time.time())
    gateway.configure({"alpha": two})
    gateway.reload()
    reloads, numbers = seen()
    at = reloads["last_at"]
    assert begin <= at <= time.time()
    assert reloads == {**never, "ok": 1, "last_at": at, "last_result": "ok"}
    assert numbers == [1, 0, at, 1]
    assert gateway.order("reload", "--dry-run").returncode == 0
    gateway.write_config("alpha: nonsense\n")
    gateway.process.signal(signal.SIGHUP)
    wait_until(lambda: seen()[0]["failed"] == 1, "a reload that failed")
    reloads, numbers = seen()
    assert reloads["last_result"] == "failed"
    assert gateway.config_path.name in reloads["last_failure"]
    # The log has it in one line.
    assert reloads["last_failure"][:200].replace("\n", "\\n") in gateway.log()
    assert numbers == [1, 1, reloads["last_at"], 0]
    # It survives whoever tells it.
    for pid in set(children(gateway.pid)) - set(worker_processes(gateway.pid)):
        os.kill(pid, signal.SIGKILL)

    def told():
        with contextlib.suppress(OSError, ValueError):
            return seen()[0] == reloads
        return False

    wait_until(told, "another admin")
    gateway.configure({"alpha": one})
    gateway.reload()
    reloads, numbers = seen()
    assert (reloads["ok"], reloads["failed"], reloads["last_result"]) == (2, 1, "ok")
    assert gateway.config_path.name in reloads["last_failure"]
    assert numbers == [2, 1, reloads["last_at"], 1]


def test_stats_of_a_single_process(place):
    gateway = place.cashew(
        {"alpha": {"redis": True, "servers": server_lines([place.redis()], ["one"])}},
        {"worker_processes": 0})
    with gateway.connect() as conn:
        for _ in range(5):
            conn.call("SET", "a", "1")
        wait_until(lambda: gateway.stats()["alpha"]["one"]["requests"] == 5, "five")
        assert gateway.stats()["alpha"]["client_connections"] == 1
    assert metrics(gateway)
