//! Routes: how they are read, and what comes of them.

use std::path::Path;

use cashew_config::snapshot::{
    FailoverOn, HotRule, KeepRules, Listen, Pool, PrefixArm, Protocol, Route, Snapshot,
};
use cashew_config::{Context, Errors, MoveState, from_json, parse, to_json};

const ROUTES: &str = include_str!("good/routes.yml");

fn judge(text: &str, keys: &str) -> Result<(Snapshot, Vec<String>), Errors> {
    let read_keys = |path: &Path| match path.to_str() {
        Some("/run/keys" | "/run/move/state.json") if !keys.is_empty() => Ok(keys.to_owned()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    let loaded = parse("f", text, &Context { read_keys: &read_keys, ..Context::of_system() })?;
    let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
    Ok((loaded.snapshot, warnings))
}

fn find<'s>(snapshot: &'s Snapshot, name: &str) -> &'s Pool {
    snapshot.pools.iter().find(|pool| pool.name == name).unwrap()
}

fn pool(name: &str) -> Route {
    Route::Pool(name.to_owned())
}

fn boxed(name: &str) -> Box<Route> {
    pool(name).into()
}

fn two(one: &str, other: &str) -> Vec<Route> {
    vec![pool(one), pool(other)]
}

fn routes() -> Snapshot {
    let keys = "# both\nyonder scratch\n  two words both\n\n7up\thot\n";
    judge(ROUTES, keys).unwrap_or_else(|errors| panic!("{errors}")).0
}

#[test]
fn a_route_is_a_pool_without_servers() {
    let snapshot = routes();
    let names: Vec<_> = snapshot.pools.iter().map(|pool| &*pool.name).collect();
    assert_eq!(
        names,
        [
            "eu", "us", "all", "hot", "kept", "main", "more", "cache", "plain", "users", "scratch",
            "users-b"
        ]
    );
    let main = find(&snapshot, "main");
    assert_eq!(main.listen, Listen::Tcp("127.0.0.1:22121".parse().unwrap()));
    assert_eq!(
        (main.protocol, main.servers.len(), main.client_connections),
        (Protocol::Redis, 0, 500)
    );
    assert_eq!(main.redis_auth.as_deref(), Some("letmein"));
    // As many as the pool with the fewest has.
    assert_eq!((main.databases, find(&snapshot, "hot").databases), (4, 16));
    assert_eq!(find(&snapshot, "hot").listen, Listen::Nowhere);
    assert_eq!(find(&snapshot, "us").redis_auth.as_deref(), Some("secret"));
    assert!(
        find(&snapshot, "eu").route.is_none() && find(&snapshot, "eu").listen != Listen::Nowhere
    );
    let cache = find(&snapshot, "cache");
    assert_eq!((cache.route.clone(), cache.protocol), (Some(pool("more")), Protocol::Memcached));
    assert_eq!(cache.memcached.client_auth.len(), 1);
    assert_eq!(from_json(&to_json(&snapshot)).unwrap(), snapshot);
}

#[test]
fn prefixes_and_keys_are_sorted() {
    let snapshot = routes();
    let arm = |prefix: &str, rewrite: Option<&str>, to| PrefixArm {
        prefix: prefix.to_owned(),
        rewrite: rewrite.map(str::to_owned),
        to,
    };
    let both = Route::AllFastest { to: two("eu", "us"), miss_last: true };
    let keys = Route::Keys {
        exact: vec![
            ("7".to_owned(), both.clone()),
            ("7up".to_owned(), pool("hot")),
            ("banner".to_owned(), pool("hot")),
            ("two words".to_owned(), both),
            ("yonder".to_owned(), pool("scratch")),
        ],
        otherwise: Route::AllInitial(two("eu", "us")).into(),
        file: Some("/run/keys".into()),
    };
    let on = FailoverOn { refused: true, timeout: true, error: false };
    let (from_else, with) = (boxed("users-b"), boxed("users"));
    let some = Route::Operation { read: from_else, write: with.clone(), delete: with };
    let op = Route::Operation { read: boxed("eu"), write: boxed("us"), delete: boxed("us") };
    let expected = Route::Prefix(vec![
        arm("", None, keys),
        arm("old:", Some("new:"), pool("scratch")),
        arm("op:", None, op),
        arm("tmp:", Some(""), pool("scratch")),
        arm("use", None, some),
        arm(
            "user:",
            None,
            Route::Failover { to: two("users", "users-b"), on, ttl_ms: Some(60_000) },
        ),
    ]);
    assert_eq!(find(&snapshot, "main").route, Some(expected));
}

