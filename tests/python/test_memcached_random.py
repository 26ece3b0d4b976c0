"""Random streams of commands in all three protocols: a real memcached, and Cashew before one and
before four, answer them byte for byte alike.

What is a server's own is left out: uniques become the order in which they were first seen with
their keys, and the seconds of TTLs and ages are masked. So is what the protocol does not promise,
and a memcached does by chance:

- A number that gets shorter is padded with blanks, or not if a reply with it is still to be written.
  Here numbers have twenty digits always, nor are counted items made stale, or asked whether they were
  hit before: what is made anew is neither.
- A `get` of a key that is too long drops the replies to what came in one piece with it.

CASHEW_SEEDS=FIRST-LAST runs other streams, as many as one likes.
"""

import binascii
import os
import random
import re
import struct

import pytest

from harness import Conn, server_lines
from test_memcached_binary import packet, packets

pytestmark = pytest.mark.certain

#: Streams of each kind, and what they are made of. Between segments uniques are looked up.
SEEDS = range(12)
SEGMENTS, REQUESTS = 10, 40
KEYS = [b"k%d" % n for n in range(20)]
#: Keys that only the binary protocol can say, and the meta commands in base64.
BINARY_KEYS = [b"\0\r\n \xff", b"get a\r\n", bytes(range(250))]
COUNTERS = [b"n%d" % n for n in range(6)]
NUMBER = 15 * 10**18


class Stack:
    def __init__(self, place):
        self.plain = place.memcached()
        self.servers = [place.memcached() for _ in range(5)]
        names = [f"shard-{n}" for n in range(4)]
        options = {"hash": "murmur", "distribution": "modula"}
        self.gateway = place.cashew({
            "one": {**options, "command_policy": "admin", "servers": server_lines(self.servers[:1], names[:1])},
            "four": {**options, "command_policy": "admin", "servers": server_lines(self.servers[1:], names)},
        }, {"worker_processes": 1})

    def addresses(self):
        return {"memcached": self.plain.port, **self.gateway.addresses}

    def reset(self):
        for server in (self.plain, *self.servers):
            server.reset()


@pytest.fixture(scope="module")
def stack(module_place):
    return Stack(module_place)


class Unique:
    """Stands in a request for the unique of a key, in text or as a number."""

    def __init__(self, key, make):
        self.key, self.make = key, make


def item_of(chance):
    """A key and a value that it may have."""
    if chance.random() < 0.2:
        return chance.choice(COUNTERS), b"%d" % (NUMBER + chance.randrange(1000))
    return chance.choice(KEYS), chance.choice([
        b"", b"\xff", b"text", b"END\r\n", b"MN\r\n", b"VALUE k1 0 1", chance.randbytes(40),
        chance.randbytes(3000)])


def key_of(chance):
    return chance.choice(chance.choice([KEYS, KEYS, COUNTERS]))


# ----------------------------------------------------------------------------------------- text


def text(chance):
    (key, value), any_key = item_of(chance), key_of(chance)
    counter = chance.choice([*COUNTERS * 3, *KEYS])
    noreply = chance.choice([b"", b"", b"", b" noreply"])
    some = b" ".join(key_of(chance) for _ in range(chance.choice([1, 2, 5, 12, 12, 300])))
    flags = chance.choice([0, 1, 65535, 4294967295])
    return chance.choice([
        b"%b %b %d %d %d%b\r\n%b\r\n" % (
            chance.choice([b"set", b"set", b"set", b"add", b"replace"]), key, flags,
            chance.choice([0, 0, 100, -1]), len(value), noreply, value),
        # Digits to digits make no number.
        b"%b %b %d 0 %d%b\r\n%b\r\n" % (chance.choice([b"append", b"prepend"]), key, flags, len(value),
                                        noreply, value),
        Unique(key, lambda unique: b"cas %b %d 0 %d %d%b\r\n%b\r\n" % (
            key, flags, len(value), unique, noreply, value)),
        b"cas %b 0 0 %d 999999999999%b\r\n%b\r\n" % (key, len(value), noreply, value),
        b"get %b\r\n" % some, b"gets %b\r\n" % some,
        b"gat %d %b\r\n" % (chance.choice([0, 100]), some), b"gats 0 %b\r\n" % some,
        b"incr %b %b%b\r\n" % (
            counter, chance.choice([b"1", b"10", b"18446744073709551615", b"x", b"-1"]), noreply),
        b"decr %b %b%b\r\n" % (counter, chance.choice([b"1", b"10", b"0", b"x", b"-1"]), noreply),
        b"delete %b%b\r\n" % (any_key, noreply),
        b"touch %b %d%b\r\n" % (any_key, chance.choice([0, 100]), noreply),
        chance.choice([b"nosuch\r\n", b"get\r\n", b"set a b c d\r\n", b"set %b 0 0 1\r\n12345\r\n" % key,
                       b"delete %b 5\r\n" % key, b"mn\r\n", b"version\r\n", b"touch %b\r\n" % key,
                       b"set %b 0 0 2000000\r\n%b\r\n" % (key, bytes(2_000_000)),
                       b"flush_all%b\r\n" % noreply, b"verbosity 1%b\r\n" % noreply]),
    ])


