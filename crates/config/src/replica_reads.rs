//! The options about reads from replicas.

use std::fmt;

use schemars::{Schema, json_schema};

use crate::diagnostic::{Complaint, Pos, Report};
use crate::file::PoolSection;
use crate::snapshot::{Pool, ReadYourWrites, ReplicaReads};
use crate::value::{Value, all_digits};

const SECOND: u64 = 1000;

/// A time in milliseconds, or with a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<const MIN: u64, const MAX: u64> Value for Span<MIN, MAX> {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match milliseconds(text) {
            Some(ms) if ms < MIN => Err(Complaint::new(format!("{text} is too short"))),
            Some(ms) if ms <= MAX => Ok(Self(ms)),
            Some(_) => Err(Complaint::new(format!("{text} is too long"))),
            None => Err(Complaint::new(format!("\"{text}\" is not a time"))),
        }
        .map_err(|complaint| complaint.hint(Self::expected()))
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            { "type": "integer", "minimum": MIN, "maximum": MAX },
            { "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)?$" },
        ] })
    }

    fn describe() -> String {
        format!("{} to {}", SpanText(MIN), SpanText(MAX))
    }
}

/// `None` is no time, or one that is longer than any.
fn milliseconds(text: &str) -> Option<u64> {
    let units = [
        ("ms", 1),
        ("s", SECOND),
        ("m", 60 * SECOND),
        ("h", 3600 * SECOND),
        ("d", 86_400 * SECOND),
    ];
    let of_unit = |(unit, factor)| Some((text.strip_suffix(unit)?, factor));
    let (number, factor) = units.into_iter().find_map(of_unit).unwrap_or((text, 1));
    // Digits that do not fit are too many.
    all_digits(number).then(|| number.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(factor))
}

/// Milliseconds in the largest unit that leaves no remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanText(pub(crate) u64);

impl fmt::Display for SpanText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_multiple_of(SECOND) && self.0 > 0 {
            true => write!(f, "{}s", self.0 / SECOND),
            false => write!(f, "{}ms", self.0),
        }
    }
}

/// How long clients may read from the primary only after each write.
type AfterWrite = Span<1, 3_600_000>;

impl Value for ReadYourWrites {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "off" => Ok(Self::Off),
            "offset" => Ok(Self::Offset),
            _ => AfterWrite::parse(text).map(|span| Self::For(span.0)).map_err(|_| {
                Complaint::new(format!("\"{text}\" is no way to read one's own writes"))
                    .hint(Self::expected())
            }),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            { "enum": ["off", "offset"] },
            { "type": "integer", "minimum": 1, "maximum": 3_600_000 },
            { "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)?$" },
        ] })
    }

    fn describe() -> String {
        format!("`off`, `offset`, or {}", AfterWrite::describe())
    }
}

impl fmt::Display for ReadYourWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::For(ms) => SpanText(*ms).fmt(f),
            Self::Offset => f.write_str("offset"),
        }
    }
}

/// The options that were given, with their places.
pub(crate) fn given(section: &PoolSection) -> Vec<(&'static str, Pos)> {
    let lag_max = section.replica_lag_max.as_ref().map_or(Pos::NONE, |lag| lag.pos);
    let all = [
        ("replica_lag_max", lag_max),
        ("replica_link_down_max", section.replica_link_down_max.pos),
        ("read_your_writes", section.read_your_writes.pos),
    ];
    all.into_iter().filter(|&(_, pos)| pos != Pos::NONE).collect()
}

pub(crate) fn resolve(section: &PoolSection) -> ReplicaReads {
    ReplicaReads {
        lag_max: section.replica_lag_max.as_ref().map(|lag| lag.value.0),
        link_down_max_ms: section.replica_link_down_max.value.0,
        read_your_writes: section.read_your_writes.value,
    }
}

/// Options without an effect are a mistake, though a harmless one.
pub(crate) fn warn_without_replicas(pool: &Pool, section: &PoolSection, report: &mut Report<'_>) {
    if pool.has_replicas()
        || pool.takes_replicas()
        || pool.is_cluster()
        || pool.protocol != crate::snapshot::Protocol::Redis
    {
        return;
    }
    for (key, pos) in given(section) {
        let complaint = Complaint::new(format!("\"{key}\" has no effect"));
        report.warning(pos, complaint.hint("no server of the pool has replicas"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let span = |text| Span::<5, 60_000>::parse(text).ok().map(|span| span.0);
        assert_eq!(span("5"), Some(5));
        assert_eq!(span("250ms"), Some(250));
        assert_eq!(span("60s"), Some(60_000));
        assert_eq!(span("1m"), Some(60_000));
        let long = |text| Span::<0, { u64::MAX }>::parse(text).ok().map(|span| span.0);
        assert_eq!([long("2h"), long("30d")], [Some(7_200_000), Some(2_592_000_000)]);
        for text in ["4ms", "61s", "", "s", "ms", "2m", "1.5s", "-1s", "99999999999999999999s"] {
            assert_eq!(span(text), None, "{text}");
        }
        assert_eq!([0, 1500, 2000].map(|ms| SpanText(ms).to_string()), ["0ms", "1500ms", "2s"]);
    }

    #[test]
    fn own_writes_are_seen_in_three_ways() {
        let way = |text| ReadYourWrites::parse(text).ok();
        assert_eq!(way("off"), Some(ReadYourWrites::Off));
        assert_eq!(way("offset"), Some(ReadYourWrites::Offset));
        assert_eq!(way("500ms"), Some(ReadYourWrites::For(500)));
        assert_eq!(way("2s"), Some(ReadYourWrites::For(2000)));
        for text in ["on", "0", "2h", "Offset"] {
            assert_eq!(way(text), None, "{text}");
        }
    }
}
