//! The rest of a request that is forwarded while it arrives.

use super::integer;
use super::request::{ARG_BYTES_MIN, BULK_BYTES_MAX, ProtocolError};

/// Longest header line of an argument, `$` and the digits of the largest length. A longer one is
/// not a number: Redis accepts no leading zeros.
const HEADER_MAX: usize = 21;

/// Finds the end of a request of which only the first arguments have been parsed. It stores none of
/// its bytes, and reads headers only.
#[derive(Debug)]
pub struct Tail {
    /// Bytes to come of the current argument, including its line end.
    value: usize,
    /// Arguments to come after it, including headers.
    args: usize,
    /// The current header line, without its line end.
    header: [u8; HEADER_MAX],
    header_len: usize,
    /// The header's carriage return has come, the byte after it has not.
    returned: bool,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailScan {
    /// The request ends after so many bytes.
    Complete(usize),
    /// All bytes belong to it, and at least so many more are to come.
    Partial(usize),
}

impl Tail {
    pub(super) fn new(args: usize) -> Self {
        Self { value: 0, args, header: [0; HEADER_MAX], header_len: 0, returned: false }
    }

    /// Scans the next bytes. Bytes in the places of line ends, which Redis does not check, are
    /// replaced by line ends, since other servers may check them.
    pub fn scan(&mut self, bytes: &mut [u8]) -> Result<TailScan, ProtocolError> {
        let mut at = 0;
        while at < bytes.len() {
            if self.value > 0 {
                at += self.pass_value(&mut bytes[at..]);
            } else {
                self.read_header(&mut bytes[at])?;
                at += 1;
            }
            if self.value == 0 && self.args == 0 {
                return Ok(TailScan::Complete(at));
            }
        }
        Ok(TailScan::Partial(self.least()))
    }

    /// The minimum number of bytes to come.
    fn least(&self) -> usize {
        let headers = (self.args * ARG_BYTES_MIN).saturating_sub(self.header_len);
        (self.value + headers).max(1)
    }

    /// Skips bytes of a value; returns how many.
    fn pass_value(&mut self, bytes: &mut [u8]) -> usize {
        let len = self.value.min(bytes.len());
        let left = self.value - len;
        // Counted from the value's end, its line end is the last two bytes.
        for (distance, byte) in [(2, b'\r'), (1, b'\n')] {
            if (left + 1..=self.value).contains(&distance) {
                bytes[self.value - distance] = byte;
            }
        }
        self.value = left;
        len
    }

    fn read_header(&mut self, byte: &mut u8) -> Result<(), ProtocolError> {
        if self.returned {
            *byte = b'\n';
            let len = header_len(&self.header[..self.header_len])?;
            (self.value, self.args) = (len + 2, self.args - 1);
            (self.header_len, self.returned) = (0, false);
        } else if *byte == b'\r' {
            self.returned = true;
        } else if self.header_len < HEADER_MAX {
            self.header[self.header_len] = *byte;
            self.header_len += 1;
        } else {
            header_len(&self.header)?;
            return Err(ProtocolError::InvalidBulkLength);
        }
        Ok(())
    }
}

fn header_len(text: &[u8]) -> Result<usize, ProtocolError> {
    match text {
        [b'$', digits @ ..] => integer(digits)
            .and_then(|len| usize::try_from(len).ok())
            .filter(|&len| len <= BULK_BYTES_MAX)
            .ok_or(ProtocolError::InvalidBulkLength),
        _ => Err(ProtocolError::ExpectedBulk(*text.first().unwrap_or(&b'\r'))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parsed, RequestParser};
    use super::*;

    /// Parses `head` bytes of the request, then scans the rest in pieces.
    fn scan(request: &str, head: usize, piece: usize) -> Result<(usize, String), ProtocolError> {
        let mut parser = RequestParser::default();
        let start = &request.as_bytes()[..head];
        assert!(matches!(parser.parse(start, 1 << 20), Parsed::Partial { .. }), "{request:?}");
        let (mut used, mut tail) = parser.tail().expect("some arguments are parsed");
        let mut all = request.as_bytes().to_vec();
        for bytes in all[used..].chunks_mut(piece) {
            match tail.scan(bytes)? {
                TailScan::Complete(len) => {
                    used += len;
                    return Ok((used, String::from_utf8(all).unwrap()));
                }
                TailScan::Partial(least) => {
                    used += bytes.len();
                    assert!(used + least <= request.len(), "{request:?} {used} {least}");
                }
            }
        }
        panic!("{request:?} is whole")
    }

    #[test]
    fn the_end_is_found_wherever_parsing_stopped_and_however_it_is_cut() {
        let request =
            "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\nhello\r\nworld\r\n$0\r\n\r\n$2\r\nEX\r\n";
        for head in "*5\r\n$3\r\nSET\r\n".len()..request.len() {
            for piece in [1, 2, 3, 7, 100] {
                assert_eq!(scan(request, head, piece), Ok((request.len(), request.to_owned())));
            }
        }
    }

    #[test]
    fn what_follows_is_left_alone() {
        let request = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n";
        let scanned = scan(request, 15, 100);
        assert_eq!(scanned, Ok(("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".len(), request.to_owned())));
    }

    #[test]
    fn line_ends_become_regular() {
        let request = "*3\r\n$3\r\nSET\r\n$1\rxkab$4\ryabcdef";
        let regular = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\nabcd\r\n";
        for piece in [1, 2, 5, 100] {
            assert_eq!(scan(request, 14, piece), Ok((regular.len(), regular.to_owned())));
        }
    }

    #[test]
    fn senseless_headers_are_refused() {
        let long = "1".repeat(30);
        for (header, error) in [
            ("!1\r\n", ProtocolError::ExpectedBulk(b'!')),
            ("\r\n", ProtocolError::ExpectedBulk(b'\r')),
            ("$x\r\n", ProtocolError::InvalidBulkLength),
            ("$-1\r\n", ProtocolError::InvalidBulkLength),
            ("$536870913\r\n", ProtocolError::InvalidBulkLength),
            (&format!("${long}\r\n"), ProtocolError::InvalidBulkLength),
        ] {
            let start = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n";
            let (request, head) = (format!("{start}{header}and more"), start.len());
            for piece in [1, 100] {
                assert_eq!(scan(&request, head, piece), Err(error), "{header:?}");
            }
        }
    }
}
