"""A relay between a replica and its primary, which can hold back what the primary sends."""

import random
import select
import socket
import threading
import time

from harness import free_port


class Relay:
    """Passes connections on to a server. What the server says comes late by `delay()` seconds, in its
    order, and not at all while it is `stalled`, as it is once somebody has said `stall_at`."""

    def __init__(self, port, delay=lambda: 0.0, stall_at=None):
        self.target, self.delay, self.stall_at = port, delay, stall_at
        self.stalled = threading.Event()
        self.stopped = threading.Event()
        self.port = free_port()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.connections = []
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self):
        self.listener.settimeout(0.2)
        while not self.stopped.is_set():
            try:
                near, _ = self.listener.accept()
            except (TimeoutError, OSError):
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self.connections += [near, far]
            threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()

    def _pass_on(self, near, far):
        # What waits, and when it is due.
        waiting, due = [], 0.0
        try:
            while not self.stopped.is_set():
                readable, _, _ = select.select([near, far], [], [], 0.005)
                if near in readable:
                    data = near.recv(1 << 16)
                    if not data:
                        break
                    if self.stall_at and self.stall_at in data:
                        self.stalled.set()
                    far.sendall(data)
                if far in readable:
                    data = far.recv(1 << 16)
                    if not data:
                        break
                    due = max(due, time.monotonic() + self.delay())
                    waiting.append((due, data))
                while waiting and waiting[0][0] <= time.monotonic() and not self.stalled.is_set():
                    near.sendall(waiting.pop(0)[1])
        except OSError:
            pass
        finally:
            near.close()
            far.close()

    def close(self):
        self.stopped.set()
        self.listener.close()
        for connection in self.connections:
            connection.close()


def between(least, most):
    """Delays of so many seconds, another one for each piece."""
    chance = random.Random(7)
    return lambda: chance.uniform(least, most)
