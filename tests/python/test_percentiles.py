"""Percentiles are those that are measured outside."""

import math
import random
import socket
import threading
import time

import pytest

from harness import HOST, free_port, wait_until

CLIENTS, ROUNDS = 20, 9
# A bucket is at most 2 % wide. Delays are so long that what the machine adds to them is far less than that.
TOLERANCE = 0.02


class LateServer:
    """Answers each request late by a time of a known distribution."""

    def __init__(self, delay):
        self.delay, self.port = delay, free_port()
        self.listener = socket.create_server((HOST, self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        with conn:
            buffer = b""
            while data := conn.recv(1 << 16):
                buffer += data
                while b"\r\n" in buffer:
                    line, buffer = buffer.split(b"\r\n", 1)
                    if line.startswith(b"get "):
                        time.sleep(self.delay())
                        conn.sendall(b"END\r\n")
                    else:
                        conn.sendall(b"VERSION 1.6.0\r\n")

    def close(self):
        self.listener.close()


def quantile(values, share):
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


@pytest.mark.alone
def test_percentiles_are_those_that_clients_measure(place):
    chance = random.Random(3)
    servers = [LateServer(lambda: chance.uniform(0.5, 2.0)) for _ in range(CLIENTS)]
    lines = [f"{HOST}:{server.port}:1" for server in servers]
    pools = {f"p{n}": {"command_stats": True, "preconnect": True, "servers": [line]} for n, line in enumerate(lines)}
    # A pool for each client, so that nobody waits for others.
    gateway = place.cashew(pools, {"worker_processes": 1})
    measured = [[] for _ in range(CLIENTS)]

    def ask(number):
        with gateway.connect(f"p{number}") as conn:
            # The connection is there before anything is measured.
            conn.send(b"version\r\n")
            conn.read_until(b"\r\n")
            for _ in range(ROUNDS):
                began = time.perf_counter()
                conn.send(b"get key\r\n")
                conn.read_until(b"END\r\n")
                measured[number].append(time.perf_counter() - began)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(CLIENTS):
        def told(number=number):
            found = gateway.stats()[f"p{number}"]["commands"]["get"]
            return found if found["requests"] == ROUNDS else None
        found = wait_until(told, "all are counted")
        for name, share in (("p50_us", 0.5), ("p99_us", 0.99)):
            outside = quantile(measured[number], share)
            assert found[name] / 1e6 == pytest.approx(outside, rel=TOLERANCE, abs=0.001), (number, name)
        assert found["latency_us"] / 1e6 == pytest.approx(sum(measured[number]), rel=TOLERANCE)
    for server in servers:
        server.close()
