"""Users of memcached with a key prefix: they see what a memcached of their own would tell them, and nothing of others."""

import base64
import random

import pytest

import memcached_stack
import test_memcached_binary as binary
import test_memcached_meta as meta
import test_memcached_raw as raw
from harness import cut, server_lines
from test_memcached_binary import GAT, GATKQ, GETK, GETKQ, GETQ, LAST, MIB, NOOP, SASL_AUTH, SET, SETQ, packet, packets, stored
from test_memcached_binary import test_a_long_quiet_batch_over_all_servers as test_quiet_packets  # noqa: F401
from test_memcached_binary import test_both_protocols_on_one_port, test_uniques_go_in_and_out  # noqa: F401
from test_memcached_binary import test_random_streams as test_random_packets  # noqa: F401
from test_memcached_meta import test_cas_goes_in_and_out, test_quiet_gets_over_servers_are_fenced_by_mn  # noqa: F401
from test_memcached_meta import test_random_streams as test_random_metas  # noqa: F401
from test_memcached_raw import test_a_get_of_many_keys_may_be_longer_than_a_line, test_gets_and_cas  # noqa: F401
from test_memcached_raw import test_a_slow_reader_does_not_delay_others, test_version  # noqa: F401
from test_memcached_raw import test_pipeline_of_everything_in_pieces  # noqa: F401
from test_users import binary_call, users

RULES = "on >p ~* +@all"
TENANTS = {
    "ann": {"rules": RULES, "key_prefix": "app1:"},
    "bob": {"rules": RULES, "key_prefix": "app2:"},
    "root": RULES,
}
TOO_LONG = b"CLIENT_ERROR key is too long with the prefix of the user\r\n"


class Stack(memcached_stack.Stack):
    """Whoever comes has a prefix. Tests of others, which are imported, have it as well."""

    def __init__(self, place):
        super().__init__(place)
        [pool] = self.gateway.pools.values()
        everybody = {"default": {"rules": "on nopass ~* +@all", "key_prefix": "app1:"}}
        self.gateway.configure(pools={"beta": {**pool, "users": users(everybody)}})
        self.gateway.reload()


# What names no key, or has no room for the prefix.
LEFT_OUT = {"get 250", "no statistics", "sasl without users", "flush", "flush later", "flush noreply", "verbosity", "keys",
            "keys of any bytes"}


@pytest.mark.parametrize("kind", ["whole", "bytes", "random"])
@pytest.mark.parametrize("module, name", [(module, name) for module in (raw, meta, binary)
                                          for name in sorted(module.CASES.keys() - LEFT_OUT)])
def test_answers_as_a_memcached_of_its_own_does(stack, module, name, kind):
    data = module.CASES[name]
    expected = module.answer(stack.plain.port, data)
    assert module.answer(stack.gateway.address, data, cut(kind, len(data))) == expected


def gateway_of(place, servers=1, rules=TENANTS, workers=1, **options):
    backends = [place.memcached(*options.pop("arguments", ())) for _ in range(servers)]
    pool = {"servers": server_lines(backends), "users": users(rules), "command_policy": "admin", **options}
    return place.cashew({"beta": pool}, {"worker_processes": workers}), backends


def login(gateway, user):
    conn = gateway.connect()
    text = f"{user} p".encode()
    conn.send(b"set x 0 0 %d\r\n%b\r\n" % (len(text), text))
    conn.expect(b"STORED\r\n")
    return conn


def ask(conn, request, reply):
    conn.send(request)
    conn.expect(reply)


