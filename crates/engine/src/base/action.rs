//! What the engine wants done.

use std::fmt;

use cashew_metrics::StateChange;

use crate::base::failure::Failure;
use crate::base::id::{BackendId, ConnId, ListenerId, ServerId};

/// Work for the driver, or news for the master.
///
/// Listeners, backends and servers are those of the epoch in use. In news for the log, and where to
/// connect, they may be others: of a pool that is being made ready or was removed. What is configured
/// of them [`Engine::backend_config`](crate::Engine::backend_config) and
/// [`Engine::listener_config`](crate::Engine::listener_config) tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to a server; answer with `handle_connected` or `handle_closed`.
    Connect {
        conn: ConnId,
        backend: BackendId,
        server: ServerId,
    },
    /// Close the connection; its id means nothing from here on.
    Close {
        conn: ConnId,
    },
    /// Close the connection so that its peer finds it reset.
    Reset {
        conn: ConnId,
    },
    /// Tell the peer that nothing more comes; all there was is written. It may still send.
    EndWriting {
        conn: ConnId,
    },
    /// Do not read the connection until [`Action::ResumeRead`].
    PauseRead {
        conn: ConnId,
    },
    ResumeRead {
        conn: ConnId,
    },
    /// Tell of what comes on the connection only when so many bytes are there, or its end. Until it
    /// is told otherwise, and for every connection at first, 1.
    SetLowWater {
        conn: ConnId,
        bytes: u32,
    },
    /// The client that was told to leave is at rest: have the driver let go of its connection, then
    /// call `export`.
    HandOff {
        conn: ConnId,
    },
    /// The pool dispatches nothing any more, as `handle_hold` asked, and nothing is on its way to
    /// servers that are well, or the time for that is up.
    Held {
        backend: BackendId,
        version: u64,
    },
    /// The epoch can be switched to, as `handle_prepare` asked.
    Prepared {
        epoch: u64,
    },
    /// Pools that change dispatch nothing any more, as `handle_pause` asked; so many of their
    /// requests are still on their way, since the time for them is up.
    Paused {
        epoch: u64,
        unfinished: u64,
    },
    /// The server reached its failure limit: every worker should leave it out of the ring.
    Eject {
        backend: BackendId,
        server: ServerId,
        why: Failure,
    },
    /// The server is taken for a primary and refuses writes as a replica does. Said every 100 ms at most.
    NotPrimary {
        backend: BackendId,
        server: ServerId,
    },
    /// Something does not go with the map of the cluster's slots: a redirect, a node that is not in it, or one
    /// that is lost. Said every 100 ms at most.
    MapDoubted {
        backend: BackendId,
    },
    /// The ejected server answered: every worker may take it back. Or it answers that may have been down
    /// while its pool fails open.
    Readmit {
        backend: BackendId,
        server: ServerId,
    },
    /// Clients of the pool monitor here, and want to be told what others ask, or none do any more.
    /// The former is said again every second. By its name, since who monitors may stay behind in a
    /// pool that is removed.
    Monitors {
        pool: String,
        any: bool,
    },
    /// The client `by` asks something of all workers: have this one answer by `handle_question`,
    /// and the others, too, if they are in the scope. Their answers are for `handle_answer`.
    Ask {
        ticket: u64,
        scope: Scope,
        listener: ListenerId,
        by: u64,
        request: Vec<u8>,
    },
    /// Ask who the client is that gives this name and password: answer with `handle_authenticated`.
    Authenticate {
        conn: ConnId,
        ticket: u64,
        listener: ListenerId,
        login: Box<Login>,
    },
    /// News for the log: what a client did, and how often clients of its pool have since this was told
    /// last, this time included.
    Notice {
        listener: ListenerId,
        conn: ConnId,
        notice: Notice,
        times: u64,
    },
    /// News for the log: so many bytes are held, by no client's fault, that nobody's new requests are taken
    /// for now.
    Pressed {
        held: u64,
    },
    /// News for the log: so many clients of the pool are not read for now, as they hold most, and the
    /// pool holds more than its share.
    HeldBack {
        listener: ListenerId,
        clients: u32,
        held: u64,
        share: u64,
    },
    /// News for the log: clients of the pool that held most were closed, which freed so many bytes. The
    /// one that held most of all had the id `most`; all of the pool held `held` then.
    Shed {
        listener: ListenerId,
        clients: u32,
        bytes: u64,
        most: u64,
        held: u64,
        share: u64,
    },
    /// News for the log: all connections to a server that large requests and replies have to themselves
    /// are taken. Said every ten seconds at most, as what follows.
    LargeWaits {
        backend: BackendId,
        server: ServerId,
    },
    /// News for the log: so many clients of this worker wait for a connection to a server for a
    /// transaction or a blocking call.
    SessionsWait {
        backend: BackendId,
        server: ServerId,
        clients: u32,
    },
    /// News for the log: the client of this id was put off, since it sent a large request, or took a
    /// large reply, too slowly.
    SlowClient {
        backend: BackendId,
        server: ServerId,
        id: u64,
        end: SlowEnd,
    },
    /// News for the log: how a server is has changed, for all workers. One of them is told.
    ServerState {
        backend: BackendId,
        server: ServerId,
        change: StateChange,
    },
    /// News for the log: something that is wrong with this machine keeps it from connecting to a
    /// server. Said again when the cause is another, or after a connection was made in between, every
    /// ten seconds at most.
    ServerHindered {
        backend: BackendId,
        server: ServerId,
        why: Failure,
    },
    /// News for the log: a server sent what is no reply to what it was asked. Said every ten seconds at
    /// most of each server.
    ServerMisfit {
        backend: BackendId,
        server: ServerId,
        expected: &'static str,
        excerpt: Vec<u8>,
        sequel: Sequel,
    },
    /// News for the log: a server does not take the first of its credentials, and is given others.
    CredentialsRefused {
        backend: BackendId,
        server: ServerId,
    },
    /// News for the log: replies of a server cannot be kept by the node `cache`, since it refuses what that takes with
    /// this error; or they can again.
    KeepingRefused {
        backend: BackendId,
        server: ServerId,
        why: Option<Box<str>>,
    },
    /// News for the log: a server refuses to have, to give or to remove a copy of a hot key, with this error. Said once until the configuration
    /// changes.
    CopyRefused {
        backend: BackendId,
        server: ServerId,
        why: Box<str>,
    },
    /// News for the log: a server that this machine could not connect to is connected again.
    ServerRecovered {
        backend: BackendId,
        server: ServerId,
    },
}

