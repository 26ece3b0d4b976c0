"""The control API: every answer is as its description says, nothing but what is asked for changes, and asking again
does no harm."""

import http.client
import json
import os
import re
import subprocess
import time

import jsonschema
import pytest

from harness import HOST, said_to, server_lines, wait_until

READ, OPERATE = "token-of-readers", "token-of-those-who-operate"
TOKENS = {"stats_token": READ, "operate_token": OPERATE}
BASE = "/api/v1"


def start(place, pools=None, **settings):
    path = place.directory / "audit.log"
    pools = pools or {"alpha": {"redis": True, "servers": server_lines([place.redis(), place.redis()], ["one", "two"])}}
    gateway = place.cashew(pools, {"worker_processes": 2, "audit_log": f"{{file: {path}}}", **settings})
    gateway.wait_serving()
    gateway.audit_path = path
    return gateway


def closed(schema):
    """The same with nothing allowed that is not described."""
    if isinstance(schema, list):
        return [closed(it) for it in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: closed(it) for name, it in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
    return schema


class Api:
    """Asks, and compares each answer with the description."""

    def __init__(self, gateway, token=OPERATE):
        self.gateway, self.token = gateway, token
        self.seen = set()
        status, _, body = self.send("GET", "/openapi.json")
        assert status == 200, body
        self.described = json.loads(body)
        self.components = closed(self.described["components"])
        for schema in self.components["schemas"].values():
            jsonschema.Draft202012Validator.check_schema(schema)

    def send(self, method, path, body=None, token=None, query=""):
        host, port = HOST, self.gateway.stats_port
        connection = http.client.HTTPConnection(host, port, timeout=80)
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        connection.request(method, BASE + path + query, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, response.headers, content

    def operation(self, method, path):
        for pattern, item in self.described["paths"].items():
            is_its = re.fullmatch(re.sub(r"\{\w+\}", r"\\d+", pattern), BASE + path)
            if is_its and method.lower() in item:
                return item[method.lower()]
        return None

    def check(self, value, schema, what):
        root = {"components": self.components, **closed(schema)}
        errors = list(jsonschema.Draft202012Validator(root).iter_errors(value))
        assert not errors, (what, errors[0].json_path, errors[0].message)

    def call(self, method, path, body=None, expected=200, **rest):
        status, headers, content = self.send(method, path, body, **rest)
        assert status == expected, (method, path, status, content)
        assert headers["Content-Type"] == "application/json"
        answer = json.loads(content)
        operation = self.operation(method, path)
        if operation is None:
            assert status in (401, 404, 405)
            schema = {"$ref": "#/components/schemas/Failure"}
        else:
            self.seen.add((operation["operationId"], status))
            assert str(status) in operation["responses"], (path, status)
            described = operation["responses"][str(status)]
            assert set(described.get("headers", {})) <= set(headers)
            schema = described["content"]["application/json"]["schema"]
            if status < 300 and "requestBody" in operation:
                wanted = operation["requestBody"]["content"]["application/json"]["schema"]
                self.check(body or {}, wanted, (path, body))
        self.check(answer, schema, (method, path, status))
        if status >= 400:
            for sentence in (answer["cause"], answer["remedy"]):
                assert len(sentence.split()) > 1 and sentence.endswith("."), answer
        return answer


def epoch_of(gateway):
    return int(re.search(r", epoch (\d+),", gateway.order("status").stdout)[1])


def test_every_answer_is_as_described(place):
    gateway = start(place, **TOKENS)
    api = Api(gateway)
    assert api.described["openapi"] == "3.1.0"
    # What shows something.
    status = api.call("GET", "/status")
    assert (status["state"], status["epoch"], status["pools"][0]["name"]) == ("serving", 1, "alpha")
    shown = json.loads(gateway.order("status", "--json").stdout)
    assert set(shown) == set(status)
    events = api.call("GET", "/events")["events"]
    assert any(it["kind"] == "instance_serves" for it in events)
    last = events[-1]["number"]
    assert api.call("GET", "/events", query=f"?since={last}")["events"] == []
    only = api.call("GET", "/events", query="?kind=instance_serves&since=0")["events"]
    assert {it["kind"] for it in only} == {"instance_serves"}
    assert api.call("GET", "/actions") == {"actions": []}
    # Where keys go, as the command line says.
    for words, query in [
        (["a b"], "?key=a%20b"),
        (["--pool", "alpha", "--command", "DEL", "k"], "?key=k&pool=alpha&command=DEL"),
        (["--as-if", "one=down", "k"], "?key=k&as_if=one%3Ddown"),
    ]:
        shown = json.loads(gateway.order("route", "--json", *words).stdout)
        assert api.call("GET", "/route", query=query)["routes"] == shown and shown[0]["by_instance"]
    # What does something.
    done = api.call("POST", "/reload", {"dry_run": False})
    assert (done["state"], done["changed"], done["operation"]) == ("done", False, "reload")
    assert "nothing changes" in done["lines"] and done["by"].startswith(f"{HOST}:")
    gateway.configure(worker_processes=1)
    done = api.call("POST", "/reload", {"dry_run": True})
    assert done["changed"] is False and any("worker_processes: 2 -> 1" in it for it in done["lines"])
    assert epoch_of(gateway) == 1
    done = api.call("POST", "/reload")
    assert done["changed"] is True and epoch_of(gateway) == 2
    level = api.call("GET", "/status")["log_level"]
    assert api.call("PUT", "/log-level", {"level": 7})["changed"] is (level != 7)
    assert api.call("PUT", "/log-level", {"level": 7})["changed"] is False
    assert api.call("GET", "/status")["log_level"] == 7
    assert api.call("POST", "/undrain")["changed"] is False
    begun = api.call("POST", "/drain", {"seconds": 600}, expected=202, query="?wait=0")
    assert begun["state"] == "running" and begun["changed"] is None
    assert api.call("GET", "/status")["drain"]["seconds_left"] > 500
    assert api.call("GET", f"/actions/{begun['id']}")["state"] == "running"
    assert api.call("POST", "/undrain")["changed"] is True
    assert api.call("GET", f"/actions/{begun['id']}")["state"] == "failed"
    two = {"pool": "alpha", "server": "two"}
    done = api.call("POST", "/drain-server", {**two, "steps": 2, "every": 1})
    assert done["changed"] is True and "server 'two' has 50 % of its keys" in done["lines"]
    assert api.call("POST", "/drain-server", two)["changed"] is False
    states = {it["name"]: it for it in api.call("GET", "/status")["pools"][0]["server_states"]}
    assert (states["one"]["drained_permille"], states["two"]["drained_permille"]) == (0, 1000)
    assert api.call("PUT", "/weight", {**two, "percent": 40})["changed"] is True
    assert api.call("PUT", "/weight", {**two, "percent": 40})["changed"] is False
    assert api.call("POST", "/undrain-server", {**two, "steps": 1})["changed"] is True
    assert api.call("POST", "/undrain-server", two)["changed"] is False
    # What cannot be done.
    for path in ("/drain-server", "/undrain-server"):
        assert "no server 'x'" in api.call("POST", path, {**two, "server": "x"}, expected=409)["cause"]
    assert "beta" in api.call("PUT", "/weight", {**two, "pool": "beta", "percent": 1}, expected=409)["cause"]
    gateway.configure(worker_processes="x")
    refused = api.call("POST", "/reload", expected=409)
    assert refused["error"] == "failed" and refused["action"]["state"] == "failed"
    assert "worker_processes" in refused["cause"] and "correct the file" in refused["remedy"]
    failed = api.call("POST", "/failover", {"pool": "alpha", "server": "x", "group": None}, expected=409)
    assert "no" in failed["cause"]
    failed = api.call("POST", "/migrate", {"action": "pause"}, expected=409)
    assert "No route moves a pool" in failed["cause"]
    moved = {"from": "alpha", "to": "beta", "keys": ["k"]}
    assert "No route lists keys" in api.call("POST", "/move-keys", moved, expected=409)["cause"]
    # What is asked wrongly.
    for method, path, body, query, words in [
        ("POST", "/reload", {"pool": "x"}, "", "pool"),
        ("POST", "/reload", "{", "", "no JSON"),
        ("POST", "/reload", '{"dry_run": true, "dry_run": false}', "", "dry_run is there twice"),
        ("POST", "/reload", None, "?wait=1&wait=2", "wait is there twice"),
        ("POST", "/reload", "[]", "", "no object"),
        ("POST", "/reload", b"\xff\x00", "", "no JSON"),
        ("POST", "/reload", {"command": "upgrade"}, "", "command"),
        ("POST", "/reload", None, "?wait=61", "from 0 to 60"),
        ("POST", "/reload", None, "?dry_run=true", "no parameter dry_run"),
        ("POST", "/failover", {"pool": "alpha"}, "", "server"),
        ("POST", "/failover", {"pool": 1, "server": "x"}, "", "parameter pool is a text"),
        ("POST", "/migrate", {"action": "sideways"}, "", "one of start, pause"),
        ("POST", "/move-keys", {"from": "a", "to": "b", "keys": "k"}, "", "a list of texts"),
        ("POST", "/drain", {"seconds": 3601}, "", "3600"),
        ("POST", "/undrain", {"seconds": 1}, "", "seconds"),
        ("PUT", "/log-level", {"level": 12}, "", "0 to 11"),
        ("POST", "/drain-server", {**two, "steps": 0}, "", "1 to 100"),
        ("PUT", "/weight", {**two, "percent": 101}, "", "0 to 100"),
        ("PUT", "/weight", two, "", "percent"),
        ("PUT", "/weight", {**two, "percent": 50.5}, "", "percent is a number from 0 to 100"),
        ("PUT", "/log-level", None, "", "level"),
        ("GET", "/events", None, "?since=x", "since"),
        ("GET", "/events", None, "?kind=nosuch", "nosuch"),
        ("GET", "/status", None, "?x=1", "x"),
        ("GET", "/route", None, "", "key"),
        ("GET", "/route", None, "?key=k&x=1", "x"),
        ("GET", "/route", None, "?key=k&key=l", "given twice"),
        ("GET", "/route", None, "?key=k&pool=nowhere", "nowhere"),
        ("GET", "/route", None, "?key=k&as_if=one", "SERVER=down"),
        ("GET", "/route", None, "?key=k&command=NOSUCH", "NOSUCH"),
        ("GET", "/actions", None, "?x=1", "x"),
        ("GET", "/actions/1", None, "?x=1", "x"),
    ]:
        refused = api.call(method, path, body, expected=400, query=query)
        assert refused["error"] == "bad_request" and words in refused["cause"], (path, body, refused)
    api.call("GET", "/actions/1", expected=404)
    keys = {**moved, "keys": ["k" * 20_000]}
    assert api.call("POST", "/move-keys", keys, expected=413)["error"] == "too_large"
    # A body in chunks, which may have two lengths, and two tokens.
    for headers, status in [
        ([("Content-Length", "2"), ("Transfer-Encoding", "chunked")], 400),
        ([("Transfer-Encoding", "chunked"), ("Content-Length", "2")], 400),
        ([("Transfer-Encoding", "chunked")], 400),
        ([("Content-Length", "2"), ("Authorization", "Bearer x")], 401),
        ([("Content-Length", "2")], 200),
    ]:
        connection = http.client.HTTPConnection(HOST, gateway.stats_port, timeout=30)
        connection.putrequest("POST", BASE + "/undrain")
        for name, value in [("Authorization", f"Bearer {OPERATE}"), *headers]:
            connection.putheader(name, value)
        connection.endheaders(b"{}" if "chunked" not in str(headers) else b"2\r\n{}\r\n0\r\n\r\n")
        response = connection.getresponse()
        assert response.status == status, (headers, response.read())
        connection.close()
    # No path, no method.
    for method, path in [("GET", "/nosuch"), ("POST", "/upgrade"), ("GET", ""), ("GET", "/actions/x")]:
        assert api.call(method, path, expected=404)["error"] == "not_found"
    for method, path in [("GET", "/reload"), ("POST", "/status"), ("DELETE", "/actions"), ("POST", "/log-level")]:
        assert api.call(method, path, expected=405)["error"] == "method_not_allowed"
    assert "GET" not in {it.upper() for it in api.described["paths"][BASE + "/reload"]}
    listed = api.call("GET", "/actions")["actions"]
    assert [it["id"] for it in listed] == sorted((it["id"] for it in listed), reverse=True)
    api.seen.add(("openapi", 200))
    # Whatever is described was seen, except what the next test asks for.
    needs_more = {"failover", "migrate", "move-keys", "hot-key", "drain"}
    for path, item in api.described["paths"].items():
        for operation in item.values():
            name = operation["operationId"]
            assert name in needs_more or (name, 200) in api.seen, path


def test_what_needs_more_servers_is_as_described_and_asking_again_changes_nothing(place):
    master, replica = place.redis(), place.redis()
    replica.call("REPLICAOF", HOST, master.port)
    wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), "the replica has a copy")
    lists = place.directory / "keys"
    lists.write_text("# hot ones\n")

    def inner(server):
        return {"listen": None, "redis": True, "servers": server_lines([server]), "timeout": 5000}

    backends = {name: inner(place.redis()) for name in ("old", "new", "cold", "hot", "data")}
    gateway = start(place, {
        "group": {"redis": True, "servers": server_lines([master, replica], ["master", "r1"])},
        "moves": {"redis": True, "route": f"{{migrate: {{from: old, to: new, directory: {place.directory / 'move'}}}}}"},
        "lists": {"redis": True, "route": f"{{keys: {{file: {lists}}}, else: cold}}"},
        "caches": {"redis": True, "route": "{cache: {to: data, hot_only: true, ttl: 1h}}"},
        **backends,
    }, **TOKENS)
    api = Api(gateway)

    def twice(path, body):
        """Whether the first one changes something, and that the second one does not."""
        first, second = (api.call("POST", path, body, query="?wait=60") for _ in range(2))
        assert (first["state"], second["state"], second["changed"]) == ("done", "done", False), (path, first, second)
        return first["changed"]

    replica.call("REPLICAOF", "NO", "ONE")
    assert twice("/failover", {"pool": "group", "server": "r1"}) is True
    assert twice("/failover", {"pool": "group", "server": "r1", "force": True}) is False
    with gateway.connect("moves") as conn:
        assert conn.call("SET", "a", "1") == "OK"
    assert twice("/migrate", {"action": "roll_back"}) is False
    assert twice("/migrate", {"action": "start"}) is True

    def is_in_step():
        move = api.call("GET", "/status")["moves"][0]
        return move["state"] == "in step" and move["verified_at"]

    wait_until(is_in_step, "all is copied", 60, pause=0.2)
    assert twice("/migrate", {"action": "pause"}) is True
    assert api.call("POST", "/migrate", {"action": "resume"})["state"] == "done"
    wait_until(is_in_step, "all is copied", 60, pause=0.2)
    assert twice("/migrate", {"action": "cut_over"}) is True
    with gateway.connect("moves") as conn:
        assert conn.call("GET", "a") == b"1"
    with gateway.connect("lists") as conn:
        assert conn.call("SET", "k", "1") == "OK"
        assert twice("/move-keys", {"from": "cold", "to": "hot", "keys": ["k"]}) is True
        assert conn.call("GET", "k") == b"1"
    assert twice("/hot-key", {"key": "k", "action": "cache"}) is True
    assert twice("/hot-key", {"key": "k", "action": "undo"}) is True
    done = api.call("POST", "/drain", {"seconds": 1}, query="?wait=60")
    assert (done["state"], done["changed"]) == ("done", True)
    needed = {"failover", "migrate", "move-keys", "hot-key", "drain"}
    assert {(name, 200) for name in needed} <= api.seen


