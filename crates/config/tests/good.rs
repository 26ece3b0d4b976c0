//! Files that must load, and the resulting snapshots.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use cashew_config::snapshot::{
    Affinity, ClientSources, CommandKeys, CommandPolicy, CustomCommand, Endpoint, Global, IoEngine,
    Limits, Listen, LogFormat, OverLimit, PolicyBase, Pool, Protocol, Server, ServerAuth, Snapshot,
    StatsFormat, Topology, TopologyState, UserOptions,
};
use cashew_config::{Context, Difference, Loaded, SecretFile, from_json, parse, to_json};
use cashew_placement::{Distribution, Hash, HashTag};

const FLAT: &str = include_str!("good/flat.yml");
const SECTIONED: &str = include_str!("good/sectioned.yml");

fn load(text: &str) -> Loaded {
    let resolve = |host: &str, port| match host {
        "localhost" => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        _ => Ok(SocketAddr::new(host.parse().map_err(std::io::Error::other)?, port)),
    };
    let context = Context {
        processors: 6,
        memory: Some(48 << 30),
        resolve: &resolve,
        is_directory: &|path| path == Path::new("/var/log"),
        has_account: &|_, _| true,
        read_secret: &|path| match path.to_str() {
            Some("/run/users") => {
                Ok(SecretFile { text: "ann:one\nbob:two\r\n".into(), is_public: false })
            }
            Some("/run/public") => Ok(SecretFile { text: "open word\n".into(), is_public: true }),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        },
        read_env: &|name| (name == "WORDS").then(|| "one two:three".to_owned()),
        ..Context::of_system()
    };
    parse("test.yml", text, &context).unwrap_or_else(|errors| panic!("{errors}"))
}

fn pool(name: &str, listen: Listen, protocol: Protocol, servers: Vec<Server>) -> Pool {
    Pool {
        name: name.to_owned(),
        listen,
        protocol,
        hash: Hash::Fnv1a64,
        hash_tag: None,
        distribution: Distribution::Ketama,
        topology: Topology::Sharded,
        servers,
        timeout_ms: None,
        backlog: 512,
        client_connections: 0,
        tcp_keepalive: false,
        tcp_quickack: false,
        reuseport: false,
        redis_auth: None,
        server_auth: ServerAuth::default(),
        users: Vec::new(),
        user_options: Vec::new(),
        user_routes: Vec::new(),
        external_auth: None,
        memcached: Default::default(),
        redis_db: 0,
        databases: 16,
        preconnect: false,
        auto_eject_hosts: false,
        server_connections: 1,
        session_connections: 128,
        session_connections_idle: 0,
        session_wait_ms: 5000,
        server_retry_timeout_ms: 30_000,
        server_failure_limit: 2,
        server_check_interval_ms: 0,
        fail_open_percent: 100,
        cross_server_copy: false,
        limits: Limits::default(),
        commands: Vec::new(),
        commands_from_servers: false,
        command_policy: Some(CommandPolicy::of(PolicyBase::Application)),
        client_pause_max_ms: Some(60_000),
        failover_wait_ms: 0,
        pose: None,
        hide_topology: false,
        sentinel: None,
        zone: None,
        reads: None,
        reads_by_class: Vec::new(),
        replica_reads: Default::default(),
        route: None,
        cluster: None,
        servers_from: None,
        hedge: None,
        spool: None,
        tls: None,
        tls_listen: None,
        server_tls: None,
        client_sources: ClientSources::default(),
        tcp: None,
        retry_reads: false,
        server_maintenance: None,
        coalesce_reads: false,
        tracking_keys_max: 100_000,
        redis_version: "7.0.15".to_owned(),
        slow_log_ms: 10,
        hot_keys: true,
        hot_rule: None,
        command_stats: false,
        prefixes: Vec::new(),
    }
}

fn tcp(address: &str) -> Listen {
    Listen::Tcp(address.parse().unwrap())
}

fn server(name: &str, host: &str, port: u16, weight: u32) -> Server {
    let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
    Server { name: name.to_owned(), endpoint, weight, zone: None }
}

