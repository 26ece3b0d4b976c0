//! The kinds of events. docs/operations.md has them as a table, which a test compares.

use super::{KINDS_MAX, limits::Limit};

/// Where events of a kind are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum EventRing {
    /// What befalls servers, pools and clients.
    Servers,
    /// What is done to the instance and its processes.
    Instance,
}

pub(super) const RINGS: usize = 2;

macro_rules! kinds {
    ($($variant:ident $ring:ident $name:literal: $meaning:literal,)*) => {
        /// What kind of change an event is. The names are for good: tools look for them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum EventKind {
            $(#[doc = $meaning] $variant,)*
        }

        impl EventKind {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning,)*
                }
            }

            pub(super) const fn ring(self) -> EventRing {
                match self {
                    $(Self::$variant => EventRing::$ring,)*
                }
            }
        }
    };
}

// Numbers are in memory that outlives a program: new kinds go to the end, and none is removed.
kinds! {
    ServerInDoubt Servers "server_in_doubt": "A connection to the server has failed. Others may still work",
    ServerDown Servers "server_down": "The server cannot be connected to, or answers nothing",
    ServerUp Servers "server_up": "The server answers again. The text says after how long",
    ServerEjected Servers "server_ejected": "All workers leave the server out of the ring",
    ServerReadmitted Servers "server_readmitted": "All workers have the server on the ring again",
    ServerHindered Servers "server_hindered": "This machine, not the server, keeps a worker from connecting to it",
    ServerReconnected Servers "server_reconnected": "That is over",
    ServerMisfit Servers "server_misfit": "The server has sent what fits no request",
    ServerMoved Servers "server_moved": "The name of the server's host leads to other addresses",
    ServerCrowded Servers "server_crowded": "All connections to the server for large or blocking requests are taken",
    PoolEmpty Servers "pool_empty": "All servers of the pool are ejected",
    PoolFailsOpen Servers "pool_fails_open": "Too many servers of the pool are down: all are used",
    PoolRecovered Servers "pool_recovered": "The pool does not fail open any more",
    RingNotChanged Servers "ring_not_changed": "A server was to be ejected or readmitted, or a primary to change, and workers did not hold still in time; it is tried again",
    PrimaryKnown Servers "primary_known": "At the start: who is the primary of a group that Sentinels watch",
    PrimaryUnknown Servers "primary_unknown": "At the start: nobody says who is the primary of a group",
    PrimaryChanged Servers "primary_changed": "Another server takes the writes. The text says who decided that",
    PrimaryNotChanged Servers "primary_not_changed": "Another server was to take the writes, and does not. The text says why",
    ReplicasChanged Servers "replicas_changed": "Sentinels name other replicas of a group, and they are used",
    GroupState Servers "group_state": "What is known of a group of Sentinels has changed: see its states",
    SentinelLost Servers "sentinel_lost": "A Sentinel does not answer, or refuses what it is asked",
    SentinelFound Servers "sentinel_found": "A Sentinel answers",
    SentinelUnaware Servers "sentinel_unaware": "A Sentinel does not know a group",
    SentinelsTooFew Servers "sentinels_too_few": "No majority of the Sentinels answers: primaries stay where they are",
    SentinelsEnough Servers "sentinels_enough": "A majority of the Sentinels answers again",
    SpoolBegun Servers "spool_begun": "The server missed writes, and begins to be told what to forget",
    SpoolFinished Servers "spool_finished": "The server has forgotten what it missed",
    SpoolHoldOver Servers "spool_hold_over": "The server answers reads before it has forgotten everything",
    SpoolRefused Servers "spool_refused": "The server refuses to be told what to forget",
    SpoolFull Servers "spool_full": "The spool takes no keys: clients get errors instead",
    SpoolWrites Servers "spool_writes": "The spool takes keys again",
    ClientsPaused Servers "clients_paused": "A client has called CLIENT PAUSE",
    ClientsContinue Servers "clients_continue": "The pause is over, or a client has called CLIENT UNPAUSE",
    CommandRefused Servers "command_refused": "A client has called what `command_policy` forbids",
    PasswordWrong Servers "password_wrong": "A client gave a wrong user or password",
    HttpClient Servers "http_client": "A client speaks HTTP, perhaps a browser that is made to",
    MemoryPressed Servers "memory_pressed": "A worker takes no new requests for lack of memory",
    ClientsHeldBack Servers "clients_held_back": "Clients of the pool are not read, since it holds more than its share of memory",
    ClientsShed Servers "clients_shed": "Clients of the pool are closed, since it holds more than its share of memory",
    ClientSlow Servers "client_slow": "A client is too slow for the connection to a server that it has for itself",
    ClientInsecure Servers "client_insecure": "The TLS handshake of a client has failed",
    ClientsRefused Servers "clients_refused": "A client is refused, since the remaining files are for servers",
    ClientsWait Servers "clients_wait": "Clients wait to be let in until there are files",
    InstanceServes Instance "instance_serves": "All workers serve for the first time",
    InstanceStops Instance "instance_stops": "The instance was told to stop",
    InstanceStopped Instance "instance_stopped": "The instance has stopped",
    ReloadDone Instance "reload_done": "A changed configuration is in effect",
    ReloadNeedless Instance "reload_needless": "The configuration was loaded, and has not changed",
    ReloadRefused Instance "reload_refused": "The configuration stays as it is. The text says why",
    WorkersResized Instance "workers_resized": "A reload has changed the number of workers",
    UpgradeBegun Instance "upgrade_begun": "Another program is tried",
    UpgradeDone Instance "upgrade_done": "The instance is another program",
    UpgradeFailed Instance "upgrade_failed": "It is not. The text says why",
    CountersLost Instance "counters_lost": "Counters start from zero, since the program before counted otherwise",
    WorkerStarted Instance "worker_started": "A worker is started",
    WorkerRetires Instance "worker_retires": "A worker is to end when its clients have left or moved",
    WorkerStopped Instance "worker_stopped": "A worker has ended as it was to",
    WorkerCrashed Instance "worker_crashed": "A worker has died, and is started again",
    WorkerCrashesOn Instance "worker_crashes_on": "A worker dies again and again",
    WorkerHung Instance "worker_hung": "A worker shows no life, and is ended",
    WorkerAborted Instance "worker_aborted": "A worker does what it must not, and is ended",
    WorkerKilled Instance "worker_killed": "A worker has not ended in time, and is killed",
    HelperStarted Instance "helper_started": "The admin process or discovery is started",
    HelperStopped Instance "helper_stopped": "One of them has ended as it was to",
    HelperCrashed Instance "helper_crashed": "One of them has died, and is started again",
    HelperCrashesOn Instance "helper_crashes_on": "One of them dies again and again",
    HelperHung Instance "helper_hung": "One of them shows no life, and is ended",
    HelperAborted Instance "helper_aborted": "One of them does what it must not, and is ended",
    HelperKilled Instance "helper_killed": "One of them has not ended in time, and is killed",
    MasterGone Instance "master_gone": "The master has died: a worker finishes what is in flight",
    ClientsCut Instance "clients_cut": "A worker that ends has closed clients that were not at rest in time",
    RequestsCut Instance "requests_cut": "Requests were not answered in time before a change of the configuration",
    LoadMoved Instance "load_moved": "A busy worker hands clients to another",
    ListenerOpened Instance "listener_opened": "Clients can connect to the pool, or to the statistics, at an address",
    ListenerClosed Instance "listener_closed": "They cannot any more",
    FilesShort Instance "files_short": "Workers may open too few files for their servers and clients",
    LogLevel Instance "log_level": "The log level is another",
    LogReopened Instance "log_reopened": "The log file is reopened",
    LogLinesLost Instance "log_lines_lost": "A process cannot write to its log. Shown here alone, of course, until it can",
    CredentialsRefused Servers "credentials_refused": "A server does not take the first of its credentials, and is given others",
    QuotaUsedUp Servers "quota_used_up": "A user has used up a limit, and gets errors",
    ClientDenied Servers "client_denied": "A client comes from an address that `allow_from` and `deny_from` do not let in",
    ClientUnintroduced Servers "client_unintroduced": "A connection does not begin with a right header of the PROXY protocol",
    ServersKnown Servers "servers_known": "At the start: how many servers a pool has that a source names",
    ServersUnknown Servers "servers_unknown": "At the start: a source does not tell which servers there are. The text says why, and which servers are used",
    ServersChanged Servers "servers_changed": "Servers that a source names have joined, left or changed. The text says which",
    ServersNotChanged Servers "servers_not_changed": "Servers that a source names were to be in effect, and are not. The text says why",
    ServersHeld Servers "servers_held": "Many servers have gone from a source, and stay until it has said so for a while",
    SourceLost Servers "source_lost": "A source does not tell any more which servers a pool has, and these stay. The text says why",
    SourceFound Servers "source_found": "It does again",
    MapKnown Servers "map_known": "At the start: how many nodes and slots a cluster has",
    MapUnknown Servers "map_unknown": "At the start: no node tells which nodes and slots a cluster has",
    MapChanged Servers "map_changed": "Nodes of a cluster have joined or left, slots have moved, or others take the writes. The text says which",
    MapNotChanged Servers "map_not_changed": "Another map of a cluster was to be in effect, and is not. The text says why",
    SeedLost Servers "seed_lost": "A seed of a cluster does not answer, or refuses what it is asked",
    SeedFound Servers "seed_found": "A seed of a cluster answers",
    ClientRedirected Servers "client_redirected": "A client got the error of a node of a cluster, as the pool does not know of the cluster",
    TokenWrong Instance "token_wrong": "Somebody shows the statistics a wrong token",
    AuthoriserLost Servers "authoriser_lost": "The external authoriser does not answer a worker as it should. The text says why",
    AuthoriserBack Servers "authoriser_back": "It answers again",
    AuthoriserOdd Servers "authoriser_odd": "The external authoriser names a user who is not configured, or its file has a bad line",
    MoveBegun Instance "move_begun": "The pool of a `migrate` node that serves is copied to the other one, from the start",
    MovePaused Instance "move_paused": "Nothing is copied for now",
    MoveInStep Instance "move_in_step": "The copy has everything, and follows what changes",
    MoveInterrupted Instance "move_interrupted": "A server was lost: copying begins from the start. The text says why",
    MoveCompared Instance "move_compared": "Both pools were compared. The text says how many keys differ",
    MoveMismatch Servers "move_mismatch": "A key differs in the copy though it has not changed, and is copied again",
    MoveKeyRefused Servers "move_key_refused": "The copy does not take a key. The text says why",
    MoveCutOver Instance "move_cut_over": "Clients of the route are served by the pool that was the copy",
    MoveRolledBack Instance "move_rolled_back": "They are served by the former pool again",
    MoveNotChanged Instance "move_not_changed": "They were to be served by the other pool, and are not. The text says why",
    KeysMoved Instance "keys_moved": "Keys go to another pool by the list of a route. The text says how many",
    InstanceDrains Instance "instance_drains": "The instance is not ready any more, and is to stop when clients have had time to leave",
    InstanceStays Instance "instance_stays": "It is not to stop after all",
    HotKeyCached Instance "hot_key_cached": "Replies to reads of a hot key are kept from here on, by rule or by command. The text says which key",
    HotKeyReleased Instance "hot_key_released": "Nothing is done about a hot key any more: replies are not kept, or it is in its own pool again. The text says why",
    ServerDrains Instance "server_drains": "An operator takes keys away from a server, or gives it its keys again, in steps. The text says how many",
    ServerDrained Instance "server_drained": "It has none any more: it gets no requests, reads or subscriptions",
    ServerUndrained Instance "server_undrained": "It has all its keys again",
    HotKeyMoved Instance "hot_key_moved": "A hot key is in another pool from here on, by rule or by command. The text says which key",
    ServerMaintenance Servers "server_maintenance": "A server that was asked to says that it goes, or that it may take longer; or that it does not tell. The text says what",
    ServerRelocated Servers "server_relocated": "A server is at another address from now on, as it has said, or connections to it were made anew",
    CacheRefused Servers "cache_refused": "Replies of a server are not kept by the node `cache`, since it refuses what that takes. The text says why",
    CacheTaken Servers "cache_taken": "They can be kept again",
    HotKeySplit Instance "hot_key_split": "Reads of a hot key may go to copies on other servers from here on, by rule or by command. The text says which key",
    CopyRefused Servers "copy_refused": "A server refuses to have, to give or to remove copies of hot keys: these are served without it. The text says why",
}

const _: () = assert!(EventKind::ALL.len() <= KINDS_MAX);

impl EventKind {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    pub(super) fn numbered(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Of the same pool and server. A person reads what people do, however often they do it.
    pub(super) const fn limit(self) -> Limit {
        match self.ring() {
            EventRing::Servers => Limit { burst: 10, every_ms: 60_000 },
            EventRing::Instance => Limit { burst: 100, every_ms: 2_000 },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_plain_and_lead_back() {
        for &kind in EventKind::ALL {
            let name = kind.name();
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(EventKind::named(name), Some(kind));
            assert_eq!(EventKind::numbered(kind as u16), Some(kind));
        }
        assert_eq!(EventKind::named("no_such_kind"), None);
        let names: HashSet<_> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), EventKind::ALL.len());
    }
}
