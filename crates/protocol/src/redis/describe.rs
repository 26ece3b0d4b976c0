//! COMMAND and its subcommands, answered from the table in the shape of Redis 7.

use super::lookup::{by_name, subcommand_name, subcommands};
use super::{Access, BeginSearch, COMMANDS, Command, CustomCommands, FindKeys, Group, KeySpec};
use super::{Called, Lookup, Renames, find};
use super::{unknown_subcommand_error, wrong_arity_error};
use crate::Span;
use crate::resp::Version;
use crate::resp::encode::{
    write_array_header, write_bulk, write_error, write_integer, write_map_header, write_null,
    write_set_header, write_status,
};

/// The most commands, with their subcommands, in one COMMAND INFO reply: an entry can be many times
/// as long as its name. All commands together are fewer.
const ENTRIES_MAX: usize = 1024;

/// The reply to the COMMAND in `args` (in `buf`), for a client of this version. `custom` are the
/// commands besides those of the table. As in Redis, commands with another name are asked for by that,
/// and described with their own.
pub fn command_reply(
    buf: &[u8],
    args: &[Span],
    (custom, renames): (&CustomCommands, Option<&Renames>),
    version: Version,
    out: &mut Vec<u8>,
) {
    Answer { buf, custom, renames, version, out }.command(args);
}

struct Answer<'a> {
    buf: &'a [u8],
    custom: &'a CustomCommands,
    renames: Option<&'a Renames>,
    version: Version,
    out: &'a mut Vec<u8>,
}

