//! Complete replies, looked into: what the gateway needs to merge several into one.

use super::{ReplyScanner, Scan, decimal};

/// Facts of a complete reply.
#[derive(Clone, Debug)]
pub enum Reply<'a> {
    Status(&'a [u8]),
    /// With its code, without the minus.
    Error(&'a [u8]),
    Integer(i64),
    Bulk(&'a [u8]),
    Nil,
    Array(Elements<'a>),
    NilArray,
}

/// Reads the reply that `buf` holds, whole and alone. `None` if it holds anything else.
pub fn reply(buf: &[u8]) -> Option<Reply<'_>> {
    let (&kind, rest) = buf.split_first()?;
    let header = memchr::memmem::find(rest, b"\r\n")?;
    let (line, body) = (&rest[..header], &rest[header + 2..]);
    let alone = |reply| body.is_empty().then_some(reply);
    match kind {
        b'+' => alone(Reply::Status(line)),
        b'-' => alone(Reply::Error(line)),
        b':' => alone(Reply::Integer(decimal::integer(line)?)),
        b'$' if line == b"-1" => alone(Reply::Nil),
        b'*' if line == b"-1" => alone(Reply::NilArray),
        b'$' => {
            let len = usize::try_from(decimal::integer(line)?).ok()?;
            let value = body.strip_suffix(b"\r\n")?;
            (value.len() == len).then_some(Reply::Bulk(value))
        }
        b'*' => {
            let len = usize::try_from(decimal::integer(line)?).ok()?;
            let whole = ReplyScanner::default().scan(buf) == Scan::Complete(buf.len());
            whole.then_some(Reply::Array(Elements { left: len, rest: body }))
        }
        _ => None,
    }
}

/// The elements of an array reply as they are encoded, nested arrays whole.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    left: usize,
    rest: &'a [u8],
}

impl Elements<'_> {
    /// Elements not yet taken.
    pub fn len(&self) -> usize {
        self.left
    }

    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let Scan::Complete(len) = ReplyScanner::default().scan(self.rest) else {
            return None;
        };
        let (element, rest) = self.rest.split_at(len);
        self.left -= 1;
        self.rest = rest;
        Some(element)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_read() {
        assert!(matches!(reply(b"+OK\r\n"), Some(Reply::Status(b"OK"))));
        assert!(matches!(reply(b"-ERR no\r\n"), Some(Reply::Error(b"ERR no"))));
        assert!(matches!(reply(b":-3\r\n"), Some(Reply::Integer(-3))));
        assert!(matches!(reply(b"$4\r\na\r\nb\r\n"), Some(Reply::Bulk(b"a\r\nb"))));
        assert!(matches!(reply(b"$0\r\n\r\n"), Some(Reply::Bulk(b""))));
        assert!(matches!(reply(b"$-1\r\n"), Some(Reply::Nil)));
        assert!(matches!(reply(b"*-1\r\n"), Some(Reply::NilArray)));
    }

    #[test]
    fn elements_are_raw_and_nested_arrays_are_whole() {
        let Some(Reply::Array(mut elements)) =
            reply(b"*4\r\n$1\r\na\r\n$-1\r\n*2\r\n:1\r\n*1\r\n+x\r\n:2\r\n")
        else {
            panic!("an array");
        };
        assert_eq!(elements.len(), 4);
        let expected: [&[u8]; 4] =
            [b"$1\r\na\r\n", b"$-1\r\n", b"*2\r\n:1\r\n*1\r\n+x\r\n", b":2\r\n"];
        assert!(elements.by_ref().eq(expected));
        assert!(elements.is_empty());
        assert!(matches!(reply(b"*0\r\n"), Some(Reply::Array(none)) if none.is_empty()));
    }

    #[test]
    fn anything_but_one_whole_reply_is_none() {
        let bad: &[&[u8]] = &[
            b"",
            b"+",
            b"+OK",
            b"+OK\r\n+OK\r\n",
            b":x\r\n",
            b"$3\r\nab\r\n",
            b"$1\r\nab\r\n",
            b"$-2\r\n",
            b"*1\r\n",
            b"*1\r\n:1\r\n:2\r\n",
            b"*-2\r\n",
            b"x\r\n",
        ];
        for bytes in bad {
            assert!(reply(bytes).is_none(), "{}", bytes.escape_ascii());
        }
    }
}
