//! Pools in front of a cluster: what is published, and commands without keys.

use crate::world::{World, pool, redis};
use cashew_config::Snapshot;
use cashew_config::snapshot::{Cluster, ServerGroup, SlotRange, Topology};
use cashew_engine::{Action, CloseReason, ConnId};

// Slots: b 3300, c 7365, a 15495.
const THIRDS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

/// As many nodes as there are lists of slots.
fn cluster(slots: &[&[(u16, u16)]]) -> Snapshot {
    let mut snapshot = pool("redis: true\npreconnect: true", slots.len());
    let range = |&(first, last): &(u16, u16)| SlotRange { first, last };
    let pool = &mut snapshot.pools[0];
    pool.cluster = Some(Cluster {
        seeds: Vec::new(),
        connections_max: 0,
        slots: slots.iter().map(|slots| slots.iter().map(range).collect()).collect(),
        moving: Vec::new(),
        epoch: 1,
        changes: 1,
    });
    let group = |primary: u32| ServerGroup {
        name: format!("s{primary}"),
        weight: 1,
        primary,
        replicas: Vec::new(),
    };
    pool.topology = Topology::Groups((0..slots.len() as u32).map(group).collect());
    snapshot
}

fn three() -> (World, [ConnId; 3]) {
    let [a, b, c] = &THIRDS;
    World::connected(&cluster(&[
        std::slice::from_ref(a),
        std::slice::from_ref(b),
        std::slice::from_ref(c),
    ]))
}

/// A confirmation, or with a text instead of a number a message, as RESP2 has it.
fn array(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let element = |word: &&str| match word.strip_prefix(':') {
        Some(number) => format!(":{number}\r\n"),
        None => format!("${}\r\n{word}\r\n", word.len()),
    };
    format!("*{}\r\n{}", words.len(), words.iter().map(element).collect::<String>())
}

/// The node that is connected to.
#[track_caller]
fn connecting(world: &World) -> u32 {
    let nodes: Vec<u32> = (0..3).filter(|&node| world.connects_to(node)).collect();
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    nodes[0]
}

fn doubts(world: &mut World) -> usize {
    let actions = std::mem::take(&mut world.actions);
    actions.iter().filter(|it| matches!(it, Action::MapDoubted { .. })).count()
}

#[test]
fn one_node_has_all_that_any_of_them_hears() {
    let (mut world, lanes) = three();
    let (subscriber, publisher) = (world.client(), world.client());
    world.send(subscriber, redis("SUBSCRIBE a b c") + &redis("PSUBSCRIBE n*"));
    let node = connecting(&world);
    let feed = world.accept(node);
    let asked = ["subscribe a", "subscribe b", "subscribe c"].map(redis).concat();
    world.expect(feed, asked);
    for (count, name) in (1..).zip(["a", "b", "c"]) {
        world.send(feed, array(&format!("subscribe {name} :{count}")));
        world.expect(subscriber, array(&format!("subscribe {name} :{count}")));
    }
    world.expect(feed, redis("psubscribe n*"));
    world.send(feed, array("psubscribe n* :4"));
    world.expect(subscriber, array("psubscribe n* :4"));
    // There it is published as well, and counted.
    let lane = lanes[node as usize];
    world.send(publisher, ["PUBLISH a 1", "PUBLISH news 2"].map(redis).concat());
    world.expect(lane, ["PUBLISH a 1", "PUBLISH news 2"].map(redis).concat());
    world.send(lane, ":1\r\n:1\r\n");
    world.expect(publisher, ":1\r\n:1\r\n");
    world.send(feed, array("message a 1") + &array("pmessage n* news 2"));
    world.expect(subscriber, array("message a 1") + &array("pmessage n* news 2"));
}

#[test]
fn what_happens_to_keys_each_node_tells() {
    let (mut world, _) = three();
    let subscriber = world.client();
    world.send(subscriber, redis("PSUBSCRIBE __keyspace@0__:*"));
    for node in 0..3 {
        let feed = world.accept(node);
        world.expect(feed, redis("psubscribe __keyspace@0__:*"));
        world.send(feed, array("psubscribe __keyspace@0__:* :1"));
    }
    world.expect(subscriber, array("psubscribe __keyspace@0__:* :1"));
}

