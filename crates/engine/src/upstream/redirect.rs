//! What a node of a cluster says of a request that it does not run, as the slot is another node's.
//!
//! The words are those of the
//! [cluster specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).

use std::collections::HashMap;

use crate::base::id::{ConnId, RequestId, ServerId};

/// What a node says of a request that it has not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirect<'r> {
    Moved { slot: u16, to: Node<'r> },
    Ask { slot: u16, to: Node<'r> },
    TryAgain,
}

/// Where a node is. Without a host: where who named it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node<'r> {
    pub(crate) host: &'r str,
    pub(crate) port: u16,
}

impl<'r> Redirect<'r> {
    /// What a whole reply says, if it is such an error.
    pub(crate) fn of(reply: &'r [u8]) -> Option<Self> {
        let line = std::str::from_utf8(reply).ok()?.strip_prefix('-')?.strip_suffix("\r\n")?;
        if line == "TRYAGAIN" || line.starts_with("TRYAGAIN ") {
            return Some(Self::TryAgain);
        }
        let mut words = line.split(' ');
        let (word, slot, to) = (words.next()?, words.next()?, words.next()?);
        let slot = slot.parse().ok().filter(|&slot| slot < cashew_placement::SLOTS)?;
        // The address of a host of IPv6 has colons, too.
        let (host, port) = to.rsplit_once(':')?;
        let to = Node { host, port: port.parse().ok().filter(|&port| port > 0)? };
        match (word, words.next()) {
            ("MOVED", None) => Some(Self::Moved { slot, to }),
            ("ASK", None) => Some(Self::Ask { slot, to }),
            _ => None,
        }
    }
}

/// Where something goes that a node has not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// To the owner of its slot, which is known.
    Owner,
    /// There, behind ASKING.
    Ask(ServerId),
    /// Where it was, a little later.
    Again,
}

/// A command that a node has refused to queue.
#[derive(Debug)]
pub(crate) struct RefusedPart {
    pub(crate) elsewhere: Option<Elsewhere>,
    /// The first error, without its sign and its line end.
    pub(crate) text: Box<[u8]>,
}

/// Who has requests on a lane's connection. Each request is looked at once for either purpose.
pub(crate) struct Users {
    pub(crate) conn: ConnId,
    /// So far `by_asker` goes.
    pub(crate) seen: Upto,
    /// So far those who have asked are fenced.
    pub(crate) fenced: Upto,
    /// How many were written up to the last request of each, by the number of who has asked.
    by_asker: HashMap<u32, u64>,
}

/// A request on a lane.
#[derive(Clone, Copy)]
pub(crate) struct Upto {
    pub(crate) last: RequestId,
    /// How many were written up to it, as [`end_ordinal`](crate::upstream::lane::Lane::end_ordinal) counts.
    pub(crate) end: u64,
}

impl Upto {
    /// In front of all on a connection on which so many were answered.
    pub(crate) fn start(answered: u64) -> Self {
        Self { last: RequestId::NONE, end: answered }
    }
}

/// So many may be known whose requests are answered, beside as many as have some.
const SPARE_USERS: u64 = 64;

impl Users {
    /// Nothing was looked at yet of a connection on which so many were answered.
    pub(crate) fn none(conn: ConnId, answered: u64) -> Self {
        let start = Upto::start(answered);
        Self { conn, seen: start, fenced: start, by_asker: HashMap::new() }
    }

    pub(crate) fn last_of(&self, asker: u32) -> u64 {
        self.by_asker.get(&asker).copied().unwrap_or_default()
    }

    /// The request that was looked at last is who has asked's.
    pub(crate) fn note(&mut self, asker: u32) {
        self.by_asker.insert(asker, self.seen.end);
    }

    /// Forgets whose requests are all answered, if these are many. So many requests are on the lane.
    pub(crate) fn trim(&mut self, answered: u64, on_lane: u64) {
        if self.by_asker.len() as u64 > 2 * on_lane + SPARE_USERS {
            self.by_asker.retain(|_, &mut end| end > answered);
            self.by_asker.shrink_to(2 * self.by_asker.len());
        }
    }
}

pub(crate) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";
pub(crate) const READONLY: &[u8] = b"*1\r\n$8\r\nREADONLY\r\n";
pub(crate) const READWRITE: &[u8] = b"*1\r\n$9\r\nREADWRITE\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_nothing_on_a_lane_any_more_is_forgotten() {
        let mut users = Users::none(ConnId::of_lane(0, 1), 0);
        for asker in 1..=10_000 {
            users.seen.end += 1;
            users.note(asker);
            users.trim(users.seen.end - 1, 1);
            assert!(users.by_asker.len() as u64 <= SPARE_USERS + 2);
            assert_eq!(users.last_of(asker), u64::from(asker));
        }
    }

    #[test]
    fn redirects_are_known_by_their_words() {
        let node = |host, port| Node { host, port };
        for (reply, redirect) in [
            (
                "-MOVED 3999 127.0.0.1:6381",
                Redirect::Moved { slot: 3999, to: node("127.0.0.1", 6381) },
            ),
            ("-MOVED 0 :7000", Redirect::Moved { slot: 0, to: node("", 7000) }),
            ("-ASK 16383 ::1:7000", Redirect::Ask { slot: 16383, to: node("::1", 7000) }),
            ("-MOVED 5 a.example:1", Redirect::Moved { slot: 5, to: node("a.example", 1) }),
            ("-TRYAGAIN Multiple keys request during rehashing of slot", Redirect::TryAgain),
        ] {
            assert_eq!(Redirect::of(format!("{reply}\r\n").as_bytes()), Some(redirect), "{reply}");
        }
        for reply in [
            "-MOVED",
            "-MOVED 16384 a:1",
            "-MOVED 1 a",
            "-MOVED 1 a:0",
            "-MOVED 1 a:70000",
            "-MOVED 1 a:1 b",
            "-MOVEDX 1 a:1",
            "-TRYAGAINX",
            "-ERR MOVED 1 a:1",
            "+MOVED 1 a:1",
            "-CLUSTERDOWN The cluster is down",
        ] {
            assert_eq!(Redirect::of(format!("{reply}\r\n").as_bytes()), None, "{reply}");
        }
        assert_eq!(Redirect::of(b"-MOVED 1 a:1"), None);
    }
}
