"""Transactions and blocking calls through the gateway to real servers: with one behind it as with
that one alone, with three as far as keys are together, and nothing left behind by anybody who
leaves, dies or moves."""

import contextlib
import itertools
import threading
import time

import pytest
import redis

from harness import (
    HOST,
    PATIENCE,
    ReplyError,
    resp,
    server_lines,
    wait_until,
    worker_processes,
)


# Half of the clients of each test speak one version of the protocol, half the other.
VERSIONS = itertools.cycle([2, 3])


def pool(*servers, **options):
    # Other hashes put keys that are short and alike on few servers.
    return {"redis": True, "hash": "murmur", "hash_tag": '"{}"',
            "servers": server_lines(servers), **options}


@pytest.fixture(params=[1, 3], ids=["one", "three"])
def gateway(request, place):
    servers = [place.redis() for _ in range(request.param)]
    made = place.cashew({"alpha": pool(*servers)}, {"worker_processes": 2})
    made.wait_serving()
    made.servers = servers
    return made


def client(gateway, **options):
    host, port = HOST, gateway.address
    options = {"protocol": next(VERSIONS), "socket_timeout": 20, **options}
    return redis.Redis(host=host, port=port, decode_responses=True, **options)


def watched(server):
    """Connections of the server in MULTI, or that watch, or that wait."""
    states = []
    for line in server.call("CLIENT", "LIST").decode().splitlines():
        fields = dict(field.split("=", 1) for field in line.split())
        if fields["cmd"] == "client|list":
            continue
        states.append((fields["multi"], fields.get("watch", "0"), "b" in fields["flags"]))
    return states


def is_clean(server):
    return all(multi == "-1" and watch == "0" and not waits
               for multi, watch, waits in watched(server))


def all_clean(gateway):
    wait_until(lambda: all(is_clean(server) for server in gateway.servers),
               "no server has anything open")
    wait_until(lambda: sum(sessions(gateway)) == 0, "all leases are given back")


def sessions(gateway, name="sessions"):
    alpha = gateway.stats()["alpha"]
    return [state[name] for state in alpha.values() if isinstance(state, dict) and name in state]


def blocked(server):
    for line in server.call("INFO", "clients").decode().splitlines():
        if line.startswith("blocked_clients:"):
            return int(line.split(":")[1])
    raise AssertionError("no blocked_clients")


def all_blocked(gateway):
    return sum(blocked(server) for server in gateway.servers)


# ------------------------------------------------------------------------------- transactions


def test_pipelines_are_executed_as_one(gateway):
    with client(gateway) as r:
        with r.pipeline(transaction=True) as pipe:
            for n in range(100):
                pipe.set(f"{{x}}{n}", n)
            pipe.get("{x}7").incr("{x}7")
            result = pipe.execute()
        assert result == [True] * 100 + ["7", 8]
        with r.pipeline(transaction=True) as pipe:
            pipe.lpush("{x}7", 1).get("{x}8")
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                pipe.execute()
    all_clean(gateway)


