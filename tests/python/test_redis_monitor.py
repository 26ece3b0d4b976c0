"""MONITOR over all workers: real servers, real client libraries."""

import itertools
import os
import re
import signal
import subprocess
import threading
import time

import pytest
import redis

from harness import HOST, holders, resp, server_lines, wait_until, worker_processes

PATIENCE = 30


def pool(servers, **options):
    return {"redis": True, "servers": server_lines(servers), "timeout": 5000, **options}


def gateway_of(place, workers, count=2, settings=None, **options):
    servers = [place.redis() for _ in range(count)]
    settings = {"worker_processes": workers, **(settings or {})}
    gateway = place.cashew({"alpha": pool(servers, **options)}, settings)
    gateway.wait_serving()
    return gateway


def monitor_of(place, gateway, protocol=2):
    client = redis.Redis(host=HOST, port=gateway.address, protocol=protocol, socket_timeout=PATIENCE)
    monitor = place.keep(client).monitor()
    monitor.__enter__()
    return monitor


def port_of(conn):
    return conn.socket.getsockname()[1]


def worker_of(gateway, port):
    return wait_until(
        lambda: holders(worker_processes(gateway.pid), {port}).get(port), "it is accepted"
    )


def clients_of_all(place, gateway, each=2):
    """Connections, so that every worker has some; by their workers."""
    found = {}
    for _ in range(500):
        conn = place.keep(gateway.connect("alpha"))
        assert conn.call("PING") == "PONG"
        found.setdefault(worker_of(gateway, port_of(conn)), []).append(conn)
        workers = worker_processes(gateway.pid)
        if all(len(found.get(pid, [])) >= each for pid in workers):
            return found
    raise AssertionError(f"some workers get no clients: {found.keys()}")


def ask_and_hear(monitor, conns):
    ask(conns)
    hear(monitor, conns)


def ask(conns, rounds=50):
    for number in range(rounds):
        for conn in conns:
            assert conn.call("SET", f"key:{port_of(conn)}", str(number)) == "OK"


def hear(monitor, conns, rounds=50):
    """The monitor is told of everything, in the order of each client."""
    expected = {str(port_of(conn)): list(range(rounds)) for conn in conns}
    heard = {port: [] for port in expected}
    while any(len(heard[port]) < rounds for port in expected):
        told = monitor.next_command()
        if not told["command"].startswith("SET key:"):
            continue
        _, key, number = told["command"].split(" ")
        assert (told["db"], told["client_address"]) == (0, "127.0.0.1")
        assert abs(told["time"] - time.time()) < 2 * PATIENCE
        assert key == f"key:{told['client_port']}"
        heard[told["client_port"]].append(int(number))
    assert heard == expected


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_monitor_is_told_of_the_clients_of_all_workers(place, workers, protocol):
    gateway = gateway_of(place, workers)
    found = clients_of_all(place, gateway)
    assert len(found) == workers
    conns = list(itertools.chain(*found.values()))
    monitor = monitor_of(place, gateway, protocol)
    ask_and_hear(monitor, conns)
    # A second one hears the same, wherever it is.
    others = [monitor_of(place, gateway, protocol) for _ in range(3)]
    ask_and_hear(monitor, conns)
    for hearer in others:
        hear(hearer, conns)
        hearer.__exit__()
    assert gateway.stats()["alpha"]["monitor_dropped"] == 0
    ask_and_hear(monitor, conns[:1])
    monitor.__exit__()
    assert conns[0].call("GET", f"key:{port_of(conns[0])}") == b"49"


