//! Replies that are looked at before they are passed on: whether the client wants them, and under
//! which name.

use cashew_protocol::memcached::{Expect, Reticence};

use super::Asked;
use crate::base::id::{ClientId, RequestId};
use crate::engine::Engine;

/// So much of a reply tells what it is: a meta command's two letters, a header up to its status.
const META_OPENING: usize = 2;
const PACKET_OPENING: usize = 8;
/// Of a server that has said nothing.
const UNANSWERED: &[u8] = b"SERVER_ERROR no answer\r\n";
/// What is behind a fenced reply.
const FENCE: &[u8] = b"MN\r\n";

impl Engine {
    /// The last bytes of a reply that is sifted; the request has left its lane.
    pub(crate) fn deliver_quiet_filtered(&mut self, index: RequestId, bytes: &[u8]) {
        let rest = self.filter_quiet(index, bytes, true);
        self.deliver(index, rest);
    }

    /// Bytes of such a reply that goes on.
    pub(crate) fn deliver_part_quiet_filtered(&mut self, index: RequestId, bytes: &[u8]) {
        let rest = self.filter_quiet(index, bytes, false);
        if !rest.is_empty() {
            self.deliver_part(index, rest);
            return;
        }
        let client = self.waiting_client(index);
        if client != ClientId::NONE {
            self.check_output(client);
        }
    }

    /// Takes in bytes of a reply until it is known what becomes of it; returns those that are to be
    /// delivered in the usual way.
    fn filter_quiet<'b>(&mut self, index: RequestId, bytes: &'b [u8], is_last: bool) -> &'b [u8] {
        let request = &mut self.requests[index];
        let len = match request.expect {
            Expect::Fenced | Expect::Told => usize::MAX,
            Expect::PacketQuiet => PACKET_OPENING,
            _ => META_OPENING,
        };
        let (opening, rest) = bytes.split_at(bytes.len().min(len - request.reply.len()));
        request.arrived += opening.len() as u64;
        self.hold(index, opening);
        let request = &self.requests[index];
        let is_known = request.reply.len() >= len;
        // Where its reply ends goes by what is expected: a fence stays one until it has come,
        // whoever waits for it.
        let is_fenced = matches!(request.expect, Expect::Fenced | Expect::Told);
        if is_known || is_last || (!is_fenced && self.waiting_client(index) == ClientId::NONE) {
            self.decide(index);
        }
        rest
    }

    /// Decides by the start of a reply, or by all of a fenced one.
    fn decide(&mut self, index: RequestId) {
        let request = &mut self.requests[index];
        request.asked.is_quiet_filtered = true;
        let asked = request.asked;
        let is_unwanted = match request.expect {
            Expect::Fenced => {
                let len = request.reply.len().saturating_sub(FENCE.len());
                self.cut_reply(index, len);
                let request = &mut self.requests[index];
                request.expect = Expect::Meta;
                request.reply.is_empty()
            }
            Expect::Told => {
                let reply = request.reply.strip_suffix(b"\n").unwrap_or_default();
                // One answer, however many lines there are: a client is owed no more than that. Only
                // statistics have several.
                let mut ends = reply.iter();
                let end = match reply.starts_with(b"STAT ") {
                    true => ends.rposition(|&byte| byte == b'\n'),
                    false => ends.position(|&byte| byte == b'\n'),
                };
                let len = end.map_or(0, |end| end + 1);
                request.expect = Expect::Line;
                self.cut_reply(index, len);
                if len == 0 {
                    self.hold(index, UNANSWERED);
                }
                false
            }
            Expect::AnswerQuiet(answer) => {
                request.expect = Expect::Answer(answer);
                request.reply.starts_with(b"HD")
            }
            Expect::PacketQuiet => {
                request.expect = Expect::Packet;
                is_unwanted_packet(&mut request.reply, asked)
            }
            _ => {
                request.expect = Expect::Meta;
                match asked.quiet {
                    Reticence::Miss => request.reply.starts_with(b"EN"),
                    Reticence::Success => request.reply.starts_with(b"HD"),
                }
            }
        };
        if is_unwanted {
            self.drop_reply(index);
            self.requests[index].silent = true;
        }
    }

    /// Drops what a reply has behind its first bytes.
    fn cut_reply(&mut self, index: RequestId, len: usize) {
        let request = &mut self.requests[index];
        let cut = request.reply.len() - len;
        request.reply.truncate(len);
        let client = self.waiting_client(index);
        if client != ClientId::NONE {
            self.clients[client].held -= cut as u64;
        }
    }

    /// Makes a merged reply that of the request as the client asked it.
    pub(crate) fn filter_quiet_merged(&mut self, parent: RequestId, reply: &mut [u8]) {
        let request = &mut self.requests[parent];
        if request.expect == Expect::PacketQuiet && is_unwanted_packet(reply, request.asked) {
            request.silent = true;
        }
    }
}

/// Whether the client does not want to see the packet of which these are the first bytes. Gives it
/// the name under which the client asked.
fn is_unwanted_packet(packet: &mut [u8], asked: Asked) -> bool {
    const NOT_FOUND: [u8; 2] = [0, 1];
    const SUCCESS: [u8; 2] = [0, 0];
    if let Some(opcode) = packet.get_mut(1) {
        *opcode = asked.opcode;
    }
    packet.get(6..8).is_some_and(|status| match asked.quiet {
        Reticence::Miss => status == NOT_FOUND,
        Reticence::Success => status == SUCCESS,
    })
}
