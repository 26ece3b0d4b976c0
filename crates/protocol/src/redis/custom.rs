//! Commands that are not in the table: those of modules, from the configuration or from servers.

use super::lookup::{by_name, subcommand_name};
use super::{
    Access, CUSTOM_ID, Clearance, Command, Facts, Group, Keys, Lookup, NumkeysFaults, Rule,
};
use crate::Span;
use crate::resp::{Elements, Reply, reply};

/// The most commands of a pool besides those of the table.
pub const CUSTOM_MAX: usize = 1024;
/// Bytes of a custom command's name.
pub const CUSTOM_NAME_MAX: usize = 64;

const NO_KEYS: &str = "ERR this command names no keys that would tell which of the servers it is \
                       for; with one server it is forwarded";
const UNKNOWN_KEYS: &str = "ERR where the keys of this command are is not known here; with one \
                            server it is forwarded";

const FAULTS: NumkeysFaults = NumkeysFaults {
    malformed: "ERR value is not an integer or out of range",
    negative: "ERR Number of keys can't be negative",
    zero: None,
    too_many: "ERR Number of keys can't be greater than number of args",
};

/// What must be known of a command to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// In any case; a subcommand is "container|subcommand".
    pub name: String,
    /// As in COMMAND.
    pub arity: i16,
    pub keys: KeyPlaces,
    /// Redis's flags: "readonly", "write" and "blocking" matter here.
    pub flags: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlaces {
    None,
    /// As in COMMAND.
    Range {
        first: u16,
        last: i16,
        step: u16,
    },
    /// Their number at `at`, the keys from `first` on.
    Numkeys {
        at: u16,
        first: u16,
        step: u16,
    },
    /// Somewhere.
    Unknown,
}

/// Why a definition is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub of: FaultOf,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOf {
    Name,
    Arity,
    Keys,
}

impl Definition {
    pub fn fault(&self) -> Option<Fault> {
        let words = self.name.split('|').count();
        let name = self.name_fault().map(|text| (FaultOf::Name, text));
        let arity = || {
            let is_enough = usize::from(self.arity.unsigned_abs()) >= words;
            (!is_enough).then(|| {
                (FaultOf::Arity, format!("the arity counts the name itself: {words} at least"))
            })
        };
        let keys = || self.keys_fault(words).map(|text| (FaultOf::Keys, text));
        name.or_else(arity).or_else(keys).map(|(of, text)| Fault { of, text })
    }

    fn name_fault(&self) -> Option<String> {
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'|')
        };
        let mut words = self.name.split('|');
        let is_of_words = words.clone().count() <= 2 && words.clone().all(is_word);
        if self.name.len() > CUSTOM_NAME_MAX || !is_of_words {
            return Some(format!(
                "a name is one word of up to {CUSTOM_NAME_MAX} bytes, or a container and a \
                 subcommand with \"|\" between them"
            ));
        }
        let word = words.next().unwrap_or_default();
        by_name(word.as_bytes()).map(|_| format!("Redis itself has \"{word}\""))
    }

    /// The name has so many words.
    fn keys_fault(&self, words: usize) -> Option<String> {
        let args_min = usize::from(self.arity.unsigned_abs());
        let place = match self.keys {
            KeyPlaces::None | KeyPlaces::Unknown => return None,
            KeyPlaces::Range { first, .. } => usize::from(first),
            KeyPlaces::Numkeys { at, .. } => usize::from(at),
        };
        match self.keys {
            _ if place < words => {
                Some(format!("the keys come after the name: they begin at {words} or later"))
            }
            _ if place >= args_min => Some(format!(
                "by the arity, {args_min} arguments with the name are enough, and then there is \
                 none at {place}"
            )),
            KeyPlaces::Range { first, last, .. }
                if last >= 0 && i32::from(last) < i32::from(first) =>
            {
                Some("the last key is in front of the first".into())
            }
            KeyPlaces::Range { step: 0, .. } | KeyPlaces::Numkeys { step: 0, .. } => {
                Some("the step from one key to the next is 1 at least".into())
            }
            _ => None,
        }
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|of_it| of_it.eq_ignore_ascii_case(flag))
    }

    /// Its flags besides those that follow from the other fields.
    fn other_flags(&self) -> String {
        const DERIVED: [&str; 4] = ["write", "readonly", "movablekeys", "module"];
        let flags = self.flags.iter().map(|flag| flag.to_ascii_lowercase());
        let others = flags.filter(|flag| !DERIVED.contains(&flag.as_str()));
        others.chain(["module".into()]).collect::<Vec<_>>().join(" ")
    }

    fn entry(&self, name: &'static str, flags: &'static str, subcommands: u8) -> Command {
        let access = match (self.has("write"), self.has("readonly")) {
            (true, _) => Access::Write,
            (false, true) => Access::Read,
            (false, false) => Access::None,
        };
        let (keys, uses) = match self.keys {
            KeyPlaces::None | KeyPlaces::Unknown => (Keys::None, ""),
            KeyPlaces::Range { first, last, step } => {
                (Keys::Range { first, last, step }, uses(access))
            }
            KeyPlaces::Numkeys { at, first, step } => (
                Keys::Numkeys { at, first, step, destination: 0, trailing: 0, faults: &FAULTS },
                uses(access),
            ),
        };
        let rule = match self.keys {
            _ if subcommands > 0 => Rule::Unsupported,
            KeyPlaces::None => Rule::Single(NO_KEYS),
            KeyPlaces::Unknown => Rule::Single(UNKNOWN_KEYS),
            _ if self.has("blocking") => Rule::Block,
            _ => Rule::Forward,
        };
        let facts = Facts { flags, uses, categories: None, tips: "", since: "", is_open: false };
        let (arity, group) = (self.arity, Group::Module);
        // In the words of its module.
        let clearance = if self.has("admin") { Clearance::Admin } else { Clearance::Cache };
        let id = CUSTOM_ID;
        Command { id, name, arity, access, keys, rule, group, subcommands, clearance, facts }
    }
}