def test_each_has_keys_of_its_own(place):
    gateway, [server] = gateway_of(place)
    with login(gateway, "ann") as ann, login(gateway, "bob") as bob, login(gateway, "root") as root:
        ask(ann, b"set a 0 0 1\r\n1\r\n", b"STORED\r\n")
        ask(bob, b"get a app1:a\r\n", b"END\r\n")
        ask(bob, b"set a 0 0 1\r\n2\r\n", b"STORED\r\n")
        ask(root, b"get a app1:a app2:a\r\n", b"VALUE app1:a 0 1\r\n1\r\nVALUE app2:a 0 1\r\n2\r\nEND\r\n")
        ask(ann, b"delete app2:a\r\nmd app2:a\r\nmg YXBwMjph b v\r\n", b"NOT_FOUND\r\nNF\r\nEN\r\n")
        ask(ann, b"mg a k v Oapp1:\r\n", b"VA 1 ka Oapp1:\r\n1\r\n")
        ask(ann, b"get a\r\n", b"VALUE a 0 1\r\n1\r\nEND\r\n")
        ann.send(b"me a\r\n")
        assert ann.read_line().startswith(b"ME a exp=")
        # What is stored in base64 is told in base64.
        ask(ann, b"ms AAE= 1 b\r\nx\r\nmg AAE= b k v\r\n", b"HD\r\nVA 1 kAAE= b\r\nx\r\n")
        ask(root, b"mg " + base64.b64encode(b"app1:\0\1") + b" b v\r\n", b"VA 1\r\nx\r\n")
    # Packets, by a client that is one and then the other, without a pause.
    with gateway.connect() as conn:
        quiet = packet(GETKQ, b"a", opaque=b"0001") + packet(GETKQ, b"app2:a") + packet(GETK, b"app2:a", opaque=b"0002")
        conn.send(packet(SASL_AUTH, b"PLAIN", b"\0ann\0p") + quiet + packet(SASL_AUTH, b"PLAIN", b"\0bob\0p") + quiet
                  + packet(SASL_AUTH, b"PLAIN", b"\0root\0p") + quiet + packet(NOOP, opaque=b"last"))
        found = packets(conn.read_until(LAST)[: -len(LAST)])
        login_reply = (SASL_AUTH, 0, b"opaq", b"", b"", b"Authenticated")
        miss = (GETK, 1, b"0002", b"", b"app2:a", b"")
        assert [reply for reply in found if reply[0] != GETK or reply[1] == 0] == [
            login_reply, (GETKQ, 0, b"0001", bytes(4), b"a", b"1"),
            login_reply, (GETKQ, 0, b"0001", bytes(4), b"a", b"2"),
            login_reply, (GETKQ, 0, b"opaq", bytes(4), b"app2:a", b"2"), (GETK, 0, b"0002", bytes(4), b"app2:a", b"2")]
        assert [reply[4] for reply in found if reply[1] == 1] == [miss[4]] * 2


def test_keys_that_are_too_long(place):
    gateway, _ = gateway_of(place)
    fits, longer = b"k" * 245, b"k" * 246
    with login(gateway, "ann") as ann, gateway.connect() as packed:
        ask(ann, b"set %b 0 0 1\r\n1\r\nget %b\r\n" % (fits, fits), b"STORED\r\nVALUE %b 0 1\r\n1\r\nEND\r\n" % fits)
        ask(ann, b"set %b 0 0 1\r\n1\r\nget %b\r\nget a %b\r\n" % (longer, longer, longer), TOO_LONG * 3)
        ask(ann, b"set %b 0 0 1 noreply\r\n1\r\nget %b\r\n" % (longer, b"a " * 200 + longer), TOO_LONG)
        ask(ann, b"mg %b b v\r\n" % base64.b64encode(b"x" * 184), TOO_LONG)
        ask(ann, b"mg %b b v\r\nmn\r\n" % base64.b64encode(b"x" * 180), b"EN\r\nMN\r\n")
        assert binary_call(packed, SASL_AUTH, b"PLAIN", b"\0ann\0p")[0] == 0
        assert binary_call(packed, SET, fits, b"1", bytes(8))[0] == 0
        assert binary_call(packed, SET, longer, b"1", bytes(8)) == (4, TOO_LONG[13:-2])
        assert binary_call(packed, GETQ, longer) == (4, TOO_LONG[13:-2])
        assert binary_call(packed, NOOP)[0] == 0


