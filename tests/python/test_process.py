"""The command line, the configuration's errors, signals, and the life of master and workers."""

import errno
import os
import pwd
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from harness import (
    CASHEW,
    Conn,
    FakeServer,
    HOST,
    NUTCRACKER,
    Process,
    ReplyError,
    accepts,
    alive,
    children,
    commands,
    config_text,
    free_port,
    resp,
    server_lines,
    silent,
    wait_until,
    worker_processes,
)

CONF = Path(__file__).parent / "conf"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")


def run(*arguments, binary=CASHEW, seconds=20):
    return subprocess.run([binary, *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=seconds)


def check(place, text):
    """What `-t` says of a configuration: the exit status and all output."""
    path = place.directory / "checked.yml"
    path.write_text(text)
    done = run("-t", "-c", path)
    return done.returncode, done.stdout + done.stderr


# ---------------------------------------------------------------------------------- command line


@pytest.mark.parametrize("flag", ["-h", "--help", "-V", "--version", "-D", "--describe-stats"])
def test_information_goes_to_standard_error(flag):
    done = run(flag)
    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr.strip()
    if flag in ("-V", "--version"):
        assert re.search(r"\d+\.\d+\.\d+", done.stderr)


def test_help_knows_every_flag_of_nutcracker():
    text = run("--help").stderr
    for line in run("--help", binary=NUTCRACKER).stderr.splitlines():
        if flag := re.match(r"\s+(-\w), (--[\w-]+)", line):
            assert flag[1] in text and flag[2] in text, line


def test_described_stats_include_those_of_nutcracker():
    mine = run("-D").stderr
    for name in re.findall(r"^  (\w+) ", run("-D", binary=NUTCRACKER).stderr, re.MULTILINE):
        assert re.search(rf"\b{name}\b", mine), name


@pytest.mark.parametrize("words", [
    "--nosuch", "-v abc", "-v -1", "-s 0", "-s 70000", "-s x", "-i x", "-i -1", "-m 511",
    "-m 16777217", "-m x", "-c", "-o", "-p",
])
def test_bad_flags_are_refused_as_nutcracker_does(words):
    assert run(*words.split(), binary=NUTCRACKER).returncode == 1
    done = run(*words.split())
    assert done.returncode == 1
    assert done.stderr.strip()


def test_long_forms_mean_the_same(place):
    server = place.redis()
    log = place.directory / "long.log"
    path = place.directory / "long.yml"
    pid_path = place.directory / "long.pid"
    listen, stats = free_port(), free_port()
    path.write_text(config_text({"alpha": {
        "redis": True, "listen": f"{HOST}:{listen}", "servers": server_lines([server])}}))
    process = Process(
        [CASHEW, "--conf-file", path, f"--output={log}", "--stats-port", stats,
         f"--stats-addr={HOST}", "--stats-interval", "1000", "--pid-file", pid_path,
         "--mbuf-size=512", "--verbose", "6"],
        place.directory, "long", lambda: accepts(listen) and accepts(stats))
    try:
        wait_until(pid_path.exists, "a pid file")
        assert int(pid_path.read_text()) == process.pid
        with Conn(listen) as conn:
            assert conn.call("PING") == "PONG"
        assert log.read_text()
    finally:
        assert process.stop() == 0
    assert not pid_path.exists()


def test_a_missing_file_is_named(place):
    path = place.directory / "none.yml"
    for arguments in (["-c", path], ["-t", "-c", path]):
        done = run(*arguments)
        assert done.returncode == 1
        assert "none.yml" in done.stderr


# --------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize("name", ["twitter.yml", "meitu.yml"])
def test_both_upstream_examples_are_valid(name):
    done = run("-t", "-c", CONF / name)
    assert done.returncode == 0
    assert "syntax is ok" in done.stdout + done.stderr


GOOD = """\
alpha:
  listen: 127.0.0.1:22121
  hash: fnv1a_64
  redis: true
  servers:
   - 127.0.0.1:6379:1 one
   - 127.0.0.1:6380:1 two
"""

BAD = {
    # name: (text, line of the fault or None, what the message must say)
    "unknown key": (GOOD.replace("hash:", "hsah:"), 3, ["hsah", "hash"]),
    "unknown key, another": (GOOD + "  auto_eject_host: true\n", 8, ["auto_eject_hosts"]),
    "duplicate key": (GOOD + "  hash: murmur\n", 8, ["hash"]),
    "not a number": (GOOD + "  timeout: soon\n", 8, ["soon"]),
    "not a boolean": (GOOD.replace("true", "maybe"), 4, ["maybe"]),
    "bad hash": (GOOD.replace("fnv1a_64", "fnv1a_46"), 3, ["fnv1a_64"]),
    "bad distribution": (GOOD + "  distribution: ketema\n", 8, ["ketama"]),
    "bad hash tag": (GOOD + '  hash_tag: "{"\n', 8, ["hash_tag"]),
    "zero weight": (GOOD.replace("6380:1", "6380:0"), 7, ["weight"]),
    "bad weight": (GOOD.replace("6380:1", "6380:x"), 7, ["weight"]),
    "bad port": (GOOD.replace("6380:1", "99999:1"), 7, ["port"]),
    "no weight": (GOOD.replace("127.0.0.1:6380:1 two", "127.0.0.1"), 7, []),
    "bad listen port": (GOOD.replace("22121", "0"), 2, ["port"]),
    "no listen": (GOOD.replace("  listen: 127.0.0.1:22121\n", ""), None, ["listen"]),
    "no connections": (GOOD + "  server_connections: 0\n", 8, ["server_connections"]),
    "negative backlog": (GOOD + "  backlog: -1\n", 8, ["backlog"]),
    "auth for memcached": (GOOD.replace("redis: true", "redis: false") + "  redis_auth: x\n",
                           None, ["redis_auth"]),
    "no servers": (GOOD.split("  servers:")[0], None, ["servers"]),
    "empty servers": (GOOD.split("   - ")[0], None, ["servers"]),
    "same server name": (GOOD.replace("two", "one"), None, ["one"]),
    "same pool name": (GOOD + GOOD.replace("22121", "22122"), None, ["alpha"]),
    "same listen": (GOOD + GOOD.replace("alpha", "beta"), None, ["22121"]),
    "two masters": (GOOD.replace("one", "master").replace("two", "master"), None, ["master"]),
    "no pools": ("", None, []),
    "only global": ("global:\n  worker_processes: 2\n", None, []),
    "bad workers": ("global:\n  worker_processes: many\npools:\n" +
                    "".join(f"  {line}\n" for line in GOOD.splitlines()), 2, ["worker_processes"]),
    "unknown global": ("global:\n  worker_proceses: 2\npools:\n" +
                       "".join(f"  {line}\n" for line in GOOD.splitlines()), 2,
                       ["worker_processes"]),
    "not yaml": ("alpha: [\n", None, []),
    "long unix path": (GOOD.replace("127.0.0.1:22121", "/" + "x" * 120), 2, []),
    "bad permissions": (GOOD.replace("127.0.0.1:22121", "/tmp/x 0999"), 2, []),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_file_and_line(place, name):
    text, line, needles = BAD[name]
    status, output = check(place, text)
    assert status == 1
    assert "checked.yml" in output
    for needle in needles:
        assert needle in output, output
    if line:
        assert re.search(rf"checked\.yml:{line}:\d+", output), output
    # And it does not start, either.
    done = run("-c", place.directory / "checked.yml", "-s", free_port(), "-a", HOST)
    assert done.returncode == 1


@pytest.mark.parametrize("name", [
    "unknown key", "duplicate key", "not a number", "not a boolean", "bad hash", "zero weight",
    "no listen", "no connections", "no servers", "same server name", "same pool name",
    "same listen", "no pools", "bad hash tag", "auth for memcached",
])
def test_nutcracker_refuses_the_same(place, name):
    """The table above is of its making."""
    path = place.directory / "bad.yml"
    path.write_text(BAD[name][0])
    assert run("-t", "-c", path, binary=NUTCRACKER).returncode == 1


def test_a_port_in_use_is_an_error_that_names_it(place):
    port = free_port()
    with socket.create_server((HOST, port)):
        path = place.directory / "taken.yml"
        path.write_text(GOOD.replace("22121", str(port)))
        done = run("-c", path, "-s", free_port(), "-a", HOST)
        assert done.returncode == 1
        assert f"{HOST}:{port}" in done.stderr and "already" in done.stderr


# ------------------------------------------------------------------------------ master and workers


def redis_pool(place, **options):
    return {"alpha": {"redis": True, "servers": server_lines([place.redis()]), **options}}


def two_workers(place, arguments=(), **options):
    gateway = place.cashew(redis_pool(place, **options), {"worker_processes": 2}, arguments)
    # Who dies before all are ready makes the start fail.
    wait_until(lambda: " serving " in gateway.log(), "the start is over")
    return gateway


def serving(gateway, conn):
    """The worker that holds the gateway's end of a connection."""
    mine = conn.socket.getsockname()[1]
    port = conn.socket.getpeername()[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ends = [int(end.rpartition(":")[2], 16) for end in fields[1:3]]
        if ends == [port, mine]:
            wanted = f"socket:[{fields[9]}]"
            for pid in (gateway.pid, *children(gateway.pid)):
                for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
                    try:
                        if os.readlink(descriptor) == wanted:
                            return pid
                    except OSError:
                        pass
    raise AssertionError("nobody serves this connection")


def spread(gateway, count=2):
    """Connections by worker: at least one for each of `count` workers."""
    by_worker = {}
    for _ in range(200):
        conn = gateway.connect()
        assert conn.call("PING") == "PONG"
        by_worker.setdefault(serving(gateway, conn), []).append(conn)
        if len(by_worker) == count:
            return by_worker
    raise AssertionError(f"200 connections went to {len(by_worker)} of {count} workers")


def close_all(by_worker):
    for conns in by_worker.values():
        for conn in conns:
            conn.close()


def test_the_number_of_processes(place):
    pools = redis_pool(place)
    for workers in (1, 2, 3):
        gateway = place.cashew(pools, {"worker_processes": workers})
        wait_until(lambda: len(gateway.workers()) == workers, f"{workers} workers")
        close_all(spread(gateway, workers))
        assert gateway.stop() == 0
    gateway = place.cashew(pools, {"worker_processes": "auto"})
    cores = len(os.sched_getaffinity(0))
    wait_until(lambda: len(gateway.workers()) == cores, "a worker for each core")


def test_zero_workers_is_a_single_process(place):
    gateway = place.cashew(redis_pool(place), {"worker_processes": 0})
    assert gateway.call("PING") == "PONG"
    assert children(gateway.pid) == []
    assert "alpha" in gateway.stats()
    assert gateway.stop() == 0


def test_a_killed_worker_is_back_and_nothing_else_is_lost(place):
    gateway = two_workers(place)
    by_worker = spread(gateway)
    victim, survivor = by_worker
    os.kill(victim, signal.SIGKILL)
    # Some of these wait in the queue of the worker that is gone.
    waiting = [gateway.connect() for _ in range(50)]
    for conn in waiting:
        conn.send(resp("SET", "a", "1"))
    for conn in waiting:
        assert conn.reply() == "OK"
        conn.close()
    for conn in by_worker[survivor]:
        assert conn.call("GET", "a") == b"1"
    for conn in by_worker[victim]:
        conn.expect_closed()
    wait_until(lambda: len(gateway.workers()) == 2 and victim not in gateway.workers(),
               "a new worker")
    close_all(by_worker)
    close_all(spread(gateway))
    for conn in by_worker[survivor]:
        conn.close()


def test_a_worker_killed_again_and_again(place):
    gateway = two_workers(place)
    with gateway.connect() as first:
        first.call("SET", "a", "1")
    for _ in range(3):
        os.kill(gateway.workers()[0], signal.SIGKILL)
        for _ in range(10):
            with gateway.connect() as conn:
                try:
                    assert conn.call("GET", "a") == b"1"
                except (EOFError, ConnectionError):
                    pass  # this one was accepted by the worker that was killed
        wait_until(lambda: len(gateway.workers()) == 2, "two workers")
    for _ in range(20):
        assert gateway.call("GET", "a") == b"1"


def test_a_stopped_worker_does_not_stop_the_other(place):
    gateway = two_workers(place)
    by_worker = spread(gateway)
    frozen, lively = by_worker
    os.kill(frozen, signal.SIGSTOP)
    for _ in range(20):
        assert by_worker[lively][0].call("PING") == "PONG"
    assert "alpha" in gateway.stats()
    # It is not waited for: another takes its place, and its clients may come again.
    for conn in by_worker[frozen]:
        conn.read_to_end()
    wait_until(lambda: len(gateway.workers()) == 2, "two workers")
    assert frozen not in gateway.workers() and lively in gateway.workers()
    assert by_worker[lively][0].call("PING") == "PONG"
    close_all(by_worker)


def test_a_stopped_worker_does_not_delay_the_end(place):
    gateway = place.cashew(redis_pool(place),
                           {"worker_processes": 2, "worker_shutdown_timeout": 60})
    gateway.wait_serving()
    # It is told to stop before anybody notices that it is stopped.
    os.kill(gateway.workers()[0], signal.SIGSTOP)
    begin = time.monotonic()
    assert gateway.process.stop(50) == 0
    assert time.monotonic() - begin < 40
    assert "is killed: it is stopped" in gateway.log()


class SlowServer(FakeServer):
    """A fake that answers once it is told to."""

    def __init__(self):
        self.asked, self.ready = threading.Event(), threading.Event()
        super().__init__(self._answer)

    def _answer(self, client, _number):
        for _ in commands(client):
            self.asked.set()
            assert self.ready.wait(60)
            client.sendall(b"$4\r\nlate\r\n")


@pytest.mark.parametrize("workers", [0, 2])
def test_term_finishes_what_is_in_flight(place, workers):
    fake = place.keep(SlowServer())
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([fake])}},
                           {"worker_processes": workers})
    busy, idle = gateway.connect(), gateway.connect()
    idle.call("PING")
    busy.send(resp("GET", "a"))
    assert fake.asked.wait(40)
    gateway.process.signal(signal.SIGTERM)
    wait_until(lambda: not accepts(gateway.address), "nobody is accepted any more")
    assert gateway.process.running()
    fake.ready.set()
    begin = time.monotonic()
    busy.expect(b"$4\r\nlate\r\n")
    busy.expect_closed()
    idle.expect_closed()
    assert gateway.process.child.wait(40) == 0
    assert time.monotonic() - begin < 20
    assert children(gateway.pid) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_term_waits_no_longer_than_the_shutdown_timeout(place, workers):
    fake = place.keep(FakeServer(silent))
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([fake])}},
                           {"worker_processes": workers, "worker_shutdown_timeout": 1})
    with gateway.connect() as conn:
        conn.send(resp("GET", "a"))
        wait_until(gateway.under_way, "it waits for the server")
        begin = time.monotonic()
        gateway.process.signal(signal.SIGTERM)
        conn.expect_closed(40)
        gateway.process.child.wait(40)
        assert 0.8 < time.monotonic() - begin < 20


