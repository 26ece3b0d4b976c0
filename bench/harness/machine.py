"""What the kernel tells about processes and about the machine: CPU time, memory, versions."""

import contextlib
import os
import re
import shutil
import subprocess
import time

PACKAGES = {
    "redis-server": "redis-server",
    "memcached": "memcached",
    "nutcracker": "nutcracker",
    "haproxy": "haproxy",
    "stunnel": "stunnel4",
    "redis-benchmark": "redis-tools",
    "gcc": "gcc",
    "valgrind": "valgrind",
    "cargo": "cargo",
}
#: Threads of the kernel that send, receive and free what others have asked them to.
HELPERS = ("ksoftirqd/", "kworker/", "rcu")
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """Something that the benchmark needs is not on this machine."""


def tool(name):
    """The path of a program, wherever Debian puts it."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Missing(f"{name} is missing; on Debian: apt-get install {PACKAGES.get(name, name)}")
    return path


def read(path):
    """A file's text, or nothing when its process has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def parents():
    """Process id -> parent's id of everything that runs."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = read(f"/proc/{entry}/stat")
            if stat:
                table[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    return table


def tree(pid):
    """A process and all its descendants."""
    table = parents()
    found = [pid]
    for ancestor in found:
        found.extend(child for child, parent in table.items() if parent == ancestor)
    return found


def cpu_ns(pid):
    """User and system time of a process with all its threads, ended ones too, in nanoseconds.

    The process's own CPU clock: exact at this instant, unlike /proc/PID/stat, which counts in
    hundredths of a second, and schedstat, which lags by a tick while a thread runs.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def busy_ns():
    """CPU time spent by anybody on this machine (or stolen from it), from /proc/stat."""
    fields = [int(field) for field in read("/proc/stat").split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) * TICK_NS


def strangers(ours):
    """Processes that are not ours, but for the kernel's own that work for everybody's requests."""
    return [
        pid
        for pid in parents().keys() - set(ours)
        if not read(f"/proc/{pid}/comm").startswith(HELPERS)
    ]


def cpu_of_each(pids):
    """CPU time of each of some processes, without those that have ended."""
    times = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            times[pid] = cpu_ns(pid)
    return times


def switches(pid):
    """Voluntary and involuntary context switches of a process."""
    counts = [0, 0]
    for task in tasks(pid):
        status = read(f"/proc/{pid}/task/{task}/status")
        for index, name in enumerate(("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")):
            counts[index] += number_after(status, name)
    return counts


def tasks(pid):
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def number_after(text, name):
    match = re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)
    return int(match.group(1)) if match else 0


def memory_kib(pids):
    """Resident memory of some processes, what they share counted once, and its peak.

    Pss divides shared pages among those who share them; a peak exists only as resident size, so
    what is shared now is taken off the peak too.
    """
    pss = rss = peak = 0
    for pid in pids:
        pss += number_after(read(f"/proc/{pid}/smaps_rollup"), "Pss")
        status = read(f"/proc/{pid}/status")
        rss += number_after(status, "VmRSS")
        peak += number_after(status, "VmHWM")
    shared = max(rss - pss, 0) if len(pids) > 1 else 0
    return {"now": pss, "peak": peak - shared}


def pin(pid, cpus):
    """Moves a process with all its threads to some CPUs."""
    for task in tasks(pid):
        try:
            os.sched_setaffinity(int(task), cpus)
        except ProcessLookupError:
            pass


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return ((done.stdout + done.stderr).strip().splitlines() or ["unknown"])[0]


def stall_summary(reports):
    """What the watched processors lost, together; shares are of the time of all of them."""
    seconds = sum(each["seconds"] for each in reports)
    return {
        "share": sum(each["lost_ms"] for each in reports) / 1000 / seconds,
        "per_second": sum(each["stalls"] for each in reports) / seconds,
        "longest_ms": max(each["longest_ms"] for each in reports),
        "elsewhere_share": sum(each["elsewhere_ms"] for each in reports) / 1000 / seconds,
    }


def describe():
    """The machine, for the report."""
    model = re.search(r"^model name\s*:\s*(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="(.*)"$', read("/etc/os-release"), re.MULTILINE)
    return {
        "cpu": model.group(1) if model else "unknown",
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
        "system": system.group(1) if system else "unknown",
        "congestion_control": read("/proc/sys/net/ipv4/tcp_congestion_control").strip() or "unknown",
        "load_average": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
