"""Load that goes on while the gateway changes: every client checks every reply that it gets.

All values are the same on every server, so that a reply is known beforehand whoever gives it; which
server gave it is in the servers' own records (`Record`, `WatchRecord`).
"""

import collections
import random
import re
import select
import socket
import threading
import time

from harness import connect, resp, wait_until

KEYS = 500
#: Longest that a reply may take before it counts as lost.
PATIENCE = 20.0


def key(number):
    return b"key:%06d" % number


def value(number):
    """Of 20 to some 200 bytes, and no two alike."""
    return b"value-of-%06d-" % number + b"x" * (number * 7 % 190)


def fill(*servers):
    """Gives every key to each server."""
    for server in servers:
        with server.connect() as conn:
            if is_redis(server):
                conn.send(b"".join(resp("SET", key(n), value(n)) for n in range(KEYS)))
                conn.expect(b"+OK\r\n" * KEYS)
            else:
                conn.send(b"".join(memcached_set(n) for n in range(KEYS)))
                conn.expect(b"STORED\r\n" * KEYS)


def is_redis(server):
    return hasattr(server, "call")


def memcached_set(number):
    return b"set %b 0 0 %d\r\n%b\r\n" % (key(number), len(value(number)), value(number))


def bulk(data):
    return b"$%d\r\n%b\r\n" % (len(data), data)


def redis_request(rng):
    """A request and its reply."""
    number = rng.randrange(KEYS)
    kind = rng.randrange(10)
    if kind < 6:
        return resp("GET", key(number)), bulk(value(number))
    if kind < 8:
        return resp("SET", key(number), value(number)), b"+OK\r\n"
    if kind < 9:
        return resp("GET", b"key:none"), b"$-1\r\n"
    numbers = [rng.randrange(KEYS) for _ in range(3)]
    return (resp("MGET", *map(key, numbers)),
            b"*3\r\n" + b"".join(bulk(value(number)) for number in numbers))


def memcached_request(rng):
    number = rng.randrange(KEYS)
    kind = rng.randrange(10)
    if kind < 7:
        head = b"VALUE %b 0 %d\r\n" % (key(number), len(value(number)))
        return b"get %b\r\n" % key(number), head + value(number) + b"\r\nEND\r\n"
    if kind < 9:
        return memcached_set(number), b"STORED\r\n"
    return b"get key:none\r\n", b"END\r\n"


def batches(request, depth, count=64, seed=1):
    """Pipelines of `depth` requests, each with all of its replies."""
    rng = random.Random(seed)
    made = [[request(rng) for _ in range(depth)] for _ in range(count)]
    return [tuple(b"".join(part) for part in zip(*pairs)) for pairs in made]


