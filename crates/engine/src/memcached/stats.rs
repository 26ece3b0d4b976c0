//! Statistics of all servers as those of one, and what else all servers are told.
//!
//! A server that fails takes nothing away from what the others say, but is named.

use std::collections::HashMap;

use cashew_config::snapshot::Endpoint;
use cashew_protocol::memcached::binary::{
    Opcode, Packets, Response, Status, write_request, write_response,
};
use cashew_protocol::memcached::{Expect, Stats, is_error, words};

use super::explain::Query;
use super::{Asked, END};
use crate::base::id::{ClientId, ServerId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::request::{Merge, MergeReplies};

const SERVER_ERROR: &[u8] = b"SERVER_ERROR ";
const UNTELLABLE_KEYS: &[u8] =
    b"CLIENT_ERROR keys may have line feeds: ask in binary, or the server itself\r\n";

/// How what servers say becomes one reply.
#[derive(Debug)]
pub(super) struct Aggregate {
    kind: Kind,
    /// Names of the servers that were asked, in the order of their replies.
    servers: Vec<String>,
    /// Those that were not asked, as they are not in the ring.
    ejected: Vec<String>,
    process_id: u32,
    /// Addresses of servers are left out.
    is_hidden: bool,
}

/// Where servers answer in text.
#[derive(Debug)]
pub(super) struct Lines(pub(super) Aggregate);

/// Where they answer in packets.
#[derive(Debug)]
pub(super) struct InPackets(pub(super) Aggregate);

impl MergeReplies for Lines {
    fn merge(&self, replies: &[&[u8]], _asked: Asked, out: &mut Vec<u8>) -> Option<()> {
        merge_stats(&self.0, replies, out)
    }
}

impl MergeReplies for InPackets {
    fn merge(&self, replies: &[&[u8]], asked: Asked, out: &mut Vec<u8>) -> Option<()> {
        merge_packets(&self.0, replies, asked, out)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Without a word behind `stats`.
    General,
    /// Numbers that are added up; whatever is no number is passed on.
    Numbers,
    /// What servers agree on, and else all they say.
    Settings,
    /// Every line, with the server's name before its own.
    Named,
    /// The same of the general statistics, `stats servers`: a command of the gateway's own.
    Servers,
    /// Every line as it is.
    Lines,
    /// No statistics: `OK`, or the first answer that is something else. One line, whatever servers say.
    Told,
}

impl Kind {
    fn of(word: Option<&[u8]>) -> Self {
        match word {
            None => Self::General,
            Some(b"settings") => Self::Settings,
            Some(b"conns") => Self::Named,
            Some(b"servers") => Self::Servers,
            Some(b"cachedump") => Self::Lines,
            Some(_) => Self::Numbers,
        }
    }

    fn names_servers(self) -> bool {
        matches!(self, Self::Named | Self::Servers)
    }
}

/// Name and value of each statistic, or what is wrong with the question.
type OwnRows = Result<Vec<(String, String)>, String>;

impl Engine {
    pub(super) fn stats_by_text(&mut self, client: ClientId, line: &[u8]) -> Plan {
        let kind = Kind::of(words(line).nth(1));
        if let Some(rows) = self.own_rows(client, words(line).skip(1)) {
            return self.rows_by_text(client, rows);
        }
        if lists_keys(line) {
            self.answer(client, |out| out.extend_from_slice(UNTELLABLE_KEYS));
            return Plan::Done;
        }
        if words(line).nth(1) == Some(b"conns") && self.has_unix_servers(client) {
            self.answer(client, |out| out.extend_from_slice(UNTELLABLE_ADDRESSES));
            return Plan::Done;
        }
        if matches!(words(line).nth(1), Some(b"sizes_enable" | b"sizes_disable")) {
            // Some versions answer them with one line, and nothing that closes it.
            return self.administer(client, Kind::Lines, &[line, b"\r\n"].concat());
        }
        let line = if kind == Kind::Servers { b"stats" } else { line };
        let merge = Merge::Whole(Box::new(Lines(self.aggregate(client, kind))));
        self.send_to_all(client, &[line, b"\r\n"].concat(), Expect::Stats, merge)
    }

    fn has_unix_servers(&self, client: ClientId) -> bool {
        let servers = &self.backends[self.backend_of(client)].config.servers;
        servers.iter().any(|server| matches!(server.endpoint, Endpoint::Unix(_)))
    }

    pub(super) fn stats_by_binary(&mut self, client: ClientId, key: &[u8]) -> Plan {
        let kind = Kind::of(words(key).next());
        if let Some(rows) = self.own_rows(client, words(key)) {
            return self.rows_by_binary(client, rows);
        }
        let key = if kind == Kind::Servers { b"" } else { key };
        let mut text = Vec::new();
        write_request(Opcode::Stat.byte(), key, b"", &mut text);
        text[12..16].copy_from_slice(&self.request_ctx.asked.opaque);
        let merge = Merge::Whole(Box::new(InPackets(self.aggregate(client, kind))));
        self.send_to_all(client, &text, Expect::Packets, merge)
    }

    /// Statistics of the gateway's own, which are asked for without their first word. `None` if they are others.
    fn own_rows<'a>(
        &mut self,
        client: ClientId,
        mut words: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Option<OwnRows> {
        match words.clone().next()? {
            b"route" => {
                words.next();
                Some(self.explain_words(client, words))
            }
            b"slow" | b"hot" => self.own_stats(client, words),
            _ => None,
        }
    }

    fn rows_by_text(&mut self, client: ClientId, rows: OwnRows) -> Plan {
        self.answer(client, |out| match rows {
            Ok(rows) => {
                let rows = rows.iter();
                rows.for_each(|(name, line)| {
                    write_row(b"STAT", name.as_bytes(), line.as_bytes(), out);
                });
                out.extend_from_slice(END);
            }
            Err(text) => out.extend_from_slice(format!("CLIENT_ERROR {text}\r\n").as_bytes()),
        });
        Plan::Done
    }

    fn rows_by_binary(&mut self, client: ClientId, rows: OwnRows) -> Plan {
        let Asked { opcode, opaque, .. } = self.request_ctx.asked;
        self.answer(client, |out| {
            let mut write = |status, key: &str, value: &str| {
                let (key, value) = (key.as_bytes(), value.as_bytes());
                write_response(&Response { opcode, status, opaque, key, value }, out);
            };
            match rows {
                Ok(rows) => {
                    rows.iter().for_each(|(name, line)| write(Status::Success, name, line));
                    write(Status::Success, "", "");
                }
                Err(text) => write(Status::Invalid, "", &text),
            }
        });
        Plan::Done
    }

    fn explain_words<'a>(
        &mut self,
        client: ClientId,
        words: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Vec<(String, String)>, String> {
        let query = Query::parse(words)?;
        let explanation =
            self.explain(client, query.key, (query.access, query.reach), query.operation)?;
        Ok(query.rows(explanation).collect())
    }

    pub(super) fn aggregate(&self, client: ClientId, kind: Kind) -> Aggregate {
        let backend = &self.backends[self.backend_of(client)];
        let names = |is_live: bool| {
            let servers = (0..).map(ServerId::new).zip(backend.topology.live());
            let servers = servers.filter(move |&(_, &live)| live == is_live);
            servers.map(|(server, _)| backend.shown_name(server).into_owned()).collect()
        };
        let (servers, ejected) = (names(true), names(false));
        let (process_id, is_hidden) = (self.identity.process_id, backend.config.hide_topology);
        Aggregate { kind, servers, ejected, process_id, is_hidden }
    }
}

/// memcached (1.6.18) tells the address of a client at a Unix socket from memory that nobody has
/// written to, line ends included.
const UNTELLABLE_ADDRESSES: &[u8] =
    b"CLIENT_ERROR addresses at Unix sockets may have line feeds: ask in binary, or the server itself\r\n";

/// Whether the reply tells keys, or what they start with, as they are: those that are not text, which
/// the binary protocol and meta commands can store, may have line ends.
fn lists_keys(line: &[u8]) -> bool {
    let mut words = words(line).skip(1);
    match words.next() {
        Some(b"cachedump") => true,
        Some(b"detail") => words.next() == Some(b"dump"),
        _ => false,
    }
}

/// One statistic, of all servers that have it.
struct Row<'r> {
    kind: &'r [u8],
    name: Vec<u8>,
    values: Vec<&'r [u8]>,
}

/// Statistics in the order in which they are named first.
#[derive(Default)]
struct Rows<'r> {
    rows: Vec<Row<'r>>,
    places: HashMap<Vec<u8>, usize>,
}

