//! A client's requests in the Redis protocol.

use std::collections::VecDeque;

use cashew_config::snapshot::Pool;
use cashew_placement::Distribution;

use crate::client::{Keys, RequestCtx};
use crate::random::Random;
use crate::redis_server::shared;
use crate::request::{Access, Answer, Framing, Part, Request, SessionParams};
use crate::user::Role;

pub(crate) struct RedisClient {
    pub(crate) keys: Keys,
    password: Option<String>,
    authenticated: bool,
    /// Where the pool has users: who it is, or would be.
    role: Option<Role>,
    name: Option<String>,
    params: SessionParams,
    /// The databases it may select, and its initial one.
    databases: u32,
    redis_db: u32,
    number: u32,
    /// The remaining requests of a transaction.
    script: VecDeque<Request>,
    /// Every key has one server, which is not chosen again each time.
    can_transact: bool,
}

const OK: &[u8] = b"+OK\r\n";
const QUEUED: &[u8] = b"+QUEUED\r\n";
const NIL_ARRAY: &[u8] = b"*-1\r\n";
const NIL: &[u8] = b"_\r\n";
const ABORT: &[u8] = b"-EXECABORT Transaction discarded because of previous errors.\r\n";
const MOVED: &[u8] = b"-EXECABORT Transaction discarded because its keys may have moved to other \
                       servers meanwhile.\r\n";
const NOT_AUTHENTICATED: &str = "-NOAUTH Authentication required.\r\n";
const WRONG_PASSWORD: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
const NO_KEY: &str =
    "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
/// No client may touch it.
pub(crate) const FORBIDDEN: &[u8] = b"x:1";

impl RedisClient {
    pub(crate) fn new(client: u32, config: &Pool, random: &mut Random) -> Self {
        Self {
            keys: Keys::new(client, config, random),
            password: config.redis_auth.clone(),
            authenticated: config.redis_auth.is_none() && config.users.is_empty(),
            role: (!config.users.is_empty()).then(|| random.pick(&Role::ALL)),
            name: None,
            params: SessionParams { resp3: false, database: config.redis_db },
            databases: config.databases,
            redis_db: config.redis_db,
            number: 0,
            script: VecDeque::new(),
            can_transact: config.distribution != Distribution::Random,
        }
    }

    pub(crate) fn request(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let may_skip = self.authenticated;
        let mut request = self.any(ctx);
        // In MULTI it would be refused and abort the transaction; and it must be known whether the
        // reply to a blocking call is due.
        let is_session = matches!(request.answer, Answer::Session { .. } | Answer::Wait { .. });
        let may_skip = may_skip && !is_session;
        let is_local = matches!(request.answer, Answer::Local(_) | Answer::Greeting);
        if may_skip && ctx.random.percent(ctx.temper.oddity / 4) && !request.last {
            let skip = b"CLIENT REPLY SKIP\r\n".as_slice();
            // Empty requests do not count for SKIP.
            if !is_local || !request.bytes.starts_with(b"\r\n") {
                request.bytes = [skip, &request.bytes].concat();
                request.no_reply = true;
            }
        }
        self.finished(request)
    }

    /// With the client's current session parameters.
    fn finished(&self, mut request: Request) -> Request {
        request.params = self.params;
        if self.params.resp3 {
            request.framing = Framing::Resp3;
        }
        request
    }

