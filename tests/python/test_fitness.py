"""Replicas that are not fit for reads get none, and get them again when they are."""

import contextlib
import json
import os
import signal
import threading
import time
import urllib.request

import pytest

from harness import read_stats, server_lines, wait_until
from relay import Relay

HOST = "127.0.0.1"


def linked(replica):
    return b"master_link_status:up" in replica.call("INFO", "replication")


class Fed:
    """A primary, replicas that are fed by way of relays, and a gateway before them."""

    def __init__(self, place, replicas=1, settings=None, **options):
        self.primary = place.redis("--repl-diskless-sync-delay", "0")
        self.relays = [place.keep(Relay(self.primary.port)) for _ in range(replicas)]
        self.replicas = [place.redis("--replicaof", HOST, relay.port) for relay in self.relays]
        for replica in self.replicas:
            wait_until(lambda: linked(replica), "the replica has a copy")
        self.names = ["master"] + [f"r{n}" for n in range(replicas)]
        self.options = {"redis": True, **options,
                        "servers": server_lines([self.primary, *self.replicas], names=self.names)}
        self.gateway = place.cashew({"alpha": self.options}, settings or {"worker_processes": 2})
        wait_until(lambda: all(it["reads"] == "fit" for it in self.members().values()),
                   "all are fit", 10)

    def members(self):
        """By server, as the statistics tell them."""
        stats = read_stats(self.gateway.stats_address)
        members = stats["cashew"].get("members", [])
        found = {it["server"]: it for it in members}
        return found if set(found) == set(self.names) else {name: {"reads": None}
                                                            for name in self.names}

    def reads(self, name):
        return self.members()[name]["reads"]

    def metrics(self):
        return metrics(self.gateway)


def metrics(gateway):
    port = gateway.stats_port
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def gets(server):
    return server.stat("get")


def is_reading(world, server, key="key"):
    """Whether the server answers reads now."""
    before = gets(server)
    for _ in range(8):
        world.gateway.call("GET", key)
    return gets(server) > before


@pytest.mark.parametrize("processes", [2, 0])
def test_a_replica_that_lags_is_out_until_it_has_caught_up(place, processes):
    world = Fed(place, settings={"worker_processes": processes}, replica_lag_max="10kb")
    (replica,), (relay,) = world.replicas, world.relays
    assert world.gateway.call("SET", "key", "old") == "OK"
    wait_until(lambda: replica.call("GET", "key") == b"old", "it is fed")
    wait_until(lambda: is_reading(world, replica), "it is read from")
    relay.stalled.set()
    assert world.gateway.call("SET", "key", "new") == "OK"
    # A little lag is allowed.
    assert is_reading(world, replica)
    assert world.gateway.call("SET", "big", "x" * 20_000) == "OK"
    wait_until(lambda: world.reads("r0") == "lagging", "it is seen to lag", 5)
    assert world.members()["r0"]["lag_bytes"] > 20_000
    before = gets(replica)
    assert {world.gateway.call("GET", "key") for _ in range(20)} == {b"new"}
    assert gets(replica) == before
    relay.stalled.clear()
    wait_until(lambda: world.reads("r0") == "fit", "it has caught up", 5)
    assert is_reading(world, replica)


@pytest.mark.alone
def test_out_and_back_within_200_milliseconds(place):
    world = Fed(place, replica_lag_max="10kb")
    (replica,), (relay,) = world.replicas, world.relays
    with world.gateway.connect() as conn:
        relay.stalled.set()
        assert conn.call("SET", "key", "x" * 20_000) == "OK"
        began = time.monotonic()
        while conn.call("GET", "key") is None:
            assert time.monotonic() - began < 2
        out = time.monotonic() - began
        relay.stalled.clear()
        wait_until(lambda: replica.call("GET", "key") is not None, "it is fed", pause=0.005)
        began, before = time.monotonic(), gets(replica)
        while gets(replica) == before:
            conn.call("GET", "key")
            assert time.monotonic() - began < 2
        back = time.monotonic() - began
    print(f"out after {out * 1000:.0f} ms, back after {back * 1000:.0f} ms")
    assert out < 0.3 and back < 0.3


