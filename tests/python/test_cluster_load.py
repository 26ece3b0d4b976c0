"""A cluster under load while it changes: every reply of every client is checked.

Clients have keys of their own, so each knows what it must be told. Their requests are of all kinds that a node may
send elsewhere: of one key, of keys in many slots, in pipelines, transactions with and without WATCH, calls that wait,
scripts.
"""

import json
import random
import re
import threading
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cluster import Cluster
from harness import WrongReply, newer_servers, wait_until

PROGRAMS = ["redis-server", *newer_servers()]


class Client(threading.Thread):
    """One that asks until it is stopped. Of an error it does not know whether the request ran."""

    def __init__(self, number, gateway, stop):
        super().__init__(daemon=True)
        self.number, self.stop = number, stop
        self.random = random.Random(number)
        self.redis = redis.Redis(port=gateway.address, decode_responses=True, socket_timeout=20,
                                 protocol=2 + number % 2, retry=Retry(NoBackoff(), 0))
        self.values, self.counts = {}, {}
        self.wrong, self.errors, self.done, self.slowest = [], [], 0, 0
        self.is_over = False

    def run(self):
        kinds = [getattr(self, name) for name in dir(self) if name.startswith("ask_")]
        while not self.stop.is_set():
            kind, begun = self.random.choice(kinds), time.monotonic()
            try:
                kind()
            except (redis.RedisError, OSError) as error:
                self.errors.append(f"{kind.__name__}: {error}")
                self.forget()
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self.done += 1
        self.is_over = True

    def forget(self):
        """It begins anew, with keys that nothing is known to have happened to."""
        self.number += 1000
        self.values, self.counts = {}, {}
        self.redis.connection_pool.disconnect()

    def check(self, what, got, wanted):
        if got != wanted:
            self.wrong.append((what, got, wanted))

    def key(self, most=150):
        return f"{self.number}:{self.random.randrange(most)}"

    def count(self, key):
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key]

    def ask_one(self):
        key, value = self.key(), str(self.random.random())
        self.check("get", self.redis.get(key), self.values.get(key))
        self.redis.set(key, value)
        self.values[key] = value

    def ask_several(self):
        keys = [self.key() for _ in range(6)]
        self.check("mget", self.redis.mget(keys), [self.values.get(key) for key in keys])
        values = {key: str(self.random.random()) for key in keys}
        self.redis.mset(values)
        self.values.update(values)

    def ask_deletion(self):
        keys = {self.key() for _ in range(3)}
        self.check("del", self.redis.delete(*keys), len(keys & set(self.values)))
        for key in keys:
            self.values.pop(key, None)

    def ask_count(self):
        key = f"count:{self.key()}"
        self.check("incr", self.redis.incr(key), self.count(key))

    def ask_pipeline(self):
        key = self.key()
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.set(key, "1").append(key, "2").append(key, "3").get(key)
            self.check("pipeline", pipeline.execute(), [True, 2, 3, "123"])
        self.values[key] = "123"

    def ask_transaction(self):
        tag = f"{{{self.key(50)}}}"
        wanted = self.count(f"multi:{tag}")
        with self.redis.pipeline(transaction=True) as multi:
            multi.incr(f"a{tag}").incr(f"b{tag}").mget(f"a{tag}", f"b{tag}")
            self.check("multi", multi.execute(), [wanted, wanted, [str(wanted)] * 2])

    def ask_watch(self):
        key = f"watch:{self.key(50)}"
        for _ in range(50):
            try:
                with self.redis.pipeline(transaction=True) as multi:
                    multi.watch(key)
                    value = int(multi.get(key) or 0)
                    multi.multi()
                    multi.set(key, value + 1)
                    multi.execute()
                    break
            except redis.WatchError:
                # The slot has moved.
                pass
        self.check("watch", self.redis.get(key), str(self.count(key)))

    def ask_call_that_waits(self):
        key = f"list:{self.key(20)}"
        self.redis.rpush(key, "x")
        got = self.redis.blpop([key], 5)
        self.check("blpop", got and list(got), [key, "x"])

    def ask_script(self):
        key = f"script:{self.key(50)}"
        got = self.redis.eval("return redis.call('INCR', KEYS[1])", 1, key)
        self.check("eval", got, self.count(key))

    def ask_large(self):
        key, value = f"large:{self.key(5)}", "x" * self.random.randrange(50_000, 300_000)
        self.redis.set(key, value)
        self.check("large", self.redis.get(key), value)


