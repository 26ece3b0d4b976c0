"""Rounds of faults, each followed by a look at what clients saw and at what the gateway still holds."""

import collections
import contextlib
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path

from chaos import leaks, register
from chaos.faults import DOMAINS, Clients
from chaos.history import Finding, History, judge, read_notes
from chaos.values import write_of
from chaos.world import HEALING, MOST_WORKERS, WORKERS, World
from conftest import Place
from harness import ROOT, wait_until

#: What clients may be told. Anything else is a finding.
ERRORS = re.compile(
    r"^(?:-?ERR |SERVER_ERROR )?(?:"
    r"Connection refused|Connection timed out|Connection reset by peer|Server does not answer|No route to host|"
    r"Server closed the connection|Server was removed from the configuration|Server was replaced by another|"
    r"Too many open files|Too many open connections|max number of clients reached|Server queue is full|"
    r"LOADING |READONLY |MASTERDOWN |CLUSTERDOWN |TRYAGAIN |NOREPLICAS |ERROR Too many open connections)")
#: For all to be as it was, once nothing happens any more.
SETTLING = 40.0
#: Findings of one kind that are printed after a round: the rest is in the file.
MOST_TOLD = 20
#: Rounds at the beginning that may be void.
MOST_VOIDS = 2


class Journal:
    """What was done, and when, by the clock of the histories."""

    def __init__(self, path):
        self.file, self.lock = open(path, "a", buffering=1), threading.Lock()

    def note(self, text):
        with self.lock:
            self.file.write(f"{time.monotonic():.6f} {text}\n")


