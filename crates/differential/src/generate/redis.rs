//! Redis requests: for every command in the gateway's table, and from a list of valid ones.

use std::sync::OnceLock;

use cashew_protocol::redis::{COMMANDS, Command, Keys, Rule};

use super::{mutated_bytes, mutated_words, number};
use crate::case::Request;
use crate::random::Random;

/// Commands of the table that are not sent at random, and why.
pub const EXCLUDED: &[(&str, &str)] = &[
    ("bgsave", "forks the server each time"),
    ("bgrewriteaof", "forks the server each time"),
    ("backup|start", "forks the server each time"),
    ("save", "writes to the disk each time"),
    ("client|pause", "holds the pool in the gateway, which is not a matter of replies"),
    ("client|kill", "closes the clients beside it, as an administrator may"),
    ("pfselftest", "keeps the server busy for seconds"),
    ("migrate", "connects to wherever the arguments say; see the templates"),
    ("config|set", "may set what the test itself needs; see the templates"),
    ("debug|populate", "makes as many keys as it is told; see the templates"),
    ("debug|stringmatch-len", "takes as long as it is told; see the templates"),
    ("debug|protocol", "of few words; see the templates"),
    ("debug", "what the table does not know, as SLEEP and RELOAD, holds the server up"),
];

/// Valid requests, or nearly. `{s}`, `{l}`, `{h}`, `{t}`, `{z}`, `{x}`, `{g}` and `{p}` are keys of
/// strings, lists, hashes, sets, sorted sets, streams, geographic sets and HyperLogLogs, `{k}` any
/// key, `{n}` a number, `{w}` a word.
const TEMPLATES: &str = "GET {s}|SET {s} {w}|SET {s} {w} EX 100 GET|SET {s} {w} NX|SET {s} {n} KEEPTTL|GETEX {s} PERSIST|GETDEL {s}
GETRANGE {s} {n} {n}|SETRANGE {s} {n} {w}|INCR {s}|INCRBY {s} {n}|INCRBYFLOAT {s} 1.5|APPEND {s} {w}|STRLEN {s}
LCS {s} {s}|LCS {s} {s} IDX MINMATCHLEN 1 WITHMATCHLEN|LCS {s} {s} LEN|MGET {k} {k} {k}|MSET {s} {w} {s} {w}|MSETNX {s} {w} {s} {w}
BITCOUNT {s}|BITFIELD {s} GET u8 0 OVERFLOW FAIL INCRBY i5 100 1|BITFIELD_RO {s} GET u4 0|BITOP AND {s} {s} {s}|BITPOS {s} 1
DEL {k} {k}|UNLINK {k}|EXISTS {k} {k}|TOUCH {k} {k}|EXPIRE {k} 100 NX|TTL {k}|PTTL {k}|PERSIST {k}|TYPE {k}|DUMP {k}|RENAME {k} {k}
RENAMENX {k} {k}|COPY {k} {k} REPLACE|COPY {k} {k} DB 1|MOVE {k} 1|RANDOMKEY|KEYS *|KEYS s*|SCAN 0|SCAN {n} COUNT 5 TYPE string
SCAN 0 MATCH s* COUNT 100|OBJECT ENCODING {k}|OBJECT FREQ {k}|OBJECT IDLETIME {k}|OBJECT HELP|DBSIZE|WAIT 0 0|WAIT 1 5|WAITAOF 0 0 5
SORT {l} ALPHA|SORT {l} BY nosort GET # GET s*|SORT {l} LIMIT 0 2 STORE {l}|SORT_RO {t} ALPHA DESC|RESTORE {k} 0 {w}
LPUSH {l} {w} {w}|RPUSH {l} {w}|LPOP {l}|LPOP {l} 2|RPOP {l} {n}|LRANGE {l} 0 -1|LINDEX {l} {n}|LINSERT {l} BEFORE b {w}|LLEN {l}
LMOVE {l} {l} LEFT RIGHT|RPOPLPUSH {l} {l}|LMPOP 2 {l} {l} LEFT COUNT 2|LPOS {l} a COUNT 0 RANK -1|LPOS {l} zz|LREM {l} 0 a|LSET {l} 0 {w}
BLPOP {l} 0.01|BRPOP {l} {l} 0.01|BLMOVE {l} {l} LEFT LEFT 0.01|BRPOPLPUSH {l} {l} 0.01|BLMPOP 0.01 1 {l} RIGHT|BLPOP nothing 0.01
BZPOPMIN {z} 0.01|BZPOPMAX nothing 0.01|BZMPOP 0.01 1 {z} MIN COUNT 2|BLPOP {s} 0.01|BLPOP {l} -1|BLPOP {l} x
HSET {h} f1 {w} f2 {n}|HGET {h} f1|HGETALL {h}|HMGET {h} f1 nope|HKEYS {h}|HVALS {h}|HDEL {h} f1|HINCRBY {h} f2 {n}|HINCRBYFLOAT {h} f3 1.5
HRANDFIELD {h}|HRANDFIELD {h} 2 WITHVALUES|HRANDFIELD {h} -3 WITHVALUES|HSCAN {h} 0|HSCAN {h} 0 NOVALUES|HEXPIRE {h} 100 FIELDS 1 f1
HTTL {h} FIELDS 2 f1 nope|HPERSIST {h} FIELDS 1 f1|HGETDEL {h} FIELDS 1 f1|HGETEX {h} EX 100 FIELDS 1 f1|HSETEX {h} EX 100 FIELDS 1 f1 {w}
SADD {t} {w} {w}|SMEMBERS {t}|SISMEMBER {t} a|SMISMEMBER {t} a zz|SRANDMEMBER {t}|SRANDMEMBER {t} -4|SPOP {t}|SPOP {t} 2|SINTER {t} {t}
SUNION {t} {t}|SDIFF {t} {t}|SINTERCARD 2 {t} {t} LIMIT 1|SINTERSTORE {t} {t} {t}|SMOVE {t} {t} a|SSCAN {t} 0|SCARD {t}
ZADD {z} 1.5 {w}|ZADD {z} XX CH INCR 1 a|ZADD {z} NX GT 1 a|ZSCORE {z} a|ZSCORE {z} zz|ZMSCORE {z} a zz|ZINCRBY {z} inf a|ZRANGE {z} 0 -1 WITHSCORES
ZRANGE {z} (1 +inf BYSCORE LIMIT 0 2|ZRANGEBYSCORE {z} -inf +inf WITHSCORES|ZRANGEBYLEX {z} - +|ZRANK {z} a WITHSCORE|ZRANK {z} zz WITHSCORE
ZPOPMIN {z}|ZPOPMAX {z} 2|ZMPOP 1 {z} MIN|ZMPOP 1 nothing MAX COUNT 2|ZRANDMEMBER {z} -3 WITHSCORES|ZDIFF 2 {z} {z} WITHSCORES|ZUNION 2 {z} {z} WEIGHTS 1 2
ZINTERCARD 2 {z} {z}|ZRANGESTORE {z} {z} 0 -1|ZSCAN {z} 0|ZCOUNT {z} -inf inf|ZREM {z} a|ZREMRANGEBYRANK {z} 0 0
XADD {x} * f {w}|XADD {x} NOMKSTREAM MAXLEN ~ 10 * f {w}|XLEN {x}|XRANGE {x} - +|XREVRANGE {x} + - COUNT 1|XREAD COUNT 2 STREAMS {x} 0
XREAD BLOCK 10 STREAMS {x} $|XREADGROUP GROUP g c COUNT 2 STREAMS {x} >|XREADGROUP GROUP g c BLOCK 10 STREAMS {x} >|XACK {x} g 1-1|XPENDING {x} g
XPENDING {x} g - + 10|XCLAIM {x} g c 0 1-1|XCLAIM {x} g c 0 1-1 JUSTID|XAUTOCLAIM {x} g c 0 0|XINFO STREAM {x}|XINFO STREAM {x} FULL|XINFO GROUPS {x}
XINFO CONSUMERS {x} g|XGROUP CREATE {x} g2 $ MKSTREAM|XGROUP CREATECONSUMER {x} g c2|XGROUP DESTROY {x} g2|XDEL {x} 1-1|XTRIM {x} MAXLEN 5|XSETID {x} 9-9
PFADD {p} {w}|PFCOUNT {p} {p}|PFMERGE {p} {p}|PFDEBUG GETREG {p}|GEOADD {g} 13.3 38.1 {w}|GEODIST {g} Palermo Catania|GEOPOS {g} Palermo zz
GEOHASH {g} Palermo|GEOSEARCH {g} FROMLONLAT 15 37 BYRADIUS 200 km WITHCOORD WITHDIST WITHHASH|GEORADIUS {g} 15 37 200 km WITHCOORD STORE {g}
GEORADIUS {g} 15 37 200 km WITHDIST|GEORADIUS_RO {g} 15 37 200 km ASC COUNT 1|GEORADIUSBYMEMBER {g} Palermo 200 km|GEOSEARCHSTORE {z} {g} FROMMEMBER Palermo BYBOX 400 400 km
EVAL \"return {1,{2,'x',{}},false,3.5,{ok='fine'}}\" 0|EVAL \"return {err='MY error'}\" 1 {s}|EVAL \"return redis.call('get',KEYS[1])\" 1 {s}
EVAL \"redis.setresp(3) return redis.call('hgetall',KEYS[1])\" 1 {h}|EVAL \"return {double=3.5}\" 0|EVAL \"return {map={a=1,b={set={x=true}}}}\" 0
EVAL \"redis.setresp(3) return {big_number='12345678901234567890'}\" 0|EVAL \"redis.setresp(3) return {verbatim_string={format='txt',string='hi'}}\" 0
EVAL \"return redis.status_reply('a\\r\\nb')\" 0|EVAL \"return redis.error_reply('a\\r\\nb')\" 0|EVAL \"return redis.pcall('nosuch')\" 0|EVAL \"return ARGV\" 1 {s} {w} {w}
EVAL \"return nil\" 0|EVAL \"syntax error\" 0|EVAL \"redis.call('publish','ch','m') return 1\" 0|EVAL_RO \"return 1\" 0|EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
EVALSHA 0000000000000000000000000000000000000000 1 {s}|EVALSHA_RO e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0|SCRIPT LOAD \"return 1\"|SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db x
SCRIPT FLUSH|SCRIPT KILL|FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('fn',function(k,a) return {k,a} end)\"|FCALL fn 1 {s} {w}|FCALL nosuch 0|FCALL_RO fn 0
FUNCTION LOAD REPLACE \"#!lua name=lib\\nredis.register_function{function_name='fn',callback=function(k,a) return a end,flags={'no-writes'}}\"
FUNCTION LIST|FUNCTION LIST WITHCODE|FUNCTION DUMP|FUNCTION STATS|FUNCTION DELETE lib|FUNCTION KILL|FUNCTION FLUSH|FUNCTION RESTORE {w}
MULTI|EXEC|DISCARD|WATCH {k}|UNWATCH|RESET|HELLO|HELLO 2|HELLO 3|HELLO 4|HELLO 3 SETNAME {w}|SELECT 1|SELECT 0|SELECT 99|SELECT x|AUTH {w}|AUTH a b|QUIT
PING|PING {w}|ECHO {w}|TIME|LOLWUT|LASTSAVE|ROLE|INFO|INFO everything|INFO server clients|COMMAND COUNT|COMMAND INFO get nosuch|COMMAND DOCS get|COMMAND GETKEYS mset a b c d
CLIENT ID|CLIENT GETNAME|CLIENT SETNAME {w}|CLIENT LIST|CLIENT LIST TYPE normal|CLIENT INFO|CLIENT REPLY OFF|CLIENT REPLY SKIP|CLIENT REPLY ON|CLIENT NO-EVICT on|CLIENT NO-TOUCH on
CLIENT TRACKING on|CLIENT TRACKING on BCAST PREFIX s|CLIENT TRACKINGINFO|CLIENT CACHING yes|CLIENT GETREDIR|CLIENT UNPAUSE
CLIENT UNBLOCK 1|CLIENT UNBLOCK 1 ERROR|CLIENT SETINFO lib-name {w}|CLIENT CAPA redirect|CLIENT HELP|CLIENT REPLY nonsense
SUBSCRIBE ch1 ch2|PSUBSCRIBE c*|SSUBSCRIBE ch1|UNSUBSCRIBE|UNSUBSCRIBE ch1|PUNSUBSCRIBE|SUNSUBSCRIBE|PUBLISH ch1 {w}|SPUBLISH ch1 {w}|PUBSUB CHANNELS|PUBSUB NUMSUB ch1|PUBSUB NUMPAT
PUBSUB SHARDCHANNELS|PUBSUB SHARDNUMSUB ch1|MONITOR|CONFIG GET maxmemory|CONFIG GET *|CONFIG SET slowlog-max-len {n}|CONFIG SET hz 10|CONFIG SET nosuch {w}|CONFIG RESETSTAT|CONFIG REWRITE
SLOWLOG GET|SLOWLOG GET -1|SLOWLOG LEN|SLOWLOG RESET|LATENCY LATEST|LATENCY HISTORY command|LATENCY GRAPH command|LATENCY DOCTOR|LATENCY HISTOGRAM|LATENCY HISTOGRAM get set|LATENCY RESET
MEMORY USAGE {k}|MEMORY DOCTOR|MEMORY STATS|MEMORY MALLOC-STATS|MEMORY PURGE|DEBUG OBJECT {k}|DEBUG DIGEST|DEBUG DIGEST-VALUE {k}|DEBUG LISTPACK {h}|DEBUG STRUCTSIZE|DEBUG HTSTATS 0|DEBUG SDSLEN {s}
DEBUG PROTOCOL string|DEBUG PROTOCOL integer|DEBUG PROTOCOL double|DEBUG PROTOCOL null|DEBUG PROTOCOL array|DEBUG PROTOCOL set|DEBUG PROTOCOL map|DEBUG PROTOCOL attrib
DEBUG PROTOCOL push|DEBUG PROTOCOL verbatim|DEBUG PROTOCOL true|DEBUG PROTOCOL false|DEBUG PROTOCOL bignum|DEBUG PROTOCOL nosuch|DEBUG STRINGMATCH-LEN 10 a*|DEBUG POPULATE 3
MIGRATE 127.0.0.1 1 {s} 0 5|MIGRATE 127.0.0.1 1 \"\" 0 5 KEYS {s} {s}|SWAPDB 0 1|FLUSHDB ASYNC|FLUSHALL|MODULE LIST|ACL WHOAMI|ACL LIST|SHUTDOWN NOSAVE|REPLICAOF no one|CLUSTER INFO
DEBUG SET-ACTIVE-EXPIRE 1|DEBUG REPLYBUFFER PEAK-RESET-TIME RESET|DEBUG JMAP|OBJECT ENCODING|PFDEBUG DECODE {p}|GETSET {s} {w}|SUBSTR {s} 0 1|HMSET {h} a b|PSETEX {s} 1000 {w}
FAILOVER ABORT|SYNC|PSYNC ? -1|REPLCONF ACK 1|REPLCONF GETACK *|ASKING|READONLY|POST / HTTP/1.1|Host: x|LATENCY HELP|PUBSUB HELP|XINFO HELP|FUNCTION HELP|SCRIPT HELP|CONFIG HELP
SCRIPT DEBUG YES|SCRIPT DEBUG NO|SCRIPT SHOW e0e1f9fabfc9d4800c877a703b823ac0578ff8db|COMMANDLOG GET 1 slow|CLIENT IMPORT-SOURCE ON|HIMPORT PREPARE {h} f";

/// Words used as arguments.
const VOCABULARY: &[&str] = &[
    "s1",
    "l1",
    "h1",
    "t1",
    "z1",
    "x1",
    "k1",
    "GET",
    "SET",
    "WITHSCORES",
    "COUNT",
    "LIMIT",
    "BLOCK",
    "STREAMS",
    "KEYS",
    "STORE",
    "MATCH",
    "TYPE",
    "NX",
    "XX",
    "EX",
    "GT",
    "LT",
    "CH",
    "INCR",
    "FULL",
    "ID",
    "JUSTID",
    "LEFT",
    "RIGHT",
    "BY",
    "ASC",
    "ALPHA",
    "AGGREGATE",
    "WEIGHTS",
    "REV",
    "BYSCORE",
    "BYLEX",
    "WITHVALUES",
    "FIELDS",
    "ANY",
    "HELP",
    "SKIP",
    "OFF",
    "ON",
    "yes",
    "no",
    "*",
    "#",
    "-",
    "+",
    "$",
    ">",
    "~",
    "=",
    "0",
    "1",
    "-1",
    "2",
    "abc",
    "noreply",
    "server:s0",
    "MULTI",
    "EXEC",
    "ASYNC",
    "DB",
];

const WORDS: &[&[u8]] = &[
    b"a",
    b"b",
    b"word",
    b"12",
    b"3.5",
    b"",
    b"\r\n",
    b"a\r\nb",
    b"\0",
    b"\xff\xfe",
    b"$-1\r\n",
    b"+OK\r\n",
    b"*1\r\n:1\r\n",
    b"two words",
    b"\"quoted\"",
    b"it's",
];

fn key(of: u8, random: &mut Random) -> Vec<u8> {
    let kinds = b"slhtzxgpb";
    let kind = if of == b'k' || random.percent(6) { random.pick(kinds) } else { of };
    let number = random.pick(b"1123");
    match random.percent(4) {
        true => b"nothing".to_vec(),
        false => vec![kind, number],
    }
}

fn word(random: &mut Random) -> Vec<u8> {
    match random.below(40) {
        0 => random.bytes(300),
        1 if random.percent(20) => random.bytes(20_000),
        2 if random.percent(8) => random.bytes(300_000),
        3 if random.percent(3) => random.bytes(1_200_000),
        _ => random.pick(WORDS).to_vec(),
    }
}

/// The words of a template.
fn filled(template: &str, random: &mut Random) -> Vec<Vec<u8>> {
    split(template)
        .into_iter()
        .map(|part| match part.as_bytes() {
            [b'{', b'n', b'}'] => number(random),
            [b'{', b'w', b'}'] => word(random),
            &[b'{', kind, b'}'] => key(kind, random),
            bytes => bytes.to_vec(),
        })
        .collect()
}

/// Words between spaces, or in quotes, in which `\n` and `\r` are line ends.
fn split(template: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), None::<String>, false);
    let mut characters = template.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            ' ' if !is_quoted => words.extend(word.take()),
            '\\' if is_quoted => word.get_or_insert_default().push(match characters.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap_or('\\'),
            }),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

