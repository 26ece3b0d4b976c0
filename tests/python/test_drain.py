"""A gateway that drains: what it says meanwhile, to whom, and that nobody who listens loses a request."""

import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from harness import HOST, children, free_port, resp, server_lines, wait_until
from test_failover import Pair
from test_go import GO
from test_languages import CLIENTS, java_classes, node_modules
from test_readyz import STOPPING, get, wait_for
from test_stats import metrics

DRAINING = "the instance is draining"
PATIENCE = 20


def start(place, name=None, server=None, workers=2, listen=None, **settings):
    pool = {"redis": True, "servers": server_lines([server or place.redis()])}
    if listen:
        pool["listen"] = listen.format(port=free_port())
    gateway = place.cashew({"alpha": pool}, {"worker_processes": workers, **settings}, name=name)
    gateway.wait_serving()
    return gateway


def notified(gateway, *words):
    """A connection whose client wants to know."""
    conn = gateway.connect()
    conn.send(resp("HELLO", "3"))
    conn.raw_reply()
    assert conn.call("CLIENT", "MAINT_NOTIFICATIONS", "ON", *words) == "OK"
    return conn


def frame(conn, count):
    """The push of so many elements, byte by byte."""
    lines = [conn.read_line()]
    while len(lines) < count + 1 + sum(line.startswith(b"$") for line in lines):
        lines.append(conn.read_line())
    return b"\r\n".join([*(line.rstrip(b"\r\n") for line in lines), b""])


def exit_code(gateway, seconds=PATIENCE):
    wait_until(lambda: not gateway.process.running(), "the gateway ends", seconds)
    return gateway.process.child.wait()


@pytest.mark.parametrize("workers", [0, 2])
def test_clients_are_told_and_go_on_until_the_time_is_over(place, workers):
    gateway = start(place, workers=workers, drain_delay=4)
    told = [notified(gateway) for _ in range(8)]
    silent = gateway.connect()
    assert silent.call("SET", "a", "1") == "OK"
    wait_for(gateway, 200, "ready")
    begin = time.monotonic()
    gateway.process.signal(signal.SIGTERM)
    frames = {frame(conn, 4) for conn in told}
    # All are told of the same event.
    assert len(frames) == 1, frames
    expected = rb">4\r\n\$6\r\nMOVING\r\n:(\d+)\r\n:4\r\n_\r\n"
    seq = int(re.fullmatch(expected, frames.pop())[1])
    assert abs(seq - time.time()) < 60
    wait_for(gateway, 503, DRAINING)
    assert metrics(gateway)[("cashew_draining",)] == 1
    assert gateway.stats()["alpha"]["maintenance_notices"] == 8
    status = gateway.order("status").stdout
    assert " draining for " in status and re.search(r"^draining: stops in [1-4] s$", status, re.MULTILINE), status
    # Whoever comes all the same is served, and told how little time there is.
    late = gateway.connect()
    late.send(resp("HELLO", "3"))
    late.raw_reply()
    assert late.call("CLIENT", "MAINT_NOTIFICATIONS", "ON") == "OK"
    assert re.fullmatch(rb">4\r\n\$6\r\nMOVING\r\n:%d\r\n:[1-4]\r\n_\r\n" % seq, frame(late, 4))
    for conn in [*told, silent, late]:
        conn.send(resp("GET", "a"))
        assert conn.raw_reply() == b"$1\r\n1\r\n"
    assert exit_code(gateway) == 0
    assert 3.5 < time.monotonic() - begin < 15
    for conn in [*told, silent, late]:
        conn.expect_closed()
    assert "SIGTERM: draining: not ready any more, stops in 4s" in gateway.log()
    assert "drained: stopping" in gateway.log()


def test_without_a_delay_it_stops_as_ever(place):
    gateway = start(place)
    conn = notified(gateway)
    gateway.process.signal(signal.SIGTERM)
    conn.expect_closed()
    assert exit_code(gateway, 10) == 0
    assert "draining" not in gateway.log()


