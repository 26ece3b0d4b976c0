//! The lines of a complete reply to `stats`, for combining those of several servers.

/// One line of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'a> {
    /// STAT, ITEM or PREFIX.
    pub kind: &'a [u8],
    pub name: &'a [u8],
    /// The rest after the name, if any.
    pub value: &'a [u8],
}

/// Iterates over lines of statistics, up to the first other line.
#[derive(Clone, Copy, Debug)]
pub struct Stats<'a>(&'a [u8]);

impl<'a> Stats<'a> {
    pub fn new(reply: &'a [u8]) -> Self {
        Self(reply)
    }

    /// The rest: after the last line, `END` or another line.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Stats<'a> {
    type Item = Stat<'a>;

    fn next(&mut self) -> Option<Stat<'a>> {
        let kind = [&b"STAT "[..], b"ITEM ", b"PREFIX "]
            .into_iter()
            .find(|kind| self.0.starts_with(kind))?;
        let end = memchr::memchr(b'\n', self.0)?;
        let line = self.0[kind.len()..end].strip_suffix(b"\r").unwrap_or(&self.0[kind.len()..end]);
        self.0 = &self.0[end + 1..];
        let (name, value) = match memchr::memchr(b' ', line) {
            Some(space) => (&line[..space], &line[space + 1..]),
            None => (line, &b""[..]),
        };
        Some(Stat { kind: kind.trim_ascii_end(), name, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_through_lines_and_stops_at_the_end() {
        let reply = b"STAT pid 17\r\nITEM k [1 b; 0 s]\r\nSTAT empty\r\nEND\r\n";
        let mut stats = Stats::new(reply);
        let stat = |kind, name, value| Some(Stat { kind, name, value });
        assert_eq!(stats.next(), stat(b"STAT", b"pid", b"17"));
        assert_eq!(stats.next(), stat(b"ITEM", b"k", b"[1 b; 0 s]"));
        assert_eq!(stats.next(), stat(b"STAT", b"empty", b""));
        assert_eq!(stats.next(), None);
        assert_eq!(stats.rest(), b"END\r\n");
        assert_eq!(Stats::new(b"STAT pid 1").next(), None);
        assert_eq!(Stats::new(b"RESET\r\n").next(), None);
    }
}
