//! SCAN over several servers: a cursor that says which shard is next, and where in it.
//!
//! A server's own cursor counts the buckets of its table (Redis's dictScan leaves no bit set above
//! the table's mask), so that there is room beside it. Beside it stand the shard's place in the
//! pool and a tag of the list of its shards: after a reload that changed the list the place would
//! mean another shard, and keys would silently be left out.
//!
//! A server's cursor means nothing to another one, as each hashes by a seed of its own. So the tag also
//! has the last bits of the shard's [reign](crate::topology::Topology::reign): a cursor of an earlier one
//! begins the shard anew.
//!
//! Nodes of a cluster that keep a table for each slot (Redis 7.4, Valkey 8) put the slot into the last 14 bits of
//! their cursors. So the other fields are short there: 39 bits are left, for 2^25 buckets of a slot.
//!
//! The gateway keeps nothing: every worker understands the cursors of all others.

use crate::base::id::ShardId;
use cashew_config::snapshot;
use cashew_config::snapshot::Pool;

/// Cursors stay below it: many clients read them as signed 64-bit numbers.
const CURSOR_MAX: u64 = i64::MAX as u64;
const TAGS: u64 = 1 << 16;
/// The same of clusters.
const CLUSTER_TAGS: u64 = 1 << 14;
/// The bit of a tag of a cluster some of whose slots are on their way.
const MOVING: u16 = 1 << 13;
/// More shards than a cluster has: maps of more than 1000 nodes are refused.
const CLUSTER_SHARDS_MAX: u64 = 1 << 10;

/// The bits of a tag that tell one reign of a primary from the next ones.
const REIGNS: u16 = 0xf;

/// Where a walk over the shards of a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) shard: ShardId,
    /// The last bits of the shard's; of a cluster the tag of what its slots were like when the walk began.
    pub(crate) reign: u16,
    /// The server's own.
    pub(crate) inner: u64,
}

impl Cursor {
    /// `reign` is the whole of it.
    pub(crate) fn new(shard: ShardId, reign: u32, inner: u64) -> Self {
        Self { shard, reign: reign as u16 & REIGNS, inner }
    }

    /// Whether it is of that reign, as far as it tells.
    pub(crate) fn is_of(self, reign: u32) -> bool {
        self.reign == reign as u16 & REIGNS
    }
}

/// The list of servers, and of the shards that cursors are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Of the servers: whatever refers to them by number compares it.
    servers_tag: u64,
    shards: u32,
    tag: u16,
    /// Of a cluster: a tag of the map. See [`Walk::map`].
    map: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadCursor {
    /// No number that a cursor could be.
    Malformed,
    /// Of another list of shards.
    Foreign,
}

impl BadCursor {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Malformed => "ERR invalid cursor",
            Self::Foreign => {
                "ERR invalid cursor: the servers of this pool are not those that it was given \
                 for; start again with cursor 0"
            }
        }
    }
}

impl Walk {
    pub(crate) fn new(pool: &Pool) -> Self {
        let mut servers = Tag::new();
        pool.servers.iter().for_each(|server| servers.add_server(&server.name, &server.endpoint));
        let groups = pool.sentinel.iter().flat_map(|sentinel| &sentinel.groups);
        let masters: Vec<(&str, &str)> =
            groups.map(|group| (&*group.server, &*group.master)).collect();
        let shards = pool.shards();
        let mut tag = Tag::new();
        for shard in shards.iter() {
            // Where Sentinels name the primary its address is not the shard's: the reign tells of it.
            match masters.iter().find(|(name, _)| *name == shard.name) {
                Some((_, master)) => {
                    tag.add(shard.name.as_bytes());
                    tag.add(master.as_bytes());
                }
                None => {
                    tag.add_server(&shard.name, &pool.servers[shard.primary as usize].endpoint);
                }
            }
        }
        // Never 0, so that no cursor but the end is.
        let tag_of = |changes: u32| (changes % u32::from(MOVING - 1)) as u16 + 1;
        let map = pool.cluster.as_ref().map(|cluster| tag_of(cluster.changes));
        Self { servers_tag: servers.0, shards: shards.len() as u32, tag: tag.folded(), map }
    }

    /// Of a cluster: what tells its map from others. A walk that ends with another tag than the one that it began
    /// with begins again, as slots have moved: so it needs to know no lists.
    pub(crate) fn map(self) -> Option<u16> {
        self.map
    }

    /// The same where some slots are on their way, which nodes have told of so.
    pub(crate) fn map_with_moving(self, told: &Tag) -> Option<u16> {
        let mut tag = Tag(told.0);
        tag.add(&self.map?.to_be_bytes());
        Some(MOVING | tag.folded() & (MOVING - 1))
    }

