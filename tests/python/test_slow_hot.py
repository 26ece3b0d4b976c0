"""Slow requests and hot keys: `cashew slowlog` and `cashew hot`, /slow.json, /hot.json, /metrics and the page."""

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlencode

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import HOST, in_time, measured, resp, server_lines, wait_until
from test_events import Follower
from test_page import Browser, needs_chromium, needs_node, run

PARTS = ["gateway_us", "queue_us", "server_us", "order_us", "client_us"]
#: Keeps a server busy for as many milliseconds.
BUSY = """local function now() local at = redis.call('TIME') return at[1] * 1000000 + at[2] end
local begun = now() while now() < begun + ARGV[1] * 1000 do end return 1"""
#: Of a client that wants to steer terminals and write into pages.
HOSTILE = b"<img src=x onerror=alert(1)>\x1b[2J\r\n\x00\xff"
HOSTILE_SHOWN = r"<img src=x onerror=alert(1)>\x1b[2J\r\n\x00\xff"


def page(gateway, path):
    with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}/{path}", timeout=20) as page:
        return page.read().decode()


def slow(gateway, **query):
    return json.loads(page(gateway, "slow.json?" + urlencode(query)))


def hot(gateway, **query):
    return json.loads(page(gateway, "hot.json?" + urlencode(query)))["keys"]


def printed(gateway, *words, columns=80):
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [gateway.binary, words[0], "-c", str(gateway.config_path), *map(str, words[1:])]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
                          env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def metrics(gateway):
    """Name, labels and value."""
    families = text_string_to_metric_families(page(gateway, "metrics"))
    return [(it.name, it.labels, it.value) for family in families for it in family.samples]


def metric(gateway, wanted):
    return next(value for name, _, value in metrics(gateway) if name == wanted)


def stopped_for(seconds, server):
    """Stops a server now, and lets it go on after a while."""
    server.signal(signal.SIGSTOP)
    timer = threading.Timer(seconds, server.signal, [signal.SIGCONT])
    timer.start()
    return timer


@pytest.fixture
def world(place):
    servers = [place.redis()]
    caches = [place.memcached()]
    pools = {
        "alpha": {"redis": True, "timeout": 5000, "servers": server_lines(servers, ["one"])},
        "beta": {"timeout": 5000, "servers": server_lines(caches, ["cache"])},
    }
    gateway = place.cashew(pools, {"worker_processes": 1})
    gateway.wait_serving()
    gateway.servers, gateway.caches = servers, caches
    return gateway


# ------------------------------------------------------------------------------------------- slow


def be_slow(gateway, key="slow:1", name="reporter"):
    """A request that keeps its server busy for 60 ms; returns the client's address."""
    with gateway.connect("alpha") as conn:
        conn.call("CLIENT", "SETNAME", name)
        conn.call("PING")
        assert conn.call("EVAL", BUSY, 1, key, 60) == 1
        return "{}:{}".format(*conn.socket.getsockname())


@measured
def test_a_slow_command_is_shown_with_where_its_time_went(world):
    address = be_slow(world)
    evals = lambda: [it for it in slow(world)["requests"] if it["client"] == address]
    [seen] = wait_until(evals, "it is recorded")
    assert seen["arguments"][0] == "EVAL" and seen["arguments"][2:] == ["1", "slow:1", "60"]
    assert seen["command"].startswith('EVAL "local function now()') and seen["command"].endswith(" 1 slow:1 60")
    assert (seen["pool"], seen["server"], seen["client_name"]) == ("alpha", "one", "reporter")
    assert seen["failure"] == "" and seen["longest"] == "server"
    assert seen["total_us"] == sum(seen["parts"].values()) and list(seen["parts"]) == PARTS
    assert abs(seen["at_us"] / 1e6 - time.time()) < 60
    assert seen["parts"]["server_us"] >= 50_000
    for part in ("gateway_us", "queue_us", "order_us", "client_us"):
        in_time(seen["parts"][part] / 1e6, 0.01, part)
    text = printed(world, "slowlog")
    head, times, what = text.splitlines()[0], *text.splitlines()[-2:]
    assert head.split() == ["TIME", "TOTAL", "GATEWAY", "QUEUE", "SERVER", "ORDER", "CLIENT", "WHERE"]
    at_server = int(re.fullmatch(r"(\d+)ms", times.split()[4])[1])
    assert at_server == pytest.approx(seen["parts"]["server_us"] / 1000, abs=1) and times.endswith(" alpha/one")
    assert what.startswith(f"  {address} (reporter) EVAL ")
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert printed(world, "slowlog", columns=1000).rstrip().endswith(" 1 slow:1 60")
    said = printed(world, "slowlog", "--json")
    assert seen in [json.loads(line) for line in said.splitlines()]


