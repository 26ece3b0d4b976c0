"""Pools whose servers Sentinels name: real redis-servers and real Sentinels, three of them.

`down-after-milliseconds` is a second, so a failover takes between one and four of them.
"""

import json
import os
import re
import signal
import threading
import time

import pytest

from harness import (
    CASHEW, HOST, Conn, FakeServer, Process, ReplyError, commands, connect, free_port, in_time, measured,
    resp, wait_until, unnamed,
)

from test_upgrade import BUMPED, upgrade

MASTER = "mymaster"
#: What clients may be told while there is no primary.
ERRORS = {b"-ERR Connection refused", b"-ERR Connection timed out", b"-ERR Connection reset by peer",
          b"-ERR Server closed the connection", b"-ERR Server was replaced by another"}
#: Longer than a failover takes on a machine that is busy with other things.
FAILOVER_MAX = 40.0


class Sentinel:
    def __init__(self, directory, primary, password=None, own_password=None, port=None, more=()):
        self.port = port or free_port()
        self.password = own_password
        self.config = directory / f"sentinel-{self.port}.conf"
        lines = [f"port {self.port}", f"bind {HOST}", f"dir {directory}", "protected-mode no",
                 f"sentinel monitor {MASTER} {HOST} {primary} 2",
                 f"sentinel down-after-milliseconds {MASTER} 1000",
                 f"sentinel failover-timeout {MASTER} 6000"]
        if password:
            lines.append(f"sentinel auth-pass {MASTER} {password}")
        if own_password:
            lines += [f"requirepass {own_password}", f"sentinel sentinel-pass {own_password}"]
        self.config.write_text("\n".join([*lines, *more]) + "\n")
        # Debian has redis-sentinel in a package of its own.
        command = ["redis-server", self.config, "--sentinel"]
        self.process = Process(command, directory, f"sentinel-{self.port}", self._ready)

    def _ready(self):
        try:
            return self.call("PING") == "PONG"
        except (OSError, EOFError, ReplyError):
            return False

    def call(self, *words):
        with Conn(self.port) as conn:
            if self.password:
                conn.call("AUTH", self.password)
            return conn.call(*words)

    def fields(self):
        flat = [word.decode() for word in self.call("SENTINEL", "MASTER", MASTER)]
        return dict(zip(flat[::2], flat[1::2]))

    def primary(self):
        return int(self.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1])

    def stop(self):
        self.process.kill()

    def start(self):
        self.process.start()


class Group:
    """A primary, replicas, and Sentinels that know each other."""

    def __init__(self, place, replicas=2, sentinels=3, password=None, own_password=None):
        auth = ["--requirepass", password, "--masterauth", password] if password else []
        options = ["--repl-diskless-sync-delay", "0", *auth]
        self.servers = [place.redis(*options)]
        first = self.servers[0].port
        self.servers += [place.redis(*options, "--replicaof", f"{HOST} {first}")
                         for _ in range(replicas)]
        for replica in self.servers[1:]:
            wait_until(lambda: replica.call("ROLE")[3] == b"connected", "a replica follows")
        self.sentinels = [place._keep(Sentinel(place.directory, first, password, own_password))
                          for _ in range(sentinels)]
        wait_until(self._is_known, "the Sentinels know everybody", pause=0.1)

    def _is_known(self):
        everybody = (str(len(self.servers) - 1), str(len(self.sentinels) - 1))
        return all((it["num-slaves"], it["num-other-sentinels"]) == everybody
                   for it in (sentinel.fields() for sentinel in self.sentinels))

    def addresses(self):
        return addresses(self.sentinels)

    def server(self, port):
        return next(server for server in self.servers if server.port == port)


def addresses(sentinels):
    return "[" + ", ".join(f"{HOST}:{sentinel.port}" for sentinel in sentinels) + "]"


def role(server):
    try:
        return server.call("ROLE")[0]
    except (OSError, EOFError, ReplyError):
        return None


def pools(sentinels, **options):
    return {"alpha": {"redis": True, "sentinels": sentinels, **options,
                      "servers": [f"{{name: s1, sentinel: {MASTER}}}"]}}


