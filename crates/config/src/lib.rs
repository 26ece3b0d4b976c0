//! The configuration: a YAML file in either of twemproxy's dialects, validated once and resolved
//! into an immutable, numbered [`Snapshot`] that every process of an instance works from.
//!
//! A file is checked as a whole: [`parse`] reports all errors, each with its place. The stages are:
//! text → [`tree`] (nodes with places) → [`file`] (typed options) → [`resolve`] (checks across
//! options, names looked up) → [`snapshot`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod access_log;
mod accounts;
mod address;
mod audit_log;
mod balance;
mod client_sources;
mod client_user;
mod cluster;
mod commands;
mod diagnostic;
mod difference;
mod external_auth;
mod file;
mod foreign;
mod groups;
mod hedge;
mod hot_keys;
mod loops;
mod memory;
mod migration;
mod policy;
mod pose;
mod prefixes;
mod reads_by_class;
mod redis_version;
mod refuge;
mod replica_reads;
mod resolve;
mod routes;
pub mod schema;
mod secret;
mod section;
mod sentinel;
mod server_auth;
mod server_maintenance;
mod servers_from;
mod share;
mod slip;
pub mod snapshot;
mod spool;
mod tcp;
mod tls;
mod tracing;
mod tree;
mod users;
mod value;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

pub use accounts::Account;
pub use address::{NAME_SIZE_MAX, UNIX_PATH_SIZE_MAX};
pub use diagnostic::{Diagnostic, Errors};
pub use difference::Difference;
pub use memory::available as available_memory;
pub use migration::MoveState;
pub use policy::{pools_without_policy, warnings_of_change};
pub use prefixes::PREFIXES_MAX;
pub use resolve::{Context, MODULA_WEIGHT_MAX, POOLS_MAX};
pub use secret::SecretFile;
pub use servers_from::{parse_server, server_at};
pub use snapshot::Snapshot;
pub use value::WORKERS_MAX;

/// Largest configuration file, in bytes.
pub const FILE_SIZE_MAX: u64 = 16 << 20;

/// A configuration that can take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Of epoch 1; it is numbered when it takes effect.
    pub snapshot: Snapshot,
    /// Options that are valid but probably not intended.
    pub warnings: Vec<Diagnostic>,
    /// What is worth knowing, though it may well be intended: for who asks about the file.
    pub notes: Vec<Diagnostic>,
}

/// Reads, validates and resolves a configuration file. Looks up names in `listen`, which may take
/// as long as the system's resolver does.
pub fn load(path: &Path) -> Result<Loaded, Errors> {
    let name = path.display().to_string();
    let of_file = |message| Errors(vec![Diagnostic::of_file(&name, message)]);
    let bytes = read_file(path).map_err(|error| of_file(format!("cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        of_file(format!("is not UTF-8 text from byte {}", error.utf8_error().valid_up_to()))
    })?;
    parse(&name, &text, &Context::of_system())
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_file(path)?.take(FILE_SIZE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_SIZE_MAX {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Never waits: opening a FIFO, or reading a device, might never end.
fn open_file(path: &Path) -> io::Result<File> {
    // Checked before it is opened, since opening has side effects on some devices.
    check_file(&fs::metadata(path)?)?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // It may be another file by now.
    check_file(&file.metadata()?)?;
    Ok(file)
}

fn check_file(metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    let what = match () {
        () if kind.is_file() && metadata.len() > FILE_SIZE_MAX => return Err(too_large()),
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO or a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::other(format!("it is {what}, not a regular file")))
}

fn too_large() -> io::Error {
    io::Error::other(format!("it is larger than {FILE_SIZE_MAX} bytes"))
}

/// Validates and resolves the text of a configuration file; `file` names it in diagnostics.
pub fn parse(file: &str, text: &str, context: &Context<'_>) -> Result<Loaded, Errors> {
    let mut report = diagnostic::Report::new(file, text);
    let snapshot = tree::parse(text, &mut report)
        .and_then(|root| file::read(&root, &mut report))
        .and_then(|file| {
            if !report.has_errors() {
                tree::check_strictly(text, &mut report);
            }
            resolve::resolve(file, context, &mut report)
        });
    let diagnostic::Remarks { warnings, notes } = report.finish()?;
    let snapshot = snapshot.expect("no snapshot is made only after an error was reported");
    Ok(Loaded { snapshot, warnings, notes })
}

/// The form in which processes exchange snapshots.
pub fn to_json(snapshot: &Snapshot) -> Vec<u8> {
    serde_json::to_vec(snapshot).expect("a snapshot has string keys and no failing serializer")
}

/// Reads what [`to_json`] wrote.
pub fn from_json(bytes: &[u8]) -> Result<Snapshot, serde_json::Error> {
    serde_json::from_slice(bytes)
}
