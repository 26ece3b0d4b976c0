//! Clients that speak RESP3 or have another database than most.

use crate::world::{World, pool, redis};
use cashew_engine::{Action, CloseReason, ConnId};

const PLAIN: &str = "redis: true\npreconnect: true";
const HELLO_REPLY: &str = "%2\r\n+proto\r\n:3\r\n+modules\r\n*1\r\n%1\r\n+name\r\n+m\r\n";

/// What the gateway says to HELLO.
fn greeting(version: u32, id: u64) -> String {
    let map = if version == 3 { "%7" } else { "*14" };
    format!(
        "{map}\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n\
         :{version}\r\n$2\r\nid\r\n:{id}\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\n\
         master\r\n$7\r\nmodules\r\n*0\r\n"
    )
}

/// A client that has agreed on RESP3, and its lane.
fn resp3(world: &mut World, server: u32) -> (ConnId, ConnId) {
    let client = world.client();
    world.send(client, redis("HELLO 3"));
    assert!(world.received(client).starts_with(b"%7\r\n"));
    world.send(client, redis("GET a"));
    let lane = world.accept(server);
    world.expect(lane, redis("HELLO 3"));
    world.send(lane, HELLO_REPLY);
    world.expect(lane, redis("GET a"));
    world.send(lane, "_\r\n");
    world.expect(client, "_\r\n");
    (client, lane)
}

/// A client that has selected a database.
fn selecting(world: &mut World, database: u32) -> ConnId {
    let client = world.client();
    world.send(client, redis(&format!("SELECT {database}")));
    world.expect(client, "+OK\r\n");
    client
}

fn change(world: &mut World, options: &str) {
    let mut next = pool(options, 1);
    next.epoch = 9;
    world.prepare(&next);
    world.pause(0);
    world.commit(&next);
}

