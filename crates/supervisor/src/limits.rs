//! Limits of open files. The master's limit differs from that of its children: it may hold the
//! moving sessions of all of them.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use tracing::{info, warn};

/// The master's own limit, if allowed: more than it ever holds.
const OWN_MAX: u64 = 1 << 16;

#[derive(Debug)]
pub(crate) struct OpenFiles {
    children: Rlimit,
    /// The children are processes, with their own limit.
    is_apart: bool,
}

impl OpenFiles {
    /// Children get the limit that this process has now.
    pub(crate) fn new(is_apart: bool) -> Self {
        Self { children: getrlimit(Resource::Nofile), is_apart }
    }

    /// The limit of this process.
    pub(crate) fn limit() -> u64 {
        getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
    }

    /// Raises the limit of children started from now on, as near to the wanted one as the system
    /// allows.
    pub(crate) fn want(&mut self, wanted: u64) {
        self.restore();
        raise(wanted);
        self.children = getrlimit(Resource::Nofile);
        self.raise_own();
    }

    /// Raises the master's own limit as far as possible.
    pub(crate) fn raise_own(&self) {
        let Rlimit { current, maximum } = self.children;
        let (Some(children), true) = (current, self.is_apart) else { return };
        let own = OWN_MAX.min(maximum.unwrap_or(OWN_MAX));
        if own > children
            && let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: Some(own), maximum })
        {
            warn!("the master stays at {children} files: {errno}");
        }
    }

    /// Resets the limit of this process to that of the children, for the next program, which takes
    /// it for that.
    pub(crate) fn restore(&self) {
        if let Err(errno) = setrlimit(Resource::Nofile, self.children) {
            warn!("cannot set the limit of open files back: {errno}");
        }
    }

    /// Sets the limit of a child that has not been sent anything yet: it has inherited the
    /// master's.
    pub(crate) fn give(&self, child: Pid) {
        if let Err(errno) = prlimit(Some(child), Resource::Nofile, self.children) {
            warn!("process {child} keeps the master's limit of open files: {errno}");
        }
    }
}

/// The number of open descriptors of this process.
pub(crate) fn open_files() -> usize {
    // One descriptor is that of the directory itself.
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

fn raise(wanted: u64) {
    let before = getrlimit(Resource::Nofile);
    // Only root may exceed the hard limit, and nobody the kernel's.
    let kernel_max = fs::read_to_string("/proc/sys/fs/nr_open")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(wanted);
    for limit in [wanted, wanted.min(kernel_max), wanted.min(before.maximum.unwrap_or(u64::MAX))] {
        let maximum = before.maximum.map(|maximum| maximum.max(limit));
        if setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).is_ok() {
            if limit < wanted {
                warn!("each process may open {limit} files, not the {wanted} of max_openfiles");
            } else {
                info!("each process may open {limit} files");
            }
            return;
        }
    }
    warn!("cannot set the limit of open files to {wanted}, it stays {:?}", before.current);
}