#[test]
fn the_flat_dialect_loads() {
    let local = "127.0.0.1";
    let first = Pool {
        auto_eject_hosts: true,
        server_retry_timeout_ms: 2000,
        server_failure_limit: 1,
        ..pool(
            "first",
            tcp("127.0.0.1:22121"),
            Protocol::Redis,
            vec![server("127.0.0.1:6379", local, 6379, 1)],
        )
    };
    let second = Pool {
        hash: Hash::Murmur,
        hash_tag: Some(HashTag { open: b'{', close: b'}' }),
        distribution: Distribution::Modula,
        timeout_ms: Some(400),
        redis_auth: Some("0123".to_owned()),
        server_auth: ServerAuth::of_clients(Some("0123")),
        memcached: Default::default(),
        redis_db: 3,
        databases: 1,
        tcp_keepalive: true,
        client_connections: 500,
        server_connections: 4,
        session_connections: 128,
        session_connections_idle: 0,
        session_wait_ms: 5000,
        ..pool(
            "second",
            tcp("127.0.0.1:22122"),
            Protocol::Redis,
            vec![
                server("master", local, 6383, 1),
                server("server1", local, 6382, 1),
                server("server9", local, 6381, 1),
                server("server10", local, 6380, 1),
            ],
        )
    };
    let path = PathBuf::from("/tmp/memcached");
    let last = Pool {
        hash: Hash::Hsieh,
        distribution: Distribution::Random,
        backlog: 1024,
        preconnect: true,
        server_failure_limit: 1,
        ..pool(
            "last",
            Listen::Unix { path: PathBuf::from("/tmp/cashew-test"), mode: Some(0o660) },
            Protocol::Memcached,
            vec![
                server("127.0.0.1", local, 11211, 100_000),
                server("::1:11215", "::1", 11215, 1),
                Server {
                    name: "/tmp/memcached:".to_owned(),
                    endpoint: Endpoint::Unix(path),
                    weight: 2,
                    zone: None,
                },
                server("127.0.0.1:11214", local, 11214, 1),
            ],
        )
    };
    let loaded = load(FLAT);
    let expected = Snapshot {
        epoch: 1,
        global: Global {
            worker_processes: 6,
            max_open_files: None,
            user: None,
            group: None,
            worker_shutdown_timeout_ms: 30_000,
            batch_window_max_us: 5000,
            worker_memory_max: Some(4 << 30),
            io_engine: IoEngine::Auto,
            reload_drain_timeout_ms: 5000,
            control_socket: None,
            worker_cpu_affinity: Affinity::Off,
            worker_heartbeat_timeout_ms: 700,
            rebalance_threshold: Some(20),
            stats_listen: None,
            stats_raw: StatsFormat::Nutcracker,
            stats_token: None,
            operate_token: None,
            operate_from: Vec::new(),
            log_file: None,
            log_level: None,
            log_format: LogFormat::Plain,
            sentinel_state: None,
            discovery_state: None,
            ready_workers: 1,
            ready_needs_primaries: false,
            drain_delay_ms: 0,
            drain_to: None,
            tracing: None,
            access_log: None,
            audit_log: None,
        },
        pools: vec![last, first, second],
    };
    assert_eq!(loaded.snapshot, expected);
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "test.yml:6:21: a server that hangs is not ejected without \"timeout\"
      auto_eject_hosts: true
                        ^
    hint: for example timeout: 400, in milliseconds",
            "test.yml:30:6: this server holds a share of the keys like any other
       - 127.0.0.1:6383:1 master
         ^
    hint: put the pools under \"pools:\" to make it the master of the other servers"
        ]
    );
}

