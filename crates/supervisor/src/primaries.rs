//! Where the primaries of groups are, on disk: for a start at which no majority of the Sentinels answers.

use std::io;
use std::path::Path;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Address, Lineage};
use serde::{Deserialize, Serialize};

use crate::state_file;

/// What is unknown is ignored, so that another version may say more.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Primaries {
    groups: Vec<Primary>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Primary {
    pool: String,
    server: String,
    /// What Sentinels call the group.
    master: String,
    address: Address,
    config_epoch: Option<u64>,
    #[serde(default)]
    lineage: Lineage,
}

/// Writes where they are, all of it or nothing.
pub(crate) fn save(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let group = |(pool, group, endpoint): (
        &cashew_config::snapshot::Pool,
        &cashew_config::snapshot::Group,
        &cashew_config::snapshot::Endpoint,
    )| {
        Some(Primary {
            pool: pool.name.clone(),
            server: group.server.clone(),
            master: group.master.clone(),
            address: endpoint.address()?,
            config_epoch: group.config_epoch,
            lineage: group.lineage.clone(),
        })
    };
    let primaries = Primaries { groups: snapshot.groups().filter_map(group).collect() };
    state_file::save(path, &primaries)
}

/// Takes from there where the primaries are of which that is not known. Also where a majority of the
/// Sentinels names a server that was superseded, as they do until they have heard of a promotion.
/// Returns a line for each.
pub(crate) fn load(path: &Path, snapshot: &mut Snapshot) -> Result<Vec<String>, String> {
    Ok(take(state_file::load(path)?, path, snapshot))
}

/// Takes all of a file's text.
pub(crate) fn take_text(text: &[u8], snapshot: &mut Snapshot) -> serde_json::Result<()> {
    take(serde_json::from_slice(text)?, Path::new("/state"), snapshot);
    Ok(())
}

fn take(primaries: Primaries, path: &Path, snapshot: &mut Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for Primary { pool, server, master, address, config_epoch, lineage } in primaries.groups {
        let is_wanted = snapshot.groups().any(|(its, group, endpoint)| {
            let is_superseded = |named: &Address| {
                lineage.superseded.contains(named) && group.config_epoch <= config_epoch
            };
            (&its.name, &group.server, &group.master) == (&pool, &server, &master)
                && endpoint.address().as_ref().is_none_or(is_superseded)
        });
        if is_wanted && address.port > 0 && !address.host.is_empty() {
            snapshot.set_primary(&pool, &server, &address, config_epoch);
            snapshot.set_lineage(&pool, &server, &address, config_epoch, &lineage);
            let path = path.display();
            lines.push(format!(
                "pool '{pool}': the primary of '{server}' ({master}) is taken to be {address}, as {path} says"
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn snapshot() -> Snapshot {
        let yaml = "alpha:\n  listen: 127.0.0.1:1\n  redis: true\n  sentinels: [a:1, b:1]\n  servers:\n   - \
                    {name: s1, sentinel: one}\n   - {name: s2, sentinel: two}\n";
        let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    #[test]
    fn what_was_saved_is_loaded_where_it_is_not_known() {
        let directory =
            std::env::temp_dir().join(format!("cashew-primaries-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("state");
        assert!(load(&path, &mut snapshot()).unwrap_err().contains("No such file"));
        let at = |port| Address { host: "10.0.0.1".to_owned(), port };
        let mut saved = snapshot();
        saved.set_primary("alpha", "s1", &at(1), Some(3));
        saved.set_primary("alpha", "s2", &at(2), None);
        for _ in 0..2 {
            save(&path, &saved).unwrap();
        }
        let mut loaded = snapshot();
        assert!(loaded.set_primary("alpha", "s2", &at(9), Some(9)));
        let lines = load(&path, &mut loaded).unwrap();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("'s1' (one) is taken to be 10.0.0.1:1"), "{lines:?}");
        let found: Vec<_> =
            loaded.groups().map(|(_, group, at)| (group.config_epoch, at.address())).collect();
        assert_eq!(found, [(Some(3), Some(at(1))), (Some(9), Some(at(9)))]);
        // Sentinels name the one before until they have heard of a promotion, by a number that was so
        // before it.
        let lineage = Lineage { superseded: vec![at(9)], ..Lineage::default() };
        saved.set_lineage("alpha", "s2", &at(2), Some(9), &lineage);
        save(&path, &saved).unwrap();
        for (epoch, expected) in [(9, 2), (10, 9)] {
            let mut named = snapshot();
            assert!(named.set_primary("alpha", "s1", &at(1), Some(3)));
            assert!(named.set_primary("alpha", "s2", &at(9), Some(epoch)));
            load(&path, &mut named).unwrap();
            let (.., found) = named.groups().nth(1).unwrap();
            assert_eq!(found.address(), Some(at(expected)));
        }
        // A group of another name is another one.
        let mut other = snapshot();
        other.pools[0].sentinel.as_mut().unwrap().groups[0].master = "another".to_owned();
        assert_eq!(load(&path, &mut other).unwrap().len(), 1);
        for text in ["", "{\"groups\":[{}]}", "{\"groups\":[{\"pool\":1}]}"] {
            fs::write(&path, text).unwrap();
            load(&path, &mut snapshot()).unwrap_err();
        }
        fs::write(&path, "{\"colour\":\"green\"}").unwrap();
        assert_eq!(load(&path, &mut snapshot()).unwrap(), Vec::<String>::new());
        fs::remove_dir_all(&directory).unwrap();
    }
}
