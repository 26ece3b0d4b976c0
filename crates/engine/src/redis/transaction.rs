//! MULTI, EXEC and what belongs to them.
//!
//! MULTI is answered here. The first queued command with a key says which server the transaction is
//! for: a lane is leased, MULTI goes ahead, and from there on the server queues and answers. Commands
//! without keys that come before are checked here, and sent then. WATCH leases at once, and until
//! the watch is over all that the client asks of that server goes by the lease.
//!
//! The lease ends when the last command of the transaction is sent. What follows waits for its
//! answer, since it goes by other lanes again.

use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{
    Access, Command, Fan, Local, Lookup, NO_CLUSTER_TEXT, Rule, SessionRule,
};
use cashew_protocol::resp::encode;
use cashew_protocol::{Span, redis as table};

use crate::base::id::{BackendId, ClientId, LaneId, ServerId};
use crate::redis::cross_shard_copy::{remedy, shown};
use crate::redis::pubsub::topics::Kind;
use crate::redis::script_replay::What;
use crate::redis::script_replay::queued::called_by;

use crate::base::failure::{Failure, NamedFailure};
use crate::downstream::receive::Plan;
use crate::downstream::session::NO_DATABASE;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::redis::client_pause::may_write;
use crate::redis::cluster::{HeldExec, SentBack};
use crate::redis::exec_effects::ExecEffects;
use crate::request::{Due, Own};
use crate::upstream::exclusive::{Lease, UNSENT_MAX};
use crate::upstream::lane::Lane;
use crate::upstream::redirect::ASKING;

/// Commands without keys that are kept until a key tells the server: bytes of all of them.
pub(crate) const EARLY_SIZE_MAX: usize = 64 * 1024;

/// What monitors are told of one transaction.
const OVERHEARD_SIZE_MAX: usize = 64 * 1024;

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
pub(crate) const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";
const DISCARD: &[u8] = b"*1\r\n$7\r\nDISCARD\r\n";
pub(crate) const UNWATCH: &[u8] = b"*1\r\n$7\r\nUNWATCH\r\n";
const QUEUED: &[u8] = b"+QUEUED\r\n";
const OK: &[u8] = b"+OK\r\n";
const TOO_MANY_KEYS: &str =
    "ERR a transaction writes too many keys for this gateway to have other regions forget them";
const OTHER_DATABASE: &str = "ERR a transaction may not write keys of another database here: other regions could \
                              not be told to forget them";

/// Whether it may write a key of another database than the selected one.
fn writes_other_database(command: &Command, bytes: &[u8], args: &[Span]) -> bool {
    match command.name {
        "move" => true,
        "copy" => args.iter().skip(3).any(|arg| arg.of(bytes).eq_ignore_ascii_case(b"db")),
        _ => false,
    }
}

/// What a client has begun with WATCH or MULTI.
pub(crate) struct Transaction {
    /// MULTI was said: commands are queued.
    is_open: bool,
    /// The server was told so, or is about to be.
    is_begun: bool,
    has_watched: bool,
    /// Some command in it may write.
    is_writing: bool,
    /// What EXEC says has to be sealed.
    is_sealed: bool,
    /// Commands that were taken for queued.
    queued: u32,
    /// The lease, or [`LaneId::NONE`].
    pub(crate) lane: LaneId,
    /// Queued commands without keys while the server is not known, back to back, and where each
    /// ends.
    early: Vec<u8>,
    early_ends: Vec<u32>,
    /// What these call, each once.
    early_calls: Vec<What>,
    /// The server has been given what the command at hand and those before it call, as far as that
    /// could be done.
    is_provided: bool,
    /// What monitors are to be told of the queued commands when they are executed, a line each behind
    /// the database, and of how many they will not be told.
    observed: Vec<u8>,
    unheard: u32,
    pub(crate) exec_effects: ExecEffects,
    fate: Fate,
    /// Of a cluster.
    held: Held,
}

/// What there is to know of a transaction of a cluster. It is kept here until EXEC, and sent as a whole, so that it can
/// go to another node if its slot has moved.
#[derive(Clone, Copy, Default)]
struct Held {
    /// That of its keys.
    slot: Option<u16>,
    sent_back: Option<SentBack>,
}

impl Held {
    /// A node where it is sent behind ASKING.
    fn ask_at(self) -> Option<ServerId> {
        self.sent_back.and_then(|it| it.ask_at)
    }
}

/// What EXEC will come to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Good,
    /// A command was refused while it was queued.
    Refused,
    /// Watching ended before its time: something may have changed meanwhile.
    Unwatched,
    /// Keys may live on other servers now than those that commands were queued at.
    Moved,
    /// The connection with the queued commands is gone.
    Lost(NamedFailure),
}

