"""What a memcached client sees, byte for byte, through bare sockets.

A real memcached gets the same bytes as the gateway, and both must answer the same. Each case owns
its keys, so that a case leaves nothing to the next.
"""

import random
import threading
import time

import pytest

from harness import Conn, PATIENCE, cut, in_time, measured, server_lines, wait_until
from memcached_stack import Stack, check_alike, exchange

MIB = 1 << 20


SENTINEL = b"get the-sentinel\r\n"
SENTINEL_REPLY = b"VALUE the-sentinel 0 8\r\nSENTINEL\r\nEND\r\n"


def answer(address, data, sizes=None, timeout=PATIENCE):
    """All that comes back, up to the value of a sentinel or to the end of the connection."""
    with Conn(address, timeout) as conn:
        conn.send(b"set the-sentinel 0 0 8\r\nSENTINEL\r\n")
        conn.expect(b"STORED\r\n")
        said, closed = exchange(conn, data, SENTINEL, SENTINEL_REPLY, sizes)
    return said + b"<closed>" * closed


K250, K251 = b"k" * 250, b"k" * 251

CASES = {
    # Storage.
    "set": b"set a 5 0 3\r\nabc\r\nget a\r\n",
    "set nothing": b"set a 0 0 0\r\n\r\nget a\r\n",
    "set flags": b"set a 4294967295 0 1\r\nx\r\nget a\r\nset b 65536 0 1\r\nx\r\nget b\r\n",
    "set twice": b"set a 0 0 1\r\n1\r\nset a 0 0 1\r\n2\r\nget a\r\n",
    "add": b"add a 0 0 1\r\n1\r\nadd a 0 0 1\r\n2\r\nget a\r\n",
    "replace": b"replace a 0 0 1\r\n1\r\nset a 0 0 1\r\n2\r\nreplace a 7 0 1\r\n3\r\nget a\r\n",
    "append": b"append a 0 0 1\r\n1\r\nset a 0 0 1\r\n2\r\nappend a 9 0 2\r\n34\r\nget a\r\n",
    "prepend": b"prepend a 0 0 1\r\n1\r\nset a 3 0 1\r\n2\r\nprepend a 9 0 2\r\n34\r\nget a\r\n",
    "binary": b"set a 0 0 17\r\n\0\xff\r\nget b\r\nEND\r\n\x80\r\nget a\r\n",
    "binary of all bytes": b"set a 0 0 512\r\n" + bytes(range(256)) * 2 + b"\r\nget a\r\n",
    "strange keys": b"set \xff\x80\x01 0 0 1\r\n1\r\nset a:{}*$ 0 0 1\r\n2\r\nget a:{}*$ \xff\x80\x01\r\n",
    "cas of nothing": b"cas a 0 0 1 1\r\nx\r\n",
    "cas of another": b"set a 0 0 1\r\nx\r\ncas a 0 0 1 99999999\r\ny\r\nget a\r\n",
    "cas bad unique": b"cas a 0 0 1 x\r\ny\r\n",
    "cas without unique": b"cas a 0 0 1\r\ny\r\n",
    "negative expiry": b"set a 0 -1 1\r\nx\r\nget a\r\nadd a 0 -1 1\r\ny\r\nget a\r\n",
    "negative expiry of one that lives": b"set a 0 0 1\r\nx\r\nset a 0 -1 1\r\ny\r\nget a\r\n",
    "expiry": b"set a 0 100 1\r\nx\r\nget a\r\nset b 0 2592001 1\r\nx\r\nget b\r\n",
    # noreply.
    "noreply set": b"set a 0 0 1 noreply\r\nx\r\nget a\r\n",
    "noreply add": b"add a 0 0 1 noreply\r\nx\r\nadd a 0 0 1 noreply\r\ny\r\nget a\r\n",
    "noreply replace": b"set a 0 0 1\r\nx\r\nreplace a 0 0 1 noreply\r\ny\r\nget a\r\n",
    "noreply append": b"set a 0 0 1\r\nx\r\nappend a 0 0 1 noreply\r\ny\r\nget a\r\n",
    "noreply prepend": b"set a 0 0 1\r\nx\r\nprepend a 0 0 1 noreply\r\ny\r\nget a\r\n",
    "noreply cas": b"set a 0 0 1\r\nx\r\ncas a 0 0 1 99999999 noreply\r\ny\r\nget a\r\n",
    "noreply delete": b"set a 0 0 1\r\nx\r\ndelete a noreply\r\nget a\r\n",
    "noreply delete of nothing": b"delete a noreply\r\n",
    "noreply incr": b"set a 0 0 1\r\n1\r\nincr a 5 noreply\r\nget a\r\n",
    "noreply decr": b"set a 0 0 2\r\n10\r\ndecr a 5 noreply\r\nget a\r\n",
    "noreply incr of nothing": b"incr a 5 noreply\r\n",
    "noreply touch": b"set a 0 0 1\r\n1\r\ntouch a 100 noreply\r\nget a\r\n",
    "noreply touch, past": b"set a 0 0 1\r\n1\r\ntouch a -1 noreply\r\nget a\r\n",
    "noreply verbosity": b"verbosity 0 noreply\r\n",
    "noreply for many": b"".join(b"set k%d 0 0 1 noreply\r\n%d\r\n" % (n, n) for n in range(10))
    + b"get " + b" ".join(b"k%d" % n for n in range(10)) + b"\r\n",
    # Reading.
    "get nothing": b"get a\r\n",
    "get many": b"set a 1 0 1\r\n1\r\nset b 2 0 2\r\n22\r\nset c 3 0 3\r\n333\r\n"
    b"get c none b a none2\r\n",
    "get twice the same": b"set a 0 0 1\r\n1\r\nget a a\r\nget a none a\r\n",
    "get with spaces": b"set a 0 0 1\r\n1\r\nget   a  \r\nget a \r\n get a\r\n",
    "newline alone": b"set a 0 0 1\r\n1\r\nget a\nget a\r\n",
    "get without key": b"get\r\n",
    "gets without key": b"gets\r\n",
    "get 250": b"set %b 0 0 1\r\nx\r\nget %b\r\ndelete %b\r\n" % (K250, K250, K250),
    "get 251": b"get %b\r\n" % K251,
    "gets 251": b"gets %b\r\n" % K251,
    "get 250 and 251": b"get %b %b\r\n" % (K250, K251),
    "gat": b"set a 7 0 1\r\nx\r\ngat 100 a\r\ngat 100 none\r\n",
    "gat many": b"set a 1 0 1\r\n1\r\nset b 2 0 1\r\n2\r\ngat 100 b none a\r\nget a b\r\n",
    "gat past": b"set a 7 0 1\r\nx\r\ngat -1 a\r\nget a\r\n",
    "gat without anything": b"gat\r\n",
    "gat bad expiry": b"gat abc key\r\n",
    # The others.
    "delete": b"set a 0 0 1\r\nx\r\ndelete a\r\ndelete a\r\nget a\r\n",
    "delete 0": b"set a 0 0 1\r\nx\r\ndelete a 0\r\n",
    "delete 0 noreply": b"set a 0 0 1\r\nx\r\ndelete a 0 noreply\r\nget a\r\n",
    "delete later": b"set a 0 0 1\r\nx\r\ndelete a 5\r\nget a\r\n",
    "delete without key": b"delete\r\n",
    "delete 251": b"delete %b\r\n" % K251,
    "incr": b"set a 0 0 2\r\n41\r\nincr a 1\r\nincr a 18446744073709551615\r\nget a\r\n",
    "decr": b"set a 0 0 2\r\n10\r\ndecr a 1\r\nget a\r\ndecr a 100\r\n",
    "incr nothing": b"incr a 1\r\ndecr a 1\r\n",
    "incr text": b"set a 0 0 3\r\nabc\r\nincr a 1\r\ndecr a 1\r\n",
    "incr bad": b"set a 0 0 1\r\n1\r\nincr a x\r\nincr a -1\r\nincr a 18446744073709551616\r\n",
    "incr without delta": b"incr a\r\n",
    "incr alone": b"incr\r\n",
    "touch": b"set a 0 0 1\r\nx\r\ntouch a 100\r\ntouch none 100\r\nget a\r\n",
    "touch past": b"set a 0 0 1\r\nx\r\ntouch a -1\r\nget a\r\n",
    "touch bad": b"touch a x\r\n",
    "touch without expiry": b"touch a\r\n",
    "flush": b"set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\nflush_all\r\nget a b\r\n"
    b"set the-sentinel 0 0 8\r\nSENTINEL\r\n",
    "flush noreply": b"set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\nflush_all noreply\r\nget a b\r\n"
    b"set the-sentinel 0 0 8\r\nSENTINEL\r\n",
    "flush later": b"set a 0 0 1\r\nx\r\nflush_all 100\r\nget a\r\nflush_all 0 noreply\r\nget a\r\n"
    b"set the-sentinel 0 0 8\r\nSENTINEL\r\n",
    "flush bad": b"flush_all abc\r\n",
    "verbosity": b"verbosity 0\r\n",
    "verbosity alone": b"verbosity\r\n",
    # What is wrong, and the words for it.
    "unknown": b"nosuch\r\n",
    "unknown with arguments": b"nosuch a b c\r\n",
    "upper case": b"GET a\r\nSET a 0 0 1\r\n",
    "nothing": b"\r\n\r\n",
    "spaces": b"   \r\n",
    "set too few": b"set a 0 0\r\n",
    "set alone": b"set\r\n",
    "set too many": b"set a 0 0 1 noreply x y\r\nx\r\n",
    "set bad flags": b"set a x 0 1\r\nx\r\n",
    "set negative flags": b"set a -1 0 1\r\nx\r\n",
    "set bad expiry": b"set a 0 x 1\r\nx\r\n",
    "set bad length": b"set a 0 0 x\r\nx\r\n",
    "set negative length": b"set a 0 0 -1\r\nx\r\n",
    "set length with a tail": b"set a 0 0 1x\r\nx\r\n",
    "set 251": b"set %b 0 0 1\r\nx\r\n" % K251,
    "add 251": b"add %b 0 0 3\r\nabc\r\n" % K251,
    "set too short": b"set a 0 0 5\r\nabc\r\n\r\n",
    "set too long": b"set a 0 0 3\r\nabcdef\r\nget a\r\n",
    "set too long, smuggling": b"set a 0 0 1\r\nxyzset b 0 0 1\r\ny\r\nget a b\r\n",
    "set without the end": b"set a 0 0 3\r\nabc\rxget a\r\n",
    "value too large": b"set a 0 0 2000000\r\n" + b"x" * 2_000_000 + b"\r\nget a\r\n",
    "value too large, noreply": b"set a 0 0 2000000 noreply\r\n" + b"x" * 2_000_000
    + b"\r\nget a\r\n",
    "value too large replaces": b"set a 0 0 1\r\n1\r\nset a 0 0 2000000\r\n" + b"x" * 2_000_000
    + b"\r\nget a\r\n",
    "value of nearly all": b"set a 0 0 1000000\r\n" + b"x" * 1_000_000 + b"\r\nget a\r\n",
    "noreply spoils the order of nobody": b"get a\r\nset a 0 0 1 noreply\r\n1\r\nget a\r\n"
    b"nosuch\r\nincr a 1 noreply\r\nget a\r\ndelete a\r\n",
    "noreply of a bad set": b"set a x 0 1 noreply\r\nx\r\nget a\r\n",
    "noreply of a long key": b"set %b 0 0 1 noreply\r\nx\r\nget a\r\n" % K251,
    "noreply of a bad chunk": b"set a 0 0 1 noreply\r\nxyz\r\nget a\r\n",
    "noreply of a bad incr": b"set a 0 0 1\r\n1\r\nincr a x noreply\r\nget a\r\n",
    "noreply of incr of text": b"set a 0 0 1\r\nx\r\nincr a 1 noreply\r\nget a\r\n",
    "noreply of a bad touch": b"touch a x noreply\r\nget a\r\n",
    "noreply of a bad delete": b"delete a 5 noreply\r\nget a\r\n",
    "noreply misspelt": b"set a 0 0 1 norepl\r\nx\r\nget a\r\ndelete a norepl\r\n",
    "an error disturbs nobody": b"set a 0 0 1\r\n1\r\nget\r\nincr a x\r\nnosuch\r\nget a\r\n"
    b"touch a\r\nget a none a\r\n",
}


