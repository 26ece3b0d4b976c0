"""What is counted by class of commands and by prefix is, to the unit, what the servers have counted."""

import struct
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import HOST, ReplyError, server_lines, wait_until
from test_upgrade import upgrade

KEYS = [f"{prefix}:{n}" for prefix in ("user", "page") for n in range(50)]


def redis_numbers(servers):
    """Hits, misses and calls by command, of all servers."""
    total = {}
    for server in servers:
        for section in ("stats", "commandstats"):
            for line in server.call("INFO", section).decode().splitlines():
                name, _, value = line.partition(":")
                if name.startswith("cmdstat_"):
                    value = value.split(",")[0].removeprefix("calls=")
                elif name not in ("keyspace_hits", "keyspace_misses"):
                    continue
                total[name] = total.get(name, 0) + int(value)
    return total


def memcached_numbers(servers):
    total = {}
    for server in servers:
        with server.connect() as conn:
            conn.send(b"stats\r\n")
            for line in conn.read_until(b"END\r\n").decode().splitlines():
                words = line.split()
                if len(words) == 3 and words[2].isdigit():
                    total[words[1]] = total.get(words[1], 0) + int(words[2])
    return total


def since(now, before):
    return {name: value - before.get(name, 0) for name, value in now.items()}


def counted(gateway, requests, pool="alpha"):
    """The pool's numbers when so many requests are counted: that is at the end of the worker's turn."""
    def is_counted():
        return gateway.stats()[pool]["client_responses"] >= requests
    wait_until(is_counted, f"{requests} counted requests")
    found = gateway.stats()[pool]
    assert found["client_responses"] == requests
    assert sum(numbers["requests"] for numbers in found["commands"].values()) == requests

    # Bytes are sent when the kernel has taken them, which is later.
    def is_sent():
        nonlocal found
        found = gateway.stats()[pool]
        return sum(it["reply_bytes"] for it in found["commands"].values()) == found["client_bytes_sent"]
    wait_until(is_sent, f"the bytes of all replies: {found}")
    return found


def metrics(gateway):
    with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}/metrics", timeout=20) as page:
        families = text_string_to_metric_families(page.read().decode())
        return {(sample.name, *sorted(sample.labels.items())): sample.value
                for family in families for sample in family.samples}


def redis_load(conn):
    """Returns how many requests that were."""
    requests = 0

    def pipeline(*lines):
        nonlocal requests
        conn.send(b"".join(b"*%d\r\n%s" % (len(line), b"".join(
            b"$%d\r\n%s\r\n" % (len(word), word) for word in (w.encode() for w in line))) for line in lines))
        requests += len(lines)
        replies = []
        for _ in lines:
            try:
                replies.append(conn.reply())
            except ReplyError as error:
                replies.append(error)
        return replies

    pipeline(*(("SET", key, "v" * 20) for key in KEYS[::2]))
    pipeline(*(("GET", key) for key in KEYS))
    pipeline(("MGET", *KEYS), ("MGET", KEYS[0]), ("MGET", *KEYS[1::2]))
    pipeline(("SET", "big:1", "x" * 700_000))
    pipeline(("GET", "big:1"), ("MGET", "big:1", "none", "big:1"))
    pipeline(("LPUSH", "list", "a"), ("INCR", "page:list-not"), ("INCR", KEYS[0]))
    replies = pipeline(("BLPOP", "list", "1"), ("DEL", *KEYS[:10]), ("EVAL", "return 1", "1", "a"))
    assert replies[1] == 5, replies
    pipeline(("MULTI",), ("SET", "{t}a", "1"), ("GET", "{t}a"), ("GET", "{t}b"), ("EXEC",))
    return requests


@pytest.mark.parametrize("workers", [1, 2])
def test_redis(place, workers):
    servers = [place.redis() for _ in range(3)]
    pool = {"redis": True, "prefixes": ["user:", "page:"], "preconnect": True, "servers": server_lines(servers)}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": workers})
    before = redis_numbers(servers)
    with gateway.connect("alpha") as conn:
        requests = redis_load(conn)
    found = counted(gateway, requests)
    delta = since(redis_numbers(servers), before)
    classes = found["commands"]
    get = classes["get"]
    # In a transaction the reply to EXEC has the values: one hit and one miss.
    assert get["hits"] + 1 == delta["keyspace_hits"]
    assert get["misses"] + 1 == delta["keyspace_misses"]
    assert classes["store"]["requests"] == delta["cmdstat_set"]
    # MGETs of several servers are several calls there.
    assert get["requests"] - 4 == delta["cmdstat_get"]
    assert classes["counter"]["requests"] == delta["cmdstat_incr"]
    assert classes["counter"]["errors"] == 1
    assert classes["list"]["requests"] == delta["cmdstat_lpush"]
    assert classes["blocking"]["requests"] == delta["cmdstat_blpop"]
    assert classes["script"]["requests"] == delta["cmdstat_eval"]
    assert classes["transaction"]["requests"] == delta["cmdstat_multi"] + delta["cmdstat_exec"]
    assert sum(numbers["request_bytes"] for numbers in classes.values()) == found["client_bytes_received"]
    assert sum(numbers["reply_bytes"] for numbers in classes.values()) == found["client_bytes_sent"]
    prefixes = found["prefixes"]
    # Of each 50 keys there is every other one. MGETs count for the first of their keys.
    assert prefixes["page:"]["hits"] == 25 and prefixes["page:"]["misses"] == 25
    assert prefixes["user:"]["requests"] == 25 + 50 + 3 + 1 + 1
    assert prefixes["user:"]["hits"] == 25 + 50 + 1
    # The same numbers for Prometheus.
    seen = metrics(gateway)
    labels = ("class", "get"), ("pool", "alpha")
    assert seen["cashew_command_hits_total", *labels] == get["hits"]
    assert seen["cashew_command_duration_seconds_count", *labels] == get["requests"]
    labels = ("pool", "alpha"), ("prefix", "user:")
    assert seen["cashew_prefix_requests_total", *labels] == prefixes["user:"]["requests"]


