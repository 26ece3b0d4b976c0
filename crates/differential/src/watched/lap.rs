//! A gateway with some pools, hostile and watched clients for a while, and the result.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::case::{Case, Request, excerpt, quoted};
use crate::random::Random;
use crate::servers::{Program, Server};

use super::Scenario;
use super::gateway::Gateway;
use super::hostile::{self, Transcript};
use super::minimise::minimised;
use super::watcher::{Trouble, Watcher};

/// The most memory of a gateway with a few clients.
const MEMORY_MAX: u64 = 600 << 20;

/// Parameters of a lap.
pub struct Lap<'a> {
    pub program: &'a Path,
    pub pools: &'a [(Scenario, Program)],
    pub workers: u32,
    pub seed: u64,
    pub time: Duration,
    /// How long a watched request may wait.
    pub patience: Duration,
}

/// Counters of laps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub sent: u64,
    pub replies: u64,
    pub misses: u64,
    pub slowest: Duration,
    pub memory: u64,
}

impl Totals {
    pub fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.replies += other.replies;
        self.misses += other.misses;
        self.slowest = self.slowest.max(other.slowest);
        self.memory = self.memory.max(other.memory);
    }
}

/// A problem of a watched client, or of the gateway.
#[derive(Clone, Debug)]
pub struct Finding {
    pub pool: String,
    pub what: String,
    pub detail: String,
    pub seed: u64,
    /// The earlier input, oldest first.
    pub transcript: Vec<Vec<u8>>,
    /// The smallest input that reproduces it, if any did.
    pub least: Option<(Vec<Case>, String)>,
}

impl Finding {
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: a watched client {}\nseed: {}\n\n{}\n\n",
            self.pool, self.what, self.seed, self.detail
        );
        match &self.least {
            Some((cases, detail)) => {
                text.push_str(&format!("Again: {detail}\nThe least that shows it again:\n"));
                for case in cases {
                    text.push_str(&format!("  {}\n", excerpt(&case.bytes())));
                }
            }
            None => text.push_str(
                "It did not show again when this was sent by one client after the other.\n",
            ),
        }
        text.push_str("\nSent by hostile clients before, the last at the end:\n");
        for bytes in &self.transcript {
            text.push_str(&format!("raw \"{}\"\n", quoted(bytes)));
        }
        text
    }

    pub fn write(&self, directory: &Path) -> io::Result<PathBuf> {
        std::fs::create_dir_all(directory)?;
        let kept =
            |character: char| if character.is_ascii_alphanumeric() { character } else { '-' };
        let stem: String =
            format!("watched {} {}", self.pool, self.what).chars().map(kept).collect();
        let path = directory.join(format!("{stem}.txt"));
        std::fs::write(&path, self.text())?;
        Ok(path)
    }
}

