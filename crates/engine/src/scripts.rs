//! Scripts that were loaded through the gateway, and servers that have lost them.
//!
//! What SCRIPT LOAD and EVAL bring is remembered, within bounds, and given to a server that answers
//! NOSCRIPT to EVALSHA: its client does not notice. That must not let a request overtake another of
//! its client. So a script that a server has not been seen to have is called alone: what its client
//! asks next waits for the reply. A server is seen to have it as long as its connections last; where
//! it has lost it all the same, and the client has asked on, the client gets the error.
//!
//! Each worker remembers for itself, and forgets with SCRIPT FLUSH.

use std::collections::HashMap;

use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, encode};

use crate::clients::Plan;
use crate::dispatch::Payload;
use crate::engine::Engine;
use crate::fan::Walk;
use crate::request::{Merge, Role};
use crate::slab::NONE;

/// Scripts remembered of each pool.
const SCRIPTS_MAX: usize = 1024;
/// And their bytes.
pub(crate) const SCRIPTS_SIZE_MAX: usize = 1 << 20;
/// A larger one is not remembered: it would be in place of many others.
const SCRIPT_SIZE_MAX: usize = SCRIPTS_SIZE_MAX / 4;

const NO_SCRIPT: &[u8] = b"-NOSCRIPT";

type Sha = [u8; 20];

/// The scripts of a pool, by their place, which a script keeps until another one takes it.
#[derive(Default)]
pub(crate) struct Scripts {
    slots: Vec<Script>,
    by_sha: HashMap<Sha, u32>,
    /// By a hash of the text that costs less than that of Redis.
    by_text: HashMap<u64, u32>,
    size: usize,
    /// Grows with every use.
    uses: u64,
}

struct Script {
    sha: Sha,
    text: Box<[u8]>,
    quick: u64,
    used: u64,
}

/// Which places of [`Scripts`] a server has been seen to have.
#[derive(Default)]
pub(crate) struct Seen(Option<Box<[u64; SCRIPTS_MAX / 64]>>);

/// A request to EVALSHA of a script that is remembered.
#[derive(Debug)]
pub(crate) struct Call {
    /// The request as it is, in case it has to be sent again.
    text: Vec<u8>,
    sha: Sha,
    server: u32,
    /// By which servers `server` is meant.
    walk: Walk,
}

/// Whether a server has a script, as its reply shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    Yes,
    No,
    Unknown,
}

impl Seen {
    fn contains(&self, place: u32) -> bool {
        self.0.as_ref().is_some_and(|bits| bits[place as usize / 64] >> (place % 64) & 1 == 1)
    }

    fn insert(&mut self, place: u32) {
        let bits = self.0.get_or_insert_default();
        bits[place as usize / 64] |= 1 << (place % 64);
    }

    fn remove(&mut self, place: u32) {
        if let Some(bits) = &mut self.0 {
            bits[place as usize / 64] &= !(1 << (place % 64));
        }
    }

    /// Nothing more is known of the server.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

impl Scripts {
    fn find(&mut self, sha: &Sha) -> Option<u32> {
        let place = *self.by_sha.get(sha)?;
        self.touch(place);
        Some(place)
    }

    fn touch(&mut self, place: u32) {
        self.uses += 1;
        self.slots[place as usize].used = self.uses;
    }

    /// Remembers a script. Returns the place that it has newly taken: who was seen to have what was
    /// there has not been seen to have it.
    fn insert(&mut self, text: &[u8]) -> Option<u32> {
        if text.len() > SCRIPT_SIZE_MAX {
            return None;
        }
        let quick = quick_hash(text);
        if let Some(&place) = self.by_text.get(&quick) {
            self.touch(place);
            return None;
        }
        while self.size + text.len() > SCRIPTS_SIZE_MAX {
            self.empty(self.oldest()?);
        }
        let vacant = self.slots.iter().position(|script| script.used == 0);
        let place = match vacant {
            Some(place) => place as u32,
            None if self.slots.len() < SCRIPTS_MAX => {
                self.slots.push(Script { sha: [0; 20], text: [].into(), quick: 0, used: 0 });
                self.slots.len() as u32 - 1
            }
            None => {
                let place = self.oldest()?;
                self.empty(place);
                place
            }
        };
        let sha = sha1_smol::Sha1::from(text).digest().bytes();
        self.size += text.len();
        self.by_sha.insert(sha, place);
        self.by_text.insert(quick, place);
        self.slots[place as usize] = Script { sha, text: text.into(), quick, used: 0 };
        self.touch(place);
        Some(place)
    }