impl<'r> Rows<'r> {
    fn add(&mut self, kind: &'r [u8], name: Vec<u8>, value: &'r [u8]) {
        let key = [kind, b" ", &name].concat();
        let place = *self.places.entry(key).or_insert(self.rows.len());
        if place == self.rows.len() {
            self.rows.push(Row { kind, name, values: Vec::new() });
        }
        self.rows[place].values.push(value);
    }
}

impl Aggregate {
    /// Whether one server's reply is passed on as it is.
    fn passes_on(&self, replies: &[&[u8]]) -> bool {
        let is_alone = replies.len() == 1 && (self.kind == Kind::Told || self.ejected.is_empty());
        let may_have_address = matches!(self.kind, Kind::Settings | Kind::Named);
        is_alone && !self.kind.names_servers() && !(self.is_hidden && may_have_address)
    }

    /// Whether clients may know of this statistic.
    fn tells(&self, name: &[u8]) -> bool {
        let is_address = || match self.kind {
            Kind::Settings => {
                matches!(name, b"inter" | b"tcpport" | b"udpport" | b"domain_socket")
            }
            Kind::Named => name.ends_with(b":addr") || name.ends_with(b":listen_addr"),
            Kind::General | Kind::Numbers | Kind::Servers | Kind::Lines | Kind::Told => false,
        };
        !(self.is_hidden && is_address())
    }