def test_a_replica_that_starts_anew_empty_never_says_that_keys_are_missing(place):
    world = Fed(place)
    (replica,), (relay,) = world.replicas, world.relays
    for n in range(50):
        assert world.gateway.call("SET", f"key:{n}", "v") == "OK"
    wait_until(lambda: replica.call("DBSIZE") == 50, "it is fed")
    wrong, count, stopped = [], [0], threading.Event()

    def read():
        with world.gateway.connect() as conn:
            while not stopped.is_set():
                for n in range(50):
                    try:
                        reply = conn.call("GET", f"key:{n}")
                    except Exception as error:  # What was in flight fails.
                        reply = str(error).encode()
                    count[0] += 1
                    if reply is None:
                        wrong.append(n)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(4):
            # Nothing is taken over from the primary for a while.
            relay.stalled.set()
            replica.stop()
            replica.start()
            seen = count[0]
            wait_until(lambda: count[0] > seen + 2000, "reads go on")
            assert not wrong
            relay.stalled.clear()
            wait_until(lambda: replica.call("DBSIZE") == 50, "it is fed again", 20)
            wait_until(lambda: world.reads("r0") == "fit", "it is fit again", 10)
    finally:
        stopped.set()
        for reader in readers:
            reader.join()
    assert not wrong
    wait_until(lambda: is_reading(world, replica, "key:1"), "it is read from again")


def test_what_follows_nobody_gets_no_reads_and_is_told_of(place):
    world = Fed(place, replicas=2)
    first, second = world.replicas
    assert world.gateway.call("SET", "key", "v") == "OK"
    first.call("REPLICAOF", "NO", "ONE")
    first.call("FLUSHALL")
    wait_until(lambda: world.reads("r0") == "not a replica", "it is seen", 5)
    before = gets(first)
    assert {world.gateway.call("GET", "key") for _ in range(20)} == {b"v"}
    assert gets(first) == before
    status = world.gateway.order("status").stdout
    rows = [line.split() for line in status.splitlines() if line.startswith("alpha ")]
    assert ["alpha", "master", "primary", "fit", "-", "-"] in rows
    assert ["alpha", "r0", "primary", "not", "a", "replica", "-", "-"] in rows
    assert any(row[:5] == ["alpha", "r1", "replica", "fit", "0"] for row in rows), status
    text = world.metrics()
    for line in ['cashew_server_role{pool="alpha",server="master",role="primary"} 1',
                 'cashew_server_role{pool="alpha",server="r1",role="replica"} 1',
                 'cashew_server_lag_bytes{pool="alpha",server="r1"} 0',
                 'cashew_replica_link_up{pool="alpha",server="r1"} 1',
                 'cashew_replica_fit{pool="alpha",server="r0",reason="not a replica"} 0',
                 'cashew_replica_fit{pool="alpha",server="r1",reason="fit"} 1']:
        assert line in text, line


def test_a_link_that_is_down_is_borne_for_a_while(place):
    world = Fed(place, replica_link_down_max="3s")
    (replica,) = world.replicas
    assert world.gateway.call("SET", "key", "v") == "OK"
    wait_until(lambda: replica.call("GET", "key") == b"v", "it is fed")
    world.primary.stop()
    wait_until(lambda: not linked(replica), "its primary is gone")
    wait_until(lambda: world.gateway.call("GET", "key") == b"v", "the replica answers")
    wait_until(lambda: world.reads("r0") == "link down", "it is down for too long", 10)


def test_who_is_told_nothing_any_more_reads_as_before(place):
    """Discovery hangs: replicas are taken for fit, as without it."""
    world = Fed(place)
    (replica,) = world.replicas
    wait_until(lambda: is_reading(world, replica), "it is read from")
    pid = json.loads(world.gateway.order("status", "--json").stdout)["discovery"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        replica.call("CLIENT", "KILL", "TYPE", "normal")
        # The connection is made anew, and nobody says what it leads to.
        wait_until(lambda: is_reading(world, replica), "it is read from", 10)
    finally:
        # Unless the master has put another one in its place.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: is_reading(world, replica), "it is read from still", 10)


def test_it_goes_on_over_reloads_and_upgrades(place):
    world = Fed(place, replica_lag_max="10kb")
    (replica,), (relay,) = world.replicas, world.relays
    relay.stalled.set()
    assert world.gateway.call("SET", "key", "x" * 20_000) == "OK"
    wait_until(lambda: world.reads("r0") == "lagging", "it is seen to lag", 5)
    before = gets(replica)
    # Another layout of the numbers.
    other = place.redis()
    world.gateway.configure({"alpha": world.options, "another": {
        "redis": True, "servers": server_lines([other], names=["x"])}})
    world.gateway.reload()
    for _ in range(20):
        assert world.gateway.call("GET", "key") is not None
    done = world.gateway.order("upgrade")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: world.reads("r0") == "lagging", "it is seen to lag", 5)
    for _ in range(20):
        assert world.gateway.call("GET", "key") is not None
    relay.stalled.clear()
    wait_until(lambda: world.reads("r0") == "fit", "it has caught up", 5)
    assert is_reading(world, replica)
    assert gets(replica) > before