@pytest.mark.parametrize("workers", [0, 2])
def test_int_ends_at_once(place, workers):
    fake = place.keep(FakeServer(silent))
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([fake])}},
                           {"worker_processes": workers})
    pids = [gateway.pid, *children(gateway.pid)]
    with gateway.connect() as conn:
        conn.send(resp("GET", "a"))
        wait_until(gateway.under_way, "it waits for the server")
        begin = time.monotonic()
        gateway.process.signal(signal.SIGINT)
        gateway.process.child.wait(40)
        assert time.monotonic() - begin < 20
        conn.read_to_end()
    for pid in pids:
        wait_until(lambda: not alive(pid), "all processes are gone")


def test_a_killed_master_leaves_no_orphans(place):
    """Workers finish what is in flight and end."""
    fake = place.keep(SlowServer())
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([fake])}},
                           {"worker_processes": 2})
    wait_until(lambda: len(gateway.workers()) == 2, "two workers")
    family = children(gateway.pid)
    with gateway.connect() as conn:
        conn.send(resp("GET", "a"))
        assert fake.asked.wait(40)
        gateway.process.signal(signal.SIGKILL)
        gateway.process.child.wait(20)
        # They know of it before what they wait for is there.
        wait_until(lambda: "the master is gone" in gateway.log(), "it is noticed")
        fake.ready.set()
        conn.expect(b"$4\r\nlate\r\n")
        conn.expect_closed()
    for pid in family:
        wait_until(lambda: not alive(pid), "the children end")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP], ids=["USR1", "HUP"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_log_is_reopened(place, workers, number):
    gateway = place.cashew(redis_pool(place), {"worker_processes": workers})
    with gateway.connect() as conn:
        assert conn.call("SET", "a", "1") == "OK"
        gateway.stats()  # whoever answers this is there, too
        pids = children(gateway.pid)
        moved = gateway.log_path.with_suffix(".1")
        wait_until(gateway.log_path.exists, "a log")
        gateway.log_path.rename(moved)
        gateway.process.signal(number)
        wait_until(gateway.log_path.exists, "a new log")
        # Nobody was replaced, and the connection lives on.
        assert conn.call("GET", "a") == b"1"
        assert children(gateway.pid) == pids
    if workers:
        # Workers write to the new file too: one that dies is news.
        os.kill(gateway.workers()[0], signal.SIGKILL)
        wait_until(lambda: gateway.log_path.read_text(), "something in the new log")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_log_level_goes_up_and_down(place, workers):
    gateway = place.cashew(redis_pool(place), {"worker_processes": workers})
    with gateway.connect() as conn:
        for number in (signal.SIGTTIN, signal.SIGTTIN, signal.SIGTTOU):
            gateway.process.signal(number)
            time.sleep(0.1)
        wait_until(lambda: "SIGTTIN" in gateway.log() and "SIGTTOU" in gateway.log(),
                   "the signals are in the log")
        assert conn.call("PING") == "PONG"


def test_daemon_and_pid_file(place):
    server = place.redis()
    listen, stats = free_port(), free_port()
    path, log = place.directory / "daemon.yml", place.directory / "daemon.log"
    pid_path = place.directory / "daemon.pid"
    path.write_text(config_text(
        {"alpha": {"redis": True, "listen": f"{HOST}:{listen}",
                   "servers": server_lines([server])}}, {"worker_processes": 1}))
    done = run("-d", "-c", path, "-o", log, "-s", stats, "-a", HOST, "-p", pid_path)
    assert done.returncode == 0, done.stderr
    pid = int(wait_until(lambda: pid_path.exists() and pid_path.read_text(), "a pid file"))
    try:
        wait_until(lambda: accepts(listen), "the daemon listens")
        with Conn(listen) as conn:
            assert conn.call("SET", "a", "1") == "OK"
        assert os.getsid(pid) not in (0, os.getsid(0))
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
        family = children(pid)
    finally:
        os.kill(pid, signal.SIGTERM)
    for one in (pid, *family):
        wait_until(lambda: not alive(one), "the daemon ends")
    assert not pid_path.exists()


def test_a_daemon_that_cannot_start_says_so(place):
    path = place.directory / "bad.yml"
    path.write_text(GOOD.replace("hash:", "hsah:"))
    done = run("-d", "-c", path, "-s", free_port(), "-a", HOST)
    assert done.returncode == 1 and "hash" in done.stderr


# ------------------------------------------------------------------------------ limits and options


def nobody_yet(gateway, pool):
    """The connections that found out whether the gateway is up are gone from the count."""
    gateway.wait_empty(pool)


@pytest.mark.parametrize("workers", [0, 2])
def test_client_connections_is_a_limit_of_the_instance(place, workers):
    gateway = place.cashew(redis_pool(place, client_connections=20), {"worker_processes": workers})
    nobody_yet(gateway, "alpha")
    conns = [gateway.connect() for _ in range(20)]
    for conn in conns:
        assert conn.call("PING") == "PONG"
    for _ in range(10):
        with gateway.connect() as refused:
            refused.expect(b"-ERR max number of clients reached\r\n")
            refused.expect_closed()
    for conn in conns[:5]:
        conn.close()

    def accepted():
        conn = gateway.connect()
        try:
            conn.send(resp("PING"))
            if conn.reply() == "PONG":
                return conn
        except (EOFError, OSError):
            pass
        conn.close()
        return None

    again = [wait_until(accepted, "room for another") for _ in range(5)]
    assert accepted() is None
    for conn in again + conns:
        conn.close()


def test_client_connections_counts_the_dead_no_more(place):
    """A worker that is killed takes its clients out of the count."""
    gateway = two_workers(place, client_connections=10)
    for _ in range(3):
        nobody_yet(gateway, "alpha")
        conns = []
        for _ in range(10):
            conn = gateway.connect()
            conn.send(resp("PING"))
            assert conn.reply() == "PONG"
            conns.append(conn)
        for pid in gateway.workers():
            os.kill(pid, signal.SIGKILL)
        for conn in conns:
            conn.read_to_end()
            conn.close()
        wait_until(lambda: len(gateway.workers()) == 2, "two new workers")
        wait_until(lambda: _pings(gateway), "clients are welcome again")


def _pings(gateway):
    try:
        return gateway.call("PING") == "PONG"
    except (ReplyError, EOFError, OSError):
        return False


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_backlog_is_the_length_of_the_queue(place, kind):
    """So many wait to be accepted, and by listen(2)'s count one more; a reload changes it, too."""
    options = {"listen": str(place.directory / "alpha.sock")} if kind == "unix" else {}
    pools = redis_pool(place, backlog=8, **options)
    gateway = place.cashew(pools, {"worker_processes": 1, "worker_heartbeat_timeout": 0})
    gateway.wait_serving()
    for backlog in (8, 20, 3):
        gateway.configure({"alpha": {**gateway.pools["alpha"], "backlog": backlog}})
        gateway.reload()
        nobody_yet(gateway, "alpha")
        worker, = worker_processes(gateway.pid)
        os.kill(worker, signal.SIGSTOP)
        try:
            wait_until(lambda: stopped(worker), "it accepts nobody any more")
            clients = knock(gateway.address, backlog + 12)
            wait_until(lambda: len(queued(clients)) > backlog, "as many are in the queue")
            time.sleep(0.1)
            waiting = queued(clients)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert len(waiting) == backlog + 1
        for client in waiting:
            client.settimeout(10)
            client.sendall(resp("PING"))
            assert client.recv(100) == b"+PONG\r\n"
        for client in clients:
            client.close()


def stopped(pid):
    """Whether each of its threads is."""
    states = [path.read_text().rpartition(")")[2].split()[0]
              for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state == "T" for state in states)


def knock(address, count):
    """Clients that nobody accepts, as far as there is room for them in the queue."""
    clients = []
    for _ in range(count):
        family = socket.AF_INET if isinstance(address, int) else socket.AF_UNIX
        client = socket.socket(family)
        client.setblocking(False)
        error = client.connect_ex((HOST, address) if isinstance(address, int) else address)
        assert error in (0, errno.EINPROGRESS, errno.EAGAIN), errno.errorcode[error]
        if error != errno.EAGAIN:
            clients.append(client)
    return clients


def queued(clients):
    """Those whose connection is complete."""
    poll = select.poll()
    for client in clients:
        poll.register(client, select.POLLOUT)
    complete = {descriptor for descriptor, _ in poll.poll(0)}
    return [client for client in clients if client.fileno() in complete]


def test_client_connections_of_memcached(place):
    gateway = place.cashew(
        {"beta": {"client_connections": 3, "servers": server_lines([place.memcached()])}},
        {"worker_processes": 2})
    nobody_yet(gateway, "beta")
    conns = [gateway.connect() for _ in range(3)]
    for conn in conns:
        conn.send(b"get a\r\n")
        conn.expect(b"END\r\n")
    with gateway.connect() as refused:
        refused.expect(b"ERROR Too many open connections\r\n")
        refused.expect_closed()
    for conn in conns:
        conn.close()


@AS_ROOT
def test_workers_give_up_their_privileges(place):
    place.directory.chmod(0o777)
    gateway = place.cashew(
        redis_pool(place),
        {"worker_processes": 2, "user": "nobody", "group": "nogroup", "max_openfiles": 4096})
    assert gateway.call("SET", "a", "1") == "OK"
    workers = wait_until(lambda: len(gateway.workers()) == 2 and gateway.workers(), "workers")
    nobody = pwd.getpwnam("nobody")
    for pid in workers:
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^Uid:\s+(\d+)\s+(\d+)\s+(\d+)", status, re.M).groups() == (
            (str(nobody.pw_uid),) * 3)
        assert re.search(r"^Gid:\s+(\d+)\s+(\d+)\s+(\d+)", status, re.M).groups() == (
            (str(nobody.pw_gid),) * 3)
        assert re.search(r"^Groups:\s*(\d*)\s*$", status, re.M).group(1) in (
            "", str(nobody.pw_gid))
        assert re.search(r"^CapEff:\s+0+$", status, re.M)
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"Max open files\s+4096\b", limits)
    os.kill(workers[0], signal.SIGKILL)
    wait_until(lambda: len(gateway.workers()) == 2, "a new worker")
    for _ in range(10):
        assert gateway.call("GET", "a") == b"1"


