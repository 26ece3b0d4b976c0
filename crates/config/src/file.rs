//! The options of a configuration file. Their doc comments are the documentation: the schema and
//! the tables of docs/configuration.md are generated from them.

use cashew_placement::{Distribution, Hash, HashTag};
use cashew_tls::{Ciphers, ClientAuth, ClientUser, Version};

use crate::access_log::AccessLogText;
use crate::address::ListenText;
use crate::audit_log::{AuditLogText, Audited};
use crate::client_sources::{ProxyProtocolText, SourceList};
use crate::client_user::{ClientUserText, NameMap};
use crate::cluster::{ClusterText, Seeds};
use crate::commands::{Commands, Whole, Words};
use crate::diagnostic::{At, Complaint, Pos, Report, nearest};
use crate::external_auth::{AuthUrl, ExternalAuthText};
use crate::groups::{Member, MemberAddress, Members};
use crate::hedge::HedgeText;
use crate::hot_keys::{HotAction, HotKeysText};
use crate::policy::{Entries, PolicyText, RenameList};
use crate::pose::{Advertised, PoseText};
use crate::prefixes::Prefixes;
use crate::reads_by_class::ReadsByClass;
use crate::redis_version::RedisVersion;
use crate::refuge::RefugeText;
use crate::replica_reads::Span;
use crate::routes::{self, RouteSection};
use crate::secret::Secret;
use crate::section::{self, OptionInfo, Section, section};
use crate::sentinel::{Addresses, SentinelAuth};
use crate::server_auth::{ServerAuthOption, ServerSecrets};
use crate::server_maintenance::MaintenanceText;
use crate::servers_from::{BaseUrl, BaseUrls, DnsType, HostPort, Nested};
use crate::share::Share;
use crate::snapshot::{
    Affinity, Balance, CasUniques, IoEngine, KeysShown, LogFormat, OnFailure, OverLimit,
    PolicyBase, Priority, ReadYourWrites, Reads, SendProxy, StatsFormat, Wire, Writes,
};
use crate::spool::SpoolText;
use crate::tcp::{self, ServerNames};
use crate::tls::{Files, ServerTlsText, TlsText};
use crate::tracing::{CollectorText, Headers, TracingText};
use crate::tree::{Kind, Node};
use crate::users::{self, RulesText, UserList};
use crate::value::{
    CredentialList, FilePath, Heartbeat, Memory, Number, Servers, Size, SocketPath, StatsListen,
    Switch, Text, Timeout, Value, Workers,
};

section! {
    /// What concerns the whole instance.
    GlobalSection {
        /// Worker processes, one thread each. `auto` is one for every processor that this process
        /// may use; 0 is a single process without a master.
        worker_processes: Workers = "auto",
        /// Open files (RLIMIT_NOFILE) for each worker. Without it the inherited limit stays. Files
        /// that servers may need are reserved; clients may use the rest.
        max_openfiles: Number<64, 1073741824> = none,
        /// User that workers become if the master runs as root. It must then exist when the file is
        /// loaded and when a worker starts.
        user: Text = none,
        /// Group that workers become if the master runs as root. It must then exist when the file
        /// is loaded and when a worker starts.
        group: Text = none,
        /// Seconds that a stopping worker waits for requests in flight; 0 stops it at once.
        worker_shutdown_timeout: Number<0, 86400> = "30",
        /// Microseconds that output may be held back at most, so that more is written together.
        /// This saves CPU time here and on the servers under load. It applies to requests, and to
        /// replies to clients that are still owed more; 0 turns it off. The window grows with the
        /// load, up to 600 µs. If clients send before they have their replies (an open loop), it is
        /// at most a third of that, since waiting gathers nothing more. If many clients that send
        /// again as soon as they have a reply keep a worker busy, it is half of the latency, 4000
        /// µs at most. Output that nothing could join goes at once. After the window, the next
        /// event ends the wait. Only without any event, once a second at most, the full time may
        /// pass, since a timer for every window costs more than it saves. Without `epoll_pwait2`
        /// (before Linux 5.11, or if a filter refuses it) windows take whole milliseconds. With any
        /// value, requests that arrive while the worker is busy are written together, as far as
        /// eight more polls, which do not wait, find them.
        batch_window_max: Number<0, 10000> = "5000",
        /// Bytes that the buffers and requests of all workers may take; each worker has an equal
        /// share of at least 8mb. From three quarters of its share on, a worker does not read the
        /// clients that hold most, in pools that hold more than their share. At its full share, or
        /// after a second above three quarters, it closes them. `auto` is half of the memory that
        /// this process may use; 0 is no limit.
        memory_max: Memory = "auto",
        /// How workers do network I/O. `uring` needs fewer system calls under load. It needs Linux
        /// 6.1 and the right to use io_uring, which the default seccomp profiles of containers
        /// refuse; without these, it warns and uses epoll. It reads up to 256 KiB of a connection
        /// at a time since Linux 6.17, before that 64 KiB. `auto` is `epoll`.
        io_engine: IoEngine = "auto",
        /// Milliseconds that a reload or an upgrade waits for replies to requests in flight whose
        /// keys move to another server. Later replies come after the change.
        reload_drain_timeout: Number<0, 3600000> = "5000",
        /// Path of the socket for `cashew reload`, `upgrade` and `status`. Without it the path
        /// follows from that of the configuration file.
        control_socket: SocketPath = none,
        /// Processors that workers are pinned to, one each: `auto` are all that this process may
        /// use, in order; a list like `0-3,6` starts again if there are more workers.
        worker_cpu_affinity: Affinity = "off",
        /// Milliseconds without a heartbeat after which a worker, or the admin process, counts as
        /// hung and is replaced; 0 turns this off.
        worker_heartbeat_timeout: Heartbeat = "700",
        /// Whether clients are moved from the busiest worker to the least busy one.
        rebalance: Switch = "true",
        /// Difference between the busiest and the least busy worker, in percent of a processor's
        /// time, from which on clients are moved.
        rebalance_threshold: Number<1, 100> = "20",
        /// Address of the statistics. A name is resolved once, when the file is loaded, to its
        /// first address. The flag `-a` overrides the host, `-s` the port.
        stats_listen: StatsListen = "0.0.0.0:22222",
        /// What whoever connects to the address of the statistics and asks for nothing gets: `nutcracker`
        /// is [what nutcracker says](operations.md#statistics) and nothing more, `full` is what `/stats` says.
        stats_raw: StatsFormat = "nutcracker",
        /// What whoever asks the address of the statistics by HTTP must show, as `Authorization: Bearer TOKEN` or as the
        /// password of any user, or [a file](#passwords-in-files) with it. `/healthz` and `/readyz` are answered without
        /// it, and so is raw TCP, which tells counters alone.
        stats_token: Secret<Text> = none,
        /// What whoever [changes something by HTTP](operations.md#what-operators-do-by-http) must show, as
        /// `Authorization: Bearer TOKEN`, or a file with it. It is good for reading, too. Without it nobody can.
        operate_token: Secret<Text> = none,
        /// Where those come from: addresses and networks. Without it they come from this machine, 127.0.0.0/8 and ::1.
        operate_from: SourceList = none,
        /// File that the log is appended to instead of standard error. The flag `-o` overrides it.
        log_file: FilePath = none,
        /// File that the master keeps the addresses of the primaries of [groups](#sentinel) in, and reads at a
        /// start at which no majority of the Sentinels answers. Without it such a group is not served then.
        sentinel_state: FilePath = none,
        /// File that the master keeps the servers in that [sources](#servers-from-a-source) have named, and reads at a start at
        /// which a source does not answer. Without it such a pool has no servers then. It keeps, too, where servers have
        /// [said that they go](how-to.md#move-with-servers-that-say-when-they-go). Without it they are looked for at a start
        /// where the file of the configuration has them.
        discovery_state: FilePath = none,
        /// How much is logged: 0 to 3 errors, 4 warnings, 5 and 6 information, 7 debugging, 8 to 11
        /// everything. The flag `-v` overrides it.
        log_level: Number<0, 11> = "5",
        /// How lines of the log look. `plain` is as nutcracker's, in local time; `json` makes each an object with
        /// the [fields](operations.md#the-log) of an event and a time with its zone.
        log_format: LogFormat = "plain",
        /// Workers that must serve for [`/readyz`](operations.md#statistics) to say that the instance is ready.
        /// At most as many as there are.
        ready_workers: Number<1, 256> = "1",
        /// Whether `/readyz` says that the instance is not ready while all servers of some pool are down. If
        /// all gateways have these servers in common, all of them leave together. Servers of a pool with
        /// `server_check_interval: 0` count as up, since nobody would notice that they are back.
        ready_needs_primaries: Switch = "false",
        /// Seconds that the instance goes on serving after SIGTERM or `cashew drain`, for load balancers to
        /// notice that `/readyz` says no, and for [clients that want to
        /// know](operations.md#maintenance-notifications) to connect elsewhere. With 0, SIGTERM stops it at
        /// once, as it stops nutcracker, and `cashew drain` takes 10.
        drain_delay: Number<0, 3600> = "0",
        /// Where those clients connect to meanwhile: another gateway, with a port or with that of their pool here.
        /// Without it they connect to the address that they know, when half of the time is over.
        drain_to: RefugeText = none,
        /// [Spans](operations.md#tracing) of slow requests and of samples are sent to an OpenTelemetry
        /// collector. Its options are [below](#tracing).
        tracing: TracingText = none,
        /// Slow requests and samples are written to a file, a line [each](operations.md#the-access-log). Its
        /// options are [below](#the-access-log).
        access_log: AccessLogText = none,
        /// Who did what is written to a file, a line of JSON [each](operations.md#the-audit-log). Its options are
        /// [below](#the-audit-log).
        audit_log: AuditLogText = none,
    }
}