impl Transaction {
    fn new() -> Self {
        Self {
            is_open: false,
            is_begun: false,
            has_watched: false,
            is_writing: false,
            is_sealed: false,
            queued: 0,
            lane: LaneId::NONE,
            early: Vec::new(),
            early_ends: Vec::new(),
            early_calls: Vec::new(),
            is_provided: false,
            observed: Vec::new(),
            unheard: 0,
            exec_effects: ExecEffects::default(),
            fate: Fate::Good,
            held: Held::default(),
        }
    }

    /// How it was sent back the last time.
    pub(crate) fn sent_back(&self) -> Option<SentBack> {
        self.held.sent_back
    }

    /// Whether WATCH is a part of it.
    pub(crate) fn has_watched(&self) -> bool {
        self.has_watched
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// How many commands are in it; `None` before MULTI.
    pub(crate) fn queued(&self) -> Option<u32> {
        self.is_open.then_some(self.queued)
    }

    /// Bytes allocated.
    pub(crate) fn size(&self) -> usize {
        let early = self.early_size() + self.observed.capacity();
        size_of::<Self>() + early + self.exec_effects.size()
    }

    fn early_size(&self) -> usize {
        let ends = self.early_ends.capacity() * size_of::<u32>();
        self.early.capacity() + ends + self.early_calls.capacity() * size_of::<What>()
    }

    /// A request that will be executed in this database.
    pub(crate) fn observe(&mut self, database: u32, line: &[u8]) {
        if self.observed.len() + line.len() > OVERHEARD_SIZE_MAX {
            self.unheard += 1;
            return;
        }
        self.observed.extend_from_slice(database.to_string().as_bytes());
        self.observed.push(b' ');
        self.observed.extend_from_slice(line);
        self.observed.push(b'\n');
    }

    pub(crate) fn take_observed(&mut self) -> (Vec<u8>, u32) {
        (std::mem::take(&mut self.observed), std::mem::take(&mut self.unheard))
    }
}

impl Engine {
    /// Whether what the client asks is queued.
    pub(crate) fn is_queueing(&self, client: ClientId) -> bool {
        self.clients[client]
            .modes
            .transaction
            .as_ref()
            .is_some_and(|transaction| transaction.is_open)
    }

    /// The client's lease, if it has one of this server.
    pub(crate) fn leased(&self, client: ClientId, server: ServerId) -> Option<LaneId> {
        let lane = self.clients[client].modes.transaction.as_ref()?.lane;
        if lane == LaneId::NONE {
            return None;
        }
        let Lane { server: of, backend, .. } = self.lanes[lane];
        (of == server && backend == self.backend_of(client)).then_some(lane)
    }

    /// What the client may touch where it would only read: while it has a transaction it asks the
    /// server that has it.
    pub(crate) fn access_of(&self, client: ClientId, access: Access) -> Access {
        match self.clients[client].modes.transaction {
            Some(_) => Access::Write,
            None => access,
        }
    }

    fn transaction(&mut self, client: ClientId) -> &mut Transaction {
        let slot = &mut self.clients[client];
        slot.leave_fast_path();
        slot.modes.enter().transaction.get_or_insert_with(|| {
            self.bufs.charge(size_of::<Transaction>());
            Box::new(Transaction::new())
        })
    }

    /// Takes the client out of its transaction; says which lane it has leased for it.
    fn close_transaction(&mut self, client: ClientId) -> LaneId {
        let Some(transaction) = self.clients[client].modes.end_transaction() else {
            return LaneId::NONE;
        };
        self.bufs.discharge(transaction.size());
        self.update_off_fast_path(client);
        // By other lanes nothing may overtake what is on its way there.
        self.clients[client].fenced = true;
        transaction.lane
    }

    /// Commands of transactions outside of MULTI.
    pub(crate) fn session_redis(
        &mut self,
        client: ClientId,
        rule: SessionRule,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        match rule {
            SessionRule::Multi => {
                self.transaction(client).is_open = true;
                self.say(client, OK)
            }
            SessionRule::Exec => self.reply_error(client, "ERR EXEC without MULTI"),
            SessionRule::Discard => self.reply_error(client, "ERR DISCARD without MULTI"),
            SessionRule::Watch => self.watch(client, command, bytes, args),
            SessionRule::Unwatch => self.unwatch(client),
            SessionRule::Reset => self.reset(client),
            SessionRule::Monitor => self.begin_monitor(client),
        }
    }

