//! Pools whose servers a source names: `servers_from`.

use std::fmt::Debug;
use std::path::PathBuf;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::address::{ServerLine, parse_host, parse_port};
use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::file::{
    ConsulSection, DnsSection, EtcdSection, KubernetesSection, PoolSection, ServersFromSection,
};
use crate::resolve::Context;
use crate::secret;
use crate::section::{self, Section};
use crate::snapshot::{
    Address, ConsulSource, DnsSource, EtcdSource, KubernetesSource, Server, ServerSource,
    ServersFrom, SourceTls,
};
use crate::tree::{Kind, Node};
use crate::value::{FilePath, Text, Value};

const ENDPOINTS_MAX: usize = 16;

/// A section that is the value of an option.
pub(crate) trait Example: Section {
    const EXAMPLE: &'static str;
}

impl Example for ServersFromSection {
    const EXAMPLE: &'static str = "{file: /etc/cashew/servers}";
}

impl Example for DnsSection {
    const EXAMPLE: &'static str = "{name: cache.example.com, port: 11211}";
}

impl Example for EtcdSection {
    const EXAMPLE: &'static str = "{endpoints: [http://10.0.0.1:2379], prefix: /cache/}";
}

impl Example for ConsulSection {
    const EXAMPLE: &'static str = "{service: cache}";
}

impl Example for KubernetesSection {
    const EXAMPLE: &'static str = "{service: cache, port: redis}";
}

#[derive(Debug)]
pub(crate) struct Nested<S>(pub(crate) S);

impl<S: Example + Debug> Value for Nested<S> {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("this option takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<S>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        format!("a section like `{}`", S::EXAMPLE)
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let what = format!("option \"{key}\"");
        let Kind::Section(_) = &node.kind else {
            let complaint = Complaint::new(format!("{what} takes a section"));
            report.error(node.pos, complaint.hint(Self::expected()));
            return None;
        };
        Some(Self(section::read(&what, node.pos, node, report)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DnsType {
    A,
    Srv,
}

impl Value for DnsType {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "a" => Ok(Self::A),
            "srv" => Ok(Self::Srv),
            _ => {
                Err(Complaint::new(format!("\"{text}\" is no type of records"))
                    .hint(Self::expected()))
            }
        }
    }

    fn schema() -> Schema {
        json_schema!({ "enum": ["a", "srv"] })
    }

    fn describe() -> String {
        "`a` or `srv`".to_owned()
    }
}

/// `host:port`.
#[derive(Clone, Debug)]
pub(crate) struct HostPort(Address);

impl Value for HostPort {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let (host, port) = text.rsplit_once(':').ok_or_else(|| {
            Complaint::new(format!("\"{text}\" is not an address")).hint(Self::expected())
        })?;
        let port = parse_port(port).map_err(|c| c.offset(host.chars().count() + 1))?;
        Ok(Self(Address { host: parse_host(host)?.to_owned(), port }))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^.+:0*[1-9][0-9]*$" })
    }

    fn describe() -> String {
        "`host:port`".to_owned()
    }
}

/// Where something answers HTTP: a URL without a path.
#[derive(Clone, Debug)]
pub(crate) struct BaseUrl(String);

impl BaseUrl {
    fn is_secured(&self) -> bool {
        self.0.starts_with("https://")
    }
}

impl Value for BaseUrl {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let complaint =
            |why: &str| Complaint::new(format!("\"{text}\" {why}")).hint(Self::expected());
        let text = text.strip_suffix('/').unwrap_or(text);
        let (scheme, host) = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), host)) => (scheme, host),
            Some(_) => return Err(complaint("is no URL of http or https")),
            None => ("http", text),
        };
        // A password in it would be told in logs.
        if host.contains(['@', '/', '?', '#']) || !host.bytes().all(|it| it.is_ascii_graphic()) {
            return Err(complaint("has more than a host and a port"));
        }
        let port = match host.rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => Some(port),
            _ => None,
        };
        match port {
            Some(port) => _ = parse_port(port)?,
            None if scheme == "http" => return Err(complaint("has no port")),
            None => {}
        }
        let name = host.strip_suffix(port.unwrap_or_default()).unwrap_or(host);
        parse_host(name.strip_suffix(':').unwrap_or(name))?;
        Ok(Self(format!("{scheme}://{host}")))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^(https?://)?[^@#?/\\s]+/?$" })
    }

    fn describe() -> String {
        "a URL like `http://10.0.0.1:2379`, without a path".to_owned()
    }
}

/// A URL, or several.
#[derive(Debug)]
pub(crate) struct BaseUrls(Vec<At<BaseUrl>>);

