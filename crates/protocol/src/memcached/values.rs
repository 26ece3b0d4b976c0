//! The VALUE blocks of a complete reply, for combining the replies of several servers.

use super::KEY_SIZE_MAX;
use super::plain::value_head;
use super::reply::DIGITS_MAX;
use super::request::VALUE_SIZE_LIMIT;

/// One VALUE block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    pub key: &'a [u8],
    /// The whole block: its line, its data and both line ends.
    pub block: &'a [u8],
}

/// Iterates over the VALUE blocks of a complete reply, up to anything else.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a>(&'a [u8]);

impl<'a> Values<'a> {
    pub fn new(reply: &'a [u8]) -> Self {
        Self(reply)
    }

    /// The rest: after the last block, `END` or an error line.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        let line = value_line(self.0)?;
        let end = line.len.checked_add(usize::try_from(line.data_size).ok()?)?.checked_add(2)?;
        let (block, rest) = self.0.split_at_checked(end)?;
        if !block.ends_with(b"\r\n") {
            return None;
        }
        self.0 = rest;
        Some(Value { key: line.key, block })
    }
}

/// The key in a whole VALUE line at the start of the buffer.
#[inline]
pub fn value_key(buf: &[u8]) -> Option<&[u8]> {
    value_line(buf).map(|line| line.key)
}

/// A whole `VALUE <key> <flags> <bytes> [<cas unique>]` line.
pub(super) struct ValueLine<'a> {
    pub(super) key: &'a [u8],
    pub(super) data_size: u64,
    /// With its line end.
    pub(super) len: usize,
}

/// The line at the start of `buf`, if it is complete and valid. Accepts the same lines as the reply
/// scanner, which goes byte by byte.
#[inline]
pub(super) fn value_line(buf: &[u8]) -> Option<ValueLine<'_>> {
    let rest = buf.strip_prefix(b"VALUE ")?;
    if let Some((key, data_size, behind)) = value_head(rest)
        && data_size <= VALUE_SIZE_LIMIT
    {
        return Some(ValueLine { key, data_size, len: buf.len() - behind.len() });
    }
    let key_len = rest.iter().take(KEY_SIZE_MAX + 1).position(|&b| b == b' ' || b == b'\n')?;
    let (key, rest) = rest.split_at(key_len);
    let rest = rest.strip_prefix(b" ").filter(|_| key_len > 0)?;
    let (_, rest) = digits(rest)?;
    let (size, rest) = digits(rest.strip_prefix(b" ")?)?;
    let data_size = size.iter().try_fold(0u64, |value, &digit| {
        let value = value * 10 + u64::from(digit - b'0');
        (value <= VALUE_SIZE_LIMIT).then_some(value)
    })?;
    let rest = match rest.strip_prefix(b" ") {
        Some(rest) => digits(rest)?.1,
        None => rest,
    };
    let rest = rest.strip_prefix(b"\r\n")?;
    Some(ValueLine { key, data_size, len: buf.len() - rest.len() })
}

/// Splits a decimal number off.
#[inline]
fn digits(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = buf.iter().take(DIGITS_MAX + 1).take_while(|byte| byte.is_ascii_digit()).count();
    (1..=DIGITS_MAX).contains(&len).then(|| buf.split_at(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_through_blocks_and_stops_at_the_end() {
        let reply = b"VALUE a 0 5\r\nEND\r\n\r\nVALUE b\r 1 0 77\r\n\r\nEND\r\n";
        let mut values = Values::new(reply);
        let first = Value { key: b"a", block: b"VALUE a 0 5\r\nEND\r\n\r\n" };
        let second = Value { key: b"b\r", block: b"VALUE b\r 1 0 77\r\n\r\n" };
        assert_eq!(values.next(), Some(first));
        assert_eq!(values.next(), Some(second));
        assert_eq!(values.next(), None);
        assert_eq!(values.next(), None);
        assert_eq!(values.rest(), b"END\r\n");
    }

    #[test]
    fn stops_at_whatever_is_not_a_block() {
        for reply in [
            "",
            "END\r\n",
            "SERVER_ERROR x\r\n",
            "VALUE a 0 5\r\nhell",
            "VALUE a 0 5\r\nhello\n\n",
            "VALUE a 0 99999999999999999999\r\n",
            "VALUE a",
        ] {
            assert_eq!(Values::new(reply.as_bytes()).next(), None, "{reply:?}");
        }
    }
}
