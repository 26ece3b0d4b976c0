//! What a configuration file may say. The doc comments are the documentation of the options: the
//! schema and the tables of docs/configuration.md are made of them.

use cashew_placement::{Distribution, Hash, HashTag};

use crate::address::ListenText;
use crate::commands::{Commands, Whole, Words};
use crate::diagnostic::{At, Complaint, Pos, Report, nearest};
use crate::policy::{Entries, PolicyText};
use crate::secret::Secret;
use crate::section::{self, OptionInfo, Section, section};
use crate::snapshot::{Affinity, CasUniques, IoEngine, OnFailure, PolicyBase, Wire};
use crate::tree::{Kind, Node};
use crate::value::{
    CredentialList, FilePath, Heartbeat, Memory, Number, Servers, Size, SocketPath, StatsListen,
    Switch, Text, Timeout, Value, Workers,
};

section! {
    /// What concerns the whole instance.
    GlobalSection {
        /// Worker processes, one thread each. `auto` is one for every processor this process may
        /// use; 0 is a single process that does everything, without a master.
        worker_processes: Workers = "auto",
        /// Open files (RLIMIT_NOFILE) wanted for each worker. Without it the inherited limit stays.
        /// What servers may need is reserved; clients may have the rest.
        max_openfiles: Number<64, 1073741824> = none,
        /// User that workers become when the master runs as root. It must exist then, when the file
        /// is loaded and when a worker starts.
        user: Text = none,
        /// Group that workers become when the master runs as root. It must exist then, when the file
        /// is loaded and when a worker starts.
        group: Text = none,
        /// Seconds that a stopping worker waits for requests in flight; 0 stops it at once.
        worker_shutdown_timeout: Number<0, 86400> = "30",
        /// Microseconds that requests, and replies to clients that are owed more, may be held back
        /// at most, under load, so that many are written together, which saves CPU time here and on
        /// the servers; 0 turns it off. The window opens with the load, to 600 µs; to a third of it
        /// where clients ask before they have been answered, because their requests come whatever is
        /// done; and to half of the time that an answer takes, 4000 µs at most, where so many
        /// clients that ask as soon as they are answered keep a worker busy that this is longer.
        /// What nobody could join goes at once. Beyond the window nothing waits if anything happens;
        /// only where nothing does, once a second at most, all of this may pass, since a timer for
        /// every window costs more than what it is worth. Where the kernel has no `epoll_pwait2` (before
        /// Linux 5.11, or a filter refuses it) windows take whole milliseconds. Whatever this is,
        /// what comes while the worker is at work on other requests is written with them, as far as
        /// eight more looks, which wait for nothing, find it.
        batch_window_max: Number<0, 10000> = "5000",
        /// Bytes that the buffers and requests of all workers may take, each worker an equal share
        /// of at least 8mb. From three quarters of it on a worker does not read the clients that hold
        /// most, of the pools that hold more than their share; at all of it, or after a second in
        /// between, it closes them. `auto` is half
        /// of the memory that this process may use, 0 is without limit.
        memory_max: Memory = "auto",
        /// How workers move bytes. `uring` takes fewer system calls under load; it needs Linux 6.1
        /// and the right to use io_uring, which the default seccomp profiles of containers refuse;
        /// without them it warns and uses epoll. Since Linux 6.17 it takes up to 256 KiB of a
        /// connection at a time, before 64 KiB. `auto` is `epoll`.
        io_engine: IoEngine = "auto",
        /// Milliseconds that a reload, and an upgrade, wait for replies to requests on their way
        /// whose keys get to another server. What is not answered by then is answered after the
        /// change.
        reload_drain_timeout: Number<0, 3600000> = "5000",
        /// Path of the socket that `cashew reload`, `upgrade` and `status` talk to. Without it the
        /// path is made of that of the configuration file.
        control_socket: SocketPath = none,
        /// Processors that workers stay on, one each: `auto` are all that this process may use, in
        /// order; a list like `0-3,6` is begun anew when there are more workers.
        worker_cpu_affinity: Affinity = "off",
        /// Milliseconds without a heartbeat after which a worker, or the admin process, is taken for
        /// hung and replaced; 0 never does.
        worker_heartbeat_timeout: Heartbeat = "700",
        /// Whether clients are moved from the busiest worker to the one that is least busy.
        rebalance: Switch = "true",
        /// Percent of a processor's time that two workers must differ by for clients to be moved.
        rebalance_threshold: Number<1, 100> = "20",
        /// Where the statistics are. A name is resolved once, when the file is loaded, to its first
        /// address. The flag `-a` takes the place of the host, `-s` that of the port.
        stats_listen: StatsListen = "0.0.0.0:22222",
        /// File that the log is appended to, in place of standard error. The flag `-o` takes its
        /// place.
        log_file: FilePath = none,
        /// How much is logged: 0 to 3 errors, 4 warnings, 5 and 6 information, 7 debugging, 8 to 11
        /// everything. The flag `-v` takes its place.
        log_level: Number<0, 11> = "5",
    }
}

