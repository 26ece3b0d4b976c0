//! Where a route's client stands: at the backend that the request at hand goes to.

use std::sync::Arc;

use cashew_config::snapshot::Reach;
use cashew_placement::SLOTS;
use cashew_protocol::redis::Access;

use super::answer::Seat;
use super::explain::{Explanation, in_configurations};
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, ClientId, LaneId, ServerId};
use crate::downstream::client::{Client, Session};
use crate::engine::Engine;
use crate::exchange::dispatch::{Payload, Split};
use crate::request::{Own, Role};
use crate::topology::route_tree::{Operation, Way};
use crate::upstream::session_params::{SessionParams, WireProtocol};

/// What a route has to know of what a command does.
pub(crate) fn operation_of(access: Access, deletes: bool) -> Operation {
    match access {
        _ if deletes => Operation::Delete,
        Access::Read | Access::Walk => Operation::Read,
        Access::Write | Access::None => Operation::Write,
    }
}

impl Engine {
    /// Has what the client asks go to this backend from here on: its lanes there speak its dialect and have
    /// its database.
    #[inline]
    pub(crate) fn stand_at(&mut self, client: ClientId, backend: BackendId) -> Result<(), Failure> {
        if self.backend_of(client) == backend {
            return Ok(());
        }
        self.move_to(client, backend)
    }

    fn move_to(&mut self, client: ClientId, backend: BackendId) -> Result<(), Failure> {
        let variant = self.variant_at(client, backend)?;
        self.enter_variant(backend, variant);
        let before = self.backend_of(client);
        let state = &mut self.clients[client];
        let old = std::mem::replace(&mut state.variant, variant);
        self.standpoints.set(client, backend);
        self.leave_variant(before, old);
        // What it wrote there says nothing of what it may read here: as if it had just written here, too.
        self.write_marks.carry(client);
        Ok(())
    }

    /// Which of a backend's lanes the client takes.
    pub(crate) fn variant_at(
        &mut self,
        client: ClientId,
        backend: BackendId,
    ) -> Result<u16, Failure> {
        let Client { session, lane_choice, .. } = &self.clients[client];
        let Session { wire_protocol, database, .. } = *session;
        self.variant_of_seat(Seat { wire_protocol, database, lane_choice: *lane_choice }, backend)
    }

    /// Has the client stand where a large request for this key goes. `false` if that is not one backend, or
    /// servers know the key by another name: then the request has to be here whole.
    pub(crate) fn stands_for(&mut self, client: ClientId, key: &[u8]) -> bool {
        let Some(route) = &self.destination_of(client).route else { return true };
        match route.way(key, Operation::Write) {
            Way::Straight(backend) => self.stand_at(client, backend).is_ok(),
            Way::Forked(_) | Way::None => false,
        }
    }

