"""Sessions go from a worker that has much to do to one that has little, and then stay there."""

import time

import pytest

from harness import connect, holders, resp, server_lines, wait_until, worker_processes
from load import KEYS, Load, bulk, fill, key, value


def redis_request(rng):
    """Much work for the gateway, and little for its servers and whoever checks the replies."""
    if rng.randrange(8):
        return resp("PING"), b"+PONG\r\n"
    number = rng.randrange(KEYS)
    return resp("GET", key(number)), bulk(value(number))


def memcached_request(rng):
    numbers = [rng.randrange(KEYS) for _ in range(100)]
    found = [b"VALUE %b 0 %d\r\n%b\r\n" % (key(number), len(value(number)), value(number))
             for number in numbers]
    return b"get %b\r\n" % b" ".join(map(key, numbers)), b"".join(found) + b"END\r\n"


def start(place, server, **settings):
    redis = hasattr(server, "call")
    gateway = place.cashew({"alpha": {"redis": redis, "servers": server_lines([server])}},
                           {"worker_processes": 2, "rebalance_threshold": 10, **settings})
    gateway.wait_serving()
    return gateway


def all_on_one(gateway, count=8):
    """So many connections that the kernel gave to the same worker."""
    sockets, others = [], []
    worker = worker_processes(gateway.pid)[0]
    for _ in range(200):
        made = connect(gateway.address, 5.0)
        port = made.getsockname()[1]
        held = wait_until(lambda: holders(worker_processes(gateway.pid), {port}).get(port),
                          "it is accepted", pause=0.002)
        (sockets if held == worker else others).append(made)
        if len(sockets) == count:
            break
    for made in others:
        made.close()
    assert len(sockets) == count
    return worker, sockets


def shares(gateway, load):
    """Clients of each worker."""
    found = holders(worker_processes(gateway.pid), load.names())
    return [list(found.values()).count(pid) for pid in worker_processes(gateway.pid)]


def moved(gateway):
    """Sessions that workers have taken over, ever."""
    return sum(worker["sessions_in"] for worker in gateway.stats()["cashew"]["workers"])


@pytest.mark.alone
@pytest.mark.parametrize("protocol", ["redis", "memcached"])
def test_busy_sessions_are_shared_out_and_stay(place, protocol):
    server = place.redis() if protocol == "redis" else place.memcached()
    fill(server)
    gateway = start(place, server)
    _, sockets = all_on_one(gateway)
    request = redis_request if protocol == "redis" else memcached_request
    # As much as this process can ask for: the worker must have something to do.
    depth = 200 if protocol == "redis" else 4
    with Load(sockets=sockets, depth=depth, tick=0, request=request) as load:
        wait_until(lambda: min(shares(gateway, load)) >= 2, "both workers serve", pause=0.2)
        # A session may still look for its place, and other processes may get in the way; they do
        # not go to and fro.
        for _ in range(4):
            time.sleep(3)
            before = moved(gateway)
            load.turn()
            time.sleep(5 if protocol == "redis" else 1)
            after = moved(gateway)
            if after - before <= 2:
                break
        assert after - before <= 2, gateway.stats()["cashew"]
        assert min(shares(gateway, load)) >= 2
        load.turn()
    assert after <= 40


def test_without_rebalancing_sessions_stay_where_they_are(place):
    server = place.redis()
    fill(server)
    gateway = start(place, server, rebalance="false")
    _, sockets = all_on_one(gateway)
    with Load(sockets=sockets, depth=200, tick=0, request=redis_request) as load:
        time.sleep(5)
        assert sorted(shares(gateway, load)) == [0, 8]
    assert moved(gateway) == 0


def test_sessions_at_rest_stay_where_they_are(place):
    """Nothing is to be gained by them."""
    server = place.redis()
    gateway = start(place, server)
    worker, sockets = all_on_one(gateway)
    time.sleep(3)
    ports = {made.getsockname()[1] for made in sockets}
    assert set(holders(worker_processes(gateway.pid), ports).values()) == {worker}
    for made in sockets:
        made.sendall(resp("PING"))
        assert made.recv(100) == b"+PONG\r\n"
        made.close()
    assert moved(gateway) == 0
