//! How the flags of a meta command affect its request and its reply.
//!
//! Flags are parsed strictly, so that a server cannot parse them differently: known letters, once
//! each, with valid arguments.

use super::base64::is_encoded;
use super::number::{signed32, unsigned, unsigned32};
use super::refusal::*;
use super::words::next_word;
use super::{KEY_SIZE_MAX, Verb};
use crate::Span;

/// The most words that memcached accepts, including the command. Beyond this it does not even read
/// the size of a data block.
const WORDS_MAX: usize = 19;
/// Longest opaque, the flag itself included.
const OPAQUE_SIZE_MAX: usize = 32;

/// Properties of a meta command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The key is in base64: see [`super::decode_key`].
    pub is_base64: bool,
    /// The flag `q`, with the space before it, so that a forwarder can cut it out.
    pub quiet: Option<Span>,
    /// The reply must contain the key in base64.
    pub tells_base64: bool,
}

/// The argument of a flag.
enum Argument {
    None,
    Signed,
    Unsigned,
    /// Of 64 bits, with the error for an invalid one.
    Long(&'static [u8]),
    Mode,
    Opaque,
    /// For proxies; servers ignore it.
    Ignored,
}

impl Argument {
    /// Of the flags that every version with meta commands of the current form knows, except `E` and
    /// `x`, which came with 1.6.19 and later.
    fn of(flag: u8) -> Option<Self> {
        Some(match flag {
            b'b' | b'c' | b'f' | b'h' | b'k' | b'l' | b'q' | b's' | b't' | b'u' | b'v' | b'x'
            | b'I' => Self::None,
            b'N' | b'R' | b'T' => Self::Signed,
            b'F' => Self::Unsigned,
            b'C' | b'E' => Self::Long(BAD_TOKEN),
            b'J' => Self::Long(BAD_INITIAL),
            b'D' => Self::Long(BAD_META_DELTA),
            b'M' => Self::Mode,
            b'O' => Self::Opaque,
            b'L' | b'P' => Self::Ignored,
            _ => return None,
        })
    }

    fn check(&self, text: &[u8]) -> Result<(), &'static [u8]> {
        let (is_good, reply) = match self {
            // All versions use only the letter.
            Self::None => (true, BAD_FLAG),
            Self::Signed => (signed32(text).is_some(), BAD_TOKEN),
            Self::Unsigned => (unsigned32(text).is_some(), BAD_FORMAT),
            Self::Long(reply) => (unsigned(text).is_some(), *reply),
            Self::Mode => (
                matches!(text, [mode] if mode.is_ascii_alphabetic() || b"+-".contains(mode)),
                BAD_MODE,
            ),
            Self::Opaque => (text.len() < OPAQUE_SIZE_MAX, LONG_OPAQUE),
            Self::Ignored => (true, BAD_FLAG),
        };
        if is_good { Ok(()) } else { Err(reply) }
    }
}

/// The key after the verb, which ends at `end`.
pub(super) fn read_key(line: &[u8], verb: Verb, end: usize) -> Result<Span, Refusal> {
    let no_key = if verb == Verb::MetaDebug { BAD_FORMAT } else { ERROR };
    let key = next_word(line, end).ok_or(Refusal::new(no_key))?;
    if key.len as usize > KEY_SIZE_MAX {
        return Err(Refusal::new(BAD_FORMAT));
    }
    let words_max = WORDS_MAX - 2;
    let mut at = key.end();
    for words in 0.. {
        let Some(word) = next_word(line, at) else { break };
        if words == words_max {
            return Err(Refusal::new(match verb {
                Verb::MetaGet => TOO_MANY_FLAGS_OF_GET,
                _ => TOO_MANY_FLAGS,
            }));
        }
        at = word.end();
    }
    Ok(key)
}

impl Meta {
    /// Parses the flags from `at` on. Anything that a server might parse differently is refused:
    /// for a set, it would parse the data as commands.
    pub(super) fn read(
        line: &[u8],
        verb: Verb,
        key: Span,
        at: usize,
    ) -> Result<Self, &'static [u8]> {
        Self::read_flags(line, verb, key, at).map_err(|reply| match verb {
            Verb::MetaDelete | Verb::MetaArithmetic if reply != LONG_OPAQUE => {
                BAD_OR_DUPLICATE_FLAG
            }
            _ => reply,
        })
    }

    fn read_flags(
        line: &[u8],
        verb: Verb,
        key: Span,
        mut at: usize,
    ) -> Result<Self, &'static [u8]> {
        let mut meta = Self::default();
        if verb == Verb::MetaDebug {
            // It knows one flag.
            meta.is_base64 = match next_word(line, at) {
                None => false,
                Some(flag) if flag.of(line) == b"b" && next_word(line, flag.end()).is_none() => {
                    true
                }
                Some(_) => return Err(BAD_FORMAT),
            };
            meta.tells_base64 = meta.is_base64;
        }
        let mut seen = 0u128;
        while verb != Verb::MetaDebug
            && let Some(word) = next_word(line, at)
        {
            let (flag, text) = word.of(line).split_first().expect("no word is empty");
            if !flag.is_ascii() || seen & 1 << flag != 0 {
                return Err(DUPLICATE_FLAG);
            }
            seen |= 1 << flag;
            // A set is sent only with flags that all servers with the current form know: the error
            // for an unknown flag is the same as that of a server that expects another form.
            let is_known = verb != Verb::MetaSet || *flag != b'x';
            let argument = Argument::of(*flag).filter(|_| is_known).ok_or(BAD_FLAG)?;
            if text.iter().any(|&byte| byte < b' ' || byte == 0x7f) {
                return Err(BAD_FLAG);
            }
            argument.check(text)?;
            match flag {
                b'b' => meta.is_base64 = true,
                b'k' => meta.tells_base64 = true,
                b'q' => meta.quiet = Some(Span::new(at, word.end() - at)),
                _ => {}
            }
            at = word.end();
        }
        meta.tells_base64 &= meta.is_base64;
        if meta.is_base64 && !is_encoded(key.of(line)) {
            return Err(if verb == Verb::MetaDebug { BAD_FORMAT } else { BAD_KEY });
        }
        Ok(meta)
    }
}

/// Writes the reply of a server without the item to this line of `mg`.
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
