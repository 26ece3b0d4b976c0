"""What a client of memcached's binary protocol sees, byte for byte, against a bare memcached."""

import random
import struct

import pytest

from harness import Conn, cut, server_lines, wait_until
from memcached_stack import Stack, check_alike, exchange

MIB = 1 << 20
GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION, GETK, GETKQ, APPEND, PREPEND = range(16)
STAT, SETQ, ADDQ, REPLACEQ, DELETEQ, INCRQ, DECRQ, QUITQ, FLUSHQ, APPENDQ, PREPENDQ, VERBOSITY, TOUCH, GAT, GATQ = range(16, 31)
SASL_LIST, SASL_AUTH, SASL_STEP, GATK, GATKQ = 0x20, 0x21, 0x22, 0x23, 0x24
LAST = b"\x81\x0a" + bytes(10) + b"last" + bytes(8)


def packet(opcode, key=b"", value=b"", extras=b"", opaque=b"opaq", cas=0, **wrong):
    """A request; `wrong` replaces sizes by others."""
    sizes = {"magic": 0x80, "key": len(key), "extras": len(extras), "body": len(extras) + len(key) + len(value)}
    sizes |= wrong
    return struct.pack(">BBHBBHI4sQ", sizes["magic"], opcode, sizes["key"], sizes["extras"], 0, 0, sizes["body"],
                       opaque, cas) + extras + key + value


def stored(opcode, key, value, flags=0, expiry=0, **named):
    return packet(opcode, key, value, struct.pack(">II", flags, expiry), **named)


def counted(opcode, key, delta, initial=0, expiry=0, **named):
    return packet(opcode, key, b"", struct.pack(">QQI", delta, initial, expiry), **named)


def packets(data):
    """What came back: opcode, status, opaque, extras, key and value of each; uniques are each server's own."""
    found = []
    while data:
        assert len(data) >= 24, data
        magic, opcode, key, extras, _, status, body, opaque, _ = struct.unpack(">BBHBBHI4sQ", data[:24])
        assert magic == 0x81, data
        text = data[24:24 + body]
        assert len(text) == body, data
        found.append((opcode, status, opaque, text[:extras], text[extras:extras + key], text[extras + key:]))
        data = data[24 + body:]
    return found


def answer(address, data, sizes=None, timeout=20.0):
    with Conn(address, timeout) as conn:
        said, closed = exchange(conn, data, packet(NOOP, opaque=b"last"), LAST, sizes)
    return packets(said) + ["closed"] * closed


K250, K251 = b"k" * 250, b"k" * 251
ANY = bytes(range(40))

