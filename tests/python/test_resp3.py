"""Protocol versions and databases: each client has its own, and no client can tell the gateway from
one Redis by it.

Where there is one server behind the gateway, a redis-server that gets the same bytes says what the
answer is, to the byte.
"""

import random
import threading
import time

import pytest

from harness import ReplyError, resp, server_lines, unnamed, wait_until

END = b"$3\r\nend\r\n"


class Twins:
    """A gateway with one server behind it, and a server of the same kind."""

    def __init__(self, place):
        self.server, self.plain = place.redis(), place.redis()
        pool = {"redis": True, "command_policy": "admin", "servers": server_lines([self.server])}
        self.gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})

    def reset(self):
        self.server.reset()
        self.plain.reset()

    def same(self, requests, version, piece=None):
        """Both answer the same bytes to these requests, in a version that they are greeted in."""
        answers = []
        for address in (self.plain.port, self.gateway.address):
            with self.connect(address, version) as conn:
                conn.send(b"".join(requests) + resp("CLIENT", "REPLY", "ON") + resp("ECHO", "end"),
                          piece)
                answers.append(conn.read_until(END, 60))
        plain, ours = answers
        if plain != ours:
            at = next((i for i, (a, b) in enumerate(zip(plain, ours)) if a != b), min(map(len, answers)))
            start = max(0, at - 200)
            raise AssertionError(f"from byte {at}: a server says {plain[start : at + 200]!r}, "
                                 f"the gateway {ours[start : at + 200]!r}")

    @staticmethod
    def connect(address, version):
        from harness import Conn

        conn = Conn(address)
        greeting = conn.call("HELLO", version)
        if version == 2:
            greeting = dict(zip(greeting[::2], greeting[1::2]))
        assert (greeting[b"proto"], greeting[b"mode"], greeting[b"role"]) == (
            version, b"standalone", b"master")
        return conn


@pytest.fixture(scope="module")
def running(module_place):
    return Twins(module_place)


@pytest.fixture
def twins(running):
    running.reset()
    return running


def requests_of(text):
    return [resp(*line.split()) for line in text.strip().splitlines() if line.strip()]


TYPES = """
    GET none
    SET a 1
    GET a
    INCRBYFLOAT a 0.1
    MGET a none a
    EXPIRE a 100
    OBJECT ENCODING none
    GETDEL none
    HSET h f 1 g 2
    HGETALL h
    HGETALL none
    HMGET h f none
    HGET h none
    HRANDFIELD h 2 WITHVALUES
    HRANDFIELD none
    HSCAN h 0
    RPUSH l a b c
    LRANGE l 0 -1
    LPOP none
    LPOP l 2
    LPOS l none
    LMPOP 2 none none2 LEFT
    LMPOP 1 l LEFT
    SADD s a
    SMEMBERS s
    SMEMBERS none
    SINTER s none
    SUNION s none
    SPOP s 0
    SRANDMEMBER s 1
    SMISMEMBER s a b
    ZADD z 1 a 2.5 b inf c
    ZADD z INCR 1 a
    ZADD z NX INCR 1 a
    ZSCORE z a
    ZSCORE z none
    ZMSCORE z a none c
    ZINCRBY z 0.25 b
    ZRANGE z 0 -1 WITHSCORES
    ZRANGE z 0 -1
    ZPOPMIN z
    ZPOPMIN none
    ZPOPMAX z 2
    ZMPOP 1 none MIN
    ZRANDMEMBER z 1 WITHSCORES
    ZADD y 1 a 2 b
    ZUNION 2 y none WITHSCORES
    ZDIFF 2 y none WITHSCORES
    ZRANK y a
    ZRANK y none
    ZSCAN y 0
    XADD x 1-1 f v
    XADD x 1-2 f v g w
    XRANGE x - +
    XREAD STREAMS x 0
    XREAD STREAMS x $
    XGROUP CREATE x g 0
    XREADGROUP GROUP g c STREAMS x >
    XPENDING x g
    XINFO STREAM x
    XINFO GROUPS x
    XCLAIM x g d 0 1-1
    XAUTOCLAIM x g d 0 0
    GEOADD geo 13.361389 38.115556 p 15.087269 37.502669 c
    GEOPOS geo p none
    GEODIST geo p c km
    GEOSEARCH geo FROMLONLAT 15 37 BYRADIUS 200 km ASC WITHDIST WITHCOORD
    GEOHASH geo p none
    SETBIT bits 7 1
    BITFIELD bits GET u8 0 OVERFLOW FAIL INCRBY u2 100 3
    PFADD hll a b
    PFCOUNT hll
    SET lcs1 ohmytext
    SET lcs2 mynewtext
    LCS lcs1 lcs2
    LCS lcs1 lcs2 IDX WITHMATCHLEN
    SORT l
    DUMP none
    TYPE h
    EVAL return{1,'a',false,{ok='fine'}} 0
    EVAL redis.setresp(3);return{map={a=1}} 0
    EVAL redis.setresp(3);return{double=1.5} 0
    EVAL redis.setresp(3);return{set={a=true}} 0
    EVAL redis.setresp(3);return{big_number='12345678901234567890'} 0
    EVAL redis.setresp(3);return{verbatim_string={string='text',format='txt'}} 0
    EVAL redis.setresp(3);return(redis.call('hgetall',KEYS[1])) 1 h
    EVAL return(redis.call('get',KEYS[1])) 1 none
    EVAL return{err='MY'..' '..'error'} 0
    EVAL error('x') 0
"""

