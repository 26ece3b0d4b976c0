//! Running an instance.

use std::cell::OnceCell;
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use cashew_config::snapshot::LogFormat;
use cashew_process::log;
use cashew_supervisor::{Options, TakeOver};
use tracing::{error, info, warn};

use crate::arguments::Arguments;
use crate::daemon::Report;
use crate::{children, output, rehearse};

pub(crate) fn instance(arguments: Arguments) -> ExitCode {
    if arguments.take_over {
        return take_over(arguments);
    }
    let told = match Told::new(&arguments) {
        Ok(told) => Rc::new(told),
        Err(error) => {
            output::print_line(format_args!("cashew: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let status = match run(arguments, &told) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            told.failed(&error.to_string());
            ExitCode::FAILURE
        }
    };
    log::flush();
    status
}

fn run(arguments: Arguments, told: &Rc<Told>) -> Result<(), Box<dyn Error>> {
    // Before there is anything secret.
    cashew_process::keep_memory_out_of_core_dumps();
    // Errors in the configuration belong in the log file, too.
    if let Some(path) = &arguments.output {
        told.log_to(path)?;
    }
    let command_line = arguments.command_line()?;
    let loaded = cashew_config::load(&arguments.conf_file)?;
    let global = &loaded.snapshot.global;
    match command_line.log_file(global) {
        Some(path) if !told.has_log_file() => told.log_to(path)?,
        Some(_) => {}
        None => told.has_no_log(),
    }
    let alone = global.worker_processes == 0;
    let name = if alone { "cashew" } else { "master" };
    log::init(name, command_line.log_level(global), global.log_format);
    info!("cashew-{} with {}", output::VERSION, arguments.conf_file.display());
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    // Clients are served here, too.
    if alone {
        children::write_log_aside();
    }
    let ready = Rc::clone(told);
    cashew_supervisor::run(Options {
        snapshot: loaded.snapshot,
        command_line,
        has_admin: true,
        spawn: if alone { children::spawn_threads() } else { children::spawn_processes() },
        program: rehearse::program(&arguments),
        conf_file: arguments.conf_file,
        standard_error: told.standard_error()?,
        pid_file: arguments.pid_file,
        on_ready: Box::new(move || ready.ready()),
    })?;
    Ok(())
}

/// Continues an instance that another program of this process began. Standard error is the log
/// already.
fn take_over(arguments: Arguments) -> ExitCode {
    // Level and format come with the handover.
    log::init("master", log::LEVEL_DEFAULT, LogFormat::Plain);
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
            command_line: arguments.command_line()?,
            conf_file: arguments.conf_file,
            spawn: children::spawn_processes(),
            pid_file: arguments.pid_file,
        },
    )?;
    Ok(())
}

/// Where the outcome of the start is reported, besides the log.
struct Told {
    /// Standard error from before a log file replaced it.
    terminal: OnceCell<OwnedFd>,
    starter: Option<Report>,
}

impl Told {
    fn new(arguments: &Arguments) -> io::Result<Self> {
        let starter = if arguments.report_on_stdin { Some(Report::take()?) } else { None };
        Ok(Self { terminal: OnceCell::new(), starter })
    }

    /// Replaces standard error by a log file.
    fn log_to(&self, path: &Path) -> Result<(), String> {
        let redirect = || {
            let file = log::open(path)?;
            let terminal = io::stderr().as_fd().try_clone_to_owned()?;
            log::redirect(file)?;
            self.terminal.set(terminal).expect("it is replaced once");
            Ok(())
        };
        redirect()
            .map_err(|error: io::Error| format!("cannot open log file {}: {error}", path.display()))
    }

    fn has_log_file(&self) -> bool {
        self.terminal.get().is_some()
    }

    /// Warns if there is no log in the background.
    fn has_no_log(&self) {
        if let Some(starter) = &self.starter {
            starter.note(
                "cashew: there is no log: running in the background needs --output, or \
                          log_file in the configuration, for one",
            );
        }
    }

    fn standard_error(&self) -> io::Result<Option<OwnedFd>> {
        self.terminal.get().map(OwnedFd::try_clone).transpose()
    }

    fn ready(&self) {
        if let Some(starter) = &self.starter {
            starter.ready();
        }
    }

    fn failed(&self, why: &str) {
        // For a failure before the log's destination is known.
        log::init("master", log::LEVEL_DEFAULT, LogFormat::Plain);
        error!("{why}");
        let why = format!("cashew: {why}");
        if let Some(terminal) = self.terminal.get() {
            // It may be closed by now, and the log has the line.
            let _ = rustix::io::write(terminal, format!("{why}\n").as_bytes());
        }
        if let Some(starter) = &self.starter {
            starter.failed(&why);
        }
    }
}
