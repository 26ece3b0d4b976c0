//! The differential test: rounds of cases, each with its own engine.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::generate;
use crate::random::Random;
use crate::report::Finding;
use crate::rig::{Counts, Found, Misfit, Rig, Stop};
use crate::servers::{Program, Server};
use crate::setup::{SETUPS, Setup};
use crate::shrink::shrunk;

/// Cases that one engine and its connections serve.
const ROUND: u64 = 150;
/// A server is restarted after so many rounds, since requests change its settings.
const ROUNDS_OF_SERVER: u64 = 60;
/// How long to wait for a fence's reply, also during a reduction.
const PATIENCE: Duration = Duration::from_secs(4);
const PATIENCE_AGAIN: Duration = Duration::from_millis(400);
/// How often a finding is replayed to reduce it.
const TRIES: usize = 400;
/// Findings of one pool and server that are reduced; with more, fix some first.
const FINDINGS_MAX: usize = 25;

/// The extent of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub seed: u64,
    /// Requests for each pool and server, unless the time is over before.
    pub requests: u64,
    pub until: Option<Instant>,
    pub jobs: usize,
}

/// The result of a pool with a server.
pub struct Outcome {
    pub setup: Setup,
    pub program: Program,
    pub counts: Counts,
    pub findings: Vec<Finding>,
    /// How often each was seen, by name.
    pub seen: BTreeMap<String, u64>,
    pub took: Duration,
}

/// Compares all pools of the given names, or all, with the programs. Calls `say` with each finding.
pub fn compare(
    programs: &[Program],
    setups: &[String],
    budget: Budget,
    say: &(dyn Fn(&Finding) + Sync),
) -> io::Result<Vec<Outcome>> {
    let mut jobs = Vec::new();
    for program in programs {
        for setup in SETUPS.iter().filter(|setup| setup.kind == program.kind) {
            if setups.is_empty() || setups.iter().any(|name| name == setup.name) {
                jobs.push((*setup, program.clone()));
            }
        }
    }
    jobs.reverse();
    let (jobs, outcomes) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let (next, left) = {
                let mut jobs = jobs.lock().expect("nobody panics with it");
                let next = jobs.pop();
                (next, jobs.len() + 1)
            };
            let Some((setup, program)) = next else { return };
            let mut budget = budget;
            // The remaining time is divided evenly.
            if let Some(until) = budget.until {
                let left_now = until.saturating_duration_since(Instant::now());
                let share = left_now.mul_f64((budget.jobs as f64 / left as f64).min(1.0));
                budget.until = Some(Instant::now() + share);
            }
            let outcome = one(setup, &program, budget, say);
            outcomes.lock().expect("nobody panics with it").push(outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..budget.jobs.max(1) {
            scope.spawn(work);
        }
    });
    outcomes.into_inner().expect("nobody panics with it").into_iter().collect()
}

/// One pool with one server.
fn one(
    setup: Setup,
    program: &Program,
    budget: Budget,
    say: &dyn Fn(&Finding),
) -> io::Result<Outcome> {
    let started = Instant::now();
    let mut server = Server::start(program)?;
    let mut outcome = Outcome {
        setup,
        program: program.clone(),
        counts: Counts::default(),
        findings: Vec::new(),
        seen: BTreeMap::new(),
        took: Duration::ZERO,
    };
    let mut round = 0;
    while outcome.counts.requests < budget.requests
        && budget.until.is_none_or(|until| Instant::now() < until)
    {
        if round % ROUNDS_OF_SERVER == ROUNDS_OF_SERVER - 1 {
            server.restart()?;
        }
        let mut random = Random::of(budget.seed, round);
        let cases: Vec<Case> =
            (0..ROUND).map(|_| generate::case(setup.protocol, &mut random)).collect();
        round += 1;
        let mut from = 0;
        while from < cases.len() {
            let played = play(setup, &mut server, &cases[from..], PATIENCE);
            outcome.counts.add(played.counts);
            let Some((at, found, transcript)) = played.found? else {
                from += played.cases;
                continue;
            };
            let history = &cases[from..=from + at];
            from += at + 1;
            revive(&mut server)?;
            let mut finding = Finding {
                setup,
                program: program.clone(),
                seed: budget.seed,
                cases: history.to_vec(),
                found,
                transcript,
                is_confirmed: false,
            };
            let seen = outcome.seen.entry(finding.name()).or_default();
            *seen += 1;
            if *seen > 1 || outcome.findings.len() >= FINDINGS_MAX {
                continue;
            }
            finding = smaller(finding, &mut server)?;
            if finding.misfit() == Misfit::Waits && !finding.is_confirmed {
                // The machine may have stalled: a hanging server would do so again.
                outcome.counts.stalls += 1;
                continue;
            }
            let is_known = outcome.findings.iter().any(|known| known.name() == finding.name());
            if !is_known {
                say(&finding);
                outcome.findings.push(finding);
            }
        }
    }
    outcome.took = started.elapsed();
    Ok(outcome)
}

