//! The table: one line per command, subcommands behind their container.
//!
//! What is missing does not exist for clients.

use super::Access::{Read, Write};
use super::Group::{
    Bitmap, Cluster, Connection, Generic, Geo, Hash, Hyperloglog, List, Pubsub, Scripting, Server,
    Set, SortedSet, Stream, String, Transactions,
};
use super::Keys::{Georadius, Numkeys, Pairs, Sort, Streams};
use super::Rule::{Block, Forward, Publish, Refuse, Single, Unsupported};
use super::{
    Access, Command, Fan, Group, Keys, Local, Merge, NumkeysFaults, Rule, SessionRule, Subscription,
};

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
const MPOP: Keys = mpop(1);
/// BLMPOP and BZMPOP, which have their timeout in front.
const BLOCKING_MPOP: Keys = mpop(2);

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
const ANY: Rule = Rule::Fan(Fan::AnyServer);

/// As every Redis that is no cluster answers.
const NO_CLUSTER: Rule = Refuse("ERR This instance has cluster support disabled");
const REPLICATION: &str = "ERR replication is between servers, not through the gateway: ask the \
                           servers themselves, and name them in the gateway's configuration";
const SHUTDOWN: &str = "ERR SHUTDOWN would stop the servers of all clients: ask the servers \
                        themselves; QUIT ends a connection";
const MODULES: &str = "ERR modules are loaded at the servers themselves, not through the gateway";
const USERS: &str = "ERR the servers' users are not those of the gateway, which is one user to \
                     them: manage ACLs at the servers themselves";
const SCRIPT_DEBUG: &str = "ERR scripts are debugged at a server itself, not through the gateway";
const SWAPDB: &str = "ERR SWAPDB cannot swap the databases of several servers at one instant: ask \
                      the servers themselves";

const fn range(first: u16, last: i16) -> Keys {
    Keys::Range { first, last, step: 1 }
}

const fn script(faults: &'static NumkeysFaults) -> Keys {
    Numkeys { at: 2, first: 3, destination: 0, trailing: 0, faults }
}

const fn mpop(at: u16) -> Keys {
    Numkeys {
        at,
        first: at + 1,
        destination: 0,
        trailing: 1,
        faults: &NumkeysFaults {
            malformed: "ERR numkeys should be greater than 0",
            negative: "ERR numkeys should be greater than 0",
            zero: Some("ERR numkeys should be greater than 0"),
            too_many: "ERR syntax error",
        },
    }
}

const fn local(by: Local) -> Rule {
    Rule::Local(by)
}

const fn fan(fan: Fan) -> Rule {
    Rule::Fan(fan)
}

const fn session(rule: SessionRule) -> Rule {
    Rule::Session(rule)
}

