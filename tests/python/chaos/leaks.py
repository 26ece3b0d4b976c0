"""What the gateway holds when it is at rest: descriptors, memory, connections, processes, shared memory."""

import collections
import contextlib
import os
from pathlib import Path

from harness import resident

CLOSE_WAIT = "08"
#: Bytes that a process may have more than before: allocators keep some, and rings are built anew by reloads.
MEMORY_SLACK = 48 << 20
#: Bytes of buffers that are kept for later, and of what a cache has.
BUFFERED_SLACK = 256 << 10
#: Connections to a server that may be there or not, as clients of one kind or another were there last.
LANES_SLACK = 12
SERVERS = 10


def kind_of(target):
    """Of a descriptor."""
    if target.startswith("socket:"):
        return "sockets"
    if target.startswith("/memfd:"):
        return "segments"
    if target.startswith("anon_inode:"):
        return target.partition(":")[2].strip("[]")
    return "pipes" if target.startswith("pipe:") else "files"


def descriptors(pid):
    """How many a process has of each kind, and the i-nodes of its shared memory."""
    kinds, segments = collections.Counter(), set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            target = os.readlink(path)
            kinds[kind_of(target)] += 1
            if target.startswith("/memfd:"):
                segments.add(os.stat(path).st_ino)
    return kinds, segments


def half_closed(pids):
    """Sockets whose other end has gone, and that nobody has closed."""
    left = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == CLOSE_WAIT:
            left.add(fields[9])
    found = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                found += os.readlink(path)[8:-1] in left
    return found


def everyone():
    """All processes of gateways that descend from this one, those too that their masters left behind."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (path / "stat").read_text()
            head, _, rest = stat.rpartition(")")
            state, parent = rest.split()[:2]
            if state not in "ZX":
                parents[int(path.name)] = int(parent)
                names[int(path.name)] = head.partition("(")[2]
    found, family = [], {os.getpid()}
    todo = [os.getpid()]
    while todo:
        of = todo.pop()
        for pid, parent in parents.items():
            if parent == of and pid not in family:
                family.add(pid)
                todo.append(pid)
    for pid in family - {os.getpid()}:
        if names[pid].startswith("cashew"):
            found.append(pid)
    return sorted(found)


def reap():
    """Children that the dead left to us, which is what makes them seen, end for good."""
    ended = []
    for pid in everyone_of_us():
        with contextlib.suppress(ChildProcessError, OSError):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.append((done, status))
    return ended


def everyone_of_us():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def snapshot(world):
    """What there is, by name; sums where there are several of a kind."""
    gateway = world.gateway
    found = {}
    roles = {"master": [gateway.pid], **{role: world.helpers(role) for role in ("worker", "admin", "discovery")}}
    segments = set()
    for role, pids in roles.items():
        found[f"{role}: processes"] = len(pids)
        kinds = collections.Counter()
        for pid in pids:
            of_it, its = descriptors(pid)
            kinds += of_it
            segments |= its
        for kind, count in kinds.items():
            found[f"{role}: {kind}"] = count
        found[f"{role}: memory"] = max((resident(pid) for pid in pids), default=0)
    found["processes"] = len(everyone())
    found["segments"] = len(segments)
    found["half closed"] = half_closed([pid for pids in roles.values() for pid in pids])
    stats = gateway.stats()
    for pool in world.gateway.pools:
        numbers = stats[pool]
        found[f"{pool}: clients"] = numbers["client_connections"]
        for name, server in numbers.items():
            if isinstance(server, dict) and "in_queue" in server:
                found[f"{pool}: waiting"] = found.get(f"{pool}: waiting", 0) + server["in_queue"] + server["out_queue"]
                found[f"{pool}: lanes"] = max(found.get(f"{pool}: lanes", 0), server["server_connections"])
    found["buffered"] = sum(worker["buffered_bytes"] for worker in stats["cashew"]["workers"])
    return found


def grown(before, after):
    """What there is more of than may be, in words."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, 0), after.get(name, 0)
        slack = 0
        if name.endswith(": memory"):
            slack = MEMORY_SLACK
        elif name == "buffered":
            slack = BUFFERED_SLACK
        elif name.endswith((": lanes", "worker: sockets")):
            slack = LANES_SLACK if name.endswith("lanes") else SERVERS * LANES_SLACK
        elif name.endswith((": processes", "processes")) and now < was:
            found.append(f"{name}: {now}, not {was}")
        if now > was + slack:
            found.append(f"{name}: {now}, not {was}")
    return found
