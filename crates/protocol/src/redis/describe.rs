//! COMMAND and its subcommands, answered from the table in the shape of Redis 7.

use super::lookup::{by_name, subcommands};
use super::{Access, COMMANDS, Command, Keys, Lookup, find};
use super::{unknown_subcommand_error, wrong_arity_error};
use crate::Span;
use crate::resp::encode::{
    write_array_header, write_bulk, write_error, write_integer, write_nil_array, write_status,
};

/// Names that COMMAND INFO and COMMAND DOCS answer at once: what they say about one can be many times
/// as long as its name.
const NAMES_MAX: usize = 1024;

/// Answers the COMMAND that `args` (of `buf`) are.
pub fn command_reply(buf: &[u8], args: &[Span], out: &mut Vec<u8>) {
    match find(buf, args) {
        Lookup::Found(command) => match command.name {
            "command|count" => write_integer(out, containers_and_commands().count() as i64),
            "command|docs" | "command|info" if args.len() - 2 > NAMES_MAX => {
                write_error(out, b"ERR too many command names");
            }
            "command|docs" => docs(buf, &args[2..], out),
            "command|getkeys" => getkeys(buf, &args[2..], out),
            "command|info" => info(buf, &args[2..], out),
            "command|list" => list(buf, &args[2..], out),
            _ => info(buf, &[], out),
        },
        Lookup::UnknownSubcommand(container) => unknown_subcommand_error(out, container, buf, args),
        Lookup::WrongArity(command) => wrong_arity_error(out, command),
        Lookup::UnknownCommand => info(buf, &[], out),
    }
}

/// Every entry but the subcommands, with its index.
fn containers_and_commands() -> impl Iterator<Item = (usize, &'static Command)> {
    COMMANDS.iter().enumerate().filter(|(_, command)| !command.name.contains('|'))
}

/// The named entry, which may be a subcommand as "container|subcommand", and its index.
fn named(name: &[u8]) -> Option<(usize, &'static Command)> {
    by_name(name).or_else(|| {
        COMMANDS
            .iter()
            .enumerate()
            .find(|(_, command)| command.name.as_bytes().eq_ignore_ascii_case(name))
    })
}

fn info(buf: &[u8], names: &[Span], out: &mut Vec<u8>) {
    if names.is_empty() {
        write_array_header(out, containers_and_commands().count());
        containers_and_commands().for_each(|(at, command)| entry(at, command, out));
        return;
    }
    write_array_header(out, names.len());
    for name in names {
        match named(name.of(buf)) {
            Some((at, command)) => entry(at, command, out),
            None => write_nil_array(out),
        }
    }
}

/// Name, arity, flags, first key, last key, step, ACL categories, tips, key specifications and
/// subcommands. The gateway has no ACL, and gives no tips and no key specifications.
fn entry(at: usize, command: &Command, out: &mut Vec<u8>) {
    let (first, last, step) = command.key_range();
    write_array_header(out, 10);
    write_bulk(out, command.name.as_bytes());
    write_integer(out, command.arity.into());
    flags(command, out);
    write_integer(out, first.into());
    write_integer(out, last.into());
    write_integer(out, step.into());
    (0..3).for_each(|_| write_array_header(out, 0));
    write_array_header(out, command.subcommands.into());
    // Subcommands have none of their own: the nesting is two deep at most.
    for (offset, subcommand) in subcommands(at).enumerate() {
        entry(at + 1 + offset, subcommand, out);
    }
}

fn flags(command: &Command, out: &mut Vec<u8>) {
    let access = match command.access {
        Access::Read => Some("readonly"),
        Access::Write => Some("write"),
        Access::None => None,
    };
    let movable = command.has_movable_keys().then_some("movablekeys");
    let flags = || access.into_iter().chain(command.flags.split_whitespace()).chain(movable);
    write_array_header(out, flags().count());
    flags().for_each(|flag| write_status(out, flag.as_bytes()));
}

