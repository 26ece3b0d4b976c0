"""Another binary in a running gateway: the master keeps its process id, clients keep their
connections and notice nothing, and a binary that does not work changes nothing."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness import (
    CASHEW,
    HOST,
    ROOT,
    Conn,
    Process,
    accepts,
    config_text,
    free_port,
    holders,
    resp,
    server_lines,
    wait_until,
    worker_processes,
)
from load import Load, Record, Storm, blocks, fill, key, memcached_request, value


def pool(*servers, **options):
    return {"redis": True, "servers": server_lines(servers), **options}


def upgrade(gateway, number=0, *arguments):
    """By command and by signal, by turns: all workers are others afterwards."""
    # The log may have moved, so it is asked.
    wait_until(lambda: " serving for " in gateway.order("status").stdout, "the gateway serves")
    old = set(worker_processes(gateway.pid))
    if number % 2:
        gateway.process.signal(signal.SIGUSR2)
    else:
        done = gateway.order("upgrade", *arguments)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{gateway.log()[-2000:]}"

    def all_new():
        assert gateway.process.running(), gateway.log()[-2000:]
        now = worker_processes(gateway.pid)
        return len(now) == len(old) and not old & set(now)

    wait_until(all_new, f"other workers than {old}\n{gateway.log()[-1500:]}")


@pytest.mark.parametrize("kind, count", [("tcp", 20), ("unix", 4), ("ipv6", 2)])
def test_upgrades_under_load(place, kind, count):
    server = place.redis()
    fill(server)
    listen = {"tcp": f"{HOST}:{free_port()}", "unix": str(place.directory / "alpha.sock"),
              "ipv6": f'"[::1]:{free_port()}"'}[kind]
    gateway = place.cashew({"alpha": pool(server, listen=listen)}, {"worker_processes": 2})
    gateway.wait_serving()
    with Load(gateway.address) as load, Storm(gateway.address, threads=1) as storm:
        load.turn()
        for number in range(count):
            upgrade(gateway, number)
            load.turn()
            storm.check()
            assert gateway.process.running()
        answered = load.stop()
        stats = gateway.stats()["alpha"]
    # Nothing was forgotten on the way.
    assert stats["forward_error"] == 0 and stats["client_err"] == 0
    assert stats["client_requests"] >= answered
    wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == 0, "nobody is left")
    assert gateway.stop() == 0


def test_memcached_sessions_survive_an_upgrade(place):
    server = place.memcached()
    fill(server)
    gateway = place.cashew({"alpha": {"servers": server_lines([server])}}, {"worker_processes": 2})
    with Load(gateway.address, request=memcached_request) as load:
        load.turn()
        for number in range(2):
            upgrade(gateway, number)
            load.turn()


def test_sessions_and_the_instance_are_what_they_were(place):
    server = place.redis("--requirepass", "secret")
    pid_path = place.directory / "cashew.pid"
    gateway = place.cashew({"alpha": pool(server, redis_auth="secret", client_connections=12)},
                           {"worker_processes": 2}, ["-p", pid_path])
    gateway.wait_empty()
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(gateway.connect()) for _ in range(12)]
        ids = []
        for number, conn in enumerate(conns):
            conn.call("HELLO", 2 + number % 2, "AUTH", "default", "secret")
            conn.call("SELECT", number % 5)
            conn.call("CLIENT", "SETNAME", f"client-{number}")
            ids.append(conn.call("CLIENT", "ID"))
            conn.call("SET", f"a{number}", number)
            conn.send(resp("GET", f"a{number}")[:-4])
        epoch, started = gateway.epoch(), gateway.stats()["uptime"]
        for number in range(2):
            upgrade(gateway, number)
        assert gateway.epoch() >= epoch and gateway.stats()["uptime"] >= started
        for number, conn in enumerate(conns):
            conn.send(resp("GET", f"a{number}")[-4:])
            assert conn.reply() == b"%d" % number
            assert conn.call("CLIENT", "GETNAME") == b"client-%d" % number
            info = conn.call("CLIENT", "INFO").decode()
            assert f" db={number % 5} " in info and f" resp={2 + number % 2} " in info
            conn.send(resp("GET", "none"))
            assert conn.raw_reply() == (b"_\r\n" if number % 2 else b"$-1\r\n")
        assert [conn.call("CLIENT", "ID") for conn in conns] == ids
        # The limit counts who was there before.
        with gateway.connect() as refused:
            assert "max number of clients" in refused.error("PING")
        assert int(pid_path.read_text()) == gateway.pid
        conns[0].close()

        def welcome():
            with gateway.connect() as conn:
                conn.send(resp("AUTH", "secret"))
                return conn.reply() == "OK" and conn.call("CLIENT", "ID") > max(ids)

        wait_until(welcome, "room for another")
    assert gateway.stop() == 0
    assert not pid_path.exists()


def test_an_upgraded_master_can_do_all_that_it_could(place):
    one, two = place.redis(), place.redis()
    fill(one, two)
    # Sessions stay where they are, so that it is known whose they are.
    gateway = place.cashew({"alpha": pool(one)}, {"worker_processes": 2, "rebalance": "false"})
    records = [Record(one), Record(two)]
    with Load(gateway.address, may_lose=True) as load:
        load.turn()
        upgrade(gateway)
        # Reload, resize …
        before = gateway.epoch()
        gateway.configure({"alpha": pool(two)}, worker_processes=3)
        gateway.reload()
        assert gateway.epoch() > before
        wait_until(lambda: len(worker_processes(gateway.pid)) == 3, "three workers")
        load.turn()
        upgrade(gateway, 1)
        gateway.configure({"alpha": pool(one)}, worker_processes=2)
        gateway.reload()
        wait_until(lambda: len(worker_processes(gateway.pid)) == 2, "two workers")
        load.turn()
        assert not load.lost
        # … and replace who dies.
        victim = worker_processes(gateway.pid)[0]
        mine = {port for port, pid in holders([victim], load.names()).items()}
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in worker_processes(gateway.pid)
                   and len(worker_processes(gateway.pid)) == 2, "a new worker")
        load.turn()
        assert set(load.lost) == mine
    found = blocks(*(record.stop() for record in records))
    assert [block[0] for block in found] == [0, 1, 0]


# ------------------------------------------------------------------------------- another version

#: A build that counts and talks by the next version's rules, from `scripts/bumped`.
BUMPED = os.environ.get("CASHEW_BUMPED", str(ROOT / "target" / "bumped" / "debug" / "cashew"))


@pytest.mark.skipif(not os.path.exists(BUMPED), reason="needs scripts/bumped")
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_to_the_next_version_and_back(place, kind):
    """Masters and workers of two versions understand as much of each other as it takes."""
    server = place.redis("--requirepass", "secret")
    fill(server)
    options = {"listen": str(place.directory / "alpha.sock")} if kind == "unix" else {}
    gateway = place.cashew({"alpha": pool(server, **options, redis_auth="secret")},
                           {"worker_processes": 2})

    def authenticated():
        conn = gateway.connect()
        assert conn.call("AUTH", "secret") == "OK"
        return conn

    named = place.keep(authenticated())
    named.call("CLIENT", "SETNAME", "somebody")
    number = named.call("CLIENT", "ID")
    named.send(resp("GET", key(7))[:-4])
    with Load(sockets=[authenticated().socket for _ in range(16)]) as load:
        load.turn()
        for turn, binary in enumerate([BUMPED, CASHEW, BUMPED, CASHEW]):
            upgrade(gateway, 0, "--binary", binary)
            assert os.path.samefile(f"/proc/{gateway.pid}/exe", binary)
            load.turn()
            if not turn:
                # The next version reloads as well.
                gateway.configure(worker_processes=3)
                gateway.reload()
                wait_until(lambda: len(worker_processes(gateway.pid)) == 3, "three workers")
                load.turn()
        named.send(resp("GET", key(7))[-4:])
        assert named.reply() == value(7)
        assert named.call("CLIENT", "GETNAME") == b"somebody"
        assert named.call("CLIENT", "ID") == number
        fresh = place.keep(authenticated())
        assert fresh.call("CLIENT", "ID") > number


@pytest.mark.skipif(not os.path.exists(BUMPED), reason="needs scripts/bumped")
def test_no_ring_changes_while_a_worker_cannot_be_told(place):
    """Also after an upgrade that failed: of workers of another version some still retire."""
    servers = [place.redis() for _ in range(3)]
    gateway = place.cashew(
        {"alpha": pool(*servers, hash="murmur", auto_eject_hosts=True, server_failure_limit=1,
                       timeout=1000, server_retry_timeout=600_000)},
        {"worker_processes": 1, "worker_shutdown_timeout": 60})
    gateway.wait_serving()
    [foreign] = gateway.workers()
    assert gateway.call("SET", "mine", "0") == "OK"
    # It cannot go elsewhere before EXEC.
    held = place.keep(gateway.connect())
    assert held.call("MULTI") == "OK" and held.call("SET", "mine", "1") == "QUEUED"
    done = gateway.order("upgrade", "--binary", BUMPED)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    for _ in range(20):
        if fail_upgrade(gateway):
            break
    else:
        pytest.skip("all upgrades were done before they could be made to fail")
    assert foreign in worker_processes(gateway.pid)
    keys = [f"key{number}" for number in range(200)]
    victim = next(server for server in servers if not server.call("EXISTS", "mine"))
    victim.stop()

    def taken():
        with gateway.connect(timeout=20) as conn:
            conn.send(b"".join(resp("SET", name, "") for name in keys))
            return [conn.reply() for _ in keys].count("OK")

    assert taken() < len(keys)
    # Longer than a worker is waited for that is to hold, which is half a second.
    time.sleep(1.5)
    assert taken() < len(keys) and "is ejected" not in gateway.log()
    assert "did not hold in time" not in gateway.log()
    assert foreign in worker_processes(gateway.pid)
    held.send(resp("EXEC"))
    held.reply()
    held.close()
    wait_until(lambda: foreign not in worker_processes(gateway.pid), "the last of the others goes")
    wait_until(lambda: taken() == len(keys), "the ring changes")


@pytest.mark.skipif(not os.path.exists(BUMPED), reason="needs scripts/bumped")
@pytest.mark.parametrize("binary", [CASHEW, BUMPED], ids=["same", "other"])
def test_who_retires_serves_while_another_program_takes_over(place, binary):
    """As when an upgrade is followed by the way back at once, and that takes its time: a worker of
    the first program still retires."""
    server = place.redis()
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 1,
                                                     "worker_shutdown_timeout": 60})
    gateway.wait_serving()
    held = place.keep(gateway.connect(timeout=5))
    assert held.call("MULTI") == "OK" and held.call("SET", "mine", "1") == "QUEUED"
    done = gateway.order("upgrade", "--binary", binary)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    old = set(worker_processes(gateway.pid))
    words = [gateway.binary, "upgrade", "-c", str(gateway.config_path), "--binary", CASHEW]
    while True:
        order = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        new = wait_until(lambda: set(worker_processes(gateway.pid)) - old or
                         order.poll() is not None, "a new worker", pause=0.0005)
        # Unless it serves already.
        if isinstance(new, set):
            end(min(new), signal.SIGSTOP)
            time.sleep(0.1)
            if order.poll() is None:
                break
            end(min(new), signal.SIGCONT)
        assert order.wait(30) == 0
        old = set(worker_processes(gateway.pid))
    assert held.call("EXEC") == ["OK"]
    for _ in range(5):
        assert held.call("GET", "mine") == b"1"
        time.sleep(0.05)
    assert order.poll() is None
    end(min(new), signal.SIGCONT)
    assert order.wait(30) == 0
    wait_until(lambda: set(worker_processes(gateway.pid)) == new, "the others go")
    assert held.call("GET", "mine") == b"1"


def fail_upgrade(gateway):
    """A worker of the new program dies before it serves; false when it was too late for that."""
    old = set(worker_processes(gateway.pid))
    words = [gateway.binary, "upgrade", "-c", str(gateway.config_path)]
    order = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    new = wait_until(lambda: set(worker_processes(gateway.pid)) - old or order.poll() is not None,
                     "a new worker", pause=0.0005)
    if isinstance(new, set):
        end(min(new), signal.SIGKILL)
    return order.wait(30) == 1


# ------------------------------------------------------------------------------- what does not work


def broken(kind, path):
    if kind == "false":
        return "/bin/false"
    if kind == "truncated":
        with open(CASHEW, "rb") as file:
            path.write_bytes(file.read(200_000))
    elif kind == "talks":
        path.write_text("#!/bin/sh\necho 'a fine gateway, version 9.9.9'\nexit 0\n")
    elif kind == "text":
        path.write_text("no program at all\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("kind", ["false", "truncated", "talks", "text", "missing"])
def test_a_broken_binary_changes_nothing(place, kind):
    server = place.redis()
    fill(server)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 2})
    gateway.wait_serving()
    path = place.directory / "broken"
    binary = str(path) if kind == "missing" else broken(kind, path)
    with Load(gateway.address) as load, Storm(gateway.address, threads=1):
        load.turn()
        family = worker_processes(gateway.pid)
        done = gateway.order("upgrade", "--binary", binary)
        assert done.returncode == 1, done.stdout
        assert done.stderr.strip()
        assert binary in done.stderr + gateway.log()
        load.turn()
        assert worker_processes(gateway.pid) == family
        assert gateway.process.running()
        # And it can still be upgraded to one that works.
        if kind == "false":
            upgrade(gateway)
            load.turn()


def test_a_broken_binary_in_the_place_of_the_old_one(place):
    """The usual way of it: a package is installed, and the master is told."""
    server = place.redis()
    fill(server)
    path = place.directory / "cashew"
    shutil.copy(CASHEW, path)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 2}, binary=str(path))
    with Load(gateway.address, may_lose=True) as load:
        load.turn()
        family = worker_processes(gateway.pid)
        for kind in ("truncated", "talks"):
            new = place.directory / "new"
            broken(kind, new)
            new.rename(path)
            before = len(gateway.log())
            gateway.process.signal(signal.SIGUSR2)
            wait_until(lambda: "ERROR" in gateway.log()[before:] or
                       "upgrade" in gateway.log()[before:], "a word in the log")
            load.turn()
            assert worker_processes(gateway.pid) == family
        assert not load.lost
        # A worker that dies is replaced all the same, by the program that runs: its file is gone.
        os.kill(family[0], signal.SIGKILL)
        wait_until(lambda: family[0] not in worker_processes(gateway.pid)
                   and len(worker_processes(gateway.pid)) == 2, "a new worker")
        load.turn()
        new = place.directory / "new"
        shutil.copy(CASHEW, new)
        new.rename(path)
        gateway.process.signal(signal.SIGUSR2)
        wait_until(lambda: not set(family) & set(worker_processes(gateway.pid))
                   and len(worker_processes(gateway.pid)) == 2, "other workers")
        load.turn()
        assert os.readlink(f"/proc/{gateway.pid}/exe") == str(path)


def test_an_upgrade_with_a_file_that_is_bad_now(place):
    server = place.redis()
    fill(server)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 2})
    with Load(gateway.address) as load:
        load.turn()
        family = worker_processes(gateway.pid)
        gateway.write_config(gateway.config_path.read_text().replace("servers:", "srvrs:"))
        done = gateway.order("upgrade")
        assert done.returncode == 1
        assert "srvrs" in done.stdout + done.stderr + gateway.log()
        load.turn()
        assert worker_processes(gateway.pid) == family
        gateway.write_config()
        upgrade(gateway)
        load.turn()


def test_a_background_instance_is_upgraded(place):
    server = place.redis()
    fill(server)
    listen, stats = free_port(), free_port()
    path, pid_path = place.directory / "daemon.yml", place.directory / "daemon.pid"
    path.write_text(config_text({"alpha": pool(server, listen=f"{HOST}:{listen}")},
                                {"worker_processes": 2}))
    starter = Process([CASHEW, "-d", "-c", path, "-o", place.directory / "daemon.log", "-s", stats,
                       "-a", HOST, "-p", pid_path], place.directory, "starter")
    assert starter.child.wait(60) == 0, starter.output()
    pid = int(pid_path.read_text())
    try:
        wait_until(lambda: accepts(listen), "the daemon listens")
        with Load(listen, count=4) as load:
            load.turn()
            old = worker_processes(pid)
            os.kill(pid, signal.SIGUSR2)
            wait_until(lambda: len(worker_processes(pid)) == 2
                       and not set(old) & set(worker_processes(pid)), "other workers")
            load.turn()
            assert int(pid_path.read_text()) == pid
            with Conn(listen) as conn:
                assert conn.call("GET", key(1)) == value(1)
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the daemon ends")
    assert not pid_path.exists()
    assert re.search(r"upgrad", (place.directory / "daemon.log").read_text())


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2], ids=["HUP", "USR2"])
def test_signals_while_the_old_program_comes_back(place, number):
    """A worker of the new program dies before it serves: none of the signals that come then is lost
    on a program that does not handle it yet."""
    server = place.redis()
    fill(server)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 2})
    gateway.wait_serving()
    with Load(gateway.address, may_lose=True) as load:
        for _ in range(3):
            load.turn()
            old = set(worker_processes(gateway.pid))
            words = [gateway.binary, "upgrade", "-c", str(gateway.config_path)]
            order = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            new = wait_until(lambda: set(worker_processes(gateway.pid)) - old or
                             order.poll() is not None, "a new worker", pause=0.0005)
            if isinstance(new, set):
                end(min(new), signal.SIGKILL)
            for _ in range(20):
                gateway.process.signal(number)
                time.sleep(0.003)
            assert order.wait(30) in (0, 1)
            assert gateway.process.running(), gateway.process.child.returncode
        wait_until(lambda: len(worker_processes(gateway.pid)) == 2, "two workers")
        load.turn()


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_a_reload_asked_for_during_an_upgrade_comes_after_it(place, fails):
    server = place.redis()
    fill(server)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 2})
    gateway.wait_serving()
    delays = [0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3]
    number = 0
    while delays:
        number += 1
        assert number < 60, f"{len(delays)} upgrades were never hit before they were done"
        if upgraded_and_reloaded(gateway, server, number, delays[0], fails):
            del delays[0]


def upgraded_and_reloaded(gateway, server, number, delay, fails):
    """An upgrade with a reload asked for meanwhile. With `fails` a worker of the new program is to
    die before all of them are ready: false when it was too late for that."""
    old, before = set(worker_processes(gateway.pid)), gateway.epoch()
    words = [gateway.binary, "upgrade", "-c", str(gateway.config_path)]
    order = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    # After the test of the configuration, whenever that is.
    gateway.configure({"alpha": pool(server, timeout=1000 + number)})
    asked = victim = None
    if fails:
        new = wait_until(lambda: set(worker_processes(gateway.pid)) - old or
                         order.poll() is not None, "a new worker", pause=0.0005)
        victim = min(new) if isinstance(new, set) else None
        # The program that takes over has time to hear of the reload.
        end(victim, signal.SIGSTOP)
        if number % 2:
            words[1] = "reload"
            asked = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        else:
            gateway.process.signal(signal.SIGHUP)
        time.sleep(delay)
        end(victim, signal.SIGKILL)
    else:
        time.sleep(delay)
        gateway.process.signal(signal.SIGHUP)
    status = order.wait(30)
    if fails and status == 0:
        # A worker that serves was killed: it is right to refuse a reload for that.
        assert asked is None or asked.wait(30) in (0, 1)
        wait_until(lambda: gateway.order("reload").returncode == 0, "a reload")
        wait_until(lambda: len(worker_processes(gateway.pid)) == 2, "two workers")
        return False
    assert (status, victim is not None) == (int(fails), fails), gateway.log()[-2000:]
    assert asked is None or asked.wait(30) == 0, gateway.log()[-2000:]
    wait_until(lambda: gateway.epoch() > before, f"an epoch after {before}")
    wait_until(lambda: len(worker_processes(gateway.pid)) == 2, "two workers")
    with Conn(gateway.address) as conn:
        assert conn.call("GET", key(1)) == value(1)

    # Those who were killed are not told of any more, nor is what they had.
    def told():
        stats = gateway.stats()
        known = {worker["pid"] for worker in stats["cashew"]["workers"]}
        servers = [it for it in stats["alpha"].values() if isinstance(it, dict)]
        connections = sum(it.get("server_connections", 0) for it in servers)
        return known == set(worker_processes(gateway.pid)) and 0 < connections <= 2

    wait_until(told, f"the statistics tell of these workers only: {gateway.stats()}")
    return True


def end(pid, number):
    """A process that may have ended by itself, or never was."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_stop_while_the_old_program_comes_back_stops_it(place):
    server = place.redis()
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
        gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 2})
        gateway.wait_serving()
        old = set(worker_processes(gateway.pid))
        gateway.process.signal(signal.SIGUSR2)
        new = wait_until(lambda: set(worker_processes(gateway.pid)) - old, "a new worker",
                         pause=0.0005)
        end(min(new), signal.SIGKILL)
        time.sleep(delay)
        gateway.process.signal(signal.SIGTERM)
        assert gateway.process.child.wait(30) == 0, gateway.log()[-2000:]


def test_more_workers_than_there_are_places_for(place):
    server = place.redis()
    fill(server)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 129})
    gateway.wait_serving()
    family = set(worker_processes(gateway.pid))
    done = gateway.order("upgrade")
    assert done.returncode == 1 and "no room" in done.stderr, done
    assert set(worker_processes(gateway.pid)) == family
    # Those who are gone by then do not count, nor do those who are just about to go.
    gateway.configure(worker_processes=2)
    gateway.reload()
    done = gateway.order("upgrade")
    assert done.returncode == 0, done
    wait_until(lambda: len(worker_processes(gateway.pid)) == 2, "two workers")
    with Conn(gateway.address) as conn:
        assert conn.call("GET", key(1)) == value(1)
