//! Operators: their commands, and the status of the instance.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cashew_api::{self as api, EventList, Operation};
use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Route, Server, ServerGroup, TopologyState};
use cashew_control::{ToChild, seal};
use cashew_metrics::{
    EventKind, ExportCounter, ExportKind, MemberState, PoolCounter, PoolGauge, ServerCounter,
    UserStat, WallClock, monotonic_ms,
};
use cashew_placement::SHARE_WHOLE;
use cashew_process::log::EventRecord;
use cashew_tls::Identity;
use rustix::event::PollFlags;
use serde::Serialize;
use tracing::{error, info, warn};

use super::server_drains::ServerDrains;
use super::{Master, Phase, Source, workers_of};
use crate::Error;
use crate::audited::{Principal, audited};
use crate::background_task::BackgroundTask;
use crate::child::Role;
use crate::command::{Command, Reply};
use crate::control_socket::{ControlSocket, default_paths};
use crate::fleet::Life;
use crate::interests::Interests;
use crate::listeners::Listeners;
use crate::member::Member;
use crate::state::{OperatorsState, Pack};
use crate::status::{
    AccessLogStatus, AdminStatus, AuditLogStatus, CacheStatus, CertificateStatus,
    ExternalAuthStatus, MemberStatus, Outcome, PoolStatus, ServerStatus, ShardStatus, Status,
    TracingStatus, UserStatus, WorkerStatus,
};
use crate::unix_socket::UnixSocket;
use crate::watchdog::STARVED_MAX;

/// Users of a pool that a status tells of.
const USERS_SHOWN_MAX: usize = 50;

/// Lines of an answer by HTTP besides its outcome, and characters of each: the admin process keeps no more.
const HTTP_LINES_MAX: usize = 100;
const HTTP_LINE_SIZE_MAX: usize = 1000;

pub(super) struct Operators {
    /// `None` if the default path does not work.
    socket: Option<ControlSocket>,
    /// By number: they finish in any order.
    digesting: BTreeMap<u64, Digesting>,
    last_digesting: u64,
    pub(super) last_reload: Option<Outcome>,
    pub(super) server_drains: ServerDrains,
    /// Answers to those who ask by HTTP.
    to_http: Rc<RefCell<VecDeque<HttpAnswer>>>,
}

/// A status without its digests, which take a while for pools with many servers.
struct Digesting {
    reply: Box<dyn Reply>,
    status: Status,
    background_task: BackgroundTask<Vec<String>>,
}

impl Operators {
    /// Whether the last instance of this configuration was killed: its socket is still there, and
    /// its workers may be for a moment.
    pub(super) fn were_abandoned(snapshot: &Snapshot, conf_file: &Path) -> bool {
        let paths = match &snapshot.global.control_socket {
            Some(path) => vec![path.clone()],
            None => default_paths(conf_file).unwrap_or_default(),
        };
        let is_refused = |path: &PathBuf| {
            let refused = UnixStream::connect(path).err();
            refused.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        paths.iter().any(is_refused)
    }

    pub(super) fn open(snapshot: &Snapshot, conf_file: &Path) -> Result<Self, Error> {
        let socket = match &snapshot.global.control_socket {
            Some(path) => Some(ControlSocket::at(path)?),
            None => match ControlSocket::at_one_of(&default_paths(conf_file).unwrap_or_default()) {
                Ok(socket) => Some(socket),
                Err(error) => {
                    warn!("{error}; cashew reload, upgrade and status will not find this instance");
                    None
                }
            },
        };
        if let Some(socket) = &socket {
            info!("operators can connect at {}", socket.path().display());
        }
        let to_http = Rc::default();
        Ok(Self {
            socket,
            digesting: BTreeMap::new(),
            last_digesting: 0,
            last_reload: None,
            server_drains: ServerDrains::default(),
            to_http,
        })
    }

    /// For the next program.
    pub(super) fn state(&self, pack: &mut Pack) -> io::Result<OperatorsState> {
        let socket = self.socket.as_ref().map(|socket| socket.state(pack)).transpose()?;
        let last_reload = self.last_reload.clone();
        Ok(OperatorsState { socket, last_reload, server_drains: self.server_drains.state() })
    }

    /// `socket` is the descriptor of the socket in the state.
    pub(super) fn resume(state: OperatorsState, socket: Option<OwnedFd>) -> Self {
        let resume = |(state, fd)| ControlSocket::new(UnixSocket::resume(state, fd));
        let socket = state.socket.zip(socket).map(resume);
        Self {
            socket,
            digesting: BTreeMap::new(),
            last_digesting: 0,
            last_reload: state.last_reload,
            server_drains: ServerDrains::resume(state.server_drains, Instant::now()),
            to_http: Rc::default(),
        }
    }

    /// Whether threads work on answers, or answers wait; they do not survive an exec.
    pub(super) fn is_working(&self) -> bool {
        !self.digesting.is_empty() || !self.to_http.borrow().is_empty()
    }

    pub(super) fn add_interests<'a>(&'a self, interests: &mut Interests<'a, Source>) {
        for (fd, flags) in self.socket.iter().flat_map(ControlSocket::interest) {
            interests.add(Source::Operators, fd, flags);
        }
        for (&number, digesting) in &self.digesting {
            interests.add(
                Source::Digested(number),
                digesting.background_task.as_fd(),
                PollFlags::IN,
            );
        }
    }

