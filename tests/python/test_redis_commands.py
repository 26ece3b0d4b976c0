"""Commands beside those of everyday: described, refused with a reason, configured or learnt."""

import pytest
import redis

from harness import HOST, server_lines

# Servers know these under other names, as modules would add commands: nothing else here has any.
RENAMED = ["--rename-command", "SETEX", "my.setex", "--rename-command", "TIME", "my.time"]
CONFIGURED = """
    - {name: my.setex, arity: 4, first_key: 1, flags: [write]}
    - {name: my.time, arity: 1}"""


@pytest.fixture(scope="module")
def gateway(module_place):
    redises = [module_place.redis(*RENAMED) for _ in range(3)]
    base = {"redis": True, "hash": "murmur", "servers": server_lines(redises)}
    alone = {**base, "servers": server_lines(redises[:1])}
    gateway = module_place.cashew(
        {
            "plain": base,
            "configured": {**base, "commands": CONFIGURED},
            "learning": {**base, "commands_from_servers": True},
            "alone": {**alone, "commands_from_servers": True},
        },
        {"worker_processes": 2},
    )
    gateway.redises = redises
    return gateway


def client_of(gateway, pool, **options):
    return redis.Redis(HOST, gateway.addresses[pool], decode_responses=True, **options)


def unordered(entry):
    """What is told of a command, without the order of what has none."""
    return {about: sorted(map(str, told)) if isinstance(told, (list, set)) else told for about, told in entry.items()}


@pytest.mark.parametrize("protocol", [2, 3])
def test_commands_are_described_as_redis_describes_them(gateway, protocol):
    server = redis.Redis(HOST, gateway.redises[0].port, decode_responses=True, protocol=protocol)
    with client_of(gateway, "plain", protocol=protocol) as client, server:
        theirs, ours = server.command(), client.command()
        renamed = {"setex", "time", "my.setex", "my.time"}
        assert set(theirs) - renamed - set(ours) == set()
        assert client.command_count() == len(ours)
        for name in ("get", "mset", "lmove", "zunionstore", "sunsubscribe"):
            assert unordered(ours[name]) == unordered(theirs[name])
        call = ["LMOVE", "a", "b", "LEFT", "RIGHT"]
        for asked in (["COMMAND GETKEYS", *call], ["COMMAND GETKEYSANDFLAGS", *call]):
            assert client.execute_command(*asked) == server.execute_command(*asked)
        assert client.command_list(category="geo")
        # A server's own, with all that it has to say.
        docs = ["COMMAND DOCS", "get", "lmove"]
        assert client.execute_command(*docs) == server.execute_command(*docs)


def test_configured_commands_are_served(gateway):
    with client_of(gateway, "configured") as client:
        for number in range(20):
            assert client.execute_command("my.setex", f"key{number}", 100, number) == "OK"
            assert client.get(f"key{number}") == str(number)
        with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'my.setex'"):
            client.execute_command("my.setex", "key")
        with pytest.raises(redis.ResponseError, match="names no keys that would tell"):
            client.execute_command("my.time")
        assert client.execute_command("COMMAND GETKEYS", "my.setex", "key", 1, 2) == ["key"]
    with client_of(gateway, "plain") as client:
        with pytest.raises(redis.ResponseError, match="unknown command 'my.setex'"):
            client.execute_command("my.setex", "key", 100, 1)


@pytest.mark.parametrize("protocol", [2, 3])
def test_commands_are_learnt_from_servers(gateway, protocol):
    with client_of(gateway, "learning", protocol=protocol) as client:
        # A pipeline whose first request asks.
        pipeline = client.pipeline(transaction=False)
        for number in range(20):
            pipeline.execute_command("my.setex", f"key{number}", 100, f"{protocol}-{number}")
            pipeline.get(f"key{number}")
        replies = pipeline.execute()
        assert replies[1::2] == [f"{protocol}-{number}" for number in range(20)]
        with pytest.raises(redis.ResponseError, match="unknown command 'no.such'"):
            client.execute_command("no.such", "key")
        with pytest.raises(redis.ResponseError, match="names no keys that would tell"):
            client.execute_command("my.time")
    with client_of(gateway, "alone", protocol=protocol) as client:
        seconds, _ = client.execute_command("my.time")
        assert int(seconds) > 1_700_000_000


def test_what_is_refused_says_why(gateway):
    with client_of(gateway, "plain") as client:
        for words, reason in [
            (["SHUTDOWN", "NOSAVE"], "SHUTDOWN would stop the servers of all clients"),
            (["REPLICAOF", "NO", "ONE"], "replication is between servers"),
            (["ACL", "SETUSER", "x"], "the users are those of the gateway"),
            (["SWAPDB", 0, 1], "cannot swap the databases of several servers"),
            (["DEBUG", "SEGFAULT"], "SHUTDOWN would stop the servers"),
            (["CLUSTER", "INFO"], "cluster support disabled"),
        ]:
            with pytest.raises(redis.ResponseError, match=reason):
                client.execute_command(*words)
        assert client.ping()
