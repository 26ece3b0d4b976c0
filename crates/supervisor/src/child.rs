//! A child of the master: a process, or a thread when the instance is a single process.

use std::error::Error;
use std::fmt;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use cashew_metrics::{ChildKind, EventKind};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

use crate::notify::VARIABLES;

/// Runs a child until it is told to stop. The child's end of the control channel is its only input.
pub type Serve = fn(OwnedFd) -> Result<(), Box<dyn Error + Send + Sync>>;

/// How children are started.
pub enum Spawn {
    /// As processes. Returns the command for a role at a log level, given the instance's start
    /// time. The child's end of the control channel becomes its standard input.
    Processes(Box<dyn Fn(Role, u8, SystemTime) -> Command>),
    /// As threads of the master's process.
    Threads { worker: Serve, admin: Serve, discovery: Serve },
}

/// Workers sort first, by slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Worker {
        slot: u32,
    },
    Admin,
    /// Asks where the primaries of groups are.
    Discovery,
}

impl Role {
    /// Its slot, if it is a worker.
    pub(crate) fn slot(self) -> Option<u32> {
        match self {
            Self::Worker { slot } => Some(slot),
            Self::Admin | Self::Discovery => None,
        }
    }

    /// The kind of an event of which there is one for workers and one for the others.
    pub(crate) fn event(self, of_worker: EventKind, of_helper: EventKind) -> &'static str {
        if self.is_worker() { of_worker.name() } else { of_helper.name() }
    }

    pub(crate) fn is_worker(self) -> bool {
        matches!(self, Self::Worker { .. })
    }

    pub(crate) fn kind(self) -> ChildKind {
        match self {
            Self::Worker { .. } => ChildKind::Worker,
            Self::Admin => ChildKind::Admin,
            Self::Discovery => ChildKind::Discovery,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Child {
    Process {
        pid: Pid,
        pidfd: Rc<OwnedFd>,
    },
    /// The thread holds the other end of the pipe, which closes when the thread ends.
    Thread {
        handle: JoinHandle<Result<(), Box<dyn Error + Send + Sync>>>,
        pipe: PipeReader,
    },
}

/// How a child ended.
#[derive(Debug)]
pub(crate) enum Exit {
    Status(ExitStatus),
    /// Not known: another program, the master for a moment, has reaped the child.
    Unknown,
    Returned,
    Error(Box<dyn Error + Send + Sync>),
    Panicked,
}

impl Spawn {
    pub(crate) fn spawn(
        &self,
        role: Role,
        level: u8,
        started: SystemTime,
        control: OwnedFd,
    ) -> io::Result<Child> {
        match self {
            Self::Processes(command) => {
                let mut command = command(role, level, started);
                // A process group of its own: signals from the terminal, such as ^C, are for the
                // master alone.
                command.stdin(Stdio::from(control)).process_group(0);
                // These variables are for the master only.
                for variable in VARIABLES {
                    command.env_remove(variable);
                }
                spawn_process(command)
            }
            Self::Threads { worker, admin, discovery } => {
                let serve = match role {
                    Role::Worker { .. } => *worker,
                    Role::Admin => *admin,
                    Role::Discovery => *discovery,
                };
                spawn_thread(role, serve, control)
            }
        }
    }
}

fn spawn_process(mut command: Command) -> io::Result<Child> {
    let mut process = command.spawn()?;
    let pid = Pid::from_child(&process);
    // Not reaped yet, so the process id is still valid.
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Child::Process { pid, pidfd: Rc::new(pidfd) }),
        Err(errno) => {
            process.kill()?;
            process.wait()?;
            Err(errno.into())
        }
    }
}

fn spawn_thread(role: Role, serve: Serve, control: OwnedFd) -> io::Result<Child> {
    let (pipe, end) = io::pipe()?;
    let run = move || {
        let _end: PipeWriter = end;
        serve(control)
    };
    let handle = thread::Builder::new().name(role.to_string()).spawn(run)?;
    Ok(Child::Thread { handle, pipe })
}

impl Child {
    /// A child of this process, started by the program before this one.
    pub(crate) fn inherited(pid: Pid, pidfd: OwnedFd) -> Self {
        Self::Process { pid, pidfd: Rc::new(pidfd) }
    }

    /// What the next program needs to know the child. Threads do not survive an exec.
    pub(crate) fn process(&self) -> Option<(Pid, Rc<OwnedFd>)> {
        match self {
            Self::Process { pid, pidfd } => Some((*pid, Rc::clone(pidfd))),
            Self::Thread { .. } => None,
        }
    }

    /// Becomes readable, or hangs up, when the child is dead.
    pub(crate) fn death(&self) -> BorrowedFd<'_> {
        match self {
            Self::Process { pidfd, .. } => pidfd.as_fd(),
            Self::Thread { pipe, .. } => pipe.as_fd(),
        }
    }

    /// Returns `false` for a thread, which cannot be killed alone.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        match self {
            Self::Process { pidfd, .. } => {
                // It may be dead already, which is fine.
                let _ = pidfd_send_signal(pidfd, signal);
                true
            }
            Self::Thread { .. } => false,
        }
    }

    /// The process id, if it is a process.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Process { pid, .. } => u32::try_from(pid.as_raw_pid()).ok(),
            Self::Thread { .. } => None,
        }
    }

    /// Call this only after [`death`](Self::death) has become readable; otherwise it blocks.
    pub(crate) fn reap(self) -> io::Result<Exit> {
        match self {
            Self::Process { pid, .. } => loop {
                return match waitpid(Some(pid), WaitOptions::empty()) {
                    Ok(Some((_, status))) => {
                        Ok(Exit::Status(ExitStatus::from_raw(status.as_raw())))
                    }
                    Err(Errno::CHILD) => Ok(Exit::Unknown),
                    Ok(None) | Err(Errno::INTR) => continue,
                    Err(errno) => Err(errno.into()),
                };
            },
            Self::Thread { handle, .. } => Ok(match handle.join() {
                Ok(Ok(())) => Exit::Returned,
                Ok(Err(error)) => Exit::Error(error),
                Err(_) => Exit::Panicked,
            }),
        }
    }
}

impl fmt::Display for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, .. } => write!(f, "process {pid}"),
            Self::Thread { .. } => f.write_str("a thread"),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker { slot } => write!(f, "worker {slot}"),
            Self::Admin => f.write_str("admin"),
            Self::Discovery => f.write_str("discovery"),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exited with status {code}"),
                (None, Some(signal)) => {
                    let core = if status.core_dumped() { ", core dumped" } else { "" };
                    write!(f, "was killed by signal {signal}{core}")
                }
                (None, None) => write!(f, "ended: {status}"),
            },
            Self::Returned | Self::Unknown => f.write_str("ended"),
            Self::Error(error) => write!(f, "ended: {error}"),
            Self::Panicked => f.write_str("panicked"),
        }
    }
}
