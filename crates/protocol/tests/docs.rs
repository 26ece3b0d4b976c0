//! The tables of docs/commands.md match the code.
//!
//! `CASHEW_BLESS=1 cargo test -p cashew-protocol docs` rewrites them.

use std::fmt::Write;
use std::path::PathBuf;

use cashew_protocol::memcached::{ChorePolicy, Parsed, RequestParser, Verb, chores};
use cashew_protocol::redis::{Access, COMMANDS, Clearance, Command, Fan, Group, Keys, Merge, Rule};

#[test]
fn the_docs_of_commands_are_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let mut made = written.clone();
    for (name, table) in [
        ("redis commands", redis_tables()),
        ("memcached commands", memcached_table()),
        ("policies", policy_table()),
    ] {
        made = replace(&made, name, &table);
    }
    if std::env::var_os("CASHEW_BLESS").is_some() {
        std::fs::write(&path, made).unwrap();
    } else {
        assert!(
            made == written,
            "docs/commands.md is not current; run: CASHEW_BLESS=1 cargo test -p cashew-protocol docs"
        );
    }
}

/// Puts `table` between the comments that name it.
fn replace(text: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = text.split_once(&begin).expect("the document has the first comment");
    let (_, after) = rest.split_once(&end).expect("the document has the last comment");
    format!("{before}{begin}\n{table}\n{end}{after}")
}

fn redis_tables() -> String {
    let mut groups: Vec<Group> = Vec::new();
    for command in COMMANDS {
        if !groups.contains(&command.group) {
            groups.push(command.group);
        }
    }
    let mut text = String::new();
    for group in groups {
        writeln!(text, "### {}\n", heading(group)).unwrap();
        text += "| Command | Since | Keys | Access | Served |\n|---|---|---|---|---|\n";
        let of_group = COMMANDS.iter().filter(|command| command.group == group);
        for command in of_group.filter(|command| command.rule != Rule::Unsupported) {
            let (keys, access, served) = (keys(command), access(command), served(command));
            let name = shown(command.name);
            let since = command.facts.since;
            writeln!(text, "| `{name}` | {since} | {keys} | {access} | {served} |").unwrap();
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

/// Commands that not every client may use, by the first policy that allows them.
fn policy_table() -> String {
    let mut text = String::from(
        "| | `cache` | `application` | `admin` |\n|---|---|---|---|\n\
         | what uses data, and what reads how servers are | yes | yes | yes |\n",
    );
    for (clearance, marks) in
        [(Clearance::Application, "no | yes | yes"), (Clearance::Admin, "no | no | yes")]
    {
        let of_redis = COMMANDS.iter().filter(|command| command.clearance == clearance);
        let of_redis = of_redis.filter(|command| !matches!(command.rule, Rule::Refuse(_)));
        let of_redis = of_redis.filter(|command| !command.name.starts_with("debug|"));
        let names: Vec<String> =
            of_redis.map(|command| format!("`{}`", shown(command.name))).collect();
        writeln!(text, "| {} | {marks} |", names.join(", ")).unwrap();
        let has = |base: Clearance, chore: &str| {
            !ChorePolicy::new(base, &[], &[]).refused().any(|refused| refused == chore)
        };
        let below = match clearance {
            Clearance::Admin => Clearance::Application,
            Clearance::Application | Clearance::Cache => Clearance::Cache,
        };
        let names: Vec<String> = chores()
            .filter(|chore| has(clearance, chore) && !has(below, chore))
            .map(|chore| format!("`{}`", chore.replace('|', " ")))
            .collect();
        writeln!(text, "| memcached: {} | {marks} |", names.join(", ")).unwrap();
    }
    text
}

fn heading(group: Group) -> &'static str {
    match group {
        Group::Array => "Arrays",
        Group::Bitmap => "Bitmaps",
        Group::Cluster => "Cluster",
        Group::Connection => "Connection",
        Group::Generic => "Keys of any type",
        Group::Geo => "Geo",
        Group::Hash => "Hashes",
        Group::Hyperloglog => "HyperLogLog",
        Group::List => "Lists",
        Group::Module => "Vector sets",
        Group::Pubsub => "Publish and subscribe",
        Group::Scripting => "Scripts and functions",
        Group::Server => "Server",
        Group::Set => "Sets",
        Group::SortedSet => "Sorted sets",
        Group::Stream => "Streams",
        Group::String => "Strings",
        Group::Transactions => "Transactions",
    }
}

fn shown(name: &str) -> String {
    name.to_ascii_uppercase().replace('|', " ")
}

fn keys(command: &Command) -> String {
    // Arguments are counted after the name, and after a subcommand's name.
    let names = command.name.split('|').count() as u16;
    match command.keys {
        Keys::None => "none".into(),
        Keys::Range { first, last, .. } if i32::from(first) == i32::from(last) => {
            format!("argument {}", first + 1 - names)
        }
        Keys::Range { first: 1, last: -1, .. } => "every argument".into(),
        Keys::Range { first, last: -1, .. } => format!("arguments from {} on", first + 1 - names),
        Keys::Range { first: 1, last: -2, .. } => "every argument but the last".into(),
        Keys::Range { first, last, .. } => format!("arguments {first} and {last}"),
        Keys::Pairs { .. } => "every other argument".into(),
        Keys::Numkeys { at, destination: 0, .. } => format!("counted by argument {at}"),
        Keys::Numkeys { at, destination, .. } => {
            format!("argument {destination}, and those counted by argument {at}")
        }
        Keys::Sort { stores: false } => "argument 1".into(),
        Keys::Sort { stores: true } => "argument 1, and that of STORE".into(),
        Keys::Georadius => "argument 1, and those of STORE and STOREDIST".into(),
        Keys::Streams => "after STREAMS".into(),
        Keys::Migrate => "argument 3, or those after KEYS".into(),
    }
}

fn access(command: &Command) -> &'static str {
    match command.access {
        Access::Read | Access::Walk => "read",
        Access::Write => "write",
        Access::None if command.keys == Keys::None => "–",
        Access::None => "as write",
    }
}

fn served(command: &Command) -> String {
    match command.rule {
        Rule::Forward if command.single_key().is_some() => "forwarded".into(),
        Rule::Forward => "forwarded, keys on one server".into(),
        Rule::Split(Merge::Gather) => "split, array in the order of the keys".into(),
        Rule::Split(Merge::Sum) => "split, sum".into(),
        Rule::Split(Merge::AllOk) => "split, `+OK` if all servers reply so".into(),
        Rule::Local(_) if command.is_addressable() => {
            "answered here, or by [the one named](#one-of-several-servers)".into()
        }
        Rule::Local(_) => "answered here".into(),
        Rule::Fan(fan) if command.is_addressable() => {
            format!("{}, or [the one named](#one-of-several-servers)", fanned(fan))
        }
        Rule::Fan(fan) => fanned(fan).into(),
        Rule::Block if command.keys == Keys::Streams => {
            "forwarded, keys on one server; with BLOCK on a connection of its own".into()
        }
        Rule::Block => "forwarded on a connection of its own, keys on one server".into(),
        Rule::Session(_) => "session".into(),
        Rule::Subscribe(_) => "subscription".into(),
        Rule::Publish => "to the server that has the channel".into(),
        Rule::Single(text) => {
            format!("to the only server; refused with several servers: {}", reason(text))
        }
        Rule::Refuse(text) => format!("refused: {}", reason(text)),
        Rule::Unsupported => unreachable!("left out"),
    }
}

fn fanned(fan: Fan) -> &'static str {
    match fan {
        Fan::Sum => "every server, sum",
        Fan::Same => "every server, the answer that all give",
        Fan::Concat => "every server, one array of all",
        Fan::Newest => "every server, the newest of all",
        Fan::Timeline => "every server, in the order of time",
        Fan::Events => "every server, each event once",
        Fan::Scan => "one server after the other",
        Fan::RandomKey => "a random server that has a key",
        Fan::Least => "every server, the least",
        Fan::Most => "every server, the greatest",
        Fan::LeastEach => "every server, the least at each place",
        Fan::Scripts => "every server, 1 for [what EVALSHA would find](#scripts)",
        Fan::SumPairs => "every server, sum for each name",
        Fan::AnyOk => "every server, the first answer that is no error",
        Fan::Running => "every server, the answer of one that runs something",
        Fan::Info => "every server, put together",
        Fan::PerServer => "every server, each answer under its name",
        Fan::AnyServer => "one server",
    }
}

