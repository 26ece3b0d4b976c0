"""Users whose requests go to another pool or route than those of others at the same port."""

import json
import os
import threading
import time

import pytest
import redis

from certificates import Authority
from harness import HOST, ReplyError, free_port, resp, server_lines, wait_until, worker_processes
from test_external_auth import Service
from test_users import binary_call, login, refused, users

ALL = "~* &* +@all"
ELSEWHERE = "ERR {} cannot become user 'ann', whose requests go elsewhere"


def rules(**routes):
    """Users with the password p, by the routes that they have. Who says nothing is `default`."""
    found = {"default": f"on nopass {ALL}"}
    for name, route in {"ann": "beta", "bob": None, **routes}.items():
        more = {"route": route} if route else {}
        found[name] = {"rules": f"on {'nopass' if name == 'default' else '>p'} {ALL}", **more}
    return users(found)


class Pools:
    """Pools of a server each. Users of the first may go to others, which have ports unless they are `hidden`."""

    def __init__(self, place, names=("alpha", "beta"), redis=True, workers=1, given=None, routes=None,
                 hidden=False, **options):
        make = place.redis if redis else place.memcached
        self.servers = {name: make() for name in names}
        self.head = {"redis": True} if redis else {}
        pools = {name: {**self.head, "servers": server_lines([server])} for name, server in self.servers.items()}
        for name in self.servers if hidden else ():
            pools[name] |= {"listen": None} if name != "alpha" else {}
        pools["alpha"] |= {"users": given or rules(), **options}
        self.gateway = place.cashew({**pools, **(routes or {})}, {"worker_processes": workers})

    def __getitem__(self, name):
        return self.servers[name]

    def mark(self):
        """Each server says which it is."""
        for name, server in self.servers.items():
            with server.connect() as conn:
                conn.call("SET", "who", name)
        return self

    def reload(self, **of_alpha):
        pools = self.gateway.pools
        self.gateway.configure({**pools, "alpha": {**pools["alpha"], **of_alpha}})
        return self.gateway.reload()


def who(conn):
    return conn.call("GET", "who").decode()


def test_a_login_sends_requests_elsewhere(place):
    pools = Pools(place, hidden=True).mark()
    with login(pools.gateway, "ann", "p") as ann, pools.gateway.connect() as conn:
        assert (who(ann), who(conn)) == ("beta", "alpha")
        assert ann.call("MSET", "x", "1", "y", "2") == "OK"
        assert ann.call("DBSIZE") == 3 and conn.call("DBSIZE") == 1
        assert sorted(ann.call("SCAN", "0", "COUNT", "100")[1]) == [b"who", b"x", b"y"]
        assert pools["beta"].call("GET", "y") == b"2" and pools["alpha"].call("EXISTS", "x", "y") == 0
        # And back.
        assert ann.call("AUTH", "bob", "p") == "OK" and who(ann) == "alpha"
        assert ann.call("AUTH", "ann", "p") == "OK" and who(ann) == "beta"
        assert ann.call("RESET") == "RESET" and who(ann) == "alpha"
        assert refused(ann, "AUTH", "ann", "q").startswith("WRONGPASS") and who(ann) == "alpha"
    for protocol in (2, 3):
        with redis.Redis(HOST, pools.gateway.address, username="ann", password="p", protocol=protocol) as client:
            assert client.get("who") == b"beta"
            assert client.eval("return redis.call('GET', KEYS[1])", 1, "who") == b"beta"
            pipe = client.pipeline(transaction=True)
            assert pipe.get("who").incr("n").execute()[0] == b"beta"
    assert pools["beta"].call("GET", "n") == b"2"


