"""Errors in which a server repeats a client's line ends: what follows these is nobody's reply.

Redis up to 8.2 and Valkey up to 9.0 do so with what a script raises, all of them with a
library that does not compile, and newer ones with an unknown argument of FUNCTION LIST."""

import contextlib
import threading

import pytest

from harness import Conn, ReplyError, newer_servers, resp, server_lines, wait_until
from test_stats import metrics

pytestmark = pytest.mark.certain

PROGRAMS = ["redis-server", *map(str, newer_servers())]

FORGED = "a\r\n$9\r\nforged-it\r\n+forged\r\n"
#: The same within a script.
QUOTED = r"'a\r\n$9\r\nforged-it\r\n+forged\r\n'"
#: So much that it comes in several reads.
LONG = r"('a\r\n' .. ('$9\r\nforged-it\r\n'):rep(20000))"


def library(body):
    return f"#!lua name=l\nredis.register_function('f', function(keys, args) {body} end)"


SCRIPTS = [
    f"error({QUOTED})",
    f"error({LONG})",
    f"error({{err={QUOTED}}})",
    "error(ARGV[1])",
    f"return redis.error_reply({QUOTED})",
    f"return {{ok={QUOTED}}}",
    f"return {{1, {{err={QUOTED}}}, 2}}",
    f"return _G[{QUOTED}]",
    f"assert(false, {QUOTED})",
    f"return redis.call({QUOTED})",
    f"{QUOTED}",
]

#: What a client says to servers that repeat it, in the hope that others read it.
HOSTILE = [
    *[["EVAL", script, 1, "k", FORGED] for script in SCRIPTS],
    *[["EVAL_RO", script, 1, "k", FORGED] for script in SCRIPTS[:4]],
    *[["SCRIPT", "LOAD", script] for script in SCRIPTS],
    ["SCRIPT", "LOAD", f"#!{FORGED}"],
    ["FUNCTION", "LIST", FORGED],
    ["FUNCTION", "LIST", "LIBRARYNAME", FORGED, FORGED],
    ["FUNCTION", "LOAD", "REPLACE", library(QUOTED)],
    ["FUNCTION", "LOAD", FORGED],
    ["FUNCTION", "LOAD", f"#!lua name=l\nerror({QUOTED})"],
    ["FUNCTION", "RESTORE", FORGED],
    ["FUNCTION", "DELETE", FORGED],
    ["FUNCTION", "LOAD", "REPLACE", library(f"error({QUOTED})")],
    ["FCALL", "f", 1, "k"],
    ["FCALL_RO", "f", 1, "k"],
    ["FCALL", FORGED, 1, "k"],
]


def transaction(words):
    return resp("MULTI") + resp("SET", "k", "v") + resp(*words) + resp("EXEC")


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.rsplit("/", 1)[-1])
def servers(request, module_place):
    return [module_place.redis(program=request.param) for _ in range(3)]


@pytest.fixture(params=[1, 3], ids=["one", "three"])
def gateway(request, place, servers):
    for server in servers:
        server.reset()
        server.call("FUNCTION", "FLUSH")
    pool = {"redis": True, "hash": "murmur", "server_connections": 1, "session_connections": 1,
            "servers": server_lines(servers[:request.param])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    gateway.redis = servers[:request.param]
    return gateway


@contextlib.contextmanager
def watched(gateway, protocol):
    """Clients that check each of their replies, on connections that they share with everybody."""
    ended = threading.Event()
    wrong, rounds = [], [0]

    def watch():
        with gateway.connect() as conn:
            if protocol == 3:
                conn.call("HELLO", 3)
            while not ended.is_set() and not wrong:
                number = rounds[0]
                keys = [f"watched:{number}:{at}" for at in range(8)]
                for key in keys:
                    conn.send(resp("SET", key, key) + resp("GET", key))
                for key in keys:
                    for expected in ("OK", key.encode()):
                        try:
                            got = conn.reply()
                        except (ReplyError, OSError, AssertionError) as error:
                            got = error
                        if got != expected:
                            wrong.append((key, got))
                            return
                rounds[0] += 1

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        wait_until(lambda: rounds[0] > 0 or wrong, "the watched client is served")
        yield rounds, wrong
        seen = rounds[0]
        wait_until(lambda: rounds[0] > seen + 2 or wrong, "the watched client goes on")
    finally:
        ended.set()
        thread.join()
    assert not wrong, wrong


def say(conn, data, replies):
    """Sends it; the client gets one reply for each request, whatever it is."""
    conn.send(data)
    for _ in range(replies):
        assert conn.reply() not in (b"forged-it", "forged")
    assert conn.call("ECHO", "next") == b"next"


@pytest.mark.parametrize("protocol", [2, 3])
def test_line_ends_in_errors_are_for_nobody(gateway, protocol):
    with watched(gateway, protocol) as (rounds, wrong), gateway.connect() as conn:
        if protocol == 3:
            conn.call("HELLO", 3)
        for words in HOSTILE:
            before = rounds[0]
            say(conn, resp(*words), 1)
            wait_until(lambda: rounds[0] > before or wrong, f"the watched client goes on beside {words}")
            assert not wrong, words
        # In a transaction, whose connection is another's afterwards.
        for words in HOSTILE:
            say(conn, transaction(words), 4)
            with gateway.connect() as other:
                assert other.call("SET", "mine", "1") == "OK"
                other.send(resp("MULTI") + resp("GET", "mine") + resp("EXEC"))
                assert [other.reply(), other.reply()] == ["OK", "QUEUED"], words
                assert other.reply() == [b"1"], words
    assert "closed" not in "".join(line for line in gateway.log().splitlines() if "does not fit" in line)


def test_a_transaction_whose_reply_cannot_be_read_fails_nobody_elses(gateway):
    """Two such errors within EXEC: newer servers send no array of so many replies then."""
    scripts = resp("EVAL", r"error('boom\r\n$5\r\nhello')", 1, "k") * 2
    with gateway.connect() as conn, gateway.connect() as other:
        for _ in range(20):
            conn.send(resp("MULTI") + scripts + resp("EXEC"))
            for _ in range(4):
                with contextlib.suppress(ReplyError):
                    conn.reply()
            for _ in range(2):
                other.send(resp("MULTI") + resp("SET", "k", "v") + resp("EXEC"))
                assert [other.reply() for _ in range(3)] == ["OK", "QUEUED", ["OK"]]


def test_what_was_dropped_is_counted_and_told(gateway):
    raw = answer(gateway.redis[0], "FUNCTION", "LOAD", library(QUOTED))
    assert raw.startswith("ERR Error compiling function") and not raw.endswith("+forged")
    with gateway.connect() as conn:
        assert "compiling" in answer(conn, "FUNCTION", "LOAD", library(QUOTED))
        assert conn.call("SET", "k", "v") == "OK"

    def errors():
        return sum(value for name, value in metrics(gateway).items() if "protocol_errors" in str(name))

    wait_until(lambda: errors() >= len(gateway.redis), "what was dropped is counted")
    assert "behind an error" in gateway.log()


def answer(target, *words):
    try:
        if isinstance(target, Conn):
            return target.call(*words)
        with Conn(("127.0.0.1", target.port)) as conn:
            return conn.call(*words)
    except ReplyError as error:
        return str(error)
