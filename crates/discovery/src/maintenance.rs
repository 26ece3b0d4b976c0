//! Connections to servers that are asked to tell of their maintenance, and what comes of what they tell. It never
//! waits.
//!
//! Each is a connection of its own in RESP3: those on which requests go speak what clients do, and most speak RESP2, in
//! which nothing can be told. A server tells all connections the same. One process has them, so a server has one more
//! connection, however many workers there are.
//!
//! - *Moves to an address*: once that answers, the master takes the server to be there. Until then it stays where it is.
//! - *Moves to nowhere*: half its time later its own address is looked up, and connections are made anew.
//! - *A migration or a failover begins*: the [board](BoardWriter) has until when replies may take longer, for workers.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Address, MovingEndpoint, Pool, Server, ServerAuth};
use cashew_metrics::{BoardWriter, EventKind, Segments, ServerId, monotonic_ms};
use cashew_protocol::resp::encode::write_command;
use cashew_tls::Security;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::answer;
use crate::link::{Fate, Greeting, Link, Opening};
use crate::notices::{Notice, Operations, notice};

/// A server that tells nothing is asked so often whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// So long an answer may take: what is told of is just what delays answers.
const PATIENCE: Duration = Duration::from_secs(15);
/// A server that does not tell is asked to again after so long.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// How often an address that a server moves to is tried, and names are looked up again.
const TRY_INTERVAL: Duration = Duration::from_millis(500);
/// So long after its time a move is waited for that has not come about.
const LATE_MAX: Duration = Duration::from_secs(60);
/// A server that the file has by name is there again so long after it has moved: then its name leads there.
const RETURN_AFTER: Duration = Duration::from_secs(30);
/// Bytes of what a server tells. Who says more is closed.
const NOTICE_SIZE_MAX: usize = 64 << 10;

/// A server is somewhere else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocated {
    pub pool: String,
    pub server: String,
    /// `None` is where the file has it, with connections that are made anew.
    pub to: Option<Address>,
    /// Where its name leads, if it was looked up.
    pub addresses: Vec<IpAddr>,
    pub why: String,
}

/// How it is with a server that is asked to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MaintenanceStatus {
    pub pool: String,
    pub server: String,
    /// Where it is.
    pub address: String,
    /// Where the file has it, if that is somewhere else.
    pub moved_from: Option<String>,
    /// `asked`, `tells`, `refuses: WHY` or `away: WHY`.
    pub state: String,
    /// Replies may take longer now, as it has said.
    pub is_relaxed: bool,
    /// How often it has told something, since discovery was started.
    pub notices: u64,
    /// What it has told last, and when, in seconds since 1970.
    pub last: Option<String>,
    pub last_at: Option<u64>,
}

/// All servers that are asked.
#[derive(Default)]
pub struct ServerMaintenances {
    servers: Vec<Watched>,
    /// The board in use, and during a change the next one.
    boards: Vec<Board>,
    relocated: VecDeque<Relocated>,
    statuses: VecDeque<MaintenanceStatus>,
}

struct Board {
    writer: BoardWriter,
    servers: BTreeMap<(String, String), ServerId>,
}

/// What a connection depends on. With anything else it is made anew.
#[derive(Clone, PartialEq, Eq)]
struct Settings {
    pool: String,
    server: String,
    address: Address,
    renewals: u32,
    endpoint: MovingEndpoint,
    auth: ServerAuth,
    security: Option<Arc<Security>>,
}

struct Watched {
    settings: Settings,
    configured: Option<Address>,
    link: Link,
    step: Step,
    pinged_at: Instant,
    operations: Operations,
    moving: Option<Moving>,
    notices: u64,
    last: Option<(String, u64)>,
    told: Option<MaintenanceStatus>,
}

enum Step {
    Away,
    /// HELLO is not answered yet.
    Greeting,
    /// CLIENT MAINT_NOTIFICATIONS is not answered yet.
    Asking,
    Tells,
    Refuses {
        until: Instant,
        why: String,
    },
}

/// A server goes.
struct Moving {
    to: Option<Address>,
    why: String,
    /// It has said so. Otherwise it comes back to where the file has it.
    is_announced: bool,
    /// When it has gone.
    until: Instant,
    /// When something is tried next.
    due: Instant,
    trial: Trial,
}

