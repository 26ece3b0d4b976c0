"""Real clients in Python, with their defaults where that can be: redis-py and pymemcache."""

import threading

import pymemcache
import pytest
import redis
from pymemcache.client.base import PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.client.retrying import RetryingClient
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError

from harness import HOST, server_lines


@pytest.fixture(scope="module")
def gateway(module_place):
    redises = [module_place.redis() for _ in range(3)]
    locked = [module_place.redis("--requirepass", "secret") for _ in range(2)]
    memcacheds = [module_place.memcached() for _ in range(2)]
    gateway = module_place.cashew(
        {
            "alpha": {"redis": True, "hash": "murmur", "hash_tag": '"{}"', "servers": server_lines(redises)},
            "beta": {"servers": server_lines(memcacheds)},
            "locked": {"redis": True, "redis_auth": "secret", "servers": server_lines(locked)},
        },
        {"worker_processes": 2},
    )
    gateway.redises, gateway.memcacheds = redises, memcacheds
    return gateway


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def client(gateway, request):
    for server in gateway.redises:
        server.reset()
    with redis.Redis(HOST, gateway.addresses["alpha"], protocol=request.param) as client:
        yield client


@pytest.fixture
def cache(gateway):
    for server in gateway.memcacheds:
        server.reset()
    client = pymemcache.Client((HOST, gateway.addresses["beta"]), timeout=5, connect_timeout=5)
    yield client
    client.close()


# ------------------------------------------------------------------------------------- redis-py


def test_redis_defaults(gateway):
    with redis.Redis(HOST, gateway.addresses["alpha"]) as client:
        assert client.set("a", "1") is True
        assert client.get("a") == b"1"
        assert client.client_info()["resp"] == "3", "redis-py opens with HELLO 3"


def test_redis_types(client):
    assert client.ping()
    assert client.set("a", "1", ex=100, nx=True) is True
    assert client.set("a", "2", nx=True) is None
    assert client.ttl("a") == 100
    assert client.incr("a", 41) == 42
    assert client.getdel("a") == b"42"
    assert client.hset("h", mapping={"x": 1, "y": 2}) == 2
    assert client.hgetall("h") == {b"x": b"1", b"y": b"2"}
    assert client.rpush("l", *range(5)) == 5
    assert client.lrange("l", 0, -1) == [b"0", b"1", b"2", b"3", b"4"]
    assert client.sadd("s", "a", "b") == 2
    assert client.smembers("s") == {b"a", b"b"}
    assert client.zadd("z", {"a": 1, "b": 2}) == 2
    # redis-py makes lists of the pairs in RESP3.
    pairs = client.zrange("z", 0, -1, withscores=True)
    assert [tuple(pair) for pair in pairs] == [(b"a", 1.0), (b"b", 2.0)]
    assert client.xadd("x", {"f": "v"}, id="1-1") == b"1-1"
    assert client.xrange("x") == [(b"1-1", {b"f": b"v"})]
    assert client.pfadd("p", 1, 2, 3) == 1
    assert client.geoadd("g", (13.361389, 38.115556, "Palermo")) == 1
    assert sorted(dict(client.hscan_iter("h"))) == [b"x", b"y"]
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.lpush("a-string" if client.set("a-string", 1) else "", 1)


def test_redis_many_keys(client):
    values = {f"k{n}": str(n).encode() for n in range(1000)}
    assert client.mset(values)
    assert client.mget(list(values)) == list(values.values())
    assert client.exists(*values) == 1000
    assert client.touch(*values) == 1000
    assert client.delete(*list(values)[:500]) == 500
    assert client.unlink(*values) == 500


