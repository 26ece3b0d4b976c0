"""Another configuration in a running gateway: no connection is closed, no request fails, and no two
workers ever use different rings, as the servers' own records show."""

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import (
    FakeServer,
    HOST,
    accepts,
    commands,
    free_port,
    resp,
    server_lines,
    silent,
    wait_until,
    worker_processes,
)
from load import Load, Record, WatchRecord, blocks, bulk, fill, key, memcached_request, value


def pool(*servers, names=None, **options):
    return {"redis": True, "servers": server_lines(servers, names), **options}


def listens(place, kind):
    """Where a pool listens, as the configuration says it."""
    if kind == "unix":
        return str(place.directory / "alpha.sock")
    return f'"[::1]:{free_port()}"' if kind == "ipv6" else f"{HOST}:{free_port()}"


def hang_up(gateway):
    """A reload as SIGHUP asks for it."""
    before = gateway.epoch()
    gateway.process.signal(signal.SIGHUP)
    wait_until(lambda: gateway.epoch() > before, f"an epoch after {before}\n{gateway.log()[-800:]}")


def change(gateway, number, pools):
    """One way and the other, by turns."""
    gateway.configure(pools)
    if number % 2:
        hang_up(gateway)
    else:
        before = gateway.epoch()
        gateway.reload()
        assert gateway.epoch() > before


def both_know_everything(place):
    servers = place.redis(), place.redis()
    fill(*servers)
    return servers


# ----------------------------------------------------------------------------------- change of ring


@pytest.mark.parametrize("kind, count", [("tcp", 20), ("unix", 6), ("ipv6", 6)])
def test_a_pool_flips_between_two_servers(place, kind, count):
    one, two = both_know_everything(place)
    other = place.redis()
    fill(other)
    listen = listens(place, kind)
    pools = [{"alpha": pool(server, listen=listen), "beta": pool(other)} for server in (one, two)]
    gateway = place.cashew(pools[0], {"worker_processes": 2})
    records = [Record(server) for server in (one, two)]
    with Load(gateway.address) as load, Load(gateway.addresses["beta"], count=4) as quiet:
        load.turn()
        quiet.turn()
        connected = other.call("INFO", "stats")
        family = worker_processes(gateway.pid)
        for number in range(count):
            change(gateway, number, pools[(number + 1) % 2])
            load.turn()
            quiet.check()
        assert load.stop() and quiet.stop()
    assert worker_processes(gateway.pid) == family
    found = blocks(*(record.stop() for record in records))
    assert len(found) == count + 1, found
    assert [block[0] for block in found] == [number % 2 for number in range(count + 1)]
    # The pool that was left alone kept its connections: the only new ones are those of this test.
    assert new_connections(connected, other) <= 2
    stats = gateway.stats()["alpha"]
    assert stats["forward_error"] == 0 and stats["client_err"] == 0


def new_connections(before, server):
    def count(text):
        return int(re.search(rb"total_connections_received:(\d+)", text)[1])

    return count(server.call("INFO", "stats")) - count(before)


def test_two_servers_change_places(place):
    """No key is asked of its new server before the last has been asked of its old one."""
    servers = both_know_everything(place)
    # The default hash has little to say about keys that differ in their last digits.
    pools = [{"alpha": pool(*order, names=["one", "two"], hash="md5")}
             for order in (servers, servers[::-1])]
    gateway = place.cashew(pools[0], {"worker_processes": 2})
    with gateway.connect() as conn:
        for server in servers:
            server.call("CONFIG", "RESETSTAT")
        keys = list(map(key, range(500)))
        home = {}
        for name in keys:
            before = servers[0].stat("get")
            assert conn.call("GET", name)
            home[name] = 0 if servers[0].stat("get") > before else 1
            if len(home) == 60:
                break
    assert set(home.values()) == {0, 1}
    records = [Record(server) for server in servers]
    with Load(gateway.address) as load:
        for number in range(6):
            load.turn()
            change(gateway, number, pools[(number + 1) % 2])
        load.turn()
    rings = [], []
    for server, record in enumerate(records):
        for event in record.stop():
            if event[1] in home:
                rings[home[event[1]] != server].append(event)
    assert [block[0] for block in blocks(*rings)] == [0, 1, 0, 1, 0, 1, 0]