    fn any(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        self.number += 1;
        if !self.authenticated {
            return self.introduction(ctx);
        }
        if let Some(request) = self.script.pop_front() {
            return request;
        }
        if let Some(role) = self.role
            && let Some(request) = self.as_user(role, ctx)
        {
            return request;
        }
        let may_transact = self.can_transact && self.role.is_none_or(Role::transacts);
        if may_transact && ctx.random.percent(ctx.temper.sessions) {
            return self.session(ctx);
        }
        if ctx.random.percent(ctx.temper.oddity) {
            return self.oddity(ctx);
        }
        match self.role {
            Some(Role::Reads) => {
                let name = ctx.random.pick(&["GET", "STRLEN", "MGET", "EXISTS", "TOUCH"]);
                let count = if name.len() == 4 || name.starts_with('E') || name == "TOUCH" {
                    ctx.random.range(1, 5)
                } else {
                    1
                };
                return self.keyed(name, count, ctx);
            }
            Some(Role::Picks) => {
                let name = ctx.random.pick(&["GET", "SET", "STRLEN"]);
                return self.keyed(name, 1, ctx);
            }
            _ => {}
        }
        match ctx.random.below(20) {
            0..=4 => self.keyed("GET", 1, ctx),
            5..=8 => self.keyed("SET", 1, ctx),
            9 => self.keyed("INCRBY", 1, ctx),
            10 => self.keyed("STRLEN", 1, ctx),
            11..=13 => {
                let count = ctx.random.range(1, 9);
                self.keyed("MGET", count, ctx)
            }
            14..=15 => {
                let count = ctx.random.range(1, 4);
                self.keyed("MSET", count, ctx)
            }
            _ => {
                let name = ctx.random.pick(&["DEL", "UNLINK", "EXISTS", "TOUCH"]);
                let count = ctx.random.range(1, 5);
                self.keyed(name, count, ctx)
            }
        }
    }

    /// What is only asked where there are users: to be another one, who one is, and what one may not do.
    fn as_user(&mut self, role: Role, ctx: &mut RequestCtx<'_>) -> Option<Request> {
        Some(match ctx.random.below(100) {
            0..=3 => self.log_in(ctx),
            4..=7 => {
                let name = role.name();
                local("ACL WHOAMI\r\n", format!("${}\r\n{name}\r\n", name.len()))
            }
            8..=19 => return self.denied(role, ctx),
            _ => return None,
        })
    }

    /// Becomes another user, or tries to.
    fn log_in(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let role = ctx.random.pick(&Role::ALL);
        let (name, password) = (role.name(), role.password());
        let wrong = ctx.random.percent(10);
        if wrong {
            let words = [b"AUTH".to_vec(), name.into(), b"guess".to_vec()];
            return local(array(&words), WRONG_PASSWORD);
        }
        (self.role, self.authenticated) = (Some(role), true);
        match ctx.random.below(3) {
            0 => {
                self.params.resp3 = ctx.random.percent(50);
                let version = if self.params.resp3 { 3 } else { 2 };
                let hello = format!("HELLO {version} AUTH {name} {password}\r\n");
                Request::new(hello, Answer::Greeting, Framing::Resp)
            }
            _ => local(array(&[b"AUTH".to_vec(), name.into(), password.into()]), "+OK\r\n"),
        }
    }

    /// What the user may not do.
    fn denied(&mut self, role: Role, ctx: &mut RequestCtx<'_>) -> Option<Request> {
        let (own, value) = (self.keys.any(ctx.random), ctx.value(self.number));
        let (words, is_key): (Vec<&[u8]>, bool) = match (role, ctx.random.below(5)) {
            (Role::All, _) => return None,
            (Role::Reads, 0) => (vec![b"SET", &own, &value], false),
            (Role::Reads, 1) => (vec![b"del", &own, b"s:0"], false),
            (Role::Reads, 2) => (vec![b"multi"], false),
            (Role::Reads, 3) => (vec![b"mset", &own, &value, FORBIDDEN, &value], false),
            (Role::Reads, _) => (vec![b"flushall"], false),
            (Role::Own, 0) => (vec![b"GET", b"s:0"], true),
            (Role::Own, 1) => (vec![b"SET", FORBIDDEN, &value], true),
            (Role::Own, 2) => (vec![b"MSET", &own, &value, FORBIDDEN, &value], true),
            (Role::Own, 3) => (vec![b"MGET", &own, b"s:0"], true),
            (Role::Own, _) => (vec![b"DEL", &own, FORBIDDEN], true),
            (Role::Picks, 0) => (vec![b"del", &own], false),
            (Role::Picks, 1) => (vec![b"mget", &own, &own], false),
            (Role::Picks, 2) => (vec![b"watch", &own], false),
            (Role::Picks, 3) => (vec![b"GET", b"s:1"], true),
            (Role::Picks, _) => (vec![b"SET", FORBIDDEN, &value], true),
        };
        let name = String::from_utf8_lossy(words[0]).to_lowercase();
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        let bytes = array(&words);
        if bytes.len() as u64 > ctx.temper.request_size_max {
            return Some(refused("-ERR Protocol error: request too large\r\n", bytes));
        }
        Some(match is_key {
            true => local(bytes, NO_KEY),
            false => local(
                bytes,
                format!("-NOPERM this user has no permissions to run the '{name}' command\r\n"),
            ),
        })
    }

