//! How many descriptors a process may have. Children inherit it.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// Raises the limit to what is wanted, or as near to it as the system allows.
pub(crate) fn raise_open_files(wanted: u64) {
    let before = getrlimit(Resource::Nofile);
    // Only root may go above the hard limit, and nobody above the kernel's.
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
