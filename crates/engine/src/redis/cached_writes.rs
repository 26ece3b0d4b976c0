//! What a request on its way to a server does to what is kept of its keys, in Redis's words.

use cashew_protocol::Span;
use cashew_protocol::redis::{self, Access, Command, Group, Lookup};
use cashew_protocol::resp::{Parsed, RequestParser};

/// What it does to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    Nothing,
    /// To those that were found.
    Keys,
    /// To any, as far as one can tell.
    Any,
    /// A transaction begins: what follows is done with its end, or is not.
    Multi,
    Exec,
    Discard,
}

/// What a request does, of which these are the first bytes. The keys that it writes are added to `keys`.
pub(crate) fn writes(parser: &mut RequestParser, bytes: &[u8], keys: &mut Vec<Span>) -> Writes {
    parser.reset();
    let parsed = parser.parse(bytes, usize::MAX);
    let args = parser.args();
    match parsed {
        Parsed::Complete { .. } => match redis::find(bytes, args) {
            Lookup::Found(command) => of_command(command, bytes, args, keys),
            // It is refused.
            Lookup::WrongArity(_) | Lookup::UnknownSubcommand(_) => Writes::Any,
            Lookup::UnknownCommand => Writes::Any,
        },
        Parsed::Partial { .. } => {
            let count = parser.announced();
            let command = count.and_then(|count| redis::find_begun(bytes, args, count));
            match command.and_then(|command| Some((command, command.single_key()?))) {
                Some((command, _)) if command.access.reads() => Writes::Nothing,
                Some((_, key)) if key < args.len() => {
                    keys.push(args[key]);
                    Writes::Keys
                }
                _ => Writes::Any,
            }
        }
        Parsed::Invalid(_) => Writes::Any,
    }
}

fn of_command(command: &Command, bytes: &[u8], args: &[Span], keys: &mut Vec<Span>) -> Writes {
    match command.name {
        "multi" => return Writes::Multi,
        "exec" => return Writes::Exec,
        "discard" => return Writes::Discard,
        _ => {}
    }
    let calls = matches!(command.name, "eval" | "evalsha" | "fcall");
    let administers = command.group == Group::Server && command.name.starts_with("debug");
    let is_written = match command.access {
        Access::Read | Access::Walk => false,
        Access::Write => true,
        Access::None => calls || administers,
    };
    if !is_written {
        return Writes::Nothing;
    }
    let before = keys.len();
    match command.keys(bytes, args, keys) {
        Ok(()) if keys.len() > before => Writes::Keys,
        _ => Writes::Any,
    }
}

#[cfg(test)]
mod tests {
    use cashew_protocol::resp::encode;

    use super::*;

    fn of(words: &str) -> (Writes, Vec<String>) {
        let mut text = Vec::new();
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        encode::write_command(&mut text, &words);
        let (mut parser, mut keys) = (RequestParser::default(), Vec::new());
        let writes = writes(&mut parser, &text, &mut keys);
        let text = |key: &Span| String::from_utf8_lossy(key.of(&text)).into_owned();
        (writes, keys.iter().map(text).collect())
    }

    #[test]
    fn commands_write_their_keys() {
        for (words, writes, keys) in [
            ("GET a", Writes::Nothing, ""),
            ("PING", Writes::Nothing, ""),
            ("SCRIPT FLUSH", Writes::Nothing, ""),
            ("SET a x", Writes::Keys, "a"),
            ("MSET a x b y", Writes::Keys, "a b"),
            ("EVAL x 2 a b c", Writes::Keys, "a b"),
            ("EVAL x 0", Writes::Any, ""),
            ("EVAL_RO x 0", Writes::Nothing, ""),
            ("FCALL f 1 a", Writes::Keys, "a"),
            ("SORT a STORE b", Writes::Keys, "a b"),
            ("BLPOP a b 0", Writes::Keys, "a b"),
            ("FLUSHALL", Writes::Any, ""),
            ("SWAPDB 0 1", Writes::Any, ""),
            ("MODULE.WRITE a", Writes::Any, ""),
            ("MULTI", Writes::Multi, ""),
            ("EXEC", Writes::Exec, ""),
            ("DISCARD", Writes::Discard, ""),
        ] {
            let (found, found_keys) = of(words);
            assert_eq!((found, found_keys.join(" ")), (writes, keys.to_owned()), "{words}");
        }
    }

    #[test]
    fn the_start_of_a_large_request_tells_enough() {
        let mut text = Vec::new();
        encode::write_command(&mut text, &[b"SET", b"key", &[b'x'; 4096]]);
        let (mut parser, mut keys) = (RequestParser::default(), Vec::new());
        assert_eq!(writes(&mut parser, &text[..1024], &mut keys), Writes::Keys);
        assert_eq!(keys[0].of(&text), b"key");
        keys.clear();
        text.clear();
        encode::write_command(&mut text, &[b"MSET", b"key", &[b'x'; 4096], b"other", b"y"]);
        assert_eq!(writes(&mut parser, &text[..1024], &mut keys), Writes::Any);
    }
}
