"""Workers that die or hang: only their own connections end, and others take their place within a
second."""

import contextlib
import os
import select
import signal
import subprocess
import threading
import time

import pytest

from harness import (
    alive,
    children,
    connect,
    holders,
    resp,
    server_lines,
    wait_until,
    worker_processes,
)
from load import Load, Record, blocks, bulk, fill, key, value

#: Longest that a worker may be missing. The aim is a second; a machine that tests is busy, and of
#: several that are replaced one at least shows it.
REPLACED = 2.5


def pool(*servers, **options):
    return {"redis": True, "servers": server_lines(servers), **options}


def start(place, workers, settings=None, **options):
    server = place.redis()
    fill(server)
    # Sessions stay where they are, so that it is known whose they are.
    gateway = place.cashew({"alpha": pool(server, **options)},
                           {"worker_processes": workers, "rebalance": "false", **(settings or {})})
    gateway.wait_serving()
    return gateway


def replaced(gateway, victims, count, since):
    """Waits until `count` workers without the victims accept clients; returns how long it took."""
    def done():
        now = gateway.workers()
        return len(now) == count and not set(victims) & set(now)

    wait_until(done, f"other workers than {victims}\n{gateway.log()[-1500:]}", pause=0.01)
    return time.monotonic() - since


def owners(gateway, load):
    """The worker of each client, once every client is served."""
    load.turn()
    names = load.names()
    found = holders(worker_processes(gateway.pid), names)
    assert set(found) == names
    return found


def kill(gateway, load, victims, number=signal.SIGKILL):
    """Ends workers; returns the clients that go with them."""
    mine = {port for port, pid in owners(gateway, load).items() if pid in victims}
    del load.lost[:]
    for pid in victims:
        os.kill(pid, number)
    return mine


def test_workers_killed_in_a_loop(place):
    gateway = start(place, 3)
    with Load(gateway.address, count=24, may_lose=True) as load:
        times = []
        # Turn by turn, so that none of them dies so often that its return is put off for long.
        for number in range(9):
            workers = worker_processes(gateway.pid)
            victim = workers[0]
            mine = kill(gateway, load, [victim])
            times.append(replaced(gateway, [victim], 3, time.monotonic()))
            load.turn()
            assert set(load.lost) == mine
            assert set(workers[1:]) <= set(worker_processes(gateway.pid))
        print("replaced within", sorted(round(each, 3) for each in times))
        assert min(times) < REPLACED
    assert gateway.stats()["alpha"]["forward_error"] == 0


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGALRM], ids=["ABRT", "ALRM"])
def test_a_worker_that_ends_otherwise(place, number):
    gateway = start(place, 2)
    with Load(gateway.address, may_lose=True) as load:
        victim = worker_processes(gateway.pid)[0]
        mine = kill(gateway, load, [victim], number)
        replaced(gateway, [victim], 2, time.monotonic())
        load.turn()
        assert set(load.lost) == mine


def test_signals_to_all_processes_are_the_masters(place):
    """`pkill -HUP cashew`, and what a service manager sends to a unit."""
    gateway = start(place, 2)
    family = children(gateway.pid)
    with Load(gateway.address) as load:
        for number in (signal.SIGHUP, signal.SIGUSR1):
            for pid in (*family, gateway.pid):
                os.kill(pid, number)
            load.turn()
        wait_until(lambda: "configuration has not changed" in gateway.log(), "the master has heard it")
        load.turn()
        assert children(gateway.pid) == family
    with gateway.connect() as conn:
        conn.call("SET", "k", "v")
        for pid in (*family, gateway.pid):
            os.kill(pid, signal.SIGTERM)
        # It is at rest, so it ends; nothing ended before the master said so.
        assert conn.read_to_end() == b""
    wait_until(lambda: not gateway.process.running(), "it ends", 30)
    assert gateway.process.stop() == 0
    assert not any("died" in line or "killed by" in line for line in gateway.log().splitlines())


def test_all_workers_killed_at_once(place):
    """Who is waiting to be accepted is served by those that come."""
    gateway = start(place, 2)
    with Load(gateway.address, may_lose=True) as load, contextlib.ExitStack() as stack:
        workers = worker_processes(gateway.pid)
        kill(gateway, load, workers)
        # Who connects earlier may still be accepted by one of them.
        wait_until(lambda: not any(map(alive, workers)), "they are dead", pause=0.001)
        waiting = [stack.enter_context(gateway.connect()) for _ in range(50)]
        for number, conn in enumerate(waiting):
            conn.send(resp("GET", key(number)))
        for number, conn in enumerate(waiting):
            assert conn.reply() == value(number)
        replaced(gateway, workers, 2, time.monotonic())
        load.turn()


