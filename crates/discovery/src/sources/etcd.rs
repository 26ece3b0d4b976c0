//! Keys of etcd: listed, then watched, by the gateway for JSON that its members have at the port of clients.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cashew_config::snapshot::{EtcdSource, Server, SourceTls};
use serde::{Deserialize, Serialize};

use super::http::{End, Http, Lines};
use super::{Source, record};

const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a watch goes on before the keys are listed again: a member that is cut off from the others, or hangs, says
/// nothing for ever.
const WATCH_MAX: Duration = Duration::from_secs(10);

pub(super) struct Etcd {
    config: EtcdSource,
    http: Http,
    /// Which endpoint is asked.
    at: usize,
    token: Option<String>,
    /// What keys that begin with the prefix have.
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first that is not known.
    revision: i64,
    watch: Option<(Lines, Instant)>,
}

#[derive(Serialize)]
struct Range {
    key: String,
    range_end: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_revision: Option<String>,
}

#[derive(Serialize)]
struct Create {
    create_request: Range,
}

#[derive(Serialize)]
struct LogIn<'a> {
    name: &'a str,
    password: &'a str,
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Header {
    revision: String,
}

#[derive(Deserialize)]
struct Listed {
    header: Header,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    /// Empty values are left out.
    #[serde(default)]
    value: String,
}

/// A line of a watch.
#[derive(Deserialize)]
struct Line {
    result: Option<Watched>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Watched {
    header: Header,
    canceled: bool,
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    /// Left out of what is put.
    #[serde(default)]
    r#type: String,
    kv: KeyValue,
}

impl Etcd {
    pub(super) fn new(config: EtcdSource) -> Self {
        Self {
            http: Http::new(config.tls.clone()),
            config,
            at: 0,
            token: None,
            keys: BTreeMap::new(),
            revision: 0,
            watch: None,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.config.endpoints[self.at % self.config.endpoints.len()])
    }

    fn range(&self, start_revision: Option<i64>) -> Range {
        let prefix = self.config.prefix.as_bytes();
        Range {
            key: BASE64_STANDARD.encode(prefix),
            range_end: BASE64_STANDARD.encode(after(prefix)),
            start_revision: start_revision.map(|it| it.to_string()),
        }
    }

    fn log_in(&mut self) -> Result<(), String> {
        let Some((name, password)) = &self.config.user else { return Ok(()) };
        if self.token.is_none() {
            let body = json(&LogIn { name, password })?;
            let url = self.url("/v3/auth/authenticate");
            let answer = self.http.post(&url, &[], &body, LIST_TIMEOUT)?.ok()?;
            self.token = Some(from_json::<Token>(&answer.body)?.token);
        }
        Ok(())
    }

    fn list_here(&mut self) -> Result<Vec<Server>, String> {
        self.log_in()?;
        let (url, body) = (self.url("/v3/kv/range"), json(&self.range(None))?);
        let token = self.token.clone();
        let headers: Vec<(&str, &str)> =
            token.iter().map(|token| ("authorization", &**token)).collect();
        let answer = self.http.post(&url, &headers, &body, LIST_TIMEOUT)?.ok()?;
        self.take(&answer.body)
    }

    /// What is listed.
    fn take(&mut self, body: &[u8]) -> Result<Vec<Server>, String> {
        let Listed { header, kvs } = from_json(body)?;
        let keys = kvs.into_iter().map(KeyValue::decode).collect::<Result<_, _>>()?;
        (self.keys, self.revision) = (keys, header.next_revision()?);
        self.servers()
    }

    fn watch(&mut self) -> Result<(Lines, Instant), String> {
        let create = Create { create_request: self.range(Some(self.revision)) };
        let (url, body) = (self.url("/v3/watch"), json(&create)?);
        let token = self.token.clone();
        let headers: Vec<(&str, &str)> =
            token.iter().map(|token| ("authorization", &**token)).collect();
        match self.http.post_lines(&url, &headers, &body, WATCH_MAX)? {
            Ok(lines) => Ok((lines, Instant::now() + WATCH_MAX)),
            Err(answer) => Err(answer.ok().err().unwrap_or_default()),
        }
    }

    /// False if all has to be listed again.
    fn apply(&mut self, line: &[u8]) -> Result<bool, String> {
        let Line { result, error } = from_json(line)?;
        if let Some(error) = error {
            return Err(format!("it ends the watch: {error}"));
        }
        let watched = result.unwrap_or_default();
        if watched.canceled {
            // As what was to come is compacted away.
            return Ok(false);
        }
        if watched.events.is_empty() {
            return Ok(true);
        }
        self.revision = watched.header.next_revision()?;
        for Event { r#type, kv } in watched.events {
            let is_gone = r#type == "DELETE";
            let (key, value) = kv.decode()?;
            match is_gone {
                true => _ = self.keys.remove(&key),
                false => _ = self.keys.insert(key, value),
            }
        }
        Ok(true)
    }

    fn servers(&self) -> Result<Vec<Server>, String> {
        let server = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            let key = String::from_utf8_lossy(key);
            let name = key.strip_prefix(&self.config.prefix).unwrap_or(&key);
            let value = str::from_utf8(value).map_err(|_| format!("{key} is not UTF-8 text"))?;
            record::one(value, name).map_err(|why| format!("{key}: {why}"))
        };
        self.keys.iter().map(server).collect()
    }

