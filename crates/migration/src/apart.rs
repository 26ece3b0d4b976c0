//! Whether two pools have servers in common, whatever these are called. Copying from a server to itself would remove
//! what it has.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use cashew_config::snapshot::{Endpoint, Protocol};

use crate::link::Link;
use crate::side::{Access, Side};

/// How long a key is there at most that is looked for elsewhere, in seconds.
const PROBE_TTL: u32 = 10;

/// Where a server is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Whereabouts {
    addresses: BTreeSet<SocketAddr>,
    path: Option<PathBuf>,
}

impl Whereabouts {
    fn of(endpoint: &Endpoint) -> io::Result<Self> {
        Ok(match endpoint {
            Endpoint::Tcp { host, port } => {
                let found = (host.as_str(), *port).to_socket_addrs()?;
                let addresses = found.map(|it| SocketAddr::new(canonical(it.ip()), it.port()));
                Self { addresses: addresses.collect(), path: None }
            }
            Endpoint::Unix(path) => {
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                Self { addresses: BTreeSet::new(), path: Some(path) }
            }
        })
    }

    fn meets(&self, other: &Self) -> bool {
        !self.addresses.is_disjoint(&other.addresses)
            || self.path.is_some() && self.path == other.path
    }
}

fn canonical(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        ip if ip.is_loopback() && ip.is_ipv6() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// An error if a server of `to` is one of `from`, or one of another move's pools.
pub(crate) fn check(from: &Side, to: &Side, others: &[&Side]) -> Result<(), String> {
    let own = [from, to];
    let rest = others.iter().filter(|it| own.iter().all(|own| own.pool != it.pool));
    // Those of this move have to answer.
    let pairs = [(to, from, true)].into_iter();
    let pairs = pairs.chain(rest.flat_map(|other| own.map(|side| (side, *other, false))));
    for (side, other, must_answer) in pairs {
        for access in &side.shards {
            let mine = Known::of(access).map_err(|error| describe(&error, side, access))?;
            for theirs in &other.shards {
                let is_same = mine.is(access, theirs, std::ptr::eq(side, to));
                let is_same = match is_same {
                    Err(error) if must_answer => return Err(describe(&error, other, theirs)),
                    outcome => outcome.unwrap_or(false),
                };
                if is_same {
                    return Err(format!(
                        "server {} of pool {} is server {} of pool {}: what is copied would be removed where it is",
                        access.name, side.pool, theirs.name, other.pool
                    ));
                }
            }
        }
    }
    Ok(())
}

fn describe(error: &io::Error, side: &Side, access: &Access) -> String {
    format!("pool {}, server {}: {error}", side.pool, access.name)
}

struct Known {
    whereabouts: Whereabouts,
    run_id: Option<String>,
}

impl Known {
    fn of(access: &Access) -> io::Result<Self> {
        let whereabouts = Whereabouts::of(&access.endpoint)?;
        let run_id = match access.protocol {
            Protocol::Redis => run_id(access)?,
            Protocol::Memcached | Protocol::Tcp => None,
        };
        Ok(Self { whereabouts, run_id })
    }

    fn is(&self, access: &Access, other: &Access, may_write: bool) -> io::Result<bool> {
        if self.whereabouts.meets(&Whereabouts::of(&other.endpoint)?) {
            return Ok(true);
        }
        match other.protocol {
            Protocol::Redis => Ok(self.run_id.is_some() && self.run_id == run_id(other)?),
            // It has nothing that tells it from others, but for what is stored there.
            Protocol::Memcached if may_write => is_found(access, other),
            Protocol::Memcached | Protocol::Tcp => Ok(false),
        }
    }
}

/// What a process of Redis calls itself; `None` if it does not tell.
fn run_id(access: &Access) -> io::Result<Option<String>> {
    let Some(info) = Link::connect(access)?.ask(&[b"INFO", b"server"])?.bytes() else {
        return Ok(None);
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    Ok(info.lines().find_map(|line| line.strip_prefix("run_id:")).map(|id| id.trim().to_owned()))
}

/// Whether what is stored at one memcached is found at the other.
fn is_found(access: &Access, other: &Access) -> io::Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let key = format!("cashew-move-{now:x}-{}", std::process::id());
    let mut target = Link::connect(access)?;
    target.say(format!("set {key} 0 {PROBE_TTL} 1\r\n1\r\n").as_bytes());
    let answer = target.line()?;
    if answer != b"STORED" {
        let answer = String::from_utf8_lossy(&answer).into_owned();
        return Err(io::Error::other(format!("it does not store a key: {answer}")));
    }
    let mut link = Link::connect(other)?;
    link.say(format!("mg {key}\r\n").as_bytes());
    let is_found = link.line()? == b"HD";
    target.say(format!("delete {key}\r\n").as_bytes());
    target.line()?;
    Ok(is_found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_has_many_names() {
        let of = |host: &str, port| {
            Whereabouts::of(&Endpoint::Tcp { host: host.to_owned(), port }).unwrap()
        };
        assert!(of("127.0.0.1", 7).meets(&of("localhost", 7)));
        assert!(of("::1", 7).meets(&of("127.0.0.1", 7)));
        assert!(of("::ffff:127.0.0.1", 7).meets(&of("127.0.0.1", 7)));
        assert!(!of("127.0.0.1", 7).meets(&of("127.0.0.1", 8)));
        let path = |path: &str| Whereabouts::of(&Endpoint::Unix(path.into())).unwrap();
        assert!(path("/dev/../dev/null").meets(&path("/dev/null")));
        assert!(!path("/dev/null").meets(&path("/dev/zero")));
        assert!(!path("/dev/null").meets(&of("127.0.0.1", 7)));
    }
}
