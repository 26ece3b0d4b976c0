"""Clients of Redis Cluster at pools that look like one (`pose: cluster`): one gateway at the address that
they have reached, and two that advertise each other."""

import os
import re
import subprocess
import threading

import pytest
import redis
from redis.cluster import ClusterNode, RedisCluster

from cluster import Cluster
from harness import HOST, free_port, server_lines, wait_until
from test_go import GO
from test_languages import CLIENTS, java_classes, must, node_modules

SLOTS = 16384


def posing(servers, **options):
    return {"redis": True, "hash_tag": '"{}"', "pose": "cluster", "servers": server_lines(servers),
            **options}


@pytest.fixture(scope="module", params=["alone", "two"])
def gateway(request, module_place):
    """With all its nodes, sorted."""
    servers = [module_place.redis("--enable-protected-configs", "yes") for _ in range(3)]
    if request.param == "alone":
        gateway = module_place.cashew({"alpha": posing(servers)}, {"worker_processes": 2})
        gateway.nodes = [f"{HOST}:{gateway.address}"]
        return gateway
    nodes = sorted(f"{HOST}:{free_port()}" for _ in range(2))
    one, other = (module_place.cashew(
        {"alpha": posing(servers, listen=own, advertise=f'["{own}", "{peer}"]')},
        {"worker_processes": 2}, name=f"cashew-{at}")
        for at, (own, peer) in enumerate([nodes, nodes[::-1]]))
    one.nodes, one.other = nodes, other
    return one


def environment(gateway):
    return {"CASHEW_REDIS": f"{HOST}:{gateway.address}", "CASHEW_NODES": ",".join(gateway.nodes)}


def run(gateway, *command, sections, **more):
    said = must(command, env={**os.environ, **environment(gateway), **more})
    print(said)
    assert said.count("ok ") >= sections, said


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(request, gateway):
    with cluster_client(gateway, protocol=request.param) as client:
        yield client


def cluster_client(gateway, **settings):
    settings = {"decode_responses": True, "socket_timeout": 30, **settings}
    return RedisCluster(HOST, gateway.address, **settings)


def test_redis_py(gateway, client):
    assert sorted(node.name for node in client.get_nodes()) == gateway.nodes
    assert {node.server_type for node in client.get_nodes()} == {"primary"}
    for n in range(200):
        assert client.set(f"py:{n}", n)
    assert [client.get(f"py:{n}") for n in range(200)] == [str(n) for n in range(200)]
    assert client.mset({f"{{py}}{n}": n for n in range(50)})
    assert client.mget([f"{{py}}{n}" for n in range(50)]) == [str(n) for n in range(50)]
    # Of many slots, which a cluster does not do: redis-py asks for each slot by itself.
    assert client.mget_nonatomic([f"py:{n}" for n in range(200)]) == [str(n) for n in range(200)]
    with client.pipeline() as pipe:
        for n in range(300):
            pipe.set(f"py:p:{n}", n).get(f"py:p:{n}")
        assert pipe.execute() == [it for n in range(300) for it in (True, str(n))]
    with client.pipeline(transaction=True) as pipe:
        pipe.set("{py}t", 1).incr("{py}t")
        # redis-py leaves OK as it is in the transactions of a cluster.
        assert pipe.execute()[1] == 2
    assert client.eval("return redis.call('incr', KEYS[1])", 1, "{py}t") == 3
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.lpush("{py}t", "x")


def test_redis_py_scans(gateway, client):
    keys = {f"pys:{n}" for n in range(300)}
    for key in keys:
        client.set(key, "v")
    assert set(client.scan_iter("pys:*", count=20)) == keys
    # Each gateway has all keys, and tells of all.
    found = client.scan_iter("pys:*", count=20, target_nodes=client.get_nodes()[0])
    assert set(found) == keys


def test_redis_py_subscribes(gateway, client):
    at = f"py{client.get_connection_kwargs().get('protocol')}"
    with client.pubsub() as subscriber:
        subscriber.psubscribe(f"{at}:n*")
        subscriber.ssubscribe(f"{at}:shard")
        heard = []

        def hear(count):
            while len(heard) < count:
                for message in (subscriber.get_message(timeout=1),
                                subscriber.get_sharded_message(timeout=1)):
                    if message and message["type"] in ("pmessage", "smessage"):
                        heard.append(message["data"])

        client.publish(f"{at}:nothing yet", "")
        wait_until(lambda: client.publish(f"{at}:news", "early") == 1, "the pattern is subscribed to")
        wait_until(lambda: client.spublish(f"{at}:shard", "early") == 1, "the channel is subscribed to")
        thread = threading.Thread(target=hear, args=(2,), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), heard