def test_what_is_asked_for_is_listed(world):
    for number in range(3):
        be_slow(world, f"slow:{number}")
    listing = wait_until(lambda: (it := slow(world, limit=500))["recorded"] >= 3 and it, "they are recorded")
    numbers = [it["number"] for it in listing["requests"]]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] == listing["newest"]
    assert (listing["kept"], listing["left_out"]) == (len(numbers), 0)
    assert [it["number"] for it in slow(world, since=numbers[1])["requests"]] == numbers[:1]
    assert [it["number"] for it in slow(world, limit=2)["requests"]] == numbers[:2]
    assert slow(world, pool="beta")["requests"] == []
    assert len(slow(world, pool="alpha")["requests"]) == len(numbers)
    # All of the last line but its end: newest last.
    lines = [json.loads(line) for line in printed(world, "slowlog", "--json", "-n", 2).splitlines()]
    assert [it["number"] for it in lines] == numbers[:2][::-1]
    assert printed(world, "slowlog", "--pool", "beta").split()[0] == "TIME"
    for path, why in [("slow.json?since=x", "since is a number"), ("slow.json?limit=0", "from 1 to 512"),
                      ("slow.json?pool=none", "no pool 'none'"), ("hot.json?by=luck", "by is one of"),
                      ("hot.json?limit=101", "from 1 to 100"), ("hot.json?server=none", "no server 'none'")]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            page(world, path)
        assert refused.value.code == 400 and why in refused.value.read().decode(), path
    done = world.order("hot", "--pool", "none")
    assert done.returncode == 1 and "there is no pool 'none'" in done.stderr
    assert metric(world, "cashew_slow_requests_total") == listing["recorded"]
    assert metric(world, "cashew_slow_requests_left_out_total") == 0
    status = printed(world, "status")
    assert re.search(rf"^slow requests: {listing['kept']} in the log, the last \d+s ago$", status, re.M), status


class Slowlog(Follower):
    command = "slowlog"


def test_following_prints_each_request_once(world):
    be_slow(world, "before:1")
    be_slow(world, "before:2")
    wait_until(lambda: slow(world)["recorded"] >= 2, "they are recorded")
    with Slowlog(world, "--json", "-n", "1") as follower:
        wait_until(lambda: any("before:2" in line for line in follower.lines()), "what was")
        be_slow(world, "after:1")
        wait_until(lambda: any("after:1" in line for line in follower.lines()), "what comes")
        be_slow(world, "after:2")
        wait_until(lambda: any("after:2" in line for line in follower.lines()), "what comes then")
        keys = [json.loads(line)["arguments"][3] for line in follower.lines() if "EVAL" in line]
    assert keys == ["before:2", "after:1", "after:2"]


@measured
def test_a_slow_memcached_is_shown_too(world):
    with world.connect("beta") as conn:
        conn.send(b"get warm\r\n")
        conn.expect(b"END\r\n")
        timer = stopped_for(0.1, world.caches[0].process)
        conn.send(b"get cold\r\n")
        conn.expect(b"END\r\n")
        timer.join()
    found = lambda: [it for it in slow(world, pool="beta")["requests"] if it["command"] == "get cold"]
    [seen] = wait_until(found, "it is recorded")
    assert seen["server"] == "cache" and seen["longest"] == "server"
    assert seen["parts"]["server_us"] >= 50_000
    in_time((seen["total_us"] - seen["parts"]["server_us"]) / 1e6, 0.01, "other parts")


# -------------------------------------------------------------------------------------------- hot