def test_a_memcached_pool_flips(place):
    servers = [place.memcached("-o", "watcher_logbuf_size=16384,worker_logbuf_size=16384")
               for _ in range(2)]
    fill(*servers)
    pools = [{"alpha": {"servers": server_lines([server])}} for server in servers]
    gateway = place.cashew(pools[0], {"worker_processes": 2})
    records = [WatchRecord(server) for server in servers]
    # Slowly: what memcached cannot write down in time it leaves out.
    with Load(gateway.address, count=8, tick=0.01, request=memcached_request) as load:
        for number in range(6):
            load.turn()
            change(gateway, number, pools[(number + 1) % 2])
        load.turn()
    found = blocks(*(record.stop() for record in records))
    assert [block[0] for block in found] == [0, 1, 0, 1, 0, 1, 0]


def test_fifty_reloads_in_two_seconds(place):
    servers = both_know_everything(place)
    pools = [{"alpha": pool(server)} for server in servers]
    gateway = place.cashew(pools[0], {"worker_processes": 2})
    records = [Record(server) for server in servers]
    first = gateway.epoch()
    orders = []
    with Load(gateway.address) as load:
        load.turn()
        begin = time.monotonic()
        for number in range(50):
            gateway.configure(pools[(number + 1) % 2])
            if number % 2:
                gateway.process.signal(signal.SIGHUP)
            else:
                words = [gateway.binary, "reload", "-c", str(gateway.config_path)]
                orders.append(subprocess.Popen(words, stdin=subprocess.DEVNULL,
                                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
            time.sleep(max(0.0, begin + 0.04 * (number + 1) - time.monotonic()))
        said = [order.communicate(timeout=60)[1].decode() for order in orders]
        assert [order.returncode for order in orders] == [0] * len(orders), said
        gateway.configure(pools[1])
        gateway.reload()
        load.turn()
        settled = gateway.epoch()
        load.turn()
        assert gateway.epoch() == settled
    assert gateway.epoch() - first >= 3
    found = blocks(*(record.stop() for record in records))
    assert found[0][0] == 0 and found[-1][0] == 1
    assert len(found) <= settled - first + 1, found


def test_a_hung_server_holds_a_reload_up_no_longer_than_the_drain_timeout(place):
    one, two = both_know_everything(place)
    gateway = place.cashew({"alpha": pool(one)},
                           {"worker_processes": 2, "reload_drain_timeout": 300})
    conns = [gateway.connect() for _ in range(8)]
    for conn in conns:
        assert conn.call("GET", key(1)) == value(1)
    one.process.signal(signal.SIGSTOP)
    try:
        for conn in conns[:4]:
            conn.send(resp("GET", key(2)))
        wait_until(lambda: gateway.under_way() == 4, "all four are under way")
        gateway.configure({"alpha": pool(two)})
        begin = time.monotonic()
        gateway.reload()
        assert 0.2 < time.monotonic() - begin < 10
        for conn in conns[4:]:
            assert conn.call("GET", key(3)) == value(3)
        for conn in conns[:4]:
            conn.send(resp("GET", key(3)))
            assert "ERR" in str(conn.reply())
            assert conn.reply() == value(3)
    finally:
        one.process.signal(signal.SIGCONT)
    for conn in conns:
        conn.close()


def test_what_is_in_flight_is_answered_by_whom_it_was_asked(place):
    """A request that is slow, but not too slow, has its reply before the ring changes."""
    asked, ready = [], threading.Event()

    def slow(client, _number):
        for words in commands(client):
            asked.append(words)
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client):
        assert ready.wait(60)
        client.sendall(bulk(b"slow"))

    fake, two = place.keep(FakeServer(slow)), place.redis()
    fill(two)
    gateway = place.cashew({"alpha": pool(fake)},
                           {"worker_processes": 2, "reload_drain_timeout": 60_000})
    gateway.wait_serving()
    with contextlib.ExitStack() as stack:
        conns = []

        def ask():
            conn = stack.enter_context(gateway.connect())
            conn.send(resp("GET", key(1)))
            conns.append(conn)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: len(asked) == len(conns), "the fake is asked", 5)
            return len(asked) == len(conns)

        assert ask()
        gateway.configure({"alpha": pool(two)})
        reload = threading.Thread(target=gateway.reload)
        reload.start()
        try:
            # Whoever asks once the reload is so far waits for the new ring.
            wait_until(lambda: not ask(), "somebody waits")
        finally:
            ready.set()
        replies = [conn.reply() for conn in conns]
        assert replies.count(b"slow") == len(asked) < len(conns)
        assert replies.count(value(1)) == len(conns) - len(asked)
        assert conns[0].call("GET", key(1)) == value(1)
        reload.join(60)


