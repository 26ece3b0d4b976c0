"""Pools whose servers DNS names."""

import time

import pytest

from discovery import DnsServer, in_use, source, wait_in_use
from harness import HOST, wait_until
from load import Load, fill

NAME = "cache.example"


@pytest.fixture
def dns(place):
    return place.keep(DnsServer())


def pool(dns, options):
    return {"alpha": {"redis": True, "servers_from":
                      f"{{dns: {{name: {NAME}, server: '{HOST}:{dns.port}', {options}}}}}"}}


def test_addresses_are_servers(place, dns):
    """Several of one name, of both families: each is a server."""
    port = place.redis().port
    servers = [place.redis(port=port, bind=f"127.0.0.{last}") for last in (2, 3, 4, 5)]
    fill(*servers)
    dns.set(NAME, "A", *[(1, f"127.0.0.{last}") for last in (2, 3, 4)])
    gateway = place.cashew(pool(dns, f"port: {port}"), {"worker_processes": 2})
    assert in_use(gateway) == {f"127.0.0.{it}:{port}": f"127.0.0.{it}:{port}" for it in (2, 3, 4)}
    with Load(gateway.address) as load:
        dns.set(NAME, "A", *[(1, f"127.0.0.{last}") for last in (5, 4, 3, 2)])
        wait_in_use(gateway, [f"127.0.0.{it}:{port}" for it in (2, 3, 4, 5)], "one has joined")
        load.turn()
        dns.set(NAME, "A", *[(1, f"127.0.0.{last}") for last in (2, 3, 5)])
        wait_in_use(gateway, [f"127.0.0.{it}:{port}" for it in (2, 3, 5)], "one has left")
        load.turn()
    dns.set(NAME, "AAAA", (1, "::1"))
    wait_in_use(gateway, [*(f"127.0.0.{it}:{port}" for it in (2, 3, 5)), f"[::1]:{port}"],
                "one of the other family has joined")
    # A second one within half a minute is too much of five.
    dns.set(NAME, "AAAA")
    wait_until(lambda: source(gateway)["held"], "it is held back")
    assert source(gateway)["held"]["names"] == [f"[::1]:{port}"]
    assert len(in_use(gateway)) == 4


def test_errors_and_empty_answers_change_nothing(place, dns):
    servers = [place.redis() for _ in range(2)]
    dns.set(NAME, "SRV", *[(1, (0, 1, it.port, "localhost")) for it in servers])
    gateway = place.cashew(pool(dns, "records: srv"), {"worker_processes": 1})
    names = {f"localhost:{it.port}" for it in servers}
    assert set(in_use(gateway)) == names
    assert gateway.call("SET", "key", "value") == "OK"
    for records, told in [([2], "SERVFAIL"), ([3], "NXDOMAIN"), ([], "no such records"),
                          ([5], "REFUSED")]:
        dns.set(NAME, "SRV", *records)
        wait_until(lambda: told in (source(gateway)["failure"] or ""), told)
        assert set(in_use(gateway)) == names
    dns.silent = True
    wait_until(lambda: "REFUSED" not in source(gateway)["failure"], "silence is told")
    assert set(in_use(gateway)) == names
    dns.silent = False
    third = place.redis()
    dns.set(NAME, "SRV", *[(1, (0, 1, it.port, "localhost")) for it in (*servers, third)])
    wait_in_use(gateway, {*names, f"localhost:{third.port}"}, "it is followed again")
    assert source(gateway)["failure"] is None


def test_services_have_priorities_and_weights_and_long_answers_come_by_tcp(place, dns):
    servers = [place.redis() for _ in range(3)]
    dns.truncate = True
    dns.set(NAME, "SRV", (60, (1, 0, servers[0].port, "localhost")),
            (60, (1, 7, servers[1].port, "localhost")), (60, (2, 1, servers[2].port, "localhost")))
    gateway = place.cashew(pool(dns, "records: srv"), {"worker_processes": 1})
    assert set(in_use(gateway)) == {f"localhost:{it.port}" for it in servers[:2]}
    text = gateway.order("discover", "alpha").stdout.splitlines()
    assert [row.split()[2] for row in text if row.startswith("localhost:")] in (["1", "7"], ["7", "1"])


def test_records_are_asked_for_again_when_their_time_is_over(place, dns):
    server = place.redis()
    dns.set(NAME, "SRV", (0, (0, 1, server.port, "localhost")))
    place.cashew(pool(dns, "records: srv"), {"worker_processes": 1})
    time.sleep(2.5)
    # A second is the least, whatever they say.
    times = [at for _, _, at in dns.asked][-3:]
    assert all(later - earlier > 0.9 for earlier, later in zip(times, times[1:])), times
    dns.set(NAME, "SRV", (60, (0, 1, server.port, "localhost")))
    time.sleep(2)
    asked = len(dns.asked)
    time.sleep(2)
    assert len(dns.asked) == asked
