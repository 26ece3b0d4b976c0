"""Groups: shards of a primary and its replicas, with real replication."""

import contextlib
import threading

import pytest

from harness import HOST, ReplyError, free_port, server_lines, wait_until

KEYS = [f"{n}:key" for n in range(60)]


def is_linked(replica):
    return b"master_link_status:up" in replica.call("INFO", "replication")


def replica_of(place, primary):
    replica = place.redis()
    replica.call("REPLICAOF", HOST, str(primary.port))
    wait_until(lambda: is_linked(replica), "the replica has a copy")
    return replica


def group(name, primary, *replicas, weight=1):
    replicas = ", ".join(f"{HOST}:{replica.port}" for replica in replicas)
    return (f"{{name: {name}, weight: {weight}, primary: {HOST}:{primary.port}, "
            f"replicas: [{replicas}]}}")


def pool(*servers, **options):
    return {"alpha": {"redis": True, "servers": servers, **options}}


class Load(threading.Thread):
    """Writes and reads all the time, and keeps what is no good answer."""

    def __init__(self, gateway, seed):
        super().__init__()
        self.gateway, self.seed = gateway, seed
        self.stopped, self.count, self.bad = threading.Event(), 0, []

    def run(self):
        with self.gateway.connect() as conn:
            while not self.stopped.is_set():
                key = f"load:{self.seed}:{self.count % 50}"
                set_to, got = conn.call("SET", key, str(self.count)), conn.call("GET", key)
                if set_to != "OK" or not (got is None or isinstance(got, bytes)):
                    self.bad.append((set_to, got))
                self.count += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.join()

    def go_on(self):
        before = self.count
        wait_until(lambda: self.count > before + 50, "it goes on")


def keys_of(server):
    return sorted(server.call("KEYS", "*:key"))


@pytest.mark.parametrize("distribution", ["ketama", "modula"])
def test_lines_become_groups_and_groups_lines_and_no_key_moves_and_no_request_fails(
        place, distribution):
    alone, one, two = place.redis(), place.redis(), place.redis()
    lines = server_lines([alone, one, two], names=["s0", "s1", "s2"], weights=[1, 2, 1])
    options = {"distribution": distribution}
    gateway = place.cashew(pool(*lines, **options), {"worker_processes": 2})
    for key in KEYS:
        assert gateway.call("SET", key, "old") == "OK"
    before = [keys_of(server) for server in (alone, one, two)]
    assert all(before)
    replicas = [replica_of(place, one), replica_of(place, one), replica_of(place, two)]
    with Load(gateway, 1) as first, Load(gateway, 2) as second:
        for servers in (
            [lines[0], group("s1", one, *replicas[:2], weight=2), lines[2]],
            [lines[0], group("s1", one, *replicas[:2], weight=2), group("s2", two, replicas[2])],
            [lines[0], group("s1", one, replicas[1], weight=2), lines[2]],
            lines,
        ):
            gateway.configure(pool(*servers, **options))
            told = gateway.reload()
            assert "keys go to another server" not in told, told
            first.go_on()
            second.go_on()
            for key in KEYS:
                assert gateway.call("GET", key) == b"old"
                assert gateway.call("SET", key, "old") == "OK"
    assert first.bad == second.bad == []
    assert [keys_of(server) for server in (alone, one, two)] == before