@pytest.mark.parametrize("servers", [1, 3])
def test_very_many_keys(place, servers):
    """Asked a part at a time; a line of gat is never longer than servers read."""
    gateway, _ = gateway_of(place, servers, workers=2)
    keys = [b"%d" % n for n in range(3000)]
    with login(gateway, "ann") as ann, login(gateway, "bob") as bob:
        for conn, value in ((ann, b"1"), (bob, b"2")):
            conn.send(b"".join(b"set %b 0 0 1 noreply\r\n%b\r\n" % (key, value) for key in keys) + b"mn\r\n")
            conn.expect(b"MN\r\n")
        for conn, value in ((ann, b"1"), (bob, b"2")):
            ask(conn, b"get " + b" ".join(keys) + b"\r\n",
                b"".join(b"VALUE %b 0 1\r\n%b\r\n" % (key, value) for key in keys) + b"END\r\n")
            for count in (2, 127, 128, 129, 250, 400, 500):
                line = b"gat 0 " + b" ".join(keys[:count]) + b"\r\n"
                assert len(line) < 2048
                ask(conn, line + b"mn\r\n", b"".join(b"VALUE %b 0 1\r\n%b\r\n" % (key, value) for key in keys[:count]) + b"END\r\nMN\r\n")


TREES = {
    "failover": "{prefix: {'': {failover: [a, b]}}}",
    "copies": "{prefix: {'': {all_sync: [a, b]}}}",
    "rewrite": "{prefix: {'app1:': {to: a, strip: true}, '': b}}",
    "some forked": "{prefix: {'app1:7': {miss_failover: [a, b]}, 'app2:': b, '': a}}",
    # By the names that clients have there would be another way.
    "by full keys": "{prefix: {'app1:': a, 'app2:': b, '': {failover: [a, b]}}}",
    "nowhere else": "{prefix: {'app1:': a, 'app2:': b}}",
}


@pytest.mark.parametrize("tree", TREES)
def test_routes_know_full_keys_only(place, tree):
    """However many keys are asked for."""
    pools = {name: {"listen": None, "servers": server_lines([place.memcached()])} for name in "ab"}
    options = {"route": TREES[tree], "users": users(TENANTS), "command_policy": "admin"}
    gateway = place.cashew({"beta": options, **pools}, {"worker_processes": 1})
    keys = [b"%d" % n for n in range(300)]
    with login(gateway, "ann") as ann, login(gateway, "bob") as bob:
        for conn, value in ((ann, b"1"), (bob, b"2")):
            conn.send(b"".join(b"set %b 0 0 1 noreply\r\n%b\r\n" % (key, value) for key in keys[::2]) + b"mn\r\n")
            conn.expect(b"MN\r\n")
        for conn, value, others in ((ann, b"1", b"app2:"), (bob, b"2", b"app1:")):
            for verb in (b"get ", b"gat 0 "):
                for count in (1, 2, 3, 100, 128, 129, 250, 300):
                    found = b"".join(b"VALUE %b 0 1\r\n%b\r\n" % (key, value) for key in keys[:count:2])
                    ask(conn, verb + b" ".join(keys[:count]) + b"\r\nmn\r\n", found + b"END\r\nMN\r\n")
                    # memcached takes no longer line for gat.
                    ask(conn, verb + b" ".join(others + key for key in keys[:min(count, 200)]) + b"\r\n", b"END\r\n")
            # So many are asked for in parts, unless one of them goes several ways.
            more = keys[:250] + [b"k" * 245]
            ask(conn, b"get " + b" ".join(more) + b"\r\n",
                b"".join(b"VALUE %b 0 1\r\n%b\r\n" % (key, value) for key in keys[:250:2]) + b"END\r\n")
            ask(conn, b"get " + b" ".join(more) + b"k\r\n", TOO_LONG)
        ask(ann, b"mg 0 k v\r\nmg 1 v\r\ndelete 0\r\nget 0 2\r\n", b"VA 1 k0\r\n1\r\nEN\r\nDELETED\r\nVALUE 2 0 1\r\n1\r\nEND\r\n")
        ask(bob, b"get 0\r\n", b"VALUE 0 0 1\r\n2\r\nEND\r\n")


