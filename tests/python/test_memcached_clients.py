"""memcached's clients of several languages, and libmemcached's judge of servers, through the gateway.

Each does what its users do, in every protocol that it has, and looks at every answer.
"""

import os
import subprocess
import threading

import bmemcached
import meta_memcache
import pylibmc
import pytest
from meta_memcache import Key, SetMode
from meta_memcache.configuration import LeasePolicy, RecachePolicy, StalePolicy

from harness import HOST, server_lines
from test_languages import CLIENTS, java_classes, must, node_modules

LARGE = bytes(range(256)) * 3500  # nearly what fits


@pytest.fixture(scope="module")
def gateway(module_place):
    servers = [module_place.memcached() for _ in range(3)]
    lines = server_lines(servers)
    gateway = module_place.cashew(
        {"beta": {"servers": lines}, "plain": {"servers": lines, "cas_uniques": "plain"}},
        {"worker_processes": 2})
    gateway.servers = servers
    return gateway


@pytest.fixture(autouse=True)
def empty(gateway):
    for server in gateway.servers:
        server.reset()


@pytest.fixture
def address(gateway):
    return f"{HOST}:{gateway.address}"


# ---------------------------------------------------------------------------------- memccapable


@pytest.mark.parametrize("protocol", ["ascii", "binary"])
@pytest.mark.parametrize("count", [1, 3])
def test_memccapable(place, count, protocol):
    servers = [place.memcached() for _ in range(count)]
    # It calls `verbosity`.
    pool = {"servers": server_lines(servers), "command_policy": "admin"}
    gateway = place.cashew({"beta": pool}, {"worker_processes": 1})
    done = subprocess.run(
        ["memccapable", "-h", HOST, "-p", str(gateway.address), "-t", "30",
         "-a" if protocol == "ascii" else "-b"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "[FAIL]" not in said, said
    assert said.count("[pass]") >= 25, said


# -------------------------------------------------------------------------------------- pylibmc


@pytest.fixture(params=["text", "binary"])
def libmemcached(address, request):
    client = pylibmc.Client([address], binary=request.param == "binary",
                            behaviors={"cas": True, "tcp_nodelay": True})
    yield client
    client.disconnect_all()


def test_pylibmc_everything(libmemcached):
    client = libmemcached
    assert client.set("a", b"1", time=100) is True
    assert client.get("a") == b"1"
    assert client.get("none") is None and client.get("none", 5) == 5
    assert client.add("a", b"2") is False and client.add("b", b"2") is True
    if client.binary:
        # The same answer of the server has another name there.
        with pytest.raises(pylibmc.NotFound):
            client.replace("c", b"3")
    else:
        assert client.replace("c", b"3") is False
    assert client.replace("b", b"x") is True
    assert client.append("b", b"y") is True and client.prepend("b", b"w") is True
    assert client.get("b") == b"wxy"
    assert client.set("n", 41) is True
    assert client.incr("n") == 42 and client.decr("n", 40) == 2 and client.get("n") == 2
    with pytest.raises(pylibmc.NotFound):
        client.incr("none")
    value, unique = client.gets("a")
    assert value == b"1"
    assert client.cas("a", b"2", unique) is True and client.cas("a", b"3", unique) is False
    if not client.binary:  # It waits five seconds for something that no memcached says.
        assert client.touch("a", 100) is True and client.touch("none", 100) is False
    assert client.get("a") == b"2"
    assert client.delete("a") is True and client.delete("a") is False
    assert client.set("o", {"some": ["object", 1.5, None]}) is True
    assert client.get("o") == {"some": ["object", 1.5, None]}
    assert client.set("e", b"") is True and client.get("e") == b""
    assert client.set("large", LARGE) is True and client.get("large") == LARGE
    with pytest.raises(pylibmc.Error):
        client.set("huge", b"x" * (2 << 20))
    assert client.get("large") == LARGE
    ((_, stats),) = client.get_stats()
    assert int(stats["curr_items"]) >= 5
    assert client.flush_all() is True and client.get("large") is None


def test_pylibmc_many(libmemcached):
    values = {f"key-{n}": b"%d" % n * 20 for n in range(1000)}
    assert libmemcached.set_multi(values) == []
    assert libmemcached.get_multi([*values, "none-1", "none-2"]) == values
    assert libmemcached.delete_multi(list(values)[:500]) is True
    assert len(libmemcached.get_multi(list(values))) == 500


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_pylibmc_threads(address, binary):
    """Each a connection of its own, all on the same lanes."""
    failures = []

    def work(worker):
        client = pylibmc.Client([address], binary=binary)
        for n in range(100):
            key, value = f"t-{worker}-{n}", b"%d" % (worker * n)
            if client.set(key, value) is not True or client.get(key) != value:
                failures.append(key)
                return
        client.disconnect_all()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ------------------------------------------------------------------------- meta-memcache (Python)


@pytest.fixture
def meta(gateway):
    """It has uniques in 32 bits, and takes longer ones for none."""
    return meta_memcache.CacheClient.cache_client_from_servers(
        servers=[meta_memcache.ServerAddress(host=HOST, port=gateway.addresses["plain"])],
        connection_pool_factory_fn=meta_memcache.connection_pool_factory_builder(
            connection_timeout=20, recv_timeout=20))


def test_meta_memcache_everything(meta):
    assert meta.set("a", "1", ttl=100) is True and meta.get("a") == "1"
    assert meta.get("none") is None
    assert meta.set("a", "2", ttl=0, set_mode=SetMode.ADD) is False
    assert meta.refill("b", "2", ttl=100) is True and meta.refill("b", "3", ttl=100) is False
    assert meta.set("c", "3", ttl=0, set_mode=SetMode.REPLACE) is False
    assert meta.set("b", "y", ttl=0, set_mode=SetMode.APPEND) is True
    assert meta.set("b", "w", ttl=0, set_mode=SetMode.PREPEND) is True and meta.get("b") == "w2y"
    value, unique = meta.get_cas("a")
    assert value == "1" and meta.set_cas("a", "2", ttl=0, cas_token=unique) > 0
    assert meta.set("a", "3", ttl=0, cas_token=unique) is False and meta.get("a") == "2"
    assert meta.touch("a", ttl=100) is True and meta.touch("none", ttl=100) is False
    assert meta.delete("b", cas_token=unique + 10**9) is False
    assert meta.delete("b") is True and meta.delete("b") is False and meta.invalidate("b") is True
    assert meta.delta("n", 1) is False
    assert meta.delta_initialize_and_get("n", 1, initial_value=41, initial_ttl=0) == 41
    assert meta.delta_and_get("n", 1) == 42 and meta.delta_and_get("n", -40) == 2
    assert meta.set("large", LARGE, ttl=0) is True and meta.get("large") == LARGE
    # These go as base64.
    for key in ("caf\u00e9", "\U0001f37a" * 40, "with space"):
        assert meta.set(key, key, ttl=0) is True and meta.get(key) == key
        assert meta.delete(key) is True and meta.get(key) is None


def test_meta_memcache_many(meta):
    keys = [f"key-{n}" for n in range(500)]
    for key in keys:
        meta.set(key, key, ttl=0, no_reply=True)
    found = meta.multi_get([*keys, "none"])
    assert {key.key: value for key, value in found.items()} == {key: key for key in keys} | {"none": None}
    for key in keys[::2]:
        meta.delete(key, no_reply=True)
    found = meta.multi_get(keys)
    assert [found[Key(key)] for key in keys] == [None if n % 2 == 0 else key for n, key in enumerate(keys)]


def test_meta_memcache_stale_and_leases(meta):
    # One of those who find a stale value is asked to make it anew.
    assert meta.set("s", "old", ttl=1000) is True
    assert meta.invalidate("s", stale_policy=StalePolicy(mark_stale_on_deletion_ttl=30)) is True
    assert [meta.get("s") for _ in range(3)] == [None, "old", "old"]
    assert meta.set("s", "new", ttl=1000) is True and meta.get("s") == "new"
    # So is one of those who find a value that will not live long.
    assert meta.set("r", "soon over", ttl=30) is True
    recache = RecachePolicy(ttl=60)
    assert [meta.get("r", recache_policy=recache) for _ in range(3)] == [None, "soon over", "soon over"]
    # And one of those who find nothing.
    waited = []
    lease = LeasePolicy(ttl=30, miss_retries=3)
    assert meta.get_or_lease("l", lease_policy=lease) is None
    assert meta.get_or_lease("l", lease_policy=lease, lease_wait_fn=waited.append) is None
    assert len(waited) == 2
    assert meta.set("l", "made", ttl=100) is True
    assert meta.get_or_lease("l", lease_policy=lease) == "made"


# ---------------------------------------------------------------------- python-binary-memcached


def test_bmemcached_everything(address):
    client = bmemcached.Client((address,))
    assert client.set("a", "1", time=100) is True and client.get("a") == "1"
    assert client.get("none") is None
    assert client.add("a", "2") is False and client.add("b", "2") is True
    assert client.replace("c", "3") is False and client.replace("b", "3") is True
    value, unique = client.gets("a")
    assert value == "1"
    assert client.cas("a", "2", unique) is True and client.cas("a", "3", unique) is False
    assert client.incr("n", 1, default=41) == 41 and client.incr("n", 1) == 42
    assert client.decr("n", 40) == 2
    assert client.delete("a") is True and client.get("a") is None
    assert client.set("large", LARGE) is True and client.get("large") == LARGE
    values = {f"key-{n}": f"{n}" * 20 for n in range(300)}
    assert client.set_multi(values) == []
    assert client.get_multi([*values, "none-1"]) == values
    assert client.delete_multi(list(values)) is True
    assert client.get_multi(list(values)) == {}
    (stats,) = client.stats().values()
    assert int(stats["curr_items"]) >= 2
    assert client.flush_all() is True and client.get("large") is None
    client.disconnect_all()


# ------------------------------------------------------------------------------ other languages


@pytest.mark.timeout(900)
def test_memjs(gateway, address):
    said = must(["node", CLIENTS / "node" / "memjs.js"],
                env={**os.environ, "CASHEW_MEMCACHED": address, "NODE_PATH": node_modules()})
    assert said.count("ok ") >= 5, said


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", ["Xmemcached", "Spymemcached"])
def test_java(gateway, address, program):
    said = must(["java", "-cp", java_classes(), f"cashew.{program}Client"],
                env={**os.environ, "CASHEW_MEMCACHED": address})
    assert said.count("ok ") >= 8, said
