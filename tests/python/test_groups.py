"""Groups: shards of a primary and its replicas, with real replication."""

import contextlib
import signal

import pytest

from harness import HOST, Crowd, ReplyError, Talker, free_port, server_lines, wait_until

KEYS = [f"{n}:key" for n in range(60)]


def is_linked(replica):
    return b"master_link_status:up" in replica.call("INFO", "replication")


def replicate(replicas, primary):
    """Has them become replicas, at once: servers wait five seconds for more by default."""
    primary.call("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    for replica in replicas:
        replica.call("REPLICAOF", HOST, str(primary.port))
    wait_until(lambda: all(map(is_linked, replicas)), "the replicas have a copy")
    # Before that a primary keeps what is written: a replica that is promoted would not have it.
    wait_until(lambda: primary.call("INFO", "replication").count(b"state=online") >= len(replicas),
               "the primary sends them what is written")


def replicas_of(place, primary, count):
    replicas = [place.redis() for _ in range(count)]
    replicate(replicas, primary)
    return replicas


def replica_of(place, primary):
    return replicas_of(place, primary, 1)[0]


def group(name, primary, *replicas, weight=1):
    replicas = ", ".join(f"{HOST}:{replica.port}" for replica in replicas)
    return (f"{{name: {name}, weight: {weight}, primary: {HOST}:{primary.port}, "
            f"replicas: [{replicas}]}}")


def pool(*servers, **options):
    return {"alpha": {"redis": True, "servers": servers, **options}}


class Load(Talker):
    """Writes and reads all the time, and keeps the errors."""

    def __init__(self, gateway, seed):
        super().__init__(gateway)
        self.seed, self.bad = seed, []

    def run(self):
        with self.gateway.connect() as conn:
            while not self.stopped.is_set():
                key = f"load:{self.seed}:{self.count % 50}"
                try:
                    conn.call("SET", key, str(self.count))
                    # What was written between a promotion and the failover is not there.
                    conn.call("GET", key)
                except ReplyError as error:
                    self.bad.append(error)
                self.count += 1


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
    replicas = replicas_of(place, one, 2) + replicas_of(place, two, 1)
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
    replicas = replicas_of(place, primary, 2)
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
    replicate([primary], replicas[1])
    primary.call("REPLICAOF", "NO", "ONE")
    assert gateway.order("failover", "alpha", names[0]).returncode == 0
    assert row(gateway.order("status").stdout, "s1")[2] == names[0]
    for words, why in [
        (("alpha", "s1", "s0"), "group 's1' of pool 'alpha' has no server 's0'; it has: s1/"),
        (("alpha", "s0", "s0"), "pool 'alpha' has no group 's0' with replicas; it has: s1"),
        (("alpha", "s0"), "server 's0' is no replica: it has keys of its own"),
    ]:
        done = gateway.order("failover", *words)
        assert done.returncode == 1
        assert why in done.stdout + done.stderr
    # Who asks again gets no error.
    done = gateway.order("failover", "alpha", names[0])
    assert done.returncode == 0 and f"'{names[0]}' takes the writes already" in done.stdout


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


class Readers(Crowd):
    """Clients that read all the time, each on a connection of its own."""

    def __init__(self, gateway, keys, clients=12):
        super().__init__(lambda number: self.read(gateway, keys, number), clients)
        self.errors, self.counts = [[] for _ in range(clients)], [0] * clients

    def read(self, gateway, keys, number):
        with gateway.connect() as conn:
            while not self.ended.is_set():
                try:
                    reply = conn.call("GET", keys[self.counts[number] % len(keys)])
                except ReplyError as error:
                    reply = error
                if reply != b"old":
                    self.errors[number].append(reply)
                self.counts[number] += 1

    def go_on(self, count=30):
        before = list(self.counts)
        wait_until(lambda: all(now > then + count for now, then in zip(self.counts, before)),
                   "all go on")


def gets(*servers):
    return [server.stat("get") for server in servers]


@pytest.fixture
def trio(place):
    """A group of a primary and two replicas, which have all keys."""
    primary = place.redis()
    for key in KEYS:
        primary.call("SET", key, "old")
    return primary, *replicas_of(place, primary, 2)


def test_replicas_are_read_and_one_that_stops_costs_what_was_on_its_way(place, trio):
    primary, *replicas = trio
    gateway = place.cashew(
        pool(group("s1", *trio), reads="prefer_replica", timeout=300), {"worker_processes": 2}
    )
    with Readers(gateway, KEYS) as readers:
        readers.go_on()
        before = gets(*trio)
        readers.go_on()
        after = gets(*trio)
        assert after[0] == before[0]
        shares = [now - then for now, then in zip(after[1:], before[1:])]
        assert min(shares) > 0.3 * sum(shares), shares
        assert not any(readers.errors)
        # It stops: its clients wait for `timeout` once, and nobody does after that.
        replicas[0].process.signal(signal.SIGSTOP)
        try:
            readers.go_on()
            readers.go_on()
            assert all(len(errors) <= 1 for errors in readers.errors), readers.errors
            told = [len(errors) for errors in readers.errors]
            readers.go_on()
            assert [len(errors) for errors in readers.errors] == told
        finally:
            replicas[0].process.signal(signal.SIGCONT)
        # It answers, and is read again.
        before = gets(replicas[0])
        wait_until(lambda: gets(replicas[0]) > before, "it is read again")
        # None is left but the primary: nothing waits for one that refuses.
        told = [len(errors) for errors in readers.errors]
        for replica in replicas:
            replica.stop()
            readers.go_on()
        assert gets(primary)[0] > 0
        for errors, before in zip(readers.errors, told):
            assert len(errors) <= before + 2, errors


@pytest.mark.parametrize("reads, expected", [
    ("primary", {0}), ("prefer_primary", {0}), ("replica", {1, 2}), ("prefer_replica", {1, 2}),
    ("any", {0, 1, 2}), ("nearest", {0, 1, 2}), ("zone", {2}),
])
def test_each_policy_reads_where_it_should(place, trio, reads, expected):
    primary, far, near = trio
    servers = (f"{{name: s1, primary: {HOST}:{primary.port}, replicas: [{HOST}:{far.port}, "
               f"{{address: {HOST}:{near.port}, zone: here}}]}}")
    gateway = place.cashew(pool(servers, reads=reads, zone="here"), {"worker_processes": 1})

    def are_fit():
        members = gateway.stats()["cashew"].get("members", [])
        return [member["reads"] for member in members] == ["fit"] * 3
    wait_until(are_fit, "they have been asked how far they have come")
    before = gets(*trio)
    for key in KEYS:
        assert gateway.call("GET", key) == b"old"
    shares = [now - then for now, then in zip(gets(*trio), before)]
    assert sum(shares) == len(KEYS)
    assert {at for at, share in enumerate(shares) if share} == expected, shares
    # Writes, cursors and transactions are the primary's, as the server says.
    assert gateway.call("SADD", "set", "a") == 1
    assert gateway.call("SSCAN", "set", "0") == [b"0", [b"a"]]
    assert primary.stat("sscan") == 1
    with gateway.connect() as conn:
        assert conn.call("MULTI") == "OK"
        assert conn.call("GET", KEYS[0]) == "QUEUED"
        told = gets(primary)
        assert conn.call("EXEC") == [b"old"]
        assert gets(primary) == [told[0] + 1]


def test_a_reload_changes_who_is_read(place, trio):
    gateway = place.cashew(pool(group("s1", *trio)), {"worker_processes": 2})
    with Readers(gateway, KEYS, clients=4) as readers:
        readers.go_on()
        assert gets(*trio)[1:] == [0, 0]
        gateway.configure(pool(group("s1", *trio), reads="replica"))
        assert "reads: by default -> replica" in gateway.reload()
        told = gets(trio[0])
        readers.go_on()
        assert gets(trio[0]) == told
        gateway.configure(pool(group("s1", *trio), reads="primary"))
        gateway.reload()
        told = gets(*trio[1:])
        readers.go_on()
        assert gets(*trio[1:]) == told
    assert not any(readers.errors)
