//! What servers are told of the clients whose connections they get.

use cashew_config::snapshot::SendProxy;
use cashew_protocol::proxy::{self, Header};

use crate::tcp::session::Source;

/// The header of the PROXY protocol on a connection that only looks whether the server is there.
pub(super) fn header_of_check(version: SendProxy) -> Option<Vec<u8>> {
    match version {
        SendProxy::Off => None,
        SendProxy::V1 => Some(proxy::line(Header::Own)),
        SendProxy::V2 => Some(proxy::local_packet()),
    }
}

/// The header of the PROXY protocol that a connection to a server begins with.
pub(super) fn header(version: SendProxy, source: Option<Source>) -> Option<Vec<u8>> {
    let header = match source {
        Some(Source { client, to }) => Header::Passed { client, to },
        None => Header::Own,
    };
    match version {
        SendProxy::Off => None,
        SendProxy::V1 => Some(proxy::line(header)),
        SendProxy::V2 => Some(proxy::packet(header)),
    }
}
