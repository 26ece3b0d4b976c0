//! The access log: a line for each request that was looked at and chosen.

use std::fmt::Write;

use cashew_config::snapshot::{AccessLog, LogFormat};
use cashew_metrics::{ExportCounter, ExportKind, Exports, SeenRequest, Times};
use cashew_process::log::{self, rfc3339_us};
use serde_json::{Map, Value, json};

use crate::line_log::Tally;
use crate::request_tap::TraceId;

impl Tally for Exports {
    const NAME: &str = "access log";

    fn written(&self, lines: u64) {
        self.add(ExportCounter::AccessLines, lines);
    }

    fn lost(&self, lines: u64) {
        self.add(ExportCounter::AccessLinesLost, lines);
    }

    fn failed(&self, why: &str) {
        Self::failed(self, ExportKind::AccessLog, why);
    }
}

/// With its end.
pub(crate) fn line(
    request: &SeenRequest,
    trace_id: Option<TraceId>,
    config: &AccessLog,
) -> Vec<u8> {
    let arguments = match config.arguments {
        true => &request.arguments[..],
        false => &request.arguments[..request.arguments.len().min(1)],
    };
    let mut line = match config.format {
        LogFormat::Plain => plain(request, trace_id, arguments),
        LogFormat::Json => json(request, trace_id, arguments).to_string(),
    };
    line.push('\n');
    line.into_bytes()
}

/// `time name=value … command=["GET" "key"]`, with what anybody may choose in quotes.
fn plain(request: &SeenRequest, trace_id: Option<TraceId>, arguments: &[Vec<u8>]) -> String {
    let mut line = rfc3339_us(request.at_us);
    let mut put = |name: &str, value: &str| {
        write!(line, " {name}={value}").expect("a string takes everything");
    };
    let quoted = |bytes: &[u8]| format!("\"{}\"", bytes.escape_ascii());
    put("pool", &request.pool);
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    put("server", &or_dash(&request.server));
    put("client", &or_dash(&request.client));
    put("client_id", &request.client_id.to_string());
    if !request.client_name.is_empty() {
        put("client_name", &quoted(&request.client_name));
    }
    if !request.user.is_empty() {
        put("user", &quoted(request.user.as_bytes()));
    }
    put("worker", &request.worker.to_string());
    put("slow", if request.is_slow { "yes" } else { "no" });
    put("total_us", &request.times.total_us().to_string());
    for (name, us) in times(request.times) {
        put(name, &us.to_string());
    }
    put("request_bytes", &request.request_bytes.to_string());
    put("reply_bytes", &request.reply_bytes.to_string());
    if !request.failure.is_empty() {
        put("failure", &quoted(request.failure.as_bytes()));
    }
    if let Some(TraceId(id)) = trace_id {
        put("trace_id", &format!("{id:032x}"));
    }
    let words: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
    put("command", &format!("[{}]", words.join(" ")));
    line
}

/// Bytes that are no text are written as in the plain form.
fn json(request: &SeenRequest, trace_id: Option<TraceId>, arguments: &[Vec<u8>]) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| {
        object.insert(name.to_owned(), value);
    };
    put("time", rfc3339_us(request.at_us).into());
    put("pool", request.pool.as_str().into());
    let texts = [("server", &request.server), ("client", &request.client)];
    for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        put(name, text.as_str().into());
    }
    put("client_id", request.client_id.into());
    if !request.client_name.is_empty() {
        put("client_name", text(&request.client_name).into());
    }
    if !request.user.is_empty() {
        put("user", request.user.as_str().into());
    }
    put("worker", request.worker.into());
    put("slow", request.is_slow.into());
    put("total_us", request.times.total_us().into());
    for (name, us) in times(request.times) {
        put(name, us.into());
    }
    put("request_bytes", request.request_bytes.into());
    put("reply_bytes", request.reply_bytes.into());
    if !request.failure.is_empty() {
        put("failure", request.failure.as_str().into());
    }
    if let Some(TraceId(id)) = trace_id {
        put("trace_id", format!("{id:032x}").into());
    }
    put("command", json!(arguments.iter().map(|it| text(it)).collect::<Vec<_>>()));
    object.into()
}

fn times(times: Times) -> [(&'static str, u64); 5] {
    let Times { gateway_us, queue_us, server_us, order_us, client_us } = times;
    [
        ("gateway_us", gateway_us),
        ("queue_us", queue_us),
        ("server_us", server_us),
        ("order_us", order_us),
        ("client_us", client_us),
    ]
}

/// JSON escapes control characters of ASCII alone.
pub(crate) fn text(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => log::in_one_line(text),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(format: LogFormat, arguments: bool) -> AccessLog {
        AccessLog { file: "/access".into(), format, share_percent: 1, slow: true, arguments }
    }

    fn request() -> SeenRequest {
        SeenRequest {
            at_us: 1_700_000_000_123_456,
            pool: "alpha".into(),
            server: "one".into(),
            client: "127.0.0.1:5".into(),
            client_id: 7,
            client_name: b"a p\"".to_vec(),
            worker: 1,
            arguments: vec![b"set".to_vec(), b"k\n\x1b[2J \xff".to_vec(), "ü\u{202e}".into()],
            request_bytes: 30,
            reply_bytes: 5,
            times: Times { queue_us: 3, server_us: 20_000, ..Times::default() },
            is_slow: true,
            ..SeenRequest::default()
        }
    }

    fn of(request: &SeenRequest, format: LogFormat, arguments: bool) -> String {
        let line = line(request, Some(TraceId(0xab)), &config(format, arguments));
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_plain_line_has_names_and_values_and_nothing_that_is_hostile() {
        let line = of(&request(), LogFormat::Plain, true);
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.contains(".123456") && time.len() > 26, "{time}");
        let expected = "pool=alpha server=one client=127.0.0.1:5 client_id=7 client_name=\"a p\\\"\" worker=1 \
             slow=yes total_us=20003 gateway_us=0 queue_us=3 server_us=20000 order_us=0 client_us=0 \
             request_bytes=30 reply_bytes=5 trace_id=000000000000000000000000000000ab \
             command=[\"set\" \"k\\n\\x1b[2J \\xff\" \"\\xc3\\xbc\\xe2\\x80\\xae\"]\n";
        assert_eq!(rest, expected);
        let line = of(&request(), LogFormat::Plain, false);
        assert!(line.ends_with(" command=[\"set\"]\n"), "{line}");
        let failed = SeenRequest { failure: "timeout".into(), server: String::new(), ..request() };
        let line = of(&failed, LogFormat::Plain, true);
        assert!(line.contains(" server=- ") && line.contains(" failure=\"timeout\" "), "{line}");
    }

    #[test]
    fn a_line_of_json_is_an_object() {
        let line = of(&request(), LogFormat::Json, true);
        assert!(
            line.bytes().filter(|&byte| byte == b'\n').count() == 1 && !line.contains('\u{202e}')
        );
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["command"], json!(["set", "k\\n\\x1b[2J \\xff", "ü\\u202e"]));
        assert_eq!((&object["slow"], &object["server_us"]), (&json!(true), &json!(20_000)));
        assert_eq!(object["client_name"], "a p\"");
        assert_eq!(object.get("failure"), None);
    }
}