def status(gateway):
    done = gateway.order("status", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def group_status(gateway):
    return status(gateway)["pools"][0]["groups"][0]


def wait_primary(gateway, port, seconds=FAILOVER_MAX):
    wait_until(lambda: group_status(gateway)["primary"] == f"{HOST}:{port}",
               f"the primary is {port}: {gateway.log()[-3000:]}", seconds, pause=0.1)


class Writer:
    """A client that writes key after key, one at a time, and notes what came of each."""

    def __init__(self, gateway, pause=0.0005, timeout=10.0):
        self.address = gateway.address
        self.pause = pause
        self.timeout = timeout
        #: When it was sent, when it was answered, and the error, if it is one.
        self.answers = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        client = None
        while not self.over.wait(self.pause):
            begin, error = time.monotonic(), None
            try:
                client = client or connect(self.address, self.timeout)
                client.sendall(resp("SET", f"key:{len(self.answers)}", "x"))
                reply = client.recv(4096)
                if reply != b"+OK\r\n":
                    error = reply or b"closed"
            except OSError as lost:
                error = str(lost).encode()
            if error is not None and not error.startswith(b"-"):
                client = client and client.close()
            self.answers.append((begin, time.monotonic(), error))
        if client:
            client.close()

    def stop(self):
        self.over.set()
        self.thread.join(20)
        assert not self.thread.is_alive()

    def errors(self, since=0.0):
        return [it for it in self.answers if it[2] is not None and it[1] >= since]

    def wait_good(self, since):
        """When the first write was answered well that was sent after that."""
        def good():
            return next((it[1] for it in list(self.answers) if it[2] is None and it[0] >= since), None)

        return wait_until(good, "a write succeeds", FAILOVER_MAX)

    def lost(self, server, since=0.0):
        """Keys that were acknowledged and that the server does not have, with when."""
        lost = []
        with server.connect() as conn:
            for number, (begin, end, error) in enumerate(self.answers):
                if error is None and begin >= since and not conn.call("EXISTS", f"key:{number}"):
                    lost.append(end)
        return lost


class Watcher:
    """When a server says first that it is a master."""

    def __init__(self, servers):
        self.servers = servers
        self.first = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        conns = {}
        while not self.over.wait(0.002):
            for server in self.servers:
                try:
                    conn = conns.get(server) or conns.setdefault(server, server.connect(5.0))
                    if conn.call("ROLE")[0] == b"master":
                        self.first = (time.monotonic(), server)
                        return
                except (OSError, EOFError, ReplyError):
                    # It has closed the connections of its clients, since it is promoted.
                    conns.pop(server, None)

    def wait(self):
        return wait_until(lambda: self.first, "a replica is promoted", FAILOVER_MAX)

    def stop(self):
        self.over.set()
        self.thread.join(20)


def ms(seconds):
    return f"{seconds * 1000:.0f} ms"


@measured
def run_failed_primary(place, settings, how):
    group = Group(place)
    gateway = place.cashew(pools(group.addresses(), timeout=2000), settings)
    gateway.wait_serving()
    old = group.servers[0]
    assert group_status(gateway)["primary"] == f"{HOST}:{old.port}"
    wait_until(lambda: group_status(gateway)["state"] == "stable", "the group is stable")
    writer = Writer(gateway)
    watcher = Watcher(group.servers[1:])
    time.sleep(1.5)
    assert writer.errors() == []
    killed = time.monotonic()
    old.process.signal(how)
    promoted, new = watcher.wait()
    again = writer.wait_good(max(killed + 0.01, promoted))
    wait_primary(gateway, new.port)
    time.sleep(1.0)
    writer.stop()
    late = writer.errors(again)
    why = group_status(gateway)["last_switch"]["why"]
    print(f"{how.name}; promoted after {ms(promoted - killed)}; writes again {ms(again - promoted)} after "
          f"that; errors: {len(writer.errors())} of {len(writer.answers)} writes in all; {why}")
    assert late == [], late[:3]
    assert {it[2].split(b" (server s1, ")[0] for it in writer.errors()} <= ERRORS, writer.errors()[:3]
    # Nothing that was acknowledged by the new primary is missing there.
    assert writer.lost(new, again - 0.0005) == []
    in_time(again - promoted, 0.5, "from the promotion to the first write")
    if how == signal.SIGSTOP:
        old.process.signal(signal.SIGCONT)
        count_writes_until_demoted(gateway, old, new)


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_primary_is_followed_when_the_replica_is_promoted(place, workers):
    run_failed_primary(place, {"worker_processes": workers}, signal.SIGKILL)


@pytest.mark.alone
def test_a_primary_that_hangs_is_followed_likewise_and_gets_no_writes_when_it_goes_on(place):
    run_failed_primary(place, {"worker_processes": 2}, signal.SIGSTOP)


def count_writes_until_demoted(gateway, old, new):
    """No write comes to a former primary while it says that it is one, by its own count."""
    def ask():
        with old.connect() as conn:
            for words in (["MULTI"], ["ROLE"], ["INFO", "commandstats"]):
                conn.call(*words)
            says, stats = conn.call("EXEC")
        found = re.search(rb"cmdstat_set:calls=(\d+)", stats)
        return says[0], int(found.group(1)) if found else 0

    writer = Writer(gateway)
    began = time.monotonic()
    wait_until(lambda: role(old) is not None, "it is back")
    says, before = ask()
    polls = 0
    while says == b"master":
        polls += 1
        assert group_status(gateway)["primary"] == f"{HOST}:{new.port}"
        assert time.monotonic() - began < FAILOVER_MAX
        time.sleep(0.1)
        says, writes = ask()
        # Those that a replica gets from its primary count, too.
        assert says != b"master" or writes == before
    writer.stop()
    print(f"it said that it was a master for {ms(time.monotonic() - began)}, {polls} times asked; "
          f"{len(writer.answers)} writes meanwhile, {len(writer.errors())} errors")
    assert polls > 3 and len(writer.answers) > 100
    assert writer.errors() == []


def test_a_primary_that_returns_gets_no_writes(place):
    group = Group(place)
    gateway = place.cashew(pools(group.addresses(), timeout=2000), {"worker_processes": 2})
    gateway.wait_serving()
    old = group.servers[0]
    old.stop()
    wait_until(lambda: group.sentinels[0].primary() != old.port, "a failover", FAILOVER_MAX)
    new = group.server(group.sentinels[0].primary())
    wait_primary(gateway, new.port)
    # Restarted as it was, but empty.
    old.start()
    count_writes_until_demoted(gateway, old, new)


@pytest.mark.alone
def test_a_manual_failover_is_followed_without_an_error(place):
    run_manual_failover(place)


@measured
def run_manual_failover(place):
    group = Group(place)
    gateway = place.cashew(pools(group.addresses(), timeout=5000), {"worker_processes": 2})
    gateway.wait_serving()
    wait_until(lambda: group_status(gateway)["state"] == "stable", "the group is stable")
    writer = Writer(gateway)
    watcher = Watcher(group.servers[1:])
    time.sleep(1.5)
    asked = time.monotonic()
    group.sentinels[0].call("SENTINEL", "FAILOVER", MASTER)
    promoted, new = watcher.wait()
    wait_primary(gateway, new.port)
    time.sleep(1.0)
    writer.stop()
    lost = writer.lost(new)
    last = max(lost, default=promoted)
    slowest = max(end - begin for begin, end, _ in writer.answers)
    print(f"promoted {ms(promoted - asked)} after SENTINEL FAILOVER; {len(writer.answers)} writes, "
          f"{len(writer.errors())} errors, {len(lost)} lost that were acknowledged, the last one "
          f"{ms(last - promoted)} after the promotion; slowest {ms(slowest)}; "
          f"{group_status(gateway)['last_switch']['why']}")
    assert writer.errors() == []
    in_time(last - promoted, 0.5, "from the promotion to the last write that was lost")
    assert group_status(gateway)["last_switch"]["switches"] == 1


def stale_sentinel(port, epoch):
    """A Sentinel that names that primary whatever happens."""
    def bulk(*words):
        return b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in map(str.encode, words))

    def serve(client, _number):
        for words in commands(client):
            name = b" ".join(words[:2]).upper()
            if name == b"SENTINEL GET-MASTER-ADDR-BY-NAME":
                client.sendall(b"*2\r\n" + bulk(HOST, str(port)))
            elif name == b"SENTINEL MASTER":
                client.sendall(b"*4\r\n" + bulk("name", MASTER, "config-epoch", str(epoch)))
            elif words[0].upper() == b"SUBSCRIBE":
                for at, channel in enumerate(words[1:], 1):
                    client.sendall(b"*3\r\n" + bulk("subscribe", channel.decode()) + b":%d\r\n" % at)
                # It tells of promotions that it has dreamt of.
                client.sendall(b"*3\r\n" + bulk("message", "+promoted-slave",
                               f"slave x {HOST} {port} @ {MASTER} {HOST} 1"))
            elif words[0].upper() == b"PING":
                client.sendall(b"*2\r\n" + bulk("pong", ""))
            else:
                client.sendall(b"*0\r\n")

    return FakeServer(serve)


