"""What a server refuses to run is sent again, to it or to whoever takes its place: nobody is told."""

import json
import re
import threading
import time

import pytest

from harness import HOST, ReplyError, newer_servers, resp, server_lines, wait_until

#: Longer than anything here takes on a machine that is busy with other things.
WAIT = 20000
SLOW_LOAD = ["--key-load-delay", "400", "--loading-process-events-interval-bytes", "1024"]


class Counter(threading.Thread):
    """Adds to a counter of its own and reads it, in pipelines, and keeps what does not fit."""

    def __init__(self, gateway, key):
        super().__init__()
        self.gateway, self.key = gateway, key
        self.stopped, self.count, self.others = threading.Event(), 0, []

    def run(self):
        with self.gateway.connect(timeout=60) as conn:
            while not self.stopped.is_set():
                conn.send((resp("INCR", self.key) + resp("GET", self.key)) * 2)
                for _ in range(2):
                    self.count += 1
                    self.check(conn, self.count)
                    self.check(conn, b"%d" % self.count)

    def check(self, conn, expected):
        try:
            reply = conn.reply()
        except ReplyError as error:
            reply = error
        if reply != expected:
            self.others.append((reply, expected))


class Counters:
    def __init__(self, gateway, count=4):
        self.all = [Counter(gateway, f"count:{n}") for n in range(count)]

    def __enter__(self):
        for counter in self.all:
            counter.start()
        self.go_on()
        return self

    def __exit__(self, *_):
        for counter in self.all:
            counter.stopped.set()
        for counter in self.all:
            counter.join()

    def go_on(self):
        """All of them get answers that they have not asked for yet."""
        told = [counter.count for counter in self.all]
        wait_until(lambda: all(it.count > before + 20 for it, before in zip(self.all, told)), "they count")

    def check_so_far(self):
        assert [counter.others[:3] for counter in self.all] == [[]] * len(self.all)

    def check(self, server):
        """No error, nothing out of order, and nothing acknowledged lost, nor anything done twice."""
        self.check_so_far()
        for counter in self.all:
            assert int(server.call("GET", counter.key)) == counter.count


def retried(gateway):
    return gateway.stats()["alpha"]["requests_retried"]


def group(place, program="redis-server", replicas=1, **options):
    primary = place.redis("--repl-diskless-sync-delay", "0", program=program)
    following = ["--replicaof", f"{HOST} {primary.port}", "--repl-diskless-sync-delay", "0"]
    rest = [place.redis(*following, program=program) for _ in range(replicas)]
    for replica in rest:
        wait_until(lambda: replica.call("ROLE")[3] == b"connected", "it follows")
    members = ", ".join(f"{HOST}:{replica.port}" for replica in rest)
    line = f"{{name: s1, primary: '{HOST}:{primary.port}', replicas: [{members}]}}"
    options = {"redis": True, "failover_wait": WAIT, "servers": [line], **options}
    gateway = place.cashew({"alpha": options}, {"worker_processes": 2})
    wait_until(lambda: all(fitness == "fit" for fitness in fitnesses(gateway)), "all are known to be fit")
    return gateway, primary, rest


def fitnesses(gateway):
    status = json.loads(gateway.order("status", "--json").stdout)
    return [member["fitness"] for member in status["pools"][0]["members"]] or ["unknown"]


def hand_over(primary, replica):
    assert primary.call("FAILOVER") == "OK"
    wait_until(lambda: replica.call("ROLE")[0] == b"master", "it is promoted")
    wait_until(lambda: primary.call("ROLE")[0] == b"slave", "the former one follows")


@pytest.mark.parametrize("program", ["redis-server", *newer_servers()],
                         ids=lambda program: str(program).rsplit("/", 1)[-1])
