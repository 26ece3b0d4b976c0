//! No text makes the reader panic, and accepted configurations keep their invariants.

use std::net::SocketAddr;

use cashew_config::snapshot::{SERVERS_MAX, Snapshot};
use cashew_config::{Context, from_json, parse, to_json};
use proptest::prelude::*;

/// Pieces of configuration files, so that arbitrary sequences of them pass the YAML reader.
fn piece() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "a:\n",
        "pool:\n",
        "global:\n",
        "pools:\n",
        "  listen: ",
        "127.0.0.1:22121\n",
        "/tmp/x 0777\n",
        "\"*:1\"\n",
        "  redis: true\n",
        "  redis_auth: ",
        "  redis_db: ",
        "  timeout: ",
        "-1\n",
        "0\n",
        "1e999\n",
        "18446744073709551616\n",
        "  hash: ",
        "md5\n",
        "  hash_tag: \"{}\"\n",
        "  distribution: ",
        "modula\n",
        "  servers:\n",
        "  - ",
        "a:1:1\n",
        "a:1:1 master\n",
        "b:11211:3\n",
        "::1:1:1\n",
        "\"[::1]:1:1\"\n",
        "/s:1\n",
        "/s:1 name\n",
        ":::\n",
        "  servers: [\"a:1:1\"]\n",
        "  <<: *x\n",
        "&x ",
        "*x\n",
        "~\n",
        "''\n",
        "!!int ",
        "|\n",
        "  worker_processes: ",
        "routes:\n",
        "  r: {listen: /r, route: {all_sync: [pool, a]}}\n",
        "  r:\n",
        "  route: ",
        "  nodes: ",
        "{n: pool}\n",
        "pools: {pool: {servers: [\"a:1:1\"]}}\n",
        "{prefix: {'': pool, 'a': {strip: true, to: pool}}}\n",
        "{keys: {exact: {k: pool}}, else: pool}\n",
        "{failover: [pool, n], ttl: 1s}\n",
        "auto\n",
        "  request_size_max: ",
        "64kb\n",
        "\t",
        " ",
        "\n",
        "---\n",
        "# c\n",
        "é\n",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "1:\n",
        "? ",
        "\"\\0\"\n",
    ];
    prop_oneof![8 => proptest::sample::select(PIECES).prop_map(str::to_owned), 1 => ".{0,8}"]
}

fn check(text: &str) -> Result<(), TestCaseError> {
    let resolve = |_: &str, port| Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    match parse(
        "f",
        text,
        &Context {
            processors: 2,
            memory: Some(1 << 30),
            resolve: &resolve,
            is_directory: &|_| true,
            read_secret: &|_| Err(std::io::ErrorKind::NotFound.into()),
            read_env: &|_| None,
            ..Context::of_system()
        },
    ) {
        Ok(loaded) => check_snapshot(&loaded.snapshot),
        Err(errors) => {
            prop_assert!(!errors.0.is_empty());
            for diagnostic in &errors.0 {
                prop_assert!(diagnostic.line >= 1 && diagnostic.column >= 1, "{diagnostic}");
                prop_assert!(diagnostic.line <= text.split(['\n', '\r']).count(), "{diagnostic}");
            }
            Ok(())
        }
    }
}

fn check_snapshot(snapshot: &Snapshot) -> Result<(), TestCaseError> {
    prop_assert!(!snapshot.pools.is_empty());
    for pool in &snapshot.pools {
        prop_assert!(pool.servers.len() <= SERVERS_MAX);
        prop_assert_eq!(pool.servers.is_empty(), pool.route.is_some());
        let keys: Vec<_> = pool.servers.iter().map(|s| (s.name.len(), s.name.as_str())).collect();
        prop_assert!(keys.is_sorted_by(|a, b| a < b));
        prop_assert!(pool.servers.iter().all(|server| server.weight > 0));
    }
    prop_assert_eq!(&from_json(&to_json(snapshot)).unwrap(), snapshot);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_text_is_judged(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn any_pieces_are_judged(pieces in prop::collection::vec(piece(), 0..24)) {
        check(&pieces.concat())?;
    }

    #[test]
    fn any_server_line_is_judged(line in "[-/:a1 .\\[\\]%é]{0,16}") {
        check(&format!("p:\n  listen: /p\n  servers:\n  - '{line}'\n"))?;
        check(&format!("p:\n  listen: '{line}'\n  servers:\n  - a:1:1\n"))?;
    }
}
