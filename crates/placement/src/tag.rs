//! Hash tags: the part of a key that decides its server.

use serde::{Deserialize, Serialize};

/// The two delimiters of `hash_tag:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashTag {
    pub open: u8,
    pub close: u8,
}

impl HashTag {
    /// Exactly two ASCII characters; they may be the same.
    pub fn parse(text: &str) -> Option<Self> {
        match *text.as_bytes() {
            [open, close] if text.is_ascii() => Some(Self { open, close }),
            _ => None,
        }
    }

    /// What is hashed of `key`: what stands between the first `open` and the first `close` after
    /// it, or all of it when either is missing or nothing is between them. A later pair is not
    /// looked for.
    #[inline]
    pub fn part(self, key: &[u8]) -> &[u8] {
        let Some(open) = key.iter().position(|&byte| byte == self.open) else { return key };
        let tail = &key[open + 1..];
        match tail.iter().position(|&byte| byte == self.close) {
            Some(len) if len > 0 => &tail[..len],
            _ => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_two_ascii_characters() {
        assert_eq!(HashTag::parse("{}"), Some(HashTag { open: b'{', close: b'}' }));
        assert_eq!(HashTag::parse("$$"), Some(HashTag { open: b'$', close: b'$' }));
        for bad in ["", "{", "{}}", "é", "éé", "中"] {
            assert_eq!(HashTag::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn takes_the_first_pair_or_the_whole_key() {
        let braces = HashTag::parse("{}").unwrap();
        for (key, part) in [
            ("plain", "plain"),
            ("a{b}c", "b"),
            ("{b}", "b"),
            ("a{b", "a{b"),
            ("a}b", "a}b"),
            ("}{b}", "b"),
            ("a{}c{d}", "a{}c{d}"),
            ("{{b}}", "{b"),
            ("{a}{b}", "a"),
            ("}a{", "}a{"),
            ("{", "{"),
            ("", ""),
        ] {
            assert_eq!(braces.part(key.as_bytes()), part.as_bytes(), "{key}");
        }
        let dollars = HashTag::parse("$$").unwrap();
        assert_eq!(dollars.part(b"a$b$c"), b"b");
        assert_eq!(dollars.part(b"a$$b$"), b"a$$b$");
        assert_eq!(dollars.part(b"a$b"), b"a$b");
    }
}
