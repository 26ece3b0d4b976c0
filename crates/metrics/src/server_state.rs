//! What all workers of an instance together know of a server.
//!
//! One word has the state, its cause and its time, so they change together, by whichever worker saw the
//! evidence: it is the one that tells the log. Of two epochs the newer word counts.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Words of each server that all workers write.
pub(crate) const WORDS: usize = 10;

mod word {
    pub(super) const STATE: usize = 0;
    /// Why something last went wrong, and when.
    pub(super) const ERROR: usize = 1;
    /// When the server was last well, or on trial, before it failed.
    pub(super) const FAILED: usize = 2;
    /// When a worker last took it on itself to check the server.
    pub(super) const CHECKED: usize = 3;
    /// When something was last noted that it is to forget, in microseconds.
    pub(super) const SPOOLED: usize = 4;
    /// All that was noted up to then it has forgotten.
    pub(super) const FORGOTTEN: usize = 5;
    /// Keys that it has yet to be told to forget, and since when the first of them waits, in seconds since 1970.
    pub(super) const SPOOL_DEPTH: usize = 6;
    pub(super) const SPOOL_OLDEST: usize = 7;
    /// Keys that it has been told to forget.
    pub(super) const REPLAYED: usize = 8;
    /// How often it has changed whether it lets its replies be kept: odd while it does not.
    pub(super) const KEEPING: usize = 9;
}

const TIME_SHIFT: u32 = 16;
const CAUSE_SHIFT: u32 = 8;

/// How a server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nobody has tried to reach it.
    #[default]
    Untried,
    /// It has answered, and nothing has failed since.
    Well,
    /// A connection to it failed.
    Suspect,
    /// It cannot be connected to, answers nothing, or is off the ring.
    Out,
    /// It accepts connections, but has not answered yet.
    Trial,
}

impl Health {
    const ALL: [Self; 5] = [Self::Untried, Self::Well, Self::Suspect, Self::Out, Self::Trial];

    pub fn name(self) -> &'static str {
        match self {
            Self::Untried => "untried",
            Self::Well => "well",
            Self::Suspect => "suspect",
            Self::Out => "out",
            Self::Trial => "trial",
        }
    }

    /// Whether the last that is known of it is good.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Well | Self::Trial)
    }

    fn is_down(self) -> bool {
        matches!(self, Self::Suspect | Self::Out)
    }
}

macro_rules! causes {
    ($($variant:ident => $text:literal,)*) => {
        /// Why a server is not well.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Cause {
            /// It was no failure.
            None,
            $(#[doc = $text] $variant,)*
        }

        impl Cause {
            const ALL: &'static [Self] = &[Self::None, $(Self::$variant,)*];

            /// Empty if there is none.
            pub const fn text(self) -> &'static str {
                match self {
                    Self::None => "",
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

causes! {
    Refused => "Connection refused",
    TimedOut => "Connection timed out",
    Reset => "Connection reset by peer",
    Unreachable => "No route to host",
    Unresolved => "Host is down",
    Closed => "Server closed the connection",
    BadReply => "Server sent an invalid reply",
    HandshakeRefused => "Server refused AUTH or SELECT",
    Loading => "Redis is loading the dataset in memory",
    Busy => "Redis is busy running a script",
    Silent => "Server does not answer",
    Local => "Cannot connect from this machine",
    Ejected => "Ejected from the ring",
    MasterDown => "Link with MASTER is down",
    ReadOnly => "You can't write against a read only replica",
    NoTls => "Server does not speak TLS",
    TlsVersion => "Server speaks no version and ciphers of TLS that are allowed",
    CertificateExpired => "Server's certificate has expired",
    CertificateEarly => "Server's certificate is not valid yet",
    CertificateUntrusted => "Server's certificate is not signed by a trusted authority",
    CertificateName => "Server's certificate is for another name",
    CertificateInvalid => "Server's certificate is invalid",
    CertificateRefused => "Server refused the gateway's certificate, or wants one",
    TlsSilent => "Server does not answer the TLS handshake",
    TlsFailed => "TLS handshake with the server failed",
    ClusterDown => "The cluster is down",
}

/// What a worker has seen of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A connection stands; nothing was said yet.
    Connected,
    /// It has answered.
    Answered,
    /// A connection ended that it should not have.
    Failed(Cause),
    /// No connection could be made.
    Unreachable(Cause),
    /// It answers nothing, and what is for it fails.
    Silent,
    /// This machine kept the gateway from connecting, which says nothing of the server.
    Hindered,
    /// All workers have agreed to leave it out of the ring.
    Ejected,
    /// All workers have agreed to take it back.
    Returned,
}

/// How a server is, since when and why. Times are in milliseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerState {
    pub health: Health,
    /// Why it is not well; [`Cause::None`] if it is.
    pub cause: Cause,
    /// 0 if it was never tried.
    pub since_ms: u64,
}

/// What a server is to forget that could not be told so: see the option `spool`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolState {
    /// Keys.
    pub depth: u64,
    /// Since when the first of them waits, in seconds since 1970; 0 if none does.
    pub oldest_at: u64,
    /// Keys that it has been told to forget so far.
    pub replayed: u64,
    /// It is to answer no reads.
    pub is_held: bool,
}

/// What last went wrong, however the server is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    pub cause: Cause,
    pub at_ms: u64,
}

