//! What clients ask about each other, over all workers: CLIENT LIST, KILL, PAUSE and UNBLOCK.

use crate::world::{World, pool, redis};
use cashew_engine::{BackendId, ConnId, Export, Rest};

const OPTIONS: &str = "redis: true\ncommand_policy: admin\nclient_pause_max: 100000\n\
                       hash_tag: \"{}\"\ntimeout: 400\npreconnect: true\nclient_output_pause: 1048576";

fn all(lines: &[&str]) -> String {
    lines.iter().map(|line| redis(line)).collect()
}

fn one_server() -> (World, ConnId, ConnId) {
    let (mut world, [lane]) = World::connected(&pool(OPTIONS, 1));
    let client = world.client();
    (world, client, lane)
}

fn ask(world: &mut World, client: ConnId, line: &str) -> String {
    world.send(client, redis(line));
    String::from_utf8(world.received(client)).unwrap()
}

/// The lines of CLIENT LIST.
fn list(world: &mut World, client: ConnId, line: &str) -> Vec<String> {
    lines_of(&ask(world, client, line))
}

fn lines_of(reply: &str) -> Vec<String> {
    let (header, text) = reply.split_once("\r\n").unwrap();
    assert_eq!(header, format!("${}", text.len() - 2), "{reply}");
    text.trim_end().lines().map(str::to_owned).collect()
}

#[track_caller]
fn assert_has(line: &str, fields: &[&str]) {
    for field in fields {
        assert!(line.split(' ').any(|part| part == *field), "{field}: {line}");
    }
}

fn ids(lines: &[String]) -> Vec<&str> {
    lines.iter().map(|line| line.split(' ').next().unwrap().strip_prefix("id=").unwrap()).collect()
}

#[test]
fn a_line_tells_what_is_known_of_a_client() {
    let (mut world, client, lane) = one_server();
    assert_eq!(ask(&mut world, client, "CLIENT SETNAME me"), "+OK\r\n");
    let other = world.client();
    world.send(other, all(&["MULTI", "PING", "PING"]));
    world.received(other);
    world.wait_ms(3_500);
    let blocked = world.client();
    world.send(blocked, redis("BLPOP a 0"));
    let session = world.accept(0);
    world.expect(session, all(&["CLIENT ID", "BLPOP a 0"]));
    let lines = list(&mut world, client, "CLIENT LIST");
    assert_eq!(ids(&lines), ["1", "2", "3"]);
    let addr = format!("addr=10.0.0.1:{}", client.token());
    assert_has(&lines[0], &[&addr, "laddr=10.0.0.2:6000", "fd=42", "name=me", "flags=N"]);
    assert_has(&lines[0], &["age=3", "idle=0", "cmd=client|list", "user=default", "multi=-1"]);
    assert_has(&lines[1], &["age=3", "idle=3", "flags=x", "multi=2", "resp=2", "events=r"]);
    assert_has(&lines[2], &["age=0", "idle=0", "flags=b", "sub=0", "db=0", "redir=-1"]);
    // All have the same fields, which are Redis's in its order.
    let names = |line: &str| -> Vec<String> {
        line.split(' ').map(|field| field.split('=').next().unwrap().to_owned()).collect()
    };
    let expected = "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free \
                    argv-mem multi-mem rbs rbp obl oll omem tot-mem events cmd user redir resp \
                    lib-name lib-ver tot-net-in tot-net-out tot-cmds tot-errors slowest-us";
    for line in &lines {
        assert_eq!(names(line), expected.split_whitespace().collect::<Vec<_>>());
    }
    assert_eq!(ids(&list(&mut world, client, "CLIENT LIST ID 3 1 99")), ["1", "3"]);
    assert_eq!(ids(&list(&mut world, client, "CLIENT LIST ID 3 3 99 1 3")), ["1", "3"]);
    assert_eq!(ids(&list(&mut world, client, "CLIENT LIST TYPE normal")), ["1", "2", "3"]);
    for nobody in ["CLIENT LIST TYPE pubsub", "CLIENT LIST TYPE master", "CLIENT LIST ID 99"] {
        assert_eq!(ask(&mut world, client, nobody), "$0\r\n\r\n");
    }
    assert!(ask(&mut world, client, "CLIENT LIST TYPE x").starts_with("-ERR Unknown client type"));
    let info = ask(&mut world, client, "CLIENT INFO");
    assert_eq!(ids(&lines_of(&info)), ["1"]);
    world.send(client, redis("HELLO 3"));
    world.received(client);
    let verbatim = ask(&mut world, client, "CLIENT LIST ID 1");
    assert!(verbatim.starts_with('=') && verbatim.contains("\r\ntxt:id=1 "), "{verbatim}");
    world.expect(lane, "");
}

