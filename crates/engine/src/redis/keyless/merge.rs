//! One reply made of what several servers said: pure functions over whole replies.
//!
//! Replies of one client's lanes are in the client's own dialect, so that their parts are passed on
//! as they are. `None` says that a reply is not what the command answers.

use crate::base::id::ServerId;
use cashew_protocol::redis::Fan;
use cashew_protocol::resp::{self, Reply, ReplyScanner, Scan, Version, encode};

/// A null of either dialect.
pub(crate) fn is_null(reply: &[u8]) -> bool {
    matches!(reply, b"$-1\r\n" | b"_\r\n" | b"*-1\r\n")
}

/// Appends the one reply. None is an error, unless [`super::tolerates`] allows it.
pub(crate) fn merge<'r>(
    fan: Fan,
    replies: impl Iterator<Item = &'r [u8]> + Clone,
    out: &mut Vec<u8>,
) -> Option<()> {
    match fan {
        Fan::Sum => fold_integers(replies, i64::checked_add, out),
        Fan::Least => fold_integers(replies, |a, b| Some(a.min(b)), out),
        Fan::Most => fold_integers(replies, |a, b| Some(a.max(b)), out),
        Fan::Same => first(replies, out),
        Fan::AnyOk => any_ok(replies, out),
        Fan::Concat => concat(replies, out),
        Fan::Timeline => timeline(replies, out),
        Fan::Events => events(replies, out),
        Fan::Running => running(replies, out),
        Fan::LeastEach => least_each(replies, out),
        Fan::SumPairs => sum_pairs(replies, out),
        Fan::Scan
        | Fan::RandomKey
        | Fan::AnyServer
        | Fan::PerServer
        | Fan::Info
        | Fan::Newest
        | Fan::Scripts => {
            unreachable!("these are not merged by their replies alone")
        }
    }
}

/// What each server says, errors included, under its name.
pub(crate) fn per_server<'r>(
    version: Version,
    names: &[Box<str>],
    replies: impl Iterator<Item = &'r [u8]>,
    out: &mut Vec<u8>,
) {
    encode::write_map_header(out, version, names.len());
    for (name, reply) in names.iter().zip(replies) {
        encode::write_bulk(out, name.as_bytes());
        out.extend_from_slice(reply);
    }
}

fn fold_integers<'r>(
    mut replies: impl Iterator<Item = &'r [u8]>,
    fold: impl Fn(i64, i64) -> Option<i64>,
    out: &mut Vec<u8>,
) -> Option<()> {
    let first = integer(replies.next()?)?;
    let all = replies.try_fold(first, |sum, reply| fold(sum, integer(reply)?))?;
    encode::write_integer(out, all);
    Some(())
}

fn first<'r>(mut replies: impl Iterator<Item = &'r [u8]>, out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(replies.next()?);
    Some(())
}

/// A server with nothing to kill says so with an error, which is the answer if all do.
fn any_ok<'r>(
    mut replies: impl Iterator<Item = &'r [u8]> + Clone,
    out: &mut Vec<u8>,
) -> Option<()> {
    let says_why = |reply: &&[u8]| !reply.starts_with(b"-NOTBUSY");
    let good = replies.clone().find(|reply| !resp::is_error(reply));
    let chosen = good.or_else(|| replies.clone().find(says_why)).or_else(|| replies.next())?;
    out.extend_from_slice(chosen);
    Some(())
}

fn concat<'r>(replies: impl Iterator<Item = &'r [u8]> + Clone, out: &mut Vec<u8>) -> Option<()> {
    let mut kind = None;
    let mut count = 0;
    for reply in replies.clone() {
        let list = Aggregate::of(reply)?;
        count += list.count;
        if *kind.get_or_insert(list.kind) != list.kind {
            return None;
        }
    }
    write_header(out, kind?, count);
    for reply in replies {
        out.extend_from_slice(Aggregate::of(reply)?.elements);
    }
    Some(())
}

/// Entries of logs, which are arrays of an id, a time in seconds and more: the newest ones, of the
/// same second those of the first server first. Their ids are made different ones: `places` says which
/// of `servers` a reply is from.
pub(crate) fn newest<'r>(
    replies: impl Iterator<Item = &'r [u8]>,
    places: &[ServerId],
    servers: u32,
    limit: usize,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut entries = Vec::new();
    for (reply, &place) in replies.zip(places) {
        for entry in Aggregate::of(reply)? {
            let mut parts = Aggregate::of(entry)?;
            let (kind, count) = (parts.kind, parts.count);
            let id = integer(parts.next()?)?;
            let id = id.checked_mul(i64::from(servers))?.checked_add(i64::from(place.number()))?;
            let time = integer(parts.clone().next()?)?;
            entries.push((time, kind, count, id, parts.elements));
        }
    }
    entries.sort_by_key(|&(time, ..)| std::cmp::Reverse(time));
    entries.truncate(limit);
    write_header(out, b'*', entries.len());
    for (_, kind, count, id, rest) in entries {
        write_header(out, kind, count);
        encode::write_integer(out, id);
        out.extend_from_slice(rest);
    }
    Some(())
}

