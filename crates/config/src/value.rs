//! The types of options: their syntax, unit and range.

use std::fmt;
use std::path::PathBuf;

use cashew_placement::{Distribution, Hash, HashTag};
use schemars::{Schema, json_schema};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as NameError, StrDeserializer};

use crate::address::{ListenText, ServerLine, UNIX_PATH_SIZE_MAX, unix_path};
use crate::diagnostic::{At, Complaint, Report, nearest};
use crate::foreign;
use crate::groups;
use crate::sentinel;
use crate::snapshot::{
    Affinity, CasUniques, Credentials, IoEngine, LogFormat, OnFailure, PROCESSORS_MAX, Reads,
    SERVERS_MAX, StatsFormat, Wire, Writes,
};
use crate::tree::{Kind, Node};

/// The largest number of twemproxy's own options, a C `int`.
pub(crate) const INT_MAX: u64 = 2_147_483_647;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A type of option values.
pub(crate) trait Value: Sized {
    /// The value of a scalar's text, which is never empty.
    fn parse(text: &str) -> Result<Self, Complaint>;
    fn schema() -> Schema;
    /// Type, unit and range in a few words, for the documentation and for hints.
    fn describe() -> String;

    /// [`Value::describe`] as a hint, without backticks.
    fn expected() -> String {
        format!("expected {}", Self::describe().replace('`', ""))
    }

    /// The value of a node; `None` after an error.
    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let result = match &node.kind {
            Kind::Scalar { text, .. } if !text.is_empty() => Self::parse(text).map_err(|c| {
                Complaint { message: format!("option \"{key}\": {}", c.message), ..c }
            }),
            Kind::Empty | Kind::Scalar { .. } => {
                Err(Complaint::new(format!("option \"{key}\" has no value")).hint(Self::expected()))
            }
            Kind::List(_) | Kind::Section(_) => {
                Err(Complaint::new(format!("option \"{key}\" takes a single value"))
                    .hint(Self::expected()))
            }
        };
        result.map_err(|complaint| report.error(node.pos_of(complaint.offset), complaint)).ok()
    }
}

/// A whole number from `MIN` to `MAX`, digits only, as in twemproxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<const MIN: u64, const MAX: u64> Value for Number<MIN, MAX> {
    fn parse(text: &str) -> Result<Self, Complaint> {
        whole_number(text, MIN, MAX).map(Self)
    }

    fn schema() -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }

    fn describe() -> String {
        format!("{MIN} to {MAX}")
    }
}

fn whole_number(text: &str, min: u64, max: u64) -> Result<u64, Complaint> {
    let expected = format!("expected a whole number from {min} to {max}");
    if text.strip_prefix('-').is_some_and(all_digits) {
        return Err(Complaint::new(format!("{text} is negative")).hint(expected));
    }
    if !all_digits(text) {
        return Err(Complaint::new(format!("\"{text}\" is not a number")).hint(expected));
    }
    // Digits that do not fit are too many.
    match text.parse::<u64>() {
        Ok(number) if number < min => Err(Complaint::new(format!("{text} is too small"))),
        Ok(number) if number <= max => Ok(number),
        Ok(_) | Err(_) => Err(Complaint::new(format!("{text} is too large"))),
    }
    .map_err(|complaint| complaint.hint(expected))
}

pub(crate) fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Milliseconds, or -1 or 0 for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeout(pub(crate) Option<u64>);

impl Value for Timeout {
    fn parse(text: &str) -> Result<Self, Complaint> {
        if text == "-1" {
            return Ok(Self(None));
        }
        let timeout =
            whole_number(text, 0, INT_MAX).map_err(|complaint| complaint.hint(Self::expected()))?;
        Ok(Self((timeout > 0).then_some(timeout)))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "integer", "minimum": -1, "maximum": INT_MAX })
    }

    fn describe() -> String {
        format!("0 to {INT_MAX} ms, or -1")
    }
}

/// `true` or `false` and nothing else, as in twemproxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch(pub(crate) bool);

impl Value for Switch {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "true" => Ok(Self(true)),
            "false" => Ok(Self(false)),
            _ => Err(Complaint::new(format!("\"{text}\" is not \"true\" or \"false\""))),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "boolean" })
    }

    fn describe() -> String {
        "`true` or `false`".to_owned()
    }
}

