//! The statistics. The order of the variants is the order in shared memory.

/// The public name and description of a counter or gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The name in the statistics JSON; twemproxy's own where twemproxy has it.
    pub name: &'static str,
    pub prometheus: &'static str,
    pub help: &'static str,
}

/// The description serves as documentation here, as help for Prometheus and in the list of the
/// command line.
macro_rules! stats {
    ($(#[$attr:meta])* pub enum $enum:ident {
        $($variant:ident => $name:literal, $prometheus:literal, $help:literal;)*
    }) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $enum {
            $(#[doc = $help] $variant,)*
        }

        impl $enum {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const STATS: &'static [Stat] =
                &[$(Stat { name: $name, prometheus: $prometheus, help: $help },)*];

            pub const fn stat(self) -> &'static Stat {
                &Self::STATS[self as usize]
            }
        }
    };
}

stats! {
    /// Counters of a class of commands, or of a prefix of keys. They only grow.
    pub enum CommandCounter {
        Requests => "requests", "cashew_command_requests_total",
            "Requests answered";
        Errors => "errors", "cashew_command_errors_total",
            "Requests answered by an error, the server's or the gateway's";
        Hits => "hits", "cashew_command_hits_total",
            "Values that requests of the class get brought";
        Misses => "misses", "cashew_command_misses_total",
            "Keys that requests of the class get did not find";
        RequestBytes => "request_bytes", "cashew_command_request_bytes_total",
            "Bytes of requests as clients sent them";
        ReplyBytes => "reply_bytes", "cashew_command_reply_bytes_total",
            "Bytes of replies as clients get them";
    }
}

/// A number for each [`CommandCounter`], in its place.
pub type CommandCounts = [u64; CommandCounter::ALL.len()];

stats! {
    /// Counters of a pool's user. They only grow.
    pub enum UserCounter {
        Requests => "requests", "cashew_user_requests_total",
            "Requests of clients that are this user";
        Errors => "errors", "cashew_user_errors_total",
            "Replies to these that are errors, the server's or the gateway's";
        BytesReceived => "bytes_received", "cashew_user_bytes_received_total",
            "Bytes received from clients that are this user";
        BytesSent => "bytes_sent", "cashew_user_bytes_sent_total",
            "Bytes sent to clients that are this user";
        SlowestUs => "slowest_us", "cashew_user_slowest_seconds",
            "The longest from a request of this user to its reply";
    }
}

