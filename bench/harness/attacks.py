"""What hostile clients do to a gateway. Each attack is bounded, in connections, bytes and time, and runs in a process of its
own: `python -m harness.attacks NAME PORT SECONDS`, which prints what became of it as JSON."""

import errno
import json
import os
import random
import resource
import select
import socket
import sys
import time

KEY = b"polite:%d"
#: A value that is there, for those who ask for much.
BIG_KEY, BIG_BYTES = b"big", 1 << 20
#: What one process of clients may send altogether.
MOST_BYTES = 1 << 30
PIECE = 1 << 16


def resp(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Attack:
    """`does` is what Cashew does about it. `script(number)` yields what connection `number` sends, piece by piece; None: nothing for now."""

    def __init__(self, name, what, does, script, connections, protocol="redis", reads=False, again=False, pause=0.0,
                 tls=False):
        self.name, self.what, self.does = name, what, does
        self.script, self.connections = script, connections
        #: Whether replies are read; whether who was closed comes again; seconds between two pieces.
        self.protocol, self.reads, self.again, self.pause, self.tls = protocol, reads, again, pause, tls


def once(data):
    """The same, for each connection."""
    return lambda _: iter([data])


def for_ever(data):
    def script(_):
        while True:
            yield data
    return script


def bytewise(_):
    request = resp(b"SET", b"slow", b"x" * 1000)
    while True:
        for at in range(len(request)):
            yield request[at : at + 1]


def announced(head, size):
    """Something that says how long it is, and then comes, or as much of it as is taken."""
    def script(_):
        yield head
        for _ in range(size // PIECE):
            yield b"x" * PIECE
        yield b"x" * (size % PIECE) + b"\r\n"
    return script


def many_arguments(_):
    yield b"*1000001\r\n$4\r\nMGET\r\n"
    for at in range(0, 1_000_000, 1000):
        yield b"".join(b"$7\r\n%07d\r\n" % number for number in range(at, at + 1000))


def pipeline(_):
    for _ in range(100):
        yield resp(b"GET", b"polite:1") * 1000


def garbage(number):
    chance = random.Random(number)
    while True:
        yield chance.randbytes(PIECE)


def queued(_):
    yield resp(b"MULTI")
    for _ in range(500):
        yield resp(b"SET", b"queued", b"x" * 1000) * 60


def subscribers(number):
    """One in ten publishes; the others hear it, and read nothing."""
    if number % 10:
        yield resp(b"SUBSCRIBE", b"news")
        return
    while True:
        yield resp(b"PUBLISH", b"news", b"x" * 10_000)


def monitors(number):
    if number % 10:
        yield resp(b"MONITOR")
        return
    while True:
        yield resp(b"SET", b"seen", b"x" * 10_000)


#: A TLS client hello that ends in its middle.
HALF_HELLO = bytes.fromhex("16030102000100") + b"\x01\xfc\x03\x03"
NOREPLY = b"set flood 0 0 1000 noreply\r\n" + b"x" * 1000 + b"\r\n"

ATTACKS = [
    Attack("none", "nobody attacks", "–", lambda _: iter(()), 0),
    Attack("slow-loris", "500 clients send a request byte by byte", "waits: each holds what it has sent", bytewise, 500, pause=0.05),
    Attack("never-reads", "20 clients ask for 30 values of 1 MiB each, and read nothing", "asks servers for no more than it may keep for the client (`client_output_max`)", once(resp(b"GET", BIG_KEY) * 30), 20),
    Attack("idle", "9,000 clients connect and are silent", "keeps them; an idle client has no buffers", lambda _: iter(()), 9000),
    Attack("storm", "clients connect and leave at once, as fast as they can", "lets them come and go, a few at a time", once(b""), 64, again=True),
    Attack("half-requests", "2,000 clients send half a request", "keeps the halves, within `memory_max`", once(resp(b"SET", b"half", b"x" * 10_000)[:5000]), 2000),
    Attack("giant-values", "8 clients send a value of 64 MiB", "passes them on as they come", announced(b"*3\r\n$3\r\nSET\r\n$5\r\ngiant\r\n$%d\r\n" % (64 << 20), 64 << 20), 8),
    Attack("giant-keys", "8 clients send a key of 64 MiB", "needs the key as a whole, within `memory_max`; refuses what the queue of a server cannot take", announced(b"*2\r\n$3\r\nGET\r\n$%d\r\n" % (64 << 20), 64 << 20), 8),
    Attack("arguments", "4 clients send a command of a million keys", "splits it, within `memory_max`", many_arguments, 4),
    Attack("pipelines", "20 clients send 100,000 requests at once, and read nothing", "reads no more of a client that is owed much", pipeline, 20),
    Attack("garbage", "20 clients send random bytes, again and again", "answers with errors, closes what is not RESP", garbage, 20, reads=True, again=True),
    Attack("inline", "8 clients send a line that does not end", "answers with an error and closes at 64 KiB", announced(b"GET ", 64 << 20), 8),
    Attack("auth", "20 clients send wrong passwords as fast as they can", "answers with errors", for_ever(resp(b"AUTH", b"wrong") * 20), 20, reads=True, again=True),
    Attack("subscribers", "45 subscribers read nothing of what 5 clients publish", "keeps up to `pubsub_output_max` for each, and closes who is owed more", subscribers, 50),
    Attack("monitors", "18 clients monitor and read nothing of what 2 clients send", "keeps up to `pubsub_output_max` of lines for each", monitors, 20),
    Attack("transactions", "20 clients queue 30 MB after MULTI, and no EXEC", "passes them on: the server keeps them", queued, 20, reads=True),
    Attack("tls", "1,000 clients stop in the middle of a TLS handshake", "keeps them for ten seconds", once(HALF_HELLO), 1000, tls=True),
    Attack("noreply", "20 clients send sets with noreply as fast as they can", "reads no faster than servers do", for_ever(NOREPLY * 50), 20, protocol="memcached"),
    Attack("memcached-garbage", "20 clients send random bytes to memcached, again and again", "answers with `ERROR`, closes lines without end", garbage, 20, protocol="memcached", reads=True, again=True),
    Attack("memcached-values", "8 clients send a value of 64 MiB to memcached", "refuses the value and throws it away as it comes", announced(b"set giant 0 0 %d\r\n" % (64 << 20), 64 << 20), 8, protocol="memcached"),
]
BY_NAME = {attack.name: attack for attack in ATTACKS}


class Hostile:
    """One connection."""

    def __init__(self, attack, number, port):
        self.socket = socket.socket()
        self.socket.setblocking(False)
        status = self.socket.connect_ex(("127.0.0.1", port))
        if status not in (0, errno.EINPROGRESS):
            raise OSError(status, os.strerror(status))
        self.script = attack.script(number)
        self.pending, self.is_over, self.due = b"", False, 0.0


class Play:
    """All connections of an attack. `told` is what became of them."""

    def __init__(self, attack, port):
        self.attack, self.port = attack, port
        self.poll, self.clients = select.epoll(), {}
        self.told = {"connections": 0, "refused": 0, "closed": 0, "sent": 0, "received": 0, "said": ""}

    def open(self, number):
        try:
            client = Hostile(self.attack, number, self.port)
        except OSError:
            self.told["refused"] += 1
            return
        client.number = number
        self.told["connections"] += 1
        self.clients[client.socket.fileno()] = client
        self.poll.register(client.socket, select.EPOLLOUT | select.EPOLLRDHUP | (select.EPOLLIN if self.attack.reads else 0))

    def run(self, seconds):
        begun = time.monotonic()
        for number in range(self.attack.connections):
            self.open(number)
            if number % 200 == 199:
                # A listen queue has an end.
                self.turn(0.02)
        while time.monotonic() - begun < seconds:
            self.turn(0.05)
        if not self.attack.again:
            # What it was told, without which nobody knows why it was closed.
            for client in self.clients.values():
                self.listen(client)
        return self.told

    def turn(self, seconds):
        for descriptor, events in self.poll.poll(seconds, 512):
            client = self.clients.get(descriptor)
            if client is None:
                continue
            if events & select.EPOLLIN and not self.receive(client):
                continue
            if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                self.listen(client)
                self.close(client, "closed")
            elif events & select.EPOLLOUT:
                self.send(client)
        if self.attack.pause:
            now = time.monotonic()
            for client in self.clients.values():
                if client.due and client.due <= now:
                    client.due = 0.0
                    self.watch(client, True)

    def watch(self, client, wants):
        events = select.EPOLLRDHUP | (select.EPOLLIN if self.attack.reads else 0) | (select.EPOLLOUT if wants else 0)
        self.poll.modify(client.socket, events)

    def send(self, client):
        if not client.pending:
            client.pending = next(client.script, None)
            if client.pending is None or self.told["sent"] > MOST_BYTES:
                self.watch(client, False)
                return
            if client.pending == b"":
                self.close(client, None)
                return
        try:
            sent = client.socket.send(client.pending)
        except BlockingIOError:
            return
        except OSError:
            self.listen(client)
            self.close(client, "closed")
            return
        self.told["sent"] += sent
        client.pending = client.pending[sent:]
        if self.attack.pause:
            client.due = time.monotonic() + self.attack.pause
            self.watch(client, False)

    def receive(self, client):
        """Whether the connection is still there."""
        try:
            data = client.socket.recv(PIECE)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.close(client, "closed")
            return False
        self.heard(data)
        return True

    def listen(self, client):
        """What there is to read, without waiting; of one who reads nothing it is the beginning."""
        try:
            self.heard(client.socket.recv(PIECE))
        except OSError:
            pass

    def heard(self, data):
        self.told["received"] += len(data)
        line = data.partition(b"\r\n")[0]
        if not self.told["said"] and line.startswith((b"-", b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
            self.told["said"] = "".join(chr(byte) if 32 <= byte < 127 and byte not in b"|`" else "?" for byte in line[:60])

    def close(self, client, why):
        if why:
            self.told[why] += 1
        del self.clients[client.socket.fileno()]
        client.socket.close()
        if self.attack.again:
            self.open(client.number)


def main():
    name, port, seconds = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # The polite clients, which share a processor with this, are what is measured.
    os.nice(10)
    print(json.dumps(Play(BY_NAME[name], int(port)).run(float(seconds))))


if __name__ == "__main__":
    main()
