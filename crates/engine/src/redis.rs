//! What to do with each Redis command.

use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{self, Command, Fan, Local, Lookup, Rule};
use cashew_protocol::resp::{RequestParser, encode};
use cashew_protocol::{Span, redis as table};

use crate::client::State;
use crate::clients::Plan;
use crate::dispatch::FragmentText;
use crate::engine::Engine;
use crate::request::Merge;

/// The Redis whose behaviour the gateway's own answers follow; clients decide by it what they may
/// use.
const REDIS_VERSION: &str = "7.0.15";

pub(crate) const NOT_AUTHENTICATED: &[u8] = b"-NOAUTH Authentication required.\r\n";

impl Engine {
    /// Decides about one parsed request; `bytes` is the request as it came.
    #[inline]
    pub(crate) fn redis_request(
        &mut self,
        client: u32,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Plan {
        let bytes = parser.inline_encoded().unwrap_or(bytes);
        let args = parser.args();
        if args.is_empty() {
            return Plan::Done;
        }
        let lookup = table::find(bytes, args);
        match lookup {
            // As Redis: whether there is such a command comes first.
            Lookup::Found(command)
                if !self.clients[client].session.authenticated && !is_open_to_all(command) =>
            {
                self.say(client, NOT_AUTHENTICATED)
            }
            Lookup::Found(command)
                if self.clients[client].special
                    && let Some(text) = self.refused_while_subscribed(client, command) =>
            {
                self.say_error(client, &text)
            }
            Lookup::Found(command) => match command.rule {
                Rule::Forward => self.forward_redis(client, command, bytes, args),
                Rule::Split(merge) => self.split_redis(client, command, merge, bytes, args),
                Rule::Local(local) => self.local_redis(client, command, local, bytes, args),
                Rule::Block if !command.blocks(bytes, args) => {
                    self.forward_redis(client, command, bytes, args)
                }
                Rule::Fan(Fan::AnyServer) => {
                    self.forward_anywhere(client, command.access, bytes.len())
                }
                Rule::Fan(Fan::Info) => {
                    let info = self.info(client);
                    self.say_with(client, |out| encode::write_bulk(out, info.as_bytes()))
                }
                Rule::Single(text) => match self.is_single(client) {
                    true => self.forward_anywhere(client, command.access, bytes.len()),
                    false => self.say_error(client, text),
                },
                Rule::Subscribe(which) => self.subscription(client, which, bytes, args),
                Rule::Publish => self.publish(client, command, bytes, args),
                Rule::Fan(_) | Rule::Block | Rule::Session(_) => {
                    let text =
                        format!("ERR '{}' is not supported by this gateway yet", command.name);
                    self.say_error(client, &text)
                }
                Rule::Refuse(text) => self.say_error(client, text),
                Rule::Unsupported => {
                    self.say_with(client, |out| table::unknown_command_error(out, bytes, args))
                }
            },
            Lookup::UnknownCommand => {
                self.say_with(client, |out| table::unknown_command_error(out, bytes, args))
            }
            Lookup::UnknownSubcommand(command) => self
                .say_with(client, |out| table::unknown_subcommand_error(out, command, bytes, args)),
            Lookup::WrongArity(command) => {
                self.say_with(client, |out| table::wrong_arity_error(out, command))
            }
        }
    }

    /// Answers with a ready reply.
    fn say(&mut self, client: u32, reply: &[u8]) -> Plan {
        self.say_with(client, |out| out.extend_from_slice(reply))
    }

    fn say_with(&mut self, client: u32, write: impl FnOnce(&mut Vec<u8>)) -> Plan {
        self.answer(client, write);
        Plan::Done
    }

    pub(crate) fn say_error(&mut self, client: u32, text: &str) -> Plan {
        self.say_with(client, |out| encode::write_error(out, text.as_bytes()))
    }

    #[inline]
    fn forward_redis(
        &mut self,
        client: u32,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        if let Some(key) = command.single_key() {
            let key = args[key].of(bytes);
            return self.forward_key(client, key, command.access, Expect::Line, bytes.len());
        }
        self.with_keys(client, command, bytes, args, |engine, keys, split| {
            if keys.is_empty() {
                return engine.forward_anywhere(client, command.access, bytes.len());
            }
            let pool = engine.clients[client].pool;
            let texts = keys.iter().map(|key| key.of(bytes));
            match engine.place_keys(pool, texts, command.access, split) {
                Ok(Some(server)) => {
                    engine.forward_to(client, Some(server), Expect::Line, bytes.len())
                }
                Ok(None) => engine.say_error(client, &cross_server_error(command)),
                Err(failure) => engine.fail(client, failure),
            }
        })
    }

    /// Finds the keys of a command with the scratch memory for them.
    fn with_keys(
        &mut self,
        client: u32,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
        then: impl FnOnce(&mut Self, &[Span], &mut crate::dispatch::Split) -> Plan,
    ) -> Plan {
        let mut keys = std::mem::take(&mut self.scratch.keys);
        let mut split = std::mem::take(&mut self.scratch.split);
        keys.clear();
        let plan = match command.keys(bytes, args, &mut keys) {
            Ok(()) => then(self, &keys, &mut split),
            Err(text) => self.say_error(client, text),
        };
        self.scratch.keys = keys;
        self.scratch.split = split;
        plan
    }

    /// Splits a command by server when its keys are on several.
    fn split_redis(
        &mut self,
        client: u32,
        command: &'static Command,
        merge: redis::Merge,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        self.with_keys(client, command, bytes, args, |engine, keys, split| {
            let pool = engine.clients[client].pool;
            let texts = keys.iter().map(|key| key.of(bytes));
            match engine.place_keys(pool, texts, command.access, split) {
                Ok(Some(server)) => {
                    return engine.forward_to(client, Some(server), Expect::Line, bytes.len());
                }
                Ok(None) => {}
                Err(failure) => return engine.fail(client, failure),
            }
            // Arguments per key: MSET has the value with it.
            let (merge, step) = match merge {
                redis::Merge::Gather => (Merge::Elements(engine.gather(split)), 1),
                redis::Merge::Sum => (Merge::Sum, 1),
                redis::Merge::AllOk => (Merge::Same, 2),
            };
            let name = args[0].of(bytes);
            let request = FragmentText {
                head: &|out, keys| {
                    encode::write_array_header(out, 1 + step * keys as usize);
                    encode::write_bulk(out, name);
                },
                key: &|out, position| {
                    for arg in &args[1 + position * step..1 + (position + 1) * step] {
                        encode::write_bulk(out, arg.of(bytes));
                    }
                },
                foot: b"",
                expect: Expect::Line,
                size: bytes.len(),
            };
            engine.send_fragments(client, split, merge, request)
        })
    }

    fn local_redis(
        &mut self,
        client: u32,
        command: &Command,
        local: Local,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let arg = |at: usize| args.get(at).map(|span| span.of(bytes));
        match local {
            Local::Ping => match arg(1) {
                // The table cannot say that there is a most.
                Some(_) if args.len() > 2 => {
                    self.say_with(client, |out| table::wrong_arity_error(out, command))
                }
                text if self.is_pinged_as_subscriber(client) => self.say_with(client, |out| {
                    encode::write_array_header(out, 2);
                    encode::write_bulk(out, b"pong");
                    encode::write_bulk(out, text.unwrap_or_default());
                }),
                None => self.say(client, b"+PONG\r\n"),
                Some(text) => self.say_with(client, |out| encode::write_bulk(out, text)),
            },
            Local::Echo => {
                let text = arg(1).unwrap_or_default();
                self.say_with(client, |out| encode::write_bulk(out, text))
            }
            Local::Quit => {
                let plan = self.say(client, b"+OK\r\n");
                self.clients[client].state = State::Closing;
                plan
            }
            Local::Auth => {
                let (user, password) = match args.len() {
                    2 => (None, arg(1).unwrap_or_default()),
                    3 => (arg(1), arg(2).unwrap_or_default()),
                    _ => return self.say_error(client, "ERR syntax error"),
                };
                match self.authenticate(client, user, password) {
                    Ok(()) => self.say(client, b"+OK\r\n"),
                    Err(text) => self.say_error(client, text),
                }
            }
            Local::Select => self.select(client, arg(1).unwrap_or_default()),
            Local::Command => self.say_with(client, |out| table::command_reply(bytes, args, out)),
            Local::Client => self.client_command(client, bytes, args),
            Local::Role => self.say(client, b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
            Local::User => self.say(client, b"$7\r\ndefault\r\n"),
            Local::Hello => self.hello(client, bytes, args),
        }
    }

    /// Checks a password. A wrong one takes back what an earlier right one gave, as in twemproxy.
    fn authenticate(
        &mut self,
        client: u32,
        user: Option<&[u8]>,
        password: &[u8],
    ) -> Result<(), &'static str> {
        let pool = self.clients[client].pool;
        let right = match (&self.pools[pool as usize].auth, user) {
            (None, None) => {
                return Err("ERR AUTH <password> called without any password configured for the \
                     default user. Are you sure your configuration is correct?");
            }
            (None, Some(user)) => user == b"default",
            (Some(expected), user) => {
                let user_ok = user.is_none_or(|user| user == b"default");
                user_ok & same_secret(expected.as_bytes(), password)
            }
        };
        self.clients[client].session.authenticated =
            right || self.pools[pool as usize].auth.is_none();
        if right {
            Ok(())
        } else {
            Err("WRONGPASS invalid username-password pair or user is disabled.")
        }
    }

    /// There is one database: the pool's, which clients also reach as 0.
    fn select(&mut self, client: u32, index: &[u8]) -> Plan {
        let number = std::str::from_utf8(index).ok().and_then(|text| text.parse::<i64>().ok());
        let database =
            i64::from(self.pools[self.clients[client].pool as usize].variants[0].database);
        match number {
            None => self.say_error(client, "ERR value is not an integer or out of range"),
            Some(number) if number == 0 || number == database => self.say(client, b"+OK\r\n"),
            Some(_) => self.say_error(client, "ERR DB index is out of range"),
        }
    }

    fn client_command(&mut self, client: u32, bytes: &[u8], args: &[Span]) -> Plan {
        let subcommand = args[1].of(bytes).to_ascii_lowercase();
        let session = &mut self.clients[client].session;
        match subcommand.as_slice() {
            b"id" => {
                let id = session.id;
                self.say_with(client, |out| encode::write_integer(out, id as i64))
            }
            b"getname" => {
                let name = session.name.clone();
                self.say_with(client, |out| match name {
                    Some(name) => encode::write_bulk(out, &name),
                    None => encode::write_nil(out),
                })
            }
            b"setname" => match set_name(&mut session.name, args[2].of(bytes)) {
                Ok(()) => self.say(client, b"+OK\r\n"),
                Err(text) => self.say_error(client, text),
            },
            b"setinfo" => {
                let (option, value) = (args[2].of(bytes), args[3].of(bytes));
                let known = option.eq_ignore_ascii_case(b"lib-name")
                    || option.eq_ignore_ascii_case(b"lib-ver");
                if !known {
                    let option = String::from_utf8_lossy(option);
                    let text = format!("ERR Unrecognized option '{option}'");
                    return self.say_error(client, &text);
                }
                match value.iter().all(|&byte| is_name_byte(byte)) {
                    true => self.say(client, b"+OK\r\n"),
                    false => {
                        let option = String::from_utf8_lossy(option).to_ascii_lowercase();
                        self.say_error(
                            client,
                            &format!(
                                "ERR {option} cannot contain spaces, newlines or special characters."
                            ),
                        )
                    }
                }
            }
            _ => {
                let name = String::from_utf8_lossy(&subcommand);
                let text = format!("ERR 'client|{name}' is not supported by this gateway yet");
                self.say_error(client, &text)
            }
        }
    }

    /// HELLO [protover [AUTH user password] [SETNAME name]]
    fn hello(&mut self, client: u32, bytes: &[u8], args: &[Span]) -> Plan {
        let mut rest = args[1..].iter().map(|span| span.of(bytes));
        if let Some(version) = rest.next() {
            match std::str::from_utf8(version).ok().and_then(|text| text.parse::<i64>().ok()) {
                Some(2) => {}
                Some(_) => return self.say_error(client, "NOPROTO unsupported protocol version"),
                None => {
                    return self.say_error(
                        client,
                        "ERR Protocol version is not an integer or out of range",
                    );
                }
            }
        }
        let mut name = None;
        while let Some(option) = rest.next() {
            if option.eq_ignore_ascii_case(b"auth") {
                let (Some(user), Some(password)) = (rest.next(), rest.next()) else {
                    return self.hello_syntax_error(client, option);
                };
                if let Err(text) = self.authenticate(client, Some(user), password) {
                    return self.say_error(client, text);
                }
            } else if option.eq_ignore_ascii_case(b"setname") {
                match rest.next() {
                    Some(text) => name = Some(text),
                    None => return self.hello_syntax_error(client, option),
                }
            } else {
                return self.hello_syntax_error(client, option);
            }
        }
        let session = &mut self.clients[client].session;
        if !session.authenticated {
            return self.say_error(
                client,
                "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                 the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                 client and select the RESP protocol version at the same time",
            );
        }
        if let Some(name) = name
            && let Err(text) = set_name(&mut session.name, name)
        {
            return self.say_error(client, text);
        }
        let id = session.id;
        self.say_with(client, |out| {
            encode::write_array_header(out, 14);
            encode::write_bulk(out, b"server");
            encode::write_bulk(out, b"redis");
            encode::write_bulk(out, b"version");
            encode::write_bulk(out, REDIS_VERSION.as_bytes());
            encode::write_bulk(out, b"proto");
            encode::write_integer(out, 2);
            encode::write_bulk(out, b"id");
            encode::write_integer(out, id as i64);
            encode::write_bulk(out, b"mode");
            encode::write_bulk(out, b"standalone");
            encode::write_bulk(out, b"role");
            encode::write_bulk(out, b"master");
            encode::write_bulk(out, b"modules");
            encode::write_array_header(out, 0);
        })
    }

    fn hello_syntax_error(&mut self, client: u32, option: &[u8]) -> Plan {
        let option = String::from_utf8_lossy(option);
        self.say_error(client, &format!("ERR Syntax error in HELLO option '{option}'"))
    }

    fn info(&self, client: u32) -> String {
        let uptime = self.now.micros_since(self.started) / 1_000_000;
        let pool = self.clients[client].pool as usize;
        let servers = &self.pools[pool].servers;
        format!(
            "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\n\
             cashew_version:{}\r\nos:Linux\r\narch_bits:{}\r\nprocess_id:{}\r\n\
             uptime_in_seconds:{uptime}\r\nuptime_in_days:{}\r\n\r\n\
             # Clients\r\nconnected_clients:{}\r\n\r\n\
             # Cashew\r\nworker:{}\r\nworkers:{}\r\nepoch:{}\r\nservers:{}\r\n\
             servers_ejected:{}\r\nservers_failing:{}\r\n",
            self.identity.version,
            usize::BITS,
            self.identity.process_id,
            uptime / 86_400,
            self.pools[pool].clients,
            self.slot,
            self.workers,
            self.epoch,
            servers.len(),
            servers.iter().filter(|server| server.ejected).count(),
            servers.iter().filter(|server| server.failing).count(),
        )
    }
}

/// What may be asked before AUTH.
fn is_open_to_all(command: &Command) -> bool {
    matches!(command.rule, Rule::Local(Local::Auth | Local::Hello | Local::Quit))
}

fn cross_server_error(command: &Command) -> String {
    let name = command.name.to_ascii_uppercase().replace('|', " ");
    format!(
        "CROSSSLOT the keys of {name} live on different servers; give them a common hash tag so \
         that one server has them all"
    )
}

/// Longest name of a client. Redis has no limit, but here it has to fit a message when the client
/// moves to another process.
const NAME_MAX: usize = 4096;

fn set_name(slot: &mut Option<Box<[u8]>>, name: &[u8]) -> Result<(), &'static str> {
    if name.len() > NAME_MAX {
        return Err("ERR Client name is too long.");
    }
    if !name.iter().all(|&byte| is_name_byte(byte)) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.");
    }
    *slot = (!name.is_empty()).then(|| name.into());
    Ok(())
}

/// As Redis's validateClientAttr.
fn is_name_byte(byte: u8) -> bool {
    (b'!'..=b'~').contains(&byte)
}

/// Compares without telling by its duration where the difference is.
fn same_secret(expected: &[u8], given: &[u8]) -> bool {
    let mut difference = usize::from(expected.len() != given.len());
    for (at, &byte) in given.iter().enumerate() {
        let other = expected.get(at % expected.len().max(1)).copied().unwrap_or_default();
        difference |= usize::from(byte ^ other);
    }
    difference == 0
}
