"""memcached's clients of several languages, and libmemcached's judge of servers, through the gateway.

Each does what its users do, in every protocol that it has, and looks at every answer.
"""

import os
import subprocess
import threading

import bmemcached
import pylibmc
import pytest

from harness import HOST, server_lines
from test_languages import CLIENTS, java_classes, must, node_modules

LARGE = bytes(range(256)) * 3500  # nearly what fits


@pytest.fixture(scope="module")
def gateway(module_place):
    servers = [module_place.memcached() for _ in range(3)]
    gateway = module_place.cashew({"beta": {"servers": server_lines(servers)}},
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
    gateway = place.cashew({"beta": {"servers": server_lines(servers)}}, {"worker_processes": 1})
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
