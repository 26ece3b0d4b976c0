"""What servers are given: users, passwords from elsewhere, servers of their own, and passwords that change."""

import hashlib
import os
import signal

import pytest

from harness import Crowd, HOST, ReplyError, server_lines, wait_until

ONE = {"worker_processes": 1}
TWO = {"worker_processes": 2}


def with_user(server, user, *passwords):
    """The server knows this user, and no other one."""
    server.call("ACL", "SETUSER", user, "reset", "on", *(f">{it}" for it in passwords), "+@all", "~*", "&*")


def close_default(server):
    server.call("ACL", "SETUSER", "tests", "on", ">tests", "+@all", "~*", "&*")
    server.call("ACL", "SETUSER", "default", "off")


def call_as(server, user, password, *words):
    conn = server.connect()
    with conn:
        conn.call("AUTH", user, password)
        return conn.call(*words)


def test_servers_are_given_a_user_that_clients_need_not_know(place):
    server = place.redis()
    with_user(server, "gate", "way")
    close_default(server)
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server]), "server_auth": "gate:way"}}, ONE)
    assert gateway.call("SET", "a", "1") == "OK"
    assert gateway.call("GET", "a") == b"1"
    # RESP3 has its own connection, and so has a transaction.
    with gateway.connect() as conn:
        conn.call("HELLO", "3")
        assert conn.call("GET", "a") == b"1"
        conn.call("MULTI")
        conn.call("INCR", "a")
        assert conn.call("EXEC") == [2]
    assert b"gate" in call_as(server, "tests", "tests", "CLIENT", "LIST")


def test_clients_and_servers_have_different_passwords(place):
    server = place.redis("--requirepass", "inner")
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server]), "redis_auth": "outer",
                                      "server_auth": "inner"}}, ONE)
    with gateway.connect() as conn:
        assert "NOAUTH" in conn.error("GET", "a")
        assert "WRONGPASS" in conn.error("AUTH", "inner")
        conn.call("AUTH", "outer")
        assert conn.call("SET", "a", "1") == "OK"


@pytest.mark.parametrize("passwords", ["old new", "new old", "u:x old gate:new"])
def test_the_first_that_a_server_takes_is_used(place, passwords):
    """Some servers have the new one already, and some have not."""
    servers = [place.redis("--requirepass", "old"), place.redis("--requirepass", "new"), place.redis()]
    with_user(servers[0], "gate", "new")
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines(servers[:2], ["one", "two"]),
                                      "server_auth": passwords, "redis_db": 3}}, ONE)
    if passwords.startswith("u:"):
        with_user(servers[1], "gate", "new")
    with gateway.connect() as conn:
        conn.call("HELLO", "3")
        for number in range(100):
            assert conn.call("SET", f"k{number}", number) == "OK"
    assert sum(server.call("INFO", "keyspace").count(b"db3") for server in servers[:2]) == 2
    refused = [line for line in gateway.order("events").stdout.splitlines() if "credentials" in line]
    assert refused and all("server_auth" in line for line in refused), refused
    assert "one" in gateway.order("status").stdout


def test_none_of_the_credentials_is_taken(place):
    server = place.redis("--requirepass", "secret")
    gateway = place.cashew({"alpha": {"redis": True, "timeout": 500, "servers": server_lines([server], ["one"]),
                                      "server_auth": "a b c:d"}}, ONE)
    with gateway.connect() as conn:
        assert "refused" in conn.error("GET", "a").lower()
    # It is mended at the server, and nobody has to reload.
    server.call("CONFIG", "SET", "requirepass", "b")
    server.password = "b"

    def is_served():
        try:
            return gateway.call("SET", "a", "1") == "OK"
        except ReplyError:
            return False

    wait_until(is_served, "it is served")


def test_servers_have_their_own(place):
    servers = [place.redis("--requirepass", word) for word in ("first", "second", "rest")]
    path = place.directory / "second"
    path.write_text("second\n")
    path.chmod(0o600)
    auth = "{env: CASHEW_TEST_REST, servers: {one: first, two: {file: %s}}}" % path
    lines = server_lines(servers, ["one", "two", "three"])
    os.environ["CASHEW_TEST_REST"] = "rest"
    try:
        gateway = place.cashew({"alpha": {"redis": True, "servers": lines, "server_auth": auth}}, ONE)
    finally:
        del os.environ["CASHEW_TEST_REST"]
    for number in range(100):
        assert gateway.call("SET", hashlib.md5(b"%d" % number).hexdigest(), "v") == "OK"
    assert all(server.call("DBSIZE") > 0 for server in servers)
    # Nobody is shown any of them.
    shown = gateway.log() + gateway.order("status", "--json").stdout + gateway.order("events").stdout
    for word in ("first", "second"):
        assert f" {word}" not in shown and f'"{word}"' not in shown and f":{word}" not in shown


