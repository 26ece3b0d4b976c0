//! Keys as text: in quotes they are shown with escapes, and understood so.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub const NOT_A_KEY: &str = "the key ends within an escape, or has an unknown one";

pub(crate) fn serialize<S: Serializer>(key: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&key.escape_ascii().to_string())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    unescaped(text.as_bytes()).ok_or_else(|| D::Error::custom(NOT_A_KEY))
}

/// The bytes of a key that is shown with escapes.
pub fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let (mut key, mut rest) = (Vec::new(), text);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            key.push(byte);
            continue;
        }
        let (&kind, after) = rest.split_first()?;
        rest = after;
        key.push(match kind {
            b'\\' | b'"' | b'\'' => kind,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'a' => 0x07,
            b'b' => 0x08,
            b'x' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            _ => return None,
        });
    }
    Some(key)
}
