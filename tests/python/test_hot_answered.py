"""Hot keys that the gateway answers: `hot_keys: {above: 5%, do: cache}`, and `cashew hot --do cache`."""

import json
import random
import time

import pytest

from harness import Crowd, resp, server_lines, wait_until
from test_events import events
from test_slow_hot import hot, metrics

#: Requests that a client has on its way.
DEPTH = 50
#: A key that terminals and pages would stumble over.
HOSTILE = b"<i>\x1b[2J\\\r\n\x00\xff"
HOSTILE_SHOWN = r"<i>\x1b[2J\\\r\n\x00\xff"


class Answered:
    def __init__(self, place, redis=True, hot_keys="true", workers=2, ttl="1h"):
        self.server = place.redis() if redis else place.memcached()
        head = {"redis": True} if redis else {}
        self.gateway = place.cashew({
            "alpha": {**head, "route": f"{{cache: {{to: data, hot_only: true, ttl: {ttl}}}}}"},
            "data": {**head, "servers": server_lines([self.server]), "timeout": 3000, "hot_keys": hot_keys},
        }, {"worker_processes": workers})
        self.gateway.wait_serving()

    def stat(self, name):
        return self.gateway.stats()["alpha"][name]

    def order(self, *words, fails=False):
        done = self.gateway.order("hot", *words)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        return said

    def happened(self, kind):
        return [it["message"] for it in events(self.gateway, f"?kind={kind}")]


class Load(Crowd):
    """Clients who ask for one key in `share` of their reads, and for any other in the rest."""

    def __init__(self, gateway, share, clients=4, key="hot"):
        self.gateway, self.share, self.key = gateway, share, key
        self.failures, self.asked = [], 0
        super().__init__(self.run, clients)

    def run(self, _):
        try:
            with self.gateway.connect(timeout=60) as conn:
                while not self.ended.is_set():
                    is_hot = [random.random() < self.share for _ in range(DEPTH)]
                    keys = [self.key if it else f"k{random.randrange(100_000)}" for it in is_hot]
                    conn.send(b"".join(resp("GET", key) for key in keys))
                    for key, it in zip(keys, is_hot):
                        value = conn.reply()
                        if it and value is None:
                            self.failures.append(key)
                    self.asked += sum(is_hot)
        except Exception as error:
            self.failures.append(error)

    def __exit__(self, *error):
        super().__exit__(*error)
        assert not self.failures, self.failures[:3]


def test_a_key_that_many_ask_for_is_answered_by_the_gateway(place):
    answered = Answered(place, hot_keys="{above: 20%, do: cache, most: 2}")
    answered.server.call("SET", "hot", "0")
    with Load(answered.gateway, 0.6) as load:
        wait_until(lambda: answered.happened("hot_key_cached"), "it is found", seconds=60)
        text, = answered.happened("hot_key_cached")
        assert text.startswith('pool data: replies to reads of key "hot" are kept: it has ')
        wait_until(lambda: answered.stat("cache_hits") > 1000, "it is answered", seconds=30)
        # What servers are asked for is the rest, though most ask for this one.
        hits, asked, at_server = answered.stat("cache_hits"), load.asked, answered.server.stat("get")
        wait_until(lambda: load.asked > asked + 10_000, "it is asked for", seconds=60)
        hits = answered.stat("cache_hits") - hits
        at_server = answered.server.stat("get") - at_server
        assert hits > 9000
        assert at_server < 1.2 * hits, "0.6 of the requests are for the key, so that 0.67 times its hits are not"
        # It stays hot, as what is answered here counts.
        assert [it for it in hot(answered.gateway, pool="data") if it["share_percent"] > 40][0]["kept"] == "rule"
        assert answered.happened("hot_key_released") == []
        # What a client writes all others read at once, whichever workers they are at.
        conns = [place.keep(answered.gateway.connect()) for _ in range(8)]
        for value in range(1, 200):
            writer, reader = random.sample(conns, 2)
            assert writer.call("SET", "hot", str(value)) == "OK"
            assert [conn.call("GET", "hot") for conn in (reader, writer)] == [b"%d" % value] * 2
        # And what others write, when the server has told.
        answered.server.call("SET", "hot", "other")
        wait_until(lambda: all(conn.call("GET", "hot") == b"other" for conn in conns), "it is told of")
    assert "pool data: hot key \"hot\" is kept by rule: " in answered.gateway.order("status").stdout


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_key_is_taken_back_when_it_is_cool(place):
    answered = Answered(place, hot_keys="{above: 20%, do: cache}")
    answered.server.call("SET", "hot", "0")
    with Load(answered.gateway, 0.6):
        wait_until(lambda: answered.happened("hot_key_cached"), "it is found", seconds=60)
    begun = time.monotonic()
    # A share between the limits is neither.
    with Load(answered.gateway, 0.15):
        time.sleep(75)
        assert answered.happened("hot_key_released") == []
        assert hot(answered.gateway, pool="data", limit=1)[0]["kept"] == "rule"
    assert time.monotonic() - begun > 75
    begun = time.monotonic()
    with Load(answered.gateway, 0.02):
        wait_until(lambda: answered.happened("hot_key_released"), "it is taken back", seconds=110)
    assert time.monotonic() - begun > 60
    assert answered.happened("hot_key_released") == [
        "pool data: replies to reads of key \"hot\" are not kept any more: it has had less than 10.0% of the requests for a minute"]
    wait_until(lambda: answered.stat("cache_entries") == 0, "nothing of it is kept")
    assert len(answered.happened("hot_key_cached")) == 1


