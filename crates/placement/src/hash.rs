//! The twelve key hashes of twemproxy.
//!
//! Results are those of twemproxy built for x86-64, on every machine: `char` is signed there, so a
//! byte of 0x80 and above is sign-extended where the original widens a plain `char`.

use serde::{Deserialize, Serialize};

use crate::md5::Md5;

/// A key hash, named as in the configuration's `hash:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hash {
    OneAtATime,
    Md5,
    Crc16,
    Crc32,
    Crc32a,
    #[serde(rename = "fnv1_64")]
    Fnv1_64,
    #[serde(rename = "fnv1a_64")]
    Fnv1a64,
    #[serde(rename = "fnv1_32")]
    Fnv1_32,
    #[serde(rename = "fnv1a_32")]
    Fnv1a32,
    Hsieh,
    Murmur,
    Jenkins,
}

impl Hash {
    pub const ALL: [Self; 12] = [
        Self::OneAtATime,
        Self::Md5,
        Self::Crc16,
        Self::Crc32,
        Self::Crc32a,
        Self::Fnv1_64,
        Self::Fnv1a64,
        Self::Fnv1_32,
        Self::Fnv1a32,
        Self::Hsieh,
        Self::Murmur,
        Self::Jenkins,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::OneAtATime => "one_at_a_time",
            Self::Md5 => "md5",
            Self::Crc16 => "crc16",
            Self::Crc32 => "crc32",
            Self::Crc32a => "crc32a",
            Self::Fnv1_64 => "fnv1_64",
            Self::Fnv1a64 => "fnv1a_64",
            Self::Fnv1_32 => "fnv1_32",
            Self::Fnv1a32 => "fnv1a_32",
            Self::Hsieh => "hsieh",
            Self::Murmur => "murmur",
            Self::Jenkins => "jenkins",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// How many values it has, from 0 on.
    pub fn values(self) -> u64 {
        match self {
            Self::Crc32 => 1 << 15,
            Self::OneAtATime
            | Self::Md5
            | Self::Crc16
            | Self::Crc32a
            | Self::Fnv1_64
            | Self::Fnv1a64
            | Self::Fnv1_32
            | Self::Fnv1a32
            | Self::Hsieh
            | Self::Murmur
            | Self::Jenkins => 1 << u32::BITS,
        }
    }

    /// The hash of `key`, which may be empty. Pools with one server never ask for it.
    #[inline(always)]
    pub fn hash(self, key: &[u8]) -> u32 {
        // The default.
        if self == Self::Fnv1a64 { fnv1a(FNV_64_INIT, FNV_64_PRIME, key) } else { self.other(key) }
    }

    // The long ones are functions of their own, so that the short ones need not save registers.
    #[inline(never)]
    fn other(self, key: &[u8]) -> u32 {
        match self {
            Self::OneAtATime => one_at_a_time(key),
            Self::Md5 => md5_word(key),
            Self::Crc16 => crc16(key),
            // The variant of libmemcached: only 32,768 values.
            Self::Crc32 => (crc32(key) >> 16) & 0x7fff,
            Self::Crc32a => crc32(key),
            Self::Fnv1_64 => fnv1(FNV_64_INIT, FNV_64_PRIME, key),
            Self::Fnv1a64 => fnv1a(FNV_64_INIT, FNV_64_PRIME, key),
            Self::Fnv1_32 => fnv1(FNV_32_INIT, FNV_32_PRIME, key),
            Self::Fnv1a32 => fnv1a(FNV_32_INIT, FNV_32_PRIME, key),
            Self::Hsieh => hsieh(key),
            Self::Murmur => murmur(key),
            Self::Jenkins => jenkins(key),
        }
    }
}

// Only the low 32 bits of the 64-bit FNV are ever used. Products and exclusive-ors carry nothing
// downwards, so the low halves of its constants are enough.
const FNV_64_INIT: u32 = 0xcbf2_9ce4_8422_2325_u64 as u32;
const FNV_64_PRIME: u32 = 0x0100_0000_01b3_u64 as u32;
const FNV_32_INIT: u32 = 2_166_136_261;
const FNV_32_PRIME: u32 = 16_777_619;

const CRC16_TABLE: [u16; 256] = crc16_table();
const CRC32_TABLE: [u32; 256] = crc32_table();

/// What a signed `char` becomes when it is widened to 32 bits.
#[inline]
fn sign_extend(byte: u8) -> u32 {
    byte as i8 as u32
}

#[inline]
fn word(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

#[inline]
fn half(low: u8, high: u8) -> u32 {
    u32::from(u16::from_le_bytes([low, high]))
}

#[inline]
fn fnv1(init: u32, prime: u32, key: &[u8]) -> u32 {
    key.iter().fold(init, |hash, &byte| hash.wrapping_mul(prime) ^ sign_extend(byte))
}

#[inline(always)]
fn fnv1a(init: u32, prime: u32, key: &[u8]) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ sign_extend(byte)).wrapping_mul(prime);
    // Each step needs the one before it; several at a time at least save the loop's own. Loops are
    // never a call, as a fold may be.
    let mut hash = init;
    let (eights, rest) = key.as_chunks::<8>();
    for bytes in eights {
        for &byte in bytes {
            hash = step(hash, byte);
        }
    }
    let (fours, rest) = rest.as_chunks::<4>();
    for bytes in fours {
        for &byte in bytes {
            hash = step(hash, byte);
        }
    }
    for &byte in rest {
        hash = step(hash, byte);
    }
    hash
}

