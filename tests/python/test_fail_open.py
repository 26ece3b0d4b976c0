"""Pools of which too many servers are down are used whole: `fail_open`."""

import urllib.request

import pytest

from harness import HOST, ReplyError, server_lines, wait_until

NAMES = ["one", "two", "three", "four"]


class Pool:
    """Four servers of which half may be ejected, and a key on each."""

    def __init__(self, place, is_redis):
        self.is_redis = is_redis
        self.servers = [place.redis() if is_redis else place.memcached() for _ in NAMES]
        pool = {"redis": is_redis, "hash": "murmur", "timeout": 2000, "auto_eject_hosts": True,
                "server_failure_limit": 1, "server_retry_timeout": 100, "fail_open": "50%",
                "servers": server_lines(self.servers, NAMES)}
        self.gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
        self.conn = place.keep(self.gateway.connect())
        names = [f"key-{n}" for n in range(60)]
        for name in names:
            assert self.set(self.conn, name)
        self.keys = []
        for server in self.servers:
            with server.connect() as conn:
                self.keys.append(next(name for name in names if self.get(conn, name) == b"v"))

    def set(self, conn, key):
        if self.is_redis:
            return conn.call("SET", key, "v") == "OK"
        conn.send(b"set %b 0 0 1\r\nv\r\n" % key.encode())
        return conn.read_line() == b"STORED"

    def get(self, conn, key):
        """Its value, None, or the error."""
        if self.is_redis:
            try:
                return conn.call("GET", key)
            except ReplyError as error:
                return str(error)
        conn.send(b"get %b\r\n" % key.encode())
        line = conn.read_line()
        if line.startswith(b"VALUE"):
            conn.expect(b"v\r\nEND\r\n")
            return b"v"
        return None if line == b"END" else line.decode()

    def gets(self):
        return [self.get(self.conn, key) for key in self.keys]

    def ejected(self):
        stats = self.gateway.stats()["alpha"]
        return [stats[name]["ejected"] for name in NAMES]

    def is_open(self):
        return self.gateway.stats()["cashew"]["fail_open"] == [{"pool": "alpha", "open": 1}]

    def metric(self):
        with urllib.request.urlopen(f"http://{HOST}:{self.gateway.stats_port}/metrics") as page:
            lines = page.read().decode().splitlines()
        return [line for line in lines if line.startswith("cashew_pool_open{")]


@pytest.mark.parametrize("is_redis", [True, False], ids=["redis", "memcached"])
def test_with_three_of_four_servers_down_none_of_the_rest_is_knocked_out(place, is_redis):
    pool = Pool(place, is_redis)

    def asked(condition, what):
        """Until that is so, while clients ask; the fourth server serves its key all the time."""
        def step():
            replies = pool.gets()
            assert replies[3] == b"v", replies
            return condition(replies)
        return wait_until(step, what)

    assert not pool.is_open() and pool.metric() == ['cashew_pool_open{pool="alpha"} 0']
    for server in pool.servers[:2]:
        server.stop()
    asked(lambda replies: replies == [None, None, b"v", b"v"], "two are ejected, and others have their keys")
    assert not pool.is_open()
    pool.servers[2].stop()
    asked(lambda _: pool.is_open(), "the third is one too many")
    asked(lambda replies: all("refused" in str(reply) for reply in replies[:3]), "all are used again")
    wait_until(lambda: not any(pool.ejected()), "none is ejected")
    assert pool.metric() == ['cashew_pool_open{pool="alpha"} 1']
    status = pool.gateway.order("status").stdout
    assert "fails open since" in status, status
    # It stays so, whatever fails meanwhile.
    for _ in range(50):
        assert [isinstance(reply, str) for reply in pool.gets()] == [True, True, True, False]
    assert not any(pool.ejected())

    pool.servers[1].start()
    asked(lambda replies: replies == [None, None, None, b"v"], "one is back, and two are ejected")
    wait_until(lambda: not pool.is_open(), "half of them are enough")
    wait_until(lambda: pool.ejected()[::2] == [1, 1], "those that are down are ejected")
    for server in pool.servers[::2]:
        server.start()
    wait_until(lambda: not any(pool.ejected()), "all are back")
    log = [line for line in pool.gateway.log().splitlines() if "pool 'alpha'" in line]
    opened = [line for line in log if "fails open: 3 of 4 servers are down, more than 50 %" in line]
    closed = [line for line in log if "does not fail open any more" in line]
    assert (len(opened), len(closed)) == (1, 1), log
