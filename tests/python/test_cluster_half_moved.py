"""A slot of a cluster whose keys are at two nodes for a while, one of them at neither: whoever needs several waits."""

import threading
import time

import pytest
import redis

from cluster import Cluster
from harness import HOST

#: Seconds that the slot stays so: more redirects than are followed of one request.
HALF_MOVED = 1.0


@pytest.fixture
def moving(place):
    """A cluster, a pool in front of it, and what has a slot moved in two halves."""
    cluster = Cluster(place, replicas=0)
    return Moving(cluster, place.cashew(cluster.pools(timeout=10000, failover_wait=6000)))


class Moving:
    def __init__(self, cluster, gateway):
        self.cluster, self.gateway = cluster, gateway
        self.slot = cluster.servers[0].call("CLUSTER", "KEYSLOT", "{t}")
        self.source = cluster.primary_of(self.slot)
        self.target = next(server for server in cluster.servers if server is not self.source)
        self.redis = redis.Redis(port=gateway.address, decode_responses=True, socket_timeout=10)

    def __enter__(self):
        """Its keys `{t}gone` have moved, and the rest follows later."""
        here, there = self.cluster.id(self.source), self.cluster.id(self.target)
        self.target.call("CLUSTER", "SETSLOT", self.slot, "IMPORTING", here)
        self.source.call("CLUSTER", "SETSLOT", self.slot, "MIGRATING", there)
        gone = [key for key in self.keys() if key.startswith(b"{t}gone")]
        self.migrate(gone)
        self.later = threading.Timer(HALF_MOVED, self.move)
        self.later.start()
        return self.redis

    def __exit__(self, *error):
        self.later.join()

    def keys(self):
        return self.source.call("CLUSTER", "GETKEYSINSLOT", self.slot, 1000)

    def migrate(self, keys):
        if keys:
            self.source.call("MIGRATE", HOST, self.target.port, "", 0, 5000, "KEYS", *keys)

    def move(self):
        self.migrate(self.keys())
        for server in (self.target, self.source):
            server.call("CLUSTER", "SETSLOT", self.slot, "NODE", self.cluster.id(self.target))


def rename(client):
    assert client.rename("{t}gone", "{t}new") is True


def sort_and_store(client):
    assert client.sort("{t}gone-list", store="{t}new") == 2


def store_a_union(client):
    assert client.sunionstore("{t}new", "{t}gone-set", "{t}gone-other-set") == 2


def count_in_a_transaction(client):
    with client.pipeline(transaction=True) as multi:
        multi.mset({"{t}new": "1", "{t}newer": "2"}).get("{t}new")
        assert multi.execute() == [True, "1"]


def read_in_a_transaction(client):
    with client.pipeline(transaction=True) as multi:
        multi.mget("{t}gone", "{t}here")
        assert multi.execute() == [["gone", "here"]]


def read_both(client):
    assert client.mget("{t}gone", "{t}here") == ["gone", "here"]


@pytest.mark.parametrize("ask", [rename, sort_and_store, store_a_union, count_in_a_transaction,
                                 read_in_a_transaction, read_both])
def test_who_needs_several_keys_waits_until_they_are_together(moving, ask):
    moving.redis.mset({"{t}gone": "gone", "{t}here": "here"})
    moving.redis.rpush("{t}gone-list", 2, 1)
    moving.redis.sadd("{t}gone-set", 1)
    moving.redis.sadd("{t}gone-other-set", 2)
    with moving as client:
        begun = time.monotonic()
        ask(client)
        assert time.monotonic() - begun > HALF_MOVED / 2