    fn watch(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        if let Some(transaction) = &self.clients[client].modes.transaction
            && transaction.fate != Fate::Good
        {
            // EXEC will do nothing in any case.
            return self.say(client, OK);
        }
        self.with_keys(client, command, bytes, args, |engine, keys, split| {
            let texts = keys.iter().map(|key| key.of(bytes));
            let server = match engine.place_keys(client, texts, Access::Write, split) {
                Ok(Some(server)) => server,
                Ok(None) => {
                    let text = engine.crossing(client, command, bytes, keys, split);
                    return engine.reply_error(client, &text);
                }
                Err(failure) => return engine.fail(client, failure),
            };
            let key = keys.first().map_or(&b""[..], |key| key.of(bytes));
            let sent_back = engine.clients[client].modes.sent_back;
            let ask_at = sent_back.and_then(|it| it.ask_at);
            let server = ask_at.unwrap_or(server);
            let lane = match engine.clients[client].modes.transaction.as_ref().map(|t| t.lane) {
                Some(lane) if lane != LaneId::NONE => {
                    if engine.leased(client, server).is_none() {
                        let text = engine.other_server(client, command, key, server, lane);
                        return engine.reply_error(client, &text);
                    }
                    lane
                }
                _ => {
                    if engine.clients[client].requests > 0 {
                        return Plan::Wait;
                    }
                    match engine.lease(client, server) {
                        Lease::Lane(lane) => lane,
                        other => return engine.without_lease(client, server, &other),
                    }
                }
            };
            engine.align(client, lane);
            let slot = engine.backends[engine.backend_of(client)].topology.slot(key);
            let transaction = engine.transaction(client);
            let is_first = !transaction.has_watched;
            (transaction.lane, transaction.has_watched) = (lane, true);
            transaction.held.slot = transaction.held.slot.or(slot);
            transaction.held.sent_back = transaction.held.sent_back.or(sent_back);
            if ask_at.is_some() {
                engine.ask_with(lane, Own::Whatever, Due::OK, ASKING);
            }
            engine.clients[client].modes.take_sent_back();
            let plan = engine.forward_due(client, lane, Due::OK);
            if let Plan::Forward { request, .. } = plan
                && slot.is_some()
            {
                engine.clients[client].fenced = true;
                engine.follow_watch(request, lane, (is_first, sent_back), bytes);
            }
            plan
        })
    }

    fn unwatch(&mut self, client: ClientId) -> Plan {
        match self.close_transaction(client) {
            LaneId::NONE => self.say(client, OK),
            lane => self.send_last(client, lane, UNWATCH, Due::OK),
        }
    }

    fn forward_due(&mut self, client: ClientId, lane: LaneId, due: Due) -> Plan {
        let request = self.new_request(client);
        let slot = &mut self.requests[request];
        (slot.expect, slot.due) = (Expect::Line, due);
        Plan::Forward { lane, request }
    }

    /// Sends the last request of a lease.
    fn send_last(&mut self, client: ClientId, lane: LaneId, text: &[u8], due: Due) -> Plan {
        let request = self.new_request(client);
        self.requests[request].due = due;
        self.send(lane, request, Payload::Bytes(text));
        self.release(lane);
        Plan::Done
    }

    /// RESET: the connection is as if it had just been made.
    fn reset(&mut self, client: ClientId) -> Plan {
        let must_wait = self.clients[client].requests > 0
            || self.leave_topics(client)
            || self.must_hear_first(client);
        if must_wait {
            return Plan::Wait;
        }
        self.end_transaction(client);
        self.reset_session(client);
        self.say(client, b"+RESET\r\n")
    }

    // In MULTI.

    /// A request in MULTI.
    pub(crate) fn queue_redis(
        &mut self,
        client: ClientId,
        lookup: Lookup,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let before = self.transaction(client).queued;
        let plan = self.queue_looked_up(client, lookup, bytes, args);
        if let Lookup::Found(command) = lookup
            && self.queued(client) > Some(before)
        {
            self.note_queued(client, command, bytes, args);
            self.note_written(client, command, bytes, args);
        }
        plan
    }

    /// How many commands the client's transaction has; `None` where nothing is queued.
    fn queued(&self, client: ClientId) -> Option<u32> {
        self.clients[client].modes.transaction.as_ref().and_then(|transaction| transaction.queued())
    }