    fn name(&self, server: usize, name: &[u8]) -> Vec<u8> {
        match (self.kind.names_servers(), self.servers.get(server)) {
            (true, Some(server)) => [server.as_bytes(), b":", name].concat(),
            _ => name.to_vec(),
        }
    }

    /// What one statistic comes to.
    fn value(&self, row: &Row<'_>) -> Vec<u8> {
        let values = row.values.as_slice();
        if row.kind == b"PREFIX" {
            return add_words(values);
        }
        let rule = match self.kind {
            Kind::General if row.name == b"pid" => {
                return self.process_id.to_string().into_bytes();
            }
            Kind::Settings | Kind::Named | Kind::Servers | Kind::Lines | Kind::Told => Rule::Agree,
            Kind::General | Kind::Numbers => Rule::of(&row.name),
        };
        let numbers: Option<Vec<u64>> = values.iter().map(|value| number(value)).collect();
        match (rule, numbers) {
            (Rule::Sum, Some(numbers)) => sum(&numbers),
            (Rule::Greatest, Some(numbers)) => decimal(numbers.into_iter().max()),
            (Rule::Least, Some(numbers)) => decimal(numbers.into_iter().min()),
            (Rule::Seconds, _) => add_seconds(values),
            _ => agree(values),
        }
    }
}

/// How a statistic of several servers becomes one.
#[derive(Clone, Copy)]
enum Rule {
    Sum,
    Greatest,
    Least,
    /// A sum of seconds with six places.
    Seconds,
    Agree,
}

impl Rule {
    fn of(name: &[u8]) -> Self {
        // Those of a slab class are named by it: `items:3:age`, `3:chunk_size`.
        match name.rsplit(|&byte| byte == b':').next().unwrap_or_default() {
            b"rusage_user" | b"rusage_system" => Self::Seconds,
            b"time"
            | b"hash_power_level"
            | b"hash_is_expanding"
            | b"slab_reassign_running"
            | b"lru_crawler_running"
            | b"age"
            | b"age_hot"
            | b"age_warm"
            | b"evicted_time"
            | b"active_slabs" => Self::Greatest,
            b"uptime" | b"accepting_conns" => Self::Least,
            b"version" | b"libevent" | b"pointer_size" | b"chunk_size" | b"chunks_per_page" => {
                Self::Agree
            }
            _ => Self::Sum,
        }
    }
}

fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn sum(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().fold(0u64, |sum, &number| sum.saturating_add(number)).to_string().into_bytes()
}

fn decimal(number: Option<u64>) -> Vec<u8> {
    number.unwrap_or_default().to_string().into_bytes()
}

fn add_seconds(values: &[&[u8]]) -> Vec<u8> {
    let micros = values.iter().filter_map(|value| {
        let (seconds, micros) = std::str::from_utf8(value).ok()?.split_once('.')?;
        seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)
    });
    let micros = micros.fold(0u64, u64::saturating_add);
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000).into_bytes()
}