#[test]
fn each_version_is_greeted_and_answered_in_its_own_way() {
    let (mut world, [plain]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let (old, new) = (world.client(), world.client());
    world.send(old, redis("HELLO 2"));
    world.expect(old, greeting(2, 1));
    world.send(new, redis("HELLO"));
    world.expect(new, greeting(2, 2));
    world.send(new, redis("HELLO 3 SETNAME me AUTH default any"));
    world.expect(new, greeting(3, 2));
    world.send(new, redis("HELLO"));
    world.expect(new, greeting(3, 2));
    world.send(new, redis("CLIENT GETNAME"));
    world.expect(new, "$2\r\nme\r\n");
    for client in [old, new] {
        world.send(client, redis("GET a"));
    }
    world.expect(plain, redis("GET a"));
    world.send(plain, "$-1\r\n");
    world.expect(old, "$-1\r\n");
    let lane = world.accept(0);
    world.expect(lane, redis("HELLO 3"));
    world.send(lane, HELLO_REPLY);
    world.expect(lane, redis("GET a"));
    let replies = "_\r\n%1\r\n+a\r\n,1.5\r\n~1\r\n#t\r\n|1\r\n+ttl\r\n:1\r\n(12\r\n=5\r\ntxt:x\r\n";
    world.send(new, redis("HGETALL a") + &redis("SMEMBERS a") + &redis("GET a") + &redis("X"));
    world.send(new, redis("LOLWUT"));
    world.send(lane, replies);
    let (answered, own) = replies.split_at(replies.find("=5").unwrap());
    let unknown = "-ERR unknown command 'X', with args beginning with: \r\n";
    world.expect(new, [answered, unknown, own].concat());
    // Both ways back are open.
    world.send(new, redis("HELLO 2") + &redis("CLIENT GETNAME"));
    world.expect(new, greeting(2, 2) + "$2\r\nme\r\n");
    world.send(old, redis("HELLO 3") + &redis("CLIENT GETNAME"));
    world.expect(old, greeting(3, 1) + "_\r\n");
    world.send(old, redis("RESET") + &redis("CLIENT GETNAME"));
    world.expect(old, "+RESET\r\n$-1\r\n");
    world.close(new, CloseReason::Eof);
    world.assert_idle();
}

#[test]
fn what_is_wrong_with_hello_is_said_as_redis_says_it() {
    let mut world = World::new(&pool("redis: true\nredis_auth: secret", 1));
    let client = world.client();
    let refused = [
        ("HELLO 1", "-NOPROTO unsupported protocol version"),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("HELLO three", "-ERR Protocol version is not an integer or out of range"),
        ("HELLO 3 AUTH default", "-ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'"),
        ("HELLO 3 AUTH default secret SETNAME", "-ERR Syntax error in HELLO option 'SETNAME'"),
        (
            "HELLO 3 AUTH default no",
            "-WRONGPASS invalid username-password pair or user is disabled.",
        ),
        (
            "HELLO 3 AUTH other secret",
            "-WRONGPASS invalid username-password pair or user is disabled.",
        ),
        (
            "HELLO 3",
            "-NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time",
        ),
        ("GET a", "-NOAUTH Authentication required."),
    ];
    for (request, reply) in refused {
        world.send(client, redis(request));
        world.expect(client, format!("{reply}\r\n"));
    }
    let named = ["*7", "HELLO", "3", "AUTH", "default", "secret", "SETNAME", "a b"];
    let named: String = named[1..].iter().fold(format!("{}\r\n", named[0]), |out, word| {
        format!("{out}${}\r\n{word}\r\n", word.len())
    });
    world.send(client, named);
    let bad_name = "-ERR Client names cannot contain spaces, newlines or special characters.\r\n";
    world.expect(client, bad_name);
    // It has not been let in by that.
    world.send(client, redis("GET a"));
    world.expect(client, "-NOAUTH Authentication required.\r\n");
    world.send(client, redis("HELLO 3 AUTH default secret"));
    world.expect(client, greeting(3, 1));
    world.assert_idle();
}

#[test]
fn a_pipeline_is_answered_in_its_order_across_the_change() {
    let (mut world, [plain]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let client = world.client();
    let all = [
        "SET a 1", "HELLO 3", "GET a", "SELECT 5", "GET a", "PING", "SELECT 0", "GET b", "HELLO 2",
    ];
    world.send(client, all.map(redis).concat() + &redis("GET c"));
    world.expect(plain, redis("SET a 1"));
    assert!(!world.connects_to(0), "what is on its way comes first");
    world.expect(client, "");
    world.send(plain, "+OK\r\n");
    world.expect(client, format!("+OK\r\n{}", greeting(3, 1)));
    let new = world.accept(0);
    world.send(new, HELLO_REPLY);
    world.expect(new, redis("HELLO 3") + &redis("GET a"));
    world.send(new, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n+OK\r\n");
    let fifth = world.accept(0);
    world.expect(fifth, redis("HELLO 3") + &redis("SELECT 5"));
    world.send(fifth, format!("{HELLO_REPLY}+OK\r\n"));
    world.expect(fifth, redis("GET a"));
    world.send(fifth, "_\r\n");
    world.expect(client, "_\r\n+PONG\r\n+OK\r\n");
    world.expect(new, redis("GET b"));
    world.expect(plain, "");
    world.send(new, "_\r\n");
    world.expect(client, format!("_\r\n{}", greeting(2, 1)));
    world.expect(plain, redis("GET c"));
    world.send(plain, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn databases_are_the_clients_own_and_named_as_in_redis() {
    let (mut world, [plain]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let (client, other) = (world.client(), world.client());
    for (index, reply) in [
        ("0", "+OK"),
        ("15", "+OK"),
        ("16", "-ERR DB index is out of range"),
        ("-1", "-ERR DB index is out of range"),
        ("x", "-ERR value is not an integer or out of range"),
        ("01", "-ERR value is not an integer or out of range"),
        ("+1", "-ERR value is not an integer or out of range"),
        ("2147483648", "-ERR value is out of range, value must between -2147483648 and 2147483647"),
    ] {
        world.send(client, redis(&format!("SELECT {index}")));
        world.expect(client, format!("{reply}\r\n"));
    }
    world.send(client, redis("SET a 1"));
    world.send(other, redis("GET a"));
    let fifteenth = world.accept(0);
    world.expect(fifteenth, redis("SELECT 15"));
    world.send(fifteenth, "+OK\r\n");
    world.expect(fifteenth, redis("SET a 1"));
    world.expect(plain, redis("GET a"));
    // Each in its time, whoever is answered first.
    world.send(plain, "$-1\r\n");
    world.expect(other, "$-1\r\n");
    world.send(fifteenth, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_pool_with_a_database_of_its_own_has_no_other() {
    let mut world = World::new(&pool("redis: true\nredis_db: 3", 1));
    let client = world.client();
    world.send(client, ["SELECT 0", "SELECT 3", "SELECT 1", "GET a"].map(redis).concat());
    world.expect(client, "+OK\r\n+OK\r\n-ERR DB index is out of range\r\n");
    let lane = world.accept(0);
    world.expect(lane, redis("SELECT 3"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    // Another is not reached by other ways either; what is no number is for the server to refuse.
    let refused = ["MOVE a 0", "COPY a a DB 1", "copy a a replace db 0", "SWAPDB 3 4"];
    for request in refused {
        world.send(client, redis(request));
        assert_eq!(world.received(client), b"-ERR DB index is out of range\r\n", "{request}");
    }
    for request in ["MOVE a 3", "MOVE a x", "COPY a a DB 3", "COPY a a DB", "COPY a a"] {
        world.send(client, redis(request));
        world.expect(lane, redis(request));
        world.send(lane, "-ERR whatever\r\n");
        world.expect(client, "-ERR whatever\r\n");
    }
    world.assert_idle();
}

#[test]
fn clients_begin_in_the_database_of_the_pool_and_may_leave_it() {
    let mut world = World::new(&pool("redis: true\nredis_db: 3\ndatabases: 4", 1));
    let client = world.client();
    world.send(client, redis("GET a"));
    let third = world.accept(0);
    world.expect(third, redis("SELECT 3"));
    world.send(third, "+OK\r\n");
    world.expect(third, redis("GET a"));
    world.send(third, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.send(client, redis("SELECT 4") + &redis("SELECT 0") + &redis("GET a"));
    world.expect(client, "-ERR DB index is out of range\r\n+OK\r\n");
    let zeroth = world.accept(0);
    world.expect(zeroth, redis("GET a"));
    world.send(zeroth, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.send(client, redis("SELECT 3") + &redis("GET b"));
    world.expect(third, redis("GET b"));
    world.send(third, "$-1\r\n");
    world.expect(client, "+OK\r\n$-1\r\n");
    for request in ["MOVE a 4", "COPY a a DB 4", "SWAPDB 4 0", "MOVE a -1"] {
        world.send(client, redis(request));
        world.expect(client, "-ERR DB index is out of range\r\n");
    }
    world.send(client, redis("MOVE a 1"));
    world.expect(third, redis("MOVE a 1"));
    world.send(third, ":1\r\n");
    world.expect(client, ":1\r\n");
    world.assert_idle();
}

#[test]
fn split_commands_are_merged_in_resp3() {
    let (mut world, [_, _]): (World, [ConnId; 2]) = World::connected(&pool(PLAIN, 2));
    let client = world.client();
    world.send(client, redis("HELLO 3"));
    world.expect(client, greeting(3, 1));
    world.send(client, redis("MGET a b c d") + &redis("DEL a b c d") + &redis("MSET a 1 b 2 c 3"));
    let lanes = [world.accept(0), world.accept(1)];
    for lane in lanes {
        world.send(lane, HELLO_REPLY);
    }
    let keys = lanes.map(|lane| {
        let asked = String::from_utf8(world.received(lane)).unwrap();
        ["a", "b", "c", "d"].map(|key| asked.contains(&format!("$1\r\n{key}\r\n")))
    });
    for (lane, has) in lanes.into_iter().zip(keys) {
        assert!(has.contains(&true) && has.contains(&false), "{keys:?}");
        let count = has.iter().filter(|has| **has).count();
        let values: String =
            (0..count).map(|at| if at == 0 { "_\r\n" } else { "|0\r\n$1\r\nx\r\n" }).collect();
        world.send(lane, format!("*{count}\r\n{values}:{count}\r\n+OK\r\n"));
    }
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.starts_with("*4\r\n") && reply.ends_with(":4\r\n+OK\r\n"), "{reply}");
    assert_eq!(reply.matches("_\r\n").count(), 2);
    // An error of one is the answer to all, of whatever kind it is.
    world.send(client, redis("DEL a b c d"));
    world.send(lanes[0], ":1\r\n");
    world.send(lanes[1], "!5\r\nERR x\r\n");
    world.expect(client, "!5\r\nERR x\r\n");
    world.assert_idle();
}

#[test]
fn pushes_on_a_shared_lane_are_nobodys_however_they_come() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let (client, lane) = resp3(&mut world, 0);
    let push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";
    world.send(lane, push);
    world.send(client, redis("GET a") + &redis("GET b"));
    let stream = [push, "$1\r\nx\r\n", push, push, "_\r\n", push].concat();
    for size in 1..stream.len() {
        for piece in stream.as_bytes().chunks(size) {
            world.send(lane, piece);
        }
        world.expect(client, "$1\r\nx\r\n_\r\n");
        world.send(client, redis("GET a") + &redis("GET b"));
    }
    world.send(lane, "_\r\n_\r\n");
    assert!(!world.closed.contains(&lane));
    world.received(client);
    world.assert_idle();
}

#[test]
fn in_resp2_a_push_is_no_reply() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let client = world.client();
    world.send(client, redis("GET a"));
    world.send(lane, ">1\r\n+a\r\n$1\r\nx\r\n");
    world.expect(client, "-ERR Server sent an invalid reply\r\n");
    assert!(world.closed.contains(&lane));
}

/// A client of RESP2 could make nothing of it.
#[test]
fn in_resp2_what_only_resp3_has_is_no_reply() {
    let types = ["_\r\n", "#t\r\n", ",1.5\r\n", "(12\r\n", "%1\r\n+a\r\n:1\r\n", "~1\r\n:1\r\n"];
    let strings = ["=5\r\ntxt:a\r\n", "!5\r\nERR x\r\n", "|1\r\n+a\r\n:1\r\n+x\r\n"];
    let replies = types.into_iter().chain(strings).flat_map(|bad| {
        let inside = |head: &str| format!("{head}{bad}");
        [bad.to_owned(), inside("*1\r\n"), inside("*2\r\n+a\r\n"), inside("*1\r\n*1\r\n")]
    });
    for reply in replies {
        for cut in 0..reply.len() {
            let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
            let (client, other) = (world.client(), world.client());
            world.send(client, redis("GET a"));
            world.send(other, redis("GET b"));
            world.send(lane, &reply[..cut]);
            world.send(lane, format!("{}$6\r\nothers\r\n", &reply[cut..]));
            for client in [client, other] {
                world.expect(client, "-ERR Server sent an invalid reply\r\n");
            }
            assert!(world.closed.contains(&lane), "{reply:?} {cut}");
        }
    }
}

#[test]
fn a_database_that_a_server_lacks_is_no_failure_of_the_server() {
    let options = format!("{PLAIN}\nauto_eject_hosts: true\nserver_failure_limit: 1");
    let (mut world, lanes): (World, [ConnId; 2]) = World::connected(&pool(&options, 2));
    let (client, other) = (selecting(&mut world, 9), world.client());
    world.send(client, redis("GET a"));
    let server = u32::from(world.connects_to(1));
    let lane = world.accept(server);
    world.expect(lane, redis("SELECT 9"));
    world.send(lane, "-ERR DB index is out of range\r\n");
    world.expect(client, "-ERR DB index is out of range\r\n");
    world.wait_ms(30_000);
    assert!(!world.connects_to(server), "nobody asks for it");
    assert!(!world.actions.iter().any(|action| {
        matches!(action, Action::Eject { .. }) || crate::world::is_failure(action)
    }));
    world.send(other, redis("GET a"));
    world.expect(lanes[server as usize], redis("GET a"));
    world.send(lanes[server as usize], "$-1\r\n");
    world.expect(other, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn what_a_server_is_busy_with_is_told_and_no_failure() {
    let busy = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN \
                NOSAVE.\r\n";
    for reply in [busy, "-LOADING Redis is loading the dataset in memory\r\n"] {
        let options = format!("{PLAIN}\nauto_eject_hosts: true\nserver_failure_limit: 1");
        let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(&options, 1));
        let client = selecting(&mut world, 9);
        world.send(client, redis("GET a"));
        let lane = world.accept(0);
        world.expect(lane, redis("SELECT 9"));
        world.send(lane, reply);
        world.expect(client, reply);
        assert!(!world.actions.iter().any(|action| {
            matches!(action, Action::Eject { .. }) || crate::world::is_failure(action)
        }));
        // It is asked again soon, without a verdict about the database.
        world.wait_ms(1_000);
        world.send(client, redis("GET a"));
        let lane = world.accept(0);
        world.expect(lane, redis("SELECT 9"));
        world.send(lane, "+OK\r\n");
        world.expect(lane, redis("GET a"));
        world.send(lane, "$-1\r\n");
        world.expect(client, "$-1\r\n");
        world.assert_idle();
    }
}

#[test]
fn where_a_server_does_not_speak_resp3_clients_are_told_so_for_a_while() {
    for reply in ["-ERR unknown command 'HELLO'\r\n", "-NOPROTO no\r\n"] {
        let (mut world, [plain]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
        let (new, other, old) = (world.client(), world.client(), world.client());
        for client in [new, other] {
            world.send(client, redis("HELLO 3"));
            world.received(client);
        }
        world.send(new, redis("GET a"));
        world.send(old, redis("GET a"));
        let lane = world.accept(0);
        world.send(lane, reply);
        world.expect(new, "-NOPROTO unsupported protocol version\r\n");
        assert!(world.closed.contains(&new) && world.closed.contains(&other));
        world.send(plain, "$-1\r\n");
        world.expect(old, "$-1\r\n");
        world.send(old, redis("HELLO 3"));
        world.expect(old, "-NOPROTO unsupported protocol version\r\n");
        world.send(old, redis("HELLO 2"));
        world.expect(old, greeting(2, 3));
        // The server may have become another in the meantime.
        world.wait_ms(60_000);
        world.send(old, redis("HELLO 3"));
        world.expect(old, greeting(3, 3));
        assert!(!world.actions.iter().any(crate::world::is_failure));
        world.assert_idle();
    }
}

#[test]
fn lanes_that_nobody_uses_are_given_back() {
    let (mut world, [plain]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let reckoned = world.engine.server_connections_max();
    let (client, lane) = resp3(&mut world, 0);
    world.wait_ms(60_000);
    assert!(world.closed.is_empty(), "a client may want it again");
    // A reply may still be owed when the client has gone.
    world.send(client, redis("GET a"));
    world.close(client, cashew_engine::CloseReason::Eof);
    world.wait_ms(60_000);
    assert!(world.closed.is_empty());
    world.send(lane, "_\r\n");
    world.wait_ms(2_000);
    assert_eq!(world.closed, [lane]);
    assert_eq!(world.engine.server_connections_max(), reckoned);
    // Who comes gets lanes again, perhaps in the same place.
    let client = selecting(&mut world, 7);
    world.send(client, redis("GET a"));
    let lane = world.accept(0);
    world.expect(lane, redis("SELECT 7"));
    world.send(lane, "+OK\r\n");
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.send(client, redis("SELECT 0") + &redis("GET a"));
    world.received(plain);
    world.send(plain, "$-1\r\n");
    world.expect(client, "+OK\r\n$-1\r\n");
    world.wait_ms(12_000);
    assert!(world.closed.contains(&lane));
    world.assert_idle();
}

#[test]
fn a_lane_that_fails_comes_back_only_while_somebody_wants_it() {
    let options = "redis: true\npreconnect: true";
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    let (client, lane) = resp3(&mut world, 0);
    world.wait_ms(2_000);
    world.close(lane, cashew_engine::CloseReason::Reset);
    assert!(
        world.connects_to(0),
        "the server seems to fail, and who wants it is to know when it is well"
    );
    world.refuse(0);
    world.wait_ms(2_000);
    assert!(world.connects_to(0));
    world.close(client, cashew_engine::CloseReason::Eof);
    world.refuse(0);
    world.wait_ms(5_000);
    assert!(!world.connects_to(0));
    world.assert_idle();
}

#[test]
fn only_so_many_databases_are_in_use_at_once() {
    let (mut world, [_]): (World, [ConnId; 1]) =
        World::connected(&pool(&format!("{PLAIN}\ndatabases: 100"), 1));
    let clients: Vec<ConnId> = (1..64).map(|database| selecting(&mut world, database)).collect();
    let late = world.client();
    world.send(late, redis("SELECT 64"));
    world.expect(late, "-ERR too many databases are in use through this gateway at the moment\r\n");
    world.send(late, redis("SELECT 63") + &redis("HELLO 3"));
    world.expect(
        late,
        "+OK\r\n-ERR too many databases are in use through this gateway at the moment\r\n",
    );
    // One that is not used any more makes room at once.
    world.close(clients[20], cashew_engine::CloseReason::Eof);
    world.send(late, redis("SELECT 64") + &redis("GET a"));
    world.expect(late, "+OK\r\n");
    let lane = world.accept(0);
    world.expect(lane, redis("SELECT 64"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(late, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn who_has_not_chosen_follows_the_pool_into_another_database() {
    let options = |database: u32| format!("{PLAIN}\nredis_db: {database}\ndatabases: 16");
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(&options(0), 1));
    let clients = [world.client(), selecting(&mut world, 5), selecting(&mut world, 3)];
    let (new, _) = resp3(&mut world, 0);
    change(&mut world, &options(5));
    world.accept_all::<1>();
    for lane in world.lanes[&0].clone() {
        world.send(lane, "+OK\r\n");
    }
    for lane in world.lanes[&0].clone() {
        world.received(lane);
    }
    for (client, database) in clients.into_iter().zip([5, 5, 3]) {
        world.send(client, redis("GET a"));
        if database == 3 {
            let lane = world.accept(0);
            world.expect(lane, redis("SELECT 3"));
            world.send(lane, "+OK\r\n");
            world.send(lane, "$-1\r\n");
        } else {
            let lane = world.lanes[&0][0];
            world.expect(lane, redis("GET a"));
            world.send(lane, "$-1\r\n");
        }
        world.expect(client, "$-1\r\n");
    }
    world.send(new, redis("GET a"));
    let lane = world.accept(0);
    world.expect(lane, redis("HELLO 3") + &redis("SELECT 5"));
    world.send(lane, format!("{HELLO_REPLY}+OK\r\n"));
    world.send(lane, "_\r\n");
    world.expect(new, "_\r\n");
    // Lanes of the old kind are of no use to anybody.
    world.wait_ms(12_000);
    world.assert_idle();
}

#[test]
fn new_servers_have_lanes_of_all_kinds() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let (client, lane) = resp3(&mut world, 0);
    let mut next = pool(PLAIN, 2);
    next.epoch = 9;
    world.prepare(&next);
    world.accept_all::<2>();
    world.pause(0);
    world.commit(&next);
    world.send(client, redis("MGET a b c d"));
    let fresh = world.accept(1);
    world.expect(fresh, redis("HELLO 3"));
    world.send(fresh, HELLO_REPLY);
    for lane in [lane, fresh] {
        let asked = String::from_utf8(world.received(lane)).unwrap();
        let count = asked.lines().next().unwrap()[1..].parse::<usize>().unwrap() - 1;
        world.send(lane, format!("*{count}\r\n{}", "_\r\n".repeat(count)));
    }
    world.expect(client, "*4\r\n_\r\n_\r\n_\r\n_\r\n");
    world.assert_idle();
}