    fn queue_looked_up(
        &mut self,
        client: ClientId,
        lookup: Lookup,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let command = match lookup {
            Lookup::Found(command) => command,
            Lookup::UnknownCommand => {
                return self.refuse_with(client, |out| {
                    table::unknown_command_error(out, bytes, args);
                });
            }
            Lookup::UnknownSubcommand(command) => {
                return self.refuse_with(client, |out| {
                    table::unknown_subcommand_error(out, command, bytes, args);
                });
            }
            Lookup::WrongArity(command) => {
                return self.refuse_with(client, |out| table::wrong_arity_error(out, command));
            }
        };
        if command.facts.flags.split(' ').any(|flag| flag == "no_multi") {
            return self.refuse_queued(client, "ERR Command not allowed inside a transaction");
        }
        if !command.access.reads() && self.has_written_most(client) && is_by_keys(command) {
            return self.refuse_queued(client, TOO_MANY_KEYS);
        }
        if writes_other_database(command, bytes, args) && self.has_regions(client) {
            return self.refuse_queued(client, OTHER_DATABASE);
        }
        if may_write(command) && !self.only_reads(client, command, bytes, args) {
            self.transaction(client).is_writing = true;
        }
        if command.is_sealed() {
            self.transaction(client).is_sealed = true;
        }
        match command.rule {
            Rule::Session(SessionRule::Exec) => self.exec(client),
            Rule::Session(SessionRule::Discard) => self.discard(client),
            Rule::Session(SessionRule::Multi) => {
                self.reply_error(client, "ERR MULTI calls can not be nested")
            }
            Rule::Session(SessionRule::Watch) => {
                self.reply_error(client, "ERR WATCH inside MULTI is not allowed")
            }
            Rule::Session(SessionRule::Reset) => self.reset(client),
            Rule::Local(Local::Quit) => self.quit(client),
            Rule::Refuse(_) | Rule::Fan(_) if command.has_flag("no_multi") => {
                self.refuse_queued(client, "ERR Command not allowed inside a transaction")
            }
            Rule::Local(Local::Select) => {
                let index = args.get(1).map_or(&b""[..], |arg| arg.of(bytes));
                self.queue_select(client, index, bytes)
            }
            Rule::Local(Local::Client)
                if matches!(command.name, "client|pause" | "client|unpause") =>
            {
                self.queue_pause(client, command, bytes, args)
            }
            Rule::Session(SessionRule::Unwatch)
            | Rule::Fan(Fan::AnyServer)
            | Rule::Local(Local::Ping | Local::Echo | Local::Command) => {
                self.queue_anywhere(client, bytes, None)
            }
            Rule::Forward | Rule::Single(_)
                if command.names_database()
                    && self.names_other_database(client, command, bytes, args) =>
            {
                self.refuse_queued(client, NO_DATABASE)
            }
            Rule::Forward | Rule::Split(_) | Rule::Block => {
                self.queue_by_keys(client, command, bytes, args)
            }
            Rule::Publish => {
                let channel = args[1].of(bytes);
                let backend = self.backend_of(client);
                let is_sharded = command.name == "spublish";
                if !is_sharded && self.backends[backend].topology.has_slots() {
                    return self.queue_anywhere(client, bytes, None);
                }
                let kind = if is_sharded { Kind::Shard } else { Kind::Channel };
                match self.channel_server(backend, kind, channel) {
                    Some(server) => self.queue_at(client, command, server, channel, bytes, None),
                    None => self.refuse_for(client, Failure::NoServer),
                }
            }
            Rule::Fan(_) | Rule::Single(_) => {
                // Its cursors are the gateway's, and nobody reads them within an EXEC.
                let is_walk =
                    command.rule == Rule::Fan(Fan::Scan) && self.walks_by_own_cursors(client);
                if self.is_single(client) && !is_walk {
                    return self.queue_anywhere(client, bytes, None);
                }
                let name = name_of(command);
                if self.is_single(client) {
                    return self.refuse_queued(
                        client,
                        &format!(
                            "ERR {name} in a transaction would have a cursor that means nothing once \
                             another server takes the writes; call it outside of MULTI"
                        ),
                    );
                }
                self.refuse_queued(
                    client,
                    &format!(
                        "ERR {name} in a transaction would reach one of the servers behind this \
                         gateway only; call it outside of MULTI"
                    ),
                )
            }
            Rule::Refuse(text) => self.refuse_queued(client, text),
            Rule::Local(Local::Cluster) if !self.poses(client) => {
                self.refuse_queued(client, NO_CLUSTER_TEXT)
            }
            Rule::Unsupported => {
                self.refuse_with(client, |out| table::unknown_command_error(out, bytes, args))
            }
            Rule::Session(SessionRule::Monitor) | Rule::Subscribe(_) | Rule::Local(_) => {
                let name = name_of(command);
                self.refuse_queued(
                    client,
                    &format!(
                        "ERR {name} is answered by this gateway, which cannot be done in the \
                         middle of a transaction; call it outside of MULTI"
                    ),
                )
            }
        }
    }

    fn queue_by_keys(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let mut keys = std::mem::take(&mut self.scratch.keys);
        let mut split = std::mem::take(&mut self.scratch.split);
        keys.clear();
        // What is wrong with its keys is for the server to say, when it executes the command.
        let are_found = command.keys(bytes, args, &mut keys).is_ok() && !keys.is_empty();
        let call = called_by(command, bytes, args);
        let plan = if are_found {
            let texts = keys.iter().map(|key| key.of(bytes));
            match self.place_keys(client, texts, Access::Write, &mut split) {
                Ok(Some(server)) => {
                    match self.stray_pattern(client, command, server, bytes, args) {
                        Some(text) => self.refuse_queued(client, &text),
                        None => {
                            let key = keys[0].of(bytes);
                            self.queue_at(client, command, server, key, bytes, call)
                        }
                    }
                }
                Ok(None) => {
                    let text = self.crossing(client, command, bytes, &keys, &split);
                    self.refuse_queued(client, &text)
                }
                Err(failure) => self.refuse_for(client, failure),
            }
        } else {
            self.queue_anywhere(client, bytes, call)
        };
        self.scratch.keys = keys;
        self.scratch.split = split;
        plan
    }