#[test]
fn every_node_is_read() {
    let snapshot = routes();
    let b = || Box::new(Route::AllInitial(two("eu", "hot")));
    let migrate = |share, is_on| Route::Migrate {
        from: boxed("eu"),
        to: boxed("us"),
        share,
        dual_write: is_on,
        read_other: is_on,
        follow: None,
    };
    let shadow = |to, shadow, share, compare, outstanding_max| Route::Shadow {
        to,
        shadow,
        share,
        compare,
        outstanding_max,
    };
    let expected = Route::AllSync(vec![
        Route::AllAsync(two("eu", "us")),
        Route::AllMajority(vec![pool("eu"), pool("us"), pool("hot")]),
        Route::MissFailover(two("eu", "us")),
        Route::WarmUp { cold: boxed("eu"), warm: boxed("us"), ttl_ms: Some(3_600_000) },
        shadow(b(), boxed("us"), 1250, true, 7),
        shadow(boxed("us"), b(), 10_000, false, 100),
        migrate(2500, true),
        migrate(0, false),
        Route::KeySplit { to: boxed("eu"), copies: 4 },
        Route::Limit { to: boxed("eu"), per_second: 1000, burst: 2000 },
        Route::Limit { to: boxed("eu"), per_second: 1000, burst: 1000 },
        Route::Outstanding { to: b(), max: 100 },
        Route::Failover { to: two("eu", "us"), on: FailoverOn::default(), ttl_ms: None },
        Route::AllFastest { to: two("eu", "us"), miss_last: false },
    ]);
    let route = find(&snapshot, "all").route.as_ref().unwrap();
    assert_eq!(*route, expected);
    assert_eq!(route.pools(), ["eu", "us", "hot"]);
}

#[test]
fn a_cache_keeps_what_its_prefix_has_unless_it_names_keys() {
    let snapshot = routes();
    let keep = |bytes, ttl_ms, negative_ms, value_max, keys: &[&str]| KeepRules {
        bytes,
        ttl_ms,
        negative_ms,
        value_max,
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
        hot_only: false,
    };
    let kept = find(&snapshot, "kept").route.as_ref().unwrap().kept();
    let expected = [
        keep(8 << 20, 30_000, 2000, 4 << 10, &["hot:"]),
        keep(64 << 20, 10_000, 0, 64 << 10, &["hotter:a", "hotter:b"]),
    ];
    assert_eq!(kept, expected.iter().collect::<Vec<_>>());
    // memcached tells nobody, so that less time is right.
    let text = format!(
        "{ONE}routes: {{r: {{listen: /r, route: {{cache: {{to: {{prefix: {{'': a, b: b}}}}}}}}}}}}"
    );
    let (snapshot, _) = judge(&text, "").unwrap();
    let route = find(&snapshot, "r").route.as_ref().unwrap();
    assert_eq!(route.kept(), [&keep(64 << 20, 1000, 0, 64 << 10, &[])]);
    assert_eq!(route.title(), "cache, 64mb in all, ttl 1s, value_max 64kb");
    // The longest reply follows a small memory.
    for (bytes, value_max) in [("64kb", 4 << 10), ("1mb", 64 << 10), ("100kb", 6400)] {
        let text = format!(
            "{ONE}routes: {{r: {{listen: /r, route: {{prefix: {{'b:': b, '': {{cache: {{to: a, bytes: {bytes}}}}}}}}}}}}}"
        );
        let (snapshot, _) = judge(&text, "").unwrap();
        let route = find(&snapshot, "r").route.as_ref().unwrap();
        let [keep] = route.kept()[..] else { panic!("{bytes}") };
        assert_eq!(keep.value_max, value_max, "{bytes}");
    }
}