fn timeline<'r>(replies: impl Iterator<Item = &'r [u8]>, out: &mut Vec<u8>) -> Option<()> {
    let mut samples = Vec::new();
    for reply in replies {
        for sample in Aggregate::of(reply)? {
            samples.push((integer(Aggregate::of(sample)?.next()?)?, sample));
        }
    }
    samples.sort_by_key(|&(time, _)| time);
    write_header(out, b'*', samples.len());
    samples.iter().for_each(|(_, sample)| out.extend_from_slice(sample));
    Some(())
}

/// Which of the servers runs something, says the first value of its reply.
fn running<'r>(
    mut replies: impl Iterator<Item = &'r [u8]> + Clone,
    out: &mut Vec<u8>,
) -> Option<()> {
    let runs = |reply: &&[u8]| {
        let value = Aggregate::of(reply).and_then(|mut parts| parts.nth(1));
        value.is_some_and(|value| !is_null(value))
    };
    let chosen = replies.clone().find(runs).or_else(|| replies.next())?;
    out.extend_from_slice(chosen);
    Some(())
}

/// An event: when it happened last and how long that took, the longest time, and what can be added.
struct Event<'r> {
    kind: u8,
    name: &'r [u8],
    numbers: Vec<i64>,
}

fn events<'r>(replies: impl Iterator<Item = &'r [u8]>, out: &mut Vec<u8>) -> Option<()> {
    const AT: usize = 0;
    const MOST: usize = 2;
    let mut events: Vec<Event<'r>> = Vec::new();
    for reply in replies {
        for event in Aggregate::of(reply)? {
            let mut parts = Aggregate::of(event)?;
            let (kind, name) = (parts.kind, parts.next()?);
            let numbers: Vec<i64> = parts.map(integer).collect::<Option<_>>()?;
            if numbers.len() <= MOST {
                return None;
            }
            let Some(known) = events.iter_mut().find(|known| known.name == name) else {
                events.push(Event { kind, name, numbers });
                continue;
            };
            if known.numbers.len() != numbers.len() {
                return None;
            }
            // The time and what belongs to it.
            if numbers[..MOST] > known.numbers[..MOST] {
                known.numbers[AT..MOST].copy_from_slice(&numbers[..MOST]);
            }
            known.numbers[MOST] = known.numbers[MOST].max(numbers[MOST]);
            for (sum, more) in known.numbers.iter_mut().zip(numbers).skip(MOST + 1) {
                *sum = sum.checked_add(more)?;
            }
        }
    }
    write_header(out, b'*', events.len());
    for event in &events {
        write_header(out, event.kind, event.numbers.len() + 1);
        out.extend_from_slice(event.name);
        event.numbers.iter().for_each(|&number| encode::write_integer(out, number));
    }
    Some(())
}

fn least_each<'r>(replies: impl Iterator<Item = &'r [u8]>, out: &mut Vec<u8>) -> Option<()> {
    write_integers(&least(replies)?, out);
    Some(())
}

/// Which scripts there are: those that all servers have, and those that are `remembered`.
pub(crate) fn scripts<'r>(
    replies: impl Iterator<Item = &'r [u8]>,
    remembered: impl ExactSizeIterator<Item = bool>,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut known = least(replies)?;
    if known.len() != remembered.len() {
        return None;
    }
    known.iter_mut().zip(remembered).for_each(|(known, here)| *known = (*known).max(here.into()));
    write_integers(&known, out);
    Some(())
}

/// Of arrays of integers, the least at each place.
fn least<'r>(mut replies: impl Iterator<Item = &'r [u8]>) -> Option<Vec<i64>> {
    let mut least = integers(replies.next()?)?;
    for reply in replies {
        let others = integers(reply)?;
        if others.len() != least.len() {
            return None;
        }
        least.iter_mut().zip(others).for_each(|(least, other)| *least = other.min(*least));
    }
    Some(least)
}

fn write_integers(integers: &[i64], out: &mut Vec<u8>) {
    encode::write_array_header(out, integers.len());
    integers.iter().for_each(|&integer| encode::write_integer(out, integer));
}

