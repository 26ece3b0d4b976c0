"""Who answers reads, by command and by client, with real replication."""

import pytest

from harness import CASHEW, server_lines, wait_until
from test_groups import KEYS, gets, group, pool, trio  # noqa: F401 - a fixture

OLD = KEYS[:20]


def serve(place, trio, workers=1, **options):
    """The group of three, once all are known to be fit."""
    gateway = place.cashew(pool(group("s1", *trio), **options), {"worker_processes": workers})
    wait_fit(gateway)
    return gateway


def wait_fit(gateway):
    def are_fit():
        members = gateway.stats()["cashew"].get("members", [])
        return [member["reads"] for member in members] == ["fit"] * 3
    wait_until(are_fit, "they have been asked how far they have come")


def readers(conn, trio, *words, command="get"):
    """Which servers answer, by their places."""
    before = [server.stat(command) for server in trio]
    for key in OLD:
        conn.call(*(key if word == "KEY" else word for word in words or ("GET", "KEY")))
    shares = [server.stat(command) - then for server, then in zip(trio, before)]
    assert sum(shares) == len(OLD), shares
    return {at for at, share in enumerate(shares) if share}


PRIMARY, REPLICAS = {0}, {1, 2}


def test_commands_have_policies_of_their_own(place, trio):  # noqa: F811
    classes = "{get: primary, '@slow': prefer_replica, '@all': any, mget: replica}"
    gateway = serve(place, trio, reads_by_class=classes)
    with gateway.connect() as conn:
        for words, expected in [
            (("GET", "KEY"), PRIMARY),
            (("GETRANGE", "KEY", "0", "1"), REPLICAS),
            (("MGET", "KEY", "none"), REPLICAS),
            (("STRLEN", "KEY"), PRIMARY | REPLICAS),
            (("LCS", "KEY", "none"), REPLICAS),
        ]:
            assert readers(conn, trio, *words, command=words[0].lower()) == expected, words
        # What has to go to the primary does.
        conn.call("SADD", "set", "a")
        assert conn.call("SSCAN", "set", "0") == [b"0", [b"a"]]
        assert trio[0].stat("sscan") == 1
        conn.call("WATCH", KEYS[0])
        assert readers(conn, trio, "GETRANGE", "KEY", "0", "1", command="getrange") == PRIMARY
        conn.call("UNWATCH")
    # A reload changes them.
    gateway.configure(pool(group("s1", *trio), reads="replica", reads_by_class="{strlen: primary}"))
    told = gateway.reload()
    assert "reads_by_class: get: primary, @slow: prefer_replica, @all: any, mget: replica -> " \
        "strlen: primary" in told, told
    with gateway.connect() as conn:
        assert readers(conn, trio) == REPLICAS
        assert readers(conn, trio, "STRLEN", "KEY", command="strlen") == PRIMARY


@pytest.mark.parametrize("reads, expected", [
    ("primary", PRIMARY), ("prefer_primary", PRIMARY), ("replica", REPLICAS),
    ("PREFER_REPLICA", REPLICAS), ("any", PRIMARY | REPLICAS), ("nearest", PRIMARY | REPLICAS),
])
def test_a_client_chooses_for_itself(place, trio, reads, expected):  # noqa: F811
    by_default = "replica" if reads == "primary" else "primary"
    gateway = serve(place, trio, reads_by_class=f"{{'@read': {by_default}}}")
    others = REPLICAS if by_default == "replica" else PRIMARY
    with gateway.connect() as conn, gateway.connect() as other:
        assert conn.call("CLIENT", "READS", reads) == "OK"
        assert readers(conn, trio) == expected
        # The nearest one is one of them.
        assert readers(conn, trio, "MGET", "KEY", "none", command="mget") <= expected
        assert readers(other, trio) == others
        # Writes, cursors and transactions are the primary's.
        conn.call("SADD", "set", "a")
        assert conn.call("SSCAN", "set", "0") == [b"0", [b"a"]]
        assert trio[0].stat("sscan") == 1
        assert conn.call("MULTI") == "OK"
        assert conn.call("GET", KEYS[0]) == "QUEUED"
        told = gets(trio[0])
        assert conn.call("EXEC") == [b"old"]
        assert gets(trio[0]) == [told[0] + 1]
        line = conn.call("CLIENT", "INFO").decode()
        assert line.endswith(f" reads={reads.lower()}\n"), line
        named = conn.call("CLIENT", "ID")
        lines = other.call("CLIENT", "LIST").decode().splitlines()
        told = {"reads=" in line: line.split()[0] for line in lines}
        assert told[True] == f"id={named}" and False in told, lines
        assert conn.call("CLIENT", "READS", "default") == "OK"
        assert "reads=" not in conn.call("CLIENT", "INFO").decode()
        assert readers(conn, trio) == others
        conn.call("CLIENT", "READS", reads)
        assert conn.call("RESET") == "RESET"
        assert readers(conn, trio) == others


