//! Command-line arguments: nutcracker's options with its defaults, and cashew's commands.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};

use cashew_api::{EVERY_DEFAULT, EVERY_MAX, STEPS_DEFAULT, STEPS_MAX};
use cashew_config::snapshot::LogFormat;
use cashew_process::log;
use cashew_supervisor::{CommandLine, DRAIN_MAX_SECONDS};

/// A gateway in front of Redis and memcached
///
/// Cashew shards, multiplexes and replicates behind one address. It reads the configuration files
/// of twemproxy (nutcracker) and of its multi-process forks unchanged, and understands their
/// options.
#[derive(Debug, Parser)]
#[command(
    name = "cashew",
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    infer_long_args = true,
    override_usage = "cashew [OPTIONS]\n       cashew <COMMAND> [OPTIONS]",
    after_help = SIGNALS
)]
pub(crate) struct Arguments {
    /// Print this help and exit
    #[arg(short, long, short_alias = '?', action = ArgAction::SetTrue)]
    pub(crate) help: bool,

    /// Print the version and exit
    #[arg(short = 'V', long, action = ArgAction::SetTrue)]
    pub(crate) version: bool,

    /// Test the configuration file and exit: with 0 if it is valid, else with 1
    #[arg(short, long)]
    pub(crate) test_conf: bool,

    /// Run in the background; return when the instance serves, or has failed to start
    #[arg(short, long)]
    pub(crate) daemonize: bool,

    /// Describe the statistics and exit
    #[arg(short = 'D', long)]
    pub(crate) describe_stats: bool,

    /// Log level: 0-3 errors, 4 warnings, 5-6 information, 7 debugging, 8-11 everything. Overrides
    /// `log_level` of the configuration [default: 5]
    #[arg(short, long, value_name = "N", value_parser = level)]
    verbose: Option<u8>,

