//! Asking once, before anybody serves.

use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use tracing::warn;

use crate::members::Members;
use crate::watch::{News, Watch};

/// Asks the Sentinels of groups whose primaries are not known, and notes what a majority says. Takes no
/// longer than `timeout`. Returns a line for each group that nothing is known of.
pub fn ask_once(snapshot: &mut Snapshot, timeout: Duration) -> Vec<String> {
    let start = Instant::now();
    let deadline = start + timeout;
    let unknown = |snapshot: &Snapshot| {
        let groups = snapshot.groups().filter(|(.., endpoint)| endpoint.is_unknown());
        let names = groups.map(|(pool, group, _)| (pool.name.clone(), group.clone()));
        names.collect::<Vec<_>>()
    };
    let mut left = unknown(snapshot);
    if left.is_empty() {
        return Vec::new();
    }
    let mut asked = snapshot.clone();
    asked.pools.retain(|pool| left.iter().any(|(name, _)| *name == pool.name));
    let mut watch = Watch::quiet(&asked, start);
    let mut failures: Vec<(String, String)> = Vec::new();
    while !left.is_empty() {
        let now = Instant::now();
        if now >= deadline {
            break;
        }
        watch.advance(now);
        while let Some(news) = watch.poll_news() {
            match news {
                News::Primary { pool, server, to, config_epoch, .. } => {
                    let is_there =
                        left.iter().any(|(its, group)| (its, &group.server) == (&pool, &server));
                    if is_there {
                        snapshot.set_primary(&pool, &server, &to, config_epoch);
                        left.retain(|(its, group)| (its, &group.server) != (&pool, &server));
                    }
                }
                News::Sentinel { pool, sentinel, failure: Some(why) } => {
                    failures.push((pool, format!("{sentinel} {why}")));
                }
                News::Sentinel { .. }
                | News::Group { .. }
                | News::Replicas { .. }
                | News::Down { .. }
                | News::Successor { .. } => {}
            }
        }
        if let Err(error) = watch.wait(&Members::default(), None, Some(deadline)) {
            warn!("cannot wait for Sentinels: {error}");
            break;
        }
    }
    let line = |(pool, group): (String, cashew_config::snapshot::Group)| {
        let why: Vec<&str> =
            failures.iter().filter(|(its, _)| *its == pool).map(|(_, why)| &**why).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) };
        format!(
            "pool '{pool}': no majority of the Sentinels says where the primary of '{}' ({}) is{why}",
            group.server, group.master
        )
    };
    left.into_iter().map(line).collect()
}
