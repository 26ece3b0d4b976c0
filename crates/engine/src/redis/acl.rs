//! What users may do, by Redis's ACL: the check of a request, and ACL's subcommands. And the requests of
//! users whose keys have a prefix: see [`super::tenant`].

use cashew_acl::{Call, Denial, Selector, User, categories, commands_of};
use cashew_metrics::PoolCounter;
use cashew_protocol::Span;
use cashew_protocol::redis::{self, Command, Lookup, Rule, SessionRule};
use cashew_protocol::resp::{self, Version, encode};

use crate::base::id::ClientId;
use crate::base::time::Time;
use crate::downstream::acl_log::put_together;
use crate::downstream::listener::Choice;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::redis::tenant::{Named, Strip, Tenancy, named_by, tenancy};
use crate::request::Role;

/// Bytes of a name that errors repeat.
const QUOTED_MAX: usize = 128;

impl Engine {
    /// Answers a request that the client's user may not make.
    #[cold]
    pub(crate) fn refuse_denied(
        &mut self,
        client: ClientId,
        lookup: Lookup,
        bytes: &[u8],
        args: &[Span],
    ) -> Option<Plan> {
        let user = self.clients[client].session.restricted_user()?.clone();
        let command = match lookup {
            Lookup::Found(command) => command,
            // It may have the name of a server behind its arguments.
            Lookup::WrongArity(command) if command.is_addressable() => command,
            _ => return None,
        };
        let is_queueing = self.is_queueing(client);
        if is_queueing && command.has_flag("no_multi") {
            // There is another error for it.
            return None;
        }
        let call = Call { command, buf: bytes, args };
        let text = match user.check(&call) {
            Ok(()) => {
                let text = refused_patterns(&user, &call)?;
                // Its patterns name no key.
                self.audit_denial(client, command.name, b"", "key");
                text.to_owned()
            }
            Err(denial) => {
                let object = match denial {
                    Denial::Command => command.name.as_bytes(),
                    Denial::Key(at) | Denial::Channel(at) => args[at].of(bytes),
                };
                let key = if let Denial::Command = denial { b"" } else { object };
                self.audit_denial(client, command.name, key, denial.reason());
                self.count_denial(client, denial.reason(), object, &user);
                denial.reply(&call)
            }
        };
        Some(match is_queueing {
            true => self.refuse_queued(client, &text),
            false => self.reply_error(client, &text),
        })
    }

    /// Counts what the client's user may not do.
    pub(crate) fn count_denial(
        &mut self,
        client: ClientId,
        reason: &'static str,
        object: &[u8],
        user: &User,
    ) {
        let listener = self.listener_of(client).metrics;
        self.metrics.add_pool(listener, PoolCounter::CommandsRefused, 1);
        self.note_denial(client, reason, object, user.name().as_bytes());
    }

    /// The users of the client's port are others now, or have other rules. Who is nobody any more, or
    /// hears what it may not, is closed, as in Redis.
    pub(crate) fn follow_users(&mut self, client: ClientId) {
        let listener = self.listener_of(client);
        let session = &self.clients[client].session;
        let name = session.user().map(|user| user.name().to_owned()).unwrap_or_default();
        let (was_known, before) = (session.authenticated, session.user().cloned());
        let (is_known, user) = listener.user_again(was_known, &name);
        if was_known && !is_known {
            self.finish(client);
            return;
        }
        if user == before && is_known == was_known {
            return;
        }
        if user.as_ref().is_some_and(|user| !user.is_unrestricted()) {
            // What was queued was allowed by other rules.
            self.refuse_transaction(client);
            if self.clients[client].modes.subscriber.is_some()
                || self.clients[client].modes.monitor.is_some()
            {
                self.finish(client);
                return;
            }
        }
        if is_known {
            // Other rules do not make a login last longer.
            let expires_at = self.clients[client].session.expires_at();
            self.become_user(client, user);
            if expires_at.is_some() {
                self.change_profile(client, |profile| profile.expires_at = expires_at);
            }
        }
    }