enum Trial {
    None,
    /// Whether somebody answers at the new address.
    Address(Box<Link>),
    /// Where its name leads by now.
    Name(Receiver<Vec<IpAddr>>),
    /// The master knows.
    Told,
}

impl ServerMaintenances {
    /// Goes by a snapshot, and writes to its board.
    pub fn put_into_effect(&mut self, snapshot: &Snapshot, segments: &Segments, now: Instant) {
        let mut before = std::mem::take(&mut self.servers);
        for pool in &snapshot.pools {
            for server in &pool.servers {
                let Some(settings) = Settings::of(pool, server) else { continue };
                let same = before.iter().position(|it| it.settings == settings);
                let known = before.iter().position(|it| it.settings.is_of_same(&settings));
                let mut watched = match same {
                    Some(at) => before.swap_remove(at),
                    None => {
                        let mut watched = Watched::new(settings, now);
                        if let Some(at) = known {
                            watched.inherit(&before[at]);
                        }
                        watched
                    }
                };
                watched.follow(pool, now);
                self.servers.push(watched);
            }
        }
        self.boards.clear();
        self.prepare(snapshot, segments);
    }

    /// Writes to the board of the next snapshot as well, which may take effect at any time.
    pub fn prepare(&mut self, snapshot: &Snapshot, segments: &Segments) {
        self.boards.truncate(1);
        if snapshot.has_server_maintenance() {
            self.boards.push(Board::new(snapshot, segments));
            let now = Instant::now();
            self.servers.iter_mut().for_each(|server| server.publish(&self.boards, now));
        }
    }

    /// That one does not take effect.
    pub fn abort(&mut self) {
        self.boards.truncate(1);
    }

    /// Where a server is now, since it was asked last.
    pub fn poll_relocated(&mut self) -> Option<Relocated> {
        self.relocated.pop_front()
    }

    /// How it is with a server, if it is to be told.
    pub fn poll_status(&mut self) -> Option<MaintenanceStatus> {
        self.statuses.pop_front()
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.servers.iter().flat_map(|server| {
            let trial = match &server.moving {
                Some(Moving { trial: Trial::Address(link), .. }) => Some(&**link),
                _ => None,
            };
            std::iter::once(&server.link).filter(|_| !server.is_refused()).chain(trial)
        })
    }

    /// When there is something to do at the latest.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let links = self.links().filter_map(|link| link.poll_timeout(now));
        links.chain(self.servers.iter().map(Watched::due)).min()
    }

    /// Does all there is to do without waiting.
    pub fn advance(&mut self, now: Instant) {
        for server in &mut self.servers {
            let was_relaxed = server.operations.until(now).is_some() || server.moving.is_some();
            server.hear(now);
            self.relocated.extend(server.advance_move(now));
            if was_relaxed || server.operations.until(now).is_some() || server.moving.is_some() {
                server.publish(&self.boards, now);
            }
            self.statuses.extend(server.tell(now));
        }
    }
}

impl Board {
    fn new(snapshot: &Snapshot, segments: &Segments) -> Self {
        let layout = segments.layout();
        let mut servers = BTreeMap::new();
        for (at, pool) in snapshot.pools.iter().enumerate() {
            for (index, server) in pool.servers.iter().enumerate() {
                if pool.server_maintenance.is_some() {
                    let name = (pool.name.clone(), server.name.clone());
                    servers.insert(name, layout.server(at, index));
                }
            }
        }
        Self { writer: segments.board_writer(), servers }
    }
}

impl Settings {
    fn of(pool: &Pool, server: &Server) -> Option<Self> {
        let maintenance = pool.server_maintenance.as_ref()?;
        Some(Self {
            pool: pool.name.clone(),
            server: server.name.clone(),
            address: server.endpoint.address()?,
            renewals: pool.relocation_of(&server.name).map_or(0, |it| it.renewals),
            endpoint: maintenance.endpoint,
            auth: pool.server_auth.clone(),
            security: pool.server_tls.clone().map(Security::new).map(Arc::new),
        })
    }

    fn is_of_same(&self, other: &Self) -> bool {
        (&self.pool, &self.server) == (&other.pool, &other.server)
    }