#[test]
fn a_cache_is_refused_where_it_could_not_be_right() {
    let with = |route: &str| {
        let text = format!("{ONE}routes: {{r: {{listen: /r, route: {route}}}}}");
        refused(&text, "").join("; ")
    };
    for (route, message) in [
        ("{all_sync: [{cache: {to: a}}, b]}", "\"cache\" stands below \"all_sync\""),
        (
            "{prefix: {'x:': {strip: true, to: {cache: {to: a}}}}}",
            "\"cache\" stands below a prefix with \"strip\" or \"rewrite\"",
        ),
        ("{cache: {to: {failover: [a, b]}}}", "below \"cache\" there is \"failover\""),
        ("{cache: {to: {cache: {to: a}}}}", "below \"cache\" there is another \"cache\""),
        (
            "{cache: {to: {key_split: {to: a, copies: 2}}}}",
            "below \"cache\" there is \"key_split\"",
        ),
        ("{cache: {to: a, negative: 2s}}", "\"negative\" is longer than \"ttl\""),
        ("{cache: {to: a, bytes: 64kb, value_max: 5kb}}", "\"value_max\" is too much of \"bytes\""),
        ("{cache: {to: a, bytes: 32kb}}", "32kb is too small"),
        ("{cache: {to: a, keys: ['user:*']}}", "\"user:*\" is no start of a key"),
        ("{cache: {to: a, keys: []}}", "option \"keys\" has 0 starts of keys"),
        ("{cache: {to: a, ttl: 1ms}}", "option \"ttl\": 1ms is too short"),
        ("{cache: {to: a, size: 1mb}}", "unknown option \"size\""),
    ] {
        let found = with(route);
        assert!(found.contains(message), "{route}: {found}");
    }
    let text = format!(
        "{ONE}routes:\n  r:\n    listen: /r\n    route: {{cache: {{to: a, bytes: 64kb, value_max: 5kb}}}}"
    );
    let error = judge(&text, "").expect_err("it is refused").to_string();
    assert!(error.contains(":5:") && error.contains("at most a 16th of it, 4kb"), "{error}");
    let text = "pools: {a: {redis: true, reads: prefer_replica, servers: [{name: g, primary: 'h:1', replicas: ['h:2']}]}}
routes: {r: {listen: /r, redis: true, route: {cache: {to: a}}}}";
    let message = "\"cache\" leads to pool \"a\", whose replicas answer reads";
    assert_eq!(refused(text, ""), [message]);
}

#[test]
fn what_is_hot_is_kept_where_a_node_keeps_it() {
    let with = |hot_keys: &str, node: &str| {
        format!(
            "pools:\n  a: {{redis: true, hot_keys: {hot_keys}, servers: ['h:1:1']}}\n\
             routes: {{r: {{listen: /r, redis: true, route: {{cache: {{to: a, {node}}}}}}}}}"
        )
    };
    let (snapshot, _) =
        judge(&with("{above: 5%, do: cache, most: 3}", "hot_only: true"), "").unwrap();
    let rule = HotRule { above_percent: 5, keys_max: 3, moves_to: None, copies: None };
    assert_eq!(find(&snapshot, "a").hot_rule.as_ref(), Some(&rule));
    assert!(snapshot.keeps_hot_of("a") && !snapshot.keeps_hot_of("r"));
    assert_eq!(from_json(&to_json(&snapshot)).unwrap(), snapshot);
    let route = find(&snapshot, "r").route.as_ref().unwrap();
    assert_eq!(route.title(), "cache of hot keys, 64mb in all, ttl 10s, value_max 64kb");
    // By command alone.
    let (snapshot, _) = judge(&with("true", "hot_only: true, keys: 'u:'"), "").unwrap();
    assert!(find(&snapshot, "a").hot_rule.is_none() && snapshot.keeps_hot_of("a"));
    let cache = "hot_only: true";
    for (hot_keys, node, message) in [
        (
            "{above: 5%, do: cache}",
            "ttl: 5s",
            "nothing keeps replies of the hot keys of pool \"a\"",
        ),
        ("false", cache, "\"hot_only\" with pool \"a\", whose hot keys nobody knows"),
        ("{above: 0%, do: cache}", cache, "all keys have more than 0% of the requests"),
        ("{above: 101%, do: cache}", cache, "101% is more than all"),
        ("{above: 5%, do: magic}", cache, "there is nothing called \"magic\" to do"),
        ("{above: 5%, do: move}", cache, "keys that move have to go somewhere"),
        ("{above: 5%, do: cache, to: b}", cache, "only keys that move go \"to\" a pool"),
        ("{above: 5%, do: split}", cache, "pool \"a\" cannot be split: it has one server"),
        ("{above: 5%, do: split, copies: 17}", cache, "option \"copies\""),
        ("{above: 5%, do: split, to: b}", cache, "only keys that move go \"to\" a pool"),
        ("{above: 5%, do: cache, copies: 2}", cache, "only keys that are split have \"copies\""),
        (
            "{above: 5%, do: move, to: b}",
            cache,
            "no route lists keys in a file and has all others in pool a",
        ),
        ("{above: 5%}", cache, "lacks the option \"do\""),
        ("{do: cache}", cache, "lacks the option \"above\""),
        ("{above: 5%, do: cache, most: 33}", cache, "option \"most\""),
        ("{above: 5%, do: cache, below: 2%}", cache, "unknown option \"below\""),
        ("maybe", cache, "\"maybe\" is not \"true\" or \"false\""),
        ("[5%]", cache, "option \"hot_keys\" has no value"),
    ] {
        let found = refused(&with(hot_keys, node), "").join("; ");
        assert!(found.contains(message), "{hot_keys}, {node}: {found}");
    }
    let text = "pools: {a: {redis: true, servers: ['h:1:1']}}
routes: {r: {listen: /r, redis: true, hot_keys: {above: 5%, do: cache}, route: {cache: {to: a, hot_only: true}}}}";
    assert_eq!(refused(text, ""), ["a route has no hot keys of its own"]);
}

