//! The way of a key through the tree of a route.

use cashew_config::snapshot::{FailoverOn, Operation, Reach, Role, Route, Visit};
use serde::Serialize;

use super::Place;
use super::pools::{Home, Pools};

/// Where one key of one route goes.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct RouteWay {
    pub(super) route: String,
    pub(super) key: String,
    /// What is done: `read`, `write` or `delete`. Of several the way is the same.
    pub(super) operations: Vec<&'static str>,
    pub(super) tree: Step,
    /// Who answers, as far as that depends on who is down.
    pub(super) outcome: Outcome,
}

/// A node that is asked.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    /// Its kind and options.
    pub(super) node: String,
    /// When it is asked; empty if at once.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) when: &'static str,
    /// Why it asks these children.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) why: String,
    /// What the key is called there.
    pub(super) key: String,
    /// Of a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<Leaf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) children: Vec<Self>,
}

/// Where a pool has the key.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Leaf {
    pub(super) pool: String,
    /// The group, or the server where each is a group of one. `None`: it is left to chance, or no server is
    /// left.
    pub(super) group: Option<String>,
    /// Who is asked, if that is one server.
    pub(super) server: Option<Place>,
    /// The pool's `reads`, or that all of a group get the writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<String>,
    /// How the server is, as the running instance knows it, or as `--as-if` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
    pub(super) is_down: bool,
    pub(super) why: String,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// These pools, those that have a say in it; after a miss others may.
    Answered { by: Vec<String>, instead_of: Vec<String> },
    /// The gateway, without waiting for anybody.
    AtOnce,
    /// Nobody: it is an error.
    Fails { because_of: Vec<String> },
    /// The key has no prefix of the route's.
    NoRoute,
}

/// The ways of a key, those of operations that have the same in one.
pub(super) fn ways(
    name: &str,
    route: &Route,
    key: &str,
    operations: &[(Operation, Reach)],
    pools: &Pools,
) -> Vec<RouteWay> {
    let mut ways: Vec<RouteWay> = Vec::new();
    for &(operation, reach) in operations {
        let visit = route.visit(key.as_bytes(), operation, reach);
        let tree = step(&visit, operation, pools);
        let outcome = outcome(&visit, operation, pools);
        match ways.iter_mut().find(|way| way.tree == tree && way.outcome == outcome) {
            Some(way) => way.operations.push(word(operation)),
            None => ways.push(RouteWay {
                route: name.to_owned(),
                key: key.to_owned(),
                operations: vec![word(operation)],
                tree,
                outcome,
            }),
        }
    }
    ways
}

fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Delete => "delete",
    }
}

fn step(visit: &Visit<'_>, operation: Operation, pools: &Pools) -> Step {
    let at = visit.pool().map(|pool| {
        let Home { group, server, by, state, is_down, why } =
            pools.home(pool, &visit.key, operation);
        Leaf { pool: pool.to_owned(), group, server, by, state, is_down, why }
    });
    Step {
        node: visit.route.title(),
        when: visit.role.describe(),
        why: visit.why.clone(),
        key: shown(&visit.key),
        at,
        children: visit.children.iter().map(|child| step(child, operation, pools)).collect(),
    }
}

pub(super) fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// What comes out where everybody who is not down answers, and has the key.
pub(super) fn outcome(visit: &Visit<'_>, operation: Operation, pools: &Pools) -> Outcome {
    if let Some(pool) = visit.pool() {
        let (pool, is_down) = (pool.to_owned(), pools.home(pool, &visit.key, operation).is_down);
        return match is_down {
            true => Outcome::Fails { because_of: vec![pool] },
            false => Outcome::Answered { by: vec![pool], instead_of: Vec::new() },
        };
    }
    let children: Vec<(Role, Outcome)> =
        visit.children.iter().map(|child| (child.role, outcome(child, operation, pools))).collect();
    let has_failed =
        |outcome: &Outcome| matches!(outcome, Outcome::Fails { .. } | Outcome::NoRoute);
    let in_turn = || {
        let at = children.iter().position(|(_, outcome)| !has_failed(outcome));
        let passed: Vec<String> = children[..at.unwrap_or(children.len())]
            .iter()
            .flat_map(|(_, outcome)| culprits(outcome))
            .collect();
        match at.map(|at| children[at].1.clone()) {
            Some(Outcome::Answered { by, instead_of }) => {
                Outcome::Answered { by, instead_of: [passed, instead_of].concat() }
            }
            Some(outcome) => outcome,
            None => Outcome::Fails { because_of: passed },
        }
    };
    let first = || children.first().map_or(Outcome::NoRoute, |(_, outcome)| outcome.clone());
    match visit.route {
        Route::AllAsync(_) if children.iter().all(|(role, _)| *role == Role::Aside) => {
            Outcome::AtOnce
        }
        Route::Failover { on: FailoverOn { refused: false, .. }, .. } => first(),
        Route::Failover { .. } | Route::MissFailover(_) | Route::WarmUp { .. } => in_turn(),
        Route::AllFastest { .. } => {
            let good = children.iter().filter(|(_, outcome)| !has_failed(outcome));
            joined(good.map(|(_, outcome)| outcome)).unwrap_or_else(in_turn)
        }
        Route::AllMajority(_) => {
            let good: Vec<&Outcome> =
                children.iter().map(|(_, it)| it).filter(|it| !has_failed(it)).collect();
            match good.len() > children.len() / 2 {
                true => joined(good.into_iter()).unwrap_or(Outcome::NoRoute),
                false => Outcome::Fails {
                    because_of: children.iter().flat_map(|(_, it)| culprits(it)).collect(),
                },
            }
        }
        Route::AllSync(_) => match children.iter().find(|(_, outcome)| has_failed(outcome)) {
            Some((_, outcome)) => outcome.clone(),
            None => joined(children.iter().map(|(_, it)| it)).unwrap_or(Outcome::NoRoute),
        },
        _ => first(),
    }
}