/// A change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateChange {
    pub from: Health,
    pub to: Health,
    pub cause: Cause,
    /// How long it was not well, where that is over.
    pub lasted_ms: u64,
    /// It was not well before, and accepted connections in between.
    pub is_relapse: bool,
}

impl ServerState {
    fn pack(self) -> u64 {
        pack(self.since_ms, self.cause) | self.health as u64
    }

    fn of_word(word: u64) -> Self {
        let health = Health::ALL.get(usize::from(word as u8)).copied().unwrap_or_default();
        let (since_ms, cause) = unpack(word);
        Self { health, cause, since_ms }
    }

    /// The rule: what it is after that, or `None` if nothing changes.
    fn after(self, evidence: Evidence) -> Option<(Health, Cause)> {
        use Health::{Out, Suspect, Trial, Untried, Well};
        let is_off_ring = self.health == Out && self.cause == Cause::Ejected;
        let next = match (evidence, self.health) {
            (Evidence::Returned, Out) => (Trial, Cause::None),
            (Evidence::Returned, _) => return None,
            // Whatever it says, it serves nobody.
            _ if is_off_ring => return None,
            (Evidence::Hindered, _) => return None,
            (Evidence::Ejected, _) => (Out, Cause::Ejected),
            // It may accept connections and answer none, as a server does that is stopped.
            (Evidence::Connected, Suspect) => return None,
            (Evidence::Connected, Out) if self.cause == Cause::Silent => return None,
            (Evidence::Connected, Untried | Out) => (Trial, Cause::None),
            (Evidence::Connected, Well | Trial) => return None,
            (Evidence::Answered, _) => (Well, Cause::None),
            (Evidence::Failed(cause), Untried | Well | Trial) => (Suspect, cause),
            (Evidence::Failed(_), Suspect | Out) => return None,
            (Evidence::Unreachable(Cause::TimedOut), Out) if self.cause == Cause::Silent => {
                return None;
            }
            (Evidence::Unreachable(cause), _) => (Out, cause),
            (Evidence::Silent, _) => (Out, Cause::Silent),
        };
        (next != (self.health, self.cause)).then_some(next)
    }
}

/// The words of one server.
pub(crate) struct SharedState<'a>(pub(crate) &'a [AtomicU64]);

