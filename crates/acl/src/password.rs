//! Passwords, of which only SHA-256 is kept.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};

/// The SHA-256 of a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    pub(crate) fn of(password: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, password).as_ref());
        Self(hash)
    }

    /// Of 64 lower-case hexadecimal digits.
    pub(crate) fn parse(hex: &str) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut hash = [0; 32];
        if hex.len() != 2 * hash.len() {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(hash))
    }

    pub(crate) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Takes the same time wherever they differ.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

/// Logs do not need it.
impl fmt::Debug for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_sha_256() {
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hash = Hash::of(b"abc");
        assert_eq!(hash.hex(), hex);
        assert_eq!(Hash::parse(hex), Some(hash.clone()));
        assert!(hash.matches(&Hash::of(b"abc")) && !hash.matches(&Hash::of(b"abd")));
        for bad in ["", "ba78", &hex[1..], &hex.to_uppercase(), &format!("{hex}0")] {
            assert_eq!(Hash::parse(bad), None, "{bad}");
        }
        assert_eq!(format!("{hash:?}"), "***");
    }
}