def packet(opcode, key=b"", extras=b"", value=b""):
    body = extras + key + value
    return struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, len(body), 7, 0) + body


def memcached_load(gateway):
    """Returns how many requests that were."""
    keys = [key.encode() for key in KEYS]
    with gateway.connect("alpha") as conn:
        conn.send(b"".join(b"set %s 0 0 3\r\nabc\r\n" % key for key in keys[::2]))
        conn.read_until(b"STORED\r\n" * 50)
        conn.send(b"".join(b"get %s\r\n" % key for key in keys) + b"mn\r\n")
        conn.read_until(b"MN\r\n")
        conn.send(b"get %s\r\ngets %s\r\nmn\r\n" % (b" ".join(keys), b" ".join(keys[:3])))
        conn.read_until(b"MN\r\n")
        conn.send(b"".join(b"mg %s v q\r\n" % key for key in keys) + b"mn\r\n")
        conn.read_until(b"MN\r\n")
        conn.send(b"gat 100 %s\r\nincr %s 1\r\ntouch %s 5\r\ndelete %s\r\nmn\r\n" % (*[keys[0]] * 4,))
        conn.read_until(b"MN\r\n")
    with gateway.connect("alpha") as conn:
        conn.send(b"".join(packet(0x00, key) for key in keys[:20])
                  + b"".join(packet(0x09, key) for key in keys[:20]) + packet(0x0A))
        conn.read_until(packet(0x0A).replace(b"\x80", b"\x81", 1))
    return 50 + 100 + 1 + 2 + 1 + 100 + 1 + 4 + 1 + 40 + 1


def test_memcached(place):
    servers = [place.memcached() for _ in range(3)]
    pool = {"prefixes": ["user:"], "preconnect": True, "servers": server_lines(servers)}
    gateway = place.cashew({"alpha": pool})
    before = memcached_numbers(servers)
    requests = memcached_load(gateway)
    found = counted(gateway, requests)
    delta = since(memcached_numbers(servers), before)
    classes = found["commands"]
    # memcached counts `gat`, of which there is one, as a touch.
    assert classes["get"]["hits"] - 1 == delta["get_hits"]
    assert classes["get"]["misses"] == delta["get_misses"]
    assert classes["get"]["hits"] - 1 + classes["get"]["misses"] == delta["cmd_get"]
    assert classes["key"]["requests"] + 1 == delta["cmd_touch"]
    assert classes["store"]["requests"] == delta["cmd_set"]
    assert classes["delete"]["requests"] == delta["delete_hits"] + delta["delete_misses"] == 1
    assert classes["counter"]["errors"] == 1
    assert sum(numbers["request_bytes"] for numbers in classes.values()) == found["client_bytes_received"]
    assert sum(numbers["reply_bytes"] for numbers in classes.values()) == found["client_bytes_sent"]


def test_nothing_is_counted_where_nobody_asks(place):
    server = place.redis()
    pools = {name: {"redis": True, "servers": server_lines([server]), **options}
             for name, options in (("alpha", {}), ("beta", {"command_stats": True}))}
    gateway = place.cashew(pools)
    for name in pools:
        with gateway.connect(name) as conn:
            conn.send(b"GET a\r\n")
            conn.reply()
    wait_until(lambda: gateway.stats()["beta"].get("commands"), "a class in use")
    found = gateway.stats()
    assert found["beta"]["commands"]["get"]["misses"] == 1 and "prefixes" not in found["beta"]
    assert not {"commands", "prefixes"} & set(found["alpha"])
    labels = [dict(labels) for name, *labels in metrics(gateway) if name == "cashew_command_requests_total"]
    assert labels == [{"pool": "beta", "class": "get"}]


def test_counting_is_turned_on_and_off_by_a_reload(place):
    server = place.redis()
    pool = {"redis": True, "servers": server_lines([server])}
    gateway = place.cashew({"alpha": pool})
    with gateway.connect("alpha") as conn:
        def ask(times):
            conn.send(b"GET a\r\n" * times)
            for _ in range(times):
                conn.reply()
        ask(3)
        gateway.configure({"alpha": {**pool, "command_stats": True}})
        gateway.reload()
        conn.send(b"BLPOP none 1\r\n")
        conn.reply()
        ask(4)
        wait_until(lambda: gateway.stats()["alpha"]["commands"].get("get", {}).get("misses") == 4, "4 misses")
        gateway.configure({"alpha": pool})
        gateway.reload()
        ask(5)
        wait_until(lambda: gateway.stats()["alpha"]["client_responses"] == 13, "all answers")
        assert "commands" not in gateway.stats()["alpha"]


def test_counters_outlast_a_reload_and_an_upgrade(place):
    servers = [place.redis() for _ in range(2)]
    pool = {"redis": True, "prefixes": ["user:", "page:"], "servers": server_lines(servers)}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})

    def look(requests):
        found = counted(gateway, requests)
        return found["commands"]["get"], found["prefixes"]

    with gateway.connect("alpha") as conn:
        requests = redis_load(conn)
    get, prefixes = look(requests)
    gateway.configure({"alpha": {**pool, "prefixes": ["new:", "page:"]}})
    gateway.reload()
    after, others = look(requests)
    assert after == get
    assert others["page:"] == prefixes["page:"] and others["new:"]["requests"] == 0 and "user:" not in others
    upgrade(gateway)
    after, others = look(requests)
    assert after == get and others["page:"] == prefixes["page:"]
