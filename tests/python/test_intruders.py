"""Who must not come in: HTTP on a Redis port, guessed passwords, and passwords that stay secret."""

import re
import struct
import time

import pytest

from harness import ReplyError, connect, resp, server_lines, wait_until

WRONG = "WRONGPASS invalid username-password pair or user is disabled."


def pool(server, **options):
    return {"redis": True, "servers": server_lines([server]), **options}


# ------------------------------------------------------------------------------------------------ HTTP

REQUESTS = {
    "POST": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nSET a evil\r\n",
    "GET": b"GET / HTTP/1.1\r\nHost: x\r\n\r\nSET a evil\r\n",
    "Host: alone": b"host: x\r\nSET a evil\r\n",
    "as an array": resp("POST", "/") + resp("SET", "a", "evil"),
}


def until_closed(address, data):
    """All that comes back until the other side closes."""
    with connect(address, 20) as client:
        client.sendall(data)
        said = b""
        try:
            while piece := client.recv(1 << 16):
                said += piece
        except ConnectionResetError:
            pass
        return said


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_http_is_closed_as_redis_does(place, request_):
    server = place.redis()
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 1})
    assert until_closed(server.port, request_) == b""
    # What came before is answered.
    before = b"-ERR wrong number of arguments for 'get' command\r\n" if request_.startswith(b"GET") else b""
    assert until_closed(gateway.address, request_) == before
    assert server.call("EXISTS", "a") == 0
    wait_until(lambda: gateway.stats()["alpha"]["client_err"] == 1, "it is counted")
    assert re.search(r"possible attack: the client at 127\.0\.0\.1:\d+ sends POST or Host:", gateway.log())


def test_http_is_closed_after_auth(place):
    server = place.redis("--requirepass", "secret")
    gateway = place.cashew({"alpha": pool(server, redis_auth="secret")}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert conn.call("AUTH", "secret") == "OK"
        assert conn.call("SET", "a", "good") == "OK"
        conn.send(b"Host: x\r\nSET a evil\r\n")
        conn.expect_closed()
    assert server.call("GET", "a") == b"good"


def test_http_is_closed_by_memcached(place):
    server = place.memcached()
    gateway = place.cashew({"beta": {"servers": server_lines([server])}}, {"worker_processes": 1})
    text = b"POST / HTTP/1.1\r\nset a 0 0 4\r\nevil\r\n"
    assert until_closed(gateway.address, text) == b""
    with gateway.connect() as conn:
        conn.send(b"get a\r\n")
        conn.expect(b"END\r\n")


# --------------------------------------------------------------------------------------------- guessing


def test_guessing_is_slowed_for_who_guesses(place):
    server = place.redis("--requirepass", "secret")
    gateway = place.cashew({"alpha": pool(server, redis_auth="secret")}, {"worker_processes": 1})
    with gateway.connect() as guesser:
        started = time.monotonic()
        guesser.send(resp("AUTH", "wrong") * 6 + resp("HELLO", "2", "AUTH", "default", "no") + resp("AUTH", "secret"))
        for _ in range(4):
            guesser.expect(f"-{WRONG}\r\n".encode())
        # Others are served all the while.
        served = 0
        while time.monotonic() - started < 0.5:
            with gateway.connect() as conn:
                before = time.monotonic()
                assert conn.call("AUTH", "secret") == "OK" and conn.call("PING") == "PONG"
                served += time.monotonic() - before < 0.1
        assert served > 10
        for _ in range(3):
            guesser.expect(f"-{WRONG}\r\n".encode())
        guesser.expect(b"+OK\r\n")
        # 100, 200, 400 and 800 ms.
        assert time.monotonic() - started > 1.4
    assert gateway.stats()["alpha"]["auth_failures"] == 7
    assert "pool alpha: attempts with a wrong password: 7" in gateway.order("status").stdout
    assert re.search(r"the client at 127\.0\.0\.1:\d+ gave a wrong user or password", gateway.log())


def test_guessing_by_memcacheds_protocols_is_slowed(place):
    server = place.memcached()
    gateway = place.cashew({"beta": {"servers": server_lines([server]), "client_auth": "ann:one"}},
                           {"worker_processes": 1})
    with gateway.connect() as conn:
        started = time.monotonic()
        attempt = b"set x 0 0 7\r\nann two\r\n"
        conn.send(attempt * 5 + b"set x 0 0 7\r\nann one\r\n")
        conn.expect(b"CLIENT_ERROR authentication failure\r\n" * 5 + b"STORED\r\n")
        assert time.monotonic() - started > 0.28
    with gateway.connect() as conn:
        started = time.monotonic()
        value = b"\0ann\0two"
        attempt = struct.pack(">BBHBBHI4sQ", 0x80, 0x21, 5, 0, 0, 0, 5 + len(value), b"\0\0\0\1", 0) + b"PLAIN" + value
        conn.send(attempt * 5)
        for _ in range(5):
            head = conn.read(24)
            assert head[6:8] == b"\0\x20"
            conn.read(struct.unpack(">I", head[8:12])[0])
        assert time.monotonic() - started > 0.09
    assert gateway.stats()["beta"]["auth_failures"] == 10


# -------------------------------------------------------------------------------------------- passwords


def test_passwords_may_be_in_files(place, tmp_path):
    server = place.redis("--requirepass", "first word")
    secret = tmp_path / "password"
    secret.write_text("first word\n")
    secret.chmod(0o600)
    gateway = place.cashew({"alpha": pool(server, redis_auth=f"{{file: {secret}}}")}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert conn.call("AUTH", "first word") == "OK"
        assert conn.call("SET", "a", "1") == "OK"
    # Read again by a reload, and never shown.
    server.call("CONFIG", "SET", "requirepass", "second word")
    server.password = "second word"
    secret.write_text("second word\r\n")
    secret.chmod(0o644)
    said = gateway.reload("--dry-run")
    assert "pool 'alpha': redis_auth: changed" in said
    assert f"every user of this machine can read {secret}" in said
    said += gateway.reload()
    with gateway.connect() as conn:
        with pytest.raises(ReplyError):
            conn.call("AUTH", "first word")
        assert conn.call("AUTH", "second word") == "OK"
        assert conn.call("GET", "a") == b"1"
    secret.unlink()
    said += gateway.refused_reload()
    assert f"option \"redis_auth\": {secret} cannot be read: No such file" in said
    said += gateway.log() + gateway.order("status", "--json").stdout
    assert "first word" not in said and "second word" not in said


def test_users_of_memcached_may_be_in_a_file(place, tmp_path):
    server = place.memcached()
    users = tmp_path / "users"
    users.write_text("ann:one\nbob:two\n")
    options = {"servers": server_lines([server]), "client_auth": f"{{file: {users}}}"}
    gateway = place.cashew({"beta": options}, {"worker_processes": 1})
    for name in (b"ann one", b"bob two"):
        with gateway.connect() as conn:
            conn.send(b"set x 0 0 7\r\n" + name + b"\r\nget a\r\n")
            conn.expect(b"STORED\r\nEND\r\n")