stats! {
    /// Counters of a pool. They only grow.
    pub enum PoolCounter {
        ClientEof => "client_eof", "cashew_client_eof_total",
            "Client connections closed by the client";
        ClientErr => "client_err", "cashew_client_errors_total",
            "Client connections closed because of an error";
        ServerEjects => "server_ejects", "cashew_server_ejects_total",
            "Times a server was ejected from the ring";
        ForwardError => "forward_error", "cashew_forward_errors_total",
            "Requests answered with an error made by the proxy";
        Fragments => "fragments", "cashew_fragments_total",
            "Fragments made of requests with keys on several servers";
        ClientsAccepted => "clients_accepted", "cashew_clients_accepted_total",
            "Client connections accepted";
        ClientsRefused => "clients_refused", "cashew_clients_refused_total",
            "Client connections refused because of client_connections";
        ClientsOverflowed => "clients_overflowed", "cashew_clients_overflowed_total",
            "Client connections closed because too many replies waited for them";
        ClientsShed => "clients_shed", "cashew_clients_shed_total",
            "Client connections closed because a worker's buffers took all of its memory_max";
        CommandsRefused => "commands_refused", "cashew_commands_refused_total",
            "Requests refused by command_policy";
        MaintenanceNotices => "maintenance_notices", "cashew_maintenance_notices_total",
            "Maintenance notifications sent to clients";
        AuthFailures => "auth_failures", "cashew_auth_failures_total",
            "Attempts of clients to log in with a wrong password";
        ExternalAuthAsked => "external_auth_asked", "cashew_external_auth_asked_total",
            "Logins that the external authoriser was asked about";
        ExternalAuthRefused => "external_auth_refused", "cashew_external_auth_refused_total",
            "Logins that the external authoriser refused";
        ExternalAuthOutages => "external_auth_outages", "cashew_external_auth_outages_total",
            "Questions that the external authoriser did not answer, or not as it should";
        ExternalAuthCached => "external_auth_cached", "cashew_external_auth_cached_total",
            "Those of them where an earlier answer was used instead";
        ClientsThrottled => "clients_throttled", "cashew_clients_throttled_total",
            "Times a client was not read for a while because it held much of a worker's memory_max";
        LargeWaits => "large_waits", "cashew_large_waits_total",
            "Times a request with a large value found all connections for large values in use";
        SlowClients => "slow_clients", "cashew_slow_clients_total",
            "Clients that sent a large request or read a large reply too slowly";
        SessionWaits => "session_waits", "cashew_session_waits_total",
            "Times a client had to wait for a connection for a transaction or a blocking call";
        SessionsReclaimed => "sessions_reclaimed", "cashew_sessions_reclaimed_total",
            "Connections taken back from clients that held them too long while others waited";
        PipelinesPaused => "pipelines_paused", "cashew_pipelines_paused_total",
            "Times a client's pipeline waited for replies to show how large they are";
        MessagesDelivered => "messages_delivered", "cashew_messages_delivered_total",
            "Pub/sub messages delivered, once for each client";
        MonitorDropped => "monitor_dropped", "cashew_monitor_dropped_total",
            "Commands not reported to clients in MONITOR";
        ScriptFlushes => "script_flushes", "cashew_script_flushes_total",
            "SCRIPT FLUSH commands of clients";
        RequestsRetried => "requests_retried", "cashew_requests_retried_total",
            "Times a request was kept from its client's sight and sent again, since its server refused to run it or, of reads, failed";
        Moved => "cluster_moved", "cashew_cluster_moved_total",
            "Requests that a node of a cluster sent to the owner of their slot (MOVED)";
        Asked => "cluster_asked", "cashew_cluster_asked_total",
            "Requests that a node of a cluster sent to where a slot is moving (ASK)";
        TriedAgain => "cluster_tried_again", "cashew_cluster_tried_again_total",
            "Requests that were sent again as their slot is moving (TRYAGAIN)";
        RedirectsPassedOn => "redirects_passed_on", "cashew_redirects_passed_on_total",
            "Errors of nodes of a cluster (MOVED, ASK, CLUSTERDOWN) that clients got, as the pool is not configured as one";
        RetriesDenied => "retries_denied", "cashew_retries_denied_total",
            "Reads not sent again though their server failed, since the budget of the option retry_reads was spent";
        ReadsCoalesced => "reads_coalesced", "cashew_reads_coalesced_total",
            "Reads that were not sent, as an equal one was, whose reply they got";
        KeysInvalidated => "keys_invalidated", "cashew_keys_invalidated_total",
            "Keys that clients with CLIENT TRACKING were told of as they may have changed";
        HedgesSent => "hedges_sent", "cashew_hedges_sent_total",
            "Reads sent to a second server, since the first took long";
        HedgesWon => "hedges_won", "cashew_hedges_won_total",
            "Reads that the second server answered first";
        HedgesDenied => "hedges_denied", "cashew_hedges_denied_total",
            "Reads not sent to a second server, since the budget of the option hedge was spent";
        RouteFailovers => "route_failovers", "cashew_route_failovers_total",
            "Times a route asked the next pool since one had failed";
        RouteRefused => "route_refused", "cashew_route_refused_total",
            "Requests that a route's limit or outstanding did not let through";
        RegionCopies => "region_copies", "cashew_region_copies_total",
            "Writes that were sent on from one region to another";
        RegionForgets => "region_forgets", "cashew_region_forgets_total",
            "Keys that another region was told to forget, as it may have had them otherwise";
        CacheHits => "cache_hits", "cashew_cache_hits_total",
            "Keys read that a route's cache had";
        CacheMisses => "cache_misses", "cashew_cache_misses_total",
            "Keys read that a route's cache may have and had not";
        CacheFills => "cache_fills", "cashew_cache_fills_total",
            "Replies that a route's cache took in";
        CacheWritten => "cache_written", "cashew_cache_written_total",
            "Replies that a route's cache dropped when they were asked for, as their keys had been written through this instance";
        CacheInvalidations => "cache_invalidations", "cashew_cache_invalidations_total",
            "Replies that a route's cache dropped since their servers said that they had changed, or may have";
        CacheEvictions => "cache_evictions", "cashew_cache_evictions_total",
            "Replies that a route's cache dropped for want of room";
        CopyReads => "copy_reads", "cashew_copy_reads_total",
            "Reads of split hot keys that copies answered";
        CopiesWritten => "copies_written", "cashew_copies_written_total",
            "Copies of hot keys that were written to other servers";
        CopiesMissing => "copies_missing", "cashew_copies_missing_total",
            "Reads of copies that found none, or got no answer: the key's own server was asked";
        CopiesRefused => "copies_refused", "cashew_copies_refused_total",
            "Copies of hot keys that a server did not take";
        ShadowSent => "shadow_sent", "cashew_shadow_sent_total",
            "Requests that a route sent to a shadow";
        ShadowDiffers => "shadow_differs", "cashew_shadow_differs_total",
            "Answers of a shadow that were not those that clients got";
        WarmUpFills => "warm_up_fills", "cashew_warm_up_fills_total",
            "Keys that a route began to copy from a warm pool to a cold one";
        TlsHandshakes => "tls_handshakes", "cashew_tls_handshakes_total",
            "TLS handshakes of clients that were finished";
        TlsResumed => "tls_resumed", "cashew_tls_resumed_total",
            "TLS handshakes of clients that continued an earlier session";
        TlsOlder => "tls_older", "cashew_tls_older_total",
            "TLS handshakes of clients with version 1.2; the others have 1.3";
        TlsPlain => "tls_plain", "cashew_tls_plain_total",
            "Clients that sent something else than TLS where that is spoken";
        TlsVersions => "tls_versions", "cashew_tls_versions_total",
            "Failed TLS handshakes of clients that offered no version and ciphers that are allowed";
        TlsCertificates => "tls_certificates", "cashew_tls_certificates_total",
            "Failed TLS handshakes of clients whose certificate was missing or not right";
        TlsTimeouts => "tls_timeouts", "cashew_tls_timeouts_total",
            "TLS handshakes of clients that took too long";
        TlsFailures => "tls_failures", "cashew_tls_failures_total",
            "TLS handshakes of clients that failed for other reasons, such as that the client left";
        ClientsDenied => "clients_denied", "cashew_clients_denied_total",
            "Clients not let in, since they came from an address that allow_from and deny_from do not let in";
        ProxyHeaderErrors => "proxy_header_errors", "cashew_proxy_header_errors_total",
            "Connections closed since they did not begin with a right header of the PROXY protocol, or not in time";
        ConnectionsPassed => "connections_passed", "cashew_connections_passed_total",
            "Client connections that got one to a server, of pools with protocol: tcp";
        ConnectionsRetried => "connections_retried", "cashew_connections_retried_total",
            "Times another server was tried for a client's connection, as one could not be reached";
        ConnectionsWaited => "connections_waited", "cashew_connections_waited_total",
            "Client connections that waited, as all servers had as many as server_connections_max allows";
        ConnectionsFailed => "connections_failed", "cashew_connections_failed_total",
            "Client connections closed as no server could be reached, or had a place in time";
        ConnectionsIdle => "connections_idle", "cashew_connections_idle_total",
            "Client connections closed as nothing went over them for idle_timeout";
        ConnectionMs => "connection_ms", "cashew_connection_milliseconds_total",
            "Milliseconds that client connections of pools with protocol: tcp lasted, added when they end";
        ClientBytesReceived => "client_bytes_received", "cashew_client_received_bytes_total",
            "Bytes received from clients";
        ClientBytesSent => "client_bytes_sent", "cashew_client_sent_bytes_total",
            "Bytes sent to clients";
        Requests => "client_requests", "cashew_requests_total",
            "Requests received from clients";
        Responses => "client_responses", "cashew_responses_total",
            "Responses given to clients";
    }
}

