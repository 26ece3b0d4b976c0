//! A file of logins: lines of a name, the SHA-256 of a password, a user, and perhaps until when.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use cashew_metrics::EventKind;
use chrono::{DateTime, Utc};
use tracing::warn;

use crate::{Verdict, lock};

/// Largest file.
const SIZE_MAX: u64 = 16 << 20;
/// Files that are kept as they were read. There is one for each pool at most.
const FILES_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Files(Mutex<HashMap<PathBuf, Known>>);

struct Known {
    stamp: Stamp,
    logins: Arc<Logins>,
}

/// By what it is seen that a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

/// By name. A name may have several passwords, while one is changed.
#[derive(Debug, Default)]
struct Logins(HashMap<String, Vec<Login>>);

#[derive(Debug, PartialEq, Eq)]
struct Login {
    hash: [u8; 32],
    user: String,
    until: Option<DateTime<Utc>>,
}

impl Files {
    pub(crate) fn verdict(
        &self,
        path: &Path,
        (pool, name): (&str, &str),
        password: &[u8],
    ) -> Result<Verdict, String> {
        let logins = self.logins(path, pool)?;
        Ok(logins.verdict(name, password, Utc::now()))
    }

    /// As the file is now.
    fn logins(&self, path: &Path, pool: &str) -> Result<Arc<Logins>, String> {
        let fail = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
        let metadata = fs::metadata(path).map_err(fail)?;
        if !metadata.is_file() {
            return Err(format!("{} is not a regular file", path.display()));
        }
        let stamp = Stamp::of(&metadata);
        // Who comes meanwhile waits, rather than reads it as well.
        let mut files = lock(&self.0);
        if let Some(read) = files.get(path).filter(|read| read.stamp == stamp) {
            return Ok(Arc::clone(&read.logins));
        }
        let mut bytes = Vec::new();
        let mut file = File::open(path).map_err(fail)?;
        let stamp = Stamp::of(&file.metadata().map_err(fail)?);
        (&mut file).take(SIZE_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > SIZE_MAX {
            return Err(format!("{} is larger than {SIZE_MAX} bytes", path.display()));
        }
        let (logins, bad) = Logins::parse(&bytes);
        if let Some((line, why)) = bad.first() {
            // What is in the line may be a password.
            warn!(
                kind = EventKind::AuthoriserOdd.name(),
                pool,
                "pool {pool}: {}:{line}: {why}; {} lines of this file are left out",
                path.display(),
                bad.len()
            );
        }
        let logins = Arc::new(logins);
        if files.len() >= FILES_MAX {
            files.clear();
        }
        files.insert(path.to_owned(), Known { stamp, logins: Arc::clone(&logins) });
        Ok(logins)
    }
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            size: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Logins {
    /// And the lines, by number, that are none.
    fn parse(bytes: &[u8]) -> (Self, Vec<(usize, &'static str)>) {
        let (mut logins, mut bad) = (Self::default(), Vec::new());
        // Some editors mark UTF-8 so.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        for (line, number) in bytes.split(|&byte| byte == b'\n').zip(1..) {
            match std::str::from_utf8(line).map_err(|_| "this is no UTF-8").map(str::trim) {
                Ok(line) if line.is_empty() || line.starts_with('#') => {}
                line => match line.and_then(Login::parse) {
                    Ok((name, login)) => logins.0.entry(name).or_default().push(login),
                    Err(why) => bad.push((number, why)),
                },
            }
        }
        (logins, bad)
    }

    fn verdict(&self, name: &str, password: &[u8], now: DateTime<Utc>) -> Verdict {
        let given = digest(&SHA256, password);
        let found = self.0.get(name).into_iter().flatten().find(|login| {
            verify_slices_are_equal(&login.hash, given.as_ref()).is_ok()
                && login.until.is_none_or(|until| until > now)
        });
        let Some(Login { user, until, .. }) = found else { return Verdict::Refused };
        let left = until.map(|until| (until - now).to_std().unwrap_or(Duration::ZERO));
        Verdict::User { user: user.clone(), expires_in: left }
    }
}

impl Login {
    fn parse(line: &str) -> Result<(String, Self), &'static str> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, hash, user, until) = match words[..] {
            [name, hash, user] => (name, hash, user, None),
            [name, hash, user, until] => (name, hash, user, Some(until)),
            _ => return Err("expected `NAME SHA256 USER [EXPIRES]`"),
        };
        let hash = hex(hash).ok_or("the second word is not the SHA-256 of a password in hex")?;
        let until = match until {
            None => None,
            Some(text) => match DateTime::parse_from_rfc3339(text) {
                Ok(until) => Some(until.to_utc()),
                Err(_) => return Err("the fourth word is no time like 2027-01-31T12:00:00Z"),
            },
        };
        Ok((name.to_owned(), Self { hash, user: user.to_owned(), until }))
    }
}

fn hex(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    (digits.len() == 64).then(|| bytes.try_into().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: &str = "98c1eb4ee93476743763878fcb96a25fbc9a175074d64004779ecb5242f645e6";

    fn time(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    #[test]
    fn lines_are_names_with_hashes_users_and_times() {
        let text = format!(
            "# who\n\nann {WORD} app\nann {} admin\nbob  {WORD}\tapp 2027-01-31T12:00:00+02:00\n",
            WORD.to_uppercase().replace("98C1", "0000")
        );
        let (logins, bad) = Logins::parse(text.as_bytes());
        assert_eq!(bad, []);
        let now = time("2027-01-31T09:59:00Z");
        let app = |left: Option<u64>| Verdict::User {
            user: "app".to_owned(),
            expires_in: left.map(Duration::from_secs),
        };
        assert_eq!(logins.verdict("ann", b"word", now), app(None));
        assert_eq!(logins.verdict("bob", b"word", now), app(Some(60)));
        assert_eq!(logins.verdict("bob", b"word", time("2027-01-31T10:00:00Z")), Verdict::Refused);
        for (name, password) in [("ann", "wore"), ("cat", "word"), ("#", "who")] {
            assert_eq!(logins.verdict(name, password.as_bytes(), now), Verdict::Refused, "{name}");
        }
    }

    #[test]
    fn a_file_may_begin_with_the_mark_of_utf_8() {
        let (logins, bad) = Logins::parse(format!("\u{feff}ann {WORD} app\n").as_bytes());
        assert_eq!(bad, []);
        let now = time("2027-01-31T09:59:00Z");
        assert_ne!(logins.verdict("ann", b"word", now), Verdict::Refused);
    }

    #[test]
    fn bad_lines_keep_nobody_else_out() {
        let text = format!(
            "ann\ncat {WORD} app\nbob {WORD} app tomorrow\ndan {} app\n\u{e9} é{} app\n",
            &WORD[1..],
            &WORD[2..]
        );
        let mut text = text.into_bytes();
        text.extend_from_slice(b"\xff\n");
        let (logins, bad) = Logins::parse(&text);
        assert_eq!(bad.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 3, 4, 5, 6]);
        assert_eq!(logins.0.keys().collect::<Vec<_>>(), ["cat"]);
    }
}
