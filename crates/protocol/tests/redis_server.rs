//! The protocol crate's facts about Redis, compared with a running redis-server.

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{Read, Write};
use std::net::Shutdown;

use cashew_protocol::redis::{
    COMMANDS, CustomCommands, Lookup, command_reply, find, unknown_command_error,
    unknown_subcommand_error, wrong_arity_error,
};
use cashew_protocol::resp::{
    Elements, Parsed, Reply, ReplyScanner, RequestParser, Scan, Version, encode, reply,
};
use proptest::prelude::*;
use server::{Connection, Server};

const REQUEST_SIZE_MAX: usize = 1 << 30;

/// The server's whole output for `bytes` followed by the end of the stream.
fn answers(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = server.connect().stream;
    let mut out = Vec::new();
    // A server that closes early may reset the connection.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut out);
    out
}

/// A request in the gateway.
struct Request {
    buf: Vec<u8>,
    parser: RequestParser,
}

impl Request {
    fn new(words: &[&[u8]]) -> Self {
        let mut buf = Vec::new();
        encode::write_command(&mut buf, words);
        let mut parser = RequestParser::default();
        let parsed = parser.parse(&buf, REQUEST_SIZE_MAX);
        assert_eq!(parsed, Parsed::Complete { len: buf.len() });
        Self { buf, parser }
    }

    /// The gateway's own error, if it answers with one.
    fn error(&self) -> Option<Vec<u8>> {
        let (buf, args) = (self.buf.as_slice(), self.parser.args());
        let mut out = Vec::new();
        match find(buf, args) {
            Lookup::Found(command) => match command.keys(buf, args, &mut Vec::new()) {
                Ok(()) => return None,
                Err(text) => encode::write_error(&mut out, text.as_bytes()),
            },
            Lookup::UnknownCommand => unknown_command_error(&mut out, buf, args),
            Lookup::UnknownSubcommand(of) => unknown_subcommand_error(&mut out, of, buf, args),
            Lookup::WrongArity(command) => wrong_arity_error(&mut out, command),
        }
        Some(out)
    }
}

fn words(call: &str) -> Vec<&[u8]> {
    call.split(' ').map(str::as_bytes).collect()
}

fn elements(encoded: &[u8]) -> Elements<'_> {
    match reply(encoded) {
        Some(Reply::Array(elements)) => elements,
        other => panic!("{other:?}"),
    }
}

fn text(encoded: &[u8]) -> String {
    match reply(encoded) {
        Some(Reply::Bulk(text) | Reply::Status(text)) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// COMMAND's entry of a command: each part by name, in a form that does not depend on the order of
/// unordered elements.
type Facts = BTreeMap<&'static str, String>;

/// Of an entry of COMMAND; the first part is its name.
const ASPECTS: [&str; 10] = [
    "name",
    "arity",
    "flags",
    "first key",
    "last key",
    "step",
    "categories",
    "tips",
    "key specifications",
    "subcommands",
];

/// The entries of a COMMAND reply and their subcommands, by name.
fn facts(encoded: &[u8]) -> BTreeMap<String, Facts> {
    let mut all = BTreeMap::new();
    for entry in elements(encoded) {
        let parts: Vec<&[u8]> = elements(entry).collect();
        assert_eq!(parts.len(), ASPECTS.len());
        let mut facts: Facts =
            ASPECTS.into_iter().zip(&parts).map(|(of, part)| (of, canonical(part))).collect();
        facts.insert("name", facts["name"].to_ascii_lowercase());
        // Compared one by one.
        facts.insert("subcommands", kind(parts[9]).into());
        let name = text(parts[0]).to_ascii_lowercase();
        all.insert(name, facts);
        if kind(parts[9]) == "array" {
            all.append(&mut self::facts(parts[9]));
        }
    }
    all
}

/// RESP2 has empty arrays for empty sets.
fn kind(encoded: &[u8]) -> &'static str {
    match reply(encoded) {
        Some(Reply::Array(elements)) if elements.is_empty() => "nothing",
        Some(Reply::Set(elements)) if elements.is_empty() => "nothing",
        Some(Reply::Array(_)) => "array",
        Some(Reply::Set(_)) => "set",
        Some(Reply::Map(_)) => "map",
        _ => "other",
    }
}

/// Sorted, since sets and maps have no order, and without the notes that explain key
/// specifications.
fn canonical(encoded: &[u8]) -> String {
    let is_notes = |name: &[u8]| matches!(reply(name), Some(Reply::Bulk(b"notes")));
    let pairs = |elements: Elements<'_>| -> Vec<String> {
        let all: Vec<&[u8]> = elements.collect();
        let pairs = all.chunks(2).filter(|pair| !is_notes(pair[0]));
        pairs.map(|pair| format!("{}={}", canonical(pair[0]), canonical(pair[1]))).collect()
    };
    let (kind, mut texts) = match reply(encoded) {
        Some(Reply::Integer(number)) => return number.to_string(),
        Some(Reply::Bulk(text)) => return format!("'{}'", text.escape_ascii()),
        Some(Reply::Status(text)) => return text.escape_ascii().to_string(),
        Some(Reply::Map(elements)) => ("map", pairs(elements)),
        Some(Reply::Set(elements)) => ("set", elements.map(canonical).collect()),
        // A map in RESP2, or as good as one.
        Some(Reply::Array(elements)) if has_names(elements.clone()) => ("array", pairs(elements)),
        Some(Reply::Array(elements)) => ("array", elements.map(canonical).collect()),
        other => panic!("{other:?}"),
    };
    texts.sort();
    format!("{kind}[{}]", texts.join(" "))
}

