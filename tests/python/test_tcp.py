"""Pools with `protocol: tcp`: bytes pass through as they are, between each client and a server of its own."""

import contextlib
import hashlib
import os
import random
import signal
import socket
import ssl
import struct
import threading
import time

import pytest

from certificates import Authority
from harness import HOST, Conn, free_port, resp, said_to, wait_until, worker_processes
from test_upgrade import upgrade

MIB = 1 << 20
ENGINES = ["epoll", "uring"]


class Backend:
    """A server that has a thread for each connection, which `serve` gets."""

    def __init__(self, serve, port=None, name="backend"):
        self.serve, self.name = serve, name
        self.listener = socket.create_server((HOST, port or free_port()), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.served = 0
        self.open = set()
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.served += 1
                self.open.add(client)
            threading.Thread(target=self._run, args=(client,), daemon=True).start()

    def _run(self, client):
        with contextlib.suppress(OSError, AssertionError), client:
            self.serve(self, client)
        with self.lock:
            self.open.discard(client)

    def close(self):
        # Who waits in accept wakes up by that alone.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for client in self.open:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)


def echo(_, client):
    while data := client.recv(1 << 16):
        client.sendall(data)
    client.shutdown(socket.SHUT_WR)


def named(backend, client):
    client.sendall(backend.name.encode() + b"\n")
    echo(backend, client)


def tcp(*backends, weights=None, **options):
    weights = weights or [1] * len(backends)
    lines = [f"{HOST}:{it.port}:{weight} {it.name}" for it, weight in zip(backends, weights)]
    return {"protocol": "tcp", "servers": lines, **options}


def several(place, count, serve=named):
    return [place.keep(Backend(serve, name=f"s{number}")) for number in range(count)]


def connect(gateway, pool=None, **named):
    address = gateway.addresses[pool] if pool else gateway.address
    if isinstance(address, int):
        client = socket.create_connection((HOST, address), timeout=30)
    else:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(30)
        client.connect(str(address))
    return client


def exactly(client, size):
    parts, left = [], size
    while left:
        data = client.recv(min(left, 1 << 18))
        assert data, f"{left} of {size} bytes are missing"
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def line(client):
    data = b""
    while not data.endswith(b"\n"):
        byte = client.recv(1)
        if not byte:
            break
        data += byte
    return data.decode().strip()


def to_the_end(client):
    parts = []
    while data := client.recv(1 << 18):
        parts.append(data)
    return b"".join(parts)


def through(client, data):
    """What an echo makes of it."""
    if isinstance(client, ssl.SSLSocket):
        # Two threads must not have one of these.
        parts = []
        for at in range(0, len(data), 16_384):
            piece = data[at : at + 16_384]
            client.sendall(piece)
            parts.append(exactly(client, len(piece)))
        return b"".join(parts)
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    back = exactly(client, len(data))
    sender.join()
    return back


def who(gateway, count):
    """Which servers so many connections got, one after the other."""
    names = []
    for _ in range(count):
        with connect(gateway) as client:
            names.append(line(client))
    return names


def servers(gateway, pool="alpha"):
    return {name: it for name, it in gateway.stats()[pool].items()
            if isinstance(it, dict) and "server_eof" in it}


@pytest.mark.parametrize("io_engine", ENGINES)
def test_all_bytes_pass_and_ends_are_passed_on(place, io_engine):
    backend = place.keep(Backend(echo))
    gateway = place.cashew({"alpha": tcp(backend)},
                           {"worker_processes": 1, "io_engine": io_engine})
    data = random.Random(1).randbytes(16 * MIB + 17)
    with connect(gateway) as client:
        def send():
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        # The server ends its side only when ours has ended.
        assert hashlib.sha256(to_the_end(client)).digest() == hashlib.sha256(data).digest()
        sender.join()
    wait_until(lambda: not backend.open, "the server's connection is over")
    wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == 0, "no clients")
    stats = gateway.stats()["alpha"]
    assert stats["client_bytes_received"] == stats["client_bytes_sent"] == len(data)
    assert stats["connections_passed"] >= 1 and stats["client_err"] == 0
    server = stats["backend"]
    assert server["request_bytes"] == server["response_bytes"] == len(data)
    assert server["server_connections"] == 0 and server["connects"] >= 1
    assert gateway.held() == 0