    /// Queues a command for the server that has its keys, the first of which is `key`.
    fn queue_at(
        &mut self,
        client: ClientId,
        command: &Command,
        server: ServerId,
        key: &[u8],
        bytes: &[u8],
        call: Option<What>,
    ) -> Plan {
        let transaction = self.transaction(client);
        let lane = transaction.lane;
        match transaction.fate.clone() {
            Fate::Lost(failure) => return self.refuse_for(client, failure),
            Fate::Unwatched | Fate::Moved => return self.say(client, QUEUED),
            // It is for no server any more.
            Fate::Refused if lane == LaneId::NONE => return self.say(client, QUEUED),
            Fate::Good | Fate::Refused => {}
        }
        let slot = self.backends[self.backend_of(client)].topology.slot(key);
        if let Some(slot) = slot {
            let transaction = self.transaction(client);
            if *transaction.held.slot.get_or_insert(slot) != slot {
                let text = other_slot(command, key);
                return self.refuse_queued(client, &text);
            }
            if !transaction.is_begun && transaction.early.len() + bytes.len() <= EARLY_SIZE_MAX {
                return self.keep_queued(client, bytes, call);
            }
        } else if lane != LaneId::NONE && self.leased(client, server).is_none() {
            let text = self.other_server(client, command, key, server, lane);
            return self.refuse_queued(client, &text);
        }
        match self.enlist(client, server, call) {
            Ok(lane) => self.queue_on(client, lane, bytes),
            Err(plan) => plan,
        }
    }

    /// Queues a command that any server may execute.
    pub(crate) fn queue_anywhere(
        &mut self,
        client: ClientId,
        bytes: &[u8],
        call: Option<What>,
    ) -> Plan {
        let transaction = self.transaction(client);
        let lane = transaction.lane;
        match transaction.fate.clone() {
            Fate::Lost(failure) => return self.refuse_for(client, failure),
            Fate::Unwatched | Fate::Moved => return self.say(client, QUEUED),
            Fate::Refused if lane == LaneId::NONE => return self.say(client, QUEUED),
            Fate::Good | Fate::Refused => {}
        }
        let has_slots = self.backends[self.backend_of(client)].topology.has_slots();
        let transaction = self.transaction(client);
        if lane != LaneId::NONE && (transaction.is_begun || !has_slots) {
            let server = self.lane(lane).server;
            return match self.enlist(client, server, call) {
                Ok(lane) => self.queue_on(client, lane, bytes),
                Err(plan) => plan,
            };
        }
        let Transaction { early, held, .. } = self.transaction(client);
        let (slot, size) = (held.slot, early.len() + bytes.len());
        if size > EARLY_SIZE_MAX {
            // In front of a cluster it is known where it goes once there was a key.
            let topology = &self.backends[self.backend_of(client)].topology;
            if let Some(server) = slot.and_then(|slot| topology.owner(slot)) {
                return match self.enlist(client, server, call) {
                    Ok(lane) => self.queue_on(client, lane, bytes),
                    Err(plan) => plan,
                };
            }
            return self.refuse_queued(
                client,
                "ERR commands without keys at the start of a transaction are too large for this \
                 gateway; begin with a command that has a key",
            );
        }
        self.keep_queued(client, bytes, call)
    }

    /// Queues a command here.
    fn keep_queued(&mut self, client: ClientId, bytes: &[u8], call: Option<What>) -> Plan {
        let transaction = self.transaction(client);
        let before = transaction.size();
        transaction.early.extend_from_slice(bytes);
        let end = transaction.early.len() as u32;
        transaction.early_ends.push(end);
        if let Some(call) = call
            && !transaction.early_calls.contains(&call)
        {
            transaction.early_calls.push(call);
        }
        let grown = transaction.size() - before;
        transaction.queued += 1;
        self.bufs.charge(grown);
        self.say(client, QUEUED)
    }

    fn queue_on(&mut self, client: ClientId, lane: LaneId, bytes: &[u8]) -> Plan {
        let waits = self.lane(lane).output.len();
        if waits > 0 && waits + bytes.len() as u64 > UNSENT_MAX && self.clients[client].requests > 0
        {
            return Plan::Wait;
        }
        self.transaction(client).queued += 1;
        self.forward_due(client, lane, Due::QUEUED)
    }

