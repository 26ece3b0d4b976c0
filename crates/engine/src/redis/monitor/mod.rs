//! MONITOR: clients that are told what others of their pool ask, of this worker and of all others.
//!
//! Requests are told of when they are dispatched. Of a pool that anybody monitors, here or
//! elsewhere, no request takes the fast path. What is overheard is collected, up to a limit for
//! each turn: whoever drives the engine fetches it ([`Engine::take_observed`]), fills the clients'
//! addresses in, and passes the lines to the monitors here ([`Engine::handle_observed`]) and to the
//! other workers. What finds no room is left out, and counted.

mod line;
mod window;

use cashew_metrics::PoolCounter;
use cashew_protocol::Span;
use cashew_protocol::redis::{Access, Command, Group, Local, Lookup, Rule, SessionRule};
use cashew_protocol::resp;

use crate::base::action::Action;
use crate::base::id::{ClientId, ConnId, ListenerId, RequestId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::client::Client;
use crate::downstream::command_policy::is_open_to_all;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
pub use line::{Hearing, Observed};
use line::{head, write_missed, write_request};
use window::{HELD_MS, Released, Window};

/// Clients of one pool that may monitor at one worker: each of them costs every request.
const MONITORS_MAX: usize = 64;
/// Text of the lines of one turn, for all monitors.
const TURN_MAX: usize = 1 << 20;
/// Of that memory, how much is kept for the next turn.
const KEPT_MAX: usize = 64 * 1024;
/// For how long other workers are told when nobody asks for it again.
const WATCHED_MS: u64 = 5_000;
/// How long other workers are waited for.
const CONFIRM_MS: u64 = 1_000;
/// How often a monitor is told that lines are missing.
const MISSED_MS: u64 = 1_000;

/// A client's part.
pub(crate) struct Monitor {
    /// Its request, until it is known that all workers tell.
    pending: Option<Pending>,
    /// How many lines had come when it was: they are not for it.
    since: u64,
    /// It is about to go, when it has heard what was asked before.
    leaves_at: Option<Time>,
    /// Since when too much waits for it.
    strained_since: Time,
}

struct Pending {
    request: RequestId,
    since: Time,
}

/// A pool's part.
pub(crate) struct Watch {
    /// The clients here that monitor.
    monitors: Vec<ClientId>,
    /// All other workers tell them.
    is_confirmed: bool,
    /// What they are told next, if several workers tell.
    window: Window,
    /// Until when those of other workers want to be told.
    elsewhere_until: Time,
    /// Requests that these were not told of.
    left_out: u64,
    /// Requests that the monitors here were not told of, nor that there were any.
    missed: u64,
    missed_told_at: Time,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            monitors: Vec::new(),
            is_confirmed: false,
            window: Window::default(),
            elsewhere_until: Time::ZERO,
            left_out: 0,
            missed: 0,
            missed_told_at: Time::ZERO,
        }
    }

    fn is_elsewhere(&self) -> bool {
        self.elsewhere_until > Time::ZERO
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.monitors.is_empty() || self.is_elsewhere()
    }
}

/// What was overheard, and how much more may be.
#[derive(Default)]
pub(crate) struct MonitorRelay {
    observed: Observed,
    /// Bytes that other workers may still be told.
    allowance: usize,
    /// A line while it is written.
    line: Vec<u8>,
    /// To be added to the engine's own time for the time of day.
    wall_offset_us: i64,
}

// Who is told.

impl Engine {
    /// The time of day, in microseconds since 1970; to be told now and then, since nobody says when
    /// it is changed.
    pub fn tell_time(&mut self, wall_us: u64, now: Time) {
        self.monitor_relay.wall_offset_us = wall_us as i64 - now.as_micros() as i64;
    }