@pytest.mark.parametrize("epoch", [0, 99], ids=["stale", "lying"])
def test_one_sentinel_with_a_stale_address_and_a_dead_one_change_nothing(place, epoch):
    group = Group(place)
    # A master as well, by its own word. It has begun with the file of a replica, and claims its history.
    stray = place.redis()
    stale = place.keep(stale_sentinel(stray.port, epoch))
    others = addresses(group.sentinels[:1])[1:-1]
    # It needs two to begin with.
    second = group.sentinels[1]
    names = f"[{HOST}:{stale.port}, {others}, {HOST}:{second.port}]"
    gateway = place.cashew(pools(names, timeout=2000), {"worker_processes": 2})
    gateway.wait_serving()
    epoch_before = gateway.epoch()
    assert group_status(gateway)["primary"] == f"{HOST}:{group.servers[0].port}"
    second.stop()
    writer = Writer(gateway)
    time.sleep(5)
    writer.stop()
    assert writer.errors() == [] and len(writer.answers) > 100
    assert group_status(gateway)["primary"] == f"{HOST}:{group.servers[0].port}"
    assert gateway.epoch() == epoch_before
    assert stale.errors == []
    assert stray.stat("set") == 0
    print(f"{len(writer.answers)} writes, no error")


def test_a_lying_sentinel_does_not_keep_a_failover_from_being_followed(place):
    group = Group(place)
    stray = place.redis()
    lying = place.keep(stale_sentinel(stray.port, 99))
    names = f"[{HOST}:{lying.port}, {addresses(group.sentinels[:2])[1:]}"
    gateway = place.cashew(pools(names, timeout=2000), {"worker_processes": 2})
    gateway.wait_serving()
    group.servers[0].stop()
    wait_until(lambda: group.sentinels[0].primary() != group.servers[0].port, "a failover",
               FAILOVER_MAX)
    wait_primary(gateway, group.sentinels[0].primary())
    assert gateway.call("SET", "a", "b") == "OK"
    assert stray.stat("set") == 0


