//! What one node of a cluster says, read. Whatever else comes is nothing.

use std::collections::{BTreeMap, BTreeSet};

use cashew_config::snapshot::{Address, SLOTS, SlotRange};
use cashew_protocol::resp::{Reply, reply};

use crate::answer::{address, text};

/// Nodes beyond this number are not read: Redis is made for some 1000.
const NODES_MAX: usize = 1000;

/// How one node sees the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// By their ids.
    pub(crate) nodes: BTreeMap<String, NodeView>,
    /// It says that the cluster serves no keys.
    pub(crate) is_down: bool,
    /// Slots that move from or to the node that says this: others do not know. Of Valkey also from or to its primary.
    pub(crate) moving: BTreeSet<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub(crate) address: Address,
    /// The node has said where it is, rather than to be where it was asked.
    pub(crate) is_named: bool,
    /// The node itself says it.
    pub(crate) is_own: bool,
    /// Whose replica it is, by id; `None` of a primary.
    pub(crate) primary: Option<String>,
    pub(crate) is_failed: bool,
    /// It does not answer the node that says this.
    pub(crate) is_suspected: bool,
    pub(crate) epoch: u64,
    pub(crate) slots: Vec<SlotRange>,
    pub(crate) zone: Option<String>,
}

impl View {
    /// Of the answers to CLUSTER NODES, CLUSTER SLOTS and CLUSTER INFO at that address. `None` where the first
    /// is none: an error, or of a server that is in no cluster.
    pub(crate) fn read(nodes: &[u8], slots: &[u8], info: &[u8], asked: &Address) -> Option<Self> {
        let (mut view, hostnames) = read_nodes(text(nodes)?, asked)?;
        let endpoints = read_endpoints(slots, asked);
        // Nodes without slots are not among them: they are named as the others are.
        let by_hostname = endpoints.iter().any(|(id, endpoint)| {
            let named = hostnames.get(id).zip(endpoint.host.as_ref());
            named.is_some_and(|(hostname, host)| hostname == host)
        });
        for (id, node) in &mut view.nodes {
            if let Some(hostname) = hostnames.get(id).filter(|_| by_hostname) {
                (node.address.host, node.is_named) = (hostname.clone(), true);
            }
            let Some(Endpoint { host, port, is_named, zone }) = endpoints.get(id) else { continue };
            if let Some(host) = host {
                node.address = Address { host: host.clone(), port: *port };
                node.is_named = *is_named;
            }
            node.zone.clone_from(zone);
        }
        view.is_down = text(info)
            .is_some_and(|info| info.lines().any(|line| line.trim() == "cluster_state:fail"));
        Some(view)
    }

    pub(crate) fn owns_slots(&self) -> bool {
        self.nodes.values().any(|node| !node.slots.is_empty())
    }

    /// Whether the cluster is about to fail over: it serves nothing, or some owner of slots does not answer.
    pub(crate) fn is_in_trouble(&self) -> bool {
        let is_lost =
            |node: &NodeView| !node.slots.is_empty() && (node.is_failed || node.is_suspected);
        self.is_down || self.nodes.values().any(is_lost)
    }
}

/// The nodes, and the host names of those that have one.
fn read_nodes(text: &str, asked: &Address) -> Option<(View, BTreeMap<String, String>)> {
    let (mut view, mut hostnames) = (View::default(), BTreeMap::new());
    if text.lines().nth(NODES_MAX).is_some() {
        return None;
    }
    for line in text.lines() {
        view.moving.extend(line.split_ascii_whitespace().skip(8).filter_map(read_moving));
        let Some((id, hostname, node)) = read_node(line, asked) else { continue };
        if let Some(hostname) = hostname {
            hostnames.insert(id.clone(), hostname);
        }
        view.nodes.insert(id, node);
    }
    (!view.nodes.is_empty()).then_some((view, hostnames))
}

/// `<id> <ip:port@cport[,hostname][,name=value…]> <flags> <primary> <ping> <pong> <epoch> <link> <slot>…`
fn read_node(line: &str, asked: &Address) -> Option<(String, Option<String>, NodeView)> {
    let mut words = line.split_ascii_whitespace();
    let (id, place, flags, primary) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (_, _, epoch, _) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let has = |flag: &str| flags.split(',').any(|it| it == flag);
    // Nobody knows where it is, or whether it belongs to the cluster.
    if id.len() > ID_SIZE_MAX || has("noaddr") || has("handshake") {
        return None;
    }
    let mut parts = place.split(',');
    let (host, port) = parts.next()?.split('@').next()?.rsplit_once(':')?;
    let is_named = !host.is_empty();
    let address = address(if is_named { host } else { &asked.host }, port)?;
    let hostname = parts.next().filter(|it| !it.is_empty() && !it.contains('='));
    let hostname = hostname.and_then(|it| Some(self::address(it, port)?.host));
    let is_replica = has("slave") || has("replica");
    let node = NodeView {
        address,
        is_named,
        is_own: has("myself"),
        primary: (is_replica && primary != "-").then(|| primary.to_owned()),
        is_failed: has("fail"),
        is_suspected: has("fail?"),
        epoch: epoch.parse().ok()?,
        // A replica owns none, whatever is said.
        slots: if is_replica { Vec::new() } else { words.filter_map(read_slots).collect() },
        zone: None,
    };
    Some((id.to_owned(), hostname, node))
}

