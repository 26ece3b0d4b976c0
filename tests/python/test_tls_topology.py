"""What the gateway finds out of servers itself, where they speak TLS: from Sentinels, of replicas, before a
failover, and when they are to forget keys."""

import os
import signal
import time

import pytest

from certificates import Authority
from harness import HOST, ReplyError, free_port, wait_until

from test_sentinel import Sentinel, addresses, pools, role, status, wait_primary

SETTINGS = {"worker_processes": 1}


@pytest.fixture(scope="module")
def authority(module_place):
    return Authority(module_place.directory)


@pytest.fixture(scope="module")
def pair(authority):
    return authority.sign(f"DNS:localhost,IP:{HOST}")


class Secured:
    """Redis servers whose replication speaks TLS. Tests reach them without."""

    def __init__(self, place, pair, authority, replicas=1):
        self.place = place
        self.files = {"tls-cert-file": pair.certificate, "tls-key-file": pair.key,
                      "tls-ca-cert-file": authority.ca, "tls-auth-clients": "no", "tls-replication": "yes"}
        self.ports = [free_port()]
        self.servers = [self.server(self.ports[0])]
        for _ in range(replicas):
            self.ports.append(free_port())
            self.servers.append(self.server(self.ports[-1], "--replicaof", f"{HOST} {self.ports[0]}"))
        for replica in self.servers[1:]:
            wait_until(lambda: replica.call("ROLE")[3] == b"connected", "a replica follows")

    def server(self, port, *options):
        words = [word for name, value in self.files.items() for word in (f"--{name}", value)]
        return self.place.redis("--repl-diskless-sync-delay", "0", "--tls-port", port, *words, *options)

    def sentinel(self):
        """A Sentinel that is reached with TLS at `tls_port`."""
        tls_port = free_port()
        lines = [f"tls-port {tls_port}", *(f"{name} {value}" for name, value in self.files.items())]
        made = self.place._keep(Sentinel(self.place.directory, self.ports[0], more=lines))
        made.tls_port = tls_port
        return made


def test_sentinels_and_their_groups(place, pair, authority):
    secured = Secured(place, pair, authority)
    sentinels = [secured.sentinel() for _ in range(3)]
    wait_until(lambda: all((it.fields()["num-slaves"], it.fields()["num-other-sentinels"]) == ("1", "2")
                           for it in sentinels), "the Sentinels know everybody", pause=0.1)
    listed = "[" + ", ".join(f"{HOST}:{it.tls_port}" for it in sentinels) + "]"
    trust = f"{{ca: {authority.ca}}}"
    options = {"server_tls": trust, "sentinel_tls": trust, "reads": "prefer_replica"}
    gateway = place.cashew(pools(listed, **options), SETTINGS)
    assert gateway.call("SET", "a", "1") == "OK"
    wait_primary(gateway, secured.ports[0])
    wait_answers(gateway)
    # Replicas are asked how far they have come: only then are they read.
    replica = secured.servers[1]
    wait_until(lambda: replica.call("GET", "a") == b"1", "the replica has it")
    before = gets(replica)
    wait_until(lambda: gateway.call("GET", "a") == b"1" and gets(replica) > before + 1, "the replica is read")
    # A failover is followed, as servers are watched too.
    assert sentinels[0].call("SENTINEL", "FAILOVER", "mymaster") == "OK"
    wait_primary(gateway, secured.ports[1])
    wait_until(lambda: role(secured.servers[1]) == b"master", "it is promoted")
    assert gateway.call("SET", "b", "2") == "OK" and secured.servers[1].call("GET", "b") == b"2"
    # Discovery that starts anew knows whom to trust.
    os.kill(status(gateway)["discovery"]["pid"], signal.SIGKILL)
    wait_until(lambda: status(gateway)["discovery"]["restarts"] == 1, "another discovery")
    wait_answers(gateway)

    def begins():
        try:
            return sentinels[0].call("SENTINEL", "FAILOVER", "mymaster") == "OK"
        except ReplyError as error:
            assert "INPROG" in str(error) or "NOGOODSLAVE" in str(error), error
            return False
    wait_until(begins, "the failover before is over", pause=0.5)
    wait_primary(gateway, secured.ports[0])
    assert "sentinel_tls verify" in str(change(gateway, sentinel_tls="{verify: false}"))
    wait_answers(gateway)


def wait_answers(gateway):
    wait_until(lambda: all(it["is_answering"] for it in status(gateway)["pools"][0]["sentinels"]), "Sentinels answer")


