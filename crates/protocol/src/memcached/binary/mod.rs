//! The binary protocol of memcached: packets of a header of 24 bytes, extras, key and value.
//!
//! The header alone shows everything for which a server would refuse a request or close the
//! connection. So a forwarded request keeps its place on a shared connection.

mod header;
mod opcode;
mod packet;
mod plain;
mod reply;
mod request;

pub use header::{HEADER_SIZE, RequestHeader, Response, Status, write_response};
pub use opcode::Opcode;
pub use packet::{Packet, Packets, write_request};
pub use plain::{PlainRequest, plain_reply, plain_request};
pub use reply::ReplyScanner;
pub use request::{Parsed, RequestParser};
