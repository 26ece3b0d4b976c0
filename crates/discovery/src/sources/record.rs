//! Servers as operators write them: a line as in `servers`, or an object of JSON.

use cashew_config::snapshot::Server;
use cashew_config::{parse_server, server_at};
use serde::Deserialize;

/// What else is in it is for others.
#[derive(Deserialize)]
struct Record {
    address: String,
    name: Option<String>,
    weight: Option<u64>,
    zone: Option<String>,
}

impl Record {
    fn server(self, name: &str) -> Result<Server, String> {
        let Self { address, name: own, weight, zone } = self;
        let name = own.or_else(|| (!name.is_empty()).then(|| name.to_owned()));
        server_at(&address, name, weight, zone)
    }
}

/// One server. `name` is for one that says none; without any its address is one.
pub(super) fn one(text: &str, name: &str) -> Result<Server, String> {
    match text.trim_start().starts_with('{') {
        true => serde_json::from_str::<Record>(text).map_err(|it| it.to_string())?.server(name),
        false => parse_server(text, name),
    }
}

/// A list of them: of JSON, or a line for each.
pub(super) fn list(text: &str) -> Result<Vec<Server>, String> {
    if text.trim_start().starts_with('[') {
        let records: Vec<Record> = serde_json::from_str(text).map_err(|it| it.to_string())?;
        return records.into_iter().map(|record| record.server("")).collect();
    }
    let lines = text.lines().zip(1..).filter_map(|(line, number)| {
        let line = line.trim();
        let line = line.strip_prefix("- ").unwrap_or(line).trim();
        (!line.is_empty() && !line.starts_with('#')).then_some((line, number))
    });
    let server = |(line, number): (&str, usize)| {
        one(line, "").map_err(|why| format!("line {number}: {why}"))
    };
    lines.map(server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(servers: &[Server]) -> Vec<String> {
        let shown = |it: &Server| format!("{} {} {}", it.name, it.endpoint, it.weight);
        servers.iter().map(shown).collect()
    }

    #[test]
    fn a_server_is_a_line_or_an_object() {
        let server = one("10.0.0.1:6379:2", "key").unwrap();
        assert_eq!(shown(&[server]), ["key 10.0.0.1:6379 2"]);
        let server = one(r#" {"address": "10.0.0.1:6379", "colour": "green"}"#, "key").unwrap();
        assert_eq!(shown(&[server]), ["key 10.0.0.1:6379 1"]);
        let text = r#"{"address": "h:1", "name": "s", "weight": 3, "zone": "z"}"#;
        let server = one(text, "key").unwrap();
        assert_eq!(
            (shown(std::slice::from_ref(&server)), server.zone.as_deref()),
            (vec!["s h:1 3".into()], Some("z"))
        );
        for bad in
            ["", "h", "h:1", "{", "{}", r#"{"address": "h"}"#, r#"{"address":"h:1","weight":0}"#]
        {
            one(bad, "key").unwrap_err();
        }
    }

    #[test]
    fn a_list_is_lines_or_json() {
        let lines = "# ours\n- 10.0.0.1:1:1 s1\n\n  10.0.0.2:2:2\n{\"address\": \"h:3\"}\n";
        let expected = ["s1 10.0.0.1:1 1", "10.0.0.2:2 10.0.0.2:2 2", "h:3 h:3 1"];
        assert_eq!(shown(&list(lines).unwrap()), expected);
        let json = r#"[{"address": "h:1", "name": "s1"}, {"address": "/s", "weight": 2}]"#;
        assert_eq!(shown(&list(json).unwrap()), ["s1 h:1 1", "/s: /s 2"]);
        assert_eq!(shown(&list("").unwrap()), Vec::<String>::new());
        assert_eq!(shown(&list("[]").unwrap()), Vec::<String>::new());
        let why = list("h:1:1\n\nh:2\n").unwrap_err();
        assert!(why.starts_with("line 3: \"h:2\" lacks"), "{why}");
        list("[{\"address\": \"h:1\"}").unwrap_err();
    }
}
