//! What to do with each Redis command.

pub(crate) mod acl;
pub(crate) mod blocking;
pub(crate) mod cached_writes;
pub(crate) mod client_command;
pub(crate) mod client_list;
pub(crate) mod client_pause;
pub(crate) mod client_reads;
pub(crate) mod client_tracking;
pub(crate) mod cluster;
pub(crate) mod command_discovery;
pub(crate) mod cross_shard_copy;
pub(crate) mod exec_effects;
pub(crate) mod keyless;
pub(crate) mod maintenance;
pub(crate) mod monitor;
pub(crate) mod own_logs;
pub(crate) mod pose;
pub(crate) mod pubsub;
pub(crate) mod redirects;
pub(crate) mod routed;
pub(crate) mod script_replay;
pub(crate) mod scripts;
pub(crate) mod sent_on;
pub(crate) mod sort_patterns;
pub(crate) mod state;
pub(crate) mod tenant;
pub(crate) mod tracking;
pub(crate) mod transaction;
pub(crate) mod wait_all;
pub(crate) mod warm_up;
pub(crate) mod worker_query;
mod written_keys;

use std::borrow::Cow;

use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{
    self, Access, Called, Command, CommandId, Fan, Group, Local, Lookup, Rule,
};
use cashew_protocol::resp::{self, RequestParser, encode};
use cashew_protocol::{Span, redis as table};

use crate::base::action::Notice;
use crate::base::command_stats::Counting;
use crate::base::id::{BackendId, ClientId};
use crate::downstream::client::State;
use crate::downstream::command_policy::{NOT_AUTHENTICATED, is_open_to_all};
use crate::downstream::listener::Choice;
use crate::downstream::receive::Plan;
use crate::downstream::session::NO_DATABASE;
use crate::downstream::session::NotLoggedIn;
use crate::engine::Engine;
use crate::exchange::dispatch::{FragmentText, Payload};
use crate::request::Merge;
use crate::request::replay::Replay;

