"""/readyz on the stats port: whether a gateway is to get clients, and why not."""

import os
import signal
import urllib.error
import urllib.request

import pytest

from harness import HOST, resp, server_lines, wait_until

STOPPING = "the instance is stopping"


def get(gateway, path="/readyz"):
    """The status, and the lines of the body."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}{path}", timeout=20) as page:
            return page.status, page.read().decode().splitlines()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().splitlines()


def wait_for(gateway, status, *lines):
    last = []

    def is_so():
        last[:] = [get(gateway)]
        return last[0] == (status, list(lines))

    try:
        wait_until(is_so, f"/readyz is {status} {lines}", 15)
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from error


def up(gateway):
    return {it["server"]: it["up"] for it in gateway.stats()["cashew"]["servers"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_ready_when_the_workers_serve(place, workers):
    server = place.redis()
    pool = {"redis": True, "servers": server_lines([server], ["one"])}
    settings = {"worker_processes": workers, "ready_workers": max(workers, 1),
                "worker_heartbeat_timeout": 0}
    gateway = place.cashew({"alpha": {"server_check_interval": 1000, **pool}}, settings)
    wait_for(gateway, 200, "ready")
    if workers:
        # One hangs, and nobody replaces it.
        pid = gateway.workers()[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(gateway, 503, "1 workers serve, 2 are needed")
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(gateway, 200, "ready")


def test_dead_servers_matter_only_if_the_option_says_so(place):
    one, two, three = place.redis(), place.redis(), place.redis()
    pools = {
        "alpha": {"redis": True, "servers": server_lines([one, two], ["one", "two"])},
        "beta": {"redis": True, "servers": server_lines([three], ["three"])},
    }
    gateway = place.cashew({name: {"server_check_interval": 1000, **each} for name, each in pools.items()}, {"worker_processes": 1})
    wait_for(gateway, 200, "ready")
    for server in (one, two):
        server.stop()
    wanted = {"one": 0, "two": 0, "three": 1}
    wait_until(lambda: up(gateway) == wanted, "the servers of alpha are down")
    assert get(gateway) == (200, ["ready"])

    gateway.configure(ready_needs_primaries="true")
    gateway.reload()
    wait_for(gateway, 503, "pool alpha: no primary is up")
    assert get(gateway, "/healthz") == get(gateway, "/livez") == (200, ["ok"])
    three.stop()
    wait_for(gateway, 503, "pool beta: no primary is up", "pool alpha: no primary is up")
    three.start()
    one.start()
    # Nobody asks for anything: the gateway notices by itself.
    wait_for(gateway, 200, "ready")


def test_it_is_not_ready_while_requests_keep_it_from_stopping(place):
    server = place.redis()
    pool = {"redis": True, "servers": server_lines([server], ["one"])}
    gateway = place.cashew({"alpha": {"server_check_interval": 1000, **pool}}, {"worker_processes": 1, "worker_shutdown_timeout": 60})
    wait_for(gateway, 200, "ready")
    waiting = gateway.connect()
    assert waiting.call("SET", "a", "x") == "OK"
    server.process.signal(signal.SIGSTOP)
    try:
        waiting.send(resp("GET", "a"))
        wait_until(lambda: gateway.under_way() == 1, "the request waits for its reply")
        gateway.process.signal(signal.SIGTERM)
        wait_for(gateway, 503, STOPPING)
        assert get(gateway, "/healthz") == get(gateway, "/livez") == (200, ["ok"])
        assert gateway.process.running()
    finally:
        server.process.signal(signal.SIGCONT)
    assert waiting.reply() == b"x"
    assert gateway.stop() == 0
