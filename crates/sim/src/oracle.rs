//! Knows the correct reply to every request, and which server may execute it.
//!
//! Clients report their requests and the replies they get; servers report what they execute. Every
//! client has its own keys, and no two of its requests in flight have the same command tag for one
//! key. So each execution belongs to exactly one request, also in runs with faults: a fault only
//! makes an error of the gateway a valid reply.

mod copies;
mod replies;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use cashew_config::snapshot::{Pool, Reads};
use cashew_placement::slot_of;

use self::replies::{
    ABORT, NILS, TOO_OLD, abort_reason, behind_values, error_text, fits, fits_up_to, is_abort,
    is_gateway_error, is_replaced, is_session_refusal, is_surprise, is_told_refusal, is_too_old,
    told, without_server,
};
use crate::counts::Counts;
use crate::history::{Ending, History, name_of};
use crate::meta_server;
use crate::packet;
use crate::redis_server::OUT_OF_MEMORY;
use crate::refusals::{self, Refusals};
use crate::request::{Access, Answer, Framing, Outcome, Part, Request, SessionParams};
use crate::rings::Rings;
use crate::route::{self, Copies};
use crate::scenario::Scenario;

/// A request of this size may be forwarded while it arrives: its server is chosen when it begins,
/// and it may fail before it ends.
const UPLOAD_SIZE_MIN: usize = 1 << 20;

/// What waits in the gateway for others of its client's arrives no sooner at a node after it was sent there.
const WAITS_MIN_US: u64 = 1_000;

/// A server's execution of a command for one key.
pub(crate) struct Execution<'a> {
    pub(crate) pool: u32,
    pub(crate) server: u32,
    pub(crate) gateway: u32,
    /// The gateway had given the connection up before the server handled the request, or took
    /// another reply for this one.
    pub(crate) late: bool,
    /// The session parameters of the connection.
    pub(crate) params: SessionParams,
    pub(crate) tag: &'a [u8],
    pub(crate) key: &'a [u8],
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) outcome: &'a Outcome,
    /// It was executed by EXEC.
    pub(crate) by_exec: bool,
    /// The server did not have what was written there last.
    pub(crate) is_stale: bool,
}

/// A part of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartRef {
    pub(crate) client: u32,
    pub(crate) request: u32,
    part: u32,
}

pub(crate) struct Oracle {
    pub(crate) rings: Rings,
    pub(crate) ledgers: Vec<Ledger>,
    /// By (pool, server): when errors may be blamed on it.
    troubles: BTreeMap<(u32, u32), Vec<(u64, u64)>>,
    /// Low limits that may be reached.
    tight_queues: bool,
    tight_outputs: bool,
    few_sessions: bool,
    has_faults: bool,
    /// Clients read what they have written.
    heeds_writes: bool,
    /// Servers give surprising replies.
    has_surprises: bool,
    /// Connections to servers with a surprising reply: requests there may fail.
    touched: BTreeSet<u32>,
    /// By gateway, pool and server: when the server said last that it does not know `ms`.
    refused_sets: BTreeMap<(u32, u32, u32), u64>,
    /// By pool: the longest time that a request which the gateway has read may go without a reply,
    /// whatever its server does. `None` if something else may delay it as well.
    wait_max_us: Vec<Option<u64>>,
    /// Servers are the nodes of a cluster.
    has_slots: bool,
    /// Who else is asked what the pools of a route are asked.
    copies: Copies,
    /// Reads go to the nodes that take the writes, and no read is sent twice.
    reads_primaries: bool,
    /// By which a request has no answer any more.
    timeout_us: u64,
    /// Gateways that accept no more requests.
    drained: BTreeSet<u32>,
    /// Pools that were removed, by gateway.
    removed: BTreeSet<(u32, u32)>,
    /// By gateway: when it switched its epoch with requests still in flight.
    cut_short: BTreeMap<u32, Vec<u64>>,
    /// When nodes of the cluster have left the map of some gateway.
    nodes_left_at: Vec<u64>,
    /// Nodes that refused everything, and when.
    absences: Vec<(u32, u64, u64)>,
    pub(crate) counts: Counts,
}

/// What the oracle knows of one client.
pub(crate) struct Ledger {
    pool: u32,
    /// The gateways it has been at; it is at the last one.
    gateways: Vec<u32>,
    requests: Vec<Entry>,
    /// Requests without a reply.
    owed: VecDeque<u32>,
    /// Requests in flight by tag and key, with the number of parts not executed.
    tags: BTreeMap<Vec<u8>, (u32, u32)>,
    /// Reads of pools whose reads may be sent twice, by tag and key: their requests, and how many parts may still
    /// be executed once more.
    read_once: BTreeMap<Vec<u8>, (u32, usize)>,
    /// By server, or in front of a cluster by key: the last request executed there, and by whom. Where reads have a choice, of
    /// those that write.
    last: BTreeMap<(u32, u32), (u32, u32)>,
    last_of_key: BTreeMap<Vec<u8>, (u32, u32)>,
    /// By key.
    writes: BTreeMap<Vec<u8>, Writes>,
    /// Of clients whose requests have copies, by tag, key and payload: the requests, and how many copies have been executed.
    copies: BTreeMap<Vec<u8>, (Vec<u32>, usize)>,
    /// The same of what others are told to forget, by key.
    forgotten: BTreeMap<Vec<u8>, (Vec<u32>, usize)>,
    /// By the names of copies that keys have in their own pool: how often they were written.
    split: BTreeMap<Vec<u8>, usize>,
    /// Reads that a copy has answered, by tag and key: the request, and how many parts the key itself may be asked for.
    read_from_copy: BTreeMap<Vec<u8>, (u32, usize)>,
    history: History,
    refusals: Refusals,
    /// Bytes sent, and read by the gateway.
    sent: u64,
    read: u64,
    /// The first request that the gateway has not read to its end.
    unread: u32,
    /// Longest time from a request to its reply.
    pub(crate) slowest_us: u64,
    end: End,
    /// It has ended its side, whatever came of it afterwards.
    is_half_closed: bool,
    /// Its replies are no longer waited for, since it has left.
    is_dropped: bool,
    /// Its correct replies are unknown.
    is_given_up: bool,
}

/// What has been written for one key.
#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    executed: u64,
    acknowledged: u64,
    /// When that was for the last time.
    at: u64,
}

struct Entry {
    request: Request,
    sent_at: u64,
    /// Where it ends in the stream.
    end: u64,
    read_at: u64,
    /// By broadcasts: the servers that executed it.
    servers: Vec<u32>,
    /// A node of a cluster has, and its client knows.
    is_refused: bool,
}