impl Value for BaseUrls {
    fn parse(text: &str) -> Result<Self, Complaint> {
        BaseUrl::parse(text).map(|value| Self(vec![At { value, pos: Pos::NONE }]))
    }

    fn schema() -> Schema {
        let one = BaseUrl::schema();
        json_schema!({ "anyOf": [
            one, { "type": "array", "minItems": 1, "maxItems": ENDPOINTS_MAX, "items": one },
        ] })
    }

    fn describe() -> String {
        "a list of URLs like `[http://10.0.0.1:2379, http://10.0.0.2:2379]`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let read = |node: &Node, report: &mut Report<'_>| {
            let value = BaseUrl::read(key, node, report)?;
            Some(At { value, pos: node.pos })
        };
        match &node.kind {
            Kind::List(items) if items.is_empty() || items.len() > ENDPOINTS_MAX => {
                let complaint =
                    Complaint::new(format!("option \"{key}\" has {} URLs", items.len()));
                let hint = format!("expected one at least, and {ENDPOINTS_MAX} at most");
                report.error(node.pos, complaint.hint(hint));
                None
            }
            Kind::List(items) => {
                let all: Vec<_> = items.iter().map(|item| read(item, report)).collect();
                all.into_iter().collect::<Option<_>>().map(Self)
            }
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => {
                read(node, report).map(|url| Self(vec![url]))
            }
        }
    }
}

/// What a pool has of it. `None` where the file names its servers, or after an error.
pub(crate) fn resolve(
    section: &PoolSection,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<ServersFrom> {
    let At { value: Nested(from), pos } = section.servers_from.as_ref()?;
    refuse_others(section, report);
    let ServersFromSection { file, dns, etcd, consul, kubernetes } = from;
    let given = [file.is_some(), dns.is_some(), etcd.is_some(), consul.is_some()];
    let given = given.into_iter().filter(|it| *it).count() + usize::from(kubernetes.is_some());
    if given != 1 {
        let message = format!("option \"servers_from\" has {given} sources");
        let hint = "expected one of file, dns, etcd, consul and kubernetes";
        report.error(*pos, Complaint::new(message).hint(hint));
        return None;
    }
    let mut resolve = Resolve { context, report };
    let source = match (file, dns, etcd, consul, kubernetes) {
        (Some(file), ..) => resolve.file(file)?,
        (_, Some(dns), ..) => resolve.dns(&dns.value.0, dns.pos)?,
        (_, _, Some(etcd), ..) => resolve.etcd(&etcd.value.0)?,
        (_, _, _, Some(consul), _) => resolve.consul(&consul.value.0)?,
        (.., kubernetes) => resolve.kubernetes(&kubernetes.as_ref()?.value.0)?,
    };
    Some(ServersFrom { source, changes: 0 })
}

/// What names servers as well.
fn refuse_others(section: &PoolSection, report: &mut Report<'_>) {
    let others = [
        ("servers", section.servers.as_ref().map(|it| it.pos)),
        ("cluster", section.cluster.as_ref().map(|it| it.pos)),
        ("sentinels", section.sentinels.as_ref().map(|it| it.pos)),
    ];
    for (key, pos) in others {
        if let Some(pos) = pos {
            let message = format!("\"servers_from\" and \"{key}\" exclude each other");
            report.error(pos, Complaint::new(message).hint("the source names all servers"));
        }
    }
}

/// A file that may be given.
type Given<'a> = &'a Option<At<FilePath>>;

struct Resolve<'a, 'c, 'r> {
    context: &'a Context<'c>,
    report: &'a mut Report<'r>,
}