fn sum_pairs<'r>(mut replies: impl Iterator<Item = &'r [u8]>, out: &mut Vec<u8>) -> Option<()> {
    let pairs = Aggregate::of(replies.next()?)?;
    let kind = pairs.kind;
    let mut others: Vec<Aggregate<'r>> = replies.map(Aggregate::of).collect::<Option<_>>()?;
    if others.iter().any(|other| other.count != pairs.count || other.kind != kind) {
        return None;
    }
    write_header(out, kind, pairs.count);
    let mut elements = pairs;
    while let Some(name) = elements.next() {
        let mut sum = integer(elements.next()?)?;
        for other in &mut others {
            if other.next()? != name {
                return None;
            }
            sum = sum.checked_add(integer(other.next()?)?)?;
        }
        out.extend_from_slice(name);
        encode::write_integer(out, sum);
    }
    Some(())
}

/// The elements of an array of integers.
pub(crate) fn integers(reply: &[u8]) -> Option<Vec<i64>> {
    Aggregate::of(reply)?.map(integer).collect()
}

fn integer(reply: &[u8]) -> Option<i64> {
    match resp::reply(reply) {
        Some(Reply::Integer(value)) => Some(value),
        _ => None,
    }
}

/// An array or what RESP3 has besides, with its elements as they are encoded.
#[derive(Clone)]
pub(crate) struct Aggregate<'r> {
    pub(crate) kind: u8,
    /// As its header says: of a map, pairs.
    pub(crate) count: usize,
    /// Those not yet taken.
    pub(crate) elements: &'r [u8],
}

impl<'r> Aggregate<'r> {
    /// Of a whole reply.
    pub(crate) fn of(reply: &'r [u8]) -> Option<Self> {
        let (&kind, rest) = reply.split_first()?;
        if !matches!(kind, b'*' | b'~' | b'%' | b'>') {
            return None;
        }
        let (count, elements) = split_line(rest)?;
        let count = std::str::from_utf8(count).ok()?.parse().ok()?;
        Some(Self { kind, count, elements })
    }
}

impl<'r> Iterator for Aggregate<'r> {
    type Item = &'r [u8];

    fn next(&mut self) -> Option<&'r [u8]> {
        if self.elements.is_empty() {
            return None;
        }
        let Scan::Complete(len) = ReplyScanner::default().scan(self.elements) else {
            return None;
        };
        let (element, rest) = self.elements.split_at(len);
        self.elements = rest;
        Some(element)
    }
}

/// The text of a string reply of either dialect, without what RESP3 says about its format.
pub(crate) fn text(reply: &[u8]) -> Option<&[u8]> {
    let (header, rest) = split_line(reply)?;
    match header.split_first()? {
        (b'+', text) => Some(text),
        (b'$', _) => rest.strip_suffix(b"\r\n"),
        (b'=', _) => rest.strip_suffix(b"\r\n")?.get("txt:".len()..),
        _ => None,
    }
}

/// The first line, without its end, and what follows.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    Some((bytes[..end].strip_suffix(b"\r")?, &bytes[end + 1..]))
}

