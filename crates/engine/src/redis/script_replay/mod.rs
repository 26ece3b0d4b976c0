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
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, encode};

use crate::base::id::{ClientId, LaneId, PoolId, RequestId, ServerId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::redis::keyless::{self, Walk};
use crate::redis::scripts::{Scripts, Sha, is_read_only, parse_sha};
use crate::request::{Merge, Request, Role};
use crate::upstream::pool::Pool;

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

/// A request that calls something that its server may have lost.
#[derive(Debug)]
pub(crate) struct Call {
    what: What,
    /// The request as it is, in case it has to be sent again.
    text: Vec<u8>,
    server: ServerId,
    /// By which servers `server` is meant.
    walk: Walk,
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
        let pool = self.clients[client].pool;
        match command.name {
            "script|load" => return self.remember_script(pool, text),
            "script|flush" => {
                let metrics = self.pools[pool].metrics;
                self.metrics.add_pool(metrics, PoolCounter::ScriptFlushes, 1);
                self.forget_scripts(pool);
            }
            _ => {}
        }
        None
    }

    /// A new script is being loaded on a lane.
    pub(crate) fn watch_load(&mut self, request: RequestId, lane: LaneId, sha: Sha) {
        let server = self.lanes[lane].server;
        self.begin_call(request, What::Text(sha), Vec::new(), server);
    }

    /// A new script is being loaded everywhere by the client's last request.
    pub(crate) fn watch_loads(&mut self, client: ClientId, sha: Sha) {
        let request = self.clients[client].tail;
        if request != RequestId::NONE
            && let Role::Parent { merge, .. } = &mut self.requests[request].role
        {
            *merge = Merge::Load(Box::new(sha));
        }
    }

    /// A server has refused a script that was to be loaded: perhaps since it is none.
    #[cold]
    pub(crate) fn load_refused(&mut self, pool: PoolId, sha: &Sha, error: &[u8]) {
        let scripts = &mut self.pools[pool].scripts;
        if NO_TEXT.iter().any(|start| error.starts_with(start))
            && let Some(place) = scripts.place(sha)
        {
            scripts.remove(place);
        }
    }

    fn forget_scripts(&mut self, pool: PoolId) {
        let pool = &mut self.pools[pool];
        pool.scripts = Scripts::default();
        pool.servers.iter_mut().for_each(|server| server.scripts_seen.clear());
    }

    /// Returns the hash of a script that was not remembered before.
    fn remember_script(&mut self, pool: PoolId, text: &[u8]) -> Option<Sha> {
        let pool = &mut self.pools[pool];
        if pool.scripts.is_empty() {
            let counter = PoolCounter::ScriptFlushes;
            pool.scripts.begin(self.metrics.sum_pool_counter(pool.metrics, counter));
        }
        let place = pool.scripts.insert(text)?;
        pool.servers.iter_mut().for_each(|server| server.scripts_seen.remove(place));
        Some(pool.scripts.sha(place))
    }

    /// Which of these scripts a server of these that lacks one would be given.
    pub(crate) fn remembered<'b>(
        &mut self,
        pool: PoolId,
        shas: impl Iterator<Item = &'b [u8]>,
        servers: &[ServerId],
    ) -> Box<Remembered> {
        self.notice_flush(pool);
        let Pool { scripts, walk, .. } = &self.pools[pool];
        let is_there = |sha: &Sha| scripts.place(sha).is_some();
        let shas = shas.map(|sha| parse_sha(sha).filter(is_there)).collect();
        Box::new(Remembered { shas, servers: servers.into(), walk: *walk })
    }

    /// Servers have said of scripts, in this order, whether they have them. One that was seen to have a
    /// script, and has lost it, is to be given it again.
    pub(crate) fn note_existing(&mut self, pool: PoolId, asked: &Remembered, fragments: RequestId) {
        let Pool { scripts, servers, walk, .. } = &mut self.pools[pool];
        if *walk != asked.walk {
            return;
        }
        for (&server, reply) in asked.servers.iter().zip(self.requests.replies(fragments)) {
            let Some(known) = keyless::integers(reply) else { continue };
            for (sha, known) in asked.shas.iter().zip(known) {
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
    fn notice_flush(&mut self, pool: PoolId) {
        let state = &self.pools[pool];
        let flushes = self.metrics.sum_pool_counter(state.metrics, PoolCounter::ScriptFlushes);
        if flushes != state.scripts.began_at() {
            self.forget_scripts(pool);
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
        let scripts = &self.pools[self.clients[client].pool].scripts;
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
            let pool = self.clients[client].pool;
            if let Some(sha) = self.remember_script(pool, args[1].of(bytes)) {
                self.begin_call(request, What::Text(sha), Vec::new(), server);
            }
            return;
        }
        let pool = &mut self.pools[self.clients[client].pool];
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
        let text = self.bufs.copy_of(bytes);
        self.begin_call(request, what, text, server);
        self.clients[client].fenced |= !is_seen;
    }

    fn begin_call(&mut self, request: RequestId, what: What, text: Vec<u8>, server: ServerId) {
        let walk = self.pools[self.requests[request].pool].walk;
        let call = Call { what, text, server, walk };
        let call = match self.scratch.calls.take() {
            Some(mut spare) => {
                *spare = call;
                spare
            }
            None => Box::new(call),
        };
        self.requests[request].role = Role::Call(call);
    }

    /// The last bytes of a reply to a call that is an error, or that comes whole.
    pub(crate) fn call_answered(&mut self, index: RequestId, bytes: &[u8]) {
        let request = &self.requests[index];
        let Role::Call(call) = &request.role else { unreachable!("it is a call") };
        let begins = |error: &&[u8]| request.reply.iter().chain(bytes).take(error.len()).eq(*error);
        let has = if call.what.missing().iter().any(begins) {
            Has::No
        } else if request.arrived == 0 && !resp::is_error(bytes) {
            Has::Yes
        } else {
            Has::Unknown
        };
        let call = self.end_call(index, has);
        let unhealed = match call.what {
            _ if has != Has::No || !self.may_heal(index, &call) => Some(call),
            What::Script(sha) => self.give_script(index, call, &sha),
            What::Function => self.fetch_functions(index, call),
            What::Text(_) => Some(call),
        };
        if let Some(call) = unhealed {
            self.recycle_call(call);
            self.deliver(index, bytes);
        }
    }

    /// The reply is no error, or one of the gateway's: it is like others from here on.
    pub(crate) fn call_is_over(&mut self, index: RequestId) {
        let has = if self.requests[index].failed { Has::Unknown } else { Has::Yes };
        let call = self.end_call(index, has);
        self.recycle_call(call);
    }

    fn end_call(&mut self, index: RequestId, has: Has) -> Box<Call> {
        let request = &mut self.requests[index];
        let Role::Call(call) = std::mem::replace(&mut request.role, Role::Single) else {
            unreachable!("it is a call");
        };
        let pool = &mut self.pools[request.pool];
        if pool.walk != call.walk || has == Has::Unknown {
            return call;
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
        call
    }

    /// Whether the call can be repeated so that nothing of its client's is overtaken.
    fn may_heal(&self, index: RequestId, call: &Call) -> bool {
        let request = &self.requests[index];
        request.client != ClientId::NONE
            && self.clients[request.client].tail == index
            && self.pools[request.pool].walk == call.walk
    }

    /// Has the server load the script and answer once more; gives the call back if it cannot.
    #[cold]
    fn give_script(&mut self, index: RequestId, call: Box<Call>, sha: &Sha) -> Option<Box<Call>> {
        let pool = self.requests[index].pool;
        self.notice_flush(pool);
        let scripts = &self.pools[pool].scripts;
        let Some(place) = scripts.place(sha) else { return Some(call) };
        let mut load = Vec::new();
        encode::write_command(&mut load, &[b"SCRIPT", b"LOAD", scripts.text(place)]);
        self.ask_again(index, call, &load)
    }

    /// Asks another server for its functions; gives the call back if there is none to be asked.
    #[cold]
    fn fetch_functions(&mut self, index: RequestId, call: Box<Call>) -> Option<Box<Call>> {
        let client = self.requests[index].client;
        let Some(donor) = self.donor_of_functions(client, call.server) else { return Some(call) };
        let Ok(lane) = self.lane_for(client, donor, call.text.len()) else { return Some(call) };
        self.drop_reply(index);
        self.clients[client].fenced = true;
        self.ask_for_functions(index, call, lane);
        None
    }

    /// A server whose functions another one may be given now.
    fn donor_of_functions(&mut self, client: ClientId, to: ServerId) -> Option<ServerId> {
        let pool = &mut self.pools[self.clients[client].pool];
        let lives = pool.topology.live();
        let is_donor = |&at: &ServerId| lives[at.index()] && at != to && pool.servers[at].is_up();
        let donor = pool.servers.ids().find(is_donor)?;
        let state = &mut pool.servers[to];
        if self.now < state.functions_at {
            return None;
        }
        state.functions_at = self.now.plus_millis(FUNCTIONS_EVERY_MS);
        Some(donor)
    }

    /// Asks on a donor's lane.
    fn ask_for_functions(&mut self, index: RequestId, call: Box<Call>, lane: LaneId) {
        let mut dump = Vec::new();
        encode::write_command(&mut dump, &[b"FUNCTION", b"DUMP"]);
        let fragment = self.add_fragment(index, RequestId::NONE);
        self.send(lane, fragment, Payload::Bytes(&dump));
        self.begin_stage(index, fragment, 1, Merge::Functions(call));
    }

    /// Another server's functions are here.
    pub(crate) fn functions_fetched(
        &mut self,
        parent: RequestId,
        fragment: RequestId,
        call: Box<Call>,
    ) {
        let reply = self.take_reply(fragment);
        self.free_fragments(fragment);
        if self.requests[parent].client == ClientId::NONE {
            self.bufs.give(reply);
            self.recycle_call(call);
            self.free_request(parent);
            return;
        }
        let payload = keyless::text(&reply).filter(|_| !keyless::is_null(&reply));
        let is_meant = self.pools[self.requests[parent].pool].walk == call.walk;
        let left = match payload {
            Some(payload) if is_meant => {
                let mut restore = Vec::new();
                encode::write_command(&mut restore, &[b"FUNCTION", b"RESTORE", payload]);
                let Request { pool, client, .. } = self.requests[parent];
                if self.is_queueing(client) {
                    // What it has then is all that can be had.
                    let servers = &mut self.pools[pool].servers;
                    servers[call.server].functions_seen = true;
                }
                self.ask_again(parent, call, &restore)
            }
            _ => Some(call),
        };
        self.bufs.give(reply);
        if let Some(call) = left {
            self.recycle_call(call);
            self.answer_instead(parent, |out| {
                out.extend_from_slice(NO_FUNCTION);
                out.extend_from_slice(b"\r\n");
            });
        }
    }

    /// Sends what the server lacks, and the call again: the second reply is the answer. Gives the
    /// call back if it cannot.
    fn ask_again(&mut self, index: RequestId, call: Box<Call>, first: &[u8]) -> Option<Box<Call>> {
        let client = self.requests[index].client;
        let size = first.len() + call.text.len();
        let lane = match self.is_queueing(client) {
            true => self.lane_beside(client, call.server, size),
            false => self.lane_for(client, call.server, size),
        };
        let Ok(lane) = lane else { return Some(call) };
        self.drop_reply(index);
        let second = self.add_fragment(index, RequestId::NONE);
        let fragments = self.add_fragment(index, second);
        for (fragment, text) in [(fragments, first), (second, &call.text)] {
            self.send(lane, fragment, Payload::Bytes(text));
            self.seal(lane);
        }
        // What follows might go by another lane.
        self.clients[client].fenced = true;
        self.begin_stage(index, fragments, 2, Merge::Last);
        self.recycle_call(call);
        None
    }

    fn begin_stage(&mut self, index: RequestId, fragments: RequestId, count: u32, merge: Merge) {
        let request = &mut self.requests[index];
        request.expect = Expect::Line;
        request.arrived = 0;
        request.role = Role::Parent { fragments, pending: 0, merge };
        self.begin_fragments(index, fragments, count);
    }

    pub(crate) fn recycle_call(&mut self, mut call: Box<Call>) {
        self.bufs.give(std::mem::take(&mut call.text));
        self.scratch.calls.give(call);
    }
}
