//! Calls of scripts and functions that a server has lost, and gets back.
//!
//! A server that answers NOSCRIPT to EVALSHA is given the script, if it is remembered
//! ([`crate::redis::scripts`]); one that knows no such function is given those of another server, if it has
//! none of the same libraries. Then it is asked once more, and the client does not notice.
//!
//! That must not let a request overtake another of its client. So what a server has not been seen to
//! have is called alone: what its client asks next waits for the reply. A server is seen to have it as
//! long as its connections last; where it has lost it all the same, and the client has asked on, the
//! client gets the error.
//!
//! In a transaction there is no second time: see [`queued`].

pub(crate) mod queued;

use cashew_metrics::PoolCounter;
use cashew_protocol::Span;
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, encode};

use crate::base::failure::NamedFailure;
use crate::base::id::{BackendId, ClientId, LaneId, RequestId, ServerId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::flow::{Attempts, Flow, FlowContext, Step, Target, Text};
use crate::redis::keyless::{self, Walk};
use crate::redis::scripts::{Scripts, Sha, is_read_only, parse_sha};
use crate::redis::state::BackendState;
use crate::request::replay::Replay;

const NO_SCRIPT: &[u8] = b"-NOSCRIPT";
const NO_FUNCTION: &[u8] = b"-ERR Function not found";
/// How servers begin to say that a text is no script: Redis and Valkey.
const NO_TEXT: &[&[u8]] = &[
    b"-ERR Error compiling",
    b"-ERR Invalid script shebang",
    b"-ERR Invalid engine in script shebang",
    b"-ERR Unexpected engine in script shebang",
    b"-ERR Unexpected flag in script shebang",
    b"-ERR Unknown lua shebang option",
    b"-ERR Could not find scripting engine",
];
/// A server is given another one's functions no more often: whoever calls a function that nobody has
/// is not to keep them busy.
const FUNCTIONS_EVERY_MS: u64 = 1000;
/// More than a command of three words takes beside the last one.
const COMMAND_ROOM: usize = 64;

/// A request that calls something that its server may have lost.
#[derive(Debug)]
pub(crate) struct Call {
    what: What,
    stage: Stage,
    server: ServerId,
    /// By which servers `server` is meant.
    walk: Walk,
}

/// What is being waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The reply to the call.
    Called,
    /// The functions of another server.
    Functions,
    /// The reply to what the server lacked, and to the call once more, which is the answer.
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A script that is remembered.
    Script(Sha),
    /// The same, whose text the server is told.
    Text(Sha),
    Function,
}

impl What {
    /// How the errors begin that say that the server does not have it.
    fn missing(self) -> &'static [&'static [u8]] {
        match self {
            Self::Script(_) => &[NO_SCRIPT],
            Self::Text(_) => NO_TEXT,
            Self::Function => &[NO_FUNCTION],
        }
    }
}

/// SCRIPT EXISTS over several servers.
#[derive(Debug)]
pub(crate) struct Remembered {
    /// By place in the request: the scripts that are remembered.
    shas: Box<[Option<Sha>]>,
    /// Those asked, in the order of the fragments.
    servers: Box<[ServerId]>,
    /// By which they are meant.
    walk: Walk,
}

impl Remembered {
    /// By place in the request.
    pub(crate) fn are_there(&self) -> impl ExactSizeIterator<Item = bool> {
        self.shas.iter().map(Option::is_some)
    }
}

impl Call {
    /// Whether the call can be repeated so that nothing of its client's is overtaken.
    fn may_heal(&self, cx: &FlowContext<'_>) -> bool {
        let client = cx.client();
        client != ClientId::NONE
            && cx.engine.is_asked_last(client, cx.request)
            && cx.engine.redis_backends[cx.backend()].walk == self.walk
    }

    /// The server has answered the call.
    fn called(&mut self, cx: &mut FlowContext<'_>, reply: &[u8]) -> Step {
        let is_missing = self.what.missing().iter().any(|error| reply.starts_with(error));
        let has = match (is_missing, resp::is_error(reply)) {
            (true, _) => Has::No,
            (false, true) => Has::Unknown,
            (false, false) => Has::Yes,
        };
        let pool = cx.backend();
        cx.engine.note_called(pool, self, has);
        if has != Has::No || !self.may_heal(cx) {
            return Step::Answer;
        }
        let step = match self.what {
            What::Script(sha) => self.give_script(cx, &sha),
            What::Function => self.fetch_functions(cx),
            What::Text(_) => None,
        };
        step.unwrap_or(Step::Answer)
    }

