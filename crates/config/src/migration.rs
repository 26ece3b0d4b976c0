//! How far the move from one pool to another is, which outlives the instance.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::snapshot::{Address, Endpoint, Pool, Protocol};

/// What is kept of a move in its directory. Only the master writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveState {
    pub from: String,
    pub to: String,
    /// It was begun, so that what `to` has is a copy.
    pub is_started: bool,
    /// Nothing is copied for now.
    pub is_paused: bool,
    /// Clients are served by `to`.
    pub is_cut_over: bool,
    /// The marks of both pools' shards ([`Pool::shard_marks`]) that it was begun with. What others have was not looked
    /// at, and nothing of it is removed.
    #[serde(default)]
    pub servers: Vec<String>,
}

impl MoveState {
    /// Of a move that was not begun.
    pub fn new(from: &str, to: &str) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            is_started: false,
            is_paused: false,
            is_cut_over: false,
            servers: Vec::new(),
        }
    }

    /// Where it is kept in a move's directory.
    pub fn file(directory: &Path) -> PathBuf {
        directory.join("state.json")
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// That of a directory; `None` if nothing was begun there.
    pub fn load(directory: &Path) -> Result<Option<Self>, String> {
        match fs::read_to_string(Self::file(directory)) {
            Ok(text) => Self::parse(&text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Puts it on disk, whole or not at all, and makes the directory if it is missing.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let (path, next) = (Self::file(directory), directory.join("state.json.next"));
        let mut file = File::create(&next)?;
        file.write_all(&serde_json::to_vec_pretty(self).map_err(io::Error::other)?)?;
        file.sync_all()?;
        fs::rename(&next, &path)?;
        File::open(directory)?.sync_all()
    }
}

impl Pool {
    /// By shard, what tells its servers from others: where each of them is, or by which Sentinels it is found. They
    /// stay the same when a replica becomes the primary. All shards of a cluster have those of its seeds. `with_databases`
    /// adds the databases that clients can use.
    pub fn shard_marks(&self, with_databases: bool) -> Vec<Vec<String>> {
        let databases = match (self.protocol, self.databases) {
            (Protocol::Redis, 0 | 1) if with_databases => format!(" database {}", self.redis_db),
            (Protocol::Redis, count) if with_databases => format!(" databases 0 to {}", count - 1),
            _ => String::new(),
        };
        let shards = self.shards();
        if let Some(cluster) = &self.cluster {
            let of = |it: &Address| format!("server {}{databases}", mark(&it.host, it.port));
            let seeds: Vec<String> = cluster.seeds.iter().map(of).collect();
            return vec![seeds; shards.len().max(1)];
        }
        let shards = shards.iter().map(|shard| {
            let primary = &self.servers[shard.primary as usize];
            let mut groups = self.sentinel.iter().flat_map(|it| &it.groups);
            let group = groups.find(|group| group.server == primary.name);
            match (group, &self.sentinel) {
                (Some(group), Some(sentinel)) => {
                    let of = |it: &Address| {
                        format!(
                            "group {} of Sentinel {}{databases}",
                            group.master,
                            mark(&it.host, it.port)
                        )
                    };
                    sentinel.addresses.iter().map(of).collect()
                }
                _ => {
                    let servers = shard.members().map(|at| &self.servers[at as usize].endpoint);
                    let mark = |endpoint: &Endpoint| match endpoint {
                        Endpoint::Tcp { host, port } => mark(host, *port),
                        Endpoint::Unix(path) => path.display().to_string(),
                    };
                    servers.map(|it| format!("server {}{databases}", mark(it))).collect()
                }
            }
        });
        shards.collect()
    }
}

/// One text for all ways to write an address.
fn mark(host: &str, port: u16) -> String {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let host = if host == "localhost" { "127.0.0.1".to_owned() } else { host };
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) if ip == Ipv6Addr::LOCALHOST => mark("127.0.0.1", port),
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}
