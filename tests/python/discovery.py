"""What sources of servers are tested with, and how gateways say that they see them."""

import base64
import json
import socket
import struct
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness import HOST, Process, accepts, free_port, said_to, wait_until


def status(gateway):
    done = gateway.order("status", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pool_status(gateway, pool="alpha"):
    return next(it for it in status(gateway)["pools"] if it["name"] == pool)


def source(gateway, pool="alpha"):
    return pool_status(gateway, pool)["source"]


def in_use(gateway, pool="alpha"):
    """The servers that workers use, by name: their addresses."""
    return {it["name"]: it["address"] for it in pool_status(gateway, pool)["server_states"]}


def wait_in_use(gateway, names, what, seconds=20.0, pool="alpha"):
    try:
        wait_until(lambda: set(in_use(gateway, pool)) == set(names), what, seconds)
    except AssertionError:
        raise AssertionError(f"{in_use(gateway, pool)}\n{source(gateway, pool)}\n"
                             f"{gateway.log()[-3000:]}") from None


def epochs(gateway):
    return gateway.stats()["cashew"]["epoch"]


def event_kinds(gateway):
    text = gateway.order("events", "--json").stdout
    return [json.loads(line)["kind"] for line in text.splitlines()]


def samples(gateway, name):
    text = said_to(gateway.stats_address, b"GET /metrics HTTP/1.0\r\n\r\n").decode()
    found = [line for line in text.splitlines() if line.startswith(name)]
    return [line[len(name):] for line in found if line[len(name)] in "{ "]


def line(server, name, weight=1):
    return f"{HOST}:{server.port}:{weight} {name}"


class Etcd(Process):
    """etcd of the distribution, one member, with its data in a directory of its own."""

    def __init__(self, directory):
        self.port, peer = free_port(), free_port()
        self.url = f"http://{HOST}:{self.port}"
        peer_url = f"http://{HOST}:{peer}"
        command = ["etcd", "--data-dir", directory / f"etcd-{self.port}", "--listen-client-urls",
                   self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", peer_url,
                   "--initial-advertise-peer-urls", peer_url, "--initial-cluster",
                   f"default={peer_url}"]
        super().__init__(command, directory, f"etcd-{self.port}", self._answers)

    def _answers(self):
        if not accepts(self.port):
            return False
        try:
            self.ask("/v3/kv/range", {"key": coded("x")})
        except OSError:
            return False
        return True

    def ask(self, path, body, headers=()):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         dict(headers))
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def put(self, key, value, headers=()):
        if not isinstance(value, str):
            value = json.dumps(value)
        body = {"key": coded(key), "value": coded(value)}
        return int(self.ask("/v3/kv/put", body, headers)["header"]["revision"])

    def delete(self, key):
        return int(self.ask("/v3/kv/deleterange", {"key": coded(key)})["header"]["revision"])

    def compact(self, revision):
        self.ask("/v3/kv/compaction", {"revision": str(revision), "physical": True})


def coded(text):
    return base64.b64encode(text.encode()).decode()


class DnsServer:
    """Answers by UDP, and by TCP where a reply is truncated. `records` has by (name, type) a list of (ttl, data), or the
    number of an error; `silent` is not to answer at all."""

    TYPES = {1: "A", 28: "AAAA", 33: "SRV"}

    def __init__(self):
        self.port = free_port()
        self.records = {}
        self.silent = False
        self.truncate = False
        self.asked = []
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind((HOST, self.port))
        self.tcp = socket.create_server((HOST, self.port))
        for serve in (self._serve_udp, self._serve_tcp):
            threading.Thread(target=serve, daemon=True).start()

    def set(self, name, kind, *records):
        self.records[name, kind] = list(records)

    def _serve_udp(self):
        while True:
            try:
                question, address = self.udp.recvfrom(4096)
            except OSError:
                return
            if not question:
                return
            if not self.silent:
                self.udp.sendto(self._answer(question, self.truncate), address)

    def _serve_tcp(self):
        while True:
            try:
                client, _ = self.tcp.accept()
            except OSError:
                return
            with client:
                size, = struct.unpack("!H", client.recv(2, socket.MSG_WAITALL))
                answer = self._answer(client.recv(size, socket.MSG_WAITALL), False)
                client.sendall(struct.pack("!H", len(answer)) + answer)

    def _answer(self, question, truncate):
        labels, at = [], 12
        while question[at]:
            size = question[at]
            labels.append(question[at + 1:at + 1 + size].decode())
            at += 1 + size
        kind, _ = struct.unpack_from("!HH", question, at + 1)
        end = at + 5
        name = ".".join(labels)
        self.asked.append((name, self.TYPES.get(kind, kind), time.monotonic()))
        found = self.records.get((name, self.TYPES.get(kind)), [])
        error, found = (found[0], []) if found and isinstance(found[0], int) else (0, found)
        flags = 0x8180 | error | (0x0200 if truncate else 0)
        answers = [] if truncate else found
        message = question[:2] + struct.pack("!5H", flags, 1, len(answers), 0, 0) + question[12:end]
        for ttl, data in answers:
            data = self._data(kind, data)
            message += struct.pack("!HHHIH", 0xC00C, kind, 1, ttl, len(data)) + data
        return message

    @staticmethod
    def _data(kind, data):
        if kind == 1:
            return socket.inet_aton(data)
        if kind == 28:
            return socket.inet_pton(socket.AF_INET6, data)
        priority, weight, port, target = data
        labels = b"".join(bytes([len(it)]) + it.encode() for it in target.split(".") if it)
        return struct.pack("!3H", priority, weight, port) + labels + b"\0"

    def close(self):
        for end in (self.udp, self.tcp):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()


class HttpServer:
    """Has `answer(handler)` answer each request, in a thread of its own."""

    def __init__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with outer.lock:
                    outer.asked.append((self.path, dict(self.headers)))
                try:
                    outer.answer(self)
                except (ConnectionError, TimeoutError):
                    self.close_connection = True

            def log_message(self, *_):
                pass

            def say(self, code, body, headers=()):
                self.send_response(code)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def begin_stream(self):
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()

            def chunk(self, data):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.flush()

        self.lock = threading.Condition()
        self.asked = []
        self.over = False
        self.port = free_port()
        self.server = ThreadingHTTPServer((HOST, self.port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://{HOST}:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler):
        raise NotImplementedError

    def close(self):
        with self.lock:
            self.over = True
            self.lock.notify_all()
        self.server.shutdown()
        self.server.server_close()
