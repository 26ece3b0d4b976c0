//! CLIENT PAUSE and UNPAUSE in transactions.

use crate::world::{World, all, pool, redis};
use cashew_engine::{CloseReason, ConnId, Rest};

const OPTIONS: &str =
    "redis: true\ncommand_policy: admin\nhash_tag: \"{}\"\ntimeout: 400\npreconnect: true";
const QUEUED: &str = "+QUEUED\r\n";

/// A server, its shared lane, and clients: the first has a transaction, the others ask things.
fn one_server<const N: usize>() -> (World, ConnId, [ConnId; N]) {
    let (mut world, [shared]) = World::connected(&pool(OPTIONS, 1));
    let clients = std::array::from_fn(|_| world.client());
    (world, shared, clients)
}

/// Sends a transaction of these commands, of which the server gets those, and has it answer EXEC so.
fn play(world: &mut World, client: ConnId, commands: &[&str], queued: &[&str], reply: &str) {
    world.send(client, all(&[&["MULTI"], commands, &["EXEC"]].concat()));
    let lane = match world.connects_to(0) {
        true => world.accept(0),
        false => *world.lanes[&0].last().unwrap(),
    };
    world.expect(lane, all(&[&["MULTI"], queued, &["EXEC"]].concat()));
    world.send(lane, format!("+OK\r\n{}{reply}", QUEUED.repeat(queued.len())));
}

/// What the client has been told beside the replies to what it queued.
#[track_caller]
fn executed(world: &mut World, client: ConnId, commands: usize) -> String {
    let told = String::from_utf8(world.received(client)).unwrap();
    let replies = told.strip_prefix(&format!("+OK\r\n{}", QUEUED.repeat(commands)));
    replies.unwrap_or_else(|| panic!("{told}")).to_owned()
}

/// Whether what writes, and what reads, goes to the server.
fn passes(world: &mut World, shared: ConnId) -> (bool, bool) {
    let [writer, reader] = std::array::from_fn(|_| world.client());
    world.send(reader, redis("GET a"));
    let reads = world.received(shared) == redis("GET a").as_bytes();
    world.send(writer, redis("SET a 1"));
    let writes = world.received(shared) == redis("SET a 1").as_bytes();
    let replies = ["$-1\r\n", "+OK\r\n"];
    for (reply, _) in replies.iter().zip([reads, writes]).filter(|(_, passes)| *passes) {
        world.send(shared, *reply);
    }
    world.close(reader, CloseReason::Eof);
    world.close(writer, CloseReason::Eof);
    (writes, reads)
}

