//! What servers tell of their maintenance, read, and how long more patience is needed with them. Pure.
//!
//! The frames are those of Redis Software: `MOVING`, a number, seconds, and `host:port` or null; `MIGRATING` and
//! `FAILING_OVER`, a number, seconds, and what it is about; `MIGRATED` and `FAILED_OVER`, a number, and the same. Words
//! may be simple strings or bulk strings, numbers may be integers or text: servers and the tests of clients have both.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cashew_config::snapshot::Address;
use cashew_protocol::resp::{Reply, reply};

use crate::answer;

/// An operation that has begun is over after so long beyond its seconds, if nobody says so: what ends it may get lost.
const OVERDUE: Duration = Duration::from_secs(120);
/// More seconds than that are not believed.
const SECONDS_MAX: u64 = 3600;

/// A push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It goes within so many seconds. `None` is to where its own address leads by then.
    Moving { seq: u64, seconds: u64, to: Option<Address> },
    /// It may take long to answer, from now on.
    Begins { operation: Operation, seq: u64, seconds: u64 },
    /// Not any more.
    Ends { operation: Operation, seq: u64 },
    /// Something else, by its name.
    Other(String),
    /// It has one of these names, and is none.
    Broken(String),
}

/// What a server, or a shard of it, goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Migration,
    Failover,
}

impl Notice {
    /// As the server calls it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Moving { .. } => "MOVING",
            Self::Begins { operation: Operation::Migration, .. } => "MIGRATING",
            Self::Begins { operation: Operation::Failover, .. } => "FAILING_OVER",
            Self::Ends { operation: Operation::Migration, .. } => "MIGRATED",
            Self::Ends { operation: Operation::Failover, .. } => "FAILED_OVER",
            Self::Other(name) | Self::Broken(name) => name,
        }
    }
}

/// Reads a push. `None` if it is no push, or begins with no word.
pub(crate) fn notice(bytes: &[u8]) -> Option<Notice> {
    let Reply::Push(mut elements) = reply(bytes)? else { return None };
    let name = answer::text(elements.next()?)?.to_owned();
    let elements: Vec<&[u8]> = elements.collect();
    let number = |at: usize| elements.get(at).copied().and_then(number);
    let seconds = || number(1).map(|it| it.min(SECONDS_MAX));
    let read = match &*name {
        "MOVING" => (|| {
            let to = target(elements.get(2)?)?;
            Some(Notice::Moving { seq: number(0)?, seconds: seconds()?, to })
        })(),
        "MIGRATING" => begins(Operation::Migration, number(0), seconds()),
        "FAILING_OVER" => begins(Operation::Failover, number(0), seconds()),
        "MIGRATED" => ends(Operation::Migration, number(0)),
        "FAILED_OVER" => ends(Operation::Failover, number(0)),
        _ => return Some(Notice::Other(name)),
    };
    Some(read.unwrap_or(Notice::Broken(name)))
}

fn begins(operation: Operation, seq: Option<u64>, seconds: Option<u64>) -> Option<Notice> {
    Some(Notice::Begins { operation, seq: seq?, seconds: seconds? })
}

fn ends(operation: Operation, seq: Option<u64>) -> Option<Notice> {
    Some(Notice::Ends { operation, seq: seq? })
}

fn number(bytes: &[u8]) -> Option<u64> {
    match reply(bytes)? {
        Reply::Integer(number) => u64::try_from(number).ok(),
        Reply::Bulk(_) | Reply::Status(_) => answer::text(bytes)?.parse().ok(),
        _ => None,
    }
}

/// `host:port`, also of an address of IPv6 in brackets; null is none.
fn target(bytes: &[u8]) -> Option<Option<Address>> {
    if matches!(reply(bytes)?, Reply::Nil | Reply::NilArray) {
        return Some(None);
    }
    let (host, port) = answer::text(bytes)?.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
    answer::address(host, port).map(Some)
}

/// What goes on at a server.
#[derive(Debug, Default)]
pub(crate) struct Operations(BTreeMap<Operation, (u64, Instant)>);

impl Operations {
    pub(crate) fn begin(&mut self, operation: Operation, seq: u64, seconds: u64, now: Instant) {
        let until = now + Duration::from_secs(seconds) + OVERDUE;
        let (newest, latest) = self.0.entry(operation).or_insert((seq, until));
        (*newest, *latest) = (seq.max(*newest), until.max(*latest));
    }

