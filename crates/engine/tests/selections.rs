//! SELECT in transactions.

use crate::world::{World, all, pool, redis};
use cashew_engine::{CloseReason, ConnId};

const OPTIONS: &str = "redis: true\nhash_tag: \"{}\"\ntimeout: 400\npreconnect: true";
const QUEUED: &str = "+QUEUED\r\n";

fn one_server() -> (World, ConnId, ConnId) {
    let (world, client, [shared]) = World::with_client(&pool(OPTIONS, 1));
    (world, client, shared)
}

/// Sends a transaction of these commands and has the server answer EXEC so; returns its lane.
fn play(world: &mut World, client: ConnId, commands: &[&str], reply: &str) -> ConnId {
    let said = [&["MULTI"], commands, &["EXEC"]].concat();
    world.send(client, all(&said));
    let lane = match world.connects_to(0) {
        true => world.accept(0),
        false => *world.lanes[&0].last().unwrap(),
    };
    // Behind it the connection gets its own database back.
    world.expect(lane, all(&said) + &redis("SELECT 0"));
    let queued = QUEUED.repeat(commands.len());
    world.send(lane, format!("+OK\r\n{queued}{reply}+OK\r\n"));
    world.expect(client, format!("+OK\r\n{queued}{reply}"));
    lane
}

