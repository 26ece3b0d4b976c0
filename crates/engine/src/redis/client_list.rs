//! What a worker knows of its clients: CLIENT LIST, KILL, PAUSE, UNPAUSE and UNBLOCK; and ACL LOG.

use std::fmt::Write;

use cashew_config::snapshot::{self, PolicyBase};
use cashew_protocol::Span;
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, encode};

use crate::base::id::{ClientId, ConnId, ListenerId, RequestId};
use crate::downstream::client::{Client, Profile, State};
use crate::downstream::totals::Totals;
use crate::engine::{Closed, Engine};
use crate::redis::blocking::Ending;
use crate::redis::client_pause::ClientPause;
use crate::redis::pose::About;
use crate::redis::pubsub::topics::Kind;
use crate::redis::worker_query::{Answer, Place};

/// Of each client, as Redis has it.
const REPLY_BUFFER_SIZE: u64 = 16 * 1024;

const SYNTAX: &str = "ERR syntax error";

/// The answer to CLIENT KILL of others, whether there are such clients or not.
pub(crate) const NO_KILL: &str = "NOPERM this gateway does not let clients close the connections of \
                                  others; see command_policy";

/// What clients of a pool may do to others of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) kill: bool,
    /// Wherever those come from; else those of the same host.
    pub(crate) unblock: bool,
}

impl Reach {
    pub(crate) fn of(config: &snapshot::Pool) -> Self {
        let policy = config.policy();
        // Who is let call such a command by its name is let call all of it.
        let reaches = |command: &str| {
            let is_named = |entry: &String| entry == "client" || entry == command;
            policy.base == PolicyBase::Admin || policy.allow.iter().any(is_named)
        };
        Self { kill: reaches("client|kill"), unblock: reaches("client|unblock") }
    }
}

/// Entries of ACL LOG without a number, as in Redis.
const ACL_LOG_ENTRIES: usize = 10;

/// CLIENT UNBLOCK id reason.
const UNBLOCK_ARGS_MAX: usize = 4;

/// What is to be known, or done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question<'b> {
    List(Selection<'b>),
    /// The line about who asks.
    Info,
    /// What a cluster is, to who asks.
    Cluster(About<'b>),
    Kill(Kill<'b>),
    Pause {
        millis: u64,
        writes_only: bool,
    },
    Unpause,
    Unblock {
        id: u64,
        with_error: bool,
        /// The host of who asks, as another worker tells it.
        from: Option<&'b [u8]>,
    },
    /// What users were denied, of which so many entries are to be shown.
    AclLog {
        most: usize,
    },
    AclLogReset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kill<'b> {
    selection: Selection<'b>,
    /// By an address only, and answered by OK or an error.
    is_old: bool,
}

impl Kill<'_> {
    /// Whether it can concern nobody but others than the client with this id.
    fn recycler(&self, id: u64) -> bool {
        let Selection { ids, skips_asker, .. } = &self.selection;
        *skips_asker || ids.as_ref().is_some_and(|ids| !ids.contains(&id))
    }
}

/// Which clients: those of which all is true that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection<'b> {
    /// In order, each once: every client is looked for among as many as a request has room for.
    ids: Option<Vec<u64>>,
    kind: Option<ClientKind>,
    peer: Option<&'b [u8]>,
    local: Option<&'b [u8]>,
    age_min: Option<i64>,
    user: Option<&'b [u8]>,
    skips_asker: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientKind {
    Normal,
    Subscriber,
    /// A server that replicates, of which the gateway has none for a client.
    Server,
}

impl ClientKind {
    fn named(name: &[u8]) -> Result<Self, String> {
        let is = |text: &str| name.eq_ignore_ascii_case(text.as_bytes());
        match () {
            () if is("normal") => Ok(Self::Normal),
            () if is("pubsub") => Ok(Self::Subscriber),
            () if is("master") || is("slave") || is("replica") => Ok(Self::Server),
            () => Err(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(name))),
        }
    }
}