def test_large_values(place):
    gateway, _ = gateway_of(place, arguments=("-I", "16m", "-m", "256"))
    value = b"VALUE app1:a 0 1\r\n" + random.Random(1).randbytes(8 * MIB)
    with login(gateway, "ann") as ann, login(gateway, "bob") as bob:
        ask(ann, b"set big 7 0 %d\r\n%b\r\n" % (len(value), value), b"STORED\r\n")
        ask(bob, b"get big\r\n", b"END\r\n")
        for request, head, foot in ((b"get big", b"VALUE big 7 %d", b"\r\nEND\r\n"), (b"mg big k v f", b"VA %d kbig f7", b"\r\n"),
                                    (b"get big a big", b"VALUE big 7 %d", None)):
            ann.send(request + b"\r\n")
            whole = head % len(value) + b"\r\n" + value
            ann.expect(whole + (foot or b"\r\n" + whole + b"\r\nEND\r\n"))
        # What is too large drops what is stored, of its own and not of others.
        for conn in (ann, bob):
            ask(conn, b"set a 0 0 1\r\n1\r\n", b"STORED\r\n")
        pool = {**gateway.pools["beta"], "request_size_max": 1_000_000}
        gateway.configure(pools={"beta": pool})
        gateway.reload()
        ask(ann, b"set a 0 0 2000000\r\n" + bytes(2_000_000) + b"\r\nget a\r\n", b"SERVER_ERROR object too large for cache\r\nEND\r\n")
        ask(bob, b"get a\r\n", b"VALUE a 0 1\r\n1\r\nEND\r\n")


def test_what_is_about_all_keys_is_refused(place):
    gateway, _ = gateway_of(place)
    with login(gateway, "ann") as ann, gateway.connect() as packed:
        for line in (b"flush_all", b"stats", b"stats items", b"verbosity 1", b"slabs automove 1",
                     b"cache_memlimit 64", b"lru tune 10 20 0.1 2"):
            ask(ann, line + b"\r\n", b"CLIENT_ERROR %b is not for users with a key prefix\r\n" % line.split()[0])
        for line in (b"lru_crawler metadump all", b"lru_crawler mgdump all", b"stats cachedump 1 0", b"watch fetchers", b"shutdown", b"debug x"):
            ann.send(line + b"\r\n")
            assert ann.read_line().startswith((b"ERROR", b"CLIENT_ERROR")), line
        ann.send(b"flush_all noreply\r\nversion\r\n")
        assert ann.read_line().startswith(b"VERSION ")
        assert binary_call(packed, SASL_AUTH, b"PLAIN", b"\0ann\0p")[0] == 0
        for opcode, extras, name in ((0x08, b"", b"flush"), (0x10, b"", b"stat"), (0x1b, bytes(4), b"verbosity")):
            assert binary_call(packed, opcode, b"", b"", extras) == (0x81, name + b" is not for users with a key prefix")


def test_rules_are_about_the_clients_names(place):
    rules = {"ann": {"rules": "on >p ~a* ~app1:s* +@all", "key_prefix": "app1:"}}
    gateway, _ = gateway_of(place, rules=rules)
    denied = b"CLIENT_ERROR user has no permissions to access one of the keys\r\n"
    with login(gateway, "ann") as ann:
        ask(ann, b"set a 0 0 1\r\n1\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n")
        ask(ann, b"get s\r\nget b\r\nget app1:s\r\nget app1:a\r\nmg Yg== b\r\n", denied * 2 + b"END\r\nEND\r\n" + denied)
        ask(ann, b"get " + b" ".join([b"app1:s"] * 200 + [b"app1:a"]) + b"\r\n", b"END\r\n")
        ask(ann, b"get " + b" ".join([b"app1:s"] * 200 + [b"b"]) + b"\r\n", denied)


def test_moves_and_reloads(place):
    gateway, _ = gateway_of(place)
    with login(gateway, "ann") as ann, login(gateway, "bob") as bob, login(gateway, "root") as root:
        for workers in (3, 1, 2):
            gateway.configure(worker_processes=workers)
            gateway.reload()
            ask(ann, b"set a 0 0 1\r\n%d\r\nget a b\r\n" % workers, b"STORED\r\nVALUE a 0 1\r\n%d\r\nEND\r\n" % workers)
            ask(root, b"get app1:a\r\n", b"VALUE app1:a 0 1\r\n%d\r\nEND\r\n" % workers)
        rules = {**TENANTS, "ann": {"rules": RULES, "key_prefix": "other:"}}
        gateway.configure(pools={"beta": {**gateway.pools["beta"], "users": users(rules)}})
        assert "user 'ann': key_prefix: app1: -> other:" in gateway.reload()
        ann.expect_closed()
        ask(bob, b"get a\r\n", b"END\r\n")
        rules["ann"] = {"rules": RULES, "key_prefix": "x y"}
        gateway.configure(pools={"beta": {**gateway.pools["beta"], "users": users(rules)}})
        assert "no key can begin with its key_prefix" in gateway.refused_reload()


