//! Running an instance.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::rc::Rc;

use cashew_process::log;
use cashew_supervisor::{Options, TakeOver};
use tracing::{error, info, warn};

use crate::arguments::Arguments;
use crate::daemon::Report;
use crate::{children, rehearse, tell};

pub(crate) fn instance(arguments: Arguments) -> ExitCode {
    if arguments.take_over {
        return take_over(arguments);
    }
    let told = match Told::new(&arguments) {
        Ok(told) => Rc::new(told),
        Err(error) => {
            eprintln!("cashew: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(arguments, &told) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            told.failed(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments, told: &Rc<Told>) -> Result<(), Box<dyn Error>> {
    if let Some(path) = &arguments.output {
        let redirected = log::open(path).and_then(log::redirect);
        redirected.map_err(|error| format!("cannot open log file {}: {error}", path.display()))?;
    }
    let loaded = cashew_config::load(&arguments.conf_file)?;
    let alone = loaded.snapshot.global.worker_processes == 0;
    log::init(if alone { "cashew" } else { "master" }, arguments.verbose);
    info!("cashew-{} with {}", tell::VERSION, arguments.conf_file.display());
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    let stats = arguments.stats_address()?;
    let ready = Rc::clone(told);
    cashew_supervisor::run(Options {
        snapshot: loaded.snapshot,
        stats: Some(stats),
        spawn: if alone { children::spawn_threads() } else { children::spawn_processes() },
        program: rehearse::program(&arguments),
        conf_file: arguments.conf_file,
        log_level: arguments.verbose,
        log_file: arguments.output,
        pid_file: arguments.pid_file,
        on_ready: Box::new(move || ready.ready()),
    })?;
    Ok(())
}

/// Goes on as another program of this process began. Its standard error is the log already.
fn take_over(arguments: Arguments) -> ExitCode {
    log::init("master", arguments.verbose);
    match go_on(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn go_on(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    children::set_process_name()?;
    let input = children::take_stdin()?;
    cashew_supervisor::take_over(
        input,
        TakeOver {
            program: rehearse::program(&arguments),
            conf_file: arguments.conf_file,
            spawn: children::spawn_processes(),
            log_file: arguments.output,
            pid_file: arguments.pid_file,
        },
    )?;
    Ok(())
}

/// Who wants to know how the start goes, besides the log.
struct Told {
    /// Standard error as it was before a log file took its place.
    terminal: Option<File>,
    starter: Option<Report>,
}

impl Told {
    fn new(arguments: &Arguments) -> io::Result<Self> {
        if arguments.report_on_stdin {
            return Ok(Self { terminal: None, starter: Some(Report::take()?) });
        }
        let terminal = match arguments.output {
            Some(_) => Some(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
            None => None,
        };
        Ok(Self { terminal, starter: None })
    }

    fn ready(&self) {
        if let Some(starter) = &self.starter {
            starter.ready();
        }
    }

    fn failed(&self, why: &str) {
        // For a failure before it was known whose log this is.
        log::init("master", log::LEVEL_DEFAULT);
        error!("{why}");
        let why = format!("cashew: {why}");
        if let Some(mut terminal) = self.terminal.as_ref() {
            // It may be closed by now, and the log has it.
            let _ = writeln!(terminal, "{why}");
        }
        if let Some(starter) = &self.starter {
            starter.failed(&why);
        }
    }
}
