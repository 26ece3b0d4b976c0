"""Users with rules of Redis's ACL: who may do what, in Redis's words, wherever the client goes."""

import hashlib
import json
import struct

import pytest
import redis

from harness import server_lines, wait_until, worker_processes

RULES = {
    "default": "off",
    "admin": "on >root ~* &* +@all",
    "app": ["on", ">two words", "~app:*", "%R~shared:*", "&app.*", "+@all", "-flushall", "-@admin", "+acl|whoami"],
    "reader": "on >r1 >r2 +@read +ping (+set ~tmp:*)",
    "off": "off >o +@all ~*",
}
NO_KEY = "NOPERM this user has no permissions to access one of the keys used as arguments"
NO_CHANNEL = "NOPERM this user has no permissions to access one of the channels used as arguments"
WRONG = "WRONGPASS invalid username-password pair or user is disabled."


def no_command(name):
    return f"NOPERM this user has no permissions to run the '{name}' command"


def users(rules=RULES):
    return json.dumps(rules)


def pool(servers, **options):
    return {"redis": True, "servers": server_lines(servers), "command_policy": "admin", **options}


def gateway_of(place, servers=1, workers=1, **options):
    backends = [place.redis() for _ in range(servers)]
    options = {"users": users(), **options}
    return place.cashew({"alpha": pool(backends, **options)}, {"worker_processes": workers})


def login(gateway, user, password):
    conn = gateway.connect()
    assert conn.call("AUTH", user, password) == "OK"
    return conn


def refused(conn, *words):
    """The error for a request."""
    return conn.error(*words)


def test_logging_in(place):
    gateway = gateway_of(place)
    with gateway.connect() as conn:
        assert refused(conn, "GET", "app:a") == "NOAUTH Authentication required."
        assert refused(conn, "AUTH", "root") == WRONG
        for user, password in [("app", "root"), ("nobody", "root"), ("off", "o"), ("default", "")]:
            assert refused(conn, "AUTH", user, password) == WRONG
    with login(gateway, "reader", "r2") as conn:
        assert refused(conn, "ACL", "WHOAMI") == no_command("acl|whoami")
        # Whoever fails stays who it was.
        assert refused(conn, "AUTH", "app", "no") == WRONG
        assert refused(conn, "INCR", "a") == no_command("incr")
        assert conn.call("AUTH", "app", "two words") == "OK"
        assert conn.call("ACL", "WHOAMI") == b"app"
        assert conn.call("INCR", "app:a") == 1
        conn.call("HELLO", "2", "AUTH", "reader", "r1")
        assert refused(conn, "INCR", "app:a") == no_command("incr")
        assert conn.call("RESET") == "RESET"
        assert refused(conn, "GET", "app:a") == "NOAUTH Authentication required."
    assert gateway.stats()["alpha"]["auth_failures"] == 6


def test_a_stranger_cannot_have_much_kept(place):
    """Redis takes ten arguments of 16 KiB before a login; the gateway 64 KiB in all."""
    gateway = gateway_of(place)
    for words in [("AUTH", "x" * 70_000), ("HELLO", "3", "AUTH", "app", "x" * 70_000)]:
        with gateway.connect() as conn:
            error = refused(conn, *words)
            assert error == "ERR Protocol error: unauthenticated request is too long"
            conn.expect_closed()
    with gateway.connect() as conn:
        assert refused(conn, "AUTH", "app", "x" * 60_000) == WRONG
        assert refused(conn, "SET", "app:a", "x" * 60_000) == "NOAUTH Authentication required."
        # What is large is passed on while it comes, or swallowed.
        assert refused(conn, "SET", "app:a", "x" * 3_000_000) == "NOAUTH Authentication required."
    with login(gateway, "admin", "root") as conn:
        assert conn.call("MSET", "a", "x" * 70_000) == "OK"