section! {
    /// Where spans of requests are sent.
    TracingSection {
        /// The collector, which takes OTLP over HTTP as JSON. Without a port it is 4318. `/v1/traces` is
        /// appended unless it is there. There is no https: a collector on this machine can send them on.
        endpoint: CollectorText = required,
        /// The share of the samples that are exported. Samples are [few
        /// already](operations.md#which-requests). Slow requests are all exported, also with 0%.
        share: Share = "1%",
        /// HTTP headers that go with each export, such as a token.
        headers: Headers = none,
        /// The `service.name` of the spans.
        service_name: Text = "cashew",
        /// What spans tell of the key: a digest of it, the key as well, or nothing.
        keys: KeysShown = "hash",
    }
}

section! {
    /// The file that requests are written to.
    AccessLogSection {
        /// The file. It is appended to, and opened anew as `log_file` is. The user of the workers must
        /// have the right to.
        file: FilePath = required,
        /// How lines look: `plain` has `name=value`, `json` makes each an object.
        format: LogFormat = "plain",
        /// The share of the samples that are written. Samples are [few
        /// already](operations.md#which-requests).
        share: Share = "1%",
        /// Whether all slow requests are written, too.
        slow: Switch = "true",
        /// Whether lines have what follows the command: keys and values, each cut after 128 bytes.
        arguments: Switch = "true",
    }
}

section! {
    /// The file with who did what.
    AuditLogSection {
        /// The file. It is appended to, and opened anew as `log_file` is. The user of the workers must
        /// have the right to.
        file: FilePath = required,
        /// Commands that have a line when they are let through: commands of Redis and categories of ACL CAT,
        /// `@category` where a command has the same name. Commands of memcached count as the ones of Redis that do
        /// the same.
        commands: Audited = "admin dangerous",
        /// The share of these commands that have a line.
        share: Share = "100%",
        /// Whether all commands that are denied have a line, by the rules of a user or by `command_policy`.
        denied: Switch = "true",
        /// Whether logins have a line, and those that failed.
        logins: Switch = "true",
        /// Whether what operators do has lines: when it is asked for, and how it ends.
        operators: Switch = "true",
    }
}

section! {
    /// Who is asked about names that no user of the pool has.
    ExternalAuthSection {
        /// Where each login is sent, as JSON by POST. Either this or `file`.
        url: AuthUrl = none,
        /// A file of logins, which is read anew when it changes. The user of the workers must have the right to
        /// read it.
        file: FilePath = none,
        /// The file with the certificates that are trusted, with `https`.
        ca: FilePath = none,
        /// A file whose content goes with every question, as `Authorization: Bearer CONTENT`. It is read for each,
        /// so it may be changed at any time.
        token_file: FilePath = none,
        /// Milliseconds that an answer may take.
        timeout: Number<10, 60000> = "1000",
        /// Milliseconds for which the last good answer about a name and password stands in for one that does not
        /// come. With 0 none does.
        cache: Number<0, 86400000> = "60000",
    }
}

section! {
    /// Who names the servers of a pool. Exactly one of these.
    ServersFromSection {
        /// A file with a server a line, or a list of them as JSON, [as below](#servers-from-a-source). It is read anew when it
        /// changes. The user of the workers must have the right to read it.
        file: FilePath = none,
        /// A name in DNS, whose records are asked for again when their time to live is over.
        dns: Nested<DnsSection> = none,
        /// Keys of etcd that begin with a prefix, which are watched.
        etcd: Nested<EtcdSection> = none,
        /// The instances of a service that pass their checks in Consul, by blocking queries.
        consul: Nested<ConsulSection> = none,
        /// The endpoints of a Service of Kubernetes that are ready, which are watched.
        kubernetes: Nested<KubernetesSection> = none,
    }
}