section! {
    /// A command that Redis itself does not have. Arguments are counted from 0, the name.
    CommandSection {
        /// The command, in any case; a subcommand as `container|subcommand`.
        name: Text = required,
        /// Arguments with the name, and a subcommand's name; negative: at least so many.
        arity: Whole = required,
        /// The first argument that is a key; 0 when there is none.
        first_key: Number<0, 32767> = "0",
        /// The last argument that is a key; negative counts from the end, -1 being the last of all.
        /// Without it there is one key.
        last_key: Whole = none,
        /// From one key to the next: 2 when a value is behind each.
        step: Number<1, 32767> = "1",
        /// The argument that says how many keys follow it, in the place of `first_key` and
        /// `last_key`.
        numkeys: Number<1, 32766> = none,
        /// Redis's flags. Without `write` and `readonly` it may do either; `readonly` may go to a
        /// replica, and `blocking` gets a connection of its own.
        flags: Words = none,
    }
}

section! {
    /// Where a password is.
    SecretSection {
        /// A file that has it, without the line end behind it.
        file: FilePath = required,
    }
}

section! {
    /// What clients may call.
    PolicySection {
        /// What is allowed but for the lists.
        base: PolicyBase = "application",
        /// What is allowed as well: commands, subcommands as `CONFIG|SET`, Redis's categories as
        /// `"@admin"`.
        allow: Entries = none,
        /// What is not allowed.
        deny: Entries = none,
    }
}