impl Answer<'_> {
    fn command(&mut self, args: &[Span]) {
        match find(self.buf, args) {
            Lookup::Found(command) => match command.name {
                "command|count" => {
                    let count = self.entries().len();
                    write_integer(self.out, count as i64);
                }
                "command|getkeys" => self.getkeys(&args[2..], false),
                "command|getkeysandflags" => self.getkeys(&args[2..], true),
                "command|info" if self.tells_too_much(&args[2..]) => {
                    write_error(self.out, b"ERR too many command names");
                }
                "command|info" => self.info(&args[2..]),
                "command|list" => self.list(&args[2..]),
                _ => self.info(&[]),
            },
            Lookup::UnknownSubcommand(container) => {
                unknown_subcommand_error(self.out, container, self.buf, args);
            }
            Lookup::WrongArity(command) => wrong_arity_error(self.out, command),
            Lookup::UnknownCommand => self.info(&[]),
        }
    }

    fn tells_too_much(&self, names: &[Span]) -> bool {
        let entries = |name: &Span| {
            let named = self.named(name.of(self.buf));
            1 + named.map_or(0, |command| self.subcommands(command).len())
        };
        names.len() > ENTRIES_MAX || names.iter().map(entries).sum::<usize>() > ENTRIES_MAX
    }

    /// All but the subcommands.
    fn entries(&self) -> Vec<&'static Command> {
        let is_there =
            |command: &&Command| self.renames.is_none_or(|renames| !renames.disables(command));
        let table = COMMANDS.iter().filter(|command| !command.name.contains('|'));
        let table = table.filter(is_there);
        table.chain(self.custom.iter()).collect()
    }

    /// Those that COMMAND shows.
    fn subcommands(&self, container: &'static Command) -> Vec<&'static Command> {
        if container.subcommands == 0 || container.facts.is_open {
            return Vec::new();
        }
        match by_name(container.name.as_bytes()) {
            Some((at, _)) => subcommands(at).collect(),
            None => self.custom.subcommands(container).collect(),
        }
    }

    /// By name, which may be a subcommand's, as "container|subcommand".
    fn named(&self, name: &[u8]) -> Option<&'static Command> {
        let Some(bar) = memchr::memchr(b'|', name) else {
            match self.renames.map(|renames| renames.called(name)) {
                Some(Called::Renamed(command)) => return Some(command),
                Some(Called::Gone) => return None,
                Some(Called::AsEver) | None => {}
            }
            return by_name(name).map(|(_, found)| found).or_else(|| self.custom.by_name(name));
        };
        let container = self.named(&name[..bar])?;
        let mut subcommands = self.subcommands(container).into_iter();
        subcommands.find(|command| subcommand_name(command).eq_ignore_ascii_case(&name[bar + 1..]))
    }

    fn info(&mut self, names: &[Span]) {
        if names.is_empty() {
            let entries = self.entries();
            write_array_header(self.out, entries.len());
            entries.into_iter().for_each(|command| self.entry(command));
            return;
        }
        write_array_header(self.out, names.len());
        for name in names {
            match self.named(name.of(self.buf)) {
                Some(command) => self.entry(command),
                None => write_null(self.out, self.version),
            }
        }
    }

    /// Name, arity, flags, first key, last key, step, ACL categories, tips, key specifications and
    /// subcommands.
    fn entry(&mut self, command: &'static Command) {
        let (first, last, step) = command.key_range();
        write_array_header(self.out, 10);
        write_bulk(self.out, command.name.as_bytes());
        write_integer(self.out, command.arity.into());
        self.statuses(command.flags());
        write_integer(self.out, first.into());
        write_integer(self.out, last.into());
        write_integer(self.out, step.into());
        self.statuses(command.categories());
        let tips: Vec<&str> = command.facts.tips.split_whitespace().collect();
        write_set_header(self.out, self.version, tips.len());
        tips.iter().for_each(|tip| write_bulk(self.out, tip.as_bytes()));
        let specs = command.key_specs();
        write_set_header(self.out, self.version, specs.len());
        specs.iter().for_each(|spec| self.key_spec(spec));
        let subcommands = self.subcommands(command);
        match subcommands.len() {
            0 => write_set_header(self.out, self.version, 0),
            len => write_array_header(self.out, len),
        }
        // Subcommands have none of their own: the nesting is at most two deep.
        subcommands.into_iter().for_each(|subcommand| self.entry(subcommand));
    }

    fn statuses(&mut self, texts: Vec<&str>) {
        write_set_header(self.out, self.version, texts.len());
        texts.iter().for_each(|text| write_status(self.out, text.as_bytes()));
    }

    fn key_spec(&mut self, spec: &KeySpec) {
        write_map_header(self.out, self.version, 3);
        write_bulk(self.out, b"flags");
        self.statuses(spec.uses.split_whitespace().collect());
        write_bulk(self.out, b"begin_search");
        match spec.begin {
            BeginSearch::Index(index) => self.search("index", &[("index", index.into())]),
            BeginSearch::Keyword(word, from) => {
                self.search_header("keyword", 2);
                write_bulk(self.out, b"keyword");
                write_bulk(self.out, word.as_bytes());
                self.number("startfrom", from.into());
            }
            BeginSearch::Unknown => self.search("unknown", &[]),
        }
        write_bulk(self.out, b"find_keys");
        match spec.find {
            FindKeys::Range { last, step, limit } => {
                let numbers =
                    [("lastkey", last.into()), ("keystep", step.into()), ("limit", limit.into())];
                self.search("range", &numbers);
            }
            FindKeys::Keynum { first, step } => {
                let numbers =
                    [("keynumidx", 0), ("firstkey", first.into()), ("keystep", step.into())];
                self.search("keynum", &numbers);
            }
            FindKeys::Unknown => self.search("unknown", &[]),
        }
    }

    fn search(&mut self, kind: &str, numbers: &[(&str, i64)]) {
        self.search_header(kind, numbers.len());
        numbers.iter().for_each(|&(name, number)| self.number(name, number));
    }

    fn search_header(&mut self, kind: &str, pairs: usize) {
        write_map_header(self.out, self.version, 2);
        write_bulk(self.out, b"type");
        write_bulk(self.out, kind.as_bytes());
        write_bulk(self.out, b"spec");
        write_map_header(self.out, self.version, pairs);
    }

    fn number(&mut self, name: &str, number: i64) {
        write_bulk(self.out, name.as_bytes());
        write_integer(self.out, number);
    }

    fn list(&mut self, filter: &[Span]) {
        let buf = self.buf;
        let is = |at: usize, text: &str| filter[at].of(buf).eq_ignore_ascii_case(text.as_bytes());
        let entries = self.entries().into_iter();
        let all = entries.flat_map(|command| {
            let mut family = self.subcommands(command);
            family.insert(0, command);
            family
        });
        let listed: Vec<&Command> = match filter.len() {
            0 => all.collect(),
            3 if is(0, "filterby") && is(1, "pattern") => {
                let pattern = filter[2].of(buf);
                // It is matched against every name.
                if pattern.len() > PATTERN_MAX {
                    return write_error(self.out, b"ERR pattern is too long");
                }
                all.filter(|command| matches(pattern, command.name.as_bytes())).collect()
            }
            3 if is(0, "filterby") && is(1, "aclcat") => {
                let category = filter[2].of(buf);
                let is_in = |of: &&str| of.as_bytes()[1..].eq_ignore_ascii_case(category);
                all.filter(|command| command.categories().iter().any(is_in)).collect()
            }
            // The modules of commands are not known.
            3 if is(0, "filterby") && is(1, "module") => Vec::new(),
            _ => return write_error(self.out, b"ERR syntax error"),
        };
        write_array_header(self.out, listed.len());
        listed.iter().for_each(|command| write_bulk(self.out, command.name.as_bytes()));
    }

    fn getkeys(&mut self, call: &[Span], with_flags: bool) {
        let lookup = match self.renames {
            Some(renames) => renames.find(self.buf, call),
            None => find(self.buf, call),
        };
        let lookup = match lookup {
            Lookup::UnknownCommand => self.custom.find(self.buf, call),
            lookup => lookup,
        };
        let command = match lookup {
            Lookup::Found(command) | Lookup::WrongArity(command) => command,
            Lookup::UnknownCommand | Lookup::UnknownSubcommand(_) => {
                return write_error(self.out, b"ERR Invalid command specified");
            }
        };
        if command.has_no_true_keys() {
            return write_error(self.out, b"ERR The command has no key arguments");
        }
        if !command.takes(call.len()) {
            return write_error(self.out, b"ERR Invalid number of arguments specified for command");
        }
        let mut keys = Vec::new();
        let found = command.keys(self.buf, call, &mut keys);
        let may_be_none = command.facts.flags.contains("no_mandatory_keys");
        if found.is_err() || keys.is_empty() && !may_be_none {
            return write_error(self.out, b"ERR Invalid arguments specified for command");
        }
        write_array_header(self.out, keys.len());
        for (position, key) in keys.iter().enumerate() {
            if with_flags {
                write_array_header(self.out, 2);
            }
            write_bulk(self.out, key.of(self.buf));
            if with_flags {
                let uses = command.uses_in(self.buf, call, position);
                self.statuses(uses.split_whitespace().collect());
            }
        }
    }
}

