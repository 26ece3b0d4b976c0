//! Who names the servers of pools: files, DNS, etcd, Consul, Kubernetes.

mod consul;
pub(crate) mod damping;
mod dns;
pub(crate) mod dns_message;
mod etcd;
mod file;
mod finder;
mod http;
mod kubernetes;
mod record;
mod status;

use cashew_config::snapshot::{Server, ServerSource};

pub(crate) use consul::servers as read_consul;
pub(crate) use etcd::read_foreign as read_etcd;
pub use finder::{Finder, FoundServers, find_once};
pub(crate) use kubernetes::read_foreign as read_kubernetes;
pub use status::{HeldStatus, SourceStatus};

/// Names the servers of a pool. What it does may block, but for some seconds at most, except for
/// [`wait`](Source::wait), which may for a minute.
pub(crate) trait Source: Send {
    /// What it says now.
    ///
    /// # Errors
    ///
    /// It does not answer, or not so that all servers are known: this says nothing about them.
    fn list(&mut self) -> Result<Vec<Server>, String>;

    /// Waits until it says something else than before, or until it has shown that it does not. Comes after `list`.
    /// `None`: it has to be listed again.
    ///
    /// # Errors
    ///
    /// As of `list`.
    fn wait(&mut self) -> Result<Option<Vec<Server>>, String>;
}

/// Connects to nothing yet.
pub(crate) fn open(source: &ServerSource) -> Box<dyn Source> {
    match source.clone() {
        ServerSource::File(path) => Box::new(file::FileSource::new(path)),
        ServerSource::Dns(source) => Box::new(dns::Dns::new(source)),
        ServerSource::Etcd(source) => Box::new(etcd::Etcd::new(source)),
        ServerSource::Consul(source) => Box::new(consul::Consul::new(source)),
        ServerSource::Kubernetes(source) => Box::new(kubernetes::Kubernetes::new(source)),
    }
}

/// Reads a list of servers as files have it.
pub(crate) fn read_list(bytes: &[u8]) -> Result<Vec<Server>, String> {
    record::list(str::from_utf8(bytes).map_err(|_| "is not UTF-8 text")?)
}

/// Asks a source once.
///
/// # Errors
///
/// As it has none, in words.
pub fn list_once(source: &ServerSource) -> Result<Vec<Server>, String> {
    open(source).list()
}
