//! What the oracle knows of copies of requests: who gets them, under which name, and what reads find there.

use super::{Execution, Ledger, Oracle, tag_of};
use crate::request::{Access, Answer, Outcome, Part, Request};
use crate::route::Copies;

/// Answers of reads that have found nothing.
const MISSES: [&[u8]; 3] = [b"$-1\r\n", b"_\r\n", b":0\r\n"];
/// How keys are removed.
const REMOVALS: [&[u8]; 2] = [b"DEL", b"UNLINK"];

impl Oracle {
    /// A request is about to be sent of which others may get copies. What clients write where nobody is waited for is
    /// answered at once.
    pub(super) fn expect_copies(&mut self, client: u32, request: &mut Request) {
        let ledger = &mut self.ledgers[client as usize];
        let is_plain =
            matches!(request.answer, Answer::Forward | Answer::Gather | Answer::Sum | Answer::Same);
        if self.copies == Copies::Nobody || !self.rings.is_route(ledger.pool) {
            return;
        }
        let index = ledger.requests.len() as u32;
        for part in request.parts.iter().filter(|_| request.access == Access::Write) {
            ledger.forgotten.entry(part.key.clone()).or_default().0.push(index);
        }
        if !is_plain {
            return;
        }
        for part in request.parts.iter().filter(|part| !part.shared) {
            let name = copy_name(&request.tag, &part.key, part.payload.as_deref());
            ledger.copies.entry(name).or_default().0.push(index);
        }
        if self.copies == Copies::Unawaited {
            let said: &[u8] = match &*request.tag.to_ascii_uppercase() {
                b"SET" | b"MSET" => b"+OK\r\n",
                b"DEL" | b"UNLINK" => b":0\r\n",
                _ => return,
            };
            request.answer = Answer::Constant(said);
        }
    }

    /// A server executed a copy of a request: of one that was asked, where the route has copies, and once.
    pub(super) fn copied(&mut self, client: u32, execution: &Execution<'_>, now: u64) {
        self.counts.copies += 1;
        let Execution { pool, server, gateway, tag, key, payload, by_exec, .. } = *execution;
        let what = || {
            let (tag, key) = (tag.escape_ascii(), key.escape_ascii());
            format!("server {pool}/{server} executed a copy of {tag} {key} of client {client}")
        };
        let ledger = &mut self.ledgers[client as usize];
        let home = ledger.pool;
        let is_due = self.rings.is_route(home) && ledger.gateways.contains(&gateway) && !by_exec;
        assert!(is_due, "I1: {}, who is led nowhere", what());
        let requests = &ledger.requests;
        let has_run = |at: &u32| {
            let mut parts = requests[*at as usize].request.parts.iter();
            parts.any(|part| part.key == key && part.outcome.is_some())
        };
        let name = copy_name(tag, key, payload);
        let told = match self.copies == Copies::Told {
            true => {
                // What is sent on as it is has run; else it is to be forgotten.
                let copy = ledger.copies.get_mut(&name);
                let is_as_it_was = |(asked, copied): &&mut (Vec<u32>, usize)| {
                    asked.iter().filter(|at| has_run(at)).count() > *copied
                };
                let is_removal = REMOVALS.iter().any(|it| tag.eq_ignore_ascii_case(it));
                let forgotten = ledger.forgotten.get_mut(key).filter(|_| is_removal);
                copy.filter(is_as_it_was).or(forgotten)
            }
            false => ledger.copies.get_mut(&name),
        };
        let Some((asked, copied)) = told else {
            panic!("I1: {}, who did not ask for it, or it has not run", what());
        };
        *copied += 1;
        let first = &requests[asked[0] as usize];
        let (access, sent_at) = (first.request.access, first.sent_at);
        let read = asked.iter().filter(|&&at| requests[at as usize].read_at <= now).count();
        // A read that got no answer may be sent again.
        let may_repeat = access == Access::Read && self.has_faults;
        assert!(*copied <= read || may_repeat, "I3: {}, once more than it was asked", what());
        let is_copied = self.rings.are_copied(home, gateway, key, sent_at, now);
        assert!(is_copied, "I5: {}, of which there are none", what());
        let owners = self.rings.owners(pool, gateway, key, access, sent_at, now);
        assert!(owners.contains(&server), "I5: {}, it belongs to {owners:?}", what());
    }

