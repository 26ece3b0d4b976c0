//! What is new about the tree of a route, and which keys it sends elsewhere.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use crate::snapshot::{Operation, PrefixArm, Reach, Route};

/// Lines about nodes of one route; more are counted.
const LINES_MAX: usize = 20;

/// Keys that are compared for each start that a prefix gives them.
const SAMPLES: u32 = 2000;

/// Starts of keys that are compared.
const STARTS_MAX: usize = 64;

/// Longest part of a line about one node.
const BRIEF_SIZE_MAX: usize = 120;

/// A line for each node that is new, gone or another one, and for each start of keys of which some go to
/// other pools.
pub(super) fn lines(old: &Route, new: &Route) -> Vec<String> {
    let mut lines = Vec::new();
    nodes(old, new, "", &mut lines);
    let more = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    if more > 0 {
        lines.push(format!("{more} more changes of nodes"));
    }
    if old != new {
        lines.extend(moved(old, new));
    }
    lines
}

/// `path` names the place in the tree, with a colon; empty at the root.
fn nodes(old: &Route, new: &Route, path: &str, lines: &mut Vec<String>) {
    if old == new {
        return;
    }
    let below = |label: &str| format!("{path}{label}");
    match (old, new) {
        (Route::Prefix(old), Route::Prefix(new)) => prefixes(old, new, path, lines),
        (
            Route::Keys { exact: old, otherwise: old_rest, file: old_file },
            Route::Keys { exact: new, otherwise: new_rest, file: new_file },
        ) => {
            if old_file != new_file {
                let name = |file: &Option<PathBuf>| {
                    file.as_ref().map_or("no file".to_owned(), |it| it.display().to_string())
                };
                let (old, new) = (name(old_file), name(new_file));
                lines.push(format!("{path}keys listed in {new} instead of {old}"));
            }
            lines.extend(keys(old, new).map(|what| format!("{path}{what}")));
            nodes(old_rest, new_rest, &below("other keys: "), lines);
        }
        (old, new) => {
            let (before, after) = (old.children(), new.children());
            let is_same_kind = std::mem::discriminant(old) == std::mem::discriminant(new);
            if !is_same_kind || before.len() != after.len() || before.is_empty() {
                lines.push(format!("{path}{} instead of {}", brief(new), brief(old)));
                return;
            }
            if old.title() != new.title() {
                lines.push(format!("{path}{} instead of {}", new.title(), old.title()));
            }
            for (at, (old_child, new_child)) in before.into_iter().zip(after).enumerate() {
                let label = match new.label(at) {
                    label if label.is_empty() => format!("{} {}: ", kind(new), at + 1),
                    label => format!("{} {label}", kind(new)),
                };
                nodes(old_child, new_child, &below(&label), lines);
            }
        }
    }
}

fn kind(route: &Route) -> String {
    let title = route.title();
    title.split([',', ' ']).next().unwrap_or_default().to_owned()
}