/// A map from names to maps, as RESP2 writes maps. The table does not know what commands do, but
/// redis-cli prints summaries without looking whether there are any; so each says where to read on.
fn docs(buf: &[u8], names: &[Span], out: &mut Vec<u8>) {
    let known = || names.iter().filter_map(|name| named(name.of(buf)));
    if names.is_empty() {
        write_array_header(out, containers_and_commands().count() * 2);
        containers_and_commands().for_each(|(at, command)| documentation(at, command, out));
    } else {
        write_array_header(out, known().count() * 2);
        known().for_each(|(at, command)| documentation(at, command, out));
    }
}

fn documentation(at: usize, command: &Command, out: &mut Vec<u8>) {
    write_bulk(out, command.name.as_bytes());
    write_array_header(out, if command.subcommands > 0 { 6 } else { 4 });
    write_bulk(out, b"summary");
    let page = command.name.replace('|', "-");
    write_bulk(out, format!("See https://redis.io/commands/{page}").as_bytes());
    write_bulk(out, b"group");
    write_bulk(out, command.group.name().as_bytes());
    if command.subcommands > 0 {
        write_bulk(out, b"subcommands");
        write_array_header(out, usize::from(command.subcommands) * 2);
        for (offset, subcommand) in subcommands(at).enumerate() {
            documentation(at + 1 + offset, subcommand, out);
        }
    }
}

fn list(buf: &[u8], filter: &[Span], out: &mut Vec<u8>) {
    let all = || COMMANDS.iter().map(|command| command.name.as_bytes());
    let is = |at: usize, text: &str| filter[at].of(buf).eq_ignore_ascii_case(text.as_bytes());
    match filter.len() {
        0 => {
            write_array_header(out, all().count());
            all().for_each(|name| write_bulk(out, name));
        }
        3 if is(0, "filterby") && is(1, "pattern") => {
            let pattern = filter[2].of(buf);
            let matching = || all().filter(|name| matches(pattern, name));
            write_array_header(out, matching().count());
            matching().for_each(|name| write_bulk(out, name));
        }
        3 if is(0, "filterby") && (is(1, "module") || is(1, "aclcat")) => {
            // No command comes from a module, and none is in an ACL category.
            write_array_header(out, 0);
        }
        _ => write_error(out, b"ERR syntax error"),
    }
}

/// Glob matching in any case with `*` and `?`; the names of commands need no more.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut in_pattern, mut in_name) = (0, 0);
    // Behind the last star, and what it has taken so far: the one place to go back to.
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                in_pattern += 1;
                star = Some((in_pattern, in_name));
            }
            Some(&byte) if byte == b'?' || byte.eq_ignore_ascii_case(&name[in_name]) => {
                in_pattern += 1;
                in_name += 1;
            }
            _ => match star {
                Some((behind, taken)) => {
                    in_pattern = behind;
                    in_name = taken + 1;
                    star = Some((behind, in_name));
                }
                None => return false,
            },
        }
    }
    pattern[in_pattern..].iter().all(|&byte| byte == b'*')
}