#[test]
fn a_subscriber_is_told_of_as_one() {
    let (mut world, client, _) = one_server();
    let subscriber = world.client();
    world.send(subscriber, redis("SUBSCRIBE a"));
    let feed = world.accept(0);
    world.expect(feed, redis("subscribe a"));
    let confirmed = "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n";
    world.send(feed, confirmed);
    world.expect(subscriber, confirmed);
    world.send(subscriber, redis("PSUBSCRIBE a*"));
    world.expect(feed, redis("psubscribe a*"));
    world.send(feed, "*3\r\n$10\r\npsubscribe\r\n$2\r\na*\r\n:2\r\n");
    let lines = list(&mut world, client, "CLIENT LIST TYPE pubsub");
    assert_eq!(ids(&lines), ["2"]);
    assert_has(&lines[0], &["flags=P", "sub=1", "psub=1", "ssub=0"]);
    assert_eq!(ask(&mut world, client, "CLIENT KILL TYPE normal"), ":0\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT KILL TYPE pubsub"), ":1\r\n");
    assert!(world.closed.contains(&subscriber));
}

#[test]
fn all_workers_are_asked_and_what_follows_waits() {
    let (mut world, client, lane) = one_server();
    world.has_others = true;
    world.send(client, all(&["GET a", "CLIENT LIST", "GET b"]));
    // What comes first is answered first.
    assert!(!world.actions.iter().any(|action| format!("{action:?}").starts_with("Ask")));
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    let (ticket, by, question) = world.question();
    assert_eq!((by, &question[..]), (1, redis("CLIENT LIST").as_bytes()));
    world.answered(ticket, b"id=900 addr=x\nid=1 twice\n", Rest::Awaited);
    world.answered(ticket + 1, b"id=901 of nobody's question\n", Rest::None);
    world.expect(client, "");
    world.expect(lane, "");
    world.answered(ticket, b"id=7 addr=y\n", Rest::None);
    let lines = lines_of(&String::from_utf8(world.received(client)).unwrap());
    assert_eq!(ids(&lines), ["1", "7", "900"]);
    world.expect(lane, redis("GET b"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn who_does_not_answer_makes_an_error_in_time() {
    let (mut world, client, _) = one_server();
    world.has_others = true;
    for line in ["CLIENT LIST", "CLIENT KILL ID 77", "CLIENT PAUSE 1 WRITE", "CLIENT UNBLOCK 77"] {
        world.send(client, redis(line));
        let (ticket, ..) = world.question();
        world.answered(ticket, b"", Rest::Missing);
        let reply = String::from_utf8(world.received(client)).unwrap();
        assert!(reply.starts_with("-ERR not all worker processes"), "{line}: {reply}");
    }
    // Nor does whoever was to say so.
    world.send(client, redis("CLIENT LIST"));
    world.wait_ms(2_000);
    world.expect(client, "");
    world.wait_ms(3_000);
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.starts_with("-ERR not all worker processes"), "{reply}");
    // A client that goes is not waited for.
    world.send(client, redis("CLIENT LIST"));
    let (ticket, ..) = world.question();
    world.read_closed(client);
    world.close(client, cashew_engine::CloseReason::Eof);
    world.answered(ticket, b"id=2\n", Rest::None);
    world.assert_idle();
}

#[test]
fn others_are_killed_by_what_is_known_of_them() {
    let (mut world, client, _) = one_server();
    let clients: Vec<ConnId> = (0..6).map(|_| world.client()).collect();
    let addr = format!("10.0.0.1:{}", clients[0].token());
    assert_eq!(ask(&mut world, client, &format!("CLIENT KILL {addr}")), "+OK\r\n");
    assert_eq!(world.closed, clients[..1]);
    assert_eq!(ask(&mut world, client, &format!("CLIENT KILL {addr}")), "-ERR No such client\r\n");
    let addr = format!("10.0.0.1:{}", clients[1].token());
    assert_eq!(ask(&mut world, client, &format!("CLIENT KILL ADDR {addr} ID 2")), ":0\r\n");
    assert_eq!(ask(&mut world, client, &format!("CLIENT KILL ADDR {addr} ID 3")), ":1\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT KILL ID 4"), ":1\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT KILL LADDR 10.0.0.9:1"), ":0\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT KILL MAXAGE 2"), ":0\r\n");
    world.wait_ms(2_500);
    let young = world.client();
    assert_eq!(world.closed, clients[..3]);
    assert_eq!(ask(&mut world, client, "CLIENT KILL MAXAGE 2"), ":3\r\n");
    assert_eq!(world.closed, clients);
    assert_eq!(ask(&mut world, client, "CLIENT KILL LADDR 10.0.0.2:6000 USER default"), ":1\r\n");
    assert!(world.closed.contains(&young));
    // Not who asks, unless that is asked for.
    assert_eq!(ask(&mut world, client, "CLIENT KILL TYPE normal"), ":0\r\n");
    world.send(client, all(&["CLIENT KILL TYPE normal SKIPME no", "PING"]));
    world.expect(client, ":1\r\n");
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn a_question_of_another_worker_concerns_its_pool_only() {
    let both = crate::world::snapshot(
        "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  command_policy: admin\n  servers:\n   - 127.0.0.1:7000:1\n\
         q:\n  listen: 127.0.0.1:6001\n  redis: true\n  servers:\n   - 127.0.0.1:7000:1\n",
    );
    let mut world = World::new(&both);
    let (one, other) = (world.client_of(0), world.client_of(1));
    let count = |text: Vec<u8>| String::from_utf8(text).unwrap().lines().count();
    assert_eq!(count(world.answer(0, 99, redis("CLIENT LIST").as_bytes())), 1);
    assert_eq!(world.answer(1, 99, redis("CLIENT KILL ID 1").as_bytes()), b"");
    assert_eq!(world.answer(0, 99, redis("CLIENT KILL ID 1").as_bytes()), b"1");
    assert_eq!(world.closed, [one]);
    world.answer(0, 99, redis("CLIENT PAUSE 1000").as_bytes());
    world.send(other, redis("PING"));
    world.expect(other, "+PONG\r\n");
    // What is no question is none.
    for nonsense in ["GET a", "CLIENT KILL FOO bar", "CLIENT ID"] {
        assert_eq!(world.answer(0, 99, redis(nonsense).as_bytes()), b"");
    }
    assert_eq!(world.answer(0, 99, b"*1\r\n$"), b"");
}