def test_a_stopped_worker_is_replaced(place):
    gateway = start(place, 2)
    with Load(gateway.address, may_lose=True) as load:
        times = []
        while len(times) < 2 or (min(times) > REPLACED and len(times) < 8):
            victim = worker_processes(gateway.pid)[0]
            mine = kill(gateway, load, [victim], signal.SIGSTOP)
            times.append(replaced(gateway, [victim], 2, time.monotonic()))
            load.turn()
            assert set(load.lost) == mine
        print("replaced within", sorted(round(each, 3) for each in times))
        assert min(times) < REPLACED


def test_a_worker_that_much_is_asked_of_at_once_is_not_taken_for_hung(place):
    """What takes a while each, all of it in one turn of the worker's loop."""
    gateway = place.cashew({"alpha": pool(place.redis(), place.redis())},
                           {"worker_processes": 1, "max_openfiles": 4096})
    gateway.wait_serving()
    [worker] = gateway.workers()
    many = resp("DEL", *[f"key:{n}" for n in range(300_000)])
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(gateway.connect(timeout=60)) for _ in range(1500)]
        askers, deleters = clients[:300], clients[-12:]
        for client in deleters:
            client.send(many[:-1])
        time.sleep(0.5)
        for client in deleters:
            client.send(many[-1:])
        for client in deleters:
            client.expect(b":0\r\n")
        for client in askers:
            client.send(resp("CLIENT", "LIST"))
        time.sleep(0.1)
        assert clients[-1].call("PING") == "PONG"
        for client in askers:
            # Whoever waits too long is told so.
            reply = client.raw_reply(60)
            assert b"id=" in reply or b"in time" in reply, reply[:200]
    assert gateway.workers() == [worker], gateway.log()[-1500:]


def test_a_crash_loop_leaves_the_others_in_peace(place):
    """A worker that dies again and again comes back more and more slowly, and it is said."""
    gateway = start(place, 2)
    kept = worker_processes(gateway.pid)[1]
    with Load(gateway.address, may_lose=True) as load, contextlib.ExitStack() as stack:
        mine = [port for port, pid in owners(gateway, load).items() if pid == kept]
        dead, begin = set(), time.monotonic()
        while time.monotonic() < begin + 3 or len(dead) < 3:
            for pid in set(worker_processes(gateway.pid)) - {kept}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    dead.add(pid)
            assert set(mine) <= load.names()
            time.sleep(0.02)
        assert len(dead) <= 20, dead
        assert "restart" in gateway.log()
        # Newcomers are served by the one that is left, not queued for the one that is not there.
        for number in range(20):
            conn = stack.enter_context(gateway.connect())
            assert conn.call("GET", key(number)) == value(number)
        assert set(mine) <= load.names()
        assert worker_processes(gateway.pid)[0] == kept
        load.failures.clear()


@pytest.mark.parametrize("end", ["continue", "kill"])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_queue_that_filled_while_nobody_accepted_is_served(place, kind, end):
    options = {"listen": str(place.directory / "alpha.sock")} if kind == "unix" else {}
    gateway = start(place, 2, {"worker_heartbeat_timeout": 0}, **options)
    workers = worker_processes(gateway.pid)
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        try:
            waiting = [stack.enter_context(gateway.connect()) for _ in range(200)]
            for number, conn in enumerate(waiting):
                conn.send(resp("GET", key(number)))
            time.sleep(1.2)
            assert worker_processes(gateway.pid) == workers, "nobody looks at the heartbeat"
            for conn in waiting:
                conn.expect_silence(0)
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT if end == "continue" else signal.SIGKILL)
        for number, conn in enumerate(waiting):
            assert conn.reply() == value(number)
            assert conn.call("GET", key(number)) == value(number)


def test_the_next_master_takes_the_same_ports(place):
    gateway = start(place, 2)
    with contextlib.ExitStack() as stack:
        conn = stack.enter_context(gateway.connect())
        assert conn.call("GET", key(1)) == value(1)
        workers = worker_processes(gateway.pid)
        gateway.process.signal(signal.SIGKILL)
        gateway.process.child.wait(20)

        def started():
            try:
                gateway.process.start()
                return True
            except AssertionError:
                return False

        wait_until(started, f"another instance\n{gateway.log()[-1500:]}")
        assert gateway.call("GET", key(2)) == value(2)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers),
                   "the old workers end")