    /// Whether a tag of a cluster is of [`Walk::map_with_moving`].
    pub(crate) fn is_moving(tag: u16) -> bool {
        tag & MOVING != 0
    }

    /// A cursor's fields: how many shards and how many tags it tells apart, and what its tag is made different by.
    fn radix(self) -> (u64, u64, u16) {
        match self.map {
            // Numbers of shards mean something else by another map, and have to be read all the same.
            Some(_) => (CLUSTER_SHARDS_MAX, CLUSTER_TAGS, 0),
            None => (u64::from(self.shards), TAGS, self.tag),
        }
    }

    /// Whether a cursor of one of them is good for the other one.
    pub(crate) fn has_same_shards(self, other: Self) -> bool {
        (self.shards, self.tag) == (other.shards, other.tag)
    }

    pub(crate) fn shards(self) -> u32 {
        self.shards
    }

    /// Reads a client's cursor; `None` stands for 0, the beginning.
    pub(crate) fn read(self, text: &[u8]) -> Result<Option<Cursor>, BadCursor> {
        let number = number(text).ok_or(BadCursor::Malformed)?;
        if number == 0 {
            return Ok(None);
        }
        if number > CURSOR_MAX {
            return Err(BadCursor::Malformed);
        }
        let (shards, tags, own_tag) = self.radix();
        let (rest, shard) = (number / shards, number % shards);
        let (inner, tag) = (rest / tags, (rest % tags) as u16);
        let reign = tag ^ own_tag;
        if self.map.is_none() && reign & !REIGNS != 0 {
            return Err(BadCursor::Foreign);
        }
        Ok(Some(Cursor { shard: ShardId::new(shard as u32), reign, inner }))
    }

    /// The number for it; `None` if the server's cursor leaves no room for the rest. Never 0, which
    /// stands for the end, unless it is at the beginning of the first shard.
    pub(crate) fn write(self, cursor: Cursor) -> Option<u64> {
        let (shards, tags, own_tag) = self.radix();
        if u64::from(cursor.shard.number()) >= shards {
            return None;
        }
        let tag = u64::from(own_tag ^ cursor.reign);
        let rest = cursor.inner.checked_mul(tags)?.checked_add(tag)?;
        let number = rest.checked_mul(shards)?.checked_add(u64::from(cursor.shard.number()))?;
        (number <= CURSOR_MAX).then_some(number)
    }
}

/// FNV-1a: the same in all workers and in every version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag(u64);

impl Tag {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().chain(&[0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn add_server(&mut self, name: &str, endpoint: &snapshot::Endpoint) {
        self.add(name.as_bytes());
        match endpoint {
            snapshot::Endpoint::Tcp { host, port } => {
                self.add(host.as_bytes());
                self.add(&port.to_be_bytes());
            }
            snapshot::Endpoint::Unix(path) => self.add(path.as_os_str().as_encoded_bytes()),
        }
    }

    fn folded(&self) -> u16 {
        let hash = self.0;
        (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) as u16
    }
}

/// A cursor in decimal.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(servers: &str) -> Pool {
        let text = format!(
            "p:\n  listen: 127.0.0.1:1\n  redis: true\n  sentinels: [h:1, h:2]\n  servers:\n{servers}\
             \x20  - {{name: z, sentinel: m}}\n"
        );
        let context = cashew_config::Context::of_system();
        match cashew_config::parse("f", &text, &context) {
            Ok(loaded) => loaded.snapshot.pools.into_iter().next().unwrap(),
            Err(errors) => panic!("{errors}"),
        }
    }

    fn servers(names: &[&str]) -> Pool {
        let line = |(port, name): (usize, &&str)| format!("   - h:{port}:1 {name}\n");
        pool(&(1..).zip(names).map(line).collect::<String>())
    }

    #[test]
    fn what_is_written_is_read() {
        let walk = Walk::new(&servers(&["a", "b"]));
        for shard in (0..3).map(ShardId::new) {
            for (inner, reign) in (0..40).flat_map(|reign| {
                [0, 1, 7, 1 << 20, 1 << 32, (1 << 45) - 1].map(|inner| (inner, reign))
            }) {
                let cursor = Cursor::new(shard, reign, inner);
                let number = walk.write(cursor).unwrap();
                assert!(number <= CURSOR_MAX);
                if number > 0 {
                    assert_eq!(walk.read(number.to_string().as_bytes()), Ok(Some(cursor)));
                }
                assert!(
                    cursor.is_of(reign) && !cursor.is_of(reign + 1) && !cursor.is_of(reign + 15)
                );
            }
        }
        assert_eq!(walk.read(b"0"), Ok(None));
        assert_eq!(walk.write(Cursor::new(ShardId::new(0), 0, 1 << 46)), None);
        assert_eq!(walk.write(Cursor::new(ShardId::new(0), 0, u64::MAX)), None);
    }

