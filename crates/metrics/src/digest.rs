//! A digest of bytes for tables in memory: small, fast, and the same in all processes.

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the page of its authors.
    #[test]
    fn the_vectors_are_met() {
        assert_eq!([fnv1a(b""), fnv1a(b"a")], [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c]);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
