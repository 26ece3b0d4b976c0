//! Where clients go while the instance drains: `drain_to`.

use schemars::{Schema, json_schema};

use crate::diagnostic::Complaint;
use crate::snapshot::Refuge;
use crate::value::Value;

#[derive(Clone, Debug)]
pub(crate) struct RefugeText(pub(crate) Refuge);

impl Value for RefugeText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let refused =
            |why: &str| Complaint::new(format!("\"{text}\" {why}")).hint(Self::expected());
        if text.contains(['[', ']']) || text.matches(':').count() > 1 {
            return Err(refused("is an IPv6 address, which clients cannot tell from its port"));
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if host.is_empty() || host.len() > 253 || !host.bytes().all(is_plain) {
            return Err(refused("is not an address"));
        }
        let port = match port.map(str::parse::<u16>) {
            Some(Ok(0) | Err(_)) => return Err(refused("is not an address")),
            Some(Ok(port)) => Some(port),
            None => None,
        };
        Ok(Self(Refuge { host: host.to_owned(), port }))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9._-]+(:[0-9]+)?$" })
    }

    fn describe() -> String {
        "`host` or `host:port`".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_taken_with_and_without_ports() {
        let parsed = |text: &str| RefugeText::parse(text).ok().map(|it| it.0.to_string());
        for good in ["gateway-2", "gateway-2:6379", "10.0.0.2", "10.0.0.2:1", "a.b_c"] {
            assert_eq!(parsed(good).as_deref(), Some(good));
        }
        let bad = ["", ":1", "a:", "a:0", "a:65536", "a:b", "::1", "[::1]:1", "a b", "a/b", "é"];
        for bad in bad {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