const fn subscription(kind: Subscription) -> Rule {
    Rule::Subscribe(kind)
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
    command("keys", 2, Read, NONE, fan(Fan::Concat), Generic, ""),
    command("migrate", -6, Write, Keys::Migrate, Forward, Generic, ""),
    command("move", 3, Write, KEY, Forward, Generic, "fast"),
    command("object", -2, NO_DATA, NONE, Unsupported, Generic, "").containing(5),
    command("object|encoding", 3, Read, SUBCOMMAND_KEY, Forward, Generic, ""),
    command("object|freq", 3, Read, SUBCOMMAND_KEY, Forward, Generic, ""),
    command("object|help", 2, NO_DATA, NONE, ANY, Generic, "loading stale"),
    command("object|idletime", 3, Read, SUBCOMMAND_KEY, Forward, Generic, ""),
    command("object|refcount", 3, Read, SUBCOMMAND_KEY, Forward, Generic, ""),
    command("persist", 2, Write, KEY, Forward, Generic, "fast"),
    command("pexpire", -3, Write, KEY, Forward, Generic, "fast"),
    command("pexpireat", -3, Write, KEY, Forward, Generic, "fast"),
    command("pexpiretime", 2, Read, KEY, Forward, Generic, "fast"),
    command("pttl", 2, Read, KEY, Forward, Generic, "fast"),
    command("randomkey", 1, Read, NONE, fan(Fan::RandomKey), Generic, ""),
    command("rename", 3, Write, TWO_KEYS, Forward, Generic, ""),
    command("renamenx", 3, Write, TWO_KEYS, Forward, Generic, "fast"),
    command("restore", -4, Write, KEY, Forward, Generic, "denyoom"),
    command("scan", -2, Read, NONE, fan(Fan::Scan), Generic, ""),
    command("sort", -2, Write, Sort, Forward, Generic, "denyoom"),
    command("sort_ro", -2, Read, KEY, Forward, Generic, "movablekeys"),
    command("touch", -2, Read, ALL_KEYS, SUM, Generic, "fast"),
    command("ttl", 2, Read, KEY, Forward, Generic, "fast"),
    command("type", 2, Read, KEY, Forward, Generic, "fast"),
    command("unlink", -2, Write, ALL_KEYS, SUM, Generic, "fast"),
    command("wait", 3, NO_DATA, NONE, fan(Fan::Least), Generic, "noscript"),

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

    command("blmove", 6, Write, TWO_KEYS, Block, List, "denyoom noscript blocking"),
    command("blmpop", -5, Write, BLOCKING_MPOP, Block, List, "blocking"),
    command("blpop", -3, Write, range(1, -2), Block, List, "noscript blocking"),
    command("brpop", -3, Write, range(1, -2), Block, List, "noscript blocking"),
    command("brpoplpush", 4, Write, TWO_KEYS, Block, List, "denyoom noscript blocking"),
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

    command("bzmpop", -5, Write, BLOCKING_MPOP, Block, SortedSet, "blocking"),
    command("bzpopmax", -3, Write, range(1, -2), Block, SortedSet, "noscript blocking fast"),
    command("bzpopmin", -3, Write, range(1, -2), Block, SortedSet, "noscript blocking fast"),
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
    command("pfdebug", 3, Write, SUBCOMMAND_KEY, Forward, Hyperloglog, "denyoom admin"),
    command("pfmerge", -2, Write, ALL_KEYS, Forward, Hyperloglog, "denyoom"),
    command("pfselftest", 1, NO_DATA, NONE, ANY, Hyperloglog, "admin"),

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
    command("xgroup", -2, NO_DATA, NONE, Unsupported, Stream, "").containing(6),
    command("xgroup|create", -5, Write, SUBCOMMAND_KEY, Forward, Stream, "denyoom"),
    command("xgroup|createconsumer", 5, Write, SUBCOMMAND_KEY, Forward, Stream, "denyoom"),
    command("xgroup|delconsumer", 5, Write, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xgroup|destroy", 4, Write, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xgroup|help", 2, NO_DATA, NONE, ANY, Stream, "loading stale"),
    command("xgroup|setid", -5, Write, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xinfo", -2, NO_DATA, NONE, Unsupported, Stream, "").containing(4),
    command("xinfo|consumers", 4, Read, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xinfo|groups", 3, Read, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xinfo|help", 2, NO_DATA, NONE, ANY, Stream, "loading stale"),
    command("xinfo|stream", -3, Read, SUBCOMMAND_KEY, Forward, Stream, ""),
    command("xlen", 2, Read, KEY, Forward, Stream, "fast"),
    command("xpending", -3, Read, KEY, Forward, Stream, ""),
    command("xrange", -4, Read, KEY, Forward, Stream, ""),
    command("xread", -4, Read, Streams, Block, Stream, "blocking"),
    command("xreadgroup", -7, Write, Streams, Block, Stream, "blocking"),
    command("xrevrange", -4, Read, KEY, Forward, Stream, ""),
    command("xsetid", -3, Write, KEY, Forward, Stream, "denyoom fast"),
    command("xtrim", -4, Write, KEY, Forward, Stream, ""),

    command("eval", -3, NO_DATA, SCRIPT, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("eval_ro", -3, Read, SCRIPT, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("evalsha", -3, NO_DATA, SCRIPT, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("evalsha_ro", -3, Read, SCRIPT, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("fcall", -3, NO_DATA, FUNCTION, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("fcall_ro", -3, Read, FUNCTION, Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("function", -2, NO_DATA, NONE, Unsupported, Scripting, "").containing(9),
    command("function|delete", 3, Write, NONE, fan(Fan::Same), Scripting, "noscript"),
    command("function|dump", 2, NO_DATA, NONE, ANY, Scripting, "noscript"),
    command("function|flush", -2, Write, NONE, fan(Fan::Same), Scripting, "noscript"),
    command("function|help", 2, NO_DATA, NONE, ANY, Scripting, "loading stale"),
    command("function|kill", 2, NO_DATA, NONE, fan(Fan::AnyOk), Scripting, "noscript allow_busy"),
    command("function|list", -2, NO_DATA, NONE, ANY, Scripting, "noscript"),
    command("function|load", -3, Write, NONE, fan(Fan::Same), Scripting, "denyoom noscript"),
    command("function|restore", -3, Write, NONE, fan(Fan::Same), Scripting, "denyoom noscript"),
    command("function|stats", 2, NO_DATA, NONE, ANY, Scripting, "noscript allow_busy"),
    command("script", -2, NO_DATA, NONE, Unsupported, Scripting, "").containing(6),
    command("script|debug", 3, NO_DATA, NONE, Refuse(SCRIPT_DEBUG), Scripting, "noscript"),
    command("script|exists", -3, NO_DATA, NONE, fan(Fan::LeastEach), Scripting, "noscript"),
    command("script|flush", -2, NO_DATA, NONE, fan(Fan::Same), Scripting, "noscript"),
    command("script|help", 2, NO_DATA, NONE, ANY, Scripting, "loading stale"),
    command("script|kill", 2, NO_DATA, NONE, fan(Fan::AnyOk), Scripting, "noscript allow_busy"),
    command("script|load", 3, NO_DATA, NONE, fan(Fan::Same), Scripting, "noscript stale"),

    command("psubscribe", -2, NO_DATA, NONE, subscription(Subscription::Psubscribe), Pubsub, "pubsub noscript loading stale"),
    command("publish", 3, NO_DATA, NONE, Publish, Pubsub, "pubsub loading stale fast"),
    command("pubsub", -2, NO_DATA, NONE, Unsupported, Pubsub, "").containing(6),
    command("pubsub|channels", -2, NO_DATA, NONE, fan(Fan::Concat), Pubsub, "pubsub loading stale"),
    command("pubsub|help", 2, NO_DATA, NONE, ANY, Pubsub, "loading stale"),
    command("pubsub|numpat", 2, NO_DATA, NONE, fan(Fan::Sum), Pubsub, "pubsub loading stale"),
    command("pubsub|numsub", -2, NO_DATA, NONE, fan(Fan::SumPairs), Pubsub, "pubsub loading stale"),
    command("pubsub|shardchannels", -2, NO_DATA, NONE, fan(Fan::Concat), Pubsub, "pubsub loading stale"),
    command("pubsub|shardnumsub", -2, NO_DATA, NONE, fan(Fan::SumPairs), Pubsub, "pubsub loading stale"),
    command("punsubscribe", -1, NO_DATA, NONE, subscription(Subscription::Punsubscribe), Pubsub, "pubsub noscript loading stale"),
    command("spublish", 3, NO_DATA, KEY, Publish, Pubsub, "pubsub loading stale fast"),
    command("ssubscribe", -2, NO_DATA, ALL_KEYS, subscription(Subscription::Ssubscribe), Pubsub, "pubsub noscript loading stale"),
    command("subscribe", -2, NO_DATA, NONE, subscription(Subscription::Subscribe), Pubsub, "pubsub noscript loading stale"),
    command("sunsubscribe", -1, NO_DATA, ALL_KEYS, subscription(Subscription::Sunsubscribe), Pubsub, "pubsub noscript loading stale"),
    command("unsubscribe", -1, NO_DATA, NONE, subscription(Subscription::Unsubscribe), Pubsub, "pubsub noscript loading stale"),

    command("discard", 1, NO_DATA, NONE, session(SessionRule::Discard), Transactions, "noscript loading stale fast allow_busy"),
    command("exec", 1, NO_DATA, NONE, session(SessionRule::Exec), Transactions, "noscript loading stale skip_slowlog"),
    command("multi", 1, NO_DATA, NONE, session(SessionRule::Multi), Transactions, "noscript loading stale fast allow_busy"),
    command("unwatch", 1, NO_DATA, NONE, session(SessionRule::Unwatch), Transactions, "noscript loading stale fast allow_busy"),
    command("watch", -2, NO_DATA, ALL_KEYS, session(SessionRule::Watch), Transactions, "noscript loading stale fast allow_busy"),

    command("auth", -2, NO_DATA, NONE, local(Local::Auth), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("client", -2, NO_DATA, NONE, Unsupported, Connection, "").containing(17),
    command("client|caching", 3, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|getname", 2, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|getredir", 2, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|help", 2, NO_DATA, NONE, ANY, Connection, "loading stale"),
    command("client|id", 2, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|info", 2, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|kill", -3, NO_DATA, NONE, local(Local::Client), Connection, "admin noscript loading stale"),
    command("client|list", -2, NO_DATA, NONE, local(Local::Client), Connection, "admin noscript loading stale"),
    command("client|no-evict", 3, NO_DATA, NONE, local(Local::Client), Connection, "admin noscript loading stale"),
    command("client|pause", -3, NO_DATA, NONE, local(Local::Client), Connection, "admin noscript loading stale"),
    command("client|reply", 3, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|setinfo", 4, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|setname", 3, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|tracking", -3, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|trackinginfo", 2, NO_DATA, NONE, local(Local::Client), Connection, "noscript loading stale"),
    command("client|unblock", -3, NO_DATA, NONE, local(Local::Client), Connection, "admin noscript loading stale"),
    command("client|unpause", 2, NO_DATA, NONE, local(Local::Client), Connection, "admin noscript loading stale"),
    command("echo", 2, NO_DATA, NONE, local(Local::Echo), Connection, "loading stale fast"),
    command("hello", -1, NO_DATA, NONE, local(Local::Hello), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("ping", -1, NO_DATA, NONE, local(Local::Ping), Connection, "fast"),
    command("quit", -1, NO_DATA, NONE, local(Local::Quit), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("reset", 1, NO_DATA, NONE, session(SessionRule::Reset), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("select", 2, NO_DATA, NONE, local(Local::Select), Connection, "loading stale fast"),

    command("acl", -2, NO_DATA, NONE, Unsupported, Server, "").containing(13),
    command("acl|cat", -2, NO_DATA, NONE, ANY, Server, "noscript loading stale"),
    command("acl|deluser", -3, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|dryrun", -4, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|genpass", -2, NO_DATA, NONE, ANY, Server, "noscript loading stale"),
    command("acl|getuser", 3, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|help", 2, NO_DATA, NONE, ANY, Server, "loading stale"),
    command("acl|list", 2, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|load", 2, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|log", -2, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|save", 2, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|setuser", -3, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|users", 2, NO_DATA, NONE, Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|whoami", 2, NO_DATA, NONE, local(Local::User), Server, "noscript loading stale"),
    command("bgrewriteaof", 1, NO_DATA, NONE, fan(Fan::Same), Server, "admin noscript no_async_loading"),
    command("bgsave", -1, NO_DATA, NONE, fan(Fan::Same), Server, "admin noscript no_async_loading"),
    command("command", -1, NO_DATA, NONE, local(Local::Command), Server, "loading stale").containing(7),
    command("command|count", 2, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|docs", -2, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|getkeys", -4, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|getkeysandflags", -4, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|help", 2, NO_DATA, NONE, ANY, Server, "loading stale"),
    command("command|info", -2, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("command|list", -2, NO_DATA, NONE, local(Local::Command), Server, "loading stale"),
    command("config", -2, NO_DATA, NONE, Unsupported, Server, "").containing(5),
    command("config|get", -3, NO_DATA, NONE, ANY, Server, "admin noscript loading stale"),
    command("config|help", 2, NO_DATA, NONE, ANY, Server, "loading stale"),
    command("config|resetstat", 2, NO_DATA, NONE, fan(Fan::Same), Server, "admin noscript loading stale"),
    command("config|rewrite", 2, NO_DATA, NONE, fan(Fan::Same), Server, "admin noscript loading stale"),
    command("config|set", -4, NO_DATA, NONE, fan(Fan::Same), Server, "admin noscript loading stale"),
    command("dbsize", 1, Read, NONE, fan(Fan::Sum), Server, "fast"),
    command("debug", -2, NO_DATA, NONE, fan(Fan::Same), Server, "admin noscript loading stale"),
    command("failover", -1, NO_DATA, NONE, Refuse(REPLICATION), Server, "admin noscript stale"),
    command("flushall", -1, Write, NONE, fan(Fan::Same), Server, ""),
    command("flushdb", -1, Write, NONE, fan(Fan::Same), Server, ""),
    command("info", -1, NO_DATA, NONE, fan(Fan::Info), Server, "loading stale"),
    command("lastsave", 1, NO_DATA, NONE, fan(Fan::Least), Server, "loading stale fast"),
    command("latency", -2, NO_DATA, NONE, Unsupported, Server, "").containing(7),
    command("latency|doctor", 2, NO_DATA, NONE, fan(Fan::PerServer), Server, "admin noscript loading stale"),
    command("latency|graph", 3, NO_DATA, NONE, fan(Fan::PerServer), Server, "admin noscript loading stale"),
    command("latency|help", 2, NO_DATA, NONE, ANY, Server, "loading stale"),
    command("latency|histogram", -2, NO_DATA, NONE, fan(Fan::PerServer), Server, "admin noscript loading stale"),
    command("latency|history", 3, NO_DATA, NONE, fan(Fan::Concat), Server, "admin noscript loading stale"),
    command("latency|latest", 2, NO_DATA, NONE, fan(Fan::Concat), Server, "admin noscript loading stale"),
    command("latency|reset", -2, NO_DATA, NONE, fan(Fan::Sum), Server, "admin noscript loading stale"),
    command("lolwut", -1, Read, NONE, ANY, Server, "fast"),
    command("memory", -2, NO_DATA, NONE, Unsupported, Server, "").containing(6),
    command("memory|doctor", 2, NO_DATA, NONE, fan(Fan::PerServer), Server, ""),
    command("memory|help", 2, NO_DATA, NONE, ANY, Server, "loading stale"),
    command("memory|malloc-stats", 2, NO_DATA, NONE, fan(Fan::PerServer), Server, ""),
    command("memory|purge", 2, NO_DATA, NONE, fan(Fan::Same), Server, ""),
    command("memory|stats", 2, NO_DATA, NONE, fan(Fan::PerServer), Server, ""),
    command("memory|usage", -3, Read, SUBCOMMAND_KEY, Forward, Server, ""),
    command("module", -2, NO_DATA, NONE, Unsupported, Server, "").containing(5),
    command("module|help", 2, NO_DATA, NONE, ANY, Server, "loading stale"),
    command("module|list", 2, NO_DATA, NONE, ANY, Server, "admin noscript"),
    command("module|load", -3, NO_DATA, NONE, Refuse(MODULES), Server, "admin noscript no_async_loading"),
    command("module|loadex", -3, NO_DATA, NONE, Refuse(MODULES), Server, "admin noscript no_async_loading"),
    command("module|unload", 3, NO_DATA, NONE, Refuse(MODULES), Server, "admin noscript no_async_loading"),
    command("monitor", 1, NO_DATA, NONE, session(SessionRule::Monitor), Server, "admin noscript loading stale"),
    command("psync", -3, NO_DATA, NONE, Refuse(REPLICATION), Server, "admin noscript no_async_loading no_multi"),
    command("replconf", -1, NO_DATA, NONE, Refuse(REPLICATION), Server, "admin noscript loading stale allow_busy"),
    command("replicaof", 3, NO_DATA, NONE, Refuse(REPLICATION), Server, "admin noscript stale no_async_loading"),
    command("restore-asking", -4, Write, KEY, Forward, Server, "denyoom asking"),
    command("role", 1, NO_DATA, NONE, local(Local::Role), Server, "noscript loading stale fast"),
    command("save", 1, NO_DATA, NONE, fan(Fan::Same), Server, "admin noscript no_async_loading no_multi"),
    command("shutdown", -1, NO_DATA, NONE, Refuse(SHUTDOWN), Server, "admin noscript loading stale no_multi allow_busy"),
    command("slaveof", 3, NO_DATA, NONE, Refuse(REPLICATION), Server, "admin noscript stale no_async_loading"),
    command("slowlog", -2, NO_DATA, NONE, Unsupported, Server, "").containing(4),
    command("slowlog|get", -2, NO_DATA, NONE, fan(Fan::Concat), Server, "admin loading stale"),
    command("slowlog|help", 2, NO_DATA, NONE, ANY, Server, "loading stale"),
    command("slowlog|len", 2, NO_DATA, NONE, fan(Fan::Sum), Server, "admin loading stale"),
    command("slowlog|reset", 2, NO_DATA, NONE, fan(Fan::Same), Server, "admin loading stale"),
    command("swapdb", 3, Write, NONE, Single(SWAPDB), Server, "fast"),
    command("sync", 1, NO_DATA, NONE, Refuse(REPLICATION), Server, "admin noscript no_async_loading no_multi"),
    command("time", 1, NO_DATA, NONE, ANY, Server, "loading stale fast"),

    command("asking", 1, NO_DATA, NONE, NO_CLUSTER, Cluster, "fast"),
    command("cluster", -2, NO_DATA, NONE, Unsupported, Cluster, "").containing(27),
    command("cluster|addslots", -3, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|addslotsrange", -4, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|bumpepoch", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|count-failure-reports", 3, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale"),
    command("cluster|countkeysinslot", 3, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("cluster|delslots", -3, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|delslotsrange", -4, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|failover", -2, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|flushslots", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|forget", 3, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|getkeysinslot", 4, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("cluster|help", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "loading stale"),
    command("cluster|info", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("cluster|keyslot", 3, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("cluster|links", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("cluster|meet", -4, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|myid", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("cluster|nodes", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("cluster|replicas", 3, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale"),
    command("cluster|replicate", 3, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|reset", -2, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin noscript stale"),
    command("cluster|saveconfig", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|set-config-epoch", 3, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|setslot", -4, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|shards", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("cluster|slaves", 3, NO_DATA, NONE, NO_CLUSTER, Cluster, "admin stale"),
    command("cluster|slots", 2, NO_DATA, NONE, NO_CLUSTER, Cluster, "stale"),
    command("readonly", 1, NO_DATA, NONE, NO_CLUSTER, Cluster, "loading stale fast"),
    command("readwrite", 1, NO_DATA, NONE, NO_CLUSTER, Cluster, "loading stale fast"),
];
