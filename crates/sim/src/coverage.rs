//! Which faults have hit which kinds of connections, by protocol.

use std::fmt;
use std::ops::AddAssign;

use cashew_config::snapshot::Protocol;

use crate::scenario::Fault;
use crate::server::Session;

/// What a server speaks on a connection.
const WIRES: [&str; 4] = ["RESP2", "RESP3", "text", "binary"];
/// What a connection is in the middle of: a [`SessionKind`](crate::server::SessionKind).
const KINDS: [&str; 4] = ["shared", "transaction", "watch", "wait"];

/// How often each fault came while a connection of each kind was there. A fault hits all connections of its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage([[[u32; KINDS.len()]; WIRES.len()]; Fault::COUNT]);

impl Coverage {
    /// A fault comes over a server with these connections.
    pub(crate) fn note<'s>(
        &mut self,
        fault: Fault,
        protocol: Protocol,
        sessions: impl Iterator<Item = &'s Session>,
    ) {
        for session in sessions {
            let wire = match (protocol, session.params.resp3, session.is_binary) {
                (Protocol::Redis, false, _) => 0,
                (Protocol::Redis, true, _) => 1,
                (Protocol::Memcached | Protocol::Tcp, _, false) => 2,
                (Protocol::Memcached | Protocol::Tcp, _, true) => 3,
            };
            self.0[fault.number()][wire][session.kind() as usize] += 1;
        }
    }

    /// The cells that are there at all, but for surprises, which have runs of their own: fault, protocol, kind, and how
    /// often it was hit. memcached has neither transactions nor calls that wait.
    fn cells(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, u32)> {
        Fault::NAMES.iter().enumerate().flat_map(move |(fault, name)| {
            WIRES.iter().enumerate().flat_map(move |(wire, speech)| {
                let kinds = if wire < 2 { &KINDS[..] } else { &KINDS[..1] };
                kinds
                    .iter()
                    .enumerate()
                    .map(move |(kind, what)| (*name, *speech, *what, self.0[fault][wire][kind]))
            })
        })
    }

    /// What was not hit, but for surprises where none come.
    pub fn missing(&self) -> Vec<String> {
        self.cells()
            .filter(|(fault, .., count)| *fault != "surprise" && *count == 0)
            .map(|(fault, wire, kind, _)| format!("{fault}, {wire}, {kind}"))
            .collect()
    }
}

impl fmt::Display for Coverage {
    /// A table with a line for each fault.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = "";
        for (fault, wire, kind, count) in self.cells() {
            if fault != line {
                writeln!(f)?;
                write!(f, "{fault:>11}:")?;
                line = fault;
            }
            write!(f, "  {wire} {kind} {count}")?;
        }
        writeln!(f)
    }
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, other: Self) {
        let ours = self.0.iter_mut().flatten().flatten();
        ours.zip(other.0.iter().flatten().flatten()).for_each(|(ours, theirs)| *ours += theirs);
    }
}