@pytest.mark.parametrize("servers", [1, 3])
def test_what_users_may_do(place, servers):
    gateway = gateway_of(place, servers)
    with login(gateway, "app", "two words") as conn:
        assert conn.call("MSET", "app:a", "1", "app:b", "2") == "OK"
        assert conn.call("MGET", "app:a", "app:b", "shared:x") == [b"1", b"2", None]
        assert refused(conn, "SET", "shared:x", "1") == NO_KEY
        assert refused(conn, "MGET", "app:a", "other") == NO_KEY
        assert refused(conn, "GET", "other") == NO_KEY
        assert refused(conn, "FLUSHALL") == no_command("flushall")
        assert refused(conn, "CONFIG", "SET", "a", "b") == no_command("config|set")
        assert refused(conn, "PUBLISH", "other", "x") == NO_CHANNEL
        assert conn.call("PUBLISH", "app.x", "x") == 0
        assert refused(conn, "SUBSCRIBE", "app.x", "other") == NO_CHANNEL
        assert refused(conn, "PSUBSCRIBE", "app.x*") == NO_CHANNEL
        # Scripts by the keys that they declare.
        script = "return redis.call('get', KEYS[1])"
        assert conn.call("EVAL", script, "1", "app:a") == b"1"
        assert refused(conn, "EVAL", script, "1", "other") == NO_KEY
        assert refused(conn, "SORT", "app:l", "BY", "w*") == (
            "ERR BY option of SORT denied due to insufficient ACL permissions.")
        # Large ones as well, whether they come at once or not.
        assert refused(conn, "SET", "other", "x" * (3 << 20)) == NO_KEY
        assert conn.call("SET", "app:large", "x" * (3 << 20)) == "OK"
        assert conn.call("PING") == "PONG"
    with login(gateway, "reader", "r1") as conn:
        assert conn.call("SET", "tmp:a", "1") == "OK"
        assert refused(conn, "GET", "tmp:a") == NO_KEY
        assert refused(conn, "SET", "a", "1") == NO_KEY
    with login(gateway, "admin", "root") as conn:
        assert conn.call("GET", "other") is None
        assert conn.call("GET", "app:b") == b"2"
    assert gateway.stats()["alpha"]["commands_refused"] >= 12


def test_what_tells_of_others_keys_is_dangerous(place):
    gateway = gateway_of(place, users=users({**RULES, "app": "on >p ~app:* +@all -@dangerous"}), command_policy="application")
    with login(gateway, "app", "p") as conn:
        for words in (["HOTKEYS", "TOP"], ["ROUTE", "EXPLAIN", "k"], ["SLOWLOG", "GET"], ["CLIENT", "LIST"], ["KEYS", "*"]):
            name = "|".join(words[:2]).lower() if words[0] != "KEYS" else "keys"
            assert refused(conn, *words) == no_command(name)
    with login(gateway, "admin", "root") as conn:
        conn.call("HOTKEYS", "TOP")
        conn.call("ROUTE", "EXPLAIN", "k")


def test_transactions(place):
    gateway = gateway_of(place)
    with login(gateway, "app", "two words") as conn:
        conn.call("MULTI")
        assert conn.call("SET", "app:a", "1") == "QUEUED"
        assert refused(conn, "SET", "other", "1") == NO_KEY
        assert refused(conn, "EXEC").startswith("EXECABORT")
        assert conn.call("GET", "app:a") is None
        assert refused(conn, "WATCH", "other") == NO_KEY
        conn.call("MULTI")
        assert conn.call("SET", "app:a", "1") == "QUEUED"
        assert conn.call("EXEC") == ["OK"]


