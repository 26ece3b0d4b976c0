"""A slot of a cluster whose keys are at two nodes for a while: whoever needs several waits, and replicas are not asked."""

import threading
import time

import pytest
import redis

from cluster import Cluster
from harness import HOST, newer_servers, wait_until

#: Seconds that the slot stays so: more redirects than are followed of one request.
HALF_MOVED = 1.0


@pytest.fixture
def moving(place):
    """A cluster, a pool in front of it, and what has a slot moved in two halves."""
    cluster = Cluster(place, replicas=0)
    return Moving(cluster, place.cashew(cluster.pools(timeout=10000, failover_wait=6000)))


class Moving:
    def __init__(self, cluster, gateway, stays=False):
        """`stays` says that the slot stays half moved until `move`."""
        self.cluster, self.gateway, self.stays = cluster, gateway, stays
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
        if not self.stays:
            self.later = threading.Timer(HALF_MOVED, self.move)
            self.later.start()
        return self.redis

    def __exit__(self, *error):
        if not self.stays:
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


def run_a_script(client):
    append = "return redis.call('append', KEYS[1], 'x') + redis.call('append', KEYS[2], 'y')"
    assert client.eval(append, 2, "{t}gone", "{t}here") == 10
    assert client.mget("{t}gone", "{t}here") == ["gonex", "herey"]


def run_a_script_by_its_digest(client):
    add = client.register_script("return redis.call('sadd', KEYS[1], KEYS[2], KEYS[3])")
    assert add(["{t}gone-set", "{t}here", "{t}gone"]) == 2


@pytest.mark.parametrize("ask", [rename, sort_and_store, store_a_union, count_in_a_transaction,
                                 read_in_a_transaction, read_both, run_a_script,
                                 run_a_script_by_its_digest])
def test_who_needs_several_keys_waits_until_they_are_together(moving, ask):
    moving.redis.mset({"{t}gone": "gone", "{t}here": "here"})
    moving.redis.rpush("{t}gone-list", 2, 1)
    moving.redis.sadd("{t}gone-set", 1)
    moving.redis.sadd("{t}gone-other-set", 2)
    with moving as client:
        begun = time.monotonic()
        ask(client)
        assert time.monotonic() - begun > HALF_MOVED / 2


def test_who_waits_for_a_slot_that_stays_half_moved_hears_of_it(place):
    cluster = Cluster(place, replicas=0)
    moving = Moving(cluster, place.cashew(cluster.pools(timeout=10000, failover_wait=1000)), stays=True)
    moving.redis.mset({"{t}gone": "gone", "{t}here": "here"})
    with moving as client:
        for ask, error in ((run_a_script, "Multiple keys"), (read_both, "not served")):
            begun = time.monotonic()
            with pytest.raises(redis.exceptions.ResponseError, match=error):
                ask(client)
            assert 0.9 < time.monotonic() - begun < 9
        moving.move()
        run_a_script(client)


@pytest.fixture(params=["redis-server", *newer_servers()], ids=lambda program: str(program).rsplit("/", 1)[-1])
def with_replicas(place, request):
    """A cluster with replicas, which answer the reads of the pools in front of it."""
    cluster = Cluster(place, program=request.param)

    def serve(**options):
        gateway = place.cashew(cluster.pools(timeout=10000, failover_wait=6000, **options))
        moving = Moving(cluster, gateway, stays=True)
        moving.redis.mset({"{t}gone": "gone", "{t}here": "here"})
        wait_until(lambda: is_replicated(moving), "the replica has it")
        return moving
    return serve


def replica_of(moving):
    owner = moving.cluster.primary_of(moving.slot)
    return moving.cluster.replicas_of(owner)[0]


def is_replicated(moving):
    """Whether the replica of whoever has the slot has a key of it."""
    with replica_of(moving).connect() as conn:
        conn.call("READONLY")
        return conn.call("GET", "{t}gone") == b"gone"


def replicas_answer(moving):
    """Whether reads go to replicas of whoever has the slot."""
    replica = replica_of(moving)
    before = replica.stat("get")
    for _ in range(20):
        assert moving.redis.get("{t}gone") == "gone"
    return replica.stat("get") >= before + 20


def test_replicas_do_not_answer_reads_of_a_slot_that_is_seen_to_move(with_replicas):
    moving = with_replicas(reads="replica")
    wait_until(lambda: replicas_answer(moving), "replicas answer")
    with moving as client:
        # Nobody writes. The nodes are asked every two seconds, and maps are changed once a second.
        wait_until(lambda: client.get("{t}gone") == "gone", "the primary is asked", pause=0.1)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert client.get("{t}gone") == "gone"
            assert client.get("{t}here") == "here"
            assert client.mget("{t}gone") == ["gone"]
        moving.move()
    wait_until(lambda: replicas_answer(moving), "replicas answer again")


def test_replicas_do_not_answer_reads_of_a_slot_of_which_a_node_has_sent_something_elsewhere(with_replicas):
    moving = with_replicas(reads="replica")
    wait_until(lambda: replicas_answer(moving), "replicas answer")
    with moving as client:
        assert client.set("{t}new", "new")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert client.get("{t}gone") == "gone"
            assert client.get("{t}new") == "new"
            assert client.get("{t}here") == "here"
        moving.move()
    wait_until(lambda: replicas_answer(moving), "replicas answer again")


def test_who_has_written_reads_that_of_a_half_moved_slot(with_replicas):
    moving = with_replicas(reads="replica", read_your_writes="offset")
    with moving as client:
        end = time.monotonic() + 3
        count = 0
        while time.monotonic() < end:
            count += 1
            assert client.set("{t}new", count) and client.set("{t}gone", count)
            time.sleep(count % 7 / 100)
            assert client.mget("{t}new", "{t}gone") == [str(count)] * 2
        moving.move()
        for key in ("{t}new", "{t}gone"):
            assert client.get(key) == str(count)
