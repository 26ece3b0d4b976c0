"""Where the statistics and the log are, which a reload changes as it does everything else."""

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from harness import (
    CASHEW,
    HOST,
    accepts,
    alive,
    children,
    config_text,
    connect,
    free_port,
    read_stats,
    server_lines,
    wait_until,
    worker_processes,
)
from load import Load, fill, key
from test_upgrade import BUMPED, upgrade


def pool(*servers, **options):
    return {"redis": True, "servers": server_lines(servers), **options}


def start(place, workers=2, **settings):
    """A gateway whose file alone says where it tells things."""
    server = place.redis()
    fill(server)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": workers, **settings},
                           flags=False)
    gateway.wait_serving()
    gateway.server = server
    return gateway


def family(gateway):
    return {gateway.pid, *children(gateway.pid)}


def half_a_request(gateway):
    client = connect(gateway.stats_address, 10.0)
    client.sendall(b"GET /healthz HTTP/1.1\r\n")
    return client


def finished(client):
    with client:
        client.sendall(b"\r\n")
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
    return answer


# -------------------------------------------------------------------------------- the statistics


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["tcp", "ipv6", "host"])
def test_the_statistics_move(place, kind, workers):
    if kind == "host":
        # To fewer addresses of the same port, and back: what is done to protect them.
        port = free_port()
        first, second = f"0.0.0.0:{port}", f"{HOST}:{port}"
        old = new = port
    else:
        old, port = free_port(), free_port()
        first, second = f"{HOST}:{old}", f'"[::1]:{port}"' if kind == "ipv6" else f"{HOST}:{port}"
        new = ("::1", port) if kind == "ipv6" else port
    # Where the harness waits for it.
    gateway = start(place, workers)
    gateway.configure(stats_listen=first)
    gateway.reload()
    gateway.stats_address = old
    with Load(gateway.address, count=4) as load:
        load.turn()
        before, epoch = family(gateway), gateway.epoch()
        for turn, (listen, address) in enumerate([(second, new), (first, old)]):
            in_flight = half_a_request(gateway)
            gateway.configure(stats_listen=listen)
            said = gateway.reload()
            assert "stats_listen" in said and listen.strip('"') in said, said
            was, gateway.stats_address = gateway.stats_address, address
            assert gateway.epoch() == epoch + turn + 1
            if was != address:
                wait_until(lambda: not accepts(was), "nobody listens at the old address")
            assert finished(in_flight).endswith(b"ok\n")
            assert f"statistics: {listen}".replace('"', "") in gateway.order("status").stdout
            if kind == "host":
                other = ("127.0.0.2", port)
                wait_until(lambda: accepts(other) == (turn == 1), "only where it is asked to")
            load.turn()
        assert family(gateway) == before, "nobody was started anew for it"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_address_that_is_taken_for_the_statistics(place, workers):
    gateway = start(place, workers)
    port = free_port()
    with Load(gateway.address, count=4) as load:
        load.turn()
        epoch = gateway.epoch()
        with socket.create_server((HOST, port)):
            gateway.configure({"alpha": pool(gateway.server, timeout=900)},
                              stats_listen=f"{HOST}:{port}", log_level=7)
            said = gateway.refused_reload()
            assert f"statistics: cannot listen on {HOST}:{port}: another process" in said, said
            # None of the file is in effect.
            assert gateway.epoch() == epoch
            status = gateway.order("status").stdout
            assert f"statistics: {HOST}:{gateway.stats_port}" in status and "level 5" in status
        # One of its own pools is as much in the way.
        gateway.configure(stats_listen=f"{HOST}:{gateway.address}")
        said = gateway.refused_reload()
        assert "already listens there" in said and gateway.config_path.name in said, said
        load.turn()
        gateway.configure(stats_listen=f"{HOST}:{port}")
        said = gateway.reload()
        assert "stats_listen" in said and "log_level" in said, said
        assert read_stats(port)["cashew"]["epoch"] > epoch
        load.turn()


def test_the_next_admin_is_where_the_last_one_was(place):
    """Whoever tells the statistics then, and whatever program."""
    gateway = start(place)
    port = free_port()
    gateway.configure(stats_listen=f"{HOST}:{port}")
    gateway.reload()
    old, gateway.stats_address = gateway.stats_port, port
    admin, = set(children(gateway.pid)) - set(worker_processes(gateway.pid))
    os.kill(admin, signal.SIGKILL)
    wait_until(lambda: not alive(admin), "it is dead")
    assert gateway.stats()["alpha"]
    upgrade(gateway)
    assert gateway.stats()["alpha"] and not accepts(old)


# --------------------------------------------------------------------------------------- the log


def logs(gateway):
    """What standard error is, of each process of the instance."""
    found = set()
    for pid in family(gateway):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/2"))
    return found


