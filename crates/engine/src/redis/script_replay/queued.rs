//! Calls in MULTI, where nothing can be put right any more once the server executes them.
//!
//! Before a call is queued its server is given what it has not been seen to have: by a lane beside the
//! one with the transaction, where SCRIPT LOAD would be queued, too. The client waits for that. What
//! comes of it is for nobody: if it was in vain the call is queued all the same, and EXEC tells.

use cashew_protocol::Span;
use cashew_protocol::redis::{Command, Group};

use super::{Stage, What};
use crate::base::failure::Failure;
use crate::base::id::{ClientId, LaneId, RequestId, ServerId};
use crate::downstream::client::Client;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Attempts, Step, Target, Text};
use crate::redis::scripts::{Sha, parse_sha};
use crate::request::replay::Replay;

/// What a command calls, for [`Engine::provide`].
pub(crate) fn called_by(command: &Command, bytes: &[u8], args: &[Span]) -> Option<What> {
    if command.group != Group::Scripting {
        return None;
    }
    match command.name {
        "evalsha" | "evalsha_ro" => parse_sha(args.get(1)?.of(bytes)).map(What::Script),
        "fcall" | "fcall_ro" => Some(What::Function),
        _ => None,
    }
}

impl Engine {
    /// A transaction has queued a command that may bring a script, or have all flushed.
    pub(crate) fn note_queued(
        &mut self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) {
        if command.group != Group::Scripting {
            return;
        }
        let text = |at: usize| args.get(at).map_or(&b""[..], |arg| arg.of(bytes));
        match command.name {
            "eval" | "eval_ro" => {
                self.remember_script(self.backend_of(client), text(1));
            }
            _ => {
                self.note_script_command(client, command, text(2));
            }
        }
    }

    /// Gives a server what a transaction is about to call there. Returns whether the client has to
    /// wait for that.
    pub(crate) fn provide(
        &mut self,
        client: ClientId,
        server: ServerId,
        calls: &[What],
    ) -> Result<bool, Failure> {
        let mut must_wait = false;
        for &what in calls {
            must_wait |= match what {
                What::Script(sha) | What::Text(sha) => self.provide_script(client, server, sha)?,
                What::Function => self.provide_functions(client, server),
            };
        }
        Ok(must_wait)
    }

    fn provide_script(
        &mut self,
        client: ClientId,
        server: ServerId,
        sha: Sha,
    ) -> Result<bool, Failure> {
        let backend = self.backend_of(client);
        let state = &mut self.redis_backends[backend];
        let Some(place) = state.scripts.find(&sha) else { return Ok(false) };
        if state.servers[server].scripts_seen.contains(place) {
            return Ok(false);
        }
        let Some(load) = self.load_command(backend, &sha) else { return Ok(false) };
        let lane = match self.lane_beside(client, server, load.len()) {
            Ok(lane) => lane,
            Err(failure) => {
                self.bufs.give(load);
                return Err(failure);
            }
        };
        let request = self.hidden_request(client);
        self.begin_call(request, What::Text(sha), None, server);
        self.send(lane, request, Payload::Owned(load));
        self.seal(lane);
        Ok(true)
    }

    /// Of functions it is not known which a server has: it gets those of another one once, before
    /// the first call.
    fn provide_functions(&mut self, client: ClientId, server: ServerId) -> bool {
        const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
        let pool = &self.redis_backends[self.backend_of(client)];
        if pool.servers.len() == 1 || pool.servers[server].functions_seen {
            return false;
        }
        let Some(donor) = self.donor_of_functions(client, server) else { return false };
        let Ok(lane) = self.lane_beside(client, donor, PING.len()) else { return false };
        // They come behind this, and the server has them when it answers.
        let replay = Replay::new(PING, &mut self.bufs);
        let request = self.hidden_request(client);
        let call = self.new_call(request, What::Function, Stage::Functions, server);
        let dump = Attempts::one(Target::Lane(lane), Text::Owned(self.dump_command()));
        self.begin_flow(request, call, Some(replay), Step::Send(dump));
        true
    }

    /// A request of the client's that it has not made, and whose reply it does not see.
    pub(crate) fn hidden_request(&mut self, client: ClientId) -> RequestId {
        let request = self.new_request(client);
        self.requests[request].silent = true;
        request
    }

    /// One of the lanes that the client shares with others, whatever it has leased.
    pub(super) fn lane_beside(
        &mut self,
        client: ClientId,
        server: ServerId,
        size: usize,
    ) -> Result<LaneId, Failure> {
        let Client { variant, lane_choice, .. } = self.clients[client];
        let backend = self.backend_of(client);
        self.lane_of((backend, server), variant, lane_choice, size)
    }
}