def test_what_is_told(gateway):
    with gateway.connect() as conn:
        slots = conn.call("CLUSTER", "SLOTS")
        assert [f"{host.decode()}:{port}" for _, _, (host, port, *_) in slots] == gateway.nodes
        assert slots[0][0] == 0 and slots[-1][1] == SLOTS - 1
        ids = [node[2] for *_, node in slots]
        own = conn.call("CLUSTER", "MYID")
        assert own == ids[gateway.nodes.index(f"{HOST}:{gateway.address}")] and len(own) == 40
        lines = conn.call("CLUSTER", "NODES").decode().splitlines()
        assert [line.split()[0].encode() for line in lines] == ids
        assert [line.split()[0].encode() for line in lines if "myself" in line] == [own]
        info = conn.call("CLUSTER", "INFO").decode()
        assert "cluster_state:ok" in info and f"cluster_slots_ok:{SLOTS}" in info
        assert f"cluster_known_nodes:{len(ids)}" in info
        assert conn.call("CLUSTER", "KEYSLOT", "{hello}bar") == 866
        for words in ("READONLY", "READWRITE", "ASKING"):
            assert conn.call(words) == "OK"
        assert conn.call("CLUSTER", "REPLICAS", own.decode()) == []
        assert conn.call("CLUSTER", "LINKS") == []
        assert "Unknown node" in conn.error("CLUSTER", "REPLICAS", "abc")
        assert "SCAN" in conn.error("CLUSTER", "COUNTKEYSINSLOT", "7")
        assert "Invalid slot" in conn.error("CLUSTER", "GETKEYSINSLOT", "16384", "1")
        assert "only looks like one" in conn.error("CLUSTER", "FORGET", own.decode())
        info = conn.call("INFO").decode()
        assert "cluster_enabled:1" in info and "redis_mode:cluster" in info
        assert b"cluster" in conn.call("HELLO")
        # Keys of many slots are no error here.
        assert conn.call("MSET", "a", "1", "b", "2", "c", "3") == "OK"
        assert conn.call("MGET", "a", "b", "c") == [b"1", b"2", b"3"]
        # Every node tells the same.
        if len(gateway.nodes) > 1:
            assert gateway.other.call("CLUSTER", "SLOTS") == slots
            assert gateway.other.call("CLUSTER", "MYID") != own


def test_many_who_ask_together(gateway):
    """More than there may be questions for all workers."""
    conns = [gateway.connect() for _ in range(1500)]
    try:
        for conn in conns:
            conn.send(b"CLUSTER SLOTS\r\n")
        assert len({str(conn.reply()) for conn in conns}) == 1
    finally:
        for conn in conns:
            conn.close()


@pytest.mark.timeout(900)
def test_ioredis(gateway):
    run(gateway, "node", CLIENTS / "node" / "ioredis-cluster.js", sections=11,
        NODE_PATH=node_modules())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("program", "sections"), [("Jedis", 10), ("Lettuce", 9)])
def test_java(gateway, program, sections):
    run(gateway, "java", "-cp", java_classes(), f"cashew.{program}ClusterClient", sections=sections)


@pytest.mark.timeout(600)
def test_go(gateway):
    done = subprocess.run(
        ["go", "test", "-count=1", "-timeout=180s", "-v", "-run", "^TestCluster", "./..."], cwd=GO,
        env={**os.environ, **environment(gateway)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=580)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8000:]
    assert len(re.findall(r"^--- PASS: (\w+)", done.stdout, re.MULTILINE)) >= 7, done.stdout