/// The nodes are asked for a pattern, and have it.
fn subscribed(world: &mut World, pattern: &str, nodes: std::ops::Range<u32>) -> Vec<ConnId> {
    let feeds = nodes.map(|node| {
        let asked = redis(&format!("psubscribe {pattern}"));
        // A node that is not known yet gets connections for requests, too.
        let feed = loop {
            let lane = world.accept(node);
            let mut text = world.received(lane);
            // To what has been a replica so far.
            if text == redis("READONLY").as_bytes() {
                world.send(lane, "+OK\r\n");
                text = world.received(lane);
            }
            match String::from_utf8(text).unwrap() {
                text if text == asked => break lane,
                text => assert_eq!(text, ""),
            }
        };
        world.send(feed, array(&format!("psubscribe {pattern} :1")));
        feed
    });
    feeds.collect()
}

/// A pattern that all nodes have, for events, may hear more than these: any node hears what is published.
#[test]
fn what_any_node_hears_comes_from_one_also_by_a_pattern_of_key_events() {
    let (mut world, _) = three();
    let subscriber = world.client();
    world.send(subscriber, redis("PSUBSCRIBE __key*"));
    let feeds = subscribed(&mut world, "__key*", 0..3);
    world.expect(subscriber, array("psubscribe __key* :1"));
    for feed in &feeds {
        world.send(*feed, array("pmessage __key* __keynote hello"));
    }
    world.expect(subscriber, array("pmessage __key* __keynote hello"));
    for channel in ["__keyspace@0__:a", "__keyevent@0__:set"] {
        let event = array(&format!("pmessage __key* {channel} x"));
        for feed in &feeds {
            world.send(*feed, event.clone());
        }
        world.expect(subscriber, event.repeat(3));
    }
}

/// Four nodes, of which this one is the replica of that one.
fn with_replica(primary: u32, replica: u32) -> Snapshot {
    let [a, b, c] = &THIRDS;
    let by_group = [a, b, c].map(std::slice::from_ref);
    let mut snapshot = cluster(&[by_group[0], by_group[1], by_group[2], &[]]);
    let pool = &mut snapshot.pools[0];
    pool.cluster.as_mut().unwrap().slots.truncate(3);
    let Topology::Groups(groups) = &mut pool.topology else { unreachable!() };
    groups.truncate(3);
    (groups[0].primary, groups[0].replicas) = (primary, vec![replica]);
    snapshot
}

/// A replica says what happens to keys, too: it counts from when the primary is another.
#[test]
fn events_come_once_while_a_replica_takes_over() {
    let (mut world, _): (World, [ConnId; 3]) = World::connected(&with_replica(0, 3));
    let subscriber = world.client();
    world.send(subscriber, redis("PSUBSCRIBE __key*"));
    let feeds = subscribed(&mut world, "__key*", 0..3);
    world.expect(subscriber, array("psubscribe __key* :1"));
    let mut next = with_replica(3, 0);
    next.epoch += 1;
    next.pools[0].cluster.as_mut().unwrap().changes += 1;
    world.prepare(&next);
    let [after] = subscribed(&mut world, "__key*", 3..4)[..] else { unreachable!() };
    let event = |number: u32| array(&format!("pmessage __key* __keyspace@0__:a {number}"));
    world.send(feeds[0], event(1));
    world.send(after, event(1));
    world.expect(subscriber, event(1));
    world.pause(1000);
    world.commit(&next);
    world.send(after, event(2));
    world.send(feeds[0], event(2));
    world.expect(subscriber, event(2));
    world.expect(feeds[0], redis("punsubscribe __key*"));
}

