"""Commands without keys over one and over three real redis-servers."""

import random
import re
import threading
import time

import pytest
import redis as redis_py

from harness import HOST, ReplyError, resp, server_lines, wait_until

pytestmark = pytest.mark.certain

POOL = {"redis": True, "command_policy": "admin", "hash": "murmur", "hash_tag": '"{}"'}


class Stack:
    def __init__(self, place):
        self.servers = [place.redis() for _ in range(3)]
        self.only = place.redis()
        three = {**POOL, "servers": server_lines(self.servers, ["one", "two", "three"])}
        one = {**POOL, "servers": server_lines([self.only], ["only"])}
        self.gateway = place.cashew({"three": three, "one": one}, {"worker_processes": 2})
        self.gateway.wait_serving()

    def reset(self):
        for server in (*self.servers, self.only):
            server.reset()
            server.call("SCRIPT", "FLUSH")
            server.call("FUNCTION", "FLUSH")

    def connect(self, pool="three"):
        return self.gateway.connect(pool)

    def client(self, pool="three", **options):
        port = self.gateway.addresses[pool]
        return redis_py.Redis(host=HOST, port=port, protocol=2, **options)


def fill(conn, count, prefix="key"):
    keys = {f"{prefix}:{n}".encode() for n in range(count)}
    conn.send(b"".join(resp("SET", key, "x") for key in keys))
    conn.expect(b"+OK\r\n" * count)
    return keys


def scan_all(connections, *options):
    """All elements of a whole SCAN, each page over another connection."""
    cursor, found, turn = b"0", [], 0
    while True:
        conn = connections[turn % len(connections)]
        cursor, page = conn.call("SCAN", cursor, *options)
        found += page
        turn += 1
        if cursor == b"0":
            return found


# ------------------------------------------------------------------------------- several servers


def test_all_servers_are_counted_listed_and_emptied(stack, conn):
    keys = fill(conn, 300)
    sizes = [server.call("DBSIZE") for server in stack.servers]
    assert min(sizes) > 0 and sum(sizes) == 300
    assert conn.call("DBSIZE") == 300
    assert sorted(conn.call("KEYS", "*")) == sorted(keys)
    assert sorted(conn.call("KEYS", "key:1?")) == [b"key:%d" % n for n in range(10, 20)]
    assert conn.call("KEYS", "nothing") == []
    assert {conn.call("RANDOMKEY") for _ in range(100)} <= keys
    assert conn.call("FLUSHDB", "ASYNC") == "OK"
    assert conn.call("DBSIZE") == 0
    assert conn.call("RANDOMKEY") is None
    fill(conn, 30)
    assert conn.call("FLUSHALL", "SYNC") == "OK"
    assert [server.call("DBSIZE") for server in stack.servers] == [0, 0, 0]


def test_a_random_key_is_found_wherever_it_is(stack, conn):
    for n in range(20):
        conn.call("SET", f"lonely:{n}", "x")
        assert [conn.call("RANDOMKEY") for _ in range(3)] == [b"lonely:%d" % n] * 3
        conn.call("DEL", f"lonely:{n}")


@pytest.mark.parametrize("count", [1, 7, 10, 100, 1000, 100_000])
def test_a_scan_yields_every_key_exactly_once(stack, conn, count):
    """Its pages come over connections to both workers, none of which remembers anything."""
    keys = fill(conn, 1000)
    connections = [stack.connect() for _ in range(4)]
    try:
        found = scan_all(connections, "COUNT", count)
    finally:
        for connection in connections:
            connection.close()
    # A table that does not change is walked without repetition.
    assert len(found) == 1000 and set(found) == keys


def test_a_scan_keeps_its_options(stack, conn):
    fill(conn, 200)
    for n in range(50):
        conn.call("LPUSH", f"list:{n}", "x")
    lists = sorted(b"list:%d" % n for n in range(50))
    assert sorted(scan_all([conn], "TYPE", "list")) == lists
    assert sorted(scan_all([conn], "MATCH", "list:*", "COUNT", "5")) == lists
    assert sorted(stack.client().scan_iter(match="list:1*", _type="list")) == [
        key for key in lists if key.startswith(b"list:1")
    ]
    assert conn.error("SCAN", "0", "COUNT", "x") == "ERR value is not an integer or out of range"
    assert conn.error("SCAN", "x") == "ERR invalid cursor"
    assert conn.error("SCAN") == "ERR wrong number of arguments for 'scan' command"


