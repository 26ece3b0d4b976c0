"""What is wrong with the gateway's own machine and keeps it from servers that are well."""

import concurrent.futures
import contextlib
import ctypes
import errno
import os
import socket
import struct
import subprocess

import pytest

from harness import (
    HOST, ReplyError, check_io_engine, free_port, resp, server_lines, wait_until, unnamed,
)

CLONE_NEWNET = 0x40000000
NO_PORT = "ERR Cannot assign requested address: no local port or address to connect from"
FORBIDDEN = "ERR Permission denied to connect to the server"
UNREACHABLE = "ERR No route to host"
FIRST_PORT, PORTS = 45000, 100

_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def apart():
    """Runs a function in a network of its own, in which only loopback is up."""
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    # The network is that of the thread and of what it starts.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        why = thread.submit(_leave_network).result()
        if why:
            pytest.skip(f"no network namespace: {why}")
        yield lambda work: thread.submit(work).result(90)


def _leave_network():
    if _libc.unshare(CLONE_NEWNET) != 0:
        return os.strerror(ctypes.get_errno())
    try:
        ip("link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    return None


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@contextlib.contextmanager
def stopping(process):
    """Ends the process in the thread that it was started by, which it must not outlive."""
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(params=["epoll", "uring"])
def ejecting(place, request):
    """Starts a gateway of one worker, with either I/O engine, that ejects what fails once."""
    @contextlib.contextmanager
    def start(*servers):
        options = {"redis": True, "auto_eject_hosts": True, "server_failure_limit": 1}
        pool = {**options, "hash": "murmur", "servers": list(servers)}
        settings = {"worker_processes": 1, "io_engine": request.param}
        with stopping(place.cashew({"alpha": pool}, settings)) as gateway:
            check_io_engine(gateway, request.param)
            yield gateway
    return start


def set_all(gateway, count=40):
    """Sets as many keys; the errors, and how many worked."""
    errors, done = [], 0
    with gateway.connect() as conn:
        for number in range(count):
            conn.send(resp("SET", f"key-{number}", "v"))
            reply = conn.reply()
            if isinstance(reply, ReplyError):
                errors.append(str(reply))
            else:
                done += 1
    return errors, done


def check_hindered(gateway, server, error):
    """Keys of the server fail with the error and nothing else comes of it."""
    for _ in range(3):
        errors, done = set_all(gateway)
        assert done > 0 and set(map(unnamed, errors)) == {error}
    pool = gateway.stats()["alpha"]
    assert pool["server_ejects"] == 0
    assert pool[server]["connect_errors"] > 0
    told = [line for line in gateway.log().splitlines() if "cannot connect to server" in line]
    assert len(told) == 1 and "WARN" in told[0] and error.removeprefix("ERR ") in told[0]
    assert f"server {server} " in told[0] and " fails: " not in gateway.log()


def occupy_ports(port):
    """Takes all ports from which one can connect there."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as limits:
        limits.write(f"{FIRST_PORT} {FIRST_PORT + PORTS - 1}")
    taken = []
    while len(taken) <= PORTS:
        try:
            taken.append(socket.create_connection((HOST, port)))
        except OSError as error:
            assert error.errno == errno.EADDRNOTAVAIL
            return taken
    raise AssertionError("the range of ports has no effect")


def let_go(sockets):
    for taken in sockets:
        # At once: no port is to stay taken for a while.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        taken.close()


def test_servers_are_not_ejected_when_ports_run_out(place, apart, ejecting):
    def run():
        with (stopping(place.redis()) as busy, stopping(place.redis()) as other,
              ejecting(*server_lines([busy, other], ["busy", "other"])) as gateway):
            taken = occupy_ports(busy.port)
            check_hindered(gateway, "busy", NO_PORT)
            let_go(taken)
            wait_until(lambda: set_all(gateway) == ([], 40), "it connects again")
            assert "server busy is connected again" in gateway.log()
            assert gateway.stats()["alpha"]["server_ejects"] == 0
    apart(run)


def test_servers_are_not_ejected_for_what_the_machine_forbids(place, apart, ejecting):
    def run():
        ip("route", "add", "prohibit", "192.0.2.1/32")
        with stopping(place.redis()) as other:
            servers = ["192.0.2.1:1:1 secret", *server_lines([other], ["other"])]
            with ejecting(*servers) as gateway:
                check_hindered(gateway, "secret", FORBIDDEN)
    apart(run)


def test_servers_are_not_ejected_where_ipv6_is_disabled(place, apart, ejecting):
    def run():
        with open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w") as switch:
            switch.write("1")
        with stopping(place.redis()) as other:
            servers = [f'"[::1]:{free_port()}:1 six"', *server_lines([other], ["other"])]
            with ejecting(*servers) as gateway:
                check_hindered(gateway, "six", NO_PORT)
    if not os.path.exists("/proc/sys/net/ipv6"):
        pytest.skip("no IPv6 here")
    apart(run)


def test_servers_without_a_route_are_ejected(place, apart, ejecting):
    """Where nothing can be told about the server's machine from here it counts as down."""
    def run():
        ip("route", "add", "unreachable", "192.0.2.1/32")
        with stopping(place.redis()) as other:
            servers = ["192.0.2.1:1:1 far", *server_lines([other], ["other"])]
            with ejecting(*servers) as gateway:
                errors, _ = set_all(gateway)
                assert set(map(unnamed, errors)) == {UNREACHABLE}
                wait_until(lambda: set_all(gateway) == ([], 40), "it is ejected")
                assert gateway.stats()["alpha"]["server_ejects"] == 1
                assert " fails: " in gateway.log()
    apart(run)