    /// A transaction, of which the first request is returned, or a blocking call.
    fn session(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let spelt = spellings("SET");
        let (keys, _) = self.keys.choose(1, false, &spelt, ctx);
        let key = keys[0].clone();
        if ctx.random.percent(30) {
            return self.wait(ctx);
        }
        let is_free = |tag: &Vec<u8>| ctx.is_free(tag, std::slice::from_ref(&key));
        let tags: Vec<Vec<u8>> = spelt.into_iter().filter(is_free).collect();
        let began = ctx.fabric.clock.now();
        let say = |args: &[&[u8]], good: &[u8], fair: &[&'static [u8]]| {
            let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.to_vec()).collect();
            let answer = Answer::Session { good: good.to_vec(), fair: fair.to_vec() };
            Request { began: Some(began), ..Request::new(array(&args), answer, Framing::Resp) }
        };
        let mut script = VecDeque::new();
        let watches = ctx.random.percent(40);
        if watches {
            script.push_back(say(&[b"WATCH", &key], OK, &[]));
            if ctx.random.percent(50) {
                script.push_back(self.keyed("GET", 1, ctx));
            }
            if ctx.random.percent(20) {
                script.push_back(say(&[b"UNWATCH"], OK, &[]));
                self.script = script;
                return self.script.pop_front().expect("it has WATCH");
            }
        }
        script.push_back(say(&[b"MULTI"], OK, &[]));
        let is_discarded = ctx.random.percent(15);
        let is_wrong = ctx.random.percent(10);
        let is_bounded = self.role == Some(Role::Own);
        let is_denied = is_wrong && is_bounded;
        let mut reply = Vec::new();
        let mut count = 0;
        if ctx.random.percent(20) {
            script.push_back(say(&[b"PING"], QUEUED, &[]));
            reply.extend_from_slice(b"+PONG\r\n");
            count += 1;
        }
        let sets = ctx.random.below(tags.len() as u64 + 1) as usize;
        for tag in tags.into_iter().take(sets) {
            self.number += 1;
            let value = ctx.value(self.number);
            let mut set = say(&[&tag, &key, &value], QUEUED, &[]);
            if set.bytes.len() as u64 > ctx.temper.request_size_max {
                continue;
            }
            if !is_discarded && !is_wrong {
                // It is unknown whether it is executed if the transaction fails.
                let (key, payload) = (key.clone(), Some(value));
                set.parts.push(Part::new(key, payload));
                set.tag = tag;
            } else {
                let mark = [b"x".as_slice(), &value].concat();
                set = say(&[&tag, b"s:0", &mark], QUEUED, &[]);
                if script.len() > 1 || watches || is_bounded {
                    // The shared key may be on another server.
                    set = say(&[b"PING"], QUEUED, &[]);
                }
            }
            set.access = Access::Write;
            script.push_back(set);
            reply.extend_from_slice(OK);
            count += 1;
        }
        if is_denied {
            script.push_back(say(&[b"SET", FORBIDDEN, b"1"], NO_KEY.as_bytes(), &[]));
        } else if is_wrong {
            let words = "-ERR wrong number of arguments for 'get' command\r\n";
            script.push_back(say(&[b"GET"], words.as_bytes(), &[]));
        }
        let fair: &[&'static [u8]] = match ctx.temper.unsettled {
            // What may no longer be done is not done any more.
            true if is_bounded => &[if self.params.resp3 { NIL } else { NIL_ARRAY }, MOVED, ABORT],
            true => &[if self.params.resp3 { NIL } else { NIL_ARRAY }, MOVED],
            false => &[],
        };
        script.push_back(if is_discarded {
            say(&[b"DISCARD"], OK, &[])
        } else if is_wrong {
            say(&[b"EXEC"], ABORT, fair)
        } else {
            let head = format!("*{count}\r\n");
            say(&[b"EXEC"], &[head.as_bytes(), &reply].concat(), fair)
        });
        self.script = script;
        self.script.pop_front().expect("it has MULTI")
    }

    fn wait(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let (keys, tag) = self.keys.choose(1, false, &spellings("BLPOP"), ctx);
        let key = keys[0].clone();
        let is_endless = ctx.random.percent(60);
        let timeout: &[u8] = if is_endless { b"0" } else { b"0.01" };
        let bytes = array(&[tag.clone(), key.clone(), timeout.to_vec()]);
        let answer = Answer::Wait { nil: !is_endless };
        let mut request = Request::new(bytes, answer, Framing::Resp);
        request.access = Access::Write;
        if is_endless {
            request.tag = tag;
            request.parts.push(Part::new(key, None));
        }
        request
    }

    fn keyed(&mut self, name: &str, count: u64, ctx: &mut RequestCtx<'_>) -> Request {
        let is_read = matches!(name, "GET" | "MGET" | "EXISTS" | "TOUCH" | "STRLEN");
        let with_shared = is_read && name != "STRLEN" && self.role.is_none_or(Role::shares);
        let (keys, tag) = self.keys.choose(count, with_shared, &spellings(name), ctx);
        let mut args = vec![tag.clone()];
        let mut parts = Vec::new();
        for key in keys {
            let payload = match name {
                "SET" | "MSET" => Some(ctx.value(self.number)),
                "INCRBY" => Some(self.number.to_string().into_bytes()),
                _ => None,
            };
            args.push(key.clone());
            args.extend(payload.clone());
            let is_shared = key.starts_with(b"s:");
            let outcome = is_shared.then(|| shared(name.as_bytes(), &key));
            parts.push(Part { outcome, shared: is_shared, ..Part::new(key, payload) });
        }
        let bytes = match ctx.random.percent(8) && args.iter().all(|arg| is_plain(arg)) {
            true => inline(&args),
            false => array(&args),
        };
        if bytes.len() as u64 > ctx.temper.request_size_max {
            return refused("-ERR Protocol error: request too large\r\n", bytes);
        }
        let mut request = Request::new(bytes, answer(name), Framing::Resp);
        (request.tag, request.parts) = (tag, parts);
        request.access = if is_read { Access::Read } else { Access::Write };
        request
    }

    /// Before AUTH nothing works, but unknown commands still get their error.
    fn introduction(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let password = self.password.clone().unwrap_or_default();
        let case = ctx.random.below(6);
        if self.role.is_some() && case > 2 {
            return self.log_in(ctx);
        }
        match case {
            0 => local("GET a\r\n", NOT_AUTHENTICATED),
            1 => local(
                "*1\r\n$3\r\nfoo\r\n",
                "-ERR unknown command 'foo', with args beginning with: \r\n",
            ),
            2 => local("AUTH guess\r\n", WRONG_PASSWORD),
            _ => {
                self.authenticated = true;
                local(array(&[b"AUTH".to_vec(), password.into_bytes()]), "+OK\r\n")
            }
        }
    }

    fn oddity(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        match ctx.random.below(18) {
            0..=1 => local("PING\r\n", "+PONG\r\n"),
            2 => local("*2\r\n$4\r\nping\r\n$5\r\nhello\r\n", "$5\r\nhello\r\n"),
            3 => {
                let value = ctx.value(self.number);
                let reply = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
                let bytes = array(&[b"ECHO".to_vec(), value]);
                if bytes.len() as u64 > ctx.temper.request_size_max {
                    return refused("-ERR Protocol error: request too large\r\n", bytes);
                }
                local(bytes, reply)
            }
            4 => local(
                "*2\r\n$3\r\nFOO\r\n$3\r\nbar\r\n",
                "-ERR unknown command 'FOO', with args beginning with: 'bar' \r\n",
            ),
            5 => local("GET\r\n", "-ERR wrong number of arguments for 'get' command\r\n"),
            6 if self.role.is_none() => local(
                "*4\r\n$4\r\nmset\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n",
                "-ERR wrong number of arguments for 'mset' command\r\n",
            ),
            7 => self.select(0),
            14 => {
                let database = ctx.random.below(u64::from(self.databases)) as u32;
                self.select(database)
            }
            15 | 16 => {
                self.params.resp3 = ctx.random.percent(70);
                let version = if self.params.resp3 { 3 } else { 2 };
                Request::new(format!("HELLO {version}\r\n"), Answer::Greeting, Framing::Resp)
            }
            17 => self.select(self.redis_db),
            8 => local("select 77\r\n", "-ERR DB index is out of range\r\n"),
            9 => {
                let name = format!("n{}", self.number);
                self.name = Some(name.clone());
                local(format!("CLIENT SETNAME {name}\r\n"), "+OK\r\n")
            }
            10 => {
                let reply = match &self.name {
                    Some(name) => format!("${}\r\n{name}\r\n", name.len()),
                    None if self.params.resp3 => "_\r\n".to_owned(),
                    None => "$-1\r\n".to_owned(),
                };
                local("*2\r\n$6\r\nCLIENT\r\n$7\r\ngetname\r\n", reply)
            }
            // Empty requests have no reply.
            11 => local("\r\n*0\r\n\r\nPING\r\n", "+PONG\r\n"),
            12 => local("ASKING\r\n", "-ERR This instance has cluster support disabled\r\n"),
            _ => local("ECHO \"a\\x41 b\"\r\n", "$4\r\naA b\r\n"),
        }
    }

    fn select(&mut self, database: u32) -> Request {
        if self.databases > 1 {
            self.params.database = database;
        }
        local(format!("SELECT {database}\r\n"), "+OK\r\n")
    }

    /// The last request: the gateway closes after its reply.
    pub(crate) fn farewell(&mut self, ctx: &mut RequestCtx<'_>) -> Request {
        let request = match ctx.random.below(6) {
            0..=2 => Request { last: true, ..local("QUIT\r\n", "+OK\r\n") },
            3 => refused(
                "-ERR Protocol error: invalid multibulk length\r\n",
                b"*x\r\nGET a\r\n".to_vec(),
            ),
            // What follows is not a request any more.
            4 => refused(
                "-ERR Protocol error: expected '$', got '!'\r\n",
                b"*1\r\n!3\r\nGET\r\nPING\r\n".to_vec(),
            ),
            _ => refused(
                "-ERR Protocol error: unbalanced quotes in request\r\n",
                b"SET a \"b\r\n".to_vec(),
            ),
        };
        self.finished(request)
    }
}