def test_another_server_of_a_group_takes_the_writes(place):
    alone, primary = place.redis(), place.redis()
    replicas = [replica_of(place, primary) for _ in range(2)]
    servers = [*server_lines([alone], names=["s0"]), group("s1", primary, *replicas)]
    gateway = place.cashew(pool(*servers), {"worker_processes": 2})
    for key in KEYS:
        assert gateway.call("SET", key, "old") == "OK"
    here = [key.decode() for key in keys_of(primary)]
    assert 0 < len(here) < len(KEYS)
    # What has no key is for the primaries: a replica counts nothing twice.
    assert gateway.call("DBSIZE") == len(KEYS)
    assert sorted(gateway.call("KEYS", "*")) == sorted(key.encode() for key in KEYS)
    assert scanned(gateway) == sorted(key.encode() for key in KEYS)
    names = [f"s1/{HOST}:{server.port}" for server in (primary, *replicas)]
    status = gateway.order("status").stdout
    assert row(status, "s1") == ["alpha", "s1", names[0], f"{names[1]},", names[2]], status
    assert {*names, "s0"} <= set(gateway.stats()["alpha"])
    with Load(gateway, 1) as first, Load(gateway, 2) as second:
        first.go_on()
        replicas[1].call("REPLICAOF", "NO", "ONE")
        done = gateway.order("failover", "alpha", "s1", f"{HOST}:{replicas[1].port}")
        assert done.returncode == 0, done.stderr
        assert f"'{names[2]}' takes the writes now" in done.stdout
        told = primary.stat("set")
        first.go_on()
        second.go_on()
        assert primary.stat("set") == told
    assert first.bad == second.bad == []
    for key in here:
        assert gateway.call("SET", key, "new") == "OK"
        assert replicas[1].call("GET", key) == b"new"
        assert primary.call("GET", key) == b"old"
    assert row(gateway.order("status").stdout, "s1")[2] == names[2]
    assert f"server '{names[2]}' is the primary of group 's1' now" in gateway.log()
    # It stays so over a reload that adds a group beside it.
    other = place.redis()
    gateway.configure(pool(*servers, *server_lines([other], names=["s2"])))
    gateway.reload()
    assert row(gateway.order("status").stdout, "s1")[2] == names[2]
    # The old form, by the server's name; or its address, where there is one group.
    primary.call("REPLICAOF", HOST, str(replicas[1].port))
    wait_until(lambda: is_linked(primary), "it has a copy")
    primary.call("REPLICAOF", "NO", "ONE")
    assert gateway.order("failover", "alpha", names[0]).returncode == 0
    assert row(gateway.order("status").stdout, "s1")[2] == names[0]
    for words, why in [
        (("alpha", "s1", "s0"), "group 's1' of pool 'alpha' has no server 's0'; it has: s1/"),
        (("alpha", "s0", "s0"), "pool 'alpha' has no group 's0' with replicas; it has: s1"),
        (("alpha", "s0"), "server 's0' is no replica: it has keys of its own"),
        (("alpha", names[0]), f"server '{names[0]}' is the primary already"),
    ]:
        done = gateway.order("failover", *words)
        assert done.returncode == 1
        assert why in done.stdout + done.stderr


def scanned(gateway):
    found, cursor = set(), "0"
    with gateway.connect() as conn:
        while True:
            cursor, keys = conn.call("SCAN", cursor, "COUNT", "5")
            found.update(keys)
            cursor = cursor.decode()
            if cursor == "0":
                return sorted(key for key in found if key.endswith(b":key"))


def row(status, name):
    rows = [line.split() for line in status.splitlines()]
    return next(row for row in rows if row[1:2] == [name])


def test_an_ejected_primary_takes_its_group_out_and_a_replica_does_not(place):
    alone, primary = place.redis(), place.redis()
    replica = replica_of(place, primary)
    servers = [*server_lines([alone], names=["s0"]), group("s1", primary, replica)]
    gateway = place.cashew(
        pool(*servers, auto_eject_hosts=True, server_failure_limit=1, timeout=400,
             preconnect=True, server_retry_timeout=100),
        {"worker_processes": 1},
    )
    for key in KEYS:
        assert gateway.call("SET", key, "old") == "OK"
    here = keys_of(primary)
    server = f"s1/{HOST}:{replica.port}"
    replica.stop()
    wait_until(lambda: gateway.stats()["alpha"][server]["ejected"], "the replica is ejected")
    for key in KEYS:
        assert gateway.call("GET", key) == b"old"
    primary.stop()

    def is_out():
        # The request that finds it dead fails.
        with contextlib.suppress(ReplyError):
            gateway.call("GET", here[0])
        return gateway.stats()["alpha"][f"s1/{HOST}:{primary.port}"]["ejected"]

    wait_until(is_out, "the primary is ejected")
    assert [gateway.call("GET", key) for key in here] == [None] * len(here)
