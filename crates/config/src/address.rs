//! The grammar of `listen:` and of server lines. Both are read from their end, as twemproxy does.
//! So an IPv6 address needs no brackets.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use crate::diagnostic::{At, Complaint};
use crate::foreign;
use crate::groups::Member;
use crate::snapshot::Endpoint;
use crate::value::{INT_MAX, all_digits};

/// Longest path of a Unix socket: `sun_path` holds it and a zero byte.
pub const UNIX_PATH_SIZE_MAX: usize = 107;

/// Longest name of a pool or a server. The ring cuts `name-index` at 272 bytes, so longer names
/// could get the same points.
pub const NAME_SIZE_MAX: usize = 255;

/// The port that libmemcached omits from a server's name, as must everyone who shares a ring with
/// it.
const MEMCACHED_PORT: u16 = 11211;

const LINE_FORMAT: &str = "expected host:port:weight [name] or /path:weight [name]";

/// One item of `servers:`.
#[derive(Clone, Debug)]
pub(crate) struct ServerLine {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) weight: u32,
    /// Whether it is a section with a primary, maybe without replicas.
    pub(crate) is_group: bool,
    /// What Sentinels call the group that it stands for.
    pub(crate) group: Option<String>,
    pub(crate) zone: Option<String>,
    /// Servers with copies. Then this one is their primary, and the name is that of the group.
    pub(crate) replicas: Vec<At<Member>>,
}

impl ServerLine {
    /// Whether it is one server, whose address the file says.
    pub(crate) fn is_single(&self) -> bool {
        self.group.is_none() && self.replicas.is_empty()
    }

    pub(crate) fn parse_line(text: &str) -> Result<Self, Complaint> {
        if let Some(complaint) = foreign::url(text, "server", ":1") {
            return Err(complaint);
        }
        let (address, name) = match text.rsplit_once(' ') {
            Some((address, name)) => (address.trim_end(), Some(name)),
            None => (text, None),
        };
        let malformed = |why: &str| Complaint::new(format!("\"{text}\" {why}")).hint(LINE_FORMAT);
        let (address, weight) =
            address.rsplit_once(':').ok_or_else(|| malformed("is not a server"))?;
        let weight_offset = address.chars().count() + 1;
        let (endpoint, default_name) = if address.starts_with('/') {
            if address.contains(':') {
                return Err(malformed("has a \":\" in its path"));
            }
            // The colon belongs to the name: twemproxy includes it though no port follows.
            (Endpoint::Unix(unix_path(address)?), format!("{address}:"))
        } else {
            let (host, port) =
                address.rsplit_once(':').ok_or_else(|| malformed("lacks a port or a weight"))?;
            let port_number = parse_port(port).map_err(|c| c.offset(host.chars().count() + 1))?;
            let host = parse_host(host)?;
            let default_name = if port_number == MEMCACHED_PORT {
                host.to_owned()
            } else {
                // As written: a leading zero is part of the name.
                format!("{host}:{port}")
            };
            (Endpoint::Tcp { host: host.to_owned(), port: port_number }, default_name)
        };
        let weight = parse_weight(weight).map_err(|c| c.offset(weight_offset))?;
        let name = name.map_or(default_name, str::to_owned);
        check_name("server", &name)?;
        let (is_group, group, zone, replicas) = (false, None, None, Vec::new());
        Ok(Self { name, endpoint, weight, is_group, group, zone, replicas })
    }
}

/// The content of `listen:`, before any name is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenText {
    /// An empty `host` is every address.
    Tcp {
        host: String,
        port: u16,
    },
    Unix {
        path: PathBuf,
        mode: Option<u32>,
    },
}

impl ListenText {
    pub(crate) fn parse_text(text: &str) -> Result<Self, Complaint> {
        if let Some(complaint) = foreign::url(text, "address to listen at", "") {
            return Err(complaint);
        }
        if text.starts_with('/') {
            return Self::parse_unix(text);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| {
            Complaint::new(format!("\"{text}\" is not an address"))
                .hint("expected host:port or /path [mode]")
        })?;
        let port = parse_port(port).map_err(|c| c.offset(host.chars().count() + 1))?;
        let host = if host == "*" { "" } else { parse_host(host)? };
        Ok(Self::Tcp { host: host.to_owned(), port })
    }

    fn parse_unix(text: &str) -> Result<Self, Complaint> {
        let (path, mode) = match text.rsplit_once(' ') {
            Some((path, mode)) => {
                let offset = path.chars().count() + 1;
                (path.trim_end(), parse_mode(mode).map_err(|c| c.offset(offset))?)
            }
            None => (text, None),
        };
        Ok(Self::Unix { path: unix_path(path)?, mode })
    }
}

