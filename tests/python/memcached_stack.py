"""The gateway before memcached servers and a bare memcached: what both answer to the same bytes."""

import contextlib

from harness import cut, server_lines


class Stack:
    """Three memcached with the gateway in front, and one more to compare with."""

    def __init__(self, place):
        self.servers = [place.memcached() for _ in range(3)]
        self.plain = place.memcached()
        self.gateway = place.cashew(
            {"beta": {"hash": "murmur", "command_policy": "admin", "servers": server_lines(self.servers)}},
            {"worker_processes": 2},
        )

    def reset(self):
        for server in (*self.servers, self.plain):
            server.reset()


def exchange(conn, data, last, reply, sizes=None):
    """All that comes back before `reply`, which is the answer to `last`, or else up to the end of
    the connection; and whether that was it."""
    # Who is closed while it sends can still read what it was told before.
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        conn.send(data, sizes)
        conn.send(last)
    try:
        return conn.read_until(reply)[: -len(reply)], False
    except (EOFError, ConnectionResetError):
        return bytes(conn.buffer), True


def check_alike(stack, answer, data, timeout=60.0):
    """The gateway answers a long stream as memcached does, whole and in pieces."""
    stack.reset()
    expected = answer(stack.plain.port, data, timeout=timeout)
    for kind in ("whole", "random"):
        stack.reset()
        assert answer(stack.gateway.address, data, cut(kind, len(data)), timeout) == expected