pub(crate) fn write_header(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.push(kind);
    out.extend_from_slice(count.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(fan: Fan, replies: &[&str]) -> Option<String> {
        let replies: Vec<&[u8]> = replies.iter().map(|reply| reply.as_bytes()).collect();
        let replies = replies.into_iter();
        let mut out = Vec::new();
        merge(fan, replies, &mut out)?;
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn integers_are_added_or_the_least_is_taken() {
        let replies = [":3\r\n", ":1\r\n", ":2\r\n"];
        assert_eq!(merged(Fan::Sum, &replies).unwrap(), ":6\r\n");
        assert_eq!(merged(Fan::Least, &replies).unwrap(), ":1\r\n");
        assert_eq!(merged(Fan::Sum, &[":9223372036854775807\r\n", ":1\r\n"]), None);
        assert_eq!(merged(Fan::Sum, &[":1\r\n", "+OK\r\n"]), None);
    }

    #[test]
    fn arrays_and_sets_are_put_behind_each_other() {
        let replies = ["*1\r\n$1\r\na\r\n", "*0\r\n", "*2\r\n*1\r\n:1\r\n$-1\r\n"];
        let all = "*3\r\n$1\r\na\r\n*1\r\n:1\r\n$-1\r\n";
        assert_eq!(merged(Fan::Concat, &replies).unwrap(), all);
        assert_eq!(
            merged(Fan::Concat, &["~1\r\n+a\r\n", "~1\r\n+b\r\n"]).unwrap(),
            "~2\r\n+a\r\n+b\r\n"
        );
        assert_eq!(merged(Fan::Concat, &["~1\r\n+a\r\n", "*1\r\n+b\r\n"]), None);
        assert_eq!(merged(Fan::Concat, &["*-1\r\n"]), None);
    }

    #[test]
    fn the_newest_entries_of_all_are_told_as_many_as_of_one() {
        let entry = |id: u32, at: u32| format!("*3\r\n:{id}\r\n:{at}\r\n*1\r\n$3\r\nGET\r\n");
        let list = |entries: &[(u32, u32)]| {
            let entries: String = entries.iter().map(|&(id, at)| entry(id, at)).collect();
            format!("*{}\r\n{entries}", entries.matches("*3\r\n").count())
        };
        let replies = [list(&[(8, 90), (7, 50)]), list(&[]), list(&[(3, 90), (2, 89), (1, 10)])];
        let newest = |limit: usize| {
            let mut out = Vec::new();
            let replies = replies.iter().map(|reply| reply.as_bytes());
            super::newest(
                replies,
                &[ServerId::new(0), ServerId::new(2), ServerId::new(3)],
                4,
                limit,
                &mut out,
            )?;
            Some(String::from_utf8(out).unwrap())
        };
        assert_eq!(newest(3).unwrap(), list(&[(32, 90), (15, 90), (11, 89)]));
        let all = list(&[(32, 90), (15, 90), (11, 89), (28, 50), (7, 10)]);
        assert_eq!(newest(usize::MAX).unwrap(), all);
        assert_eq!(newest(0).unwrap(), "*0\r\n");
        for bad in ["*1\r\n:1\r\n", "+OK\r\n", "*1\r\n*1\r\n:1\r\n"] {
            let mut out = Vec::new();
            let replies = [bad.as_bytes()].into_iter();
            assert_eq!(super::newest(replies, &[ServerId::new(0)], 1, 10, &mut out), None, "{bad}");
        }
    }

    #[test]
    fn samples_are_in_the_order_of_time() {
        let replies = ["*2\r\n*2\r\n:1\r\n:7\r\n*2\r\n:5\r\n:8\r\n", "*1\r\n*2\r\n:3\r\n:9\r\n"];
        let all = "*3\r\n*2\r\n:1\r\n:7\r\n*2\r\n:3\r\n:9\r\n*2\r\n:5\r\n:8\r\n";
        assert_eq!(merged(Fan::Timeline, &replies).unwrap(), all);
        assert_eq!(merged(Fan::Timeline, &["*0\r\n", "*0\r\n"]).unwrap(), "*0\r\n");
        assert_eq!(merged(Fan::Timeline, &["*1\r\n:1\r\n"]), None);
    }

    #[test]
    fn the_server_that_runs_something_tells() {
        let idle = "*4\r\n+running_script\r\n*-1\r\n+engines\r\n*0\r\n";
        let busy = "*4\r\n+running_script\r\n*1\r\n+f\r\n+engines\r\n*0\r\n";
        assert_eq!(merged(Fan::Running, &[idle, busy, idle]).unwrap(), busy);
        assert_eq!(merged(Fan::Running, &[idle, idle]).unwrap(), idle);
        let idle = "%2\r\n+running_script\r\n_\r\n+engines\r\n%0\r\n";
        let busy = "%2\r\n+running_script\r\n%1\r\n+name\r\n+f\r\n+engines\r\n%0\r\n";
        assert_eq!(merged(Fan::Running, &[idle, busy]).unwrap(), busy);
    }

    #[test]
    fn an_event_of_several_servers_is_one() {
        let event = |name: &str, numbers: &[i64]| {
            let numbers: String = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
            format!("*{}\r\n$1\r\n{name}\r\n{numbers}", numbers.matches(':').count() + 1)
        };
        let one = format!("*1\r\n{}", event("a", &[100, 5, 90]));
        let two = format!("*2\r\n{}{}", event("b", &[99, 1, 1]), event("a", &[101, 4, 40]));
        let both = format!("*2\r\n{}{}", event("a", &[101, 4, 90]), event("b", &[99, 1, 1]));
        assert_eq!(merged(Fan::Events, &[&one, &two]).unwrap(), both);
        // Others add a sum and a count.
        let more = format!("*1\r\n{}", event("a", &[100, 5, 90, 95, 2]));
        let sums = format!("*1\r\n{}", event("a", &[100, 5, 90, 190, 4]));
        assert_eq!(merged(Fan::Events, &[&more, &more]).unwrap(), sums);
        assert_eq!(merged(Fan::Events, &[&one, &more]), None);
        assert_eq!(merged(Fan::Events, &["*1\r\n*1\r\n$1\r\na\r\n"]), None);
    }

    #[test]
    fn integers_are_compared_place_by_place() {
        let replies = ["*3\r\n:1\r\n:0\r\n:1\r\n", "*3\r\n:1\r\n:1\r\n:0\r\n"];
        assert_eq!(merged(Fan::LeastEach, &replies).unwrap(), "*3\r\n:1\r\n:0\r\n:0\r\n");
        assert_eq!(merged(Fan::LeastEach, &["*1\r\n:1\r\n", "*2\r\n:1\r\n:1\r\n"]), None);
    }

    #[test]
    fn scripts_are_there_that_all_have_or_that_are_remembered() {
        let replies = ["*4\r\n:1\r\n:0\r\n:1\r\n:0\r\n", "*4\r\n:1\r\n:0\r\n:0\r\n:1\r\n"];
        let told = |remembered: &[bool]| {
            let mut out = Vec::new();
            let remembered = remembered.iter().copied();
            scripts(replies.iter().map(|reply| reply.as_bytes()), remembered, &mut out)?;
            Some(String::from_utf8(out).unwrap())
        };
        let all = "*4\r\n:1\r\n:0\r\n:1\r\n:0\r\n";
        assert_eq!(told(&[false, false, true, false]).unwrap(), all);
        assert_eq!(told(&[false; 3]), None);
    }

    #[test]
    fn counts_are_added_by_name() {
        let one = "*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:0\r\n";
        let two = "*4\r\n$1\r\na\r\n:2\r\n$1\r\nb\r\n:5\r\n";
        let both = "*4\r\n$1\r\na\r\n:3\r\n$1\r\nb\r\n:5\r\n";
        assert_eq!(merged(Fan::SumPairs, &[one, two]).unwrap(), both);
        assert_eq!(merged(Fan::SumPairs, &["*0\r\n", "*0\r\n"]).unwrap(), "*0\r\n");
        let map = "%1\r\n$1\r\na\r\n:1\r\n";
        assert_eq!(merged(Fan::SumPairs, &[map, map]).unwrap(), "%1\r\n$1\r\na\r\n:2\r\n");
        assert_eq!(merged(Fan::SumPairs, &[one, "*2\r\n$1\r\na\r\n:2\r\n"]), None);
        let other = "*4\r\n$1\r\na\r\n:1\r\n$1\r\nc\r\n:0\r\n";
        assert_eq!(merged(Fan::SumPairs, &[one, other]), None);
        assert_eq!(merged(Fan::SumPairs, &["*1\r\n$1\r\na\r\n"]), None);
    }

    #[test]
    fn one_that_did_it_is_enough() {
        let idle = "-NOTBUSY No scripts in execution right now.\r\n";
        let stuck = "-UNKILLABLE Sorry the script already executed write commands\r\n";
        assert_eq!(merged(Fan::AnyOk, &[idle, "+OK\r\n", stuck]).unwrap(), "+OK\r\n");
        assert_eq!(merged(Fan::AnyOk, &[idle, stuck, idle]).unwrap(), stuck);
        assert_eq!(merged(Fan::AnyOk, &[idle, idle]).unwrap(), idle);
    }

    #[test]
    fn replies_stand_under_the_names_of_their_servers() {
        let names: Vec<Box<str>> = vec!["one".into(), "two".into()];
        let replies = || [&b":1\r\n"[..], b"-ERR no\r\n"].into_iter();
        let mut out = Vec::new();
        per_server(Version::Resp2, &names, replies(), &mut out);
        assert_eq!(out, b"*4\r\n$3\r\none\r\n:1\r\n$3\r\ntwo\r\n-ERR no\r\n");
        out.clear();
        per_server(Version::Resp3, &names, replies(), &mut out);
        assert_eq!(out, b"%2\r\n$3\r\none\r\n:1\r\n$3\r\ntwo\r\n-ERR no\r\n");
    }

    #[test]
    fn texts_are_found_in_all_their_forms() {
        assert_eq!(text(b"$2\r\nab\r\n"), Some(&b"ab"[..]));
        assert_eq!(text(b"=6\r\ntxt:ab\r\n"), Some(&b"ab"[..]));
        assert_eq!(text(b"+ab\r\n"), Some(&b"ab"[..]));
        for bad in [&b"$-1\r\n"[..], b"=1\r\na\r\n", b":1\r\n", b"", b"$"] {
            assert!(text(bad).is_none_or(<[u8]>::is_empty), "{}", bad.escape_ascii());
        }
    }
}