def test_systemd_waits_for_as_long_as_it_takes(place, monkeypatch):
    path = os.path.join(place.directory, "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        gateway = start(place, drain_delay=2, worker_shutdown_timeout=90)

        def extended(line):
            while True:
                lines = systemd.recv(4096).decode().splitlines()
                if line in lines:
                    words = dict(it.split("=", 1) for it in lines)
                    return int(words["EXTEND_TIMEOUT_USEC"]) / 1e6

        conn = gateway.connect()
        gateway.process.signal(signal.SIGTERM)
        # More than TimeoutStopSec of the unit may be.
        assert 92 < extended("STATUS=draining") < 120
        assert conn.call("PING") == "PONG"
        # It would be killed all the same.
        refused = gateway.order("undrain")
        assert refused.returncode == 1 and "the service manager stops the instance" in refused.stderr
        assert 90 < extended("STOPPING=1") < 120
        assert exit_code(gateway) == 0


def test_a_second_signal_ends_it_at_once(place):
    gateway = start(place, drain_delay=60)
    gateway.process.signal(signal.SIGTERM)
    wait_for(gateway, 503, DRAINING)
    gateway.process.signal(signal.SIGTERM)
    assert exit_code(gateway, 10) == 0
    assert "SIGTERM: stopping at once" in gateway.log()


@pytest.fixture
def waiting(place):
    """A gateway that is owed a reply, which the server gives when it goes on."""
    server = place.redis()
    gateway = start(place, server=server, worker_shutdown_timeout=20_000)
    conn = gateway.connect()
    assert conn.call("SET", "a", "1") == "OK"
    server.process.signal(signal.SIGSTOP)
    conn.send(resp("GET", "a"))

    def is_owed():
        servers = [it for it in gateway.stats()["alpha"].values() if isinstance(it, dict)]
        return sum(it["in_queue"] + it["out_queue"] for it in servers) == 1

    wait_until(is_owed, "it waits")
    yield gateway, conn, lambda: server.process.signal(signal.SIGCONT)
    server.process.signal(signal.SIGCONT)


def test_a_signal_after_an_operators_drain_cuts_nothing(waiting):
    """As where a container is drained before it is ended."""
    gateway, conn, go_on = waiting
    assert gateway.order("drain", "--delay", 0).returncode == 0
    gateway.process.signal(signal.SIGTERM)
    wait_until(lambda: "SIGTERM: stopping already" in gateway.log(), "the signal is seen")
    go_on()
    assert conn.raw_reply() == b"$1\r\n1\r\n"
    assert exit_code(gateway) == 0
    assert "stopping at once" not in gateway.log()


def test_a_second_signal_after_an_operators_drain_ends_it_at_once(waiting):
    gateway, _, _ = waiting
    assert gateway.order("drain", "--delay", 0).returncode == 0
    for said in ("SIGTERM: stopping already", "SIGTERM: stopping at once"):
        gateway.process.signal(signal.SIGTERM)
        wait_until(lambda: said in gateway.log(), said)
    assert exit_code(gateway, 10) == 0


def test_an_operator_drains_and_takes_it_back(place):
    gateway = start(place, drain_to="other-gateway")
    conn = notified(gateway)
    waiting = []
    drain = threading.Thread(target=lambda: waiting.append(gateway.order("drain", "--delay", 60)))
    drain.start()
    address = f"other-gateway:{gateway.address}".encode()
    expected = rb">4\r\n\$6\r\nMOVING\r\n:\d+\r\n:60\r\n\$%d\r\n%s\r\n" % (len(address), address)
    assert re.fullmatch(expected, frame(conn, 4))
    wait_for(gateway, 503, DRAINING)
    assert "clients are told to go to other-gateway" in gateway.order("status").stdout
    refused = gateway.order("upgrade")
    assert refused.returncode == 1 and "the instance drains" in refused.stdout + refused.stderr
    # A change of the configuration goes on.
    gateway.configure(log_level="6")
    gateway.reload()
    wait_for(gateway, 503, DRAINING)
    assert gateway.order("undrain").returncode == 0
    wait_for(gateway, 200, "ready")
    drain.join()
    assert waiting[0].returncode == 1 and "the drain is taken back" in waiting[0].stdout + waiting[0].stderr
    again = gateway.order("undrain")
    assert again.returncode == 0 and "does not drain" in again.stdout
    # Who comes now is told nothing.
    assert notified(gateway).call("PING") == "PONG"
    assert conn.call("PING") == "PONG"
    events = gateway.order("events").stdout
    assert "not ready any more, stops in 60s" in events and "the instance stays" in events, events
    drain = gateway.order("drain", "--delay", 0)
    assert drain.returncode == 0, drain
    assert exit_code(gateway) == 0


def test_workers_survive_a_signal_to_all_processes(place):
    """Debian's unit of nutcracker has no KillMode: systemd sends SIGTERM to every process."""
    server = place.redis()
    gateway = start(place, server=server)
    conns = [gateway.connect() for _ in range(8)]
    for conn in conns:
        assert conn.call("SET", "a", "x") == "OK"
    server.process.signal(signal.SIGSTOP)
    try:
        for conn in conns:
            conn.send(resp("GET", "a"))
        wait_until(lambda: gateway.under_way() == 8, "requests wait for their replies")
        for pid in [*children(gateway.pid), gateway.pid]:
            os.kill(pid, signal.SIGTERM)
        wait_for(gateway, 503, STOPPING)
        time.sleep(0.5)
    finally:
        server.process.signal(signal.SIGCONT)
    for conn in conns:
        assert conn.reply() == b"x"
        conn.expect_closed()
    assert exit_code(gateway) == 0
    assert "died" not in gateway.log()


class Load:
    """Applications with redis-py, which ask one after the other and count errors."""

    def __init__(self, gateway, wants, threads=6):
        config = MaintNotificationsConfig(enabled=wants)
        self.client = redis.Redis(
            host=HOST, port=gateway.address, protocol=3, socket_timeout=5,
            retry=Retry(NoBackoff(), 0), maint_notifications_config=config,
        )
        self.errors, self.done, self.over = [], 0, threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(threads)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        while not self.over.is_set():
            try:
                assert self.client.set(f"py:{number}", "1")
                assert self.client.get(f"py:{number}") == b"1"
                self.done += 2
            except redis.RedisError as error:
                self.errors.append(error)

    def wait(self, count):
        target = self.done + count
        wait_until(lambda: self.done >= target, "requests are answered")

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.client.close()


@pytest.mark.parametrize("wants", [True, False], ids=["told", "untold"])
def test_redis_py_loses_nothing_if_it_wants_to_know(place, wants):
    server = place.redis()
    # redis-py takes the host from the push and not the port.
    other = start(place, "other", server, listen="127.0.0.2:{port}")
    leaving = start(place, "leaving", server, listen=f"{HOST}:{other.address[1]}",
                    drain_delay=3, drain_to="127.0.0.2")
    load = Load(leaving, wants)
    try:
        load.wait(200)
        done = leaving.order("drain", seconds=60)
        assert done.returncode == 0, done
        assert exit_code(leaving) == 0
        if wants:
            load.wait(200)
    finally:
        load.stop()
    print(f"A9.1: redis-py, {'told' if wants else 'untold'}: {load.done} replies, {len(load.errors)} errors")
    if wants:
        assert load.errors == [] and other.stats()["alpha"]["client_requests"] >= 200
    else:
        assert load.errors


@pytest.mark.timeout(600)  # the first run compiles and may download
@pytest.mark.parametrize("mode", ["enabled", "disabled"])
def test_go_redis_loses_nothing_if_it_wants_to_know(place, mode):
    server = place.redis()
    other = start(place, "other", server)
    leaving = start(place, "leaving", server, drain_delay=3, drain_to=f"{HOST}:{other.address}")
    end = place.directory / "end"
    load = subprocess.Popen(
        ["go", "test", "-count=1", "-timeout=120s", "-v", "-run", "^TestDrain$", "./..."],
        cwd=GO,
        env={**os.environ, "CASHEW_DRAIN": f"{HOST}:{leaving.address}", "CASHEW_DRAIN_MODE": mode,
             "CASHEW_DRAIN_END": str(end)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        asked = lambda: leaving.stats()["alpha"]["client_requests"] > 500
        wait_until(asked, "go-redis asks", 500)
        done = leaving.order("drain", seconds=60)
        assert done.returncode == 0, done
        assert exit_code(leaving) == 0
        time.sleep(1)
        end.touch()
        output, _ = load.communicate(timeout=60)
    finally:
        load.kill()
        load.wait()
    print(f"A9.1, A10.2: go-redis, {mode}: {output[-200:]}")
    done, errors = map(int, re.search(r"done (\d+) errors (\d+)", output).groups())
    assert done > 500
    if mode == "enabled":
        assert errors == 0 and other.stats()["alpha"]["client_requests"] > 500
    else:
        assert errors > 0


def node_redis():
    return ["node", CLIENTS / "node" / "node-redis-drain.js"], {"NODE_PATH": node_modules()}


def lettuce():
    return ["java", "-cp", java_classes(), "cashew.LettuceDrain"], {}


@pytest.mark.timeout(900)  # the first run compiles and may download
@pytest.mark.parametrize("mode", ["enabled", pytest.param("disabled", marks=pytest.mark.long)])
@pytest.mark.parametrize("program", [node_redis, lettuce])
def test_other_clients_lose_nothing_if_they_want_to_know(place, program, mode):
    """Jedis, as of 8.0, does not ask."""
    command, environment = program()
    server = place.redis()
    other = start(place, "other", server)
    leaving = start(place, "leaving", server, drain_delay=3, drain_to=f"{HOST}:{other.address}")
    end = place.directory / "end"
    load = subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, **environment, "CASHEW_REDIS": f"{HOST}:{leaving.address}",
             "CASHEW_DRAIN_MODE": mode, "CASHEW_DRAIN_END": str(end)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        wait_until(lambda: leaving.stats()["alpha"]["client_requests"] > 500, "it asks", 60)
        done = leaving.order("drain", seconds=60)
        assert done.returncode == 0, done
        assert exit_code(leaving) == 0
        time.sleep(1.5)
        end.touch()
        output, _ = load.communicate(timeout=60)
    finally:
        load.kill()
        load.wait()
    print(f"A9.1: {program.__name__}, {mode}: {output}")
    done, errors = map(int, re.search(r"done (\d+) errors (\d+)", output).groups())
    assert done > 500
    if mode == "enabled":
        assert errors == 0 and other.stats()["alpha"]["client_requests"] > 500
    else:
        assert errors > 0


def test_a_failover_is_told_before_and_after(place):
    pair = Pair(place)
    gateway = pair.gateway
    gateway.wait_serving()
    conns = [notified(gateway) for _ in range(6)]
    assert pair.promote().returncode == 0
    seqs = set()
    for conn in conns:
        begins = re.fullmatch(
            rb">4\r\n\$12\r\nFAILING_OVER\r\n:(\d+)\r\n:10\r\n\$6\r\nmaster\r\n", frame(conn, 4))
        ends = re.fullmatch(rb">3\r\n\$11\r\nFAILED_OVER\r\n:(\d+)\r\n\$6\r\nmaster\r\n", frame(conn, 3))
        seqs.add((int(begins[1]), int(ends[1])))
    assert len(seqs) == 1, seqs
    begin, end = seqs.pop()
    assert begin < end
    for conn in conns:
        assert conn.call("PING") == "PONG"


def test_what_a_client_wants_to_know_outlives_an_upgrade(place):
    gateway = start(place, drain_delay=2)
    conns = [notified(gateway) for _ in range(4)]
    done = gateway.order("upgrade", seconds=60)
    assert done.returncode == 0, done
    gateway.process.signal(signal.SIGTERM)
    for conn in conns:
        assert frame(conn, 4).startswith(b">4\r\n$6\r\nMOVING\r\n")
    assert exit_code(gateway) == 0