def test_pipelines_across_logins(place):
    """What is ahead of a login goes where its client went, what is behind it elsewhere; in their order."""
    pools = Pools(place, workers=2).mark()
    words, expected = [], []
    for turn in range(40):
        name, pool = [("ann", "beta"), ("bob", "alpha")][turn % 2]
        words += [resp("AUTH", name, "p") if turn % 3 else resp("HELLO", "3" if turn % 4 else "2", "AUTH", name, "p")]
        words += [resp("GET", "who"), resp("INCR", "n"), resp("MGET", "who", "none"), resp("SET", f"k{turn}", "v")]
        expected.append(pool.encode())
    conns = [pools.gateway.connect() for _ in range(4)]
    for conn in conns:
        conn.send(b"".join(words))
    for conn in conns:
        for pool in expected:
            login_reply, name, number, names, ok = [conn.reply() for _ in range(5)]
            assert not isinstance(login_reply, ReplyError) and ok == "OK"
            assert (name, names) == (pool, [pool, None]) and isinstance(number, int)
        conn.close()
    assert [int(pools[name].call("GET", "n")) for name in ("alpha", "beta")] == [80, 80]
    assert pools["beta"].call("EXISTS", "k0", "k1", "k2") == 2


def test_an_order_is_kept_though_both_pools_have_the_same_server(place):
    """Whichever way the requests take to it."""
    server = place.redis()
    both = {"redis": True, "servers": server_lines([server])}
    gateway = place.cashew({"alpha": {**both, "users": rules(), "server_connections": 3},
                            "beta": {"listen": None, **both, "server_connections": 2}}, {"worker_processes": 1})
    with gateway.connect() as conn:
        for turn in range(300):
            name = ["ann", "bob"][turn % 2]
            conn.send(resp("APPEND", "log", f"{turn},") * 3 + resp("AUTH", name, "p") + resp("GET", "log"))
            *_, log = [conn.reply() for _ in range(5)]
            assert log.decode().endswith(f"{turn}," * 3)
    assert len(server.call("GET", "log").split(b",")) == 901


def test_a_route_of_a_user(place):
    """To a route of the file, and to one that reads and writes by other rules."""
    routes = {"by": {"redis": True, "route": "{prefix: {'': beta, 'c:': gamma}}"},
              "split": {"redis": True, "route": "{operation: {read: beta, write: gamma}}"}}
    pools = Pools(place, ("alpha", "beta", "gamma"), given=rules(eve="by", zoe="split"), routes=routes).mark()
    with login(pools.gateway, "eve", "p") as eve, login(pools.gateway, "zoe", "p") as zoe:
        assert who(eve) == "beta" and who(zoe) == "beta"
        assert eve.call("MSET", "x", "1", "c:x", "2") == "OK"
        assert eve.call("MGET", "c:x", "x") == [b"2", b"1"]
        assert pools["beta"].call("KEYS", "*x") == [b"x"] and pools["gamma"].call("KEYS", "*x") == [b"c:x"]
        assert refused(eve, "DBSIZE") == "ERR DBSIZE is about all servers, and this route leads to 2 pools: ask them"
        assert zoe.call("SET", "who", "new") == "OK" and who(zoe) == "beta"
        assert pools["gamma"].call("GET", "who") == b"new"
        # Who logs in elsewhere from a route stands at none of its pools any more.
        assert eve.call("AUTH", "bob", "p") == "OK" and who(eve) == "alpha"
        assert eve.call("DBSIZE") == 1
        assert eve.call("AUTH", "ann", "p") == "OK" and who(eve) == "beta"


def test_who_says_nothing_may_have_a_route(place):
    pools = Pools(place, ("alpha", "beta", "gamma"), given=rules(default="gamma")).mark()
    with pools.gateway.connect() as conn:
        assert who(conn) == "gamma"
        assert conn.call("AUTH", "bob", "p") == "OK" and who(conn) == "alpha"
        assert conn.call("RESET") == "RESET" and who(conn) == "gamma"