def test_a_coordinated_failover_under_load_costs_no_error_and_no_write(place, program):
    """FAILOVER holds writes, hands over, and from then on refuses them as a replica does. The gateway follows, by
    what the two servers say, there and back."""
    gateway, primary, [replica] = group(place, program)
    with Counters(gateway) as counters:
        hand_over(primary, replica)
        counters.go_on()
        counters.check_so_far()
        hand_over(replica, primary)
        counters.go_on()
    counters.check(primary)
    for one, other in [(primary, replica), (replica, primary)]:
        # Who follows whom, as the log has it.
        assert re.search(rf"'s1/{HOST}:{other.port}' is the primary now, no more '\S+:{one.port}': \S+ is a replica of it",
                         gateway.log()), gateway.log()[-3000:]


def test_an_operator_may_name_the_new_primary_as_well(place):
    gateway, primary, [replica] = group(place)
    with Counters(gateway) as counters:
        hand_over(primary, replica)
        done = gateway.order("failover", "alpha", f"{HOST}:{replica.port}")
        assert done.returncode == 0 or "is the primary already" in done.stderr, done.stderr
        counters.go_on()
    counters.check(replica)


def test_a_server_that_only_claims_to_be_the_primary_is_not_followed(place):
    """The former primary does not follow it, or it has another history: writes wait, and get the error."""
    gateway, primary, [replica] = group(place, failover_wait=1500)
    stranger = place.redis()
    assert gateway.call("SET", "a", "1") == "OK"
    wait_until(lambda: replica.call("GET", "a") == b"1", "it has it")
    replica.call("REPLICAOF", "NO", "ONE")
    primary.call("REPLICAOF", HOST, stranger.port)
    wait_until(lambda: primary.call("ROLE")[3] == b"connected", "it follows the stranger")
    with gateway.connect() as conn:
        assert conn.error("SET", "a", "2").startswith("READONLY You can't write")
        primary.call("REPLICAOF", "NO", "ONE")
        wait_until(lambda: conn.call("SET", "a", "3") == "OK", "it is a primary again")
    assert replica.call("GET", "a") == b"1"
    assert primary.call("GET", "a") == b"3"


def test_what_a_loading_server_refuses_waits_until_it_has_loaded(place):
    server = place.redis(*SLOW_LOAD)
    options = {"redis": True, "failover_wait": WAIT, "servers": server_lines([server], ["one"])}
    gateway = place.cashew({"alpha": options}, {"worker_processes": 2})
    server.call("DEBUG", "POPULATE", "2000", "key", "100")
    with Counters(gateway) as counters:
        assert server.call("DEBUG", "RELOAD") == "OK"
        counters.go_on()
    counters.check(server)
    assert retried(gateway) > 0
    wait_until(lambda: "is loading the dataset" in gateway.log(), "the log tells of it")


def test_reads_of_large_values_and_large_requests_wait_until_it_has_loaded(place):
    server = place.redis(*SLOW_LOAD)
    options = {"redis": True, "failover_wait": WAIT, "servers": server_lines([server], ["one"])}
    gateway = place.cashew({"alpha": options}, {"worker_processes": 2})
    value = b"x" * 400_000
    gateway.call("SET", "big", value)
    server.call("DEBUG", "POPULATE", "2000", "key", "100")
    stopped, bad, counts = threading.Event(), [], [0, 0, 0]

    def read(place):
        with gateway.connect(timeout=60) as conn:
            while not stopped.is_set():
                if place == 2:
                    said = conn.call("SET", "other", value)
                    bad.extend([] if said == "OK" else [said])
                elif conn.call("GET", "big") != value:
                    bad.append("another value")
                counts[place] += 1

    def guarded(place):
        try:
            read(place)
        except Exception as error:
            bad.append(error)

    threads = [threading.Thread(target=guarded, args=[place]) for place in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: min(counts) > 5, "all of them go on")
        for _ in range(2):
            assert server.call("DEBUG", "RELOAD") == "OK"
            before = list(counts)
            wait_until(lambda: bad or all(now > then + 3 for now, then in zip(counts, before)), "they go on")
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert bad == []
    assert retried(gateway) > 0