    /// Deals the keys of a route's request out to servers of all backends that they go to. The client stands
    /// where the only server is, if there is only one.
    #[cold]
    pub(crate) fn place_keys_by_route<'k>(
        &mut self,
        client: ClientId,
        keys: impl Iterator<Item = &'k [u8]>,
        access: Access,
        split: &mut Split,
    ) -> Result<Option<ServerId>, Failure> {
        let Some(tree) = self.destination_of(client).route.as_ref().map(Arc::clone) else {
            return Err(Failure::NoServer);
        };
        let mut places = tree.backends().iter().filter_map(|&it| self.backends.get(it));
        let has_slots = places.any(|backend| backend.topology.has_slots());
        split.begin(self.backend_of(client), if has_slots { usize::from(SLOTS) } else { 0 });
        // What is in a transaction stands where that is.
        let here = self.is_queueing(client).then(|| self.backend_of(client));
        let called = self.clients[client].called.name().unwrap_or_default();
        let operation = operation_of(access, matches!(called, "del" | "unlink"));
        for key in keys {
            let backend = match (here, tree.way(key, operation)) {
                (Some(backend), _) | (None, Way::Straight(backend)) => backend,
                (None, Way::Forked(node)) => tree.first_for(node, key, operation, None).backend,
                (None, Way::None) => BackendId::NONE,
            };
            let server = self.server_for(client, backend, key, access);
            let server = server.ok_or(Failure::NoServer)?;
            split.add_among(backend, server, self.backends[backend].topology.slot(key));
        }
        match split.parts[..] {
            [part] => {
                self.stand_at(client, part.backend)?;
                Ok(Some(part.server))
            }
            _ => Ok(None),
        }
    }

    /// The server of a backend that answers for a key.
    pub(crate) fn server_for(
        &mut self,
        client: ClientId,
        backend: BackendId,
        key: &[u8],
        access: Access,
    ) -> Option<ServerId> {
        if client != ClientId::NONE && self.backend_of(client) == backend {
            return self.route_for(client, key, access);
        }
        let heeds_writes = self.backends.get(backend)?.replica_rules.heed_writes();
        // Of what it wrote there nothing is known where it stands now.
        let access = if heeds_writes && access.reads() { Access::Walk } else { access };
        self.route(backend, key, access)
    }

    /// The lane to the server of a backend that answers for a key, for whoever sits so.
    pub(crate) fn lane_from(
        &mut self,
        seat: Seat,
        backend: BackendId,
        (key, access): (&[u8], Access),
        size: usize,
    ) -> Result<LaneId, NamedFailure> {
        let server = self.server_for(ClientId::NONE, backend, key, access);
        let server = server.ok_or(Failure::NoServer)?;
        let variant = self.variant_of_seat(seat, backend)?;
        // What failed before may be written now: it is deleted, or written over, either way.
        let lane = match access {
            Access::Write => self.lane_of_held((backend, server), variant, seat.lane_choice, size),
            _ => self.lane_of((backend, server), variant, seat.lane_choice, size),
        };
        lane.map_err(|why| self.backends[backend].named(server, why))
    }

    /// The same for a write, of a lane that nobody else has meanwhile.
    pub(crate) fn lane_alone(
        &mut self,
        seat: Seat,
        backend: BackendId,
        key: &[u8],
    ) -> Result<LaneId, NamedFailure> {
        let server = self.server_for(ClientId::NONE, backend, key, Access::Write);
        let server = server.ok_or(Failure::NoServer)?;
        let variant = self.variant_of_seat(seat, backend)?;
        let lane = self.streaming_lane(backend, server, variant);
        let lane = lane.and_then(|lane| lane.ok_or(Failure::QueueFull));
        lane.map_err(|why| self.backends[backend].named(server, why))
    }

    fn variant_of_seat(&mut self, seat: Seat, backend: BackendId) -> Result<u16, Failure> {
        let Some(state) = self.backends.get(backend) else { return Err(Failure::NoServer) };
        let Seat { wire_protocol, database, .. } = seat;
        let wanted = SessionParams { wire_protocol, database: state.database_of(database) };
        if wire_protocol == WireProtocol::Resp3 && self.now < state.no_resp3_until {
            return Err(Failure::WireProtocolRefused);
        }
        if wanted == state.params_set[0] {
            return Ok(0);
        }
        self.variant(backend, wanted).ok_or(Failure::DatabaseRefused)
    }

    /// Says something on a lane, of which nobody wants the answer.
    pub(crate) fn say_behind(&mut self, lane: LaneId, text: &[u8]) {
        let backend = self.lane(lane).backend;
        let (request, slot) = self.requests.add(backend, ClientId::NONE, self.now);
        slot.role = Role::Own(Own::Whatever);
        self.send(lane, request, Payload::Bytes(text));
    }
}

/// Where a key goes from the port where it is asked, and how the servers there are.
impl Engine {
    /// Fails, in words, if clients may not know.
    pub(crate) fn explain(
        &mut self,
        client: ClientId,
        key: &[u8],
        (access, reach): (Access, Reach),
        operation: Operation,
    ) -> Result<Explanation, &'static str> {
        let listener = self.listener_of(client);
        if listener.config.hide_topology {
            return Err("hide_topology keeps the servers to itself here");
        }
        let way = self.destination_of(client).route.as_ref().map(|tree| tree.way(key, operation));
        let is_forked = matches!(way, Some(Way::Forked(_)));
        let config = Arc::clone(&listener.config);
        let user = self.clients[client].session.user_name();
        let route = match config.route_of_user(user) {
            Some(elsewhere) => elsewhere.route.clone(),
            None => config.own_route(),
        };
        let visit = route.visit(key, in_configurations(operation), reach);
        let leaf = |pool: &str, key: &[u8]| self.explain_leaf(pool, key, access);
        Ok(Explanation::new(&visit, key, is_forked, leaf))
    }

    /// The server of a pool that a request for the key would go to now, and how it is.
    fn explain_leaf(&mut self, pool: &str, key: &[u8], access: Access) -> String {
        let found = self.backends.entries().find(|(_, backend)| backend.config.name == pool);
        let Some((backend, _)) = found else { return "it is not there".to_owned() };
        let backend: BackendId = backend;
        let Some(server) = self.server_for(ClientId::NONE, backend, key, access) else {
            return "no server is left".to_owned();
        };
        let state = &self.backends[backend];
        let shard = state.topology.shard_of(server);
        let groups = state.config.shards();
        let group = groups.get(shard.index()).map_or("", |group| group.name.as_str());
        let named = &state.config.servers[server.index()];
        let of_group = if group == named.name { String::new() } else { format!("group {group}, ") };
        let health = self.metrics.server_state(state.servers[server].metrics);
        let cause = match health.cause.text() {
            "" => String::new(),
            cause => format!(" ({cause})"),
        };
        let held = match state.has_to_forget(server, &self.metrics) {
            true => ", is being told what to forget",
            false => "",
        };
        format!(
            "{of_group}server {} ({}), {}{cause}{held}",
            named.name,
            named.endpoint,
            health.health.name()
        )
    }
}
