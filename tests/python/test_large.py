"""Values of half a gigabyte: they pass in bounded memory, hold nobody up, and are whole or not."""

import contextlib
import signal
import threading
import time
import zlib
from pathlib import Path

import pytest

from harness import Conn, children, resp, server_lines, wait_until

MIB = 1 << 20
SIZE = 512 * MIB
#: What a worker may take more than at rest, whatever the size of the values that pass.
MEMORY_MAX = 8 * MIB


def piece(number):
    """A mebibyte of its own for each number."""
    return (b"%015d\n" % number) * (MIB // 16)


def checksum(size):
    total = 0
    for number in range(size // MIB):
        total = zlib.crc32(piece(number), total)
    return total


class Memory:
    """How much more memory the gateway's largest process takes while the block runs. Pages of the program's file are
    left out: the kernel takes those away and brings them back as it likes."""

    def __init__(self, gateway):
        self.pids = [gateway.pid, *children(gateway.pid)]
        self.growth = 0

    def __enter__(self):
        self.before = {pid: self._read(pid) for pid in self.pids}
        self.ends = threading.Event()
        self.watcher = threading.Thread(target=self._watch)
        self.watcher.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.watcher.join()

    def _watch(self):
        while not self.ends.wait(0.003):
            self.growth = max(self.growth, *(self._read(pid) - self.before[pid] for pid in self.pids))

    @staticmethod
    def _read(pid):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
        assert len(found) == 2, pid
        return sum(found) * 1024


class Kind:
    """How a protocol says it."""

    def __init__(self, name):
        self.name = name
        self.is_redis = name == "redis"

    def server(self, place):
        if self.is_redis:
            return place.redis()
        # A thread of memcached reads a value to its end before it serves its other connections. With
        # so many threads none of them has the large value and the small requests.
        return place.memcached("-I", "1024m", "-m", "4096", "-t", "32")

    def gateway(self, place, server, **options):
        options = {"servers": server_lines([server]), "redis": self.is_redis, **options}
        return place.cashew({"p": options}, {"worker_processes": 1})

    def head(self, key, size):
        if self.is_redis:
            return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, size)
        return b"set %b 0 0 %d\r\n" % (key, size)

    @property
    def stored(self):
        return b"+OK\r\n" if self.is_redis else b"STORED\r\n"

    def ask(self, key):
        return resp("GET", key) if self.is_redis else b"get %b\r\n" % key

    def reply_head(self, key, size):
        if self.is_redis:
            return b"$%d\r\n" % size
        return b"VALUE %b 0 %d\r\n" % (key, size)

    @property
    def reply_end(self):
        return b"\r\n" if self.is_redis else b"\r\nEND\r\n"

    @property
    def missing(self):
        return b"$-1\r\n" if self.is_redis else b"END\r\n"


@pytest.fixture(params=["redis", "memcached"])
def kind(request):
    return Kind(request.param)


class Small:
    """A client that asks for small things beside a test, one after the other."""

    def __init__(self, gateway, kind):
        self.conn = gateway.connect()
        self.request, self.reply = kind.ask(b"none"), kind.missing
        self.times = []
        self.error = None
        self.running = True
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            while self.running:
                began = time.monotonic()
                self.conn.send(self.request)
                self.conn.expect(self.reply)
                self.times.append(time.monotonic() - began)
                time.sleep(0.002)
        except (AssertionError, OSError, EOFError) as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.running = False
        self.thread.join(10)
        self.conn.close()
        assert self.error is None, self.error


def upload(conn, kind, key, size):
    conn.send(kind.head(key, size))
    for number in range(size // MIB):
        conn.send(piece(number))
    conn.send(b"\r\n")


def download(conn, kind, key, size):
    """Reads the value and returns its checksum."""
    conn.send(kind.ask(key))
    conn.expect(kind.reply_head(key, size))
    total = 0
    left = size
    while left:
        part = conn.read(min(left, MIB))
        total = zlib.crc32(part, total)
        left -= len(part)
    conn.expect(kind.reply_end)
    return total


def stored_size(server, kind, key):
    """Length of what the server has under the key, or `None`."""
    if kind.is_redis:
        return server.call("STRLEN", key) if server.call("EXISTS", key) else None
    with server.connect(60) as conn:
        conn.send(kind.ask(key))
        words = conn.read_line().split()
        return int(words[3]) if words[0] == b"VALUE" else None


def connections(gateway, pool="p"):
    """How many connections the gateway has to the pool's only server."""
    return next(
        server["server_connections"]
        for server in gateway.stats()[pool].values()
        if isinstance(server, dict)
    )


def test_half_a_gigabyte_passes_in_bounded_memory(place, kind):
    server = kind.server(place)
    gateway = kind.gateway(place, server)
    with gateway.connect(timeout=60) as conn:
        with Small(gateway, kind) as small, Memory(gateway) as memory:
            upload(conn, kind, b"large", SIZE)
            conn.expect(kind.stored)
        assert memory.growth < MEMORY_MAX, f"{memory.growth >> 20} MiB more"
        # Half a second of work for everybody, of whom others may have most: nobody waited for all
        # of it.
        assert len(small.times) > 3, len(small.times)
        with Small(gateway, kind) as small, Memory(gateway) as memory:
            assert download(conn, kind, b"large", SIZE) == checksum(SIZE)
        assert memory.growth < MEMORY_MAX, f"{memory.growth >> 20} MiB more"
        assert len(small.times) > 3, len(small.times)


@pytest.mark.alone
def test_a_client_that_reads_slowly_is_waited_for(place, kind):
    server = kind.server(place)
    # Redis copies so much for some hundred milliseconds, and the small requests wait for that.
    gateway = kind.gateway(place, server, timeout=2000)
    with gateway.connect(timeout=60) as conn:
        upload(conn, kind, b"large", 64 * MIB)
        conn.expect(kind.stored)
        with Small(gateway, kind), Memory(gateway) as memory:
            conn.send(kind.ask(b"large"))
            time.sleep(4)
            conn.expect(kind.reply_head(b"large", 64 * MIB))
            for number in range(64):
                assert conn.read(MIB) == piece(number)
                time.sleep(3 if number == 32 else 0)
            conn.expect(kind.reply_end)
        assert memory.growth < MEMORY_MAX, f"{memory.growth >> 20} MiB more"


def test_a_client_that_dies_in_the_middle_has_set_nothing(place, kind):
    server = kind.server(place)
    gateway = kind.gateway(place, server)
    with gateway.connect() as conn:
        upload(conn, kind, b"key", MIB)
        conn.expect(kind.stored)
    with Small(gateway, kind):
        for leave in (Conn.close, Conn.reset):
            conn = gateway.connect()
            conn.send(kind.head(b"key", 64 * MIB))
            for number in range(32):
                conn.send(piece(number))
            wait_until(lambda: connections(gateway) == 2, "its own connection")
            leave(conn)
            wait_until(lambda: connections(gateway) == 1, "its connection is closed")
    assert stored_size(server, kind, b"key") == MIB
    assert gateway.stats()["p"]["forward_error"] == 0


def test_a_server_that_dies_in_the_middle_is_told_about_and_forgotten(place, kind):
    server = kind.server(place)
    gateway = kind.gateway(place, server)
    with gateway.connect(timeout=30) as conn:
        conn.send(kind.head(b"key", 64 * MIB))
        for number in range(32):
            conn.send(piece(number))
        server.stop()
        line = conn.read_line()
        assert line.startswith((b"-ERR ", b"SERVER_ERROR ")), line
        server.start()
        for number in range(32, 64):
            conn.send(piece(number))
        conn.send(b"\r\n")

        def is_well():
            conn.send(kind.ask(b"key"))
            return conn.raw_reply() == kind.missing if kind.is_redis else conn.read_line() == b"END"

        wait_until(is_well, "the same connection works")


def test_a_server_that_stands_still_makes_the_client_wait(place, kind):
    server = kind.server(place)
    gateway = kind.gateway(place, server)
    with gateway.connect(timeout=60) as conn, Memory(gateway) as memory:
        conn.send(kind.head(b"key", 128 * MIB))
        conn.send(piece(0))
        wait_until(lambda: connections(gateway) == 1, "its own connection")
        server.process.signal(signal.SIGSTOP)
        data = b"".join(piece(number) for number in range(1, 128)) + b"\r\n"
        left = memoryview(data)
        conn.socket.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while left:
                left = left[conn.socket.send(left[:MIB]) :]
        assert len(left) > 64 * MIB, "it takes no more than it can pass on"
        conn.socket.settimeout(60)
        server.process.signal(signal.SIGCONT)
        conn.send(left)
        conn.expect(kind.stored)
    assert memory.growth < MEMORY_MAX, f"{memory.growth >> 20} MiB more"
    with gateway.connect(timeout=60) as conn:
        assert download(conn, kind, b"key", 128 * MIB) == checksum(128 * MIB)


def test_what_memcached_takes_for_too_large_is_told_and_swallowed(place):
    kind = Kind("memcached")
    server = place.memcached("-I", "2m")
    gateway = kind.gateway(place, server)
    with gateway.connect(timeout=30) as conn:
        upload(conn, kind, b"key", 32 * MIB)
        conn.expect(b"SERVER_ERROR object too large for cache\r\n")
        upload(conn, kind, b"key", MIB)
        conn.expect(kind.stored)
        assert download(conn, kind, b"key", MIB) == checksum(MIB)