impl<'b> Question<'b> {
    /// A request that has found its command, or Redis's error for it.
    pub(crate) fn parse(command: &Command, bytes: &'b [u8], args: &[Span]) -> Result<Self, String> {
        let words: Vec<&[u8]> = args.iter().skip(2).map(|span| span.of(bytes)).collect();
        if let Some(about) = About::of(command, &words) {
            return Ok(Self::Cluster(about));
        }
        match (command.name, &words[..]) {
            ("client|info", _) => Ok(Self::Info),
            ("client|list", words) => Selection::listed(words).map(Self::List),
            ("client|kill", &[peer]) => {
                let selection = Selection { peer: Some(peer), ..Selection::default() };
                Ok(Self::Kill(Kill { selection, is_old: true }))
            }
            ("client|kill", words) => {
                let selection = Selection::killed(words)?;
                Ok(Self::Kill(Kill { selection, is_old: false }))
            }
            ("client|pause", &[millis]) => {
                Ok(Self::Pause { millis: timeout(millis)?, writes_only: false })
            }
            ("client|pause", &[millis, mode]) => {
                let writes_only = match () {
                    () if mode.eq_ignore_ascii_case(b"write") => true,
                    () if mode.eq_ignore_ascii_case(b"all") => false,
                    () => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".to_owned()),
                };
                Ok(Self::Pause { millis: timeout(millis)?, writes_only })
            }
            ("client|unpause", _) => Ok(Self::Unpause),
            ("acl|log", []) => Ok(Self::AclLog { most: ACL_LOG_ENTRIES }),
            ("acl|log", &[word]) if word.eq_ignore_ascii_case(b"reset") => Ok(Self::AclLogReset),
            ("acl|log", &[count]) => {
                let count = resp::integer(count);
                let count = count.ok_or("ERR value is not an integer or out of range")?;
                Ok(Self::AclLog { most: usize::try_from(count).unwrap_or_default() })
            }
            ("client|unblock", &[id]) => {
                Ok(Self::Unblock { id: client_id(id)?, with_error: false, from: None })
            }
            ("client|unblock", &[id, reason]) => {
                let with_error = match () {
                    () if reason.eq_ignore_ascii_case(b"timeout") => false,
                    () if reason.eq_ignore_ascii_case(b"error") => true,
                    () => {
                        let text = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
                        return Err(text.to_owned());
                    }
                };
                Ok(Self::Unblock { id: client_id(id)?, with_error, from: None })
            }
            _ => {
                let name = String::from_utf8_lossy(args.get(1).map_or(b"", |arg| arg.of(bytes)));
                Err(format!(
                    "ERR unknown subcommand or wrong number of arguments for '{name}'. Try CLIENT \
                     HELP."
                ))
            }
        }
    }

    /// The same as another worker passes it on, where it may have the host of who asks behind it.
    pub(crate) fn passed_on(
        command: &Command,
        bytes: &'b [u8],
        args: &[Span],
    ) -> Result<Self, String> {
        let (Some((host, args_before)), "client|unblock") = (args.split_last(), command.name)
        else {
            return Self::parse(command, bytes, args);
        };
        if args.len() <= UNBLOCK_ARGS_MAX {
            return Self::parse(command, bytes, args);
        }
        let question = Self::parse(command, bytes, args_before)?;
        Ok(match question {
            Self::Unblock { id, with_error, .. } => {
                Self::Unblock { id, with_error, from: Some(host.of(bytes)) }
            }
            other => other,
        })
    }

    /// CLIENT UNBLOCK as it is passed on to other workers, by a client of this host.
    pub(crate) fn unblock_by(id: u64, with_error: bool, host: &str) -> Vec<u8> {
        let (id, reason) = (id.to_string(), if with_error { "ERROR" } else { "TIMEOUT" });
        let mut text = Vec::new();
        let words = ["CLIENT", "UNBLOCK", &id, reason, host].map(str::as_bytes);
        encode::write_command(&mut text, &words);
        text
    }

    /// Whose clients it is about, if it names a user.
    pub(crate) fn user(&self) -> Option<&[u8]> {
        match self {
            Self::List(selection) | Self::Kill(Kill { selection, .. }) => selection.user,
            _ => None,
        }
    }

