//! YAML as a tree of nodes with places, so that a file is checked as a whole: reading straight into
//! typed values would stop at the first error.
//!
//! Scalars stay text. twemproxy gives no meaning to YAML's own types, and neither does this: a
//! password of `0123` is four characters, not a number.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Location, Spanned};

use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::slip;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) pos: Pos,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Empty,
    Scalar {
        text: String,
        /// The source contains `text` unchanged, so an offset into one is an offset into the other.
        plain: bool,
    },
    List(Vec<Node>),
    /// In the order of the file, duplicates included.
    Section(Vec<(At<String>, Node)>),
}

impl Node {
    /// The place in the file of the character at `offset` of this node's text.
    pub(crate) fn pos_of(&self, offset: usize) -> Pos {
        match self.kind {
            Kind::Scalar { plain: true, .. } => self.pos.right_by(offset),
            Kind::Empty | Kind::Scalar { .. } | Kind::List(_) | Kind::Section(_) => self.pos,
        }
    }
}

/// Reads one YAML document; `None` after an error.
pub(crate) fn parse(text: &str, report: &mut Report<'_>) -> Option<Node> {
    match read(text, false) {
        Ok(raw) => Some(settle(raw, text)),
        Err(error) => {
            complain(&error, text, report);
            None
        }
    }
}

/// Finds duplicate keys that [`parse`] does not report: keys that are numbers reach it already
/// merged into the last one.
pub(crate) fn check_strictly(text: &str, report: &mut Report<'_>) {
    if let Err(error) = read(text, true) {
        complain(&error, text, report);
    }
}

pub(crate) fn place_of(error: &serde_saphyr::Error) -> Pos {
    error.location().map_or(Pos::START, |location| pos_of(&location))
}

pub(crate) fn read(text: &str, strict: bool) -> Result<Spanned<Raw>, serde_saphyr::Error> {
    serde_saphyr::from_str_with_options(text, options(strict))
}

fn options(strict: bool) -> serde_saphyr::Options {
    serde_saphyr::options! {
        duplicate_keys: if strict { DuplicateKeyPolicy::Error } else { DuplicateKeyPolicy::LastWins },
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        strict_booleans: true,
        with_snippet: false,
    }
}

fn complain(error: &serde_saphyr::Error, text: &str, report: &mut Report<'_>) {
    use serde_saphyr::Error;

    let pos = place_of(error);
    let complaint = match error {
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or_default();
            Complaint::new(format!("\"{key}\" is given twice"))
        }
        Error::MultipleDocuments { .. } => Complaint::new("a second YAML document begins")
            .hint("a configuration is one document, without \"---\" inside"),
        Error::NullIntoString { .. } => Complaint::new("the name is missing"),
        _ => {
            if let Some((pos, complaint)) = slip::find(text, error) {
                return report.error(pos, complaint);
            }
            let message = error.to_string();
            // The text ends with the place, which the diagnostic has already.
            let message = message.rfind(" at line ").map_or(&*message, |end| &message[..end]);
            let complaint = Complaint::new(format!("not valid YAML: {message}"));
            let line = report.source_line(pos.line).unwrap_or_default();
            match must_be_quoted(&line) {
                Some(c) => {
                    complaint.hint(format!("text that starts with \"{c}\" must be in quotes"))
                }
                None => complaint,
            }
        }
    };
    report.error(pos, complaint);
}

/// The first character of the value on a line, list item or option, if YAML treats it as syntax and
/// that was probably not intended: addresses start with `[` and `*`.
fn must_be_quoted(line: &str) -> Option<char> {
    let line = line.trim_start();
    let value = match line.strip_prefix("- ") {
        Some(item) => item,
        None => line.split_once(": ")?.1,
    };
    let first = value.trim_start().chars().next()?;
    let is_collection = value.trim_end().ends_with([']', '}']);
    let is_special = "*&@%`".contains(first) || "[{".contains(first) && !is_collection;
    is_special.then_some(first)
}

fn pos_of(location: &Location) -> Pos {
    if location.line() == 0 {
        return Pos::START;
    }
    Pos { line: location.line() as usize, column: location.column() as usize }
}

/// A node as parsed by the YAML reader, before its source text is checked.
pub(crate) enum Raw {
    Empty,
    /// Numbers and booleans too, as the reader interpreted them.
    Text(String),
    List(Vec<Spanned<Self>>),
    Section(Vec<(Spanned<String>, Spanned<Self>)>),
}

fn settle(raw: Spanned<Raw>, source: &str) -> Node {
    let written = written_plainly(&raw.defined, source).filter(|text| !text.is_empty());
    let kind = match (raw.value, written) {
        // The reader does not distinguish 0123 from 123, or ~ from nothing.
        (Raw::Empty | Raw::Text(_), Some(text)) => {
            Kind::Scalar { text: text.to_owned(), plain: true }
        }
        (Raw::Empty, None) => Kind::Empty,
        (Raw::Text(text), None) => Kind::Scalar { text, plain: false },
        (Raw::List(items), _) => Kind::List(items.into_iter().map(|i| settle(i, source)).collect()),
        (Raw::Section(entries), _) => Kind::Section(
            entries
                .into_iter()
                .map(|(key, value)| {
                    let pos = pos_of(&key.referenced);
                    (At { value: key.value, pos }, settle(value, source))
                })
                .collect(),
        ),
    };
    Node { pos: pos_of(&raw.referenced), kind }
}

/// The source of a scalar, if it is on one line without quotes, tags or other syntax.
fn written_plainly<'s>(location: &Location, source: &'s str) -> Option<&'s str> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let len = usize::try_from(span.byte_len()?).ok()?;
    let text = source.get(start..start.checked_add(len)?)?.trim_end();
    let dressed = text.starts_with(['"', '\'', '|', '>', '!', '&', '*']) || text.contains('\n');
    (!dressed).then_some(text)
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section, a list or a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Empty)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut section = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            section.push(entry);
        }
        Ok(Raw::Section(section))
    }
}
