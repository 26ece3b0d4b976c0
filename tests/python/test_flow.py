"""No client holds others up: slow ones, those that make the gateway hold much, and those whose values
turn out to be large."""

import contextlib
import re
import socket
import threading
import time

import pytest

from harness import HOST, resp, server_lines, wait_until

# What others have to wait depends on who may run.
pytestmark = pytest.mark.alone

MIB = 1 << 20


class Watch:
    """A client that asks for something small again and again, and how long it waits."""

    def __init__(self, gateway, pool=None, request=None, seconds=20):
        self.conn = gateway.connect(pool, timeout=seconds)
        self.request = request or resp("GET", "none")
        self.waits = []
        self.error = None
        self.running = True
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            while self.running:
                began = time.monotonic()
                self.conn.send(self.request)
                self.conn.raw_reply()
                self.waits.append(time.monotonic() - began)
                time.sleep(0.002)
        except (AssertionError, OSError, EOFError) as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.running = False
        self.thread.join(30)
        self.conn.close()

    def share_above(self, limit):
        """Of the time, spent in waits longer than this."""
        return sum(wait for wait in self.waits if wait > limit) / max(sum(self.waits), 0.001)


def bare(address, receive=None):
    """A socket that reads nothing unless somebody does."""
    client = socket.socket()
    if receive:
        # As little as possible waits in the kernel.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    client.settimeout(5)
    client.connect((HOST, address))
    return client


class Crowd:
    """So many clients that say something, do not read, and come again when they are closed."""

    def __init__(self, address, count, request):
        self.address, self.request = address, request
        self.clients = [self._new() for _ in range(count)]
        self.running = True
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _new(self):
        client = bare(self.address, receive=4096)
        client.sendall(self.request)
        client.setblocking(False)
        return client

    def _run(self):
        while self.running:
            for at, client in enumerate(self.clients):
                try:
                    client.send(b"")
                    ended = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
                    # At its end there is nothing behind what waits, which is not looked at.
                    ended = ended or self._has_hung_up(client)
                except OSError:
                    ended = True
                if ended:
                    client.close()
                    with contextlib.suppress(OSError):
                        self.clients[at] = self._new()
            time.sleep(0.05)

    @staticmethod
    def _has_hung_up(client):
        # tcp(7): the first byte of TCP_INFO is the state, 1 while it is established.
        return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.running = False
        self.thread.join(30)
        for client in self.clients:
            client.close()


# ------------------------------------------------------------------------------------ memory


def test_who_lets_replies_pile_up_stalls_no_other_pool(place):
    """Clients that leave what they asked for unread make the worker hold all that it may."""
    greedy, calm = place.redis(), place.redis()
    gateway = place.cashew(
        {"greedy": {"redis": True, "servers": server_lines([greedy])},
         "calm": {"redis": True, "servers": server_lines([calm])}},
        {"worker_processes": 1, "memory_max": "64mb"})
    keys = [f"key:{n}" for n in range(20)]
    for key in keys:
        greedy.call("SET", key, "x" * 200_000)
    request = resp("MGET", *keys) * 4
    with gateway.connect("greedy") as neighbour, gateway.connect("calm") as far:
        assert far.call("SET", "a", "b") == "OK"
        with Watch(gateway, "calm") as watch, \
                Crowd(gateway.addresses["greedy"], 24, request):
            wait_until(lambda: gateway.stats()["cashew"]["workers"][0]["memory_pressed"] > 0,
                       "too much is held")
            time.sleep(4)
        share = watch.share_above(0.1)
        assert watch.error is None and share < 0.2, (watch.error, share, max(watch.waits))
        assert far.call("GET", "a") == b"b"
        stats = gateway.stats()
        assert stats["greedy"]["clients_shed"] > 0
        assert stats["calm"]["clients_shed"] == 0 and stats["calm"]["clients_throttled"] == 0
        # Who holds little is not closed either, though it is of the same pool.
        assert neighbour.call("SET", "a", "b") == "OK"
    assert "pool greedy holds" in gateway.log()


# ------------------------------------------------------------------- connections of one's own


class Trickle:
    """Clients that do something a very little at a time."""

    def __init__(self, clients, step):
        self.clients, self.step = clients, step
        self.running = True
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while self.running:
            for client in self.clients:
                with contextlib.suppress(OSError):
                    self.step(client)
            time.sleep(0.5)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.running = False
        self.thread.join(30)
        for client in self.clients:
            client.close()


def one_server(place, **options):
    server = place.redis()
    gateway = place.cashew(
        {"alpha": {"redis": True, "servers": server_lines([server]), **options}},
        {"worker_processes": 1})
    return server, gateway


def connections(gateway):
    return next(server["server_connections"] for server in gateway.stats()["alpha"].values()
                if isinstance(server, dict))


def set_head(key, size):
    return resp("SET", key, "")[: -len(b"$0\r\n\r\n")] + b"$%d\r\n" % size


def set_in_time(gateway, size, seconds):
    with gateway.connect(timeout=seconds) as conn:
        conn.send(resp("SET", "mine", "y" * size))
        assert conn.reply(seconds) == "OK"