    fn opening(&self) -> Opening {
        Opening {
            security: self.security.clone(),
            greetings: Greeting::all(self.auth.of(&self.server)),
            answer_size_max: Some(NOTICE_SIZE_MAX),
            patience: Some(PATIENCE),
        }
    }

    /// What asks a server at that address to tell.
    fn request(&self, peer: Option<IpAddr>) -> Vec<u8> {
        let endpoint = match self.endpoint {
            MovingEndpoint::Auto => {
                let is_inside = peer.is_none_or(is_private);
                match (is_inside, self.security.is_some()) {
                    (true, false) => MovingEndpoint::InternalIp,
                    (true, true) => MovingEndpoint::InternalFqdn,
                    (false, false) => MovingEndpoint::ExternalIp,
                    (false, true) => MovingEndpoint::ExternalFqdn,
                }
            }
            given => given,
        };
        let mut bytes = Vec::new();
        let words: [&[u8]; 5] = [
            b"CLIENT",
            b"MAINT_NOTIFICATIONS",
            b"ON",
            b"moving-endpoint-type",
            endpoint.name().as_bytes(),
        ];
        write_command(&mut bytes, &words);
        bytes
    }
}

/// Whether an address is of a network of its own, as clients of Redis decide it.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

impl Watched {
    fn new(settings: Settings, now: Instant) -> Self {
        let link = Link::new(settings.address.clone(), settings.opening(), now);
        Self {
            settings,
            configured: None,
            link,
            step: Step::Away,
            pinged_at: now,
            operations: Operations::default(),
            moving: None,
            notices: 0,
            last: None,
            told: None,
        }
    }

    /// It is the same server with another connection.
    fn inherit(&mut self, before: &Self) {
        (self.notices, self.last) = (before.notices, before.last.clone());
    }

    /// Notes where the file has it.
    fn follow(&mut self, pool: &Pool, now: Instant) {
        let relocation = pool.relocation_of(&self.settings.server);
        self.configured = relocation.and_then(|it| it.configured.address());
        let is_away = self.configured.as_ref().is_some_and(|it| *it != self.settings.address);
        let is_named = self.configured.as_ref().is_some_and(|it| is_name(&it.host));
        if is_away && is_named && self.moving.is_none() {
            self.moving = Some(Moving {
                to: None,
                why: "its name leads to where it is".to_owned(),
                is_announced: false,
                until: now + RETURN_AFTER,
                due: now + RETURN_AFTER,
                trial: Trial::None,
            });
        }
    }

    fn is_refused(&self) -> bool {
        matches!(self.step, Step::Refuses { .. })
    }

    fn due(&self) -> Instant {
        let own = match &self.step {
            Step::Refuses { until, .. } => *until,
            _ => self.pinged_at + PING_INTERVAL,
        };
        self.moving.as_ref().map_or(own, |moving| moving.due().min(own))
    }

    /// Takes what the server has said, and goes on asking.
    fn hear(&mut self, now: Instant) {
        if let Step::Refuses { until, .. } = self.step {
            if now < until {
                return;
            }
            self.step = Step::Away;
        }
        let mut messages: Vec<Vec<u8>> = Vec::new();
        let fate = self.link.advance(now, &mut |bytes| messages.push(bytes.to_vec()));
        for message in messages {
            match notice(&message) {
                Some(notice) => self.take(notice, now),
                None => self.answered(&message, now),
            }
        }
        match fate {
            Fate::Same => {}
            Fate::Opened => {
                let mut hello = Vec::new();
                write_command(&mut hello, &[b"HELLO", b"3"]);
                self.link.ask(&hello, 1, now);
                self.step = Step::Greeting;
            }
            Fate::Lost(_) => {
                if !self.is_refused() {
                    self.step = Step::Away;
                }
            }
        }
        let is_due = now >= self.pinged_at + PING_INTERVAL;
        if matches!(self.step, Step::Tells) && is_due && self.link.is_at_rest() {
            self.link.ask(b"*1\r\n$4\r\nPING\r\n", 1, now);
        }
        if is_due {
            self.pinged_at = now;
        }
    }

