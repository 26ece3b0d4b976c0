"""Where clients come from: the PROXY protocol, by hand and by HAProxy, and lists of addresses."""

import shutil
import socket
import ssl
import struct

import pymemcache
import pytest
import redis

from certificates import Authority
from harness import (
    HOST, PATIENCE, Conn, Process, accepts, check_io_engine, free_port, server_lines, wait_until,
)

PROXY = "127.0.0.2"
OTHER = "127.0.0.3"
CLIENT = "192.0.2.77"
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def version_1(client=CLIENT, port=4242):
    return f"PROXY TCP4 {client} 198.51.100.1 {port} 6379\r\n".encode()


def version_2(client=CLIENT, port=4242, fields=b"", command=0x21):
    block = socket.inet_aton(client) + socket.inet_aton("198.51.100.1") + struct.pack("!HH", port, 6379) + fields
    return SIGNATURE + struct.pack("!BBH", command, 0x11, len(block)) + block


class From(Conn):
    """A connection from a certain address of this machine."""

    def __init__(self, address, source):
        self.socket = socket.create_connection((HOST, address), PATIENCE, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = PATIENCE
        self.buffer = bytearray()


@pytest.fixture(scope="module")
def authority(module_place):
    return Authority(module_place.directory)


def pools(redis_server, memcached, **more):
    return {
        "alpha": {"redis": "true", "servers": server_lines([redis_server]), **more},
        "beta": {"servers": server_lines([memcached]), **more},
    }


@pytest.fixture(scope="module", params=["epoll", "uring"])
def gateway(request, module_place):
    servers = module_place.redis(), module_place.memcached()
    trusted = f"{{trusted: [{PROXY}], timeout: 300ms}}"
    made = module_place.cashew(pools(*servers, proxy_protocol=trusted),
                               {"worker_processes": 2, "io_engine": request.param})
    made.wait_serving()
    check_io_engine(made, request.param)
    return made


def line_of(conn):
    return dict(part.split("=", 1) for part in conn.call("CLIENT", "INFO").decode().split())


@pytest.mark.parametrize("header", [
    version_1(), version_2(), version_2(fields=b"\x02\0\x03a.b"),
], ids=["1", "2", "2 with a field"])
@pytest.mark.parametrize("pieces", [None, 1])
def test_a_client_is_whom_the_header_names(gateway, header, pieces):
    with From(gateway.addresses["alpha"], PROXY) as conn:
        if pieces:
            for byte in header:
                conn.send(bytes([byte]))
            conn.send(b"*1\r\n$4\r\nPING\r\n")
        else:
            conn.send(header + b"*1\r\n$4\r\nPING\r\n")
        assert conn.reply() == "PONG"
        line = line_of(conn)
        assert (line["addr"], line["laddr"]) == (f"{CLIENT}:4242", "198.51.100.1:6379")
        with Conn(gateway.addresses["alpha"]) as other:
            assert f"addr={CLIENT}:4242 ".encode() in other.call("CLIENT", "LIST")


def test_memcached_too(gateway):
    with From(gateway.addresses["beta"], PROXY) as conn:
        conn.send(version_2() + b"set proxied 0 0 1\r\n1\r\nget proxied\r\n")
        conn.expect(b"STORED\r\nVALUE proxied 0 1\r\n1\r\nEND\r\n")


@pytest.mark.parametrize("header", [
    version_2(command=0x20), SIGNATURE + b"\x20\0\0\0", b"PROXY UNKNOWN\r\n",
], ids=["local", "local without addresses", "unknown"])
def test_the_proxys_own_connections_are_its_own(gateway, header):
    with From(gateway.addresses["alpha"], PROXY) as conn:
        conn.send(header)
        assert line_of(conn)["addr"].startswith(PROXY + ":")


def test_who_is_not_trusted_is_itself(gateway):
    with Conn(gateway.addresses["alpha"]) as conn:
        assert line_of(conn)["addr"].startswith(HOST + ":")
        assert "unknown command 'PROXY'" in conn.error("PROXY", "TCP4")
    before = gateway.stats()["alpha"]["proxy_header_errors"]
    with Conn(gateway.addresses["alpha"]) as conn:
        conn.send(version_1())
        assert conn.read_line().startswith(b"-ERR")
    assert gateway.stats()["alpha"]["proxy_header_errors"] == before


@pytest.mark.parametrize("what", [
    b"PING\r\n", b"PROXY TCP4 nonsense\r\n", SIGNATURE + b"\x31", version_2()[:-1] + b"END",
], ids=["a request", "nonsense", "another version", "half"])
def test_what_is_no_header_is_closed_and_counted(gateway, what):
    before = gateway.stats()["alpha"]["proxy_header_errors"]
    with From(gateway.addresses["alpha"], PROXY) as conn:
        if what.endswith(b"END"):
            conn.send(what[:-3])
            conn.half_close()
        else:
            conn.send(what)
        conn.expect_closed()
    wait_until(lambda: gateway.stats()["alpha"]["proxy_header_errors"] == before + 1, "it is counted")
    said = f"pool alpha: a connection from {PROXY} is closed: it does not begin with a header"
    wait_until(lambda: said in gateway.log(), "the log says so")


def test_the_header_has_its_time(gateway):
    before = gateway.stats()["beta"]["proxy_header_errors"]
    with From(gateway.addresses["beta"], PROXY) as late, From(gateway.addresses["beta"], PROXY) as good:
        late.send(version_2()[:20])
        good.send(version_2())
        late.expect_closed()
        good.expect_silence(0.5)
        good.send(b"mn\r\n")
        good.expect(b"MN\r\n")
    wait_until(lambda: gateway.stats()["beta"]["proxy_header_errors"] == before + 1, "it is counted")


def test_who_only_looks_is_not_counted(gateway):
    before = gateway.stats()["alpha"]["proxy_header_errors"]
    for _ in range(3):
        From(gateway.addresses["alpha"], PROXY).close()
    with From(gateway.addresses["alpha"], PROXY) as conn:
        conn.send(version_1())
        assert conn.call("PING") == "PONG"
    assert gateway.stats()["alpha"]["proxy_header_errors"] == before


def test_the_client_is_in_the_slow_log_and_in_the_log(place):
    pool = {"redis": "true", "redis_auth": "secret", "slow_log": "1ms", "servers": server_lines([place.redis()]),
            "proxy_protocol": f"{{trusted: {PROXY}}}"}
    server = place.redis("--requirepass", "secret")
    pool["servers"] = server_lines([server])
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    gateway.wait_serving()
    with From(gateway.addresses["alpha"], PROXY) as conn:
        conn.send(version_2())
        assert "WRONGPASS" in conn.error("AUTH", "wrong")
        conn.call("AUTH", "secret")
        conn.call("BLPOP", "nothing", "0.01")
        conn.call("EVAL", "local t = redis.call('TIME') for i = 1, 3000000 do t = i end return t", "0")
        entries = conn.call("SLOWLOG", "GET", "10")
        assert any(f"{CLIENT}:4242".encode() in entry for entry in entries), entries
    assert f"the client at {CLIENT}:4242 gave a wrong user or password" in gateway.log()


def test_it_stays_through_resize_and_upgrade(place):
    server = place.redis()
    pool = {"redis": "true", "servers": server_lines([server]), "proxy_protocol": f"{{trusted: {PROXY}}}"}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 3})
    gateway.wait_serving()
    conns = [From(gateway.addresses["alpha"], PROXY) for _ in range(12)]
    for number, conn in enumerate(conns):
        conn.send(version_2(port=1000 + number))
        assert conn.call("PING") == "PONG"

    def check():
        for number, conn in enumerate(conns):
            assert line_of(conn)["addr"] == f"{CLIENT}:{1000 + number}"

    gateway.configure(worker_processes=1)
    gateway.reload()
    check()
    gateway.order("upgrade")
    check()
    for conn in conns:
        conn.close()


