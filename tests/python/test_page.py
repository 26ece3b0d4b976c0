"""The page of the stats port, and the documents that it is made of."""

import base64
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from harness import HOST, ROOT, server_lines, wait_until

#: As it may be in a file.
EVIL = "<script>alert(1)</script>"
#: The tables that come after pools and workers.
SECTIONS = ["events", "slow", "hot"]
CHROMIUM = os.environ.get("CASHEW_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)


@pytest.fixture
def world(place):
    servers = [place.redis() for _ in range(2)]
    pools = {
        "alpha": {"redis": True, "timeout": 2000, "servers": server_lines(servers, ["one", EVIL])},
        "beta": {"servers": server_lines([place.memcached()], ["cache"])},
    }
    gateway = place.cashew(pools, {"worker_processes": 2})
    gateway.servers = servers
    return gateway


def ask(gateway, path, **headers):
    client = http.client.HTTPConnection(HOST, gateway.stats_port, timeout=20)
    try:
        client.request("GET", path, headers=headers)
        response = client.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        client.close()


def document(gateway, path):
    status, headers, text = ask(gateway, path)
    assert status == 200 and headers["Content-Type"] == "application/json", text
    return json.loads(text)


def state(gateway):
    return document(gateway, "/state.json")


def pool_of(gateway, name="alpha"):
    return next(pool for pool in state(gateway)["pools"] if pool["name"] == name)


def server_of(gateway, name):
    return next(server for server in pool_of(gateway)["servers"] if server["name"] == name)


def history(gateway, **query):
    return document(gateway, "/history.json?" + "&".join(f"{k}={quote(str(v))}" for k, v in query.items()))


def page_of(gateway):
    status, headers, text = ask(gateway, "/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    return headers, text


def write(gateway, count=100):
    with gateway.connect("alpha") as conn:
        for n in range(count):
            assert conn.call("SET", f"k{n}", n) == "OK"


def fail(gateway):
    """Kills the second server, and has clients notice."""
    gateway.servers[1].stop()
    with gateway.connect("alpha") as conn:
        for n in range(20):
            conn.send(b"*2\r\n$3\r\nGET\r\n$%d\r\nk%d\r\n" % (1 + len(str(n)), n))
            conn.reply()
    wait_until(lambda: server_of(gateway, EVIL)["state"] == "out", "it is down")


# ----------------------------------------------------------------------------------- the documents


def test_the_state_has_what_happens_now(world):
    world.wait_serving()
    before = state(world)
    assert [pool["name"] for pool in before["pools"]] == ["beta", "alpha"]
    assert before["host"] and before["version"] and [it["name"] for it in before["sections"]] == SECTIONS
    assert [worker["slot"] for worker in before["workers"]] == [0, 1]
    assert sorted(worker["pid"] for worker in before["workers"]) == sorted(world.workers())
    # There is none before the first one.
    beats = lambda: [worker["heartbeat_age_ms"] for worker in state(world)["workers"]]
    wait_until(lambda: None not in beats() and max(beats()) < 20_000, "they beat")
    write(world)
    wait_until(lambda: pool_of(world)["requests"] == 100, "they are counted")
    wait_until(lambda: sum(it["requests"] for it in pool_of(world)["servers"]) == 100, "at servers, too")

    def is_busy():
        write(world)
        pool = pool_of(world)
        return pool["requests_per_s"] and pool["p50_us"] and pool["p99_us"] >= pool["p50_us"]

    wait_until(is_busy, "rates and latencies are there")
    one = server_of(world, "one")
    assert (one["up"], one["state"], one["cause"], one["role"]) == (1, "well", None, "")
    assert one["address"] == f"{HOST}:{world.servers[0].port}" and one["connections"] > 0
    conns = [world.connect("alpha") for _ in range(5)]
    wait_until(lambda: pool_of(world)["clients"] == 5, "five clients")
    assert sum(worker["clients"] for worker in state(world)["workers"]) == 5
    for conn in conns:
        conn.close()


def test_a_killed_server_is_shown_as_down_until_it_is_back(world):
    write(world)
    fail(world)
    down = server_of(world, EVIL)
    assert (down["up"], down["cause"], down["last_error"]) == (0, "Connection refused", "Connection refused")
    assert down["since"] and down["last_error_at"]
    assert server_of(world, "one")["up"] == 1
    kinds = [(row[1], row[3]) for row in state(world)["sections"][0]["rows"]]
    assert ("server_down", EVIL) in kinds, kinds
    wait_until(lambda: pool_of(world)["errors"] > 0, "errors are counted")
    world.servers[1].start()

    def is_back():
        world.call("GET", "k1")
        with world.connect("alpha") as conn:
            for n in range(20):
                conn.send(b"*2\r\n$3\r\nGET\r\n$%d\r\nk%d\r\n" % (1 + len(str(n)), n))
                conn.reply()
        return server_of(world, EVIL)["state"] == "well"

    wait_until(is_back, "it is back")


def test_roles_are_those_of_the_servers(place):
    master, replica = place.redis(), place.redis()
    replica.call("REPLICAOF", HOST, master.port)
    servers = server_lines([master, replica], ["master", "r1"])
    gateway = place.cashew({"alpha": {"redis": True, "servers": servers}}, {"worker_processes": 1})

    def roles():
        return {server["name"]: server["role"] for server in pool_of(gateway)["servers"]}

    wait_until(lambda: roles() == {"master": "primary", "r1": "replica"}, "their roles are known")
    [group] = pool_of(gateway)["groups"]
    assert group["servers"] == ["master", "r1"]
    replica.call("REPLICAOF", "NO", "ONE")
    assert gateway.order("failover", "alpha", "r1").returncode == 0
    master.call("REPLICAOF", HOST, replica.port)
    wait_until(lambda: roles() == {"master": "replica", "r1": "primary"}, "they have changed")


def test_the_history_has_points_of_five_seconds_which_a_reload_keeps(world):
    def points(**query):
        return len(history(world, pool="alpha", **query)["at_ms"])

    wait_until(lambda: write(world, 20) or points() >= 2, "there are points")
    told = history(world, pool="alpha")
    assert {len(told[name]) for name in ("at_ms", "span_ms", "requests", "errors", "p50_us", "p99_us", "p999_us")} \
        == {len(told["at_ms"])}
    assert all(3000 < span < 30_000 for span in told["span_ms"])
    assert sum(told["requests"]) > 0 and told["p50_us"][-1] > 0
    assert 0 < sum(history(world, pool="alpha", server="one")["requests"]) <= sum(told["requests"]) + 500
    assert len(history(world, pool="alpha", server=EVIL, last=1)["at_ms"]) == 1
    world.configure({**world.pools, "gamma": {"redis": True, "servers": server_lines([world.servers[0]])}})
    before = points()
    world.reload()
    assert points() >= before
    wait_until(lambda: points() > before, "it goes on")
    told = history(world, pool="alpha")
    total = pool_of(world)["requests"]
    assert all(requests <= total for requests in told["requests"])
    assert len(history(world, pool="gamma")["at_ms"]) <= 2
    for query in ("", "?pool=none", "?pool=alpha&server=none", "?pool=alpha&last=x"):
        status, _, why = ask(world, "/history.json" + query)
        assert status == 404 and why.strip(), query


# ---------------------------------------------------------------------------------------- the page


class Links(HTMLParser):
    """What a document loads, and which of its elements may run or style something."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.nonces, self.handlers, self.metas = [], [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.loads += [named[name] for name in ("src", "href", "action") if name in named]
        self.handlers += [name for name in named if name.startswith("on") or name == "style"]
        if tag in ("script", "style"):
            self.nonces.append(named.get("nonce"))
        if tag == "meta" and "name" in named:
            self.metas[named["name"]] = named["content"]


def test_only_who_wants_html_gets_the_page(world):
    for accept in ("*/*", "application/json", None):
        status, headers, text = ask(world, "/", **({"Accept": accept} if accept else {}))
        assert status == 200 and headers["Content-Type"] == "application/json"
        assert json.loads(text)["service"] == "nutcracker"
    headers, text = page_of(world)
    policy = headers["Content-Security-Policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    links = Links(text)
    assert links.loads == ["data:,"] and not links.handlers
    [nonce] = set(links.nonces)
    assert f"script-src 'nonce-{nonce}'" in policy and f"style-src 'nonce-{nonce}'" in policy
    assert "width=device-width" in links.metas["viewport"]
    assert nonce not in page_of(world)[0]["Content-Security-Policy"]


def test_a_browser_may_keep_its_connection(world):
    client = http.client.HTTPConnection(HOST, world.stats_port, timeout=20)
    client.connect()
    first = client.sock
    for _ in range(5):
        client.request("GET", "/state.json", headers={"Connection": "keep-alive"})
        assert client.getresponse().read() and client.sock is first
    client.close()


def run(gateway, answers=None, clicks=()):
    """What the page shows, of what the gateway answers."""
    got = {"state.json": state(gateway)}
    for pool in got["state.json"]["pools"]:
        query = f"pool={quote(pool['name'])}"
        for server in [None, *pool["servers"]]:
            path = f"history.json?{query}" + (f"&server={quote(server['name'], safe='()')}" if server else "")
            got[path] = document(gateway, "/" + path)
    got.update(answers or {})
    task = {"page": page_of(gateway)[1], "answers": got, "clicks": list(clicks)}
    done = subprocess.run(["node", str(Path(__file__).with_name("page_run.js"))], input=json.dumps(task),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def needs_node():
    if not shutil.which("node"):
        pytest.skip("node is not there")


def test_the_page_shows_pools_servers_and_workers(world):
    needs_node()
    fail(world)
    wait_until(lambda: write_to_one(world) or len(history(world, pool="alpha")["at_ms"]) >= 2, "two points")
    shown = run(world, clicks=["alpha/one"])
    assert shown["isSilent"] is False and shown["title"].startswith("✕ ")
    main = " ".join(shown["main"].split())
    for part in ("alpha", "beta", "out: Connection refused", "well", "Workers", "last 5 minutes", f"{HOST}:"):
        assert part in main, f"{part} in {main}"
    assert "server one" in main and shown["focused"] == "alpha/one"
    assert "history.json?pool=alpha&server=one" in shown["asked"]
    # Names are text, whatever is in them.
    assert EVIL in main and "script" not in shown["tags"]
    assert any(re.match(r"M\d", path) for path in shown["paths"])
    assert not any("NaN" in path or "Infinity" in path for path in shown["paths"])
    assert world.log().count("panicked") == 0


def write_to_one(gateway):
    with gateway.connect("alpha") as conn:
        for n in range(20):
            conn.send(b"*2\r\n$3\r\nGET\r\n$%d\r\nk%d\r\n" % (1 + len(str(n)), n))
            conn.reply()


def test_sections_appear_when_there_are_any(world):
    needs_node()
    told = state(world)
    told["sections"] = [{
        "name": "further",
        "columns": [{"name": "took", "unit": "us"}, {"name": "command", "unit": "text"}, {"name": "size", "unit": "bytes"}],
        "rows": [[12_345, "GET <b>key</b>", 2048], [1, None, None]],
    }]
    main = run(world, {"state.json": told})["main"]
    assert "Further" in main and "12.3 ms" in main and "GET <b>key</b>" in main and "2.0 KiB" in main
    assert "Further" not in run(world)["main"]


def test_the_page_tells_that_nobody_answers(world):
    needs_node()
    shown = run(world, {"state.json": None})
    assert shown["isSilent"] is True and "no answer since" in shown["silent"]


def needs_chromium():
    if not CHROMIUM:
        pytest.skip("no Chromium is there: apt-get install chromium-headless-shell, or CASHEW_CHROMIUM")


class Browser:
    """Chromium without a window, steered through a pipe."""

    def __init__(self, directory, url, width):
        theirs_in, self.send_to = os.pipe()
        self.receive_from, theirs_out = os.pipe()
        arguments = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                     f"--user-data-dir={directory}/browser-{width}", "about:blank"]
        steered = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *arguments]
        self.child = subprocess.Popen(steered, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(theirs_in)
        os.close(theirs_out)
        self.received, self.number, self.session, self.problems = b"", 0, None, []
        [target] = [it for it in self.call("Target.getTargets")["targetInfos"] if it["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=True)
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Page.navigate", url=url)

    def call(self, method, **parameters):
        self.number += 1
        session = {"sessionId": self.session} if self.session else {}
        message = {"id": self.number, "method": method, "params": parameters, **session}
        os.write(self.send_to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.received:
                piece = os.read(self.receive_from, 1 << 16)
                assert piece, "the browser has ended"
                self.received += piece
            text, _, self.received = self.received.partition(b"\0")
            answer = json.loads(text)
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(answer["params"])
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def picture(self, width, height):
        """The page from its top, as PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def close(self):
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(20)
        os.close(self.send_to)
        os.close(self.receive_from)


@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_the_page(world, place, width):
    needs_chromium()
    fail(world)
    wait_until(lambda: write_to_one(world) or len(history(world, pool="alpha")["at_ms"]) >= 2, "two points")
    browser = place.keep(Browser(place.directory, f"http://{HOST}:{world.stats_port}/", width))
    shown = lambda: browser.value("document.getElementById('main').innerText") or ""
    wait_until(lambda: "out: Connection refused" in shown() and "Workers" in shown(), "it is drawn")
    assert EVIL in shown() and browser.value("document.querySelectorAll('script').length") == 1
    path = "[...document.querySelectorAll('path.one')].map(it => it.getAttribute('d')).join()"
    wait_until(lambda: (browser.value(path) or "").startswith("M"), "the plots have points")
    # Nothing is wider than the screen.
    assert browser.value("document.documentElement.scrollWidth") == width
    browser.value("document.querySelector('button[data-key=\"alpha/one\"]').click()")
    wait_until(lambda: "server one" in shown(), "a server is chosen")
    world.servers[1].start()
    wait_until(lambda: write_to_one(world) or "out: Connection refused" not in shown(), "it goes on by itself")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.value(colour)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert browser.value(colour) != light
    world.process.stop()
    wait_until(lambda: "no answer since" in browser.value("document.body.innerText"), "it is gone")
    failed_to_load = lambda it: it.get("entry", {}).get("source") == "network"
    assert all(map(failed_to_load, browser.problems)), browser.problems


def test_the_page_is_in_the_repository_as_it_is_sent(world):
    source = (ROOT / "crates/admin/src/page.html").read_text()
    sent = page_of(world)[1]
    assert re.sub(r'nonce="[0-9a-f]{32}"', 'nonce="NONCE"', sent) == source