def log_to(gateway, path):
    """Has a reload move the log there."""
    if path is None:
        del gateway.settings["log_file"]
        gateway.configure()
    else:
        gateway.configure(log_file=path)
    said = gateway.reload()
    assert f"-> {path or 'standard error'}" in said, said
    where = str(path or gateway.process.output_path)
    wait_until(lambda: logs(gateway) == {where}, f"all of them write to {where}")
    gateway.log_path = path or gateway.process.output_path


def workers_speak(gateway, path):
    """A server that fails and comes back is news of a worker."""
    size = path.stat().st_size
    gateway.server.stop()
    with gateway.connect() as conn:
        conn.error("GET", key(1))
    gateway.server.start()
    wait_until(lambda: b" fails: " in path.read_bytes()[size:], f"a worker's line in {path}")
    line = next(line for line in path.read_text()[size:].splitlines() if " fails: " in line)
    return line.split()[3]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_log_moves(place, workers):
    gateway = start(place, workers)
    first = gateway.log_path
    second = place.directory / "moved.log"
    before = family(gateway)
    log_to(gateway, second)
    assert "the log continues in" in first.read_text() and str(second) in first.read_text()
    text = second.read_text()
    assert "the log continues from" in text and "is in effect" in text, text
    size = first.stat().st_size
    assert workers_speak(gateway, second).startswith("worker-" if workers else "cashew")
    # It is the new one that is opened again.
    second.rename(place.directory / "moved.1")
    gateway.process.signal(signal.SIGUSR1)
    wait_until(lambda: second.exists() and "reopened" in second.read_text(), "it is opened again")
    # To standard error as it was at the start, and to a file again.
    log_to(gateway, None)
    log_to(gateway, first)
    assert first.stat().st_size > size
    assert family(gateway) == before


def test_a_log_that_cannot_be_written_refuses_a_reload(place):
    gateway = start(place)
    log, epoch = gateway.log_path, gateway.epoch()
    other = free_port()
    nowhere = place.directory / "nowhere" / "cashew.log"
    for path, why in [(nowhere, f"there is no directory {nowhere.parent}"),
                      (place.directory, f"{place.directory} is a directory"),
                      ("/proc/cashew.log", "cannot open log file /proc/cashew.log"),
                      ("cashew.log", "not an absolute path")]:
        gateway.configure(log_file=path, stats_listen=f"{HOST}:{other}", worker_processes=1)
        said = gateway.refused_reload()
        assert why in said, said
        assert why in log.read_text()
        # The statistics are where they were, and nothing is left where they would have been.
        assert gateway.epoch() == epoch and not accepts(other)
        assert len(worker_processes(gateway.pid)) == 2
        assert logs(gateway) == {str(log)}
    done = subprocess.run([CASHEW, "-t", "-c", gateway.config_path], capture_output=True, text=True)
    assert done.returncode == 1 and "not an absolute path" in done.stderr
    gateway.configure(log_file=log)
    gateway.reload()
    assert accepts(other)


def test_the_level_of_the_log_changes(place):
    gateway = start(place)

    def level():
        return gateway.order("status").stdout.partition(", level ")[2].split()[0]

    assert level() == "5"
    gateway.configure(log_level=8)
    assert "log_level: 5 -> 8" in gateway.reload()
    assert level() == "8"
    # Only what the file says differently is changed.
    gateway.process.signal(signal.SIGTTOU)
    wait_until(lambda: "log level is 7" in gateway.log(), "less is logged")
    gateway.configure({"alpha": pool(gateway.server, timeout=900)})
    gateway.reload()
    assert level() == "7"
    gateway.configure(log_level=3)
    gateway.reload()
    assert level() == "3"
    size = len(gateway.log())
    gateway.configure(log_level=5)
    gateway.reload()
    assert "is in effect" in gateway.log()[size:]


# ------------------------------------------------------------------------------- whose word holds


def test_what_the_command_line_says_holds(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 1}, ["-v", "6"])
    gateway.wait_serving()
    other, port = place.directory / "other.log", free_port()
    epoch = gateway.epoch()
    gateway.configure(stats_listen=f"{HOST}:{port}", log_file=other, log_level=7)
    overruled = [
        f"stats_listen {HOST}:{port} is overridden by -a {HOST} -s {gateway.stats_port}",
        f"log_file {other} is overridden by -o {gateway.log_path}", "log_level 7 is overridden by -v 6",
    ]
    for arguments in (["--dry-run"], []):
        said = gateway.reload(*arguments)
        for line in [*overruled, "nothing changes"]:
            assert line in said, said
    for line in overruled:
        assert line in gateway.log()
    assert gateway.epoch() == epoch and not accepts(port) and not other.exists()
    upgrade(gateway)
    status = gateway.order("status").stdout
    assert f"statistics: {HOST}:{gateway.stats_port}" in status, status
    assert f"log: {gateway.log_path}, level 6" in status, status
    # Nobody is reminded of what agrees.
    gateway.configure(stats_listen=f"{HOST}:{gateway.stats_port}", log_file=gateway.log_path,
                      log_level=6)
    assert "overruled" not in gateway.reload()


