//! Whatever the servers and the key are, hashing does not fail and a key lands on a live server.

use cashew_placement::{Distribution, Hash, HashTag, Node, Ring};

/// One key, and servers of which each takes a byte of flags, four of weight and a name to a line
/// feed.
pub fn place(data: &[u8]) {
    let mut parts = data.split(|&byte| byte == b'\n');
    let key = parts.next().unwrap_or_default();
    let tag = HashTag {
        open: key.first().copied().unwrap_or_default(),
        close: key.last().copied().unwrap_or_default(),
    };
    let part = tag.part(key);
    assert!(!part.is_empty() || key.is_empty());

    let (mut nodes, mut live) = (Vec::new(), Vec::new());
    for part in parts.take(16) {
        if let [flags, a, b, c, d, name @ ..] = part {
            nodes.push(Node { name, weight: u32::from_le_bytes([*a, *b, *c, *d]).max(1) });
            live.push(flags & 1 == 0);
        }
    }
    for distribution in Distribution::ALL {
        let ring = Ring::build(distribution, &nodes, &live);
        assert_eq!(ring.digest(), Ring::build(distribution, &nodes, &live).digest());
        for hash in Hash::ALL {
            let point = ring.point(hash, Some(tag), key);
            assert!(point == 0 || point == hash.hash(part));
            match ring.select(point) {
                Some(index) => assert!(live[index as usize]),
                None => assert!(!live.contains(&true)),
            }
        }
    }
}
