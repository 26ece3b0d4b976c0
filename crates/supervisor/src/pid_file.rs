//! The file with the master's process id.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tracing::warn;

/// Dropping it removes the file, unless another process has written its own id there.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    content: String,
}

impl PidFile {
    /// Writes in place: the operator may have created the file in a directory where the master
    /// cannot.
    pub(crate) fn write(path: &Path) -> io::Result<Self> {
        let file = Self::resume(path);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        open(&options, path)?.write_all(file.content.as_bytes())?;
        Ok(file)
    }

    /// The file written by the previous program in this process.
    pub(crate) fn resume(path: &Path) -> Self {
        let content = format!("{}\n", std::process::id());
        // Absolute, since the working directory may change.
        Self { path: std::path::absolute(path).unwrap_or_else(|_| path.into()), content }
    }

    /// Whether the file is empty, since there was no room to write it.
    pub(crate) fn is_unwritten(&self) -> bool {
        let is_written = |metadata: Metadata| metadata.is_file() && metadata.len() > 0;
        !fs::metadata(&self.path).is_ok_and(is_written)
    }

    /// Reads no more than could be ours.
    fn read(&self) -> io::Result<String> {
        let mut content = String::new();
        let file = open(OpenOptions::new().read(true), &self.path)?;
        file.take(self.content.len() as u64 + 1).read_to_string(&mut content)?;
        Ok(content)
    }
}

/// Does not block, as opening a FIFO would.
fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    options.clone().custom_flags(flags).open(path)
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let ours = self.read().is_ok_and(|content| content == self.content);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            warn!("cannot remove pid file {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_removed_unless_it_is_another_process_s() {
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

        let file = PidFile::resume(&path);
        assert!(file.is_unwritten());
        fs::write(&path, "").unwrap();
        assert!(file.is_unwritten());
        fs::write(&path, "1\n").unwrap();
        assert!(!file.is_unwritten());
        fs::remove_file(&path).unwrap();
    }
}