    /// ACL CAT, LIST, USERS, GETUSER, LOG and DRYRUN.
    pub(crate) fn acl_command(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let arg = args.get(2).map(|arg| arg.of(bytes));
        let version = self.resp_of(client);
        let users = self.listener_of(client).users.clone();
        match (command.name, args.len()) {
            ("acl|cat", 2) => self.reply_texts(client, categories()),
            ("acl|cat", 3) => {
                let category = String::from_utf8_lossy(arg.unwrap_or_default());
                match commands_of(&category) {
                    Some(commands) => {
                        let names: Vec<&str> = commands.map(|command| command.name).collect();
                        self.reply_texts(client, &names)
                    }
                    None => {
                        let name = quoted(category.as_bytes());
                        self.reply_error(client, &format!("ERR Unknown category '{name}'"))
                    }
                }
            }
            ("acl|list", _) => {
                let lines: Vec<String> = users.iter().map(|user| user.line()).collect();
                self.spend(lines.iter().map(String::len).sum());
                self.reply_texts(client, &lines)
            }
            ("acl|users", _) => {
                let names: Vec<&str> = users.iter().map(|user| user.name()).collect();
                self.reply_texts(client, &names)
            }
            ("acl|getuser", _) => match users.named(arg.unwrap_or_default()) {
                Some(user) => self.reply_with(client, |out| write_user(user, version, out)),
                None => self.reply_with(client, |out| encode::write_null(out, version)),
            },
            // All workers have a part of the log.
            ("acl|log", 2 | 3) => self.inquire(client, command, bytes, args),
            ("acl|dryrun", _) => match users.named(arg.unwrap_or_default()) {
                Some(user) => self.dry_run(client, user, bytes, &args[3..]),
                None => {
                    let name = quoted(arg.unwrap_or_default());
                    self.reply_error(client, &format!("ERR User '{name}' not found"))
                }
            },
            // Redis itself counts these arguments where the command runs.
            ("acl|cat" | "acl|log", _) => {
                let name = command.name.trim_start_matches("acl|").to_uppercase();
                let text = format!(
                    "ERR unknown subcommand or wrong number of arguments for '{name}'. Try ACL HELP."
                );
                self.reply_error(client, &text)
            }
            _ => self.reply_with(client, |out| redis::wrong_arity_error(out, command)),
        }
    }

    fn reply_texts<T: AsRef<str>>(&mut self, client: ClientId, texts: &[T]) -> Plan {
        self.reply_with(client, |out| {
            encode::write_array_header(out, texts.len());
            texts.iter().for_each(|text| encode::write_bulk(out, text.as_ref().as_bytes()));
        })
    }

    /// Whether the user might make the request `args`.
    fn dry_run(&mut self, client: ClientId, user: &User, bytes: &[u8], args: &[Span]) -> Plan {
        let mut lookup = match self.listener_of(client).policy.renames() {
            Some(renames) => renames.find(bytes, args),
            None => redis::find(bytes, args),
        };
        if let Lookup::UnknownCommand = lookup {
            lookup = self.listener_of(client).commands.find(bytes, args);
        }
        match lookup {
            Lookup::Found(command) => {
                let call = Call { command, buf: bytes, args };
                match user.check(&call) {
                    Ok(()) => self.say(client, b"+OK\r\n"),
                    Err(denial) => {
                        let text = denial.explain(&call);
                        self.reply_with(client, |out| encode::write_bulk(out, &text))
                    }
                }
            }
            Lookup::WrongArity(command) => {
                self.reply_with(client, |out| redis::wrong_arity_error(out, command))
            }
            Lookup::UnknownCommand | Lookup::UnknownSubcommand(_) => {
                let name = quoted(args.first().map_or(b"", |name| name.of(bytes)));
                self.reply_error(client, &format!("ERR Command '{name}' not found"))
            }
        }
    }
}

impl Engine {
    /// Plans a request of a client whose user has a prefix. What is to be sent is sent.
    #[cold]
    pub(crate) fn plan_tenant(
        &mut self,
        client: ClientId,
        lookup: Lookup,
        (bytes, args): (&[u8], &[Span]),
        plan: impl FnOnce(&mut Self, &[u8], &[Span]) -> Plan,
    ) -> Plan {
        let Some(prefix) = self.clients[client].session.key_prefix().cloned() else {
            return plan(self, bytes, args);
        };
        let command = match lookup {
            Lookup::Found(command) => command,
            // Behind the name of a server it would be sent there.
            Lookup::WrongArity(command) => {
                return self.refuse_tenant(client, |out| {
                    cashew_protocol::redis::wrong_arity_error(out, command);
                });
            }
            Lookup::UnknownCommand | Lookup::UnknownSubcommand(_) => {
                return plan(self, bytes, args);
            }
        };
        let tenancy = tenancy(command);
        let names_keys = !matches!(
            tenancy,
            Tenancy::Nothing
                | Tenancy::Keys(Named::Nowhere | Named::Errors)
                | Tenancy::Channel
                | Tenancy::Channels
        );
        let is_queueing = self.is_queueing(client);
        let is_routed = self.destination_of(client).choice == Choice::Backends;
        let why = match tenancy {
            Tenancy::Refused => "is not for users with a key prefix",
            _ if names_keys && is_queueing => {
                "is not for users with a key prefix in a transaction, as its reply names keys"
            }
            _ if names_keys && is_routed => {
                "is not for users with a key prefix at a route, as its reply names keys"
            }
            _ => "",
        };
        if !why.is_empty() {
            let name = command.name.to_ascii_uppercase();
            return self.refuse_tenant(client, |out| {
                encode::write_error(out, format!("ERR {name} {why}").as_bytes());
            });
        }
        if tenancy == Tenancy::Nothing {
            return plan(self, bytes, args);
        }
        let text = prefix.request((command, tenancy), bytes, args);
        let text = match text {
            Ok(text) => text,
            Err(why) => {
                return self.refuse_tenant(client, |out| encode::write_error(out, why.as_bytes()));
            }
        };
        let mut parser = resp::RequestParser::default();
        let resp::Parsed::Complete { .. } = parser.parse(&text, text.len()) else {
            unreachable!("it was just written");
        };
        let plan = plan(self, &text, parser.args());
        // It may be asked anew.
        self.keep_asked(client, bytes);
        let Plan::Forward { lane, request } = plan else { return plan };
        if let Rule::Session(SessionRule::Watch) = command.rule {
            self.keep_replay(request, bytes);
        }
        let named = named_by(command);
        if named != Named::Nowhere && matches!(self.requests[request].role, Role::Single) {
            self.watch_reply(request, Box::new(Strip { prefix, named }), None);
        }
        self.send(lane, request, Payload::Bytes(&text));
        if command.is_sealed() && !is_queueing {
            self.seal(lane);
        }
        Plan::Done
    }

