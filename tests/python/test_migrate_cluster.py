"""`cashew migrate` where a pool is in front of a cluster: slots move and primaries fail meanwhile."""

import threading

import pytest

from cluster import Cluster
from harness import wait_until
from test_migrate import Move, Writers, assert_alike, everything, fill_redis

KEYS = 3000


def move_of(place, old=None, new=None, **options):
    move = Move(place, options=options, old=old or [place.redis(), place.redis()],
                new=new or [place.redis(), place.redis()])
    wait_until(lambda: not move.gateway.order("migrate", "status").returncode, "it is told of")
    return move


def begin(move):
    """Once it is known who owns which slots."""
    wait_until(lambda: move.gateway.order("migrate", "start").returncode == 0, "it begins", pause=0.2)


def change(move, action):
    """It is refused while it is not known who owns which slots."""
    wait_until(lambda: move.gateway.order("migrate", action).returncode == 0, f"{action} is done", seconds=100,
               pause=0.5)


def moves_and_is_right(move, cluster, writers, meanwhile):
    begin(move)
    trouble = threading.Thread(target=meanwhile)
    trouble.start()
    trouble.join()
    cluster.wait_ok()
    change(move, "cut-over")
    done = writers.done
    wait_until(lambda: writers.done > done + 300 or writers.wrong, "they go on")
    meanwhile()
    cluster.wait_ok()
    change(move, "roll-back")
    done = writers.done
    wait_until(lambda: writers.done > done + 300 or writers.wrong, "they go on")


def slots_move(cluster):
    def meanwhile():
        giver, taker = sorted(cluster.primaries(), key=lambda it: -len(cluster.node(it).slots))[:2]
        cluster.move(sorted(cluster.node(giver).slots)[:40], giver, taker)
    return meanwhile


def a_primary_fails_over(cluster):
    return lambda: cluster.fail_over(cluster.primaries()[0])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["from", "to"])
@pytest.mark.parametrize("what", [slots_move, a_primary_fails_over])
def test_a_cluster_changes_while_it_is_copied_and_nothing_is_lost_or_stale(place, way, what):
    cluster = Cluster(place, replicas=1 if what is a_primary_fails_over else 0)
    move = move_of(place, **{"old" if way == "from" else "new": cluster})
    fill_redis(move.gateway, KEYS, databases=[0])
    with Writers(move, count=2) as writers:
        wait_until(lambda: writers.done > 100, "they write")
        moves_and_is_right(move, cluster, writers, what(cluster))
    assert writers.wrong == []
    writers.check_all()
    move.wait_in_step()
    move.wait_behind()
    assert assert_alike(move) >= KEYS * 0.99


@pytest.mark.timeout(200)
def test_a_cluster_is_copied_to_another_and_a_primary_is_killed(place):
    old, new = Cluster(place), Cluster(place, replicas=0)
    move = move_of(place, old=old, new=new)
    fill_redis(move.gateway, KEYS, databases=[0])
    begin(move)
    move.wait_in_step()
    count = len(everything(old, "redis"))
    assert assert_alike(move) == count
    # What it has is at its replica by now.
    primary = old.primaries()[0]
    primary.wait_replicated()
    primary.process.kill()
    wait_until(lambda: primary.port not in {it.port for it in old.primaries()}, "a replica takes over", seconds=30)
    change(move, "cut-over")
    assert len(everything(new, "redis")) == count


def test_a_cut_over_waits_until_no_slot_is_half_moved(place):
    cluster = Cluster(place, replicas=0)
    move = move_of(place, old=cluster)
    fill_redis(move.gateway, 600, databases=[0])
    begin(move)
    move.wait_in_step()
    giver, taker, _ = cluster.servers
    slot = next(slot for slot in sorted(cluster.node(giver).slots) if giver.call("CLUSTER", "COUNTKEYSINSLOT", slot))
    taker.call("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(giver))
    giver.call("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id(taker))
    keys = giver.call("CLUSTER", "GETKEYSINSLOT", slot, 100)
    giver.call("MIGRATE", "127.0.0.1", taker.port, "", 0, 5000, "KEYS", *keys)
    said = move.order("cut-over", fails=True)
    wait_until(lambda: "slots are being moved" in move.order("cut-over", fails=True), "it is seen")
    assert not move.status()["is_cut_over"], said
    for server in (taker, giver):
        server.call("CLUSTER", "SETSLOT", slot, "NODE", cluster.id(taker))
    change(move, "cut-over")
    found = {key for _, key in everything(move.new, "redis")}
    assert set(keys) <= found
    assert assert_alike(move) == 600


def test_nothing_is_begun_before_it_is_known_who_owns_which_slots(place):
    cluster = Cluster(place, replicas=0)
    for server in cluster.servers:
        server.stop()
    move = move_of(place, new=cluster)
    said = move.order("start", fails=True)
    assert "have not told who owns which slots yet" in said, said
    for server in cluster.servers:
        server.start()
    begin(move)
    move.wait_in_step()
