//! Finding a command by its name: one hash of a few of its bytes, then usually one comparison.

use super::{Access, COMMANDS, Command, Keys, Rule};
use crate::Span;
use crate::resp::{self, PlainHead};

#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    /// With a valid number of arguments.
    Found(&'static Command),
    UnknownCommand,
    /// Of this container.
    UnknownSubcommand(&'static Command),
    WrongArity(&'static Command),
}

/// A power of two, several times the number of commands, so that few share a slot.
const SLOTS: usize = 2048;
const EMPTY: u16 = u16::MAX;

/// Indexes of the commands that are not subcommands, by hash; collisions use the next slots.
static INDEX: [u16; SLOTS] = index();

const _: () = assert!(COMMANDS.len() * 4 <= SLOTS);

/// Looks up the command of `args` (in `buf`), in any case. Nothing is found without arguments.
#[inline]
pub fn find(buf: &[u8], args: &[Span]) -> Lookup {
    match args.first() {
        Some(name) => find_as(name.of(buf), buf, args),
        None => Lookup::UnknownCommand,
    }
}

/// The same where the command has this name, whatever the first of `args` is.
#[inline]
pub(super) fn find_as(name: &[u8], buf: &[u8], args: &[Span]) -> Lookup {
    let Some((at, command)) = by_name(name) else { return Lookup::UnknownCommand };
    if command.subcommands > 0 && args.len() > 1 {
        return subcommand(buf, args, at, command);
    }
    command.checked(args)
}

#[cold]
fn subcommand(buf: &[u8], args: &[Span], at: usize, container: &'static Command) -> Lookup {
    let name = args[1].of(buf);
    // Servers compare words that no table of theirs has as C strings, which end at a NUL.
    let name = match container.facts.is_open {
        true => name.split(|&byte| byte == 0).next().unwrap_or_default(),
        false => name,
    };
    match subcommands(at).find(|command| subcommand_name(command).eq_ignore_ascii_case(name)) {
        Some(command) if !container.facts.is_open => command.checked(args),
        Some(command) if command.takes(args.len()) => Lookup::Found(command),
        // The server has its own errors for unknown subcommands.
        _ if container.facts.is_open => container.checked(args),
        _ => Lookup::UnknownSubcommand(container),
    }
}

/// The command of a request of `count` arguments, of which only the first ones, `args`, are there.
/// `None` also for commands with subcommands.
pub fn find_begun(buf: &[u8], args: &[Span], count: usize) -> Option<&'static Command> {
    let (_, command) = by_name(args.first()?.of(buf))?;
    (command.subcommands == 0 && command.takes(count)).then_some(command)
}

impl Command {
    #[inline]
    pub(super) fn checked(&'static self, args: &[Span]) -> Lookup {
        if self.takes(args.len()) { Lookup::Found(self) } else { Lookup::WrongArity(self) }
    }
}

/// The command of this name, which is not a subcommand's, and its index in the table.
#[inline]
pub(super) fn by_name(name: &[u8]) -> Option<(usize, &'static Command)> {
    let mut slot = hash(name)?;
    loop {
        let at = usize::from(INDEX[slot]);
        // An empty slot holds an index beyond the table.
        let command = COMMANDS.get(at)?;
        if command.name.len() == name.len() && command.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some((at, command));
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// A power of two, at least twice the number of commands.
const PLAIN_SLOTS: usize = 512;

/// What must be known of a command that goes to a server unchanged.
#[derive(Clone, Copy, Debug)]
pub struct PlainCommand {
    /// As [`PlainHead::name`] has it, 0 for none.
    name: u64,
    command: u16,
    /// The fewest arguments it takes, and how many more: plain requests have only a few.
    args_min: u8,
    args_spare: u8,
    pub access: Access,
    /// It reads, and who asks the same at the same time gets the same.
    pub is_repeatable: bool,
}

impl PlainCommand {
    /// Its place in the table.
    #[inline]
    pub fn index(&self) -> u16 {
        self.command
    }

    /// Its entry.
    pub fn command(&self) -> &'static Command {
        &COMMANDS[usize::from(self.command)]
    }

    #[inline]
    pub fn id(&self) -> CommandId {
        CommandId(self.command + 1)
    }
}

/// All commands that may be plain.
pub(super) fn plain_commands() -> impl Iterator<Item = &'static Command> {
    PLAIN.iter().filter(|plain| plain.name != 0).map(PlainCommand::command)
}

/// Commands that go to a server unchanged by the key after their name, by hash; collisions use the
/// next slots.
static PLAIN: [PlainCommand; PLAIN_SLOTS] = plain();

/// The command of the request, if it is forwarded by the key after its name and has a valid number
/// of arguments. [`find`] handles all others.
#[inline(always)]
pub fn find_plain(request: &PlainHead<'_>) -> Option<&'static PlainCommand> {
    let mut slot = plain_slot(request.name);
    loop {
        let plain = &PLAIN[slot];
        if plain.name == request.name {
            let spare = (request.args as u8).wrapping_sub(plain.args_min);
            return (spare <= plain.args_spare).then_some(plain);
        }
        if plain.name == 0 {
            return None;
        }
        slot = (slot + 1) % PLAIN_SLOTS;
    }
}

#[inline]
const fn plain_slot(name: u64) -> usize {
    (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLAIN_SLOTS.ilog2())) as usize
}

const fn plain() -> [PlainCommand; PLAIN_SLOTS] {
    let none = PlainCommand {
        name: 0,
        command: EMPTY,
        args_min: 0,
        args_spare: 0,
        access: Access::None,
        is_repeatable: false,
    };
    let mut slots = [none; PLAIN_SLOTS];
    let mut count = 0;
    let mut at = 0;
    while at < COMMANDS.len() {
        let command = &COMMANDS[at];
        let is_keyed = matches!(command.keys, Keys::Range { first: 1, last: 1, .. })
            && !command.names_database();
        if let (Rule::Forward, true, Some(name)) =
            (command.rule, is_keyed, resp::name_word(command.name.as_bytes()))
        {
            let mut slot = plain_slot(name);
            while slots[slot].name != 0 {
                slot = (slot + 1) % PLAIN_SLOTS;
            }
            let args_min = command.arity.unsigned_abs() as u8;
            let args_spare = if command.arity < 0 { u8::MAX - args_min } else { 0 };
            let access = command.access;
            let is_repeatable = matches!(access, Access::Read) && !command.varies();
            slots[slot] = PlainCommand {
                name,
                command: at as u16,
                args_min,
                args_spare,
                access,
                is_repeatable,
            };
            count += 1;
        }
        at += 1 + command.subcommands as usize;
    }
    assert!(2 * count <= PLAIN_SLOTS);
    slots
}

/// A command of the table, or none, in little space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandId(u16);

const _: () = assert!(COMMANDS.len() < u16::MAX as usize);

impl CommandId {
    pub const NONE: Self = Self(0);

    /// None for one that is not in the table: custom commands.
    pub fn of(command: &'static Command) -> Self {
        let from = std::ptr::from_ref(command).addr().wrapping_sub(COMMANDS.as_ptr().addr());
        let at = from / size_of::<Command>();
        Self(if at < COMMANDS.len() { at as u16 + 1 } else { 0 })
    }

    /// The one of that name, as in the table. This is slow.
    pub fn named(name: &str) -> Self {
        let at = COMMANDS.iter().position(|command| command.name == name);
        Self(at.map_or(0, |at| at as u16 + 1))
    }

    /// By the place in the table, from 1 on; 0 is none.
    #[inline]
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    pub fn name(self) -> Option<&'static str> {
        Some(COMMANDS.get(usize::from(self.0).checked_sub(1)?)?.name)
    }
}

