"""Users who are known elsewhere: a service that is asked by HTTP, or a file, says who somebody is and until when."""

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
import struct
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import redis

from certificates import Authority
from harness import CASHEW, config_text, ReplyError, resp, server_lines, wait_until

WRONG = "WRONGPASS invalid username-password pair or user is disabled."
NO_ANSWER = "ERR the external authoriser does not answer"
NOAUTH = "NOAUTH Authentication required."
USERS = {"default": "off", "local": "on >here ~* &* +@all", "app": "on ~app:* &* +@all", "reader": "on ~* +@read"}


class Service:
    """Knows people, and has been asked what it has."""

    def __init__(self, tls=None):
        self.people = {("bob", "word"): {"user": "app"}}
        self.asked = []
        self.tokens = []
        self.clients = []
        self.delay = 0
        self.slow = {}
        self.answer = None
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                service.asked.append(body)
                service.tokens.append(self.headers.get("authorization"))
                time.sleep(service.delay if body["name"] not in service.slow else service.slow[body["name"]])
                known = service.people.get((body["name"], body["password"]))
                status, text = service.answer or ((200, json.dumps(known)) if known else (403, ""))
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def setup(self):
                super().setup()
                service.clients.append(self.connection)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 1024
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/login"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def service():
    service = Service()
    yield service
    service.stop()


def gateway_of(place, auth, workers=1, **options):
    servers = server_lines([place.redis()])
    pool = {"redis": True, "servers": servers, "users": json.dumps(USERS), "external_auth": json.dumps(auth), **options}
    return place.cashew({"alpha": pool}, {"worker_processes": workers})


def said(conn, *words):
    conn.send(resp(*words))
    reply = conn.reply()
    return str(reply) if isinstance(reply, ReplyError) else reply


def upgrade(gateway):
    done = gateway.order("upgrade")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{gateway.log()[-2000:]}"


def check(place, pools):
    file = place.directory / "check.yml"
    file.write_text(config_text(pools, {"worker_processes": 1}))
    return subprocess.run([CASHEW, "-t", "-c", file], capture_output=True, text=True, timeout=30)


def numbers(gateway):
    stats = gateway.stats()["alpha"]
    return {name: stats[f"external_auth_{name}"] for name in ("asked", "refused", "outages", "cached", "lost")}


