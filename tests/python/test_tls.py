"""TLS towards clients and servers, with real clients, servers and certificates."""

import concurrent.futures
import contextlib
import random
import socket
import ssl
import subprocess
import threading
import time

import pymemcache
import pymemcache.client.base
import pytest
import redis

from certificates import Authority, Pair
from harness import (
    Crowd, FakeServer, HOST, PATIENCE, ReplyError, check_io_engine, free_port, server_lines, wait_until,
)

NAMES = f"DNS:localhost,IP:{HOST}"


@pytest.fixture(scope="module")
def authority(module_place):
    return Authority(module_place.directory)


@pytest.fixture(scope="module")
def pair(authority):
    return authority.sign(NAMES)


def options(pair, **more):
    """The option `tls` of a pool."""
    words = {"certificate": pair.certificate, "key": pair.key, **more}
    return "{" + ", ".join(f"{key}: {value}" for key, value in words.items()) + "}"


def context(authority, **more):
    made = ssl.create_default_context(cafile=str(authority.ca))
    for name, value in more.items():
        setattr(made, name, value)
    return made


class Secured:
    """A gateway with a pool of each protocol, reached with TLS at `ports` too."""

    def __init__(self, place, pair, authority, settings=None, servers=None, tls=None, **more):
        self.authority = authority
        self.redis = place.redis()
        self.memcached = place.memcached()
        self.ports = {name: free_port() for name in ("alpha", "beta")}
        secured = {name: {"tls": tls or options(pair), "tls_listen": f"{HOST}:{port}", **more}
                   for name, port in self.ports.items()}
        self.pools = {
            "alpha": {"redis": "true", "servers": server_lines([self.redis]), **secured["alpha"]},
            "beta": {"servers": server_lines([self.memcached]), **secured["beta"]},
        }
        self.gateway = place.cashew(self.pools, {"worker_processes": 1, **(settings or {})})
        self.gateway.wait_serving()

    def connect(self, pool="alpha", made=None, host="localhost", session=None):
        raw = socket.create_connection((HOST, self.ports[pool]), PATIENCE)
        made = made or context(self.authority)
        return made.wrap_socket(raw, server_hostname=host, session=session)

    def client(self, **more):
        return redis.Redis("localhost", self.ports["alpha"], ssl=True,
                           ssl_ca_certs=str(self.authority.ca), **more)

    def stats(self, pool="alpha"):
        return self.gateway.stats()[pool]


@pytest.fixture(scope="module", params=["epoll", "uring"])
def secured(request, module_place, authority, pair):
    made = Secured(module_place, pair, authority, {"io_engine": request.param})
    check_io_engine(made.gateway, request.param)
    return made


def ask(conn, *words):
    """One command of Redis's and the first line of its reply."""
    conn.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
    return read_line(conn)


def read_line(conn):
    line = b""
    while not line.endswith(b"\r\n"):
        byte = conn.recv(1)
        assert byte, "the connection ended"
        line += byte
    return line


# ------------------------------------------------------------------------------------- real clients