    fn answered(&mut self, message: &[u8], now: Instant) {
        match &self.step {
            Step::Greeting if message.starts_with(b"%") => {
                let request = self.settings.request(self.link.peer());
                self.link.ask(&request, 1, now);
                self.step = Step::Asking;
            }
            Step::Asking if message == b"+OK\r\n" => self.step = Step::Tells,
            Step::Greeting | Step::Asking => {
                let why = answer::refusal(message).unwrap_or_else(|| "answers oddly".to_owned());
                let Settings { pool, server, .. } = &self.settings;
                if self.told.as_ref().is_none_or(|it| it.state != why) {
                    warn!(
                        kind = EventKind::ServerMaintenance.name(),
                        pool,
                        server,
                        "pool '{pool}': server '{server}' does not tell of its maintenance, and {why}"
                    );
                }
                self.step = Step::Refuses { until: now + REFUSED_FOR, why };
                // It is closed: a new one is made when it is asked again.
                self.link = Link::new(
                    self.settings.address.clone(),
                    self.settings.opening(),
                    now + REFUSED_FOR,
                );
            }
            Step::Away | Step::Tells | Step::Refuses { .. } => {}
        }
    }

    fn take(&mut self, notice: Notice, now: Instant) {
        let Settings { pool, server, .. } = &self.settings;
        let text = match &notice {
            Notice::Moving { seq, seconds, to: Some(to) } => {
                format!("MOVING {seq}: it goes to {to} within {seconds} s")
            }
            Notice::Moving { seq, seconds, to: None } => {
                format!("MOVING {seq}: it goes to where its address leads, within {seconds} s")
            }
            Notice::Begins { seq, seconds, .. } => {
                format!("{} {seq}: replies may take longer, {seconds} s from now", notice.name())
            }
            Notice::Ends { seq, .. } => format!("{} {seq}: it is over", notice.name()),
            Notice::Other(name) => format!("{name}, which means nothing here"),
            Notice::Broken(name) => format!("{name} in a form that is not understood"),
        };
        info!(
            kind = EventKind::ServerMaintenance.name(),
            pool, server, "pool '{pool}': server '{server}' says {text}"
        );
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.notices += 1;
        self.last = Some((text, at));
        match notice {
            Notice::Moving { seq, seconds, to } => {
                let seconds = Duration::from_secs(seconds);
                let due = if to.is_some() { now } else { now + seconds / 2 };
                let why = format!("it has said so (MOVING {seq})");
                let trial = Trial::None;
                let (is_announced, until) = (true, now + seconds);
                self.moving = Some(Moving { to, why, is_announced, until, due, trial });
            }
            Notice::Begins { operation, seq, seconds } => {
                self.operations.begin(operation, seq, seconds, now);
            }
            Notice::Ends { operation, seq } => self.operations.end(operation, seq),
            Notice::Other(_) | Notice::Broken(_) => {}
        }
    }

    /// Goes on with a move. Returns where the server is to be from now on.
    fn advance_move(&mut self, now: Instant) -> Option<Relocated> {
        let moving = self.moving.as_mut()?;
        if now >= moving.until + LATE_MAX && !moving.is_announced {
            // Its name is looked up until that leads somewhere.
            (moving.until, moving.due, moving.trial) = (now + RETURN_AFTER, now, Trial::None);
        } else if now >= moving.until + LATE_MAX {
            let Settings { pool, server, .. } = &self.settings;
            if let (Some(to), false) = (&moving.to, matches!(moving.trial, Trial::Told)) {
                warn!(
                    kind = EventKind::ServerMaintenance.name(),
                    pool,
                    server,
                    "pool '{pool}': server '{server}' was to move to {to}, where nobody answers: it is not followed"
                );
            }
            self.moving = None;
            return None;
        }
        let addresses =
            moving.advance(&self.settings, (self.configured.as_ref(), &self.link), now)?;
        moving.trial = Trial::Told;
        let Settings { pool, server, .. } = &self.settings;
        Some(Relocated {
            pool: pool.clone(),
            server: server.clone(),
            to: moving.to.clone(),
            addresses,
            why: moving.why.clone(),
        })
    }