def test_databases_go_along(place):
    pools = Pools(place, ("alpha", "beta", "gamma"), given=rules(eve="gamma")).mark()
    for name in ("alpha", "beta"):
        with pools[name].connect() as conn:
            conn.call("SELECT", "3")
            conn.call("SET", "who", f"{name}-3")
    with pools.gateway.connect() as conn:
        conn.send(b"".join(resp(*words) for words in [("SELECT", "3"), ("GET", "who"), ("AUTH", "ann", "p"), ("GET", "who"),
                                                      ("SELECT", "0"), ("GET", "who"), ("AUTH", "bob", "p"), ("GET", "who")]))
        assert [conn.reply() for _ in range(8)] == ["OK", b"alpha-3", "OK", b"beta-3", "OK", b"beta", "OK", b"alpha"]
    # Where a pool has fewer.
    gateway = pools.gateway
    gateway.configure({**gateway.pools, "gamma": {**gateway.pools["gamma"], "databases": 2}})
    gateway.reload()
    with login(gateway, "bob", "p") as conn:
        conn.call("SELECT", "3")
        assert refused(conn, "AUTH", "eve", "p") == \
            "ERR a client with this database cannot become user 'eve', whose requests go elsewhere"
        conn.call("SELECT", "1")
        assert conn.call("AUTH", "eve", "p") == "OK"
        assert refused(conn, "SELECT", "3") == "ERR DB index is out of range"


def test_transactions_and_blocking_calls(place):
    pools = Pools(place).mark()
    with login(pools.gateway, "ann", "p") as ann, pools.gateway.connect() as conn:
        conn.call("WATCH", "k")
        assert refused(conn, "AUTH", "ann", "p") == ELSEWHERE.format("a client with a transaction or WATCH")
        assert conn.call("AUTH", "bob", "p") == "OK"
        conn.call("MULTI")
        conn.call("GET", "who")
        assert conn.call("EXEC") == [b"alpha"]
        # One's own watch is where one's requests go.
        ann.call("WATCH", "k")
        pools["alpha"].call("SET", "k", "1")
        ann.call("MULTI")
        ann.call("GET", "who")
        assert ann.call("EXEC") == [b"beta"]
        ann.call("WATCH", "k")
        pools["beta"].call("SET", "k", "1")
        ann.call("MULTI")
        ann.call("GET", "who")
        assert ann.call("EXEC") is None
        ann.send(resp("BLPOP", "l", "5") + resp("AUTH", "bob", "p") + resp("GET", "who"))
        wait_until(lambda: b"blocked_clients:1" in pools["beta"].call("INFO", "clients"), "it waits there")
        pools["beta"].call("RPUSH", "l", "x")
        assert [ann.reply() for _ in range(3)] == [[b"l", b"x"], "OK", b"alpha"]


def test_channels_are_where_the_user_is(place):
    pools = Pools(place)
    with login(pools.gateway, "ann", "p") as ann, login(pools.gateway, "bob", "p") as bob, pools.gateway.connect() as conn:
        for one in (ann, bob):
            assert one.call("SUBSCRIBE", "c") == [b"subscribe", b"c", 1]
        assert pools["beta"].call("PUBLISH", "c", "from beta") == 1
        assert pools["alpha"].call("PUBLISH", "c", "from alpha") == 1
        assert ann.reply() == [b"message", b"c", b"from beta"]
        assert bob.reply() == [b"message", b"c", b"from alpha"]
        conn.call("AUTH", "ann", "p")
        assert conn.call("PUBLISH", "c", "by ann") == 1
        assert ann.reply() == [b"message", b"c", b"by ann"]
        # With RESP3 a subscriber can log in; not as somebody whose channels are elsewhere.
        conn.call("HELLO", "3")
        conn.call("AUTH", "bob", "p")
        conn.send(resp("SUBSCRIBE", "c"))
        conn.expect(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")
        assert refused(conn, "AUTH", "ann", "p") == ELSEWHERE.format("a subscriber")
        # A reload that moves channels closes who listens.
        assert "user 'ann': route: beta -> as others" in pools.reload(users=rules(ann=None))
        ann.expect_closed()
        assert pools["alpha"].call("PUBLISH", "c", "still") >= 1
        assert bob.reply() == [b"message", b"c", b"still"]


def test_reloads_resizes_and_upgrades(place):
    pools = Pools(place, ("alpha", "beta", "gamma"), workers=2).mark()
    conns = {name: [login(pools.gateway, name, "p") for _ in range(8)] for name in ("ann", "bob")}

    def check(**expected):
        for name, pool in expected.items():
            for conn in conns[name]:
                assert who(conn) == pool
                conn.send(resp("GET", "who") * 5)
                assert [conn.reply() for _ in range(5)] == [pool.encode()] * 5

    check(ann="beta", bob="alpha")
    for workers in (1, 3):
        pools.gateway.configure(worker_processes=workers)
        pools.gateway.reload()
        wait_until(lambda number=workers: len(worker_processes(pools.gateway.pid)) == number, "so many workers")
        check(ann="beta", bob="alpha")
    assert "user 'ann': route: beta -> gamma" in pools.reload(users=rules(ann="gamma", bob="beta"))
    check(ann="gamma", bob="beta")
    before = set(worker_processes(pools.gateway.pid))
    done = pools.gateway.order("upgrade")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not before & set(worker_processes(pools.gateway.pid)), "new workers only")
    check(ann="gamma", bob="beta")
    pools.reload(users=rules(ann=None))
    check(ann="alpha", bob="alpha")


