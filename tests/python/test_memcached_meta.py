"""What a client of memcached's meta commands sees, byte for byte, against a bare memcached."""

import random
import re

import pytest

from harness import Conn, cut, server_lines, wait_until
from memcached_stack import Stack, check_alike, exchange

MIB = 1 << 20


SENTINEL = b"mn\r\nmg the-sentinel k\r\n"
SENTINEL_REPLY = b"MN\r\nEN kthe-sentinel\r\n"


def answer(address, data, sizes=None, timeout=20.0):
    """All that comes back, up to a sentinel or to the end of the connection; what servers count by
    themselves, and what depends on the second, is left out."""
    with Conn(address, timeout) as conn:
        said, closed = exchange(conn, data, SENTINEL, SENTINEL_REPLY, sizes)
    counted = rb"( c| t| l|cas=|la=|exp=|size=)([1-9]\d*|0(?=[ \r]))"
    return re.sub(counted, rb"\1#", said + b"<closed>" * closed)


K250, K251 = b"k" * 250, b"k" * 251
BIN = b"AAEC/w=="

CASES = {
    "mg of nothing": b"mg a\r\nmg a v\r\nmg a k O1 v\r\nmg a q\r\n",
    "ms and mg": b"ms a 3\r\nabc\r\nmg a\r\nmg a v\r\nmg a s v\r\nmg a k f t v O12 s c\r\n",
    "ms of nothing": b"ms a 0\r\n\r\nmg a v s\r\n",
    "every flag of mg": b"ms a 2 F5 T100\r\nhi\r\nmg a h l t f s c k u v O9\r\nmg a h v\r\nmg a h v\r\n",
    "flags in another order": b"ms a 2\r\nhi\r\nmg a O1 k s v f\r\nmg a f s k O1 v\r\n",
    "base64": b"ms %b 2 b k\r\nhi\r\nmg %b b k v\r\nmg %b b q k\r\nmd %b b k\r\nmg %b b k v\r\n"
    % ((BIN,) * 5),
    "base64 and text are one key": b"set foo 7 0 3\r\nbar\r\nmg Zm9v b k v f\r\nms Zm9v 3 b\r\nbaz\r\n"
    b"get foo\r\nmd Zm9v b\r\nget foo\r\n",
    "bad base64": b"mg A b v\r\nms A 2 b\r\nhi\r\nmd A b\r\nma A b\r\nme A b\r\n",
    "quiet mg": b"ms a 1\r\n1\r\nmg a q v k\r\nmg b q v k\r\nmg a q\r\nmg c q\r\nmn\r\nmg b v\r\n",
    "quiet ms": b"ms a 1 q\r\n1\r\nms a 1 q MA\r\n2\r\nms b 1 q MR\r\n1\r\nms a 1 q ME\r\n2\r\nmn\r\n"
    b"mg a v\r\nms a 1 q C99999999\r\n3\r\nms z 1 q C1\r\n3\r\nmn\r\n",
    "quiet md": b"ms a 1\r\n1\r\nmd a q\r\nmd a q\r\nmd b q O5 k\r\nms c 1\r\n1\r\nmd c q C99999999\r\nmn\r\n",
    "quiet ma": b"set n 0 0 1\r\n5\r\nma n q\r\nma n q v\r\nma m q\r\nma m q N0 J13 v\r\nma m q N0 J13 v\r\n"
    b"set t 0 0 1\r\nx\r\nma t q\r\nmn\r\nmg n v\r\n",
    "two q": b"mg a q q\r\nmd a q q\r\nms a 1 q q\r\nx\r\nma a q q\r\nmn\r\n",
    "q with more": b"mg a qqq\r\nms a 1 qx\r\nx\r\nmn\r\nmg a v\r\n",
    "a batch of quiet gets": b"".join(b"ms k%d 1 q\r\n%d\r\n" % (n, n) for n in range(10)) + b"mn\r\n"
    + b"".join(b"mg k%d q v k O%d\r\n" % (n, n) for n in range(0, 20)) + b"mn\r\n",
    "modes of ms": b"ms a 1 ME\r\n1\r\nms a 1 ME\r\n2\r\nms a 1 MA\r\n3\r\nms a 1 MP\r\n0\r\nms a 1 MR\r\n9\r\n"
    b"ms b 1 MR\r\n1\r\nms b 1 MA\r\n1\r\nms b 1 MS\r\n7\r\nmg a v\r\nmg b v\r\nms b 1 MX\r\n1\r\n"
    b"ms b 1 MEE\r\n1\r\n",
    "flags of ms": b"ms a 2 F123 T0 k O77 c\r\nhi\r\nmg a f t v\r\nms a 2 T-1\r\nhi\r\nmg a v\r\nms a 2 Fx\r\nhi\r\n"
    b"ms a 2 Tx\r\nhi\r\n",
    "cas of ms": b"ms a 1\r\n1\r\nms a 1 C99999999\r\n2\r\nms b 1 C5\r\n2\r\nms a 1 C99999999 I\r\n2\r\n"
    b"ms a 1 Cx\r\n2\r\nms a 1 C1 MA\r\n2\r\nmg a v\r\n",
    "md": b"ms a 1\r\n1\r\nmd a\r\nmd a\r\nmd a k O5\r\nms a 1\r\n1\r\nmd a k O5\r\nms a 1\r\n1\r\nmd a C99999999\r\n",
    "stale": b"ms a 1 T0\r\n1\r\nmd a I T30\r\nmg a v t\r\nmg a v\r\nmg a v\r\nms a 1 T0\r\n2\r\nmg a v\r\n",
    "stale set": b"ms a 1\r\n1\r\nmd a I T30\r\nms a 1 C1 I\r\n2\r\nmg a v\r\nmg a v\r\n",
    "vivify": b"mg a N30 v t\r\nmg a N30 v\r\nmg a v\r\nms a 1\r\n1\r\nmg a N30 v\r\n",
    "recache": b"ms a 1 T10\r\n1\r\nmg a R30 v\r\nmg a R30 v\r\nmg a R5 v\r\n",
    "touch": b"ms a 1\r\n1\r\nmg a T100 t v\r\nmg a t\r\nmg a T-1\r\nmg a v\r\n",
    "ma": b"ma n\r\nset n 0 0 2\r\n10\r\nma n\r\nma n v\r\nma n D5 v\r\nma n MD D3 v\r\nma n M- D300 v\r\nma n M+ v t c\r\n"
    b"ma n MI D18446744073709551615 v k O5\r\nma n MX\r\nma n Dx\r\nma n Jx\r\nma n C99999999 v\r\n",
    "ma vivify": b"ma n N30 J13 v t\r\nma n N30 J13 v\r\nma m N0\r\nmg m v\r\nma n T99 t v\r\n",
    "ma text": b"set n 0 0 1\r\nx\r\nma n\r\nma n v\r\n",
    "me": b"me a\r\nms a 3\r\nabc\r\nmg a v\r\nme a\r\nms %b 2 b\r\nhi\r\nme %b b\r\nme\r\nme %b\r\n"
    % (BIN, BIN, K251),
    "mn": b"mn\r\nmn x y\r\nmn\r\n",
    "bad flags": b"mg a !\r\nmg a 1\r\nms a 2 !\r\nhi\r\nmd a !\r\nma a !\r\nmg a v v\r\nms a 2 k k\r\nhi\r\nmd a k k\r\n",
    "opaque too long": b"ms a 1\r\n1\r\nmg a O%b\r\nmg b O%b\r\nms a 1 O%b\r\n1\r\nmd a O%b\r\nmg a O%b\r\n"
    % (b"x" * 32, b"x" * 32, b"x" * 32, b"x" * 32, b"x" * 31),
    "keys": b"mg %b v\r\nmg %b v\r\nmd %b\r\nma %b\r\nms %b 1\r\nx\r\nmg %b v k\r\n"
    % (K250, K251, K251, K251, K250, K250),
    "no key": b"mg\r\nms\r\nmd\r\nma\r\nms a\r\n",
    "bad size": b"ms a x\r\nms a -1\r\nmg a v\r\n",
    "too many flags": b"mg a" + b" v" * 18 + b"\r\nmd a" + b" k" * 30 + b"\r\nma a" + b" k" * 18 + b"\r\n",
    "bad chunk": b"ms a 3\r\nabcde\r\nmg a v\r\nms a 3 q\r\nab\r\n\r\nmg a v\r\n",
    "too large": b"ms a 1\r\n1\r\nms a 2000000\r\n" + b"x" * 2_000_000 + b"\r\nmg a v\r\n",
    "too large, quiet": b"ms a 2000000 q ME\r\n" + b"x" * 2_000_000 + b"\r\nmg a v\r\n",
    "large": b"ms a 1000000 q\r\n" + b"x" * 1_000_000 + b"\r\nmn\r\nmg a s\r\nmg a q v k O5\r\nmg a v\r\n",
    "binary value": b"ms a 512 c\r\n" + bytes(range(256)) * 2 + b"\r\nmg a v\r\n",
    "upper case": b"MG a\r\nMN\r\nmx\r\nm\r\n",
    "spaces": b"ms  a  1  T0 \r\n1\r\nmg   a  v  q  k\r\nmg b  q  \r\n mg a v\r\nmn\r\n",
    "mixed with text": b"set a 5 0 1\r\n1\r\nmg a v f\r\nappend a 0 0 1 noreply\r\n2\r\nmg a v q\r\nget a b\r\nmd a q\r\n"
    b"delete a noreply\r\nmn\r\nget a\r\n",
    "refused": b"shutdown\r\nwatch2\r\nmisbehave\r\n",
}


