//! An event as operators and tools get it: with the fields of a line of the log.

use cashew_metrics::Event;
use chrono::{DateTime, Local, TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventRecord {
    /// Later events have higher numbers.
    pub number: u64,
    /// As RFC 3339 has it, with milliseconds and the zone of this machine.
    pub time: String,
    pub level: String,
    pub process: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pool: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// How many like it, of the same pool and server, were left out before it.
    #[serde(default, skip_serializing_if = "is_none_left_out")]
    pub left_out: u64,
    pub message: String,
}

fn is_none_left_out(left_out: &u64) -> bool {
    *left_out == 0
}

impl From<Event> for EventRecord {
    fn from(event: Event) -> Self {
        let Event { number, at_ms, kind, level, process, worker, pool, server, text, left_out } =
            event;
        let at: DateTime<Local> = i64::try_from(at_ms)
            .ok()
            .and_then(|ms| Local.timestamp_millis_opt(ms).single())
            .unwrap_or_default();
        Self {
            number,
            time: super::line::rfc3339(at).to_string(),
            level: level.name().to_owned(),
            process,
            kind: kind.name().to_owned(),
            pool,
            server,
            worker,
            left_out,
            message: text,
        }
    }
}

#[cfg(test)]
mod tests {
    use cashew_metrics::{EventKind, EventLevel};

    use super::*;

    #[test]
    fn a_record_has_the_fields_of_a_line_and_a_number() {
        let event = Event {
            number: 7,
            at_ms: 1_700_000_000_123,
            kind: EventKind::ServerDown,
            level: EventLevel::Warn,
            process: "worker-0".into(),
            worker: Some(0),
            pool: "alpha".into(),
            server: String::new(),
            text: "it \"fails\"\n".into(),
            left_out: 0,
        };
        let record = EventRecord::from(event);
        let json = serde_json::to_string(&record).unwrap();
        let at = DateTime::parse_from_rfc3339(&record.time).unwrap();
        assert_eq!(at.timestamp_millis(), 1_700_000_000_123);
        let expected = format!(
            r#"{{"number":7,"time":"{}","level":"warn","process":"worker-0","kind":"server_down","pool":"alpha","worker":0,"message":"it \"fails\"\n"}}"#,
            record.time
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<EventRecord>(&json).unwrap(), record);
    }
}