    fn refuse_tenant(&mut self, client: ClientId, write: impl FnOnce(&mut Vec<u8>)) -> Plan {
        match self.is_queueing(client) {
            true => self.refuse_with(client, write),
            false => self.reply_with(client, write),
        }
    }
}

/// Why SORT may not use its patterns, which may lead to any key.
fn refused_patterns(user: &User, call: &Call<'_>) -> Option<&'static str> {
    let Call { command, buf, args } = *call;
    let is_pattern = command.patterns(buf, args).next().is_some();
    if !is_pattern || user.may_read_every_key(call) {
        return None;
    }
    let is_by = args.iter().skip(2).any(|arg| arg.of(buf).eq_ignore_ascii_case(b"by"));
    Some(match is_by {
        true => "ERR BY option of SORT denied due to insufficient ACL permissions.",
        false => "ERR GET option of SORT denied due to insufficient ACL permissions.",
    })
}

/// The start of a text of a client's, fit for an error.
fn quoted(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(QUOTED_MAX)]).replace(['\r', '\n'], " ")
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    encode::write_bulk(out, name.as_bytes());
    encode::write_bulk(out, value);
}

/// ACL LOG's reply: the latest entries of what all workers told.
pub(crate) fn write_acl_log(
    (told, most): (&[u8], usize),
    now: Time,
    version: Version,
    out: &mut Vec<u8>,
) {
    let log = put_together(told);
    encode::write_array_header(out, most.min(log.len()));
    for entry in log.iter().take(most) {
        encode::write_map_header(out, version, 7);
        encode::write_bulk(out, b"count");
        encode::write_integer(out, i64::try_from(entry.count).unwrap_or(i64::MAX));
        write_field(out, "reason", entry.reason);
        write_field(out, "context", entry.context);
        write_field(out, "object", entry.object);
        write_field(out, "username", entry.user);
        encode::write_bulk(out, b"age-seconds");
        let age_ms = now.micros_since(entry.last) / 1000;
        encode::write_double(out, version, age_ms as f64 / 1000.0);
        write_field(out, "client-info", format!("id={}", entry.client).as_bytes());
    }
}

/// As ACL GETUSER shows a user.
fn write_user(user: &User, version: Version, out: &mut Vec<u8>) {
    encode::write_map_header(out, version, 6);
    encode::write_bulk(out, b"flags");
    let flags = user.flags();
    encode::write_set_header(out, version, flags.len());
    flags.iter().for_each(|flag| encode::write_bulk(out, flag.as_bytes()));
    encode::write_bulk(out, b"passwords");
    let passwords = user.password_hashes();
    encode::write_array_header(out, passwords.len());
    passwords.iter().for_each(|hash| encode::write_bulk(out, hash.as_bytes()));
    write_selector(user.root(), out);
    encode::write_bulk(out, b"selectors");
    encode::write_array_header(out, user.selectors().len());
    for selector in user.selectors() {
        encode::write_map_header(out, version, 3);
        write_selector(selector, out);
    }
}

fn write_selector(selector: &Selector, out: &mut Vec<u8>) {
    write_field(out, "commands", selector.command_rules().as_bytes());
    write_field(out, "keys", selector.key_rules().as_bytes());
    write_field(out, "channels", selector.channel_rules().as_bytes());
}