CASES = {
    "set and get": stored(SET, b"a", b"abc", 5) + packet(GET, b"a") + packet(GETK, b"a"),
    "get of nothing": packet(GET, b"a") + packet(GETK, b"a") + packet(GETQ, b"a") + packet(GETKQ, b"a"),
    "quiet gets": b"".join(stored(SETQ, b"k%d" % n, b"%d" % n, n, opaque=b"%04d" % n) for n in range(0, 30, 2))
    + b"".join(packet(opcode, b"k%d" % n, opaque=b"%04d" % n) for n in range(30) for opcode in (GETQ, GETKQ)),
    "quiet sets": stored(SETQ, b"a", b"1") + stored(ADDQ, b"a", b"2") + stored(REPLACEQ, b"b", b"1")
    + packet(APPENDQ, b"a", b"2") + packet(PREPENDQ, b"a", b"0") + packet(APPENDQ, b"c", b"2") + packet(GET, b"a")
    + packet(DELETEQ, b"a") + packet(DELETEQ, b"a") + stored(SETQ, b"a", b"2", cas=99999999) + packet(GETQ, b"a"),
    "storage": stored(ADD, b"a", b"1") + stored(ADD, b"a", b"2") + stored(REPLACE, b"a", b"3", 7)
    + stored(REPLACE, b"b", b"3") + packet(APPEND, b"a", b"4") + packet(PREPEND, b"a", b"2") + packet(APPEND, b"z", b"4")
    + packet(GET, b"a") + packet(DELETE, b"a") + packet(DELETE, b"a"),
    "cas": stored(SET, b"a", b"1") + stored(SET, b"a", b"2", cas=99999999) + stored(SET, b"b", b"2", cas=5)
    + packet(DELETE, b"a", cas=99999999) + packet(APPEND, b"a", b"x", cas=99999999) + counted(INCR, b"a", 1, cas=99999999)
    + packet(GET, b"a"),
    "keys of any bytes": stored(SET, ANY, b"1") + packet(GETK, ANY) + stored(SET, b"a\r\nb \0", b"2")
    + packet(GETK, b"a\r\nb \0") + stored(SET, K250, b"3") + packet(GETK, K250) + packet(DELETE, ANY),
    "values of any bytes": stored(SET, b"a", bytes(range(256)) * 3) + packet(GET, b"a"),
    "nothing as a value": stored(SET, b"a", b"", 3) + packet(GET, b"a") + packet(GETKQ, b"a") + packet(APPEND, b"a", b""),
    "counters": counted(INCR, b"n", 5, 10) + counted(INCR, b"n", 5, 10) + counted(DECR, b"n", 100) + packet(GET, b"n")
    + counted(INCR, b"m", 1, expiry=0xffffffff) + counted(INCRQ, b"n", 3) + counted(DECRQ, b"n", 1)
    + counted(INCRQ, b"m", 1, expiry=0xffffffff) + counted(INCR, b"n", 2**64 - 1) + stored(SET, b"t", b"x")
    + counted(INCR, b"t", 1) + counted(INCRQ, b"t", 1),
    "touch": stored(SET, b"a", b"1", 9) + packet(TOUCH, b"a", extras=struct.pack(">I", 100))
    + packet(TOUCH, b"b", extras=struct.pack(">I", 100)) + packet(GAT, b"a", extras=bytes(4))
    + packet(GATK, b"a", extras=bytes(4)) + packet(GATQ, b"a", extras=bytes(4)) + packet(GATQ, b"b", extras=bytes(4))
    + packet(GATKQ, b"a", extras=bytes(4)) + packet(GATKQ, b"b", extras=bytes(4)) + packet(GATK, b"b", extras=bytes(4)),
    "expiry": stored(SET, b"a", b"1", expiry=100) + packet(GET, b"a") + stored(SET, b"a", b"1", expiry=2592001)
    + packet(GET, b"a"),
    "noop and version": packet(NOOP, opaque=b"1234") + packet(VERSION) + packet(NOOP),
    "flush": stored(SET, b"a", b"1") + stored(SET, b"b", b"1") + packet(FLUSH) + packet(GET, b"a") + packet(GET, b"b")
    + packet(FLUSHQ) + packet(FLUSH, extras=bytes(4)) + packet(FLUSHQ, extras=bytes(4)),
    "quit": stored(SET, b"a", b"1") + packet(QUIT) + packet(GET, b"a"),
    "quiet quit": stored(SET, b"a", b"1") + packet(QUITQ) + packet(GET, b"a"),
    "too large": stored(SET, b"a", b"1") + stored(SET, b"a", b"x" * 2_000_000) + packet(GET, b"a")
    + stored(ADDQ, b"a", b"x" * 2_000_000) + packet(APPEND, b"a", b"x" * 2_000_000) + packet(GET, b"a"),
    "large": stored(SETQ, b"a", b"x" * 1_000_000) + packet(GETQ, b"a") + packet(GETKQ, b"a") + packet(GET, b"a"),
    "sasl without users": packet(SASL_LIST) + packet(SASL_AUTH, b"PLAIN", b"\0a\0b") + packet(SASL_STEP, b"PLAIN", b"x")
    + packet(NOOP),
    "unknown": packet(0x1f) + packet(0x25) + packet(0xff) + packet(GET, b"a"),
    "no statistics": packet(STAT, b"nosuch"),
    "bad magic": packet(NOOP) + packet(NOOP, magic=0x79),
    "key longer than body": packet(NOOP) + packet(GET, b"abc", body=2),
    "extras longer than body": packet(NOOP) + packet(SET, b"a", extras=bytes(8), body=8),
    "key of 251": packet(NOOP) + packet(GET, K251),
    "get without key": packet(NOOP) + packet(GET),
    "get with value": packet(NOOP) + packet(GET, b"a", b"b"),
    "get with extras": packet(NOOP) + packet(GET, b"a", extras=bytes(4)),
    "set without extras": packet(NOOP) + packet(SET, b"a", b"b"),
    "set without key": packet(NOOP) + stored(SET, b"", b"b"),
    "append with extras": packet(NOOP) + packet(APPEND, b"a", b"b", bytes(8)),
    "incr with short extras": packet(NOOP) + packet(INCR, b"a", extras=bytes(12)),
    "noop with a body": packet(NOOP) + packet(NOOP, b"a"),
    "version with a body": packet(NOOP) + packet(VERSION, b"a"),
    "flush with a key": packet(NOOP) + packet(FLUSH, b"a"),
    "flush with short extras": packet(NOOP) + packet(FLUSH, extras=bytes(2)),
    "touch without extras": packet(NOOP) + packet(TOUCH, b"a"),
    "stat with extras": packet(NOOP) + packet(STAT, extras=bytes(4)),
}


