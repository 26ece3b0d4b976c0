//! What a failure tells: whether the request ran, and what is known of its server from then on.
//!
//! This is the one table by which requests wait for a failover, go to another server, or are sent again. A
//! failure is either the gateway's own ([`Failure`]), before or after the request was written, or an error
//! of the server's that says that it did not run the request ([`Refusal`]).

use crate::base::failure::Failure;

/// Whether a request ran that has no reply of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Execution {
    /// Surely not: it may be sent again, whatever it does.
    No,
    /// Perhaps, or in part: only what may run twice may be sent again.
    Unknown,
}

/// What a failure is evidence of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Nothing that concerns the server.
    None,
    /// The gateway's own machine lacks something.
    Local,
    /// Nobody is there, or a connection ended.
    Down,
    /// It takes connections and does not answer.
    Silent,
    /// It answers, and cannot serve yet: it reads its data, or waits for its primary, or for a script.
    Unready,
    /// It is no primary.
    NotPrimary,
    /// It is set up otherwise than the gateway takes it to be.
    Misconfigured,
    /// It has too little of something: memory, disk, replicas.
    Short,
}

/// An error by which a server says, before it runs a request, that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    ReadOnly,
    /// Valkey's, to clients that have said that they follow it.
    Redirect,
    Loading,
    MasterDown,
    ClusterDown,
    TryAgain,
    NoReplicas,
    Busy,
    OutOfMemory,
    /// It cannot write to its disk.
    Misconfigured,
    NotPermitted,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) execution: Execution,
    pub(crate) sign: Sign,
}

impl Refusal {
    const WORDS: [(&[u8], Self); 12] = [
        (b"READONLY", Self::ReadOnly),
        (b"REDIRECT", Self::Redirect),
        (b"LOADING", Self::Loading),
        (b"MASTERDOWN", Self::MasterDown),
        (b"CLUSTERDOWN", Self::ClusterDown),
        (b"TRYAGAIN", Self::TryAgain),
        (b"NOREPLICAS", Self::NoReplicas),
        (b"BUSY", Self::Busy),
        (b"OOM", Self::OutOfMemory),
        (b"MISCONF", Self::Misconfigured),
        (b"NOAUTH", Self::NotPermitted),
        (b"NOPERM", Self::NotPermitted),
    ];

    /// What a whole reply of Redis says, if it is such an error. Of what a script was refused that says
    /// nothing: others of its calls have run. So it does of requests that may answer errors of their own
    /// making.
    pub(crate) fn of(reply: &[u8]) -> Option<Self> {
        let line = reply.strip_prefix(b"-")?.strip_suffix(b"\r\n")?;
        let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
        let (_, refusal) = Self::WORDS.iter().find(|(word, _)| *word == &line[..end])?;
        let is_of_script = line.windows(OF_SCRIPT.len()).any(|part| part == OF_SCRIPT);
        (!is_of_script).then_some(*refusal)
    }

    /// Whether an error is one of those that only nodes of a cluster answer, by its start.
    pub(crate) fn is_of_cluster(reply: &[u8]) -> bool {
        const WORDS: [&[u8]; 3] = [b"-MOVED ", b"-ASK ", b"-CLUSTERDOWN "];
        WORDS.iter().any(|word| reply.starts_with(word))
    }

    /// As what a request waits for the end of, where it may: it passes, also of a pool whose map is followed, or another server takes over.
    /// What a server lacks for longer is for its client to know at once.
    pub(crate) fn absence(self, of_cluster: bool) -> Option<Failure> {
        match self {
            Self::ClusterDown if of_cluster => Some(Failure::ClusterDown),
            Self::ReadOnly | Self::Redirect => Some(Failure::ReadOnly),
            Self::Loading => Some(Failure::Loading),
            Self::MasterDown => Some(Failure::MasterDown),
            Self::Busy
            | Self::ClusterDown
            | Self::TryAgain
            | Self::NoReplicas
            | Self::OutOfMemory
            | Self::Misconfigured
            | Self::NotPermitted => None,
        }
    }
}

/// What servers put behind an error that a call of a script's got.
const OF_SCRIPT: &[u8] = b" script: ";

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Self {
        let sign = match refusal {
            Refusal::ReadOnly | Refusal::Redirect => Sign::NotPrimary,
            Refusal::Loading | Refusal::MasterDown | Refusal::Busy => Sign::Unready,
            Refusal::ClusterDown | Refusal::TryAgain => Sign::Unready,
            Refusal::NoReplicas | Refusal::OutOfMemory | Refusal::Misconfigured => Sign::Short,
            Refusal::NotPermitted => Sign::Misconfigured,
        };
        Self { execution: Execution::No, sign }
    }
}

impl Outcome {
    /// Of a request that the gateway itself answers. `is_written` is whether a byte of it was.
    pub(crate) fn of(failure: Failure, is_written: bool) -> Self {
        let sign = match failure {
            Failure::Refused
            | Failure::Reset
            | Failure::Insecure(_)
            | Failure::Unreachable
            | Failure::Unresolved
            | Failure::Closed => Sign::Down,
            Failure::TimedOut | Failure::Silent => Sign::Silent,
            Failure::Exhausted
            | Failure::NoMemory
            | Failure::NoPort
            | Failure::Forbidden
            | Failure::NoSocket
            | Failure::NoLookUp => Sign::Local,
            Failure::Busy | Failure::Loading | Failure::MasterDown | Failure::ClusterDown => {
                Sign::Unready
            }
            Failure::ReadOnly => Sign::NotPrimary,
            Failure::BadReply => Sign::Down,
            Failure::HandshakeRefused => Sign::Misconfigured,
            Failure::DatabaseRefused
            | Failure::WireProtocolRefused
            | Failure::QueueFull
            | Failure::NoServer
            | Failure::Removed
            | Failure::Replaced
            | Failure::Unused
            | Failure::Held
            | Failure::TooSlow
            | Failure::Forgetting => Sign::None,
        };
        let execution = if is_written { Execution::Unknown } else { Execution::No };
        Self { execution, sign }
    }

