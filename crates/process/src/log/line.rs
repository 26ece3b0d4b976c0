//! How a line of the log looks.
//!
//! What a line tells may come from a client, a server or a file. Whatever would begin another line, or move the
//! cursor of a terminal, is escaped, so that nobody can forge one.

use std::fmt::{self, Write};

use cashew_config::snapshot::LogFormat;
use cashew_metrics::EventLevel;
use chrono::{DateTime, Local, TimeZone};
use tracing::Level;

/// What a line tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub(super) at: DateTime<Local>,
    pub(super) level: Level,
    /// Which process wrote it.
    pub(super) process: &'a str,
    /// The name of the kind of event that it is; empty if it is none.
    pub(super) kind: &'a str,
    /// Empty if it is about none, like the next.
    pub(super) pool: &'a str,
    pub(super) server: &'a str,
    pub(super) worker: Option<u32>,
    pub(super) text: &'a str,
    /// How many events like it were left out before it.
    pub(super) left_out: u64,
}

impl Line<'_> {
    /// With its end.
    pub(super) fn format(&self, format: LogFormat) -> String {
        let mut line = String::with_capacity(128 + self.text.len());
        let written = match format {
            LogFormat::Plain => self.plain(&mut line),
            LogFormat::Json => self.json(&mut line),
        };
        written.expect("a string takes everything");
        line.push('\n');
        line
    }

    /// As nutcracker's: `[2026-01-31 23:59:59.999] WARN worker-1 text`, in local time.
    fn plain(&self, line: &mut String) -> fmt::Result {
        let at = self.at.format("%Y-%m-%d %H:%M:%S%.3f");
        write!(line, "[{at}] {} {} ", self.level, self.process)?;
        escape(self.text, line, |_| false);
        if self.left_out > 0 {
            write!(line, " ({} more like it were left out before)", self.left_out)?;
        }
        Ok(())
    }

    fn json(&self, line: &mut String) -> fmt::Result {
        let at = rfc3339(self.at);
        let level = match self.level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        write!(line, "{{\"time\":\"{at}\",\"level\":\"{level}\"")?;
        let texts = [
            ("process", self.process),
            ("kind", self.kind),
            ("pool", self.pool),
            ("server", self.server),
        ];
        for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            string(name, text, line)?;
        }
        if let Some(worker) = self.worker {
            write!(line, ",\"worker\":{worker}")?;
        }
        if self.left_out > 0 {
            write!(line, ",\"left_out\":{}", self.left_out)?;
        }
        string("message", self.text, line)?;
        line.push('}');
        Ok(())
    }
}

fn string(name: &str, text: &str, line: &mut String) -> fmt::Result {
    write!(line, ",\"{name}\":\"")?;
    escape(text, line, |letter| matches!(letter, '"' | '\\'));
    line.push('"');
    Ok(())
}

pub(super) fn rfc3339(at: DateTime<Local>) -> impl fmt::Display {
    at.format("%Y-%m-%dT%H:%M:%S%.3f%:z")
}

/// Microseconds since 1970 as RFC 3339 has it, with the zone of this machine.
pub fn rfc3339_us(us: u64) -> String {
    let at: DateTime<Local> = i64::try_from(us)
        .ok()
        .and_then(|us| Local.timestamp_micros(us).single())
        .unwrap_or_default();
    at.format("%Y-%m-%dT%H:%M:%S%.6f%:z").to_string()
}

/// The text without anything that would begin another line or move the cursor of a terminal.
pub fn in_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    escape(text, &mut line, |_| false);
    line
}

/// As JSON does it, in both forms. `also` is what else gets a backslash.
fn escape(text: &str, line: &mut String, also: impl Fn(char) -> bool) {
    for letter in text.chars() {
        match letter {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            letter if also(letter) => line.extend(['\\', letter]),
            letter if is_unsafe(letter) => {
                write!(line, "\\u{:04x}", u32::from(letter)).expect("a string takes everything");
            }
            letter => line.push(letter),
        }
    }
}

/// Control characters, what some programs take for the end of a line, and what makes letters change places. All
/// have four hexadecimal digits at most.
fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

pub(super) fn event_level(level: Level) -> EventLevel {
    match level {
        Level::ERROR => EventLevel::Error,
        Level::WARN => EventLevel::Warn,
        _ => EventLevel::Info,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line<'_> {
        Line {
            at: Local.with_ymd_and_hms(2026, 1, 31, 23, 59, 59).unwrap(),
            level: Level::WARN,
            process: "worker-1",
            kind: "server_down",
            pool: "alpha",
            server: "one",
            worker: Some(1),
            text,
            left_out: 0,
        }
    }

    #[test]
    fn a_plain_line_has_time_level_process_and_text() {
        let it = line("it fails");
        assert_eq!(
            it.format(LogFormat::Plain),
            "[2026-01-31 23:59:59.000] WARN worker-1 it fails\n"
        );
        let it = Line { left_out: 7, ..it };
        let expected = "WARN worker-1 it fails (7 more like it were left out before)\n";
        assert!(it.format(LogFormat::Plain).ends_with(expected));
    }

    #[test]
    fn a_line_of_json_has_fields_and_a_time_with_its_zone() {
        let text = line("it fails").format(LogFormat::Json);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let time = json["time"].as_str().unwrap();
        let parsed = DateTime::parse_from_rfc3339(time).unwrap();
        assert_eq!(parsed, line("").at);
        assert!(time.contains(".000"), "{time}");
        let zone = line("").at.format("%:z").to_string();
        assert!(time.ends_with(&zone), "{time}");
        let expected = serde_json::json!({
            "time": time, "level": "warn", "process": "worker-1", "kind": "server_down",
            "pool": "alpha", "server": "one", "worker": 1, "message": "it fails",
        });
        assert_eq!(json, expected);
        let plain = Line { kind: "", pool: "", server: "", worker: None, left_out: 3, ..line("x") };
        let json: serde_json::Value = serde_json::from_str(&plain.format(LogFormat::Json)).unwrap();
        let names: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(names, ["left_out", "level", "message", "process", "time"]);
    }

    #[test]
    fn nobody_can_forge_a_line() {
        let evil = "a\n[2026-01-31 23:59:59.999] ERROR master \"x\"\\\r\u{1b}[2J\t\0\u{85}\u{2028}\u{202e}ü";
        for format in [LogFormat::Plain, LogFormat::Json] {
            let it = Line { process: "p\"\n", kind: "k\"", pool: evil, server: evil, ..line(evil) };
            let it = if format == LogFormat::Plain { line(evil) } else { it };
            let text = it.format(format);
            let body = text.strip_suffix('\n').unwrap();
            assert!(!body.chars().any(is_unsafe), "{body:?}");
            if format == LogFormat::Json {
                let json: serde_json::Value = serde_json::from_str(body).unwrap();
                assert_eq!((&json["message"], &json["pool"]), (&evil.into(), &evil.into()));
                assert_eq!(json["process"], "p\"\n");
            }
        }
    }
}
