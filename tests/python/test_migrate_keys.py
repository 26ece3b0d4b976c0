"""`cashew migrate keys`: single keys go to another pool and back, by the list of keys of a route."""

import os
import signal
import subprocess
import time

import pytest

from harness import wait_until
from test_migrate import Beside, Writers, backend, copier, everything, fill_memcached, fill_redis

KEYS = 600


class Lists:
    """A gateway whose route lists keys in a file; all others are in pool `cold`."""

    def __init__(self, place, kind, **options):
        def server():
            return place.redis() if kind == "redis" else place.memcached()

        self.place, self.kind = place, kind
        self.cold, self.hot = [server(), server()], [server()]
        self.list = place.directory / "keys"
        self.list.write_text("# hot ones\n")
        self.gateway = place.cashew({
            "main": {"redis": kind == "redis", "route": f"{{keys: {{file: {self.list}}}, else: cold}}", **options},
            "cold": backend(self.cold, kind),
            "hot": backend(self.hot, kind),
        }, {"worker_processes": 2})
        self.gateway.wait_serving()

    def order(self, keys, *words, fails=False, to="hot"):
        wanted = self.place.directory / "wanted"
        wanted.write_text("".join(f"{key}\n" for key in keys))
        done = self.gateway.order("migrate", "keys", wanted, "--from", "cold", "--to", to, *words, seconds=100)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"{said}\n{self.gateway.log()[-3000:]}"
        return said

    def has(self, servers):
        """Names, in whichever database."""
        found = everything(servers, self.kind)
        return {(key[1] if self.kind == "redis" else key).decode() for key in found}

    def wait_only_in(self, keys, here, there):
        """What was left behind is removed a moment later."""
        keys = set(keys)
        wait_until(lambda: not keys & self.has(there), "what was left behind is removed", pause=0.1)
        assert keys <= self.has(here)


def fill(lists):
    if lists.kind == "redis":
        fill_redis(lists.gateway, KEYS)
    else:
        fill_memcached(lists.gateway, KEYS)


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_keys_go_to_another_pool_and_back_while_clients_write(place, kind):
    lists = Lists(place, kind)
    fill(lists)
    before = everything(lists.cold, kind)
    still = [f"still:{number}" for number in range(0, 250 if kind == "redis" else 500)]
    with Writers(Beside(lists, lists.gateway), count=3, keys=20) as writers:
        wait_until(lambda: writers.done > 200, "they write")
        own = [name for number in range(2) for name, _ in writers.names(number)]
        wanted = still + own
        said = lists.order(wanted)
        assert f"{len(wanted)} of {len(wanted)} keys are in pool hot" in said, said
        done = writers.done
        wait_until(lambda: writers.done > done + 300 or writers.wrong, "they go on")
        lists.wait_only_in(still, lists.hot, lists.cold)
        lines = lists.list.read_text().splitlines()
        assert lines[0] == "# hot ones" and set(lines[1:]) == {f"{key} hot" for key in wanted}
        # What is there already is left alone.
        assert "are there already" in lists.order(wanted[:50])
        lists.order(wanted, "--back")
        done = writers.done
        wait_until(lambda: writers.done > done + 300 or writers.wrong, "they go on")
        lists.wait_only_in(still, lists.cold, lists.hot)
        assert lists.list.read_text() == "# hot ones\n"
    assert writers.wrong == [] and writers.errors == 0, lists.gateway.log()[-3000:]
    writers.check_all()
    assert not lists.has(lists.hot)
    after = everything(lists.cold, kind)
    for key, (_, value, expires) in before.items():
        name = (key[1] if kind == "redis" else key).decode()
        if name.startswith("still:"):
            assert after[key][1] == value and abs(after[key][2] - expires) < 5000, key


def test_the_list_holds_over_a_start_and_a_reload(place):
    lists = Lists(place, "redis")
    fill(lists)
    lists.order(["still:2"])
    for again in (lists.gateway.reload, lambda: (lists.gateway.process.kill(), lists.gateway.process.start())):
        again()
        with lists.gateway.connect() as conn:
            conn.call("RPUSH", "still:2", "more")
    assert "still:2" in lists.has(lists.hot) and "still:2" not in lists.has(lists.cold)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("who", ["copier", "master", "target"])
