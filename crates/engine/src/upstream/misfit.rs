//! Replies that do not fit what was asked.
//!
//! Whose reply comes next is known by the order of the requests alone. So one that does not fit may
//! mean that all that follow are others', too: the connection ends at once, with an error for
//! everybody who waits on it.

use std::time::Duration;

use cashew_metrics::ServerCounter;
use cashew_protocol::memcached::{Answer, Expect, is_refused_set, value_key};

use crate::base::action::{Action, Sequel};
use crate::base::failure::Failure;
use crate::base::id::LaneId;
use crate::engine::{Closed, Engine};
use crate::request::Request;
use crate::upstream::bulk::Mark;
use crate::upstream::lane::{Lane, Scanner};

/// So many bytes of it are in the log.
const EXCERPT_SIZE: usize = 64;
/// The log has one for each server so seldom at most.
const LOGGED_AGAIN: Duration = Duration::from_secs(10);
/// How long a server is not sent again what it did not know. It may be another by then.
const REFUSED_MS: u64 = 60_000;

/// What a server of memcached does not know, as its replies have shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unknown {
    /// Until when: `ms` with a size behind its key.
    pub(crate) sets: crate::base::time::Time,
    /// `ms` with the flag `E`.
    pub(crate) given: crate::base::time::Time,
}

impl Engine {
    /// Ends a connection whose server sent `bytes`, or what they go on, in the place of what is
    /// `expected`.
    #[cold]
    pub(crate) fn misfit(&mut self, index: LaneId, expected: &'static str, bytes: &[u8]) {
        self.notify_misfit(index, expected, Sequel::Closed, bytes);
        self.lane_down(index, Failure::BadReply, Closed::ByUs);
    }

    /// Counts and tells that a server has sent `bytes`, or what they go on, in the place of what is
    /// `expected`.
    #[cold]
    pub(crate) fn notify_misfit(
        &mut self,
        index: LaneId,
        expected: &'static str,
        sequel: Sequel,
        bytes: &[u8],
    ) {
        let Lane { backend, server: server_index, .. } = self.lanes[index];
        let now = self.now;
        let server = self.server_of(index);
        let id = server.metrics;
        if server.misfit_at.is_none_or(|at| now - at >= LOGGED_AGAIN) {
            server.misfit_at = Some(now);
            let excerpt = bytes[..bytes.len().min(EXCERPT_SIZE)].to_vec();
            let news =
                Action::ServerMisfit { backend, server: server_index, expected, excerpt, sequel };
            self.actions.push_back(news);
        }
        self.metrics.add_server(id, ServerCounter::ProtocolErrors, 1);
    }

    /// The same for a reply to the lane's head.
    #[cold]
    pub(crate) fn misfit_of_head(&mut self, index: LaneId, bytes: &[u8]) {
        let lane = &self.lanes[index];
        let expect = self.requests[lane.head].expect;
        if let Expect::Answer(answer) | Expect::AnswerQuiet(answer) = expect
            && is_refused_set(bytes)
        {
            let until = self.now.plus_millis(REFUSED_MS);
            let unknown = &mut self.server_of(index).unknown;
            match answer {
                Answer::MetaSet => unknown.sets = until,
                Answer::MetaSetGiven => unknown.given = until,
                _ => {}
            }
        }
        let expected = match self.lanes[index].scanner {
            Scanner::Redis(_) => self.requests[self.lanes[index].head].due.describe(),
            Scanner::Memcached(_) | Scanner::Binary(_) => describe(expect),
        };
        self.misfit(index, expected, bytes);
    }

    /// Whether what a reply opens with names what the request did: the key, or in binary what a client
    /// has a request known by. `bytes` are the first of the reply.
    pub(crate) fn names_request(&self, request: &Request, bytes: &[u8]) -> bool {
        match request.expect {
            Expect::Values => match value_key(bytes) {
                Some(key) => request.is_for(key),
                None => true,
            },
            _ => true,
        }
    }
}

impl Request {
    /// Whether this may be its key, as far as it is known.
    #[inline(always)]
    pub(crate) fn is_for(&self, key: &[u8]) -> bool {
        self.mark == Mark::of(key) || self.mark == Mark::default()
    }
}

/// What answers a request, in the words of the log.
fn describe(expect: Expect) -> &'static str {
    match expect {
        Expect::Line => "a line",
        Expect::Answer(answer) | Expect::AnswerQuiet(answer) => match answer {
            Answer::Store => "STORED, NOT_STORED, EXISTS or NOT_FOUND",
            Answer::Delete => "DELETED or NOT_FOUND",
            Answer::Number => "a number or NOT_FOUND",
            Answer::Touch => "TOUCHED or NOT_FOUND",
            Answer::Done => "OK",
            Answer::Version => "VERSION",
            Answer::MetaSet | Answer::MetaSetGiven => "HD, NS, EX or NF of a server that knows ms",
            Answer::MetaDelete => "HD, NF or EX",
            Answer::MetaDebug => "ME or EN",
        },
        Expect::Values => "VALUE with the key that was asked for, or END",
        Expect::Coalesced | Expect::CoalescedLast => "VALUE with a key that was asked for, or END",
        Expect::Meta | Expect::MetaQuiet => "HD, VA or EN",
        Expect::MetaNumber => "HD, VA, NF, NS or EX",
        Expect::Fenced => "HD, VA, NF, NS or EX, if anything, and MN",
        Expect::Told => "an answer and VERSION",
        Expect::Stats => "lines of statistics",
        Expect::Packet | Expect::PacketQuiet | Expect::Packets => {
            "a packet with the opcode and the opaque of the request"
        }
    }
}