    /// Whether waiting helps what did not run: somebody else, or the same server a little later, may take
    /// what this one did not.
    pub(crate) fn is_worth_waiting(self) -> bool {
        match self.sign {
            Sign::Local | Sign::Down | Sign::Silent | Sign::Unready | Sign::NotPrimary => true,
            Sign::None | Sign::Misconfigured | Sign::Short => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_refuses_did_not_run() {
        use Refusal as R;
        for (reply, refusal, sign, waits) in [
            (
                "-READONLY You can't write against a read only replica.",
                R::ReadOnly,
                Sign::NotPrimary,
                true,
            ),
            ("-REDIRECT 127.0.0.1:7001", R::Redirect, Sign::NotPrimary, true),
            ("-LOADING Redis is loading the dataset in memory", R::Loading, Sign::Unready, true),
            ("-LOADING Valkey is loading the dataset in memory", R::Loading, Sign::Unready, true),
            (
                "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                R::MasterDown,
                Sign::Unready,
                true,
            ),
            ("-CLUSTERDOWN The cluster is down", R::ClusterDown, Sign::Unready, false),
            (
                "-TRYAGAIN Multiple keys request during rehashing of slot",
                R::TryAgain,
                Sign::Unready,
                false,
            ),
            ("-NOREPLICAS Not enough good replicas to write.", R::NoReplicas, Sign::Short, false),
            (
                "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                R::Busy,
                Sign::Unready,
                false,
            ),
            (
                "-OOM command not allowed when used memory > 'maxmemory'.",
                R::OutOfMemory,
                Sign::Short,
                false,
            ),
            (
                "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist",
                R::Misconfigured,
                Sign::Short,
                false,
            ),
            ("-NOAUTH Authentication required.", R::NotPermitted, Sign::Misconfigured, false),
            ("-NOPERM this user has no permissions", R::NotPermitted, Sign::Misconfigured, false),
        ] {
            let found = Refusal::of(format!("{reply}\r\n").as_bytes());
            assert_eq!(found, Some(refusal), "{reply}");
            let outcome = Outcome::from(refusal);
            assert_eq!(outcome, Outcome { execution: Execution::No, sign }, "{reply}");
            assert_eq!(refusal.absence(false).is_some(), waits, "{reply}");
        }
    }

    #[test]
    fn other_replies_are_the_answer() {
        for reply in [
            "+OK",
            "-ERR unknown command",
            "-WRONGTYPE Operation against a key holding the wrong kind of value",
            "-EXECABORT Transaction discarded because of previous errors.",
            "-READONLYX no",
            "-",
            "$8",
            // Other calls of the script's have run.
            "-READONLY You can't write against a read only replica. script: 1b9e, on @user_script:1.",
        ] {
            assert_eq!(Refusal::of(format!("{reply}\r\n").as_bytes()), None, "{reply}");
        }
        assert_eq!(Refusal::of(b"-READONLY not whole"), None);
        assert_eq!(Refusal::of(b""), None);
    }

    #[test]
    fn what_was_written_may_have_run_and_what_was_not_did_not() {
        use Failure as F;
        for (failure, sign, waits) in [
            (F::Refused, Sign::Down, true),
            (F::Unreachable, Sign::Down, true),
            (F::Unresolved, Sign::Down, true),
            (F::Reset, Sign::Down, true),
            (F::Closed, Sign::Down, true),
            (F::TimedOut, Sign::Silent, true),
            (F::Silent, Sign::Silent, true),
            (F::Exhausted, Sign::Local, true),
            (F::NoMemory, Sign::Local, true),
            (F::NoPort, Sign::Local, true),
            (F::Forbidden, Sign::Local, true),
            (F::NoSocket, Sign::Local, true),
            (F::NoLookUp, Sign::Local, true),
            (F::Busy, Sign::Unready, true),
            (F::Loading, Sign::Unready, true),
            (F::MasterDown, Sign::Unready, true),
            (F::ReadOnly, Sign::NotPrimary, true),
            (F::ClusterDown, Sign::Unready, true),
            (F::BadReply, Sign::Down, true),
            (F::HandshakeRefused, Sign::Misconfigured, false),
            (F::DatabaseRefused, Sign::None, false),
            (F::WireProtocolRefused, Sign::None, false),
            (F::QueueFull, Sign::None, false),
            (F::NoServer, Sign::None, false),
            (F::Removed, Sign::None, false),
            (F::Replaced, Sign::None, false),
            (F::Unused, Sign::None, false),
            (F::Held, Sign::None, false),
            (F::TooSlow, Sign::None, false),
        ] {
            let unsent = Outcome::of(failure, false);
            assert_eq!(unsent, Outcome { execution: Execution::No, sign }, "{failure:?}");
            assert_eq!(unsent.is_worth_waiting(), waits, "{failure:?}");
            let sent = Outcome::of(failure, true);
            assert_eq!(sent.execution, Execution::Unknown, "{failure:?}");
        }
    }
}
