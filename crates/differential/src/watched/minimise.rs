//! Reduces hostile input to the smallest that still causes a watched client's problem.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::generate::Protocol;
use crate::random::Random;
use crate::servers::{Program, Server};
use crate::shrink::shrunk;

use super::Scenario;
use super::gateway::Gateway;
use super::watcher::Watcher;

const PATIENCE: Duration = Duration::from_secs(2);
const TRIES: usize = 250;
const TIME_MAX: Duration = Duration::from_secs(60);

struct Bench<'a> {
    program: &'a Path,
    scenario: Scenario,
    /// The watched client's problem.
    what: &'a str,
    servers: Vec<Server>,
    gateway: Option<Gateway>,
    random: Random,
    until: Instant,
    /// The details of its last reproduction.
    detail: String,
}

impl Bench<'_> {
    /// Sends the cases one after the other, each followed by watched clients; returns the index of
    /// the first that causes a problem.
    fn first_trouble(&mut self, cases: &[Case]) -> io::Result<Option<usize>> {
        for server in &self.servers {
            server.reset()?;
        }
        let gateway = match self.gateway.take() {
            Some(gateway) => gateway,
            None => {
                let pools = [("pool".to_owned(), self.scenario, &self.servers[..])];
                Gateway::start(self.program, 1, &pools, &mut self.random)?
            }
        };
        let address = gateway.address("pool");
        for (at, case) in cases.iter().enumerate() {
            let mut hostile = UnixStream::connect(&address)?;
            hostile.set_write_timeout(Some(Duration::from_millis(500)))?;
            // The gateway may not read it.
            let _ = hostile.write_all(&case.bytes());
            for &protocol in self.scenario.watched {
                let name = format!("m{:x}", self.random.number() >> 40);
                let random = Random::new(self.random.number());
                let watcher = Watcher::connect(protocol, name, &address, PATIENCE, random)?;
                let mut watcher = watcher.one_at_a_time(!self.scenario.has_order());
                let tries = if protocol == Protocol::Redis { 2 } else { 3 };
                let trouble = (0..tries).find_map(|_| watcher.tick().err());
                if let Some(trouble) = trouble {
                    // The problem may persist: the gateway is not used again.
                    let shows = trouble.what == self.what;
                    if shows {
                        self.detail = trouble.detail;
                    }
                    return Ok(shows.then_some(at));
                }
            }
        }
        self.gateway = Some(gateway);
        Ok(None)
    }
}

/// `None` if it cannot be reproduced.
pub(super) fn minimised(
    program: &Path,
    scenario: Scenario,
    server: &Program,
    what: &str,
    cases: Vec<Case>,
    random: &mut Random,
) -> io::Result<Option<(Vec<Case>, String)>> {
    let servers =
        (0..scenario.servers()).map(|_| Server::start(server)).collect::<io::Result<_>>()?;
    let until = Instant::now() + TIME_MAX;
    let random = Random::new(random.number());
    let mut bench = Bench {
        program,
        scenario,
        what,
        servers,
        gateway: None,
        random,
        until,
        detail: String::new(),
    };
    let Some(at) = bench.first_trouble(&cases)? else { return Ok(None) };
    let cases = cases[..=at].to_vec();
    let mut trouble = None;
    let least = shrunk(cases, TRIES, |cases| {
        if trouble.is_some() || Instant::now() > bench.until {
            return false;
        }
        match bench.first_trouble(cases) {
            Ok(found) => found.is_some(),
            Err(error) => {
                trouble = Some(error);
                false
            }
        }
    });
    trouble.map_or(Ok(Some((least, bench.detail))), Err)
}