    /// Has the server load the script and answer once more; `None` if it cannot.
    #[cold]
    fn give_script(&mut self, cx: &mut FlowContext<'_>, sha: &Sha) -> Option<Step> {
        let load = cx.engine.load_command(cx.backend(), sha)?;
        self.ask_again(cx, load)
    }

    /// Asks another server for its functions; `None` if there is none to be asked.
    #[cold]
    fn fetch_functions(&mut self, cx: &mut FlowContext<'_>) -> Option<Step> {
        let client = cx.client();
        let donor = cx.engine.donor_of_functions(client, self.server)?;
        let lane = cx.engine.lane_for(client, donor, cx.replay().len()).ok()?;
        cx.fence();
        self.stage = Stage::Functions;
        let dump = cx.engine.dump_command();
        Some(Step::Send(Attempts::one(Target::Lane(lane), Text::Owned(dump))))
    }

    /// Another server's functions are here, or not.
    fn functions_fetched(&mut self, cx: &mut FlowContext<'_>, reply: &[u8]) -> Step {
        let payload = keyless::text(reply).filter(|_| !keyless::is_null(reply));
        let pool = cx.backend();
        let is_meant = cx.engine.redis_backends[pool].walk == self.walk;
        if let Some(payload) = payload.filter(|_| is_meant) {
            if cx.engine.is_queueing(cx.client()) {
                // What it has then is all that can be had.
                cx.engine.redis_backends[pool].servers[self.server].functions_seen = true;
            }
            let mut restore = cx.engine.bufs.take_for(payload.len() + COMMAND_ROOM);
            encode::write_command(&mut restore, &[b"FUNCTION", b"RESTORE", payload]);
            if let Some(step) = self.ask_again(cx, restore) {
                return step;
            }
        }
        cx.reply(0, |out| {
            out.extend_from_slice(NO_FUNCTION);
            out.extend_from_slice(b"\r\n");
        })
    }

    /// Sends what the server lacks, and the call again: the second reply is the answer. `None` if it
    /// cannot.
    fn ask_again(&mut self, cx: &mut FlowContext<'_>, first: Vec<u8>) -> Option<Step> {
        let client = cx.client();
        let size = first.len() + cx.replay().len();
        let lane = match cx.engine.is_queueing(client) {
            true => cx.engine.lane_beside(client, self.server, size),
            false => cx.engine.lane_for(client, self.server, size),
        };
        let Ok(lane) = lane else {
            cx.engine.bufs.give(first);
            return None;
        };
        // What follows might go by another lane.
        cx.fence();
        self.stage = Stage::Again;
        let attempts = Attempts::two(Target::Lane(lane), Text::Owned(first), Text::Replay);
        Some(Step::Send(attempts.sealed()))
    }
}

impl Flow for Call {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        match self.stage {
            Stage::Called => self.called(cx, reply),
            Stage::Functions => self.functions_fetched(cx, reply),
            Stage::Again if cx.pending() > 0 => Step::Wait,
            Stage::Again => Step::Answer,
        }
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        _attempt: RequestId,
        why: NamedFailure,
    ) -> Step {
        match self.stage {
            Stage::Functions => self.functions_fetched(cx, b""),
            Stage::Again if cx.pending() > 0 => Step::Wait,
            Stage::Called | Stage::Again => Step::Fail(why),
        }
    }

    /// Whether it is an error its first bytes tell. One that is none may be long.
    fn on_start(&mut self, cx: &mut FlowContext<'_>, start: &[u8]) -> bool {
        if resp::is_error(start) {
            return true;
        }
        let pool = cx.backend();
        cx.engine.note_called(pool, self, Has::Yes);
        false
    }

    fn recycle(self: Box<Self>, engine: &mut Engine) {
        engine.scratch.calls.give(self);
    }
}

/// Whether a server has what is called, as its reply shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    Yes,
    No,
    Unknown,
}