section! {
    /// Servers that DNS names.
    DnsSection {
        /// The name whose records are asked for.
        name: Text = required,
        /// `a`: each address, of A and AAAA records, is a server with its address for a name. `srv`: each SRV record of
        /// the lowest priority is a server, with its port and weight, and its target for a name. Records count that are
        /// of the name, or of one that it is an alias of.
        records: DnsType = "a",
        /// The port of the servers. With `a` only, and there it is needed.
        port: Number<1, 65535> = none,
        /// The DNS server that is asked. Without it those of `/etc/resolv.conf` are.
        server: HostPort = none,
    }
}

section! {
    /// Servers that keys of etcd name, by its API version 3.
    EtcdSection {
        /// Members of etcd: one is asked, and another one when that fails.
        endpoints: BaseUrls = required,
        /// What the keys begin with. The rest of a key is the name of its server, unless the value says another.
        prefix: Text = required,
        /// Who logs in, where etcd has authentication on.
        user: Text = none,
        /// The user's password, or [a file](#passwords-in-files) with it.
        password: Secret<Text> = none,
        /// The file with the certificates that are trusted, with `https`.
        ca: FilePath = none,
        /// The file with the certificate that is shown, and with its key. They are read for each connection.
        cert: FilePath = none,
        /// The file with the key of `cert`.
        key: FilePath = none,
    }
}

section! {
    /// Servers that are the instances of a service in Consul.
    ConsulSection {
        /// The agent that is asked.
        address: BaseUrl = "http://127.0.0.1:8500",
        /// The service. The id of an instance is the name of its server, its weight for passing checks the weight.
        service: Text = required,
        /// Only instances with this tag.
        tag: Text = none,
        /// The datacenter; without it that of the agent.
        datacenter: Text = none,
        /// The token of an ACL, or [a file](#passwords-in-files) with it.
        token: Secret<Text> = none,
        /// The file with the certificates that are trusted, with `https`.
        ca: FilePath = none,
        /// The file with the certificate that is shown. It is read for each connection.
        cert: FilePath = none,
        /// The file with the key of `cert`.
        key: FilePath = none,
    }
}

section! {
    /// Servers that are the endpoints of a Service of Kubernetes.
    KubernetesSection {
        /// The Service. Its EndpointSlices are listed and watched; the name of a pod is that of its server.
        service: Text = required,
        /// The namespace of the Service. Without it that of the pod that the gateway runs in.
        namespace: Text = none,
        /// The name or the number of the port. It may be left out where there is one only.
        port: Text = none,
        /// The API server. Without it the one that the pod's environment names.
        server: BaseUrl = none,
        /// The file with the token that is shown to the API server. It is read for each connection.
        token_file: FilePath = "/var/run/secrets/kubernetes.io/serviceaccount/token",
        /// The file with the certificates that are trusted. Without it that of the pod's service account.
        ca: FilePath = none,
    }
}

section! {
    /// A command that Redis itself does not have. Arguments are counted from 0, the name.
    CommandSection {
        /// The command, in any case; a subcommand as `container|subcommand`.
        name: Text = required,
        /// Number of arguments, including the name and a subcommand's name; negative: at least so
        /// many.
        arity: Whole = required,
        /// The first argument that is a key; 0 if there is none.
        first_key: Number<0, 32767> = "0",
        /// The last argument that is a key; negative counts from the end, -1 being the last of all.
        /// Without it there is one key.
        last_key: Whole = none,
        /// Distance from one key to the next: 2 if each key is followed by a value.
        step: Number<1, 32767> = "1",
        /// The argument with the number of keys that follow it, instead of `first_key` and
        /// `last_key`.
        numkeys: Number<1, 32766> = none,
        /// Redis's flags. Without `write` and `readonly` the command may do either; `readonly` ones
        /// may go to a replica, and `blocking` ones get an exclusive connection.
        flags: Words = none,
    }
}

section! {
    /// When reads are sent to a second server.
    HedgeSection {
        /// How long the first server may take to begin its reply.
        after: Span<1, 60000> = required,
        /// How many reads more there may be, as a share of those that servers answer.
        budget: Share = "5%",
    }
}

section! {
    /// What is done about hot keys.
    HotKeysSection {
        /// The share of the pool's requests above which a key is hot. It is no more when it has had less than half of
        /// that for a minute.
        above: Share = required,
        /// `cache`: nodes `cache` with `hot_only` keep replies to reads of it. `split`: through such nodes, reads of it go to
        /// copies on other servers as well. `move`: it goes to the pool that `to` names, by the list of keys of the route that
        /// leads here.
        r#do: HotAction = required,
        /// The pool that hot keys go to, with `do: move`.
        to: Text = none,
        /// Over how many servers a key is split, its own among them, with `do: split`. 4 unless it is set.
        copies: Number<2, 16> = none,
        /// So many keys at a time, at most.
        most: Number<1, 32> = "8",
    }
}

section! {
    /// Where it is kept what servers are to forget while they cannot be reached.
    SpoolSection {
        /// Where the files are. It is made if it is missing, and belongs to one instance.
        directory: FilePath = required,
        /// How large they may become, over all workers. Beyond that clients get the error again.
        max: Size<16777216, 1099511627776> = "1gb",
        /// Whether a value that could not be stored is a reason, too, to forget the one before.
        overwrites: Switch = "false",
        /// How long a server that is back answers no reads at most, until it has forgotten everything.
        hold: Span<0, 3600000> = "5s",
        /// How long keys live at most: what is older need not be forgotten.
        ttl: Span<1000, 31536000000> = none,
    }
}

section! {
    /// What a name in a client's certificate stands for.
    ClientUserSection {
        /// The name: `cn`, `san_dns`, `san_uri` or `san_email`.
        from: ClientUser = required,
        /// Users by name. With a map only its names stand for users.
        map: NameMap = none,
        /// The user of clients with such a name that stands for nobody.
        default: Text = none,
    }
}

