//! Pools whose servers a source names: `servers_from`.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use cashew_placement::Distribution;
use serde::{Deserialize, Serialize};

use super::{Address, Endpoint, Pool, SERVERS_MAX, Server, Snapshot, Topology};
use crate::address::check_name;
use crate::resolve::{by_length_then_bytes, weight_limit};

/// Who names the servers of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServersFrom {
    pub source: ServerSource,
    /// How often the servers have changed, in this instance.
    #[serde(default)]
    pub changes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerSource {
    File(PathBuf),
    Dns(DnsSource),
    Etcd(EtcdSource),
    Consul(ConsulSource),
    Kubernetes(KubernetesSource),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DnsSource {
    pub name: String,
    /// Of address records. `None`: SRV records, which have ports of their own.
    pub port: Option<u16>,
    /// Who is asked; `None` is whom the system asks.
    pub server: Option<Address>,
}

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EtcdSource {
    /// URLs without a path. Never empty.
    pub endpoints: Vec<String>,
    pub prefix: String,
    /// With its password, which is never shown.
    pub user: Option<(String, String)>,
    pub tls: SourceTls,
}

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConsulSource {
    /// A URL without a path.
    pub address: String,
    pub service: String,
    pub tag: Option<String>,
    pub datacenter: Option<String>,
    /// Never shown.
    pub token: Option<String>,
    pub tls: SourceTls,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KubernetesSource {
    pub service: String,
    /// `None` is that of the pod the gateway runs in.
    pub namespace: Option<String>,
    /// The name or the number of the port; `None` is the only one.
    pub port: Option<String>,
    /// A URL without a path; `None` is that of the cluster the gateway runs in.
    pub server: Option<String>,
    pub token_file: PathBuf,
    pub tls: SourceTls,
}

/// Files, read for each connection: whom to trust, and what to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceTls {
    pub ca: Option<PathBuf>,
    /// A certificate with its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Stands for the servers of a pool while none is known: connecting to it is refused at once.
const NOBODY: &str = "(no server is known)";

impl ServerSource {
    /// Of which kind it is.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Dns(_) => "dns",
            Self::Etcd(_) => "etcd",
            Self::Consul(_) => "consul",
            Self::Kubernetes(_) => "kubernetes",
        }
    }
}

/// Without what is secret.
impl fmt::Display for ServerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Dns(DnsSource { name, port, server }) => {
                match port {
                    Some(port) => write!(f, "DNS {name}, port {port}")?,
                    None => write!(f, "DNS {name}, SRV")?,
                }
                server.as_ref().map_or(Ok(()), |server| write!(f, ", by {server}"))
            }
            Self::Etcd(it) => write!(f, "etcd {}, prefix {}", it.endpoints.join(" "), it.prefix),
            Self::Consul(it) => {
                write!(f, "Consul {}, service {}", it.address, it.service)?;
                it.tag.as_ref().map_or(Ok(()), |tag| write!(f, ", tag {tag}"))?;
                it.datacenter.as_ref().map_or(Ok(()), |dc| write!(f, ", datacenter {dc}"))
            }
            Self::Kubernetes(it) => {
                let namespace = it.namespace.as_deref().unwrap_or("(own)");
                write!(f, "Kubernetes service {namespace}/{}", it.service)?;
                it.port.as_ref().map_or(Ok(()), |port| write!(f, ", port {port}"))
            }
        }
    }
}

impl fmt::Debug for EtcdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(user, _)| user);
        write!(f, "etcd {:?} {:?} {user:?} {:?}", self.endpoints, self.prefix, self.tls)
    }
}

impl fmt::Debug for ConsulSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, service, tag, datacenter, tls, .. } = self;
        write!(f, "Consul {address} {service:?} {tag:?} {datacenter:?} {tls:?}")
    }
}

impl Pool {
    /// Who names its servers, if the file does not.
    pub fn source(&self) -> Option<&ServerSource> {
        self.servers_from.as_ref().map(|from| &from.source)
    }

    /// The servers that its source has named, in the order of names. Empty while there are none.
    pub fn found(&self) -> &[Server] {
        match &*self.servers {
            [Server { name, .. }] if self.servers_from.is_some() && name == NOBODY => &[],
            servers => servers,
        }
    }

    /// Why these cannot be its servers.
    pub fn check_found(&self, found: &[Server]) -> Result<(), String> {
        check_found(found, self.distribution)
    }

    /// Takes these for its servers. False if they are so already, cannot be, or if no source names them.
    pub fn set_found(&mut self, found: &[Server]) -> bool {
        if self.servers_from.is_none() || self.check_found(found).is_err() {
            return false;
        }
        let mut servers = found.to_vec();
        servers.sort_by(|a, b| by_length_then_bytes(&a.name, &b.name));
        if servers.is_empty() {
            servers.push(nobody());
        }
        if self.servers == servers {
            return false;
        }
        self.topology = Topology::Sharded;
        self.servers = servers;
        if let Some(from) = &mut self.servers_from {
            from.changes = from.changes.wrapping_add(1);
        }
        true
    }
}

/// Of a pool whose source has not named any.
pub(crate) fn nobody() -> Server {
    Server { name: NOBODY.to_owned(), endpoint: Endpoint::unknown(), weight: 1, zone: None }
}