class Client:
    """One connection; `expected` is all that it still has to get, byte for byte."""

    def __init__(self, number, sock, ready):
        self.number = number
        self.socket = sock
        sock.setblocking(False)
        self.name = sock.getsockname()[1] if sock.family != socket.AF_UNIX else number
        self.ready = ready
        self.next = number
        self.expected = bytearray()
        self.unsent = b""
        #: (bytes that are to be received until its end, when it was sent) of each batch under way
        self.due = collections.deque()
        self.sent_bytes = self.received = 0
        self.done = 0

    def top_up(self, outstanding, now):
        if not self.unsent and len(self.due) < outstanding:
            request, reply = self.ready[self.next % len(self.ready)]
            self.next += 1
            self.expected += reply
            self.sent_bytes += len(reply)
            self.due.append((self.sent_bytes, now))
            self.unsent = request
        if self.unsent:
            try:
                self.unsent = self.unsent[self.socket.send(self.unsent):]
            except BlockingIOError:
                pass

    def receive(self):
        """Returns seconds that the slowest batch took that is complete now, or None."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError("closed")
        if not self.expected.startswith(data):
            at = next((i for i, (got, due) in enumerate(zip(data, self.expected)) if got != due),
                      min(len(data), len(self.expected)))
            raise AssertionError(f"expected {bytes(self.expected[at:at + 100])!r}, "
                                 f"got {data[max(0, at - 20):at + 200]!r}")
        del self.expected[:len(data)]
        self.received += len(data)
        slowest = None
        now = time.monotonic()
        while self.due and self.due[0][0] <= self.received:
            slowest = max(slowest or 0.0, now - self.due.popleft()[1])
            self.done += 1
        return slowest


class Load:
    """Clients that never close their connections and check every reply, in a thread of their own.

    With `may_lose` a client whose connection ends is noted in `lost`, by name, and another one
    takes its place; otherwise that is a failure, as is every other reply than the right one.
    """

    def __init__(self, addresses=(), count=16, depth=4, outstanding=2, tick=0.003, sockets=None,
                 request=redis_request, may_lose=False):
        self.addresses = addresses if isinstance(addresses, list) else [addresses]
        self.outstanding = outstanding
        self.tick = tick
        self.may_lose = may_lose
        self.ready = batches(request, depth)
        self.failures = []
        self.lost = []
        self.slowest = 0.0
        self.batches = 0
        self.depth = depth
        self.poll = select.epoll()
        self.by_descriptor = {}
        self.stopping = threading.Event()
        self.numbers = 0
        try:
            for made in sockets or [None] * count:
                self._add(made)
        except BaseException:
            self._close()
            raise
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _add(self, made=None):
        sock = made or connect(self.addresses[self.numbers % len(self.addresses)], PATIENCE)
        client = Client(self.numbers, sock, self.ready)
        self.numbers += 1
        self.by_descriptor[sock.fileno()] = client
        self.poll.register(sock.fileno(), select.EPOLLIN)

    def _remove(self, client):
        del self.by_descriptor[client.socket.fileno()]
        self.poll.unregister(client.socket.fileno())
        client.socket.close()

    def clients(self):
        return list(self.by_descriptor.values())

    def names(self):
        """Of the clients that are there: their ports, unless they are at a Unix socket."""
        return {client.name for client in self.clients()}

    @property
    def requests(self):
        return self.batches * self.depth

    def _run(self):
        end = None
        while True:
            now = time.monotonic()
            clients = self.clients()
            if self.stopping.is_set():
                end = end or now + PATIENCE
                if not any(client.expected for client in clients):
                    return
                if now > end:
                    self.failures += [f"client {c.number}: {len(c.expected)} bytes never came"
                                      for c in clients if c.expected]
                    return
            for client in clients:
                outstanding = 0 if end else self.outstanding
                self._watched(client, lambda c=client, o=outstanding: c.top_up(o, now))
                if client.due and now - client.due[0][1] > PATIENCE and not end:
                    self.failures.append(f"client {client.number}: no reply in {PATIENCE} s")
                    self._remove(client)
            for descriptor, _ in self.poll.poll(0.05):
                client = self.by_descriptor.get(descriptor)
                if client:
                    self._watched(client, lambda c=client: self._received(c))
            time.sleep(self.tick)

    def _received(self, client):
        before = client.done
        slowest = client.receive()
        self.batches += client.done - before
        if slowest is not None:
            self.slowest = max(self.slowest, slowest)

    def _watched(self, client, action):
        try:
            action()
        except (OSError, EOFError) as error:
            if client.socket.fileno() not in self.by_descriptor:
                return
            self._remove(client)
            if not self.may_lose:
                self.failures.append(f"client {client.number} lost its connection: {error!r}")
                return
            self.lost.append(client.name)
            try:
                self._add()
            except OSError as refused:
                self.failures.append(f"cannot connect again: {refused!r}")
        except AssertionError as error:
            self._remove(client)
            self.failures.append(f"client {client.number}: {error}")

    def turn(self, seconds=PATIENCE):
        """Waits until every client there is has had an answer to something it asked from now on."""
        marks = [(client, client.done + self.outstanding + 1) for client in self.clients()]
        wait_until(lambda: self.failures or all(
            client.done >= mark or client.socket.fileno() < 0 for client, mark in marks),
            "an answer for every client", seconds, pause=0.005)
        self.check()

    def check(self):
        assert not self.failures, "\n".join(self.failures[:5])

    def stop(self):
        """Lets the replies come that are due, and returns how many requests were answered."""
        self.stopping.set()
        self.thread.join(2 * PATIENCE)
        assert not self.thread.is_alive(), "the load does not end"
        self.check()
        return self.requests

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.stop()
            else:
                self.stopping.set()
                self.thread.join(2 * PATIENCE)
        finally:
            self._close()

    def _close(self):
        for client in self.clients():
            client.socket.close()
        self.by_descriptor.clear()
        self.poll.close()


class Storm:
    """Short connections, one after another in each thread: connect, one request, close. None may be
    refused, reset or left waiting."""

    def __init__(self, address, threads=3, pause=0.002):
        self.address = address
        self.pause = pause
        self.failures = []
        self.counts = [0] * threads
        self.slowest = 0.0
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(index,), daemon=True)
                        for index in range(threads)]
        for thread in self.threads:
            thread.start()

    @property
    def count(self):
        return sum(self.counts)

    def _run(self, index):
        number = index
        while not self.stopping.is_set() and len(self.failures) < 5:
            number = (number + len(self.threads)) % KEYS
            begin = time.monotonic()
            try:
                self._once(number)
            except Exception as error:  # whatever it is, the test fails
                self.failures.append(f"after {time.monotonic() - begin:.3f} s: {error!r}")
            self.slowest = max(self.slowest, time.monotonic() - begin)
            self.counts[index] += 1
            time.sleep(self.pause)

    def _once(self, number):
        reply = bulk(value(number))
        with connect(self.address, PATIENCE) as client:
            client.sendall(resp("GET", key(number)))
            got = b""
            while len(got) < len(reply):
                piece = client.recv(1 << 16)
                if not piece:
                    raise EOFError(f"closed after {got!r}")
                got += piece
            assert got == reply, got[:200]

    def check(self):
        assert not self.failures, "\n".join(self.failures)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close()
        if kind is None:
            self.check()

    def close(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(2 * PATIENCE)


# ------------------------------------------------------------------------------ what servers record


class Record:
    """What a Redis server says, on MONITOR, that it was asked, and when by the machine's clock."""

    command = re.compile(rb'\+(\d+)\.(\d{6}) \[\d+ [^\]]*\] "([^"]*)" "(key:[^"]*)"')

    def __init__(self, server):
        self.server = server
        self.conn = server.connect()
        self.begin()
        self.pieces = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def begin(self):
        self.conn.send(b"MONITOR\r\n")
        self.conn.expect(b"+OK\r\n")

    def mark(self, word):
        self.server.call("ECHO", word)

    def _read(self):
        self.conn.socket.settimeout(None)
        try:
            while piece := self.conn.socket.recv(1 << 20):
                self.pieces.append(piece)
        except OSError:
            pass

    def stop(self):
        """All commands on keys so far: (microseconds, key)."""
        word = f"mark-{random.randrange(1 << 60)}"
        at = max(0, len(self.pieces) - 1)
        self.mark(word)
        wait_until(lambda: word.encode() in b"".join(self.pieces[at:]), "the record's end")
        self.close()
        return self.parse(b"".join(self.pieces))

    def parse(self, text):
        return [(int(found[1]) * 1_000_000 + int(found[2]), found[4])
                for found in self.command.finditer(text)]

    def close(self):
        try:
            self.conn.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.thread.join(5)
        self.conn.close()


class WatchRecord(Record):
    """The same of a memcached server, which tells it on `watch`."""

    # Seconds, and microseconds without zeros before them.
    command = re.compile(rb"ts=(\d+)\.(\d{1,6}) gid=\d+ type=(item_get|item_store) key=(\S+)")

    def begin(self):
        self.conn.send(b"watch fetchers mutations\r\n")
        self.conn.expect(b"OK\r\n")

    def mark(self, word):
        with self.server.connect() as conn:
            conn.send(f"get {word}\r\n".encode())
            conn.expect(b"END\r\n")

    def parse(self, text):
        assert b"skipped=" not in text, "memcached left out a part of its record"
        return [entry for entry in super().parse(text) if entry[1].startswith(b"key%3A")
                or entry[1].startswith(b"key:")]


def blocks(*rings):
    """Merges what happened under each ring, lists of (microseconds, …), by time: the numbers of
    the rings, one for each stretch in which only that ring was used."""
    events = sorted((event[0], ring) for ring, events in enumerate(rings) for event in events)
    found = []
    for when, ring in events:
        if not found or found[-1][0] != ring:
            found.append([ring, when, when, 0])
        found[-1][2] = when
        found[-1][3] += 1
    return found