def test_keys_that_stay_are_found_while_others_come_and_go(stack, conn):
    """Tables grow and shrink under the walk, which may repeat keys but must not leave any out."""
    keys = fill(conn, 500, "stable")
    stop = threading.Event()

    def churn():
        with stack.connect() as other:
            n = 0
            while not stop.is_set():
                batch = [f"fleeting:{n}:{i}" for i in range(2000)]
                other.send(b"".join(resp("SET", key, "x") for key in batch))
                other.expect(b"+OK\r\n" * len(batch))
                other.send(resp("DEL", *batch))
                assert other.reply() == len(batch)
                n += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(5):
            assert keys <= set(scan_all([conn], "COUNT", 20))
    finally:
        stop.set()
        thread.join()


def test_a_cursor_outlives_a_reload_but_not_another_list_of_servers(place):
    servers = [place.redis() for _ in range(3)]
    pool = {**POOL, "servers": server_lines(servers)}
    gateway = place.cashew({"p": pool}, {"worker_processes": 2})
    gateway.wait_serving()
    with gateway.connect() as conn:
        keys = fill(conn, 300)
        cursor, found = conn.call("SCAN", "0", "COUNT", "10")
        gateway.configure({"p": {**pool, "timeout": 5000, "hash": "fnv1a_64"}})
        gateway.reload()
        while cursor != b"0":
            before = cursor
            cursor, page = conn.call("SCAN", cursor, "COUNT", "10")
            found += page
        assert set(found) == keys and len(found) == 300
        gateway.configure({"p": {**pool, "servers": server_lines(servers[:2])}})
        gateway.reload()
        error = conn.error("SCAN", before)
        assert error.startswith("ERR invalid cursor: the servers of this pool are not those")


def test_a_long_list_of_keys_is_bounded_and_given_back(place):
    servers = [place.redis() for _ in range(3)]
    for server in servers:
        server.call("DEBUG", "POPULATE", "200000", "some:long:name:of:a:key")
    pool = {**POOL, "servers": server_lines(servers)}
    gateway = place.cashew(
        {
            "wide": pool,
            "narrow": {**pool, "client_output_max": "4mb", "client_output_pause": "1mb"},
        },
        {"worker_processes": 1},
    )
    gateway.wait_serving()
    with gateway.connect("wide", timeout=60) as conn, gateway.connect("wide") as other:
        before = gateway.memory()
        conn.send(resp("KEYS", "*"))
        # Others are served meanwhile.
        assert other.call("GET", "a") is None
        assert len(conn.reply(60)) == 600_000
        # Replies, and the one made of them.
        assert gateway.memory() < before + 100 * (1 << 20)
        wait_until(lambda: gateway.memory() < before + 16 * (1 << 20), "the memory is given back")
    with gateway.connect("narrow", timeout=60) as conn:
        conn.send(resp("KEYS", "*"))
        conn.expect_closed(60)
    with gateway.connect("narrow") as conn:
        assert conn.call("DBSIZE") == 600_000


def test_scripts_and_functions_are_everywhere(stack, conn):
    sha = conn.call("SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])").decode()
    fill(conn, 20)
    assert [conn.call("EVALSHA", sha, 1, f"key:{n}") for n in range(20)] == [b"x"] * 20
    assert conn.call("SCRIPT", "EXISTS", sha, "0" * 40) == [1, 0]
    stack.servers[1].call("SCRIPT", "FLUSH")
    # A server that has lost it is given it when it is called.
    assert conn.call("SCRIPT", "EXISTS", sha) == [1]
    assert [conn.call("EVALSHA", sha, 1, f"key:{n}") for n in range(20)] == [b"x"] * 20
    assert conn.call("SCRIPT", "FLUSH", "SYNC") == "OK"
    assert conn.call("SCRIPT", "EXISTS", sha) == [0]
    assert [server.call("SCRIPT", "EXISTS", sha) for server in stack.servers] == [[0]] * 3
    assert conn.error("SCRIPT", "KILL").startswith("NOTBUSY ")

    library = "#!lua name=lib\nredis.register_function('f', function(k) return redis.call('GET', k[1]) end)"
    assert conn.call("FUNCTION", "LOAD", library) == b"lib"
    assert [conn.call("FCALL", "f", 1, f"key:{n}") for n in range(20)] == [b"x"] * 20
    assert conn.error("FUNCTION", "LOAD", library) == "ERR Library 'lib' already exists"
    dump = conn.call("FUNCTION", "DUMP")
    assert conn.call("FUNCTION", "DELETE", "lib") == "OK"
    assert [server.call("FUNCTION", "LIST") for server in stack.servers] == [[]] * 3
    assert conn.call("FUNCTION", "RESTORE", dump) == "OK"
    assert len(conn.call("FUNCTION", "LIST")) == 1
    assert conn.call("FUNCTION", "FLUSH") == "OK"


