"""`cashew failover`: another server takes the writes of a pool, at once in all workers."""

import os
import re
import signal
import subprocess
import time

import pytest

from harness import HOST, Talker, resp, server_lines, wait_until
from test_groups import group, replicas_of

KEYS = [f"key:{n}" for n in range(50)]


class Pair:
    """A pool of a master and a replica of it, by real replication."""

    def __init__(self, place, settings=None, **options):
        self.master, self.replica = place.redis(), place.redis()
        self.replica.call("REPLICAOF", "127.0.0.1", self.master.port)
        linked = lambda: b"master_link_status:up" in self.replica.call("INFO", "replication")
        wait_until(linked, "the replica has a copy")
        self.servers = server_lines([self.master, self.replica], names=["master", "r1"])
        self.options = {"redis": True, "servers": self.servers, **options}
        self.gateway = place.cashew({"alpha": self.options}, {"worker_processes": 2, **(settings or {})})

    def promote(self):
        self.replica.call("REPLICAOF", "NO", "ONE")
        return self.gateway.order("failover", "alpha", "r1")

    def writes(self, server):
        """How many SETs the server has executed."""
        for line in server.call("INFO", "commandstats").split(b"\r\n"):
            if line.startswith(b"cmdstat_set:"):
                return int(line.split(b"calls=")[1].split(b",")[0])
        return 0

    def check_writes_go_to(self, server, other):
        before = self.writes(other)
        for n, key in enumerate(KEYS):
            # Clients of both workers.
            assert self.gateway.call("SET", key, str(n)) == "OK"
        assert [server.call("GET", key) for key in KEYS] == [b"%d" % n for n in range(len(KEYS))]
        assert self.writes(other) == before


@pytest.fixture
def pair(place):
    return Pair(place)


class Writer(Talker):
    """Writes all the time, and keeps what is not OK."""

    def __init__(self, gateway):
        super().__init__(gateway)
        self.others = []

    def run(self):
        with self.gateway.connect() as conn:
            while not self.stopped.is_set():
                reply = conn.call("SET", "written", str(self.count))
                self.count += 1
                if reply != "OK":
                    self.others.append(reply)


def test_writes_go_to_the_promoted_server_and_none_fails(pair):
    with Writer(pair.gateway) as one, Writer(pair.gateway) as two:
        wait_until(lambda: min(one.count, two.count) > 100, "they write")
        done = pair.promote()
        assert done.returncode == 0, done.stderr
        assert "'r1' takes the writes now" in done.stdout
        told = one.count, two.count
        wait_until(lambda: one.count > told[0] + 100 and two.count > told[1] + 100, "they go on")
        before = pair.writes(pair.master)
        wait_until(lambda: one.count > told[0] + 200, "they go on")
        assert pair.writes(pair.master) == before
    assert one.others == two.others == []
    pair.check_writes_go_to(pair.replica, pair.master)
    status = pair.gateway.order("status").stdout
    assert "of 2 up, primary r1" in status
    assert "server 'r1' is the primary now, no more 'master'" in pair.gateway.log()


def test_the_old_master_acknowledges_nothing_after_the_change(pair):
    """What it has not answered in time fails, and nobody is told that it was written."""
    pair.master.call("CLIENT", "PAUSE", "20000", "WRITE")
    with pair.gateway.connect() as single, pair.gateway.connect() as several:
        def held_back():
            return len(re.findall(rb"flags=x?b .* cmd=(?:set|exec) ", pair.master.call("CLIENT", "LIST")))

        single.send(resp("SET", "single", "old"))
        several.send(resp("MULTI") + resp("SET", "several", "old") + resp("EXEC"))
        wait_until(lambda: held_back() == 2, "they wait there")
        done = pair.promote()
        assert done.returncode == 0, done.stderr
        # A server that sees only after UNPAUSE that they are gone executes what they asked, for nobody.
        wait_until(lambda: held_back() == 0, "they are gone there")
        pair.master.call("CLIENT", "UNPAUSE")
        assert str(single.reply()).startswith("ERR Server was replaced by another (server master,")
        assert single.call("SET", "single", "new") == "OK"
        assert [several.reply() for _ in range(3)][2] != ["OK"]
    pair.check_writes_go_to(pair.replica, pair.master)
    assert pair.replica.call("GET", "single") == b"new"
    assert pair.master.call("EXISTS", "single", "several") == 0