    /// Log to a file instead of standard error. Overrides `log_file` of the configuration
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = CONF_FILE)]
    pub(crate) conf_file: PathBuf,

    /// Port of the statistics: JSON on a plain connection, JSON and Prometheus over HTTP [default:
    /// that of `stats_listen` in the configuration, or 22222]
    #[arg(short, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    stats_port: Option<u16>,

    /// Address of the statistics [default: that of `stats_listen` in the configuration, or 0.0.0.0]
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    stats_addr: Option<String>,

    /// Accepted for compatibility with nutcracker, in ms; statistics are always up to date
    #[arg(short = 'i', long, value_name = "MS", default_value_t = 30_000)]
    stats_interval: u64,

    /// Write the master's process id to a file once the instance serves
    #[arg(short, long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,

    /// Accepted for compatibility with nutcracker, 512 to 16777216; buffers size themselves
    #[arg(short, long, value_name = "BYTES", default_value_t = 16_384,
          value_parser = RangedU64ValueParser::<u64>::new().range(512..=16_777_216))]
    mbuf_size: u64,

    /// Set by `--daemonize` for the process it starts: standard input is a pipe for the outcome of
    /// the start.
    #[arg(long, hide = true)]
    pub(crate) report_on_stdin: bool,

    /// Set by a master for the program that it becomes: standard input has the handover. Other
    /// versions pass it too, so it must not change.
    #[arg(long, hide = true)]
    pub(crate) take_over: bool,

    #[command(subcommand)]
    pub(crate) command: Option<CommandArguments>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CommandArguments {
    /// Load the configuration file again and put it into effect
    Reload {
        #[command(flatten)]
        instance: InstanceArguments,
        /// Only print what would change, and the share of keys that would move
        #[arg(long)]
        dry_run: bool,
    },
    /// Replace the running program by another executable and keep the connections
    Upgrade {
        #[command(flatten)]
        instance: InstanceArguments,
        /// The executable [default: the file now at the path that the instance was started from]
        #[arg(long, value_name = "PATH")]
        binary: Option<PathBuf>,
    },
    /// Have another server of a group take the writes, which has the data already
    #[command(override_usage = "cashew failover [OPTIONS] POOL [GROUP] SERVER")]
    Failover {
        #[command(flatten)]
        instance: InstanceArguments,
        /// The pool: one that has a master and its replicas, or groups with replicas
        #[arg(value_name = "POOL")]
        pool: String,
        /// The group, if the pool has several; else the server
        #[arg(value_name = "GROUP")]
        first: String,
        /// The server, by its name or address; it has been promoted, as by REPLICAOF NO ONE
        #[arg(value_name = "SERVER")]
        second: Option<String>,
        /// Do not ask the server whether it is a master
        #[arg(long)]
        force: bool,
    },
    /// Stop the instance when load balancers and clients have had time to notice: until then it serves,
    /// and says that it is not ready. Returns when it accepts no more
    Drain {
        #[command(flatten)]
        instance: InstanceArguments,
        /// How long that is [default: `drain_delay` of the configuration, or 10 if that is 0]
        #[arg(long, value_name = "SECONDS",
              value_parser = RangedU64ValueParser::<u64>::new().range(0..=DRAIN_MAX_SECONDS))]
        delay: Option<u64>,
    },
    /// Take a drain back: the instance is ready again, and stays
    Undrain {
        #[command(flatten)]
        instance: InstanceArguments,
    },
    /// Take the keys of a server away in steps, until it has none and gets no requests. Returns when that is so
    #[command(override_usage = "cashew drain-server [OPTIONS] POOL SERVER")]
    DrainServer(ServerDrainArguments),
    /// Give a server that is drained its keys again, in steps
    #[command(override_usage = "cashew undrain-server [OPTIONS] POOL SERVER")]
    UndrainServer(ServerDrainArguments),
    /// Have a server have a share of its keys, at once: 0 drains it, 100 gives it all of them
    #[command(override_usage = "cashew weight [OPTIONS] POOL SERVER PERCENT")]
    Weight {
        #[command(flatten)]
        instance: InstanceArguments,
        /// The pool
        #[arg(value_name = "POOL")]
        pool: String,
        /// The server, by its name or address
        #[arg(value_name = "SERVER")]
        server: String,
        /// Of the keys that it has by its weight in the configuration
        #[arg(value_name = "PERCENT", value_parser = RangedU64ValueParser::<u16>::new().range(0..=100))]
        percent: u16,
    },
    /// Print the status of the running instance
    Status {
        #[command(flatten)]
        instance: InstanceArguments,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask a port of clients whether the instance serves them: exit with 0 if it answers, else with 1
    Health(HealthArguments),
    /// Look for what is wrong, or will be: in the file, on this machine, with the servers, with the
    /// instance if it runs
    #[command(after_help = DOCTOR)]
    Doctor {
        #[command(flatten)]
        instance: InstanceArguments,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask the source of a pool, as `servers_from` says, which servers there are now
    #[command(override_usage = "cashew discover [OPTIONS] POOL")]
    Discover(DiscoverArguments),
    /// Copy one pool to another while clients go on, and have the other one serve
    #[command(after_help = MIGRATE)]
    Migrate(MigrateArguments),
    /// Print what has changed lately: servers, primaries, configurations, processes
    Events(EventsArguments),
    /// Print the slowest requests of late, and where their time went
    Slowlog(SlowlogArguments),
    /// Print which keys are asked for most, or are the largest
    Hot(HotArguments),
    /// Log more or less from now on, in all processes of the running instance
    LogLevel {
        #[command(flatten)]
        instance: InstanceArguments,
        /// error, warn, info, debug or trace, or a number as of --verbose
        #[arg(value_name = "LEVEL", value_parser = level_or_name)]
        level: u8,
    },
    /// Show live what the running instance does: pools, servers, workers, latencies
    Top {
        #[command(flatten)]
        instance: InstanceArguments,
        /// The statistics of an instance elsewhere, such as `http://gateway-1:22222`
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        /// Print everything once, as plain text
        #[arg(long)]
        once: bool,
    },
    /// Print where keys live: by the file, and by the primaries of the instance if it runs
    #[command(override_usage = "cashew route [OPTIONS] KEY...")]
    Route(RouteArguments),
    /// Started by the master, as is the admin. Standard input is the control channel.
    #[command(hide = true)]
    Worker {
        #[arg(long)]
        slot: u32,
        #[command(flatten)]
        log: LogArguments,
    },
    #[command(hide = true)]
    Admin {
        #[command(flatten)]
        log: LogArguments,
        /// The instance's start, in seconds since 1970; this admin process may be a replacement.
        #[arg(long)]
        started_at: u64,
    },
    #[command(hide = true)]
    Discovery {
        #[command(flatten)]
        log: LogArguments,
    },
    /// Run by a master before it becomes this program. Other versions run it too, so it must not
    /// change.
    #[command(hide = true)]
    Rehearse,
}

/// What a child logs, and how.
#[derive(Args, Debug)]
pub(crate) struct LogArguments {
    #[arg(long)]
    pub(crate) log_level: u8,
    #[arg(long, value_parser = log_format)]
    pub(crate) log_format: LogFormat,
}

#[derive(Args, Debug)]
pub(crate) struct HealthArguments {
    /// The configuration file that the instance was started with
    #[arg(short, long, value_name = "FILE", default_value = CONF_FILE)]
    pub(crate) conf_file: PathBuf,
    /// The pool or route that is asked [default: that with the shortest name, of those with a port
    /// without TLS]
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    /// How long an answer may take
    #[arg(long, value_name = "MS", default_value_t = 500,
          value_parser = RangedU64ValueParser::<u64>::new().range(10..=60_000))]
    timeout: u64,
    /// Go on asking, and keep 0 in this file while it serves and 1 while it does not, as keepalived's `track_file` wants
    #[arg(long, value_name = "PATH")]
    pub(crate) track: Option<PathBuf>,
    /// With --track: time from one question to the next. What it says changes after 2 answers that are missing, and after
    /// 3 that come
    #[arg(long, value_name = "MS", default_value_t = 100,
          value_parser = RangedU64ValueParser::<u64>::new().range(10..=60_000))]
    interval: u64,
    /// Print this help and exit
    #[arg(short, long, short_alias = '?', action = ArgAction::Help)]
    help: Option<bool>,
}