/// The same where the primary is lost: the next one is all that says anything, also before the change.
#[test]
fn events_of_the_next_primary_count_at_once_where_the_former_one_is_lost() {
    let (mut world, lanes): (World, [ConnId; 3]) = World::connected(&with_replica(0, 3));
    let subscriber = world.client();
    world.send(subscriber, redis("PSUBSCRIBE __key*"));
    let feeds = subscribed(&mut world, "__key*", 0..3);
    world.expect(subscriber, array("psubscribe __key* :1"));
    world.close(lanes[0], CloseReason::Reset);
    world.close(feeds[0], CloseReason::Reset);
    let mut next = with_replica(3, 0);
    next.epoch += 1;
    next.pools[0].cluster.as_mut().unwrap().changes += 1;
    world.prepare(&next);
    let [after] = subscribed(&mut world, "__key*", 3..4)[..] else { unreachable!() };
    let event = array("pmessage __key* __keyspace@0__:a 1");
    world.send(after, event.clone());
    world.expect(subscriber, event);
}

/// Slots go to a node that has just been added: it says what happens to their keys before the change.
#[test]
fn events_of_a_node_that_is_added_count_at_once() {
    let (mut world, _) = three();
    let subscriber = world.client();
    world.send(subscriber, redis("PSUBSCRIBE __key*"));
    let feeds = subscribed(&mut world, "__key*", 0..3);
    world.expect(subscriber, array("psubscribe __key* :1"));
    let [a, b, c] = THIRDS;
    let mut next = cluster(&[&[(0, 5000)], &[b], &[c], &[(5001, a.1)]]);
    next.epoch += 1;
    next.pools[0].cluster.as_mut().unwrap().changes += 1;
    world.prepare(&next);
    let [added] = subscribed(&mut world, "__key*", 3..4)[..] else { unreachable!() };
    let event = |key: &str| array(&format!("pmessage __key* __keyspace@0__:{key} set"));
    world.send(added, event("x") + &array("pmessage __key* __keynote hello"));
    world.send(feeds[0], event("y"));
    world.expect(subscriber, event("x") + &event("y"));
    world.pause(1000);
    world.commit(&next);
    world.send(added, event("z"));
    world.send(feeds[0], event("w"));
    world.expect(subscriber, event("z") + &event("w"));
}

#[test]
fn subscriptions_leave_a_node_that_is_lost() {
    let (mut world, lanes) = three();
    let (subscriber, publisher) = (world.client(), world.client());
    world.send(subscriber, redis("SUBSCRIBE a"));
    let node = connecting(&world);
    let feed = world.accept(node);
    world.expect(feed, redis("subscribe a"));
    world.send(feed, array("subscribe a :1"));
    world.expect(subscriber, array("subscribe a :1"));
    world.close(lanes[node as usize], CloseReason::Reset);
    world.close(feed, CloseReason::Reset);
    let others: Vec<u32> = (0..3).filter(|&other| other != node).collect();
    let next = *others.iter().find(|&&other| world.connects_to(other)).expect("another is asked");
    let feed = world.accept(next);
    world.expect(feed, redis("subscribe a"));
    world.send(feed, array("subscribe a :1"));
    world.send(feed, array("message a 1"));
    // The client need not know.
    world.expect(subscriber, array("message a 1"));
    world.send(publisher, redis("PUBLISH a 2"));
    world.expect(lanes[next as usize], redis("PUBLISH a 2"));
    world.send(lanes[next as usize], ":1\r\n");
    world.expect(publisher, ":1\r\n");
}