    /// Makes the server know of the transaction, all that was queued so far included, and gives it
    /// what it is about to call; returns the lane.
    fn enlist(
        &mut self,
        client: ClientId,
        server: ServerId,
        call: Option<What>,
    ) -> Result<LaneId, Plan> {
        let transaction = self.transaction(client);
        let has_calls = call.is_some() || !transaction.early_calls.is_empty();
        if has_calls && !transaction.is_provided {
            let mut calls = transaction.early_calls.clone();
            calls.extend(call.filter(|call| !calls.contains(call)));
            match self.provide(client, server, &calls) {
                Ok(false) => {}
                Ok(true) => {
                    self.transaction(client).is_provided = true;
                    return Err(Plan::Wait);
                }
                Err(failure) => {
                    let failure = self.backends[self.backend_of(client)].named(server, failure);
                    return Err(self.refuse_for(client, failure));
                }
            }
        }
        let transaction = self.transaction(client);
        let mut lane = transaction.lane;
        if lane == LaneId::NONE {
            if self.clients[client].requests > 0 {
                return Err(Plan::Wait);
            }
            lane = match self.lease(client, server) {
                Lease::Lane(lane) => lane,
                other => {
                    let plan = self.without_lease(client, server, &other);
                    if let Plan::Done = plan {
                        self.doom(client, Fate::Refused);
                    }
                    return Err(plan);
                }
            };
            self.transaction(client).lane = lane;
        } else if self.clients[client].requests > 0
            && !self.transaction(client).is_begun
            && self.backends[self.backend_of(client)].topology.has_slots()
        {
            // What was asked since WATCH may be on its way to another node, and be sent here from there.
            return Err(Plan::Wait);
        }
        let transaction = self.transaction(client);
        transaction.is_provided = false;
        if !std::mem::replace(&mut transaction.is_begun, true) {
            let size = transaction.early_size();
            let early = std::mem::take(&mut transaction.early);
            let ends = std::mem::take(&mut transaction.early_ends);
            transaction.early_calls = Vec::new();
            self.align(client, lane);
            self.lanes[lane].refused_part = None;
            let backend = self.backend_of(client);
            let own = match self.backends[backend].topology.has_slots() {
                true => Own::Queued { lane },
                false => Own::Whatever,
            };
            if self.transaction(client).held.ask_at().is_some() {
                self.ask_with(lane, Own::Whatever, Due::OK, ASKING);
            }
            self.ask_with(lane, Own::Demand { lane }, Due::OK, MULTI);
            let mut start = 0;
            for &end in &ends {
                self.ask_with(lane, own, Due::QUEUED, &early[start..end as usize]);
                start = end as usize;
            }
            self.bufs.discharge(size);
        }
        Ok(lane)
    }

    fn exec(&mut self, client: ClientId) -> Plan {
        let transaction = self.transaction(client);
        match transaction.fate {
            Fate::Good => {}
            Fate::Refused | Fate::Lost(_) => {
                self.end_transaction(client);
                return self.say(
                    client,
                    b"-EXECABORT Transaction discarded because of previous errors.\r\n",
                );
            }
            Fate::Unwatched => {
                self.end_transaction(client);
                return self.reply_nil_array(client);
            }
            Fate::Moved => {
                self.end_transaction(client);
                return self.say(
                    client,
                    b"-EXECABORT Transaction discarded because its keys may have moved to other \
                      servers meanwhile.\r\n",
                );
            }
        }
        if transaction.lane == LaneId::NONE && transaction.early.is_empty() {
            self.end_transaction(client);
            return self.say(client, b"*0\r\n");
        }
        let held = transaction.held;
        let server = match (transaction.lane, held.slot) {
            (LaneId::NONE, None) => self.any_server(client, Access::Write),
            (LaneId::NONE, Some(slot)) => {
                let owner = self.backends[self.backend_of(client)].topology.owner(slot);
                held.ask_at().or(owner)
            }
            (lane, _) => Some(self.lane(lane).server),
        };
        let again = self.again_of(client);
        let lane = match server {
            Some(server) => match self.enlist(client, server, None) {
                Ok(lane) => lane,
                Err(Plan::Wait) => return Plan::Wait,
                Err(plan) => {
                    self.end_transaction(client);
                    return plan;
                }
            },
            None => {
                self.end_transaction(client);
                return self.fail(client, Failure::NoServer);
            }
        };
        self.observe_queued(client);
        let exec_effects = std::mem::take(&mut self.transaction(client).exec_effects);
        let is_sealed = self.transaction(client).is_sealed;
        self.close_transaction(client);
        let plan = match exec_effects.is_empty() {
            true => match again {
                Some(again) => self.send_held(client, lane, again),
                None => self.send_last(client, lane, EXEC, Due::Elements),
            },
            false => self.send_affecting(client, lane, EXEC, exec_effects),
        };
        if is_sealed {
            // The lane is nobody else's until this is answered, too.
            self.seal(lane);
        }
        plan
    }

