//! Calls of scripts and functions that a server has lost, and gets back.
//!
//! A server that answers NOSCRIPT to EVALSHA is given the script, if it is remembered
//! ([`crate::scripts`]); one that knows no such function is given those of another server, if it has
//! none of the same libraries. Then it is asked once more, and the client does not notice.
//!
//! That must not let a request overtake another of its client. So what a server has not been seen to
//! have is called alone: what its client asks next waits for the reply. A server is seen to have it as
//! long as its connections last; where it has lost it all the same, and the client has asked on, the
//! client gets the error.

use cashew_metrics::PoolCounter;
use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, encode};

use crate::clients::Plan;
use crate::dispatch::Payload;
use crate::engine::Engine;
use crate::fan::{self, Walk};
use crate::request::{Merge, Role};
use crate::scripts::{Scripts, Sha, is_read_only, parse_sha};
use crate::slab::NONE;

const NO_SCRIPT: &[u8] = b"-NOSCRIPT";
const NO_FUNCTION: &[u8] = b"-ERR Function not found";
/// A server is given another one's functions no more often: whoever calls a function that nobody has
/// is not to keep them busy.
const FUNCTIONS_EVERY_MS: u64 = 1000;

/// A request that calls something that its server may have lost.
#[derive(Debug)]
pub(crate) struct Call {
    what: What,
    /// The request as it is, in case it has to be sent again.
    text: Vec<u8>,
    server: u32,
    /// By which servers `server` is meant.
    walk: Walk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A script that is remembered.
    Script(Sha),
    Function,
}

impl What {
    /// How the error begins that says that the server does not have it.
    fn missing(self) -> &'static [u8] {
        match self {
            Self::Script(_) => NO_SCRIPT,
            Self::Function => NO_FUNCTION,
        }
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
    /// Takes notice of a command about scripts that is being sent to every server.
    pub(crate) fn note_script_command(&mut self, client: u32, command: &Command, text: &[u8]) {
        let pool = self.clients[client].pool;
        match command.name {
            "script|load" => self.remember_script(pool, text),
            "script|flush" => {
                let metrics = self.pools[pool as usize].metrics;
                self.metrics.add_pool(metrics, PoolCounter::ScriptFlushes, 1);
                self.forget_scripts(pool);
            }
            _ => {}
        }
    }

    fn forget_scripts(&mut self, pool: u32) {
        let pool = &mut self.pools[pool as usize];
        pool.scripts = Scripts::default();
        pool.servers.iter_mut().for_each(|server| server.scripts_seen.clear());
    }

    fn remember_script(&mut self, pool: u32, text: &[u8]) {
        let pool = &mut self.pools[pool as usize];
        if pool.scripts.is_empty() {
            let counter = PoolCounter::ScriptFlushes;
            pool.scripts.begin(self.metrics.sum_pool_counter(pool.metrics, counter));
        }
        if let Some(place) = pool.scripts.insert(text) {
            pool.servers.iter_mut().for_each(|server| server.scripts_seen.remove(place));
        }
    }

