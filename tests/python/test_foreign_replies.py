"""Nobody gets another's reply: lines that servers read in their own way, beside clients that watch
every reply on the same connection; and servers whose replies do not fit."""

import base64
import contextlib
import random
import socket
import struct
import threading

import pytest

from harness import HOST, free_port, server_lines, wait_until
from test_stats import metrics

pytestmark = pytest.mark.certain

#: What servers take for an order to be silent, or answer in a shape of its own.
ADMIN = [
    b"slabs automove noreply",
    b"slabs automove 0 noreply noreply",
    b"slabs automove ratio noreply noreply",
    b"slabs reassign 1 noreply",
    b"lru noreply noreply",
    b"lru mode noreply noreply",
    b"lru temp_ttl 1 2 noreply",
    b"lru tune 1 2 3 4 noreply noreply",
    b"extstore noreply noreply",
    b"extstore item_age 1 noreply noreply",
    b"cache_memlimit noreply noreply",
    b"refresh_certs noreply noreply",
    b"refresh_certs noreply",
    b"lru_crawler enable noreply",
    b"lru_crawler crawl 1 noreply",
    b"verbosity noreply noreply",
    b"verbosity 0 noreply noreply",
    b"flush_all 1000000 noreply noreply",
    b"stats sizes_enable",
    b"stats sizes_disable",
    b"stats noreply",
    b"stats detail",
    b"stats detail x noreply",
    b"stats r noreply",
    b"stats settings noreply",
    b"version noreply",
    b"mn noreply",
    b"watch fetchers noreply",
]

#: Lines of which versions of memcached disagree, with data that are requests where they are not read
#: as data.
DATA = b"get other\r\nmn"
NEAR = [
    b"delete noreply",
    b"delete a noreply noreply",
    b"incr a 1 noreply noreply",
    b"touch a 1 noreply noreply",
    b"  get a",
    b"get a\x00b c",
    b"get noreply",
    b"gat 1",
    b"gat 99999999999 a",
    b"mg a !",
    b"mg a q q",
    b"mg a=b b",
    b"md a ! q",
    b"ma a N99999999999",
    b"me a b b",
    b"xyz noreply",
    *(
        line % len(DATA) + b"\r\n" + DATA
        for line in (
            b"  set a 0 0 %d",
            b"set a 4294967296 0 %d",
            b"set a 0 99999999999 %d",
            b"set a 0 0 +%d",
            b"set a 0 0 00000000000%d",
            b"set a 0 0 %d\t",
            b"set a 0 0 %d\x00",
            b"set a -1 0 %d",
            b"set a 0 0 %d noreply noreply",
            b"cas a 0 0 %d -1",
            b"ms a %d !",
            b"ms a %d S5",
            b"ms a %d k k",
            b"ms a %d T99999999999",
            b"ms a %d F4294967296",
            b"ms a %d MXX",
            b"ms a= %d b",
            b"ms a 00000000000%d",
            b"ms a +%d",
            b"ms  a  %d  q",
        )
    ),
]


class Watched:
    """Clients of one worker, whose connection to each server is one; each knows its values."""

    def __init__(self, gateway, pool, clients=4):
        self.conns = [gateway.connect(pool) for _ in range(clients)]
        self.keys = [[b"watched-%d-%d" % (n, at) for at in range(3)] for n in range(clients)]
        for conn, keys in zip(self.conns, self.keys, strict=True):
            for key in keys:
                conn.send(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(key), key))
                conn.expect(b"STORED\r\n")

    def ask(self):
        for conn, keys in zip(self.conns, self.keys, strict=True):
            conn.send(
                b"".join(
                    b"get %b\r\nmg %b v k\r\nms none-%b 1 MR\r\nx\r\nget %b none\r\n" % ((key,) * 4)
                    for key in keys
                )
            )

    def check(self):
        for conn, keys in zip(self.conns, self.keys, strict=True):
            for key in keys:
                value = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, len(key), key)
                told = b"VA %d k%b\r\n%b\r\nNS\r\n" % (len(key), key, key)
                conn.expect(value + told + value)

    def close(self):
        for conn in self.conns:
            conn.close()


@pytest.fixture
def gateways(place):
    """Pools of one server and of three, all clients of which share the connections."""
    servers = [place.memcached() for _ in range(4)]
    pools = {
        "one": {"servers": server_lines(servers[:1]), "protocol": "text"},
        "three": {"servers": server_lines(servers[1:]), "timeout": 5000},
    }
    return servers, place.cashew(pools, {"worker_processes": 1})


def errors(gateway, pool):
    """How many connections were closed for a reply that did not fit."""
    servers = [it for it in gateway.stats()[pool].values() if isinstance(it, dict)]
    return sum(it.get("protocol_errors", 0) for it in servers)