class Load:
    def __init__(self, gateway, clients=6):
        self.stop = threading.Event()
        self.clients = [Client(number, gateway, self.stop) for number in range(clients)]

    def __enter__(self):
        for client in self.clients:
            client.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *error):
        self.stop.set()
        for client in self.clients:
            client.join(30)
        if error[0] is None:
            assert all(client.is_over for client in self.clients), "somebody hangs"
            assert min(client.done for client in self.clients) > 10
            # What else fails may be the machine's speed: of that nodes believe that the cluster is down.
            if wrong := [it for client in self.clients for it in client.wrong][:5]:
                raise WrongReply(wrong)

    def errors(self):
        return [error for client in self.clients for error in client.errors]


@pytest.fixture(params=PROGRAMS, ids=lambda path: str(path).rpartition("/")[2] + str(PROGRAMS.index(path)))
def program(request):
    return str(request.param)


def serve(place, cluster, **options):
    options = {"timeout": 20000, "failover_wait": 15000, **options}
    return place.cashew(cluster.pools(**options), {"worker_processes": 2})


def moved(gateway):
    stats = gateway.stats()["alpha"]
    return stats["cluster_moved"] + stats["cluster_asked"]


def test_slots_move(place, program):
    cluster = Cluster(place, replicas=0, program=program)
    gateway = serve(place, cluster)
    with Load(gateway) as load:
        source, target, _ = cluster.servers
        for at in range(10):
            # Where the machine is busy, clients may ask for none of them in time.
            if at >= 2 and moved(gateway):
                break
            slots = sorted(cluster.node(source).slots)[:150]
            cluster.move(slots, source, target)
            source, target = target, source
    assert load.errors() == []
    assert moved(gateway) > 0


def test_slots_move_at_once(place):
    """Valkey 9 moves slots as a whole: MOVED from one moment to the next, and nothing is ever asked for behind ASKING."""
    valkeys = [program for program in PROGRAMS if "valkey" in str(program)]
    if not valkeys:
        pytest.skip("no Valkey is installed")
    cluster = Cluster(place, replicas=0, program=str(valkeys[0]))
    gateway = serve(place, cluster)
    with Load(gateway) as load:
        source, target, _ = cluster.servers
        for _ in range(3):
            slots = sorted(cluster.node(source).slots)
            assert source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slots[0], slots[800],
                               "NODE", cluster.id(target)) == "OK"
            wait_until(lambda: slots[0] in cluster.node(target).slots, "they have moved")
            source, target = target, source
    assert load.errors() == []
    stats = gateway.stats()["alpha"]
    assert stats["cluster_moved"] > 0 and stats["cluster_asked"] == 0


def test_all_nodes_are_replaced(place):
    """One after the other: a new node copies it, takes over, and it is forgotten. In the end no seed is left."""
    cluster = Cluster(place, replicas=0)
    gateway = serve(place, cluster)
    seeds = list(cluster.servers)
    with Load(gateway) as load:
        for old in seeds:
            new = cluster.add()
            cluster.meet()
            cluster.wait_ok()
            cluster.replicate(new, old)
            cluster.wait_ok()
            assert cluster.fail_over(old) is new
            # The gateway learns of it before it is gone.
            wait_until(lambda: new.port in ports(gateway), "the gateway has the new node")
            time.sleep(1)
            cluster.forget(old)
            wait_until(lambda: old.port not in ports(gateway), "the gateway has left the old one", seconds=60)
    assert load.errors() == [], gateway.log()[-4000:]
    assert not {seed.port for seed in seeds} & ports(gateway)


def ports(gateway):
    done = gateway.order("status", "--json")
    pool = json.loads(done.stdout)["pools"][0]
    shards = pool["cluster"]["shards"]
    names = [name for shard in shards for name in [shard["primary"], *shard["replicas"]]]
    return {int(name.rpartition(":")[2]) for name in names}


