//! Where the requests of a route's clients go, in Redis's words.

use std::sync::Arc;

use cashew_config::snapshot::{Protocol, Reach};
use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{self, Access, COMMANDS, Command, Group, Rule, SessionRule};
use cashew_protocol::resp::{self, encode};

use super::cross_shard_copy::shown;
use super::warm_up;
use crate::base::failure::NamedFailure;
use crate::base::id::{BackendId, ClientId, LaneId};
use crate::base::outcome::Refusal;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::route::answer::{Asked, Dialect, Fill, Kind, Question, Repeats, Seat, Word, digest};
use crate::route::explain::{Explanation, once};
use crate::route::flow::Errand;
use crate::route::stand::operation_of;
use crate::topology::route_tree::{First, Operation, Tree, Way};

/// What tells of, or changes, all keys: of one pool among several it would tell half of the truth.
const ABOUT_ALL_KEYS: [&str; 10] = [
    "dbsize",
    "flushall",
    "flushdb",
    "function",
    "keys",
    "randomkey",
    "scan",
    "swapdb",
    "wait",
    "waitaof",
];

const OVERLOADED: &str = "ERR overloaded: the route lets no more requests through";

/// What removes its keys.
pub(crate) fn deletes(command: &Command) -> bool {
    matches!(command.name, "del" | "unlink" | "getdel")
}

/// Whether it may be asked of several backends, or in other words, outside of a transaction.
fn may_fork(command: &Command) -> bool {
    matches!(command.rule, Rule::Split(_))
        || command.rule == Rule::Forward
            && command.single_key().is_some()
            && command.group != Group::Scripting
            && command.access != Access::None
}

/// Whether its keys tell where it goes.
fn goes_by_keys(command: &Command) -> bool {
    let may_have_keys = command.single_key().is_some() || command.access != Access::None;
    match command.rule {
        Rule::Forward | Rule::Split(_) | Rule::Block => may_have_keys,
        Rule::Session(rule) => rule == SessionRule::Watch,
        _ => false,
    }
}

/// Where the keys of a request go.
enum Ways {
    /// All to one backend, as they are.
    One(BackendId),
    /// To several.
    Several,
    /// At least one by a node that asks several backends, or changes the request.
    Forked,
    /// At least one, the `n`th, nowhere.
    None(usize),
}

impl Ways {
    fn of<'k>(tree: &Tree, keys: impl Iterator<Item = &'k [u8]>, operation: Operation) -> Self {
        let (mut found, mut is_forked) = (None, false);
        for (at, key) in keys.enumerate() {
            match (tree.way(key, operation), &found) {
                (Way::None, _) | (Way::Straight(BackendId::NONE), _) => return Self::None(at),
                (Way::Forked(_), _) => is_forked = true,
                (Way::Straight(backend), None) => found = Some(Self::One(backend)),
                (Way::Straight(backend), Some(Self::One(one))) if backend == *one => {}
                (Way::Straight(_), _) => found = Some(Self::Several),
            }
        }
        match found {
            _ if is_forked => Self::Forked,
            Some(found) => found,
            None => Self::None(0),
        }
    }
}

impl Engine {
    /// Has a route's client stand where its request goes. Returns what becomes of the request if that is all,
    /// as it cannot go there, or goes to several backends.
    #[cold]
    pub(crate) fn route_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Option<Plan> {
        let tree = Arc::clone(self.destination_of(client).route.as_ref()?);
        let stays = match command.rule {
            Rule::Local(_) | Rule::Refuse(_) | Rule::Unsupported => true,
            Rule::Session(rule) => rule != SessionRule::Watch,
            _ => false,
        };
        let pinned = self.transaction_backend(client);
        self.remember_for_all(&tree, command, bytes, args);
        if matches!(command.rule, Rule::Publish | Rule::Subscribe(_)) {
            // Channels are names of their own: all of them are where what has no key is.
            return match pinned.filter(|_| self.is_queueing(client)) {
                Some(backend) => self.go_to(client, backend),
                None => self.go_to(client, self.keyless_backend(client)),
            };
        }
        if stays {
            if matches!(command.rule, Rule::Session(_))
                && tree.has_caches()
                && self.waits_for_copies(client, command, (bytes, &[]))
            {
                return Some(Plan::Wait);
            }
            // What is about a transaction is for where that is.
            return pinned.and_then(|backend| self.go_to(client, backend));
        }
        let mut keys = std::mem::take(&mut self.scratch.keys);
        keys.clear();
        let are_found = command.keys(bytes, args, &mut keys).is_ok();
        let plan = match are_found {
            // What is wrong with them is said where they are looked for again.
            false => None,
            true if keys.is_empty() => self.route_keyless(client, &tree, command, pinned),
            true => {
                let kept = match tree.has_caches() {
                    true => self.read_kept(client, &tree, command, (bytes, &keys)),
                    false => None,
                };
                match kept {
                    None => self.route_keys(client, &tree, command, (bytes, args), &keys),
                    kept => kept,
                }
            }
        };
        self.scratch.keys = keys;
        plan
    }

