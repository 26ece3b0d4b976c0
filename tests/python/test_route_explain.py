"""ROUTE EXPLAIN names the server that the wire shows."""

import signal

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
