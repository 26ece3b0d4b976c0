"""Runs units of Redis's own test suite against a gateway, or against a server by itself."""

import collections
import dataclasses
import os
import select
import shutil
import subprocess
import threading
import time
from pathlib import Path

from cluster import Cluster
from users import Administered
from harness import Gateway, Redis, accepts, server_lines, temporary_directory, wait_until

HERE = Path(__file__).resolve().parent

#: The units of the suite that have something to say to an external server, the longest first.
UNITS = [
    "unit/type/list-3", "unit/type/list", "unit/type/stream", "unit/type/zset", "unit/expire",
    "unit/latency-monitor", "unit/introspection-2", "unit/scan", "unit/scripting", "unit/multi",
    "unit/geo", "unit/type/stream-cgroups", "unit/sort", "unit/other", "unit/type/set",
    "unit/type/hash", "unit/type/string", "unit/hyperloglog", "unit/functions", "unit/tracking",
    "unit/slowlog", "unit/bitops", "unit/keyspace", "unit/lazyfree", "unit/replybufsize",
    "unit/pubsub", "unit/protocol", "unit/bitfield", "unit/dump", "unit/introspection",
    "unit/pause", "unit/info-command", "unit/violations", "unit/type/incr", "unit/quit",
]

#: Units that change users. The suite does not run them against an external server, as it starts one of its own
#: for some of their tests.
USERS = {"unit/acl", "unit/acl-v2"}
UNITS += sorted(USERS)

#: About one protocol or both at once: they choose for themselves.
NOT_IN_RESP3 = {"unit/protocol", "unit/tracking"}

#: Seconds without a word from a test until its connections are cut, and how often that happens
#: until the unit is begun anew without that test. Some that fuzz say nothing for 40 on a slow machine
#: with other tests beside them.
SILENCE = 120.0
CUTS = 1
#: Seconds for one run of a unit, and how often it is begun.
UNIT_SECONDS = 480.0
RUNS = 6


@dataclasses.dataclass
class Unit:
    """What came of a unit: how often each test passed and failed, by its name."""

    name: str
    passed: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    failed: dict = dataclasses.field(default_factory=dict)  # name: why
    took: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # ms
    seconds: float = 0.0

    def fail(self, test, why):
        self.failed[test] = self.failed.get(test, "") + why.rstrip() + "\n"

    def ran(self):
        return len(self.passed) + sum(test not in self.passed for test in self.failed)


class Bare:
    """A server by itself."""

    def __init__(self, directory):
        self.server = server(directory, 0)
        self.servers = [self.server]
        self.port = self.server.port

    def cut(self):
        self.server.stop()
        self.server.start()

    def trouble(self):
        return "" if self.server.process.running() else self.server.process.output()[-2000:]

    def stop(self):
        self.server.stop()


def behind(name, directory, servers):
    """Servers behind a gateway, for a unit: `one`, `three`, or a `cluster`."""
    if servers == "cluster":
        return BehindCluster(directory)
    count = COUNTS[servers]
    if name not in USERS:
        return Behind(directory, count)
    servers = [server(directory, number) for number in range(count)]
    return Administered(directory, servers, NAMES[:count])


#: How many servers there are; each node of the cluster has a third of the slots.
COUNTS = {"one": 1, "three": 3, "cluster": 3}

#: By their names, which are the same in every run, each key has the same server.
NAMES = ["one", "two", "three"]


class Behind:
    """Servers behind a gateway."""

    def __init__(self, directory, count):
        servers = [server(directory, number) for number in range(count)]
        self.serve(directory, servers, hash_tag='"{}"', servers=server_lines(servers, NAMES[:count]))

    def serve(self, directory, running, **options):
        self.servers = running
        # The suite administers its servers.
        pool = {"redis": True, "command_policy": "admin", "client_pause_max": 2_147_483_647, **options}
        self.gateway = Gateway(directory, {"alpha": pool}, {"worker_processes": 2})
        self.gateway.wait_serving()
        self.port = self.gateway.address

    def cut(self):
        self.gateway.process.kill()
        for port in (self.port, self.gateway.stats_port):
            wait_until(lambda: not accepts(port), "the gateway's workers are gone")
        self.gateway.process.start()

    def trouble(self):
        return trouble(self.gateway)

    def stop(self):
        self.gateway.process.stop()
        for each in self.servers:
            each.stop()


class BehindCluster(Behind):
    """Nodes of a cluster behind a gateway."""

    def __init__(self, directory):
        cluster = Cluster(Place(directory), replicas=0, options=ENABLED)
        self.serve(directory, cluster.servers, cluster=f"{{seeds: {cluster.seeds()}}}")


