"""Runs files of memcached's own tests against a server, by itself or behind a gateway."""

import collections
import concurrent.futures
import dataclasses
import os
import re
import select
import shutil
import signal
import subprocess
import time

from harness import HOST, Gateway, Memcached, server_lines, temporary_directory

#: Files that say nothing about a server that runs already, or that a gateway could pass on.
OMITTED = {
    "00-startup.t": "options of the command line",
    "ascii-auth.t": "options of the command line: -Y",
    "binary-extstore.t": "storage on disk",
    "binary-sasl.t": "starts its own servers, and is left out by a memcached without SASL's files",
    "chunked-extstore.t": "storage on disk",
    "conn-limits.t": "limits on a server's own connections",
    "daemonize.t": "options of the command line",
    "error-extstore.t": "storage on disk",
    "extstore-buckets.t": "storage on disk",
    "extstore-jbod.t": "storage on disk",
    "extstore.t": "storage on disk",
    "idle-timeout.t": "limits on a server's own connections",
    "lru-maintainer.t": "minutes of waiting for what a server does by itself",
    "maxconns.t": "limits on a server's own connections",
    "misbehave.t": "privileges of the process",
    "proxy.t": "memcached's own proxy",
    "restart.t": "starts its own servers",
    "shutdown.t": "ends its server",
    "stats-conns.t": "a server's own connections, on a socket of its own",
    "udp.t": "UDP",
    "unixsocket.t": "starts its own servers",
}
OMITTED_PREFIXES = {"ssl_": "TLS of the server"}

#: Files that fill one server's memory and count what becomes of that: three have three times as much.
ONE_MEMORY = {"dash-M.t", "dyn-maxbytes.t", "evictions.t", "issue_14.t", "issue_22.t", "lru.t",
              "lru-crawler.t", "slabs-reassign2.t", "slabs_reassign.t"}

#: Seconds for a file, and without a word from it: some take ten for a loop that says nothing.
FILE_SECONDS = 150.0
SILENCE = 20.0

#: Those that take longest, which begin first.
LONGEST = ["binary.t", "metaget.t", "lru-crawler.t", "watcher.t", "watcher_connid.t",
           "chunked-items.t", "getset.t", "dash-M.t", "dyn-maxbytes.t", "slabs-reassign2.t"]


def omitted(file):
    return file in OMITTED or any(file.startswith(prefix) for prefix in OMITTED_PREFIXES)


@dataclasses.dataclass
class File:
    """What came of a file: how often each test passed and failed, by its description."""

    name: str
    passed: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    failed: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    output: str = ""
    seconds: float = 0.0

    def ran(self):
        return self.passed + self.failed


def options(path):
    """What the first server of a file is started with: the gateway's has the same."""
    found = re.search(r"new_memcached\(\s*(?:'([^']*)'|\"([^\"$]*)\")?\s*\)", path.read_text())
    words = ((found.group(1) or found.group(2) or "") if found else "").split()
    # Where it listens is known.
    for option in ("-l", "-U"):
        taken(words, option)
    return words


def taken(words, option):
    """The argument of an option, which is taken out of the words."""
    if option not in words:
        return None
    at = words.index(option)
    _, argument = words[at : at + 2]
    del words[at : at + 2]
    return argument


#: Names by which servers are found on the ring: keys are where they were in the last run.
SHARDS = ["shard-1", "shard-2", "shard-3"]

#: They have keys listed, which the gateway does in text where none can come in binary.
KEYS_LISTED = {"stats-detail.t", "stats.t"}

#: What files speak to, and how many servers stand behind the gateway there.
BARE, TARGETS = "bare", {"bare": 0, "one": 1, "three": 3}


def runs(files):
    """(target, file) of all that there is to run."""
    return [(target, name) for name in files for target in TARGETS
            if target != "three" or name not in ONE_MEMORY]


class Runner:
    """Runs files, each against a server, or servers behind a gateway, of its own."""

    def __init__(self, source, say):
        self.source, self.say = source, say

    def run(self, runs, jobs):
        """What came of these (target, file)."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            return dict(zip(runs, pool.map(lambda run: self.file(*run), runs)))

    def file(self, target, name):
        started = time.monotonic()
        directory = temporary_directory()
        running = []
        try:
            words = options(self.source / "t" / name)
            protocol = "text" if name in KEYS_LISTED else "auto"
            if "-B" in words:
                protocol = words[words.index("-B") + 1]
            if target != BARE:
                # What clients may speak is the gateway's to say; it speaks to servers as it likes.
                taken(words, "-B")
            for _ in range(TARGETS[target] or 1):
                running.append(Memcached(directory, *words))
            if target == BARE:
                file = parse(name, self.perl(name, running[0].port))
            else:
                pool = {"protocol": protocol, "command_policy": "admin",
                        "servers": server_lines(running, SHARDS[: len(running)])}
                gateway = Gateway(directory, {"beta": pool}, {"worker_processes": 1})
                running.append(gateway)
                gateway.wait_serving()
                file = parse(name, self.perl(name, gateway.address))
                trouble = [line for line in gateway.log().splitlines()
                           if "panic" in line or "killed by signal" in line]
                if trouble:
                    file.failed["(gateway)"] += 1
                    file.output += "\n".join(trouble)
        finally:
            for each in reversed(running):
                each.stop()
            shutil.rmtree(directory, ignore_errors=True)
        file.seconds = time.monotonic() - started
        self.say(f"  {target:<5} {name}: {file.passed.total()} passed, {file.failed.total()} failed, "
                 f"{file.seconds:.1f} s")
        return file

    def perl(self, name, port):
        """What a file prints, as `prove` reads it. It is ended after a silence."""
        process = subprocess.Popen(
            ["perl", "-I", "t/lib", f"t/{name}"],
            cwd=self.source, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "T_MEMD_USE_DAEMON": f"{HOST}:{port}"},
        )
        deadline = time.monotonic() + FILE_SECONDS
        output, piece = bytearray(), None
        try:
            while time.monotonic() < deadline:
                piece = None
                if not select.select([process.stdout], [], [], SILENCE)[0]:
                    break
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                output += piece
            if piece != b"":
                output += b"\nnot ok - (ends in time)\n"
            return output.decode(errors="replace")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def parse(name, output):
    """Results from the Test Anything Protocol."""
    file, planned = File(name, output=output), None
    for line in output.splitlines():
        if found := re.match(r"1\.\.(\d+)", line):
            planned = int(found.group(1))
        found = re.match(r"(not )?ok\b *(\d*) *(?:- )?(.*)", line)
        if not found:
            continue
        failed, number, description = found.groups()
        counter = file.failed if failed else file.passed
        counter[stable(description.strip()) or f"#{number}"] += 1
    if planned is None or file.ran().total() < planned:
        file.failed["(ends early)"] += 1
    return file


def stable(description):
    """A description without what differs from one run to the next, and not too long."""
    return re.sub(r"\b\d{5,}\b", "N", description.replace("\t", " "))[:80].rstrip()