fn check_found(found: &[Server], distribution: Distribution) -> Result<(), String> {
    if found.len() > SERVERS_MAX {
        return Err(format!("{} servers are too many: at most {SERVERS_MAX}", found.len()));
    }
    let mut names = HashSet::new();
    for server in found {
        check_name("server", &server.name).map_err(|complaint| complaint.message)?;
        if server.name == NOBODY {
            return Err(format!("a server cannot be named \"{NOBODY}\""));
        }
        if !names.insert(&server.name) {
            return Err(format!("two servers are named \"{}\"", server.name));
        }
    }
    let (weight_max, _) = weight_limit(distribution);
    let weight: u64 = found.iter().map(|server| u64::from(server.weight)).sum();
    match weight > weight_max {
        true => Err(format!("the weights sum up to {weight}, and to {weight_max} at most")),
        false => Ok(()),
    }
}

impl Snapshot {
    /// Whether the servers of any pool are named by a source.
    pub fn has_sources(&self) -> bool {
        self.pools.iter().any(|pool| pool.servers_from.is_some())
    }

    /// Takes over what sources have named from another snapshot: of pools of the same name and source, or else of any
    /// of the same source.
    pub fn keep_found(&mut self, from: &Self) {
        for pool in self.pools.iter_mut().filter(|pool| pool.servers_from.is_some()) {
            let same = || from.pools.iter().filter(|other| other.source() == pool.source());
            let kept = same().find(|other| other.name == pool.name).or_else(|| same().next());
            if let Some(kept) = kept {
                pool.set_found(kept.found());
                let changes = kept.servers_from.as_ref().map_or(0, |from| from.changes);
                pool.servers_from.iter_mut().for_each(|from| from.changes = changes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pools: &[(&str, &str)]) -> Snapshot {
        let pool = |(at, (name, file)): (usize, &(&str, &str))| {
            let port = 22_121 + at;
            format!("{name}: {{listen: 127.0.0.1:{port}, servers_from: {{file: {file}}}}}\n")
        };
        let yaml: String = pools.iter().enumerate().map(pool).collect();
        let loaded = crate::parse("t.yml", &yaml, &crate::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    fn server(name: &str, port: u16) -> Server {
        let endpoint = Endpoint::Tcp { host: "10.0.0.1".to_owned(), port };
        Server { name: name.to_owned(), endpoint, weight: 1, zone: None }
    }

    #[test]
    fn a_pool_has_the_servers_that_were_found_and_nobody_without() {
        let mut pool = snapshot(&[("a", "/etc/list")]).pools.remove(0);
        assert!(pool.found().is_empty() && pool.servers.len() == 1);
        assert!(pool.servers[0].endpoint.is_unknown());
        assert!(!pool.set_found(&[]));
        assert!(pool.set_found(&[server("s10", 10), server("s2", 2)]));
        assert_eq!(pool.found(), [server("s2", 2), server("s10", 10)]);
        assert!(!pool.set_found(&[server("s2", 2), server("s10", 10)]));
        assert!(pool.set_found(&[server("s2", 3), server("s10", 10)]));
        assert!(pool.set_found(&[]) && pool.found().is_empty());
        assert_eq!(pool.servers_from.as_ref().unwrap().changes, 3);
        let heavy = Server { weight: u32::MAX, ..server("s3", 3) };
        for (bad, why) in [
            (vec![server("s", 1), server("s", 2)], "two servers are named \"s\""),
            (vec![server("", 1)], "the server has an empty name"),
            (vec![server(NOBODY, 1)], "a server cannot be named \"(no server is known)\""),
            (
                vec![server("s", 1), heavy],
                "the weights sum up to 4294967296, and to 4294967295 at most",
            ),
        ] {
            assert_eq!(pool.check_found(&bad).unwrap_err(), why);
            assert!(!pool.set_found(&bad));
        }
        pool.servers_from = None;
        assert!(!pool.set_found(&[server("s2", 2)]));
    }

    #[test]
    fn what_was_found_is_kept_by_a_pool_of_the_same_source() {
        let mut before = snapshot(&[("a", "/x"), ("b", "/y")]);
        before.pools[0].set_found(&[server("s1", 1)]);
        before.pools[1].set_found(&[server("s2", 2)]);
        let kept = |pools: &[(&str, &str)]| {
            let mut after = snapshot(pools);
            after.keep_found(&before);
            let names = |pool: &Pool| {
                pool.found().iter().map(|it| it.name.clone()).collect::<Vec<_>>().join(",")
            };
            after.pools.iter().map(names).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[("a", "/x"), ("b", "/y")]), ["s1", "s2"]);
        assert_eq!(kept(&[("a", "/y"), ("c", "/x")]), ["s2", "s1"]);
        assert_eq!(kept(&[("a", "/z")]), [""]);
    }

    #[test]
    fn sources_are_shown_without_secrets() {
        let etcd = EtcdSource {
            endpoints: vec!["http://e:2379".to_owned()],
            prefix: "/p/".to_owned(),
            user: Some(("ann".to_owned(), "secret".to_owned())),
            tls: SourceTls::default(),
        };
        let consul = ConsulSource {
            address: "http://c:8500".to_owned(),
            service: "redis".to_owned(),
            tag: Some("blue".to_owned()),
            datacenter: None,
            token: Some("secret".to_owned()),
            tls: SourceTls::default(),
        };
        let (etcd, consul) = (ServerSource::Etcd(etcd), ServerSource::Consul(consul));
        assert_eq!(etcd.to_string(), "etcd http://e:2379, prefix /p/");
        assert_eq!(consul.to_string(), "Consul http://c:8500, service redis, tag blue");
        let shown = format!("{etcd} {etcd:?} {consul} {consul:?}");
        assert!(!shown.contains("secret") && shown.contains("ann"), "{shown}");
    }
}