/// Runs a lap; returns the counters, and the first finding of each kind in each pool.
pub fn run_lap(lap: &Lap<'_>) -> io::Result<(Totals, Vec<Finding>)> {
    let mut random = Random::new(lap.seed);
    let servers: Vec<Vec<Server>> = lap
        .pools
        .iter()
        .map(|(scenario, program)| {
            (0..scenario.servers()).map(|_| Server::start(program)).collect()
        })
        .collect::<io::Result<_>>()?;
    let names: Vec<String> = (0..lap.pools.len()).map(|number| format!("p{number}")).collect();
    let pools: Vec<(String, Scenario, &[Server])> = names
        .iter()
        .zip(lap.pools)
        .zip(&servers)
        .map(|((name, (scenario, _)), servers)| (name.clone(), *scenario, &servers[..]))
        .collect();
    let mut gateway = Gateway::start(lap.program, lap.workers, &pools, &mut random)?;
    let runs = AtomicBool::new(true);
    let sent = AtomicU64::new(0);
    let totals = Mutex::new(Totals::default());
    let findings = Mutex::new(Vec::new());
    let known = Mutex::new(BTreeSet::new());
    let transcripts: Vec<Transcript> = lap.pools.iter().map(|_| Transcript::default()).collect();
    std::thread::scope(|scope| {
        for (at, (scenario, program)) in lap.pools.iter().enumerate() {
            let address = gateway.address(&names[at]);
            let (is_routed, has_order) = (scenario.tree.is_some(), scenario.has_order());
            for &protocol in scenario.hostile.iter().chain(scenario.hostile) {
                let (address, random, transcript) =
                    (address.clone(), Random::new(random.number()), &transcripts[at]);
                let (runs, sent) = (&runs, &sent);
                scope.spawn(move || {
                    hostile::run(protocol, is_routed, &address, random, transcript, runs, sent)
                });
            }
            let pool = format!("{} before {}", scenario.name, program.version);
            for &protocol in scenario.watched {
                for _ in 0..2 {
                    let (address, pool) = (address.clone(), pool.clone());
                    let (runs, totals, findings, known, transcript) =
                        (&runs, &totals, &findings, &known, &transcripts[at]);
                    let mut random = Random::new(random.number());
                    scope.spawn(move || {
                        while runs.load(Ordering::Relaxed) {
                            let name = format!("w{:x}", random.number() >> 32);
                            let watcher = Watcher::connect(
                                protocol,
                                name,
                                &address,
                                lap.patience,
                                random.clone(),
                            );
                            let Ok(watcher) = watcher else { continue };
                            let mut watcher = watcher.one_at_a_time(!has_order);
                            random.number();
                            let trouble = watch(&mut watcher, &address, runs, &mut random);
                            totals.lock().expect("nobody panics with it").add(Totals {
                                replies: watcher.replies,
                                misses: watcher.misses,
                                slowest: watcher.slowest,
                                ..Totals::default()
                            });
                            let Err(trouble) = trouble else { continue };
                            let is_new = known
                                .lock()
                                .expect("nobody panics with it")
                                .insert((at, trouble.what));
                            if is_new {
                                findings.lock().expect("nobody panics with it").push((
                                    at,
                                    Finding {
                                        pool: pool.clone(),
                                        what: trouble.what.to_owned(),
                                        detail: trouble.detail,
                                        seed: lap.seed,
                                        transcript: transcript.all(),
                                        least: None,
                                    },
                                ));
                            }
                        }
                    });
                }
            }
        }
        let until = Instant::now() + lap.time;
        while Instant::now() < until && gateway.is_running() {
            std::thread::sleep(Duration::from_millis(100));
            let memory = gateway.memory();
            let mut totals = totals.lock().expect("nobody panics with it");
            totals.memory = totals.memory.max(memory);
        }
        runs.store(false, Ordering::Relaxed);
    });
    let mut totals = totals.into_inner().expect("nobody panics with it");
    totals.sent = sent.into_inner();
    let mut found = findings.into_inner().expect("nobody panics with it");
    let mut of_gateway = |what: &str, detail: String| {
        let transcript = transcripts.iter().flat_map(Transcript::all).collect();
        let (pool, what) = ("the gateway".to_owned(), what.to_owned());
        found.push((
            usize::MAX,
            Finding { pool, what, detail, seed: lap.seed, transcript, least: None },
        ));
    };
    if !gateway.is_running() {
        of_gateway("loses the gateway", gateway.log());
    }
    let crashes = gateway.crashes();
    if !crashes.is_empty() {
        of_gateway("loses a worker", crashes.join("\n"));
    }
    if totals.memory > MEMORY_MAX {
        of_gateway("sees memory grow", format!("{} bytes", totals.memory));
    }
    // The gateway's own warnings.
    let warnings = gateway.warnings();
    for (_, finding) in &mut found {
        finding.detail.push_str("\n\n");
        finding.detail.push_str(&warnings);
    }
    drop(gateway);
    drop(pools);
    drop(servers);
    // Only a few are reduced; the rest likely has the same cause.
    for (at, finding) in found.iter_mut().take(3) {
        if let Some((scenario, program)) = lap.pools.get(*at) {
            let cases: Vec<Case> = finding.transcript.iter().map(|bytes| case(bytes)).collect();
            finding.least =
                minimised(lap.program, *scenario, program, &finding.what, cases, &mut random)?;
        }
    }
    Ok((totals, found.into_iter().map(|(_, finding)| finding).collect()))
}

fn case(bytes: &[u8]) -> Case {
    Case { requests: vec![Request::Raw(bytes.to_vec())], resp3: false, accompanied: false, cuts: 0 }
}

fn watch(
    watcher: &mut Watcher,
    address: &Path,
    runs: &AtomicBool,
    random: &mut Random,
) -> Result<(), Trouble> {
    while runs.load(Ordering::Relaxed) {
        watcher.tick()?;
        if random.percent(60) {
            // Most of the time is for the hostile clients.
            std::thread::sleep(Duration::from_micros(random.number() % 3000));
        }
        if random.percent(2)
            && let Err(error) = watcher.reconnect(address)
        {
            return Err(Trouble { what: "cannot connect", detail: error.to_string() });
        }
    }
    Ok(())
}
