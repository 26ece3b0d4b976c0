"""What is left when the master dies, and how the next one takes over."""

import os
import signal
import subprocess
import threading
import time

import pytest

from harness import (
    CASHEW,
    Conn,
    FakeServer,
    ReplyError,
    accepts,
    alive,
    children,
    config_text,
    free_port,
    resp,
    server_lines,
    silent,
    wait_until,
)


class Load:
    """Clients that check every reply and come back when they are cut off."""

    def __init__(self, address, clients=4):
        self.address = address
        self.served = 0
        self.cuts = 0
        self.wrong = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def _run(self, number):
        conn = None
        turn = 0
        while not self.over.is_set():
            turn += 1
            try:
                conn = conn or Conn(self.address, 5.0)
                value = f"{number}.{turn}"
                conn.send(resp("SET", f"key{number}", value) + resp("GET", f"key{number}"))
                replies = [conn.reply(), conn.reply()]
                if replies != ["OK", value.encode()]:
                    self.wrong.append(replies)
                self.served += 1
            except (OSError, EOFError, ReplyError):
                self.cuts += 1
                if conn:
                    conn.close()
                conn = None
                time.sleep(0.01)
        if conn:
            conn.close()

    def close(self):
        self.over.set()
        for thread in self.threads:
            thread.join(20)


def kill_master(gateway):
    gateway.process.signal(signal.SIGKILL)
    gateway.process.child.wait(20)


def family_of(gateway):
    """Two workers and the admin, when all of them are there."""
    return wait_until(lambda: len(children(gateway.pid)) == 3 and children(gateway.pid),
                      "all children")


def start_again(gateway):
    """As an init system would do it that waits a tenth of a second before each try."""
    begin = time.monotonic()
    while True:
        time.sleep(0.1)
        try:
            gateway.process.start()
            return time.monotonic() - begin
        except AssertionError:
            assert time.monotonic() - begin < 40, gateway.log()[-4000:]


def test_a_stopped_worker_is_replaced_within_a_second(place):
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
                           {"worker_processes": 2})
    times = []
    while len(times) < 8 and not any(took < 1 for took in times):
        before = wait_until(lambda: len(gateway.workers()) == 2 and gateway.workers(), "both")
        started = gateway.log().count("is started: process")
        os.kill(before[0], signal.SIGSTOP)
        begin = time.monotonic()
        # Cheaper to ask for than who listens, on a machine that is busy.
        wait_until(lambda: gateway.log().count("is started: process") > started,
                   "another worker", pause=0.005)
        times.append(time.monotonic() - begin)
        wait_until(lambda: not alive(before[0]), "the stopped one is gone")
        for _ in range(20):
            assert gateway.call("PING") == "PONG"
    assert min(times) < 1, times
    assert "is killed: it is stopped" in gateway.log()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_new_master_takes_the_addresses_of_a_killed_one(place, kind):
    stuck = place.keep(FakeServer(silent))
    pools = {
        "alpha": {"redis": True, "servers": server_lines([place.redis()])},
        "beta": {"redis": True, "servers": server_lines([stuck])},
    }
    if kind == "unix":
        for pool, options in pools.items():
            options["listen"] = place.directory / f"{pool}.sock"
    pools = {name: {**options, "listen": str(options["listen"])} if kind == "unix" else options
             for name, options in pools.items()}
    gateway = place.cashew(pools, {"worker_processes": 2, "worker_shutdown_timeout": 2})
    load = place.keep(Load(gateway.addresses["alpha"]))
    wait_until(lambda: load.served > 100, "some load")
    took = []
    for _ in range(3):
        family = family_of(gateway)
        waiting = place.keep(gateway.connect("beta"))
        waiting.send(resp("GET", "a"))
        wait_until(lambda: gateway.under_way("beta") == 1, "it waits for the server")
        cuts = load.cuts
        kill_master(gateway)
        killed_at = time.monotonic()
        took.append(start_again(gateway))
        served = load.served
        wait_until(lambda: load.served > served + 100, "clients are back")
        assert load.cuts > cuts
        # This one is still owed a reply: its worker waits for that as long as it may.
        assert any(alive(pid) for pid in family) or time.monotonic() - killed_at > 2
        for pid in family:
            wait_until(lambda: not alive(pid), "the old workers end")
        waiting.read_to_end()
    load.close()
    assert load.wrong == []
    # While the old workers still wait for what is in flight.
    assert min(took) < 2, took
    assert len(family_of(gateway)) == 3


