//! Replies that a route's node `cache` keeps of a cluster, while a slot moves from one node to the other and no map tells
//! of it yet.

use cashew_config::Snapshot;
use cashew_config::snapshot::{Cluster, ServerGroup, SlotRange, Topology};
use cashew_engine::{CloseReason, ConnId};

use crate::world::{World, all, redis, snapshot};

/// `b` is in slot 3300, which is of the first node.
const ASK: &str = "-ASK 3300 127.0.0.1:7001\r\n";
const NONE: &str = "$-1\r\n";
const X: &str = "$1\r\nx\r\n";
const CHANGED: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nb\r\n";

fn config() -> Snapshot {
    let mut snapshot = snapshot(
        "global: {worker_processes: 1}
pools:
  a: {redis: true, preconnect: true, servers: ['127.0.0.1:7000:1', '127.0.0.1:7001:1'], hide_topology: true}
routes:
  main: {redis: true, listen: '127.0.0.1:6000', route: {cache: {to: a, ttl: 60s, negative: 60s}}}
",
    );
    let pool = &mut snapshot.pools[0];
    let range = |first, last| vec![SlotRange { first, last }];
    pool.cluster = Some(Cluster {
        seeds: Vec::new(),
        connections_max: 0,
        slots: vec![range(0, 8191), range(8192, 16383)],
        moving: Vec::new(),
        epoch: 1,
        changes: 1,
    });
    let group = |primary| ServerGroup {
        name: format!("s{primary}"),
        weight: 1,
        primary,
        replicas: Vec::new(),
    };
    pool.topology = Topology::Groups((0..2).map(group).collect());
    snapshot
}

/// The connections of a node.
#[derive(Clone, Copy)]
struct Node {
    lane: ConnId,
    tracker: ConnId,
}

/// Both nodes tell of changes, and a client is there.
fn played() -> (World, [Node; 2], ConnId) {
    let mut world = World::new(&config());
    let nodes = [0, 1].map(|server| {
        let conns = [world.accept(server), world.accept(server)];
        let said = conns.map(|conn| world.received(conn));
        let tracker = usize::from(said[0].is_empty());
        assert_eq!(said[tracker], redis("HELLO 3").as_bytes());
        let node = Node { lane: conns[1 - tracker], tracker: conns[tracker] };
        begin_to_tell(&mut world, node.tracker);
        node
    });
    let main = world.engine.listener_named("main").unwrap();
    let client = world.client_of(main.number());
    (world, nodes, client)
}

fn begin_to_tell(world: &mut World, tracker: ConnId) {
    world.send(tracker, "%1\r\n+proto\r\n:3\r\n");
    assert!(!world.received(tracker).is_empty());
    world.send(tracker, "+OK\r\n");
}

/// A read goes to the node, once or twice, until how long the key lives is asked, too: the reply is to be kept.
#[track_caller]
fn asked_to_keep(world: &mut World, client: ConnId, lane: ConnId) {
    world.send(client, redis("GET b"));
    let mut asked = world.received(lane);
    if asked == redis("GET b").as_bytes() {
        world.send(lane, NONE);
        world.expect(client, NONE);
        world.send(client, redis("GET b"));
        asked = world.received(lane);
    }
    assert_eq!(String::from_utf8_lossy(&asked), all(&["GET b", "PTTL b"]));
}

/// That there is no such key is kept, from the first node.
#[track_caller]
fn keep_that_there_is_none(world: &mut World, client: ConnId, lane: ConnId) {
    asked_to_keep(world, client, lane);
    world.send(lane, format!("{NONE}:-2\r\n"));
    world.expect(client, NONE);
    world.send(client, redis("GET b"));
    world.expect(client, NONE);
    world.expect(lane, "");
}

/// The slot has gone to the second node, where the key has been written since.
#[track_caller]
fn read_from_the_new_owner(world: &mut World, [old, new]: [Node; 2], client: ConnId) {
    world.send(client, redis("GET b"));
    let asked = String::from_utf8(world.received(old.lane)).unwrap();
    assert!(asked.starts_with(&redis("GET b")), "{asked:?}");
    let is_to_be_kept = asked.len() > redis("GET b").len();
    world.send(old.lane, ASK);
    if is_to_be_kept {
        world.send(old.lane, ASK);
    }
    world.expect(new.lane, all(&["ASKING", "GET b"]));
    world.send(new.lane, format!("+OK\r\n{X}"));
    world.expect(client, X);
}

#[test]
fn a_key_that_its_new_owner_names_is_not_what_the_former_one_said() {
    let (mut world, nodes, client) = played();
    keep_that_there_is_none(&mut world, client, nodes[0].lane);
    world.send(nodes[1].tracker, CHANGED);
    read_from_the_new_owner(&mut world, nodes, client);
}

/// It was asked of one node, whose changes are heard, and answered by another one, of which nobody may hear.
#[test]
fn what_another_node_has_answered_is_not_kept() {
    let (mut world, [old, new], client) = played();
    asked_to_keep(&mut world, client, old.lane);
    world.send(old.lane, ASK.repeat(2));
    world.expect(new.lane, all(&["ASKING", "GET b"]));
    world.send(new.lane, format!("+OK\r\n{NONE}"));
    world.expect(client, NONE);
    // Nothing is heard of this.
    read_from_the_new_owner(&mut world, [old, new], client);
    // It is not waited for either: the slot stays, and the next reply is kept.
    asked_to_keep(&mut world, client, old.lane);
    world.send(old.lane, format!("{X}:-1\r\n"));
    world.expect(client, X);
    world.send(client, redis("GET b"));
    world.expect(client, X);
    world.expect(old.lane, "");
}

#[test]
fn that_there_is_no_key_is_kept_while_all_nodes_tell_of_changes_only() {
    let (mut world, [old, new], client) = played();
    keep_that_there_is_none(&mut world, client, old.lane);
    // One is on its way, too.
    world.send(client, redis("GET {b}2"));
    world.expect(old.lane, redis("GET {b}2"));
    world.send(old.lane, NONE);
    world.expect(client, NONE);
    world.send(client, redis("GET {b}2"));
    world.expect(old.lane, all(&["GET {b}2", "PTTL {b}2"]));
    world.close(new.tracker, CloseReason::Reset);
    world.send(old.lane, format!("{NONE}:-2\r\n"));
    world.expect(client, NONE);
    // The slot goes, and the key comes to be there: nobody says so.
    read_from_the_new_owner(&mut world, [old, new], client);
    world.send(client, redis("GET {b}2"));
    assert!(world.received(old.lane).starts_with(redis("GET {b}2").as_bytes()));
    world.send(old.lane, format!("{NONE}:-2\r\n"));
    world.expect(client, NONE);
    // It has come back. What is there is kept still, and that something is not there is not.
    asked_to_keep(&mut world, client, old.lane);
    world.send(old.lane, format!("{NONE}:-2\r\n"));
    world.expect(client, NONE);
    asked_to_keep(&mut world, client, old.lane);
    world.send(old.lane, format!("{X}:-1\r\n"));
    world.expect(client, X);
    world.send(client, redis("GET b"));
    world.expect(client, X);
    world.expect(old.lane, "");
    // When it tells again, that is kept, too.
    world.wait_ms(1500);
    let tracker = world.accept(1);
    world.expect(tracker, redis("HELLO 3"));
    begin_to_tell(&mut world, tracker);
    world.send(old.tracker, CHANGED);
    keep_that_there_is_none(&mut world, client, old.lane);
}
