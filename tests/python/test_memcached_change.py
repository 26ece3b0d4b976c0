"""What memcached's clients notice of a change behind the gateway: of servers, of options, of workers."""

import re
import struct

import pytest

from harness import server_lines

SET = 0x01
EXISTS = 2
# By these keys are dealt, whatever addresses they stand for.
NAMES = ["one", "two"]


def packet(opcode, key=b"", value=b"", extras=b"", cas=0):
    body = extras + key + value
    return struct.pack(">BBHBBHI4sQ", 0x80, opcode, len(key), len(extras), 0, 0, len(body), b"opaq", cas) + body


def status(conn):
    """Of the packet that comes next."""
    header = conn.read(24)
    (body,) = struct.unpack(">I", header[8:12])
    conn.read(body)
    return struct.unpack(">H", header[6:8])[0]


def unique_of(conn, key):
    conn.send(b"gets %b\r\n" % key)
    line = conn.read_line()
    found = re.fullmatch(rb"VALUE \S+ \d+ (\d+) (\d+)", line.rstrip(b"\r\n"))
    assert found, line
    conn.read(int(found[1]) + 2)
    conn.expect(b"END\r\n")
    return int(found[2])


def store(conn, key, value=b"x"):
    conn.send(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value))
    conn.expect(b"STORED\r\n")


def holder(servers, key):
    """The server that has the key, and another."""
    for server in servers:
        with server.connect() as conn:
            conn.send(b"get %b\r\n" % key)
            if conn.read_line().startswith(b"VALUE"):
                return server, next(other for other in servers if other is not server)
    raise AssertionError("no server has it")


@pytest.mark.parametrize("uniques", ["auto", "plain"])
def test_a_unique_of_the_former_server_does_not_match_by_chance(place, uniques):
    """The key moves to a server whose unique for it is the same number. Without tags that is a lost update."""
    servers = [place.memcached() for _ in range(2)]
    pool = {"distribution": "modula", "cas_uniques": uniques}
    gateway = place.cashew({"beta": {**pool, "servers": server_lines(servers, NAMES)}}, {"worker_processes": 2})
    with gateway.connect() as conn, gateway.connect() as binary:
        for _ in range(50):
            store(conn, b"k", b"old")
        first, second = holder(servers, b"k")
        with first.connect() as direct:
            number = unique_of(direct, b"k")
        unique = unique_of(conn, b"k")
        assert (unique == number) == (uniques == "plain")
        gateway.configure({"beta": {**pool, "servers": server_lines(servers[::-1], NAMES)}})
        gateway.reload()
        conn.send(b"cas k 0 0 1 %d\r\n1\r\nms k 1 C%d\r\n2\r\n" % (unique, unique))
        conn.expect(b"NOT_FOUND\r\nNF\r\n")
        with second.connect() as direct:
            store(direct, b"k", b"new")
            while unique_of(direct, b"k") < number:
                store(direct, b"k", b"new")
            assert unique_of(direct, b"k") == number
            if uniques == "plain":
                conn.send(b"cas k 0 0 4 %d\r\nlost\r\n" % unique)
                conn.expect(b"STORED\r\n")
                return
            conn.send(b"cas k 0 0 1 %d\r\n1\r\nms k 1 C%d\r\n2\r\nmd k C%d\r\n" % ((unique,) * 3))
            conn.expect(b"EXISTS\r\nEX\r\nEX\r\n")
            binary.send(packet(SET, b"k", b"3", bytes(8), cas=unique))
            assert status(binary) == EXISTS
            direct.send(b"get k\r\n")
            direct.expect(b"VALUE k 0 3\r\nnew\r\nEND\r\n")
        # The next one, got of the server that has it now, is good, in whichever protocol.
        conn.send(b"cas k 0 0 1 %d\r\n4\r\n" % unique_of(conn, b"k"))
        conn.expect(b"STORED\r\n")
        conn.send(b"ms k 1 C%d c\r\n5\r\n" % unique_of(conn, b"k"))
        assert conn.read(4) == b"HD c"
        binary.send(packet(SET, b"k", b"6", bytes(8), cas=int(conn.read_line())))
        assert status(binary) == 0


def test_uniques_are_good_after_a_reorder_and_an_upgrade_and_from_any_worker(place):
    servers = [place.memcached() for _ in range(3)]
    names = ["one", "two", "three"]
    gateway = place.cashew({"beta": {"servers": server_lines(servers, names)}}, {"worker_processes": 2})
    keys = [b"key-%d" % number for number in range(30)]

    def check(change):
        with gateway.connect() as conn:
            uniques = {}
            for key in keys:
                store(conn, key)
                uniques[key] = unique_of(conn, key)
        change()
        conns = [gateway.connect() for _ in range(4)]
        for number, (key, unique) in enumerate(uniques.items()):
            conn = conns[number % len(conns)]
            conn.send((b"cas %b 0 0 1 %d\r\ny\r\n" % (key, unique)) * 2)
            conn.expect(b"STORED\r\nEXISTS\r\n")
        for conn in conns:
            conn.close()

    def reorder():
        gateway.configure({"beta": {"servers": server_lines(servers[::-1], names[::-1])}})
        gateway.reload()

    def upgrade():
        done = gateway.order("upgrade")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    check(lambda: None)
    check(reorder)
    check(upgrade)


def test_one_server_gives_its_own_uniques(place):
    server = place.memcached()
    gateway = place.cashew({"beta": {"servers": server_lines([server])}}, {"worker_processes": 1})
    with gateway.connect() as conn, server.connect() as direct:
        store(conn, b"k")
        assert unique_of(conn, b"k") == unique_of(direct, b"k")