impl HealthArguments {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout)
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval)
    }
}

#[derive(Args, Debug)]
pub(crate) struct ServerDrainArguments {
    #[command(flatten)]
    pub(crate) instance: InstanceArguments,
    /// The pool
    #[arg(value_name = "POOL")]
    pub(crate) pool: String,
    /// The server, by its name or address
    #[arg(value_name = "SERVER")]
    pub(crate) server: String,
    /// In how many steps; each takes keys from this server alone. Without `ketama` it is one
    #[arg(long, value_name = "N", default_value_t = STEPS_DEFAULT,
          value_parser = RangedU64ValueParser::<u16>::new().range(1..=u64::from(STEPS_MAX)))]
    pub(crate) steps: u16,
    /// From each step to the next
    #[arg(long, value_name = "SECONDS", default_value_t = EVERY_DEFAULT,
          value_parser = RangedU64ValueParser::<u64>::new().range(1..=EVERY_MAX))]
    pub(crate) every: u64,
}

#[derive(Args, Debug)]
pub(crate) struct DiscoverArguments {
    #[command(flatten)]
    pub(crate) instance: InstanceArguments,
    /// The pool
    #[arg(value_name = "POOL")]
    pub(crate) pool: String,
    /// Print JSON, an object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct MigrateArguments {
    #[command(flatten)]
    pub(crate) instance: InstanceArguments,
    /// status, start, pause, resume, verify, cut-over, roll-back or keys
    #[arg(value_name = "ACTION", value_enum)]
    pub(crate) action: MigrateAction,
    /// The route whose `migrate` node it is about, if there are several. With keys: a file with a key on each line, or -
    #[arg(value_name = "ROUTE|FILE")]
    pub(crate) route: Option<String>,
    /// With status: print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// With status: go on until nothing is left to copy or to compare
    #[arg(long)]
    pub(crate) watch: bool,
    /// With start: remove what the other pool has. With keys: replace what it has by their names
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// With cut-over and roll-back: leave keys behind that are not where their names place them
    #[arg(long)]
    pub(crate) ignore_misplaced: bool,
    /// With start: also if servers of the other pool evict keys for lack of memory, which are missing then
    #[arg(long)]
    pub(crate) evicting_target: bool,
    /// With keys: the pool that they are in
    #[arg(long, value_name = "POOL")]
    pub(crate) from: Option<String>,
    /// With keys: the pool that they are to be in
    #[arg(long, value_name = "POOL")]
    pub(crate) to: Option<String>,
    /// With keys: from --to to --from
    #[arg(long)]
    pub(crate) back: bool,
    /// With keys: the route that lists them, if several list keys
    #[arg(long, value_name = "ROUTE")]
    pub(crate) listener: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MigrateAction {
    Status,
    Start,
    Pause,
    Resume,
    Verify,
    CutOver,
    RollBack,
    Keys,
}

#[derive(Args, Debug)]
pub(crate) struct EventsArguments {
    #[command(flatten)]
    pub(crate) instance: InstanceArguments,
    /// Print JSON, an object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Go on, and print events as they come
    #[arg(long)]
    pub(crate) follow: bool,
    /// Only events with higher numbers, which --json shows
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) since: u64,
    /// Only events of this kind
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct SlowlogArguments {
    #[command(flatten)]
    pub(crate) instance: InstanceArguments,
    /// How many requests to print, of the newest; 512 are kept
    #[arg(short = 'n', long = "number", value_name = "N", default_value_t = 20,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=512))]
    pub(crate) number: usize,
    /// Only requests of clients of this pool or route
    #[arg(long, value_name = "POOL")]
    pub(crate) pool: Option<String>,
    /// Go on, and print slow requests as they come
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct HotArguments {
    #[command(flatten)]
    pub(crate) instance: InstanceArguments,
    /// What makes a key hot: requests, bytes, time (of its servers), or size (of its value)
    #[arg(long, value_name = "WHAT", default_value = "requests",
          value_parser = ["requests", "bytes", "time", "size"])]
    pub(crate) by: String,
    /// Only keys of this pool
    #[arg(long, value_name = "POOL")]
    pub(crate) pool: Option<String>,
    /// Only keys of this server
    #[arg(long, value_name = "SERVER")]
    pub(crate) server: Option<String>,
    /// How many keys of each pool to print
    #[arg(short = 'n', long = "number", value_name = "N", default_value_t = 10,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=100))]
    pub(crate) number: usize,
    /// Print JSON, an object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Go on, and print them again every second
    #[arg(long)]
    pub(crate) watch: bool,
    /// Do something about the key: `cache` has nodes with `hot_only` keep replies to reads of it, `split` has reads of it
    /// go to copies on other servers, `move` has it go to another pool
    #[arg(long = "do", value_name = "WHAT", value_parser = ["cache", "split", "move"], requires = "key",
          conflicts_with_all = ["undo", "by", "server", "number", "json", "watch"])]
    pub(crate) action: Option<String>,
    /// The pool that the key goes to, for `--do move` [default: that of the rule]
    #[arg(long, value_name = "POOL", requires = "action")]
    pub(crate) to: Option<String>,
    /// Over how many servers the key is split, its own among them, for `--do split` [default: as the rule says, or 4]
    #[arg(long, value_name = "N", requires = "action", value_parser = RangedU64ValueParser::<u8>::new().range(2..=16))]
    pub(crate) copies: Option<u8>,
    /// Take back what is done about the key
    #[arg(long, requires = "key", conflicts_with_all = ["by", "server", "number", "json", "watch"])]
    pub(crate) undo: bool,
    /// The key, for --do and --undo: as it is printed, with `\\x00` for a byte and `\\\\` for a backslash
    #[arg(value_name = "KEY")]
    pub(crate) key: Option<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct RouteArguments {
    #[command(flatten)]
    pub(crate) instance: InstanceArguments,
    /// Only this pool or route [default: each that clients connect to]
    #[arg(long, value_name = "NAME", visible_alias = "listener")]
    pub(crate) pool: Option<String>,
    /// What is done with the key, as in `--command DEL` [default: reads, writes and deletions]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// Show where keys go while this server, by its name or address, does not answer
    #[arg(long, value_name = "SERVER=down")]
    pub(crate) as_if: Vec<String>,
    /// Show what would move if this were the configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Keys; `-` reads them from standard input, one a line
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<String>,
}

