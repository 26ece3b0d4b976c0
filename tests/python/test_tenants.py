"""Users with a key prefix: none reads or changes what another one has, whatever it asks."""

import random

import pytest

from harness import resp, wait_until
from test_users import login, pool, users

RULES = "on >p ~* &* +@all"
TENANTS = {
    "ann": {"rules": RULES, "key_prefix": "app1:"},
    "bob": {"rules": RULES, "key_prefix": "app2:"},
    "root": RULES,
}


def gateway_of(place, servers=1, rules=TENANTS, **options):
    backends = [place.redis() for _ in range(servers)]
    options = {"users": users(rules), "databases": 2, **options}
    return place.cashew({"alpha": pool(backends, **options)}, {"worker_processes": 1}), backends


def ask(conn, *words):
    conn.send(resp(*words))
    return conn.reply()


@pytest.mark.parametrize("servers", [1, 3])
def test_keys_have_the_prefix_and_replies_do_not(place, servers):
    gateway, backends = gateway_of(place, servers)
    with login(gateway, "ann", "p") as ann, login(gateway, "bob", "p") as bob, login(gateway, "root", "p") as root:
        assert ann.call("MSET", "a", "1", "b", "2", "c", "3") == "OK"
        assert bob.call("SET", "a", "of bob") == "OK"
        assert ann.call("MGET", "a", "b", "c", "app2:a") == [b"1", b"2", b"3", None]
        assert root.call("MGET", "app1:a", "app2:a") == [b"1", b"of bob"]
        assert root.call("EXISTS", "a") == 0
        assert sorted(ann.call("KEYS", "*")) == [b"a", b"b", b"c"]
        assert ann.call("KEYS", "app2:*") == []
        assert bob.call("KEYS", "?") == [b"a"]
        for words in (["SCAN"], ["SCAN", "MATCH", "*"], ["SCAN", "COUNT", "1000", "MATCH", "[abc]"]):
            found, cursor = [], b"0"
            while True:
                cursor, keys = ann.call(words[0], cursor, *words[1:])
                found += keys
                if cursor == b"0":
                    break
            assert sorted(set(found)) == [b"a", b"b", b"c"]
        assert ann.call("DEL", "a", "app2:a", "b") == 2
        assert bob.call("GET", "a") == b"of bob"
        # Of lists and streams.
        assert ann.call("RPUSH", "l", "1", "2", "3") == 3
        assert ann.call("LMPOP", "1", "l", "LEFT") == [b"l", [b"1"]]
        assert ann.call("BLPOP", "l", "0") == [b"l", b"2"]
        identifier = ann.call("XADD", "s", "*", "f", "v")
        assert ann.call("XREAD", "STREAMS", "s", "0") == [[b"s", [[identifier, [b"f", b"v"]]]]]
        assert ann.error("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") == (
            "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option")
        # Who waits, while somebody else gives it.
        with login(gateway, "ann", "p") as other:
            other.call("DEL", "l")
            other.send(resp("BLPOP", "l", "0"))
            other.expect_silence(0.2)
            assert bob.call("RPUSH", "l", "of bob") == 1
            other.expect_silence(0.2)
            assert ann.call("RPUSH", "l", "x") == 1
            assert other.reply() == [b"l", b"x"]
        # Transactions.
        assert ann.call("WATCH", "c") == "OK"
        assert ann.call("MULTI") == "OK"
        assert ann.call("INCR", "c") == "QUEUED"
        assert ann.call("GET", "c") == "QUEUED"
        assert ann.call("EXEC") == [4, b"4"]
        assert root.call("GET", "app1:c") == b"4"
        ann.call("WATCH", "c")
        assert bob.call("SET", "c", "9") == "OK"
        assert root.call("SET", "app1:c", "5") == "OK"
        ann.call("MULTI")
        ann.call("INCR", "c")
        assert ann.call("EXEC") is None
        # Large ones.
        assert ann.call("SET", "large", "x" * (2 << 20)) == "OK"
        assert root.call("STRLEN", "app1:large") == 2 << 20
        # SORT completes names.
        for name, weight in (("x", 2), ("y", 1)):
            ann.call("SET", f"{{l}}w_{name}", str(weight))
        ann.call("RPUSH", "{l}", "x", "y")
        if servers == 1:
            assert ann.call("SORT", "{l}", "BY", "{l}w_*", "GET", "{l}w_*", "GET", "#") == [b"1", b"y", b"2", b"x"]
            bob.call("SET", "w_x", "secret")
            assert ann.call("SORT", "{l}", "BY", "nosort", "GET", "app2:w_*") == [None, None]