def test_reads_leave_a_replica_that_refuses_them(place):
    """Also without failover_wait: there is somebody else to ask."""
    gateway, primary, [strict, other] = group(
        place, replicas=2, failover_wait=0, reads="replica", replica_link_down_max="3600s")
    gateway.call("SET", "a", "1")
    wait_until(lambda: other.call("GET", "a") == strict.call("GET", "a") == b"1", "they have it")
    strict.call("CONFIG", "SET", "replica-serve-stale-data", "no")
    primary.stop()
    def refuses():
        try:
            return strict.call("GET", "a") is None
        except ReplyError as error:
            return str(error).startswith("MASTERDOWN")
    wait_until(refuses, "it refuses reads")
    with gateway.connect() as conn:
        assert [conn.call("GET", "a") for _ in range(50)] == [b"1"] * 50
    wait_until(lambda: "Link with MASTER is down" in gateway.order("status", "--json").stdout
               or "Link with MASTER is down" in gateway.log(), "it shows")


def test_without_failover_wait_the_error_is_passed_on(place):
    gateway, primary, [replica] = group(place, failover_wait=0)
    with gateway.connect() as conn:
        assert conn.call("SET", "a", "1") == "OK"
        primary.call("REPLICAOF", HOST, replica.port)
        assert conn.error("SET", "a", "2").startswith("READONLY You can't write")
    assert retried(gateway) == 0


class Pulse(threading.Thread):
    """Writes all the time, and keeps when each write was acknowledged."""

    def __init__(self, connect, key):
        super().__init__()
        self.connections, self.key = connect, key
        self.stopped, self.acknowledged, self.errors = threading.Event(), [], []

    def run(self):
        connections = [connect(timeout=60) for connect in self.connections]
        while not self.stopped.is_set():
            for conn in connections:
                try:
                    conn.call("INCR", self.key)
                    self.acknowledged.append(time.monotonic())
                    break
                except ReplyError as error:
                    self.errors.append(str(error))
            time.sleep(0.0005)
        for conn in connections:
            conn.close()

    def gap(self):
        """The longest time without an acknowledged write, in milliseconds."""
        return max(later - sooner for sooner, later in zip(self.acknowledged, self.acknowledged[1:])) * 1000


@pytest.mark.alone
@pytest.mark.parametrize("program", ["redis-server", *newer_servers()],
                         ids=lambda program: str(program).rsplit("/", 1)[-1])
def test_a_coordinated_failover_takes_little_longer_than_the_servers_take(place, program):
    """A2.7. Who knows both servers and tries one after the other sees their own gap."""
    gateway, primary, [replica] = group(place, program)
    gaps = []
    for old, new in [(primary, replica), (replica, primary), (primary, replica)]:
        own = Pulse([old.connect, new.connect], "own")
        clients = [Pulse([gateway.connect], f"through:{n}") for n in range(3)]
        before = [int(old.call("GET", client.key) or 0) for client in clients]
        pulses = [own, *clients]
        for pulse in pulses:
            pulse.start()
        wait_until(lambda: all(len(pulse.acknowledged) > 50 for pulse in pulses), "they write")
        hand_over(old, new)
        told = [len(pulse.acknowledged) for pulse in pulses]
        wait_until(lambda: all(len(it.acknowledged) > count + 50 for it, count in zip(pulses, told)), "they go on")
        for pulse in pulses:
            pulse.stopped.set()
        for pulse in pulses:
            pulse.join()
        assert [client.errors[:3] for client in clients] == [[]] * 3
        for client, start in zip(clients, before):
            assert int(new.call("GET", client.key)) == start + len(client.acknowledged), "none is lost"
        gaps.append((own.gap(), max(client.gap() for client in clients)))
        wait_until(lambda: all(fitness == "fit" for fitness in fitnesses(gateway)), "all are known to be fit")
    print(", ".join(f"servers {own:.0f} ms, clients {seen:.0f} ms" for own, seen in gaps))
    # 20 ms is what is promised; the machine does other things, too, and rarely three times.
    assert min(seen - own for own, seen in gaps) < 120, gaps