class Run:
    def __init__(self, arguments, is_own):
        self.arguments, self.is_own = arguments, is_own
        self.findings, self.faults, self.requests = 0, collections.Counter(), collections.Counter()
        self.errors = collections.Counter()
        #: Rounds that say nothing, as the servers themselves have broken.
        self.void, self.voids = None, 0
        self.seed = arguments.seed
        only = [name for name in arguments.only.split(",") if name]
        self.domains = [it for it in DOMAINS if not only or it.__name__ in only]

    def run(self):
        """Exit status: 1 if anything was found."""
        ends = time.monotonic() + self.arguments.seconds
        print(f"seed {self.seed}", flush=True)
        number = 0
        while time.monotonic() < ends or number == self.voids <= MOST_VOIDS:
            # After a finding all begins anew, as what follows may come of it.
            place = Place()
            with place.stack:
                world = World(place, self.is_own)
                number = self._rounds(world, number, ends)
        self._tell(number)
        # What is mostly void finds nothing.
        return 1 if self.findings or 2 * self.voids > number else 0

    def _rounds(self, world, number, ends):
        history = History()
        # What there is once clients of all kinds were there, and another configuration, and the most workers: a
        # listening socket stays for ever.
        other = {**world.options(), "caches": {**world.options()["caches"], "timeout": 2000}}
        world.gateway.configure(other, worker_processes=MOST_WORKERS)
        world.order("reload")
        self._settle(world)
        self._round(world, history, f"{self.seed}:{number}:warm", 2.0, [])
        self._settle(world)
        before = leaks.snapshot(world)
        while number == self.voids or time.monotonic() < ends:
            number += 1
            seed = f"{self.seed}:{number}"
            seconds = max(5.0, min(self.arguments.round, ends - time.monotonic()))
            findings, faults, held = self._round(world, history, seed, seconds, self.domains)
            if self.void:
                print(f"round {number} is void: {self.void}"[:300], flush=True)
                self.voids, self.void = self.voids + 1, None
                if findings:
                    self._keep(world, seed, findings, held)
                return number
            findings += self._leaks(world, before)
            findings += self._log(world)
            counts = {name: count for name, count in sorted(history.counts.items())}
            told = collections.Counter()
            for (pool, outcome), count in counts.items():
                told[outcome] += count
                self.requests[pool, outcome] += count
            self.errors += history.errors
            history.counts.clear()
            history.errors.clear()
            self.faults.update(faults)
            print(f"round {number}: {dict(told)}, {len(faults)} faults, {len(findings)} findings", flush=True)
            if findings:
                self._keep(world, seed, findings, held)
                return number
        return number

    def _round(self, world, history, seed, seconds, domains):
        journal = Journal(world.place.directory / "journal")
        journal.note(f"round {seed}")
        world.losses.clear()
        clients = Clients(world, journal, seed)
        threads = [domain(world, journal, seed) for domain in domains]
        if domains:
            threads.append(clients)
        for thread in threads:
            thread.start()
        findings = self._watch(world, journal, seconds)
        for thread in threads:
            thread.over.set()
        for thread in threads:
            thread.join(2 * HEALING)
            self.void = self.void or thread.void
            if thread.is_alive() or thread.failure:
                findings.append(Finding("healing", thread.failure or f"{type(thread).__name__} does not end"))
        findings += [Finding("silent", text) for text in clients.end()]
        if self.void:
            return findings, [], clients
        findings += self._settle(world)
        finals = world.final() if not findings else {}
        journal.note("all is at rest")
        parts, odd = read_notes([process.notes for process in clients.all])
        findings += odd
        found = history.take(parts)
        held = {}
        for key, (value, begin, end) in finals.items():
            write = write_of(key, value) if value is not None else None
            if value is not None and write is None:
                findings.append(Finding("foreign", repr(value[:300]), key))
            held[key] = write
            found[key].append(register.read(write, begin, end, "when all was at rest"))
        for keys, operation in world.losses:
            for key in keys:
                found[key].append(operation)
        findings += judge(world.checks, found, history)
        findings += [Finding("error", text) for text in history.errors if not ERRORS.match(text)]
        if domains:
            answered = {pool for pool, outcome in history.counts if outcome == "ok"}
            findings += [Finding("idle", f"no request to {pool['name']} was answered")
                         for pool in world.pools if pool["name"] not in answered]
        history.end_round(found, held)
        for process in clients.all:
            if not findings:
                process.notes.unlink(missing_ok=True)
        return findings, [name for thread in threads for name in thread.made], clients

    @staticmethod
    def _watch(world, journal, seconds):
        """Lets time pass. A master that ends by itself is found, and started again, as a service manager does."""
        findings, ends = [], time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(0.1)
            with world.restarting:
                process = world.gateway.process
                if process.running():
                    continue
                text = f"the master has ended with {process.child.returncode}: {process.output()[-300:]}"
                journal.note(text)
                findings.append(Finding("death", text))
                world.start(process)
        return findings

    def _settle(self, world):
        """Everything is put right; what does not come right is found."""
        if not world.gateway.process.running():
            return [Finding("death", f"the master has ended with {world.gateway.process.child.returncode}")]
        findings = []
        world.gateway.configure(world.options(), **world.settings(), memory_max="auto")
        steps = [(lambda: world.order("reload")[0], "the configuration is loaded"),
                 (world.group.is_well, "the group is well"), (world.cluster.is_well, "the cluster is well"),
                 (lambda: len(world.helpers("worker")) == WORKERS, "all workers are there"),
                 (world.answers, "all keys can be read")]
        for condition, what in steps:
            try:
                wait_until(condition, what, HEALING, pause=0.1)
            except AssertionError as error:
                findings.append(Finding("healing", f"{error}"))
        return findings

    def _leaks(self, world, before):
        grown = []

        def is_back():
            leaks.reap()
            with contextlib.suppress(OSError, ValueError, KeyError):
                grown[:] = leaks.grown(before, leaks.snapshot(world))
                return not grown
            return False

        with contextlib.suppress(AssertionError):
            wait_until(is_back, "all is as before", SETTLING, pause=0.5)
        return [Finding("leak", text) for text in grown]

    @staticmethod
    def _log(world):
        text = world.gateway.log()
        return [Finding("panic", line) for line in text.splitlines() if "panicked" in line or "assertion" in line][:5]

    def _keep(self, world, seed, findings, clients):
        """Writes what shows them."""
        self.findings += len(findings)
        directory = Path(ROOT / self.arguments.findings / seed.replace(":", "-"))
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        lines = [f"scripts/long chaos --seed {self.seed} --round {self.arguments.round}"]
        told = collections.Counter()
        for number, finding in enumerate(findings):
            told[finding.kind] += 1
            if told[finding.kind] <= MOST_TOLD:
                print(f"  {finding}"[:1000], flush=True)
            lines.append(str(finding))
            if finding.operations:
                text = "\n".join(str(it) for it in sorted(finding.operations, key=lambda it: it.begin))
                (directory / f"history-{number}").write_text(f"{finding}\n\n{text}\n")
        for kind, count in told.items():
            if count > MOST_TOLD:
                print(f"  {kind}: {count - MOST_TOLD} more", flush=True)
        (directory / "findings").write_text("\n".join(lines) + "\n")
        for path in world.place.directory.iterdir():
            if path.is_file() and path.suffix in ("", ".notes", ".out", ".yml", ".log", ".conf"):
                shutil.copy(path, directory)
        with contextlib.suppress(OSError, ValueError):
            shutil.copy(world.gateway.log_path, directory)
            (directory / "stats.json").write_text(json.dumps(world.gateway.stats(), indent=1))
        print(f"  kept in {os.path.relpath(directory)}", flush=True)

    def _tell(self, rounds):
        outcomes = collections.Counter()
        for (_, outcome), count in self.requests.items():
            outcomes[outcome] += count
        print(f"{rounds} rounds, {self.voids} of them void, {sum(self.faults.values())} faults, {sum(outcomes.values())} keys asked for: "
              + ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
              + f"; {self.findings} findings", flush=True)
        for name, count in sorted(self.faults.items()):
            print(f"  {count:5} {name}")
        print("answers other than values:")
        texts = collections.Counter()
        for text, count in self.errors.items():
            texts[text.partition(" (server ")[0]] += count
        for text, count in texts.most_common(30):
            print(f"  {count:5} {text}")