def test_reloads_under_load_lose_nothing(place):
    """Each client's requests run in their order wherever its user goes meanwhile: each of them appends to a key that all
    pools have at the same server."""
    server = place.redis()
    both = {"redis": True, "servers": server_lines([server])}
    pools = {"alpha": {**both, "users": rules()}, "beta": both, "gamma": both}
    gateway = place.cashew(pools, {"worker_processes": 2})
    over, failures, asked = threading.Event(), [], []

    def ask(number):
        turn = 0
        try:
            with login(gateway, "ann", "p") as conn:
                while not over.is_set():
                    conn.send(b"".join(resp("RPUSH", f"l{number}", str(turn + n)) for n in range(20)) + resp("GET", "none"))
                    replies = [conn.reply() for _ in range(21)]
                    assert replies == [*range(turn + 1, turn + 21), None]
                    turn += 20
        except Exception as error:
            failures.append(error)
        asked.append((number, turn))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for turn in range(8):
        gateway.configure({**gateway.pools,
                           "alpha": {**gateway.pools["alpha"], "users": rules(ann=["gamma", None, "beta"][turn % 3])}})
        gateway.reload()
        time.sleep(0.1)
    over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for number, turns in asked:
        assert server.call("LRANGE", f"l{number}", "0", "-1") == [b"%d" % n for n in range(turns)]


def test_memcached(place):
    pools = Pools(place, redis=False, given=users({"ann": {"rules": f"on >p {ALL}", "route": "beta"}, "bob": f"on >p {ALL}"}))
    pools.gateway.wait_serving()
    for name in ("alpha", "beta"):
        with pools[name].connect() as conn:
            conn.send(b"set who 0 0 %d\r\n%s\r\n" % (len(name), name.encode()))
            conn.expect(b"STORED\r\n")
    value = {name: b"VALUE who 0 %d\r\n%s\r\nEND\r\n" % (len(name), name.encode()) for name in ("alpha", "beta")}
    for name, pool in (("ann", "beta"), ("bob", "alpha")):
        with pools.gateway.connect() as conn:
            conn.send(b"set x 0 0 5\r\n%s p\r\n" % name.encode() + b"get who\r\ngets who\r\nmg who v\r\nget who none\r\n")
            conn.expect(b"STORED\r\n" + value[pool])
            assert conn.read_until(b"END\r\n").startswith(b"VALUE who 0 %d " % len(pool))
            conn.expect(b"VA %d\r\n%s\r\n" % (len(pool), pool.encode()) + value[pool])
            assert b"limit_maxbytes" in (conn.send(b"stats\r\n"), conn.read_until(b"END\r\n"))[1]
        with pools.gateway.connect() as conn:
            assert binary_call(conn, 0x21, b"PLAIN", b"\0%s\0p" % name.encode())[0] == 0
            for _ in range(3):
                status, found = binary_call(conn, 0x00, b"who")
                assert (status, found[4:]) == (0, pool.encode())
    # A client may log in again, by SASL, and goes elsewhere.
    with pools.gateway.connect() as conn:
        for name, pool in [("ann", "beta"), ("bob", "alpha")] * 3:
            assert binary_call(conn, 0x21, b"PLAIN", b"\0%s\0p" % name.encode())[0] == 0
            assert binary_call(conn, 0x00, b"who")[1][4:] == pool.encode()
        before = set(worker_processes(pools.gateway.pid))
        assert binary_call(conn, 0x21, b"PLAIN", b"\0ann\0p")[0] == 0
        assert pools.gateway.order("upgrade").returncode == 0
        wait_until(lambda: not before & set(worker_processes(pools.gateway.pid)), "new workers only")
        assert binary_call(conn, 0x00, b"who")[1][4:] == b"beta"


