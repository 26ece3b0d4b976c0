"""Servers that go by name: a reload looks the names up again, and moves to where they lead now."""

import os
import signal
import subprocess
import time

import pytest

from harness import CASHEW, Conn, HOST, PATIENCE, Process, accepts, free_port, wait_until
from load import Load, Record, WatchRecord, blocks, fill, memcached_request

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
NAME = "server.test"


class Names:
    """A `/etc/hosts` that only gateways started by `program` see. What it does not know, nobody
    does."""

    def __init__(self, directory):
        self.hosts = directory / "hosts"
        self.hosts.touch()
        nameserver, switch = directory / "resolv.conf", directory / "nsswitch.conf"
        # Nobody answers there, which is said at once.
        nameserver.write_text(f"nameserver {HOST}\noptions attempts:1 timeout:1\n")
        switch.write_text("hosts: files\n")
        mounts = [(self.hosts, "/etc/hosts"), (nameserver, "/etc/resolv.conf"),
                  (switch, "/etc/nsswitch.conf")]
        binds = " && ".join(f"mount --bind {own} {place}" for own, place in mounts)
        self.program = directory / "cashew-with-names"
        self.program.write_text(
            f"#!/bin/sh\nexec unshare -m sh -c '{binds} && exec {CASHEW} \"$@\"' sh \"$@\"\n")
        self.program.chmod(0o755)

    def say(self, **addresses):
        """In the same file, which is mounted; with one write, so that nobody reads half of it."""
        lines = [f"{HOST} localhost\n"]
        for name, found in addresses.items():
            lines += [f"{address} {name}.test\n" for address in found]
        text = "".join(lines)
        with open(self.hosts, "r+") as file:
            file.write(text.ljust(1000))


@pytest.fixture
def names(place):
    if os.geteuid() != 0:
        pytest.skip("only root mounts a hosts file of its own")
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if tried.returncode != 0:
        pytest.skip(f"no mount namespace: {tried.stderr.decode()}")
    return Names(place.directory)


class Memcached:
    """One at an address of its own."""

    def __init__(self, directory, port, bind):
        self.address = (bind, port)
        command = ["memcached", "-l", bind, "-p", port, "-U", "0", "-t", "1", "-u", "root"]
        self.process = Process(command, directory, f"memcached-{bind}-{port}",
                               lambda: accepts(self.address))

    def connect(self, timeout=PATIENCE):
        return Conn(self.address, timeout)

    def stop(self):
        self.process.kill()


@pytest.fixture(params=["redis", "memcached"])
def pair(place, request):
    """Two servers at one port of two addresses, with all keys; what writes down what they are asked,
    and a pool that reaches one of them by name."""
    port = free_port()
    if request.param == "redis":
        servers = [place.redis(port=port, bind=bind) for bind in (FIRST, SECOND)]
    else:
        servers = [place._keep(Memcached(place.directory, port, bind)) for bind in (FIRST, SECOND)]
    fill(*servers)
    record = Record if request.param == "redis" else WatchRecord
    pool = {"redis": request.param == "redis", "servers": [f"{NAME}:{port}:1 one"]}
    load = {} if request.param == "redis" else {"request": memcached_request}
    return servers, [record(server) for server in servers], pool, load


def moved(address):
    return f"server 'one' of pool 'alpha': {NAME} now resolves to {address}"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reload_follows_a_name_and_no_client_notices(place, names, pair, workers):
    servers, records, pool, options = pair
    names.say(server=[FIRST])
    gateway = place.cashew({"alpha": pool}, {"worker_processes": workers}, binary=names.program)
    epoch = gateway.epoch()
    with Load(gateway.address, count=8, tick=0.01, **options) as load:
        load.turn()
        # Who is connected stays so, until somebody says that names lead elsewhere.
        names.say(server=[SECOND])
        load.turn()
        assert moved(SECOND) in gateway.reload()
        load.turn()
        names.say(server=[FIRST])
        gateway.process.signal(signal.SIGHUP)
        wait_until(lambda: moved(FIRST) in gateway.log(), "the name leads back")
        wait_until(lambda: gateway.epoch() == epoch + 2, "another epoch")
        load.turn()
        names.say(server=[SECOND])
        gateway.reload()
        load.turn()
        assert gateway.log().count(moved(SECOND)) == 2
        assert load.stop()
    # All workers change at one instant.
    found = blocks(*(record.stop() for record in records))
    assert [block[0] for block in found] == [0, 1, 0, 1], found
    stats = gateway.stats()["alpha"]
    assert stats["forward_error"] == 0 and stats["client_err"] == 0
    assert stats["one"]["server_err"] == 0 and stats["one"]["server_timedout"] == 0


