//! Who may do what: `command_policy`, what clients may do to each other, HTTP, wrong passwords.

use crate::world::{World, pool, redis};
use cashew_engine::{Action, ConnId, ListenerId, Notice};
use cashew_metrics::PoolCounter;

fn all(lines: &[&str]) -> String {
    lines.iter().map(|line| redis(line)).collect()
}

fn one_server(options: &str) -> (World, ConnId, ConnId) {
    let options = format!("preconnect: true\n{options}");
    let (mut world, [lane]) = World::connected(&pool(&options, 1));
    if options.contains("redis_auth") {
        world.expect(lane, redis("AUTH secret"));
        world.send(lane, "+OK\r\n");
    }
    let client = world.client();
    (world, client, lane)
}

fn ask(world: &mut World, client: ConnId, line: &str) -> String {
    world.send(client, redis(line));
    String::from_utf8(world.received(client)).unwrap()
}

fn count(world: &World, counter: PoolCounter) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), counter)
}

fn refused(name: &str) -> String {
    format!("-NOPERM this gateway does not let clients call {name}; see command_policy\r\n")
}

fn notices(world: &World) -> Vec<(Notice, u64)> {
    let notice = |action: &Action| match action {
        Action::Notice { notice, times, .. } => Some((*notice, *times)),
        _ => None,
    };
    world.actions.iter().filter_map(notice).collect()
}

#[test]
fn what_administers_is_refused_and_what_uses_is_not() {
    let (mut world, client, lane) = one_server("redis: true");
    for (line, name) in [
        ("CONFIG SET a b", "CONFIG|SET"),
        ("config rewrite", "CONFIG|REWRITE"),
        ("SAVE", "SAVE"),
        ("DEBUG SLEEP 1", "DEBUG"),
        ("DEBUG OBJECT a", "DEBUG|OBJECT"),
        ("CLIENT PAUSE 1", "CLIENT|PAUSE"),
        ("MIGRATE h 1 k 0 5", "MIGRATE"),
    ] {
        assert_eq!(ask(&mut world, client, line), refused(name));
    }
    world.expect(lane, "");
    assert_eq!(count(&world, PoolCounter::CommandsRefused), 7);
    // One line for all of them.
    assert_eq!(notices(&world), [(Notice::Refused { command: "config|set" }, 1)]);
    world.wait_ms(10_000);
    assert_eq!(ask(&mut world, client, "SAVE"), refused("SAVE"));
    assert_eq!(notices(&world)[1], (Notice::Refused { command: "save" }, 7));
    for line in ["CONFIG GET maxmemory", "FLUSHALL", "SCRIPT FLUSH", "KEYS *"] {
        world.send(client, redis(line));
        assert_eq!(world.received(client), b"", "{line}");
    }
    // The gateway has its own words for what it does for nobody.
    let reply = ask(&mut world, client, "SHUTDOWN");
    assert!(!reply.contains("command_policy"), "{reply}");
}