class Load:
    """Requests for keys that do not exist, by a distribution as of a cache."""

    KEYS = 1000

    def __init__(self, gateway):
        self.conn = gateway.connect("alpha")
        self.random = random.Random(7)
        self.weights = [1 / rank ** 0.99 for rank in range(1, self.KEYS + 1)]
        self.requests = [resp("GET", f"key:{rank}") for rank in range(self.KEYS)]

    def run(self, seconds):
        """The share of each key's requests since the start, in percent."""
        counts, until = [0] * self.KEYS, time.monotonic() + seconds
        while time.monotonic() < until:
            # Of more than 16 KiB at once nothing is kept that a sample could be of.
            chosen = self.random.choices(range(self.KEYS), self.weights, k=200)
            self.conn.send(b"".join(self.requests[rank] for rank in chosen))
            assert self.conn.read(5 * len(chosen)) == b"$-1\r\n" * len(chosen)
            for rank in chosen:
                counts[rank] += 1
        return {f"key:{rank}": 100 * count / sum(counts) for rank, count in enumerate(counts)}


def test_the_hottest_keys_of_a_load_are_shown_with_their_shares(world):
    load = Load(world)
    # Samples are few: what one round of them does not tell, another one may.
    for _ in range(3):
        exact = load.run(8)
        found = {it["key"]: it["share_percent"] for it in hot(world, pool="alpha", limit=20)}
        top = sorted(exact, key=exact.get, reverse=True)[:5]
        off = {key: found.get(key, 0) - exact[key] for key in top}
        if all(abs(points) <= 3 for points in off.values()):
            break
    assert all(abs(points) <= 3 for points in off.values()), (off, found)
    assert next(iter(found)) == "key:0"
    text = printed(world, "hot", "--pool", "alpha", "-n", 5)
    lines = text.splitlines()
    assert lines[0].split() == ["POOL", "SERVER", "SHARE", "REQUESTS", "KEY"] and len(lines) == 6
    pool, server, share, _, key = lines[1].split()
    assert (pool, server, key) == ("alpha", "one", "key:0")
    assert abs(float(share.rstrip("%")) - exact["key:0"]) < 4
    assert all(len(line) <= 80 for line in lines)
    shares = {labels["key"]: value for name, labels, value in metrics(world)
              if name == "cashew_hot_key_share" and labels["pool"] == "alpha"}
    assert 1 <= len(shares) <= 5 and abs(100 * shares["key:0"] - exact["key:0"]) < 4
    assert re.search(r"^pool alpha: \d+\.\d% of requests are for key key:0$", printed(world, "status"), re.M)
    for by in ("bytes", "time"):
        listed = hot(world, by=by, server="one", limit=3)
        assert len(listed) == 3 and all(0 < it["share_percent"] < 100 for it in listed), by


def test_a_big_value_is_shown_by_its_size(world):
    with world.connect("alpha") as conn:
        assert conn.call("SET", "big:1", "x" * (1 << 20)) == "OK"
    with world.connect("beta") as conn:
        conn.send(b"set big:2 0 0 %d\r\n%b\r\n" % (500_000, b"y" * 500_000))
        conn.expect(b"STORED\r\n")

    def sizes():
        """Whichever requests are samples."""
        with world.connect("alpha") as conn:
            for number in range(100):
                conn.call("GET", f"small:{number}")
            conn.call("GET", "big:1")
        with world.connect("beta") as conn:
            for _ in range(20):
                conn.send(b"get big:2\r\n")
                conn.read_until(b"END\r\n")
        found = {it["key"]: it for it in hot(world, by="size")}
        return found if {"big:1", "big:2"} <= set(found) else None

    found = wait_until(sizes, "both are seen")
    assert (1 << 20) < found["big:1"]["weight"] < (1 << 20) + 100 and found["big:1"]["share_percent"] is None
    assert (found["big:2"]["pool"], found["big:2"]["server"]) == ("beta", "cache")
    assert 500_000 < found["big:2"]["weight"] < 500_200
    lines = printed(world, "hot", "--by", "size", "--pool", "alpha").splitlines()
    assert lines[0].split() == ["POOL", "SERVER", "SIZE", "KEY"]
    assert lines[1].split() == ["alpha", "one", "1.0MiB", "big:1"]


def ask_hostile(gateway, name=HOSTILE):
    with gateway.connect("alpha") as conn:
        for _ in range(50):
            conn.send(resp("GET", name))
            conn.reply()


def be_slow_for_hostile(gateway):
    with gateway.connect("alpha") as conn:
        conn.call("GET", "warm")
        timer = stopped_for(0.05, gateway.servers[0].process)
        assert conn.call("GET", HOSTILE) is None
        timer.join()


