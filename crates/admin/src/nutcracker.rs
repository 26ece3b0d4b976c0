//! The statistics exactly as nutcracker writes them, for programs that read nutcracker's.
//!
//! Names, order, types and even the spaces are nutcracker's: some take every object in a pool for a
//! server, some fail on a list, and some are but a regular expression.

use std::time::SystemTime;

use crate::source::{Numbers, Source, unix_seconds};
use crate::stats::{
    POOL_STATS, POOL_STATS_OF_TWEMPROXY, SERVER_STATS, SERVER_STATS_OF_TWEMPROXY, SERVICE,
    count_connections,
};

/// All workers together, as one line.
pub(crate) fn line(source: &Source) -> Vec<u8> {
    let numbers = source.total();
    let now = unix_seconds(SystemTime::now());
    let (total, current) = count_connections(source, numbers);
    let mut line = Line(String::from("{"));
    line.text("service", SERVICE);
    line.text("source", source.host());
    line.text("version", source.version());
    line.number("uptime", now.saturating_sub(source.started_at()));
    line.number("timestamp", now);
    line.number("total_connections", total);
    line.number("curr_connections", current);
    for (index, pool) in source.snapshot().pools.iter().enumerate() {
        source.beat();
        line.begin(&pool.name);
        add_pool(&mut line, source, numbers, index);
        line.end();
    }
    line.close();
    line.0.push('\n');
    line.0.into_bytes()
}

fn add_pool(line: &mut Line, source: &Source, numbers: Numbers<'_>, pool: usize) {
    let id = source.layout().pool(pool);
    for stat in &POOL_STATS[..POOL_STATS_OF_TWEMPROXY] {
        line.number(stat.stat().name, stat.value(numbers, id));
    }
    for (index, server) in source.snapshot().pools[pool].servers.iter().enumerate() {
        let id = source.layout().server(pool, index);
        line.begin(&server.name);
        for stat in &SERVER_STATS[..SERVER_STATS_OF_TWEMPROXY] {
            line.number(stat.stat().name, stat.value(numbers, id));
        }
        line.end();
    }
}

/// Every value ends in a separator, which the end of its object takes away again.
struct Line(String);

impl Line {
    fn text(&mut self, name: &str, value: &str) {
        let (name, value) = (quoted(name), quoted(value));
        self.0 += &format!("{name}:{value}, ");
    }

    fn number(&mut self, name: &str, value: u64) {
        self.0 += &format!("\"{name}\":{value}, ");
    }

    fn begin(&mut self, name: &str) {
        self.0 += &format!("{}: {{", quoted(name));
    }

    fn end(&mut self) {
        self.close();
        self.0.push(',');
    }

    fn close(&mut self) {
        self.0.truncate(self.0.trim_end_matches([',', ' ']).len());
        self.0.push('}');
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{busy_source, snapshot, source_of};

    /// What nutcracker 0.5.0 of Debian shows for the same two pools.
    const NUTCRACKER: &str = include_str!("../tests/nutcracker.json");

    fn text_of(source: &Source) -> String {
        String::from_utf8(line(source)).unwrap()
    }

    /// With every value left out but not its type.
    fn blank(text: &str) -> String {
        let mut blank = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("\":") {
            blank += before;
            blank += "\":";
            let size = match after.as_bytes()[0] {
                b'"' => after[1..].find('"').unwrap() + 2,
                b' ' => 0,
                _ => after.find(|c: char| !c.is_ascii_digit()).unwrap(),
            };
            blank += if after.starts_with('"') { "TEXT" } else { "" };
            blank += if after.starts_with(|c: char| c.is_ascii_digit()) { "NUMBER" } else { "" };
            rest = &after[size..];
        }
        blank + rest
    }

    #[test]
    fn is_nutcrackers_to_the_letter_but_for_the_values() {
        let (ours, theirs) = (text_of(&busy_source()), NUTCRACKER);
        assert_eq!(blank(&ours).trim_end(), blank(theirs).trim_end());
        assert!(blank(theirs).contains("\"version\":TEXT, \"uptime\":NUMBER, "));
        assert!(ours.ends_with("}}}\n"));
    }

    #[test]
    fn workers_are_summed() {
        let ours: Value = serde_json::from_str(&text_of(&busy_source())).unwrap();
        let (pool, server) = (&ours["alpha"], &ours["alpha"]["one"]);
        assert_eq!((&pool["fragments"], &pool["client_connections"]), (&3.into(), &12.into()));
        assert_eq!((&server["requests"], &server["out_queue"]), (&30.into(), &7.into()));
        assert_eq!(server["server_ejected_at"], 1_700_000_000_500_000u64);
        assert_eq!(
            (&ours["curr_connections"], &ours["total_connections"]),
            (&17.into(), &31.into())
        );
    }

    #[test]
    fn is_json_whatever_the_names_and_without_pools_and_servers() {
        let (source, _) = source_of(snapshot(&[("a\"b\\", &["c, }"]), ("e", &[])]), 1);
        let ours: Value = serde_json::from_str(&text_of(&source)).unwrap();
        assert_eq!(ours["a\"b\\"]["c, }"]["requests"], 0);
        assert_eq!(ours["e"].as_object().unwrap().len(), POOL_STATS_OF_TWEMPROXY);
        let (source, _) = source_of(snapshot(&[]), 1);
        let ours: Value = serde_json::from_str(&text_of(&source)).unwrap();
        assert_eq!(ours.as_object().unwrap().len(), 7);
    }
}
