//! What a client says in the Redis protocol.

use std::collections::VecDeque;

use cashew_config::snapshot::Pool;
use cashew_placement::Distribution;

use crate::client::{Asking, Keys};
use crate::random::Random;
use crate::redis_server::shared;
use crate::request::{Access, Answer, Framing, Part, Request, Variant};

pub(crate) struct RedisClient {
    pub(crate) keys: Keys,
    password: Option<String>,
    authenticated: bool,
    name: Option<String>,
    variant: Variant,
    /// Which databases it may select, and which one it has at first.
    databases: u32,
    redis_db: u32,
    number: u32,
    /// What is left to be asked of a transaction.
    script: VecDeque<Request>,
    /// Every key has a server of its own, which is not chosen anew each time.
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

impl RedisClient {
    pub(crate) fn new(client: u32, config: &Pool, random: &mut Random) -> Self {
        Self {
            keys: Keys::new(client, config, random),
            password: config.redis_auth.clone(),
            authenticated: config.redis_auth.is_none(),
            name: None,
            variant: Variant { resp3: false, database: config.redis_db },
            databases: config.databases,
            redis_db: config.redis_db,
            number: 0,
            script: VecDeque::new(),
            can_transact: config.distribution != Distribution::Random,
        }
    }

    pub(crate) fn request(&mut self, asking: &mut Asking<'_>) -> Request {
        let may_skip = self.authenticated;
        let mut request = self.any(asking);
        // In MULTI it would be refused, and abort; of what waits it is known whether it is owed.
        let is_session = matches!(request.answer, Answer::Session { .. } | Answer::Wait { .. });
        let may_skip = may_skip && !is_session;
        let is_local = matches!(request.answer, Answer::Local(_) | Answer::Greeting);
        if may_skip && asking.random.percent(asking.temper.oddity / 4) && !request.last {
            let skip = b"CLIENT REPLY SKIP\r\n".as_slice();
            // Empty requests are no request to skip.
            if !is_local || !request.bytes.starts_with(b"\r\n") {
                request.bytes = [skip, &request.bytes].concat();
                request.silent = true;
            }
        }
        self.finished(request)
    }

    /// In the client's present dialect, and for its database.
    fn finished(&self, mut request: Request) -> Request {
        request.variant = self.variant;
        if self.variant.resp3 {
            request.framing = Framing::Resp3;
        }
        request
    }

    fn any(&mut self, asking: &mut Asking<'_>) -> Request {
        self.number += 1;
        if !self.authenticated {
            return self.introduction(asking);
        }
        if let Some(request) = self.script.pop_front() {
            return request;
        }
        if self.can_transact && asking.random.percent(asking.temper.sessions) {
            return self.session(asking);
        }
        if asking.random.percent(asking.temper.oddity) {
            return self.oddity(asking);
        }
        match asking.random.below(20) {
            0..=4 => self.keyed("GET", 1, asking),
            5..=8 => self.keyed("SET", 1, asking),
            9 => self.keyed("INCRBY", 1, asking),
            10 => self.keyed("STRLEN", 1, asking),
            11..=13 => {
                let count = asking.random.range(1, 9);
                self.keyed("MGET", count, asking)
            }
            14..=15 => {
                let count = asking.random.range(1, 4);
                self.keyed("MSET", count, asking)
            }
            _ => {
                let name = asking.random.pick(&["DEL", "UNLINK", "EXISTS", "TOUCH"]);
                let count = asking.random.range(1, 5);
                self.keyed(name, count, asking)
            }
        }
    }