@pytest.mark.parametrize("kind", ["whole", "bytes", "random"])
@pytest.mark.parametrize("name", CASES)
def test_answers_as_memcached_does(stack, name, kind):
    data = CASES[name]
    expected = answer(stack.plain.port, data)
    assert answer(stack.gateway.address, data, cut(kind, len(data))) == expected


def test_cas_goes_in_and_out(stack):
    with stack.gateway.connect() as conn:
        for n in range(20):
            conn.send(b"ms k%d 1 c\r\n1\r\n" % n)
            unique = conn.read_line().split(b" ")[1]
            assert unique.startswith(b"c") and unique[1:].isdigit()
            conn.send(b"ms k%d 1 C%b\r\n2\r\nms k%d 1 C%b\r\n3\r\nmg k%d v\r\n"
                      % (n, unique[1:], n, unique[1:], n))
            conn.expect(b"HD\r\nEX\r\nVA 1\r\n2\r\n")


def test_quiet_gets_over_servers_are_fenced_by_mn(stack):
    """10,000 of them, half of which hit, in the order in which they were asked."""
    keys = [b"key-%d" % n for n in range(10_000)]
    with stack.gateway.connect(timeout=60) as conn:
        conn.send(b"".join(b"ms %b 4 q\r\n%04d\r\n" % (key, n % 10_000)
                           for n, key in enumerate(keys) if n % 2) + b"mn\r\n")
        conn.expect(b"MN\r\n")
        conn.send(b"".join(b"mg %b q v O%d\r\n" % (key, n) for n, key in enumerate(keys)) + b"mn\r\n")
        conn.expect(b"".join(b"VA 4 O%d\r\n%04d\r\n" % (n, n) for n in range(1, 10_000, 2)) + b"MN\r\n")