    fn digest(&mut self, digesting: Digesting) {
        self.last_digesting += 1;
        self.digesting.insert(self.last_digesting, digesting);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.socket.as_ref()?.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Some(socket) = &mut self.socket {
            socket.handle_timeout(now);
        }
    }

    /// Passes answers to their operators.
    pub(super) fn deliver(&mut self, now: Instant) {
        if let Some(socket) = &mut self.socket {
            socket.deliver(now);
        }
    }

    /// The socket of the next configuration, if it differs from the current one.
    pub(super) fn bind_next(
        &self,
        next: &Snapshot,
        conf_file: &Path,
    ) -> Result<Option<UnixSocket>, String> {
        let held = self.socket.as_ref().map(ControlSocket::path);
        match (&next.global.control_socket, held) {
            (Some(path), held) if held != Some(path) => {
                ControlSocket::bind(path).map(Some).map_err(|error| error.to_string())
            }
            (None, Some(held)) => {
                let paths = default_paths(conf_file).unwrap_or_default();
                if paths.iter().any(|path| path == held) {
                    return Ok(None);
                }
                // As at the start, a default path may fail.
                let bound = ControlSocket::bind_one_of(&paths);
                Ok(bound.inspect_err(|error| warn!("{error}; it stays where it is")).ok())
            }
            (Some(_) | None, _) => Ok(None),
        }
    }

    /// Operators who wait for an answer are kept.
    pub(super) fn move_to(&mut self, socket: UnixSocket) {
        info!("operators can connect at {} from now on", socket.path().display());
        match &mut self.socket {
            Some(held) => held.move_to(socket),
            None => self.socket = Some(ControlSocket::new(socket)),
        }
    }
}

fn certificates_of(pool: &Pool) -> Vec<CertificateStatus> {
    let identities = pool.tls.iter().flat_map(|tls| &tls.identities);
    let status = |identity: &Identity| CertificateStatus {
        file: identity.file.clone(),
        names: identity.names.clone(),
        expires_at: identity.expires_at,
    };
    identities.map(status).collect()
}

/// A line or an outcome for somebody who asks by HTTP, and what was asked for in a sealed memfd.
type HttpAnswer = (ToChild, Option<Rc<OwnedFd>>);

/// The reply to somebody who asks by HTTP, by way of the admin process.
struct ByHttp {
    number: u64,
    lines: usize,
    answers: Rc<RefCell<VecDeque<HttpAnswer>>>,
    /// Of an answer that has more than lines.
    document: Option<io::Result<OwnedFd>>,
}

impl ByHttp {
    fn push(&self, text: &str, is_ok: Option<bool>, unchanged: bool, memfd: Option<OwnedFd>) {
        let text = text.chars().take(HTTP_LINE_SIZE_MAX).collect();
        let message = ToChild::Operated { number: self.number, text, is_ok, unchanged };
        self.answers.borrow_mut().push_back((message, memfd.map(Rc::new)));
    }

    fn keep<T: Serialize>(&mut self, document: &T) {
        let json = serde_json::to_vec(document).map_err(io::Error::from);
        self.document = Some(json.and_then(|json| seal(&json)));
    }
}