# ------------------------------------------------------------------------------ while things change


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["KILL", "STOP"])
def test_a_worker_that_dies_during_a_reload(place, number):
    """Then it is done for all workers or for none, and the command says which."""
    servers = place.redis(), place.redis()
    fill(*servers)
    gateway = place.cashew({"alpha": pool(servers[0])},
                           {"worker_processes": 3, "rebalance": "false"})
    gateway.wait_serving()
    records = [Record(server) for server in servers]
    rings, current = [0], 0
    with Load(gateway.address, count=24, may_lose=True) as load:
        for turn in range(6 if number == signal.SIGKILL else 2):
            load.turn()
            victim = worker_processes(gateway.pid)[0]
            before = gateway.epoch()
            gateway.configure({"alpha": pool(servers[1 - current])})
            words = [gateway.binary, "reload", "-c", str(gateway.config_path)]
            order = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True)
            # Now early in it, now late.
            time.sleep(0.004 * turn)
            os.kill(victim, number)
            said, _ = order.communicate(timeout=60)
            replaced(gateway, [victim], 3, time.monotonic())
            load.turn()
            if order.returncode == 0:
                current = 1 - current
                rings.append(current)
                assert gateway.epoch() > before
            else:
                assert order.returncode == 1 and said.strip()
                assert gateway.epoch() == before
        gateway.configure({"alpha": pool(servers[1 - current])})
        gateway.reload()
        rings.append(1 - current)
        load.turn()
    found = blocks(*(record.stop() for record in records))
    assert [block[0] for block in found] == rings


def test_a_worker_that_dies_while_its_sessions_leave(place):
    """Sessions that it has handed over already are not its own any more."""
    server = place.redis()
    fill(server)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 4, "rebalance": "false"})
    gateway.wait_serving()
    with Load(gateway.address, count=40, may_lose=True) as load:
        held = owners(gateway, load)
        workers = worker_processes(gateway.pid)
        gateway.configure(worker_processes=1)
        order = threading.Thread(target=gateway.reload)
        order.start()
        # Before that its death would be a reason to refuse the reload.
        wait_until(lambda: " retires, within" in gateway.log(), "workers retire", pause=0.001)
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[-1], signal.SIGKILL)
        order.join(60)
        wait_until(lambda: len(worker_processes(gateway.pid)) == 1, "one worker")
        load.turn()
        assert set(load.lost) <= {port for port, pid in held.items() if pid == workers[-1]}
        assert gateway.call("GET", key(1)) == value(1)


# ------------------------------------------------------------------------------- how many clients


REFUSED = b"-ERR max number of clients reached\r\n"


def connect_many(address, count, threads=4):
    """As many connections as that, made at once."""
    made, errors = [], []

    def some():
        for _ in range(count // threads):
            try:
                made.append(connect(address, 20.0))
            except OSError as error:
                errors.append(error)

    running = [threading.Thread(target=some) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not errors, errors
    return made


def sort_out(gateway, made, before, refused_before):
    """Those that were accepted beside those before; the others were told so, and are closed."""
    def refused():
        numbers = gateway.stats()["alpha"]
        refused = numbers["clients_refused"] - refused_before
        is_settled = refused + numbers["client_connections"] == len(made) + before
        return is_settled and refused

    poll = select.poll()
    for client in made:
        poll.register(client, select.POLLIN)

    def told():
        return {descriptor for descriptor, _ in poll.poll(0)}

    count = wait_until(refused, "everybody is accepted or refused")
    wait_until(lambda: len(told()) == count, "who is refused is told so")
    is_told = told()
    accepted = []
    for client in made:
        client.settimeout(10.0)
        if client.fileno() in is_told:
            with client:
                assert client.recv(1000) == REFUSED
                assert client.recv(1000) == b""
        else:
            accepted.append(client)
    for client in accepted:
        client.sendall(resp("GET", key(1)))
    for client in accepted:
        assert client.recv(1000) == bulk(value(1))
    return accepted


def test_client_connections_is_exact_in_a_storm_and_after_deaths(place):
    limit = 40
    gateway = start(place, 4, client_connections=limit)

    def connections():
        return gateway.stats()["alpha"]["client_connections"]

    gateway.wait_empty()
    accepted = []
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            refused = gateway.stats()["alpha"]["clients_refused"]
            made = connect_many(gateway.address, 120)
            for client in made:
                stack.enter_context(client)
            accepted += sort_out(gateway, made, len(accepted), refused)
            assert len(accepted) == limit
            assert connections() == limit
            ports = {client.getsockname()[1]: client for client in accepted}
            held = holders(worker_processes(gateway.pid), ports)
            victim = held[accepted[0].getsockname()[1]]
            os.kill(victim, signal.SIGKILL)
            for port, pid in held.items():
                if pid == victim:
                    accepted.remove(ports[port])
                    ports[port].close()
            replaced(gateway, [victim], 4, time.monotonic())
            wait_until(lambda: connections() == len(accepted), "the dead do not count")
        for client in accepted:
            client.sendall(resp("GET", key(2)))
            assert client.recv(1000) == bulk(value(2))
    wait_until(lambda: connections() == 0, "nobody is left")
