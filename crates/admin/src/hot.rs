//! Keys that are hot or big: `/hot.json`, a table of `/state.json`, and some for `/metrics`.

use std::collections::BTreeMap;

use cashew_metrics::{HotAct, HotDeed, HotKey, HotKeys, Ranking};
use serde::{Deserialize, Serialize};

use crate::printable;
use crate::query;
use crate::section::{Cell, Column, ROWS_MAX, Section, Unit};
use crate::source::Source;

/// Keys of each pool that are listed unless the query has a `limit`.
const LIMIT: usize = 10;
const LIMIT_MAX: usize = 100;
/// Keys of each pool in `/metrics`, and the share that they have at least.
const METRICS_MAX: usize = 5;
const METRICS_SHARE_MIN: f64 = 0.01;

/// The hottest keys by each ranking, for the page and `cashew top`.
pub(crate) struct HotTable;

impl Section for HotTable {
    fn name(&self) -> &'static str {
        "hot"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            Column { name: "by", unit: Unit::Text },
            Column { name: "pool", unit: Unit::Text },
            Column { name: "server", unit: Unit::Text },
            Column { name: "key", unit: Unit::Text },
            Column { name: "share", unit: Unit::Text },
            Column { name: "weight", unit: Unit::Text },
        ];
        &COLUMNS
    }

    fn rows(&self, source: &Source) -> Vec<Vec<Cell>> {
        // Each pool is to have some rows.
        let pools = source.observed_pools().len();
        let limit = (ROWS_MAX / (pools * Ranking::ALL.len()).max(1)).clamp(1, LIMIT);
        let mut rows = Vec::new();
        for ranking in Ranking::ALL {
            rows.extend(keys(source, ranking, &Filter { limit, ..Filter::default() }).map(row));
        }
        rows
    }
}

fn row(record: HotRecord) -> Vec<Cell> {
    let share = record.share_percent.map(|share| Cell::Text(format!("{share:.1} %")));
    let weight = Ranking::named(&record.by).map(|ranking| weight(ranking, record.weight));
    vec![
        Cell::Text(record.by),
        Cell::Text(record.pool),
        Cell::Text(record.server),
        Cell::Text(record.key),
        share.unwrap_or(Cell::Nothing),
        weight.map_or(Cell::Nothing, Cell::Text),
    ]
}

/// With its unit.
fn weight(ranking: Ranking, weight: u64) -> String {
    let in_units = |units: [(&str, f64); 3], small: &str| {
        let weight = weight as f64;
        let unit = units.into_iter().find(|(_, size)| weight >= *size);
        unit.map_or_else(
            || format!("{weight:.0}{small}"),
            |(name, size)| format!("{:.1} {name}", weight / size),
        )
    };
    match ranking {
        Ranking::Requests => in_units([("G", 1e9), ("M", 1e6), ("k", 1e4)], ""),
        Ranking::Bytes | Ranking::Size => {
            in_units([("GiB", 1_073_741_824.0), ("MiB", 1_048_576.0), ("KiB", 1024.0)], " B")
        }
        Ranking::Time => in_units([("s", 1e6), ("ms", 1e3), ("us", 1.0)], " us"),
    }
}

/// What `/hot.json` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotListing {
    pub by: String,
    /// Of weights: requests, bytes, or microseconds.
    pub unit: String,
    /// Pool by pool, the heaviest first.
    pub keys: Vec<HotRecord>,
}

/// A hot key as operators and tools get it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotRecord {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    pub pool: String,
    pub server: String,
    /// Escaped. It ends in `…` if it is longer than what is kept of it.
    pub key: String,
    /// Bytes of the whole key.
    pub key_bytes: u64,
    /// Of all that the pool does, in percent. `None` of sizes.
    pub share_percent: Option<f64>,
    /// What was surely seen of it, decayed; the largest request or reply for sizes.
    pub weight: u64,
    /// By so much the weight may be higher.
    pub unseen: u64,
    /// By what replies to reads of it are kept, or it is split, if so: `rule` or `command`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kept: String,
}

#[derive(Default)]
struct Filter {
    pool: Option<String>,
    server: Option<String>,
    /// For each pool.
    limit: usize,
}

/// Pool by pool, the heaviest first.
fn keys<'a>(
    source: &'a Source,
    ranking: Ranking,
    filter: &'a Filter,
) -> impl Iterator<Item = HotRecord> + 'a {
    let pools = source.observed_pools().into_iter();
    let pools = pools.filter(|pool| filter.pool.as_ref().is_none_or(|name| *name == pool.name));
    pools.flat_map(move |pool| {
        source.beat();
        let HotKeys { keys, total } = source.hot_keys(pool.id, ranking);
        let mut acts = source.shared().hot_acts().all();
        acts.retain(|act| act.is_of_pool(pool.name) && act.deed.is_of_caches());
        let record = move |key: HotKey| {
            let server = pool.servers.get(key.server as usize);
            HotRecord {
                by: ranking.name().to_owned(),
                pool: pool.name.to_owned(),
                server: server.map_or_else(String::new, |server| server.name.clone()),
                key: printable::key(&key),
                key_bytes: key.len as u64,
                share_percent: share(key.weight, total)
                    .map(|share| (share * 10_000.0).round() / 100.0),
                weight: key.weight,
                unseen: key.unseen,
                kept: acts
                    .iter()
                    .find(|act| act.is_about_hot(&key))
                    .map_or_else(String::new, |act| act.cause.name().to_owned()),
            }
        };
        keys.into_iter()
            .map(record)
            .filter(|key| filter.server.as_ref().is_none_or(|name| *name == key.server))
            .take(filter.limit)
    })
}

