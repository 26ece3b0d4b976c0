"""Random streams of commands in all three protocols: a real memcached, and Cashew before one and
before four, answer them byte for byte alike.

What is a server's own is left out: uniques become the order in which they were first seen with
their keys, and the seconds of TTLs and ages are masked. CASHEW_SEED=N runs one stream again, of one seed.
"""

import os
import random
import re
import struct
import time

import pytest

from harness import Conn, server_lines
from test_memcached_binary import packet, packets

#: Seconds for each protocol, and requests in a stream.
SECONDS = 5.0
STREAM = 300
KEYS = [b"k%d" % n for n in range(24)]


class Stack:
    def __init__(self, place):
        self.plain = place.memcached()
        self.servers = [place.memcached() for _ in range(5)]
        options = {"hash": "murmur"}
        self.gateway = place.cashew({
            "one": {**options, "servers": server_lines(self.servers[:1])},
            "four": {**options, "servers": server_lines(self.servers[1:])},
        }, {"worker_processes": 1})

    def addresses(self):
        return {"memcached": self.plain.port, **self.gateway.addresses}

    def reset(self):
        for server in (self.plain, *self.servers):
            server.reset()


@pytest.fixture(scope="module")
def stack(module_place):
    return Stack(module_place)


def value_of(chance):
    return chance.choice([b"", b"7", b"18446744073709551615", b"text", b"END\r\n", b"MN\r\n",
                          chance.randbytes(chance.choice([1, 40, 3000]))])


# ----------------------------------------------------------------------------------------- text


def text(chance):
    key, value = chance.choice(KEYS), value_of(chance)
    noreply = chance.choice([b"", b"", b"", b" noreply"])
    some = b" ".join(chance.choices(KEYS, k=chance.randint(1, 12)))
    line = chance.choice([
        b"%b %b %d %d %d%b\r\n%b\r\n" % (
            chance.choice([b"set", b"set", b"add", b"replace", b"append", b"prepend"]), key,
            chance.choice([0, 1, 65535, 4294967295]), chance.choice([0, 0, 100, -1]), len(value),
            noreply, value),
        b"cas %b 0 0 %d 999999999%b\r\n%b\r\n" % (key, len(value), noreply, value),
        b"get %b\r\n" % some, b"gets %b\r\n" % some,
        b"gat %d %b\r\n" % (chance.choice([0, 100]), some), b"gats 0 %b\r\n" % some,
        b"%b %b %b%b\r\n" % (chance.choice([b"incr", b"decr"]), key,
                             chance.choice([b"1", b"10", b"18446744073709551615", b"x", b"-1"]), noreply),
        b"delete %b%b\r\n" % (key, noreply),
        b"touch %b %d%b\r\n" % (key, chance.choice([0, 100]), noreply),
        chance.choice([b"nosuch\r\n", b"get\r\n", b"set a b c d\r\n", b"get %b\r\n" % (b"k" * 251),
                       b"set %b 0 0 1\r\n12345\r\n" % key, b"delete %b 5\r\n" % key, b"mn\r\n"]),
    ])
    return line


def text_answer(address, data, pieces):
    with Conn(address, 60.0) as conn:
        conn.send(data + b"mn\r\nget the-last\r\n", pieces)
        said = conn.read_until(b"MN\r\nEND\r\n")
    known = {}

    def unique(found):
        return b"%b%b U%d\r\n" % (found[1], found[2], known.setdefault((found[1], found[3]), len(known)))

    return re.sub(rb"(VALUE k\d+ )(\d+ \d+) (\d+)\r\n", unique, bytes(said))


# ----------------------------------------------------------------------------------------- meta


