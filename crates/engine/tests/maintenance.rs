//! Maintenance notifications: who gets them, where they stand among replies, and their bytes.

use cashew_config::snapshot::{Maintenance, Notified, Refuge};
use cashew_engine::{BackendId, ConnId};
use cashew_metrics::PoolCounter;

use crate::world::{World, pool, redis, snapshot};

const REDIS: &str = "redis: true";
const MIB: usize = 1 << 20;

/// A client that speaks RESP3 and wants to know.
fn notified(world: &mut World, asks: &str) -> ConnId {
    let client = world.client();
    world.send(client, redis("HELLO 3"));
    world.received(client);
    world.send(client, redis(&format!("CLIENT MAINT_NOTIFICATIONS {asks}")));
    world.expect(client, "+OK\r\n");
    client
}

fn moving(seconds: u64, to: Option<(&str, Option<u16>)>) -> Maintenance {
    let to = to.map(|(host, port)| Refuge { host: host.to_owned(), port });
    Maintenance::Moving { seq: 1_700_000_000, seconds, to }
}

fn tell(world: &mut World, event: &Maintenance) -> usize {
    let told = world.engine.handle_maintenance(None, event, world.now);
    world.tick();
    told
}

const TO_ITSELF: &str = ">4\r\n$6\r\nMOVING\r\n:1700000000\r\n:10\r\n_\r\n";
const TO_OTHER: &str = ">4\r\n$6\r\nMOVING\r\n:1700000000\r\n:10\r\n$10\r\nother:6000\r\n";

#[test]
fn frames_are_what_clients_read() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = notified(&mut world, "ON");
    assert_eq!(tell(&mut world, &moving(10, None)), 1);
    world.expect(client, TO_ITSELF);
    // Without a port it is that of the pool here.
    tell(&mut world, &moving(10, Some(("other", None))));
    world.expect(client, TO_OTHER);
    tell(&mut world, &moving(3, Some(("10.0.0.2", Some(7)))));
    world.expect(client, ">4\r\n$6\r\nMOVING\r\n:1700000000\r\n:3\r\n$10\r\n10.0.0.2:7\r\n");
    let group = || "g1".to_owned();
    tell(&mut world, &Maintenance::FailingOver { seq: 7, seconds: 10, group: group() });
    world.expect(client, ">4\r\n$12\r\nFAILING_OVER\r\n:7\r\n:10\r\n$2\r\ng1\r\n");
    tell(&mut world, &Maintenance::FailedOver { seq: 8, group: group() });
    world.expect(client, ">3\r\n$11\r\nFAILED_OVER\r\n:8\r\n$2\r\ng1\r\n");
    assert_eq!(tell(&mut world, &Maintenance::Staying), 0);
    world.expect(client, "");
    let pool = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::MaintenanceNotices), 5);
}

#[test]
fn only_those_are_told_who_want_to_know() {
    let mut world = World::new(&pool(REDIS, 1));
    let silent = world.client();
    world.send(silent, redis("HELLO 3"));
    world.received(silent);
    let off = notified(&mut world, "ON");
    world.send(off, redis("CLIENT MAINT_NOTIFICATIONS OFF"));
    world.expect(off, "+OK\r\n");
    let anew = notified(&mut world, "ON");
    world.send(anew, redis("RESET") + &redis("HELLO 3"));
    world.received(anew);
    let to_itself = notified(&mut world, "ON moving-endpoint-type none");
    let to_other = notified(&mut world, "ON moving-endpoint-type external-ip");
    assert_eq!(tell(&mut world, &moving(10, Some(("other", None)))), 2);
    world.expect(to_itself, TO_ITSELF);
    world.expect(to_other, TO_OTHER);
    for client in [silent, off, anew] {
        world.expect(client, "");
    }
}

#[test]
fn it_takes_resp3_and_the_right_words() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, redis("CLIENT MAINT_NOTIFICATIONS ON"));
    world.expect(client, "-ERR CLIENT MAINT_NOTIFICATIONS needs RESP3: say HELLO 3 before\r\n");
    // Who wants nothing needs nothing.
    world.send(client, redis("CLIENT MAINT_NOTIFICATIONS OFF"));
    world.expect(client, "+OK\r\n");
    world.send(client, redis("HELLO 3"));
    world.received(client);
    for bad in ["PERHAPS", "ON moving-endpoint-type", "ON moving-endpoint-type ip", "ON a b"] {
        world.send(client, redis(&format!("CLIENT MAINT_NOTIFICATIONS {bad}")));
        world.expect(client, "-ERR syntax error\r\n");
    }
    // Who goes back to RESP2 could not read a push.
    let client = notified(&mut world, "ON");
    world.send(client, redis("HELLO 2"));
    world.received(client);
    assert_eq!(tell(&mut world, &moving(10, None)), 0);
    world.expect(client, "");
}

#[test]
fn who_comes_late_is_told_how_much_time_is_left() {
    let mut world = World::new(&pool(REDIS, 1));
    assert_eq!(tell(&mut world, &moving(10, None)), 0);
    world.wait_ms(6500);
    let client = world.client();
    world.send(client, redis("HELLO 3"));
    world.received(client);
    world.send(client, redis("CLIENT MAINT_NOTIFICATIONS ON"));
    world.expect(client, "+OK\r\n>4\r\n$6\r\nMOVING\r\n:1700000000\r\n:4\r\n_\r\n");
    tell(&mut world, &Maintenance::Staying);
    let client = notified(&mut world, "ON");
    world.expect(client, "");
}

