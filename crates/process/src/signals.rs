//! Signals that are meant for the instance as a whole.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2};

/// Has a child leave to the master what an operator, a terminal or a service manager sends to all
/// processes of an instance at once: a child that ended by it would take its connections along. The
/// master's death, or its word, still ends it.
pub fn leave_signals_to_master() -> io::Result<()> {
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGTTIN, SIGTTOU] {
        // A handler, not a blocked signal, which `exec::release_signals` would let come.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}