#[test]
fn a_pause_of_everything_holds_everything_back() {
    let (mut world, client, lane) = one_server();
    let other = world.client();
    world.send(other, redis("GET a"));
    world.expect(lane, redis("GET a"));
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 2000"), "+OK\r\n");
    // What was asked before is answered.
    world.send(lane, "$-1\r\n");
    world.expect(other, "$-1\r\n");
    world.send(other, all(&["GET a", "PING"]));
    world.send(client, redis("ECHO a"));
    let late = world.client();
    world.send(late, redis("PING"));
    world.wait_ms(1_500);
    world.expect(lane, "");
    for client in [client, other, late] {
        world.expect(client, "");
    }
    world.wait_ms(600);
    world.expect(late, "+PONG\r\n");
    world.expect(client, "$1\r\na\r\n");
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(other, "$-1\r\n+PONG\r\n");
    world.assert_idle();
}

#[test]
fn a_pause_of_writes_lets_reads_pass() {
    let (mut world, client, lane) = one_server();
    let [writer, reader, script] = std::array::from_fn(|_| world.client());
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    world.send(writer, all(&["GET a", "SET a 1", "GET a"]));
    world.send(script, redis("EVAL x 1 a"));
    world.send(reader, all(&["GET b", "EVAL_RO x 1 a", "PING"]));
    let late = world.client();
    world.send(late, redis("PFCOUNT a"));
    world.expect(lane, all(&["GET a", "GET b", "EVAL_RO x 1 a"]));
    world.send(lane, "$1\r\na\r\n$1\r\nb\r\n:3\r\n");
    world.expect(writer, "$1\r\na\r\n");
    world.expect(reader, "$1\r\nb\r\n:3\r\n+PONG\r\n");
    let lines = list(&mut world, client, "CLIENT LIST");
    let blocked = lines.iter().filter(|line| line.contains(" flags=b "));
    assert_eq!(ids(&blocked.cloned().collect::<Vec<_>>()), ["2", "4", "5"]);
    // Who is held back is not blocked at a server.
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 2"), ":0\r\n");
    // However long that takes nobody is told of a timeout; who goes has asked for nothing.
    world.wait_ms(10_000);
    world.read_closed(script);
    assert!(world.closed.contains(&script));
    world.expect(lane, "");
    assert_eq!(ask(&mut world, client, "CLIENT UNPAUSE"), "+OK\r\n");
    world.expect(lane, all(&["SET a 1", "GET a", "PFCOUNT a"]));
    world.send(lane, "+OK\r\n$1\r\n1\r\n:0\r\n");
    world.expect(writer, "+OK\r\n$1\r\n1\r\n");
    world.expect(late, ":0\r\n");
    world.assert_idle();
}