def test_a_service_says_who_somebody_is(place, service, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    audit = tmp_path / "audit.log"
    servers = server_lines([place.redis()])
    auth = {"url": service.url, "token_file": str(token)}
    pool = {"redis": True, "servers": servers, "users": json.dumps(USERS), "external_auth": json.dumps(auth)}
    pool["command_policy"] = "admin"
    gateway = place.cashew({"alpha": pool}, {"audit_log": json.dumps({"file": str(audit)})})
    client = redis.Redis(port=gateway.address, username="bob", password="word")
    assert client.set("app:a", "1") and client.get("app:a") == b"1"
    assert client.acl_whoami() == "app"
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.get("other")
    assert service.tokens == ["Bearer s3cret"]
    [asked] = service.asked
    host, port = asked.pop("address").rsplit(":", 1)
    assert host == "127.0.0.1" and int(port)
    assert asked == {"pool": "alpha", "name": "bob", "password": "word"}
    with gateway.connect() as conn:
        for words in [("AUTH", "bob", "no"), ("AUTH", "cat", "word"), ("HELLO", "3", "AUTH", "bob", "no")]:
            assert conn.error(*words) == WRONG
        assert conn.error("GET", "app:a") == NOAUTH
        assert len(service.asked) == 4
        # Nobody is asked about who is known here.
        assert conn.error("AUTH", "local", "word") == WRONG
        assert conn.error("AUTH", "app", "word") == WRONG
        assert conn.call("AUTH", "local", "here") == "OK"
        assert conn.error("AUTH", "n" * 300, "word") == WRONG
        assert len(service.asked) == 4
        token.write_text("other")
        assert dict(conn.call("HELLO", "3", "AUTH", "bob", "word"))[b"proto"] == 3
        assert conn.call("ACL", "WHOAMI") == b"app"
    assert service.tokens[-1] == "Bearer other"
    assert numbers(gateway) == {"asked": 5, "refused": 3, "outages": 0, "cached": 0, "lost": 0}
    assert f"external authoriser {service.url}: answers; logins asked about: 5, refused: 3" in gateway.order("status").stdout
    lines = wait_until(lambda: [it for it in map(json.loads, audit.read_text().splitlines()) if it["event"] == "login"],
                       "the audit log is written")
    assert (lines[0]["outcome"], lines[0]["user"], lines[0]["reason"]) == ("ok", "app", "external: bob")
    assert '"word' not in audit.read_text() + gateway.log()


def test_what_is_sent_behind_a_login_waits_in_order(place, service):
    gateway = gateway_of(place, {"url": service.url, "timeout": 20000})
    service.delay = 3
    with gateway.connect() as slow, gateway.connect() as other:
        began = time.monotonic()
        slow.send(resp("AUTH", "bob", "word"))
        slow.send(resp("SET", "app:k", "1"))
        slow.send(resp("GET", "app:k"))
        slow.send(resp("AUTH", "bob", "no"))
        slow.send(resp("PING"))
        assert other.call("AUTH", "local", "here") == "OK" and other.call("SET", "x", "1") == "OK"
        assert time.monotonic() - began < 2.5
        assert [slow.reply() for _ in range(3)] == ["OK", "OK", b"1"]
        assert str(slow.reply()) == WRONG
        # Whoever fails stays who it was.
        assert slow.reply() == "PONG"
    service.delay = 0.3
    # Who leaves meanwhile is nobody's loss.
    leaving = [gateway.connect() for _ in range(20)]
    for conn in leaving:
        conn.send(resp("AUTH", "bob", "word"))
        conn.close()
    with gateway.connect() as conn:
        assert conn.call("AUTH", "bob", "word") == "OK"


def test_an_outage_is_not_a_wrong_password(place, service):
    gateway = gateway_of(place, {"url": service.url, "timeout": 300, "cache": 3000})
    with gateway.connect() as conn:
        assert conn.call("AUTH", "bob", "word") == "OK"
        for answer in [(500, ""), (200, "no json"), (200, "{}"), (302, ""), (200, "x" * 100_000)]:
            service.answer = answer
            assert conn.error("AUTH", "cat", "word") == NO_ANSWER
            # The last good answer counts, for the same password.
            assert conn.call("AUTH", "bob", "word") == "OK"
            assert conn.error("AUTH", "bob", "other") == NO_ANSWER
        assert numbers(gateway)["lost"] == 1
        assert "DOES NOT ANSWER (workers: 1)" in gateway.order("status").stdout
        service.answer, service.delay = None, 1
        began = time.monotonic()
        assert conn.error("AUTH", "cat", "word") == NO_ANSWER
        assert 0.2 < time.monotonic() - began < 0.9
        service.delay = 0
        # The others of before have an end as well.
        wait_until(lambda: conn.error("AUTH", "cat", "word") == WRONG, "it answers")
        assert numbers(gateway)["lost"] == 0
        service.answer = (200, '{"user": "nobody"}')
        assert "names a user who is not configured here" in conn.error("AUTH", "bob", "word")
        service.answer = (403, "")
        assert conn.error("AUTH", "bob", "word") == WRONG
        # What was refused is not let in by an earlier answer.
        service.answer = (500, "")
        assert conn.error("AUTH", "bob", "word") == NO_ANSWER
        service.answer = None
        assert conn.call("AUTH", "bob", "word") == "OK"
        service.stop()
        assert conn.call("AUTH", "bob", "word") == "OK"
        time.sleep(3.5)
        assert conn.error("AUTH", "bob", "word") == NO_ANSWER
    events = gateway.order("events").stdout
    for kind in ("authoriser_lost", "authoriser_back", "authoriser_odd"):
        assert kind in events
    assert numbers(gateway)["cached"] == 6
    assert "'word'" not in events and '"word"' not in gateway.log()


def test_logins_expire(place, service):
    gateway = gateway_of(place, {"url": service.url})
    service.people["bob", "word"] = {"user": "app", "expires_in": 2}
    conns = [gateway.connect() for _ in range(4)]
    for conn in conns:
        assert conn.call("AUTH", "bob", "word") == "OK"
    plain, blocked, subscriber, queueing = conns
    began = time.monotonic()
    blocked.send(resp("BLPOP", "app:list", "10"))
    assert subscriber.call("SUBSCRIBE", "app.news")
    assert queueing.call("MULTI") == "OK" and queueing.call("SET", "app:q", "1") == "QUEUED"
    assert plain.call("SET", "app:a", "1") == "OK"
    wait_until(lambda: said(plain, "GET", "app:a") == NOAUTH, "the login ends")
    assert 1.5 < time.monotonic() - began < 3.5
    assert plain.error("GET", "app:a") == NOAUTH
    # Who would go on without a request is closed.
    for conn in (subscriber, queueing):
        conn.expect_closed()
    with gateway.connect() as local:
        assert local.call("AUTH", "local", "here") == "OK"
        assert local.call("RPUSH", "app:list", "one") == 1
        assert local.call("GET", "app:q") is None
    assert blocked.reply() == [b"app:list", b"one"]
    assert blocked.error("GET", "app:a") == NOAUTH
    service.people["bob", "word"] = {"user": "app"}
    for conn in (plain, blocked):
        assert conn.call("AUTH", "bob", "word") == "OK"
        assert conn.call("GET", "app:a") == b"1"
    # A login here takes the end back.
    service.people["bob", "word"] = {"user": "app", "expires_in": 1}
    assert plain.call("AUTH", "bob", "word") == "OK"
    assert plain.call("AUTH", "local", "here") == "OK"
    time.sleep(1.5)
    assert plain.call("GET", "app:a") == b"1"


def test_reloads_resizes_and_upgrades_keep_logins_and_their_end(place, service):
    gateway = gateway_of(place, {"url": service.url}, workers=2)
    service.people["bob", "word"] = {"user": "app", "expires_in": 60}
    service.people["cat", "word"] = {"user": "app", "expires_in": 5}
    bobs, cats = [[gateway.connect() for _ in range(8)] for _ in range(2)]
    for conn in bobs:
        assert conn.call("AUTH", "bob", "word") == "OK"
    for conn in cats:
        assert conn.call("AUTH", "cat", "word") == "OK"
    waiting = [gateway.connect() for _ in range(8)]
    service.delay = 0.5
    ends = time.monotonic() + 5
    for conn in waiting:
        conn.send(resp("AUTH", "bob", "word"))
        conn.send(resp("GET", "app:none"))
    gateway.configure(worker_processes=3)
    gateway.reload()
    for conn in waiting:
        assert conn.reply() == "OK" and conn.reply() is None
    service.delay = 0
    gateway.configure(worker_processes=1)
    gateway.reload()
    upgrade(gateway)
    for conn in bobs:
        assert conn.call("SET", "app:a", "1") == "OK"
    time.sleep(max(0, ends + 0.5 - time.monotonic()))
    for conn in cats:
        assert conn.error("GET", "app:a") == NOAUTH
    for conn in bobs + waiting:
        assert conn.call("GET", "app:a") == b"1"


def test_a_thousand_at_once(place, service):
    gateway = gateway_of(place, {"url": service.url, "timeout": 20000}, workers=2)
    service.delay = 0.02

    async def one(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.address)
        name = b"bob" if number % 2 else b"cat"
        writer.write(b"AUTH %s word\r\nGET app:none\r\n" % name)
        first, second = await reader.readline(), await reader.readline()
        writer.close()
        return (first, second) == ((b"+OK\r\n", b"$-1\r\n") if number % 2 else (f"-{WRONG}\r\n".encode(), f"-{NOAUTH}\r\n".encode()))

    async def all_of_them():
        return await asyncio.gather(*(one(number) for number in range(1000)))

    assert all(asyncio.run(all_of_them()))
    assert numbers(gateway) == {"asked": 1000, "refused": 500, "outages": 0, "cached": 0, "lost": 0}


def crowd(gateway, count):
    """Connections of strangers whose logins the service takes its time for."""
    strangers = [gateway.connect() for _ in range(count)]
    for conn in strangers:
        conn.send(resp("AUTH", "stranger", "x"))
    return strangers


def test_strangers_cannot_have_the_cache_let_in_who_is_out(place, service):
    """Who has no turn to be asked about is told so, whatever was known of it."""
    gateway = gateway_of(place, {"url": service.url, "timeout": 1500, "cache": 600_000})
    service.slow = {"stranger": 1.4}
    with gateway.connect() as conn:
        assert conn.call("AUTH", "bob", "word") == "OK"
    service.people.clear()
    strangers = crowd(gateway, 200)
    wait_until(lambda: numbers(gateway)["asked"] == 201, "all are to be asked about")
    with gateway.connect() as conn:
        assert said(conn, "AUTH", "bob", "word") in (NO_ANSWER, WRONG)
    for stranger in strangers:
        assert said(stranger, "PING") in (NO_ANSWER, WRONG)
        stranger.close()
    assert numbers(gateway)["cached"] == 0
    assert numbers(gateway)["lost"] == 0 and "does not answer" not in gateway.log()


def test_a_file_does_not_wait_for_a_service(place, service, tmp_path):
    logins = tmp_path / "logins"
    logins.write_text(line("ann", "word", "app"))
    logins.chmod(0o600)
    servers = server_lines([place.redis()])
    pool = {"redis": True, "servers": servers, "users": json.dumps(USERS)}
    auths = {"alpha": {"url": service.url, "timeout": 10000}, "beta": {"file": str(logins)}}
    gateway = place.cashew({name: {**pool, "external_auth": json.dumps(auth)} for name, auth in auths.items()},
                           {"worker_processes": 1})
    service.slow = {"stranger": 8}
    strangers = crowd(gateway, 200)
    wait_until(lambda: len(service.asked) >= 64, "the service is busy")
    begun = time.monotonic()
    with gateway.connect("beta") as conn:
        assert conn.call("AUTH", "ann", "word") == "OK"
    assert time.monotonic() - begun < 6, "it has waited for strangers"
    for stranger in strangers:
        stranger.close()


def test_what_is_secret_in_a_url_is_not_told(place, service):
    gateway = gateway_of(place, {"url": f"{service.url}?key=s3cret", "timeout": 500})
    service.answer = (500, "")
    with gateway.connect() as conn:
        assert conn.error("AUTH", "bob", "word") == NO_ANSWER
    wait_until(lambda: service.url in gateway.log(), "the log says who does not answer")
    assert "s3cret" not in gateway.log() + gateway.order("status").stdout


def line(name, password, user, *more):
    return " ".join([name, hashlib.sha256(password.encode()).hexdigest(), user, *more]) + "\n"


def test_a_file_of_logins(place, tmp_path):
    logins = tmp_path / "logins"
    logins.write_text("# who\n" + line("bob", "word", "app") + "cat word app\n" + line("dan", "word", "reader", "2020-01-01T00:00:00Z"))
    logins.chmod(0o600)
    gateway = gateway_of(place, {"file": str(logins)})
    with gateway.connect() as conn:
        assert conn.call("AUTH", "bob", "word") == "OK"
        for name in ("cat", "dan", "eve"):
            assert conn.error("AUTH", name, "word") == WRONG
        assert f"{logins}:3: " in gateway.log() and "cat word" not in gateway.log()
        soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3))
        new = tmp_path / "new"
        new.write_text(line("eve", "word", "reader", soon))
        new.rename(logins)
        assert conn.error("AUTH", "bob", "word") == WRONG
        assert conn.call("AUTH", "eve", "word") == "OK"
        assert conn.call("GET", "a") is None
        wait_until(lambda: said(conn, "GET", "a") == NOAUTH, "the login ends")
        logins.unlink()
        assert conn.error("AUTH", "fay", "word") == NO_ANSWER


