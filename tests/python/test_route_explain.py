"""ROUTE EXPLAIN and `stats route` name the server that the wire shows."""

import signal
import struct

from harness import ReplyError, server_lines, wait_until


def explained(conn, *words):
    return [line.decode() for line in conn.call("ROUTE", "EXPLAIN", *words)]


def test_the_server_that_is_named_gets_the_key(place):
    servers = [place.redis() for _ in range(4)]
    lines = server_lines(servers, names=["a", "b", "c", "d"])
    gateway = place.cashew({
        "x": {"redis": True, "listen": None, "servers": lines[:2]},
        "y": {"redis": True, "listen": None, "servers": lines[2:]},
        "plain": {"redis": True, "servers": lines},
        "alpha": {"redis": True, "route":
                  "{prefix: {'u:': {strip: true, to: x}, '': {failover: [y, x]}}}"},
    }, {"worker_processes": 2})
    by_name = dict(zip("abcd", servers))
    for pool in ("alpha", "plain"):
        with gateway.connect(pool) as conn:
            for number in range(200):
                key = f"{'u:' if number % 2 else ''}key-{pool}-{number}"
                told = explained(conn, key, "set")
                leaf = next(line for line in told if "server " in line and "if that fails" not in line)
                name = leaf.split("server ")[1].split(" ")[0]
                conn.call("SET", key, "v")
                stripped = key.removeprefix("u:") if pool == "alpha" else key
                assert by_name[name].call("GET", stripped) == b"v", (key, told)
                assert f":{by_name[name].port})" in leaf
    with gateway.connect("alpha") as conn:
        told = explained(conn, "u:1")
        assert told[0] == 'prefix: prefix "u:", stripped'
        assert told[1].startswith("  pool x, as 1: server ")
        told = explained(conn, "z", "del")
        assert told[1].startswith("  failover") and "if that fails" in told[3]
        assert conn.error("ROUTE", "EXPLAIN", "a", "nothing") == "ERR there is no command 'nothing'"
        assert conn.error("ROUTE", "EXPLAIN").startswith("ERR wrong number of arguments")
        assert "unknown subcommand" in conn.error("ROUTE", "X", "a")
        assert conn.call("ROUTE", "HELP")[1].startswith(b"EXPLAIN ")
        for name in ("ping", "flushall", "subscribe", "multi", "config|get"):
            shown = name.upper().replace("|", " ")
            assert conn.error("ROUTE", "EXPLAIN", "z", name) == f"ERR {shown} does not go by a key"
        assert explained(conn, "z", "incr")[0].startswith("INCR must run once")
        assert explained(conn, "z", "rename")[0].startswith("RENAME goes to the first pool only")
        assert explained(conn, "z", "get")[0].startswith("prefix")


def test_who_is_not_asked_is_not_named_as_if_it_were(place):
    """Held against the servers themselves, in regions and where all are asked."""
    eu, us = place.redis(), place.redis()
    spool = "{directory: %s, max: 64mb}" % (place.directory / "spool")
    pools = {name: {"redis": True, "listen": None, "spool": spool,
                    "servers": server_lines([server], [name + "1"])}
             for name, server in (("eu", eu), ("us", us))}
    gateway = place.cashew({
        **pools,
        "alpha": {"redis": True, "route": "{regions: {here: eu, primary: eu, to: {eu: eu, us: us}}}"},
        "beta": {"redis": True, "route": "{all_sync: [eu, us]}"},
    }, {"worker_processes": 1})

    def role_in(lines):
        line = next((line for line in lines if "pool us" in line), "pool us, not asked:")
        return line.split("pool us")[1].split(":")[0].strip(", ")

    def role(conn, command):
        """The port and the command line say the same."""
        listener = "alpha" if conn is regions else "beta"
        told = gateway.order("route", "--listener", listener, "--command", command, "k").stdout
        by_port = explained(conn, "k", command)
        assert role_in(by_port) == role_in(told.splitlines()), (by_port, told)
        return role_in(by_port)

    with gateway.connect("alpha") as conn:
        regions = conn
        us.call("SET", "k", "old")
        conn.call("INCR", "k")
        wait_until(lambda: us.call("EXISTS", "k") == 0, "it has forgotten it")
        assert role(conn, "incr") == role(conn, "hset") == "told to forget the key"
        conn.call("SET", "k", "v")
        wait_until(lambda: us.call("GET", "k") == b"v", "it has it")
        assert role(conn, "set") == "as well, without waiting for it"
        us.call("SET", "other", "old")
        conn.call("RENAME", "k", "other")
        assert us.call("GET", "other") == b"old"
        assert role(conn, "rename") == role(conn, "blpop") == role(conn, "msetnx") == "not asked"
    with gateway.connect("beta") as conn:
        eu.call("FLUSHALL"), us.call("FLUSHALL")
        conn.call("INCR", "n")
        assert (eu.call("GET", "n"), us.call("GET", "n")) == (b"1", None)
        assert role(conn, "incr") == "not asked" and role(conn, "set") == "as well"