#[test]
fn what_is_hot_is_split_where_there_are_servers_that_tell() {
    let with = |protocol: &str, hot_keys: &str, servers: &str, node: &str| {
        format!(
            "pools:\n  a: {{{protocol}timeout: 400, hot_keys: {hot_keys}, servers: [{servers}]}}\n\
             routes: {{r: {{listen: /r, {protocol}route: {{cache: {{to: a{node}}}}}}}}}"
        )
    };
    let (two, hot) = ("'h:1:1', 'h:2:1'", ", hot_only: true");
    for (text, copies) in [("{above: 5%, do: split}", 4), ("{above: 5%, do: split, copies: 2}", 2)]
    {
        let (snapshot, _) = judge(&with("redis: true, ", text, two, hot), "").unwrap();
        let rule = find(&snapshot, "a").hot_rule.clone().unwrap();
        assert_eq!((rule.copies, rule.moves_to.as_ref()), (Some(copies), None));
        assert_eq!(from_json(&to_json(&snapshot)).unwrap(), snapshot);
        assert_eq!(rule.to_string(), format!("above 5% do split, copies {copies}, most 8"));
    }
    let split = "{above: 5%, do: split}";
    for (protocol, servers, node, message) in [
        ("redis: true, ", two, "", "nothing keeps replies of the hot keys of pool \"a\""),
        ("", two, hot, "pool \"a\" cannot be split: only servers of Redis tell of changes"),
    ] {
        let found = refused(&with(protocol, split, servers, node), "").join("; ");
        assert!(found.contains(message), "{found}");
    }
    let text = with("redis: true, ", split, two, hot).replace("timeout: 400, ", "");
    let found = refused(&text, "").join("; ");
    assert!(found.contains("pool \"a\" cannot be split: it has no \"timeout\""), "{found}");
    let text = "pools: {a: {redis: true, timeout: 400, hot_keys: {above: 5%, do: split}, cluster: {seeds: ['h:1']}}}
routes: {r: {listen: /r, redis: true, route: {cache: {to: a, hot_only: true}}}}";
    judge(text, "").unwrap();
}

fn refused(text: &str, keys: &str) -> Vec<String> {
    let errors = judge(text, keys).expect_err("it is refused").0;
    errors.into_iter().map(|it| it.message).collect()
}

const ONE: &str = "pools: {a: {servers: [\"h:1:1\"]}, b: {servers: [\"h:2:1\"]}}\n";