def test_a_server_may_go_on_when_the_client_has_ended(place):
    def answer(_, client):
        asked = to_the_end(client)
        time.sleep(0.2)
        client.sendall(asked[::-1])

    backend = place.keep(Backend(answer))
    gateway = place.cashew({"alpha": tcp(backend)})
    with connect(gateway) as client:
        client.sendall(b"hello")
        client.shutdown(socket.SHUT_WR)
        assert to_the_end(client) == b"olleh"


@pytest.mark.parametrize("io_engine", ENGINES)
def test_resets_are_passed_on(place, io_engine):
    seen = []

    def reset(_, client):
        if client.recv(100) == b"reset me":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        try:
            seen.append(client.recv(100))
        except ConnectionResetError:
            seen.append("reset")

    backend = place.keep(Backend(reset))
    gateway = place.cashew({"alpha": tcp(backend)}, {"io_engine": io_engine})
    with connect(gateway) as client:
        client.sendall(b"reset me")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    client = connect(gateway)
    client.sendall(b"wait")
    wait_until(lambda: len(backend.open) == 1, "the server has it")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.1)
    client.close()
    # Whoever looked whether the gateway listens has ended in good order.
    wait_until(lambda: "reset" in seen, f"the server sees the reset: {seen}")


def test_redis_behind_it_is_as_without(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"protocol": "tcp", "servers": [f"{HOST}:{server.port}:1"]}})
    with Conn(gateway.address) as one, Conn(gateway.address) as other:
        assert one.call("CLIENT", "ID") != other.call("CLIENT", "ID")
        big = random.Random(2).randbytes(20 * MIB)
        assert one.call("SET", "big", big) == "OK"
        assert one.call("GET", "big") == big
        assert other.call("MONITOR") == "OK"
        one.send(resp("INCR", "n") * 5000)
        assert [one.reply() for _ in range(5000)] == list(range(1, 5001))
        assert all('"INCR" "n"' in other.reply() for _ in range(5000))
        one.send(resp("MULTI") + resp("SELECT", 3) + resp("SET", "a", "b") + resp("EXEC"))
        assert [one.reply() for _ in range(4)] == ["OK", "QUEUED", "QUEUED", ["OK", "OK"]]