#[test]
fn the_sectioned_dialect_loads() {
    let loaded = load(SECTIONED);
    assert_eq!(loaded.warnings, []);
    assert_eq!(
        loaded.snapshot.global,
        Global {
            worker_processes: 3,
            max_open_files: Some(102_400),
            user: Some("nobody".to_owned()),
            group: Some("nobody".to_owned()),
            worker_shutdown_timeout_ms: 0,
            batch_window_max_us: 5000,
            worker_memory_max: Some(8 << 30),
            io_engine: IoEngine::Uring,
            reload_drain_timeout_ms: 250,
            control_socket: Some(PathBuf::from("/run/cashew/cashew.sock")),
            worker_cpu_affinity: Affinity::List(vec![6, 0, 1, 2, 3]),
            worker_heartbeat_timeout_ms: 0,
            rebalance_threshold: None,
            stats_listen: Some("[::1]:22222".parse().unwrap()),
            stats_raw: StatsFormat::Full,
            stats_token: None,
            operate_token: None,
            operate_from: Vec::new(),
            log_file: Some(PathBuf::from("/var/log/cashew.log")),
            log_level: Some(5),
            log_format: LogFormat::Plain,
            sentinel_state: None,
            discovery_state: None,
            ready_workers: 1,
            ready_needs_primaries: false,
            drain_delay_ms: 0,
            drain_to: None,
            tracing: None,
            access_log: None,
            audit_log: None,
        }
    );
    let local = "127.0.0.1";
    let command = |name: &str, arity, keys, flags: &[&str]| CustomCommand {
        name: name.to_owned(),
        arity,
        keys,
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
    };
    let range = |first, last, step| CommandKeys::Range { first, last, step };
    let alone = Pool {
        commands_from_servers: true,
        commands: vec![
            command("ft.list", 1, CommandKeys::None, &[]),
            command("json.mset", -4, range(1, -1, 3), &["write"]),
            command("tdigest.add", -3, range(1, 1, 1), &["write", "denyoom"]),
            command("x.many", -3, CommandKeys::Numkeys { at: 1, step: 1 }, &[]),
        ],
        ..pool("alone", tcp("[::1]:22124"), Protocol::Redis, vec![server("master", local, 6379, 1)])
    };
    let cached = Pool {
        tcp_quickack: true,
        reuseport: true,
        limits: Limits {
            request_size_max: 2 << 20,
            client_requests_max: 16,
            client_output_pause: 65_536,
            client_output_max: 1 << 30,
            server_queue_max: 100,
            server_queue_size_max: 64 << 10,
            server_connect_timeout_ms: 250,
            pipeline_start: 9,
            transfer_rate_min: 1000,
            transfer_stall_ms: 0,
            ..Limits::default()
        },
        ..pool(
            "cached",
            tcp("127.0.0.1:22125"),
            Protocol::Memcached,
            vec![server("master", local, 11211, 1), server("127.0.0.1:11212", local, 11212, 1)],
        )
    };
    let likewise =
        Pool { name: "likewise".to_owned(), listen: tcp("127.0.0.1:22126"), ..cached.clone() };
    let replicated = Pool {
        topology: Topology::MasterReplica { master: 0 },
        ..pool(
            "replicated",
            tcp("0.0.0.0:22123"),
            Protocol::Redis,
            vec![
                server("master", local, 6379, 1),
                server("slave1", local, 6380, 1),
                server("slave2", local, 6381, 1),
            ],
        )
    };
    assert_eq!(loaded.snapshot.pools, [alone, cached, likewise, replicated]);
}

#[test]
fn the_examples_load_without_warnings() {
    for (name, pools) in
        [("cashew.yml", ["pages", "sessions"]), ("nutcracker.yml", ["pages", "users"])]
    {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../conf").join(name);
        let loaded = cashew_config::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(loaded.warnings, [], "{name}");
        let names: Vec<_> = loaded.snapshot.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!(names, pools, "{name}");
    }
}

#[test]
fn snapshots_of_versions_before_have_defaults() {
    let text = String::from_utf8(to_json(&load(FLAT).snapshot)).unwrap();
    let added = r#","stats_listen":null,"stats_raw":"nutcracker","log_file":null,"log_level":null,"log_format":"plain","sentinel_state":null"#;
    let global = from_json(text.replace(added, "").as_bytes()).unwrap().global;
    assert!(text.contains(added), "{text}");
    assert_eq!(global.stats_listen(), "0.0.0.0:22222".parse().unwrap());
    assert_eq!((global.log_level(), global.log_file), (5, None));
    assert_eq!(global.stats_raw, StatsFormat::Nutcracker);
}