@pytest.mark.parametrize("kind", ["whole", "bytes", "random"])
@pytest.mark.parametrize("name", CASES)
def test_answers_as_memcached_does(stack, name, kind):
    data = CASES[name]
    expected = answer(stack.plain.port, data)
    assert answer(stack.gateway.address, data, cut(kind, len(data))) == expected


def test_a_long_line_without_an_end(stack):
    """memcached closes without a word; the gateway may say why before it does."""
    data = b"x" * 200_000
    assert answer(stack.plain.port, data).endswith(b"<closed>")
    said = answer(stack.gateway.address, data)
    assert said in (b"<closed>", b"ERROR\r\n<closed>") or said.startswith(b"CLIENT_ERROR ")
    assert said.endswith(b"<closed>")


def test_a_get_of_many_keys_may_be_longer_than_a_line(stack, conn):
    """A get has no limit but that on requests: here 1,000 keys of 200 bytes."""
    keys = [b"%0200d" % n for n in range(1000)]
    conn.send(b"".join(b"set %b 0 0 4\r\n%04d\r\n" % (key, n) for n, key in enumerate(keys)))
    conn.expect(b"STORED\r\n" * 1000)
    conn.send(b"get " + b" ".join(keys) + b"\r\n")
    for n, key in enumerate(keys):
        conn.expect(b"VALUE %b 0 4\r\n%04d\r\n" % (key, n))
    conn.expect(b"END\r\n")