def test_who_reads_slowly_bounds_who_sends(place):
    total = 96 * MIB
    piece = random.Random(3).randbytes(MIB)

    def blast(_, client):
        for _ in range(total // MIB):
            client.sendall(piece)

    backend = place.keep(Backend(blast))
    gateway = place.cashew({"alpha": tcp(backend)}, {"worker_processes": 1})
    with connect(gateway) as quick:
        exactly(quick, MIB)
    before = gateway.memory()
    clients = [connect(gateway) for _ in range(8)]
    wait_until(lambda: gateway.held() > 0, "something waits for clients that do not read")
    time.sleep(1)
    # A little more than 128 KiB each, and one read; buffers are twice as large at most.
    assert gateway.held() < 8 * MIB, gateway.held()
    assert gateway.memory() - before < 24 * MIB, gateway.memory() - before
    expected = hashlib.sha256(piece * (total // MIB)).digest()
    for client in clients[:2]:
        with client:
            assert hashlib.sha256(to_the_end(client)).digest() == expected
    for client in clients:
        client.close()
    wait_until(lambda: gateway.held() == 0, "nothing waits")


def test_sessions_that_fill_the_memory_are_closed_and_others_go_on(place):
    def stuff(_, client):
        while True:
            client.sendall(b"x" * 20_000)

    def small(sock):
        # What waits is in the gateway, and not in the kernel.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return sock

    backend = place.keep(Backend(stuff))
    small(backend.listener)
    redis = place.redis()
    gateway = place.cashew(
        {"alpha": tcp(backend), "beta": {"redis": True, "servers": [f"{HOST}:{redis.port}:1"]}},
        {"worker_processes": 1, "memory_max": "16mb", "worker_shutdown_timeout": 1})
    clients = []
    with Conn(gateway.addresses["beta"]) as other, contextlib.ExitStack() as stack:
        assert other.call("SET", "k", "v") == "OK"
        for _ in range(150):
            client = stack.enter_context(small(socket.socket()))
            client.connect((HOST, gateway.address))
            client.setblocking(False)
            clients.append(client)
        slowest, closed, end = 0, set(), time.monotonic() + 40
        while time.monotonic() < end:
            for client in clients:
                if client in closed:
                    continue
                try:
                    client.send(b"q" * 200_000)
                except BlockingIOError:
                    pass
                except OSError:
                    closed.add(client)
            began = time.monotonic()
            assert other.call("GET", "k") == b"v"
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.02)
            if closed:
                end = min(end, time.monotonic() + 2)
        stats = gateway.stats()
        assert closed and stats["alpha"]["clients_shed"] >= len(closed), stats["alpha"]["clients_shed"]
        assert stats["alpha"]["clients_throttled"] > 0
        assert stats["beta"]["clients_shed"] == 0
        # One read on top.
        assert gateway.held() <= 17 * MIB, gateway.held()
        assert slowest < 3, f"another pool answers after {slowest:.1f} s"


def test_turns_go_by_weights(place):
    backends = several(place, 3)
    gateway = place.cashew({"alpha": tcp(*backends, weights=[3, 2, 1])}, {"worker_processes": 1})
    names = who(gateway, 24)
    assert [names.count(it.name) for it in backends] == [12, 8, 4], names


@pytest.mark.parametrize("workers", [1, 3])
def test_the_fewest_connections(place, workers):
    backends = several(place, 3)
    gateway = place.cashew({"alpha": tcp(*backends, balance="least_connections")},
                           {"worker_processes": workers})
    gateway.wait_serving()
    wait_until(lambda: not any(it.open for it in backends), "probes have left")
    clients = [connect(gateway) for _ in range(30)]
    names = [line(client) for client in clients]
    counts = [names.count(it.name) for it in backends]
    assert max(counts) - min(counts) <= workers, counts
    for client, name in zip(clients, names):
        if name == "s1":
            client.close()
    wait_until(lambda: not backends[1].open, "the second server has none")
    wait_until(lambda: servers(gateway)["s1"]["server_connections"] == 0, "and is known to")
    assert who(gateway, 5) == ["s1"] * 5
    for client in clients:
        client.close()


def test_an_address_keeps_its_server(place):
    backends = several(place, 4)
    gateway = place.cashew({"alpha": tcp(*backends, balance="source")}, {"worker_processes": 2})
    gateway.wait_serving()

    def of(host):
        with socket.create_connection((HOST, gateway.address), 30, (host, 0)) as client:
            return line(client)

    hosts = [f"127.0.0.{number}" for number in range(2, 34)]
    first = {host: of(host) for host in hosts}
    assert len(set(first.values())) == 4
    assert {host: of(host) for host in hosts} == first
    gone = first[hosts[0]]
    next(it for it in backends if it.name == gone).close()
    now = {host: of(host) for host in hosts}
    assert all(now[host] == first[host] for host in hosts if first[host] != gone)
    assert gone not in now.values()


def test_another_server_is_tried_and_backups_wait(place):
    first, second, spare = several(place, 3)
    options = {"backup": ["s2"], "server_retry_timeout": 300, "server_failure_limit": 1}
    gateway = place.cashew({"alpha": tcp(first, second, spare, **options)},
                           {"worker_processes": 1})
    gateway.wait_serving()
    assert set(who(gateway, 10)) == {"s0", "s1"}
    first.close()
    assert who(gateway, 6) == ["s1"] * 6
    stats = gateway.stats()["alpha"]
    assert stats["connections_retried"] == 1, "the server is out after the first failure"
    assert stats["s0"]["connect_errors"] == 1
    second.close()
    assert who(gateway, 4) == ["s2"] * 4
    status = gateway.order("status").stdout
    assert "out" in status, status
    assert "server s1 fails" in gateway.log()
    back = place.keep(Backend(named, first.port, "s0"))
    wait_until(lambda: who(gateway, 1) == ["s0"], "the server is back")
    assert who(gateway, 4) == ["s0"] * 4
    wait_until(lambda: "server s0 answers again" in gateway.log(), "that is told")
    back.close()
    spare.close()
    # It may come before the client knows that it is connected.
    with pytest.raises(ConnectionResetError), connect(gateway) as client:
        client.recv(1)
    assert gateway.stats()["alpha"]["connections_failed"] == 1


def test_who_says_nothing_for_long_is_closed(place):
    backend = place.keep(Backend(echo))
    gateway = place.cashew({"alpha": tcp(backend, idle_timeout="1s")}, {"worker_processes": 1})
    with connect(gateway) as idle, connect(gateway) as busy:
        began = time.monotonic()
        for _ in range(9):
            busy.sendall(b"x")
            assert busy.recv(1) == b"x"
            time.sleep(0.2)
        idle.settimeout(5)
        assert idle.recv(1) == b""
        assert time.monotonic() - began < 3
    wait_until(lambda: gateway.stats()["alpha"]["connections_idle"] == 1, "that is counted")
    wait_until(lambda: not backend.open, "the servers' connections are over, too")


def test_connections_to_a_server_are_limited(place):
    backends = several(place, 2)
    options = {"server_connections_max": 3, "connection_wait": "2s"}
    gateway = place.cashew({"alpha": tcp(*backends, **options)}, {"worker_processes": 2})
    gateway.wait_serving()
    wait_until(lambda: not any(it.open for it in backends), "probes have left")
    clients = [connect(gateway) for _ in range(6)]
    for client in clients:
        line(client)
    late, lost = connect(gateway), connect(gateway)
    time.sleep(0.3)
    assert sum(len(it.open) for it in backends) == 6
    clients[0].close()
    began = time.monotonic()
    waiting = [late, lost]
    for client in (late, lost):
        client.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            line(client)
            waiting.remove(client)
    assert len(waiting) == 1, "one place became free"
    assert sum(len(it.open) for it in backends) == 6
    waiting[0].settimeout(5)
    with pytest.raises(ConnectionResetError):
        waiting[0].recv(1)
    assert time.monotonic() - began < 4
    stats = gateway.stats()["alpha"]
    assert stats["connections_waited"] == 2 and stats["connections_failed"] == 1
    for client in [*clients, late, lost]:
        client.close()


def test_as_many_clients_as_there_may_be(place):
    backend = place.keep(Backend(named))
    gateway = place.cashew({"alpha": tcp(backend, client_connections=2)}, {"worker_processes": 2})
    gateway.wait_serving()
    gateway.wait_empty()
    with connect(gateway) as one, connect(gateway) as other:
        assert line(one) == line(other) == "backend"
        with connect(gateway) as third:
            third.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert third.recv(1) == b""
        assert gateway.stats()["alpha"]["clients_refused"] == 1


class Transfers:
    """Clients that send and receive all the time, and know what they are to get."""

    def __init__(self, gateway, count, wrap=lambda client: client):
        self.stopped = threading.Event()
        self.failures = []
        self.bytes = 0
        self.turns = [0] * count
        self.threads = [threading.Thread(target=self._run, args=(gateway, number, wrap))
                        for number in range(count)]
        for thread in self.threads:
            thread.start()

    def _run(self, gateway, number, wrap):
        rng = random.Random(number)
        try:
            with wrap(connect(gateway)) as client:
                while not self.stopped.is_set():
                    data = rng.randbytes(rng.choice([1, 100, 5000, 70_000, MIB]))
                    back = through(client, data)
                    assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()
                    self.bytes += len(data)
                    self.turns[number] += 1
        except Exception as error:  # told by check()
            self.failures.append(f"{number}: {error!r} after {self.turns[number]} turns")

    def turn(self):
        """Everybody has got something since."""
        before = list(self.turns)
        wait_until(lambda: self.failures or all(now > then + 1 for now, then
                                                in zip(self.turns, before)), "all go on")
        self.check()

    def check(self):
        assert not self.failures, self.failures

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        self.check()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("io_engine", ENGINES)
def test_transfers_survive_reload_resize_and_upgrade(place, io_engine):
    backends = several(place, 2, echo)
    gateway = place.cashew({"alpha": tcp(*backends)},
                           {"worker_processes": 3, "io_engine": io_engine})
    gateway.wait_serving()
    with Transfers(gateway, 8) as transfers, connect(gateway) as idle:
        transfers.turn()
        served = sum(it.served for it in backends)
        gateway.configure({"alpha": tcp(*backends, idle_timeout="2h", balance="random")})
        gateway.reload()
        transfers.turn()
        for workers in (1, 2):
            gateway.configure(worker_processes=workers)
            gateway.reload()
            wait_until(lambda: len(worker_processes(gateway.pid)) == workers, "they are so many")
            transfers.turn()
        for number in range(3):
            upgrade(gateway, number)
            transfers.turn()
        # A server that is removed keeps the connections that it has.
        gateway.configure({"alpha": tcp(backends[0])})
        gateway.reload()
        transfers.turn()
        idle.sendall(b"still here")
        assert exactly(idle, 10) == b"still here"
        transfers.stop()
        stats = gateway.stats()
        assert sum(it.served for it in backends) == served, "nobody was connected anew"
    assert sum(it["sessions_cut"] for it in stats["cashew"]["workers"]) == 0
    wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == 0, "no clients")
    wait_until(lambda: not any(it.open for it in backends), "no connections to servers")
    assert gateway.stats()["alpha"]["client_err"] == 0


def test_half_closed_sessions_survive_an_upgrade(place):
    go = threading.Event()

    def answer(_, client):
        asked = to_the_end(client)
        go.wait(30)
        client.sendall(asked * 2)

    backend = place.keep(Backend(answer))
    gateway = place.cashew({"alpha": tcp(backend)}, {"worker_processes": 1})
    with connect(gateway) as client:
        client.sendall(b"ab")
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: gateway.stats()["alpha"]["backend"]["request_bytes"] == 2, "it passed")
        upgrade(gateway)
        go.set()
        assert to_the_end(client) == b"abab"