CONNECTION = """
    SELECT 1
    SET a one
    SELECT 0
    GET a
    SELECT 16
    SELECT -1
    SELECT x
    SELECT 2147483648
    SELECT 99999999999999999999
    SELECT
    MOVE a 1
    SET b zero
    MOVE b 1
    MOVE b 0
    MOVE none 16
    MOVE none x
    MOVE none 2147483648
    COPY b c DB 1
    COPY b c DB 16
    COPY b c DB x
    COPY b c DB 2147483648
    COPY b c DB
    COPY b b DB 0
    COPY b b
    SWAPDB 0 1
    GET a
    SWAPDB 0 16
    SWAPDB x 1
    SWAPDB 0 x
    SELECT 1
    DBSIZE
    GET c
    KEYS *
    RANDOMKEY
    FLUSHDB
    DBSIZE
    SELECT 0
    GET a
    CLIENT GETNAME
    CLIENT SETNAME me
    CLIENT GETNAME
    CLIENT SETNAME a\u00e9
    CLIENT NO-EVICT on
    CLIENT NO-EVICT maybe
    CLIENT GETREDIR
    CLIENT TRACKING off
    CLIENT TRACKING maybe
    CLIENT TRACKINGINFO
    CLIENT CACHING yes
    CLIENT REPLY
    CLIENT REPLY maybe
    CLIENT NOPE
    CLIENT REPLY SKIP
    GET a
    GET a
    CLIENT REPLY SKIP
    NOPE
    PING
    CLIENT REPLY OFF
    PING
    GET a
    NOPE
    CLIENT REPLY SKIP
    GET a
    CLIENT REPLY ON
    PING
    HELLO 1
    HELLO 4
    HELLO x
    HELLO 3 AUTH default
    HELLO 2 AUTH nobody x
    HELLO 2 FOO
    HELLO 2 SETNAME
    AUTH x
    AUTH nobody x
    AUTH a b c
    QUIT now
"""


@pytest.mark.parametrize("piece", [None, 1, 7])
@pytest.mark.parametrize("version", [2, 3])
def test_every_type_is_as_a_server_writes_it(twins, version, piece):
    requests = requests_of(TYPES)
    twins.same(requests, version, piece)
    # Everything that is asked about is there now, or gone.
    twins.same(requests[::-1], version, piece)


@pytest.mark.parametrize("piece", [None, 1])
@pytest.mark.parametrize("version", [2, 3])
def test_connections_are_as_with_a_server(twins, version, piece):
    twins.same(requests_of(CONNECTION)[:-1], version, piece)


SINGLE = ["GET", "INCR", "TTL", "STRLEN", "PERSIST", "HGETALL", "SMEMBERS", "LLEN", "TYPE", "GETDEL"]