    /// MONITOR. Answered when all workers have begun to tell: what is asked after that is told.
    pub(crate) fn begin_monitor(&mut self, client: ClientId) -> Plan {
        if self.clients[client].modes.monitor.is_some() {
            // As Redis: no answer at all.
            return Plan::Done;
        }
        if self.clients[client].requests > 0 {
            return Plan::Wait;
        }
        let listener = self.clients[client].listener;
        if self.redis_listeners[listener].watch.monitors.len() >= MONITORS_MAX {
            return self.reply_error(client, "ERR too many clients monitor this pool already");
        }
        // It cannot ask for anything that this would be for.
        self.end_transaction(client);
        let pending = Pending { request: self.new_request(client), since: self.now };
        let owner = &mut self.clients[client];
        // Nothing is dispatched before it is answered.
        owner.fenced = true;
        owner.modes.enter().monitor = Some(Monitor {
            pending: Some(pending),
            since: 0,
            leaves_at: None,
            strained_since: Time::NEVER,
        });
        self.update_off_fast_path(client);
        let watch = &mut self.redis_listeners[listener].watch;
        watch.monitors.push(client);
        let (is_confirmed, is_first) = (watch.is_confirmed, watch.monitors.len() == 1);
        self.update_held(listener);
        if is_confirmed {
            self.confirm_monitors(listener);
        } else if is_first {
            self.announce_monitors(listener);
        }
        Plan::Done
    }

    /// All other workers tell of the requests of a pool that is monitored here.
    pub fn handle_monitored(&mut self, listener: ListenerId, now: Time) {
        self.now = now;
        self.confirm_monitors(listener);
    }

    fn confirm_monitors(&mut self, listener: ListenerId) {
        let watch = &mut self.redis_listeners[listener].watch;
        watch.is_confirmed = !watch.monitors.is_empty();
        let since = watch.window.count;
        for client in watch.monitors.clone() {
            let Some(monitor) = self.clients[client].modes.monitor() else { continue };
            let Some(Pending { request, .. }) = monitor.pending.take() else { continue };
            monitor.since = since;
            const OK: &[u8] = b"+OK\r\n";
            self.clients[client].held += OK.len() as u64;
            self.requests[request].hold(OK, &mut self.bufs);
            self.requests[request].done = true;
            self.client_ready(client);
        }
    }

    /// RESET
    pub(crate) fn end_monitor(&mut self, client: ClientId) {
        if self.stop_monitor(client) {
            // It could not be told to leave before.
            self.leave_new(client);
        }
    }

    /// Tells the client no more. Returns whether it was told.
    pub(crate) fn stop_monitor(&mut self, client: ClientId) -> bool {
        let was_told = self.clients[client].modes.end_monitor().is_some();
        if was_told {
            self.forget_monitor(client, self.clients[client].listener);
        }
        was_told
    }

    /// Whether a client that says QUIT or RESET has yet to hear what was asked before: that is to be
    /// looked at again then.
    pub(crate) fn must_hear_first(&mut self, client: ClientId) -> bool {
        let now = self.now;
        let Some(monitor) = self.clients[client].modes.monitor() else { return false };
        if monitor.leaves_at.is_none() {
            self.timers.arm(now.plus_millis(HELD_MS), Timer::Monitors);
        }
        *monitor.leaves_at.get_or_insert(now.plus_millis(HELD_MS)) > now
    }

    /// The client is told no more.
    pub(crate) fn forget_monitor(&mut self, client: ClientId, listener: ListenerId) {
        let watch = &mut self.redis_listeners[listener].watch;
        watch.monitors.retain(|&other| other != client);
        let was_last = watch.monitors.is_empty();
        if was_last {
            watch.missed = 0;
            watch.is_confirmed = false;
            watch.window.release_all();
        }
        self.update_held(listener);
        if was_last {
            self.announce_monitors(listener);
        }
    }

    fn announce_monitors(&mut self, listener: ListenerId) {
        let any = !self.redis_listeners[listener].watch.monitors.is_empty();
        let listener = self.listeners[listener].config.name.clone();
        self.actions.push_back(Action::Monitors { pool: listener, any });
    }

    /// The error for what a monitor may not ask.
    pub(crate) fn refused_while_monitoring(
        &self,
        client: ClientId,
        command: &Command,
    ) -> Option<&'static str> {
        self.clients[client].modes.monitor.as_ref()?;
        let is_allowed = matches!(
            command.rule,
            Rule::Local(_) | Rule::Session(SessionRule::Reset | SessionRule::Monitor)
        );
        if is_allowed {
            return None;
        }
        Some(match command.access {
            // In Redis's words: there a monitor is a kind of replica.
            Access::Read | Access::Walk | Access::Write => {
                "ERR Replica can't interact with the keyspace"
            }
            Access::None => "ERR a client that monitors may ask this gateway only, no server",
        })
    }

    /// Monitors of other workers want to be told of a pool's requests, for a while; or not any more.
    pub fn handle_watched(&mut self, listener: ListenerId, is_watched: bool, now: Time) {
        self.now = now;
        let watch = &mut self.redis_listeners[listener].watch;
        watch.elsewhere_until = if is_watched { now.plus_millis(WATCHED_MS) } else { Time::ZERO };
        self.update_held(listener);
    }

    /// To be called once a second.
    pub(crate) fn maintain_monitors(&mut self) {
        for listener in self.listeners.ids() {
            let watch = &mut self.redis_listeners[listener].watch;
            if !watch.is_on() {
                continue;
            }
            let is_here = !watch.monitors.is_empty();
            if watch.elsewhere_until <= self.now {
                watch.elsewhere_until = Time::ZERO;
                self.update_held(listener);
            }
            if is_here {
                // Who was not there when it was said first has to know, too.
                self.announce_monitors(listener);
                self.confirm_late_monitors(listener);
                self.spread_lines(listener, &Released::default());
                self.cut_strained_monitors(listener);
            }
        }
    }
}

