//! Commands without keys, where a pool has several servers: to all of them or to one after the
//! other, and their replies made one.
//!
//! Who is asked are the primaries of the shards on the ring. With one shard there is nothing to merge: the bytes go there as they are, and so does the reply.
//!
//! Nothing is undone: if one of several servers answers an error, that is the answer, and what the
//! others have done stays.

mod broadcast;
mod cursor;
mod info;
mod merge;
mod moving_slots;
mod scan;
mod try_each;

use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{Access, Command, Fan, Group, Rule, wrong_arity_error};
use cashew_protocol::resp::{Version, encode};

use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, LaneId, ServerId};
use crate::downstream::client::Client;
use crate::downstream::receive::Plan;
use crate::downstream::session::REDIS_VERSION;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::upstream::bulk::BULK_SIZE;
use crate::upstream::server::Server;
use crate::upstream::session_params::SessionParams;

pub(crate) use cursor::Walk;
pub(crate) use merge::{Aggregate, integers, is_null, text};

/// What an argument begins with that names the only server to be asked.
const ADDRESS: &[u8] = b"server:";
/// Sections of INFO that the gateway writes about itself.
const OWN_SECTIONS: [&[u8]; 2] = [b"cashew", b"gateway"];
/// SLOWLOG GET without a number.
const LOG_ENTRIES: usize = 10;
/// The largest pools tell of so many servers one by one.
const SERVERS_TOLD_MAX: usize = 256;
/// An error repeats so many bytes of what a client sent.
const QUOTED_MAX: usize = 64;

/// Whether some servers' replies do though others' are errors.
pub(crate) fn tolerates(fan: Fan) -> bool {
    match fan {
        Fan::AnyOk | Fan::PerServer | Fan::Info => true,
        Fan::Sum
        | Fan::Same
        | Fan::Concat
        | Fan::Newest
        | Fan::Timeline
        | Fan::Events
        | Fan::Running
        | Fan::Scan
        | Fan::RandomKey
        | Fan::Least
        | Fan::Most
        | Fan::LeastEach
        | Fan::Scripts
        | Fan::SumPairs
        | Fan::AnyServer => false,
    }
}

/// By which lanes a request goes to all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Those for exchanges of this size.
    Shared(usize),
    /// Those that nobody else has: on others it might wait for what it is to end.
    Alone,
}

impl Way {
    fn of(fan: Fan, size: usize) -> Self {
        match fan {
            // A list of everything is to hold nobody up on its way back.
            Fan::Concat => Self::Shared(size.max(BULK_SIZE)),
            Fan::AnyOk | Fan::Running => Self::Alone,
            Fan::Sum
            | Fan::Same
            | Fan::Newest
            | Fan::Timeline
            | Fan::Events
            | Fan::Scan
            | Fan::RandomKey
            | Fan::Least
            | Fan::Most
            | Fan::LeastEach
            | Fan::Scripts
            | Fan::SumPairs
            | Fan::Info
            | Fan::PerServer
            | Fan::AnyServer => Self::Shared(size),
        }
    }

    /// Whether other requests of the client go by other lanes, so that none may be on its way beside
    /// it.
    fn is_apart(self) -> bool {
        match self {
            Self::Shared(size) => size >= BULK_SIZE,
            Self::Alone => true,
        }
    }
}

