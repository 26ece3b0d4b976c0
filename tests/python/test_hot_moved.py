"""Hot keys that go to another pool and come back: `hot_keys: {above: 5%, do: move, to: hot}`, and `cashew hot --do move`."""

import json
import time

import pytest

from harness import Crowd, resp, wait_until
from test_events import events
from test_hot_answered import Load
from test_migrate import Beside, Writers, backend
from test_migrate_keys import Lists
from test_slow_hot import metrics


class Moved(Lists):
    """A gateway whose route lists keys in a file; all others are in pool `cold`, whose hot keys may go to pool `hot`."""

    def __init__(self, place, kind="redis", hot_keys="true"):
        def server():
            return place.redis() if kind == "redis" else place.memcached()

        self.place, self.kind = place, kind
        self.cold, self.hot = [server(), server()], [server()]
        self.list = place.directory / "keys"
        self.list.write_text("# hot ones\n")
        self.hot_keys = hot_keys
        self.gateway = place.cashew(self.pools(hot_keys), {"worker_processes": 2})
        self.gateway.wait_serving()

    def pools(self, hot_keys):
        return {
            "main": {"redis": self.kind == "redis", "route": f"{{keys: {{file: {self.list}}}, else: cold}}"},
            "cold": backend(self.cold, self.kind, hot_keys=hot_keys),
            "hot": backend(self.hot, self.kind),
        }

    def do(self, *words, fails=False):
        done = self.gateway.order("hot", *words)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"{said}\n{self.gateway.log()[-3000:]}"
        return said

    def happened(self, kind):
        return [it["message"] for it in events(self.gateway, f"?kind={kind}")]

    def listed(self):
        return set(self.list.read_text().splitlines()[1:])


class Watchers(Crowd):
    """Clients who write a key, one after the other, and others who read it: no reply is older than a write that was
    acknowledged before it was asked for."""

    def __init__(self, gateway, key="hot", readers=3):
        self.gateway, self.key, self.acknowledged, self.last = gateway, key, 0, 0
        self.failures, self.read = [], 0
        with gateway.connect() as conn:
            assert conn.call("SET", key, "0") == "OK"
        super().__init__(self.run, readers + 1)

    def run(self, number):
        try:
            with self.gateway.connect(timeout=60) as conn:
                while not self.ended.is_set():
                    if number == 0:
                        self.last += 1
                        assert conn.call("SET", self.key, str(self.last)) == "OK"
                        self.acknowledged = self.last
                        time.sleep(0.001)
                        continue
                    least = self.acknowledged
                    found = conn.call("GET", self.key)
                    assert found is not None and int(found) >= least, f"{found}, not {least}"
                    self.read += 1
        except Exception as error:
            self.failures.append(error)

    def __exit__(self, *error):
        super().__exit__(*error)
        assert not self.failures, self.failures[:3]


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_an_operator_has_keys_go_and_come_back_while_clients_write(place, kind):
    moved = Moved(place, kind)
    with Writers(Beside(moved, moved.gateway), count=3, keys=3) as writers:
        wait_until(lambda: writers.done > 200, "they write")
        own = [name for name, _ in writers.names(0)]
        for _ in range(2):
            for key in own[:3]:
                said = moved.do("--do", "move", "--to", "hot", key)
                assert f'pool cold: key "{key}" goes to pool hot: an operator wants it' in said
            assert moved.listed() == {f"{key} hot" for key in own[:3]}
            status = json.loads(moved.gateway.order("status", "--json").stdout)
            pools = {pool["name"]: pool for pool in status["pools"]}
            assert {(it["key"], it["action"], it["cause"]) for it in pools["cold"]["hot_keys"]} == {
                (f'"{key}"', "move", "command") for key in own[:3]}
            assert ("cashew_hot_keys_moved", {"pool": "cold"}, 3.0) in metrics(moved.gateway)
            assert f'pool cold: hot key "{own[0]}" is elsewhere by command: ' in moved.gateway.order("status").stdout
            done = writers.done
            wait_until(lambda: writers.done > done + 200 or writers.wrong, "they go on")
            # Their owner removes them at times, too.
            wait_until(lambda: not set(own[:3]) & moved.has(moved.cold), "what was left behind is removed", pause=0.1)
            for key in own[:3]:
                said = moved.do("--undo", key)
                assert f'key "{key}" is back from pool hot: an operator wants it' in said
            assert moved.listed() == set()
            done = writers.done
            wait_until(lambda: writers.done > done + 200 or writers.wrong, "they go on")
    assert writers.wrong == [] and writers.errors == 0, moved.gateway.log()[-3000:]
    writers.check_all()
    wait_until(lambda: not moved.has(moved.hot), "nothing is left behind")
    assert [len(moved.happened(f"hot_key_{kind}")) for kind in ("moved", "released")] == [6, 6]


