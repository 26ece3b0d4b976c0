//! One master with replicas: who gets what.

use crate::world::{World, redis, snapshot};
use cashew_config::Context;
use cashew_config::snapshot::{Promoted, TopologyState};
use cashew_engine::{Action, BackendId, CloseReason, ConnId};
use cashew_placement::Hash;
use cashew_protocol::redis::{COMMANDS, Keys, Rule};

/// Servers are numbered by the order of their names: `r1`, `r2`, `r3`, `master`.
const MASTER: u32 = 3;

fn replicated(options: &str) -> cashew_config::Snapshot {
    snapshot(&format!(
        "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    hide_topology: true\n    distribution: modula\n{options}\
         \x20   servers:\n\
         \x20   - 127.0.0.1:7003:1 master\n\
         \x20   - 127.0.0.1:7000:1 r1\n\
         \x20   - 127.0.0.1:7001:1 r2\n\
         \x20   - 127.0.0.1:7002:1 r3\n"
    ))
}

fn connected(options: &str) -> (World, ConnId, [ConnId; 4]) {
    let options = format!("    preconnect: true\n{options}");
    World::with_client(&replicated(&options))
}

/// The replica that the ring over all three names.
fn replica_of(key: &str) -> usize {
    Hash::Fnv1a64.hash(key.as_bytes()) as usize % 3
}

/// A key of each replica.
fn key_of(replica: usize) -> String {
    let mut keys = (0..).map(|n| format!("k{n}"));
    keys.find(|key| replica_of(key) == replica).expect("there are many")
}

#[track_caller]
fn goes_to(world: &mut World, client: ConnId, lanes: &[ConnId], request: &str, lane: ConnId) {
    world.send(client, request);
    for &other in lanes {
        world.expect(other, if other == lane { request } else { "" });
    }
    world.send(lane, ":1\r\n");
    world.expect(client, ":1\r\n");
}