def test_traffic_goes_on_without_sentinels(place):
    group = Group(place)
    gateway = place.cashew(pools(group.addresses(), timeout=2000), {"worker_processes": 2})
    gateway.wait_serving()
    writer = Writer(gateway)
    for sentinel in group.sentinels:
        sentinel.stop()
    time.sleep(6)
    # Not even a reload, or another discovery, needs them.
    gateway.configure(pools(group.addresses(), timeout=3000))
    gateway.reload()
    discovery = status(gateway)["discovery"]["pid"]
    os.kill(discovery, signal.SIGKILL)
    wait_until(lambda: (status(gateway)["discovery"]["restarts"], status(gateway)["discovery"]["state"])
               == (1, "serving"), "another discovery")
    time.sleep(2)
    writer.stop()
    print(f"{len(writer.answers)} writes, errors: {len(writer.errors())}")
    assert writer.errors() == [] and len(writer.answers) > 100
    now = status(gateway)["pools"][0]
    assert [it["is_answering"] for it in now["sentinels"]] == [False] * 3
    assert now["groups"][0]["primary"] == f"{HOST}:{group.servers[0].port}"
    assert "no majority" in gateway.log()
    text = gateway.order("status").stdout
    assert "refuses connections" in text and f"{HOST}:{group.servers[0].port}" in text, text