impl Entry {
    /// Its commands are executed before all of it is read.
    fn is_batch(&self) -> bool {
        matches!(self.request.answer, Answer::Batch(_))
    }

    fn is_upload(&self) -> bool {
        self.request.bytes.len() >= UPLOAD_SIZE_MIN
    }
}

/// Why the gateway may close a connection without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// The client has ended its side.
    HalfClosed,
    /// The gateway will close after a reply.
    Announced,
    /// The gateway stops.
    Draining,
    Gone,
}

impl Ledger {
    /// When the gateway takes nothing more from the client, since it has guessed passwords before this
    /// request: 100 ms from the fourth wrong one, twice as long for each further one, up to five seconds.
    fn slowed(&self, index: u32) -> impl Iterator<Item = Range<u64>> {
        let before = self.requests[..index as usize].iter();
        let wrong = before.filter(|entry| entry.request.is_wrong_password()).skip(3);
        wrong.enumerate().scan(0, |end, (nth, entry)| {
            let start = entry.read_at.max(*end);
            *end = start + (100_000 << nth.min(16)).min(5_000_000);
            Some(start..*end)
        })
    }
}

/// How much two periods have in common.
fn overlap(one: Range<u64>, other: Range<u64>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

impl Oracle {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            rings: Rings::new(&scenario.snapshot, scenario.gateways),
            ledgers: Vec::new(),
            troubles: BTreeMap::new(),
            tight_queues: scenario.tight_queues,
            tight_outputs: scenario.tight_outputs,
            few_sessions: scenario.few_sessions,
            has_faults: scenario.faults.any(),
            heeds_writes: scenario.heeds_writes,
            has_surprises: scenario.surprises,
            touched: BTreeSet::new(),
            refused_sets: BTreeMap::new(),
            wait_max_us: scenario.universe.iter().map(|pool| scenario.wait_max_us(pool)).collect(),
            has_slots: scenario.resharding.is_some(),
            copies: scenario.universe[0].route.as_ref().map_or(Copies::Nobody, Copies::of),
            reads_primaries: scenario.universe[0].hedge.is_none()
                && scenario.universe[0].reads.is_none_or(|reads| reads == Reads::Primary),
            timeout_us: scenario.universe[0].timeout_ms.map_or(u64::MAX, |ms| ms * 1000),
            drained: BTreeSet::new(),
            removed: BTreeSet::new(),
            cut_short: BTreeMap::new(),
            nodes_left_at: Vec::new(),
            absences: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Clients are numbered in order.
    pub(crate) fn join(&mut self, pool: u32, gateway: u32) -> u32 {
        self.counts.clients += 1;
        self.ledgers.push(Ledger {
            pool,
            gateways: vec![gateway],
            requests: Vec::new(),
            owed: VecDeque::new(),
            tags: BTreeMap::new(),
            read_once: BTreeMap::new(),
            last: BTreeMap::new(),
            last_of_key: BTreeMap::new(),
            writes: BTreeMap::new(),
            copies: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            split: BTreeMap::new(),
            read_from_copy: BTreeMap::new(),
            history: History::default(),
            refusals: Refusals::default(),
            sent: 0,
            read: 0,
            unread: 0,
            slowest_us: 0,
            is_half_closed: false,
            is_dropped: false,
            is_given_up: false,
            end: match self.drained.contains(&gateway) {
                true => End::Draining,
                false => End::Open,
            },
        });
        self.ledgers.len() as u32 - 1
    }

    /// From now on errors may be blamed on the server.
    pub(crate) fn trouble(&mut self, pool: u32, server: u32, now: u64) {
        self.troubles.entry((pool, server)).or_default().push((now, u64::MAX));
    }

    /// The server's troubles so far end by `until`.
    pub(crate) fn trouble_ends(&mut self, pool: u32, server: u32, until: u64) {
        for trouble in self.troubles.entry((pool, server)).or_default() {
            trouble.1 = trouble.1.min(until);
        }
    }

    pub(crate) fn pool_of(&self, client: u32) -> u32 {
        self.ledgers[client as usize].pool
    }

    /// The same between two moments.
    pub(crate) fn trouble_between(&mut self, pool: u32, server: u32, from: u64, until: u64) {
        self.troubles.entry((pool, server)).or_default().push((from, until));
    }

    /// A server says to a gateway that it does not know `ms`.
    pub(crate) fn refuses_sets(&mut self, gateway: u32, (pool, server): (u32, u32), now: u64) {
        self.refused_sets.insert((gateway, pool, server), now);
    }

    /// Whether a server has said so that may have one of the request's keys: a gateway sends it none for a
    /// minute, as it would read the data as commands.
    fn has_refused_sets(&mut self, client: u32, index: u32, now: u64) -> bool {
        if self.counts.unjudged > 0 {
            // It is unknown what has been read.
            return true;
        }
        let ledger = &self.ledgers[client as usize];
        let entry = &ledger.requests[index as usize];
        ledger.gateways.iter().any(|&gateway| {
            let mut servers = |key: &[u8]| {
                self.rings.owners(ledger.pool, gateway, key, Access::Write, entry.sent_at, now)
            };
            let mut owners = entry.request.parts.iter().flat_map(|part| servers(&part.key));
            owners.any(|server| {
                let refused_at = self.refused_sets.get(&(gateway, ledger.pool, server));
                refused_at.is_some_and(|at| now - at <= 60_000_000 + now - entry.sent_at)
            })
        })
    }

    /// A surprising reply was sent on a connection to a server.
    pub(crate) fn touch(&mut self, conn: u32) {
        self.touched.insert(conn);
    }

    /// Later requests on the connection are answered correctly.
    pub(crate) fn untouch(&mut self, conn: u32) {
        self.touched.remove(&conn);
    }

    pub(crate) fn is_touched(&self, conn: u32) -> bool {
        self.touched.contains(&conn)
    }

    pub(crate) fn asked(&mut self, client: u32, mut request: Request, now: u64) {
        self.counts.requests += 1;
        request.by_wire = self.has_surprises
            && !request.parts.is_empty()
            && !matches!(
                request.answer,
                Answer::Local(_)
                    | Answer::Broadcast(_)
                    | Answer::Session { .. }
                    | Answer::Wait { .. }
            );
        self.expect_copies(client, &mut request);
        let ledger = &mut self.ledgers[client as usize];
        let index = ledger.requests.len() as u32;
        for part in request.parts.iter().filter(|part| !part.shared) {
            let tag = tag_of(&request.tag, &part.key);
            ledger.tags.entry(tag).or_insert((index, 0)).1 += 1;
        }
        if request.no_reply {
            ledger.history.unanswered(&request);
        } else {
            ledger.owed.push_back(index);
        }
        if request.last && ledger.end == End::Open {
            ledger.end = End::Announced;
        }
        ledger.sent += request.bytes.len() as u64;
        let end = ledger.sent;
        let entry = Entry {
            request,
            sent_at: now,
            end,
            read_at: u64::MAX,
            servers: Vec::new(),
            is_refused: false,
        };
        ledger.requests.push(entry);
    }

    /// The gateway has read bytes of the client.
    pub(crate) fn read(&mut self, client: u32, bytes: usize, now: u64) {
        let ledger = &mut self.ledgers[client as usize];
        ledger.read += bytes as u64;
        while let Some(entry) = ledger.requests.get_mut(ledger.unread as usize)
            && entry.end <= ledger.read
        {
            entry.read_at = now;
            ledger.unread += 1;
        }
    }

    /// A server executed a command on a client's key.
    pub(crate) fn executed(&mut self, client: u32, execution: &Execution<'_>, now: u64) {
        self.counts.executions += 1;
        self.counts.late += u64::from(execution.late);
        let Execution { pool, server, gateway, late, tag, key, payload, outcome, by_exec, .. } =
            *execution;
        let what = || {
            let (tag, key) = (tag.escape_ascii(), key.escape_ascii());
            format!("server {pool}/{server} executed {tag} {key} of client {client}")
        };
        let name = tag_of(tag, key);
        let loses_results = self.has_faults || self.is_first_cut_short(client, now);
        let Some(ledger) = self.ledgers.get_mut(client as usize) else {
            panic!("I1: {}, who does not exist", what());
        };
        if ledger.is_given_up {
            return;
        }
        if pool == route::COPIES && ledger.pool != pool {
            return self.copied(client, execution, now);
        }
        if self.copies == Copies::Split && self.rings.is_route(ledger.pool) {
            if let Some(own) = route::split_key(key) {
                return self.executed_at_copy(client, execution, own, now);
            }
            if ledger.read_of_key(&name, key, outcome) {
                return;
            }
        }
        // One that the client has sent and the gateway has yet to read cannot be it.
        let is_read = |(index, _): &(u32, u32)| ledger.requests[*index as usize].read_at <= now;
        if !ledger.tags.get(&name).is_some_and(is_read)
            && let Some((index, left)) = ledger.read_once.get_mut(&name)
            && *left > 0
        {
            *left -= 1;
            let index = *index;
            // It was sent to a second server. What that one says is of no interest if it comes too late.
            self.counts.hedged += 1;
            let sent_at = ledger.requests[index as usize].sent_at;
            let is_owed = ledger.owed.contains(&index);
            let writes = ledger.writes.get(key).copied().unwrap_or_default();
            if is_owed && execution.is_stale && self.heeds_writes {
                let is_acknowledged =
                    writes.acknowledged == writes.executed && writes.at <= sent_at;
                assert!(!is_acknowledged, "{} without its write, hedged", what());
            }
            let parts = &ledger.requests[index as usize].request.parts;
            let mut same_key = parts.iter().filter(|part| part.key == key);
            if is_owed && same_key.any(|part| part.outcome.as_ref() != Some(outcome)) {
                // Either is right.
                self.give_up(client);
            }
            return;
        }
        if !ledger.tags.contains_key(&name)
            && let Some(part) = ledger.waiting(key).filter(|_| loses_results)
        {
            // Its result was lost with the connection, and the command was sent again.
            part.outcome = Some(outcome.clone());
            return;
        }
        let Some((index, left)) = ledger.tags.get_mut(&name) else {
            panic!("I3: {}, who did not ask for it, or it was executed before", what());
        };
        let index = *index;
        *left -= 1;
        let entry = &mut ledger.requests[index as usize];
        let is_broadcast = matches!(entry.request.answer, Answer::Broadcast(_));
        if is_broadcast {
            *left += 1;
            assert!(!entry.servers.contains(&server), "I3: {} twice", what());
            entry.servers.push(server);
        } else if *left == 0 {
            ledger.tags.remove(&name);
            if entry.request.access == Access::Read && self.rings.hedges(pool) {
                let tag = &entry.request.tag;
                let is_it = |part: &&Part| tag_of(tag, &part.key) == name;
                let parts = entry.request.parts.iter().filter(is_it).count();
                // Of an earlier one that was sent twice, too, which nobody can tell from this.
                let before = ledger.read_once.get(&name).map_or(0, |(_, left)| *left);
                ledger.read_once.insert(name, (index, before + parts));
            }
        }
        let is_queued = matches!(entry.request.answer, Answer::Session { .. });
        assert_eq!(is_queued, by_exec, "I1: {}: in a transaction or not", what());
        let (was, due) = (execution.params, entry.request.params);
        assert_eq!(was, due, "I1: {} on a connection of another kind", what());
        let leaves = self.rings.leaves(ledger.pool, gateway, key, entry.sent_at, now);
        let is_here = leaves.contains(&pool) && ledger.gateways.contains(&gateway);
        assert!(is_here, "I1: {} elsewhere, instead of pool {leaves:?}", what());
        self.counts.led += u64::from(ledger.pool != pool);
        // The gateway parses a request when its last byte is there, not before. But it may refuse a
        // request after its first line.
        let is_local = matches!(entry.request.answer, Answer::Local(_));
        let is_early = is_local || entry.is_batch();
        assert!(entry.read_at <= now || is_early, "{} before it was sent", what());
        let (read_at, access) = (entry.read_at.min(now), entry.request.access);
        let sent_at = entry.sent_at;
        let read_at = if is_early || entry.is_upload() { entry.sent_at } else { read_at };
        self.counts.uploads += u64::from(entry.is_upload());
        if !is_broadcast {
            let mut open = entry.request.parts.iter_mut().filter(|part| {
                part.key == key && part.outcome.is_none() && part.payload.as_deref() == payload
            });
            let Some(part) = open.next() else { panic!("I1: {} with other data", what()) };
            part.outcome = Some(outcome.clone());
        }
        let writes = ledger.writes.entry(key.to_vec()).or_default();
        if access == Access::Write {
            writes.executed += u64::from(!outcome.refused);
        } else if execution.is_stale {
            self.counts.stale += 1;
            let is_acknowledged = writes.acknowledged == writes.executed && writes.at <= sent_at;
            let may_be_stale = !self.heeds_writes || !is_acknowledged;
            assert!(may_be_stale, "{} without its write, acknowledged at {}", what(), writes.at);
        }
        // A read may have gone to what is the primary now before an earlier write did, and one whose server
        // fails goes to another.
        let is_ordered = match self.has_slots {
            true => access == Access::Write || self.reads_primaries,
            false => access == Access::Write || !self.rings.has_groups(pool),
        };
        // Nobody has waited for what came before, so another connection, of another kind or in another worker, is no later.
        let is_elsewhere = self.copies == Copies::Unawaited
            && (self.has_faults
                || by_exec
                || ledger.gateways.len() > 1
                || ledger.requests[..index as usize].iter().any(|it| it.request.params != due));
        if !late && is_ordered && !is_elsewhere {
            let (last, its_server) = match self.has_slots {
                true => ledger.last_of_key.entry(key.to_vec()).or_default(),
                false => ledger.last.entry((pool, server)).or_default(),
            };
            // A node that has sent one away and runs the next one can only be waited for.
            if *last > index && ledger.refusals.is_by(*its_server, (tag, key), sent_at) {
                self.counts.overtaken += 1;
                *last = index;
                ledger.history.forget(key);
            }
            assert!(
                *last <= index,
                "I2: {} as its request {index}, after request {last} by {its_server}; {}",
                what(),
                ledger.refusals.describe(sent_at)
            );
            (*last, *its_server) = (index, server);
        }
        if self.has_slots {
            return;
        }
        if !late && !is_elsewhere && access == Access::Write && self.rings.is_route(ledger.pool) {
            self.check_order_of_key(client, index, (pool, server, key), now);
        }
        if access == Access::Write && !late && !is_broadcast {
            let is_superseded = self.rings.is_superseded(pool, gateway, server);
            assert!(!is_superseded, "{} when another server had its place", what());
        }
        if !is_broadcast {
            let owners = self.rings.owners(pool, gateway, key, access, read_at, now);
            assert!(owners.contains(&server), "I5: {}, it belongs to {owners:?}", what());
        }
    }

    /// A client's writes of a key run in its order, also if they are led to another pool meanwhile. What has not ended when
    /// the pause is over may be overtaken.
    fn check_order_of_key(
        &mut self,
        client: u32,
        index: u32,
        (pool, server, key): (u32, u32, &[u8]),
        now: u64,
    ) {
        let ledger = &mut self.ledgers[client as usize];
        let sent_at = ledger.requests[index as usize].sent_at;
        let last = ledger.last_of_key.entry(key.to_vec()).or_default();
        let (before, its_server) = *last;
        last.0 = before.max(index);
        if before <= index {
            last.1 = server;
            return;
        }
        assert!(
            self.is_cut_short(client, sent_at, now),
            "I2: server {pool}/{server} executed a write of {} as request {index} of client {client}, after request \
             {before} by {its_server}",
            key.escape_ascii()
        );
    }

    /// The gateway writes a part of a client's request on a connection to a server.
    pub(crate) fn written(
        &mut self,
        client: u32,
        tag: &[u8],
        key: &[u8],
        payload: Option<&[u8]>,
        conn: u32,
    ) -> Option<PartRef> {
        let ledger = self.ledgers.get_mut(client as usize)?;
        let &(request, _) = ledger.tags.get(&tag_of(tag, key))?;
        let parts = &mut ledger.requests[request as usize].request.parts;
        let is_it = |part: &Part| {
            part.wire.is_none() && part.key == key && part.payload.as_deref() == payload
        };
        let part = parts.iter().position(is_it)?;
        parts[part].wire = Some(conn);
        Some(PartRef { client, request, part: part as u32 })
    }

    fn request_of(&mut self, part: PartRef) -> &mut Request {
        &mut self.ledgers[part.client as usize].requests[part.request as usize].request
    }

    /// The number of parts of this part's request.
    pub(crate) fn part_count(&mut self, part: PartRef) -> usize {
        self.request_of(part).parts.len()
    }

    /// The gateway has read this as the reply to a part, or as an error instead.
    pub(crate) fn tell(&mut self, told: PartRef, reply: &[u8], is_refused: bool) {
        let request = self.request_of(told);
        let part = &mut request.parts[told.part as usize];
        let payload = part.payload.as_deref().unwrap_or_default();
        let shown = match (&request.answer, request.framing) {
            (Answer::Batch(_), Framing::MetaBatch) => meta_server::shown(payload, reply),
            (Answer::Batch(_), _) => packet::shown(payload, reply),
            _ => reply.to_vec(),
        };
        part.told = Some(Outcome { reply: shown, refused: is_refused });
    }

    /// The gateway has read this error after the replies to these parts.
    pub(crate) fn note_error(&mut self, parts: impl Iterator<Item = PartRef>, error: &[u8]) {
        for part in parts {
            self.request_of(part).ended_by.push(error.to_vec());
        }
    }

    /// The gateway has read this as the reply to the whole request.
    pub(crate) fn note_whole_reply(&mut self, told: PartRef, reply: &[u8]) {
        self.request_of(told).told = Some(reply.to_vec());
    }

    /// The client's correct replies are unknown from now on.
    pub(crate) fn give_up(&mut self, client: u32) {
        let ledger = &mut self.ledgers[client as usize];
        ledger.is_given_up = true;
        ledger.end = End::Gone;
        ledger.owed.clear();
        ledger.history = History::default();
    }

    pub(crate) fn is_given_up(&self, client: u32) -> bool {
        self.ledgers[client as usize].is_given_up
    }

    /// Bytes came to a client that are not split yet: takes whole replies from the front.
    pub(crate) fn answered(&mut self, client: u32, bytes: &mut Vec<u8>, now: u64) {
        if self.is_given_up(client) {
            bytes.clear();
            return;
        }
        let mut used = 0;
        while used < bytes.len() {
            let ledger = &self.ledgers[client as usize];
            let rest = &bytes[used..];
            let Some(&index) = ledger.owed.front() else {
                panic!("I3: client {client} got more than it asked for: {}", show(rest));
            };
            let entry = &ledger.requests[index as usize];
            match entry.request.frame(rest) {
                Ok(Some(len)) => {
                    self.check(client, index, &bytes[used..used + len], now);
                    self.ledgers[client as usize].owed.pop_front();
                    used += len;
                }
                Ok(None) => break,
                Err(why) => panic!("I1: client {client} got {}, {why}", show(rest)),
            }
        }
        bytes.drain(..used);
    }

    fn check(&mut self, client: u32, index: u32, reply: &[u8], now: u64) {
        self.counts.replies += 1;
        let ledger = &self.ledgers[client as usize];
        let entry = &ledger.requests[index as usize];
        self.counts.batches += u64::from(entry.is_batch());
        let what = || {
            format!(
                "client {client}, request {index}, {}: {}",
                show(&entry.request.bytes),
                show(reply)
            )
        };
        // A refused request need not have been read to its end.
        let is_local = matches!(entry.request.answer, Answer::Local(_));
        let may_be_early =
            is_local || (entry.is_upload() && is_gateway_error(&told(&entry.request, reply)));
        assert!(entry.read_at <= now || may_be_early, "I1: answered before it came: {}", what());
        let waited_since = |start| {
            let slowed: u64 = ledger.slowed(index).map(|slow| overlap(start..now, slow)).sum();
            now.saturating_sub(start).saturating_sub(slowed)
        };
        if let Some(wait_max_us) = self.wait_max_us[ledger.pool as usize] {
            let waited = waited_since(entry.read_at);
            assert!(waited <= wait_max_us, "I3: {waited} us for {}", what());
        }
        if entry.request.is_answered_by(reply) {
            let waited = waited_since(entry.sent_at);
            self.counts.slowest_us = self.counts.slowest_us.max(waited);
            let slowest = &mut self.ledgers[client as usize].slowest_us;
            *slowest = waited.max(*slowest);
            self.counts.denials += u64::from(reply.starts_with(b"-NOPERM "));
            self.check_broadcast(client, index, now);
            self.note_acknowledged(client, index, now);
            let is_ordered = self.is_write(client, index) || self.reads_primaries;
            let ending = match reply == OUT_OF_MEMORY {
                true => Ending::Failed,
                false => Ending::Answered { is_ordered },
            };
            self.note_ending(client, index, reply, ending);
            return;
        }
        match &entry.request.answer {
            Answer::Session { fair, .. } if fair.contains(&reply) => {
                self.counts.aborts += 1;
                self.note_ending(client, index, reply, Ending::Refused);
                return;
            }
            Answer::Wait { nil: true } if NILS.contains(&reply) => return,
            _ => {}
        }
        if self.few_sessions && is_session_refusal(&entry.request, reply) {
            self.counts.aborts += 1;
            return;
        }
        let is_in_transaction = matches!(entry.request.answer, Answer::Session { .. });
        if self.has_slots && is_in_transaction && is_replaced(reply) {
            // The node that watched has other duties now.
            self.counts.aborts += 1;
            self.note_ending(client, index, reply, Ending::Failed);
            return;
        }
        let may_abort = self.has_slots
            && (reply == ABORT || abort_reason(reply).is_some_and(|why| is_told_refusal(&why)));
        if may_abort && self.is_refused_since_began(client, index, now) {
            let is_own = abort_reason(reply).as_deref() == Some(refusals::NOT_SERVED);
            let is_spent = is_own && self.is_spent(client, index);
            self.counts.refusals += 1;
            self.counts.errors += u64::from(!is_spent);
            self.note_ending(client, index, reply, Ending::Refused);
            return;
        }
        if self.has_slots && refusals::is_refusal(reply) {
            self.check_refusal(client, index, reply, now);
            return;
        }
        if let Answer::Batch(fence) = &entry.request.answer {
            let mut pieces = entry.request.pieces(reply);
            let fits = pieces.pop() == Some(fence) && fits(&entry.request, 0, &pieces);
            let errors: Vec<Vec<u8>> = pieces
                .into_iter()
                .map(error_text)
                .filter(|piece| is_gateway_error(piece))
                .collect();
            let count = errors.len() as u64;
            let fresh = errors.iter().filter(|error| !is_too_old(error)).count() as u64;
            let blamed = errors.iter().all(|error| self.is_blamed(client, index, error, now));
            let request = &self.ledgers[client as usize].requests[index as usize].request;
            let may_be_bare = count > 0 || request.is_torn();
            assert!(
                fits && blamed && may_be_bare,
                "I1: client {client}, request {index}, {}, is answered {} instead of {}",
                show(&request.bytes),
                show(reply),
                request.expected().map_or("what servers have yet to say".to_owned(), |e| show(&e))
            );
            self.counts.errors += fresh;
            self.counts.torn_batches += 1;
            return;
        }
        let told = told(&entry.request, reply);
        let reply = &*told;
        // Large values are forwarded while they arrive: an error may replace END.
        let reply = match entry.request.answer {
            Answer::Values => behind_values(&entry.request, reply),
            _ => reply,
        };
        let is_refusal = |part: &Part| {
            let share = entry.request.share(part);
            share.is_some_and(|outcome| outcome.refused && outcome.reply == reply)
        };
        let refusal = entry.request.parts.iter().any(is_refusal)
            || entry.request.ended_by.iter().any(|error| error == reply)
            || (self.has_surprises && is_surprise(&entry.request, reply))
            // It is unknown whose it is.
            || (self.counts.unjudged > 0 && matches!(entry.request.answer, Answer::Constant(_)));
        let blamed = self.is_blamed(client, index, reply, now);
        let entry = &self.ledgers[client as usize].requests[index as usize];
        let expected = entry.request.expected();
        assert!(
            blamed && (refusal || is_gateway_error(reply) || is_abort(&entry.request, reply)),
            "I1: client {client}, request {index}, {}, is answered {} instead of {}",
            show(&entry.request.bytes),
            show(reply),
            expected.map_or("what a server has yet to say".to_owned(), |text| show(&text))
        );
        let (reply, is_old) = (reply.to_vec(), is_too_old(reply));
        self.note_ending(client, index, &reply, Ending::Failed);
        // That is of before, however long ago.
        self.counts.errors += u64::from(!is_old);
    }

    /// In front of a cluster.
    fn is_write(&self, client: u32, index: u32) -> bool {
        self.ledgers[client as usize].requests[index as usize].request.access == Access::Write
    }

    /// Whether it comes behind WATCH: then it may not be where the node watches.
    fn is_watched(&self, client: u32, index: u32) -> bool {
        let before = index.checked_sub(1);
        let requests = &self.ledgers[client as usize].requests;
        before.is_some_and(|at| requests[at as usize].request.began.is_some())
    }

    /// Whether a transaction was followed as often as it is at most.
    fn is_spent(&self, client: u32, index: u32) -> bool {
        let ledger = &self.ledgers[client as usize];
        let began = ledger.requests[index as usize].request.began;
        let told = began
            .and_then(|since| ledger.refusals.explain(refusals::NOT_SERVED, since, |_, _| true));
        told == Some(true)
    }

    fn is_refused_since_began(&self, client: u32, index: u32, now: u64) -> bool {
        let ledger = &self.ledgers[client as usize];
        let began = ledger.requests[index as usize].request.began;
        began.is_some_and(|since| {
            ledger.refusals.has_since(since)
                || self.is_absent(since, now)
                || self.counts.wrong_maps + self.counts.aborts > 0
        })
    }

    /// A node to which a slot is on its way refuses a command, since it came without ASKING: it must not have been
    /// sent there by ASK. Where connections fail or maps are wrong it may come without it, and go on from there; so
    /// may what has waited in the gateway since, and goes where an old map has the slot.
    pub(crate) fn check_asking(
        &self,
        client: u32,
        (tag, key): (&[u8], &[u8]),
        ask: &[u8],
        now: u64,
    ) {
        let Some(ledger) = self.ledgers.get(client as usize) else { return };
        let Some(&(index, _)) = ledger.tags.get(&tag_of(tag, key)) else { return };
        let since = ledger.requests[index as usize].sent_at.max(now.saturating_sub(WAITS_MIN_US));
        assert!(
            self.has_faults
                || self.counts.wrong_maps > 0
                || ledger.refusals.last_of((tag, key), since) != Some(ask),
            "I1: {} {} of client {client} has followed {} without ASKING",
            tag.escape_ascii(),
            key.escape_ascii(),
            show(ask)
        );
    }

    /// A node has not run a command on a client's key.
    pub(crate) fn refused(
        &mut self,
        client: u32,
        (tag, key): (&[u8], &[u8]),
        text: &[u8],
        is_redirect: bool,
        (node, now): (u32, u64),
    ) {
        let Some(ledger) = self.ledgers.get_mut(client as usize) else { return };
        let asked = ledger.tags.get(&tag_of(tag, key)).map(|it| it.0);
        let since = asked.map(|index| ledger.requests[index as usize].sent_at);
        let times = (node, since.unwrap_or(now), now);
        let hops = ledger.refusals.note((tag, key), text, is_redirect, times);
        // A call that waits is asked anew with another epoch.
        let is_wait = tag.eq_ignore_ascii_case(b"BLPOP");
        let is_one = self.reads_primaries && since.is_some() && !is_wait;
        assert!(
            !is_one || hops <= refusals::TRIES_MAX,
            "I4: {} {} of client {client} is sent elsewhere for the {hops}th time",
            tag.escape_ascii(),
            key.escape_ascii()
        );
    }

    /// A client gets what a node has refused its request with: one did, and the request was not executed.
    fn check_refusal(&mut self, client: u32, index: u32, reply: &[u8], now: u64) {
        let is_in_trouble = self.is_in_trouble(client, index, now);
        let ledger = &self.ledgers[client as usize];
        let entry = &ledger.requests[index as usize];
        let request = &entry.request;
        let since = request.began.unwrap_or(entry.sent_at);
        let fits = |tag: &[u8], key: &[u8]| {
            let is_own = |part: &Part| request.tag == tag && part.key == key;
            request.parts.is_empty() || request.parts.iter().any(is_own)
        };
        // Nobody is to know where nodes are.
        assert!(
            !refusals::is_sent_back(reply),
            "I3: client {client}, request {index}, {}: {}, which is for the gateway",
            show(&request.bytes),
            show(reply)
        );
        let explained = ledger.refusals.explain(reply, since, fits);
        let is_shared = request.parts.iter().any(|part| part.shared);
        let what = || format!("{}: {}", show(&request.bytes), show(reply));
        // Gateways say so themselves of nodes that have said so to others, and of slots without an owner.
        let is_own = self.is_absent(since, now) || self.counts.wrong_maps > 0;
        assert!(
            explained.is_some() || is_shared || is_own,
            "I1: client {client}, request {index}, {}, which no node has said of it",
            what()
        );
        let slots: BTreeSet<u16> = request.parts.iter().map(|part| slot_of(&part.key)).collect();
        let is_session = matches!(request.answer, Answer::Session { .. });
        let is_whole = slots.len() == 1 && self.reads_primaries && !is_session;
        let has_run = request.parts.iter().any(|part| !part.shared && part.outcome.is_some());
        assert!(
            !is_whole || !has_run,
            "I10: client {client}, request {index}, {}: it has run",
            what()
        );
        // What is between WATCH and EXEC goes to no other node once that transaction is on its way.
        let is_watched = self.is_watched(client, index);
        let is_given_up = explained == Some(true)
            || is_watched
            // Its owner cannot be reached, or no map names one.
            || is_in_trouble
            || is_own
            || is_shared
            || is_session
            || self.tight_queues
            || now - entry.read_at.min(now) >= self.timeout_us;
        assert!(
            is_given_up || explained != Some(false),
            "I3: client {client}, request {index}, {}: it was not followed; {}",
            what(),
            ledger.refusals.describe(since)
        );
        self.counts.refusals += 1;
        let is_spent = explained == Some(true) && reply == refusals::NOT_SERVED;
        self.counts.errors += u64::from(!is_spent && !is_watched);
        self.ledgers[client as usize].requests[index as usize].is_refused = true;
        let ending = if is_whole { Ending::Refused } else { Ending::Failed };
        self.note_ending(client, index, reply, ending);
    }

    /// In front of a cluster: the reply is that of all before it, in order; a transaction is executed as a whole or
    /// not at all.
    fn note_ending(&mut self, client: u32, index: u32, reply: &[u8], ending: Ending) {
        if !self.has_slots {
            return;
        }
        let ledger = &mut self.ledgers[client as usize];
        let request = &ledger.requests[index as usize].request;
        if name_of(&request.bytes) == b"EXEC" && ending != Ending::Failed {
            let before = ledger.requests[..index as usize].iter().rev();
            let queued = before.take_while(|entry| name_of(&entry.request.bytes) != b"MULTI");
            let mut parts = queued.flat_map(|entry| &entry.request.parts);
            let is_due = matches!(ending, Ending::Answered { .. });
            let is_so = parts.all(|part| part.outcome.is_some() == is_due);
            assert!(is_so, "I2: client {client}, request {index}: half of a transaction has run");
        }
        let other = ledger.history.ended(request, reply, ending);
        assert!(
            other.is_none(),
            "I2: client {client}, request {index}, {}: {} instead of {}",
            show(&request.bytes),
            show(reply),
            show(&other.unwrap_or_default())
        );
    }

    /// A node refuses everything for now, until then or for ever; what is to go there may fail.
    pub(crate) fn node_absent(&mut self, node: u32, from: u64, until: u64) {
        self.absences.push((node, from, until));
    }

    fn is_absent(&self, from: u64, now: u64) -> bool {
        self.absences.iter().any(|&(_, begin, end)| begin <= now && end >= from)
    }

    /// By key: the values that clients' replies leave there.
    pub(crate) fn known_values(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        self.ledgers.iter().flat_map(|ledger| ledger.history.known()).collect()
    }

    /// Nodes that are in no map any more; requests there may fail.
    pub(crate) fn nodes_left<'p>(
        &mut self,
        before: &Pool,
        mut after: impl Iterator<Item = &'p Pool>,
        now: u64,
    ) {
        let Some(after) = after.find(|pool| pool.name == before.name) else { return };
        let is_gone = before.servers.iter().any(|server| !after.servers.contains(server));
        if is_gone {
            self.nodes_left_at.push(now);
        }
    }

    fn note_acknowledged(&mut self, client: u32, index: u32, now: u64) {
        let Ledger { requests, writes, .. } = &mut self.ledgers[client as usize];
        let request = &requests[index as usize].request;
        let done = |part: &&Part| part.outcome.as_ref().is_some_and(|outcome| !outcome.refused);
        for part in request.parts.iter().filter(done).filter(|_| request.access == Access::Write) {
            let writes = writes.entry(part.key.clone()).or_default();
            (writes.acknowledged, writes.at) = (writes.acknowledged + 1, now);
        }
    }

    fn check_broadcast(&self, client: u32, index: u32, now: u64) {
        if self.has_surprises {
            // One server may have executed it and another one reported it.
            return;
        }
        let ledger = &self.ledgers[client as usize];
        let entry = &ledger.requests[index as usize];
        if let Answer::Broadcast(_) = entry.request.answer {
            let counts: Vec<usize> = ledger
                .gateways
                .iter()
                .flat_map(|&gateway| {
                    self.rings.live_counts(ledger.pool, gateway, entry.read_at, now)
                })
                .collect();
            assert!(
                counts.contains(&entry.servers.len()),
                "I1: client {client}, request {index}: {:?} executed it, live were {counts:?}",
                entry.servers
            );
        }
    }

    /// Whether a server's fault, or a limit, explains an error reply.
    fn is_blamed(&mut self, client: u32, index: u32, reply: &[u8], now: u64) -> bool {
        let ledger = &self.ledgers[client as usize];
        let entry = &ledger.requests[index as usize];
        if let Answer::Local(_) = entry.request.answer {
            return false;
        }
        // Of a transaction all that follows fails, too.
        if entry.request.began.is_some_and(|from| self.is_cut_short(client, from, now)) {
            return true;
        }
        let said = without_server(reply.strip_suffix(b"\r\n").unwrap_or(reply));
        let is_cut = |text: &[u8]| said.ends_with(text);
        if is_cut(b"Server was removed from the configuration")
            || is_cut(b"Server was replaced by another")
        {
            let from = entry.request.began.unwrap_or(entry.sent_at);
            return self.nodes_left_at.iter().any(|&at| from <= at && at <= now)
                || self.is_cut_short(client, from, now);
        }
        if is_cut(TOO_OLD.as_bytes()) {
            return self.has_refused_sets(client, index, now);
        }
        if self.tight_queues && said.ends_with(b"Server queue is full") {
            return true;
        }
        self.is_in_trouble(client, index, now)
    }

    fn is_in_trouble(&mut self, client: u32, index: u32, now: u64) -> bool {
        if !self.has_faults {
            return false;
        }
        let ledger = &self.ledgers[client as usize];
        let entry = &ledger.requests[index as usize];
        let (pool, from) = (ledger.pool, entry.request.began.unwrap_or(entry.sent_at));
        let hits = |troubles: &[(u64, u64)]| troubles.iter().any(|t| t.0 <= now && t.1 >= from);
        let is_of_any = entry.request.parts.is_empty() || self.has_slots;
        if is_of_any || matches!(entry.request.answer, Answer::Broadcast(_)) {
            let is_route = self.rings.is_route(pool);
            let mut troubles = self.troubles.iter();
            return troubles.any(|(of, troubles)| (is_route || of.0 == pool) && hits(troubles));
        }
        entry.request.parts.iter().any(|part| {
            if let Some(conn) = part.wire {
                return self.touched.contains(&conn);
            }
            let access = entry.request.access;
            ledger.gateways.iter().any(|&gateway| {
                let leaves = self.rings.leaves(pool, gateway, &part.key, from, now);
                leaves.into_iter().any(|pool| {
                    let owners = self.rings.owners(pool, gateway, &part.key, access, from, now);
                    let none_live = self.rings.live_counts(pool, gateway, from, now).contains(&0);
                    let in_trouble = |server: &u32| {
                        self.troubles.get(&(pool, *server)).is_some_and(|troubles| hits(troubles))
                    };
                    none_live || owners.iter().any(in_trouble)
                })
            })
        })
    }

    /// The gateway switches its epoch though requests are still in flight after the time limit.
    pub(crate) fn cut_short(&mut self, gateway: u32, now: u64) {
        self.cut_short.entry(gateway).or_default().push(now);
    }

    /// Whether requests may still wait for servers when a gateway has paused.
    pub(crate) fn may_leave_unfinished(&self) -> bool {
        self.has_faults || self.has_slots
    }

    /// Grows while clients are served: bytes that have come to a gateway, and replies that have
    /// come to clients.
    pub(crate) fn progress(&self) -> u64 {
        let answered = |ledger: &Ledger| ledger.requests.len() - ledger.owed.len();
        self.ledgers.iter().map(|ledger| ledger.read + answered(ledger) as u64).sum()
    }

    pub(crate) fn was_cut_short(&self) -> bool {
        !self.cut_short.is_empty()
    }

    fn is_cut_short(&self, client: u32, from: u64, now: u64) -> bool {
        let gateways = &self.ledgers[client as usize].gateways;
        let mut times = gateways.iter().filter_map(|gateway| self.cut_short.get(gateway)).flatten();
        times.any(|&at| from <= at && at <= now)
    }

    /// The same of the first request that the client waits for.
    fn is_first_cut_short(&self, client: u32, now: u64) -> bool {
        let first = self.ledgers.get(client as usize).and_then(|ledger| {
            let &first = ledger.owed.front()?;
            Some(ledger.requests[first as usize].sent_at)
        });
        first.is_some_and(|from| self.is_cut_short(client, from, now))
    }

    /// The gateway will close the connections of the pool's clients.
    pub(crate) fn pool_removed(&mut self, pool: u32, gateway: u32) {
        self.removed.insert((pool, gateway));
        for ledger in &mut self.ledgers {
            let is_here = ledger.pool == pool && ledger.gateways.last() == Some(&gateway);
            if is_here && ledger.end != End::Gone {
                ledger.end = End::Draining;
            }
        }
    }

    pub(crate) fn has_removed(&self) -> bool {
        !self.removed.is_empty()
    }

    /// The client has ended its side, and still reads.
    pub(crate) fn half_closed(&mut self, client: u32) {
        let ledger = &mut self.ledgers[client as usize];
        ledger.is_half_closed = true;
        if ledger.end == End::Open {
            ledger.end = End::HalfClosed;
        }
    }

    /// The client has left.
    pub(crate) fn left(&mut self, client: u32) {
        let ledger = &mut self.ledgers[client as usize];
        ledger.end = End::Gone;
        for index in ledger.owed.drain(..) {
            ledger.history.unanswered(&ledger.requests[index as usize].request);
        }
    }

    /// The client has moved to another gateway, or back to one.
    pub(crate) fn moved(&mut self, client: u32, gateway: u32) {
        let ledger = &mut self.ledgers[client as usize];
        ledger.gateways.retain(|&past| past != gateway);
        ledger.gateways.push(gateway);
        let is_closing =
            self.drained.contains(&gateway) || self.removed.contains(&(ledger.pool, gateway));
        if is_closing && ledger.end != End::Gone {
            ledger.end = End::Draining;
        }
    }

    /// The gateway was told to accept no more requests.
    pub(crate) fn draining(&mut self, gateway: u32) {
        self.drained.insert(gateway);
        for ledger in &mut self.ledgers {
            if ledger.gateways.last() == Some(&gateway) && ledger.end != End::Gone {
                ledger.end = End::Draining;
            }
        }
    }

    /// The gateway closed the client's connection; `rest` is part of a reply.
    pub(crate) fn closed(&mut self, client: u32, rest: &[u8], now: u64) {
        let ledger = &self.ledgers[client as usize];
        let is_settled = rest.is_empty() && ledger.owed.is_empty();
        let allowed = match ledger.end {
            End::Gone => true,
            End::HalfClosed => is_settled || ledger.may_wait(),
            End::Announced => is_settled,
            // It may have been closed for having left before the gateway stops.
            End::Draining => {
                rest.is_empty()
                    || ledger.is_amidst_batch(rest)
                    || (ledger.is_half_closed && ledger.may_wait())
            }
            End::Open => false,
        };
        if !allowed {
            let owed: Vec<u32> = ledger.owed.iter().copied().collect();
            let since = owed.first().map(|&index| ledger.requests[index as usize].sent_at);
            let blamed = self.tight_outputs
                || since.is_some_and(|from| self.is_cut_short(client, from, now))
                || owed.iter().any(|&index| self.is_in_trouble(client, index, now));
            assert!(
                blamed,
                "I3: client {client} is closed, {:?}, owed {} replies, after {}",
                self.ledgers[client as usize].end,
                owed.len(),
                show(rest)
            );
            self.counts.cuts += 1;
        }
        self.ledgers[client as usize].is_dropped = !is_settled;
        self.left(client);
    }

    /// Whether the client may use this tag for the key.
    pub(crate) fn is_free(&self, client: u32, tag: &[u8], key: &[u8]) -> bool {
        let ledger = &self.ledgers[client as usize];
        let name = tag_of(tag, key);
        // The key itself may be asked for yet.
        let may_follow = |&(index, left): &(u32, usize)| {
            let is_unheard = ledger.requests[index as usize].request.no_reply;
            left > 0 && (is_unheard || ledger.owed.contains(&index))
        };
        !ledger.tags.contains_key(&name)
            && !ledger.read_from_copy.get(&name).is_some_and(may_follow)
    }

    pub(crate) fn owed(&self, client: u32) -> usize {
        self.ledgers[client as usize].owed.len()
    }

    /// Without faults, all requests have been executed.
    pub(crate) fn check_all_done(&self) {
        for (client, ledger) in self.ledgers.iter().enumerate() {
            if ledger.is_dropped {
                continue;
            }
            for (index, entry) in ledger.requests.iter().enumerate() {
                if entry.is_refused || (self.has_slots && entry.request.no_reply) {
                    continue;
                }
                let done = entry.request.parts.iter().all(|part| {
                    let may_be_left = matches!(
                        entry.request.answer,
                        Answer::Broadcast(_) | Answer::Session { .. }
                    );
                    part.outcome.is_some() || may_be_left
                });
                let bytes = show(&entry.request.bytes);
                assert!(done, "I3: client {client}, request {index}, {bytes} was never executed");
            }
        }
    }
}