def random_requests(rng, count):
    """Whatever comes, on few keys, in several databases, in both versions."""
    keys = [f"k{n}" for n in range(6)]
    for _ in range(count):
        key, other = rng.choice(keys), rng.choice(keys)
        yield rng.choice([
            lambda: resp(rng.choice(SINGLE), key),
            lambda: resp("SET", key, rng.randrange(1000)),
            lambda: resp("SET", key, "x" * rng.choice([0, 10, 1000, 40_000])),
            lambda: resp("HSET", key, "f", rng.randrange(100)),
            lambda: resp("ZADD", key, rng.random(), other),
            lambda: resp("ZRANGE", key, 0, -1, "WITHSCORES"),
            lambda: resp("MGET", key, other, "none"),
            lambda: resp("DEL", key, other),
            lambda: resp("MSET", key, 1, other, 2),
            lambda: resp("EXISTS", *keys),
            lambda: resp("SELECT", rng.choice([0, 1, 2, 3, 16])),
            lambda: resp("MOVE", key, rng.randrange(5)),
            lambda: resp("COPY", key, other, "DB", rng.randrange(5), "REPLACE"),
            lambda: resp("CLIENT", "REPLY", "SKIP"),
            lambda: resp("HELLO", rng.choice([2, 3]), "NOPE"),
            lambda: resp("CLIENT", "GETNAME"),
            lambda: resp("CLIENT", "TRACKINGINFO"),
            lambda: b"GET %b\r\n" % key.encode(),
            lambda: resp("RESET") + resp("HELLO", 3, "SETNAME", "me") if rng.random() < 0.2 else b"",
            lambda: resp("SWAPDB", 0, 1) if rng.random() < 0.2 else b"",
        ])()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
def test_random_streams_are_answered_as_by_a_server(twins, seed):
    rng = random.Random(seed)
    requests = list(random_requests(rng, 600))
    pieces = [None, 1, [rng.choice((1, 3, 17, 200, 4000)) for _ in range(100_000)]]
    stream = b"".join(requests)
    answers = []
    for address in (twins.plain.port, twins.gateway.address):
        with twins.connect(address, 2 + seed % 2) as conn:
            conn.send(stream + resp("CLIENT", "REPLY", "ON") + resp("ECHO", "end"), pieces[seed % 3])
            said = conn.read_until(END, 60)
        # Only the numbers of connections may differ.
        parts = said.split(b"$2\r\nid\r\n:")
        answers.append([parts[0]] + [part.split(b"\r\n", 1)[1] for part in parts[1:]])
    assert answers[0] == answers[1]


# --------------------------------------------------------------------------------- several servers