@pytest.mark.parametrize("on_failure", ["error", "miss"])
def test_a_server_that_is_gone(place, on_failure):
    gateway, [server] = gateway_of(place, on_failure=on_failure, server_retry_timeout=100_000, auto_eject_hosts=False)
    with login(gateway, "ann") as ann:
        ask(ann, b"get a\r\n", b"END\r\n")
        server.stop()
        ann.send(b"mg a k v Oapp1:\r\nget a b\r\n")
        if on_failure == "miss":
            ann.expect(b"EN ka Oapp1:\r\nEND\r\n")
        else:
            assert all(line.startswith(b"SERVER_ERROR") and b"app1:" not in line for line in (ann.read_line(), ann.read_line()))


SECRET = b"secret-of-bob"
KEYS = [b"a", b"b", b"n", b"app2:a", b"../app2:a", b"app1:a", b"app2:", b"noreply", b"0", b"q", b"b64", b"\xff\xfe", b"k" * 245, b"k" * 246,
        base64.b64encode(b"app2:a"), base64.b64encode(b"a\r\nget app2:a"), base64.b64encode(b"app2:a\0"), b"YQ==", b"=", b"A===", b"*"]
FLAGS = [b"v", b"k", b"b", b"b", b"q", b"t", b"c", b"s", b"f", b"h", b"l", b"N30", b"R30", b"T30", b"E7", b"C1", b"I", b"MA", b"MS", b"MI",
         b"D5", b"J1", b"Oapp2:a", b"kapp2:a", b"Pa", b"x", b"S5"]
VERBS = [b"get", b"gets", b"gat", b"gats", b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"delete", b"incr", b"decr", b"touch",
         b"mg", b"ms", b"md", b"ma", b"me", b"mn", b"flush_all", b"stats", b"verbosity", b"lru_crawler", b"lru", b"slabs", b"watch", b"bget",
         b"cache_memlimit", b"debug", b"quit2", b"mcmd"]
WORDS = [b"0", b"1", b"5", b"-1", b"30", b"noreply", b"metadump", b"all", b"cachedump", b"items", b"app2:a", b"\0app2:a", b"4294967296"]


def hostile_line(choose):
    verb = choose.choice(VERBS)
    keys = [choose.choice(KEYS) for _ in range(choose.choice([1, 1, 1, 2, 3, 150]))]
    data = choose.choice([b"x", b"", b"get app2:a\r\n", SECRET[::-1]])
    stores = verb in (b"set", b"add", b"replace", b"append", b"prepend", b"cas")
    if choose.random() < 0.1 and not stores and verb != b"ms":
        return verb + b" " + b" ".join(choose.choice(KEYS + WORDS + FLAGS) for _ in range(choose.randrange(6))) + b"\r\n"
    if stores:
        more = b" 1" * (verb == b"cas") + choose.choice([b"", b"", b" noreply"])
        return b"%b %b 0 0 %d%b\r\n%b\r\n" % (verb, keys[0], len(data), more, data)
    if verb in (b"mg", b"ms", b"md", b"ma", b"me"):
        flags = b"".join(b" " + choose.choice(FLAGS) for _ in range(choose.randrange(5)))
        size = b" %d" % len(data) if verb == b"ms" else b""
        return b"%b %b%b%b\r\n" % (verb, keys[0], size, flags) + (data + b"\r\n" if verb == b"ms" else b"")
    if verb in (b"gat", b"gats"):
        return b"%b 30 %b\r\n" % (verb, b" ".join(keys[:3]))
    if verb in (b"incr", b"decr", b"touch"):
        return b"%b %b %b\r\n" % (verb, keys[0], choose.choice(WORDS))
    if verb in (b"get", b"gets", b"bget", b"delete"):
        return b"%b%b%b\n" % (verb, choose.choice([b" ", b"  "]), b" ".join(keys) + choose.choice([b"\r", b"", b" \r"]))
    return verb + b"".join(b" " + choose.choice(WORDS) for _ in range(choose.randrange(4))) + b"\r\n"