    /// Which of these scripts a server that lacks one would be given.
    pub(crate) fn remembered<'b>(
        &mut self,
        pool: u32,
        shas: impl Iterator<Item = &'b [u8]>,
    ) -> Box<[bool]> {
        self.notice_flush(pool);
        let scripts = &self.pools[pool as usize].scripts;
        shas.map(|sha| parse_sha(sha).is_some_and(|sha| scripts.place(&sha).is_some())).collect()
    }

    /// Forgets the scripts if a client of another worker has had them flushed: then none is lost that
    /// a server does not have.
    fn notice_flush(&mut self, pool: u32) {
        let state = &self.pools[pool as usize];
        let flushes = self.metrics.sum_pool_counter(state.metrics, PoolCounter::ScriptFlushes);
        if flushes != state.scripts.began_at() {
            self.forget_scripts(pool);
        }
    }

    /// Whether the command calls a script that says of itself that it writes nothing.
    pub(crate) fn only_reads(
        &self,
        client: u32,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> bool {
        let Some(called) = args.get(1).map(|arg| arg.of(bytes)) else { return false };
        let scripts = &self.pools[self.clients[client].pool as usize].scripts;
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
        client: u32,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
        plan: &Plan,
    ) {
        let &Plan::Forward { lane, request } = plan else { return };
        let server = self.lanes[lane as usize].server;
        let pool = &mut self.pools[self.clients[client].pool as usize];
        let state = &pool.servers[server as usize];
        let (what, is_seen) = match command.name {
            "eval" | "eval_ro" => {
                return self.remember_script(self.clients[client].pool, args[1].of(bytes));
            }
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
        let call = Call { what, text, server, walk: pool.walk };
        let call = match self.scratch.calls.take() {
            Some(mut spare) => {
                *spare = call;
                spare
            }
            None => Box::new(call),
        };
        self.requests[request].role = Role::Call(call);
        self.clients[client].fenced |= !is_seen;
    }

    /// The last bytes of a reply to a call that is an error, or that comes whole.
    pub(crate) fn call_answered(&mut self, index: u32, bytes: &[u8]) {
        let request = &self.requests[index];
        let Role::Call(call) = &request.role else { unreachable!("it is a call") };
        let missing = call.what.missing();
        let has = if request.reply.iter().chain(bytes).take(missing.len()).eq(missing) {
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
        };
        if let Some(call) = unhealed {
            self.recycle_call(call);
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
        if pool.walk != call.walk || has == Has::Unknown {
            return call;
        }
        let server = &mut pool.servers[call.server as usize];
        match call.what {
            What::Function => server.functions_seen = has == Has::Yes,
            What::Script(sha) => match pool.scripts.place(&sha) {
                Some(place) if has == Has::Yes => server.scripts_seen.insert(place),
                Some(place) => server.scripts_seen.remove(place),
                None => {}
            },
        }
        call
    }

    /// Whether the call can be repeated so that nothing of its client's is overtaken.
    fn may_heal(&self, index: u32, call: &Call) -> bool {
        let request = &self.requests[index];
        request.client != NONE
            && self.clients[request.client].tail == index
            && self.pools[request.pool as usize].walk == call.walk
    }

    /// Has the server load the script and answer once more; gives the call back if it cannot.
    #[cold]
    fn give_script(&mut self, index: u32, call: Box<Call>, sha: &Sha) -> Option<Box<Call>> {
        let pool = self.requests[index].pool;
        self.notice_flush(pool);
        let scripts = &self.pools[pool as usize].scripts;
        let Some(place) = scripts.place(sha) else { return Some(call) };
        let mut load = Vec::new();
        encode::write_command(&mut load, &[b"SCRIPT", b"LOAD", scripts.text(place)]);
        self.ask_again(index, call, &load)
    }

    /// Asks another server for its functions; gives the call back if there is none to be asked.
    #[cold]
    fn fetch_functions(&mut self, index: u32, call: Box<Call>) -> Option<Box<Call>> {
        let client = self.requests[index].client;
        let pool = &mut self.pools[self.clients[client].pool as usize];
        let lives = pool.router.live();
        let donor = (0..pool.servers.len()).find(|&server| {
            lives[server] && server != call.server as usize && pool.servers[server].is_up()
        });
        let state = &mut pool.servers[call.server as usize];
        let (Some(donor), true) = (donor, self.now >= state.functions_at) else {
            return Some(call);
        };
        state.functions_at = self.now.plus_millis(FUNCTIONS_EVERY_MS);
        let Ok(lane) = self.lane_for(client, donor as u32, call.text.len()) else {
            return Some(call);
        };
        self.drop_reply(index);
        let mut dump = Vec::new();
        encode::write_command(&mut dump, &[b"FUNCTION", b"DUMP"]);
        let fragment = self.add_fragment(index, NONE);
        self.send(lane, fragment, Payload::Bytes(&dump));
        self.clients[client].fenced = true;
        self.begin_stage(index, fragment, 1, Merge::Functions(call));
        None
    }

    /// Another server's functions are here.
    pub(crate) fn functions_fetched(&mut self, parent: u32, fragment: u32, call: Box<Call>) {
        let reply = self.take_reply(fragment);
        self.free_fragments(fragment);
        if self.requests[parent].client == NONE {
            self.bufs.give(reply);
            self.recycle_call(call);
            self.free_request(parent);
            return;
        }
        let payload = fan::text(&reply).filter(|_| !fan::is_null(&reply));
        let is_meant = self.pools[self.requests[parent].pool as usize].walk == call.walk;
        let left = match payload {
            Some(payload) if is_meant => {
                let mut restore = Vec::new();
                encode::write_command(&mut restore, &[b"FUNCTION", b"RESTORE", payload]);
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
    fn ask_again(&mut self, index: u32, call: Box<Call>, first: &[u8]) -> Option<Box<Call>> {
        let client = self.requests[index].client;
        let Ok(lane) = self.lane_for(client, call.server, first.len() + call.text.len()) else {
            return Some(call);
        };
        self.drop_reply(index);
        let second = self.add_fragment(index, NONE);
        let fragments = self.add_fragment(index, second);
        self.send(lane, fragments, Payload::Bytes(first));
        self.send(lane, second, Payload::Bytes(&call.text));
        // What follows might go by another lane.
        self.clients[client].fenced = true;
        self.begin_stage(index, fragments, 2, Merge::Last);
        self.recycle_call(call);
        None
    }

    fn begin_stage(&mut self, index: u32, fragments: u32, count: u32, merge: Merge) {
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