impl SharedState<'_> {
    pub(crate) fn get(&self) -> ServerState {
        ServerState::of_word(self.0[word::STATE].load(Relaxed))
    }

    pub(crate) fn last_error(&self) -> Option<LastError> {
        let (at_ms, cause) = unpack(self.0[word::ERROR].load(Relaxed));
        (cause != Cause::None).then_some(LastError { cause, at_ms })
    }

    /// Takes evidence into account. The change, if this is what made one.
    pub(crate) fn note(&self, evidence: Evidence, now_us: u64) -> Option<StateChange> {
        let now_ms = now_us / 1000;
        if let Some(cause) = evidence.error() {
            self.0[word::ERROR].fetch_max(pack(now_ms, cause), Relaxed);
        }
        let changed = self.0[word::STATE].fetch_update(AcqRel, Relaxed, |before| {
            let before = ServerState::of_word(before);
            let (health, cause) = before.after(evidence)?;
            // A further cause begins no other state.
            let since_ms = match health == before.health {
                true => before.since_ms,
                false => now_ms.max(before.since_ms),
            };
            Some(ServerState { health, cause, since_ms }.pack())
        });
        let before = ServerState::of_word(changed.ok()?);
        let (health, cause) = before.after(evidence)?;
        if health == before.health {
            return None;
        }
        let failed = &self.0[word::FAILED];
        let is_new =
            health.is_down() && failed.compare_exchange(0, now_ms.max(1), Relaxed, Relaxed).is_ok();
        let is_relapse = before.health == Health::Trial && health.is_down() && !is_new;
        let lasted_ms = match health {
            Health::Well => match failed.swap(0, Relaxed) {
                0 => 0,
                since => now_ms.saturating_sub(since).max(1),
            },
            _ => 0,
        };
        Some(StateChange { from: before.health, to: health, cause, lasted_ms, is_relapse })
    }

    /// Whether this worker is the one to check it now: nobody has for so long.
    pub(crate) fn claim_check(&self, now_us: u64, interval_us: u64) -> bool {
        let is_due = |&last: &u64| last == 0 || now_us >= last.saturating_add(interval_us);
        let checked = &self.0[word::CHECKED];
        // Most of the time it is not: no need to write.
        let before = checked.load(Relaxed);
        is_due(&before) && checked.compare_exchange(before, now_us.max(1), Relaxed, Relaxed).is_ok()
    }

    /// Its replies cannot be kept by caches, or can. Returns whether that is news, to one worker alone.
    pub(crate) fn note_keeping(&self, is_refused: bool) -> bool {
        let keeping = &self.0[word::KEEPING];
        let before = keeping.load(Relaxed);
        let was_refused = before % 2 == 1;
        was_refused != is_refused
            && keeping.compare_exchange(before, before + 1, Relaxed, Relaxed).is_ok()
    }

    /// Something was noted that it is to forget.
    pub(crate) fn note_spooled(&self, now_us: u64) {
        self.0[word::SPOOLED].fetch_max(now_us.max(1), AcqRel);
    }

    /// When that was last; 0 if never.
    pub(crate) fn spooled_us(&self) -> u64 {
        self.0[word::SPOOLED].load(Acquire)
    }

    /// Whether there is something that it has not forgotten.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.0[word::SPOOLED].load(Acquire) > self.0[word::FORGOTTEN].load(Acquire)
    }

    /// It has forgotten all that was noted up to then.
    pub(crate) fn set_forgotten(&self, up_to_us: u64) {
        self.0[word::FORGOTTEN].fetch_max(up_to_us, AcqRel);
    }

    pub(crate) fn set_spool(&self, depth: u64, oldest_at: u64) {
        self.0[word::SPOOL_DEPTH].store(depth, Relaxed);
        self.0[word::SPOOL_OLDEST].store(oldest_at, Relaxed);
    }

    pub(crate) fn add_replayed(&self, count: u64) {
        self.0[word::REPLAYED].fetch_add(count, Relaxed);
    }

    pub(crate) fn spool(&self) -> SpoolState {
        SpoolState {
            depth: self.0[word::SPOOL_DEPTH].load(Relaxed),
            oldest_at: self.0[word::SPOOL_OLDEST].load(Relaxed),
            replayed: self.0[word::REPLAYED].load(Relaxed),
            is_held: self.is_held(),
        }
    }

    /// Takes over what another epoch knows, unless this one knows better.
    pub(crate) fn carry(&self, from: &Self) {
        for (to, from) in self.0.iter().zip(from.0) {
            to.fetch_max(from.load(Relaxed), Relaxed);
        }
    }
}

