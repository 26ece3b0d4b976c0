"""The statistics as programs for twemproxy read them: what these find behind Cashew is what they find behind nutcracker."""

import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

from harness import HOST, read_raw_stats, said_to, server_lines, wait_until

CLIENTS = Path(__file__).resolve().parents[1] / "clients"
POOLS = {"be": ["cache", "127.0.0.1:21211"], "alpha": ["two", "one", "another"], "gamma": ["one"]}


class Pair:
    """Cashew and nutcracker with the same configuration, which have served the same requests."""

    def __init__(self, place):
        servers = {"be": [place.memcached(), place.memcached()], "alpha": [place.redis() for _ in range(3)],
                   "gamma": [place.redis()]}
        # A server without a name is named by its address.
        lines = {pool: [line.removesuffix(f" {name}") if ":" in name else line
                        for line, name in zip(server_lines(servers[pool], names), names)]
                 for pool, names in POOLS.items()}
        pools = {pool: {"redis": pool != "be", "hash": "murmur", "servers": lines[pool]} for pool in POOLS}
        self.theirs = place.nutcracker(pools)
        # Like nutcracker it counts in one process.
        self.ours = place.cashew(pools)
        self.both = [self.theirs, self.ours]
        for gateway in self.both:
            with gateway.connect("alpha") as conn:
                for n in range(20):
                    conn.call("SET", f"k{n}", "v")
                conn.call("MGET", *(f"k{n}" for n in range(20)))
            with gateway.connect("be") as conn:
                conn.send(b"set k 0 0 1\r\nv\r\nget k\r\n")
                conn.expect(b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n")
            wait_until(lambda: settled(gateway), "all is counted")


def settled(gateway):
    stats = read_raw_stats(gateway.stats_port)
    done = [stats["alpha"][name]["responses"] for name in POOLS["alpha"]]
    stored = sum(server["responses"] for server in stats["be"].values() if isinstance(server, dict))
    # Each server that has keys gets a part of MGET, too.
    return (sum(done) == 20 + sum(map(bool, done)) and stored == 2
            and stats["alpha"]["client_connections"] == stats["be"]["client_connections"] == 0)


@pytest.fixture(scope="module")
def pair(module_place):
    return Pair(module_place)


def blank(text):
    """Without the values of numbers, and what the program says of itself."""
    text = re.sub(rb'"(source|version)":"[^"]*"', rb'"\1":TEXT', text)
    return re.sub(rb'":\d+', b'":NUMBER', text)


def raw(gateway):
    """As to most programs: they say nothing and read to the end."""
    with socket.create_connection((HOST, gateway.stats_port), 10) as client:
        return b"".join(iter(lambda: client.recv(1024), b""))


def test_every_byte_but_the_values_is_nutcrackers(pair):
    theirs, ours = (blank(raw(gateway)) for gateway in pair.both)
    assert b'"alpha": {"client_eof":NUMBER, ' in theirs and b'"cache": {"server_eof":NUMBER, ' in theirs
    assert ours.rstrip(b"\n") == theirs.rstrip(b"\n")


def test_what_does_not_depend_on_how_connections_are_made_is_equal(pair):
    theirs, ours = (json.loads(raw(gateway)) for gateway in pair.both)
    same = ["requests", "request_bytes", "responses", "response_bytes", "in_queue", "out_queue",
            "in_queue_bytes", "out_queue_bytes", "server_ejected_at", "server_timedout"]
    for pool, names in POOLS.items():
        servers = [name for name, value in theirs[pool].items() if isinstance(value, dict)]
        assert len(servers) == len(names)
        for server in servers:
            # MGET is one to nutcracker's servers as it is to ours.
            found = [{name: of[pool][server][name] for name in same} for of in (theirs, ours)]
            assert found[0] == found[1], (pool, server)


def datadog(text):
    """Datadog's check `twemproxy`: each object is a pool, each object in a pool a server, and each server
    has each of the metrics. What is none of these it must not have."""
    rows = set()
    for name, value in json.loads(text).items():
        if not isinstance(value, dict):
            if name in ("curr_connections", "total_connections"):
                rows.add((name,))
            continue
        for key, inner in value.items():
            if isinstance(inner, dict):
                for metric in ("server_connections", "server_timedout", "in_queue", "out_queue",
                               "in_queue_bytes", "out_queue_bytes", "requests", "request_bytes",
                               "responses", "response_bytes", "server_err", "server_eof"):
                    float(inner[metric])
                    rows.add((name, key, metric))
            else:
                float(inner)
                rows.add((name, key))
    return rows


def exporter(text):
    """twemproxy_exporter (S. Nelson): it takes away the fields that it knows; of what is left everything is a
    pool, or in a pool a server, and each field of these is a number."""
    stats = json.loads(text)
    for name in ("service", "source", "version"):
        assert isinstance(stats.pop(name), str)
    for name in ("uptime", "timestamp", "total_connections", "curr_connections"):
        assert isinstance(stats.pop(name), int)
    rows = set()
    for pool, numbers in stats.items():
        for name in ("client_eof", "client_err", "client_connections", "server_ejects", "forward_error",
                     "fragments"):
            assert isinstance(numbers.pop(name), int)
        for server, fields in numbers.items():
            assert len(fields) == 13 and all(isinstance(value, int) for value in fields.values())
            rows.add((pool, server))
    return rows


def munin(text):
    """Plugins that read one line, and shell scripts that pick numbers from it."""
    line = text.split(b"\n")[0]
    pools = re.findall(rb'"([^"]+)": \{"client_eof"', line)
    servers = re.findall(rb'"([^"]+)": \{"server_eof"', line)
    json.loads(line)
    return set(pools), sorted(servers), len(re.findall(rb'"requests":(\d+), "request_bytes":', line))


@pytest.mark.parametrize("parser", [datadog, exporter, munin])
def test_a_parser_finds_the_same(pair, parser):
    theirs, ours = (parser(raw(gateway)) for gateway in pair.both)
    assert theirs == ours and theirs


@pytest.mark.timeout(600)  # the first run compiles and may download
def test_telegraf_finds_the_same(pair):
    """Its own plugin, which is built from its module."""
    found = []
    for gateway in pair.both:
        done = subprocess.run(
            ["go", "run", ".", f"{HOST}:{gateway.stats_port}", *POOLS], cwd=CLIENTS / "telegraf",
            env={**os.environ, "GOFLAGS": "-mod=readonly"}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=580)
        assert done.returncode == 0, done.stderr[-4000:]
        points = [json.loads(line) for line in done.stdout.splitlines()]
        assert sum(point["name"] == "twemproxy_pool_server" for point in points) == 6
        found.append({(point["name"], point["tags"].get("pool"), point["tags"].get("server")):
                      sorted(point["fields"]) for point in points})
    assert found[0] == found[1]


def test_more_is_under_other_paths_or_with_an_option(place):
    servers = server_lines([place.redis()], ["one"])
    gateway = place.cashew({"alpha": {"redis": True, "servers": servers}}, {"worker_processes": 1})

    def http(path):
        def said():
            text = said_to(gateway.stats_port, b"GET %b HTTP/1.0\r\n\r\n" % path)
            # Who is slow to ask on a busy machine is taken for one that asks for nothing.
            return text.startswith(b"HTTP") and text

        return json.loads(wait_until(said, "it is heard").partition(b"\r\n\r\n")[2])

    for path in (b"/", b"/stats", b"/stats?format=full"):
        assert "cashew" in http(path) and "request_latency" in http(path)["alpha"], path
    exact = http(b"/stats?format=nutcracker")
    assert list(exact) == list(read_raw_stats(gateway.stats_port)) and "cashew" not in exact
    assert isinstance(http(b"/stats?format=fork"), list)
    gateway.configure(stats_raw="full")
    assert "stats_raw: nutcracker -> full" in gateway.reload()
    wait_until(lambda: "cashew" in read_raw_stats(gateway.stats_port), "everything")
    assert "cashew" not in http(b"/stats?format=nutcracker")


def test_a_silent_reader_does_not_wait_long(pair):
    times = []
    for _ in range(5):
        begin = time.monotonic()
        raw(pair.ours)
        times.append(time.monotonic() - begin)
    assert min(times) < 0.5, times
