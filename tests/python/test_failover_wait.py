"""Requests that were not sent wait for a primary that is gone, or for a server that restarts."""

import signal
import time

import pytest

from harness import in_time, measured, resp, server_lines, unnamed, wait_until
from test_sentinel import Group, Watcher, Writer, group_status, ms, pools, wait_primary

#: Longer than a failover takes on a machine that is busy with other things.
WAIT = 20000
WRITERS = 4


def in_flight_only(writers, since):
    """Errors are of what was on its way at that time, one of each writer at most."""
    for writer in writers:
        errors = writer.errors()
        assert len(errors) <= 1, errors[:3]
        # A little later than the kill: it had not been sent before, but when the signal was on its way.
        assert all(begin <= since + 0.2 for begin, _, _ in errors), (errors, since)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@measured
def test_only_what_is_in_flight_fails_when_a_primary_does(place, how):
    group = Group(place)
    gateway = place.cashew(pools(group.addresses(), failover_wait=WAIT), {"worker_processes": 2})
    gateway.wait_serving()
    wait_until(lambda: group_status(gateway)["state"] == "stable", "the group is stable")
    writers = [Writer(gateway, pause=0.001, timeout=30.0) for _ in range(WRITERS)]
    watcher = Watcher(group.servers[1:])
    time.sleep(0.5)
    killed = time.monotonic()
    group.servers[0].process.signal(how)
    promoted, new = watcher.wait()
    again = [writer.wait_good(max(killed + 0.01, promoted)) for writer in writers]
    wait_primary(gateway, new.port)
    time.sleep(0.3)
    for writer in writers:
        writer.stop()
    errors = sum(len(writer.errors()) for writer in writers)
    writes = sum(len(writer.answers) for writer in writers)
    print(f"{how.name}: {errors} errors of {writes} writes; promoted after {ms(promoted - killed)}, "
          f"writes again {ms(max(again) - promoted)} after that")
    in_flight_only(writers, killed)


def test_transactions_and_calls_that_begin_meanwhile_wait_for_the_new_primary(place):
    group = Group(place)
    gateway = place.cashew(pools(group.addresses(), failover_wait=WAIT), {"worker_processes": 2})
    gateway.wait_serving()
    wait_until(lambda: group_status(gateway)["state"] == "stable", "the group is stable")
    gateway.call("SET", "counter", "41")
    group.servers[0].wait_replicated(2)
    group.servers[0].process.kill()
    # Each by a client of its own, when nobody knows yet of another primary.
    transaction, watcher, caller = (gateway.connect(timeout=30.0) for _ in range(3))
    with transaction, watcher, caller:
        watcher.send(resp("WATCH", "counter") + resp("MULTI") + resp("INCR", "counter")
                     + resp("EXEC"))
        caller.send(resp("BLPOP", "list", "0"))
        transaction.send(resp("MULTI") + resp("SET", "a", "1") + resp("GET", "a") + resp("EXEC"))
        answers = [transaction.reply() for _ in range(4)]
        assert answers == ["OK", "QUEUED", "QUEUED", ["OK", b"1"]], answers
        answers = [watcher.reply() for _ in range(4)]
        assert answers == ["OK", "OK", "QUEUED", [42]], answers
        assert gateway.call("LPUSH", "list", "x") == 1
        assert caller.reply() == [b"list", b"x"]
    new = next(it for it in group.servers[1:] if it.call("ROLE")[0] == b"master")
    assert new.call("GET", "counter") == b"42"


def test_a_server_that_restarts_costs_what_is_in_flight_and_nothing_else(place):
    for redis in (True, False):
        server = place.redis() if redis else place.memcached()
        request = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n" if redis else b"get a\r\n"
        miss = b"$-1\r\n" if redis else b"END\r\n"
        options = {"redis": redis, "failover_wait": WAIT, "servers": server_lines([server], ["one"])}
        gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
        with gateway.connect() as conn:
            conn.send(request)
            conn.expect(miss)
            server.stop()
            conn.send(request)
            conn.expect_silence(0.5)
            # What comes behind it does not overtake it.
            conn.send(request * 2)
            server.start()
            conn.expect(miss * 3)
        gateway.stop()
        server.stop()


def test_what_waits_in_vain_fails_when_its_time_is_up(place):
    server = place.redis()
    options = {"redis": True, "failover_wait": 700, "servers": server_lines([server], ["one"])}
    gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.call("GET", "a")
        server.stop()
        begin = time.monotonic()
        assert unnamed(conn.error("GET", "a")) == "ERR Connection refused"
        seconds = time.monotonic() - begin
        assert seconds > 0.6
        in_time(seconds, 2.0, "until the error")
