//! Bytes of clients as text that is safe wherever it is shown: printable ASCII, escaped as `redis-cli` does.

use cashew_metrics::{HotKey, KEY_SIZE_MAX};

/// A whole command. Words that need none are without quotes.
pub(crate) fn command(arguments: &[Vec<u8>]) -> String {
    let words: Vec<String> = arguments.iter().map(|argument| word(argument)).collect();
    words.join(" ")
}

fn word(bytes: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'\\".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    format!("\"{}\"", escaped(bytes))
}

/// What is kept of a key. One of which the rest is not kept ends in `…`, which no other does.
pub(crate) fn key(key: &HotKey) -> String {
    let mut text = escaped(&key.key);
    if key.len > KEY_SIZE_MAX {
        text.push('…');
    }
    text
}

pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' | b'"' => text.extend(['\\', char::from(byte)]),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            0x07 => text.push_str("\\a"),
            0x08 => text.push_str("\\b"),
            b' '..=b'~' => text.push(char::from(byte)),
            byte => text += &format!("\\x{byte:02x}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_escaped_as_redis_cli_does() {
        let text = escaped(b"a \\ \" \n\r\t\x07\x08 \x1b[2J \xc3\xa4 \0 \x7f <b>");
        assert_eq!(text, r#"a \\ \" \n\r\t\a\b \x1b[2J \xc3\xa4 \x00 \x7f <b>"#);
    }

    #[test]
    fn words_are_quoted_where_they_must_be() {
        let words = ["GET", "user:1", "a b", "", "it's", "\u{e4}"].map(|word| word.into());
        assert_eq!(command(&words), r#"GET user:1 "a b" "" "it's" "\xc3\xa4""#);
    }

    #[test]
    fn the_rest_of_a_long_key_is_told_of() {
        let named =
            |len| HotKey { key: vec![b'k'; 48], len, hash: 1, server: 0, weight: 1, unseen: 0 };
        assert_eq!(key(&named(48)), "k".repeat(48));
        assert_eq!(key(&named(49)), "k".repeat(48) + "…");
    }
}