    /// A script that a client has loaded is to be had wherever its keys are.
    fn remember_for_all(&mut self, tree: &Tree, command: &Command, bytes: &[u8], args: &[Span]) {
        let text = match command.name {
            "script|load" => args.get(2),
            "eval" | "eval_ro" => args.get(1),
            _ => None,
        };
        let Some(text) = text.map(|text| text.of(bytes)) else { return };
        for &backend in tree.backends().iter().filter(|&&it| it != BackendId::NONE) {
            self.remember_script(backend, text);
        }
    }

    fn route_keyless(
        &mut self,
        client: ClientId,
        tree: &Tree,
        command: &Command,
        pinned: Option<BackendId>,
    ) -> Option<Plan> {
        let name = command.name.split('|').next().unwrap_or_default();
        if tree.has_caches() && self.waits_for_copies(client, command, (b"", &[])) {
            return Some(Plan::Wait);
        }
        let is_about_all = ABOUT_ALL_KEYS.contains(&name) || command.name == "script|flush";
        if is_about_all && tree.backends().len() > 1 {
            let text = format!(
                "ERR {} is about all servers, and this route leads to {} pools: ask them",
                command.name.to_ascii_uppercase().replace('|', " "),
                tree.backends().len()
            );
            return Some(self.refuse_routed(client, &text));
        }
        match pinned {
            Some(backend) if self.is_queueing(client) => self.go_to(client, backend),
            _ => self.go_to(client, self.keyless_backend(client)),
        }
    }

    fn route_keys(
        &mut self,
        client: ClientId,
        tree: &Arc<Tree>,
        command: &'static Command,
        (bytes, args): (&[u8], &[Span]),
        keys: &[Span],
    ) -> Option<Plan> {
        let operation = operation_of(command.access, deletes(command));
        let texts = || keys.iter().map(|key| key.of(bytes));
        let is_queueing = self.is_queueing(client);
        let may_split = matches!(command.rule, Rule::Split(_)) && !is_queueing;
        let may_fork = may_fork(command) && !is_queueing;
        match Ways::of(tree, texts(), operation) {
            Ways::None(at) => {
                let text = format!("ERR no route for the key {}", shown(keys[at].of(bytes)));
                Some(self.refuse_routed(client, &text))
            }
            Ways::One(backend) => self.go_with_keys(client, command, backend),
            Ways::Several if may_split => None,
            Ways::Forked if may_fork => {
                Some(self.fork_redis(client, tree, command, (bytes, args), keys, operation))
            }
            Ways::Several | Ways::Forked => {
                self.go_to_first(client, tree, command, texts(), operation)
            }
        }
    }

