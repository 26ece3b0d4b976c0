"""Pools whose servers a file names, and what is the same of all sources: damping, state, status."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from discovery import (epochs, event_kinds, in_use, line, pool_status, samples, source, status,
                       wait_in_use)
from harness import CASHEW, HOST, ReplyError, alive, free_port, wait_until
from load import Load, fill

from test_upgrade import upgrade


@pytest.fixture
def servers(place):
    return [place.redis() for _ in range(4)]


class Listed:
    """A file with servers, by their names."""

    def __init__(self, place, servers):
        self.path = place.directory / "servers"
        self.servers = {f"s{number}": server for number, server in enumerate(servers)}
        self.write()

    def write(self, names=None, weights=None):
        names = self.servers if names is None else names
        lines = [line(self.servers[name], name, (weights or {}).get(name, 1)) for name in names]
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{it}\n" for it in lines))
        new.rename(self.path)


@pytest.fixture
def listed(place, servers):
    return Listed(place, servers)


def pools(listed, **more):
    return {"alpha": {"redis": True, "servers_from": f"{{file: {listed.path}}}", **more}}


def settings(place, **more):
    return {"worker_processes": 2, "discovery_state": place.directory / "state.json", **more}


def key(number):
    return f"{number * 7919:08x}"


def where(gateway, keys=200):
    """By key: which server has it, as `cashew route` says."""
    done = gateway.order("route", "--json", *map(key, range(keys)))
    assert done.returncode == 0, done.stderr
    return [it["writes"]["server"] for it in json.loads(done.stdout)]


def placed(gateway, servers, keys=200):
    """By key: which server has it, as the servers say."""
    for server in servers.values():
        server.call("FLUSHALL")
    with gateway.connect() as conn:
        for number in range(keys):
            conn.call("SET", key(number), number)
    has = {name: set(server.call("KEYS", "*")) for name, server in servers.items()}
    return [next(name for name in has if key(number).encode() in has[name])
            for number in range(keys)]


def saved_weights(gateway):
    """By name, as the master has written down what is in effect."""
    state = json.loads(gateway.settings["discovery_state"].read_text())
    return {it["name"]: it["weight"] for it in state["pools"][0]["servers"]}


def test_keys_are_where_a_file_of_the_configuration_would_have_them(place, listed):
    lines = [line(server, name) for name, server in listed.servers.items()]
    given = place.cashew({"alpha": {"redis": True, "servers": lines}}, {"worker_processes": 1})
    found = place.cashew(pools(listed), settings(place))
    assert where(found) == where(given) == placed(found, listed.servers)
    assert len(set(where(found))) == 4
    with found.connect() as one, given.connect() as other:
        for number in range(100):
            one.call("SET", key(number), number)
        for number in range(100):
            assert other.call("GET", key(number)) == str(number).encode()


def test_servers_join_leave_and_change_weight_without_an_error(place, listed, servers):
    fill(*servers)
    listed.write(["s0", "s1"])
    gateway = place.cashew(pools(listed), settings(place))
    assert set(in_use(gateway)) == {"s0", "s1"}
    with Load(gateway.address) as load:
        load.turn()
        listed.write()
        wait_in_use(gateway, listed.servers, "all are in use")
        load.turn()
        assert all(server.stat("get") > 0 for server in servers)
        # One of four is no third.
        listed.write(["s0", "s1", "s2"])
        wait_in_use(gateway, ["s0", "s1", "s2"], "one has left")
        load.turn()
        listed.write(["s0", "s1", "s2"], {"s0": 8})
        wait_until(lambda: saved_weights(gateway)["s0"] == 8, "it is heavier")
        load.turn()
    assert load.failures == []
    keys = placed(gateway, {name: listed.servers[name] for name in ("s0", "s1", "s2")})
    assert keys.count("s0") > 100, keys
    said = pool_status(gateway)
    assert said["source"]["is_answering"] and said["source"]["kind"] == "file", said
    assert said["source"]["named"] == 3 and said["source"]["held"] is None
    assert said["source_changes"] == 4 and "s0 changed weight" in said["source_change"]["what"]
    text = gateway.order("status").stdout
    assert "SERVERS FROM" in text and f"file {listed.path}" in text and "s ago" in text, text
    assert event_kinds(gateway).count("servers_changed") == 3
    assert "servers_known" in event_kinds(gateway)
    labels = '{pool="alpha",source="file"}'
    assert samples(gateway, "cashew_source_up") == [f"{labels} 1"]
    assert samples(gateway, "cashew_source_servers") == [f"{labels} 3"]
    assert samples(gateway, "cashew_source_changes_total") == [f"{labels} 4"]
    assert samples(gateway, "cashew_source_held_servers") == [f"{labels} 0"]
    found, = gateway.stats()["cashew"]["sources"]
    assert (found["kind"], found["up"], found["servers"], found["held"]) == ("file", 1, 3, 0)


def test_a_server_that_moves_keeps_its_keys(place, listed, servers):
    gateway = place.cashew(pools(listed), settings(place))
    keys = placed(gateway, listed.servers)
    moved = place.redis()
    listed.servers["s2"] = moved
    listed.write()
    wait_until(lambda: in_use(gateway)["s2"] == f"{HOST}:{moved.port}", "it is at its new place")
    assert placed(gateway, listed.servers) == keys and "s2" in keys


def test_what_cannot_be_read_changes_nothing(place, listed):
    gateway = place.cashew(pools(listed), settings(place))
    before = epochs(gateway)
    listed.path.write_text(f"{HOST}:1:1 s9\nno server\n")
    wait_until(lambda: source(gateway)["is_answering"] is False, "it is told")
    assert "line 2: " in source(gateway)["failure"]
    listed.path.unlink()
    wait_until(lambda: "No such file" in source(gateway)["failure"], "it is told that it is gone")
    assert set(in_use(gateway)) == set(listed.servers) and epochs(gateway) == before
    assert samples(gateway, "cashew_source_up") == ['{pool="alpha",source="file"} 0']
    listed.write(["s0", "s1", "s2"])
    wait_in_use(gateway, ["s0", "s1", "s2"], "it is followed again")
    assert [it for it in event_kinds(gateway) if it.startswith("source_")] == [
        "source_lost", "source_found"]


def test_an_empty_answer_removes_nothing_for_half_a_minute(place, listed):
    gateway = place.cashew(pools(listed), settings(place))
    with gateway.connect() as conn:
        conn.call("SET", "key", "value")
        start = time.monotonic()
        listed.write([])
        wait_until(lambda: source(gateway)["held"], "they are held back")
        held = source(gateway)["held"]
        assert (held["servers"], held["of"]) == (4, 4) and held["names"] == sorted(listed.servers)
        assert samples(gateway, "cashew_source_held_servers") == ['{pool="alpha",source="file"} 4']
        assert "held back: s0, s1, s2, s3, 4 of 4 servers" in gateway.order("status").stdout
        assert "servers_held" in event_kinds(gateway)
        while time.monotonic() < start + 29:
            assert conn.call("GET", "key") == b"value"
            time.sleep(0.1)
        assert len(in_use(gateway)) == 4
        wait_until(lambda: pool_status(gateway)["servers"] == 0, "they are gone", seconds=30)
        with pytest.raises(ReplyError):
            conn.call("GET", "key")
        # All of them are back at once.
        listed.write()
        wait_in_use(gateway, listed.servers, "they are back")
        assert conn.call("GET", "key") == b"value"


def test_many_changes_are_few_epochs(place, listed, servers):
    gateway = place.cashew(pools(listed), settings(place))
    before, start = epochs(gateway), time.monotonic()
    number = 0
    while time.monotonic() < start + 5:
        number += 1
        listed.write(weights={"s0": number + 1})
        time.sleep(0.01)
    wait_until(lambda: saved_weights(gateway)["s0"] == number + 1, "the last is in effect")
    assert placed(gateway, listed.servers) == expected(place, listed, {"s0": number + 1})
    # Once a second, as far as the file was complete then.
    assert 2 <= epochs(gateway) - before <= 8, number


def expected(place, listed, weights):
    """Where keys are by a file of the configuration."""
    lines = [line(server, name, weights.get(name, 1)) for name, server in listed.servers.items()]
    path = place.directory / "expected.yml"
    servers = "".join(f"    - {it}\n" for it in lines)
    path.write_text(f"alpha:\n  listen: {HOST}:1\n  redis: true\n  servers:\n{servers}")

    words = [CASHEW, "route", "-c", str(path), "--json", *map(key, range(200))]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return [it["writes"]["server"] for it in json.loads(done.stdout)]


def test_a_start_without_the_source_has_the_servers_of_before(place, listed):
    gateway = place.cashew(pools(listed), settings(place))
    listed.write(["s0", "s1", "s2"])
    wait_in_use(gateway, ["s0", "s1", "s2"], "one has left")
    gateway.process.stop()
    saved = json.loads((place.directory / "state.json").read_text())
    assert [it["name"] for it in saved["pools"][0]["servers"]] == ["s0", "s1", "s2"]
    listed.path.unlink()
    gateway.process.start()
    gateway.wait_serving()
    assert set(in_use(gateway)) == {"s0", "s1", "s2"}
    assert "servers_unknown" in event_kinds(gateway)
    assert "its servers are taken to be those that it had before" in gateway.log()
    gateway.call("SET", "key", "value")
    listed.write()
    wait_in_use(gateway, listed.servers, "it is followed")


def test_a_start_without_the_source_and_without_a_state_serves_errors_until_it_answers(place, listed):
    listed.path.unlink()
    gateway = place.cashew(pools(listed), {"worker_processes": 2})
    assert pool_status(gateway)["servers"] == 0
    with pytest.raises(ReplyError):
        gateway.call("SET", "key", "value")
    assert "; it has no servers" in gateway.log()
    done = gateway.order("doctor")
    assert "names no servers for it" in done.stdout, done.stdout
    listed.write()
    wait_in_use(gateway, listed.servers, "it is followed")
    assert gateway.call("SET", "key", "value") == "OK"
    # What it had none of does not keep the rest from being loaded.
    listed.path.unlink()
    gateway.configure(pools(listed, timeout=1000))
    gateway.reload()
    assert set(in_use(gateway)) == set(listed.servers)


@contextlib.contextmanager
def slow(path):
    """A file that nobody can open before this ends, as that of a file server that hangs. Yields whether somebody tries."""
    with open(path, "r+b") as file:
        # Whoever has a lease gets a signal; this one is ignored.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        try:
            yield lambda: fcntl.fcntl(file, fcntl.F_GETLEASE) != fcntl.F_WRLCK
        finally:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def test_lists_wait_for_a_file_that_takes_long_to_load(place, listed):
    """If they did not, a file would never come into effect where lists change all the time."""
    keys = place.directory / "keys"
    keys.write_text("# none\n")

    def both(**more):
        return {"main": {"redis": True, "route": f"{{keys: {{file: {keys}}}, else: alpha}}"},
                **pools(listed, listen=None, **more)}

    # So the commands need not read the configuration, which they could not.
    control = place.directory / "control"
    gateway = place.cashew(both(timeout=1000), settings(place, control_socket=control))
    wait_in_use(gateway, listed.servers, "all are in use")

    def ask(*words):
        return gateway.order(*words, "--control", control)

    def alpha():
        return next(it for it in json.loads(ask("status", "--json").stdout)["pools"] if it["name"] == "alpha")

    gateway.configure(both(timeout=2000))
    loads, said = gateway.log().count("loading /"), []
    reload = threading.Thread(target=lambda: said.append(ask("reload")))
    with slow(keys) as is_tried:
        reload.start()
        wait_until(is_tried, "it is loaded")
        listed.write(["s0", "s1", "s2"])
        wait_until(lambda: alpha()["source"]["named"] == 3, "the list is another one")
        # That is when it would be in effect.
        time.sleep(1.5)
        assert {it["name"] for it in alpha()["server_states"]} == set(listed.servers) and not said
    reload.join()
    assert said[0].returncode == 0, said[0]
    # What was read is not read again for the list's sake, which is in effect with the file or right behind it.
    assert gateway.log().count("loading /") == loads + 1, gateway.log()[-3000:]
    assert "timeout" in said[0].stdout, said[0]
    wait_in_use(gateway, ["s0", "s1", "s2"], "the list is in effect, too")


def test_reloads_keep_the_servers_and_need_those_of_a_new_source(place, listed, servers):
    gateway = place.cashew(pools(listed), settings(place))
    other = Listed.__new__(Listed)
    other.path, other.servers = place.directory / "others", {"t0": servers[0], "t1": servers[1]}
    gateway.configure(pools(other))
    refused = gateway.refused_reload()
    assert "does not tell which servers there are" in refused, refused
    assert set(in_use(gateway)) == set(listed.servers)
    other.write()
    said = gateway.order("reload", "--dry-run").stdout
    assert f"servers_from: file {listed.path} -> file {other.path}" in said, said
    gateway.reload()
    assert set(in_use(gateway)) == {"t0", "t1"}
    # And back to the file of the configuration.
    gateway.configure({"alpha": {"redis": True, "servers": [line(servers[0], "u0")]}})
    gateway.reload()
    assert set(in_use(gateway)) == {"u0"} and source(gateway) is None
    gateway.configure(pools(other))
    gateway.reload()
    assert set(in_use(gateway)) == {"t0", "t1"}


def test_the_death_of_discovery_and_an_upgrade_keep_what_was_found(place, listed):
    gateway = place.cashew(pools(listed), settings(place))
    listed.write(["s0", "s1", "s2"])
    wait_in_use(gateway, ["s0", "s1", "s2"], "one has left")
    pid = status(gateway)["discovery"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid) and status(gateway)["discovery"]["pid"] not in (None, pid),
               "another discovery")
    assert set(in_use(gateway)) == {"s0", "s1", "s2"}
    listed.write()
    wait_in_use(gateway, listed.servers, "it is followed")
    upgrade(gateway)
    assert set(in_use(gateway)) == set(listed.servers)
    listed.write(["s0", "s1", "s2"])
    wait_in_use(gateway, ["s0", "s1", "s2"], "it is followed after an upgrade")
    wait_until(lambda: source(gateway)["is_answering"], "it is told")


def test_a_single_process_follows_as_well(place, listed):
    gateway = place.cashew(pools(listed), settings(place, worker_processes=0))
    listed.write(["s0", "s1", "s2"])
    wait_in_use(gateway, ["s0", "s1", "s2"], "one has left")
    assert gateway.call("SET", "key", "value") == "OK"


def test_operators_see_what_a_source_says(place, listed):
    gateway = place.cashew(pools(listed), settings(place))
    done = gateway.order("discover", "alpha")
    assert done.returncode == 0 and done.stdout.startswith(f"file {listed.path} names 4 servers\n")
    done = gateway.order("discover", "alpha", "--json")
    named = [json.loads(text) for text in done.stdout.splitlines()]
    address = f"{HOST}:{listed.servers['s1'].port}"
    assert named[1] == {"pool": "alpha", "name": "s1", "address": address, "weight": 1}
    listed.path.write_text("nonsense\n")
    done = gateway.order("discover", "alpha")
    assert done.returncode == 1 and "line 1: " in done.stderr + done.stdout
    assert gateway.order("discover", "beta").returncode == 1


def test_memcached_pools_have_sources_too(place):
    servers = [place.memcached() for _ in range(3)]
    path = place.directory / "servers.json"
    records = [{"address": f"{HOST}:{it.port}", "name": f"m{number}", "weight": 1 + number}
               for number, it in enumerate(servers)]
    path.write_text(json.dumps(records))
    gateway = place.cashew({"alpha": {"servers_from": f"{{file: {path}}}"}}, settings(place))
    assert set(in_use(gateway)) == {"m0", "m1", "m2"}
    with gateway.connect() as conn:
        conn.send(b"set key 0 0 5\r\nvalue\r\n")
        conn.expect(b"STORED\r\n")
        path.write_text(json.dumps(records[:2] + [dict(records[2], weight=1)]))
        wait_until(lambda: pool_status(gateway)["source_changes"] == 2, "a weight has changed")
        conn.send(b"version\r\n")
        assert conn.read_line().startswith(b"VERSION")


def test_what_a_file_may_not_say_is_refused(place):
    def refusal(text):
        path = place.directory / "bad.yml"
        path.write_text(f"alpha:\n  listen: {HOST}:{free_port()}\n  redis: true\n{text}\n")
        done = subprocess.run([CASHEW, "-t", "-c", str(path)], capture_output=True, text=True)
        assert done.returncode == 1, text
        return done.stdout + done.stderr

    assert "has 0 sources" in refusal("  servers_from: {}")
    assert "has 2 sources" in refusal("  servers_from: {file: /etc/x, consul: {service: x}}")
    assert "exclude each other" in refusal("  servers_from: {file: /etc/x}\n  servers: [a:1:1]")
    assert "there is no directory" in refusal("  servers_from: {file: /no/where/x}")
    assert 'lacks the option "port"' in refusal("  servers_from: {dns: {name: x.y}}")
    assert 'https needs a "ca"' in refusal(
        "  servers_from: {etcd: {endpoints: 'https://h:1', prefix: /x}}")
    assert "unknown option" in refusal("  servers_from: {zookeeper: {}}")
