//! Pools in front of a cluster: keys go by slots, and what a node sends elsewhere goes there, in order.

use crate::world::{World, all, pool, redis};
use cashew_config::Snapshot;
use cashew_config::snapshot::{Cluster, Hedge, Reads, ServerGroup, SlotRange, Topology};
use cashew_engine::{Action, CloseReason, ConnId};
use cashew_metrics::PoolCounter;

// Slots: b 3300, c 7365, a 15495, d 11298, hello 866.
const THIRDS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];
const NOT_SERVED: &str = "-CLUSTERDOWN Hash slot not served\r\n";
const ABORTED: &str =
    "-EXECABORT Transaction discarded because of: CLUSTERDOWN Hash slot not served\r\n";
const DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";

fn moved(slot: u16, server: u32) -> String {
    format!("-MOVED {slot} 127.0.0.1:{}\r\n", 7000 + server)
}

fn ask(slot: u16, server: u32) -> String {
    format!("-ASK {slot} 127.0.0.1:{}\r\n", 7000 + server)
}

/// A primary, its replicas, and its slots.
type Group<'a> = (u32, &'a [u32], &'a [(u16, u16)]);

/// A cluster of so many nodes; each group has its primary, its replicas, and its slots.
fn cluster_of(options: &str, nodes: usize, groups: &[Group<'_>]) -> Snapshot {
    let mut snapshot = pool(&format!("redis: true\npreconnect: true\n{options}"), nodes);
    let pool = &mut snapshot.pools[0];
    let range = |&(first, last): &(u16, u16)| SlotRange { first, last };
    pool.cluster = Some(Cluster {
        seeds: Vec::new(),
        connections_max: 0,
        slots: groups.iter().map(|(_, _, slots)| slots.iter().map(range).collect()).collect(),
        moving: Vec::new(),
        epoch: 1,
        changes: 1,
    });
    let group = |&(primary, replicas, _): &(u32, &[u32], _)| ServerGroup {
        name: format!("s{primary}"),
        weight: 1,
        primary,
        replicas: replicas.to_vec(),
    };
    pool.topology = Topology::Groups(groups.iter().map(group).collect());
    snapshot
}

fn cluster(options: &str) -> Snapshot {
    let [a, b, c] = THIRDS;
    cluster_of(options, 3, &[(0, &[], &[a]), (1, &[], &[b]), (2, &[], &[c])])
}

fn waiting() -> Snapshot {
    cluster("failover_wait: 1000")
}

fn three(snapshot: &Snapshot) -> (World, ConnId, [ConnId; 3]) {
    let (mut world, lanes) = World::connected(snapshot);
    let client = world.client();
    (world, client, lanes)
}

fn doubts(world: &mut World) -> usize {
    let actions = std::mem::take(&mut world.actions);
    actions.iter().filter(|it| matches!(it, Action::MapDoubted { .. })).count()
}

fn counted(world: &World, counter: PoolCounter) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), counter)
}

#[test]
fn keys_go_to_the_owners_of_their_slots() {
    let (mut world, client, [a, b, c]) = three(&cluster(""));
    world.send(client, all(&["GET b", "SET c 1", "GET a", "GET x{b}y"]));
    world.expect(a, all(&["GET b", "GET x{b}y"]));
    world.expect(b, redis("SET c 1"));
    world.expect(c, redis("GET a"));
    world.send(a, "$1\r\n1\r\n$1\r\n4\r\n");
    world.send(b, "+OK\r\n");
    world.send(c, "$1\r\n3\r\n");
    world.expect(client, "$1\r\n1\r\n+OK\r\n$1\r\n3\r\n$1\r\n4\r\n");
    world.assert_idle();
}

/// Each slot's part counts.
#[test]
fn keys_of_many_slots_of_one_node_do_not_pass_its_queue() {
    let (mut world, client, [a, b, _]) = three(&cluster("server_queue_max: 3"));
    let full = "-ERR Server queue is full\r\n";
    world.send(client, redis("MGET c b f j n"));
    world.expect(a, "");
    world.expect(b, "");
    world.expect(client, full);
    world.send(client, all(&["MGET c b f", "MGET j n", "MGET j"]));
    world.expect(a, all(&["MGET f", "MGET b", "MGET j"]));
    world.expect(b, redis("MGET c"));
    world.send(a, "*1\r\n$1\r\n3\r\n*1\r\n$1\r\n2\r\n*1\r\n$1\r\n4\r\n");
    world.send(b, "*1\r\n$1\r\n1\r\n");
    let found = "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n";
    world.expect(client, format!("{found}{full}*1\r\n$1\r\n4\r\n"));
    world.assert_idle();
}

#[test]
fn keys_of_two_slots_are_asked_for_apart_and_answered_together() {
    let (mut world, client, [a, b, c]) = three(&cluster(""));
    world.send(client, redis("MGET b c hello x{b} x{hello}"));
    world.expect(a, all(&["MGET hello x{hello}", "MGET b x{b}"]));
    world.expect(b, redis("MGET c"));
    world.send(a, "*2\r\n$1\r\n3\r\n$1\r\n5\r\n*2\r\n$1\r\n1\r\n$1\r\n4\r\n");
    world.expect(client, "");
    world.send(b, "*1\r\n$1\r\n2\r\n");
    let bulks = ["1", "2", "3", "4", "5"].map(|it| format!("$1\r\n{it}\r\n")).concat();
    world.expect(client, format!("*5\r\n{bulks}"));
    world.send(client, redis("MSET b 1 hello 2"));
    world.expect(a, all(&["MSET hello 2", "MSET b 1"]));
    world.send(a, "+OK\r\n+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.send(client, redis("DEL b hello x{b} a"));
    world.expect(a, all(&["DEL hello", "DEL b x{b}"]));
    world.expect(c, redis("DEL a"));
    world.send(a, ":1\r\n:2\r\n");
    world.send(c, ":1\r\n");
    world.expect(client, ":4\r\n");
    world.assert_idle();
}

#[test]
fn what_cannot_be_split_has_its_keys_in_one_slot() {
    let (mut world, client, [a, _, _]) = three(&cluster(""));
    world.send(client, redis("RENAME b hello"));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.starts_with("-CROSSSLOT RENAME needs its keys in one slot"), "{reply}");
    world.send(client, redis("RENAME {b}1 {b}2"));
    world.expect(a, redis("RENAME {b}1 {b}2"));
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
}

#[test]
fn what_has_moved_is_sent_on_and_so_is_what_comes_later() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    world.send(client, redis("GET b"));
    world.expect(a, redis("GET b"));
    // In pieces.
    let answer = moved(3300, 1);
    world.send(a, &answer[..9]);
    world.send(a, &answer[9..]);
    world.expect(client, "");
    world.expect(b, redis("GET b"));
    world.send(b, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
    assert_eq!((doubts(&mut world), counted(&world, PoolCounter::Moved)), (1, 1));
    world.send(client, all(&["GET b", "GET hello"]));
    world.expect(b, redis("GET b"));
    world.expect(a, redis("GET hello"));
    world.send(b, "$1\r\n1\r\n");
    world.send(a, "$1\r\n2\r\n");
    world.expect(client, "$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(doubts(&mut world), 0);
    world.assert_idle();
}

#[test]
fn a_client_s_requests_for_a_slot_that_moves_stay_in_order() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    let other = world.client();
    world.send(client, all(&["SET b 1", "APPEND b 2"]));
    world.send(other, redis("INCR b"));
    world.expect(a, all(&["SET b 1", "APPEND b 2", "INCR b"]));
    world.send(a, moved(3300, 1));
    world.expect(b, redis("SET b 1"));
    // Both would overtake what they have on its way to the former owner.
    world.send(client, redis("APPEND b 3"));
    world.send(other, redis("INCRBY b 2"));
    world.expect(b, "");
    world.send(a, moved(3300, 1).repeat(2));
    world.expect(b, all(&["APPEND b 2", "INCR b"]));
    world.send(b, "+OK\r\n:2\r\n:13\r\n");
    world.expect(client, "+OK\r\n:2\r\n");
    world.expect(other, ":13\r\n");
    world.expect(b, all(&["APPEND b 3", "INCRBY b 2"]));
    world.send(b, ":3\r\n:135\r\n");
    world.expect(client, ":3\r\n");
    world.expect(other, ":135\r\n");
    world.assert_idle();
}

#[test]
fn what_is_behind_a_request_that_has_moved_stays_where_it_is() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    let other = world.client();
    world.send(client, all(&["GET b", "GET hello", "GET b"]));
    world.send(other, all(&["GET c", "GET hello"]));
    world.expect(a, all(&["GET b", "GET hello", "GET b", "GET hello"]));
    world.expect(b, redis("GET c"));
    world.send(a, moved(3300, 1));
    world.expect(b, redis("GET b"));
    // It waits for what it has on its way to the former owner.
    world.send(other, redis("GET c"));
    world.expect(b, "");
    world.send(b, "$1\r\n3\r\n$1\r\n1\r\n");
    world.send(a, format!("$1\r\n2\r\n{}$1\r\n2\r\n", moved(3300, 1)));
    world.expect(b, all(&["GET b", "GET c"]));
    world.send(b, "$1\r\n1\r\n$1\r\n3\r\n");
    world.expect(client, "$1\r\n1\r\n$1\r\n2\r\n$1\r\n1\r\n");
    world.expect(other, "$1\r\n3\r\n$1\r\n2\r\n$1\r\n3\r\n");
    world.assert_idle();
}