    /// Why a client with this id may not ask it, if its pool lets clients do so much.
    pub(crate) fn refusal(
        &self,
        by: u64,
        reach: Reach,
        pause_max_ms: Option<u64>,
    ) -> Option<String> {
        match self {
            Self::Kill(kill) if !reach.kill && kill.recycler(by) => Some(NO_KILL.to_owned()),
            &Self::Pause { millis, .. } => pause_max_ms.filter(|&max| millis > max).map(|max| {
                format!(
                    "ERR timeout is longer than the {max} ms that this gateway holds clients back at \
                     most; see client_pause_max"
                )
            }),
            _ => None,
        }
    }

    /// What nobody has answered yet.
    pub(crate) fn answer(&self, reach: Reach) -> Answer {
        match self {
            // Nobody but who asks could have been meant.
            Self::Kill(kill) if !reach.kill => {
                Answer::Oneself { is_killed: false, is_old: kill.is_old }
            }
            Self::List(_) | Self::Info => Answer::Lines(Vec::new()),
            Self::Cluster(_) => Answer::Encoded(Vec::new()),
            Self::Kill(kill) if kill.is_old => Answer::AnyOf(0),
            Self::Kill(_) | Self::Unblock { .. } => Answer::Count(0),
            Self::Pause { .. } | Self::Unpause | Self::AclLogReset => Answer::Done,
            &Self::AclLog { most } => Answer::Denials { told: Vec::new(), most },
        }
    }
}

fn timeout(text: &[u8]) -> Result<u64, String> {
    let millis = resp::integer(text).ok_or("ERR timeout is not an integer or out of range")?;
    u64::try_from(millis).map_err(|_| "ERR timeout is negative".to_owned())
}

/// No client has the id 0, which is also what others are taken for that no client can have.
fn client_id(text: &[u8]) -> Result<u64, String> {
    let id = resp::integer(text).ok_or("ERR value is not an integer or out of range")?;
    Ok(u64::try_from(id).unwrap_or(0))
}

impl<'b> Selection<'b> {
    /// As CLIENT LIST has it.
    fn listed(words: &[&'b [u8]]) -> Result<Self, String> {
        match words {
            [] => Ok(Self::default()),
            [option, name] if option.eq_ignore_ascii_case(b"type") => {
                Ok(Self { kind: Some(ClientKind::named(name)?), ..Self::default() })
            }
            [option, ids @ ..] if option.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
                let id = |id: &&[u8]| client_id(id).map_err(|_| "ERR Invalid client ID".to_owned());
                let mut ids = ids.iter().map(id).collect::<Result<Vec<u64>, String>>()?;
                ids.sort_unstable();
                ids.dedup();
                Ok(Self { ids: Some(ids), ..Self::default() })
            }
            _ => Err(SYNTAX.to_owned()),
        }
    }

