"""What clients ask about each other, whichever workers serve them: CLIENT LIST, INFO, KILL, PAUSE
and UNBLOCK, by redis-py."""

import contextlib
import os
import signal
import threading
import time

import pytest
import redis

from harness import HOST, holders, resp, server_lines, wait_until, worker_processes

WORKERS = 3
FIELDS = ("id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem "
          "multi-mem rbs rbp obl oll omem tot-mem events cmd user redir resp lib-name lib-ver "
          "tot-net-in tot-net-out tot-cmds tot-errors slowest-us")


def pool(*servers, **options):
    return {"redis": True, "hash": "murmur", "hash_tag": '"{}"', "auto_eject_hosts": False,
            "command_policy": "admin", "client_pause_max": 100_000,
            "timeout": 2000, "servers": server_lines(servers), **options}


@pytest.fixture(params=[0, 1, WORKERS], ids=["thread", "process", "processes"])
def any_gateway(request, place):
    return start(place, request.param)


@pytest.fixture
def gateway(place):
    return start(place, WORKERS)


def start(place, workers, **settings):
    server = place.redis()
    path = place.directory / "gateway.sock"
    made = place.cashew({"alpha": pool(server), "beta": pool(server),
                         "local": pool(server, listen=str(path))},
                        {"worker_processes": workers, "worker_shutdown_timeout": 5000, **settings})
    made.wait_serving()
    made.server = server
    return made


@pytest.fixture
def connect(request):
    """Opens clients that keep to one connection; of a name, if it is given."""
    opened = []

    def connect(gateway, name=None, pool="alpha", **options):
        options = {"socket_timeout": 20, "decode_responses": True, "protocol": 2, **options}
        client = redis.Redis(HOST, gateway.addresses[pool], single_connection_client=True,
                             client_name=name, **options)
        client.ping()
        opened.append(client)
        return client

    yield connect
    for client in opened:
        with contextlib.suppress(redis.RedisError):
            client.close()


def port(client):
    return client.connection._sock.getsockname()[1]


def worker_of(gateway, client):
    return holders(worker_processes(gateway.pid), {port(client)})[port(client)]


def spread(gateway, connect, **options):
    """A client of each worker."""
    found = {}

    def is_complete():
        client = connect(gateway, **options)
        found.setdefault(worker_of(gateway, client), client)
        return len(found) == WORKERS

    wait_until(is_complete, "every worker has a client")
    return list(found.values())


def names(listed):
    return sorted(each["name"] for each in listed if each["name"])


def background(work):
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def result(seconds=30):
        thread.join(seconds)
        assert results, "nothing came back"
        return results[0]

    result.is_over = lambda: bool(results)
    return result


def outcome(work):
    """What it comes to, errors included."""
    try:
        return work()
    except redis.RedisError as error:
        return error


# ------------------------------------------------------------------------------------------- list


@pytest.mark.parametrize("protocol", [2, 3])
def test_all_clients_are_listed_whoever_serves_them(any_gateway, connect, protocol):
    clients = [connect(any_gateway, f"c{n}", protocol=protocol) for n in range(12)]
    connect(any_gateway, "other", pool="beta")
    everybody = sorted(f"c{n}" for n in range(12))
    for client in clients[::3]:
        listed = client.client_list()
        assert names(listed) == everybody
        ids = [int(each["id"]) for each in listed]
        assert ids == sorted(set(ids)) and client.client_id() in ids
        assert [list(each) for each in listed] == [FIELDS.split()] * len(listed)
        own = next(each for each in listed if int(each["id"]) == client.client_id())
        assert own["addr"] == f"{HOST}:{port(client)}" and int(own["fd"]) > 0
        assert own["laddr"] == f"{HOST}:{any_gateway.address}"
        assert (own["cmd"], own["user"], own["flags"]) == ("client|list", "default", "N")
        assert (own["resp"], own["lib-name"]) == (str(protocol), "redis-py")
        info = client.client_info()
        assert (info["addr"], info["cmd"]) == (own["addr"], "client|info")
        assert names(client.client_list(client_id=[client.client_id()])) == [own["name"]]
    addresses = {each["addr"] for each in clients[0].client_list()}
    assert {f"{HOST}:{port(client)}" for client in clients} <= addresses
    with clients[0].pubsub() as subscriber:
        subscriber.subscribe("news")
        assert subscriber.get_message(timeout=20)["type"] == "subscribe"
        listed = clients[0].client_list(_type="pubsub")
        assert [(each["sub"], each["flags"]) for each in listed] == [("1", "P")]
        assert names(clients[0].client_list(_type="normal")) == everybody[:1] + everybody[1:]
    assert clients[0].client_list(_type="master") == []