def test_hostile_bytes_are_escaped_everywhere(world):
    be_slow_for_hostile(world)
    asked = lambda: ask_hostile(world) or any(it["key"] == HOSTILE_SHOWN for it in hot(world))
    wait_until(asked, "it is seen")
    wait_until(lambda: any(HOSTILE_SHOWN in it["arguments"] for it in slow(world)["requests"]), "it is recorded")
    texts = {"slowlog": printed(world, "slowlog", columns=500), "hot": printed(world, "hot", columns=500)}
    for name, text in texts.items():
        assert HOSTILE_SHOWN in text, (name, text)
    texts["top"] = printed(world, "top", "--once", columns=400)
    texts["status"] = printed(world, "status")
    for name in ("slow.json", "hot.json", "state.json", "metrics"):
        texts[name] = page(world, name)
    for name, text in texts.items():
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text), name
    assert "SLOW: TIME" in texts["top"] and "HOT: BY" in texts["top"]
    assert texts["top"].count(HOSTILE_SHOWN) >= 3
    narrow = printed(world, "top", "--once").splitlines()
    assert all(len(line) <= 80 for line in narrow[narrow.index(next(it for it in narrow if "SLOW:" in it)):]), narrow
    keys = [labels["key"] for name, labels, _ in metrics(world) if name == "cashew_hot_key_share"]
    assert HOSTILE_SHOWN in keys


def test_long_keys_are_cut_and_none_is_there_twice(world):
    names = [b"k" * 60 + b"%d" % number for number in range(3)]
    asked = lambda: [ask_hostile(world, name) for name in names] and len(hot(world)) >= 3
    wait_until(asked, "they are seen")
    found = hot(world)
    assert {it["key"] for it in found} == {"k" * 48 + "…"} and {it["key_bytes"] for it in found} == {61}
    [share] = [value for name, labels, value in metrics(world) if name == "cashew_hot_key_share"]
    assert share > 0.9


def test_options_turn_it_off(place):
    servers = [place.redis()]
    lines = server_lines(servers, ["one"])
    pools = {"alpha": {"redis": True, "timeout": 5000, "slow_log": "0ms", "hot_keys": False, "servers": lines}}
    gateway = place.cashew(pools, {"worker_processes": 1})
    gateway.wait_serving()
    be_slow(gateway)
    ask_hostile(gateway)
    assert slow(gateway)["recorded"] == 0 and hot(gateway) == []
    assert printed(gateway, "hot").split() == ["POOL", "SERVER", "SHARE", "REQUESTS", "KEY"]
    assert "slow requests" not in printed(gateway, "status")
    assert not any(name == "cashew_hot_key_share" for name, *_ in metrics(gateway))
    # A reload turns it on.
    gateway.configure({"alpha": {"redis": True, "timeout": 5000, "servers": lines}})
    gateway.reload()
    wait_until(lambda: ask_hostile(gateway) or hot(gateway), "keys are seen")
    wait_until(lambda: be_slow(gateway) and slow(gateway)["recorded"] > 0, "slow requests are")


def test_the_page_shows_both_tables_as_text(world):
    needs_node()
    be_slow_for_hostile(world)
    wait_until(lambda: ask_hostile(world) or hot(world), "it is seen")
    wait_until(lambda: slow(world)["recorded"], "it is recorded")
    shown = run(world)
    assert f'GET "{HOSTILE_SHOWN}"' in shown["main"] and "img" not in shown["tags"]
    assert shown["main"].count(HOSTILE_SHOWN) >= 3 and "in gateway" in shown["main"] and "Hot" in shown["main"]


@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_both_tables(world, place, width):
    needs_chromium()
    be_slow_for_hostile(world)
    wait_until(lambda: ask_hostile(world) or hot(world), "it is seen")
    browser = place.keep(Browser(place.directory, f"http://{HOST}:{world.stats_port}/", width))

    def shown(section):
        return browser.value(f"document.querySelector('[data-section={section}]')?.innerText") or ""

    wait_until(lambda: HOSTILE_SHOWN in shown("slow") and HOSTILE_SHOWN in shown("hot"), "both are there")
    assert "ms" in shown("slow") and "%" in shown("hot")
    assert browser.value("document.querySelectorAll('img').length") == 0
    # Nothing is wider than the screen.
    assert browser.value("document.documentElement.scrollWidth") == width
    assert not browser.problems