def test_reading_changes_nothing_and_roles_are_kept(place):
    gateway = start(place, **TOKENS)
    api = Api(gateway)
    before = gateway.audit_path.read_text()
    for path in api.described["paths"]:
        for query in ("", "?dry_run=false"):
            for method in ("GET", "HEAD"):
                api.send(method, path.removeprefix(BASE), query=query)
    assert epoch_of(gateway) == 1 and gateway.audit_path.read_text() == before
    for method, path, token, expected in [
        ("GET", "/status", "", 401), ("GET", "/status", "wrong", 401), ("GET", "/status", READ, 200),
        ("GET", "/openapi.json", "", 401), ("GET", "/nosuch", "", 401),
        ("POST", "/reload", "", 401), ("POST", "/reload", READ, 401), ("POST", "/reload", "wrong", 401),
        ("GET", "/actions", READ, 200), ("PUT", "/log-level", READ, 401),
    ]:
        status, headers, content = api.send(method, path, token=token or False)
        assert status == expected, (path, token)
        if status == 401:
            assert headers["WWW-Authenticate"].startswith("Bearer")
            api.check(json.loads(content), {"$ref": "#/components/schemas/Failure"}, path)
    api.call("POST", "/reload")

    def written():
        lines = [json.loads(line) for line in gateway.audit_path.read_text().splitlines()]
        mine = [(it["command"], it["outcome"]) for it in lines if it.get("user") == "role operate"]
        denied = [it["command"] for it in lines if it.get("reason") == "token"]
        return mine == [("reload", "asked"), ("reload", "done")] and denied == [
            f"HTTP {BASE}/status", f"HTTP {BASE}/reload"]
    wait_until(written, "the audit log has it all")
    shown = gateway.audit_path.read_text() + gateway.log()
    assert READ not in shown and OPERATE not in shown
    # What needs a token of its own, or another address.
    gateway.configure(stats_token=READ, operate_token=OPERATE, operate_from="[10.9.9.9]")
    gateway.reload()
    assert "operate_from" in api.call("POST", "/reload", expected=403)["remedy"]
    api.call("GET", "/status")


