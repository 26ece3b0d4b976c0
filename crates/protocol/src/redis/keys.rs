//! Finding the keys of a request.

use super::{Command, Fan, Keys, NumkeysFaults, Rule};
use crate::Span;
use crate::resp::integer;

const SYNTAX_ERROR: &str = "ERR syntax error";
const UNBALANCED_STREAMS: &str = "ERR Unbalanced XREAD list of streams: for each stream key an ID \
                                  or '$' must be specified.";

/// Options of SORT with arguments, and how many: an argument that reads "STORE" is no option.
const SORT_OPTIONS: [(&[u8], usize); 4] = [(b"limit", 2), (b"get", 1), (b"by", 1), (b"store", 1)];

impl Command {
    /// Whether the server may block the request.
    pub fn blocks(&self, buf: &[u8], args: &[Span]) -> bool {
        match self.rule {
            Rule::Block => self.keys != Keys::Streams || has_block(buf, args),
            // WAIT and WAITAOF wait for replicas.
            Rule::Fan(Fan::Least | Fan::LeastEach) => self.name.starts_with("wait"),
            _ => false,
        }
    }

    /// Patterns of keys that the server reads besides those of [`Command::keys`]: SORT's BY and
    /// GET. Those without an asterisk have no key.
    pub fn patterns<'a>(
        &self,
        buf: &'a [u8],
        args: &'a [Span],
    ) -> impl Iterator<Item = &'a [u8]> + 'a {
        let args = if matches!(self.keys, Keys::Sort { .. }) { args } else { &[] };
        let patterns = sort_options(buf, args, b"by").chain(sort_options(buf, args, b"get"));
        patterns.map(|pattern| pattern.of(buf)).filter(|pattern| pattern.contains(&b'*'))
    }

    /// Pushes the spans of all keys. The error is Redis's; other errors in the arguments are left
    /// to the server. Scripts may have no keys; if other commands have none though the table
    /// defines keys, the server replies with the error.
    pub fn keys(&self, buf: &[u8], args: &[Span], out: &mut Vec<Span>) -> Result<(), &'static str> {
        match self.keys {
            Keys::None => {}
            Keys::Range { first, last, step } => {
                let last = usize::try_from(last)
                    .unwrap_or_else(|_| args.len().saturating_sub(last.unsigned_abs().into()));
                let end = (last + 1).min(args.len());
                let range = args.get(usize::from(first)..end).unwrap_or_default();
                out.extend(range.iter().step_by(step.into()));
            }
            Keys::Pairs { uneven } => {
                if args.len().is_multiple_of(2) {
                    return Err(uneven);
                }
                out.extend(args.iter().skip(1).step_by(2));
            }
            Keys::Numkeys { at, first, step, destination, trailing, faults } => {
                let (at, first, step) = (usize::from(at), usize::from(first), usize::from(step));
                let room = args.len().saturating_sub(first + usize::from(trailing)) / step;
                let count = number_of_keys(word(buf, args, at), room, faults)?;
                if destination != 0 {
                    out.extend(args.get(usize::from(destination)));
                }
                out.extend(args.iter().skip(first).step_by(step).take(count));
            }
            Keys::Sort { stores } => {
                out.extend(args.get(1));
                // The last STORE counts, as in Redis.
                out.extend(sort_options(buf, args, b"store").last().filter(|_| stores));
            }
            Keys::Georadius => {
                out.extend(args.get(1));
                georadius_destinations(buf, args, out);
            }
            Keys::Streams => {
                let rest = args.get(streams(buf, args)? + 1..).unwrap_or_default();
                if rest.is_empty() || !rest.len().is_multiple_of(2) {
                    return Err(UNBALANCED_STREAMS);
                }
                out.extend(&rest[..rest.len() / 2]);
            }
            Keys::Migrate => out.extend(migrated(buf, args)),
        }
        Ok(())
    }
}