    /// A transaction, of which the first request is returned, or a call that waits.
    fn session(&mut self, asking: &mut Asking<'_>) -> Request {
        let spelt = spellings("SET");
        let (keys, _) = self.keys.choose(1, false, &spelt, asking);
        let key = keys[0].clone();
        if asking.random.percent(30) {
            return self.wait(asking);
        }
        let is_free = |tag: &Vec<u8>| asking.is_free(tag, std::slice::from_ref(&key));
        let tags: Vec<Vec<u8>> = spelt.into_iter().filter(is_free).collect();
        let began = asking.fabric.clock.now();
        let say = |args: &[&[u8]], good: &[u8], fair: &[&'static [u8]]| {
            let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.to_vec()).collect();
            let answer = Answer::Session { good: good.to_vec(), fair: fair.to_vec() };
            Request { began: Some(began), ..Request::new(array(&args), answer, Framing::Resp) }
        };
        let mut script = VecDeque::new();
        let watches = asking.random.percent(40);
        if watches {
            script.push_back(say(&[b"WATCH", &key], OK, &[]));
            if asking.random.percent(50) {
                script.push_back(self.keyed("GET", 1, asking));
            }
            if asking.random.percent(20) {
                script.push_back(say(&[b"UNWATCH"], OK, &[]));
                self.script = script;
                return self.script.pop_front().expect("it has WATCH");
            }
        }
        script.push_back(say(&[b"MULTI"], OK, &[]));
        let is_discarded = asking.random.percent(15);
        let is_wrong = asking.random.percent(10);
        let mut reply = Vec::new();
        let mut count = 0;
        if asking.random.percent(20) {
            script.push_back(say(&[b"PING"], QUEUED, &[]));
            reply.extend_from_slice(b"+PONG\r\n");
            count += 1;
        }
        let sets = asking.random.below(tags.len() as u64 + 1) as usize;
        for tag in tags.into_iter().take(sets) {
            self.number += 1;
            let value = asking.value(self.number);
            let mut set = say(&[&tag, &key, &value], QUEUED, &[]);
            if set.bytes.len() as u64 > asking.temper.request_size_max {
                continue;
            }
            if !is_discarded && !is_wrong {
                // It stays open whether it is executed where the transaction fails.
                let (key, payload) = (key.clone(), Some(value));
                set.parts.push(Part::new(key, payload));
                set.tag = tag;
            } else {
                let mark = [b"x".as_slice(), &value].concat();
                set = say(&[&tag, b"s:0", &mark], QUEUED, &[]);
                if script.len() > 1 || watches {
                    // The shared key may be another server's.
                    set = say(&[b"PING"], QUEUED, &[]);
                }
            }
            set.access = Access::Write;
            script.push_back(set);
            reply.extend_from_slice(OK);
            count += 1;
        }
        if is_wrong {
            let words = "-ERR wrong number of arguments for 'get' command\r\n";
            script.push_back(say(&[b"GET"], words.as_bytes(), &[]));
        }
        let fair: &[&'static [u8]] = match asking.temper.unsettled {
            true => &[if self.variant.resp3 { NIL } else { NIL_ARRAY }, MOVED],
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

    fn wait(&mut self, asking: &mut Asking<'_>) -> Request {
        let (keys, tag) = self.keys.choose(1, false, &spellings("BLPOP"), asking);
        let key = keys[0].clone();
        let is_endless = asking.random.percent(60);
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

    fn keyed(&mut self, name: &str, count: u64, asking: &mut Asking<'_>) -> Request {
        let is_read = matches!(name, "GET" | "MGET" | "EXISTS" | "TOUCH" | "STRLEN");
        let with_shared = is_read && name != "STRLEN";
        let (keys, tag) = self.keys.choose(count, with_shared, &spellings(name), asking);
        let mut args = vec![tag.clone()];
        let mut parts = Vec::new();
        for key in keys {
            let payload = match name {
                "SET" | "MSET" => Some(asking.value(self.number)),
                "INCRBY" => Some(self.number.to_string().into_bytes()),
                _ => None,
            };
            args.push(key.clone());
            args.extend(payload.clone());
            let is_shared = key.starts_with(b"s:");
            let outcome = is_shared.then(|| shared(name.as_bytes(), &key));
            parts.push(Part { outcome, shared: is_shared, ..Part::new(key, payload) });
        }
        let bytes = match asking.random.percent(8) && args.iter().all(|arg| is_plain(arg)) {
            true => inline(&args),
            false => array(&args),
        };
        if bytes.len() as u64 > asking.temper.request_size_max {
            return refused("-ERR Protocol error: request too large\r\n", bytes);
        }
        let mut request = Request::new(bytes, answer(name), Framing::Resp);
        (request.tag, request.parts) = (tag, parts);
        request.access = if is_read { Access::Read } else { Access::Write };
        request
    }

    /// Before AUTH nothing works, but what is no command is called that.
    fn introduction(&mut self, asking: &mut Asking<'_>) -> Request {
        let password = self.password.clone().unwrap_or_default();
        match asking.random.below(6) {
            0 => local("GET a\r\n", NOT_AUTHENTICATED),
            1 => local(
                "*1\r\n$3\r\nfoo\r\n",
                "-ERR unknown command 'foo', with args beginning with: \r\n",
            ),
            2 => local(
                "AUTH guess\r\n",
                "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
            ),
            _ => {
                self.authenticated = true;
                local(array(&[b"AUTH".to_vec(), password.into_bytes()]), "+OK\r\n")
            }
        }
    }

    fn oddity(&mut self, asking: &mut Asking<'_>) -> Request {
        match asking.random.below(18) {
            0..=1 => local("PING\r\n", "+PONG\r\n"),
            2 => local("*2\r\n$4\r\nping\r\n$5\r\nhello\r\n", "$5\r\nhello\r\n"),
            3 => {
                let value = asking.value(self.number);
                let reply = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
                let bytes = array(&[b"ECHO".to_vec(), value]);
                if bytes.len() as u64 > asking.temper.request_size_max {
                    return refused("-ERR Protocol error: request too large\r\n", bytes);
                }
                local(bytes, reply)
            }
            4 => local(
                "*2\r\n$3\r\nFOO\r\n$3\r\nbar\r\n",
                "-ERR unknown command 'FOO', with args beginning with: 'bar' \r\n",
            ),
            5 => local("GET\r\n", "-ERR wrong number of arguments for 'get' command\r\n"),
            6 => local(
                "*4\r\n$4\r\nmset\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n",
                "-ERR wrong number of arguments for 'mset' command\r\n",
            ),
            7 => self.select(0),
            14 => {
                let database = asking.random.below(u64::from(self.databases)) as u32;
                self.select(database)
            }
            15 | 16 => {
                self.variant.resp3 = asking.random.percent(70);
                let version = if self.variant.resp3 { 3 } else { 2 };
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
                    None if self.variant.resp3 => "_\r\n".to_owned(),
                    None => "$-1\r\n".to_owned(),
                };
                local("*2\r\n$6\r\nCLIENT\r\n$7\r\ngetname\r\n", reply)
            }
            // Empty requests are answered by nothing.
            11 => local("\r\n*0\r\n\r\nPING\r\n", "+PONG\r\n"),
            12 => local("ASKING\r\n", "-ERR This instance has cluster support disabled\r\n"),
            _ => local("ECHO \"a\\x41 b\"\r\n", "$4\r\naA b\r\n"),
        }
    }

    fn select(&mut self, database: u32) -> Request {
        if self.databases > 1 {
            self.variant.database = database;
        }
        local(format!("SELECT {database}\r\n"), "+OK\r\n")
    }

    /// The last request: the gateway closes after its reply.
    pub(crate) fn farewell(&mut self, asking: &mut Asking<'_>) -> Request {
        let request = match asking.random.below(6) {
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

/// Ways to write a command's name, which tell requests apart.
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