#[test]
fn channels_of_slots_are_at_their_owners_and_follow_them() {
    let (mut world, lanes) = three();
    let (subscriber, publisher) = (world.client(), world.client());
    world.send(subscriber, redis("SSUBSCRIBE b"));
    let feed = world.accept(0);
    world.expect(feed, redis("ssubscribe b"));
    world.send(feed, array("ssubscribe b :1"));
    world.expect(subscriber, array("ssubscribe b :1"));
    world.send(publisher, redis("SPUBLISH b 1"));
    world.expect(lanes[0], redis("SPUBLISH b 1"));
    world.send(lanes[0], ":1\r\n");
    world.send(feed, array("smessage b 1"));
    world.expect(publisher, ":1\r\n");
    world.expect(subscriber, array("smessage b 1"));
    // The slot moves away: the node says so, and whose it is when it is asked.
    world.send(feed, array("sunsubscribe b :0"));
    world.expect(feed, redis("ssubscribe b"));
    assert_eq!(doubts(&mut world), 1);
    world.send(feed, "-MOVED 3300 127.0.0.1:7001\r\n");
    let next = world.accept(1);
    world.expect(next, redis("ssubscribe b"));
    world.send(next, array("ssubscribe b :1"));
    world.send(next, array("smessage b 2"));
    world.expect(subscriber, array("smessage b 2"));
    world.send(publisher, redis("SPUBLISH b 3"));
    world.expect(lanes[1], redis("SPUBLISH b 3"));
    world.send(lanes[1], ":1\r\n");
    world.expect(publisher, ":1\r\n");
    // Who asks for no more is told as ever.
    world.send(subscriber, redis("SUNSUBSCRIBE b"));
    world.expect(next, redis("sunsubscribe b"));
    world.send(next, array("sunsubscribe b :0"));
    world.expect(subscriber, array("sunsubscribe b :0"));
    world.assert_idle();
}

/// Sends a client for the slot of `b` from the first node to the second, which topics follow within a second.
fn mislead(world: &mut World, lanes: &[ConnId]) {
    let client = world.client();
    world.send(client, redis("GET b"));
    world.expect(lanes[0], redis("GET b"));
    world.send(lanes[0], "-MOVED 3300 127.0.0.1:7001\r\n");
    world.expect(lanes[1], redis("GET b"));
    world.send(lanes[1], "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.wait_ms(1100);
}

#[test]
fn a_channel_of_a_slot_is_left_when_another_node_has_it() {
    let (mut world, lanes) = three();
    let subscriber = world.client();
    world.send(subscriber, redis("SSUBSCRIBE b"));
    let feed = world.accept(0);
    world.expect(feed, redis("ssubscribe b"));
    world.send(feed, array("ssubscribe b :1"));
    world.expect(subscriber, array("ssubscribe b :1"));
    // Who says that the slot is another's may be wrong.
    mislead(&mut world, &lanes);
    let other = world.accept(1);
    world.expect(other, redis("ssubscribe b"));
    world.expect(feed, "");
    world.send(feed, array("smessage b 1"));
    world.expect(subscriber, array("smessage b 1"));
    world.send(other, "-MOVED 3300 127.0.0.1:7000\r\n");
    world.send(feed, array("smessage b 2"));
    world.expect(subscriber, array("smessage b 2"));
    world.expect(feed, "");
    // Or right, before the node itself says so.
    mislead(&mut world, &lanes);
    world.expect(other, redis("ssubscribe b"));
    world.send(feed, array("smessage b 3"));
    world.send(other, array("ssubscribe b :1"));
    world.expect(feed, redis("sunsubscribe b"));
    world.send(other, array("smessage b 4"));
    world.expect(subscriber, [array("smessage b 3"), array("smessage b 4")].concat());
}

#[test]
fn nodes_that_send_a_channel_to_each_other_are_not_asked_for_ever() {
    let (mut world, _) = three();
    let subscriber = world.client();
    world.send(subscriber, redis("SSUBSCRIBE b"));
    let mut feeds = [None; 2];
    for hop in 0..6 {
        let node = hop % 2;
        let feed = *feeds[node].get_or_insert_with(|| world.accept(node as u32));
        world.expect(feed, redis("ssubscribe b"));
        world.send(feed, format!("-MOVED 3300 127.0.0.1:{}\r\n", 7001 - node));
    }
    for feed in feeds.into_iter().flatten() {
        world.expect(feed, "");
    }
    world.expect(subscriber, "");
    // A little later it may be settled.
    world.wait_ms(1100);
    let feed = feeds.into_iter().flatten().find(|&feed| !world.received(feed).is_empty());
    world.send(feed.expect("one is asked again"), array("ssubscribe b :1"));
    world.expect(subscriber, array("ssubscribe b :1"));
}

/// The cursor and the keys of a page that a client got.
fn page(world: &mut World, client: ConnId) -> (String, String) {
    let text = String::from_utf8(world.received(client)).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("*2"), "{text}");
    let cursor = lines.nth(1).unwrap().to_owned();
    let keys = lines.filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ");
    (cursor, keys)
}

