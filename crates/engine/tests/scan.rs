//! SCAN over several servers, whose tables grow and shrink while it walks.

use std::collections::BTreeMap;

use crate::world::{World, pool, redis};
use cashew_engine::ConnId;
use proptest::prelude::*;

/// A server's keys in the buckets of a table that is walked as Redis walks its own: the bits of the
/// cursor that number the buckets count in reversed order.
struct Table {
    bits: u32,
    /// By key: its hash.
    keys: BTreeMap<String, u64>,
}

impl Table {
    fn new() -> Self {
        Self { bits: 2, keys: BTreeMap::new() }
    }

    fn insert(&mut self, key: String) {
        let hash = key.bytes().fold(7, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) ^ hash >> 31
        });
        self.keys.insert(key, hash);
        while self.keys.len() > 1 << self.bits {
            self.bits += 1;
        }
    }

    fn remove(&mut self, key: &str) {
        self.keys.remove(key);
        while self.bits > 2 && self.keys.len() < 1 << (self.bits - 2) {
            self.bits -= 1;
        }
    }

    /// The keys of at least `count` buckets from the cursor on, and the next cursor.
    fn scan(&self, mut cursor: u64, count: usize) -> (u64, Vec<&str>) {
        let mask = (1u64 << self.bits) - 1;
        let mut page = Vec::new();
        for _ in 0..count {
            let here = self.keys.iter().filter(|(_, hash)| *hash & mask == cursor & mask);
            page.extend(here.map(|(key, _)| key.as_str()));
            cursor = (cursor | !mask).reverse_bits().wrapping_add(1).reverse_bits();
            if cursor == 0 {
                break;
            }
        }
        (cursor, page)
    }

    /// The reply to the request, which is a SCAN with a COUNT.
    fn reply(&self, request: &[u8]) -> String {
        let words: Vec<&str> = std::str::from_utf8(request).unwrap().split("\r\n").collect();
        let [_, _, "SCAN", _, cursor, _, "COUNT", _, count, ""] = words[..] else {
            panic!("{words:?}");
        };
        let (next, page) = self.scan(cursor.parse().unwrap(), count.parse().unwrap());
        let next = next.to_string();
        let keys: String = page.iter().map(|key| format!("${}\r\n{key}\r\n", key.len())).collect();
        format!("*2\r\n${}\r\n{next}\r\n*{}\r\n{keys}", next.len(), page.len())
    }
}

/// What happens between two pages.
#[derive(Clone, Debug)]
enum Step {
    Add { server: usize, keys: usize },
    Remove { server: usize, keys: usize },
}

fn step(servers: usize) -> impl Strategy<Value = Step> {
    let keys = 0..80usize;
    prop_oneof![
        (0..servers, keys.clone()).prop_map(|(server, keys)| Step::Add { server, keys }),
        (0..servers, keys).prop_map(|(server, keys)| Step::Remove { server, keys }),
    ]
}

/// The cursor and the keys of a page.
fn page(reply: &[u8]) -> (String, Vec<String>) {
    let reply = std::str::from_utf8(reply).unwrap();
    let mut lines = reply.split("\r\n");
    assert_eq!((lines.next(), lines.next().is_some()), (Some("*2"), true), "{reply}");
    let cursor = lines.next().unwrap().to_owned();
    assert!(cursor.parse::<u64>().unwrap() < 1 << 63);
    let count: usize = lines.next().unwrap()[1..].parse().unwrap();
    let keys: Vec<String> = lines.skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(keys.len(), count, "{reply}");
    (cursor, keys)
}

/// Walks over all servers, with what `between` does after each page; every page is asked by another
/// worker, of which each has an engine of its own. Returns all that was found.
fn walk(
    tables: &mut [Table],
    counts: &[usize],
    mut between: impl FnMut(&mut [Table], usize),
) -> Vec<String> {
    let snapshot = pool("redis: true\npreconnect: true", tables.len());
    let mut workers: Vec<World> = (0..2).map(|_| World::new(&snapshot)).collect();
    let mut lanes: Vec<Vec<ConnId>> = Vec::new();
    for worker in &mut workers {
        lanes.push((0..tables.len()).map(|server| worker.accept(server as u32)).collect());
    }
    let clients: Vec<ConnId> = workers.iter_mut().map(World::client).collect();
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    for turn in 0.. {
        assert!(turn < 10_000, "the walk does not end");
        let at = turn % workers.len();
        let worker = &mut workers[at];
        let count = counts[turn % counts.len()];
        worker.send(clients[at], redis(&format!("SCAN {cursor} COUNT {count}")));
        let mut asked = 0;
        for (table, &lane) in tables.iter().zip(&lanes[at]) {
            let request = worker.received(lane);
            if !request.is_empty() {
                asked += 1;
                worker.send(lane, table.reply(&request));
            }
        }
        assert_eq!(asked, 1);
        let keys;
        (cursor, keys) = page(&worker.received(clients[at]));
        found.extend(keys);
        if cursor == "0" {
            break;
        }
        between(tables, turn);
    }
    workers.iter().for_each(World::assert_idle);
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_key_comes_once_while_no_table_changes(
        sizes in prop::collection::vec(0..200usize, 2..6),
        counts in prop::collection::vec(1..30usize, 1..4),
    ) {
        let mut tables: Vec<Table> = sizes.iter().map(|_| Table::new()).collect();
        let mut all = Vec::new();
        for (server, (table, size)) in tables.iter_mut().zip(&sizes).enumerate() {
            for n in 0..*size {
                table.insert(format!("{server}:{n}"));
                all.push(format!("{server}:{n}"));
            }
        }
        let mut found = walk(&mut tables, &counts, |_, _| {});
        found.sort_unstable();
        all.sort_unstable();
        prop_assert_eq!(found, all);
    }

    #[test]
    fn no_key_that_stays_is_left_out_while_tables_change(
        (servers, steps) in (2..5usize).prop_flat_map(|servers| {
            (Just(servers), prop::collection::vec(step(servers), 1..60))
        }),
        counts in prop::collection::vec(1..10usize, 1..4),
    ) {
        let mut tables: Vec<Table> = (0..servers).map(|_| Table::new()).collect();
        for (server, table) in tables.iter_mut().enumerate() {
            (0..30).for_each(|n| table.insert(format!("stable:{server}:{n}")));
        }
        let mut names = 0;
        let mut found = walk(&mut tables, &counts, |tables, turn| {
            let Some(step) = steps.get(turn) else { return };
            match *step {
                Step::Add { server, keys } => for _ in 0..keys {
                    names += 1;
                    tables[server].insert(format!("fleeting:{names}"));
                },
                Step::Remove { server, keys } => {
                    let is_fleeting = |key: &&String| key.starts_with("fleeting");
                    let gone: Vec<String> =
                        tables[server].keys.keys().filter(is_fleeting).take(keys).cloned().collect();
                    gone.iter().for_each(|key| tables[server].remove(key));
                }
            }
        });
        found.retain(|key| key.starts_with("stable"));
        found.sort_unstable();
        found.dedup();
        prop_assert_eq!(found.len(), 30 * servers);
    }
}
