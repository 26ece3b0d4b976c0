//! Looks server names up again for a reload.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::Endpoint;

/// How many names are looked up at a time, so that one slow lookup does not delay the others.
const THREADS_MAX: usize = 8;

/// How long all lookups of a reload may take. One query to a name server that does not respond
/// costs five seconds.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(6);

/// Failed lookups beyond this number are counted, not named.
const FAILURES_SHOWN_MAX: usize = 20;

/// The results, by host.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) addresses: BTreeMap<String, Vec<IpAddr>>,
    failures: BTreeMap<String, String>,
}

type LookUp = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

impl Names {
    /// Looks up the server hosts that both snapshots have.
    pub(crate) fn look_up(old: &Snapshot, new: &Snapshot) -> Self {
        let (old, new) = (hosts(old), hosts(new));
        let hosts = new.intersection(&old).map(|&host| host.to_owned()).collect();
        let look_up = |host: &str| {
            let found = (host, 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
        };
        Self::of(hosts, Arc::new(look_up), LOOK_UP_TIMEOUT)
    }

    fn of(hosts: VecDeque<String>, look_up: Arc<LookUp>, timeout: Duration) -> Self {
        let mut names = Self::default();
        let mut missing: BTreeSet<String> = hosts.iter().cloned().collect();
        let deadline = Instant::now() + timeout;
        let (answer, answers) = channel();
        let threads = THREADS_MAX.min(hosts.len());
        let waiting = Arc::new(Mutex::new(hosts));
        let next = |waiting: &Mutex<VecDeque<String>>| waiting.lock().ok()?.pop_front();
        for _ in 0..threads {
            let (waiting, answer) = (Arc::clone(&waiting), answer.clone());
            let look_up = Arc::clone(&look_up);
            let work = move || {
                while let Some(host) = next(&waiting) {
                    let found = look_up(&host);
                    if answer.send((host, found)).is_err() {
                        break;
                    }
                }
            };
            if let Err(error) = thread::Builder::new().name("names".into()).spawn(work) {
                tracing::error!("cannot look names up: {error}");
            }
        }
        drop(answer);
        while !missing.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let why = match answers.recv_timeout(left) {
                Ok((host, found)) => {
                    missing.remove(&host);
                    match found {
                        Ok(found) if !found.is_empty() => {
                            names.addresses.insert(host, found);
                        }
                        Ok(_) => _ = names.failures.insert(host, "it has no address".into()),
                        Err(error) => _ = names.failures.insert(host, error.to_string()),
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    format!("no answer in {} seconds", timeout.as_secs())
                }
                Err(RecvTimeoutError::Disconnected) => "there is no thread for it".into(),
            };
            let missing = std::mem::take(&mut missing);
            names.failures.extend(missing.into_iter().map(|host| (host, why.clone())));
        }
        // Threads that still wait for an answer find nothing more to do.
        if let Ok(mut waiting) = waiting.lock() {
            waiting.clear();
        }
        names
    }

    /// A line for each failed lookup.
    pub(crate) fn failures(&self) -> Vec<String> {
        let shown = self.failures.iter().take(FAILURES_SHOWN_MAX).map(|(host, why)| {
            format!("the host {host} cannot be looked up ({why}): its connections stay as they are")
        });
        let more = self.failures.len().saturating_sub(FAILURES_SHOWN_MAX);
        let more = (more > 0).then(|| format!("{more} more hosts cannot be looked up"));
        shown.chain(more).collect()
    }
}

/// Hosts of servers that are names.
fn hosts(snapshot: &Snapshot) -> BTreeSet<&str> {
    let servers = snapshot.pools.iter().flat_map(|pool| &pool.servers);
    let hosts = servers.filter_map(|server| match &server.endpoint {
        Endpoint::Tcp { host, .. } => Some(host.as_str()),
        Endpoint::Unix(_) => None,
    });
    hosts.filter(|host| host.parse::<IpAddr>().is_err()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_succeed_or_fail_and_a_slow_one_delays_no_other() {
        let (_hang_up, hangs) = channel::<()>();
        let hangs = Mutex::new(hangs);
        let look_up = move |host: &str| match host {
            "hangs" => {
                let _ = hangs.lock().unwrap().recv();
                Ok(Vec::new())
            }
            "unknown" => Err(io::Error::other("name not known")),
            "empty" => Ok(Vec::new()),
            _ => Ok(vec![IpAddr::from([10, 0, 0, 9])]),
        };
        let mut hosts = VecDeque::from(["hangs", "unknown", "empty"].map(str::to_owned));
        hosts.extend((0..100).map(|number| format!("host{number}")));
        let names = Names::of(hosts, Arc::new(look_up), Duration::from_secs(1));
        assert_eq!(names.addresses.len(), 100);
        assert_eq!(names.addresses["host7"], [IpAddr::from([10, 0, 0, 9])]);
        assert_eq!(
            names.failures(),
            [
                ("empty", "it has no address"),
                ("hangs", "no answer in 1 seconds"),
                ("unknown", "name not known")
            ]
            .map(|(host, why)| format!(
                "the host {host} cannot be looked up ({why}): its connections stay as they are"
            ))
        );
    }

    #[test]
    fn failures_beyond_a_number_are_counted() {
        let hosts: VecDeque<String> = (0..25).map(|number| format!("host{number}")).collect();
        let unknown = |_: &str| Err(io::Error::other("name not known"));
        let names = Names::of(hosts, Arc::new(unknown), Duration::from_secs(5));
        let lines = names.failures();
        assert_eq!(lines.len(), 21);
        assert_eq!(lines[20], "5 more hosts cannot be looked up");
    }
}