/// Selects the instance.
#[derive(Args, Debug)]
pub(crate) struct InstanceArguments {
    /// The configuration file that the instance was started with
    #[arg(short, long, value_name = "FILE", default_value = CONF_FILE)]
    pub(crate) conf_file: PathBuf,

    /// The instance's control socket, if the configuration file does not set it
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,

    /// Ask an instance elsewhere, by its control API, such as `http://gateway-1:22222`
    #[arg(long, value_name = "URL", conflicts_with = "control")]
    pub(crate) api: Option<String>,

    /// With --api: a file with the token [default: what CASHEW_STATS_TOKEN has]
    #[arg(long, value_name = "FILE", requires = "api")]
    pub(crate) token_file: Option<PathBuf>,

    /// Print this help and exit
    #[arg(short, long, short_alias = '?', action = ArgAction::Help)]
    help: Option<bool>,
}

const CONF_FILE: &str = "conf/nutcracker.yml";

const MIGRATE: &str = "\
  status     how far it is, and how fast
  start      begin to copy
  pause      copy nothing for now
  resume     go on
  verify     compare all keys of both pools
  cut-over   have the other pool serve; clients wait for a moment
  roll-back  have the former pool serve again, with all that was written since
  keys       carry single keys to another pool, and list them in the file of a `keys` node