/// What a node answers to SCAN.
fn scanned(cursor: &str, key: &str) -> String {
    format!("*2\r\n${}\r\n{cursor}\r\n*1\r\n${}\r\n{key}\r\n", cursor.len(), key.len())
}

/// Asks for a page, which the node has; returns what the client gets.
#[track_caller]
fn walk(
    world: &mut World,
    client: ConnId,
    node: ConnId,
    cursor: &str,
    (asked, answer): (&str, &str),
) -> (String, String) {
    world.send(client, redis(&format!("SCAN {cursor}")));
    world.expect(node, redis(&format!("SCAN {asked}")));
    world.send(node, scanned(answer, "k"));
    page(world, client)
}

/// A node is asked what it owns.
#[track_caller]
fn owns(world: &mut World, node: ConnId, slots: &str) {
    world.expect(node, redis("CLUSTER NODES"));
    let text = format!("id h:1@2 myself,master - 0 1 2 connected {slots}\n");
    world.send(node, format!("${}\r\n{text}\r\n", text.len()));
}

/// A node is asked how many keys of a slot it has left.
#[track_caller]
fn has_left(world: &mut World, node: ConnId, slot: u16, keys: u32) {
    world.expect(node, redis(&format!("CLUSTER COUNTKEYSINSLOT {slot}")));
    world.send(node, format!(":{keys}\r\n"));
}

/// Goes to the last page of a walk from the first one on; the client is not answered yet.
#[track_caller]
fn walk_all(world: &mut World, client: ConnId, nodes: &[ConnId], cursor: &str) {
    let (last, others) = nodes.split_last().unwrap();
    let mut cursor = cursor.to_owned();
    for &node in others {
        cursor = walk(world, client, node, &cursor, ("0", "0")).0;
        assert_ne!(cursor, "0");
    }
    world.send(client, redis(&format!("SCAN {cursor}")));
    world.expect(*last, redis("SCAN 0"));
    world.send(*last, scanned("0", "k"));
    world.expect(client, "");
}

#[test]
fn a_walk_goes_over_the_owners_of_slots() {
    let [a, _, c] = &THIRDS;
    let slots: [&[(u16, u16)]; 3] = [&[*a, (5461, 10922)], &[], std::slice::from_ref(c)];
    let (mut world, [first, none, last]): (World, [ConnId; 3]) = World::connected(&cluster(&slots));
    let client = world.client();
    let (cursor, _) = walk(&mut world, client, first, "0", ("0", "7"));
    let (cursor, keys) = walk(&mut world, client, first, &cursor, ("7", "0"));
    assert_eq!(keys, "k");
    world.send(client, redis(&format!("SCAN {cursor}")));
    world.expect(last, redis("SCAN 0"));
    world.send(last, scanned("0", "z"));
    // Slots may have moved of late.
    world.expect(client, "");
    assert_eq!(doubts(&mut world), 1);
    owns(&mut world, first, "0-10922");
    world.expect(client, "");
    owns(&mut world, last, "10923-16383");
    assert_eq!(page(&mut world, client), ("0".to_owned(), "z".to_owned()));
    world.expect(none, "");
    world.send(client, redis("DBSIZE"));
    world.expect(none, "");
    world.send(first, ":3\r\n");
    world.send(last, ":4\r\n");
    world.expect(client, ":7\r\n");
    world.assert_idle();
}