impl Engine {
    /// Decides about one parsed request; `bytes` is the request as it came.
    #[inline]
    pub(crate) fn redis_request(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Plan {
        let (len, counts) = (bytes.len(), self.counts(client));
        if counts {
            self.command_stats.current = Counting { size: len as u64, ..Counting::default() };
        }
        let mut bytes = parser.inline_encoded().unwrap_or(bytes);
        let mut args = parser.args();
        if args.is_empty() {
            return Plan::Done;
        }
        let mut is_gone = false;
        let renamed;
        if self.listener_of(client).policy.renames().is_some() {
            (renamed, is_gone) = self.renamed_request(client, bytes, args);
            if let Some((text, parser)) = &renamed {
                (bytes, args) = (text, parser.args());
            }
        } else {
            renamed = None;
        }
        let mut lookup = match is_gone {
            true => Lookup::UnknownCommand,
            false => table::find(bytes, args),
        };
        if let Lookup::UnknownCommand = lookup
            && !is_gone
        {
            if is_http(args[0].of(bytes)) {
                return self.close_for_http(client);
            }
            match self.look_further(client, bytes, args) {
                Ok(further) => lookup = further,
                Err(plan) => return plan,
            }
        }
        self.clients[client].called = match lookup {
            Lookup::Found(command) | Lookup::WrongArity(command) => CommandId::of(command),
            Lookup::UnknownCommand | Lookup::UnknownSubcommand(_) => CommandId::NONE,
        };
        if counts {
            self.count_command(client, lookup, bytes, args);
        }
        if let Lookup::Found(command) = lookup
            && self.may_not_call(client, command)
        {
            return self.refuse_command(client, command);
        }
        if self.is_metered(client)
            && let Some(plan) = self.refuse_over_quota(client, lookup)
        {
            return plan;
        }
        if self.clients[client].off_fast_path
            && let Some(plan) = self.refuse_denied(client, lookup, bytes, args)
        {
            return plan;
        }
        let plan = match self.clients[client].session.key_prefix().is_some() {
            true => self.plan_tenant(client, lookup, (bytes, args), |engine, bytes, args| {
                engine.plan_told(client, lookup, bytes, args)
            }),
            false => self.plan_told(client, lookup, bytes, args),
        };
        if let Lookup::Found(command) = lookup
            && !command.access.reads()
            && !matches!(command.rule, Rule::Local(_))
        {
            // Not before it has its place: until then it looks as if all that the client wrote were answered.
            self.note_write(client);
        }
        match (&plan, lookup) {
            (&Plan::Forward { lane, request }, Lookup::Found(command))
                if command.is_sealed() && !self.is_queueing(client) =>
            {
                self.send(lane, request, Payload::Bytes(bytes));
                self.seal(lane);
                Plan::Done
            }
            (&Plan::Forward { lane, request }, _) if renamed.is_some() => {
                self.send(lane, request, Payload::Bytes(bytes));
                Plan::Done
            }
            _ => plan,
        }
    }

    /// The request by the names that servers know, if clients have another one for its command; and whether
    /// what it is called is no command any more.
    #[cold]
    pub(super) fn renamed_request(
        &self,
        client: ClientId,
        bytes: &[u8],
        args: &[Span],
    ) -> (Option<(Vec<u8>, RequestParser)>, bool) {
        let Some(renames) = self.listener_of(client).policy.renames() else { return (None, false) };
        let name = args[0].of(bytes);
        let is_docs =
            matches!(table::find(bytes, args), Lookup::Found(it) if it.name == "command|docs");
        let mut words: Vec<Cow<'_, [u8]>> = args.iter().map(|arg| arg.of(bytes).into()).collect();
        match renames.called(name) {
            Called::Gone => return (None, true),
            Called::Renamed(command) => words[0] = command.name.as_bytes().into(),
            Called::AsEver if is_docs => {
                words[2..].iter_mut().for_each(|name| *name = renames.own_name(name));
            }
            Called::AsEver => return (None, false),
        }
        let mut text = Vec::with_capacity(bytes.len() + 64);
        encode::write_array_header(&mut text, words.len());
        words.iter().for_each(|word| encode::write_bulk(&mut text, word));
        let mut parser = RequestParser::default();
        let parsed = parser.parse(&text, text.len());
        debug_assert!(matches!(parsed, resp::Parsed::Complete { .. }), "it was just written");
        (Some((text, parser)), false)
    }

    /// A request as servers know it, as the client has to ask it: by the name that it has for the command now.
    pub(crate) fn by_clients_name(&mut self, client: ClientId, request: Replay) -> Replay {
        let Some(renames) = self.listener_of(client).policy.renames() else { return request };
        let bytes = request.bytes();
        let mut parser = RequestParser::default();
        let resp::Parsed::Complete { .. } = parser.parse(bytes, bytes.len()) else {
            return request;
        };
        let [name, rest @ ..] = parser.args() else { return request };
        let Some(name) = renames.clients_name(name.of(bytes)) else { return request };
        let mut text = Vec::with_capacity(bytes.len() + name.len());
        encode::write_array_header(&mut text, 1 + rest.len());
        encode::write_bulk(&mut text, name.as_bytes());
        rest.iter().for_each(|arg| encode::write_bulk(&mut text, arg.of(bytes)));
        request.give_back(&mut self.bufs);
        Replay::new(&text, &mut self.bufs)
    }

    /// What a request counts as: for a prefix by its first key.
    #[cold]
    fn count_command(&mut self, client: ClientId, lookup: Lookup, bytes: &[u8], args: &[Span]) {
        self.command_stats.current.class = self.clients[client].called.class();
        let Lookup::Found(command) = lookup else { return };
        let mut keys = std::mem::take(&mut self.scratch.keys);
        keys.clear();
        if command.keys(bytes, args, &mut keys).is_ok()
            && let Some(key) = keys.first()
        {
            let key = key.of(bytes);
            let listener = self.listener_of(client);
            self.command_stats.current.prefix = match self.clients[client].session.key_prefix() {
                Some(prefix) => listener.prefixes.find(&prefix.full(key)),
                None => listener.prefixes.find(key),
            };
        }
        keys.clear();
        self.scratch.keys = keys;
    }

    /// The plan of a request, of which monitors are told.
    #[inline]
    fn plan_told(&mut self, client: ClientId, lookup: Lookup, bytes: &[u8], args: &[Span]) -> Plan {
        if self.clients[client].off_fast_path && self.clients[client].modes.tracking.is_some() {
            return self.plan_tracked(client, lookup, bytes, args);
        }
        self.plan_seen(client, lookup, bytes, args)
    }

    #[inline]
    pub(crate) fn plan_seen(
        &mut self,
        client: ClientId,
        lookup: Lookup,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        match self.listener_of(client).is_monitored {
            true => self.plan_observed(client, lookup, bytes, args),
            false => self.plan_redis(client, lookup, bytes, args),
        }
    }

    /// As Redis: what a browser was made to send must not get further than its first line, or its
    /// second, whoever the browser has said to be.
    #[cold]
    fn close_for_http(&mut self, client: ClientId) -> Plan {
        self.notice(client, Notice::Http);
        self.give_up(client);
        Plan::Done
    }

    /// Why a subscriber or a monitor may not call this command now.
    #[cold]
    fn refused_by_mode(&self, client: ClientId, command: &Command) -> Option<Cow<'static, str>> {
        if !self.clients[client].session.authenticated && !is_open_to_all(command) {
            return None;
        }
        let refused = self.refused_while_subscribed(client, command).map(Cow::Owned);
        refused.or_else(|| self.refused_while_monitoring(client, command).map(Cow::Borrowed))
    }