def test_writes_that_the_gateway_holds_back_meanwhile_lose_nothing(place):
    pair = Pair(place, command_policy="admin")
    with Writer(pair.gateway) as one, Writer(pair.gateway) as two, pair.gateway.connect() as conn:
        wait_until(lambda: min(one.count, two.count) > 100, "they write")
        assert conn.call("CLIENT", "PAUSE", "20000", "WRITE") == "OK"
        caught_up = lambda: pair.replica.call("GET", "written") == pair.master.call("GET", "written")
        wait_until(caught_up, "the replica has all")
        last = pair.writes(pair.master)
        assert pair.promote().returncode == 0
        assert pair.writes(pair.master) == last
        assert conn.call("CLIENT", "UNPAUSE") == "OK"
        told = one.count, two.count
        wait_until(lambda: one.count > told[0] + 100 and two.count > told[1] + 100, "they go on")
    assert one.others == two.others == []
    assert pair.writes(pair.master) == last


def test_it_stays_so_over_a_reload_a_worker_s_death_and_an_upgrade(pair):
    assert pair.promote().returncode == 0
    pair.gateway.reload()
    pair.check_writes_go_to(pair.replica, pair.master)
    workers = pair.gateway.workers()
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(set(pair.gateway.workers()) - set(workers)) == 2, "other workers")
    pair.check_writes_go_to(pair.replica, pair.master)
    done = pair.gateway.order("upgrade")
    assert done.returncode == 0, done.stderr
    pair.check_writes_go_to(pair.replica, pair.master)
    back = pair.gateway.order("failover", "alpha", "master")
    assert back.returncode == 0, back.stderr
    assert "of 2 up, primary master" in pair.gateway.order("status").stdout


def test_what_a_client_has_begun_at_the_old_master_does_not_end_there(pair):
    with pair.gateway.connect() as watcher, pair.gateway.connect() as waiter:
        assert watcher.call("WATCH", "watched") == "OK"
        assert watcher.call("MULTI") == "OK"
        assert watcher.call("SET", "watched", "1") == "QUEUED"
        waiter.send(resp("BLPOP", "list", "0"))
        assert pair.promote().returncode == 0
        before = pair.writes(pair.master)
        # What was watched may have changed meanwhile: nothing is executed.
        assert watcher.call("EXEC") is None
        assert pair.writes(pair.master) == before
        assert pair.gateway.call("RPUSH", "list", "value") == 1
        assert waiter.reply() == [b"list", b"value"]


@pytest.mark.parametrize("words, why", [
    (("nowhere", "r1"), "there is no pool 'nowhere'; there are: alpha"),
    (("alpha", "r7"), "pool 'alpha' has no server 'r7'; it has: r1, master"),
])
def test_what_cannot_be_is_said(pair, words, why):
    done = pair.gateway.order("failover", *words)
    assert done.returncode == 1
    assert why in done.stdout + done.stderr


def test_who_asks_again_gets_no_error(pair):
    done = pair.gateway.order("failover", "alpha", "master")
    assert done.returncode == 0 and "'master' takes the writes already" in done.stdout


def test_a_pool_without_replicas_has_nobody_to_promote(place):
    servers = server_lines([place.redis(), place.redis()], names=["a", "b"])
    gateway = place.cashew({"alpha": {"redis": True, "servers": servers}})
    done = gateway.order("failover", "alpha", "b")
    assert done.returncode == 1
    assert "each of its servers has keys of its own" in done.stderr


def test_a_failover_that_has_failed_does_not_happen_later(place):
    pair = Pair(place, settings={"worker_heartbeat_timeout": 0})
    wait_until(pair.gateway.workers, "the workers are there")
    hung = pair.gateway.workers()[0]
    os.kill(hung, signal.SIGSTOP)
    done = pair.gateway.order("failover", "--force", "alpha", "r1")
    assert done.returncode == 1
    assert "it stays the primary" in done.stderr, done.stderr
    tries = pair.gateway.log().count("did not hold in time")
    os.kill(hung, signal.SIGCONT)
    time.sleep(1.5)
    assert "of 2 up, primary master" in pair.gateway.order("status").stdout
    assert pair.gateway.log().count("did not hold in time") == tries
    # Whoever asks again gets it.
    assert pair.promote().returncode == 0
    pair.check_writes_go_to(pair.replica, pair.master)


