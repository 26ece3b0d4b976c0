//! Rehearses a take-over: a master runs this before it becomes this program.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, fs};

use cashew_control::Epoch;
use cashew_engine::{Engine, Identity, Plan, PoolState, Setup, Time};
use cashew_metrics::{Layout, Segments};
use cashew_supervisor::{Program, Verdict};

use crate::arguments::Arguments;
use crate::output::VERSION;

/// Prints the verdict on standard output.
pub(crate) fn rehearse() -> ExitCode {
    let verdict = match go_through() {
        Ok(notes) => Verdict { ready: true, notes, ..Verdict::default() },
        Err(error) => Verdict { why: Some(error.to_string()), ..Verdict::default() },
    };
    let verdict = Verdict { version: VERSION.into(), ..verdict };
    let line = serde_json::to_string(&verdict).expect("a verdict has no failing serializer");
    match writeln!(io::stdout(), "{line}") {
        Ok(()) if verdict.ready => ExitCode::SUCCESS,
        Ok(()) | Err(_) => ExitCode::FAILURE,
    }
}

fn go_through() -> Result<Vec<String>, Box<dyn Error>> {
    let rehearsal = cashew_supervisor::rehearse(io::stdin().as_fd())?;
    // What a worker does with it, except for connections.
    let Epoch { snapshot, pools, .. } = rehearsal.epoch;
    let state = |state: &cashew_control::PoolState| PoolState {
        quota: state.quota,
        ring_version: state.ring_version,
        topology: state.topology.clone(),
    };
    let states: Vec<PoolState> = pools.iter().map(state).collect();
    let segments = Segments::in_memory(&Layout::new(&snapshot), 1);
    let engine = Engine::new(Setup {
        plan: Plan::new(&snapshot, &states, 0, snapshot.global.worker_processes),
        metrics: Arc::new(segments).writer(0),
        seed: 0,
        slot: 0,
        identity: Identity { version: VERSION, process_id: std::process::id() },
        now: Time::default(),
    });
    drop(engine);
    Ok(rehearsal.notes)
}

/// The arguments by which this program and the next one are run.
pub(crate) fn program(arguments: &Arguments) -> Program {
    let take_over = || OsString::from("--take-over");
    Program {
        path: path_of(env::args_os().next().unwrap_or_default().as_ref()),
        argv: env::args_os().filter(|argument| *argument != take_over()).collect(),
        test: vec!["--test-conf".into(), "--conf-file".into(), arguments.conf_file.clone().into()],
        rehearse: vec!["rehearse".into()],
        take_over: vec![take_over()],
        version: VERSION.into(),
    }
}

/// The path by which the program was called: a symbolic link may point to the next version by now.
/// If that cannot be found, the path of the executable.
fn path_of(name: &Path) -> PathBuf {
    let running = fs::read_link("/proc/self/exe").unwrap_or_default();
    let candidates = match name.components().count() {
        1 if !name.has_root() => env::var_os("PATH").map_or_else(Vec::new, |path| {
            env::split_paths(&path).map(|directory| directory.join(name)).collect()
        }),
        _ => vec![name.to_owned()],
    };
    let absolute = |path: PathBuf| std::path::absolute(path).ok();
    let is_running = |path: &PathBuf| fs::canonicalize(path).is_ok_and(|path| path == running);
    candidates.into_iter().filter_map(absolute).find(is_running).unwrap_or(running)
}