fn one_at_a_time(key: &[u8]) -> u32 {
    let mut value = 0u32;
    for &byte in key {
        value = value.wrapping_add(sign_extend(byte));
        value = value.wrapping_add(value << 10);
        value ^= value >> 6;
    }
    value = value.wrapping_add(value << 3);
    value ^= value >> 11;
    value.wrapping_add(value << 15)
}

#[inline(never)]
fn md5_word(key: &[u8]) -> u32 {
    let digest = Md5::digest(key);
    word([digest[0], digest[1], digest[2], digest[3]])
}

/// The register is 32 bits wide and never masked, so what a 16-bit CRC would shift out stays in
/// the upper half of the result.
pub(crate) fn crc16(key: &[u8]) -> u32 {
    key.iter().fold(0u32, |crc, &byte| {
        let index = (crc >> 8) as u8 ^ byte;
        (crc << 8) ^ u32::from(CRC16_TABLE[usize::from(index)])
    })
}

fn crc32(key: &[u8]) -> u32 {
    !key.iter().fold(u32::MAX, |crc, &byte| {
        let index = crc as u8 ^ byte;
        (crc >> 8) ^ CRC32_TABLE[usize::from(index)]
    })
}

#[inline(never)]
fn hsieh(key: &[u8]) -> u32 {
    if key.is_empty() {
        return 0;
    }
    let mut hash = 0u32;
    let mut blocks = key.chunks_exact(4);
    for block in &mut blocks {
        hash = hash.wrapping_add(half(block[0], block[1]));
        let mixed = (half(block[2], block[3]) << 11) ^ hash;
        hash = (hash << 16) ^ mixed;
        hash = hash.wrapping_add(hash >> 11);
    }
    match *blocks.remainder() {
        [a, b, c] => {
            hash = hash.wrapping_add(half(a, b));
            hash ^= hash << 16;
            // Unlike the other bytes, the third one of the tail is read as a signed `char`.
            hash ^= sign_extend(c) << 18;
            hash = hash.wrapping_add(hash >> 11);
        }
        [a, b] => {
            hash = hash.wrapping_add(half(a, b));
            hash ^= hash << 11;
            hash = hash.wrapping_add(hash >> 17);
        }
        [a] => {
            hash = hash.wrapping_add(u32::from(a));
            hash ^= hash << 10;
            hash = hash.wrapping_add(hash >> 1);
        }
        _ => {}
    }
    hash ^= hash << 3;
    hash = hash.wrapping_add(hash >> 5);
    hash ^= hash << 4;
    hash = hash.wrapping_add(hash >> 17);
    hash ^= hash << 25;
    hash.wrapping_add(hash >> 6)
}

