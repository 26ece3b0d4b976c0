"""What PUBLISH has counted a subscriber for reaches it, though it asks for no more at once: over one and
over three real redis-servers, with one and with several workers."""

import random
import threading

import pytest

from harness import resp, server_lines

POOL = {"redis": True, "hash": "murmur", "timeout": 5000}
#: What subscribes and what ends it: the words, the command that publishes, and the last reply.
WAYS = {
    "channel": (("SUBSCRIBE", "{}"), ("UNSUBSCRIBE", "{}"), "PUBLISH"),
    "all": (("SUBSCRIBE", "{}", "{}:2"), ("UNSUBSCRIBE",), "PUBLISH"),
    "pattern": (("PSUBSCRIBE", "{}*"), ("PUNSUBSCRIBE", "{}*"), "PUBLISH"),
    "shard": (("SSUBSCRIBE", "{}"), ("SUNSUBSCRIBE", "{}"), "SPUBLISH"),
    "reset": (("SUBSCRIBE", "{}"), ("RESET",), "PUBLISH"),
    "quit": (("SUBSCRIBE", "{}"), ("QUIT",), "PUBLISH"),
}
ROUNDS = 40


class Crowd:
    """Clients that only keep the gateway busy, and are subscribed to all there is."""

    def __init__(self, gateway, count=4):
        self.conns = [gateway.connect() for _ in range(count)]
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(conn,)) for conn in self.conns]

    def work(self, conn):
        batch = b"".join(resp("PUBLISH", f"noise:{n}", "x" * 100) for n in range(50))
        while not self.is_over.is_set():
            conn.send(batch)
            for _ in range(50):
                conn.reply()

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join()
        for conn in self.conns:
            conn.close()


def is_message(reply):
    return isinstance(reply, list) and reply[0] in (b"message", b"pmessage", b"smessage")


def heard_of(conn, way):
    """How many messages come before the end of the subscription."""
    count = 0
    while True:
        reply = conn.reply()
        if is_message(reply):
            count += 1
        elif reply in ("OK", "RESET") or (isinstance(reply, list) and reply[2] == 0):
            return count


def one_round(gateway, way, channel, subscribers, publisher):
    """Returns how many publishing counted, and how many heard, of subscribers that all leave at once."""
    begin, end, publish = WAYS[way]
    conns = [gateway.connect() for _ in range(subscribers)]
    try:
        for conn in conns:
            conn.send(resp(*(word.format(channel) for word in begin)))
        for conn in conns:
            for _ in begin[1:]:
                conn.reply()
        counted = publisher.call(publish, channel, "x")
        for conn in conns:
            conn.send(resp(*(word.format(channel) for word in end)))
        return counted, sum(heard_of(conn, way) for conn in conns)
    finally:
        for conn in conns:
            conn.close()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("count", [1, 3])
def test_what_was_counted_is_delivered(place, count, workers):
    servers = [place.redis() for _ in range(count)]
    gateway = place.cashew(
        {"p": {**POOL, "servers": server_lines(servers)}}, {"worker_processes": workers}
    )
    gateway.wait_serving()
    lost, rounds = {}, 0
    with Crowd(gateway), gateway.connect() as publisher:
        for way in WAYS:
            for n in range(ROUNDS):
                counted, heard = one_round(gateway, way, f"{way}:{n}", 1 + n % 3, publisher)
                rounds += 1
                assert counted == 1 + n % 3
                if heard != counted:
                    lost[way] = lost.get(way, 0) + counted - heard
    assert not lost, f"of {rounds} rounds messages were lost: {lost}"


def test_who_comes_and_goes_gets_all_that_was_counted(place):
    """The one who publishes does not wait for those who come and go, and knows how many there were."""
    servers = [place.redis() for _ in range(2)]
    gateway = place.cashew(
        {"p": {**POOL, "servers": server_lines(servers)}}, {"worker_processes": 2}
    )
    gateway.wait_serving()
    heard, is_over, lock = [0], threading.Event(), threading.Lock()

    def come_and_go(seed):
        rng, count = random.Random(seed), 0
        with gateway.connect() as conn:
            while not is_over.is_set():
                channel = rng.choice("abc")
                conn.send(resp("SUBSCRIBE", channel) + resp("UNSUBSCRIBE", channel))
                ends = 0
                while ends < 2:
                    if is_message(conn.reply()):
                        count += 1
                    else:
                        ends += 1
        with lock:
            heard[0] += count

    threads = [threading.Thread(target=come_and_go, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    counted = 0
    with gateway.connect() as publisher:
        for n in range(3000):
            counted += publisher.call("PUBLISH", "abc"[n % 3], "x")
    is_over.set()
    for thread in threads:
        thread.join()
    # Who had just come may have heard more than was counted, as it is not known at all workers at once.
    assert 0 < counted <= heard[0]