impl Ledger {
    /// The key of the blocking call, if its server has answered it.
    fn waiting(&mut self, key: &[u8]) -> Option<&mut Part> {
        let &index = self.owed.front()?;
        let request = &mut self.requests[index as usize].request;
        let is_wait = matches!(request.answer, Answer::Wait { .. });
        let part = request.parts.first_mut().filter(|_| is_wait)?;
        (part.key == key && part.outcome.is_some()).then_some(part)
    }

    /// Whether this is the beginning of the replies to a batch: each of its commands is a separate
    /// request.
    fn is_amidst_batch(&self, rest: &[u8]) -> bool {
        let first = self.owed.front().map(|&index| &self.requests[index as usize].request);
        first.filter(|request| matches!(request.answer, Answer::Batch(_))).is_some_and(|request| {
            let pieces = request.pieces(rest);
            let is_whole = pieces.iter().map(|piece| piece.len()).sum::<usize>() == rest.len();
            is_whole && (0..request.parts.len()).any(|end| fits_up_to(request, 0, end + 1, &pieces))
        })
    }

    /// Whether the reply to a blocking call is pending: a client that has left is not waited for.
    fn may_wait(&self) -> bool {
        let may_wait = |&index: &u32| {
            let answer = &self.requests[index as usize].request.answer;
            matches!(answer, Answer::Wait { .. } | Answer::Session { .. })
        };
        self.owed.iter().any(may_wait)
    }

    pub(crate) fn describe(&self) -> String {
        let first = self.owed.front().map(|&index| {
            let entry = &self.requests[index as usize];
            format!("{index} {} read at {}", show(&entry.request.bytes), entry.read_at)
        });
        let (read, sent) = (self.read, self.sent);
        format!("{:?}, {} owed, first {first:?}, read {read} of {sent}", self.end, self.owed.len())
    }
}

/// Which client a key belongs to: keys read `c<client>:…`, shared ones `s:…`.
pub(crate) fn owner_of(key: &[u8]) -> Option<u32> {
    let digits: Vec<u8> =
        key.strip_prefix(b"c")?.iter().copied().take_while(u8::is_ascii_digit).collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

fn tag_of(tag: &[u8], key: &[u8]) -> Vec<u8> {
    [tag, b"|", key].concat()
}

pub(crate) fn show(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(120)];
    format!("[{}] \"{}\"", bytes.len(), start.escape_ascii())
}
