"""Requests as spans of OpenTelemetry, and as lines of the access log."""

import base64
import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time
from datetime import datetime

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harness import CASHEW, HOST, free_port, said_to, server_lines, wait_until

PARTS = ("gateway", "queue", "server", "order", "client")
SERVER, INTERNAL, CLIENT = 2, 1, 3
ERROR = 2


class Collector:
    """Takes exports, and answers as it is told to."""

    def __init__(self, port=None):
        self.exports = []
        self.headers = []
        self.status = 200
        self.answer = b"{}"
        self.delay = 0
        self.attempts = 0
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, self.headers, body)
                time.sleep(collector.delay)
                with contextlib.suppress(ConnectionError):
                    self.send_response(collector.status)
                    if collector.status == 429:
                        self.send_header("Retry-After", "1")
                    self.send_header("Content-Length", str(len(collector.answer)))
                    self.end_headers()
                    self.wfile.write(collector.answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((HOST, port or free_port()), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def take(self, path, headers, body):
        self.attempts += 1
        assert path == "/v1/traces" and headers["Content-Type"] == "application/json"
        if self.status == 200:
            self.headers.append(dict(headers))
            self.exports.append(body)

    @property
    def port(self):
        return self.server.server_address[1]

    def spans(self):
        return [span for body in list(self.exports) for span in parsed(body)[1]]

    def roots(self, key=None):
        """Spans of requests, those for a key."""
        roots = [span for span in self.spans() if not span["parent"]]
        return [it for it in roots if key in (None, it["attributes"].get("cashew.key"))]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def parsed(body):
    """The service's attributes and the spans of an export, as the protocol's own definition reads it."""
    plain = json.loads(body)
    # The JSON of OpenTelemetry differs from that of protocol buffers in ids alone.
    for of_resource in plain["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            for span in of_scope["spans"]:
                for name, size in (("traceId", 16), ("spanId", 8), ("parentSpanId", 8)):
                    if name in span:
                        data = bytes.fromhex(span[name])
                        assert len(data) == size and any(data)
                        span[name] = base64.b64encode(data).decode()
                for name in ("startTimeUnixNano", "endTimeUnixNano"):
                    assert isinstance(span[name], str)
    message = json_format.Parse(json.dumps(plain), ExportTraceServiceRequest())
    (of_resource,) = message.resource_spans
    (of_scope,) = of_resource.scope_spans
    spans = [
        {
            "trace": span.trace_id,
            "id": span.span_id,
            "parent": span.parent_span_id,
            "name": span.name,
            "kind": span.kind,
            "start": span.start_time_unix_nano,
            "end": span.end_time_unix_nano,
            "attributes": attributes(span.attributes),
            "status": span.status.code,
            "message": span.status.message,
        }
        for span in of_scope.spans
    ]
    return attributes(of_resource.resource.attributes), spans


def attributes(pairs):
    return {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in pairs}


def start(place, tracing=None, access_log=None, pool=None, **named):
    server = place.redis()
    settings = {"worker_processes": 2}
    if tracing:
        settings["tracing"] = tracing
    if access_log:
        settings["access_log"] = access_log
    pools = {"alpha": {"redis": True, "servers": server_lines([server]), **(pool or {})}}
    gateway = place.cashew(pools, settings, **named)
    gateway.wait_serving()
    gateway.server = server
    return gateway


def endpoint(collector):
    return f"endpoint: 'http://{HOST}:{collector if isinstance(collector, int) else collector.port}'"


def metric(gateway, name):
    text = said_to(gateway.stats_address, b"GET /metrics HTTP/1.0\r\n\r\n").decode()
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def slowly(gateway, *words, seconds=0.06):
    """Calls while the server sleeps."""
    pid = gateway.server.process.pid
    with gateway.connect() as conn:
        conn.call("CLIENT", "SETNAME", "the-app")
        os.kill(pid, signal.SIGSTOP)
        try:
            conn.send(command(*words))
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
        return conn.reply()


def command(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(it), it) for it in words)


def until(gateway, is_there, what, words=("GET", "warm"), slow=False):
    """Goes on with requests until there is what is waited for: workers begin to look a little later."""
    def attempt():
        if slow:
            slowly(gateway, *words)
        else:
            with gateway.connect() as conn:
                conn.send(command(*words) * 50)
                for _ in range(50):
                    conn.reply()
        time.sleep(0.1)
        return is_there()

    wait_until(attempt, what, seconds=60)


# --------------------------------------------------------------------------------------- tracing


def test_a_slow_request_is_a_trace(place):
    collector = place.keep(Collector())
    gateway = start(place, f"{{{endpoint(collector)}, share: 0%, keys: full, service_name: cache, "
                           "headers: {x-token: secret}}")
    assert gateway.call("SET", "k", "v") == "OK"
    until(gateway, lambda: collector.roots("warm"), "a span", slow=True)
    before = time.time_ns()
    assert slowly(gateway, "GET", "k") == b"v"
    wait_until(lambda: collector.roots("k"), "the span of the request")
    (root,) = collector.roots("k")
    service, _ = parsed(collector.exports[-1])
    assert service["service.name"] == "cache" and service["service.version"]
    assert collector.headers[-1]["x-token"] == "secret"
    told = root["attributes"]
    expected = {
        "db.system.name": "redis",
        "db.operation.name": "GET",
        "cashew.pool": "alpha",
        "server.address": HOST,
        "server.port": gateway.server.port,
        "client.address": HOST,
        "network.peer.address": HOST,
        "cashew.client.name": "the-app",
        "cashew.slow": True,
        "cashew.key": "k",
    }
    assert {name: told.get(name) for name in expected} == expected
    assert (root["name"], root["kind"], root["status"]) == ("GET", SERVER, 0)
    assert told["cashew.client.id"] > 0 and told["cashew.server"] and told["cashew.key.hash"]
    # Its parts follow each other and are as long as the whole.
    parts = [it for it in collector.spans() if it["parent"] == root["id"]]
    assert {it["trace"] for it in parts} == {root["trace"]}
    at = root["start"]
    for part in parts:
        assert part["start"] == at
        at = part["end"]
        length = (part["end"] - part["start"]) // 1000
        assert length == told[f"cashew.time.{part['name']}_us"] > 0
    assert at == root["end"] and before < root["start"] < root["end"] < time.time_ns()
    named = {it["name"]: it for it in parts}
    assert [it["name"] for it in parts] == [name for name in PARTS if name in named]
    server = named["server"]
    assert server["kind"] == CLIENT and server["attributes"]["server.port"] == gateway.server.port
    assert server["end"] - server["start"] > 50_000_000
    others = root["end"] - root["start"] - (server["end"] - server["start"])
    assert others < 40_000_000, "nobody else was slow"
    # Nothing but slow ones was wanted.
    assert all(it["attributes"]["cashew.slow"] for it in collector.roots())
    status = gateway.order("status").stdout
    line = next(it for it in status.splitlines() if it.startswith("tracing: "))
    assert re.search(r"/v1/traces, \d+ spans sent, 0 dropped$", line), line
    assert metric(gateway, "cashew_trace_spans_total") == len(collector.spans())


def test_samples_come_by_share_and_a_reload_switches_them(place):
    collector = place.keep(Collector())
    gateway = start(place)
    assert metric(gateway, "cashew_trace_spans_total") is None
    gateway.configure(tracing=f"{{{endpoint(collector)}, share: 100%}}")
    assert "tracing: none -> http://" in gateway.reload()
    until(gateway, collector.roots, "samples")
    (told, *_) = [it["attributes"] for it in collector.roots()]
    assert told["cashew.key.hash"] and "cashew.key" not in told and not told["cashew.slow"]
    traces = [it["trace"] for it in collector.roots()]
    assert len(traces) == len(set(traces))
    # Elsewhere.
    other = place.keep(Collector())
    gateway.configure(tracing=f"{{{endpoint(other)}, share: 100%, keys: none}}")
    gateway.reload()
    until(gateway, other.roots, "samples at the other collector")
    assert all("cashew.key.hash" not in it["attributes"] for it in other.roots())
    # Nowhere.
    del gateway.settings["tracing"]
    gateway.configure()
    gateway.reload()
    wait_until(lambda: "tracing:" not in gateway.order("status").stdout, "it is off")
    time.sleep(1.5)
    count = other.attempts
    for _ in range(5):
        until(gateway, lambda: True, "requests")
    time.sleep(1.5)
    assert (other.attempts, collector.roots() != []) == (count, True)


def test_a_failure_is_a_status(place):
    collector = place.keep(Collector())
    gateway = start(place, f"{{{endpoint(collector)}, share: 0%, keys: full}}", pool={"timeout": 200})
    until(gateway, lambda: collector.roots("warm"), "a span", slow=True)
    gateway.server.process.signal(signal.SIGSTOP)
    try:
        with gateway.connect() as conn:
            conn.send(command("GET", "late"))
            assert conn.raw_reply().startswith(b"-")
    finally:
        gateway.server.process.signal(signal.SIGCONT)
    wait_until(lambda: collector.roots("late"), "the span of what failed")
    (root,) = collector.roots("late")
    assert root["status"] == ERROR and root["message"]
    assert root["attributes"]["error.type"] == root["message"]


@pytest.mark.long
def test_a_collector_that_is_away_harms_nobody(place):
    port = free_port()
    gateway = start(place, f"{{{endpoint(port)}, share: 100%}}")
    until(gateway, lambda: (metric(gateway, "cashew_trace_export_errors_total") or 0) > 1, "errors")
    for _ in range(100):
        assert gateway.call("SET", "k", "v") == "OK"
    status = gateway.order("status").stdout
    assert re.search(r"tracing: .* failed exports; last error .* ago: cannot connect", status), status
    assert gateway.log().count("cannot export spans") == 1
    # More than there is room for.
    until(gateway, lambda: metric(gateway, "cashew_trace_spans_dropped_total") > 0, "drops")
    assert metric(gateway, "cashew_trace_spans_total") == 0
    collector = place.keep(Collector(port))
    wait_until(collector.roots, "the export is tried again", seconds=40)
    wait_until(lambda: "spans are exported again" in gateway.log(), "the log tells")
    sent = metric(gateway, "cashew_trace_spans_total")
    assert sent > 0


def test_answers_decide_about_another_try(place):
    collector = place.keep(Collector())
    collector.status = 500
    gateway = start(place, f"{{{endpoint(collector)}, share: 100%}}")
    until(gateway, lambda: collector.attempts > 0, "an attempt")
    wait_until(lambda: metric(gateway, "cashew_trace_spans_dropped_total"), "it is given up")
    collector.status = 429
    count = collector.attempts
    until(gateway, lambda: collector.attempts > count + 1, "it is tried again")
    collector.status = 200
    wait_until(collector.roots, "it is taken")
    ids = [it["id"] for it in collector.spans()]
    assert len(ids) == len(set(ids))
    # Some of them are refused.
    dropped = metric(gateway, "cashew_trace_spans_dropped_total")
    collector.answer = b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}}'
    until(gateway, lambda: metric(gateway, "cashew_trace_spans_dropped_total") > dropped, "refused")
    assert "spans refused: too old" in gateway.order("status").stdout