impl Engine {
    /// Takes notice of a command about scripts that is being sent to every server. Returns the hash of
    /// a script that is new.
    pub(crate) fn note_script_command(
        &mut self,
        client: ClientId,
        command: &Command,
        text: &[u8],
    ) -> Option<Sha> {
        let backend = self.backend_of(client);
        match command.name {
            "script|load" => return self.remember_script(backend, text),
            "script|flush" => {
                let metrics = self.backends[backend].metrics;
                self.metrics.add_pool(metrics, PoolCounter::ScriptFlushes, 1);
                self.forget_scripts(backend);
            }
            _ => {}
        }
        None
    }

    /// A new script is being loaded on a lane.
    pub(crate) fn watch_load(&mut self, request: RequestId, lane: LaneId, sha: Sha) {
        let server = self.lanes[lane].server;
        self.begin_call(request, What::Text(sha), None, server);
    }

    /// A server has refused a script that was to be loaded: perhaps since it is none.
    #[cold]
    pub(crate) fn load_refused(&mut self, backend: BackendId, sha: &Sha, error: &[u8]) {
        let scripts = &mut self.redis_backends[backend].scripts;
        if NO_TEXT.iter().any(|start| error.starts_with(start))
            && let Some(place) = scripts.place(sha)
        {
            scripts.remove(place);
        }
    }

    fn forget_scripts(&mut self, pool: BackendId) {
        let pool = &mut self.redis_backends[pool];
        pool.scripts = Scripts::default();
        pool.servers.iter_mut().for_each(|server| server.scripts_seen.clear());
    }

    /// Returns the hash of a script that was not remembered before.
    pub(crate) fn remember_script(&mut self, pool: BackendId, text: &[u8]) -> Option<Sha> {
        let metrics = self.backends[pool].metrics;
        let pool = &mut self.redis_backends[pool];
        if pool.scripts.is_empty() {
            let counter = PoolCounter::ScriptFlushes;
            pool.scripts.begin(self.metrics.sum_pool_counter(metrics, counter));
        }
        let place = pool.scripts.insert(text)?;
        pool.servers.iter_mut().for_each(|server| server.scripts_seen.remove(place));
        Some(pool.scripts.sha(place))
    }