#[test]
fn asking_is_for_one_request() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    world.send(client, redis("GET b"));
    world.expect(a, redis("GET b"));
    world.send(a, ask(3300, 1));
    world.expect(b, all(&["ASKING", "GET b"]));
    world.send(b, "+OK\r\n$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
    world.send(client, redis("GET b"));
    world.expect(a, redis("GET b"));
    world.send(a, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
    assert_eq!(counted(&world, PoolCounter::Asked), 1);
    world.assert_idle();
}

#[test]
fn parts_of_a_request_go_on_by_themselves() {
    let (mut world, client, [a, b, c]) = three(&cluster(""));
    world.send(client, redis("MGET b hello a"));
    world.expect(a, all(&["MGET hello", "MGET b"]));
    world.expect(c, redis("MGET a"));
    world.send(a, moved(866, 1) + &ask(3300, 2));
    world.send(c, "*1\r\n$1\r\n3\r\n");
    world.expect(b, redis("MGET hello"));
    world.expect(c, all(&["ASKING", "MGET b"]));
    world.send(b, "*1\r\n$1\r\n2\r\n");
    world.expect(client, "");
    world.send(c, "+OK\r\n*1\r\n$1\r\n1\r\n");
    world.expect(client, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
    world.assert_idle();
}

#[test]
fn what_is_on_its_way_in_part_is_tried_again() {
    let (mut world, client, [a, _, _]) = three(&cluster(""));
    const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
    world.send(client, redis("MGET {b}1 {b}2"));
    for wait in [5, 50, 50, 50, 50, 50, 50, 50] {
        world.expect(a, redis("MGET {b}1 {b}2"));
        world.send(a, TRY_AGAIN);
        world.expect(client, "");
        world.wait_ms(wait - 1);
        world.expect(a, "");
        world.wait_ms(2);
    }
    world.expect(a, redis("MGET {b}1 {b}2"));
    world.send(a, "*2\r\n$-1\r\n$-1\r\n");
    world.expect(client, "*2\r\n$-1\r\n$-1\r\n");
    // A slot that stays half moved is the client's to know of.
    world.send(client, redis("MGET {b}1 {b}2"));
    let mut tries = 0;
    while world.received(client).is_empty() {
        let asked = world.received(a);
        assert_eq!(asked, redis("MGET {b}1 {b}2").as_bytes());
        world.send(a, TRY_AGAIN);
        world.wait_ms(51);
        tries += 1;
        assert!(tries < 30);
    }
    assert!(tries >= 20);
    // What is behind it may have run.
    world.send(client, all(&["MSET {b}1 1 {b}2 1", "SET {b}1 2"]));
    world.received(a);
    world.send(a, format!("{TRY_AGAIN}+OK\r\n"));
    world.expect(client, format!("{NOT_SERVED}+OK\r\n"));
    world.assert_idle();
}

#[test]
fn nodes_that_send_a_request_to_and_fro_are_believed_five_times() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    world.send(client, redis("GET b"));
    for (lane, other) in [(a, 1), (b, 0), (a, 1), (b, 0), (a, 1)] {
        world.expect(lane, redis("GET b"));
        world.send(lane, moved(3300, other));
        world.expect(client, "");
    }
    world.expect(b, redis("GET b"));
    world.send(b, moved(3300, 0));
    world.expect(client, NOT_SERVED);
    world.assert_idle();
}

#[test]
fn a_node_that_is_not_known_is_waited_for() {
    let (mut world, client, [a, _, _]) = three(&waiting());
    world.send(client, all(&["SET b 1", "GET b", "GET hello"]));
    world.expect(a, all(&["SET b 1", "GET b", "GET hello"]));
    world.send(a, moved(3300, 3).repeat(2) + "$1\r\n2\r\n");
    world.wait_ms(100);
    world.expect(client, "");
    let [x, y, z] = THIRDS;
    let next = cluster_of(
        "failover_wait: 1000",
        4,
        &[
            (0, &[], &[(0, 3299), (3301, x.1)]),
            (1, &[], &[y]),
            (2, &[], &[z]),
            (3, &[], &[(3300, 3300)]),
        ],
    );
    let mut next = next;
    next.epoch += 1;
    if let Some(cluster) = &mut next.pools[0].cluster {
        cluster.changes += 1;
    }
    world.prepare(&next);
    let fresh = world.accept(3);
    world.commit(&next);
    world.tick();
    world.expect(fresh, all(&["SET b 1", "GET b"]));
    world.send(fresh, "+OK\r\n$1\r\n1\r\n");
    world.expect(client, "+OK\r\n$1\r\n1\r\n$1\r\n2\r\n");
    world.assert_idle();
}

#[test]
fn a_node_that_stays_unknown_is_the_client_s_to_know() {
    let (mut world, client, [a, _, _]) = three(&waiting());
    world.send(client, redis("SET b 1"));
    world.expect(a, redis("SET b 1"));
    world.send(a, moved(3300, 9));
    for _ in 0..19 {
        world.wait_ms(50);
        world.expect(client, "");
    }
    // Once more, to the owner by the map.
    world.wait_ms(100);
    world.expect(a, redis("SET b 1"));
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn what_a_cluster_that_is_down_refuses_waits() {
    let (mut world, client, [a, _, _]) = three(&waiting());
    world.send(client, redis("SET b 1"));
    world.expect(a, redis("SET b 1"));
    world.send(a, DOWN);
    world.expect(client, "");
    assert_eq!(doubts(&mut world), 1);
    let a = (0..40)
        .find_map(|_| {
            world.wait_ms(5);
            world.connects_to(0).then(|| world.accept(0))
        })
        .expect("it is tried again");
    world.expect(a, redis("PING"));
    world.send(a, "+PONG\r\n");
    world.expect(a, redis("SET b 1"));
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn what_waits_for_a_dead_node_goes_to_its_successor() {
    let [x, y, z] = THIRDS;
    let map = |primary: u32, replica: u32| {
        let replicas = [replica];
        cluster_of(
            "failover_wait: 1000",
            4,
            &[(primary, &replicas, &[x]), (1, &[], &[y]), (2, &[], &[z])],
        )
    };
    let (mut world, [a, b, c, d]): (World, [ConnId; 4]) = World::connected(&map(0, 3));
    world.expect(d, redis("READONLY"));
    world.send(d, "+OK\r\n");
    let client = world.client();
    world.send(client, redis("INCR b"));
    world.expect(a, redis("INCR b"));
    world.close(a, CloseReason::Reset);
    // Nobody knows whether that ran.
    world.expect(client, "-ERR Connection reset by peer\r\n");
    assert_eq!(doubts(&mut world), 1);
    world.send(client, all(&["INCR b", "GET c", "INCR hello"]));
    while !world.connects_to(0) {
        world.wait_ms(5);
    }
    world.refuse(0);
    world.expect(b, redis("GET c"));
    world.send(b, "$1\r\n1\r\n");
    world.expect(client, "");
    let mut next = map(3, 0);
    next.epoch += 1;
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    world.expect(d, all(&["INCR b", "INCR hello", "READWRITE"]));
    world.send(d, ":1\r\n:2\r\n+OK\r\n");
    world.expect(client, ":1\r\n$1\r\n1\r\n:2\r\n");
    world.expect(c, "");
}

#[test]
fn what_a_client_that_has_gone_has_written_is_sent_on_in_order() {
    let (mut world, client, [a, b, c]) = three(&waiting());
    world.send(client, all(&["SET b 1", "GET b", "APPEND b 2", "APPEND b 3", "SET hello 1"]));
    world.received(a);
    world.close(client, CloseReason::Reset);
    world.send(a, moved(3300, 1).repeat(2) + &moved(3300, 2).repeat(2));
    world.expect(b, redis("SET b 1"));
    world.expect(c, "");
    world.send(b, moved(3300, 2));
    world.expect(c, all(&["SET b 1", "APPEND b 2", "APPEND b 3"]));
    world.send(c, "+OK\r\n:2\r\n:3\r\n");
    world.expect(b, "");
    // The owner is not known yet.
    world.send(a, moved(866, 9));
    world.wait_ms(2000);
    world.expect(a, redis("SET hello 1"));
    world.send(a, "+OK\r\n");
    world.assert_idle();
}

/// One of them hangs: that is nothing to the others.
#[test]
fn clients_that_have_gone_do_not_wait_for_each_other() {
    let (mut world, first, [a, b, c]) = three(&waiting());
    let second = world.client();
    world.send(first, all(&["SET b 1", "APPEND b 2"]));
    world.send(second, all(&["APPEND b 3", "APPEND b 4", "SET hello 5"]));
    world.received(a);
    for client in [first, second] {
        world.close(client, CloseReason::Reset);
    }
    world.send(a, moved(3300, 1) + &moved(3300, 2));
    world.expect(b, redis("SET b 1"));
    world.expect(c, "");
    world.send(a, moved(3300, 2).repeat(2) + &moved(866, 2));
    world.expect(c, all(&["APPEND b 3", "APPEND b 4", "SET hello 5"]));
    // Nor does one that comes, and has the place of one of them.
    let third = world.client();
    world.send(third, redis("GET b"));
    world.expect(c, redis("GET b"));
    world.send(b, "+OK\r\n");
    world.expect(c, redis("APPEND b 2"));
    world.send(c, ":1\r\n:2\r\n+OK\r\n$2\r\n34\r\n:3\r\n");
    world.expect(third, "$2\r\n34\r\n");
    world.assert_idle();
}

#[test]
fn what_is_asked_without_a_reply_is_sent_on_also_when_its_client_leaves() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    world.send(client, all(&["CLIENT REPLY SKIP", "SET b 1", "CLIENT REPLY OFF", "SET b 2"]));
    world.expect(a, all(&["SET b 1", "SET b 2"]));
    world.send(a, moved(3300, 1));
    world.expect(b, redis("SET b 1"));
    world.close(client, CloseReason::Eof);
    world.send(a, moved(3300, 1));
    world.send(b, "+OK\r\n");
    world.expect(b, redis("SET b 2"));
    world.send(b, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_map_that_changes_holds_nothing_up() {
    let (mut world, client, [a, b, _]) = three(&waiting());
    world.send(client, redis("SET b 1"));
    world.expect(a, redis("SET b 1"));
    let [x, y, z] = THIRDS;
    let mut next = cluster_of(
        "failover_wait: 1000",
        3,
        &[(0, &[], &[(0, 3299), (3301, x.1)]), (1, &[], &[(3300, 3300), y]), (2, &[], &[z])],
    );
    next.epoch += 1;
    world.prepare(&next);
    world.pause(1000);
    assert!(world.epoch_answers().iter().any(|it| matches!(it, Action::Paused { .. })));
    world.commit(&next);
    // It must not be overtaken by what goes to the new owner.
    world.send(client, redis("GET b"));
    world.expect(b, "");
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.expect(b, redis("GET b"));
    world.send(b, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
    world.assert_idle();
}

#[test]
fn a_pool_whose_map_is_not_known_says_so() {
    let mut snapshot = cluster_of("", 1, &[]);
    snapshot.pools[0].servers.clear();
    let mut world = World::new(&snapshot);
    let client = world.client();
    world.send(client, redis("GET b"));
    world.expect(client, "-CLUSTERDOWN Hash slot not served\r\n");
    assert_eq!(doubts(&mut world), 1);
}

const QUEUED: &str = "+QUEUED\r\n";

/// The lane that is made for a session.
fn session(world: &mut World, server: u32) -> ConnId {
    let lane = world.accept(server);
    world.tick();
    lane
}

#[test]
fn a_transaction_whose_slot_has_moved_goes_to_the_owner_as_a_whole() {
    let (mut world, client, _) = three(&cluster(""));
    world.send(client, all(&["MULTI", "INCR b", "PING", "GET x{b}"]));
    world.expect(client, format!("+OK\r\n{}", QUEUED.repeat(3)));
    world.send(client, redis("EXEC"));
    let text = all(&["MULTI", "INCR b", "PING", "GET x{b}", "EXEC"]);
    let a = session(&mut world, 0);
    world.expect(a, &text);
    let refused = moved(3300, 1);
    world.send(a, format!("+OK\r\n{refused}{QUEUED}{refused}-EXECABORT Transaction discarded because of previous errors.\r\n"));
    world.expect(client, "");
    let b = session(&mut world, 1);
    world.expect(b, &text);
    world.send(b, format!("+OK\r\n{}*3\r\n:1\r\n+PONG\r\n$-1\r\n", QUEUED.repeat(3)));
    world.expect(client, "*3\r\n:1\r\n+PONG\r\n$-1\r\n");
    // ASK, and then the slot is there.
    world.send(client, all(&["MULTI", "INCR hello", "EXEC", "GET b"]));
    let text = all(&["MULTI", "INCR hello", "EXEC"]);
    world.expect(a, &text);
    world.send(a, format!("+OK\r\n{}-EXECABORT Transaction discarded\r\n", ask(866, 2)));
    let c = session(&mut world, 2);
    world.expect(c, redis("ASKING") + &text);
    world.send(c, format!("+OK\r\n+OK\r\n{QUEUED}*1\r\n:5\r\n"));
    world.expect(client, format!("+OK\r\n{QUEUED}*1\r\n:5\r\n"));
}

#[test]
fn exec_says_why_a_node_has_refused_what_the_client_was_told_is_queued() {
    let (mut world, client, _) = three(&cluster(""));
    world.send(client, all(&["MULTI", "INCR b", "SET {b} 1", "EXEC"]));
    let a = session(&mut world, 0);
    world.received(a);
    world.send(a, format!("+OK\r\n{QUEUED}-OOM not now\r\n-EXECABORT Transaction discarded because of previous errors.\r\n"));
    let queued = QUEUED.repeat(2);
    world.expect(
        client,
        format!("+OK\r\n{queued}-EXECABORT Transaction discarded because of: OOM not now\r\n"),
    );
    // Another transaction knows nothing of it.
    world.send(client, all(&["MULTI", "INCR b", "EXEC"]));
    world.received(a);
    world.send(
        a,
        format!("+OK\r\n{QUEUED}-EXECABORT Transaction discarded because of previous errors.\r\n"),
    );
    world.expect(
        client,
        format!("+OK\r\n{QUEUED}-EXECABORT Transaction discarded because of previous errors.\r\n"),
    );
    world.assert_idle();
}

#[test]
fn a_transaction_is_for_one_slot() {
    let (mut world, client, _) = three(&cluster(""));
    world.send(client, all(&["MULTI", "INCR b", "INCR hello", "EXEC"]));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(
        reply.contains("-CROSSSLOT INCR 'hello' is in another slot than the transaction"),
        "{reply}"
    );
    assert!(
        reply.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"),
        "{reply}"
    );
    world.assert_idle();
}

#[test]
fn a_transaction_may_have_large_commands_without_keys() {
    let (mut world, client, _) = three(&cluster(""));
    let large = format!("ECHO {}", "x".repeat(70_000));
    world.send(client, all(&["MULTI", "INCR b"]));
    world.expect(client, format!("+OK\r\n{QUEUED}"));
    world.send(client, redis(&large));
    let a = session(&mut world, 0);
    world.expect(a, all(&["MULTI", "INCR b", &large]));
    world.send(a, format!("+OK\r\n{QUEUED}{QUEUED}"));
    world.expect(client, QUEUED);
    world.send(client, all(&["PING", "EXEC"]));
    world.expect(a, all(&["PING", "EXEC"]));
    world.send(a, format!("{QUEUED}*3\r\n:1\r\n+x\r\n+PONG\r\n"));
    world.expect(client, format!("{QUEUED}*3\r\n:1\r\n+x\r\n+PONG\r\n"));
    // Before there is a key nobody knows where it goes.
    world.send(client, all(&["MULTI", &large, "EXEC"]));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.contains("begin with a command that has a key"), "{reply}");
    world.assert_idle();
}

#[test]
fn a_transaction_that_is_sent_to_and_fro_ends() {
    let (mut world, client, _) = three(&cluster(""));
    world.send(client, all(&["MULTI", "INCR b", "EXEC"]));
    let text = all(&["MULTI", "INCR b", "EXEC"]);
    let (a, b) = (session(&mut world, 0), None::<ConnId>);
    let mut lanes = [Some(a), b];
    for hop in 0..6 {
        let at = hop % 2;
        let lane = match lanes[at] {
            Some(lane) => lane,
            None => session(&mut world, at as u32),
        };
        lanes[at] = Some(lane);
        world.expect(lane, &text);
        let refused = moved(3300, 1 - at as u32);
        world.send(lane, format!("+OK\r\n{refused}-EXECABORT discarded\r\n"));
    }
    world.expect(client, format!("+OK\r\n{QUEUED}{ABORTED}"));
    world.assert_idle();
}

#[test]
fn what_is_watched_and_moves_counts_as_changed() {
    let (mut world, client, [_, b, _]) = three(&cluster(""));
    // What was refused watches nothing.
    world.send(client, redis("WATCH c"));
    let lane = session(&mut world, 1);
    world.expect(lane, redis("WATCH c"));
    let refused = "-NOPERM this user has no permissions\r\n";
    world.send(lane, refused);
    world.expect(client, refused);
    world.expect(lane, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    // WATCH itself goes to the owner.
    world.send(client, all(&["WATCH b", "GET b"]));
    let a = session(&mut world, 0);
    world.expect(a, redis("WATCH b"));
    world.send(a, moved(3300, 1));
    world.expect(a, redis("UNWATCH"));
    world.send(a, "+OK\r\n");
    let watch = lane;
    world.expect(watch, redis("WATCH b"));
    world.send(watch, "+OK\r\n");
    world.expect(watch, redis("GET b"));
    // It moves on.
    world.send(watch, moved(3300, 2));
    world.expect(b, "");
    let c = world.lanes[&2][0];
    world.expect(c, redis("GET b"));
    world.send(c, "$1\r\n1\r\n");
    world.expect(client, "+OK\r\n$1\r\n1\r\n");
    world.send(client, all(&["MULTI", "SET b 2", "EXEC"]));
    world.expect(client, format!("+OK\r\n{QUEUED}*-1\r\n"));
    world.expect(watch, redis("UNWATCH"));
    world.send(watch, "+OK\r\n");
    // Or does so before EXEC.
    world.send(client, redis("WATCH hello"));
    world.expect(a, redis("WATCH hello"));
    world.send(a, "+OK\r\n");
    world.send(client, all(&["MULTI", "SET hello 2", "EXEC"]));
    world.expect(a, all(&["MULTI", "SET hello 2", "EXEC"]));
    world.send(a, format!("+OK\r\n{}-EXECABORT discarded\r\n", moved(866, 1)));
    world.expect(client, format!("+OK\r\n+OK\r\n{QUEUED}*-1\r\n"));
    world.assert_idle();
}

#[test]
fn what_clients_have_other_names_for_goes_on_by_those() {
    let renames = "command_policy: {base: admin, rename: {EXEC: run, WATCH: look, BLPOP: hold}}";
    let (mut world, client, _) = three(&cluster(renames));
    world.send(client, redis("LOOK b"));
    let a = session(&mut world, 0);
    world.expect(a, redis("watch b"));
    world.send(a, moved(3300, 1));
    world.expect(a, redis("UNWATCH"));
    world.send(a, "+OK\r\n");
    let b = session(&mut world, 1);
    world.expect(b, redis("watch b"));
    world.send(b, "+OK\r\n");
    world.send(client, redis("UNWATCH"));
    world.expect(b, redis("UNWATCH"));
    world.send(b, "+OK\r\n");
    world.expect(client, "+OK\r\n+OK\r\n");
    world.send(client, all(&["MULTI", "INCR hello", "RUN"]));
    let text = all(&["MULTI", "INCR hello", "EXEC"]);
    world.expect(a, &text);
    world.send(a, format!("+OK\r\n{}-EXECABORT discarded\r\n", moved(866, 1)));
    world.expect(b, &text);
    world.send(b, format!("+OK\r\n{QUEUED}*1\r\n:1\r\n"));
    world.expect(client, format!("+OK\r\n{QUEUED}*1\r\n:1\r\n"));
    world.send(client, redis("HOLD c 0"));
    world.expect(b, all(&["CLIENT ID", "blpop c 0"]));
    world.send(b, format!(":7\r\n{}", moved(7365, 0)));
    world.expect(a, all(&["CLIENT ID", "blpop c 0"]));
    world.send(a, ":8\r\n*-1\r\n");
    world.expect(client, "*-1\r\n");
    world.assert_idle();
}

#[test]
fn what_tenants_watch_goes_on_with_one_prefix() {
    let users = "users: {default: {rules: 'on nopass ~* +@all', key_prefix: 'x{b}'}}";
    let (mut world, client, _) = three(&cluster(users));
    let held = world.engine.held_bytes();
    world.send(client, redis("WATCH 1 2"));
    let a = session(&mut world, 0);
    world.expect(a, redis("WATCH x{b}1 x{b}2"));
    world.send(a, moved(3300, 1));
    world.expect(a, redis("UNWATCH"));
    world.send(a, "+OK\r\n");
    let b = session(&mut world, 1);
    world.expect(b, redis("WATCH x{b}1 x{b}2"));
    world.send(b, ask(3300, 2));
    world.expect(b, redis("UNWATCH"));
    world.send(b, "+OK\r\n");
    let c = session(&mut world, 2);
    world.expect(c, redis("ASKING") + &redis("WATCH x{b}1 x{b}2"));
    world.send(c, "+OK\r\n+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.send(client, redis("UNWATCH"));
    world.expect(c, redis("UNWATCH"));
    world.send(c, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    assert_eq!((world.engine.requests_pending(), world.engine.held_bytes()), (0, held));
}

#[test]
fn a_call_that_waits_goes_on_at_the_new_owner() {
    let (mut world, client, _) = three(&cluster(""));
    world.send(client, redis("BLPOP b 0"));
    let a = session(&mut world, 0);
    world.expect(a, all(&["CLIENT ID", "BLPOP b 0"]));
    world.send(a, ":7\r\n");
    world.wait_ms(2000);
    world.send(a, moved(3300, 1));
    world.expect(client, "");
    let b = session(&mut world, 1);
    world.expect(b, all(&["CLIENT ID", "BLPOP b 0"]));
    world.send(b, format!(":8\r\n{}", ask(3300, 2)));
    let c = session(&mut world, 2);
    world.expect(c, all(&["CLIENT ID", "ASKING", "BLPOP b 0"]));
    world.send(c, ":9\r\n+OK\r\n*2\r\n$1\r\nb\r\n$1\r\n1\r\n");
    world.expect(client, "*2\r\n$1\r\nb\r\n$1\r\n1\r\n");
    world.assert_idle();
}

#[test]
fn what_stood_behind_a_request_that_has_moved_stays_where_it_is() {
    let (mut world, one, [a, b, _]) = three(&cluster(""));
    let other = world.client();
    world.send(one, redis("GET b"));
    world.send(other, redis("GET hello"));
    world.expect(a, all(&["GET b", "GET hello"]));
    world.send(a, moved(3300, 1));
    world.expect(b, redis("GET b"));
    world.send(b, "$1\r\n1\r\n");
    world.expect(one, "$1\r\n1\r\n");
    // The next reply of that node is for who asks there next, not for who waits for the first one.
    world.send(one, redis("GET c"));
    world.expect(b, redis("GET c"));
    world.send(b, "$1\r\n3\r\n");
    world.expect(one, "$1\r\n3\r\n");
    world.expect(other, "");
    world.send(a, "$1\r\n2\r\n");
    world.expect(other, "$1\r\n2\r\n");
    world.assert_idle();
}

#[test]
fn what_no_node_takes_for_now_is_asked_again_until_its_time_is_up() {
    const ABORTED: &str = "-EXECABORT discarded\r\n";
    // Unknown nodes, slots half moved, clusters that are down.
    for refusal in [moved(3300, 9), ask(3300, 9), "-TRYAGAIN\r\n".to_owned(), DOWN.to_owned()] {
        let (mut world, client, _) = three(&waiting());
        world.send(client, all(&["MULTI", "INCR b", "EXEC"]));
        let text = all(&["MULTI", "INCR b", "EXEC"]);
        let a = session(&mut world, 0);
        for _ in 0..10 {
            world.expect(a, &text);
            world.send(a, format!("+OK\r\n{refusal}{ABORTED}"));
            world.wait_ms(19);
            world.expect(a, "");
            world.wait_ms(2);
        }
        world.expect(a, &text);
        world.send(a, format!("+OK\r\n{QUEUED}*1\r\n:1\r\n"));
        world.expect(client, format!("+OK\r\n{QUEUED}*1\r\n:1\r\n"));
        world.send(client, redis("WATCH b"));
        world.expect(a, redis("WATCH b"));
        world.send(a, &refusal);
        world.expect(a, redis("UNWATCH"));
        world.send(a, "+OK\r\n");
        world.wait_ms(21);
        world.expect(a, redis("WATCH b"));
        world.send(a, "+OK\r\n");
        world.send(client, redis("UNWATCH"));
        world.expect(a, redis("UNWATCH"));
        world.send(a, "+OK\r\n");
        world.expect(client, "+OK\r\n+OK\r\n");
        world.send(client, redis("BLPOP b 0"));
        world.expect(a, all(&["CLIENT ID", "BLPOP b 0"]));
        world.send(a, format!(":7\r\n{refusal}"));
        world.wait_ms(21);
        world.expect(a, redis("BLPOP b 0"));
        // The node is none that takes writes any more.
        world.send(
            a,
            "-UNBLOCKED force unblock from blocking operation, instance state changed\r\n",
        );
        let mut tries = 0;
        while world.received(client).is_empty() {
            world.wait_ms(21);
            if world.received(a) == redis("BLPOP b 0").as_bytes() {
                world.send(a, &refusal);
            }
            tries += 1;
            assert!(tries < 60, "it is not asked for ever");
        }
        assert!(tries > 40);
        world.assert_idle();
    }
}

#[test]
fn what_is_refused_is_not_overtaken_by_what_has_moved() {
    let (mut world, client, [a, b, _]) = three(&waiting());
    world.send(client, all(&["SET b 1", "SET b 2"]));
    world.expect(a, all(&["SET b 1", "SET b 2"]));
    world.send(a, DOWN.to_owned() + &moved(3300, 1));
    world.expect(b, "");
    let a = (0..40)
        .find_map(|_| {
            world.wait_ms(5);
            world.connects_to(0).then(|| world.accept(0))
        })
        .expect("it is tried again");
    world.expect(a, redis("PING"));
    world.send(a, "+PONG\r\n");
    // The owner is known meanwhile, but they keep together.
    world.expect(a, all(&["SET b 1", "SET b 2"]));
    world.send(a, moved(3300, 1).repeat(2));
    world.expect(b, all(&["SET b 1", "SET b 2"]));
    world.send(b, "+OK\r\n+OK\r\n");
    world.expect(client, "+OK\r\n+OK\r\n");
    world.assert_idle();
}

/// A script's seal is answered with it. Sent again with what it stands behind it would have none, and what a server
/// puts behind a line end of its error would be somebody's reply.
#[test]
fn a_script_is_not_sent_again_with_what_it_stands_behind() {
    let (mut world, client, [a, _, _]) = three(&waiting());
    world.send(client, all(&["SET b 1", "EVAL x 1 b"]));
    world.expect(a, all(&["SET b 1", "EVAL x 1 b"]));
    world.send(a, DOWN.to_owned() + &moved(3300, 1));
    world.expect(client, DOWN.to_owned() + &moved(3300, 1));
    world.wait_ms(3000);
    world.expect(a, "");
    world.assert_idle();
}

#[test]
fn what_was_tried_again_may_still_move_as_often() {
    let (mut world, client, [a, b, c]) = three(&cluster(""));
    world.send(client, redis("MGET {b}1 {b}2"));
    for wait in [5, 50, 50, 50, 50, 50, 50] {
        world.expect(a, redis("MGET {b}1 {b}2"));
        world.send(a, "-TRYAGAIN\r\n");
        world.wait_ms(wait + 1);
    }
    for (lane, next) in [(a, 1), (b, 2), (c, 1), (b, 2), (c, 0)] {
        world.expect(lane, redis("MGET {b}1 {b}2"));
        world.send(lane, moved(3300, next));
        world.expect(client, "");
    }
    world.expect(a, redis("MGET {b}1 {b}2"));
    world.send(a, "*2\r\n$-1\r\n$-1\r\n");
    world.expect(client, "*2\r\n$-1\r\n$-1\r\n");
    world.assert_idle();
}

#[test]
fn what_has_keys_at_neither_node_is_tried_again_until_the_slot_has_moved() {
    let (mut world, client, [a, b, _]) = three(&waiting());
    let rename = redis("RENAME {b}1 {b}2");
    world.send(client, &rename);
    for wait in [5, 50, 50, 50, 50, 50, 50, 50] {
        world.expect(a, &rename);
        world.send(a, ask(3300, 1));
        world.expect(b, redis("ASKING") + &rename);
        world.send(b, "+OK\r\n-TRYAGAIN\r\n");
        world.expect(client, "");
        world.wait_ms(wait + 1);
    }
    world.expect(a, &rename);
    world.send(a, moved(3300, 1));
    world.expect(b, &rename);
    world.send(b, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    // A slot that stays half moved is the client's to know of.
    let rename = redis("RENAME {hello}1 {hello}2");
    world.send(client, &rename);
    let (mut tries, mut reply) = (0, Vec::new());
    while reply.is_empty() {
        world.expect(a, &rename);
        world.send(a, ask(866, 1));
        world.expect(b, redis("ASKING") + &rename);
        world.send(b, "+OK\r\n-TRYAGAIN\r\n");
        world.wait_ms(51);
        reply = world.received(client);
        tries += 1;
        assert!(tries < 30);
    }
    assert_eq!(reply, NOT_SERVED.as_bytes());
    assert!(tries >= 20);
    world.assert_idle();
}

#[test]
fn a_transaction_with_keys_at_neither_node_is_tried_again_until_the_slot_has_moved() {
    let (mut world, client, _) = three(&waiting());
    let text = all(&["MULTI", "MGET {b}1 {b}2", "EXEC"]);
    world.send(client, &text);
    let (a, aborted) = (session(&mut world, 0), "-EXECABORT Transaction discarded\r\n");
    let mut b = None;
    for _ in 0..8 {
        world.expect(a, &text);
        world.send(a, format!("+OK\r\n{}{aborted}", ask(3300, 1)));
        let b = *b.get_or_insert_with(|| session(&mut world, 1));
        world.expect(b, redis("ASKING") + &text);
        world.send(b, format!("+OK\r\n+OK\r\n-TRYAGAIN\r\n{aborted}"));
        world.received(client);
        world.wait_ms(51);
    }
    world.expect(a, &text);
    world.send(a, format!("+OK\r\n{QUEUED}*1\r\n*2\r\n$-1\r\n$-1\r\n"));
    world.expect(client, "*1\r\n*2\r\n$-1\r\n$-1\r\n");
    world.assert_idle();
}

#[test]
fn what_is_behind_and_not_written_is_not_overtaken_either() {
    let (mut world, client, [a, _, _]) = three(&cluster(""));
    world.send(client, redis("MSET {b}1 1 {b}2 1"));
    world.received(a);
    world.stuck.push(a);
    world.send(client, redis("SET {b}1 2"));
    world.send(a, "-TRYAGAIN\r\n");
    world.expect(client, NOT_SERVED);
    world.stuck.clear();
    world.tick();
    world.write(a);
    world.expect(a, redis("SET {b}1 2"));
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn asking_that_was_not_sent_is_not_said_for_anybody_else() {
    let (mut world, client, [a, b, _]) = three(&waiting());
    let other = world.client();
    world.close(b, CloseReason::Reset);
    world.send(client, redis("GET b"));
    world.expect(a, redis("GET b"));
    world.send(a, ask(3300, 1));
    let [x, y, z] = THIRDS;
    let mut next = cluster_of(
        "failover_wait: 1000",
        3,
        &[(0, &[], &[x, (5461, 5461)]), (1, &[], &[(5462, y.1)]), (2, &[], &[z])],
    );
    next.epoch += 1;
    world.prepare(&next);
    world.commit(&next);
    // It goes to the owner again.
    world.expect(a, redis("GET b"));
    while !world.connects_to(1) {
        world.wait_ms(5);
    }
    let b = world.accept(1);
    if !world.received(b).is_empty() {
        world.send(b, "+PONG\r\n");
    }
    world.send(other, redis("GET c"));
    world.expect(b, redis("GET c"));
    world.send(b, "$-1\r\n");
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.expect(other, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_transaction_that_nobody_waits_for_any_more_is_not_followed() {
    let (mut world, client, _) = three(&cluster(""));
    world.send(client, all(&["MULTI", "INCR b", "EXEC"]));
    let a = session(&mut world, 0);
    world.expect(a, all(&["MULTI", "INCR b", "EXEC"]));
    world.close(client, CloseReason::Reset);
    let refused = moved(3300, 1);
    world.send(a, format!("+OK\r\n{refused}-EXECABORT Transaction discarded\r\n"));
    // Neither is WATCH.
    let client = world.client();
    world.send(client, redis("WATCH c"));
    let b = session(&mut world, 1);
    world.expect(b, redis("WATCH c"));
    world.close(client, CloseReason::Reset);
    world.send(b, moved(7365, 2));
    let client = world.client();
    world.send(client, redis("GET b"));
    let b = world.lanes[&1][0];
    world.expect(b, redis("GET b"));
    world.send(b, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
}

#[test]
fn what_is_sent_on_twice_is_not_overtaken_by_what_is_sent_on_once() {
    let (mut world, client, [a, b, c]) = three(&cluster(""));
    world.send(client, all(&["SET b 1", "APPEND b 2"]));
    world.expect(a, all(&["SET b 1", "APPEND b 2"]));
    // Meanwhile the node hears of another owner.
    world.send(a, moved(3300, 1) + &moved(3300, 2));
    world.expect(b, redis("SET b 1"));
    world.expect(c, "");
    world.send(b, moved(3300, 2));
    world.wait_ms(2);
    world.expect(c, all(&["SET b 1", "APPEND b 2"]));
    world.send(c, "+OK\r\n:2\r\n");
    world.expect(client, "+OK\r\n:2\r\n");
    world.assert_idle();
}

#[test]
fn who_has_become_an_owner_does_not_answer_reads_as_a_replica() {
    let [x, y, z] = THIRDS;
    let groups: [Group<'_>; 3] = [(0, &[3], &[x]), (1, &[], &[y]), (2, &[], &[z])];
    let mut snapshot = cluster_of("", 4, &groups);
    snapshot.pools[0].preconnect = false;
    let mut world = World::new(&snapshot);
    let client = world.client();
    world.send(client, redis("GET b"));
    let a = world.accept(0);
    world.expect(a, redis("GET b"));
    world.send(a, moved(3300, 3));
    let d = world.accept(3);
    world.expect(d, redis("GET b"));
    world.send(d, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
}

#[test]
fn a_call_that_has_waited_long_at_its_new_node_may_move_as_the_first_time() {
    let (mut world, client, _) = three(&waiting());
    world.send(client, redis("BLPOP b 0"));
    let a = session(&mut world, 0);
    world.expect(a, all(&["CLIENT ID", "BLPOP b 0"]));
    world.send(a, format!(":7\r\n{}", moved(3300, 1)));
    let b = session(&mut world, 1);
    world.expect(b, all(&["CLIENT ID", "BLPOP b 0"]));
    world.send(b, ":8\r\n");
    world.wait_ms(60_000);
    world.send(b, "-UNBLOCKED force unblock from blocking operation, instance state changed\r\n");
    world.expect(client, "");
    world.wait_ms(25);
    world.tick();
    world.expect(b, all(&["BLPOP b 0"]));
    world.send(b, "*2\r\n$1\r\nb\r\n$1\r\n1\r\n");
    world.expect(client, "*2\r\n$1\r\nb\r\n$1\r\n1\r\n");
}

#[test]
fn what_a_node_refuses_for_now_is_not_overtaken_by_what_others_send_on() {
    let (mut world, client, [a, b, c]) = three(&waiting());
    world.send(client, all(&["SET b 1", "APPEND b 2"]));
    world.expect(a, all(&["SET b 1", "APPEND b 2"]));
    world.send(a, moved(3300, 1));
    world.expect(b, redis("SET b 1"));
    let other = world.client();
    world.send(other, redis("GET c"));
    world.expect(b, redis("GET c"));
    // It stays there, as a reply to another client is awaited.
    world.send(b, DOWN);
    world.send(a, moved(3300, 2));
    world.wait_ms(2);
    world.expect(c, "");
    world.send(b, "$1\r\n3\r\n");
    world.expect(other, "$1\r\n3\r\n");
    let b = (0..40)
        .find_map(|_| {
            world.wait_ms(5);
            world.connects_to(1).then(|| world.accept(1))
        })
        .expect("it is tried again");
    world.expect(b, redis("PING"));
    world.send(b, "+PONG\r\n");
    world.expect(b, redis("SET b 1"));
    world.expect(c, "");
    world.send(b, moved(3300, 2));
    world.wait_ms(2);
    world.expect(c, all(&["SET b 1", "APPEND b 2"]));
    world.send(c, "+OK\r\n:2\r\n");
    world.expect(client, "+OK\r\n:2\r\n");
    world.assert_idle();
}

#[test]
fn what_is_asked_behind_watch_is_answered_before_the_transaction_goes() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    world.send(client, redis("WATCH b"));
    let lane = session(&mut world, 0);
    world.expect(lane, redis("WATCH b"));
    world.send(lane, ask(3300, 1));
    world.expect(lane, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    let watch = session(&mut world, 1);
    world.expect(watch, all(&["ASKING", "WATCH b"]));
    world.send(watch, "+OK\r\n+OK\r\n");
    world.send(client, all(&["GET b", "MULTI", "SET b 2", "EXEC"]));
    world.expect(a, redis("GET b"));
    world.expect(watch, "");
    world.send(a, ask(3300, 1));
    world.expect(b, all(&["ASKING", "GET b"]));
    world.expect(watch, "");
    world.send(b, "+OK\r\n$1\r\n1\r\n");
    world.expect(watch, all(&["ASKING", "MULTI", "SET b 2", "EXEC"]));
    world.send(watch, format!("+OK\r\n+OK\r\n{QUEUED}*1\r\n+OK\r\n"));
    world.expect(client, format!("+OK\r\n$1\r\n1\r\n+OK\r\n{QUEUED}*1\r\n+OK\r\n"));
    world.assert_idle();
}

#[test]
fn redirects_that_are_not_followed_are_told_in_the_gateway_s_words() {
    // The owner cannot be reached.
    let (mut world, client, [a, b, _]) = three(&cluster("failover_wait: 0"));
    world.close(b, CloseReason::Eof);
    world.refuse(1);
    world.send(client, redis("SET b 1"));
    world.expect(a, redis("SET b 1"));
    world.send(a, moved(3300, 1));
    world.expect(client, "-ERR Connection refused\r\n");
    // No map names it.
    world.send(client, redis("SET hello 1"));
    world.expect(a, redis("SET hello 1"));
    world.send(a, moved(866, 9));
    world.wait_ms(60);
    world.expect(a, redis("SET hello 1"));
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    // What a script has said of its own is its client's, when it has been followed twice.
    world.send(client, redis("EVAL redis.call 1 hello"));
    for _ in 0..3 {
        world.expect(a, redis("EVAL redis.call 1 hello"));
        world.send(a, moved(866, 0));
    }
    world.expect(client, moved(866, 0));
    world.assert_idle();
}

#[test]
fn large_transactions_whose_slot_has_moved_are_aborted() {
    let (mut world, client, _) = three(&cluster(""));
    let large = redis(&format!("SET b {}", "x".repeat(40_000)));
    world.send(client, redis("MULTI") + &large + &large + &redis("EXEC"));
    let lane = session(&mut world, 0);
    world.received(lane);
    let refused = moved(3300, 1);
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    world.send(lane, format!("+OK\r\n{refused}{refused}{aborted}"));
    world.expect(client, format!("+OK\r\n{QUEUED}{NOT_SERVED}{aborted}"));
    // It moves just before EXEC.
    let large = large.replace("$1\r\nb\r\n", "$5\r\nhello\r\n");
    world.send(client, redis("MULTI") + &large + &large + &redis("EXEC"));
    world.received(lane);
    world.send(lane, format!("+OK\r\n{QUEUED}{QUEUED}{}", moved(866, 1)));
    world.expect(client, format!("+OK\r\n{QUEUED}{QUEUED}{ABORTED}"));
    world.assert_idle();
}

#[test]
fn calls_and_watches_that_are_sent_to_and_fro_end_in_the_gateway_s_words() {
    let (mut world, client, _) = three(&cluster(""));
    for (request, is_call) in [("WATCH b", false), ("BLPOP b 0", true)] {
        world.send(client, redis(request));
        let mut lanes: [Option<ConnId>; 2] = [None, None];
        for hop in 0..6 {
            let at = hop % 2;
            let lane = *lanes[at].get_or_insert_with(|| match world.lanes[&(at as u32)].len() {
                1 => session(&mut world, at as u32),
                _ => world.lanes[&(at as u32)][1],
            });
            let asked = String::from_utf8(world.received(lane)).unwrap();
            assert!(asked.ends_with(&redis(request)), "{asked}");
            let id = if asked.contains("CLIENT") { ":7\r\n" } else { "" };
            world.send(lane, id.to_owned() + &moved(3300, 1 - at as u32));
            if !is_call {
                world.expect(lane, redis("UNWATCH"));
                world.send(lane, "+OK\r\n");
            }
        }
        world.expect(client, NOT_SERVED);
    }
    world.assert_idle();
}

#[test]
fn what_waits_at_a_former_owner_is_not_overtaken_when_another_node_names_the_next() {
    let (mut world, client, [a, b, c]) = three(&waiting());
    let other = world.client();
    // One that asks for the same slot is sent to a node that sends it on.
    world.send(other, redis("GET x{b}"));
    world.expect(a, redis("GET x{b}"));
    world.send(a, ask(3300, 1));
    world.expect(b, all(&["ASKING", "GET x{b}"]));
    world.send(client, redis("SET b 1"));
    world.expect(a, redis("SET b 1"));
    world.send(b, "+OK\r\n".to_owned() + &moved(3300, 2));
    world.expect(c, redis("GET x{b}"));
    world.send(client, redis("APPEND b 2"));
    world.expect(c, "");
    world.send(a, moved(3300, 2));
    world.expect(c, redis("SET b 1"));
    world.send(c, "$-1\r\n+OK\r\n");
    world.expect(other, "$-1\r\n");
    world.expect(c, redis("APPEND b 2"));
    world.send(c, ":2\r\n");
    world.expect(client, "+OK\r\n:2\r\n");
    world.assert_idle();
}

#[test]
fn what_is_sent_on_counts_in_the_queue_of_its_new_node() {
    let (mut world, client, [a, b, _]) = three(&cluster("server_queue_max: 3"));
    let other = world.client();
    world.send(other, redis("GET c").repeat(2));
    world.received(b);
    world.send(client, all(&["SET b 1", "SET b 2", "SET b 3"]));
    world.received(a);
    world.send(a, moved(3300, 1).repeat(3));
    world.expect(b, redis("SET b 1"));
    world.send(b, "$-1\r\n".repeat(2) + "+OK\r\n");
    let full = "-ERR Server queue is full\r\n";
    world.expect(client, format!("+OK\r\n{full}{full}"));
    world.expect(b, "");
    world.received(other);
    world.assert_idle();
}

#[test]
fn what_waits_in_one_pool_takes_no_room_of_another() {
    let mut snapshot = cluster("failover_wait: 1000\nserver_queue_max: 2");
    let mut second = snapshot.pools[0].clone();
    second.name = "q".to_owned();
    snapshot.pools.push(second);
    let mut world = World::new(&snapshot);
    let _: [Option<ConnId>; 3] = world.accept_all();
    let [a, other_a] = world.lanes[&0][..] else { panic!("each pool has a connection") };
    let (client, other) = (world.client(), world.client_of(1));
    world.send(client, all(&["SET b 1", "SET b 2"]));
    let (a, other_a) = if world.received(a).is_empty() { (other_a, a) } else { (a, other_a) };
    world.send(a, moved(3300, 9).repeat(2));
    let late = world.client();
    world.send(other, redis("SET b 3"));
    world.received(other_a);
    world.send(other_a, moved(3300, 9));
    world.expect(other, "");
    world.received(a);
    world.send(late, redis("SET hello 4"));
    world.expect(a, redis("SET hello 4"));
    // There is no more room.
    world.send(a, moved(866, 9));
    world.expect(late, NOT_SERVED);
    world.expect(client, "");
    world.wait_ms(1100);
    world.send(a, "+OK\r\n".repeat(2));
    world.send(other_a, "+OK\r\n");
    world.expect(client, "+OK\r\n+OK\r\n");
    world.expect(other, "+OK\r\n");
    world.assert_idle();
}

/// What ASK has named is not forgotten while earlier requests are waited for.
#[test]
fn what_waits_for_its_turn_goes_where_it_was_sent() {
    let (mut world, client, [a, b, c]) = three(&cluster(""));
    world.send(client, all(&["SET b 1", "APPEND b 2", "APPEND b 3"]));
    world.received(a);
    world.send(a, ask(3300, 1) + &ask(3300, 2).repeat(2));
    world.expect(b, all(&["ASKING", "SET b 1"]));
    world.expect(c, "");
    world.send(b, "+OK\r\n+OK\r\n");
    world.expect(a, "");
    world.expect(c, all(&["ASKING", "APPEND b 2", "ASKING", "APPEND b 3"]));
    world.send(c, "+OK\r\n:2\r\n+OK\r\n:3\r\n");
    world.expect(client, "+OK\r\n:2\r\n:3\r\n");
    world.assert_idle();
}

const MANY: &str = "client_requests_max: 20000\nclient_output_max: 100mb\nserver_queue_max: 100000";

/// How many steps the redirects of so many requests take, of which `play` has them answered.
fn steps(
    options: &str,
    count: usize,
    play: &impl Fn(&mut World, ConnId, [ConnId; 3], usize),
) -> u64 {
    let (mut world, client, lanes) = three(&cluster(&format!("{MANY}\n{options}")));
    let before = world.engine.steps_of_redirects();
    play(&mut world, client, lanes, count);
    world.assert_idle();
    world.engine.steps_of_redirects() - before
}

/// Four times as many take four times as long, not sixteen times.
#[track_caller]
fn assert_linear(play: impl Fn(&mut World, ConnId, [ConnId; 3], usize)) {
    assert_linear_with("", play);
}

#[track_caller]
fn assert_linear_with(options: &str, play: impl Fn(&mut World, ConnId, [ConnId; 3], usize)) {
    let (few, many) = (steps(options, 5_000, &play), steps(options, 20_000, &play));
    assert!(few > 5_000, "{few} steps");
    assert!(many < 5 * few, "{few} steps, and {many} for four times as many");
    assert!(many < 20 * 20_000, "{many} steps");
}

#[track_caller]
fn received_count(world: &mut World, conn: ConnId) -> usize {
    let received = world.received(conn);
    received.split(|&byte| byte == b'*').count() - 1
}

#[test]
fn thousands_that_move_twice_take_as_many_steps() {
    assert_linear(|world, client, [a, b, c], count| {
        world.send(client, redis("APPEND b 1").repeat(count));
        assert_eq!(received_count(world, a), count);
        world.send(a, moved(3300, 1).repeat(count));
        assert_eq!(received_count(world, b), count);
        world.send(b, moved(3300, 2).repeat(count));
        assert_eq!(received_count(world, c), count);
        world.send(c, ":1\r\n".repeat(count));
        world.expect(client, ":1\r\n".repeat(count));
    });
}

#[test]
fn thousands_that_move_and_lose_their_client_take_as_many_steps() {
    assert_linear(|world, client, [a, b, c], count| {
        world.send(client, redis("APPEND b 1").repeat(count));
        world.received(a);
        world.send(a, moved(3300, 1).repeat(count / 2));
        world.close(client, CloseReason::Reset);
        world.send(a, moved(3300, 1).repeat(count - count / 2));
        assert_eq!(received_count(world, b), count);
        world.send(b, moved(3300, 2).repeat(count));
        assert_eq!(received_count(world, c), count);
        world.send(c, ":1\r\n".repeat(count));
    });
}

/// Each of them has others waiting.
#[test]
fn thousands_that_go_to_and_fro_one_by_one_take_as_many_steps() {
    assert_linear(|world, client, [a, b, c], count| {
        world.send(client, redis("APPEND b 1").repeat(count));
        world.received(a);
        world.send(a, (ask(3300, 1) + &ask(3300, 2)).repeat(count / 2));
        for _ in 0..count / 2 {
            for lane in [b, c] {
                world.expect(lane, all(&["ASKING", "APPEND b 1"]));
                world.send(lane, "+OK\r\n:1\r\n");
            }
        }
        world.expect(client, ":1\r\n".repeat(count));
    });
}

/// Others ask meanwhile, so that there is somebody new each time to be kept from overtaking what has not come back.
#[test]
fn thousands_of_slots_that_move_take_as_many_steps() {
    assert_linear(|world, client, [a, b, _], count| {
        let key = |number: usize| format!("k{number}");
        let in_first: Vec<(String, u16)> = (0..)
            .map(|number| (key(number), cashew_placement::slot_of(key(number).as_bytes())))
            .filter(|(_, slot)| *slot <= 5460)
            .take(count)
            .collect();
        let asked: String = in_first.iter().map(|(key, _)| redis(&format!("INCR {key}"))).collect();
        world.send(client, asked);
        assert_eq!(received_count(world, a), count);
        let other = world.client();
        let each = in_first.len().div_ceil(100);
        for some in in_first.chunks(each) {
            world.send(other, redis("INCR b"));
            world.send(a, some.iter().map(|(_, slot)| moved(*slot, 1)).collect::<String>());
        }
        assert!(received_count(world, b) >= count);
        world.close(other, CloseReason::Reset);
        world.send(b, ":1\r\n".repeat(count));
        world.close(a, CloseReason::Reset);
        world.close(b, CloseReason::Reset);
        world.expect(client, ":1\r\n".repeat(count));
    });
}

#[test]
fn thousands_that_are_to_be_tried_again_take_as_many_steps() {
    assert_linear(|world, client, [a, _, _], count| {
        let others: Vec<ConnId> = (0..4).map(|_| world.client()).collect();
        let each = count / 5;
        world.send(client, redis("MGET {b}1 {b}2").repeat(each));
        others.iter().for_each(|&other| world.send(other, redis("MGET {b}1 {b}2").repeat(each)));
        world.received(a);
        // What comes last of each client's is.
        world.send(a, "-TRYAGAIN\r\n".repeat(count));
        world.wait_ms(6);
        assert_eq!(received_count(world, a), 5);
        world.send(a, "*2\r\n$-1\r\n$-1\r\n".repeat(5));
        let answers = NOT_SERVED.repeat(each - 1) + "*2\r\n$-1\r\n$-1\r\n";
        others.into_iter().chain([client]).for_each(|client| world.expect(client, &answers));
    });
}

/// Its owner is gone, and another takes its place: whoever wants a connection to itself waits meanwhile, as all else does.
#[test]
fn transactions_and_calls_that_wait_for_a_dead_node_go_to_its_successor() {
    let (mut world, client, [a, ..]) = three(&waiting());
    let other = world.client();
    world.close(a, CloseReason::Reset);
    world.send(client, redis("BLPOP b 0"));
    world.send(other, redis("WATCH b"));
    for _ in 0..60 {
        while world.connects_to(0) {
            world.refuse(0);
        }
        world.wait_ms(5);
    }
    world.expect(client, "");
    world.expect(other, "");
    let [x, y, z] = THIRDS;
    let groups: [Group<'_>; 3] = [(0, &[], &[]), (1, &[], &[x, y]), (2, &[], &[z])];
    let mut next = cluster_of("failover_wait: 1000", 3, &groups);
    next.epoch += 1;
    next.pools[0].cluster.as_mut().unwrap().changes += 1;
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    let mut sent = String::new();
    while world.connects_to(1) {
        let b = world.accept(1);
        sent += &String::from_utf8(world.received(b)).unwrap();
    }
    assert!(sent.contains(&redis("BLPOP b 0")) && sent.contains(&redis("WATCH b")), "{sent}");
}

/// A second server would answer it by way of another connection than the one that it is known to be on.
#[test]
fn what_nodes_send_elsewhere_goes_to_one_server_only_and_leaves_no_place_behind() {
    let [x, y, z] = THIRDS;
    let groups: [Group<'_>; 3] = [(0, &[], &[x]), (1, &[3], &[y]), (2, &[], &[z])];
    let mut snapshot = cluster_of("", 4, &groups);
    snapshot.pools[0].reads = Some(Reads::PreferReplica);
    snapshot.pools[0].hedge = Some(Hedge { after_ms: 3, budget_percent: 5 });
    let (mut world, [a, b, c, replica]): (World, [ConnId; 4]) = World::connected(&snapshot);
    let client = world.client();
    world.send(replica, "+OK\r\n");
    world.received(replica);
    // Others are sent twice.
    world.send(client, redis("GET c"));
    world.expect(replica, redis("GET c"));
    world.wait_ms(4);
    world.expect(b, redis("GET c"));
    [b, replica].into_iter().for_each(|lane| world.send(lane, "$1\r\n1\r\n"));
    world.expect(client, "$1\r\n1\r\n");
    world.send(client, redis("GET b"));
    world.expect(a, redis("GET b"));
    world.send(a, moved(3300, 1));
    world.expect(b, redis("GET b"));
    world.wait_ms(10);
    world.expect(replica, "");
    world.send(b, "$1\r\n2\r\n");
    world.expect(client, "$1\r\n2\r\n");
    // What comes next waits for nothing.
    world.send(client, redis("SET b 3"));
    world.expect(b, redis("SET b 3"));
    world.send(b, moved(3300, 2));
    world.expect(c, redis("SET b 3"));
    world.send(c, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

/// A connection that was lost says nothing of the one that takes its place.
#[test]
fn what_waits_for_a_connection_is_answered_on_the_next_one_and_leaves_no_place_behind() {
    let (mut world, client, [a, b, c]) = three(&waiting());
    let other = world.client();
    world.send(other, redis("SET c 0"));
    world.send(client, redis("SET b 1"));
    world.received(a);
    world.received(b);
    world.close(b, CloseReason::Reset);
    world.send(a, moved(3300, 1));
    world.wait_ms(50);
    let b = world.accept(1);
    let sent = String::from_utf8(world.received(b)).unwrap();
    assert!(sent.ends_with(&redis("SET b 1")), "{sent}");
    world.send(b, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.received(other);
    world.send(client, redis("SET b 2"));
    world.expect(b, redis("SET b 2"));
    world.send(b, moved(3300, 2));
    world.expect(c, redis("SET b 2"));
    world.send(c, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

/// One client's keys are half moved: that holds up nobody who shares the connection.
#[test]
fn what_is_to_be_tried_again_holds_up_nobody_else() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    let other = world.client();
    world.send(client, redis("MGET {b}1 {b}2"));
    world.send(other, redis("SET hello 1"));
    world.received(a);
    world.send(a, "-TRYAGAIN\r\n");
    world.send(other, redis("SET c 2"));
    world.expect(b, redis("SET c 2"));
    world.wait_ms(6);
    world.expect(a, redis("MGET {b}1 {b}2"));
    world.send(a, "+OK\r\n*2\r\n$-1\r\n$-1\r\n");
    world.send(b, "+OK\r\n");
    world.expect(other, "+OK\r\n+OK\r\n");
    world.expect(client, "*2\r\n$-1\r\n$-1\r\n");
    world.assert_idle();
}

/// A cluster's pool, and another one.
fn with_another(options: &str, shutdown_ms: u64) -> Snapshot {
    let mut snapshot = cluster(options);
    let mut other = pool("redis: true", 1).pools.remove(0);
    other.name = "q".to_owned();
    snapshot.pools.push(other);
    snapshot.global.worker_shutdown_timeout_ms = shutdown_ms;
    snapshot
}

/// The pool leaves while a request waits for its next map, whose client has gone; returns the pool's connection.
fn leaves_with_a_request(shutdown_ms: u64) -> (World, ConnId) {
    let mut snapshot = with_another("failover_wait: 3000", shutdown_ms);
    let mut world = World::new(&snapshot);
    let _: [Option<ConnId>; 3] = world.accept_all();
    let a = world.lanes[&0][0];
    let client = world.client();
    world.send(client, redis("SET b 1"));
    world.received(a);
    world.close(client, CloseReason::Reset);
    world.send(a, moved(3300, 9));
    snapshot.epoch += 1;
    snapshot.pools.remove(0);
    world.prepare(&snapshot);
    world.pause(0);
    world.commit(&snapshot);
    (world, a)
}

#[test]
fn a_pool_that_leaves_sends_first_what_waits_for_its_next_map() {
    let (mut world, a) = leaves_with_a_request(60_000);
    world.wait_ms(2_900);
    assert!(!world.closed.contains(&a));
    world.wait_ms(200);
    world.expect(a, redis("SET b 1"));
    world.send(a, "+OK\r\n");
    world.wait_ms(1_000);
    assert!(world.closed.contains(&a));
    world.assert_idle();
}

#[test]
fn a_pool_whose_time_is_up_takes_what_waits_for_its_next_map_with_it() {
    let (mut world, a) = leaves_with_a_request(1_500);
    world.wait_ms(2_500);
    assert!(world.closed.contains(&a));
    world.assert_idle();
    world.wait_ms(2_000);
}

/// One has asked much that a node has refused. Others have what they were refused given up, one by one, and slots move.
#[test]
fn thousands_that_are_refused_take_as_many_steps_while_slots_move() {
    assert_linear_with("failover_wait: 1000", |world, client, [a, b, _], count| {
        let in_first = (0..)
            .filter(|number| cashew_placement::slot_of(format!("k{number}").as_bytes()) <= 5460);
        let others: Vec<(ConnId, u16, String)> = in_first
            .take(count / 100)
            .map(|number| {
                let key = format!("k{number}");
                (world.client(), cashew_placement::slot_of(key.as_bytes()), key)
            })
            .collect();
        world.send(client, redis("APPEND b 1").repeat(count));
        for (other, _, key) in &others {
            world.send(*other, redis("APPEND b 1").repeat(2) + &redis(&format!("INCR {key}")));
        }
        world.received(a);
        let down = DOWN.repeat(count);
        world.send(a, down);
        for (_, slot, _) in &others {
            world.send(a, DOWN.to_owned() + ":2\r\n" + &moved(*slot, 1));
        }
        world.send(b, ":1\r\n".repeat(others.len()));
        for (other, ..) in &others {
            world.expect(*other, DOWN.to_owned() + ":2\r\n:1\r\n");
        }
        world.close(client, CloseReason::Reset);
        world.wait_ms(2_000);
    });
}

/// A connection is being made for it to the node that had its slot.
#[test]
fn who_wants_a_connection_to_itself_does_not_wait_for_a_former_owner() {
    let (mut world, client, [a, b, _]) = three(&waiting());
    let other = world.client();
    world.send(client, redis("BLPOP b 0"));
    assert!(world.connects_to(0));
    world.send(other, redis("SET b 1"));
    world.expect(a, redis("SET b 1"));
    world.send(a, moved(3300, 1));
    world.expect(b, redis("SET b 1"));
    let own = world.accept(1);
    let sent = String::from_utf8(world.received(own)).unwrap();
    assert!(sent.ends_with(&redis("BLPOP b 0")), "{sent}");
}

/// It stays with the connection that a large reply has for itself.
#[test]
fn what_is_behind_a_large_reply_is_not_overtaken_on_the_next_connection() {
    let (mut world, client, [a, b, _]) = three(&cluster(""));
    let other = world.client();
    world.send(other, redis("GET c"));
    world.send(client, all(&["APPEND b 1", "APPEND b 2"]));
    world.received(a);
    world.send(a, moved(3300, 1));
    world.expect(b, all(&["GET c", "APPEND b 1"]));
    let value = "x".repeat(1_000_000);
    world.send(b, format!("$1000000\r\n{}", &value[..10]));
    let next = world.accept(1);
    world.send(a, moved(3300, 1));
    world.expect(next, "");
    world.send(b, format!("{}\r\n:1\r\n", &value[10..]));
    world.expect(next, redis("APPEND b 2"));
    world.send(next, ":2\r\n");
    world.expect(client, ":1\r\n:2\r\n");
    world.expect(other, format!("$1000000\r\n{value}\r\n"));
    world.assert_idle();
}

#[test]
fn what_waits_to_be_sent_again_counts_as_memory() {
    const COUNT: usize = 1000;
    let (mut world, client, [a, ..]) = three(&cluster("failover_wait: 1000"));
    let mut held_after = Vec::new();
    for _ in 0..3 {
        world.send(client, redis("APPEND b 1").repeat(COUNT));
        world.received(a);
        let before = world.engine.held_bytes();
        world.send(a, moved(3300, 9).repeat(COUNT));
        let waiting = world.engine.held_bytes() - before;
        assert!(waiting >= 620 * COUNT, "{waiting} bytes");
        world.wait_ms(1_100);
        assert_eq!(received_count(&mut world, a), COUNT);
        world.send(a, ":1\r\n".repeat(COUNT));
        world.expect(client, ":1\r\n".repeat(COUNT));
        held_after.push(world.engine.held_bytes());
    }
    assert_eq!(held_after[1], held_after[2]);
    world.assert_idle();
}

/// The first node has the slots of the keys `b` and `hello`, and a replica, which answers reads: the second.
fn half_moved(options: &str, moving: &[(u16, u16)]) -> Snapshot {
    let [x, y, z] = THIRDS;
    let groups: [Group<'_>; 3] = [(0, &[1], &[x]), (2, &[], &[y]), (3, &[], &[z])];
    let mut snapshot = cluster_of(options, 4, &groups);
    snapshot.pools[0].reads = Some(Reads::PreferReplica);
    let range = |&(first, last): &(u16, u16)| SlotRange { first, last };
    snapshot.pools[0].cluster.as_mut().unwrap().moving = moving.iter().map(range).collect();
    snapshot
}

/// The pool's nodes, of which the replica was told that it answers reads.
fn with_replica(snapshot: &Snapshot) -> (World, ConnId, [ConnId; 4]) {
    let (mut world, nodes): (_, [ConnId; 4]) = World::connected(snapshot);
    world.expect(nodes[1], redis("READONLY"));
    world.send(nodes[1], "+OK\r\n");
    let client = world.client();
    (world, client, nodes)
}

fn reads_at(world: &mut World, client: ConnId, key: &str, node: ConnId) {
    let get = redis(&format!("GET {key}"));
    world.send(client, &get);
    world.expect(node, &get);
    world.send(node, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
}

#[test]
fn the_primary_answers_reads_of_slots_that_move_by_the_map() {
    let snapshot = half_moved("", &[(3300, 3300)]);
    let (mut world, client, [a, replica, ..]) = with_replica(&snapshot);
    reads_at(&mut world, client, "b", a);
    reads_at(&mut world, client, "hello", replica);
    // Of one request the parts as well.
    world.send(client, redis("MGET b hello"));
    world.expect(a, redis("MGET b"));
    world.expect(replica, redis("MGET hello"));
    world.send(a, "*1\r\n$1\r\n1\r\n");
    world.send(replica, "*1\r\n$1\r\n2\r\n");
    world.expect(client, "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    // Another slot moves by the next map, and else all is as it was.
    let mut next = half_moved("", &[(866, 866)]);
    next.epoch += 1;
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    reads_at(&mut world, client, "b", replica);
    reads_at(&mut world, client, "hello", a);
}

#[test]
fn the_primary_answers_reads_of_a_slot_of_which_a_node_has_sent_something_elsewhere() {
    let (mut world, client, [a, replica, c, _]) = with_replica(&half_moved("", &[]));
    reads_at(&mut world, client, "b", replica);
    doubts(&mut world);
    world.send(client, redis("SET b 1"));
    world.expect(a, redis("SET b 1"));
    world.send(a, ask(3300, 2));
    world.expect(c, redis("ASKING") + &redis("SET b 1"));
    assert_eq!(doubts(&mut world), 1);
    world.send(c, "+OK\r\n+OK\r\n");
    world.expect(client, "+OK\r\n");
    reads_at(&mut world, client, "b", a);
    reads_at(&mut world, client, "hello", replica);
    // A map that was made before that does not know of it.
    let mut next = half_moved("", &[]);
    next.epoch += 1;
    next.pools[0].cluster.as_mut().unwrap().slots[1] = vec![SlotRange { first: 5461, last: 10000 }];
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    reads_at(&mut world, client, "b", a);
    // One that was made long after that would.
    world.wait_ms(11_000);
    reads_at(&mut world, client, "b", replica);
    // What has moved as a whole has other replicas.
    world.send(client, redis("SET b 1"));
    world.expect(a, redis("SET b 1"));
    world.send(a, moved(3300, 2));
    world.expect(c, redis("SET b 1"));
    world.send(c, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    reads_at(&mut world, client, "b", c);
}

#[test]
fn a_read_of_a_slot_that_moves_is_not_asked_of_a_replica_because_the_primary_is_slow() {
    for (moving, is_hedged) in [(&[][..], true), (&[(3300, 3300)], false)] {
        let mut snapshot = half_moved("timeout: 1000", moving);
        snapshot.pools[0].reads = Some(Reads::PreferPrimary);
        snapshot.pools[0].hedge = Some(Hedge { after_ms: 3, budget_percent: 5 });
        let (mut world, client, [a, replica, ..]) = with_replica(&snapshot);
        world.send(client, redis("GET b"));
        world.expect(a, redis("GET b"));
        world.wait_ms(10);
        world.expect(replica, if is_hedged { redis("GET b") } else { String::new() });
    }
}

#[test]
fn a_read_of_a_slot_that_moves_does_not_go_on_with_a_replica_if_the_primary_is_lost() {
    for (moving, goes_on) in [(&[][..], true), (&[(3300, 3300)], false)] {
        let mut snapshot = half_moved("failover_wait: 0", moving);
        snapshot.pools[0].reads = Some(Reads::PreferPrimary);
        snapshot.pools[0].preconnect = false;
        let mut world = World::new(&snapshot);
        let client = world.client();
        world.send(client, redis("GET b"));
        world.refuse(0);
        match goes_on {
            true => {
                let replica = world.accept(1);
                let received = world.received(replica);
                assert!(String::from_utf8_lossy(&received).contains(&redis("GET b")));
            }
            false => assert!(world.received(client).starts_with(b"-"), "no replica is asked"),
        }
    }
}

const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
const SCRIPT: &str = "EVAL x 2 {b}1 {b}2";

/// The script is at the first node, which has answered TRYAGAIN, and has been asked for its keys.
fn script_of_half_moved_keys(world: &mut World, client: ConnId, node: ConnId) {
    world.send(client, redis(SCRIPT));
    world.expect(node, redis(SCRIPT));
    world.send(node, TRY_AGAIN);
    world.expect(client, "");
    world.wait_ms(5);
    world.expect(node, redis("EXISTS {b}1 {b}2"));
}

#[test]
fn a_script_is_sent_again_when_its_keys_are_together() {
    let (mut world, client, [a, b, _]) = three(&waiting());
    script_of_half_moved_keys(&mut world, client, a);
    world.send(client, redis("SET {b}3 1"));
    for _ in 0..5 {
        world.send(a, TRY_AGAIN);
        world.expect(a, "");
        world.wait_ms(50);
        world.expect(a, redis("EXISTS {b}1 {b}2"));
    }
    // All have left, and not all have come.
    world.send(a, ask(3300, 1));
    world.expect(b, redis("ASKING") + &redis("EXISTS {b}1 {b}2"));
    world.send(b, format!("+OK\r\n{TRY_AGAIN}"));
    world.wait_ms(50);
    world.expect(a, redis("EXISTS {b}1 {b}2"));
    world.send(a, ask(3300, 1));
    world.expect(b, redis("ASKING") + &redis("EXISTS {b}1 {b}2"));
    world.send(b, "+OK\r\n:1\r\n");
    world.expect(b, redis("ASKING") + &redis(SCRIPT));
    // What its client has asked for since stays behind it.
    world.expect(a, "");
    world.send(b, "+OK\r\n:7\r\n");
    world.expect(client, ":7\r\n");
    world.expect(a, redis("SET {b}3 1"));
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_script_follows_its_keys_to_the_new_owner() {
    let (mut world, client, [a, b, _]) = three(&waiting());
    script_of_half_moved_keys(&mut world, client, a);
    world.send(a, moved(3300, 1));
    world.expect(b, redis("EXISTS {b}1 {b}2"));
    world.send(b, ":2\r\n");
    world.expect(b, redis(SCRIPT));
    world.send(b, ":7\r\n");
    world.expect(client, ":7\r\n");
    world.assert_idle();
}

#[test]
fn a_script_that_says_so_itself_runs_three_times_at_most() {
    let (mut world, client, [a, _, _]) = three(&waiting());
    script_of_half_moved_keys(&mut world, client, a);
    world.send(a, ":2\r\n");
    world.expect(a, redis(SCRIPT));
    world.send(a, TRY_AGAIN);
    world.wait_ms(50);
    world.expect(a, redis("EXISTS {b}1 {b}2"));
    world.send(a, ":2\r\n");
    world.expect(a, redis(SCRIPT));
    world.send(a, TRY_AGAIN);
    world.expect(client, TRY_AGAIN);
    // With one key it must be the script's own.
    world.send(client, redis("EVAL x 1 {b}1"));
    world.expect(a, redis("EVAL x 1 {b}1"));
    world.send(a, TRY_AGAIN);
    world.expect(client, TRY_AGAIN);
    world.wait_ms(100);
    world.expect(a, "");
    world.assert_idle();
}

#[test]
fn a_script_waits_for_its_keys_as_long_as_others_do() {
    let (mut world, client, [a, _, _]) = three(&waiting());
    // EXISTS gets no answer, and is asked anew.
    script_of_half_moved_keys(&mut world, client, a);
    world.wait_ms(250);
    world.expect(a, redis("EXISTS {b}1 {b}2"));
    world.send(a, format!("{TRY_AGAIN}{TRY_AGAIN}"));
    let mut waited = 0;
    let reply = loop {
        world.wait_ms(10);
        waited += 10;
        let reply = world.received(client);
        if !reply.is_empty() {
            break reply;
        }
        if !world.received(a).is_empty() {
            world.send(a, TRY_AGAIN);
        }
        assert!(waited < 2000);
    };
    assert_eq!((String::from_utf8(reply).as_deref(), waited > 600), (Ok(TRY_AGAIN), true));
    // Whom the server does not let ask knows at once.
    script_of_half_moved_keys(&mut world, client, a);
    world.send(a, "-NOPERM no\r\n");
    world.expect(client, TRY_AGAIN);
    world.assert_idle();
}