def meta(chance):
    key, value = chance.choice(KEYS), value_of(chance)

    def flags(*known):
        chosen = chance.sample(known, chance.randint(0, min(4, len(known))))
        chosen += chance.choice([[], [], [b"q"]]) + chance.choice([[], [b"O%d" % chance.randrange(999)]])
        return b"".join(b" " + flag for flag in chosen)

    bad = chance.choice([b"mg\r\n", b"mg %b !\r\n" % key, b"ms %b x\r\n" % key, b"mg %b v v\r\n" % key,
                         b"ma %b MX\r\n" % key, b"mg A b v\r\n"])
    return chance.choice([
        b"mg %b%b\r\n" % (key, flags(b"v", b"f", b"s", b"k", b"t", b"c", b"h", b"T100", b"N30", b"R20")),
        b"mg %b%b\r\n" % (key, flags(b"v", b"f", b"s", b"k", b"t", b"c")),
        b"ms %b %d%b\r\n%b\r\n" % (key, len(value), flags(b"F7", b"T0", b"T100", b"k", b"c",
                                   chance.choice([b"MS", b"ME", b"MA", b"MP", b"MR"])), value),
        b"ms %b %d%b\r\n%b\r\n" % (key, len(value), flags(b"C999999999", b"I", b"k"), value),
        b"md %b%b\r\n" % (key, flags(b"k", b"I", b"T30")),
        b"ma %b%b\r\n" % (key, flags(b"v", b"t", b"k", b"D5", b"J3", b"N30", b"MD")),
        b"mn\r\n", bad, text(chance),
    ])


def meta_answer(address, data, pieces):
    said = text_answer(address, data, pieces)
    return re.sub(rb"( [clt])(\d+)(?=[ \r])", rb"\1#", said)


# --------------------------------------------------------------------------------------- binary


def binary(chance):
    key, value = chance.choice(KEYS), value_of(chance)
    opaque = chance.randbytes(4)
    stored = struct.pack(">II", chance.choice([0, 5, 4294967295]), chance.choice([0, 100]))
    counted = struct.pack(">QQI", chance.choice([0, 1, 7, 2**64 - 1]), 5,
                          chance.choice([0, 0xFFFFFFFF]))
    unique = chance.choice([0, 0, 0, 999999999])
    touched = struct.pack(">I", chance.choice([0, 100]))
    return chance.choice([
        packet(chance.choice([0x00, 0x09, 0x0c, 0x0d]), key, opaque=opaque),
        packet(chance.choice([0x00, 0x09, 0x0c, 0x0d]), key, opaque=opaque),
        packet(chance.choice([0x01, 0x02, 0x03, 0x11, 0x12, 0x13]), key, value, stored, opaque, unique),
        packet(chance.choice([0x0e, 0x0f, 0x19, 0x1a]), key, value, opaque=opaque),
        packet(chance.choice([0x04, 0x14]), key, opaque=opaque, cas=unique),
        packet(chance.choice([0x05, 0x06, 0x15, 0x16]), key, b"", counted, opaque),
        packet(chance.choice([0x1c, 0x1d, 0x1e, 0x23, 0x24]), key, b"", touched, opaque),
        packet(0x0a, opaque=opaque), packet(0x0b, opaque=opaque), packet(0x7f, opaque=opaque),
    ])


def binary_answer(address, data, pieces):
    """Packets without their uniques, which differ from one server to the next."""
    last = packet(0x0a, opaque=b"last")
    with Conn(address, 60.0) as conn:
        conn.send(data + last, pieces)
        return packets(conn.read_until(b"\x81\x0a" + bytes(10) + b"last" + bytes(8)))


PROTOCOLS = {"text": (text, text_answer), "meta": (meta, meta_answer), "binary": (binary, binary_answer)}


def cuts(chance):
    """Sizes of the pieces in which a stream is sent."""
    return iter(lambda: chance.choice([1, 3, 50, 700, 20_000]), None)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_are_those_of_memcached(stack, protocol):
    make, answer = PROTOCOLS[protocol]
    given = os.environ.get("CASHEW_SEED")
    deadline = time.monotonic() + SECONDS
    streams = 0
    while not streams or time.monotonic() < deadline and not given:
        seed = int(given or random.randrange(1 << 32))
        print(f"CASHEW_SEED={seed}")
        chance = random.Random(seed)
        requests = [make(chance) for _ in range(STREAM)]
        stack.reset()
        answers = {name: answer(address, b"".join(requests), cuts(random.Random(seed)))
                   for name, address in stack.addresses().items()}
        expected = answers.pop("memcached")
        for name, said in answers.items():
            assert said == expected, f"{name} servers, CASHEW_SEED={seed}"
        streams += 1
