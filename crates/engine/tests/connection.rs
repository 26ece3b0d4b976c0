//! What a client says about its own connection.

use crate::world::{World, pool, redis};
use cashew_engine::{CloseReason, ConnId, Export, Profile, Silence};

const PLAIN: &str = "redis: true\ncommand_policy: admin\npreconnect: true";
const MIB: usize = 1 << 20;

fn ask(world: &mut World, client: ConnId, request: &str) -> String {
    world.send(client, redis(request));
    String::from_utf8(world.received(client)).unwrap()
}

fn export(world: &mut World, conn: ConnId) -> Export {
    world.engine.handle_leave(conn, world.now);
    world.tick();
    world.engine.export(conn, world.now).expect("it is at rest")
}

#[test]
fn names_are_kept_and_told_in_the_clients_own_version() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let client = world.client();
    for (request, reply) in [
        ("CLIENT ID", ":1\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("CLIENT SETNAME me", "+OK\r\n"),
        ("CLIENT GETNAME", "$2\r\nme\r\n"),
        ("CLIENT SETINFO lib-name redis-py", "+OK\r\n"),
        ("CLIENT SETINFO LIB-VER 5.0", "+OK\r\n"),
        ("CLIENT SETINFO lib-size 3", "-ERR Unrecognized option 'lib-size'\r\n"),
        (
            "CLIENT SETINFO lib-name \u{e9}",
            "-ERR lib-name cannot contain spaces, newlines or special characters.\r\n",
        ),
        (
            "CLIENT SETNAME \u{e9}",
            "-ERR Client names cannot contain spaces, newlines or special characters.\r\n",
        ),
        ("CLIENT GETREDIR", ":-1\r\n"),
        (
            "CLIENT TRACKINGINFO",
            "*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n",
        ),
        ("CLIENT TRACKING OFF", "+OK\r\n"),
        ("CLIENT TRACKING maybe", "-ERR syntax error\r\n"),
        ("CLIENT NO-EVICT on", "+OK\r\n"),
        ("CLIENT NO-EVICT maybe", "-ERR syntax error\r\n"),
    ] {
        assert_eq!(ask(&mut world, client, request), reply, "{request}");
    }
    let refused = ask(&mut world, client, "CLIENT TRACKING ON");
    assert!(refused.starts_with("-ERR CLIENT TRACKING needs RESP3"), "{refused}");
    let refused = ask(&mut world, client, "CLIENT CACHING YES");
    assert!(refused.starts_with("-ERR CLIENT CACHING can be called only when"), "{refused}");
    world.wait_ms(12_345);
    let info = ask(&mut world, client, "CLIENT INFO");
    let (header, line) = info.split_once("\r\n").unwrap();
    assert_eq!(header, format!("${}", line.len() - 2));
    for field in [
        "id=1",
        "name=me",
        "age=12",
        "idle=0",
        "flags=e",
        "db=0",
        "resp=2",
        "lib-name=redis-py",
        "lib-ver=5.0",
        "cmd=client|info",
        "user=default",
        "redir=-1",
    ] {
        assert!(line.trim_end().split(' ').any(|part| part == field), "{field}: {line}");
    }
    world.send(client, redis("HELLO 3") + &redis("SELECT 5") + &redis("CLIENT SETNAME "));
    world.received(client);
    let info = ask(&mut world, client, "CLIENT INFO");
    assert!(info.starts_with('=') && info.contains("\r\ntxt:id=1 "), "{info}");
    assert!(info.contains(" db=5 ") && info.contains(" resp=3 ") && info.contains(" name= "));
    assert_eq!(
        ask(&mut world, client, "CLIENT TRACKINGINFO"),
        "%3\r\n$5\r\nflags\r\n~1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n"
    );
    assert_eq!(ask(&mut world, client, "CLIENT GETNAME"), "_\r\n");
    assert_eq!(ask(&mut world, client, "RESET"), "+RESET\r\n");
    let info = ask(&mut world, client, "CLIENT INFO");
    assert!(info.contains(" flags=N db=0 ") && info.contains(" resp=2 lib-name=redis-py "));
    world.close(client, CloseReason::Eof);
    world.assert_idle();
}

#[test]
fn with_reply_off_nothing_is_answered_whatever_it_is() {
    let (mut world, [a, b]): (World, [ConnId; 2]) = World::connected(&pool(PLAIN, 2));
    let client = world.client();
    let asked = [
        "GET a",
        "CLIENT REPLY OFF",
        "GET a",
        "MGET a b c d",
        "PING",
        "NOPE",
        "GET",
        "SELECT 0",
        "CLIENT REPLY SKIP",
        "GET a",
        "CLIENT REPLY maybe",
        "CLIENT REPLY ON",
        "ECHO x",
        "CLIENT REPLY OFF",
        "CLIENT REPLY ON",
    ];
    world.send(client, asked.map(redis).concat());
    let mut gets = 0;
    for lane in [a, b] {
        let asked = String::from_utf8(world.received(lane)).unwrap();
        gets += asked.matches(&redis("GET a")).count();
        let keys: usize = ["b", "c", "d"]
            .map(|key| asked.matches(&format!("\r\n{key}\r\n")).count())
            .iter()
            .sum();
        let fragment_of_a = asked.contains("MGET\r\n$1\r\na");
        for _ in 0..asked.matches(&redis("GET a")).count().min(2) {
            world.send(lane, "$1\r\n1\r\n");
        }
        let count = keys + usize::from(fragment_of_a);
        world.send(lane, format!("*{count}\r\n{}", "$-1\r\n".repeat(count)));
        if asked.matches(&redis("GET a")).count() == 3 {
            world.send(lane, "-ERR last\r\n");
        }
    }
    assert_eq!(gets, 3);
    world.expect(client, "$1\r\n1\r\n+OK\r\n$1\r\nx\r\n+OK\r\n");
    world.assert_idle();
}

