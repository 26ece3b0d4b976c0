//! Commands without keys, where a pool has several servers: to all of them or to one after the
//! other, and their replies made one.
//!
//! Who is asked are the servers of the ring. With one server, or one master with replicas, there is
//! nothing to merge: the bytes go there as they are, and so does the reply.
//!
//! Nothing is undone: if one of several servers answers an error, that is the answer, and what the
//! others have done stays.

mod cursor;
mod info;
mod merge;

use cashew_metrics::PoolCounter;
use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{Access, Command, Fan, Group, wrong_arity_error};
use cashew_protocol::resp::{self, Version, encode};

use crate::base::failure::Failure;
use crate::base::id::{ClientId, LaneId, PoolId, RequestId, ServerId};
use crate::downstream::client::Client;
use crate::downstream::receive::Plan;
use crate::downstream::session_params::SessionParams;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::redis::REDIS_VERSION;
use crate::request::{Due, Merge, Request, Role};
use crate::upstream::bulk::BULK_SIZE;
use crate::upstream::pool::Server;

use cursor::Cursor;
pub(crate) use cursor::Walk;
pub(crate) use merge::{Aggregate, integers, is_null, merge, scripts, text};

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

/// A merge that tells servers by their names.
#[derive(Debug)]
pub(crate) struct Named {
    fan: Fan,
    version: Version,
    /// With what the gateway says of itself behind it.
    tells_own: bool,
    /// In the order of the fragments.
    names: Vec<Box<str>>,
}

impl Named {
    /// Bytes allocated.
    pub(crate) fn size(&self) -> usize {
        let names = self.names.iter().map(|name| name.len() + size_of_val(name));
        size_of::<Self>() + names.sum::<usize>()
    }
}

/// A merge of the newest entries of several logs.
#[derive(Debug)]
pub(crate) struct Newest {
    /// So many at most.
    limit: usize,
    /// Whose, in the order of the fragments, and of how many servers.
    places: Vec<ServerId>,
    servers: u32,
}

impl Newest {
    /// Bytes allocated.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.places.capacity() * size_of::<u32>()
    }
}

/// Where a page of a SCAN comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    walk: Walk,
    server: ServerId,
}

