//! Destination and level of the instance's log.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use cashew_config::snapshot::{Global, LogFormat};
use cashew_control::ToChild;
use cashew_metrics::EventKind;
use cashew_process::log;
use tracing::{error, info};

use super::Master;
use crate::audited::{Principal, audited};
use crate::command::{Command, Nobody, Reply};
use crate::state::{Pack, Place, Unpack};

pub(super) struct Log {
    /// Level of this process and of the children. It is changed by signals and operators, and by a configuration
    /// that has another one than the one before.
    level: u8,
    /// Standard error as it was at the start, for when there is no log file any more.
    standard_error: Rc<OwnedFd>,
}

/// The log's destination after a change, opened already.
pub(super) struct Destination(Rc<OwnedFd>);

impl Log {
    /// `standard_error` is the current one if nothing is known about the start.
    pub(super) fn new(level: u8, standard_error: Option<OwnedFd>) -> io::Result<Self> {
        let now = || io::stderr().as_fd().try_clone_to_owned();
        let standard_error = Rc::new(standard_error.map_or_else(now, Ok)?);
        Ok(Self { level, standard_error })
    }

    /// Continues from another program.
    pub(super) fn resume(
        (level, format): (u8, LogFormat),
        standard_error: Option<Place>,
        descriptors: &Unpack,
    ) -> Result<Self, String> {
        let standard_error = standard_error.map(|place| descriptors.copy(place)).transpose()?;
        log::set_level(level);
        log::set_format(format);
        Self::new(level, standard_error).map_err(|error| error.to_string())
    }

    pub(super) fn level(&self) -> u8 {
        self.level
    }

    /// For the next program.
    pub(super) fn state(&self, pack: &mut Pack) -> Place {
        pack.put(&self.standard_error)
    }
}

impl Master {
    pub(super) fn log_more(&mut self, now: Instant) {
        self.level_by_signal("SIGTTIN", self.log.level.saturating_add(1), now);
    }

    pub(super) fn log_less(&mut self, now: Instant) {
        self.level_by_signal("SIGTTOU", self.log.level.saturating_sub(1), now);
    }

    fn level_by_signal(&mut self, name: &str, level: u8, now: Instant) {
        let command = Command::LogLevel { level: level.min(log::LEVEL_MAX) };
        let (audit, asker) = (self.shared.audit(), Principal::signal(name));
        let reply = audited(audit, asker, &command, Box::new(Nobody));
        self.change_level(name, level, now);
        reply.done();
    }

    fn change_level(&mut self, signal: &str, level: u8, now: Instant) {
        let level = level.min(log::LEVEL_MAX);
        self.set_level(level, now);
        info!(kind = EventKind::LogLevel.name(), "{signal}: log level is {level}");
    }

    /// For an operator.
    pub(super) fn order_level(&mut self, level: u8, mut reply: Box<dyn Reply>, now: Instant) {
        let is_same = self.log.level == level;
        if !is_same {
            self.change_level("an operator's order", level, now);
        }
        reply.line(&format!("log level is {}", self.log.level));
        if is_same {
            return reply.unchanged();
        }
        reply.done();
    }

    fn set_level(&mut self, level: u8, now: Instant) {
        self.log.level = level;
        log::set_level(level);
        self.post_all(&ToChild::LogLevel { level }, &[], now);
    }

    /// The destination in the next configuration, unless the log goes there already.
    pub(super) fn open_log(&self, next: &Global) -> Result<Option<Destination>, String> {
        if next.log_file == self.current.snapshot.global.log_file {
            return Ok(None);
        }
        let Some(path) = &next.log_file else {
            return Ok(Some(Destination(Rc::clone(&self.log.standard_error))));
        };
        let file = log::open(path).map_err(|error| cannot_open(path, &error))?;
        Ok(Some(Destination(Rc::new(file.into()))))
    }

    /// Applies a new configuration to the log.
    pub(super) fn follow_log(
        &mut self,
        before: &Global,
        destination: Option<Destination>,
        now: Instant,
    ) {
        let global = &self.current.snapshot.global;
        let level = global.log_level();
        let is_new_level = level != before.log_level();
        let format = global.log_format;
        if let Some(Destination(fd)) = destination {
            let place = |global: &Global| match &global.log_file {
                Some(path) => path.display().to_string(),
                None => "standard error".to_owned(),
            };
            let (from, to) = (place(before), place(global));
            info!("the log continues in {to}");
            match redirect(&fd) {
                Ok(fd) => {
                    info!(kind = EventKind::LogReopened.name(), "the log continues from {from}");
                    self.post_all(&ToChild::LogReopen, &[fd], now);
                }
                Err(error) => error!("the log stays where it is: {error}"),
            }
        }
        // Children read it in the configuration.
        log::set_format(format);
        if is_new_level {
            self.set_level(level, now);
        }
    }

    pub(super) fn reopen_log(&mut self, now: Instant) {
        let Some(path) = &self.current.snapshot.global.log_file else {
            let global = &self.current.snapshot.global;
            if global.access_log.is_none() && global.audit_log.is_none() {
                return info!("the log is standard error, there is nothing to reopen");
            }
            // The log stays. The admin process opens its own files anew.
            match io::stderr().as_fd().try_clone_to_owned() {
                Ok(stderr) => self.post_all(&ToChild::LogReopen, &[Rc::new(stderr)], now),
                Err(error) => error!("the other logs cannot be reopened: {error}"),
            }
            return info!("the access log and the audit log are reopened");
        };
        let file = match log::open(path).and_then(redirect) {
            Ok(file) => file,
            Err(error) => return error!("{}", cannot_open(path, &error)),
        };
        info!(kind = EventKind::LogReopened.name(), "log file is reopened");
        self.post_all(&ToChild::LogReopen, &[file], now);
    }
}

/// Redirects the log, and returns the file for the children: they may lack the rights for the copy
/// that `log` opens to avoid blocking.
fn redirect(file: impl AsFd) -> io::Result<Rc<OwnedFd>> {
    log::redirect(file)?;
    Ok(Rc::new(io::stderr().as_fd().try_clone_to_owned()?))
}

fn cannot_open(path: &Path, error: &io::Error) -> String {
    format!("cannot open log file {}: {error}", path.display())
}