impl Engine {
    /// Some worker hangs, or is too old to tell.
    fn confirm_late_monitors(&mut self, listener: ListenerId) {
        let late = |&client: &ClientId| {
            let monitor = self.clients[client].modes.monitor.as_ref();
            let pending = monitor.and_then(|monitor| monitor.pending.as_ref());
            pending.is_some_and(|pending| self.now.micros_since(pending.since) >= CONFIRM_MS * 1000)
        };
        if self.redis_listeners[listener].watch.monitors.iter().any(late) {
            self.confirm_monitors(listener);
        }
    }
}

// What is told.

impl Engine {
    /// Decides about a request of a pool that somebody monitors.
    #[cold]
    pub(crate) fn plan_observed(
        &mut self,
        client: ClientId,
        lookup: Lookup,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let was_queueing = self.is_queueing(client);
        let was_told = self.clients[client].modes.is_observed;
        let is_asked =
            matches!(lookup, Lookup::Found(command) if !self.is_refused(client, command));
        let plan = self.plan_redis(client, lookup, bytes, args);
        if let Plan::Wait = plan {
            return plan;
        }
        self.clients[client].modes.end_observed();
        if let (Lookup::Found(command), true) = (lookup, is_asked && !was_told) {
            self.audit_redis(client, command, bytes, args);
            let listener = self.clients[client].listener;
            if is_hidden(command) || !self.redis_listeners[listener].watch.is_on() {
                return plan;
            }
            let mut line = std::mem::take(&mut self.monitor_relay.line);
            line.clear();
            write_request(command, bytes, args, 0, &mut line);
            // What is queued is told when it is executed.
            match was_queueing && self.is_queueing(client) && is_queued(command) {
                true => self.queue_line(client, &line),
                false => self.observe(client, self.database_of(client), &line),
            }
            self.monitor_relay.line = line;
        }
        plan
    }

    /// The start of an upload: of the rest of the arguments so many are `missing`.
    #[cold]
    pub(crate) fn observe_upload(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
        missing: usize,
    ) {
        self.audit_redis(client, command, bytes, args);
        let mut line = Vec::new();
        write_request(command, bytes, args, missing, &mut line);
        self.observe(client, self.database_of(client), &line);
    }

    /// Whether it is refused before it is executed. Nobody is told of that here.
    fn is_refused(&self, client: ClientId, command: &Command) -> bool {
        matches!(command.rule, Rule::Refuse(_) | Rule::Unsupported)
            || !(self.clients[client].session.authenticated || is_open_to_all(command))
            || self.refused_while_subscribed(client, command).is_some()
            || self.refused_while_monitoring(client, command).is_some()
    }

    /// Tells of a request that is dispatched now.
    fn observe(&mut self, client: ClientId, database: u32, request: &[u8]) {
        let listener = self.clients[client].listener;
        let watch = &mut self.redis_listeners[listener].watch;
        let has_room = self.monitor_relay.observed.len() < TURN_MAX;
        let (is_here, is_elsewhere) = (!watch.monitors.is_empty(), watch.is_elsewhere());
        let here = is_here && has_room;
        let elsewhere = is_elsewhere && has_room && self.monitor_relay.allowance > 0;
        watch.left_out += u64::from(is_elsewhere && !elsewhere);
        if here || elsewhere {
            let head = head(self.wall_us(), database);
            let hearing = Hearing { listener, client: self.client_conn(client), here, elsewhere };
            let before = self.monitor_relay.observed.len();
            self.monitor_relay.observed.push(hearing, &head, request);
            if elsewhere {
                let len = self.monitor_relay.observed.len() - before;
                self.monitor_relay.allowance = self.monitor_relay.allowance.saturating_sub(len);
            }
        }
        if is_here && !here {
            self.miss_lines(listener, 1);
        }
    }

