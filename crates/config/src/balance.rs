//! Whether the ring gives servers the shares of the keys that their weights are meant to.

use cashew_placement::{Distribution, Hash};

use crate::address::ServerLine;
use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::loops::PoolLines;
use crate::snapshot::{Pool, Protocol, TopologyState};

/// How far off its weight a share is worth knowing of: of ten servers with equal weights one often is.
const OFF_NOTED: f64 = 0.15;
/// So far it is not by chance, but for weights of which `ketama` has too few points.
const OFF_WARNED: f64 = 0.30;
/// Rings of more, over all pools, take their time, and every look at a file would take it.
const SERVERS_MAX: usize = 1000;

/// Notes of each pool the server whose share of the keys is farthest off its weight, or warns of it.
pub(crate) fn check(pools: &[PoolLines<'_>], report: &mut Report<'_>) {
    let servers: usize = pools.iter().map(|(pool, _)| pool.servers.len()).sum();
    if report.has_errors() || servers > SERVERS_MAX {
        return;
    }
    let by_keys = pools.iter().filter(|(pool, _)| pool.protocol != Protocol::Tcp);
    for (pool, lines) in by_keys {
        check_pool(pool, lines, report);
    }
}

fn check_pool(pool: &Pool, lines: &[At<ServerLine>], report: &mut Report<'_>) {
    let Some(Share { name, weight, share, off, others }) = worst(pool) else { return };
    if off.abs() <= OFF_NOTED {
        return;
    }
    let pos = lines.iter().find(|line| line.value.name == name).map_or(Pos::NONE, |line| line.pos);
    let more = match others {
        0 => String::new(),
        1 => "; one other server is off by more than 15%".to_owned(),
        _ => format!("; {others} other servers are off by more than 15%"),
    };
    let message = format!(
        "\"{name}\" gets {:.1}% of the keys, {:.0}% {} than its weight, which is {:.1}%{more}",
        share * 100.0,
        off.abs() * 100.0,
        if off > 0.0 { "more" } else { "less" },
        weight * 100.0,
    );
    let hint = "so ketama spreads these names and weights; other names or weights move keys: see \
                `cashew reload --dry-run`";
    let complaint = Complaint::new(message).hint(hint);
    match off.abs() > OFF_WARNED {
        true => report.warning(pos, complaint),
        false => report.note(pos, complaint),
    }
}

/// What a server has of the keys.
struct Share {
    name: String,
    /// Of all weights.
    weight: f64,
    share: f64,
    /// Part of its weight by which the share is larger.
    off: f64,
    /// How many others are off as well.
    others: usize,
}

/// `None` where shares are exact, or not by a ring.
fn worst(pool: &Pool) -> Option<Share> {
    // These hashes reach but a sliver of the ring, so shares of the ring say nothing.
    let is_even = !matches!(pool.hash, Hash::Crc16 | Hash::Crc32);
    let shards = pool.shards();
    let is_asked = pool.distribution == Distribution::Ketama && !pool.is_one_shard() && is_even;
    if !is_asked || shards.len() < 2 {
        return None;
    }
    let sum: f64 = shards.iter().map(|shard| f64::from(shard.weight)).sum();
    let shares = pool.ring(&TopologyState::whole(pool)).shares(shards.len());
    let off = |(shard, share): (&_, f64)| {
        let shard: &crate::snapshot::ServerGroup = shard;
        let weight = f64::from(shard.weight) / sum;
        Share { name: shard.name.clone(), weight, share, off: share / weight - 1.0, others: 0 }
    };
    let mut all: Vec<Share> = shards.iter().zip(shares).map(off).collect();
    all.sort_by(|a, b| b.off.abs().total_cmp(&a.off.abs()));
    let others = all.iter().skip(1).filter(|it| it.off.abs() > OFF_NOTED).count();
    all.into_iter().next().map(|worst| Share { others, ..worst })
}