/// From 0 to 1; `None` where there is no whole.
fn share(weight: u64, total: u64) -> Option<f64> {
    (total > 0).then(|| (weight as f64 / total as f64).min(1.0))
}

/// The hot keys that the query asks for, as JSON in one line. An error says what is wrong with the query.
pub(crate) fn json(source: &Source, query: &str) -> Result<Vec<u8>, String> {
    let mut ranking = Ranking::Requests;
    let mut filter = Filter { limit: LIMIT, ..Filter::default() };
    for (name, value) in query::pairs(query) {
        match name {
            "by" => {
                let named = Ranking::named(&value);
                ranking = named.ok_or("by is one of requests, bytes, time and size")?;
            }
            "limit" => filter.limit = query::limit(&value, LIMIT_MAX)?,
            "pool" if !source.has_pool(&value) => {
                return Err(format!("there is no pool '{value}'"));
            }
            "pool" => filter.pool = Some(value),
            "server" => filter.server = Some(value),
            // Others may add something to keep caches away.
            _ => {}
        }
    }
    if let Some(server) = &filter.server
        && !source.has_server(filter.pool.as_deref(), server)
    {
        return Err(format!("there is no server '{server}'"));
    }
    let keys = keys(source, ranking, &filter).map(|key| HotRecord { by: String::new(), ..key });
    let unit = match ranking {
        Ranking::Requests => "requests",
        Ranking::Bytes | Ranking::Size => "bytes",
        Ranking::Time => "us",
    };
    let listing =
        HotListing { by: ranking.name().to_owned(), unit: unit.to_owned(), keys: keys.collect() };
    let mut line = serde_json::to_vec(&listing).expect("a listing is plain JSON");
    line.push(b'\n');
    Ok(line)
}

/// Pools, and about how many keys of each this is done.
pub(crate) fn counts(source: &Source, deed: HotDeed) -> Vec<(String, u64)> {
    let acts = source.shared().hot_acts().all();
    let pools = source.observed_pools().into_iter().map(|pool| {
        let is_one = |act: &&HotAct| act.deed.is_like(deed) && act.is_of_pool(pool.name);
        let own = acts.iter().filter(is_one).count();
        (pool.name.to_owned(), own as u64)
    });
    pools.filter(|(_, own)| *own > 0).collect()
}

