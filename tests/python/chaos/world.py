"""The gateway, all that stands behind it, and the clients in front: real processes, in a network of their own."""

import concurrent.futures
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from chaos import register
from cluster import Cluster
from harness import HOST, Conn, ReplyError, children, free_port, server_lines, wait_until
from test_sentinel import MASTER, Sentinel

PR_SET_CHILD_SUBREAPER = 36
TIMEOUT = 1000
#: Seconds for servers to find together again, on a busy machine.
HEALING = 90.0
KEYS = 10
WORKERS = 2
MOST_WORKERS = 3
#: Clients of each pool in each process of clients.
EACH = 2
#: Bytes of the file system that has the log.
LOG_BYTES = "64m"
#: Redis writes its log of commands before it answers: who is killed and comes back has lost nothing.
KEEPS = ["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"]


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=20)


def kept(port):
    return [*KEEPS, "--appenddirname", f"aof-{port}"]


class Network:
    """Links to servers that can be cut. Without a network of its own there are none."""

    def __init__(self, is_own):
        self.is_own = is_own and run("nft", "list", "ruleset").returncode == 0
        if self.is_own:
            rules = """
                table inet chaos
                delete table inet chaos
                table inet chaos {
                  set silent { type inet_service; }
                  set refused { type inet_service; }
                  chain input { type filter hook input priority 0;
                    tcp dport @silent drop; tcp sport @silent drop;
                    tcp dport @refused reject with tcp reset; tcp sport @refused reject with tcp reset; }; }"""
            subprocess.run(["nft", "-f", "-"], input=rules + "\n", text=True, check=True, timeout=20)

    @contextlib.contextmanager
    def cut(self, ports, kind="silent"):
        """Nothing comes from or goes to these ports; with `refused`, whoever tries is told so."""
        words = "{ " + ", ".join(map(str, ports)) + " }"
        assert run("nft", "add", "element", "inet", "chaos", kind, words).returncode == 0
        try:
            yield
        finally:
            assert run("nft", "delete", "element", "inet", "chaos", kind, words).returncode == 0


class Disk:
    """A small file system of its own for the log."""

    def __init__(self, place, is_own):
        self.path = place.directory / "log"
        self.path.mkdir()
        self.is_own = is_own and run("mount", "-t", "tmpfs", "-o", f"size={LOG_BYTES}", "tmpfs",
                                     self.path).returncode == 0
        if self.is_own:
            place.stack.callback(run, "umount", "--lazy", self.path)

    @contextlib.contextmanager
    def full(self):
        filler = self.path / "filler"
        try:
            with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            yield
        finally:
            filler.unlink()


class Relay:
    """In front of one server."""

    def __init__(self, place, *servers):
        self.ports = {server.port: free_port() for server in servers}
        pairs = [f"{here}:{there}" for there, here in self.ports.items()]
        self.child = subprocess.Popen([sys.executable, "-m", "chaos.relay", *pairs], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        place.stack.callback(self._stop)
        assert self.child.stdout.readline() == "ready\n"

    def _stop(self):
        self.child.kill()
        self.child.wait()

    def delay(self, server, seconds):
        self.child.stdin.write(f"{self.ports[server.port]} {seconds}\n")
        self.child.stdin.flush()


class SentinelGroup:
    """A primary with two replicas, and three Sentinels."""

    def __init__(self, place):
        # Whoever comes back takes itself for a primary, with what it had, until a Sentinel says otherwise.
        self.servers = [self._server(place) for _ in range(3)]
        first = self.servers[0].port
        for replica in self.servers[1:]:
            replica.call("REPLICAOF", HOST, first)
        self.sentinels = [place._keep(Sentinel(place.directory, first)) for _ in range(3)]
        wait_until(lambda: all((it["num-slaves"], it["num-other-sentinels"]) == ("2", "2")
                               for it in (sentinel.fields() for sentinel in self.sentinels)),
                   "the Sentinels know everybody", pause=0.1)

    @staticmethod
    def _server(place):
        port = free_port()
        return place.redis("--repl-diskless-sync-delay", "0", *kept(port), port=port)

    def primary(self):
        port = self.sentinels[0].primary()
        return next(server for server in self.servers if server.port == port)

    def epoch(self):
        return max(int(sentinel.fields()["config-epoch"]) for sentinel in self.sentinels)

    def is_well(self):
        """All Sentinels agree, nobody is down, and all replicas follow."""
        with contextlib.suppress(OSError, EOFError, ReplyError):
            fields = [sentinel.fields() for sentinel in self.sentinels]
            if len({(it["port"], it["config-epoch"], it["flags"]) for it in fields}) != 1:
                return False
            return fields[0]["flags"] == "master" and replicas(self.primary()) == 2
        return False


def replicas(server):
    """How many follow it; none follow one that is no primary."""
    role = by_path(server, "ROLE")
    return len(role[2]) if role[0] == b"master" else None


def wait_copied(primary):
    """Until all replicas have what was written before; returns when that was."""
    when = time.monotonic()
    written = by_path(primary, "ROLE")[1]

    def have_it():
        role = by_path(primary, "ROLE")
        return role[0] == b"master" and all(int(replica[2]) >= written for replica in role[2])
    wait_until(have_it, "all replicas have all writes", HEALING)
    return when


def by_path(server, *words):
    """Asks a server past the network, which may be cut."""
    with Conn(server.path, 10.0) as conn:
        return conn.call(*words)


class KeptCluster(Cluster):
    """A cluster of nodes that keep what they have acknowledged when they are killed."""

    def _server(self):
        port, bus = free_port(), free_port()
        options = ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf",
                   "--cluster-node-timeout", 1000, "--cluster-port", bus, "--repl-diskless-sync-delay", "0",
                   "--cluster-require-full-coverage", "no", *kept(port)]
        server = self.place.redis(*options, port=port)
        server.bus = bus
        return server

    def is_well(self):
        with contextlib.suppress(OSError, EOFError, ReplyError, AssertionError, StopIteration):
            if not self._is_ok() or not self._is_known():
                return False
            return all(replicas(it) == len(self.replicas_of(it)) for it in self.primaries())
        return False

    def slot(self, key):
        return self.servers[0].call("CLUSTER", "KEYSLOT", key)


