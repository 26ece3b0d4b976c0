//! The listening sockets of the instance, by address. The master creates them and keeps them as
//! long as the address is served, so no waiting connection is lost when a worker ends.

mod sockets;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Listen, Pool};
use cashew_metrics::EventKind;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use tracing::{error, info, warn};

use self::sockets::{Socket, Sockets, Why, backlog, bind_pool, listen_tcp, tcp_socket};
use crate::deal::{Hand, ListenerId};
use crate::state::{Pack, Place, Text, Unpack};
use crate::unix_socket::Inode;

const STATS_BACKLOG: i32 = 128;

/// Pause between two attempts to bind an address that is about to be free.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Dropping it closes the sockets and removes their paths.
#[derive(Debug)]
pub(crate) struct Listeners {
    groups: BTreeMap<Address, Group>,
    stats: Option<Stats>,
    /// Opened by whoever started the instance, and kept open there. So they are kept here too,
    /// whether a pool listens there or not.
    given: BTreeMap<Address, Rc<OwnedFd>>,
    next_id: ListenerId,
}

/// Sockets for new addresses of a snapshot. Dropping it closes them again.
#[derive(Debug)]
pub(crate) struct Bound {
    groups: BTreeMap<Address, Group>,
    stats: Option<Stats>,
}

/// Where the admin process serves the statistics.
#[derive(Debug)]
struct Stats {
    address: SocketAddr,
    socket: Rc<OwnedFd>,
    listens: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The sockets of one address.
#[derive(Debug)]
struct Group {
    /// The pool's name.
    pool: String,
    sockets: Sockets,
}

#[derive(Debug, thiserror::Error)]
#[error("{whose}: cannot listen on {address}: {why}")]
pub struct ListenError {
    whose: String,
    address: String,
    why: Why,
}

impl Listeners {
    /// Like [`bind`](Self::bind), after a previous instance was killed: its workers and its admin
    /// process close their sockets when they notice, which takes a moment.
    pub(crate) fn bind_after(
        snapshot: &Snapshot,
        workers: u32,
        has_stats: bool,
        given: Vec<(Address, OwnedFd)>,
        patience: Duration,
    ) -> Result<Self, ListenError> {
        let given: BTreeMap<Address, Rc<OwnedFd>> =
            given.into_iter().map(|(address, fd)| (address, Rc::new(fd))).collect();
        let deadline = Instant::now() + patience;
        loop {
            match Self::bind_given(snapshot, workers, has_stats, given.clone()) {
                Err(ListenError { why: Why::InUse, .. }) if Instant::now() < deadline => {
                    sleep(TRY_AGAIN);
                }
                bound => return bound,
            }
        }
    }

    /// Uses given sockets where they match.
    #[cfg(test)]
    pub(crate) fn bind(
        snapshot: &Snapshot,
        workers: u32,
        has_stats: bool,
        given: Vec<(Address, OwnedFd)>,
    ) -> Result<Self, ListenError> {
        Self::bind_after(snapshot, workers, has_stats, given, Duration::ZERO)
    }

    fn bind_given(
        snapshot: &Snapshot,
        workers: u32,
        has_stats: bool,
        given: BTreeMap<Address, Rc<OwnedFd>>,
    ) -> Result<Self, ListenError> {
        let mut listeners = Self { groups: BTreeMap::new(), stats: None, given, next_id: 0 };
        let mut bound = listeners.bind_new(snapshot, workers)?;
        if has_stats {
            bound.stats = Some(listeners.bind_stats(snapshot)?);
        }
        listeners.adopt(bound, snapshot);
        listeners.check_given()?;
        Ok(listeners)
    }

    /// Clients of a given socket that nobody accepts from would hang: it stays open whatever we do.
    fn check_given(&self) -> Result<(), ListenError> {
        let stats = self.stats.as_ref().map(|stats| Address::Tcp(stats.address));
        let is_claimed = |address: &&Address| {
            self.groups.contains_key(address) || stats.as_ref() == Some(address)
        };
        match self.given.keys().find(|address| !is_claimed(address)) {
            None => Ok(()),
            Some(address) => Err(ListenError {
                whose: "socket activation".into(),
                address: address.to_string(),
                why: Why::Unclaimed,
            }),
        }
    }

