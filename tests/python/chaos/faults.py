"""What goes wrong: each domain has faults that come one after the other, beside those of other domains.

A fault mends what it broke before it ends, so that no round leaves anything broken, and says what may be lost by it.
"""

import contextlib
import os
import random
import resource
import signal
import threading
import time

from chaos.world import HEALING, KEYS, MOST_WORKERS, TIMEOUT, WORKERS, ClientProcess, by_path, wait_copied
from harness import CASHEW, ReplyError, alive, wait_until

#: Seconds after which a worker serves, if it ever will.
STARTING = 5.0
BUMPED = os.environ.get("CASHEW_BUMPED")


class Void(Exception):
    """Servers have come to disagree among themselves, which is none of the gateway's doing."""


def stop(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def age(pid):
    """Seconds since a process was started; 0 of one that has gone."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


def go_on(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


class Domain(threading.Thread):
    """Faults of one kind of thing, one at a time. `made` counts them by name."""

    #: Seconds between two faults.
    pause = (0.2, 1.5)

    def __init__(self, world, journal, seed):
        super().__init__(daemon=True)
        self.world, self.journal = world, journal
        self.chance = random.Random(f"{seed}:{type(self).__name__}")
        self.over, self.failure, self.void = threading.Event(), None, None
        self.made = []

    def faults(self):
        found = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("do_")]
        return [fault for fault in found if self.world.network.is_own or not fault.__name__.endswith("_cut")]

    def run(self):
        while not self.over.wait(self.chance.uniform(*self.pause)):
            fault = self.chance.choice(self.faults())
            name = f"{type(self).__name__}.{fault.__name__[3:]}"
            self.journal.note(f"{name} begins")
            self.made.append(name)
            try:
                fault()
            except Void as error:
                self.void = f"{name}: {error}"
                self.journal.note(self.void)
                return
            except Exception as error:  # it is a finding, whatever it is
                self.failure = f"{name}: {type(error).__name__}: {error}"
                self.journal.note(self.failure)
                return
            self.journal.note(f"{name} is over")

    def some(self, least, most):
        return self.chance.uniform(least, most)

    def hold(self, process, seconds):
        """A server stands still for a while."""
        self.journal.note(f"  {process.pid} stands still for {seconds:.2f} s")
        stop(process.pid)
        time.sleep(seconds)
        go_on(process.pid)


class Servers(Domain):
    """Any servers: `server` chooses one."""

    def do_stop(self):
        self.hold(self.server().process, self.some(0.1, 2.5 * TIMEOUT / 1000))

    def do_cut(self):
        with self.world.network.cut([self.server().port], self.chance.choice(["silent", "refused"])):
            time.sleep(self.some(0.1, 3))


class Caches(Servers):
    """memcached: what is killed has lost everything, and nothing else is lost."""

    def server(self):
        return self.chance.choice(self.world.caches)

    def do_kill(self):
        server = self.server()
        begin = time.monotonic()
        server.stop()
        time.sleep(self.some(0, 2))
        self.world.start(server)
        self.world.wiped(server, begin, time.monotonic())

    def do_slow_link(self):
        slow_link(self, self.world.caches[0])


class Leaving(Caches):
    """memcached that leaves the ring when it fails, with what it had, and comes back."""

    def server(self):
        return self.chance.choice(self.world.leaving)

    def do_kill(self):
        server = self.server()
        server.stop()
        time.sleep(self.some(0.5, 3))
        self.world.start(server)

    do_slow_link = None

    def faults(self):
        return [self.do_kill, self.do_stop]


class Plain(Servers):
    """Redis that keeps what it has acknowledged: nothing is lost."""

    def server(self):
        return self.chance.choice(self.world.plain)

    def do_kill(self):
        server = self.server()
        server.stop()
        time.sleep(self.some(0, 2))
        self.world.start(server)

    def do_slow_link(self):
        slow_link(self, self.world.plain[0])

    def do_close_clients(self):
        with contextlib.suppress(ReplyError, OSError, EOFError):
            by_path(self.server(), "CLIENT", "KILL", "TYPE", "normal")


def slow_link(domain, server):
    for _ in range(domain.chance.randrange(1, 5)):
        domain.world.relay.delay(server, domain.chance.choice([0.002, 0.02, 0.2, -1]))
        time.sleep(domain.some(0.1, 1.2))
    domain.world.relay.delay(server, 0)


class Group(Domain):
    """A primary with replicas and Sentinels: who takes its place may lack the writes that were not copied yet."""

    pause = (1.0, 3.0)

    def run_fault(self, fault, called_off=0):
        """`called_off` is how much may be lost if the Sentinels have changed nothing in the end."""
        group, world = self.world.group, self.world
        wait_until(group.is_well, "the group is well", HEALING, pause=0.1)
        before, floor = group.epoch(), wait_copied(group.primary())
        begin = time.monotonic()
        fault(group.primary())
        wait_until(group.is_well, "the group is well again", HEALING, pause=0.1)
        # A failover that was about to begin may yet.
        time.sleep(1.0)
        wait_until(group.is_well, "the group is well again", HEALING, pause=0.1)
        wait_until(world.sees_primary, "the gateway knows the primary", HEALING, pause=0.1)
        switches = group.epoch() - before
        self.journal.note(f"  {switches} failovers; the primary is {group.primary().port}")
        world.lost(world.pool("group")["keys"], begin, time.monotonic(), floor, switches or called_off)

    def do_kill_primary(self):
        def kill(primary):
            primary.stop()
            time.sleep(self.chance.choice([0.1, 4.0]))
            self.world.start(primary)
        self.run_fault(kill)

    def do_stop_primary(self):
        self.run_fault(lambda primary: self.hold(primary.process, self.chance.choice([0.3, 1.5, 5.0])))

    def do_primary_cut(self):
        def cut(primary):
            with self.world.network.cut([primary.port], self.chance.choice(["silent", "refused"])):
                time.sleep(self.chance.choice([0.5, 1.5, 5.0]))
        self.run_fault(cut)

    def do_kill_replica(self):
        def kill(primary):
            replica = self.chance.choice([it for it in self.world.group.servers if it is not primary])
            replica.stop()
            time.sleep(self.some(0.1, 2))
            self.world.start(replica)
        self.run_fault(kill)

    def do_failover(self):
        def failover(_):
            with contextlib.suppress(ReplyError):
                self.world.group.sentinels[0].call("SENTINEL", "FAILOVER", "mymaster")
            time.sleep(2.0)
        # Who was promoted takes writes, until the Sentinels call the failover off: there and back.
        self.run_fault(failover, called_off=2)

    def do_kill_sentinel(self):
        def kill(_):
            sentinel = self.chance.choice(self.world.group.sentinels)
            sentinel.stop()
            time.sleep(self.some(0.1, 3))
            self.world.start(sentinel)
        self.run_fault(kill)


class ClusterNodes(Domain):
    """A cluster that fails over by itself and by command, and whose slots move."""

    pause = (1.0, 3.0)

    def run(self):
        try:
            self.known = self.primaries()
            super().run()
            if not (self.void or self.failure):
                self.check_known()
        except Void as error:
            self.void = str(error)
            self.journal.note(self.void)
        except Exception as error:  # it is a finding, whatever it is
            self.failure = f"{type(error).__name__}: {error}"
            self.journal.note(self.failure)

    def primaries(self):
        """Of all that have slots: their ids."""
        self.wait_well()
        return {it.id for it in self.world.cluster.nodes() if it.slots}

    def check_known(self, harmed=None):
        """On a machine that is too busy, nodes take one for dead that is not. Another takes its place, and nobody has noted
        what may be lost by that."""
        before, self.known = self.known, self.primaries()
        gone = before - self.known - {harmed}
        if gone:
            raise Void(f"primaries that nothing was done to were replaced: {', '.join(sorted(gone))}")

    def run_fault(self, fault, may_lose=True):
        cluster, world = self.world.cluster, self.world
        self.check_known()
        primary = self.chance.choice(cluster.primaries())
        node = cluster.node(primary)
        floor = wait_copied(primary)
        begin = time.monotonic()
        fault(primary)
        self.wait_well()
        keys = [key for key, slot in world.slots.items() if slot in node.slots]
        epochs = cluster.epochs(cluster.servers[0])
        owner = next((it for it in cluster.nodes() if it.slots & node.slots), None)
        has_switched = owner is not None and owner.id != node.id
        self.journal.note(f"  {len(keys)} keys, {'another primary' if has_switched else 'the same primary'}, {epochs}")
        if may_lose and has_switched:
            world.lost(keys, begin, time.monotonic(), floor)
        self.check_known(harmed=node.id)

    def wait_well(self):
        """Redis 7.0 may promote a replica that has not heard of all slots of its primary: then each node names another
        owner, for ever."""
        cluster = self.world.cluster
        try:
            wait_until(cluster.is_well, "the cluster is well", HEALING / 3, pause=0.1)
        except AssertionError as error:
            views = {cluster.shape(server) for server in cluster.living()}
            if len(cluster.living()) == len(cluster.servers) and len(views) > 1:
                raise Void(f"nodes disagree about slots: {views}") from None
            raise error

    def do_kill_primary(self):
        def kill(primary):
            primary.stop()
            time.sleep(self.chance.choice([0.1, 4.0]))
            self.world.start(primary)
        self.run_fault(kill)

    def do_stop_primary(self):
        self.run_fault(lambda primary: self.hold(primary.process, self.chance.choice([0.3, 1.2, 4.0])))

    def do_primary_cut(self):
        def cut(primary):
            with self.world.network.cut([primary.port, primary.bus], self.chance.choice(["silent", "refused"])):
                time.sleep(self.chance.choice([0.3, 1.2, 4.0]))
        self.run_fault(cut)

    def do_failover_by_command(self):
        # The primary waits for the replica, so that nothing is lost.
        self.run_fault(self.world.cluster.fail_over, may_lose=False)

    def do_reshard(self):
        self.wait_well()
        cluster = self.world.cluster
        source, target = self.chance.sample(cluster.primaries(), 2)
        own = cluster.node(source).slots
        slots = [slot for slot in set(self.world.slots.values()) if slot in own][:KEYS // 3]
        self.journal.note(f"  slots {slots} move from {source.port} to {target.port}")
        cluster.move(slots, source, target)
        self.check_known()


class Processes(Domain):
    """The gateway's own."""

    pause = (0.5, 3.0)

    def one(self, role):
        found = self.world.helpers(role)
        return self.chance.choice(found) if found else None

    def kill(self, role):
        pid = self.one(role)
        if pid:
            self.journal.note(f"  {role} {pid} is killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self, role):
        pid = self.one(role)
        if pid:
            stop(pid)
            time.sleep(self.some(0.1, 2))
            go_on(pid)

    def do_kill_worker(self):
        self.kill("worker")

    def do_stop_worker(self):
        self.stop("worker")

    def do_kill_admin(self):
        self.kill("admin")

    def do_stop_admin(self):
        self.stop("admin")

    def do_kill_discovery(self):
        self.kill("discovery")

    def do_stop_discovery(self):
        self.stop("discovery")

    def do_stop_master(self):
        self.hold(self.world.gateway.process, self.some(0.1, 2))

    def do_kill_master(self):
        """And whoever supervises it starts it again."""
        process = self.world.gateway.process
        old = self.world.family()
        with self.world.restarting:
            process.child.kill()
            process.child.wait()
            time.sleep(self.some(0, 0.5))
            self.world.start(process)
        wait_until(lambda: not any(map(alive, old)), "what the dead master left ends", HEALING)


class Orders(Domain):
    """What operators do. It may be refused while something else goes on."""

    pause = (0.5, 3.0)

    def order(self, *words):
        is_done, text = self.world.order(*words)
        self.journal.note(f"  {' '.join(map(str, words))}: {'done' if is_done else text.strip()[-300:]}")

    def configure(self, pools=None, **settings):
        self.world.gateway.configure(pools, **settings)
        self.order("reload")

    def do_reload(self):
        options = self.world.options()
        for pool in options.values():
            if "timeout" in pool:
                pool["timeout"] += self.chance.randrange(100)
        options["caches"]["server_connections"] = self.chance.randrange(1, 4)
        options["plain"]["server_connections"] = self.chance.randrange(1, 4)
        self.configure(options)

    def do_reload_of_nonsense(self):
        gateway = self.world.gateway
        # A master that starts with it would end.
        with self.world.restarting:
            gateway.write_config("pools:\n  caches: {listen: nowhere}\n")
            is_done, _ = self.world.order("reload")
            gateway.write_config()
        assert not is_done, "a file of nonsense was loaded"

    def do_resize(self):
        self.configure(worker_processes=self.chance.randint(1, MOST_WORKERS))
        time.sleep(self.some(0, 1))
        self.configure(worker_processes=WORKERS)

    def do_upgrade(self):
        program = self.chance.choice([CASHEW, BUMPED or CASHEW])
        self.order("upgrade", "--binary", program)

    def do_little_memory(self):
        self.configure(memory_max="16mb")
        time.sleep(self.some(0.5, 3))
        self.configure(memory_max="auto")


class Resources(Domain):
    """A disk without room, and processes that may open no more files."""

    pause = (1.0, 4.0)

    def faults(self):
        return [self.do_few_files, *([self.do_full_disk] if self.world.disk.is_own else [])]

    def do_full_disk(self):
        with self.world.disk.full():
            time.sleep(self.some(0.5, 3))

    def do_few_files(self):
        """Of a worker that serves: one that starts could not be given its sockets, and so would end the instance. It is
        not told, as when a limit of the whole system is reached."""
        limited = []
        for pid in [pid for pid in self.world.helpers("worker") if age(pid) > STARTING][:1]:
            with contextlib.suppress(OSError, ProcessLookupError):
                before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                count = len(os.listdir(f"/proc/{pid}/fd"))
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (count + self.chance.randrange(4), before[1]))
                limited.append((pid, before))
        time.sleep(self.some(0.5, 3))
        for pid, before in limited:
            with contextlib.suppress(OSError, ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


class Clients(Domain):
    """Processes of clients that are killed, with requests under way, or stand still with replies unread."""

    pause = (0.3, 2.0)

    def __init__(self, world, journal, seed, count=2):
        super().__init__(world, journal, seed)
        self.seed, self.number = seed, 0
        #: All that there were, for their notes.
        self.all = []
        self.living = [self.another() for _ in range(count)]

    def another(self):
        self.number += 1
        process = ClientProcess(self.world, f"c{self.seed}-{self.number}".replace(":", "-"), self.seed)
        self.all.append(process)
        return process

    def do_kill(self):
        place = self.chance.randrange(len(self.living))
        self.living[place].kill()
        self.living[place] = self.another()

    def do_stop(self):
        child = self.chance.choice(self.living).child
        stop(child.pid)
        time.sleep(self.some(0.1, 2))
        go_on(child.pid)

    def end(self):
        """What is wrong with how they end."""
        return [] if all([process.stop() for process in self.living]) else ["a client did not end"]


DOMAINS = [Caches, Leaving, Plain, Group, ClusterNodes, Processes, Orders, Resources]