def test_a_pool_that_is_removed_keeps_its_sessions_for_a_while(place):
    backend = place.keep(Backend(echo))
    pools = {"alpha": tcp(backend), "beta": tcp(backend)}
    gateway = place.cashew(pools, {"worker_processes": 1, "worker_shutdown_timeout": 2})
    with connect(gateway, "beta") as client:
        client.sendall(b"1")
        assert client.recv(1) == b"1"
        gateway.configure({"alpha": pools["alpha"]})
        gateway.reload()
        client.sendall(b"2")
        assert client.recv(1) == b"2"
        client.settimeout(10)
        assert client.recv(1) == b""


@pytest.mark.parametrize("io_engine", ENGINES)
def test_what_waits_for_slow_readers_survives(place, io_engine):
    data = random.Random(5).randbytes(24 * MIB)
    go = threading.Event()
    got = []

    def blast(_, client):
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""

    def listen_late(_, client):
        # It has a little room for what it does not read.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        go.wait(60)
        got.append(to_the_end(client))

    source, sink = place.keep(Backend(blast)), place.keep(Backend(listen_late))
    pools = {"alpha": tcp(source), "beta": tcp(sink)}
    gateway = place.cashew(pools, {"worker_processes": 1, "io_engine": io_engine})
    gateway.wait_serving()
    reader, writer = connect(gateway, "alpha"), connect(gateway, "beta")
    with reader, writer:
        heard = exactly(reader, MIB)
        writer.setblocking(False)
        said = 0
        # Until nobody takes any more.
        while said < len(data):
            try:
                said += writer.send(data[said : said + MIB])
            except BlockingIOError:
                time.sleep(0.3)
                with contextlib.suppress(BlockingIOError):
                    said += writer.send(data[said : said + MIB])
                    continue
                break
        assert said < len(data), "it is waited for the server"
        stats = gateway.stats()["beta"]
        assert stats["client_bytes_received"] > stats["backend"]["request_bytes"]
        for workers in (2, 1):
            gateway.configure(worker_processes=workers)
            gateway.reload()
            wait_until(lambda: len(worker_processes(gateway.pid)) == workers, "they are so many")
        for number in range(2):
            upgrade(gateway, number)
        wait_until(lambda: gateway.held() > 0, "the bytes that wait have come along")
        assert gateway.held() < 2 * MIB, gateway.held()
        writer.setblocking(True)
        go.set()
        writer.sendall(data[said:])
        writer.shutdown(socket.SHUT_WR)
        heard += to_the_end(reader)
        assert heard == data
        wait_until(lambda: got and got[-1] == data, "the server has everything, and the end")
    assert sum(it["sessions_cut"] for it in gateway.stats()["cashew"]["workers"]) == 0