impl Reply for ByHttp {
    fn line(&mut self, text: &str) {
        self.lines += 1;
        if self.lines <= HTTP_LINES_MAX {
            self.push(text, None, false, None);
        }
    }

    fn status(&mut self, status: Status) {
        self.keep(&status);
    }

    fn events(&mut self, events: Vec<EventRecord>) {
        self.keep(&EventList { events });
    }

    fn done(mut self: Box<Self>) {
        match self.document.take().transpose() {
            Ok(memfd) => self.push("", Some(true), false, memfd),
            Err(error) => self.failed(&format!("the answer cannot be handed on: {error}")),
        }
    }

    fn unchanged(self: Box<Self>) {
        self.push("", Some(true), true, None);
    }

    fn failed(self: Box<Self>, why: &str) {
        self.push(why, Some(false), false, None);
    }
}

impl Master {
    pub(super) fn handle_operators(&mut self, now: Instant) {
        let Some(socket) = &mut self.operators.socket else { return };
        let commands: Vec<(Command, Box<dyn Reply>)> = socket
            .handle(now)
            .into_iter()
            .map(|(id, command)| {
                let (audit, asker) = (self.shared.audit(), socket.asker(id));
                let reply = audited(audit, asker, &command, socket.reply(id));
                (command, reply)
            })
            .collect();
        for (command, reply) in commands {
            self.command(command, reply, now);
        }
    }

    /// Does what somebody asks by HTTP.
    pub(super) fn operate(&mut self, number: u64, command: &str, place: String, now: Instant) {
        let answers = Rc::clone(&self.operators.to_http);
        let reply = Box::new(ByHttp { number, lines: 0, answers, document: None });
        // The admin process has seen the token. What it may have done is for the master to say all the same.
        let may_operate = self.current.snapshot.global.operate_token.is_some();
        let command = match serde_json::from_str::<Command>(command) {
            Ok(command) if may_be_by_http(&command, may_operate) => command,
            Ok(_) | Err(_) => return reply.failed("this cannot be done by HTTP"),
        };
        let asker = Principal { place, user: "role operate".to_owned() };
        let reply = audited(self.shared.audit(), asker, &command, reply);
        self.command(command, reply, now);
    }

    /// Passes answers to those who ask by HTTP, as fast as the admin process reads them.
    pub(super) fn tell_operators(&mut self, now: Instant) {
        let mut answers = self.operators.to_http.take();
        if !self.is_admin_notified() {
            // Nobody is there who knows what was asked.
            return;
        }
        while self.members[&Role::Admin].reads()
            && let Some((message, memfd)) = answers.pop_front()
        {
            self.post(Role::Admin, message, memfd.into_iter().collect(), now);
        }
        self.operators.to_http.replace(answers);
    }

    /// The groups of several servers of a pool, and who is who in them.
    fn shards_of(&self, index: u32) -> Vec<ShardStatus> {
        let pool = &self.current.snapshot.pools[index as usize];
        let primaries = self.rings.primaries(index);
        let name = |server: u32| pool.servers[server as usize].name.clone();
        let shard = |(number, group): (u32, ServerGroup)| {
            let primary = primaries.get(&number).copied().unwrap_or(group.primary);
            let replicas = group.members().filter(|&server| server != primary);
            let replicas = replicas.map(name).collect();
            ShardStatus { name: group.name, primary: name(primary), replicas }
        };
        pool.replicated().into_iter().map(shard).collect()
    }

    pub(super) fn publish_status(&mut self, reply: Box<dyn Reply>) {
        let status = self.status();
        let snapshot = Arc::clone(&self.current.snapshot);
        let pools = 0..self.current.snapshot.pools.len() as u32;
        let states: Vec<TopologyState> = pools.map(|pool| self.rings.topology(pool)).collect();
        let digest = move || {
            let rings = snapshot.pools.iter().zip(&states).map(|(pool, state)| pool.ring(state));
            rings.map(|ring| format!("{:016x}", ring.digest())).collect()
        };
        match BackgroundTask::start("digest", digest) {
            Ok(background_task) => {
                self.operators.digest(Digesting { reply, status, background_task })
            }
            Err(error) => reply.failed(&format!("cannot compute the digests: {error}")),
        }
    }