/// The server dies of the request.
#[track_caller]
fn dies(world: &mut World, client: ConnId, lane: ConnId, request: &str) {
    world.send(client, request);
    world.expect(lane, request);
    world.close(lane, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n");
}

/// A request that the command takes, with `key` for every key.
fn example(name: &str, arity: i16, keys: Keys, key: &str) -> String {
    let mut words: Vec<&str> = name.split('|').collect();
    let len = usize::from(arity.unsigned_abs());
    match keys {
        Keys::None => {}
        Keys::Range { first, last, .. } => {
            let last = if last < 0 { len.max(3) - 1 } else { last as usize };
            while words.len() < usize::from(first) {
                words.push("x");
            }
            while words.len() <= last {
                words.push(key);
            }
        }
        Keys::Pairs { .. } => words.extend([key, "v", key, "v"]),
        Keys::Numkeys { at, destination, step, trailing, .. } => {
            if destination > 0 {
                words.push(key);
            }
            while words.len() < usize::from(at) {
                words.push("x");
            }
            words.push("2");
            for _ in 0..2 {
                words.push(key);
                words.extend((1..step).map(|_| "v"));
            }
            words.extend((0..trailing).map(|_| "LEFT"));
        }
        Keys::Sort { stores: false } => words.push(key),
        Keys::Sort { stores: true } => words.extend([key, "STORE", key]),
        Keys::Georadius => words.extend([key, "0", "0", "1", "m"]),
        Keys::Streams if name == "xreadgroup" => {
            words.extend(["GROUP", "g", "c", "STREAMS", key, "0"]);
        }
        Keys::Streams => words.extend(["STREAMS", key, "0"]),
        Keys::Migrate => words.extend(["host", "1", key, "0", "1"]),
    }
    while words.len() < len {
        words.push("1");
    }
    redis(&words.join(" "))
}

#[test]
fn reads_go_to_the_replica_of_the_key_and_all_else_to_the_master() {
    let (mut world, client, lanes) = connected("    command_policy: admin\n");
    let master = lanes[MASTER as usize];
    let mut tried = [0; 4];
    for command in COMMANDS {
        if !matches!(command.rule, Rule::Forward | Rule::Split(_) | Rule::Single(_)) {
            continue;
        }
        for replica in 0..3 {
            let request = example(command.name, command.arity, command.keys, &key_of(replica));
            let is_read = command.access.reads();
            let lane = if is_read { lanes[replica] } else { master };
            goes_to(&mut world, client, &lanes, &request, lane);
        }
        tried[command.access as usize] += 1;
    }
    // Reads, writes, and scripts, of which Redis does not say what they do.
    assert!(tried[0] > 80 && tried[1] > 80 && tried[2] >= 3, "{tried:?}");
    world.assert_idle();
}

#[test]
fn one_replica_answers_for_all_keys_of_a_request() {
    let (mut world, client, lanes) = connected("");
    let (first, second) = (key_of(1), key_of(2));
    for name in ["MGET", "EXISTS", "SINTER", "PFCOUNT"] {
        let request = redis(&format!("{name} {first} {second}"));
        goes_to(&mut world, client, &lanes, &request, lanes[1]);
    }
    for request in [
        format!("MSET {first} 1 {second} 2"),
        format!("DEL {first} {second}"),
        format!("RENAME {first} {second}"),
        format!("EVAL x 2 {first} {second}"),
    ] {
        goes_to(&mut world, client, &lanes, &redis(&request), lanes[MASTER as usize]);
    }
    world.assert_idle();
}

#[test]
fn reads_go_around_replicas_that_are_down_and_back_when_they_are_up() {
    let (mut world, client, lanes) = connected("");
    let get = |replica| redis(&format!("GET {}", key_of(replica)));
    dies(&mut world, client, lanes[0], &get(0));
    goes_to(&mut world, client, &lanes, &get(0), lanes[1]);
    goes_to(&mut world, client, &lanes, &get(1), lanes[1]);
    dies(&mut world, client, lanes[1], &get(1));
    goes_to(&mut world, client, &lanes, &get(0), lanes[2]);
    dies(&mut world, client, lanes[2], &get(2));
    for replica in 0..3 {
        goes_to(&mut world, client, &lanes, &get(replica), lanes[MASTER as usize]);
    }
    // They are connected to again without a request that wants it.
    world.wait_ms(20);
    let back = world.accept(1);
    for replica in 0..3 {
        goes_to(&mut world, client, &[lanes[MASTER as usize], back], &get(replica), back);
    }
    let lanes = [world.accept(0), back, world.accept(2)];
    for replica in 0..3 {
        goes_to(&mut world, client, &lanes, &get(replica), lanes[replica]);
    }
    world.assert_idle();
}

#[test]
fn a_replica_that_broke_down_long_after_connecting_is_connected_to_again() {
    let mut world = World::new(&replicated(""));
    let client = world.client();
    let get = redis(&format!("GET {}", key_of(0)));
    world.send(client, &get);
    let replica = world.accept(0);
    world.send(replica, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.wait_ms(5000);
    world.close(replica, CloseReason::Reset);
    world.wait_ms(1000);
    let replica = world.accept(0);
    world.send(client, &get);
    world.expect(replica, &get);
    world.send(replica, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_replica_that_refuses_is_tried_until_it_is_back() {
    let mut world = World::new(&replicated(""));
    let client = world.client();
    let get = redis(&format!("GET {}", key_of(2)));
    world.send(client, &get);
    for _ in 0..10 {
        world.refuse(2);
        world.wait_ms(1000);
    }
    world.expect(client, "-ERR Connection refused\r\n");
    let replica = world.accept(2);
    goes_to(&mut world, client, &[replica], &get, replica);
    world.assert_idle();
}

#[test]
fn an_ejected_replica_gets_nothing_until_it_is_readmitted() {
    let eject = "    auto_eject_hosts: true\n    server_failure_limit: 1\n    \
                 server_retry_timeout: 1000\n";
    let (mut world, client, lanes) = connected(eject);
    let get = |key: &str| redis(&format!("GET {key}"));
    dies(&mut world, client, lanes[0], &get(&key_of(0)));
    assert!(
        world
            .actions
            .iter()
            .any(|action| matches!(action, Action::Eject { server, .. } if server.number() == 0))
    );
    world.engine.handle_release(
        BackendId::new(0),
        1,
        vec![false, true, true, true].into(),
        world.now,
        0,
    );
    world.tick();
    // The ring is over two replicas now.
    for n in 0..20 {
        let key = format!("k{n}");
        let replica = Hash::Fnv1a64.hash(key.as_bytes()) as usize % 2;
        goes_to(&mut world, client, &lanes, &get(&key), lanes[1 + replica]);
    }
    // Another worker found it well before this one did.
    world.wait_ms(100);
    assert!(!world.connects_to(0));
    world.engine.handle_release(BackendId::new(0), 2, vec![true; 4].into(), world.now, 0);
    world.tick();
    let back = world.accept(0);
    for replica in 0..3 {
        let lanes = [back, lanes[1], lanes[2]];
        goes_to(&mut world, client, &lanes, &get(&key_of(replica)), lanes[replica]);
    }
    world.assert_idle();
}

#[test]
fn the_master_has_no_substitute() {
    let eject = "    auto_eject_hosts: true\n    server_failure_limit: 1\n";
    let (mut world, client, lanes) = connected(eject);
    let set = redis("SET k v");
    dies(&mut world, client, lanes[MASTER as usize], &set);
    for _ in 0..5 {
        world.wait_ms(1000);
        while world.connects_to(MASTER) {
            world.refuse(MASTER);
        }
        world.send(client, &set);
        if world.connects_to(MASTER) {
            world.refuse(MASTER);
        }
        world.expect(client, "-ERR Connection refused\r\n");
    }
    assert!(!world.actions.iter().any(|action| matches!(action, Action::Eject { .. })));
    lanes[..3].iter().for_each(|&lane| world.expect(lane, ""));
    world.assert_idle();
}

#[test]
fn reads_stay_with_the_replicas_while_the_master_is_down() {
    let (mut world, client, lanes) = connected("");
    world.close(lanes[MASTER as usize], CloseReason::Reset);
    for replica in 0..3 {
        let get = redis(&format!("GET {}", key_of(replica)));
        goes_to(&mut world, client, &lanes, &get, lanes[replica]);
    }
    world.assert_idle();
}

#[test]
fn a_pool_has_one_master() {
    let yaml = "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    servers:\n\
                \x20   - 127.0.0.1:7000:1 master\n\
                \x20   - 127.0.0.1:7001:1 master\n\
                \x20   - 127.0.0.1:7002:1 replica\n";
    let errors = cashew_config::parse("test.yml", yaml, &Context::of_system());
    let Err(errors) = errors.map(|_| ()) else { panic!("two masters are taken") };
    assert!(errors.to_string().contains("master"), "{errors}");
}

#[test]
fn in_a_flat_file_a_master_is_a_server_like_any_other() {
    let flat = snapshot(
        "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  distribution: modula\n  preconnect: true\n  \
         servers:\n   - 127.0.0.1:7000:1 master\n   - 127.0.0.1:7001:1 s\n",
    );
    let (mut world, lanes): (World, [ConnId; 2]) = World::connected(&flat);
    let client = world.client();
    // `a` belongs to the first, which is `s`.
    for request in ["SET a 1", "GET a"] {
        goes_to(&mut world, client, &lanes, &redis(request), lanes[0]);
    }
    for request in ["SET b 1", "GET b"] {
        goes_to(&mut world, client, &lanes, &redis(request), lanes[1]);
    }
}

#[test]
fn a_replica_that_is_promoted_takes_the_writes_and_the_old_master_its_reads() {
    let (mut world, client, lanes) = connected("");
    let topology =
        TopologyState { primaries: vec![Promoted { shard: 0, server: 1 }], ..vec![true; 4].into() };
    world.engine.handle_hold(BackendId::new(0), 1, 100, world.now);
    world.engine.handle_release(BackendId::new(0), 1, topology, world.now, 0);
    let write = redis("SET k v");
    goes_to(&mut world, client, &lanes, &write, lanes[1]);
    // The ring is that of the three others: r1, r3 and who was the master.
    for n in 0..32 {
        let key = format!("k{n}");
        let place = Hash::Fnv1a64.hash(key.as_bytes()) as usize % 3;
        let server = [0, 2, MASTER as usize][place];
        goes_to(&mut world, client, &lanes, &redis(&format!("GET {key}")), lanes[server]);
    }
    // And back.
    world.engine.handle_hold(BackendId::new(0), 2, 100, world.now);
    world.engine.handle_release(BackendId::new(0), 2, vec![true; 4].into(), world.now, 0);
    goes_to(&mut world, client, &lanes, &write, lanes[MASTER as usize]);
    let key = key_of(1);
    goes_to(&mut world, client, &lanes, &redis(&format!("GET {key}")), lanes[1]);
}