def text_answer(conn, data, pieces):
    conn.send(data + b"mn\r\nset last 0 0 16 noreply\r\nthe-stream-is-at\r\nget last\r\n", pieces)
    return conn.read_until(b"VALUE last 0 16\r\nthe-stream-is-at\r\nEND\r\n")


def text_unique(conn, key):
    conn.send(b"gets %b\r\n" % key)
    line = conn.read_line()
    if line == b"END":
        return 1
    _, _, _, length, unique = line.split()
    conn.read(int(length) + len(b"\r\nEND\r\n"))
    return int(unique)


def without_uniques(said):
    known = {}

    def unique(found):
        return b"%b%b U%d\r\n" % (found[1], found[2], known.setdefault((found[1], found[3]), len(known)))

    return re.sub(rb"(VALUE [kn]\d+ )(\d+ \d+) (\d+)\r\n", unique, said)


# ----------------------------------------------------------------------------------------- meta


def meta(chance):
    (key, value), any_key = item_of(chance), key_of(chance)
    counter = chance.choice(COUNTERS)  # which they are made if they are not there

    def flags(*known):
        chosen = chance.sample(known, chance.randint(0, min(4, len(known))))
        chosen += chance.choice([[], [], [b"q"]])
        chosen += chance.choice([[], [b"O%d" % chance.randrange(999)]])
        return b"".join(b" " + flag for flag in chosen)

    base64 = binascii.b2a_base64(chance.choice(BINARY_KEYS), newline=False)
    mode = chance.choice([b"MS", b"ME", b"MA", b"MP", b"MR"])
    bad = chance.choice([
        b"mg\r\n", b"mg %b !\r\n" % key, b"mg %b v v\r\n" % key, b"ma %b MX\r\n" % counter, b"mg A b v\r\n",
        b"ms %b x\r\n" % key, b"ms %b 2 T1 T2\r\nab\r\n" % key])
    stale = [b"I"] if key in KEYS else []
    set_flags = flags(b"F7", b"T0", *stale, b"k", b"c")
    change_flags = flags(b"k", *stale, b"T30", b"x")
    return chance.choice([
        b"mg %b%b\r\n" % (chance.choice(KEYS), flags(b"v", b"f", b"s", b"k", b"t", b"c", b"h", b"T100",
                                                     b"N30", b"R20")),
        b"mg %b%b\r\n" % (any_key, flags(b"v", b"f", b"s", b"k", b"t", b"c", b"b")),
        b"ms %b %d%b\r\n%b\r\n" % (key, len(value), flags(b"F7", b"T0", b"T100", b"k", b"c", mode), value),
        Unique(key, lambda unique: b"ms %b %d C%d%b\r\n%b\r\n" % (
            key, len(value), unique, set_flags, value)),
        b"ms %b %d C999999999999%b\r\n%b\r\n" % (key, len(value), set_flags, value),
        b"ms %b %d b%b\r\n%b\r\n" % (base64, len(value), flags(b"k", b"T0"), value),
        # It would tell the key of what was stored in binary as it is, line ends included.
        b"mg %b b%b\r\n" % (base64, flags(b"v", b"s", b"f")),
        b"md %b%b\r\n" % (any_key, flags(b"k")),
        b"md %b%b\r\n" % (key, flags(b"k", b"T30", *stale)),
        Unique(key, lambda unique: b"md %b C%d%b\r\n" % (key, unique, change_flags)),
        b"ma %b%b\r\n" % (counter, flags(b"v", b"t", b"k", b"D5", b"N30 J%d" % NUMBER,
                                         chance.choice([b"MI", b"MD"]))),
        b"mn\r\n", bad, text(chance),
    ])


def without_seconds(said):
    return re.sub(rb"( [clt])(\d+)(?=[ \r])", rb"\1#", said)


# --------------------------------------------------------------------------------------- binary


