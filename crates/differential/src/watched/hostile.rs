//! Hostile clients: they send anything except valid commands that affect others.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::generate::{Protocol, limits, request};
use crate::random::Random;

/// How much of a pool's input is kept.
const KEPT: usize = 400;

/// Words of valid requests that change what watched clients may expect: they empty the server, stop
/// it, pause the pool, close others' connections with an administrator's rights, or block the
/// server for seconds.
const LEFT_OUT: &[&str] = &[
    "flushall",
    "flushdb",
    "flush_all",
    "swapdb",
    "shutdown",
    "pause",
    "kill",
    "debug",
    "maxmemory",
    "reset",
];

/// The input of one pool, oldest first.
#[derive(Default)]
pub(super) struct Transcript(Mutex<VecDeque<Vec<u8>>>);

impl Transcript {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().expect("nobody panics with it");
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(bytes.to_vec());
    }

    pub(super) fn all(&self) -> Vec<Vec<u8>> {
        self.0.lock().expect("nobody panics with it").iter().cloned().collect()
    }
}

/// A request of a hostile client.
fn sendable(protocol: Protocol, is_routed: bool, random: &mut Random) -> Vec<u8> {
    loop {
        let bytes = match random.percent(4) {
            true => {
                let len = 1 + random.below(60);
                random.bytes(len)
            }
            // Routes make keys longer, or empty.
            false if is_routed && random.percent(40) => limits::request(protocol, random).bytes(),
            false => request(protocol, random).bytes(),
        };
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let is_flush = protocol == Protocol::Binary
            && bytes.windows(2).any(|two| matches!(two, [0x80, 8 | 0x18]));
        if !is_flush && !LEFT_OUT.iter().any(|word| text.contains(word)) {
            return bytes;
        }
    }
}

/// Sends as long as `runs`.
pub(super) fn run(
    protocol: Protocol,
    is_routed: bool,
    address: &Path,
    mut random: Random,
    transcript: &Transcript,
    runs: &AtomicBool,
    sent: &AtomicU64,
) {
    let mut stream = None;
    while runs.load(Ordering::Relaxed) {
        if stream.is_none() {
            stream = UnixStream::connect(address).ok();
            let Some(stream) = &stream else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            let timeouts = [
                stream.set_read_timeout(Some(Duration::from_millis(1))),
                stream.set_write_timeout(Some(Duration::from_millis(200))),
            ];
            if timeouts.iter().any(Result::is_err) {
                continue;
            }
        }
        let Some(open) = &mut stream else { continue };
        let mut bytes = Vec::new();
        for _ in 0..=random.below(3) {
            bytes.extend(sendable(protocol, is_routed, &mut random));
        }
        let is_half = random.percent(8);
        if is_half {
            bytes.truncate(random.below(bytes.len() + 1));
        }
        transcript.add(&bytes);
        sent.fetch_add(1, Ordering::Relaxed);
        let cut = if random.percent(20) { random.below(bytes.len() + 1) } else { bytes.len() };
        let mut is_gone = open.write_all(&bytes[..cut]).is_err();
        if cut < bytes.len() && !is_gone {
            std::thread::sleep(Duration::from_millis(1));
            is_gone = open.write_all(&bytes[cut..]).is_err();
        }
        if !is_gone && random.percent(85) {
            is_gone = drained(open, &mut random);
        }
        if is_gone || is_half || random.percent(10) {
            stream = None;
        }
    }
}

/// Reads input for a moment; returns whether the connection is closed.
fn drained(stream: &mut UnixStream, random: &mut Random) -> bool {
    let until = Instant::now() + Duration::from_millis(2);
    let mut piece = vec![0; random.pick(&[1, 100, 65_536])];
    while Instant::now() < until {
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
    false
}
