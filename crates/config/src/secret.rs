//! Passwords: in the file itself, or in a separate file or a variable of the environment that it refers to.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::file::SecretSection;
use crate::resolve::Context;
use crate::section;
use crate::tree::{Kind, Node};
use crate::value::{FilePath, Text, Value};

/// Largest file with a password, or with all users of a pool.
pub(crate) const SECRET_SIZE_MAX: u64 = 64 << 10;

/// Largest file with certificates: many times what distributions have.
const PEM_SIZE_MAX: u64 = 4 << 20;

/// A value that must not be shown.
#[derive(Debug)]
pub(crate) enum Secret<T> {
    Given(T),
    In(At<FilePath>),
    /// A variable of the master's environment.
    Variable(At<Text>),
}

/// The content of a file with a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    pub text: String,
    /// Every user of this machine can read it.
    pub is_public: bool,
}

impl<T: Value> Value for Secret<T> {
    fn parse(text: &str) -> Result<Self, Complaint> {
        T::parse(text).map(Self::Given)
    }

    fn schema() -> Schema {
        let section = section::schema::<SecretSection>(&mut SchemaGenerator::default());
        json_schema!({ "anyOf": [T::schema(), section] })
    }

    fn describe() -> String {
        format!("{}, or `{{file: /path}}`, or `{{env: NAME}}`", T::describe())
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(entries) = &node.kind else {
            return T::read(key, node, report).map(Self::Given);
        };
        let section: SecretSection =
            section::read(&format!("option \"{key}\""), node.pos, node, report);
        section.place(key, (node.pos, entries), report)
    }
}

impl SecretSection {
    /// `None` after a complaint. `entries` are those of the section, which may have been refused.
    pub(crate) fn place<T>(
        self,
        key: &str,
        (pos, entries): (Pos, &[(At<String>, Node)]),
        report: &mut Report<'_>,
    ) -> Option<Secret<T>> {
        let is_given =
            |(key, _): &(At<String>, Node)| matches!(&*key.value, "file" | "env" | "servers");
        match (self.file, self.env) {
            (None, None) if entries.iter().any(is_given) => None,
            (Some(file), None) => Some(Secret::In(file)),
            (None, Some(name)) => Some(Secret::Variable(name)),
            (file, _) => {
                let how_many = if file.is_some() { "both" } else { "neither" };
                let message = format!("option \"{key}\" has {how_many} of \"file\" and \"env\"");
                let hint = "expected `{file: /path}` or `{env: NAME}`";
                report.error(pos, Complaint::new(message).hint(hint));
                None
            }
        }
    }
}

/// The value of the option of this name; `None` if there is none, or after an error.
pub(crate) fn resolve<T: Value + Clone>(
    key: &str,
    option: Option<&Secret<T>>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<T> {
    let (text, pos, place, is_public) = match option? {
        Secret::Given(value) => return Some(value.clone()),
        Secret::In(At { value: FilePath(path), pos }) => {
            let place = path.display().to_string();
            match (context.read_secret)(path) {
                Ok(SecretFile { text, is_public }) => (text, *pos, place, is_public),
                Err(error) => {
                    let message = format!("option \"{key}\": {place} cannot be read: {error}");
                    report.error(*pos, Complaint::new(message));
                    return None;
                }
            }
        }
        Secret::Variable(At { value: Text(name), pos }) => {
            let place = format!("the environment's {name}");
            match (context.read_env)(name) {
                Some(text) => (text, *pos, place, false),
                None => {
                    let message = format!("option \"{key}\": {place} is not set");
                    let hint = "it is the environment of the master, which keeps that of its start";
                    report.error(*pos, Complaint::new(message).hint(hint));
                    return None;
                }
            }
        }
    };
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    // The error must not show the content.
    let why = match text.is_empty() {
        true => "is empty".to_owned(),
        false => match T::parse(text) {
            Ok(value) => {
                if is_public {
                    let message = format!("every user of this machine can read {place}");
                    let hint = "it holds a password: chmod 0600, or 0640 for a group";
                    report.warning(pos, Complaint::new(message).hint(hint));
                }
                return Some(value);
            }
            Err(_) => format!("does not hold what is wanted: {}", T::expected()),
        },
    };
    report.error(pos, Complaint::new(format!("option \"{key}\": {place} {why}")));
    None
}

/// Reads a file with a password.
pub(crate) fn read_file(path: &Path) -> io::Result<SecretFile> {
    read(path, SECRET_SIZE_MAX)
}

/// Reads a file with certificates or a key.
pub(crate) fn read_pem(path: &Path) -> io::Result<SecretFile> {
    read(path, PEM_SIZE_MAX)
}

/// Reading something other than a regular file might never end.
fn read(path: &Path, size_max: u64) -> io::Result<SecretFile> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(size_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > size_max {
        return Err(io::Error::other(format!("it is larger than {size_max} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))?;
    if text.contains('\0') {
        return Err(io::Error::other("it has a zero byte"));
    }
    Ok(SecretFile { text, is_public: metadata.permissions().mode() & 0o004 != 0 })
}