def test_a_slow_collector_delays_neither_clients_nor_statistics(place):
    collector = place.keep(Collector())
    collector.delay = 3
    gateway = start(place, f"{{{endpoint(collector)}, share: 100%}}")
    until(gateway, lambda: collector.attempts > 0, "an attempt")
    began = time.monotonic()
    for _ in range(50):
        assert gateway.call("SET", "k", "v") == "OK"
        assert metric(gateway, "cashew_trace_spans_total") is not None
    assert time.monotonic() - began < 0.8 * collector.delay * 50
    status = json.loads(gateway.order("status", "--json").stdout)
    assert status["admin"]["restarts"] == 0


def test_what_is_left_at_the_end_is_sent(place):
    collector = place.keep(Collector())
    gateway = start(place, f"{{{endpoint(collector)}, share: 0%, keys: full}}")
    until(gateway, lambda: collector.roots("warm"), "a span", slow=True)
    slowly(gateway, "GET", "last")
    gateway.stop()
    assert len(collector.roots("last")) == 1


def test_a_collector_that_never_answers_delays_no_stop(place):
    collector = place.keep(Collector())
    collector.delay = 8
    gateway = start(place, f"{{{endpoint(collector)}, share: 0%, keys: full}}")
    until(gateway, lambda: collector.attempts > 0, "an attempt", slow=True)
    began = time.monotonic()
    gateway.stop()
    assert time.monotonic() - began < 6


