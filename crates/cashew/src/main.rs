//! The command line. The same executable is the master and, as a hidden subcommand, each of its
//! children.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod admin;
mod api;
mod arguments;
mod children;
mod daemon;
mod discover;
mod discovery;
mod doctor;
mod events;
mod health;
mod hot;
mod layout;
mod migrate;
mod migrate_keys;
mod operate;
mod output;
mod rehearse;
mod route;
mod run;
mod slowlog;
mod stats_port;
mod top;

use std::process::ExitCode;

use arguments::{Arguments, CommandArguments};

#[global_allocator]
static ALLOCATOR: cashew_process::memory::Allocator = cashew_process::memory::Allocator;

fn main() -> ExitCode {
    cashew_process::memory::map_large_buffers();
    if let Err(error) = cashew_process::survive_limit() {
        output::print_line(format_args!("cashew: a limit on file sizes would end it: {error}"));
    }
    let arguments = match Arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => return output::misuse(&error),
    };
    match arguments.command {
        Some(CommandArguments::Worker { slot, log }) => children::worker(slot, &log),
        Some(CommandArguments::Admin { log, started_at }) => children::admin(&log, started_at),
        Some(CommandArguments::Discovery { log }) => children::discovery(&log),
        Some(CommandArguments::Rehearse) => rehearse::rehearse(),
        Some(CommandArguments::Reload { instance, dry_run }) => operate::reload(&instance, dry_run),
        Some(CommandArguments::Upgrade { instance, binary }) => operate::upgrade(&instance, binary),
        Some(CommandArguments::Failover { instance, pool, first, second, force }) => {
            operate::fail_over(&instance, pool, (first, second), force)
        }
        Some(CommandArguments::Discover(arguments)) => discover::discover(&arguments),
        Some(CommandArguments::Drain { instance, delay }) => operate::drain(&instance, delay),
        Some(CommandArguments::Undrain { instance }) => operate::undrain(&instance),
        Some(CommandArguments::DrainServer(arguments)) => operate::drain_server(arguments),
        Some(CommandArguments::UndrainServer(arguments)) => operate::undrain_server(arguments),
        Some(CommandArguments::Weight { instance, pool, server, percent }) => {
            operate::weight(&instance, pool, server, percent)
        }
        Some(CommandArguments::Migrate(arguments)) => migrate::migrate(&arguments),
        Some(CommandArguments::Events(arguments)) => events::events(&arguments),
        Some(CommandArguments::Slowlog(arguments)) => slowlog::slowlog(&arguments),
        Some(CommandArguments::Hot(arguments)) => hot::hot(&arguments),
        Some(CommandArguments::LogLevel { instance, level }) => {
            operate::log_level(&instance, level)
        }
        Some(CommandArguments::Route(arguments)) => route::route(&arguments),
        Some(CommandArguments::Status { instance, json }) => operate::status(&instance, json),
        Some(CommandArguments::Health(arguments)) => health::health(&arguments),
        Some(CommandArguments::Doctor { instance, json }) => doctor::doctor(&instance, json),
        Some(CommandArguments::Top { instance, url, once }) => {
            top::top(&instance, url.as_deref(), once)
        }
        None if arguments.help || arguments.version || arguments.describe_stats => {
            output::about(&arguments)
        }
        None if arguments.test_conf => output::test_conf(&arguments.conf_file),
        None if arguments.daemonize && !arguments.report_on_stdin => daemon::start(),
        None => run::instance(arguments),
    }
}