#[test]
fn nodes_that_are_used_again_and_again_are_counted() {
    // Each has the one before twice, so that the seventh has some hundreds.
    let node = |at: usize| {
        let below = if at == 1 { "a".to_owned() } else { format!("n{}", at - 1) };
        format!("      n{at}: {{shadow: {{to: {below}, shadow: {{all_sync: [{below}, b]}}}}}}\n")
    };
    let nodes: String = (1..=7).map(node).collect();
    let with = |arms: usize| {
        let arms: String = (0..arms).map(|at| format!("p{at}: n7, ")).collect();
        format!(
            "{ONE}routes:\n  main:\n    listen: /main\n    route: {{prefix: {{{arms}}}}}\n    nodes:\n{nodes}"
        )
    };
    assert!(judge(&with(40), "").is_ok());
    assert_eq!(refused(&with(400), ""), ["the route has too many nodes"]);
}

#[test]
fn a_million_keys_are_read_and_no_more() {
    let text = format!(
        "{ONE}routes:\n  main:\n    listen: /main\n    route: {{keys: {{file: /run/keys}}, else: b}}\n"
    );
    let keys: String = (0..1_000_000).rev().map(|at| format!("key:{at} a\n")).collect();
    let (snapshot, _) = judge(&text, &keys).unwrap_or_else(|errors| panic!("{errors}"));
    let Some(Route::Keys { exact, .. }) = &find(&snapshot, "main").route else { panic!() };
    assert_eq!(exact.len(), 1_000_000);
    assert!(exact.is_sorted_by(|one, other| one.0 < other.0));
    let more = format!("{keys}one a\n");
    assert_eq!(refused(&text, &more), ["1000001 keys are too many"]);
    let bad: String = (0..12).map(|at| format!("nothing{at}\n")).collect();
    let messages = refused(&text, &bad);
    assert_eq!(messages.len(), 11, "{messages:?}");
    assert!(
        messages.contains(&"/run/keys: 2 more lines cannot be read".to_owned()),
        "{messages:?}"
    );
    let why = refused(&text.replace("/run/keys", "/run/gone"), "");
    assert_eq!(why, ["option \"file\": /run/gone cannot be read: entity not found"]);
}

#[test]
fn a_pool_that_a_list_may_name_later_on_needs_no_listen() {
    const FILE: &str = "\
pools:
  a: {redis: true, servers: [10.0.0.1:6379:1]}
  b: {redis: true, servers: [10.0.0.2:6379:1]}
  c: {servers: [10.0.0.3:11211:1]}
routes:
  main:
    listen: 127.0.0.1:22121
    redis: true
    route: {keys: {file: /run/keys}, else: a}
";
    // The route is for Redis.
    assert_eq!(refused(FILE, "k a\n"), ["nobody can reach pool \"c\""]);
    let inline = FILE.replace("file: /run/keys", "exact: {k: a}");
    assert_eq!(
        refused(&inline, ""),
        ["nobody can reach pool \"b\"", "nobody can reach pool \"c\""]
    );
}

#[test]
fn a_list_in_another_file_is_another_configuration() {
    let text = format!(
        "{ONE}routes:\n  main:\n    listen: /main\n    route: {{keys: {{file: /run/keys}}, else: b}}\n"
    );
    let (before, _) = judge(&text, "k a\n").unwrap_or_else(|errors| panic!("{errors}"));
    let mut after = before.clone();
    let route = after.pools.iter_mut().find_map(|pool| pool.route.as_mut()).unwrap();
    let Route::Keys { file, .. } = route else { panic!() };
    *file = Some("/run/other".into());
    let lines = cashew_config::Difference::between(&before, &after).lines().join("\n");
    assert!(lines.contains("keys listed in /run/other instead of /run/keys"), "{lines}");
}