impl Engine {
    pub(crate) fn broadcast_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        fan: Fan,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        if let Some(plan) = self.addressed(client, command, bytes, args) {
            return plan;
        }
        if command.blocks(bytes, args) {
            return self.tour_redis(client, command, bytes, args);
        }
        if fan == Fan::Info && asks_for_own(bytes, args) {
            let version = self.resp_of(client);
            let info = self.own_info(self.backend_of(client));
            return self.reply_with(client, |out| write_info(out, version, &info));
        }
        if fan == Fan::AnyServer {
            return self.forward_anywhere(client, command.access, bytes.len());
        }
        let loaded = match command.group {
            Group::Scripting => {
                let text = args.get(2).map_or(&b""[..], |arg| arg.of(bytes));
                self.note_script_command(client, command, text)
            }
            _ => None,
        };
        let way = Way::of(fan, bytes.len());
        if way.is_apart() {
            if self.clients[client].requests > 0 {
                return Plan::Wait;
            }
            self.clients[client].fenced = true;
        }
        let is_as_it_is = match fan {
            Fan::Scan => !self.walks_by_own_cursors(client),
            // It tells where the server replicates from and to.
            // Nor does it know of a cluster.
            Fan::Info => {
                !self.backends[self.backend_of(client)].config.hide_topology && !self.poses(client)
            }
            _ => true,
        };
        if self.is_single(client) && is_as_it_is {
            let plan = self.broadcast_to_only(client, way);
            if let (Some(sha), &Plan::Forward { lane, request }) = (loaded, &plan) {
                self.watch_load(request, lane, sha);
            }
            return plan;
        }
        match fan {
            Fan::Scan => self.scan(client, bytes, args),
            Fan::RandomKey => self.random_key(client, bytes),
            Fan::Sum
            | Fan::Same
            | Fan::Concat
            | Fan::Newest
            | Fan::Timeline
            | Fan::Events
            | Fan::Running
            | Fan::Least
            | Fan::Most
            | Fan::LeastEach
            | Fan::Scripts
            | Fan::SumPairs
            | Fan::AnyOk
            | Fan::Info
            | Fan::PerServer
            | Fan::AnyServer => self.broadcast(client, (command, fan, loaded), bytes, args, way),
        }
    }

    /// Where one server, or one master, has everything.
    fn broadcast_to_only(&mut self, client: ClientId, way: Way) -> Plan {
        // Replicas may lag behind, or count differently.
        let Some(server) = self.any_server(client, Access::None) else {
            return self.fail(client, Failure::NoServer);
        };
        match self.lane_by(client, server, way) {
            Ok(Some(lane)) => self.forward_on(client, lane, Expect::Line),
            Ok(None) => Plan::Wait,
            Err(failure) => self.fail_for(client, server, failure),
        }
    }

    /// A lane to the server; `None` if the client has to wait for one.
    fn lane_by(
        &mut self,
        client: ClientId,
        server: ServerId,
        way: Way,
    ) -> Result<Option<LaneId>, Failure> {
        if let Way::Shared(size) = way {
            return self.lane_for(client, server, size).map(Some);
        }
        let Client { variant, .. } = self.clients[client];
        let backend = self.backend_of(client);
        // While a script runs the server takes no SELECT, and what may end it is for no database.
        let SessionParams { wire_protocol, .. } =
            self.backends[backend].params_set[usize::from(variant)];
        let plain = SessionParams { wire_protocol, database: 0 };
        let variant = self.variant(backend, plain).unwrap_or(variant);
        let lane = self.streaming_lane(backend, server, variant)?;
        if lane.is_none() {
            self.await_streaming_lane(client, server);
        }
        Ok(lane)
    }

    /// The primaries of the shards on the ring, in the order of the shards.
    pub(crate) fn heads(&self, backend: BackendId) -> Vec<ServerId> {
        self.backends[backend].topology.heads().collect()
    }

    /// What the gateway tells about itself.
    fn own_info(&self, index: BackendId) -> String {
        let uptime = self.now.micros_since(self.started) / 1_000_000;
        let backend = &self.backends[index];
        let servers = &backend.servers;
        let clients: u64 =
            self.listeners_before(index).map(|listener| self.listeners[listener].clients).sum();
        let mut text = format!(
            "# Cashew\r\ncashew_version:{}\r\ncashew_redis_version:{REDIS_VERSION}\r\n\
             cashew_process_id:{}\r\ncashew_uptime_in_seconds:{uptime}\r\npool:{}\r\n\
             pool_clients:{}\r\nworker:{}\r\nworkers:{}\r\nepoch:{}\r\nservers:{}\r\n\
             servers_ejected:{}\r\nservers_failing:{}\r\n",
            self.identity.version,
            self.identity.process_id,
            backend.config.name,
            clients,
            self.slot,
            self.workers,
            self.epoch,
            servers.len(),
            servers.iter().filter(|server| server.ejected).count(),
            servers.iter().filter(|server| server.failing).count(),
        );
        for (at, server) in servers.iter().enumerate().take(SERVERS_TOLD_MAX) {
            let (name, state) = (backend.shown_name(ServerId::new(at as u32)), state_of(server));
            text.push_str(&format!("server{at}:name={name},state={state}\r\n"));
        }
        text
    }

    /// Sends a command to the one server that its last argument names: `SLOWLOG GET server:name`.
    /// `None` if it names none.
    pub(crate) fn addressed(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Option<Plan> {
        let (last, rest) = args.split_last()?;
        let (start, name) = last.of(bytes).split_at_checked(ADDRESS.len())?;
        let is_address = start.eq_ignore_ascii_case(ADDRESS) && command.is_addressable();
        if !is_address || rest.is_empty() || !self.clients[client].session.authenticated {
            return None;
        }
        let backend = &self.backends[self.backend_of(client)];
        let mut servers = backend.servers.ids();
        let Some(server) = servers.find(|&it| backend.shown_name(it).as_bytes() == name) else {
            if self.is_single(client) {
                // The only server may know better what is meant.
                return None;
            }
            let name = &name[..name.len().min(QUOTED_MAX)];
            let text = format!("ERR this pool has no server '{}'", name.escape_ascii());
            return Some(self.reply_error(client, &text));
        };
        if !command.takes(rest.len()) {
            return Some(self.reply_with(client, |out| wrong_arity_error(out, command)));
        }
        if command.rule == Rule::Fan(Fan::Info) && backend.config.hide_topology {
            let text = "ERR this pool hides where its servers are: INFO is of all of them together";
            return Some(self.reply_error(client, text));
        }
        let lane = match self.lane_for(client, server, bytes.len()) {
            Ok(lane) => lane,
            Err(failure) => return Some(self.fail_for(client, server, failure)),
        };
        let text = self.bufs.written(bytes.len(), |out| {
            encode::write_array_header(out, rest.len());
            rest.iter().for_each(|arg| encode::write_bulk(out, arg.of(bytes)));
        });
        let request = self.new_request(client);
        self.send(lane, request, Payload::Bytes(&text));
        self.bufs.give(text);
        Some(Plan::Done)
    }
}

