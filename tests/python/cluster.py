"""Clusters of real servers: primaries that share the slots, and their replicas."""

import time

from harness import HOST, ReplyError, free_port, wait_until

SLOTS = 16384
#: Milliseconds after which a node that does not answer is taken to have failed.
NODE_TIMEOUT = 1000


class Node:
    """A node as one of them sees it: a line of CLUSTER NODES."""

    def __init__(self, line):
        words = line.split()
        self.id, place, flags, self.primary = words[:4]
        self.host, _, port = place.split(",")[0].split("@")[0].rpartition(":")
        self.port = int(port)
        self.flags = flags.split(",")
        self.epoch = int(words[6])
        self.is_linked = words[7] == "connected"
        self.slots = set()
        for word in words[8:]:
            if not word.startswith("["):
                first, _, last = word.partition("-")
                self.slots |= set(range(int(first), int(last or first) + 1))


class Cluster:
    """`primaries` primaries with `replicas` replicas each. `servers` has all, primaries first."""

    def __init__(self, place, primaries=3, replicas=1, program="redis-server", options=()):
        self.place = place
        self.program = program
        self.options = [str(option) for option in options]
        self.servers = [self._server() for _ in range(primaries)]
        bounds = [SLOTS * at // primaries for at in range(primaries + 1)]
        for at, server in enumerate(self.servers):
            server.call("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            server.call("CLUSTER", "ADDSLOTSRANGE", bounds[at], bounds[at + 1] - 1)
        for _ in range(primaries * replicas):
            self.add()
        self.meet()
        self.wait_ok()
        for at, server in enumerate(self.servers[primaries:]):
            self.replicate(server, self.servers[at % primaries])
        self.wait_ok()

    def _server(self):
        port = free_port()
        # Nodes talk at another port, 10000 above the first unless told.
        bus = free_port()
        options = ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf",
                   "--cluster-node-timeout", NODE_TIMEOUT, "--cluster-port", bus,
                   "--repl-diskless-sync-delay", "0", *self.options]
        server = self.place.redis(*options, port=port, program=self.program)
        server.bus = bus
        return server

    def add(self):
        """A node that is in no cluster yet."""
        server = self._server()
        self.servers.append(server)
        return server

    def meet(self):
        """All of them know each other."""
        first, *others = self.servers
        for server in others:
            first.call("CLUSTER", "MEET", HOST, server.port, server.bus)
        wait_until(self._is_known, "all nodes know each other", pause=0.05)

    def _is_known(self):
        ports = {server.port for server in self.servers}
        views = [self.nodes(server) for server in self.servers]
        return all({node.port for node in view} == ports
                   and not any("handshake" in node.flags for node in view) for view in views)

    def wait_ok(self):
        """Until all nodes have all slots, and all replicas follow."""
        wait_until(self._is_ok, "the cluster is well", pause=0.05)

    def _is_ok(self):
        for server in self.servers:
            if b"cluster_state:ok" not in server.call("CLUSTER", "INFO"):
                return False
            role = server.call("ROLE")
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        return len({self.shape(server) for server in self.servers}) == 1

    def shape(self, server):
        """Which node owns how many slots, and who follows whom, as one of them sees it."""
        nodes = self.nodes(server)
        return tuple(sorted((node.id, node.primary, len(node.slots)) for node in nodes))

    def epochs(self, server):
        """The configuration epochs of all primaries, as one of them knows them."""
        return {node.id: node.epoch for node in self.nodes(server) if "master" in node.flags}

    def replicate(self, replica, primary):
        replica.call("CLUSTER", "REPLICATE", self.id(primary))

    def nodes(self, server=None):
        """All of them as one of them sees it."""
        server = server or self.living()[0]
        lines = server.call("CLUSTER", "NODES").decode().splitlines()
        return [Node(line) for line in lines if line]

    def living(self):
        return [server for server in self.servers if server.process.running()]

    def id(self, server):
        return server.call("CLUSTER", "MYID").decode()

    def node(self, server, by=None):
        """One of them as another sees it."""
        return next(node for node in self.nodes(by) if node.port == server.port)

    def server(self, port):
        return next(server for server in self.servers if server.port == port)

    def primary_of(self, slot):
        node = next(node for node in self.nodes() if slot in node.slots)
        return self.server(node.port)

    def replicas_of(self, primary):
        own = self.id(primary)
        return [self.server(node.port) for node in self.nodes(primary) if node.primary == own]

    def primaries(self):
        return [self.server(node.port) for node in self.nodes() if node.slots]

    def seeds(self, servers=None, host=HOST):
        """As the option `seeds` wants them."""
        found = ", ".join(f"'{host}:{server.port}'" for server in servers or self.servers[:3])
        return f"[{found}]"

    def pools(self, **options):
        """A pool in front of it."""
        return {"alpha": {"redis": True, "cluster": f"{{seeds: {self.seeds()}}}", **options}}

    def fail_over(self, primary):
        """Has a replica take its place, as an operator does; returns that one."""
        replica = self.replicas_of(primary)[0]
        asked = 0

        def has_taken_over():
            nonlocal asked
            if replica.call("ROLE")[0] == b"master":
                return True
            # The servers give up after five seconds, as when a machine is busy.
            if time.monotonic() - asked > 6:
                asked = time.monotonic()
                assert replica.call("CLUSTER", "FAILOVER") == "OK"
            return False
        wait_until(has_taken_over, "the replica takes over", pause=0.005)
        return replica

    def move(self, slots, source, target):
        """Slots with all their keys, one by one, as `redis-cli --cluster reshard` does."""
        # Who takes a slot gives itself an epoch above all that it has heard of. Had it not heard of the newest,
        # the others would go on to believe the owner before, for ever.
        wait_until(lambda: self.epochs(source) == self.epochs(target), "both know all epochs", pause=0.01)
        here, there = self.id(source), self.id(target)
        with source.connect() as giver, target.connect() as taker:
            for slot in slots:
                taker.call("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
                giver.call("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
                while keys := giver.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
                    giver.call("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
                taker.call("CLUSTER", "SETSLOT", slot, "NODE", there)
                try:
                    giver.call("CLUSTER", "SETSLOT", slot, "NODE", there)
                except ReplyError as error:
                    # Its last slot has gone, which it has heard of already.
                    assert "only with masters" in str(error), error

    def forget(self, server):
        """Takes a node out that owns nothing any more."""
        own = self.id(server)
        server.stop()
        self.servers.remove(server)
        for other in self.living():
            other.call("CLUSTER", "FORGET", own)
