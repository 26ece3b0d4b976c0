//! The audit log: a line of JSON for each thing that somebody did.

use cashew_metrics::{AuditTrail, Deed};
use cashew_process::log::rfc3339_us;
use serde_json::{Map, Value};

use crate::access_log::text;
use crate::line_log::Tally;

impl Tally for AuditTrail {
    const NAME: &str = "audit log";

    fn written(&self, lines: u64) {
        self.add_lines(lines);
    }

    fn lost(&self, lines: u64) {
        self.add_lost(lines);
    }

    fn failed(&self, why: &str) {
        Self::failed(self, why);
    }
}

/// With its end. What is not known is left out.
pub(crate) fn line(deed: &Deed) -> Vec<u8> {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| {
        object.insert(name.to_owned(), value);
    };
    put("time", rfc3339_us(deed.at_us).into());
    put("event", deed.outcome.event().into());
    put("outcome", deed.outcome.name().into());
    let texts = [
        ("pool", deed.pool.as_bytes()),
        ("client", deed.client.as_bytes()),
        ("client_name", &deed.client_name),
        ("user", &deed.user),
        ("command", deed.command.as_bytes()),
        ("key", &deed.key),
        ("reason", deed.reason.as_bytes()),
    ];
    for (name, bytes) in texts.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
        put(name, text(bytes).into());
    }
    let numbers = [
        ("client_id", Some(deed.client_id).filter(|&id| id > 0)),
        ("keys", Some(u64::from(deed.keys)).filter(|&keys| keys > 0)),
        ("worker", deed.worker.map(u64::from)),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            put(name, number.into());
        }
    }
    let mut line = Value::from(object).to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use cashew_metrics::DeedOutcome;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_an_object_of_what_is_known() {
        let of = |deed: &Deed| -> Value {
            let line = line(deed);
            assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            serde_json::from_slice(&line).unwrap()
        };
        let deed = Deed {
            at_us: 1_700_000_000_123_456,
            outcome: DeedOutcome::Denied,
            pool: "alpha".into(),
            client: "10.0.0.5:9".into(),
            client_id: 7,
            user: b"ann".to_vec(),
            worker: Some(0),
            command: "CONFIG SET".into(),
            key: b"k\n\xff".to_vec(),
            keys: 1,
            reason: "command".into(),
            ..Deed::default()
        };
        let object = of(&deed);
        assert!(object["time"].as_str().unwrap().contains(".123456"));
        assert_eq!(object["key"], "k\\n\\xff");
        for (name, value) in [
            ("event", json!("command")),
            ("outcome", json!("denied")),
            ("user", json!("ann")),
            ("client_id", json!(7)),
            ("worker", json!(0)),
            ("command", json!("CONFIG SET")),
        ] {
            assert_eq!(object[name], value, "{name}");
        }
        let operator =
            Deed { outcome: DeedOutcome::Asked, command: "reload".into(), ..Deed::default() };
        let object = of(&operator);
        assert_eq!(object["event"], "operator");
        assert_eq!(object.as_object().unwrap().len(), 4, "{object}");
    }
}