stats! {
    /// Gauges of a pool. They go up and down.
    pub enum PoolGauge {
        ClientConnections => "client_connections", "cashew_client_connections",
            "Open client connections";
        Subscriptions => "subscriptions", "cashew_subscriptions",
            "Subscriptions of clients to channels and patterns";
        CacheEntries => "cache_entries", "cashew_cache_entries",
            "Replies that a route's caches have";
        CacheBytes => "cache_bytes", "cashew_cache_bytes",
            "Bytes that a route's caches take";
        CacheBoundMs => "cache_bound_ms", "cashew_cache_bound_milliseconds",
            "Milliseconds that a route's caches keep a reply at most: it is no older, whatever others write";
        CacheRefused => "cache_refused", "cashew_cache_refused_servers",
            "Servers whose replies a route's caches do not keep, since they refuse what that takes";
        RingVersion => "ring_version", "cashew_ring_version",
            "Version of the ring that requests are routed by";
        ExternalAuthLost => "external_auth_lost", "cashew_external_auth_lost",
            "Workers whose last question the external authoriser did not answer as it should";
    }
}

stats! {
    /// Counters of a server. They only grow.
    pub enum ServerCounter {
        ServerEof => "server_eof", "cashew_server_eof_total",
            "Server connections closed by the server";
        ServerErr => "server_err", "cashew_server_errors_total",
            "Server connections closed because of an error";
        ServerTimedout => "server_timedout", "cashew_server_timeouts_total",
            "Server connections closed because of a timeout";
        Requests => "requests", "cashew_server_requests_total",
            "Requests sent to the server, each fragment counted";
        RequestBytes => "request_bytes", "cashew_server_request_bytes_total",
            "Bytes of requests sent to the server";
        Responses => "responses", "cashew_server_responses_total",
            "Responses received from the server";
        ResponseBytes => "response_bytes", "cashew_server_response_bytes_total",
            "Bytes of responses received from the server";
        Connects => "connects", "cashew_server_connects_total",
            "Connections made to the server";
        ProtocolErrors => "protocol_errors", "cashew_server_protocol_errors_total",
            "Server connections closed because a reply did not match its request";
        ConnectErrors => "connect_errors", "cashew_server_connect_errors_total",
            "Failed attempts to connect to the server";
        TlsHandshakes => "tls_handshakes", "cashew_server_tls_handshakes_total",
            "TLS handshakes with the server that were finished";
        TlsResumed => "tls_resumed", "cashew_server_tls_resumed_total",
            "TLS handshakes with the server that continued an earlier session";
        TlsFailures => "tls_failures", "cashew_server_tls_failures_total",
            "TLS handshakes with the server that failed";
        ConnectsPaced => "connects_paced", "cashew_server_connects_paced_total",
            "Clients that waited for a connection to the server since several were being made";
        ConnectUs => "connect_us", "cashew_server_connect_microseconds_total",
            "Microseconds that connections to the server took to be made, of pools with protocol: tcp";
        Spooled => "spooled", "cashew_server_spooled_total",
            "Keys that the server could not be told to forget, and that were put on disk";
        SpoolRefused => "spool_refused", "cashew_server_spool_refused_total",
            "Keys that could not be put there, since it was full";
        WritesMissed => "writes_missed", "cashew_server_writes_missed_total",
            "Writes to its group that the server did not get or confirm, while another did";
        Invalidated => "invalidated", "cashew_server_invalidated_total",
            "Keys that the server was told to forget, as it may have had them otherwise than the rest of its group";
    }
}