/// Which database the client has, as the connection tells that its next request takes.
fn assert_database(world: &mut World, client: ConnId, shared: ConnId, database: u32) {
    world.send(client, redis("GET x"));
    let lane = if database == 0 { shared } else { world.accept(0) };
    if database > 0 {
        world.expect(lane, redis(&format!("SELECT {database}")));
        world.send(lane, "+OK\r\n");
    }
    world.expect(lane, redis("GET x"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn the_client_goes_on_with_the_last_one_selected() {
    let (mut world, client, shared) = one_server();
    let commands = ["SET a 1", "SELECT 5", "SET b 2", "SELECT 7", "LRANGE l 0 1"];
    let reply = "*5\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n*2\r\n$1\r\nx\r\n$1\r\ny\r\n";
    let lane = play(&mut world, client, &commands, reply);
    assert_database(&mut world, client, shared, 7);
    // The transaction's connection is as it was, for a client of the first database.
    let other = world.client();
    world.send(other, all(&["MULTI", "SET a 1", "EXEC"]));
    world.expect(lane, all(&["MULTI", "SET a 1", "EXEC"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.expect(other, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    // The next transaction of the one that selected begins in its database, and ends in it.
    world.send(client, all(&["MULTI", "SET a 1", "SELECT 0", "EXEC"]));
    world.expect(lane, redis("SELECT 7"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, all(&["MULTI", "SET a 1", "SELECT 0", "EXEC", "SELECT 7"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n+OK\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    assert_database(&mut world, client, shared, 0);
}

#[test]
fn what_follows_in_the_same_packet_has_the_new_database() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["MULTI", "SELECT 3", "SET a 1", "EXEC", "GET a"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SELECT 3", "SET a 1", "EXEC", "SELECT 0"]));
    // Cut in the middle of the reply to EXEC.
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+O");
    assert!(!world.connects_to(0));
    world.send(lane, "K\r\n+OK\r\n");
    let third = world.accept(0);
    world.expect(third, redis("SELECT 3"));
    world.send(third, "+OK\r\n");
    world.expect(third, redis("GET a"));
    world.send(third, "$1\r\n1\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n$1\r\n1\r\n");
    assert_eq!(world.sessions(0), 1, "the lane is not free before it has its database back");
    world.send(lane, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn what_is_not_executed_changes_nothing() {
    let (mut world, client, shared) = one_server();
    let commands = ["SELECT 5", "SET a 1"];
    for reply in ["*-1\r\n", "-EXECABORT Transaction discarded\r\n", "-OOM no memory\r\n"] {
        play(&mut world, client, &commands, reply);
        assert_database(&mut world, client, shared, 0);
    }
    // The server has fewer databases than the pool.
    play(&mut world, client, &commands, "*2\r\n-ERR DB index is out of range\r\n+OK\r\n");
    assert_database(&mut world, client, shared, 0);
    world.send(client, all(&["MULTI", "SELECT 5", "SET a 1", "DISCARD"]));
    let lane = *world.lanes[&0].last().unwrap();
    world.expect(lane, all(&["MULTI", "SELECT 5", "SET a 1", "DISCARD"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+OK\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+OK\r\n");
    assert_database(&mut world, client, shared, 0);
    world.send(client, all(&["MULTI", "SELECT 5", "DISCARD", "MULTI", "SELECT 5", "NOPE", "EXEC"]));
    let said = String::from_utf8(world.received(client)).unwrap();
    assert!(said.ends_with("because of previous errors.\r\n"), "{said}");
    assert_database(&mut world, client, shared, 0);
}

#[test]
fn servers_refuse_what_the_pool_does_not_have() {
    let (mut world, client, [_, second]) =
        World::with_client(&pool("redis: true\nredis_db: 3\npreconnect: true", 2));
    let lane = |world: &mut World| match world.connects_to(1) {
        true => world.accept(1),
        false => *world.lanes[&1].last().unwrap(),
    };
    world.expect(second, redis("SELECT 3"));
    world.send(second, "+OK\r\n");
    // The pool's own database is called 0 as well, all others are out of reach.
    world.send(client, all(&["MULTI", "SELECT 0", "SELECT 4", "SELECT x", "SET b 1", "EXEC"]));
    let lane = lane(&mut world);
    world.expect(lane, redis("SELECT 3"));
    world.send(lane, "+OK\r\n");
    let said = ["MULTI", "SELECT 3", "SELECT -1", "SELECT x", "SET b 1", "EXEC", "SELECT 3"];
    world.expect(lane, all(&said));
    let reply = "*4\r\n+OK\r\n-ERR DB index is out of range\r\n-ERR no integer\r\n+OK\r\n";
    world.send(lane, "+OK\r\n".to_owned() + &QUEUED.repeat(4) + reply + "+OK\r\n");
    world.expect(client, "+OK\r\n".to_owned() + &QUEUED.repeat(4) + reply);
    world.send(client, redis("GET b"));
    world.expect(second, redis("GET b"));
}

#[test]
fn a_lane_that_does_not_get_its_database_back_is_closed() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["MULTI", "SELECT 5", "SET a 1", "EXEC"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SELECT 5", "SET a 1", "EXEC", "SELECT 0"]));
    // The client is gone: the lane is cleaned all the same.
    world.close(client, CloseReason::Eof);
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    assert_eq!(world.sessions(0), 1);
    world.send(lane, "-ERR whatever\r\n");
    assert_eq!(world.sessions(0), 0);
    let other = world.client();
    world.send(other, all(&["MULTI", "SET a 1", "EXEC"]));
    let next = world.accept(0);
    world.expect(next, all(&["MULTI", "SET a 1", "EXEC"]));
}

#[test]
fn a_connection_that_breaks_with_exec_on_its_way_leaves_the_database() {
    let (mut world, client, shared) = one_server();
    world.send(client, all(&["MULTI", "SELECT 5", "SET a 1", "EXEC"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SELECT 5", "SET a 1", "EXEC", "SELECT 0"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n");
    world.close(lane, CloseReason::Reset);
    let said = String::from_utf8(world.received(client)).unwrap();
    assert!(said.starts_with("+OK\r\n+QUEUED\r\n+QUEUED\r\n-ERR "), "{said}");
    assert_database(&mut world, client, shared, 0);
}

#[test]
fn who_cannot_go_on_with_the_database_is_answered_and_closed() {
    let options = format!("{OPTIONS}\ndatabases: 100");
    let (mut world, client, [shared]) = World::with_client(&pool(&options, 1));
    world.send(client, all(&["MULTI", "SELECT 99", "SET a 1", "EXEC", "GET a"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SELECT 99", "SET a 1", "EXEC", "SELECT 0"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    // There was room when it was queued, and now others take it all.
    for database in 1..64 {
        let other = world.client();
        world.send(other, redis(&format!("SELECT {database}")));
        world.expect(other, "+OK\r\n");
    }
    world.send(lane, "*2\r\n+OK\r\n+OK\r\n+OK\r\n");
    world.expect(client, "*2\r\n+OK\r\n+OK\r\n");
    assert!(world.closed.contains(&client));
    // What it asked behind it is for a database that it cannot have.
    world.expect(shared, "");
    // Nobody else suffers.
    let late = world.client();
    world.send(late, all(&["MULTI", "SELECT 99", "EXEC"]));
    let told = String::from_utf8(world.received(late)).unwrap();
    assert!(told.contains("-ERR too many databases are in use"), "{told}");
    assert!(told.contains("-EXECABORT"), "{told}");
    world.send(late, redis("GET a"));
    world.expect(shared, redis("GET a"));
    world.send(shared, "$-1\r\n");
    world.expect(late, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_selection_is_followed_by_who_wants_no_replies() {
    let (mut world, client, shared) = one_server();
    world.send(client, all(&["CLIENT REPLY OFF", "MULTI", "SELECT 5", "SET a 1", "EXEC"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SELECT 5", "SET a 1", "EXEC", "SELECT 0"]));
    for part in ["+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+O", "K\r\n+", "OK\r\n+OK\r\n"] {
        world.send(lane, part);
    }
    world.send(client, redis("CLIENT REPLY ON"));
    world.expect(client, "+OK\r\n");
    assert_database(&mut world, client, shared, 5);
}

#[test]
fn there_is_a_most_of_them() {
    let (mut world, client, _) = one_server();
    let said = all(&["MULTI"]) + &redis("SELECT 1").repeat(1025);
    world.send(client, said);
    world.expect(
        client,
        "+OK\r\n".to_owned()
            + &QUEUED.repeat(1024)
            + "-ERR too many SELECTs in one transaction\r\n",
    );
    world.send(client, redis("EXEC"));
    world.expect(client, "-EXECABORT Transaction discarded because of previous errors.\r\n");
    world.assert_idle();
}

#[test]
fn what_is_held_is_counted_right_when_a_selection_is_long() {
    let (mut world, client, _) = one_server();
    let nonsense = format!("SELECT {}", "x".repeat(5000));
    for _ in 0..3 {
        world.send(client, all(&["MULTI", "GET a", &nonsense, "DISCARD"]));
        let lane = match world.connects_to(0) {
            true => world.accept(0),
            false => *world.lanes[&0].last().unwrap(),
        };
        world.expect(lane, all(&["MULTI", "GET a", &nonsense, "DISCARD"]));
        let refused = "-ERR value is not an integer or out of range\r\n";
        world.send(lane, format!("+OK\r\n{QUEUED}{refused}+OK\r\n"));
        world.expect(client, format!("+OK\r\n{QUEUED}{refused}+OK\r\n"));
        world.assert_idle();
    }
}