def test_a_start_without_sentinels_serves_as_soon_as_they_say_where_the_primary_is(place):
    group = Group(place)
    for sentinel in group.sentinels:
        sentinel.stop()
    gateway = place.cashew(pools(group.addresses(), timeout=2000), {"worker_processes": 2})
    gateway.wait_serving()
    assert "no majority of the Sentinels says where the primary of 's1' (mymaster) is" in gateway.log()
    now = group_status(gateway)
    assert (now["primary"], now["state"]) == (None, "unknown")
    with gateway.connect() as conn:
        assert unnamed(conn.error("SET", "a", "b")) == "ERR Connection refused"
    # One alone is not enough.
    group.sentinels[0].start()
    wait_until(lambda: status(gateway)["pools"][0]["sentinels"][0]["is_answering"], "it answers")
    time.sleep(1.5)
    assert group_status(gateway)["primary"] is None
    group.sentinels[1].start()
    wait_primary(gateway, group.servers[0].port)
    assert gateway.call("SET", "a", "b") == "OK"


def test_a_start_without_sentinels_goes_by_what_was_known_last(place):
    group = Group(place, replicas=1)
    settings = {"worker_processes": 2, "sentinel_state": place.directory / "primaries.json"}
    gateway = place.cashew(pools(group.addresses(), timeout=2000), settings)
    gateway.wait_serving()
    new = fail_over(group)
    wait_primary(gateway, new.port)
    for sentinel in group.sentinels:
        sentinel.stop()
    gateway.stop()
    gateway.process.start()
    wait_until(lambda: gateway.log().count(" serving ") == 2, "it serves again")
    assert gateway.call("SET", "a", "b") == "OK" and new.call("EXISTS", "a") == 1
    assert f"is taken to be {HOST}:{new.port}, as {settings['sentinel_state']} says" in gateway.log()
    # And follows what comes then.
    for sentinel in group.sentinels:
        sentinel.start()
    wait_primary(gateway, fail_over(group).port)
    assert gateway.call("SET", "a", "b") == "OK"


def metrics(gateway):
    with connect(gateway.stats_port, 20) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b""
        while piece := client.recv(1 << 16):
            text += piece
    return text.decode()


def fail_over(group):
    """By an operator's command; returns the new primary."""
    old = group.sentinels[0].primary()
    def asked():
        try:
            return group.sentinels[0].call("SENTINEL", "FAILOVER", MASTER) == "OK"
        except ReplyError as error:
            # It has only just started, or the last one is not over.
            assert "NOGOODSLAVE" in str(error) or "INPROG" in str(error), error
            return False

    wait_until(asked, "it begins", FAILOVER_MAX, pause=0.2)
    wait_until(lambda: group.sentinels[0].primary() != old, "a failover", FAILOVER_MAX)
    return group.server(group.sentinels[0].primary())


@pytest.mark.parametrize("binary", [
    CASHEW, pytest.param(BUMPED, marks=pytest.mark.skipif(
        not os.path.exists(BUMPED), reason="needs scripts/bumped"))], ids=["same", "other"])