impl Evidence {
    /// What it says that went wrong.
    fn error(self) -> Option<Cause> {
        match self {
            Self::Failed(cause) | Self::Unreachable(cause) => Some(cause),
            Self::Silent => Some(Cause::Silent),
            Self::Hindered => Some(Cause::Local),
            // What led to it has been noted.
            Self::Ejected | Self::Connected | Self::Answered | Self::Returned => None,
        }
    }
}

/// The newest of such words is the largest.
fn pack(at_ms: u64, cause: Cause) -> u64 {
    at_ms << TIME_SHIFT | (cause as u64) << CAUSE_SHIFT
}

fn unpack(word: u64) -> (u64, Cause) {
    let cause = usize::from((word >> CAUSE_SHIFT) as u8);
    (word >> TIME_SHIFT, Cause::ALL.get(cause).copied().unwrap_or(Cause::None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::repetitions;

    fn words() -> [AtomicU64; WORDS] {
        Default::default()
    }

    /// What a server's state is after each of these.
    fn states(evidence: &[Evidence]) -> Vec<(Health, Cause)> {
        let words = words();
        let state = SharedState(&words);
        let after = |(at, &evidence): (usize, &Evidence)| {
            state.note(evidence, (at as u64 + 1) * 1_000_000);
            (state.get().health, state.get().cause)
        };
        evidence.iter().enumerate().map(after).collect()
    }

    #[test]
    fn a_server_that_is_killed_and_comes_back_is_suspect_out_on_trial_and_well() {
        use Evidence::{Answered, Connected, Failed, Unreachable};
        let seen = [
            Connected,
            Answered,
            Failed(Cause::Closed),
            // Accepts, perhaps, but one does not know what.
            Connected,
            Unreachable(Cause::Refused),
            Failed(Cause::Reset),
            Connected,
            Failed(Cause::Closed),
            Connected,
            Answered,
        ];
        let expected = [
            (Health::Trial, Cause::None),
            (Health::Well, Cause::None),
            (Health::Suspect, Cause::Closed),
            (Health::Suspect, Cause::Closed),
            (Health::Out, Cause::Refused),
            (Health::Out, Cause::Refused),
            (Health::Trial, Cause::None),
            (Health::Suspect, Cause::Closed),
            (Health::Suspect, Cause::Closed),
            (Health::Well, Cause::None),
        ];
        assert_eq!(states(&seen), expected);
    }

    #[test]
    fn a_connection_says_nothing_of_a_silent_server_and_an_answer_does() {
        let seen = [Evidence::Silent, Evidence::Connected, Evidence::Answered];
        let out = (Health::Out, Cause::Silent);
        assert_eq!(states(&seen), [out, out, (Health::Well, Cause::None)]);
    }

    #[test]
    fn a_server_off_the_ring_is_out_whatever_it_says() {
        let seen = [
            Evidence::Ejected,
            Evidence::Answered,
            Evidence::Unreachable(Cause::Refused),
            Evidence::Returned,
            Evidence::Answered,
            Evidence::Returned,
        ];
        let off = (Health::Out, Cause::Ejected);
        let well = (Health::Well, Cause::None);
        assert_eq!(states(&seen), [off, off, off, (Health::Trial, Cause::None), well, well]);
    }

    #[test]
    fn each_change_is_told_once_with_its_cause_and_how_long_it_lasted() {
        let words = words();
        let state = SharedState(&words);
        let gone = Evidence::Unreachable(Cause::Refused);
        let change = state.note(gone, 5_000_000).unwrap();
        assert_eq!(
            (change.from, change.to, change.cause),
            (Health::Untried, Health::Out, Cause::Refused)
        );
        assert_eq!(state.note(gone, 6_000_000), None);
        // Another cause is noted and begins nothing.
        assert_eq!(state.note(Evidence::Silent, 7_000_000), None);
        let told = state.get();
        assert_eq!((told.health, told.cause, told.since_ms), (Health::Out, Cause::Silent, 5000));
        let change = state.note(Evidence::Answered, 8_500_000).unwrap();
        assert!(!change.is_relapse);
        assert_eq!((change.from, change.to, change.lasted_ms), (Health::Out, Health::Well, 3500));
        assert_eq!(state.last_error(), Some(LastError { cause: Cause::Silent, at_ms: 7000 }));
        assert_eq!(state.get().since_ms, 8500);
    }

    #[test]
    fn what_fails_on_trial_has_failed_before_or_not() {
        let words = words();
        let state = SharedState(&words);
        let failed = Evidence::Failed(Cause::TimedOut);
        let is_relapse = |evidence| state.note(evidence, 1_000_000).map(|it| it.is_relapse);
        assert_eq!(is_relapse(Evidence::Connected), Some(false));
        assert_eq!(is_relapse(failed), Some(false), "the first that is known of it");
        assert_eq!(is_relapse(Evidence::Silent), Some(false), "it is worse");
        assert_eq!(is_relapse(Evidence::Unreachable(Cause::Refused)), None);
        assert_eq!(is_relapse(Evidence::Connected), Some(false));
        assert_eq!(is_relapse(failed), Some(true));
    }

    #[test]
    fn only_one_worker_sees_a_change_as_its_own() {
        let words = words();
        let told = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let state = SharedState(&words);
                    for _ in 0..repetitions(1000) {
                        if state.note(Evidence::Failed(Cause::Reset), 1000).is_some() {
                            told.fetch_add(1, Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(told.into_inner(), 1);
    }

    #[test]
    fn one_worker_checks_at_a_time() {
        let words = words();
        let state = SharedState(&words);
        assert!(state.claim_check(10, 1000));
        assert!(!state.claim_check(1009, 1000));
        assert!(state.claim_check(1010, 1000));
    }

    #[test]
    fn that_replies_cannot_be_kept_is_news_to_one_worker() {
        let (old, new) = (words(), words());
        let (old, new) = (SharedState(&old), SharedState(&new));
        assert!(!old.note_keeping(false));
        assert!(old.note_keeping(true) && !old.note_keeping(true));
        new.carry(&old);
        assert!(!new.note_keeping(true));
        assert!(new.note_keeping(false) && !new.note_keeping(false));
    }

    #[test]
    fn the_newer_of_two_epochs_counts() {
        let (old, new) = (words(), words());
        let (old, new) = (SharedState(&old), SharedState(&new));
        old.note(Evidence::Answered, 5_000_000);
        new.carry(&old);
        assert_eq!(new.get(), old.get());
        new.note(Evidence::Unreachable(Cause::Refused), 6_000_000);
        new.carry(&old);
        assert_eq!(new.get().health, Health::Out);
        old.note(Evidence::Failed(Cause::Closed), 7_000_000);
        new.carry(&old);
        assert_eq!((new.get().health, new.get().since_ms), (Health::Suspect, 7000));
    }

    #[test]
    fn a_server_is_held_until_it_has_forgotten_the_newest() {
        let words = words();
        let state = SharedState(&words);
        assert!(!state.is_held());
        state.note_spooled(5);
        state.note_spooled(3);
        assert!(state.is_held());
        state.set_forgotten(state.spooled_us());
        assert!(!state.is_held());
        state.note_spooled(6);
        state.set_forgotten(5);
        assert!(state.is_held(), "one has come meanwhile");
        state.set_spool(7, 1000);
        state.add_replayed(2);
        let expected = SpoolState { depth: 7, oldest_at: 1000, replayed: 2, is_held: true };
        assert_eq!(state.spool(), expected);
    }

    #[test]
    fn what_is_no_state_is_read_as_none() {
        let state = ServerState::of_word(u64::MAX);
        assert_eq!((state.health, state.cause), (Health::Untried, Cause::None));
    }
}