    /// The place of the script that has not been used for longest.
    fn oldest(&self) -> Option<u32> {
        let used = self.slots.iter().zip(0..).filter(|(script, _)| script.used > 0);
        used.min_by_key(|(script, _)| script.used).map(|(_, place)| place)
    }

    fn empty(&mut self, place: u32) {
        let script = &mut self.slots[place as usize];
        script.used = 0;
        self.size -= script.text.len();
        script.text = [].into();
        let (sha, quick) = (script.sha, script.quick);
        self.by_sha.remove(&sha);
        self.by_text.remove(&quick);
    }
}

/// Tells texts apart. Two that have the same only means that one of them is not remembered.
fn quick_hash(text: &[u8]) -> u64 {
    let mut hash = text.len() as u64;
    for chunk in text.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    hash
}

/// The hash that EVALSHA names, in hexadecimal digits of either case.
fn parse_sha(text: &[u8]) -> Option<Sha> {
    let mut sha = [0; 20];
    if text.len() != 2 * sha.len() {
        return None;
    }
    for (byte, digits) in sha.iter_mut().zip(text.chunks(2)) {
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(sha)
}

impl Engine {
    /// Takes notice of a command about scripts that is being sent to every server.
    pub(crate) fn note_script_command(&mut self, client: u32, command: &Command, text: &[u8]) {
        let pool = self.clients[client].pool;
        match command.name {
            "script|load" => self.remember_script(pool, text),
            "script|flush" => {
                let pool = &mut self.pools[pool as usize];
                pool.scripts = Scripts::default();
                pool.servers.iter_mut().for_each(|server| server.scripts_seen.clear());
            }
            _ => {}
        }
    }

    fn remember_script(&mut self, pool: u32, text: &[u8]) {
        let pool = &mut self.pools[pool as usize];
        if let Some(place) = pool.scripts.insert(text) {
            pool.servers.iter_mut().for_each(|server| server.scripts_seen.remove(place));
        }
    }

    /// A script is about to be called by a request that goes to a server as it is.
    pub(crate) fn note_script_call(
        &mut self,
        client: u32,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
        plan: &Plan,
    ) {
        let &Plan::Forward { lane, request } = plan else { return };
        let pool = self.clients[client].pool;
        match command.name {
            "eval" | "eval_ro" => self.remember_script(pool, args[1].of(bytes)),
            "evalsha" | "evalsha_ro" => {
                let Some(sha) = parse_sha(args[1].of(bytes)) else { return };
                let pool = &mut self.pools[pool as usize];
                let Some(place) = pool.scripts.find(&sha) else { return };
                let server = self.lanes[lane as usize].server;
                if !pool.servers[server as usize].scripts_seen.contains(place) {
                    self.clients[client].fenced = true;
                }
                let walk = pool.walk;
                let mut call = self.scratch.calls.take().unwrap_or_else(|| Box::new(Call::empty()));
                *call = Call { text: self.bufs.copy_of(bytes), sha, server, walk };
                self.requests[request].role = Role::Call(call);
            }
            _ => {}
        }
    }

    /// The last bytes of a reply to EVALSHA that is an error, or that comes whole.
    pub(crate) fn call_answered(&mut self, index: u32, bytes: &[u8]) {
        let held = &self.requests[index].reply;
        let start = held.iter().chain(bytes).take(NO_SCRIPT.len());
        let has = if start.eq(NO_SCRIPT) {
            Has::No
        } else if held.is_empty() && !resp::is_error(bytes) {
            Has::Yes
        } else {
            Has::Unknown
        };
        let call = self.end_call(index, has);
        let is_healed = has == Has::No && self.heal(index, &call);
        self.recycle_call(call);
        if !is_healed {
            self.deliver(index, bytes);
        }
    }

    /// The reply is no error, or one of the gateway's: it is like others from here on.
    pub(crate) fn call_is_over(&mut self, index: u32) {
        let has = if self.requests[index].failed { Has::Unknown } else { Has::Yes };
        let call = self.end_call(index, has);
        self.recycle_call(call);
    }

    fn end_call(&mut self, index: u32, has: Has) -> Box<Call> {
        let request = &mut self.requests[index];
        let Role::Call(call) = std::mem::replace(&mut request.role, Role::Single) else {
            unreachable!("it is a call");
        };
        let pool = &mut self.pools[request.pool as usize];
        if pool.walk == call.walk
            && let Some(&place) = pool.scripts.by_sha.get(&call.sha)
        {
            let seen = &mut pool.servers[call.server as usize].scripts_seen;
            match has {
                Has::Yes => seen.insert(place),
                Has::No => seen.remove(place),
                Has::Unknown => {}
            }
        }
        call
    }

    /// Has the server load the script and answer once more, unless something of the client's would
    /// be overtaken. Returns whether it has.
    #[cold]
    fn heal(&mut self, index: u32, call: &Call) -> bool {
        let (client, pool) = (self.requests[index].client, self.requests[index].pool);
        if client == NONE || self.clients[client].tail != index {
            return false;
        }
        let pool = &self.pools[pool as usize];
        let Some(&place) = pool.scripts.by_sha.get(&call.sha) else { return false };
        if pool.walk != call.walk {
            return false;
        }
        let script = &pool.scripts.slots[place as usize].text;
        let mut load = Vec::new();
        encode::write_command(&mut load, &[b"SCRIPT", b"LOAD", script]);
        let Ok(lane) = self.lane_for(client, call.server, load.len() + call.text.len()) else {
            return false;
        };
        self.drop_reply(index);
        let again = self.add_fragment(index, NONE);
        let first = self.add_fragment(index, again);
        self.send(lane, first, Payload::Bytes(&load));
        self.send(lane, again, Payload::Bytes(&call.text));
        let request = &mut self.requests[index];
        request.expect = Expect::Line;
        request.arrived = 0;
        request.role = Role::Parent { fragments: first, pending: 0, merge: Merge::Last };
        self.begin_fragments(index, first, 2);
        true
    }

    pub(crate) fn recycle_call(&mut self, mut call: Box<Call>) {
        self.bufs.give(std::mem::take(&mut call.text));
        self.scratch.calls.give(call);
    }
}

impl Call {
    fn empty() -> Self {
        Self { text: Vec::new(), sha: [0; 20], server: 0, walk: Walk::new(&[]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha(text: &[u8]) -> Sha {
        sha1_smol::Sha1::from(text).digest().bytes()
    }

    #[test]
    fn names_of_scripts_are_read() {
        let text = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(parse_sha(text), Some(sha(b"return 1")));
        assert_eq!(parse_sha(&text.to_ascii_uppercase()), Some(sha(b"return 1")));
        for bad in [&text[1..], b"", b"g0e1f9fabfc9d4800c877a703b823ac0578ff8db"] {
            assert_eq!(parse_sha(bad), None);
        }
    }

    #[test]
    fn those_are_forgotten_that_were_not_used_for_longest() {
        let mut scripts = Scripts::default();
        let text = |n: usize| format!("return {n}").into_bytes();
        for n in 0..SCRIPTS_MAX {
            assert_eq!(scripts.insert(&text(n)), Some(n as u32));
        }
        assert_eq!(scripts.insert(&text(0)), None);
        assert_eq!(scripts.insert(b"one more"), Some(1));
        assert!(scripts.find(&sha(&text(0))).is_some());
        assert!(scripts.find(&sha(&text(1))).is_none());
        assert_eq!(scripts.by_sha.len(), SCRIPTS_MAX);
        assert_eq!(scripts.by_text.len(), SCRIPTS_MAX);
    }

    #[test]
    fn so_many_bytes_are_remembered_and_no_more() {
        let mut scripts = Scripts::default();
        assert_eq!(scripts.insert(&vec![b'x'; SCRIPT_SIZE_MAX + 1]), None);
        for n in 0..100 {
            assert!(scripts.insert(&vec![n; SCRIPT_SIZE_MAX]).is_some());
            assert!(scripts.size <= SCRIPTS_SIZE_MAX);
        }
        assert_eq!(scripts.by_sha.len(), 4);
        assert!(scripts.find(&sha(&vec![99; SCRIPT_SIZE_MAX])).is_some());
    }

    #[test]
    fn what_was_seen_is_noted_by_place() {
        let mut seen = Seen::default();
        assert!(!seen.contains(1023));
        seen.insert(1023);
        seen.insert(0);
        assert!(seen.contains(1023) && seen.contains(0) && !seen.contains(64));
        seen.remove(1023);
        assert!(!seen.contains(1023));
        seen.clear();
        assert!(!seen.contains(0));
    }
}
