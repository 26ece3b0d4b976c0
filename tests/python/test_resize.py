"""More workers and fewer while clients come, stay and go: nobody is refused, reset or left waiting,
and sessions go on in the workers that remain."""

import contextlib
import threading
import time

import pytest

from harness import (
    Conn,
    FakeServer,
    HOST,
    commands,
    free_port,
    holders,
    resp,
    server_lines,
    silent,
    wait_until,
    worker_processes,
)
from load import Load, Storm, bulk, fill, key, memcached_request, value


def pool(*servers, **options):
    return {"redis": True, "servers": server_lines(servers), **options}


def resize(gateway, workers):
    """There are so many workers, and nobody of the others is left."""
    gateway.configure(worker_processes=workers)
    gateway.reload()
    wait_until(lambda: len(worker_processes(gateway.pid)) == workers, f"{workers} workers")

    def told():
        known = {worker["pid"] for worker in gateway.stats()["cashew"]["workers"]}
        return known == set(worker_processes(gateway.pid))

    wait_until(told, "the statistics tell of these workers only")


def all_held(gateway, load):
    """Every session is with one of the workers that there are."""
    def held():
        names = load.names()
        return len(holders(worker_processes(gateway.pid), names)) == len(names)

    wait_until(held, "every session is with a worker")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_four_one_three_two_workers_in_a_storm(place, kind):
    servers = place.redis(), place.redis()
    fill(*servers)
    listen = f"{HOST}:{free_port()}" if kind == "tcp" else str(place.directory / "alpha.sock")
    gateway = place.cashew({"alpha": pool(*servers, listen=listen)}, {"worker_processes": 4})
    gateway.wait_serving()
    with Load(gateway.address) as load, Storm(gateway.address) as storm:
        load.turn()
        for workers in (1, 3, 2):
            resize(gateway, workers)
            if kind == "tcp":
                all_held(gateway, load)
            load.turn()
            before = storm.count
            wait_until(lambda: storm.count > before + 100 or storm.failures, "the storm goes on")
            storm.check()
        family = worker_processes(gateway.pid)
        if kind == "tcp":
            # Newcomers go to every worker there is.
            spread = Load(gateway.address, count=64, tick=0.02)
            with spread:
                spread.turn()
                assert set(holders(family, spread.names()).values()) == set(family)
    stats = gateway.stats()
    assert stats["alpha"]["client_err"] == 0 and stats["alpha"]["forward_error"] == 0
    wait_until(lambda: gateway.stats()["alpha"]["client_connections"] == 0, "nobody is left")


def test_many_workers_with_many_pools_go_together(place):
    """The one that stays gets more sockets at once than fit into its channel."""
    server = place.redis()
    fill(server)
    pools = {f"pool{number}": pool(server, listen=str(f"{HOST}:{free_port()}"))
             for number in range(100)}
    gateway = place.cashew(pools, {"worker_processes": 40})
    gateway.wait_serving()
    family = worker_processes(gateway.pid)
    with Load(gateway.addresses["pool7"]) as load:
        load.turn()
        resize(gateway, 1)
        load.turn()
    assert set(worker_processes(gateway.pid)) < set(family)
    assert "aborted" not in gateway.log(), gateway.log()[-2000:]
    for address in gateway.addresses.values():
        with Conn(address) as conn:
            assert conn.call("GET", key(1)) == value(1)


def test_memcached_sessions_move_too(place):
    server = place.memcached()
    fill(server)
    gateway = place.cashew({"alpha": {"servers": server_lines([server])}}, {"worker_processes": 3})
    gateway.wait_serving()
    with Load(gateway.address, request=memcached_request) as load:
        for workers in (1, 2):
            load.turn()
            resize(gateway, workers)
            all_held(gateway, load)
        load.turn()


def test_resize_there_and_back_again(place):
    """As fast as it goes: each change before the last one's sessions have settled."""
    server = place.redis()
    fill(server)
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 2})
    gateway.wait_serving()
    with Load(gateway.address) as load, Storm(gateway.address, threads=1) as storm:
        load.turn()
        for workers in (1, 4, 2, 3, 1, 2):
            gateway.configure(worker_processes=workers)
            gateway.reload()
            load.check()
            storm.check()
        wait_until(lambda: len(worker_processes(gateway.pid)) == 2, "two workers")
        load.turn()


def all_move(gateway, conns):
    """Takes the worker away that serves, and gives another: a single worker is replaced."""
    pids = worker_processes(gateway.pid)
    ports = {conn.socket.getsockname()[1] for conn in conns}
    before = holders(pids, ports)
    resize(gateway, 1)
    left = worker_processes(gateway.pid)
    moved = sum(1 for pid in before.values() if pid not in left)
    wait_until(lambda: len(holders(left, ports)) == len(ports), "all are with who is left")
    return moved


