//! Which servers sources have named, on disk: for a start at which they do not answer. And where servers have said that
//! they moved, which nobody says again.

use std::net::IpAddr;
use std::path::Path;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Address, Pool, Relocation, Server};
use serde::{Deserialize, Serialize};

use crate::state_file;

/// What is unknown is ignored, so that another version may say more.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Found {
    pools: Vec<FoundOfPool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    moved: Vec<MovedServer>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FoundOfPool {
    pool: String,
    /// In words, without what is secret.
    source: String,
    servers: Vec<Server>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MovedServer {
    pool: String,
    server: String,
    configured: Address,
    to: Address,
}

/// Writes the servers of all pools that have any from a source.
pub(crate) fn save(path: &Path, snapshot: &Snapshot) -> std::io::Result<()> {
    let found = |pool: &Pool| {
        Some(FoundOfPool {
            pool: pool.name.clone(),
            source: pool.source()?.to_string(),
            servers: pool.found().to_vec(),
        })
    };
    let pools = snapshot.pools.iter().filter_map(found);
    let pools = pools.filter(|it| !it.servers.is_empty()).collect();
    state_file::save(path, &Found { pools, moved: moved_servers(snapshot) })
}

/// Takes from there which servers pools have for which none are known. Returns the names of these pools.
pub(crate) fn load(path: &Path, snapshot: &mut Snapshot) -> Result<Vec<String>, String> {
    Ok(take_found(state_file::load(path)?, snapshot))
}

fn take_found(Found { pools, .. }: Found, snapshot: &mut Snapshot) -> Vec<String> {
    let mut taken = Vec::new();
    let unknown = |pool: &&mut Pool| pool.source().is_some() && pool.found().is_empty();
    for pool in snapshot.pools.iter_mut().filter(unknown) {
        let source = pool.source().map(ToString::to_string).unwrap_or_default();
        let is_its = |it: &&FoundOfPool| (&it.pool, &it.source) == (&pool.name, &source);
        if let Some(found) = pools.iter().find(is_its)
            && pool.set_found(&found.servers)
        {
            taken.push(pool.name.clone());
        }
    }
    taken
}

/// Servers that are not where the file has them. Where that is a name, it leads to where they are.
fn moved_servers(snapshot: &Snapshot) -> Vec<MovedServer> {
    let of_pool = |pool: &Pool| {
        let moved = |it: &Relocation| {
            let server = pool.servers.iter().find(|server| server.name == it.server)?;
            let (configured, to) = (it.configured.address()?, server.endpoint.address()?);
            let is_address = configured.host.parse::<IpAddr>().is_ok();
            (is_address && configured != to).then(|| MovedServer {
                pool: pool.name.clone(),
                server: it.server.clone(),
                configured,
                to,
            })
        };
        pool.relocations().iter().filter_map(moved).collect::<Vec<_>>()
    };
    snapshot.pools.iter().flat_map(of_pool).collect()
}

/// Takes from there where servers have moved that the file has where they were. Returns a line for each.
pub(crate) fn load_relocations(
    path: &Path,
    snapshot: &mut Snapshot,
) -> Result<Vec<String>, String> {
    Ok(take_relocations(state_file::load(path)?, snapshot))
}

fn take_relocations(Found { moved, .. }: Found, snapshot: &mut Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for MovedServer { pool: name, server, configured, to } in moved {
        let Some(pool) = snapshot.pools.iter_mut().find(|it| it.name == name) else { continue };
        let is_there =
            |it: &Server| it.name == server && it.endpoint.address().as_ref() == Some(&configured);
        if pool.servers.iter().any(is_there) && pool.relocate(&server, Some(&to)) {
            lines.push(format!(
                "pool '{name}': server '{server}' is {to} instead of {configured}, as it said before this start"
            ));
        }
    }
    lines
}

/// Takes all of a file's text.
pub(crate) fn take_text(text: &[u8], snapshot: &mut Snapshot) -> serde_json::Result<()> {
    take_found(serde_json::from_slice(text)?, snapshot);
    take_relocations(serde_json::from_slice(text)?, snapshot);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cashew_config::parse_server;

    use super::*;

    fn snapshot(file: &str) -> Snapshot {
        let yaml = format!("a: {{listen: 127.0.0.1:1, servers_from: {{file: {file}}}}}\n");
        let loaded = cashew_config::parse("t.yml", &yaml, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    #[test]
    fn servers_that_moved_are_there_after_a_start_unless_the_file_has_them_elsewhere() {
        let directory = std::env::temp_dir().join(format!("cashew-moved-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("state");
        let snapshot = |servers: &str| {
            let yaml = format!(
                "a: {{listen: 127.0.0.1:1, redis: true, server_maintenance: true, servers: [{servers}]}}\n"
            );
            let loaded = cashew_config::parse("t.yml", &yaml, &cashew_config::Context::of_system());
            loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
        };
        let servers = "'10.0.0.1:1:1 s1', 'name:2:1 s2', '10.0.0.1:3:1 s3'";
        let mut saved = snapshot(servers);
        let at = |port| Address { host: "10.0.0.9".to_owned(), port };
        assert!(saved.pools[0].relocate("s1", Some(&at(7))));
        assert!(saved.pools[0].relocate("s2", Some(&at(8))));
        assert!(saved.pools[0].relocate("s3", None));
        save(&path, &saved).unwrap();
        let mut loaded = snapshot(servers);
        assert_eq!(load_relocations(&path, &mut loaded).unwrap().len(), 1);
        assert_eq!(loaded.pools[0].servers[0].endpoint.to_string(), "10.0.0.9:7");
        assert_eq!(loaded.pools[0].servers[1].endpoint.to_string(), "name:2");
        let mut other = snapshot("'10.0.0.2:1:1 s1'");
        assert_eq!(load_relocations(&path, &mut other).unwrap(), Vec::<String>::new());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_was_saved_is_loaded_where_no_server_is_known() {
        let directory = std::env::temp_dir().join(format!("cashew-found-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("state");
        assert!(load(&path, &mut snapshot("/s")).unwrap_err().contains("No such file"));
        let one = parse_server("10.0.0.1:1:2 s1", "").unwrap();
        let mut saved = snapshot("/s");
        saved.pools[0].set_found(std::slice::from_ref(&one));
        for _ in 0..2 {
            save(&path, &saved).unwrap();
        }
        let mut loaded = snapshot("/s");
        assert_eq!(load(&path, &mut loaded).unwrap(), ["a"]);
        assert_eq!(loaded.pools[0].found(), [one]);
        // Of another source nothing is known, and what is known stays.
        assert_eq!(load(&path, &mut snapshot("/t")).unwrap(), Vec::<String>::new());
        assert_eq!(load(&path, &mut loaded).unwrap(), Vec::<String>::new());
        for text in ["", "{\"pools\":[{}]}"] {
            fs::write(&path, text).unwrap();
            load(&path, &mut snapshot("/s")).unwrap_err();
        }
        fs::write(&path, "{\"colour\":\"green\"}").unwrap();
        assert_eq!(load(&path, &mut snapshot("/s")).unwrap(), Vec::<String>::new());
        fs::remove_dir_all(&directory).unwrap();
    }
}
