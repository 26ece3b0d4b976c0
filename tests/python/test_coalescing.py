"""Equal reads that leave together are sent once: `coalesce_reads`."""

import threading
import time

import pytest

from harness import resp, server_lines, wait_until

CLIENTS = 16


def pool_of(gateway):
    return gateway.stats()["alpha"]


def crowd(gateway, ask, seconds=2):
    """As many clients, each with a connection; returns what they have seen that was wrong, and how often they asked."""
    wrong, counts, stopped = [], [0] * CLIENTS, threading.Event()

    def run(number):
        with gateway.connect(timeout=60) as conn:
            while not stopped.is_set():
                error = ask(conn, number)
                if error:
                    wrong.append(error)
                counts[number] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stopped.set()
    for thread in threads:
        thread.join()
    return wrong, sum(counts)


@pytest.mark.parametrize("options", [{}, {"failover_wait": 1000, "retry_reads": True}, {"slow_log": 1, "hot_keys": True}])
def test_many_read_one_key_and_the_server_is_asked_less(place, options):
    server = place.redis()
    gateway = place.cashew({"alpha": {
        "redis": True, "preconnect": True, "coalesce_reads": True, "servers": server_lines([server]), **options,
    }}, {"batch_window_max": 200})
    gateway.call("SET", "hot", "x" * 1000)
    window = 8

    def ask(conn, _):
        conn.send(resp("GET", "hot") * window)
        replies = [conn.reply() for _ in range(window)]
        return [it for it in replies if it != b"x" * 1000]

    wrong, asked = crowd(gateway, ask)
    assert wrong == []
    wait_until(lambda: pool_of(gateway)["reads_coalesced"] > 0, "some are shared")
    saved = pool_of(gateway)["reads_coalesced"]
    assert server.stat("get") + saved == asked * window
    assert saved > asked, "a client shares with itself at least"
    assert "reads that got the reply to an equal one" in gateway.order("status").stdout


@pytest.mark.parametrize("protocol", ["redis", "memcached"])
def test_each_reads_its_own_writes_and_nothing_older_than_it_has_read(place, protocol):
    """One key that all write numbers to, by a counter of the server: what is read grows for each client."""
    server = place.redis() if protocol == "redis" else place.memcached()
    gateway = place.cashew({"alpha": {
        "redis": protocol == "redis", "preconnect": True, "coalesce_reads": True, "servers": server_lines([server]),
    }}, {"batch_window_max": 200})
    known = [0] * CLIENTS
    if protocol == "redis":
        gateway.call("SET", "n", "0")
    else:
        with gateway.connect() as conn:
            conn.send(b"set n 0 0 1\r\n0\r\n")
            assert conn.read_line() == b"STORED"

    def read(conn):
        if protocol == "redis":
            return int(conn.reply())
        head, data, end = conn.read_line(), conn.read_line(), conn.read_line()
        assert head.startswith(b"VALUE n ") and end == b"END", (head, end)
        return int(data)

    def ask(conn, number):
        if protocol == "redis":
            conn.send(resp("GET", "n") + resp("INCR", "n") + resp("GET", "n") * 3)
        else:
            conn.send(b"get n\r\nincr n 1\r\n" + b"get n\r\n" * 3)
        seen = [read(conn)]
        seen.append(int(conn.reply()) if protocol == "redis" else int(conn.read_line()))
        seen += [read(conn) for _ in range(3)]
        before, known[number] = known[number], seen[-1]
        return None if [before, *seen] == sorted([before, *seen]) and seen[0] < seen[1] else (before, seen)

    wrong, _ = crowd(gateway, ask)
    assert wrong == []
    assert pool_of(gateway)["reads_coalesced"] > 0


def test_a_large_value_reaches_all_and_clients_come_and_go(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {
        "redis": True, "preconnect": True, "coalesce_reads": True, "servers": server_lines([server]),
    }})
    values = {f"k{size}": b"v" * size for size in (10, 20_000, 200_000, 1_500_000)}
    for key, value in values.items():
        server.call("SET", key, value)
    keys = list(values)
    round_of = [0] * CLIENTS

    def ask(conn, number):
        key = keys[round_of[number] % len(keys)]
        round_of[number] += 1
        with gateway.connect(timeout=60) as leaving:
            # Who asks and goes.
            leaving.send(resp("GET", key))
        conn.send(resp("GET", key) * 2)
        return None if [conn.reply(), conn.reply()] == [values[key]] * 2 else key

    wrong, _ = crowd(gateway, ask)
    assert wrong == []


def test_a_reload_turns_it_on_and_off(place):
    server = place.redis()
    config = {"alpha": {"redis": True, "preconnect": True, "servers": server_lines([server])}}
    gateway = place.cashew(config)
    gateway.call("SET", "hot", "x")

    def shared():
        before = pool_of(gateway)["reads_coalesced"]
        with gateway.connect() as conn:
            conn.send(resp("GET", "hot") * 10)
            assert [conn.reply() for _ in range(10)] == [b"x"] * 10
        return pool_of(gateway)["reads_coalesced"] - before

    assert shared() == 0
    for is_on in [True, False]:
        gateway.configure({"alpha": {**config["alpha"], "coalesce_reads": is_on}})
        gateway.reload()
        wait_until(lambda: (shared() > 0) == is_on, "the option counts")