section! {
    /// One pool: an address that clients connect to and the servers behind it.
    PoolSection {
        /// Where clients connect: an address, or the path of a Unix socket with an optional octal
        /// file mode. A name is resolved once, when the file is loaded, to its first address.
        listen: ListenText = required,
        /// The servers that share the keys of the pool.
        servers: Servers = required,
        /// Whether the pool speaks the Redis protocol; otherwise it speaks memcached's.
        redis: Switch = "false",
        /// Hash of the keys.
        hash: Hash = "fnv1a_64",
        /// Two delimiters: a key that has text between them is placed by that text alone.
        hash_tag: HashTag = none,
        /// How hashes are mapped to servers.
        distribution: Distribution = "ketama",
        /// Milliseconds that a request may wait for its reply once it is sent, and before that for
        /// a connection to be sent on. 0 or -1 is without limit. A large reply may take longer as
        /// long as it goes on; one that stops in the middle is given up after twice that at most.
        timeout: Timeout = "-1",
        /// Connections that may wait to be accepted, as given to listen(2).
        backlog: Number<0, 2147483647> = "512",
        /// Client connections of this pool over all workers. 0 is without limit but what open files
        /// leave to clients.
        client_connections: Number<0, 2147483647> = "0",
        /// Whether client connections have SO_KEEPALIVE. Server connections always have it.
        tcpkeepalive: Switch = "false",
        /// Whether a part of a request is acknowledged at once (TCP_QUICKACK, set anew each time). It
        /// spares clients that write requests in pieces, without TCP_NODELAY, a wait of 40 ms for
        /// each; it takes a packet more for each piece.
        tcp_quickack: Switch = "false",
        /// Accepted and ignored: listening sockets always have SO_REUSEPORT.
        reuseport: Switch = "false",
        /// Password that clients must give and that is given to servers, or
        /// [a file](#passwords-in-files) that has it. Redis pools only.
        redis_auth: Secret<Text> = none,
        /// Database that clients have at first. Redis pools only.
        redis_db: Number<0, 2147483647> = "0",
        /// How many databases clients may choose from with SELECT: those below this number. With 1
        /// there is only `redis_db`, which clients know as 0. Redis pools only; 16 unless `redis_db`
        /// is set, else 1.
        databases: Number<1, 2147483647> = none,
        /// Which of memcached's protocols clients may speak: `auto` goes by the first byte of each
        /// connection, `text` has the meta commands. memcached pools only.
        protocol: Wire = "auto",
        /// What a `get` is answered whose server fails: `error`, or `miss` as if the key were not
        /// there. memcached pools only.
        on_failure: OnFailure = "error",
        /// Whether CAS uniques tell which server they are of, so that one of another server never
        /// matches: `auto` where the pool has several servers, `tagged` always, `plain` never, as
        /// servers give them. memcached pools only.
        cas_uniques: CasUniques = "auto",
        /// Who may come: `user:password`, several with spaces between them. Asked for by SASL in the
        /// binary protocol, by a first `set` in text. Or [a file](#passwords-in-files) that has them.
        /// memcached pools only.
        client_auth: Secret<CredentialList> = none,
        /// What servers are given: `user:password`, or [a file](#passwords-in-files) that has it.
        /// memcached pools only.
        server_auth: Secret<CredentialList> = none,
        /// Whether workers connect to every server when they start.
        preconnect: Switch = "false",
        /// Whether a server that keeps failing is taken out of the ring for a while.
        auto_eject_hosts: Switch = "false",
        /// Shared connections to each server over all workers; every worker has at least one.
        server_connections: Number<1, 2147483647> = "1",
        /// Connections to each server, over all workers, that clients may have to themselves: for
        /// transactions (from WATCH or the first command in MULTI) and for blocking calls. Every
        /// worker may have at least one. Redis pools only.
        session_connections: Number<1, 65536> = "128",
        /// How many such connections to each server every worker keeps ready for who needs one.
        /// Redis pools only.
        session_connections_idle: Number<0, 65536> = "0",
        /// Milliseconds that a client waits for such a connection while all are in use, before it
        /// gets an error. Redis pools only.
        session_wait_timeout: Number<1, 3600000> = "5000",
        /// Milliseconds that a transaction may keep such a connection while others wait for one; then
        /// it is ended as if something watched had changed. Redis pools only.
        session_hold_timeout: Number<1, 3600000> = "10000",
        /// Milliseconds until an ejected server is probed, and between probes, less up to half of
        /// it at random. It is back when it answers one.
        server_retry_timeout: Number<0, 2147483647> = "30000",
        /// Consecutive failures, as one worker sees them, that eject a server. 0 counts as 1.
        server_failure_limit: Number<0, 2147483647> = "2",
        /// Whether RENAME, RENAMENX and COPY carry a key from one server to another, by DUMP and
        /// RESTORE, if its new name belongs there. Not atomic. Redis pools only.
        cross_server_copy: Switch = "false",
        /// Bytes of the largest request. A client that sends more gets an error and is closed.
        request_size_max: Size<1024, 4294967296> = "1gb",
        /// Requests of one client that may wait for replies. Beyond it the client is not read.
        client_requests_max: Number<1, 1048576> = "1024",
        /// Bytes of replies waiting for one client beyond which the client is not read.
        client_output_pause: Size<1024, 4294967296> = "1mb",
        /// Bytes of replies waiting for one client beyond which the client is closed.
        client_output_max: Size<65536, 17179869184> = "1gb",
        /// Bytes waiting for one client that is subscribed to anything beyond which it is closed, and
        /// the largest message that such a client may be sent. Redis pools only, as what follows.
        pubsub_output_max: Size<65536, 17179869184> = "32mb",
        /// Bytes waiting for one client that is subscribed to anything beyond which it is closed when
        /// there are as many for `pubsub_output_soft_time`.
        pubsub_output_soft_max: Size<1024, 17179869184> = "8mb",
        /// Milliseconds that a client may have more than `pubsub_output_soft_max` waiting.
        pubsub_output_soft_time: Number<1000, 86400000> = "60000",
        /// Channels and patterns that one client may be subscribed to.
        client_subscriptions_max: Number<1, 16777216> = "65536",
        /// Channels and patterns that all clients of one worker may be subscribed to, each counted as
        /// often as it has clients.
        subscriptions_max: Number<1, 1073741824> = "1048576",
        /// Requests queued or in flight on one server connection. Beyond it requests get an error.
        server_queue_max: Number<1, 16777216> = "262144",
        /// Bytes waiting to be written on one server connection. Beyond it requests get an error,
        /// unless nothing else waits.
        server_queue_size_max: Size<65536, 17179869184> = "256mb",
        /// Milliseconds that connecting to a server may take when `timeout` is not shorter.
        server_connect_timeout: Number<1, 3600000> = "5000",
        /// Requests that clients may have in flight at first, while nobody knows how large the replies
        /// are, dealt out among all clients of a worker that wait for anything: one each at least.
        /// Replies that are small make room for more, up to `client_requests_max`; after a large one
        /// its client reads one value at a time. 0 turns that off.
        pipeline_start: Number<0, 65535> = "64",
        /// Bytes per second that a client has to send of a large request, or to take of a large reply,
        /// for as long as others wait for a connection that such have to themselves. Who is slower
        /// gives it up. 0 is without such a limit.
        transfer_rate_min: Size<0, 1073741824> = "64kb",
        /// Milliseconds that a client may send nothing of a large request that is being passed on, or
        /// take nothing of a large reply, whether others wait or not, before it is closed. 0 is without
        /// such a limit.
        transfer_stall_timeout: Number<0, 86400000> = "60000",
        /// Commands that Redis itself does not have, of [modules](#commands-of-modules). Redis
        /// pools only.
        commands: Commands = none,
        /// Whether a server is asked (COMMAND INFO) about a command that is not known, when a
        /// client says it first. Redis pools only.
        commands_from_servers: Switch = "false",
        /// What clients may call: `application` is all but what administers servers, other clients or
        /// the gateway, `cache` the same without what empties whole databases, `admin` all that the
        /// gateway serves; or a section with `base`, `allow` and `deny`. See
        /// [who may call what](#who-may-call-what).
        command_policy: PolicyText = "application",
        /// Milliseconds that CLIENT PAUSE may hold the clients of the pool back at most. Longer
        /// pauses are refused. Redis pools only.
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
}

const SECTIONS: [&str; 2] = ["global", "pools"];

pub(crate) fn read(root: &Node, report: &mut Report<'_>) -> Option<File> {
    let entries = match &root.kind {
        Kind::Section(entries) => entries,
        Kind::Empty => {
            report.error(root.pos, no_pools());
            return None;
        }
        Kind::Scalar { .. } | Kind::List(_) => {
            report.error(root.pos, Complaint::new("the file must be a section of pools"));
            return None;
        }
    };
    if entries.iter().any(|(key, _)| SECTIONS.contains(&key.value.as_str())) {
        Some(read_sectioned(root.pos, entries, report))
    } else {
        let pools = read_pools(root.pos, entries, report);
        let global = GlobalSection::defaults();
        Some(File { dialect: Dialect::Flat, global, pools })
    }
}

fn read_sectioned(pos: Pos, entries: &[(At<String>, Node)], report: &mut Report<'_>) -> File {
    let mut global: Option<GlobalSection> = None;
    let mut pools = None;
    for (key, node) in entries {
        match key.value.as_str() {
            "global" if global.is_none() => {
                global = Some(section::read("section \"global\"", key.pos, node, report));
            }
            "pools" if pools.is_none() => {
                pools = Some(match &node.kind {
                    Kind::Section(entries) => read_pools(key.pos, entries, report),
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
            "global" | "pools" => {
                let message = format!("section \"{}\" is given twice", key.value);
                report.error(key.pos, Complaint::new(message));
            }
            unknown => report.error(key.pos, unknown_section(unknown, node)),
        }
    }
    if pools.is_none() {
        report.error(pos, no_pools());
    }
    File {
        dialect: Dialect::Sectioned,
        global: global.unwrap_or_else(GlobalSection::defaults),
        pools: pools.unwrap_or_default(),
    }
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

fn no_pools() -> Complaint {
    Complaint::new("the file has no pools")
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
            (name.clone(), section::read(&what, name.pos, node, report))
        })
        .collect()
}
