//! `cashew health`: whether clients are served, for whoever starts, restarts or replaces the gateway.
//!
//! It asks as a client does, by a connection of its own, so that it sees what clients would: a port that nobody listens
//! at, and workers that do not get round to it. What servers do has no part in it.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{ClientSources, Listen, Pool, Protocol};

use crate::arguments::HealthArguments;
use crate::output::print_line;
use crate::stats_port::reachable;

/// Answers missing in a row before a gateway that served is said not to.
const FALL: u32 = 2;
/// Answers in a row before one that did not is said to serve.
const RISE: u32 = 3;

/// What a load balancer says before connections of its own.
const OWN_HEADER: &[u8] = b"PROXY UNKNOWN\r\n";

pub(crate) fn health(arguments: &HealthArguments) -> ExitCode {
    if let Some(file) = &arguments.track {
        return track(arguments, file);
    }
    match ask_by_file(arguments) {
        Ok(at) => {
            print_line(format_args!("cashew: {at} serves"));
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_line(format_args!("cashew: {why}"));
            ExitCode::FAILURE
        }
    }
}

/// Asks whom the file names, and says who answered, or why nobody did.
fn ask_by_file(arguments: &HealthArguments) -> Result<String, String> {
    let target = Target::find(arguments)?;
    target.ask(arguments.timeout()).map(|()| target.to_string())
}

/// Goes on asking, and keeps in `file` what is the case.
fn track(arguments: &HealthArguments, file: &Path) -> ExitCode {
    let mut verdict = Verdict::default();
    let mut target = None;
    let mut reported = String::new();
    let mut has_written = false;
    loop {
        let asked = Instant::now();
        // Whoever does not answer may have moved by a reload.
        let found = target.take().map_or_else(|| Target::find(arguments), Ok);
        let outcome = found.and_then(|found| found.ask(arguments.timeout()).map(|()| found));
        verdict.count(outcome.is_ok());
        let line = if verdict.serves == Some(true) { "0\n" } else { "1\n" };
        // Others may have written it: keepalived does where it begins.
        if fs::read(file).is_ok_and(|has| has == line.as_bytes()) {
            has_written = true;
        } else if let Err(error) = fs::write(file, line) {
            report(&mut reported, format!("{} cannot be written: {error}", file.display()));
            if !has_written {
                return ExitCode::FAILURE;
            }
        } else {
            has_written = true;
            report(&mut reported, describe(&outcome));
        }
        target = outcome.ok();
        thread::sleep(arguments.interval().saturating_sub(asked.elapsed()));
    }
}

fn describe(outcome: &Result<Target, String>) -> String {
    match outcome {
        Ok(target) => format!("{target} serves"),
        Err(why) => why.clone(),
    }
}

/// Says what has not been said just before.
fn report(reported: &mut String, line: String) {
    if *reported != line {
        print_line(format_args!("cashew: {line}"));
        *reported = line;
    }
}

/// What is held to be the case, after some answers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    serves: Option<bool>,
    /// Outcomes in a row that say otherwise.
    against: u32,
}

impl Verdict {
    /// Takes another outcome in. The first one counts at once.
    fn count(&mut self, answered: bool) {
        if self.serves == Some(answered) {
            self.against = 0;
            return;
        }
        self.against += 1;
        let needed = match self.serves {
            None => 1,
            Some(true) => FALL,
            Some(false) => RISE,
        };
        if self.against >= needed {
            *self = Self { serves: Some(answered), against: 0 };
        }
    }
}

/// Who is asked.
#[derive(Debug)]
struct Target {
    pool: String,
    listen: Listen,
    protocol: Protocol,
    sources: ClientSources,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.listen {
            Listen::Tcp(address) => write!(f, "{} at {}", self.pool, reachable(*address)),
            Listen::Unix { path, .. } => write!(f, "{} at {}", self.pool, path.display()),
            Listen::Nowhere => f.write_str(&self.pool),
        }
    }
}

impl Target {
    fn find(arguments: &HealthArguments) -> Result<Self, String> {
        let file = &arguments.conf_file;
        let loaded = cashew_config::load(file).map_err(|error| error.to_string())?;
        let pools = &loaded.snapshot.pools;
        let Some(name) = &arguments.pool else {
            // Where bytes pass through, nobody but the server answers.
            let answers = |pool: &&Pool| pool.protocol != Protocol::Tcp;
            let found = pools.iter().filter(answers).find_map(Self::of);
            return found.or_else(|| pools.iter().find_map(Self::of)).ok_or_else(|| {
                format!(
                    "{}: all ports are for TLS, which is not spoken here: give one pool a \"tls_listen\", and a \
                     \"listen\" for this machine, such as /run/cashew/health.sock",
                    file.display()
                )
            });
        };
        let pool = pools.iter().find(|pool| pool.name == *name);
        let pool = pool.ok_or_else(|| format!("there is no pool or route '{name}'"))?;
        Self::of(pool).ok_or_else(|| match pool.tls {
            None => format!("'{name}' has no port: clients come to it by routes"),
            Some(_) => format!(
                "'{name}' has a port for TLS only, which is not spoken here: call that \"tls_listen\", and add a \
                 \"listen\" for this machine, such as /run/cashew/health.sock"
            ),
        })
    }