def gets(server):
    stats = server.call("INFO", "commandstats").decode()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in stats.splitlines()
               if line.startswith("cmdstat_get:"))


def change(gateway, **options):
    gateway.configure({"alpha": {**gateway.pools["alpha"], **options}})
    return gateway.reload()


def test_sentinels_that_are_not_to_be_trusted(place, pair, authority):
    secured = Secured(place, pair, authority, replicas=0)
    sentinel = secured.sentinel()
    directory = place.directory / "stranger"
    directory.mkdir()
    stranger = Authority(directory)
    trust = f"{{ca: {authority.ca}}}"
    listed = f"[{HOST}:{sentinel.tls_port}]"
    options = {"server_tls": trust, "sentinel_tls": f"{{ca: {stranger.ca}}}"}
    gateway = place.cashew(pools(listed, **options), SETTINGS)
    wait_until(lambda: "is not signed by a trusted authority" in gateway.log(), f"the log says why: {gateway.log()}")
    # Without TLS nothing is said to a Sentinel that speaks it, and with TLS nothing to one that does not.
    gateway.configure({"alpha": {**gateway.pools["alpha"], "sentinel_tls": trust}})
    gateway.reload()
    wait_primary(gateway, secured.ports[0])
    assert gateway.call("SET", "a", "1") == "OK"
    change(gateway, sentinels=addresses([sentinel]))
    # Redis waits for the end of what it takes to be a line.
    wait_until(lambda: "does not speak TLS" in gateway.log() or "does not answer" in gateway.log(), "the log says why")
    assert gateway.call("SET", "a", "2") == "OK"


def test_a_failover_that_asks_first(place, pair, authority):
    secured = Secured(place, pair, authority)
    primary, replica = (f"{HOST}:{port}" for port in secured.ports)
    gateway = place.cashew({"alpha": {
        "redis": True, "server_tls": f"{{ca: {authority.ca}}}",
        "servers": [f"{{name: m, primary: '{primary}', replicas: ['{replica}']}}"],
    }}, SETTINGS)
    assert gateway.call("SET", "a", "1") == "OK"
    done = gateway.order("failover", "alpha", replica)
    assert done.returncode != 0 and "says that it is a replica" in done.stderr
    secured.servers[1].call("REPLICAOF", "NO", "ONE")
    done = gateway.order("failover", "alpha", replica)
    assert done.returncode == 0, done.stderr
    assert gateway.call("SET", "b", "2") == "OK" and secured.servers[1].call("GET", "b") == b"2"


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_servers_are_told_what_to_forget(place, pair, authority, kind):
    port = free_port()
    if kind == "redis":
        server = place.redis("--tls-port", port, "--tls-cert-file", pair.certificate, "--tls-key-file", pair.key,
                             "--tls-ca-cert-file", authority.ca, "--tls-auth-clients", "no")
    else:
        server = place.memcached("-Z", "-o", f"ssl_chain_cert={pair.certificate}", "-o", f"ssl_key={pair.key}",
                                 port=port)
    spool = f"{{directory: {place.directory / 'spool'}, max: 64mb}}"
    gateway = place.cashew({"alpha": {
        "redis": kind == "redis", "timeout": 300, "servers": [f"localhost:{port}:1 s"],
        "server_tls": f"{{ca: {authority.ca}}}", "spool": spool,
    }}, SETTINGS)
    store, delete, get = {
        "redis": (b"SET a v@1\r\n", b"DEL a\r\n", b"GET a\r\n"),
        "memcached": (b"set a 0 0 3\r\nv@1\r\n", b"delete a\r\n", b"get a\r\n"),
    }[kind]
    with gateway.connect(timeout=10) as conn:
        def is_stored():
            conn.send(store)
            return conn.read_line() in (b"+OK", b"STORED")
        wait_until(is_stored, "it is stored")
        os.kill(server.process.pid, signal.SIGSTOP)
        # Its threads stop one after the other.
        time.sleep(0.3)
        try:
            conn.send(delete)
            assert conn.read_line() in (b":0", b"NOT_FOUND")
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        gone = (b"$-1", b"END")

        def is_gone():
            conn.send(get)
            line = conn.read_line()
            assert b"v@1" not in line and not line.startswith(b"VALUE"), line
            return line in gone
        wait_until(is_gone, f"the server has forgotten it: {gateway.log()[-2000:]}")