section! {
    /// TLS towards clients.
    TlsSection {
        /// A file with a certificate in PEM form and those that lead from it to an authority, or a list of such files:
        /// a client gets the one for the name that it asks for, else the first.
        certificate: Files = required,
        /// A file with the certificate's key in PEM form, without a passphrase, or a list of as many.
        key: Files = required,
        /// A file with the authorities that sign the certificates of clients, in PEM form.
        client_ca: FilePath = none,
        /// Whether clients must show a certificate: `none` need, `optional` ones are verified, or it is `required`.
        /// Unless set it is `required` with `client_ca`, else `none`.
        client_auth: ClientAuth = none,
        /// Which name in its certificate is the name of the [user](#users) that a client is from the start: the common
        /// name, or an alternative name that is a DNS name, a URI or an e-mail address. Of several, the first that is
        /// a user's. Who shows no certificate, or one without a user's name, must log in. As a section, it [maps names
        /// to users](#certificates-and-users).
        client_user: ClientUserText = "off",
        /// The oldest version that clients may speak.
        min_version: Version = "1.2",
        /// Cipher suites: `default` are all with forward secrecy and authenticated encryption, `strong` those of them
        /// with keys of 256 bits.
        ciphers: Ciphers = "default",
        /// How long a client may take to get through its handshake, before it is closed.
        handshake_timeout: Span<100, 600000> = "10s",
        /// Whether clients move to other workers, as those without TLS do, when theirs retires or is too busy. The
        /// keys of their connections then go through the master to the other process.
        hand_over: Switch = "true",
    }
}

section! {
    /// A user.
    UserSection {
        /// Rules as Redis's ACL has them. Required, unless they are in an `acl_file`.
        rules: RulesText = none,
        /// What is put before all keys of the user, and its channels, and taken off where replies name them. With
        /// memcached at most 93 bytes, none of them a space.
        key_prefix: Text = none,
        /// Which server of a group answers reads of the user, before what the pool says of commands and of all. What
        /// a client says by CLIENT READS comes before it.
        reads: Reads = none,
        /// A pool or a route of this file, which speaks the same protocol: requests of clients that are logged in as
        /// the user go there, from the login on. What clients may do, their limits and who they may be is this
        /// pool's all the same.
        route: Text = none,
        /// Whether requests of the user wait while others ask: with `low` at most 8 of all such users together are
        /// on their way at each worker then, and when memory is short their clients are closed first. While users with
        /// `high` ask, at most 32 requests of all others of the pool whose users are `normal` are on their way at each
        /// worker.
        priority: Priority = "normal",
        /// Requests per second. A tenth of a second's may come at once. 0 is no limit, here and below.
        requests_per_second: Number<0, 10000000> = "0",
        /// Bytes per second of requests and replies together. What is larger than there is room for passes, and is
        /// paid for by what comes next.
        bytes_per_second: Size<0, 1099511627776> = "0",
        /// Connections that are logged in as the user at a time.
        connections_max: Number<0, 2147483647> = "0",
        /// Requests whose replies are not written yet.
        in_flight_max: Number<0, 2147483647> = "0",
        /// What becomes of a request beyond a limit: it gets an `error`, or the client is not read until there is
        /// room, `delay`. Logging in beyond `connections_max` is always an error.
        over_limit: OverLimit = "error",
    }
}

section! {
    /// Connections that begin with a header of the PROXY protocol.
    ProxyProtocolSection {
        /// The proxies: connections from these addresses begin with a header, and no others do. `unix` is whoever
        /// connects to a Unix socket. Without it all connections do.
        trusted: SourceList = none,
        /// How long the header may take, before the connection is closed.
        timeout: Span<100, 600000> = "3s",
    }
}

section! {
    /// TLS towards servers.
    ServerTlsSection {
        /// A file with the authorities that sign the servers' certificates, in PEM form; without it those that the
        /// distribution trusts, in `/etc/ssl/certs/ca-certificates.crt`.
        ca: FilePath = none,
        /// The name that the servers' certificates must be for, and that they are asked for; unless set, each server's
        /// host.
        server_name: Text = none,
        /// A file with the certificate that servers are shown which want one, in PEM form.
        certificate: FilePath = none,
        /// A file with its key.
        key: FilePath = none,
        /// Whether the servers' certificates are verified. Without that anybody on the way can pose as a server.
        verify: Switch = "true",
        /// The oldest version that servers may speak.
        min_version: Version = "1.2",
        /// Cipher suites, as in `tls`.
        ciphers: Ciphers = "default",
    }
}

section! {
    /// A group of servers whose primary Sentinels name.
    GroupSection {
        /// The name that the ring and the statistics know the group by.
        name: Text = required,
        /// What Sentinels call the group, as in `sentinel monitor`.
        sentinel: Text = required,
        /// The group's share of the keys.
        weight: Number<1, 2147483647> = "1",
    }
}

section! {
    /// Servers that hold the same share of the keys.
    ServerGroupSection {
        /// The name that the ring knows the group by.
        name: Text = required,
        /// The server that takes the writes, until `cashew failover` names another one.
        primary: Member = required,
        /// Servers that have copies of what the primary has.
        replicas: Members = none,
        /// The group's share of the keys.
        weight: Number<1, 2147483647> = "1",
    }
}

section! {
    /// A server of a group.
    MemberSection {
        /// Where it is.
        address: MemberAddress = required,
        /// The zone that it is in.
        zone: Text = none,
    }
}

section! {
    /// Where a password is: one of the two.
    SecretSection {
        /// A file with the password. A line end after it is removed.
        file: FilePath = none,
        /// A variable of the master's environment with the password.
        env: Text = none,
    }
}

section! {
    /// What servers are given.
    ServerAuthSection {
        /// A file with the passwords. A line end after them is removed.
        file: FilePath = none,
        /// A variable of the master's environment with the passwords.
        env: Text = none,
        /// Those of some servers or groups, by name: `NAME: user:password`, or a section with `file` or `env`.
        servers: ServerSecrets = none,
    }
}

section! {
    /// A cluster in the place of servers.
    ClusterSection {
        /// Nodes that are asked which nodes there are, while none is known: any of them, some of several
        /// shards at best. Names are looked up each time.
        seeds: Seeds = required,
        /// The most connections to one node over all workers: `server_connections` and `session_connections` are at
        /// most half of it each. Each worker may have one of each kind, and those for large values, other protocol
        /// versions and subscriptions come on top. 0 is without limit.
        connections_max: Number<0, 1000000> = "0",
    }
}

section! {
    /// What clients may call.
    PolicySection {
        /// What is allowed, apart from the lists.
        base: PolicyBase = "application",
        /// What is allowed in addition: commands, subcommands as `CONFIG|SET`, Redis's categories
        /// as `"@admin"`.
        allow: Entries = none,
        /// What is not allowed.
        deny: Entries = none,
        /// Other names of commands: clients call them by these, and what was their name is none any more. `""` is no
        /// name. Redis pools only.
        rename: RenameList = none,
    }
}