/// Text, unchanged.
#[derive(Clone, Debug)]
pub(crate) struct Text(pub(crate) String);

impl Value for Text {
    fn parse(text: &str) -> Result<Self, Complaint> {
        Ok(Self(text.to_owned()))
    }

    fn schema() -> Schema {
        // A password of digits only is a number to every other YAML reader.
        json_schema!({ "type": ["string", "integer"], "minLength": 1 })
    }

    fn describe() -> String {
        "text".to_owned()
    }
}

/// Users with their passwords.
#[derive(Clone, Debug)]
pub(crate) struct CredentialList(pub(crate) Vec<Credentials>);

/// Longest user and longest password: servers accept both lengths.
pub(crate) const CREDENTIAL_SIZE_MAX: usize = 255;
const CREDENTIALS_MAX: usize = 64;

impl Value for CredentialList {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let expected = || Complaint::new("this is not a list of users").hint(Self::expected());
        let pairs = text.split_whitespace().map(|pair| {
            let (user, password) = pair.split_once(':').ok_or_else(expected)?;
            let is_size = |part: &str| (1..=CREDENTIAL_SIZE_MAX).contains(&part.len());
            let is_good = is_size(user) && is_size(password) && !pair.contains(char::is_control);
            is_good
                .then(|| Credentials { user: user.to_owned(), password: password.to_owned() })
                .ok_or_else(expected)
        });
        let pairs = pairs.collect::<Result<Vec<_>, Complaint>>()?;
        match (1..=CREDENTIALS_MAX).contains(&pairs.len()) {
            true => Ok(Self(pairs)),
            false => Err(expected()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 3 })
    }

    fn describe() -> String {
        format!("`user:password`, up to {CREDENTIALS_MAX} with spaces between them")
    }
}

/// Bytes from `MIN` to `MAX`: a number, or a number with `kb`, `mb` or `gb` (powers of 1024).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<const MIN: u64, const MAX: u64> Value for Size<MIN, MAX> {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let expected = Self::expected();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kb" => KIB,
            "mb" => MIB,
            "gb" => GIB,
            _ => return Err(Complaint::new(format!("\"{text}\" is not a size")).hint(expected)),
        };
        if number.is_empty() {
            return Err(Complaint::new(format!("\"{text}\" is not a size")).hint(expected));
        }
        match number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)) {
            Some(bytes) if bytes < MIN => Err(Complaint::new(format!("{text} is too small"))),
            Some(bytes) if bytes <= MAX => Ok(Self(bytes)),
            Some(_) | None => Err(Complaint::new(format!("{text} is too large"))),
        }
        .map_err(|complaint| complaint.hint(expected))
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            { "type": "integer", "minimum": MIN, "maximum": MAX },
            { "type": "string", "pattern": "^[0-9]+([kKmMgG]?[bB])?$" },
        ] })
    }

    fn describe() -> String {
        format!("{} to {}", SizeText(MIN), SizeText(MAX))
    }
}

/// Bytes in the largest unit that leaves no remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeText(pub(crate) u64);

impl fmt::Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (factor, unit) in [(GIB, "gb"), (MIB, "mb"), (KIB, "kb")] {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// Bytes for people, with one decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundSize(pub(crate) u64);

impl fmt::Display for RoundSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (factor, unit) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= factor {
                return write!(f, "{:.1} {unit}", self.0 as f64 / factor as f64);
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// A fixed number of worker processes or one for every processor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Workers {
    Auto,
    Fixed(u32),
}

/// Most worker processes of one instance.
pub const WORKERS_MAX: u32 = 256;

impl Value for Workers {
    fn parse(text: &str) -> Result<Self, Complaint> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let workers = whole_number(text, 0, WORKERS_MAX.into())
            .map_err(|complaint| complaint.hint(Self::expected()))?;
        Ok(Self::Fixed(workers as u32))
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            { "const": "auto" },
            { "type": "integer", "minimum": 0, "maximum": WORKERS_MAX },
        ] })
    }

    fn describe() -> String {
        format!("`auto` or 0 to {WORKERS_MAX}")
    }
}

/// Bytes for the buffers of the whole instance.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// Part of the memory that this process may use.
    Auto,
    Unlimited,
    Fixed(u64),
}

/// Enough for the largest instance with workers, and for the smallest without.
type MemorySize = Size<{ 16 * MIB }, { 4096 * GIB }>;

