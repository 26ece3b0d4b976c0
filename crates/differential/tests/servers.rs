//! A few requests of each protocol with the servers of the path: scripts/test compares more.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cashew_differential::case::{Case, Request};
use cashew_differential::compare::{Budget, compare, play};
use cashew_differential::rig::Misfit;
use cashew_differential::servers::{Directory, Kind, Program, Server};
use cashew_differential::setup::Setup;

const REQUESTS: u64 = 400;

#[track_caller]
fn fits(kind: Kind, program: &str) {
    let program = Program::new(kind, Path::new(program)).expect("it is installed");
    let budget = Budget { seed: 5, requests: REQUESTS, until: None, jobs: 2 };
    let outcomes = compare(&[program], &[], budget, &|_| {}).expect("the server runs");
    let texts: Vec<String> = outcomes
        .iter()
        .flat_map(|outcome| &outcome.findings)
        .map(|finding| finding.text())
        .collect();
    assert!(texts.is_empty(), "{}", texts.join("\n\n"));
    assert!(outcomes.iter().all(|outcome| outcome.counts.requests >= REQUESTS));
    assert!(outcomes.iter().all(|outcome| outcome.counts.exchanges > REQUESTS / 5));
}

#[test]
fn redis_says_what_the_gateway_waits_for() {
    fits(Kind::Redis, "redis-server");
}

#[test]
fn memcached_says_what_the_gateway_waits_for() {
    fits(Kind::Memcached, "memcached");
}

/// Wrong replies of a server to `get k1`.
#[derive(Clone, Copy)]
enum Lie {
    None,
    Nothing,
    Twice,
    Forged,
    Closes,
}

/// A memcached of a few commands with wrong replies. It ends with the test.
fn liar(directory: &Directory, lie: Lie) -> Server {
    let socket = directory.0.join(format!("liar{}", lie as u8));
    let listener = UnixListener::bind(&socket).expect("the path is free");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || lies(stream, lie));
        }
    });
    let version = "a liar".to_owned();
    Server::at(Program { kind: Kind::Memcached, path: PathBuf::new(), version }, socket)
}

fn lies(stream: UnixStream, lie: Lie) {
    let mut out = stream.try_clone().expect("it is open");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        let said = match (words[0], lie) {
            ("set", _) => {
                lines.next();
                "STORED\r\n".to_owned()
            }
            ("md", _) => format!("NF {} k{}\r\n", words[2], words[1]),
            ("flush_all", _) => "OK\r\n".to_owned(),
            ("mn", _) => "MN\r\n".to_owned(),
            ("get", Lie::Nothing) => String::new(),
            ("get", Lie::Twice) => "END\r\nEND\r\n".to_owned(),
            ("get", Lie::Forged) => {
                "VALUE k1 0 1\r\nx\r\nEND\r\nVALUE w0 0 1\r\nx\r\nEND\r\n".to_owned()
            }
            ("get", Lie::Closes) => return,
            _ => "END\r\n".to_owned(),
        };
        if out.write_all(said.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn what_does_not_fit_is_found() {
    let setup = Setup::named("text-1").expect("there is such a pool");
    let directory = Directory::new().expect("there is room");
    for (lie, misfit) in [
        (Lie::None, None),
        (Lie::Nothing, Some(Misfit::TooLittle)),
        (Lie::Twice, Some(Misfit::TooMuch)),
        (Lie::Forged, Some(Misfit::TooMuch)),
        (Lie::Closes, Some(Misfit::Closes)),
    ] {
        let mut server = liar(&directory, lie);
        for cuts in 0..8 {
            let requests = vec![Request::Raw(b"get k1\r\n".to_vec())];
            let case = Case { requests, resp3: false, accompanied: false, cuts };
            let played = play(setup, &mut server, &[case], Duration::from_secs(2));
            let found = played.found.expect("it answers").map(|(_, found, _)| found.misfit);
            assert_eq!(found, misfit, "{cuts}");
        }
    }
}