def test_redis_pipelines(client):
    with client.pipeline(transaction=False) as pipeline:
        for n in range(500):
            pipeline.set(f"k{n}", n)
            pipeline.incr(f"k{n}")
            pipeline.mget(f"k{n}", "none", f"k{n - 1}")
        replies = pipeline.execute()
    for n in range(500):
        before = str(n).encode() if n else None
        assert replies[3 * n : 3 * n + 3] == [True, n + 1, [str(n + 1).encode(), None, before]]
    with client.pipeline(transaction=False) as pipeline:
        pipeline.set("a", "text").incr("a").get("a").execute_command("NOSUCH").get("a")
        replies = pipeline.execute(raise_on_error=False)
    assert replies[0] is True and replies[2] == replies[4] == b"text"
    assert "not an integer" in str(replies[1])
    assert "unknown command" in str(replies[3])


def test_redis_transactions(client):
    with client.pipeline(transaction=True) as pipeline:
        pipeline.set("{t}a", 1)
        pipeline.incr("{t}a")
        pipeline.get("{t}a")
        assert pipeline.execute() == [True, 2, b"2"]
    # Keys of several servers: nothing of it is done, and the connection lives.
    with pytest.raises(redis.RedisError, match="server"):
        with client.pipeline(transaction=True) as pipeline:
            for number in range(20):
                pipeline.set(f"apart{number}", "x")
            pipeline.execute()
    assert client.exists(*(f"apart{number}" for number in range(20))) == 0
    assert client.get("{t}a") == b"2"


def test_redis_scripts(client):
    assert client.eval("return redis.call('set', KEYS[1], ARGV[1])", 1, "{a}1", "v") == b"OK"
    assert client.eval("return {KEYS[1], KEYS[2]}", 2, "{a}1", "{a}2") == [b"{a}1", b"{a}2"]
    # redis-py makes a class of its own of -CROSSSLOT and takes the word away.
    with pytest.raises(redis.ResponseError, match="needs its keys on one server"):
        keys = [f"k{n}" for n in range(20)]
        client.eval("return 1", len(keys), *keys)


def test_redis_pool_of_threads(gateway, client):
    pool = redis.BlockingConnectionPool(
        host=HOST, port=gateway.addresses["alpha"], protocol=2, max_connections=8)
    failures = []

    def work(name):
        mine = redis.Redis(connection_pool=pool)
        try:
            for n in range(100):
                assert mine.set(f"{name}:{n}", n)
                assert mine.get(f"{name}:{n}") == str(n).encode()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert pool.max_connections == 8
    pool.disconnect()


def test_redis_settings_of_a_connection(gateway):
    with redis.Redis(HOST, gateway.addresses["alpha"], protocol=2, client_name="billing",
                     decode_responses=True, health_check_interval=1) as client:
        assert client.client_getname() == "billing"
        assert client.client_id() > 0
        assert client.echo("ünicode") == "ünicode"
        assert client.info("server")["redis_version"]
        assert client.command_count() > 100
        assert client.execute_command("QUIT")


def test_redis_passwords(gateway):
    port = gateway.addresses["locked"]
    for arguments in ({"password": "secret"}, {"username": "default", "password": "secret"}):
        with redis.Redis(HOST, port, protocol=2, **arguments) as client:
            assert client.set("a", "1") is True
    with redis.Redis(HOST, port, protocol=2) as client:
        with pytest.raises(redis.AuthenticationError):
            client.get("a")
    with redis.Redis(HOST, port, protocol=2, password="wrong") as client:
        with pytest.raises(redis.AuthenticationError):
            client.get("a")


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_databases(gateway, client, protocol):
    port = gateway.addresses["alpha"]
    with redis.Redis(HOST, port, protocol=protocol, db=1) as one:
        client.set("a", "in 0")
        assert one.get("a") is None
        one.mset({f"k{n}": n for n in range(50)})
        assert one.mget([f"k{n}" for n in range(50)]) == [b"%d" % n for n in range(50)]
        assert client.mget([f"k{n}" for n in range(50)]) == [None] * 50
        assert client.get("a") == b"in 0"
        assert one.select(2) and one.get("k1") is None
        with pytest.raises(redis.ResponseError, match="DB index is out of range"):
            one.select(16)
    with redis.Redis(HOST, port, protocol=protocol, db=16) as none:
        with pytest.raises(redis.ResponseError, match="DB index is out of range"):
            none.get("a")


