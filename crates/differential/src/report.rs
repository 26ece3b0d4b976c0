//! Findings, for people and for replay.

use std::io;
use std::path::{Path, PathBuf};

use crate::case::{Case, excerpt};
use crate::rig::{Found, Misfit};
use crate::servers::Program;
use crate::setup::Setup;

/// A mismatch with the smallest input that shows it.
#[derive(Clone, Debug)]
pub struct Finding {
    pub setup: Setup,
    pub program: Program,
    pub seed: u64,
    pub cases: Vec<Case>,
    pub found: Found,
    /// The transcript of the last case.
    pub transcript: String,
    /// It was seen twice.
    pub is_confirmed: bool,
}

impl Finding {
    pub fn misfit(&self) -> Misfit {
        self.found.misfit
    }

    /// Findings of one name likely have the same cause.
    pub fn name(&self) -> String {
        let last = self.cases.last().and_then(|case| case.requests.last());
        let request = last.map(|request| request.name()).unwrap_or_default();
        format!("{}: {request}", self.misfit().family())
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{}\n\nprotocol: {:?}, pool {}\nserver: {}\nseed: {}\nseen again: {}\n\n",
            self.misfit().meaning(),
            self.setup.protocol,
            self.setup.name,
            self.program.version,
            self.seed,
            if self.is_confirmed {
                "yes"
            } else {
                "no, it depends on time or on more that came before"
            },
        );
        for case in &self.cases {
            text.push_str(&format!("# the client sends {}\n", excerpt(&case.bytes())));
        }
        text.push_str(&format!(
            "\nWhat the gateway sends (<-) and the server says (->), without fences:\n{}\n\n{}\n\n",
            self.transcript, self.found.detail
        ));
        text.push_str(&format!(
            "To play it again: differential replay THIS-FILE\nsetup {}\n",
            self.setup.name
        ));
        for case in &self.cases {
            text.push_str(&case.written());
        }
        text
    }

    /// Writes it to its own file in the directory.
    pub fn write(&self, directory: &Path) -> io::Result<PathBuf> {
        std::fs::create_dir_all(directory)?;
        let kept =
            |character: char| if character.is_ascii_alphanumeric() { character } else { '-' };
        let stem = format!("{}-{}-{}", self.setup.name, self.program.version, self.name());
        let stem: String = stem.chars().map(kept).take(80).collect();
        let path = directory.join(format!("{stem}.txt"));
        std::fs::write(&path, self.text())?;
        Ok(path)
    }
}
