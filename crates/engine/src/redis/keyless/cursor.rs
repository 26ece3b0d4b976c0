//! SCAN over several servers: a cursor that says which one is next, and where in it.
//!
//! A server's own cursor counts the buckets of its table (Redis's dictScan leaves no bit set above
//! the table's mask), so that there is room beside it. Beside it stand the server's place in the
//! pool and a tag of the list of its servers: after a reload that changed the list the place would
//! mean another server, and keys would silently be left out.
//!
//! The gateway keeps nothing: every worker understands the cursors of all others.

use crate::base::id::ServerId;
use cashew_config::snapshot;

/// Cursors stay below it: many clients read them as signed 64-bit numbers.
const CURSOR_MAX: u64 = i64::MAX as u64;
const TAGS: u64 = 1 << 16;

/// Where a walk over the servers of a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// By its place in the pool.
    pub(crate) server: ServerId,
    /// The server's own.
    pub(crate) inner: u64,
}

/// The list of servers that cursors are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    servers: u32,
    tag: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadCursor {
    /// No number that a cursor could be.
    Malformed,
    /// Of another list of servers.
    Foreign,
}

impl BadCursor {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Malformed => "ERR invalid cursor",
            Self::Foreign => {
                "ERR invalid cursor: the servers of this pool are not those that it was given \
                 for; start again with cursor 0"
            }
        }
    }
}

impl Walk {
    pub(crate) fn new(servers: &[snapshot::Server]) -> Self {
        // FNV-1a: the same in all workers and in every version.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        let mut add = |bytes: &[u8]| {
            for &byte in bytes.iter().chain(&[0]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for server in servers {
            add(server.name.as_bytes());
            match &server.endpoint {
                snapshot::Endpoint::Tcp { host, port } => {
                    add(host.as_bytes());
                    add(&port.to_be_bytes());
                }
                snapshot::Endpoint::Unix(path) => add(path.as_os_str().as_encoded_bytes()),
            }
        }
        let tag = (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) as u16;
        Self { servers: servers.len() as u32, tag }
    }

    pub(crate) fn servers(self) -> u32 {
        self.servers
    }

    /// Reads a client's cursor; `None` stands for 0, the beginning.
    pub(crate) fn read(self, text: &[u8]) -> Result<Option<Cursor>, BadCursor> {
        let number = number(text).ok_or(BadCursor::Malformed)?;
        if number == 0 {
            return Ok(None);
        }
        if number > CURSOR_MAX {
            return Err(BadCursor::Malformed);
        }
        let servers = u64::from(self.servers);
        let (rest, server) = (number / servers, number % servers);
        let (inner, tag) = (rest / TAGS, rest % TAGS);
        if tag != u64::from(self.tag) {
            return Err(BadCursor::Foreign);
        }
        Ok(Some(Cursor { server: ServerId::new(server as u32), inner }))
    }

    /// The number for it; `None` if the server's cursor leaves no room for the rest. Never 0, which
    /// stands for the end, unless `cursor` is the beginning.
    pub(crate) fn write(self, cursor: Cursor) -> Option<u64> {
        let rest = cursor.inner.checked_mul(TAGS)?.checked_add(u64::from(self.tag))?;
        let number = rest
            .checked_mul(u64::from(self.servers))?
            .checked_add(u64::from(cursor.server.number()))?;
        (number <= CURSOR_MAX).then_some(number)
    }
}

/// A cursor in decimal.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(names: &[&str]) -> Vec<snapshot::Server> {
        let server = |name: &&str| snapshot::Server {
            name: (*name).to_owned(),
            endpoint: snapshot::Endpoint::Tcp { host: "h".to_owned(), port: 1 },
            weight: 1,
            zone: None,
        };
        names.iter().map(server).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let walk = Walk::new(&servers(&["a", "b", "c"]));
        for server in 0..3 {
            for inner in [0, 1, 7, 1 << 20, 1 << 32, (1 << 45) - 1] {
                let cursor = Cursor { server: ServerId::new(server), inner };
                let number = walk.write(cursor).unwrap();
                assert!(number <= CURSOR_MAX);
                if number > 0 {
                    assert_eq!(walk.read(number.to_string().as_bytes()), Ok(Some(cursor)));
                }
            }
        }
        assert_eq!(walk.read(b"0"), Ok(None));
        assert_eq!(walk.write(Cursor { server: ServerId::new(0), inner: 1 << 46 }), None);
        assert_eq!(walk.write(Cursor { server: ServerId::new(0), inner: u64::MAX }), None);
    }

    #[test]
    fn the_most_servers_leave_room_for_large_tables() {
        let walk = Walk { servers: snapshot::SERVERS_MAX as u32, tag: u16::MAX };
        let last = Cursor { server: ServerId::new(walk.servers - 1), inner: (1 << 31) - 1 };
        let number = walk.write(last).unwrap();
        assert_eq!(walk.read(number.to_string().as_bytes()), Ok(Some(last)));
    }

    #[test]
    fn other_lists_have_other_tags() {
        let lists = [&["a", "b"][..], &["a", "c"], &["b", "a"], &["ab", ""], &["a", "b", "c"]];
        let walks: Vec<Walk> = lists.iter().map(|names| Walk::new(&servers(names))).collect();
        for (at, walk) in walks.iter().enumerate() {
            assert!(!walks[..at].contains(walk), "{:?}", lists[at]);
        }
        let number =
            walks[0].write(Cursor { server: ServerId::new(1), inner: 5 }).unwrap().to_string();
        assert_eq!(walks[1].read(number.as_bytes()), Err(BadCursor::Foreign));
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        let walk = Walk::new(&servers(&["a", "b"]));
        for bad in ["", "x", "-1", "+1", " 1", "1 ", "0x1", "99999999999999999999", "1\0"] {
            assert_eq!(walk.read(bad.as_bytes()), Err(BadCursor::Malformed), "{bad:?}");
        }
        assert_eq!(walk.read(b"9223372036854775808"), Err(BadCursor::Malformed));
    }
}