def test_an_operator_has_a_key_answered_and_takes_it_back(place):
    answered = Answered(place, workers=1)
    gateway, server = answered.gateway, answered.server
    server.call("SET", HOSTILE, "x")
    with gateway.connect() as conn:
        assert [conn.call("GET", HOSTILE) for _ in range(200)] == [b"x"] * 200
        assert answered.stat("cache_hits") == 0, "nothing is kept that nobody has named"
        said = answered.order("--do", "cache", HOSTILE_SHOWN)
        assert "are kept: an operator wants it" in said and "until" in said
        assert "is kept already" in answered.order("--do", "cache", "--pool", "data", HOSTILE_SHOWN)

        def is_hit():
            assert conn.call("GET", HOSTILE) == b"x"
            return answered.stat("cache_hits") > 0
        wait_until(is_hit, "it is kept")
        gets = server.stat("get")
        assert [conn.call("GET", HOSTILE) for _ in range(100)] == [b"x"] * 100
        assert server.stat("get") == gets
        assert conn.call("GET", "other") is None
        assert 'is kept by command: ' in gateway.order("status").stdout
        status = json.loads(gateway.order("status", "--json").stdout)
        pools = {pool["name"]: pool for pool in status["pools"]}
        assert [it["cause"] for it in pools["data"]["hot_keys"]] == ["command"]
        assert pools["alpha"]["cache"]["hits"] > 100 and pools["data"]["cache"] is None
        assert "pool alpha: cache: " in gateway.order("status").stdout
        assert ("cashew_hot_keys_kept", {"pool": "data"}, 1.0) in metrics(gateway)
        shown, = [it for it in hot(gateway) if it["key"] == HOSTILE_SHOWN]
        assert shown["kept"] == "command"
        assert "KEPT BY" in gateway.order("hot").stdout
        # It outlives a reload, and a worker that dies.
        gateway.reload()
        wait_until(lambda: answered.stat("cache_entries") == 0, "stores are new")
        wait_until(lambda: conn.call("GET", HOSTILE) and answered.stat("cache_entries") == 1, "it is kept again")
        assert "are not kept any more" in answered.order("--undo", HOSTILE_SHOWN)
        wait_until(lambda: answered.stat("cache_entries") == 0, "nothing is kept")
        gets = server.stat("get")
        assert [conn.call("GET", HOSTILE) for _ in range(10)] == [b"x"] * 10
        assert server.stat("get") == gets + 10
    assert [len(answered.happened(f"hot_key_{kind}")) for kind in ("cached", "released")] == [1, 1]
    assert "nothing is done about key" in answered.order("--undo", HOSTILE_SHOWN)
    for words, why in [
        (("--do", "cache", "--pool", "nowhere", "k"), "there is no pool 'nowhere'"),
        (("--do", "cache", "--pool", "alpha", "k"), "no route has a node `cache` with `hot_only: true` for pool 'alpha'"),
        (("--do", "cache", "k\\"), "ends within an escape"),
        (("k",), "what is to be done about the key"),
    ]:
        assert why in answered.order(*words, fails=True), words


def test_a_node_that_goes_takes_its_keys_along(place):
    answered = Answered(place, workers=1)
    answered.order("--do", "cache", "k")
    answered.gateway.configure({
        "alpha": {"redis": True, "route": "{cache: {to: data}}"},
        "data": {"redis": True, "servers": server_lines([answered.server])},
    })
    answered.gateway.reload()
    wait_until(lambda: answered.happened("hot_key_released"), "it is taken back")
    assert "no node keeps hot keys of its pool any more" in answered.happened("hot_key_released")[0]
    assert "no route has a node `cache` with `hot_only: true`" in answered.order("--do", "cache", "k", fails=True)


def test_hot_keys_of_memcached(place):
    answered = Answered(place, redis=False, workers=2, ttl="1m")
    answered.order("--do", "cache", "k")
    with answered.gateway.connect() as conn, answered.gateway.connect() as other:
        def ask(conn, text):
            conn.send(text.encode())
            return conn.read_until(b"\r\n") if not text.startswith("get") else conn.read_until(b"END\r\n")
        assert ask(conn, "set k 0 0 1\r\na\r\n") == b"STORED\r\n"

        def is_kept():
            ask(conn, "get k\r\n")
            return answered.stat("cache_hits") > 5
        wait_until(is_kept, "it is kept")
        for value in "bcdefghij" * 5:
            assert ask(other, f"set k 0 0 1\r\n{value}\r\n") == b"STORED\r\n"
            assert ask(conn, "get k\r\n") == f"VALUE k 0 1\r\n{value}\r\nEND\r\n".encode()