    /// The events that are kept, of all processes.
    pub(super) fn publish_events(&self, since: u64, kind: Option<&str>, mut reply: Box<dyn Reply>) {
        if let Some(unknown) = kind.filter(|kind| EventKind::named(kind).is_none()) {
            return reply.failed(&format!("there is no kind of events '{unknown}'"));
        }
        let events = self.shared.events().since(since).into_iter();
        let wanted = events.filter(|event| kind.is_none_or(|kind| event.kind.name() == kind));
        reply.events(wanted.map(EventRecord::from).collect());
        reply.done();
    }

    pub(super) fn handle_digested(&mut self, number: u64) {
        let Some(digesting) = self.operators.digesting.remove(&number) else { return };
        let Digesting { mut reply, mut status, background_task } = digesting;
        let Some(digests) = background_task.finish() else {
            error!("computing the digests panicked");
            return reply.failed("computing the digests panicked");
        };
        for (pool, digest) in status.pools.iter_mut().zip(digests) {
            pool.digest = digest;
        }
        reply.status(status);
        reply.done();
    }

    /// A short summary.
    pub(super) fn summary(&self) -> String {
        let snapshot = &self.current.snapshot;
        let workers = workers_of(snapshot);
        format!("serving: epoch {}, workers: {workers}", snapshot.epoch)
    }

    /// Pings systemd's watchdog: the master's loop runs and a worker serves.
    pub(super) fn show_life(&mut self, now: Instant) {
        if self.notify.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        let is_well = |slot| {
            let beat = self.epoch_of(slot).segments.header(slot).heartbeat_ms;
            monotonic_ms().saturating_sub(beat) < STARVED_MAX.as_millis() as u64
        };
        let is_well = self.phase != Phase::Serving || self.serving().any(|(slot, _)| is_well(slot));
        self.notify.handle_timeout(now, || is_well);
    }

    /// What discovery has found out of the servers of a pool that has replicas.
    fn members_of(&self, index: u32, pool: &Pool) -> Vec<MemberStatus> {
        if !pool.has_replicas() {
            return Vec::new();
        }
        let (segments, board) = (&self.current.segments, self.current.segments.board());
        let layout = segments.layout();
        let is_kept = board.is_kept(layout.pool(index as usize), monotonic_ms());
        let member = |(at, server): (usize, &Server)| {
            let state = match is_kept {
                true => board.member(layout.server(index as usize, at)),
                false => MemberState::default(),
            };
            MemberStatus {
                server: server.name.clone(),
                role: state.role.name().to_owned(),
                fitness: state.fitness.name().to_owned(),
                lag: state.lag,
                is_link_up: state.is_link_up,
                link_down_s: state.link_down_secs,
            }
        };
        pool.servers.iter().enumerate().map(member).collect()
    }

    /// Of what a route's nodes keep of replies.
    fn cache_status(&self, index: u32, pool: &Pool) -> Option<CacheStatus> {
        let kept = pool.route.as_ref().map_or_else(Vec::new, Route::kept);
        if kept.is_empty() {
            return None;
        }
        let segments = &self.current.segments;
        let id = segments.layout().pool(index as usize);
        Some(CacheStatus {
            hits: segments.sum_pool_counter(id, PoolCounter::CacheHits),
            misses: segments.sum_pool_counter(id, PoolCounter::CacheMisses),
            bytes: segments.sum_pool_gauge(id, PoolGauge::CacheBytes),
            replies: segments.sum_pool_gauge(id, PoolGauge::CacheEntries),
            bytes_max: kept.iter().map(|keep| keep.bytes).sum(),
            refused_servers: segments.max_pool_gauge(id, PoolGauge::CacheRefused),
        })
    }

    /// Of users who have limits.
    fn user_statuses(&self, index: u32, pool: &cashew_config::snapshot::Pool) -> Vec<UserStatus> {
        let segments = &self.current.segments;
        let id = segments.layout().pool(index as usize);
        let users = pool.limited_users().enumerate().map(|(place, user)| {
            let user_id = segments.layout().user(id, place);
            let count = |stat| segments.sum_user(user_id, stat);
            UserStatus {
                name: user.name.clone(),
                requests: count(UserStat::Requests),
                bytes: count(UserStat::Bytes),
                refused: count(UserStat::Refused),
                delayed: count(UserStat::Delayed),
                connections: count(UserStat::Connections),
                in_flight: count(UserStat::InFlight),
            }
        });
        let mut users: Vec<UserStatus> = users.collect();
        users.sort_by_key(|user| Reverse((user.refused + user.delayed, user.requests)));
        users.truncate(USERS_SHOWN_MAX);
        users
    }

