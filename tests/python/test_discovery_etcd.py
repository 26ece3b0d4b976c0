"""Pools whose servers etcd names: with a real etcd."""

import json
import random
import signal
import time

import pytest

from discovery import Etcd, coded, epochs, in_use, line, source, wait_in_use
from harness import HOST, free_port, wait_until
from load import Load, fill

PREFIX = "/cache/"


@pytest.fixture
def etcd(place):
    etcd = Etcd(place.directory)
    place.stack.callback(etcd.stop)
    return etcd


@pytest.fixture
def servers(place):
    return {f"s{number}": place.redis() for number in range(6)}


def pools(*endpoints, **more):
    urls = ", ".join(it if isinstance(it, str) else it.url for it in endpoints)
    etcd = f"endpoints: [{urls}], prefix: {PREFIX}" + "".join(
        f", {key}: {value}" for key, value in more.items())
    return {"alpha": {"redis": True, "servers_from": f"{{etcd: {{{etcd}}}}}"}}


def record(server, **more):
    return {"address": f"{HOST}:{server.port}", **more}


def put_all(etcd, servers, names=None):
    for name in names or servers:
        etcd.put(PREFIX + name, record(servers[name]))


@pytest.fixture
def gateway(place, etcd, servers):
    put_all(etcd, servers)
    return place.cashew(pools(etcd), {"worker_processes": 2,
                                      "discovery_state": place.directory / "state.json"})


def test_keys_are_records_and_are_followed(place, etcd, servers):
    etcd.put(PREFIX + "s0", record(servers["s0"]))
    etcd.put(PREFIX + "key", line(servers["s1"], "s1", 3))
    etcd.put(PREFIX + "s2", f"{HOST}:{servers['s2'].port}:2")
    etcd.put("/cache0", record(servers["s5"]))
    gateway = place.cashew(pools(etcd), {"worker_processes": 2})
    assert set(in_use(gateway)) == {"s0", "s1", "s2"}
    named = gateway.order("discover", "alpha", "--json").stdout.splitlines()
    weights = {it["name"]: it["weight"] for it in map(json.loads, named)}
    assert weights == {"s0": 1, "s1": 3, "s2": 2}
    etcd.put(PREFIX + "s3", record(servers["s3"], name="other", zone="z"))
    wait_in_use(gateway, ["s0", "s1", "s2", "other"], "one has joined")
    etcd.delete(PREFIX + "s0")
    wait_in_use(gateway, ["s1", "s2", "other"], "one has left")
    # What cannot be read changes nothing.
    etcd.put(PREFIX + "s4", "nonsense")
    wait_until(lambda: source(gateway)["is_answering"] is False, "it is told")
    assert PREFIX + "s4: " in source(gateway)["failure"]
    assert set(in_use(gateway)) == {"s1", "s2", "other"}
    etcd.put(PREFIX + "s4", record(servers["s4"]))
    wait_in_use(gateway, ["s1", "s2", "other", "s4"], "it is mended")


def test_five_hundred_changes_in_ten_seconds_are_a_dozen_epochs(etcd, servers, gateway):
    """A7.1."""
    fill(*servers.values())
    rng = random.Random(22)
    before, away = epochs(gateway), None
    with Load(gateway.address) as load:
        load.turn()
        start = time.monotonic()
        for number in range(500):
            name = f"s{rng.randrange(6)}"
            if number % 5 == 0 and away is None:
                # One of six at a time, and back with the next but one.
                etcd.delete(PREFIX + name)
                away = name
            elif number % 5 == 2 and away:
                etcd.put(PREFIX + away, record(servers[away]))
                away = None
            elif name != away:
                etcd.put(PREFIX + name, record(servers[name], weight=1 + rng.randrange(4)))
            time.sleep(max(0, start + (number + 1) * 0.02 - time.monotonic()))
        took = time.monotonic() - start
        # The right end: two are heavier.
        final = {name: 1 for name in servers} | {"s1": 5, "s4": 3}
        for name, weight in final.items():
            etcd.put(PREFIX + name, record(servers[name], weight=weight))
        wait_until(lambda: saved_weights(gateway) == final, "the right end")
        assert took < 15, "the machine is too slow for this test"
        load.turn()
    assert load.failures == []
    made = epochs(gateway) - before
    print(f"A7.1: 500 changes in {took:.1f} s are {made} epochs")
    assert made <= 12 + (took > 10.5), gateway.log()[-3000:]
    assert set(in_use(gateway)) == set(servers)


