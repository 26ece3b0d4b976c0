"""Many clients at once do random things for a while; each knows what every reply must be.

A client owns the keys with its prefix, so that a model of its own predicts each reply to the byte.
The seed is printed, and CASHEW_SEED replays it.
"""

import os
import random
import threading
import time

from harness import resp, server_lines

SECONDS = float(os.environ.get("CASHEW_SOAK_SECONDS", "10"))
CLIENTS = 24


def bulk(value):
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def some_value(chance):
    """Mostly small, at times over many reads, rarely as large as memcached takes."""
    if chance.random() < 0.01:
        return chance.randbytes(chance.randrange(100_000, 1_000_000))
    return chance.randbytes(chance.choice((0, 1, 10, 100, 5000, 70_000)))


class RedisModel:
    """The strings of one client."""

    def __init__(self, chance, prefix):
        self.chance = chance
        self.keys = [b"%b:%d" % (prefix, n) for n in range(40)]
        self.data = {}

    def all(self):
        """A request for every key, and its reply."""
        values = b"".join(bulk(self.data.get(key)) for key in self.keys)
        return resp("MGET", *self.keys), b"*%d\r\n%b" % (len(self.keys), values)

    def step(self):
        """A request and the reply that it must have."""
        chance, data = self.chance, self.data
        key = chance.choice(self.keys)
        some = [chance.choice(self.keys) for _ in range(chance.randrange(1, 30))]
        kind = chance.randrange(12)
        if kind <= 1:
            data[key] = some_value(chance)
            return resp("SET", key, data[key]), b"+OK\r\n"
        if kind <= 4:
            return resp("GET", key), bulk(data.get(key))
        if kind == 5:
            values = b"".join(bulk(data.get(k)) for k in some)
            return resp("MGET", *some), b"*%d\r\n%b" % (len(some), values)
        if kind == 6:
            words = []
            for k in some:
                data[k] = chance.randbytes(chance.choice((0, 5, 50)))
                words += [k, data[k]]
            return resp("MSET", *words), b"+OK\r\n"
        if kind == 7:
            gone = sum(data.pop(k, None) is not None for k in some)
            return resp(chance.choice(("DEL", "UNLINK")), *some), b":%d\r\n" % gone
        if kind == 8:
            present = sum(k in data for k in some)
            return resp("EXISTS", *some), b":%d\r\n" % present
        if kind == 9:
            data[key] = data.get(key, b"") + b"more"
            return resp("APPEND", key, "more"), b":%d\r\n" % len(data[key])
        if kind == 10:
            word = b"%d" % chance.randrange(10**9)
            return resp("ECHO", word), bulk(word)
        return (resp("NOSUCH", key),
                b"-ERR unknown command 'NOSUCH', with args beginning with: '%b' \r\n" % key)


class MemcachedModel:
    def __init__(self, chance, prefix):
        self.chance = chance
        self.keys = [b"%b:%d" % (prefix, n) for n in range(40)]
        self.data = {}

    def all(self):
        return self.retrieval(self.keys)

    def retrieval(self, keys):
        values = b"".join(b"VALUE %b 0 %d\r\n%b\r\n" % (key, len(self.data[key]), self.data[key])
                          for key in keys if key in self.data)
        return b"get " + b" ".join(keys) + b"\r\n", values + b"END\r\n"

    def step(self):
        chance, data = self.chance, self.data
        key = chance.choice(self.keys)
        noreply, stored = chance.choice(((b"", b"STORED\r\n"), (b" noreply", b"")))
        kind = chance.randrange(8)
        if kind <= 1:
            data[key] = some_value(chance)
            return b"set %b 0 0 %d%b\r\n%b\r\n" % (
                key, len(data[key]), noreply, data[key]), stored
        if kind <= 4:
            some = list(dict.fromkeys(
                chance.choice(self.keys) for _ in range(chance.randrange(1, 30))))
            return self.retrieval(some)
        if kind == 5:
            found = data.pop(key, None) is not None
            if noreply:
                return b"delete %b noreply\r\n" % key, b""
            return b"delete %b\r\n" % key, b"DELETED\r\n" if found else b"NOT_FOUND\r\n"
        if kind == 6:
            present = key in data
            if present:
                data[key] += b"more"
            reply = b"" if noreply else b"STORED\r\n" if present else b"NOT_STORED\r\n"
            return b"append %b 0 0 4%b\r\nmore\r\n" % (key, noreply), reply
        return b"nosuch %b\r\n" % key, b"ERROR\r\n"