    fn status(&self) -> Status {
        let state = match self.phase {
            Phase::Starting => "starting",
            Phase::Stopping => "stopping",
            Phase::Serving if self.drain.is_some() => "draining",
            Phase::Serving if self.reload.is_under_way() => "reloading",
            Phase::Serving if self.upgrade.is_under_way() => "upgrading",
            Phase::Serving => "serving",
        };
        let workers = self.workers().map(|(slot, member)| self.worker_status(slot, member));
        let single = |role| {
            self.members.get(&role).map(|member| AdminStatus {
                pid: pid(member),
                state: state_of(member).into(),
                restarts: member.restarts,
            })
        };
        let (admin, discovery) = (single(Role::Admin), single(Role::Discovery));
        let now_ms = monotonic_ms();
        let pause_of = |pool: &str| self.shared.pause(self.quotas.number(pool)?, now_ms);
        let segments = &self.current.segments;
        let count = |index: u32, counter| {
            segments.sum_pool_counter(segments.layout().pool(index as usize), counter)
        };
        let pool = |(index, pool): (u32, &cashew_config::snapshot::Pool)| {
            let mut shards = self.shards_of(index);
            // One that has all servers is told beside their number.
            let only = shards.pop_if(|_| pool.is_one_shard());
            PoolStatus {
                pose: pool.pose.as_ref().map(ToString::to_string).unwrap_or_default(),
                command_policy: pool.policy().to_string(),
                commands_refused: count(index, PoolCounter::CommandsRefused),
                auth_failures: count(index, PoolCounter::AuthFailures),
                external_auth: pool.external_auth.as_ref().map(|auth| ExternalAuthStatus {
                    source: auth.source.to_string(),
                    asked: count(index, PoolCounter::ExternalAuthAsked),
                    refused: count(index, PoolCounter::ExternalAuthRefused),
                    outages: count(index, PoolCounter::ExternalAuthOutages),
                    cached: count(index, PoolCounter::ExternalAuthCached),
                    lost_at: segments.sum_pool_gauge(
                        segments.layout().pool(index as usize),
                        PoolGauge::ExternalAuthLost,
                    ),
                }),
                users: self.user_statuses(index, pool),
                hedges_sent: count(index, PoolCounter::HedgesSent),
                hedges_won: count(index, PoolCounter::HedgesWon),
                reads_coalesced: count(index, PoolCounter::ReadsCoalesced),
                cache: self.cache_status(index, pool),
                hot_keys: self.hot_key_statuses(index, pool),
                hot_waits: self.hot_moves.waits_of(&pool.name, Instant::now()),
                requests_retried: count(index, PoolCounter::RequestsRetried),
                redirects_passed_on: count(index, PoolCounter::RedirectsPassedOn),
                retries_denied: count(index, PoolCounter::RetriesDenied),
                hedges_denied: count(index, PoolCounter::HedgesDenied),
                paused_ms: pause_of(&pool.name).map_or(0, |pause| pause.until_ms - now_ms),
                server_states: self.server_states(index, pool),
                groups: self.discovered.groups_of(pool),
                sentinels: self.discovered.sentinels_of(pool),
                cluster: self.maps.status_of(pool),
                source: self.found.status_of(pool),
                server_maintenance: self.relocations.statuses_of(pool),
                source_changes: pool.servers_from.as_ref().map_or(0, |from| from.changes),
                source_change: self.found.last_change_of(pool),
                members: self.members_of(index, pool),
                paused_writes_only: pause_of(&pool.name).is_some_and(|pause| pause.writes_only),
                name: pool.name.clone(),
                listen: pool.listen.to_string(),
                tls_at: pool
                    .tls
                    .as_ref()
                    .map(|_| pool.tls_listen.as_ref().unwrap_or(&pool.listen).to_string())
                    .unwrap_or_default(),
                certificates: certificates_of(pool),
                leads_to: pool.route.as_ref().map_or_else(Vec::new, |route| {
                    route.pools().into_iter().map(str::to_owned).collect()
                }),
                servers: pool.found().len() as u32,
                live: self.rings.live(index).iter().filter(|live| **live).count() as u32,
                primary: only.map_or_else(String::new, |only| only.primary),
                shards,
                open_since: self
                    .rings
                    .is_open(index)
                    .then(|| segments.opened_ms(segments.layout().pool(index as usize)))
                    .flatten()
                    .map(|ms| WallClock::now().unix_ms(ms) / 1000),
                ring_version: self.rings.version(index),
                digest: String::new(),
            }
        };
        Status {
            version: self.program.version.clone(),
            pid: std::process::id(),
            state: state.into(),
            configuration: self.conf_file.clone(),
            uptime_s: self.started.elapsed().unwrap_or_default().as_secs(),
            epoch: self.current.snapshot.epoch,
            workers: workers.collect(),
            admin,
            discovery,
            pools: (0..).zip(&self.current.snapshot.pools).map(pool).collect(),
            moves: self.moves.statuses(&self.current.snapshot),
            tokens_refused: self.shared.audit().tokens_refused(),
            statistics: self.listeners.as_ref().and_then(Listeners::stats_address),
            log_file: self.current.snapshot.global.log_file.clone(),
            log_level: Some(self.log.level()),
            log_lines_lost: self.shared.log_lines_lost(),
            tracing: self.tracing_status(),
            access_log: self.access_log_status(),
            audit_log: self.audit_log_status(),
            drain: self.drain.as_ref().map(|drain| drain.status(Instant::now())),
            last_reload: self.operators.last_reload.clone(),
            last_upgrade: self.upgrade.last.clone(),
        }
    }