fn local(bytes: impl Into<Vec<u8>>, reply: impl Into<Vec<u8>>) -> Request {
    Request::new(bytes, Answer::Local(reply.into()), Framing::Resp)
}

fn refused(reply: &str, bytes: Vec<u8>) -> Request {
    Request { last: true, ..local(bytes, reply) }
}

fn answer(name: &str) -> Answer {
    match name {
        "MGET" => Answer::Gather,
        "MSET" => Answer::Same,
        "DEL" | "UNLINK" | "EXISTS" | "TOUCH" => Answer::Sum,
        _ => Answer::Forward,
    }
}

/// Spellings of a command's name, which distinguish requests.
fn spellings(name: &str) -> Vec<Vec<u8>> {
    let spell = |bits: usize| -> Vec<u8> {
        let letter = |(at, byte): (usize, u8)| match bits >> at & 1 {
            0 => byte,
            _ => byte.to_ascii_lowercase(),
        };
        name.bytes().enumerate().map(letter).collect()
    };
    (0..8).map(spell).collect()
}

fn is_plain(arg: &[u8]) -> bool {
    !arg.is_empty() && arg.iter().all(|&b| b.is_ascii_alphanumeric() || b":{}.".contains(&b))
}

fn inline(args: &[Vec<u8>]) -> Vec<u8> {
    let mut line = args.join(&b' ');
    line.extend_from_slice(b"\r\n");
    line
}

fn array(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