def test_a_script_that_runs_on_one_server_is_killed(stack, conn):
    for server in stack.servers:
        server.call("CONFIG", "SET", "busy-reply-threshold", "50")
    with stack.connect() as busy:
        busy.send(resp("EVAL", "while true do end", 1, "key"))

        def kill():
            try:
                return conn.call("SCRIPT", "KILL") == "OK"
            except ReplyError as error:
                # Redis takes it only when the script has run for a while.
                assert str(error).startswith("NOTBUSY"), error
                return False

        wait_until(kill, "the script is killed")
        assert "Script killed by user" in str(busy.reply())


def test_a_function_that_runs_on_one_server_is_told_and_killed(stack, conn):
    library = "#!lua name=lib\nredis.register_function('forever', function() while true do end end)"
    conn.call("FUNCTION", "LOAD", library)
    for server in stack.servers:
        server.call("CONFIG", "SET", "busy-reply-threshold", "50")
    with stack.connect() as busy, stack.connect() as asker:
        busy.send(resp("FCALL", "forever", 1, "key"))

        def runs():
            stats = asker.call("FUNCTION", "STATS")
            return stats[1] is not None and stats[1][1] == b"forever"

        wait_until(runs, "it is told what runs")
        assert conn.call("FUNCTION", "KILL") == "OK"
        assert "Script killed by user" in str(busy.reply())
        assert conn.call("FUNCTION", "STATS")[1] is None
    conn.call("FUNCTION", "FLUSH")


def test_servers_are_configured_alike_and_told_apart(stack, conn):
    assert conn.call("CONFIG", "SET", "hz", "17") == "OK"
    assert [server.call("CONFIG", "GET", "hz")[1] for server in stack.servers] == [b"17"] * 3
    assert conn.call("CONFIG", "GET", "hz") == [b"hz", b"17"]
    assert conn.call("CONFIG", "SET", "hz", "18", "server:two") == "OK"
    assert [server.call("CONFIG", "GET", "hz")[1] for server in stack.servers].count(b"18") == 1
    assert conn.call("CONFIG", "GET", "hz", "server:two") == [b"hz", b"18"]
    assert conn.error("DBSIZE", "server:nine") == "ERR this pool has no server 'nine'"
    stats = conn.call("MEMORY", "STATS")
    assert {name.decode() for name in stats[::2]} == {"one", "two", "three"}
    assert all(b"peak.allocated" in answer for answer in stats[1::2])
    assert conn.call("MEMORY", "PURGE") == "OK"
    assert conn.call("LATENCY", "LATEST") == []
    assert conn.call("LASTSAVE") > 1_600_000_000


def test_info_adds_up(stack, conn):
    fill(conn, 90)
    info = stack.client().info("everything")
    # Redis-py reads what it reads of a single server.
    assert info["db0"]["keys"] == 90
    assert info["role"] == "master" and info["loading"] == 0
    assert info["cmdstat_set"]["calls"] == 90
    assert info["redis_version"] == "7.0.15"
    assert info["used_memory"] > max(s_info(server)["used_memory"] for server in stack.servers)
    assert info["servers"] == 3 and info["workers"] == 2
    assert info["server0"]["name"] in ("one", "two", "three")
    assert "tcp_port" not in info and info["process_id"] in stack.gateway.workers()
    two = conn.call("INFO", "keyspace", "server:two").decode()
    assert re.search(r"db0:keys=(\d+)", two).group(1) != "90"
    own = conn.call("INFO", "cashew").decode()
    assert own.startswith("# Cashew\r\n") and "# Server" not in own


