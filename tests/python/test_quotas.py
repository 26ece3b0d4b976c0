"""What users may use, over all workers: requests and bytes per second, connections, requests in flight."""

import threading
import time
import urllib.request

import pytest

from harness import resp, server_lines, wait_until
from test_users import binary_call, login, pool, users

RULES = "on >p ~* &* +@all"
SECONDS = 4


def limited(**limits):
    return users({"ann": {"rules": RULES, **limits}, "bob": RULES})


def gateway_of(place, workers=2, **limits):
    server = place.redis()
    options = {"users": limited(**limits), "server_connections": 2}
    return place.cashew({"alpha": pool([server], **options)}, {"worker_processes": workers})


def is_taken(conn, *words):
    """Whether a request that is asked now is answered without an error."""
    conn.send(resp(*words))
    return not conn.read_line().startswith(b"-")


def replies(conn, count):
    """How many of so many replies are no errors, and the errors."""
    good, errors = 0, set()
    for _ in range(count):
        line = conn.read_line()
        if line[:1] == b"-":
            errors.add(line.decode())
        else:
            good += 1
    return good, errors


def ask_for(conns, pipelines, seconds, request):
    """How many requests are answered in that time; each client pipelines as many as is said for it."""
    passed, failures = [0] * len(conns), set()
    start = time.monotonic()

    def ask(at):
        while time.monotonic() < start + seconds:
            conns[at].send(request * pipelines[at])
            good, errors = replies(conns[at], pipelines[at])
            passed[at] += good
            failures.update(errors)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(conns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(passed), time.monotonic() - start, failures


def status_of(gateway, user="ann"):
    """As `cashew status` has it: requests, bytes, refused, delayed, connections, in flight."""
    for line in gateway.order("status").stdout.splitlines():
        words = line.split()
        if words[:2] == ["alpha", user]:
            return dict(zip(["requests", "bytes", "refused", "delayed", "connections", "in_flight"],
                            map(int, words[2:])))
    raise AssertionError(gateway.order("status").stdout)


@pytest.mark.parametrize("over", ["error", "delay"])
def test_requests_per_second_over_all_workers(place, over):
    gateway = gateway_of(place, requests_per_second=1000, over_limit=over)
    conns = [login(gateway, "ann", "p") for _ in range(8)]
    # Few ask much, many ask little; all together ask for more than they may.
    pipelines = [40, 40, 8, 1, 1, 1, 1, 1]
    ping = resp("GET", "a")
    ask_for(conns, pipelines, 0.5, ping)
    passed, seconds, errors = ask_for(conns, pipelines, SECONDS, ping)
    # What was asked when time was over belongs to the time after that, where it waits.
    assert passed / seconds == pytest.approx(1000, rel=0.02), f"{passed} in {seconds} s"
    text = "-ERR quota of user 'ann' is used up: 1000 requests/s"
    assert errors == ({text} if over == "error" else set())
    status = status_of(gateway)
    assert status["connections"] == 8 and status["in_flight"] == 0
    assert (status["refused"] > 0, status["delayed"] > 0) == (over == "error", over == "delay")
    if over == "error":
        wait_until(lambda: "user 'ann' has used up a limit" in gateway.log(), "a line in the log")


def test_nobody_else_waits(place):
    gateway = gateway_of(place, workers=1, requests_per_second=10, over_limit="delay")
    with login(gateway, "ann", "p") as ann, login(gateway, "bob", "p") as bob:
        ann.send(resp("INCR", "a") * 30)
        for _ in range(200):
            start = time.monotonic()
            assert bob.call("INCR", "b") > 0
            assert time.monotonic() - start < 0.5
        start = time.monotonic()
        ann.expect(b"".join(b":%d\r\n" % (at + 1) for at in range(30)))
        assert time.monotonic() - start < 3.5


def test_a_reload_changes_limits_at_once(place):
    gateway = gateway_of(place, requests_per_second=1)
    with login(gateway, "ann", "p") as ann:
        errors = {ann.error("PING") for _ in range(3)}
        assert errors == {"ERR quota of user 'ann' is used up: 1 requests/s"}
        pools = dict(gateway.pools)
        pools["alpha"] = {**pools["alpha"], "users": limited(requests_per_second=100000)}
        gateway.configure(pools=pools)
        assert "user 'ann': requests_per_second: 1 -> 100000" in gateway.reload()
        # What was used is paid for at the old price.
        wait_until(lambda: is_taken(ann, "PING"), "room")
        time.sleep(0.2)
        ann.send(resp("PING") * 1000)
        assert replies(ann, 1000) == (1000, set())
        pools["alpha"] = {**pools["alpha"], "users": limited()}
        gateway.configure(pools=pools)
        gateway.reload()
        ann.send(resp("PING") * 1000)
        assert replies(ann, 1000) == (1000, set())
        assert "alpha  ann" not in gateway.order("status").stdout


def test_bytes_per_second(place):
    gateway = gateway_of(place, bytes_per_second=200000)
    with login(gateway, "ann", "p") as ann, login(gateway, "bob", "p") as bob:
        # One large reply is let through, and paid for afterwards.
        assert bob.call("SET", "a", "x" * 100000) == "OK"
        assert len(ann.call("GET", "a")) == 100000
        assert ann.error("PING") == "ERR quota of user 'ann' is used up: 200000 bytes/s"
        start = time.monotonic()
        wait_until(lambda: is_taken(ann, "PING"), "room")
        assert 0.2 < time.monotonic() - start < 0.6
        # Requests count as well.
        wait_until(lambda: is_taken(ann, "SET", "b", "x" * 400000), "room")
        assert ann.error("PING").endswith("bytes/s")
        assert bob.call("PING") == "PONG"


def test_connections(place):
    gateway = gateway_of(place, connections_max=2)
    text = "ERR quota of user 'ann' is used up: 2 connections"
    with login(gateway, "ann", "p") as first, login(gateway, "bob", "p") as other:
        second = login(gateway, "ann", "p")
        assert other.error("AUTH", "ann", "p") == text
        assert other.call("ACL", "WHOAMI") == b"bob"
        assert other.error("HELLO", "3", "AUTH", "ann", "p") == text
        # Who is it already may say so again.
        assert first.call("AUTH", "ann", "p") == "OK"
        second.close()
        wait_until(lambda: is_taken(other, "AUTH", "ann", "p"), "a place")
        assert other.call("AUTH", "bob", "p") == "OK"
        with login(gateway, "ann", "p"):
            assert status_of(gateway)["connections"] == 2
            assert gateway.connect().error("AUTH", "ann", "p") == text


@pytest.mark.parametrize("over", ["error", "delay"])
def test_requests_in_flight(place, over):
    gateway = gateway_of(place, in_flight_max=2, over_limit=over)
    with login(gateway, "ann", "p") as one, login(gateway, "ann", "p") as two, login(gateway, "ann", "p") as three, \
            login(gateway, "bob", "p") as bob:
        one.send(resp("BLPOP", "a", "0"))
        two.send(resp("BLPOP", "b", "0"))
        wait_until(lambda: status_of(gateway)["in_flight"] == 2, "both")
        if over == "error":
            assert three.error("PING") == "ERR quota of user 'ann' is used up: 2 requests in flight"
        else:
            three.send(resp("PING"))
            three.expect_silence(0.3)
        assert bob.call("RPUSH", "a", "1") == 1
        one.expect(b"*2\r\n$1\r\na\r\n$1\r\n1\r\n")
        if over == "error":
            wait_until(lambda: is_taken(three, "PING"), "room")
        else:
            three.expect(b"+PONG\r\n")
        # Who leaves has nothing in flight.
        two.close()
        wait_until(lambda: status_of(gateway)["in_flight"] == 0, "nothing")


def test_transactions_end(place):
    gateway = gateway_of(place, requests_per_second=1)
    with login(gateway, "ann", "p") as ann:
        ann.send(resp("MULTI") + resp("SET", "a", "1") + resp("EXEC") + resp("DISCARD"))
        assert ann.read_line() in (b"+OK", b"-ERR quota of user 'ann' is used up: 1 requests/s")
        lines = [ann.read_line() for _ in range(3)]
        assert lines[0].startswith(b"-ERR quota of user 'ann'")
        assert lines[1][:4] in (b"-EXE", b"-ERR")


def test_memcached(place):
    rules = {"ann": {"rules": "on >p ~* +@all", "requests_per_second": 2}, "bob": "on >p ~* +@all"}
    gateway = place.cashew({"alpha": {"servers": server_lines([place.memcached()]), "users": users(rules)}},
                           {"worker_processes": 1})
    text = b"quota of user 'ann' is used up: 2 requests/s"
    with gateway.connect() as conn, gateway.connect() as other:
        conn.send(b"set x 0 0 5\r\nann p\r\n" + b"get a\r\n" * 3)
        conn.expect(b"STORED\r\n")
        lines = conn.read_until(text + b"\r\n")
        assert lines.endswith(b"SERVER_ERROR " + text + b"\r\n")
        other.send(b"set x 0 0 5\r\nbob p\r\n" + b"get a\r\n" * 100)
        other.expect(b"STORED\r\n" + b"END\r\n" * 100)
    with gateway.connect() as conn:
        assert binary_call(conn, 0x21, b"PLAIN", b"\0ann\0p") == (0, b"Authenticated")
        answers = {binary_call(conn, 0x00, b"a") for _ in range(5)}
        assert (0x86, text) in answers


def test_metrics(place):
    gateway = gateway_of(place, requests_per_second=100000)
    with login(gateway, "ann", "p") as ann:
        for _ in range(10):
            ann.call("SET", "a", "1")
        # AUTH, which makes it the user, and the ten.
        wait_until(lambda: status_of(gateway)["requests"] == 11, "its requests")
        port = gateway.stats_address
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        assert 'cashew_user_connections{pool="alpha",user="ann"} 1' in text
        assert 'cashew_user_connections{pool="alpha",user="bob"}' not in text


def test_clients_keep_their_place_when_workers_change(place):
    gateway = gateway_of(place, workers=1, connections_max=6, in_flight_max=100, over_limit="delay")
    conns = [login(gateway, "ann", "p") for _ in range(6)]
    for workers in (3, 1, 2):
        gateway.configure(worker_processes=workers)
        gateway.reload()
        for conn in conns:
            assert conn.call("PING") == "PONG"
        wait_until(lambda: status_of(gateway)["connections"] == 6, "all six")
        assert gateway.connect().error("AUTH", "ann", "p").endswith("6 connections")
    for conn in conns:
        conn.close()
    wait_until(lambda: status_of(gateway)["connections"] == 0, "nobody")


def test_errors_for_want_of_room_cost_nothing(place):
    gateway = gateway_of(place, workers=1, requests_per_second=10, bytes_per_second=2000)
    with login(gateway, "ann", "p") as ann:
        # Their replies are of a hundred times the bytes of a second.
        ann.send(resp("GET", "a") * 4000)
        replies(ann, 4000)
        time.sleep(1.5)
        assert is_taken(ann, "GET", "a")
        # Whoever is over a limit may still say that it wants to hear replies.
        ann.send(resp("CLIENT", "REPLY", "OFF") + resp("GET", "a") * 100 + resp("CLIENT", "REPLY", "ON"))
        assert ann.read_line() == b"+OK"


def test_the_end_of_quiet_requests_is_always_told(place):
    server = place.memcached()
    options = {"users": limited(requests_per_second=5), "servers": server_lines([server])}
    gateway = place.cashew({"alpha": options}, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(b"set x 0 0 5\r\nann p\r\n")
        assert conn.read_line() == b"STORED"
        conn.send(b"mg a v q\r\n" * 20 + b"mn\r\n")
        lines = [conn.read_line()]
        while lines[-1] != b"MN":
            assert lines[-1].startswith(b"SERVER_ERROR quota"), lines
            lines.append(conn.read_line())
