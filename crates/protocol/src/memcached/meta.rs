//! What the flags of a meta command change on the way of a request and of its reply.
//!
//! Flags are judged by the server. What matters here is only which key is meant, and which replies
//! the client does not want.

use super::refusal::{BAD_FORMAT, ERROR, Refusal, TOO_MANY_FLAGS, TOO_MANY_FLAGS_OF_GET};
use super::words::next_word;
use super::{KEY_SIZE_MAX, Verb};
use crate::Span;

/// Most words that memcached takes, the command itself included. Beyond it, it does not even look
/// at the size of a data block.
const WORDS_MAX: usize = 19;

/// What is known of a meta command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The key is in base64: see [`super::decode_key`].
    pub is_base64: bool,
    /// The flag `q`, with the spaces before it, so that a forwarder can cut it out; only where it
    /// stands once, since the server has something to say about a second one.
    pub quiet: Option<Span>,
    /// The reply is to have the key in it.
    pub tells_key: bool,
}

impl Meta {
    /// Reads the words behind `verb`; returns the key as well.
    pub(super) fn read(line: &[u8], verb: Verb, end: usize) -> Result<(Self, Span), Refusal> {
        let no_key = if verb == Verb::MetaDebug { BAD_FORMAT } else { ERROR };
        let key = next_word(line, end).ok_or(Refusal::new(no_key))?;
        if key.len as usize > KEY_SIZE_MAX {
            return Err(Refusal::new(BAD_FORMAT));
        }
        if verb == Verb::MetaDebug {
            // It knows one flag, in one place.
            let is_base64 = next_word(line, key.end()).is_some_and(|flag| flag.of(line) == b"b");
            return Ok((Self { is_base64, quiet: None, tells_key: true }, key));
        }
        let mut meta = Self::default();
        let (mut at, mut words, mut quiets) = (key.end(), 2, 0);
        while let Some(word) = next_word(line, at) {
            words += 1;
            if words > WORDS_MAX {
                return Err(Refusal::new(match verb {
                    Verb::MetaGet => TOO_MANY_FLAGS_OF_GET,
                    _ => TOO_MANY_FLAGS,
                }));
            }
            let is_size = verb == Verb::MetaSet && words == 3;
            match word.of(line)[0] {
                b'b' if !is_size => meta.is_base64 = true,
                b'k' if !is_size => meta.tells_key = true,
                b'q' if !is_size => {
                    quiets += 1;
                    meta.quiet = (quiets == 1).then(|| Span::new(at, word.end() - at));
                }
                _ => {}
            }
            at = word.end();
        }
        Ok((meta, key))
    }
}

/// Writes what a server without the item would answer to this line of `mg`.
pub fn write_meta_miss(line: &[u8], out: &mut Vec<u8>) {
    let mut words = super::words(line).skip(1);
    let key = words.next().unwrap_or_default();
    let is_base64 = words.clone().any(|flag| flag.starts_with(b"b"));
    out.extend_from_slice(b"EN");
    for flag in words {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => {
                out.extend_from_slice(b" k");
                out.extend_from_slice(key);
                out.extend_from_slice(if is_base64 { b" b" } else { b"" });
            }
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_what_memcached_would_say() {
        for (line, miss) in [
            ("mg a", "EN\r\n"),
            ("mg a v t f", "EN\r\n"),
            ("mg  a  k O17 v", "EN ka O17\r\n"),
            ("mg Zm9v b O1 k", "EN O1 kZm9v b\r\n"),
        ] {
            let mut out = Vec::new();
            write_meta_miss(line.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), miss, "{line:?}");
        }
    }
}