    #[test]
    fn the_most_servers_leave_room_for_large_tables() {
        let walk =
            Walk { servers_tag: 0, shards: snapshot::SERVERS_MAX as u32, tag: u16::MAX, map: None };
        let last = Cursor::new(ShardId::new(walk.shards - 1), 0, (1 << 31) - 1);
        let number = walk.write(last).unwrap();
        assert_eq!(walk.read(number.to_string().as_bytes()), Ok(Some(last)));
    }

    #[test]
    fn a_cluster_s_cursors_are_read_by_other_maps() {
        let walk = |shards, map| Walk { servers_tag: 0, shards, tag: 0, map: Some(map) };
        for map in [1, 2, (CLUSTER_TAGS - 1) as u16] {
            for inner in [0, 1, (1 << 34) - 1, (1 << 39) - 1] {
                for shard in [6, 999].map(ShardId::new) {
                    let cursor = Cursor { shard, reign: map, inner };
                    let number = walk(7, map).write(cursor).unwrap();
                    assert!(number > 0);
                    let read = walk(9, 5).read(number.to_string().as_bytes());
                    assert_eq!(read, Ok(Some(cursor)));
                }
            }
        }
    }

    /// A node's cursor with a slot in its last 14 bits, of a table of 2^25 buckets.
    #[test]
    fn a_cluster_s_cursors_have_room_for_large_slots() {
        let mut pool = servers(&["a"]);
        let cluster = |changes| snapshot::Cluster {
            seeds: Vec::new(),
            connections_max: 0,
            slots: Vec::new(),
            moving: Vec::new(),
            epoch: 1,
            changes,
        };
        for changes in [0, 1, 8189, 8190, 8191, 16_383, u32::MAX] {
            pool.cluster = Some(cluster(changes));
            let walk = Walk::new(&pool);
            let reign = walk.map().unwrap();
            let inner = ((1 << 25) - 1) << 14 | u64::from(snapshot::SLOTS - 1);
            let cursor = Cursor { shard: ShardId::new(999), reign, inner };
            let number = walk.write(cursor).unwrap();
            assert_eq!(walk.read(number.to_string().as_bytes()), Ok(Some(cursor)));
            pool.cluster = Some(cluster(changes.wrapping_add(1)));
            assert_ne!(Walk::new(&pool).map(), Some(reign));
            let told = |text: &str| {
                let mut tag = Tag::new();
                tag.add(text.as_bytes());
                walk.map_with_moving(&tag).unwrap()
            };
            assert!(!Walk::is_moving(reign) && Walk::is_moving(told("1 2")));
            assert!(u64::from(told("1 2")) < CLUSTER_TAGS && told("1 2") != told("1 3"));
        }
    }

    #[test]
    fn other_lists_have_other_tags() {
        let lists = [&["a", "b"][..], &["a", "c"], &["b", "a"], &["ab", "y"], &["a", "b", "c"]];
        let walks: Vec<Walk> = lists.iter().map(|names| Walk::new(&servers(names))).collect();
        for (at, walk) in walks.iter().enumerate() {
            assert!(!walks[..at].contains(walk), "{:?}", lists[at]);
        }
        let number = walks[0].write(Cursor::new(ShardId::new(1), 0, 5)).unwrap().to_string();
        assert_eq!(walks[1].read(number.as_bytes()), Err(BadCursor::Foreign));
    }

    /// Its reign tells that it is another one.
    #[test]
    fn who_is_the_primary_by_sentinels_is_no_matter_of_the_list() {
        let mut pool = servers(&["a", "b"]);
        let before = Walk::new(&pool);
        pool.servers.iter_mut().filter(|it| it.name == "z").for_each(|server| {
            server.endpoint = snapshot::Endpoint::Tcp { host: "h".to_owned(), port: 9 };
        });
        let after = Walk::new(&pool);
        assert!(after.has_same_shards(before) && after != before);
        pool.sentinel.as_mut().unwrap().groups[0].master = "other".to_owned();
        assert!(!Walk::new(&pool).has_same_shards(before));
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        let walk = Walk::new(&servers(&["a", "b"]));
        for bad in ["", "x", "-1", "+1", " 1", "1 ", "0x1", "99999999999999999999", "1\0"] {
            assert_eq!(walk.read(bad.as_bytes()), Err(BadCursor::Malformed), "{bad:?}");
        }
        assert_eq!(walk.read(b"9223372036854775808"), Err(BadCursor::Malformed));
    }
}
