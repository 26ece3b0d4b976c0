"""What a cluster's nodes say of their keys (notify-keyspace-events): each says it of its own, to its own subscribers.
A client of the gateway hears it of all keys, once."""

import select

import pytest

from cluster import SLOTS, Cluster
from harness import resp, wait_until

PATTERN = "__keyspace@0__:key:*"


@pytest.fixture
def cluster(place):
    return Cluster(place, primaries=3, replicas=1, options=["--notify-keyspace-events", "KEA"])


@pytest.fixture
def gateway(place, cluster):
    gateway = place.cashew(cluster.pools(timeout=10000, failover_wait=6000), {"worker_processes": 2})
    gateway.wait_serving()
    return gateway


class Listener:
    """One that has subscribed to the events of all keys, by both kinds of names and a channel."""

    def __init__(self, gateway):
        self.conn = gateway.connect()
        for words in (["PSUBSCRIBE", PATTERN], ["PSUBSCRIBE", "__keyevent@*__:set"], ["SUBSCRIBE", "__keyevent@0__:set"]):
            self.conn.send(resp(*words))
            assert self.conn.reply()[0] == words[0].lower().encode()
        self.number = 0

    def hear(self, gateway, count=60):
        """Sets keys of all primaries, and hears of each once by each name."""
        keys = [f"key:{self.number + at}" for at in range(count)]
        self.number += count
        with gateway.connect() as writer:
            for key in keys:
                assert writer.call("SET", key, "x") == "OK"
        heard = [self.conn.reply() for _ in range(3 * count)]
        self.conn.expect_silence(0.2)
        by_key = sorted(it[2].decode() for it in heard if it[:2] == [b"pmessage", PATTERN.encode()])
        assert by_key == sorted(f"__keyspace@0__:{key}" for key in keys)
        for kind, name, payload in ((b"pmessage", b"__keyevent@*__:set", 3), (b"message", b"__keyevent@0__:set", 2)):
            named = sorted(it[payload].decode() for it in heard if it[:2] == [kind, name])
            assert named == sorted(keys), kind


def topics(cluster):
    """By primary: how many patterns and channels anybody there has, and by whom nothing is left."""
    def count(server):
        return server.call("PUBSUB", "NUMPAT") + len(server.call("PUBSUB", "CHANNELS", "__key*"))
    primaries = {server.port for server in cluster.primaries()}
    return {server.port: count(server) for server in cluster.living() if (server.port in primaries) or count(server)}


def wait_placed(cluster):
    """The three names are at all primaries, and at nobody else."""
    def is_placed():
        expected = dict.fromkeys((server.port for server in cluster.primaries()), 3)
        return topics(cluster) == expected
    wait_until(is_placed, "the subscriptions are at the primaries", pause=0.05)


def test_events_of_all_primaries_come_once(gateway, cluster):
    listener = Listener(gateway)
    wait_placed(cluster)
    listener.hear(gateway)
    # A replica takes over, as an operator wishes.
    cluster.fail_over(cluster.primary_of(0))
    cluster.wait_ok()
    wait_placed(cluster)
    listener.hear(gateway)
    # A primary is lost.
    lost = cluster.primary_of(SLOTS - 1)
    others = {server.port for server in cluster.servers} - {lost.port}
    lost.stop()
    wait_until(lambda: any(node.port in others and SLOTS - 1 in node.slots for node in cluster.nodes()),
               "its replica takes over", pause=0.05)
    wait_until(lambda: all(b"cluster_state:ok" in server.call("CLUSTER", "INFO") for server in cluster.living()),
               "the cluster is well", pause=0.05)
    wait_placed(cluster)
    listener.hear(gateway)


def test_a_node_that_is_added_is_heard(gateway, cluster):
    listener = Listener(gateway)
    wait_placed(cluster)
    listener.hear(gateway)
    source = cluster.primary_of(0)
    added = cluster.add()
    cluster.meet()
    cluster.wait_ok()
    # Slots of the keys that are written next.
    own = cluster.node(source).slots
    moved = {source.call("CLUSTER", "KEYSLOT", f"key:{at}") for at in range(60, 120)} & own
    cluster.move(sorted(moved), source, added)
    wait_placed(cluster)
    # What happened on the way is of the keys that moved: they were restored and deleted.
    while listener.conn.buffer or listener.conn._poll(select.POLLIN, 0.3):
        listener.conn.reply()
    listener.hear(gateway)
    assert added.call("DBSIZE") >= len(moved) > 0


def test_what_any_node_hears_comes_once_by_a_pattern_of_events(gateway, cluster):
    """A pattern that hears more than events: what is published on other channels all nodes hear."""
    with gateway.connect() as subscriber:
        subscriber.send(resp("PSUBSCRIBE", "__key*"))
        assert subscriber.reply() == [b"psubscribe", b"__key*", 1]
        for at in range(10):
            assert gateway.call("PUBLISH", "__keynote", str(at)) == 1
        for server in cluster.primaries():
            server.call("PUBLISH", "__keynote", "direct")
        heard = [subscriber.reply() for _ in range(13)]
        subscriber.expect_silence(0.2)
        assert sorted(it[3] for it in heard) == sorted([*(b"%d" % at for at in range(10)), *[b"direct"] * 3])
