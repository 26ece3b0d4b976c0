//! The access log: a line for each request that was looked at and chosen. A thread writes it, so the statistics
//! never wait for a disk.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use cashew_config::snapshot::{AccessLog, LogFormat};
use cashew_metrics::{ExportCounter, ExportKind, Exports, SeenRequest, Times};
use cashew_process::log::{self, LineWriter, rfc3339_us};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tracing::{error, info};

use crate::request_tap::TraceId;

/// Lines that may wait to be written.
const WAITING_MAX: usize = 4096;
/// How long no line may be lost before the log says that it is well again.
const WELL_AFTER: Duration = Duration::from_secs(5);
/// How long it is before a file that cannot be opened is tried again.
const OPEN_PAUSE: Duration = Duration::from_secs(2);

pub(crate) struct AccessLogWriter {
    exports: Exports,
    open: Option<(PathBuf, LineWriter)>,
    /// Not before then.
    next_try: Option<Instant>,
    /// When lines were lost last, until the log says that they are no more.
    last_loss: Option<Instant>,
    /// Lines since it was looked whether all of them were written.
    unsettled: u64,
    /// Lines that were counted as written and are lost.
    owed: u64,
}

impl AccessLogWriter {
    pub(crate) fn new(exports: Exports) -> Self {
        Self { exports, open: None, next_try: None, last_loss: None, unsettled: 0, owed: 0 }
    }

    /// Opens the file of the configuration, and leaves another one.
    pub(crate) fn follow(&mut self, config: Option<&AccessLog>) {
        let Some(config) = config else { return self.close() };
        if self.open.as_ref().is_some_and(|(path, _)| *path == config.file) {
            return;
        }
        if self.open.is_some() {
            self.close();
        }
        if self.next_try.is_some_and(|at| Instant::now() < at) {
            return;
        }
        match LineWriter::open(&config.file, WAITING_MAX) {
            Ok(writer) => {
                self.next_try = None;
                self.open = Some((config.file.clone(), writer));
            }
            Err(error) => {
                let why = format!("cannot open {}: {error}", config.file.display());
                self.exports.failed(ExportKind::AccessLog, &why);
                // Once, not at each try.
                if self.next_try.is_none() {
                    error!("the access log: {why}");
                }
                self.next_try = Some(Instant::now() + OPEN_PAUSE);
            }
        }
    }

    /// Opens the file anew, as after it was moved away. The old one is kept if that fails.
    pub(crate) fn reopen(&mut self) {
        self.next_try = None;
        let Some((path, writer)) = &self.open else { return };
        let reopened = log::open(path).map(|file| writer.reopen(file));
        let why = match reopened {
            Ok(true) => return,
            Ok(false) => "it takes nothing".to_owned(),
            Err(error) => error.to_string(),
        };
        let why = format!("cannot reopen {}: {why}", path.display());
        self.exports.failed(ExportKind::AccessLog, &why);
        error!("the access log: {why}");
    }

    pub(crate) fn write(
        &mut self,
        request: &SeenRequest,
        trace_id: Option<TraceId>,
        config: &AccessLog,
    ) {
        match &self.open {
            Some((_, writer)) => {
                writer.write(line(request, trace_id, config));
                self.unsettled += 1;
            }
            None => self.exports.add(ExportCounter::AccessLinesLost, 1),
        }
    }

    /// Counts the lines since the last time, and says when some begin to be lost.
    pub(crate) fn settle(&mut self) {
        let Some((path, writer)) = &self.open else { return };
        // Those that wait count as written until they are known to be lost. Then later ones make up for them.
        let lost = writer.take_lost();
        let written = std::mem::take(&mut self.unsettled);
        self.owed += lost;
        let paid = self.owed.min(written);
        self.owed -= paid;
        self.exports.add(ExportCounter::AccessLines, written - paid);
        self.exports.add(ExportCounter::AccessLinesLost, lost);
        if lost > 0 {
            let why = format!("lines cannot be written to {}", path.display());
            self.exports.failed(ExportKind::AccessLog, &why);
            if self.last_loss.replace(Instant::now()).is_none() {
                error!("the access log: {why}: is the disk full?");
            }
        } else if written > 0 && self.last_loss.is_some_and(|at| at.elapsed() >= WELL_AFTER) {
            self.last_loss = None;
            info!("the access log is written again");
        }
    }

    /// Lines that wait are written first, by the thread that has them.
    fn close(&mut self) {
        self.settle();
        self.open = None;
        self.next_try = None;
    }

    /// As [`close`](Self::close), and waits for it.
    pub(crate) fn part(mut self) {
        self.settle();
        if let Some((_, writer)) = self.open.take() {
            writer.close();
        }
    }
}

/// With its end.
fn line(request: &SeenRequest, trace_id: Option<TraceId>, config: &AccessLog) -> Vec<u8> {
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
fn text(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => log::in_one_line(text),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use cashew_metrics::Shared;

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

    #[test]
    fn what_cannot_be_written_is_counted_and_told() {
        let exports = Shared::in_memory().exports();
        let mut writer = AccessLogWriter::new(exports.clone());
        let missing = AccessLog { file: "/nowhere/access".into(), ..config(LogFormat::Json, true) };
        writer.follow(Some(&missing));
        writer.write(&request(), None, &missing);
        assert_eq!(exports.count(ExportCounter::AccessLinesLost), 1);
        let (why, _) = exports.last_failure(ExportKind::AccessLog).unwrap();
        assert!(why.starts_with("cannot open /nowhere/access: "), "{why}");

        let path = std::env::temp_dir().join(format!("cashew-access-{}", std::process::id()));
        let there = AccessLog { file: path.clone(), ..missing };
        writer.next_try = None;
        writer.follow(Some(&there));
        writer.write(&request(), None, &there);
        writer.part();
        assert_eq!(exports.count(ExportCounter::AccessLines), 1);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(text.ends_with("}\n") && text.lines().count() == 1, "{text}");
    }
}
