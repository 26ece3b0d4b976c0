//! What a process that serves gives up at its start: whoever takes it over by a fault of ours gets no further.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::unistd::geteuid;
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};

/// This process has given up what it can before its user is known.
static IS_HARDENED: AtomicBool = AtomicBool::new(false);

/// What root's process needs until it is another user's, and what a process that stays root's needs to go on with
/// files that belong to others.
const KEPT: CapabilitySet =
    CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::DAC_OVERRIDE);

/// System calls that no process of an instance needs once it serves, and attacks do. The others stay: libraries and
/// kernels find new ones.
const FORBIDDEN: &[libc::c_long] = &[
    // To run something else, or to look into other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // To change what the machine is like for everybody.
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mknodat,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Those that become another user.
const SETTLED: &[libc::c_long] = &[
    libc::SYS_capset,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
];

/// Gives up, for good: new privileges by whatever is run (`no_new_privs`), the capabilities that root has but for
/// those that are needed to become another user, all of the bounding set, and system calls that are of no use here
/// (they fail with EPERM). To be called before there are other threads.
///
/// # Errors
/// What could not be given up, and why; the rest is. Sandboxes that have no seccomp, and valgrind, are such places.
pub fn harden() -> Result<(), String> {
    let mut kept = Vec::new();
    let mut note = |what: &str, why: String| kept.push(format!("{what}: {why}"));
    if let Err(errno) = rustix::thread::set_no_new_privs(true) {
        note("new privileges", errno.to_string());
    }
    if geteuid().is_root() {
        if let Err(errno) = empty_bounding_set() {
            note("the bounding set of capabilities", errno.to_string());
        }
        if let Err(errno) = keep_capabilities(KEPT) {
            note("capabilities", errno.to_string());
        }
    }
    if let Err(why) = forbid(FORBIDDEN) {
        note("system calls", why);
    }
    IS_HARDENED.store(true, Relaxed);
    if kept.is_empty() { Ok(()) } else { Err(kept.join("; ")) }
}

/// Has the kernel leave all memory out of core dumps of this process and of those that it will start: keys of TLS,
/// passwords and clients' data are in it. Where that cannot be set, there are no dumps that could have it.
pub fn keep_memory_out_of_core_dumps() {
    let _ = std::fs::write("/proc/self/coredump_filter", "0");
}

/// Its user is what it will be: none of its threads becomes another one. If it is root, it keeps the right to files
/// that belong to others, and no other.
pub(crate) fn settle() {
    if !IS_HARDENED.load(Relaxed) {
        return;
    }
    // What could not be given up was told of at the start.
    if geteuid().is_root() {
        let _ = keep_capabilities(CapabilitySet::DAC_OVERRIDE);
    }
    let _ = forbid(SETTLED);
}

fn empty_bounding_set() -> rustix::io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        // Older kernels do not know the newest.
        if let Ok(true) = rustix::thread::capability_is_in_bounding_set(capability) {
            rustix::thread::remove_capability_from_bounding_set(capability)?;
        }
    }
    Ok(())
}

/// Of the calling thread.
fn keep_capabilities(wanted: CapabilitySet) -> rustix::io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    let kept = now.permitted & wanted;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

/// For all threads, also those to come.
fn forbid(calls: &[libc::c_long]) -> Result<(), String> {
    let rules: BTreeMap<i64, _> = calls.iter().map(|&call| (call, Vec::new())).collect();
    let architecture = std::env::consts::ARCH.try_into().map_err(describe)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture);
    let program: BpfProgram = filter.map_err(describe)?.try_into().map_err(describe)?;
    apply_filter_all_threads(&program).map_err(describe)
}

fn describe(error: impl std::fmt::Display) -> String {
    error.to_string()
}