/// As COMMAND shows it for modules that only declare whether they write.
fn uses(access: Access) -> &'static str {
    match access {
        Access::Read | Access::Walk => "RO access",
        Access::Write | Access::None => "RW access update",
    }
}

/// The commands of a pool besides the table's, by name; subcommands come after their container.
#[derive(Clone, Debug, Default)]
pub struct CustomCommands {
    commands: Vec<&'static Command>,
    /// All that ever existed, oldest first: entries stay in memory and are reused.
    kept: Vec<&'static Command>,
}

impl CustomCommands {
    /// Those of `definitions` that are valid; the first of a name counts. Entries that existed up
    /// to `before` are reused.
    pub fn new(definitions: &[Definition], before: &Self) -> Self {
        let mut definitions: Vec<&Definition> =
            definitions.iter().filter(|definition| definition.fault().is_none()).collect();
        definitions.sort_by_key(|definition| definition.name.to_ascii_lowercase());
        definitions.dedup_by(|second, first| second.name.eq_ignore_ascii_case(&first.name));
        definitions.truncate(CUSTOM_MAX);
        let is_of = |definition: &Definition, container: &str| {
            let (head, tail) = definition.name.split_at_checked(container.len())?;
            (head.eq_ignore_ascii_case(container) && tail.starts_with('|')).then_some(())
        };
        let mut kept = before.kept.clone();
        let commands = definitions.iter().map(|definition| {
            let contained =
                definitions.iter().filter(|other| is_of(other, &definition.name).is_some());
            let subcommands = contained.count().min(usize::from(u8::MAX)) as u8;
            let old = kept.iter().copied().find(|old| is_same(old, definition, subcommands));
            old.unwrap_or_else(|| {
                let name = definition.name.to_ascii_lowercase().leak();
                let flags = definition.other_flags().leak();
                let command = Box::leak(Box::new(definition.entry(name, flags, subcommands)));
                kept.push(command);
                command
            })
        });
        let commands = commands.collect();
        Self { commands, kept }
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The command of `args` (in `buf`), like [`super::find`], which comes first.
    pub fn find(&self, buf: &[u8], args: &[Span]) -> Lookup {
        let Some(command) = args.first().and_then(|name| self.by_name(name.of(buf))) else {
            return Lookup::UnknownCommand;
        };
        if command.subcommands > 0 && args.len() > 1 {
            let name = args[1].of(buf);
            let of_it = |sub: &&Command| subcommand_name(sub).eq_ignore_ascii_case(name);
            return match self.subcommands(command).find(of_it) {
                Some(command) => command.checked(args),
                None => Lookup::UnknownSubcommand(command),
            };
        }
        // A subcommand is not called by its full name.
        match command.name.contains('|') {
            true => Lookup::UnknownCommand,
            false => command.checked(args),
        }
    }

    pub(super) fn by_name(&self, name: &[u8]) -> Option<&'static Command> {
        if self.commands.is_empty() || name.len() > CUSTOM_NAME_MAX {
            return None;
        }
        let name = name.to_ascii_lowercase();
        let at = self.commands.binary_search_by(|command| command.name.as_bytes().cmp(&name));
        at.ok().map(|at| self.commands[at])
    }