def test_a_section_of_info_is_that_section(stack, conn):
    fill(conn, 20)
    assert stack.client().info("keyspace") == {"db0": {"keys": 20, "expires": 0, "avg_ttl": 0}}
    assert conn.call("INFO", "nosuch") == b""


def test_each_server_tells_its_own_slow_log(stack, conn):
    conn.call("CONFIG", "SET", "slowlog-log-slower-than", "0")
    try:
        fill(conn, 60)
    finally:
        conn.call("CONFIG", "SET", "slowlog-log-slower-than", "10000")
    told = 0
    for name, server in zip(("one", "two", "three"), stack.servers):
        entries = conn.call("SLOWLOG", "GET", "-1", f"server:{name}")
        assert entries == server.call("SLOWLOG", "GET", "-1")
        told += sum(entry[3][0] == b"SET" for entry in entries)
    assert told == 60
    # The gateway has its own measure.
    own = conn.call("SLOWLOG", "GET", "-1")
    assert all(entry[2] >= 10_000 for entry in own)


def test_latency_is_told_by_event(stack, conn):
    conn.call("CONFIG", "SET", "latency-monitor-threshold", "1")
    try:
        for server, seconds in zip(stack.servers, (0.01, 0.05, 0.02)):
            server.call("DEBUG", "SLEEP", seconds)
        [event] = [event for event in conn.call("LATENCY", "LATEST") if event[0] == b"command"]
        assert event[3] >= 50 and event[2] <= event[3]
        history = conn.call("LATENCY", "HISTORY", "command")
        assert len(history) == 3 and history == sorted(history, key=lambda sample: sample[0])
        assert conn.call("LATENCY", "RESET", "command") == 3
        assert conn.call("LATENCY", "HISTORY", "command") == []
    finally:
        conn.call("CONFIG", "SET", "latency-monitor-threshold", "0")
        conn.call("LATENCY", "RESET")


def test_a_flushed_script_stays_flushed_whichever_worker_was_told(stack):
    conns = {}

    def both_are_there():
        conn = stack.connect()
        info = conn.call("INFO", "cashew").decode()
        conns.setdefault(re.search(r"worker:(\d)", info).group(1), conn)
        return len(conns) == 2

    wait_until(both_are_there, "a connection to each worker")
    one, other = conns.values()
    sha = one.call("SCRIPT", "LOAD", "return 'there'")
    assert [conn.call("EVALSHA", sha, 1, "a") for conn in (one, other)] == [b"there"] * 2
    other.call("EVAL", "return 'there'", 1, "a")
    for teller, asked in ((one, other), (other, one)):
        assert teller.call("SCRIPT", "FLUSH") == "OK"
        assert asked.error("EVALSHA", sha, 1, "a").startswith("NOSCRIPT")
        assert teller.error("EVALSHA", sha, 1, "a").startswith("NOSCRIPT")
        for conn in conns.values():
            assert conn.call("EVAL", "return 'there'", 1, "a") == b"there"
    # What is lost otherwise is healed as ever.
    for server in stack.servers:
        server.call("SCRIPT", "FLUSH")
    assert one.call("EVALSHA", sha, 1, "a") == b"there"


@pytest.mark.parametrize("pool", ["three", "one"])
def test_what_redis_refuses_in_a_transaction_is_refused_in_its_words(stack, pool):
    with stack.connect(pool) as conn, stack.only.connect() as bare:
        for words in (["SAVE"], ["SHUTDOWN", "NOSAVE"], ["SYNC"]):
            assert conn.call("MULTI") == bare.call("MULTI") == "OK"
            assert conn.error(*words) == bare.error(*words)
            assert conn.error("EXEC").split()[0] == bare.error("EXEC").split()[0] == "EXECABORT"


def s_info(server):
    text = server.call("INFO").decode()
    return {key: int(value) for key, value in re.findall(r"(\w+):(\d+)\r\n", text)}