def test_a_server_that_is_down_does_not_hinder_a_reload(place):
    one, two = both_know_everything(place)
    dead = free_port()
    gateway = place.cashew({"alpha": pool(one), "beta": pool(dead)}, {"worker_processes": 2})
    with Load(gateway.address) as load, gateway.connect("beta") as conn:
        load.turn()
        conn.error("GET", key(1))
        for servers in ((two, two), (one, dead)):
            gateway.configure({"alpha": pool(servers[0]), "beta": pool(dead),
                               "gamma": pool(servers[1], free_port(), names=["x", "y"],
                                             preconnect=True)})
            begin = time.monotonic()
            gateway.reload()
            assert time.monotonic() - begin < 8
            load.turn()
            conn.error("GET", key(1))
        # Clients of a pool whose only server is down are served when it gets another.
        gateway.configure({"alpha": pool(one), "beta": pool(two)})
        gateway.reload()
        assert conn.call("GET", key(1)) == value(1)


# -------------------------------------------------------------------------------- what is refused


def test_an_invalid_file_in_the_middle(place):
    servers = both_know_everything(place)
    pools = [{"alpha": pool(server)} for server in servers]
    gateway = place.cashew(pools[0], {"worker_processes": 2})
    records = [Record(server) for server in servers]
    with Load(gateway.address) as load:
        load.turn()
        change(gateway, 0, pools[1])
        load.turn()
        settled = gateway.epoch()
        good = gateway.config_path.read_text()
        for text, reason in [(good.replace("redis:", "reddis:"), "reddis"),
                             (good + "nonsense: [\n", "nonsense: ["),
                             (good.replace("servers:", "srvrs:"), "srvrs")]:
            gateway.write_config(text)
            said = gateway.refused_reload()
            assert reason.rstrip(": [") in said or "sequence" in said, said
            # It names the line.
            line = next(at for at, line in enumerate(text.splitlines(), 1) if reason in line)
            assert re.search(rf"{re.escape(gateway.config_path.name)}:{line}[:.]", said), said
            reason = gateway.config_path.name
            assert reason in gateway.log()
            lines = len(gateway.log())
            gateway.process.signal(signal.SIGHUP)
            wait_until(lambda: gateway.config_path.name in gateway.log()[lines:], "it is logged")
            assert gateway.epoch() == settled
            load.turn()
        gateway.config_path.unlink()
        assert gateway.config_path.name in refused_without_file(gateway)
        assert gateway.epoch() == settled
        change(gateway, 0, pools[0])
        load.turn()
    found = blocks(*(record.stop() for record in records))
    assert [block[0] for block in found] == [0, 1, 0]


def refused_without_file(gateway):
    done = gateway.order("reload")
    assert done.returncode == 1
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_an_address_that_is_taken(place, kind):
    one, two = both_know_everything(place)
    gateway = place.cashew({"alpha": pool(one)}, {"worker_processes": 2})
    address = free_port() if kind == "tcp" else str(place.directory / "taken.sock")
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(Load(gateway.address))
        if kind == "tcp":
            taken = socket.create_server((HOST, address))
        else:
            taken = socket.socket(socket.AF_UNIX)
            taken.bind(address)
            taken.listen()
        with taken:
            listen = f"{HOST}:{address}" if kind == "tcp" else address
            free = f"{HOST}:{free_port()}"
            before = gateway.epoch()
            gateway.configure({"alpha": pool(two), "beta": pool(two, listen=free),
                               "gamma": pool(two, listen=listen)})
            said = gateway.refused_reload()
            assert str(address) in said, said
            # None of it is in effect, the rest of the file as little.
            assert gateway.epoch() == before
            assert not accepts(int(free.rpartition(":")[2]))
            assert list(pools_of(gateway)) == ["alpha"]
            two.call("CONFIG", "RESETSTAT")
            load.turn()
            assert two.stat("get") == 0
            if kind == "unix":
                assert accepts(address), "it is still there, and not ours"
        if kind == "unix":
            os.unlink(address)
        gateway.reload()
        load.turn()
        assert gateway.connect("gamma").call("GET", key(1)) == value(1)