def test_readonly_and_readwrite_are_those_of_a_cluster(place, trio):  # noqa: F811
    gateway = serve(place, trio)
    with gateway.connect() as conn:
        assert readers(conn, trio) == PRIMARY
        assert conn.call("READONLY") == "OK"
        assert readers(conn, trio) == REPLICAS
        assert conn.call("SET", "new", "1") == "OK"
        assert conn.call("READWRITE") == "OK"
        assert readers(conn, trio) == PRIMARY
        assert "takes one of primary, prefer_primary, replica" in str(
            conn.error("CLIENT", "READS", "slave"))
        assert "needs the zone of this gateway" in str(conn.error("CLIENT", "READS", "zone"))


def test_without_replicas_there_is_no_choice(place):
    server, cache = place.redis(), place.memcached()
    gateway = place.cashew({
        "alpha": {"redis": True, "servers": server_lines([server])},
        "beta": {"servers": server_lines([cache])},
    })
    with gateway.connect() as conn:
        assert "no server of this pool has replicas" in str(conn.error("CLIENT", "READS", "any"))
        for word in ("READONLY", "READWRITE"):
            assert "cluster support disabled" in str(conn.error(word))
        assert conn.call("SET", "a", "1") == "OK"
    with gateway.connect("beta") as conn:
        conn.send(b"client reads any\r\nversion\r\n")
        assert conn.read_line() == b"ERROR"
        assert conn.read_line().startswith(b"VERSION ")


def test_what_a_client_wrote_it_reads_from_the_primary(place, trio):  # noqa: F811
    gateway = serve(place, trio, read_your_writes="2s")
    with gateway.connect() as conn:
        conn.call("CLIENT", "READS", "replica")
        # At first everybody counts as one that has just written.
        wait_until(lambda: readers(conn, trio) == REPLICAS, "it is long ago")
        conn.call("SET", "new", "1")
        assert readers(conn, trio) == PRIMARY


def test_a_choice_outlives_workers_and_upgrades(place, trio):  # noqa: F811
    gateway = serve(place, trio, workers=2)
    with gateway.connect() as chooser, gateway.connect() as reader, gateway.connect() as other:
        chooser.call("CLIENT", "READS", "replica")
        reader.call("READONLY")

        def check():
            wait_fit(gateway)
            # Who comes to a worker counts as one that has just written only where that matters.
            for conn, expected, name in [
                (chooser, REPLICAS, "replica"), (reader, REPLICAS, "prefer_replica"),
                (other, PRIMARY, None),
            ]:
                assert readers(conn, trio) == expected
                line = conn.call("CLIENT", "INFO").decode()
                assert line.endswith(f" reads={name}\n") == bool(name), line

        check()
        old = gateway.workers()
        done = gateway.order("upgrade", "--binary", CASHEW)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: not set(old) & set(gateway.workers()), "they are other processes")
        check()
        gateway.configure(worker_processes=1)
        gateway.reload()
        wait_until(lambda: len(gateway.workers()) == 1, "one is left")
        check()