impl Resolve<'_, '_, '_> {
    fn error(&mut self, pos: Pos, message: impl Into<String>, hint: &str) {
        self.report.error(pos, Complaint::new(message.into()).hint(hint));
    }

    fn file(&mut self, file: &At<FilePath>) -> Option<ServerSource> {
        let path = &file.value.0;
        let directory = path.parent().filter(|directory| !(self.context.is_directory)(directory));
        if let Some(directory) = directory {
            let message = format!("option \"file\": there is no directory {}", directory.display());
            self.error(file.pos, message, "the file may come later, its directory may not");
            return None;
        }
        Some(ServerSource::File(path.clone()))
    }

    fn dns(&mut self, section: &DnsSection, pos: Pos) -> Option<ServerSource> {
        let name = section.name.as_ref()?;
        if !is_dns_name(&name.value.0) {
            let message = format!("\"{}\" is not a name that DNS has", name.value.0);
            self.error(name.pos, message, "expected labels with dots between them");
            return None;
        }
        let port = section.port.as_ref().map(|port| port.value.0 as u16);
        match (section.records.value, &section.port) {
            (DnsType::A, None) => {
                self.error(
                    pos,
                    "option \"dns\" lacks the option \"port\"",
                    "the port of the servers; only SRV records tell it",
                );
                return None;
            }
            (DnsType::Srv, Some(port)) => {
                self.error(
                    port.pos,
                    "\"port\" does not go with \"records: srv\"",
                    "SRV records have ports",
                );
                return None;
            }
            _ => {}
        }
        Some(ServerSource::Dns(DnsSource {
            name: name.value.0.strip_suffix('.').unwrap_or(&name.value.0).to_owned(),
            port,
            server: section.server.as_ref().map(|server| server.value.0.clone()),
        }))
    }

    fn etcd(&mut self, section: &EtcdSection) -> Option<ServerSource> {
        let (endpoints, prefix) = (section.endpoints.as_ref()?, section.prefix.as_ref()?);
        let tls = self.tls(&endpoints.value.0, (&section.ca, &section.cert, &section.key), None)?;
        let user = match (&section.user, &section.password) {
            (None, None) => None,
            (Some(user), Some(password)) => {
                let password = self.secret("password", password)?;
                Some((user.value.0.clone(), password))
            }
            (user, password) => {
                let pos = user.as_ref().map(|it| it.pos).or(password.as_ref().map(|it| it.pos));
                self.error(
                    pos?,
                    "option \"etcd\": \"user\" and \"password\" go together",
                    "expected both",
                );
                return None;
            }
        };
        let endpoints = endpoints.value.0.iter().map(|url| url.value.0.clone()).collect();
        Some(ServerSource::Etcd(EtcdSource {
            endpoints,
            prefix: prefix.value.0.clone(),
            user,
            tls,
        }))
    }

    fn consul(&mut self, section: &ConsulSection) -> Option<ServerSource> {
        let service = section.service.as_ref()?;
        let files = (&section.ca, &section.cert, &section.key);
        let tls = self.tls(std::slice::from_ref(&section.address), files, None)?;
        let token = match &section.token {
            Some(token) => Some(self.secret("token", token)?),
            None => None,
        };
        let text = |text: &Option<At<Text>>| text.as_ref().map(|text| text.value.0.clone());
        Some(ServerSource::Consul(ConsulSource {
            address: section.address.value.0.clone(),
            service: service.value.0.clone(),
            tag: text(&section.tag),
            datacenter: text(&section.datacenter),
            token,
            tls,
        }))
    }

    fn kubernetes(&mut self, section: &KubernetesSection) -> Option<ServerSource> {
        let service = section.service.as_ref()?;
        for name in std::iter::once(service).chain(&section.namespace) {
            let is_label = |it: u8| it.is_ascii_alphanumeric() || it == b'-';
            if name.value.0.len() > 63 || !name.value.0.bytes().all(is_label) {
                let message = format!("\"{}\" is not a name that Kubernetes has", name.value.0);
                self.error(name.pos, message, "expected letters, digits and hyphens");
                return None;
            }
        }
        let is_inside = (self.context.read_env)("KUBERNETES_SERVICE_HOST").is_some();
        if section.server.is_none() && !is_inside {
            let complaint = Complaint::new("there is no \"server\", and this is no pod");
            let hint = "in a pod its environment says where the API server is";
            self.report.warning(service.pos, complaint.hint(hint));
        }
        let own = PathBuf::from(KUBERNETES_CA);
        let servers: Vec<At<BaseUrl>> = section.server.iter().cloned().collect();
        let default_ca =
            (section.ca.is_none() && servers.iter().all(|it| it.value.is_secured())).then_some(own);
        let tls = self.tls(&servers, (&section.ca, &None, &None), default_ca)?;
        Some(ServerSource::Kubernetes(KubernetesSource {
            service: service.value.0.clone(),
            namespace: section.namespace.as_ref().map(|it| it.value.0.clone()),
            port: section.port.as_ref().map(|port| port.value.0.clone()),
            server: section.server.as_ref().map(|it| it.value.0.clone()),
            token_file: section.token_file.value.0.clone(),
            tls,
        }))
    }

    fn secret(&mut self, key: &str, secret: &At<secret::Secret<Text>>) -> Option<String> {
        secret::resolve(key, Some(&secret.value), self.context, self.report).map(|text| text.0)
    }

    /// `None` after an error.
    fn tls(
        &mut self,
        urls: &[At<BaseUrl>],
        (ca, cert, key): (Given<'_>, Given<'_>, Given<'_>),
        default_ca: Option<PathBuf>,
    ) -> Option<SourceTls> {
        let secured = urls.iter().find(|url| url.value.is_secured());
        match (secured, ca) {
            (Some(url), None) if default_ca.is_none() => {
                let hint = "the file with the certificates that are trusted";
                self.error(url.pos, "https needs a \"ca\"", hint);
                return None;
            }
            (None, Some(ca)) if !urls.is_empty() => {
                self.error(ca.pos, "\"ca\" is for https", "with http it has no effect");
                return None;
            }
            _ => {}
        }
        let identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert.value.0.clone(), key.value.0.clone())),
            (Some(one), None) | (None, Some(one)) => {
                self.error(one.pos, "\"cert\" and \"key\" go together", "expected both");
                return None;
            }
        };
        for file in [ca, cert, key].into_iter().flatten() {
            if let Err(error) = (self.context.read_pem)(&file.value.0) {
                let message = format!("{} cannot be read: {error}", file.value.0.display());
                self.report.error(file.pos, Complaint::new(message));
                return None;
            }
        }
        let ca = ca.as_ref().map(|ca| ca.value.0.clone()).or(default_ca);
        Some(SourceTls { ca, identity })
    }
}

