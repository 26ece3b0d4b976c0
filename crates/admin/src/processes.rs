//! What the kernel tells of the instance's processes.
//!
//! It is read on request, from files that everybody may read. So it costs the processes nothing, and
//! is to be had though they have dropped their privileges. Where /proc is hidden there is nothing.

use std::fs;
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Pid, getpid, getppid};

use crate::source::Source;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Master,
    Worker {
        slot: u32,
    },
    Admin,
    Discovery,
    /// All in one, with `worker_processes: 0`.
    Single,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Worker { .. } => "worker",
            Self::Admin => "admin",
            Self::Discovery => "discovery",
            Self::Single => "single",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) role: Role,
    pub(crate) cpu: Duration,
    pub(crate) resident_bytes: u64,
    /// Since 1970. It is finer than a second: two processes may follow each other within one.
    pub(crate) started: Duration,
    /// `None` where the kernel does not tell.
    pub(crate) open_fds: Option<u64>,
    /// `None` is without limit.
    pub(crate) max_fds: Option<u64>,
}

pub(crate) fn processes(source: &Source) -> Vec<Process> {
    let own = id(getpid());
    if source.snapshot().global.worker_processes == 0 {
        return Process::read(own, Role::Single, None).into_iter().collect();
    }
    let Some(master) = getppid().map(id) else { return Vec::new() };
    let mut processes = Vec::from_iter(Process::read(master, Role::Master, None));
    for worker in source.workers() {
        source.beat();
        let role = Role::Worker { slot: worker.slot };
        // Another process may have got the number of one that has just died.
        processes.extend(Process::read(worker.header.pid, role, Some(master)));
    }
    processes.extend(Process::read(own, Role::Admin, None));
    if let Some(pid) = discovery(master) {
        processes.extend(Process::read(pid, Role::Discovery, Some(master)));
    }
    processes
}

fn id(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// Only the master knows it; others know its title.
fn discovery(master: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).ok()?;
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid: &u32| {
        let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        title.split(|&byte| byte == 0).nth(1) == Some(b"discovery")
    })
}

impl Process {
    /// `None` if it is gone, or not a child of this parent.
    fn read(pid: u32, role: Role, parent: Option<u32>) -> Option<Self> {
        let stat = Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        if parent.is_some_and(|parent| parent != stat.parent) {
            return None;
        }
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
        let ticks = clock_ticks_per_second();
        Some(Self {
            role,
            cpu: Duration::from_millis(stat.cpu_ticks * 1000 / ticks),
            resident_bytes: stat.resident_pages * page_size() as u64,
            started: booted()? + Duration::from_millis(stat.start_ticks * 1000 / ticks),
            open_fds: open_fds(pid),
            max_fds: max_fds(&limits),
        })
    }
}

/// Since 1970.
fn booted() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let secs = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    secs.map(Duration::from_secs)
}

/// Linux 6.2 and newer tell the number as a size. To count them takes a right that this process may not
/// have, and time.
fn open_fds(pid: u32) -> Option<u64> {
    let path = format!("/proc/{pid}/fd");
    match fs::metadata(&path).ok()?.len() {
        0 => Some(fs::read_dir(path).ok()?.count() as u64),
        count => Some(count),
    }
}

fn max_fds(limits: &str) -> Option<u64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    soft.split_whitespace().next()?.parse().ok()
}

/// Of /proc/PID/stat.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    cpu_ticks: u64,
    start_ticks: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name before may have anything in it.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // proc(5) counts from 1, and the pid and the name come first.
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Self {
            parent: u32::try_from(field(4)?).ok()?,
            cpu_ticks: field(14)? + field(15)?,
            start_ticks: field(22)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::unix_seconds;
    use crate::testing::{snapshot, source_of};

    #[test]
    fn a_name_with_spaces_and_brackets_confuses_nobody() {
        let text = "30092 (ca) S (w) S 30090 30092 30090 0 -1 4194304 590 0 0 0 73 21 0 0 20 0 2 0 \
                    138320 125489152 4760 18446744073709551615 9 9 9";
        let expected =
            Stat { parent: 30_090, cpu_ticks: 94, start_ticks: 138_320, resident_pages: 4760 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("1 (x) S 5 6"), None);
    }

    #[test]
    fn limits_may_be_none() {
        let line = |soft| format!("Max open files            {soft}   20000   files\n");
        assert_eq!(max_fds(&line("1024")), Some(1024));
        assert_eq!(max_fds(&line("unlimited")), None);
    }

    #[test]
    fn this_process_is_told_of() {
        let mut snapshot = snapshot(&[("a", &["x"])]);
        snapshot.global.worker_processes = 0;
        let (source, _) = source_of(snapshot, 1);
        let [own] = &processes(&source)[..] else { panic!("one") };
        let now = unix_seconds(std::time::SystemTime::now());
        assert_eq!(own.role, Role::Single);
        assert!((1_600_000_000..=now + 1).contains(&own.started.as_secs()));
        assert!(own.resident_bytes > 1 << 20 && own.open_fds.unwrap() >= 3);
        assert!(own.max_fds.is_none_or(|max| max >= own.open_fds.unwrap()));
    }

    #[test]
    fn who_is_not_a_child_of_the_master_is_not_told_of() {
        let (source, segments) = source_of(snapshot(&[("a", &["x"])]), 2);
        segments.writer(0).set_pid(1);
        segments.writer(1).set_pid(id(getpid()));
        let roles: Vec<Role> = processes(&source).into_iter().map(|it| it.role).collect();
        assert_eq!(roles, [Role::Master, Role::Worker { slot: 1 }, Role::Admin]);
    }
}