def test_clients_of_a_unix_socket_have_its_path(gateway):
    path = gateway.addresses["local"]
    with redis.Redis(unix_socket_path=path, decode_responses=True) as client:
        listed = client.client_list()
        assert [(each["addr"], each["laddr"]) for each in listed] == [(f"{path}:0", f"{path}:0")]
        assert listed[0]["flags"] == "U"


# ------------------------------------------------------------------------------------------- kill


def test_clients_of_other_workers_are_killed(any_gateway, connect):
    clients = [connect(any_gateway, f"c{n}") for n in range(12)]
    me, others = clients[0], clients[1:]
    stay = connect(any_gateway, "other", pool="beta")

    def is_gone(client):
        with pytest.raises(redis.ConnectionError):
            client.connection.send_command("PING")
            client.connection.read_response()

    assert me.client_kill_filter(_id=others[0].client_id()) == 1
    is_gone(others[0])
    assert me.client_kill_filter(addr=f"{HOST}:{port(others[1])}") == 1
    is_gone(others[1])
    assert me.client_kill(f"{HOST}:{port(others[2])}")
    is_gone(others[2])
    with pytest.raises(redis.ResponseError, match="No such client"):
        me.client_kill(f"{HOST}:1")
    assert me.client_kill_filter(_id=10**9) == 0
    assert names(me.client_list()) == sorted(["c0"] + [f"c{n}" for n in range(4, 12)])
    assert me.client_kill_filter(_type="pubsub") == 0
    killed = me.client_kill_filter(laddr=f"{HOST}:{any_gateway.address}", skipme=True)
    assert killed >= 8
    for client in others[3:]:
        is_gone(client)
    assert names(me.client_list()) == ["c0"]
    assert stay.ping() and names(stay.client_list()) == ["other"]
    # Itself, if it insists; it is told first.
    assert me.client_kill_filter(_id=me.client_id(), skipme=False) == 1
    is_gone(me)


# ------------------------------------------------------------------------------------------ pause


def test_a_pause_of_writes_holds_writes_of_all_workers_and_lets_reads_pass(any_gateway, connect):
    clients = [connect(any_gateway, f"c{n}") for n in range(9)]
    me, writers, readers = clients[0], clients[1:5], clients[5:]
    me.set("a", "before")
    other = connect(any_gateway, pool="beta")
    assert me.client_pause(100_000, all=False)
    writes = [background(lambda client=client: client.set("a", "after")) for client in writers[:2]]
    writes.append(background(lambda: writers[2].eval("return redis.call('incr', 'n')", 1, "n")))
    writes.append(background(lambda: writers[3].pipeline().incr("n").execute()))
    wait_until(lambda: sum("b" in each["flags"] for each in me.client_list()) == 4,
               "the writes are held back")
    assert [client.get("a") for client in readers] == ["before"] * 4
    assert readers[0].pipeline().get("a").execute() == ["before"]
    reading = "#!lua flags=no-writes\nreturn redis.call('get', KEYS[1])"
    assert readers[1].eval(reading, 1, "a") == "before"
    assert readers[1].pipeline().eval(reading, 1, "a").execute() == ["before"]
    late = connect(any_gateway)
    writes.append(background(lambda: late.set("a", "late")))
    assert late is not me and other.set("b", "1") is True
    # Longer than the pool's timeout.
    time.sleep(3)
    assert not any(write.is_over() for write in writes)
    assert me.get("a") == "before" and me.get("n") is None
    assert me.client_unpause()
    said = [write() for write in writes]
    assert said[:2] == [True, True] and said[4] is True
    assert sorted([said[2], said[3][0]]) == [1, 2]
    assert me.get("a") in ("after", "late")