def test_without_tokens_anybody_reads_and_nobody_changes(place):
    gateway = start(place)
    api = Api(gateway, token=False)
    assert api.call("GET", "/status", token=False)["epoch"] == 1
    for method, path, body in [("POST", "/reload", None), ("PUT", "/log-level", {"level": 7})]:
        assert "operate_token" in api.call(method, path, body, expected=403, token=False)["cause"]
    assert epoch_of(gateway) == 1


def test_answers_are_waited_for_without_delaying_others(place):
    gateway = start(place, **TOKENS)
    api = Api(gateway)
    pieces = (b"POST /api/v1/drain?wait=3 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + OPERATE.encode()
              + b"\r\nContent-Length: 15\r\n\r\n" + b'{"seconds":600}')
    began = time.monotonic()
    answer = said_to(gateway.stats_address, pieces)
    waited = time.monotonic() - began
    assert answer.startswith(b"HTTP/1.1 202") and waited >= 3, answer
    # A body that does not come is not waited for.
    half = b"POST /api/v1/undrain HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + OPERATE.encode() \
        + b"\r\nContent-Length: 9\r\n\r\n{"
    answer = said_to(gateway.stats_address, half)
    assert answer.split()[1] in (b"400", b"408"), answer
    assert api.call("GET", "/status")["state"] == "draining"
    assert api.call("POST", "/undrain")["changed"] is True


@pytest.mark.parametrize("workers", [0])
def test_one_process_answers_as_well(place, workers):
    gateway = start(place, **TOKENS, worker_processes=workers)
    api = Api(gateway)
    assert api.call("GET", "/status")["state"] == "serving"
    assert api.call("POST", "/reload")["changed"] is False


def test_the_command_line_goes_by_it(place):
    gateway = start(place, **TOKENS)
    token = place.directory / "token"
    token.write_text(OPERATE + "\n")
    url = f"http://{HOST}:{gateway.stats_port}"

    def order(*words, fails=False, token=token, env=None):
        there = ["--api", url] + (["--token-file", token] if token else [])
        done = subprocess.run([gateway.binary, *words, *there], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **(env or {})})
        assert (done.returncode != 0) == fails, done
        return done.stdout + done.stderr

    assert "process " in order("status") and f"epoch {epoch_of(gateway)}" in order("status")
    shown, local = (json.loads(it) for it in (order("status", "--json"), gateway.order("status", "--json").stdout))
    assert set(shown) == set(local) and shown["pid"] == local["pid"]
    assert "nothing changes" in order("reload")
    gateway.configure(worker_processes=1)
    assert "worker_processes: 2 -> 1" in order("reload", "--dry-run")
    assert "epoch 2 serves" in order("reload", token=None, env={"CASHEW_STATS_TOKEN": OPERATE})
    assert "log level is 7" in order("log-level", "7")
    assert "the instance does not drain" in order("undrain")
    assert "instance_serves" in order("events", "--json")
    said = order("failover", "alpha", "nosuch", fails=True)
    assert "nosuch" in said and "GET /api/v1/status" in said
    assert "correct the file" not in said
    assert "--token-file" in order("reload", fails=True, token=None)
    assert "control socket alone" in order("upgrade", fails=True)
    token.write_text("wrong")
    assert "stats_token" in order("status", fails=True)


def test_a_long_command_is_followed_from_elsewhere(place):
    gateway = start(place, **TOKENS)
    words = [gateway.binary, "drain", "--delay", "3", "--api", f"{HOST}:{gateway.stats_port}"]
    env = {**os.environ, "CASHEW_STATS_TOKEN": OPERATE}
    waiting = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        wait_until(lambda: json.loads(gateway.order("status", "--json").stdout)["drain"], "it drains")
        assert gateway.order("undrain").returncode == 0
        assert "drain is taken back" in waiting.communicate(timeout=20)[0] and waiting.returncode == 1
    finally:
        waiting.kill()
        waiting.wait()