def test_nothing_changes_where_names_lead_where_they_did_or_are_unknown(place, names):
    port = free_port()
    one, two = (place.redis(port=port, bind=bind) for bind in (FIRST, SECOND))
    names.say(server=[FIRST])
    pools = {"alpha": {"redis": True, "servers": [f"{NAME}:{port}:1 one"]}}
    gateway = place.cashew(pools, {"worker_processes": 2}, binary=names.program)
    with gateway.connect() as conn:
        conn.call("SET", "a", "first")
        epoch = gateway.epoch()
        connected = connections(one)
        assert "nothing changes" in gateway.reload()
        # One more address is no reason to leave.
        names.say(server=[SECOND, FIRST])
        assert "nothing changes" in gateway.reload()
        names.say()
        said = gateway.reload()
        why = f"the host {NAME} cannot be looked up"
        assert why in said and "its connections stay as they are" in said
        assert "nothing changes" in said and why in gateway.log()
        # A name of which nothing is known keeps no other change off.
        gateway.configure({"alpha": {**pools["alpha"], "timeout": 4321}})
        said = gateway.reload()
        assert why in said and "timeout" in said
        assert gateway.epoch() > epoch
        assert conn.call("GET", "a") == b"first" and connections(one) == connected
        # A dry run does not ask.
        names.say(server=[SECOND])
        assert NAME not in gateway.reload("--dry-run")
        assert conn.call("GET", "a") == b"first"
        assert moved(SECOND) in gateway.reload()
        assert conn.call("GET", "a") is None and two.call("GET", "a") is None
        wait_until(lambda: connections(one) == 1, "the gateway has left the first")
    stats = gateway.stats()["alpha"]
    assert stats["forward_error"] == 0 and stats["one"]["server_err"] == 0


def connections(server):
    """Of clients, with the one that asks."""
    return len(server.call("CLIENT", "LIST").splitlines())


def test_what_is_in_flight_is_answered_by_the_old_server_and_the_wait_has_an_end(place, names):
    port = free_port()
    one, two = (place.redis(port=port, bind=bind) for bind in (FIRST, SECOND))
    one.call("SET", "a", "first")
    two.call("SET", "a", "second")
    names.say(server=[FIRST])
    pools = {"alpha": {"redis": True, "servers": [f"{NAME}:{port}:1 one"]}}
    settings = {"worker_processes": 1, "reload_drain_timeout": 500}
    gateway = place.cashew(pools, settings, binary=names.program)
    with gateway.connect() as conn, gateway.connect() as other:
        assert conn.call("GET", "a") == other.call("GET", "a") == b"first"
        one.process.signal(signal.SIGSTOP)
        conn.send(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n" * 3)
        wait_until(lambda: gateway.under_way() == 3, "three requests on their way")
        names.say(server=[SECOND])
        started = time.monotonic()
        said = gateway.reload()
        assert moved(SECOND) in said
        assert 0.5 <= time.monotonic() - started < PATIENCE
        assert other.call("GET", "a") == b"second"
        for _ in range(3):
            assert b"-" in conn.read_line()
        assert conn.call("GET", "a") == b"second"
        one.process.signal(signal.SIGCONT)
    assert "3 requests were not answered in time before the change" in gateway.log()


def test_who_waits_or_has_subscribed_goes_along(place, names):
    """With either, the gateway has connections of its own kind to the server."""
    port = free_port()
    one, two = (place.redis(port=port, bind=bind) for bind in (FIRST, SECOND))
    names.say(server=[FIRST])
    pools = {"alpha": {"redis": True, "servers": [f"{NAME}:{port}:1 one"]}}
    gateway = place.cashew(pools, {"worker_processes": 2}, binary=names.program)
    with gateway.connect() as waiting, gateway.connect() as subscriber, gateway.connect() as conn:
        assert subscriber.call("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
        conn.call("PUBLISH", "news", "old")
        assert subscriber.reply() == [b"message", b"news", b"old"]
        waiting.send(b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$1\r\n0\r\n")
        wait_until(lambda: b"cmd=blpop" in one.call("CLIENT", "LIST"), "it waits there")
        names.say(server=[SECOND])
        assert moved(SECOND) in gateway.reload()
        wait_until(lambda: b"cmd=blpop" in two.call("CLIENT", "LIST"), "it waits at the next one")
        assert conn.call("PUBLISH", "news", "new") == 1
        assert subscriber.reply() == [b"message", b"news", b"new"]
        conn.call("RPUSH", "list", "item")
        assert waiting.reply() == [b"list", b"item"]
        wait_until(lambda: connections(one) == 1, "the gateway has left the first")
    assert gateway.stats()["alpha"]["forward_error"] == 0
