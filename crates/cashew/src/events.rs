//! `cashew events`: what has changed, and what changes.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use cashew_process::log::{EventRecord, in_one_line};
use cashew_supervisor::{Answer, Command};

use crate::arguments::EventsArguments;
use crate::operate::{ask, finish};

/// How often the instance is asked for what is new.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// An event may be whole only after some with higher numbers: so far back is looked.
const LATE_MAX: u64 = 256;

pub(crate) fn events(arguments: &EventsArguments) -> ExitCode {
    finish(show(arguments))
}

fn show(arguments: &EventsArguments) -> Result<(), String> {
    let mut seen = Seen::default();
    loop {
        let mut new = Vec::new();
        let (since, kind) = (arguments.since.max(seen.all_up_to()), arguments.kind.clone());
        ask(&arguments.instance, &Command::Events { since, kind }, |answer| {
            if let Answer::Events(events) = answer {
                new = events;
            }
        })?;
        for event in new.into_iter().filter(|event| seen.add(event.number)) {
            let line = if arguments.json { json(&event) } else { line(&event) };
            // The reader may be gone, as with `head`.
            if writeln!(io::stdout(), "{line}").is_err() {
                return Ok(());
            }
        }
        if !arguments.follow {
            return Ok(());
        }
        thread::sleep(FOLLOW_INTERVAL);
    }
}

/// The numbers of events, or of slow requests, that were shown.
#[derive(Default)]
pub(crate) struct Seen {
    numbers: BTreeSet<u64>,
}

impl Seen {
    /// Whether it was not shown before.
    pub(crate) fn add(&mut self, number: u64) -> bool {
        let is_new = self.numbers.insert(number);
        let floor = self.all_up_to();
        self.numbers = self.numbers.split_off(&floor);
        is_new
    }

    /// What has no higher number is not asked for any more.
    pub(crate) fn all_up_to(&self) -> u64 {
        self.numbers.last().map_or(0, |newest| newest.saturating_sub(LATE_MAX))
    }
}

fn json(event: &EventRecord) -> String {
    serde_json::to_string(event).expect("an event is plain JSON")
}

/// For people: names in it may come from anywhere.
fn line(event: &EventRecord) -> String {
    let EventRecord { time, level, kind, process, message, left_out, .. } = event;
    let level = level.to_uppercase();
    let mut line = in_one_line(&format!("{time} {level} {kind} {process} {message}"));
    if *left_out > 0 {
        line += &format!(" ({left_out} more like it were left out before)");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_shown_once_even_if_it_is_late() {
        let mut seen = Seen::default();
        let shown: Vec<bool> = [5, 7, 5, 6, 7].map(|number| seen.add(number)).to_vec();
        assert_eq!(shown, [true, true, false, true, false]);
        assert_eq!(seen.all_up_to(), 0);
        assert!(seen.add(7 + LATE_MAX));
        assert_eq!(seen.all_up_to(), 7);
        assert!(!seen.add(7) && seen.numbers.len() == 2);
    }

    #[test]
    fn a_line_is_one_line() {
        let event = EventRecord {
            number: 1,
            time: "T".into(),
            level: "warn".into(),
            process: "master".into(),
            kind: "reload_refused".into(),
            pool: String::new(),
            server: String::new(),
            worker: None,
            left_out: 2,
            message: "a\nb\u{1b}".into(),
        };
        let expected =
            "T WARN reload_refused master a\\nb\\u001b (2 more like it were left out before)";
        assert_eq!(line(&event), expected);
    }
}
