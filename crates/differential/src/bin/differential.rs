//! Compares the gateway's parsing of requests and replies with real servers': see docs/testing.md.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cashew_differential::compare::{Budget, compare, play};
use cashew_differential::report::Finding;
use cashew_differential::servers::{Program, Server};
use cashew_differential::setup::Setup;
use cashew_differential::{case, generate};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    about = "Compares the gateway's reading of requests and replies with that of real servers"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends random requests to redis-server and memcached, and to the servers in
    /// CASHEW_REDIS_SERVERS and CASHEW_MEMCACHED_SERVERS.
    #[command(args_override_self = true)]
    Run {
        /// Seed of the requests [default: from the time of day]
        #[arg(long)]
        seed: Option<u64>,
        /// Requests for each pool and server.
        #[arg(long, default_value_t = 1000)]
        requests: u64,
        /// Stop after this time, whatever has been sent
        #[arg(long)]
        seconds: Option<u64>,
        /// Pools and servers at the same time
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Only these pools [default: all]
        #[arg(long)]
        pool: Vec<String>,
        /// Only servers of these versions, as "redis 7" or "memcached" [default: all]
        #[arg(long)]
        server: Vec<String>,
        /// Directory for the files of findings
        #[arg(long, default_value = "target/differential")]
        found: PathBuf,
    },
    /// Replay the finding in a file
    Replay {
        file: PathBuf,
        /// The server's program, if it is not the one in the path
        #[arg(long)]
        server: Option<PathBuf>,
    },
    /// Print what is not tested, and why
    Excluded,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run { seed, requests, seconds, jobs, pool, server, found } => {
            run(seed, requests, seconds, jobs, &pool, &server, found)
        }
        Command::Replay { file, server } => replay(file, server),
        Command::Excluded => {
            for (name, why) in generate::redis::EXCLUDED {
                println!("{name}: {why}");
            }
            Ok(true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("differential: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(
    seed: Option<u64>,
    requests: u64,
    seconds: Option<u64>,
    jobs: usize,
    pools: &[String],
    servers: &[String],
    found: PathBuf,
) -> Result<bool, String> {
    for name in pools {
        Setup::named(name).ok_or_else(|| format!("there is no pool {name}"))?;
    }
    let mut programs = Program::all()?;
    if !servers.is_empty() {
        programs.retain(|program| {
            servers.iter().any(|name| program.version.starts_with(name.as_str()))
        });
    }
    if programs.is_empty() {
        return Err("no server is of that version".to_owned());
    }
    let by_time = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |since| since.as_millis() as u64)
    };
    let seed = seed.unwrap_or_else(by_time);
    println!("seed {seed}");
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let budget = Budget { seed, requests, until, jobs };
    // A panic of the engine is a finding, which has its message.
    std::panic::set_hook(Box::new(|_| {}));
    let lines = Mutex::new(());
    let say = |finding: &Finding| {
        let _one_by_one = lines.lock();
        println!(
            "\n== {} [{}, {}]\n{}",
            finding.name(),
            finding.setup.name,
            finding.program.version,
            finding.text()
        );
        match finding.write(&found) {
            Ok(path) => println!("written to {}", path.display()),
            Err(error) => println!("not written: {error}"),
        }
    };
    let mut outcomes =
        compare(&programs, pools, budget, &say).map_err(|error| error.to_string())?;
    outcomes.sort_by_key(|outcome| (outcome.program.version.clone(), outcome.setup.name));
    println!(
        "\n{:<18} {:<14} {:>9} {:>10} {:>8} {:>7} {:>8}",
        "server", "pool", "requests", "exchanges", "blocked", "found", "seconds"
    );
    let (mut total, mut seen) = (0, 0);
    for outcome in &outcomes {
        let times: u64 = outcome.seen.values().sum();
        total += outcome.counts.requests;
        seen += times - outcome.counts.stalls.min(times);
        println!(
            "{:<18} {:<14} {:>9} {:>10} {:>8} {:>7} {:>8.1}",
            outcome.program.version,
            outcome.setup.name,
            outcome.counts.requests,
            outcome.counts.exchanges,
            outcome.counts.blocked,
            times,
            outcome.took.as_secs_f64()
        );
        for finding in &outcome.findings {
            println!("    {}", finding.name());
        }
    }
    println!("{total} requests compared, {seen} misfits");
    Ok(seen == 0)
}

fn replay(file: PathBuf, server: Option<PathBuf>) -> Result<bool, String> {
    let text =
        std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let setup = text.lines().find_map(|line| line.strip_prefix("setup "));
    let setup = setup.and_then(Setup::named).ok_or("the file names no pool")?;
    let cases = case::read_cases(&text)?;
    let program = match server {
        Some(path) => Program::new(setup.kind, &path)?,
        None => Program::all()?
            .into_iter()
            .find(|program| program.kind == setup.kind)
            .ok_or("no server")?,
    };
    let mut server = Server::start(&program).map_err(|error| error.to_string())?;
    let played = play(setup, &mut server, &cases, Duration::from_secs(4));
    match played.found.map_err(|error| error.to_string())? {
        None => {
            println!("{} cases fit, before {}", played.cases, program.version);
            Ok(true)
        }
        Some((at, found, transcript)) => {
            println!(
                "case {} of {}, before {}: {}",
                at + 1,
                cases.len(),
                program.version,
                found.misfit.meaning()
            );
            println!("{transcript}\n{}", found.detail);
            Ok(false)
        }
    }
}