section! {
    /// One pool: an address that clients connect to and the servers behind it.
    PoolSection {
        /// Address for clients: host and port, or the path of a Unix socket with an optional octal
        /// file mode. A name is resolved once, when the file is loaded, to its first address. A pool that
        /// [routes](routes.md) lead to may do without.
        listen: ListenText = none,
        /// The servers that share the keys of the pool. A [group](#groups) of servers that hold the
        /// same keys is `{name: s1, weight: 1, primary: host:port, replicas: [host:port]}`, one whose
        /// primary [Sentinels](#sentinel) name `{name: s1, sentinel: mymaster, weight: 1}`.
        /// Every pool has them, but one with `servers_from` or with a `cluster`.
        servers: Servers = none,
        /// Who names the servers [instead of the file](#servers-from-a-source): another file, DNS, etcd, Consul or Kubernetes. Changes
        /// take effect without a reload.
        servers_from: Nested<ServersFromSection> = none,
        /// Redis Cluster or Valkey Cluster [instead of servers](#cluster): a section with `seeds`, of which the nodes
        /// and their slots are learned. Redis pools only.
        cluster: ClusterText = none,
        /// Whether the pool uses the Redis protocol; otherwise memcached's.
        redis: Switch = "false",
        /// Hash of the keys.
        hash: Hash = "fnv1a_64",
        /// Two delimiters: if a key has text between them, only that text is hashed.
        hash_tag: HashTag = none,
        /// How hashes are mapped to servers.
        distribution: Distribution = "ketama",
        /// Milliseconds that a request may wait for its reply once it is sent, and before that for
        /// a connection. 0 or -1 is no limit. A large reply may take longer as long as it
        /// progresses; one that stops in the middle is given up after twice that time at most.
        timeout: Timeout = "-1",
        /// Connections that may wait to be accepted, as given to listen(2).
        backlog: Number<0, 2147483647> = "512",
        /// Client connections of this pool over all workers. 0 is no limit other than the open
        /// files available for clients.
        client_connections: Number<0, 2147483647> = "0",
        /// Whether client connections have SO_KEEPALIVE. Server connections always have it.
        tcpkeepalive: Switch = "false",
        /// Whether a partial request is acknowledged at once (TCP_QUICKACK, set again each time).
        /// This saves clients that write requests in pieces, without TCP_NODELAY, a delay of 40 ms
        /// for each piece. It costs one packet for each piece.
        tcp_quickack: Switch = "false",
        /// Accepted and ignored: listening sockets always have SO_REUSEPORT.
        reuseport: Switch = "false",
        /// Password that clients must give and that the gateway gives to servers, unless these have a
        /// `server_auth`, [or where it is](#passwords-in-files). Redis pools only.
        redis_auth: Secret<Text> = none,
        /// Users who may log in, by name, each with rules as Redis's ACL has them, `on >password ~key:*
        /// +@read`, or with a section of rules, limits and a key prefix. See [users](#users).
        users: UserList = none,
        /// A file of users, a line for each, as Redis's `aclfile`: `user NAME rules`. See
        /// [users](#users).
        acl_file: FilePath = none,
        /// Who is asked about names that no user of the pool has, by HTTP or in a file. The answer names one of the
        /// users. See [external authorisation](#external-authorisation).
        external_auth: ExternalAuthText = none,
        /// Initial database of clients. Redis pools only.
        redis_db: Number<0, 2147483647> = "0",
        /// How many databases clients may SELECT: those below this number. With 1 there is only
        /// `redis_db`, which clients see as 0. Redis pools only; 16 unless `redis_db` is set, else
        /// 1.
        databases: Number<1, 2147483647> = none,
        /// memcached protocols that clients may use: `auto` depends on the first byte of each
        /// connection, `text` includes the meta commands. With `tcp` the pool [passes any protocol
        /// through](how-to.md#pass-any-tcp-protocol-through): each client gets a connection to a server for itself, and
        /// options about requests and keys are refused. Not with `redis: true`.
        protocol: Wire = "auto",
        /// Which server the next connection goes to: each in its turn, the one with the fewest connections, or one
        /// at random, by their weights, or always the same one for a client's address, `source`. Pools with
        /// `protocol: tcp` only, as are the next six.
        balance: Balance = "round_robin",
        /// How long nothing may go over a client's connection, either way, before it is closed. 0 is no limit.
        idle_timeout: Span<0, 31536000000> = "1h",
        /// Connections to each server over all workers. 0 is no limit.
        server_connections_max: Number<0, 16777216> = "0",
        /// How long a client waits for a place where all servers have as many as `server_connections_max` allows, before it
        /// is closed. 0 closes it at once.
        connection_wait: Span<0, 3600000> = "5s",
        /// Whether servers are told whose connection they get, by a header of the PROXY protocol before
        /// anything else: `v1` is a line of text, `v2` is binary.
        send_proxy: SendProxy = "off",
        /// Servers, by name, that get connections only while all others are out.
        backup: ServerNames = none,
        /// So many checks in a row, one each `server_check_interval`, must succeed before a server that is out gets
        /// connections again.
        server_rise: Number<1, 1000> = "2",
        /// Reply to a `get` whose server fails: `error`, or `miss` as if the key did not exist.
        /// memcached pools only.
        on_failure: OnFailure = "error",
        /// Whether CAS uniques contain the server, so that one of another server never matches:
        /// `auto` if the pool has several servers, `tagged` always, `plain` never, as servers send
        /// them. memcached pools only.
        cas_uniques: CasUniques = "auto",
        /// Users that may log in: `user:password`, several separated by spaces, or [a
        /// file](#passwords-in-files) with them. Clients log in by SASL in the binary protocol, by
        /// a first `set` in text. memcached pools only.
        client_auth: Secret<CredentialList> = none,
        /// What servers are given: `password` or `user:password`, [or where that is](#passwords-in-files).
        /// Of several, with spaces between them, a server gets the first that it takes: so passwords are
        /// [changed](how-to.md#change-the-servers-passwords). `{servers: {NAME: user:password}}` has those of a
        /// server, or of a group, instead of the pool's. Servers of Redis get `redis_auth` unless it is set.
        server_auth: ServerAuthOption = none,
        /// Whether workers connect to all servers when they start.
        preconnect: Switch = "false",
        /// Whether a server that keeps failing is removed from the ring for a while.
        auto_eject_hosts: Switch = "false",
        /// Shared connections to each server over all workers; every worker has at least one.
        server_connections: Number<1, 2147483647> = "1",
        /// Exclusive connections for clients to each server, over all workers: for transactions
        /// (from WATCH or the first command in MULTI) and for blocking calls. Every worker may have
        /// at least one. Redis pools only.
        session_connections: Number<1, 65536> = "128",
        /// How many exclusive connections to each server every worker keeps ready. Redis pools
        /// only.
        session_connections_idle: Number<0, 65536> = "0",
        /// Milliseconds that a client waits for an exclusive connection while all are in use,
        /// before it gets an error. Redis pools only.
        session_wait_timeout: Number<1, 3600000> = "5000",
        /// Milliseconds that a transaction may keep an exclusive connection while others wait for
        /// one; then it is aborted as if a watched key had changed. Redis pools only.
        session_hold_timeout: Number<1, 3600000> = "10000",
        /// Milliseconds until an ejected server is probed, and between probes, less up to half of
        /// it at random. The server returns when it answers. With `protocol: tcp` and without checks, a client's
        /// connection tries a server that is out once in that time.
        server_retry_timeout: Number<0, 2147483647> = "30000",
        /// Milliseconds after which a server that has said nothing is asked whether it answers, and one
        /// that no worker is connected to is connected to, by one worker, so that its
        /// [state](operations.md#states-of-servers) is true without requests. With `protocol: tcp` each server is
        /// connected to so often, by one worker. 0 turns this off.
        server_check_interval: Number<0, 86400000> = "0",
        /// Consecutive failures, counted by each worker, that eject a server, or with `protocol: tcp` take it
        /// out. 0 counts as 1.
        server_failure_limit: Number<0, 2147483647> = "2",
        /// The share of the pool's servers that may be ejected; a group counts once, by its primary. If more
        /// are down the pool [fails open](operations.md#pools-that-fail-open): nobody is ejected, and all
        /// servers are used, until so many answer again that the others may be ejected. With `100%` all may
        /// be ejected, with `0%` none.
        fail_open: Share = "100%",
        /// Whether RENAME, RENAMENX and COPY copy a key from one server to another, by DUMP and
        /// RESTORE, if its new name belongs there. Not atomic. Redis pools only.
        cross_server_copy: Switch = "false",
        /// Bytes of the largest request. A client that sends more gets an error and is closed.
        request_size_max: Size<1024, 4294967296> = "1gb",
        /// Requests of one client that may wait for replies. Beyond this the client is not read.
        client_requests_max: Number<1, 1048576> = "1024",
        /// Bytes of replies waiting for one client. Beyond this the client is not read.
        client_output_pause: Size<1024, 4294967296> = "1mb",
        /// Bytes of replies waiting for one client. Beyond this the client is closed.
        client_output_max: Size<65536, 17179869184> = "1gb",
        /// Bytes waiting for one subscriber, beyond which it is closed; also the largest message
        /// that a subscriber can receive. This option and the following four are for Redis pools
        /// only.
        pubsub_output_max: Size<65536, 17179869184> = "32mb",
        /// Bytes waiting for one subscriber, beyond which it is closed if this lasts for
        /// `pubsub_output_soft_time`.
        pubsub_output_soft_max: Size<1024, 17179869184> = "8mb",
        /// Milliseconds that a subscriber may have more than `pubsub_output_soft_max` waiting.
        pubsub_output_soft_time: Number<1000, 86400000> = "60000",
        /// Channels and patterns that one client may subscribe to.
        client_subscriptions_max: Number<1, 16777216> = "65536",
        /// Subscriptions of all clients of one worker; a channel or pattern counts once for each of
        /// its clients.
        subscriptions_max: Number<1, 1073741824> = "1048576",
        /// Requests queued or in flight on one server connection. Beyond this, requests get an
        /// error. In front of a cluster, keys of
        /// several slots are as many requests.
        server_queue_max: Number<1, 16777216> = "262144",
        /// Bytes waiting to be written on one server connection. Beyond this, requests get an
        /// error, unless nothing else waits.
        server_queue_size_max: Size<65536, 17179869184> = "256mb",
        /// Milliseconds that connecting to a server may take, unless `timeout` is shorter.
        server_connect_timeout: Number<1, 3600000> = "5000",
        /// Requests that clients may have in flight at first, while the size of the replies is
        /// unknown. They are shared among all waiting clients of a worker, at least one each. Small
        /// replies allow more, up to `client_requests_max`; after a large one, its client reads one
        /// value at a time. 0 turns this off.
        pipeline_start: Number<0, 65535> = "64",
        /// Bytes per second at which a client must send a large request or read a large reply while
        /// others wait for a connection for large values. A slower client loses the connection. 0
        /// is no limit.
        transfer_rate_min: Size<0, 1073741824> = "64kb",
        /// Milliseconds that a client may stop sending a large request or reading a large reply,
        /// whether others wait or not, before it is closed. 0 is no limit.
        transfer_stall_timeout: Number<0, 86400000> = "60000",
        /// Commands of [modules](#commands-of-modules), which Redis itself does not have. Redis
        /// pools only.
        commands: Commands = none,
        /// Whether a server is queried (COMMAND INFO) about an unknown command when a client first
        /// uses it. Redis pools only.
        commands_from_servers: Switch = "false",
        /// Commands that clients may use: `application` is all except administration of servers,
        /// other clients or the gateway, `cache` the same without commands that empty whole
        /// databases, `admin` all that the gateway serves; or a section with `base`, `allow`, `deny` and
        /// `rename`. See [who may call what](#who-may-call-what).
        command_policy: PolicyText = "application",
        /// The Sentinels that say where the primaries of the pool's groups are, among them all that
        /// watch these groups: most of them must agree. See [Sentinel](#sentinel). Redis pools only.
        sentinels: Addresses = none,
        /// What Sentinels are given: a password, or `user:password`, or
        /// [a file](#passwords-in-files) that has it. Servers are given `redis_auth`.
        sentinel_auth: Secret<SentinelAuth> = none,
        /// TLS for Sentinels: a section of [options](#tls), such as `{ca: /etc/cashew/ca.pem}`, or `true` for their
        /// defaults. Without it they are asked without TLS, also where `server_tls` is for the servers.
        sentinel_tls: ServerTlsText = none,
        /// Which server of a [group](#groups) answers [reads](#reads-from-replicas). Without it the primary
        /// does; of one server named `master` with replicas, those.
        reads: Reads = none,
        /// Who answers [reads of some commands](#reads-by-command) instead: commands, or Redis's categories
        /// as `"@slow"`, each with one of the values of `reads`. Redis pools only.
        reads_by_class: ReadsByClass = none,
        /// Which servers of a [group](#groups-of-memcached) get what is written: `all`, so that they are copies of
        /// each other, or the `first`, its primary; `all` unless set. memcached pools with groups only.
        writes: Writes = none,
        /// The zone that the gateway is in, as the servers of [groups](#groups) may have one.
        zone: Text = none,
        /// Milliseconds that requests wait for a server that cannot be reached, rather than fail: until it is
        /// back, or until another has taken its place. Only what surely did not run waits: what was not sent,
        /// and what the server [refused to run](how-to.md#what-happens-when-) as it loads its data or is a
        /// replica. None waits longer than `timeout`. 0 turns it off; 3000 unless set in a pool with
        /// `sentinels` or a `cluster`, else 0.
        failover_wait: Number<0, 3600000> = none,
        /// What the pool looks like to its clients: with `cluster` it answers
        /// [clients of Redis Cluster](how-to.md#let-clients-of-a-cluster-use-any-pool) as a cluster whose nodes are
        /// gateways. Redis pools only.
        pose: PoseText = none,
        /// The gateways that [clients of a cluster](how-to.md#let-clients-of-a-cluster-use-any-pool) are told of, this
        /// one first; they share the slots. Without it this one alone, at the address that the client has reached.
        advertise: Advertised = none,
        /// Whether replies leave out the names and addresses of the servers; see [what clients learn of
        /// servers](operations.md#what-clients-learn-of-servers). Otherwise errors end with them, as in
        /// `Connection refused (server r2, 10.0.0.2:6379)`.
        hide_topology: Switch = "false",
        /// Requests that take longer are recorded in the [slow log](operations.md#slow-requests), with where their
        /// time went. 0 turns it off.
        slow_log: Span<0, 3600000> = "10ms",
        /// Whether samples of requests tell [which keys are hot](operations.md#hot-keys), and which are big. With a section
        /// the gateway [answers the hot ones itself](how-to.md#a-key-is-hot), as long as they are.
        hot_keys: HotKeysText = "true",
        /// Whether requests, hits, misses, errors, bytes and latency are counted
        /// [by class of commands](operations.md#commands-and-prefixes). `true` where there are `prefixes`.
        command_stats: Switch = none,
        /// Requests for keys that begin so are [counted by themselves](operations.md#commands-and-prefixes), which takes
        /// `command_stats`; of several that fit the longest counts. At most 16, of 64 bytes each.
        prefixes: Prefixes = none,
        /// Bytes that a replica may be behind its primary and answer reads; without it there is no
        /// limit. See [replicas that are fit](#replicas-that-are-fit). Redis pools only.
        replica_lag_max: Size<0, 1099511627776> = none,
        /// How long a replica's connection to its primary may be down while the replica answers
        /// reads. Redis pools only.
        replica_link_down_max: Span<0, 86400000> = "60s",
        /// Whether clients see their own writes when they read from replicas: `off`, or by `offset`:
        /// a replica answers once it has what the client wrote, or by a time for which the client
        /// reads from the primary after each write. Redis pools only.
        read_your_writes: ReadYourWrites = "off",
        /// When reads are sent to a second server of their group: a section with `after` and `budget`, like
        /// `{after: 3ms, budget: 5%}`. See [reads that take long](#reads-that-take-long).
        hedge: HedgeText = none,
        /// Whether [reads are sent again](#reads-that-are-sent-again) whose server fails when it has been sent them:
        /// once, to another server of the group, or to the same one once it is back, for as long as
        /// `failover_wait` lets them wait.
        retry_reads: Switch = "false",
        /// Whether servers are asked to [say when they go](how-to.md#move-with-servers-that-say-when-they-go), by
        /// `CLIENT MAINT_NOTIFICATIONS`, and the pool follows them: `true`, `false`, or as what they are to name the
        /// address that they move to, which `true` leaves to whether they are connected with TLS and where they are.
        /// Redis pools only whose servers the file names, by host and port.
        server_maintenance: MaintenanceText = "false",
        /// Whether [equal reads](#equal-reads-are-sent-once) that wait to be written to a server at the same time are
        /// sent once, and share the reply. Not together with `hedge`.
        coalesce_reads: Switch = "false",
        /// So many keys each worker knows that clients with [`CLIENT TRACKING`](#clients-with-caches-of-their-own)
        /// have read. Of one that falls out they are told that it may have changed. Redis pools only.
        tracking_keys_max: Number<1, 16777216> = "100000",
        /// The version of Redis that `HELLO` tells clients. Some do more if it is newer: with 7.4.0 redis-py has [a cache
        /// of its own](#clients-with-caches-of-their-own). No newer one than that of the servers. Redis pools only.
        redis_version: RedisVersion = "7.0.15",
        /// What servers are to forget while they cannot be reached is [kept on disk](#what-servers-are-to-forget): a
        /// section with `directory`, `max`, `overwrites`, `hold` and `ttl`.
        spool: SpoolText = none,
        /// TLS for clients: a section with `certificate` and `key`, and [more](#tls). `listen` then takes no others,
        /// unless there is a `tls_listen`.
        tls: TlsText = none,
        /// A second address for clients, for those with TLS; `listen` is for those without.
        tls_listen: ListenText = none,
        /// TLS for servers: a section of [options](#tls), such as `{ca: /etc/cashew/ca.pem}`, or `true` for their
        /// defaults.
        server_tls: ServerTlsText = none,
        /// Addresses and networks that clients may come from; all others are refused. See [where clients come
        /// from](#where-clients-come-from).
        allow_from: SourceList = none,
        /// Addresses and networks that no client may come from, also if they are in `allow_from`.
        deny_from: SourceList = none,
        /// Whether connections begin with a header of the PROXY protocol, version 1 or 2, that tells whose they are:
        /// of all clients, or of those that come [from a proxy](#where-clients-come-from).
        proxy_protocol: ProxyProtocolText = "false",
        /// Longest CLIENT PAUSE of the pool's clients, in milliseconds. Longer pauses are refused.
        /// Redis pools only.
        client_pause_max: Number<0, 2147483647> = "60000",
    }
}