/// As long as Redis makes them.
const ID_SIZE_MAX: usize = 40;

/// `0-5460`, or `5461`. What is on its way, like `[93->-id]`, is no owner's.
fn read_slots(word: &str) -> Option<SlotRange> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let slot = |text: &str| text.parse().ok().filter(|slot| *slot < SLOTS);
    let (first, last) = (slot(first)?, slot(last)?);
    (first <= last).then_some(SlotRange { first, last })
}

/// `[93->-id]`: what is being given away, or `[93-<-id]`: what is being taken.
fn read_moving(word: &str) -> Option<u16> {
    let (slot, _) = word.strip_prefix('[')?.strip_suffix(']')?.split_once('-')?;
    slot.parse().ok().filter(|slot| *slot < SLOTS)
}

struct Endpoint {
    /// `None` where the node does not know it.
    host: Option<String>,
    port: u16,
    is_named: bool,
    zone: Option<String>,
}

/// Where clients find nodes, by their ids: as redirects name them. Of CLUSTER SLOTS:
/// `[[first, last, [endpoint, port, id, [name, value, …]], …], …]`.
fn read_endpoints(bytes: &[u8], asked: &Address) -> BTreeMap<String, Endpoint> {
    let mut found = BTreeMap::new();
    let Some(Reply::Array(ranges)) = reply(bytes) else { return found };
    for range in ranges {
        let Some(Reply::Array(elements)) = reply(range) else { continue };
        for node in elements.skip(2) {
            if found.len() < NODES_MAX
                && let Some((id, endpoint)) = read_endpoint(node, asked)
            {
                found.entry(id).or_insert(endpoint);
            }
        }
    }
    found
}