    /// Has what cannot go to several backends go to the first that its keys may go to.
    fn go_to_first<'k>(
        &mut self,
        client: ClientId,
        tree: &Tree,
        command: &Command,
        keys: impl Iterator<Item = &'k [u8]>,
        operation: Operation,
    ) -> Option<Plan> {
        let name = || command.name.to_ascii_uppercase().replace('|', " ");
        let mut found: Option<(BackendId, &[u8])> = None;
        for key in keys {
            let now = Some(self.now).filter(|_| found.is_none());
            let first = tree.first_for(tree.root(), key, operation, now);
            let First { backend, is_rewritten, is_refused } = first;
            if is_refused {
                return Some(self.refuse_routed(client, OVERLOADED));
            }
            if is_rewritten {
                let text = format!(
                    "ERR {} cannot go by a route on which servers know {} by another name",
                    name(),
                    shown(key)
                );
                return Some(self.refuse_routed(client, &text));
            }
            match found {
                Some((one, first)) if one != backend => {
                    let text = format!(
                        "CROSSSLOT {} needs its keys in one pool, but the route sends {} and {} to two",
                        name(),
                        shown(first),
                        shown(key)
                    );
                    return Some(self.refuse_routed(client, &text));
                }
                _ => found = Some((backend, key)),
            }
        }
        found.and_then(|(backend, _)| self.go_with_keys(client, command, backend))
    }

    /// Stands where all keys of a request are; what is queued or watched has to be where the transaction is.
    fn go_with_keys(
        &mut self,
        client: ClientId,
        command: &Command,
        backend: BackendId,
    ) -> Option<Plan> {
        let is_bound = self.is_queueing(client) || matches!(command.rule, Rule::Session(_));
        match self.transaction_backend(client).filter(|_| is_bound) {
            Some(pinned) if pinned != backend => {
                let text = "CROSSSLOT the keys of a transaction must be in one pool of the route";
                Some(self.refuse_routed(client, text))
            }
            _ => self.go_to(client, backend),
        }
    }

    fn go_to(&mut self, client: ClientId, backend: BackendId) -> Option<Plan> {
        self.stand_at(client, backend).err().map(|failure| self.fail(client, failure))
    }

    /// The backend of the connection that a transaction has, if it has one.
    pub(crate) fn transaction_backend(&self, client: ClientId) -> Option<BackendId> {
        let lane = self.clients[client].modes.transaction.as_ref()?.lane;
        (lane != LaneId::NONE).then(|| self.lane(lane).backend)
    }

    fn refuse_routed(&mut self, client: ClientId, text: &str) -> Plan {
        match self.is_queueing(client) {
            true => self.refuse_queued(client, text),
            false => self.reply_error(client, text),
        }
    }
}

/// Redis's protocol, whose replies to several keys are joined so.
#[derive(Debug)]
pub(crate) struct Redis(Option<redis::Merge>);

pub(super) static PLAIN: Redis = Redis(None);
static GATHERED: Redis = Redis(Some(redis::Merge::Gather));
static SUMMED: Redis = Redis(Some(redis::Merge::Sum));
static ALL_OK: Redis = Redis(Some(redis::Merge::AllOk));

/// Commands that leave the same behind when they run twice, in whatever form.
const ALIKE: [&str; 29] = [
    "del",
    "expireat",
    "getdel",
    "hdel",
    "hmset",
    "hset",
    "lset",
    "ltrim",
    "mset",
    "persist",
    "pexpireat",
    "pfadd",
    "psetex",
    "sadd",
    "setbit",
    "setex",
    "setrange",
    "srem",
    "touch",
    "unlink",
    "zrem",
    "zremrangebylex",
    "zremrangebyscore",
    "geoadd",
    "hsetnx",
    "copy",
    "xdel",
    "expire",
    "pexpire",
];
/// Options by which one of these does not.
const UNLIKE: [&[u8]; 5] = [b"NX", b"XX", b"GET", b"INCR", b"CH"];

/// Whom a command of Redis, by its name as in the table, reaches in its plainest form where several are asked. What is
/// not in the table must run once.
pub fn redis_reach(name: &str) -> Reach {
    COMMANDS.iter().find(|command| command.name == name).map_or(Reach::Once, reach)
}

fn reach(command: &Command) -> Reach {
    match repeats(command, b"", &[]) {
        _ if !may_fork(command) => Reach::First,
        Repeats::Freely => Reach::All,
        Repeats::Never => Reach::Once,
        Repeats::Alike if deletes(command) || stores_whole(command, b"", &[]) => Reach::All,
        Repeats::Alike => Reach::Alike,
    }
}

fn repeats(command: &Command, bytes: &[u8], args: &[Span]) -> Repeats {
    let has_option = || {
        let options = args.iter().skip(1).map(|arg| arg.of(bytes));
        options.into_iter().any(|arg| UNLIKE.iter().any(|it| arg.eq_ignore_ascii_case(it)))
    };
    match command.name {
        _ if command.access.reads() => Repeats::Freely,
        "set" | "zadd" if !has_option() => Repeats::Alike,
        name if ALIKE.contains(&name) => Repeats::Alike,
        _ => Repeats::Never,
    }
}