    /// Publishes until when replies may take longer.
    fn publish(&mut self, boards: &[Board], now: Instant) {
        let operations = self.operations.until(now);
        let moving = self.moving.as_ref().filter(|it| it.is_announced);
        let until = operations.into_iter().chain(moving.map(|it| it.until)).max();
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let until_ms = monotonic_ms() + left.as_millis() as u64;
        let name = (self.settings.pool.clone(), self.settings.server.clone());
        for board in boards {
            if let Some(&server) = board.servers.get(&name) {
                board.writer.relax(server, until_ms);
            }
        }
    }

    /// How it is, if that is news.
    fn tell(&mut self, now: Instant) -> Option<MaintenanceStatus> {
        let state = match &self.step {
            Step::Away => match &self.link.failure {
                Some(why) => format!("away: {why}"),
                None => "asked".to_owned(),
            },
            Step::Greeting | Step::Asking => "asked".to_owned(),
            Step::Tells => "tells".to_owned(),
            Step::Refuses { why, .. } => why.clone(),
        };
        let Settings { pool, server, address, .. } = &self.settings;
        let moved_from = self.configured.as_ref().filter(|it| *it != address);
        let status = MaintenanceStatus {
            pool: pool.clone(),
            server: server.clone(),
            address: address.to_string(),
            moved_from: moved_from.map(ToString::to_string),
            state,
            is_relaxed: self.operations.until(now).is_some(),
            notices: self.notices,
            last: self.last.as_ref().map(|(text, _)| text.clone()),
            last_at: self.last.as_ref().map(|(_, at)| *at),
        };
        if self.told.as_ref() == Some(&status) {
            return None;
        }
        self.told = Some(status.clone());
        Some(status)
    }
}

impl Moving {
    /// When there is something to do at the latest.
    fn due(&self) -> Instant {
        match self.trial {
            Trial::Told => self.until + LATE_MAX,
            Trial::None | Trial::Address(_) | Trial::Name(_) => self.due,
        }
    }

    /// Finds out whether the server can be taken to be there. Returns where its name leads then, if that was looked up.
    fn advance(
        &mut self,
        settings: &Settings,
        (configured, link): (Option<&Address>, &Link),
        now: Instant,
    ) -> Option<Vec<IpAddr>> {
        let home = configured.unwrap_or(&settings.address);
        match &mut self.trial {
            Trial::Told => None,
            Trial::None if now < self.due => None,
            Trial::None => match &self.to {
                Some(to) if *to == settings.address => {
                    self.trial = Trial::Told;
                    None
                }
                Some(to) => {
                    let link = Link::new(to.clone(), settings.opening(), now);
                    (self.trial, self.due) = (Trial::Address(Box::new(link)), now + TRY_INTERVAL);
                    None
                }
                None if !is_name(&home.host) => Some(Vec::new()),
                None => {
                    self.due = now + TRY_INTERVAL;
                    self.trial = look_up(home)?;
                    None
                }
            },
            Trial::Address(trial) => {
                self.due = self.due.max(now + TRY_INTERVAL);
                let mut has_answered = false;
                let fate = trial.advance(now, &mut |bytes| {
                    has_answered |= !cashew_protocol::resp::is_error(bytes);
                });
                if fate == Fate::Opened {
                    trial.ask(b"*1\r\n$4\r\nPING\r\n", 1, now);
                }
                has_answered.then(Vec::new)
            }
            Trial::Name(found) => match found.try_recv() {
                Ok(addresses) => {
                    let is_left = link.peer().is_none_or(|peer| !addresses.contains(&peer));
                    let is_returning = !self.is_announced;
                    let is_last = now + Duration::from_secs(1) >= self.until;
                    if !addresses.is_empty() && (is_left || is_last || is_returning) {
                        return Some(addresses);
                    }
                    (self.trial, self.due) = (Trial::None, now + Duration::from_secs(1));
                    None
                }
                Err(TryRecvError::Empty) => {
                    self.due = now + Duration::from_millis(10);
                    None
                }
                Err(TryRecvError::Disconnected) => {
                    (self.trial, self.due) = (Trial::None, now + Duration::from_secs(1));
                    None
                }
            },
        }
    }
}

fn is_name(host: &str) -> bool {
    host.parse::<IpAddr>().is_err()
}

