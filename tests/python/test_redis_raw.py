"""What a Redis client sees, byte for byte, through bare sockets.

Where the expected bytes are not written here they come from a real redis-server that gets the
same bytes: keys tagged `{t}` all live on one server, so a gateway must answer as that server does.
"""

import random
import re
import threading
import time

import pytest

from harness import Conn, HOST, PATIENCE, ReplyError, cut, in_time, measured, resp, server_lines, wait_until

MIB = 1 << 20


class Stack:
    """Three redis-servers with the gateway in front, and one more to compare with."""

    def __init__(self, place):
        self.servers = [place.redis() for _ in range(3)]
        self.plain = place.redis()
        self.password = "let me in"
        pool = {
            "redis": True,
            "command_policy": "admin",
            "hash": "murmur",
            "hash_tag": '"{}"',
            "servers": server_lines(self.servers, ["one", "two", "three"]),
        }
        locked = [place.redis("--requirepass", "secret") for _ in range(2)]
        self.locked_plain = place.redis("--requirepass", "secret")
        auth_pool = {
            "redis": True,
            "redis_auth": "secret",
            "servers": server_lines(locked),
        }
        self.gateway = place.cashew({"alpha": pool, "locked": auth_pool}, {"worker_processes": 2})

    def reset(self):
        for server in (*self.servers, self.plain):
            server.reset()

    def holders(self, key):
        """The servers on which a key exists, by index."""
        return [i for i, server in enumerate(self.servers) if server.call("EXISTS", key)]

    def keys_on(self, server, count, prefix="key"):
        """Keys that live on the server with that index."""
        found = []
        with self.gateway.connect() as conn, self.servers[server].connect() as direct:
            for at in range(0, 100_000, 500):
                batch = [f"{prefix}:{n}" for n in range(at, at + 500)]
                conn.send(b"".join(resp("SET", key, "x") for key in batch))
                conn.expect(b"+OK\r\n" * len(batch))
                direct.send(b"".join(resp("EXISTS", key) for key in batch))
                found += [key for key in batch if direct.reply()]
                conn.send(resp("DEL", *batch))
                assert conn.reply() == len(batch)
                if len(found) >= count:
                    return found[:count]
        raise AssertionError("no such keys")


# ------------------------------------------------------------------------------------ transcripts

BIG = b"v" * 100_000