#[test]
fn scripts_that_say_that_they_write_nothing_pass_a_pause_of_writes() {
    let (mut world, client, shared) = one_server();
    let text = "#!lua flags=no-writes\nreturn 1";
    let sha = sha1_smol::Sha1::from(text).digest().to_string();
    let eval = format!("*4\r\n$4\r\nEVAL\r\n${}\r\n{text}\r\n$1\r\n1\r\n$1\r\na\r\n", text.len());
    let call = redis(&format!("EVALSHA {sha} 1 a"));
    let [early, reader, queueing, writer] = std::array::from_fn(|_| world.client());
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    // What it is that this hash names is not known here.
    world.send(early, &call);
    world.expect(shared, "");
    world.send(reader, &eval);
    world.expect(shared, &eval);
    world.send(shared, ":1\r\n");
    world.send(reader, &call);
    world.expect(shared, &call);
    world.send(shared, ":1\r\n");
    world.expect(reader, ":1\r\n:1\r\n");
    world.send(queueing, redis("MULTI") + &eval + &call + &redis("EXEC"));
    let lane = world.accept(0);
    world.expect(lane, redis("MULTI") + &eval + &call + &redis("EXEC"));
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:1\r\n");
    world.expect(queueing, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:1\r\n");
    world.send(writer, redis("EVAL #!lua 1 a"));
    world.expect(shared, "");
    assert_eq!(ask(&mut world, client, "CLIENT UNPAUSE"), "+OK\r\n");
    world.expect(shared, call + &redis("EVAL #!lua 1 a"));
}

#[test]
fn pauses_add_up_to_the_longer_and_the_stricter() {
    let (mut world, client, lane) = one_server();
    let writer = world.client();
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 3000 WRITE"), "+OK\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 1000 WRITE"), "+OK\r\n");
    world.send(writer, redis("SET a 1"));
    world.wait_ms(2_000);
    world.expect(lane, "");
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 10 ALL"), "+OK\r\n");
    world.send(client, redis("PING"));
    world.wait_ms(900);
    world.expect(client, "");
    world.wait_ms(200);
    world.expect(client, "+PONG\r\n");
    world.expect(lane, redis("SET a 1"));
    world.send(lane, "+OK\r\n");
    world.expect(writer, "+OK\r\n");
    // 0 milliseconds are none.
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 0"), "+OK\r\n");
    assert_eq!(ask(&mut world, client, "PING"), "+PONG\r\n");
    world.assert_idle();
}

#[test]
fn transactions_that_write_wait_for_the_end_of_a_pause() {
    let (mut world, client, shared) = one_server();
    let [writer, reader, both] = std::array::from_fn(|_| world.client());
    world.send(writer, all(&["MULTI", "SET a 1"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SET a 1"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.expect(writer, "+OK\r\n+QUEUED\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    world.send(writer, redis("EXEC"));
    world.expect(lane, "");
    world.send(reader, all(&["MULTI", "GET a", "EXEC"]));
    let other = world.accept(0);
    world.expect(other, all(&["MULTI", "GET a", "EXEC"]));
    world.send(other, "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
    world.expect(reader, "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
    world.send(both, all(&["MULTI", "GET a", "SET a 1", "EXEC"]));
    world.expect(other, all(&["MULTI", "GET a"]));
    world.send(other, "+OK\r\n+QUEUED\r\n");
    world.expect(both, "+OK\r\n+QUEUED\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT UNPAUSE"), "+OK\r\n");
    world.expect(lane, redis("EXEC"));
    world.send(lane, "*1\r\n+OK\r\n");
    world.expect(writer, "*1\r\n+OK\r\n");
    world.expect(other, all(&["SET a 1", "EXEC"]));
    world.send(other, "+QUEUED\r\n*2\r\n$1\r\n1\r\n+OK\r\n");
    world.expect(both, "+QUEUED\r\n*2\r\n$1\r\n1\r\n+OK\r\n");
    world.expect(shared, "");
    // In a transaction there is no asking about clients.
    world.send(client, all(&["MULTI", "CLIENT LIST", "EXEC"]));
    let said = String::from_utf8(world.received(client)).unwrap();
    assert!(said.contains("-ERR CLIENT LIST is answered by this gateway"), "{said}");
    assert!(said.contains("-EXECABORT"), "{said}");
    world.assert_idle();
}

#[test]
fn uploads_and_calls_that_wait_are_writes_too() {
    let (mut world, client, shared) = one_server();
    let [upload, pop] = std::array::from_fn(|_| world.client());
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    let value = "v".repeat(2 << 20);
    let request = redis(&format!("SET a {value}"));
    world.send(upload, &request[..1 << 18]);
    world.send(pop, redis("BLPOP a 0"));
    assert!(!world.connects_to(0));
    world.expect(shared, "");
    assert_eq!(ask(&mut world, client, "CLIENT UNPAUSE"), "+OK\r\n");
    assert!(world.connects_to(0));
    let lanes = [world.accept(0), world.accept(0)];
    let mut received: Vec<Vec<u8>> = lanes.iter().map(|&lane| world.received(lane)).collect();
    received.sort_by_key(Vec::len);
    assert_eq!(received[0], all(&["CLIENT ID", "BLPOP a 0"]).as_bytes());
    assert_eq!(received[1], &request.as_bytes()[..1 << 18]);
}

#[test]
fn who_is_held_back_may_go_to_another_worker() {
    let (mut world, client, lane) = one_server();
    let writer = world.client();
    assert_eq!(ask(&mut world, client, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    world.send(writer, redis("SET a 1"));
    world.engine.handle_leave(writer, world.now);
    world.tick();
    assert!(world.is_handed_off(writer));
    let Export { listener, parts, input, output } = world.engine.export(writer, world.now).unwrap();
    assert_eq!((&input[..], &output[..]), (redis("SET a 1").as_bytes(), &b""[..]));
    // There is a pause there as well.
    let back = world.engine.handle_adopted(listener, parts, input, output, world.now);
    world.tick();
    world.expect(lane, "");
    assert_eq!(ask(&mut world, client, "CLIENT UNPAUSE"), "+OK\r\n");
    world.expect(lane, redis("SET a 1"));
    world.send(lane, "+OK\r\n");
    world.expect(back, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_blocked_call_is_ended_at_its_server() {
    let (mut world, client, shared) = one_server();
    let waiting = world.client();
    world.send(waiting, redis("BLPOP a 0"));
    let lane = world.accept(0);
    world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
    // Its name is not known yet.
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 2 ERROR"), ":1\r\n");
    world.expect(shared, "");
    world.send(lane, ":77\r\n");
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(shared, ":1\r\n");
    world.send(lane, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    world.expect(waiting, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 2"), ":0\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 99"), ":0\r\n");
    world.send(waiting, redis("BLPOP a 0"));
    let lane = world.accept(0);
    world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
    world.send(lane, ":78\r\n");
    assert_eq!(world.answer(0, 99, redis("CLIENT UNBLOCK 2 TIMEOUT").as_bytes()), b"1");
    world.expect(shared, redis("CLIENT UNBLOCK 78 ERROR"));
    world.send(shared, ":1\r\n");
    world.send(lane, UNBLOCKED);
    world.expect(waiting, "*-1\r\n");
    world.assert_idle();
}

#[test]
fn a_wait_for_replicas_of_several_servers_ends_with_the_one_it_is_at() {
    let (mut world, [shared, _]) = World::connected(&pool(OPTIONS, 2));
    let (client, waiting) = (world.client(), world.client());
    world.send(waiting, redis("WAIT 1 0"));
    let lane = world.accept(0);
    world.received(lane);
    // What goes ahead is answered: PING, SPUBLISH, CLIENT ID.
    world.send(lane, "+PONG\r\n:0\r\n:77\r\n");
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 2"), ":1\r\n");
    world.expect(shared, redis("CLIENT UNBLOCK 77 TIMEOUT"));
    world.send(shared, ":1\r\n");
    world.send(lane, ":0\r\n");
    world.expect(waiting, ":0\r\n");
    assert!(!world.connects_to(1));
}

const UNBLOCKED: &str = "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

/// A pool with one connection for calls that wait, which a client has, and two more clients: who
/// asks, and 3.
fn taken(servers: usize) -> (World, ConnId, ConnId, ConnId) {
    let options = format!("{OPTIONS}\nsession_connections: 1");
    let mut world = World::connected::<1>(&pool(&options, servers)).0;
    let [holder, client, waiting] = [(); 3].map(|()| world.client());
    world.send(holder, redis("BLPOP a 0"));
    let lane = world.accept(0);
    world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
    world.send(lane, ":77\r\n");
    (world, client, waiting, lane)
}

#[test]
fn a_call_that_waits_for_a_lane_is_ended_here() {
    let nil = "*-1\r\n";
    for (call, time_over) in [
        (redis("BLPOP a 0"), nil),
        (redis("BLMOVE a c LEFT RIGHT 0"), nil),
        (redis("XREAD BLOCK 0 STREAMS a $"), nil),
        ("BZPOPMIN a 0\r\n".to_owned(), nil),
        (redis("WAIT 1 0"), ":0\r\n"),
        (redis("WAITAOF 1 1 0"), "*2\r\n:0\r\n:0\r\n"),
    ] {
        for (how, answer) in [("TIMEOUT", time_over), ("ERROR", UNBLOCKED)] {
            let (mut world, client, waiting, lane) = taken(1);
            world.send(waiting, call.clone() + &redis("PING"));
            let unblock = format!("CLIENT UNBLOCK 3 {how}");
            assert_eq!(ask(&mut world, client, &unblock), ":1\r\n", "{call}");
            world.expect(waiting, format!("{answer}+PONG\r\n"));
            assert_eq!(ask(&mut world, client, &unblock), ":0\r\n");
            world.expect(lane, "");
            // The next one waits as ever.
            world.send(waiting, redis("BLPOP c 0"));
            world.expect(waiting, "");
            world.send(lane, "*2\r\n$1\r\na\r\n$1\r\n1\r\n");
            world.expect(lane, redis("BLPOP c 0"));
            world.send(lane, "*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
            world.expect(waiting, "*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
        }
    }
    let (mut world, client, waiting, _) = taken(1);
    world.send(waiting, redis("HELLO 3"));
    world.received(waiting);
    world.send(waiting, redis("BLPOP a 0"));
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 3"), ":1\r\n");
    world.expect(waiting, "_\r\n");
    // By the name that clients have for it, and by no other.
    let renames = "session_connections: 1\ncommand_policy: {base: admin, rename: {BLPOP: hold}}";
    let options = OPTIONS.replace("command_policy: admin", renames);
    let mut world = World::connected::<1>(&pool(&options, 1)).0;
    let [holder, client, waiting] = [(); 3].map(|()| world.client());
    world.send(holder, redis("HOLD a 0"));
    world.accept(0);
    world.send(waiting, redis("HOLD a 0"));
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 3"), ":1\r\n");
    world.expect(waiting, nil);
    // What waits for a lane and is no call that waits is not ended, as in Redis.
    for lines in [&["WATCH a"][..], &["MULTI", "SET a 1"], &["MULTI", "BLPOP a 0"]] {
        let (mut world, client, waiting, _) = taken(1);
        world.send(waiting, all(lines));
        world.received(waiting);
        assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 3"), ":0\r\n", "{lines:?}");
        world.expect(waiting, "");
    }
}

#[test]
fn a_call_whose_connection_is_being_made_is_ended_here() {
    let (mut world, client, shared) = one_server();
    let waiting = world.client();
    world.send(waiting, redis("BLPOP a 0"));
    assert!(world.connects_to(0));
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 2"), ":1\r\n");
    world.expect(waiting, "*-1\r\n");
    world.expect(shared, "");
    assert!(!world.connects_to(0));
    world.assert_idle();
}

/// The servers of a pool that is held: their ring is about to change.
fn hold(world: &mut World) {
    world.engine.handle_hold(BackendId::new(0), 1, 60_000, world.now);
    world.tick();
}

fn release(world: &mut World) {
    world.engine.handle_release(BackendId::new(0), 1, vec![true].into(), world.now, 0);
    world.tick();
}

#[test]
fn a_call_that_was_ended_is_not_asked_anew_after_a_change() {
    for (how, answer) in [("TIMEOUT", "*-1\r\n"), ("ERROR", UNBLOCKED)] {
        let unblock = format!("CLIENT UNBLOCK 2 {how}");
        let blocked = || {
            let (mut world, client, shared) = one_server();
            let waiting = world.client();
            world.send(waiting, redis("BLPOP a 0"));
            let lane = world.accept(0);
            world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
            (world, client, waiting, shared, lane)
        };
        // Just before the change.
        let (mut world, client, waiting, shared, lane) = blocked();
        world.send(lane, ":77\r\n");
        assert_eq!(ask(&mut world, client, &unblock), ":1\r\n");
        hold(&mut world);
        world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
        world.send(shared, ":1\r\n");
        world.send(lane, UNBLOCKED);
        world.expect(waiting, answer);
        release(&mut world);
        assert!(!world.connects_to(0));
        world.assert_idle();
        // Before the server has said what to call the connection.
        let (mut world, client, waiting, shared, lane) = blocked();
        assert_eq!(ask(&mut world, client, &unblock), ":1\r\n");
        hold(&mut world);
        world.send(lane, ":77\r\n");
        world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
        world.send(shared, ":1\r\n");
        world.send(lane, UNBLOCKED);
        world.expect(waiting, answer);
        release(&mut world);
        world.assert_idle();
        // The server does not answer in time.
        let (mut world, client, waiting, shared, lane) = blocked();
        world.send(lane, ":77\r\n");
        assert_eq!(ask(&mut world, client, &unblock), ":1\r\n");
        hold(&mut world);
        world.received(shared);
        release(&mut world);
        world.send(lane, UNBLOCKED);
        world.expect(waiting, answer);
        assert!(!world.connects_to(0));
    }
}

/// Nobody can ask in the same pool while it is held, but at another worker.
#[test]
fn a_call_that_is_to_be_asked_anew_is_ended_instead() {
    for (how, answer) in [("TIMEOUT", "*-1\r\n"), ("ERROR", UNBLOCKED)] {
        let unblock = redis(&format!("CLIENT UNBLOCK 2 {how}"));
        for is_put_back in [false, true] {
            let (mut world, _, shared) = one_server();
            let waiting = world.client();
            world.send(waiting, redis("BLPOP a 0"));
            let lane = world.accept(0);
            world.send(lane, ":77\r\n");
            hold(&mut world);
            world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
            world.send(shared, ":1\r\n");
            if is_put_back {
                world.send(lane, UNBLOCKED);
            }
            assert_eq!(world.answer(0, 99, unblock.as_bytes()), b"1");
            assert_eq!(world.answer(0, 99, unblock.as_bytes()), b"");
            if !is_put_back {
                world.send(lane, UNBLOCKED);
            }
            // It is not to be asked by another worker, either.
            world.engine.handle_leave(waiting, world.now);
            world.tick();
            assert!(!world.is_handed_off(waiting));
            release(&mut world);
            world.expect(waiting, answer);
            assert!(!world.connects_to(0));
            world.tick();
            assert!(world.is_handed_off(waiting));
        }
    }
}

/// What is known so far is the answer of a call that asks one server after the other.
#[test]
fn a_wait_for_replicas_of_several_servers_ends_while_it_waits_for_a_lane() {
    let options = format!("{OPTIONS}\nsession_connections: 1");
    let mut world = World::connected::<2>(&pool(&options, 2)).0;
    let [holder, client, waiting] = [(); 3].map(|()| world.client());
    // The second server's.
    world.send(holder, redis("BLPOP b 0"));
    let taken = world.accept(1);
    world.received(taken);
    world.send(waiting, redis("WAIT 1 0"));
    let lane = world.accept(0);
    world.received(lane);
    world.send(lane, "+PONG\r\n:0\r\n:77\r\n:3\r\n");
    world.expect(waiting, "");
    assert_eq!(ask(&mut world, client, "CLIENT UNBLOCK 3"), ":1\r\n");
    world.expect(waiting, ":3\r\n");
    world.expect(taken, "");
}
