//! What a transaction does that the gateway goes along with: SELECT, CLIENT PAUSE and UNPAUSE, and on routes with
//! regions its writes.
//!
//! The server queues and executes SELECT as any command there, so that what follows in the
//! transaction has the other database. EXEC's reply says of each whether it has been done; by the
//! last one that has, the client goes on. The lane gets the database back that it is known to have,
//! behind EXEC.
//!
//! In the place of CLIENT PAUSE and UNPAUSE the server gets UNWATCH, which has the same reply and no
//! effect: EXEC has forgotten what is watched already. When EXEC's reply says that they have been
//! done all workers are asked as outside of MULTI, and the reply waits for their answers. Of a client
//! that is gone by then nobody knows what its transaction came to.
//!
//! What it writes in the primary region the other regions have to forget, once EXEC is answered and has done
//! anything, or is not answered: also if its client is gone.

use cashew_protocol::Span;
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, encode};

use crate::base::failure::NamedFailure;
use crate::base::id::{ClientId, LaneId, RequestId};
use crate::downstream::client::Selected;
use crate::downstream::receive::Plan;
use crate::downstream::session::NO_VARIANT;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::redis::client_list::Question;
use crate::redis::keyless::Aggregate;
use crate::redis::redirects::{ABORTED, is_redirect};
use crate::redis::routed::{PLAIN, deletion};
use crate::redis::transaction::UNWATCH;
use crate::redis::written_keys::WrittenKeys;
use crate::request::{Due, Own};
use crate::route::flow::RegionWrite;

/// Of one transaction.
const EFFECTS_MAX: usize = 1024;
/// A database that no server has.
const NOWHERE: i64 = -1;

/// The effects of the commands that a transaction has queued.
#[derive(Debug, Default)]
pub(crate) struct ExecEffects {
    /// In the order of the commands.
    effects: Vec<Effect>,
    /// In the primary region.
    written: WrittenKeys,
    /// The same once EXEC is sent, and what they take.
    writes: Vec<RegionWrite>,
    writes_size: usize,
}

#[derive(Clone, Copy, Debug)]
struct Effect {
    /// Which one of EXEC's replies is its own.
    place: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Select(Selected),
    Pause { millis: u64, writes_only: bool },
    Unpause,
}

/// What a transaction has done to the clients of its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pauses {
    /// Which one of EXEC's replies tells of it.
    place: u32,
    unpause: bool,
    /// What has been begun since: for how long, and whether what reads goes on.
    pause: Option<(u64, bool)>,
}

impl ExecEffects {
    pub(crate) fn is_empty(&self) -> bool {
        self.effects.is_empty() && self.written.is_empty()
    }

    /// Bytes allocated.
    pub(crate) fn size(&self) -> usize {
        self.effects.capacity() * size_of::<Effect>() + self.written.size() + self.writes_size
    }

    /// What is queued behind them is for this database, if they are done.
    pub(crate) fn database(&self) -> Option<Selected> {
        self.effects.iter().rev().find_map(|effect| effect.kind.database())
    }

    /// Those that have come about by this reply to EXEC.
    fn done<'r>(&self, reply: &'r [u8]) -> impl Iterator<Item = Effect> + use<'_, 'r> {
        let mut left = self.effects.iter().peekable();
        let elements = Aggregate::of(reply).into_iter().flatten().zip(0..);
        elements.filter_map(move |(element, place)| {
            let effect = left.next_if(|effect| effect.place == place)?;
            (!resp::is_error(element)).then_some(*effect)
        })
    }

    /// What EXEC came to is known, or never will be.
    fn end_writes(&mut self, engine: &mut Engine, has_written: bool) {
        for write in std::mem::take(&mut self.writes) {
            engine.end_region_write(write, has_written);
        }
    }
}

/// Whether anything was executed, by the beginning of the reply to EXEC.
fn has_executed(reply: &[u8]) -> bool {
    matches!(reply, [b'*', b'1'..=b'9', ..])
}

impl Kind {
    fn database(self) -> Option<Selected> {
        match self {
            Self::Select(database) => Some(database),
            Self::Pause { .. } | Self::Unpause => None,
        }
    }
}

impl Pauses {
    /// What these come to, one after the other.
    fn of(exec_effects: impl Iterator<Item = Effect>) -> Option<Self> {
        let mut all: Option<Self> = None;
        for Effect { place, kind } in exec_effects {
            let before = all.unwrap_or_default();
            all = match kind {
                Kind::Select(_) => all,
                Kind::Unpause => Some(Self { place, unpause: true, pause: None }),
                Kind::Pause { millis, writes_only } => {
                    let (longest, strictest) = before.pause.unwrap_or((0, true));
                    let pause = (millis.max(longest), writes_only && strictest);
                    Some(Self { place, pause: Some(pause), ..before })
                }
            };
        }
        all
    }
}

