//! The load of the benchmark: one thread that keeps a gateway busy, checks every reply, and
//! reports operations per second and latency as one line of JSON.
//!
//! Exit status: 0 done, 1 could not run, 2 a reply was wrong, 3 replies stopped coming.

mod idle;
mod meter;
mod short;
mod socket;
mod stalls;
mod steady;
mod wire;

use clap::Parser;
use meter::{Bound, Group, Meter};
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Duration;
use steady::{Open, Source};
use wire::{KEY_LEN, Mismatch, Protocol, Sizes, Wire};

/// Wakes the open loop within a microsecond of the next arrival.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1000);

#[derive(Parser)]
#[command(version, about = "Load for Redis and memcached gateways; checks every reply")]
struct Arguments {
    /// Address to connect to; connections are spread over several
    #[arg(long, default_value = "127.0.0.1:6379")]
    addr: Vec<SocketAddr>,
    #[arg(long, value_enum, default_value = "redis")]
    protocol: Protocol,
    /// Connections at a time
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    connections: u32,
    /// Requests sent together on a connection; the next ones follow when all are answered
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pipeline: u32,
    /// Send a request for every reply instead of waiting for the whole pipeline
    #[arg(long)]
    sliding: bool,
    /// Share of reads; the others are SETs
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    get_percent: u32,
    /// Read this many keys by one request instead of one
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    mget: Option<u32>,
    /// Bytes of a value
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Bytes of the values of the keys chosen by --large-percent
    #[arg(long, default_value_t = 65_536)]
    large_size: usize,
    /// Share of the keys whose values are large
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    large_percent: u32,
    /// Number of different keys
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,
    /// Set every key once and end
    #[arg(long, conflicts_with_all = ["short", "idle", "rate", "requests"])]
    fill: bool,
    /// One connection per request: connect, GET, close
    #[arg(long, conflicts_with_all = ["idle", "rate", "mget"])]
    short: bool,
    /// With --short: close by RST instead of FIN
    #[arg(long, requires = "short")]
    reset: bool,
    /// Say HELLO 3 first, and so speak RESP3
    #[arg(long, conflicts_with_all = ["fill", "short", "idle"])]
    resp3: bool,
    /// Only hold the connections, for as long as measured
    #[arg(long, conflicts_with_all = ["rate", "requests"])]
    idle: bool,
    /// Ask nobody anything: spin, and tell for how long the processor was away
    #[arg(long, conflicts_with_all = ["fill", "short", "idle", "rate", "requests", "greedy", "slow", "resp3"])]
    stalls: bool,
    /// Open loop: requests per second, timed from when each was due
    #[arg(long)]
    rate: Option<f64>,
    /// Open loop: this many requests are due at a time, at the same rate all in all
    #[arg(long, requires = "rate", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    burst: u32,
    /// One client more, not counted in the figures of the others: it always has this many GETs on
    /// their way
    #[arg(long, conflicts_with_all = ["fill", "short", "idle", "requests"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    greedy: Option<u32>,
    /// So many clients more, not counted in the figures of the others: each sends one GET at a time,
    /// timed from when it was due
    #[arg(long, requires = "slow_rate", conflicts_with_all = ["fill", "short", "idle", "rate", "requests", "greedy"], value_parser = clap::value_parser!(u32).range(1..=60_000))]
    slow: Option<u32>,
    /// With --slow: requests per second of each of them, due in turn
    #[arg(long, requires = "slow")]
    slow_rate: Option<f64>,
    /// Seconds before the measured window
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Seconds measured
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Send exactly this many requests instead, all measured
    #[arg(long)]
    requests: Option<u64>,
    /// Say on stdout when the measured window opens and closes
    #[arg(long)]
    events: bool,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What the loops need to know.
pub struct Plan {
    targets: Vec<SocketAddr>,
    connections: usize,
    pipeline: usize,
    sliding: bool,
    open: Option<Open>,
    greedy: Option<usize>,
    reset: bool,
    resp3: bool,
    events: bool,
}

impl Plan {
    /// Where this connection of all goes.
    fn target(&self, connection: usize) -> SocketAddr {
        self.targets[connection % self.targets.len()]
    }
}

#[derive(Debug)]
pub enum Failure {
    Io(std::io::Error),
    Closed,
    Refused(String),
    Stalled(usize),
    Wrong(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<Mismatch> for Failure {
    fn from(mismatch: Mismatch) -> Self {
        Self::Wrong(mismatch.0)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(formatter, "{error}"),
            Self::Closed => write!(formatter, "the other side closed a connection"),
            Self::Refused(error) => write!(formatter, "error reply: {error}"),
            Self::Stalled(count) => write!(formatter, "no reply for 10 s, {count} outstanding"),
            Self::Wrong(what) => write!(formatter, "wrong reply: {what}"),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(problem) = check(&arguments) {
        eprintln!("cashew-load: {problem}");
        return ExitCode::from(1);
    }
    rustix::thread::set_current_timer_slack(TIMER_SLACK).ok();
    match run(&arguments) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("cashew-load: {:?}: {failure}", arguments.addr);
            ExitCode::from(match failure {
                Failure::Wrong(_) => 2,
                Failure::Stalled(_) => 3,
                _ => 1,
            })
        }
    }
}

fn check(arguments: &Arguments) -> Result<(), String> {
    if arguments.value_size.min(arguments.large_size) < KEY_LEN {
        return Err(format!("a value holds its key and has at least {KEY_LEN} bytes"));
    }
    if arguments.mget.is_some() && matches!(arguments.protocol, Protocol::Meta | Protocol::Binary) {
        return Err("--mget is for redis and memcached: other requests have one key".into());
    }
    if arguments.mget.is_some_and(|count| count > arguments.keys) {
        return Err("--mget needs at least as many --keys".into());
    }
    let sane = |seconds: f64| (0.0..=86_400.0).contains(&seconds);
    if !sane(arguments.warmup) || !sane(arguments.seconds) {
        return Err("--warmup and --seconds must be between 0 and 86400".into());
    }
    if arguments.resp3 && arguments.protocol != Protocol::Redis {
        return Err("--resp3 is for redis".into());
    }
    let sane = |rate: Option<f64>| rate.is_none_or(|rate| (1.0..=1e8).contains(&rate));
    if !sane(arguments.rate) || !sane(arguments.slow_rate) {
        return Err("--rate and --slow-rate must be 1 to 1e8".into());
    }
    Ok(())
}

/// Who asks at a rate: all clients, the slow ones beside them, or nobody.
fn open_loop(arguments: &Arguments) -> Option<Open> {
    let main = arguments.rate.map(|rate| Open {
        group: Group::Main,
        first: 0,
        clients: arguments.connections.into(),
        rate,
        burst: arguments.burst.into(),
    });
    let slow = arguments.slow.zip(arguments.slow_rate).map(|(clients, rate)| Open {
        group: Group::Beside,
        first: arguments.connections as usize,
        clients: clients.into(),
        rate: f64::from(clients) * rate,
        burst: 1,
    });
    main.or(slow)
}

fn run(arguments: &Arguments) -> Result<String, Failure> {
    if arguments.stalls {
        return stalls::run(Duration::from_secs_f64(arguments.seconds));
    }
    let bound = match (arguments.fill, arguments.requests) {
        (true, _) => Bound::Requests(arguments.keys.into()),
        (false, Some(count)) => Bound::Requests(count),
        (false, None) => Bound::Time {
            warmup: Duration::from_secs_f64(arguments.warmup),
            measured: Duration::from_secs_f64(arguments.seconds),
        },
    };
    let plan = Plan {
        targets: arguments.addr.clone(),
        connections: if arguments.fill { 1 } else { arguments.connections as usize },
        pipeline: if arguments.fill { fill_depth(arguments) } else { arguments.pipeline as usize },
        sliding: arguments.sliding,
        open: open_loop(arguments),
        greedy: arguments.greedy.map(|depth| depth as usize),
        reset: arguments.reset,
        resp3: arguments.resp3,
        events: arguments.events,
    };
    let sizes = Sizes {
        small: arguments.value_size,
        large: arguments.large_size,
        large_percent: arguments.large_percent,
    };
    let wire = Wire::new(arguments.protocol, arguments.keys, sizes, arguments.mget.unwrap_or(1));
    let mut meter = Meter::new(bound, arguments.events, plan.open.as_ref().map(|open| open.group));
    let mix = Source::mix(arguments.get_percent, arguments.mget.is_some(), scatter(arguments.seed));
    let mode = if arguments.fill {
        steady::run(&plan, &wire, &mut meter, Source::Fill { next: 0 })?;
        "fill"
    } else if arguments.short {
        short::run(&plan, &wire, &mut meter, mix)?;
        "short"
    } else if arguments.idle {
        idle::run(&plan, &wire, &mut meter, mix)?;
        "idle"
    } else {
        steady::run(&plan, &wire, &mut meter, mix)?;
        if arguments.rate.is_some() { "open" } else { "closed" }
    };
    if arguments.fill
        && let Some(error) = &meter.first_error
    {
        return Err(Failure::Refused(error.clone()));
    }
    Ok(meter.report(mode))
}

/// Pipeline of a fill: about a mebibyte at a time.
fn fill_depth(arguments: &Arguments) -> usize {
    let largest = match arguments.large_percent {
        0 => arguments.value_size,
        _ => arguments.value_size.max(arguments.large_size),
    };
    ((1 << 20) / largest).clamp(1, 64)
}

/// Spreads small seeds over all bits.
fn scatter(seed: u64) -> u64 {
    seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn a_burst_is_due_at_once_and_the_rate_is_kept() {
        let due = |line| {
            let open = open_loop(&parse(line).expect("arguments")).expect("an open loop");
            [0, 1, 3, 4, 9].map(|arrival| open.due(arrival))
        };
        assert_eq!(due("load --rate 1000"), [0, 1, 3, 4, 9].map(|ms| ms * 1_000_000));
        assert_eq!(due("load --rate 1000 --burst 4"), [0, 0, 0, 4, 8].map(|ms| ms * 1_000_000));
    }

    #[test]
    fn slow_clients_follow_the_others_and_each_has_the_rate() {
        let slow = |line| open_loop(&parse(line).expect("arguments"));
        let open = slow("load --connections 45 --slow 5 --slow-rate 200").expect("an open loop");
        assert_eq!((open.group, open.first, open.clients), (Group::Beside, 45, 5));
        assert_eq!([0, 1, 5, 9].map(|n| open.due(n)), [0, 1, 5, 9].map(|ms| ms * 1_000_000));
        let open = slow("load --connections 45 --rate 200 --burst 4").expect("an open loop");
        assert_eq!((open.group, open.first, open.clients), (Group::Main, 0, 45));
        assert!(slow("load --greedy 10").is_none());
    }

    #[test]
    fn slow_clients_are_beside_a_closed_loop_only() {
        for rest in
            ["--rate 9", "--greedy 9", "--requests 9", "--short", "--idle", "--fill", "--stalls"]
        {
            let refused = parse(&format!("load --slow 5 --slow-rate 200 {rest}"));
            let error = refused.err().unwrap_or_else(|| panic!("{rest} is taken")).to_string();
            assert!(error.contains("cannot be used with"), "{error}");
        }
    }

    #[test]
    fn slow_clients_and_their_rate_need_each_other() {
        for line in ["load --slow 5", "load --slow-rate 200"] {
            let error = parse(line).err().expect("refused").to_string();
            assert!(error.contains("required arguments were not provided"), "{error}");
        }
    }

    #[test]
    fn rates_are_bounded() {
        let checked = |line| check(&parse(line).expect("arguments"));
        assert_eq!(checked("load --slow 5 --slow-rate 200"), Ok(()));
        for line in
            ["load --rate 0.5", "load --slow 5 --slow-rate 0", "load --slow 5 --slow-rate NaN"]
        {
            assert_eq!(checked(line), Err("--rate and --slow-rate must be 1 to 1e8".into()));
        }
    }
}
