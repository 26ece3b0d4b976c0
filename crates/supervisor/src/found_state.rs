//! Which servers sources have named, on disk: for a start at which they do not answer.

use std::path::Path;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Server};
use serde::{Deserialize, Serialize};

use crate::state_file;

/// What is unknown is ignored, so that another version may say more.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Found {
    pools: Vec<FoundOfPool>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FoundOfPool {
    pool: String,
    /// In words, without what is secret.
    source: String,
    servers: Vec<Server>,
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
    state_file::save(path, &Found { pools: pools.filter(|it| !it.servers.is_empty()).collect() })
}

/// Takes from there which servers pools have for which none are known. Returns the names of these pools.
pub(crate) fn load(path: &Path, snapshot: &mut Snapshot) -> Result<Vec<String>, String> {
    let Found { pools } = state_file::load(path)?;
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
    Ok(taken)
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