impl Flow for ExecEffects {
    /// The reply to EXEC is here. It waits for other workers if they are concerned.
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        self.end_writes(cx.engine, has_executed(reply));
        let client = cx.client();
        let has_slots =
            cx.engine.backends[cx.engine.requests[cx.request].backend].topology.has_slots();
        if has_slots && is_redirect(reply) {
            return cx.reply(ABORTED.len(), |out| out.extend_from_slice(ABORTED));
        }
        if client == ClientId::NONE || self.effects.is_empty() {
            return Step::Answer;
        }
        let FlowContext { engine, request, .. } = cx;
        debug_assert_eq!(engine.clients[client].head, *request, "it is owed nothing else");
        let selected = self.done(reply).filter_map(|effect| effect.kind.database()).last();
        let pauses = Pauses::of(self.done(reply));
        if let Some(database) = selected {
            engine.clients[client].session.database = database;
            if !engine.follow_session(client) {
                // It cannot go on where it is told to be: all variants have been taken meanwhile.
                engine.finish(client);
            }
        }
        let Some(Pauses { place, unpause, pause }) = pauses else { return Step::Answer };
        let pause = pause.map(|(millis, writes_only)| {
            let mode: &[u8] = if writes_only { b"WRITE" } else { b"ALL" };
            command(&[b"CLIENT", b"PAUSE", millis.to_string().as_bytes(), mode])
        });
        let unpause = unpause.then(|| command(&[b"CLIENT", b"UNPAUSE"]));
        // What all have been told last they have been told all of.
        let (first, last) = match (unpause, pause) {
            (unpause, Some(pause)) => (unpause, Some(pause)),
            (unpause, None) => (None, unpause),
        };
        if let Some(question) = first {
            engine.ask_everybody(client, question);
        }
        match engine.ask_before_answer(client, *request, place, last.unwrap_or_default()) {
            true => Step::Wait,
            false => Step::Answer,
        }
    }

    /// Nobody knows what it has done.
    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        _attempt: RequestId,
        why: NamedFailure,
    ) -> Step {
        self.end_writes(cx.engine, true);
        Step::Fail(why)
    }

    /// What was written can be told from the first bytes.
    fn on_start(&mut self, cx: &mut FlowContext<'_>, start: &[u8]) -> bool {
        if self.effects.is_empty() && start.len() > 1 {
            self.end_writes(cx.engine, has_executed(start));
        }
        !self.effects.is_empty() || !self.writes.is_empty()
    }

    fn outlives_client(&self) -> bool {
        !self.writes.is_empty()
    }

    /// They have been counted since the transaction had them.
    fn recycle(mut self: Box<Self>, engine: &mut Engine) {
        engine.bufs.discharge(Self::size(&self));
        // Whatever has ended it: these may have been written.
        self.end_writes(engine, true);
    }
}

impl Engine {
    /// SELECT in MULTI.
    pub(crate) fn queue_select(&mut self, client: ClientId, index: &[u8], bytes: &[u8]) -> Plan {
        let backend = self.backend_of(client);
        let state = &self.backends[backend];
        let named = self.destination_of(client).database_named(index).ok().map(Selected::from);
        let mut variant = state.variant_of(&self.clients[client].session);
        if let Some(database) = named {
            variant.database = state.database_of(database);
        }
        let text = self.bufs.written(bytes.len(), |out| match (named, resp::integer(index)) {
            (Some(_), _) => write_select(variant.database.into(), out),
            // The server is to refuse it in Redis's words, whatever databases it has.
            (None, Some(number)) if i32::try_from(number).is_ok() => write_select(NOWHERE, out),
            (None, _) => out.extend_from_slice(bytes),
        });
        let plan = if self.is_affected_most(client) {
            self.refuse_queued(client, "ERR too many SELECTs in one transaction")
        } else if self.variant(backend, variant).is_none() {
            // Its lanes are there when the client is to go on with it.
            self.refuse_queued(client, NO_VARIANT)
        } else {
            self.queue_effect(client, &text, named.map(Kind::Select))
        };
        self.bufs.give(text);
        plan
    }