def sasl(name, password):
    value = f"\0{name}\0{password}".encode()
    return struct.pack(">BBHBBHIIQ", 0x80, 0x21, 5, 0, 0, 0, 5 + len(value), 7, 0) + b"PLAIN" + value


def test_memcached(place, service):
    servers = server_lines([place.memcached()])
    users = json.dumps({"app": "on ~app:* +@all"})
    auth = json.dumps({"url": service.url, "timeout": 500})
    gateway = place.cashew({"alpha": {"servers": servers, "users": users, "external_auth": auth}})
    service.people["bob", "word"] = {"user": "app", "expires_in": 2}

    def talk(conn, text, size):
        conn.send(text)
        return conn.read(size)

    with gateway.connect() as conn:
        service.delay = 0.1
        text = b"set auth 0 0 8\r\nbob word\r\nset app:a 0 0 1\r\n1\r\nget app:a\r\n"
        expected = b"STORED\r\nSTORED\r\nVALUE app:a 0 1\r\n1\r\nEND\r\n"
        assert talk(conn, text, len(expected)) == expected
        time.sleep(2.3)
        expected = b"CLIENT_ERROR unauthenticated\r\n"
        assert talk(conn, b"get app:a\r\n", len(expected)) == expected
        assert talk(conn, b"set auth 0 0 8\r\nbob word\r\n", 8) == b"STORED\r\n"
    with gateway.connect() as conn:
        expected = b"CLIENT_ERROR authentication failure\r\n"
        assert talk(conn, b"set auth 0 0 6\r\nbob no\r\n", len(expected)) == expected
        service.answer = (500, "")
        expected = b"SERVER_ERROR the external authoriser does not answer\r\n"
        assert talk(conn, b"set auth 0 0 6\r\nbob no\r\n", len(expected)) == expected
        service.answer = None
    with gateway.connect() as conn:
        noop = struct.pack(">BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 8, 0)
        reply = talk(conn, sasl("bob", "word") + noop, 24 + 13 + 24)
        assert reply[6:8] == b"\0\0" and reply[24:37] == b"Authenticated" and reply[38] == 0x0A
        reply = talk(conn, sasl("bob", "no"), 24)
        assert reply[6:8] == b"\0\x20"
        service.answer = (500, "")
        conn.read(struct.unpack(">I", reply[8:12])[0])
        reply = talk(conn, sasl("cat", "word"), 24)
        assert reply[6:8] == b"\0\x86"


def test_https(place):
    one, other = Authority(place.directory), Authority(place.directory)
    pair = one.sign("IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    service = Service(context)
    for authority, answer in [(one, "OK"), (other, NO_ANSWER)]:
        gateway = gateway_of(place, {"url": service.url, "ca": str(authority.ca), "timeout": 5000})
        with gateway.connect() as conn:
            assert said(conn, "AUTH", "bob", "word") == answer
    service.stop()


@pytest.mark.parametrize(
    ("auth", "why"),
    [
        ({}, 'has neither "url" nor "file"'),
        ({"url": "http://a/", "file": "/f"}, 'has both "url" and "file"'),
        ({"url": "https://a/"}, 'https needs a "ca"'),
        ({"url": "ftp://a/"}, "is no URL to ask at"),
        ({"url": "http://u:p@a/"}, "is no URL to ask at"),
        ({"file": "/nowhere/at/all"}, "cannot be read"),
        ({"url": "http://a/", "cach": 1}, "cach"),
    ],
)
def test_bad_sections_are_refused(place, auth, why):
    servers = server_lines([place.redis()])
    pool = {"listen": "127.0.0.1:1", "redis": True, "servers": servers, "users": json.dumps(USERS), "external_auth": json.dumps(auth)}
    result = check(place, {"alpha": pool})
    assert result.returncode != 0 and why in result.stderr, result.stderr


def test_it_goes_with_users(place):
    pool = {"listen": "127.0.0.1:1", "redis": True, "servers": server_lines([place.redis()]), "external_auth": '{"url": "http://a/"}'}
    result = check(place, {"alpha": pool})
    assert result.returncode != 0 and '"external_auth" names users, and there are none' in result.stderr
