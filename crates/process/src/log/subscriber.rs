//! Takes what code says through `tracing`, and makes lines of the log and events of it.
//!
//! An event has the field `kind`. It is recorded whatever the log level is; the level decides about its line. One
//! that comes too often is neither recorded nor written.

use std::fmt::{Debug, Write};

use cashew_metrics::{EventKind, NewEvent, Recorded};
use chrono::Local;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use super::line::{Line, event_level};
use super::{current_filter, current_format, events, output};

pub(super) struct Log {
    /// The name of this process.
    pub(super) process: String,
    /// Its slot, if it is a worker.
    pub(super) worker: Option<u32>,
}

impl Log {
    pub(super) fn new(process: String) -> Self {
        let worker = process.strip_prefix("worker-").and_then(|slot| slot.parse().ok());
        Self { process, worker }
    }

    /// How many events like it were left out before it; `None` if it is itself.
    fn record(&self, level: Level, said: &Said) -> Option<u64> {
        let Some(kind) = EventKind::named(&said.kind) else { return Some(0) };
        let Some(events) = events() else { return Some(0) };
        let event = NewEvent {
            kind,
            level: event_level(level),
            process: &self.process,
            worker: said.worker.or(self.worker),
            pool: &said.pool,
            server: &said.server,
            text: &said.text,
        };
        match events.record(&event) {
            Recorded::Kept { left_out } => Some(left_out),
            Recorded::LeftOut => None,
        }
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && (*metadata.level() <= current_filter() || metadata.fields().field("kind").is_some())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // Events have this level at most.
        Some(current_filter().max(LevelFilter::INFO))
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let level = *event.metadata().level();
        let Some(left_out) = self.record(level, &said) else { return };
        if level > current_filter() {
            return;
        }
        let line = Line {
            at: Local::now(),
            level,
            process: &self.process,
            kind: &said.kind,
            pool: &said.pool,
            server: &said.server,
            worker: said.worker.or(self.worker),
            text: &said.text,
            left_out,
        };
        output::write(&self.process, line.format(current_format()).into_bytes());
    }

    // There are no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The fields of what was said.
#[derive(Default)]
struct Said {
    kind: String,
    pool: String,
    server: String,
    worker: Option<u32>,
    /// The message, and other fields behind it.
    text: String,
}

impl Said {
    fn place(&mut self, field: &Field) -> Option<&mut String> {
        match field.name() {
            "kind" => Some(&mut self.kind),
            "pool" => Some(&mut self.pool),
            "server" => Some(&mut self.server),
            _ => None,
        }
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        match self.place(field) {
            Some(place) => value.clone_into(place),
            None => self.record_debug(field, &value),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.record_u64(field, value),
            Err(_) => self.record_debug(field, &value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match (field.name(), u32::try_from(value)) {
            ("worker", Ok(worker)) => self.worker = Some(worker),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = if let Some(place) = self.place(field) {
            write!(place, "{value:?}")
        } else if field.name() == "message" {
            // It may come behind other fields.
            let others = std::mem::take(&mut self.text);
            write!(self.text, "{value:?}{others}")
        } else {
            write!(self.text, " {}={value:?}", field.name())
        };
        written.expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;

    use super::*;

    #[test]
    fn fields_are_told_apart_from_what_is_said() {
        struct Keep(std::sync::mpsc::Sender<Said>);
        impl Subscriber for Keep {
            fn enabled(&self, _: &Metadata<'_>) -> bool {
                true
            }
            fn event(&self, event: &Event<'_>) {
                let mut said = Said::default();
                event.record(&mut said);
                self.0.send(said).unwrap();
            }
            fn new_span(&self, _: &Attributes<'_>) -> Id {
                Id::from_u64(1)
            }
            fn record(&self, _: &Id, _: &Record<'_>) {}
            fn record_follows_from(&self, _: &Id, _: &Id) {}
            fn enter(&self, _: &Id) {}
            fn exit(&self, _: &Id) {}
        }
        let (kept, said) = std::sync::mpsc::channel();
        with_default(Keep(kept), || {
            let pool = "al\"pha".to_owned();
            tracing::warn!(kind = "server_down", pool, server = %"one", worker = 3, "it {}", "fails");
            tracing::info!(pools = 1, workers = 2, "serving");
        });
        let first = said.recv().unwrap();
        assert_eq!((&*first.kind, &*first.pool, &*first.server), ("server_down", "al\"pha", "one"));
        assert_eq!((first.worker, &*first.text), (Some(3), "it fails"));
        assert_eq!(said.recv().unwrap().text, "serving pools=1 workers=2");
    }

    #[test]
    fn a_worker_knows_its_slot() {
        assert_eq!(Log::new("worker-12".into()).worker, Some(12));
        assert_eq!(Log::new("master".into()).worker, None);
    }
}