@pytest.mark.parametrize("routed", ["gamma", "by"])
def test_users_with_rules_limits_and_prefixes(place, tmp_path, routed):
    """Those of an ACL file, too: what a user may is said where it connects."""
    path = tmp_path / "users.acl"
    path.write_text(f"user default off\nuser ann on >p {ALL} -flushdb\nuser bob on >p ~b:* +@all\n")
    path.chmod(0o600)
    options = json.dumps({"ann": {"route": routed, "key_prefix": "t:", "in_flight_max": 100}, "bob": {"route": "beta"}})
    routes = {"by": {"redis": True, "route": "{prefix: {'': beta, 't:': gamma}}"}}
    pools = Pools(place, ("alpha", "beta", "gamma"), given=options, routes=routes, acl_file=str(path))
    with login(pools.gateway, "ann", "p") as ann, login(pools.gateway, "bob", "p") as bob:
        ann.send(b"".join(resp(*words) for words in [("SET", "x", "1"), ("MSET", "y", "2", "z", "3"), ("GET", "x")] * 10))
        assert [ann.reply() for _ in range(30)] == ["OK", "OK", b"1"] * 10
        assert pools["gamma"].call("MGET", "t:x", "t:y", "t:z") == [b"1", b"2", b"3"]
        assert refused(ann, "FLUSHDB").startswith("NOPERM")
        assert refused(bob, "SET", "x", "1").startswith("NOPERM") and bob.call("SET", "b:x", "1") == "OK"
        assert pools["beta"].call("GET", "b:x") == b"1"
        assert bob.call("AUTH", "ann", "p") == "OK" and bob.call("GET", "x") == b"1"
    for name in ("alpha", "beta"):
        assert pools[name].call("EXISTS", "t:x", "x") == 0


def test_a_pause_and_a_monitor_are_of_the_port(place):
    pools = Pools(place, command_policy="admin").mark()
    with login(pools.gateway, "ann", "p") as ann, login(pools.gateway, "bob", "p") as bob, pools.gateway.connect() as conn:
        bob.send(resp("MONITOR"))
        assert bob.reply() == "OK"
        assert ann.call("GET", "who") == b"beta"
        assert '"GET" "who"' in bob.reply()
        bob.send(resp("RESET"))
        wait_until(lambda: bob.reply() == "RESET", "an end of MONITOR")
        assert conn.call("CLIENT", "PAUSE", "60000", "ALL") == "OK"
        ann.send(resp("GET", "who"))
        ann.expect_silence(0.2)
        assert conn.call("CLIENT", "UNPAUSE") == "OK" and ann.reply() == b"beta"


def test_certificates(place):
    authority = Authority(place.directory)
    pair, ann = authority.sign(f"DNS:localhost,IP:{HOST}"), authority.sign("DNS:ann.test", subject="/CN=ann")
    port = free_port()
    tls = f"{{certificate: {pair.certificate}, key: {pair.key}, client_ca: {authority.ca}, client_auth: optional, client_user: cn}}"
    pools = Pools(place, tls=tls, tls_listen=f"{HOST}:{port}").mark()
    for shown, pool in ((ann, b"beta"), (None, b"alpha")):
        more = {"ssl_certfile": str(shown.certificate), "ssl_keyfile": str(shown.key)} if shown else {}
        with redis.Redis("localhost", port, ssl=True, ssl_ca_certs=str(authority.ca), **more) as client:
            assert client.get("who") == pool
    assert pools.gateway.call("GET", "who") == b"alpha"