    /// The client's transaction as it will be if a node of a cluster sends it back. `None` where it is not here as a
    /// whole.
    fn again_of(&mut self, client: ClientId) -> Option<Box<Transaction>> {
        let transaction = self.transaction(client);
        let held = transaction.held;
        if held.slot.is_none() || transaction.is_begun {
            return None;
        }
        let again = Transaction {
            is_open: true,
            has_watched: transaction.has_watched,
            is_writing: transaction.is_writing,
            is_sealed: transaction.is_sealed,
            queued: transaction.queued,
            early: transaction.early.clone(),
            early_ends: transaction.early_ends.clone(),
            early_calls: transaction.early_calls.clone(),
            held,
            ..Transaction::new()
        };
        Some(Box::new(again))
    }

    /// Sends EXEC of a transaction that may be sent back.
    fn send_held(&mut self, client: ClientId, lane: LaneId, again: Box<Transaction>) -> Plan {
        let request = self.new_request(client);
        self.requests[request].due = Due::Elements;
        self.watch_reply(request, Box::new(HeldExec::new(lane, again)), None);
        self.send(lane, request, Payload::Bytes(EXEC));
        self.release(lane);
        Plan::Done
    }

    /// A transaction is what it was before EXEC, which is about to be asked anew.
    pub(crate) fn restore(
        &mut self,
        client: ClientId,
        mut again: Box<Transaction>,
        sent_back: SentBack,
    ) {
        again.held.sent_back = Some(sent_back);
        self.bufs.charge(again.size());
        self.clients[client].modes.enter().transaction = Some(again);
        self.update_off_fast_path(client);
    }

    /// Whether what the client watches is watched on this lane, and MULTI was not said there.
    pub(crate) fn watches_on(&self, client: ClientId, lane: LaneId) -> bool {
        let transaction = match client {
            ClientId::NONE => None,
            client => self.clients[client].modes.transaction.as_deref(),
        };
        transaction.is_some_and(|it| it.lane == lane && !it.is_begun)
    }

    /// What the client watches may have changed.
    pub(crate) fn lose_watch(&mut self, client: ClientId) {
        self.doom(client, Fate::Unwatched);
    }

    /// WATCH was not done: the client watches nothing.
    pub(crate) fn forget_watch(&mut self, client: ClientId) {
        let lane = self.close_transaction(client);
        if lane != LaneId::NONE {
            self.clean_up(lane, false);
        }
    }

    fn discard(&mut self, client: ClientId) -> Plan {
        let transaction = self.transaction(client);
        if transaction.is_begun && transaction.lane != LaneId::NONE {
            let lane = self.close_transaction(client);
            return self.send_last(client, lane, DISCARD, Due::OK);
        }
        self.end_transaction(client);
        self.say(client, OK)
    }

    // Ends that the client has not asked the server for.

    /// Forgets the client's transaction, on its server too.
    pub(crate) fn end_transaction(&mut self, client: ClientId) {
        let is_begun = self.clients[client].modes.transaction.as_ref().is_some_and(|t| t.is_begun);
        let lane = self.close_transaction(client);
        if lane != LaneId::NONE {
            self.clean_up(lane, is_begun);
        }
    }

    /// Gives a lease back as it was taken.
    pub(crate) fn clean_up(&mut self, lane: LaneId, is_begun: bool) {
        // What its client has asked is still answered.
        let text = if is_begun { DISCARD } else { UNWATCH };
        self.ask_with(lane, Own::Demand { lane }, Due::OK, text);
        self.release(lane);
    }

    /// The client is gone, and its wait on that lane.
    pub(crate) fn drop_transaction(&mut self, transaction: Transaction, waited_on: LaneId) {
        self.bufs.discharge(transaction.size());
        // It was given up already where the client waited.
        if transaction.lane == LaneId::NONE || transaction.lane == waited_on {
            return;
        }
        match self.lane(transaction.lane).has_connection() {
            true => self.clean_up(transaction.lane, transaction.is_begun),
            false => self.abandon_session(transaction.lane),
        }
    }

    /// The lease is gone.
    pub(crate) fn lose_transaction(&mut self, client: ClientId, failure: NamedFailure) {
        let Some(transaction) = self.clients[client].modes.transaction() else { return };
        transaction.lane = LaneId::NONE;
        let fate = match transaction.is_open {
            // Clients know what to do when what they watch has changed.
            _ if matches!(failure.why, Failure::Unused | Failure::Held)
                && transaction.has_watched =>
            {
                Fate::Unwatched
            }
            false => Fate::Unwatched,
            true => Fate::Lost(failure),
        };
        self.doom(client, fate);
    }