@pytest.mark.parametrize("pool", ["one", "three"])
@pytest.mark.parametrize("lines", [ADMIN, NEAR], ids=["admin", "near"])
def test_no_line_shifts_the_replies_of_others(gateways, pool, lines):
    _, gateway = gateways
    watched = Watched(gateway, pool)
    with contextlib.closing(watched):
        for line in lines:
            with gateway.connect(pool) as hostile:
                hostile.send(line + b"\r\n")
                watched.ask()
                hostile.send(line + b"\r\nmn\r\n")
                watched.check()
            watched.ask()
            watched.check()
    assert errors(gateway, pool) == 0


def binary_set(key, value):
    head = struct.pack(">BBHBBHI4sQ", 0x80, 1, len(key), 8, 0, 0, 8 + len(key) + len(value), b"0000", 0)
    return head + bytes(8) + key + value


@pytest.mark.parametrize("pool", ["one", "three"])
def test_no_key_makes_a_reply_of_its_own(gateways, pool):
    """`ma` and `mg` with N store a key without the mark that it is not text; others store what they
    like by the binary protocol."""
    servers, gateway = gateways
    watched = Watched(gateway, pool)
    forged = b"VALUE watched-0-0 0 4\r\nevil\r\nEND\r\n"
    keys = [prefix + b"\r\n" + forged * 2 for prefix in (b"a", b"bb", b"ccc")]
    with contextlib.closing(watched):
        for verb, key in zip((b"ma %b b N0", b"mg %b b N0", None), keys, strict=True):
            text = base64.b64encode(key)
            if verb is None:
                for server in servers:
                    with server.connect() as direct:
                        direct.send(binary_set(key, b"1"))
                        assert direct.read(24)[6:8] == b"\0\0"
            with gateway.connect(pool) as hostile:
                if verb:
                    hostile.send(verb % text + b"\r\n")
                    hostile.expect(b"HD\r\n" if verb.startswith(b"ma") else b"HD W\r\n")
                for line in (b"me %b b", b"mg %b b k", b"mg %b k b v", b"mg %b b k q"):
                    hostile.send(line % text + b"\r\n")
                    watched.ask()
                    watched.check()
                for line in (b"stats cachedump 1 0", b"stats cachedump 3 0", b"stats  detail  dump"):
                    hostile.send(line + b"\r\n")
                    watched.ask()
                    watched.check()
                # It is of use all the same.
                hostile.send(b"mn\r\n")
                hostile.read_until(b"MN\r\n")
                hostile.send(b"mg %b b v\r\n" % text)
                assert hostile.read_line().startswith(b"VA ")
    assert errors(gateway, pool) == 0


def mutated(rng):
    """A line that is nearly one of those above, or a usual one."""
    usual = [b"get a", b"set a 0 0 2\r\nhi", b"mg a v k", b"ms a 2 c\r\nhi", b"md a q", b"ma n N0 v q",
             b"incr n 1", b"touch a 9", b"gat 9 a", b"stats", b"delete a", b"cas a 0 0 2 7\r\nhi"]
    line = bytearray(rng.choice(usual * 4 + NEAR + ADMIN))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at = rng.randrange(len(line) + 1)
        piece = rng.choice([b" ", b"  ", b"\t", b"\0", b"noreply", b" noreply", b"q", b" q", b"b", b" b", b"0",
                            b"-", b"+", b"9" * 12, b"\r", b"!", b"E1", b" N0", b" k", b"\xff"])
        line[at : at + rng.choice((0, 0, 1))] = piece
    return bytes(line) + rng.choice((b"\r\n", b"\r\n", b"\n"))


@pytest.mark.parametrize("pool", ["one", "three"])
def test_random_lines_shift_nothing(gateways, pool):
    _, gateway = gateways
    watched = Watched(gateway, pool)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with contextlib.closing(watched):
        for _ in range(60):
            lines = [mutated(rng) for _ in range(20)]
            # What nobody can watch through.
            lines = [line for line in lines if b"flush_all" not in line and b"E" not in line]
            with gateway.connect(pool) as hostile:
                for line in lines:
                    hostile.send(line)
                watched.ask()
                watched.check()
                watched.ask()
                watched.check()
    assert errors(gateway, pool) == 0


class Odd:
    """A server that answers `get` with another's value when it is told to."""

    def __init__(self):
        self.port = free_port()
        self.listener = socket.create_server((HOST, self.port))
        self.is_odd = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                conn, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        with conn, contextlib.suppress(OSError):
            for line in conn.makefile("rb"):
                words = line.split()
                key = b"another" if self.is_odd else words[-1]
                conn.sendall(b"VALUE %b 0 5\r\nvalue\r\nEND\r\n" % key)

    def close(self):
        self.listener.close()