def test_before_tls(place, authority):
    pair = authority.sign(f"DNS:localhost,IP:{HOST}")
    port = free_port()
    pool = {"redis": "true", "servers": server_lines([place.redis()]), "tls_listen": f"{HOST}:{port}",
            "tls": f"{{certificate: {pair.certificate}, key: {pair.key}}}",
            "proxy_protocol": f"{{trusted: {PROXY}, timeout: 500ms}}", "allow_from": f"[{HOST}, {CLIENT}]"}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    gateway.wait_serving()
    made = ssl.create_default_context(cafile=str(authority.ca))

    def secured(header, source=PROXY):
        raw = socket.create_connection((HOST, port), PATIENCE, source_address=(source, 0))
        raw.sendall(header)
        return made.wrap_socket(raw, server_hostname="localhost")

    with secured(version_2()) as conn:
        conn.sendall(b"CLIENT INFO\r\n")
        assert f"addr={CLIENT}:4242 laddr=198.51.100.1:6379 ".encode() in conn.recv(4096)
        gateway.order("upgrade")
        conn.sendall(b"CLIENT INFO\r\n")
        assert f"addr={CLIENT}:4242 laddr=198.51.100.1:6379 ".encode() in conn.recv(4096)
    with secured(b"", HOST) as conn:
        conn.sendall(b"PING\r\n")
        assert conn.recv(100) == b"+PONG\r\n"
    for header in (b"", b"GET a\r\n", version_2("203.0.113.1")):
        with pytest.raises(OSError):
            secured(header).recv(1)
    numbers = gateway.stats()["alpha"]
    assert numbers["clients_denied"] == 1 and numbers["proxy_header_errors"] >= 2, numbers


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="there is no HAProxy")
@pytest.mark.parametrize("version", ["send-proxy", "send-proxy-v2"])
def test_haproxy(place, version):
    servers = place.redis(), place.memcached()
    gateway = place.cashew(pools(*servers, proxy_protocol="true"), {"worker_processes": 2})
    gateway.wait_serving()
    ports = {pool: free_port() for pool in gateway.addresses}
    text = "global\n    maxconn 200\ndefaults\n    mode tcp\n    timeout connect 5s\n    timeout client 1m\n    timeout server 1m\n"
    for pool, port in ports.items():
        host, to = HOST, gateway.addresses[pool]
        text += f"listen {pool}\n    bind {HOST}:{port}\n    server one {host}:{to} {version} check inter 100ms check-send-proxy\n"
    config = place.directory / "haproxy.cfg"
    config.write_text(text)
    proxy = Process(["haproxy", "-db", "-f", str(config)], place.directory, "haproxy",
                    lambda: all(map(accepts, ports.values())))
    try:
        checks = gateway.stats()["alpha"]["clients_accepted"]
        wait_until(lambda: gateway.stats()["alpha"]["clients_accepted"] > checks + 3, "there are checks")
        client = redis.Redis(HOST, ports["alpha"], single_connection_client=True)
        client.set("through", "both")
        own = client.connection._sock.getsockname()
        assert client.client_info()["addr"] == f"{own[0]}:{own[1]}"
        assert client.client_info()["laddr"] == f"{HOST}:{ports['alpha']}"
        client.close()
        memcached = pymemcache.Client((HOST, ports["beta"]))
        memcached.set("through", "both")
        assert memcached.get("through") == b"both"
        assert "no health check" not in proxy.output() and "is DOWN" not in proxy.output()
        assert gateway.stats()["alpha"]["proxy_header_errors"] == 0
    finally:
        proxy.stop()


