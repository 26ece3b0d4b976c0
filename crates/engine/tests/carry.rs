//! Commands whose keys are on several servers: refused with words that help, or carried over.

use crate::world::{World, pool, redis};
use cashew_engine::{BackendId, CloseReason, ConnId};

const OPTIONS: &str = "redis: true\ntimeout: 400\npreconnect: true";
const PAYLOAD: &str = "$3\r\n\0xy\r\n";

/// `a e i` are keys of the first of the four servers, `b f j` of the second, `c g k` of the third.
fn four_servers(options: &str) -> (World, ConnId, [ConnId; 4]) {
    World::with_client(&pool(&format!("{OPTIONS}\n{options}"), 4))
}

fn carrying() -> (World, ConnId, [ConnId; 4]) {
    four_servers("cross_server_copy: true")
}

#[test]
fn keys_on_several_servers_are_named_with_what_helps() {
    let (mut world, client, lanes) = four_servers("hash_tag: \"{}\"");
    for (request, one, other) in [
        ("RENAME a b", "a", "b"),
        ("MSETNX a 1 e 2 c 3 b 4", "a", "c"),
        ("SINTERSTORE a e b", "a", "b"),
        ("SMOVE b a member", "b", "a"),
        ("COPY a c DB 1", "a", "c"),
        ("ZUNIONSTORE a 2 e b", "a", "b"),
        ("EVAL x 2 a b", "a", "b"),
        ("BITOP AND e b", "e", "b"),
    ] {
        world.send(client, redis(request));
        let name = request.split(' ').next().unwrap();
        world.expect(
            client,
            format!(
                "-CROSSSLOT {name} needs its keys on one server, but '{one}' and '{other}' are on \
                 two: keys with the same part between {{ and }} share a server\r\n"
            ),
        );
    }
    for lane in lanes {
        world.expect(lane, "");
    }
    let (mut world, client, _) = four_servers("");
    world.send(client, redis("RENAMENX a b"));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(
        reply.starts_with("-CROSSSLOT RENAMENX ") && reply.contains("hash_tag: \"{}\""),
        "{reply}"
    );
    world.assert_idle();
}

#[test]
fn keys_of_one_server_are_renamed_there() {
    let (mut world, client, [a, ..]) = carrying();
    for request in ["RENAME a e", "COPY a e REPLACE"] {
        world.send(client, redis(request));
        world.expect(a, redis(request));
        world.send(a, "+OK\r\n");
        world.expect(client, "+OK\r\n");
    }
    world.assert_idle();
}

/// Plays the stages up to the one that is about to be removed; the client has asked `request`.
fn fetched_and_stored(
    world: &mut World,
    [a, b]: [ConnId; 2],
    ttl: &str,
    restore: &str,
    stored: &str,
) {
    world.expect(a, redis("DUMP a") + &redis("PTTL a"));
    world.expect(b, "");
    world.send(a, format!("{PAYLOAD}:{ttl}\r\n"));
    world.expect(a, "");
    world.expect(b, redis(restore).replace("PAYLOAD", "\0xy").replace("$7\r\n\0", "$3\r\n\0"));
    world.send(b, stored);
}