def test_random_streams(stack):
    """Long pipelines of everything, in pieces, against memcached's answer to the same."""
    chance = random.Random(7)
    for round in range(3):
        lines = []
        for n in range(1500):
            key = b"p%d" % chance.randrange(40)
            value = chance.randbytes(chance.choice((0, 1, 10, 2000)))
            quiet = chance.choice((b"", b"", b" q"))
            opaque = chance.choice((b"", b" O%d" % n))
            name = chance.choice((b"", b" k"))
            # Numbers that only grow: memcached pads one that becomes shorter, or not, by whether a
            # reply that is on its way still refers to it.
            number = b"n%d" % chance.randrange(10)
            lines.append(chance.choice([
                b"ms %b %d%b%b%b F%d\r\n%b\r\n" % (key, len(value), quiet, opaque, name, n, value),
                b"ms %b %d%b%b M%b\r\n%b\r\n"
                % (key, len(value), quiet, opaque, chance.choice([b"E", b"A", b"P", b"R", b"S", b"X"]), value),
                b"ms %b 2%b\r\n10\r\n" % (number, quiet),
                b"mg %b v f%b%b%b\r\n" % (key, quiet, opaque, name),
                b"mg %b s%b%b%b\r\n" % (key, opaque, quiet, name),
                b"mg %b N30 v%b%b\r\n" % (key, quiet, name),
                b"md %b%b%b%b\r\n" % (key, quiet, opaque, name),
                # Others than are counted: whether a stale number stays stale depends on other replies.
                b"md s%d I T30%b\r\n" % (n % 7, quiet),
                b"mg s%d v%b%b\r\n" % (n % 5, quiet, opaque),
                b"ms s%d 1%b\r\n1\r\n" % (n % 5, quiet),
                b"ma %b v%b%b D%d\r\n" % (number, quiet, opaque, n),
                b"ma %b N0 J5%b%b\r\n" % (number, quiet, name),
                b"mn\r\n", b"get %b p1 p2 p3\r\n" % key, b"incr %b 5\r\n" % key,
                b"set %b 1 0 2 noreply\r\n33\r\n" % key, b"mg %b !%b\r\n" % (key, quiet),
            ]))
        data = b"".join(lines)
        check_alike(stack, answer, data)


