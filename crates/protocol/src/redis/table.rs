//! The table: one line per command, subcommands after their container.
//!
//! Clients cannot use commands that are not in it.

use super::Access::{Read, Walk, Write};
use super::Clearance::{Admin, Application};
use super::Group::{
    Array, Bitmap, Cluster, Connection, Generic, Geo, Hash, Hyperloglog, List, Module, Pubsub,
    Scripting, Server, Set, SortedSet, Stream, String, Transactions,
};
use super::Keys::{Georadius, Numkeys, Pairs, Streams};
use super::Rule::{Block, Forward, Publish, Refuse, Single, Unsupported};
use super::{
    Access, Clearance, Command, Facts, Fan, Group, Keys, Local, Merge, NumkeysFaults, Rule,
    SessionRule, Subscription,
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
    step: 1,
    destination: 0,
    trailing: 0,
    faults: &NumkeysFaults {
        malformed: "ERR numkeys should be greater than 0",
        negative: "ERR numkeys should be greater than 0",
        zero: Some("ERR numkeys should be greater than 0"),
        too_many: "ERR Number of keys can't be greater than number of args",
    },
};
const MSETEX: Keys = Numkeys {
    at: 1,
    first: 2,
    step: 2,
    destination: 0,
    trailing: 0,
    faults: &NumkeysFaults {
        malformed: "ERR invalid numkeys value or out of range",
        negative: "ERR invalid numkeys value or out of range",
        zero: Some("ERR invalid numkeys value or out of range"),
        too_many: "ERR syntax error",
    },
};
const SORT: Keys = Keys::Sort { stores: true };
const SORT_RO: Keys = Keys::Sort { stores: false };
/// LMPOP and ZMPOP, which have the end to pop from after their keys.
const MPOP: Keys = mpop(1);
/// BLMPOP and BZMPOP, which have their timeout first.
const BLOCKING_MPOP: Keys = mpop(2);