def test_a_unix_socket_never_vanishes_while_its_owner_changes(place):
    path = place.directory / "alpha.sock"
    pools = {"alpha": {"redis": True, "listen": str(path),
                       "servers": server_lines([place.redis()])}}
    gateway = place.cashew(pools, {"worker_processes": 2})
    family = children(gateway.pid)
    before = os.stat(path).st_ino
    kill_master(gateway)
    for pid in family:
        wait_until(lambda: not alive(pid), "the workers end")
    assert path.exists() and not accepts(path)
    missing = []
    over = threading.Event()

    def watch():
        while not over.is_set():
            if not path.exists():
                missing.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start_again(gateway)
    over.set()
    watcher.join()
    assert missing == []
    assert os.stat(path).st_ino != before
    assert gateway.call("PING") == "PONG"
    assert [name for name in os.listdir(place.directory) if name.startswith(".cashew")] == []
    assert gateway.stop() == 0
    assert not path.exists()


def test_a_live_unix_socket_is_not_stolen(place):
    path = place.directory / "alpha.sock"
    pools = {"alpha": {"redis": True, "listen": str(path),
                       "servers": server_lines([place.redis()])}}
    gateway = place.cashew(pools, {"worker_processes": 2})
    config = place.directory / "thief.yml"
    config.write_text(config_text(pools))
    begin = os.stat(path)
    thief = subprocess.run([CASHEW, "-c", config, "-a", "127.0.0.1", "-s", str(free_port())],
                           capture_output=True, text=True, timeout=20)
    assert thief.returncode == 1
    assert "another process already listens there" in thief.stderr
    assert os.stat(path).st_ino == begin.st_ino
    assert gateway.call("PING") == "PONG"


def test_of_two_that_find_a_stale_unix_socket_one_gets_it(place):
    path = place.directory / "alpha.sock"
    pools = {"alpha": {"redis": True, "listen": str(path),
                       "servers": server_lines([place.redis()])}}
    config = place.directory / "twins.yml"
    config.write_text(config_text(pools))
    gateway = place.cashew(pools, {"worker_processes": 1})
    for _ in range(10):
        kill_master(gateway)
        wait_until(lambda: not accepts(path), "nobody listens")
        twins = [
            subprocess.Popen([CASHEW, "-c", config, "-a", "127.0.0.1", "-s", str(free_port())],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
            for _ in range(2)
        ]
        try:
            wait_until(lambda: any(twin.poll() is not None for twin in twins), "one gives up")
            wait_until(lambda: accepts(path), "the other listens")
            assert sorted(twin.poll() is None for twin in twins) == [False, True]
        finally:
            for twin in twins:
                twin.terminate()
                twin.wait(10)
        start_again(gateway)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_start_right_after_the_masters_death_never_fails(place, kind):
    """Without a pause and without a second try, while the old workers still have the sockets."""
    listen = {"listen": str(place.directory / "alpha.sock")} if kind == "unix" else {}
    pools = {"alpha": {"redis": True, "servers": server_lines([place.redis()]), **listen}}
    gateway = place.cashew(pools, {"worker_processes": 2, "worker_shutdown_timeout": 2})
    load = place.keep(Load(gateway.addresses["alpha"], clients=8))
    for turn in range(20):
        served = load.served
        wait_until(lambda: load.served > served + 50, "some load")
        gateway.process.signal(signal.SIGKILL)
        gateway.process.child.wait(20)
        # Raises if the new master ends.
        gateway.process.start()
        assert gateway.call("PING") == "PONG", turn
    load.close()
    assert load.wrong == []
    assert "cannot listen" not in gateway.process.output()


def test_what_another_program_has_is_refused_at_once_though_a_master_died(place):
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
                           {"worker_processes": 1})
    family = children(gateway.pid)
    kill_master(gateway)
    for pid in family:
        wait_until(lambda: not alive(pid), "the workers end")
    place.keep(FakeServer(silent, port=gateway.address))
    begin = time.monotonic()
    done = subprocess.run(gateway.process.command, capture_output=True, text=True, timeout=40)
    assert done.returncode == 1 and "another process already listens there" in done.stderr
    assert time.monotonic() - begin < 15
