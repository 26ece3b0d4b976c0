"""Polite clients, which ask one thing after the other and check every reply:
`python -m harness.polite PROTOCOL PORT SECONDS` prints how long they waited, as JSON."""

import json
import socket
import sys
import threading
import time

CLIENTS = 4
#: Seconds until an answer that has not come is an error.
PATIENCE = 3.0
VALUE = b"v" * 100
#: Seconds between two requests of a client: its latency is asked for, not all that the gateway can do.
PAUSE = 0.001


def bulk(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def talk(protocol, number):
    """Requests with their replies: a write, and then reads."""
    key = b"polite:%d" % number
    if protocol == "redis":
        yield bulk(b"SET", key, VALUE), b"+OK\r\n"
        while True:
            yield bulk(b"GET", key), b"$100\r\n%b\r\n" % VALUE
    yield b"set %b 0 0 100\r\n%b\r\n" % (key, VALUE), b"STORED\r\n"
    while True:
        yield b"get %b\r\n" % key, b"VALUE %b 0 100\r\n%b\r\nEND\r\n" % (key, VALUE)


class Client(threading.Thread):
    def __init__(self, protocol, port, number, until):
        super().__init__()
        self.protocol, self.port, self.number, self.until = protocol, port, number, until
        self.latencies, self.errors, self.wrong, self.first_error = [], 0, 0, ""

    def run(self):
        conn = None
        while (begun := time.monotonic()) < self.until:
            try:
                if conn is None:
                    conn = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
                    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    requests = talk(self.protocol, self.number)
                self.ask(conn, *next(requests))
                self.latencies.append(time.monotonic() - begun)
            except (OSError, EOFError, ValueError) as error:
                self.errors += 1
                # Who waits for longer than it is patient has waited that long.
                self.latencies.append(time.monotonic() - begun)
                self.first_error = self.first_error or repr(error)[:200]
                if conn:
                    conn.close()
                conn = None
                time.sleep(0.05)
            time.sleep(PAUSE)
        if conn:
            conn.close()

    def ask(self, conn, request, reply):
        conn.sendall(request)
        got = b""
        while len(got) < len(reply):
            piece = conn.recv(len(reply) - len(got))
            if not piece:
                raise EOFError(f"closed after {got!r}")
            got += piece
            if not reply.startswith(got):
                # An error, or a server that had to make room for what attackers write.
                if got[:1] not in (b"-", b"E", b"S") and not b"$-1\r\n".startswith(got[:5]):
                    self.wrong += 1
                raise ValueError(f"got {got!r}")


def main():
    protocol, port, seconds = sys.argv[1:]
    until = time.monotonic() + float(seconds)
    clients = [Client(protocol, int(port), number, until) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    latencies = sorted(latency for client in clients for latency in client.latencies)
    print(json.dumps({
        "asked": len(latencies), "errors": sum(client.errors for client in clients),
        "wrong": sum(client.wrong for client in clients),
        "p50": latencies[len(latencies) // 2] * 1e6, "p99": latencies[len(latencies) * 99 // 100] * 1e6,
        "max": latencies[-1] * 1e6, "first_error": next((it.first_error for it in clients if it.first_error), "")}))


if __name__ == "__main__":
    main()