def test_one_dead_server_is_an_error_for_all_but_who_tells_them_apart(place):
    servers = [place.redis() for _ in range(3)]
    pool = {**POOL, "servers": server_lines(servers, ["one", "two", "three"])}
    gateway = place.cashew({"p": pool}, {"worker_processes": 1})
    gateway.wait_serving()
    with gateway.connect() as conn:
        keys = fill(conn, 100)
        servers[1].stop()
        conn.call("MEMORY", "DOCTOR")
        for words in (["DBSIZE"], ["KEYS", "*"], ["FLUSHALL"]):
            assert re.match(r"ERR (Connection refused|Connection reset|Server closed)", conn.error(*words))
        # Nothing was flushed where it could have been, or only where the error came too late.
        answers = dict(zip(*[iter(conn.call("MEMORY", "DOCTOR"))] * 2))
        assert len(answers) == 3
        assert isinstance(answers[b"two"], ReplyError)
        assert not any(isinstance(answers[name], ReplyError) for name in (b"one", b"three"))
        assert "state=failing" in conn.call("INFO", "cashew").decode()
        servers[1].start()
        wait_until(lambda: not failing(conn), "the server is back")
        assert conn.call("DBSIZE") <= len(keys)


def failing(conn):
    try:
        conn.call("DBSIZE")
    except ReplyError:
        return True
    return False


def test_the_ejected_are_left_out(place):
    servers = [place.redis() for _ in range(3)]
    pool = {
        **POOL,
        "servers": server_lines(servers, ["one", "two", "three"]),
        "auto_eject_hosts": True,
        "server_failure_limit": 1,
        "server_retry_timeout": 600_000,
    }
    gateway = place.cashew({"p": pool}, {"worker_processes": 2})
    gateway.wait_serving()
    with gateway.connect() as conn:
        keys = fill(conn, 300)
        gone = servers[1].call("DBSIZE")
        cursor, _ = conn.call("SCAN", "0", "COUNT", "1000")
        order = [line.split("name=")[1].split(",")[0]
                 for line in conn.call("INFO", "cashew").decode().splitlines() if "name=" in line]
        servers[1].stop()
        wait_until(lambda: conn.call("INFO", "cashew").decode().find("state=ejected") > 0 or
                   failing(conn) and False, "the server is ejected")
        assert conn.call("DBSIZE") == 300 - gone
        found = scan_all([conn])
        assert len(found) == 300 - gone and set(found) < keys
        # The walk that was about to enter it says so; others pass it by.
        if order[1] == "two":
            assert "'two', has been ejected" in conn.error("SCAN", cursor)


# ------------------------------------------------------------------------------------ one server


ONE_SERVER = [
    ["DBSIZE"],
    ["KEYS", "*"],
    ["SCAN", "0", "COUNT", "10"],
    ["SCAN", "5"],
    ["SCAN", "x"],
    ["SCAN"],
    ["SCAN", "0", "TYPE", "list"],
    ["SCRIPT", "LOAD", "return 1"],
    ["SCRIPT", "EXISTS", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "x"],
    ["SCRIPT", "KILL"],
    ["SCRIPT", "NONSENSE"],
    ["FUNCTION", "LIST"],
    ["FUNCTION", "STATS"],
    ["CONFIG", "GET", "maxmemory*"],
    ["CONFIG", "SET", "nonsense", "1"],
    ["MEMORY", "DOCTOR"],
    ["SLOWLOG", "LEN"],
    ["LATENCY", "LATEST"],
    ["PUBSUB", "CHANNELS"],
    ["PUBSUB", "NUMSUB", "a", "b"],
    ["LASTSAVE"],
    ["DEBUG", "NONSENSE"],
    ["FLUSHDB", "NONSENSE"],
    ["FLUSHALL"],
]


@pytest.mark.parametrize("words", ONE_SERVER, ids=" ".join)
def test_one_server_answers_itself(stack, words):
    """Byte for byte what it says to a client of its own."""
    with stack.connect("one") as conn, stack.only.connect() as direct:
        fill(direct, 100)
        answers = []
        for asked in (direct, conn):
            asked.send(resp(*words) + resp("ECHO", "end"))
            answers.append(asked.read_until(b"$3\r\nend\r\n"))
        assert answers[0] == answers[1]


