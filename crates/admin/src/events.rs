//! What has changed lately, whichever process has seen it: `/events.json`, and a table of `/state.json`.

use cashew_metrics::EventKind;
use cashew_process::log::EventRecord;
use serde::Serialize;

use crate::section::{Cell, Column, Section, Unit};
use crate::source::Source;

/// The newest events, for the page and `cashew top`.
pub(crate) struct EventTable;

impl Section for EventTable {
    fn name(&self) -> &'static str {
        "events"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 5] = [
            Column { name: "time", unit: Unit::Time },
            Column { name: "kind", unit: Unit::Text },
            Column { name: "pool", unit: Unit::Text },
            Column { name: "server", unit: Unit::Text },
            Column { name: "message", unit: Unit::Text },
        ];
        &COLUMNS
    }

    fn rows(&self, source: &Source) -> Vec<Vec<Cell>> {
        let text = |text: &str| match text {
            "" => Cell::Nothing,
            text => Cell::Text(text.to_owned()),
        };
        let row = |event: cashew_metrics::Event| {
            let kind = Cell::Text(event.kind.name().to_owned());
            let (pool, server, message) =
                (text(&event.pool), text(&event.server), text(&event.text));
            vec![Cell::Number(event.at_ms), kind, pool, server, message]
        };
        source.events().since(0).into_iter().rev().map(row).collect()
    }
}

#[derive(Serialize)]
struct Listing {
    /// The number of the newest event of all, to ask for later ones with.
    newest: u64,
    events: Vec<EventRecord>,
}

/// The events that the query asks for, as JSON in one line. An error says what is wrong with the query.
pub(crate) fn json(source: &Source, query: &str) -> Result<Vec<u8>, String> {
    let (mut since, mut wanted) = (0, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("since", number)) => {
                since = number.parse().map_err(|_| "since is a number of an event".to_owned())?;
            }
            Some(("kind", name)) => {
                let kind = EventKind::named(name);
                wanted = Some(kind.ok_or("there is no such kind of events".to_owned())?);
            }
            // Others may add something to keep caches away.
            _ => {}
        }
    }
    let all = source.events();
    // Before the events, so that none is skipped by who asks for later ones.
    let newest = all.newest();
    let events = all.since(since).into_iter();
    let events = events.filter(|event| wanted.is_none_or(|kind| event.kind == kind));
    let listing = Listing { newest, events: events.map(EventRecord::from).collect() };
    let mut line = serde_json::to_vec(&listing).expect("a listing is plain JSON");
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use cashew_metrics::{EventLevel, NewEvent};
    use serde_json::Value;

    use super::*;
    use crate::testing::busy_source;

    #[test]
    fn a_query_chooses_events() {
        let source = busy_source();
        let tell = |kind, text| {
            source.events().record(&NewEvent {
                kind,
                level: EventLevel::Info,
                process: "master",
                worker: None,
                pool: "",
                server: "",
                text,
            });
        };
        tell(EventKind::ReloadDone, "first");
        tell(EventKind::UpgradeDone, "second");
        tell(EventKind::ReloadDone, "third");
        let texts = |query: &str| {
            let listing: Value = serde_json::from_slice(&json(&source, query).unwrap()).unwrap();
            assert_eq!(listing["newest"], 3);
            let events = listing["events"].as_array().unwrap().clone();
            events.iter().map(|it| it["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(texts(""), ["first", "second", "third"]);
        assert_eq!(texts("since=1"), ["second", "third"]);
        assert_eq!(texts("kind=reload_done&since=1&x"), ["third"]);
        assert_eq!(texts("since=3"), [] as [&str; 0]);
        assert!(json(&source, "since=x").is_err() && json(&source, "kind=x").is_err());
    }
}
