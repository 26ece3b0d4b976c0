"""Both I/O engines between real clients and servers: what depends on how bytes are moved."""

import os
import signal
import threading
import time

import pytest

from harness import ReplyError, alive, check_io_engine, resp, server_lines, wait_until

LARGE = os.urandom(1 << 20) * 24


@pytest.fixture(params=["epoll", "uring"])
def gateway(place, request):
    servers = [place.redis() for _ in range(2)]
    pool = {"redis": True, "servers": server_lines(servers), "timeout": 20_000}
    narrow = {**pool, "client_output_pause": "64kb", "client_output_max": "64kb"}
    settings = {"worker_processes": 1, "io_engine": request.param}
    gateway = place.cashew({"alpha": pool, "narrow": narrow}, settings)
    check_io_engine(gateway, request.param)
    gateway.servers = servers
    return gateway


def test_small_requests_are_forwarded(gateway):
    with gateway.connect() as conn:
        for n in range(200):
            assert conn.call("SET", f"key-{n}", f"value-{n}") == "OK"
        conn.send(b"".join(resp("GET", f"key-{n}") for n in range(200)))
        for n in range(200):
            assert conn.reply() == f"value-{n}".encode()
        assert conn.call("MGET", *(f"key-{n}" for n in range(50)))[49] == b"value-49"


def test_large_values_pass_in_pieces(gateway):
    with gateway.connect(timeout=60) as conn:
        assert conn.call("SET", "large", LARGE) == "OK"
        assert conn.call("GET", "large") == LARGE
        assert conn.call("STRLEN", "large") == len(LARGE)


def test_large_values_pass_clients_that_may_let_little_wait(gateway):
    """Whether they read as fast as they can or not."""
    with gateway.connect() as conn:
        conn.call("SET", "large", LARGE)
    for pause in [0, 0.002]:
        with gateway.connect("narrow", timeout=60) as conn:
            conn.send(resp("GET", "large"))
            left = len(f"${len(LARGE)}\r\n") + len(LARGE) + 2
            while left > 0:
                time.sleep(pause)
                piece = conn.socket.recv(min(left, 1 << 18))
                assert piece, f"closed with {left} bytes to come"
                left -= len(piece)
    assert gateway.stats()["narrow"]["clients_overflowed"] == 0


def test_a_client_that_reads_late_gets_everything(gateway):
    value = LARGE[: 3 << 20]
    with gateway.connect(timeout=60) as late, gateway.connect() as other:
        other.call("SET", "value", value)
        late.send(resp("GET", "value") * 20)
        for n in range(50):
            assert other.call("SET", f"key-{n}", "v") == "OK"
        time.sleep(0.3)
        for _ in range(20):
            assert late.reply() == value


def test_a_client_that_asks_faster_than_it_reads_is_held_back(gateway):
    """Its requests wait in the sockets while its replies do not go away, and none is lost."""
    count = 3000
    value = os.urandom(20_000)
    with gateway.connect(timeout=60) as greedy:
        greedy.call("SET", "value", value)
        requests = b"".join(resp("GET", "value") + resp("ECHO", f"{n:0200}") for n in range(count))
        writer = threading.Thread(target=greedy.socket.sendall, args=(requests,))
        writer.start()
        time.sleep(0.5)
        for n in range(count):
            assert greedy.reply() == value
            assert greedy.reply() == f"{n:0200}".encode()
        writer.join()


def test_a_client_may_close_its_side_first(gateway):
    with gateway.connect() as conn:
        conn.send(resp("SET", "a", "1") + resp("GET", "a") * 100)
        conn.half_close()
        assert conn.read_to_end() == b"+OK\r\n" + b"$1\r\n1\r\n" * 100


def test_many_clients_at_once(gateway):
    conns = [gateway.connect() for _ in range(300)]
    try:
        for round in range(5):
            for n, conn in enumerate(conns):
                conn.send(resp("SET", f"k{n}", f"{round}-{n}") + resp("GET", f"k{n}"))
            for n, conn in enumerate(conns):
                assert [conn.reply(), conn.reply()] == ["OK", f"{round}-{n}".encode()]
    finally:
        for conn in conns:
            conn.close()
    wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == 0, "they are gone")


def test_short_connections(gateway):
    for n in range(500):
        with gateway.connect() as conn:
            assert conn.call("SET", "k", str(n)) == "OK"
            if n % 3 == 0:
                conn.send(resp("QUIT"))
                assert conn.read_to_end() == b"+OK\r\n"
            elif n % 3 == 1:
                conn.reset()


def test_a_server_that_dies_is_connected_again(gateway):
    def answers():
        try:
            return conn.call("GET", "k") is None
        except ReplyError:
            return False

    with gateway.connect() as conn:
        conn.call("SET", "k", "v")
        server = next(server for server in gateway.servers if server.call("EXISTS", "k"))
        server.stop()
        conn.error("GET", "k")
        server.start()
        wait_until(answers, "the server is back")


def test_an_ending_worker_answers_what_is_in_flight(gateway):
    worker = gateway.workers()[0]
    with gateway.connect() as conn:
        conn.send(resp("EVAL", "local t = redis.call('TIME')[1] + 3; "
                       "while redis.call('TIME')[1] + 0 <= t do end; return 1", "1", "k"))
        wait_until(gateway.under_way, "the server is asked", pause=0)
        gateway.process.signal(signal.SIGTERM)
        assert conn.reply() == 1
    wait_until(lambda: not alive(worker), "the worker ends")