    fn tracing_status(&self) -> Option<TracingStatus> {
        let tracing = self.current.snapshot.global.tracing.as_ref()?;
        let exports = self.shared.exports();
        let failure = exports.last_failure(ExportKind::Tracing);
        Some(TracingStatus {
            endpoint: tracing.endpoint.to_string(),
            spans: exports.count(ExportCounter::Spans),
            spans_dropped: exports.count(ExportCounter::SpansDropped),
            errors: exports.count(ExportCounter::SpanErrors),
            last_error_at: failure.as_ref().map(|(_, at)| *at),
            last_error: failure.map(|(why, _)| why),
        })
    }

    fn audit_log_status(&self) -> Option<AuditLogStatus> {
        let audit_log = self.current.snapshot.global.audit_log.as_ref()?;
        let audit = self.shared.audit();
        let failure = audit.last_failure();
        Some(AuditLogStatus {
            file: audit_log.file.clone(),
            lines: audit.lines(),
            lines_lost: audit.lost(),
            last_error_at: failure.as_ref().map(|(_, at)| *at),
            last_error: failure.map(|(why, _)| why),
        })
    }

    fn access_log_status(&self) -> Option<AccessLogStatus> {
        let access_log = self.current.snapshot.global.access_log.as_ref()?;
        let exports = self.shared.exports();
        let failure = exports.last_failure(ExportKind::AccessLog);
        Some(AccessLogStatus {
            file: access_log.file.clone(),
            lines: exports.count(ExportCounter::AccessLines),
            lines_lost: exports.count(ExportCounter::AccessLinesLost),
            last_error_at: failure.as_ref().map(|(_, at)| *at),
            last_error: failure.map(|(why, _)| why),
        })
    }

    fn server_states(&self, index: u32, pool: &cashew_config::snapshot::Pool) -> Vec<ServerStatus> {
        let segments = &self.current.segments;
        let clock = WallClock::now();
        let unix_s = |ms| clock.unix_ms(ms) / 1000;
        let shards = self.shards_of(index);
        let role_of = |name: &String| {
            let is_primary = |shard: &ShardStatus| &shard.primary == name;
            match shards.iter().any(is_primary) {
                true => "primary",
                false if shards.iter().any(|shard| shard.replicas.contains(name)) => "replica",
                false => "",
            }
        };
        let status = |(at, server): (u32, &cashew_config::snapshot::Server)| {
            let id = segments.layout().server(index as usize, at as usize);
            let (state, error) = (segments.server_state(id), segments.last_error(id));
            let share = self.rings.share(index, at);
            ServerStatus {
                name: server.name.clone(),
                address: server.endpoint.to_string(),
                role: role_of(&server.name).to_owned(),
                drained_permille: u32::from(SHARE_WHOLE - share),
                state: state.health.name().to_owned(),
                is_up: state.health.is_up(),
                since: Some(state.since_ms).filter(|&ms| ms > 0).map(unix_s),
                cause: state.cause.text().to_owned(),
                last_error: error.map(|error| error.cause.text().to_owned()),
                last_error_at: error.map(|error| unix_s(error.at_ms)),
                writes_missed: segments.sum_server_counter(id, ServerCounter::WritesMissed),
                to_forget: segments.spool(id).depth,
            }
        };
        (0..).zip(&pool.servers).map(status).collect()
    }

