//! What Redis's features keep of listeners and of backends, which need not know of them.

use cashew_config::snapshot;

use crate::base::id::ServerId;
use crate::base::table::Table;
use crate::base::time::Time;
use crate::redis::client_list::Reach;
use crate::redis::client_pause::ClientPause;
use crate::redis::keyless::Walk;
use crate::redis::monitor::Watch;
use crate::redis::pubsub::{Feed, PubSub};
use crate::redis::scripts::{Scripts, Seen};
use crate::upstream::tracking::Tracker;

/// Of one listener.
pub(crate) struct ListenerState {
    /// Who is told what its clients ask.
    pub(crate) watch: Watch,
    /// What clients may do to others.
    pub(crate) reach: Reach,
    /// Its clients are held back by one of them.
    pub(crate) client_pause: Option<ClientPause>,
}

impl ListenerState {
    pub(crate) fn new(config: &snapshot::Pool) -> Self {
        Self { watch: Watch::new(), reach: Reach::of(config), client_pause: None }
    }

    pub(crate) fn configure(&mut self, config: &snapshot::Pool) {
        self.reach = Reach::of(config);
    }
}

/// Of one backend.
pub(crate) struct BackendState {
    pub(crate) pubsub: PubSub,
    pub(crate) scripts: Scripts,
    /// What cursors of SCAN are about.
    pub(crate) walk: Walk,
    /// As many as the backend has.
    pub(crate) servers: Table<ServerId, ServerState>,
}

/// Of one server.
#[derive(Default)]
pub(crate) struct ServerState {
    pub(crate) scripts_seen: Seen,
    /// Some function has been called there since it was connected.
    pub(crate) functions_seen: bool,
    /// When it may be given those of another server.
    pub(crate) functions_at: Time,
    /// What its messages come on, once somebody has subscribed to anything there.
    pub(crate) feed: Option<Box<Feed>>,
    /// What tells of keys that change, once somebody has wanted to know.
    pub(crate) tracker: Option<Box<Tracker>>,
}

impl ServerState {
    /// It may be another process that has been started in the place of the last one.
    pub(crate) fn forget_scripts(&mut self) {
        self.scripts_seen.clear();
        self.functions_seen = false;
    }
}

impl BackendState {
    pub(crate) fn new(config: &snapshot::Pool) -> Self {
        Self {
            pubsub: PubSub::new(&config.name),
            scripts: Scripts::default(),
            walk: Walk::new(config),
            servers: config.servers.iter().map(|_| ServerState::default()).collect(),
        }
    }

    pub(crate) fn configure(&mut self, config: &snapshot::Pool) {
        self.walk = Walk::new(config);
    }
}
