//! TLS as the snapshot has it: what clients and servers are secured with, and what is noted of handshakes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Listen, Pool};
use cashew_metrics::{Cause, PoolCounter, ServerCounter};
use cashew_tls::{Acceptor, Connector, Facts, Failure, TicketSecret, Version};
use rustix::net::getsockname;

/// Built once for each snapshot, on another thread.
#[derive(Default)]
pub(crate) struct Tls {
    /// By the snapshot's pools.
    acceptors: Vec<Option<Acceptor>>,
    connectors: Connectors,
    /// Those of the snapshot before, whose removed pools are served on.
    previous: Connectors,
    /// Those of the snapshot that is being prepared, whose servers are connected already.
    upcoming: Connectors,
}

/// By the marks of their options.
type Connectors = HashMap<u64, Connector>;

impl Tls {
    /// Takes the content of files out of the snapshot.
    ///
    /// # Errors
    /// If something cannot be used, which the master should have noticed.
    pub(crate) fn take(
        snapshot: &mut Snapshot,
        tickets: Option<&TicketSecret>,
    ) -> Result<Self, String> {
        let mut tls = Self::default();
        for pool in &snapshot.pools {
            let of_pool = |why| format!("pool {}: {why}", pool.name);
            let acceptor = pool.tls.as_ref().map(|options| Acceptor::new(options, tickets));
            tls.acceptors.push(acceptor.transpose().map_err(of_pool)?);
            if let Some(options) = &pool.server_tls {
                let connector = Connector::new(options).map_err(of_pool)?;
                tls.connectors.insert(options.mark, connector);
            }
        }
        snapshot.forget_tls_files();
        Ok(tls)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.connectors.is_empty() && self.acceptors.iter().all(Option::is_none)
    }

    /// The acceptor for a socket of the pool that is bound to this place.
    pub(crate) fn acceptor(&self, at: usize, pool: &Pool, place: &Place) -> Option<Acceptor> {
        let is_there = pool.tls_listen.as_ref().is_none_or(|listen| place.is(listen));
        self.acceptors.get(at)?.clone().filter(|_| is_there)
    }

    /// What servers are connected with that have options of this mark.
    pub(crate) fn connector(&self, mark: u64) -> Option<&Connector> {
        let all = [&self.connectors, &self.upcoming, &self.previous];
        all.into_iter().find_map(|connectors| connectors.get(&mark))
    }

    /// This is to follow.
    pub(crate) fn expect(&mut self, next: &Self) {
        self.upcoming = next.connectors.clone();
    }

    /// This has followed.
    pub(crate) fn replace(&mut self, next: Self) {
        let previous = std::mem::take(&mut self.connectors);
        *self = Self { previous, ..next };
    }
}

/// Where a listening socket is bound.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Unknown,
}

impl Place {
    pub(crate) fn of(socket: impl AsFd) -> Self {
        let Ok(address) = getsockname(socket) else { return Self::Unknown };
        if let Ok(address) = SocketAddr::try_from(address.clone()) {
            return Self::Tcp(address);
        }
        let path = rustix::net::SocketAddrUnix::try_from(address).ok();
        let path = path.and_then(|it| it.path().map(|path| path.to_string_lossy().into_owned()));
        path.map_or(Self::Unknown, |path| Self::Unix(path.into()))
    }

    fn is(&self, listen: &Listen) -> bool {
        match (self, listen) {
            (Self::Tcp(place), Listen::Tcp(address)) => place == address,
            (Self::Unix(place), Listen::Unix { path, .. }) => place == path,
            _ => false,
        }
    }
}

/// How often failed handshakes of a worker's clients are logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Failed handshakes since the last line of the log.
#[derive(Default)]
pub(crate) struct Failed {
    count: u64,
    logged_at: Option<cashew_engine::Time>,
}

impl Failed {
    /// Counts one. Returns how many there were if it is to be logged.
    pub(crate) fn note(&mut self, now: cashew_engine::Time) -> Option<u64> {
        self.count += 1;
        if self.logged_at.is_some_and(|at| now - at < REPORT_INTERVAL) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

/// What a client's handshake counts as.
pub(crate) fn counters_of(facts: Facts) -> impl Iterator<Item = PoolCounter> {
    let resumed = facts.is_resumed.then_some(PoolCounter::TlsResumed);
    let older = (facts.version == Version::Tls12).then_some(PoolCounter::TlsOlder);
    [PoolCounter::TlsHandshakes].into_iter().chain(resumed).chain(older)
}

/// What a server's handshake counts as.
pub(crate) fn server_counters_of(facts: Facts) -> impl Iterator<Item = ServerCounter> {
    let resumed = facts.is_resumed.then_some(ServerCounter::TlsResumed);
    [ServerCounter::TlsHandshakes].into_iter().chain(resumed)
}

/// What a client's failed handshake counts as.
pub(crate) fn counter_of(failure: Failure) -> PoolCounter {
    match failure {
        Failure::NotTls => PoolCounter::TlsPlain,
        Failure::NothingInCommon => PoolCounter::TlsVersions,
        Failure::Expired
        | Failure::NotValidYet
        | Failure::Untrusted
        | Failure::WrongName
        | Failure::Invalid
        | Failure::NoCertificate => PoolCounter::TlsCertificates,
        Failure::TimedOut => PoolCounter::TlsTimeouts,
        Failure::Refused | Failure::Closed | Failure::Worn | Failure::Broken => {
            PoolCounter::TlsFailures
        }
    }
}

/// Why a server cannot be reached.
pub(crate) fn cause_of(failure: Failure) -> Cause {
    match failure {
        Failure::NotTls => Cause::NoTls,
        Failure::NothingInCommon => Cause::TlsVersion,
        Failure::Expired => Cause::CertificateExpired,
        Failure::NotValidYet => Cause::CertificateEarly,
        Failure::Untrusted => Cause::CertificateUntrusted,
        Failure::WrongName => Cause::CertificateName,
        Failure::Invalid => Cause::CertificateInvalid,
        Failure::Refused | Failure::NoCertificate => Cause::CertificateRefused,
        Failure::TimedOut => Cause::TlsSilent,
        Failure::Closed | Failure::Worn | Failure::Broken => Cause::TlsFailed,
    }
}