    /// Creates the groups that the snapshot needs and that do not exist.
    pub(crate) fn bind_new(&self, snapshot: &Snapshot, workers: u32) -> Result<Bound, ListenError> {
        // Filled one by one, so that a failure removes the paths created before it.
        let mut bound = Bound { groups: BTreeMap::new(), stats: None };
        for (pool, listen, address) in addresses_of(snapshot) {
            if self.groups.contains_key(&address) {
                continue;
            }
            if let Some(fd) = self.given.get(&address) {
                let socket = Socket { id: ListenerId::MAX, fd: Rc::clone(fd) };
                let group = Group { pool: pool.name.clone(), sockets: Sockets::Given(socket) };
                bound.groups.insert(address, group);
                continue;
            }
            if self.stats.as_ref().is_some_and(|stats| Address::Tcp(stats.address) == address) {
                return Err(error(
                    pool,
                    listen,
                    Why::Ours("the statistics of this instance are there".into()),
                ));
            }
            let overlaps = self.groups.keys().any(|held| held.overlaps(&address));
            let sockets = bind_pool(pool, listen, workers, overlaps)
                .map_err(|why| error(pool, listen, why))?;
            bound.groups.insert(address, Group { pool: pool.name.clone(), sockets });
        }
        let held = self.stats.as_ref().map(|stats| stats.address);
        if held.is_some_and(|held| held != snapshot.global.stats_listen()) {
            bound.stats = Some(self.bind_stats(snapshot)?);
        }
        Ok(bound)
    }

    fn bind_stats(&self, snapshot: &Snapshot) -> Result<Stats, ListenError> {
        let address = snapshot.global.stats_listen();
        self.bind_stats_at(address).map_err(|why| ListenError {
            whose: "statistics".into(),
            address: address.to_string(),
            why,
        })
    }

    fn bind_stats_at(&self, address: SocketAddr) -> Result<Stats, Why> {
        let place = Address::Tcp(address);
        if let Some(given) = self.given.get(&place) {
            return Ok(Stats { address, socket: Rc::clone(given), listens: true });
        }
        if let Some(group) = self.groups.get(&place) {
            return Err(Why::Ours(format!("pool '{}' of this instance listens there", group.pool)));
        }
        let held = self.stats.as_ref().filter(|it| Address::Tcp(it.address).overlaps(&place));
        let Some(held) = held else {
            let socket = tcp_socket(address, false)?;
            rustix::net::listen(&socket, STATS_BACKLOG)?;
            return Ok(Stats { address, socket: Rc::new(socket), listens: true });
        };
        // The kernel allows two sockets side by side only if both agree. The new one listens when
        // the change takes effect; until then the other gets the connections.
        sockopt::set_socket_reuseport(&held.socket, true)?;
        let socket = Rc::new(tcp_socket(address, true)?);
        Ok(Stats { address, socket, listens: false })
    }

    /// Adds sockets to existing groups, so that each worker can have one. They listen at once, and
    /// so have to be dealt at once.
    pub(crate) fn grow(&mut self, snapshot: &Snapshot, workers: u32) -> Result<(), ListenError> {
        for (pool, listen, address) in addresses_of(snapshot) {
            let Some(group) = self.groups.get_mut(&address) else { continue };
            group
                .grow(pool, listen, workers, &mut self.next_id)
                .map_err(|why| error(pool, listen, why))?;
        }
        Ok(())
    }

