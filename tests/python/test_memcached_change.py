"""What memcached's clients notice of a change behind the gateway: of servers, of options, of workers."""

import re
import struct

import pytest

from harness import server_lines, wait_until

SET, NOOP, SASL_AUTH = 0x01, 0x0A, 0x21
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


def test_statistics_name_a_server_that_is_down(place):
    servers = [place.memcached() for _ in range(3)]
    gateway = place.cashew({"beta": {"servers": server_lines(servers, ["one", "two", "three"])}}, {"worker_processes": 2})
    with gateway.connect() as conn:
        for number in range(30):
            store(conn, b"key-%d" % number)
        servers[1].stop()

        def statistics(words):
            conn.send(words + b"\r\n")
            lines = conn.read_until(b"END\r\n").split(b"\r\n")[:-2]
            return dict(line.split(b" ", 2)[1:] for line in lines if line.startswith(b"STAT "))

        for _ in range(2):
            told = statistics(b"stats")
            assert told[b"servers_failed"] == b"1" and told[b"two:error"].startswith(b"SERVER_ERROR ")
            assert 0 < int(told[b"curr_items"]) < 30 and int(told[b"threads"]) == 2
        assert statistics(b"stats settings")[b"cas_enabled"] == b"yes"
        told = statistics(b"stats servers")
        assert b"one:pid" in told and b"three:pid" in told and b"two:error" in told and b"two:pid" not in told
        conn.send(b"flush_all\r\n")
        assert conn.read_line().startswith(b"SERVER_ERROR two: ")
        for server in (servers[0], servers[2]):
            with server.connect() as direct:
                direct.send(b"get " + b" ".join(b"key-%d" % number for number in range(30)) + b"\r\n")
                direct.expect(b"END\r\n")
        servers[1].start()
        wait_until(lambda: b"servers_failed" not in statistics(b"stats"), "the server is back")


def test_a_worker_that_retires_gives_the_whole_of_very_many_values(place):
    servers = [place.memcached() for _ in range(3)]
    pools = {"beta": {"servers": server_lines(servers)}}
    gateway = place.cashew(pools, {"worker_processes": 3})
    gateway.wait_serving()
    keys = [b"key-%d" % number for number in range(10_000)]
    values = {key: (key + b"-") * 200 for key in keys}
    with gateway.connect() as conn:
        conn.send(b"".join(b"set %b 0 0 %d noreply\r\n%b\r\n" % (key, len(value), value) for key, value in values.items()))
        conn.send(b"mn\r\n")
        conn.expect(b"MN\r\n")
    answer = b"".join(b"VALUE %b 0 %d\r\n%b\r\n" % (key, len(value), value) for key, value in values.items())
    answer += b"END\r\n"
    conns = [gateway.connect(timeout=60.0) for _ in range(6)]
    for conn in conns:
        conn.send(b"get " + b" ".join(keys) + b"\r\nmn\r\n")
        conn.expect(answer[:1000])
    # Two of three workers retire while nobody has read more than the start.
    gateway.configure(pools, worker_processes=1)
    gateway.reload()
    for conn in conns:
        conn.expect(answer[1000:] + b"MN\r\n")
    wait_until(lambda: len(gateway.workers()) == 1, "one worker")
    for conn in conns:
        conn.send(b"get key-1\r\n")
        conn.expect(b"VALUE key-1 0 %d\r\n%b\r\nEND\r\n" % (len(values[b"key-1"]), values[b"key-1"]))
        conn.close()


def test_a_reload_of_users_and_of_the_protocol_is_for_who_comes(place):
    servers = [place.memcached() for _ in range(2)]
    pool = {"servers": server_lines(servers)}
    gateway = place.cashew({"beta": pool}, {"worker_processes": 2})
    noop = packet(NOOP)

    def become(options):
        gateway.configure({"beta": {**pool, **options}})
        gateway.reload()

    with gateway.connect() as first, gateway.connect() as binary:
        store(first, b"k")
        binary.send(noop)
        assert status(binary) == 0
        become({"client_auth": "u:secret"})
        store(first, b"k")
        binary.send(noop)
        assert status(binary) == 0
        with gateway.connect() as second, gateway.connect() as third:
            second.send(b"get k\r\n")
            second.expect(b"CLIENT_ERROR unauthenticated\r\n")
            store(second, b"login", b"u secret")
            store(second, b"k")
            third.send(packet(SASL_AUTH, b"PLAIN", b"\0u\0secret"))
            assert status(third) == 0
        become({"protocol": "text"})
        store(first, b"k")
        binary.send(noop)
        assert status(binary) == 0
        with gateway.connect() as second:
            second.send(b"mn\r\n" + noop + b"\r\n")
            second.expect(b"MN\r\nERROR\r\n")
        become({"protocol": "binary"})
        store(first, b"k")
        with gateway.connect() as second, gateway.connect() as third:
            second.send(packet(SET, b"k", b"y", bytes(8)))
            assert status(second) == 0
            third.send(b"mn\r\n")
            third.expect_closed()
        first.send(b"get k\r\n")
        first.expect(b"VALUE k 0 1\r\ny\r\nEND\r\n")