/// Commands that have changed nothing if they answer 0 or nil.
const UNCHANGED: [&str; 31] = [
    "del",
    "expire",
    "expireat",
    "getdel",
    "getex",
    "hdel",
    "hexpire",
    "hsetnx",
    "linsert",
    "lmpop",
    "lpop",
    "lpushx",
    "lrem",
    "msetnx",
    "persist",
    "pexpire",
    "pexpireat",
    "pfadd",
    "rpop",
    "rpushx",
    "sadd",
    "setnx",
    "spop",
    "srem",
    "touch",
    "unlink",
    "xack",
    "xdel",
    "xtrim",
    "zmpop",
    "zrem",
];

/// Whether something may have changed though the answer is 0 or nil: `HSET` of a field that was there answers 0,
/// `INCR` the result, `GETSET` what was there before.
fn misses_change(command: &Command, bytes: &[u8], args: &[Span]) -> bool {
    let has = |word: &[u8]| args.iter().skip(3).any(|arg| arg.of(bytes).eq_ignore_ascii_case(word));
    match command.name {
        "set" => has(b"GET") || !has(b"NX") && !has(b"XX"),
        name => command.access != Access::Read && !UNCHANGED.contains(&name),
    }
}

/// Whether what a key has afterwards, its time to live included, is all in the request.
fn stores_whole(command: &Command, bytes: &[u8], args: &[Span]) -> bool {
    let mut options = args.iter().skip(3).map(|arg| arg.of(bytes));
    match command.name {
        "set" => !options.any(|arg| arg.eq_ignore_ascii_case(b"KEEPTTL")),
        name => matches!(name, "setex" | "psetex" | "mset" | "getset"),
    }
}

fn question(text: Vec<u8>, key_at: Span) -> Question {
    Question {
        key: key_at.of(&text).to_vec(),
        key_at,
        text,
        expect: Expect::Line,
        asked: Asked::default(),
        asks_unique: false,
        names_unique: false,
        is_quiet: false,
        is_base64: false,
        opcode: 0,
    }
}

/// What deletes a key.
pub(super) fn deletion(key: &[u8]) -> Question {
    let mut text = Vec::new();
    encode::write_command(&mut text, &[b"DEL", key]);
    let start = text.len() - key.len() - b"\r\n".len();
    question(text, Span::new(start, key.len()))
}

impl Engine {
    /// Asks several backends, or in other words.
    fn fork_redis(
        &mut self,
        client: ClientId,
        tree: &Arc<Tree>,
        command: &'static Command,
        (bytes, args): (&[u8], &[Span]),
        keys: &[Span],
        operation: Operation,
    ) -> Plan {
        let (dialect, questions): (&'static Redis, Vec<Question>) = match command.rule {
            Rule::Split(merge) => {
                let (dialect, step) = match merge {
                    redis::Merge::Gather => (&GATHERED, 1),
                    redis::Merge::Sum => (&SUMMED, 1),
                    redis::Merge::AllOk => (&ALL_OK, 2),
                };
                let of_key = |args_of_key: &[Span]| {
                    let mut text = Vec::new();
                    encode::write_array_header(&mut text, 1 + step);
                    encode::write_bulk(&mut text, args[0].of(bytes));
                    encode::write_bulk(&mut text, args_of_key[0].of(bytes));
                    let key_len = args_of_key[0].len as usize;
                    let key_at = Span::new(text.len() - key_len - b"\r\n".len(), key_len);
                    args_of_key[1..]
                        .iter()
                        .for_each(|arg| encode::write_bulk(&mut text, arg.of(bytes)));
                    question(text, key_at)
                };
                (dialect, args[1..].chunks(step).map(of_key).collect())
            }
            _ => (&PLAIN, vec![question(bytes.to_vec(), keys[0])]),
        };
        let errand = Errand {
            operation,
            repeats: repeats(command, bytes, args),
            dialect,
            is_joined: dialect.0.is_some(),
            overwrites: stores_whole(command, bytes, args),
            misses_change: misses_change(command, bytes, args),
        };
        self.ask_route(client, tree, errand, questions)
    }
}