#[test]
fn snapshots_survive_json() {
    for text in [FLAT, SECTIONED] {
        let mut snapshot = load(text).snapshot;
        snapshot.epoch = u64::MAX;
        assert_eq!(from_json(&to_json(&snapshot)).unwrap(), snapshot);
    }
}

#[test]
fn workers_are_limited_whatever_the_machine_has() {
    let workers = |text: &str, processors| {
        let text = format!("{text}pools:\n  p:\n    listen: /p\n    servers: [\"a:1:1\"]\n");
        let context = Context { processors, ..Context::of_system() };
        parse("f", &text, &context).unwrap().snapshot.global.worker_processes
    };
    assert_eq!(workers("", 4), 4);
    assert_eq!(workers("", 0), 1);
    assert_eq!(workers("", 1000), 256);
    assert_eq!(workers("global:\n", 2), 2);
    assert_eq!(workers("global:\n  worker_processes: auto\n", 2), 2);
    assert_eq!(workers("global: {worker_processes: 0}\n", 2), 0);
    assert_eq!(workers("global: {worker_processes: 256}\n", 2), 256);
}

#[test]
fn memory_is_shared_by_workers() {
    let share = |global: &str, memory| {
        let text = format!(
            "global: {{{global}}}\npools:\n  p:\n    listen: /p\n    servers: [\"a:1:1\"]\n"
        );
        let context = Context { processors: 4, memory, ..Context::of_system() };
        parse("f", &text, &context).unwrap().snapshot.global.worker_memory_max
    };
    assert_eq!(share("", Some(16 << 30)), Some(2 << 30));
    assert_eq!(share("", None), None);
    assert_eq!(share("memory_max: 0", Some(16 << 30)), None);
    assert_eq!(share("memory_max: 400mb", None), Some(100 << 20));
    assert_eq!(share("memory_max: 400mb, worker_processes: 0", None), Some(400 << 20));
    assert_eq!(share("memory_max: 16mb", None), Some(8 << 20));
}

#[test]
fn processors_are_numbers_and_ranges() {
    let affinity = |value: &str| {
        let text = format!(
            "global: {{worker_cpu_affinity: {value}}}\npools: {{p: {{listen: /p, servers: [\"a:1:1\"]}}}}\n"
        );
        parse("f", &text, &Context::of_system()).unwrap().snapshot.global.worker_cpu_affinity
    };
    assert_eq!(affinity("off"), Affinity::Off);
    assert_eq!(affinity("auto"), Affinity::Auto);
    assert_eq!(affinity("3"), Affinity::List(vec![3]));
    assert_eq!(affinity("\"7,0-2,1023\""), Affinity::List(vec![7, 0, 1, 2, 1023]));
}

fn one_pool(options: &str) -> Loaded {
    load(&format!("alpha: {{listen: 127.0.0.1:22121, servers: [127.0.0.1:1:1], {options}}}\n"))
}

#[test]
fn policies_are_a_word_or_a_section() {
    let policy =
        |options: &str| one_pool(options).snapshot.pools[0].command_policy.clone().unwrap();
    assert_eq!(policy("redis: true"), CommandPolicy::of(PolicyBase::Application));
    assert_eq!(policy("command_policy: cache"), CommandPolicy::of(PolicyBase::Cache));
    let listed = policy(
        "redis: true, command_policy: {allow: [Keys, config|SET, keys], deny: ['@dangerous']}",
    );
    let expected = CommandPolicy {
        base: PolicyBase::Application,
        allow: vec!["config|set".into(), "keys".into()],
        deny: vec!["@dangerous".into()],
        rename: Vec::new(),
    };
    assert_eq!(listed, expected);
    assert_eq!(listed.to_string(), "application, allow CONFIG|SET KEYS, deny @DANGEROUS");
    let renamed = policy("redis: true, command_policy: {rename: {Keys: '', CONFIG: My-Config}}");
    let pairs = [("config".to_owned(), "my-config".to_owned()), ("keys".to_owned(), String::new())];
    assert_eq!(renamed.rename, pairs);
    assert_eq!(renamed.to_string(), "application, rename CONFIG to my-config KEYS to nothing");
    let modules = "redis: true, commands_from_servers: true, command_policy: {deny: [json.del]}";
    assert_eq!(policy(modules).deny, ["json.del"]);
}

