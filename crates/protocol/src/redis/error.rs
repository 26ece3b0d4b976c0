//! Redis 7's errors for unknown commands.

use super::Command;
use crate::Span;
use crate::resp::encode;

/// How many bytes of a name, and of all arguments together, an error repeats.
const QUOTED_BYTES_MAX: usize = 128;

pub fn unknown_command_error(out: &mut Vec<u8>, buf: &[u8], args: &[Span]) {
    let (name, rest) = match args {
        [name, rest @ ..] => (name.of(buf), rest),
        [] => (b"".as_slice(), args),
    };
    out.extend_from_slice(b"-ERR unknown command '");
    quote(out, name, QUOTED_BYTES_MAX);
    out.extend_from_slice(b"', with args beginning with: ");
    // The quotes and the spaces count too.
    let start = out.len();
    for arg in rest {
        let used = out.len() - start;
        if used >= QUOTED_BYTES_MAX {
            break;
        }
        out.push(b'\'');
        quote(out, arg.of(buf), QUOTED_BYTES_MAX - used);
        out.extend_from_slice(b"' ");
    }
    out.extend_from_slice(b"\r\n");
}

pub fn unknown_subcommand_error(out: &mut Vec<u8>, container: &Command, buf: &[u8], args: &[Span]) {
    out.extend_from_slice(b"-ERR unknown subcommand '");
    quote(out, args.get(1).map_or(b"", |arg| arg.of(buf)), QUOTED_BYTES_MAX);
    out.extend_from_slice(b"'. Try ");
    out.extend(container.name.bytes().map(|byte| byte.to_ascii_uppercase()));
    out.extend_from_slice(b" HELP.\r\n");
}

pub fn wrong_arity_error(out: &mut Vec<u8>, command: &Command) {
    out.extend_from_slice(b"-ERR wrong number of arguments for '");
    out.extend_from_slice(command.name.as_bytes());
    out.extend_from_slice(b"' command\r\n");
}

/// Like C's `%.*s`: ends at a NUL.
fn quote(out: &mut Vec<u8>, text: &[u8], bytes_max: usize) {
    let text = &text[..text.len().min(bytes_max)];
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    encode::write_sanitised(out, &text[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(words: &[&[u8]]) -> String {
        let buf = words.concat();
        let mut start = 0;
        let args: Vec<Span> = words
            .iter()
            .map(|word| {
                start += word.len();
                Span::new(start - word.len(), word.len())
            })
            .collect();
        let mut out = Vec::new();
        unknown_command_error(&mut out, &buf, &args);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn clients_are_quoted_but_not_at_any_length() {
        assert_eq!(
            unknown(&[b"f\r\no", b"a\0b", b""]),
            "-ERR unknown command 'f  o', with args beginning with: 'a' '' \r\n"
        );
        let long = [b'x'; 200];
        assert_eq!(
            unknown(&[&long, &long[..120], b"bcdefgh", b"c"]),
            format!(
                "-ERR unknown command '{}', with args beginning with: '{}' 'bcdef' \r\n",
                "x".repeat(128),
                "x".repeat(120)
            )
        );
        assert_eq!(unknown(&[]), "-ERR unknown command '', with args beginning with: \r\n");
    }
}
