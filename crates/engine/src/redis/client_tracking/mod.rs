//! CLIENT TRACKING: clients that keep what they read are told when it may have changed.
//!
//! A server can tell only whom it knows, and clients share connections to it. So each worker has a connection of its
//! own to every server of a pool, its [tracker](crate::redis::tracking), on which that server tells it of all keys that
//! change, once some client of the pool wants to know; and the worker knows which of its clients have read which keys.
//! Replicas tell, too, of what they have got, so that nobody keeps what a replica was late to change.
//!
//! **Nothing that a client keeps goes unmentioned.** Its keys are noted before its read is sent ([`Table`]). What a tracker
//! tells of while a reply is owed to the client may be about a value that is on its way, so that the client hears
//! of it behind all that it is owed at that time; else it hears at once. In both cases the key is forgotten then, but
//! for one that a transaction may still read. Where a tracker was lost, or comes, or servers change their roles or places,
//! clients hear that all may have changed. So they do of a key that falls out of the table at its limit. What is read from
//! a server that does not tell is told of at once, behind the reply.
//!
//! NOLOOP changes nothing: who has changed a key is not told there, and to be told of a change of one's own is
//! harmless.
//!
//! | file | owns |
//! |---|---|
//! | `table` | who has read what: no I/O |
//! | `tell` | what trackers tell, to the clients |
//! | `command` | CLIENT TRACKING, CACHING, TRACKINGINFO and GETREDIR |

mod command;
mod table;
mod tell;

use crate::base::id::{BackendId, ClientId, ConnId, LaneId, ServerId};
use crate::downstream::listener::Choice;
use crate::downstream::tracking_mode::Scope;
use crate::engine::Engine;
use crate::upstream::lane::Link;
use crate::upstream::tracking::Tracker;
use table::Table;

/// What one worker has to do with it.
#[derive(Default)]
pub(crate) struct Tracking {
    table: Table,
    /// Clients that have asked for it; some may have gone, or want it no more.
    clients: Vec<ConnId>,
    /// Those of them that want to hear of all keys that begin so, whoever has read them: each key that changes is
    /// compared with what they want. They are few.
    broadcast: Vec<ConnId>,
    /// Whose servers tell for them.
    backends: Vec<BackendId>,
    /// Clients that wait until all servers of one tell.
    waiting: Vec<ConnId>,
}

impl Engine {
    /// Those of these clients that are at a backend, and are told of changes.
    fn tracked_at(&self, backend: BackendId, clients: &[ConnId]) -> Vec<ClientId> {
        let clients = clients.iter().filter(|&&it| self.is_told(it)).map(|conn| conn.client());
        clients.filter(|&client| self.backend_of(client) == backend).collect()
    }

    fn is_told(&self, conn: ConnId) -> bool {
        self.clients.is_current(conn.client(), conn.generation())
            && self.clients[conn.client()].modes.tracking.is_some()
    }

    /// The client is told of changes from here on.
    fn begin_tracking(&mut self, client: ClientId) {
        let conn = self.client_conn(client);
        if !self.tracking.clients.contains(&conn) {
            self.tracking.clients.push(conn);
        }
        let mode = self.clients[client].modes.tracking.as_deref();
        let is_broadcast = mode.is_some_and(|it| matches!(it.scope, Scope::Prefixes(_)));
        if is_broadcast && !self.tracking.broadcast.contains(&conn) {
            self.tracking.broadcast.push(conn);
        }
        self.update_off_fast_path(client);
        self.want_tracking(self.backend_of(client));
    }

    /// Some client of the backend is to be told.
    fn want_tracking(&mut self, backend: BackendId) {
        if !self.tracking.backends.contains(&backend) {
            self.tracking.backends.push(backend);
        }
        self.maintain_trackers_of(backend);
    }

    /// The client is another user, speaks another dialect, has other servers, or has come from another process: if it
    /// is told of changes, what it has read so far counts as changed.
    pub(crate) fn follow_tracking(&mut self, client: ClientId) {
        if self.clients[client].modes.tracking.is_none() {
            return;
        }
        if self.destination_of(client).choice == Choice::Backends {
            // Where it has come nobody tells.
            self.finish(client);
            return;
        }
        self.begin_tracking(client);
        self.tell_client_of_all(client);
    }

    /// Looks who is still there, and after the feeds. To be called once a second.
    pub(crate) fn maintain_tracking(&mut self) {
        if self.tracking.clients.is_empty() && self.tracking.backends.is_empty() {
            return;
        }
        let mut clients = std::mem::take(&mut self.tracking.clients);
        clients.retain(|&conn| self.is_told(conn));
        let mut broadcast = std::mem::take(&mut self.tracking.broadcast);
        broadcast.retain(|&conn| self.is_told(conn));
        self.tracking.broadcast = broadcast;
        let is_there = |conn: &&ConnId| self.clients.is_current(conn.client(), conn.generation());
        let waiting = self.tracking.waiting.iter().filter(is_there);
        let mut wanted: Vec<BackendId> =
            clients.iter().chain(waiting).map(|conn| self.backend_of(conn.client())).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.tracking.clients = clients;
        for backend in std::mem::replace(&mut self.tracking.backends, wanted.clone()) {
            if !wanted.contains(&backend) {
                // Its trackers are closed if nobody else wants them.
                self.change_table(|table| table.clear(backend));
            }
        }
        wanted.into_iter().for_each(|backend| self.maintain_trackers_of(backend));
        self.wake_tracking();
    }