stats! {
    /// Gauges of a server. They go up and down.
    pub enum ServerGauge {
        ServerConnections => "server_connections", "cashew_server_connections",
            "Open server connections";
        EjectedAt => "server_ejected_at", "cashew_server_ejected_timestamp_seconds",
            "When the server was last ejected, since 1970 (JSON: microseconds); 0 = never";
        Ejected => "ejected", "cashew_server_ejected",
            "Whether the server is ejected from the ring";
        Silent => "silent", "cashew_server_silent",
            "Whether requests for the server fail at once because it does not answer";
        Sessions => "sessions", "cashew_server_sessions",
            "Exclusive connections of clients, for transactions and blocking calls";
        InLine => "in_line", "cashew_server_in_line",
            "Clients that wait for an exclusive connection";
        InQueue => "in_queue", "cashew_server_in_queue",
            "Requests waiting to be written to the server";
        InQueueBytes => "in_queue_bytes", "cashew_server_in_queue_bytes",
            "Bytes of requests waiting to be written to the server";
        OutQueue => "out_queue", "cashew_server_out_queue",
            "Requests written to the server and waiting for responses";
        OutQueueBytes => "out_queue_bytes", "cashew_server_out_queue_bytes",
            "Bytes of requests written to the server and waiting for responses";
        Drained => "drained", "cashew_server_drained_permille",
            "Thousandths of its keys that the server does not have since it is drained";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let pool = PoolCounter::STATS.iter().chain(PoolGauge::STATS);
        let server = ServerCounter::STATS.iter().chain(ServerGauge::STATS);
        let names: HashSet<_> = pool.clone().map(|stat| stat.name).collect();
        assert_eq!(names.len(), pool.clone().count());
        let names: HashSet<_> = server.clone().map(|stat| stat.name).collect();
        assert_eq!(names.len(), server.clone().count());
        let names: HashSet<_> = pool.clone().chain(server.clone()).map(|s| s.prometheus).collect();
        assert_eq!(names.len(), pool.chain(server).count());
    }

    #[test]
    fn a_variant_finds_its_own_stat() {
        assert_eq!(PoolCounter::Fragments.stat().name, "fragments");
        assert_eq!(ServerGauge::OutQueueBytes.stat().name, "out_queue_bytes");
        assert!(ServerCounter::ALL.iter().enumerate().all(|(at, &c)| c as usize == at));
    }
}
