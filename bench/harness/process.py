"""Processes that the benchmark starts, and nothing else: every one is ended by its id."""

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from typing import ClassVar

from . import machine

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
GRACE = 3.0
#: Below the ephemeral range, so that no client's port is in the way.
PORTS = range(20_000, 32_000)


class Broken(Exception):
    """A process did not do what it was started for."""


class Running:
    """One started program with all its children."""

    living: ClassVar[list] = []

    def __init__(self, name, command, cpus, directory, stdout=None):
        self.name = name
        self.log = os.path.join(directory, f"{name}.log")

        # No other thread of ours runs Python while a process is started.
        def prepare():
            os.sched_setaffinity(0, cpus)
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout or log,
                stderr=log,
                cwd=directory,
                preexec_fn=prepare,  # noqa: PLW1509
                start_new_session=True,
            )
        Running.living.append(self)

    @property
    def pid(self):
        return self.popen.pid

    def pids(self):
        return machine.tree(self.pid)

    def check(self):
        if self.popen.poll() is not None:
            raise Broken(
                f"{self.name} ended with status {self.popen.returncode}: {self.last_words()}"
            )

    def last_words(self):
        """The last line it wrote."""
        return (machine.read(self.log).strip().splitlines() or ["without a word"])[-1][:300]

    def stop(self, grace=GRACE):
        """Asks it to end, then ends it and whatever children it left."""
        if self not in Running.living:
            return
        family = [(pid, birth(pid)) for pid in self.pids()] if self.popen.poll() is None else []
        if family:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(grace)
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        for pid, born in family:
            if pid != self.pid and born is not None and birth(pid) == born:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        Running.living.remove(self)

    @classmethod
    def stop_all(cls):
        for running in list(cls.living):
            running.stop()


def birth(pid):
    """When a process started: with its id it names the process for good."""
    fields = machine.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if fields else None


def free_port():
    return free_ports(1)[0]


#: Those given away: nobody may listen there yet, so that the next probe would find them free. Each has its lock file,
#: as the tests' have, which may run beside.
_given = {}


def _lock_port(port):
    """Its lock file, or None if somebody else has it."""
    directory = os.path.join(tempfile.gettempdir(), "cashew-test-ports")
    os.makedirs(directory, mode=0o777, exist_ok=True)
    lock = os.open(os.path.join(directory, str(port)), os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def free_ports(count):
    found = {}
    for port in random.sample(PORTS, 200 + 2 * count):
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        lock = _lock_port(port)
        if lock is None:
            continue
        found[port] = lock
        if len(found) == count:
            _given.update(found)
            return list(found)
    raise Broken("not enough free ports between 20000 and 32000")


def wait_ready(running, port, protocol, patience=10.0):
    """Waits until a GET is answered through this port."""
    requests = {
        "redis": (b"*2\r\n$3\r\nGET\r\n$14\r\nkey:0000000000\r\n", b"$"),
        "memcached": (b"get key:0000000000\r\n", (b"VALUE", b"END")),
    }
    request, answer = requests[protocol]
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        running.check()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=patience) as client:
                client.sendall(request)
                if client.recv(64).startswith(answer):
                    return
        except OSError:
            pass
        time.sleep(0.02)
    raise Broken(f"{running.name} did not answer on port {port} within {patience:.0f} s")