def test_acl_commands(place):
    gateway = gateway_of(place)
    client = redis.Redis(port=gateway.address, username="admin", password="root", decode_responses=True)
    assert client.acl_whoami() == "admin"
    assert client.acl_users() == ["admin", "app", "default", "off", "reader"]
    hashed = hashlib.sha256(b"two words").hexdigest()
    assert client.acl_list()[1] == (
        f"user app on #{hashed} ~app:* %R~shared:* &app.* +@all -flushall -@admin +acl|whoami".replace(
            "&app.*", "resetchannels &app.*"))
    user = client.acl_getuser("reader")
    assert user["enabled"] and len(user["passwords"]) == 2 and user["commands"] == ["+ping"]
    assert user["selectors"] == [["commands", "-@all +set", "keys", "~tmp:*", "channels", ""]]
    assert client.acl_getuser("nobody") is None
    assert "get" in client.acl_cat("read") and "keyspace" in client.acl_cat()
    assert client.acl_dryrun("app", "get", "app:a") == "OK"
    assert client.acl_dryrun("app", "get", "x") == "This user has no permissions to access the 'x' key"
    for words in [("ACL", "SETUSER", "x"), ("ACL", "DELUSER", "x"), ("ACL", "LOAD"), ("ACL", "SAVE")]:
        with pytest.raises(redis.ResponseError, match="those of the gateway's configuration"):
            client.execute_command(*words)
    with login(gateway, "app", "two words") as conn:
        for _ in range(3):
            refused(conn, "GET", "other")
        conn.call("MULTI")
        refused(conn, "FLUSHALL")
        conn.call("DISCARD")
        refused(conn, "AUTH", "app", "x")
        clients = client.client_list()
        assert {it["user"] for it in clients} == {"admin", "app"}
    log = client.acl_log()
    seen = [(it["count"], it["reason"], it["context"], it["object"], it["username"]) for it in log]
    assert seen == [
        (1, "auth", "toplevel", "AUTH", "app"),
        (1, "command", "multi", "flushall", "app"),
        (3, "key", "toplevel", "other", "app"),
    ]
    assert client.acl_log_reset()
    assert client.acl_log() == []
    for words, text in [(["x"], "value is not an integer or out of range"), (["1", "2"], "unknown subcommand or wrong number")]:
        with pytest.raises(redis.ResponseError, match=text):
            client.execute_command("ACL", "LOG", *words)


def test_large_values_that_are_allowed_are_not_collected(place):
    rules = {**RULES, "writer": "on >w %W~app:* +@all"}
    server = place.redis()
    gateway = place.cashew({"alpha": pool([server], users=users(rules))}, {"worker_processes": 1})
    gateway.wait_serving()
    [worker] = worker_processes(gateway.pid)

    def resident():
        with open(f"/proc/{worker}/statm") as file:
            return int(file.read().split()[1]) * 4096
    large, most = 96 << 20, 48 << 20
    start = b"*3\r\n$3\r\nSET\r\n$9\r\napp:large\r\n$%d\r\n" % large
    with login(gateway, "app", "two words") as conn:
        before = resident()
        conn.send(start)
        for _ in range(large >> 20):
            conn.send(b"x" * (1 << 20))
            assert resident() - before < most
        conn.send(b"\r\n")
        assert conn.reply() == "OK"
        assert server.call("STRLEN", "app:large") == large
        assert conn.call("APPEND", "app:large", "y" * (3 << 20)) == large + (3 << 20)
        for words in (["SET", "other"], ["APPEND", "other"], ["SET", "shared:x"]):
            assert refused(conn, *words, "x" * (3 << 20)) == NO_KEY
        assert conn.call("EXISTS", "app:x") == 0
    with login(gateway, "reader", "r2") as conn:
        assert refused(conn, "APPEND", "tmp:x", "x" * (3 << 20)) == no_command("append")
        # It may not read what it writes, as SET would do with GET behind the value.
        assert conn.call("AUTH", "writer", "w") == "OK"
        assert conn.call("SET", "app:w", "x" * (3 << 20)) == "OK"
        assert refused(conn, "SET", "app:w", "y" * (3 << 20), "GET") == NO_KEY
        assert server.call("GETRANGE", "app:w", "0", "0") == b"x"
    with login(gateway, "app", "two words") as conn:
        assert conn.call("SET", "app:w", "y" * (3 << 20), "GET") == b"x" * (3 << 20)
        conn.call("MULTI")
        assert conn.call("SET", "app:w", "z" * (3 << 20)) == "QUEUED"
        assert conn.call("EXEC") == ["OK"]
    assert server.call("EXISTS", "other", "shared:x") == 0


