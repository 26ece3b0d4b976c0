//! Hash slots of Redis Cluster and Valkey Cluster.

use crate::HashTag;
use crate::hash::crc16;

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

const BRACES: HashTag = HashTag { open: b'{', close: b'}' };

/// The hash slot of a key: CRC-16/XMODEM of what stands between its first `{` and the first `}` behind it, or of
/// all of it, modulo 16384. See the
/// [cluster specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags).
#[inline]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(BRACES.part(key)) as u16 % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `CLUSTER KEYSLOT` of redis-server 7.0.15 answers.
    #[test]
    fn slots_are_those_of_redis() {
        for (key, slot) in [
            ("", 0),
            ("123456789", 12739),
            ("foo", 12182),
            ("bar", 5061),
            ("hello", 866),
            ("foo{hello}", 866),
            ("{hello}bar", 866),
            ("a{}c{hello}", 2461),
            ("{{hello}}", 1372),
            ("user:1000", 1649),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }
}