/// Of the service account of a pod.
const KUBERNETES_CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

fn is_dns_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        let is_part = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(is_part)
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// A server as a line of the option `servers`. `name` is for one that says none: it stays the same when the address
/// changes.
pub fn parse_server(line: &str, name: &str) -> Result<Server, String> {
    let has_name = line.trim().contains(' ');
    let parsed = ServerLine::parse_line(line.trim()).map_err(|complaint| match complaint.hint {
        Some(hint) => format!("{} ({hint})", complaint.message),
        None => complaint.message,
    })?;
    let ServerLine { name: own, endpoint, weight, .. } = parsed;
    let name = if has_name || name.is_empty() { own } else { name.to_owned() };
    Ok(Server { name, endpoint, weight, zone: None })
}

/// A server by its `host:port` or `/path`. Without a name its address is one.
pub fn server_at(
    address: &str,
    name: Option<String>,
    weight: Option<u64>,
    zone: Option<String>,
) -> Result<Server, String> {
    let line = format!("{address}:{}", weight.unwrap_or(1));
    let mut server = parse_server(&line, "")?;
    server.zone = zone;
    if let Some(name) = name {
        server.name = name;
    }
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_no_path() {
        let parse = |text: &str| BaseUrl::parse(text).map(|url| url.0).map_err(|it| it.message);
        for (text, url) in [
            ("http://10.0.0.1:2379", "http://10.0.0.1:2379"),
            ("10.0.0.1:2379", "http://10.0.0.1:2379"),
            ("https://etcd.example.com", "https://etcd.example.com"),
            ("https://[::1]:6443/", "https://[::1]:6443"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(url));
        }
        for (text, why) in [
            ("http://h", "\"http://h\" has no port"),
            ("ftp://h:1", "\"ftp://h:1\" is no URL of http or https"),
            ("http://h:1/v3", "\"http://h:1/v3\" has more than a host and a port"),
            ("http://u:p@h:1", "\"http://u:p@h:1\" has more than a host and a port"),
            ("http://h:0", "\"0\" is not a valid port"),
            ("http://:1", "the host is missing"),
        ] {
            assert_eq!(parse(text).unwrap_err(), why);
        }
    }

    #[test]
    fn names_of_dns_are_labels() {
        for name in ["a", "a.b.", "_redis._tcp.example.com", "x-1.y"] {
            assert!(is_dns_name(name), "{name}");
        }
        let long = "a".repeat(64);
        for name in ["", ".", "a..b", "a b", "a:1", &long] {
            assert!(!is_dns_name(name), "{name}");
        }
    }

    #[test]
    fn a_server_is_a_line_or_an_address() {
        let server = parse_server(" 10.0.0.1:6379:2 s1\n", "key").unwrap();
        assert_eq!((&*server.name, server.weight), ("s1", 2));
        assert_eq!(parse_server("10.0.0.1:6379:2", "key").unwrap().name, "key");
        assert_eq!(parse_server("10.0.0.1:6379:2", "").unwrap().name, "10.0.0.1:6379");
        let why = parse_server("10.0.0.1:6379", "key").unwrap_err();
        assert!(why.starts_with("\"10.0.0.1:6379\" lacks a port or a weight (expected"), "{why}");
        let server = server_at("[::1]:1", Some("s".to_owned()), Some(3), Some("z".to_owned()));
        let server = server.unwrap();
        assert_eq!((&*server.name, server.weight, server.zone.as_deref()), ("s", 3, Some("z")));
        assert_eq!(server.endpoint.to_string(), "[::1]:1");
        assert!(server_at("::1", None, None, None).is_err());
        assert!(server_at("h:1", None, Some(0), None).is_err());
    }
}