    #[inline]
    pub(crate) fn plan_redis(
        &mut self,
        client: ClientId,
        lookup: Lookup,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        if self.clients[client].off_fast_path
            && let Lookup::Found(command) = lookup
            && self.is_postponed(client, command)
            && !self.only_reads(client, command, bytes, args)
        {
            return self.postpone(client);
        }
        // Also before a route takes it to a server.
        if self.clients[client].off_fast_path
            && let Lookup::Found(command) = lookup
            && !self.is_queueing(client)
            && let Some(text) = self.refused_by_mode(client, command)
        {
            return self.reply_error(client, &text);
        }
        if let Lookup::Found(command) = lookup
            && self.destination_of(client).choice == Choice::Backends
            && self.clients[client].session.authenticated
            && let Some(plan) = self.route_redis(client, command, bytes, args)
        {
            return plan;
        }
        if self.clients[client].off_fast_path && self.is_queueing(client) {
            return self.queue_redis(client, lookup, bytes, args);
        }
        match lookup {
            // As Redis: whether there is such a command comes first.
            Lookup::Found(command)
                if !self.clients[client].session.authenticated && !is_open_to_all(command) =>
            {
                self.say(client, NOT_AUTHENTICATED)
            }
            Lookup::Found(command) => match command.rule {
                Rule::Forward | Rule::Single(_)
                    if command.names_database()
                        && self.names_other_database(client, command, bytes, args) =>
                {
                    self.reply_error(client, NO_DATABASE)
                }
                Rule::Forward => self.forward_redis(client, command, bytes, args),
                Rule::Split(merge) => self.split_redis(client, command, merge, bytes, args),
                Rule::Local(local) => self.local_redis(client, command, local, bytes, args),
                Rule::Block if !command.blocks(bytes, args) => {
                    self.forward_redis(client, command, bytes, args)
                }
                Rule::Fan(fan) if command.group == Group::Pubsub => {
                    self.pubsub_redis(client, command, fan, bytes, args)
                }
                Rule::Block => self.block_redis(client, command, bytes, args),
                Rule::Session(rule) => self.session_redis(client, rule, command, bytes, args),
                Rule::Fan(Fan::Least | Fan::LeastEach)
                    if command.blocks(bytes, args) && self.is_single(client) =>
                {
                    self.block_redis(client, command, bytes, args)
                }
                Rule::Fan(fan) => self.broadcast_redis(client, command, fan, bytes, args),
                Rule::Single(text) => match self.is_single(client) {
                    true => self.forward_anywhere(client, command.access, bytes.len()),
                    false => self.reply_error(client, text),
                },
                Rule::Subscribe(which) => self.subscription(client, which, bytes, args),
                Rule::Publish => self.publish(client, command, bytes, args),
                Rule::Refuse(text) => self.refuse_redis(client, command, text),
                Rule::Unsupported => {
                    self.reply_with(client, |out| table::unknown_command_error(out, bytes, args))
                }
            },
            Lookup::UnknownCommand => {
                self.reply_with(client, |out| table::unknown_command_error(out, bytes, args))
            }
            Lookup::UnknownSubcommand(command) => self.reply_with(client, |out| {
                table::unknown_subcommand_error(out, command, bytes, args)
            }),
            Lookup::WrongArity(command) => match self.addressed(client, command, bytes, args) {
                Some(plan) => plan,
                None => self.reply_with(client, |out| table::wrong_arity_error(out, command)),
            },
        }
    }

