//! The endpoints of a Service of Kubernetes: its EndpointSlices, listed and then watched.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use cashew_config::server_at;
use cashew_config::snapshot::{KubernetesSource, Server, SourceTls};
use serde::Deserialize;

use super::Source;
use super::http::{Answer, End, Http, Lines, encoded, read_text};

const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the API server keeps a watch, and how much later nothing more is waited for.
const WATCH_SECONDS: u64 = 60;
const WATCH_GRACE: Duration = Duration::from_secs(10);
/// Watches after which all is listed again.
const WATCHES_MAX: u32 = 10;

const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

pub(super) struct Kubernetes {
    config: KubernetesSource,
    http: Http,
    /// By their names.
    slices: BTreeMap<String, Slice>,
    /// What is known is of this version.
    version: String,
    watch: Option<Lines>,
    watches: u32,
}

#[derive(Deserialize)]
struct List {
    metadata: Metadata,
    #[serde(default)]
    items: Vec<Slice>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Slice {
    metadata: Metadata,
    address_type: String,
    /// Go says `null` of what is empty.
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoint {
    addresses: Vec<String>,
    conditions: Conditions,
    target_ref: Option<Target>,
    zone: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Conditions {
    /// Unknown is ready.
    ready: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Target {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

/// A line of a watch.
#[derive(Deserialize)]
struct Change {
    r#type: String,
    object: serde_json::Value,
}

/// What a line was.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Changed,
    Nothing,
    /// What was to come is not known any more.
    Expired,
}

impl Kubernetes {
    pub(super) fn new(config: KubernetesSource) -> Self {
        Self {
            http: Http::new(config.tls.clone()),
            config,
            slices: BTreeMap::new(),
            version: String::new(),
            watch: None,
            watches: 0,
        }
    }

    fn url(&self) -> Result<String, String> {
        let server = match &self.config.server {
            Some(server) => server.clone(),
            None => {
                let read = |name| std::env::var(name).map_err(|_| format!("{name} is not set"));
                let host: String = read("KUBERNETES_SERVICE_HOST")?;
                let port = read("KUBERNETES_SERVICE_PORT")?;
                match host.contains(':') {
                    true => format!("https://[{host}]:{port}"),
                    false => format!("https://{host}:{port}"),
                }
            }
        };
        let namespace = match &self.config.namespace {
            Some(namespace) => namespace.clone(),
            None => read_text(Path::new(NAMESPACE_FILE))?,
        };
        Ok(format!(
            "{server}/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector={}",
            encoded(&namespace),
            encoded(&format!("kubernetes.io/service-name={}", self.config.service)),
        ))
    }

    fn authorization(&self) -> Result<String, String> {
        read_text(&self.config.token_file).map(|token| format!("Bearer {token}"))
    }

    fn start_watch(&mut self) -> Result<Result<Lines, Answer>, String> {
        let url = format!(
            "{}&watch=1&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={WATCH_SECONDS}",
            self.url()?,
            encoded(&self.version)
        );
        let authorization = self.authorization()?;
        let silence = Duration::from_secs(WATCH_SECONDS) + WATCH_GRACE;
        self.watches += 1;
        self.http.get_lines(&url, &[("authorization", &authorization)], silence)
    }

    /// What is listed.
    fn take(&mut self, body: &[u8]) -> Result<Vec<Server>, String> {
        let List { metadata, items } = from_json(body)?;
        self.version = metadata.resource_version;
        self.slices = items.into_iter().map(|slice| (slice.metadata.name.clone(), slice)).collect();
        self.servers()
    }

    fn apply(&mut self, line: &[u8]) -> Result<Told, String> {
        let Change { r#type, object } = from_json(line)?;
        if r#type == "ERROR" {
            return match object["code"].as_u64() {
                Some(410) => Ok(Told::Expired),
                _ => Err(format!("it ends the watch: {}", object["message"])),
            };
        }
        let slice: Slice = serde_json::from_value(object).map_err(|error| misunderstood(&error))?;
        self.version.clone_from(&slice.metadata.resource_version);
        match &*r#type {
            "ADDED" | "MODIFIED" => {
                _ = self.slices.insert(slice.metadata.name.clone(), slice);
            }
            "DELETED" => _ = self.slices.remove(&slice.metadata.name),
            _ => return Ok(Told::Nothing),
        }
        Ok(Told::Changed)
    }

    fn servers(&self) -> Result<Vec<Server>, String> {
        let mut found = BTreeMap::new();
        // Of a pod with addresses of both families the first counts.
        for family in ["IPv4", "IPv6", "FQDN"] {
            for slice in self.slices.values().filter(|slice| slice.address_type == family) {
                for endpoint in slice.endpoints.iter().flatten() {
                    if endpoint.conditions.ready == Some(false) {
                        continue;
                    }
                    let Some(address) = endpoint.addresses.first() else { continue };
                    let address = format!("{address}:{}", slice.port(self.config.port.as_deref())?);
                    let name = endpoint.target_ref.as_ref().map(|it| it.name.clone());
                    let name = name.filter(|name| !name.is_empty()).unwrap_or(address.clone());
                    let server = server_at(&address, Some(name), None, endpoint.zone.clone())?;
                    found.entry(server.name.clone()).or_insert(server);
                }
            }
        }
        Ok(found.into_values().collect())
    }
}

impl Source for Kubernetes {
    fn list(&mut self) -> Result<Vec<Server>, String> {
        (self.watch, self.watches) = (None, 0);
        let (url, authorization) = (self.url()?, self.authorization()?);
        let headers = [("authorization", &*authorization)];
        let answer = self.http.get(&url, &headers, LIST_TIMEOUT)?.ok()?;
        self.take(&answer.body)
    }

    fn wait(&mut self) -> Result<Option<Vec<Server>>, String> {
        let mut lines = match self.watch.take() {
            Some(lines) => lines,
            None if self.watches >= WATCHES_MAX => return Ok(None),
            None => match self.start_watch()? {
                Ok(lines) => lines,
                Err(answer) if answer.status == 410 => return Ok(None),
                Err(answer) => return Err(answer.ok().err().unwrap_or_default()),
            },
        };
        match lines.next() {
            Ok(line) => {
                if self.apply(&line)? == Told::Expired {
                    return Ok(None);
                }
                self.watch = Some(lines);
                self.servers().map(Some)
            }
            // The next one goes on from there.
            Err(End::Over) => self.servers().map(Some),
            Err(End::Silent) => Err("it says nothing any more".to_owned()),
            Err(End::Lost(why)) => Err(why),
        }
    }
}

impl Slice {
    /// The port of a name or a number, or the only one.
    fn port(&self, wanted: Option<&str>) -> Result<u16, String> {
        let ports = self.ports.as_deref().unwrap_or_default();
        let is_wanted = |port: &&Port| match wanted {
            Some(wanted) => {
                port.name.as_deref() == Some(wanted)
                    || port.port.is_some_and(|it| it.to_string() == wanted)
            }
            None => true,
        };
        let mut found = ports.iter().filter(is_wanted).filter_map(|port| port.port);
        let slice = &self.metadata.name;
        match (found.next(), found.next(), wanted) {
            (Some(port), None, _) | (Some(port), Some(_), Some(_)) => Ok(port),
            (Some(_), Some(_), None) => {
                Err(format!("{slice} has several ports: \"port\" has to say which one"))
            }
            (None, _, Some(wanted)) => Err(format!("{slice} has no port {wanted}")),
            (None, _, None) => Err(format!("{slice} has no port")),
        }
    }
}

/// A listing, and a line for each event.
pub(crate) fn read_foreign(bytes: &[u8]) -> Result<Vec<Server>, String> {
    let mut kubernetes = Kubernetes::new(KubernetesSource {
        service: "cache".to_owned(),
        namespace: Some("shop".to_owned()),
        port: (bytes.len() % 2 == 1).then(|| "redis".to_owned()),
        server: Some("http://127.0.0.1:1".to_owned()),
        token_file: "/nowhere".into(),
        tls: SourceTls::default(),
    });
    let mut lines = bytes.split(|&byte| byte == b'\n');
    kubernetes.take(lines.next().unwrap_or_default())?;
    for line in lines {
        if kubernetes.apply(line)? == Told::Expired {
            break;
        }
    }
    kubernetes.servers()
}

fn misunderstood(error: &serde_json::Error) -> String {
    format!("its answer is not understood: {error}")
}

fn from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| misunderstood(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubernetes(port: Option<&str>) -> Kubernetes {
        Kubernetes::new(KubernetesSource {
            service: "cache".to_owned(),
            namespace: Some("shop".to_owned()),
            port: port.map(str::to_owned),
            server: Some("http://api:1".to_owned()),
            token_file: "/nowhere".into(),
            tls: SourceTls::default(),
        })
    }

    fn change(kind: &str, slice: &str) -> String {
        format!(r#"{{"type":"{kind}","object":{slice}}}"#)
    }

    /// A slice with pods and their last octets.
    fn slice(name: &str, version: u32, family: &str, pods: &[(&str, &str, &str)]) -> String {
        let endpoint = |(pod, address, conditions): &(&str, &str, &str)| {
            format!(
                r#"{{"addresses":["{address}"],"conditions":{{{conditions}}},"nodeName":"n","zone":"z1",
                    "targetRef":{{"kind":"Pod","name":"{pod}","namespace":"shop","uid":"u"}}}}"#
            )
        };
        let endpoints: Vec<String> = pods.iter().map(endpoint).collect();
        format!(
            r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{{"name":"{name}",
                "resourceVersion":"{version}"}},"addressType":"{family}","endpoints":[{}],
                "ports":[{{"name":"redis","port":6379,"protocol":"TCP"}}]}}"#,
            endpoints.join(",")
        )
    }