fn commands() -> &'static [&'static Command] {
    static LIST: OnceLock<Vec<&'static Command>> = OnceLock::new();
    LIST.get_or_init(|| {
        let is_included =
            |command: &&Command| EXCLUDED.iter().all(|(name, _)| *name != command.name);
        COMMANDS.iter().filter(is_included).collect()
    })
}

fn templates() -> &'static [&'static str] {
    static LIST: OnceLock<Vec<&'static str>> = OnceLock::new();
    LIST.get_or_init(|| TEMPLATES.lines().flat_map(|line| line.split('|')).collect())
}

/// By the table: about as many arguments as it requires, with keys at its positions.
fn by_table(random: &mut Random) -> Vec<Vec<u8>> {
    let command = loop {
        let command = random.pick(commands());
        // These are answered here, all in the same way.
        if !matches!(command.rule, Rule::Refuse(_)) || random.percent(10) {
            break command;
        }
    };
    let mut words: Vec<Vec<u8>> =
        command.name.split('|').map(|part| part.as_bytes().to_vec()).collect();
    let least = usize::from(command.arity.unsigned_abs());
    let more =
        if command.arity < 0 || random.percent(8) { random.pick(&[0, 0, 1, 2, 3, 4]) } else { 0 };
    let wanted = if random.percent(4) { least.saturating_sub(1) } else { least + more };
    let kind = match command.group.name() {
        "list" => b'l',
        "hash" => b'h',
        "set" => b't',
        "sorted-set" => b'z',
        "stream" => b'x',
        "geo" => b'g',
        "hyperloglog" => b'p',
        _ => b'k',
    };
    while words.len() < wanted {
        let at = words.len();
        let is_key = match command.keys {
            Keys::None => false,
            Keys::Range { first, last, step } => {
                let first = usize::from(first);
                at >= first
                    && (last < 0 || at <= last as usize)
                    && (at - first).is_multiple_of(usize::from(step))
            }
            Keys::Pairs { .. } => at % 2 == 1,
            Keys::Numkeys { at: count, first, .. } => {
                if at == usize::from(count) && random.percent(80) {
                    words.push(random.pick(&[b"1" as &[u8], b"2", b"1", b"0"]).to_vec());
                    continue;
                }
                at >= usize::from(first) && random.percent(70)
            }
            _ => at == 1 || random.percent(30),
        };
        words.push(match random.below(10) {
            _ if is_key => key(kind, random),
            0..=3 => number(random),
            4..=6 => random.pick(VOCABULARY).as_bytes().to_vec(),
            _ => word(random),
        });
    }
    if matches!(command.rule, Rule::Block) && random.percent(90) {
        // It is the first or the last argument: none may block for long.
        let last = words.len() - 1;
        words[last] = b"0.01".to_vec();
        if words.len() > 1 && command.name.contains("mpop") {
            words[1] = b"0.01".to_vec();
        }
    }
    words
}