#[test]
fn plain_commands_are_refused_on_the_fast_path_as_well() {
    let options = "redis: true\ncommand_policy: {base: admin, deny: [GET, '@list']}";
    let (mut world, client, lane) = one_server(options);
    world.send(client, all(&["STRLEN a", "GET a", "SET a 1", "get a", "LPUSH l 1", "STRLEN b"]));
    world.expect(lane, all(&["STRLEN a", "SET a 1", "STRLEN b"]));
    world.send(lane, ":0\r\n+OK\r\n:0\r\n");
    let [get, push] = ["GET", "LPUSH"].map(refused);
    world.expect(client, format!(":0\r\n{get}+OK\r\n{get}{push}:0\r\n"));
    // A value that would be passed on while it arrives.
    let options = "redis: true\ncommand_policy: {deny: [SET]}";
    let (mut world, client, lane) = one_server(options);
    let size = 3 << 20;
    world.send(client, format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${size}\r\n"));
    world.send(client, "x".repeat(size) + "\r\n" + &redis("GET a"));
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(client, refused("SET") + "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_refused_command_spoils_its_transaction() {
    let (mut world, client, _) = one_server("redis: true");
    world.send(client, all(&["MULTI", "CONFIG SET a b", "EXEC"]));
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    world.expect(client, format!("+OK\r\n{}{aborted}", refused("CONFIG|SET")));
    world.assert_idle();
}

#[test]
fn who_is_nobody_yet_is_told_so_first() {
    let (mut world, client, _) = one_server("redis: true\nredis_auth: secret");
    let reply = ask(&mut world, client, "CONFIG SET a b");
    assert_eq!(reply, "-NOAUTH Authentication required.\r\n");
    assert_eq!(count(&world, PoolCounter::CommandsRefused), 0);
}

#[test]
fn another_epoch_has_its_own_policy() {
    let snapshot =
        |policy: &str| pool(&format!("redis: true\npreconnect: true\ncommand_policy: {policy}"), 1);
    let (mut world, [lane]) = World::connected(&snapshot("admin"));
    let client = world.client();
    world.send(client, redis("GET a"));
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    let next = snapshot("{deny: [GET]}");
    world.prepare(&next);
    world.pause(100);
    world.commit(&next);
    assert_eq!(ask(&mut world, client, "GET a"), refused("GET"));
}

#[test]
fn memcached_has_its_own() {
    let (mut world, client, lane) = one_server("");
    let no = |name: &str| {
        format!(
            "CLIENT_ERROR this gateway does not let clients call {name}; see command_policy\r\n"
        )
    };
    for (line, name) in [
        ("slabs automove 0", "slabs"),
        ("cache_memlimit 64", "cache_memlimit"),
        ("verbosity 1", "verbosity"),
        ("stats reset", "stats reset"),
        ("stats sizes_enable", "stats sizes_enable"),
        ("lru mode flat", "lru"),
    ] {
        world.send(client, format!("{line}\r\n"));
        world.expect(client, no(name));
    }
    world.send(client, "verbosity 1 noreply\r\nflush_all\r\n");
    world.expect(lane, "flush_all\r\n");
    world.send(lane, "OK\r\n");
    world.expect(client, "OK\r\n");
    assert_eq!(count(&world, PoolCounter::CommandsRefused), 7);
    let (mut world, client, lane) = one_server("command_policy: {base: cache, allow: [slabs]}");
    world.send(client, "flush_all\r\nslabs automove 0\r\n");
    world.expect(lane, "slabs automove 0\r\nversion\r\n");
    world.send(lane, "OK\r\nVERSION 1.6.18\r\n");
    world.expect(client, no("flush_all") + "OK\r\n");
}

#[test]
fn memcached_is_told_so_in_packets() {
    let (mut world, client, _) = one_server("protocol: binary");
    let packet = |opcode: u8, key: &[u8]| {
        let mut packet =
            vec![0x80, opcode, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8];
        packet.extend([7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend_from_slice(key);
        packet
    };
    world.send(client, packet(0x10, b"reset"));
    let reply = world.received(client);
    assert_eq!(
        (reply[0], reply[1], &reply[6..8], &reply[12..16]),
        (0x81, 0x10, &[0, 0x81][..], &[7; 4][..])
    );
    let text = String::from_utf8_lossy(&reply[24..]);
    assert_eq!(text, "this gateway does not let clients call stats reset; see command_policy");
}

#[test]
fn a_client_may_close_itself_and_nobody_else() {
    const NO: &str = "-NOPERM this gateway does not let clients close the connections of others; \
                      see command_policy\r\n";
    let (mut world, client, _) = one_server("redis: true");
    let other = world.client();
    let addr = format!("10.0.0.1:{}", other.token());
    for line in [
        "CLIENT KILL ID 2",
        "CLIENT KILL ID 77",
        "CLIENT KILL TYPE normal",
        "CLIENT KILL TYPE pubsub SKIPME no",
        "CLIENT KILL MAXAGE 1 SKIPME yes",
        &format!("CLIENT KILL {addr}"),
        &format!("CLIENT KILL ADDR {addr}"),
        &format!("CLIENT KILL ADDR {addr} SKIPME no"),
    ] {
        assert_eq!(ask(&mut world, client, line), NO, "{line}");
    }
    assert!(world.closed.is_empty());
    let addr = format!("10.0.0.1:{}", client.token());
    world.send(client, redis(&format!("CLIENT KILL {addr}")));
    world.expect(client, "+OK\r\n");
    let one_more = world.client();
    world.send(one_more, redis("CLIENT KILL ID 3 SKIPME no"));
    world.expect(one_more, ":1\r\n");
    assert_eq!(world.closed, [client, one_more]);
    // What another worker's clients want is no more than that.
    assert_eq!(world.answer(0, 99, redis("CLIENT KILL ID 2").as_bytes()), b"");
    assert_eq!(world.closed.len(), 2);
    let (mut world, client, _) = one_server("redis: true\ncommand_policy: {allow: [CLIENT|KILL]}");
    world.client();
    assert_eq!(ask(&mut world, client, "CLIENT KILL ID 2"), ":1\r\n");
}

#[test]
fn calls_are_ended_from_the_same_host_or_by_an_administrator() {
    let blocked = |options: &str| {
        let (mut world, client, _) = one_server(options);
        let stranger = world.client();
        world.elsewhere.push(stranger);
        let waiting = world.client();
        world.send(waiting, redis("BLPOP a 0"));
        let lane = world.accept(0);
        world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
        world.send(lane, ":5\r\n");
        (world, client, stranger, waiting)
    };
    let (mut world, client, stranger, _) = blocked("redis: true");
    assert_eq!(ask(&mut world, stranger, "CLIENT UNBLOCK 3"), ":0\r\n");
    assert_eq!(world.answer(0, 99, redis("CLIENT UNBLOCK 3").as_bytes()), b"");
    let from = |host: &str| redis(&format!("CLIENT UNBLOCK 3 TIMEOUT {host}"));
    assert_eq!(world.answer(0, 99, from("10.0.0.7").as_bytes()), b"");
    // Only another worker says so.
    assert!(ask(&mut world, stranger, "CLIENT UNBLOCK 3 TIMEOUT 10.0.0.1").starts_with("-ERR"));
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 3"), ":1\r\n");
    let (mut world, ..) = blocked("redis: true");
    assert_eq!(world.answer(0, 99, from("10.0.0.1").as_bytes()), b"1");
    for options in
        ["redis: true\ncommand_policy: admin", "redis: true\ncommand_policy: {allow: [client]}"]
    {
        let (mut world, _, stranger, _) = blocked(options);
        assert_eq!(ask(&mut world, stranger, "CLIENT UNBLOCK 3"), ":1\r\n");
    }
}

#[test]
fn pauses_are_bounded() {
    let options = "redis: true\ncommand_policy: admin\nclient_pause_max: 500";
    let (mut world, client, _) = one_server(options);
    let error = "-ERR timeout is longer than the 500 ms that this gateway holds clients back at \
                 most; see client_pause_max\r\n";
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 501"), error);
    world.send(client, all(&["MULTI", "CLIENT PAUSE 501 WRITE", "EXEC"]));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.contains(error) && reply.contains("EXECABORT"), "{reply}");
    assert_eq!(world.engine.client_pause(ListenerId::new(0)), None);
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 500"), "+OK\r\n");
}

#[test]
fn a_pause_of_everything_can_be_ended() {
    let options = "redis: true\ncommand_policy: admin\nredis_auth: secret";
    let (mut world, client, lane) = one_server(options);
    assert_eq!(ask(&mut world, client, "AUTH secret"), "+OK\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 60000"), "+OK\r\n");
    world.send(client, redis("GET a"));
    let late = world.client();
    assert!(ask(&mut world, late, "CLIENT UNPAUSE").starts_with("-NOAUTH"));
    assert_eq!(ask(&mut world, late, "AUTH secret"), "+OK\r\n");
    assert!(ask(&mut world, late, "HELLO 2 SETNAME me").starts_with("*14"));
    assert_eq!(ask(&mut world, late, "CLIENT SETINFO lib-name x"), "+OK\r\n");
    world.expect(client, "");
    world.expect(lane, "");
    // However it is cut.
    let text = redis("CLIENT UNPAUSE");
    world.send(late, &text[..9]);
    world.expect(late, "");
    world.send(late, text[9..].to_owned() + &redis("PING"));
    world.expect(late, "+OK\r\n+PONG\r\n");
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
}

#[test]
fn http_closes_the_connection() {
    for options in ["redis: true", "redis: true\nredis_auth: secret"] {
        for text in [
            "POST / HTTP/1.1\r\nHost: a\r\n\r\nSET a 1\r\n".to_owned(),
            "Host: a\r\nSET a 1\r\n".to_owned(),
            redis("post x") + &redis("SET a 1"),
        ] {
            let (mut world, client, lane) = one_server(options);
            if options.contains("auth") {
                assert_eq!(ask(&mut world, client, "AUTH secret"), "+OK\r\n");
            }
            world.send(client, text);
            world.expect(client, "");
            world.expect(lane, "");
            assert_eq!(world.closed, [client]);
            assert_eq!(count(&world, PoolCounter::ClientErr), 1);
            assert_eq!(notices(&world), [(Notice::Http, 1)]);
        }
    }
}

#[test]
fn who_guesses_passwords_waits_and_nobody_else() {
    let (mut world, client, _) = one_server("redis: true\nredis_auth: secret");
    const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    world.send(
        client,
        redis("AUTH a").repeat(6) + &redis("HELLO 3 AUTH default b") + &redis("AUTH secret"),
    );
    world.expect(client, WRONG.repeat(4));
    let other = world.client();
    assert_eq!(ask(&mut world, other, "AUTH secret"), "+OK\r\n");
    for wait_ms in [100, 200, 400] {
        world.wait_ms(wait_ms - 10);
        world.expect(client, "");
        world.wait_ms(10);
        world.expect(client, WRONG);
    }
    world.wait_ms(790);
    world.expect(client, "");
    world.wait_ms(10);
    world.expect(client, "+OK\r\n");
    assert_eq!(count(&world, PoolCounter::AuthFailures), 7);
    assert_eq!(notices(&world), [(Notice::WrongPassword, 1)]);
    // One who goes meanwhile leaves nothing behind.
    world.send(other, redis("AUTH a").repeat(5));
    world.close(other, cashew_engine::CloseReason::Eof);
    world.wait_ms(1000);
    world.assert_idle();
}

#[test]
fn guessing_by_memcacheds_protocols_waits_as_well() {
    let (mut world, client, _) = one_server("client_auth: user:word");
    let try_it = |password: &str| {
        let text = format!("user {password}");
        format!("set auth 0 0 {}\r\n{text}\r\n", text.len())
    };
    world.send(client, try_it("a").repeat(5) + &try_it("word"));
    let wrong = "CLIENT_ERROR authentication failure\r\n";
    world.expect(client, wrong.repeat(4));
    world.wait_ms(100);
    world.expect(client, wrong);
    world.wait_ms(200);
    world.expect(client, "STORED\r\n");
    assert_eq!(count(&world, PoolCounter::AuthFailures), 5);
}

#[test]
fn what_a_user_may_not_do_is_refused_in_its_turn() {
    let rules =
        "redis: true\nusers: {default: on nopass ~a* +@all -incr, ann: on >one ~* &* +@all}";
    let (mut world, client, lane) = one_server(rules);
    let denied =
        "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
    world.send(client, all(&["GET a", "GET b", "INCR a", "AUTH ann one", "GET b", "INCR a"]));
    world.expect(lane, all(&["GET a", "GET b", "INCR a"]));
    world.send(lane, "$-1\r\n$1\r\n1\r\n:1\r\n");
    let incr = "-NOPERM this user has no permissions to run the 'incr' command\r\n";
    world.expect(client, format!("$-1\r\n{denied}{incr}+OK\r\n$1\r\n1\r\n:1\r\n"));
    assert_eq!(count(&world, PoolCounter::CommandsRefused), 2);
    assert_eq!(ask(&mut world, client, "RESET"), "+RESET\r\n");
    assert_eq!(ask(&mut world, client, "GET b"), denied);
    assert_eq!(ask(&mut world, client, "AUTH ann two"), WRONG_PASSWORD);
    assert_eq!(ask(&mut world, client, "ACL WHOAMI"), "$7\r\ndefault\r\n");
    let nobody = "-ERR No such user 'nobody'\r\n";
    assert_eq!(ask(&mut world, client, "CLIENT KILL USER nobody"), nobody);
    // A large one is decided about when all of it is there.
    let large = "x".repeat(2 << 20);
    assert_eq!(ask(&mut world, client, &format!("SET b {large}")), denied);
    world.expect(lane, "");
}

const WRONG_PASSWORD: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