/// Which of the two layouts a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Pools at the top level, as in twitter/twemproxy.
    Flat,
    /// `global:` and `pools:`, as in the multi-process forks.
    Sectioned,
}

/// A file as read, in the order it was written.
pub(crate) struct File {
    pub(crate) dialect: Dialect,
    pub(crate) global: GlobalSection,
    pub(crate) pools: Vec<(At<String>, PoolSection)>,
    /// Pools without `listen`, where there are routes that may lead there.
    pub(crate) without_listen: Vec<At<String>>,
    pub(crate) routes: Vec<(At<String>, RouteSection)>,
}

const SECTIONS: [&str; 3] = ["global", "pools", ROUTES];

/// It stands beside `pools`. In a flat file it is a pool of that name, as ever.
const ROUTES: &str = "routes";

pub(crate) fn read(root: &Node, report: &mut Report<'_>) -> Option<File> {
    let entries = match &root.kind {
        Kind::Section(entries) => entries,
        Kind::Empty => {
            report.error(root.pos, no_pools());
            return None;
        }
        Kind::Scalar { .. } | Kind::List(_) => {
            let complaint = Complaint::new("the file must be a section of pools");
            report.error(root.pos, complaint.hint(POOLS_HINT));
            return None;
        }
    };
    if entries.iter().any(|(key, _)| matches!(key.value.as_str(), "global" | "pools")) {
        return Some(read_sectioned(root.pos, entries, report));
    }
    if let Some((key, _)) = entries.iter().find(|entry| is_section_of_routes(entry)) {
        let complaint = Complaint::new("\"routes\" must be beside \"pools\"");
        report.error(key.pos, complaint.hint("put the pools that they lead to under \"pools:\""));
        return None;
    }
    for (name, _) in entries.iter().filter(|(_, node)| lacks_listen(node)) {
        report.error(name.pos, no_listen(&name.value));
    }
    let pools = read_pools(root.pos, entries, report);
    let global = GlobalSection::defaults();
    let (without_listen, routes) = (Vec::new(), Vec::new());
    Some(File { dialect: Dialect::Flat, global, pools, without_listen, routes })
}