#[test]
fn a_key_is_stored_before_it_is_removed() {
    let (mut world, client, [a, b, ..]) = carrying();
    world.send(client, redis("RENAME a b") + &redis("GET a"));
    fetched_and_stored(&mut world, [a, b], "1500", "RESTORE b 1500 PAYLOAD REPLACE", "+OK\r\n");
    // What follows has not overtaken it.
    world.expect(a, redis("DEL a"));
    world.expect(client, "");
    world.send(a, ":1\r\n");
    world.expect(client, "+OK\r\n");
    world.expect(a, redis("GET a"));
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn each_command_answers_in_its_own_way() {
    let cases = [
        // request, whether what is there is replaced, whether DEL follows, replies
        ("RENAME a b", true, true, "+OK\r\n", "-ERR no such key\r\n"),
        ("RENAMENX a b", false, true, ":1\r\n", "-ERR no such key\r\n"),
        ("COPY a b", false, false, ":1\r\n", ":0\r\n"),
        ("copy a b replace", true, false, ":1\r\n", ":0\r\n"),
    ];
    for (request, replaces, removes, done, nothing) in cases {
        let (mut world, client, [a, b, ..]) = carrying();
        let restore = format!("RESTORE b 0 PAYLOAD{}", if replaces { " REPLACE" } else { "" });
        world.send(client, redis(request));
        fetched_and_stored(&mut world, [a, b], "-1", &restore, "+OK\r\n");
        if removes {
            world.expect(a, redis("DEL a"));
            world.send(a, ":1\r\n");
        }
        world.expect(client, done);

        world.send(client, redis(request));
        world.received(a);
        world.send(a, "$-1\r\n:-2\r\n");
        world.expect(client, nothing);

        world.send(client, redis(request));
        let busy = "-BUSYKEY Target key name already exists.\r\n";
        fetched_and_stored(&mut world, [a, b], "-1", &restore, busy);
        world.expect(client, ":0\r\n");
        world.expect(a, "");
        world.assert_idle();
    }
}

#[test]
fn a_key_stays_where_it_is_if_it_cannot_be_stored() {
    let (mut world, client, [a, b, ..]) = carrying();
    world.send(client, redis("RENAME a b"));
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    fetched_and_stored(&mut world, [a, b], "7", "RESTORE b 7 PAYLOAD REPLACE", oom);
    world.expect(client, oom);
    world.send(client, redis("RENAME a b"));
    fetched_and_stored(&mut world, [a, b], "0", "RESTORE b 1 PAYLOAD REPLACE", "");
    world.close(b, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n");
    world.send(client, redis("RENAME a b"));
    world.received(a);
    world.send(a, format!("{PAYLOAD}:7\r\n"));
    world.expect(client, "-ERR Connection reset by peer\r\n");
    world.expect(a, "");
    world.send(client, redis("RENAME a b"));
    world.send(a, "-NOAUTH no\r\n:-1\r\n");
    world.expect(client, "-NOAUTH no\r\n");
    world.assert_idle();
}

#[test]
fn it_is_said_when_a_key_is_in_both_places() {
    let (mut world, client, [a, b, ..]) = carrying();
    world.send(client, redis("RENAME a b"));
    fetched_and_stored(&mut world, [a, b], "-1", "RESTORE b 0 PAYLOAD REPLACE", "+OK\r\n");
    world.close(a, CloseReason::Reset);
    world.expect(
        client,
        "-ERR the key was copied, but not removed where it was: ERR Connection reset by peer\r\n",
    );
    world.assert_idle();
}

#[test]
fn what_has_been_stored_is_removed_though_its_client_has_left() {
    let (mut world, client, [a, b, ..]) = carrying();
    world.send(client, redis("RENAME a b"));
    world.received(a);
    world.send(a, format!("{PAYLOAD}:-1\r\n"));
    world.close(client, CloseReason::Eof);
    world.received(b);
    world.send(b, "+OK\r\n");
    world.expect(a, redis("DEL a"));
    world.send(a, ":1\r\n");
    world.assert_idle();

    let client = world.client();
    world.send(client, redis("RENAME a b"));
    world.received(a);
    world.close(client, CloseReason::Eof);
    world.send(a, format!("{PAYLOAD}:-1\r\n"));
    world.expect(b, "");
    world.assert_idle();
}

#[test]
fn what_has_not_been_stored_is_not_removed_though_its_client_has_left() {
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    for reply in [&[oom][..], &["-", &oom[1..]], &[]] {
        let (mut world, client, [a, b, ..]) = carrying();
        world.send(client, redis("RENAME a b"));
        fetched_and_stored(&mut world, [a, b], "-1", "RESTORE b 0 PAYLOAD REPLACE", "");
        world.close(client, CloseReason::Eof);
        reply.iter().for_each(|part| world.send(b, part));
        if reply.is_empty() {
            world.close(b, CloseReason::Reset);
        }
        world.expect(a, "");
        world.assert_idle();
    }
}

#[test]
fn nothing_is_removed_by_another_ring() {
    let (mut world, client, [a, b, ..]) = carrying();
    world.send(client, redis("RENAME a b"));
    fetched_and_stored(&mut world, [a, b], "-1", "RESTORE b 0 PAYLOAD REPLACE", "");
    world.engine.handle_release(
        BackendId::new(0),
        1,
        vec![true, true, true, false].into(),
        world.now,
        0,
    );
    world.send(b, "+OK\r\n");
    world.expect(a, "");
    world.expect(
        client,
        "-ERR the key was copied, but not removed where it was: ERR the servers of \
         this pool have changed meanwhile\r\n",
    );
    world.assert_idle();
}

#[test]
fn long_keys_are_counted_as_long_as_they_are_held() {
    let (mut world, client, [a, b, ..]) = four_servers("cross_server_copy: true\nhash_tag: \"{}\"");
    let source = format!("{{a}}{}", "x".repeat(5000));
    world.send(client, redis(&format!("RENAME {source} {{b}}")));
    assert!(world.engine.held_bytes() > 5000, "{}", world.engine.held_bytes());
    world.received(a);
    world.send(a, format!("{PAYLOAD}:-1\r\n"));
    world.received(b);
    world.send(b, "+OK\r\n");
    world.expect(a, redis(&format!("DEL {source}")));
    world.send(a, ":1\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
    assert_eq!(world.engine.held_bytes(), 0);
}