#[test]
fn a_pause_begins_when_the_transaction_is_executed() {
    let (mut world, shared, [client, other]) = one_server();
    world.send(client, all(&["MULTI", "SET a 1", "CLIENT PAUSE 60000 WRITE", "SET b 1"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SET a 1", "UNWATCH", "SET b 1"]));
    world.send(lane, "+OK\r\n".to_owned() + &QUEUED.repeat(3));
    assert_eq!(passes(&mut world, shared), (true, true), "it is queued only");
    world.send(client, all(&["EXEC", "SET c 1"]));
    world.expect(lane, redis("EXEC"));
    world.send(lane, "*3\r\n+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!(executed(&mut world, client, 3), "*3\r\n+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!(passes(&mut world, shared), (false, true));
    world.send(other, redis("CLIENT UNPAUSE"));
    world.expect(other, "+OK\r\n");
    world.expect(shared, redis("SET c 1"));
    world.send(shared, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_transaction_may_be_nothing_but_a_pause() {
    let (mut world, shared, [client, other]) = one_server();
    play(&mut world, client, &["CLIENT PAUSE 500"], &["UNWATCH"], "*1\r\n+OK\r\n");
    assert_eq!(executed(&mut world, client, 1), "*1\r\n+OK\r\n");
    world.send(other, redis("PING"));
    world.expect(other, "");
    assert_eq!(passes(&mut world, shared), (false, false));
    world.wait_ms(600);
    world.expect(other, "+PONG\r\n");
    assert_eq!(passes(&mut world, shared), (true, true));
    world.assert_idle();
}

#[test]
fn exec_is_answered_when_all_workers_hold_their_clients_back() {
    let (mut world, shared, [client, _]) = one_server();
    world.has_others = true;
    let commands = ["CLIENT PAUSE 60000 WRITE", "GET a"];
    play(&mut world, client, &commands, &["UNWATCH", "GET a"], "*2\r\n+OK\r\n$-1\r\n");
    let (ticket, by, question) = world.question();
    assert_eq!((by, question), (1, redis("CLIENT PAUSE 60000 WRITE").into_bytes()));
    assert_eq!(executed(&mut world, client, 2), "");
    world.send(client, redis("PING"));
    world.answered(ticket, b"", Rest::Awaited);
    world.expect(client, "");
    world.answered(ticket, b"", Rest::None);
    world.expect(client, "*2\r\n+OK\r\n$-1\r\n+PONG\r\n");
    assert_eq!(passes(&mut world, shared), (false, true));
    // Somebody does not answer.
    play(&mut world, client, &commands, &["UNWATCH", "GET a"], "*2\r\n+OK\r\n$-1\r\n");
    assert_eq!(executed(&mut world, client, 2), "");
    let (ticket, ..) = world.question();
    world.answered(ticket, b"", Rest::Missing);
    let told = String::from_utf8(world.received(client)).unwrap();
    assert!(told.starts_with("*2\r\n-ERR not all worker processes"), "{told}");
    assert!(told.ends_with(" did as they were asked\r\n$-1\r\n"), "{told}");
    // The engine waits no longer than for other questions.
    play(&mut world, client, &commands, &["UNWATCH", "GET a"], "*2\r\n+OK\r\n$-1\r\n");
    assert_eq!(executed(&mut world, client, 2), "");
    world.wait_ms(4_000);
    assert!(world.received(client).starts_with(b"*2\r\n-ERR not all worker processes"));
    world.assert_idle();
}

#[test]
fn who_leaves_meanwhile_holds_others_back_all_the_same() {
    let (mut world, shared, [client, _]) = one_server();
    world.has_others = true;
    let commands = ["CLIENT PAUSE 60000 WRITE", "GET a"];
    play(&mut world, client, &commands, &["UNWATCH", "GET a"], "*2\r\n+OK\r\n$-1\r\n");
    let (ticket, ..) = world.question();
    world.close(client, CloseReason::Eof);
    world.assert_idle();
    assert_eq!(passes(&mut world, shared), (false, true));
    world.answered(ticket, b"", Rest::None);
    world.assert_idle();
}

#[test]
fn what_is_not_executed_holds_nobody_back() {
    let (mut world, shared, [client, _]) = one_server();
    let (said, queued) = (["CLIENT PAUSE 60000"], ["UNWATCH"]);
    for reply in ["*-1\r\n", "-EXECABORT x\r\n", "*1\r\n-NOPERM x\r\n"] {
        play(&mut world, client, &said, &queued, reply);
        assert_eq!(executed(&mut world, client, 1), reply);
        assert_eq!(passes(&mut world, shared), (true, true), "{reply}");
    }
    world.send(client, all(&["MULTI", "CLIENT PAUSE 60000", "DISCARD"]));
    world.expect(client, "+OK\r\n+QUEUED\r\n+OK\r\n");
    world.send(client, all(&["MULTI", "CLIENT PAUSE 60000", "NOPE", "EXEC"]));
    assert!(world.received(client).ends_with(b"because of previous errors.\r\n"));
    world.send(client, all(&["MULTI", "CLIENT PAUSE", "EXEC"]));
    let told = String::from_utf8(world.received(client)).unwrap();
    assert!(told.contains("-ERR wrong number of arguments for 'client|pause' command"), "{told}");
    assert!(told.contains("-EXECABORT"), "{told}");
    assert_eq!(passes(&mut world, shared), (true, true));
    world.assert_idle();
}

#[test]
fn servers_refuse_what_is_malformed_and_would_hold_nobody_back() {
    let (mut world, shared, [client, _]) = one_server();
    let said =
        ["CLIENT PAUSE 50 NONE", "CLIENT PAUSE x", "CLIENT PAUSE -1", "CLIENT PAUSE 9 ALL a"];
    let queued =
        ["CLIENT PAUSE 0 NONE", "CLIENT PAUSE x", "CLIENT PAUSE -1", "CLIENT PAUSE 0 ALL a"];
    let reply = "*4\r\n-ERR 1\r\n-ERR 2\r\n-ERR 3\r\n-ERR 4\r\n";
    play(&mut world, client, &said, &queued, reply);
    assert_eq!(executed(&mut world, client, 4), reply);
    assert_eq!(passes(&mut world, shared), (true, true));
    world.assert_idle();
}

#[test]
fn pauses_of_one_transaction_come_one_after_the_other() {
    let (mut world, shared, [client, _]) = one_server();
    let said = ["CLIENT PAUSE 60000", "SELECT 5", "CLIENT UNPAUSE", "CLIENT PAUSE 60000 WRITE"];
    world.send(client, all(&[&["MULTI"], &said[..], &["EXEC"]].concat()));
    let lane = world.accept(0);
    let queued = ["MULTI", "UNWATCH", "SELECT 5", "UNWATCH", "UNWATCH", "EXEC", "SELECT 0"];
    world.expect(lane, all(&queued));
    let reply = "*4\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n";
    world.send(lane, "+OK\r\n".to_owned() + &QUEUED.repeat(4) + reply + "+OK\r\n");
    assert_eq!(executed(&mut world, client, 4), reply);
    assert_eq!(passes(&mut world, shared), (false, true));
    // It has the database, too.
    world.send(client, redis("GET a"));
    let own = world.accept(0);
    world.expect(own, redis("SELECT 5"));
    world.send(own, "+OK\r\n");
    world.expect(own, redis("GET a"));
    world.send(own, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_transaction_ends_pauses() {
    let (mut world, shared, [client, _]) = one_server();
    world.send(client, redis("CLIENT PAUSE 60000 WRITE"));
    world.expect(client, "+OK\r\n");
    assert_eq!(passes(&mut world, shared), (false, true));
    play(&mut world, client, &["CLIENT UNPAUSE"], &["UNWATCH"], "*1\r\n+OK\r\n");
    assert_eq!(executed(&mut world, client, 1), "*1\r\n+OK\r\n");
    assert_eq!(passes(&mut world, shared), (true, true));
    world.assert_idle();
}

#[test]
fn who_wants_no_replies_holds_others_back() {
    let (mut world, shared, [client, other]) = one_server();
    world.send(client, redis("CLIENT REPLY OFF"));
    let commands = ["CLIENT PAUSE 60000 WRITE", "GET a"];
    world.send(client, all(&[&["MULTI"], &commands[..], &["EXEC"]].concat()));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "UNWATCH", "GET a", "EXEC"]));
    for part in ["+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+O", "K\r\n$", "-1\r\n"] {
        world.send(lane, part);
    }
    assert_eq!(passes(&mut world, shared), (false, true));
    world.send(client, redis("CLIENT REPLY ON"));
    world.expect(client, "+OK\r\n");
    world.send(other, redis("CLIENT UNPAUSE"));
    world.expect(other, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn there_is_a_most_of_them() {
    let (mut world, _, [client, _]) = one_server();
    world.send(client, all(&["MULTI"]) + &redis("CLIENT UNPAUSE").repeat(1025));
    let refused = "-ERR too many CLIENT PAUSEs in one transaction\r\n";
    world.expect(client, "+OK\r\n".to_owned() + &QUEUED.repeat(1024) + refused);
    world.send(client, redis("EXEC"));
    world.expect(client, "-EXECABORT Transaction discarded because of previous errors.\r\n");
    world.assert_idle();
}
