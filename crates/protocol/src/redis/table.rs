//! The table: one line per command, subcommands behind their container.
//!
//! Here are the commands whose keys decide the server, and those that the gateway answers. What is
//! missing does not exist for clients.

use super::Access::{Read, Write};
use super::Group::{
    Bitmap, Connection, Generic, Geo, Hash, Hyperloglog, List, Scripting, Server, Set, SortedSet,
    Stream, String,
};
use super::Keys::{Georadius, Numkeys, Pairs, Sort, Streams};
use super::Rule::{Forward, Unsupported};
use super::{Access, Command, Group, Keys, Local, Merge, NumkeysFaults, Rule};

const NO_DATA: Access = Access::None;

const NONE: Keys = Keys::None;
const KEY: Keys = range(1, 1);
const TWO_KEYS: Keys = range(1, 2);
const ALL_KEYS: Keys = range(1, -1);
const SUBCOMMAND_KEY: Keys = range(2, 2);
/// BITOP's operation comes before its keys.
const AFTER_OPERATION: Keys = range(2, -1);

const SCRIPT: Keys = script(&NumkeysFaults {
    malformed: "ERR value is not an integer or out of range",
    negative: "ERR Number of keys can't be negative",
    zero: None,
    too_many: "ERR Number of keys can't be greater than number of args",
});
const FUNCTION: Keys = script(&NumkeysFaults {
    malformed: "ERR Bad number of keys provided",
    negative: "ERR Number of keys can't be negative",
    zero: None,
    too_many: "ERR Number of keys can't be greater than number of args",
});
const SINTERCARD: Keys = Numkeys {
    at: 1,
    first: 2,
    destination: 0,
    trailing: 0,
    faults: &NumkeysFaults {
        malformed: "ERR numkeys should be greater than 0",
        negative: "ERR numkeys should be greater than 0",
        zero: Some("ERR numkeys should be greater than 0"),
        too_many: "ERR Number of keys can't be greater than number of args",
    },
};
/// LMPOP and ZMPOP, which have to say from which end behind their keys.
const MPOP: Keys = Numkeys {
    at: 1,
    first: 2,
    destination: 0,
    trailing: 1,
    faults: &NumkeysFaults {
        malformed: "ERR numkeys should be greater than 0",
        negative: "ERR numkeys should be greater than 0",
        zero: Some("ERR numkeys should be greater than 0"),
        too_many: "ERR syntax error",
    },
};

/// Sorted sets to combine: their number at the first index, themselves behind it, and the result's
/// key before it if it is stored.
macro_rules! zset_keys {
    ($name:literal, $at:literal, $destination:literal) => {
        Numkeys {
            at: $at,
            first: $at + 1,
            destination: $destination,
            trailing: 0,
            faults: &NumkeysFaults {
                malformed: "ERR value is not an integer or out of range",
                negative: concat!("ERR at least 1 input key is needed for '", $name, "' command"),
                zero: Some(concat!("ERR at least 1 input key is needed for '", $name, "' command")),
                too_many: "ERR syntax error",
            },
        }
    };
}

const GATHER: Rule = Rule::Split(Merge::Gather);
const SUM: Rule = Rule::Split(Merge::Sum);
const ALL_OK: Rule = Rule::Split(Merge::AllOk);

const fn range(first: u16, last: i16) -> Keys {
    Keys::Range { first, last, step: 1 }
}

const fn script(faults: &'static NumkeysFaults) -> Keys {
    Numkeys { at: 2, first: 3, destination: 0, trailing: 0, faults }
}

const fn local(by: Local) -> Rule {
    Rule::Local(by)
}

const fn command(
    name: &'static str,
    arity: i16,
    access: Access,
    keys: Keys,
    rule: Rule,
    group: Group,
    flags: &'static str,
) -> Command {
    Command { name, arity, access, keys, rule, group, flags, subcommands: 0 }
}

impl Command {
    const fn containing(mut self, subcommands: u8) -> Self {
        self.subcommands = subcommands;
        self
    }
}