    /// By which the client's next request will be executed, if it is queued.
    fn database_of(&self, client: ClientId) -> u32 {
        let Client { session, modes, .. } = &self.clients[client];
        let backend = &self.backends[self.backend_of(client)];
        let transaction = modes.transaction.as_ref();
        match transaction.and_then(|transaction| transaction.exec_effects.database()) {
            Some(selected) => backend.database_of(selected),
            None => backend.database_of(session.database),
        }
    }

    fn queue_line(&mut self, client: ClientId, line: &[u8]) {
        let database = self.database_of(client);
        let Some(transaction) = self.clients[client].modes.transaction() else { return };
        let before = transaction.size();
        transaction.observe(database, line);
        self.bufs.charge(transaction.size() - before);
    }

    /// Tells of what a transaction queued that is executed now.
    pub(crate) fn observe_queued(&mut self, client: ClientId) {
        let Some(transaction) = self.clients[client].modes.transaction() else { return };
        let before = transaction.size();
        let (lines, unheard) = transaction.take_observed();
        self.bufs.discharge(before - transaction.size());
        let listener = self.clients[client].listener;
        let watch = &mut self.redis_listeners[listener].watch;
        if !watch.is_on() {
            return;
        }
        if watch.is_elsewhere() {
            watch.left_out += u64::from(unheard);
        }
        if !watch.monitors.is_empty() {
            self.miss_lines(listener, u64::from(unheard));
        }
        for line in lines.split(|&byte| byte == b'\n') {
            let mut parts = line.splitn(2, |&byte| byte == b' ');
            let database = parts.next().and_then(resp::integer).unwrap_or_default();
            if let Some(request) = parts.next() {
                self.observe(client, u32::try_from(database).unwrap_or_default(), request);
            }
        }
    }

    fn wall_us(&self) -> i64 {
        self.now.as_micros() as i64 + self.monitor_relay.wall_offset_us
    }

    /// The lines since the last call, if any; to be given back with
    /// [`Engine::return_observed`].
    #[inline]
    pub fn take_observed(&mut self) -> Option<Observed> {
        (!self.monitor_relay.observed.is_empty())
            .then(|| std::mem::take(&mut self.monitor_relay.observed))
    }

    pub fn return_observed(&mut self, mut observed: Observed) {
        observed.clear(KEPT_MAX);
        self.monitor_relay.observed = observed;
    }

    /// So many bytes of lines, about, may be overheard for other workers from here on.
    pub fn allow_elsewhere(&mut self, bytes: usize) {
        self.monitor_relay.allowance = bytes;
    }

    /// A pool of which other workers were to be told, and how many requests were left out of that
    /// since the last call.
    pub fn poll_left_out(&mut self) -> Option<(ListenerId, u64)> {
        let mut pools = self.redis_listeners.iter_mut().zip((0..).map(ListenerId::new));
        let (state, pool) = pools.find(|(state, _)| state.watch.left_out > 0)?;
        Some((pool, std::mem::take(&mut state.watch.left_out)))
    }

    /// Passes lines on to the monitors here; `missed` others were left out on the way.
    pub fn handle_observed(&mut self, listener: ListenerId, lines: &[u8], missed: u64, now: Time) {
        self.now = now;
        // It may be gone since.
        let state = self.redis_listeners.get(listener);
        if state.is_none_or(|state| state.watch.monitors.is_empty()) {
            return;
        }
        self.miss_lines(listener, missed);
        let wall_us = self.wall_us();
        let window = &mut self.redis_listeners[listener].watch.window;
        if self.workers <= 1 && window.is_empty() {
            // They are in order.
            let lines = Released { text: lines.to_vec(), ends: Vec::new() };
            return self.spread_lines(listener, &lines);
        }
        window.push(lines, wall_us, now);
        match window.is_full() {
            true => self.release_lines_of(listener),
            false => self.arm_window(listener),
        }
    }

    /// Tells what has been held for long enough, and lets those go who waited for it.
    pub(crate) fn release_lines(&mut self) {
        for listener in self.listeners.ids() {
            if !self.redis_listeners[listener].watch.monitors.is_empty() {
                self.release_lines_of(listener);
            }
        }
    }