def test_no_descriptor_is_left_however_sessions_end(place):
    def obey(_, client):
        while word := client.recv(1):
            if word == b"r":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if word == b"e":
                return
            client.sendall(word)

    backend = place.keep(Backend(obey))
    dead = place.keep(Backend(obey))
    dead.close()
    pools = {"alpha": tcp(backend, server_connections_max=40, connection_wait="100ms"),
             "beta": tcp(dead)}
    gateway = place.cashew(pools, {"worker_processes": 1})
    gateway.wait_serving()
    gateway.wait_empty()
    (worker,) = worker_processes(gateway.pid)

    def descriptors():
        return len(os.listdir(f"/proc/{worker}/fd"))

    wait_until(lambda: not backend.open, "probes have left")
    before = descriptors()
    for _ in range(3):
        clients = [connect(gateway) for _ in range(60)]
        for _ in range(10):
            # Who is reset at once may see it while it connects.
            with contextlib.suppress(ConnectionResetError):
                clients.append(connect(gateway, "beta"))
        time.sleep(0.2)
        assert descriptors() >= before + 80
        for number, client in enumerate(clients):
            with client, contextlib.suppress(ConnectionError, TimeoutError):
                client.settimeout(5)
                client.sendall([b"r", b"e", b"x", b"x"][number % 4])
                if number % 4 == 2:
                    client.shutdown(socket.SHUT_WR)
                if number % 4 < 3:
                    to_the_end(client)
                elif number % 8 == 3:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: descriptors() <= before, "all are closed")
    stats = gateway.stats()
    assert stats["alpha"]["backend"]["server_connections"] == 0
    assert stats["alpha"]["client_connections"] == stats["beta"]["client_connections"] == 0
    assert stats["alpha"]["connections_failed"] >= 3, "some found no place"