def test_one_large_value_quiet_and_in_pieces(place):
    """8 MiB pass on their way in and out, and quiet ones say nothing of it."""
    server = place.memcached("-I", "16m", "-m", "256")
    gateway = place.cashew({"beta": {"servers": server_lines([server])}}, {"worker_processes": 1})
    value = random.Random(1).randbytes(8 * MIB)
    with gateway.connect(timeout=60) as conn:
        conn.send(b"ms big %d q F7\r\n" % len(value) + value + b"\r\nmn\r\nmg big v q O1 f\r\nmn\r\n")
        conn.expect(b"MN\r\nVA %d O1 f7\r\n" % len(value) + value + b"\r\nMN\r\n")
        conn.send(b"ms big %d ME k\r\n" % len(value) + value + b"\r\nmg big s\r\n")
        conn.expect(b"NS kbig\r\nHD s%d\r\n" % len(value))


def test_a_get_of_ten_thousand_keys_comes_as_a_stream(place):
    """40 MB of values from three servers, of which the gateway holds but a part at any time."""
    servers = [place.memcached("-m", "256") for _ in range(3)]
    gateway = place.cashew(
        {"beta": {"hash": "murmur", "servers": server_lines(servers), "client_output_max": "16mb",
                  "command_policy": "admin"}},
        {"worker_processes": 1})
    keys = [b"key-%d" % n for n in range(10_000)]
    values = [b"%08d" % n * 500 for n in range(10_000)]
    with gateway.connect(timeout=60) as conn:
        conn.send(b"".join(b"ms %b %d q\r\n%b\r\n" % (k, len(v), v) for k, v in zip(keys, values)) + b"mn\r\n")
        conn.expect(b"MN\r\n")
        conn.send(b"get " + b" ".join(keys) + b"\r\nmn\r\n")
        for key, value in zip(keys, values):
            conn.expect(b"VALUE %b 0 %d\r\n" % (key, len(value)) + value + b"\r\n")
        conn.expect(b"END\r\nMN\r\n")


# ------------------------------------------------------------------------ the rest of text


def stats(conn, line=b"stats"):
    conn.send(line + b"\r\n")
    found = {}
    while (row := conn.read_line()) != b"END":
        kind, name, *value = row.split(b" ", 2)
        assert kind == b"STAT", row
        assert name not in found, row
        found[name.decode()] = value[0].decode() if value else ""
    return found