def hostile_packet(choose):
    opcode = choose.choice(list(range(0x27)) + [0x40, 0xff])
    if opcode in (0x07, 0x17, SASL_AUTH, 0x22):
        opcode = GAT
    key = choose.choice(KEYS + [b"a\r\nget app2:a\r\n", b"\0", b" app2:a"])
    extras = {SET: 8, 2: 8, 3: 8, SETQ: 8, 0x12: 8, 0x13: 8, 5: 20, 6: 20, 0x15: 20, 0x16: 20, 0x1c: 4, GAT: 4, 0x1e: 4, 0x23: 4, GATKQ: 4}
    takes_value = opcode in (1, 2, 3, 0x0e, 0x0f, 0x11, 0x12, 0x13, 0x19, 0x1a)
    has_no_key = opcode in (0x08, 0x0a, 0x0b, 0x18, 0x1b, 0x20)
    return packet(opcode, b"" if has_no_key else key, b"x" if takes_value else b"", bytes(extras.get(opcode, 0)), cas=choose.choice([0, 0, 1]))


def state(server):
    """All that is not the tenant's."""
    found = []
    with server.connect() as conn:
        for key in (b"a", b"b", b"n", b"app2:a", b"app2:b", b"app2:n", b"app1:a", b"app2:"):
            conn.send(b"mg %b v f t\r\n" % key)
            line = conn.read_line()
            found.append((key, line, conn.read_line() if line.startswith(b"VA") else None))
    return found


@pytest.mark.parametrize("speaks", ["text", "packets"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_request_reaches_what_others_have(place, speaks, seed):
    """10,000 requests of somebody who knows the prefixes."""
    rules = {**TENANTS, "ann": {"rules": RULES, "key_prefix": "of-ann:"}}
    gateway, [server] = gateway_of(place, rules=rules)
    with server.connect() as conn:
        for key in (b"a", b"b", b"app2:a", b"app2:b", b"app1:a", b"app2:"):
            ask(conn, b"set %b 9 0 %d\r\n%b\r\n" % (key, len(SECRET), SECRET), b"STORED\r\n")
        ask(conn, b"set n 9 0 1\r\n5\r\nset app2:n 9 0 1\r\n5\r\n", b"STORED\r\n" * 2)
    before = state(server)
    choose = random.Random(seed)
    done, answered = 0, 0

    def connect():
        if speaks == "text":
            return login(gateway, "ann")
        conn = gateway.connect()
        assert binary_call(conn, SASL_AUTH, b"PLAIN", b"\0ann\0p")[0] == 0
        return conn

    conn = connect()
    while done < 10_000:
        make, end, last = ((hostile_line, b"mg the-last-one k O1\r\n", b"EN\r\n") if speaks == "text"
                           else (hostile_packet, packet(NOOP, opaque=b"last"), LAST))
        batch = [make(choose) for _ in range(choose.choice([1, 1, 2, 20]))]
        done += len(batch)
        conn.send(b"".join(batch))
        # Whatever the rest of a line or of a value was taken for.
        conn.send(b"\r\nmn\r\nversion\r\n" if speaks == "text" else end)
        try:
            seen = conn.read_until(b"\r\nVERSION " if speaks == "text" else last, 10)
            if speaks == "text":
                conn.read_line()
        except (EOFError, ConnectionError):
            seen = bytes(conn.buffer)
            conn.close()
            conn = connect()
        assert SECRET not in seen, (batch, seen)
        # It knows nothing of its own prefix, either.
        assert b"of-ann:" not in seen and base64.b64encode(b"of-ann:")[:8] not in seen, (batch, seen)
        answered += seen.count(b"STORED") + seen.count(b"VALUE ") + seen.count(b"HD") + seen.count(b"\x81\x00")
    conn.close()
    assert state(server) == before
    assert answered > 500, answered