def test_a_pause_in_a_transaction_begins_for_all_when_that_is_executed(any_gateway, connect):
    me, *others = [connect(any_gateway, f"c{n}") for n in range(8)]
    pausing = me.pipeline().set("a", "1").execute_command("CLIENT PAUSE", 100_000, "WRITE")
    assert pausing.set("a", "2").get("a").execute() == [True, True, True, "2"]
    # All know of it by now.
    assert [client.get("a") for client in others] == ["2"] * len(others)
    writes = [background(lambda client=client: client.incr("a")) for client in others]
    wait_until(lambda: sum("b" in each["flags"] for each in me.client_list()) == len(others),
               "the writes are held back")
    assert me.get("a") == "2"
    unpausing = me.pipeline().execute_command("CLIENT UNPAUSE")
    assert unpausing.get("a").execute() == ["OK", "2"]
    assert sorted(write() for write in writes) == list(range(3, 3 + len(others)))


def test_a_pause_of_everything_ends_by_itself(any_gateway, connect):
    clients = [connect(any_gateway, f"c{n}") for n in range(6)]
    other = connect(any_gateway, pool="beta")
    began = time.monotonic()
    assert clients[0].client_pause(1_500)
    pongs = [background(lambda client=client: (client.ping(), time.monotonic()))
             for client in clients]
    assert other.ping()
    for pong in pongs:
        said, at = pong()
        assert said is True and at - began >= 1.4


def test_who_goes_while_it_is_paused_has_asked_for_nothing(gateway, connect):
    me, other = connect(gateway), gateway.connect()
    assert me.client_pause(100_000, all=False)
    other.send(resp("SET", "a", "1"))
    wait_until(lambda: any(each["flags"] == "b" for each in me.client_list()), "it is held back")
    other.close()
    wait_until(lambda: len(me.client_list()) == 1, "it is gone")
    assert me.client_unpause()
    assert me.set("b", "1") and me.get("a") is None


def test_new_workers_and_those_whom_they_serve_respect_a_pause(gateway, connect):
    clients = spread(gateway, connect)
    me = clients[0]
    assert me.client_pause(100_000, all=False)
    victim = worker_of(gateway, clients[1])
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(gateway.workers()) == WORKERS and victim not in gateway.workers(),
               "another worker serves")
    fresh = spread(gateway, connect)
    writes = [background(lambda client=client: client.set("a", "1")) for client in fresh]
    wait_until(lambda: sum(each["flags"] == "b" for each in me.client_list()) == WORKERS,
               "all are held back")
    # Clients that move are held back where they come to: their workers are replaced.
    before = set(gateway.workers())
    gateway.settings["max_openfiles"] = 4000
    gateway.write_config()
    gateway.reload()
    wait_until(lambda: not before & set(worker_processes(gateway.pid)), "all workers are new", 30)
    # And by those of another program.
    before = set(gateway.workers())
    assert gateway.order("upgrade").returncode == 0
    wait_until(lambda: not before & set(worker_processes(gateway.pid)), "all workers are new", 30)
    wait_until(lambda: sum(each["flags"] == "b" for each in me.client_list()) == WORKERS,
               "all are held back again")
    assert not any(write.is_over() for write in writes)
    assert me.get("a") is None
    assert me.client_unpause()
    assert [write() for write in writes] == [True] * WORKERS


# ---------------------------------------------------------------------------------------- unblock


def test_a_call_that_waits_at_another_worker_is_ended(gateway, connect):
    clients = spread(gateway, connect)
    me, first, second = clients
    ids = {client: client.client_id() for client in clients}
    waits = background(lambda: outcome(lambda: first.blpop("queue", 0)))
    fails = background(lambda: outcome(lambda: second.blpop("queue", 0)))

    def are_blocked():
        return sum(each["flags"] == "b" for each in me.client_list()) == 2

    wait_until(are_blocked, "both wait")
    assert me.client_unblock(ids[first]) == 1
    assert waits() is None
    assert me.client_unblock(ids[second], error=True) == 1
    assert "client unblocked via CLIENT UNBLOCK" in str(fails())
    assert me.client_unblock(ids[first]) == 0 and me.client_unblock(10**9) == 0
    # Both are as before, and nothing waits at the server any more.
    assert first.rpush("queue", "job") == 1 and second.blpop("queue", 5) == ("queue", "job")


