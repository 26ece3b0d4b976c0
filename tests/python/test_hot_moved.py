"""Hot keys that go to another pool and come back: `hot_keys: {above: 5%, do: move, to: hot}`, and `cashew hot --do move`."""

import json
import signal
import time

import pytest

from harness import Crowd, resp, wait_until
from relay import Relay
from test_events import events
from test_hot_answered import Load
from test_migrate import Beside, Writers, backend
from test_migrate_keys import Lists
from test_slow_hot import metrics


class Moved(Lists):
    """A gateway whose route lists keys in a file; all others are in pool `cold`, whose hot keys may go to pool `hot`."""

    def __init__(self, place, kind="redis", hot_keys="true", hot=None, timeout=5000):
        def server():
            return place.redis() if kind == "redis" else place.memcached()

        self.place, self.kind = place, kind
        self.cold, self.hot = [server(), server()], hot or [server()]
        self.list = place.directory / "keys"
        self.list.write_text("# hot ones\n")
        self.timeout = timeout
        self.gateway = place.cashew(self.pools(hot_keys), {"worker_processes": 2})
        self.gateway.wait_serving()

    def pools(self, hot_keys):
        return {
            "main": {"redis": self.kind == "redis", "route": f"{{keys: {{file: {self.list}}}, else: cold}}"},
            "cold": backend(self.cold, self.kind, hot_keys=hot_keys, timeout=self.timeout),
            "hot": backend(self.hot, self.kind, timeout=self.timeout),
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


class Waiters(Crowd):
    """Clients who write four hot keys and many others, and the longest that one of them has waited for a reply."""

    def __init__(self, gateway, clients=4):
        self.gateway, self.longest, self.done, self.failures = gateway, 0.0, 0, []
        super().__init__(self.run, clients)

    def run(self, number):
        try:
            with self.gateway.connect(timeout=60) as conn:
                at = 0
                while not self.ended.is_set():
                    at += 1
                    key = f"hot{at % 4}" if at % 10 < 8 else f"other{number}:{at}"
                    begun = time.monotonic()
                    assert conn.call("SET", key, str(at)) == "OK"
                    self.longest = max(self.longest, time.monotonic() - begun)
                    self.done += 1
                    time.sleep(0.002)
        except Exception as error:
            self.failures.append(error)

    def __exit__(self, *error):
        super().__exit__(*error)
        assert not self.failures, self.failures[:3]


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
    # On a busy machine the watchers themselves have a tenth of the requests at times, and more.
    moved = Moved(place, hot_keys="{above: 40%, do: move, to: hot}")
    with Watchers(moved.gateway) as watchers:
        with Load(moved.gateway, 0.6):
            wait_until(lambda: moved.happened("hot_key_moved"), "it is found", seconds=60)
        begun = time.monotonic()
        with Load(moved.gateway, 0.02):
            wait_until(lambda: moved.happened("hot_key_released"), "it is taken back", seconds=140)
        assert time.monotonic() - begun > 60
        assert moved.happened("hot_key_released") == [
            'pool cold: key "hot" is back from pool hot: it has had less than 20.0% of the requests for a minute']
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


def test_nobody_waits_for_a_pool_that_hangs_and_the_rule_lets_go_of_it(place):
    moved = Moved(place, hot_keys="{above: 10%, do: move, to: hot}", timeout=400)

    def stays():
        return [line for line in moved.gateway.log().splitlines() if "stays where it is" in line]

    moved.hot[0].process.signal(signal.SIGSTOP)
    try:
        with Waiters(moved.gateway) as waiters:
            wait_until(stays, "a key is tried", seconds=60)
            done = waiters.done
            time.sleep(5)
            # All four are hot, and the failure of one is that of all.
            told, = stays()
            assert ": pool hot does not answer: server " in told, told
            assert told.endswith("; no hot key goes to pool hot or comes from it for 60 s"), told
            assert waiters.done > done + 100
        # It was six seconds for each key.
        assert waiters.longest < 3, waiters.longest
    finally:
        moved.hot[0].process.signal(signal.SIGCONT)
    waits = {pool["name"]: pool["hot_waits"] for pool in json.loads(moved.gateway.order("status", "--json").stdout)["pools"]}
    wait, = waits["hot"]
    assert (wait["key"], wait["to"]) == ("", "") and 0 < wait["left_s"] <= 60, wait
    assert wait["why"].startswith("pool hot does not answer: server ") and waits["cold"] == waits["main"] == []
    said = moved.gateway.order("status").stdout
    assert "pool hot: no hot key goes to this pool or comes from it for " in said and wait["why"] in said, said
    # It is no reload that has failed.
    assert moved.happened("reload_refused") == [] and "stays as it is" not in moved.gateway.log()
    assert json.loads(moved.gateway.order("status", "--json").stdout).get("last_reload") is None
    assert moved.listed() == set()


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_an_operator_hears_at_once_which_pool_hangs(place, kind):
    moved = Moved(place, kind, timeout=400)
    with moved.gateway.connect() as conn:
        if kind == "redis":
            conn.call("SET", "k", "v")
        else:
            conn.send(b"set k 0 0 1\r\nv\r\n")
            conn.expect(b"STORED\r\n")
    for words, hanging, name in [
        (("--do", "move", "--to", "hot", "k"), moved.hot, "hot"),
        (("--do", "move", "--to", "hot", "k"), moved.cold, "cold"),
        (("--undo", "k"), moved.cold, "cold"),
        (("--undo", "k"), moved.hot, "hot"),
    ]:
        if words[0] == "--undo" and not moved.listed():
            moved.do("--do", "move", "--to", "hot", "k")
            # Whatever comes next waits until what was left behind is removed.
            wait_until(lambda: not moved.has(moved.cold), "it is removed")
        listed = moved.listed()
        for server in hanging:
            server.process.signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            said = moved.do(*words, fails=True)
            took = time.monotonic() - begun
        finally:
            for server in hanging:
                server.process.signal(signal.SIGCONT)
        assert f"pool {name} does not answer: server " in said and "it does not answer in time" in said, said
        assert took < 3 and moved.listed() == listed, took
    # Now all answer.
    wait_until(lambda: moved.gateway.order("hot", "--undo", "k").returncode == 0, "it goes back")
    assert moved.listed() == set()


def test_clients_wait_four_seconds_at_most_for_a_pool_that_hangs_in_between(place):
    server = place.redis()
    # It is well whenever it is asked, and hangs once a key comes.
    relay = Relay(server.port, stall_at=b"RESTORE")
    try:
        moved = Moved(place, hot=[relay], timeout=400)
        with Waiters(moved.gateway) as waiters:
            wait_until(lambda: waiters.done > 100, "they write")
            said = moved.do("--do", "move", "--to", "hot", "hot1", fails=True)
            done = waiters.done
            wait_until(lambda: waiters.done > done + 100, "they go on")
        assert 'key "hot1": it does not answer in time (from pool cold, server ' in said, said
        assert " to pool hot, server " in said, said
        assert waiters.longest < 5, waiters.longest
        assert moved.listed() == set() and moved.happened("reload_refused") == []
        # Where the copy was made it is removed, since the key is served where it was.
        relay.stall_at = None
        relay.stalled.clear()
        moved.do("--do", "move", "--to", "hot", "hot2")
        wait_until(lambda: server.call("EXISTS", "hot1") == 0, "what was copied is removed")
        assert server.call("EXISTS", "hot2") == 1
    finally:
        relay.close()


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_a_large_key_stays_since_all_would_wait_for_it(place, kind):
    moved = Moved(place, kind, hot=[place.memcached("-I", "8m")] if kind == "memcached" else None)
    if kind == "memcached":
        moved.cold[:] = [place.memcached("-I", "8m")]
        moved.gateway.configure(moved.pools("true"))
        moved.gateway.reload()
    large = b"x" * (5 << 20)
    with moved.cold[0].connect() as conn, moved.cold[-1].connect() as other:
        for it in {moved.cold[0].port: conn, moved.cold[-1].port: other}.values():
            if kind == "redis":
                it.call("SET", "k", large)
            else:
                it.send(b"set k 0 0 %d\r\n%s\r\n" % (len(large), large))
                it.expect(b"STORED\r\n")
    said = moved.do("--do", "move", "--to", "hot", "k", fails=True)
    assert 'key "k" takes ' in said and "beyond 4194304 bytes use cashew migrate keys (pool cold, server " in said, said
    assert moved.listed() == set() and moved.has(moved.hot) == set()
    # Whoever says so has it go all the same, and come back.
    wanted = place.directory / "wanted"
    wanted.write_text("k\n")
    done = moved.gateway.order("migrate", "keys", wanted, "--from", "cold", "--to", "hot")
    assert done.returncode == 0 and moved.listed() == {"k hot"}, done.stderr
    moved.do("--undo", "k")
    assert moved.listed() == set()