    /// Answers with a ready reply.
    pub(crate) fn say(&mut self, client: ClientId, reply: &[u8]) -> Plan {
        self.reply_with(client, |out| out.extend_from_slice(reply))
    }

    pub(crate) fn reply_with(
        &mut self,
        client: ClientId,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Plan {
        self.answer(client, write);
        Plan::Done
    }

    pub(crate) fn reply_error(&mut self, client: ClientId, text: &str) -> Plan {
        self.reply_with(client, |out| encode::write_error(out, text.as_bytes()))
    }

    #[inline]
    fn forward_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let access = self.access_of(client, command.access);
        if let Some(key) = command.single_key() {
            let key = args[key].of(bytes);
            return self.forward_key(client, key, access, Expect::Line, bytes.len());
        }
        let plan = self.with_keys(client, command, bytes, args, |engine, keys, split| {
            if keys.is_empty() {
                return engine.forward_anywhere(client, access, bytes.len());
            }
            let texts = keys.iter().map(|key| key.of(bytes));
            match engine.place_keys(client, texts, access, split) {
                Ok(Some(server)) => {
                    match engine.stray_pattern(client, command, server, bytes, args) {
                        Some(text) => engine.reply_error(client, &text),
                        None => {
                            let size = bytes.len();
                            let plan = engine.forward_to(client, Some(server), Expect::Line, size);
                            let backend = engine.backend_of(client);
                            engine.noted(plan, backend, access)
                        }
                    }
                }
                Ok(None) => engine.cross_servers(client, command, bytes, args, keys, split),
                Err(failure) => engine.fail(client, failure),
            }
        });
        if command.group == Group::Scripting {
            self.note_call(client, command, bytes, args, &plan);
        }
        plan
    }

    /// A plan of which it is noted what it does.
    fn noted(&mut self, plan: Plan, backend: BackendId, access: Access) -> Plan {
        if let Plan::Forward { request, .. } = plan {
            self.note_access(backend, request, access);
        }
        plan
    }

    /// Finds the keys of a command with the scratch memory for them.
    pub(crate) fn with_keys(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
        then: impl FnOnce(&mut Self, &[Span], &mut crate::exchange::dispatch::Split) -> Plan,
    ) -> Plan {
        let mut keys = std::mem::take(&mut self.scratch.keys);
        let mut split = std::mem::take(&mut self.scratch.split);
        keys.clear();
        let plan = match command.keys(bytes, args, &mut keys) {
            Ok(()) => then(self, &keys, &mut split),
            Err(text) => self.reply_error(client, text),
        };
        self.scratch.keys = keys;
        self.scratch.split = split;
        plan
    }