def test_redis_cli(secured):
    words = ["redis-cli", "--tls", "-h", "localhost", "-p", str(secured.ports["alpha"]),
             "--cacert", str(secured.authority.ca)]
    done = subprocess.run([*words, "SET", "cli", "value"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "OK\n", done.stderr
    assert subprocess.run([*words, "GET", "cli"], capture_output=True, text=True).stdout == "value\n"


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(secured, protocol):
    client = secured.client(protocol=protocol)
    assert client.set("py", "value") and client.get("py") == b"value"
    with client.pipeline(transaction=False) as pipeline:
        for number in range(2000):
            pipeline.set(f"key{number}", number)
            pipeline.get(f"key{number}")
        replies = pipeline.execute()
    assert replies[1::2] == [str(number).encode() for number in range(2000)]
    with client.pipeline() as transaction:
        transaction.incr("counter{a}").get("counter{a}")
        assert transaction.execute()[1].isdigit()
    listener = client.pubsub()
    listener.subscribe("channel")
    assert listener.get_message(timeout=PATIENCE)["type"] == "subscribe"
    client.publish("channel", "news")
    assert listener.get_message(timeout=PATIENCE)["data"] == b"news"
    client.close()


@pytest.mark.parametrize("size", [1, 16_383, 16_384, 16_385, 70_000, 10_000_000])
def test_large_values_of_redis(secured, size):
    client = secured.client()
    value = random.randbytes(size)
    assert client.set("large", value)
    assert client.get("large") == value
    # What one wrote with TLS another reads without.
    with secured.gateway.connect("alpha") as plain:
        assert plain.call("GET", "large") == value
    client.close()


def test_pymemcache(secured):
    made = context(secured.authority)
    client = pymemcache.client.base.Client(("localhost", secured.ports["beta"]), tls_context=made)
    for size in (1, 16_384, 900_000):
        value = random.randbytes(size)
        assert client.set("key", value) and client.get("key") == value
    many = {f"key{number}": b"v%d" % number for number in range(200)}
    assert client.set_many(many) == [] and client.get_many(many) == many
    client.close()


def test_binary_memcached(secured):
    conn = secured.connect("beta")
    # A version packet.
    conn.sendall(bytes([0x80, 0x0b]) + bytes(22))
    header = b""
    while len(header) < 24:
        header += conn.recv(24 - len(header))
    assert header[:2] == bytes([0x81, 0x0b])
    conn.close()


def test_a_thousand_requests_in_pieces_of_any_size(secured):
    conn = secured.connect()
    request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n" * 1000
    at = 0
    while at < len(request):
        size = random.choice([1, 7, 100, 5000])
        conn.sendall(request[at:at + size])
        at += size
    got = b""
    while len(got) < 5000:
        got += conn.recv(65536)
    assert got == b"+OK\r\n" * 1000
    conn.close()


def test_two_hundred_clients_at_once(secured):
    made = context(secured.authority)

    def serve(number):
        with secured.connect("alpha", made) as conn:
            key = b"client%d" % number
            assert ask(conn, b"SET", key, key) == b"+OK\r\n"
            assert ask(conn, b"GET", key) == b"$%d\r\n" % len(key) and read_line(conn) == key + b"\r\n"

    before = secured.stats()["tls_handshakes"]
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        list(pool.map(serve, range(200)))
    assert secured.stats()["tls_handshakes"] == before + 200


# ------------------------------------------------------------------------------------- ends


def test_a_client_that_says_no_more_gets_its_replies(secured):
    conn = secured.connect()
    conn.sendall(b"*1\r\n$4\r\nPING\r\n" * 100)
    # Its end is told by TLS; the socket stays open.
    raw = ssl.SSLSocket.unwrap
    got = b""
    with contextlib.suppress(ssl.SSLError, OSError):
        raw(conn)
    with contextlib.suppress(OSError):
        while piece := conn.recv(4096):
            got += piece
    conn.close()
    wait_until(lambda: "panicked" not in secured.gateway.log(), "all is well")


def test_the_end_is_told(secured):
    conn = secured.connect()
    conn.sendall(b"*1\r\n$4\r\nQUIT\r\n")
    assert read_line(conn) == b"+OK\r\n"
    # An end that was not told would be an error.
    assert conn.recv(1) == b""
    conn.close()


def test_a_client_that_does_not_read_is_not_read(secured):
    client = secured.client()
    client.set("large", b"x" * 1_000_000)
    conn = secured.connect()
    request = b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n"
    conn.sendall(request * 40)
    time.sleep(0.5)
    # Others are served meanwhile.
    assert client.get("large") == b"x" * 1_000_000
    got = 0
    while got < 40 * 1_000_012:
        piece = conn.recv(1 << 20)
        assert piece
        got += len(piece)
    assert ask(conn, b"PING") == b"+PONG\r\n"
    conn.close()
    client.close()


# ------------------------------------------------------------------------------------- what is refused


def test_plain_text_is_refused(secured):
    before = secured.stats()["tls_plain"]
    with socket.create_connection((HOST, secured.ports["alpha"]), PATIENCE) as conn:
        conn.sendall(b"*1\r\n$4\r\nPING\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"PONG" not in conn.recv(100)
    wait_until(lambda: secured.stats()["tls_plain"] == before + 1, "it is counted")
    wait_until(lambda: "what it sent is no TLS" in secured.gateway.log(), "it is logged")


def test_a_handshake_where_plain_text_is_spoken(secured):
    with pytest.raises((ssl.SSLError, OSError)):
        with socket.create_connection((HOST, secured.gateway.addresses["alpha"]), PATIENCE) as raw:
            raw.settimeout(3)
            context(secured.authority).wrap_socket(raw, server_hostname="localhost")
    assert secured.gateway.call("PING") == "PONG"


def test_old_versions_are_refused(secured):
    before = secured.stats()
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        made = context(secured.authority)
        made.set_ciphers("ALL:@SECLEVEL=0")
        made.minimum_version = ssl.TLSVersion.TLSv1
        made.maximum_version = version
        with pytest.raises((ssl.SSLError, OSError)):
            secured.connect(made=made)
    wait_until(lambda: secured.stats()["tls_versions"] >= before["tls_versions"] + 2, "they are counted")


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_both_versions_are_spoken(secured, version):
    before = secured.stats()["tls_older"]
    made = context(secured.authority)
    made.minimum_version = made.maximum_version = ssl.TLSVersion[version]
    with secured.connect(made=made) as conn:
        assert conn.version() == version.replace("_", ".")
        assert ask(conn, b"PING") == b"+PONG\r\n"
    assert secured.stats()["tls_older"] - before == (version == "TLSv1_2")


def test_weak_ciphers_are_refused(secured):
    for cipher in ("AES128-SHA", "AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-SHA", "NULL-SHA256"):
        made = context(secured.authority)
        made.maximum_version = ssl.TLSVersion.TLSv1_2
        made.set_ciphers(f"{cipher}:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, OSError)):
            secured.connect(made=made)


def test_renegotiation_is_refused(secured):
    words = ["openssl", "s_client", "-connect", f"{HOST}:{secured.ports['alpha']}", "-tls1_2",
             "-CAfile", str(secured.authority.ca)]
    done = subprocess.run(words, input="R\n", capture_output=True, text=True, timeout=PATIENCE)
    said = done.stdout + done.stderr
    assert "RENEGOTIATING" in said and "verify return:1" in said.split("RENEGOTIATING")[0]
    assert "verify return:1" not in said.split("RENEGOTIATING")[1]


def test_rubbish_within_a_connection_ends_it(secured):
    for rubbish in (b"\x17\x03\x03\x00\x20" + bytes(32), b"\x17\x03\x03\xff\xff" + bytes(70_000),
                    b"\x16\x03\x03\x00\x04\x01\x00\x00\x00", bytes(100), random.randbytes(5000)):
        conn = secured.connect()
        assert ask(conn, b"PING") == b"+PONG\r\n"
        raw = socket.socket(fileno=conn.detach())
        raw.settimeout(PATIENCE)
        raw.sendall(rubbish)
        raw.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while raw.recv(4096):
                pass
        raw.close()
    assert secured.client().ping()


def test_half_a_handshake_is_given_up(place, authority, pair):
    made = Secured(place, pair, authority, tls=options(pair, handshake_timeout="300ms"))
    silent = [socket.create_connection((HOST, made.ports["alpha"]), PATIENCE) for _ in range(20)]
    silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")
    with made.connect() as conn:
        began = time.monotonic()
        for waiting in silent:
            with contextlib.suppress(ConnectionResetError):
                while waiting.recv(100):
                    pass
            waiting.close()
        assert time.monotonic() - began < 10
        assert ask(conn, b"PING") == b"+PONG\r\n"
    assert made.stats()["tls_timeouts"] == 20
    assert "its handshake took longer than handshake_timeout" in made.gateway.log()


# ------------------------------------------------------------------------------------- certificates


def test_a_client_certificate_is_required(place, authority, pair):
    made = Secured(place, pair, authority, tls=options(pair, client_ca=authority.ca))
    own, foreign = authority.sign("DNS:client"), Authority(place.directory).sign("DNS:client")
    good = context(authority)
    good.load_cert_chain(own.certificate, own.key)
    with made.connect(made=good) as conn:
        assert ask(conn, b"PING") == b"+PONG\r\n"
    bad = context(authority)
    bad.load_cert_chain(foreign.certificate, foreign.key)
    for wrong in (context(authority), bad):
        # With TLS 1.3 a client hears of it when it reads.
        with pytest.raises((ssl.SSLError, OSError, AssertionError)):
            with made.connect(made=wrong) as conn:
                ask(conn, b"PING")
    wait_until(lambda: made.stats()["tls_certificates"] == 2, "both are counted")
    assert "it showed no certificate" in made.gateway.log()


def test_the_name_chooses_the_certificate(place, authority, pair):
    other, rsa = authority.sign("DNS:*.other.test"), authority.sign("DNS:localhost", kind="rsa")
    files = [[it.certificate for it in (pair, other, rsa)], [it.key for it in (pair, other, rsa)]]
    words = [", ".join(map(str, it)) for it in files]
    made = Secured(place, pair, authority, tls=f"{{certificate: [{words[0]}], key: [{words[1]}]}}")
    for host in ("localhost", "a.other.test"):
        with made.connect(host=host) as conn:
            assert ask(conn, b"PING") == b"+PONG\r\n"
    with pytest.raises(ssl.SSLCertVerificationError):
        made.connect(host="else.test")
    only_rsa = context(authority)
    only_rsa.maximum_version = ssl.TLSVersion.TLSv1_2
    only_rsa.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
    with made.connect(made=only_rsa) as conn:
        assert conn.cipher()[0] == "ECDHE-RSA-AES128-GCM-SHA256"
    status = made.gateway.order("status").stdout
    assert f"{HOST}:{made.ports['alpha']}  {pair.certificate}  localhost, {HOST}" in status
    assert "*.other.test" in status


def test_reload_replaces_certificates_and_drops_nobody(place, authority):
    first, second = authority.sign(NAMES, days=100), authority.sign(NAMES, days=10)
    files = Pair(place.directory / "live.crt", place.directory / "live.key")
    first.put(files.certificate, files.key)
    made = Secured(place, files, authority, {"worker_processes": 2})
    ours = context(authority)

    def serial():
        with made.connect(made=ours) as conn:
            assert ask(conn, b"PING") == b"+PONG\r\n"
            return conn.getpeercert()["serialNumber"]

    before = serial()
    counts = [0] * 6
    failures = []

    def serve(number):
        try:
            conn = made.connect(made=ours)
            while not crowd.ended.is_set():
                key = b"k%d" % number
                assert ask(conn, b"SET", key, key) == b"+OK\r\n"
                counts[number] += 1
                if number >= 4:
                    conn.close()
                    conn = made.connect(made=ours)
            conn.close()
        except Exception as error:
            failures.append(error)

    crowd = Crowd(serve, 6)
    with crowd:
        wait_until(lambda: min(counts) > 0, "all are served")
        second.put(files.certificate, files.key)
        said = made.gateway.reload()
        assert "tls certificate: changed" in said
        assert f"the certificate of {files.certificate} expires in " in said, said
        after = serial()
        assert after != before
        seen = list(counts)
        wait_until(lambda: all(a > b for a, b in zip(counts, seen)), "all are served on")
        # What cannot be used changes nothing.
        files.certificate.write_text("nothing\n")
        said = made.gateway.refused_reload()
        assert f"{files.certificate} has no certificate in PEM form" in said
        second.put(files.certificate, files.key)
        files.key.write_bytes(first.key.read_bytes())
        said = made.gateway.refused_reload()
        assert f"{files.key} is not the key of the certificate" in said
        files.key.unlink()
        assert f"{files.key} cannot be read" in made.gateway.refused_reload()
        assert serial() == after
    assert failures == []

    def check():
        words = [made.gateway.binary, "-t", "-c", str(made.gateway.config_path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout + done.stderr

    status, said = check()
    assert status == 1 and f"{files.key} cannot be read" in said
    second.put(files.certificate, files.key)
    status, said = check()
    assert status == 0 and "expires in" in said, said
    for secret in (first, second):
        body = secret.key.read_text().splitlines()[1]
        assert body not in made.gateway.log() and body not in made.gateway.order("status").stdout


def test_tls_is_switched_on_and_off_by_reload(place, authority, pair):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": "true", "servers": server_lines([server])}},
                           {"worker_processes": 2})
    port = gateway.addresses["alpha"]

    def secured_ping():
        with socket.create_connection((HOST, port), PATIENCE) as raw:
            with context(authority).wrap_socket(raw, server_hostname="localhost") as conn:
                return ask(conn, b"PING")

    plain = gateway.connect()
    assert plain.call("PING") == "PONG"
    bare = {"redis": "true", "servers": server_lines([server])}
    gateway.configure({"alpha": {**bare, "tls": options(pair)}})
    gateway.reload()
    assert secured_ping() == b"+PONG\r\n"
    # Who came before stays as it came.
    assert plain.call("PING") == "PONG"
    plain.close()
    gateway.configure({"alpha": bare})
    gateway.reload()
    assert gateway.call("PING") == "PONG"


# ------------------------------------------------------------------------------------- resumption


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_a_session_is_resumed_at_any_worker(place, authority, pair, version):
    made = Secured(place, pair, authority, {"worker_processes": 3})
    ours = context(authority)
    ours.minimum_version = ours.maximum_version = ssl.TLSVersion[version]

    def visit(session):
        with made.connect(made=ours, session=session) as conn:
            assert ask(conn, b"PING") == b"+PONG\r\n"
            return conn.session, conn.session_reused

    session, is_reused = visit(None)
    assert not is_reused
    # The kernel spreads them over the workers.
    for _ in range(20):
        session, is_reused = visit(session)
        assert is_reused
    assert made.stats()["tls_resumed"] == 20
    # A reload changes nothing of it, nor does another worker.
    made.gateway.configure({**made.pools, "alpha": {**made.pools["alpha"], "timeout": "5000"}}, worker_processes=4)
    made.gateway.reload()
    for _ in range(10):
        session, is_reused = visit(session)
        assert is_reused


# ------------------------------------------------------------------------------------- servers


class Backends:
    """Real servers with TLS."""

    def __init__(self, place, pair, authority, auth="no"):
        self.redis_port, self.memcached_port = free_port(), free_port()
        self.redis = place.redis("--tls-port", self.redis_port, "--tls-cert-file", pair.certificate,
                                 "--tls-key-file", pair.key, "--tls-ca-cert-file", authority.ca,
                                 "--tls-auth-clients", auth)
        self.memcached = place.memcached("-Z", "-o", f"ssl_chain_cert={pair.certificate}",
                                         "-o", f"ssl_key={pair.key}", port=self.memcached_port)

    def lines(self):
        return [f"localhost:{self.redis_port}:1 r1"], [f"localhost:{self.memcached_port}:1 m1"]


@pytest.fixture(scope="module")
def backends(module_place, pair, authority):
    return Backends(module_place, pair, authority)


def behind(place, backends, server_tls, settings=None):
    lines = backends.lines()
    common = {"server_tls": server_tls, "timeout": "3000"}
    return place.cashew({
        "alpha": {"redis": "true", "servers": lines[0], **common},
        "beta": {"servers": lines[1], **common},
    }, {"worker_processes": 1, **(settings or {})})


@pytest.mark.parametrize("io_engine", ["epoll", "uring"])
def test_servers_with_tls(place, backends, authority, io_engine):
    gateway = behind(place, backends, f"{{ca: {authority.ca}}}", {"io_engine": io_engine})
    check_io_engine(gateway, io_engine)
    for size in (1, 16_384, 10_000_000):
        value = random.randbytes(size)
        assert gateway.call("SET", "key", value) == "OK"
        assert gateway.call("GET", "key") == value
    # It is really there.
    assert backends.redis.call("GET", "key") == value
    client = pymemcache.client.base.Client((HOST, gateway.addresses["beta"]))
    value = random.randbytes(900_000)
    assert client.set("key", value) and client.get("key") == value
    client.close()
    with gateway.connect("alpha") as conn:
        conn.send(b"".join(b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" for _ in range(3000)))
        for _ in range(3000):
            assert conn.reply() == "PONG" and isinstance(conn.reply(), int)
        # A connection of its own.
        assert conn.call("MULTI") == "OK" and conn.call("INCR", "n") == "QUEUED"
        assert len(conn.call("EXEC")) == 1
    numbers = gateway.stats()["alpha"]["r1"]
    assert numbers["tls_handshakes"] >= 2 and numbers["tls_failures"] == 0


def test_a_server_that_wants_a_certificate(place, authority, pair):
    backends = Backends(place, pair, authority, auth="yes")
    own = authority.sign("DNS:gateway")
    words = f"{{ca: {authority.ca}, certificate: {own.certificate}, key: {own.key}}}"
    gateway = behind(place, backends, words)
    assert gateway.call("PING") == "PONG" and gateway.call("SET", "a", "b") == "OK"
    # Another certificate is for those connections that are made from then on.
    own.put(place.directory / "next.crt", place.directory / "next.key")
    next_words = words.replace(str(own.certificate), str(place.directory / "next.crt"))
    next_words = next_words.replace(str(own.key), str(place.directory / "next.key"))
    authority.sign("DNS:next").put(place.directory / "next.crt", place.directory / "next.key")
    before = gateway.stats()["alpha"]["r1"]["tls_handshakes"]
    gateway.configure({name: {**options, "server_tls": next_words} for name, options in gateway.pools.items()})
    assert "server_tls certificate: changed" in gateway.reload()
    assert gateway.call("GET", "a") == b"b"
    assert gateway.stats()["alpha"]["r1"]["tls_handshakes"] == before
    backends.redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def is_served_anew():
        with contextlib.suppress(ReplyError):
            return (gateway.call("GET", "a") == b"b"
                    and gateway.stats()["alpha"]["r1"]["tls_handshakes"] > before)

    wait_until(is_served_anew, "it is connected anew")
    without = behind(place, backends, f"{{ca: {authority.ca}}}")
    with without.connect("alpha") as conn:
        # With TLS 1.3 the handshake is over here before the server has refused it.
        wait_until(lambda: "refused the gateway's certificate" in conn.error("GET", "a"), "it is said", pause=0.2)


@pytest.mark.parametrize("what, words", [
    ("untrusted", "Server's certificate is not signed by a trusted authority"),
    ("name", "Server's certificate is for another name"),
    ("expired", "Server's certificate has expired"),
    ("plain", "Server does not answer the TLS handshake"),
    ("version", "Server speaks no version and ciphers of TLS that are allowed"),
])
def test_a_server_that_is_not_to_be_trusted(place, authority, what, words):
    other = Authority(place.directory)
    pair = {
        "untrusted": lambda: other.sign(NAMES),
        "name": lambda: authority.sign("DNS:elsewhere"),
        "expired": lambda: authority.sign(NAMES, days=-1),
    }.get(what, lambda: authority.sign(NAMES))()
    port = free_port()
    old = ["--tls-protocols", "TLSv1.2"] if what == "version" else []
    server = place.redis("--tls-port", port, "--tls-cert-file", pair.certificate, "--tls-key-file",
                         pair.key, "--tls-ca-cert-file", authority.ca, "--tls-auth-clients", "no", *old)
    at = server.port if what == "plain" else port
    newest = ", min_version: 1.3" if what == "version" else ""
    gateway = place.cashew({"alpha": {
        "redis": "true", "servers": [f"localhost:{at}:1 r1"], "timeout": "2000",
        "server_tls": f"{{ca: {authority.ca}{newest}}}",
    }}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert words in conn.error("GET", "a")
    wait_until(lambda: words in gateway.order("status").stdout, "the status says why")
    assert words in gateway.log()
    assert gateway.stats()["alpha"]["r1"]["tls_failures"] > 0
    if what in ("untrusted", "name", "expired"):
        # Whoever says so gets it all the same, and is warned; connections that stand are made anew.
        gateway.configure({"alpha": {**gateway.pools["alpha"], "server_tls": "{verify: false}"}})
        assert "are not verified" in gateway.reload()
        wait_until(lambda: gateway.call("PING") == "PONG" and "OK" == gateway.call("SET", "a", "b"), "it is served")
    if what == "name":
        named = f"{{ca: {authority.ca}, server_name: elsewhere}}"
        gateway.configure({"alpha": {**gateway.pools["alpha"], "server_tls": named}})
        gateway.reload()
        assert gateway.call("GET", "a") == b"b"


def test_a_pool_that_was_removed_reaches_its_servers_on(place, backends, authority):
    lines, _ = backends.lines()
    secured = {"redis": "true", "servers": lines, "server_tls": f"{{ca: {authority.ca}}}"}
    other = {"redis": "true", "servers": server_lines([place.redis()])}
    gateway = place.cashew({"alpha": other, "beta": secured}, {"worker_processes": 1})
    with gateway.connect("beta") as conn:
        assert conn.call("SET", "removed", "x") == "OK"
        gateway.configure({"alpha": other})
        gateway.reload()
        assert conn.call("GET", "removed") == b"x"
        backends.redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        def is_served():
            with contextlib.suppress(ReplyError):
                return conn.call("GET", "removed") == b"x"

        wait_until(is_served, "its server is connected anew", pause=0.1)


def test_servers_get_tls_by_reload(place, backends, authority):
    lines, _ = backends.lines()
    plain = {"redis": "true", "servers": [f"localhost:{backends.redis.port}:1 r1"]}
    gateway = place.cashew({"alpha": plain}, {"worker_processes": 2})
    failures, counts = [], [0, 0]

    def serve(number):
        try:
            with gateway.connect() as conn:
                while not crowd.ended.is_set():
                    assert conn.call("SET", f"k{number}", "v") == "OK"
                    counts[number] += 1
        except Exception as error:
            failures.append(error)

    crowd = Crowd(serve, 2)
    with crowd:
        wait_until(lambda: min(counts) > 10, "both are served")
        # To another port, with TLS, and back.
        gateway.configure({"alpha": {"redis": "true", "servers": lines, "server_tls": f"{{ca: {authority.ca}}}"}})
        gateway.reload()
        wait_until(lambda: failures or gateway.stats()["alpha"]["r1"]["tls_handshakes"] > 0, "with TLS")
        assert not failures, failures
        gateway.configure({"alpha": plain})
        gateway.reload()
        seen = list(counts)
        wait_until(lambda: all(a > b for a, b in zip(counts, seen)), "both are served on")
    assert failures == []


def test_a_server_that_hangs_in_its_handshake(place, authority):
    held = threading.Event()
    server = place.keep(FakeServer(lambda client, number: held.wait(PATIENCE)))
    gateway = place.cashew({"alpha": {
        "redis": "true", "servers": [f"{HOST}:{server.port}:1 r1"], "timeout": "2000",
        "server_tls": f"{{ca: {authority.ca}}}",
    }}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert "does not answer the TLS handshake" in conn.error("GET", "a")
    held.set()


# ------------------------------------------------------------------------------------- workers that come and go


CIPHERS = {
    "TLSv1_2": ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"],
    "TLSv1_3": [None],
}


@pytest.mark.parametrize("io_engine", ["epoll", "uring"])
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_clients_with_tls_move_and_lose_nothing(place, authority, pair, version, io_engine):
    made = Secured(place, pair, authority, {"worker_processes": 3, "io_engine": io_engine,
                                            "worker_shutdown_timeout": 60})
    check_io_engine(made.gateway, io_engine)
    counts, failures = [0] * 9, []

    def serve(number):
        try:
            ours = context(authority)
            ours.minimum_version = ours.maximum_version = ssl.TLSVersion[version]
            cipher = CIPHERS[version][number % len(CIPHERS[version])]
            if cipher:
                ours.set_ciphers(cipher)
            conn = made.connect(made=ours)
            key, large = b"k%d" % number, random.randbytes(100_000)
            while not crowd.ended.is_set():
                value = b"%d" % counts[number]
                if number % 3 == 2:
                    value += large
                # Requests and replies in pieces, and several at once.
                request = b"*3\r\n$3\r\nSET\r\n$2\r\n%s\r\n$%d\r\n%s\r\n" % (key, len(value), value)
                request += b"*2\r\n$3\r\nGET\r\n$2\r\n%s\r\n" % key
                half = random.randrange(len(request))
                conn.sendall(request[:half])
                conn.sendall(request[half:])
                reply = b"+OK\r\n$%d\r\n%s\r\n" % (len(value), value)
                got = b""
                while len(got) < len(reply):
                    piece = conn.recv(65536)
                    assert piece, "the connection ended"
                    got += piece
                assert got == reply
                counts[number] += 1
            conn.close()
        except Exception as error:
            failures.append(error)

    def moved():
        return sum(worker["sessions_in"] for worker in made.gateway.stats()["cashew"]["workers"])

    crowd = Crowd(serve, 9)
    with crowd:
        wait_until(lambda: min(counts) > 3 or failures, "all are served")
        for workers in (1, 3, 2, 4, 1):
            made.gateway.configure(worker_processes=workers)
            made.gateway.reload()
            wait_until(lambda: len(made.gateway.workers()) == workers or failures, "workers have gone")
            seen = list(counts)
            wait_until(lambda: all(a > b for a, b in zip(counts, seen)) or failures, "all are served on")
            assert failures == []
        assert moved() > 0
        # To another program, too.
        done = made.gateway.order("upgrade")
        assert done.returncode == 0, done.stdout + done.stderr
        seen = list(counts)
        wait_until(lambda: all(a > b for a, b in zip(counts, seen)) or failures, "all are served on")
    assert failures == []
    assert "sessions_cut" in made.gateway.stats()["cashew"]["workers"][0]
    assert sum(worker["sessions_cut"] for worker in made.gateway.stats()["cashew"]["workers"]) == 0
    assert made.stats()["client_err"] == 0


def test_idle_clients_and_slow_ones_move(place, authority, pair):
    made = Secured(place, pair, authority, {"worker_processes": 2})
    made.client().set("large", b"x" * 8_000_000)
    idle = [made.connect() for _ in range(6)]
    assert all(ask(conn, b"PING") == b"+PONG\r\n" for conn in idle)
    # Half a request goes along.
    for conn in idle[:3]:
        conn.sendall(b"*1\r\n$4\r\nPI")
    slow = [made.connect() for _ in range(6)]
    for conn in slow:
        conn.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n")
    time.sleep(0.5)
    made.gateway.configure(worker_processes=1)
    made.gateway.reload()
    time.sleep(0.5)
    for conn in slow:
        assert read_line(conn) == b"$8000000\r\n"
        got = 0
        while got < 8_000_002:
            got += len(conn.recv(1 << 20))
    wait_until(lambda: len(made.gateway.workers()) == 1, "a worker has gone")
    for conn in idle[:3]:
        conn.sendall(b"NG\r\n")
        assert read_line(conn) == b"+PONG\r\n"
    assert all(ask(conn, b"PING") == b"+PONG\r\n" for conn in [*idle, *slow])
    for conn in [*idle, *slow]:
        conn.close()


def test_clients_with_tls_stay_where_they_are_to(place, authority, pair):
    made = Secured(place, pair, authority, {"worker_processes": 3, "worker_shutdown_timeout": 4},
                   tls=options(pair, hand_over="false"))
    conns = [made.connect() for _ in range(12)]
    plain = [made.gateway.connect("alpha") for _ in range(6)]
    assert all(ask(conn, b"PING") == b"+PONG\r\n" for conn in conns)
    began = time.monotonic()
    made.gateway.configure(worker_processes=1)
    made.gateway.reload()
    # They are served on for half of the time.
    while time.monotonic() - began < 1.5:
        assert all(ask(conn, b"PING") == b"+PONG\r\n" for conn in conns)
    assert all(conn.call("PING") == "PONG" for conn in plain)

    def outcome(conn):
        """Whether it is served on; else its end was told."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
            conn.sendall(b"*1\r\n$4\r\nPING\r\n")
        try:
            return conn.recv(7) == b"+PONG\r\n"
        except ConnectionResetError:
            return False

    time.sleep(max(0.0, 4.5 - (time.monotonic() - began)))
    served = [outcome(conn) for conn in conns]
    assert 0 < sum(served) < 12
    assert all(conn.call("PING") == "PONG" for conn in plain)
    # Nobody was cut off in the midst of something.
    workers = made.gateway.stats()["cashew"]["workers"]
    assert sum(worker["sessions_cut"] for worker in workers) == 0
    for conn in [*conns, *plain]:
        conn.close()