    /// As CLIENT KILL has it with filters.
    fn killed(words: &[&'b [u8]]) -> Result<Self, String> {
        let mut selection = Self { skips_asker: true, ..Self::default() };
        for pair in words.chunks(2) {
            let &[option, value] = pair else { return Err(SYNTAX.to_owned()) };
            let is = |text: &str| option.eq_ignore_ascii_case(text.as_bytes());
            match () {
                () if is("id") => {
                    let id = resp::integer(value).and_then(|id| u64::try_from(id).ok());
                    let id = id.filter(|&id| id > 0);
                    let id = id.ok_or("ERR client-id should be greater than 0")?;
                    selection.ids = Some(vec![id]);
                }
                () if is("type") => selection.kind = Some(ClientKind::named(value)?),
                () if is("addr") => selection.peer = Some(value),
                () if is("laddr") => selection.local = Some(value),
                () if is("user") => selection.user = Some(value),
                () if is("skipme") => match () {
                    () if value.eq_ignore_ascii_case(b"yes") => selection.skips_asker = true,
                    () if value.eq_ignore_ascii_case(b"no") => selection.skips_asker = false,
                    () => return Err(SYNTAX.to_owned()),
                },
                () if is("maxage") => {
                    let age = resp::integer(value);
                    let age = age.ok_or("ERR maxage is not an integer or out of range")?;
                    if age <= 0 {
                        return Err("ERR maxage should be greater than 0".to_owned());
                    }
                    selection.age_min = Some(age);
                }
                () => return Err(SYNTAX.to_owned()),
            }
        }
        Ok(selection)
    }
}

impl Engine {
    /// Answers for the clients that are here.
    pub(crate) fn census(
        &mut self,
        listener: ListenerId,
        by: u64,
        question: &Question<'_>,
        place: &dyn Fn(ConnId) -> Place,
    ) -> Answer {
        match question {
            Question::List(selection) => {
                let mut lines = Vec::new();
                let limit = self.listeners[listener].limits.client_output_max;
                for client in self.selected(listener, by, selection, place) {
                    if lines.len() as u64 > limit {
                        // Whoever asks is closed for it.
                        break;
                    }
                    let place = place(self.client_conn(client));
                    self.write_line(client, &place, &mut lines);
                }
                Answer::Lines(lines)
            }
            Question::Info => {
                let mut lines = Vec::new();
                if let Some(client) = self.client_called(listener, by) {
                    let place = place(self.client_conn(client));
                    self.write_line(client, &place, &mut lines);
                }
                Answer::Lines(lines)
            }
            &Question::Cluster(about) => Answer::Encoded(match self.client_called(listener, by) {
                Some(client) => {
                    let (place, resp) = (place(self.client_conn(client)), self.resp_of(client));
                    self.told_of_cluster(listener, about, &place.local, resp)
                }
                None => Vec::new(),
            }),
            Question::Kill(kill) => {
                let mut killed = self.selected(listener, by, &kill.selection, place);
                if !self.redis_listeners[listener].reach.kill {
                    killed.retain(|&client| self.clients[client].session.id == by);
                }
                for &client in &killed {
                    self.kill(client, by);
                }
                Answer::Count(killed.len() as u64)
            }
            &Question::Pause { millis, writes_only } => {
                let pause = ClientPause { until: self.now.plus_millis(millis), writes_only };
                self.prolong_client_pause(listener, pause);
                Answer::Done
            }
            Question::Unpause => {
                self.set_client_pause(listener, None, self.now);
                Answer::Done
            }
            &Question::AclLog { most } => {
                Answer::Denials { told: self.listeners[listener].acl_log.encoded(), most }
            }
            Question::AclLogReset => {
                self.listeners[listener].acl_log.clear();
                Answer::Done
            }
            &Question::Unblock { id, with_error, from } => {
                let asker = self.client_called(listener, by);
                let from = match asker {
                    Some(asker) => place(self.client_conn(asker)).host().to_owned(),
                    None => String::from_utf8_lossy(from.unwrap_or_default()).into_owned(),
                };
                let reaches_all = self.redis_listeners[listener].reach.unblock;
                // Who is not to be touched is as good as not there.
                let is_in_reach = |&client: &ClientId| {
                    reaches_all
                        || Some(client) == asker
                        || !from.is_empty() && place(self.client_conn(client)).host() == from
                };
                let client = self.client_called(listener, id).filter(is_in_reach);
                let ending = if with_error { Ending::Error } else { Ending::TimeOver };
                let has_ended = client.is_some_and(|client| self.end_wait(client, ending));
                Answer::Count(u64::from(has_ended))
            }
        }
    }

    pub(crate) fn client_called(&self, listener: ListenerId, id: u64) -> Option<ClientId> {
        let is_it = |client: &Client| client.listener == listener && client.session.id == id;
        self.clients.indices().find(|&client| is_it(&self.clients[client]))
    }

    fn selected(
        &self,
        listener: ListenerId,
        by: u64,
        selection: &Selection<'_>,
        place: &dyn Fn(ConnId) -> Place,
    ) -> Vec<ClientId> {
        let is_selected = |&index: &ClientId| {
            let client = &self.clients[index];
            let id = client.session.id;
            if client.listener != listener
                || (selection.skips_asker && id == by)
                || selection.ids.as_ref().is_some_and(|ids| ids.binary_search(&id).is_err())
                || selection.kind.is_some_and(|kind| kind != self.kind_of(client))
                || selection.age_min.is_some_and(|age| self.age(client) < age)
                || selection.user.is_some_and(|user| user != client.session.user_name().as_bytes())
            {
                return false;
            }
            if selection.peer.is_none() && selection.local.is_none() {
                return true;
            }
            let place = place(self.client_conn(index));
            selection.peer.is_none_or(|peer| peer == place.peer.as_bytes())
                && selection.local.is_none_or(|local| local == place.local.as_bytes())
        };
        self.clients.indices().filter(is_selected).collect()
    }