#[test]
fn users_are_kept_as_lines_with_hashes() {
    let rules = "redis: true, users: {bob: 'on nopass +@read ~a', ann: [on, '>two words', +get|x, (+set ~b)]}";
    let loaded = one_pool(rules);
    let lines = &loaded.snapshot.pools[0].users;
    // SHA-256 of "two words".
    let hash = "a03f1d611645eb53ad16c1af546ca0792dc884505bab57ede80f4dad6b911d3a";
    let expected = [
        format!("user ann on #{hash} resetchannels -@all +get|x (~b resetchannels -@all +set)"),
        "user bob on nopass ~a resetchannels -@all +@read".to_owned(),
    ];
    assert_eq!(*lines, expected);
    assert!(!String::from_utf8_lossy(&to_json(&loaded.snapshot)).contains("two words"));
    assert_eq!(from_json(&to_json(&loaded.snapshot)).unwrap(), loaded.snapshot);
    assert_eq!(one_pool("redis: true").snapshot.pools[0].users, [""; 0]);
}

#[test]
fn users_may_have_limits() {
    let rules = "redis: true, users: {bob: {rules: on nopass +@read ~a, requests_per_second: 1000, \
                 bytes_per_second: 10mb, over_limit: delay, key_prefix: 'b:'}, ann: {rules: [on, '>two words']}}";
    let loaded = one_pool(rules);
    let pool = &loaded.snapshot.pools[0];
    assert_eq!(pool.users[1], "user bob on nopass ~a resetchannels -@all +@read");
    let bob = UserOptions {
        requests_per_second: 1000,
        bytes_per_second: 10 << 20,
        over_limit: OverLimit::Delay,
        key_prefix: "b:".to_owned(),
        ..UserOptions::of("bob")
    };
    assert_eq!(pool.user_options, [bob]);
    assert_eq!(from_json(&to_json(&loaded.snapshot)).unwrap(), loaded.snapshot);
}

