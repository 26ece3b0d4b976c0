"""A process of clients that write and read at random, and note what they asked, when, and what they were told.

It reads what it is to do as one line of JSON, and goes on until its input ends. What it asks is noted before it is
sent, so that its death leaves nobody in doubt. Lines of its notes, with times of the clock that all processes share:

  ["ask", BATCH, CLIENT, POOL, TIME, [[KIND, KEY, WRITE], ...]]
  ["told", BATCH, [[TIME, OUTCOME, WRITE or text], ...]]

An outcome is `ok` (with the write that was read, null for no value), `error` or `lost` (nothing is known),
`foreign` (a value that no write leaves at that key), `odd` (no such reply is possible) or `silent` (no answer came).
"""

import json
import os
import random
import sys
import threading
import time

from chaos.values import value_of, write_of
from harness import Conn, ReplyError, resp

#: A request that has no answer by then is taken to have been forgotten. Stops of processes are much shorter.
SILENCE = 30.0
MOST_IN_A_BATCH = 12


class Odd(Exception):
    """A reply that is none to what was asked."""


class Redis:
    def __init__(self, conn, chance):
        self.conn = conn
        if chance.random() < 0.5:
            conn.send(resp("HELLO", 3))
            hello = conn.reply()
            if isinstance(hello, ReplyError):
                raise ConnectionResetError(str(hello))
            if not isinstance(hello, dict):
                raise Odd(f"HELLO: {hello!r}")

    def encode(self, kind, parts):
        if kind == "write":
            return resp("SET", parts[0][0], value_of(*parts[0]))
        if kind == "writes":
            return resp("MSET", *[word for key, write in parts for word in (key, value_of(key, write))])
        if kind == "read":
            return resp("GET", parts[0][0])
        if kind == "reads":
            return resp("MGET", *[key for key, _ in parts])
        return resp("DEL", parts[0][0])

    def replies(self, kind, parts):
        """The outcome of each part."""
        reply = self.conn.reply()
        if isinstance(reply, ReplyError):
            return [("error", str(reply))] * len(parts)
        if kind in ("write", "writes"):
            right = reply == "OK"
        elif kind == "delete":
            right = reply in (0, 1) and not isinstance(reply, bool)
        else:
            replies = [reply] if kind == "read" else reply
            if isinstance(replies, list) and len(replies) == len(parts):
                return [self._read(key, value) for (key, _), value in zip(parts, replies)]
            right = False
        if not right:
            raise Odd(f"{kind} {parts}: {reply!r}"[:400])
        return [("ok", write) for _, write in parts]

    @staticmethod
    def _read(key, value):
        if value is None:
            return "ok", None
        if not isinstance(value, bytes):
            raise Odd(f"{key}: {value!r}"[:400])
        write = write_of(key, value)
        return ("ok", write) if write else ("foreign", repr(value[:300]))


class Memcached:
    def __init__(self, conn, _chance):
        self.conn = conn

    def encode(self, kind, parts):
        if kind == "write":
            value = value_of(*parts[0])
            return b"set %b 0 0 %d\r\n%b\r\n" % (parts[0][0].encode(), len(value), value)
        if kind == "delete":
            return b"delete %b\r\n" % parts[0][0].encode()
        return b"get " + b" ".join(key.encode() for key, _ in parts) + b"\r\n"

    def replies(self, kind, parts):
        found = {}
        while True:
            line = self.conn.read_line()
            if line.startswith((b"SERVER_ERROR ", b"ERROR Too many open connections")):
                # Values that came before it are those of their keys; the others are not known.
                text = line.decode(errors="replace")
                return [found.get(key.encode(), ("error", text)) for key, _ in parts]
            if kind == "write" and line == b"STORED" or kind == "delete" and line in (b"DELETED", b"NOT_FOUND"):
                return [("ok", parts[0][1])]
            if kind not in ("read", "reads"):
                raise Odd(f"{kind} {parts}: {line!r}"[:400])
            if line == b"END":
                return [found.get(key.encode(), ("ok", None)) for key, _ in parts]
            words = line.split(b" ")
            if len(words) != 4 or words[0] != b"VALUE" or words[1] not in [key.encode() for key, _ in parts]:
                raise Odd(f"{kind} {parts}: {line!r}"[:400])
            value = self.conn.read(int(words[3]) + 2)[:-2]
            write = write_of(words[1].decode(), value)
            found[words[1]] = ("ok", write) if write else ("foreign", repr(value[:300]))