#[test]
fn a_walk_during_which_slots_move_goes_over_all_again() {
    let [a, b, c] = &THIRDS;
    let (mut world, [first, second, third]) = three();
    let client = world.client();
    let (cursor, _) = walk(&mut world, client, first, "0", ("0", "0"));
    let (cursor, _) = walk(&mut world, client, second, &cursor, ("0", "9"));
    let slots: [&[(u16, u16)]; 3] = [&[*a, (5461, 5470)], &[(5471, b.1)], std::slice::from_ref(c)];
    let mut next = cluster(&slots);
    next.epoch += 1;
    next.pools[0].cluster.as_mut().unwrap().changes += 1;
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    let (cursor, _) = walk(&mut world, client, second, &cursor, ("9", "0"));
    let (cursor, _) = walk(&mut world, client, third, &cursor, ("0", "0"));
    assert_ne!(cursor, "0");
    let (cursor, _) = walk(&mut world, client, first, &cursor, ("0", "0"));
    let (cursor, _) = walk(&mut world, client, second, &cursor, ("0", "0"));
    world.send(client, redis(&format!("SCAN {cursor}")));
    world.expect(third, redis("SCAN 0"));
    world.send(third, scanned("0", "k"));
    owns(&mut world, first, "0-5470");
    owns(&mut world, second, "5471-10922");
    owns(&mut world, third, "10923-16383");
    assert_eq!(page(&mut world, client).0, "0");
    world.assert_idle();
}

/// Its keys may have gone to a node that has been walked.
#[test]
fn a_walk_goes_on_while_keys_of_a_slot_leave_its_owner() {
    let (mut world, nodes) = three();
    let [first, second, third] = nodes;
    let client = world.client();
    walk_all(&mut world, client, &nodes, "0");
    owns(&mut world, first, "0-5460 [93-<-id]");
    owns(&mut world, second, "5461-10922");
    owns(&mut world, third, "10923-16383 [15495->-id] [15496->-id]");
    let mut cursors = vec!["0".to_owned()];
    for (keys, is_over) in [(9, false), (9, true), (8, false), (8, true)] {
        for slot in [15_496, 15_495] {
            has_left(&mut world, third, slot, keys);
        }
        let (cursor, _) = page(&mut world, client);
        if is_over {
            assert_eq!(cursor, "0");
            // A client that has come back late, with a cursor of before.
            let before = cursors.last().unwrap().clone();
            walk_all(&mut world, client, &nodes, &before);
        } else {
            assert!(!cursors.contains(&cursor), "{cursors:?} {cursor}");
            walk_all(&mut world, client, &nodes, &cursor);
            cursors.push(cursor);
        }
        owns(&mut world, first, "0-5460");
        owns(&mut world, second, "5461-10922");
        owns(&mut world, third, "10923-16383 [15495->-id] [15496->-id]");
    }
    // None is on its way any more: a walk that began while some were is followed by a last one.
    for slot in [15_496, 15_495] {
        has_left(&mut world, third, slot, 0);
    }
    let (cursor, _) = page(&mut world, client);
    walk_all(&mut world, client, &nodes, &cursor);
    for _ in 0..2 {
        owns(&mut world, first, "0-5460");
        owns(&mut world, second, "5461-10922");
        owns(&mut world, third, "10923-16383");
        let (cursor, _) = page(&mut world, client);
        if cursor == "0" {
            return world.assert_idle();
        }
        walk_all(&mut world, client, &nodes, &cursor);
    }
    panic!("it has no end");
}

#[test]
fn a_walk_while_a_slot_is_on_its_way_is_at_nodes_without_slots_too() {
    let [a, b, c] = &THIRDS;
    let slots: [&[(u16, u16)]; 3] = [&[*a, *b], &[], std::slice::from_ref(c)];
    let (mut world, nodes): (World, [ConnId; 3]) = World::connected(&cluster(&slots));
    let [first, none, last] = nodes;
    let client = world.client();
    walk_all(&mut world, client, &[first, last], "0");
    owns(&mut world, first, "0-10922");
    owns(&mut world, last, "10923-16383 [15495->-id]");
    has_left(&mut world, last, 15_495, 7);
    let (cursor, _) = page(&mut world, client);
    walk_all(&mut world, client, &[first, none, last], &cursor);
    owns(&mut world, first, "0-10922");
    owns(&mut world, last, "10923-16383 [15495->-id]");
    has_left(&mut world, last, 15_495, 7);
    assert_eq!(page(&mut world, client).0, "0");
}