/// Whether it is meant as the routes, not as a pool of that name.
fn is_section_of_routes((key, node): &(At<String>, Node)) -> bool {
    let is_pool = |entries: &[(At<String>, Node)]| {
        entries
            .iter()
            .any(|(key, _)| matches!(key.value.as_str(), "listen" | "servers" | "servers_from"))
    };
    key.value == ROUTES && matches!(&node.kind, Kind::Section(entries) if !is_pool(entries))
}

fn lacks_listen(node: &Node) -> bool {
    lacks(node, &["listen"])
}

/// Whether it is a section that has none of these options.
fn lacks(node: &Node, options: &[&str]) -> bool {
    match &node.kind {
        Kind::Section(entries) => {
            !entries.iter().any(|(key, _)| options.contains(&key.value.as_str()))
        }
        Kind::Empty => true,
        Kind::Scalar { .. } | Kind::List(_) => false,
    }
}

fn no_listen(pool: &str) -> Complaint {
    let complaint = Complaint::new(format!("pool \"{pool}\" lacks the option \"listen\""));
    complaint.hint(ListenText::expected())
}

fn read_sectioned(pos: Pos, entries: &[(At<String>, Node)], report: &mut Report<'_>) -> File {
    let mut global: Option<GlobalSection> = None;
    let mut pools = None;
    let mut routes = None;
    let mut without_listen = Vec::new();
    for (key, node) in entries {
        match key.value.as_str() {
            "global" if global.is_none() => {
                global = Some(section::read("section \"global\"", key.pos, node, report));
            }
            "pools" if pools.is_none() => {
                pools = Some(match &node.kind {
                    Kind::Section(entries) => {
                        let without = entries.iter().filter(|(_, node)| lacks_listen(node));
                        without_listen = without.map(|(name, _)| name.clone()).collect();
                        read_pools(key.pos, entries, report)
                    }
                    Kind::Empty => {
                        report.error(key.pos, no_pools());
                        Vec::new()
                    }
                    Kind::Scalar { .. } | Kind::List(_) => {
                        let complaint = Complaint::new("section \"pools\" must be a section");
                        report.error(node.pos, complaint.hint("expected pools by their names"));
                        Vec::new()
                    }
                });
            }
            ROUTES if routes.is_none() => routes = Some(read_routes(key, node, report)),
            "global" | "pools" | ROUTES => {
                let message = format!("section \"{}\" is given twice", key.value);
                report.error(key.pos, Complaint::new(message));
            }
            unknown => report.error(key.pos, unknown_section(unknown, node)),
        }
    }
    if pools.is_none() {
        report.error(pos, no_pools());
    }
    // Without routes nothing leads there but users.
    if routes.is_none() {
        let sections = || pools.iter().flatten().map(|(_, section)| section);
        without_listen.retain(|name| {
            let is_led_to = sections().any(|section| users::leads_to(section, &name.value));
            if !is_led_to {
                report.error(name.pos, no_listen(&name.value));
            }
            is_led_to
        });
    }
    File {
        dialect: Dialect::Sectioned,
        global: global.unwrap_or_else(GlobalSection::defaults),
        pools: pools.unwrap_or_default(),
        without_listen,
        routes: routes.unwrap_or_default(),
    }
}