    /// Splits a command by server when its keys are on several.
    fn split_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        merge: redis::Merge,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        self.with_keys(client, command, bytes, args, |engine, keys, split| {
            let texts = keys.iter().map(|key| key.of(bytes));
            let access = engine.access_of(client, command.access);
            match engine.place_keys(client, texts, access, split) {
                Ok(Some(server)) => {
                    let plan = engine.forward_to(client, Some(server), Expect::Line, bytes.len());
                    let backend = engine.backend_of(client);
                    return engine.noted(plan, backend, access);
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
            // As they came: arguments lie close together, each with a header and a line end.
            let behind = |arg: &Span| arg.end() + b"\r\n".len();
            let header_end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or_default();
            let name = &bytes[header_end + 1..behind(&args[0])];
            let mut start = behind(&args[0]);
            let request = FragmentText {
                head: &|out, keys| {
                    encode::write_array_header(out, 1 + step * keys as usize);
                    out.extend_from_slice(name);
                },
                keys: args[1..].iter().skip(step - 1).step_by(step).map(|last| {
                    let end = behind(last);
                    &bytes[std::mem::replace(&mut start, end)..end]
                }),
                foot: b"",
                expect: Expect::Line,
                size: bytes.len(),
            };
            engine.send_fragments(client, split, merge, request)
        })
    }

    fn local_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        local: Local,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let arg = |at: usize| args.get(at).map(|span| span.of(bytes));
        match local {
            Local::Ping => match arg(1) {
                // The table cannot say that there is a most.
                Some(_) if args.len() > 2 => {
                    self.reply_with(client, |out| table::wrong_arity_error(out, command))
                }
                text if self.is_pinged_as_subscriber(client) => self.reply_with(client, |out| {
                    encode::write_array_header(out, 2);
                    encode::write_bulk(out, b"pong");
                    encode::write_bulk(out, text.unwrap_or_default());
                }),
                None => self.say(client, b"+PONG\r\n"),
                Some(text) => self.reply_with(client, |out| encode::write_bulk(out, text)),
            },
            Local::Echo => {
                let text = arg(1).unwrap_or_default();
                self.reply_with(client, |out| encode::write_bulk(out, text))
            }
            Local::Quit => self.quit(client),
            Local::Auth => {
                let (user, password) = match args.len() {
                    2 => (None, arg(1).unwrap_or_default()),
                    3 => (arg(1), arg(2).unwrap_or_default()),
                    _ => return self.reply_error(client, "ERR syntax error"),
                };
                match self.authenticate(client, user, password) {
                    Ok(()) => self.say(client, b"+OK\r\n"),
                    Err(NotLoggedIn::Awaited) => Plan::Wait,
                    Err(NotLoggedIn::Because(text)) => self.reply_error(client, &text),
                }
            }
            Local::Select => self.select(client, arg(1).unwrap_or_default()),
            Local::Command => {
                let version = self.resp_of(client);
                let listener = self.clients[client].listener;
                let custom = std::mem::take(&mut self.listeners[listener].commands);
                let renames = self.listeners[listener].policy.renames().cloned();
                let plan = self.reply_with(client, |out| {
                    let known = (&custom, renames.as_ref());
                    table::command_reply(bytes, args, known, version, out);
                });
                self.listeners[listener].commands = custom;
                plan
            }
            Local::Client => self.client_command(client, command, bytes, args),
            Local::Role => self.say(client, b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
            Local::User => {
                let name = self.clients[client].session.user_name().to_owned();
                self.reply_with(client, |out| encode::write_bulk(out, name.as_bytes()))
            }
            Local::Acl => self.acl_command(client, command, bytes, args),
            Local::Hello => self.hello(client, bytes, args),
            Local::SlowLog => {
                if let Some(plan) = self.addressed(client, command, bytes, args) {
                    return plan;
                }
                let count = arg(2).map(|count| count.to_vec());
                self.slow_log_command(client, command, count.as_deref(), args.len())
            }
            Local::HotKeys => {
                let (ranking, count) = (arg(2).map(<[u8]>::to_vec), arg(3).map(<[u8]>::to_vec));
                self.hot_keys_command(client, ranking.as_deref(), count.as_deref(), args.len())
            }
            Local::Reads => self.readonly(client, command),
            Local::Cluster => self.cluster_command(client, command, bytes, args),
            Local::Route => {
                let (key, called) = (arg(2).unwrap_or_default(), arg(3).unwrap_or_default());
                self.route_command(client, command, (key, called, args.len()))
            }
        }
    }
}

impl Engine {
    pub(crate) fn quit(&mut self, client: ClientId) -> Plan {
        let must_wait = self.clients[client].off_fast_path
            && (self.leave_topics(client) || self.must_hear_first(client));
        if must_wait {
            return Plan::Wait;
        }
        self.stop_monitor(client);
        let plan = self.say(client, b"+OK\r\n");
        self.clients[client].state = State::Closing;
        plan
    }
}

/// What is no command, and begins a line of HTTP.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}
