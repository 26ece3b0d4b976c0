"""Networks of their own: hosts on one switch, each in a network namespace, which ends with the process that has it."""

import concurrent.futures
import ctypes
import json
import os
import shutil
import subprocess

import pytest

from harness import Process, wait_until

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def run(*words, status=0):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=20)
    assert done.returncode == status, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def needs_namespaces():
    """Skips where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    for tool in ("ip", "unshare", "nsenter"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    tried = subprocess.run(["unshare", "--net", "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"],
                           capture_output=True, text=True, timeout=20)
    if tried.returncode != 0:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()}")


class Host:
    """A namespace. What is started in it, and the namespace itself, ends with the test."""

    def __init__(self, place, name):
        self.place, self.name = place, name
        # Somebody has to be there as long as it lasts.
        self._holder = Process(["unshare", "--net", "sleep", "600"], place.directory, name)
        place.stack.callback(self._holder.kill)
        here = os.stat("/proc/self/ns/net").st_ino
        wait_until(lambda: os.stat(f"/proc/{self._holder.pid}/ns/net").st_ino != here, f"{name} is there")
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        place.stack.callback(self._thread.shutdown)
        self._thread.submit(self._enter).result(10)
        self.run("ip", "link", "set", "lo", "up")

    def _enter(self):
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            if _libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(descriptor)

    @property
    def path(self):
        return f"/proc/{self._holder.pid}/ns/net"

    def command(self, *words):
        return ["nsenter", f"--net={self.path}", *words]

    def run(self, *words, status=0):
        return run(*self.command(*words), status=status)

    def start(self, name, *words, ready=None):
        process = Process(self.command(*words), self.place.directory, f"{self.name}-{name}", ready)
        self.place.stack.callback(process.stop)
        return process

    def work(self, work):
        """Begins to run a function in this network, and returns its future."""
        return self._thread.submit(work)

    def addresses(self, device="eth0"):
        found = json.loads(self.run("ip", "-json", "address", "show", "dev", device))
        return {it["local"] for link in found for it in link["addr_info"] if it["family"] == "inet"}

    def hardware_address(self, device="eth0"):
        return json.loads(self.run("ip", "-json", "link", "show", "dev", device))[0]["address"]

    def neighbour(self, address):
        """The hardware address that this host holds to be that of its neighbour."""
        found = json.loads(self.run("ip", "-json", "neighbour", "show", "to", address) or "[]")
        return found[0].get("lladdr") if found else None


class Switch(Host):
    """The bridge that hosts are plugged into. It has an address, so that servers may be in it."""

    def __init__(self, place, address):
        super().__init__(place, "switch")
        # A port forwards at once: no spanning tree.
        self.run("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0", "stp_state", "0")
        self.run("ip", "address", "add", address, "dev", "br0")
        self.run("ip", "link", "set", "br0", "up")

    def host(self, name, address):
        host = Host(self.place, name)
        holder = host._holder.pid
        self.run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", holder)
        self.run("ip", "link", "set", f"to-{name}", "master", "br0", "up")
        host.run("ip", "address", "add", address, "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    def unplug(self, name):
        """The cable: both ends see that nothing is there."""
        self.run("ip", "link", "set", f"to-{name}", "down")

    def plug(self, name):
        self.run("ip", "link", "set", f"to-{name}", "up")

    def isolate(self, names, apart):
        """Whether these hosts, which reach all others, reach each other."""
        for name in names:
            self.run("ip", "link", "set", f"to-{name}", "type", "bridge_slave", "isolated", "on" if apart else "off")