@pytest.mark.parametrize("kind", ["whole", "bytes", "random"])
@pytest.mark.parametrize("name", CASES)
def test_answers_as_memcached_does(stack, name, kind):
    data = CASES[name]
    expected = answer(stack.plain.port, data)
    assert answer(stack.gateway.address, data, cut(kind, len(data))) == expected


def test_both_protocols_on_one_port(stack):
    """They see the same keys, and each keeps to what its first byte was."""
    with stack.gateway.connect() as text, stack.gateway.connect() as binary:
        text.send(b"set a 7 0 1\r\n1\r\nms AAEC 1 b\r\n2\r\n\x80 is no command\r\n")
        text.expect(b"STORED\r\nHD\r\nERROR\r\n")
        binary.send(packet(GETK, b"a") + packet(GETK, b"\0\1\2") + stored(SETQ, b"b", b"3", 9) + packet(NOOP, opaque=b"last"))
        found = packets(binary.read_until(LAST))
        assert [(text, value) for *_, text, value in found[:2]] == [(b"a", b"1"), (b"\0\1\2", b"2")]
        text.send(b"get b\r\n")
        text.expect(b"VALUE b 9 1\r\n3\r\nEND\r\n")


def test_verbosity_is_told_to_every_server(stack):
    with stack.gateway.connect() as conn:
        conn.send(packet(VERBOSITY, extras=struct.pack(">I", 0)) + packet(NOOP, opaque=b"last"))
        [told, _] = packets(conn.read_until(LAST))
        assert told[:2] == (VERBOSITY, 0)


def test_uniques_go_in_and_out(stack):
    with stack.gateway.connect() as conn:
        for n in range(20):
            key = b"k%d" % n
            conn.send(stored(SET, key, b"1"))
            unique = struct.unpack(">Q", conn.read(24)[16:])[0]
            assert unique > 0
            conn.send(stored(SET, key, b"2", cas=unique) + stored(SETQ, key, b"3", cas=unique) + packet(GET, key)
                      + packet(NOOP, opaque=b"last"))
            found = packets(conn.read_until(LAST))
            assert [status for _, status, *_ in found] == [0, 2, 0, 0] and found[2][5] == b"2"


