"""What clients may call: `command_policy`, over real servers."""

import json
import re
import socket
import struct

import pytest
import redis as redis_py

from harness import HOST, PATIENCE, ROOT, Conn, ReplyError, newer_servers, resp, server_lines, wait_until

PROGRAMS = ["redis-server", *map(str, newer_servers())]

#: Commands with Redis's category @admin that clients may call by `application`, and why.
ALLOWED = {
    "client|kill": "closes the client's own connection only",
    "client|list": "reads; who is in the pool is one user to the servers",
    "client|unblock": "reaches calls of clients of the same host only",
    "commandlog|get": "reads",
    "commandlog|len": "reads",
    "config|get": "reads; libraries look for settings that they need, such as those of keyspace events",
    "lastsave": "reads",
    "latency|doctor": "reads",
    "latency|graph": "reads",
    "latency|histogram": "reads",
    "latency|history": "reads",
    "latency|latest": "reads",
    "module|list": "reads; libraries look which modules there are",
    "monitor": "reads what other clients of the same user ask",
    "role": "answered by the gateway",
    "slowlog|get": "reads",
    "slowlog|len": "reads",
}

#: What applications call although Redis calls it dangerous, or although it empties something.
USED = [
    ["FLUSHDB"], ["FLUSHALL"], ["SCRIPT", "LOAD", "return 1"], ["SCRIPT", "FLUSH"],
    ["FUNCTION", "LOAD", "REPLACE", "#!lua name=l\nredis.register_function('f', function() return 1 end)"],
    ["FUNCTION", "FLUSH"], ["CONFIG", "GET", "maxmemory"], ["INFO"], ["CLIENT", "LIST"], ["KEYS", "*"],
    ["CLIENT", "NO-TOUCH", "OFF"], ["SLOWLOG", "GET"], ["LASTSAVE"], ["DBSIZE"],
]


def refusal(name):
    return f"NOPERM this gateway does not let clients call {name}; see command_policy"


def pool(servers, **options):
    return {"redis": True, "hash": "murmur", "servers": server_lines(servers), **options}


def answer(conn, *words):
    try:
        return conn.call(*words)
    except ReplyError as error:
        return error


def is_refused(conn, *words):
    said = answer(conn, *words)
    return isinstance(said, ReplyError) and "command_policy" in str(said)


def administering(server):
    """Name and arity of each command of the server in the category @admin, subcommands as `a|b`."""
    with redis_py.Redis(HOST, server.port, decode_responses=True, protocol=2) as client:
        entries = client.execute_command("COMMAND INFO", *client.execute_command("COMMAND LIST"))

    def flat(entry):
        # redis-py makes dictionaries of the outer ones.
        if isinstance(entry, dict):
            yield entry["name"], entry["arity"], entry["acl_categories"], entry["subcommands"]
        elif entry:
            yield entry[0], entry[1], entry[6], entry[9]

    found = {}
    for entry in entries.values() if isinstance(entries, dict) else entries:
        for name, arity, categories, subcommands in flat(entry):
            if "@admin" in categories:
                found[name.lower()] = arity
            for sub in subcommands:
                for name, arity, categories, _ in flat(sub):
                    if "@admin" in categories:
                        found[name.lower()] = arity
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.rsplit("/")[-1])
def test_nothing_that_administers_slips_through(place, program):
    """A new command of the category @admin is refused, or on the list above with a reason."""
    server = place.redis(program=program)
    gateway = place.cashew({"alpha": pool([server])}, {"worker_processes": 1})
    found = administering(server)
    assert len(found) > 60 and "config|set" in found and "shutdown" in found
    server.call("CONFIG", "RESETSTAT")
    with gateway.connect() as conn:
        for name, arity in sorted(found.items()):
            if name in ALLOWED:
                continue
            words = name.upper().split("|")
            words += ["1"] * (abs(arity) - len(words))
            said = answer(conn, *words)
            assert isinstance(said, ReplyError), f"{words}: {said}"
    # None of them got to the server, whatever was said.
    with server.connect() as direct:
        stats = direct.call("INFO", "commandstats").decode()
    called = set(re.findall(r"cmdstat_(\S+):calls", stats)) - {"config|resetstat", "info"}
    assert not called & set(found), called
    assert gateway.stats()["alpha"]["commands_refused"] >= 12