/// The value that all have; else each that one of them has.
fn agree(values: &[&[u8]]) -> Vec<u8> {
    let mut different: Vec<&[u8]> = Vec::new();
    for value in values {
        if !different.contains(value) {
            different.push(value);
        }
    }
    different.join(&b","[..])
}

/// `get 1 hit 0 set 1 del 0` of several servers.
fn add_words(values: &[&[u8]]) -> Vec<u8> {
    let lists: Vec<Vec<&[u8]>> = values.iter().map(|value| words(value).collect()).collect();
    let first = lists.first().cloned().unwrap_or_default();
    let added = first.iter().enumerate().map(|(at, word)| {
        let numbers: Option<Vec<u64>> =
            lists.iter().map(|list| list.get(at).and_then(|word| number(word))).collect();
        numbers.map_or_else(|| word.to_vec(), |numbers| sum(&numbers))
    });
    added.collect::<Vec<_>>().join(&b" "[..])
}

/// Servers that did not say what the others do, with what they said.
#[derive(Default)]
struct Failed<'r>(Vec<(usize, &'r [u8])>);

impl<'r> Failed<'r> {
    /// Of those that failed alike the first is named.
    fn first(&self, aggregate: &Aggregate) -> Option<(String, &'r [u8])> {
        let &(server, said) = self.0.first()?;
        let name = aggregate.servers.get(server).cloned().unwrap_or_default();
        Some(match self.0.len() - 1 {
            0 => (name, said),
            more => (format!("{name} and {more} more"), said),
        })
    }

    /// Another one. Where all are named it stands between the others.
    fn add(&mut self, aggregate: &Aggregate, one: (usize, &'r [u8]), table: &mut Rows<'r>) {
        self.0.push(one);
        if aggregate.kind.names_servers() {
            add_error(aggregate, one, table);
        }
    }

    /// The rows that name them.
    fn add_to(&self, aggregate: &Aggregate, table: &mut Rows<'r>, count: &'r [u8]) {
        if !aggregate.kind.names_servers() && count != b"0" {
            table.add(b"STAT", b"servers_failed".to_vec(), count);
            self.0.iter().for_each(|&one| add_error(aggregate, one, table));
        }
        for name in &aggregate.ejected {
            table.add(b"STAT", [name.as_bytes(), b":error"].concat(), b"ejected");
        }
    }

    fn count(&self, aggregate: &Aggregate) -> Vec<u8> {
        (self.0.len() + aggregate.ejected.len()).to_string().into_bytes()
    }
}

fn add_error<'r>(aggregate: &Aggregate, one: (usize, &'r [u8]), table: &mut Rows<'r>) {
    let (server, said) = one;
    let name = aggregate.servers.get(server).map_or("", |name| name);
    table.add(b"STAT", [name.as_bytes(), b":error"].concat(), said.trim_ascii_end());
}

/// Puts replies in text together.
fn merge_stats(aggregate: &Aggregate, replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let kind = aggregate.kind;
    if aggregate.passes_on(replies) {
        out.extend_from_slice(replies.first()?);
        return Some(());
    }
    let mut failed = Failed::default();
    let mut table = Rows::default();
    let mut has_table = kind == Kind::Servers;
    for (server, reply) in replies.iter().enumerate() {
        let mut stats = Stats::new(reply);
        while stats.next().is_some() {}
        if stats.rest() != b"END\r\n" || kind == Kind::Told {
            failed.add(aggregate, (server, stats.rest()), &mut table);
            continue;
        }
        has_table = true;
        for stat in Stats::new(reply) {
            if kind == Kind::Lines {
                write_row(stat.kind, stat.name, stat.value, out);
            } else if aggregate.tells(stat.name) {
                table.add(stat.kind, aggregate.name(server, stat.name), stat.value);
            }
        }
    }
    if !has_table {
        // A word of its own, or an error, which goes before what others have said.
        let has_error = failed.0.iter().any(|(_, said)| is_error(said));
        let is_odd = |said: &[u8]| if has_error { is_error(said) } else { said != b"OK\r\n" };
        failed.0.retain(|&(_, said)| is_odd(said));
        match failed.first(aggregate) {
            Some((name, said)) => write_odd(&name, said, out),
            None => out.extend_from_slice(replies.first()?),
        }
        return Some(());
    }
    let count = failed.count(aggregate);
    failed.add_to(aggregate, &mut table, &count);
    for row in &table.rows {
        write_row(row.kind, &row.name, &aggregate.value(row), out);
    }
    out.extend_from_slice(b"END\r\n");
    Some(())
}