def test_resp3(place):
    gateway, _ = gateway_of(place)
    with login(gateway, "ann", "p") as ann:
        ann.call("HELLO", "3")
        identifier = ann.call("XADD", "s", "*", "f", "v")
        ann.send(resp("XREAD", "STREAMS", "s", "0"))
        ann.expect(b"%1\r\n$1\r\ns\r\n")
        assert ann.reply() == [[identifier, [b"f", b"v"]]]


def test_channels(place):
    gateway, _ = gateway_of(place)
    with login(gateway, "ann", "p") as ann, login(gateway, "bob", "p") as bob, login(gateway, "root", "p") as root:
        assert ann.call("SUBSCRIBE", "c") == [b"subscribe", b"c", 1]
        assert ann.call("PSUBSCRIBE", "*x") == [b"psubscribe", b"*x", 2]
        assert bob.call("PUBLISH", "c", "no") == 0
        assert bob.call("PUBLISH", "app1:c", "no") == 0
        assert root.call("PUBLISH", "app1:c", "yes") == 1
        assert ann.reply() == [b"message", b"c", b"yes"]
        with login(gateway, "ann", "p") as other:
            assert other.call("PUBLISH", "xx", "of mine") == 1
        assert ann.reply() == [b"pmessage", b"*x", b"xx", b"of mine"]
        assert ann.call("UNSUBSCRIBE") == [b"unsubscribe", b"c", 1]
        assert ann.call("PUNSUBSCRIBE", "*x") == [b"punsubscribe", b"*x", 0]
        assert bob.call("SSUBSCRIBE", "c") == [b"ssubscribe", b"c", 1]
        assert ann.call("SPUBLISH", "c", "no") == 0
        assert root.call("SPUBLISH", "app2:c", "yes") == 1
        assert bob.reply() == [b"smessage", b"c", b"yes"]


def test_what_cannot_be_kept_apart_is_refused(place):
    gateway, _ = gateway_of(place)
    with login(gateway, "ann", "p") as ann:
        for words in (["EVAL", "return redis.call('get', 'app2:a')", "0"], ["EVALSHA", "0" * 40, "0"], ["RANDOMKEY"],
                      ["FLUSHALL"], ["FLUSHDB"], ["SWAPDB", "0", "1"], ["SELECT", "1"], ["MOVE", "a", "1"],
                      ["MIGRATE", "h", "1", "a", "0", "1"], ["DBSIZE"], ["INFO"], ["MONITOR"], ["SLOWLOG", "GET"],
                      ["CLIENT", "LIST"], ["PUBSUB", "CHANNELS"],
                      ["DEBUG", "OBJECT", "a"], ["CONFIG", "GET", "*"], ["SCRIPT", "LOAD", "return 1"],
                      ["HOTKEYS", "TOP"], ["ACL", "LIST"], ["FCALL", "f", "0"]):
            error = ann.error(*words)
            name = error.split()[1] if error.startswith("ERR") else ""
            assert error.endswith("is not for users with a key prefix"), (words, error, name)
        assert ann.error("SLOWLOG", "GET", "1", "server:x").startswith("ERR")
        assert ann.error("SCAN", "0", "server:x") == "ERR syntax error"
        ann.call("MULTI")
        assert ann.error("KEYS", "*").startswith("ERR KEYS is not for users with a key prefix in a transaction")
        assert ann.error("EXEC").startswith("EXECABORT")
        # A wrong number of arguments stays what it is.
        assert ann.error("GET") == "ERR wrong number of arguments for 'get' command"


def test_a_reload_changes_prefixes(place):
    gateway, _ = gateway_of(place)
    with login(gateway, "ann", "p") as ann, login(gateway, "bob", "p") as bob:
        rules = {**TENANTS, "ann": {"rules": RULES, "key_prefix": "other:"}}
        pools = {"alpha": {**gateway.pools["alpha"], "users": users(rules)}}
        gateway.configure(pools=pools)
        assert "user 'ann': key_prefix: app1: -> other:" in gateway.reload()
        ann.expect_closed()
        assert bob.call("SET", "a", "1") == "OK"
        with login(gateway, "ann", "p") as again, login(gateway, "root", "p") as root:
            again.call("SET", "a", "1")
            assert root.call("EXISTS", "other:a") == 1
        rules["ann"] = {"rules": RULES, "key_prefix": "app2:a"}
        gateway.configure(pools={"alpha": {**gateway.pools["alpha"], "users": users(rules)}})
        assert 'whose key_prefix begins with its own' in gateway.refused_reload()


