//! Splitting of inline commands into arguments, as Redis's `sdssplitargs` does it.

use crate::Span;

/// Appends the arguments of `line` to `text`, and their positions to `args`. Returns false if
/// quotes do not balance.
pub(super) fn split(line: &[u8], text: &mut Vec<u8>, args: &mut Vec<Span>) -> bool {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|&byte| is_space(byte)) {
            at += 1;
        }
        if at == line.len() {
            return true;
        }
        let start = text.len();
        match argument(line, at, text) {
            Some(end) => at = end,
            None => return false,
        }
        args.push(Span::new(start, text.len() - start));
    }
}

/// The words of a line with quotes, as Redis splits inline commands and the rules in an ACL's parentheses. `None` if
/// quotes do not balance.
pub fn quoted_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut text, mut args) = (Vec::new(), Vec::new());
    split(line, &mut text, &mut args)
        .then(|| args.iter().map(|arg| arg.of(&text).to_vec()).collect())
}

/// Unescapes the argument at `at` and returns the index after it.
fn argument(line: &[u8], mut at: usize, text: &mut Vec<u8>) -> Option<usize> {
    while let Some(&byte) = line.get(at) {
        match byte {
            // Vertical tab and form feed separate arguments only before their first byte.
            b' ' | b'\n' | b'\r' | b'\t' => return Some(at),
            b'"' => return closed(line, double_quoted(line, at + 1, text)?),
            b'\'' => return closed(line, single_quoted(line, at + 1, text)?),
            _ => text.push(byte),
        }
        at += 1;
    }
    Some(at)
}

/// A closing quote must be followed by a space or nothing.
fn closed(line: &[u8], at: usize) -> Option<usize> {
    line.get(at).is_none_or(|&byte| is_space(byte)).then_some(at)
}

fn double_quoted(line: &[u8], mut at: usize, text: &mut Vec<u8>) -> Option<usize> {
    loop {
        match line.get(at..)? {
            [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                text.push(hex(*high) << 4 | hex(*low));
                at += 4;
            }
            [b'\\', escaped, ..] => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                at += 2;
            }
            [b'"', ..] => return Some(at + 1),
            [byte, ..] => {
                text.push(*byte);
                at += 1;
            }
            [] => return None,
        }
    }
}

fn single_quoted(line: &[u8], mut at: usize, text: &mut Vec<u8>) -> Option<usize> {
    loop {
        match line.get(at..)? {
            [b'\\', b'\'', ..] => {
                text.push(b'\'');
                at += 2;
            }
            [b'\'', ..] => return Some(at + 1),
            [byte, ..] => {
                text.push(*byte);
                at += 1;
            }
            [] => return None,
        }
    }
}

/// C's `isspace` in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_and_unescapes_like_redis() {
        let cases: &[(&[u8], &[&[u8]])] = &[
            (b"", &[]),
            (b" \t\x0b ", &[]),
            (b"PING", &[b"PING"]),
            (b"  set  a\tb ", &[b"set", b"a", b"b"]),
            (b"echo \"a b\"", &[b"echo", b"a b"]),
            (b"echo 'a\\'b\\n'", &[b"echo", b"a'b\\n"]),
            (b"echo \"\\x41\\n\\xzz\\q\\x4\"", &[b"echo", b"A\nxzzqx4"]),
            (b"echo a\"b c\"", &[b"echo", b"ab c"]),
            (b"echo \"\" ''", &[b"echo", b"", b""]),
            (b"echo a\\x41 a\x0bb", &[b"echo", b"a\\x41", b"a\x0bb"]),
            (b"echo a\rb", &[b"echo", b"a", b"b"]),
        ];
        for (line, expected) in cases {
            let expected: Vec<Vec<u8>> = expected.iter().map(|word| word.to_vec()).collect();
            assert_eq!(quoted_words(line), Some(expected), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn unbalanced_quotes_are_refused() {
        for line in ["\"a", "'a", "\"a\"b", "'a'b", "\"a\\\"", "'a\\'", "a \"", "\"\\"] {
            assert_eq!(quoted_words(line.as_bytes()), None, "{line}");
        }
    }
}
