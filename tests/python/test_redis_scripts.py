"""Scripts and functions in transactions, over one and over three real redis-servers: what the gateway
says exists must exist wherever a transaction goes."""

import hashlib
import random

import pytest

from harness import resp, server_lines, wait_until

POOL = {"redis": True, "hash": "murmur", "hash_tag": '"{}"', "timeout": 5000}
PUT = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])"
LIBRARY = "#!lua name=lib\nredis.register_function('f', function(k) return k[1] end)"


def sha_of(text):
    return hashlib.sha1(text.encode()).hexdigest()


class Stack:
    def __init__(self, place, workers=1):
        self.place = place
        self.servers = [place.redis() for _ in range(3)]
        self.only = place.redis()
        self.pools = {
            "three": {**POOL, "servers": server_lines(self.servers, ["one", "two", "three"])},
            "one": {**POOL, "servers": server_lines([self.only], ["only"])},
        }
        self.gateway = place.cashew(self.pools, {"worker_processes": workers})
        self.gateway.wait_serving()

    def connect(self, pool="three"):
        return self.gateway.connect(pool)


@pytest.fixture(scope="module")
def stack(module_place):
    return Stack(module_place)


@pytest.fixture
def conn(stack):
    for server in (*stack.servers, stack.only):
        server.reset()
    with stack.connect() as conn:
        conn.call("SCRIPT", "FLUSH")
        conn.call("FUNCTION", "FLUSH")
        yield conn


def exec_in_one_packet(conn, *commands):
    """The replies of EXEC to these, all sent at once."""
    conn.send(resp("MULTI") + b"".join(resp(*command) for command in commands) + resp("EXEC"))
    assert conn.reply() == "OK"
    for _ in commands:
        assert conn.reply() == "QUEUED"
    return conn.reply()


def tags(count=64):
    rng = random.Random(22)
    return ["{%08x}" % rng.getrandbits(32) for _ in range(count)]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", ["EVALSHA", "EVALSHA_RO"])
def test_a_script_that_came_by_eval_is_where_any_transaction_goes(conn, name, protocol):
    if protocol == 3:
        conn.call("HELLO", "3")
    text = "return {KEYS[1], ARGV[1]}"
    assert conn.call("EVAL", text, 1, "anywhere", "x") == [b"anywhere", b"x"]
    assert conn.call("SCRIPT", "EXISTS", sha_of(text)) == [1]
    for tag in tags():
        assert exec_in_one_packet(conn, (name, sha_of(text), 1, tag, "y"), ("SET", tag, 1)) == [
            [tag.encode(), b"y"],
            "OK",
        ]


def test_a_script_is_there_in_the_middle_of_a_transaction_too(conn):
    conn.call("EVAL", PUT, 1, "anywhere", "x")
    for tag in tags(16):
        conn.call("WATCH", tag + "watched")
        assert conn.call("MULTI") == "OK"
        assert conn.call("SET", tag + "before", 1) == "QUEUED"
        assert conn.call("EVALSHA", sha_of(PUT), 1, tag, "y") == "QUEUED"
        assert conn.call("EVALSHA", sha_of(PUT), 1, tag, "z") == "QUEUED"
        assert conn.call("EXEC") == ["OK", b"y", b"z"]


def test_a_script_that_came_in_a_transaction_is_remembered(conn):
    for n, tag in enumerate(tags(16)):
        text = f"return 'in {n}'"
        assert exec_in_one_packet(conn, ("EVAL", text, 1, tag)) == [b"in %d" % n]
        assert conn.call("SCRIPT", "EXISTS", sha_of(text)) == [1]
        for other in tags(8):
            assert exec_in_one_packet(conn, ("EVALSHA", sha_of(text), 1, other)) == [b"in %d" % n]
            assert conn.call("EVALSHA", sha_of(text), 1, other) == b"in %d" % n


def test_calls_without_keys_are_there_as_well(stack, conn):
    conn.call("EVAL", "return 'keyless'", 0)
    for server in stack.servers:
        server.call("SCRIPT", "FLUSH")
    conn.call("SCRIPT", "EXISTS", sha_of("return 'keyless'"))
    call = ("EVALSHA", sha_of("return 'keyless'"), 0)
    # Alone, and ahead of the key that says which server it is.
    assert exec_in_one_packet(conn, call) == [b"keyless"]
    for tag in tags(8):
        assert exec_in_one_packet(conn, call, call, ("SET", tag, 1)) == [b"keyless"] * 2 + ["OK"]


