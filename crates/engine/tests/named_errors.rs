//! Errors name the server that failed, unless the pool hides that.

use crate::world::{World, pool, redis};
use cashew_engine::{CloseReason, ConnId};

const NAMED: &str = "hide_topology: false\npreconnect: true";
const REDIS: &str = "redis: true\nhide_topology: false\npreconnect: true";

#[test]
fn errors_of_redis_begin_with_the_words_and_name_the_server() {
    let (mut world, client, [a, b]): (World, ConnId, [ConnId; 2]) =
        World::with_client(&pool(REDIS, 2));
    // `a` is of the first, `b` of the second.
    world.send(client, redis("GET a") + &redis("GET b"));
    let (first, second) = (world.received(a), world.received(b));
    assert_eq!((first, second), (redis("GET a").into_bytes(), redis("GET b").into_bytes()));
    world.close(b, CloseReason::Reset);
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n-ERR Connection reset by peer (server s1, 127.0.0.1:7001)\r\n");
    // The same of what is not sent at all.
    for request in ["GET b", "MGET b a", "MGET a b"] {
        world.send(client, redis(request));
        world.expect(client, "-ERR Connection reset by peer (server s1, 127.0.0.1:7001)\r\n");
    }
}

#[test]
fn a_lost_transaction_names_the_server() {
    let (mut world, client, [_]): (World, ConnId, [ConnId; 1]) =
        World::with_client(&pool(REDIS, 1));
    world.send(client, redis("MULTI") + &redis("SET a 1"));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n");
    world.received(lane);
    world.close(lane, CloseReason::Eof);
    world.send(client, redis("SET b 2"));
    world.expect(client, "-ERR Server closed the connection (server s0, 127.0.0.1:7000)\r\n");
}

#[test]
fn errors_of_memcached_name_the_server_in_text_and_in_packets() {
    let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
        World::with_client(&pool(NAMED, 1));
    let named = "Connection reset by peer (server s0, 127.0.0.1:7000)";
    world.send(client, "get a\r\nset a 0 0 1\r\nx\r\n");
    world.received(lane);
    world.close(lane, CloseReason::Reset);
    world.expect(client, format!("SERVER_ERROR {named}\r\n").repeat(2));
    let packet = world.client();
    let mut get = vec![0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4];
    get.extend([0; 8]);
    get.push(b'a');
    world.send(packet, &get);
    let lane = world.accept(0);
    world.received(lane);
    world.close(lane, CloseReason::Reset);
    let said = world.received(packet);
    assert_eq!((said[0], said[7], &said[12..16]), (0x81, 0x86, &[1, 2, 3, 4][..]));
    assert_eq!(&said[24..], named.as_bytes());
}

#[test]
fn a_pool_may_hide_its_servers() {
    for (protocol, request, error) in [
        ("redis: true\n", redis("GET a"), "-ERR Connection refused\r\n"),
        ("", "get a\r\n".to_owned(), "SERVER_ERROR Connection refused\r\n"),
    ] {
        let snapshot = pool(&format!("{protocol}hide_topology: true\npreconnect: true"), 1);
        let mut world = World::new(&snapshot);
        let client = world.client();
        world.send(client, request);
        world.refuse(0);
        world.expect(client, error);
    }
}

const HIDDEN: &str = "redis: true\nhide_topology: true\npreconnect: true\n";

/// Nothing of a pool's servers, which are called `sN` and listen at 127.0.0.1:700N.
#[track_caller]
fn tells_no_server(reply: &[u8]) -> String {
    let reply = String::from_utf8(reply.to_vec()).unwrap();
    let names = ["s0", "s1", "s2", "127.0", "700"];
    assert!(!names.iter().any(|name| reply.contains(name)), "{reply}");
    reply
}