#[test]
fn users_may_have_routes_of_their_own() {
    let users = "ann: {rules: on nopass +@all ~*, route: far}, bob: {rules: on nopass +@all ~*, \
                 route: both, reads: replica}, cid: {rules: on nopass +@all ~*, route: far}, dan: on nopass";
    let text = format!(
        "pools:
  near: {{redis: true, listen: 127.0.0.1:1, servers: [127.0.0.1:2:1], users: {{{users}}}}}
  far: {{redis: true, servers: [127.0.0.1:3:1]}}
routes:
  both: {{redis: true, listen: 127.0.0.1:4, databases: 4, route: {{failover: [near, far]}}}}
"
    );
    let loaded = load(&text);
    let near = loaded.snapshot.pools.iter().find(|pool| pool.name == "near").unwrap();
    let named =
        |user: &str| near.route_of_user(user).map(|route| (&*route.name, route.route.pools()));
    assert_eq!(named("ann"), Some(("far", vec!["far"])));
    assert_eq!(named("bob"), Some(("both", vec!["near", "far"])));
    assert_eq!(named("cid"), named("ann"));
    assert_eq!(named("dan"), None);
    let databases = near.user_routes.iter().map(|it| (&*it.name, it.databases));
    assert_eq!(databases.collect::<Vec<_>>(), [("both", 4), ("far", 16)]);
    assert_eq!(from_json(&to_json(&loaded.snapshot)).unwrap(), loaded.snapshot);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn passwords_may_be_in_files() {
    let loaded = one_pool("redis: true, redis_auth: {file: /run/public}");
    assert_eq!(loaded.snapshot.pools[0].redis_auth.as_deref(), Some("open word"));
    let words = "test.yml:1:92: every user of this machine can read /run/public\n    \
                 alpha: {listen: 127.0.0.1:22121, servers: [127.0.0.1:1:1], redis: true, redis_auth: ***\n";
    assert!(loaded.warnings[0].to_string().starts_with(words), "{}", loaded.warnings[0]);
    let loaded = one_pool("client_auth: {file: /run/users}, server_auth: x:y");
    let users = &loaded.snapshot.pools[0].memcached.client_auth;
    let pairs: Vec<_> = users.iter().map(|u| (u.user.as_str(), u.password.as_str())).collect();
    assert_eq!(pairs, [("ann", "one"), ("bob", "two")]);
    assert!(loaded.warnings.is_empty());
}

#[test]
fn servers_have_credentials_of_their_own() {
    let of = |options: &str| one_pool(options).snapshot.pools.remove(0).server_auth;
    let shown = |auth: &ServerAuth, server: &str| -> Vec<String> {
        auth.of(server).iter().map(|it| format!("{} {}", it.user, it.password)).collect()
    };
    assert_eq!(shown(&of("redis: true, redis_auth: word"), "a"), ["default word"]);
    let auth = of("redis: true, redis_auth: word, server_auth: gate:new default:o:ld");
    assert_eq!(shown(&auth, "a"), ["gate new", "default o:ld"]);
    let auth = of("redis: true, redis_auth: word, server_auth: {env: WORDS}");
    assert_eq!(shown(&auth, "a"), ["default one", "two three"]);
    let auth =
        of("redis: true, redis_auth: word, server_auth: {servers: {'127.0.0.1:1': {env: WORDS}}}");
    assert_eq!(shown(&auth, "a"), ["default word"]);
    assert_eq!(shown(&auth, "127.0.0.1:1"), ["default one", "two three"]);
    assert_eq!(shown(&auth, "127.0.0.1:1/10.0.0.1:2"), ["default one", "two three"]);
}

#[test]
fn what_older_versions_know_nothing_of_is_as_it_was_there() {
    let snapshot = one_pool("redis: true").snapshot;
    let mut json: serde_json::Value = serde_json::from_slice(&to_json(&snapshot)).unwrap();
    let pool = json["pools"][0].as_object_mut().unwrap();
    for option in ["command_policy", "client_pause_max_ms"] {
        assert!(pool.remove(option).is_some());
    }
    let old = from_json(json.to_string().as_bytes()).unwrap();
    assert_eq!(old.pools[0].policy(), CommandPolicy::of(PolicyBase::Admin));
    assert_eq!(cashew_config::pools_without_policy(&old).count(), 1);
    let warnings = cashew_config::warnings_of_change(&old, &snapshot);
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.starts_with("pool 'alpha': by command_policy clients may no longer call "));
    assert!(cashew_config::warnings_of_change(&snapshot, &old).is_empty());
}

#[test]
fn a_cluster_is_a_pool_without_servers() {
    let yaml = "a: {listen: 127.0.0.1:22121, redis: true, zone: z, reads: zone, hedge: {after: 3ms}, \
                replica_lag_max: 1mb, cluster: {seeds: ['n1:7000', '[::1]:7001'], connections_max: 90}}\n";
    let loaded = load(yaml);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let pool = &loaded.snapshot.pools[0];
    let cluster = pool.cluster.as_ref().unwrap();
    let seeds: Vec<String> = cluster.seeds.iter().map(ToString::to_string).collect();
    assert_eq!((seeds, cluster.connections_max), (vec!["n1:7000".into(), "[::1]:7001".into()], 90));
    assert_eq!((&pool.topology, pool.servers.len()), (&Topology::Groups(Vec::new()), 0));
    assert_eq!((pool.failover_wait_ms, pool.databases), (3000, 1));
    assert!(loaded.snapshot.needs_discovery());
    let other = load(&yaml.replace("90", "91").replace("n1", "n2"));
    let told = Difference::between(&loaded.snapshot, &other.snapshot).to_string();
    assert_eq!(
        told,
        "pool 'a': cluster: seeds: n1:7000, [::1]:7001 -> n2:7000, [::1]:7001\n\
         pool 'a': cluster: connections_max: 90 -> 91"
    );
    let lines = load("a: {listen: 127.0.0.1:22121, redis: true, servers: ['n1:7000:1']}\n");
    let told = Difference::between(&lines.snapshot, &loaded.snapshot).to_string();
    assert!(told.contains("pool 'a': keys are where the cluster has them"), "{told}");
}