/// Whether every other element, the first included, is a string.
fn has_names(elements: Elements<'_>) -> bool {
    elements.len().is_multiple_of(2)
        && elements.step_by(2).all(|element| matches!(reply(element), Some(Reply::Bulk(_))))
}

fn our_facts(version: Version) -> BTreeMap<String, Facts> {
    let request = Request::new(&[b"COMMAND"]);
    let (mut out, custom) = (Vec::new(), CustomCommands::default());
    command_reply(&request.buf, request.parser.args(), (&custom, None), version, &mut out);
    facts(&out)
}

/// The properties of a server that matter to the table.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Release {
    is_valkey: bool,
    major: u32,
    minor: u32,
}

impl Release {
    fn of(connection: &Connection) -> Self {
        let info = text(&connection.call(&["INFO", "server"]));
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            line.split(':').nth(1).map(str::to_owned)
        };
        match field("valkey_version:") {
            Some(version) => Self::new(true, &version),
            None => Self::new(false, &field("redis_version:").expect("a version")),
        }
    }

    fn new(is_valkey: bool, version: &str) -> Self {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        let (major, minor) = (numbers.next().unwrap(), numbers.next().unwrap_or(0));
        Self { is_valkey, major, minor }
    }

    /// Whether it has a command or option of that version.
    fn has(self, since: &str) -> bool {
        let needed = match since.strip_prefix("Valkey ") {
            _ if since.is_empty() => return true,
            _ if since == "Cashew" => return false,
            Some(version) => Self::new(true, version),
            None => Self::new(false, since),
        };
        // Valkey adopted Redis's additions at other times.
        self.is_valkey == needed.is_valkey && self >= needed
    }
}