/// Without the error's code.
fn reason(text: &str) -> &str {
    text.split_once(' ').map_or(text, |(_, reason)| reason)
}

fn memcached_table() -> String {
    let mut text = String::from("| Command | Access | Served |\n|---|---|---|\n");
    for request in [
        "get k k2",
        "gets k k2",
        "gat 0 k k2",
        "gats 0 k k2",
        "set k 0 0 1\r\nx",
        "add k 0 0 1\r\nx",
        "replace k 0 0 1\r\nx",
        "append k 0 0 1\r\nx",
        "prepend k 0 0 1\r\nx",
        "cas k 0 0 1 1\r\nx",
        "delete k",
        "incr k 1",
        "decr k 1",
        "touch k 0",
        "flush_all",
        "verbosity 1",
        "version",
        "quit",
        "mg k",
        "ms k 1\r\nx",
        "md k",
        "ma k",
        "me k",
        "mn",
        "stats",
        "cache_memlimit 64",
        "slabs automove 1",
        "lru mode flat",
        "lru_crawler enable",
        "extstore item_age 1",
        "refresh_certs",
    ] {
        let bytes = format!("{request}\r\n");
        let mut parser = RequestParser::default();
        assert_eq!(parser.parse(bytes.as_bytes()), Parsed::Complete { len: bytes.len() });
        let (access, served) = memcached(parser.verb());
        let name = request.split(' ').next().unwrap_or_default();
        writeln!(text, "| `{name}` | {access} | {served} |").unwrap();
    }
    text
}

fn memcached(verb: Verb) -> (&'static str, &'static str) {
    match verb {
        Verb::Get | Verb::Gets => ("read", "split by server, hits in the order of the keys"),
        Verb::Gat | Verb::Gats => ("write", "split by server, hits in the order of the keys"),
        Verb::Set | Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend | Verb::Cas => {
            ("write", "forwarded")
        }
        Verb::Delete | Verb::Incr | Verb::Decr | Verb::Touch => ("write", "forwarded"),
        Verb::FlushAll => ("write", "to every server in the ring, one answer"),
        Verb::Verbosity => ("–", "to every server in the ring, one answer"),
        Verb::Version => ("–", "the answer of one server in the ring, as `reads` has it"),
        Verb::Quit => ("–", "closes after all pending replies"),
        Verb::MetaGet => ("read", "forwarded"),
        Verb::MetaSet | Verb::MetaDelete | Verb::MetaArithmetic => ("write", "forwarded"),
        Verb::MetaDebug => ("read", "forwarded"),
        Verb::MetaNoop => ("–", "answered here, after all earlier requests"),
        Verb::Stats => ("–", "to every server in the ring, combined"),
        Verb::Tune => ("–", "to every server in the ring, the first answer that is not `OK`"),
        Verb::Refused => unreachable!("left out"),
    }
}
