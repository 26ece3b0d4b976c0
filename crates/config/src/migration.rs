//! How far the move from one pool to another is, which outlives the instance.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What is kept of a move in its directory. Only the master writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveState {
    pub from: String,
    pub to: String,
    /// It was begun, so that what `to` has is a copy.
    pub is_started: bool,
    /// Nothing is copied for now.
    pub is_paused: bool,
    /// Clients are served by `to`.
    pub is_cut_over: bool,
}

impl MoveState {
    /// Of a move that was not begun.
    pub fn new(from: &str, to: &str) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            is_started: false,
            is_paused: false,
            is_cut_over: false,
        }
    }

    /// Where it is kept in a move's directory.
    pub fn file(directory: &Path) -> PathBuf {
        directory.join("state.json")
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// That of a directory; `None` if nothing was begun there.
    pub fn load(directory: &Path) -> Result<Option<Self>, String> {
        match fs::read_to_string(Self::file(directory)) {
            Ok(text) => Self::parse(&text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Puts it on disk, whole or not at all, and makes the directory if it is missing.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let (path, next) = (Self::file(directory), directory.join("state.json.next"));
        let mut file = File::create(&next)?;
        file.write_all(&serde_json::to_vec_pretty(self).map_err(io::Error::other)?)?;
        file.sync_all()?;
        fs::rename(&next, &path)?;
        File::open(directory)?.sync_all()
    }
}
