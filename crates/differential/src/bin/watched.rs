//! Hostile and watched clients of the gateway: see docs/testing.md.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cashew_differential::random::Random;
use cashew_differential::servers::{Kind, Program};
use cashew_differential::watched::{Lap, SCENARIOS, Scenario, Totals, gateway_program, run_lap};
use clap::Parser;

/// Pools of one gateway.
const POOLS_OF_LAP: usize = 6;

#[derive(Parser)]
#[command(
    args_override_self = true,
    about = "Checks every reply to watched clients while hostile ones share their connections to servers"
)]
struct Arguments {
    /// Seed of the requests, though not of their timing [default: from the time of day]
    #[arg(long)]
    seed: Option<u64>,
    /// Total time
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Lifetime of one gateway and its servers
    #[arg(long, default_value_t = 12)]
    lap: u64,
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Seconds that a watched request may wait
    #[arg(long, default_value_t = 5.0)]
    patience: f64,
    /// Only these pools [default: all]
    #[arg(long)]
    pool: Vec<String>,
    /// Only servers of these versions [default: all]
    #[arg(long)]
    server: Vec<String>,
    /// Continue after a finding
    #[arg(long)]
    go_on: bool,
    /// Directory for the files of findings
    #[arg(long, default_value = "target/differential")]
    found: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("watched: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let mut programs = Program::all()?;
    if !arguments.server.is_empty() {
        programs.retain(|program| {
            arguments.server.iter().any(|name| program.version.starts_with(name.as_str()))
        });
    }
    let wants = |scenario: &&Scenario| {
        arguments.pool.is_empty() || arguments.pool.iter().any(|name| name == scenario.name)
    };
    let mut pools: Vec<(Scenario, Program)> = Vec::new();
    for scenario in SCENARIOS.iter().filter(wants) {
        for program in programs.iter().filter(|program| program.kind == scenario.kind) {
            pools.push((*scenario, program.clone()));
        }
    }
    if pools.is_empty() {
        return Err("there is no such pool before such a server".to_owned());
    }
    let by_time = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |since| since.as_millis() as u64)
    };
    let seed = arguments.seed.unwrap_or_else(by_time);
    let gateway = gateway_program();
    println!("seed {seed}, {} pools, {}", pools.len(), gateway.display());
    let started = Instant::now();
    let all = Duration::from_secs(arguments.seconds);
    let (mut totals, mut found, mut laps, mut next) = (Totals::default(), 0, 0u64, 0);
    let mut random = Random::new(seed);
    while started.elapsed() < all {
        // In rotation, so that each has its share.
        let chosen: Vec<_> =
            pools.iter().cycle().skip(next).take(POOLS_OF_LAP.min(pools.len())).cloned().collect();
        next = (next + chosen.len()) % pools.len();
        let lap = Lap {
            program: &gateway,
            pools: &chosen,
            workers: arguments.workers,
            seed: random.number(),
            time: Duration::from_secs(arguments.lap).min(all.saturating_sub(started.elapsed())),
            patience: Duration::from_secs_f64(arguments.patience),
        };
        let (of_lap, findings) = run_lap(&lap).map_err(|error| error.to_string())?;
        totals.add(of_lap);
        laps += 1;
        for finding in &findings {
            found += 1;
            let text = finding.text();
            let shown = text.split("\nSent by hostile").next().unwrap_or_default();
            println!("\n== {shown}");
            match finding.write(&arguments.found) {
                Ok(path) => println!("written to {}", path.display()),
                Err(error) => println!("not written: {error}"),
            }
        }
        if found > 0 && !arguments.go_on {
            break;
        }
    }
    println!(
        "{:.1} minutes, {laps} gateways: {} hostile writes beside {} watched replies ({} misses); the slowest \
         pipeline took {} ms, the gateway {} MiB; {found} findings",
        started.elapsed().as_secs_f64() / 60.0,
        totals.sent,
        totals.replies,
        totals.misses,
        totals.slowest.as_millis(),
        totals.memory >> 20
    );
    let has_both = [Kind::Redis, Kind::Memcached]
        .iter()
        .all(|kind| pools.iter().any(|(pool, _)| pool.kind == *kind));
    if totals.replies == 0 || (has_both && totals.sent == 0) {
        return Err("nothing was watched".to_owned());
    }
    Ok(found == 0)
}
