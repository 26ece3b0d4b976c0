"""Servers that hold writes back (CLIENT PAUSE WRITE, as in a failover) while calls wait there that are to end. A call that
came meanwhile is not blocked by its own rule yet: told that its time is up, Redis 6.2 to 8.0 ends by an assertion."""

import pytest

from harness import newer_servers, resp, server_lines, wait_until

PROGRAMS = ["redis-server", *map(str, newer_servers())]

pytestmark = pytest.mark.parametrize("program", PROGRAMS,
                                      ids=lambda path: path.rpartition("/")[2] if "/" in path else "distribution")


def pool(*servers):
    return {"redis": True, "command_policy": "admin", "hash_tag": '"{}"', "auto_eject_hosts": False,
            "servers": server_lines(servers)}


def start(place, program, count=1):
    servers = [place.redis(program=program) for _ in range(count)]
    gateway = place.cashew({"alpha": pool(servers[0])}, {"worker_processes": 2, "worker_shutdown_timeout": 5000,
                            "reload_drain_timeout": 2000})
    gateway.wait_serving()
    return gateway, servers


def held(server):
    """Clients of the server whose commands it holds back, or that wait."""
    return [line for line in server.call("CLIENT", "LIST").decode().splitlines() if " flags=b" in line]


def block(gateway, server, *words):
    """A client whose call the server holds back."""
    assert server.call("CLIENT", "PAUSE", 60_000, "WRITE") == "OK"
    conn = gateway.connect()
    number = conn.call("CLIENT", "ID")
    conn.send(resp(*words))
    wait_until(lambda: held(server), "the server has the call")
    return conn, number


def is_alive(server):
    return server.process.running() and server.call("PING") == "PONG"


def test_a_client_that_leaves(place, program):
    gateway, [server] = start(place, program)
    conn, _ = block(gateway, server, "BLPOP", "queue", "0")
    conn.close()
    wait_until(lambda: not held(server), "nothing waits at the server")
    assert server.call("CLIENT", "UNPAUSE") == "OK"
    assert gateway.call("RPUSH", "queue", "job") == 1
    assert is_alive(server) and server.call("LRANGE", "queue", 0, -1) == [b"job"]


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_a_call_that_another_client_ends(place, program, how):
    gateway, [server] = start(place, program)
    conn, number = block(gateway, server, "BLPOP", "queue", "0")
    with gateway.connect() as other:
        assert other.call("CLIENT", "UNBLOCK", number, how) == 1
    if program == "redis-server":
        # Newer ones end no call that they hold back.
        conn.expect(b"*-1\r\n" if how == "TIMEOUT" else b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")
        wait_until(lambda: not held(server), "nothing waits at the server")
        assert server.call("CLIENT", "UNPAUSE") == "OK"
    else:
        assert server.call("CLIENT", "UNPAUSE") == "OK"
        conn.expect(b"*-1\r\n" if how == "TIMEOUT" else b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")
    assert gateway.call("RPUSH", "queue", "job") == 1
    assert is_alive(server) and server.call("LRANGE", "queue", 0, -1) == [b"job"]
    assert conn.call("PING") == "PONG"


@pytest.mark.parametrize("call", [["BLPOP", "queue", "0"], ["BLMOVE", "queue", "{queue}2", "LEFT", "RIGHT", "0"],
                                  ["BZPOPMIN", "queue", "0"]], ids=lambda call: call[0].lower())
def test_another_server_takes_its_place(place, program, call):
    """The call is asked of the next server, and nothing is taken out of the former one's list for nobody."""
    gateway, [before, after] = start(place, program, 2)
    conn, _ = block(gateway, before, *call)
    gateway.configure({"alpha": pool(after)})
    gateway.order("reload")
    # Newer ones end no call that they hold back: the change goes on without them when its time is up.
    wait_until(lambda: held(after), "the next server has the call", seconds=20)
    wait_until(lambda: not held(before), "nothing waits at the former one")
    assert before.call("CLIENT", "UNPAUSE") == "OK"
    put = ["ZADD", "queue", "1", "job"] if call[0] == "BZPOPMIN" else ["RPUSH", "queue", "job"]
    before.call(*put)
    after.call(*put)
    reply = conn.reply()
    assert b"job" in (reply if isinstance(reply, list) else [reply])
    assert is_alive(before) and is_alive(after)
    assert before.call("EXISTS", "queue") == 1 and after.call("EXISTS", "queue") == 0


def test_workers_are_replaced(place, program):
    """A client that waits goes to another worker with its call."""
    gateway, [server] = start(place, program)
    conn, _ = block(gateway, server, "BLPOP", "queue", "0")
    workers = set(gateway.workers())
    done = gateway.order("upgrade", seconds=40)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: not workers & set(gateway.workers()), "the workers are others", seconds=20)
    assert is_alive(server)
    assert server.call("CLIENT", "UNPAUSE") == "OK"
    wait_until(lambda: len(held(server)) == 1, "one call waits")
    assert gateway.call("RPUSH", "queue", "job") == 1
    conn.expect(b"*2\r\n$5\r\nqueue\r\n$3\r\njob\r\n")
    assert is_alive(server)