    /// Which of these scripts a server of these that lacks one would be given.
    pub(crate) fn remembered<'b>(
        &mut self,
        backend: BackendId,
        shas: impl Iterator<Item = &'b [u8]>,
        servers: &[ServerId],
    ) -> Box<Remembered> {
        self.notice_flush(backend);
        let BackendState { scripts, walk, .. } = &self.redis_backends[backend];
        let is_there = |sha: &Sha| scripts.place(sha).is_some();
        let shas = shas.map(|sha| parse_sha(sha).filter(is_there)).collect();
        Box::new(Remembered { shas, servers: servers.into(), walk: *walk })
    }

    /// Servers have said of scripts, in this order, whether they have them. One that was seen to have a
    /// script, and has lost it, is to be given it again.
    pub(crate) fn note_existing(
        &mut self,
        backend: BackendId,
        asked: &Remembered,
        known: &[Option<Vec<i64>>],
    ) {
        let BackendState { scripts, servers, walk, .. } = &mut self.redis_backends[backend];
        if *walk != asked.walk {
            return;
        }
        for (&server, known) in asked.servers.iter().zip(known) {
            let Some(known) = known else { continue };
            for (sha, &known) in asked.shas.iter().zip(known) {
                if known == 0
                    && let Some(place) = sha.and_then(|sha| scripts.place(&sha))
                {
                    servers[server].scripts_seen.remove(place);
                }
            }
        }
    }

    /// Forgets the scripts if a client of another worker has had them flushed: then none is lost that
    /// a server does not have.
    fn notice_flush(&mut self, backend: BackendId) {
        let metrics = self.backends[backend].metrics;
        let flushes = self.metrics.sum_pool_counter(metrics, PoolCounter::ScriptFlushes);
        if flushes != self.redis_backends[backend].scripts.began_at() {
            self.forget_scripts(backend);
        }
    }

    /// Whether the command calls a script that says of itself that it writes nothing.
    pub(crate) fn only_reads(
        &self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> bool {
        let Some(called) = args.get(1).map(|arg| arg.of(bytes)) else { return false };
        let scripts = &self.redis_backends[self.backend_of(client)].scripts;
        match command.name {
            "eval" => is_read_only(called),
            "evalsha" => parse_sha(called)
                .and_then(|sha| scripts.place(&sha))
                .is_some_and(|place| is_read_only(scripts.text(place))),
            _ => false,
        }
    }

    /// A script or a function is about to be called by a request that goes to a server as it is.
    pub(crate) fn note_call(
        &mut self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
        plan: &Plan,
    ) {
        let &Plan::Forward { lane, request } = plan else { return };
        let server = self.lanes[lane].server;
        if let "eval" | "eval_ro" = command.name {
            let pool = self.backend_of(client);
            if let Some(sha) = self.remember_script(pool, args[1].of(bytes)) {
                self.begin_call(request, What::Text(sha), None, server);
            }
            return;
        }
        let backend = self.backend_of(client);
        let pool = &mut self.redis_backends[backend];
        let state = &pool.servers[server];
        let (what, is_seen) = match command.name {
            "evalsha" | "evalsha_ro" => {
                let Some(sha) = parse_sha(args[1].of(bytes)) else { return };
                let Some(place) = pool.scripts.find(&sha) else { return };
                (What::Script(sha), state.scripts_seen.contains(place))
            }
            // Where there is one server nobody else has its functions.
            "fcall" | "fcall_ro" if pool.servers.len() > 1 => {
                (What::Function, state.functions_seen)
            }
            _ => return,
        };
        let replay = Replay::new(bytes, &mut self.bufs);
        self.begin_call(request, what, Some(replay), server);
        self.clients[client].fenced |= !is_seen;
    }

    fn begin_call(
        &mut self,
        request: RequestId,
        what: What,
        replay: Option<Replay>,
        server: ServerId,
    ) {
        let call = self.new_call(request, what, Stage::Called, server);
        self.watch_reply(request, call, replay);
    }

    fn new_call(
        &mut self,
        request: RequestId,
        what: What,
        stage: Stage,
        server: ServerId,
    ) -> Box<Call> {
        let walk = self.redis_backends[self.requests[request].backend].walk;
        let call = Call { what, stage, server, walk };
        match self.scratch.calls.take() {
            Some(mut spare) => {
                *spare = call;
                spare
            }
            None => Box::new(call),
        }
    }

    /// Notes what the reply to a call shows of its server.
    fn note_called(&mut self, pool: BackendId, call: &Call, has: Has) {
        let pool = &mut self.redis_backends[pool];
        if pool.walk != call.walk || has == Has::Unknown {
            return;
        }
        let server = &mut pool.servers[call.server];
        match call.what {
            What::Function => server.functions_seen = has == Has::Yes,
            What::Script(sha) | What::Text(sha) => match pool.scripts.place(&sha) {
                Some(place) if has == Has::Yes => server.scripts_seen.insert(place),
                // It is none.
                Some(place) if matches!(call.what, What::Text(_)) => pool.scripts.remove(place),
                Some(place) => server.scripts_seen.remove(place),
                None => {}
            },
        }
    }

    /// The command that gives a server a script that is remembered.
    fn load_command(&mut self, backend: BackendId, sha: &Sha) -> Option<Vec<u8>> {
        self.notice_flush(backend);
        let scripts = &self.redis_backends[backend].scripts;
        let script = scripts.text(scripts.place(sha)?);
        let mut load = self.bufs.take_for(script.len() + COMMAND_ROOM);
        encode::write_command(&mut load, &[b"SCRIPT", b"LOAD", script]);
        Some(load)
    }

    fn dump_command(&mut self) -> Vec<u8> {
        let mut dump = self.bufs.take_for(COMMAND_ROOM);
        encode::write_command(&mut dump, &[b"FUNCTION", b"DUMP"]);
        dump
    }

    /// A server whose functions another one may be given now.
    fn donor_of_functions(&mut self, client: ClientId, to: ServerId) -> Option<ServerId> {
        let backend = self.backend_of(client);
        let pool = &self.backends[backend];
        let is_donor = |&at: &ServerId| at != to && pool.servers[at].is_up();
        let donor = pool.topology.heads().find(is_donor)?;
        let state = &mut self.redis_backends[backend].servers[to];
        if self.now < state.functions_at {
            return None;
        }
        state.functions_at = self.now.plus_millis(FUNCTIONS_EVERY_MS);
        Some(donor)
    }
}
