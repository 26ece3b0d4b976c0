//! What would move if another file were in effect.

use cashew_config::Difference;
use cashew_config::Snapshot;
use cashew_config::snapshot::{Operation, Reach};
use serde::Serialize;

use super::operations;
use super::pools::{Home, Pools};
use super::tree::shown;
use crate::arguments::RouteArguments;

/// Of one key.
#[derive(Debug, Serialize)]
struct Move {
    pool: String,
    key: String,
    operation: &'static str,
    /// The servers that are asked.
    from: Vec<String>,
    to: Vec<String>,
    moves: bool,
}

#[derive(Debug, Serialize)]
struct Comparison {
    /// What is different about these pools and routes, and what share of the keys moves.
    changes: Vec<String>,
    keys: Vec<Move>,
}

pub(super) fn compare(
    pools: &Pools,
    other: &Snapshot,
    chosen: &[&str],
    keys: &[String],
    arguments: &RouteArguments,
) -> Result<String, String> {
    let others = Pools::of_file(other);
    let mut concerned: Vec<&str> = chosen.to_vec();
    for (pools, name) in
        [pools, &others].into_iter().flat_map(|it| chosen.iter().map(move |name| (it, *name)))
    {
        if let Some(pool) = pools.find(name) {
            concerned.extend(pool.route.iter().flat_map(|route| route.pools()));
        }
    }
    let is_concerned = |line: &&String| {
        concerned.iter().any(|name| {
            ["pool", "route"].iter().any(|what| line.starts_with(&format!("{what} '{name}': ")))
        })
    };
    let difference = Difference::between(&pools.snapshot, other);
    let changes = difference.lines().iter().filter(is_concerned).cloned().collect();
    let mut moves = Vec::new();
    for name in chosen {
        let pool = pools.find(name).expect("the chosen pools are there");
        for (operation, reach) in operations::of(arguments.command.as_deref(), pool)? {
            for key in keys {
                let from = asked(pools, name, key, (operation, reach));
                let to = asked(&others, name, key, (operation, reach));
                moves.push(Move {
                    pool: (*name).to_owned(),
                    key: key.clone(),
                    operation: match operation {
                        Operation::Read => "read",
                        Operation::Write => "write",
                        Operation::Delete => "delete",
                    },
                    moves: from != to,
                    from,
                    to,
                });
            }
        }
    }
    let comparison = Comparison { changes, keys: moves };
    Ok(match arguments.json {
        true => serde_json::to_string_pretty(&comparison).expect("it is plain JSON"),
        false => describe(&comparison),
    })
}

/// The servers that are asked while none fails and none has a miss.
fn asked(
    pools: &Pools,
    name: &str,
    key: &str,
    (operation, reach): (Operation, Reach),
) -> Vec<String> {
    let Some(pool) = pools.find(name) else { return Vec::new() };
    let place = |pool: &str, key: &[u8]| {
        let Home { server, group, .. } = pools.home(pool, key, operation);
        let at = match (server, group) {
            (Some(server), _) => server.address,
            (None, Some(group)) => format!("group {group}"),
            (None, None) => "any".to_owned(),
        };
        format!("{pool} {at} {}", shown(key))
    };
    match &pool.route {
        None => vec![place(name, key.as_bytes())],
        Some(route) => {
            let visit = route.visit(key.as_bytes(), operation, reach);
            visit.asked().into_iter().map(|(pool, key)| place(pool, key)).collect()
        }
    }
}

fn describe(comparison: &Comparison) -> String {
    let mut lines = comparison.changes.clone();
    if lines.is_empty() {
        lines.push("nothing changes about where keys go".to_owned());
    }
    for Move { pool, key, operation, from, to, moves } in &comparison.keys {
        let list = |places: &[String]| match places {
            [] => "nowhere".to_owned(),
            places => places.join(", "),
        };
        lines.push(match moves {
            false => format!("{pool}, key {key:?}, {operation}: stays at {}", list(from)),
            true => {
                format!("{pool}, key {key:?}, {operation}: {} instead of {}", list(to), list(from))
            }
        });
    }
    lines.join("\n")
}