def test_the_default_refuses_what_administers(place):
    servers = [place.redis() for _ in range(2)]
    gateway = place.cashew({"alpha": pool(servers)}, {"worker_processes": 2})
    with gateway.connect() as conn:
        for words, name in [
            (["CONFIG", "SET", "maxmemory", "1mb"], "CONFIG|SET"),
            (["config", "rewrite"], "CONFIG|REWRITE"),
            (["MIGRATE", HOST, "1", "k", "0", "5"], "MIGRATE"),
            (["SAVE"], "SAVE"),
            (["BGREWRITEAOF"], "BGREWRITEAOF"),
            (["DEBUG", "SLEEP", "0.1"], "DEBUG"),
            (["DEBUG", "OBJECT", "k"], "DEBUG|OBJECT"),
            (["CLIENT", "PAUSE", "10"], "CLIENT|PAUSE"),
            (["LATENCY", "RESET"], "LATENCY|RESET"),
            (["SLOWLOG", "RESET"], "SLOWLOG|RESET"),
            (["FUNCTION", "KILL"], "FUNCTION|KILL"),
            (["SCRIPT", "KILL"], "SCRIPT|KILL"),
        ]:
            assert str(answer(conn, *words)) == refusal(name)
        for words in USED:
            assert not isinstance(answer(conn, *words), ReplyError), words
        # As Redis does for what its ACL refuses.
        assert conn.call("MULTI") == "OK"
        assert str(answer(conn, "CONFIG", "SET", "maxmemory", "1mb")) == refusal("CONFIG|SET")
        assert str(answer(conn, "EXEC")).startswith("EXECABORT")
    assert servers[0].call("CONFIG", "GET", "maxmemory")[1] == b"0"
    assert gateway.stats()["alpha"]["commands_refused"] == 13
    assert re.search(r"the client at 127\.0\.0\.1:\d+ may not call CONFIG\|SET, see command_policy", gateway.log())
    said = gateway.order("status").stdout
    assert "pool alpha: requests refused by command_policy: 13" in said


def test_policies_and_lists(place):
    server = place.redis()
    policies = {
        "admin": "admin",
        "cache": "cache",
        "listed": "{base: application, allow: [CONFIG|SET], deny: [KEYS, GET, '@dangerous']}",
    }
    pools = {name: pool([server], command_policy=policy) for name, policy in policies.items()}
    gateway = place.cashew(pools, {"worker_processes": 1})
    with gateway.connect("admin") as conn:
        assert conn.call("CONFIG", "SET", "maxmemory", "0") == "OK"
        assert conn.call("SLOWLOG", "RESET") == "OK"
        # Nobody is served what would stop the servers.
        assert "SHUTDOWN would stop" in str(answer(conn, "SHUTDOWN"))
    with gateway.connect("cache") as conn:
        for words in (["FLUSHALL"], ["FLUSHDB"], ["FUNCTION", "FLUSH"], ["SCRIPT", "FLUSH"], ["SAVE"]):
            assert is_refused(conn, *words)
        assert conn.call("SET", "a", "1") == "OK" and conn.call("KEYS", "*") == [b"a"]
    with gateway.connect("listed") as conn:
        # By the fast path: many at once, all plain.
        conn.send(resp("STRLEN", "a") + resp("GET", "a") * 3 + resp("STRLEN", "a"))
        conn.expect(b":1\r\n" + f"-{refusal('GET')}\r\n".encode() * 3 + b":1\r\n")
        assert conn.call("CONFIG", "SET", "maxmemory", "0") == "OK"
        for words in (["KEYS", "*"], ["INFO"], ["SORT", "a"], ["CONFIG", "GET", "x"], ["CONFIG", "REWRITE"]):
            assert is_refused(conn, *words)
    said = gateway.order("status").stdout
    assert "pool listed: command_policy: application, allow CONFIG|SET, deny @DANGEROUS GET KEYS" in said


def test_commands_of_modules_obey_names(place):
    server = place.redis()
    options = {
        "commands": "[{name: x.read, arity: 2, first_key: 1, flags: [readonly]},"
                    " {name: x.drop, arity: 2, first_key: 1, flags: [write]},"
                    " {name: x.tune, arity: 2, flags: [admin]}]",
        "command_policy": "{deny: [X.DROP]}",
    }
    gateway = place.cashew({"alpha": pool([server], **options)}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert is_refused(conn, "x.drop", "a")
        assert is_refused(conn, "x.tune", "a")
        # The server knows none of them.
        assert "unknown command" in str(answer(conn, "X.READ", "a"))


def test_a_file_that_names_nothing_is_refused(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool([server])}, {"worker_processes": 1})
    gateway.configure({"alpha": pool([server], command_policy="{allow: [CONFIG|SETT], deny: ['@dangeros']}")})
    said = gateway.refused_reload()
    assert "there is no command CONFIG|SETT; did you mean CONFIG|SET?" in said
    assert "there is no category @dangeros; did you mean @dangerous?" in said