def test_version(conn):
    conn.send(b"version\r\n")
    kind, version = conn.read_line().split(b" ", 1)
    assert kind == b"VERSION" and version[:1].isdigit()


def test_quit_closes_and_discards_the_rest(stack):
    with stack.gateway.connect() as conn:
        conn.send(b"set a 0 0 1\r\n1\r\nget a\r\nquit\r\nset a 0 0 1\r\n2\r\n")
        conn.expect(b"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n")
        conn.expect_closed()
    with stack.gateway.connect() as conn:
        conn.send(b"get a\r\n")
        conn.expect(b"VALUE a 0 1\r\n1\r\nEND\r\n")


def test_keys_come_back_in_order_from_all_servers(stack, conn):
    keys = [b"key-%d" % n for n in range(500)]
    conn.send(b"".join(b"set %b %d 0 %d\r\n%b\r\n" % (k, n, len(k), k) for n, k in enumerate(keys)))
    conn.expect(b"STORED\r\n" * 500)
    held = []
    for server in stack.servers:
        with server.connect() as direct:
            direct.send(b"get " + b" ".join(keys[:100]) + b"\r\n")
            held.append(direct.read_until(b"END\r\n").count(b"VALUE"))
    assert sum(held) == 100 and all(held), held
    order = [n for n in range(499, -1, -1)]
    asked = b" ".join(keys[n] + b" none-%d" % n for n in order)
    conn.send(b"get " + asked + b"\r\nget none\r\n")
    values = [b"VALUE %b %d %d\r\n%b\r\n" % (keys[n], n, len(keys[n]), keys[n]) for n in order]
    conn.expect(b"".join(values) + b"END\r\nEND\r\n")


