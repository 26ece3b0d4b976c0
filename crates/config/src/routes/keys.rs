//! Files with keys, and where routes send them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Most keys that the routes of a file list.
pub(super) const KEYS_MAX: usize = 1_000_000;

/// Largest file with keys.
const KEYS_FILE_SIZE_MAX: u64 = 128 << 20;

/// A line of a file with keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'t> {
    pub(crate) number: usize,
    pub(crate) key: &'t str,
    pub(crate) target: &'t str,
}

/// The lines that list keys; those that cannot be read by their numbers. A key may have spaces in it.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = Result<Line<'_>, usize>> {
    (1..).zip(text.lines()).filter_map(|(number, line)| {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        Some(match line.rsplit_once([' ', '\t']) {
            Some((key, target)) => Ok(Line { number, key: key.trim_end(), target }),
            None => Err(number),
        })
    })
}

/// Reads a file with keys. Reading something other than a regular file might never end.
pub(crate) fn read_file(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(KEYS_FILE_SIZE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > KEYS_FILE_SIZE_MAX {
        return Err(io::Error::other(format!("it is larger than {KEYS_FILE_SIZE_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        io::Error::other(format!("line {line} is not UTF-8 text"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_key_and_where_it_goes() {
        let text = "# hot ones\n\nbanner hot\n  two words\t \thot  \r\nalone\n#x hot\n";
        let line = |number, key| Ok(Line { number, key, target: "hot" });
        let found: Vec<_> = lines(text).collect();
        assert_eq!(found, [line(3, "banner"), line(4, "two words"), Err(5)]);
    }
}