    /// A server executed something about a copy of a key, which has another name in the same pool.
    pub(super) fn executed_at_copy(
        &mut self,
        client: u32,
        execution: &Execution<'_>,
        own: &[u8],
        now: u64,
    ) {
        self.counts.copies += 1;
        let Execution { pool, server, gateway, late, tag, key, outcome, by_exec, .. } = *execution;
        let what = || {
            let (tag, key) = (tag.escape_ascii(), key.escape_ascii());
            format!("server {pool}/{server} executed {tag} {key} of client {client}")
        };
        let ledger = &mut self.ledgers[client as usize];
        assert!(ledger.gateways.contains(&gateway) && !by_exec, "I1: {}", what());
        let access = if is_read_by_name(tag) { Access::Read } else { Access::Write };
        let name = tag_of(tag, own);
        let from = match access {
            Access::Write => {
                // It is written as the key is, or removed.
                let writes = ledger.forgotten.get(own).map_or(&[][..], |(asked, _)| asked);
                let is_read = |at: &&u32| ledger.requests[**at as usize].read_at <= now;
                let count = ledger.split.entry(key.to_vec()).or_default();
                *count += 1;
                let read = writes.iter().filter(is_read).count();
                assert!(*count <= read, "I3: {}, once more than it was asked", what());
                ledger.requests[writes[0] as usize].sent_at
            }
            Access::Read => {
                let requests = &mut ledger.requests;
                let is_read = |it: &&mut (u32, u32)| requests[it.0 as usize].read_at <= now;
                let Some((index, left)) = ledger.tags.get_mut(&name).filter(is_read) else {
                    // Somebody else has answered, since this took long.
                    assert!(self.has_faults, "I3: {}, who did not ask for it", what());
                    return;
                };
                let index = *index;
                *left -= 1;
                if *left == 0 {
                    ledger.tags.remove(&name);
                }
                let request = &mut requests[index as usize].request;
                let mut open =
                    request.parts.iter_mut().filter(|it| it.key == own && it.outcome.is_none());
                let part = open.next().expect("as many parts are left as the tag says");
                part.outcome = Some(outcome.clone());
                let known = ledger.read_from_copy.entry(name).or_insert((index, 0));
                *known = (index, if known.0 == index { known.1 + 1 } else { 1 });
                requests[index as usize].sent_at
            }
        };
        if late {
            return;
        }
        let leaves = self.rings.leaves(self.pool_of(client), gateway, own, from, now);
        assert!(leaves.contains(&pool), "I1: {} elsewhere, instead of pool {leaves:?}", what());
        let owners = self.rings.owners(pool, gateway, key, access, from, now);
        assert!(owners.contains(&server), "I5: {}, it belongs to {owners:?}", what());
    }
}

impl Ledger {
    /// A read has come to the key itself: whether a copy was asked before, which had nothing, or whose answer was lost.
    pub(super) fn read_of_key(&mut self, name: &[u8], key: &[u8], outcome: &Outcome) -> bool {
        let is_awaited = self.tags.contains_key(name);
        let Some((index, left)) = self.read_from_copy.get_mut(name).filter(|it| it.1 > 0) else {
            return false;
        };
        if is_awaited && !self.owed.contains(index) {
            // It was answered by the copy, and this is the next read.
            return false;
        }
        let parts = &mut self.requests[*index as usize].request.parts;
        let mut done = parts.iter_mut().filter(|it| it.key == key && it.outcome.is_some());
        let is_miss = |part: &&mut Part| {
            part.outcome.as_ref().is_some_and(|outcome| MISSES.contains(&&*outcome.reply))
        };
        let Some(part) = (if is_awaited { done.find(is_miss) } else { done.next() }) else {
            return false;
        };
        *left -= 1;
        part.outcome = Some(outcome.clone());
        true
    }
}

fn copy_name(tag: &[u8], key: &[u8], payload: Option<&[u8]>) -> Vec<u8> {
    [tag, b"|", key, b"|", payload.unwrap_or_default()].concat()
}

/// Whether a command reads only.
fn is_read_by_name(tag: &[u8]) -> bool {
    const READS: [&[u8]; 5] = [b"GET", b"MGET", b"EXISTS", b"TOUCH", b"STRLEN"];
    READS.iter().any(|it| tag.eq_ignore_ascii_case(it))
}