    fn worker_status(&self, slot: u32, member: &Member) -> WorkerStatus {
        let header = self.epoch_of(slot).segments.header(slot);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let runs = member.running.is_some();
        WorkerStatus {
            slot,
            rank: member.rank,
            pid: pid(member),
            state: state_of(member).into(),
            uptime_s: if runs { since.as_secs().saturating_sub(header.started_at) } else { 0 },
            sessions: self.clients_of(slot),
            busy_permille: if runs { header.busy } else { 0 },
            restarts: member.restarts,
        }
    }
}

/// Whether somebody may ask for it who has come by HTTP.
fn may_be_by_http(command: &Command, may_operate: bool) -> bool {
    match Operation::of(command).map(|(operation, _)| operation.role()) {
        None => false,
        Some(api::Role::Read) => true,
        Some(api::Role::Operate) => may_operate,
    }
}

/// `None` if it is a thread.
fn pid(member: &Member) -> Option<u32> {
    member.running.as_ref()?.child.pid()
}

fn state_of(member: &Member) -> &'static str {
    match member.slot.life() {
        Life::Pending if member.slot.is_starting() => "starting",
        Life::Pending => "restarting",
        Life::Serving => "serving",
        Life::Retiring => "retiring",
        Life::Going => "stopping",
    }
}

#[cfg(test)]
mod tests {
    use cashew_control::MESSAGE_BYTES_MAX;

    use super::*;

    fn reply(answers: &Rc<RefCell<VecDeque<HttpAnswer>>>) -> Box<ByHttp> {
        Box::new(ByHttp { number: 7, lines: 0, answers: Rc::clone(answers), document: None })
    }

    #[test]
    fn answers_by_http_are_cut_to_what_is_kept_of_them() {
        let answers: Rc<RefCell<VecDeque<HttpAnswer>>> = Rc::default();
        let mut reply = reply(&answers);
        // Each character takes six bytes on the way.
        let long = "\u{1}".repeat(MESSAGE_BYTES_MAX);
        (0..2 * HTTP_LINES_MAX).for_each(|_| reply.line(&long));
        reply.failed(&long);
        let answers = answers.take();
        assert_eq!(answers.len(), HTTP_LINES_MAX + 1);
        for (answer, _) in &answers {
            assert!(serde_json::to_vec(answer).unwrap().len() <= MESSAGE_BYTES_MAX);
        }
        let is_last = |it: &ToChild| matches!(it, ToChild::Operated { is_ok: Some(false), .. });
        assert!(answers.back().is_some_and(|(answer, _)| is_last(answer)));
    }

    #[test]
    fn what_is_asked_for_by_http_comes_in_a_memfd() {
        let answers: Rc<RefCell<VecDeque<HttpAnswer>>> = Rc::default();
        let mut reply = reply(&answers);
        reply.status(Status { epoch: 7, ..Status::default() });
        reply.done();
        let (last, memfd) = answers.borrow_mut().pop_front().unwrap();
        assert!(matches!(last, ToChild::Operated { is_ok: Some(true), unchanged: false, .. }));
        let json = cashew_control::unseal(memfd.unwrap()).unwrap();
        let status: Status = serde_json::from_slice(&json).unwrap();
        assert_eq!(status.epoch, 7);
    }

    #[test]
    fn another_program_is_not_for_those_who_come_by_http() {
        for (command, may_read, may_operate) in [
            (Command::Status, true, true),
            (Command::Reload { dry_run: true }, false, true),
            (Command::Upgrade { binary: None }, false, false),
        ] {
            assert_eq!(may_be_by_http(&command, false), may_read, "{command:?}");
            assert_eq!(may_be_by_http(&command, true), may_operate, "{command:?}");
        }
    }
}