    /// Closes a client; the one that asked for it when it has been answered.
    fn kill(&mut self, client: ClientId, by: u64) {
        if self.clients[client].session.id == by {
            self.end_asker(client);
        } else {
            self.drop_client(client, Closed::ByUs);
        }
    }

    fn kind_of(&self, client: &Client) -> ClientKind {
        match client.modes.subscriber {
            Some(_) => ClientKind::Subscriber,
            None => ClientKind::Normal,
        }
    }

    /// Seconds since it connected.
    fn age(&self, client: &Client) -> i64 {
        (self.now.as_micros() as i64 - client.session.since_us) / 1_000_000
    }

    /// Seconds since it asked anything.
    fn idle(&self, client: &Client) -> i64 {
        match client.head {
            RequestId::NONE => match self.activity.silence_us(client.asked_in, self.now) {
                Some(silence_us) => (silence_us / 1_000_000) as i64,
                None => self.age(client),
            },
            _ => 0,
        }
    }

    /// What CLIENT LIST and INFO say of a client. What the gateway does not know is what Redis says
    /// of a client that has none of it.
    fn write_line(&self, index: ClientId, place: &Place, out: &mut Vec<u8>) {
        let client = &self.clients[index];
        let Client { session, input, output, .. } = client;
        let command = client.called.name().unwrap_or("NULL");
        // Of what it has yet to be sent; the first part of it Redis has in a buffer of its own.
        let waits = output.len();
        let obl = waits.min(REPLY_BUFFER_SIZE);
        let oll = (waits - obl).div_ceil(REPLY_BUFFER_SIZE);
        let backend = &self.backends[self.backend_of(index)];
        let profile = session.profile.as_deref();
        let said = |of: fn(&Profile) -> &[u8]| String::from_utf8_lossy(profile.map_or(b"", of));
        let [channels, patterns, shards] = [Kind::Channel, Kind::Pattern, Kind::Shard]
            .map(|kind| self.topics_of(index, kind).len());
        let queued = client.modes.transaction.as_ref().and_then(|transaction| transaction.queued());
        let queued = queued.map_or(-1, i64::from);
        let mut line = String::with_capacity(512);
        write!(
            line,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub={channels} \
             psub={patterns} ssub={shards} multi={queued} qbuf={} qbuf-free={} argv-mem=0 \
             multi-mem=0 rbs=0 rbp=0 obl={obl} oll={oll} omem={} tot-mem={} events={} \
             cmd={command} user={} redir=-1 resp={} lib-name={} lib-ver={} tot-net-in={} \
             tot-net-out={} tot-cmds={}",
            session.id,
            place.peer,
            place.local,
            place.descriptor,
            said(|profile| &profile.name),
            self.age(client),
            self.idle(client),
            self.flags(index, place),
            backend.variant_of(session).database,
            input.len(),
            input.capacity() - input.len(),
            waits - obl,
            input.capacity() as u64 + waits,
            if waits == 0 { "r" } else { "rw" },
            session.user_name(),
            session.wire_protocol.resp().number(),
            said(|profile| &profile.library),
            said(|profile| &profile.library_version),
            client.totals.received,
            client.totals.sent,
            client.totals.requests,
        )
        .expect("text takes any text");
        // Only the gateway knows of these.
        let Totals { errors, slowest_us, .. } = client.totals;
        write!(line, " tot-errors={errors} slowest-us={slowest_us}").expect("text takes any text");
        if let Some(reads) = client.reads {
            write!(line, " reads={reads}").expect("text takes any text");
        }
        let config = &self.listeners[client.listener].config;
        if let Some(user) = client.session.user()
            && let Some(route) = config.route_of_user(user.name())
        {
            write!(line, " route={}", route.name).expect("text takes any text");
        }
        line.push('\n');
        out.extend_from_slice(line.as_bytes());
    }