The pools are those of a `migrate` node that has a `directory`.";

const DOCTOR: &str = "\
Each server is asked how it is, with the pool's own credentials; it takes some seconds at most.
Exit status: 0 nothing is found but notes, 1 warnings, 2 errors, 3 it could not look.";

const SIGNALS: &str = "\
Signals:
  TERM        Drain for drain_delay, then stop when what is in flight is answered; at once the
              second time
  INT         Stop at once
  HUP         Reopen the log file and read the configuration file again
  USR1        Reopen the log file
  USR2        Let what is now at the executable's path take over
  TTIN, TTOU  Log more, log less";

impl Arguments {
    pub(crate) fn parse() -> Result<Self, clap::Error> {
        Self::try_parse()
    }

    pub(crate) fn help() -> String {
        Self::command().render_help().to_string()
    }

    /// The flags that also exist in the configuration.
    pub(crate) fn command_line(&self) -> Result<CommandLine, String> {
        Ok(CommandLine {
            stats_host: self.stats_addr.as_deref().map(stats_host).transpose()?,
            stats_port: self.stats_port,
            log_file: self.output.clone(),
            log_level: self.verbose,
        })
    }
}

/// The first address of the name, with a meaningless port.
fn stats_host(text: &str) -> Result<SocketAddr, String> {
    let invalid = |why: &dyn std::fmt::Display| {
        format!("the statistics cannot listen on address '{text}': {why}")
    };
    let addresses = (text.trim_matches(['[', ']']), 0).to_socket_addrs();
    addresses.map_err(|error| invalid(&error))?.next().ok_or_else(|| invalid(&"it has none"))
}

/// Takes any number, as nutcracker does; larger ones mean the highest level.
fn level(text: &str) -> Result<u8, String> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits {
        return Err("it is not a number".into());
    }
    Ok(text.parse().map_or(log::LEVEL_MAX, |level: u8| level.min(log::LEVEL_MAX)))
}

