//! Log lines about clients, with their addresses.

use cashew_driver::Driver;
use cashew_engine::{ClientPause, ConnId, ListenerId, Notice};

use cashew_metrics::EventKind;

use super::Worker;
use crate::place::place;

impl<D: Driver> Worker<D> {
    /// A client here began a pause, extended it, or ended it.
    pub(super) fn log_pause(&mut self, pool: ListenerId, by: u64) {
        let engine = &self.core.engine;
        let config = engine.listener_config(pool);
        let peer = engine
            .client_of(pool, by)
            .map(|conn| place(&self.driver, &self.core.told, &config.listen, conn));
        let peer = peer.map_or_else(|| "an address that is gone".to_owned(), |place| place.peer);
        let name = config.name.clone();
        self.pauses_begun.retain(|pool| *pool != name);
        match engine.client_pause(pool) {
            Some(ClientPause { until, writes_only }) => {
                let whom = if writes_only { "clients that write" } else { "all clients" };
                let millis = until.micros_since(self.core.now).div_ceil(1000);
                tracing::warn!(
                    kind = EventKind::ClientsPaused.name(),
                    pool = name,
                    "pool {name}: CLIENT PAUSE by the client at {peer} (id {by}): {whom} are held \
                     back for {millis} ms"
                );
                self.pauses_begun.push(name);
            }
            None => tracing::warn!(
                kind = EventKind::ClientsContinue.name(),
                pool = name,
                "pool {name}: CLIENT UNPAUSE by the client at {peer} (id {by}): clients go on"
            ),
        }
    }

    /// Logs that pauses begun here are over.
    pub(super) fn log_ended_pauses(&mut self) {
        let engine = &self.core.engine;
        self.pauses_begun.retain(|name| {
            let is_paused =
                engine.listener_named(name).is_some_and(|pool| engine.client_pause(pool).is_some());
            if !is_paused {
                tracing::warn!(
                    kind = EventKind::ClientsContinue.name(),
                    pool = name,
                    "pool {name}: CLIENT PAUSE is over: clients go on"
                );
            }
            is_paused
        });
    }

    pub(super) fn log_notice(
        &mut self,
        pool: ListenerId,
        conn: ConnId,
        notice: Notice,
        times: u64,
    ) {
        let config = self.core.engine.listener_config(pool);
        let peer = match place(&self.driver, &self.core.told, &config.listen, conn).peer {
            peer if peer.is_empty() => "an address that is gone".to_owned(),
            peer => peer,
        };
        let name = &config.name;
        let before = match times {
            0 | 1 => String::new(),
            times => format!(" ({times} times by clients of this pool since the last such line)"),
        };
        match notice {
            Notice::Refused { command } => tracing::warn!(
                kind = EventKind::CommandRefused.name(),
                pool = name,
                "pool {name}: the client at {peer} may not call {}, see command_policy{before}",
                command.to_ascii_uppercase()
            ),
            Notice::WrongPassword => tracing::warn!(
                kind = EventKind::PasswordWrong.name(),
                pool = name,
                "pool {name}: the client at {peer} gave a wrong user or password{before}"
            ),
            Notice::OverQuota { user } => {
                let user = config.limited_users().nth(user as usize);
                tracing::warn!(
                    kind = EventKind::QuotaUsedUp.name(),
                    pool = name,
                    "pool {name}: user '{}' has used up a limit, and the client at {peer} gets an error{before}",
                    user.map_or("", |user| &user.name)
                )
            }
            Notice::Redirected => {
                // Pools that a route leads to are asked for in its place.
                let whose = if config.route.is_some() { "its pools" } else { "the pool" };
                tracing::warn!(
                    kind = EventKind::ClientRedirected.name(),
                    pool = name,
                    "pool {name}: the client at {peer} got MOVED, ASK or CLUSTERDOWN: a server is a node of a \
                     cluster, and {whose} would follow that with \"cluster: {{seeds: [host:port]}}\" in the \
                     place of \"servers\"{before}"
                )
            }
            Notice::Http => tracing::warn!(
                kind = EventKind::HttpClient.name(),
                pool = name,
                "pool {name}: possible attack: the client at {peer} sends POST or Host: as a command, \
                 perhaps a browser that is made to; its connection is closed{before}"
            ),
        }
    }
}