fn read_endpoint(bytes: &[u8], asked: &Address) -> Option<(String, Endpoint)> {
    let Reply::Array(mut elements) = reply(bytes)? else { return None };
    let host = match reply(elements.next()?)? {
        Reply::Bulk(host) => std::str::from_utf8(host).ok()?,
        // Where it was asked.
        Reply::Nil => "",
        _ => return None,
    };
    let Reply::Integer(port) = reply(elements.next()?)? else { return None };
    let port = u16::try_from(port).ok()?;
    let id = text(elements.next()?)?.to_owned();
    let is_named = !host.is_empty();
    let place = if is_named { host } else { &asked.host };
    let host = (place != "?").then(|| address(place, &port.to_string())).flatten();
    let zone = elements.next().and_then(|rest| {
        let (Reply::Array(mut rest) | Reply::Map(mut rest)) = reply(rest)? else { return None };
        loop {
            let (name, value) = (rest.next()?, rest.next()?);
            if text(name) == Some("availability-zone") {
                return text(value).filter(|zone| !zone.is_empty()).map(str::to_owned);
            }
        }
    });
    Some((id, Endpoint { host: host.map(|it| it.host), port, is_named, zone }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    pub(crate) fn bulk(text: &str) -> Vec<u8> {
        format!("${}\r\n{text}\r\n", text.len()).into_bytes()
    }

    /// Of a node at "asked", with addresses as in CLUSTER NODES.
    pub(crate) fn view(nodes: &str) -> View {
        View::read(&bulk(nodes), b"-ERR no\r\n", b"-ERR no\r\n", &at("asked", 1)).unwrap()
    }

    fn shown(view: &View) -> Vec<(String, String)> {
        let nodes = view.nodes.iter();
        nodes.map(|(id, node)| (id.clone(), node.address.to_string())).collect()
    }

    #[test]
    fn nodes_of_all_versions_are_read() {
        // Redis 3, 6.2, 7.0 with and without a host name, 7.2, and what is to come.
        let view = view(
            "a 10.0.0.1:7001 myself,master - 0 0 3 connected 0-99 200\n\
             b 10.0.0.2:7002@17002 slave a 0 1426238317239 4 connected\n\
             c ::1:7003@17003,c.example master,fail? - 1426238316232 0 5 connected 100-199 [300->-d] [301-<-e]\n\
             d 10.0.0.4:7004@17004,,shard-id=xyz,tls-port=0 master,nofailover - 0 0 6 disconnected 300 301-16383 400-300 16384 x\n\
             e :7005@17005 master,fail - 0 0 0 connected more=things\n\
             f :0@0 master,noaddr - 0 0 7 connected 5\n\
             g 10.0.0.7:7007@17007 handshake - 0 0 0 connected\n\
             h 10.0.0.8:7008@17008 replica b 0 0 4 connected 1-2\n\
             vars currentEpoch 7 lastVoteEpoch 0\n\n",
        );
        let expected = [
            ("a", "10.0.0.1:7001"),
            ("b", "10.0.0.2:7002"),
            ("c", "[::1]:7003"),
            ("d", "10.0.0.4:7004"),
            ("e", "asked:7005"),
            ("h", "10.0.0.8:7008"),
        ];
        let expected = expected.map(|(id, at)| (id.to_owned(), at.to_owned()));
        assert_eq!(shown(&view), expected);
        let node = |id: &str| &view.nodes[id];
        let slots = |id: &str| -> Vec<_> {
            node(id).slots.iter().map(|range| (range.first, range.last)).collect()
        };
        assert_eq!(slots("a"), [(0, 99), (200, 200)]);
        assert_eq!(slots("c"), [(100, 199)]);
        assert_eq!(slots("d"), [(300, 300), (301, 16_383)]);
        assert_eq!((slots("e"), slots("h")), (vec![], vec![]));
        assert_eq!(node("b").primary.as_deref(), Some("a"));
        assert!(node("a").is_own && !node("b").is_own && !node("e").is_named);
        assert!(node("c").is_suspected && !node("c").is_failed && node("e").is_failed);
        assert_eq!(["a", "c", "e"].map(|id| node(id).epoch), [3, 5, 0]);
        assert!(view.is_in_trouble() && view.owns_slots());
        assert_eq!(view.moving, BTreeSet::from([300, 301]));
    }

    #[test]
    fn what_is_no_list_of_nodes_is_nothing() {
        let read = |nodes: &[u8]| View::read(nodes, b"*0\r\n", b"$0\r\n\r\n", &at("asked", 1));
        let error = b"-ERR This instance has cluster support disabled\r\n";
        for answer in [&error[..], b"$-1\r\n", b"*0\r\n", b"$2\r\nab\r\n", b"", b"$9\r\nab\r\n"] {
            assert_eq!(read(answer), None);
        }
    }

    #[test]
    fn nodes_are_named_as_redirects_name_them() {
        let nodes = bulk(
            "a 10.0.0.1:7001@17001,one.example myself,master - 0 0 1 connected 0-99\n\
             b 10.0.0.2:7002@17002,two.example slave a 0 0 1 connected\n\
             c 10.0.0.3:7003@17003,three.example master - 0 0 2 connected\n",
        );
        let slots = |host: &str| {
            let zone = "*2\r\n$17\r\navailability-zone\r\n$2\r\neu\r\n";
            format!(
                "*1\r\n*4\r\n:0\r\n:99\r\n*4\r\n{}:7001\r\n$1\r\na\r\n{zone}*4\r\n{}:7002\r\n$1\r\nb\r\n*0\r\n",
                host.replace("HOST", "one").replace("LEN", "11"),
                host.replace("HOST", "two").replace("LEN", "11"),
            )
        };
        let read = |host: &str| {
            let info = bulk("cluster_enabled:1\r\ncluster_state:fail\r\n");
            View::read(&nodes, slots(host).as_bytes(), &info, &at("asked", 1)).unwrap()
        };
        let names = |view: &View| -> Vec<String> {
            view.nodes.values().map(|node| node.address.host.clone()).collect()
        };
        let named = read("$LEN\r\nHOST.example\r\n");
        assert_eq!(names(&named), ["one.example", "two.example", "three.example"]);
        assert_eq!(named.nodes["a"].zone.as_deref(), Some("eu"));
        assert_eq!(named.nodes["b"].zone, None);
        assert!(named.is_down && named.is_in_trouble());
        // Where it was asked, or not known: then where the nodes talk to each other.
        for host in ["$-1\r\n", "_\r\n", "$0\r\n\r\n"] {
            assert_eq!(names(&read(host)), ["asked", "asked", "10.0.0.3"], "{host:?}");
        }
        assert_eq!(names(&read("$1\r\n?\r\n")), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        // Of Redis 6 and before, without anything else.
        let old = b"*1\r\n*3\r\n:0\r\n:99\r\n*2\r\n$8\r\n10.0.0.9\r\n:7001\r\n";
        let view = View::read(&nodes, old, b"-ERR\r\n", &at("asked", 1)).unwrap();
        assert_eq!(names(&view), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    }
}