    /// Serves the addresses of the snapshot from now on and closes all others. All its groups exist
    /// or are in `bound`.
    pub(crate) fn adopt(&mut self, bound: Bound, snapshot: &Snapshot) {
        let mut groups = BTreeMap::new();
        let Bound { groups: mut bound, stats } = bound;
        if let Some(mut stats) = stats {
            stats.listen();
            info!(kind = EventKind::ListenerOpened.name(), "statistics are at {}", stats.address);
            if let Some(before) = self.stats.replace(stats) {
                info!(
                    kind = EventKind::ListenerClosed.name(),
                    "statistics are no more at {}", before.address
                );
            }
        }
        for (pool, listen, address) in addresses_of(snapshot) {
            let (group, is_new) = match self.groups.remove(&address) {
                Some(group) => (Some(group), false),
                None => (bound.remove(&address), true),
            };
            let mut group = group.expect("every address of the snapshot is bound");
            if is_new || group.pool != pool.name {
                pool.name.clone_into(&mut group.pool);
                group.renumber(&mut self.next_id);
                let pool = &pool.name;
                info!(
                    kind = EventKind::ListenerOpened.name(),
                    pool, "pool '{pool}' listens on {listen}"
                );
            }
            group.tune(pool, listen);
            groups.insert(address, group);
        }
        for (address, group) in std::mem::replace(&mut self.groups, groups) {
            let pool = &group.pool;
            info!(
                kind = EventKind::ListenerClosed.name(),
                pool, "pool '{pool}' listens no more on {address}"
            );
        }
    }

    pub(crate) fn hands(&self) -> Vec<Hand> {
        let hand = |group: &Group| match &group.sockets {
            Sockets::Tcp(sockets) => Hand::Spread(sockets.iter().map(|it| it.id).collect()),
            Sockets::Unix { socket, .. } | Sockets::Given(socket) => Hand::Shared(socket.id),
        };
        self.groups.values().map(hand).collect()
    }

    /// All sockets, with the names of their pools.
    pub(crate) fn sockets(&self) -> BTreeMap<ListenerId, (&str, &Rc<OwnedFd>)> {
        let mut sockets = BTreeMap::new();
        for group in self.groups.values() {
            let of_group = group.sockets.all();
            sockets.extend(of_group.iter().map(|it| (it.id, (group.pool.as_str(), &it.fd))));
        }
        sockets
    }

    /// The number of sockets to deal.
    pub(crate) fn dealt(&self) -> usize {
        self.groups.values().map(|group| group.sockets.all().len()).sum()
    }

    pub(crate) fn of_stats(&self) -> Option<Rc<OwnedFd>> {
        self.stats.as_ref().map(|stats| Rc::clone(&stats.socket))
    }

    pub(crate) fn stats_address(&self) -> Option<SocketAddr> {
        self.stats.as_ref().map(|stats| stats.address)
    }
}

/// The sockets, for the next program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ListenersState {
    groups: Vec<GroupState>,
    stats: Option<Place>,
    #[serde(default)]
    given: Vec<(AddressState, Place)>,
    next_id: ListenerId,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct GroupState {
    pool: String,
    address: AddressState,
    /// Of the path, if this instance created it.
    #[serde(default)]
    inode: Option<Inode>,
    #[serde(default)]
    is_given: bool,
    sockets: Vec<(ListenerId, Place)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AddressState {
    Tcp(SocketAddr),
    Unix(Text),
}

impl ListenersState {
    /// The pools that have sockets.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| group.pool.as_str())
    }

    pub(crate) fn has_stats(&self) -> bool {
        self.stats.is_some()
    }
}

impl Listeners {
    pub(crate) fn state(&self, pack: &mut Pack) -> ListenersState {
        let group = |(address, group): (&Address, &Group)| GroupState {
            pool: group.pool.clone(),
            address: address.state(),
            inode: match &group.sockets {
                Sockets::Unix { inode, .. } => Some(*inode),
                Sockets::Tcp(_) | Sockets::Given(_) => None,
            },
            is_given: matches!(group.sockets, Sockets::Given(_)),
            sockets: group.sockets.all().iter().map(|it| (it.id, pack.put(&it.fd))).collect(),
        };
        let groups = self.groups.iter().map(group).collect();
        let stats = self.stats.as_ref().map(|stats| pack.put(&stats.socket));
        let given = self.given.iter().map(|(address, fd)| (address.state(), pack.put(fd)));
        ListenersState { groups, stats, given: given.collect(), next_id: self.next_id }
    }

