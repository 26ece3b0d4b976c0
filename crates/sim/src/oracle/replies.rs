//! What a reply says: a transaction's end, a refusal, or an error in the gateway's words.

use std::borrow::Cow;

use crate::packet::{Packet, TEMPORARY_FAILURE};
use crate::redis_server::OUT_OF_MEMORY;
use crate::request::{Answer, Framing, Request};
use crate::{refusals, shape};

pub(super) const NILS: [&[u8]; 2] = [b"*-1\r\n", b"_\r\n"];
pub(super) const ABORT: &[u8] = b"-EXECABORT Transaction discarded because of previous errors.\r\n";

/// The reply of a transaction whose server fails, or refuses a command of it.
pub(super) fn is_abort(request: &Request, reply: &[u8]) -> bool {
    let is_session = matches!(request.answer, Answer::Session { .. });
    let is_of_memory =
        reply == OUT_OF_MEMORY || abort_reason(reply).as_deref() == Some(OUT_OF_MEMORY);
    is_session && (reply == ABORT || NILS.contains(&reply) || is_of_memory)
}

/// The error that EXEC names as that of a command before it.
pub(super) fn abort_reason(reply: &[u8]) -> Option<Vec<u8>> {
    let why = reply.strip_prefix(b"-EXECABORT Transaction discarded because of: ")?;
    Some([b"-", why].concat())
}

/// What clients may be told of a command that a node has not run.
pub(super) fn is_told_refusal(reply: &[u8]) -> bool {
    refusals::is_refusal(reply) && !refusals::is_sent_back(reply)
}

/// An error packet as the error in text; everything else unchanged.
pub(super) fn error_text(reply: &[u8]) -> Vec<u8> {
    match Packet::read(reply) {
        Some((packet, _)) if packet.magic == 0x81 && packet.status == TEMPORARY_FAILURE => {
            [b"SERVER_ERROR ", packet.value, b"\r\n"].concat()
        }
        _ => reply.to_vec(),
    }
}

/// The reply, or the error in it as it would be in text.
pub(super) fn told<'r>(request: &Request, reply: &'r [u8]) -> Cow<'r, [u8]> {
    match request.framing {
        Framing::Packet => error_text(reply).into(),
        _ => reply.into(),
    }
}

/// What follows the values of some of the parts, in their order.
pub(super) fn behind_values<'r>(request: &Request, mut reply: &'r [u8]) -> &'r [u8] {
    let outcomes = request.parts.iter().filter_map(|part| request.share(part));
    for outcome in outcomes.filter(|outcome| !outcome.refused) {
        reply = reply.strip_prefix(&*outcome.reply).unwrap_or(reply);
    }
    reply
}

/// Whether pieces answer the parts of a batch from that number on, in order: each with its correct
/// reply, which may be empty, or with an error.
pub(super) fn fits(request: &Request, at: usize, pieces: &[&[u8]]) -> bool {
    fits_up_to(request, at, request.parts.len(), pieces)
}

/// The same for the parts before the number `end`.
pub(super) fn fits_up_to(request: &Request, at: usize, end: usize, pieces: &[&[u8]]) -> bool {
    let Some(part) = request.parts[..end].get(at) else { return pieces.is_empty() };
    let due = request.quiet_answer(part);
    let is_done = match due.as_deref() {
        Some(b"") => fits_up_to(request, at + 1, end, pieces),
        Some(due) => pieces.first() == Some(&due) && fits_up_to(request, at + 1, end, &pieces[1..]),
        None if request.by_wire && !shape::is_strict(shape::Kind::Opening) => {
            fits_up_to(request, at + 1, end, pieces)
        }
        None => false,
    };
    let is_own = |piece: &[u8]| match (Packet::read(piece), request.framing) {
        (Some((packet, _)), Framing::PacketBatch) => {
            Some(&packet.opaque.to_be_bytes()[3])
                == part.payload.as_ref().map(|payload| &payload[1])
        }
        (_, framing) => framing == Framing::MetaBatch,
    };
    let is_error = |piece: &&&[u8]| is_own(piece) && is_gateway_error(&error_text(piece));
    is_done
        || (pieces.first().filter(is_error).is_some()
            && fits_up_to(request, at + 1, end, &pieces[1..]))
}

/// Replies that are the same for all servers and do not depend on keys belong to no part of a
/// request.
pub(super) fn is_surprise(request: &Request, reply: &[u8]) -> bool {
    match request.answer {
        Answer::Constant(_) => reply.starts_with(b"VERSION ") || shape::is_error_line(reply),
        Answer::Broadcast(_) => {
            // A request with a fence may have any reply.
            shape::is_error_line(reply) || request.tag == b"verbosity"
        }
        _ => false,
    }
}

/// There was no connection for a transaction or a blocking call.
pub(super) fn is_session_refusal(request: &Request, reply: &[u8]) -> bool {
    let wants_one = matches!(request.answer, Answer::Session { .. } | Answer::Wait { .. });
    wants_one && (reply == ABORT || reply.starts_with(b"-ERR all connections to server"))
}

/// Why a gateway does not send a server `ms`.
pub(super) const TOO_OLD: &str = "the server is too old for ms";

pub(super) fn is_replaced(reply: &[u8]) -> bool {
    without_server(reply.trim_ascii_end()) == b"-ERR Server was replaced by another"
}

pub(super) fn is_too_old(reply: &[u8]) -> bool {
    without_server(reply.trim_ascii_end()).ends_with(TOO_OLD.as_bytes())
}

pub(super) fn is_gateway_error(reply: &[u8]) -> bool {
    const TEXTS: [&str; 15] = [
        TOO_OLD,
        "Connection was taken back, since it was not used while others waited",
        "DB index is out of range",
        "Connection refused",
        "Connection timed out",
        "Connection reset by peer",
        "No route to host",
        "Host is down",
        "Server closed the connection",
        "Server sent an invalid reply",
        "Server refused AUTH or SELECT",
        "Server queue is full",
        "Server does not answer",
        "Server was removed from the configuration",
        "Server was replaced by another",
    ];
    let text = reply.strip_suffix(b"\r\n").unwrap_or(reply);
    let text = text.strip_prefix(b"-ERR ").or_else(|| text.strip_prefix(b"SERVER_ERROR "));
    // The error of a broadcast names the server that failed.
    let colon = text.and_then(|text| text.windows(2).position(|two| two == b": "));
    let text = text.map(|text| without_server(&text[colon.map_or(0, |colon| colon + 2)..]));
    text.is_some_and(|text| TEXTS.iter().any(|known| known.as_bytes() == text))
}

/// The gateway's words without the server that they name, if they do.
pub(super) fn without_server(text: &[u8]) -> &[u8] {
    const NAMED: &[u8] = b" (server ";
    let named = text.windows(NAMED.len()).position(|part| part == NAMED);
    named.filter(|_| text.ends_with(b")")).map_or(text, |at| &text[..at])
}