def test_reload_and_upgrade_keep_what_sentinels_have_said(place, binary):
    group = Group(place)
    gateway = place.cashew(pools(group.addresses(), timeout=2000),
                           {"worker_processes": 2, "worker_shutdown_timeout": 1})
    gateway.wait_serving()
    new = fail_over(group)
    wait_primary(gateway, new.port)
    for sentinel in group.sentinels:
        sentinel.stop()
    gateway.configure(pools(group.addresses(), timeout=2500))
    told = gateway.reload()
    assert "timeout" in told and "at " not in told, told
    assert gateway.reload().startswith("nothing changes")
    writer = Writer(gateway)
    upgrade(gateway, 0, "--binary", binary)
    wait_until(lambda: status(gateway)["discovery"]["state"] == "serving", "discovery serves")
    writer.stop()
    assert writer.errors() == [] and group_status(gateway)["primary"] == f"{HOST}:{new.port}"
    gateway.reload()
    assert new.stat("set") >= len(writer.answers)
    # It is watched as before.
    for sentinel in group.sentinels:
        sentinel.start()
    newer = fail_over(group)
    wait_primary(gateway, newer.port)
    assert gateway.call("SET", "a", "b") == "OK"
    # Whoever wants to know is told.
    wait_until(lambda: group_status(gateway)["state"] == "stable", "it is stable")
    up = 'cashew_sentinel_up{pool="alpha",sentinel="%s:%d"} 1' % (HOST, group.sentinels[2].port)
    stable = 'cashew_group_stable{pool="alpha",server="s1"} 1'
    wait_until(lambda: all(line in metrics(gateway) for line in (up, stable)), "its word counts again")
    text = metrics(gateway)
    assert 'cashew_group_primary_info{pool="alpha",server="s1",address="%s:%d"} 1' % (HOST, newer.port) in text
    assert 'cashew_group_switches_total{pool="alpha",server="s1"} 2' in text
    ups = lambda: [it["up"] for it in gateway.stats()["cashew"]["sentinels"]]
    wait_until(lambda: ups() == [1, 1, 1], "all their words count")
    told = gateway.stats()["cashew"]
    assert told["groups"][0]["primary"] == f"{HOST}:{newer.port}"
    assert told["groups"][0]["config_epoch"] == group_status(gateway)["config_epoch"] > 0


def promote_unheard(group, gateway, stays=True):
    """A failover that only the Sentinel that has begun it knows of: the others go on naming the former
    primary, which takes writes. Returns the new one, which the gateway has gone to, and the old one. Unless it
    `stays`, the others make it a replica again."""
    leader, old = group.sentinels[0], group.server(group.sentinels[0].primary())
    moves = gateway.log().count("the primary of 's1' is")

    def asked():
        try:
            return leader.call("SENTINEL", "FAILOVER", MASTER) == "OK"
        except ReplyError as error:
            assert "NOGOODSLAVE" in str(error) or "INPROG" in str(error), error
            return False

    wait_until(asked, "it begins", FAILOVER_MAX, pause=0.2)
    wait_until(lambda: gateway.log().count("the primary of 's1' is") > moves, "the switch", FAILOVER_MAX)
    leader.process.signal(signal.SIGSTOP)
    new = group.server(int(group_status(gateway)["primary"].rsplit(":", 1)[1]))
    assert new is not old
    if stays:
        # Else the others would make it a replica again, after eight seconds.
        new.call("ACL", "SETUSER", "default", "-replicaof", "-slaveof")
    assert [it.primary() for it in group.sentinels[1:]] == [old.port] * 2
    return new, old


class Succession:
    """A gateway that follows a promotion of which most of the Sentinels have not heard, after another
    failover."""

    def __init__(self, place, **settings):
        self.group = Group(place)
        self.gateway = place.cashew(pools(self.group.addresses(), timeout=2000), {
            "worker_processes": 2, "worker_shutdown_timeout": 1, **settings})
        self.gateway.wait_serving()
        first = fail_over(self.group)
        wait_primary(self.gateway, first.port)
        # By the Sentinels' word, too.
        wait_until(lambda: (group_status(self.gateway)["config_epoch"] or 0) > 0, "it is confirmed")
        self.new, self.old = promote_unheard(self.group, self.gateway)

    def check(self):
        """Nothing goes to the superseded primary, though Sentinels name it, once discovery has heard
        them."""
        wait_until(lambda: (status(self.gateway)["discovery"] or {}).get("state") == "serving", "discovery")
        answering = lambda: all(it["is_answering"] for pool in status(self.gateway)["pools"]
                                for it in pool["sentinels"]
                                if it["address"] != f"{HOST}:{self.group.sentinels[0].port}")
        wait_until(answering, "they are heard")
        end = time.monotonic() + 0.7
        before = self.old.stat("set")
        while time.monotonic() < end:
            for pool in self.gateway.addresses:
                with self.gateway.connect(pool) as conn:
                    assert conn.call("SET", "a", "b") == "OK"
            time.sleep(0.01)
        assert self.old.stat("set") == before
        for pool in status(self.gateway)["pools"]:
            assert pool["groups"][0]["primary"] == f"{HOST}:{self.new.port}"