def test_info_of_one_server_is_its_own(stack):
    client, direct = stack.client("one"), stack.only
    info = client.info()
    assert info["tcp_port"] == direct.port
    assert info["process_id"] == direct.process.pid
    assert "cashew_version" not in info
    assert client.info("cashew")["servers"] == 1
    assert client.execute_command("DBSIZE", "server:only") == 0


# --------------------------------------------------------------------- keys on several servers


def test_keys_on_several_servers_are_named(stack, conn):
    a, b = keys_apart(stack, conn)
    conn.call("SET", a, "x")
    for words in (["RENAME", a, b], ["COPY", a, b], ["MSETNX", a, "1", b, "2"], ["SUNIONSTORE", a, b]):
        error = conn.error(*words)
        assert error.startswith(f"CROSSSLOT {words[0]} needs its keys on one server, but '")
        assert a in error and b in error and "between { and }" in error
    # What it says helps.
    assert conn.call("RENAME", a, "{%s}:new" % a) == "OK"


def keys_apart(stack, conn):
    """Two keys of different servers."""
    conn.call("SET", "apart:0", "x")
    first = next(server for server in stack.servers if server.call("DBSIZE"))
    for n in range(1, 100):
        conn.call("SET", f"apart:{n}", "x")
        if not first.call("EXISTS", f"apart:{n}"):
            break
    conn.call("FLUSHALL")
    return "apart:0", f"apart:{n}"


def test_keys_are_carried_where_it_is_asked_for(stack, place):
    options = {**POOL, "servers": server_lines(stack.servers, ["one", "two", "three"])}
    gateway = place.cashew({"p": {**options, "cross_server_copy": True}}, {"worker_processes": 2})
    gateway.wait_serving()
    with gateway.connect() as conn:
        a, b = keys_apart(stack, conn)
        conn.call("ZADD", a, "1", "x", "2", "y")
        conn.call("PEXPIRE", a, "100000")
        assert conn.call("RENAME", a, b) == "OK"
        assert conn.call("EXISTS", a) == 0
        assert conn.call("ZRANGE", b, "0", "-1", "WITHSCORES") == [b"x", b"1", b"y", b"2"]
        assert 90_000 < conn.call("PTTL", b) <= 100_000
        assert conn.error("RENAME", a, b) == "ERR no such key"
        assert conn.call("COPY", b, a) == 1
        assert conn.call("COPY", b, a) == 0
        assert conn.call("COPY", b, a, "REPLACE") == 1
        assert conn.call("RENAMENX", a, b) == 0
        conn.call("PERSIST", a)
        assert conn.call("DEL", b) == 1
        assert conn.call("RENAMENX", a, b) == 1
        assert conn.call("TTL", b) == -1
        assert conn.error("COPY", b, a, "DB", "1").startswith("CROSSSLOT COPY ")
        # A large value, and a request behind it in the same write.
        conn.call("SET", a, random.Random(1).randbytes(3_000_000))
        conn.send(resp("RENAME", a, b) + resp("STRLEN", b) + resp("EXISTS", a))
        assert [conn.reply() for _ in range(3)] == ["OK", 3_000_000, 0]
        assert sum(server.call("DBSIZE") for server in stack.servers) == 1


# -------------------------------------------------------------------------- scripts that were lost


