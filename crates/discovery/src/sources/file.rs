//! A file with servers, which is watched.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cashew_config::snapshot::Server;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use super::{Source, record};

/// Largest file.
const SIZE_MAX: u64 = 16 << 20;
/// A file is read when nothing has happened for so long, as writers take more than one step.
const SETTLE: Duration = Duration::from_millis(50);
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// How often it is looked at if nothing is notified: of some file systems, and of what links lead to.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long nothing may happen before that is told.
const WAIT_MAX: Duration = Duration::from_secs(10);

pub(super) struct FileSource {
    path: PathBuf,
    seen: Option<Stamp>,
    servers: Vec<Server>,
    /// `None` where there is none.
    notified: Option<OwnedFd>,
}

/// Tells a file from one with another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileSource {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, seen: None, servers: Vec::new(), notified: None }
    }

    /// Waits for an event in the file's directory. False if there was none.
    fn notified(&self, limit: Duration) -> bool {
        let Some(notified) = &self.notified else {
            std::thread::sleep(limit);
            return false;
        };
        let Ok(limit) = Timespec::try_from(limit) else { return false };
        let mut fds = [PollFd::new(notified, PollFlags::IN)];
        let has_events = poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0);
        if has_events {
            let mut room = [MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(notified, &mut room);
            while reader.next().is_ok() {}
        }
        has_events
    }

    /// Nothing has happened for a while, or too much.
    fn settle(&self) {
        let until = Instant::now() + SETTLE_MAX;
        while self.notified(SETTLE) && Instant::now() < until {}
    }
}

impl Source for FileSource {
    fn list(&mut self) -> Result<Vec<Server>, String> {
        // First, so that no change is missed.
        self.notified = self.path.parent().and_then(|directory| watch(directory).ok());
        let (text, stamp) = read(&self.path).map_err(|error| format!("cannot be read: {error}"))?;
        let text = String::from_utf8(text).map_err(|_| "is not UTF-8 text".to_owned())?;
        let servers = record::list(&text)?;
        (self.seen, self.servers) = (Some(stamp), servers.clone());
        Ok(servers)
    }

    fn wait(&mut self) -> Result<Option<Vec<Server>>, String> {
        let until = Instant::now() + WAIT_MAX;
        while Instant::now() < until {
            if self.notified(LOOK_INTERVAL) {
                self.settle();
            }
            let seen = fs::metadata(&self.path).ok().map(|metadata| Stamp::of(&metadata));
            if seen != self.seen {
                self.settle();
                return Ok(None);
            }
        }
        Ok(Some(self.servers.clone()))
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

fn watch(directory: &Path) -> rustix::io::Result<OwnedFd> {
    let notified = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let what = WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MODIFY
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE;
    inotify::add_watch(&notified, directory, what)?;
    Ok(notified)
}

fn read(path: &Path) -> io::Result<(Vec<u8>, Stamp)> {
    // Who opens what is no regular file may wait for ever.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let file = File::open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    let mut text = Vec::new();
    file.take(SIZE_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > SIZE_MAX {
        return Err(io::Error::other(format!("it is larger than {SIZE_MAX} bytes")));
    }
    Ok((text, stamp))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::thread;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let name = format!("cashew-file-source-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn names(servers: Vec<Server>) -> Vec<String> {
        servers.into_iter().map(|server| server.name).collect()
    }

    /// What it says after a change that another thread makes.
    fn after(source: &mut FileSource, change: impl FnOnce() + Send + 'static) -> Vec<String> {
        let changing = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            change();
        });
        let found = loop {
            match source.wait().unwrap() {
                Some(same) => drop(same),
                None => break source.list().unwrap(),
            }
        };
        changing.join().unwrap();
        names(found)
    }

    #[test]
    fn a_file_is_followed_however_it_is_written() {
        let directory = directory("written");
        let path = directory.join("servers");
        let mut source = FileSource::new(path.clone());
        assert!(source.list().unwrap_err().starts_with("cannot be read: No such file"));
        fs::write(&path, "h:1:1 s1\n").unwrap();
        assert_eq!(names(source.list().unwrap()), ["s1"]);
        // In place, half first.
        let to = path.clone();
        let found = after(&mut source, move || {
            fs::write(&to, "h:1:1 s1\nh:2:1 s").unwrap();
            thread::sleep(Duration::from_millis(20));
            fs::write(&to, "h:1:1 s1\nh:2:1 s2\n").unwrap();
        });
        assert_eq!(found, ["s1", "s2"]);
        // By a rename, as editors do.
        let (to, beside) = (path, directory.join("servers.new"));
        let found = after(&mut source, move || {
            fs::write(&beside, "h:3:1 s3\n").unwrap();
            fs::rename(&beside, &to).unwrap();
        });
        assert_eq!(found, ["s3"]);
        fs::remove_dir_all(&directory).unwrap();
    }

    /// As Kubernetes keeps a ConfigMap.
    #[test]
    fn a_link_is_followed_to_another_directory() {
        let directory = directory("linked");
        for (number, text) in [("1", "h:1:1 s1\n"), ("2", "h:2:1 s2\n")] {
            fs::create_dir(directory.join(number)).unwrap();
            fs::write(directory.join(number).join("servers"), text).unwrap();
        }
        symlink("1", directory.join("data")).unwrap();
        symlink("data/servers", directory.join("servers")).unwrap();
        let mut source = FileSource::new(directory.join("servers"));
        assert_eq!(names(source.list().unwrap()), ["s1"]);
        let within = directory.clone();
        let found = after(&mut source, move || {
            symlink("2", within.join("data.new")).unwrap();
            fs::rename(within.join("data.new"), within.join("data")).unwrap();
        });
        assert_eq!(found, ["s2"]);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_is_no_list_of_servers_is_none() {
        let mut source = FileSource::new("/dev/zero".into());
        assert_eq!(source.list().unwrap_err(), "cannot be read: it is no regular file");
        let directory = directory("bad");
        let path = directory.join("servers");
        for (bytes, why) in [(&b"h:1\n"[..], "line 1"), (b"\xff", "is not UTF-8"), (b"[", "EOF")] {
            fs::write(&path, bytes).unwrap();
            let told = FileSource::new(path.clone()).list().unwrap_err();
            assert!(told.contains(why), "{told}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