    /// As Redis has them, in its order.
    fn flags(&self, index: ClientId, place: &Place) -> String {
        let client = &self.clients[index];
        let waits = client.modes.blocking.is_some() || self.is_held_back(index);
        let flags = [
            ('O', client.modes.monitor.is_some()),
            ('P', client.modes.subscriber.is_some()),
            ('x', self.is_queueing(index)),
            ('b', waits),
            ('c', client.state == State::Closing),
            ('U', place.is_unix),
            ('e', client.session.wishes.no_evict()),
            ('t', client.modes.tracking.is_some()),
            ('B', client.modes.tracking.as_ref().is_some_and(|it| !it.prefixes().is_empty())),
        ];
        let flags: String = flags.iter().filter(|(_, has)| *has).map(|(flag, _)| flag).collect();
        if flags.is_empty() { "N".to_owned() } else { flags }
    }
}

#[cfg(test)]
mod tests {
    use cashew_protocol::redis::{self as table, Lookup};
    use cashew_protocol::resp::{Parsed, RequestParser, encode};

    use super::*;

    fn parse(line: &str) -> Result<String, String> {
        let mut request = Vec::new();
        encode::write_command(
            &mut request,
            &line.split(' ').map(str::as_bytes).collect::<Vec<_>>(),
        );
        let mut parser = RequestParser::default();
        assert!(matches!(parser.parse(&request, 1 << 16), Parsed::Complete { .. }));
        let Lookup::Found(command) = table::find(&request, parser.args()) else { panic!("{line}") };
        Question::parse(command, &request, parser.args()).map(|question| format!("{question:?}"))
    }

    #[test]
    fn ids_are_in_order_however_they_were_given() {
        let many = (0..1_000).rev().map(|id| format!(" {id} 7")).collect::<String>();
        let question = parse(&format!("CLIENT LIST ID{many} -3")).unwrap();
        let ids = question.split_once("Some([").and_then(|(_, rest)| rest.split_once(']'));
        let ids: Vec<u64> = ids.unwrap().0.split(", ").map(|id| id.parse().unwrap()).collect();
        assert!(ids.iter().copied().eq(0..1_000), "{ids:?}");
    }

    /// As Redis 7.0 says them.
    #[test]
    fn errors_are_those_of_redis() {
        let usage = |name| {
            format!(
                "unknown subcommand or wrong number of arguments for '{name}'. Try CLIENT HELP."
            )
        };
        for (line, error) in [
            ("CLIENT LIST TYPE x", "Unknown client type 'x'"),
            ("CLIENT LIST TYPE", "syntax error"),
            ("CLIENT LIST ID", "syntax error"),
            ("CLIENT LIST ID x", "Invalid client ID"),
            ("CLIENT LIST foo bar", "syntax error"),
            ("CLIENT KILL ID 0", "client-id should be greater than 0"),
            ("CLIENT KILL ID x", "client-id should be greater than 0"),
            ("CLIENT KILL TYPE x", "Unknown client type 'x'"),
            ("CLIENT KILL SKIPME maybe ID 3", "syntax error"),
            ("CLIENT KILL ID 1 TYPE", "syntax error"),
            ("CLIENT KILL FOO bar", "syntax error"),
            ("CLIENT KILL MAXAGE 0", "maxage should be greater than 0"),
            ("CLIENT PAUSE x", "timeout is not an integer or out of range"),
            ("CLIENT PAUSE 1.5", "timeout is not an integer or out of range"),
            ("CLIENT PAUSE -1", "timeout is negative"),
            ("CLIENT PAUSE 0 foo", "CLIENT PAUSE mode must be WRITE or ALL"),
            ("CLIENT PAUSE 0 WRITE x", &usage("PAUSE")),
            ("CLIENT UNBLOCK x", "value is not an integer or out of range"),
            ("CLIENT UNBLOCK 1 foo", "CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
            ("CLIENT UNBLOCK 1 TIMEOUT x", &usage("UNBLOCK")),
        ] {
            assert_eq!(parse(line), Err(format!("ERR {error}")), "{line}");
        }
        for line in [
            "CLIENT LIST",
            "CLIENT LIST TYPE master",
            "CLIENT LIST ID 1 -2 0",
            "CLIENT KILL ID",
            "CLIENT KILL 127.0.0.1:1",
            "CLIENT KILL SKIPME no ID 4 USER default laddr a ADDR b TYPE pubsub MAXAGE 3",
            "CLIENT PAUSE 9223372036854775807 ALL",
            "CLIENT UNPAUSE",
            "CLIENT UNBLOCK -1 error",
            "CLIENT INFO",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }
}