def binary(chance):
    (key, value), any_key = item_of(chance), key_of(chance)
    if key in KEYS and chance.random() < 0.2:
        key = any_key = chance.choice(BINARY_KEYS)
    counter = chance.choice(COUNTERS)  # which they are made if they are not there
    opaque = chance.randbytes(4)
    stored = struct.pack(">II", chance.choice([0, 5, 4294967295]), chance.choice([0, 100]))
    forever = chance.choice([0, 0xFFFFFFFF])
    up = struct.pack(">QQI", chance.choice([0, 1, 7, 2**64 - 1]), NUMBER, forever)
    down = struct.pack(">QQI", chance.choice([0, 1, 7]), NUMBER, forever)
    unique = chance.choice([0, 0, 0, 999999999999])
    touched = struct.pack(">I", chance.choice([0, 100]))
    store = chance.choice([0x01, 0x02, 0x03, 0x11, 0x12, 0x13])
    get = [packet(chance.choice([0x00, 0x09, 0x0c, 0x0d]), asked, opaque=opaque)
           for asked in (key_of(chance), any_key)]
    return chance.choice([
        *get,
        packet(store, key, value, stored, opaque, unique), packet(store, key, value, stored, opaque),
        Unique(key, lambda unique: packet(store, key, value, stored, opaque, unique)),
        packet(chance.choice([0x0e, 0x0f, 0x19, 0x1a]), key, value, opaque=opaque),
        packet(chance.choice([0x04, 0x14]), any_key, opaque=opaque, cas=unique),
        Unique(any_key, lambda unique: packet(0x04, any_key, opaque=opaque, cas=unique)),
        packet(chance.choice([0x05, 0x15]), counter, b"", up, opaque),
        packet(chance.choice([0x06, 0x16]), counter, b"", down, opaque),
        packet(chance.choice([0x1c, 0x1d, 0x1e, 0x23, 0x24]), any_key, b"", touched, opaque),
        chance.choice([
            packet(0x0a, opaque=opaque), packet(0x0b, opaque=opaque), packet(0x7f, opaque=opaque),
            packet(chance.choice([0x08, 0x18]), opaque=opaque),
            packet(0x01, key, bytes(2_000_000), stored, opaque)]),
    ])


def binary_answer(conn, data, pieces):
    conn.send(data + packet(0x0a, opaque=b"last"), pieces)
    return conn.read_until(b"\x81\x0a" + bytes(10) + b"last" + bytes(8))


def binary_unique(conn, key):
    conn.send(packet(0x00, key))
    head = conn.read(24)
    _, _, _, _, _, status, length, _, unique = struct.unpack(">BBHBBHI4sQ", head)
    conn.read(length)
    return 1 if status else unique


# -------------------------------------------------------------------------------------- streams


ASCII = (text_answer, text_unique, lambda said: without_seconds(without_uniques(said)))
PROTOCOLS = {
    "text": (text, text_answer, text_unique, without_uniques),
    "meta": (meta, *ASCII),
    # Without the uniques.
    "binary": (binary, binary_answer, binary_unique, packets),
}
KINDS = {"text": ["text"], "meta": ["meta"], "binary": ["binary"], "mixed": ["text", "meta", "binary"]}


def segments(seed, kind):
    """Segments of a stream: a protocol and its requests."""
    chance = random.Random(f"{seed} {kind}")
    chosen = [chance.choice(KINDS[kind]) for _ in range(SEGMENTS)]
    return [(protocol, [PROTOCOLS[protocol][0](chance) for _ in range(REQUESTS)]) for protocol in chosen]


def cuts(seed):
    """Sizes of the pieces in which a stream is sent."""
    chance = random.Random(seed)
    return iter(lambda: chance.choice([1, 3, 50, 700, 20_000, 60_000]), None)


def answers(address, seed, stream):
    """What an address answers to each segment."""
    connections, found = {}, []
    try:
        for protocol, requests in stream:
            _, answer, unique, comparable = PROTOCOLS[protocol]
            way = "binary" if protocol == "binary" else "text"
            if way not in connections:
                connections[way] = Conn(address, 60.0)
            conn = connections[way]
            data = b"".join(request.make(unique(conn, request.key)) if isinstance(request, Unique) else request
                            for request in requests)
            found.append(comparable(answer(conn, data, cuts(seed))))
    finally:
        for conn in connections.values():
            conn.close()
    return found


def seeds():
    first, _, last = os.environ.get("CASHEW_SEEDS", f"{SEEDS[0]}-{SEEDS[-1]}").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_memcached(stack, kind):
    for seed in seeds():
        stream = segments(seed, kind)
        stack.reset()
        said = {name: answers(address, seed, stream) for name, address in stack.addresses().items()}
        expected = said.pop("memcached")
        for name, found in said.items():
            for number, (one, other) in enumerate(zip(found, expected)):
                at = next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), 0)
                assert one == other, (
                    f"{name}, CASHEW_SEEDS={seed}, segment {number}: {one[max(0, at - 60):at + 100]!r}, "
                    f"where memcached says {other[max(0, at - 60):at + 100]!r}")


def test_no_key_makes_a_reply(stack):
    """A server tells the key of what was stored in binary as it is, which could be anything."""
    key = b"k\r\nVALUE victim 0 6\r\nforged\r\nEND\r\n"
    base64 = binascii.b2a_base64(key, newline=False)
    address = stack.gateway.addresses["one"]
    with Conn(address) as attacker, Conn(address) as other:
        assert [found[1] for found in packets(binary_answer(
            attacker, packet(0x01, key, b"x", bytes(8)), None))] == [0, 0]
        for request in (b"mg %b b k v\r\n", b"mg %b k b q\r\n", b"me %b b\r\n"):
            other.send(request % base64 + b"get victim\r\nmn\r\n")
            said = other.read_until(b"MN\r\n")
            assert said.startswith(b"CLIENT_ERROR a key with a line feed") and b"forged" not in said
        other.send(b"mg %b b v\r\n" % base64)
        other.expect(b"VA 1\r\nx\r\n")
