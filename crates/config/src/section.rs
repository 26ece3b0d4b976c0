//! Sections of "option: value" lines: one declaration gives the type, the reader, the schema and
//! the documentation of each.

use std::collections::HashMap;

use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, json};

use crate::diagnostic::{Complaint, Pos, Report, nearest};
use crate::foreign;
use crate::tree::{Kind, Node};

/// What is known of an option without a file.
pub(crate) struct OptionInfo {
    pub(crate) key: &'static str,
    /// The declaration's doc comment.
    pub(crate) doc: &'static str,
    /// As in a file.
    pub(crate) default: Option<&'static str>,
    pub(crate) required: bool,
    pub(crate) schema: fn() -> Schema,
    pub(crate) describe: fn() -> String,
    pub(crate) expected: fn() -> String,
}

pub(crate) trait Section: Sized {
    const NAME: &'static str;
    const DOC: &'static str;

    fn options() -> Vec<OptionInfo>;

    /// All defaults.
    fn defaults() -> Self;

    /// Sets the value of one option; returns false if there is none of that name.
    fn set(&mut self, key: &str, node: &Node, report: &mut Report<'_>) -> bool;
}

/// Reads a section; an option that is refused keeps its default. `what` is the section's name in
/// errors.
pub(crate) fn read<S: Section>(what: &str, pos: Pos, node: &Node, report: &mut Report<'_>) -> S {
    let mut section = S::defaults();
    let entries = match &node.kind {
        Kind::Section(entries) => entries.as_slice(),
        Kind::Empty => &[],
        Kind::Scalar { .. } | Kind::List(_) => {
            let complaint = Complaint::new(format!("{what} must be a section of options"))
                .hint("expected indented lines like \"option: value\"");
            report.error(node.pos, complaint);
            return section;
        }
    };
    let options = S::options();
    let mut first_lines = HashMap::new();
    for (key, value) in entries {
        if let Some(line) = first_lines.get(key.value.as_str()) {
            let complaint = Complaint::new(format!("option \"{}\" is given twice", key.value));
            report.error(key.pos, complaint.hint(format!("first given on line {line}")));
            continue;
        }
        first_lines.insert(key.value.as_str(), key.pos.line);
        if !section.set(&key.value, value, report) {
            let suggestion = nearest(&key.value, options.iter().map(|option| option.key))
                .map_or_else(String::new, |key| format!("; did you mean \"{key}\"?"));
            let message = format!("unknown option \"{}\"{suggestion}", key.value);
            let hint = foreign::hint_of_option(S::NAME, &key.value);
            report.error(key.pos, Complaint { hint, ..Complaint::new(message) });
        }
    }
    for option in options.iter().filter(|option| option.required) {
        if !first_lines.contains_key(option.key) {
            let complaint = Complaint::new(format!("{what} lacks the option \"{}\"", option.key));
            report.error(pos, complaint.hint((option.expected)()));
        }
    }
    section
}

pub(crate) fn schema<S: Section>(_: &mut SchemaGenerator) -> Schema {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for option in S::options() {
        let mut property = (option.schema)();
        property.insert("description".into(), prose(option.doc).into());
        if let Some(default) = option.default {
            // JSON has its own literals for numbers and booleans; the rest is text.
            let literal = serde_json::from_str(default).unwrap_or_else(|_| json!(default));
            property.insert("default".into(), literal);
        }
        if option.required {
            required.push(option.key);
        }
        properties.insert(option.key.to_owned(), property.into());
    }
    schemars::json_schema!({
        "type": "object",
        "description": prose(S::DOC),
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// A doc comment as one paragraph.
pub(crate) fn prose(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The name of an option that is a word of Rust as well, and has a mark there.
pub(crate) fn plain(name: &'static str) -> &'static str {
    name.strip_prefix("r#").unwrap_or(name)
}

/// Declares a [`Section`]: `key: Type = "default"` always has a value, `key: Type = none` may have
/// none, `key: Type = required` must be in the file.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $name:ident {
            $( $(#[doc = $doc:literal])+ $key:ident : $ty:ty = $default:tt, )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug)]
        pub(crate) struct $name {
            $( $(#[doc = $doc])+ pub(crate) $key: section!(@type $default $ty), )+
        }

        impl Section for $name {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = concat!($($about, "\n"),+);

            fn options() -> Vec<OptionInfo> {
                vec![$( OptionInfo {
                    key: $crate::section::plain(stringify!($key)),
                    doc: concat!($($doc, "\n"),+),
                    default: section!(@default $default),
                    required: section!(@required $default),
                    schema: <$ty as Value>::schema,
                    describe: <$ty as Value>::describe,
                    expected: <$ty as Value>::expected,
                } ),+]
            }

            fn defaults() -> Self {
                Self { $( $key: section!(@start $default $ty) ),+ }
            }

            fn set(&mut self, key: &str, node: &Node, report: &mut Report<'_>) -> bool {
                match key {
                    $( name if name == $crate::section::plain(stringify!($key)) => {
                        if let Some(value) = <$ty as Value>::read(key, node, report) {
                            self.$key = At { value, pos: node.pos }.into();
                        }
                    } )+
                    _ => return false,
                }
                true
            }
        }
    };

    (@type none $ty:ty) => { Option<At<$ty>> };
    (@type required $ty:ty) => { Option<At<$ty>> };
    (@type $default:literal $ty:ty) => { At<$ty> };

    (@default none) => { None };
    (@default required) => { None };
    (@default $default:literal) => { Some($default) };

    (@required required) => { true };
    (@required $default:tt) => { false };

    (@start none $ty:ty) => { None };
    (@start required $ty:ty) => { None };
    (@start $default:literal $ty:ty) => {
        At {
            value: <$ty as Value>::parse($default).expect("a test parses every default"),
            pos: Pos::NONE,
        }
    };
}
pub(crate) use section;
