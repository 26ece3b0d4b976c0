//! Connections to servers: resolves a name and tries its addresses in turn.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cashew_config::snapshot::Endpoint;
use cashew_control::ToMaster;
use cashew_driver::{Address, CloseKind, Driver, Token};
use cashew_engine::{BackendId, CloseReason, ConnId, Plan, ServerId};
use cashew_tls::Failure;

use super::Worker;
use crate::core::{Attempt, Found, WATCH_RESOLVER};
use crate::preparer::Next;
use crate::resolver::{Name, Resolver};

/// The most servers in one message.
const MOVED_PER_MESSAGE_MAX: usize = 1000;

impl<D: Driver> Worker<D> {
    pub(super) fn connect(&mut self, conn: ConnId, backend: BackendId, server: ServerId) {
        let endpoint = &self.core.engine.backend_config(backend).servers[server.index()].endpoint;
        let token = Token(conn.token());
        match endpoint.clone() {
            Endpoint::Unix(path) => self.start_connecting(token, &Address::Unix(path)),
            Endpoint::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => {
                    self.start_connecting(token, &Address::Tcp(SocketAddr::new(ip, port)));
                }
                Err(_) => self.resolve(token, &host, port),
            },
        }
    }

    fn resolve(&mut self, conn: Token, host: &str, port: u16) {
        let name = (host.to_owned(), port);
        let found = self.core.found.get(&name).filter(|found| found.is_fresh(self.core.now));
        if let Some(addresses) = found.map(|found| found.addresses.clone()) {
            return self.try_addresses(conn, name, addresses);
        }
        if self.resolver.is_none() {
            let started = Resolver::start().and_then(|resolver| {
                self.driver.watch(WATCH_RESOLVER, resolver.wake())?;
                Ok(resolver)
            });
            match started {
                Ok(resolver) => self.resolver = Some(resolver),
                Err(error) => tracing::error!("cannot look names up: {error}"),
            }
        }
        match &self.resolver {
            Some(resolver) => {
                let attempt =
                    Attempt { name, address: None, others: VecDeque::new(), failure: None };
                self.core.attempts.insert(conn, attempt);
                resolver.ask(conn, host, port);
            }
            None => self.core.engine.handle_closed(
                ConnId::from_token(conn.0),
                CloseReason::NoLookUp,
                self.core.now,
            ),
        }
    }

    /// Marks servers in the plan for reconnecting if their hosts no longer resolve to the address
    /// of a connection or of an attempt.
    pub(super) fn follow_names(&mut self, next: &Next, plan: &mut Plan) {
        let is_left = |(host, _): &Name, address: &SocketAddr| {
            next.addresses.get(host).is_some_and(|found| !found.contains(&address.ip()))
        };
        let connected = self.core.peers.values().map(|(name, address)| (name, address));
        let connecting = self.core.attempts.values();
        let connecting = connecting.filter_map(|it| Some((&it.name, it.address.as_ref()?)));
        let left = connected.chain(connecting).filter(|(name, address)| is_left(name, address));
        let left: HashSet<(&str, u16)> = left.map(|((host, port), _)| (&**host, *port)).collect();
        // All workers use the addresses that the master found.
        let servers = next.snapshot.pools.iter().flat_map(|pool| &pool.servers);
        for server in servers {
            if let Endpoint::Tcp { host, port } = &server.endpoint
                && let Some(found) = next.addresses.get(host)
            {
                let addresses = found.iter().map(|&ip| SocketAddr::new(ip, *port)).collect();
                let found = Found { addresses, at: self.core.now };
                self.core.found.insert((host.clone(), *port), found);
            }
        }
        if left.is_empty() {
            return;
        }
        let mut moved = Vec::new();
        for (pool, at) in next.snapshot.pools.iter().zip(0..) {
            for (server, place) in pool.servers.iter().zip(0..) {
                if let Endpoint::Tcp { host, port } = &server.endpoint
                    && left.contains(&(&**host, *port))
                {
                    plan.move_server(BackendId::new(at), ServerId::new(place));
                    moved.push((at, place));
                }
            }
        }
        for servers in moved.chunks(MOVED_PER_MESSAGE_MAX) {
            let servers = servers.to_vec();
            self.outbox.push(ToMaster::Moved { epoch: next.epoch, servers });
        }
    }

    #[inline(never)]
    pub(super) fn take_addresses(&mut self) {
        let answers = self.resolver.as_mut().map(Resolver::answers).unwrap_or_default();
        for answer in answers {
            // An attempt that was given up meanwhile is no longer listed.
            let Some(attempt) = self.core.attempts.remove(&answer.conn) else { continue };
            let found = Found { addresses: answer.addresses.clone(), at: self.core.now };
            self.core.found.insert(attempt.name.clone(), found);
            self.try_addresses(answer.conn, attempt.name, answer.addresses);
        }
    }

    fn try_addresses(&mut self, conn: Token, name: Name, addresses: Vec<SocketAddr>) {
        let mut others = VecDeque::from(addresses);
        let unresponsive = self.core.unresponsive.get(&name);
        if let Some(at) = others.iter().position(|address| Some(address) == unresponsive) {
            others.rotate_left(at + 1);
        }
        let Some(first) = others.pop_front() else {
            let conn = ConnId::from_token(conn.0);
            self.core.engine.handle_closed(conn, CloseReason::Unresolved, self.core.now);
            return;
        };
        let attempt = Attempt { name, address: Some(first), others, failure: None };
        self.core.attempts.insert(conn, attempt);
        self.start_connecting(conn, &Address::Tcp(first));
    }

    fn start_connecting(&mut self, conn: Token, address: &Address) {
        if let Err(why) = self.connect_to(conn, address) {
            self.core.failed_connects.push((conn, why));
            self.retry_connects();
        }
    }

    /// Connects with TLS where the server's pool has it.
    fn connect_to(&mut self, conn: Token, address: &Address) -> Result<(), CloseKind> {
        let server = self.core.engine.server_of_conn(ConnId::from_token(conn.0));
        let Some((config, options, endpoint)) = server.and_then(|(backend, server)| {
            let config = self.core.engine.backend_config(backend);
            Some((config, config.server_tls.as_ref()?, &config.servers[server.index()].endpoint))
        }) else {
            return self.driver.connect(conn, address);
        };
        let Some(connector) = self.core.tls.connector(options.mark) else {
            tracing::error!("there is nothing to secure a connection to a server with");
            return Err(CloseKind::Insecure(Failure::Broken));
        };
        let host = match endpoint {
            Endpoint::Tcp { host, .. } => Some(host.as_str()),
            Endpoint::Unix(_) => None,
        };
        let limit_ms = config.limits.server_connect_timeout_ms;
        let limit_ms = config.timeout_ms.map_or(limit_ms, |timeout_ms| timeout_ms.min(limit_ms));
        // A little before the engine gives up, so that it is known what the server did not answer.
        let timeout = Duration::from_millis(limit_ms * 3 / 4);
        self.driver.connect_secured(conn, address, connector, host, timeout)
    }

    /// Tries the next address of each failed attempt. Reports those without one.
    #[inline(never)]
    pub(super) fn retry_connects(&mut self) {
        while let Some((conn, why)) = self.core.failed_connects.pop() {
            self.core.forget_peer(conn);
            let attempt = self.core.attempts.get_mut(&conn);
            let next = attempt.and_then(|attempt| attempt.next(why));
            match next {
                Some(address) => {
                    if let Err(why) = self.connect_to(conn, &Address::Tcp(address)) {
                        self.core.failed_connects.push((conn, why));
                    }
                }
                None => {
                    // An address that this machine cannot reach, such as IPv6 where there is none,
                    // hides no failure at another address.
                    let attempt = self.core.attempts.remove(&conn);
                    let failure = attempt.and_then(|attempt| attempt.failure);
                    self.core.report_closed(conn, failure.unwrap_or(why));
                }
            }
        }
    }
}