impl Command {
    fn flags(&self) -> Vec<&'static str> {
        let access = match self.access {
            Access::Read | Access::Walk => Some("readonly"),
            Access::Write => Some("write"),
            Access::None => None,
        };
        let movable = self.has_movable_keys().then_some("movablekeys");
        access.into_iter().chain(self.facts.flags.split_whitespace()).chain(movable).collect()
    }

    /// Redis's ACL categories, with "@".
    pub fn categories(&self) -> Vec<&'static str> {
        let has = |flag: &str| self.has_flag(flag);
        let implied = [
            ("@write", self.access == Access::Write),
            ("@read", self.access.reads() && self.group != Group::Scripting),
            ("@admin", has("admin")),
            ("@dangerous", has("admin")),
            ("@pubsub", has("pubsub")),
            ("@fast", has("fast")),
            ("@slow", !has("fast")),
            ("@blocking", has("blocking")),
        ];
        let explicit = match self.facts.categories {
            Some(categories) => categories,
            None if self.subcommands > 0 => "",
            None => self.group.category(),
        };
        let mut all: Vec<&str> =
            implied.iter().filter(|(_, is)| *is).map(|&(name, _)| name).collect();
        for category in explicit.split_whitespace() {
            if !all.contains(&category) {
                all.push(category);
            }
        }
        all
    }
}