impl Value for Memory {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "auto" => Ok(Self::Auto),
            "0" => Ok(Self::Unlimited),
            size => MemorySize::parse(size)
                .map(|size| Self::Fixed(size.0))
                .map_err(|complaint| complaint.hint(Self::expected())),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [{ "const": "auto" }, { "const": 0 }, MemorySize::schema()] })
    }

    fn describe() -> String {
        format!("`auto`, 0, or {}", MemorySize::describe())
    }
}

/// Milliseconds without a heartbeat, or 0 for no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heartbeat(pub(crate) u64);

impl Heartbeat {
    /// Workers beat every 100 ms: with less, one that is only late would be killed.
    const MIN: u64 = 300;
    const MAX: u64 = 3_600_000;
}

impl Value for Heartbeat {
    fn parse(text: &str) -> Result<Self, Complaint> {
        if text == "0" {
            return Ok(Self(0));
        }
        whole_number(text, Self::MIN, Self::MAX)
            .map(Self)
            .map_err(|complaint| complaint.hint(Self::expected()))
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            { "const": 0 },
            { "type": "integer", "minimum": Self::MIN, "maximum": Self::MAX },
        ] })
    }

    fn describe() -> String {
        format!("0, or {} to {}", Self::MIN, Self::MAX)
    }
}

/// Path of a Unix socket, independent of the working directory.
#[derive(Clone, Debug)]
pub(crate) struct SocketPath(pub(crate) PathBuf);

impl Value for SocketPath {
    fn parse(text: &str) -> Result<Self, Complaint> {
        if !text.starts_with('/') {
            return Err(Complaint::new(format!("\"{text}\" is not an absolute path"))
                .hint("expected /path"));
        }
        unix_path(text).map(Self)
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^/", "maxLength": UNIX_PATH_SIZE_MAX })
    }

    fn describe() -> String {
        "`/path`".to_owned()
    }
}

/// Address of the statistics: like those of pools, without a path.
#[derive(Clone, Debug)]
pub(crate) struct StatsListen {
    /// Empty for every address.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Value for StatsListen {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let refused =
            || Complaint::new(format!("\"{text}\" is not an address")).hint(Self::expected());
        if !text.contains(':') {
            return Err(refused());
        }
        match ListenText::parse_text(text)? {
            ListenText::Tcp { host, port } => Ok(Self { host, port }),
            ListenText::Unix { .. } => Err(refused()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[^/]+:[0-9]+$" })
    }

    fn describe() -> String {
        "`host:port`".to_owned()
    }
}

/// Path of a file, independent of the working directory.
#[derive(Clone, Debug)]
pub(crate) struct FilePath(pub(crate) PathBuf);

impl Value for FilePath {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let refused =
            |why: &str| Complaint::new(format!("\"{text}\" {why}")).hint("expected /path");
        if !text.starts_with('/') {
            return Err(refused("is not an absolute path"));
        }
        if text.ends_with('/') {
            return Err(refused("is a directory"));
        }
        if text.contains('\0') {
            return Err(Complaint::new("the path has a zero byte"));
        }
        Ok(Self(PathBuf::from(text)))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^/.*[^/]$" })
    }

    fn describe() -> String {
        "`/path`".to_owned()
    }
}

impl Value for Affinity {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            list => processors(list).map(Self::List),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            { "enum": ["auto", "off"] },
            { "type": "string", "pattern": "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$" },
            { "type": "integer", "minimum": 0, "maximum": PROCESSORS_MAX - 1 },
        ] })
    }

    fn describe() -> String {
        format!("`auto`, `off`, or a list of 0 to {}", PROCESSORS_MAX - 1)
    }
}

/// Numbers and ranges of numbers between commas, in the order given.
fn processors(text: &str) -> Result<Vec<u32>, Complaint> {
    let mut list = Vec::new();
    let mut offset = 0;
    for item in text.split(',') {
        let complaint = |message: String| {
            Complaint::new(message).hint("expected auto, off, or a list like 0-3,6").offset(offset)
        };
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let number = |text: &str| {
            let number = all_digits(text).then(|| text.parse().ok()).flatten();
            number.filter(|number| *number < PROCESSORS_MAX).ok_or_else(|| {
                complaint(format!("\"{text}\" is not a processor's number"))
                    .hint(format!("expected a number from 0 to {}", PROCESSORS_MAX - 1))
            })
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(complaint(format!("\"{item}\" is not a range")));
        }
        for processor in first..=last {
            if list.contains(&processor) {
                return Err(complaint(format!("processor {processor} is given twice")));
            }
            list.push(processor);
        }
        offset += item.chars().count() + 1;
    }
    Ok(list)
}