def test_a_drained_server_gets_no_connections_and_keeps_those_it_has(place):
    backends = several(place, 3)
    gateway = place.cashew({"alpha": tcp(*backends)}, {"worker_processes": 2})
    gateway.wait_serving()
    clients = [connect(gateway) for _ in range(12)]
    names = [line(client) for client in clients]
    assert set(names) == {"s0", "s1", "s2"}
    done = gateway.order("weight", "alpha", "s1", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "new connections" in done.stdout + done.stderr
    assert set(who(gateway, 12)) == {"s0", "s2"}
    for client, name in zip(clients, names):
        client.sendall(name.encode())
        assert exactly(client, len(name)) == name.encode(), "those that it has go on"
        client.close()
    assert "drained" in gateway.order("status").stdout
    assert gateway.order("weight", "alpha", "s1", "100").returncode == 0
    assert set(who(gateway, 12)) == {"s0", "s1", "s2"}


def test_health_is_the_gateways_and_not_the_servers(place):
    backend = place.keep(Backend(echo))
    gateway = place.cashew({"alpha": tcp(backend)}, {"worker_processes": 1})
    gateway.wait_serving()
    assert gateway.order("health").returncode == 0
    backend.close()
    assert gateway.order("health").returncode == 0, "the gateway is there, and says so"
    (worker,) = worker_processes(gateway.pid)
    os.kill(worker, signal.SIGSTOP)
    try:
        said = gateway.order("health")
    finally:
        os.kill(worker, signal.SIGCONT)
    assert said.returncode == 1 and "no answer within 500 ms" in said.stdout + said.stderr


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_servers_are_told_whose_connections_they_get(place, version):
    seen = []

    def header(_, client):
        if version == "v1":
            told = line(client)
        else:
            start = exactly(client, 16)
            assert start[:12] == b"\r\n\r\n\0\r\nQUIT\n" and start[12] == 0x21
            told = (start[13], exactly(client, int.from_bytes(start[14:16], "big")))
        # Whoever only looks whether the gateway listens says nothing.
        if data := client.recv(100):
            seen.append(told)
            client.sendall(data)

    backend = place.keep(Backend(header))
    unix = str(place.directory / "beta.sock")
    pools = {"alpha": tcp(backend, send_proxy=version),
             "beta": tcp(backend, send_proxy=version, listen=unix),
             "gamma": tcp(backend, send_proxy=version, proxy_protocol="true")}
    gateway = place.cashew(pools, {"worker_processes": 1})
    with connect(gateway) as client:
        client.sendall(b"hello")
        assert exactly(client, 5) == b"hello"
        port = client.getsockname()[1]
    with connect(gateway, "beta") as client:
        client.sendall(b"hello")
        assert exactly(client, 5) == b"hello"
    with connect(gateway, "gamma") as client:
        client.sendall(b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\nhello")
        assert exactly(client, 5) == b"hello"
    hosts = socket.inet_aton(HOST) * 2
    told = socket.inet_aton("192.0.2.1") + socket.inet_aton("192.0.2.2")
    expected = {
        "v1": [f"PROXY TCP4 {HOST} {HOST} {port} {gateway.address}", "PROXY UNKNOWN",
               "PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000"],
        "v2": [(0x11, hosts + struct.pack("!HH", port, gateway.address)), (0, b""),
               (0x11, told + struct.pack("!HH", 1000, 2000))],
    }
    assert seen == expected[version]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_checks_tell_servers_what_they_are(place, version):
    seen = []
    backend = place.keep(Backend(lambda _, client: seen.append(to_the_end(client))))
    options = {"send_proxy": version, "server_check_interval": 100}
    gateway = place.cashew({"alpha": tcp(backend, **options)}, {"worker_processes": 1})
    gateway.wait_serving()
    # Whoever has looked whether the gateway listens is over.
    wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == 0, "no clients")
    time.sleep(0.3)
    seen.clear()
    wait_until(lambda: len(seen) >= 5, "it is checked")
    local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"
    assert set(seen) == {b"PROXY UNKNOWN\r\n" if version == "v1" else local}
    state = servers(gateway)["backend"]
    assert state["connects"] >= 5 and state["connect_errors"] == 0


@pytest.mark.parametrize("io_engine", ENGINES)
def test_tls_on_either_side(place, io_engine):
    authority = Authority(place.directory)
    pair = authority.sign(f"DNS:localhost,IP:{HOST}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    def secure(_, client):
        with context.wrap_socket(client, server_side=True) as client:
            while data := client.recv(1 << 16):
                client.sendall(data)
            client.unwrap()

    plain, secured = place.keep(Backend(echo)), place.keep(Backend(secure))
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    server_tls = {"ca": str(authority.ca)}
    pools = {"alpha": tcp(plain, tls=tls), "beta": tcp(secured, server_tls=server_tls),
             "gamma": tcp(secured, tls=tls, server_tls=server_tls)}
    gateway = place.cashew(pools, {"worker_processes": 1, "io_engine": io_engine})
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    data = random.Random(4).randbytes(4 * MIB)
    for pool in pools:
        client = connect(gateway, pool)
        if pool != "beta":
            client = trusting.wrap_socket(client, server_hostname="localhost")
        with client:
            assert through(client, data) == data
    stats = gateway.stats()
    assert stats["gamma"]["tls_handshakes"] == 1
    assert stats["beta"]["backend"]["tls_handshakes"] >= 1
    assert stats["alpha"]["connections_failed"] == 0


@pytest.mark.parametrize("versions", ["1.2", "1.3"])
def test_sessions_with_tls_survive_an_upgrade(place, versions):
    authority = Authority(place.directory)
    pair = authority.sign(f"DNS:localhost,IP:{HOST}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    if versions == "1.2":
        context.maximum_version = trusting.maximum_version = ssl.TLSVersion.TLSv1_2

    def secure(_, client):
        with context.wrap_socket(client, server_side=True) as client:
            echo(_, client)

    backend = place.keep(Backend(secure))
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    pool = tcp(backend, tls=tls, server_tls={"ca": str(authority.ca)})
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    gateway.wait_serving()

    def wrap(client):
        return trusting.wrap_socket(client, server_hostname="localhost")

    with Transfers(gateway, 3, wrap) as transfers:
        transfers.turn()
        served = backend.served
        for number in range(2):
            upgrade(gateway, number)
            transfers.turn()
        transfers.stop()
        assert backend.served == served
    assert sum(it["sessions_cut"] for it in gateway.stats()["cashew"]["workers"]) == 0


def test_checks_take_servers_out_and_back(place):
    backends = several(place, 2)
    options = {"server_check_interval": 100, "server_failure_limit": 2, "server_rise": 3}
    gateway = place.cashew({"alpha": tcp(*backends, **options)}, {"worker_processes": 2})
    gateway.wait_serving()

    def state(name):
        return servers(gateway)[name]

    wait_until(lambda: backends[0].served > 3 and backends[1].served > 3, "they are checked")
    backends[0].close()
    wait_until(lambda: "server s0 fails" in gateway.log() and "it is out" in gateway.log(),
               "the server is out without any client")
    retried = gateway.stats()["alpha"]["connections_retried"]
    assert who(gateway, 6) == ["s1"] * 6
    assert gateway.stats()["alpha"]["connections_retried"] == retried
    place.keep(Backend(named, backends[0].port, "s0"))
    wait_until(lambda: "server s0 answers again" in gateway.log(), "it is back")
    assert set(who(gateway, 6)) == {"s0", "s1"}
    assert state("s0")["connect_errors"] >= 2
    events = gateway.order("events").stdout
    assert "server_down" in events and "server_up" in events, events


def test_what_such_a_pool_has_not_is_refused(place):
    backend = place.keep(Backend(echo))
    gateway = place.cashew({"alpha": tcp(backend)}, {"worker_processes": 1})
    for options, words in [
        ({"timeout": 400}, 'option "timeout" is not valid for a pool with "protocol: tcp"'),
        ({"hash": "md5"}, 'option "hash" is not valid for a pool with "protocol: tcp"'),
        ({"balance": "fair"}, '"fair" is not a valid way to balance connections'),
        ({"backup": ["nobody"]}, 'the pool has no server "nobody"'),
        ({"backup": ["backend"]}, "all servers of the pool are backups"),
        ({"redis": True}, 'a pool with "protocol: tcp" cannot be "redis: true"'),
    ]:
        gateway.configure({"alpha": tcp(backend, **options)})
        said = gateway.refused_reload()
        assert words in said, said
    gateway.configure({"alpha": {"servers": [f"{HOST}:{backend.port}:1"], "balance": "random"}})
    assert "only valid for a pool with" in gateway.refused_reload()
    gateway.configure({"alpha": tcp(backend)})
    route = f"routes:\n  all: {{listen: '{HOST}:{free_port()}', route: alpha}}\n"
    before = gateway.config_path.read_text()
    gateway.config_path.write_text(before + route)
    assert "no route leads there" in gateway.refused_reload()
    gateway.config_path.write_text(before)
    done = gateway.order("route", "--pool", "alpha", "key")
    assert done.returncode == 1 and "knows no keys" in done.stdout + done.stderr


def test_numbers_and_metrics_tell_of_it(place):
    backend = place.keep(Backend(named))
    gateway = place.cashew({"alpha": tcp(backend)}, {"worker_processes": 1})
    assert who(gateway, 3) == ["backend"] * 3
    wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == 0, "no clients")
    metrics = said_to(gateway.stats_address, b"GET /metrics HTTP/1.0\r\n\r\n").decode()
    assert 'cashew_connections_passed_total{pool="alpha"}' in metrics
    assert "cashew_server_connect_microseconds_total{" in metrics
    status = gateway.order("status").stdout
    assert "alpha" in status