impl Group {
    /// The ACL category that most of its commands are in.
    fn category(self) -> &'static str {
        match self {
            Self::Array => "@array",
            Self::Bitmap => "@bitmap",
            Self::Cluster | Self::Module | Self::Server => "",
            Self::Connection => "@connection",
            Self::Generic => "@keyspace",
            Self::Geo => "@geo",
            Self::Hash => "@hash",
            Self::Hyperloglog => "@hyperloglog",
            Self::List => "@list",
            Self::Pubsub => "@pubsub",
            Self::Scripting => "@scripting",
            Self::Set => "@set",
            Self::SortedSet => "@sortedset",
            Self::Stream => "@stream",
            Self::String => "@string",
            Self::Transactions => "@transaction",
        }
    }
}

/// Longest pattern of COMMAND LIST, several times the longest name.
const PATTERN_MAX: usize = 256;

/// Glob matching in any case with `*` and `?`; the names of commands need no more.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut in_pattern, mut in_name) = (0, 0);
    // The position after the last star, and what it has matched so far: the only place to go back
    // to.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{Definition, KeyPlaces};
    use crate::resp::{Elements, Parsed, Reply, RequestParser, reply};

    fn answer(call: &str) -> Vec<u8> {
        answer_with(call, &CustomCommands::default(), Version::Resp2)
    }

    fn answer_with(call: &str, custom: &CustomCommands, version: Version) -> Vec<u8> {
        let line = format!("{call}\n");
        let mut parser = RequestParser::default();
        assert_eq!(parser.parse(line.as_bytes(), line.len()), Parsed::Complete { len: line.len() });
        let mut out = Vec::new();
        let known = (custom, None);
        command_reply(parser.inline_encoded().unwrap(), parser.args(), known, version, &mut out);
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
        let known = COMMANDS.iter().filter(|command| !command.name.starts_with("debug|")).count();
        assert_eq!(entries, known);
        assert_eq!(elements(&answer("COMMAND LIST")).len(), known);
    }

    #[test]
    fn entries_are_shaped_as_in_redis_7() {
        let spec = "*6\r\n$5\r\nflags\r\n*2\r\n+RO\r\n+access\r\n$12\r\nbegin_search\r\n*4\r\n\
                    $4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n\
                    $9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n\
                    $7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n";
        let expected = format!(
            "*3\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n\
             *3\r\n+@read\r\n+@fast\r\n+@string\r\n*0\r\n*1\r\n{spec}*0\r\n$-1\r\n\
             *10\r\n$4\r\ntime\r\n:1\r\n*3\r\n+loading\r\n+stale\r\n+fast\r\n:0\r\n:0\r\n:0\r\n\
             *1\r\n+@fast\r\n*1\r\n$23\r\nnondeterministic_output\r\n*0\r\n*0\r\n"
        );
        let answered = answer("COMMAND INFO Get nope TIME");
        assert_eq!(String::from_utf8(answered).unwrap(), expected);
        let answered =
            answer_with("COMMAND INFO TIME no", &CustomCommands::default(), Version::Resp3);
        let expected = "*2\r\n*10\r\n$4\r\ntime\r\n:1\r\n~3\r\n+loading\r\n+stale\r\n+fast\r\n:0\r\n:0\r\n\
                        :0\r\n~1\r\n+@fast\r\n~1\r\n$23\r\nnondeterministic_output\r\n~0\r\n~0\r\n_\r\n";
        assert_eq!(String::from_utf8(answered).unwrap(), expected);
    }

    #[test]
    fn custom_commands_are_described_too() {
        let key = KeyPlaces::Range { first: 1, last: 1, step: 1 };
        let definition = |name: &str, arity, keys| Definition {
            name: name.into(),
            arity,
            keys,
            flags: vec!["readonly".into()],
        };
        let definitions = [
            definition("json.get", -2, key),
            definition("json.debug", -2, KeyPlaces::None),
            definition("json.debug|help", 2, KeyPlaces::None),
        ];
        let custom = CustomCommands::new(&definitions, &CustomCommands::default());
        let ask = |call: &str| answer_with(call, &custom, Version::Resp2);
        let Some(Reply::Integer(count)) = reply(&answer("COMMAND COUNT")) else {
            panic!("a count");
        };
        assert_eq!(ask("COMMAND COUNT"), format!(":{}\r\n", count + 2).as_bytes());
        assert_eq!(elements(&ask("COMMAND LIST FILTERBY PATTERN json*")).len(), 3);
        assert_eq!(ask("COMMAND GETKEYS JSON.GET doc $"), b"*1\r\n$3\r\ndoc\r\n");
        let info = ask("COMMAND INFO JSON.DEBUG|HELP json.get");
        assert!(info.starts_with(b"*2\r\n*10\r\n$15\r\njson.debug|help\r\n:2\r\n"));
    }

    #[test]
    fn keys_and_lists_can_be_asked_for() {
        assert_eq!(answer("COMMAND GETKEYS MSET a 1 b 2"), b"*2\r\n$1\r\na\r\n$1\r\nb\r\n");
        assert_eq!(answer("COMMAND GETKEYS EVAL x 0"), b"*0\r\n");
        assert_eq!(answer("COMMAND LIST FILTERBY PATTERN X*PTY*"), b"*0\r\n", "nothing matches");
        assert_eq!(elements(&answer("COMMAND LIST FILTERBY PATTERN xg*")).len(), 7);
        assert_eq!(elements(&answer("COMMAND LIST FILTERBY PATTERN g?T")).len(), 1);
        assert_eq!(answer("COMMAND LIST FILTERBY PATTERN *"), answer("COMMAND LIST"));
        let long = format!("COMMAND LIST FILTERBY PATTERN {}", "*".repeat(257));
        assert_eq!(answer(&long), b"-ERR pattern is too long\r\n");
        assert_eq!(elements(&answer("COMMAND LIST FILTERBY ACLCAT geo")).len(), 10);
        assert_eq!(
            answer("COMMAND GETKEYSANDFLAGS LMOVE a b LEFT LEFT"),
            b"*2\r\n*2\r\n$1\r\na\r\n*3\r\n+RW\r\n+access\r\n+delete\r\n*2\r\n$1\r\nb\r\n*2\r\n+RW\r\n+insert\r\n"
        );
    }

    #[test]
    fn wrong_questions_get_redis_errors() {
        let cases = [
            ("COMMAND NOPE", "ERR unknown subcommand 'NOPE'. Try COMMAND HELP."),
            ("COMMAND COUNT x", "ERR wrong number of arguments for 'command|count' command"),
            ("COMMAND LIST FOO", "ERR syntax error"),
            ("COMMAND LIST FILTERBY FOO x", "ERR syntax error"),
            ("COMMAND GETKEYS", "ERR wrong number of arguments for 'command|getkeys' command"),
            ("COMMAND GETKEYS SPUBLISH a b", "ERR The command has no key arguments"),
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
        let many = |name: &str, count| format!("COMMAND INFO {}", format!("{name} ").repeat(count));
        let too_many: &[u8] = b"-ERR too many command names\r\n";
        assert_eq!(answer(&many("x", ENTRIES_MAX + 1)), too_many);
        assert_ne!(answer(&many("x", ENTRIES_MAX)), too_many);
        // It has over a dozen subcommands.
        assert_eq!(answer(&many("client", ENTRIES_MAX / 12)), too_many);
        let all: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
        assert_ne!(answer(&format!("COMMAND INFO {}", all.join(" "))), too_many);
    }
}