fn culprits(outcome: &Outcome) -> Vec<String> {
    match outcome {
        Outcome::Fails { because_of } => because_of.clone(),
        _ => Vec::new(),
    }
}

/// All that answer, of several. `None` if there is none.
fn joined<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> Option<Outcome> {
    let (mut all, mut others, mut is_any) = (Vec::new(), Vec::new(), false);
    for outcome in outcomes {
        is_any = true;
        if let Outcome::Answered { by, instead_of } = outcome {
            all.extend(by.iter().filter(|pool| !all.contains(*pool)).cloned().collect::<Vec<_>>());
            others.extend(instead_of.iter().cloned());
        }
    }
    match (is_any, all.is_empty()) {
        (false, _) => None,
        (true, true) => Some(Outcome::AtOnce),
        (true, false) => Some(Outcome::Answered { by: all, instead_of: others }),
    }
}

/// Lines for people.
pub(super) fn describe(way: &RouteWay) -> Vec<String> {
    let RouteWay { route, key, operations, tree, outcome } = way;
    let mut lines = vec![format!("route {route}, key {key:?}, {}", operations.join(", "))];
    describe_step(tree, key, 1, &mut lines);
    lines.push(format!("  {}", describe_outcome(outcome)));
    lines
}

fn describe_step(step: &Step, called: &str, depth: usize, lines: &mut Vec<String>) {
    let Step { node, when, why, key, at, children } = step;
    let mut line = format!("{}{node}", "  ".repeat(depth));
    if !when.is_empty() {
        line += &format!(", {when}");
    }
    if key != called {
        line += &format!(", as {key:?}");
    }
    if let Some(leaf) = at {
        line += &format!(": {}", describe_leaf(leaf));
    } else if !why.is_empty() {
        line += &format!(": {why}");
    }
    lines.push(line);
    for child in children {
        describe_step(child, key, depth + 1, lines);
    }
}

fn describe_leaf(leaf: &Leaf) -> String {
    let Leaf { group, server, by, state, why, .. } = leaf;
    let whose = match (server, group) {
        (Some(Place { server, address }), group) => {
            let server = match server.contains(&**address) {
                true => server.clone(),
                false => format!("{server} ({address})"),
            };
            match group {
                Some(group) if !server.starts_with(&**group) => format!("{server} of {group}"),
                _ => server,
            }
        }
        (None, Some(group)) => format!("group {group}"),
        (None, None) => "any server".to_owned(),
    };
    let parts = [by.clone(), state.clone(), (!why.is_empty()).then(|| why.clone())];
    let parts: Vec<String> = [Some(whose)].into_iter().chain(parts).flatten().collect();
    parts.join(", ")
}

fn describe_outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered { by, instead_of } if instead_of.is_empty() => {
            format!("answered by {}", by.join(", "))
        }
        Outcome::Answered { by, instead_of } => {
            format!("answered by {}, since {} is down", by.join(", "), instead_of.join(", "))
        }
        Outcome::AtOnce => "answered by the gateway, at once".to_owned(),
        Outcome::Fails { because_of } => {
            format!("it fails, since {} is down", because_of.join(", "))
        }
        Outcome::NoRoute => "it is refused: the route has nothing for this key".to_owned(),
    }
}