    /// CLIENT PAUSE or UNPAUSE in MULTI.
    pub(crate) fn queue_pause(
        &mut self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        if self.is_affected_most(client) {
            return self.refuse_queued(client, "ERR too many CLIENT PAUSEs in one transaction");
        }
        match Question::parse(command, bytes, args) {
            Ok(Question::Pause { millis, writes_only }) => {
                let question = Question::Pause { millis, writes_only };
                match self.refusal_of_question(client, &question) {
                    Some(text) => self.refuse_queued(client, &text),
                    None => {
                        let pause = Kind::Pause { millis, writes_only };
                        self.queue_effect(client, UNWATCH, Some(pause))
                    }
                }
            }
            Ok(Question::Unpause) => self.queue_effect(client, UNWATCH, Some(Kind::Unpause)),
            // The server is to refuse it in Redis's words. Should it not it holds nobody back.
            Ok(_) | Err(_) => {
                let mut words: Vec<&[u8]> = args.iter().map(|arg| arg.of(bytes)).collect();
                if let Some(millis) = words.get_mut(2)
                    && resp::integer(millis).is_some_and(|millis| millis >= 0)
                {
                    *millis = b"0";
                }
                let mut text = Vec::new();
                encode::write_command(&mut text, &words);
                self.queue_effect(client, &text, None)
            }
        }
    }

    fn is_affected_most(&self, client: ClientId) -> bool {
        let transaction = self.clients[client].modes.transaction.as_ref();
        transaction.is_some_and(|transaction| transaction.exec_effects.effects.len() >= EFFECTS_MAX)
    }

    fn queue_effect(&mut self, client: ClientId, text: &[u8], kind: Option<Kind>) -> Plan {
        let queued = |engine: &Self| {
            let transaction = engine.clients[client].modes.transaction.as_ref();
            transaction.and_then(|transaction| transaction.queued()).unwrap_or_default()
        };
        let place = queued(self);
        let mut plan = self.queue_anywhere(client, text, None);
        if let Plan::Forward { lane, request } = plan {
            self.send(lane, request, Payload::Bytes(text));
            plan = Plan::Done;
        }
        if let Some(kind) = kind
            && queued(self) > place
            && let Some(transaction) = self.clients[client].modes.transaction()
        {
            let before = transaction.size();
            transaction.exec_effects.effects.push(Effect { place, kind });
            self.bufs.charge(transaction.size() - before);
        }
        plan
    }

    /// Whether no more keys can be noted that other regions have to forget.
    pub(crate) fn has_written_most(&self, client: ClientId) -> bool {
        let transaction = self.clients[client].modes.transaction.as_ref();
        transaction.is_some_and(|transaction| transaction.exec_effects.written.is_full())
    }

    /// Whether other regions have to forget what the client's transactions write.
    pub(crate) fn has_regions(&self, client: ClientId) -> bool {
        self.destination_of(client).route.as_ref().is_some_and(|it| it.has_regions())
    }

    /// Notes what a queued command will write in the primary region.
    pub(crate) fn note_written(
        &mut self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) {
        if !self.has_regions(client) || command.access.reads() {
            return;
        }
        let mut keys = std::mem::take(&mut self.scratch.keys);
        keys.clear();
        // What is wrong with its keys is for the server to say: it writes none of them then.
        if command.keys(bytes, args, &mut keys).is_ok()
            && let Some(transaction) = self.clients[client].modes.transaction()
        {
            let before = transaction.size();
            let effects = &mut transaction.exec_effects;
            let database = effects.database().and_then(Selected::number);
            keys.iter().for_each(|key| effects.written.add(database, key.of(bytes)));
            self.bufs.charge(transaction.size() - before);
        }
        self.scratch.keys = keys;
    }

    /// EXEC is about to be sent.
    fn begin_writes(&mut self, client: ClientId, exec_effects: &mut ExecEffects) {
        self.bufs.discharge(exec_effects.size());
        for (database, key) in std::mem::take(&mut exec_effects.written).into_keys() {
            let database = match database {
                Some(database) => Some(database).into(),
                None => self.clients[client].session.database,
            };
            let writes = self.begin_region_writes((client, database), &deletion(&key), &PLAIN);
            exec_effects.writes_size += writes.iter().map(RegionWrite::size).sum::<usize>();
            exec_effects.writes.extend(writes);
        }
        self.bufs.charge(exec_effects.size());
    }

