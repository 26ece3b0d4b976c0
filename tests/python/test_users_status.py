"""What users and clients ask and get is counted, and told by name."""

import json
import re
import struct
import time

from harness import ReplyError, server_lines, wait_until
from test_command_classes import metrics
from test_slow_hot import BUSY, page, slow
from test_upgrade import upgrade
from test_users import binary_call

USERS = "{default: 'on nopass ~* &* +@all', app: 'on >one ~* &* +@all', ops: 'on >two ~* &* +@all'}"


def calls(conn, *commands):
    """The replies; errors are some, too."""
    replies = []
    for command in commands:
        try:
            replies.append(conn.call(*command.split()))
        except ReplyError as error:
            replies.append(error)
    return replies


def info(conn):
    line = conn.call("CLIENT", "INFO").decode()
    return dict(word.split("=", 1) for word in line.split())


def settled(gateway, **requests):
    """The numbers of users when they have so many requests: what they do is added once a second."""
    def users():
        found = gateway.stats()["alpha"]["users"]
        return found if all(found[name]["requests"] >= count for name, count in requests.items()) else None
    found = wait_until(users, f"users with {requests}")
    assert {name: found[name]["requests"] for name in requests} == requests
    return found


def test_users_have_numbers_of_their_own(place):
    server = place.redis()
    pool = {"redis": True, "users": USERS, "servers": server_lines([server])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    app, other = gateway.connect("alpha"), gateway.connect("alpha")
    calls(app, "AUTH app one", "SET key value", "GET key", "LPUSH key a", "NO such")
    calls(other, "GET key")
    # AUTH counts for who one is then.
    found = settled(gateway, app=5, default=1, ops=0)
    assert [found[name]["errors"] for name in ("app", "default", "ops")] == [2, 0, 0]
    assert found["app"]["slowest_us"] > 0 and found["ops"]["slowest_us"] == 0
    assert "(others)" not in found
    pool_numbers = gateway.stats()["alpha"]
    for of_users, of_pool in (("requests", "client_requests"), ("bytes_received", "client_bytes_received"),
                              ("bytes_sent", "client_bytes_sent")):
        wait_until(lambda: sum(it[of_users] for it in gateway.stats()["alpha"]["users"].values())
                   == pool_numbers[of_pool], of_users)
    [table] = [it for it in json.loads(page(gateway, "state.json"))["sections"] if it["name"] == "users"]
    [row] = [row for row in table["rows"] if row[:2] == ["alpha", "app"]]
    assert row[2:4] == [5, 2]
    seen = metrics(gateway)
    labels = ("pool", "alpha"), ("user", "app")
    assert seen["cashew_user_requests_total", *labels] == 5 and seen["cashew_user_errors_total", *labels] == 2
    assert 0 < seen["cashew_user_slowest_seconds", *labels] < 10
    # They outlast a reload that has other users, an upgrade, and their clients.
    gateway.configure({"alpha": {**pool, "users": USERS.replace("ops", "aaa")}})
    gateway.reload()
    assert settled(gateway, app=5, default=1, aaa=0).keys() == {"app", "default", "aaa"}
    calls(app, "GET key")
    settled(gateway, app=6)
    upgrade(gateway)
    calls(app, "GET key")
    app.close()
    settled(gateway, app=7, default=1)


def test_pools_without_users_have_no_such_numbers(place):
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}})
    with gateway.connect("alpha") as conn:
        conn.call("GET", "a")
    time.sleep(1.5)
    assert "users" not in gateway.stats()["alpha"]
    assert not [name for name, *_ in metrics(gateway) if name.startswith("cashew_user_")]