/// Where a name leads is looked up in a thread. `None` if there can be none.
fn look_up(address: &Address) -> Option<Trial> {
    let (answer, found) = channel();
    let name = (address.host.clone(), address.port);
    let look_up = move || {
        let addresses = name.to_socket_addrs().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
        // Whether somebody still waits is all the same.
        let _ = answer.send(addresses.into_iter().map(|it| it.ip()).collect());
    };
    std::thread::Builder::new().name("names".into()).spawn(look_up).ok()?;
    Some(Trial::Name(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(pool: &str) -> (Pool, Watched) {
        let yaml = format!(
            "a: {{listen: 127.0.0.1:1, redis: true, server_maintenance: {pool}, servers: ['127.0.0.1:9:1 s']}}\n"
        );
        let loaded = cashew_config::parse("t.yml", &yaml, &cashew_config::Context::of_system());
        let pool = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot.pools.remove(0);
        let settings = Settings::of(&pool, &pool.servers[0]).unwrap();
        let watched = Watched::new(settings, Instant::now());
        (pool, watched)
    }

    fn moving(to: Option<&str>, seconds: u64) -> Notice {
        let address = |host: &str| Address { host: host.to_owned(), port: 9 };
        Notice::Moving { seq: 1, seconds, to: to.map(address) }
    }

    #[test]
    fn a_move_to_where_it_is_and_one_that_is_told_are_not_looked_at_again_and_again() {
        let (_, mut server) = watched("true");
        let now = Instant::now();
        server.pinged_at = now;
        server.take(moving(Some("127.0.0.1"), 10), now);
        assert_eq!(server.advance_move(now), None);
        assert!(server.due() > now + Duration::from_secs(1));
        server.take(moving(None, 10), now);
        assert_eq!(server.advance_move(now), None);
        assert_eq!(server.due(), now + Duration::from_secs(5));
        let half = now + Duration::from_secs(5);
        let relocated = server.advance_move(half).unwrap();
        assert_eq!((relocated.to, relocated.addresses.len()), (None, 0));
        assert_eq!(server.advance_move(half), None);
        server.pinged_at = half;
        assert!(server.due() > half + Duration::from_secs(1));
        let late = now + Duration::from_secs(10) + LATE_MAX;
        assert_eq!(server.advance_move(late), None);
        assert!(server.moving.is_none());
    }

    #[test]
    fn a_server_by_name_is_wanted_back_and_one_by_address_stays() {
        let (mut pool, _) = watched("true");
        let now = Instant::now();
        let to = Address { host: "127.0.0.2".to_owned(), port: 9 };
        for (host, is_wanted) in [("localhost", true), ("127.0.0.1", false)] {
            pool.servers[0].endpoint = Address { host: host.to_owned(), port: 9 }.into();
            pool.server_maintenance.as_mut().unwrap().relocations.clear();
            assert!(pool.relocate("s", Some(&to)));
            let mut server = Watched::new(Settings::of(&pool, &pool.servers[0]).unwrap(), now);
            server.follow(&pool, now);
            assert_eq!(server.moving.is_some(), is_wanted, "{host}");
            assert_eq!(server.tell(now).unwrap().moved_from, Some(format!("{host}:9")));
            assert_eq!(server.tell(now), None);
        }
    }

    #[test]
    fn servers_are_asked_for_what_fits() {
        let inside: IpAddr = [10, 0, 0, 1].into();
        for (option, peer, form) in [
            ("true", inside, "internal-ip"),
            ("true", [8, 8, 8, 8].into(), "external-ip"),
            ("none", inside, "none"),
            ("external-fqdn", inside, "external-fqdn"),
        ] {
            let (_, server) = watched(option);
            let request = String::from_utf8(server.settings.request(Some(peer))).unwrap();
            assert!(request.ends_with(&format!("${}\r\n{form}\r\n", form.len())), "{request}");
        }
        let (mut pool, mut server) = watched("true");
        let yaml = "a: {listen: 127.0.0.1:1, redis: true, server_tls: true, servers: ['127.0.0.1:9:1 s']}\n";
        let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
        let secured = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot.pools.remove(0);
        pool.server_tls = secured.server_tls;
        server.settings = Settings::of(&pool, &pool.servers[0]).unwrap();
        let request = String::from_utf8(server.settings.request(Some(inside))).unwrap();
        assert!(request.contains("internal-fqdn"), "{request}");
    }
}