def pools_of(gateway):
    return {name: numbers for name, numbers in gateway.stats().items()
            if isinstance(numbers, dict) and "client_eof" in numbers}


# ------------------------------------------------------------------------------ pools and addresses


def test_pools_come_move_and_go(place):
    one, two = both_know_everything(place)
    alpha = pool(one)
    gateway = place.cashew({"alpha": alpha, "beta": pool(two)},
                           {"worker_processes": 2, "worker_shutdown_timeout": 5})
    old = gateway.address
    with Load(old) as load:
        load.turn()
        # One comes.
        gateway.configure({**gateway.pools, "gamma": pool(two)})
        assert "gamma" in gateway.reload()
        with gateway.connect("gamma") as conn:
            assert conn.call("GET", key(1)) == value(1)
        # One moves: its clients stay, and new ones find it at its new address.
        waiting = [gateway.connect() for _ in range(30)]
        gateway.configure({**gateway.pools, "alpha": {**alpha, "listen": f"{HOST}:{free_port()}"}})
        assert "alpha" in gateway.reload()
        for conn in waiting:
            assert conn.call("GET", key(2)) == value(2)
            conn.close()
        wait_until(lambda: not accepts(old), "nobody listens at the old address")
        with gateway.connect("alpha") as conn:
            assert conn.call("GET", key(1)) == value(1)
        load.turn()
        # One goes: its clients are served for a while.
        port = gateway.addresses["beta"]
        leaving = gateway.connect("beta")
        assert leaving.call("GET", key(1)) == value(1)
        gateway.configure({name: options for name, options in gateway.pools.items()
                           if name != "beta"})
        assert "beta" in gateway.reload()
        wait_until(lambda: not accepts(port), "nobody listens for a pool that is gone")
        assert leaving.call("GET", key(3)) == value(3)
        leaving.expect_closed(40)
        leaving.close()
        assert list(pools_of(gateway)) == ["alpha", "gamma"]
        # It comes again, under the same name.
        gateway.configure({"beta": pool(one, listen=f"{HOST}:{port}"), **gateway.pools})
        gateway.reload()
        with gateway.connect("beta") as conn:
            assert conn.call("GET", key(1)) == value(1)
        load.turn()


def test_a_unix_socket_moves_to_tcp_and_back(place):
    one = place.redis()
    fill(one)
    path = place.directory / "alpha.sock"
    gateway = place.cashew({"alpha": pool(one, listen=str(path))}, {"worker_processes": 2})
    with Load(str(path)) as load:
        load.turn()
        gateway.configure({"alpha": pool(one, listen=f"{HOST}:{free_port()}")})
        gateway.reload()
        wait_until(lambda: not path.exists(), "the path is tidied up")
        assert gateway.call("GET", key(1)) == value(1)
        load.turn()
        gateway.configure({"alpha": pool(one, listen=f"{path} 0660")})
        gateway.reload()
        assert gateway.call("GET", key(1)) == value(1)
        assert path.stat().st_mode & 0o777 == 0o660
        load.turn()


def test_the_order_of_pools_means_nothing(place):
    servers = [place.redis() for _ in range(3)]
    fill(*servers)
    names = ["alpha", "beta", "gamma"]
    gateway = place.cashew({name: pool(server) for name, server in zip(names, servers)},
                           {"worker_processes": 2})
    for server in servers:
        server.call("CONFIG", "RESETSTAT")
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load(gateway.addresses[name], count=4)) for name in names]
        for order in (["gamma", "alpha", "beta"], ["beta", "gamma", "alpha"], ["alpha"], names):
            kept = {name: gateway.pools.get(name) or pool(servers[names.index(name)])
                    for name in order}
            if order == ["alpha"]:
                for load in loads[1:]:
                    load.stop()
                    for client in load.clients():
                        client.socket.close()
                loads = loads[:1]
            gateway.configure(kept)
            gateway.reload()
            for load in loads:
                load.turn()
    for name, server in zip(names, servers):
        before = server.stat("get")
        with gateway.connect(name) as conn:
            assert conn.call("GET", key(1)) == value(1)
        assert server.stat("get") == before + 1