/// Writes what a server said, with its name where it is not what the client has asked for that was
/// wrong.
fn write_odd(name: &str, said: &[u8], out: &mut Vec<u8>) {
    match said.strip_prefix(SERVER_ERROR) {
        Some(reason) => {
            for part in [SERVER_ERROR, name.as_bytes(), b": ", reason] {
                out.extend_from_slice(part);
            }
        }
        None => out.extend_from_slice(said),
    }
}

fn write_row(kind: &[u8], name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let space = if value.is_empty() { &b""[..] } else { b" " };
    for part in [kind, b" ", name, space, value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Puts binary replies together: those of statistics, or of a command that every server has
/// followed. `None` if one of them is none.
fn merge_packets(
    aggregate: &Aggregate,
    replies: &[&[u8]],
    asked: Asked,
    out: &mut Vec<u8>,
) -> Option<()> {
    let kind = aggregate.kind;
    if aggregate.passes_on(replies) {
        out.extend_from_slice(replies.first()?);
        return Some(());
    }
    let mut failed = Failed::default();
    let mut table = Rows::default();
    let mut refusal = None;
    for (server, reply) in replies.iter().enumerate() {
        let last = Packets::new(reply).last()?;
        if last.status != 0 {
            refusal = refusal.or(Some(last));
            failed.add(aggregate, (server, last.value), &mut table);
            continue;
        }
        for packet in Packets::new(reply) {
            if packet.key == b"detailed" {
                for prefix in Stats::new(packet.value) {
                    table.add(prefix.kind, prefix.name.to_vec(), prefix.value);
                }
            } else if !packet.key.is_empty() && aggregate.tells(packet.key) {
                table.add(b"STAT", aggregate.name(server, packet.key), packet.value);
            }
        }
    }
    let Asked { opcode, opaque, .. } = asked;
    if let Some(refusal) = refusal
        && table.rows.is_empty()
        && kind != Kind::Servers
    {
        let (name, said) = failed.first(aggregate)?;
        if refusal.status == Status::TemporaryFailure.code() {
            let value = [name.as_bytes(), b": ", said].concat();
            let status = Status::TemporaryFailure;
            write_response(&Response { opcode, status, opaque, key: b"", value: &value }, out);
        } else {
            out.extend_from_slice(refusal.bytes);
        }
        return Some(());
    }
    if kind == Kind::Told {
        out.extend_from_slice(replies.first()?);
        return Some(());
    }
    let count = failed.count(aggregate);
    failed.add_to(aggregate, &mut table, &count);
    let mut write = |key: &[u8], value: &[u8]| {
        write_response(&Response { opcode, status: Status::Success, opaque, key, value }, out);
    };
    let mut details = Vec::new();
    for row in &table.rows {
        match row.kind {
            b"PREFIX" => write_row(row.kind, &row.name, &aggregate.value(row), &mut details),
            _ => write(&row.name, &aggregate.value(row)),
        }
    }
    if !details.is_empty() {
        details.extend_from_slice(b"END\r\n");
        write(b"detailed", &details);
    }
    write(b"", b"");
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(kind: Kind, replies: &[&str]) -> String {
        let servers = vec!["a:1".to_owned(), "b:2".to_owned()];
        let aggregate =
            Aggregate { kind, servers, ejected: Vec::new(), process_id: 99, is_hidden: false };
        let replies: Vec<&[u8]> = replies.iter().map(|reply| reply.as_bytes()).collect();
        let mut out = Vec::new();
        merge_stats(&aggregate, &replies, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_added_where_that_makes_sense() {
        let one = "STAT pid 5\r\nSTAT uptime 70\r\nSTAT version 1.6.18\r\nSTAT rusage_user 1.900000\r\n\
                   STAT curr_items 3\r\nSTAT threads 4\r\nEND\r\n";
        let two = "STAT pid 6\r\nSTAT uptime 50\r\nSTAT version 1.6.21\r\nSTAT rusage_user 0.200001\r\n\
                   STAT curr_items 4\r\nSTAT new 1\r\nEND\r\n";
        let both = "STAT pid 99\r\nSTAT uptime 50\r\nSTAT version 1.6.18,1.6.21\r\n\
                    STAT rusage_user 2.100001\r\nSTAT curr_items 7\r\nSTAT threads 4\r\nSTAT new 1\r\nEND\r\n";
        assert_eq!(merged(Kind::General, &[one, two]), both);
        assert_eq!(merged(Kind::General, &[one]), one);
        let items = "STAT items:1:number 2\r\nSTAT items:1:age 7\r\nEND\r\n";
        let more = "STAT items:1:number 3\r\nSTAT items:1:age 5\r\nEND\r\n";
        let both = "STAT items:1:number 5\r\nSTAT items:1:age 7\r\nEND\r\n";
        assert_eq!(merged(Kind::Numbers, &[items, more]), both);
        let settings = ["STAT maxbytes 64\r\nSTAT inter NULL\r\nEND\r\n"; 2];
        assert_eq!(merged(Kind::Settings, &settings), settings[0]);
    }

    #[test]
    fn lines_that_cannot_be_added_are_all_there() {
        let conns = ["STAT 28:addr tcp:x\r\nEND\r\n", "STAT 28:addr tcp:y\r\nEND\r\n"];
        let both = "STAT a:1:28:addr tcp:x\r\nSTAT b:2:28:addr tcp:y\r\nEND\r\n";
        assert_eq!(merged(Kind::Named, &conns), both);
        let general = ["STAT pid 1\r\nEND\r\n", "SERVER_ERROR timed out\r\n"];
        let both = "STAT a:1:pid 1\r\nSTAT b:2:error SERVER_ERROR timed out\r\nEND\r\n";
        assert_eq!(merged(Kind::Servers, &general), both);
        let dump = ["ITEM k [1 b; 0 s]\r\nEND\r\n", "ITEM l [1 b; 0 s]\r\nEND\r\n"];
        let both = "ITEM k [1 b; 0 s]\r\nITEM l [1 b; 0 s]\r\nEND\r\n";
        assert_eq!(merged(Kind::Lines, &dump), both);
        let prefixes = ["PREFIX a get 1 hit 0\r\nEND\r\n", "PREFIX a get 2 hit 1\r\nEND\r\n"];
        assert_eq!(merged(Kind::Numbers, &prefixes), "PREFIX a get 3 hit 1\r\nEND\r\n");
    }

    #[test]
    fn words_and_errors_are_passed_on() {
        for (replies, expected) in [
            (["RESET\r\n", "RESET\r\n"], "RESET\r\n"),
            (["ERROR\r\n", "ERROR\r\n"], "ERROR\r\n"),
            (["RESET\r\n", "CLIENT_ERROR x\r\n"], "CLIENT_ERROR x\r\n"),
            (["OK\r\n", "SERVER_ERROR x\r\n"], "SERVER_ERROR b:2: x\r\n"),
            (["SERVER_ERROR x\r\n"; 2], "SERVER_ERROR a:1 and 1 more: x\r\n"),
        ] {
            assert_eq!(merged(Kind::Numbers, &replies), expected);
            assert_eq!(merged(Kind::Told, &replies), expected);
        }
        for (replies, expected) in [
            (["OK\r\n"; 2], "OK\r\n"),
            (["OK\r\n", "BUSY x\r\n"], "BUSY x\r\n"),
            (["BUSY x\r\n", "SERVER_ERROR x\r\n"], "SERVER_ERROR b:2: x\r\n"),
            (["END\r\n", "SERVER_ERROR x\r\n"], "SERVER_ERROR b:2: x\r\n"),
            (["OK\r\n", "STAT surprise 1\r\nEND\r\n"], "END\r\n"),
        ] {
            assert_eq!(merged(Kind::Told, &replies), expected);
        }
        assert_eq!(merged(Kind::Told, &["SERVER_ERROR x\r\n"]), "SERVER_ERROR x\r\n");
    }

    #[test]
    fn a_server_that_fails_is_named_behind_what_the_others_say() {
        let failed = "STAT servers_failed 1\r\nSTAT b:2:error SERVER_ERROR x\r\nEND\r\n";
        for (kind, table, expected) in [
            (Kind::General, "STAT curr_items 1\r\n", "STAT curr_items 1\r\n"),
            (Kind::Numbers, "STAT items:1:number 1\r\n", "STAT items:1:number 1\r\n"),
            (Kind::Numbers, "", ""),
            (Kind::Settings, "STAT maxbytes 64\r\n", "STAT maxbytes 64\r\n"),
            (Kind::Lines, "ITEM k [1 b; 0 s]\r\n", "ITEM k [1 b; 0 s]\r\n"),
        ] {
            let table = format!("{table}END\r\n");
            for odd in ["SERVER_ERROR x\r\n", "STAT curr_items 9\r\nSERVER_ERROR x\r\n"] {
                assert_eq!(merged(kind, &[&table, odd]), format!("{expected}{failed}"));
            }
        }
        let conns = ["STAT 28:addr tcp:x\r\nEND\r\n", "ERROR\r\n"];
        let both = "STAT a:1:28:addr tcp:x\r\nSTAT b:2:error ERROR\r\nEND\r\n";
        assert_eq!(merged(Kind::Named, &conns), both);
        for (kind, expected) in [
            (
                Kind::General,
                "STAT n 1\r\nSTAT servers_failed 1\r\nSTAT b:2:error ejected\r\nEND\r\n",
            ),
            (Kind::Servers, "STAT a:1:n 1\r\nSTAT b:2:error ejected\r\nEND\r\n"),
        ] {
            let (servers, ejected) = (vec!["a:1".to_owned()], vec!["b:2".to_owned()]);
            let aggregate = Aggregate { kind, servers, ejected, process_id: 99, is_hidden: false };
            let mut out = Vec::new();
            merge_stats(&aggregate, &[b"STAT n 1\r\nEND\r\n"], &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn packets_are_added_like_lines() {
        let packet = |status, key: &[u8], value: &[u8]| {
            let (opcode, opaque) = (0x10, *b"opaq");
            let mut out = Vec::new();
            write_response(&Response { opcode, status, opaque, key, value }, &mut out);
            out
        };
        let reply = |items: &[u8]| {
            [
                packet(Status::Success, b"curr_items", items),
                packet(Status::Success, b"detailed", b"PREFIX a get 1 hit 0\r\nEND\r\n"),
                packet(Status::Success, b"", b""),
            ]
            .concat()
        };
        let servers = vec!["a:1".to_owned(), "b:2".to_owned()];
        let aggregate = Aggregate {
            kind: Kind::General,
            servers,
            ejected: Vec::new(),
            process_id: 99,
            is_hidden: false,
        };
        let asked = Asked { opcode: 0x10, opaque: *b"opaq", ..Asked::default() };
        let (one, two) = (reply(b"3"), reply(b"4"));
        let mut out = Vec::new();
        merge_packets(&aggregate, &[&one, &two], asked, &mut out).unwrap();
        let expected = [
            packet(Status::Success, b"curr_items", b"7"),
            packet(Status::Success, b"detailed", b"PREFIX a get 2 hit 0\r\nEND\r\n"),
            packet(Status::Success, b"", b""),
        ];
        assert_eq!(out, expected.concat());
        for (status, text, told) in [
            (Status::NotFound, &b"Not found"[..], &b"Not found"[..]),
            (Status::TemporaryFailure, b"Connection refused", b"b:2: Connection refused"),
        ] {
            let error = packet(status, b"", text);
            out.clear();
            merge_packets(&aggregate, &[&one, &error], asked, &mut out).unwrap();
            let expected = [
                packet(Status::Success, b"curr_items", b"3"),
                packet(Status::Success, b"servers_failed", b"1"),
                packet(Status::Success, b"b:2:error", text),
                packet(Status::Success, b"detailed", b"PREFIX a get 1 hit 0\r\nEND\r\n"),
                packet(Status::Success, b"", b""),
            ];
            assert_eq!(out, expected.concat());
            let done = packet(Status::Success, b"", b"");
            let servers = aggregate.servers.clone();
            let aggregate = Aggregate {
                kind: Kind::Told,
                servers,
                ejected: Vec::new(),
                process_id: 99,
                is_hidden: false,
            };
            for (reply, expected) in [(&error, packet(status, b"", told)), (&done, done.clone())] {
                out.clear();
                merge_packets(&aggregate, &[&done, reply], asked, &mut out).unwrap();
                assert_eq!(out, expected);
            }
        }
    }
}