def test_what_is_discarded_or_nowhere_is_answered_as_ever(conn):
    conn.call("EVAL", PUT, 1, "anywhere", "x")
    for tag in tags(8):
        conn.send(resp("MULTI") + resp("EVALSHA", sha_of(PUT), 1, tag, "y") + resp("DISCARD"))
        assert [conn.reply(), conn.reply(), conn.reply()] == ["OK", "QUEUED", "OK"]
        assert conn.call("GET", tag) is None
    [error] = exec_in_one_packet(conn, ("EVALSHA", "0" * 40, 1, "a"))
    assert str(error).startswith("NOSCRIPT")
    conn.call("SCRIPT", "FLUSH")
    assert conn.call("SCRIPT", "EXISTS", sha_of(PUT)) == [0]
    for tag in tags(8):
        [error] = exec_in_one_packet(conn, ("EVALSHA", sha_of(PUT), 1, tag, "y"))
        assert str(error).startswith("NOSCRIPT")


def test_a_script_that_no_server_takes_does_not_exist(conn):
    for text in ("this is no Lua", "#!python\nreturn 1", "#!lua flags=nosuch\nreturn 1"):
        assert conn.error("EVAL", text, 1, "a").startswith("ERR ")
        assert conn.call("SCRIPT", "EXISTS", sha_of(text)) == [0]
        assert exec_in_one_packet(conn, ("EVALSHA", sha_of(text), 1, "b"), ("SET", "b", 1))[1] == "OK"
        # Nor after it was queued.
        assert str(exec_in_one_packet(conn, ("EVAL", text, 1, "a"))[0]).startswith("ERR ")
        replies = exec_in_one_packet(conn, ("EVALSHA", sha_of(text), 1, "b"), ("SET", "b", 1))
        assert str(replies[0]).startswith("NOSCRIPT") and replies[1] == "OK"
        assert conn.error("SCRIPT", "LOAD", text).startswith("ERR ")
        assert conn.call("SCRIPT", "EXISTS", sha_of(text)) == [0]


def test_a_server_that_lost_its_scripts_has_them_in_transactions(stack, conn):
    conn.call("EVAL", PUT, 1, "anywhere", "x")

    def all_work():
        return all(
            exec_in_one_packet(conn, ("EVALSHA", sha_of(PUT), 1, tag, "y")) == [b"y"]
            for tag in tags(16)
        )

    assert all_work()
    for server in stack.servers:
        server.call("SCRIPT", "FLUSH")
    # Clients that call scripts in transactions ask before.
    assert conn.call("SCRIPT", "EXISTS", sha_of(PUT)) == [1]
    assert all_work()
    for server in stack.servers:
        server.stop()
        server.start()

    def are_back():
        with stack.connect() as other:
            return all(not str(attempt(other, tag)).startswith("ERR") for tag in tags(16))

    def attempt(other, tag):
        other.send(resp("GET", tag))
        return other.reply()

    wait_until(are_back, "the servers are back")
    assert all_work()


def test_one_server_that_was_restarted(stack):
    with stack.connect("one") as conn:
        conn.call("EVAL", PUT, 1, "a", "x")
        assert exec_in_one_packet(conn, ("EVALSHA", sha_of(PUT), 1, "a", "y")) == [b"y"]
        stack.only.stop()
        stack.only.start()
        wait_until(lambda: not str(answer(conn, "GET", "a")).startswith("ERR"), "it is back")
        assert exec_in_one_packet(conn, ("EVALSHA", sha_of(PUT), 1, "a", "z")) == [b"z"]
        # What a transaction has flushed stays flushed.
        replies = exec_in_one_packet(conn, ("SCRIPT", "FLUSH"), ("SET", "b", 1))
        assert replies == ["OK", "OK"]
        [error] = exec_in_one_packet(conn, ("EVALSHA", sha_of(PUT), 1, "a", "z"))
        assert str(error).startswith("NOSCRIPT")


def answer(conn, *words):
    conn.send(resp(*words))
    return conn.reply()


def test_functions_of_the_others_are_where_a_transaction_goes(place):
    servers = [place.redis() for _ in range(3)]
    pool = {**POOL, "servers": server_lines(servers[:2])}
    gateway = place.cashew({"p": pool}, {"worker_processes": 1})
    gateway.wait_serving()
    with gateway.connect() as conn:
        assert conn.call("FUNCTION", "LOAD", LIBRARY) == b"lib"
        gateway.configure({"p": {**pool, "servers": server_lines(servers)}})
        gateway.reload()
        assert servers[2].call("FUNCTION", "LIST") == []
        for tag in tags(32):
            replies = exec_in_one_packet(conn, ("SET", tag, 1), ("FCALL", "f", 1, tag))
            assert replies == ["OK", tag.encode()]
        assert len(servers[2].call("FUNCTION", "LIST")) == 1


def test_many_clients_at_once(stack, conn):
    """Each finds it at its first call, whoever else is being given it."""
    text = "return 'for all'"
    conn.call("EVAL", text, 1, "anywhere")
    clients = [stack.connect() for _ in range(40)]
    try:
        for client, tag in zip(clients, tags(40)):
            client.send(resp("MULTI") + resp("EVALSHA", sha_of(text), 1, tag) + resp("EXEC"))
        for client in clients:
            assert [client.reply() for _ in range(3)] == ["OK", "QUEUED", [b"for all"]]
    finally:
        for client in clients:
            client.close()
