//! What the audit log is told of clients.

use crate::world::{World, redis, snapshot};
use cashew_engine::{Audited, ConnId};
use cashew_metrics::DeedOutcome;

fn world(audit: &str, pool: &str) -> World {
    let yaml = format!(
        "global: {{worker_processes: 1, audit_log: {{file: /audit, {audit}}}}}\npools:\n  alpha: {{listen: \
         '127.0.0.1:1', preconnect: true, servers: ['127.0.0.1:2:1'], {pool}}}\n"
    );
    World::new(&snapshot(&yaml))
}

fn told(world: &mut World) -> Vec<String> {
    let (seen, lost) = world.engine.take_audited();
    assert_eq!(lost, 0);
    let line = |audited: &Audited| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Audited { outcome, command, key, user, keys, reason, .. } = audited;
        assert!(audited.client.is_some() && audited.client_id > 0 && audited.pool == "alpha");
        let (user, key) = (text(user), text(key));
        let words = [user, outcome.name().into(), command.clone(), key, keys.to_string()];
        format!("{} {reason}", words.join(" "))
    };
    seen.iter().map(line).collect()
}

fn send(world: &mut World, client: ConnId, lines: &[&str]) {
    lines.iter().for_each(|line| world.send(client, redis(line)));
}

#[test]
fn commands_are_told_by_their_categories_and_values_are_not() {
    let mut world = world("commands: [write, admin]", "redis: true, command_policy: admin");
    let lane = world.accept(0);
    let client = world.client();
    send(
        &mut world,
        client,
        &["SET k secret", "GET k", "MSET a 1 b 2", "CONFIG SET requirepass hush"],
    );
    assert_eq!(
        told(&mut world),
        [" allowed SET k 1 ", " allowed MSET a 2 ", " allowed CONFIG SET  0 "]
    );
    // The read has come by the fast path, and all in their order.
    world.expect(
        lane,
        ["SET k secret", "GET k", "MSET a 1 b 2", "CONFIG SET requirepass hush"]
            .map(redis)
            .concat(),
    );
    world.send(lane, "+OK\r\n$6\r\nsecret\r\n+OK\r\n+OK\r\n");
    world.received(client);
    // In a transaction when it is queued.
    send(&mut world, client, &["MULTI", "SET q 1", "NOSUCH", "EXEC"]);
    assert_eq!(told(&mut world), [" allowed SET q 1 "]);
    // What passes while it arrives.
    let client = world.client();
    world.send(client, format!("*3\r\n$3\r\nSET\r\n$1\r\nl\r\n${}\r\n", 3 << 20));
    world.send(client, vec![b'x'; 300 << 10]);
    assert_eq!(told(&mut world), [" allowed SET l 1 "]);
}

#[test]
fn other_names_of_commands_stay_so() {
    let renames =
        "redis: true, command_policy: {base: admin, rename: {GET: fetch, SET: '', KEYS: list}}";
    for commands in ["none", "[write]", "[keyspace]", "all"] {
        let mut world = world(&format!("commands: {commands}"), renames);
        let lane = world.accept(0);
        let client = world.client();
        for line in ["GET a", "SET a 1", "KEYS *"] {
            world.send(client, redis(line));
            let reply = String::from_utf8(world.received(client)).unwrap();
            assert!(reply.starts_with("-ERR unknown command"), "{commands}: {line}: {reply}");
        }
        world.expect(lane, "");
        world.send(client, redis("FETCH a"));
        world.expect(lane, redis("get a"));
        world.send(lane, "$-1\r\n");
        world.expect(client, "$-1\r\n");
    }
}

