//! Replies that do not fit what was asked.
//!
//! Whose reply comes next is known by the order of the requests alone. So one that does not fit may
//! mean that all that follow are others', too: the connection ends at once, with an error for
//! everybody who waits on it.

use std::time::Duration;

use cashew_protocol::memcached::{Answer, Expect, is_unknown_set, value_key};

use crate::base::time::Time;
use crate::request::Request;
use crate::upstream::bulk::Mark;
use crate::upstream::lane::Scanner;
use crate::upstream::server::Server;

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
    pub(crate) sets: Time,
    /// `ms` with the flag `E`.
    pub(crate) given: Time,
}

impl Unknown {
    /// A server has answered what was expected to be so with `bytes`, which does not fit.
    fn learn(&mut self, expect: Expect, bytes: &[u8], now: Time) {
        let (Expect::Answer(answer) | Expect::AnswerQuiet(answer)) = expect else { return };
        if !is_unknown_set(bytes) {
            return;
        }
        let until = now.plus_millis(REFUSED_MS);
        match answer {
            Answer::MetaSet => self.sets = until,
            Answer::MetaSetGiven => self.given = until,
            _ => {}
        }
    }
}

impl Server {
    /// Whether the log is to be told of a reply that does not fit, what there is of it.
    pub(crate) fn misfit_for_log(&mut self, bytes: &[u8], now: Time) -> Option<Vec<u8>> {
        let is_due = self.misfit_at.is_none_or(|at| now - at >= LOGGED_AGAIN);
        is_due.then(|| {
            self.misfit_at = Some(now);
            bytes[..bytes.len().min(EXCERPT_SIZE)].to_vec()
        })
    }

    /// A reply does not fit the request. Returns what was expected, in the words of the log.
    pub(crate) fn learn_misfit(
        &mut self,
        request: &Request,
        scanner: &Scanner,
        bytes: &[u8],
        now: Time,
    ) -> &'static str {
        self.unknown.learn(request.expect, bytes, now);
        match scanner {
            Scanner::Redis(_) => request.due.describe(),
            Scanner::Memcached(_) | Scanner::Binary(_) => describe(request.expect),
        }
    }
}

impl Request {
    /// Whether what a reply opens with names what the request did: the key, or in binary what a client
    /// has a request known by. `bytes` are the first of the reply.
    pub(crate) fn is_named_by(&self, bytes: &[u8]) -> bool {
        match self.expect {
            Expect::Values => match value_key(bytes) {
                Some(key) => self.is_for(key),
                None => true,
            },
            _ => true,
        }
    }

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
