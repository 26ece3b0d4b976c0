//! Real servers, each started for one run: temporary, on a Unix socket, without a disk.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The protocols of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Memcached,
}

/// A program to start.
#[derive(Clone, Debug)]
pub struct Program {
    pub kind: Kind,
    pub path: PathBuf,
    /// As it reports itself.
    pub version: String,
}

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(20);

impl Program {
    /// The program, whose version is queried.
    pub fn new(kind: Kind, path: &Path) -> Result<Self, String> {
        let said = Command::new(path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let words: Vec<&str> = said.split_whitespace().collect();
        let version = match kind {
            Kind::Redis => words.iter().find_map(|word| word.strip_prefix("v=")),
            Kind::Memcached => words.get(1).copied(),
        };
        let name = words.first().copied().unwrap_or("server").to_lowercase();
        let version = version.ok_or_else(|| format!("{}: no version", path.display()))?;
        Ok(Self { kind, path: path.to_owned(), version: format!("{name} {version}") })
    }

    /// Those of the path, and those of the environment: `CASHEW_REDIS_SERVERS` and
    /// `CASHEW_MEMCACHED_SERVERS`, paths separated by colons.
    pub fn all() -> Result<Vec<Self>, String> {
        let named = |variable: &str| -> Vec<PathBuf> {
            let paths = std::env::var_os(variable).unwrap_or_default();
            std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect()
        };
        let mut programs = Vec::new();
        for (kind, name, variable) in [
            (Kind::Redis, "redis-server", "CASHEW_REDIS_SERVERS"),
            (Kind::Memcached, "memcached", "CASHEW_MEMCACHED_SERVERS"),
        ] {
            for path in std::iter::once(PathBuf::from(name)).chain(named(variable)) {
                programs.push(Self::new(kind, &path)?);
            }
        }
        Ok(programs)
    }
}

/// A directory that is removed at the end.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("cashew-differential.{}.{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Files left in the system's temporary directory are harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that runs until this is dropped.
pub struct Server {
    pub program: Program,
    pub socket: PathBuf,
    directory: Option<Directory>,
    /// `None`: somebody else's.
    child: Option<Child>,
    /// How often it was started.
    pub starts: u32,
}

impl Server {
    pub fn start(program: &Program) -> io::Result<Self> {
        let directory = Directory::new()?;
        let socket = directory.0.join("socket");
        let child = Some(spawn(program, &directory.0, &socket)?);
        let directory = Some(directory);
        let mut server = Self { program: program.clone(), socket, directory, child, starts: 1 };
        server.wait()?;
        Ok(server)
    }

    /// A listener at that socket, taken for this program.
    pub fn at(program: Program, socket: PathBuf) -> Self {
        Self { program, socket, directory: None, child: None, starts: 0 }
    }

    /// Ends it and starts it with an empty state.
    pub fn restart(&mut self) -> io::Result<()> {
        if let Some(directory) = &self.directory {
            end(&mut self.child);
            let _ = std::fs::remove_file(&self.socket);
            self.child = Some(spawn(&self.program, &directory.0, &self.socket)?);
            self.starts += 1;
        }
        self.wait()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(&self.socket)
    }

    fn wait(&mut self) -> io::Result<()> {
        let started = Instant::now();
        while let Err(error) = self.connect() {
            if !self.is_running() || started.elapsed() > START_MAX {
                let name = self.program.path.display();
                return Err(io::Error::new(error.kind(), format!("{name} did not start: {error}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Deletes all data and adds a few values of each kind.
    pub fn reset(&self) -> io::Result<()> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let (text, last): (Vec<u8>, &[u8]) = match self.program.kind {
            Kind::Redis => (seed_redis(), b"+seeded\r\n"),
            Kind::Memcached => (b"flush_all\r\nmn\r\n".to_vec(), b"MN\r\n"),
        };
        stream.write_all(&text)?;
        let mut said = Vec::new();
        let mut piece = [0; 4096];
        while !said.ends_with(last) {
            match stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => said.extend_from_slice(&piece[..len]),
            }
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Option<Child>) {
    if let Some(child) = child {
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Values of all kinds under the names that [`crate::generate::redis`] uses.
const SEED: &str = "FLUSHALL
SET s1 hello
SET s2 12
SET s3 3.5
RPUSH l1 a b c d
RPUSH l2 1 2 3
HSET h1 f1 v1 f2 2 f3 3.5
HSET h2 f1 v1
SADD t1 a b c
SADD t2 b c d
ZADD z1 1 a 2 b 3.5 c
ZADD z2 1 b 2 c
XADD x1 1-1 f v
XADD x1 2-1 f v g w
XGROUP CREATE x1 g 0
PFADD p1 a b c
GEOADD g1 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
SETBIT b1 7 1";

fn seed_redis() -> Vec<u8> {
    let mut text: String = SEED.lines().map(|line| format!("{line}\r\n")).collect();
    text.push_str(
        "SCRIPT FLUSH\r\nFUNCTION FLUSH\r\nEVAL \"return redis.status_reply('seeded')\" 0\r\n",
    );
    text.into_bytes()
}

fn spawn(program: &Program, directory: &Path, socket: &Path) -> io::Result<Child> {
    let mut command = Command::new(&program.path);
    match program.kind {
        Kind::Redis => {
            command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
            command.args(["--enable-debug-command", "yes", "--databases", "16"]);
            command.args(["--maxmemory", "256mb", "--maxmemory-policy", "allkeys-random"]);
            command.args(["--proto-max-bulk-len", "4mb", "--busy-reply-threshold", "200"]);
            command.arg("--unixsocket").arg(socket).arg("--dir").arg(directory);
        }
        Kind::Memcached => {
            command.args(["-m", "256", "-t", "1", "-c", "512", "-u", "root"]);
            command.arg("-s").arg(socket);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