fn read_routes(
    key: &At<String>,
    node: &Node,
    report: &mut Report<'_>,
) -> Vec<(At<String>, RouteSection)> {
    let refusal = match &node.kind {
        Kind::Section(entries) if !entries.is_empty() => {
            let read = |(name, node): &(At<String>, Node)| {
                (name.clone(), routes::read(name, node, report))
            };
            return entries.iter().map(read).collect();
        }
        Kind::Section(_) | Kind::Empty => Complaint::new("the section \"routes\" is empty"),
        Kind::Scalar { .. } | Kind::List(_) => {
            Complaint::new("section \"routes\" must be a section")
        }
    };
    report.error(key.pos, refusal.hint("expected routes by their names"));
    Vec::new()
}

fn unknown_section(name: &str, node: &Node) -> Complaint {
    let suggestion = nearest(name, SECTIONS)
        .map_or_else(String::new, |section| format!("; did you mean \"{section}\"?"));
    let complaint = Complaint::new(format!("unknown section \"{name}\"{suggestion}"));
    let is_pool = matches!(&node.kind, Kind::Section(entries)
        if entries.iter().any(|(key, _)| key.value == "listen"));
    if is_pool {
        complaint.hint("beside \"global\" or \"pools\", pools belong under \"pools:\"")
    } else {
        complaint
    }
}

const POOLS_HINT: &str = "write \"pools:\", and below it a name with \"listen\" and \"servers\"";

fn no_pools() -> Complaint {
    Complaint::new("the file has no pools").hint(POOLS_HINT)
}

fn read_pools(
    pos: Pos,
    entries: &[(At<String>, Node)],
    report: &mut Report<'_>,
) -> Vec<(At<String>, PoolSection)> {
    if entries.is_empty() {
        report.error(pos, no_pools());
    }
    entries
        .iter()
        .map(|(name, node)| {
            let what = format!("pool \"{}\"", name.value);
            if lacks(node, &["servers", "servers_from", "cluster"]) {
                let complaint = Complaint::new(format!("{what} lacks the option \"servers\""));
                report.error(name.pos, complaint.hint(Servers::expected()));
            }
            let section = section::read(&what, name.pos, node, report);
            tcp::check_options(&section, node, report);
            (name.clone(), section)
        })
        .collect()
}