fn parse_mode(text: &str) -> Result<Option<u32>, Complaint> {
    let octal = || {
        Complaint::new(format!("\"{text}\" is not a file mode"))
            .hint("expected an octal number up to 0777, such as 0660")
    };
    if !all_digits(text) {
        return Err(octal());
    }
    match u32::from_str_radix(text, 8) {
        Ok(0) => Ok(None),
        Ok(mode) if mode <= 0o777 => Ok(Some(mode)),
        Ok(_) | Err(_) => Err(octal()),
    }
}

pub(crate) fn parse_port(text: &str) -> Result<u16, Complaint> {
    let port = all_digits(text).then(|| text.parse::<u16>().ok()).flatten();
    port.filter(|port| *port > 0).ok_or_else(|| {
        Complaint::new(format!("\"{text}\" is not a valid port"))
            .hint("expected a number from 1 to 65535")
    })
}

fn parse_weight(text: &str) -> Result<u32, Complaint> {
    let weight = all_digits(text).then(|| text.parse::<u64>().ok()).flatten();
    match weight {
        Some(0) => Err(Complaint::new("the weight is zero")
            .hint("a weight is at least 1; remove a server that must get no keys")),
        Some(weight) if weight <= INT_MAX => Ok(weight as u32),
        Some(_) | None => Err(Complaint::new(format!("\"{text}\" is not a valid weight"))
            .hint(format!("expected a number from 1 to {INT_MAX}"))),
    }
}

/// The host without brackets, if it had any. It may be a name, which is not looked up here.
pub(crate) fn parse_host(text: &str) -> Result<&str, Complaint> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let host = bare.unwrap_or(text);
    let is_ipv6 = || {
        let address = host.split_once('%').map_or(host, |(address, _)| address);
        address.parse::<Ipv6Addr>().is_ok()
    };
    let bad = |why: &str| Complaint::new(format!("\"{text}\" {why}"));
    if host.is_empty() {
        Err(Complaint::new("the host is missing"))
    } else if (bare.is_some() || host.contains(':')) && !is_ipv6() {
        Err(bad("is not an IPv6 address").hint("a port and a weight may be missing behind it"))
    } else if host.chars().any(|c| c.is_whitespace() || c.is_control()) || host.len() > 253 {
        Err(bad("is not a host"))
    } else {
        Ok(host)
    }
}

pub(crate) fn unix_path(text: &str) -> Result<PathBuf, Complaint> {
    if text.len() > UNIX_PATH_SIZE_MAX {
        return Err(Complaint::new(format!("the path has {} bytes", text.len()))
            .hint(format!("a Unix socket's path has at most {UNIX_PATH_SIZE_MAX}")));
    }
    if text.contains('\0') {
        return Err(Complaint::new("the path has a zero byte"));
    }
    Ok(PathBuf::from(text))
}

