//! Servers that say when they go: `server_maintenance`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Address, Endpoint, Pool, Snapshot};

/// Servers of a pool are asked to tell of their maintenance, and what has come of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerMaintenance {
    pub endpoint: MovingEndpoint,
    /// Servers that are not where the file has them, or to which connections were made anew.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub relocations: Vec<Relocation>,
}

/// As what a server names the address that it moves to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MovingEndpoint {
    /// As a name where servers are connected with TLS, else as an IP address; inside or outside by where the server is.
    #[default]
    Auto,
    /// Not at all: its own address leads there.
    None,
    InternalIp,
    InternalFqdn,
    ExternalIp,
    ExternalFqdn,
}

impl MovingEndpoint {
    /// As servers are asked for it, and as the file has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::InternalIp => "internal-ip",
            Self::InternalFqdn => "internal-fqdn",
            Self::ExternalIp => "external-ip",
            Self::ExternalFqdn => "external-fqdn",
        }
    }
}

impl fmt::Display for ServerMaintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.endpoint {
            MovingEndpoint::Auto => f.write_str("true"),
            other => f.write_str(other.name()),
        }
    }
}

/// A server that has said that it moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocation {
    pub server: String,
    /// Where the file has it.
    pub configured: Endpoint,
    /// Another one whenever connections are to be made anew, also to the same address.
    pub renewals: u32,
}

impl Pool {
    /// Servers that are not where the file has them, or to which connections were made anew.
    pub fn relocations(&self) -> &[Relocation] {
        self.server_maintenance.as_ref().map_or(&[], |it| &it.relocations)
    }

    pub fn relocation_of(&self, server: &str) -> Option<&Relocation> {
        self.relocations().iter().find(|it| it.server == server)
    }

    /// Takes a server to be there; `None` is where the file has it, with connections that are made anew. False if it
    /// is there already, is none of the pool's, or is not asked to tell.
    pub fn relocate(&mut self, server: &str, to: Option<&Address>) -> bool {
        let Some(maintenance) = &mut self.server_maintenance else { return false };
        let Some(state) = self.servers.iter_mut().find(|it| it.name == server) else {
            return false;
        };
        if to.is_some() && state.endpoint.address().as_ref() == to {
            return false;
        }
        let relocations = &mut maintenance.relocations;
        let at = relocations.iter().position(|it| it.server == server).unwrap_or_else(|| {
            let (server, configured) = (server.to_owned(), state.endpoint.clone());
            relocations.push(Relocation { server, configured, renewals: 0 });
            relocations.len() - 1
        });
        let relocation = &mut relocations[at];
        relocation.renewals = relocation.renewals.wrapping_add(1);
        state.endpoint = match to {
            Some(address) => Endpoint::from(address.clone()),
            None => relocation.configured.clone(),
        };
        true
    }
}

impl Snapshot {
    /// Whether any servers are asked to tell of their maintenance.
    pub fn has_server_maintenance(&self) -> bool {
        self.pools.iter().any(|pool| pool.server_maintenance.is_some())
    }

    /// Takes over where servers have moved from another snapshot, if this one has them where that one had them.
    pub fn keep_relocations(&mut self, from: &Self) {
        for pool in &mut self.pools {
            let before = from.pools.iter().find(|it| it.name == pool.name);
            let (Some(before), Some(maintenance)) = (before, &mut pool.server_maintenance) else {
                continue;
            };
            for relocation in before.relocations() {
                let is_it = |it: &&super::Server| it.name == relocation.server;
                let now = before.servers.iter().find(is_it).map(|it| it.endpoint.clone());
                let state = pool.servers.iter_mut().find(|it| it.name == relocation.server);
                if let (Some(now), Some(state)) = (now, state)
                    && state.endpoint == relocation.configured
                    && maintenance.relocations.iter().all(|it| it.server != relocation.server)
                {
                    state.endpoint = now;
                    maintenance.relocations.push(relocation.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(servers: &str) -> Snapshot {
        let yaml = format!(
            "a: {{listen: 127.0.0.1:1, redis: true, server_maintenance: true, servers: [{servers}]}}\n"
        );
        let loaded = crate::parse("t.yml", &yaml, &crate::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    fn at(port: u16) -> Address {
        Address { host: "10.0.0.9".to_owned(), port }
    }

    #[test]
    fn a_server_moves_and_comes_back() {
        let mut pool = snapshot("h:1:1 s1, h:2:1 s2").pools.remove(0);
        let home = pool.servers[1].endpoint.clone();
        assert!(pool.relocate("s2", Some(&at(7))) && !pool.relocate("s2", Some(&at(7))));
        assert_eq!(pool.servers[1].endpoint.address(), Some(at(7)));
        assert!(pool.relocate("s2", Some(&at(8))));
        assert_eq!(pool.relocation_of("s2").map(|it| it.configured.clone()), Some(home.clone()));
        assert!(pool.relocate("s2", None) && pool.relocate("s2", None));
        assert_eq!(pool.servers[1].endpoint, home);
        assert_eq!(pool.relocation_of("s2").map(|it| it.renewals), Some(4));
        assert!(!pool.relocate("s3", Some(&at(7))) && pool.relocation_of("s1").is_none());
        pool.server_maintenance = None;
        assert!(!pool.relocate("s1", Some(&at(7))));
    }

    #[test]
    fn another_file_takes_over_where_servers_are_that_it_has_where_they_were() {
        let mut before = snapshot("h:1:1 s1, h:2:1 s2");
        before.pools[0].relocate("s1", Some(&at(7)));
        before.pools[0].relocate("s2", Some(&at(8)));
        let mut after = snapshot("h:1:2 s1, h:3:1 s2");
        after.keep_relocations(&before);
        after.keep_relocations(&before);
        let addresses: Vec<_> =
            after.pools[0].servers.iter().map(|it| it.endpoint.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.9:7", "h:3"]);
        assert_eq!(after.pools[0].relocations().len(), 1);
        let mut off = snapshot("h:1:1 s1, h:2:1 s2");
        off.pools[0].server_maintenance = None;
        off.keep_relocations(&before);
        assert_eq!(off.pools[0].servers[0].endpoint.to_string(), "h:1");
    }
}