def test_stats_are_those_of_all_servers(place):
    stack = Stack(place)
    with stack.gateway.connect() as conn:
        conn.send(b"".join(b"set key-%d 0 0 1 noreply\r\nx\r\n" % n for n in range(100)) + b"mn\r\n")
        conn.expect(b"MN\r\n")
        every = stats(conn)
        alone = []
        for server in stack.servers:
            with server.connect() as direct:
                alone.append(stats(direct))
        assert list(every) == list(alone[0])
        assert every["curr_items"] == "100" == str(sum(int(one["curr_items"]) for one in alone))
        assert every["threads"] == str(sum(int(one["threads"]) for one in alone))
        assert every["version"] == alone[0]["version"]
        assert int(every["uptime"]) <= min(int(one["uptime"]) for one in alone)
        by_server = stats(conn, b"stats servers")
        assert len(by_server) == sum(len(one) for one in alone)
        items = [int(value) for name, value in by_server.items() if name.endswith(":curr_items")]
        assert sorted(items) == sorted(int(one["curr_items"]) for one in alone)
        settings = stats(conn, b"stats settings")
        assert settings["cas_enabled"] == "yes" and settings["evictions"] == "on"
        assert stats(conn, b"stats items")["items:1:number"] == "100"
        assert int(stats(conn, b"stats slabs")["1:used_chunks"]) >= 100
        assert len(stats(conn, b"stats conns")) > 6
        assert stats(conn, b"stats sizes") == {"sizes_status": "disabled"}
        conn.send(b"stats nosuch\r\nstats reset\r\nstats detail on\r\n")
        conn.expect(b"ERROR\r\nRESET\r\nOK\r\n")
        conn.send(b"get a:1 a:2 a:3 a:4 a:5\r\nstats detail dump\r\nstats detail off\r\n")
        conn.expect(b"END\r\n" + UNTELLABLE + b"OK\r\n")


UNTELLABLE = (
    b"CLIENT_ERROR keys may have line feeds: ask in binary, or the server itself\r\n"
)


def test_keys_are_not_listed_in_text(place):
    """Whatever clients may speak: meta commands make keys that are not text, and so do others."""
    servers = [place.memcached() for _ in range(2)]
    options = {"protocol": "text", "command_policy": "admin"}
    pools = {"text": {"servers": server_lines(servers), **options}}
    gateway = place.cashew(pools, {"worker_processes": 1})
    with gateway.connect("text") as conn:
        conn.send(b"stats detail on\r\nstats detail dump\r\nstats detail off\r\n")
        conn.expect(b"OK\r\n" + UNTELLABLE + b"OK\r\n")
        conn.send(b"set k 0 0 1\r\nx\r\nstats  cachedump 1 0\r\nget k\r\n")
        conn.expect(b"STORED\r\n" + UNTELLABLE + b"VALUE k 0 1\r\nx\r\nEND\r\n")


def test_one_server_s_statistics_are_passed_on(place):
    server = place.memcached()
    gateway = place.cashew({"beta": {"servers": server_lines([server])}}, {"worker_processes": 1})
    with gateway.connect() as conn, server.connect() as direct:
        for line in (b"stats", b"stats settings", b"stats items", b"stats slabs"):
            assert list(stats(conn, line)) == list(stats(direct, line))
        assert stats(conn)["pid"] == stats(direct)["pid"]


def test_what_is_told_to_every_server(stack):
    with stack.gateway.connect() as conn:
        conn.send(b"cache_memlimit 128\r\ncache_memlimit 1\r\ncache_memlimit x\r\ncache_memlimit 128 noreply\r\n"
                  b"slabs automove 1\r\nslabs automove 1 noreply\r\nslabs\r\nlru mode segmented\r\n"
                  b"lru_crawler enable\r\nlru_crawler crawl all\r\nlru_crawler metadump all\r\n"
                  b"watch\r\nshutdown\r\nverbosity 0\r\nmn\r\n")
        conn.expect(b"OK\r\nMEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\nERROR\r\nOK\r\nERROR\r\n"
                    b"OK\r\n")
        assert conn.read_line() in (b"OK", b"ERROR failed to start lru crawler thread")
        conn.expect(b"OK\r\nERROR metadump not allowed\r\nCLIENT_ERROR watch commands not allowed\r\n"
                    b"ERROR: shutdown not enabled\r\nOK\r\nMN\r\n")
    for server in stack.servers:
        with server.connect() as direct:
            assert stats(direct)["limit_maxbytes"] == str(128 * MIB)