def test_a_reload_changes_the_nodes(place):
    """A client learns of them as of any change of a cluster, and loses nothing."""
    servers = [place.redis() for _ in range(2)]
    first, second = free_port(), free_port()
    pool = posing(servers, listen=f"{HOST}:{first}")
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    with cluster_client(gateway) as client:
        assert client.set("a", "1")
        assert [node.port for node in client.get_nodes()] == [first]
        nodes = f'["{HOST}:{first}", "{HOST}:{second}"]'
        beta = posing(servers, listen=f"{HOST}:{second}", advertise=nodes)
        gateway.configure({"alpha": {**pool, "advertise": nodes}, "beta": beta})
        said = gateway.reload()
        assert f"pose: cluster -> cluster, advertise {HOST}:{first}, {HOST}:{second}" in said
        told = gateway.order("status").stdout
        assert f"pool alpha: pose: cluster, advertise {HOST}:{first}, {HOST}:{second}\n" in told
        addresses = [f"{HOST}:{first}", f"{HOST}:{second}"]
        poses = [{"pool": name, "pose": "cluster", "advertise": addresses} for name in ("alpha", "beta")]

        def told_at_the_port():
            found = gateway.stats()["cashew"].get("poses", [])
            return sorted(found, key=lambda pose: pose["pool"]) == poses

        wait_until(told_at_the_port, "the poses are told of")
        assert client.get("a") == "1"
        client.nodes_manager.initialize()
        assert sorted(node.port for node in client.get_nodes()) == sorted([first, second])
        for n in range(100):
            assert client.set(f"k{n}", n) and client.get(f"k{n}") == str(n)
        # One that is no cluster any more is one server again.
        gateway.configure({"alpha": {key: it for key, it in pool.items() if key != "pose"}})
        gateway.reload()
        assert "pose:" not in gateway.order("status").stdout
        wait_until(lambda: "poses" not in gateway.stats()["cashew"], "nothing poses")
        with gateway.connect() as conn:
            assert "cluster support disabled" in conn.error("CLUSTER", "SLOTS")
            assert conn.call("GET", "k7") == b"7"


def test_a_route_looks_like_one(place):
    servers = [place.redis() for _ in range(2)]
    pools = {name: {"redis": True, "listen": None, "servers": server_lines([server])}
             for name, server in zip(("one", "two"), servers, strict=True)}
    route = {"redis": True, "pose": "cluster",
             "route": "{prefix: {'b:': one, '': two}}", "listen": f"{HOST}:{free_port()}"}
    gateway = place.cashew({**pools, "front": route}, {})
    node = ClusterNode(HOST, gateway.addresses["front"])
    with RedisCluster(startup_nodes=[node], decode_responses=True, socket_timeout=30) as client:
        for key in ("a:1", "b:1", "b:2"):
            assert client.set(key, key) and client.get(key) == key
    assert [server.call("DBSIZE") for server in servers] == [2, 1]


def test_with_users(place):
    """Who may not call CLUSTER is no client of a cluster."""
    users = '{ann: "on >secret ~* &* +@all", bob: "on >secret ~* +get"}'
    pool = posing([place.redis()], users=users)
    gateway = place.cashew({"alpha": pool}, {})
    with cluster_client(gateway, username="ann", password="secret") as client:
        assert client.set("a", "1") and client.get("a") == "1"
    with gateway.connect() as conn:
        assert conn.call("AUTH", "bob", "secret") == "OK"
        assert "NOPERM" in conn.error("CLUSTER", "SLOTS")


def test_servers_that_are_nodes_of_a_cluster_are_noticed(place):
    """A pool that does not know of the cluster passes its errors on, and says so."""
    nodes = Cluster(place, primaries=2, replicas=0).servers
    plain = {"redis": True, "servers": server_lines(nodes[:1])}
    gateway = place.cashew({"alpha": plain, "beta": {**plain, "servers": server_lines([place.redis()])}},
                           {"worker_processes": 1})
    gateway.wait_serving()
    with gateway.connect("alpha") as conn:
        assert conn.call("SET", "bar", "1") == "OK"
        assert conn.error("SET", "foo", "1").startswith("MOVED 12182")
        for _ in range(20):
            conn.error("GET", "foo")
    with gateway.connect("beta") as conn:
        assert conn.call("GET", "foo") is None
        assert "ERR" in conn.error("INCR", "foo", "2")
    wait_until(lambda: "seeds" in gateway.log(), "it is logged")
    assert gateway.log().count("a server is a node of a cluster") == 1
    pools = gateway.stats()
    assert (pools["alpha"]["redirects_passed_on"], pools["beta"]["redirects_passed_on"]) == (21, 0)
    said = gateway.order("status").stdout
    assert "pool alpha: MOVED, ASK and CLUSTERDOWN passed on to clients: 21" in said, said
    assert "pool beta: MOVED" not in said
    assert "client_redirected" in gateway.order("events").stdout