    /// All of them, subcommands as well.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static Command> + '_ {
        self.commands.iter().copied()
    }

    /// Containers and what is no subcommand.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'static Command> + '_ {
        self.commands.iter().copied().filter(|command| !command.name.contains('|'))
    }

    pub(super) fn subcommands<'a>(
        &'a self,
        container: &'a Command,
    ) -> impl Iterator<Item = &'static Command> + 'a {
        self.commands.iter().copied().filter(|command| {
            let rest = command.name.strip_prefix(container.name);
            rest.is_some_and(|rest| rest.starts_with('|'))
        })
    }
}

fn is_same(command: &Command, definition: &Definition, subcommands: u8) -> bool {
    if !command.name.eq_ignore_ascii_case(&definition.name) {
        return false;
    }
    let other = definition.entry(command.name, "", subcommands);
    let flags = definition.other_flags();
    let facts = Facts { flags: command.facts.flags, ..other.facts };
    *command == Command { facts, ..other } && command.facts.flags == flags
}

/// The definitions in a server's reply, in either protocol version, to COMMAND INFO about this
/// command: the command and its subcommands, or nothing. The server may know it by another name, if
/// its configuration renames it.
pub fn definitions(name: &str, reply: &[u8]) -> Vec<Definition> {
    let entries = |encoded| elements(encoded).into_iter().flatten().take(CUSTOM_MAX);
    let Some(entry) = entries(reply).next() else { return Vec::new() };
    let parts = parts(entry);
    let mut all: Vec<Definition> = definition(name.to_owned(), &parts).into_iter().collect();
    // These have no subcommands of their own.
    for subcommand in parts.get(9).into_iter().flat_map(|subcommands| entries(subcommands)) {
        let parts = self::parts(subcommand);
        let full = parts.first().and_then(|name| text(name)).unwrap_or_default();
        let Some((_, word)) = full.split_once('|') else { continue };
        all.extend(definition(format!("{name}|{word}"), &parts));
    }
    all.retain(|definition| definition.fault().is_none());
    all
}

fn parts(entry: &[u8]) -> Vec<&[u8]> {
    elements(entry).into_iter().flatten().take(PARTS_MAX).collect()
}

/// Redis 7 has ten.
const PARTS_MAX: usize = 16;

fn definition(name: String, parts: &[&[u8]]) -> Option<Definition> {
    let [_, arity, flags, first, last, step, ..] = parts else { return None };
    let flags: Vec<String> = elements(flags)?.filter_map(text).collect();
    let is_movable = flags.iter().any(|flag| flag.eq_ignore_ascii_case("movablekeys"));
    let keys = match (u16::try_from(number(first)?).ok()?, is_movable) {
        (_, true) => parts.get(8).map_or(KeyPlaces::Unknown, |specs| counted_keys(specs)),
        (0, false) => KeyPlaces::None,
        (first, false) => {
            let last = i16::try_from(number(last)?).ok()?;
            let step = u16::try_from(number(step)?).ok()?;
            KeyPlaces::Range { first, last, step }
        }
    };
    // Modules that do not declare their number of arguments report that one is enough.
    let needed = match keys {
        KeyPlaces::Range { first: at, .. } | KeyPlaces::Numkeys { at, .. } => at.checked_add(1)?,
        KeyPlaces::None | KeyPlaces::Unknown => 0,
    };
    let arity = i16::try_from(number(arity)?).ok()?;
    let arity = if arity < 0 { arity.min(-i16::try_from(needed).ok()?) } else { arity };
    Some(Definition { name, arity, keys, flags })
}

/// The keys' positions if the only key specification gives the position of their number.
fn counted_keys(specs: &[u8]) -> KeyPlaces {
    let find = || {
        let mut specs = elements(specs)?;
        let (spec, None) = (specs.next()?, specs.next()) else { return None };
        let begin = field(spec, "begin_search")?;
        let find = field(spec, "find_keys")?;
        let is = |of: &[u8], kind: &str| field(of, "type").and_then(text).as_deref() == Some(kind);
        if !is(begin, "index") || !is(find, "keynum") {
            return None;
        }
        let (begin, find) = (field(begin, "spec")?, field(find, "spec")?);
        let of = |spec, name| field(spec, name).and_then(number);
        let index = of(begin, "index")?;
        let place = |name| index.checked_add(of(find, name)?)?.try_into().ok();
        let step = u16::try_from(of(find, "keystep")?).ok()?;
        Some(KeyPlaces::Numkeys { at: place("keynumidx")?, first: place("firstkey")?, step })
    };
    find().unwrap_or(KeyPlaces::Unknown)
}

