"""Replicas that Sentinels name answer reads: real redis-servers and real Sentinels, three of them."""

import os
import signal

import pytest

from harness import HOST, wait_until
from test_groups import KEYS, Readers, gets
from test_route import routes
from test_sentinel import MASTER, Group, group_status, pools, status, wait_primary
from test_upgrade import upgrade

#: Sentinels ask for replicas every ten seconds.
NOTICE_MAX = 60.0


def members(gateway):
    """By port: role, and whether it may be read."""
    pool = status(gateway)["pools"][0]
    addresses = {it["name"]: it["address"] for it in pool["server_states"]}
    return {int(addresses[it["server"]].rsplit(":", 1)[1]): (it["role"], it["fitness"])
            for it in pool["members"]}


def are_fit(gateway, servers):
    return members(gateway) == {
        server.port: ("primary" if server is servers[0] else "replica", "fit")
        for server in servers}


@pytest.fixture
def group(place):
    group = Group(place)
    for key in KEYS:
        group.servers[0].call("SET", key, "old")
    return group


def serve(place, group, **options):
    gateway = place.cashew(pools(group.addresses(), reads="prefer_replica", timeout=2000, **options),
                           {"worker_processes": 2})
    wait_until(lambda: are_fit(gateway, group.servers), "the replicas have joined", NOTICE_MAX)
    return gateway


def test_replicas_that_sentinels_name_answer_reads_join_and_leave(place, group):
    primary, *replicas = group.servers
    gateway = serve(place, group)
    assert "the replicas of 's1'" in gateway.log()
    before = gets(*group.servers)
    with Readers(gateway, KEYS, clients=4) as readers:
        readers.go_on(100)
        shares = [now - then for now, then in zip(gets(*group.servers), before)]
        assert shares[0] == 0 and min(shares[1:]) > 0, shares
        # Writes are the primary's.
        assert gateway.call("SET", "w", "1") == "OK"
        assert primary.call("GET", "w") == b"1"
        # Another one comes.
        third = place.redis("--repl-diskless-sync-delay", "0", "--replicaof", f"{HOST} {primary.port}")
        wait_until(lambda: are_fit(gateway, [*group.servers, third]), "it joins", NOTICE_MAX)
        before = gets(third)
        readers.go_on(30)
        wait_until(lambda: gets(third) > before, "it is read")
        assert readers.errors == [[]] * 4
        # Sentinels forget it: they are made to, once it is gone.
        third.stop()
        wait_until(lambda: members(gateway)[third.port][1] != "fit", "it is not fit", NOTICE_MAX)
        for sentinel in group.sentinels:
            sentinel.call("SENTINEL", "RESET", MASTER)
        wait_until(lambda: are_fit(gateway, group.servers), "it leaves", NOTICE_MAX)
        told = sum(map(len, readers.errors))
        readers.go_on(30)
        assert sum(map(len, readers.errors)) == told
    assert told <= 4, readers.errors
    [it] = routes(gateway, KEYS[0])
    assert (it["by_instance"], it["reads_by"]) == (True, "prefer_replica")
    assert it["writes"] == {"server": "s1", "address": f"{HOST}:{primary.port}"}
    # An operator does not decide there.
    done = gateway.order("failover", "--force", "alpha", "s1", f"{HOST}:{replicas[0].port}")
    assert done.returncode == 1
    assert f"Sentinels say who takes the writes of 's1': SENTINEL FAILOVER {MASTER}" in done.stderr


def test_a_replica_that_sentinels_say_is_down_is_not_read(place, group):
    primary, first, second = group.servers
    gateway = serve(place, group)
    first.process.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: members(gateway)[first.port][1] in ("down by Sentinel", "unreachable"),
                   "it is down", NOTICE_MAX)
        assert members(gateway)[second.port] == ("replica", "fit")
        before = gets(second)
        for key in KEYS:
            assert gateway.call("GET", key) == b"old"
        assert gets(second)[0] - before[0] == len(KEYS)
    finally:
        first.process.signal(signal.SIGCONT)
    wait_until(lambda: are_fit(gateway, group.servers), "it is back", NOTICE_MAX)


def test_after_a_failover_the_others_are_read(place, group):
    gateway = serve(place, group)
    with Readers(gateway, KEYS, clients=2) as readers:
        readers.go_on()
        group.sentinels[0].call("SENTINEL", "FAILOVER", MASTER)
        wait_until(lambda: group_status(gateway)["primary"] != f"{HOST}:{group.servers[0].port}",
                   "another is the primary", NOTICE_MAX)
        port = int(group_status(gateway)["primary"].rsplit(":", 1)[1])
        wait_primary(gateway, port)
        servers = sorted(group.servers, key=lambda server: server.port != port)
        wait_until(lambda: are_fit(gateway, servers), "the former primary has joined", NOTICE_MAX)
        before = gets(*servers)
        # Workers connect to the one that has joined, and then read it.
        wait_until(lambda: all(now > then for now, then in zip(gets(*servers[1:]), before[1:])),
                   "both are read")
        assert gets(servers[0]) == before[:1]
    # Those that a promotion cuts.
    assert all(len(errors) <= 3 for errors in readers.errors), readers.errors
    # What is known outlives discovery, a reload and an upgrade.
    os.kill(status(gateway)["discovery"]["pid"], signal.SIGKILL)
    assert "nothing changes" in gateway.reload().lower()
    assert len(members(gateway)) == len(servers)
    wait_until(lambda: are_fit(gateway, servers), "they are still read", NOTICE_MAX)
    epoch = gateway.epoch()
    upgrade(gateway)
    assert len(members(gateway)) == len(servers)
    wait_until(lambda: are_fit(gateway, servers), "they are read by the next program", NOTICE_MAX)
    assert gateway.epoch() == epoch
