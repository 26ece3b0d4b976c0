"""SCAN while another server of a group takes the writes: a cursor means nothing to the next one."""

import contextlib

import pytest

from harness import HOST, ReplyError, server_lines, wait_until
from test_groups import group, is_linked, pool, replica_of

KEYS = [f"key:{n}" for n in range(3000)]


def fill(gateway):
    with gateway.connect() as conn:
        for start in range(0, len(KEYS), 100):
            conn.call("MSET", *(word for key in KEYS[start:start + 100] for word in (key, "v")))


class Walk:
    """A SCAN that goes on where it was."""

    def __init__(self, gateway):
        self.gateway, self.cursor, self.found, self.pages = gateway, "0", set(), 0

    def page(self):
        """Returns whether there is more."""
        cursor, keys = self.gateway.call("SCAN", self.cursor, "COUNT", "50")
        self.cursor, self.pages = cursor.decode(), self.pages + 1
        self.found.update(keys)
        return self.cursor != "0"

    def to_the_end(self):
        while self.page():
            assert self.pages < 1000
        return self.found


def promote(gateway, server, former):
    # A replica's link is up before it is sent what was written since its copy was made.
    wait_until(lambda: server.call("DBSIZE") == former.call("DBSIZE"), "the replica has all keys")
    server.call("REPLICAOF", "NO", "ONE")
    done = gateway.order("failover", "alpha", "s1", f"{HOST}:{server.port}")
    assert done.returncode == 0, done.stderr
    former.call("REPLICAOF", HOST, str(server.port))
    wait_until(lambda: is_linked(former), "the former primary follows")


@pytest.mark.parametrize("alone", [True, False], ids=["beside another", "the only group"])
def test_no_key_is_left_out_when_the_primary_changes_during_a_scan(place, alone):
    one = place.redis()
    two = replica_of(place, one)
    lines = server_lines([place.redis()], names=["s0"]) if alone else []
    gateway = place.cashew(pool(*lines, group("s1", one, two)), {"worker_processes": 2})
    fill(gateway)
    keys = {key.encode() for key in KEYS}
    walk = Walk(gateway)
    # In the middle of the group.
    for _ in range(45 if alone else 30):
        assert walk.page()
    assert walk.found < keys
    before = walk.cursor
    promote(gateway, two, one)
    assert walk.to_the_end() == keys
    # The first one is back, with a seed of its own as it would have after a restart.
    walk = Walk(gateway)
    walk.cursor = before
    promote(gateway, one, two)
    found = walk.to_the_end()
    here = {key for key in keys if one.call("EXISTS", key)}
    assert here <= found


def test_a_scan_in_a_transaction_of_a_group_is_refused_and_elsewhere_as_ever(place):
    one = place.redis()
    gateway = place.cashew(pool(group("s1", one, replica_of(place, one))))
    with gateway.connect() as conn:
        assert conn.call("MULTI") == "OK"
        with pytest.raises(ReplyError, match="SCAN in a transaction would have a cursor"):
            conn.call("SCAN", "0")
        with contextlib.suppress(ReplyError):
            conn.call("DISCARD")
    alone = place.cashew(pool(*server_lines([place.redis()], names=["s0"])))
    with alone.connect() as conn:
        conn.call("MULTI")
        assert conn.call("SCAN", "0") == "QUEUED"
        assert conn.call("EXEC") == [[b"0", []]]