    pub(crate) fn resume(state: ListenersState, descriptors: &Unpack) -> Result<Self, String> {
        let stats = state.stats.map(|place| Stats::resume(descriptors.get(place)?)).transpose()?;
        let given = state.given.into_iter();
        let given = given
            .map(|(address, place)| Ok((address.into(), descriptors.get(place)?)))
            .collect::<Result<_, String>>()?;
        // All sockets come first: a failure must not drop a group, since that removes its path.
        let mut found = Vec::new();
        for group in state.groups {
            let socket = |&(id, place): &_| Ok(Socket { id, fd: descriptors.get(place)? });
            let sockets = group.sockets.iter().map(socket).collect::<Result<Vec<_>, String>>()?;
            if sockets.is_empty() {
                return Err(format!("the sockets of pool '{}' are missing", group.pool));
            }
            found.push((group, sockets));
        }
        let group = |(state, mut sockets): (GroupState, Vec<Socket>)| {
            let address = Address::from(state.address);
            let sockets = match (&address, state.inode) {
                _ if state.is_given => Sockets::Given(sockets.remove(0)),
                (Address::Unix(path), Some(inode)) => {
                    Sockets::Unix { socket: sockets.remove(0), path: path.clone(), inode }
                }
                (Address::Tcp(_) | Address::Unix(_), _) => Sockets::Tcp(sockets),
            };
            (address, Group { pool: state.pool, sockets })
        };
        let groups = found.into_iter().map(group).collect();
        Ok(Self { groups, stats, given, next_id: state.next_id })
    }
}

impl From<AddressState> for Address {
    fn from(state: AddressState) -> Self {
        match state {
            AddressState::Tcp(address) => Self::Tcp(address),
            AddressState::Unix(path) => Self::Unix(path.into()),
        }
    }
}

impl Address {
    fn state(&self) -> AddressState {
        match self {
            Self::Tcp(address) => AddressState::Tcp(*address),
            Self::Unix(path) => AddressState::Unix(path.as_path().into()),
        }
    }

    /// `None` of a pool that only routes lead to.
    fn of(listen: &Listen) -> Option<Self> {
        match listen {
            Listen::Tcp(address) => Some(Self::Tcp(*address)),
            Listen::Unix { path, .. } => Some(Self::Unix(path.clone())),
            Listen::Nowhere => None,
        }
    }