def test_a_reply_that_does_not_fit_ends_the_connection_and_is_told(place):
    with contextlib.closing(Odd()) as odd:
        pools = {"beta": {"servers": [f"{HOST}:{odd.port}:1 odd"], "server_retry_timeout": 100}}
        gateway = place.cashew(pools, {"worker_processes": 1})
        with gateway.connect() as conn:
            conn.send(b"get mine\r\n")
            conn.expect(b"SERVER_ERROR Server sent an invalid reply (server odd, %b:%d)\r\n"
                        % (HOST.encode(), odd.port))
            wait_until(lambda: errors(gateway, "beta") == 1, "it is counted")
            sample = ("cashew_server_protocol_errors_total", ("pool", "beta"), ("server", "odd"))
            assert metrics(gateway)[sample] == 1
            told = [line for line in gateway.log().splitlines() if "sent what does not fit" in line]
            assert len(told) == 1 and "pool beta: server odd " in told[0]
            assert b"VALUE another".hex() in told[0]
            odd.is_odd = False

            def works():
                conn.send(b"get mine\r\n")
                return conn.read_until(b"\r\n").startswith(b"VALUE mine ") and conn.read_until(b"END\r\n")

            wait_until(works, "a new connection serves")
        assert gateway.log().count("sent what does not fit") == 1


STAT = struct.Struct(">BBHBBHIIQ")


def packet(opcode, key=b"", opaque=0):
    return STAT.pack(0x80, opcode, len(key), 0, 0, 0, len(key), opaque, 0) + key


def statistics(conn, key):
    """The status of the last packet of a request for statistics, and how many there were."""
    conn.send(packet(0x10, key, 7))
    count = 0
    while True:
        _, _, key_size, _, _, status, size, opaque, _ = STAT.unpack(conn.read(24))
        conn.read(size)
        assert opaque == 7
        count += 1
        if status or not key_size:
            return status, count


@pytest.mark.parametrize("protocol", ["auto", "binary"])
def test_statistics_are_asked_for_by_known_keys(place, protocol):
    server = place.memcached()
    pool = {"command_policy": "admin", "protocol": protocol, "server_connections": 1,
            "servers": server_lines([server])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    with gateway.connect() as conn, gateway.connect() as other:
        for key in (b"sizes_enable", b"sizes_disable", b"resetx", b"x", b"detail", b"items\0", b" reset"):
            assert statistics(conn, key) == (1, 1), key
            # Nothing is owed on the connection that both share.
            other.send(packet(0x0b, opaque=9))
            *_, size, opaque, _ = STAT.unpack(other.read(24))
            assert opaque == 9 and other.read(size)
        for key in (b"", b"settings", b"detail on", b"detail off", b"reset", b"sizes"):
            assert statistics(conn, key)[0] == 0, key


def test_an_abbreviated_reset_is_no_way_around_the_policy(place):
    server = place.memcached()
    gateway = place.cashew({"alpha": {"servers": server_lines([server])}}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert statistics(conn, b"reset")[0] == 0x81
        for key in (b"resetx", b"reset ", b"detail on x"):
            assert statistics(conn, key)[0] in (1, 0x81), key


def test_a_flag_that_a_server_does_not_know_ends_nobodys_requests(place):
    """memcached 1.6.18 does not know `E` of `ms`; later versions do."""
    server = place.memcached()
    pool = {"server_connections": 1, "timeout": 5000, "servers": server_lines([server])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    ended = threading.Event()
    wrong, rounds = [], [0]

    def watch():
        with gateway.connect() as conn:
            while not ended.is_set() and not wrong:
                conn.send(b"".join(b"set w%d 0 0 2\r\nw%d\r\nget w%d\r\n" % (at, at, at) for at in range(9)))
                for at in range(9):
                    expected = b"STORED\r\nVALUE w%d 0 2\r\nw%d\r\nEND\r\n" % (at, at)
                    try:
                        conn.expect(expected)
                    except (AssertionError, OSError) as error:
                        wrong.append(error)
                        return
                rounds[0] += 1

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with gateway.connect() as conn:
            for _ in range(3):
                before = rounds[0]
                conn.send(b"ms k 5 E5\r\nvalue\r\nms l 5\r\nvalue\r\n")
                assert conn.read_line() is not None
                assert conn.read_line() == b"HD"
                wait_until(lambda: rounds[0] > before + 1 or wrong, "the watched client goes on")
    finally:
        ended.set()
        thread.join()
    assert not wrong and rounds[0], wrong


def test_addresses_at_a_unix_socket_are_not_told_in_text(place):
    """memcached tells them with whatever is behind them in its memory, line ends included. So nothing is
    asked: no server need be there."""
    nobody = place.directory / "nobody.sock"
    pools = {"alpha": {"servers": [f"{nobody}:1"], "command_policy": "admin"}}
    gateway = place.cashew(pools, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(b"stats conns\r\nmn\r\n")
        conn.expect(b"CLIENT_ERROR addresses at Unix sockets may have line feeds: ask in binary, or the"
                    b" server itself\r\nMN\r\n")
