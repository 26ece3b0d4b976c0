"""Every key lands on the server that nutcracker would choose, bit for bit.

Debian's nutcracker and the gateway stand over the same servers with the same file. Keys are
written through one, the servers are asked directly what they hold, then through the other.
"""

import random
import selectors
import socket
import threading

import pytest

from harness import Conn, HOST, free_port, resp, server_lines

HASHES = ["one_at_a_time", "md5", "crc16", "crc32", "crc32a", "fnv1_64", "fnv1a_64", "fnv1_32",
          "fnv1a_32", "hsieh", "murmur", "jenkins"]
DISTRIBUTIONS = ["ketama", "modula"]


def make_keys(count=3000):
    """Keys of many shapes: words, digits, tags, every length from 1 to 300, bytes >= 0x80."""
    chance = random.Random(42)
    keys = [b"key-%d" % n for n in range(count // 3)]
    keys += [b"user:{%d}:profile:%d" % (n % 97, n) for n in range(count // 6)]
    keys += [f"日本語-ключ-ü-{n}".encode() for n in range(count // 6)]
    keys += [chance.randbytes(chance.randrange(1, 40)) for _ in range(count // 6)]
    keys += [bytes([chance.randrange(0x80, 0x100)]) * n for n in range(1, 70)]
    keys += [b"x" * n for n in range(1, 300)]
    keys += [b"a{}b", b"{}", b"{", b"}{", b"a{b", b"}a{b}", b"{a}{b}", b"{a}", b"a", b"{{a}}",
             b"\x80", b"\xff", b"\0", b"a\0b", b"\xff\x80\x7f", b"{\xff\x80}x"]
    return sorted(set(keys))


KEYS = make_keys()


def write_all(address, keys):
    with Conn(address, 30) as conn:
        conn.send(b"".join(resp("SET", key, "") for key in keys), 16_000)
        conn.expect(b"+OK\r\n" * len(keys))


def placed(servers, address, keys):
    """Writes the keys there, and tells by key which server has it."""
    for server in servers:
        server.call("FLUSHALL")
    write_all(address, keys)
    where = {}
    for index, server in enumerate(servers):
        for key in server.call("KEYS", "*"):
            where[key] = index
    assert len(where) == len(keys)
    return where


def compare(mine, theirs):
    wrong = [f"{key!r}: nutcracker {theirs[key]}, cashew {mine[key]}"
             for key in theirs if mine[key] != theirs[key]]
    assert not wrong, f"{len(wrong)} of {len(theirs)} keys differ\n" + "\n".join(wrong[:20])


class Farm:
    """Five servers under 12 hashes x 2 distributions, named so that file order is not ring
    order, and under several other shapes of a pool."""

    def __init__(self, place):
        self.servers = [place.redis() for _ in range(5)]
        names = ["server-b", "server-10", "server-a", "s", "server-c"]
        named = server_lines(self.servers, names)
        weighted = server_lines(self.servers, names, [1, 2, 3, 5, 10])
        pools = {}
        for name in HASHES:
            for distribution in DISTRIBUTIONS:
                pools[f"{name}-{distribution}"] = {
                    "hash": name, "distribution": distribution, "servers": named}
        for distribution in DISTRIBUTIONS:
            base = {"hash": "fnv1a_64", "distribution": distribution}
            pools[f"unnamed-{distribution}"] = {**base, "servers": server_lines(self.servers)}
            pools[f"weighted-{distribution}"] = {**base, "servers": weighted}
            pools[f"unnamed-weighted-{distribution}"] = {
                **base, "servers": server_lines(self.servers, None, [7, 1, 1, 100, 3])}
            pools[f"tagged-{distribution}"] = {**base, "hash_tag": '"{}"', "servers": named}
            pools[f"tag-of-one-letter-{distribution}"] = {
                **base, "hash_tag": '"--"', "servers": named}
            pools[f"unix-{distribution}"] = {
                **base, "servers": [f"{server.path}:1" for server in self.servers]}
            pools[f"single-{distribution}"] = {**base, "servers": named[:1]}
        pools["defaults"] = {"servers": named}
        # Its ring can't tell most keys apart, whatever the weights.
        pools["crc32-weighted-ketama"] = {
            "hash": "crc32", "distribution": "ketama", "servers": weighted}
        pools["low-weights-ketama"] = {
            "hash": "murmur", "servers": server_lines(self.servers, names, [1, 1, 1, 1, 10_000])}
        for options in pools.values():
            options["redis"] = True
        self.pools = pools
        self.mine = place.cashew(pools, {"worker_processes": 2})
        self.theirs = place.nutcracker(pools)


@pytest.fixture(scope="module")
def farm(module_place):
    return Farm(module_place)


NAMES = [f"{name}-{distribution}" for name in HASHES for distribution in DISTRIBUTIONS]
NAMES += [f"{name}-{distribution}" for distribution in DISTRIBUTIONS for name in (
    "unnamed", "weighted", "unnamed-weighted", "tagged", "tag-of-one-letter", "unix", "single")]
NAMES += ["defaults", "crc32-weighted-ketama", "low-weights-ketama"]


@pytest.mark.parametrize("pool", NAMES)
def test_same_server_as_nutcracker(farm, pool):
    theirs = placed(farm.servers, farm.theirs.addresses[pool], KEYS)
    mine = placed(farm.servers, farm.mine.addresses[pool], KEYS)
    compare(mine, theirs)


def test_what_one_writes_the_other_reads(farm):
    pool = "weighted-ketama"
    write_all(farm.theirs.addresses[pool], KEYS)
    with Conn(farm.mine.addresses[pool], 30) as conn:
        for at in range(0, len(KEYS), 1000):
            batch = KEYS[at : at + 1000]
            assert conn.call("EXISTS", *batch) == len(batch)


class Recorder:
    """Stands for many Redis servers that take SET, and remembers at which port a key arrived.

    Rings of 25 or 100 servers round their points in ways that small rings do not.
    """

    def __init__(self, count):
        self.keys = {}
        self.selector = selectors.DefaultSelector()
        self.listeners = []
        self.ports = []
        self.running = True
        for index in range(count):
            port = free_port()
            listener = socket.create_server((HOST, port), backlog=64)
            listener.setblocking(False)
            self.selector.register(listener, selectors.EVENT_READ, (index, None))
            self.listeners.append(listener)
            self.ports.append(port)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while self.running:
            for event, _ in self.selector.select(0.1):
                index, pending = event.data
                if pending is None:
                    client, _ = event.fileobj.accept()
                    client.setblocking(True)
                    self.selector.register(client, selectors.EVENT_READ, (index, bytearray()))
                else:
                    self._receive(event.fileobj, index, pending)

    def _receive(self, client, index, pending):
        piece = client.recv(1 << 16)
        if not piece:
            self.selector.unregister(client)
            client.close()
            return
        pending += piece
        answers = 0
        while (key := self._take_set(pending)) is not None:
            self.keys[key] = index
            answers += 1
        client.sendall(b"+OK\r\n" * answers)

    @staticmethod
    def _take_set(pending):
        """The key of a whole `SET key ""` at the front, which is taken off."""
        head = b"*3\r\n$3\r\nSET\r\n$"
        if len(pending) <= len(head):
            return None
        assert pending.startswith(head), bytes(pending[:60])
        end = pending.find(b"\r\n", len(head))
        if end < 0:
            return None
        length = int(pending[len(head) : end])
        total = end + 2 + length + 2 + len(b"$0\r\n\r\n")
        if len(pending) < total:
            return None
        key = bytes(pending[end + 2 : end + 2 + length])
        del pending[:total]
        return key

    def close(self):
        self.running = False
        self.thread.join(5)
        for listener in self.listeners:
            listener.close()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()


@pytest.mark.parametrize("count", [25, 47, 61, 100])
def test_many_servers_round_as_nutcracker_does(place, count):
    recorder = place.keep(Recorder(count))
    pools = {}
    for distribution in DISTRIBUTIONS:
        for shape, weights in (("equal", None), ("weighted", [1 + n % 7 for n in range(count)])):
            pools[f"{shape}-{distribution}"] = {
                "redis": True,
                "distribution": distribution,
                "servers": server_lines(
                    recorder.ports, [f"node{n:x}" for n in range(count)], weights),
            }
    mine = place.cashew(pools, {"worker_processes": 1})
    theirs = place.nutcracker(pools)
    for pool in pools:
        found = []
        for gateway in (theirs, mine):
            recorder.keys.clear()
            write_all(gateway.addresses[pool], KEYS)
            found.append(dict(recorder.keys))
        assert len(found[0]) == len(KEYS)
        compare(found[1], found[0])


def memcached_placed(servers, address, keys):
    for server in servers:
        server.reset()
    with Conn(address, 30) as conn:
        conn.send(b"".join(b"set %b 0 0 1\r\nx\r\n" % key for key in keys), 16_000)
        conn.expect(b"STORED\r\n" * len(keys))
    where = {}
    for index, server in enumerate(servers):
        with server.connect() as conn:
            for at in range(0, len(keys), 50):
                conn.send(b"get " + b" ".join(keys[at : at + 50]) + b"\r\n")
                while (line := conn.read_line()) != b"END":
                    where[line.split(b" ")[1]] = index
                    conn.read(3)
    assert len(where) == len(keys)
    return where


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_memcached_pools_too(place, distribution):
    servers = [place.memcached() for _ in range(3)]
    pools = {"beta": {
        "hash": "fnv1a_64", "hash_tag": '"{}"', "distribution": distribution,
        "servers": server_lines(servers, None, [1, 2, 3])}}
    mine, theirs = place.cashew(pools, {"worker_processes": 2}), place.nutcracker(pools)
    keys = [key for key in KEYS if len(key) <= 250 and not set(key) & set(range(33))]
    assert len(keys) > 2000
    compare(memcached_placed(servers, mine.address, keys),
            memcached_placed(servers, theirs.address, keys))


def test_random_uses_every_server(farm, place):
    gateway = place.cashew({"dice": {
        "redis": True, "distribution": "random", "servers": server_lines(farm.servers)}})
    where = placed(farm.servers, gateway.address, [b"k%d" % n for n in range(500)])
    for index in range(5):
        assert list(where.values()).count(index) > 50