class World:
    """All of it. `losses` tells what may be lost, as (keys, operation)."""

    def __init__(self, place, is_own):
        # What the gateway leaves behind becomes ours, and is seen.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.place = place
        #: Held while the master is killed and started again.
        self.restarting = threading.Lock()
        # Processes end with the thread that started them: those of faults come and go.
        self._starter = concurrent.futures.ThreadPoolExecutor(1)
        place.stack.callback(self._starter.shutdown)
        self.network = Network(is_own)
        self.disk = Disk(place, is_own)
        self.losses = []
        self.caches = [place.memcached() for _ in range(3)]
        self.leaving = [place.memcached() for _ in range(2)]
        self.plain = [self._kept() for _ in range(3)]
        self.relay = Relay(place, self.caches[0], self.plain[0])
        self.group = SentinelGroup(place)
        self.cluster = KeptCluster(place)
        self.gateway = self._gateway()
        self.pools = self._pools()
        self.checks = {key: pool["check"] for pool in self.pools for key in pool["keys"]}
        self._learn_places()

    def _kept(self):
        port = free_port()
        return self.place.redis(*kept(port), port=port)

    def _lines(self, servers):
        return server_lines([self.relay.ports.get(server.port, server.port) for server in servers],
                            names=[f"s{number}" for number in range(len(servers))])

    def options(self):
        sentinels = "[" + ", ".join(f"{HOST}:{it.port}" for it in self.group.sentinels) + "]"
        return {
            "caches": {"timeout": TIMEOUT, "server_connections": 2, "servers": self._lines(self.caches)},
            "leaving": {"timeout": TIMEOUT, "auto_eject_hosts": True, "server_failure_limit": 2,
                        "server_retry_timeout": 1000, "servers": self._lines(self.leaving)},
            "plain": {"redis": True, "timeout": TIMEOUT, "retry_reads": True, "failover_wait": 800,
                      "coalesce_reads": True, "servers": self._lines(self.plain)},
            "group": {"redis": True, "timeout": 2 * TIMEOUT, "sentinels": sentinels,
                      "servers": [f"{{name: s1, sentinel: {MASTER}}}"]},
            "cluster": {"redis": True, "timeout": 2 * TIMEOUT,
                        "cluster": f"{{seeds: {self.cluster.seeds(self.cluster.servers)}}}"},
            "cached": {"redis": True, "route": "{cache: {to: plain, ttl: 1h, keys: ['cached:']}}"},
        }

    def settings(self):
        # Where a master that starts anew has what the one before it knew.
        return {"worker_processes": WORKERS, "log_file": self.disk.path / "cashew.log",
                "sentinel_state": self.place.directory / "primaries.json"}

    def _gateway(self):
        gateway = self.place.cashew(self.options(), self.settings(), flags=False)
        gateway.log_path = self.disk.path / "cashew.log"
        gateway.wait_serving()
        return gateway

    def _pools(self):
        def pool(name, protocol, check, deletes=0, ports=None):
            keys = [f"{name}:{number}" for number in range(KEYS)]
            ports = ports or [name]
            return {"name": name, "protocol": protocol, "keys": keys, "deletes": keys[:deletes], "check": check,
                    "addresses": [self.gateway.addresses[port] for port in ports]}

        return [pool("caches", "memcached", "register", 3), pool("leaving", "memcached", "own"),
                pool("plain", "redis", "register", 3), pool("group", "redis", "register", 2),
                pool("cluster", "redis", "register", 2), pool("cached", "redis", "not stale", 0, ["cached", "plain"])]

    def pool(self, name):
        return next(pool for pool in self.pools if pool["name"] == name)

    def _learn_places(self):
        """Which cache has a key, and in which slot of the cluster it is: neither changes."""
        self.keys_of = {server.port: [] for server in self.caches}
        with self.gateway.connect("caches") as conn:
            for key in self.pool("caches")["keys"]:
                conn.send(f"set {key} 0 0 1\r\nx\r\n".encode())
                conn.expect(b"STORED\r\n")
                for server in self.caches:
                    with server.connect() as direct:
                        direct.send(f"get {key}\r\n".encode())
                        if direct.read_line() != b"END":
                            self.keys_of[server.port].append(key)
                conn.send(f"delete {key}\r\n".encode())
                conn.expect(b"DELETED\r\n")
        self.slots = {key: self.cluster.slot(key) for key in self.pool("cluster")["keys"]}

    def start(self, process):
        """Starts a server, or the gateway, again."""
        self._starter.submit(process.start).result(HEALING)

    def wiped(self, server, begin, end):
        self.losses.append((self.keys_of[server.port], register.wipe(begin, end)))

    def lost(self, keys, begin, end, floor, count=1):
        self.losses += [(keys, register.loss(begin, end, floor))] * count

    def status(self):
        done = self.gateway.order("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def order(self, *words):
        """An operator's command, by the program that was started first. Whether it succeeded, and what it says."""
        try:
            done = self.gateway.order(*words, seconds=60)
        except subprocess.TimeoutExpired:
            return False, f"{words[0]}: no answer within 60 s"
        return done.returncode == 0, done.stdout + done.stderr

    def family(self):
        return [self.gateway.pid, *children(self.gateway.pid)]

    def helpers(self, role):
        """Process ids of the gateway's children of a role: worker, admin or discovery."""
        found = []
        for pid in children(self.gateway.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                if f" {role}".encode() in words:
                    found.append(pid)
        return found

    def sees_primary(self):
        """Whether the gateway writes where the Sentinels say."""
        wanted = f"{HOST}:{self.group.primary().port}"
        groups = [group for pool in self.status().get("pools", []) for group in pool.get("groups") or []]
        return any(group["primary"] == wanted for group in groups)

    def answers(self):
        """Whether each key of each pool can be read through the gateway."""
        with contextlib.suppress(OSError, EOFError, ReplyError, AssertionError):
            self.final()
            return True
        return False

    def final(self):
        """What each key holds, as values; an error is raised."""
        found = {}
        for pool in self.pools:
            with Conn(pool["addresses"][-1], 5.0) as conn:
                for key in pool["keys"]:
                    begin = time.monotonic()
                    if pool["protocol"] == "redis":
                        value = conn.call("GET", key)
                    else:
                        conn.send(f"get {key}\r\n".encode())
                        line = conn.read_line()
                        if line.startswith((b"SERVER_ERROR", b"ERROR")):
                            raise ReplyError(line.decode())
                        value = None
                        if line != b"END":
                            value = conn.read(int(line.split()[3]) + 2)[:-2]
                            conn.expect(b"END\r\n")
                    found[key] = (value, begin, time.monotonic())
        return found


class ClientProcess:
    """Some clients of all pools."""

    def __init__(self, world, name, seed, pause=0.06):
        self.notes = world.place.directory / f"{name}.notes"
        pools = [{**{k: v for k, v in pool.items() if k != "check"}, "pause": pause} for pool in world.pools]
        pools *= EACH
        order = {"name": name, "seed": seed, "notes": str(self.notes), "pools": pools}
        with open(world.place.directory / f"{name}.out", "ab") as output:
            self.child = subprocess.Popen([sys.executable, "-m", "chaos.client"], stdin=subprocess.PIPE,
                                          stdout=output, stderr=output)
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        self.child.stdin.flush()

    def kill(self):
        self.child.kill()
        self.child.wait()

    def stop(self):
        """Lets it hear its last answers. Whether it ended by itself."""
        with contextlib.suppress(OSError):
            self.child.stdin.close()
        try:
            self.child.wait(60)
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False
