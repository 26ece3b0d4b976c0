//! Passwords: in the file itself, or in a separate file that it refers to.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Report};
use crate::file::SecretSection;
use crate::section;
use crate::tree::{Kind, Node};
use crate::value::{FilePath, Value};

/// Largest file with a password, or with all users of a pool.
pub(crate) const SECRET_SIZE_MAX: u64 = 64 << 10;

/// Largest file with certificates: many times what distributions have.
const PEM_SIZE_MAX: u64 = 4 << 20;

/// A value that must not be shown.
#[derive(Debug)]
pub(crate) enum Secret<T> {
    Given(T),
    In(At<FilePath>),
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
        format!("{}, or `{{file: /path}}`", T::describe())
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return T::read(key, node, report).map(Self::Given);
        };
        let section: SecretSection =
            section::read(&format!("option \"{key}\""), node.pos, node, report);
        section.file.map(Self::In)
    }
}

/// The value of the option of this name; `None` if there is none, or after an error.
pub(crate) fn resolve<T: Value + Clone>(
    key: &str,
    option: Option<&At<Secret<T>>>,
    read: &dyn Fn(&Path) -> io::Result<SecretFile>,
    report: &mut Report<'_>,
) -> Option<T> {
    let file = match &option?.value {
        Secret::Given(value) => return Some(value.clone()),
        Secret::In(file) => file,
    };
    let path = &file.value.0;
    let mut refuse = |why: String| {
        let message = format!("option \"{key}\": {} {why}", path.display());
        report.error(file.pos, Complaint::new(message));
    };
    let SecretFile { text, is_public } = match read(path) {
        Ok(secret) => secret,
        Err(error) => {
            refuse(format!("cannot be read: {error}"));
            return None;
        }
    };
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        refuse("is empty".to_owned());
        return None;
    }
    // The error must not show the content.
    let Ok(value) = T::parse(text) else {
        refuse(format!("does not hold what is wanted: {}", T::expected()));
        return None;
    };
    if is_public {
        let message = format!("every user of this machine can read {}", path.display());
        let hint = "it holds a password: chmod 0600, or 0640 for a group";
        report.warning(file.pos, Complaint::new(message).hint(hint));
    }
    Some(value)
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