/// ROUTE EXPLAIN: where a key goes from the port where it is asked, and how the servers there are.
impl Engine {
    /// `ROUTE EXPLAIN key [command]`: a line for each node, as a list. Without a command it is read.
    pub(crate) fn route_explain(&mut self, client: ClientId, key: &[u8], called: &[u8]) -> Plan {
        let name = String::from_utf8_lossy(called).to_ascii_lowercase();
        let known = COMMANDS.iter().find(|command| command.name == name);
        let access = match (called.is_empty(), known) {
            (true, _) => Access::Read,
            (false, Some(command)) => command.access,
            (false, None) => {
                let text = format!("ERR there is no command '{}'", name.escape_debug());
                return self.reply_error(client, &text);
            }
        };
        let shown_name = || name.to_ascii_uppercase().replace('|', " ");
        if let Some(command) = known
            && !goes_by_keys(command)
        {
            let text = format!("ERR {} does not go by a key", shown_name());
            return self.reply_error(client, &text);
        }
        let operation = operation_of(access, known.is_some_and(deletes));
        let reach = known.map_or(Reach::All, reach);
        let Explanation { mut lines, is_forked } =
            match self.explain(client, key, (access, reach), operation) {
                Ok(explanation) => explanation,
                Err(text) => return self.reply_error(client, &format!("ERR {text}")),
            };
        if is_forked {
            match reach {
                Reach::First => lines.insert(
                    0,
                    format!(
                        "{} goes to the first pool only, and to none where the key has another name",
                        shown_name()
                    ),
                ),
                Reach::Once => lines.insert(0, once(&shown_name())),
                Reach::All | Reach::Alike => {}
            }
        }
        self.reply_with(client, |out| {
            out.extend_from_slice(format!("*{}\r\n", lines.len()).as_bytes());
            lines.iter().for_each(|line| encode::write_bulk(out, line.as_bytes()));
        })
    }

    /// Of all commands that are [`Local::Route`](cashew_protocol::redis::Local::Route).
    pub(crate) fn route_command(
        &mut self,
        client: ClientId,
        command: &Command,
        arguments: (&[u8], &[u8], usize),
    ) -> Plan {
        let (key, called, count) = arguments;
        match (command.name, count) {
            ("route|explain", 3 | 4) => self.route_explain(client, key, called),
            ("route|help", _) => self.reply_with(client, |out| {
                encode::write_array_header(out, HELP.len());
                HELP.iter().for_each(|line| encode::write_bulk(out, line.as_bytes()));
            }),
            _ => self.reply_error(client, "ERR syntax error: ROUTE EXPLAIN key [command]"),
        }
    }
}

const HELP: [&str; 5] = [
    "ROUTE <subcommand> [<arg> ...]. Subcommands are:",
    "EXPLAIN <key> [<command>]",
    "    Where the key goes, a line for each node of the route, and how the server is. Without a command it is read.",
    "HELP",
    "    Print this help.",
];

/// The name of what is called.
fn name_of(text: &[u8]) -> Vec<u8> {
    let mut lines = text.split(|&byte| byte == b'\n').skip(2);
    lines.next().unwrap_or_default().trim_ascii_end().to_ascii_lowercase()
}

impl Dialect for Redis {
    fn about(&self, question: &Question, key: &[u8]) -> Vec<u8> {
        let Question { text, key_at, .. } = question;
        let start = key_at.start as usize;
        // In front of a key is its length.
        let header = text[..start].iter().rposition(|&byte| byte == b'$').unwrap_or(start);
        let mut out = text[..header].to_vec();
        encode::write_bulk(&mut out, key);
        out.extend_from_slice(&text[key_at.end() + b"\r\n".len()..]);
        out
    }

    fn takes(&self, _: &Question, _: &[u8]) -> bool {
        true
    }

    fn removal(&self, _: &Question, key: &[u8]) -> (Vec<u8>, Expect, Asked) {
        let mut out = Vec::new();
        encode::write_array_header(&mut out, 2);
        encode::write_bulk(&mut out, b"DEL");
        encode::write_bulk(&mut out, key);
        (out, Expect::Line, Asked::default())
    }

