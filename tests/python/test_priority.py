"""Users of low priority, who wait while others ask, and of high priority, for whom others wait; and users with a read policy of their own."""

import signal
import threading
import time

import pytest

from harness import resp, server_lines, wait_until
from test_quotas import status_of
from test_users import binary_call, login, pool, users

RULES = "on >p ~* &* +@all"
#: As documented: at each worker.
LOW_IN_FLIGHT = 8
NORMAL_IN_FLIGHT = 32


def gateway_of(place, workers=1, server=None, **options):
    server = server or place.redis()
    rules = {"ann": {"rules": RULES, "priority": "low", **options}, "bob": RULES}
    gateway = place.cashew({"alpha": pool([server], users=users(rules), server_connections=2)},
                           {"worker_processes": workers})
    return gateway, server


class Asking:
    """Clients of which one asks something every millisecond, whether it is answered or not."""

    def __init__(self, *conns):
        self.conns, self.asked, self.over = conns, 0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.is_set():
            self.conns[self.asked % len(self.conns)].send(resp("GET", "b"))
            self.asked += 1
            time.sleep(0.001)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("over", ["error", "delay"])
def test_few_requests_are_on_their_way_while_others_ask(place, workers, over):
    gateway, server = gateway_of(place, workers, over_limit=over, requests_per_second=1_000_000)
    lows = [login(gateway, "ann", "p") for _ in range(6)]
    bobs = [login(gateway, "bob", "p") for _ in range(20)]
    bobs[0].call("SET", "b", "1")
    server.process.signal(signal.SIGSTOP)
    try:
        with Asking(*bobs) as asking:
            wait_until(lambda: asking.asked > 50, "somebody asks")
            for low in lows:
                low.send(resp("INCR", "n") * 300)
            wait_until(lambda: status_of(gateway)["delayed"] > 0, "some wait")
            for _ in range(10):
                assert status_of(gateway)["in_flight"] <= LOW_IN_FLIGHT * workers
                time.sleep(0.02)
    finally:
        server.process.signal(signal.SIGCONT)
    for low in lows:
        assert [type(low.reply()) for _ in range(300)] == [int] * 300
    for number in range(asking.asked):
        assert bobs[number % len(bobs)].reply() == b"1"
    assert server.call("GET", "n") == b"1800"
    for conn in lows + bobs:
        conn.close()
    wait_until(lambda: status_of(gateway)["in_flight"] == 0, "nothing")


def test_who_is_alone_does_not_wait(place):
    gateway, server = gateway_of(place, workers=2)
    lows = [login(gateway, "ann", "p") for _ in range(4)]
    for _ in range(5):
        for low in lows:
            low.send(b"".join(resp(*words) for words in (["SET", "a", "x"], ["PING"], ["MGET", "a", "b"], ["MULTI"], ["GET", "a"],
                                                         ["EXEC"], ["NOSUCH"], ["ECHO", "x"])) * 50)
        for low in lows:
            for _ in range(400):
                low.reply()
    # Until it is known that nobody else is there.
    assert status_of(gateway)["delayed"] < 400
    for low in lows:
        low.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_others_have_few_on_their_way_while_a_user_of_high_priority_asks(place, workers):
    server = place.redis()
    rules = {"ann": {"rules": RULES, "priority": "high"}, "bob": RULES,
             "cid": {"rules": RULES, "in_flight_max": 100000}}
    # Pipelines are as long as they are.
    options = {"users": users(rules), "server_connections": 2, "pipeline_start": 0}
    gateway = place.cashew({"alpha": pool([server], **options)}, {"worker_processes": workers})
    high, others = [login(gateway, "ann", "p") for _ in range(20)], [login(gateway, name, "p") for name in ("bob", "cid") * 3]
    high[0].call("SET", "b", "1")
    server.process.signal(signal.SIGSTOP)
    try:
        with Asking(*high) as asking:
            wait_until(lambda: asking.asked > 50, "somebody asks")
            for conn in others:
                conn.send(resp("INCR", "n") * 300)
            wait_until(lambda: status_of(gateway, "cid")["delayed"] > 0, "some wait")
            for _ in range(10):
                assert status_of(gateway, "cid")["in_flight"] <= NORMAL_IN_FLIGHT * workers
                time.sleep(0.02)
    finally:
        server.process.signal(signal.SIGCONT)
    for conn in others:
        assert [type(conn.reply()) for _ in range(300)] == [int] * 300
    for number in range(asking.asked):
        assert high[number % len(high)].reply() == b"1"
    assert server.call("GET", "n") == b"1800"
    assert status_of(gateway, "ann")["delayed"] == 0
    for conn in high + others:
        conn.close()