/// A request that servers get one after the other.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) text: Vec<u8>,
    next: u32,
    /// How many servers are to be asked yet.
    left: u32,
}

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
            let info = self.own_info(self.clients[client].pool);
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
        if self.is_single(client) {
            let plan = self.broadcast_to_only(client, way);
            if let (Some(sha), &Plan::Forward { lane, request }) = (loaded, &plan) {
                self.watch_load(request, lane, sha);
            }
            return plan;
        }
        let plan = match fan {
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
            | Fan::AnyServer => self.broadcast(client, command, fan, bytes, args, way),
        };
        if let (Some(sha), Plan::Done) = (loaded, &plan) {
            self.watch_loads(client, sha);
        }
        plan
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
            Err(failure) => self.fail(client, failure),
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
        let Client { pool, variant, .. } = self.clients[client];
        // While a script runs the server takes no SELECT, and what may end it is for no database.
        let SessionParams { wire_protocol, .. } = self.pools[pool].params_set[usize::from(variant)];
        let plain = SessionParams { wire_protocol, database: 0 };
        let variant = self.variant(pool, plain).unwrap_or(variant);
        let lane = self.streaming_lane(pool, server, variant)?;
        if lane.is_none() {
            self.await_streaming_lane(client, server);
        }
        Ok(lane)
    }

    /// Sends the same bytes to every server of the ring.
    fn broadcast(
        &mut self,
        client: ClientId,
        command: &Command,
        fan: Fan,
        text: &[u8],
        args: &[Span],
        way: Way,
    ) -> Plan {
        let pool = self.clients[client].pool;
        let live = self.live_servers(pool);
        let mut lanes = Vec::with_capacity(live.len());
        for &server in &live {
            match self.lane_by(client, server, way) {
                Ok(Some(lane)) => lanes.push(Ok(lane)),
                Ok(None) => return Plan::Wait,
                Err(failure) if tolerates(fan) => lanes.push(Err(failure)),
                Err(failure) => return self.fail(client, failure),
            }
        }
        if lanes.is_empty() {
            return self.fail(client, Failure::NoServer);
        }
        let merge = match fan {
            Fan::PerServer => self.named(client, fan, &live, false),
            Fan::Info => self.named(client, fan, &live, asks_for_all(text, args)),
            Fan::Newest => self.newest(client, limit_of(text, args), live),
            Fan::Scripts => {
                let shas = args.get(2..).unwrap_or_default().iter().map(|arg| arg.of(text));
                Merge::Scripts(self.remembered(pool, shas, &live))
            }
            _ => Merge::Fan(fan),
        };
        let parent = self.new_request(client);
        let (mut fragments, mut pending) = (RequestId::NONE, 0);
        self.requests[parent].role = Role::Parent { fragments, pending, merge };
        for &lane in lanes.iter().rev() {
            let fragment = self.add_fragment(parent, fragments);
            fragments = fragment;
            match lane {
                Ok(lane) => {
                    pending += 1;
                    self.send(lane, fragment, Payload::Bytes(text));
                    if command.is_sealed() {
                        self.seal(lane);
                    }
                }
                Err(failure) => self.fail_fragment(fragment, failure),
            }
        }
        self.begin_fragments(parent, fragments, pending);
        Plan::Done
    }

    /// Those of the ring, by their places in the pool.
    pub(crate) fn live_servers(&self, pool: PoolId) -> Vec<ServerId> {
        let live = self.pools[pool].topology.live().iter().zip((0..).map(ServerId::new));
        live.filter(|(live, _)| **live).map(|(_, server)| server).collect()
    }

    fn named(
        &mut self,
        client: ClientId,
        fan: Fan,
        servers: &[ServerId],
        tells_own: bool,
    ) -> Merge {
        let Self { clients, pools, .. } = self;
        let client = &clients[client];
        let config = &pools[client.pool].config.servers;
        let names = servers.iter().map(|&server| config[server.index()].name.as_str().into());
        let version = client.session.wire_protocol.resp();
        let named = Named { fan, version, tells_own, names: names.collect() };
        self.bufs.charge(named.size());
        Merge::Named(Box::new(named))
    }

    fn newest(&mut self, client: ClientId, limit: usize, places: Vec<ServerId>) -> Merge {
        let servers = self.pools[self.clients[client].pool].servers.len() as u32;
        let newest = Newest { limit, places, servers };
        self.bufs.charge(newest.size());
        Merge::Newest(Box::new(newest))
    }

    pub(crate) fn merge_newest(
        &self,
        fragments: RequestId,
        newest: &Newest,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let Newest { limit, places, servers } = newest;
        merge::newest(self.fragment_replies(fragments), places, *servers, *limit, out)
    }

    /// A fragment in front of others, which is in no lane yet.
    pub(crate) fn add_fragment(&mut self, parent: RequestId, next: RequestId) -> RequestId {
        let Request { pool, role, .. } = &self.requests[parent];
        let due = match role {
            Role::Parent { merge, .. } => Due::of(merge, 0),
            _ => Due::Anything,
        };
        let (fragment, slot) = self.requests.add(*pool, ClientId::NONE, self.now);
        slot.role = Role::Fragment { parent, next };
        slot.expect = Expect::Line;
        slot.due = due;
        fragment
    }

    /// Answers a fragment that could not be sent.
    fn fail_fragment(&mut self, fragment: RequestId, failure: Failure) {
        let slot = &mut self.requests[fragment];
        let pool = slot.pool;
        slot.failed = true;
        slot.done = true;
        let mut reply = self.bufs.take();
        failure.write_reply(self.pools[pool].protocol, &mut reply);
        self.charge(fragment, reply.len());
        self.bufs.give(std::mem::replace(&mut self.requests[fragment].reply, reply));
        self.count_forward_error(pool);
    }

    /// The parent waits for so many of its fragments, which are on their way.
    pub(crate) fn begin_fragments(&mut self, parent: RequestId, first: RequestId, count: u32) {
        let Role::Parent { fragments, pending, .. } = &mut self.requests[parent].role else {
            unreachable!("it was made a parent");
        };
        (*fragments, *pending) = (first, count);
        let metrics = self.pools[self.requests[parent].pool].metrics;
        self.metrics.add_pool(metrics, PoolCounter::Fragments, u64::from(count));
        if count == 0 {
            self.fragments_done(parent);
        }
    }

    /// PerServer and INFO.
    pub(crate) fn merge_named(
        &self,
        parent: RequestId,
        fragments: RequestId,
        named: &Named,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let replies = self.fragment_replies(fragments);
        if named.fan == Fan::PerServer {
            merge::per_server(named.version, &named.names, replies, out);
            return Some(());
        }
        let texts = replies.clone().filter_map(merge::text);
        let texts = texts.filter_map(|text| std::str::from_utf8(text).ok());
        if texts.clone().next().is_none() {
            out.extend_from_slice(replies.clone().find(|reply| resp::is_error(reply))?);
            return Some(());
        }
        let mut info = info::merge(texts, self.identity.process_id);
        if named.tells_own {
            info.push_str("\r\n");
            info.push_str(&self.own_info(self.requests[parent].pool));
        }
        write_info(out, named.version, &info);
        Some(())
    }

    /// What the gateway tells about itself.
    fn own_info(&self, pool: PoolId) -> String {
        let uptime = self.now.micros_since(self.started) / 1_000_000;
        let pool = &self.pools[pool];
        let servers = &pool.servers;
        let mut text = format!(
            "# Cashew\r\ncashew_version:{}\r\ncashew_redis_version:{REDIS_VERSION}\r\n\
             cashew_process_id:{}\r\ncashew_uptime_in_seconds:{uptime}\r\npool:{}\r\n\
             pool_clients:{}\r\nworker:{}\r\nworkers:{}\r\nepoch:{}\r\nservers:{}\r\n\
             servers_ejected:{}\r\nservers_failing:{}\r\n",
            self.identity.version,
            self.identity.process_id,
            pool.config.name,
            pool.clients,
            self.slot,
            self.workers,
            self.epoch,
            servers.len(),
            servers.iter().filter(|server| server.ejected).count(),
            servers.iter().filter(|server| server.failing).count(),
        );
        let names = pool.config.servers.iter().map(|server| &server.name);
        for (at, (server, name)) in servers.iter().zip(names).enumerate().take(SERVERS_TOLD_MAX) {
            let state = state_of(server);
            text.push_str(&format!("server{at}:name={name},state={state}\r\n"));
        }
        text
    }

    /// RANDOMKEY: one server after the other, so that none is asked in vain as a rule.
    fn random_key(&mut self, client: ClientId, text: &[u8]) -> Plan {
        let pool = self.clients[client].pool;
        let servers = self.pools[pool].servers.len() as u32;
        let round = Round {
            text: self.bufs.copy_of(text),
            next: self.rng.next() as u32 % servers,
            left: servers,
        };
        // What follows must not overtake it.
        self.clients[client].fenced = true;
        self.bufs.charge(size_of_val(&round));
        let parent = self.new_request(client);
        self.take_turn(parent, Box::new(round));
        Plan::Done
    }

    /// Asks the next server of the ring, or answers null.
    fn take_turn(&mut self, parent: RequestId, mut round: Box<Round>) {
        let client = self.requests[parent].client;
        while round.left > 0 {
            let pool = &self.pools[self.clients[client].pool];
            let server = ServerId::new(round.next % pool.servers.len() as u32);
            round.next = server.number() + 1;
            round.left -= 1;
            if !pool.topology.live()[server.index()] {
                continue;
            }
            match self.lane_for(client, server, round.text.len()) {
                Ok(lane) => {
                    let fragment = self.add_fragment(parent, RequestId::NONE);
                    self.send(lane, fragment, Payload::Bytes(&round.text));
                    let merge = Merge::Round(round);
                    self.requests[parent].role =
                        Role::Parent { fragments: fragment, pending: 0, merge };
                    self.begin_fragments(parent, fragment, 1);
                }
                Err(failure) => {
                    let protocol = self.pools[self.requests[parent].pool].protocol;
                    self.end_round(parent, round, |out| failure.write_reply(protocol, out));
                }
            }
            return;
        }
        let version = self.resp_of(client);
        self.end_round(parent, round, |out| encode::write_null(out, version));
    }

    fn end_round(
        &mut self,
        parent: RequestId,
        round: Box<Round>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.recycle_merge(Merge::Round(round));
        self.answer_instead(parent, write);
    }

    /// A server has answered: with null the next one is asked.
    pub(crate) fn end_turn(&mut self, parent: RequestId, fragments: RequestId, round: Box<Round>) {
        if merge::is_null(&self.requests[fragments].reply) {
            self.free_fragments(fragments);
            self.take_turn(parent, round);
            return;
        }
        // It stays charged to the same client.
        let reply = std::mem::take(&mut self.requests[fragments].reply);
        self.free_fragments(fragments);
        self.recycle_merge(Merge::Round(round));
        self.deliver_buf(parent, reply);
    }

    /// SCAN: the cursor says which server is next.
    fn scan(&mut self, client: ClientId, bytes: &[u8], args: &[Span]) -> Plan {
        let pool = &self.pools[self.clients[client].pool];
        let walk = pool.walk;
        let live = pool.topology.live();
        let first =
            || live.iter().position(|&live| live).map(|server| ServerId::new(server as u32));
        let cursor = match walk.read(args[1].of(bytes)) {
            Ok(Some(cursor)) => Some(cursor),
            Ok(None) => first().map(|server| Cursor { server, inner: 0 }),
            Err(bad) => return self.reply_error(client, bad.text()),
        };
        let Some(Cursor { server, inner }) = cursor else {
            return self.fail(client, Failure::NoServer);
        };
        if !live[server.index()] {
            let name = &pool.config.servers[server.index()].name;
            let text = format!(
                "ERR the server that this SCAN was at, '{name}', has been ejected; start again \
                 with cursor 0"
            );
            return self.reply_error(client, &text);
        }
        let lane = match self.lane_for(client, server, bytes.len()) {
            Ok(lane) => lane,
            Err(failure) => return self.fail(client, failure),
        };
        let mut text = self.bufs.take_for(bytes.len() + 32);
        encode::write_array_header(&mut text, args.len());
        encode::write_bulk(&mut text, args[0].of(bytes));
        encode::write_bulk(&mut text, inner.to_string().as_bytes());
        args[2..].iter().for_each(|arg| encode::write_bulk(&mut text, arg.of(bytes)));
        let parent = self.new_request(client);
        let fragment = self.add_fragment(parent, RequestId::NONE);
        let merge = Merge::Page(Page { walk, server });
        self.requests[parent].role = Role::Parent { fragments: fragment, pending: 0, merge };
        self.send(lane, fragment, Payload::Bytes(&text));
        self.bufs.give(text);
        self.begin_fragments(parent, fragment, 1);
        Plan::Done
    }

    /// A server's page, with a cursor that the client may come back with.
    pub(crate) fn merge_page(
        &self,
        parent: RequestId,
        fragments: RequestId,
        page: Page,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut reply = merge::Aggregate::of(self.fragment_replies(fragments).next()?)?;
        let inner = cursor::number(merge::text(reply.next()?)?)?;
        let next = match inner {
            0 => self.page_behind(self.requests[parent].pool, page),
            inner => Some(Cursor { server: page.server, inner }),
        };
        let number = match next {
            None => 0,
            Some(cursor) => match page.walk.write(cursor) {
                Some(number) => number,
                None => {
                    let text = b"ERR the server's cursor is too large for a SCAN over several";
                    encode::write_error(out, text);
                    return Some(());
                }
            },
        };
        encode::write_array_header(out, 2);
        encode::write_bulk(out, number.to_string().as_bytes());
        out.extend_from_slice(reply.elements);
        Some(())
    }

    /// The beginning of the next server of the ring, if there is one.
    fn page_behind(&self, pool: PoolId, page: Page) -> Option<Cursor> {
        let pool = &self.pools[pool];
        let live = pool.topology.live();
        // By a list that has changed nobody will go on: the next cursor is refused.
        let is_next =
            |&server: &ServerId| pool.walk != page.walk || live.get(server.index()) == Some(&true);
        let server =
            (page.server.number() + 1..page.walk.servers()).map(ServerId::new).find(is_next)?;
        Some(Cursor { server, inner: 0 })
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
        let servers = &self.pools[self.clients[client].pool].config.servers;
        let Some(server) = servers.iter().position(|server| server.name.as_bytes() == name) else {
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
        let lane = match self.lane_for(client, ServerId::new(server as u32), bytes.len()) {
            Ok(lane) => lane,
            Err(failure) => return Some(self.fail(client, failure)),
        };
        let mut text = self.bufs.take_for(bytes.len());
        encode::write_array_header(&mut text, rest.len());
        rest.iter().for_each(|arg| encode::write_bulk(&mut text, arg.of(bytes)));
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
