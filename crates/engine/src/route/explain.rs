//! Where a key goes, in words: a line for each node that is asked, those below it indented.

use cashew_config::snapshot::{self, Visit};

use crate::topology::route_tree::Operation;

/// What whoever asks where a key goes is told.
pub(crate) struct Explanation {
    /// From the root on, in the order in which nodes are asked.
    pub(crate) lines: Vec<String>,
    /// Several pools are asked, or in other words.
    pub(crate) is_forked: bool,
}

impl Explanation {
    /// `leaf` says which server of a pool has a key, and how it is.
    pub(super) fn new(
        visit: &Visit<'_>,
        key: &[u8],
        is_forked: bool,
        mut leaf: impl FnMut(&str, &[u8]) -> String,
    ) -> Self {
        let mut lines = Vec::new();
        add_node(visit, key, 0, &mut leaf, &mut lines);
        Self { lines, is_forked }
    }
}

fn add_node(
    visit: &Visit<'_>,
    key: &[u8],
    depth: usize,
    leaf: &mut dyn FnMut(&str, &[u8]) -> String,
    lines: &mut Vec<String>,
) {
    let mut line = format!("{}{}", "  ".repeat(depth), visit.route.title());
    match visit.role.describe() {
        "" => {}
        role => line += &format!(", {role}"),
    }
    if visit.key != key {
        line += &format!(", as {}", String::from_utf8_lossy(&visit.key).escape_debug());
    }
    if !visit.why.is_empty() {
        line += &format!(": {}", visit.why);
    }
    if let Some(pool) = visit.pool() {
        line += &format!(": {}", leaf(pool, &visit.key));
    }
    lines.push(line);
    for child in &visit.children {
        add_node(child, &visit.key, depth + 1, leaf, lines);
    }
}

/// As configurations call it.
pub(super) fn in_configurations(operation: Operation) -> snapshot::Operation {
    match operation {
        Operation::Read => snapshot::Operation::Read,
        Operation::Write => snapshot::Operation::Write,
        Operation::Delete => snapshot::Operation::Delete,
    }
}

/// What is said of a command that must not run twice.
pub(crate) fn once(command: &str) -> String {
    format!("{command} must run once: of several pools that would run it the first one does")
}