def test_a_promotion_that_sentinels_have_not_confirmed_outlives_discovery_and_reloads(place):
    it = Succession(place)
    it.check()
    os.kill(status(it.gateway)["discovery"]["pid"], signal.SIGKILL)
    wait_until(lambda: (status(it.gateway)["discovery"] or {}).get("restarts") == 1, "another discovery")
    it.check()
    # Other Sentinels, another name of the group, and another pool that has it.
    fewer = pools(addresses(it.group.sentinels[1:]), timeout=2000)
    it.gateway.configure(fewer)
    it.gateway.reload()
    it.check()
    fewer["alpha"]["servers"] = [f"{{name: s9, sentinel: {MASTER}}}"]
    it.gateway.configure({**fewer, "beta": pools(addresses(it.group.sentinels[1:]))["alpha"]})
    it.gateway.reload()
    it.check()


def test_a_promotion_that_sentinels_have_not_confirmed_outlives_an_upgrade_and_a_restart(place):
    file = place.directory / "primaries.json"
    it = Succession(place, sentinel_state=file)
    upgrade(it.gateway, 0, "--binary", CASHEW)
    wait_until(lambda: (status(it.gateway)["discovery"] or {}).get("state") == "serving", "discovery serves")
    it.check()
    it.gateway.stop()
    it.gateway.process.start()
    wait_until(lambda: it.gateway.log().count(" serving ") >= 2, "it serves again")
    it.check()
    # What a majority has said since by a higher number counts.
    it.gateway.stop()
    told = json.loads(file.read_text())
    assert told["groups"][0]["lineage"]["superseded"] == [{"host": HOST, "port": it.old.port}]
    told["groups"][0]["config_epoch"] -= 1
    file.write_text(json.dumps(told))
    it.gateway.process.start()
    wait_primary(it.gateway, it.old.port)


def test_a_failover_that_comes_to_nothing_is_followed_back(place):
    group = Group(place)
    gateway = place.cashew(pools(group.addresses(), timeout=2000), {"worker_processes": 2})
    gateway.wait_serving()
    assert gateway.call("SET", "before", "1") == "OK"
    new, old = promote_unheard(group, gateway, stays=False)
    assert gateway.call("SET", "meanwhile", "2") == "OK"
    assert (new.call("GET", "meanwhile"), old.call("GET", "meanwhile")) == (b"2", None)
    said = f"the Sentinels have not confirmed {HOST}:{new.port}; it stays the primary"
    wait_until(lambda: said in gateway.log(), "it is unconfirmed")
    # It would take them half a minute: so often they ask servers, and so long they wait.
    for sentinel in group.sentinels[1:]:
        assert sentinel.call("SENTINEL", "DEBUG", "INFO-PERIOD", "100", "PUBLISH-PERIOD", "250") == "OK"
    wait_until(lambda: role(new) == b"slave", "the Sentinels have called it off", FAILOVER_MAX)
    wait_primary(gateway, old.port)
    assert "Sentinels go on naming" in group_status(gateway)["last_switch"]["why"]
    # No gateway or client could keep what the promoted one has acknowledged: it copies from the other one now.
    assert gateway.call("GET", "before") == b"1" and gateway.call("GET", "meanwhile") is None
    assert gateway.call("SET", "after", "3") == "OK" and old.call("GET", "after") == b"3"


def test_a_line_becomes_a_group_of_its_name_and_no_key_moves(place):
    group = Group(place, replicas=1)
    other = place.redis()
    lines = [f"{HOST}:{group.servers[0].port}:2 s1", f"{HOST}:{other.port}:1 s2"]
    gateway = place.cashew({"alpha": {"redis": True, "servers": lines}}, {"worker_processes": 2})
    gateway.wait_serving()
    digest = status(gateway)["pools"][0]["digest"]
    assert status(gateway)["discovery"] is None
    for number in range(300):
        gateway.call("SET", f"k{number}", number)
    grouped = pools(group.addresses())
    grouped["alpha"]["servers"] = [f"{{name: s1, sentinel: {MASTER}, weight: 2}}", lines[1]]
    gateway.configure(grouped)
    told = gateway.reload()
    assert "is the primary of Sentinel's group mymaster" in told and "another server" not in told, told
    assert status(gateway)["pools"][0]["digest"] == digest
    assert [gateway.call("GET", f"k{number}") for number in range(300)] == [
        str(number).encode() for number in range(300)]
    new = fail_over(group)
    wait_primary(gateway, new.port)
    assert status(gateway)["pools"][0]["digest"] == digest
    assert [gateway.call("GET", f"k{number}") for number in range(300)] == [
        str(number).encode() for number in range(300)]
    # And back, which ends what watches.
    gateway.configure({"alpha": {"redis": True,
                                 "servers": [f"{HOST}:{new.port}:2 s1", lines[1]]}})
    gateway.reload()
    wait_until(lambda: status(gateway)["discovery"] is None, "discovery ends")