def test_a_reload_is_compared_with_the_primary_in_force_and_warns_when_it_undoes_a_failover(pair):
    assert pair.promote().returncode == 0
    pair.master.call("REPLICAOF", "127.0.0.1", pair.replica.port)
    # The file without the server that takes the writes.
    pair.options["servers"] = server_lines([pair.master], names=["master"])
    pair.gateway.configure({"alpha": pair.options})
    dry = pair.gateway.order("reload", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    undone = f"pool 'alpha': the failover of 'master' to 'r1' (127.0.0.1:{pair.replica.port}) is undone"
    assert undone in dry.stdout
    assert "all keys go to another server" in dry.stdout
    assert undone not in pair.gateway.log()
    # As docs/how-to.md says: the names change places.
    pair.options["servers"] = server_lines([pair.replica, pair.master], names=["master", "r1"])
    pair.gateway.configure({"alpha": pair.options})
    for words in ["reload", "--dry-run"], ["reload"]:
        done = pair.gateway.order(*words)
        assert done.returncode == 0, done.stderr
        assert "writes: all keys" not in done.stdout and "undone" not in done.stdout
    # The other is a replica, and takes no writes.
    assert [pair.gateway.call("SET", key, "x") for key in KEYS] == ["OK"] * len(KEYS)
    # A reload that is no dry run has it in the log.
    pair.gateway.order("failover", "--force", "alpha", "r1")
    pair.options["servers"] = server_lines([pair.replica], names=["master"])
    pair.gateway.configure({"alpha": pair.options})
    assert pair.gateway.order("reload").returncode == 0
    assert "WARN" in next(line for line in pair.gateway.log().splitlines() if "is undone" in line)


def test_whatever_undoes_a_failover_is_said_loudly(place):
    # Servers of their own, so that one sees where a key is.
    a, b, c, alone = (place.redis() for _ in range(4))
    pool_of = lambda *servers: {"alpha": {"redis": True, "servers": servers}}
    before = group("s1", a, b, c)
    gateway = place.cashew(pool_of(before), {"worker_processes": 1})

    def has_writes():
        assert gateway.call("SET", "key", "v") == "OK"
        [server] = [server for server in (a, b, c) if server.call("EXISTS", "key")]
        server.call("DEL", "key")
        return server

    for after, why in [
        (group("s1", a, c), "the file has it no more"),
        (server_lines([a], names=["s1"])[0], "the file has it no more"),
        (group("s2", a, b, c), "the group has another name in the file"),
        (group("s1", c, a, b), "the file names another primary"),
    ]:
        gateway.configure(pool_of(before))
        gateway.reload()
        assert gateway.order("failover", "alpha", "s1", f"{HOST}:{b.port}").returncode == 0
        assert has_writes() is b
        gateway.configure(pool_of(after))
        undone = f"the failover of 's1' to 's1/{HOST}:{b.port}' ({HOST}:{b.port}) is undone, since {why}"
        logged = gateway.log().count(undone)
        for arguments in ["--dry-run"], []:
            assert gateway.log().count(undone) == logged
            told = gateway.reload(*arguments)
            assert undone in told and "writes go to" in told, told
            assert "all keys go to another server" in told and "no key" not in told, told
        wait_until(lambda: gateway.log().count(undone) == logged + 1, "it is in the log")
        assert all("WARN" in line for line in gateway.log().splitlines() if undone in line)
        assert has_writes() is (c if "another primary" in why else a)
    # What changes nothing in effect: the file names the server that takes the writes.
    gateway.configure(pool_of(before))
    gateway.reload()
    assert gateway.order("failover", "alpha", "s1", f"{HOST}:{b.port}").returncode == 0
    for after in (group("s1", b, a, c), *server_lines([b], names=["s1"])):
        gateway.configure(pool_of(after))
        told = gateway.reload()
        assert "undone" not in told and "all keys" not in told, told
        assert has_writes() is b
    # A pool by another name, beside one that is new.
    gateway.configure(pool_of(before))
    gateway.reload()
    assert gateway.order("failover", "alpha", "s1", f"{HOST}:{b.port}").returncode == 0
    gateway.configure({
        "aaa": {"redis": True, "servers": server_lines([alone])},
        "beta": {"redis": True, "servers": [before]},
    })
    for arguments in ["--dry-run"], []:
        told = gateway.reload(*arguments)
        assert "is undone, since the pool has another name in the file: writes go to" in told, told


def test_a_line_that_becomes_a_group_of_another_primary_moves_all_keys(place):
    a, b, c = place.redis(), place.redis(), place.redis()
    pool_of = lambda *servers: {"alpha": {"redis": True, "servers": servers}}
    gateway = place.cashew(pool_of(*server_lines([a], names=["s1"])), {"worker_processes": 1})
    assert gateway.call("SET", "key", "v") == "OK"
    for servers, share in [
        (group("s1", b, a), "all keys go to another server"),
        (group("s1", a, b, c), "no key goes to another server"),
    ]:
        gateway.configure(pool_of(servers))
        told = gateway.reload("--dry-run")
        assert f"pool 'alpha': {share}" in told, told
    gateway.configure(pool_of(group("s1", a, b)))
    gateway.reload()
    gateway.configure(pool_of(group("s1", b, a)))
    assert "all keys go to another server" in gateway.reload("--dry-run")
    assert "all keys go to another server" in gateway.reload()
    assert gateway.call("GET", "key") is None


def test_a_server_that_is_no_master_is_refused_unless_forced(pair):
    done = pair.gateway.order("failover", "alpha", "r1")
    assert done.returncode == 1
    assert "'r1' says that it is a replica: promote it first" in done.stderr
    assert "of 2 up, primary master" in pair.gateway.order("status").stdout
    pair.replica.stop()
    done = pair.gateway.order("failover", "alpha", "r1")
    assert done.returncode == 1
    assert "'r1' does not say that it is a master: Connection refused" in done.stderr
    done = pair.gateway.order("failover", "--force", "alpha", "r1")
    assert done.returncode == 0, done.stderr
    assert "of 2 up, primary r1" in pair.gateway.order("status").stdout


def test_the_role_is_asked_with_the_pool_s_password(place):
    auth = ["--requirepass", "secret", "--masterauth", "secret"]
    master, replica = place.redis(*auth), place.redis(*auth)
    replica.call("REPLICAOF", "127.0.0.1", master.port)
    servers = server_lines([master, replica], names=["master", "r1"])
    gateway = place.cashew({"alpha": {"redis": True, "redis_auth": "secret", "servers": servers}}, {"worker_processes": 1})
    refused = gateway.order("failover", "alpha", "r1")
    assert refused.returncode == 1 and "says that it is a replica" in refused.stderr
    replica.call("REPLICAOF", "NO", "ONE")
    done = gateway.order("failover", "alpha", "r1")
    assert done.returncode == 0, done.stderr


def hold_up(gateway):
    """A worker hangs, so that a failover waits for it."""
    wait_until(gateway.workers, "the workers are there")
    hung = gateway.workers()[0]
    os.kill(hung, signal.SIGSTOP)
    return hung


def begin(gateway, *words):
    """Asks for a failover, and returns when it is under way."""
    command = [gateway.binary, "failover", "-c", gateway.config_path, "--force", *words]
    asking = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    # It connects, and is held up.
    time.sleep(0.3)
    assert asking.poll() is None
    return asking


@pytest.mark.alone
def test_a_failover_whose_asker_has_left_does_not_happen_later(place):
    pair = Pair(place, settings={"worker_heartbeat_timeout": 0})
    hung = hold_up(pair.gateway)
    asking = begin(pair.gateway, "alpha", "r1")
    asking.send_signal(signal.SIGINT)
    asking.communicate(timeout=10)
    wait_until(lambda: "the failover to 'r1' is withdrawn" in pair.gateway.log(), "it is withdrawn")
    os.kill(hung, signal.SIGCONT)
    time.sleep(1.5)
    assert "of 2 up, primary master" in pair.gateway.order("status").stdout
    # Whoever asks again gets it.
    assert pair.promote().returncode == 0
    pair.check_writes_go_to(pair.replica, pair.master)


def test_a_later_failover_of_a_group_takes_the_place_of_one_under_way(place):
    primary = place.redis()
    replicas = replicas_of(place, primary, 2)
    other, its = place.redis(), place.redis()
    gateway = place.cashew(
        {"alpha": {"redis": True, "servers": [group("s1", primary, *replicas),
                                              group("s2", other, its)]}},
        {"worker_processes": 2, "worker_heartbeat_timeout": 0})
    hung = hold_up(gateway)
    names = [f"s1/{HOST}:{server.port}" for server in replicas]
    # The same server of another group is none of its business.
    beside = begin(gateway, "alpha", "s2", f"{HOST}:{its.port}")
    first = begin(gateway, "alpha", "s1", names[0])
    second = begin(gateway, "alpha", "s1", names[1])
    told, _ = first.communicate(timeout=3)
    assert first.returncode == 1
    assert f"pool 'alpha': replaced by a later failover to '{names[1]}'" in told
    os.kill(hung, signal.SIGCONT)
    for asking, server in [(second, names[1]), (beside, f"s2/{HOST}:{its.port}")]:
        told, _ = asking.communicate(timeout=10)
        assert (asking.returncode, f"'{server}' takes the writes now" in told) == (0, True), told
    assert f"'{names[0]}' is the primary" not in gateway.log()