def test_gets_and_cas(stack, conn):
    """The unique number is its server's; with it the first cas wins and the second loses."""
    keys = [b"key-%d" % n for n in range(20)]
    conn.send(b"".join(b"set %b 0 0 1\r\n1\r\n" % key for key in keys))
    conn.expect(b"STORED\r\n" * 20)
    conn.send(b"gets " + b" ".join(keys) + b" none\r\n")
    for key in keys:
        word, name, flags, length, unique = conn.read_line().split(b" ")
        assert (word, name, flags, length) == (b"VALUE", key, b"0", b"1")
        assert conn.read(3) == b"1\r\n"
        with stack.gateway.connect() as other:
            other.send((b"cas %b 0 0 1 %b\r\n2\r\n" % (key, unique)) * 2)
            other.expect(b"STORED\r\nEXISTS\r\n")
    conn.expect(b"END\r\n")
    conn.send(b"gats 100 key-1 none key-0\r\n")
    for key in (b"key-1", b"key-0"):
        assert conn.read_line().startswith(b"VALUE %b 0 1 " % key)
        assert conn.read(3) == b"2\r\n"
    conn.expect(b"END\r\n")


@pytest.mark.parametrize("line", [b"flush_all\r\n", b"flush_all noreply\r\n", b"flush_all 0\r\n"])
def test_flush_reaches_every_server(stack, conn, line):
    for server in stack.servers:
        with server.connect() as direct:
            direct.send(b"set here 0 0 1\r\nx\r\n")
            direct.expect(b"STORED\r\n")
    conn.send(line + b"get none\r\n")
    conn.expect((b"" if b"noreply" in line else b"OK\r\n") + b"END\r\n")

    def gone(server):
        with server.connect() as direct:
            direct.send(b"get here\r\n")
            return direct.read_until(b"END\r\n") == b"END\r\n"

    for server in stack.servers:
        wait_until(lambda: gone(server), "the server is flushed", 2)