def test_passwords_of_sentinels_and_servers(place):
    group = Group(place, replicas=1, password="secret", own_password="hidden")
    file = place.directory / "sentinel-password"
    file.write_text("hidden\n")
    file.chmod(0o600)
    options = {"redis_auth": "secret", "sentinel_auth": f"{{file: {file}}}", "timeout": 2000}
    gateway = place.cashew(pools(group.addresses(), **options), {"worker_processes": 1})
    gateway.wait_serving()

    def write():
        with gateway.connect() as conn:
            assert conn.call("AUTH", "secret") == "OK"
            return conn.call("SET", "a", "b") == "OK"

    assert write()
    new = fail_over(group)
    wait_primary(gateway, new.port)
    assert write()
    # By the promotion, so the servers have let it in.
    assert "a Sentinel promotes" in group_status(gateway)["last_switch"]["why"]
    gateway.configure(pools(group.addresses(), **{**options, "sentinel_auth": "wrong"}))
    gateway.reload()
    wait_until(lambda: "refuses: WRONGPASS" in gateway.log(), "it is told")
    assert "hidden" not in gateway.log() and write()
    gateway.configure(pools(group.addresses(), redis_auth="secret", timeout=2000))
    gateway.reload()
    wait_until(lambda: "refuses: NOAUTH" in gateway.log(), "it is told")
    assert write()


def test_sentinels_that_are_stopped_do_not_answer_though_their_kernel_accepts(place):
    group = Group(place, replicas=0)
    gateway = place.cashew(pools(group.addresses()), {"worker_processes": 1})
    gateway.wait_serving()

    def answering():
        return [sentinel["is_answering"] for sentinel in status(gateway)["pools"][0]["sentinels"]]

    wait_until(lambda: answering() == [True] * 3, "all answer")
    for sentinel in group.sentinels:
        sentinel.process.signal(signal.SIGSTOP)
    wait_until(lambda: answering() == [False] * 3, "none answers")
    # Longer than a few connections, of which each is accepted and given up after a second.
    end = time.monotonic() + 5
    while time.monotonic() < end:
        assert answering() == [False] * 3
        time.sleep(0.05)
    log = gateway.log()
    assert log.count("no majority, so primaries stay") == 1
    assert "Sentinels answer again" not in log
    for sentinel in group.sentinels:
        assert log.count(f"the Sentinel {HOST}:{sentinel.port} does not answer") == 1
        sentinel.process.signal(signal.SIGCONT)
    wait_until(lambda: answering() == [True] * 3, "all answer again", pause=0.1)
    assert gateway.log().count("Sentinels answer again") == 1
    assert gateway.call("SET", "a", "b") == "OK"


def test_a_sentinel_that_does_not_know_the_group_says_so(place):
    group = Group(place, replicas=0)
    stranger = place._keep(Sentinel(place.directory, group.servers[0].port))
    stranger.call("SENTINEL", "REMOVE", MASTER)
    names = f"{addresses(group.sentinels)[:-1]}, {HOST}:{stranger.port}]"
    gateway = place.cashew(pools(names), {"worker_processes": 1})
    gateway.wait_serving()
    told = f"the Sentinel {HOST}:{stranger.port} does not know {MASTER}"
    wait_until(lambda: told in gateway.log(), "it is told")
    time.sleep(1.5)
    assert gateway.log().count(told) == 1
    assert gateway.call("SET", "a", "b") == "OK"