    /// By `PEXPIRE … LT` behind it, which Redis knows since 7.0: what lives shorter stays so.
    fn limit_life(
        &self,
        _: &Question,
        _: &mut Vec<u8>,
        key: &[u8],
        ttl_ms: u64,
    ) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        encode::write_array_header(&mut out, 4);
        encode::write_bulk(&mut out, b"PEXPIRE");
        encode::write_bulk(&mut out, key);
        encode::write_bulk(&mut out, ttl_ms.to_string().as_bytes());
        encode::write_bulk(&mut out, b"LT");
        Some(out)
    }

    fn kind(&self, _: &Question, reply: &[u8]) -> Kind {
        const NOTHING: [&[u8]; 11] = [
            b"$-1\r\n",
            b"*-1\r\n",
            b"_\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n_\r\n",
            b"*0\r\n",
            b"%0\r\n",
            b"~0\r\n",
            b":0\r\n",
            b":-2\r\n",
            b"+none\r\n",
        ];
        match reply.first() {
            Some(b'-' | b'!') => match Refusal::of(reply) {
                Some(_) => Kind::Refused,
                None => Kind::Error,
            },
            _ if NOTHING.contains(&reply) => Kind::Miss,
            _ => Kind::Hit,
        }
    }

    fn write_word(&self, question: &Question, word: Word, out: &mut Vec<u8>) {
        let text = match word {
            Word::Overloaded => OVERLOADED.to_owned(),
            Word::NoMajority(hits, misses, failed) => format!(
                "ERR no majority: {hits} have it or did it, {misses} do not, {failed} failed"
            ),
            Word::NoRoute => format!("ERR no route for the key {}", shown(&question.key)),
            Word::UnfitKey | Word::UnknownSet | Word::UnknownFlag => {
                unreachable!("{word:?} is said of memcached alone")
            }
            Word::Unknown => {
                let name = name_of(&question.text);
                let nothing: &[u8] = match &name[..] {
                    b"set" | b"setex" | b"psetex" | b"mset" | b"hmset" | b"lset" | b"ltrim"
                    | b"restore" => b"+OK\r\n",
                    b"getset" | b"getdel" | b"getex" | b"lpop" | b"rpop" | b"spop" => b"$-1\r\n",
                    _ => b":0\r\n",
                };
                return out.extend_from_slice(nothing);
            }
        };
        encode::write_error(out, text.as_bytes());
    }

    /// What is answered by a status, or by how much was done.
    fn has_word(&self, question: &Question) -> bool {
        const ANSWERED_OK: [&[u8]; 7] =
            [b"setex", b"psetex", b"mset", b"hmset", b"lset", b"ltrim", b"restore"];
        const COUNTED: [&[u8]; 16] = [
            b"del",
            b"unlink",
            b"hset",
            b"hdel",
            b"sadd",
            b"srem",
            b"zrem",
            b"expire",
            b"pexpire",
            b"expireat",
            b"pexpireat",
            b"persist",
            b"pfadd",
            b"touch",
            b"setbit",
            b"geoadd",
        ];
        // What SET and ZADD answer depends on options, by which they are to run once.
        let name = name_of(&question.text);
        ANSWERED_OK.contains(&&name[..])
            || COUNTED.contains(&&name[..])
            || matches!(&name[..], b"set" | b"zadd")
    }

    fn digest(&self, _: &Question, reply: &[u8]) -> u64 {
        digest(reply)
    }

    /// No reply to a command with one key in a certain place names it.
    fn restored(&self, _: &Question, _: &[u8], _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn join(&self, _: &Question, replies: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        match self.0 {
            Some(redis::Merge::Gather) => {
                encode::write_array_header(&mut out, replies.len());
                for reply in replies {
                    out.extend_from_slice(reply.strip_prefix(b"*1\r\n").unwrap_or(b"$-1\r\n"));
                }
            }
            Some(redis::Merge::Sum) => {
                let number = |reply: &Vec<u8>| match resp::reply(reply) {
                    Some(resp::Reply::Integer(number)) => number,
                    _ => 0,
                };
                encode::write_integer(&mut out, replies.iter().map(number).sum());
            }
            Some(redis::Merge::AllOk) | None => {
                out.extend_from_slice(replies.first().map_or(b"+OK\r\n", |reply| reply));
            }
        }
        out
    }

    fn write_failure(&self, _: &Question, failure: &NamedFailure, _: bool, out: &mut Vec<u8>) {
        failure.write_reply(Protocol::Redis, out);
    }

    fn untag(&self, _: &Engine, _: LaneId, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn is_unwanted(&self, _: &Question, _: &mut [u8]) -> bool {
        false
    }

    fn fill(&self, engine: &mut Engine, seat: Seat, fill: Fill) -> bool {
        warm_up::begin(engine, seat, fill)
    }
}
