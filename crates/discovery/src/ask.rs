//! Asking once, before anybody serves.

use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::Pool;
use cashew_metrics::EventKind;
use tracing::warn;

use crate::maintenance::ServerMaintenances;
use crate::members::Members;
use crate::watch::{News, Watch};

/// Asks the Sentinels of groups whose primaries are not known, and notes what a majority says, and the seeds of
/// clusters without a map. Takes no longer than `timeout`. Returns a line for each group or cluster that nothing
/// is known of.
pub fn ask_once(snapshot: &mut Snapshot, timeout: Duration) -> Vec<(EventKind, String)> {
    let start = Instant::now();
    let deadline = start + timeout;
    let unknown = |snapshot: &Snapshot| {
        let groups = snapshot.groups().filter(|(.., endpoint)| endpoint.is_unknown());
        let names = groups.map(|(pool, group, _)| (pool.name.clone(), group.clone()));
        names.collect::<Vec<_>>()
    };
    let mut left = unknown(snapshot);
    let without_map = |pool: &&Pool| pool.is_cluster() && pool.cluster_map().is_none();
    let mut clusters: Vec<String> =
        snapshot.pools.iter().filter(without_map).map(|pool| pool.name.clone()).collect();
    if left.is_empty() && clusters.is_empty() {
        return Vec::new();
    }
    let mut asked = snapshot.clone();
    asked.pools.retain(|pool| {
        left.iter().any(|(name, _)| *name == pool.name) || clusters.contains(&pool.name)
    });
    let mut watch = Watch::quiet(&asked, start);
    let mut failures: Vec<(String, String)> = Vec::new();
    loop {
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
                News::Map { pool, map, .. } => {
                    snapshot.set_cluster_map(&pool, &map);
                    clusters.retain(|name| *name != pool);
                }
                News::Seed { pool, seed, failure: Some(why) } => {
                    failures.push((pool, format!("{seed} {why}")));
                }
                News::Sentinel { .. }
                | News::Seed { .. }
                | News::Group { .. }
                | News::Replicas { .. }
                | News::Down { .. }
                | News::Successor { .. } => {}
            }
        }
        if left.is_empty() && clusters.is_empty() {
            break;
        }
        if let Err(error) =
            watch.wait((&Members::default(), &ServerMaintenances::default()), &[], Some(deadline))
        {
            warn!("cannot wait for Sentinels and nodes: {error}");
            break;
        }
    }
    let why = |pool: &str| {
        let why: Vec<&str> =
            failures.iter().filter(|(its, _)| *its == pool).map(|(_, why)| &**why).collect();
        if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) }
    };
    let line = |(pool, group): (String, cashew_config::snapshot::Group)| {
        let why = why(&pool);
        let line = format!(
            "pool '{pool}': no majority of the Sentinels says where the primary of '{}' ({}) is{why}",
            group.server, group.master
        );
        (EventKind::PrimaryUnknown, line)
    };
    let of_cluster = |pool: &String| {
        let why = why(pool);
        let line = format!("pool '{pool}': no seed says which nodes its cluster has{why}");
        (EventKind::MapUnknown, line)
    };
    left.into_iter().map(line).chain(clusters.iter().map(of_cluster)).collect()
}
