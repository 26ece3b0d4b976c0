//! Keys in base64, decoded as by memcached: characters outside the alphabet are skipped.

use super::KEY_SIZE_MAX;

/// Room for the longest key that was in base64.
pub type KeyBuf = [u8; KEY_SIZE_MAX];

/// The decoded `text`, written to `out`; `None` if memcached could not decode it either.
pub fn decode_key<'o>(text: &[u8], out: &'o mut KeyBuf) -> Option<&'o [u8]> {
    let digits = text.iter().filter(|&&byte| value_of(byte).is_some()).count();
    if digits == 0 || digits % 4 != 0 || digits / 4 * 3 > out.len() {
        return None;
    }
    let (mut len, mut count, mut block, mut padding) = (0, 0, 0u32, 0);
    for &byte in text {
        let Some(value) = value_of(byte) else { continue };
        padding += usize::from(byte == PADDING);
        block = block << 6 | u32::from(value);
        count += 1;
        if count == 4 {
            out[len..len + 3].copy_from_slice(&block.to_be_bytes()[1..]);
            len += 3;
            (block, count) = (0, 0);
            if padding > 0 {
                len = len.checked_sub(padding).filter(|_| padding < 3)?;
                break;
            }
        }
    }
    Some(&out[..len])
}

/// Whether `text` is a key in the form that is written here. Decoders treat other texts for the
/// same key differently.
pub(super) fn is_encoded(text: &[u8]) -> bool {
    let mut again = Vec::new();
    match decode_key(text, &mut [0; KEY_SIZE_MAX]) {
        Some(key) => {
            encode_key(key, &mut again);
            again == text
        }
        None => false,
    }
}

/// Writes a key of any bytes as text.
pub fn encode_key(key: &[u8], out: &mut Vec<u8>) {
    for block in key.chunks(3) {
        let mut bytes = [0; 4];
        bytes[1..=block.len()].copy_from_slice(block);
        let bits = u32::from_be_bytes(bytes);
        for digit in 0..4 {
            out.push(match digit <= block.len() {
                true => ALPHABET[(bits >> (18 - 6 * digit)) as usize & 63],
                false => PADDING,
            });
        }
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const PADDING: u8 = b'=';

fn value_of(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        PADDING => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_as_they_were() {
        let bytes: Vec<u8> = (0..=255).collect();
        for len in 1..186 {
            let mut text = Vec::new();
            encode_key(&bytes[..len], &mut text);
            assert_eq!(decode_key(&text, &mut [0; KEY_SIZE_MAX]), Some(&bytes[..len]));
        }
    }

    #[test]
    fn takes_keys_as_they_are_written_here_only() {
        for (text, expected) in [
            ("Zm9v", true),
            ("Zg==", true),
            ("Z-m9.v", false),
            ("Zh==", false),
            ("Zg==Zm9v", false),
            ("Zm9", false),
            ("====", false),
        ] {
            assert_eq!(is_encoded(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn reads_what_memcached_reads() {
        for (text, key) in [
            ("Zm9v", Some("foo")),
            ("Zm8=", Some("fo")),
            ("Zg==", Some("f")),
            ("Z-m9.v", Some("foo")),
            ("Zg==Zm9v", Some("f")),
            ("Z===", None),
            ("====", None),
            ("Zm9", None),
            ("-", None),
            ("", None),
        ] {
            let found = decode_key(text.as_bytes(), &mut [0; KEY_SIZE_MAX]).map(<[u8]>::to_vec);
            assert_eq!(found.as_deref(), key.map(str::as_bytes), "{text:?}");
        }
    }
}