    fn shown(kubernetes: &Kubernetes) -> Vec<String> {
        let shown = |it: &Server| format!("{} {}", it.name, it.endpoint);
        kubernetes.servers().unwrap().iter().map(shown).collect()
    }

    #[test]
    fn slices_are_put_together_and_followed() {
        let mut kubernetes = kubernetes(Some("redis"));
        let ready = r#""ready":true,"serving":true,"terminating":false"#;
        let one = slice(
            "cache-a",
            5,
            "IPv4",
            &[("cache-0", "10.0.0.1", ready), ("cache-1", "10.0.0.2", "")],
        );
        let six = slice("cache-6", 6, "IPv6", &[("cache-0", "fd00::1", ready)]);
        let two = slice("cache-b", 7, "IPv4", &[("cache-2", "10.0.0.3", ready)]);
        for slice in [&one, &six, &two] {
            assert_eq!(kubernetes.apply(change("ADDED", slice).as_bytes()), Ok(Told::Changed));
        }
        let all = ["cache-0 10.0.0.1:6379", "cache-1 10.0.0.2:6379", "cache-2 10.0.0.3:6379"];
        assert_eq!(
            (shown(&kubernetes), &*kubernetes.version),
            (all.map(str::to_owned).to_vec(), "7")
        );
        assert_eq!(kubernetes.servers().unwrap()[0].zone.as_deref(), Some("z1"));
        // It is back at another address.
        let leaving = r#""ready":false,"serving":true,"terminating":true"#;
        let one = slice(
            "cache-a",
            8,
            "IPv4",
            &[("cache-0", "10.0.0.9", ready), ("cache-1", "10.0.0.2", leaving)],
        );
        assert_eq!(kubernetes.apply(change("MODIFIED", &one).as_bytes()), Ok(Told::Changed));
        assert_eq!(shown(&kubernetes), ["cache-0 10.0.0.9:6379", "cache-2 10.0.0.3:6379"]);
        assert_eq!(kubernetes.apply(change("DELETED", &two).as_bytes()), Ok(Told::Changed));
        assert_eq!(shown(&kubernetes), ["cache-0 10.0.0.9:6379"]);
        let mark = r#"{"kind":"EndpointSlice","metadata":{"resourceVersion":"99","creationTimestamp":null},"addressType":"","endpoints":null,"ports":null}"#;
        assert_eq!(kubernetes.apply(change("BOOKMARK", mark).as_bytes()), Ok(Told::Nothing));
        assert_eq!((shown(&kubernetes).len(), &*kubernetes.version), (1, "99"));
        let gone = r#"{"kind":"Status","status":"Failure","message":"too old resource version: 1 (9)","reason":"Expired","code":410}"#;
        assert_eq!(kubernetes.apply(change("ERROR", gone).as_bytes()), Ok(Told::Expired));
        let other = r#"{"kind":"Status","message":"no","code":500}"#;
        assert!(kubernetes.apply(change("ERROR", other).as_bytes()).unwrap_err().contains("no"));
        assert!(kubernetes.apply(b"{}").is_err() && kubernetes.apply(b"").is_err());
    }

    #[test]
    fn the_port_is_the_only_one_or_the_one_that_is_named() {
        let port = |name: &str, port| Port { name: Some(name.to_owned()), port: Some(port) };
        let slice = |ports| Slice { ports: Some(ports), ..Slice::default() };
        let both = slice(vec![port("redis", 6379), port("metrics", 9121)]);
        assert_eq!(both.port(Some("metrics")), Ok(9121));
        assert_eq!(both.port(Some("6379")), Ok(6379));
        both.port(None).unwrap_err();
        both.port(Some("x")).unwrap_err();
        assert_eq!(slice(vec![port("", 1)]).port(None), Ok(1));
        slice(Vec::new()).port(None).unwrap_err();
    }

    #[test]
    fn the_url_selects_the_slices_of_the_service() {
        let url = "http://api:1/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dcache";
        assert_eq!(kubernetes(None).url().as_deref(), Ok(url));
    }
}
