//! Meta commands.

use cashew_protocol::memcached::{
    Answer, Expect, KEY_SIZE_MAX, KeyBuf, RequestParser, Reticence, Verb, decode_key, words,
    write_meta_miss,
};
use cashew_protocol::redis::Access;

use super::copies::Write;
use crate::base::id::ClientId;
use crate::downstream::receive::Plan;
use crate::engine::Engine;

/// Behind a quiet request whose replies only the server can tell apart.
pub(super) const FENCE: &[u8] = b"mn\r\n";

pub(super) const UNKNOWN_SET: &[u8] = b"SERVER_ERROR the server is too old for ms\r\n";
pub(super) const UNKNOWN_FLAG: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
const UNCOPIED: &[u8] = b"CLIENT_ERROR ms with E cannot be written to all servers of a group\r\n";
const UNTELLABLE: &[u8] = b"CLIENT_ERROR a key with a line feed cannot be told: ask without it\r\n";

impl Engine {
    /// Sends a meta command with a key to the server that has it.
    ///
    /// In quiet mode `mg` and `ms` are sent as they would be without it, and what they leave out is
    /// left out here. Which answers `md` and `ma` leave out depends on the server's version and, of
    /// `ma`, on what became of the item: these are sent as they are, with an `mn` behind them.
    pub(super) fn meta_request(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Plan {
        let mut buf = [0; KEY_SIZE_MAX];
        let key = plain_key(parser, bytes, &mut buf);
        if breaks_replies(parser, key) {
            return self.refuse_untellable(client);
        }
        if parser.verb() == Verb::MetaSet
            && let Some(refusal) = self.refusal_of_set(client, parser, key)
        {
            self.answer(client, |out| out.extend_from_slice(refusal));
            return Plan::Done;
        }
        let is_quiet = parser.meta().quiet.is_some();
        let topology = &self.backends[self.backend_of(client)].topology;
        let (has_choice, writes_to_all) = (topology.has_choice(None), topology.writes_to_all());
        let (access, expect, quiet) = match parser.verb() {
            Verb::MetaGet if has_choice && access_of_get(parser, bytes) != Access::Read => {
                let expect = if is_quiet { Expect::MetaQuiet } else { Expect::Meta };
                (access_of_get(parser, bytes), expect, Reticence::Miss)
            }
            Verb::MetaGet if is_quiet => (Access::Read, Expect::MetaQuiet, Reticence::Miss),
            Verb::MetaGet => (Access::Read, Expect::Meta, Reticence::Miss),
            Verb::MetaDebug => (Access::Read, parser.expect(), Reticence::Miss),
            Verb::MetaSet => match parser.expect() {
                Expect::Answer(answer) if is_quiet => {
                    (Access::Write, Expect::AnswerQuiet(answer), Reticence::Success)
                }
                expect => (Access::Write, expect, Reticence::Success),
            },
            _ if is_quiet => (Access::Write, Expect::Fenced, Reticence::Success),
            _ => (Access::Write, parser.expect(), Reticence::Success),
        };
        self.request_ctx.asked.quiet = quiet;
        self.request_ctx.expect = expect;
        if parser.verb() == Verb::MetaGet && self.destination_of(client).misses {
            write_meta_miss(parser.line().of(bytes), &mut self.request_ctx.miss);
        }
        let is_given = parser.expect() == Expect::Answer(Answer::MetaSetGiven);
        if is_given && writes_to_all {
            self.answer(client, |out| out.extend_from_slice(UNCOPIED));
            return Plan::Done;
        }
        let plan = match is_given {
            true => self.forward_alone(client, key, expect),
            false => self.forward_key(client, key, access, expect, bytes.len() + FENCE.len()),
        };
        if let Plan::Forward { lane, request } = plan {
            self.note_miss(request);
            if writes_to_all && parser.verb() == Verb::MetaGet {
                let leader = self.lane(lane).server;
                self.touch_others(client, leader, Write::Text(parser, bytes));
            }
        }
        plan
    }

    /// What becomes of a request that [`breaks_replies`].
    pub(super) fn refuse_untellable(&mut self, client: ClientId) -> Plan {
        self.answer(client, |out| out.extend_from_slice(UNTELLABLE));
        Plan::Done
    }

    /// What is said of an `ms` that its server has been seen not to know: it would read the data as
    /// commands.
    fn refusal_of_set(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        key: &[u8],
    ) -> Option<&'static [u8]> {
        let (backend, now) = (self.backend_of(client), self.now);
        let server = self.route(backend, key, Access::Write)?;
        let unknown = self.backends[backend].servers[server].unknown;
        let is_given = parser.expect() == Expect::Answer(Answer::MetaSetGiven);
        if now < unknown.sets {
            return Some(UNKNOWN_SET);
        }
        (is_given && now < unknown.given).then_some(UNKNOWN_FLAG)
    }
}

/// What `mg` does: some of its flags change the item. A unique is good only where writes are judged by it.
pub(super) fn access_of_get(parser: &RequestParser, bytes: &[u8]) -> Access {
    let flags = || words(parser.line().of(bytes)).skip(2);
    if flags().any(|flag| matches!(flag[0], b'N' | b'R' | b'T' | b'E')) {
        Access::Write
    } else if flags().any(|flag| flag[0] == b'c') {
        Access::Walk
    } else {
        Access::Read
    }
}

/// Whether the reply may have a line end in its key. What was stored by a binary request, or comes
/// into being by the flag `N`, has its key as it is where `mg` or `me` tells it, not in base64: what
/// follows the line end would be taken for the next reply, another client's, and could be made to look
/// like one. Who stored it, and when, nobody here can know, so that it goes by the key alone.
pub(super) fn breaks_replies(parser: &RequestParser, key: &[u8]) -> bool {
    parser.meta().tells_base64
        && matches!(parser.verb(), Verb::MetaGet | Verb::MetaDebug)
        && key.contains(&b'\n')
}

/// The only key of a request as its bytes are, out of base64. One that memcached could not read
/// either may go to any server, which will say so.
pub(super) fn plain_key<'k>(
    parser: &RequestParser,
    bytes: &'k [u8],
    buf: &'k mut KeyBuf,
) -> &'k [u8] {
    let key = parser.keys()[0].of(bytes);
    match parser.meta().is_base64 {
        true => decode_key(key, buf).unwrap_or(key),
        false => key,
    }
}