def test_who_is_killed_between_leaves_each_key_in_one_place(place, who):
    lists = Lists(place, "redis")
    with lists.gateway.connect() as conn:
        for number in range(2000):
            conn.call("SET", f"key:{number}", "x" * 1000 + str(number))
    wanted = place.directory / "wanted"
    wanted.write_text("".join(f"key:{number}\n" for number in range(2000)))
    gateway = lists.gateway
    words = ["migrate", "keys", "-c", gateway.config_path, wanted, "--from", "cold", "--to", "hot"]
    program = subprocess.Popen([gateway.binary, *map(str, words)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: lists.list.read_text().count("\n") > 300, "some have gone", pause=0.01)
    if who == "copier":
        os.kill(copier(lists.gateway), signal.SIGKILL)
    elif who == "master":
        lists.gateway.process.kill()
        lists.gateway.process.start()
    else:
        lists.hot[0].process.signal(signal.SIGSTOP)
        time.sleep(6)
        lists.hot[0].process.signal(signal.SIGCONT)
    program.wait(60)
    # Whatever became of the step that was under way: what the list says is so.
    listed = lists.list.read_text().count("\n") - 1
    assert listed % 100 == 0
    with lists.gateway.connect(timeout=30) as conn:
        for number in range(2000):
            assert conn.call("GET", f"key:{number}") == b"x" * 1000 + str(number).encode(), number
    wait_until(lambda: lists.gateway.order("migrate", "keys", wanted, "--from", "cold", "--to", "hot",
                                           "--overwrite", seconds=60).returncode == 0, "it goes on", pause=0.5)
    with lists.gateway.connect(timeout=30) as conn:
        for number in range(2000):
            assert conn.call("GET", f"key:{number}") == b"x" * 1000 + str(number).encode(), number
    assert lists.has(lists.hot) == {f"key:{number}" for number in range(2000)}


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_what_cannot_be_moved_stays_where_it_is(place, kind):
    lists = Lists(place, kind)
    fill(lists)
    with lists.hot[0].connect() as conn:
        if kind == "redis":
            conn.call("SET", "still:3", "foreign")
        else:
            conn.send(b"set still:3 0 0 7\r\nforeign\r\n")
            conn.expect(b"STORED\r\n")
    said = lists.order(["still:1", "still:2", "still:3", "still:4"], fails=True)
    assert 'key "still:3": the other pool has such a key' in said and "migrate keys --overwrite" in said, said
    assert lists.list.read_text() == "# hot ones\n"
    # It is an operator's wish that is refused, no reload; and nothing is said to have been done.
    log = lists.gateway.log()
    assert 'WARN' in next(line for line in log.splitlines() if "route main: 4 keys stay in pool cold: " in line)
    assert "stays as it is" not in log and "listed key" not in log and "listed key" not in said
    # What was carried before that is taken back, and what was there is left alone.
    wait_until(lambda: lists.has(lists.hot) == {"still:3"}, "it is taken back")
    assert not (place.directory / "keys.next").exists()
    lists.order(["still:1", "still:2", "still:3", "still:4"], "--overwrite")
    lists.wait_only_in(["still:1", "still:2", "still:3", "still:4"], lists.hot, lists.cold)


def test_keys_with_long_names_go_and_those_that_no_list_can_name_are_refused(place):
    lists = Lists(place, "redis")
    long = [f"{'k' * 196}{number:04}" for number in range(130)]
    huge = "h" * 40_000
    odd = "a\\b\x01"
    with lists.gateway.connect() as conn:
        for key in [*long, huge, odd]:
            conn.call("SET", key, "1")
    assert "130 of 130 keys are in pool hot" in lists.order(long)
    assert "1 of 1 keys are in pool hot" in lists.order([huge])
    # As `cashew hot` shows them.
    assert "1 of 1 keys are in pool hot" in lists.order([r"a\\b\x01"])
    lists.wait_only_in([*long, huge, odd], lists.hot, lists.cold)
    said = lists.order(["x" * 60_000], fails=True)
    assert "the command has more than 49152 bytes" in said and "say it again" not in said, said
    said = lists.order([r"b\xff\x00k"], fails=True)
    assert r'wanted:1: key "b\xff\x00k" is not UTF-8: a list of keys cannot name it' in said, said


def test_what_is_asked_wrongly_is_answered_clearly(place):
    lists = Lists(place, "redis")
    for words, why in [
        (("keys",), "name a file with a key on each line"),
        (("keys", "/nowhere", "--from", "cold", "--to", "hot"), "/nowhere: No such file"),
        (("keys", lists.list, "--from", "cold"), "say --from POOL and --to POOL"),
    ]:
        done = lists.gateway.order("migrate", *words)
        assert done.returncode != 0 and why in done.stderr, (words, done.stderr)
    assert "there are no keys in it" in lists.order([], fails=True)
    assert "there is no pool nowhere" in lists.order(["a"], to="nowhere", fails=True)
    assert "there is no route nowhere" in lists.order(["a"], "--listener", "nowhere", fails=True)
    assert "are there already" in lists.order(["a"], "--back")
    # An edit that is not in effect is not overwritten.
    lists.list.write_text("a hot\n")
    assert "reload it first" in lists.order(["a"], fails=True)
    assert lists.list.read_text() == "a hot\n"
    lists.gateway.reload()
    assert "are there already" in lists.order(["a"])
