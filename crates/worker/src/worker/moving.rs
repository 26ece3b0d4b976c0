//! Sessions that go to other workers, and sessions that come from them.

use std::os::fd::OwnedFd;

use cashew_config::snapshot::{Notified, Reads};
use cashew_control::{
    ChildChannel, PairedSession, SESSION_VERSION, SESSION_VERSION_PAIRED, SESSION_VERSION_SECURED,
    SESSION_VERSION_TRACKING, SecuredSession, SendError, Session, ToMaster, TrackingSession, seal,
};
use cashew_driver::{CloseKind, Driver, Luggage, Token};
use cashew_engine::{
    ConnId, Export, ListenerId, PairParts, Profile, SessionParts, Silence, Totals, WireProtocol,
};

use super::Worker;
use crate::place::{Passed, host};
use crate::sessions::{Arrived, UNSENT_MAX, unpack};

impl<D: Driver> Worker<D> {
    /// Sends the sessions that the driver has detached, and detaches more.
    #[inline(never)]
    pub(super) fn move_sessions(&mut self) {
        for (conn, socket, luggage) in std::mem::take(&mut self.core.detached) {
            let id = ConnId::from_token(conn.0);
            match id.is_paired() {
                true => self.hand_over_half(id, socket, luggage),
                false => self.hand_over(id, socket, luggage),
            }
        }
        while self.core.detaching.len() + self.outbox.sessions() < UNSENT_MAX {
            let Some(conn) = self.handoffs.pop_front() else { break };
            if !self.core.engine.has_client(conn) {
                continue;
            }
            for conn in [Some(conn), self.core.engine.partner(conn)].into_iter().flatten() {
                let conn = Token(conn.token());
                self.core.detaching.insert(conn);
                self.driver.detach(conn);
            }
        }
    }

    /// Hands a session whose bytes pass through over, once both of its connections are detached.
    fn hand_over_half(&mut self, conn: ConnId, socket: OwnedFd, luggage: Option<Luggage>) {
        let Some(partner) = self.core.engine.partner(conn) else { return };
        let Some(other) = self.core.halves.remove(&Token(partner.token())) else {
            self.core.halves.insert(Token(conn.token()), (socket, luggage));
            return;
        };
        match conn.is_lane() {
            true => self.hand_over_pair(partner, other, (socket, luggage)),
            false => self.hand_over_pair(conn, (socket, luggage), other),
        }
    }

    fn hand_over_pair(
        &mut self,
        conn: ConnId,
        (socket, luggage): (OwnedFd, Option<Luggage>),
        (server_socket, server_luggage): (OwnedFd, Option<Luggage>),
    ) {
        let export = self.core.engine.export_pair(conn, self.core.now);
        let Some((listener, parts)) = export else { return };
        let quota = self.core.engine.quota(listener);
        let config = self.core.engine.listener_config(listener);
        let told = self.core.told.remove(&Token(conn.token()));
        let mut bytes = [&parts.to_server[..], &parts.to_client].concat();
        let secured = luggage.map(|luggage| pack(luggage, &mut bytes));
        let server_secured = server_luggage.map(|luggage| pack(luggage, &mut bytes));
        let session = Session {
            version: SESSION_VERSION_PAIRED,
            pool: config.name.clone(),
            protocol: Some(config.protocol),
            id: parts.id,
            age_us: parts.age_us,
            totals: [parts.received, parts.sent, 0, 0, 0],
            input: parts.to_server.len() as u64,
            output: parts.to_client.len() as u64,
            passed_from: told.map(|told| Box::new(told.client)),
            passed_to: told.map(|told| told.to),
            secured,
            paired: Some(Box::new(PairedSession {
                server: parts.server,
                client_told_end: parts.client_told_end,
                server_told_end: parts.server_told_end,
                secured: server_secured,
            })),
            ..Session::default()
        };
        match (!bytes.is_empty()).then(|| seal(&bytes)).transpose() {
            Ok(bytes) => {
                self.core.writer.add_sessions_out(1);
                let sockets = (socket, Some(server_socket));
                self.outbox.hand_over_pair(session, sockets, bytes, quota);
            }
            Err(error) => {
                tracing::error!("a client is closed, since it cannot be handed over: {error}");
                self.core.shared.give(quota);
                self.core.writer.add_sessions_cut(1);
            }
        }
    }

