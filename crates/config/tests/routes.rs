//! Routes: how they are read, and what comes of them.

use std::path::Path;

use cashew_config::snapshot::{FailoverOn, Listen, Pool, PrefixArm, Protocol, Route, Snapshot};
use cashew_config::{Context, Errors, from_json, parse, to_json};

const ROUTES: &str = include_str!("good/routes.yml");

fn judge(text: &str, keys: &str) -> Result<(Snapshot, Vec<String>), Errors> {
    let read_keys = |path: &Path| match path.to_str() {
        Some("/run/keys") => Ok(keys.to_owned()),
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
        ["eu", "us", "all", "hot", "main", "more", "cache", "plain", "users", "scratch", "users-b"]
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
