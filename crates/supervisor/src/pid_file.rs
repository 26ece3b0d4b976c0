//! The file with the master's process id.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::warn;

/// Dropping it removes the file, unless another process has written its own id there.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    content: String,
}

impl PidFile {
    /// Written in place, as the operator may have made the file in a directory where the master
    /// may not.
    pub(crate) fn write(path: &Path) -> io::Result<Self> {
        let file = Self::resume(path);
        fs::write(path, &file.content)?;
        Ok(file)
    }

    /// That this process wrote when it ran another program.
    pub(crate) fn resume(path: &Path) -> Self {
        let content = format!("{}\n", std::process::id());
        // Absolute, should the working directory change.
        Self { path: std::path::absolute(path).unwrap_or_else(|_| path.into()), content }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let ours = fs::read_to_string(&self.path).is_ok_and(|content| content == self.content);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            warn!("cannot remove pid file {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_removed_unless_it_is_somebody_elses() {
        let path = std::env::temp_dir().join(format!("cashew-pid-{}", std::process::id()));
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());

        let file = PidFile::write(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        fs::remove_file(&path).unwrap();
    }
}