def test_clients_of_all_kinds_share_the_servers_and_nothing_else(place):
    """In each of four databases and both versions clients ask as fast as they can, and change."""
    servers = [place.redis() for _ in range(3)]
    pool = {"redis": True, "servers": server_lines(servers)}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    failures = []
    until = time.monotonic() + 3

    def work(number):
        rng = random.Random(number)
        try:
            with gateway.connect() as conn:
                version, database = 2, 0
                while time.monotonic() < until:
                    if rng.random() < 0.3:
                        version = rng.choice([2, 3])
                        greeting = conn.call("HELLO", version)
                        assert isinstance(greeting, dict if version == 3 else list)
                    if rng.random() < 0.3:
                        database = rng.randrange(4)
                        assert conn.call("SELECT", database) == "OK"
                    keys = [f"{number}:{rng.randrange(100)}" for _ in range(5)]
                    values = [f"{database}:{key}".encode() for key in keys]
                    pairs = [word for pair in zip(keys, values) for word in pair]
                    conn.send(resp("MSET", *pairs) + resp("MGET", *keys, "none") +
                              resp("GET", keys[0]) + resp("GET", "none") + resp("HGETALL", "none"))
                    assert conn.reply() == "OK"
                    assert conn.reply() == [*values, None]
                    assert conn.reply() == values[0]
                    assert conn.raw_reply() == (b"_\r\n" if version == 3 else b"$-1\r\n")
                    assert conn.raw_reply() == (b"%0\r\n" if version == 3 else b"*0\r\n")
        except BaseException as error:
            failures.append((number, error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    for database in range(4):
        for server in servers:
            with server.connect() as direct:
                direct.call("SELECT", database)
                for key in direct.call("KEYS", "*"):
                    assert direct.call("GET", key) == b"%d:" % database + key


def test_commands_for_all_servers_are_for_the_clients_database(place):
    servers = [place.redis() for _ in range(3)]
    pool = {"redis": True, "servers": server_lines(servers)}
    gateway = place.cashew({"alpha": pool})
    with gateway.connect() as zero, gateway.connect() as five:
        five.call("HELLO", 3)
        five.call("SELECT", 5)
        for conn, count in ((zero, 30), (five, 20)):
            pairs = [word for n in range(count) for word in (f"k{n}", n)]
            assert conn.call("MSET", *pairs) == "OK"
        assert (zero.call("DBSIZE"), five.call("DBSIZE")) == (30, 20)
        assert len(five.call("KEYS", "*")) == 20
        found, cursor = set(), b"0"
        while True:
            cursor, page = five.call("SCAN", cursor)
            found.update(page)
            if cursor == b"0":
                break
        assert len(found) == 20
        assert five.call("FLUSHDB") == "OK"
        assert (zero.call("DBSIZE"), five.call("DBSIZE")) == (30, 0)
        assert five.call("RANDOMKEY") is None
        # Several servers' databases cannot be swapped at one instant.
        assert "SWAPDB" in zero.error("SWAPDB", 0, 1)


def test_a_server_with_fewer_databases_is_not_unwell(place):
    few, many = place.redis("--databases", "4"), place.redis()
    pool = {"redis": True, "servers": server_lines([few, many], ["few", "many"]),
            "auto_eject_hosts": True, "server_failure_limit": 1, "hash": "murmur"}
    gateway = place.cashew({"alpha": pool})
    keys = [f"k{n}" for n in range(40)]
    with gateway.connect() as conn, gateway.connect() as other:
        assert conn.call("SELECT", 9) == "OK"
        conn.send(b"".join(resp("SET", key, 1) for key in keys))
        answers = [conn.reply() for _ in keys]
        refused = [answer for answer in answers if isinstance(answer, ReplyError)]
        assert {unnamed(str(error)) for error in refused} == {"ERR DB index is out of range"}
        assert answers.count("OK") == 40 - len(refused) > 0
        for key in keys:
            assert other.call("SET", key, 1) == "OK"
        assert gateway.stats()["alpha"]["server_ejects"] == 0
        assert conn.call("SELECT", 3) == "OK"
        for key in keys:
            assert conn.call("SET", key, 1) == "OK"


def test_where_a_server_does_not_know_hello_clients_stay_with_resp2(place):
    server = place.redis("--rename-command", "HELLO", "")
    # Each worker finds out for itself.
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}},
                           {"worker_processes": 1})
    with gateway.connect() as old, gateway.connect() as new:
        assert old.call("SET", "a", 1) == "OK"
        assert new.call("HELLO", 3)[b"proto"] == 3
        # Only now it turns out.
        assert "NOPROTO" in new.error("GET", "a")
        new.expect_closed()
        assert "NOPROTO" in old.error("HELLO", 3)
        assert old.call("GET", "a") == b"1"
        assert old.call("HELLO", 2)[5] == 2
    assert gateway.stats()["alpha"]["server_ejects"] == 0


def test_connections_that_nobody_needs_any_more_are_closed(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}},
                           {"worker_processes": 1})

    def connections():
        lines = server.call("CLIENT", "LIST").decode().splitlines()
        return sorted(line.split(" resp=")[1].split(" ")[0] + line.split(" db=")[1].split(" ")[0]
                      for line in lines if "cmd=client" not in line)

    with gateway.connect() as plain:
        plain.call("GET", "a")
        with gateway.connect() as conn:
            for version in (2, 3):
                conn.call("HELLO", version)
                for database in (0, 1, 7):
                    conn.call("SELECT", database)
                    conn.call("GET", "a")
            if "30" not in connections():
                pytest.skip("this server does not tell the version of a connection")
            assert connections() == ["20", "21", "27", "30", "31", "37"]
        wait_until(lambda: connections() == ["20"], "connections are given back", 40)
        assert plain.call("GET", "a") is None