def test_clients_keep_their_prefix_when_they_move(place):
    gateway, _ = gateway_of(place)
    with login(gateway, "ann", "p") as ann, login(gateway, "ann", "p") as waiting, login(gateway, "root", "p") as root:
        waiting.send(resp("BLPOP", "l", "0"))
        waiting.expect_silence(0.2)
        for workers in (3, 1, 2):
            gateway.configure(worker_processes=workers)
            gateway.reload()
            ann.call("SET", "a", str(workers))
            assert root.call("GET", "app1:a") == b"%d" % workers
        # What was taken back and asked anew has the prefix once.
        assert root.call("RPUSH", "app1:l", "x") == 1
        assert waiting.reply() == [b"l", b"x"]


# Every word that a request may have where a name stands.
NAMES = ["a", "b", "l", "s", "h", "z", "x", "app1:a", "app2:a", "app2:l", "app2:s", "../app2:a", "*", "app2:*", "?", "[a-z]*",
         "\\app2:a", "", "a\r\n*1\r\n$8\r\nFLUSHALL\r\n", "{app2:}a", "__keyspace@0__:app2:a", "STREAMS", "GET", "BY", "STORE",
         "MATCH", "app*", "^", "server:x", "2", "1", "0", "-1", "$", ">", "KEYS", "LIMIT", "COUNT", "WITHSCORES"]
COMMANDS = """GET SET MGET MSET MSETNX DEL UNLINK EXISTS TYPE RENAME RENAMENX COPY DUMP EXPIRE TTL PERSIST OBJECT APPEND STRLEN
GETSET GETDEL GETEX GETRANGE SETRANGE INCR INCRBY LCS LPUSH RPUSH LPOP RPOP LRANGE LMOVE RPOPLPUSH LMPOP BLPOP BRPOP BLMPOP BLMOVE
BRPOPLPUSH SADD SMEMBERS SMOVE SINTER SUNION SDIFF SINTERSTORE SUNIONSTORE SDIFFSTORE SINTERCARD ZADD ZRANGE ZRANGESTORE ZUNION
ZUNIONSTORE ZINTER ZINTERSTORE ZDIFF ZMPOP BZMPOP BZPOPMIN ZPOPMAX HSET HGETALL HGET SORT SORT_RO XADD XRANGE XREAD XREADGROUP
XGROUP XINFO XCLAIM XAUTOCLAIM XPENDING BITOP PFADD PFMERGE PFCOUNT GEOADD GEORADIUS GEOSEARCH GEOSEARCHSTORE SCAN KEYS RANDOMKEY
DBSIZE FLUSHALL FLUSHDB SWAPDB SELECT MOVE MIGRATE RESTORE EVAL EVALSHA EVAL_RO FCALL SCRIPT FUNCTION INFO CONFIG DEBUG MEMORY
CLIENT SLOWLOG HOTKEYS MONITOR PUBSUB PUBLISH SPUBLISH SUBSCRIBE PSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SSUBSCRIBE WATCH UNWATCH MULTI
EXEC DISCARD TOUCH ACL COMMAND WAIT ROUTE LATENCY CLUSTER TIME LOLWUT""".split()
WORDS = ["CREATE", "ENCODING", "LEFT", "RIGHT", "GROUP", "g", "c", "STREAMS", "BLOCK", "1", "MATCH", "COUNT", "BY", "GET", "STORE",
         "return redis.call('get','app2:a')", "TRACKING", "ON", "LIST", "GETKEYS", "AND", "OBJECT", "USAGE", "TOP", "CHANNELS",
         "0.05", "MKSTREAM", "ASC", "FROMLONLAT", "BYRADIUS", "m", "EX", "DB", "REPLACE", "PRINT"]
SECRET = b"secret-of-bob"


def fill(conn):
    conn.call("FLUSHALL")
    for prefix in ("app2:", ""):
        conn.call("MSET", prefix + "a", SECRET, prefix + "x", SECRET)
        conn.call("RPUSH", prefix + "l", SECRET, SECRET)
        conn.call("SADD", prefix + "set", SECRET)
        conn.call("HSET", prefix + "h", "f", SECRET)
        conn.call("ZADD", prefix + "z", "1", SECRET)
        conn.call("XADD", prefix + "s", "1-1", "f", SECRET)


def state(server):
    """All that is not the tenant's, of both databases."""
    found = {}
    with server.connect() as conn:
        for database in (0, 1):
            conn.call("SELECT", str(database))
            for key in conn.call("KEYS", "*"):
                if not key.startswith(b"of-ann:"):
                    found[database, key] = conn.call("DUMP", key)
    return found


