"""Pools in front of clusters: which nodes and slots there are, and what happens when they change."""

import json
import os
import signal
import time

import pytest

from cluster import SLOTS, Cluster
from harness import HOST, ReplyError, free_port, newer_servers, said_to, wait_until

from test_upgrade import BUMPED, upgrade


def status(gateway):
    done = gateway.order("status", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def told(gateway, pool="alpha"):
    return next(it for it in status(gateway)["pools"] if it["name"] == pool)["cluster"]


def shape(gateway):
    """By port of each primary: how many slots it has, and the ports of its replicas."""
    def port(name):
        return int(name.rpartition(":")[2])

    return {port(shard["primary"]): (shard["slots"], sorted(map(port, shard["replicas"])))
            for shard in told(gateway)["shards"]}


def shape_of(cluster, by=None):
    nodes = cluster.nodes(by)
    return {node.port: (len(node.slots), sorted(it.port for it in nodes if it.primary == node.id))
            for node in nodes if node.primary == "-" and "fail" not in node.flags}


def wait_shape(gateway, cluster, what, by=None):
    try:
        wait_until(lambda: shape(gateway) == shape_of(cluster, by), what, pause=0.02)
    except AssertionError:
        raise AssertionError(f"{shape(gateway)}\n{shape_of(cluster, by)}\n{gateway.log()[-3000:]}") from None


def answer(gateway, *words):
    try:
        return gateway.call(*words)
    except ReplyError as error:
        return error


def discovery(gateway):
    return status(gateway)["discovery"]["pid"]


def samples(gateway, name):
    text = said_to(gateway.stats_address, b"GET /metrics HTTP/1.0\r\n\r\n").decode()
    found = [line for line in text.splitlines() if line.startswith(name)]
    return [line[len(name):] for line in found if line[len(name)] in "{ "]


@pytest.fixture(scope="module")
def cluster(module_place):
    return Cluster(module_place)


@pytest.fixture
def gateway(cluster, place):
    cluster.wait_ok()
    return place.cashew(cluster.pools(), {"worker_processes": 2})


def test_the_map_is_there_when_the_gateway_serves(cluster, gateway):
    assert shape(gateway) == shape_of(cluster)
    assert "map_known" in gateway.order("events", "--json").stdout
    found = told(gateway)
    assert (found["slots_covered"], found["changes"]) == (SLOTS, 1)
    wait_until(lambda: all(it["is_answering"] for it in told(gateway)["seeds"]), "the seeds answer")
    # All keys, whoever has them.
    with gateway.connect() as conn:
        for number in range(200):
            assert conn.call("SET", f"key-{number}", number) == "OK"
        for number in range(200):
            assert conn.call("GET", f"key-{number}") == str(number).encode()
    # Workers knew where all of them are.
    assert gateway.stats()["alpha"]["cluster_moved"] == 0
    shards = gateway.stats()["cashew"]["clusters"][0]["shards"]
    assert sum(shard["slots"] for shard in shards) == SLOTS and len(shards) == 3
    assert samples(gateway, "cashew_cluster_slots_covered") == ['{pool="alpha"} 16384']
    assert samples(gateway, "cashew_cluster_nodes") == ['{pool="alpha"} 6']
    assert len(samples(gateway, "cashew_cluster_seed_up")) == 3
    text = gateway.order("status").stdout
    assert "CLUSTER NODES" in text and " all " in text, text


def test_a_failover_is_followed(cluster, gateway):
    primary = cluster.primaries()[0]
    changes = told(gateway)["changes"]
    with gateway.connect() as conn:
        conn.call("SET", "key", "before")
        replica = cluster.fail_over(primary)
        started = time.monotonic()
        # Requests to it tell that the map is old.
        def follows():
            for number in range(50):
                conn.call("SET", f"key-{number}", number)
            return replica.port in shape(gateway)
        wait_until(follows, "the map follows", pause=0.005)
        assert time.monotonic() - started < 5
        assert conn.call("GET", "key") == b"before"
    cluster.wait_ok()
    wait_shape(gateway, cluster, "the former primary is a replica")
    assert told(gateway)["changes"] > changes
    assert f"{HOST}:{replica.port} takes writes" in gateway.log()
    assert "map_changed" in gateway.order("events", "--json").stdout


def test_without_clients_it_is_followed_within_the_interval(cluster, gateway):
    replica = cluster.fail_over(cluster.primaries()[1])
    wait_until(lambda: replica.port in shape(gateway), "the map follows", pause=0.1)
    cluster.wait_ok()
    wait_shape(gateway, cluster, "all is followed")


def test_slots_that_move_and_nodes_that_join_and_leave(place):
    cluster = Cluster(place, replicas=0)
    gateway = place.cashew(cluster.pools(), {"worker_processes": 2})
    values = {f"key-{number}": str(number).encode() for number in range(500)}
    with gateway.connect() as conn:
        for key, value in values.items():
            conn.call("SET", key, value)
        added = cluster.add()
        cluster.meet()
        wait_until(lambda: added.port in shape(gateway), "the new node is a server", pause=0.1)
        source = cluster.servers[0]
        slots = sorted(cluster.node(source).slots)
        cluster.move(slots[:100], source, added)
        for key, value in values.items():
            assert conn.call("GET", key) == value
        wait_shape(gateway, cluster, "the slots are the new node's")
        cluster.move(slots[100:], source, added)
        for key, value in values.items():
            assert conn.call("GET", key) == value
        wait_shape(gateway, cluster, "all of them are")
        cluster.forget(source)
        wait_until(lambda: source.port not in shape(gateway), "the old node is none any more", pause=0.1)
        for key, value in values.items():
            assert conn.call("GET", key) == value
    wait_until(lambda: str(source.port) not in json.dumps(gateway.stats()["alpha"]), "nobody counts it")
    assert f"{HOST}:{added.port} joined" in gateway.log()
    assert f"{HOST}:{source.port} left" in gateway.log()
    assert gateway.stats()["alpha"]["client_err"] == 0


def test_a_primary_is_killed(place):
    cluster = Cluster(place)
    gateway = place.cashew(cluster.pools(timeout=5000), {"worker_processes": 2})
    primary = cluster.primaries()[0]
    [replica] = cluster.replicas_of(primary)
    primary.stop()
    errors = 0
    with gateway.connect() as conn:
        deadline = time.monotonic() + 15
        while replica.port not in shape(gateway):
            assert time.monotonic() < deadline, gateway.log()[-3000:]
            for number in range(20):
                try:
                    conn.call("SET", f"key-{number}", number)
                except ReplyError:
                    errors += 1
        for number in range(100):
            assert conn.call("SET", f"key-{number}", number) == "OK"
    wait_until(lambda: primary.port not in shape(gateway), "the dead one is no server any more", pause=0.1)
    primary.start()
    cluster.wait_ok()
    wait_shape(gateway, cluster, "it is back as a replica")


@pytest.mark.long
def test_a_node_that_does_not_know_of_a_failover_is_not_followed(place):
    """As a node that was cut off, which goes on to answer."""
    cluster = Cluster(place)
    gateway = place.cashew(cluster.pools(), {"worker_processes": 1})
    first = cluster.primaries()[0]
    [replica] = cluster.replicas_of(first)
    # It stands still while the others go on without it, and wakes where nobody talks to it.
    first.process.signal(signal.SIGSTOP)
    wait_until(lambda: replica.call("ROLE")[0] == b"master", "the others go on", pause=0.05)
    wait_until(lambda: replica.port in shape(gateway), "the map follows", pause=0.05)
    for other in cluster.servers:
        if other is not first:
            other.call("DEBUG", "DROP-CLUSTER-PACKET-FILTER", 2)
    log = len(gateway.log())
    first.process.signal(signal.SIGCONT)
    deadline = time.monotonic() + 3
    with gateway.connect() as conn:
        while time.monotonic() < deadline:
            assert first.port not in {port for port, (slots, _) in shape(gateway).items() if slots}
            conn.call("SET", "key", "value")
            time.sleep(0.05)
    assert f"{first.port} takes writes" not in gateway.log()[log:]


def test_seeds_by_name_and_dead_ones(cluster, place):
    pools = cluster.pools()
    dead = free_port()
    pools["alpha"]["cluster"] = f"{{seeds: ['{HOST}:{dead}', 'localhost:{cluster.servers[0].port}']}}"
    gateway = place.cashew(pools)
    assert shape(gateway) == shape_of(cluster)
    wait_until(lambda: [it["is_answering"] for it in told(gateway)["seeds"]] == [False, True],
               "one answers")
    [lost] = [it for it in told(gateway)["seeds"] if not it["is_answering"]]
    assert lost["failure"] == "refuses connections"
    assert f"the seed {HOST}:{dead} refuses connections" in gateway.log()


def test_no_seed_answers_at_first(place):
    port, bus = free_port(), free_port()
    pools = {"alpha": {"redis": True, "cluster": f"{{seeds: ['{HOST}:{port}']}}", "failover_wait": 0}}
    started = time.monotonic()
    gateway = place.cashew(pools, {"worker_processes": 2})
    gateway.wait_serving()
    assert 2.5 < time.monotonic() - started < 10
    assert "no seed says which nodes its cluster has" in gateway.log()
    found = told(gateway)
    assert (found["shards"], found["slots_covered"], found["changes"]) == ([], 0, 0)
    assert "unknown" in gateway.order("status").stdout
    with gateway.connect() as conn, pytest.raises(ReplyError):
        conn.call("GET", "key")
    server = place.redis("--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf",
                         "--cluster-port", bus, port=port)
    server.call("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
    wait_until(lambda: told(gateway)["slots_covered"] == SLOTS, "it is found")
    # It takes a moment until it says that it is well.
    wait_until(lambda: answer(gateway, "SET", "key", "value") == "OK", "it is used")


def test_a_server_that_is_no_cluster(place):
    server = place.redis()
    pools = {"alpha": {"redis": True, "cluster": f"{{seeds: ['{HOST}:{server.port}']}}"}}
    gateway = place.cashew(pools)
    failure = "refuses: ERR This instance has cluster support disabled"
    assert f"{HOST}:{server.port} {failure}" in gateway.log()
    wait_until(lambda: told(gateway)["seeds"][0]["failure"] == failure, "the status says so")


def test_discovery_is_killed(cluster, gateway):
    before, epoch = discovery(gateway), gateway.epoch()
    found = shape(gateway)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: discovery(gateway) not in (None, before), "there is another")
    assert shape(gateway) == found
    replica = cluster.fail_over(cluster.primaries()[2])
    wait_until(lambda: replica.port in shape(gateway), "the other follows the cluster", pause=0.1)
    cluster.wait_ok()
    wait_shape(gateway, cluster, "the other follows it")
    assert gateway.epoch() > epoch


def test_a_reload_keeps_the_map(cluster, gateway):
    found, epoch = told(gateway)["shards"], gateway.epoch()
    assert "nothing changes" in gateway.reload()
    assert gateway.epoch() == epoch
    # Other seeds of the same cluster, and another option.
    pools = cluster.pools(timeout=3000)
    pools["alpha"]["cluster"] = f"{{seeds: {cluster.seeds(cluster.servers[2:5])}, connections_max: 50}}"
    gateway.configure(pools)
    said = gateway.reload()
    assert "cluster: seeds: " in said and "cluster: connections_max: 0 -> 50" in said
    assert "keys" not in said
    assert told(gateway)["shards"] == found and gateway.epoch() > epoch
    wait_until(lambda: all(it["is_answering"] for it in told(gateway)["seeds"]), "the new seeds answer")
    # A pool that joins is found before it is in effect, and one that leaves is forgotten.
    pools["beta"] = cluster.pools()["alpha"]
    gateway.configure(pools)
    gateway.reload()
    assert told(gateway, "beta")["shards"] == found
    assert gateway.connect("beta").call("SET", "key", "value") == "OK"
    del pools["beta"]
    gateway.configure(pools)
    gateway.reload()
    gateway.call("SET", "key", "value")
    assert gateway.stats()["alpha"]["cluster_moved"] == 0


def test_servers_become_a_cluster_and_back(cluster, place):
    plain = place.redis()
    lines = {"alpha": {"redis": True, "servers": [f"{HOST}:{plain.port}:1"]}}
    gateway = place.cashew(lines, {"worker_processes": 2})
    with gateway.connect() as conn:
        conn.call("SET", "key", "plain")
        gateway.configure(cluster.pools())
        assert "keys are where the cluster has them" in gateway.reload()
        conn.call("SET", "key", "cluster")
        assert shape(gateway) == shape_of(cluster)
        gateway.configure(lines)
        assert "keys are no more where the cluster has them" in gateway.reload()
        assert conn.call("GET", "key") == b"plain"


@pytest.mark.parametrize("kind", ["same", "bumped"])
def test_an_upgrade_keeps_the_map(cluster, place, kind):
    if kind == "bumped" and not os.path.exists(BUMPED):
        pytest.skip("needs scripts/bumped")
    gateway = place.cashew(cluster.pools(), {"worker_processes": 2})
    gateway.wait_serving()
    found = told(gateway)["shards"]
    with gateway.connect() as conn:
        conn.call("SET", "key", "value")
        upgrade(gateway, 0, *(["--binary", BUMPED] if kind == "bumped" else []))
        assert conn.call("GET", "key") == b"value"
        assert told(gateway)["shards"] == found
        replica = cluster.fail_over(cluster.primaries()[0])
        wait_until(lambda: replica.port in shape(gateway), "the next program follows", pause=0.1)
        assert conn.call("GET", "key") == b"value"
    cluster.wait_ok()


def test_a_failover_is_for_the_cluster(cluster, gateway):
    [name, *_] = [it["primary"] for it in told(gateway)["shards"]]
    done = gateway.order("failover", "alpha", name)
    assert done.returncode == 1 and "CLUSTER FAILOVER" in done.stdout + done.stderr


@pytest.mark.parametrize("program", newer_servers(), ids=lambda program: program.name)
def test_newer_servers_tell_the_same(place, program):
    cluster = Cluster(place, program=program)
    gateway = place.cashew(cluster.pools(), {"worker_processes": 2})
    assert shape(gateway) == shape_of(cluster)
    with gateway.connect() as conn:
        for number in range(100):
            conn.call("SET", f"key-{number}", number)
    replica = cluster.fail_over(cluster.primaries()[0])
    wait_until(lambda: replica.port in shape(gateway), "the map follows", pause=0.1)


def test_host_names_as_redirects_have_them(place):
    cluster = Cluster(place, replicas=0, options=["--cluster-announce-hostname", "localhost",
                                                  "--cluster-preferred-endpoint-type", "hostname"])
    gateway = place.cashew(cluster.pools())
    names = [shard["primary"] for shard in told(gateway)["shards"]]
    assert sorted(names) == sorted(f"localhost:{server.port}" for server in cluster.servers)
    source, target = cluster.servers[:2]
    with gateway.connect() as conn:
        for number in range(50):
            conn.call("SET", f"key-{number}", number)
        cluster.move(sorted(cluster.node(source).slots)[:20], source, target)
        for number in range(50):
            assert conn.call("GET", f"key-{number}") == str(number).encode()
    wait_until(lambda: {port: slots for port, (slots, _) in shape(gateway).items()}
               == {server.port: len(cluster.node(server).slots) for server in cluster.servers},
               "the slots are followed")


def test_nodes_with_passwords(place):
    options = ["--requirepass", "word", "--masterauth", "word"]
    cluster = Cluster(place, options=options)
    gateway = place.cashew(cluster.pools(server_auth="word"))
    assert shape(gateway) == shape_of(cluster)
    assert gateway.call("SET", "key", "value") == "OK"
