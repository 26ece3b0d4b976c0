"""What goes wrong around an instance, and must neither end it nor hold anybody up: an admin that is
stopped, people who connect and say or read nothing, files that are none, a log that nobody reads, a
disk that is full."""

import json
import os
import re
import resource
import select
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from harness import (
    CASHEW,
    HOST,
    PATIENCE,
    accepts,
    alive,
    children,
    config_text,
    free_port,
    in_time,
    measured,
    read_stats,
    resident,
    server_lines,
    wait_until,
)


def redis_pool(place, **options):
    return {"alpha": {"redis": True, "servers": server_lines([place.redis()]), **options}}


def start(place, settings=None, **named):
    gateway = place.cashew(redis_pool(place), {"worker_processes": 2, **(settings or {})}, **named)
    wait_until(lambda: status(gateway)["state"] == "serving", "the gateway serves")
    return gateway


def run(*arguments, seconds=10):
    """Fails when it takes longer, as it would for ever."""
    return subprocess.run([CASHEW, *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=seconds)


def status(gateway, seconds=10):
    done = run("status", "-c", gateway.config_path, "--json", seconds=seconds)
    return json.loads(done.stdout) if done.returncode == 0 else {"state": done.stderr}


def family(pid):
    return [pid, *children(pid)]


# ------------------------------------------------------------------------------ a stopped admin


def test_a_stopped_admin_is_replaced(place):
    gateway = start(place)
    admin = status(gateway)["admin"]["pid"]
    os.kill(admin, signal.SIGSTOP)
    wait_until(lambda: not alive(admin), "the stopped admin is killed", 15)
    assert "alpha" in gateway.stats()
    after = wait_until(lambda: (now := status(gateway))["admin"]["state"] == "serving" and now,
                       "another admin serves")
    assert after["admin"]["pid"] != admin and after["admin"]["restarts"] == 1
    assert re.search(r"admin \(process \d+\) is killed: it is stopped", gateway.log())
    # Nobody else was touched.
    assert all(worker["restarts"] == 0 for worker in after["workers"])
    # One that is well stays, however often it is asked.
    for _ in range(30):
        assert "alpha" in gateway.stats()
        time.sleep(0.05)
    assert status(gateway)["admin"] == after["admin"]


def test_a_stopped_admin_delays_neither_reload_nor_upgrade_nor_end(place):
    # Nobody watches it.
    gateway = start(place, {"worker_heartbeat_timeout": 0})
    admin = status(gateway)["admin"]["pid"]
    os.kill(admin, signal.SIGSTOP)
    gateway.configure({"alpha": {**gateway.pools["alpha"], "timeout": 1000}})
    done = gateway.order("reload", seconds=15)
    assert done.returncode == 0, done.stderr
    assert gateway.call("PING") == "PONG"
    done = gateway.order("upgrade", seconds=20)
    assert done.returncode == 0, done.stderr
    # It has been told to go, and is replaced all the same.
    wait_until(lambda: not alive(admin), "the stopped admin is killed", 15)
    assert "alpha" in gateway.stats()
    again = wait_until(lambda: status(gateway)["admin"]["pid"], "another admin")
    os.kill(again, signal.SIGSTOP)
    begin = time.monotonic()
    assert gateway.process.stop(30) == 0
    assert time.monotonic() - begin < 15
    wait_until(lambda: not alive(again), "the stopped admin ends")


# -------------------------------------------------------------------- statistics and their clients


def many_servers(place, count):
    """A pool whose statistics are long. Nobody connects to its servers."""
    return {**redis_pool(place), "beta": {"redis": True, "servers": [
        f"{HOST}:1:1 a-server-with-a-long-name-{number}" for number in range(count)]}}


def deaf(port, request):
    """A client that asks, and has room for a part of the answer only."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE)
    client.connect((HOST, port))
    client.sendall(request)
    return client


def get(port, path):
    with socket.create_connection((HOST, port), PATIENCE) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        text = b""
        while piece := client.recv(1 << 16):
            text += piece
    return text


@measured
def test_clients_of_the_statistics_that_keep_still_hold_nobody_up(place):
    gateway = place.cashew(many_servers(place, 400), {"worker_processes": 1})
    port = gateway.stats_port
    admin = wait_until(lambda: status(gateway)["admin"]["pid"], "an admin")
    before = resident(admin)
    metrics = get(port, "/metrics")
    assert len(metrics) > 500_000 and metrics.startswith(b"HTTP/1.1 200 OK")
    crowd = []
    try:
        # Reads nothing of a large answer; has asked in part; has said nothing.
        for word in [b"GET /metrics HTTP/1.1\r\n\r\n"] * 40 + [b"GET /met", b""] * 20:
            crowd.append(deaf(port, word))
        slowest = 0.0
        for _ in range(5):
            begin = time.monotonic()
            assert get(port, "/healthz").endswith(b"ok\n")
            assert "alpha" in read_stats(port)
            slowest = max(slowest, time.monotonic() - begin)
            # Those who speak a byte at a time have no longer than the others.
            for client in crowd[40::2]:
                try:
                    client.send(b"r")
                except OSError:
                    pass
        assert get(port, "/metrics")[:15] == metrics[:15]
        in_time(slowest, 5.0, "for the statistics")
        # Not all that were asked for are kept.
        assert resident(admin) - before < 200 << 20
        # And in the end none of them is served any more.
        wait_until(lambda: all(map(is_over, crowd)), "those who keep still are closed")
    finally:
        for client in crowd:
            client.close()
    assert status(gateway)["admin"]["restarts"] == 0


def is_over(client):
    """Whether the other side has closed. What came before that is read."""
    try:
        while select.select([client], [], [], 0)[0]:
            if not client.recv(1 << 20):
                return True
    except OSError:
        return True
    return False


# ----------------------------------------------------------------------------- operators that idle


def control_socket(gateway):
    found = re.findall(r"operators can connect at (\S+)", gateway.log())
    return found[-1]


def test_operators_that_keep_still_hold_nobody_up(place):
    gateway = start(place)
    path = control_socket(gateway)
    crowd = []
    try:
        for number in range(40):
            client = socket.socket(socket.AF_UNIX)
            client.connect(path)
            crowd.append(client)
            # Says nothing, half a command, or asks and reads nothing.
            word = [b"", b'{"command":'][number % 2] if number < 32 else b'{"command":"status"}\n'
            try:
                client.sendall(word)
            except BrokenPipeError:
                pass  # Others have taken the place.
        assert status(gateway)["state"] == "serving"
        gateway.configure({"alpha": {**gateway.pools["alpha"], "timeout": 1000}})
        done = gateway.order("reload", seconds=15)
        assert done.returncode == 0, done.stderr
        gateway.process.signal(signal.SIGTTIN)
        wait_until(lambda: "SIGTTIN: log level is 6" in gateway.log(), "the signal is heard", 10)
        done = gateway.order("upgrade", seconds=20)
        assert done.returncode == 0, done.stderr
        assert gateway.call("PING") == "PONG"
    finally:
        for client in crowd:
            client.close()


# ------------------------------------------------------------------- configurations that are none


def fifo(place, name):
    path = place.directory / name
    os.mkfifo(path)
    path.chmod(0o666)
    return path


NO_FILES = {
    "a FIFO or a pipe": lambda place: fifo(place, "fifo.yml"),
    "a directory": lambda place: place.directory,
    "a device": lambda place: Path("/dev/zero"),
    "larger than 16777216 bytes": lambda place: huge(place),
}


def huge(place):
    path = place.directory / "huge.yml"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    return path


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_is_refused_at_once(place, what):
    path = NO_FILES[what](place)
    for arguments in (["-t"], ["-s", free_port(), "-a", HOST], ["-d", "-s", free_port()]):
        done = run(*arguments, "-c", path)
        assert done.returncode == 1, done
        assert f"{path}: cannot be read: it is " in done.stderr and what in done.stderr, done.stderr


def test_a_pipe_as_configuration_is_not_waited_for():
    reader, writer = os.pipe()
    try:
        done = subprocess.run([CASHEW, "-t", "-c", "/dev/stdin"], stdin=reader,
                              capture_output=True, text=True, timeout=10)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 1 and "a FIFO or a pipe, not a regular file" in done.stderr


def test_a_fifo_in_the_place_of_the_configuration_blocks_nothing(place):
    gateway = start(place)
    text = gateway.config_path.read_text()
    gateway.config_path.unlink()
    os.mkfifo(gateway.config_path)
    done = gateway.order("reload", seconds=10)
    assert done.returncode == 1 and "it is a FIFO or a pipe, not a regular file" in done.stderr
    done = gateway.order("reload", "--dry-run", seconds=10)
    assert done.returncode == 1 and "not a regular file" in done.stderr
    failures = gateway.log().count("the configuration stays as it is")
    gateway.process.signal(signal.SIGHUP)
    wait_until(lambda: gateway.log().count("the configuration stays as it is") > failures,
               "the signal is answered", 10)
    done = gateway.order("upgrade", seconds=10)
    assert done.returncode == 1 and "not a regular file" in done.stderr, done.stderr
    now = status(gateway)
    assert now["state"] == "serving" and "not a regular file" in now["last_reload"]["failed"]
    assert gateway.call("PING") == "PONG"
    gateway.config_path.unlink()
    gateway.config_path.write_text(text)
    gateway.reload()


# --------------------------------------------------------------------------------- a disk is full


def worker_speaks(gateway, server):
    """Has the workers log something: their server goes, and comes back."""
    server.stop()
    for _ in range(8):
        with gateway.connect() as conn:
            conn.send(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n")
            assert conn.read_line().startswith(b"-")
    server.start()


def speak(gateway):
    """Has the master log something."""
    level = status(gateway)["log_level"]
    for number, wanted in ((signal.SIGTTIN, level + 1), (signal.SIGTTOU, level)):
        gateway.process.signal(number)
        wait_until(lambda: status(gateway).get("log_level") == wanted, "the signal is heard", 10)


def metric(gateway, name):
    text = get(gateway.stats_port, "/metrics").decode()
    return int(re.search(rf"^{name} (\d+)$", text, re.M)[1])


def check_that_lost_lines_are_counted(gateway):
    wait_until(lambda: status(gateway).get("log_lines_lost", 0) > 0, "lost lines are counted", 10)
    wait_until(lambda: metric(gateway, "cashew_log_lines_lost_total") > 0, "in the metrics", 10)
    assert gateway.stats()["cashew"]["log_lines_lost"] > 0
    assert re.search(r"^log: .*; \d+ lines could not be written$", gateway.order("status").stdout,
                     re.M)


def test_a_full_disk_is_survived_and_told_of(place):
    server = place.redis()
    link = place.directory / "full.log"
    link.symlink_to("/dev/full")
    pid_path = place.directory / "full.pid"
    pid_path.symlink_to("/dev/full")
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}},
                           {"worker_processes": 2, "log_file": link}, flags=False,
                           arguments=["-p", pid_path])
    wait_until(lambda: status(gateway)["state"] == "serving", "the gateway serves")
    processes = family(gateway.pid)
    worker_speaks(gateway, server)
    speak(gateway)
    gateway.reload()
    check_that_lost_lines_are_counted(gateway)
    assert family(gateway.pid) == processes
    done = gateway.order("upgrade")
    assert done.returncode == 0, done.stderr
    # There is room again.
    link.unlink()
    pid_path.unlink()
    gateway.process.signal(signal.SIGUSR1)
    wait_until(lambda: link.exists() and re.search(
        r"master \d+ lines of the log are lost: No space left on device",
        link.read_text()), "the master tells what is lost", 10)
    wait_until(lambda: pid_path.exists() and pid_path.read_text() == f"{gateway.pid}\n",
               "the pid file is written", 10)
    assert gateway.stop() == 0
    assert not pid_path.exists()
    assert "panicked" not in link.read_text()


def test_a_limit_on_file_sizes_is_survived(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}},
                           {"worker_processes": 2})
    wait_until(lambda: status(gateway)["state"] == "serving", "the gateway serves")
    processes = family(gateway.pid)
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in processes}
    size = gateway.log_path.stat().st_size
    for pid, (_, hard) in limits.items():
        # In the middle of a line.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 10, hard))
    speak(gateway)
    worker_speaks(gateway, server)
    check_that_lost_lines_are_counted(gateway)
    assert gateway.log_path.stat().st_size <= size + 10
    # What would need larger memory is refused, and says by which limit.
    server_2 = place.redis()
    gateway.configure({"alpha": {"redis": True, "servers": server_lines([server, server_2])}})
    said = gateway.refused_reload()
    assert "the limit on file sizes (ulimit -f) is too low" in said
    assert gateway.call("PING") == "PONG" and family(gateway.pid) == processes
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
    speak(gateway)
    wait_until(lambda: re.search(
        r"^\[.*\] WARN master \d+ lines of the log are lost: File too large",
        gateway.log_path.read_text(), re.M), "the master tells what is lost", 10)
    gateway.reload()
    assert family(gateway.pid) == processes


def test_a_start_below_the_limit_on_file_sizes_is_an_error_that_names_it(place):
    path = place.directory / "limited.yml"
    path.write_text(config_text({"alpha": {
        "redis": True, "listen": f"{HOST}:{free_port()}", "servers": [f"{HOST}:1:1"]}}))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run([CASHEW, "-c", path, "-s", str(free_port()), "-a", HOST],
                          capture_output=True, text=True, timeout=20, preexec_fn=limit)
    assert done.returncode == 1, done
    assert "the limit on file sizes (ulimit -f) is too low" in done.stderr


def test_a_daemon_starts_on_a_full_disk(place):
    server = place.redis()
    path, pid_path = place.directory / "daemon.yml", place.directory / "daemon.pid"
    pid_path.symlink_to("/dev/full")
    listen, stats = free_port(), free_port()
    path.write_text(config_text(
        {"alpha": {"redis": True, "listen": f"{HOST}:{listen}",
                   "servers": server_lines([server])}}, {"worker_processes": 1}))
    done = run("-d", "-c", path, "-o", "/dev/full", "-s", stats, "-a", HOST, "-p", pid_path,
               seconds=PATIENCE)
    assert done.returncode == 0, done.stderr
    pid = json.loads(run("status", "-c", path, "--json").stdout)["pid"]
    processes = family(pid)
    try:
        wait_until(lambda: accepts(listen), "the daemon listens")
        pid_path.unlink()
        wait_until(lambda: pid_path.exists() and pid_path.read_text() == f"{pid}\n",
                   "the pid file is written", 10)
    finally:
        os.kill(pid, signal.SIGTERM)
    for one in processes:
        wait_until(lambda: not alive(one), "the daemon ends")
    assert not pid_path.exists()


def test_a_fifo_as_pid_file_is_not_waited_for(place):
    path = place.directory / "fifo.yml"
    path.write_text(config_text({"alpha": {
        "redis": True, "listen": f"{HOST}:{free_port()}", "servers": [f"{HOST}:1:1"]}}))
    done = run("-c", path, "-s", free_port(), "-a", HOST, "-p", fifo(place, "fifo.pid"), seconds=20)
    assert done.returncode == 1 and "cannot write pid file" in done.stderr


# ------------------------------------------------------------------------------ nobody reads the log


def fill(descriptor):
    """Leaves no room in a pipe."""
    os.set_blocking(descriptor, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(descriptor, b"x" * size)
        except BlockingIOError:
            pass


def empty(descriptor):
    """What is in a pipe."""
    os.set_blocking(descriptor, False)
    text = b""
    try:
        while piece := os.read(descriptor, 1 << 16):
            text += piece
    except BlockingIOError:
        pass
    return text.decode(errors="replace")


def check_that_a_log_without_a_reader_blocks_nothing(gateway, server, reader, writer):
    processes = family(gateway.pid)
    fill(writer)
    worker_speaks(gateway, server)
    speak(gateway)
    assert gateway.call("SET", "a", "1") == "OK"
    check_that_lost_lines_are_counted(gateway)
    assert family(gateway.pid) == processes
    # Now somebody reads.
    empty(reader)
    speak(gateway)
    wait_until(lambda: re.search(r"master \d+ lines of the log are lost: nobody read them",
                                 empty(reader)), "the master tells what is lost", 10)
    assert family(gateway.pid) == processes


def test_a_fifo_as_log_needs_no_reader(place):
    server = place.redis()
    path = fifo(place, "log")
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}},
                           {"worker_processes": 2, "log_file": path}, flags=False)
    wait_until(lambda: status(gateway)["state"] == "serving", "the gateway serves")
    gateway.process.signal(signal.SIGUSR1)
    assert gateway.call("PING") == "PONG"
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        told = []

        def tells(text):
            told.append(empty(reader))
            return text in "".join(told)

        wait_until(lambda: tells("log file is reopened"), "the log is reopened")
        assert " serving " in "".join(told)
        check_that_a_log_without_a_reader_blocks_nothing(gateway, server, reader, reader)
    finally:
        os.close(reader)
    assert gateway.call("PING") == "PONG"
    speak(gateway)


def test_a_pipe_as_standard_error_needs_no_reader(place):
    server = place.redis()
    reader, writer = os.pipe()
    # The gateway writes to the pipe; what operators are told does not go there.
    script = place.directory / "cashew-with-a-pipe"
    script.write_text(f'#!/bin/sh\nexec {CASHEW} "$@" 2>/proc/{os.getpid()}/fd/{writer}\n')
    script.chmod(0o755)
    try:
        gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}},
                               {"worker_processes": 2, "log_level": 5}, binary=script,
                               flags=False, log=False)
        gateway.binary = CASHEW
        wait_until(lambda: status(gateway)["state"] == "serving", "the gateway serves")
        assert " serving " in empty(reader)
        # It is the instance that does not wait, not whoever shares the pipe.
        assert os.get_blocking(writer)
        check_that_a_log_without_a_reader_blocks_nothing(gateway, server, reader, writer)
        # Nor does it end with the reader.
        processes = family(gateway.pid)
        os.close(reader)
        reader = None
        speak(gateway)
        worker_speaks(gateway, server)
        assert gateway.call("PING") == "PONG" and family(gateway.pid) == processes
    finally:
        os.close(writer)
        if reader is not None:
            os.close(reader)