def request(choose):
    words = [choose.choice(COMMANDS)]
    for _ in range(choose.choice([0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8])):
        words.append(choose.choice(NAMES if choose.random() < 0.7 else WORDS))
    if words[0] in ("BLPOP", "BRPOP", "BZPOPMIN", "BLMPOP", "BZMPOP", "BLMOVE", "BRPOPLPUSH"):
        at = 1 if words[0] in ("BLMPOP", "BZMPOP") else len(words)
        words[at:at] = ["0.01"]
    if words[0] in ("XREAD", "XREADGROUP") and "BLOCK" in words or words[0] == "WAIT":
        words = ["PING"]
    # What ends or silences the conversation.
    if words[0] == "CLIENT" and len(words) > 1 and words[1].upper() == "REPLY":
        words = ["PING"]
    return words


@pytest.mark.parametrize("seed", range(4))
def test_no_request_reaches_what_others_have(place, seed):
    rules = {**TENANTS, "ann": {"rules": RULES, "key_prefix": "of-ann:"}}
    gateway, [server] = gateway_of(place, rules=rules)
    choose = random.Random(seed)
    with server.connect() as conn:
        fill(conn)
    before = state(server)
    answered, failed = 0, 0
    ann = login(gateway, "ann", "p")
    for _ in range(2500):
        words = request(choose)
        sent = resp(*words)
        if words[0] == "MULTI":
            sent = resp("MULTI") + b"".join(resp(*request(choose)) for _ in range(choose.choice([1, 1, 2, 3])))
            sent += resp("EXEC")
        # What is no command is always answered.
        ann.send(sent + resp("THE-END"))
        seen = ann.read_until(b"'THE-END', with args beginning with: \r\n", 10)
        assert SECRET not in seen, (words, seen)
        # It knows nothing of its own prefix, either, but by errors in transactions.
        assert b"of-ann:" not in seen or words[0] == "MULTI", (words, seen)
        answered += 1
        failed += seen.startswith(b"-")
        if choose.random() < 0.05:
            ann.close()
            ann = login(gateway, "ann", "p")
    ann.close()
    assert state(server) == before
    # Some of it must have done something.
    assert answered - failed > 250, (failed, answered)
    with server.connect() as conn:
        assert any(key.startswith(b"of-ann:") for key in conn.call("KEYS", "*"))


def test_many_keys_take_no_more_time_than_they_are_many(place):
    """A request for a hundred thousand keys is looked at in one go: its work must not grow by their square."""
    rules = {**TENANTS, "cid": "on >p ~k* ~l* +@all"}
    gateway, _ = gateway_of(place, rules=rules)
    words = [word for number in range(50_000) for word in (f"k{number}", "v")]
    for user in ("ann", "cid"):
        with login(gateway, user, "p") as conn:
            assert ask(conn, "MSET", *words) == "OK"
            assert ask(conn, "EXISTS", *words[::2]) == 50_000
    assert "aborted" not in gateway.log() and "killed" not in gateway.log()


def test_a_subscriber_stays_with_its_prefix(place):
    gateway, _ = gateway_of(place)
    with login(gateway, "root", "p") as root, gateway.connect() as conn:
        conn.send(resp("HELLO", "3", "AUTH", "ann", "p"))
        conn.reply()
        conn.send(resp("SUBSCRIBE", "c"))
        assert [conn.read_line() for _ in range(6)] == [b">3", b"$9", b"subscribe", b"$1", b"c", b":1"]
        conn.send(resp("AUTH", "bob", "p"))
        assert conn.read_line() == b"-ERR a subscriber cannot become a user with another key prefix"
        conn.send(resp("UNSUBSCRIBE", "c"))
        assert [conn.read_line() for _ in range(6)] == [b">3", b"$11", b"unsubscribe", b"$1", b"c", b":0"]
        assert conn.call("AUTH", "bob", "p") == "OK"
        assert root.call("PUBLISH", "app1:c", "x") == 0


def test_statistics_by_prefix_are_of_the_keys_that_servers_have(place):
    gateway, _ = gateway_of(place, prefixes="[app1:, app2:]")
    with login(gateway, "ann", "p") as ann:
        for key in ("a", "app2:b", "c"):
            ann.call("GET", key)
    wait_until(lambda: gateway.stats()["alpha"]["prefixes"]["app1:"]["requests"] == 3, "they are counted")
    assert gateway.stats()["alpha"]["prefixes"]["app2:"]["requests"] == 0