/// What somebody says of itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub name: String,
    pub password: Vec<u8>,
}

/// Logs do not need it.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:***", self.name)
    }
}

/// What a client did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Called what clients of its pool may not call.
    Refused { command: &'static str },
    /// Gave a wrong password.
    WrongPassword,
    /// Spoke HTTP: it may be a browser that somebody sends requests with.
    Http,
    /// Asked more than its user may, by the number of that among the users with limits.
    OverQuota { user: u32 },
    /// Got an error of a server that is a node of a cluster, which its pool does not know.
    Redirected,
}

impl Notice {
    pub(crate) const KINDS: usize = 5;

    pub(crate) fn kind(self) -> usize {
        match self {
            Self::Refused { .. } => 0,
            Self::WrongPassword => 1,
            Self::Http => 2,
            Self::OverQuota { .. } => 3,
            Self::Redirected => 4,
        }
    }

    /// Of a pool's notices of this kind, one is told in so long; the others are counted.
    pub(crate) fn every_ms(self) -> u64 {
        match self {
            // It is told of the pool rather than of its clients, and goes on until somebody changes that.
            Self::Redirected => 600_000,
            Self::Refused { .. } | Self::WrongPassword | Self::Http | Self::OverQuota { .. } => {
                10_000
            }
        }
    }
}

/// What became of a slow client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowEnd {
    /// Its request was given up.
    Refused,
    /// The rest of its reply is kept here.
    Collected,
    Closed,
}

/// Which workers something concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This one.
    Here,
    Everywhere,
}

/// What became of a connection whose server sent what does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequel {
    Closed,
    /// It goes on: where the next reply begins is known.
    Dropped,
}