fn level_or_name(text: &str) -> Result<u8, String> {
    match log::LEVEL_NAMES.iter().find(|(name, _)| *name == text) {
        Some(&(_, number)) => Ok(number),
        None => level(text).map_err(|_| "neither a number nor the name of a level".into()),
    }
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    let mut formats = [LogFormat::Plain, LogFormat::Json].into_iter();
    formats.find(|format| format.name() == text).ok_or_else(|| "there is no such format".into())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use std::path::Path;

    use cashew_config::snapshot::LOG_LEVEL;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_nutcracker() {
        let arguments = parse("").unwrap();
        assert_eq!(arguments.conf_file, Path::new("conf/nutcracker.yml"));
        assert_eq!(arguments.stats_interval, 30_000);
        let given = arguments.command_line().unwrap();
        assert_eq!((given.stats_host, given.stats_port), (None, None));
        assert_eq!((given.log_file, given.log_level), (None, None));
        assert_eq!(log::LEVEL_DEFAULT, LOG_LEVEL);
        assert_eq!(arguments.mbuf_size, 16_384);
        assert_eq!((arguments.output, arguments.pid_file), (None, None));
        assert!(!arguments.daemonize && !arguments.test_conf);
    }

    #[test]
    fn all_options_of_nutcracker_are_understood() {
        let short = "-d -v 7 -o l -c f -s 1 -a ::1 -i 100 -p q -m 512";
        let long = "--daemonize --verbose=7 --output=l --conf-file=f --stats-port=1 \
            --stats-addr=::1 --stats-interval=100 --pid-file=q --mbuf-size=512";
        let attached = "-dv7 -ol -cf -s1 -a::1 -i100 -pq -m512";
        let shortened = "--daemon --verb 7 --out l --conf f --stats-p 1 --stats-a ::1 \
            --stats-i 100 --pid q --mbuf 512";
        for line in [short, long, attached, shortened] {
            let arguments = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(arguments.daemonize);
            assert_eq!(arguments.mbuf_size, 512);
            assert_eq!(arguments.conf_file, Path::new("f"));
            assert_eq!(arguments.pid_file.as_deref(), Some(Path::new("q")));
            let given = arguments.command_line().unwrap();
            assert_eq!(given.stats_host, Some("[::1]:0".parse().unwrap()));
            assert_eq!((given.stats_port, given.log_level), (Some(1), Some(7)));
            assert_eq!(given.log_file.as_deref(), Some(Path::new("l")));
        }
        assert!(parse("-h").unwrap().help && parse("-?").unwrap().help);
        assert!(parse("-V").unwrap().version && parse("--version").unwrap().version);
        assert!(parse("-D").unwrap().describe_stats && parse("-t").unwrap().test_conf);
    }

    #[test]
    fn the_last_of_several_counts() {
        assert_eq!(parse("-s 1 -s 2").unwrap().stats_port, Some(2));
        assert!(parse("-t -t").unwrap().test_conf);
    }

    #[test]
    fn levels_beyond_the_last_are_the_last() {
        assert_eq!(parse("-v 0").unwrap().verbose, Some(0));
        assert_eq!(parse("-v 12").unwrap().verbose, Some(11));
        assert_eq!(parse("-v 99999999999").unwrap().verbose, Some(11));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "-Z",
            "-c",
            "-s 0",
            "-s 65536",
            "-s x",
            "-m 511",
            "-m 16777217",
            "-v x",
            "-v -1",
            "-v +1",
            "-i x",
            "-i -1",
            "extra",
            "--no-such-option",
            "worker",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("-a not..an..address").unwrap().command_line().is_err());
    }

    #[test]
    fn children_stay_hidden() {
        assert!(!Arguments::help().contains("worker --") && !Arguments::help().contains("admin"));
        assert!(!Arguments::help().contains("stdin") && !Arguments::help().contains("--take"));
        assert!(!Arguments::help().contains("rehearse"));
        let child = parse("worker --slot 3 --log-level 5 --log-format json").unwrap().command;
        let Some(CommandArguments::Worker { slot: 3, log }) = child else { panic!("{child:?}") };
        assert_eq!((log.log_level, log.log_format), (5, LogFormat::Json));
    }

    #[test]
    fn commands_for_a_running_instance() {
        let command = |line| parse(line).unwrap().command.unwrap();
        let CommandArguments::Reload { instance, dry_run: false } = command("reload") else {
            panic!()
        };
        assert_eq!((instance.conf_file, instance.control), (CONF_FILE.into(), None));
        let CommandArguments::Reload { instance, dry_run: true } =
            command("reload --dry-run -c f --control /s")
        else {
            panic!()
        };
        assert_eq!((instance.conf_file, instance.control), ("f".into(), Some("/s".into())));
        assert!(matches!(
            command("upgrade --conf=f --binary /b"),
            CommandArguments::Upgrade { binary: Some(_), .. }
        ));
        assert!(matches!(command("status --json"), CommandArguments::Status { json: true, .. }));
        let CommandArguments::Health(health) = command("health -c f --pool p --track /t") else {
            panic!()
        };
        assert_eq!((health.pool.as_deref(), health.track), (Some("p"), Some("/t".into())));
        assert!(parse("health --timeout 0").is_err() && parse("health --interval 1").is_err());
        assert!(matches!(command("doctor --json"), CommandArguments::Doctor { json: true, .. }));
        let CommandArguments::Events(events) = command("events --json --follow --since 7 -c f")
        else {
            panic!()
        };
        assert!(events.json && events.follow && events.since == 7 && events.kind.is_none());
        let CommandArguments::Slowlog(slow) = command("slowlog -n 5 --pool p --follow") else {
            panic!()
        };
        assert!(slow.number == 5 && slow.pool.as_deref() == Some("p") && slow.follow && !slow.json);
        let CommandArguments::Hot(hot) = command("hot --by size --server s --watch") else {
            panic!()
        };
        assert_eq!((hot.number, hot.by.as_str(), hot.server.as_deref()), (10, "size", Some("s")));
        let CommandArguments::Hot(hot) = command("hot --do cache --pool p user:1") else {
            panic!()
        };
        assert_eq!((hot.action.as_deref(), hot.undo), (Some("cache"), false));
        assert_eq!(hot.key.as_deref(), Some(OsStr::new("user:1")));
        for line in [
            "hot --do cache",
            "hot --do magic k",
            "hot --undo",
            "hot --do cache --undo k",
            "hot --undo --json k",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in ["hot --by luck", "hot -n 0", "hot -n 101", "slowlog -n 513", "slowlog x"] {
            assert!(parse(line).is_err(), "{line}");
        }
        for (text, number) in [("debug", 7), ("trace", 11), ("error", 3), ("4", 4), ("99", 11)] {
            let line = format!("log-level {text}");
            let command = parse(&line).unwrap().command;
            let Some(CommandArguments::LogLevel { level, .. }) = command else { panic!() };
            assert_eq!(level, number, "{text}");
        }
        assert!(parse("log-level loud").is_err() && parse("log-level").is_err());
        assert!(matches!(
            command("top --url http://a:1 --once"),
            CommandArguments::Top { url: Some(_), once: true, .. }
        ));
        for line in ["-c f reload", "reload -t", "reload now", "status --dry-run", "relaod"] {
            assert!(parse(line).is_err(), "{line}");
        }
        let CommandArguments::Migrate(it) = command("migrate cut-over main -c f") else { panic!() };
        assert_eq!((it.action, it.route.as_deref()), (MigrateAction::CutOver, Some("main")));
        let CommandArguments::Migrate(it) = command("migrate status --json --watch") else {
            panic!()
        };
        assert!(it.json && it.watch && !it.overwrite && it.route.is_none());
        assert!(parse("migrate").is_err() && parse("migrate sideways").is_err());
        for line in ["reload -h", "upgrade --help", "status -?"] {
            assert_eq!(parse(line).unwrap_err().kind(), clap::error::ErrorKind::DisplayHelp);
        }
        let help = Arguments::help();
        for command in ["reload", "upgrade", "status", "top"] {
            assert!(help.contains(&format!("\n  {command}")), "{help}");
        }
    }

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(std::iter::once("cashew").chain(line.split_whitespace()))
    }
}
