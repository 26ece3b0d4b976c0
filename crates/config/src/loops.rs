//! Finds pools whose servers are listeners of the same file. If a pool leads back to itself, a
//! request would loop without end.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use crate::address::ServerLine;
use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::resolve::Context;
use crate::snapshot::{Endpoint, Listen, Pool};

/// A pool, and its servers as in the file.
pub(crate) type PoolLines<'a> = (&'a Pool, &'a [At<ServerLine>]);

pub(crate) fn check(pools: &[PoolLines<'_>], context: &Context<'_>, report: &mut Report<'_>) {
    let listeners = Listeners::new(pools, context);
    let mut edges = Vec::new();
    for (from, (_, lines)) in pools.iter().enumerate() {
        for line in *lines {
            let replicas = line.value.replicas.iter().map(|it| (&it.value.endpoint, it.pos));
            for (endpoint, pos) in [(&line.value.endpoint, line.pos)].into_iter().chain(replicas) {
                if let Some(to) = listeners.find(endpoint) {
                    edges.push(Edge { from, to, pos });
                }
            }
        }
    }
    let edges_of_servers = edges.len();
    let by_name: HashMap<&str, usize> =
        pools.iter().enumerate().map(|(at, (pool, _))| (pool.name.as_str(), at)).collect();
    for (from, (pool, _)) in pools.iter().enumerate() {
        let of_users = pool.user_routes.iter().map(|it| &it.route);
        let led_to = pool.route.iter().chain(of_users).flat_map(|route| route.pools());
        let led_to = led_to.filter_map(|name| by_name.get(name));
        edges.extend(led_to.map(|&to| Edge { from, to, pos: Pos::NONE }));
    }
    let circles = circles(pools.len(), &edges);
    edges.truncate(edges_of_servers);
    let name = |pool: usize| &pools[pool].0.name;
    for &Edge { from, to, pos } in &edges {
        if from == to {
            let complaint = Complaint::new("this server is the pool's own listener");
            report.error(pos, complaint.hint("its requests would come back without end"));
        } else if circles[from] == circles[to] {
            let message = format!(
                "this server is the listener of pool \"{}\", whose servers lead back to \"{}\"",
                name(to),
                name(from)
            );
            report.error(pos, Complaint::new(message).hint("requests could go round without end"));
        } else {
            let message = format!("this server is the listener of pool \"{}\"", name(to));
            let hint = "requests go through the gateway twice; name the servers of that pool here \
                        if this is not meant";
            report.warning(pos, Complaint::new(message).hint(hint));
        }
    }
}

/// A server that is the listener of a pool, or a pool that a route or a user leads to.
#[derive(Clone, Copy)]
struct Edge {
    from: usize,
    to: usize,
    pos: Pos,
}

struct Listeners<'a> {
    by_port: HashMap<u16, Vec<(IpAddr, usize)>>,
    by_path: HashMap<&'a Path, usize>,
    is_local: &'a dyn Fn(IpAddr) -> bool,
}

impl<'a> Listeners<'a> {
    fn new(pools: &[PoolLines<'a>], context: &'a Context<'_>) -> Self {
        let mut listeners =
            Self { by_port: HashMap::new(), by_path: HashMap::new(), is_local: context.is_local };
        for (at, (pool, _)) in pools.iter().enumerate() {
            for listen in pool.listens() {
                match listen {
                    Listen::Tcp(address) => {
                        let same_port = listeners.by_port.entry(address.port()).or_default();
                        same_port.push((address.ip(), at));
                    }
                    Listen::Unix { path, .. } => {
                        listeners.by_path.insert(path, at);
                    }
                    Listen::Nowhere => {}
                }
            }
        }
        listeners
    }

    /// The pool whose listener the server is.
    fn find(&self, server: &Endpoint) -> Option<usize> {
        match server {
            Endpoint::Unix(path) => self.by_path.get(path.as_path()).copied(),
            Endpoint::Tcp { port, .. } => {
                // Most servers have a port that no pool listens on.
                let same_port = self.by_port.get(port)?;
                let address = numeric_address(server)?;
                let found = same_port.iter().find(|(ip, _)| self.leads(address.ip(), *ip))?;
                Some(found.1)
            }
        }
    }

    /// Whether a connection to one address reaches a listener at another one.
    fn leads(&self, to: IpAddr, listener: IpAddr) -> bool {
        let is_here = || to.is_loopback() || to.is_unspecified() || (self.is_local)(to);
        // A listener at `[::]` accepts IPv4 as well.
        let is_taken = to.is_ipv4() == listener.is_ipv4() || listener.is_ipv6();
        to == listener
            || listener.is_unspecified() && is_taken && is_here()
            || to.is_unspecified() && to.is_ipv4() == listener.is_ipv4() && listener.is_loopback()
    }
}

/// The address of a server, unless it is a name that has to be looked up.
pub(crate) fn numeric_address(server: &Endpoint) -> Option<SocketAddr> {
    let Endpoint::Tcp { host, port } = server else { return None };
    let ip = match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical(),
        Err(_) if host.eq_ignore_ascii_case("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Err(_) => return None,
    };
    Some(SocketAddr::new(ip, *port))
}

/// Numbers the cycles: two pools have the same number if each can be reached from the other
/// (strongly connected components, by Kosaraju).
fn circles(pools: usize, edges: &[Edge]) -> Vec<usize> {
    let neighbours = |key: fn(&Edge) -> (usize, usize)| {
        let mut map: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (from, to) in edges.iter().map(key) {
            map.entry(from).or_default().push(to);
        }
        map
    };
    let (forth, back) = (neighbours(|it| (it.from, it.to)), neighbours(|it| (it.to, it.from)));
    let mut is_seen = vec![false; pools];
    let mut finished = Vec::new();
    for start in 0..pools {
        walk(start, &forth, &mut is_seen, |pool| finished.push(pool));
    }
    let (mut is_seen, mut numbers) = (vec![false; pools], vec![0; pools]);
    for start in finished.into_iter().rev() {
        walk(start, &back, &mut is_seen, |pool| numbers[pool] = start);
    }
    numbers
}

/// Visits everything that was not seen, and calls back for each node after all its successors.
fn walk(
    start: usize,
    neighbours: &BTreeMap<usize, Vec<usize>>,
    is_seen: &mut [bool],
    mut done: impl FnMut(usize),
) {
    if std::mem::replace(&mut is_seen[start], true) {
        return;
    }
    let of = |pool: usize| neighbours.get(&pool).map_or(&[][..], Vec::as_slice).iter();
    let mut path = vec![(start, of(start))];
    while let Some((pool, rest)) = path.last_mut() {
        match rest.next() {
            Some(&next) if std::mem::replace(&mut is_seen[next], true) => {}
            Some(&next) => path.push((next, of(next))),
            None => {
                done(*pool);
                path.pop();
            }
        }
    }
}
