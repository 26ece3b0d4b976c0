"""Counters only grow: under load, while the gateway reloads, resizes, upgrades and loses processes."""

import collections
import contextlib
import os
import signal
import threading
import time
import urllib.request
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

from harness import HOST, ReplyError, children, server_lines, wait_until, worker_processes
from test_upgrade import upgrade

START = "process_start_time_seconds"


def families(gateway):
    with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}/metrics", timeout=20) as page:
        return list(text_string_to_metric_families(page.read().decode()))


def numbers(found):
    return {(sample.name, *sorted(sample.labels.items())): (family.type, sample.value)
            for family in found for sample in family.samples}


class Watch:
    """Looks at all counters again and again, and notes those that fall."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.looks = 0
        self.highest = {}
        self.fallen = []
        self.born = {}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.look()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.look()

    def _run(self):
        while not self.ended.wait(0.02):
            # While the admin process is replaced nobody may answer, and who is slow to ask is taken for one that
            # asks for nothing.
            with contextlib.suppress(OSError, EOFError, HTTPException):
                self.look()

    def look(self):
        seen = numbers(families(self.gateway))
        self.looks += 1
        born = {key[1:]: value for key, (_, value) in seen.items() if key[0] == START}
        for key, (kind, value) in seen.items():
            if kind not in ("counter", "histogram"):
                continue
            # A process begins with nothing, and says so.
            is_another = key[0].startswith("process_") and self.born.get(key[1:]) != born[key[1:]]
            if value < self.highest.get(key, 0) and not is_another:
                self.fallen.append(f"{key}: {self.highest[key]} -> {value}")
            self.highest[key] = value
        self.born = born

    def check(self, what):
        """It has been looked at since, and nothing has fallen."""
        looks = self.looks
        wait_until(lambda: self.looks > looks + 5, "more looks")
        assert not self.fallen, (what, self.fallen[:20], len(self.fallen))

    def total(self, name, **labels):
        wanted = set(labels.items())
        return sum(value for key, value in self.highest.items() if key[0] == name and wanted <= set(key[1:]))


class Clients:
    """Clients that begin again when they lose their connection."""

    def __init__(self, gateway, count=4):
        self.gateway = gateway
        self.ended = threading.Event()
        self.done = collections.Counter()
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def _run(self, number):
        while not self.ended.is_set():
            with contextlib.suppress(OSError, EOFError, ReplyError), self.gateway.connect("alpha", 5) as conn:
                while not self.ended.is_set():
                    conn.call("SET", f"k{number}", "v" * 100)
                    conn.call("MGET", *(f"k{n}" for n in range(8)))
                    self.done[number] += 1
                    time.sleep(0.001)

    def turn(self):
        """Until each has got more replies."""
        before = dict(self.done)
        wait_until(lambda: all(self.done[n] > before.get(n, 0) + 5 for n in range(len(self.threads))),
                   "all clients get replies")


def test_no_counter_falls_whatever_happens_to_the_gateway(place):
    servers = [place.redis() for _ in range(2)]
    memcached = place.memcached()
    alpha = {"redis": True, "hash": "murmur", "servers": server_lines(servers, ["one", "two"])}
    beta = {"servers": server_lines([memcached], ["cache"])}
    gateway = place.cashew({"alpha": alpha, "beta": beta}, {"worker_processes": 2})
    gateway.wait_serving()
    more = {**alpha, "servers": server_lines([*servers, place.redis()], ["one", "two", "three"])}

    def reload_with_more():
        gateway.configure({"alpha": more, "gamma": {"redis": True, "servers": server_lines(servers[:1])},
                           "beta": beta})
        gateway.reload()

    def reload_with_less():
        gateway.configure({"alpha": alpha, "beta": beta})
        gateway.reload()

    def resize(count):
        gateway.configure(worker_processes=count)
        gateway.reload()
        wait_until(lambda: len(worker_processes(gateway.pid)) == count, f"{count} workers")

    def kill(pids):
        old = set(pids)
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not old & set(children(gateway.pid)), "they are gone")

    changes = [
        ("a reload", reload_with_more),
        ("a reload back", reload_with_less),
        ("more workers", lambda: resize(4)),
        ("an upgrade", lambda: upgrade(gateway)),
        ("fewer workers", lambda: resize(1)),
        ("another upgrade", lambda: upgrade(gateway, 1)),
        ("a killed worker", lambda: kill(worker_processes(gateway.pid)[:1])),
        ("a killed admin", lambda: kill(set(children(gateway.pid)) - set(worker_processes(gateway.pid)))),
    ]
    with Watch(gateway) as watch, Clients(gateway) as clients:
        for what, change in changes:
            clients.turn()
            before = watch.total("cashew_requests_total", pool="alpha")
            change()
            clients.turn()
            watch.check(what)
            # It grows on, as nothing would fall if nothing was counted.
            wait_until(lambda: watch.total("cashew_requests_total", pool="alpha") > before,
                       f"requests are counted after {what}")
    assert watch.total("cashew_restarts_total", role="worker") == 1
    assert watch.total("cashew_restarts_total", role="admin") == 1
    assert watch.total("cashew_reloads_total", result="ok") >= 4
    pool = {"pool": "alpha"}
    assert watch.total("cashew_client_received_bytes_total", **pool) > 0
    assert watch.total("cashew_client_sent_bytes_total", **pool) > 0
    # Not one request of the whole time is forgotten.
    assert watch.total("cashew_requests_total", **pool) >= 2 * sum(clients.done.values())


def test_bytes_of_clients(place):
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
                           {"worker_processes": 2})
    gateway.wait_serving()
    gateway.wait_empty()
    sent = received = 0

    def talk(request, reply):
        nonlocal sent, received
        conn.send(request)
        conn.expect(reply)
        sent, received = sent + len(request), received + len(reply)

    with gateway.connect() as conn:
        for size in (1, 100, 70_000, 3_000_000):
            value = b"x" * size
            talk(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%b\r\n" % (size, value), b"+OK\r\n")
            talk(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" * 3, b"$%d\r\n%b\r\n" % (size, value) * 3)
        talk(b"PING\r\n", b"+PONG\r\n")

    def counted():
        pool = gateway.stats()["alpha"]
        return pool["client_bytes_received"], pool["client_bytes_sent"]

    wait_until(lambda: counted() == (sent, received), f"{sent} and {received} bytes", 10)


def test_each_process_is_told_of(place):
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
                           {"worker_processes": 2})
    gateway.wait_serving()
    found = families(gateway)
    seen = {family.name: family for family in found}
    assert seen["cashew_build_info"].samples[0].labels["version"] == gateway.stats()["version"]
    workers = worker_processes(gateway.pid)
    admins = set(children(gateway.pid)) - set(workers)
    wanted = {("master", None): gateway.pid, ("admin", None): admins.pop()}
    for worker in gateway.stats()["cashew"]["workers"]:
        wanted["worker", str(worker["slot"])] = worker["pid"]
    assert len(wanted) == 4 and not admins

    def of(name):
        return {(sample.labels["role"], sample.labels.get("slot")): sample.value
                for sample in seen[name].samples}

    for name in ("process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds",
                 "process_max_fds", "process_start_time_seconds"):
        assert of(name).keys() == wanted.keys(), name
    for key, pid in wanted.items():
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        # It answers somebody just now.
        assert abs(of("process_open_fds")[key] - descriptors) <= 2, key
        assert of("process_max_fds")[key] >= descriptors
        assert abs(time.time() - of("process_start_time_seconds")[key]) < 60
        assert of("process_resident_memory_bytes")[key] > 1 << 20
        assert 0 <= of("process_cpu_seconds")[key] < 60


def test_a_single_process_is_told_of(place):
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
                           {"worker_processes": 0})
    gateway.wait_serving()
    samples = {family.name: family.samples for family in families(gateway)}[START]
    assert [sample.labels for sample in samples] == [{"role": "single"}]