# ------------------------------------------------------------------------------- options in place


def test_limits_and_timeouts_change_in_place(place):
    one, fake = place.redis(), place.keep(FakeServer(silent))
    fill(one)
    pools = {"alpha": pool(one, client_connections=8), "beta": pool(fake)}
    gateway = place.cashew(pools, {"worker_processes": 2})
    gateway.wait_empty()
    with Load(gateway.address, count=8) as load, gateway.connect("beta") as slow:
        load.turn()
        connected = one.call("INFO", "stats")
        with gateway.connect() as conn:
            assert "max number of clients" in conn.error("PING")
        listens = {name: {"listen": options["listen"]} for name, options in gateway.pools.items()}
        gateway.configure({"alpha": {**pool(one, client_connections=9), **listens["alpha"]},
                           "beta": {**pool(fake, timeout=200), **listens["beta"]}})
        said = gateway.reload()
        assert "client_connections" in said and "timeout" in said, said
        with gateway.connect() as conn:
            assert conn.call("GET", key(1)) == value(1)
            with gateway.connect() as refused:
                assert "max number of clients" in refused.error("PING")
        begin = time.monotonic()
        slow.error("GET", key(1))
        assert 0.1 < time.monotonic() - begin < 8
        # Fewer than there are: nobody is thrown out, and nobody comes in.
        gateway.configure({**gateway.pools, "alpha": pool(one, client_connections=4)})
        gateway.reload()
        load.turn()
        with gateway.connect() as refused:
            assert "max number of clients" in refused.error("PING")
        load.turn()
        assert new_connections(connected, one) <= 2, "the server's connections are the same"


def test_a_file_that_did_not_change_says_so(place):
    one = place.redis()
    fill(one)
    gateway = place.cashew({"alpha": pool(one)}, {"worker_processes": 2})
    with Load(gateway.address, count=4) as load:
        load.turn()
        connected = one.call("INFO", "stats")
        assert "nothing changes" in gateway.reload()
        load.turn()
        assert new_connections(connected, one) <= 2


def test_a_dry_run_tells_and_does_nothing(place):
    one, two = both_know_everything(place)
    gateway = place.cashew({"alpha": pool(one, names=["x"]), "beta": pool(one)},
                           {"worker_processes": 2})
    before = gateway.epoch()
    gateway.configure({"alpha": pool(one, two, names=["x", "y"]), "beta": pool(one, timeout=900)})
    said = gateway.reload("--dry-run")
    assert "alpha" in said and "beta" in said and "timeout" in said and "900" in said, said
    moved = re.search(r"([\d.]+) ?%", said)
    assert moved and 30 < float(moved[1]) < 70, said
    assert gateway.epoch() == before
    two.call("CONFIG", "RESETSTAT")
    with gateway.connect() as conn:
        for number in range(50):
            assert conn.call("GET", key(number)) == value(number)
    assert two.stat("get") == 0
    # A dry run finds what is wrong, too.
    good = gateway.config_path.read_text()
    gateway.write_config(good.replace("timeout:", "timeuot:"))
    done = gateway.order("reload", "--dry-run")
    assert done.returncode == 1 and "timeuot" in done.stdout + done.stderr
    gateway.write_config(good)
    assert "alpha" in gateway.reload()
    assert gateway.epoch() > before