def test_external_authorisation(place):
    service = Service()
    service.people = {("joe", "word"): {"user": "ann", "expires_in": 2}}
    try:
        pools = Pools(place, external_auth=f"{{url: '{service.url}'}}").mark()
        with pools.gateway.connect() as conn:
            # Who is asked about waits for the answer; what is behind it goes where that says.
            conn.send(resp("GET", "who") + resp("AUTH", "joe", "word") + resp("GET", "who"))
            assert [conn.reply() for _ in range(3)] == [b"alpha", "OK", b"beta"]
            assert conn.call("ACL", "WHOAMI") == b"ann"
            # Its login is over: it is nobody, and back where it was.
            wait_until(lambda: isinstance(answer_of(conn, "GET", "who"), ReplyError), "an end")
            assert conn.call("AUTH", "bob", "p") == "OK" and who(conn) == "alpha"
    finally:
        service.stop()


def answer_of(conn, *words):
    conn.send(resp(*words))
    return conn.reply()


def test_a_server_that_hangs_holds_only_its_own(place):
    pools = Pools(place, ("alpha", "beta"), timeout=4000).mark()
    with login(pools.gateway, "ann", "p") as ann, login(pools.gateway, "bob", "p") as bob:
        assert (who(ann), who(bob)) == ("beta", "alpha")
        os.kill(pools["beta"].process.pid, 19)
        try:
            ann.send(resp("GET", "who"))
            for _ in range(50):
                assert bob.call("GET", "who", seconds=2) == b"alpha"
        finally:
            os.kill(pools["beta"].process.pid, 18)
        assert ann.reply() == b"beta"
        pools["beta"].stop()
        assert "beta" in refused(ann, "GET", "who") or str(pools["beta"].port) in refused(ann, "GET", "who")
        assert who(bob) == "alpha"


def test_what_is_shown(place):
    pools = Pools(place).mark()
    with login(pools.gateway, "ann", "p") as ann, login(pools.gateway, "bob", "p") as bob:
        for conn in (ann, bob):
            for _ in range(10):
                who(conn)
        assert b" route=beta" in ann.call("CLIENT", "INFO") and b" route=" not in bob.call("CLIENT", "INFO")

        def numbers():
            stats = pools.gateway.stats()
            return stats["alpha"]["users"]["ann"]["requests"], stats["beta"][server_lines([pools["beta"]])[0].rsplit(":", 1)[0]]
        wait_until(lambda: numbers()[0] >= 10, "its requests")
        assert pools.gateway.stats()["alpha"]["users"]["ann"]["route"] == "beta"
        assert "route" not in pools.gateway.stats()["alpha"]["users"]["bob"]


@pytest.mark.parametrize("route, words", [
    ("betta", 'there is no pool or route "betta"; did you mean "beta"?'),
    ("alpha", 'user "ann" would go where everybody goes here'),
    ("cache", '"cache" is for memcached, and user "ann" speaks Redis'),
    ("round", "whose servers lead back to"),
])
def test_wrong_routes(place, route, words):
    pools = Pools(place)
    port = pools.gateway.address
    configured = dict(pools.gateway.pools)
    configured["cache"] = {"servers": server_lines([free_port()])}
    configured["round"] = {"redis": True, "servers": server_lines([port])}
    configured["alpha"] = {**pools.gateway.pools["alpha"], "users": json.dumps(
        {"ann": {"rules": f"on >p {ALL}", "route": route}})}
    pools.gateway.configure(configured)
    said = pools.gateway.refused_reload()
    assert words in said and ":" in said.split(words)[0]