def test_a_reload_tells_what_it_changes(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool([server], command_policy="admin")}, {"worker_processes": 2})
    conns = [gateway.connect() for _ in range(6)]
    for conn in conns:
        assert conn.call("CONFIG", "SET", "maxmemory", "0") == "OK"
    gateway.configure({"alpha": pool([server])})
    said = gateway.reload("--dry-run")
    assert "pool 'alpha': command_policy: admin -> application" in said
    assert "pool 'alpha': by command_policy clients may no longer call MIGRATE" in said
    assert conns[0].call("CONFIG", "SET", "maxmemory", "0") == "OK"
    gateway.reload()
    for conn in conns:
        assert is_refused(conn, "CONFIG", "SET", "maxmemory", "0")
    assert "by command_policy clients may no longer call" in gateway.log()
    gateway.configure({"alpha": pool([server], command_policy="{base: cache, deny: [GET]}")})
    gateway.reload()
    for conn in conns:
        conn.send(resp("STRLEN", "a") + resp("GET", "a"))
        conn.expect(b":0\r\n" + f"-{refusal('GET')}\r\n".encode())
        conn.close()


# ------------------------------------------------------------------------------------------ memcached


def chore(name):
    return f"CLIENT_ERROR this gateway does not let clients call {name}; see command_policy\r\n".encode()


def packet(opcode, key=b"", opaque=b"\0\0\0\1"):
    return struct.pack(">BBHBBHI4sQ", 0x80, opcode, len(key), 0, 0, 0, len(key), opaque, 0) + key


def test_memcached_chores_are_refused(place):
    servers = [place.memcached() for _ in range(2)]
    gateway = place.cashew({"beta": {"servers": server_lines(servers)}}, {"worker_processes": 1})
    with gateway.connect() as conn:
        for line, name in [
            ("slabs automove 0", "slabs"),
            ("slabs reassign 1 2", "slabs"),
            ("lru mode flat", "lru"),
            ("lru_crawler disable", "lru_crawler"),
            ("cache_memlimit 64", "cache_memlimit"),
            ("extstore free_memchunks 1 2", "extstore"),
            ("refresh_certs", "refresh_certs"),
            ("verbosity 1", "verbosity"),
            ("stats reset", "stats reset"),
            ("stats detail on", "stats detail"),
            ("stats sizes_enable", "stats sizes_enable"),
            ("stats sizes_disable", "stats sizes_disable"),
        ]:
            conn.send(f"{line}\r\n".encode())
            conn.expect(chore(name))
        # Refused to everybody, in memcached's words.
        conn.send(b"watch\r\nshutdown\r\n")
        conn.expect(b"CLIENT_ERROR watch commands not allowed\r\nERROR: shutdown not enabled\r\n")
        conn.send(b"verbosity 1 noreply\r\nset a 0 0 1\r\nx\r\nflush_all\r\nget a\r\n")
        conn.expect(b"STORED\r\nOK\r\nEND\r\n")
    with gateway.connect() as conn:
        conn.send(packet(0x10, b"reset") + packet(0x1b) + packet(0x0a, opaque=b"last"))
        text = b"this gateway does not let clients call stats reset; see command_policy"
        head = conn.read(24)
        assert head[:2] == b"\x81\x10" and head[6:8] == b"\0\x81"
        assert conn.read(len(text)) == text
    assert gateway.stats()["beta"]["commands_refused"] >= 14


