//! Maintenance notifications: pushes to clients of RESP3 that want them, CLIENT MAINT_NOTIFICATIONS.
//!
//! They tell that the instance goes, and where to, or that a group has no server that takes its writes for a
//! while. Clients in a blocking call, subscribers and monitors get none, as from Redis. When they are sent:
//! `engine/clients.rs`.

use cashew_config::snapshot::{Listen, Maintenance, Notified, Pool, Refuge};
use cashew_protocol::resp::{Version, encode};

use crate::base::time::Time;
use crate::downstream::client::{Client, State};
use crate::upstream::session_params::WireProtocol;

/// What a client may want to know of the address that it is to go to. There is one, whatever it says.
const ENDPOINT_TYPES: [&str; 4] = ["internal-ip", "internal-fqdn", "external-ip", "external-fqdn"];

/// The instance goes.
#[derive(Clone, Debug)]
pub(crate) struct MovingAway {
    pub(crate) seq: u64,
    pub(crate) until: Time,
    pub(crate) to: Option<Refuge>,
}

pub(crate) fn may_be_told(client: &Client) -> bool {
    let Client { state, modes, session, noreply, .. } = client;
    *state != State::Closing
        && session.wire_protocol == WireProtocol::Resp3
        && !noreply
        && modes.blocking.is_none()
        && modes.subscriber.is_none()
        && modes.monitor.is_none()
}

/// `None` if that is not what may be said.
pub(crate) fn notified<'a>(mut args: impl Iterator<Item = &'a [u8]>) -> Option<Notified> {
    let is = |word: &[u8], text: &str| word.eq_ignore_ascii_case(text.as_bytes());
    let mut notified = match args.next()? {
        word if is(word, "on") => Notified::Yes,
        word if is(word, "off") => Notified::No,
        _ => return None,
    };
    while let Some(option) = args.next() {
        let value = args.next()?;
        if notified == Notified::No || !is(option, "moving-endpoint-type") {
            return None;
        }
        notified = match value {
            value if is(value, "none") => Notified::WithoutAddress,
            value if ENDPOINT_TYPES.iter().any(|it| is(value, it)) => Notified::Yes,
            _ => return None,
        };
    }
    Some(notified)
}

/// The push, of RESP3. Some clients drop what has fewer elements, or texts that are no bulk strings.
pub(crate) fn frame(event: &Maintenance, notified: Notified, config: &Pool) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut begin = |name: &str, len, seq: u64| {
        encode::write_push_header(&mut out, Version::Resp3, len);
        encode::write_bulk(&mut out, name.as_bytes());
        encode::write_integer(&mut out, seq as i64);
    };
    match event {
        Maintenance::Moving { seq, seconds, to } => {
            begin("MOVING", 4, *seq);
            encode::write_integer(&mut out, *seconds as i64);
            let to = to.as_ref().filter(|_| notified == Notified::Yes);
            match to.and_then(|to| address(to, config)) {
                Some(address) => encode::write_bulk(&mut out, address.as_bytes()),
                None => encode::write_null(&mut out, Version::Resp3),
            }
        }
        Maintenance::Staying => return None,
        Maintenance::FailingOver { seq, seconds, group } => {
            begin("FAILING_OVER", 4, *seq);
            encode::write_integer(&mut out, *seconds as i64);
            encode::write_bulk(&mut out, group.as_bytes());
        }
        Maintenance::FailedOver { seq, group } => {
            begin("FAILED_OVER", 3, *seq);
            encode::write_bulk(&mut out, group.as_bytes());
        }
    }
    Some(out)
}

/// Where a client of the pool is to go. `None` if it is not known by which of two ports it has come.
fn address(to: &Refuge, config: &Pool) -> Option<String> {
    match (to.port, &config.listen, &config.tls_listen) {
        (Some(port), ..) => Some(format!("{}:{port}", to.host)),
        (None, Listen::Tcp(listen), None) => Some(format!("{}:{}", to.host, listen.port())),
        (None, ..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_say_is_read_strictly() {
        let read = |text: &str| notified(text.split(' ').map(str::as_bytes));
        assert_eq!(read("ON"), Some(Notified::Yes));
        assert_eq!(read("off"), Some(Notified::No));
        assert_eq!(read("on moving-endpoint-type external-ip"), Some(Notified::Yes));
        assert_eq!(read("on MOVING-ENDPOINT-TYPE NONE"), Some(Notified::WithoutAddress));
        for bad in [
            "",
            "maybe",
            "on moving-endpoint-type",
            "on moving-endpoint-type ip",
            "on endpoint none",
            "off moving-endpoint-type none",
            "on on",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