/// As a line, with the words in quotes, or not.
fn inline(words: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut line = Vec::new();
    for word in words {
        if !line.is_empty() {
            line.extend_from_slice(random.pick(&[b" " as &[u8], b" ", b"  ", b"\t"]));
        }
        match random.below(6) {
            0 => line.extend_from_slice(format!("\"{}\"", word.escape_ascii()).as_bytes()),
            1 => {
                line.push(b'\'');
                line.extend_from_slice(word);
                line.push(b'\'');
            }
            2 if random.percent(20) => {
                line.push(random.pick(b"\"'"));
                line.extend_from_slice(word);
            }
            _ => line.extend_from_slice(word),
        }
    }
    line.extend_from_slice(random.pick(&[b"\r\n" as &[u8], b"\r\n", b"\n", b"\r\r\n", b"\0\r\n"]));
    line
}

pub fn request(random: &mut Random) -> Request {
    if random.percent(6) {
        return transaction(random);
    }
    let words = match random.percent(55) {
        true => {
            let template = random.pick(templates());
            filled(template, random)
        }
        false => by_table(random),
    };
    let mut words =
        if random.percent(30) { mutated_words(words, VOCABULARY, random) } else { words };
    if words.len() > 1 && random.percent(12) {
        // An error that repeats an argument unchanged would be two replies.
        let at = 1 + random.below(words.len() - 1);
        words[at] = b"x\r\n+forged\r\n".to_vec();
    }
    match random.below(20) {
        0 | 1 => Request::Raw(inline(&words, random)),
        2 => Request::Raw(mutated_bytes(Request::Words(words).bytes(), random)),
        3 => Request::Raw(headers_spoiled(&words, random)),
        _ => Request::Words(words),
    }
}