def test_a_server_that_lost_its_scripts_gets_them_back(place):
    servers = [place.redis() for _ in range(3)]
    pool = {**POOL, "servers": server_lines(servers)}
    gateway = place.cashew({"p": pool}, {"worker_processes": 1})
    gateway.wait_serving()
    with gateway.connect() as conn:
        loaded = conn.call("SCRIPT", "LOAD", "return redis.call('INCR', KEYS[1])").decode()
        assert conn.call("EVAL", "return {KEYS[1], ARGV[1]}", 1, "key:0", "x") == [b"key:0", b"x"]
        called = servers[0].call("SCRIPT", "LOAD", "return {KEYS[1], ARGV[1]}").decode()
        foreign = servers[0].call("SCRIPT", "LOAD", "return 'by another way'").decode()

        def call_all(count):
            for n in range(30):
                assert conn.call("EVALSHA", loaded, 1, f"key:{n}") == count
                assert conn.call("EVALSHA", called, 1, f"key:{n}", "y")[1] == b"y"

        call_all(1)
        for server in servers:
            server.call("SCRIPT", "FLUSH")
        # It says what a call finds.
        assert conn.call("SCRIPT", "EXISTS", loaded, called, foreign, "0" * 40) == [1, 1, 0, 0]
        call_all(2)
        for server in servers:
            server.stop()
            server.start()
        wait_until(lambda: not failing(conn), "the servers are back")
        # All at once, in the order they are sent.
        conn.send(b"".join(resp("EVALSHA", loaded, 1, f"key:{n % 30}") + resp("GET", f"key:{n % 30}")
                           for n in range(90)))
        for n in range(90):
            assert conn.reply() == n // 30 + 1
            assert conn.reply() == b"%d" % (n // 30 + 1)
        assert conn.error("EVALSHA", "0" * 40, 1, "key").startswith("NOSCRIPT ")
        conn.call("SCRIPT", "FLUSH")
        assert conn.call("SCRIPT", "EXISTS", loaded, called) == [0, 0]
        assert conn.error("EVALSHA", loaded, 1, "key").startswith("NOSCRIPT ")


def test_a_new_server_gets_the_functions_of_the_others(place):
    servers = [place.redis() for _ in range(3)]
    pool = {**POOL, "servers": server_lines(servers[:2])}
    gateway = place.cashew({"p": pool}, {"worker_processes": 2})
    gateway.wait_serving()
    library = "#!lua name=lib\nredis.register_function('f', function(k) return k[1] end)"
    with gateway.connect() as conn:
        assert conn.call("FUNCTION", "LOAD", library) == b"lib"
        gateway.configure({"p": {**pool, "servers": server_lines(servers)}})
        gateway.reload()
        assert servers[2].call("FUNCTION", "LIST") == []
        for n in range(30):
            assert conn.call("FCALL", "f", 1, f"key:{n}") == b"key:%d" % n
        assert len(servers[2].call("FUNCTION", "LIST")) == 1
        assert conn.error("FCALL", "nosuch", 1, "key") == "ERR Function not found"
        # What is deleted does not come back.
        assert conn.call("FUNCTION", "DELETE", "lib") == "OK"
        assert {conn.error("FCALL", "f", 1, f"key:{n}") for n in range(30)} == {
            "ERR Function not found"
        }


# ---------------------------------------------------------------------------------------- waiting


def test_replicas_of_every_server_are_waited_for(place):
    masters = [place.redis() for _ in range(2)]
    replicas = [place.redis("--replicaof", f"{HOST} {m.port}", "--repl-diskless-sync-delay", "0")
                for m in masters]
    pool = {**POOL, "servers": server_lines(masters)}
    one = {**POOL, "servers": server_lines(masters[:1])}
    gateway = place.cashew({"two": pool, "one": one}, {"worker_processes": 1})
    gateway.wait_serving()
    for replica in replicas:
        wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"),
                   "the replica follows")
    for name in ("one", "two"):
        with gateway.connect(name) as conn, gateway.connect(name) as other:
            conn.send(b"".join(resp("SET", f"key:{n}", "x") for n in range(100)) + resp("WAIT", 1, 9000))
            conn.expect(b"+OK\r\n" * 100)
            assert conn.reply() == 1
            assert sum(replica.call("DBSIZE") for replica in replicas) >= 100
            # Nobody else waits, though the time is spent; what follows does.
            conn.send(resp("WAIT", 5, 700) + resp("ECHO", "after"))
            began = time.monotonic()
            assert other.call("GET", "key:1") == b"x"
            assert conn.reply() == 1
            assert time.monotonic() - began > 0.5
            assert conn.reply() == b"after"
            assert conn.error("WAIT", "x", "1") == "ERR value is not an integer or out of range"
    # Who has lost its replica is the least.
    replicas[0].stop()
    with gateway.connect("two") as conn:
        conn.send(b"".join(resp("SET", f"key:{n}", "y") for n in range(10)))
        conn.expect(b"+OK\r\n" * 10)
        assert conn.call("WAIT", 1, 200) == 0
