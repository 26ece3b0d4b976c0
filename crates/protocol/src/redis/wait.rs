//! How long a request may block its server connection.

use super::Command;
use crate::Span;
use crate::resp::integer;

/// How long the server may take before it replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It answers at once.
    No,
    AtMost {
        millis: u64,
    },
    ForEver,
}

impl Command {
    /// How long the server may block the request. An invalid time is refused at once.
    pub fn wait(&self, buf: &[u8], args: &[Span]) -> Wait {
        if !self.blocks(buf, args) {
            return Wait::No;
        }
        let word = |at: usize| args.get(at).map_or(&b""[..], |arg| arg.of(buf));
        let millis = match self.name {
            "blmpop" | "bzmpop" => seconds(word(1)),
            "xread" | "xreadgroup" => {
                let is_block = |arg: &Span| arg.of(buf).eq_ignore_ascii_case(b"block");
                let at = args.iter().position(is_block);
                at.and_then(|at| whole(word(at + 1)))
            }
            "wait" => whole(word(2)),
            "waitaof" => whole(word(3)),
            _ => seconds(word(args.len() - 1)),
        };
        match millis {
            Some(0) => Wait::ForEver,
            Some(millis) => Wait::AtMost { millis },
            None => Wait::AtMost { millis: 0 },
        }
    }
}

fn whole(text: &[u8]) -> Option<u64> {
    integer(text).and_then(|millis| u64::try_from(millis).ok())
}

/// Rounded up, so that only 0 is for ever.
fn seconds(text: &[u8]) -> Option<u64> {
    let seconds: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (0.0..1e15).contains(&seconds).then(|| (seconds * 1000.0).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{Lookup, find};
    use crate::resp::{Parsed, RequestParser};

    fn wait(call: &str) -> Wait {
        let line = format!("{call}\n");
        let mut parser = RequestParser::default();
        let Parsed::Complete { .. } = parser.parse(line.as_bytes(), line.len()) else {
            panic!("{call}");
        };
        let (buf, args) = (parser.inline_encoded().unwrap(), parser.args());
        let Lookup::Found(command) = find(buf, args) else { panic!("{call}") };
        command.wait(buf, args)
    }

    #[test]
    fn it_is_known_how_long_a_call_may_wait() {
        let at_most = |millis| Wait::AtMost { millis };
        let cases = [
            ("GET a", Wait::No),
            ("XREAD STREAMS a 0", Wait::No),
            ("BLPOP a b 0", Wait::ForEver),
            ("BLPOP a 0.0001", at_most(1)),
            ("BRPOPLPUSH a b 2.5", at_most(2500)),
            ("BLMOVE a b LEFT LEFT 3", at_most(3000)),
            ("BLMPOP 4 1 a LEFT", at_most(4000)),
            ("BZMPOP 0 1 a MIN", Wait::ForEver),
            ("BZPOPMIN a 7", at_most(7000)),
            ("XREAD COUNT 2 BLOCK 250 STREAMS a $", at_most(250)),
            ("XREADGROUP GROUP g c block 0 STREAMS a >", Wait::ForEver),
            ("WAIT 1 100", at_most(100)),
            // The server itself replies to these.
            ("BLPOP a x", at_most(0)),
            ("BLPOP a -1", at_most(0)),
            ("BLPOP a nan", at_most(0)),
            ("BLPOP a 1e300", at_most(0)),
        ];
        for (call, expected) in cases {
            assert_eq!(wait(call), expected, "{call}");
        }
    }
}
