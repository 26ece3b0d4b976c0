//! `cashew slowlog`: which requests were slow, and where their time went.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;

use cashew_admin::{SlowListing, SlowRecord};
use chrono::{DateTime, Local};

use crate::arguments::SlowlogArguments;
use crate::events::{FOLLOW_INTERVAL, Seen};
use crate::layout::{Cell, cut, lines, micros, number, room, span, table, text};
use crate::operate::finish;
use crate::stats_port::{address, encoded, get};

/// All that are kept.
const KEPT_MAX: usize = 512;

pub(crate) fn slowlog(arguments: &SlowlogArguments) -> ExitCode {
    finish(show(arguments))
}

fn show(arguments: &SlowlogArguments) -> Result<(), String> {
    let (address, mut seen) = (address(&arguments.instance, None)?, Seen::default());
    let mut is_first = true;
    loop {
        let mut path = format!("/slow.json?since={}&limit={KEPT_MAX}", seen.all_up_to());
        if let Some(pool) = &arguments.pool {
            path += &format!("&pool={}", encoded(pool));
        }
        let listing: SlowListing = get(&address, &path)?;
        let mut requests: Vec<SlowRecord> =
            listing.requests.into_iter().rev().filter(|it| seen.add(it.number)).collect();
        if is_first {
            requests.drain(..requests.len().saturating_sub(arguments.number));
        }
        let mut shown = match arguments.json {
            true => requests.iter().map(json).collect(),
            false => for_people(&requests, room()),
        };
        if !is_first && !arguments.json {
            // The head is there already.
            shown.remove(0);
        }
        is_first = false;
        let shown: String = shown.into_iter().map(|line| line + "\n").collect();
        // The reader may be gone, as with `head`.
        if write!(io::stdout(), "{shown}").is_err() || !arguments.follow {
            return Ok(());
        }
        thread::sleep(FOLLOW_INTERVAL);
    }
}

fn json(request: &SlowRecord) -> String {
    serde_json::to_string(request).expect("a request is plain JSON")
}

/// A head, and two lines for each: the times, and whose request it was.
fn for_people(requests: &[SlowRecord], width: usize) -> Vec<String> {
    let columns = [
        text("TIME"),
        number("TOTAL"),
        number("GATEWAY"),
        number("QUEUE"),
        number("SERVER"),
        number("ORDER"),
        number("CLIENT"),
        text("WHERE"),
    ];
    let row = |request: &SlowRecord| -> Vec<Cell> {
        let parts = request.parts;
        let times = [
            request.total_us,
            parts.gateway_us,
            parts.queue_us,
            parts.server_us,
            parts.order_us,
            parts.client_us,
        ];
        let mut row = vec![Cell::from(time(request.at_us))];
        row.extend(times.map(|us| Cell::from(if us == 0 { "-".into() } else { micros(Some(us)) })));
        row.push(place(request).into());
        row
    };
    let mut table = lines(&table(&columns, requests.iter().map(row).collect(), width)).into_iter();
    let mut shown: Vec<String> = table.next().into_iter().collect();
    for (line, request) in table.zip(requests) {
        shown.push(line);
        // Names in it may come from anywhere.
        let what = Cell::from(format!("  {}", what(request)));
        shown.push(cut(&what.text, width));
    }
    shown
}

/// The time of day here.
fn time(at_us: u64) -> String {
    let at = i64::try_from(at_us).ok().and_then(DateTime::from_timestamp_micros);
    at.unwrap_or_default().with_timezone(&Local).format("%H:%M:%S").to_string()
}

fn place(request: &SlowRecord) -> String {
    match request.server.as_str() {
        "" => request.pool.clone(),
        server => format!("{}/{server}", request.pool),
    }
}

/// Whose request it was, what went wrong, and what it was.
fn what(request: &SlowRecord) -> String {
    let mut words = Vec::new();
    if !request.client.is_empty() {
        words.push(request.client.clone());
    }
    if !request.client_name.is_empty() {
        words.push(format!("({})", request.client_name));
    }
    if !request.user.is_empty() {
        words.push(format!("user={}", request.user));
    }
    if !request.failure.is_empty() {
        words.push(format!("[{}]", request.failure));
    }
    words.push(if request.command.is_empty() { "?".to_owned() } else { request.command.clone() });
    words.join(" ")
}

/// A line about all of them; `None` if there are none. The time is in microseconds since 1970.
pub(crate) fn summary(listing: &SlowListing, now_us: u64) -> Option<String> {
    let newest = listing.requests.first()?;
    let ago = span(now_us.saturating_sub(newest.at_us) / 1_000_000);
    let mut line = format!("slow requests: {} in the log, the last {ago} ago", listing.kept);
    if listing.left_out > 0 {
        line += &format!("; {} were too many to be recorded", listing.left_out);
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use cashew_admin::Parts;

    use super::*;

    fn request() -> SlowRecord {
        SlowRecord {
            number: 3,
            at_us: 1_700_000_000_000_000,
            pool: "alpha".into(),
            server: "one".into(),
            client: "10.0.0.1:5".into(),
            client_name: "app".into(),
            user: "joe".into(),
            command: format!("EVAL \"{}\" 0", "x".repeat(100)),
            total_us: 61_250,
            longest: "server".into(),
            parts: Parts { queue_us: 250, server_us: 61_000, ..Parts::default() },
            ..SlowRecord::default()
        }
    }

    #[test]
    fn a_request_has_its_parts_within_80_columns() {
        let at = time(1_700_000_000_000_000);
        let lines = for_people(&[request()], 80);
        assert_eq!(lines[0], "TIME     TOTAL GATEWAY QUEUE SERVER ORDER CLIENT WHERE");
        assert_eq!(lines[1], format!("{at}  61ms       - 250us   61ms     -      - alpha/one"));
        assert!(
            lines[2].starts_with("  10.0.0.1:5 (app) user=joe EVAL \"xxx")
                && lines[2].ends_with('~')
        );
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        assert!(for_people(&[request()], usize::MAX)[2].ends_with("\" 0"));
    }

    #[test]
    fn what_failed_has_its_reason_and_nothing_steers_the_terminal() {
        let failed = SlowRecord {
            failure: "Connection timed out".into(),
            client: String::new(),
            client_name: String::new(),
            user: String::new(),
            command: String::new(),
            server: "s\x1b[2J".into(),
            ..request()
        };
        let lines = for_people(&[failed], 80);
        assert_eq!(lines[2], "  [Connection timed out] ?");
        assert!(lines[1].ends_with("alpha/s?[2J"));
    }

    #[test]
    fn a_summary_is_one_line() {
        let mut listing = SlowListing { kept: 12, requests: vec![request()], ..Default::default() };
        let line = summary(&listing, 1_700_000_003_500_000).unwrap();
        assert_eq!(line, "slow requests: 12 in the log, the last 3s ago");
        listing.left_out = 5;
        let line = summary(&listing, 0).unwrap();
        assert!(line.ends_with("the last 0s ago; 5 were too many to be recorded"), "{line}");
        assert_eq!(summary(&SlowListing::default(), 0), None);
    }
}
