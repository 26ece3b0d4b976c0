"""cashew health: whether clients are served, as a client finds out."""

import concurrent.futures
import os
import signal
import socket
import subprocess

import pytest

from certificates import Authority
from harness import CASHEW, HOST, Process, free_port, server_lines, wait_until


def health(gateway, *options, binary=CASHEW):
    """The exit status, and what it says."""
    done = subprocess.run([binary, "health", "-c", gateway.config_path, *options], capture_output=True, text=True,
                          timeout=30)
    assert done.stdout == ""
    return done.returncode, done.stderr.strip()


def test_any_answer_counts_and_servers_have_no_part_in_it(place):
    path = place.directory / "unix.sock"
    nobody = f"{HOST}:{free_port()}:1"
    gateway = place.cashew({
        "alpha": {"redis": True, "servers": [nobody]},
        "beta": {"redis": True, "redis_auth": "secret", "servers": [nobody]},
        "gamma": {"servers": [nobody]},
        "delta": {"redis": True, "listen": str(path), "servers": [nobody]},
        "proxied": {"redis": True, "proxy_protocol": "true", "servers": [nobody]},
        "closed": {"redis": True, "deny_from": f"[{HOST}]", "servers": [nobody]},
    }, {"worker_processes": 1})
    # The shortest name is the first.
    port = gateway.addresses["beta"]
    assert health(gateway) == (0, f"cashew: beta at {HOST}:{port} serves")
    for pool in ("alpha", "gamma", "proxied", "closed"):
        assert health(gateway, "--pool", pool) == (0, f"cashew: {pool} at {HOST}:{gateway.addresses[pool]} serves")
    assert health(gateway, "--pool", "delta") == (0, f"cashew: delta at {path} serves")
    routed = place.directory / "routed.yml"
    routed.write_text(f"pools:\n  inner:\n    servers: ['{nobody}']\n"
                      f"routes:\n  outer:\n    listen: {HOST}:{free_port()}\n    route: inner\n")
    assert health(gateway, "-c", routed, "--pool", "inner") == (
        1, "cashew: 'inner' has no port: clients come to it by routes")
    assert health(gateway, "--pool", "none") == (1, "cashew: there is no pool or route 'none'")
    gateway.process.kill()
    wait_until(lambda: health(gateway)[0] == 1, "nobody is there")
    assert health(gateway) == (1, f"cashew: beta at {HOST}:{port} does not serve: nobody listens there")
    place.memcached(port=port)
    status, said = health(gateway)
    assert status == 1 and "another program answers there, with \"ERROR" in said


def test_a_connection_that_is_closed_is_no_answer(place):
    file = place.directory / "cashew.yml"
    with socket.create_server((HOST, 0)) as server, concurrent.futures.ThreadPoolExecutor(1) as thread:
        file.write_text(f"alpha:\n  listen: {HOST}:{server.getsockname()[1]}\n  redis: true\n  servers: ['{HOST}:1:1']\n")

        def serve():
            conn, _ = server.accept()
            with conn:
                assert conn.recv(100) == b"*1\r\n$4\r\nPING\r\n"

        done = thread.submit(serve)
        said = subprocess.run([CASHEW, "health", "-c", file], capture_output=True, text=True, timeout=30)
        done.result(10)
    assert said.returncode == 1
    assert said.stderr.endswith(" does not serve: it closed the connection without an answer\n")


def test_workers_that_hang_do_not_serve(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}},
                           {"worker_processes": 2, "worker_heartbeat_timeout": 0})
    gateway.wait_serving()
    workers = gateway.workers()
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        status, said = health(gateway, "--timeout", "100")
        assert status == 1 and said.endswith("does not serve: no answer within 100 ms")
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: health(gateway)[0] == 0, "they go on")


def test_what_has_nothing_but_tls_says_what_to_do(place):
    authority = Authority(place.directory)
    pair = authority.sign(f"IP:{HOST}")
    options = {"redis": True, "servers": [f"{HOST}:{free_port()}:1"],
               "tls": f"{{certificate: {pair.certificate}, key: {pair.key}}}"}
    gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
    for more in ([], ["--pool", "alpha"]):
        status, said = health(gateway, *more)
        assert status == 1 and "tls_listen" in said and "/run/cashew/health.sock" in said
    path = place.directory / "health.sock"
    options |= {"tls_listen": f"{HOST}:{free_port()}", "listen": str(path)}
    other = place.cashew({"alpha": options}, {"worker_processes": 1})
    assert health(other) == (0, f"cashew: alpha at {path} serves")


def test_a_file_has_what_is_the_case(place):
    server = place.redis()
    pools = {"alpha": {"redis": True, "servers": server_lines([server])}}
    gateway = place.cashew(pools, {"worker_processes": 1})
    file = place.directory / "state"
    command = [CASHEW, "health", "-c", gateway.config_path, "--interval", "20", "--track", file]
    tracker = Process(command, place.directory, "tracker")
    place.stack.callback(tracker.kill)

    def becomes(value):
        wait_until(lambda: file.exists() and file.read_text() == value, f"the file has {value!r}; {tracker.output()}")

    becomes("0\n")
    # Whatever others write is set right.
    file.write_text("1\n")
    becomes("0\n")
    # A port that moves is followed.
    pools["alpha"]["listen"] = f"{HOST}:{free_port()}"
    gateway.configure(pools)
    gateway.reload()
    wait_until(lambda: str(gateway.addresses["alpha"]) in health(gateway)[1], "it is at the other port")
    becomes("0\n")
    gateway.process.kill()
    becomes("1\n")
    assert "does not serve: nobody listens there" in tracker.output()
    gateway.process.start()
    becomes("0\n")
    assert tracker.running()


def test_a_file_that_cannot_be_written_is_an_error(place):
    gateway = place.cashew({"alpha": {"redis": True, "servers": [f"{HOST}:{free_port()}:1"]}}, {"worker_processes": 1})
    status, said = health(gateway, "--track", "/nonexistent/state")
    assert status == 1 and "/nonexistent/state cannot be written" in said


@pytest.mark.parametrize("options", [["--timeout", "9"], ["--interval", "0"], ["--track"], ["extra"]])
def test_misuse_is_refused(place, options):
    done = subprocess.run([CASHEW, "health", *options], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "--help" in done.stderr