#[test]
fn a_walk_waits_for_the_map_that_owners_are_ahead_of() {
    let [a, b, c] = &THIRDS;
    let (mut world, nodes) = three();
    let [first, second, third] = nodes;
    let client = world.client();
    walk_all(&mut world, client, &nodes, "0");
    let moved = |world: &mut World| {
        owns(world, first, "0-5470");
        owns(world, second, "5471-10922");
        owns(world, third, "10923-16383");
    };
    moved(&mut world);
    world.expect(client, "");
    world.wait_ms(60);
    moved(&mut world);
    world.expect(client, "");
    assert!(doubts(&mut world) > 0);
    let slots: [&[(u16, u16)]; 3] = [&[*a, (5461, 5470)], &[(5471, b.1)], std::slice::from_ref(c)];
    let mut next = cluster(&slots);
    next.epoch += 1;
    next.pools[0].cluster.as_mut().unwrap().changes += 1;
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    world.wait_ms(60);
    let (cursor, _) = page(&mut world, client);
    walk_all(&mut world, client, &nodes, &cursor);
    moved(&mut world);
    assert_eq!(page(&mut world, client).0, "0");
}

/// A map that stays old is no reason to walk for ever, nor is a node that does not tell.
#[test]
fn a_walk_ends_whatever_owners_tell() {
    let (mut world, nodes) = three();
    let [first, second, third] = nodes;
    let client = world.client();
    let mut cursor = "0".to_owned();
    for _ in 0..2 {
        walk_all(&mut world, client, &nodes, &cursor);
        for _ in 0..=20 {
            owns(&mut world, first, "0-5470");
            owns(&mut world, second, "5471-10922");
            owns(&mut world, third, "10923-16383");
            world.wait_ms(50);
        }
        (cursor, _) = page(&mut world, client);
    }
    assert_eq!(cursor, "0");
    walk_all(&mut world, client, &nodes, "0");
    for _ in 0..=5 {
        world.expect(client, "");
        for node in nodes {
            world.expect(node, redis("CLUSTER NODES"));
            world.send(node, "-NOPERM no\r\n");
        }
        world.wait_ms(50);
    }
    assert_eq!(page(&mut world, client).0, "0");
}

#[test]
fn a_walk_ends_while_an_owner_cannot_be_asked() {
    let (mut world, nodes) = three();
    let client = world.client();
    walk_all(&mut world, client, &nodes, "0");
    let [first, second, third] = nodes;
    owns(&mut world, first, "0-5470");
    world.expect(second, redis("CLUSTER NODES"));
    world.close(second, CloseReason::Reset);
    owns(&mut world, third, "10923-16383");
    // It is tried again, and is not there.
    for _ in 0..=5 {
        world.expect(client, "");
        world.wait_ms(50);
        if world.received(first) == redis("CLUSTER NODES").as_bytes() {
            world.send(first, "-NOPERM no\r\n");
        }
        if world.received(third) == redis("CLUSTER NODES").as_bytes() {
            world.send(third, "-NOPERM no\r\n");
        }
    }
    assert_eq!(page(&mut world, client).0, "0");
}

/// What waits is given back.
#[test]
fn a_client_that_goes_at_the_end_of_a_walk_leaves_nothing() {
    let (mut world, nodes) = three();
    for is_asking in [true, false] {
        let client = world.client();
        walk_all(&mut world, client, &nodes, "0");
        if !is_asking {
            for (node, slots) in nodes.into_iter().zip(["0-5470", "5471-10922", "10923-16383"]) {
                owns(&mut world, node, slots);
            }
        }
        world.close(client, CloseReason::Reset);
        if is_asking {
            owns(&mut world, nodes[0], "0-5460");
        }
        world.wait_ms(100);
        world.assert_idle();
    }
}

#[test]
fn a_transaction_publishes_where_its_keys_are() {
    let (mut world, _) = three();
    let client = world.client();
    let words = ["MULTI", "SET b 1", "PUBLISH a x", "EXEC"].map(redis).concat();
    world.send(client, words);
    let lane = world.accept(0);
    world.expect(lane, ["MULTI", "SET b 1", "PUBLISH a x", "EXEC"].map(redis).concat());
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:0\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:0\r\n");
}