def test_verbosity_reaches_every_server(place):
    """Servers at verbosity 2 print what they are asked."""
    servers = [place.memcached() for _ in range(2)]
    gateway = place.cashew({"beta": {"hash": "murmur", "command_policy": "admin", "servers": server_lines(servers)}})
    with gateway.connect() as conn:
        conn.send(b"verbosity 2\r\n")
        conn.expect(b"OK\r\n")
        keys = [b"key-%d" % n for n in range(20)]
        conn.send(b"get " + b" ".join(keys) + b"\r\n")
        conn.expect(b"END\r\n")
    for server in servers:
        wait_until(lambda: "key-" in server.process.output(), "the server prints requests", 5)


def test_pipeline_of_everything_in_pieces(stack):
    """One long pipeline, against memcached's answer to the same."""
    chance = random.Random(3)
    lines = []
    for n in range(2000):
        key = b"p%d" % chance.randrange(60)
        value = chance.randbytes(chance.choice((0, 1, 10, 2000)))
        noreply = chance.choice((b"", b"", b" noreply"))
        lines.append(chance.choice([
            b"set %b %d 0 %d%b\r\n%b\r\n" % (key, n, len(value), noreply, value),
            b"add %b 0 0 %d%b\r\n%b\r\n" % (key, len(value), noreply, value),
            b"append %b 0 0 %d%b\r\n%b\r\n" % (key, len(value), noreply, value),
            b"set %b 0 0 2%b\r\n10\r\n" % (key, noreply),
            b"incr %b 7%b\r\n" % (key, noreply),
            b"delete %b%b\r\n" % (key, noreply),
            b"touch %b 0%b\r\n" % (key, noreply),
            b"get %b\r\n" % key,
            b"get " + b" ".join(b"p%d" % chance.randrange(70) for _ in range(9)) + b"\r\n",
            b"gat 0 %b p1 p2 p3\r\n" % key,
            b"nosuch\r\n",
            b"get\r\n",
        ]))
    data = b"".join(lines)
    check_alike(stack, answer, data)


def test_half_close_still_gets_every_reply(stack):
    with stack.gateway.connect() as conn:
        conn.send(b"set a 0 0 1\r\n1\r\n" * 300 + b"get a none\r\n")
        conn.half_close()
        conn.expect(b"STORED\r\n" * 300 + b"VALUE a 0 1\r\n1\r\nEND\r\n")
        conn.expect_closed()