/// Pool, key and share of those that `/metrics` has: few, and each once.
pub(crate) fn shares(source: &Source) -> Vec<(String, String, f64)> {
    let mut found = Vec::new();
    for pool in source.observed_pools() {
        source.beat();
        let HotKeys { keys, total } = source.hot_keys(pool.id, Ranking::Requests);
        // Long keys that begin alike look the same here, and no sample may be there twice.
        let mut shares: BTreeMap<String, f64> = BTreeMap::new();
        for key in keys.iter().take(METRICS_MAX) {
            let share = share(key.weight, total).filter(|share| *share > METRICS_SHARE_MIN);
            if let Some(share) = share {
                *shares.entry(printable::key(key)).or_default() += share;
            }
        }
        found.extend(shares.into_iter().map(|(key, share)| (pool.name.to_owned(), key, share)));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cashew_metrics::{HotCause, HotSample, PoolCounter, Segments, monotonic_ms};

    use super::*;
    use crate::testing::{snapshot, source_of};

    const POOLS: [(&str, &[&str]); 2] = [("alpha", &["one", "two"]), ("beta", &["three"])];

    fn source() -> (Source, Arc<Segments>) {
        let (source, segments) = source_of(snapshot(&POOLS), 2);
        for pool in 0..2 {
            segments.writer(0).add_pool(segments.layout().pool(pool), PoolCounter::Requests, 1);
        }
        (source, segments)
    }

    fn note(segments: &Arc<Segments>, pool: usize, key: &[u8], weight: u64) {
        let server = u32::from(key.starts_with(b"two"));
        let sample =
            HotSample { key, server, weight, request_bytes: 10, reply_bytes: 1000, server_us: 50 };
        let pool = segments.layout().pool(pool);
        segments.writer(1).note_hot(pool, &sample, monotonic_ms() * 1000);
    }

    fn listed(source: &Source, query: &str) -> HotListing {
        serde_json::from_slice(&json(source, query).unwrap()).unwrap()
    }

    #[test]
    fn a_query_chooses_keys_and_shares_are_of_the_pool() {
        let (source, segments) = source();
        note(&segments, 0, b"one:a", 60);
        note(&segments, 0, b"two:b\x1b", 30);
        note(&segments, 0, b"one:c", 10);
        note(&segments, 1, b"<i>", 5);
        let keys = |query: &str| -> Vec<String> {
            listed(&source, query).keys.into_iter().map(|it| it.key).collect()
        };
        assert_eq!(keys(""), ["one:a", r"two:b\x1b", "one:c", "<i>"]);
        assert_eq!(keys("pool=alpha&limit=1"), ["one:a"]);
        assert_eq!(keys("limit=1"), ["one:a", "<i>"]);
        assert_eq!(keys("server=two&by=time"), [r"two:b\x1b"]);
        let listing = listed(&source, "server=two");
        assert_eq!((listing.by.as_str(), listing.unit.as_str()), ("requests", "requests"));
        let HotRecord { pool, server, share_percent, weight, .. } = &listing.keys[0];
        assert_eq!((pool.as_str(), server.as_str()), ("alpha", "two"));
        assert_eq!((*share_percent, *weight), (Some(30.0), 30));
        assert!(counts(&source, HotDeed::Cache).is_empty());
        let act = HotAct::of_key("alpha", b"one:c", HotCause::Command);
        source.shared().hot_acts().set(&[act]);
        let all = listed(&source, "limit=3").keys;
        assert_eq!((all[1].kept.as_str(), all[2].kept.as_str()), ("", "command"));
        assert_eq!(counts(&source, HotDeed::Cache), [("alpha".to_owned(), 1)]);
        assert!(counts(&source, HotDeed::Move).is_empty());
        let split = HotDeed::Split { copies: 3 };
        let act = HotAct { deed: split, ..HotAct::of_key("alpha", b"one:c", HotCause::Rule) };
        source.shared().hot_acts().set(&[act]);
        assert_eq!(listed(&source, "limit=3").keys[2].kept, "rule");
        assert_eq!(counts(&source, split), [("alpha".to_owned(), 1)]);
        assert!(counts(&source, HotDeed::Cache).is_empty());
        let size = listed(&source, "by=size&pool=beta").keys.remove(0);
        assert_eq!((size.share_percent, size.weight, size.key_bytes), (None, 1000, 3));
        for (query, why) in [
            ("by=x", "by is one of requests, bytes, time and size"),
            ("pool=x", "there is no pool 'x'"),
            ("server=x", "there is no server 'x'"),
            ("server=one&pool=beta", "there is no server 'one'"),
            ("limit=101", "limit is a number from 1 to 100"),
        ] {
            assert_eq!(json(&source, query).unwrap_err(), why);
        }
    }

    #[test]
    fn the_table_has_all_rankings_with_units() {
        let (source, segments) = source();
        note(&segments, 0, b"k", 60);
        let text = |cell: &Cell| match cell {
            Cell::Text(text) => text.clone(),
            Cell::Number(_) | Cell::Nothing => "-".to_owned(),
        };
        let rows: Vec<String> = HotTable
            .rows(&source)
            .iter()
            .map(|row| row.iter().map(text).collect::<Vec<_>>().join("|"))
            .collect();
        let expected = [
            "requests|alpha|one|k|100.0 %|60",
            "bytes|alpha|one|k|100.0 %|59.2 KiB",
            "time|alpha|one|k|100.0 %|3.0 ms",
            "size|alpha|one|k|-|1000 B",
        ];
        assert_eq!(rows, expected);
        assert_eq!(HotTable.columns().len(), 6);
    }

    #[test]
    fn metrics_have_few_keys_and_none_twice() {
        let (source, segments) = source();
        for (end, weight) in [(b'x', 40), (b'y', 30)] {
            let mut key = vec![b'k'; 60];
            key.push(end);
            note(&segments, 0, &key, weight);
        }
        for at in 0..9 {
            note(&segments, 0, format!("one:{at}").as_bytes(), 3);
        }
        note(&segments, 1, b"all", 1000);
        note(&segments, 1, b"rare", 5);
        let shares = shares(&source);
        let alpha: Vec<_> = shares.iter().filter(|(pool, ..)| pool == "alpha").collect();
        assert_eq!(alpha.len(), 4);
        let (_, key, share) = alpha.iter().max_by(|a, b| a.2.total_cmp(&b.2)).unwrap();
        assert_eq!(*key, "k".repeat(48) + "…");
        assert!((share - 70.0 / 97.0).abs() < 1e-9);
        let beta: Vec<_> = shares.iter().filter(|(pool, ..)| pool == "beta").collect();
        assert!(beta.len() == 1 && beta[0].1 == "all");
    }

    #[test]
    fn a_pool_without_samples_has_no_keys() {
        let mut config = snapshot(&POOLS);
        config.pools[0].hot_keys = false;
        let (source, segments) = source_of(config, 2);
        segments.writer(0).add_pool(segments.layout().pool(0), PoolCounter::Requests, 1);
        note(&segments, 0, b"k", 60);
        note(&segments, 1, b"k", 60);
        assert!(listed(&source, "").keys.is_empty() && shares(&source).is_empty());
        assert!(HotTable.rows(&source).is_empty());
    }
}