def test_memcached_policies(place):
    server = place.memcached()
    lines = server_lines([server])
    gateway = place.cashew({
        "cache": {"servers": lines, "command_policy": "cache"},
        "listed": {"servers": lines, "command_policy": "{allow: [stats|reset, verbosity], deny: [flush_all]}"},
    }, {"worker_processes": 1})
    with gateway.connect("cache") as conn:
        conn.send(b"flush_all\r\nflush_all noreply\r\nset a 0 0 1\r\nx\r\nget a\r\n")
        conn.expect(chore("flush_all") + b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n")
    with gateway.connect("listed") as conn:
        conn.send(b"stats reset\r\nverbosity 0\r\nflush_all\r\nslabs automove 0\r\n")
        conn.expect(b"RESET\r\nOK\r\n" + chore("flush_all") + chore("slabs"))


# --------------------------------------------------------------------------------------- other clients


class From(Conn):
    """A connection from another address of this machine."""

    def __init__(self, port, source):
        self.timeout = PATIENCE
        self.socket = socket.create_connection((HOST, port), PATIENCE, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()


def client_id(conn):
    return conn.call("CLIENT", "ID")


def test_clients_close_only_themselves(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool([server]), "all": pool([server], command_policy="admin")},
                           {"worker_processes": 2})
    victims = [gateway.connect("alpha") for _ in range(6)]
    with gateway.connect("alpha") as conn:
        port = victims[0].socket.getsockname()[1]
        for victim in victims:
            words = ["CLIENT", "KILL", "ID", client_id(victim)]
            assert "see command_policy" in str(answer(conn, *words))
            assert "see command_policy" in str(answer(conn, *words[:3], 10**9))
        for words in (["ADDR", f"{HOST}:{port}"], [f"{HOST}:{port}"], ["TYPE", "normal"], ["SKIPME", "no", "USER", "default"]):
            said = answer(conn, "CLIENT", "KILL", *words)
            if "SKIPME" not in words:
                assert "see command_policy" in str(said), words
            else:
                # All but who asks are out of reach.
                assert said == 1
        conn.expect_closed()
    for victim in victims:
        assert victim.call("PING") == "PONG"
        victim.close()
    # Who administers may.
    victim = gateway.connect("all")
    with gateway.connect("all") as conn:
        assert conn.call("CLIENT", "KILL", "ID", client_id(victim)) == 1
        victim.expect_closed()


def test_calls_of_other_hosts_are_out_of_reach(place):
    server = place.redis()
    gateway = place.cashew({"alpha": pool([server])}, {"worker_processes": 2})
    waiting = [gateway.connect() for _ in range(4)]
    ids = [client_id(conn) for conn in waiting]
    for conn in waiting:
        conn.send(resp("BLPOP", "nothing", 0))
    wait_until(lambda: gateway.under_way() >= 4, "all of them wait")
    for source, expected in (("127.0.0.2", 0), (HOST, 1)):
        for number in ids:
            # Some are with the other worker.
            with From(gateway.address, source) as conn:
                assert conn.call("CLIENT", "UNBLOCK", number) == expected
    for conn in waiting:
        assert conn.reply() is None
        conn.close()


def test_pauses_are_bounded_shown_and_ended(place):
    server = place.redis()
    options = {"command_policy": "admin", "client_pause_max": 30_000}
    gateway = place.cashew({"alpha": pool([server], **options)}, {"worker_processes": 2})
    conns = [gateway.connect() for _ in range(6)]
    for conn in conns:
        assert conn.call("SET", "a", "1") == "OK"
    assert "see client_pause_max" in str(answer(conns[0], "CLIENT", "PAUSE", 30_001))
    assert conns[0].call("CLIENT", "PAUSE", 30_000) == "OK"
    said = gateway.order("status").stdout
    assert re.search(r"pool alpha: CLIENT PAUSE holds all clients back for [1-9]\d{3,4} ms more", said), said
    for conn in conns:
        conn.send(resp("GET", "a"))
    # A library says more than that on a new connection.
    with redis_py.Redis(HOST, gateway.address, protocol=3, client_name="operator") as operator:
        assert operator.client_unpause()
    for conn in conns:
        assert conn.reply() == b"1"
        conn.close()
    assert "CLIENT PAUSE" not in gateway.order("status").stdout
    begin = r"pool alpha: CLIENT PAUSE by the client at 127\.0\.0\.1:\d+ \(id \d+\): all clients are held back for \d+ ms"
    wait_until(lambda: re.search(begin, gateway.log()), "the begin is logged")
    end = r"pool alpha: CLIENT UNPAUSE by the client at 127\.0\.0\.1:\d+"
    wait_until(lambda: re.search(end, gateway.log()), "the end is logged")
    with gateway.connect() as conn:
        assert conn.call("CLIENT", "PAUSE", 50, "WRITE") == "OK"
    # The pause before was ended by UNPAUSE, at the same worker or another one.
    own = r"clients that write are held back for \d+ ms.*CLIENT PAUSE is over"
    wait_until(lambda: re.search(own, gateway.log(), re.DOTALL), "its own end is logged")


def test_the_documentation_has_no_other_commands_than_these():
    """The reasons above stand in docs/commands.md as well."""
    text = (ROOT / "docs" / "commands.md").read_text()
    section = text[text.index("## Who may call what"):]
    for name in ALLOWED:
        assert f"`{name.upper().replace('|', ' ')}`" in section, name


RENAMES = {"CONFIG": "My-Config", "FLUSHALL": "", "GET": "fetch", "EVAL": "run", "SET": "put", "SUBSCRIBE": "listen"}


def same(redis_conn, conn, *words):
    """What Redis and the gateway say to the same; the gateway's own texts about subcommands have their own names."""
    answers = []
    for one in (redis_conn, conn):
        one.send(resp(*words))
        answers.append(one.raw_reply())
    assert answers[0] == answers[1], words
    return answers[0]


@pytest.mark.parametrize("audited", [None, "[write]", "all"])
def test_commands_have_other_names_as_in_redis(place, audited):
    options = [word for name, other in RENAMES.items() for word in ("--rename-command", name, other or '""')]
    renamed, server = place.redis(*options), place.redis()
    policy = {"base": "admin", "rename": RENAMES}
    audit = {"audit_log": f"{{file: {place.directory / 'audit'}, commands: {audited}}}"} if audited else {}
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server]), "command_policy": json.dumps(policy)}},
                           {"worker_processes": 1, **audit})
    with renamed.connect() as one, gateway.connect() as other:
        for words in (["GET", "a"], ["get", "a"], ["PUT", "a", "1"], ["fetch", "a"], ["FETCH"], ["FETCH", "a", "b"], ["SET", "a", "2"],
                      ["FLUSHALL"], ["flushall", "async"], ["CONFIG", "GET", "maxmemory-samples"], ["MY-CONFIG", "GET", "maxmemory-samples"],
                      ["my-config", "set", "maxmemory-samples", "7"], ["PUT", "b", "x" * 2_000_000], ["SET", "b", "y" * 2_000_000], ["STRLEN", "b"],
                      ["MULTI"], ["FETCH", "a"], ["STRLEN", "a"], ["EXEC"], ["MULTI"], ["GET", "a"], ["EXEC"],
                      ["RUN", "return redis.pcall('strlen', KEYS[1])", "1", "a"], ["EVAL", "return 1", "0"], ["MGET", "a", "c"],
                      ["COMMAND", "GETKEYS", "FETCH", "a"], ["COMMAND", "GETKEYS", "GET", "a"], ["COMMAND", "GETKEYS", "PUT", "a", "b"],
                      ["ACL", "DRYRUN", "default", "GET", "a"], ["ACL", "DRYRUN", "default", "fetch", "a"],
                      ["ACL", "DRYRUN", "default", "FLUSHALL"], ["LISTEN", "c"], ["UNSUBSCRIBE", "c"], ["SUBSCRIBE", "c"]):
            same(one, other, *words)
        for name in ("get", "fetch", "FLUSHALL", "config", "my-config|get", "put", "set", "run"):
            described = [conn.call("COMMAND", "INFO", name)[0] for conn in (one, other)]
            assert [it and it[0] for it in described][0] == [it and it[0] for it in described][1], name
            documented = [conn.call("COMMAND", "DOCS", name) for conn in (one, other)]
            assert documented[0] == documented[1], name
        listed = other.call("COMMAND", "LIST")
        assert b"get" in listed and b"flushall" not in listed and b"config|get" in listed
        # A pipeline of what is plain elsewhere, among what is.
        other.send((resp("PUT", "p", "1") + resp("FETCH", "p") + resp("GET", "p") + resp("INCR", "p")) * 100)
        for number in range(100):
            assert [other.reply(), other.reply()] == ["OK", b"1"]
            assert "unknown command 'GET', with args beginning with: 'p'" in str(other.reply())
            assert other.reply() == 2, number
        assert server.call("GET", "p") == b"2"
        # A reload gives names back, and tells of it.
        gateway.configure(pools={"alpha": {**gateway.pools["alpha"], "command_policy": "admin"}})
        assert "rename CONFIG to my-config EVAL to run FLUSHALL to nothing" in gateway.reload()
        assert other.call("GET", "p") == b"2"
        assert other.error("FETCH", "p").startswith("ERR unknown command")


def test_users_rules_are_about_the_own_names(place):
    server = place.redis()
    policy = {"base": "admin", "rename": {"GET": "fetch"}}
    users = {"default": "off", "app": "on >p ~a* +get +ping"}
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server]), "command_policy": json.dumps(policy),
                                      "users": json.dumps(users)}}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert conn.error("FETCH", "a") == "NOAUTH Authentication required."
        conn.call("AUTH", "app", "p")
        assert conn.call("FETCH", "a") is None
        assert conn.error("FETCH", "b").startswith("NOPERM")
        assert conn.error("GET", "a").startswith("ERR unknown command")