    /// Continues a session whose bytes pass through.
    fn adopt_pair(
        &mut self,
        pool: ListenerId,
        session: Session,
        paired: PairedSession,
        arrived: Arrived,
    ) {
        let Arrived { socket, input, output, luggage, partner } = arrived;
        let Some((server_socket, server_luggage)) = partner else { return };
        let [received, sent, ..] = session.totals;
        let parts = PairParts {
            id: session.id,
            server: paired.server,
            client_told_end: paired.client_told_end,
            server_told_end: paired.server_told_end,
            age_us: session.age_us,
            received,
            sent,
            to_server: input,
            to_client: output,
        };
        let (client, server) = self.core.engine.handle_adopted_pair(pool, parts, self.core.now);
        self.core.writer.add_sessions_in(1);
        let [client, server] = [client, server].map(|conn| Token(conn.token()));
        if let (Some(from), Some(to)) = (session.passed_from, session.passed_to) {
            self.core.told.insert(client, Passed { client: *from, to });
        }
        for (conn, socket, luggage) in
            [(client, socket, luggage), (server, server_socket, server_luggage)]
        {
            let adopted = match luggage {
                Some(luggage) => self.driver.adopt_secured(conn, socket, luggage),
                None => self.driver.adopt(conn, socket),
            };
            if adopted.is_err() {
                self.core.told.remove(&client);
                return self.core.report_closed(conn, CloseKind::Exhausted);
            }
        }
    }

    /// Confirms, behind the last session, that nothing more is handed over.
    #[inline(never)]
    pub(super) fn confirm_kept(&mut self) {
        let core = &self.core;
        let has_gone =
            self.handoffs.is_empty() && core.detaching.is_empty() && core.detached.is_empty();
        if has_gone {
            self.is_to_keep = false;
            self.outbox.push(ToMaster::Kept);
        }
    }

    fn hand_over(&mut self, conn: ConnId, socket: OwnedFd, luggage: Option<Luggage>) {
        let export = self.core.engine.export(conn, self.core.now);
        let Some(Export { listener, parts, input, output }) = export else { return };
        let quota = self.core.engine.quota(listener);
        let config = self.core.engine.listener_config(listener);
        let told = self.core.told.remove(&Token(conn.token()));
        let mut bytes = [&input[..], &output].concat();
        let secured = luggage.map(|luggage| pack(luggage, &mut bytes));
        let session = Session {
            version: match secured {
                _ if !parts.tracking.is_empty() => SESSION_VERSION_TRACKING,
                Some(_) => SESSION_VERSION_SECURED,
                None => SESSION_VERSION,
            },
            pool: config.name.clone(),
            protocol: Some(config.protocol),
            id: parts.id,
            authenticated: parts.authenticated,
            user: parts.profile.user_name().to_owned(),
            name: Some(parts.profile.name).filter(|name| !name.is_empty()),
            swallow: parts.swallow,
            dialect: parts
                .wire_protocol
                .map(|wire_protocol| wire_protocol.name().to_owned())
                .unwrap_or_default(),
            database: parts.database,
            library: parts.profile.library,
            library_version: parts.profile.library_version,
            expires_in_us: parts.expires_in_us,
            no_evict: parts.no_evict,
            tracking: (!parts.tracking.is_empty())
                .then(|| Box::new(TrackingSession { words: parts.tracking })),
            notified: parts.notified.number(),
            reads: parts.reads.map(|reads| reads.to_string()).unwrap_or_default(),
            reply_off: parts.silence == Silence::All,
            reply_skip: parts.silence == Silence::Next,
            overheard: parts.is_observed,
            called: parts.called,
            age_us: parts.age_us,
            totals: [
                parts.totals.received,
                parts.totals.sent,
                parts.totals.requests,
                parts.totals.errors.into(),
                parts.totals.slowest_us.into(),
            ],
            input: input.len() as u64,
            output: output.len() as u64,
            passed_from: told.map(|told| Box::new(told.client)),
            passed_to: told.map(|told| told.to),
            secured,
            paired: None,
        };
        match (!bytes.is_empty()).then(|| seal(&bytes)).transpose() {
            Ok(bytes) => {
                self.core.writer.add_sessions_out(1);
                // The client's commands here are reported before those at the next worker.
                self.publish_elsewhere();
                self.outbox.hand_over(session, socket, bytes, quota);
            }
            Err(error) => {
                tracing::error!("a client is closed, since it cannot be handed over: {error}");
                self.core.shared.give(quota);
                self.core.writer.add_sessions_cut(1);
            }
        }
    }