    /// Keys of these pools may live on other servers from now on: what was queued or watched where
    /// they lived is worth nothing, and who waits does so elsewhere.
    pub(crate) fn invalidate_leases(&mut self, pools: impl Fn(BackendId) -> bool) {
        for backend in self.backends.ids().filter(|&backend| pools(backend)) {
            for server in self.backends[backend].servers.ids() {
                self.dissolve_line(backend, server);
            }
        }
        for client in self.clients.indices().collect::<Vec<ClientId>>() {
            let conn = self.client_conn(client);
            let state = &self.clients[client];
            if let Some(blocking) = &state.modes.blocking
                && pools(self.backend_of(client))
                && !blocking.is_withdrawn
                && !self.requests[blocking.request].has_begun()
            {
                // Its server could not be told.
                self.break_session(blocking.lane, Failure::Removed);
                if !self.clients.is_current(client, conn.generation()) {
                    continue;
                }
            }
            let backend = self.transaction_backend(client);
            let is_concerned = pools(backend.unwrap_or_else(|| self.backend_of(client)));
            let state = &mut self.clients[client];
            let Some(transaction) = state.modes.transaction() else { continue };
            if is_concerned && (transaction.lane != LaneId::NONE || transaction.is_begun) {
                self.abandon_transaction(client);
            }
        }
    }

    /// What the client has queued or watched is worth nothing where it goes from here on.
    pub(crate) fn abandon_transaction(&mut self, client: ClientId) {
        let Some(transaction) = self.clients[client].modes.transaction() else { return };
        let is_nothing = transaction.lane == LaneId::NONE
            && !transaction.is_begun
            && transaction.queued == 0
            && transaction.held.slot.is_none();
        if is_nothing {
            return;
        }
        let lane = std::mem::replace(&mut transaction.lane, LaneId::NONE);
        let is_begun = std::mem::replace(&mut transaction.is_begun, false);
        transaction.is_provided = false;
        let fate = if transaction.has_watched { Fate::Unwatched } else { Fate::Moved };
        self.doom(client, fate);
        if lane != LaneId::NONE {
            self.clean_up(lane, is_begun);
        }
    }

    /// The first misfortune counts.
    fn doom(&mut self, client: ClientId, fate: Fate) {
        if let Some(transaction) = self.clients[client].modes.transaction()
            && transaction.fate == Fate::Good
        {
            transaction.fate = fate;
        }
    }

    /// What is queued will not be executed.
    pub(crate) fn refuse_transaction(&mut self, client: ClientId) {
        if self.is_queueing(client) {
            self.doom(client, Fate::Refused);
        }
    }

    // Refusals.

    pub(super) fn refuse_with(
        &mut self,
        client: ClientId,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Plan {
        self.doom(client, Fate::Refused);
        self.reply_with(client, write)
    }

    pub(crate) fn refuse_queued(&mut self, client: ClientId, text: &str) -> Plan {
        self.refuse_with(client, |out| encode::write_error(out, text.as_bytes()))
    }

    fn refuse_for(&mut self, client: ClientId, failure: impl Into<NamedFailure>) -> Plan {
        self.doom(client, Fate::Refused);
        self.fail(client, failure)
    }

    fn other_server(
        &self,
        client: ClientId,
        command: &Command,
        key: &[u8],
        server: ServerId,
        lane: LaneId,
    ) -> String {
        let config = &self.backends[self.backend_of(client)].config;
        let servers = &config.servers;
        let (name, key, remedy) = (name_of(command), shown(key), remedy(config.hash_tag));
        let its = &servers[server.index()];
        let is_here = self.lane(lane).backend == self.backend_of(client);
        let first = servers.get(self.lane(lane).server.index()).filter(|_| is_here);
        let Some(first) = first.filter(|_| !config.hide_topology) else {
            return format!(
                "CROSSSLOT {name} {key} is for another server than the transaction: {remedy}"
            );
        };
        format!(
            "CROSSSLOT {name} {key} is for server {}, the transaction is for server {}: {remedy}",
            its.name, first.name
        )
    }

    fn reply_nil_array(&mut self, client: ClientId) -> Plan {
        let version = self.resp_of(client);
        self.reply_with(client, |out| encode::write_null_array(out, version))
    }
}

/// Whether what it does is about keys.
fn is_by_keys(command: &Command) -> bool {
    matches!(command.rule, Rule::Forward | Rule::Split(_) | Rule::Block | Rule::Single(_))
}

/// A key of a transaction is in another slot than those before it.
fn other_slot(command: &Command, key: &[u8]) -> String {
    let (name, key) = (name_of(command), shown(key));
    format!(
        "CROSSSLOT {name} {key} is in another slot than the transaction: keys with the same part between \
         {{ and }} share a slot"
    )
}

/// As users write it.
fn name_of(command: &Command) -> String {
    command.name.to_ascii_uppercase().replace('|', " ")
}