    /// Sends EXEC for a transaction with effects, the last request of its lease.
    pub(crate) fn send_affecting(
        &mut self,
        client: ClientId,
        lane: LaneId,
        exec: &[u8],
        mut exec_effects: ExecEffects,
    ) -> Plan {
        let selects = exec_effects.database().is_some();
        self.begin_writes(client, &mut exec_effects);
        let request = self.new_request(client);
        self.requests[request].due = Due::Elements;
        self.watch_reply(request, Box::new(exec_effects), None);
        self.send(lane, request, Payload::Bytes(exec));
        if selects {
            let state = &self.lanes[lane];
            let variant =
                self.backends[self.backend_of(client)].params_set[usize::from(state.variant)];
            let mut text = Vec::new();
            write_select(variant.database.into(), &mut text);
            self.ask_with(lane, Own::Demand { lane }, Due::OK, &text);
        }
        self.release(lane);
        Plan::Done
    }
}

fn write_select(database: i64, out: &mut Vec<u8>) {
    encode::write_command(out, &[b"SELECT", database.to_string().as_bytes()]);
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut text = Vec::new();
    encode::write_command(&mut text, words);
    text
}

/// Writes EXEC's reply with an error in the place of one command's.
pub(crate) fn write_with_error(reply: &[u8], place: u32, error: &str, out: &mut Vec<u8>) {
    let Some(all) = Aggregate::of(reply) else { return out.extend_from_slice(reply) };
    out.extend_from_slice(&reply[..reply.len() - all.elements.len()]);
    for (element, at) in all.zip(0..) {
        match at == place {
            true => encode::write_error(out, error.as_bytes()),
            false => out.extend_from_slice(element),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_executed_has_written_nothing() {
        for reply in ["*-1\r\n", "_\r\n", "-EXECABORT x\r\n", "*0\r\n", "+OK\r\n", "", "*"] {
            assert!(!has_executed(reply.as_bytes()), "{reply}");
        }
        assert!(has_executed(b"*1\r\n+OK\r\n") && has_executed(b"*12"));
    }

    fn after(reply: &str) -> Option<u32> {
        let at = |place, database| Effect { place, kind: Kind::Select(Some(database).into()) };
        let effects = vec![at(0, 5), at(2, 7), at(3, 9)];
        let exec_effects = ExecEffects { effects, ..ExecEffects::default() };
        let last = exec_effects.done(reply.as_bytes()).last();
        last.and_then(|effect| effect.kind.database()?.number())
    }

    #[test]
    fn the_last_one_done_counts() {
        assert_eq!(after("*5\r\n+OK\r\n$1\r\nx\r\n+OK\r\n+OK\r\n+OK\r\n"), Some(9));
        assert_eq!(after("*5\r\n+OK\r\n*2\r\n:1\r\n:2\r\n+OK\r\n-ERR x\r\n+OK\r\n"), Some(7));
        assert_eq!(after("*4\r\n+OK\r\n+OK\r\n-ERR x\r\n-ERR x\r\n"), Some(5));
        assert_eq!(after("*4\r\n-ERR x\r\n+OK\r\n-ERR x\r\n-ERR x\r\n"), None);
    }

    #[test]
    fn what_was_not_executed_has_changed_nothing() {
        for reply in ["*-1\r\n", "_\r\n", "-EXECABORT x\r\n", "*0\r\n", "+OK\r\n", ""] {
            assert_eq!(after(reply), None);
        }
    }

    #[test]
    fn pauses_add_up_until_they_are_ended() {
        let pauses = |kinds: &[Kind]| {
            Pauses::of((0..).zip(kinds).map(|(place, &kind)| Effect { place, kind }))
        };
        let pause = |millis, writes_only| Kind::Pause { millis, writes_only };
        let select = Kind::Select(None.into());
        assert_eq!(pauses(&[select]), None);
        let two = [pause(30, true), pause(20, false), select];
        let expected = Pauses { place: 1, unpause: false, pause: Some((30, false)) };
        assert_eq!(pauses(&two), Some(expected));
        let ended = [pause(30, false), Kind::Unpause];
        assert_eq!(pauses(&ended), Some(Pauses { place: 1, unpause: true, pause: None }));
        let begun = [pause(30, false), Kind::Unpause, pause(20, true)];
        let expected = Pauses { place: 2, unpause: true, pause: Some((20, true)) };
        assert_eq!(pauses(&begun), Some(expected));
    }

    #[test]
    fn one_reply_of_many_becomes_an_error() {
        let written = |reply: &[u8], place| {
            let mut out = Vec::new();
            write_with_error(reply, place, "ERR x", &mut out);
            out
        };
        let reply = b"*3\r\n+OK\r\n*1\r\n:1\r\n+OK\r\n";
        assert_eq!(written(reply, 2), b"*3\r\n+OK\r\n*1\r\n:1\r\n-ERR x\r\n");
        assert_eq!(written(b"-ERR y\r\n", 0), b"-ERR y\r\n");
    }
}
