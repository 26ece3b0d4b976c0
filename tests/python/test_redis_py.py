"""redis-py's sessions through the gateway, with RESP2 and RESP3: transactions, subscriptions, what
blocks, scans, scripts and functions, databases, locks, and the asynchronous client."""

import asyncio
import threading

import pytest
import redis
import redis.asyncio

from harness import HOST, server_lines


@pytest.fixture(scope="module")
def gateway(module_place):
    servers = [module_place.redis("--enable-protected-configs", "yes") for _ in range(3)]
    pool = {"redis": True, "command_policy": "admin", "hash": "murmur", "hash_tag": '"{}"',
            "servers": server_lines(servers, ["one", "two", "three"])}
    gateway = module_place.cashew({"alpha": pool}, {"worker_processes": 2})
    gateway.servers = servers
    return gateway


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def connect(request, gateway):
    """Opens clients of one protocol version, with nothing on the servers to begin with."""
    for server in gateway.servers:
        server.reset()
    clients = []

    def connect(**settings):
        settings = {"protocol": request.param, "decode_responses": True, "socket_timeout": 30,
                    **settings}
        clients.append(redis.Redis(HOST, gateway.address, **settings))
        return clients[-1]

    connect.protocol = request.param
    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(connect):
    return connect()


def background(work):
    """A thread that does this, with a method that gives its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def result(seconds=40):
        thread.join(seconds)
        assert results, "nothing came back"
        return results[0]

    return result


def test_defaults(gateway):
    with redis.Redis(HOST, gateway.address) as client:
        assert client.ping() is True
        assert client.set("a", "1") is True
        assert client.get("a") == b"1"
        assert client.hset("h", mapping={"f": "v"}) == 1
        assert client.hgetall("h") == {b"f": b"v"}


def test_the_shapes_of_both_protocols(connect, client):
    client.hset("h", mapping={"f": "1.5"})
    client.zadd("z", {"a": 1.5, "b": 2})
    assert client.hgetall("h") == {"f": "1.5"}
    assert client.zscore("z", "a") == 1.5
    assert client.config_get("maxmemory")["maxmemory"].isdigit()
    raw = client.connection_pool.get_connection()
    raw.send_command("ZSCORE", "z", "a")
    assert raw.read_response() == (1.5 if connect.protocol == 3 else "1.5")
    client.connection_pool.release(raw)


def test_transactions(client):
    with client.pipeline() as pipeline:
        pipeline.set("{t}a", 1).incr("{t}a").get("{t}none").zadd("{t}z", {"m": 1.5})
        assert pipeline.execute() == [True, 2, None, 1]
    with client.pipeline() as pipeline:
        pipeline.set("{t}a", "text").incr("{t}a").set("{t}b", "done")
        answers = pipeline.execute(raise_on_error=False)
    assert answers[0] is True and answers[2] is True and "not an integer" in str(answers[1])


def test_a_watched_key(connect, client):
    other = connect()
    client.set("n", 1)
    attempts = []

    def add(pipeline):
        seen = int(pipeline.get("n"))
        attempts.append(seen)
        if len(attempts) == 1:
            other.set("n", 40)
        pipeline.multi()
        pipeline.set("n", seen + 2)

    assert client.transaction(add, "n") == [True]
    assert attempts == [1, 40] and client.get("n") == "42"


def test_a_transaction_over_several_servers_says_so(client):
    keys = [f"k{n}" for n in range(40)]
    with client.pipeline() as pipeline:
        for key in keys:
            pipeline.set(key, 1)
        with pytest.raises(redis.RedisError):
            pipeline.execute()
    assert client.set("a", "2") and client.get("a") == "2"
    assert client.exists(*keys) == 0


def test_subscriptions(connect, client):
    with connect().pubsub() as subscriber:
        subscriber.subscribe("news", "other")
        subscriber.psubscribe("n*")
        kinds = [subscriber.get_message(timeout=20)["type"] for _ in range(3)]
        assert sorted(kinds) == ["psubscribe", "subscribe", "subscribe"]
        assert client.publish("news", "1") == 2
        assert client.publish("nobody's", "2") == 1
        heard = [subscriber.get_message(timeout=20) for _ in range(3)]
        assert sorted((each["type"], each["channel"], each["data"]) for each in heard) == [
            ("message", "news", "1"), ("pmessage", "news", "1"), ("pmessage", "nobody's", "2")]
        assert sorted(client.pubsub_channels()) == ["news", "other"]
        assert client.pubsub_numsub("news", "none") == [("news", 1), ("none", 0)]
        assert client.pubsub_numpat() == 1
        if connect.protocol == 2:  # with RESP3 redis-py does not know a pong for a message
            subscriber.ping()
            assert subscriber.get_message(timeout=20)["type"] == "pong"
        subscriber.unsubscribe()
        subscriber.punsubscribe()
        left = [subscriber.get_message(timeout=20)["type"] for _ in range(3)]
        assert sorted(left) == ["punsubscribe", "unsubscribe", "unsubscribe"]
    assert client.publish("news", "3") == 0


def test_messages_of_many_keep_their_order(connect, client):
    with connect().pubsub() as subscriber:
        channels = [f"channel:{n}" for n in range(20)]
        subscriber.subscribe(*channels)
        for _ in channels:
            subscriber.get_message(timeout=20)
        with client.pipeline(transaction=False) as pipeline:
            for n in range(1000):
                pipeline.publish(channels[n % 20], n)
            assert pipeline.execute() == [1] * 1000
        seen = {channel: [] for channel in channels}
        for _ in range(1000):
            message = subscriber.get_message(timeout=20)
            seen[message["channel"]].append(int(message["data"]))
        assert all(numbers == list(range(first, 1000, 20))
                   for first, numbers in enumerate(seen.values()))


def test_sharded_subscriptions(connect, client):
    with connect().pubsub() as subscriber:
        subscriber.ssubscribe("shard")
        assert subscriber.get_message(timeout=20)["type"] == "ssubscribe"
        assert client.execute_command("SPUBLISH", "shard", "1") == 1
        assert subscriber.get_message(timeout=20)["data"] == "1"


def test_what_blocks(connect, client):
    waiting = connect()
    assert waiting.blpop("none", timeout=0.05) is None
    popped = background(lambda: waiting.blpop(["queue"], timeout=20))
    assert client.rpush("queue", "job") == 1
    assert list(popped()) == ["queue", "job"]
    moved = background(lambda: waiting.blmove("{q}a", "{q}b", 20, "LEFT", "RIGHT"))
    client.rpush("{q}a", "job")
    assert moved() == "job" and client.lrange("{q}b", 0, -1) == ["job"]
    least = background(lambda: waiting.bzpopmin("ranked", timeout=20))
    client.zadd("ranked", {"m": 1.5})
    assert list(least()) == ["ranked", "m", 1.5]
    client.xgroup_create("stream", "group", mkstream=True)
    read = background(lambda: waiting.xreadgroup("group", "me", {"stream": ">"}, block=20_000))
    client.xadd("stream", {"f": "v"}, id="1-1")
    assert "1-1" in str(read())


def test_who_blocks_delays_nobody(connect, client):
    many = [connect() for _ in range(20)]
    blocked = [background(lambda each=each, n=n: each.blpop(f"queue:{n}", timeout=30))
               for n, each in enumerate(many)]
    for n in range(200):
        assert client.set(f"k{n}", n) and client.get(f"k{n}") == str(n)
    for n in range(20):
        client.rpush(f"queue:{n}", n)
    assert [list(each()) for each in blocked] == [[f"queue:{n}", str(n)] for n in range(20)]


def test_scans(client):
    keys = {f"scan:{n}" for n in range(1000)}
    client.mset(dict.fromkeys(keys, "v"))
    client.sadd("set", *range(500))
    listed = list(client.scan_iter(match="scan:*", count=50))
    assert len(listed) == 1000 and set(listed) == keys
    assert list(client.scan_iter(_type="set")) == ["set"]
    assert len(set(client.sscan_iter("set"))) == 500
    assert set(client.keys("scan:*")) == keys
    assert client.dbsize() == 1001
    assert client.randomkey() in keys | {"set"}
    assert client.flushdb() is True
    assert client.dbsize() == 0


def test_scripts_and_functions(client):
    script = client.register_script("return {redis.call('incrby', KEYS[1], ARGV[1]), KEYS[1]}")
    for n in range(20):
        assert script(keys=[f"k{n}"], args=[n]) == [n, f"k{n}"]
    assert client.script_exists(script.sha, "0" * 40) == [True, False]
    assert client.script_flush()
    assert client.script_exists(script.sha) == [False]
    # It is loaded again where it was lost.
    assert script(keys=["k1"], args=[1]) == [2, "k1"]
    code = "#!lua name=mine\nredis.register_function('echo', function(k, a) return a[1] end)"
    assert client.function_load(code) == "mine"
    assert [client.fcall("echo", 1, f"k{n}", n) for n in range(10)] == [str(n) for n in range(10)]
    assert "mine" in str(client.function_list())
    assert client.function_delete("mine")


def test_databases(connect, client):
    three = connect(db=3)
    client.set("a", "zero")
    three.set("a", "three")
    assert client.get("a") == "zero" and three.get("a") == "three"
    assert client.dbsize() == three.dbsize() == 1
    three.flushdb()
    assert client.get("a") == "zero" and three.get("a") is None


def test_locks(connect, client):
    mine, others = client.lock("lock", timeout=20), connect().lock("lock", timeout=20)
    assert mine.acquire(blocking=False)
    assert not others.acquire(blocking=False)
    mine.extend(20)
    mine.release()
    assert others.acquire(blocking=False)
    others.release()


def test_the_server_as_a_client_sees_it(client):
    assert client.info("server")["redis_version"]
    assert client.time()[0] > 1_700_000_000
    assert client.command_count() > 200
    assert client.client_setname("me") and client.client_getname() == "me"
    assert client.client_id() > 0
    assert any(each["name"] == "me" for each in client.client_list())
    assert any(each["name"] == "me" for each in client.client_list())
    client.set("a", "1")
    assert client.memory_usage("a") > 0
    assert client.object("encoding", "a") == "int"
    assert client.slowlog_get() is not None
    assert client.config_set("slowlog-max-len", 64)
    assert client.config_get("slowlog-max-len") == {"slowlog-max-len": "64"}


def test_the_asynchronous_client(connect, gateway):
    async def all_of_it():
        client = redis.asyncio.Redis(host=HOST, port=gateway.address, protocol=connect.protocol,
                                     decode_responses=True)
        async with client:
            await asyncio.gather(*(client.set(f"k{n}", n) for n in range(100)))
            assert await client.mget([f"k{n}" for n in range(100)]) == [str(n) for n in range(100)]
            async with client.pipeline(transaction=True) as pipeline:
                assert await pipeline.set("a", 1).incr("a").execute() == [True, 2]
            async with client.pubsub() as subscriber:
                await subscriber.subscribe("news")
                assert (await subscriber.get_message(timeout=20))["type"] == "subscribe"
                assert await client.publish("news", "1") == 1
                assert (await subscriber.get_message(timeout=20))["data"] == "1"
            popped = asyncio.create_task(client.blpop("queue", timeout=20))
            await client.rpush("queue", "job")
            assert list(await popped) == ["queue", "job"]

    asyncio.run(asyncio.wait_for(all_of_it(), 60))