def test_check_and_set_loses_no_update(gateway):
    """Ten clients count to 20 each, by WATCH, GET and SET."""
    def count(failures):
        try:
            with client(gateway) as r:
                for _ in range(20):
                    def step(pipe):
                        value = int(pipe.get("{n}count") or 0)
                        pipe.multi()
                        pipe.set("{n}count", value + 1)
                        pipe.set("{n}last", value)
                    r.transaction(step, "{n}count", "{n}last")
        except Exception as error:  # noqa: BLE001 – told below
            failures.append(error)

    failures = []
    threads = [threading.Thread(target=count, args=(failures,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    with client(gateway) as r:
        assert r.mget("{n}count", "{n}last") == ["200", "199"]
    all_clean(gateway)


def test_words_are_those_of_a_server_of_ones_own(gateway):
    """What is asked in and around MULTI gets the answers of a bare Redis."""
    script = [
        ["EXEC"], ["DISCARD"], ["UNWATCH"], ["MULTI"], ["MULTI"], ["PING"], ["SET", "{x}a", "1"],
        ["INCR", "{x}a"], ["WATCH", "{x}a"], ["GET", "{x}a"], ["ECHO", "x"], ["EXEC"],
        ["WATCH", "{x}a", "{x}b"], ["SET", "{x}a", "5"], ["MULTI"], ["GET", "{x}a"], ["EXEC"],
        ["GET", "{x}a"], ["WATCH", "{x}a"], ["MULTI"], ["DISCARD"], ["MULTI"], ["NOPE"], ["GET"],
        ["SET", "{x}a", "6"], ["EXEC"], ["GET", "{x}a"], ["MULTI"], ["EXEC"], ["MULTI"],
        ["LPUSH", "{x}a", "1"], ["BLPOP", "{x}l", "0"], ["UNWATCH"], ["EXEC"],
        ["WATCH", "{x}a"], ["UNWATCH"], ["MULTI"], ["SET", "{x}a", "7"], ["RESET"], ["EXEC"],
        ["GET", "{x}a"], ["MULTI"], ["EVAL", "return 5", "0"], ["EVAL", "return 1", "x"], ["EXEC"],
        ["MULTI"], ["SET", "{x}a", "1", "NX", "XX"], ["QUIT"],
    ]

    def play(conn):
        answers = []
        for words in script:
            conn.send(resp(*words))
            answers.append(conn.raw_reply())
        conn.expect_closed()
        return answers

    with gateway.connect() as conn:
        got = play(conn)
    bare = gateway.servers[0]
    for server in gateway.servers:
        server.reset()
    with bare.connect() as conn:
        expected = play(conn)
    for words, one, other in zip(script, got, expected):
        assert one == other, words
    all_clean(gateway)


def test_keys_apart_are_refused_with_the_remedy(place):
    servers = [place.redis() for _ in range(3)]
    gateway = place.cashew({"alpha": pool(*servers)})
    gateway.servers = servers
    with gateway.connect() as conn:
        assert conn.call("MULTI") == "OK"
        assert conn.call("SET", "a", "1") == "QUEUED"
        apart = 0
        for n in range(30):
            try:
                assert conn.call("SET", f"key:{n}", "1") == "QUEUED"
            except ReplyError as error:
                apart += 1
                assert f"CROSSSLOT SET 'key:{n}' is for server" in str(error)
                assert "keys with the same part between { and } share a server" in str(error)
        assert apart > 0
        assert conn.error("EXEC") == "EXECABORT Transaction discarded because of previous errors."
        assert conn.call("EXISTS", "a", *(f"key:{n}" for n in range(30))) == 0
    all_clean(gateway)


def test_who_goes_in_the_middle_leaves_nothing(gateway):
    conns = [gateway.connect() for _ in range(12)]
    for at, conn in enumerate(conns):
        if at % 2:
            assert conn.call("WATCH", f"{{{at}}}w") == "OK"
        assert conn.call("MULTI") == "OK"
        assert conn.call("SET", f"{{{at}}}w", "1") == "QUEUED"
    for at, conn in enumerate(conns):
        conn.reset() if at % 3 else conn.close()
    all_clean(gateway)
    with gateway.connect() as conn:
        assert conn.call("EXISTS", *(f"{{{at}}}w" for at in range(12))) == 0


def test_a_server_that_dies_aborts_and_others_go_on(gateway):
    with gateway.connect() as conn:
        assert conn.call("MULTI") == "OK"
        assert conn.call("SET", "{x}a", "1") == "QUEUED"
        holder = next(s for s in gateway.servers if not is_clean(s))
        holder.stop()
        wait_until(lambda: sum(sessions(gateway)) == 0, "the lease is lost")
        assert conn.error("SET", "{x}a", "2")
        assert conn.error("EXEC").startswith("EXECABORT")
        holder.start()

        def works():
            with contextlib.suppress(ReplyError):
                return conn.call("GET", "{x}a") is None
            return False

        wait_until(works, "the server is back")
    all_clean(gateway)


def test_transactions_have_the_clients_version_and_database(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool(server, databases=4, session_connections=2)},
                           {"worker_processes": 1})
    gateway.servers = [server]
    for turn in range(20):
        version, database = 2 + turn % 2, turn % 4
        with client(gateway, protocol=version, db=database) as r:
            r.hset("h", mapping={"field": turn})
            with r.pipeline(transaction=True) as pipe:
                pipe.watch("h")
                assert pipe.hgetall("h") == {"field": str(turn)}
                pipe.multi()
                pipe.hgetall("h").set("db", database)
                assert pipe.execute() == [{"field": str(turn)}, True]
            assert r.blpop("none", 0.01) is None
    with gateway.connect() as conn:
        for database in range(4):
            assert conn.call("SELECT", str(database)) == "OK"
            assert conn.call("GET", "db") == str(database).encode()
        # The database may change while something is watched.
        assert conn.call("SELECT", "1") == "OK"
        assert conn.call("WATCH", "db") == "OK"
        assert conn.call("SELECT", "2") == "OK"
        assert conn.call("SET", "db", "other") == "OK"
        assert conn.call("MULTI") == "OK"
        assert conn.call("GET", "db") == "QUEUED"
        assert conn.call("EXEC") == [b"other"]
        assert conn.call("SELECT", "1") == "OK"
        assert conn.call("WATCH", "db") == "OK"
        assert conn.call("SET", "db", "mine") == "OK"
        assert conn.call("SELECT", "2") == "OK"
        assert conn.call("MULTI") == "OK"
        assert conn.call("GET", "db") == "QUEUED"
        assert conn.call("EXEC") is None
    all_clean(gateway)


@pytest.mark.parametrize("version", [2, 3])
def test_select_in_a_transaction_is_for_what_follows(gateway, version):
    with gateway.connect() as conn:
        conn.call("HELLO", str(version))
        for database in range(4):
            assert conn.call("SELECT", str(database)) == "OK"
            assert conn.call("SET", "key", str(database)) == "OK"
        assert conn.call("MULTI") == "OK"
        words = [("SELECT", "1"), ("GET", "key"), ("SELECT", "16"), ("SELECT", "2"), ("GET", "key")]
        for command in words:
            assert conn.call(*command) == "QUEUED"
        # What follows in the same packet has the database already.
        conn.send(resp("EXEC") + resp("GET", "key"))
        first, one, wrong, second, two = conn.reply()
        assert (first, one, second, two) == ("OK", b"1", "OK", b"2")
        assert str(wrong) == "ERR DB index is out of range"
        assert conn.reply() == b"2"
        # What is not executed selects nothing.
        for end in ["DISCARD", "EXEC"]:
            assert conn.call("WATCH", "key") == "OK"
            with gateway.connect() as other:
                assert other.call("SELECT", "2") == "OK"
                assert other.call("SET", "key", "2") == "OK"
            assert conn.call("MULTI") == "OK"
            assert conn.call("SELECT", "3") == "QUEUED"
            assert conn.call("GET", "key") == "QUEUED"
            assert conn.call(end) == ("OK" if end == "DISCARD" else None)
            assert conn.call("GET", "key") == b"2"
        # Others that get the connection have their own database.
        with gateway.connect() as other:
            for _ in range(20):
                assert other.call("MULTI") == "OK"
                assert other.call("GET", "key") == "QUEUED"
                assert other.call("EXEC") == [b"0"]
    all_clean(gateway)


# ------------------------------------------------------------------------------------ blocking


def pop_later(gateway, key, results, timeout=0):
    def run():
        with client(gateway, socket_timeout=60) as r:
            results.append((key, tuple(r.blpop(key, timeout))))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_elements_reach_those_who_wait(gateway):
    results = []
    threads = [pop_later(gateway, f"{{{n}}}q", results) for n in range(40)]
    wait_until(lambda: all_blocked(gateway) == 40, "all wait")
    wait_until(lambda: sum(sessions(gateway)) == 40, "all are counted")
    with client(gateway) as r:
        # Others are not held up.
        started = time.monotonic()
        assert r.get("anything") is None
        assert time.monotonic() - started < 5
        for n in range(40):
            assert r.rpush(f"{{{n}}}q", n) == 1
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(results) == sorted((f"{{{n}}}q", (f"{{{n}}}q", str(n))) for n in range(40))
    all_clean(gateway)


def test_every_kind_of_wait(gateway):
    with client(gateway, protocol=2) as r:
        assert r.blpop("{x}none", 0.1) is None
        r.rpush("{x}l", 1, 2, 3, 4)
        assert r.brpop(["{x}none", "{x}l"], 0) == ("{x}l", "4")
        assert r.blmove("{x}l", "{x}m", 0) == "1"
        assert r.brpoplpush("{x}l", "{x}m", 0) == "3"
        assert r.blmpop(0, 1, "{x}l", direction="LEFT") == ["{x}l", ["2"]]
        r.zadd("{x}z", {"a": 1, "b": 2, "c": 3})
        assert r.bzpopmin("{x}z", 0) == ("{x}z", "a", 1.0)
        assert r.bzpopmax("{x}z", 0) == ("{x}z", "c", 3.0)
        assert r.bzmpop(0, 1, ["{x}z"], min=True) == ["{x}z", [["b", "2"]]]
        r.xadd("{x}s", {"f": "v"}, id="1-1")
        assert r.xread({"{x}s": "0"}, block=0) == [["{x}s", [("1-1", {"f": "v"})]]]
        assert r.xread({"{x}s": "$"}, block=50) == []
        r.xgroup_create("{x}s", "g", "0")
        assert r.xreadgroup("g", "c", {"{x}s": ">"}, block=0) == [["{x}s", [("1-1", {"f": "v"})]]]
        with pytest.raises(redis.ResponseError, match="timeout is not a float"):
            r.blpop("{x}l", "x")
    all_clean(gateway)


def test_nothing_is_popped_for_who_is_gone(gateway):
    conns = [gateway.connect() for _ in range(20)]
    for n, conn in enumerate(conns):
        conn.send(resp("BLPOP", f"{{{n % 5}}}q", "0"))
    wait_until(lambda: all_blocked(gateway) == 20, "all wait")
    for n, conn in enumerate(conns):
        (conn.reset, conn.close, conn.half_close)[n % 3]()
    wait_until(lambda: all_blocked(gateway) == 0, "nobody waits any more")
    with client(gateway) as r:
        for n in range(5):
            assert r.rpush(f"{{{n}}}q", "x") == 1
            assert r.llen(f"{{{n}}}q") == 1
    all_clean(gateway)


def test_more_wait_than_there_are_connections(place):
    server = place.redis()
    gateway = place.cashew(
        {"alpha": pool(server, session_connections=4, session_wait_timeout=60_000)},
        {"worker_processes": 1})
    gateway.servers = [server]
    results = []
    threads = [pop_later(gateway, f"q{n % 3}", results) for n in range(24)]
    wait_until(lambda: sum(sessions(gateway, "in_line")) == 20, "twenty are in line")
    wait_until(lambda: blocked(server) == 4 and sessions(gateway) == [4], "four wait at the server")
    with client(gateway) as r:
        done = 0
        deadline = time.monotonic() + 60
        while done < 24:
            assert time.monotonic() < deadline, results
            for n in range(3):
                if r.llen(f"q{n}") == 0:
                    r.rpush(f"q{n}", "x")
            time.sleep(0.01)
            done = len(results)
    for thread in threads:
        thread.join(PATIENCE)
    all_clean(gateway)


def test_who_finds_no_connection_is_told(place):
    server = place.redis()
    gateway = place.cashew(
        {"alpha": pool(server, session_connections=1, session_wait_timeout=1500)},
        {"worker_processes": 1})
    gateway.servers = [server]
    with gateway.connect() as holder, gateway.connect() as late:
        # One that does nothing would have to give its connection up.
        holder.send(resp("BLPOP", "held", "0"))
        wait_until(lambda: blocked(server) == 1, "it waits")
        assert "session_connections of pool alpha" in late.error("BLPOP", "l", "0")
        assert late.call("MULTI") == "OK"
        assert "session_connections" in late.error("SET", "a", "1")
        assert late.error("EXEC").startswith("EXECABORT")
        with server.connect() as direct:
            direct.call("RPUSH", "held", "x")
        assert holder.reply() == [b"held", b"x"]
        assert late.call("BLPOP", "l", "0.05") is None
    all_clean(gateway)


# ------------------------------------------------------------------------------------- changes


def test_a_reload_that_moves_keys(place):
    """Who waits goes on where its key is now, what was open is aborted or asked to try again."""
    servers = [place.redis() for _ in range(3)]
    gateway = place.cashew({"alpha": pool(*servers[:2])}, {"worker_processes": 2})
    gateway.wait_serving()
    gateway.servers = servers
    results = []
    threads = [pop_later(gateway, f"{{{n}}}q", results) for n in range(30)]
    wait_until(lambda: all_blocked(gateway) == 30, "all wait")
    with gateway.connect() as queueing, gateway.connect() as watching:
        assert watching.call("WATCH", "w") == "OK"
        assert queueing.call("MULTI") == "OK"
        assert queueing.call("SET", "m", "1") == "QUEUED"
        gateway.configure({"alpha": pool(*servers)})
        started = time.monotonic()
        gateway.reload()
        assert time.monotonic() - started < 5
        assert "not answered in time" not in gateway.log()
        wait_until(lambda: all_blocked(gateway) == 30, "all wait again")
        assert blocked(servers[2]) > 0
        assert queueing.call("SET", "m", "2") == "QUEUED"
        assert "EXECABORT" in queueing.error("EXEC")
        assert watching.call("MULTI") == "OK"
        assert watching.call("SET", "w", "1") == "QUEUED"
        assert watching.call("EXEC") is None
    with client(gateway) as r:
        assert r.mget("m", "w") == [None, None]
        for n in range(30):
            r.rpush(f"{{{n}}}q", n)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(results) == 30
    all_clean(gateway)


def test_a_resize_takes_along_who_waits(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool(server)},
                           {"worker_processes": 4, "worker_shutdown_timeout": 20})
    gateway.wait_serving()
    gateway.servers = [server]
    results = []
    threads = [pop_later(gateway, f"q{n}", results) for n in range(30)]
    wait_until(lambda: blocked(server) == 30, "all wait")
    with gateway.connect() as conn:
        assert conn.call("MULTI") == "OK"
        assert conn.call("SET", "a", "1") == "QUEUED"
        gateway.configure(worker_processes=1)
        gateway.reload()
        wait_until(lambda: blocked(server) == 30, "all wait again")
        # Wherever it is by now, it ends as it was begun.
        assert conn.call("INCR", "a") == "QUEUED"
        assert conn.call("EXEC") == ["OK", 2]
        wait_until(lambda: len(worker_processes(gateway.pid)) == 1, "one worker is left")
        assert conn.call("GET", "a") == b"2"
    wait_until(lambda: blocked(server) == 30, "all wait with it")
    with client(gateway) as r:
        for n in range(30):
            r.rpush(f"q{n}", n)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(results) == 30
    all_clean(gateway)


def test_an_upgrade_takes_along_who_waits(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool(server)},
                           {"worker_processes": 2, "worker_shutdown_timeout": 20})
    gateway.wait_serving()
    gateway.servers = [server]
    results = []
    threads = [pop_later(gateway, f"q{n}", results) for n in range(20)]
    wait_until(lambda: blocked(server) == 20, "all wait")
    before = set(worker_processes(gateway.pid))
    done = gateway.order("upgrade")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not before & set(worker_processes(gateway.pid)), "new workers only")
    wait_until(lambda: blocked(server) == 20, "all wait again")
    with client(gateway) as r:
        for n in range(20):
            r.rpush(f"q{n}", n)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(results) == 20
    all_clean(gateway)