# ----------------------------------------------------------------------------------- pymemcache


def test_memcached_everything(cache):
    assert cache.set("a", "1", expire=100) is True
    assert cache.get("a") == b"1"
    assert cache.add("a", "2", noreply=False) is False
    assert cache.replace("a", "3", noreply=False) is True
    assert cache.append("a", "4", noreply=False) and cache.prepend("a", "2", noreply=False)
    assert cache.get("a") == b"234"
    assert cache.incr("a", 1, noreply=False) == 235
    assert cache.decr("a", 35, noreply=False) == 200
    assert cache.touch("a", 100, noreply=False) is True
    value, unique = cache.gets("a")
    assert cache.cas("a", "new", unique) is True
    assert cache.cas("a", "newer", unique) is False
    assert cache.cas("none", "x", b"1") is None
    # pymemcache has no method for these.
    assert cache.raw_command(b"gat 100 a", b"END\r\n") == b"VALUE a 0 3\r\nnew\r\n"
    assert cache.raw_command(b"gats 100 a", b"END\r\n").startswith(b"VALUE a 0 3 ")
    assert cache.delete("a", noreply=False) is True
    assert cache.get("a", default="nothing") == "nothing"
    assert cache.version()


def test_memcached_many(cache):
    values = {f"k{n}": str(n).encode() for n in range(500)}
    assert cache.set_many(values, noreply=False) == []
    assert cache.get_many([*values, "none"]) == values
    assert {k: v for k, (v, _) in cache.gets_many(list(values)[:50]).items()} == dict(
        list(values.items())[:50])
    assert cache.delete_many(list(values)[:250], noreply=False) is True
    assert len(cache.get_many(list(values))) == 250
    assert cache.flush_all(noreply=False) is True
    assert cache.get_many(list(values)) == {}


def test_memcached_noreply_is_the_default(cache):
    for n in range(200):
        cache.set(f"k{n}", n)
        cache.incr(f"k{n}", 1, noreply=True)
    assert cache.get_many([f"k{n}" for n in range(200)]) == {
        f"k{n}": str(n + 1).encode() for n in range(200)}
    assert cache.delete_many([f"k{n}" for n in range(200)], noreply=True)
    assert cache.get("k1") is None


def test_memcached_errors(cache):
    cache.set("text", "abc", noreply=False)
    with pytest.raises(MemcacheClientError):
        cache.incr("text", 1)
    with pytest.raises(MemcacheIllegalInputError):
        cache.set("a b", 1)
    assert cache.get("text") == b"abc"


def test_memcached_large_and_binary(cache):
    value = bytes(range(256)) * 3000
    assert cache.set("big", value, noreply=False) is True
    assert cache.get("big") == value
    key = "k" * 250
    assert cache.set(key, b"\r\nEND\r\n", noreply=False) is True
    assert cache.get(key) == b"\r\nEND\r\n"


def test_memcached_other_clients(gateway, cache):
    address = (HOST, gateway.addresses["beta"])
    pooled = PooledClient(address, max_pool_size=4, timeout=5)
    hashed = HashClient([address], use_pooling=True, timeout=5)
    retrying = RetryingClient(pymemcache.Client(address, timeout=5), attempts=3)
    failures = []

    def work(name):
        try:
            for n in range(50):
                pooled.set(f"{name}:{n}", n, noreply=False)
                assert pooled.get(f"{name}:{n}") == str(n).encode()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert hashed.set_many({f"h{n}": n for n in range(50)}, noreply=False) == []
    assert len(hashed.get_many([f"h{n}" for n in range(50)])) == 50
    assert retrying.set("r", 1, noreply=False) and retrying.get("r") == b"1"
    pooled.close()
    hashed.close()
    retrying.close()