def test_what_a_session_knows_moves_with_it(place):
    server = place.redis("--requirepass", "secret")
    gateway = place.cashew({"alpha": pool(server, redis_auth="secret")}, {"worker_processes": 4})
    gateway.wait_serving()
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(gateway.connect()) for _ in range(24)]
        ids = []
        for number, conn in enumerate(conns):
            assert "NOAUTH" in conn.error("GET", "a")
            if number % 3:
                version = 2 + number % 2
                conn.call("HELLO", version, "AUTH", "default", "secret")
                assert conn.call("SELECT", number % 4) == "OK"
                assert conn.call("CLIENT", "SETNAME", f"client-{number}") == "OK"
                assert conn.call("CLIENT", "SETINFO", "LIB-NAME", "tests") == "OK"
                ids.append(conn.call("CLIENT", "ID"))
                assert conn.call("SET", f"a{number}", number) == "OK"
                # Half of the next request is there already.
                conn.send(resp("GET", f"a{number}")[:-4])
        assert all_move(gateway, conns)
        found = []
        for number, conn in enumerate(conns):
            if number % 3:
                conn.send(resp("GET", f"a{number}")[-4:])
                assert conn.reply() == b"%d" % number
                assert conn.call("CLIENT", "GETNAME") == b"client-%d" % number
                info = conn.call("CLIENT", "INFO").decode()
                assert f" db={number % 4} " in info and f" resp={2 + number % 2} " in info
                assert " lib-name=tests " in info
                conn.send(resp("GET", "none"))
                assert conn.raw_reply() == (b"_\r\n" if number % 2 else b"$-1\r\n")
                found.append(conn.call("CLIENT", "ID"))
            else:
                assert "NOAUTH" in conn.error("GET", "a")
        assert found == ids and len(set(ids)) == len(ids)
        for number in range(24):
            if number % 3:
                with server.connect() as direct:
                    direct.call("SELECT", number % 4)
                    assert direct.call("GET", f"a{number}") == b"%d" % number
        fresh = stack.enter_context(gateway.connect())
        assert fresh.call("AUTH", "secret") == "OK"
        assert fresh.call("CLIENT", "ID") > max(ids)


def test_a_reply_under_way_comes_before_the_session_moves(place):
    def slow(client, _number):
        for words in commands(client):
            if words[0].upper() == b"GET":
                time.sleep(1.0)
            client.sendall(bulk(b"late-" + words[1]))

    fake = place.keep(FakeServer(slow))
    gateway = place.cashew({"alpha": pool(fake)}, {"worker_processes": 4})
    gateway.wait_serving()
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(gateway.connect()) for _ in range(12)]
        for number, conn in enumerate(conns[:6]):
            conn.send(resp("GET", f"a{number}"))
        wait_until(lambda: gateway.stats()["alpha"]["client_requests"] == 6, "they are asked")
        change = threading.Thread(target=resize, args=(gateway, 1))
        change.start()
        for number, conn in enumerate(conns[:6]):
            assert conn.reply(20) == b"late-a%d" % number
        change.join(60)
        for number, conn in enumerate(conns):
            assert conn.call("SET", f"b{number}", 1) == b"late-b%d" % number


def test_large_values_under_way_while_sessions_move(place):
    """What is received in part, and what is not yet read, comes along, byte for byte."""
    server = place.redis()
    gateway = place.cashew({"alpha": pool(server)}, {"worker_processes": 4})
    big = bytes(range(256)) * 4096 * 2
    request = resp("SET", "big", big)
    gateway.wait_serving()
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(gateway.connect(timeout=20)) for _ in range(8)]
        for number, conn in enumerate(conns):
            if number % 2:
                conn.send(request[:len(request) // 3])
            else:
                assert conn.call("SET", "big", big) == "OK"
                conn.send(resp("GET", "big"))  # and does not read
        gateway.configure(worker_processes=1)
        gateway.reload()
        wait_until(lambda: len(gateway.workers()) == 1, "the others take nobody any more")
        for number, conn in enumerate(conns):
            if number % 2:
                conn.send(request[len(request) // 3:])
                assert conn.reply() == "OK"
            else:
                assert conn.reply() == big
        wait_until(lambda: len(worker_processes(gateway.pid)) == 1, "one worker")
        for conn in conns:
            assert conn.call("GET", "big") == big


def test_who_never_comes_to_rest_is_closed_at_the_shutdown_timeout(place):
    """Counted and logged; a session at rest is not closed."""
    server, fake = place.redis(), place.keep(FakeServer(silent))
    fill(server)
    gateway = place.cashew({"alpha": pool(fake), "beta": pool(server)},
                           {"worker_processes": 4, "worker_shutdown_timeout": 4})
    gateway.wait_serving()
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(gateway.connect("alpha")) for _ in range(16)]
        rest = [stack.enter_context(gateway.connect("alpha")) for _ in range(16)]
        for conn in conns:
            conn.send(resp("GET", "a"))
        for conn in rest:
            assert conn.call("PING") == "PONG"
        wait_until(lambda: gateway.under_way() == len(conns), "all of them wait for the server")
        ports = {conn.socket.getsockname()[1] for conn in conns}
        before = holders(worker_processes(gateway.pid), ports)
        with Load(gateway.addresses["beta"]) as load:
            load.turn()
            begin = time.monotonic()
            resize(gateway, 1)
            assert time.monotonic() - begin > 3.5
            load.turn()
        left, = worker_processes(gateway.pid)
        cut = [conn for conn in conns if before[conn.socket.getsockname()[1]] != left]
        assert cut
        for conn in cut:
            conn.expect_closed()
        for conn in rest:
            assert conn.call("PING") == "PONG"
        for conn in conns:
            if conn not in cut:
                conn.expect_silence(0)
        assert "not at rest" in gateway.log()
        assert gateway.stats()["cashew"]["sessions_cut"] == len(cut)


def test_the_size_and_the_ring_change_together(place):
    servers = place.redis(), place.redis()
    fill(*servers)
    gateway = place.cashew({"alpha": pool(servers[0])}, {"worker_processes": 3})
    gateway.wait_serving()
    with Load(gateway.address) as load:
        for number, workers in enumerate((1, 2, 4, 2)):
            load.turn()
            gateway.configure({"alpha": pool(servers[(number + 1) % 2])}, worker_processes=workers)
            gateway.reload()
        load.turn()
        wait_until(lambda: len(worker_processes(gateway.pid)) == 2, "two workers")
        assert gateway.call("GET", key(1)) == value(1)