/// MurmurHash2 with a seed that depends on the length.
#[inline(never)]
fn murmur(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let len = key.len() as u32;
    let mut h = 0xdead_beef_u32.wrapping_mul(len) ^ len;
    let mut blocks = key.chunks_exact(4);
    for block in &mut blocks {
        let mut k = word([block[0], block[1], block[2], block[3]]).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let tail = blocks.remainder();
    if !tail.is_empty() {
        h = (h ^ padded_word(tail)).wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

/// Bob Jenkins' lookup3 with the initial value 13.
#[inline(never)]
fn jenkins(key: &[u8]) -> u32 {
    const INITVAL: u32 = 13;
    let init = 0xdead_beef_u32.wrapping_add(key.len() as u32).wrapping_add(INITVAL);
    let (mut a, mut b, mut c) = (init, init, init);
    if key.is_empty() {
        return c;
    }
    let mut rest = key;
    // The last block, of 1 to 12 bytes, is mixed by different steps than those before it.
    while rest.len() > 12 {
        let (block, tail) = rest.split_at(12);
        rest = tail;
        a = a.wrapping_add(padded_word(&block[..4]));
        b = b.wrapping_add(padded_word(&block[4..8]));
        c = c.wrapping_add(padded_word(&block[8..]));

        a = a.wrapping_sub(c) ^ c.rotate_left(4);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(6);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(8);
        b = b.wrapping_add(a);
        a = a.wrapping_sub(c) ^ c.rotate_left(16);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(19);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(4);
        b = b.wrapping_add(a);
    }
    let mut last = [0u8; 12];
    last[..rest.len()].copy_from_slice(rest);
    a = a.wrapping_add(padded_word(&last[..4]));
    b = b.wrapping_add(padded_word(&last[4..8]));
    c = c.wrapping_add(padded_word(&last[8..]));

    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

/// Up to four bytes as a little-endian word, missing ones as zero.
#[inline]
fn padded_word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u32::from(byte))
}

/// CRC-16/XMODEM: polynomial 0x1021, most significant bit first.
const fn crc16_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

/// CRC-32/ISO-HDLC: polynomial 0xedb88320, least significant bit first.
const fn crc32_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};

    use super::*;

    const KEYS: [&[u8]; 9] = [
        b"apple",
        b"a",
        b"foo",
        b"key-1",
        b"key-2",
        b"user:1000",
        b"\xe4\xb8\xad\xe6\x96\x87",
        b"\xff\x80",
        b"",
    ];

    /// What twemproxy's own functions return on x86-64 for `KEYS`.
    #[rustfmt::skip]
    const VECTORS: [(&str, [u32; 9]); 12] = [
        ("one_at_a_time", [2297466611, 3392050242, 596015325, 1347184026, 1047642597, 3043211087, 1818558024, 3637588423, 0]),
        ("md5", [3195025439, 3111502092, 3675831724, 2339090209, 2354236092, 781738503, 599964327, 82539146, 3649838548]),
        ("crc16", [3662830516, 31879, 205303702, 1886388453, 1886400646, 3781445233, 4016059337, 2003575, 0]),
        ("crc32", [10542, 26807, 3187, 3820, 6117, 8052, 23049, 16197, 0]),
        ("crc32a", [2838417488, 3904355907, 2356372769, 250396538, 2548428480, 2675185635, 1510599991, 1061514413, 0]),
        ("fnv1_64", [473199127, 2248259518, 1805727027, 4257814112, 4257814115, 3550362913, 3724949257, 3035328992, 2216829733]),
        ("fnv1a_64", [1488911807, 2248273036, 4275688823, 2515697318, 2515696883, 2927313545, 3686065861, 3035557738, 2216829733]),
        ("fnv1_32", [67176023, 84696446, 1083137555, 2019876064, 2019876067, 2796551329, 3173121737, 309762336, 2166136261]),
        ("fnv1a_32", [280767167, 3826002220, 2851307223, 1474311238, 1457533619, 1350311305, 1907909189, 1400454730, 2166136261]),
        ("hsieh", [3738850110, 2472816263, 1993659431, 3428906524, 1281741440, 3723237737, 502489227, 3181452272, 0]),
        ("murmur", [4142305122, 1262581116, 3303027599, 1457069289, 471460567, 2384768711, 3795889544, 1759350492, 0]),
        ("jenkins", [1442444624, 3768813200, 2583187353, 2444848254, 3688773743, 76303748, 1474682395, 2875642111, 3735928572]),
    ];

    #[test]
    fn matches_golden_vectors() {
        for ((name, expected), hash) in VECTORS.into_iter().zip(Hash::ALL) {
            assert_eq!(Hash::from_name(name), Some(hash));
            for (key, expected) in KEYS.into_iter().zip(expected) {
                assert_eq!(hash.hash(key), expected, "{name} of {key:?}");
            }
        }
    }

    #[test]
    fn names_are_those_of_the_configuration() {
        for hash in Hash::ALL {
            assert_eq!(Hash::from_name(hash.name()), Some(hash));
            let name: StrDeserializer<'_, Error> = hash.name().into_deserializer();
            assert_eq!(Hash::deserialize(name), Ok(hash));
        }
        assert_eq!(Hash::from_name("FNV1A_64"), None);
        assert_eq!(Hash::from_name(""), None);
    }
}