@pytest.mark.parametrize("start", [0, 300_000], ids=["from the first byte", "later"])
@pytest.mark.parametrize("size", [2 * MIB, 24 * MIB])
def test_slow_uploads_keep_nobody_from_large_values(place, size, start):
    """A byte now and then keeps no connection to a server that others wait for."""
    _, gateway = one_server(place)
    clients = [bare(gateway.address) for _ in range(8)]
    for n, client in enumerate(clients):
        client.sendall(set_head(f"slow:{n}", size) + b"x" * start)
    with Trickle(clients, lambda client: client.send(b"x")), Watch(gateway) as watch:
        if start:
            # All that large values may have are taken, where such clients get any.
            wait_until(lambda: connections(gateway) == 5, "their connections")
        time.sleep(1)
        set_in_time(gateway, size, 12)
        assert watch.error is None
    stats = gateway.stats()["alpha"]
    if start:
        assert stats["large_waits"] > 0
        assert "for large requests and replies are taken" in gateway.log()
    if start and size > 16 * MIB:
        assert stats["slow_clients"] > 0 and "is too slow for its connection" in gateway.log()


def test_slow_readers_keep_nobody_from_large_values(place):
    server, gateway = one_server(place)
    server.call("SET", "big", b"x" * (24 * MIB))
    # It is known to be large from here on.
    assert len(gateway.call("GET", "big")) == 24 * MIB
    clients = [bare(gateway.address, receive=4096) for _ in range(8)]
    for client in clients:
        client.sendall(resp("GET", "big"))
    with Trickle(clients, lambda client: client.recv(1000)):
        wait_until(lambda: connections(gateway) >= 5, "their connections")
        time.sleep(1)
        set_in_time(gateway, 24 * MIB, 12)
    assert gateway.stats()["alpha"]["slow_clients"] > 0


def test_idle_transactions_keep_nobody_from_theirs(place):
    """Connections that they do not use are taken back before those who wait give up."""
    _, gateway = one_server(place, session_connections=2, session_wait_timeout=4000)
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(gateway.connect()) for _ in range(2)]
        for holder in holders:
            assert holder.call("WATCH", "a") == "OK"
        with gateway.connect() as conn:
            assert conn.call("WATCH", "b") == "OK"
            assert conn.call("MULTI") == "OK"
            assert conn.call("SET", "b", "1") == "QUEUED"
            assert conn.call("EXEC") == ["OK"]
        # As if somebody had changed what they watch.
        ends = []
        for holder in holders:
            assert holder.call("MULTI") == "OK"
            assert holder.call("SET", "a", "1") == "QUEUED"
            ends.append(holder.call("EXEC"))
        assert None in ends, ends
    stats = gateway.stats()["alpha"]
    assert stats["session_waits"] > 0 and stats["sessions_reclaimed"] > 0
    assert "wait for a connection to server" in gateway.log()


# ----------------------------------------------------------------- values not known to be large


def test_pipelines_of_large_values_hold_nobody_up_and_fill_no_server(place):
    """Nobody knows beforehand how large they are: a server has all replies to what it was asked in its
    memory, and whoever asks behind them waits for them."""
    server, gateway = one_server(place)
    keys = [f"key:{n}" for n in range(50)]
    for key in keys:
        server.call("SET", key, "x" * 400_000)
    at_rest = used_memory(server)
    request = b"".join(resp("GET", key) for key in keys)
    with Watch(gateway) as watch, contextlib.ExitStack() as stack:
        wait_until(lambda: len(watch.waits) > 20, "it is served")
        clients = [stack.enter_context(contextlib.closing(bare(gateway.address)))
                   for _ in range(30)]
        reader = threading.Thread(target=read_all, args=(clients,), daemon=True)
        # All at once: 30 times 20 MB.
        for client in clients:
            client.sendall(request)
        reader.start()
        highest = 0
        deadline = time.monotonic() + 20
        while reader.is_alive() and time.monotonic() < deadline:
            highest = max(highest, used_memory(server) - at_rest)
            time.sleep(0.005)
        reader.join(1)
        assert watch.error is None and max(watch.waits) < 5, (watch.error, max(watch.waits))
    print(f"{highest >> 20} MiB, {max(watch.waits):.3f} s")
    assert highest < 200 * MIB, f"{highest >> 20} MiB"
    assert gateway.stats()["alpha"]["pipelines_paused"] > 0


def used_memory(server):
    text = server.call("INFO", "memory").decode()
    return int(re.search(r"^used_memory:(\d+)", text, re.MULTILINE)[1])


def read_all(clients, seconds=15):
    """Reads what comes until nothing more does."""
    deadline = time.monotonic() + seconds
    left = {client: 50 * (400_000 + len("$400000\r\n\r\n")) for client in clients}
    while left and time.monotonic() < deadline:
        for client in list(left):
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                left[client] -= len(client.recv(MIB))
            if left[client] <= 0:
                del left[client]


def test_deep_pipelines_of_small_values_are_answered_whole(place):
    server, gateway = one_server(place)
    for n in range(1000):
        server.call("SET", f"key:{n}", f"value:{n}")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(gateway.connect()) for _ in range(20)]
        for _ in range(3):
            for client in clients:
                client.send(b"".join(resp("GET", f"key:{n}") for n in range(1000)))
            for client in clients:
                for n in range(1000):
                    assert client.reply() == b"value:%d" % n