def test_redis_cli_shows_what_others_ask(place):
    gateway = gateway_of(place, 3)
    conns = list(itertools.chain(*clients_of_all(place, gateway, each=1).values()))
    words = ["redis-cli", "-h", HOST, "-p", str(gateway.address), "MONITOR"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout.readline() == "OK\n"
            for conn in conns:
                # There is no password, which is no reason to tell of this one.
                conn.send(resp("AUTH", "me", "secret"))
                assert "WRONGPASS" in str(conn.reply())
                conn.call("SET", "a key", 'a "value"\r\n')
            for conn in conns:
                assert conn.call("MULTI") == "OK"
                assert conn.call("INCR", "counter") == "QUEUED"
                conn.call("EXEC")
            lines = [shown.stdout.readline() for _ in range(5 * len(conns))]
        finally:
            shown.kill()
    for conn in conns:
        where = f" [0 127.0.0.1:{port_of(conn)}] "
        told = [line.partition(where) for line in lines if where in line]
        assert all(re.fullmatch(r"\d+\.\d{6}", when) for when, _, _ in told)
        assert [request for _, _, request in told] == [
            '"AUTH" "(redacted)" "(redacted)"\n',
            r'"SET" "a key" "a \"value\"\r\n"' + "\n",
            '"MULTI"\n',
            '"INCR" "counter"\n',
            '"EXEC"\n',
        ]


def test_workers_that_crash_and_their_successors(place):
    gateway = gateway_of(place, 3)
    found = clients_of_all(place, gateway)
    monitor = monitor_of(place, gateway)
    home = worker_of(gateway, monitor.connection._sock.getsockname()[1])
    ask_and_hear(monitor, list(itertools.chain(*found.values())))
    victim = next(pid for pid in found if pid != home)
    os.kill(victim, signal.SIGKILL)

    def replaced():
        workers = worker_processes(gateway.pid)
        return len(workers) == 3 and victim not in workers

    wait_until(replaced, "it is replaced")
    found = clients_of_all(place, gateway)
    assert len(found) == 3 and victim not in found
    successor = next(pid for pid in found if pid not in (home, victim))
    ask_until_heard(monitor, found[successor][0])
    ask_and_hear(monitor, list(itertools.chain(*found.values())))
    # With the worker of the monitor its connection ends; nobody else notices.
    os.kill(home, signal.SIGKILL)
    with pytest.raises((redis.ConnectionError, ConnectionError)):
        while True:
            monitor.next_command()
    for pid, conns in found.items():
        for conn in conns:
            if pid != home:
                assert conn.call("SET", "k", "v") == "OK"
    again = monitor_of(place, gateway)
    ask_until_heard(again, found[successor][0])


def ask_until_heard(monitor, conn):
    """A worker that has begun a moment ago may not know yet that somebody listens."""
    stop = threading.Event()

    def ask():
        while not stop.wait(0.01):
            assert conn.call("ECHO", "here") == b"here"

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        while monitor.next_command()["client_port"] != str(port_of(conn)):
            pass
    finally:
        stop.set()
        asking.join(PATIENCE)


def test_reloads_and_other_numbers_of_workers(place):
    servers = [place.redis() for _ in range(3)]
    gateway = place.cashew({"alpha": pool(servers[:2])}, {"worker_processes": 3})
    gateway.wait_serving()
    found = clients_of_all(place, gateway)
    conns = list(itertools.chain(*found.values()))
    monitor = monitor_of(place, gateway)
    ask_and_hear(monitor, conns)
    beta = pool(servers[:1])
    for pools in ({"alpha": pool(servers)}, {"beta": beta, "alpha": pool(servers[:1])}):
        gateway.configure(pools)
        gateway.reload()
        ask_and_hear(monitor, conns)
    # What clients of another pool ask is nobody's business here.
    with gateway.connect("beta") as other:
        other.call("SET", "k", "v")
    gateway.configure(worker_processes=4)
    gateway.reload()
    wait_until(lambda: len(worker_processes(gateway.pid)) == 4, "there is another worker")
    found = clients_of_all(place, gateway, each=1)
    assert len(found) == 4
    for mine in found.values():
        ask_until_heard(monitor, mine[0])
    ask_and_hear(monitor, [mine[0] for mine in found.values()])


def test_workers_of_an_upgrade_tell_monitors_that_are_left(place):
    """A monitor stays with its worker as long as `worker_shutdown_timeout` lets it."""
    gateway = gateway_of(place, 2, settings={"worker_shutdown_timeout": 60})
    monitor = monitor_of(place, gateway)
    before = set(worker_processes(gateway.pid))
    done = gateway.order("upgrade")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{gateway.log()[-2000:]}"
    for _ in range(4):
        conn = place.keep(gateway.connect("alpha"))
        assert worker_of(gateway, port_of(conn)) not in before
        ask_until_heard(monitor, conn)
    ask_and_hear(monitor, [conn])


def test_what_is_too_much_is_left_out_and_counted(place):
    gateway = gateway_of(place, 3)
    found = clients_of_all(place, gateway)
    conns = list(itertools.chain(*found.values()))
    monitor = place.keep(gateway.connect())
    assert monitor.call("MONITOR") == "OK"
    counts = {"told": 0, "skipped": 0}

    def listen():
        while line := monitor.read_line():
            skipped = re.search(rb'\[0 cashew:0\] "cashew" "skipped" "(\d+)"$', line)
            if skipped:
                counts["skipped"] += int(skipped[1])
            elif b'"SET"' in line:
                counts["told"] += 1
            elif b'"the end"' in line:
                return

    listening = threading.Thread(target=listen)
    listening.start()
    request = resp("SET", "key", "a value of some length")
    batch, asked = 2000, 0
    deadline = time.monotonic() + PATIENCE
    while gateway.stats()["alpha"]["monitor_dropped"] == 0:
        assert time.monotonic() < deadline, "nothing is too much"
        for conn in conns:
            conn.send(request * batch)
        for conn in conns:
            for _ in range(batch):
                assert conn.reply() == "OK"
        asked += batch * len(conns)
    wait_until(lambda: counts["told"] + counts["skipped"] == asked, f"{asked}: {counts}", PATIENCE)
    assert counts["told"] > 0
    assert gateway.stats()["alpha"]["monitor_dropped"] == counts["skipped"]
    assert gateway.stats()["alpha"]["client_err"] == 0
    conns[0].call("ECHO", "the end")
    listening.join(PATIENCE)
    assert not listening.is_alive()


def test_a_monitor_that_does_not_read_is_closed(place):
    gateway = gateway_of(place, 1, pubsub_output_max="1mb")
    conn = place.keep(gateway.connect("alpha"))
    monitor = place.keep(gateway.connect())
    assert monitor.call("MONITOR") == "OK"
    request = resp("GET", "k" * 1000)

    def closed():
        conn.send(request * 500)
        for _ in range(500):
            assert conn.reply() is None
        return gateway.stats()["alpha"]["clients_overflowed"] == 1

    wait_until(closed, "it is closed", PATIENCE)
    assert conn.call("PING") == "PONG"


# ------------------------------------------------------------------------------ in Redis's order


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("words, answer", [(("QUIT",), b"+OK"), (("RESET",), b"+RESET")])
def test_nothing_follows_the_end_of_a_monitor(place, workers, words, answer):
    gateway = gateway_of(place, workers)
    conns = list(itertools.chain(*clients_of_all(place, gateway, 1).values()))
    for number in range(5):
        with gateway.connect("alpha") as monitor:
            assert monitor.call("MONITOR") == "OK"
            for conn in conns:
                conn.call("SET", "asked", f"before {number}")
            # What others ask meanwhile is for nobody, or comes before.
            batch = resp("GET", "asked") * 50
            for conn in conns:
                conn.send(batch)
            # Other workers' lines take as long to come as the machine is busy.
            told = []
            while sum(f"before {number}".encode() in line for line in told) < len(conns):
                told.append(monitor.read_line())
            monitor.send(resp("PING") + resp(*words))
            while not told or told[-1] != answer:
                told.append(monitor.read_line())
            before = [line for line in told if f"before {number}".encode() in line]
            assert len(before) == len(conns) and b"+PONG" in told
            if words == ("QUIT",):
                assert monitor.read_to_end() == b""
            else:
                assert monitor.call("PING") == "PONG"
                monitor.expect_silence(0.1)
            for conn in conns:
                for _ in range(50):
                    conn.reply()


def test_lines_of_several_workers_are_in_order(place):
    """Two clients of different workers ask by turns: each asks when the other has been answered."""
    gateway = gateway_of(place, 3)
    conns = [clients[0] for clients in clients_of_all(place, gateway, 1).values()]
    with gateway.connect("alpha") as monitor:
        assert monitor.call("MONITOR") == "OK"
        count = 600
        for number in range(count):
            conns[number % len(conns)].call("SET", "turn", number)
        lines = []
        while len(lines) < count:
            line = monitor.read_line()
            if b'"turn"' in line:
                lines.append(line)
    times = [float(line.split(b" ")[0]) for line in lines]
    numbers = [int(line.rsplit(b'"', 2)[1]) for line in lines]
    assert sorted(numbers) == list(range(count))
    # A worker that the machine lets wait for longer than lines are held comes too late, rarely.
    for told in (times, numbers):
        late = sum(now < latest for now, latest in zip(told, itertools.accumulate(told, max)))
        assert late <= count // 10, f"{late} of {count} lines come behind later ones"
