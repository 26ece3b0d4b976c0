//! Parsing complete replies: what the gateway needs to merge several into one.

use super::{ReplyScanner, Scan, decimal};

/// Facts of a complete reply.
#[derive(Clone, Debug)]
pub enum Reply<'a> {
    Status(&'a [u8]),
    /// With its code, without the minus.
    Error(&'a [u8]),
    Integer(i64),
    Bulk(&'a [u8]),
    /// RESP3's null, or RESP2's in the place of a string.
    Nil,
    Array(Elements<'a>),
    NilArray,
    Boolean(bool),
    /// As its text, which the merge interprets.
    Double(&'a [u8]),
    BigNumber(&'a [u8]),
    Verbatim {
        format: [u8; 3],
        text: &'a [u8],
    },
    /// Keys and values alternate.
    Map(Elements<'a>),
    Set(Elements<'a>),
    Push(Elements<'a>),
}

/// Whether a reply, or the beginning of one, is an error.
pub fn is_error(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'-' | b'!'))
}

/// Parses the reply that is the whole of `buf`; attributes before it are skipped. `None` if it
/// holds anything else, or a string in chunks.
pub fn reply(mut buf: &[u8]) -> Option<Reply<'_>> {
    if buf.starts_with(b"|") {
        let whole = ReplyScanner::default().scan(buf) == Scan::Complete(buf.len());
        buf = behind_attributes(whole.then_some(buf)?)?;
    }
    let (&kind, rest) = buf.split_first()?;
    let header = memchr::memmem::find(rest, b"\r\n")?;
    let (line, body) = (&rest[..header], &rest[header + 2..]);
    let alone = |reply| body.is_empty().then_some(reply);
    match kind {
        b'+' => alone(Reply::Status(line)),
        b'-' => alone(Reply::Error(line)),
        b':' => alone(Reply::Integer(decimal::integer(line)?)),
        b'_' if line.is_empty() => alone(Reply::Nil),
        b'#' if line == b"t" => alone(Reply::Boolean(true)),
        b'#' if line == b"f" => alone(Reply::Boolean(false)),
        b',' => alone(Reply::Double(line)),
        b'(' => alone(Reply::BigNumber(line)),
        b'$' if line == b"-1" => alone(Reply::Nil),
        b'*' if line == b"-1" => alone(Reply::NilArray),
        b'$' | b'!' | b'=' => {
            let len = usize::try_from(decimal::integer(line)?).ok()?;
            let value = body.strip_suffix(b"\r\n").filter(|value| value.len() == len)?;
            match kind {
                b'$' => Some(Reply::Bulk(value)),
                b'!' => Some(Reply::Error(value)),
                _ => {
                    let (&format, text) = value.split_first_chunk()?;
                    let text = text.strip_prefix(b":")?;
                    Some(Reply::Verbatim { format, text })
                }
            }
        }
        b'*' | b'%' | b'~' | b'>' => {
            let whole = ReplyScanner::default().scan(buf) == Scan::Complete(buf.len());
            let elements =
                Elements::new(line, if kind == b'%' { 2 } else { 1 }, whole.then_some(body)?)?;
            match kind {
                b'*' => Some(Reply::Array(elements)),
                b'%' => Some(Reply::Map(elements)),
                b'~' => Some(Reply::Set(elements)),
                _ => Some(Reply::Push(elements)),
            }
        }
        _ => None,
    }
}

/// The element after the attributes at the start of the buffer.
fn behind_attributes(mut buf: &[u8]) -> Option<&[u8]> {
    while let Some(rest) = buf.strip_prefix(b"|") {
        let header = memchr::memmem::find(rest, b"\r\n")?;
        let mut attributes = Elements::new(&rest[..header], 2, &rest[header + 2..])?;
        attributes.by_ref().for_each(drop);
        buf = attributes.rest;
    }
    Some(buf)
}

/// The encoded elements of an aggregate, including nested ones and their attributes.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    /// Of a whole aggregate: the number in its length line, `each` elements per unit, and what
    /// follows.
    fn new(line: &[u8], each: usize, body: &'a [u8]) -> Option<Self> {
        if line == b"?" {
            let all = Self { left: usize::MAX, rest: body };
            return Some(Self { left: all.count(), rest: body });
        }
        let len = usize::try_from(decimal::integer(line)?).ok()?;
        Some(Self { left: len.checked_mul(each)?, rest: body })
    }
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
    fn resp3_is_read() {
        assert!(matches!(reply(b"_\r\n"), Some(Reply::Nil)));
        assert!(matches!(reply(b"#t\r\n"), Some(Reply::Boolean(true))));
        assert!(matches!(reply(b"#f\r\n"), Some(Reply::Boolean(false))));
        assert!(matches!(reply(b",1e-3\r\n"), Some(Reply::Double(b"1e-3"))));
        assert!(matches!(reply(b"(-12\r\n"), Some(Reply::BigNumber(b"-12"))));
        assert!(matches!(reply(b"!4\r\nE\r\nx\r\n"), Some(Reply::Error(b"E\r\nx"))));
        let verbatim = reply(b"=5\r\nmkd:a\r\n");
        assert!(
            matches!(verbatim, Some(Reply::Verbatim { format, text: b"a" }) if format == *b"mkd")
        );
        let attributed = reply(b"|1\r\n+ttl\r\n*1\r\n:1\r\n|0\r\n:2\r\n");
        assert!(matches!(attributed, Some(Reply::Integer(2))));
    }

    #[test]
    fn any_number_of_attributes_costs_no_stack() {
        let many = [b"|0\r\n".repeat(1_000_000).as_slice(), b"*1\r\n:1\r\n"].concat();
        assert!(matches!(reply(&many), Some(Reply::Array(one)) if one.len() == 1));
    }

    #[test]
    fn aggregates_of_resp3_are_their_elements() {
        let expected: [&[u8]; 2] = [b"+a\r\n", b"|1\r\n:0\r\n:1\r\n~1\r\n:1\r\n"];
        let body = expected.concat();
        for (header, end) in
            [("%1", ""), ("~2", ""), (">2", ""), ("*?", ".\r\n"), ("%?", ".\r\n"), ("~?", ".\r\n")]
        {
            let whole = [header.as_bytes(), b"\r\n", &body, end.as_bytes()].concat();
            let Some(
                Reply::Array(elements)
                | Reply::Map(elements)
                | Reply::Set(elements)
                | Reply::Push(elements),
            ) = reply(&whole)
            else {
                panic!("{header} is an aggregate");
            };
            assert_eq!(elements.len(), 2);
            assert!(elements.eq(expected), "{header}");
        }
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
            b"_x\r\n",
            b"#x\r\n",
            b"%1\r\n:1\r\n",
            b"%-1\r\n",
            b"|0\r\n",
            b"|0\r\n>0\r\n",
            b"=3\r\ntxt\r\n",
            b"$?\r\n;0\r\n",
            b"*?\r\n:1\r\n",
            b".\r\n",
        ];
        for bytes in bad {
            assert!(reply(bytes).is_none(), "{}", bytes.escape_ascii());
        }
    }
}
