//! A gateway that looks like a cluster to clients that want one: CLUSTER and ASKING.
//!
//! Its nodes are gateways, each of which serves all keys: so that no client ever has to be redirected. They
//! share the slots, evenly, only so that clients spread over them. Every gateway with the same list
//! tells the same of all nodes, but for which of them it is itself.

use std::fmt::Write;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use cashew_config::snapshot::{Address, Pose};
use cashew_placement::{SLOTS, slot_of};
use cashew_protocol::Span;
use cashew_protocol::redis::{Command, NO_CLUSTER_TEXT};
use cashew_protocol::resp::{self, Version, encode};

use crate::base::id::{ClientId, ListenerId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;

/// The port that nodes talk to each other at is so much higher.
const BUS_PORT_OFFSET: u16 = 10_000;

const HELP: [&str; 23] = [
    "CLUSTER <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "COUNT-FAILURE-REPORTS <node-id>",
    "    Return 0: gateways do not report each other.",
    "INFO",
    "    Return information about the cluster.",
    "KEYSLOT <key>",
    "    Return the hash slot for <key>.",
    "LINKS",
    "    Return no links: gateways do not talk to each other.",
    "MYID",
    "    Return the node id of this gateway.",
    "MYSHARDID",
    "    Return the shard id of this gateway.",
    "NODES",
    "    Return the gateways, and the slots of each.",
    "REPLICAS <node-id>",
    "    Return no replicas: gateways have none.",
    "SHARDS",
    "    Return the slots with the gateway of each.",
    "SLOTS",
    "    Return the slots with the gateway of each.",
    "HELP",
    "    Print this help.",
];

/// What only the address tells that a client has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About<'b> {
    Info,
    MyId,
    MyShardId,
    Nodes,
    Shards,
    Slots,
    /// The replicas of a node.
    Replicas(&'b [u8]),
    /// How many nodes take a node to be down.
    FailureReports(&'b [u8]),
}

impl<'b> About<'b> {
    /// `None` if the command is about nothing of that.
    pub(crate) fn of(command: &Command, words: &[&'b [u8]]) -> Option<Self> {
        let node = words.first().copied().unwrap_or_default();
        Some(match command.name {
            "cluster|info" => Self::Info,
            "cluster|myid" => Self::MyId,
            "cluster|myshardid" => Self::MyShardId,
            "cluster|nodes" => Self::Nodes,
            "cluster|shards" => Self::Shards,
            "cluster|slots" => Self::Slots,
            "cluster|replicas" | "cluster|slaves" => Self::Replicas(node),
            "cluster|count-failure-reports" => Self::FailureReports(node),
            _ => return None,
        })
    }
}

impl Engine {
    /// Whether the client is to take this for a cluster.
    pub(crate) fn poses(&self, client: ClientId) -> bool {
        self.listener_of(client).config.pose.is_some()
    }

    /// ASKING, and those of CLUSTER that tell something.
    pub(crate) fn cluster_command(
        &mut self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let arg = |at: usize| args.get(at).map_or(b"".as_slice(), |span| span.of(bytes));
        let destination = self.destination_of(client);
        let is_cluster =
            destination.route.is_none() && self.backends[destination.backend].config.is_cluster();
        let poses = self.poses(client);
        match command.name {
            // It is the same whoever answers it.
            "cluster|keyslot" if poses || is_cluster => {
                let slot = slot_of(arg(2));
                self.reply_with(client, |out| encode::write_integer(out, i64::from(slot)))
            }
            _ if !poses => self.reply_error(client, NO_CLUSTER_TEXT),
            "asking" => self.say(client, b"+OK\r\n"),
            "cluster|links" => self.say(client, b"*0\r\n"),
            "cluster|help" => self.reply_with(client, |out| {
                encode::write_array_header(out, HELP.len());
                for line in HELP {
                    out.push(b'+');
                    out.extend_from_slice(line.as_bytes());
                    out.extend_from_slice(b"\r\n");
                }
            }),
            "cluster|countkeysinslot" | "cluster|getkeysinslot" => {
                let is_slot = |slot: i64| (0..i64::from(SLOTS)).contains(&slot);
                let text = match resp::integer(arg(2)) {
                    None => "ERR Invalid or out of range slot",
                    Some(slot) if !is_slot(slot) => "ERR Invalid slot",
                    Some(_) => {
                        "ERR the servers behind this gateway do not sort their keys by slots: use \
                         SCAN"
                    }
                };
                self.reply_error(client, text)
            }
            _ => self.inquire(client, command, bytes, args),
        }
    }

    /// What is known and refused.
    #[cold]
    pub(crate) fn refuse_redis(&mut self, client: ClientId, command: &Command, text: &str) -> Plan {
        if text == NO_CLUSTER_TEXT && self.poses(client) {
            let name = command.name.to_ascii_uppercase().replace('|', " ");
            let text = format!(
                "ERR {name} is for the nodes of a cluster, and this gateway only looks like one"
            );
            return self.reply_error(client, &text);
        }
        self.reply_error(client, text)
    }

    /// Answers a client that has reached the gateway at `local`.
    pub(crate) fn told_of_cluster(
        &self,
        listener: ListenerId,
        about: About<'_>,
        local: &str,
        version: Version,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        match &self.listeners[listener].config.pose {
            // It no longer is, since a moment ago.
            None => encode::write_error(&mut out, NO_CLUSTER_TEXT.as_bytes()),
            Some(pose) => Cluster::of(pose, local).write(about, version, &mut out),
        }
        out
    }
}

/// What clients are told.
#[derive(Debug)]
struct Cluster {
    /// In the order of their slots.
    nodes: Vec<Node>,
    /// Which of them a client has reached.
    own: usize,
}

#[derive(Debug)]
struct Node {
    host: String,
    port: u16,
    id: String,
    slots: RangeInclusive<u16>,
}

impl Cluster {
    fn of(pose: &Pose, local: &str) -> Self {
        let reached = address_of(local);
        let mut addresses = pose.advertise.clone();
        // Clients take the empty host for the one that they have reached.
        let unknown = || Address { host: String::new(), port: 0 };
        if addresses.is_empty() {
            addresses.push(reached.clone().unwrap_or_else(unknown));
        }
        let own = match reached {
            Some(reached) if addresses.contains(&reached) => reached,
            _ => addresses[0].clone(),
        };
        // Each gateway has itself first.
        addresses.sort_unstable();
        let own = addresses.iter().position(|address| *address == own).unwrap_or_default();
        let count = addresses.len();
        let first = |at: usize| (usize::from(SLOTS) * at / count) as u16;
        let nodes = addresses.into_iter().enumerate().map(|(at, address)| Node {
            id: id_of("node", &address),
            slots: first(at)..=first(at + 1) - 1,
            host: address.host,
            port: address.port,
        });
        Self { nodes: nodes.collect(), own }
    }

    fn write(&self, about: About<'_>, version: Version, out: &mut Vec<u8>) {
        let own = &self.nodes[self.own];
        match about {
            About::Info => encode::write_verbatim(out, version, *b"txt", self.info().as_bytes()),
            About::Nodes => encode::write_verbatim(out, version, *b"txt", self.lines().as_bytes()),
            About::MyId => encode::write_bulk(out, own.id.as_bytes()),
            About::MyShardId => encode::write_bulk(out, own.shard().as_bytes()),
            About::Slots => self.write_slots(out),
            About::Shards => self.write_shards(version, out),
            About::Replicas(node) if self.has(node) => encode::write_array_header(out, 0),
            About::FailureReports(node) if self.has(node) => encode::write_integer(out, 0),
            About::Replicas(node) | About::FailureReports(node) => {
                let text = format!("ERR Unknown node {}", String::from_utf8_lossy(node));
                encode::write_error(out, text.as_bytes());
            }
        }
    }

    fn has(&self, id: &[u8]) -> bool {
        self.nodes.iter().any(|node| node.id.as_bytes() == id)
    }

    fn info(&self) -> String {
        let (count, own) = (self.nodes.len(), self.own + 1);
        format!(
            "cluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{SLOTS}\r\n\
             cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{count}\r\n\
             cluster_size:{count}\r\ncluster_current_epoch:{count}\r\ncluster_my_epoch:{own}\r\n\
             cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n\
             total_cluster_links_buffer_limit_exceeded:0\r\n"
        )
    }

    /// As CLUSTER NODES has them.
    fn lines(&self) -> String {
        let mut text = String::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let Node { host, port, id, slots } = node;
            let bus = port.checked_add(BUS_PORT_OFFSET).unwrap_or(0);
            let flags = if at == self.own { "myself,master" } else { "master" };
            let (epoch, first, last) = (at + 1, slots.start(), slots.end());
            let _ = writeln!(
                text,
                "{id} {host}:{port}@{bus} {flags} - 0 0 {epoch} connected {first}-{last}"
            );
        }
        text
    }

    fn write_slots(&self, out: &mut Vec<u8>) {
        encode::write_array_header(out, self.nodes.len());
        for node in &self.nodes {
            encode::write_array_header(out, 3);
            encode::write_integer(out, i64::from(*node.slots.start()));
            encode::write_integer(out, i64::from(*node.slots.end()));
            encode::write_array_header(out, 4);
            encode::write_bulk(out, node.host.as_bytes());
            encode::write_integer(out, i64::from(node.port));
            encode::write_bulk(out, node.id.as_bytes());
            encode::write_array_header(out, 0);
        }
    }

    fn write_shards(&self, version: Version, out: &mut Vec<u8>) {
        encode::write_array_header(out, self.nodes.len());
        for node in &self.nodes {
            encode::write_map_header(out, version, 2);
            encode::write_bulk(out, b"slots");
            encode::write_array_header(out, 2);
            encode::write_integer(out, i64::from(*node.slots.start()));
            encode::write_integer(out, i64::from(*node.slots.end()));
            encode::write_bulk(out, b"nodes");
            encode::write_array_header(out, 1);
            encode::write_map_header(out, version, 7);
            encode::write_bulk(out, b"id");
            encode::write_bulk(out, node.id.as_bytes());
            encode::write_bulk(out, b"port");
            encode::write_integer(out, i64::from(node.port));
            for (name, value) in
                [("ip", &*node.host), ("endpoint", &*node.host), ("role", "master")]
            {
                encode::write_bulk(out, name.as_bytes());
                encode::write_bulk(out, value.as_bytes());
            }
            encode::write_bulk(out, b"replication-offset");
            encode::write_integer(out, 0);
            encode::write_bulk(out, b"health");
            encode::write_bulk(out, b"online");
        }
    }
}

impl Node {
    fn shard(&self) -> String {
        id_of("shard", &Address { host: self.host.clone(), port: self.port })
    }
}

/// 40 hexadecimal digits, the same of every gateway and whenever it has been started.
fn id_of(what: &str, address: &Address) -> String {
    sha1_smol::Sha1::from(format!("cashew {what} {address}")).digest().to_string()
}

/// `None` of what is no address of a host, as a Unix socket.
fn address_of(local: &str) -> Option<Address> {
    let address: SocketAddr = local.parse().ok()?;
    // A listener for IPv6 takes IPv4, too, and writes it differently.
    Some(Address { host: address.ip().to_canonical().to_string(), port: address.port() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(advertise: &[&str], local: &str) -> Cluster {
        let address = |text: &&str| {
            let (host, port) = text.rsplit_once(':').unwrap();
            Address { host: host.to_owned(), port: port.parse().unwrap() }
        };
        Cluster::of(&Pose { advertise: advertise.iter().map(address).collect() }, local)
    }

    fn told(cluster: &Cluster, about: About<'_>) -> String {
        let mut out = Vec::new();
        cluster.write(about, Version::Resp2, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn slots_are_dealt_out_wholly_and_evenly() {
        let list: Vec<String> = (1..=256).map(|at| format!("10.0.0.{}:{}", at % 7, at)).collect();
        for count in [1, 2, 3, 7, 255, 256] {
            let list: Vec<&str> = list[..count].iter().map(String::as_str).collect();
            let cluster = cluster(&list, "10.0.0.1:1");
            let mut next = 0;
            for node in &cluster.nodes {
                assert_eq!(*node.slots.start(), next);
                let share = usize::from(SLOTS) / count;
                assert!((share..=share + 1).contains(&node.slots.len()), "{count}");
                next = node.slots.end() + 1;
            }
            assert_eq!(next, SLOTS);
        }
    }

    #[test]
    fn gateways_agree_but_for_which_one_they_are() {
        let (one, two) = ("10.0.0.7:6379", "10.0.0.8:6379");
        let first = cluster(&[one, two], "10.0.0.7:6379");
        let second = cluster(&[two, one], "10.0.0.8:6379");
        assert_eq!(told(&first, About::Slots), told(&second, About::Slots));
        assert_eq!(told(&first, About::Shards), told(&second, About::Shards));
        assert_eq!((first.own, second.own), (0, 1));
        // Behind a load balancer nobody reaches them where they are: then each has itself first.
        assert_eq!(cluster(&[two, one], "172.17.0.2:6379").own, 1);
        assert_eq!(cluster(&["gateway-b:1", "gateway-a:1"], "172.17.0.2:6379").own, 1);
        // One that has been reached by an address of another is that one to its client.
        assert_eq!(cluster(&[two, one], "10.0.0.7:6379").own, 0);
    }

    #[test]
    fn nodes_are_written_as_redis_does() {
        let cluster = cluster(&[], "[::ffff:127.0.0.1]:60000");
        let id = &cluster.nodes[0].id;
        assert_eq!(id.len(), 40);
        assert_eq!(
            cluster.lines(),
            format!("{id} 127.0.0.1:60000@0 myself,master - 0 0 1 connected 0-16383\n")
        );
        assert_eq!(
            told(&cluster, About::Slots),
            format!(
                "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:60000\r\n$40\r\n{id}\r\n*0\r\n"
            )
        );
        let missing = told(&cluster, About::Replicas(b"abc"));
        assert_eq!(missing, "-ERR Unknown node abc\r\n");
        assert_eq!(told(&cluster, About::Replicas(id.as_bytes())), "*0\r\n");
        assert_ne!(cluster.nodes[0].shard(), *id);
    }

    #[test]
    fn a_unix_socket_is_the_host_that_was_reached() {
        let cluster = cluster(&[], "/run/cashew.sock:0");
        assert_eq!((cluster.nodes[0].host.as_str(), cluster.nodes[0].port), ("", 0));
    }
}