/// A line that becomes a group of its name moves no key, whatever the distribution, also where the
/// name is the one that the line has of its address.
#[test]
fn replicas_that_sentinels_name_may_be_read() {
    let load = |options: &str| {
        let loaded = load(&format!(
            "a: {{listen: 127.0.0.1:22121, redis: true, sentinels: ['h:1', 'h:2', 'h:3'], {options}, \
             servers: [{{name: s1, sentinel: m, weight: 2}}, '10.0.0.1:6379:1 s2']}}"
        ));
        let mut pools = loaded.snapshot.pools;
        (pools.remove(0), loaded.warnings)
    };
    for options in [
        "reads: prefer_replica, replica_lag_max: 1mb",
        "reads_by_class: {get: any}",
        "zone: z, reads: any, read_your_writes: offset",
    ] {
        let (pool, warnings) = load(options);
        assert!(pool.takes_replicas() && !pool.has_replicas(), "{options}");
        assert!(warnings.is_empty(), "{warnings:?}");
        let Topology::Groups(groups) = &pool.topology else { panic!("{options}") };
        let names: Vec<_> = groups.iter().map(|it| (&*it.name, it.weight, it.primary)).collect();
        assert_eq!(names, [("s1", 2, 0), ("s2", 1, 1)]);
    }
    // All else is as without them.
    for options in ["reads: primary", "reads_by_class: {get: primary}", "timeout: 400"] {
        let (pool, _) = load(options);
        assert!(!pool.takes_replicas() && pool.topology == Topology::Sharded, "{options}");
    }
}

#[test]
fn a_line_that_becomes_a_group_of_its_name_keeps_its_keys() {
    let lines = "['10.0.0.1:6379:1', '10.0.0.2:6379:2 two', '10.0.0.3:11211:1', '/s:3 s', \
                 '10.0.0.4:6379:1 s10']";
    let groups = "[{name: '10.0.0.1:6379', primary: '10.0.0.1:6379', replicas: ['10.0.1.1:6379']}, \
                  {name: two, weight: 2, primary: '10.0.0.2:6379', replicas: ['10.0.1.2:6379', '/r']}, \
                  {name: 10.0.0.3, primary: '10.0.0.3:11211'}, \
                  {name: s, primary: /s, weight: 3, replicas: ['10.0.1.3:6379']}, \
                  '10.0.0.4:6379:1 s10']";
    for (distribution, dialect) in
        ["ketama", "modula", "random"].into_iter().flat_map(|it| [(it, "pools: "), (it, "")])
    {
        let of = |servers: &str| {
            let pool = format!(
                "{{a: {{listen: 127.0.0.1:22121, redis: true, distribution: {distribution}, servers: {servers}}}}}"
            );
            load(&format!("{dialect}{pool}\n")).snapshot
        };
        let (by_lines, by_groups) = (of(lines), of(groups));
        let (before, after) = (&by_lines.pools[0], &by_groups.pools[0]);
        let at = |pool: &Pool, shard: u32| {
            let primary = pool.shards()[shard as usize].primary;
            pool.servers[primary as usize].endpoint.clone()
        };
        let rings = [before, after].map(|pool| pool.ring(&TopologyState::whole(pool)));
        for point in (0..=u32::MAX).step_by(65_521) {
            let [was, is] = rings.each_ref().map(|ring| ring.select(point).unwrap());
            assert_eq!(at(before, was), at(after, is), "{distribution} {point}");
        }
        assert_eq!(after.servers.len(), 9);
        let names: Vec<&str> = after.servers.iter().map(|server| &*server.name).collect();
        let expected = [
            "s10",
            "s//s",
            "two//r",
            "10.0.0.3",
            "s/10.0.1.3:6379",
            "two/10.0.0.2:6379",
            "two/10.0.1.2:6379",
            "10.0.0.1:6379/10.0.0.1:6379",
            "10.0.0.1:6379/10.0.1.1:6379",
        ];
        assert_eq!(names, expected);
        let told = Difference::between(&by_lines, &by_groups).to_string();
        let moved = told.contains("keys go to another server");
        assert!(!moved, "{told}");
        assert!(
            told.contains("'two': 10.0.0.2:6379 with replicas 10.0.1.2:6379, /r instead of at")
        );
    }
}