def test_a_dry_run_moves_nothing(place):
    gateway = start(place)
    epoch, port, path = gateway.epoch(), free_port(), place.directory / "other.log"
    gateway.configure(stats_listen=f"{HOST}:{port}", log_file=path, log_level=7)
    said = gateway.reload("--dry-run")
    for line in (f"stats_listen: {HOST}:{gateway.stats_port} -> {HOST}:{port}",
                 f"log_file: {gateway.log_path} -> {path}", "log_level: 5 -> 7"):
        assert line in said, said
    assert gateway.epoch() == epoch and not accepts(port) and not path.exists()


# ----------------------------------------------------------------------------------- through upgrades


@pytest.mark.skipif(not os.path.exists(BUMPED), reason="needs scripts/bumped")
def test_both_move_before_between_and_after_upgrades(place):
    """Another program goes on where they are by then, and moves them as the first one did."""
    gateway = start(place)
    binaries = [BUMPED, CASHEW, BUMPED, CASHEW]
    with Load(gateway.address, count=4, may_lose=True) as load:
        for turn, binary in enumerate(binaries):
            was, port, path = gateway.stats_address, free_port(), place.directory / f"{turn}.log"
            gateway.configure(stats_listen=f"{HOST}:{port}", log_level=5 + turn % 2)
            log_to(gateway, None if turn == 2 else path)
            gateway.stats_address = port
            wait_until(lambda: not accepts(was), "nobody listens at the old address")
            upgrade(gateway, 0, "--binary", binary)
            assert gateway.stats()["alpha"]["client_err"] == 0
            assert logs(gateway) == {str(gateway.log_path)}
            status = gateway.order("status").stdout
            assert f"statistics: {HOST}:{port}" in status, status
            log = "standard error" if turn == 2 else path
            assert f"log: {log}, level {5 + turn % 2}" in status, status
            load.turn()
            assert not load.lost
            if turn == 2:
                gateway.configure(log_file=gateway.config_path.with_suffix(".log"))
                log_to(gateway, gateway.config_path.with_suffix(".log"))
            workers_are_heard(gateway)
            load.turn()
            load.lost.clear()


def workers_are_heard(gateway):
    """One that dies is replaced by one that writes to the same log."""
    victim = worker_processes(gateway.pid)[0]
    size = gateway.log_path.stat().st_size
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: str(victim) in gateway.log_path.read_text()[size:], "it is in the log")
    wait_until(lambda: len(worker_processes(gateway.pid)) == 2, "two workers")


def test_a_background_instance_logs_to_the_file_of_its_configuration(place):
    server, listen, stats = place.redis(), free_port(), free_port()
    path, log = place.directory / "daemon.yml", place.directory / "daemon.log"
    pid_path = place.directory / "daemon.pid"

    def run(**settings):
        text = config_text({"alpha": pool(server, listen=f"{HOST}:{listen}")},
                           {"worker_processes": 1, "stats_listen": f"{HOST}:{stats}", **settings})
        path.write_text(text)
        return subprocess.run([CASHEW, "-d", "-c", path, "-p", pid_path], capture_output=True,
                              text=True, timeout=30)

    def end():
        pid = int(pid_path.read_text())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not alive(pid), "the daemon ends", 20)

    done = run(log_file=log, log_level=6)
    assert (done.returncode, done.stderr) == (0, "")
    try:
        assert "serving" in log.read_text() and read_stats(stats)["alpha"]
    finally:
        end()
    done = run()
    try:
        assert done.returncode == 0 and "there is no log" in done.stderr, done.stderr
    finally:
        end()
    done = run(log_file="/proc/cashew.log")
    assert done.returncode == 1 and "cannot open log file /proc/cashew.log" in done.stderr
    with socket.create_server((HOST, stats)):
        done = run(log_file=log)
    assert done.returncode == 1 and f"cannot listen on {HOST}:{stats}" in done.stderr
    assert f"cannot listen on {HOST}:{stats}" in log.read_text()


@pytest.mark.parametrize("workers", [0, 2])
def test_nobody_who_serves_clients_writes_the_log(place, workers):
    gateway = start(place, workers)
    serving = [gateway.pid] if workers == 0 else children(gateway.pid)
    assert len(serving) >= max(workers, 1)
    for pid in serving:
        names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
        assert "log" in names, names
    # What they say last is there all the same.
    with gateway.connect() as conn:
        conn.call("PING")
        gateway.stop()
    assert "panicked" not in gateway.log()
    old = gateway.log_path.with_suffix(".old")
    gateway.process.start()
    gateway.log_path.rename(old)
    os.kill(gateway.pid, signal.SIGUSR1)
    wait_until(lambda: gateway.log_path.exists(), "the log is opened anew")
    for pid in family(gateway):
        wait_until(lambda: os.path.realpath(f"/proc/{pid}/fd/2") == str(gateway.log_path),
                   f"process {pid} writes to the new file")