/// The names of the hashes, as [`Hash`] is serialized.
pub(crate) const HASHES: [&str; 12] = [
    "one_at_a_time",
    "md5",
    "crc16",
    "crc32",
    "crc32a",
    "fnv1_64",
    "fnv1a_64",
    "fnv1_32",
    "fnv1a_32",
    "hsieh",
    "murmur",
    "jenkins",
];

/// The names of the distributions, as [`Distribution`] is serialized.
pub(crate) const DISTRIBUTIONS: [&str; 3] = ["ketama", "modula", "random"];

impl Value for Hash {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "hash", &HASHES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": HASHES })
    }

    fn describe() -> String {
        list_of(&HASHES)
    }
}

impl Value for Distribution {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "distribution", &DISTRIBUTIONS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": DISTRIBUTIONS })
    }

    fn describe() -> String {
        list_of(&DISTRIBUTIONS)
    }
}

/// The names of the I/O engines, as [`IoEngine`] is serialized.
const IO_ENGINES: [&str; 3] = ["auto", "epoll", "uring"];

impl Value for IoEngine {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "I/O engine", &IO_ENGINES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": IO_ENGINES })
    }

    fn describe() -> String {
        list_of(&IO_ENGINES)
    }
}

/// As [`StatsFormat`] is serialized.
const STATS_FORMATS: [&str; 2] = ["nutcracker", "full"];

impl Value for StatsFormat {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "format of the statistics", &STATS_FORMATS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": STATS_FORMATS })
    }

    fn describe() -> String {
        list_of(&STATS_FORMATS)
    }
}

/// As [`LogFormat`] is serialized.
const LOG_FORMATS: [&str; 2] = ["plain", "json"];

impl Value for LogFormat {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "format of the log", &LOG_FORMATS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": LOG_FORMATS })
    }

    fn describe() -> String {
        list_of(&LOG_FORMATS)
    }
}

/// As [`Wire`] is serialized.
const WIRES: [&str; 4] = ["auto", "text", "binary", "tcp"];

impl Value for Wire {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "protocol", &WIRES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": WIRES })
    }

    fn describe() -> String {
        list_of(&WIRES)
    }
}

/// As [`OnFailure`] is serialized.
const FAILURES: [&str; 2] = ["error", "miss"];

impl Value for OnFailure {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "answer to a failure", &FAILURES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": FAILURES })
    }

    fn describe() -> String {
        list_of(&FAILURES)
    }
}

/// As [`Reads`] are serialized.
const READS: [&str; 7] =
    ["primary", "prefer_primary", "replica", "prefer_replica", "any", "nearest", "zone"];

impl Value for Reads {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "way to read", &READS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": READS })
    }

    fn describe() -> String {
        list_of(&READS)
    }
}

/// As [`Writes`] are serialized.
const WRITES: [&str; 2] = ["all", "first"];

impl Value for Writes {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "way to write", &WRITES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": WRITES })
    }

    fn describe() -> String {
        list_of(&WRITES)
    }
}

/// As [`CasUniques`] is serialized.
const CAS_UNIQUES: [&str; 3] = ["auto", "tagged", "plain"];

impl Value for CasUniques {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "form of CAS uniques", &CAS_UNIQUES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": CAS_UNIQUES })
    }

    fn describe() -> String {
        list_of(&CAS_UNIQUES)
    }
}

pub(crate) fn named<T: for<'de> Deserialize<'de>>(
    text: &str,
    what: &str,
    names: &[&str],
) -> Result<T, Complaint> {
    let deserializer: StrDeserializer<'_, NameError> = text.into_deserializer();
    T::deserialize(deserializer).map_err(|_| {
        let suggestion = nearest(text, names.iter().copied())
            .map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
        Complaint::new(format!("\"{text}\" is not a valid {what}{suggestion}"))
            .hint(format!("expected one of {}", names.join(", ")))
    })
}