fn number_of_keys(text: &[u8], room: usize, faults: &NumkeysFaults) -> Result<usize, &'static str> {
    let count = integer(text).ok_or(faults.malformed)?;
    if count < 0 {
        return Err(faults.negative);
    }
    match (count, faults.zero) {
        (0, Some(fault)) => Err(fault),
        _ => usize::try_from(count).ok().filter(|&count| count <= room).ok_or(faults.too_many),
    }
}

/// The values of SORT's option of this name.
fn sort_options<'a>(
    buf: &'a [u8],
    args: &'a [Span],
    name: &'static [u8],
) -> impl Iterator<Item = Span> + 'a {
    let mut at = 2;
    std::iter::from_fn(move || {
        while at < args.len() {
            let option = word(buf, args, at);
            let taken = SORT_OPTIONS.iter().find(|(name, _)| option.eq_ignore_ascii_case(name));
            let value = args.get(at + 1).filter(|_| option.eq_ignore_ascii_case(name));
            at += 1 + taken.map_or(0, |(_, taken)| *taken);
            if value.is_some() {
                return value.copied();
            }
        }
        None
    })
}

/// Redis uses the last one; all of them count as keys.
fn georadius_destinations(buf: &[u8], args: &[Span], out: &mut Vec<Span>) {
    // The shortest form has its options at 5: GEORADIUSBYMEMBER key member radius unit.
    let mut at = 5;
    while at + 1 < args.len() {
        let option = word(buf, args, at);
        if option.eq_ignore_ascii_case(b"store") || option.eq_ignore_ascii_case(b"storedist") {
            out.push(args[at + 1]);
            at += 1;
        }
        at += 1;
    }
}

/// Index of the STREAMS option: all arguments after it are keys and ids.
fn streams(buf: &[u8], args: &[Span]) -> Result<usize, &'static str> {
    stream_options(buf, args)
        .find(|(_, option)| option.eq_ignore_ascii_case(b"streams"))
        .map(|(at, _)| at)
        .ok_or(SYNTAX_ERROR)
}

fn has_block(buf: &[u8], args: &[Span]) -> bool {
    stream_options(buf, args)
        .take_while(|(_, option)| !option.eq_ignore_ascii_case(b"streams"))
        .any(|(_, option)| option.eq_ignore_ascii_case(b"block"))
}

/// The options before STREAMS with their positions, and the arguments after STREAMS. An unknown
/// option is left to the server: it and its arguments may be newer.
fn stream_options<'a>(
    buf: &'a [u8],
    args: &'a [Span],
) -> impl Iterator<Item = (usize, &'a [u8])> + 'a {
    const ARGUMENTS: [(&str, usize); 6] =
        [("count", 1), ("block", 1), ("group", 2), ("claim", 1), ("maxcount", 1), ("maxsize", 1)];
    let mut at = 1;
    std::iter::from_fn(move || {
        let (here, option) = (at, args.get(at)?.of(buf));
        let taken = ARGUMENTS.iter().find(|(name, _)| option.eq_ignore_ascii_case(name.as_bytes()));
        at += 1 + taken.map_or(0, |&(_, taken)| taken);
        Some((here, option))
    })
}

/// MIGRATE requires an empty key before KEYS, and is refused otherwise.
fn migrated<'a>(buf: &[u8], args: &'a [Span]) -> &'a [Span] {
    const OPTIONS: [(&str, usize); 2] = [("auth", 1), ("auth2", 2)];
    let mut at = 6;
    while at < args.len() {
        let option = word(buf, args, at);
        if option.eq_ignore_ascii_case(b"keys") {
            return if word(buf, args, 3).is_empty() { &args[at + 1..] } else { &[] };
        }
        let taken = OPTIONS.iter().find(|(name, _)| option.eq_ignore_ascii_case(name.as_bytes()));
        at += 1 + taken.map_or(0, |&(_, taken)| taken);
    }
    args.get(3..4).unwrap_or_default()
}