# ------------------------------------------------------------------------------- failures


@pytest.mark.alone
@pytest.mark.parametrize("on_failure", ["error", "miss"])
def test_a_server_that_is_gone(place, on_failure):
    servers = [place.memcached() for _ in range(2)]
    gateway = place.cashew(
        {"beta": {"hash": "murmur", "servers": server_lines(servers), "on_failure": on_failure,
                  "timeout": 500}},
        {"worker_processes": 1})
    keys = [b"key-%d" % n for n in range(40)]
    with gateway.connect() as conn:
        conn.send(b"".join(b"ms %b 1 q\r\n1\r\n" % key for key in keys) + b"mn\r\n")
        conn.expect(b"MN\r\n")
        with servers[0].connect() as direct:
            direct.send(b"get " + b" ".join(keys) + b"\r\n")
            gone = {line.split(b" ")[1] for line in direct.read_until(b"END\r\n").split(b"\r\n")
                    if line.startswith(b"VALUE")}
        assert 0 < len(gone) < 40
        servers[0].stop()
        error = b"SERVER_ERROR "

        def fails():
            conn.send(b"ms %b 1\r\n1\r\n" % min(gone))
            return conn.read_line().startswith(error)

        wait_until(fails, "the gateway notices")
        for key in keys:
            conn.send(b"mg %b v k O7\r\nmg %b q v\r\nget %b\r\nms %b 1\r\n2\r\nmd %b q\r\nmn\r\n" % ((key,) * 5))
            if key not in gone:
                conn.expect(b"VA 1 k%b O7\r\n1\r\nVA 1\r\n1\r\nVALUE %b 0 1\r\n1\r\nEND\r\nHD\r\nMN\r\n" % (key, key))
                continue
            if on_failure == "miss":
                conn.expect(b"EN k%b O7\r\nEND\r\n" % key)
            else:
                for _ in range(3):
                    assert conn.read_line().startswith(error)
            for _ in range(2):
                assert conn.read_line().startswith(error)
            conn.expect(b"MN\r\n")
        left = sorted(set(keys) - gone)
        conn.send(b"".join(b"ms %b 1\r\n3\r\n" % key for key in left) + b"get " + b" ".join(keys) + b"\r\n")
        conn.expect(b"HD\r\n" * len(left))
        if on_failure == "miss":
            there = [key for key in keys if key in left]
            conn.expect(b"".join(b"VALUE %b 0 1\r\n3\r\n" % key for key in there) + b"END\r\n")
        else:
            assert conn.read_line().startswith(error)


# ------------------------------------------------------------------------------------ users


def test_users_are_asked_for_and_servers_are_given_one(place):
    path = place.directory / "users"
    path.write_text("gate:way\n")
    server = place.memcached("-Y", str(path))
    gateway = place.cashew(
        {"beta": {"servers": server_lines([server]), "client_auth": "ann:one bob:two",
                  "server_auth": "gate:way"}},
        {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(b"get a\r\nmg a v\r\nset x 0 0 7\r\nann two\r\nset x 0 0 3\r\nann\r\n")
        conn.expect(b"CLIENT_ERROR unauthenticated\r\n" * 2 + b"CLIENT_ERROR authentication failure\r\n"
                    b"CLIENT_ERROR bad authentication token format\r\n")
        conn.send(b"set x 0 0 7\r\nbob two\r\nset a 0 0 1\r\n1\r\nmg a v\r\n")
        conn.expect(b"STORED\r\nSTORED\r\nVA 1\r\n1\r\n")
    with server.connect() as direct:
        direct.send(b"get a\r\n")
        direct.expect(b"CLIENT_ERROR unauthenticated\r\n")
        direct.send(b"set x 0 0 8\r\ngate way\r\nget a auth\r\n")
        direct.expect(b"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n")
