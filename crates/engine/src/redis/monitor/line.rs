//! What monitors are told of one request: a line in Redis's own words.

use cashew_protocol::Span;
use cashew_protocol::redis::{Command, Local, Rule};

use crate::base::id::{ConnId, ListenerId};

/// What is told of one argument.
const ARGUMENT_MAX: usize = 1024;
/// No further argument is told of in a line that is longer.
const LINE_MAX: usize = 4096;

/// Lines in the order of the requests, each with a gap for the address of its client, which the
/// engine does not know.
#[derive(Default)]
pub struct Observed {
    text: Vec<u8>,
    lines: Vec<Line>,
}

struct Line {
    hearing: Hearing,
    /// Where the gap is in the text.
    gap: u32,
    end: u32,
}

/// Whose line it is, and who is to be told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hearing {
    pub listener: ListenerId,
    pub client: ConnId,
    /// Monitors of this worker.
    pub here: bool,
    /// Those of others.
    pub elsewhere: bool,
}

impl Observed {
    /// The lines: what comes before the address, and what comes behind it.
    pub fn lines(&self) -> impl Iterator<Item = (Hearing, &[u8], &[u8])> {
        let mut start = 0;
        self.lines.iter().map(move |line| {
            let (gap, end) = (line.gap as usize, line.end as usize);
            let parts = (line.hearing, &self.text[start..gap], &self.text[gap..end]);
            start = end;
            parts
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(crate) fn push(&mut self, hearing: Hearing, head: &str, request: &[u8]) {
        self.text.extend_from_slice(head.as_bytes());
        let gap = self.text.len() as u32;
        self.text.extend_from_slice(b"] ");
        self.text.extend_from_slice(request);
        self.text.extend_from_slice(b"\r\n");
        self.lines.push(Line { hearing, gap, end: self.text.len() as u32 });
    }

    /// Makes it ready to be used again; only so much memory is kept.
    pub(crate) fn clear(&mut self, kept_max: usize) {
        self.text.clear();
        self.text.shrink_to(kept_max);
        self.lines.clear();
        self.lines.shrink_to(kept_max / size_of::<Line>());
    }
}

/// `+1339518083.107412 [0 `
pub(crate) fn head(wall_us: i64, database: u32) -> String {
    let (seconds, micros) = (wall_us.div_euclid(1_000_000), wall_us.rem_euclid(1_000_000));
    format!("+{seconds}.{micros:06} [{database} ")
}

/// That so many lines are missing, in the form of a line, since clients expect nothing else.
pub(crate) fn write_missed(wall_us: i64, missed: u64, out: &mut Vec<u8>) {
    let head = head(wall_us, 0);
    out.extend_from_slice(
        format!("{head}cashew:0] \"cashew\" \"skipped\" \"{missed}\"\r\n").as_bytes(),
    );
}

/// `"keys" "*"`, without what is secret; `missing` arguments are known to follow.
pub(crate) fn write_request(
    command: &Command,
    bytes: &[u8],
    args: &[Span],
    missing: usize,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    for (at, arg) in args.iter().enumerate() {
        if at > 0 {
            out.push(b' ');
        }
        if out.len() - start > LINE_MAX {
            return write_more(args.len() - at + missing, out);
        }
        match is_secret(command, bytes, args, at) {
            true => out.extend_from_slice(b"\"(redacted)\""),
            false => write_quoted(arg.of(bytes), out),
        }
    }
    if missing > 0 {
        out.push(b' ');
        write_more(missing, out);
    }
}

fn write_more(arguments: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("\"... ({arguments} more arguments)\"").as_bytes());
}

/// As Redis, which tells of AUTH, of HELLO's and of MIGRATE's only that they were there.
fn is_secret(command: &Command, bytes: &[u8], args: &[Span], at: usize) -> bool {
    let is = |at: usize, word: &[u8]| args[at].of(bytes).eq_ignore_ascii_case(word);
    let behind = |from: usize, count: usize, word: &[u8]| {
        (from..at).rev().take(count).any(|at| is(at, word))
    };
    match command.rule {
        Rule::Local(Local::Auth) => at > 0,
        Rule::Local(Local::Hello) => behind(2, 2, b"auth"),
        _ if command.name == "migrate" => behind(6, 1, b"auth") || behind(6, 2, b"auth2"),
        _ => false,
    }
}

/// As Redis's sdscatrepr.
fn write_quoted(text: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for &byte in text.iter().take(ARGUMENT_MAX) {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                out.extend_from_slice(&[b'\\', b'x', high, low]);
            }
        }
    }
    if text.len() > ARGUMENT_MAX {
        let more = format!("... ({} more bytes)", text.len() - ARGUMENT_MAX);
        out.extend_from_slice(more.as_bytes());
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use cashew_protocol::redis::{self, Lookup};
    use cashew_protocol::resp::{Parsed, RequestParser, encode};

    use super::*;

    fn told(words: &[&[u8]], missing: usize) -> String {
        let mut bytes = Vec::new();
        encode::write_command(&mut bytes, words);
        let mut parser = RequestParser::default();
        assert!(matches!(parser.parse(&bytes, 1 << 23), Parsed::Complete { .. }));
        let Lookup::Found(command) = redis::find(&bytes, parser.args()) else {
            panic!("{words:?}")
        };
        let mut out = Vec::new();
        write_request(command, &bytes, parser.args(), missing, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_request_is_told_on_one_line_that_is_not_too_long() {
        assert_eq!(told(&[b"get", b"plain 1"], 0), r#""get" "plain 1""#);
        let odd = b"\"\\\r\n\t\x07\x08\x00\xff";
        assert_eq!(told(&[b"GET", odd], 0), r#""GET" "\"\\\r\n\t\a\b\x00\xff""#);
        assert_eq!(told(&[b"GET", b"k"], 1), r#""GET" "k" "... (1 more arguments)""#);
        let long = told(&[b"ECHO", &[b'x'; ARGUMENT_MAX + 5]], 0);
        assert!(long.ends_with("x... (5 more bytes)\"") && long.len() < ARGUMENT_MAX + 40);
        let mut many = vec![&b"del"[..]];
        many.resize(4001, &[0; ARGUMENT_MAX]);
        let many = told(&many, 0);
        assert!(many.ends_with(r#" "... (3999 more arguments)""#), "{many}");
        assert!(many.len() < LINE_MAX + 4 * ARGUMENT_MAX + 100);
    }

    #[test]
    fn credentials_are_not_told() {
        let text = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            told(&words, 0)
        };
        assert_eq!(text("auth pw"), r#""auth" "(redacted)""#);
        assert_eq!(text("AUTH me pw"), r#""AUTH" "(redacted)" "(redacted)""#);
        assert_eq!(
            text("HELLO 3 SETNAME me AUTH me pw"),
            r#""HELLO" "3" "SETNAME" "me" "AUTH" "(redacted)" "(redacted)""#
        );
        assert_eq!(
            text("hello 3 auth auth pw setname x"),
            r#""hello" "3" "auth" "(redacted)" "(redacted)" "(redacted)" "x""#,
            "rather too little than too much"
        );
        assert_eq!(text("HELLO 3"), r#""HELLO" "3""#);
        assert_eq!(
            text("migrate host 6379 k 0 5000 COPY AUTH pw"),
            r#""migrate" "host" "6379" "k" "0" "5000" "COPY" "AUTH" "(redacted)""#
        );
        assert_eq!(
            text("migrate host 6379 auth 0 5000 AUTH2 me pw KEYS a"),
            r#""migrate" "host" "6379" "auth" "0" "5000" "AUTH2" "(redacted)" "(redacted)" "KEYS" "a""#
        );
        assert_eq!(text("HELLO 2 AUTH pw"), r#""HELLO" "2" "AUTH" "(redacted)""#);
    }
}
