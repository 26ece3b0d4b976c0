"""A server that is drained: only its keys move, in steps, until it gets nothing; and the way back."""

import json
import os
import signal
import subprocess
import time

import pytest

from harness import HOST, server_lines, wait_until
from test_stats import metrics

NAMES = ["one", "two", "three"]
KEYS = [f"key:{number}" for number in range(2000)]


def start(place, count=3, workers=2, name=None, **options):
    servers = [place.redis() for _ in range(count)]
    pool = {"redis": True, "distribution": "ketama", "hash": "fnv1a_64", **options,
            "servers": server_lines(servers, NAMES[:count])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": workers}, name=name)
    gateway.wait_serving()
    gateway.servers = servers
    return gateway


def done(gateway, *words, fails=False):
    order = gateway.order(*words, seconds=60)
    assert (order.returncode != 0) == fails, (words, order.stdout, order.stderr)
    return order.stdout + order.stderr


def write(gateway):
    """Which server has which keys."""
    for server in gateway.servers:
        server.call("FLUSHALL")
    with gateway.connect() as conn:
        for at in range(0, len(KEYS), 100):
            words = [word for key in KEYS[at:at + 100] for word in (key, "x")]
            assert conn.call("MSET", *words) == "OK"
    return [set(server.call("KEYS", "*")) for server in gateway.servers]


def status_of(gateway, server):
    pools = json.loads(done(gateway, "status", "--json"))["pools"]
    return next(it for it in pools[0]["server_states"] if it["name"] == server)


def commands_of(server, name):
    line = next((it for it in server.call("INFO", "commandstats").decode().splitlines()
                 if it.startswith(f"cmdstat_{name}:")), ":calls=0,")
    return int(line.split("calls=")[1].split(",")[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_only_its_keys_move_in_steps_and_come_back(place, workers):
    gateway = start(place, workers=workers)
    whole = write(gateway)
    last = whole
    for percent in (75, 25, 0):
        said = done(gateway, "weight", "alpha", "three", str(percent))
        assert f"server 'three' has {percent} % of its keys" in said, said
        now = write(gateway)
        # Those of others stay, and get more; this one only loses some.
        assert now[0] >= last[0] and now[1] >= last[1] and now[2] <= last[2]
        assert abs(len(now[2]) - len(whole[2]) * percent / 100) <= 0.1 * len(KEYS)
        assert status_of(gateway, "three")["drained_permille"] == 1000 - 10 * percent
        text = done(gateway, "status")
        assert ("well; drained" if percent == 0 else f"drained by {100 - percent} %") in text
        last = now
    assert last[2] == set()
    assert "2 on the ring" in done(gateway, "status")
    assert metrics(gateway)["cashew_server_drained_permille", ("pool", "alpha"), ("server", "three")] == 1000
    # As if it were not in the file.
    without = start(place, count=2, name="without")
    assert write(without) == last[:2]
    # What it says if it is so already, and the way back.
    assert "has 0 % of its keys already" in done(gateway, "drain-server", "alpha", "three")
    said = done(gateway, "undrain-server", "alpha", "three", "--steps", "2", "--every", "1")
    assert "has 50 % of its keys" in said and "has 100 % of its keys" in said and "FLUSHALL" in said
    assert write(gateway) == whole
    assert status_of(gateway, "three")["drained_permille"] == 0


def test_a_drained_server_gets_nothing_and_may_be_stopped(place):
    gateway = start(place)
    with gateway.connect() as subscriber, gateway.connect() as watcher:
        channels = [f"channel:{number}" for number in range(30)]
        for channel in channels:
            subscriber.call("SUBSCRIBE", channel)
        watcher.call("SET", "key:0", "x")
        said = done(gateway, "drain-server", "alpha", "three", "--steps", "2", "--every", "1")
        assert "in 2 steps" in said and "has 0 % of its keys" in said
        three = gateway.servers[2]
        wait_until(lambda: three.call("PUBSUB", "CHANNELS") == [], "its subscriptions go elsewhere")
        three.call("CONFIG", "RESETSTAT")
        with gateway.connect() as conn:
            for key in KEYS:
                assert conn.call("SET", key, "x") == "OK"
            for key in KEYS[:100]:
                assert conn.call("BLPOP", f"list:{key}", "0.01") is None
                assert conn.call("MULTI") == "OK"
                assert conn.call("GET", key) == "QUEUED"
                assert conn.call("EXEC") == [b"x"]
            assert conn.call("DBSIZE") == len(KEYS)
            for channel in channels:
                conn.call("PUBLISH", channel, "news")
        for name in ("set", "get", "blpop", "multi", "dbsize", "subscribe", "publish", "keys"):
            assert commands_of(three, name) == 0, name
        for _ in channels:
            assert subscriber.reply()[0] == b"message"
    three.stop()
    with gateway.connect() as conn:
        for key in KEYS[:500]:
            assert conn.call("GET", key) == b"x"
        assert conn.call("DBSIZE") == len(KEYS)
    kinds = [it["kind"] for it in map(json.loads, done(gateway, "events", "--json").splitlines())]
    assert "server_drains" in kinds and "server_drained" in kinds


def test_it_stays_over_reloads_and_the_death_of_workers_and_clients_go_on(place):
    gateway = start(place)
    done(gateway, "weight", "alpha", "three", "0")
    drained = write(gateway)
    gateway.configure(worker_processes=3)
    gateway.reload()
    assert write(gateway) == drained
    for pid in gateway.workers():
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: len(gateway.workers()) == 3 and pid not in gateway.workers(), "another")
    wait_until(lambda: "serving" in done(gateway, "status"), "it serves")
    assert write(gateway) == drained
    # A drain that is under way goes on over a reload, and a server that is gone ends it.
    done(gateway, "weight", "alpha", "three", "100")
    began = time.monotonic()
    words = [gateway.binary, "drain-server", "-c", gateway.config_path, "alpha", "three", "--steps", "4",
             "--every", "1"]
    waiting = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: status_of(gateway, "three")["drained_permille"] >= 250, "the first step")
    gateway.configure(worker_processes=2)
    gateway.reload()
    said = waiting.communicate(timeout=30)[0]
    assert waiting.returncode == 0 and "has 0 % of its keys" in said and time.monotonic() - began >= 3
    assert write(gateway) == drained


@pytest.mark.parametrize(("words", "why"), [
    (("alpha", "nosuch"), "no server 'nosuch'"),
    (("beta", "one"), "beta"),
])
def test_what_cannot_be_is_refused(place, words, why):
    gateway = start(place)
    assert why in done(gateway, "drain-server", *words, fails=True)
    assert "0..=100" in done(gateway, "weight", "alpha", "one", "101", fails=True)
    done(gateway, "weight", "alpha", "one", "0")
    done(gateway, "weight", "alpha", "two", "0")
    assert "no other server than 'three' has keys" in done(gateway, "weight", "alpha", "three", "0", fails=True)


def test_primaries_are_not_drained_and_replicas_get_no_reads(place):
    primary = place.redis()
    replicas = [place.redis("--replicaof", f"{HOST} {primary.port}") for _ in range(2)]
    servers = [primary, *replicas]
    pool = {"redis": True, "reads": "replica", "servers": [
        f"{{name: s, primary: '{HOST}:{primary.port}', replicas: "
        f"[{', '.join(repr(f'{HOST}:{it.port}') for it in replicas)}]}}"]}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    gateway.wait_serving()
    for replica in replicas:
        wait_until(lambda it=replica: b"master_link_status:up" in it.call("INFO", "replication"), "in step")
    said = done(gateway, "drain-server", "alpha", f"{HOST}:{primary.port}", fails=True)
    assert "takes the writes" in said and "cashew failover" in said
    with gateway.connect() as conn:
        conn.call("SET", "k", "v")
        wait_until(lambda: all(it.call("GET", "k") == b"v" for it in replicas), "copied")

        def reads():
            before = [commands_of(it, "get") for it in servers]
            for _ in range(200):
                assert conn.call("GET", "k") == b"v"
            return [commands_of(it, "get") - was for it, was in zip(servers, before, strict=True)]
        wait_until(lambda: all(reads()[1:]), "both replicas are read from")
        said = done(gateway, "drain-server", "alpha", f"{HOST}:{replicas[0].port}")
        assert "gets no reads any more" in said
        assert reads()[1] == 0
        done(gateway, "undrain-server", "alpha", f"{HOST}:{replicas[0].port}")
        wait_until(lambda: reads()[1] > 0, "it is read from again")


def test_modula_moves_nearly_all_keys_at_once_and_says_so(place):
    gateway = start(place, distribution="modula")
    said = done(gateway, "drain-server", "alpha", "three", "--steps", "5", "--every", "60")
    assert "nearly all keys" in said and "at once" in said
    assert write(gateway)[2] == set()