/// The entries under the container at this index.
pub(super) fn subcommands(at: usize) -> impl Iterator<Item = &'static Command> {
    COMMANDS[at + 1..][..usize::from(COMMANDS[at].subcommands)].iter()
}

/// Without its container's name.
pub(super) fn subcommand_name(command: &Command) -> &[u8] {
    let name = command.name.as_bytes();
    memchr::memchr(b'|', name).map_or(name, |bar| &name[bar + 1..])
}

/// Hash of the length and five bytes, which distinguish nearly all commands. Equal for names that
/// differ in case only; `None` for the empty name.
#[inline]
const fn hash(name: &[u8]) -> Option<usize> {
    let len = name.len();
    if len == 0 {
        return None;
    }
    let sampled = [
        name[0],
        name[len / 4],
        name[len / 2],
        name[len - len / 4 - 1],
        name[len - 1],
        len as u8,
        0,
        0,
    ];
    // Setting this bit makes letters lower case, and other bytes collide without harm.
    let folded = u64::from_le_bytes(sampled) | 0x20_20_20_20_20;
    Some((folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % SLOTS)
}

const fn index() -> [u16; SLOTS] {
    let mut slots = [EMPTY; SLOTS];
    let mut at = 0;
    while at < COMMANDS.len() {
        let Some(mut slot) = hash(COMMANDS[at].name.as_bytes()) else {
            panic!("a command has a name");
        };
        while slots[slot] != EMPTY {
            slot = (slot + 1) % SLOTS;
        }
        slots[slot] = at as u16;
        at += 1 + COMMANDS[at].subcommands as usize;
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::Rule;

    fn lookup(words: &[&[u8]]) -> Lookup {
        let buf = words.concat();
        let mut start = 0;
        let spans: Vec<Span> = words
            .iter()
            .map(|word| {
                start += word.len();
                Span::new(start - word.len(), word.len())
            })
            .collect();
        find(&buf, &spans)
    }

    /// A call of the command with the fewest arguments.
    fn call<'a>(name: &'a str, command: &Command) -> Vec<&'a [u8]> {
        let mut words: Vec<&[u8]> = name.split('|').map(str::as_bytes).collect();
        words.resize(usize::from(command.arity.unsigned_abs()).max(words.len()), b"1");
        words
    }

    #[test]
    fn commands_are_known_by_little() {
        for command in COMMANDS {
            let id = CommandId::of(command);
            assert_eq!((id.name(), CommandId::named(command.name)), (Some(command.name), id));
        }
        assert_eq!((CommandId::NONE.name(), CommandId::named("nosuch").name()), (None, None));
    }

    #[test]
    fn plain_requests_find_what_all_requests_find() {
        let mut found = 0;
        for command in COMMANDS {
            for spare in 0..4 {
                let mut words = call(command.name, command);
                words.resize(words.len() + spare, b"1");
                let mut request = Vec::new();
                resp::encode::write_command(&mut request, &words);
                let Some(head) = resp::plain_head(&request) else { continue };
                let Some(plain) = find_plain(&head) else { continue };
                let quick = plain.command();
                assert_eq!(plain.access, quick.access, "{}", quick.name);
                assert_eq!(quick.rule, Rule::Forward, "{}", quick.name);
                assert_eq!(quick.single_key(), Some(1), "{}", quick.name);
                let Lookup::Found(slow) = lookup(&words) else { panic!("{}", quick.name) };
                assert!(std::ptr::eq(quick, slow), "{}", quick.name);
                found += usize::from(spare == 0);
            }
        }
        assert!(found > 60, "{found}");
    }

    #[test]
    fn every_entry_is_found_in_any_case() {
        for command in COMMANDS {
            let upper = command.name.to_ascii_uppercase();
            let mixed: String = upper
                .chars()
                .enumerate()
                .map(|(at, letter)| if at % 2 == 0 { letter.to_ascii_lowercase() } else { letter })
                .collect();
            for name in [command.name, &upper, &mixed] {
                match lookup(&call(name, command)) {
                    Lookup::Found(found) => assert!(std::ptr::eq(found, command), "{name}"),
                    // Containers are not called themselves.
                    Lookup::UnknownSubcommand(found) => {
                        assert!(std::ptr::eq(found, command), "{name}");
                        assert_eq!(command.rule, Rule::Unsupported);
                    }
                    other => panic!("{name}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn arity_is_checked() {
        for command in COMMANDS {
            let mut words = call(command.name, command);
            let names = command.name.split('|').count();
            if command.arity > 0 {
                words.push(b"1");
            } else if words.len() > names {
                words.pop();
            } else {
                // Its name alone is enough.
                continue;
            }
            match lookup(&words) {
                Lookup::WrongArity(found) => assert!(std::ptr::eq(found, command)),
                // Then it is one of those that only the server knows.
                Lookup::Found(found) if found.facts.is_open => {
                    assert!(command.name.starts_with(found.name), "{}", command.name);
                }
                // A container without the name of a subcommand is tested below.
                other => assert!(command.subcommands > 0, "{}: {other:?}", command.name),
            }
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_unknown() {
        let names: [&[u8]; 9] = [
            b"",
            b"nope",
            b"ge",
            b"getx",
            b"object|encoding",
            b"blpo",
            b"\xff\xff\xff",
            b"get\0",
            &[b'x'; 300],
        ];
        for name in names {
            assert!(matches!(lookup(&[name, b"a"]), Lookup::UnknownCommand), "{name:?}");
        }
        assert!(matches!(lookup(&[]), Lookup::UnknownCommand));
        for name in [b"".as_slice(), b"nope", b"object|freq", b"encodingx"] {
            let Lookup::UnknownSubcommand(container) = lookup(&[b"Object", name, b"a"]) else {
                panic!("{name:?}");
            };
            assert_eq!(container.name, "object");
        }
        assert!(matches!(lookup(&[b"object"]), Lookup::WrongArity(_)));
        assert!(matches!(lookup(&[b"command"]), Lookup::Found(_)));
    }

    #[test]
    fn what_only_the_server_knows_goes_by_its_container() {
        for call in [&[b"debug".as_slice(), b"nope"], &[b"DEBUG", b"object"], &[b"Debug", b"sleep"]]
        {
            match lookup(call) {
                Lookup::Found(command) => assert_eq!(command.name, "debug"),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(lookup(&[b"debug"]), Lookup::WrongArity(_)));
        match lookup(&[b"debug", b"Object", b"key"]) {
            Lookup::Found(command) => assert_eq!(command.name, "debug|object"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_hardly_collide() {
        let mut far = Vec::new();
        for (slot, &at) in INDEX.iter().enumerate().filter(|&(_, &at)| at != EMPTY) {
            let name = COMMANDS[usize::from(at)].name;
            let distance = (slot + SLOTS - hash(name.as_bytes()).unwrap()) % SLOTS;
            if distance > 0 {
                far.push((name, distance));
            }
        }
        assert!(far.iter().all(|&(_, distance)| distance <= 3), "{far:?}");
        assert!(far.len() * 4 < COMMANDS.len(), "{far:?}");
    }

    #[test]
    fn a_word_of_debug_ends_at_a_nul_as_for_the_server() {
        for words in [&[&b"DEBUG"[..], b"assert\0"], &[b"debug", b"ASSERT\0 and more"]] {
            let Lookup::Found(command) = lookup(words) else { panic!("{words:?}") };
            assert_eq!(command.name, "debug|assert");
        }
        assert!(matches!(lookup(&[b"CONFIG", b"GET\0", b"a"]), Lookup::UnknownSubcommand(_)));
    }

    #[test]
    fn subcommands_lie_behind_their_containers() {
        for (at, container) in COMMANDS.iter().enumerate().filter(|(_, c)| c.subcommands > 0) {
            let prefix = format!("{}|", container.name);
            assert!(subcommands(at).all(|command| command.name.starts_with(&prefix)));
        }
        let contained: usize = COMMANDS.iter().map(|c| usize::from(c.subcommands)).sum();
        assert_eq!(contained, COMMANDS.iter().filter(|c| c.name.contains('|')).count());
    }
}