# ---------------------------------------------------------------------------------------- failures


def test_a_worker_that_hangs_makes_an_error_and_one_that_died_is_left_out(place, connect):
    # Nobody is replaced for hanging, which would be sooner.
    gateway = start(place, WORKERS, worker_heartbeat_timeout=0)
    clients = spread(gateway, connect)
    me, hung, dead = clients
    stopped = worker_of(gateway, hung)
    os.kill(stopped, signal.SIGSTOP)
    try:
        began = time.monotonic()
        said = outcome(me.client_list)
        assert "not all worker processes" in str(said) and time.monotonic() - began < 8
        assert me.set("a", "1")
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: not isinstance(outcome(me.client_list), Exception), "all answer again")
    os.kill(worker_of(gateway, dead), signal.SIGKILL)
    gone = f"{HOST}:{port(dead)}"
    wait_until(lambda: gone not in [each["addr"] for each in me.client_list()], "it is left out")
    left = [each["addr"] for each in me.client_list()]
    assert {f"{HOST}:{port(me)}", f"{HOST}:{port(hung)}"} <= set(left)


def test_many_ask_at_once(gateway, connect):
    clients = [connect(gateway, f"c{n}") for n in range(24)]
    answers = [background(lambda client=client: [names(client.client_list()) for _ in range(10)])
               for client in clients]
    everybody = sorted(f"c{n}" for n in range(24))
    for answer in answers:
        assert answer() == [everybody] * 10


# ------------------------------------------------------------------------ what they called last


def listed(conn):
    """What CLIENT LIST says, by the names of the clients."""
    lines = conn.call("CLIENT", "LIST").decode().splitlines()
    clients = [dict(word.split("=", 1) for word in line.split(" ") if "=" in word) for line in lines]
    return {client["name"]: client for client in clients}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_last_command_of_each_is_told(place, workers):
    servers = [place.redis() for _ in range(2)]
    pool = {"redis": True, "servers": server_lines(servers), "timeout": 5000}
    gateway = place.cashew({"p": pool}, {"worker_processes": workers})
    gateway.wait_serving()

    def client(name, *words, answered=True):
        conn = place.keep(gateway.connect())
        conn.call("CLIENT", "SETNAME", name)
        conn.send(resp(*words))
        if answered:
            conn.reply()
        return conn

    client("plain", "GET", "a")
    client("split", "MGET", *"abcdef")
    client("sub", "CONFIG", "GET", "maxmemory")
    client("local", "PING")
    client("named", "CLIENT", "GETNAME")
    client("wrong", "GET")
    client("unknown", "NOSUCH")
    client("large", "SET", "b", "x" * (2 << 20))
    client("subscriber", "SUBSCRIBE", "channel")
    client("pattern", "PSUBSCRIBE", "channel*")
    client("blocked", "BLPOP", "nothing", 0, answered=False)
    client("transaction", "MULTI").call("SET", "c", 1)
    expected = {
        "plain": "get",
        "split": "mget",
        "sub": "config|get",
        "local": "ping",
        "named": "client|getname",
        "wrong": "get",
        "unknown": "NULL",
        "large": "set",
        "subscriber": "subscribe",
        "pattern": "psubscribe",
        "blocked": "blpop",
        "transaction": "set",
    }
    with gateway.connect() as conn:
        conn.call("CLIENT", "SETNAME", "asker")
        wait_until(lambda: listed(conn)["blocked"]["cmd"] == "blpop", "it is blocked")
        clients = listed(conn)
        assert {name: clients[name]["cmd"] for name in expected} == expected
        assert clients["asker"]["cmd"] == "client|list"
        assert {client["oll"] for client in clients.values()} == {"0"}
        # They keep it where they go.
        if workers > 1:
            gateway.configure(worker_processes=1)
            gateway.reload()
            moved = ("plain", "split", "sub", "local", "named", "wrong", "large", "asker")
            wait_until(lambda: set(moved) <= set(listed(conn)), "those at rest have moved")
            clients = listed(conn)
            expected["asker"] = "client|list"
            assert {name: clients[name]["cmd"] for name in moved} == {
                name: expected[name] for name in moved
            }