    /// Adopts the sessions that have come, each once it is confirmed to the master. Until then the
    /// master may give the session to another worker, should this one die.
    #[inline(never)]
    pub(super) fn take_arrivals(&mut self, control: &ChildChannel) {
        while let Some((session, descriptors)) = self.arrivals.pop_front() {
            match control.send(&ToMaster::Adopted, &[]) {
                // Without a master nobody else gets the session.
                Ok(()) | Err(SendError::Closed) => {}
                Err(SendError::WouldBlock) => {
                    return self.arrivals.push_front((session, descriptors));
                }
                Err(error) => {
                    tracing::error!("cannot confirm a session to the master: {error}");
                    if let Some(pool) = self.core.engine.listener_named(&session.pool) {
                        self.core.shared.give(self.core.engine.quota(pool));
                    }
                    self.core.writer.add_sessions_cut(1);
                    continue;
                }
            }
            self.core.tick();
            self.act();
            self.adopt(session, descriptors);
        }
    }

    /// Continues a session from another worker.
    pub(super) fn adopt(&mut self, session: Session, descriptors: Vec<OwnedFd>) {
        let engine = &self.core.engine;
        let speaks_alike = |pool: &ListenerId| {
            let protocol = engine.listener_config(*pool).protocol;
            session.protocol.is_none_or(|spoken| spoken == protocol)
        };
        let Some(pool) = engine.listener_named(&session.pool).filter(speaks_alike) else {
            // Its quota went with the pool.
            tracing::warn!("a client of pool {} is closed: there is no such pool", session.pool);
            self.core.writer.add_sessions_cut(1);
            return;
        };
        let arrived = match unpack(&session, descriptors) {
            Ok(arrived) => arrived,
            Err(error) => {
                tracing::error!("a session cannot be taken over: {error}");
                self.core.shared.give(self.core.engine.quota(pool));
                self.core.writer.add_sessions_cut(1);
                return;
            }
        };
        let mut session = session;
        if let Some(paired) = session.paired.take() {
            return self.adopt_pair(pool, session, *paired, arrived);
        }
        let Arrived { socket, input, output, luggage, .. } = arrived;
        self.core.follow_pause(pool);
        let parts = SessionParts {
            id: session.id,
            authenticated: session.authenticated,
            swallow: session.swallow,
            wire_protocol: WireProtocol::named(&session.dialect),
            database: session.database,
            profile: Profile {
                name: session.name.unwrap_or_default(),
                library: session.library,
                library_version: session.library_version,
                user: Profile::user_named(&session.user),
                expires_at: None,
                key_prefix: None,
            },
            expires_in_us: session.expires_in_us,
            no_evict: session.no_evict,
            tracking: session.tracking.map(|it| it.words).unwrap_or_default(),
            notified: Notified::numbered(session.notified),
            reads: Reads::named(&session.reads),
            silence: match (session.reply_off, session.reply_skip) {
                (true, _) => Silence::All,
                (false, true) => Silence::Next,
                (false, false) => Silence::None,
            },
            is_observed: session.overheard,
            called: session.called,
            age_us: session.age_us,
            totals: {
                let [received, sent, requests, errors, slowest_us] = session.totals;
                let [errors, slowest_us] =
                    [errors, slowest_us].map(|it| u32::try_from(it).unwrap_or(u32::MAX));
                Totals { received, sent, requests, errors, slowest_us }
            },
        };
        let conn = self.core.engine.handle_adopted(pool, parts, input, output, self.core.now);
        self.core.writer.add_sessions_in(1);
        let token = Token(conn.token());
        if let (Some(client), Some(to)) = (session.passed_from, session.passed_to) {
            self.core.told.insert(token, Passed { client: *client, to });
        }
        let adopted = match luggage {
            Some(luggage) => self.driver.adopt_secured(token, socket, luggage),
            None => self.driver.adopt(token, socket),
        };
        if adopted.is_err() {
            self.core.told.remove(&token);
            return self.core.report_closed(token, CloseKind::Exhausted);
        }
        // Where it comes from may be closed to clients here, though not where it was let in.
        let sources = &self.core.engine.listener_config(pool).client_sources;
        if !sources.allows_all()
            && let Some(host) = host(&self.driver, &self.core.told, token)
            && !sources.allows(host)
        {
            self.core.note_denied(pool, host);
            self.core.engine.dismiss(conn, self.core.now);
        }
    }
}

/// What a secured connection needs elsewhere. Its bytes are appended to `bytes`.
fn pack(luggage: Luggage, bytes: &mut Vec<u8>) -> Box<SecuredSession> {
    bytes.extend_from_slice(&luggage.input);
    bytes.extend_from_slice(&luggage.output);
    Box::new(SecuredSession {
        parted: luggage.parted,
        input: luggage.input.len() as u64,
        output: luggage.output.len() as u64,
        holds_byte: luggage.holds_byte,
    })
}