@AS_ROOT
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_who_stays_root_whoever_it_runs_as_does_not_serve(place):
    path = place.directory / "kept.yml"
    path.write_text("global:\n  user: nobody\npools:\n" + "".join(
        f"  {line}\n" for line in GOOD.replace("22121", str(free_port())).splitlines()))
    done = run("--securebits", "+no_setuid_fixup", CASHEW, "-c", path, "-s", free_port(),
               "-a", HOST, binary="setpriv")
    if "setpriv: " in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 1
    assert "did not start: it failed: privileges are not dropped for good" in done.stderr


@AS_ROOT
def test_an_unknown_user_is_an_error(place):
    pools = GOOD.replace("22121", str(free_port()))
    status, output = check(place, "global:\n  user: nobody-of-that-name\npools:\n" + "".join(
        f"  {line}\n" for line in pools.splitlines()))
    path = place.directory / "checked.yml"
    if status == 0:  # then it is told at the start
        done = run("-c", path, "-s", free_port(), "-a", HOST)
        status, output = done.returncode, done.stdout + done.stderr
    assert status == 1 and "nobody-of-that-name" in output


@pytest.mark.parametrize("wanted", [True, False])
def test_tcpkeepalive_of_client_connections(place, wanted):
    gateway = place.cashew(redis_pool(place, tcpkeepalive=wanted), {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.call("PING")
        mine = conn.socket.getsockname()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            ends = [int(end.rpartition(":")[2], 16) for end in fields[1:3]]
            if ends == [gateway.address, mine]:
                timer = fields[5].split(":")[0]
                assert timer == ("02" if wanted else "00"), "02 is the keepalive timer"
                break
        else:
            raise AssertionError("connection not found")


def test_preconnect_and_server_connections(place):
    server = place.redis()
    pools = {"alpha": {"redis": True, "servers": server_lines([server]), "preconnect": True,
                       "server_connections": 3}}
    gateway = place.cashew(pools, {"worker_processes": 1})

    def connections():
        return server.call("CLIENT", "LIST").count(b"\n") - 1  # less the one that asks

    wait_until(lambda: connections() >= 1, "connected before the first client")
    conns = [gateway.connect() for _ in range(40)]
    for conn in conns:
        for n in range(5):
            conn.send(resp("SET", f"k{n}", "v"))
    for conn in conns:
        conn.expect(b"+OK\r\n" * 5)
    assert 2 <= connections() <= 3
    for conn in conns:
        conn.close()


def test_the_mode_of_a_unix_socket_and_its_sharing(place):
    path = place.directory / "shared.sock"
    gateway = place.cashew(redis_pool(place, listen=f"{path} 0666"), {"worker_processes": 2})
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    for _ in range(50):
        with Conn(path) as conn:
            assert conn.call("PING") == "PONG"
    assert gateway.stop() == 0