#[rustfmt::skip]
pub static COMMANDS: &[Command] = &[
    command("append", 3, Write, KEY, Forward, String, "denyoom fast"),
    command("decr", 2, Write, KEY, Forward, String, "denyoom fast"),
    command("decrby", 3, Write, KEY, Forward, String, "denyoom fast"),
    command("get", 2, Read, KEY, Forward, String, "fast"),
    command("getdel", 2, Write, KEY, Forward, String, "fast"),
    command("getex", -2, Write, KEY, Forward, String, "fast"),
    command("getrange", 4, Read, KEY, Forward, String, ""),
    command("getset", 3, Write, KEY, Forward, String, "denyoom fast"),
    command("incr", 2, Write, KEY, Forward, String, "denyoom fast"),
    command("incrby", 3, Write, KEY, Forward, String, "denyoom fast"),
    command("incrbyfloat", 3, Write, KEY, Forward, String, "denyoom fast"),
    command("lcs", -3, Read, TWO_KEYS, Forward, String, ""),
    command("mget", -2, Read, ALL_KEYS, GATHER, String, "fast"),
    command("mset", -3, Write, Pairs { uneven: "ERR wrong number of arguments for 'mset' command" }, ALL_OK, String, "denyoom"),
    command("msetnx", -3, Write, Pairs { uneven: "ERR wrong number of arguments for 'msetnx' command" }, Forward, String, "denyoom"),
    command("psetex", 4, Write, KEY, Forward, String, "denyoom"),
    command("set", -3, Write, KEY, Forward, String, "denyoom"),
    command("setex", 4, Write, KEY, Forward, String, "denyoom"),
    command("setnx", 3, Write, KEY, Forward, String, "denyoom fast"),
    command("setrange", 4, Write, KEY, Forward, String, "denyoom"),
    command("strlen", 2, Read, KEY, Forward, String, "fast"),
    command("substr", 4, Read, KEY, Forward, String, ""),

    command("bitcount", -2, Read, KEY, Forward, Bitmap, ""),
    command("bitfield", -2, Write, KEY, Forward, Bitmap, "denyoom"),
    command("bitfield_ro", -2, Read, KEY, Forward, Bitmap, "fast"),
    command("bitop", -4, Write, AFTER_OPERATION, Forward, Bitmap, "denyoom"),
    command("bitpos", -3, Read, KEY, Forward, Bitmap, ""),
    command("getbit", 3, Read, KEY, Forward, Bitmap, "fast"),
    command("setbit", 4, Write, KEY, Forward, Bitmap, "denyoom"),

    command("copy", -3, Write, TWO_KEYS, Forward, Generic, "denyoom"),
    command("del", -2, Write, ALL_KEYS, SUM, Generic, ""),
    command("dump", 2, Read, KEY, Forward, Generic, ""),
    command("exists", -2, Read, ALL_KEYS, SUM, Generic, "fast"),
    command("expire", -3, Write, KEY, Forward, Generic, "fast"),
    command("expireat", -3, Write, KEY, Forward, Generic, "fast"),
    command("expiretime", 2, Read, KEY, Forward, Generic, "fast"),
    command("move", 3, Write, KEY, Forward, Generic, "fast"),
    command("object", -2, NO_DATA, NONE, Unsupported, Generic, "").containing(4),
    command("object|encoding", 3, Read, SUBCOMMAND_KEY, Forward, Generic, ""),
    command("object|freq", 3, Read, SUBCOMMAND_KEY, Forward, Generic, ""),
    command("object|idletime", 3, Read, SUBCOMMAND_KEY, Forward, Generic, ""),
    command("object|refcount", 3, Read, SUBCOMMAND_KEY, Forward, Generic, ""),
    command("persist", 2, Write, KEY, Forward, Generic, "fast"),
    command("pexpire", -3, Write, KEY, Forward, Generic, "fast"),
    command("pexpireat", -3, Write, KEY, Forward, Generic, "fast"),
    command("pexpiretime", 2, Read, KEY, Forward, Generic, "fast"),
    command("pttl", 2, Read, KEY, Forward, Generic, "fast"),
    command("rename", 3, Write, TWO_KEYS, Forward, Generic, ""),
    command("renamenx", 3, Write, TWO_KEYS, Forward, Generic, "fast"),
    command("restore", -4, Write, KEY, Forward, Generic, "denyoom"),
    command("sort", -2, Write, Sort, Forward, Generic, "denyoom"),
    command("sort_ro", -2, Read, KEY, Forward, Generic, "movablekeys"),
    command("touch", -2, Read, ALL_KEYS, SUM, Generic, "fast"),
    command("ttl", 2, Read, KEY, Forward, Generic, "fast"),
    command("type", 2, Read, KEY, Forward, Generic, "fast"),
    command("unlink", -2, Write, ALL_KEYS, SUM, Generic, "fast"),

    command("hdel", -3, Write, KEY, Forward, Hash, "fast"),
    command("hexists", 3, Read, KEY, Forward, Hash, "fast"),
    command("hget", 3, Read, KEY, Forward, Hash, "fast"),
    command("hgetall", 2, Read, KEY, Forward, Hash, ""),
    command("hincrby", 4, Write, KEY, Forward, Hash, "denyoom fast"),
    command("hincrbyfloat", 4, Write, KEY, Forward, Hash, "denyoom fast"),
    command("hkeys", 2, Read, KEY, Forward, Hash, ""),
    command("hlen", 2, Read, KEY, Forward, Hash, "fast"),
    command("hmget", -3, Read, KEY, Forward, Hash, "fast"),
    command("hmset", -4, Write, KEY, Forward, Hash, "denyoom fast"),
    command("hrandfield", -2, Read, KEY, Forward, Hash, ""),
    command("hscan", -3, Read, KEY, Forward, Hash, ""),
    command("hset", -4, Write, KEY, Forward, Hash, "denyoom fast"),
    command("hsetnx", 4, Write, KEY, Forward, Hash, "denyoom fast"),
    command("hstrlen", 3, Read, KEY, Forward, Hash, "fast"),
    command("hvals", 2, Read, KEY, Forward, Hash, ""),

    command("lindex", 3, Read, KEY, Forward, List, ""),
    command("linsert", 5, Write, KEY, Forward, List, "denyoom"),
    command("llen", 2, Read, KEY, Forward, List, "fast"),
    command("lmove", 5, Write, TWO_KEYS, Forward, List, "denyoom"),
    command("lmpop", -4, Write, MPOP, Forward, List, ""),
    command("lpop", -2, Write, KEY, Forward, List, "fast"),
    command("lpos", -3, Read, KEY, Forward, List, ""),
    command("lpush", -3, Write, KEY, Forward, List, "denyoom fast"),
    command("lpushx", -3, Write, KEY, Forward, List, "denyoom fast"),
    command("lrange", 4, Read, KEY, Forward, List, ""),
    command("lrem", 4, Write, KEY, Forward, List, ""),
    command("lset", 4, Write, KEY, Forward, List, "denyoom"),
    command("ltrim", 4, Write, KEY, Forward, List, ""),
    command("rpop", -2, Write, KEY, Forward, List, "fast"),
    command("rpoplpush", 3, Write, TWO_KEYS, Forward, List, "denyoom"),
    command("rpush", -3, Write, KEY, Forward, List, "denyoom fast"),
    command("rpushx", -3, Write, KEY, Forward, List, "denyoom fast"),

    command("sadd", -3, Write, KEY, Forward, Set, "denyoom fast"),
    command("scard", 2, Read, KEY, Forward, Set, "fast"),
    command("sdiff", -2, Read, ALL_KEYS, Forward, Set, ""),
    command("sdiffstore", -3, Write, ALL_KEYS, Forward, Set, "denyoom"),
    command("sinter", -2, Read, ALL_KEYS, Forward, Set, ""),
    command("sintercard", -3, Read, SINTERCARD, Forward, Set, ""),
    command("sinterstore", -3, Write, ALL_KEYS, Forward, Set, "denyoom"),
    command("sismember", 3, Read, KEY, Forward, Set, "fast"),
    command("smembers", 2, Read, KEY, Forward, Set, ""),
    command("smismember", -3, Read, KEY, Forward, Set, "fast"),
    command("smove", 4, Write, TWO_KEYS, Forward, Set, "fast"),
    command("spop", -2, Write, KEY, Forward, Set, "fast"),
    command("srandmember", -2, Read, KEY, Forward, Set, ""),
    command("srem", -3, Write, KEY, Forward, Set, "fast"),
    command("sscan", -3, Read, KEY, Forward, Set, ""),
    command("sunion", -2, Read, ALL_KEYS, Forward, Set, ""),
    command("sunionstore", -3, Write, ALL_KEYS, Forward, Set, "denyoom"),

    command("zadd", -4, Write, KEY, Forward, SortedSet, "denyoom fast"),
    command("zcard", 2, Read, KEY, Forward, SortedSet, "fast"),
    command("zcount", 4, Read, KEY, Forward, SortedSet, "fast"),
    command("zdiff", -3, Read, zset_keys!("zdiff", 1, 0), Forward, SortedSet, ""),
    command("zdiffstore", -4, Write, zset_keys!("zdiffstore", 2, 1), Forward, SortedSet, "denyoom"),
    command("zincrby", 4, Write, KEY, Forward, SortedSet, "denyoom fast"),
    command("zinter", -3, Read, zset_keys!("zinter", 1, 0), Forward, SortedSet, ""),
    command("zintercard", -3, Read, zset_keys!("zintercard", 1, 0), Forward, SortedSet, ""),
    command("zinterstore", -4, Write, zset_keys!("zinterstore", 2, 1), Forward, SortedSet, "denyoom"),
    command("zlexcount", 4, Read, KEY, Forward, SortedSet, "fast"),
    command("zmpop", -4, Write, MPOP, Forward, SortedSet, ""),
    command("zmscore", -3, Read, KEY, Forward, SortedSet, "fast"),
    command("zpopmax", -2, Write, KEY, Forward, SortedSet, "fast"),
    command("zpopmin", -2, Write, KEY, Forward, SortedSet, "fast"),
    command("zrandmember", -2, Read, KEY, Forward, SortedSet, ""),
    command("zrange", -4, Read, KEY, Forward, SortedSet, ""),
    command("zrangebylex", -4, Read, KEY, Forward, SortedSet, ""),
    command("zrangebyscore", -4, Read, KEY, Forward, SortedSet, ""),
    command("zrangestore", -5, Write, TWO_KEYS, Forward, SortedSet, "denyoom"),
    command("zrank", 3, Read, KEY, Forward, SortedSet, "fast"),
    command("zrem", -3, Write, KEY, Forward, SortedSet, "fast"),
    command("zremrangebylex", 4, Write, KEY, Forward, SortedSet, ""),
    command("zremrangebyrank", 4, Write, KEY, Forward, SortedSet, ""),
    command("zremrangebyscore", 4, Write, KEY, Forward, SortedSet, ""),
    command("zrevrange", -4, Read, KEY, Forward, SortedSet, ""),
    command("zrevrangebylex", -4, Read, KEY, Forward, SortedSet, ""),
    command("zrevrangebyscore", -4, Read, KEY, Forward, SortedSet, ""),
    command("zrevrank", 3, Read, KEY, Forward, SortedSet, "fast"),
    command("zscan", -3, Read, KEY, Forward, SortedSet, ""),
    command("zscore", 3, Read, KEY, Forward, SortedSet, "fast"),
    command("zunion", -3, Read, zset_keys!("zunion", 1, 0), Forward, SortedSet, ""),
    command("zunionstore", -4, Write, zset_keys!("zunionstore", 2, 1), Forward, SortedSet, "denyoom"),

    command("pfadd", -2, Write, KEY, Forward, Hyperloglog, "denyoom fast"),
    command("pfcount", -2, Read, ALL_KEYS, Forward, Hyperloglog, ""),
    command("pfmerge", -2, Write, ALL_KEYS, Forward, Hyperloglog, "denyoom"),

    command("geoadd", -5, Write, KEY, Forward, Geo, "denyoom"),
    command("geodist", -4, Read, KEY, Forward, Geo, ""),
    command("geohash", -2, Read, KEY, Forward, Geo, ""),
    command("geopos", -2, Read, KEY, Forward, Geo, ""),
    command("georadius", -6, Write, Georadius, Forward, Geo, "denyoom"),
    command("georadius_ro", -6, Read, KEY, Forward, Geo, ""),
    command("georadiusbymember", -5, Write, Georadius, Forward, Geo, "denyoom"),
    command("georadiusbymember_ro", -5, Read, KEY, Forward, Geo, ""),
    command("geosearch", -7, Read, KEY, Forward, Geo, ""),
    command("geosearchstore", -8, Write, TWO_KEYS, Forward, Geo, "denyoom"),

    command("xack", -4, Write, KEY, Forward, Stream, "fast"),
    command("xadd", -5, Write, KEY, Forward, Stream, "denyoom fast"),
    command("xautoclaim", -6, Write, KEY, Forward, Stream, "fast"),
    command("xclaim", -6, Write, KEY, Forward, Stream, "fast"),
    command("xdel", -3, Write, KEY, Forward, Stream, "fast"),
    command("xgroup", -2, NO_DATA, NONE, Unsupported, Stream, "").containing(5),
    command("xgroup|create", -5, Write, SUBCOMMAND_KEY, Forward, Stream, "denyoom"),
    command("xgroup|createconsumer", 5, Write, SUBCOMMAND_KEY, Forward, Stream, "denyoom"),
    command("xgroup|delconsumer", 5, Write, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xgroup|destroy", 4, Write, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xgroup|setid", -5, Write, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xinfo", -2, NO_DATA, NONE, Unsupported, Stream, "").containing(3),
    command("xinfo|consumers", 4, Read, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xinfo|groups", 3, Read, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xinfo|stream", -3, Read, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xlen", 2, Read, KEY, Forward, Stream, "fast"),
    command("xpending", -3, Read, KEY, Forward, Stream, ""),
    command("xrange", -4, Read, KEY, Forward, Stream, ""),
    command("xread", -4, Read, Streams, Forward, Stream, "blocking"),
    command("xreadgroup", -7, Write, Streams, Forward, Stream, "blocking"),
    command("xrevrange", -4, Read, KEY, Forward, Stream, ""),
    command("xsetid", -3, Write, KEY, Forward, Stream, "denyoom fast"),
    command("xtrim", -4, Write, KEY, Forward, Stream, ""),

    command("eval", -3, NO_DATA, SCRIPT, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("eval_ro", -3, Read, SCRIPT, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("evalsha", -3, NO_DATA, SCRIPT, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("evalsha_ro", -3, Read, SCRIPT, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("fcall", -3, NO_DATA, FUNCTION, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("fcall_ro", -3, Read, FUNCTION, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),

    command("auth", -2, NO_DATA, NONE, local(Local::Auth), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("client", -2, NO_DATA, NONE, Unsupported, Connection, "").containing(4),
    command("client|getname", 2, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|id", 2, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|setinfo", 4, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|setname", 3, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("echo", 2, NO_DATA, NONE, local(Local::Echo), Connection, "loading stale fast"),
    command("hello", -1, NO_DATA, NONE, local(Local::Hello), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("ping", -1, NO_DATA, NONE, local(Local::Ping), Connection, "fast"),
    command("quit", -1, NO_DATA, NONE, local(Local::Quit), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("select", 2, NO_DATA, NONE, local(Local::Select), Connection, "loading stale fast"),

    command("command", -1, NO_DATA, NONE, local(Local::Command), Server, "loading stale").containing(5),
    command("command|count", 2, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|docs", -2, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|getkeys", -4, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|info", -2, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|list", -2, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("info", -1, NO_DATA, NONE, local(Local::Info), Server, "loading stale"),
    command("memory", -2, NO_DATA, NONE, Unsupported, Server, "").containing(1),
    command("memory|usage", -3, Read, SUBCOMMAND_KEY, Forward, Server, ""),
];