def test_noreply_of_one_client_and_replies_of_another(stack):
    """They share connections to the servers, and nobody gets a reply that is not theirs."""
    failures = []

    def silent():
        try:
            with stack.gateway.connect() as conn:
                for n in range(300):
                    conn.send(b"set shared 0 0 1 noreply\r\n1\r\nset shared 0 0 2000000 noreply\r\n"
                              if n == 150 else b"set shared 0 0 1 noreply\r\n1\r\n")
                    if n == 150:
                        conn.send(b"x" * 2_000_000 + b"\r\n")
                conn.send(b"get own\r\n")
                conn.expect(b"END\r\n")
        except AssertionError as error:
            failures.append(error)

    def talking(name):
        try:
            with stack.gateway.connect() as conn:
                for n in range(300):
                    conn.send(b"set %b 0 0 4\r\n%04d\r\nget %b\r\n" % (name, n, name))
                    conn.expect(b"STORED\r\nVALUE %b 0 4\r\n%04d\r\nEND\r\n" % (name, n))
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=silent) for _ in range(3)]
    threads += [threading.Thread(target=talking, args=(b"t%d" % n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures


def test_a_client_that_is_paused_within_a_request(place):
    """It does not read 20 MB of replies while a request of its own is half sent; what the parser
    knows of that one must not be taken for the beginning of another client's."""
    gateway = place.cashew(
        {"beta": {"servers": server_lines([place.memcached()])}}, {"worker_processes": 1})
    value = b"x" * 1_000_000
    with gateway.connect(timeout=30) as paused, gateway.connect() as other:
        paused.send(b"set big 0 0 1000000\r\n" + value + b"\r\n")
        paused.expect(b"STORED\r\n")
        request = b"set mine 0 0 1000\r\n" + b"y" * 1000 + b"\r\n"
        paused.send(b"get big\r\n" * 20 + request[:100])
        wait_until(lambda: gateway.held() > MIB, "replies wait, more than for which it is read")
        paused.send(request[100:300])
        for n in range(20):
            other.send(b"set theirs 0 0 4\r\n%04d\r\nget theirs none\r\n" % n)
            other.expect(b"STORED\r\nVALUE theirs 0 4\r\n%04d\r\nEND\r\n" % n)
        paused.send(request[300:])
        paused.expect((b"VALUE big 0 1000000\r\n" + value + b"\r\nEND\r\n") * 20 + b"STORED\r\n")
        other.send(b"get mine\r\n")
        other.expect(b"VALUE mine 0 1000\r\n" + b"y" * 1000 + b"\r\nEND\r\n")


@pytest.mark.alone
@measured
def test_a_slow_reader_does_not_delay_others(stack):
    with stack.gateway.connect() as conn:
        conn.send(b"set big 0 0 1000000\r\n" + b"x" * 1_000_000 + b"\r\nset small 0 0 1\r\n1\r\n")
        conn.expect(b"STORED\r\nSTORED\r\n")
    with stack.gateway.connect(timeout=30) as slow:
        slow.send(b"get big\r\n" * 40)
        with stack.gateway.connect() as fast:
            slowest = 0.0
            for _ in range(200):
                begin = time.monotonic()
                fast.send(b"get small big-none\r\n")
                fast.expect(b"VALUE small 0 1\r\n1\r\nEND\r\n")
                slowest = max(slowest, time.monotonic() - begin)
        in_time(slowest, 1.0)
        for _ in range(40):
            slow.expect(b"VALUE big 0 1000000\r\n" + b"x" * 1_000_000 + b"\r\nEND\r\n")


def test_through_another_proxy(place):
    """nutcracker answers a get of keys on several servers in another order where some are missing."""
    behind = [place.memcached() for _ in range(3)]
    servers = server_lines(behind, ["a", "b", "c"])
    proxies = [place.nutcracker({"alpha": {"servers": servers, "hash": "crc32a"}}) for _ in range(2)]
    proxies = server_lines([proxy.address for proxy in proxies], ["one", "two"])
    gateway = place.cashew({"alpha": {"servers": proxies, "hash": "md5"}}, {"worker_processes": 1})
    keys = [f"key{number}" for number in range(60)]
    with gateway.connect() as conn:
        for key in keys[::2]:
            conn.send(f"set {key} 0 0 {len(key)}\r\n{key}\r\n".encode())
            conn.expect(b"STORED\r\n")

    def block(key):
        return f"VALUE {key} 0 {len(key)}\r\n{key}\r\n" if key in keys[::2] else ""

    rng = random.Random(7)
    conns = [place.keep(gateway.connect()) for _ in range(8)]
    for _ in range(40):
        lines, replies = [], []
        for _ in conns:
            asked = [rng.sample(keys, rng.choice([1, 1, 1, 12])) for _ in range(5)]
            lines.append("".join(f"get {' '.join(each)}\r\n" for each in asked))
            replies.append("".join("".join(map(block, each)) + "END\r\n" for each in asked))
        for conn, line in zip(conns, lines, strict=True):
            conn.send(line.encode())
        for conn, reply in zip(conns, replies, strict=True):
            conn.expect(reply.encode())