/// The value of a name in a map, which RESP2 has as an array.
fn field<'a>(map: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = elements(map)?;
    while let (Some(key), Some(value)) = (rest.next(), rest.next()) {
        if text(key).as_deref() == Some(name) {
            return Some(value);
        }
    }
    None
}

fn elements(encoded: &[u8]) -> Option<Elements<'_>> {
    match reply(encoded)? {
        Reply::Array(elements) | Reply::Set(elements) | Reply::Map(elements) => Some(elements),
        _ => None,
    }
}

fn text(encoded: &[u8]) -> Option<String> {
    match reply(encoded)? {
        Reply::Bulk(text) | Reply::Status(text) => String::from_utf8(text.to_vec()).ok(),
        _ => None,
    }
}

fn number(encoded: &[u8]) -> Option<i64> {
    match reply(encoded)? {
        Reply::Integer(number) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Parsed, RequestParser};

    fn definition(name: &str, arity: i16, keys: KeyPlaces, flags: &str) -> Definition {
        let flags = flags.split_whitespace().map(str::to_owned).collect();
        Definition { name: name.into(), arity, keys, flags }
    }

    const KEY: KeyPlaces = KeyPlaces::Range { first: 1, last: 1, step: 1 };

    fn some() -> Vec<Definition> {
        let subcommand_key = KeyPlaces::Range { first: 2, last: 2, step: 1 };
        vec![
            definition("JSON.GET", -2, KEY, "readonly"),
            definition("json.debug", -2, KeyPlaces::None, "readonly"),
            definition("json.debug|memory", -3, subcommand_key, "readonly"),
            definition("ft.search", -3, KeyPlaces::None, "readonly"),
            definition("ts.read", -3, KEY, "readonly blocking"),
            definition("x.many", -3, KeyPlaces::Numkeys { at: 1, first: 2, step: 1 }, "write"),
        ]
    }

    fn find(commands: &CustomCommands, call: &str) -> Lookup {
        let line = format!("{call}\n");
        let mut parser = RequestParser::default();
        let Parsed::Complete { .. } = parser.parse(line.as_bytes(), line.len()) else {
            panic!("{call}");
        };
        commands.find(parser.inline_encoded().unwrap(), parser.args())
    }

    #[test]
    fn what_is_defined_is_found_with_its_rule() {
        let commands = CustomCommands::new(&some(), &CustomCommands::default());
        for (call, name, rule) in [
            ("json.Get a", "json.get", Rule::Forward),
            ("JSON.DEBUG MEMORY a", "json.debug|memory", Rule::Forward),
            ("ft.search i q", "ft.search", Rule::Single(NO_KEYS)),
            ("ts.read a b", "ts.read", Rule::Block),
            ("x.many 1 a", "x.many", Rule::Forward),
        ] {
            match find(&commands, call) {
                Lookup::Found(command) => {
                    assert_eq!((command.name, command.rule), (name, rule), "{call}");
                }
                other => panic!("{call}: {other:?}"),
            }
        }
        assert!(matches!(find(&commands, "json.get"), Lookup::WrongArity(_)));
        assert!(matches!(find(&commands, "json.debug nope a"), Lookup::UnknownSubcommand(_)));
        for call in ["json.set a b", "json.debug|memory a", "get a"] {
            assert!(matches!(find(&commands, call), Lookup::UnknownCommand), "{call}");
        }
    }

    #[test]
    fn what_was_defined_before_is_used_again() {
        let first = CustomCommands::new(&some(), &CustomCommands::default());
        let mut changed = some();
        changed.pop();
        changed[0].arity = -3;
        let second = CustomCommands::new(&changed, &first);
        for definition in &changed {
            let name = definition.name.as_bytes();
            let (old, new) = (first.by_name(name).unwrap(), second.by_name(name).unwrap());
            assert_eq!(std::ptr::eq(old, new), new.arity == old.arity, "{}", definition.name);
        }
        assert!(second.by_name(b"x.many").is_none());
        let third = CustomCommands::new(&some(), &second);
        for definition in some() {
            let name = definition.name.as_bytes();
            let (old, new) = (first.by_name(name).unwrap(), third.by_name(name).unwrap());
            assert!(std::ptr::eq(old, new), "{}", definition.name);
        }
    }

    #[test]
    fn what_servers_tell_is_understood() {
        let flags = "*2\r\n+readonly\r\n+module\r\n";
        let entry = |name: &str, arity: i64, flags: &str, range: &str, specs: &str, subs: &str| {
            format!(
                "*10\r\n${}\r\n{name}\r\n:{arity}\r\n{flags}{range}*0\r\n*0\r\n{specs}{subs}",
                name.len()
            )
        };
        let first = ":1\r\n:1\r\n:1\r\n";
        let none = ":0\r\n:0\r\n:0\r\n";
        let movable = "~2\r\n+write\r\n+movablekeys\r\n";
        let counted = "~1\r\n%3\r\n$5\r\nflags\r\n~0\r\n$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n\
                       $5\r\nindex\r\n$4\r\nspec\r\n%1\r\n$5\r\nindex\r\n:2\r\n$9\r\nfind_keys\r\n%2\r\n\
                       $4\r\ntype\r\n$6\r\nkeynum\r\n$4\r\nspec\r\n%3\r\n$9\r\nkeynumidx\r\n:0\r\n\
                       $8\r\nfirstkey\r\n:1\r\n$7\r\nkeystep\r\n:1\r\n";
        let inner = entry("c|sub", 3, flags, ":2\r\n:2\r\n:1\r\n", "*0\r\n", "*0\r\n");
        let key = |at| KeyPlaces::Range { first: at, last: at as i16, step: 1 };
        let counted_at_2 = KeyPlaces::Numkeys { at: 2, first: 3, step: 1 };
        for (entry, expected) in [
            (
                entry("JSON.GET", -1, flags, first, "*0\r\n", "*0\r\n"),
                vec![definition("x", -2, key(1), "readonly module")],
            ),
            (
                entry("x", 2, flags, none, "*0\r\n", "*0\r\n"),
                vec![definition("x", 2, KeyPlaces::None, "readonly module")],
            ),
            (
                entry("x", -1, movable, none, counted, "*0\r\n"),
                vec![definition("x", -3, counted_at_2, "write movablekeys")],
            ),
            (
                entry("x", -1, movable, none, "*0\r\n", "*0\r\n"),
                vec![definition("x", -1, KeyPlaces::Unknown, "write movablekeys")],
            ),
            (
                entry("c", -2, "*0\r\n", none, "*0\r\n", &format!("*1\r\n{inner}")),
                vec![
                    definition("x", -2, KeyPlaces::None, ""),
                    definition("x|sub", 3, key(2), "readonly module"),
                ],
            ),
        ] {
            assert_eq!(definitions("x", format!("*1\r\n{entry}").as_bytes()), expected);
        }
        let known = format!("*1\r\n{}", entry("get", 2, flags, first, "*0\r\n", "*0\r\n"));
        assert_eq!(definitions("get", known.as_bytes()), []);
        for senseless in
            ["", "*1\r\n$-1\r\n", "*1\r\n", "-ERR no\r\n", "*1\r\n*1\r\n*1\r\n:1\r\n", ":1\r\n"]
        {
            assert_eq!(definitions("x", senseless.as_bytes()), [], "{senseless:?}");
        }
    }

    #[test]
    fn senseless_definitions_are_told_and_left_out() {
        let range = |first, last, step| KeyPlaces::Range { first, last, step };
        let senseless = [
            definition("", -2, KEY, ""),
            definition("a b", -2, KEY, ""),
            definition("a|b|c", -4, KEY, ""),
            definition("a|", -2, KEY, ""),
            definition(&"x".repeat(65), -2, KEY, ""),
            definition("Get", 2, KEY, ""),
            definition("object|x", -3, KEY, ""),
            definition("x", 0, KeyPlaces::None, ""),
            definition("x", -1, KEY, ""),
            definition("x", -3, range(0, 1, 1), ""),
            definition("x", -3, range(1, 1, 0), ""),
            definition("x", -3, range(2, 1, 1), ""),
            definition("x|y", -3, KEY, ""),
            definition("x", 2, KeyPlaces::Numkeys { at: 2, first: 3, step: 1 }, ""),
            definition("x", i16::MIN, range(u16::MAX, i16::MAX, 1), ""),
        ];
        for definition in &senseless {
            assert!(definition.fault().is_some(), "{definition:?}");
        }
        assert!(CustomCommands::new(&senseless, &CustomCommands::default()).is_empty());
        for definition in some() {
            assert_eq!(definition.fault(), None);
        }
    }
}