def test_status_shows_the_last_reload(place):
    one, two = both_know_everything(place)
    gateway = place.cashew({"alpha": pool(one)},
                           {"worker_processes": 2, "control_socket": place.directory / "ctl.sock"})
    status = gateway.order("status")
    assert status.returncode == 0, status.stderr
    for pid in (gateway.pid, *worker_processes(gateway.pid)):
        assert str(pid) in status.stdout, status.stdout
    digests = []
    for server in (two, one):
        gateway.configure({"alpha": pool(server)})
        gateway.reload()
        shown = gateway.order("status", "--json")
        assert shown.returncode == 0
        digests.append(shown.stdout)
    assert digests[0] != digests[1]
    control = ["--control", place.directory / "ctl.sock"]
    gateway.write_config("alpha: nonsense\n")
    # A file that cannot be read does not say where its instance is to be found, and that is said with its errors.
    done = gateway.order("reload")
    assert done.returncode == 1 and "--control" in done.stderr and "nonsense" in done.stderr, done.stderr
    done = gateway.order("reload", *control)
    assert done.returncode == 1 and gateway.config_path.name in done.stderr
    status = gateway.order("status", *control)
    assert status.returncode == 0
    shown = re.search(r"^last reload: (.*)", status.stdout, re.MULTILINE)
    assert shown and gateway.config_path.name in shown[1], status.stdout


def test_many_ask_for_the_status_at_once(place):
    pools = {"alpha": {"redis": True, "servers": server_lines([place.redis()])}}
    gateway = place.cashew(pools, {"worker_processes": 2})
    gateway.wait_serving()
    pid = gateway.pid
    for _ in range(5):
        with ThreadPoolExecutor(8) as executor:
            answers = [executor.submit(gateway.order, "status") for _ in range(8)]
            for answer in answers:
                assert answer.result().returncode == 0, answer.result().stderr
    assert gateway.process.running() and gateway.pid == pid


def test_operators_are_heard_where_the_file_says(place):
    pools = {"alpha": pool(place.redis())}
    gateway = place.cashew(pools, {"worker_processes": 2})
    gateway.wait_serving()
    for name in ("one.sock", None, "two.sock", None):
        gateway.settings.pop("control_socket", None)
        gateway.configure(**({"control_socket": place.directory / name} if name else {}))
        hang_up(gateway)
        status = gateway.order("status")
        assert status.returncode == 0, status.stderr
        for other in ("one.sock", "two.sock"):
            assert (place.directory / other).exists() == (other == name)


def test_nobody_there_is_an_error_that_says_so(place):
    one = place.redis()
    gateway = place.cashew({"alpha": pool(one)}, {"worker_processes": 1})
    assert gateway.stop() == 0
    for command in ("reload", "status", "upgrade"):
        done = gateway.order(command)
        assert done.returncode == 1 and done.stderr.strip()


def test_counters_never_go_back(place):
    """Statistics move to other memory when the servers are others, worker by worker."""
    one, two = both_know_everything(place)
    gateway = place.cashew({"alpha": pool(one)}, {"worker_processes": 2})
    seen = []
    over = threading.Event()

    def watch():
        while not over.is_set():
            seen.append(gateway.stats()["alpha"]["client_requests"])

    watcher = threading.Thread(target=watch)
    with Load(gateway.address, count=8) as load:
        load.turn()
        watcher.start()
        try:
            end = time.monotonic() + 4
            for turn in itertools.count(1):
                servers = (one, two) if turn % 2 else (one,)
                gateway.configure({"alpha": pool(*servers)})
                gateway.reload()
                load.turn()
                if time.monotonic() > end and len(seen) > 20:
                    break
        finally:
            over.set()
            watcher.join()
    assert seen[-1] > seen[0] > 0
    assert seen == sorted(seen)


def test_workers_stay_on_the_processors_they_are_given(place):
    one = place.redis()
    gateway = place.cashew({"alpha": pool(one)},
                           {"worker_processes": 2, "worker_cpu_affinity": "auto"})
    allowed = sorted(os.sched_getaffinity(0))
    wanted = sorted([allowed[0], allowed[1 % len(allowed)]])

    def used():
        return [sorted(os.sched_getaffinity(pid)) for pid in worker_processes(gateway.pid)]

    wait_until(lambda: sorted(used()) == [[cpu] for cpu in wanted], "one processor each")
    gateway.configure(worker_cpu_affinity="off")
    gateway.reload()
    wait_until(lambda: used() == [allowed, allowed], "all processors again")
