//! SLOWLOG and HOTKEYS TOP: what was slow here, and which keys are hot. The servers' own logs are asked by name.

use std::time::Duration;

use cashew_metrics::{HotKey, Ranking, SeenRequest};
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, encode};

use crate::base::id::ClientId;
use crate::base::time::Time;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::observe::{share, times};

/// Entries of SLOWLOG GET without a number, as in Redis.
const ENTRIES: usize = 10;
/// Keys of HOTKEYS TOP without a number.
const KEYS: usize = 10;
const KEYS_MAX: i64 = 100;
/// Hot keys are looked for anew after so long.
const ROWS_KEPT: Duration = Duration::from_millis(200);

const SLOWLOG_HELP: [&str; 12] = [
    "SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET [<count>]",
    "    Return top <count> entries from the slowlog of this port (default: 10, -1 mean all).",
    "    Entries are made of:",
    "    id, timestamp, time in microseconds, arguments array, client IP and port,",
    "    client name. The last argument tells where the time went.",
    "LEN",
    "    Return the length of the slowlog.",
    "RESET",
    "    Reset the slowlog.",
    "HELP",
    "    Print this help. With server:NAME behind it, each asks that server for its own.",
];

impl Engine {
    pub(crate) fn slow_log_command(
        &mut self,
        client: ClientId,
        command: &Command,
        count: Option<&[u8]>,
        arguments: usize,
    ) -> Plan {
        match (command.name, arguments) {
            ("slowlog|get", 2 | 3) => self.slow_log_get(client, count),
            ("slowlog|len", _) => {
                let pool = &self.listener_of(client).config.name;
                let len = self.observer.slow_log.len_of(pool) as i64;
                self.reply_with(client, |out| encode::write_integer(out, len))
            }
            ("slowlog|reset", _) => {
                let pool = self.listener_of(client).config.name.clone();
                self.observer.slow_log.reset(&pool);
                self.say(client, b"+OK\r\n")
            }
            ("slowlog|help", _) => self.reply_with(client, |out| {
                encode::write_array_header(out, SLOWLOG_HELP.len());
                SLOWLOG_HELP.iter().for_each(|line| encode::write_status(out, line.as_bytes()));
            }),
            _ => self.reply_error(client, "ERR syntax error"),
        }
    }

    /// The newest ones of the client's port, the newest first.
    pub(crate) fn slow_requests_of(&self, client: ClientId, most: usize) -> Vec<SeenRequest> {
        self.observer.slow_log.newest_of(&self.listener_of(client).config.name, most)
    }

    fn slow_log_get(&mut self, client: ClientId, count: Option<&[u8]>) -> Plan {
        let most = match count.map(resp::integer) {
            None => ENTRIES,
            Some(Some(-1)) => usize::MAX,
            Some(Some(count @ 0..)) => usize::try_from(count).unwrap_or(usize::MAX),
            Some(_) => {
                let text = "ERR count should be greater than or equal to -1";
                return self.reply_error(client, text);
            }
        };
        let seen = self.slow_requests_of(client, most);
        // Each is a record of a KiB.
        self.spend(seen.len() << 10);
        let is_hidden = self.listener_of(client).config.hide_topology;
        self.reply_with(client, |out| {
            encode::write_array_header(out, seen.len());
            seen.iter().for_each(|request| write_entry(request, is_hidden, out));
        })
    }

    pub(crate) fn hot_keys_command(
        &mut self,
        client: ClientId,
        ranking: Option<&[u8]>,
        count: Option<&[u8]>,
        arguments: usize,
    ) -> Plan {
        let usage = "ERR syntax error: HOTKEYS TOP [requests|bytes|time|size] [count]";
        let name = ranking.map_or_else(|| "requests".into(), String::from_utf8_lossy);
        let Some(ranking) = Ranking::named(&name.to_ascii_lowercase()) else {
            return self.reply_error(client, usage);
        };
        let most = match count.map(resp::integer) {
            None => KEYS,
            Some(Some(count @ 1..=KEYS_MAX)) => count as usize,
            Some(_) => {
                let text = format!("ERR count should be a number from 1 to {KEYS_MAX}");
                return self.reply_error(client, &text);
            }
        };
        if arguments > 4 {
            return self.reply_error(client, usage);
        }
        let keys = self.hot_keys_of(client, ranking, most);
        self.reply_with(client, |out| {
            encode::write_array_header(out, keys.len());
            for HotRow { key, server, share } in &keys {
                encode::write_array_header(out, 4);
                encode::write_bulk(out, &key.key);
                encode::write_integer(out, i64::try_from(key.weight).unwrap_or(i64::MAX));
                encode::write_bulk(out, share.as_bytes());
                encode::write_bulk(out, server.as_bytes());
            }
        })
    }

    /// The hottest keys of the pools behind the client's port.
    pub(crate) fn hot_keys_of(
        &mut self,
        client: ClientId,
        ranking: Ranking,
        most: usize,
    ) -> Vec<HotRow> {
        let pool = self.listener_of(client).config.name.clone();
        let is_known = self.hot_rows.as_ref().is_some_and(|rows| {
            rows.pool == pool && rows.ranking == ranking && self.now < rows.at + ROWS_KEPT
        });
        if !is_known {
            let rows = self.find_hot_keys(client, ranking);
            self.hot_rows = Some(HotRows { pool, ranking, at: self.now, rows });
        }
        let rows = self.hot_rows.as_ref().map_or(&[][..], |rows| &rows.rows);
        rows.iter().take(most).cloned().collect()
    }

    fn find_hot_keys(&self, client: ClientId, ranking: Ranking) -> Vec<HotRow> {
        let most = KEYS_MAX as usize;
        let listener = self.listener_of(client);
        let backends = self.destination_of(client).backends();
        let now_us = self.now.as_micros();
        let is_hidden = listener.config.hide_topology;
        let mut rows = Vec::new();
        for &id in backends {
            let Some(backend) = self.backends.get(id) else { continue };
            let hot = self.metrics.hot_keys(backend.metrics, ranking, now_us);
            for key in hot.keys.iter().take(most) {
                let server = backend.config.servers.get(key.server as usize);
                let server = server.filter(|_| !is_hidden).map_or("", |server| &server.name);
                let share = share(key.weight, &hot);
                rows.push(HotRow { key: key.clone(), server: server.to_owned(), share });
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.key.weight));
        rows.truncate(most);
        rows
    }
}

/// What was found last. To find it takes a look at what all workers have seen.
pub(crate) struct HotRows {
    pool: String,
    ranking: Ranking,
    at: Time,
    rows: Vec<HotRow>,
}

/// A hot key as it is shown.
#[derive(Clone)]
pub(crate) struct HotRow {
    pub(crate) key: HotKey,
    /// Empty if servers are not to be named.
    pub(crate) server: String,
    /// Of all requests of its pool, in the unit of the ranking. Empty where there is no such share.
    pub(crate) share: String,
}

/// As Redis writes an entry. The last argument is not the client's: it tells where the time went.
fn write_entry(request: &SeenRequest, is_hidden: bool, out: &mut Vec<u8>) {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    encode::write_array_header(out, 6);
    encode::write_integer(out, number(request.number));
    encode::write_integer(out, number(request.at_us / 1_000_000));
    encode::write_integer(out, number(request.times.total_us()));
    encode::write_array_header(out, request.arguments.len() + 1);
    request.arguments.iter().for_each(|argument| encode::write_bulk(out, argument));
    encode::write_bulk(out, format!("({})", times(request, is_hidden)).as_bytes());
    encode::write_bulk(out, request.client.as_bytes());
    encode::write_bulk(out, &request.client_name);
}