TRANSCRIPTS = {
    "set and get": [
        (resp("SET", "foo", "bar"), b"+OK\r\n"),
        (resp("GET", "foo"), b"$3\r\nbar\r\n"),
        (resp("GET", "nothing"), b"$-1\r\n"),
    ],
    "empty key and value": [
        (resp("SET", "", "for the empty key"), b"+OK\r\n"),
        (resp("GET", ""), b"$17\r\nfor the empty key\r\n"),
        (resp("SET", "k", ""), b"+OK\r\n"),
        (resp("GET", "k"), b"$0\r\n\r\n"),
        (resp("MSET", "", "1", "a", "", "b", "3"), b"+OK\r\n"),
        (resp("MGET", "b", "", "a"), b"*3\r\n$1\r\n3\r\n$1\r\n1\r\n$0\r\n\r\n"),
        (resp("DEL", "", "a", "b"), b":3\r\n"),
    ],
    "binary safe": [
        (resp("SET", b"\0\xff\r\n\r\n", b"\r\n$-1\r\n\0*"), b"+OK\r\n"),
        (resp("GET", b"\0\xff\r\n\r\n"), b"$9\r\n\r\n$-1\r\n\0*\r\n"),
    ],
    "any case": [
        (resp("sEt", "foo", "bar"), b"+OK\r\n"),
        (resp("gEt", "foo"), b"$3\r\nbar\r\n"),
        (resp("pInG"), b"+PONG\r\n"),
        (resp("mset", "a", "1", "b", "2", "c", "3"), b"+OK\r\n"),
        (resp("mGeT", "c", "b", "a", "d"), b"*4\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n1\r\n$-1\r\n"),
    ],
    "integers and types": [
        (resp("INCR", "n"), b":1\r\n"),
        (resp("DECRBY", "n", "43"), b":-42\r\n"),
        (resp("INCRBYFLOAT", "n", "0.5"), b"$5\r\n-41.5\r\n"),
        (resp("TYPE", "n"), b"+string\r\n"),
        (resp("TYPE", "none"), b"+none\r\n"),
        (resp("LPUSH", "n", "x"), b"-WRONGTYPE Operation against a key holding the wrong kind of "
         b"value\r\n"),
        (resp("EXPIRE", "n", "100"), b":1\r\n"),
        (resp("TTL", "n"), b":100\r\n"),
        (resp("PERSIST", "n"), b":1\r\n"),
        (resp("TTL", "n"), b":-1\r\n"),
    ],
    "a list": [
        (resp("RPUSH", "l", "a", "b", "c"), b":3\r\n"),
        (resp("LRANGE", "l", "0", "-1"), b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
        (resp("LPOP", "l"), b"$1\r\na\r\n"),
        (resp("LPOP", "none"), b"$-1\r\n"),
        (resp("LPOP", "none", "2"), b"*-1\r\n"),
        (resp("LRANGE", "none", "0", "-1"), b"*0\r\n"),
    ],
    "ping and echo": [
        (resp("PING"), b"+PONG\r\n"),
        (resp("PING", "hello"), b"$5\r\nhello\r\n"),
        (resp("PING", ""), b"$0\r\n\r\n"),
        (resp("ECHO", "a\r\nb"), b"$4\r\na\r\nb\r\n"),
        (resp("PING", "a", "b"), b"-ERR wrong number of arguments for 'ping' command\r\n"),
        (resp("ECHO"), b"-ERR wrong number of arguments for 'echo' command\r\n"),
    ],
    "select": [
        (resp("SELECT", "0"), b"+OK\r\n"),
        (resp("SET", "foo", "bar"), b"+OK\r\n"),
        (resp("SELECT"), b"-ERR wrong number of arguments for 'select' command\r\n"),
    ],
    "inline": [
        (b"PING\r\n", b"+PONG\r\n"),
        (b"ping\n", b"+PONG\r\n"),
        (b"SET foo bar\r\n", b"+OK\r\n"),
        (b"  GET   foo  \r\n", b"$3\r\nbar\r\n"),
        (b"\r\n\r\n\r\nGET foo\r\n", b"$3\r\nbar\r\n"),
        (b"SET 'a b' \"c\\x00\\n\\\"d\"\r\n", b"+OK\r\n"),
        (b"GET \"a b\"\r\n", b"$5\r\nc\0\n\"d\r\n"),
        (b"MSET x 1 y 2 z 3\r\n", b"+OK\r\n"),
        (b"MGET z y x none\r\n", b"*4\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n1\r\n$-1\r\n"),
        (b"DEL x y z none\n", b":3\r\n"),
        (b"ECHO ''\r\n", b"$0\r\n\r\n"),
    ],
    "an error disturbs nobody": [
        (resp("SET", "s", "text"), b"+OK\r\n"),
        (resp("INCR", "s"), b"-ERR value is not an integer or out of range\r\n"),
        (resp("GET", "s"), b"$4\r\ntext\r\n"),
        (resp("GET"), b"-ERR wrong number of arguments for 'get' command\r\n"),
        (resp("NOSUCH", "a"), b"-ERR unknown command 'NOSUCH', with args beginning with: 'a' \r\n"),
        (resp("MSET", "a", "1", "b"), b"-ERR wrong number of arguments for 'mset' command\r\n"),
        (resp("MGET"), b"-ERR wrong number of arguments for 'mget' command\r\n"),
        (resp("GET", "s"), b"$4\r\ntext\r\n"),
    ],
    "counts over servers": [
        (resp("MSET", *[w for n in range(50) for w in (f"k{n}", n)]), b"+OK\r\n"),
        (resp("EXISTS", *[f"k{n}" for n in range(60)]), b":50\r\n"),
        (resp("TOUCH", *[f"k{n}" for n in range(60)]), b":50\r\n"),
        (resp("DEL", *[f"k{n}" for n in range(20)]), b":20\r\n"),
        (resp("UNLINK", *[f"k{n}" for n in range(60)]), b":30\r\n"),
        (resp("EXISTS", *[f"k{n}" for n in range(60)]), b":0\r\n"),
    ],
    "duplicate keys": [
        (resp("MSET", "a", "1", "b", "2", "c", "3", "a", "4", "b", "5"), b"+OK\r\n"),
        (resp("MGET", "a", "b", "a", "c", "b", "a"),
         b"*6\r\n$1\r\n4\r\n$1\r\n5\r\n$1\r\n4\r\n$1\r\n3\r\n$1\r\n5\r\n$1\r\n4\r\n"),
        (resp("EXISTS", "a", "b", "c", "a", "none", "a"), b":5\r\n"),
        (resp("DEL", "a", "b", "a", "b", "a"), b":2\r\n"),
    ],
    "large keys": [
        (resp("SET", "k" * 462, "462"), b"+OK\r\n"),
        (resp("SET", "k" * 463, "463"), b"+OK\r\n"),
        (resp("SET", "k" * 16_400, "16400"), b"+OK\r\n"),
        (resp("SET", "k" * 200_000, "200000"), b"+OK\r\n"),
        (resp("MGET", "k" * 16_400, "k" * 463, "k" * 200_000, "k" * 462),
         b"*4\r\n$5\r\n16400\r\n$3\r\n463\r\n$6\r\n200000\r\n$3\r\n462\r\n"),
    ],
    "a value over many reads": [
        (resp("SET", "big", BIG), b"+OK\r\n"),
        (resp("STRLEN", "big"), b":100000\r\n"),
        (resp("GET", "big"), b"$100000\r\n" + BIG + b"\r\n"),
        (resp("MGET", "big", "none", "big"),
         b"*3\r\n$100000\r\n%b\r\n$-1\r\n$100000\r\n%b\r\n" % (BIG, BIG)),
    ],
    "empty requests are skipped": [
        (b"*0\r\n*-1\r\n" + resp("PING"), b"+PONG\r\n"),
        (b"*-1\r\n\r\n*0\r\n" + resp("ECHO", "x"), b"$1\r\nx\r\n"),
    ],
    "client": [
        (resp("CLIENT", "GETNAME"), b"$-1\r\n"),
        (resp("CLIENT", "SETNAME", "billing"), b"+OK\r\n"),
        (resp("CLIENT", "GETNAME"), b"$7\r\nbilling\r\n"),
        (resp("CLIENT", "SETNAME", "two words"), b"-ERR Client names cannot contain spaces, "
         b"newlines or special characters.\r\n"),
        (resp("CLIENT", "GETNAME"), b"$7\r\nbilling\r\n"),
        (resp("client", "setinfo", "LIB-NAME", "redis-py"), b"+OK\r\n"),
        (resp("CLIENT", "SETINFO", "lib-ver", "8.1.0"), b"+OK\r\n"),
        (resp("CLIENT", "SETNAME", ""), b"+OK\r\n"),
        (resp("CLIENT", "GETNAME"), b"$-1\r\n"),
    ],
    "no first and no fourth protocol": [
        (resp("HELLO", "1"), b"-NOPROTO unsupported protocol version\r\n"),
        (resp("HELLO", "4"), b"-NOPROTO unsupported protocol version\r\n"),
        (resp("PING"), b"+PONG\r\n"),
    ],
}


@pytest.mark.parametrize("kind", ["whole", "bytes", "random"])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(conn, name, kind):
    """One request at a time."""
    for request, reply in TRANSCRIPTS[name]:
        conn.send(request, cut(kind, len(request)))
        conn.expect(reply)


@pytest.mark.parametrize("kind", ["whole", "bytes", "random"])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript_pipelined(stack, name, kind):
    """All requests at once: what depends on what is on one server, where order holds."""
    steps = TRANSCRIPTS[name]
    requests = b"".join(request for request, _ in steps)
    with stack.gateway.connect() as conn:
        conn.send(requests, cut(kind, len(requests)))
        for _, reply in steps:
            conn.expect(reply)
        conn.send(resp("ECHO", "end"))
        conn.expect(b"$3\r\nend\r\n")


# --------------------------------------------------------------------------- as redis-server does

BLOCKING = {"blpop", "brpop", "brpoplpush", "blmove", "bzpopmin", "bzpopmax", "blmpop", "bzmpop"}
TRANSACTIONS = {"multi", "exec", "discard", "watch", "unwatch"}
PUBSUB = {"subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe",
          "publish", "spublish", "pubsub"}


def both(stack, data, timeout=PATIENCE):
    """Sends the same bytes to a redis-server and to the gateway; gives the bytes of both until
    the answer to a last ECHO, or until they close."""
    answers = []
    for address in (stack.plain.port, stack.gateway.address):
        with Conn(address, timeout) as conn:
            try:
                conn.send(data + resp("ECHO", "the end"))
                answers.append(conn.read_until(b"$7\r\nthe end\r\n"))
            except (EOFError, ConnectionResetError, BrokenPipeError):
                answers.append(bytes(conn.buffer) + b"<closed>")
    return answers


def test_every_command_with_keys_answers_as_the_server_does(stack):
    """Arguments are nonsense in many of these; then the server's own error must come through."""
    differences = []
    skipped = BLOCKING | TRANSACTIONS | PUBSUB | {"migrate", "restore-asking", "pfdebug"}
    for info in stack.plain.call("COMMAND"):
        name, arity, flags, first = info[0].decode(), info[1], info[2], info[3]
        if name in skipped or not first or "blocking" in flags:
            continue
        words = [name, *["{t}key"] * (abs(arity) - 1)]
        if name in ("eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"):
            words = [name, "return 1", "1", "{t}key"]
        elif name in ("xread", "xreadgroup"):
            words = {"xread": ["xread", "streams", "{t}key", "0"],
                     "xreadgroup": "xreadgroup group g c streams {t}key >".split()}[name]
        elif name in ("object", "memory", "xinfo", "xgroup"):
            continue
        for request in (resp(*words), resp(*words, "{t}more"), resp(*words[:-1])):
            expected, got = both(stack, resp("DEL", "{t}key", "{t}more") + request)
            # The clock is no constant.
            if name == "xadd":
                expected, got = expected[:7], got[:7]
            if expected != got:
                differences.append(f"{request!r}: server {expected!r}, gateway {got!r}")
    assert not differences, "\n".join(differences)


SEQUENCES = {
    "strings": """
        SET {t}a 1 EX 100 NX|SET {t}a 2 NX|SET {t}a 3 XX GET|GETSET {t}a 4|GETDEL {t}a|GETDEL {t}a
        APPEND {t}a hello|SETRANGE {t}a 1 EY|GETRANGE {t}a 0 -1|STRLEN {t}a|GETEX {t}a PERSIST
        SETNX {t}a 1|MSETNX {t}a 1 {t}b 2|MSETNX {t}c 1 {t}d 2|PSETEX {t}e 100000 v|SETEX {t}e 0 v
        SUBSTR {t}a 0 1|LCS {t}c {t}d|INCRBY {t}c 5|DECR {t}c
    """,
    "bits": """
        SETBIT {t}a 7 1|GETBIT {t}a 7|BITCOUNT {t}a|BITPOS {t}a 1|BITOP NOT {t}b {t}a
        BITOP AND {t}c {t}a {t}b|BITFIELD {t}a SET u8 0 255 GET u4 0|BITFIELD_RO {t}a GET u4 0
        GET {t}b
    """,
    "hashes": """
        HSET {t}h a 1 b 2|HMSET {t}h c 3|HGET {t}h a|HMGET {t}h a b none|HGETALL {t}h|HDEL {t}h a
        HLEN {t}h|HEXISTS {t}h a|HKEYS {t}h|HVALS {t}h|HINCRBY {t}h b 3|HINCRBYFLOAT {t}h b 1.5
        HSETNX {t}h b 1|HSTRLEN {t}h b|HSCAN {t}h 0|HSCAN {t}h 0 MATCH b* COUNT 10
    """,
    "lists": """
        RPUSH {t}l a b c d|LPUSHX {t}l z|RPUSHX {t}n z|LINDEX {t}l 1|LINSERT {t}l BEFORE b x
        LSET {t}l 0 q|LREM {t}l 1 x|LTRIM {t}l 0 2|LPOS {t}l b|RPOPLPUSH {t}l {t}m|LPOP {t}l 2
        LMOVE {t}m {t}l LEFT RIGHT|LMPOP 2 {t}n {t}l LEFT|LLEN {t}l|LRANGE {t}l 0 -1
    """,
    "sets": """
        SADD {t}s a b c|SADD {t}r b c d|SCARD {t}s|SISMEMBER {t}s a|SMISMEMBER {t}s a z
        SINTERCARD 2 {t}s {t}r|SDIFF {t}s {t}r|SDIFFSTORE {t}u {t}s {t}r|SINTERSTORE {t}u {t}s {t}r
        SUNIONSTORE {t}u {t}s {t}r|SCARD {t}u|SMOVE {t}s {t}r a|SREM {t}s b|SPOP {t}s|SSCAN {t}n 0
    """,
    "sorted sets": """
        ZADD {t}z 1 a 2 b 3 c|ZADD {t}y 5 a|ZSCORE {t}z a|ZMSCORE {t}z a n|ZRANK {t}z b|ZCARD {t}z
        ZRANGE {t}z 0 -1 WITHSCORES|ZRANGEBYSCORE {t}z (1 3|ZREVRANGEBYLEX {t}z + -|ZCOUNT {t}z 1 2
        ZUNION 2 {t}z {t}y WITHSCORES|ZINTER 2 {t}z {t}y|ZDIFF 2 {t}z {t}y
        ZUNIONSTORE {t}x 2 {t}z {t}y WEIGHTS 2 3|ZINTERSTORE {t}x 2 {t}z {t}y
        ZDIFFSTORE {t}x 2 {t}z {t}y
        ZRANGESTORE {t}x {t}z 0 1|ZINTERCARD 2 {t}z {t}y|ZMPOP 2 {t}n {t}x MIN|ZPOPMAX {t}z
        ZINCRBY {t}z 1.5 a|ZREMRANGEBYRANK {t}z 0 0|ZSCAN {t}z 0|ZLEXCOUNT {t}z - +
    """,
    "streams": """
        XADD {t}x 1-1 a 1|XADD {t}x 2-1 b 2|XLEN {t}x|XRANGE {t}x - +|XREVRANGE {t}x + -
        XREAD COUNT 1 STREAMS {t}x 0|XREAD STREAMS {t}x {t}y 0 0|XGROUP CREATE {t}x g 0
        XREADGROUP GROUP g c STREAMS {t}x >|XACK {t}x g 1-1|XPENDING {t}x g|XDEL {t}x 1-1
        XTRIM {t}x MAXLEN 0|XAUTOCLAIM {t}x g c 0 0|XINFO GROUPS {t}n|XSETID {t}x 9-9
        XGROUP DESTROY {t}x g
    """,
    "geography": """
        GEOADD {t}g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
        GEODIST {t}g Palermo Catania|GEOHASH {t}g Palermo|GEOPOS {t}g Palermo none
        GEOSEARCH {t}g FROMMEMBER Palermo BYRADIUS 200 km ASC|GEORADIUS {t}g 15 37 200 km
        GEORADIUS {t}g 15 37 200 km STORE {t}o|GEORADIUSBYMEMBER_RO {t}g Palermo 100 km
        GEOSEARCHSTORE {t}p {t}g FROMMEMBER Palermo BYRADIUS 200 km|ZCARD {t}o|ZCARD {t}p
    """,
    "hyperloglog": """
        PFADD {t}h a b c|PFADD {t}i c d|PFCOUNT {t}h|PFCOUNT {t}h {t}i|PFMERGE {t}j {t}h {t}i
        PFCOUNT {t}j
    """,
    "keys": """
        SET {t}a 1|RENAME {t}a {t}b|RENAME {t}a {t}b|RENAMENX {t}b {t}c|COPY {t}c {t}d
        COPY {t}c {t}d REPLACE
        TYPE {t}c|OBJECT ENCODING {t}c|OBJECT REFCOUNT {t}none|EXPIRE {t}c 1000 GT
        EXPIREAT {t}c 99999999999|EXPIRETIME {t}c|PEXPIRETIME {t}c|PERSIST {t}c|PTTL {t}c
        SORT {t}n|RPUSH {t}n 3 1 2|SORT {t}n DESC|SORT_RO {t}n|SORT {t}n STORE {t}m|LLEN {t}m
        RESTORE {t}q 0 bad|EXISTS {t}c {t}c {t}none|TOUCH {t}c {t}d|UNLINK {t}c {t}d
        MEMORY USAGE {t}none
    """,
    "scripts": """
        EVAL 'return redis.call("set",KEYS[1],ARGV[1])' 1 {t}a v|EVAL 'return KEYS' 2 {t}a {t}b
        EVAL_RO 'return redis.call("get",KEYS[1])' 1 {t}a|EVALSHA ffffffff 1 {t}a
        EVAL 'return {1,{2,"x",{3.7,false}},"y"}' 1 {t}a|EVAL 'return {err="MINE own error"}' 1 {t}a
        EVAL 'return {ok="FINE"}' 1 {t}a|EVAL 'return redis.call("nosuch")' 1 {t}a
        EVAL 'return 1' x {t}a|EVAL 'return 1' -1 {t}a|EVAL 'return 1' 5 {t}a
    """,
    "local": """
        PING|PING x|ECHO hello|ECHO|ECHO a b|SELECT 0|SELECT x|CLIENT GETNAME|CLIENT SETNAME a\x01b
        AUTH secret|AUTH|AUTH a b c|HELLO 3x|HELLO 9|COMMAND COUNT x|CLIENT
    """,
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequence_answers_as_the_server_does(stack, name):
    lines = [line.strip() for row in SEQUENCES[name].splitlines() for line in row.split("|")]
    for line in filter(None, lines):
        expected, got = both(stack, line.encode() + b"\r\n")
        if name == "scripts" and "nosuch" in line:  # ends with the script's address
            expected, got = expected[:40], got[:40]
        assert got == expected, line


UNKNOWN = {
    "plain": resp("NOSUCH"),
    "with arguments": resp("nosuch", "a", "b c", b"\xff\0\r\n"),
    "with long arguments": resp("nosuch", "a" * 100, "b" * 100, "c" * 100),
    "with many arguments": resp("nosuch", *["arg"] * 100),
    "with a long name": resp("n" * 300, "x" * 300),
    "with a strange name": resp(b"no\r\nsuch\0'name'", "x"),
    "empty": resp(""),
    "empty inline": b"'' x\r\n",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_command_in_the_words_of_redis(stack, name):
    data = resp("SET", "{t}a", "1") + UNKNOWN[name] + resp("GET", "{t}a") + UNKNOWN[name]
    expected, got = both(stack, data)
    assert got == expected


@pytest.mark.parametrize(
    "words, reason",
    [
        (["SYNC"], "replication is between servers"),
        (["PSYNC", "?", "-1"], "replication is between servers"),
        (["REPLICAOF", "no", "one"], "replication is between servers"),
        (["FAILOVER"], "replication is between servers"),
        (["SHUTDOWN"], "SHUTDOWN would stop the servers of all clients"),
        (["MODULE", "LOAD", "x"], "modules are loaded at the servers"),
        (["ACL", "SETUSER", "x"], "the users are those of the gateway"),
        (["SCRIPT", "DEBUG", "YES"], "scripts are debugged at a server"),
        (["CLUSTER", "SLOTS"], "This instance has cluster support disabled"),
        (["READONLY"], "This instance has cluster support disabled"),
    ],
    ids=lambda words: words[0],
)
def test_refused_command_says_why_and_stays_alone(stack, words, reason):
    with stack.gateway.connect() as conn:
        conn.send(resp("SET", "{t}a", "1"))
        conn.expect(b"+OK\r\n")
        error = conn.error(*words)
        assert error.startswith("ERR ") and reason in error
        conn.send(resp("GET", "{t}a") + resp("PING"))
        conn.expect(b"$1\r\n1\r\n+PONG\r\n")


@pytest.mark.parametrize(
    "words",
    [
        ["XREAD", "BLOCK", "0", "STREAMS", "{t}x", "$"],
        ["xreadgroup", "GROUP", "g", "c", "block", "0", "STREAMS", "{t}x", ">"],
    ],
    ids=lambda words: words[0],
)
def test_a_blocking_read_of_a_stream_never_stalls_the_others(stack, conn, words):
    conn.call("XADD", "{t}x", "1-1", "a", "1")
    conn.call("XGROUP", "CREATE", "{t}x", "g", "$")
    conn.send(resp(*words))
    with stack.gateway.connect() as other:
        assert other.call("XLEN", "{t}x") == 1
        blocked = lambda server: b"blocked_clients:1" in server.call("INFO", "clients")
        wait_until(lambda: any(map(blocked, stack.servers)), "a client that is blocked")
        other.call("XADD", "{t}x", "2-1", "b", "2")
    assert conn.reply() == [[b"{t}x", [[b"2-1", [b"b", b"2"]]]]]
    assert conn.call("XLEN", "{t}x") == 2


PROTOCOL_ERRORS = {
    "multibulk length": b"*abc\r\n",
    "multibulk length, nothing": b"*\r\n",
    "multibulk length, sign": b"*+1\r\n",
    "multibulk length, space": b"* 1\r\n$4\r\nPING\r\n",
    "multibulk length, large": b"*2147483648\r\n",
    "multibulk length, 20 digits": b"*99999999999999999999\r\n",
    "no bulk": b"*1\r\n+PING\r\n",
    "no bulk, newline": b"*1\r\n\r\n",
    "no bulk, second": b"*2\r\n$3\r\nGET\r\n:1\r\n",
    "bulk length": b"*1\r\n$abc\r\n",
    "bulk length, nothing": b"*1\r\n$\r\n",
    "bulk length, negative": b"*1\r\n$-1\r\n",
    "bulk length, 512 MiB + 1": b"*2\r\n$3\r\nGET\r\n$536870913\r\n",
    "bulk length, 20 digits": b"*1\r\n$99999999999999999999\r\n",
    "quotes": b"SET 'a b\r\n",
    "quotes, double": b'SET "a b\r\n',
    "quotes, then text": b"SET 'a'b c\r\n",
    "inline of 64 KiB without an end": b"x" * 70_000,
    "multibulk length without an end": b"*" + b"1" * 70_000,
    "bulk length without an end": b"*1\r\n$" + b"1" * 70_000,
}


@pytest.mark.parametrize("kind", ["whole", "random"])
@pytest.mark.parametrize("name", PROTOCOL_ERRORS)
def test_protocol_error_comes_after_what_is_owed_and_closes(stack, name, kind):
    """Three replies are owed when the error is met, one of them gathered from all servers."""
    keys = [f"k{n}" for n in range(30)]
    owed = [resp("SET", "{t}a", "1"), resp("MGET", *keys), resp("PING")]
    with stack.plain.connect() as direct:
        direct.send(PROTOCOL_ERRORS[name])
        text = direct.read_to_end()
    assert text.startswith(b"-ERR Protocol error: "), text
    data = b"".join(owed) + PROTOCOL_ERRORS[name]
    with stack.gateway.connect() as conn:
        try:
            conn.send(data, cut(kind, len(data)))
        except ConnectionError:
            pass  # it may close before it has seen the end of what makes no sense
        conn.expect(b"+OK\r\n*30\r\n" + b"$-1\r\n" * 30 + b"+PONG\r\n" + text)
        conn.expect_closed()


def test_a_protocol_error_of_one_client_costs_no_other(stack, conn):
    conn.call("SET", "a", "1")
    for data in PROTOCOL_ERRORS.values():
        with stack.gateway.connect() as bad:
            bad.send(resp("GET", "a") + data)
    assert conn.call("GET", "a") == b"1"


def test_bytes_after_a_protocol_error_are_not_run(stack):
    with stack.gateway.connect() as conn:
        conn.send(resp("SET", "a", "1") + b"*1\r\n!\r\n" + resp("SET", "a", "2"))
        conn.expect(b"+OK\r\n-ERR Protocol error: expected '$', got '!'\r\n")
        conn.expect_closed()
    with stack.gateway.connect() as conn:
        assert conn.call("GET", "a") == b"1"


# --------------------------------------------------------------------------- commands over servers


@pytest.mark.parametrize("count", [171, 1000])
def test_many_keys_come_back_in_order(stack, conn, count):
    keys = [f"key-{n}" for n in range(count)]
    pairs = [word for n, key in enumerate(keys) for word in (key, f"value-{n}")]
    assert conn.call("MSET", *pairs) == "OK"
    order = keys[::-1] + ["none"] + keys[::2]
    values = [b"value-%d" % n for n in range(count)]
    assert conn.call("MGET", *order) == values[::-1] + [None] + values[::2]
    held = [server.call("DBSIZE") for server in stack.servers]
    assert sum(held) == count and all(held), held
    assert conn.call("EXISTS", *keys, *keys) == 2 * count
    assert conn.call("DEL", *keys[:100]) == 100
    assert conn.call("UNLINK", *keys) == count - 100
    assert sum(server.call("DBSIZE") for server in stack.servers) == 0


def test_one_command_per_server_and_not_per_key(stack, conn):
    keys = [f"key-{n}" for n in range(90)]
    conn.call("MSET", *[word for key in keys for word in (key, "v")])
    conn.call("MGET", *keys)
    conn.call("TOUCH", *keys)
    conn.call("EXISTS", *keys)
    conn.call("UNLINK", *keys)
    conn.call("DEL", *keys)
    for server in stack.servers:
        for command in ("mset", "mget", "touch", "exists", "unlink", "del"):
            assert server.stat(command) == 1, command


def test_untouched_when_one_server_holds_all_keys(stack, conn):
    """The server sees the very words of the client, in their own case."""
    keys = stack.keys_on(1, 3)
    spoken = []
    with stack.servers[1].connect() as monitor:
        assert monitor.call("MONITOR") == "OK"
        for words in (
            ["mSeT", keys[0], "1", keys[1], "2", keys[0], "3"],
            ["mGeT", *keys],
            ["ExIsTs", *keys, *keys],
            ["TouCH", *keys],
            ["DeL", *keys],
            ["Unlink", keys[0]],
        ):
            conn.call(*words)
            line = monitor.read_line().decode()
            spoken.append((re.findall(r'"([^"]*)"', line), words))
    for heard, words in spoken:
        assert heard == words


def test_pipeline_mixing_split_and_single_commands_keeps_order(conn):
    request, expected = [], []
    for n in range(300):
        request.append(resp("SET", f"key-{n}", n))
        expected.append(b"+OK\r\n")
        request.append(resp("MGET", f"key-{n}", f"key-{n - 1}", f"key-{n - 2}"))
        values = [b"$%d\r\n%d\r\n" % (len(str(m)), m) if m >= 0 else b"$-1\r\n"
                  for m in (n, n - 1, n - 2)]
        expected.append(b"*3\r\n" + b"".join(values))
        request.append(resp("PING") if n % 2 else b"ECHO inline\r\n")
        expected.append(b"+PONG\r\n" if n % 2 else b"$6\r\ninline\r\n")
        request.append(resp("NOSUCH"))
        expected.append(b"-ERR unknown command 'NOSUCH', with args beginning with: \r\n")
        request.append(resp("EXISTS", f"key-{n}", f"key-{n + 1}"))
        expected.append(b":1\r\n")
    conn.send(b"".join(request))
    conn.expect(b"".join(expected))


def test_gathering_of_a_thousand_among_a_thousand_single_ones(conn):
    keys = [f"key-{n}" for n in range(1000)]
    request = [resp("SET", key, n) for n, key in enumerate(keys)]
    request.append(resp("MGET", *keys))
    request += [resp("GET", key) for key in keys]
    conn.send(b"".join(request))
    bulk = b"".join(b"$%d\r\n%d\r\n" % (len(str(n)), n) for n in range(1000))
    conn.expect(b"+OK\r\n" * 1000 + b"*1000\r\n" + bulk + bulk)


@pytest.mark.parametrize(
    "words",
    [
        ["RENAME", 0, 1],
        ["RENAMENX", 0, 1],
        ["COPY", 0, 1],
        ["MSETNX", 0, "1", 1, "2"],
        ["SINTERSTORE", 0, 1, 2],
        ["SUNION", 0, 1],
        ["SDIFF", 0, 0, 1],
        ["SMOVE", 0, 1, "m"],
        ["ZUNIONSTORE", 0, "2", 0, 1],
        ["ZINTER", "2", 0, 1],
        ["RPOPLPUSH", 0, 1],
        ["LMOVE", 0, 1, "LEFT", "LEFT"],
        ["LMPOP", "2", 0, 1, "LEFT"],
        ["BITOP", "AND", 0, 0, 1],
        ["PFMERGE", 0, 1],
        ["PFCOUNT", 0, 1],
        ["EVAL", "return 1", "2", 0, 1],
        ["XREAD", "STREAMS", 0, 1, "0", "0"],
        ["SORT", 0, "STORE", 1],
        ["GEORADIUS", 0, "15", "37", "200", "km", "STORE", 1],
        ["GEOSEARCHSTORE", 0, 1, "FROMMEMBER", "m", "BYRADIUS", "1", "km"],
        ["LCS", 0, 1],
        ["ZRANGESTORE", 0, 1, "0", "-1"],
    ],
    ids=lambda words: words[0],
)
def test_keys_on_several_servers_without_a_merge(stack, conn, words):
    """A number in the table is the server on which that key lives."""
    keys = [stack.keys_on(server, 1)[0] for server in range(3)]
    spread = [keys[word] if isinstance(word, int) else word for word in words]
    conn.send(resp("PING") + resp(*spread) + resp("PING"))
    assert conn.reply() == "PONG"
    error = conn.reply()
    assert isinstance(error, ReplyError) and str(error).startswith("CROSSSLOT "), error
    assert conn.reply() == "PONG"
    # Together on one server the command is that server's business.
    together = ["{x}" + keys[word] if isinstance(word, int) else word for word in words]
    conn.send(resp(*together))
    reply = conn.reply()
    assert not str(reply).startswith("CROSSSLOT"), reply


def test_hash_tags_bring_keys_together(stack, conn):
    pairs = [word for n in range(50) for word in (f"{{user:7}}:{n}", n)]
    assert conn.call("MSET", *pairs) == "OK"
    assert sorted(server.call("DBSIZE") for server in stack.servers) == [0, 0, 50]
    conn.call("SADD", "{a}s", "1", "2", "3")
    conn.call("SADD", "x{a}", "2", "3", "4")
    assert conn.call("SINTERSTORE", "y{a}z", "{a}s", "x{a}") == 2
    assert conn.call("RENAME", "y{a}z", "{a}") == "OK"


# -------------------------------------------------------------------------------- answered here


def test_quit_answers_and_closes_and_discards_the_rest(stack):
    with stack.gateway.connect() as conn:
        conn.send(resp("SET", "a", "1") + resp("GET", "a") + resp("QUIT") + resp("SET", "a", "2"))
        conn.expect(b"+OK\r\n$1\r\n1\r\n+OK\r\n")
        conn.expect_closed()
    with stack.gateway.connect() as conn:
        assert conn.call("GET", "a") == b"1"
        conn.send(b"quit\r\nPING\r\n")
        conn.expect(b"+OK\r\n")
        conn.expect_closed()


def test_select(conn):
    assert conn.call("SELECT", "0") == "OK"
    assert conn.error("SELECT", "99").startswith("ERR ")
    assert conn.call("SET", "a", "1") == "OK"
    assert conn.call("SELECT", "1") == "OK"
    assert conn.call("GET", "a") is None


def test_client_id_is_a_number_of_its_own(stack):
    ids = []
    for _ in range(20):
        with stack.gateway.connect() as conn:
            ids.append(conn.call("CLIENT", "ID"))
            assert conn.call("CLIENT", "ID") == ids[-1]
    assert all(isinstance(n, int) and n > 0 for n in ids)
    assert len(set(ids)) == len(ids)


def test_info_describes_a_server(conn):
    for words in (["INFO"], ["INFO", "server"], ["info", "SERVER"]):
        text = conn.call(*words).decode()
        assert text.startswith("# Server\r\n")
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        assert re.fullmatch(r"\d+\.\d+\.\d+", fields["redis_version"])
        assert int(fields["process_id"]) > 0


def test_command_lists_commands(conn):
    reply = conn.call("COMMAND")
    table = {info[0].decode(): info for info in reply}
    assert table["get"][1:6] == [2, table["get"][2], 1, 1, 1]
    assert table["mset"][1] == -3 and table["mset"][5] == 2
    assert conn.call("COMMAND", "COUNT") == len(reply)


def test_hello_two_is_welcome(stack):
    with stack.gateway.connect() as conn:
        for words in (["HELLO"], ["HELLO", "2"], ["hello", "2", "SETNAME", "me"]):
            reply = conn.call(*words)
            fields = dict(zip(reply[::2], reply[1::2]))
            assert fields[b"server"] == b"redis"
            assert fields[b"proto"] == 2
            assert fields[b"role"] == b"master"
            assert fields[b"modules"] == []
            assert b"version" in fields and b"mode" in fields and isinstance(fields[b"id"], int)
        assert conn.call("CLIENT", "GETNAME") == b"me"


# ----------------------------------------------------------------------------------------- AUTH

AUTH_MATRIX = {
    "nothing given": [["GET", "a"], ["SET", "a", "1"], ["MGET", "a", "b"], ["NOSUCH"], ["GET"]],
    "not even a ping": [["PING"], ["ECHO", "x"], ["SELECT", "0"], ["CLIENT", "ID"]],
    "wrong": [["AUTH", "wrong"], ["GET", "a"]],
    "wrong user": [["AUTH", "nobody", "secret"], ["GET", "a"]],
    "right": [["AUTH", "secret"], ["GET", "a"], ["PING"]],
    "right with the user": [["AUTH", "default", "secret"], ["GET", "a"]],
    "wrong and then right": [["AUTH", "wrong"], ["AUTH", "secret"], ["GET", "a"]],
    "arity": [["AUTH"], ["AUTH", "a", "b", "c"], ["GET", "a"]],
    "in hello": [["HELLO", "2", "AUTH", "default", "wrong"], ["GET", "a"]],
    "quit is free": [["QUIT"]],
}


@pytest.mark.parametrize("name", AUTH_MATRIX)
def test_auth_as_the_server_asks_it(stack, name):
    answers = []
    for address in (stack.locked_plain.port, stack.gateway.addresses["locked"]):
        with Conn(address) as conn:
            conn.send(b"".join(resp(*words) for words in AUTH_MATRIX[name]))
            answers.append([conn.raw_reply() for _ in AUTH_MATRIX[name]])
    assert answers[1] == answers[0]


def test_auth_opens_all_servers_of_the_pool(stack):
    with stack.gateway.connect("locked") as conn:
        assert conn.call("AUTH", "secret") == "OK"
        assert conn.call("MSET", *[w for n in range(40) for w in (f"k{n}", n)]) == "OK"
        assert conn.call("EXISTS", *[f"k{n}" for n in range(40)]) == 40
        assert conn.call("HELLO", "2", "AUTH", "default", "secret")
    with stack.gateway.connect("locked") as conn:
        assert conn.error("GET", "k1").startswith("NOAUTH ")


def test_auth_where_no_password_is_set(stack):
    expected, got = both(stack, resp("AUTH", "x") + resp("AUTH", "default", "x"))
    assert got == expected


# ------------------------------------------------------------------------- streams and their ends


def test_half_close_still_gets_every_reply(stack):
    with stack.gateway.connect() as conn:
        keys = [f"k{n}" for n in range(500)]
        conn.send(b"".join(resp("SET", key, "v") for key in keys) + resp("MGET", *keys))
        conn.half_close()
        conn.expect(b"+OK\r\n" * 500 + b"*500\r\n" + b"$1\r\nv\r\n" * 500)
        conn.expect_closed()


def test_half_close_in_the_middle_of_a_request(stack):
    with stack.gateway.connect() as conn:
        conn.send(resp("PING") + b"*2\r\n$3\r\nGET\r\n$5\r\nab")
        conn.half_close()
        conn.expect(b"+PONG\r\n")
        conn.expect_closed()


def test_a_client_that_leaves_takes_no_reply_of_others(stack):
    """Replies to the lost are swallowed; those behind them reach their own clients."""
    with stack.gateway.connect() as steady:
        steady.call("SET", "{t}mine", "mine")
        for n in range(60):
            leaving = stack.gateway.connect()
            leaving.send(resp("SET", "{t}theirs", n) + resp("GET", "{t}theirs") * 50)
            steady.send(resp("GET", "{t}mine") * 5)
            leaving.reset() if n % 2 else leaving.close()
            steady.expect(b"$4\r\nmine\r\n" * 5)


def test_values_of_16_mib(stack, conn):
    values = [bytes([65 + n]) * (16 * MIB) for n in range(5)]
    words = [w for n, v in enumerate(values) for w in (f"k{n}", v, f"empty{n}", "")]
    conn.timeout = 60
    assert conn.call("MSET", *words, seconds=60) == "OK"
    order = [k for n in range(5) for k in (f"empty{n}", f"k{n}")]
    reply = conn.call("MGET", *order, "none", seconds=60)
    assert reply == [v for value in values for v in (b"", value)] + [None]
    for n, value in enumerate(values):
        assert conn.call("GET", f"k{n}", seconds=60) == value


def test_a_value_of_100_mb_and_the_memory_afterwards(place):
    server = place.redis()
    gateway = place.cashew(
        {"alpha": {"redis": True, "servers": server_lines([server])}}, {"worker_processes": 1}
    )
    value = random.Random(1).randbytes(MIB) * 100
    with gateway.connect(timeout=60) as conn:
        conn.call("PING")
        before = gateway.memory()
        assert conn.call("SET", "k", value, seconds=60) == "OK"
        assert conn.call("GET", "k", seconds=60) == value
    wait_until(
        lambda: gateway.memory() < before + 32 * MIB, "the memory of the peak is given back", 10
    )


@pytest.mark.alone
@measured
def test_a_big_value_does_not_hold_up_small_ones(stack):
    """While one client sends 64 MiB in small pieces, others on the same server are served."""
    big = b"x" * (64 * MIB)
    request = resp("SET", "{t}big", big)
    slowest = 0.0
    with stack.gateway.connect(timeout=60) as slow, stack.gateway.connect() as fast:
        fast.call("SET", "{t}small", "1")
        for at in range(0, len(request), 4 * MIB):
            slow.send(request[at : at + 4 * MIB])
            begin = time.monotonic()
            assert fast.call("GET", "{t}small") == b"1"
            slowest = max(slowest, time.monotonic() - begin)
        assert slow.reply(60) == "OK"
    in_time(slowest, 1.0)


@pytest.mark.alone
@measured
def test_a_slow_reader_does_not_delay_others(stack):
    """60 MB of replies wait for a client that does not read."""
    with stack.gateway.connect() as conn:
        conn.call("SET", "{t}big", b"x" * MIB)
        conn.call("SET", "{t}small", "1")
    slow = stack.gateway.connect(timeout=30)
    try:
        slow.send(resp("GET", "{t}big") * 60)
        with stack.gateway.connect() as fast:
            slowest = 0.0
            for _ in range(200):
                begin = time.monotonic()
                assert fast.call("GET", "{t}small") == b"1"
                slowest = max(slowest, time.monotonic() - begin)
        in_time(slowest, 1.0)
        bulk = b"$1048576\r\n" + b"x" * MIB + b"\r\n"
        for _ in range(60):
            slow.expect(bulk, 30)
    finally:
        slow.close()


def test_a_client_that_is_paused_within_a_request(place):
    """It does not read 20 MB of replies while a request of its own is half sent; what the parser
    knows of that one must not be taken for the beginning of another client's."""
    gateway = place.cashew(
        {"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
        {"worker_processes": 1})
    with gateway.connect(timeout=30) as paused, gateway.connect() as other:
        paused.call("SET", "big", b"x" * MIB)
        request = resp("SET", "mine", "y" * 1000)
        paused.send(resp("GET", "big") * 20 + request[:100])
        wait_until(lambda: gateway.held() > MIB, "replies wait, more than for which it is read")
        paused.send(request[100:300])
        for n in range(20):
            other.send(resp("SET", "theirs", n) + resp("GET", "theirs"))
            other.expect(b"+OK\r\n$%d\r\n%d\r\n" % (len(str(n)), n))
        paused.send(request[300:])
        paused.expect((b"$1048576\r\n" + b"x" * MIB + b"\r\n") * 20 + b"+OK\r\n")
        assert other.call("GET", "mine") == b"y" * 1000


def test_a_deep_pipeline_without_reading(stack):
    """A client that writes 20,000 requests before it reads is held back, not lost."""
    with stack.gateway.connect(timeout=60) as conn:
        conn.call("SET", "k", "value")
        count = 20_000
        sender = threading.Thread(
            target=lambda: conn.socket.sendall(resp("GET", "k") * count), daemon=True
        )
        sender.start()
        time.sleep(0.5)
        conn.expect(b"$5\r\nvalue\r\n" * count, 60)
        sender.join(10)
        assert not sender.is_alive()


def test_nested_replies_pass(conn):
    """20 levels, and a status inside an array."""
    script = "local t = {ok='deep'} for i = 1, 20 do t = {i, t} end return t"
    conn.send(resp("EVAL", script, 1, "k"))
    conn.expect(b"".join(b"*2\r\n:%d\r\n" % n for n in range(20, 0, -1)) + b"+deep\r\n")
    conn.send(resp("EVAL", "return {{ok='A'}, {err='B'}, false, {}}", 1, "k"))
    conn.expect(b"*4\r\n+A\r\n-B\r\n$-1\r\n*0\r\n")


def test_scans_of_a_large_hash(conn):
    pairs = [w for n in range(1000) for w in (f"{'f' * 100}{n}", n)]
    assert conn.call("HSET", "h", *pairs) == 1000
    seen, cursor = {}, "0"
    while True:
        cursor, fields = conn.call("HSCAN", "h", cursor, "COUNT", "100")
        seen.update(zip(fields[::2], fields[1::2]))
        if cursor == b"0":
            break
    assert len(seen) == 1000
    assert conn.call("SSCAN", "none", "0") == [b"0", []]
    assert conn.call("ZSCAN", "none", "0", "MATCH", "*") == [b"0", []]


def test_a_read_only_server_says_so_itself(place):
    """Also when the refusal is one of several parts."""
    master = place.redis()
    replicas = [place.redis("--replicaof", HOST, master.port) for _ in range(2)]
    for replica in replicas:
        wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"),
                   "replica in step", 20)
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines(replicas)}})
    text = b"-READONLY You can't write against a read only replica.\r\n"
    with gateway.connect() as conn:
        conn.send(resp("DEL", "a") + resp("DEL", *[f"k{n}" for n in range(40)]))
        conn.expect(text + text)
        conn.send(resp("MSET", *[w for n in range(40) for w in (f"k{n}", n)]) + resp("PING"))
        conn.expect(text + b"+PONG\r\n")


def test_many_clients_at_once(stack):
    conns = [stack.gateway.connect() for _ in range(300)]
    try:
        for n, conn in enumerate(conns):
            conn.send(resp("SET", f"c{n}", n) + resp("GET", f"c{n}"))
        for n, conn in enumerate(conns):
            conn.expect(b"+OK\r\n$%d\r\n%d\r\n" % (len(str(n)), n))
    finally:
        for conn in conns:
            conn.close()