def test_a_long_quiet_batch_over_all_servers(stack):
    """10,000 gets, half of which hit, come in their order and before the NOOP behind them."""
    with stack.gateway.connect(timeout=60) as conn:
        conn.send(b"".join(stored(SETQ, b"key-%d" % n, b"%d" % n) for n in range(0, 10_000, 2)) + packet(NOOP, opaque=b"last"))
        conn.expect(LAST)
        conn.send(b"".join(packet(GETKQ, b"key-%d" % n, opaque=struct.pack(">I", n)) for n in range(10_000))
                  + packet(NOOP, opaque=b"last"))
        found = packets(conn.read_until(LAST, 60)[: -len(LAST)])
        assert found == [(GETKQ, 0, struct.pack(">I", n), bytes(4), b"key-%d" % n, b"%d" % n) for n in range(0, 10_000, 2)]


def test_random_streams(stack):
    chance = random.Random(11)
    for _ in range(3):
        data = b""
        for n in range(1500):
            key = chance.choice([b"p%d" % chance.randrange(30), bytes([chance.randrange(8), 0, 10])])
            value = chance.randbytes(chance.choice((0, 1, 10, 2000)))
            named = {"opaque": struct.pack(">I", n)}
            data += chance.choice([
                lambda: stored(chance.choice([SET, SETQ, ADD, ADDQ, REPLACE, REPLACEQ]), key, value, n, **named),
                lambda: stored(chance.choice([SET, SETQ]), key, b"10", **named),
                lambda: packet(chance.choice([GET, GETQ, GETK, GETKQ]), key, **named),
                lambda: packet(chance.choice([GAT, GATQ, GATK, GATKQ]), key, extras=bytes(4), **named),
                lambda: packet(chance.choice([DELETE, DELETEQ]), key, **named),
                # What shrinks is filled up with spaces or not, as other replies are on their way.
                lambda: counted(chance.choice([INCR, INCRQ]), key, n, 7, **named),
                lambda: packet(chance.choice([APPEND, APPENDQ, PREPEND, PREPENDQ]), key, value, **named),
                lambda: packet(chance.choice([NOOP, 0x1f]), **named),
            ])()
        check_alike(stack, answer, data)


def test_one_large_value(place):
    """8 MiB pass on their way in and out, with the name under which the client asked."""
    server = place.memcached("-I", "16m", "-m", "256")
    gateway = place.cashew({"beta": {"servers": server_lines([server])}}, {"worker_processes": 1})
    value = random.Random(1).randbytes(8 * MIB)
    data = (stored(SETQ, b"big", value, 7, opaque=b"0001") + packet(GETKQ, b"big", opaque=b"0002")
            + stored(ADDQ, b"big", value, opaque=b"0003") + stored(SET, b"big", value, opaque=b"0004") + packet(GETQ, b"big"))
    found = answer(gateway.address, data, timeout=60)
    flags = struct.pack(">I", 7)
    assert found[:3] == [(GETKQ, 0, b"0002", flags, b"big", value), (ADDQ, 2, b"0003", b"", b"", b"Data exists for key."),
                         (SET, 0, b"0004", b"", b"", b"")]
    assert found[3] == (GETQ, 0, b"opaq", bytes(4), b"", value)


def statistics(conn, key=b""):
    conn.send(packet(STAT, key, opaque=b"stat"))
    found = {}
    while True:
        header = conn.read(24)
        body = conn.read(struct.unpack(">I", header[8:12])[0])
        size = struct.unpack(">H", header[2:4])[0]
        assert header[1] == STAT and header[6:8] == b"\0\0" and header[12:16] == b"stat", (header, body)
        if not body:
            return found
        assert body[:size] not in found
        found[body[:size]] = body[size:]


def test_statistics_of_all_servers(place):
    stack = Stack(place)
    with stack.gateway.connect() as conn:
        conn.send(b"".join(stored(SETQ, b"key-%d" % n, b"x") for n in range(100)) + packet(NOOP, opaque=b"last"))
        conn.expect(LAST)
        every = statistics(conn)
        alone = []
        for server in stack.servers:
            with server.connect() as direct:
                alone.append(statistics(direct))
        assert list(every) == list(alone[0]) and every[b"curr_items"] == b"100"
        assert len(statistics(conn, b"servers")) == sum(len(one) for one in alone)
        assert statistics(conn, b"settings")[b"cas_enabled"] == b"yes"
        assert statistics(conn, b"items")[b"items:1:number"] == b"100"
        assert statistics(conn, b"reset") == {}