class Place:
    """Makes the nodes of a cluster, each in a directory of its own."""

    def __init__(self, directory):
        self.directory = directory

    def redis(self, *options, port=None, program="redis-server"):
        directory = self.directory / f"node-{port}"
        directory.mkdir()
        return Redis(directory, *options, port=port, program=program)


def trouble(gateway):
    log = gateway.log()
    if not gateway.process.running():
        return log[-2000:]
    lines = [line for line in log.splitlines() if "panic" in line or "killed by signal" in line]
    return "\n".join(lines[:20])


#: What the suite does with its servers.
ENABLED = ["--enable-protected-configs", "yes", "--enable-module-command", "yes"]


def server(directory, number):
    """A server with files of its own, which tests have it write and read again."""
    directory = directory / f"server-{number}"
    directory.mkdir()
    return Redis(directory, *ENABLED)


class Runner:
    """Runs units against one kind of target, several at a time."""

    def __init__(self, source, make_target, protocol, options=(), say=print):
        self.source, self.make_target, self.protocol = source, make_target, protocol
        self.options, self.say = options, say

    def run(self, units, jobs, skip):
        """The results of these units by name; `skip(unit)` says which tests are not begun."""
        waiting = collections.deque(
            unit for unit in units if self.protocol != "resp3" or unit not in NOT_IN_RESP3)
        results = {}

        def work():
            while True:
                try:
                    name = waiting.popleft()
                except IndexError:
                    return
                try:
                    results[name] = self.unit(name, set(skip(name)))
                except Exception as error:
                    results[name] = Unit(name)
                    results[name].fail("(unit)", f"{type(error).__name__}: {error}")
                found = results[name]
                self.say(f"  {name}: {len(found.passed)} passed, {len(found.failed)} failed, "
                         f"{found.seconds:.1f} s")

        threads = [threading.Thread(target=work) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def unit(self, name, skipped):
        """Begins a unit until it comes to its end; a test that cannot be ended is left out then."""
        started = time.monotonic()
        endless = {}
        for _ in range(RUNS):
            directory = temporary_directory()
            try:
                target = self.make_target(name, directory)
                try:
                    unit, stuck = self.attempt(name, target, directory, skipped | set(endless))
                    trouble = target.trouble()
                finally:
                    target.stop()
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            if trouble:
                unit.fail("(gateway)", trouble)
            if not stuck:
                break
            endless[stuck] = "did not end, even with its connections cut"
        else:
            unit.fail("(unit)", f"not through in {RUNS} runs")
        for test, why in endless.items():
            unit.fail(test, why)
        unit.seconds = time.monotonic() - started
        return unit

    def attempt(self, name, target, directory, skipped):
        """One run of a unit, and the test that did not end."""
        skipfile = directory / "skip"
        skipfile.write_text("".join(f"{test}\n" for test in sorted(skipped)))
        process = subprocess.Popen(
            ["tclsh", HERE / "unit.tcl", name, str(target.port), self.protocol, skipfile,
             ",".join(str(each.port) for each in target.servers), *self.options],
            cwd=self.source, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        unit, at, cuts, noise = Unit(name), "(begin)", 0, []
        deadline = time.monotonic() + UNIT_SECONDS
        try:
            events = Lines(process.stdout.fileno())
            while True:
                line = events.next(SILENCE)
                if line is None or time.monotonic() > deadline:
                    cuts += 1
                    if cuts > CUTS or time.monotonic() > deadline:
                        return unit, at
                    self.say(f"  {name}: {at} said nothing for {SILENCE:.0f} s: it is cut")
                    target.cut()
                    continue
                if line == "":
                    unit.fail("(unit)", "the test client ended early:\n" + "\n".join(noise[-30:]))
                    return unit, None
                if not line.startswith("@"):
                    noise.append(line)
                    continue
                state, test, took, details = parse(line)
                if state == "testing":
                    at, cuts = test, 0
                elif state == "ok":
                    unit.passed[test] += 1
                    unit.took[test] += took
                elif state == "err":
                    unit.fail(test, details)
                elif state == "end":
                    return unit, None
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def parse(line):
    words = line[1:].split("\t")
    words = [word.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in word
             else word for word in words]
    state, test, took, details = (*words, "", "0", "")[:4]
    return state, test, int(took or 0), details


class Lines:
    """Lines of a pipe: "" at its end, None when there is none in time."""

    def __init__(self, descriptor):
        self.descriptor, self.buffer = descriptor, b""

    def next(self, seconds):
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.descriptor], [], [], left)[0]:
                return None
            piece = os.read(self.descriptor, 1 << 16)
            if not piece:
                return ""
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode(errors="replace") or " "