    fn release_lines_of(&mut self, listener: ListenerId) {
        let window = &mut self.redis_listeners[listener].watch.window;
        if window.armed.is_some_and(|armed| armed <= self.now) {
            window.armed = None;
        }
        let released = window.release(self.now);
        self.arm_window(listener);
        if !released.text.is_empty() {
            self.spread_lines(listener, &released);
        }
        for client in self.redis_listeners[listener].watch.monitors.clone() {
            let monitor = self.clients[client].modes.monitor.as_ref();
            let leaves_at = monitor.and_then(|monitor| monitor.leaves_at);
            if leaves_at.is_some_and(|at| at <= self.now) {
                self.unblock(client);
            }
        }
    }

    fn arm_window(&mut self, listener: ListenerId) {
        let window = &mut self.redis_listeners[listener].watch.window;
        if window.armed.is_none()
            && let Some(at) = window.next(self.now)
        {
            window.armed = Some(at);
            self.timers.arm(at, Timer::Monitors);
        }
    }

    fn miss_lines(&mut self, listener: ListenerId, count: u64) {
        self.redis_listeners[listener].watch.missed += count;
        self.metrics.add_pool(self.listeners[listener].metrics, PoolCounter::MonitorDropped, count);
    }

    fn spread_lines(&mut self, listener: ListenerId, lines: &Released) {
        let wall_us = self.wall_us();
        let limits = self.listeners[listener].limits;
        let allowed = limits.pubsub_output_max.min(limits.client_output_max);
        let watch = &mut self.redis_listeners[listener].watch;
        let mut notice = Vec::new();
        if watch.missed > 0 && self.now >= watch.missed_told_at.plus_millis(MISSED_MS) {
            write_missed(wall_us, std::mem::take(&mut watch.missed), &mut notice);
            watch.missed_told_at = self.now;
        }
        if notice.is_empty() && lines.text.is_empty() {
            return;
        }
        let oldest = lines.ends.iter().map(|&(number, _)| number).min().unwrap_or(u64::MAX);
        let mut overflowed = Vec::new();
        for &client in &watch.monitors {
            let (owner, generation) = self.clients.entry(client);
            let conn = ConnId::of_client(client, generation);
            let monitor = owner.modes.monitor.as_ref();
            let Some(monitor) = monitor.filter(|monitor| monitor.pending.is_none()) else {
                continue;
            };
            let since = monitor.since;
            // It is owed no replies of servers, which a line could come into the middle of.
            owner.output.push(&notice, &mut self.bufs);
            if since > oldest {
                owner.output.push(&lines.since(since), &mut self.bufs);
            } else {
                owner.output.push(&lines.text, &mut self.bufs);
            }
            owner.mark(conn, &mut self.dirty_clients, &mut self.deferred_clients);
            let waits = owner.output.len() + owner.held;
            if waits > allowed {
                overflowed.push(conn);
            } else if let Some(monitor) = owner.modes.monitor()
                && waits > limits.pubsub_output_soft_max
                && monitor.strained_since == Time::NEVER
            {
                monitor.strained_since = self.now;
            }
        }
        self.cut_all(overflowed, PoolCounter::ClientsOverflowed);
    }

    /// As it is done to subscribers.
    fn cut_strained_monitors(&mut self, listener: ListenerId) {
        let limits = self.listeners[listener].limits;
        for client in self.redis_listeners[listener].watch.monitors.clone() {
            let owner = &mut self.clients[client];
            let waits = owner.output.len() + owner.held;
            let Some(monitor) = owner.modes.monitor() else { continue };
            if waits <= limits.pubsub_output_soft_max {
                monitor.strained_since = Time::NEVER;
            } else if self.now.micros_since(monitor.strained_since)
                >= limits.pubsub_output_soft_ms * 1000
            {
                self.cut_client(client, PoolCounter::ClientsOverflowed);
            }
        }
    }
}

/// Redis does not tell of what administers servers, nor of what has said so itself, but for scripts.
fn is_hidden(command: &Command) -> bool {
    let has = |flag: &str| command.facts.flags.split(' ').any(|word| word == flag);
    has("admin") || (has("skip_monitor") && command.group != Group::Scripting)
}

/// Whether a command of an open transaction is for EXEC to execute.
fn is_queued(command: &Command) -> bool {
    !matches!(
        command.rule,
        Rule::Session(SessionRule::Multi | SessionRule::Watch | SessionRule::Reset)
            | Rule::Local(Local::Quit)
    )
}