def test_nobody_starves_beside_a_user_of_high_priority(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool([server], users=users({"ann": {"rules": RULES, "priority": "high"}, "bob": RULES}))},
                           {"worker_processes": 1})
    over = threading.Event()

    def ask():
        with login(gateway, "ann", "p") as high:
            while not over.is_set():
                high.send(resp("GET", "b") * 200)
                for _ in range(200):
                    high.reply()

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with login(gateway, "bob", "p") as bob:
            bob.send(resp("INCR", "n") * 5000)
            for number in range(5000):
                assert bob.reply(seconds=20) == number + 1
            # With a reload nobody waits any more.
            gateway.configure(pools={"alpha": {**gateway.pools["alpha"], "users": users({"ann": RULES, "bob": RULES})}})
            assert "user 'ann': priority: high -> normal" in gateway.reload()
            bob.send(resp("INCR", "n") * 1000)
            for number in range(1000):
                assert bob.reply(seconds=20) == number + 5001
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_blocked_calls_keep_nobody_waiting(place):
    gateway, _ = gateway_of(place)
    blocked = [login(gateway, "ann", "p") for _ in range(2 * LOW_IN_FLIGHT)]
    for number, conn in enumerate(blocked):
        conn.send(resp("BLPOP", f"l{number}", "0"))
    wait_until(lambda: status_of(gateway)["in_flight"] == len(blocked), "all are blocked")
    with login(gateway, "ann", "p") as low, login(gateway, "bob", "p") as bob, Asking(bob):
        for number, conn in enumerate(blocked):
            assert low.call("RPUSH", f"l{number}", "x", seconds=2) == 1
            assert conn.reply() == [b"l%d" % number, b"x"]
            conn.close()


def test_memcached_and_a_reload(place):
    server = place.memcached()
    rules = {"default": {"rules": "on nopass ~* +@all", "priority": "low"}, "bob": "on >p ~* +@all"}
    gateway = place.cashew({"alpha": {"servers": server_lines([server]), "users": users(rules)}}, {"worker_processes": 1})
    with gateway.connect() as low, gateway.connect() as bob:
        assert binary_call(bob, 0x21, b"PLAIN", b"\0bob\0p")[0] == 0
        over = threading.Event()

        def ask():
            while not over.is_set():
                assert binary_call(bob, 0x00, b"b")[0] == 1
        thread = threading.Thread(target=ask)
        thread.start()
        for _ in range(20):
            low.send(b"".join(b"set k%d 0 0 1\r\nx\r\nget k%d a b c\r\n" % (n, n) for n in range(50)) + b"mn\r\n")
            low.expect(b"".join(b"STORED\r\nVALUE k%d 0 1\r\nx\r\nEND\r\n" % n for n in range(50)) + b"MN\r\n")
        assert status_of(gateway, "default")["delayed"] > 0
        rules["default"]["priority"] = "normal"
        gateway.configure(pools={"alpha": {**gateway.pools["alpha"], "users": users(rules)}})
        assert "user 'default': priority: low -> normal" in gateway.reload()
        low.send(b"get k1\r\n" * 100)
        low.expect(b"VALUE k1 0 1\r\nx\r\nEND\r\n" * 100)
        over.set()
        thread.join()


def test_reads_of_users(place):
    """Who logs in reads from replicas, or not; what a client says for itself comes first."""
    primary = place.redis()
    replica = place.redis("--replicaof", "127.0.0.1", str(primary.port))
    wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), "it follows")
    rules = {"app": RULES, "reports": {"rules": RULES, "reads": "replica"}}
    group = [f"{{name: one, primary: '127.0.0.1:{primary.port}', replicas: ['127.0.0.1:{replica.port}']}}"]
    gateway = place.cashew({"alpha": {"redis": True, "servers": group, "users": users(rules), "command_policy": "admin"}},
                           {"worker_processes": 1})

    def answered():
        return primary.stat("get"), replica.stat("get")

    def grows(conn, by_primary, by_replica):
        before = answered()
        for _ in range(10):
            conn.call("GET", "a")
        after = answered()
        assert (after[0] - before[0], after[1] - before[1]) == (10 * by_primary, 10 * by_replica)

    with login(gateway, "app", "p") as app, login(gateway, "reports", "p") as reports:
        app.call("SET", "a", "1")
        grows(app, 1, 0)
        grows(reports, 0, 1)
        assert b" reads=replica" in reports.call("CLIENT", "INFO")
        # One client that is one and then the other, without a pause.
        app.send(resp("GET", "a") + resp("AUTH", "reports", "p") + resp("GET", "a"))
        assert [app.reply() for _ in range(3)] == [b"1", "OK", b"1"]
        grows(app, 0, 1)
        app.call("AUTH", "app", "p")
        grows(app, 1, 0)
        # By itself.
        app.call("CLIENT", "READS", "replica")
        app.call("AUTH", "app", "p")
        grows(app, 0, 1)
        reports.call("CLIENT", "READS", "primary")
        grows(reports, 1, 0)
        reports.call("RESET")
        reports.call("AUTH", "reports", "p")
        grows(reports, 0, 1)
        for workers in (2, 1):
            gateway.configure(worker_processes=workers)
            gateway.reload()
            grows(reports, 0, 1)
        rules["reports"] = RULES
        gateway.configure(pools={"alpha": {**gateway.pools["alpha"], "users": users(rules)}})
        assert "user 'reports': reads: replica -> as the pool" in gateway.reload()
        grows(reports, 1, 0)
    rules["reports"] = {"rules": RULES, "reads": "replica"}
    gateway.configure(pools={"alpha": pool([primary], users=users(rules))})
    assert '"reads: replica" and no replicas' in gateway.refused_reload()