KINDS = {"redis": Redis, "memcached": Memcached}


class Client(threading.Thread):
    """One connection after another to one pool, each for some requests."""

    def __init__(self, name, pool, seed, notes, stop):
        super().__init__(daemon=True)
        self.name, self.pool, self.notes, self.stop = name, pool, notes, stop
        self.chance = random.Random(f"{seed}:{name}")
        self.count = self.batches = 0

    def run(self):
        conn = None
        while not self.stop.is_set():
            if conn is None or self.chance.random() < 0.02:
                conn = self._connect(conn)
            if conn is None:
                time.sleep(0.05)
            elif not self._ask(conn):
                conn.conn.close()
                conn = None
            elif self.chance.random() < 0.7:
                time.sleep(self.chance.random() * self.pool["pause"])
        if conn:
            conn.conn.close()

    def _connect(self, old):
        if old:
            old.conn.close()
        conn = None
        try:
            conn = Conn(self.chance.choice(self.pool["addresses"]), SILENCE)
            return KINDS[self.pool["protocol"]](conn, self.chance)
        except (OSError, EOFError) as error:
            if conn:
                conn.close()
                if isinstance(error, TimeoutError):
                    self.note("told", f"{self.name}.greeting", [[time.monotonic(), "silent", repr(error)]])
            return None
        except Odd as error:
            self.note("told", f"{self.name}.greeting", [[time.monotonic(), "odd", str(error)]])
            return None

    def note(self, *what):
        # One write, so that lines stay whole whenever the process is killed.
        os.write(self.notes, json.dumps(what).encode() + b"\n")

    def _batch(self):
        size = 1 if self.chance.random() < 0.5 else self.chance.randrange(2, MOST_IN_A_BATCH)
        return [self._request() for _ in range(size)]

    def _request(self):
        dice, keys = self.chance.random(), self.pool["keys"]
        some = lambda: self.chance.sample(keys, self.chance.randrange(2, min(7, len(keys))))  # noqa: E731
        if dice < 0.45:
            return "read", [(self.chance.choice(keys), None)]
        if dice < 0.55:
            return "reads", [(key, None) for key in some()]
        if dice < 0.60 and self.pool["deletes"]:
            return "delete", [(self.chance.choice(self.pool["deletes"]), None)]
        if dice < 0.66 and self.pool["protocol"] == "redis":
            return "writes", [(key, self._next()) for key in some()]
        return "write", [(self.chance.choice(keys), self._next())]

    def _next(self):
        self.count += 1
        return f"{self.name}.{self.count}"

    def _ask(self, conn):
        """Whether the connection can be used on."""
        batch = self._batch()
        self.batches += 1
        name = f"{self.name}.{self.batches}"
        parts = [[kind, key, write] for kind, some in batch for key, write in some]
        self.note("ask", name, self.name, self.pool["name"], time.monotonic(), parts)
        told, failure = [], None
        try:
            conn.conn.send(b"".join(conn.encode(kind, some) for kind, some in batch))
            for kind, some in batch:
                outcomes = conn.replies(kind, some)
                now = time.monotonic()
                told += [[now, outcome, text] for outcome, text in outcomes]
        except TimeoutError as error:
            failure = "silent", repr(error)
        except (OSError, EOFError) as error:
            failure = "lost", repr(error)[:200]
        except (Odd, AssertionError, ValueError) as error:
            # What cannot send within its time has had no answer either.
            is_silent = "cannot send within" in str(error)
            failure = "silent" if is_silent else "odd", str(error)[:600]
        if failure:
            told += [[time.monotonic(), *failure]] * (len(parts) - len(told))
        self.note("told", name, told)
        return failure is None


def main():
    order = json.loads(sys.stdin.readline())
    notes = os.open(order["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    stop = threading.Event()
    clients = [Client(f"{order['name']}.{number}", pool, order["seed"], notes, stop)
               for number, pool in enumerate(order["pools"])]
    for client in clients:
        client.start()
    while sys.stdin.read(1):
        pass
    stop.set()
    for client in clients:
        client.join(SILENCE + 5)


if __name__ == "__main__":
    main()