#[test]
fn a_pool_that_hides_its_servers_names_none_in_any_reply() {
    let (mut world, client, [a, b]): (World, ConnId, [ConnId; 2]) =
        World::with_client(&pool(HIDDEN, 2));
    // Each answers for itself, by its number.
    world.send(client, redis("MEMORY DOCTOR"));
    world.send(a, "+fine\r\n");
    world.send(b, "+fine\r\n");
    let reply = tells_no_server(&world.received(client));
    assert!(reply.contains("$7\r\nserver0\r\n+fine\r\n$7\r\nserver1\r\n+fine\r\n"), "{reply}");
    world.send(client, redis("INFO cashew"));
    let reply = tells_no_server(&world.received(client));
    assert!(reply.contains("server1:name=server1,state=up\r\n"), "{reply}");
    // By that name it is asked, and by no other; but not for what tells where it is.
    for lane in [a, b] {
        world.received(lane);
    }
    world.send(client, redis("SLOWLOG LEN server:server1"));
    world.expect(b, redis("SLOWLOG LEN"));
    world.send(b, ":7\r\n");
    world.expect(client, ":7\r\n");
    world.send(client, redis("SLOWLOG LEN server:s1") + &redis("INFO all server:server1"));
    world.expect(
        client,
        "-ERR this pool has no server 's1'\r\n-ERR this pool hides where its servers are: INFO is of all of \
         them together\r\n",
    );
    // A transaction is at one server.
    world.send(client, redis("MULTI") + &redis("SET a 1") + &redis("SET b 1"));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    let reply = tells_no_server(&world.received(client));
    assert!(
        reply.contains(
            "-CROSSSLOT SET 'b' is for another server than the transaction: with hash_tag"
        ),
        "{reply}"
    );
}

#[test]
fn a_pool_that_hides_its_servers_leaves_their_addresses_out_of_info() {
    let info =
        "# Replication\r\nrole:master\r\nconnected_slaves:1\r\nslave0:ip=127.0.0.1,port=7009\r\n";
    let reply = format!("${}\r\n{info}\r\n", info.len());
    for servers in [1, 2] {
        let snapshot = pool(HIDDEN, servers);
        let mut world = World::new(&snapshot);
        let lanes: Vec<ConnId> = (0..servers as u32).map(|server| world.accept(server)).collect();
        let client = world.client();
        world.send(client, redis("INFO replication"));
        for &lane in &lanes {
            world.expect(lane, redis("INFO replication"));
            world.send(lane, &reply);
        }
        let told = tells_no_server(&world.received(client));
        assert!(told.contains("role:master\r\nconnected_slaves:"), "{told}");
    }
}

#[test]
fn a_pool_of_memcached_that_hides_its_servers_names_none_in_its_statistics() {
    let (mut world, client, [a, b]): (World, ConnId, [ConnId; 2]) =
        World::with_client(&pool("hide_topology: true\npreconnect: true", 2));
    for (asked, told, kept) in [
        ("stats servers", "STAT pid 1\r\n", "STAT server1:pid 1\r\n"),
        (
            "stats conns",
            "STAT 1:addr tcp:127.0.0.1:7000\r\nSTAT 1:state x\r\n",
            "STAT server0:1:state x\r\n",
        ),
        (
            "stats settings",
            "STAT tcpport 7000\r\nSTAT inter 127.0.0.1\r\nSTAT verbosity 0\r\n",
            "STAT verbosity 0\r\n",
        ),
    ] {
        world.send(client, format!("{asked}\r\n"));
        for lane in [a, b] {
            world.received(lane);
            world.send(lane, format!("{told}END\r\n"));
        }
        let reply = tells_no_server(&world.received(client));
        assert!(reply.contains(kept), "{reply}");
    }
    world.send(client, "stats\r\n");
    world.received(b);
    world.close(b, CloseReason::Reset);
    world.send(a, "STAT pid 1\r\nEND\r\n");
    let reply = tells_no_server(&world.received(client));
    assert!(
        reply.contains("STAT server1:error SERVER_ERROR Connection reset by peer\r\n"),
        "{reply}"
    );
}

#[test]
fn a_server_whose_place_another_has_taken_was_replaced_not_removed() {
    let (mut world, client, [_, b]): (World, ConnId, [ConnId; 2]) =
        World::with_client(&pool(REDIS, 2));
    world.send(client, redis("GET b"));
    world.received(b);
    let mut next = pool(REDIS, 2);
    next.epoch += 1;
    next.pools[0].servers[1].endpoint =
        cashew_config::snapshot::Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 7009 };
    world.prepare(&next);
    world.pause(0);
    world.commit(&next);
    world.expect(client, "-ERR Server was replaced by another (server s1, 127.0.0.1:7001)\r\n");
    world.send(client, redis("GET b"));
    world.refuse(1);
    world.expect(client, "-ERR Connection refused (server s1, 127.0.0.1:7009)\r\n");
    let mut last = pool(REDIS, 1);
    last.epoch = next.epoch + 1;
    world.send(client, redis("GET b"));
    world.prepare(&last);
    world.pause(0);
    world.commit(&last);
    let said = String::from_utf8(world.received(client)).unwrap();
    assert!(said.contains("(server s1, 127.0.0.1:7009)"), "{said}");
}