# ------------------------------------------------------------------------------------------ address lists


@pytest.mark.parametrize("io_engine", ["epoll", "uring"])
def test_only_those_who_are_allowed_are_let_in(place, io_engine):
    servers = place.redis(), place.memcached()
    lists = {"allow_from": f"[{HOST}, 127.0.0.2/31]", "deny_from": OTHER}
    gateway = place.cashew(pools(*servers, **lists), {"worker_processes": 2, "io_engine": io_engine})
    gateway.wait_serving()
    check_io_engine(gateway, io_engine)
    for source in (HOST, PROXY):
        with From(gateway.addresses["alpha"], source) as conn:
            assert conn.call("PING") == "PONG"
    for source in (OTHER, "127.0.0.4"):
        with From(gateway.addresses["alpha"], source) as conn:
            assert conn.read_to_end() == b"-DENIED this gateway takes no clients from this address\r\n"
        with From(gateway.addresses["beta"], source) as conn:
            assert conn.read_to_end() == b"SERVER_ERROR this gateway takes no clients from this address\r\n"
    for pool in ("alpha", "beta"):
        assert gateway.stats()[pool]["clients_denied"] == 2
    assert "is not let in, see allow_from and deny_from" in gateway.log()
    for _ in range(50):
        From(gateway.addresses["alpha"], OTHER).close()
    wait_until(lambda: gateway.stats()["alpha"]["clients_denied"] == 52, "all are counted")
    assert gateway.log().count("is not let in") <= 2


def test_unix_sockets_have_a_word_of_their_own(place):
    path = place.directory / "socket"
    pool = {"redis": "true", "listen": str(path), "servers": server_lines([place.redis()]), "allow_from": "unix"}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    gateway.wait_serving()
    assert redis.Redis(unix_socket_path=str(path)).ping()
    pool["allow_from"] = "127.0.0.0/8"
    gateway.configure({"alpha": pool})
    gateway.reload()
    with pytest.raises(redis.RedisError, match="takes no clients from this address"):
        redis.Redis(unix_socket_path=str(path), protocol=2, lib_name=None, lib_version=None).ping()


def test_a_reload_changes_who_is_let_in(place):
    server = place.redis()
    pool = {"redis": "true", "servers": server_lines([server])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    gateway.wait_serving()
    address = gateway.addresses["alpha"]
    with From(address, PROXY) as idle, From(address, PROXY) as blocked, From(address, HOST) as stays:
        for conn in (idle, blocked, stays):
            assert conn.call("PING") == "PONG"
        blocked.send(b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$1\r\n0\r\n")
        gateway.configure({"alpha": {**pool, "deny_from": PROXY}})
        gateway.reload()
        idle.expect_closed()
        blocked.expect_closed()
        assert stays.call("PING") == "PONG"
        with From(address, PROXY) as conn:
            assert conn.read_to_end().startswith(b"-DENIED")
    gateway.configure({"alpha": pool})
    gateway.reload()
    with From(address, PROXY) as conn:
        assert conn.call("PING") == "PONG"
    assert "1 clients are closed, since allow_from and deny_from" in gateway.log() \
        or "2 clients are closed, since allow_from and deny_from" in gateway.log()
