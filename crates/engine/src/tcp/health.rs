//! Which servers are in use: what connections found, and checks.
//!
//! How a server is, all workers know together ([`cashew_metrics::ServerState`]). A server is out after so many failures in a row
//! that one worker has seen; it is back when so many checks in a row succeeded, or without checks when a connection did.

use cashew_metrics::{Cause, Evidence, Health, ServerCounter};

use crate::base::action::Action;
use crate::base::buffer::Output;
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ConnId, ServerId};
use crate::base::time::Time;
use crate::tcp::balance::{Balancer, is_in_use};
use crate::tcp::deadlines::Due;
use crate::tcp::{Check, Context, Owner, Tcp, header};

/// So many servers are checked in one instant; those of a larger backend by turns, spread over the interval.
const CHECKS_AT_ONCE: usize = 50;

impl Balancer {
    /// A session's connection to the server stands.
    pub(super) fn reached(&mut self, cx: &mut Context<'_>, backend: BackendId, server: ServerId) {
        self.resize(cx.backends[backend].servers.len());
        self.servers[server.index()].failures = 0;
        let state = &cx.backends[backend];
        let health = cx.metrics.server_state(state.servers[server].metrics).health;
        let is_checked = state.config.server_check_interval_ms > 0;
        let is_down = matches!(health, Health::Out | Health::Trial);
        if health != Health::Well && !(is_down && is_checked) {
            cx.note(backend, server, Evidence::Answered);
        }
    }

    /// It could not be connected to.
    pub(super) fn missed(
        &mut self,
        cx: &mut Context<'_>,
        backend: BackendId,
        server: ServerId,
        why: Failure,
    ) {
        cx.count_server(backend, server, ServerCounter::ConnectErrors);
        if why.is_local() {
            return cx.note(backend, server, Evidence::Hindered);
        }
        let cause = Cause::from(why);
        self.resize(cx.backends[backend].servers.len());
        let load = &mut self.servers[server.index()];
        load.successes = 0;
        load.failures = load.failures.saturating_add(1);
        let metrics = cx.backends[backend].servers[server].metrics;
        let is_down = !is_in_use(cx.metrics.server_state(metrics).health);
        let evidence = match load.failures >= cx.backends[backend].failure_limit || is_down {
            true => Evidence::Unreachable(cause),
            false => Evidence::Failed(cause),
        };
        cx.note(backend, server, evidence);
    }
}

impl Tcp {
    /// Has a backend's servers checked from now on, if they are to be, by the first of the workers.
    pub(super) fn begin_checks(&mut self, cx: &mut Context<'_>, backend: BackendId) {
        let interval_ms = cx.backends[backend].config.server_check_interval_ms;
        if interval_ms == 0 || cx.rank > 0 || !cx.backends[backend].is_in_use() {
            return;
        }
        let balancer = self.balancers.entry(backend).or_default();
        balancer.check_at = Some(cx.now);
        self.deadlines.arm(cx.timers, cx.now, Due::Checks(backend));
    }

    /// Connects to those servers whose turn it is and that are not being checked.
    pub(super) fn check_servers(&mut self, cx: &mut Context<'_>, backend: BackendId, at: Time) {
        let Some(balancer) = self.balancers.get_mut(&backend) else { return };
        if balancer.check_at != Some(at) || cx.draining {
            return;
        }
        let servers: Vec<ServerId> = cx.backends[backend].servers.ids().collect();
        let turns = servers.len().div_ceil(CHECKS_AT_ONCE).max(1) as u64;
        let config = &cx.backends[backend].config;
        let next = cx.now.plus_millis((config.server_check_interval_ms / turns).max(1));
        balancer.check_at = Some(next);
        self.deadlines.arm(cx.timers, next, Due::Checks(backend));
        balancer.resize(servers.len());
        let from = if balancer.check_from < servers.len() { balancer.check_from } else { 0 };
        let to = servers.len().min(from + CHECKS_AT_ONCE);
        balancer.check_from = to;
        let until = cx.backends[backend].connect_deadline(cx.now);
        for &server in &servers[from..to] {
            let load = &mut balancer.servers[server.index()];
            if std::mem::replace(&mut load.is_being_checked, true) {
                continue;
            }
            let check = Check { backend, server, since: cx.now };
            let (link, generation) = self.links.insert(Owner::Check(check));
            let conn = ConnId::of_pair_to_server(link, generation);
            cx.actions.push_back(Action::Connect { conn, backend, server });
            self.deadlines.arm(cx.timers, until, Due::Check(conn));
        }
    }

    /// A server has accepted a check's connection. It is told whose that is, if it is told so by clients' connections.
    pub(super) fn accepts(&mut self, cx: &mut Context<'_>, conn: ConnId, check: Check) {
        let Check { backend, server, since } = check;
        let header = match server {
            // It is no longer known what it is told.
            ServerId::NONE => None,
            _ => {
                cx.options(backend).and_then(|options| header::header_of_check(options.send_proxy))
            }
        };
        match header {
            Some(header) => {
                // Until it is sent, or the check has taken long enough.
                let mut output = Output::default();
                output.push(&header, cx.bufs);
                self.links[conn.pair()] = Owner::Told;
                self.words.insert(conn.pair(), output);
                cx.dirty.push(conn);
            }
            None => {
                self.links.remove(conn.pair());
                cx.actions.push_back(Action::Close { conn });
            }
        }
        // It may have been removed meanwhile.
        let Some(balancer) = self.balancers.get_mut(&backend) else { return };
        let Some(load) = balancer.servers.get_mut(server.index()) else { return };
        load.is_being_checked = false;
        (load.failures, load.successes) = (0, load.successes.saturating_add(1));
        let successes = load.successes;
        cx.count_connected(backend, server, since);
        let state = &cx.backends[backend];
        let rise = state.config.tcp.as_ref().map_or(1, |options| options.rise);
        match cx.metrics.server_state(state.servers[server].metrics).health {
            Health::Well => {}
            Health::Out | Health::Trial if successes < rise => {
                cx.note(backend, server, Evidence::Connected);
            }
            Health::Out | Health::Trial | Health::Suspect | Health::Untried => {
                cx.note(backend, server, Evidence::Answered);
            }
        }
    }

    /// A check has failed, and its connection is gone.
    pub(super) fn fails(
        &mut self,
        cx: &mut Context<'_>,
        conn: ConnId,
        Check { backend, server, .. }: Check,
        why: Failure,
    ) {
        self.links.remove(conn.pair());
        let Some(balancer) = self.balancers.get_mut(&backend) else { return };
        let Some(load) = balancer.servers.get_mut(server.index()) else { return };
        load.is_being_checked = false;
        balancer.missed(cx, backend, server, why);
    }

    /// So many bytes of what a server is told by a check are with the kernel; with the last ones it is over.
    pub(super) fn told(&mut self, cx: &mut Context<'_>, conn: ConnId, bytes: u64) {
        let owner = self.links.get(conn.pair(), conn.generation());
        if !conn.is_lane() || !matches!(owner, Some(Owner::Told)) {
            return;
        }
        let Some(output) = self.words.get_mut(&conn.pair()) else { return };
        output.advance(bytes, cx.bufs);
        if output.is_empty() {
            cx.actions.push_back(Action::Close { conn });
            self.forget_told(cx, conn);
        }
    }

    /// A check's connection is over.
    pub(super) fn forget_told(&mut self, cx: &mut Context<'_>, conn: ConnId) {
        self.links.remove(conn.pair());
        if let Some(mut output) = self.words.remove(&conn.pair()) {
            output.clear(cx.bufs);
        }
    }
}
