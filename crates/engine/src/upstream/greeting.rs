//! What is said first on a connection to a server of memcached that wants to know who asks.
//!
//! In the binary protocol that is SASL PLAIN, in text a `set` whose value is user and password, as memcached
//! with `-Y` wants it.

use cashew_config::snapshot::Credentials;
use cashew_protocol::memcached::binary::{Opcode, write_request};

use crate::upstream::session_params::WireProtocol;

/// The only way to log in by SASL.
pub(crate) const MECHANISM: &[u8] = b"PLAIN";

/// Writes what is said first on a new connection to a server. It has one answer.
pub(crate) fn greet(wire_protocol: WireProtocol, credentials: &Credentials, out: &mut Vec<u8>) {
    let Credentials { user, password } = credentials;
    if wire_protocol == WireProtocol::Binary {
        let value = format!("\0{user}\0{password}");
        write_request(Opcode::SaslAuth.byte(), MECHANISM, value.as_bytes(), out);
    } else {
        let value = format!("{user} {password}");
        out.extend_from_slice(format!("set auth 0 0 {}\r\n{value}\r\n", value.len()).as_bytes());
    }
}

/// Whether the server's answer to that is good.
pub(crate) fn is_greeted(wire_protocol: WireProtocol, reply: &[u8]) -> bool {
    match wire_protocol {
        WireProtocol::Binary => reply.get(6..8) == Some(&[0, 0]),
        _ => reply.starts_with(b"STORED"),
    }
}