#[test]
fn what_is_denied_is_told_with_who_it_was() {
    let users = "users: {ann: on >pw ~a* +@all -@dangerous +sort, default: off}";
    let pool = format!("redis: true, {users}");
    let mut world = world("commands: none", &pool);
    world.accept(0);
    let client = world.client();
    send(
        &mut world,
        client,
        &["AUTH ann wrong", "AUTH ann pw", "SET b 1", "KEYS *", "DEBUG SLEEP 1", "SET a 1"],
    );
    let expected = [
        "ann failed   0 password",
        "ann ok   0 ",
        "ann denied SET b 1 key",
        "ann denied KEYS  0 command",
        "ann denied DEBUG  0 policy",
    ];
    assert_eq!(told(&mut world), expected);
    // It needs all keys: which ones its patterns make of them, servers alone know.
    send(&mut world, client, &["SORT a BY w_*", "MULTI", "SORT a GET w_*"]);
    assert_eq!(told(&mut world), ["ann denied SORT  0 key"; 2]);
    let yes = "commands: none, denied: false, logins: false";
    let mut world = self::world(&format!("{yes}, operators: true"), &pool);
    world.accept(0);
    let client = world.client();
    send(&mut world, client, &["AUTH ann wrong", "AUTH ann pw", "SET b 1"]);
    assert!(!world.engine.has_audited());
}

#[test]
fn a_login_by_a_certificate_is_told_and_so_is_one_that_a_limit_refuses() {
    let users = "users: {ann: {rules: on nopass ~* +@all, connections_max: 1}, default: off}";
    let mut world = world("commands: none", &format!("redis: true, {users}"));
    for expected in ["ann ok   0 ", "ann failed   0 limit"] {
        let client = world.client();
        world.engine.handle_identified(client, &["ann".to_owned()], world.now);
        assert_eq!(told(&mut world), [expected]);
    }
}

#[test]
fn shares_are_kept_and_requests_that_wait_are_told_once() {
    let mut world = world("commands: all, share: 50%", "redis: true");
    world.accept(0);
    let client = world.client();
    world.send(client, redis("GET k").repeat(60));
    let count = told(&mut world).len();
    assert!((10..50).contains(&count), "{count}");
    let mut world = self::world("commands: all", "redis: true");
    let lane = world.accept(0);
    let client = world.client();
    world.send(client, redis("GET k").repeat(200));
    let mut answered = 0;
    for _ in 0..50 {
        let asked = String::from_utf8(world.received(lane)).unwrap().matches("GET").count();
        world.send(lane, "$-1\r\n".repeat(asked));
        world.received(client);
        answered += asked;
    }
    assert_eq!(answered, 200);
    assert_eq!(told(&mut world).len(), 200);
}

#[test]
fn memcached_counts_as_redis_does() {
    let mut world = world("commands: [write, GET]", "command_policy: {deny: [flush_all]}");
    world.accept(0);
    let client = world.client();
    world.send(client, "set k 0 0 6\r\nsecret\r\nget a b\r\ntouch t 5\r\nversion\r\nflush_all\r\n");
    let mut packet = vec![0x80, 0x01, 0, 3, 8, 0, 0, 0, 0, 0, 0, 14];
    packet.resize(24 + 8, 0);
    packet.extend_from_slice(b"keyval");
    let binary = world.client();
    world.send(binary, &packet);
    let expected = [
        " allowed SET k 1 ",
        " allowed GET a 2 ",
        " allowed EXPIRE t 1 ",
        " denied FLUSH_ALL  0 policy",
        " allowed SET key 1 ",
    ];
    assert_eq!(told(&mut world), expected);
}

#[test]
fn a_reload_turns_it_on_and_off() {
    let mut world = world("commands: write", "redis: true");
    let with = snapshot(
        "global: {worker_processes: 1, audit_log: {file: /audit, commands: [read]}}\npools:\n  alpha: {listen: '127.0.0.1:1', preconnect: true, redis: true, servers: ['127.0.0.1:2:1']}\n",
    );
    let without = snapshot(
        "global: {worker_processes: 1}\npools:\n  alpha: {listen: '127.0.0.1:1', preconnect: true, redis: true, servers: ['127.0.0.1:2:1']}\n",
    );
    world.accept(0);
    let client = world.client();
    send(&mut world, client, &["SET k v", "GET k"]);
    assert_eq!(told(&mut world), [" allowed SET k 1 "]);
    for (next, expected) in [(with, vec![" allowed GET k 1 ".to_owned()]), (without, vec![])] {
        world.prepare(&next);
        world.pause(1000);
        world.commit(&next);
        send(&mut world, client, &["SET k v", "GET k"]);
        assert_eq!(told(&mut world), expected);
    }
    let outcomes = [DeedOutcome::Allowed, DeedOutcome::LoggedIn].map(DeedOutcome::is_of_operators);
    assert_eq!(outcomes, [false; 2]);
}