    /// What ends an earlier one of its kind comes late, and ends nothing.
    pub(crate) fn end(&mut self, operation: Operation, seq: u64) {
        if self.0.get(&operation).is_some_and(|(begun, _)| seq >= *begun) {
            self.0.remove(&operation);
        }
    }

    /// Until when the last of them is over, if any is under way.
    pub(crate) fn until(&mut self, now: Instant) -> Option<Instant> {
        self.0.retain(|_, (_, until)| *until > now);
        self.0.values().map(|(_, until)| *until).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Notice> {
        notice(text.as_bytes())
    }

    fn to(host: &str, port: u16) -> Option<Address> {
        Some(Address { host: host.to_owned(), port })
    }

    #[test]
    fn frames_are_read_as_servers_and_tests_of_clients_write_them() {
        let moving = |seconds, to| Some(Notice::Moving { seq: 1, seconds, to });
        let bulk = ">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$14\r\n127.0.0.1:6379\r\n";
        assert_eq!(read(bulk), moving(15, to("127.0.0.1", 6379)));
        let simple = ">4\r\n+MOVING\r\n:1\r\n:15\r\n+redis.example:6379\r\n";
        assert_eq!(read(simple), moving(15, to("redis.example", 6379)));
        let text = ">4\r\n$6\r\nMOVING\r\n$1\r\n1\r\n$2\r\n15\r\n$8\r\n[::1]:80\r\n";
        assert_eq!(read(text), moving(15, to("::1", 80)));
        for null in ["_\r\n", "$-1\r\n"] {
            assert_eq!(read(&format!(">4\r\n+MOVING\r\n:1\r\n:15\r\n{null}")), moving(15, None));
        }
        assert_eq!(read(">4\r\n+MOVING\r\n:1\r\n:99999\r\n_\r\n"), moving(3600, None));
        let begins = |operation| Some(Notice::Begins { operation, seq: 2, seconds: 5 });
        let shards = "*1\r\n$1\r\n3\r\n";
        assert_eq!(
            read(&format!(">4\r\n$9\r\nMIGRATING\r\n:2\r\n:5\r\n{shards}")),
            begins(Operation::Migration)
        );
        assert_eq!(read(">3\r\n+FAILING_OVER\r\n:2\r\n:5\r\n"), begins(Operation::Failover));
        let ends = |operation| Some(Notice::Ends { operation, seq: 3 });
        assert_eq!(
            read(&format!(">3\r\n$8\r\nMIGRATED\r\n:3\r\n{shards}")),
            ends(Operation::Migration)
        );
        assert_eq!(read(">2\r\n+FAILED_OVER\r\n:3\r\n"), ends(Operation::Failover));
    }

    #[test]
    fn what_is_none_of_them_is_no_move() {
        let other = Some(Notice::Other("SMIGRATED".to_owned()));
        assert_eq!(read(">2\r\n+SMIGRATED\r\n:3\r\n"), other);
        let broken = Some(Notice::Broken("MOVING".to_owned()));
        for rest in [
            ":1\r\n:15\r\n",
            ":1\r\n:15\r\n+nowhere\r\n",
            ":1\r\n:15\r\n+h:0\r\n",
            ":1\r\n:15\r\n+:1\r\n",
            ":1\r\n:15\r\n+a b:1\r\n",
            ":-1\r\n:15\r\n+h:1\r\n",
            ":1\r\n+soon\r\n+h:1\r\n",
        ] {
            let count = 1 + rest.matches("\r\n").count();
            assert_eq!(read(&format!(">{count}\r\n+MOVING\r\n{rest}")), broken, "{rest:?}");
        }
        for bytes in ["*2\r\n+MIGRATED\r\n:3\r\n", ">1\r\n:3\r\n", ">0\r\n", "+OK\r\n", ""] {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn operations_end_by_their_own_ends_and_in_time() {
        let (mut operations, now) = (Operations::default(), Instant::now());
        assert_eq!(operations.until(now), None);
        operations.begin(Operation::Migration, 5, 10, now);
        operations.begin(Operation::Failover, 6, 0, now);
        let until = now + Duration::from_secs(130);
        assert_eq!(operations.until(now), Some(until));
        operations.end(Operation::Failover, 7);
        // Of a migration before.
        operations.end(Operation::Migration, 4);
        assert_eq!(operations.until(now), Some(until));
        assert_eq!(operations.until(until), None);
        operations.begin(Operation::Migration, 8, 10, now);
        operations.end(Operation::Migration, 8);
        assert_eq!(operations.until(now), None);
    }
}