@pytest.mark.parametrize("on_failure", ["error", "miss"])
def test_a_server_that_is_gone(place, on_failure):
    server = place.memcached()
    gateway = place.cashew(
        {"beta": {"servers": server_lines([server]), "on_failure": on_failure, "timeout": 500}}, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(stored(SET, b"a", b"1"))
        conn.read(24)
    server.stop()
    failure = 0x86

    def is_noticed():
        return answer(gateway.address, stored(SET, b"a", b"1"))[0][1] == failure

    wait_until(is_noticed, "the gateway notices")
    found = answer(gateway.address, packet(GET, b"a", opaque=b"0001") + packet(GETKQ, b"a", opaque=b"0002")
                   + packet(GETK, b"a", opaque=b"0003") + packet(GATQ, b"a", extras=bytes(4), opaque=b"0004")
                   + packet(DELETEQ, b"a", opaque=b"0005") + counted(INCR, b"a", 1, opaque=b"0006"))
    told = [(opcode, status, opaque) for opcode, status, opaque, *_ in found]
    writes = [(DELETEQ, failure, b"0005"), (INCR, failure, b"0006")]
    if on_failure == "miss":
        assert told == [(GET, 1, b"0001"), (GETK, 1, b"0003"), *writes]
        assert found[1][4] == b"a" and found[0][5] == b"Not found"
    else:
        assert told == [(GET, failure, b"0001"), (GETKQ, failure, b"0002"), (GETK, failure, b"0003"),
                        (GATQ, failure, b"0004"), *writes]


def test_users_are_asked_for(place):
    gateway = place.cashew(
        {"beta": {"servers": server_lines([place.memcached()]), "client_auth": "ann:one bob:two"}}, {"worker_processes": 1})
    refused = b"Auth failure."
    assert answer(gateway.address, packet(GET, b"a"))[-2:] == [(GET, 0x20, b"opaq", b"", b"", refused), "closed"]
    with gateway.connect() as conn:
        conn.send(packet(SASL_LIST) + packet(VERSION) + packet(SASL_AUTH, b"PLAIN", b"\0ann\0two")
                  + packet(SASL_AUTH, b"CRAM-MD5", b"x") + packet(SASL_STEP, b"PLAIN", b"x")
                  + packet(SASL_AUTH, b"PLAIN", b"\0ann\0one") + packet(NOOP, opaque=b"last"))
        found = packets(conn.read_until(LAST)[: -len(LAST)])
        assert found[0][1:] == (0, b"opaq", b"", b"", b"PLAIN") and found[1][1] == 0
        assert [entry[1] for entry in found[2:5]] == [0x20] * 3
        assert found[5][1:] == (0, b"opaq", b"", b"", b"Authenticated")
        conn.send(stored(SET, b"a", b"1") + packet(NOOP, opaque=b"last"))
        assert packets(conn.read_until(LAST))[0][:2] == (SET, 0)


@pytest.mark.parametrize("protocol, speaks_text, speaks_binary",
                         [("auto", True, True), ("text", True, False), ("binary", False, True)])
def test_a_pool_may_speak_one_of_them_only(place, protocol, speaks_text, speaks_binary):
    gateway = place.cashew(
        {"beta": {"servers": server_lines([place.memcached()]), "protocol": protocol}}, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(b"mn\r\n")
        if speaks_text:
            conn.expect(b"MN\r\n")
        else:
            conn.expect_closed()
    with gateway.connect() as conn:
        conn.send(packet(NOOP, opaque=b"last") + (b"" if speaks_binary else b"\r\n"))
        if speaks_binary:
            conn.expect(LAST)
        else:
            conn.expect(b"ERROR\r\n")