    /// Whether the kernel would see a second listener here.
    fn overlaps(&self, other: &Self) -> bool {
        let (Self::Tcp(one), Self::Tcp(other)) = (self, other) else { return false };
        let ips = [one.ip(), other.ip()];
        one.port() == other.port() && (ips[0] == ips[1] || ips.iter().any(|ip| ip.is_unspecified()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Stats {
    fn resume(socket: Rc<OwnedFd>) -> Result<Self, String> {
        let address = rustix::net::getsockname(&socket).ok();
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        let address = address.ok_or("the socket of the statistics has no address")?;
        Ok(Self { address, socket, listens: true })
    }

    fn listen(&mut self) {
        if self.listens {
            return;
        }
        match rustix::net::listen(&self.socket, STATS_BACKLOG) {
            Ok(()) => self.listens = true,
            Err(errno) => error!("statistics: cannot listen on {}: {errno}", self.address),
        }
    }
}

impl Group {
    fn grow(
        &mut self,
        pool: &Pool,
        listen: &Listen,
        workers: u32,
        next_id: &mut ListenerId,
    ) -> Result<(), Why> {
        let (Sockets::Tcp(sockets), Listen::Tcp(address)) = (&mut self.sockets, listen) else {
            return Ok(());
        };
        while sockets.len() < workers as usize {
            let fd = tcp_socket(*address, true)?;
            listen_tcp(&fd, backlog(pool), pool.tcp_keepalive)?;
            sockets.push(Socket { id: take(next_id), fd: Rc::new(fd) });
        }
        Ok(())
    }

    fn renumber(&mut self, next_id: &mut ListenerId) {
        self.sockets.all_mut().iter_mut().for_each(|socket| socket.id = take(next_id));
    }

    /// Applies the pool's options to future connections.
    fn tune(&self, pool: &Pool, listen: &Listen) {
        let tune = || -> Result<(), Why> {
            for socket in self.sockets.all() {
                // On a listening socket this changes the length of its queue.
                rustix::net::listen(&socket.fd, backlog(pool))?;
                if let Listen::Tcp(_) = listen {
                    // A given socket may not have it yet.
                    sockopt::set_tcp_nodelay(&socket.fd, true)?;
                    sockopt::set_socket_keepalive(&socket.fd, pool.tcp_keepalive)?;
                }
            }
            let is_ours = !matches!(self.sockets, Sockets::Given(_));
            if let (Listen::Unix { path, mode: Some(mode) }, true) = (listen, is_ours) {
                fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
            }
            Ok(())
        };
        if let Err(why) = tune() {
            warn!("{}", error(pool, listen, why));
        }
    }
}

fn take(next_id: &mut ListenerId) -> ListenerId {
    let id = *next_id;
    *next_id += 1;
    id
}

/// All addresses at which pools listen.
fn addresses_of(snapshot: &Snapshot) -> impl Iterator<Item = (&Pool, &Listen, Address)> {
    snapshot.pools.iter().flat_map(|pool| {
        pool.listens().filter_map(move |listen| Some((pool, listen, Address::of(listen)?)))
    })
}

fn error(pool: &Pool, listen: &Listen, why: Why) -> ListenError {
    let address = listen.to_string();
    ListenError { whose: format!("pool '{}'", pool.name), address, why }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::sockets::tests::Directory;
    use super::*;
    use crate::addresses::free_address;

    #[test]
    fn a_shared_port_counts_as_in_use() {
        let address = free_address();
        let theirs = tcp_socket(address, true).unwrap();
        rustix::net::listen(&theirs, 1).unwrap();
        let snapshot = snapshot(&[("a", &address.to_string())]);
        let refused = Listeners::bind(&snapshot, 2, false, Vec::new()).unwrap_err();
        assert!(matches!(refused.why, Why::InUse));
        drop(theirs);
        wait_refused(&address.to_string());
        Listeners::bind(&snapshot, 2, false, Vec::new()).unwrap();
    }

    #[test]
    fn a_group_stays_as_long_as_its_address_is_served() {
        let [one, other, third] = [(); 3].map(|()| free_address().to_string());
        let before = snapshot(&[("a", &one), ("b", &other)]);
        let mut listeners = Listeners::bind(&before, 2, false, Vec::new()).unwrap();
        let ids = |listeners: &Listeners| -> Vec<(ListenerId, String)> {
            listeners.sockets().into_iter().map(|(id, (pool, _))| (id, pool.to_owned())).collect()
        };
        let named = |ids: &[u32], pool: &str| -> Vec<(ListenerId, String)> {
            ids.iter().map(|&id| (id, pool.to_owned())).collect()
        };
        assert_eq!(ids(&listeners), [named(&[0, 1], "a"), named(&[2, 3], "b")].concat());
        let waiting = TcpStream::connect(&one).unwrap();

        // One pool keeps its address, the other moves; there is one more worker.
        let after = snapshot(&[("a", &one), ("b", &third)]);
        listeners.grow(&after, 3).unwrap();
        let bound = listeners.bind_new(&after, 3).unwrap();
        listeners.adopt(bound, &after);
        let expected = [named(&[0, 1, 4], "a"), named(&[5, 6, 7], "b")].concat();
        assert_eq!(ids(&listeners), expected);
        wait_refused(&other);
        TcpStream::connect(&third).unwrap();
        drop(waiting);

        // Two pools swap addresses: their sockets are told apart from the former ones.
        let swapped = snapshot(&[("a", &third), ("b", &one)]);
        let bound = listeners.bind_new(&swapped, 3).unwrap();
        listeners.adopt(bound, &swapped);
        let expected = [named(&[8, 9, 10], "a"), named(&[11, 12, 13], "b")].concat();
        assert_eq!(ids(&listeners), expected);
    }

    #[test]
    fn a_given_socket_is_used_and_stays() {
        let dir = Directory::new("given");
        let path = dir.0.join("socket");
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = tcp.local_addr().unwrap();
        let unix = UnixListener::bind(&path).unwrap();
        let given = || -> Vec<(Address, OwnedFd)> {
            vec![
                (Address::Tcp(address), tcp.try_clone().unwrap().into()),
                (Address::Unix(path.clone()), unix.try_clone().unwrap().into()),
            ]
        };
        let (tcp_text, unix_text) = (address.to_string(), path.display().to_string());
        let both = snapshot(&[("a", &tcp_text), ("b", &unix_text)]);
        let mut listeners = Listeners::bind(&both, 2, false, given()).unwrap();
        assert_eq!(listeners.hands(), [Hand::Shared(0), Hand::Shared(1)]);
        listeners.grow(&both, 5).unwrap();
        assert_eq!(listeners.hands().len(), 2);
        // A pool disappears and returns; the socket stays all the time.
        for pools in [&[("a", &*tcp_text)][..], &[("a", &tcp_text), ("b", &unix_text)]] {
            let next = snapshot(pools);
            let bound = listeners.bind_new(&next, 5).unwrap();
            listeners.adopt(bound, &next);
            UnixStream::connect(&path).unwrap();
        }
        drop(listeners);
        TcpStream::connect(address).unwrap();
        UnixStream::connect(&path).unwrap();

        let error = Listeners::bind(&snapshot(&[("a", &tcp_text)]), 2, false, given()).unwrap_err();
        assert!(error.to_string().starts_with("socket activation: cannot listen on /"), "{error}");
        let elsewhere = free_address().to_string();
        let mut other = snapshot(&[("a", &elsewhere), ("b", &unix_text)]);
        other.global.stats_listen = Some(address);
        Listeners::bind(&other, 2, true, given()).unwrap();
    }

    #[test]
    fn unneeded_bound_sockets_are_closed() {
        let [one, other] = [(); 2].map(|()| free_address().to_string());
        let dir = Directory::new("unneeded");
        let path = dir.0.join("socket").display().to_string();
        let listeners = Listeners::bind(&snapshot(&[("a", &one)]), 1, false, Vec::new()).unwrap();
        let bound = listeners.bind_new(&snapshot(&[("b", &other), ("c", &path)]), 1).unwrap();
        TcpStream::connect(&other).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(bound);
        wait_refused(&other);
        assert!(!Path::new(&path).exists());
        TcpStream::connect(&one).unwrap();
    }

    #[test]
    fn a_wildcard_address_replaces_a_specific_one() {
        let port = free_address().port();
        let one = snapshot(&[("a", &format!("127.0.0.1:{port}"))]);
        let all = snapshot(&[("a", &format!("0.0.0.0:{port}"))]);
        let mut listeners = Listeners::bind(&one, 1, false, Vec::new()).unwrap();
        for next in [&all, &one] {
            let bound = listeners.bind_new(next, 1).unwrap();
            listeners.adopt(bound, next);
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }

    fn with_stats(address: SocketAddr, pools: &[(&str, &str)]) -> Snapshot {
        let mut snapshot = snapshot(&[&[("none", "127.0.0.1:1")], pools].concat());
        snapshot.pools.retain(|pool| pool.name != "none");
        snapshot.global.stats_listen = Some(address);
        snapshot
    }

    /// Whether a client can reach the statistics socket, which may take a moment.
    fn is_listening_at(listeners: &Listeners, address: SocketAddr) -> bool {
        let socket = TcpListener::from(listeners.of_stats().unwrap().try_clone().unwrap());
        let Ok(client) = TcpStream::connect(address) else { return false };
        let client = client.local_addr().unwrap();
        comes_true(|| socket.accept().is_ok_and(|(_, peer)| peer == client))
    }

    /// Waits until nobody listens there. A process that another test has just started inherits this
    /// test's sockets until its exec.
    fn wait_refused(address: &str) {
        assert!(comes_true(|| TcpStream::connect(address).is_err()), "{address} is served");
    }

    fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !condition() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    #[test]
    fn the_statistics_move_when_a_change_is_in_effect() {
        let [one, other] = [(); 2].map(|()| free_address());
        let before = with_stats(one, &[]);
        let mut listeners = Listeners::bind(&before, 1, true, Vec::new()).unwrap();
        let admin = listeners.of_stats().unwrap();
        assert!(is_listening_at(&listeners, one));
        let after = with_stats(other, &[]);
        drop(listeners.bind_new(&after, 1).unwrap());
        wait_refused(&other.to_string());
        assert!(is_listening_at(&listeners, one));
        let bound = listeners.bind_new(&after, 1).unwrap();
        listeners.adopt(bound, &after);
        assert_eq!(listeners.stats_address(), Some(other));
        assert!(is_listening_at(&listeners, other));
        // The connection goes to the owner.
        TcpStream::connect(one).unwrap();
        drop(admin);
        wait_refused(&one.to_string());
    }

    #[test]
    fn the_statistics_move_between_wildcard_and_specific_address() {
        let one = free_address();
        let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, one.port()));
        let before = with_stats(all, &[]);
        let mut listeners = Listeners::bind(&before, 1, true, Vec::new()).unwrap();
        for next in [one, all, one] {
            let next = with_stats(next, &[]);
            // A change that is given up leaves everything as it is.
            for _ in 0..2 {
                drop(listeners.bind_new(&next, 1).unwrap());
                assert!(is_listening_at(&listeners, one));
            }
            let bound = listeners.bind_new(&next, 1).unwrap();
            assert!(is_listening_at(&listeners, one), "until it is in effect");
            listeners.adopt(bound, &next);
            assert!(is_listening_at(&listeners, one));
        }
        let theirs = SocketAddr::from(([127, 0, 0, 2], one.port()));
        TcpListener::bind(theirs).unwrap();
    }

    #[test]
    fn the_statistics_stay_where_they_are_if_they_cannot_move() {
        let [one, pool, third] = [(); 3].map(|()| free_address());
        let [one_text, pool_text, third_text] = [one, pool, third].map(|it| it.to_string());
        let pools = [("a", &*pool_text)];
        let before = with_stats(one, &pools);
        let mut listeners = Listeners::bind(&before, 1, true, Vec::new()).unwrap();
        let theirs = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = theirs.local_addr().unwrap();
        let why = |listeners: &Listeners, address, pools: &[(&str, &str)]| {
            listeners.bind_new(&with_stats(address, pools), 1).unwrap_err().to_string()
        };
        assert_eq!(
            why(&listeners, taken, &pools),
            format!("statistics: cannot listen on {taken}: another process already listens there")
        );
        assert_eq!(
            why(&listeners, pool, &[("a", &third_text)]),
            format!(
                "statistics: cannot listen on {pool}: pool 'a' of this instance listens there \
                 until the change is in effect; make it in two steps"
            )
        );
        assert_eq!(
            why(&listeners, taken, &[("a", &one_text)]),
            format!(
                "pool 'a': cannot listen on {one}: the statistics of this instance are there \
                 until the change is in effect; make it in two steps"
            )
        );
        assert!(is_listening_at(&listeners, one));
        let bound = listeners.bind_new(&before, 1).unwrap();
        listeners.adopt(bound, &before);
        assert!(is_listening_at(&listeners, one));
    }

    fn snapshot(pools: &[(&str, &str)]) -> Snapshot {
        let mut text = String::new();
        for (name, listen) in pools {
            text += &format!("{name}:\n  listen: {listen}\n  servers:\n   - 127.0.0.1:65535:1\n");
        }
        let loaded = cashew_config::parse("test.yml", &text, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }
}