/// Where a release differs from the table, which follows the newest release and accepts what any of
/// them accepts: the command, and the part.
fn known_differences(release: Release) -> BTreeSet<String> {
    let redis_7_0 = "
        acl|deluser:tips acl|save:tips acl|setuser:tips blmove:flags blpop:flags brpop:flags
        brpoplpush:flags bzpopmax:flags bzpopmin:flags client|setname:tips cluster|shards:flags
        cluster|slots:flags config|resetstat:tips config|rewrite:tips latency|reset:tips
        msetnx:tips randomkey:tips scan:tips sinterstore:key_specifications wait:flags
        wait:categories command|getkeys:arity command|getkeysandflags:arity zrank:arity
        zrevrank:arity";
    let loose = "cluster|replicate:arity script|debug:arity";
    let vector_sets = "
        vadd vcard vdim vemb vgetattr vinfo vismember vlinks vrandmember vrem vsetattr vsim";
    let valkey = "
        client|caching:flags client|getname:flags client|getredir:flags client|id:flags
        client|no-evict:flags client|no-touch:flags client|reply:flags client|setinfo:flags
        client|setname:flags cluster|info:flags cluster|myid:flags cluster|myshardid:flags
        cluster|nodes:flags exec:flags georadius:key_specifications
        georadiusbymember:key_specifications hpttl:tips hsetex:key_specifications httl:tips
        memory|malloc-stats:flags memory|purge:flags multi:flags script|exists:flags
        script|flush:flags select:flags watch:flags";
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut add =
        |text: &str| known.extend(text.split_whitespace().map(|word| word.replace('_', " ")));
    if release.is_valkey {
        add(valkey);
    } else {
        add(loose);
        // Modules reported only their flags then.
        for name in vector_sets.split_whitespace() {
            add(&format!("{name}:arity {name}:categories"));
        }
    }
    if !release.is_valkey && (release.major, release.minor) < (7, 2) {
        add(redis_7_0);
    }
    known
}

/// The programs to compare with, including those of `CASHEW_REDIS_SERVERS`, separated by colons.
fn programs() -> Vec<String> {
    let more = env::var("CASHEW_REDIS_SERVERS").unwrap_or_default();
    let more = more.split(':').filter(|program| !program.is_empty());
    ["redis-server"].into_iter().chain(more).map(str::to_owned).collect()
}