/// MULTI, some requests, and possibly an end.
fn transaction(random: &mut Random) -> Request {
    let mut bytes = Vec::new();
    let mut add = |words: Vec<Vec<u8>>| bytes.extend(Request::Words(words).bytes());
    if random.percent(30) {
        add(vec![b"WATCH".to_vec(), key(b'k', random)]);
    }
    add(vec![b"MULTI".to_vec()]);
    for _ in 0..random.below(5) {
        let template = random.pick(templates());
        // Within a reply a push is a server's error, and ends the connection.
        if !template.ends_with("PROTOCOL push") {
            add(filled(template, random));
        }
    }
    add(vec![
        random.pick(&[b"EXEC" as &[u8], b"EXEC", b"EXEC", b"DISCARD", b"RESET", b"PING"]).to_vec(),
    ]);
    Request::Raw(bytes)
}

/// Counts and lengths that are invalid or do not match.
fn headers_spoiled(words: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let spoiled = |right: usize, random: &mut Random| match random.below(14) {
        0 => "-1".to_owned(),
        1 => "-5".to_owned(),
        2 => (right + 1).to_string(),
        3 => right.saturating_sub(1).to_string(),
        4 => format!("+{right}"),
        5 => format!("0{right}"),
        6 => format!(" {right}"),
        7 => "4294967296".to_owned(),
        8 => "1048577".to_owned(),
        9 => String::new(),
        10 => format!("{right} "),
        11 => "99999999999999999999".to_owned(),
        12 => format!("{right}.0"),
        _ => right.to_string(),
    };
    let spoils = random.below(words.len() + 1);
    for at in 0..=words.len() {
        let (mark, right) = if at == 0 { ('*', words.len()) } else { ('$', words[at - 1].len()) };
        let count = if at == spoils { spoiled(right, random) } else { right.to_string() };
        let end = if random.percent(4) { "\n" } else { "\r\n" };
        bytes.extend_from_slice(format!("{mark}{count}{end}").as_bytes());
        if at > 0 {
            bytes.extend_from_slice(&words[at - 1]);
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_names_are_in_the_table() {
        for (name, _) in EXCLUDED {
            assert!(COMMANDS.iter().any(|command| command.name == *name), "{name}");
        }
    }

    #[test]
    fn templates_are_split_into_words() {
        assert_eq!(split("EVAL \"return 'a b'\" 0"), ["EVAL", "return 'a b'", "0"]);
        assert_eq!(split("MIGRATE h \"\" x"), ["MIGRATE", "h", "", "x"]);
        assert!(templates().iter().all(|template| !split(template).is_empty()));
    }
}