#[test]
fn with_reply_skip_the_next_one_is_not_answered() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let client = world.client();
    let asked = [
        "CLIENT REPLY SKIP",
        "GET a",
        "GET b",
        "CLIENT REPLY SKIP",
        "CLIENT REPLY SKIP",
        "NOPE",
        "CLIENT REPLY SKIP",
        "CLIENT REPLY ON",
        "PING",
    ];
    world.send(client, asked.map(redis).concat());
    world.expect(lane, redis("GET a") + &redis("GET b"));
    world.send(lane, "$1\r\na\r\n$1\r\nb\r\n");
    world.expect(client, "$1\r\nb\r\n+OK\r\n+PONG\r\n");
    // A failure is an answer, too, and so is that of a large request that is passed on.
    world.send(client, redis("CLIENT REPLY SKIP") + &redis("GET a") + &redis("GET b"));
    world.close(lane, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n");
    world.wait_ms(20);
    let lane = world.accept(0);
    let value = "x".repeat(2 * MIB);
    let set = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n{value}\r\n", value.len());
    world.send(client, redis("CLIENT REPLY SKIP"));
    world.send(client, &set[..MIB / 2]);
    let upload = world.accept(0);
    world.send(client, &set[MIB / 2..]);
    world.send(client, redis("GET b"));
    assert_eq!(world.received(upload).len(), set.len());
    world.send(upload, "+OK\r\n");
    world.expect(lane, redis("GET b"));
    world.send(lane, "$1\r\nb\r\n");
    world.expect(client, "$1\r\nb\r\n");
    // Large replies as well.
    world.send(client, redis("CLIENT REPLY SKIP") + &redis("GET c") + &redis("GET b"));
    world.received(lane);
    let large = format!("${}\r\n{value}\r\n", value.len());
    for piece in large.as_bytes().chunks(60_000) {
        world.send(lane, piece);
    }
    world.send(lane, "$1\r\nb\r\n");
    world.expect(client, "$1\r\nb\r\n");
    world.assert_idle();
}

#[test]
fn quit_and_broken_requests_end_silent_connections_silently() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    for last in [redis("QUIT"), "*1\r\n$x\r\n".to_owned()] {
        let client = world.client();
        world.send(client, redis("CLIENT REPLY OFF") + &redis("PING") + &last);
        world.expect(client, "");
        assert!(world.closed.contains(&client));
    }
    world.assert_idle();
}

#[test]
fn all_that_was_agreed_moves_with_the_client() {
    let (mut one, [_]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let (mut two, [plain]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let client = one.client();
    let agreed =
        ["HELLO 3 SETNAME me", "SELECT 5", "CLIENT SETINFO lib-name l", "CLIENT NO-EVICT ON"];
    one.send(client, agreed.map(redis).concat());
    one.wait_ms(2_000);
    let moved = export(&mut one, client);
    assert_eq!(moved.parts.database, Some(5));
    assert_eq!(moved.parts.silence, Silence::None);
    let profile = Profile { name: b"me".to_vec(), library: b"l".to_vec(), ..Profile::default() };
    assert_eq!(moved.parts.profile, profile);
    let client = two.adopt(moved);
    two.received(client);
    let info = ask(&mut two, client, "CLIENT INFO");
    for field in [" name=me ", " age=2 ", " flags=e db=5 ", " resp=3 lib-name=l "] {
        assert!(info.contains(field), "{field}: {info}");
    }
    two.send(client, redis("GET a"));
    let lane = two.accept(0);
    two.expect(lane, redis("HELLO 3") + &redis("SELECT 5"));
    two.send(lane, "%0\r\n+OK\r\n");
    two.expect(lane, redis("GET a"));
    two.expect(plain, "");
    two.send(lane, "_\r\n");
    two.expect(client, "_\r\n");
    one.assert_idle();
    two.close(client, CloseReason::Eof);
    two.assert_idle();
}

#[test]
fn so_does_what_is_not_to_be_answered() {
    let (mut one, [_]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    let (mut two, [_]): (World, [ConnId; 1]) = World::connected(&pool(PLAIN, 1));
    for (mode, silence, answered) in [
        ("ON", Silence::None, "+PONG\r\n+PONG\r\n+OK\r\n+PONG\r\n"),
        ("SKIP", Silence::Next, "+PONG\r\n+OK\r\n+PONG\r\n"),
        ("OFF", Silence::All, "+OK\r\n+PONG\r\n"),
    ] {
        let client = one.client();
        one.send(client, redis(&format!("CLIENT REPLY {mode}")));
        let moved = export(&mut one, client);
        assert_eq!(moved.parts.silence, silence);
        let client = two.adopt(moved);
        two.received(client);
        two.send(client, ["PING", "PING", "CLIENT REPLY ON", "PING"].map(redis).concat());
        two.expect(client, answered);
    }
    two.assert_idle();
}