#[test]
fn the_table_agrees_with_command() {
    let mut faults = Vec::new();
    for program in programs() {
        let server = Server::start_program(&program);
        let release = Release::of(&server.connect());
        for (version, hello) in [(Version::Resp2, "HELLO 2"), (Version::Resp3, "HELLO 3")] {
            let connection = server.connect();
            connection.call(&words(hello));
            let theirs = facts(&connection.call(&[b"COMMAND"]));
            let differences = compare(release, &our_facts(version), &theirs);
            faults.extend(differences.iter().map(|text| format!("{program}, {hello}: {text}")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn compare(
    release: Release,
    ours: &BTreeMap<String, Facts>,
    theirs: &BTreeMap<String, Facts>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut known = known_differences(release);
    for (name, their_facts) in theirs {
        let Some(our_facts) = ours.get(name) else {
            faults.push(format!("{name} is not in the table: {their_facts:?}"));
            continue;
        };
        for aspect in ASPECTS {
            let (our, their) = (&our_facts[aspect], &their_facts[aspect]);
            if our != their && !known.remove(&format!("{name}:{aspect}")) {
                faults.push(format!("{name}, {aspect}: {our} is {their} there"));
            }
        }
    }
    for command in COMMANDS.iter().filter(|command| ours.contains_key(command.name)) {
        if !theirs.contains_key(command.name) && release.has(command.facts.since) {
            faults.push(format!("{} is not there", command.name));
        }
    }
    // Commands that this server does not have cannot differ.
    known.retain(|text| theirs.contains_key(text.split(':').next().unwrap_or_default()));
    faults.extend(known.into_iter().map(|text| format!("{text} does not differ")));
    faults
}

/// DEBUG PROTOCOL shows each type in the client's version.
#[test]
fn types_are_written_as_redis_writes_them() {
    type Write = fn(&mut Vec<u8>, Version);
    let types: [(&str, Write); 10] = [
        ("string", |out, _| encode::write_bulk(out, b"Hello World")),
        ("integer", |out, _| encode::write_integer(out, 12345)),
        ("double", |out, version| encode::write_double(out, version, 3141.0 / 1000.0)),
        ("null", encode::write_null),
        ("array", |out, _| {
            encode::write_array_header(out, 3);
            (0..3).for_each(|number| encode::write_integer(out, number));
        }),
        ("set", |out, version| {
            encode::write_set_header(out, version, 3);
            (0..3).for_each(|number| encode::write_integer(out, number));
        }),
        ("map", |out, version| {
            encode::write_map_header(out, version, 3);
            for number in 0..3 {
                encode::write_integer(out, number);
                encode::write_bool(out, version, number == 1);
            }
        }),
        ("verbatim", |out, version| {
            encode::write_verbatim(out, version, *b"txt", b"This is a verbatim\nstring");
        }),
        ("true", |out, version| encode::write_bool(out, version, true)),
        ("bignum", |out, version| {
            encode::write_big_number(out, version, b"1234567999999999999999999999999999999");
        }),
    ];
    let server = Server::start();
    for (version, number) in [(Version::Resp2, "2"), (Version::Resp3, "3")] {
        let connection = server.connect();
        connection.call(&words(&format!("HELLO {number}")));
        for (name, write) in types {
            let mut ours = Vec::new();
            write(&mut ours, version);
            let theirs = connection.call(&words(&format!("DEBUG PROTOCOL {name}")));
            let (ours, theirs) =
                (ours.escape_ascii().to_string(), theirs.escape_ascii().to_string());
            assert_eq!(ours, theirs, "{name} {number}");
        }
    }
}

#[test]
fn attributes_and_pushes_are_found_in_what_redis_sends() {
    let server = Server::start();
    let mut stream = server.connect().stream;
    let requests = b"HELLO 3\r\nDEBUG PROTOCOL attrib\r\nDEBUG PROTOCOL push\r\nPING\r\n";
    stream.write_all(requests).unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"+PONG\r\n") {
        let mut chunk = [0; 4096];
        let len = stream.read(&mut chunk).unwrap();
        assert!(len > 0, "redis-server closed the connection");
        received.extend_from_slice(&chunk[..len]);
    }
    let mut elements = Vec::new();
    let mut rest = received.as_slice();
    while let Scan::Complete(len) = ReplyScanner::default().scan(rest) {
        elements.push(reply(&rest[..len]).unwrap());
        rest = &rest[len..];
    }
    let mut elements = elements.into_iter();
    assert!(matches!(elements.next(), Some(Reply::Map(hello)) if hello.len() == 14));
    let attributed: &[u8] = b"Some real reply following the attribute";
    assert!(matches!(elements.next(), Some(Reply::Bulk(text)) if text == attributed));
    assert!(matches!(elements.next(), Some(Reply::Push(push)) if push.len() == 2));
    assert!(matches!(elements.next(), Some(Reply::Bulk(_))));
    assert!(matches!(elements.next(), Some(Reply::Status(b"PONG"))));
    assert!(elements.next().is_none() && rest.is_empty());
}

/// Calls with keys in all positions where commands have them.
const CALLS: &[&str] = &[
    "BITFIELD a GET u4 0 OVERFLOW SAT GET u4 1",
    "BITFIELD a GET u4 0 SET u4 0 1",
    "BITFIELD a",
    "BITOP AND d a b",
    "BLMPOP 0 2 a b LEFT",
    "BLPOP a b 0",
    "BZMPOP 0 1 a MIN",
    "COPY a b DB 1",
    "EVAL return 1 a",
    "EVAL return 2 a b c",
    "EVALSHA ffff 2 a b c",
    "EVALSHA_RO ffff 1 a",
    "EVAL_RO return 1 a b",
    "EXISTS a b a",
    "FCALL f 2 a b c",
    "FCALL_RO f 1 a",
    "GEORADIUS g 0 0 1 m",
    "GEORADIUS g 0 0 1 m COUNT 1 ASC STORE d",
    "GEORADIUS g 0 0 1 m STORE d STOREDIST e",
    "GEORADIUS g 0 0 1 m STORE",
    "GEORADIUS g 0 0 1 m storedist d",
    "GEORADIUSBYMEMBER g STORE 1 m STORE d",
    "GEORADIUSBYMEMBER g m 1 STORE d",
    "GEORADIUSBYMEMBER g m 1 m STORE d",
    "GEORADIUSBYMEMBER_RO g m 1 m",
    "GEOSEARCHSTORE d s FROMMEMBER a BYRADIUS 1 m",
    "GET a",
    "LCS a b",
    "LMOVE a b LEFT RIGHT",
    "LMPOP 1 a LEFT",
    "LMPOP 2 a b LEFT COUNT 1",
    "MEMORY USAGE a SAMPLES 1",
    "MGET a b c",
    "MIGRATE h 1 a 0 1",
    "MSET a 1 b 2",
    "MSETEX 2 a 1 b 2 NX",
    "MSETNX a 1 b 2",
    "OBJECT ENCODING a",
    "PFCOUNT a b",
    "PFMERGE d a b",
    "RENAME a b",
    "RESTORE a 0 x",
    "SDIFFCARD 2 a b",
    "SDIFFSTORE d a b",
    "SINTERCARD 2 a b LIMIT 1",
    "SMOVE a b c",
    "SET a b",
    "SET a get GET",
    "SET a b EX 5 GET",
    "SORT a",
    "SORT a BY STORE d",
    "SORT a BY x LIMIT 0 1 GET STORE ALPHA STORE d",
    "SORT a GET STORE STORE d",
    "SORT a LIMIT 0 STORE d",
    "SORT a STORE",
    "SORT a STORE d STORE e",
    "SORT_RO a BY x GET y",
    "SUNIONCARD 2 a b",
    "UNLINK a b",
    "WATCH a b",
    "XGROUP CREATE a g $",
    "XINFO STREAM a",
    "XREAD COUNT 1 STREAMS a b 0 0",
    "XREAD COUNT 1 STREAMS STREAMS 0",
    "XREAD STREAMS a 0",
    "XREAD streams streams 0",
    "XREADGROUP COUNT 1 GROUP g c STREAMS a >",
    "XREADGROUP GROUP STREAMS c STREAMS a >",
    "XREADGROUP GROUP g STREAMS STREAMS a >",
    "XREADGROUP GROUP g c COUNT 1 NOACK STREAMS a b > >",
    "ZDIFF 2 a b WITHSCORES",
    "ZDIFFSTORE d 1 a",
    "ZINTER 1 a",
    "ZINTERCARD 1 a LIMIT 1",
    "ZINTERSTORE d 2 a b",
    "ZMPOP 1 a MIN",
    "ZRANGESTORE d s 0 1",
    "ZUNION 2 a b WEIGHTS 1 2",
    "ZUNIONSTORE d 2 a b AGGREGATE MAX",
];

/// Whether the server has the command that is called.
fn is_known(connection: &Connection, call: &str) -> bool {
    let name = call.split(' ').next().unwrap_or_default();
    let info = connection.call(&["COMMAND", "INFO", name]);
    elements(&info).any(|entry| matches!(reply(entry), Some(Reply::Array(_))))
}

#[test]
fn keys_agree_with_command_getkeys() {
    let server = Server::start();
    let connection = server.connect();
    for call in CALLS {
        if !is_known(&connection, call) {
            continue;
        }
        let request = Request::new(&words(call));
        let (buf, args) = (request.buf.as_slice(), request.parser.args());
        let Lookup::Found(command) = find(buf, args) else {
            panic!("{call}");
        };
        let mut ours = Vec::new();
        assert_eq!(command.keys(buf, args, &mut ours), Ok(()), "{call}");
        let ours: Vec<&[u8]> = ours.iter().map(|key| key.of(buf)).collect();
        let mut expected = Vec::new();
        encode::write_command(&mut expected, &ours);

        let question = [[b"COMMAND".as_slice(), b"GETKEYS"].as_slice(), &words(call)].concat();
        let theirs = connection.call(&question);
        assert_eq!(
            expected.escape_ascii().to_string(),
            theirs.escape_ascii().to_string(),
            "{call}"
        );
        let request = Request::new(&question);
        let (mut out, custom) = (Vec::new(), CustomCommands::default());
        command_reply(
            &request.buf,
            request.parser.args(),
            (&custom, None),
            Version::Resp2,
            &mut out,
        );
        assert_eq!(out.escape_ascii().to_string(), theirs.escape_ascii().to_string(), "{call}");
        for (version, hello) in [(Version::Resp3, "HELLO 3"), (Version::Resp2, "HELLO 2")] {
            connection.call(&words(hello));
            let question = [&[b"COMMAND".as_slice(), b"GETKEYSANDFLAGS"], &*words(call)].concat();
            let theirs = connection.call(&question);
            let (request, mut out) = (Request::new(&question), Vec::new());
            command_reply(&request.buf, request.parser.args(), (&custom, None), version, &mut out);
            assert_eq!(canonical(&out), canonical(&theirs), "{call}");
        }
    }
    for command in COMMANDS.iter().filter(|command| command.has_movable_keys()) {
        let name = command.name.to_ascii_uppercase();
        let called = CALLS.iter().any(|call| call.split(' ').next() == Some(&name));
        assert!(called, "{name} is not among the calls");
    }
}

#[test]
fn errors_are_worded_as_redis_words_them() {
    let long = "x".repeat(200);
    let calls: Vec<Vec<&[u8]>> = vec![
        words("nope"),
        words("NOPE a b"),
        words("get|x"),
        words("object|encoding a"),
        vec![b"", b""],
        vec![b"f\r\no", b"a\r\nb"],
        vec![b"f\0o", b"a\0b", b"c"],
        vec![b"foo", b"\xff"],
        vec![long.as_bytes(), &long.as_bytes()[..120], b"bcdefgh", b"c"],
        vec![b"foo", &long.as_bytes()[..127], b"b"],
        [b"foo".as_slice()].into_iter().chain([b"".as_slice(); 60]).collect(),
        [b"foo".as_slice()].into_iter().chain([&long.as_bytes()[..20]; 20]).collect(),
        words("object nope"),
        words("Object NOPE a"),
        vec![b"object", b"a\r\nb"],
        vec![b"object", b""],
        vec![b"object", long.as_bytes()],
        words("command nope"),
        words("client nope"),
        words("get"),
        words("GeT a b"),
        words("object"),
        words("OBJECT EnCoding"),
        words("memory"),
        words("memory usage"),
        words("xgroup create a"),
        words("command count x"),
        words("MSET a 1 b"),
        words("MSETNX a 1 b"),
        words("ZUNION 0 a"),
        words("ZUNION -1 a"),
        words("ZUNION 3 a b"),
        words("ZUNION x a"),
        words("ZUNION 01 a"),
        words("ZUNION +1 a"),
        words("ZINTER 0 a"),
        words("ZDIFF 0 a"),
        words("ZINTERCARD 0 a"),
        words("ZINTERCARD 3 a"),
        words("ZUNIONSTORE d 0 a"),
        words("ZINTERSTORE d 2 a"),
        words("ZINTERSTORE d 4294967297 a"),
        words("ZINTERSTORE d 92233720368547758070 a"),
        words("ZDIFFSTORE d 0 a"),
        words("ZDIFFSTORE d x a"),
        words("SINTERCARD 0 a"),
        words("SINTERCARD 2 a"),
        words("SINTERCARD x a"),
        words("LMPOP 0 a LEFT"),
        words("LMPOP 2 a LEFT"),
        words("LMPOP 3 a LEFT"),
        words("LMPOP x a LEFT"),
        words("ZMPOP 0 a MIN"),
        words("ZMPOP 2 a MIN"),
        words("EVAL return 1"),
        words("EVAL return 2 a"),
        words("EVAL return 4294967297 a"),
        words("EVAL return x a"),
        words("EVAL return -1 a"),
        words("EVALSHA ffffffffffffffffffffffffffffffffffffffff 2 a"),
        words("XREAD STREAMS a b 0"),
        words("XREAD COUNT 1 a 0"),
        words("XREADGROUP GROUP g c NOACK STREAMS a b >"),
    ];
    let server = Server::start();
    let connection = server.connect();
    for call in calls {
        let called = call.join(b" ".as_slice()).escape_ascii().to_string();
        let ours = Request::new(&call).error().unwrap_or_else(|| panic!("{called} has no error"));
        let theirs = connection.call(&call);
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string(), "{called}");
    }
}

/// The gateway's processing of `bytes`: the requests for the server, in plain RESP, and the error
/// that ends the stream.
fn through_the_gateway(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut parser = RequestParser::default();
    let (mut forwarded, mut error, mut rest) = (Vec::new(), Vec::new(), bytes);
    loop {
        match parser.parse(rest, REQUEST_SIZE_MAX) {
            Parsed::Complete { len } => {
                if !parser.args().is_empty() {
                    let plain = parser.inline_encoded().unwrap_or(&rest[..len]);
                    forwarded.extend_from_slice(plain);
                }
                rest = &rest[len..];
                parser.reset();
            }
            Parsed::Partial { .. } => return (forwarded, error),
            Parsed::Invalid(kind) => {
                error.extend_from_slice(b"-ERR ");
                kind.write_message(&mut error);
                error.extend_from_slice(b"\r\n");
                return (forwarded, error);
            }
        }
    }
}

/// The server gives the same replies to the bytes and to the gateway's form of them.
fn assert_understood_alike(server: &Server, bytes: &[u8]) {
    let theirs = answers(server, bytes);
    let (forwarded, error) = through_the_gateway(bytes);
    let mut ours = answers(server, &forwarded);
    ours.extend_from_slice(&error);
    assert_eq!(
        ours.escape_ascii().to_string(),
        theirs.escape_ascii().to_string(),
        "{}",
        bytes[..bytes.len().min(200)].escape_ascii()
    );
}

#[test]
fn requests_are_understood_as_redis_understands_them() {
    let server = Server::start();
    // Closing our half must not lose the replies; otherwise all comparisons would succeed.
    assert_eq!(answers(&server, b"PING\r\nPING\r\n"), b"+PONG\r\n+PONG\r\n");
    let streams: &[&[u8]] = &[
        b"\r\n\r\nPING\r\n",
        b"\nPING\nPING\r\n",
        b"*0\r\nPING\r\n",
        b"*-1\r\n*-99\r\n*1\r\n$4\r\nPING\r\n",
        b"*a\r\n",
        b"*\r\n",
        b"*+1\r\n$4\r\nPING\r\n",
        b"*01\r\n$4\r\nPING\r\n",
        b"*-0\r\nPING\r\n",
        b"* 1\r\n$4\r\nPING\r\n",
        b"*2147483648\r\n",
        b"*9223372036854775808\r\n",
        b"*1\n$4\r\nPING\r\n",
        b"*1\nx$4\r\nPING\r\n",
        b"*1\rx$4\rxPINGxxPING\r\n",
        b"*1\r\n$4\r\nPINGxyPING\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$a\r\n",
        b"*1\r\n$\r\n",
        b"*1\r\n$04\r\nPING\r\n",
        b"*1\r\n$-0\r\n\r\n",
        b"*1\r\n$0\r\n\r\nPING\r\n",
        b"*1\r\n$536870912\r\n",
        b"*1\r\n$536870913\r\n",
        b"*1\r\nabc\r\n",
        b"*1\r\n\r\n",
        b"*1\r\n\xff\r\n",
        b"*1\r\n$\n4\r\nPING\r\n",
        b"PING \"a b\"\r\n",
        b"PING 'a\\'b' \r\nPING a\r\n",
        b"PING \"\\x41\\n\\xzz\\q\\a\\b\"\r\n",
        b"PING \"a\"b\r\nPING\r\n",
        b"PING \"a\r\n",
        b"PING a\"b\"\r\n",
        b"ECHO a\rb\n",
        b"ECHO a\r\r\n",
        b"ECHO \x0b a\t\r\n",
        b"ECHO \x0b\x0c\r\n",
        b"ECHO a\x0bb\r\n",
        b"ECHO \"\"\r\nECHO ''\r\n",
        b"   \r\n PING\r\n",
        b"*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\nPING\r\n",
    ];
    for stream in streams {
        assert_understood_alike(&server, stream);
    }
    for (start, fill) in [("", b'x'), ("*", b'1'), ("*1\r\n", b'$'), ("*1\r\n$", b'1')] {
        let mut stream = start.as_bytes().to_vec();
        stream.resize(start.len() + 64 * 1024 + 1, fill);
        assert_understood_alike(&server, &stream);
    }
}

#[test]
fn inline_commands_are_split_as_redis_splits_them() {
    let server = Server::start();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    });
    let line = "(ECHO|PING|echo x)[ a4n\"'\\\\x\t\r\x0b\x0c]{0,10}\r?\n";
    runner
        .run(&prop::collection::vec(line, 1..4), |lines| {
            assert_understood_alike(&server, lines.concat().as_bytes());
            Ok(())
        })
        .unwrap();
}
