"""Reads whose server fails are sent again, and not so often that it is a burden."""

import signal
import threading
import time

from harness import HOST, FakeServer, ReplyError, resp, wait_until


class Reader(threading.Thread):
    """Reads in pipelines, and keeps what is not the answer."""

    def __init__(self, gateway):
        super().__init__()
        self.gateway, self.stopped, self.count, self.others = gateway, threading.Event(), 0, []

    def run(self):
        with self.gateway.connect(timeout=60) as conn:
            while not self.stopped.is_set():
                conn.send(resp("GET", "key") * 3)
                for _ in range(3):
                    try:
                        reply = conn.reply()
                    except ReplyError as error:
                        reply = error
                    self.count += 1
                    if reply != b"value":
                        self.others.append(str(reply))
                time.sleep(0.001)


def pool_of(gateway):
    return gateway.stats()["alpha"]


def test_a_server_that_is_killed_costs_no_read(place):
    primary = place.redis("--repl-diskless-sync-delay", "0")
    replicas = [place.redis("--replicaof", HOST, primary.port) for _ in range(2)]
    for replica in replicas:
        wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), "it has a copy")
    members = ", ".join(f"'{HOST}:{replica.port}'" for replica in replicas)
    gateway = place.cashew({"alpha": {
        "redis": True, "preconnect": True, "reads": "prefer_replica", "retry_reads": True,
        "servers": [f"{{name: s1, primary: '{HOST}:{primary.port}', replicas: [{members}]}}"],
    }}, {"worker_processes": 2})
    assert gateway.call("SET", "key", "value") == "OK"
    for replica in replicas:
        wait_until(lambda: replica.call("GET", "key") == b"value", "it has the key")
    readers = [Reader(gateway) for _ in range(4)]
    for reader in readers:
        reader.start()
    for _ in range(6):
        told = [reader.count for reader in readers]
        wait_until(lambda: all(it.count > before + 100 for it, before in zip(readers, told)), "they read")
        # So that reads are on their way there.
        replicas[0].process.signal(signal.SIGSTOP)
        time.sleep(0.05)
        replicas[0].process.kill()
        time.sleep(0.3)
        replicas[0].start()
        wait_until(lambda: b"master_link_status:up" in replicas[0].call("INFO", "replication"), "it is back")
    for reader in readers:
        reader.stopped.set()
    for reader in readers:
        reader.join()
    retried = pool_of(gateway)["requests_retried"]
    assert [reader.others[:3] for reader in readers] == [[]] * 4
    assert retried > 0 and pool_of(gateway)["retries_denied"] == 0
    assert "pool alpha: requests sent again: " in gateway.order("status").stdout


class Closing:
    """Takes a read, and closes the connection."""

    def __init__(self, place):
        self.reads = 0
        self.lock = threading.Lock()
        self.server = place.keep(FakeServer(self.serve))
        self.port = self.server.port

    def serve(self, client, _):
        with client.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"version"):
                    client.sendall(b"VERSION 1.6.18\r\n")
                    continue
                with self.lock:
                    self.reads += 1
                return


def test_servers_that_answer_nothing_are_asked_little_more(place):
    """A4.4: all errors for ten seconds."""
    servers = [Closing(place) for _ in range(2)]
    line = f"{{name: s1, primary: '{HOST}:{servers[0].port}', replicas: ['{HOST}:{servers[1].port}']}}"
    gateway = place.cashew({"alpha": {
        "reads": "any", "retry_reads": True, "timeout": 2000, "preconnect": True, "servers": [line],
    }}, {"worker_processes": 2})
    asked, seconds, until = [0] * 4, 10, time.monotonic() + 10

    def ask(number):
        with gateway.connect(timeout=60) as conn:
            while time.monotonic() < until:
                conn.send(b"get key\r\n")
                assert conn.read_line().startswith(b"SERVER_ERROR")
                asked[number] += 1

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: pool_of(gateway)["client_responses"] >= sum(asked), "all is counted")
    retried, denied = (pool_of(gateway)[name] for name in ("requests_retried", "retries_denied"))
    reads = sum(server.reads for server in servers)
    print(f"{sum(asked)} asked, {reads} reached a server, {retried} again, {denied} denied")
    assert 0 < retried <= 10 * (seconds + 2)
    assert denied > 0
    assert reads <= sum(asked) + 10 * (seconds + 2)