    /// A plain port of the pool.
    fn of(pool: &Pool) -> Option<Self> {
        let listen = pool.listens().find(|listen| pool.tls_at(listen).is_none())?;
        Some(Self {
            pool: pool.name.clone(),
            listen: listen.clone(),
            protocol: pool.protocol,
            sources: pool.client_sources.clone(),
        })
    }

    /// Whether an answer comes in time; any is one, so that a password or a lack of servers is of no account.
    fn ask(&self, timeout: Duration) -> Result<(), String> {
        let answer = match self.exchange(timeout) {
            // So does the gateway end a connection for which there is no server, as soon as it is there.
            Err(error)
                if error.kind() == ErrorKind::ConnectionReset && self.is_passed_through() =>
            {
                return Ok(());
            }
            answer => answer,
        };
        let answer = answer.map_err(|error| {
            let why = match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    format!("no answer within {} ms", timeout.as_millis())
                }
                ErrorKind::ConnectionRefused => "nobody listens there".to_owned(),
                _ => error.to_string(),
            };
            format!("{self} does not serve: {why}")
        })?;
        match self.is_of_protocol(&answer) {
            true => Ok(()),
            false if answer.is_empty() => {
                Err(format!("{self} does not serve: it closed the connection without an answer"))
            }
            false => Err(format!(
                "{self} does not serve: another program answers there, with {:?}",
                String::from_utf8_lossy(&answer)
            )),
        }
    }

    fn is_passed_through(&self) -> bool {
        self.protocol == Protocol::Tcp
    }

    fn is_of_protocol(&self, answer: &[u8]) -> bool {
        match self.protocol {
            Protocol::Redis => matches!(answer.first(), Some(b'+' | b'-')),
            Protocol::Memcached => {
                let words = [&b"VERSION"[..], b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"];
                words.iter().any(|word| answer.starts_with(word))
            }
            // What comes is the server's; an end without a word is the gateway's, or passed on by it.
            Protocol::Tcp => true,
        }
    }

    fn exchange(&self, timeout: Duration) -> io::Result<Vec<u8>> {
        match &self.listen {
            Listen::Tcp(address) => {
                let stream = TcpStream::connect_timeout(&reachable(*address), timeout)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                let own = stream.local_addr()?.ip();
                self.converse(stream, TcpStream::shutdown, Some(own))
            }
            Listen::Unix { path, .. } => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                self.converse(stream, UnixStream::shutdown, None)
            }
            Listen::Nowhere => Err(ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Sends the question, and reads the begin of the answer. `own` is this end's address, which is the gateway's too.
    fn converse<S: Read + Write>(
        &self,
        mut stream: S,
        shutdown: fn(&S, Shutdown) -> io::Result<()>,
        own: Option<IpAddr>,
    ) -> io::Result<Vec<u8>> {
        let mut question = Vec::new();
        if self.sources.header_timeout_ms(own).is_some() {
            question.extend_from_slice(OWN_HEADER);
        }
        question.extend_from_slice(match self.protocol {
            Protocol::Redis => b"*1\r\n$4\r\nPING\r\n",
            Protocol::Memcached => b"version\r\n",
            Protocol::Tcp => b"",
        });
        stream.write_all(&question)?;
        if self.is_passed_through() {
            // It may be reset already, which is an answer, too.
            let _ = shutdown(&stream, Shutdown::Write);
        }
        let mut answer = vec![0; 128];
        let length = stream.read(&mut answer)?;
        answer.truncate(length);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(outcomes: &str) -> Vec<(usize, bool)> {
        let mut verdict = Verdict::default();
        let outcomes = outcomes.bytes().enumerate();
        let changed = outcomes.filter_map(|(number, outcome)| {
            let before = verdict.serves;
            verdict.count(outcome == b'+');
            (verdict.serves != before).then(|| (number, verdict.serves.unwrap()))
        });
        changed.collect()
    }

    #[test]
    fn one_missing_answer_is_no_failure_and_one_answer_no_recovery() {
        assert_eq!(changes("+-+-+-++"), [(0, true)]);
        assert_eq!(changes("++--"), [(0, true), (3, false)]);
        assert_eq!(changes("-++-++-+++"), [(0, false), (9, true)]);
    }

    fn target(protocol: Protocol) -> Target {
        let listen = Listen::Tcp(([127, 0, 0, 1], 1).into());
        Target { pool: "alpha".into(), listen, protocol, sources: ClientSources::default() }
    }

    #[test]
    fn errors_are_answers_and_what_others_say_is_none() {
        let redis = target(Protocol::Redis);
        for answer in [&b"+PONG\r\n"[..], b"-NOAUTH Authentication required.\r\n"] {
            assert!(redis.is_of_protocol(answer));
        }
        let memcached = target(Protocol::Memcached);
        for answer in [&b"VERSION 1\r\n"[..], b"CLIENT_ERROR unauthenticated\r\n", b"ERROR\r\n"] {
            assert!(memcached.is_of_protocol(answer));
        }
        for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n", b"\x15\x03"] {
            assert!(!redis.is_of_protocol(answer) && !memcached.is_of_protocol(answer));
            assert!(target(Protocol::Tcp).is_of_protocol(answer));
        }
    }

    #[test]
    fn whom_nobody_answers_for_is_named() {
        let why = target(Protocol::Redis).ask(Duration::from_millis(200)).unwrap_err();
        assert_eq!(why, "alpha at 127.0.0.1:1 does not serve: nobody listens there");
    }
}
