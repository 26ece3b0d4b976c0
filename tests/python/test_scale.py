"""What workers share: nothing that a request writes."""

import os
import signal
import struct
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import children, holders, resp, server_lines, wait_until

#: Two lines: processors fetch them in pairs.
LINE = 128
PAGE = 4096
#: Parts of whole pages: one for each worker that there is room for, and discovery's.
SEGMENTS = 256 + 1
#: Where a worker's process id is in its part of the metrics.
PID = 0
#: Within this time a worker renews its heartbeat.
HEARTBEAT = 0.6


def sockets(pid):
    """The inodes of the sockets that a process holds."""
    targets = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(os.readlink(descriptor))
        except OSError:
            pass  # closed meanwhile
    return {target for target in targets if target.startswith("socket:")}


def shared_mappings(pid):
    """What a process maps to share it, and may write: inode -> name, size in bytes.

    Without io_uring's queues: they are shared with the kernel, and all have the same inode.
    """
    found = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights, _, device, inode, *name = line.split(maxsplit=5)
        name = "".join(name).strip()
        if "w" in rights and "s" in rights and not name.startswith("anon_inode:"):
            start, end = (int(address, 16) for address in place.split("-"))
            found[device, inode] = name.split()[0], end - start
    return found


def memory(pid, name):
    """The content of memory that all workers map."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(descriptor).startswith(f"/memfd:{name}"):
            return descriptor.read_bytes()
    raise AssertionError(f"the master has no {name}")


def metrics(pid):
    """The content of the memory that the metrics of all workers are in."""
    return memory(pid, "cashew-metrics")


@contextmanager
def stopped(*pids):
    """These processes do nothing meanwhile."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(state(pid) == "T" for pid in pids), f"{pids} stopped")
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def serve(conn, requests=1000):
    load = b"".join(resp("SET", f"key{n}", n) + resp("GET", f"key{n}") for n in range(requests // 2))
    conn.send(load)
    for n in range(requests // 2):
        assert (conn.reply(), conn.reply()) == ("OK", str(n).encode())


@pytest.mark.alone
def test_workers_write_nothing_that_others_read(place):
    servers = [place.redis(), place.redis()]
    pools = {
        name: {"redis": True, "servers": server_lines(servers), "client_connections": 1000,
               # All workers write slow requests to one list; a pipeline like this one's is slow without optimization.
               "slow_log": "1h"}
        for name in ("alpha", "beta")
    }
    gateway = place.cashew(pools, {"worker_processes": 2})
    conns = {}

    def both_have_clients():
        conn = place.keep(gateway.connect())
        assert conn.call("PING") == "PONG"
        port = conn.socket.getsockname()[1]
        conns.setdefault(holders(gateway.workers(), {port})[port], conn)
        return len(conns) == 2

    wait_until(both_have_clients, "a client of each worker", pause=0)
    workers = gateway.workers()
    assert len(workers) == 2

    first, second = (shared_mappings(pid) for pid in workers)
    shared = dict(first[inode] for inode in first.keys() & second.keys())
    assert set(shared) == {"/memfd:cashew-metrics", "/memfd:cashew-shared"}
    assert not sockets(workers[0]) & sockets(workers[1])

    size = len(metrics(gateway.pid))
    assert shared["/memfd:cashew-metrics"] == size
    # What all have in common comes first: a page, and one with the states of these few servers.
    common_size = 2 * PAGE
    segment, rest = divmod(size - common_size, SEGMENTS)
    assert rest == 0 and segment % PAGE == 0

    def segment_of(pid):
        numbers = metrics(gateway.pid)
        starts = range(common_size, size, segment)
        return next(at for at in starts if struct.unpack_from("=Q", numbers, at + PID)[0] == pid)

    for busy, conn in conns.items():
        serve(conn)  # so that it is connected to the servers
        own = segment_of(busy)
        with stopped(gateway.pid, *(pid for pid in children(gateway.pid) if pid != busy)):
            common = memory(gateway.pid, "cashew-shared")
            before = metrics(gateway.pid)
            serve(conn)
            time.sleep(HEARTBEAT)
            after = metrics(gateway.pid)
            assert memory(gateway.pid, "cashew-shared") == common
        lines = [at for at in range(0, size, LINE) if before[at:at + LINE] != after[at:at + LINE]]
        assert lines, "what a worker serves is counted"
        assert all(own <= at < own + segment for at in lines)