def talk(gateway, pool, model_of, seed, number, ends, failures, counts):
    """Pipelines of random depth, in random pieces, over connections that are changed at times."""
    chance = random.Random(f"{seed}:{number}")
    model = model_of(chance, b"c%d" % number)
    done = 0
    try:
        conn = gateway.connect(pool, timeout=20)
        while time.monotonic() < ends:
            steps = [model.step() for _ in range(chance.choice((1, 1, 2, 5, 20, 60)))]
            data = b"".join(request for request, _ in steps)
            if chance.random() < 0.3:
                conn.send(data, iter(lambda: chance.choice((1, 10, 100, 1000, 30_000)), None))
            else:
                conn.send(data)
            for _, reply in steps:
                conn.expect(reply)
            done += len(steps)
            if chance.random() < 0.02:
                # What had no reply is done when all servers have answered something later.
                request, reply = model.all()
                conn.send(request)
                conn.expect(reply)
                conn.close()
                conn = gateway.connect(pool, timeout=20)
        conn.close()
    except Exception as error:
        failures.append(f"client {number} of {pool}, seed {seed}: {error!r}"[:2000])
    counts.append(done)


def leave_early(gateway, pool, requests, seed, ends):
    """Asks for much and goes away without reading: its replies must reach nobody."""
    chance = random.Random(f"{seed}:leaver:{pool}")
    while time.monotonic() < ends:
        conn = gateway.connect(pool)
        try:
            conn.send(requests)
            time.sleep(chance.random() * 0.02)
            conn.reset() if chance.random() < 0.5 else conn.close()
        except OSError:
            conn.close()


def test_every_reply_is_the_one_predicted(place):
    seed = os.environ.get("CASHEW_SEED", str(random.randrange(10**9)))
    print(f"CASHEW_SEED={seed}")
    gateway = place.cashew(
        {
            "alpha": {"redis": True, "hash": "murmur", "timeout": 20_000, "server_connections": 4,
                      "servers": server_lines([place.redis() for _ in range(4)])},
            "beta": {"timeout": 20_000, "hash": "murmur",
                     # Room for everything: what memcached evicts no model foresees.
                     "servers": server_lines([place.memcached("-m", "1024") for _ in range(4)])},
        },
        {"worker_processes": 2},
    )
    ends = time.monotonic() + SECONDS
    failures, counts, threads = [], [], []
    for number in range(CLIENTS):
        pool, model = (("alpha", RedisModel), ("beta", MemcachedModel))[number % 3 == 2]
        threads.append(threading.Thread(
            target=talk,
            args=(gateway, pool, model, seed, number, ends, failures, counts)))
    for pool, requests in (
        ("alpha", b"".join(resp("SET", f"l{n}", "x" * 500) + resp("GET", f"l{n}")
                           for n in range(50)) + resp("MGET", *[f"l{n}" for n in range(50)])),
        ("beta", b"".join(b"set l%d 0 0 3\r\nxyz\r\nget l%d l1 l2\r\n" % (n, n)
                          for n in range(50))),
    ):
        threads.append(threading.Thread(
            target=leave_early, args=(gateway, pool, requests, seed, ends)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 60)
        assert not thread.is_alive()
    assert not failures, "\n".join(failures)
    assert len(counts) == CLIENTS and sum(counts) > 1000
    stats = gateway.stats()
    assert stats["alpha"]["forward_error"] == stats["beta"]["forward_error"] == 0
    with gateway.connect("alpha") as conn:
        assert conn.call("PING") == "PONG"