def test_passwords_change_under_load(place):
    """A reload with both, the servers' change, a reload with the new one: no client sees an error."""
    servers = [place.redis("--requirepass", "old") for _ in range(2)]

    def pool(words):
        return {"alpha": {"redis": True, "servers": server_lines(servers, ["one", "two"]), "server_auth": words}}

    gateway = place.cashew(pool("old"), TWO)
    failures, counts = [], [0] * 4

    def serve(number):
        try:
            with gateway.connect() as conn:
                while not crowd.ended.is_set():
                    value = f"{number}-{counts[number]}"
                    assert conn.call("SET", f"k{value}", value) == "OK"
                    assert conn.call("GET", f"k{value}") == value.encode()
                    counts[number] += 1
        except Exception as error:
            failures.append(error)

    def goes_on():
        seen = list(counts)
        wait_until(lambda: failures or all(a > b + 20 for a, b in zip(counts, seen)), "all are served")
        assert not failures, failures

    crowd = Crowd(serve, 4)
    with crowd:
        goes_on()
        for number in range(3):
            old, new = ("old", "new") if number % 2 == 0 else ("new", "old")
            gateway.configure(pool(f"{new} {old}"))
            assert "server_auth: changed" in gateway.reload()
            goes_on()
            for server in servers:
                server.call("CONFIG", "SET", "requirepass", new)
                server.password = new
                goes_on()
            gateway.configure(pool(new))
            gateway.reload()
            goes_on()
    assert failures == []


def test_a_group_s_replicas_are_asked_with_the_credentials(place):
    auth = ["--requirepass", "secret", "--masterauth", "secret"]
    master, replica = place.redis(*auth), place.redis(*auth)
    replica.call("REPLICAOF", HOST, master.port)
    wait_until(lambda: b"state=online" in master.call("INFO", "replication"), "it follows")
    group = f"{{name: g, primary: {HOST}:{master.port}, replicas: [{HOST}:{replica.port}]}}"
    pools = {"alpha": {"redis": True, "servers": [group], "reads": "replica",
                       "server_auth": "{servers: {g: wrong secret}}"}}
    gateway = place.cashew(pools, ONE)
    assert gateway.call("SET", "a", "1") == "OK"
    wait_until(lambda: replica.call("GET", "a") == b"1", "it is there")
    before = replica.stat("get")
    wait_until(lambda: gateway.call("GET", "a") == b"1" and replica.stat("get") > before + 1, "the replica answers reads")
    # The order asks the server for its role.
    refused = gateway.order("failover", "alpha", "g", f"{HOST}:{replica.port}")
    assert refused.returncode == 1 and "replica" in refused.stderr, refused.stderr


@pytest.mark.parametrize("words", ["gate:way", "u:x gate:way", "gate:wrong gate:way"])
def test_memcached_takes_the_first_that_it_knows(place, words):
    path = place.directory / "users"
    path.write_text("gate:way\n")
    server = place.memcached("-Y", str(path))
    gateway = place.cashew({"beta": {"servers": server_lines([server]), "server_auth": words}}, ONE)
    with gateway.connect() as conn:
        conn.send(b"set a 0 0 1\r\n1\r\nget a\r\nmg a v\r\n")
        conn.expect(b"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nVA 1\r\n1\r\n")


def test_a_server_is_told_what_it_missed_with_the_credentials(place):
    server = place.redis("--requirepass", "secret")
    spool = "{directory: %s, max: 16mb}" % (place.directory / "spool")
    gateway = place.cashew({"alpha": {"redis": True, "timeout": 500, "servers": server_lines([server], ["one"]),
                                      "server_auth": "wrong secret", "spool": spool}}, ONE)
    assert gateway.call("SET", "a", "1") == "OK"
    server.process.signal(signal.SIGSTOP)
    with gateway.connect() as conn:
        assert conn.call("DEL", "a") == 0
    server.process.signal(signal.SIGCONT)
    wait_until(lambda: gateway.stats()["alpha"]["one"]["spool_replayed"] > 0, "it is told")
    assert server.call("GET", "a") is None
