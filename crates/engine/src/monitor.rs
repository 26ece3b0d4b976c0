//! MONITOR: a client that is told what others ask, as far as it can keep up.
//!
//! It is told of the requests of its pool that this worker serves, when they are dispatched. While
//! there is anybody to be told, no request of the pool takes the express way. Who does not read in
//! time is not closed, but told of a part: a line that finds too many before it is left out.

use cashew_protocol::Span;
use cashew_protocol::redis::{Command, Group, Local, Rule, SessionRule};

use crate::clients::Plan;
use crate::engine::Engine;
use crate::time::Time;

/// Bytes that may wait for a monitor; lines beyond them are left out.
const WAITING_MAX: u64 = 1 << 20;
/// What is told of one argument.
const ARGUMENT_MAX: usize = 1024;
/// Arguments that are told of one request.
const ARGUMENTS_MAX: usize = 128;
/// Clients of one pool that may be told on one worker: each costs every request.
const MONITORS_MAX: usize = 16;

const REFUSED: &str = "ERR Replica can't interact with the keyspace";

impl Engine {
    /// The time of day, in microseconds since 1970; to be told now and then, since nobody says when
    /// it is changed.
    pub fn tell_time(&mut self, wall_us: u64, now: Time) {
        self.wall_offset_us = wall_us as i64 - now.as_micros() as i64;
    }

    /// MONITOR
    pub(crate) fn begin_monitor(&mut self, client: u32) -> Plan {
        if self.clients[client].requests > 0 {
            return Plan::Wait;
        }
        if self.clients[client].is_monitor {
            return Plan::Done;
        }
        let pool = self.clients[client].pool as usize;
        if self.pools[pool].monitors.len() >= MONITORS_MAX {
            return self.say_error(client, "ERR max number of clients that MONITOR reached");
        }
        self.pools[pool].monitors.push(client);
        self.pools[pool].update_held();
        let owner = &mut self.clients[client];
        owner.is_monitor = true;
        owner.special = true;
        self.say(client, b"+OK\r\n")
    }

    /// The client is told no more: it was reset, or is gone.
    pub(crate) fn end_monitor(&mut self, client: u32, pool: u32) {
        let pool = &mut self.pools[pool as usize];
        pool.monitors.retain(|&other| other != client);
        pool.update_held();
    }

    /// The error for what a monitor may not ask. Redis says so, too, though in the words for replicas.
    pub(crate) fn refused_while_monitoring(
        &self,
        client: u32,
        command: &Command,
    ) -> Option<&'static str> {
        let is_allowed = matches!(
            command.rule,
            Rule::Local(Local::Ping | Local::Quit)
                | Rule::Session(SessionRule::Reset | SessionRule::Monitor)
        );
        (self.clients[client].is_monitor && !is_allowed).then_some(REFUSED)
    }

    /// Tells the pool's monitors of a request that a client made.
    #[cold]
    pub(crate) fn tell_monitors(
        &mut self,
        client: u32,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) {
        // What was refused for that is nothing that was done.
        if is_hidden(command) || !self.clients[client].session.authenticated {
            return;
        }
        let mut line = std::mem::take(&mut self.scratch.line);
        line.clear();
        self.write_line(client, command, bytes, args, &mut line);
        let pool = self.clients[client].pool as usize;
        for at in 0..self.pools[pool].monitors.len() {
            let monitor = self.pools[pool].monitors[at];
            let waits = self.clients[monitor].output.len() + self.clients[monitor].held;
            // What it asks itself it is told by the answers.
            if monitor == client || waits + line.len() as u64 > WAITING_MAX {
                continue;
            }
            self.clients[monitor].output.push(&line, &mut self.bufs);
            self.mark_client(monitor);
        }
        line.shrink_to(WAITING_MAX as usize / 16);
        self.scratch.line = line;
    }

    /// `+1339518083.107412 [0 client:7] "keys" "*"`. Instead of its address, which the engine does not
    /// know, a client is told by its id.
    fn write_line(
        &self,
        client: u32,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
        line: &mut Vec<u8>,
    ) {
        let session = &self.clients[client].session;
        let pool = &self.pools[self.clients[client].pool as usize];
        let wall_us = self.now.as_micros() as i64 + self.wall_offset_us;
        let (seconds, micros) = (wall_us / 1_000_000, wall_us % 1_000_000);
        let (database, id) = (pool.variant_of(session).database, session.id);
        let head = format!("+{seconds}.{micros:06} [{database} client:{id}]");
        line.extend_from_slice(head.as_bytes());
        let is_secret = matches!(command.rule, Rule::Local(Local::Auth | Local::Hello));
        for (at, arg) in args.iter().take(ARGUMENTS_MAX).enumerate() {
            line.push(b' ');
            match is_secret && at > 0 {
                true => line.extend_from_slice(b"\"(redacted)\""),
                false => write_quoted(arg.of(bytes), line),
            }
        }
        if args.len() > ARGUMENTS_MAX {
            let more = format!(" \"({} more arguments)\"", args.len() - ARGUMENTS_MAX);
            line.extend_from_slice(more.as_bytes());
        }
        line.extend_from_slice(b"\r\n");
    }
}

/// As Redis: what administers servers is not told, nor what has said so itself. Scripts are.
fn is_hidden(command: &Command) -> bool {
    let has = |flag: &str| command.flags.split(' ').any(|word| word == flag);
    has("admin") || (has("skip_monitor") && command.group != Group::Scripting)
}

/// As Redis's sdscatrepr.
fn write_quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text.iter().take(ARGUMENT_MAX) {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    if text.len() > ARGUMENT_MAX {
        let more = format!("... ({} more bytes)", text.len() - ARGUMENT_MAX);
        out.extend_from_slice(more.as_bytes());
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_told_on_one_line() {
        let quoted = |text: &[u8]| {
            let mut out = Vec::new();
            write_quoted(text, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(quoted(b"plain 1"), "\"plain 1\"");
        assert_eq!(quoted(b"\"\\\r\n\t\x07\x08\x00\xff"), r#""\"\\\r\n\t\a\b\x00\xff""#);
        let long = quoted(&[b'x'; ARGUMENT_MAX + 5]);
        assert!(long.ends_with("x... (5 more bytes)\"") && long.len() < ARGUMENT_MAX + 30);
    }
}