fn word<'a>(buf: &'a [u8], args: &[Span], at: usize) -> &'a [u8] {
    args.get(at).map_or(b"", |arg| arg.of(buf))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{Access, COMMANDS, Lookup, Rule, find};
    use crate::resp::{Parsed, RequestParser};

    fn with<T>(call: &str, then: impl FnOnce(&Command, &[u8], &[Span]) -> T) -> T {
        let line = format!("{call}\n");
        let mut parser = RequestParser::default();
        let Parsed::Complete { .. } = parser.parse(line.as_bytes(), line.len()) else {
            panic!("{call}");
        };
        let (buf, args) = (parser.inline_encoded().unwrap(), parser.args());
        let Lookup::Found(command) = find(buf, args) else {
            panic!("{call}");
        };
        then(command, buf, args)
    }

    fn keys(call: &str) -> Result<Vec<String>, &'static str> {
        with(call, |command, buf, args| {
            let mut out = Vec::new();
            command.keys(buf, args, &mut out)?;
            if let Some(at) = command.single_key() {
                assert_eq!(out, [args[at]], "{call}");
            }
            Ok(out.iter().map(|key| String::from_utf8(key.of(buf).to_vec()).unwrap()).collect())
        })
    }

    #[test]
    fn patterns_are_what_sort_completes() {
        let cases = [
            ("SORT a", ""),
            ("SORT a BY nosort GET #", ""),
            ("SORT a BY w_* LIMIT 0 1 get x_*->f GET * STORE by", "w_* x_*->f *"),
            ("SORT_RO a DESC by w_*", "w_*"),
            ("SORT a LIMIT BY * GET", ""),
            ("SORT a STORE BY GET x*", "x*"),
            ("EVAL s 1 a BY x*", ""),
        ];
        for (call, expected) in cases {
            let found: Vec<String> = with(call, |command, buf, args| {
                let patterns = command.patterns(buf, args);
                patterns.map(|pattern| String::from_utf8(pattern.to_vec()).unwrap()).collect()
            });
            assert_eq!(found.join(" "), expected, "{call}");
        }
    }

    #[test]
    fn keys_are_found_where_they_are() {
        let cases = [
            ("PING", ""),
            ("GET a", "a"),
            ("OBJECT ENCODING a", "a"),
            ("MGET a b a", "a b a"),
            ("MSET a 1 b 2", "a b"),
            ("BITOP AND d a b", "d a b"),
            ("SMOVE a b member", "a b"),
            ("ZUNION 2 a b WEIGHTS 1 2", "a b"),
            ("ZUNIONSTORE d 2 a b", "d a b"),
            ("EVAL return 2 a b c", "a b"),
            ("EVAL return 0 a", ""),
            ("BLPOP a b 0", "a b"),
            ("BLMPOP 0 2 a b LEFT", "a b"),
            ("MIGRATE h 1 a 0 1", "a"),
            ("MIGRATE h 1 '' 0 1 COPY AUTH keys KEYS a b", "a b"),
            ("MIGRATE h 1 '' 0 1 AUTH2 keys keys Keys a", "a"),
            ("MIGRATE h 1 a 0 1 KEYS b", ""),
            ("MIGRATE h 1 '' 0 1 KEYS", ""),
            ("LMPOP 1 a LEFT COUNT 2", "a"),
            ("SORT a", "a"),
            ("SORT a BY store LIMIT 0 store GET store store d", "a d"),
            ("SORT a STORE d STORE e STORE", "a e"),
            ("GEORADIUS g 0 0 1 m STORE d STOREDIST e", "g d e"),
            ("GEORADIUSBYMEMBER g STORE 1 m STORE d", "g d"),
            ("XREAD COUNT STREAMS STREAMS a b 0 0", "a b"),
            ("XREAD MAXCOUNT 5 MAXSIZE STREAMS STREAMS a 0", "a"),
            ("XREADGROUP GROUP g c CLAIM 1 NEWER STREAMS a >", "a"),
            ("MSETEX 2 a 1 b 2 EX 5", "a b"),
            ("XREADGROUP GROUP STREAMS BLOCK NOACK STREAMS a >", "a"),
        ];
        for (call, expected) in cases {
            assert_eq!(keys(call).map(|keys| keys.join(" ")), Ok(expected.to_owned()), "{call}");
        }
    }

    #[test]
    fn it_is_known_what_may_wait() {
        let cases = [
            ("GET a", false),
            ("BLPOP a 0", true),
            ("XREAD STREAMS a $", false),
            ("XREAD STREAMS BLOCK $", false),
            ("XREAD BLOCK 1 STREAMS a $", true),
            ("XREADGROUP GROUP g c COUNT 1 block 0 STREAMS a >", true),
            ("XREADGROUP GROUP BLOCK c STREAMS a >", false),
            ("WAIT 1 0", true),
            ("LASTSAVE", false),
        ];
        for (call, expected) in cases {
            with(call, |command, buf, args| {
                assert_eq!(command.blocks(buf, args), expected, "{call}");
            });
        }
    }

    #[test]
    fn senseless_key_arguments_get_redis_errors() {
        let cases = [
            ("MSET a 1 b", "ERR wrong number of arguments for 'mset' command"),
            ("ZUNION x a", "ERR value is not an integer or out of range"),
            ("ZINTERSTORE d 0 a", "ERR at least 1 input key is needed for 'zinterstore' command"),
            ("ZDIFF 9223372036854775807 a", "ERR syntax error"),
            (
                "ZDIFF -9223372036854775808 a",
                "ERR at least 1 input key is needed for 'zdiff' command",
            ),
            ("SINTERCARD 2 a", "ERR Number of keys can't be greater than number of args"),
            ("LMPOP 2 a LEFT", "ERR syntax error"),
            ("MSETEX 2 a 1 b", "ERR syntax error"),
            ("MSETEX 0 a 1", "ERR invalid numkeys value or out of range"),
            ("EVAL return -1 a", "ERR Number of keys can't be negative"),
            ("FCALL f x a", "ERR Bad number of keys provided"),
            ("XREAD COUNT 1 a 0", SYNTAX_ERROR),
            ("XREAD STREAMS a b 0", UNBALANCED_STREAMS),
            ("XREAD COUNT 1 STREAMS", UNBALANCED_STREAMS),
        ];
        for (call, expected) in cases {
            assert_eq!(keys(call), Err(expected), "{call}");
        }
    }

    /// The engine relies on this: commands for a server have keys to choose the server by.
    #[test]
    fn keys_follow_from_the_rule() {
        for command in COMMANDS {
            let keyless = command.keys == Keys::None;
            match command.rule {
                Rule::Forward | Rule::Split(_) | Rule::Block => {
                    assert!(!keyless, "{}", command.name);
                }
                Rule::Local(_) | Rule::Unsupported => {
                    assert!(keyless && command.access == Access::None, "{}", command.name);
                }
                Rule::Fan(_) | Rule::Single(_) => assert!(keyless, "{}", command.name),
                Rule::Session(_) | Rule::Subscribe(_) | Rule::Publish | Rule::Refuse(_) => {}
            }
        }
    }

    /// Callers that forward by it use that argument without checking that it exists.
    #[test]
    fn the_only_key_is_among_the_fewest_arguments() {
        for command in COMMANDS {
            let fewest = usize::from(command.arity.unsigned_abs());
            assert!(command.single_key().is_none_or(|at| at < fewest), "{}", command.name);
        }
    }

    #[test]
    fn any_number_of_arguments_is_survived() {
        let buf = b"1";
        for command in COMMANDS {
            for len in 0..8 {
                let mut out = Vec::new();
                let _ = command.keys(buf, &vec![Span::new(0, 1); len], &mut out);
                assert!(out.len() <= len + 1);
            }
        }
    }
}