def saved_weights(gateway):
    """As the master has written down what is in effect."""
    state = json.loads(open(gateway.settings["discovery_state"]).read())
    return {it["name"]: it["weight"] for it in state["pools"][0]["servers"]}


def test_a_stop_and_a_death_change_nothing_and_what_came_meanwhile_follows(etcd, servers, gateway):
    """A7.2: SIGSTOP, SIGKILL, and what is compacted meanwhile."""
    fill(*servers.values())
    with Load(gateway.address) as load:
        etcd.signal(signal.SIGSTOP)
        # Longer than a watch may go on, and a list.
        wait_until(lambda: source(gateway)["is_answering"] is False, "it is told", seconds=40)
        assert set(in_use(gateway)) == set(servers)
        etcd.signal(signal.SIGCONT)
        start = time.monotonic()
        etcd.delete(PREFIX + "s0")
        wait_in_use(gateway, set(servers) - {"s0"}, "what came meanwhile follows", seconds=10)
        after_stop = time.monotonic() - start
        assert after_stop < 2
        load.turn()

        etcd.kill()
        wait_until(lambda: source(gateway)["is_answering"] is False, "it is told")
        time.sleep(1)
        assert set(in_use(gateway)) == set(servers) - {"s0"}
        etcd.start()
        start = time.monotonic()
        etcd.put(PREFIX + "s0", record(servers["s0"]))
        for number in range(50):
            last = etcd.put(PREFIX + "s1", record(servers["s1"], weight=2 + number))
        etcd.compact(last)
        wait_until(lambda: saved_weights(gateway) == {**{it: 1 for it in servers}, "s1": 51},
                   "it is caught up", seconds=10)
        after_death = time.monotonic() - start
        print(f"A7.2: caught up {after_stop:.2f} s after SIGCONT, {after_death:.2f} s after a start and a compaction")
        assert after_death < 2
        load.turn()
    assert load.failures == []


def test_another_member_is_asked_when_one_does_not_answer(place, etcd, servers):
    put_all(etcd, servers)
    nobody = f"http://{HOST}:{free_port()}"
    gateway = place.cashew(pools(nobody, etcd), {"worker_processes": 1})
    assert set(in_use(gateway)) == set(servers)
    etcd.delete(PREFIX + "s0")
    wait_in_use(gateway, set(servers) - {"s0"}, "it is followed there")


def test_leases_that_end_take_their_servers_away(place, etcd, servers, gateway):
    lease = etcd.ask("/v3/lease/grant", {"TTL": "1"})["ID"]
    body = {"key": coded(PREFIX + "s9"), "value": coded(f"{HOST}:{servers['s0'].port}:1"),
            "lease": lease}
    etcd.ask("/v3/kv/put", body)
    wait_in_use(gateway, {*servers, "s9"}, "it has joined")
    wait_in_use(gateway, set(servers), "its lease is over")


def test_users_log_in_where_they_have_to(place, etcd, servers):
    put_all(etcd, servers)
    for path, body in [
            ("user/add", {"name": "root", "password": "secret"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "cashew", "password": "word"}),
            ("role/add", {"name": "reader"}),
            ("role/grant", {"name": "reader", "perm": {
                "permType": "READ", "key": coded(PREFIX), "range_end": coded("/cache0")}}),
            ("user/grant", {"user": "cashew", "role": "reader"}),
            ("enable", {})]:
        if path == "user/grant" and body["user"] == "root":
            etcd.ask("/v3/auth/role/add", {"name": "root"})
        etcd.ask(f"/v3/auth/{path}", body)
    gateway = place.cashew(pools(etcd, user="cashew", password="word"), {"worker_processes": 1})
    assert set(in_use(gateway)) == set(servers)
    token = etcd.ask("/v3/auth/authenticate", {"name": "root", "password": "secret"})["token"]
    etcd.put(PREFIX + "s9", f"{HOST}:{servers['s0'].port}:1", [("Authorization", token)])
    wait_in_use(gateway, {*servers, "s9"}, "one has joined")
    assert "word" not in gateway.log() and "word" not in gateway.order("status").stdout
    gateway.configure(pools(etcd, user="cashew", password="wrong"))
    assert "authentication failed" in gateway.refused_reload()