/// Sorted sets to combine: their number at the first index, the keys after it, and the result's key
/// before it if it is stored.
macro_rules! zset_keys {
    ($name:literal, $at:literal, $destination:literal) => {
        Numkeys {
            at: $at,
            first: $at + 1,
            step: 1,
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

/// The error of every Redis that is not in cluster mode.
const NO_CLUSTER: Rule = Refuse(NO_CLUSTER_TEXT);
pub const NO_CLUSTER_TEXT: &str = "ERR This instance has cluster support disabled";
const REPLICATION: &str = "ERR replication is between servers, not through the gateway: ask the \
                           servers themselves, and name them in the gateway's configuration";
const SHUTDOWN: &str = "ERR SHUTDOWN would stop the servers of all clients: ask the servers \
                        themselves; QUIT ends a connection";
const MODULES: &str = "ERR modules are loaded at the servers themselves, not through the gateway";
const USERS: &str = "ERR the users are those of the gateway's configuration: change its 'users' or \
                     'acl_file', and reload it";
const SCRIPT_DEBUG: &str = "ERR scripts are debugged at a server itself, not through the gateway";
const IMPORT_SOURCE: &str = "ERR CLIENT IMPORT-SOURCE marks a connection to a server, and clients \
                             share these: import at the servers themselves";
const HIMPORT: &str = "ERR HIMPORT prepares a connection to a server, and clients share these: use \
                       HSET, or import at the servers themselves";
const POPULATE: &str = "ERR DEBUG POPULATE makes keys on servers that are not theirs";
const SWAPDB: &str = "ERR SWAPDB cannot swap the databases of several servers at one instant: ask \
                      the servers themselves";

const fn range(first: u16, last: i16) -> Keys {
    Keys::Range { first, last, step: 1 }
}

const fn script(faults: &'static NumkeysFaults) -> Keys {
    Numkeys { at: 2, first: 3, step: 1, destination: 0, trailing: 0, faults }
}

const fn mpop(at: u16) -> Keys {
    Numkeys {
        at,
        first: at + 1,
        step: 1,
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

#[expect(clippy::too_many_arguments, reason = "the columns of the table")]
const fn command(
    name: &'static str,
    arity: i16,
    access: Access,
    keys: Keys,
    uses: &'static str,
    rule: Rule,
    group: Group,
    flags: &'static str,
) -> Command {
    let facts = Facts { flags, uses, categories: None, tips: "", since: "", is_open: false };
    let (id, clearance) = (0, Clearance::Cache);
    Command { id, name, arity, access, keys, rule, group, subcommands: 0, clearance, facts }
}

/// Numbers the commands by their place in the table.
const fn numbered<const N: usize>(mut commands: [Command; N]) -> [Command; N] {
    let mut at = 0;
    while at < N {
        commands[at].id = at as u16;
        at += 1;
    }
    commands
}

impl Command {
    const fn containing(mut self, subcommands: u8) -> Self {
        self.subcommands = subcommands;
        self
    }

    /// Has subcommands that COMMAND does not know.
    const fn distinguishing(mut self, subcommands: u8) -> Self {
        self.facts.is_open = true;
        self.containing(subcommands)
    }

    const fn in_categories(mut self, categories: &'static str) -> Self {
        self.facts.categories = Some(categories);
        self
    }

    const fn needs(mut self, clearance: Clearance) -> Self {
        self.clearance = clearance;
        self
    }

    const fn tips(mut self, tips: &'static str) -> Self {
        self.facts.tips = tips;
        self
    }

    const fn since(mut self, version: &'static str) -> Self {
        self.facts.since = version;
        self
    }
}

#[rustfmt::skip]
pub static COMMANDS: &[Command] = &numbered([
    command("append", 3, Write, KEY, "RW insert", Forward, String, "denyoom fast"),
    command("decr", 2, Write, KEY, "RW access update", Forward, String, "denyoom fast"),
    command("decrby", 3, Write, KEY, "RW access update", Forward, String, "denyoom fast"),
    command("delex", -2, Write, KEY, "RW delete", Forward, String, "fast").since("8.4"),
    command("delifeq", 3, Write, KEY, "RM delete", Forward, String, "fast").since("Valkey 9.0"),
    command("digest", 2, Read, KEY, "RO access", Forward, String, "fast").since("8.4"),
    command("get", 2, Read, KEY, "RO access", Forward, String, "fast"),
    command("getdel", 2, Write, KEY, "RW access delete", Forward, String, "fast"),
    command("getex", -2, Write, KEY, "RW access update", Forward, String, "fast"),
    command("getrange", 4, Read, KEY, "RO access", Forward, String, ""),
    command("getset", 3, Write, KEY, "RW access update", Forward, String, "denyoom fast"),
    command("incr", 2, Write, KEY, "RW access update", Forward, String, "denyoom fast"),
    command("incrby", 3, Write, KEY, "RW access update", Forward, String, "denyoom fast"),
    command("incrbyfloat", 3, Write, KEY, "RW access update", Forward, String, "denyoom fast"),
    command("increx", -2, Write, KEY, "RW access update", Forward, String, "denyoom fast").since("8.8"),
    command("lcs", -3, Read, TWO_KEYS, "RO access", Forward, String, ""),
    command("mget", -2, Read, ALL_KEYS, "RO access", GATHER, String, "fast").tips("request_policy:multi_shard"),
    command("mset", -3, Write, Pairs { uneven: "ERR wrong number of arguments for 'mset' command" }, "OW update", ALL_OK, String, "denyoom").tips("request_policy:multi_shard response_policy:all_succeeded"),
    command("msetex", -4, Write, MSETEX, "OW update", Forward, String, "denyoom").tips("request_policy:multi_shard response_policy:all_succeeded").since("8.4"),
    command("msetnx", -3, Write, Pairs { uneven: "ERR wrong number of arguments for 'msetnx' command" }, "OW insert", Forward, String, "denyoom"),
    command("psetex", 4, Write, KEY, "OW update", Forward, String, "denyoom"),
    command("set", -3, Write, KEY, "RW access update variable_flags", Forward, String, "denyoom"),
    command("setex", 4, Write, KEY, "OW update", Forward, String, "denyoom"),
    command("setnx", 3, Write, KEY, "OW insert", Forward, String, "denyoom fast"),
    command("setrange", 4, Write, KEY, "RW update", Forward, String, "denyoom"),
    command("strlen", 2, Read, KEY, "RO", Forward, String, "fast"),
    command("substr", 4, Read, KEY, "RO access", Forward, String, ""),

    command("bitcount", -2, Read, KEY, "RO access", Forward, Bitmap, ""),
    command("bitfield", -2, Write, KEY, "RW access update variable_flags", Forward, Bitmap, "denyoom"),
    command("bitfield_ro", -2, Read, KEY, "RO access", Forward, Bitmap, "fast"),
    command("bitop", -4, Write, AFTER_OPERATION, "OW update, RO access", Forward, Bitmap, "denyoom"),
    command("bitpos", -3, Read, KEY, "RO access", Forward, Bitmap, ""),
    command("getbit", 3, Read, KEY, "RO access", Forward, Bitmap, "fast"),
    command("setbit", 4, Write, KEY, "RW access update", Forward, Bitmap, "denyoom"),

    command("copy", -3, Write, TWO_KEYS, "RO access, OW update", Forward, Generic, "denyoom"),
    command("del", -2, Write, ALL_KEYS, "RM delete", SUM, Generic, "").tips("request_policy:multi_shard response_policy:agg_sum"),
    command("dump", 2, Read, KEY, "RO access", Forward, Generic, "").tips("nondeterministic_output"),
    command("exists", -2, Read, ALL_KEYS, "RO", SUM, Generic, "fast").tips("request_policy:multi_shard response_policy:agg_sum"),
    command("expire", -3, Write, KEY, "RW update", Forward, Generic, "fast"),
    command("expireat", -3, Write, KEY, "RW update", Forward, Generic, "fast"),
    command("expiretime", 2, Read, KEY, "RO access", Forward, Generic, "fast"),
    command("keys", 2, Read, NONE, "", fan(Fan::Concat), Generic, "").in_categories("@keyspace @dangerous").tips("request_policy:all_shards nondeterministic_output_order"),
    command("migrate", -6, Write, Keys::Migrate, "RW access delete, RW access delete incomplete", Forward, Generic, "").in_categories("@keyspace @dangerous").tips("nondeterministic_output").needs(Admin),
    command("move", 3, Write, KEY, "RW access update", Forward, Generic, "fast"),
    command("object", -2, NO_DATA, NONE, "", Unsupported, Generic, "").containing(5),
    command("object|encoding", 3, Read, SUBCOMMAND_KEY, "RO", Forward, Generic, "").tips("nondeterministic_output"),
    command("object|freq", 3, Read, SUBCOMMAND_KEY, "RO", Forward, Generic, "").tips("nondeterministic_output"),
    command("object|help", 2, NO_DATA, NONE, "", ANY, Generic, "loading stale"),
    command("object|idletime", 3, Read, SUBCOMMAND_KEY, "RO", Forward, Generic, "").tips("nondeterministic_output"),
    command("object|refcount", 3, Read, SUBCOMMAND_KEY, "RO", Forward, Generic, "").tips("nondeterministic_output"),
    command("persist", 2, Write, KEY, "RW update", Forward, Generic, "fast"),
    command("pexpire", -3, Write, KEY, "RW update", Forward, Generic, "fast"),
    command("pexpireat", -3, Write, KEY, "RW update", Forward, Generic, "fast"),
    command("pexpiretime", 2, Read, KEY, "RO access", Forward, Generic, "fast"),
    command("pttl", 2, Read, KEY, "RO access", Forward, Generic, "fast").tips("nondeterministic_output"),
    command("randomkey", 1, Read, NONE, "", fan(Fan::RandomKey), Generic, "").tips("request_policy:all_shards response_policy:special nondeterministic_output"),
    command("rename", 3, Write, TWO_KEYS, "RW access delete, OW update", Forward, Generic, ""),
    command("renamenx", 3, Write, TWO_KEYS, "RW access delete, OW insert", Forward, Generic, "fast"),
    command("restore", -4, Write, KEY, "OW update", Forward, Generic, "denyoom").in_categories("@keyspace @dangerous"),
    command("scan", -2, Read, NONE, "", fan(Fan::Scan), Generic, "").tips("nondeterministic_output request_policy:special response_policy:special"),
    command("sort", -2, Write, SORT, "RO access, RO access, OW update", Forward, Generic, "denyoom").in_categories("@dangerous @set @sortedset @list"),
    command("sort_ro", -2, Read, SORT_RO, "RO access, RO access", Forward, Generic, "").in_categories("@dangerous @set @sortedset @list"),
    command("touch", -2, Read, ALL_KEYS, "RO", SUM, Generic, "fast").tips("request_policy:multi_shard response_policy:agg_sum"),
    command("ttl", 2, Read, KEY, "RO access", Forward, Generic, "fast").tips("nondeterministic_output"),
    command("type", 2, Read, KEY, "RO", Forward, Generic, "fast"),
    command("unlink", -2, Write, ALL_KEYS, "RM delete", SUM, Generic, "fast").tips("request_policy:multi_shard response_policy:agg_sum"),
    command("wait", 3, NO_DATA, NONE, "", fan(Fan::Least), Generic, "blocking").in_categories("@connection").tips("request_policy:all_shards response_policy:agg_min"),
    command("waitaof", 4, NO_DATA, NONE, "", fan(Fan::LeastEach), Generic, "blocking").in_categories("@connection").tips("request_policy:all_shards response_policy:agg_min").since("7.2"),

    command("hdel", -3, Write, KEY, "RW delete", Forward, Hash, "fast"),
    command("hexists", 3, Read, KEY, "RO", Forward, Hash, "fast"),
    command("hexpire", -6, Write, KEY, "RW update", Forward, Hash, "fast").since("7.4"),
    command("hexpireat", -6, Write, KEY, "RW update", Forward, Hash, "fast").since("7.4"),
    command("hexpiretime", -5, Read, KEY, "RO access", Forward, Hash, "fast").since("7.4"),
    command("hget", 3, Read, KEY, "RO access", Forward, Hash, "fast"),
    command("hgetall", 2, Read, KEY, "RO access", Forward, Hash, "").tips("nondeterministic_output_order"),
    command("hgetdel", -5, Write, KEY, "RW access delete", Forward, Hash, "fast").since("8.0"),
    command("hgetex", -5, Write, KEY, "RW access update", Forward, Hash, "fast").since("8.0"),
    command("himport", -2, NO_DATA, NONE, "", Unsupported, Hash, "").since("8.10").containing(4),
    command("himport|discard", 3, NO_DATA, NONE, "", Refuse(HIMPORT), Hash, "").tips("request_policy:all_shards").since("8.10"),
    command("himport|discardall", 2, NO_DATA, NONE, "", Refuse(HIMPORT), Hash, "").tips("request_policy:all_shards").since("8.10"),
    command("himport|prepare", -4, NO_DATA, NONE, "", Refuse(HIMPORT), Hash, "denyoom").tips("request_policy:all_shards").since("8.10"),
    command("himport|set", -5, Write, SUBCOMMAND_KEY, "OW update", Refuse(HIMPORT), Hash, "denyoom").since("8.10"),
    command("hincrby", 4, Write, KEY, "RW access update", Forward, Hash, "denyoom fast"),
    command("hincrbyfloat", 4, Write, KEY, "RW access update", Forward, Hash, "denyoom fast"),
    command("hkeys", 2, Read, KEY, "RO access", Forward, Hash, "").tips("nondeterministic_output_order"),
    command("hlen", 2, Read, KEY, "RO", Forward, Hash, "fast"),
    command("hmget", -3, Read, KEY, "RO access", Forward, Hash, "fast"),
    command("hmset", -4, Write, KEY, "RW update", Forward, Hash, "denyoom fast"),
    command("hpersist", -5, Write, KEY, "RW update", Forward, Hash, "fast").since("7.4"),
    command("hpexpire", -6, Write, KEY, "RW update", Forward, Hash, "fast").since("7.4"),
    command("hpexpireat", -6, Write, KEY, "RW update", Forward, Hash, "fast").since("7.4"),
    command("hpexpiretime", -5, Read, KEY, "RO access", Forward, Hash, "fast").since("7.4"),
    command("hpttl", -5, Read, KEY, "RO access", Forward, Hash, "fast").tips("nondeterministic_output").since("7.4"),
    command("hrandfield", -2, Read, KEY, "RO access", Forward, Hash, "").tips("nondeterministic_output"),
    command("hscan", -3, Walk, KEY, "RO access", Forward, Hash, "").tips("nondeterministic_output"),
    command("hset", -4, Write, KEY, "RW update", Forward, Hash, "denyoom fast"),
    command("hsetex", -6, Write, KEY, "RW update", Forward, Hash, "denyoom fast").since("8.0"),
    command("hsetnx", 4, Write, KEY, "RW insert", Forward, Hash, "denyoom fast"),
    command("hstrlen", 3, Read, KEY, "RO", Forward, Hash, "fast"),
    command("httl", -5, Read, KEY, "RO access", Forward, Hash, "fast").tips("nondeterministic_output").since("7.4"),
    command("hvals", 2, Read, KEY, "RO access", Forward, Hash, "").tips("nondeterministic_output_order"),

    command("blmove", 6, Write, TWO_KEYS, "RW access delete, RW insert", Block, List, "denyoom blocking"),
    command("blmovem", -6, Write, TWO_KEYS, "RW access delete, RW insert", Block, List, "denyoom blocking").since("8.10"),
    command("blmpop", -5, Write, BLOCKING_MPOP, "RW access delete", Block, List, "blocking"),
    command("blpop", -3, Write, range(1, -2), "RW access delete", Block, List, "blocking"),
    command("brpop", -3, Write, range(1, -2), "RW access delete", Block, List, "blocking"),
    command("brpoplpush", 4, Write, TWO_KEYS, "RW access delete, RW insert", Block, List, "denyoom blocking"),
    command("lindex", 3, Read, KEY, "RO access", Forward, List, ""),
    command("linsert", 5, Write, KEY, "RW insert", Forward, List, "denyoom"),
    command("llen", 2, Read, KEY, "RO", Forward, List, "fast"),
    command("lmove", 5, Write, TWO_KEYS, "RW access delete, RW insert", Forward, List, "denyoom"),
    command("lmovem", -5, Write, TWO_KEYS, "RW access delete, RW insert", Forward, List, "denyoom").since("8.10"),
    command("lmpop", -4, Write, MPOP, "RW access delete", Forward, List, ""),
    command("lpop", -2, Write, KEY, "RW access delete", Forward, List, "fast"),
    command("lpos", -3, Read, KEY, "RO access", Forward, List, ""),
    command("lpush", -3, Write, KEY, "RW insert", Forward, List, "denyoom fast"),
    command("lpushx", -3, Write, KEY, "RW insert", Forward, List, "denyoom fast"),
    command("lrange", 4, Read, KEY, "RO access", Forward, List, ""),
    command("lrem", 4, Write, KEY, "RW delete", Forward, List, ""),
    command("lset", 4, Write, KEY, "RW update", Forward, List, "denyoom"),
    command("ltrim", 4, Write, KEY, "RW delete", Forward, List, ""),
    command("rpop", -2, Write, KEY, "RW access delete", Forward, List, "fast"),
    command("rpoplpush", 3, Write, TWO_KEYS, "RW access delete, RW insert", Forward, List, "denyoom"),
    command("rpush", -3, Write, KEY, "RW insert", Forward, List, "denyoom fast"),
    command("rpushx", -3, Write, KEY, "RW insert", Forward, List, "denyoom fast"),

    command("sadd", -3, Write, KEY, "RW insert", Forward, Set, "denyoom fast"),
    command("scard", 2, Read, KEY, "RO", Forward, Set, "fast"),
    command("sdiff", -2, Read, ALL_KEYS, "RO access", Forward, Set, "").tips("nondeterministic_output_order"),
    command("sdiffcard", -3, Read, SINTERCARD, "RO access", Forward, Set, "").since("8.10"),
    command("sdiffstore", -3, Write, ALL_KEYS, "OW update, RO access", Forward, Set, "denyoom"),
    command("sinter", -2, Read, ALL_KEYS, "RO access", Forward, Set, "").tips("nondeterministic_output_order"),
    command("sintercard", -3, Read, SINTERCARD, "RO access", Forward, Set, ""),
    command("sinterstore", -3, Write, ALL_KEYS, "OW update, RO access", Forward, Set, "denyoom"),
    command("sismember", 3, Read, KEY, "RO", Forward, Set, "fast"),
    command("smembers", 2, Read, KEY, "RO access", Forward, Set, "").tips("nondeterministic_output_order"),
    command("smismember", -3, Read, KEY, "RO access", Forward, Set, "fast"),
    command("smove", 4, Write, TWO_KEYS, "RW access delete, RW insert", Forward, Set, "fast"),
    command("spop", -2, Write, KEY, "RW access delete", Forward, Set, "fast").tips("nondeterministic_output"),
    command("srandmember", -2, Read, KEY, "RO access", Forward, Set, "").tips("nondeterministic_output"),
    command("srem", -3, Write, KEY, "RW delete", Forward, Set, "fast"),
    command("sscan", -3, Walk, KEY, "RO access", Forward, Set, "").tips("nondeterministic_output"),
    command("sunion", -2, Read, ALL_KEYS, "RO access", Forward, Set, "").tips("nondeterministic_output_order"),
    command("sunioncard", -3, Read, SINTERCARD, "RO access", Forward, Set, "").since("8.10"),
    command("sunionstore", -3, Write, ALL_KEYS, "OW update, RO access", Forward, Set, "denyoom"),

    command("bzmpop", -5, Write, BLOCKING_MPOP, "RW access delete", Block, SortedSet, "blocking"),
    command("bzpopmax", -3, Write, range(1, -2), "RW access delete", Block, SortedSet, "blocking fast"),
    command("bzpopmin", -3, Write, range(1, -2), "RW access delete", Block, SortedSet, "blocking fast"),
    command("zadd", -4, Write, KEY, "RW update", Forward, SortedSet, "denyoom fast"),
    command("zcard", 2, Read, KEY, "RO", Forward, SortedSet, "fast"),
    command("zcount", 4, Read, KEY, "RO access", Forward, SortedSet, "fast"),
    command("zdiff", -3, Read, zset_keys!("zdiff", 1, 0), "RO access", Forward, SortedSet, ""),
    command("zdiffstore", -4, Write, zset_keys!("zdiffstore", 2, 1), "OW update, RO access", Forward, SortedSet, "denyoom"),
    command("zincrby", 4, Write, KEY, "RW access update", Forward, SortedSet, "denyoom fast"),
    command("zinter", -3, Read, zset_keys!("zinter", 1, 0), "RO access", Forward, SortedSet, ""),
    command("zintercard", -3, Read, zset_keys!("zintercard", 1, 0), "RO access", Forward, SortedSet, ""),
    command("zinterstore", -4, Write, zset_keys!("zinterstore", 2, 1), "OW update, RO access", Forward, SortedSet, "denyoom"),
    command("zlexcount", 4, Read, KEY, "RO access", Forward, SortedSet, "fast"),
    command("zmpop", -4, Write, MPOP, "RW access delete", Forward, SortedSet, ""),
    command("zmscore", -3, Read, KEY, "RO access", Forward, SortedSet, "fast"),
    command("zpopmax", -2, Write, KEY, "RW access delete", Forward, SortedSet, "fast"),
    command("zpopmin", -2, Write, KEY, "RW access delete", Forward, SortedSet, "fast"),
    command("zrandmember", -2, Read, KEY, "RO access", Forward, SortedSet, "").tips("nondeterministic_output"),
    command("zrange", -4, Read, KEY, "RO access", Forward, SortedSet, ""),
    command("zrangebylex", -4, Read, KEY, "RO access", Forward, SortedSet, ""),
    command("zrangebyscore", -4, Read, KEY, "RO access", Forward, SortedSet, ""),
    command("zrangestore", -5, Write, TWO_KEYS, "OW update, RO access", Forward, SortedSet, "denyoom"),
    command("zrank", -3, Read, KEY, "RO access", Forward, SortedSet, "fast"),
    command("zrem", -3, Write, KEY, "RW delete", Forward, SortedSet, "fast"),
    command("zremrangebylex", 4, Write, KEY, "RW delete", Forward, SortedSet, ""),
    command("zremrangebyrank", 4, Write, KEY, "RW delete", Forward, SortedSet, ""),
    command("zremrangebyscore", 4, Write, KEY, "RW delete", Forward, SortedSet, ""),
    command("zrevrange", -4, Read, KEY, "RO access", Forward, SortedSet, ""),
    command("zrevrangebylex", -4, Read, KEY, "RO access", Forward, SortedSet, ""),
    command("zrevrangebyscore", -4, Read, KEY, "RO access", Forward, SortedSet, ""),
    command("zrevrank", -3, Read, KEY, "RO access", Forward, SortedSet, "fast"),
    command("zscan", -3, Walk, KEY, "RO access", Forward, SortedSet, "").tips("nondeterministic_output"),
    command("zscore", 3, Read, KEY, "RO access", Forward, SortedSet, "fast"),
    command("zunion", -3, Read, zset_keys!("zunion", 1, 0), "RO access", Forward, SortedSet, ""),
    command("zunionstore", -4, Write, zset_keys!("zunionstore", 2, 1), "OW update, RO access", Forward, SortedSet, "denyoom"),

    command("pfadd", -2, Write, KEY, "RW insert", Forward, Hyperloglog, "denyoom fast"),
    command("pfcount", -2, Read, ALL_KEYS, "RW access", Forward, Hyperloglog, ""),
    command("pfdebug", 3, Write, SUBCOMMAND_KEY, "RW access", Forward, Hyperloglog, "denyoom admin").needs(Admin),
    command("pfmerge", -2, Write, ALL_KEYS, "RW access insert, RO access", Forward, Hyperloglog, "denyoom"),
    command("pfselftest", 1, NO_DATA, NONE, "", ANY, Hyperloglog, "admin").needs(Admin),

    command("geoadd", -5, Write, KEY, "RW update", Forward, Geo, "denyoom"),
    command("geodist", -4, Read, KEY, "RO access", Forward, Geo, ""),
    command("geohash", -2, Read, KEY, "RO access", Forward, Geo, ""),
    command("geopos", -2, Read, KEY, "RO access", Forward, Geo, ""),
    command("georadius", -6, Write, Georadius, "RO access, OW update, OW update", Forward, Geo, "denyoom"),
    command("georadius_ro", -6, Read, KEY, "RO access", Forward, Geo, ""),
    command("georadiusbymember", -5, Write, Georadius, "RO access, OW update, OW update", Forward, Geo, "denyoom"),
    command("georadiusbymember_ro", -5, Read, KEY, "RO access", Forward, Geo, ""),
    command("geosearch", -7, Read, KEY, "RO access", Forward, Geo, ""),
    command("geosearchstore", -8, Write, TWO_KEYS, "OW update, RO access", Forward, Geo, "denyoom"),

    command("xack", -4, Write, KEY, "RW update", Forward, Stream, "fast"),
    command("xackdel", -6, Write, KEY, "RW update delete", Forward, Stream, "fast").since("8.2"),
    command("xadd", -5, Write, KEY, "RW update", Forward, Stream, "denyoom fast").tips("nondeterministic_output"),
    command("xautoclaim", -6, Write, KEY, "RW delete", Forward, Stream, "fast").tips("nondeterministic_output"),
    command("xcfgset", -2, Write, KEY, "RW update", Forward, Stream, "fast").since("8.6"),
    command("xclaim", -6, Write, KEY, "RW update", Forward, Stream, "fast").tips("nondeterministic_output"),
    command("xdel", -3, Write, KEY, "RW delete", Forward, Stream, "fast"),
    command("xdelex", -5, Write, KEY, "RW delete", Forward, Stream, "fast").since("8.2"),
    command("xgroup", -2, NO_DATA, NONE, "", Unsupported, Stream, "").containing(6),
    command("xgroup|create", -5, Write, SUBCOMMAND_KEY, "RW insert", Forward, Stream, "denyoom"),
    command("xgroup|createconsumer", 5, Write, SUBCOMMAND_KEY, "RW insert", Forward, Stream, "denyoom"),
    command("xgroup|delconsumer", 5, Write, SUBCOMMAND_KEY, "RW delete", Forward, Stream, ""),
    command("xgroup|destroy", 4, Write, SUBCOMMAND_KEY, "RW delete", Forward, Stream, ""),
    command("xgroup|help", 2, NO_DATA, NONE, "", ANY, Stream, "loading stale"),
    command("xgroup|setid", -5, Write, SUBCOMMAND_KEY, "RW update", Forward, Stream, ""),
    command("xidmprecord", 5, Write, KEY, "RW update", Forward, Stream, "denyoom fast").since("8.6"),
    command("xinfo", -2, NO_DATA, NONE, "", Unsupported, Stream, "").containing(4),
    command("xinfo|consumers", 4, Read, SUBCOMMAND_KEY, "RO access", Forward, Stream, "").tips("nondeterministic_output"),
    command("xinfo|groups", 3, Read, SUBCOMMAND_KEY, "RO access", Forward, Stream, ""),
    command("xinfo|help", 2, NO_DATA, NONE, "", ANY, Stream, "loading stale"),
    command("xinfo|stream", -3, Read, SUBCOMMAND_KEY, "RO access", Forward, Stream, ""),
    command("xlen", 2, Read, KEY, "RO", Forward, Stream, "fast"),
    command("xnack", -7, Write, KEY, "RW update", Forward, Stream, "fast").since("8.8"),
    command("xpending", -3, Read, KEY, "RO access", Forward, Stream, "").tips("nondeterministic_output"),
    command("xrange", -4, Read, KEY, "RO access", Forward, Stream, ""),
    command("xread", -4, Read, Streams, "RO access", Block, Stream, "blocking"),
    command("xreadgroup", -7, Write, Streams, "RO access", Block, Stream, "blocking"),
    command("xrevrange", -4, Read, KEY, "RO access", Forward, Stream, ""),
    command("xsetid", -3, Write, KEY, "RW update", Forward, Stream, "denyoom fast"),
    command("xtrim", -4, Write, KEY, "RW delete", Forward, Stream, "").tips("nondeterministic_output"),

    command("arcount", 2, Read, KEY, "RO", Forward, Array, "fast").since("8.8"),
    command("ardel", -3, Write, KEY, "RW delete", Forward, Array, "fast").since("8.8"),
    command("ardelrange", -4, Write, KEY, "RW delete", Forward, Array, "").since("8.8"),
    command("arget", 3, Read, KEY, "RO access", Forward, Array, "fast").since("8.8"),
    command("argetrange", 4, Read, KEY, "RO access", Forward, Array, "").since("8.8"),
    command("argrep", -6, Read, KEY, "RO access", Forward, Array, "").since("8.8"),
    command("arinfo", -2, Read, KEY, "RO", Forward, Array, "").since("8.8"),
    command("arinsert", -3, Write, KEY, "RW update", Forward, Array, "denyoom fast").since("8.8"),
    command("arlastitems", -3, Read, KEY, "RO access", Forward, Array, "").since("8.8"),
    command("arlen", 2, Read, KEY, "RO", Forward, Array, "fast").since("8.8"),
    command("armget", -3, Read, KEY, "RO access", Forward, Array, "fast").since("8.8"),
    command("armset", -4, Write, KEY, "RW update", Forward, Array, "denyoom fast").since("8.8"),
    command("arnext", 2, Read, KEY, "RO", Forward, Array, "fast").since("8.8"),
    command("arop", -5, Read, KEY, "RO access", Forward, Array, "").since("8.8"),
    command("arring", -4, Write, KEY, "RW update", Forward, Array, "denyoom").since("8.8"),
    command("arscan", -4, Read, KEY, "RO access", Forward, Array, "").since("8.8"),
    command("arseek", 3, Write, KEY, "RW update", Forward, Array, "fast").since("8.8"),
    command("arset", -4, Write, KEY, "RW update", Forward, Array, "denyoom fast").since("8.8"),

    command("vadd", -5, Write, KEY, "RW access update", Forward, Module, "denyoom module").since("8.0"),
    command("vcard", 2, Read, KEY, "RW access update", Forward, Module, "module fast").since("8.0"),
    command("vdim", 2, Read, KEY, "RW access update", Forward, Module, "module fast").since("8.0"),
    command("vemb", -3, Read, KEY, "RW access update", Forward, Module, "module fast").since("8.0"),
    command("vgetattr", 3, Read, KEY, "RW access update", Forward, Module, "module fast").since("8.0"),
    command("vinfo", 2, Read, KEY, "RW access update", Forward, Module, "module fast").since("8.0"),
    command("vismember", 3, Read, KEY, "RW access update", Forward, Module, "module").since("8.2"),
    command("vlinks", -3, Read, KEY, "RW access update", Forward, Module, "module fast").since("8.0"),
    command("vrandmember", -2, Read, KEY, "RW access update", Forward, Module, "module").since("8.0"),
    command("vrange", -4, Read, KEY, "RW access update", Forward, Module, "module").since("8.4"),
    command("vrem", 3, Write, KEY, "RW access update", Forward, Module, "module").since("8.0"),
    command("vsetattr", 4, Write, KEY, "RW access update", Forward, Module, "module fast").since("8.0"),
    command("vsim", -4, Read, KEY, "RW access update", Forward, Module, "module").since("8.0"),

    command("eval", -3, NO_DATA, SCRIPT, "RW access update", Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("eval_ro", -3, Read, SCRIPT, "RO access", Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("evalsha", -3, NO_DATA, SCRIPT, "RW access update", Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("evalsha_ro", -3, Read, SCRIPT, "RO access", Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("fcall", -3, NO_DATA, FUNCTION, "RW access update", Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("fcall_ro", -3, Read, FUNCTION, "RO access", Forward, Scripting, "noscript stale skip_monitor no_mandatory_keys"),
    command("function", -2, NO_DATA, NONE, "", Unsupported, Scripting, "").containing(9),
    command("function|delete", 3, Write, NONE, "", fan(Fan::Same), Scripting, "noscript").tips("request_policy:all_shards response_policy:all_succeeded"),
    command("function|dump", 2, NO_DATA, NONE, "", ANY, Scripting, "noscript"),
    command("function|flush", -2, Write, NONE, "", fan(Fan::Same), Scripting, "noscript").tips("request_policy:all_shards response_policy:all_succeeded").needs(Application),
    command("function|help", 2, NO_DATA, NONE, "", ANY, Scripting, "loading stale"),
    command("function|kill", 2, NO_DATA, NONE, "", fan(Fan::AnyOk), Scripting, "noscript allow_busy").tips("request_policy:all_shards response_policy:one_succeeded").needs(Admin),
    command("function|list", -2, NO_DATA, NONE, "", ANY, Scripting, "noscript").tips("nondeterministic_output_order"),
    command("function|load", -3, Write, NONE, "", fan(Fan::Same), Scripting, "denyoom noscript").tips("request_policy:all_shards response_policy:all_succeeded"),
    command("function|restore", -3, Write, NONE, "", fan(Fan::Same), Scripting, "denyoom noscript").tips("request_policy:all_shards response_policy:all_succeeded").needs(Application),
    command("function|stats", 2, NO_DATA, NONE, "", fan(Fan::Running), Scripting, "noscript allow_busy").tips("nondeterministic_output request_policy:all_shards response_policy:special"),
    command("script", -2, NO_DATA, NONE, "", Unsupported, Scripting, "").containing(7),
    command("script|debug", -3, NO_DATA, NONE, "", Refuse(SCRIPT_DEBUG), Scripting, "noscript"),
    command("script|exists", -3, NO_DATA, NONE, "", fan(Fan::Scripts), Scripting, "noscript").tips("request_policy:all_shards response_policy:agg_logical_and"),
    command("script|flush", -2, NO_DATA, NONE, "", fan(Fan::Same), Scripting, "noscript").tips("request_policy:all_nodes response_policy:all_succeeded").needs(Application),
    command("script|help", 2, NO_DATA, NONE, "", ANY, Scripting, "loading stale"),
    command("script|kill", 2, NO_DATA, NONE, "", fan(Fan::AnyOk), Scripting, "noscript allow_busy").tips("request_policy:all_shards response_policy:one_succeeded").needs(Admin),
    command("script|load", 3, NO_DATA, NONE, "", fan(Fan::Same), Scripting, "noscript stale").tips("request_policy:all_nodes response_policy:all_succeeded"),
    command("script|show", 3, NO_DATA, NONE, "", ANY, Scripting, "noscript stale").since("Valkey 8.0"),

    command("psubscribe", -2, NO_DATA, NONE, "", subscription(Subscription::Psubscribe), Pubsub, "pubsub noscript loading stale"),
    command("publish", 3, NO_DATA, NONE, "", Publish, Pubsub, "pubsub loading stale fast"),
    command("pubsub", -2, NO_DATA, NONE, "", Unsupported, Pubsub, "").containing(6),
    command("pubsub|channels", -2, NO_DATA, NONE, "", fan(Fan::Concat), Pubsub, "pubsub loading stale"),
    command("pubsub|help", 2, NO_DATA, NONE, "", ANY, Pubsub, "loading stale").in_categories(""),
    command("pubsub|numpat", 2, NO_DATA, NONE, "", fan(Fan::Most), Pubsub, "pubsub loading stale"),
    command("pubsub|numsub", -2, NO_DATA, NONE, "", fan(Fan::SumPairs), Pubsub, "pubsub loading stale"),
    command("pubsub|shardchannels", -2, NO_DATA, NONE, "", fan(Fan::Concat), Pubsub, "pubsub loading stale"),
    command("pubsub|shardnumsub", -2, NO_DATA, NONE, "", fan(Fan::SumPairs), Pubsub, "pubsub loading stale"),
    command("punsubscribe", -1, NO_DATA, NONE, "", subscription(Subscription::Punsubscribe), Pubsub, "pubsub noscript loading stale"),
    command("spublish", 3, NO_DATA, KEY, "not_key", Publish, Pubsub, "pubsub loading stale fast"),
    command("ssubscribe", -2, NO_DATA, ALL_KEYS, "not_key", subscription(Subscription::Ssubscribe), Pubsub, "pubsub noscript loading stale"),
    command("subscribe", -2, NO_DATA, NONE, "", subscription(Subscription::Subscribe), Pubsub, "pubsub noscript loading stale"),
    command("sunsubscribe", -1, NO_DATA, ALL_KEYS, "not_key", subscription(Subscription::Sunsubscribe), Pubsub, "pubsub noscript loading stale"),
    command("unsubscribe", -1, NO_DATA, NONE, "", subscription(Subscription::Unsubscribe), Pubsub, "pubsub noscript loading stale"),

    command("discard", 1, NO_DATA, NONE, "", session(SessionRule::Discard), Transactions, "noscript loading stale fast allow_busy"),
    command("exec", 1, NO_DATA, NONE, "", session(SessionRule::Exec), Transactions, "noscript loading stale skip_slowlog"),
    command("multi", 1, NO_DATA, NONE, "", session(SessionRule::Multi), Transactions, "noscript loading stale fast allow_busy"),
    command("unwatch", 1, NO_DATA, NONE, "", session(SessionRule::Unwatch), Transactions, "noscript loading stale fast allow_busy"),
    command("watch", -2, NO_DATA, ALL_KEYS, "RO", session(SessionRule::Watch), Transactions, "noscript loading stale fast allow_busy"),

    command("auth", -2, NO_DATA, NONE, "", local(Local::Auth), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("client", -2, NO_DATA, NONE, "", Unsupported, Connection, "").containing(22),
    command("client|caching", 3, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale"),
    command("client|capa", -3, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale allow_busy").since("Valkey 8.0"),
    command("client|getname", 2, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale"),
    command("client|getredir", 2, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale"),
    command("client|help", 2, NO_DATA, NONE, "", ANY, Connection, "loading stale"),
    command("client|id", 2, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale"),
    command("client|import-source", 3, NO_DATA, NONE, "", Refuse(IMPORT_SOURCE), Connection, "noscript loading stale").since("Valkey 8.1"),
    command("client|info", 2, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale").tips("nondeterministic_output"),
    command("client|kill", -3, NO_DATA, NONE, "", local(Local::Client), Connection, "admin noscript loading stale"),
    command("client|list", -2, NO_DATA, NONE, "", local(Local::Client), Connection, "admin noscript loading stale").tips("nondeterministic_output"),
    command("client|maint_notifications", -3, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale").since("Cashew"),
    command("client|no-evict", 3, NO_DATA, NONE, "", local(Local::Client), Connection, "admin noscript loading stale").needs(Admin),
    command("client|no-touch", 3, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale").since("7.2"),
    command("client|pause", -3, NO_DATA, NONE, "", local(Local::Client), Connection, "admin noscript loading stale").needs(Admin),
    command("client|reads", 3, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale").since("Cashew"),
    command("client|reply", 3, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale"),
    command("client|setinfo", 4, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale").tips("request_policy:all_nodes response_policy:all_succeeded").since("7.2"),
    command("client|setname", 3, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale").tips("request_policy:all_nodes response_policy:all_succeeded"),
    command("client|tracking", -3, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale"),
    command("client|trackinginfo", 2, NO_DATA, NONE, "", local(Local::Client), Connection, "noscript loading stale"),
    command("client|unblock", -3, NO_DATA, NONE, "", local(Local::Client), Connection, "admin noscript loading stale"),
    command("client|unpause", 2, NO_DATA, NONE, "", local(Local::Client), Connection, "admin noscript loading stale").needs(Admin),
    command("echo", 2, NO_DATA, NONE, "", local(Local::Echo), Connection, "loading stale fast"),
    command("hello", -1, NO_DATA, NONE, "", local(Local::Hello), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("ping", -1, NO_DATA, NONE, "", local(Local::Ping), Connection, "fast").tips("request_policy:all_shards response_policy:all_succeeded"),
    command("quit", -1, NO_DATA, NONE, "", local(Local::Quit), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("reset", 1, NO_DATA, NONE, "", session(SessionRule::Reset), Connection, "noscript loading stale fast no_auth allow_busy"),
    command("route", -2, NO_DATA, NONE, "", Unsupported, Connection, "").containing(2).since("Cashew"),
    command("route|explain", -3, NO_DATA, NONE, "", local(Local::Route), Connection, "admin noscript loading stale").since("Cashew"),
    command("route|help", 2, NO_DATA, NONE, "", local(Local::Route), Connection, "noscript loading stale").since("Cashew"),
    command("select", 2, NO_DATA, NONE, "", local(Local::Select), Connection, "loading stale fast"),

    command("acl", -2, NO_DATA, NONE, "", Unsupported, Server, "").containing(13),
    command("acl|cat", -2, NO_DATA, NONE, "", local(Local::Acl), Server, "noscript loading stale"),
    command("acl|deluser", -3, NO_DATA, NONE, "", Refuse(USERS), Server, "admin noscript loading stale").tips("request_policy:all_nodes response_policy:all_succeeded"),
    command("acl|dryrun", -4, NO_DATA, NONE, "", local(Local::Acl), Server, "admin noscript loading stale").needs(Admin),
    command("acl|genpass", -2, NO_DATA, NONE, "", ANY, Server, "noscript loading stale"),
    command("acl|getuser", 3, NO_DATA, NONE, "", local(Local::Acl), Server, "admin noscript loading stale").needs(Admin),
    command("acl|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale"),
    command("acl|list", 2, NO_DATA, NONE, "", local(Local::Acl), Server, "admin noscript loading stale").needs(Admin),
    command("acl|load", 2, NO_DATA, NONE, "", Refuse(USERS), Server, "admin noscript loading stale"),
    command("acl|log", -2, NO_DATA, NONE, "", local(Local::Acl), Server, "admin noscript loading stale").needs(Admin),
    command("acl|save", 2, NO_DATA, NONE, "", Refuse(USERS), Server, "admin noscript loading stale").tips("request_policy:all_nodes response_policy:all_succeeded"),
    command("acl|setuser", -3, NO_DATA, NONE, "", Refuse(USERS), Server, "admin noscript loading stale").tips("request_policy:all_nodes response_policy:all_succeeded"),
    command("acl|users", 2, NO_DATA, NONE, "", local(Local::Acl), Server, "admin noscript loading stale").needs(Admin),
    command("acl|whoami", 2, NO_DATA, NONE, "", local(Local::User), Server, "noscript loading stale"),
    command("backup", 2, NO_DATA, NONE, "", Unsupported, Server, "").since("8.10").containing(7),
    command("backup|abort", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript").since("8.10").needs(Admin),
    command("backup|cleanup", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript").since("8.10").needs(Admin),
    command("backup|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale").since("8.10"),
    command("backup|list", 2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "admin stale").since("8.10").needs(Admin),
    command("backup|seal", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript").since("8.10").needs(Admin),
    command("backup|start", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript").since("8.10").needs(Admin),
    command("backup|status", 2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "admin stale").since("8.10").needs(Admin),
    command("bgrewriteaof", 1, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript no_async_loading").needs(Admin),
    command("bgsave", -1, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript no_async_loading").needs(Admin),
    command("command", -1, NO_DATA, NONE, "", local(Local::Command), Server, "loading stale").in_categories("@connection").tips("nondeterministic_output_order").containing(7),
    command("command|count", 2, NO_DATA, NONE, "", local(Local::Command), Server, "loading stale").in_categories("@connection"),
    command("command|docs", -2, NO_DATA, NONE, "", ANY, Server, "loading stale").in_categories("@connection").tips("nondeterministic_output_order"),
    command("command|getkeys", -3, NO_DATA, NONE, "", local(Local::Command), Server, "loading stale").in_categories("@connection"),
    command("command|getkeysandflags", -3, NO_DATA, NONE, "", local(Local::Command), Server, "loading stale").in_categories("@connection"),
    command("command|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale").in_categories("@connection"),
    command("command|info", -2, NO_DATA, NONE, "", local(Local::Command), Server, "loading stale").in_categories("@connection").tips("nondeterministic_output_order"),
    command("command|list", -2, NO_DATA, NONE, "", local(Local::Command), Server, "loading stale").in_categories("@connection").tips("nondeterministic_output_order"),
    command("commandlog", -2, NO_DATA, NONE, "", Unsupported, Server, "").since("Valkey 8.1").containing(4),
    command("commandlog|get", 4, NO_DATA, NONE, "", fan(Fan::Newest), Server, "admin loading stale").tips("request_policy:all_nodes nondeterministic_output").since("Valkey 8.1"),
    command("commandlog|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale").since("Valkey 8.1"),
    command("commandlog|len", 3, NO_DATA, NONE, "", fan(Fan::Sum), Server, "admin loading stale").tips("request_policy:all_nodes response_policy:agg_sum nondeterministic_output").since("Valkey 8.1"),
    command("commandlog|reset", 3, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin loading stale").tips("request_policy:all_nodes response_policy:all_succeeded").since("Valkey 8.1").needs(Admin),
    command("config", -2, NO_DATA, NONE, "", Unsupported, Server, "").containing(5),
    command("config|get", -3, NO_DATA, NONE, "", ANY, Server, "admin noscript loading stale"),
    command("config|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale"),
    command("config|resetstat", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript loading stale").tips("request_policy:all_nodes response_policy:all_succeeded").needs(Admin),
    command("config|rewrite", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript loading stale").tips("request_policy:all_nodes response_policy:all_succeeded").needs(Admin),
    command("config|set", -4, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript loading stale").tips("request_policy:all_nodes response_policy:all_succeeded").needs(Admin),
    command("dbsize", 1, Read, NONE, "", fan(Fan::Sum), Server, "fast").in_categories("@keyspace").tips("request_policy:all_shards response_policy:agg_sum"),
    command("debug", -2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript loading stale").distinguishing(21).needs(Admin),
    command("debug|assert", -2, NO_DATA, NONE, "", Refuse(SHUTDOWN), Server, "admin noscript loading stale"),
    command("debug|crash-and-abort", -2, NO_DATA, NONE, "", Refuse(SHUTDOWN), Server, "admin noscript loading stale"),
    command("debug|crash-and-recover", -2, NO_DATA, NONE, "", Refuse(SHUTDOWN), Server, "admin noscript loading stale"),
    command("debug|digest", 2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "admin noscript loading stale").needs(Admin),
    command("debug|digest-value", -3, NO_DATA, range(2, -1), "", Forward, Server, "admin noscript loading stale").needs(Admin),
    command("debug|help", 2, NO_DATA, NONE, "", ANY, Server, "admin noscript loading stale").needs(Admin),
    command("debug|htstats", -3, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "admin noscript loading stale").needs(Admin),
    command("debug|htstats-key", -3, NO_DATA, SUBCOMMAND_KEY, "", Forward, Server, "admin noscript loading stale").needs(Admin),
    command("debug|listpack", 3, NO_DATA, SUBCOMMAND_KEY, "", Forward, Server, "admin noscript loading stale").needs(Admin),
    command("debug|object", -3, NO_DATA, SUBCOMMAND_KEY, "", Forward, Server, "admin noscript loading stale").needs(Admin),
    command("debug|oom", -2, NO_DATA, NONE, "", Refuse(SHUTDOWN), Server, "admin noscript loading stale"),
    command("debug|panic", -2, NO_DATA, NONE, "", Refuse(SHUTDOWN), Server, "admin noscript loading stale"),
    command("debug|populate", -3, NO_DATA, NONE, "", Single(POPULATE), Server, "admin noscript loading stale").needs(Admin),
    command("debug|protocol", 3, NO_DATA, NONE, "", ANY, Server, "admin noscript loading stale").needs(Admin),
    command("debug|quicklist", -3, NO_DATA, SUBCOMMAND_KEY, "", Forward, Server, "admin noscript loading stale").needs(Admin),
    command("debug|restart", -2, NO_DATA, NONE, "", Refuse(SHUTDOWN), Server, "admin noscript loading stale"),
    command("debug|sdslen", 3, NO_DATA, SUBCOMMAND_KEY, "", Forward, Server, "admin noscript loading stale").needs(Admin),
    command("debug|segfault", -2, NO_DATA, NONE, "", Refuse(SHUTDOWN), Server, "admin noscript loading stale"),
    command("debug|stringmatch-len", 4, NO_DATA, NONE, "", ANY, Server, "admin noscript loading stale").needs(Admin),
    command("debug|structsize", 2, NO_DATA, NONE, "", ANY, Server, "admin noscript loading stale").needs(Admin),
    command("debug|ziplist", 3, NO_DATA, SUBCOMMAND_KEY, "", Forward, Server, "admin noscript loading stale").needs(Admin),
    command("failover", -1, NO_DATA, NONE, "", Refuse(REPLICATION), Server, "admin noscript stale"),
    command("flushall", -1, Write, NONE, "", fan(Fan::Same), Server, "").in_categories("@keyspace @dangerous").tips("request_policy:all_shards response_policy:all_succeeded").needs(Application),
    command("flushdb", -1, Write, NONE, "", fan(Fan::Same), Server, "").in_categories("@keyspace @dangerous").tips("request_policy:all_shards response_policy:all_succeeded").needs(Application),
    command("hotkeys", -2, NO_DATA, NONE, "", Unsupported, Server, "").since("8.6").containing(6),
    command("hotkeys|get", 2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "admin noscript").tips("request_policy:special response_policy:special").since("8.6").needs(Admin),
    command("hotkeys|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale").since("8.6"),
    command("hotkeys|reset", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript").tips("request_policy:special").since("8.6").needs(Admin),
    command("hotkeys|start", -2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript").tips("request_policy:special").since("8.6").needs(Admin),
    command("hotkeys|stop", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript").tips("request_policy:special").since("8.6").needs(Admin),
    command("hotkeys|top", -2, NO_DATA, NONE, "", local(Local::HotKeys), Server, "admin noscript loading stale").since("Cashew"),
    command("info", -1, NO_DATA, NONE, "", fan(Fan::Info), Server, "loading stale").in_categories("@dangerous").tips("nondeterministic_output request_policy:all_shards response_policy:special"),
    command("lastsave", 1, NO_DATA, NONE, "", fan(Fan::Least), Server, "loading stale fast").in_categories("@admin @dangerous").tips("nondeterministic_output"),
    command("latency", -2, NO_DATA, NONE, "", Unsupported, Server, "").containing(7),
    command("latency|doctor", 2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "admin noscript loading stale").tips("nondeterministic_output request_policy:all_nodes response_policy:special"),
    command("latency|graph", 3, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "admin noscript loading stale").tips("nondeterministic_output request_policy:all_nodes response_policy:special"),
    command("latency|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale"),
    command("latency|histogram", -2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "admin noscript loading stale").tips("nondeterministic_output request_policy:all_nodes response_policy:special"),
    command("latency|history", 3, NO_DATA, NONE, "", fan(Fan::Timeline), Server, "admin noscript loading stale").tips("nondeterministic_output request_policy:all_nodes response_policy:special"),
    command("latency|latest", 2, NO_DATA, NONE, "", fan(Fan::Events), Server, "admin noscript loading stale").tips("nondeterministic_output request_policy:all_nodes response_policy:special"),
    command("latency|reset", -2, NO_DATA, NONE, "", fan(Fan::Sum), Server, "admin noscript loading stale").tips("request_policy:all_nodes response_policy:agg_sum").needs(Admin),
    command("lolwut", -1, Read, NONE, "", ANY, Server, "fast"),
    command("memory", -2, NO_DATA, NONE, "", Unsupported, Server, "").containing(6),
    command("memory|doctor", 2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "").tips("nondeterministic_output request_policy:all_shards response_policy:special"),
    command("memory|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale"),
    command("memory|malloc-stats", 2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "").tips("nondeterministic_output request_policy:all_shards response_policy:special"),
    command("memory|purge", 2, NO_DATA, NONE, "", fan(Fan::Same), Server, "").tips("request_policy:all_shards response_policy:all_succeeded").needs(Admin),
    command("memory|stats", 2, NO_DATA, NONE, "", fan(Fan::PerServer), Server, "").tips("nondeterministic_output request_policy:all_shards response_policy:special"),
    command("memory|usage", -3, Read, SUBCOMMAND_KEY, "RO", Forward, Server, ""),
    command("module", -2, NO_DATA, NONE, "", Unsupported, Server, "").containing(5),
    command("module|help", 2, NO_DATA, NONE, "", ANY, Server, "loading stale"),
    command("module|list", 2, NO_DATA, NONE, "", ANY, Server, "admin noscript").tips("nondeterministic_output_order"),
    command("module|load", -3, NO_DATA, NONE, "", Refuse(MODULES), Server, "admin noscript no_async_loading"),
    command("module|loadex", -3, NO_DATA, NONE, "", Refuse(MODULES), Server, "admin noscript no_async_loading"),
    command("module|unload", 3, NO_DATA, NONE, "", Refuse(MODULES), Server, "admin noscript no_async_loading"),
    command("monitor", 1, NO_DATA, NONE, "", session(SessionRule::Monitor), Server, "admin noscript loading stale"),
    command("psync", -3, NO_DATA, NONE, "", Refuse(REPLICATION), Server, "admin noscript no_async_loading no_multi"),
    command("replconf", -1, NO_DATA, NONE, "", Refuse(REPLICATION), Server, "admin noscript loading stale allow_busy"),
    command("replicaof", 3, NO_DATA, NONE, "", Refuse(REPLICATION), Server, "admin noscript stale no_async_loading"),
    command("restore-asking", -4, Write, KEY, "OW update", Forward, Server, "denyoom asking").in_categories("@keyspace @dangerous").needs(Admin),
    command("role", 1, NO_DATA, NONE, "", local(Local::Role), Server, "noscript loading stale fast").in_categories("@admin @dangerous"),
    command("save", 1, NO_DATA, NONE, "", fan(Fan::Same), Server, "admin noscript no_async_loading no_multi").needs(Admin),
    command("shutdown", -1, NO_DATA, NONE, "", Refuse(SHUTDOWN), Server, "admin noscript loading stale no_multi allow_busy"),
    command("slaveof", 3, NO_DATA, NONE, "", Refuse(REPLICATION), Server, "admin noscript stale no_async_loading"),
    command("slowlog", -2, NO_DATA, NONE, "", Unsupported, Server, "").containing(4),
    command("slowlog|get", -2, NO_DATA, NONE, "", local(Local::SlowLog), Server, "admin loading stale").tips("request_policy:all_nodes nondeterministic_output"),
    command("slowlog|help", 2, NO_DATA, NONE, "", local(Local::SlowLog), Server, "loading stale"),
    command("slowlog|len", 2, NO_DATA, NONE, "", local(Local::SlowLog), Server, "admin loading stale").tips("request_policy:all_nodes response_policy:agg_sum nondeterministic_output"),
    command("slowlog|reset", 2, NO_DATA, NONE, "", local(Local::SlowLog), Server, "admin loading stale").tips("request_policy:all_nodes response_policy:all_succeeded").needs(Admin),
    command("swapdb", 3, Write, NONE, "", Single(SWAPDB), Server, "fast").in_categories("@keyspace @dangerous").needs(Application),
    command("sync", 1, NO_DATA, NONE, "", Refuse(REPLICATION), Server, "admin noscript no_async_loading no_multi"),
    command("time", 1, NO_DATA, NONE, "", ANY, Server, "loading stale fast").tips("nondeterministic_output"),
    command("trimslots", -5, Write, NONE, "", NO_CLUSTER, Server, "").in_categories("@keyspace @dangerous").since("8.4"),

    command("asking", 1, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "fast").in_categories("@connection"),
    command("cluster", -2, NO_DATA, NONE, "", Unsupported, Cluster, "").containing(35),
    command("cluster|addslots", -3, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|addslotsrange", -4, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|bumpepoch", 2, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading").tips("nondeterministic_output"),
    command("cluster|cancelslotmigrations", 2, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading").since("Valkey 9.0"),
    command("cluster|count-failure-reports", 3, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "admin stale").tips("nondeterministic_output"),
    command("cluster|countkeysinslot", 3, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "stale"),
    command("cluster|delslots", -3, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|delslotsrange", -4, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|failover", -2, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|flushslot", -3, Write, NONE, "", NO_CLUSTER, Cluster, "admin no_async_loading").in_categories("@keyspace").since("Valkey 9.0"),
    command("cluster|flushslots", 2, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|forget", 3, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|getkeysinslot", 4, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "stale").tips("nondeterministic_output"),
    command("cluster|getslotmigrations", 2, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading").since("Valkey 9.0"),
    command("cluster|help", 2, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "loading stale"),
    command("cluster|info", 2, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "stale").tips("nondeterministic_output"),
    command("cluster|keyslot", 3, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "stale"),
    command("cluster|links", 2, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "stale").tips("nondeterministic_output"),
    command("cluster|meet", -4, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|migrateslots", -4, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading").since("Valkey 9.0"),
    command("cluster|migration", -4, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading").since("8.4"),
    command("cluster|myid", 2, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "stale"),
    command("cluster|myshardid", 2, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "stale").tips("nondeterministic_output").since("7.2"),
    command("cluster|nodes", 2, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "stale").tips("nondeterministic_output"),
    command("cluster|replicas", 3, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "admin stale").tips("nondeterministic_output"),
    command("cluster|replicate", -3, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|reset", -2, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin noscript stale"),
    command("cluster|saveconfig", 2, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|set-config-epoch", 3, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|setslot", -4, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading"),
    command("cluster|shards", 2, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "loading stale").tips("nondeterministic_output"),
    command("cluster|slaves", 3, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "admin stale").tips("nondeterministic_output"),
    command("cluster|slot-stats", -4, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "loading stale").tips("nondeterministic_output request_policy:all_shards").since("8.2"),
    command("cluster|slots", 2, NO_DATA, NONE, "", local(Local::Cluster), Cluster, "loading stale").tips("nondeterministic_output"),
    command("cluster|syncslots", -3, NO_DATA, NONE, "", NO_CLUSTER, Cluster, "admin stale no_async_loading").since("8.4"),
    command("clusterscan", -2, Read, KEY, "not_key", NO_CLUSTER, Cluster, "").in_categories("@keyspace").tips("nondeterministic_output request_policy:special response_policy:special").since("Valkey 9.1"),
    command("readonly", 1, NO_DATA, NONE, "", local(Local::Reads), Cluster, "loading stale fast").in_categories("@connection"),
    command("readwrite", 1, NO_DATA, NONE, "", local(Local::Reads), Cluster, "loading stale fast").in_categories("@connection"),
]);