#[test]
fn a_pool_that_is_copied_is_served_by_the_side_that_is_kept() {
    const FILE: &str = "\
pools:
  a: {redis: true, servers: [10.0.0.1:6379:1]}
  b: {redis: true, servers: [10.0.0.2:6379:1]}
routes:
  main:
    listen: 127.0.0.1:22121
    redis: true
    route: {prefix: {'x:': {migrate: {from: a, to: b, directory: /run/move, rate: 7, bandwidth: 1mb}}}}
";
    let state = |from: &str, is_cut_over: bool| {
        let mut state = MoveState::new(from, "b");
        state.is_cut_over = is_cut_over;
        serde_json::to_string(&state).unwrap()
    };
    for (state, is_cut_over) in
        [(String::new(), false), (state("a", false), false), (state("a", true), true)]
    {
        let snapshot = judge(FILE, &state).unwrap_or_else(|errors| panic!("{errors}")).0;
        let moves: Vec<_> = snapshot.moves().collect();
        let [("main", it)] = moves[..] else { panic!("{moves:?}") };
        assert_eq!((it.from, it.to, it.is_cut_over), ("a", "b", is_cut_over));
        assert_eq!((it.follow.keys_per_second, it.follow.bytes_per_second), (7, 1 << 20));
        assert!(snapshot.needs_discovery());
        assert_eq!(from_json(&to_json(&snapshot)).unwrap(), snapshot);
        let mut other = snapshot.clone();
        other.set_cut_over(Path::new("/run/other"), !is_cut_over);
        assert_eq!(other, snapshot);
        other.set_cut_over(Path::new("/run/move"), !is_cut_over);
        assert_eq!(other.moves().next().map(|(_, it)| it.is_cut_over), Some(!is_cut_over));
    }
    for (state, why) in [
        (state("c", false), "/run/move belongs to the move from pool \"c\" to \"b\""),
        ("{".to_owned(), "/run/move cannot be read: EOF"),
    ] {
        let errors = judge(FILE, &state).unwrap_err().to_string();
        assert!(errors.contains(why), "{errors}");
    }
}

#[test]
fn pools_of_moves_with_a_server_in_common_are_refused() {
    let file = |a: &str, b: &str, c: &str, d: &str| {
        format!(
            "\
pools:
  a: {{redis: true, servers: [{a}]}}
  b: {{redis: true, servers: [{b}]}}
  c: {{redis: true, servers: [{c}]}}
  d: {{redis: true, servers: [{d}]}}
routes:
  main:
    listen: 127.0.0.1:22121
    redis: true
    route:
      prefix:
        'x:': {{migrate: {{from: a, to: b, directory: /run/move}}}}
        'y:': {{migrate: {{from: c, to: d, directory: /run/other}}}}
"
        )
    };
    let (one, two, three, four) = (
        "10.0.0.1:6379:1",
        "10.0.0.2:6379:1",
        "\"[::ffff:10.0.0.3]:6379:1\"",
        "cache.example:6379:1",
    );
    assert!(judge(&file(one, two, three, four), "").is_ok());
    for (text, why) in [
        (
            file(one, "10.0.0.9:1:1, 10.0.0.1:6379:1", three, four),
            "\"a\" and \"b\" have server 10.0.0.1:6379 in",
        ),
        (
            file(one, two, three, "10.0.0.3:6379:1 x"),
            "\"c\" and \"d\" have server 10.0.0.3:6379 in",
        ),
        (
            file(one, two, three, "10.0.0.1:6379:5 x"),
            "\"a\" and \"d\" have server 10.0.0.1:6379 in",
        ),
        (
            file(one, "CACHE.example.:6379:1", three, four),
            "\"b\" and \"d\" have server cache.example:6379 in",
        ),
        (file("127.0.0.1:7:1", "localhost:7:1", three, four), "have server 127.0.0.1:7 in"),
    ] {
        let errors = judge(&text, "").unwrap_err().to_string();
        assert!(errors.contains(why), "{errors}");
    }
}

#[test]
fn no_user_writes_to_a_pool_that_is_copied() {
    let file = |to: &str| {
        format!(
            "\
pools:
  a: {{redis: true, servers: [10.0.0.1:6379:1]}}
  b: {{redis: true, servers: [10.0.0.2:6379:1]}}
  own:
    listen: 127.0.0.1:22122
    redis: true
    servers: [10.0.0.3:6379:1]
    users: {{ann: {{rules: on nopass +@all ~*, route: {to}}}}}
routes:
  main:
    listen: 127.0.0.1:22121
    redis: true
    route: {{migrate: {{from: a, to: b, directory: /run/move}}}}
"
        )
    };
    if let Err(errors) = judge(&file("main"), "") {
        panic!("{errors}");
    }
    for pool in ["a", "b"] {
        let errors = judge(&file(pool), "").unwrap_err().to_string();
        let wanted = format!("pool \"{pool}\" is copied, and a user's route is to it");
        assert!(errors.contains(&wanted), "{errors}");
    }
}