#[test]
fn a_push_stands_between_replies() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = notified(&mut world, "ON");
    world.send(client, redis("GET a") + &redis("GET big") + &redis("GET c"));
    let lane = world.accept(0);
    world.send(lane, "%0\r\n");
    world.received(lane);
    // Nothing of a reply is there.
    tell(&mut world, &moving(10, None));
    world.expect(client, TO_ITSELF);
    world.send(lane, "$1\r\n1\r\n");
    let value = "x".repeat(MIB);
    let head = format!("${MIB}\r\n{}", &value[..MIB / 2]);
    world.send(lane, &head);
    world.expect(client, format!("$1\r\n1\r\n{head}"));
    // Half of one is: two events wait for the rest, in their order.
    tell(&mut world, &Maintenance::FailingOver { seq: 7, seconds: 10, group: "g".into() });
    tell(&mut world, &Maintenance::FailedOver { seq: 7, group: "g".into() });
    world.expect(client, "");
    let tail = format!("{}\r\n", &value[MIB / 2..]);
    world.send(lane, &tail);
    let pushes = ">4\r\n$12\r\nFAILING_OVER\r\n:7\r\n:10\r\n$1\r\ng\r\n\
                  >3\r\n$11\r\nFAILED_OVER\r\n:7\r\n$1\r\ng\r\n";
    world.expect(client, format!("{tail}{pushes}"));
    world.send(lane, "$1\r\n3\r\n");
    world.expect(client, "$1\r\n3\r\n");
    world.send(client, redis("PING"));
    world.expect(client, "+PONG\r\n");
    world.assert_idle();
}

#[test]
fn what_waits_for_a_reply_is_bounded_and_goes_with_its_client() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = notified(&mut world, "ON");
    world.send(client, redis("GET big"));
    let lane = world.accept(0);
    world.send(lane, "%0\r\n");
    world.send(lane, format!("${MIB}\r\n{}", "x".repeat(MIB / 2)));
    world.received(client);
    let event = Maintenance::FailedOver { seq: 7, group: "g".repeat(1000) };
    let told: Vec<usize> = (0..6).map(|_| tell(&mut world, &event)).collect();
    assert_eq!(told, [1, 1, 1, 0, 0, 0]);
    world.close(client, cashew_engine::CloseReason::Eof);
    world.send(lane, format!("{}\r\n", "x".repeat(MIB / 2)));
    world.assert_idle();
}

#[test]
fn subscribers_and_those_who_block_are_not_told() {
    let mut world = World::new(&pool(REDIS, 1));
    let subscriber = notified(&mut world, "ON");
    world.send(subscriber, redis("SUBSCRIBE news"));
    let feed = world.accept(0);
    world.send(feed, "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    world.received(subscriber);
    let blocked = notified(&mut world, "ON");
    world.send(blocked, redis("BLPOP list 0"));
    assert_eq!(tell(&mut world, &moving(10, None)), 0);
    world.expect(subscriber, "");
    world.expect(blocked, "");
}

#[test]
fn a_failover_is_told_to_those_whom_it_concerns() {
    let yaml = "a:
  listen: 127.0.0.1:6000
  redis: true
  servers: ['127.0.0.1:7000:1']
b:
  listen: 127.0.0.1:6001
  redis: true
  servers: ['127.0.0.1:7001:1']
";
    let mut world = World::new(&snapshot(yaml));
    let a = notified(&mut world, "ON");
    let b = world.client_of(1);
    world.send(b, redis("HELLO 3"));
    world.received(b);
    world.send(b, redis("CLIENT MAINT_NOTIFICATIONS ON"));
    world.received(b);
    let event = Maintenance::FailedOver { seq: 7, group: "g".into() };
    let told = world.engine.handle_maintenance(Some(BackendId::new(1)), &event, world.now);
    world.tick();
    assert_eq!(told, 1);
    world.expect(a, "");
    world.expect(b, ">3\r\n$11\r\nFAILED_OVER\r\n:7\r\n$1\r\ng\r\n");
}

#[test]
fn what_a_client_wants_to_know_goes_with_it() {
    let mut world = World::new(&pool(REDIS, 1));
    for (asks, wants) in
        [("ON", Notified::Yes), ("ON moving-endpoint-type none", Notified::WithoutAddress)]
    {
        let client = notified(&mut world, asks);
        world.engine.handle_leave(client, world.now);
        world.tick();
        assert!(world.is_handed_off(client));
        let export = world.engine.export(client, world.now).expect("it was handed off");
        assert_eq!(export.parts.notified, wants);
        let client = world.adopt(export);
        tell(&mut world, &moving(10, Some(("other", None))));
        let expected = if wants == Notified::Yes { TO_OTHER } else { TO_ITSELF };
        world.expect(client, expected);
        // Another process may have been told before.
        world.engine.handle_leave(client, world.now);
        world.tick();
        world.actions.clear();
        let export = world.engine.export(client, world.now).expect("it was handed off");
        let client = world.adopt(export);
        world.expect(client, expected);
        tell(&mut world, &Maintenance::Staying);
        world.close(client, cashew_engine::CloseReason::Eof);
    }
}