/// Names appear in statistics, logs and rings.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Complaint> {
    if name.is_empty() {
        return Err(Complaint::new(format!("the {what} has an empty name")));
    }
    if name.len() > NAME_SIZE_MAX {
        return Err(Complaint::new(format!("the {what}'s name has {} bytes", name.len()))
            .hint(format!("a name has at most {NAME_SIZE_MAX}")));
    }
    if name.chars().any(char::is_control) {
        return Err(Complaint::new(format!("the {what}'s name has a control character")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn server_lines_give_name_endpoint_and_weight() {
        let long_path = format!("/{}", "p".repeat(106));
        let table = [
            ("127.0.0.1:6379:1", "127.0.0.1:6379", tcp("127.0.0.1", 6379), 1),
            ("127.0.0.1:6379:1 server1", "server1", tcp("127.0.0.1", 6379), 1),
            ("127.0.0.1:6379:1   server1", "server1", tcp("127.0.0.1", 6379), 1),
            ("10.0.0.1:11211:3", "10.0.0.1", tcp("10.0.0.1", 11211), 3),
            ("10.0.0.1:11211:3 named", "named", tcp("10.0.0.1", 11211), 3),
            ("cache.example:06379:010", "cache.example:06379", tcp("cache.example", 6379), 10),
            ("cache.example:011211:1", "cache.example", tcp("cache.example", 11211), 1),
            ("::1:6379:1", "::1:6379", tcp("::1", 6379), 1),
            ("[::1]:6379:1", "::1:6379", tcp("::1", 6379), 1),
            ("[::1]:11211:1", "::1", tcp("::1", 11211), 1),
            ("fe80::1%eth0:6379:1", "fe80::1%eth0:6379", tcp("fe80::1%eth0", 6379), 1),
            ("a:65535:2147483647", "a:65535", tcp("a", 65535), 2_147_483_647),
            ("/tmp/redis.sock:1", "/tmp/redis.sock:", Endpoint::Unix("/tmp/redis.sock".into()), 1),
            ("/tmp/redis.sock:7 s", "s", Endpoint::Unix("/tmp/redis.sock".into()), 7),
            ("/tmp/a b:1 s", "s", Endpoint::Unix("/tmp/a b".into()), 1),
            (&format!("{long_path}:1 s"), "s", Endpoint::Unix(long_path.into()), 1),
        ];
        for (text, name, endpoint, weight) in table {
            let line = ServerLine::parse_line(text).expect(text);
            assert_eq!((&*line.name, &line.endpoint, line.weight), (name, &endpoint, weight));
            assert!(line.group.is_none() && line.zone.is_none() && line.replicas.is_empty());
        }
    }

    #[test]
    fn bad_server_lines_are_refused_at_the_offending_part() {
        let long_path = format!("/{}:1", "p".repeat(107));
        let long_name = format!("a:1:1 {}", "n".repeat(256));
        let table = [
            ("localhost", 0, "\"localhost\" is not a server"),
            ("127.0.0.1:6379", 0, "\"127.0.0.1:6379\" lacks a port or a weight"),
            ("127.0.0.1:0:1", 10, "\"0\" is not a valid port"),
            ("127.0.0.1:65536:1", 10, "\"65536\" is not a valid port"),
            ("127.0.0.1:x:1", 10, "\"x\" is not a valid port"),
            ("127.0.0.1:+1:1", 10, "\"+1\" is not a valid port"),
            ("127.0.0.1::1", 10, "\"\" is not a valid port"),
            ("127.0.0.1:1:0", 12, "the weight is zero"),
            ("127.0.0.1:1:", 12, "\"\" is not a valid weight"),
            ("127.0.0.1:1:-1", 12, "\"-1\" is not a valid weight"),
            ("127.0.0.1:1:2147483648", 12, "\"2147483648\" is not a valid weight"),
            (":6379:1", 0, "the host is missing"),
            ("::1:6379", 0, "\":\" is not an IPv6 address"),
            ("[10.0.0.1]:6379:1", 0, "\"[10.0.0.1]\" is not an IPv6 address"),
            ("a b:6379:1", 0, "\"a b:6379:1\" is not a server"),
            ("a b:6379:1 c", 0, "\"a b\" is not a host"),
            ("/a:b:1", 0, "\"/a:b:1\" has a \":\" in its path"),
            ("/a", 0, "\"/a\" is not a server"),
            (&long_path, 0, "the path has 108 bytes"),
            (&long_name, 0, "the server's name has 256 bytes"),
            ("a:1:1 x\u{7}y", 0, "the server's name has a control character"),
        ];
        for (text, offset, message) in table {
            let complaint = ServerLine::parse_line(text).expect_err(text);
            assert_eq!((complaint.offset, complaint.message.as_str()), (offset, message), "{text}");
        }
    }

    #[test]
    fn listen_takes_addresses_and_paths() {
        let address = |host: &str, port| ListenText::Tcp { host: host.to_owned(), port };
        let path = |path: &str, mode| ListenText::Unix { path: path.into(), mode };
        let table = [
            ("127.0.0.1:22121", address("127.0.0.1", 22121)),
            ("localhost:022121", address("localhost", 22121)),
            ("[::1]:22121", address("::1", 22121)),
            ("::1:22121", address("::1", 22121)),
            ("*:22121", address("", 22121)),
            ("/tmp/cashew", path("/tmp/cashew", None)),
            ("/tmp/cashew 0", path("/tmp/cashew", None)),
            ("/tmp/cashew 0660", path("/tmp/cashew", Some(0o660))),
            ("/tmp/cashew  777", path("/tmp/cashew", Some(0o777))),
        ];
        for (text, expected) in table {
            assert_eq!(ListenText::parse_text(text).expect(text), expected, "{text}");
        }
        let long_path = format!("/{}", "p".repeat(107));
        let table = [
            ("localhost", 0, "\"localhost\" is not an address"),
            ("localhost:0", 10, "\"0\" is not a valid port"),
            (":22121", 0, "the host is missing"),
            ("/tmp/x 1000", 7, "\"1000\" is not a file mode"),
            ("/tmp/x 8", 7, "\"8\" is not a file mode"),
            ("/tmp/x rw", 7, "\"rw\" is not a file mode"),
            (&long_path, 0, "the path has 108 bytes"),
        ];
        for (text, offset, message) in table {
            let complaint = ListenText::parse_text(text).expect_err(text);
            assert_eq!((complaint.offset, complaint.message.as_str()), (offset, message), "{text}");
        }
    }
}