    /// Asks another one, and logs in there.
    fn give_up(&mut self) {
        (self.watch, self.token) = (None, None);
        self.at = (self.at + 1) % self.config.endpoints.len();
    }
}

impl Source for Etcd {
    fn list(&mut self) -> Result<Vec<Server>, String> {
        self.watch = None;
        let mut failures = Vec::new();
        for _ in 0..self.config.endpoints.len() {
            match self.list_here() {
                Ok(servers) => return Ok(servers),
                Err(why) => failures.push(format!("{}: {why}", self.url(""))),
            }
            self.give_up();
        }
        Err(failures.join("; "))
    }

    fn wait(&mut self) -> Result<Option<Vec<Server>>, String> {
        let (mut lines, until) = match self.watch.take() {
            Some(watch) => watch,
            None => self.watch().inspect_err(|_| self.give_up())?,
        };
        let revision = self.revision;
        while Instant::now() < until {
            match lines.next() {
                Ok(line) => {
                    if !self.apply(&line).inspect_err(|_| self.give_up())? {
                        return Ok(None);
                    }
                }
                Err(End::Silent | End::Over) => return Ok(None),
                Err(End::Lost(why)) => {
                    self.give_up();
                    return Err(why);
                }
            }
            if self.revision != revision {
                self.watch = Some((lines, until));
                return self.servers().map(Some);
            }
        }
        Ok(None)
    }
}

impl Header {
    /// The first that is not in it.
    fn next_revision(&self) -> Result<i64, String> {
        let revision = self.revision.parse().ok().and_then(|it: i64| it.checked_add(1));
        revision.ok_or_else(|| format!("\"{}\" is no revision", self.revision))
    }
}

impl KeyValue {
    fn decode(self) -> Result<(Vec<u8>, Vec<u8>), String> {
        let decode = |text: &str| BASE64_STANDARD.decode(text).map_err(|it| it.to_string());
        Ok((decode(&self.key)?, decode(&self.value)?))
    }
}

/// A listing, and a line for each event.
pub(crate) fn read_foreign(bytes: &[u8]) -> Result<Vec<Server>, String> {
    let mut etcd = Etcd::new(EtcdSource {
        endpoints: vec!["http://127.0.0.1:1".to_owned()],
        prefix: "/a/".to_owned(),
        user: None,
        tls: SourceTls::default(),
    });
    let mut lines = bytes.split(|&byte| byte == b'\n');
    etcd.take(lines.next().unwrap_or_default())?;
    for line in lines {
        if !etcd.apply(line)? {
            break;
        }
    }
    etcd.servers()
}

/// The first key behind all that begin with the prefix.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    // All keys from the first on.
    vec![0]
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    serde_json::to_vec(value).map_err(|error| error.to_string())
}

fn from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("its answer is not understood: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd() -> Etcd {
        Etcd::new(EtcdSource {
            endpoints: vec!["http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2".to_owned()],
            prefix: "/a/".to_owned(),
            user: None,
            tls: SourceTls::default(),
        })
    }

    #[test]
    fn a_prefix_has_an_end() {
        assert_eq!(after(b"/a/"), b"/a0");
        assert_eq!(after(b"a\xff\xff"), b"b");
        assert_eq!(after(b"\xff"), b"\0");
    }

    /// As etcd 3.4.23 has said it, with shorter headers.
    #[test]
    fn events_change_what_was_listed() {
        let mut etcd = etcd();
        let created = br#"{"result":{"header":{"cluster_id":"12101053776118486841","member_id":"15985099378392235387","revision":"2","raft_term":"2"},"created":true}}"#;
        assert_eq!(etcd.apply(created), Ok(true));
        assert_eq!(etcd.revision, 0);
        let put = br#"{"result":{"header":{"revision":"3","raft_term":"2"},"events":[{"kv":{"key":"L2EvczI=","create_revision":"3","mod_revision":"3","version":"1","value":"MTAuMC4wLjE6MTox"}}]}}"#;
        assert_eq!(etcd.apply(put), Ok(true));
        assert_eq!(etcd.revision, 4);
        let servers = etcd.servers().unwrap();
        assert_eq!((servers.len(), &*servers[0].name), (1, "s2"));
        let delete = br#"{"result":{"header":{"revision":"4","raft_term":"2"},"events":[{"type":"DELETE","kv":{"key":"L2EvczI=","mod_revision":"4"}}]}}"#;
        assert_eq!(etcd.apply(delete), Ok(true));
        assert_eq!(etcd.servers(), Ok(Vec::new()));
        let compacted = br#"{"result":{"header":{"cluster_id":"12101053776118486841","member_id":"15985099378392235387","raft_term":"2"},"canceled":true,"compact_revision":"4"}}"#;
        assert_eq!(etcd.apply(compacted), Ok(false));
        for bad in [
            "",
            "{",
            "[]",
            r#"{"error":{"code":16}}"#,
            r#"{"result":{"events":[{"kv":{"key":"?"}}]}}"#,
        ] {
            etcd.apply(bad.as_bytes()).unwrap_err();
        }
    }

    #[test]
    fn all_endpoints_are_asked() {
        let why = etcd().list().unwrap_err();
        assert!(
            why.contains("http://127.0.0.1:1: ") && why.contains("http://127.0.0.1:2: "),
            "{why}"
        );
    }
}