def test_replicas_answer_reads(place):
    """They do so while they are replicas, and what they took over is still right."""
    cluster = Cluster(place)
    gateway = serve(place, cluster, reads="prefer_replica")
    with gateway.connect() as conn:
        for number in range(300):
            assert conn.call("SET", f"k:{number}", str(number)) == "OK"
        cluster.wait_ok()
        replicas = [replica for primary in cluster.primaries() for replica in cluster.replicas_of(primary)]
        # A replica that follows may still be some writes behind.
        wait_until(lambda: sum(replica.call("DBSIZE") for replica in replicas) == 300, "replicas have all keys")

        def reads(servers):
            return sum(int(re.search(rb"cmdstat_get:calls=(\d+)", server.call("INFO", "commandstats") + b" cmdstat_get:calls=0")[1])
                       for server in servers)

        def read_all():
            for number in range(300):
                assert conn.call("GET", f"k:{number}") == str(number).encode()
        before = reads(replicas)
        wait_until(lambda: read_all() or reads(replicas) >= before + 250, "replicas answer", pause=0.2)
        for primary in cluster.primaries():
            cluster.fail_over(primary)
        cluster.wait_ok()
        # They are primaries now, and the others answer.
        wait_until(lambda: ports(gateway) and {int(it["primary"].rpartition(":")[2]) for it in shards(gateway)}
                   == {replica.port for replica in replicas}, "the gateway knows")
        others = [server for server in cluster.servers if server not in replicas]
        before = reads(others)
        wait_until(lambda: read_all() or reads(others) >= before + 250, "the others answer", pause=0.2)


def shards(gateway):
    return json.loads(gateway.order("status", "--json").stdout)["pools"][0]["cluster"]["shards"]


def test_connections_are_few(place):
    """Half of `connections_max` is for all clients, half for exclusive use."""
    cluster = Cluster(place, replicas=0)

    def most_of(cluster_options):
        options = {**cluster.pools()["alpha"], "server_connections": 32, "preconnect": True}
        options["cluster"] = options["cluster"].replace("{", "{" + cluster_options, 1)
        gateway = place.cashew({"alpha": options}, {"worker_processes": 2})
        gateway.call("FLUSHALL")
        most = 0
        with Load(gateway, clients=12):
            for _ in range(20):
                clients = cluster.servers[0].call("CLIENT", "LIST", "TYPE", "NORMAL")
                most = max(most, clients.count(b"\n"))
                time.sleep(0.05)
        gateway.stop()
        return most
    few, many = most_of("connections_max: 8, "), most_of("")
    # Of each worker: those for large values, and those of clients with RESP3, come on top.
    assert few <= 8 + 2 * 4 + 8 and many > 40, (few, many)


def test_replicas_take_over(place, program):
    cluster = Cluster(place, program=program)
    gateway = serve(place, cluster)
    with Load(gateway) as load:
        for at in range(6):
            primary = cluster.primaries()[at % 3]
            cluster.fail_over(primary)
            time.sleep(0.5)
    assert load.errors() == []
    assert moved(gateway) > 0


def replicated(server):
    info = server.call("INFO", "replication").decode()
    offsets = re.findall(r"(?:,|master_repl_)offset[=:](\d+)", info)
    return len(offsets) > 1 and len(set(offsets)) == 1


def test_a_primary_dies(place):
    cluster = Cluster(place)
    gateway = serve(place, cluster)
    with Load(gateway) as load:
        victim = cluster.primaries()[0]
        # A primary acknowledges what its replica may not have yet, and then nobody has it. So no write is
        # acknowledged from here on, and what was is there.
        victim.call("CLIENT", "PAUSE", "10000", "WRITE")
        wait_until(lambda: replicated(victim), "its replica has everything")
        victim.process.kill()
        time.sleep(4)
        done = [client.done for client in load.clients]
        for client, before in zip(load.clients, done):
            wait_until(lambda: client.done > before + 20, "it goes on")
    # Nobody knows whether what was on its way has run.
    lost = load.errors()
    assert len(lost) <= len(load.clients), lost
    assert all("reset" in error or "closed" in error for error in lost), lost