/// Restarts a server that died or hangs.
fn revive(server: &mut Server) -> io::Result<()> {
    if !server.is_running() || server.reset().is_err() {
        server.restart()?;
    }
    Ok(())
}

/// Replays a finding with less and less.
fn smaller(mut finding: Finding, server: &mut Server) -> io::Result<Finding> {
    let (setup, misfit) = (finding.setup, finding.misfit());
    let mut best = None;
    let mut trouble = None;
    let least = shrunk(finding.cases.clone(), TRIES, |cases| {
        if trouble.is_some() {
            return false;
        }
        let patience = if misfit == Misfit::Waits { PATIENCE / 2 } else { PATIENCE_AGAIN };
        let played = play(setup, server, cases, patience);
        match played.found {
            Ok(Some((at, found, transcript))) => {
                let shows = found.misfit.is_like(misfit) && at + 1 == cases.len();
                if shows {
                    best = Some((cases.to_vec(), found, transcript));
                }
                if let Err(error) = revive(server) {
                    trouble = Some(error);
                }
                shows
            }
            Ok(None) => false,
            Err(error) => {
                trouble = Some(error);
                false
            }
        }
    });
    if let Some(error) = trouble {
        return Err(error);
    }
    if let Some((cases, found, transcript)) = best {
        debug_assert!(cases.len() == least.len());
        finding = Finding { cases, found, transcript, is_confirmed: true, ..finding };
    }
    Ok(finding)
}

/// The result of some cases.
pub struct Played {
    pub counts: Counts,
    /// How many were played.
    pub cases: usize,
    /// The number of the case with a mismatch, and its transcript.
    pub found: io::Result<Option<(usize, Found, String)>>,
}

/// Plays cases one after the other with one engine, up to the first mismatch, or until something in
/// flight would disturb the next.
pub fn play(setup: Setup, server: &mut Server, cases: &[Case], patience: Duration) -> Played {
    let mut counts = Counts::default();
    if let Err(error) = revive(server) {
        return Played { counts, cases: 0, found: Err(error) };
    }
    let mut rig = match Rig::new(setup, server, patience) {
        Ok(rig) => rig,
        Err(stop) => return Played { counts, cases: 0, found: Err(broken(stop)) },
    };
    for (at, case) in cases.iter().enumerate() {
        let played = catch_unwind(AssertUnwindSafe(|| rig.play(case)));
        counts = rig.counts;
        let found = match played {
            Ok(Ok(())) => None,
            Ok(Err(Stop::Found(found))) => Some(found),
            Ok(Err(stop)) => return Played { counts, cases: at, found: Err(broken(stop)) },
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text =
                    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Some(Found { misfit: Misfit::Panics, detail: text.unwrap_or_default() })
            }
        };
        if let Some(found) = found {
            let transcript = rig.transcript();
            return Played { counts, cases: at + 1, found: Ok(Some((at, found, transcript))) };
        }
        if rig.is_spent {
            return Played { counts, cases: at + 1, found: Ok(None) };
        }
    }
    Played { counts, cases: cases.len(), found: Ok(None) }
}

fn broken(stop: Stop) -> io::Error {
    match stop {
        Stop::Broken(error) => error,
        Stop::Found(found) => io::Error::other(format!("before the first case: {found:?}")),
    }
}