/// Whether INFO is about the gateway only.
fn asks_for_own(bytes: &[u8], args: &[Span]) -> bool {
    let is_own =
        |arg: &Span| OWN_SECTIONS.iter().any(|section| arg.of(bytes).eq_ignore_ascii_case(section));
    args.len() > 1 && args[1..].iter().all(is_own)
}

/// Whether INFO is about everything, or about the gateway, too.
fn asks_for_all(bytes: &[u8], args: &[Span]) -> bool {
    const ALL: [&[u8]; 3] = [b"default", b"all", b"everything"];
    let is_all = |arg: &Span| {
        let mut names = ALL.iter().chain(&OWN_SECTIONS);
        names.any(|name| arg.of(bytes).eq_ignore_ascii_case(name))
    };
    args.len() == 1 || args[1..].iter().any(is_all)
}

/// How many entries of its log a server is asked for. What is no number it will refuse.
fn limit_of(bytes: &[u8], args: &[Span]) -> usize {
    let Some(count) = args.get(2) else { return LOG_ENTRIES };
    let count: Option<i64> = std::str::from_utf8(count.of(bytes)).ok().and_then(|n| n.parse().ok());
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX)
}

fn state_of(server: &Server) -> &'static str {
    match (server.ejected, server.failing) {
        (true, _) => "ejected",
        (false, _) if server.is_silent() => "silent",
        (false, true) => "failing",
        (false, false) => "up",
    }
}

fn write_info(out: &mut Vec<u8>, version: Version, info: &str) {
    encode::write_verbatim(out, version, *b"txt", info.as_bytes());
}