pub(crate) fn list_of(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl Value for HashTag {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match *text.as_bytes() {
            [open, close] => Ok(Self { open, close }),
            _ => Err(Complaint::new(format!(
                "\"{text}\" is not a valid hash tag: it must be exactly two characters"
            ))
            .hint("for example hash_tag: \"{}\"")),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 2, "maxLength": 2 })
    }

    fn describe() -> String {
        "two characters".to_owned()
    }
}

/// The servers of a pool, in the order of the file.
#[derive(Debug)]
pub(crate) struct Servers(pub(crate) Vec<At<ServerLine>>);

impl Value for Servers {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"servers\" takes a list").hint(SERVERS_HINT))
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "array", "minItems": 1, "maxItems": SERVERS_MAX,
            "items": {
                "anyOf": [ServerLine::schema(), groups::schema(), sentinel::group_schema()],
            },
        })
    }

    fn describe() -> String {
        "a list of server lines and groups".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let refusal = match &node.kind {
            Kind::List(items) if items.is_empty() => {
                Complaint::new("the pool has no servers").hint(SERVERS_HINT)
            }
            Kind::List(items) if items.len() > SERVERS_MAX => {
                Complaint::new(format!("{} servers are too many for one pool", items.len()))
                    .hint(format!("at most {SERVERS_MAX}"))
            }
            Kind::List(items) => return read_lines(key, items, report),
            Kind::Empty => Complaint::new("the pool has no servers").hint(SERVERS_HINT),
            Kind::Scalar { .. } | Kind::Section(_) => {
                return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
            }
        };
        report.error(node.pos, refusal);
        None
    }
}

const SERVERS_HINT: &str = "expected lines like \"- 127.0.0.1:6379:1\"";

fn read_lines(key: &str, items: &[Node], report: &mut Report<'_>) -> Option<Servers> {
    // Every line is read, so that every error is reported.
    let lines: Vec<_> = items
        .iter()
        .map(|item| match &item.kind {
            Kind::Section(entries) if sentinel::is_group(entries) => {
                sentinel::read_group(item, report).map(|value| At { value, pos: item.pos })
            }
            Kind::Section(entries) if groups::is_group(entries) => {
                groups::read(item, report).map(|value| At { value, pos: item.pos })
            }
            Kind::Section(entries) => {
                report.error(item.pos, foreign::server_section(entries));
                None
            }
            Kind::Empty | Kind::Scalar { .. } | Kind::List(_) => {
                ServerLine::read(key, item, report).map(|value| At { value, pos: item.pos })
            }
        })
        .collect();
    lines.into_iter().collect::<Option<_>>().map(Servers)
}

impl Value for ServerLine {
    fn parse(text: &str) -> Result<Self, Complaint> {
        Self::parse_line(text)
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^(/[^:]+|.+:0*[1-9][0-9]*):0*[1-9][0-9]*( +[^ ]+)?$",
        })
    }

    fn describe() -> String {
        "`host:port:weight [name]` or `/path:weight [name]`".to_owned()
    }
}

impl Value for ListenText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        Self::parse_text(text)
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^(/.+|.+:0*[1-9][0-9]*)$" })
    }

    fn describe() -> String {
        "`host:port` or `/path [mode]`".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{GlobalSection, PoolSection};
    use crate::section::Section;

    #[test]
    fn names_of_algorithms_are_those_of_their_types() {
        for name in HASHES {
            let hash = Hash::parse(name).expect(name);
            assert_eq!(serde_json::to_value(hash).unwrap(), name);
        }
        for name in DISTRIBUTIONS {
            let distribution = Distribution::parse(name).expect(name);
            assert_eq!(serde_json::to_value(distribution).unwrap(), name);
        }
    }

    #[test]
    fn every_default_parses() {
        GlobalSection::defaults();
        PoolSection::defaults();
    }

    #[test]
    fn sizes_have_units() {
        let size = |text: &str| Size::<10, { 4 << 30 }>::parse(text).map(|size| size.0).ok();
        assert_eq!(size("10"), Some(10));
        assert_eq!(size("10b"), Some(10));
        assert_eq!(size("64kb"), Some(64 << 10));
        assert_eq!(size("3MB"), Some(3 << 20));
        assert_eq!(size("4Gb"), Some(4 << 30));
        for bad in
            ["9", "4294967297", "5gb", "18446744073709551615gb", "kb", "", "1 kb", "1k", "-1"]
        {
            assert_eq!(size(bad), None, "{bad}");
        }
    }
}
