"""All kinds of change in any order, each as soon as the last one lets it, or sooner."""

import contextlib
import os
import random
import signal
import time

import pytest

from harness import resp, server_lines, wait_until, worker_processes
from load import KEYS, Load, Storm, bulk, fill, key, redis_request, value

SECONDS = float(os.environ.get("CASHEW_CHANGE_SECONDS", "6"))


def large_request(rng):
    """Now and then one that takes several reads or writes."""
    kind = rng.randrange(20)
    if kind == 0:
        numbers = [rng.randrange(KEYS) for _ in range(200)]
        return (resp("MGET", *map(key, numbers)),
                b"*200\r\n" + b"".join(bulk(value(number)) for number in numbers))
    if kind == 1:
        data = b"y" * rng.choice([20_000, 70_000, 300_000])
        return resp("ECHO", data), bulk(data)
    if kind == 2:
        return resp("SET", b"large-%d" % rng.randrange(3), b"z" * 200_000), b"+OK\r\n"
    return redis_request(rng)


def reload(gateway):
    """Until it is done: the master that is asked may become another program, or lose a worker."""
    def done():
        order = gateway.order("reload")
        assert order.returncode in (0, 1), f"{order.stdout}{order.stderr}"
        return order.returncode == 0

    # An upgrade that cannot take place makes a reload wait for ten seconds.
    wait_until(done, "a reload")


def any_change(place, gateway, servers, rng, kinds):
    def pools():
        some = rng.sample(servers, rng.choice([1, 2, 3]))
        return {
            "alpha": {"redis": True, "hash": "murmur", "servers": server_lines(some),
                      "server_connections": rng.choice([1, 2, 5])},
            "beta": {"redis": True, "servers": server_lines([rng.choice(servers)]),
                     "listen": str(place.directory / "beta.sock"),
                     "timeout": rng.choice([5000, 6000])},
        }

    kind = rng.choice(kinds)
    if kind in ("reload", "hang up", "both"):
        gateway.configure(pools())
    if kind in ("resize", "both"):
        gateway.configure(worker_processes=rng.choice([1, 2, 3, 4]))
    if kind in ("reload", "resize", "both"):
        reload(gateway)
    elif kind == "hang up":
        gateway.process.signal(signal.SIGHUP)
    elif kind == "upgrade by signal":
        gateway.process.signal(signal.SIGUSR2)
    elif kind == "upgrade":
        # Refused when one is under way.
        assert gateway.order("upgrade").returncode in (0, 1)
    elif workers := worker_processes(gateway.pid):
        number = signal.SIGKILL if kind == "kill" else signal.SIGSTOP
        with contextlib.suppress(ProcessLookupError):  # it was about to end
            os.kill(rng.choice(workers), number)


@pytest.mark.parametrize("deaths", [False, True], ids=["calm", "deaths"])
def test_everything_at_once(place, deaths):
    seed = int(os.environ.get("CASHEW_CHANGE_SEED") or random.randrange(1000))
    print("CASHEW_CHANGE_SEED", seed)
    rng = random.Random(seed)
    servers = [place.redis() for _ in range(3)]
    fill(*servers)
    gateway = place.cashew(
        {"alpha": {"redis": True, "servers": server_lines(servers)},
         "beta": {"redis": True, "servers": server_lines(servers[:1]),
                  "listen": str(place.directory / "beta.sock")}},
        {"worker_processes": 2, "rebalance_threshold": 5,
         # Where nobody may be lost everybody must have the time to come to rest.
         "worker_shutdown_timeout": 3 if deaths else 15})
    gateway.wait_serving()
    kinds = ["reload", "reload", "hang up", "resize", "upgrade", "upgrade by signal", "both"]
    kinds += ["kill", "stop"] if deaths else []
    addresses = list(gateway.addresses.values())
    with Load(addresses, count=32, depth=8, may_lose=deaths) as load, \
            Load(addresses, count=6, depth=6, request=large_request, may_lose=deaths) as large:
        storm = None if deaths else place.keep(Storm(gateway.address, threads=1))
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            any_change(place, gateway, servers, rng, kinds)
            time.sleep(rng.choice([0, 0, 0.05, 0.3]))
            load.check()
            large.check()
            assert gateway.process.running(), gateway.log()[-3000:]
        load.turn()
        large.turn()
        if storm:
            storm.close()
            storm.check()

    def at_rest():
        stats = gateway.stats()
        return all(stats[pool]["client_connections"] == 0 for pool in gateway.pools)

    wait_until(at_rest, "nobody is counted any more")
    if not deaths:
        assert gateway.stats()["alpha"]["forward_error"] == 0