def test_the_log_of_denials_is_that_of_all_workers(place):
    gateway = gateway_of(place, workers=3)
    conns = [login(gateway, "app", "two words") for _ in range(12)]
    for conn in conns:
        refused(conn, "GET", "other")
    refused(conns[0], "GET", "mine")
    client = redis.Redis(port=gateway.address, username="admin", password="root", decode_responses=True)
    admins = [redis.Redis(port=gateway.address, username="admin", password="root", decode_responses=True) for _ in range(6)]
    for client in admins:
        seen = [(it["count"], it["reason"], it["object"], it["username"]) for it in client.acl_log()]
        assert seen == [(1, "key", "mine", "app"), (12, "key", "other", "app")]
        assert [it["object"] for it in client.acl_log(1)] == ["mine"]
    assert admins[0].acl_log_reset()
    assert [client.acl_log() for client in admins] == [[]] * 6
    # Behind requests that are on their way, and with requests behind it.
    with login(gateway, "admin", "root") as conn:
        refused(conns[3], "SET", "other", "1")
        conn.send(b"SET k 1\r\nACL LOG RESET\r\nACL LOG\r\nGET k\r\n")
        assert conn.read(21) == b"+OK\r\n+OK\r\n*0\r\n$1\r\n1\r\n"


def test_users_follow_resizes_and_upgrades(place):
    gateway = gateway_of(place, workers=2)
    conns = {name: [login(gateway, name, word) for _ in range(6)]
             for name, word in [("app", "two words"), ("admin", "root")]}

    def check():
        for conn in conns["app"]:
            assert conn.call("ACL", "WHOAMI") == b"app"
            assert refused(conn, "GET", "other") == NO_KEY
            assert conn.call("SET", "app:x", "1") == "OK"
        for conn in conns["admin"]:
            assert conn.call("ACL", "WHOAMI") == b"admin" and conn.call("GET", "other") is None

    check()
    gateway.configure(worker_processes=1)
    gateway.reload()
    wait_until(lambda: len(worker_processes(gateway.pid)) == 1, "one worker")
    check()
    before = set(worker_processes(gateway.pid))
    done = gateway.order("upgrade")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not before & set(worker_processes(gateway.pid)), "new workers only")
    check()


def test_reload_changes_rules_at_once(place, tmp_path):
    path = tmp_path / "users.acl"

    def write(**rules):
        path.write_text("".join(f"user {name} {text}\n" for name, text in rules.items()))
        path.chmod(0o600)

    write(app="on >a ~a* &c* +@all", gone="on >g +@all ~*", off="on >o +@all ~*", same="on >s +@all ~*")
    server = place.redis()
    gateway = place.cashew({"alpha": pool([server], acl_file=str(path))}, {"worker_processes": 1})
    app, gone, off, same = (login(gateway, name, name[0]) for name in ["app", "gone", "off", "same"])
    listener, queued = login(gateway, "app", "a"), login(gateway, "app", "a")
    listener.call("SUBSCRIBE", "c1")
    queued.call("MULTI")
    assert queued.call("SET", "a", "evil") == "QUEUED"
    assert app.call("SET", "a", "1") == "OK"
    write(app="on >other ~b* +@all", off="off >o +@all ~*", same="on >s +@all ~*")
    said = gateway.reload("--dry-run")
    assert "user 'app': changed" in said and "user 'gone': removed" in said and "#" not in said
    gateway.reload()
    gone.expect_closed()
    off.expect_closed()
    listener.expect_closed()
    assert refused(app, "SET", "a", "2") == NO_KEY
    assert app.call("SET", "b", "2") == "OK"
    assert refused(queued, "EXEC").startswith("EXECABORT")
    assert same.call("GET", "a") == b"1"
    with gateway.connect() as conn:
        assert refused(conn, "AUTH", "app", "a") == WRONG
        assert conn.call("AUTH", "app", "other") == "OK"
    path.write_text("user app on >a +@nope\n")
    assert f"{path}:1: rule '+@nope': Unknown command or category name in ACL" in gateway.refused_reload()
    assert app.call("GET", "b") == b"2"


def test_a_pool_gets_users_and_loses_them(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool([server])}, {"worker_processes": 1})
    with gateway.connect() as before:
        assert before.call("SET", "x", "1") == "OK"
        gateway.configure(pools={"alpha": pool([server], users=users({"default": "on nopass ~x +@all"}))})
        gateway.reload()
        assert before.call("GET", "x") == b"1"
        assert refused(before, "GET", "y") == NO_KEY
        gateway.configure(pools={"alpha": pool([server])})
        gateway.reload()
        assert before.call("GET", "y") is None
        gateway.configure(pools={"alpha": pool([server], users=users())})
        gateway.reload()
        before.expect_closed()


