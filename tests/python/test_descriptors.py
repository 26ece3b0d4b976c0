"""Descriptors for servers are reserved first: however many clients come, servers are reached."""

import contextlib
import os
import re
import threading
from pathlib import Path

import pytest

from harness import CASHEW, ReplyError, resp, server_lines, wait_until

# For each server: a shared connection and one for what is large, of two variants each, four private
# ones, one that messages come on, and one that clients lease.
SERVER = 2 * 2 + 4 + 1 + 1
# Of 80 files: 32 for the worker and sessions on their way, a listener, and those of 3 servers.
LIMIT = 80
MOST = LIMIT - 32 - 1 - 3 * SERVER
LARGE = 300_000


def greet(conn):
    """Whether the client was let in; others are told that they are not."""
    conn.send(resp("PING"))
    line = conn.read_line()
    assert line in (b"+PONG", b"-ERR max number of clients reached")
    return line == b"+PONG"


def served(conn, size=10):
    """All servers answer."""
    for number in range(30):
        assert conn.call("SET", f"key{number}", "x" * size) == "OK"
        assert len(conn.call("GET", f"key{number}")) == size


def served_again(conn):
    with contextlib.suppress(ReplyError):
        served(conn)
        return True
    return False


@pytest.mark.parametrize("io_engine", ["epoll", "uring"])
def test_clients_leave_descriptors_to_servers(place, io_engine):
    redises = [place.redis() for _ in range(3)]
    gateway = place.cashew(
        {"alpha": {"redis": True, "timeout": 5000, "server_failure_limit": 1,
                   "session_connections": 1, "servers": server_lines(redises)}},
        {"worker_processes": 1, "max_openfiles": LIMIT, "io_engine": io_engine})
    [worker] = wait_until(gateway.workers, "a worker")
    with contextlib.ExitStack() as stack:
        # No server is connected to yet.
        conns = [stack.enter_context(gateway.connect()) for _ in range(150)]
        welcome = [conn for conn in conns if greet(conn)]
        # The client that found out when the gateway served may not have left yet.
        assert MOST - 1 <= len(welcome) <= MOST
        for conn in welcome:
            served(conn)
        served(welcome[0], LARGE)

        over = threading.Event()

        def knock():
            while not over.is_set():
                with gateway.connect() as conn:
                    greet(conn)

        knocking = [threading.Thread(target=knock) for _ in range(4)]
        for thread in knocking:
            thread.start()
        try:
            for redis in redises:
                redis.stop()
            welcome[0].error("GET", "key1")
            for redis in redises:
                redis.start()
            for conn in welcome:
                wait_until(lambda: served_again(conn), "all servers are reached again")
            served(welcome[1], LARGE)
        finally:
            over.set()
            for thread in knocking:
                thread.join()
        assert len(os.listdir(f"/proc/{worker}/fd")) <= LIMIT
        assert gateway.stats()["alpha"]["clients_refused"] >= 150 - MOST
        wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == len(welcome), "the count")

        # As one leaves another one comes.
        welcome.pop().close()
        wait_until(lambda: greet(stack.enter_context(gateway.connect())), "a place is free")
        for conn in welcome:
            served(conn)
    log = gateway.log()
    assert f"and the rest of the {LIMIT} files is for servers" in log
    # io_uring accepts on its own: a burst is in before it can be refused.
    if io_engine == "epoll":
        assert "Too many open files" not in log and "out of file descriptors" not in log
    assert "of them for servers and itself" not in log


def test_some_clients_are_let_in_by_the_smallest_limit(place):
    redis = place.redis()
    gateway = place.cashew(
        {"alpha": {"redis": True, "session_connections": 1, "servers": server_lines([redis])}},
        {"worker_processes": 1, "max_openfiles": LIMIT})
    names = [f"s{number}" for number in range(8)]
    assert "of them for servers and itself" not in gateway.log()
    gateway.configure(
        {"alpha": {"redis": True, "session_connections": 1,
                   "servers": server_lines([redis] * len(names), names)}})
    gateway.reload()
    reserved, least = 32 + 1 + len(names) * SERVER, LIMIT // 8
    told = (f"each worker may open {LIMIT} files and reserves {reserved} of them for servers and itself: "
            f"{least} clients")
    assert gateway.log().count(told) == 1
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(gateway.connect()) for _ in range(30)]
        welcome = [conn for conn in conns if greet(conn)]
        assert LIMIT // 8 - 1 <= len(welcome) <= LIMIT // 8
        for conn in welcome:
            served(conn)