fn getkeys(buf: &[u8], call: &[Span], out: &mut Vec<u8>) {
    let command = match find(buf, call) {
        Lookup::Found(command) | Lookup::WrongArity(command) => command,
        Lookup::UnknownCommand | Lookup::UnknownSubcommand(_) => {
            return write_error(out, b"ERR Invalid command specified");
        }
    };
    if command.keys == Keys::None {
        return write_error(out, b"ERR The command has no key arguments");
    }
    if !command.takes(call.len()) {
        return write_error(out, b"ERR Invalid number of arguments specified for command");
    }
    let mut keys = Vec::new();
    let found = command.keys(buf, call, &mut keys);
    let may_be_none = command.flags.contains("no_mandatory_keys");
    if found.is_err() || keys.is_empty() && !may_be_none {
        return write_error(out, b"ERR Invalid arguments specified for command");
    }
    write_array_header(out, keys.len());
    keys.iter().for_each(|key| write_bulk(out, key.of(buf)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Elements, Parsed, Reply, RequestParser, reply};

    fn answer(call: &str) -> Vec<u8> {
        let line = format!("{call}\n");
        let mut parser = RequestParser::default();
        assert_eq!(parser.parse(line.as_bytes(), line.len()), Parsed::Complete { len: line.len() });
        let mut out = Vec::new();
        command_reply(parser.inline_encoded().unwrap(), parser.args(), &mut out);
        out
    }

    fn elements(encoded: &[u8]) -> Elements<'_> {
        match reply(encoded) {
            Some(Reply::Array(elements)) => elements,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_entry_has_ten_elements_and_is_counted() {
        let all = answer("COMMAND");
        let Some(Reply::Integer(count)) = reply(&answer("COMMAND COUNT")) else {
            panic!("a count");
        };
        assert_eq!(elements(&all).len() as i64, count);
        assert_eq!(answer("command info"), all);
        let mut entries = 0;
        for entry in elements(&all) {
            let mut parts = elements(entry);
            assert_eq!(parts.len(), 10);
            let inner = elements(parts.nth(9).unwrap());
            entries += 1 + inner.len();
            inner.for_each(|entry| assert_eq!(elements(entry).len(), 10));
        }
        assert_eq!(entries, COMMANDS.len());
        assert_eq!(elements(&answer("COMMAND LIST")).len(), COMMANDS.len());
        assert_eq!(elements(&answer("COMMAND DOCS")).len() as i64, 2 * count);
    }

    #[test]
    fn entries_are_shaped_as_in_redis_7() {
        assert_eq!(
            answer("COMMAND INFO Get nope OBJECT|FREQ").escape_ascii().to_string(),
            "*3\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*0\r\n\
             *0\r\n*0\r\n*0\r\n*-1\r\n*10\r\n$11\r\nobject|freq\r\n:3\r\n*1\r\n+readonly\r\n:2\r\n\
             :2\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n"
                .as_bytes()
                .escape_ascii()
                .to_string()
        );
        assert_eq!(
            answer("COMMAND DOCS get nope"),
            b"*2\r\n$3\r\nget\r\n*4\r\n$7\r\nsummary\r\n$33\r\nSee https://redis.io/commands/get\r\n$5\r\ngroup\r\n$6\r\nstring\r\n"
        );
    }

    #[test]
    fn keys_and_lists_can_be_asked_for() {
        assert_eq!(answer("COMMAND GETKEYS MSET a 1 b 2"), b"*2\r\n$1\r\na\r\n$1\r\nb\r\n");
        assert_eq!(answer("COMMAND GETKEYS EVAL x 0"), b"*0\r\n");
        assert_eq!(answer("COMMAND LIST FILTERBY PATTERN X*PTY*"), b"*0\r\n", "nothing matches");
        assert_eq!(elements(&answer("COMMAND LIST FILTERBY PATTERN xg*")).len(), 7);
        assert_eq!(elements(&answer("COMMAND LIST FILTERBY PATTERN g?T")).len(), 1);
        assert_eq!(elements(&answer("COMMAND LIST FILTERBY PATTERN *")).len(), COMMANDS.len());
    }

    #[test]
    fn wrong_questions_get_redis_errors() {
        let cases = [
            ("COMMAND NOPE", "ERR unknown subcommand 'NOPE'. Try COMMAND HELP."),
            ("COMMAND COUNT x", "ERR wrong number of arguments for 'command|count' command"),
            ("COMMAND LIST FOO", "ERR syntax error"),
            ("COMMAND LIST FILTERBY FOO x", "ERR syntax error"),
            ("COMMAND GETKEYS GET", "ERR wrong number of arguments for 'command|getkeys' command"),
            ("COMMAND GETKEYS NOPE x", "ERR Invalid command specified"),
            ("COMMAND GETKEYS OBJECT NOPE", "ERR Invalid command specified"),
            ("COMMAND GETKEYS ECHO a", "ERR The command has no key arguments"),
            ("COMMAND GETKEYS SET a", "ERR Invalid number of arguments specified for command"),
            (
                "COMMAND GETKEYS MIGRATE h 1 a 0 1 KEYS b",
                "ERR Invalid arguments specified for command",
            ),
            ("COMMAND GETKEYS ZUNION 3 a b", "ERR Invalid arguments specified for command"),
        ];
        for (call, error) in cases {
            assert_eq!(answer(call), format!("-{error}\r\n").as_bytes(), "{call}");
        }
        let many = format!("COMMAND INFO {}", "x ".repeat(NAMES_MAX + 1));
        assert_eq!(answer(&many), b"-ERR too many command names\r\n");
    }
}
