//! A service of Consul, by blocking queries.

use std::time::{Duration, Instant};

use cashew_config::server_at;
use cashew_config::snapshot::{ConsulSource, Server};
use serde::Deserialize;

use super::Source;
use super::http::{Http, encoded};

const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a query may wait for a change. The agent adds up to a sixteenth.
const WAIT: Duration = Duration::from_secs(60);
/// Queries that may follow each other at once, and the time from one to the next: of a service that changes all the time.
const BURST: u32 = 2;
const INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct Consul {
    config: ConsulSource,
    http: Http,
    /// What the last answer was of; 0 is unknown.
    index: u64,
    left: u32,
    asked_at: Option<Instant>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    node: Node,
    service: Service,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(rename = "ID")]
    id: String,
    #[serde(default)]
    address: String,
    port: u16,
    weights: Option<Weights>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Weights {
    passing: u64,
}

impl Consul {
    pub(super) fn new(config: ConsulSource) -> Self {
        let http = Http::new(config.tls.clone());
        Self { config, http, index: 0, left: BURST, asked_at: None }
    }

    fn url(&self, index: u64) -> String {
        let ConsulSource { address, service, tag, datacenter, .. } = &self.config;
        let mut url = format!("{address}/v1/health/service/{}?passing=1", encoded(service));
        for (name, value) in [("tag", tag), ("dc", datacenter)] {
            if let Some(value) = value {
                url += &format!("&{name}={}", encoded(value));
            }
        }
        if index > 0 {
            url += &format!("&index={index}&wait={}s", WAIT.as_secs());
        }
        url
    }

    /// Not more often than may be.
    fn pace(&mut self) {
        if let Some(at) = self.asked_at {
            let passed = (at.elapsed().as_millis() / INTERVAL.as_millis()).min(BURST.into());
            self.left = (self.left + passed as u32).min(BURST);
            if self.left == 0 {
                std::thread::sleep(INTERVAL.saturating_sub(at.elapsed()));
                self.left = 1;
            }
        }
        self.left -= 1;
        self.asked_at = Some(Instant::now());
    }

    fn ask(&mut self, index: u64, limit: Duration) -> Result<Vec<Server>, String> {
        self.pace();
        let token = self.config.token.clone();
        let headers: Vec<(&str, &str)> =
            token.iter().map(|token| ("x-consul-token", &**token)).collect();
        let url = self.url(index);
        let answer = self.http.get(&url, &headers, limit)?.ok()?;
        let told = answer.header("x-consul-index").and_then(|text| text.parse().ok());
        self.index = next_index(index, told);
        servers(&answer.body)
    }
}

impl Source for Consul {
    fn list(&mut self) -> Result<Vec<Server>, String> {
        self.ask(0, LIST_TIMEOUT)
    }

    fn wait(&mut self) -> Result<Option<Vec<Server>>, String> {
        if self.index == 0 {
            return Ok(None);
        }
        self.ask(self.index, WAIT + WAIT / 16 + LIST_TIMEOUT).map(Some)
    }
}

/// One that goes back means that all begins anew, and 0 that nothing is waited for.
fn next_index(before: u64, told: Option<u64>) -> u64 {
    match told.unwrap_or(0).max(1) {
        index if index < before => 0,
        index => index,
    }
}

pub(crate) fn servers(body: &[u8]) -> Result<Vec<Server>, String> {
    let entries: Vec<Entry> = serde_json::from_slice(body)
        .map_err(|error| format!("its answer is not understood: {error}"))?;
    let server = |Entry { node, service }: Entry| {
        let host = match service.address.is_empty() {
            true => &node.address,
            false => &service.address,
        };
        let weight = service.weights.map_or(1, |weights| weights.passing.max(1));
        let address = format!("{host}:{}", service.port);
        server_at(&address, Some(service.id.clone()), Some(weight), None)
            .map_err(|why| format!("{}: {why}", service.id))
    };
    let mut servers: Vec<Server> = entries.into_iter().map(server).collect::<Result<_, _>>()?;
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    // Two agents may have instances of one id.
    match servers.windows(2).find(|two| two[0].name == two[1].name) {
        Some(two) => Err(format!("two instances have the id {}", two[0].name)),
        None => Ok(servers),
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::SourceTls;

    use super::*;

    #[test]
    fn an_index_that_goes_back_begins_anew() {
        assert_eq!(next_index(0, Some(17)), 17);
        assert_eq!(next_index(17, Some(17)), 17);
        assert_eq!(next_index(17, Some(16)), 0);
        assert_eq!((next_index(0, Some(0)), next_index(0, None)), (1, 1));
        assert_eq!(next_index(17, None), 0);
    }

    #[test]
    fn what_is_asked_for_is_in_the_url() {
        let mut consul = Consul::new(ConsulSource {
            address: "http://c:8500".to_owned(),
            service: "a b".to_owned(),
            tag: Some("x&y".to_owned()),
            datacenter: Some("dc1".to_owned()),
            token: None,
            tls: SourceTls::default(),
        });
        let base = "http://c:8500/v1/health/service/a%20b?passing=1&tag=x%26y&dc=dc1";
        assert_eq!(consul.url(0), base);
        assert_eq!(consul.url(7), format!("{base}&index=7&wait=60s"));
        assert_eq!(consul.wait(), Ok(None));
    }

    #[test]
    fn instances_are_servers_by_their_ids() {
        let body = br#"[
            {"Node": {"Node": "n1", "Address": "10.0.0.1"}, "Service": {"ID": "cache-2", "Service": "cache",
             "Address": "", "Port": 6379, "Weights": {"Passing": 3, "Warning": 1}}, "Checks": []},
            {"Node": {"Address": "10.0.0.1"}, "Service": {"ID": "cache-1", "Address": "10.0.0.7", "Port": 6380,
             "Weights": {"Passing": 0, "Warning": 0}}}]"#;
        let shown = |it: &Server| format!("{} {} {}", it.name, it.endpoint, it.weight);
        let shown: Vec<String> = servers(body).unwrap().iter().map(shown).collect();
        assert_eq!(shown, ["cache-1 10.0.0.7:6380 1", "cache-2 10.0.0.1:6379 3"]);
        assert_eq!(servers(b"[]"), Ok(Vec::new()));
        let twice = br#"[{"Node": {"Address": "a"}, "Service": {"ID": "s", "Port": 1}},
                         {"Node": {"Address": "b"}, "Service": {"ID": "s", "Port": 1}}]"#;
        assert_eq!(servers(twice).unwrap_err(), "two instances have the id s");
        let zero = br#"[{"Node": {"Address": "a"}, "Service": {"ID": "s", "Port": 0}}]"#;
        for bad in [&b"{}"[..], b"", b"[{}]", zero] {
            servers(bad).unwrap_err();
        }
    }
}
