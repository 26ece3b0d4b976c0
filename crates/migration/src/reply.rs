//! Replies of Redis, read whole.

/// A reply. What RESP3 has more is what it would be in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(Vec<u8>),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Self>),
    /// What nobody has asked for.
    Push(Vec<Self>),
}

/// Arrays in arrays are no deeper.
const DEPTH_MAX: usize = 8;

impl Reply {
    /// The first reply, and its length; `None` while it is not complete.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, String> {
        let mut at = 0;
        Ok(Self::parse_at(bytes, &mut at, DEPTH_MAX)?.map(|reply| (reply, at)))
    }

    fn parse_at(bytes: &[u8], at: &mut usize, depth: usize) -> Result<Option<Self>, String> {
        let odd = || "it does not speak Redis's protocol".to_owned();
        let rest = &bytes[*at..];
        let Some(end) = rest.windows(2).position(|it| it == b"\r\n") else {
            return if rest.len() > 1 << 16 { Err(odd()) } else { Ok(None) };
        };
        let (Some(&kind), line) = (rest.first(), rest.get(1..end).unwrap_or_default()) else {
            return Err(odd());
        };
        let start = *at + end + 2;
        let text = || String::from_utf8_lossy(line).into_owned();
        let number = || text().parse::<i64>().map_err(|_| odd());
        let reply = match kind {
            b'+' => Self::Status(line.to_vec()),
            b'-' => Self::Error(text()),
            b':' => Self::Integer(number()?),
            b'_' => Self::Nil,
            b'#' => Self::Integer(i64::from(line == b"t")),
            b',' | b'(' => Self::Bulk(line.to_vec()),
            b'$' | b'=' => match number()? {
                ..0 => Self::Nil,
                len => {
                    let end = start + usize::try_from(len).map_err(|_| odd())?;
                    let Some(value) = bytes.get(start..end) else { return Ok(None) };
                    if bytes.len() < end + 2 {
                        return Ok(None);
                    }
                    *at = end + 2;
                    return Ok(Some(Self::Bulk(value.to_vec())));
                }
            },
            b'*' | b'%' | b'~' | b'>' if depth > 0 => {
                let len = number()?;
                if len < 0 {
                    *at = start;
                    return Ok(Some(Self::Nil));
                }
                let len = if kind == b'%' { 2 * len } else { len };
                let mut inner = start;
                let mut all = Vec::new();
                for _ in 0..len {
                    match Self::parse_at(bytes, &mut inner, depth - 1)? {
                        Some(one) => all.push(one),
                        None => return Ok(None),
                    }
                }
                *at = inner;
                return Ok(Some(if kind == b'>' { Self::Push(all) } else { Self::Array(all) }));
            }
            _ => return Err(odd()),
        };
        *at = start;
        Ok(Some(reply))
    }

    pub(crate) fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Bulk(bytes) | Self::Status(bytes) => Some(bytes),
            Self::Integer(number) => Some(number.to_string().into_bytes()),
            _ => None,
        }
    }

    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Bulk(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn array(self) -> Option<Vec<Self>> {
        match self {
            Self::Array(all) => Some(all),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_once_they_are_whole() {
        let bulk = |text: &str| Reply::Bulk(text.into());
        for (text, reply) in [
            ("+OK\r\n", Reply::Status(b"OK".to_vec())),
            ("-ERR no\r\n", Reply::Error("ERR no".into())),
            (":-3\r\n", Reply::Integer(-3)),
            ("$2\r\n\r\n\r\n", bulk("\r\n")),
            ("$-1\r\n", Reply::Nil),
            ("_\r\n", Reply::Nil),
            (
                "*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
                Reply::Array(vec![bulk("a"), Reply::Array(vec![Reply::Integer(1)])]),
            ),
            (">2\r\n$1\r\ni\r\n_\r\n", Reply::Push(vec![bulk("i"), Reply::Nil])),
            ("%1\r\n$1\r\na\r\n$1\r\nb\r\n", Reply::Array(vec![bulk("a"), bulk("b")])),
        ] {
            for end in 0..text.len() {
                assert_eq!(Reply::parse(&text.as_bytes()[..end]), Ok(None), "{text:?} {end}");
            }
            let more = format!("{text}+x");
            assert_eq!(Reply::parse(more.as_bytes()), Ok(Some((reply, text.len()))));
        }
        assert!(Reply::parse(b"HTTP/1.1 400\r\n").is_err());
    }
}