def test_sessions_without_a_descriptor_cost_nobody_else(place):
    """Two workers full of clients become one, which has descriptors for some more only."""
    redis = place.redis()
    settings = {"worker_processes": 2, "max_openfiles": 200}
    pools = {"alpha": {"redis": True, "session_connections": 1, "servers": server_lines([redis])}}
    gateway = place.cashew(pools, settings)
    gateway.wait_serving()
    before = set(wait_until(gateway.workers, "workers"))
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(gateway.connect()) for _ in range(420)]
        welcome = [conn for conn in conns if greet(conn)]
        assert len(welcome) > 200
        gateway.configure(worker_processes=1)
        gateway.reload()
        wait_until(lambda: len(gateway.workers()) == 1, "one worker")
        # It is one of the two, not another one in their place.
        assert set(gateway.workers()) < before
        kept = [conn for conn in welcome if answers(conn)]
        # At least as many as it had for itself, and those it found room for.
        assert 150 < len(kept) < 200
        wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == len(kept), "the count")
        assert gateway.stats()["cashew"]["sessions_cut"] == len(welcome) - len(kept)
        for conn in kept[20:]:
            conn.close()
        wait_until(lambda: served_again(kept[0]), "servers are reached")
        assert all(map(answers, kept[:20]))
    assert "the master is gone" not in gateway.log() and "is aborted" not in gateway.log()


def answers(conn):
    with contextlib.suppress(OSError):
        conn.send(resp("PING"))
        return conn.read_line() == b"+PONG"
    return False


def open_files(pid):
    """The limit and the hard limit of a process."""
    line = re.search(r"Max open files +(\d+) +(\d+)", Path(f"/proc/{pid}/limits").read_text())
    return tuple(map(int, line.groups()))


def limited(place, words):
    script = place.directory / "limited"
    script.write_text(f'#!/bin/sh\nulimit {words}\nexec "{CASHEW}" "$@"\n')
    script.chmod(0o755)
    return script


def test_more_sessions_move_than_the_master_has_descriptors(place):
    redis = place.redis()
    pools = {"alpha": {"redis": True, "session_connections": 1, "servers": server_lines([redis])}}
    gateway = place.cashew(pools, {"worker_processes": 4}, binary=limited(place, "-n 256"))
    gateway.wait_serving()
    assert open_files(gateway.pid) == (256, 256)
    before = set(gateway.workers())
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(gateway.connect()) for _ in range(480)]
        welcome = [conn for conn in conns if greet(conn)]
        assert len(welcome) > 400
        done = gateway.order("upgrade")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{gateway.log()[-2000:]}"
        wait_until(lambda: len(gateway.workers()) == 4 and not before & set(gateway.workers()),
                   "other workers")
        assert all(map(answers, welcome))
        assert gateway.stats()["cashew"]["sessions_cut"] == 0
    assert "is aborted" not in gateway.log()


def test_the_masters_limit_is_its_own(place):
    redis = place.redis()
    pools = {"alpha": {"redis": True, "servers": server_lines([redis])}}
    gateway = place.cashew(pools, {"worker_processes": 1}, binary=limited(place, "-Sn 500"))
    gateway.wait_serving()
    hard = open_files(gateway.pid)[1]
    assert hard > 500, "the machine allows no more"

    def limits():
        [worker] = wait_until(lambda: len(gateway.workers()) == 1 and gateway.workers(), "a worker")
        return open_files(gateway.pid)[0], open_files(worker)

    own = min(hard, 1 << 16)
    assert limits() == (own, (500, hard))
    for wanted in (None, 400):
        old = gateway.workers()
        if wanted:
            gateway.configure(max_openfiles=wanted)
            gateway.reload()
        else:
            assert gateway.order("upgrade").returncode == 0
        wait_until(lambda: not set(old) & set(gateway.workers()), "another worker")
        assert limits() == (own, (wanted or 500, hard))