fn brief(route: &Route) -> String {
    let text = route.brief();
    match text.char_indices().nth(BRIEF_SIZE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn prefixes(old: &[PrefixArm], new: &[PrefixArm], path: &str, lines: &mut Vec<String>) {
    let by_prefix = |arms: &[PrefixArm]| -> HashMap<String, PrefixArm> {
        arms.iter().map(|arm| (arm.prefix.clone(), arm.clone())).collect()
    };
    let (before, after) = (by_prefix(old), by_prefix(new));
    let named = |arm: &PrefixArm| format!("{path}prefix \"{}\"", arm.prefix.escape_debug());
    let said = |arm: &PrefixArm| match &arm.rewrite {
        None => "sent as it is".to_owned(),
        Some(new) if new.is_empty() => "stripped".to_owned(),
        Some(new) => format!("rewritten to \"{}\"", new.escape_debug()),
    };
    for arm in old.iter().filter(|arm| !after.contains_key(&arm.prefix)) {
        lines.push(format!("{} removed", named(arm)));
    }
    for arm in new {
        let Some(was) = before.get(&arm.prefix) else {
            let rewrite = match &arm.rewrite {
                None => String::new(),
                Some(_) => format!("{}, ", said(arm)),
            };
            lines.push(format!("{} added, {rewrite}to {}", named(arm), brief(&arm.to)));
            continue;
        };
        if was.rewrite != arm.rewrite {
            lines.push(format!("{}: {} instead of {}", named(arm), said(arm), said(was)));
        }
        nodes(&was.to, &arm.to, &format!("{}: ", named(arm)), lines);
    }
}

fn keys<'k>(
    old: &'k [(String, Route)],
    new: &'k [(String, Route)],
) -> impl Iterator<Item = String> + 'k {
    let by_key = |keys: &'k [(String, Route)]| -> HashMap<&'k str, &'k Route> {
        keys.iter().map(|(key, route)| (&**key, route)).collect()
    };
    let (before, after) = (by_key(old), by_key(new));
    let added = new.iter().filter(|(key, _)| !before.contains_key(&**key)).count();
    let removed = old.iter().filter(|(key, _)| !after.contains_key(&**key)).count();
    let is_moved =
        |(key, route): &&(String, Route)| before.get(&**key).is_some_and(|it| *it != route);
    let moved = new.iter().filter(is_moved).count();
    let all = [(added, "added"), (removed, "removed"), (moved, "elsewhere")];
    all.into_iter().filter(|(number, _)| *number > 0).map(|(number, what)| {
        format!("{number} listed {} {what}", if number == 1 { "key" } else { "keys" })
    })
}

/// How many of the keys of each start are read, or written, in other pools.
fn moved(old: &Route, new: &Route) -> Vec<String> {
    let mut starts = BTreeSet::from([String::new()]);
    for route in [old, new] {
        collect_starts(route, "", &mut starts);
    }
    let starts: Vec<&String> = starts.iter().take(STARTS_MAX).collect();
    let mut lines = Vec::new();
    for start in &starts {
        let keys: Vec<String> = (0..SAMPLES).map(|number| format!("{start}{number}")).collect();
        let share = |operation: Operation| {
            let is_moved = |key: &&String| {
                old.visit(key.as_bytes(), operation, Reach::All).asked()
                    != new.visit(key.as_bytes(), operation, Reach::All).asked()
            };
            keys.iter().filter(is_moved).count() as f64 / f64::from(SAMPLES)
        };
        let whose = match start.is_empty() {
            true if starts.len() == 1 => "keys".to_owned(),
            true => "other keys".to_owned(),
            false => format!("keys \"{}\"", start.escape_debug()),
        };
        let (reads, writes) = (share(Operation::Read), share(Operation::Write));
        let said = |share: f64| match share {
            0.0 => "nearly none go".to_owned(),
            1.0 => "all go".to_owned(),
            share => format!("about {:.1}% go", share * 100.0),
        };
        if reads == writes && reads > 0.0 {
            lines.push(format!("{whose}: {} to other pools", said(reads)));
            continue;
        }
        for (what, share) in [("reads", reads), ("writes", writes)] {
            if share > 0.0 {
                lines.push(format!("{whose}: {what}: {} to other pools", said(share)));
            }
        }
    }
    lines
}

/// The starts of keys that clients use, for each prefix in the tree.
fn collect_starts(route: &Route, start: &str, starts: &mut BTreeSet<String>) {
    if starts.len() > STARTS_MAX {
        return;
    }
    match route {
        Route::Prefix(arms) => {
            for arm in arms {
                // A node below compares what is left of the key.
                let whole = match arm.prefix.strip_prefix(start) {
                    Some(_) => arm.prefix.clone(),
                    None => format!("{start}{}", arm.prefix),
                };
                starts.insert(whole.clone());
                match &arm.rewrite {
                    None => collect_starts(&arm.to, &whole, starts),
                    Some(rewrite) => {
                        let mut below = BTreeSet::new();
                        collect_starts(&arm.to, "", &mut below);
                        let rest = below.iter().filter_map(|it| it.strip_prefix(&**rewrite));
                        starts.extend(rest.map(|rest| format!("{whole}{rest}")));
                    }
                }
            }
        }
        Route::Keys { otherwise, .. } => collect_starts(otherwise, start, starts),
        route => {
            for child in route.children() {
                collect_starts(child, start, starts);
            }
        }
    }
}
