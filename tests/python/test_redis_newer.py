"""Servers newer than the distribution's: what they have more is served, where they are to be had."""

import pytest
import redis

from harness import HOST, newer_servers, server_lines

PROGRAMS = newer_servers()

pytestmark = pytest.mark.skipif(not PROGRAMS, reason="no newer server is there: see requirements.txt")

# Calls and their answers, after HSET h f v1 g v2, RPUSH l a b, SET s v, ZADD z 1 m and XADD x 1-1 f v.
# A server that does not know the command says so itself.
CALLS = [
    (["ZRANK", "z", "m", "WITHSCORE"], [0, 1.0]),
    (["HPEXPIRE", "h", 100_000, "FIELDS", 1, "f"], [1]),
    (["HPERSIST", "h", "FIELDS", 2, "f", "none"], [1, -2]),
    (["HTTL", "h", "FIELDS", 1, "f"], [-1]),
    (["HGETEX", "h", "EX", 100, "FIELDS", 1, "f"], ["v1"]),
    (["HSETEX", "h", "EX", 100, "FIELDS", 1, "i", "v3"], 1),
    (["HGETDEL", "h", "FIELDS", 1, "i"], ["v3"]),
    (["XDELEX", "x", "KEEPREF", "IDS", 1, "1-1"], [1]),
    (["VADD", "v", "VALUES", 2, "0.1", "0.2", "one"], {1, True}),
    (["VCARD", "v"], 1),
    (["MSETEX", 2, "{s}1", "a", "{s}2", "b", "EX", 100], 1),
    (["DELIFEQ", "s", "v"], 1),
    (["WAITAOF", 0, 0, 10], [0, 0]),
    (["OBJECT", "ENCODING", "l"], "listpack"),
]


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.name)
def gateway(request, module_place):
    servers = [module_place.redis(program=str(request.param)) for _ in range(2)]
    options = {"redis": True, "command_policy": "admin", "hash": "murmur", "hash_tag": '"{}"',
               "servers": server_lines(servers)}
    gateway = module_place.cashew({"alpha": options}, {"worker_processes": 2})
    gateway.servers = servers
    return gateway


@pytest.mark.parametrize("protocol", [2, 3])
def test_what_newer_servers_have_more_is_served(gateway, protocol):
    for server in gateway.servers:
        server.reset()
    known = set(redis.Redis(HOST, gateway.servers[0].port, decode_responses=True).command())
    known = {name.lower() for name in known}
    served = 0
    address = gateway.addresses["alpha"]
    with redis.Redis(HOST, address, decode_responses=True, protocol=protocol) as client:
        client.hset("h", mapping={"f": "v1", "g": "v2"})
        client.rpush("l", "a", "b")
        client.set("s", "v")
        client.zadd("z", {"m": 1})
        client.xadd("x", {"f": "v"}, id="1-1")
        for words, expected in CALLS:
            if words[0].lower() in known:
                reply = client.execute_command(*words)
                if words[0] == "ZRANK":
                    reply = [reply[0], float(reply[1])]
                assert reply in expected if isinstance(expected, set) else reply == expected, words
                served += 1
            else:
                with pytest.raises(redis.ResponseError, match="unknown command"):
                    client.execute_command(*words)
        # COMMAND tells of what is served, whatever the servers are.
        assert known - {name.lower() for name in client.command()} == set()
    assert served > 8