def test_client_info_tells_what_the_client_has_asked_and_got(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}}, {"worker_processes": 1})
    with gateway.connect("alpha") as conn:
        first = info(conn)
        length = len(b"*2\r\n$6\r\nCLIENT\r\n$4\r\nINFO\r\n")
        assert (first["tot-net-in"], first["tot-net-out"], first["tot-errors"]) == (str(length), "0", "0")
        requests = b"".join(b"*3\r\n$3\r\nSET\r\n$2\r\nk%d\r\n$1\r\nv\r\n" % n for n in range(5))
        conn.send(requests)
        for _ in range(5):
            conn.reply()
        calls(conn, "LPUSH k1 a", "NO such")
        assert conn.call("EVAL", BUSY, 1, "k", 60) == 1
        after = info(conn)
        assert int(after["tot-cmds"]) - int(first["tot-cmds"]) == 5 + 2 + 1 + 1
        assert after["tot-errors"] == "2"
        assert 60_000 <= int(after["slowest-us"]) < 5_000_000
        # It moves with its session.
        upgrade(gateway)
        moved = info(conn)
        assert int(moved["tot-cmds"]) == int(after["tot-cmds"]) + 1 and moved["tot-errors"] == "2"
        assert int(moved["tot-net-in"]) == int(after["tot-net-in"]) + length


def test_the_slow_log_names_the_user(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": True, "users": USERS, "servers": server_lines([server])}})
    with gateway.connect("alpha") as conn:
        calls(conn, "AUTH app one")
        assert conn.call("EVAL", BUSY, 1, "k", 60) == 1
        [seen] = wait_until(lambda: slow(gateway)["requests"], "it is recorded")
        assert seen["user"] == "app"
        entry = conn.call("SLOWLOG", "GET", 1)[0]
        assert re.fullmatch(rb"\(gateway=.* user=app\)", entry[3][-1])
    assert " user=app EVAL " in gateway.order("slowlog").stdout


def test_users_of_memcached_have_numbers_too(place):
    server = place.memcached()
    users = "{app: 'on >one ~* +@all', ops: 'on >two ~* +@all'}"
    gateway = place.cashew({"alpha": {"users": users, "servers": server_lines([server])}}, {"worker_processes": 1})
    with gateway.connect() as conn:
        conn.send(b"set x 0 0 7\r\napp one\r\n" b"set a 0 0 1\r\nx\r\n" b"get a\r\n" b"incr a 1\r\n" b"get a b\r\n")
        expected = [b"STORED", b"STORED", b"VALUE a 0 1", b"x", b"END",
                    b"CLIENT_ERROR cannot increment or decrement non-numeric value", b"VALUE a 0 1", b"x", b"END"]
        assert [conn.read_line() for _ in expected] == expected
    found = settled(gateway, app=5, ops=0)
    assert (found["app"]["errors"], found["ops"]["errors"]) == (1, 0)
    with gateway.connect() as conn:
        assert binary_call(conn, 0x21, b"PLAIN", b"\0ops\0two") == (0, b"Authenticated")
        # A miss is no error.
        assert binary_call(conn, 0x00, b"none")[0] == 1
        assert binary_call(conn, 0x05, b"a", b"", struct.pack(">QQI", 1, 0, 0))[0] == 6
    found = settled(gateway, app=5, ops=3)
    assert found["ops"]["errors"] == 1


def test_many_users_share_a_row(place):
    users = "{" + ", ".join(f"u{n:03}: 'on >p ~* +@all'" for n in range(120)) + "}"
    gateway = place.cashew({"alpha": {"redis": True, "users": users, "servers": server_lines([place.redis()])}})
    for name in ("u000", "u099", "u100", "u119"):
        with gateway.connect() as conn:
            calls(conn, f"AUTH {name} p", "GET key")
    found = settled(gateway, u000=2, u099=2, **{"(others)": 4})
    assert len(found) == 102 and "u100" not in found


def test_a_pool_that_is_gone_counts_its_users_nowhere(place):
    server = place.redis()
    pool = {"redis": True, "users": USERS, "servers": server_lines([server])}
    gateway = place.cashew({"alpha": pool, "beta": pool}, {"worker_processes": 1})
    with gateway.connect("beta") as conn:
        calls(conn, "AUTH app one", "GET key")
        workers = gateway.workers()
        gateway.configure({"alpha": pool})
        gateway.reload()
        for _ in range(3):
            calls(conn, "GET key")
            time.sleep(1)
    with gateway.connect("alpha") as conn:
        calls(conn, "AUTH app one", "GET key")
    settled(gateway, app=2)
    assert gateway.workers() == workers and "beta" not in gateway.stats()