    /// Whether clients of the backend are told of what changes.
    pub(crate) fn wants_tracking(&self, backend: BackendId) -> bool {
        self.tracking.backends.contains(&backend)
    }

    /// Clients that wait until servers tell look again.
    pub(crate) fn wake_tracking(&mut self) {
        let waiting = std::mem::take(&mut self.tracking.waiting);
        self.unblock_all(waiting);
    }

    /// Whether servers of the backend have yet to say that they tell, or that they do not. Who could not be asked the
    /// first time is not waited for: what is read there is told of at once.
    fn awaits_tracking(&self, backend: BackendId) -> bool {
        let servers = self.backends[backend].servers.ids();
        let trackers = servers.into_iter().filter_map(|server| self.tracker(backend, server));
        trackers.filter(|tracker| !tracker.has_failed()).any(|tracker| {
            match self.lane(tracker.lane).link {
                Link::Ready { .. } => !tracker.is_up(),
                Link::Connecting { .. } | Link::Handshaking { .. } => true,
                Link::Idle | Link::Backoff { .. } => false,
            }
        })
    }

    /// Whether all servers of the backend tell.
    fn all_tell(&self, backend: BackendId) -> bool {
        self.backends[backend].servers.ids().all(|server| self.tells(backend, server))
    }

    fn tells(&self, backend: BackendId, server: ServerId) -> bool {
        self.tracker(backend, server).is_some_and(Tracker::is_up)
    }

    /// Whether servers tell of a key: all that may be about to answer a read of it.
    fn is_told_of(&mut self, backend: BackendId, key: &[u8]) -> bool {
        let topology = &self.backends[backend].topology;
        let Some(shard) = topology.shard(key, &mut self.rng) else { return true };
        let tells = |server| self.tells(backend, server) || !self.may_answer(backend, server);
        match topology.is_random() || topology.has_moving() {
            true => self.backends[backend].servers.ids().all(tells),
            false => topology.members(topology.head(shard)).all(tells),
        }
    }

    /// Whether requests are on their way to a server, or could be at once. So it is not where another one has to answer.
    fn may_answer(&self, backend: BackendId, server: ServerId) -> bool {
        let is_used = |lane: LaneId| {
            let lane = self.lane(lane);
            !lane.is_tracker && (matches!(lane.link, Link::Ready { .. }) || lane.unsent > 0)
        };
        self.backends[backend].servers[server].all_lanes().any(is_used)
    }

    /// Why a server of the backend does not tell, with its name.
    fn tracking_refused(&self, backend: BackendId) -> Option<String> {
        let mut servers = self.backends[backend].servers.ids();
        servers.find_map(|server| {
            let why = self.tracker(backend, server)?.refusal(self.now)?;
            let name = self.backends[backend].shown_name(server);
            Some(format!("ERR CLIENT TRACKING is not possible, as server {name} says: {why}"))
        })
    }

    /// Changes what is known of reads, and counts what that takes.
    fn change_table<T>(&mut self, change: impl FnOnce(&mut Table) -> T) -> T {
        let before = self.tracking.table.size();
        let result = change(&mut self.tracking.table);
        let after = self.tracking.table.size();
        self.bufs.discharge(before);
        self.bufs.charge(after);
        result
    }

    /// The client has read the key, or is about to.
    fn note_reader(&mut self, backend: BackendId, key: &[u8], conn: ConnId) {
        let Self { clients, tracking: Tracking { table, .. }, bufs, .. } = self;
        let is_there = |it: ConnId| {
            clients.is_current(it.client(), it.generation())
                && clients[it.client()].modes.tracking.is_some()
        };
        let before = table.size();
        table.add(backend, key, conn, is_there);
        bufs.discharge(before);
        bufs.charge(table.size());
    }

    /// Memory is short: what is known of reads goes if it takes so many bytes, and who has read hears that all may have
    /// changed. Returns whether anything went.
    pub(crate) fn forget_reads(&mut self, size_min: usize) -> bool {
        let before = self.tracking.table.size();
        if before == 0 || before < size_min {
            return false;
        }
        let Self { clients, tracking: Tracking { table, .. }, .. } = self;
        // It may be read yet: see `tell_of`.
        table.forget_readers(|it| {
            clients.is_current(it.client(), it.generation())
                && clients[it.client()].modes.transaction.is_some()
        });
        let after = table.size();
        self.bufs.discharge(before);
        self.bufs.charge(after);
        self.bufs.note_released(before - after);
        for conn in self.tracking.clients.clone() {
            if self.clients.is_current(conn.client(), conn.generation()) {
                self.tell_client_of_all(conn.client());
            }
        }
        after < before
    }

    /// Servers may be others, or other ones may have the keys: all that clients have read may have changed.
    pub(crate) fn tracked_servers_changed(&mut self, backend: BackendId) {
        if self.tracking.backends.contains(&backend) {
            self.tell_of_all(backend);
            self.maintain_trackers_of(backend);
        }
    }

    /// Backends have other numbers from here on.
    pub(crate) fn renumber_tracking(&mut self) {
        if self.tracking.clients.is_empty() && self.tracking.backends.is_empty() {
            return;
        }
        self.change_table(Table::clear_all);
        self.tracking.backends.clear();
        self.maintain_tracking();
        for backend in self.tracking.backends.clone() {
            self.tell_of_all(backend);
        }
        self.wake_tracking();
    }
}