def test_how_the_server_is_and_what_is_hidden(place):
    it = place.redis()
    gateway = place.cashew({
        "alpha": {"redis": True, "timeout": 200, "servers": server_lines([it], names=["one"])},
        "beta": {"redis": True, "hide_topology": True, "servers": server_lines([it], names=["one"])},
    }, {"worker_processes": 1})
    with gateway.connect("alpha") as conn:
        conn.call("PING")
        conn.call("GET", "a")
        assert explained(conn, "a") == [f"pool alpha: server one (127.0.0.1:{it.port}), well"]
        it.process.signal(signal.SIGSTOP)

        def is_out():
            try:
                conn.call("GET", "a")
            except ReplyError:
                pass
            return explained(conn, "a")[0].endswith("out (Server does not answer)")
        wait_until(is_out, "it is seen")
    with gateway.connect("beta") as conn:
        assert "hide_topology" in conn.error("ROUTE", "EXPLAIN", "a")


def stats_of_route(conn, *words):
    """The statistics in their order; an error is a line."""
    conn.send(" ".join(["stats", "route", *words]).encode() + b"\r\n")
    rows = []
    while (line := conn.read_line()) != b"END":
        if not line.startswith(b"STAT "):
            return line.decode()
        rows.append(line.decode().removeprefix("STAT ").split(" ", 1))
    return rows


def packets(conn, key):
    """What a packet for statistics is answered: status, key and value of each packet."""
    conn.send(struct.pack(">BBHBBHIIQ", 0x80, 0x10, len(key), 0, 0, 0, len(key), 7, 0) + key)
    found = []
    while True:
        header = conn.read(24)
        _, opcode, key_len, _, _, status, size, opaque, _ = struct.unpack(">BBHBBHIIQ", header)
        body = conn.read(size)
        assert (opcode, opaque) == (0x10, 7)
        found.append((status, body[:key_len], body[key_len:]))
        if not key_len:
            return found


def test_memcached_tells_it_as_statistics(place):
    servers = [place.memcached() for _ in range(4)]
    lines = server_lines(servers, names=["a", "b", "c", "d"])
    gateway = place.cashew({
        "x": {"listen": None, "servers": lines[:2]},
        "y": {"listen": None, "servers": lines[2:]},
        "plain": {"servers": lines},
        "hidden": {"servers": lines, "hide_topology": True},
        "alpha": {"route": "{prefix: {'u:': {strip: true, to: x}, '': {failover: [y, x]}}}"},
    }, {"worker_processes": 2})
    by_name = dict(zip("abcd", servers))
    for pool in ("alpha", "plain"):
        with gateway.connect(pool) as conn:
            for number in range(100):
                key = f"{'u:' if number % 2 else ''}key-{pool}-{number}"
                told = stats_of_route(conn, key, "set")
                assert [name for name, _ in told] == [str(at + 1) for at in range(len(told))]
                leaf = next(line for _, line in told if "server " in line and "if that fails" not in line)
                it = by_name[leaf.split("server ")[1].split(" ")[0]]
                conn.send(b"set %b 0 0 1\r\nv\r\n" % key.encode())
                conn.expect(b"STORED\r\n")
                stripped = key.removeprefix("u:") if pool == "alpha" else key
                with it.connect() as direct:
                    direct.send(b"get %b\r\n" % stripped.encode())
                    direct.expect(b"VALUE %b 0 1\r\nv\r\nEND\r\n" % stripped.encode())
    with gateway.connect("alpha") as conn:
        told = stats_of_route(conn, "u:1")
        assert told[0] == ["1", 'prefix: prefix "u:", stripped']
        assert told[1][1].startswith("  pool x, as 1: server ")
        assert stats_of_route(conn, "z", "incr")[0] == [
            "note", "incr must run once: of several pools that would run it the first one does"]
        assert stats_of_route(conn, "z", "set", "surplus")[0][0] == "1"
        for words, error in (
            ((), "CLIENT_ERROR usage: stats route <key> [<command>]"),
            (("z", "nothing"), "CLIENT_ERROR there is no command 'nothing'"),
            (("z", "version"), "CLIENT_ERROR version does not go by a key"),
            (("z" * 251,), "CLIENT_ERROR a key has 1 to 250 bytes"),
        ):
            assert stats_of_route(conn, *words) == error
        # In the order of what was asked, and what servers say is as ever.
        conn.send(b"get none\r\nstats route u:1 get\r\nget none\r\n")
        conn.expect(b"END\r\nSTAT 1 prefix")
    with gateway.connect("alpha") as conn:
        told = packets(conn, b"route u:1 set")
        assert [status for status, _, _ in told] == [0, 0, 0]
        assert told[0][1:] == (b"1", b'prefix: prefix "u:", stripped') and told[-1][1:] == (b"", b"")
        assert told[1][2].startswith(b"  pool x, as 1: server ")
        assert packets(conn, b"route z version") == [(4, b"", b"version does not go by a key")]
        assert packets(conn, b"route")[0][0] == 1
    with gateway.connect("hidden") as conn:
        assert "hide_topology" in stats_of_route(conn, "a")