def test_a_user_is_nobody_where_a_password_is_wanted_again(place):
    server, memcached = place.redis("--requirepass", "secret"), place.memcached()
    common = {"servers": server_lines([memcached])}
    pools = {"alpha": pool([server], redis_auth="secret"), "beta": common}

    def with_users(rules):
        return {"alpha": {**pools["alpha"], "users": users(rules)}, "beta": {**common, "users": users(rules)}}

    gateway = place.cashew(with_users(RULES), {"worker_processes": 1})
    with login(gateway, "reader", "r1") as conn, gateway.connect("beta") as other:
        other.send(b"set x 0 0 9\r\nreader r1\r\n")
        other.expect(b"STORED\r\n")
        gateway.configure(pools={**pools, "beta": {**common, "client_auth": "a:b"}})
        gateway.reload()
        conn.expect_closed()
        other.expect_closed()


def packet(opcode, key=b"", value=b"", extras=b""):
    length = len(extras) + len(key) + len(value)
    return struct.pack(">BBHBBHI4sQ", 0x80, opcode, len(key), len(extras), 0, 0, length, b"\0\0\0\1", 0) + extras + key + value


def binary_call(conn, *request):
    conn.send(packet(*request))
    head = conn.read(24)
    _, _, _, _, _, status, length, _, _ = struct.unpack(">BBHBBHI4sQ", head)
    return status, conn.read(length)


def test_memcached(place):
    server = place.memcached()
    rules = {"app": "on >a ~a* %R~s* +get +getex +set +del", "admin": "on >root +@all ~*"}
    gateway = place.cashew({"beta": {"servers": server_lines([server]), "users": users(rules)}},
                           {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(b"get a\r\nset x 0 0 5\r\napp x\r\nset x 0 0 5\r\napp a\r\n")
        conn.expect(b"CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\nSTORED\r\n")
        key = b"CLIENT_ERROR user has no permissions to access one of the keys\r\n"
        for request, reply in [
            (b"set a 0 0 1\r\n1\r\n", b"STORED\r\n"),
            (b"get a s\r\n", b"VALUE a 0 1\r\n1\r\nEND\r\n"),
            (b"get a b\r\n", key),
            (b"set s 0 0 1\r\n1\r\n", key),
            (b"gat 0 s\r\n", key),
            (b"mg s v\r\n", b"EN\r\n"),
            (b"mg s T30\r\n", key),
            (b"ms b 1\r\n1\r\n", key),
            (b"mg Yg== b v\r\n", key),
            (b"incr a 1\r\n", b"CLIENT_ERROR user has no permissions to run 'incrby'\r\n"),
            (b"flush_all\r\n", b"CLIENT_ERROR user has no permissions to run 'flushall'\r\n"),
            (b"delete a\r\n", b"DELETED\r\n"),
            (b"set b 0 0 2000000\r\n" + b"x" * 2000000 + b"\r\n", key),
            (b"mn\r\n", b"MN\r\n"),
        ]:
            conn.send(request)
            conn.expect(reply)
    with gateway.connect() as conn:
        assert binary_call(conn, 0x21, b"PLAIN", b"\0app\0a")[0] == 0
        assert binary_call(conn, 0x01, b"a", b"1", bytes(8))[0] == 0
        assert binary_call(conn, 0x00, b"a")[1][4:] == b"1"
        assert binary_call(conn, 0x00, b"b") == (0x20, b"user has no permissions to access one of the keys")
        assert binary_call(conn, 0x01, b"s", b"1", bytes(8))[0] == 0x20
        assert binary_call(conn, 0x0e, b"a", b"1") == (0x20, b"user has no permissions to run 'append'")
    with gateway.connect() as conn:
        assert binary_call(conn, 0x21, b"PLAIN", b"\0admin\0root")[0] == 0
        assert binary_call(conn, 0x00, b"b")[0] == 1
