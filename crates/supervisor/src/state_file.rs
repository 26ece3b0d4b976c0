//! Small files that the master keeps what it knows in, for its next start.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest file that is read.
const SIZE_MAX: u64 = 16 << 20;

/// Writes all of it or nothing.
pub(crate) fn save(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(content).map_err(io::Error::other)?;
    text.push(b'\n');
    let beside = beside(path);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let mut file = options.open(&beside)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let read = || -> io::Result<Vec<u8>> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut text = Vec::new();
        File::open(path)?.take(SIZE_MAX).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}
