"""`cashew route` names the servers that have the keys."""

import json
import subprocess

import pytest

from harness import CASHEW, HOST, server_lines
from test_groups import group, pool, replica_of


def route(gateway, *arguments, stdin=""):
    command = [CASHEW, "route", "-c", gateway.config_path, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30)


def routes(gateway, *arguments, **named):
    result = route(gateway, "--json", *arguments, **named)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("options", [
    {"distribution": "ketama"},
    {"distribution": "modula", "hash": "murmur"},
    {"distribution": "ketama", "hash": "md5", "hash_tag": '"{}"'},
], ids=["ketama", "modula", "tag"])
def test_every_key_is_where_it_says(place, options):
    servers = {f"s{n}": place.redis() for n in range(3)}
    lines = server_lines(servers.values(), names=list(servers), weights=[1, 2, 3])
    gateway = place.cashew(pool(*lines, **options), {"worker_processes": 1})
    keys = [f"key-{n}{{tag{n % 7}}}" for n in range(100)] + ["with space", "ключ"]
    for key in keys:
        assert gateway.call("SET", key, "v") == "OK"
    found = routes(gateway, "-", stdin="".join(f"{key}\n" for key in keys))
    assert [it["key"] for it in found] == keys
    for it in found:
        assert it["writes"] == it["reads"] and it["group"] == it["writes"]["server"]
        assert servers[it["group"]].call("EXISTS", it["key"]) == 1, it


def test_a_primary_by_failover_is_named_and_so_is_what_would_be(place):
    alone, one = place.redis(), place.redis()
    two = replica_of(place, one)
    gateway = place.cashew(pool(*server_lines([alone], names=["s0"]), group("s1", one, two),
                                auto_eject_hosts=True), {"worker_processes": 1})
    of_group = [it for it in routes(gateway, *map(str, range(20))) if it["group"] == "s1"]
    assert {it["writes"]["address"] for it in of_group} == {f"{HOST}:{one.port}"}
    key = of_group[0]["key"]
    two.call("REPLICAOF", "NO", "ONE")
    assert subprocess.run([CASHEW, "failover", "-c", gateway.config_path, "alpha", "s1",
                           f"{HOST}:{two.port}"], timeout=30).returncode == 0
    assert routes(gateway, key)[0]["writes"]["address"] == f"{HOST}:{two.port}"
    [down] = routes(gateway, "--as-if", f"{HOST}:{two.port}=down", key)
    assert down["group"] == "s0"
    text = route(gateway, key)
    assert text.stdout.split()[:4] == ["POOL", "KEY", "GROUP", "WRITES"] and key in text.stdout


def test_reads_by_a_policy_are_told_as_that(place):
    one = place.redis()
    two = replica_of(place, one)
    gateway = place.cashew(pool(group("s1", one, two), reads="prefer_replica"))
    [it] = routes(gateway, "key")
    assert (it["reads"], it["reads_by"]) == (None, "prefer_replica")
    assert it["writes"]["address"] == f"{HOST}:{one.port}"
    assert "prefer_replica of the group" in route(gateway, "key").stdout


def test_classes_of_reads_are_told(place):
    alone, one = place.redis(), place.redis()
    two = replica_of(place, one)
    gateway = place.cashew(pool(*server_lines([alone], names=["s0"]), group("s1", one, two),
                                reads="prefer_replica",
                                reads_by_class='{get: primary, "@slow": any}'))
    found = routes(gateway, *map(str, range(20)))
    assert {it["group"] for it in found} == {"s0", "s1"}
    for it in found:
        classes = [{"class": "get", "reads_by": "primary"}, {"class": "@slow", "reads_by": "any"}]
        assert it.get("reads_by_class", []) == (classes if it["group"] == "s1" else [])
    key = next(it["key"] for it in found if it["group"] == "s1")
    text = route(gateway, key).stdout
    assert "prefer_replica of the group; get: primary; @slow: any" in text, text


def test_chance_is_a_field(place):
    servers = server_lines([place.redis(), place.redis()], names=["s0", "s1"])
    gateway = place.cashew(pool(*servers, distribution="random"))
    [it] = routes(gateway, "key")
    assert (it["random"], it["writes"], it["reads"]) == (True, None, None)
    assert route(gateway, "key").stdout.splitlines()[1].split()[3:5] == ["any", "any"]
    gateway.configure(pool(*servers))
    [it] = routes(gateway, "key")
    assert it["random"] is False


def test_it_says_when_the_running_instance_was_not_reached(place):
    gateway = place.cashew(pool(*server_lines([place.redis()], names=["s0"])))
    told = route(gateway, "key")
    assert "not reached" not in told.stderr + told.stdout
    [it] = routes(gateway, "key")
    assert it["by_instance"] is True and "not_by_instance" not in it
    # The file has another pool than the one that runs.
    gateway.configure(pool(*server_lines([place.redis(), place.redis()], names=["s0", "s1"])))
    told = route(gateway, "key")
    assert "pool 'alpha' is not in use like this; this is what the file says" in told.stderr
    [it] = routes(gateway, "key")
    assert (it["by_instance"], it["not_by_instance"]) == (
        False, "pool 'alpha' is not in use like this")
    gateway.stop()
    told = route(gateway, "key")
    assert told.returncode == 0
    assert "cashew: the running instance was not reached: " in told.stderr
    assert "; this is what the file says" in told.stderr
    [it] = routes(gateway, "key")
    assert it["by_instance"] is False
    assert it["not_by_instance"].startswith("the running instance was not reached: /")


def test_what_it_does_not_know_it_says(place):
    gateway = place.cashew(pool(*server_lines([place.redis()], names=["s0"])))
    for arguments, why in [
        (["--pool", "beta", "k"], 'there is no pool "beta"; there are alpha'),
        (["--as-if", "s9=down", "k"], 'there is no server "s9"'),
        (["--as-if", "s0", "k"], "expected SERVER=down"),
        ([], "required"),
    ]:
        result = route(gateway, *arguments)
        assert result.returncode == 1 and why in result.stderr, result.stderr
