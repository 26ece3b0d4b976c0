//! Where clients come from: which addresses are let in, and who tells of others' addresses.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Which clients a pool takes, by their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientSources {
    /// Only these, if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_from: Vec<Source>,
    /// None of these, also if they are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_from: Vec<Source>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocol>,
}

/// Connections that begin with a header that tells whose they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyProtocol {
    /// Whose do; `None` is everybody's.
    pub trusted: Option<Vec<Source>>,
    /// How long the header may take.
    pub timeout_ms: u64,
}

/// Some addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Whoever connects to a Unix socket.
    Unix,
    /// Those whose first bits are these. The others are 0.
    Net { address: IpAddr, bits: u8 },
}

impl ClientSources {
    /// Whether nothing has to be known of a client's address.
    pub fn is_empty(&self) -> bool {
        self.allows_all() && self.proxy_protocol.is_none()
    }

    pub fn allows_all(&self) -> bool {
        self.allow_from.is_empty() && self.deny_from.is_empty()
    }

    /// Whether a client of this address is let in; `None` is that of a Unix socket.
    pub fn allows(&self, peer: Option<IpAddr>) -> bool {
        let is_allowed = self.allow_from.is_empty() || contains(&self.allow_from, peer);
        is_allowed && !contains(&self.deny_from, peer)
    }

    /// How long the header may take that a connection from there begins with, if it does.
    pub fn header_timeout_ms(&self, peer: Option<IpAddr>) -> Option<u64> {
        let ProxyProtocol { trusted, timeout_ms } = self.proxy_protocol.as_ref()?;
        let is_trusted = trusted.as_ref().is_none_or(|trusted| contains(trusted, peer));
        is_trusted.then_some(*timeout_ms)
    }
}

fn contains(sources: &[Source], peer: Option<IpAddr>) -> bool {
    // To a listener of both families those of version 4 come with mapped addresses.
    let peer = peer.map(|address| address.to_canonical());
    sources.iter().any(|source| source.contains(peer))
}

impl Source {
    /// Whether that address, which is in its canonical form, is of it; `None` is a Unix socket.
    pub fn contains(self, peer: Option<IpAddr>) -> bool {
        match (self, peer) {
            (Self::Unix, None) => true,
            (Self::Net { address: IpAddr::V4(net), bits }, Some(IpAddr::V4(peer))) => {
                u32::from(peer) & mask_v4(bits) == u32::from(net)
            }
            (Self::Net { address: IpAddr::V6(net), bits }, Some(IpAddr::V6(peer))) => {
                u128::from(peer) & mask_v6(bits) == u128::from(net)
            }
            _ => false,
        }
    }

    /// The addresses that have their first bits in common with this one.
    pub fn around(address: IpAddr, bits: u8) -> Self {
        let address = match address {
            IpAddr::V4(address) => IpAddr::V4((u32::from(address) & mask_v4(bits)).into()),
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) & mask_v6(bits)).into()),
        };
        Self::Net { address, bits }
    }

    /// How many bits an address of this family has.
    pub fn bits_of(address: IpAddr) -> u8 {
        match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        }
    }
}

fn mask_v4(bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0)
}

fn mask_v6(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix => f.write_str("unix"),
            Self::Net { address, bits } if *bits == Self::bits_of(*address) => {
                write!(f, "{address}")
            }
            Self::Net { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Source {
        let (address, bits) = text.split_once('/').unwrap();
        Source::around(address.parse().unwrap(), bits.parse().unwrap())
    }

    fn peer(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn networks_contain_their_addresses() {
        for (source, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("10.1.2.3/32", "10.1.2.3", "10.1.2.2"),
            ("10.1.2.4/30", "10.1.2.7", "10.1.2.8"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("fd00::/8", "fdff::1", "fe00::"),
            ("::1/128", "::1", "::2"),
            ("::/0", "ffff::", "1.2.3.4"),
        ] {
            let source = net(source);
            assert!(contains(&[source], peer(inside)), "{source} {inside}");
            assert!(!contains(&[source], peer(outside)), "{source} {outside}");
            assert!(!contains(&[source], None), "{source}");
        }
        assert!(contains(&[Source::Unix], None) && !contains(&[Source::Unix], peer("::1")));
    }

    #[test]
    fn who_is_denied_is_not_let_in_though_allowed() {
        let lists = |allow: &[&str], deny: &[&str]| ClientSources {
            allow_from: allow.iter().copied().map(net).collect(),
            deny_from: deny.iter().copied().map(net).collect(),
            proxy_protocol: None,
        };
        assert!(lists(&[], &[]).allows(peer("1.2.3.4")) && lists(&[], &[]).allows(None));
        assert!(lists(&[], &["1.0.0.0/8"]).allows(None));
        assert!(!lists(&["1.0.0.0/8"], &[]).allows(None));
        let both = lists(&["1.0.0.0/8", "2.0.0.0/8"], &["1.2.0.0/16"]);
        assert!(both.allows(peer("1.1.0.0")) && both.allows(peer("2.2.0.0")));
        assert!(!both.allows(peer("1.2.0.0")) && !both.allows(peer("3.0.0.0")));
    }

    #[test]
    fn sources_are_written_as_they_are_read() {
        for text in ["10.0.0.0/8", "::/0"] {
            assert_eq!(net(text).to_string(), text);
        }
        assert_eq!(net("10.0.0.1/32").to_string(), "10.0.0.1");
        assert_eq!(Source::Unix.to_string(), "unix");
    }
}