# ------------------------------------------------------------------------------------ access log


def lines(path):
    """Whole ones: the last may still be being written."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


HOSTILE = b"k\n\x1b[2J\"\xff x"


@pytest.mark.parametrize("workers", [0, 2])
def test_lines_of_json(place, workers):
    path = place.directory / "access.log"
    server = place.redis()
    gateway = place.cashew(
        {"alpha": {"redis": True, "servers": server_lines([server])}},
        {"worker_processes": workers,
         "access_log": f"{{file: {path}, format: json, share: 100%}}"},
    )
    until(gateway, lambda: lines(path), "a line", ("SET", HOSTILE, "value"))
    for line in lines(path):
        record = json.loads(line)
        assert datetime.fromisoformat(record["time"]).tzinfo
        if record["command"][0].lower() == "set":
            assert record["command"] == ["SET", r'k\n\x1b[2J\"\xff x', "value"]
            assert record["pool"] == "alpha" and record["client"].startswith(f"{HOST}:")
            parts = [record[f"{part}_us"] for part in PARTS]
            assert record["total_us"] == sum(parts) > 0
            break
    else:
        pytest.fail("no SET among the lines")
    # A line is counted once it is handed to the writer.
    wait_until(lambda: metric(gateway, "cashew_access_log_lines_total") == len(lines(path)), "count")
    status = gateway.order("status").stdout
    assert re.search(rf"^access log: {path}, \d+ lines written$", status, re.MULTILINE), status


def test_the_user_is_named(place):
    path = place.directory / "access.log"
    collector = place.keep(Collector())
    users = {"users": "{app: 'on >one ~* &* +@all', default: 'on nopass ~* &* +@all'}"}
    gateway = start(place, f"{{{endpoint(collector)}, share: 100%, keys: full}}",
                    f"{{file: {path}, format: json, share: 100%}}", pool=users)

    def is_named():
        with gateway.connect() as conn:
            conn.call("AUTH", "app", "one")
            for _ in range(50):
                conn.call("GET", "key")
        records = [json.loads(line) for line in lines(path)]
        of_app = [it for it in records if it["command"] == ["GET", "key"]]
        return of_app and all(it["user"] == "app" for it in of_app) and collector.roots("key")
    roots = wait_until(is_named, "a line and a span")
    assert {root["attributes"]["user.name"] for root in roots} == {"app"}
    until(gateway, lambda: collector.roots("warm"), "a span of everybody's user")
    assert {root["attributes"]["user.name"] for root in collector.roots("warm")} == {"default"}


def test_plain_lines_cannot_be_forged(place):
    path = place.directory / "access.log"
    gateway = start(place, access_log=f"{{file: {path}, share: 100%}}")
    until(gateway, lambda: lines(path), "a line", ("SET", HOSTILE, "value"))
    text = path.read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in text)
    line = next(it for it in lines(path) if '"SET"' in it)
    assert line.endswith(r'command=["SET" "k\n\x1b[2J\"\xff x" "value"]'), line
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d pool=alpha server=", line)
    mode = path.stat().st_mode & 0o777
    assert mode == gateway.log_path.stat().st_mode & 0o777


def test_slow_ones_have_lines_without_samples(place):
    path = place.directory / "access.log"
    gateway = start(place, access_log=f"{{file: {path}, share: 0%, arguments: false}}")
    until(gateway, lambda: lines(path), "a line", slow=True)
    assert all(" slow=yes " in it and it.endswith('command=["GET"]') for it in lines(path))


@pytest.mark.parametrize("log", [True, False])
def test_the_file_is_opened_anew(place, log):
    path, old = place.directory / "access.log", place.directory / "access.log.1"
    gateway = start(place, access_log=f"{{file: {path}, share: 100%}}", flags=False, log=log)
    until(gateway, lambda: lines(path), "a line")
    path.rename(old)
    os.kill(gateway.pid, signal.SIGUSR1)
    until(gateway, lambda: lines(path), "a line in the new file")
    count = len(lines(old))
    until(gateway, lambda: len(lines(path)) > 20, "more lines")
    assert len(lines(old)) == count > 0
    assert gateway.call("PING") == "PONG"


def test_a_reload_switches_the_access_log(place):
    first, second = place.directory / "first", place.directory / "second"
    gateway = start(place)
    gateway.configure(access_log=f"{{file: {first}, share: 100%}}")
    gateway.reload()
    until(gateway, lambda: lines(first), "a line")
    gateway.configure(access_log=f"{{file: {second}, share: 100%, format: json}}")
    gateway.reload()
    until(gateway, lambda: lines(second), "a line in the other file")
    assert json.loads(lines(second)[0])
    # A directory that cannot be written to is found out before anything changes.
    gateway.configure(access_log=f"{{file: {place.directory}/missing/access, share: 100%}}")
    assert "there is no directory" in gateway.refused_reload()
    del gateway.settings["access_log"]
    gateway.configure()
    gateway.reload()
    count = len(lines(second))
    until(gateway, lambda: True, "requests")
    time.sleep(1)
    assert len(lines(second)) == count


def test_a_disk_that_is_full_is_told_of_once(place):
    gateway = start(place, access_log="{file: /dev/full, share: 100%}")
    lost = "cashew_access_log_lines_lost_total"
    until(gateway, lambda: (metric(gateway, lost) or 0) > 20, "lost lines")
    assert gateway.log().count("lines cannot be written to /dev/full") == 1
    status = gateway.order("status").stdout
    assert re.search(r"access log: /dev/full, \d+ lines written, \d+ could not be; last error",
                     status), status
    assert gateway.call("PING") == "PONG"


# ----------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize("settings, complaint", [
    ("tracing: {endpoint: 'https://collector'}", "not by https"),
    ("tracing: {endpoint: 'collector:4318'}", "is no URL of a collector"),
    ("tracing: {share: 1%}", "lacks the option \"endpoint\""),
    ("tracing: {endpoint: 'http://c', headers: {host: x}}", "is set by the gateway"),
    ("access_log: {file: /no/such/directory/access}", "there is no directory /no/such/directory"),
    ("access_log: {file: /tmp/a, share: 0%, slow: false}", "no request is logged"),
    ("log_file: /tmp/a\n  access_log: {file: /tmp/a}", "cannot be in the file of the log"),
])
def test_mistakes_are_found_by_a_check(tmp_path, settings, complaint):
    file = tmp_path / "cashew.yml"
    file.write_text(f"global:\n  {settings}\npools:\n  alpha:\n    listen: 127.0.0.1:1\n"
                    "    redis: true\n    servers: ['127.0.0.1:2:1']\n")
    done = subprocess.run([CASHEW, "-t", "-c", file], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and complaint in done.stdout + done.stderr, done