def test_a_key_that_many_ask_for_goes_to_another_pool(place):
    moved = Moved(place, hot_keys="{above: 20%, do: move, to: hot, most: 2}")
    with Watchers(moved.gateway) as watchers, Load(moved.gateway, 0.6):
        wait_until(lambda: moved.happened("hot_key_moved"), "it is found", seconds=60)
        text, = moved.happened("hot_key_moved")
        assert text.startswith('pool cold: key "hot" goes to pool hot: it has ')
        assert moved.listed() == {"hot hot"}
        # It stays hot, though the pool whose key it is has nothing of it any more.
        read = watchers.read
        wait_until(lambda: watchers.read > read + 500 or watchers.failures, "they go on", seconds=60)
        time.sleep(3)
        assert moved.happened("hot_key_released") == [] and moved.listed() == {"hot hot"}
        status = json.loads(moved.gateway.order("status", "--json").stdout)
        kept, = next(pool for pool in status["pools"] if pool["name"] == "cold")["hot_keys"]
        assert (kept["cause"], kept["action"]) == ("rule", "move") and kept["share_ppm"] > 300_000
        moved.wait_only_in({"hot"}, moved.hot, moved.cold)
        # A reload keeps it where it is; without the rule it comes back.
        moved.gateway.reload()
        moved.gateway.configure(moved.pools("true"))
        moved.gateway.reload()
        wait_until(lambda: moved.happened("hot_key_released"), "it is taken back", seconds=30)
        assert "is back from pool hot: the pool has no such rule any more" in moved.happened("hot_key_released")[0]
        read = watchers.read
        wait_until(lambda: watchers.read > read + 500 or watchers.failures, "they go on", seconds=60)
    assert moved.listed() == set()
    wait_until(lambda: not moved.has(moved.hot), "nothing is left behind")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_key_comes_back_when_it_is_cool(place):
    moved = Moved(place, hot_keys="{above: 20%, do: move, to: hot}")
    with Watchers(moved.gateway) as watchers:
        with Load(moved.gateway, 0.6):
            wait_until(lambda: moved.happened("hot_key_moved"), "it is found", seconds=60)
        begun = time.monotonic()
        with Load(moved.gateway, 0.02):
            wait_until(lambda: moved.happened("hot_key_released"), "it is taken back", seconds=140)
        assert time.monotonic() - begun > 60
        assert moved.happened("hot_key_released") == [
            'pool cold: key "hot" is back from pool hot: it has had less than 10.0% of the requests for a minute']
        read = watchers.read
        wait_until(lambda: watchers.read > read + 500 or watchers.failures, "they go on", seconds=60)
    assert moved.listed() == set()


def test_what_cannot_go_stays_and_is_told_of(place):
    moved = Moved(place)
    long, odd = "k" * 49, " k"
    for words, why in [
        (("--do", "move", "k"), "say to which pool it goes: --to POOL"),
        (("--do", "move", "--to", "nowhere", "k"), "there is no pool nowhere"),
        (("--do", "move", "--to", "cold", "k"), "they are in pool cold"),
        (("--do", "move", "--to", "hot", "--pool", "hot", "k"), "no route lists keys in a file and has all others in pool 'hot'"),
        (("--do", "move", "--to", "hot", long), "of keys of more than 48 bytes not all is known"),
        (("--do", "move", "--to", "hot", odd), "a file cannot list key"),
        (("--do", "cache", "--to", "hot", "k"), "only keys that move go --to a pool"),
        (("--do", "cache", "--pool", "cold", "k"), "no route has a node `cache` with `hot_only: true` for pool 'cold'"),
    ]:
        assert why in moved.do(*words, fails=True), words
    assert "nothing is done about key" in moved.do("--undo", "k")
    # What the other pool has by that name is somebody else's.
    with moved.gateway.connect() as conn:
        conn.call("SET", "k", "mine")
        moved.hot[0].call("SET", "k", "foreign")
        assert "the other pool has such a key" in moved.do("--do", "move", "--to", "hot", "k", fails=True)
        assert conn.call("GET", "k") == b"mine" and moved.listed() == set()
        moved.hot[0].call("DEL", "k")
        moved.do("--do", "move", "--to", "hot", "k")
        assert "is in pool hot already" in moved.do("--do", "move", "--to", "hot", "k")
        # After a start nobody knows why it is there, and it is served, and can be taken back.
        moved.gateway.process.kill()
        moved.gateway.process.start()
        moved.gateway.wait_serving()
    with moved.gateway.connect() as conn:
        assert conn.call("GET", "k") == b"mine" and moved.listed() == {"k hot"}
        moved.do("--undo", "k")
        assert conn.call("GET", "k") == b"mine" and moved.listed() == set()
        conn.send(resp("DEL", "k"))
        assert conn.reply() == 1
