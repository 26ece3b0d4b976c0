//! MD5 (RFC 1321), which ketama and the hash `md5` place keys by. It protects nothing: who wants to find keys of one
//! server can do so with any of the hashes.

/// The hash of what was added so far.
#[derive(Clone, Debug)]
pub(crate) struct Md5 {
    state: [u32; 4],
    /// What does not fill a block yet: `len % 64` bytes of it.
    block: [u8; 64],
    len: u64,
}

/// By how many bits words are rotated, in turn, by round.
const ROTATIONS: [[u32; 4]; 4] =
    [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The whole part of `2^32 · |sin(i + 1)|`.
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed, 0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];

impl Md5 {
    pub(crate) fn new() -> Self {
        let state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
        Self { state, block: [0; 64], len: 0 }
    }

    pub(crate) fn digest(bytes: &[u8]) -> [u8; 16] {
        let mut md5 = Self::new();
        md5.update(bytes);
        md5.finalize()
    }

    pub(crate) fn update(&mut self, bytes: impl AsRef<[u8]>) {
        let mut bytes = bytes.as_ref();
        let filled = (self.len % 64) as usize;
        self.len += bytes.len() as u64;
        if filled > 0 {
            let (first, rest) = bytes.split_at(bytes.len().min(64 - filled));
            self.block[filled..filled + first.len()].copy_from_slice(first);
            if filled + first.len() < 64 {
                return;
            }
            mix(&mut self.state, &self.block);
            bytes = rest;
        }
        let (blocks, rest) = bytes.as_chunks();
        for block in blocks {
            mix(&mut self.state, block);
        }
        self.block[..rest.len()].copy_from_slice(rest);
    }

    pub(crate) fn finalize(mut self) -> [u8; 16] {
        let bits = self.len.wrapping_mul(8).to_le_bytes();
        let filled = (self.len % 64) as usize;
        let mut padding = [0; 64];
        padding[0] = 0x80;
        // Up to the last eight bytes of a block; at least one byte.
        self.update(&padding[..1 + (119 - filled) % 64]);
        self.update(bits);
        let mut digest = [0; 16];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

fn mix(state: &mut [u32; 4], block: &[u8; 64]) {
    let (words, _) = block.as_chunks::<4>();
    let word = |at: usize| u32::from_le_bytes(words[at % 16]);
    let mut now = *state;
    round(&mut now, 0, |b, c, d| (b & c) | (!b & d), word);
    round(&mut now, 1, |b, c, d| (d & b) | (!d & c), |at| word(5 * at + 1));
    round(&mut now, 2, |b, c, d| b ^ c ^ d, |at| word(3 * at + 5));
    round(&mut now, 3, |b, c, d| c ^ (b | !d), |at| word(7 * at));
    for (sum, now) in state.iter_mut().zip(now) {
        *sum = sum.wrapping_add(now);
    }
}

#[inline(always)]
fn round(
    state: &mut [u32; 4],
    number: usize,
    choose: impl Fn(u32, u32, u32) -> u32,
    word: impl Fn(usize) -> u32,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    for at in 0..16 {
        let sum = a
            .wrapping_add(choose(b, c, d))
            .wrapping_add(word(at))
            .wrapping_add(SINES[16 * number + at]);
        let turned = b.wrapping_add(sum.rotate_left(ROTATIONS[number][at % 4]));
        (a, b, c, d) = (d, turned, b, c);
    }
    *state = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: [u8; 16]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_are_those_of_the_rfc() {
        let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let numbers = "1234567890".repeat(8);
        for (text, digest) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
            (alphabet, "d174ab98d277d9f5a5611c2c9f419d9f"),
            (&numbers, "57edf4a22be3c955ac49da2e2107b67a"),
        ] {
            assert_eq!(hex(Md5::digest(text.as_bytes())), digest, "{text}");
        }
    }

    /// The digest of the digests, in hexadecimal, of the bytes 0, 1, 2 … of every length, as Python's hashlib has it.
    #[test]
    fn digests_of_all_lengths_are_right() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut all = Md5::new();
        for len in 0..=bytes.len() {
            all.update(hex(Md5::digest(&bytes[..len])));
        }
        assert_eq!(hex(all.finalize()), "ede72d28c58898d480705260b7b13261");
    }

    #[test]
    fn a_text_may_be_added_in_pieces() {
        let bytes: Vec<u8> = (0..=255).collect();
        for size in 1..=130 {
            let mut md5 = Md5::new();
            bytes.chunks(size).for_each(|piece| md5.update(piece));
            assert_eq!(md5.finalize(), Md5::digest(&bytes), "pieces of {size}");
        }
    }
}
