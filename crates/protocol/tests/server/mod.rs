//! A redis-server for one test, and connections to it. The tests of `cashew-acl` use it, too.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use cashew_protocol::resp::{ReplyScanner, Scan, encode};

const TIMEOUT: Duration = Duration::from_secs(10);

/// It ends with the test. It listens on a Unix socket: a free port may be taken before the server starts.
pub(crate) struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_program("redis-server")
    }

    pub(crate) fn start_program(program: &str) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let socket = env::temp_dir().join(format!("cashew-test-{}-{number}.sock", process::id()));
        let process = Command::new(program)
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(["--enable-debug-command", "yes", "--unixsocket"])
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("this test needs {program} in PATH (package redis-server): {error}")
            });
        let server = Self { process, socket };
        let start = Instant::now();
        while UnixStream::connect(&server.socket).is_err() {
            assert!(start.elapsed() < TIMEOUT, "redis-server does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        server
    }

    pub(crate) fn connect(&self) -> Connection {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Connection { stream }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

pub(crate) struct Connection {
    pub(crate) stream: UnixStream,
}

impl Connection {
    /// The encoded reply to a command.
    pub(crate) fn call<T: AsRef<[u8]>>(&self, words: &[T]) -> Vec<u8> {
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let mut request = Vec::new();
        encode::write_command(&mut request, &words);
        (&self.stream).write_all(&request).unwrap();
        let mut scanner = ReplyScanner::default();
        let (mut received, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            let len = (&self.stream).read(&mut chunk).unwrap();
            assert!(len > 0, "redis-server closed the connection");
            received.extend_from_slice(&chunk[..len]);
            match scanner.scan(&chunk[..len]) {
                Scan::Partial => {}
                Scan::Complete(end) => {
                    assert_eq!(end, len);
                    return received;
                }
                Scan::Invalid => panic!("{}", received.escape_ascii()),
            }
        }
    }
}
