//! Users whose requests go to another pool or route than others'.

use cashew_config::Snapshot;
use cashew_config::snapshot::{Cluster, ServerGroup, SlotRange, Topology};
use cashew_engine::{Action, Authenticated, BackendId, CloseReason, ConnId, Verdict};

use crate::world::{World, all, redis, snapshot};

/// Two pools of one server each, of which clients of the first come to the second as `ann`, and by a route as
/// `eve`.
fn text(of_ann: &str, more: &str) -> String {
    format!(
        "global: {{worker_processes: 1}}
pools:
  near: {{listen: '127.0.0.1:6000', redis: true, preconnect: true, servers: ['127.0.0.1:7000:1'], hide_topology: true,
    users: {{default: on nopass ~* &* +@all, ann: {{rules: on >p ~* &* +@all{of_ann}}}, bob: on >p ~* &* +@all,
      eve: {{rules: on >p ~* &* +@all, route: by}}}}{more}}}
  other: {{redis: true, preconnect: true, servers: ['127.0.0.1:7001:1'], hide_topology: true}}
  third: {{redis: true, listen: '127.0.0.1:6002', preconnect: true, servers: ['127.0.0.1:7002:1'], hide_topology: true}}
routes:
  by: {{redis: true, listen: '127.0.0.1:6001', route: {{prefix: {{'': other, 'n:': near}}}}}}
"
    )
}

const ANN: &str = ", route: other";

struct Played {
    world: World,
    near: ConnId,
    other: ConnId,
    third: ConnId,
}

fn played(text: &str) -> Played {
    let mut world = World::new(&snapshot(text));
    // In the order of the pools' names.
    let [near, other, third] = std::array::from_fn(|_| world.accept(0));
    Played { world, near, other, third }
}

impl Played {
    fn client(&mut self) -> ConnId {
        let near = self.world.engine.listener_named("near").unwrap();
        self.world.client_of(near.number())
    }

    fn user(&mut self, name: &str) -> ConnId {
        let client = self.client();
        self.world.send(client, redis(&format!("AUTH {name} p")));
        self.world.expect(client, "+OK\r\n");
        client
    }

    /// A request goes there, and its answer comes back.
    #[track_caller]
    fn ask(&mut self, client: ConnId, line: &str, lane: ConnId) {
        self.world.send(client, redis(line));
        self.world.expect(lane, redis(line));
        self.world.send(lane, "$1\r\n1\r\n");
        self.world.expect(client, "$1\r\n1\r\n");
    }

    fn reload(&mut self, text: &str) {
        let next = snapshot(text);
        self.world.prepare(&next);
        self.world.pause(1000);
        self.world.commit(&next);
    }
}

#[test]
fn a_login_sends_requests_elsewhere() {
    let mut it = played(&text(ANN, ""));
    let (near, other) = (it.near, it.other);
    let [ann, bob, nobody] = [it.user("ann"), it.user("bob"), it.client()];
    it.ask(ann, "GET a", other);
    it.ask(bob, "GET a", near);
    it.ask(nobody, "GET a", near);
    // What is not plain, too.
    it.ask(ann, "HGET a b", other);
    it.world.send(ann, redis("DBSIZE"));
    it.world.expect(other, redis("DBSIZE"));
    it.world.send(other, ":3\r\n");
    it.world.expect(ann, ":3\r\n");
    // Back again, by another login and by RESET.
    it.world.send(ann, redis("AUTH bob p"));
    it.world.expect(ann, "+OK\r\n");
    it.ask(ann, "GET a", near);
    it.world.send(ann, redis("AUTH ann p") + &redis("RESET"));
    it.world.expect(ann, "+OK\r\n+RESET\r\n");
    it.ask(ann, "GET a", near);
    it.world.send(bob, redis("HELLO 2 AUTH ann p"));
    assert!(it.world.received(bob).starts_with(b"*14\r\n"));
    it.ask(bob, "GET a", other);
    // Who gives a wrong password stays where it was.
    it.world.send(ann, redis("AUTH ann q"));
    assert!(it.world.received(ann).starts_with(b"-WRONGPASS"));
    it.world.wait_ms(3000);
    it.ask(ann, "GET a", near);
}

#[test]
fn what_is_ahead_of_a_login_is_answered_before_it() {
    let mut it = played(&text(ANN, ""));
    let (near, other) = (it.near, it.other);
    let client = it.client();
    it.world.send(client, all(&["GET a", "SET b 1", "AUTH ann p", "GET c", "AUTH bob p", "GET d"]));
    it.world.expect(near, all(&["GET a", "SET b 1"]));
    it.world.expect(other, "");
    it.world.send(near, "$-1\r\n");
    it.world.expect(other, "");
    it.world.send(near, "+OK\r\n");
    it.world.expect(other, redis("GET c"));
    it.world.expect(near, "");
    it.world.expect(client, "$-1\r\n+OK\r\n+OK\r\n");
    it.world.send(other, "$1\r\nc\r\n");
    it.world.expect(near, redis("GET d"));
    it.world.send(near, "$1\r\nd\r\n");
    it.world.expect(client, "$1\r\nc\r\n+OK\r\n$1\r\nd\r\n");
    assert_eq!(it.world.engine.requests_pending(), 0);
}

#[test]
fn a_users_route_may_be_a_route() {
    let mut it = played(&text(ANN, ""));
    let (near, other) = (it.near, it.other);
    let eve = it.user("eve");
    it.ask(eve, "GET a", other);
    it.ask(eve, "GET n:a", near);
    it.ask(eve, "GET b", other);
    it.world.send(eve, redis("MGET n:a b"));
    it.world.expect(near, redis("MGET n:a"));
    it.world.expect(other, redis("MGET b"));
    it.world.send(other, "*1\r\n$1\r\n2\r\n");
    it.world.send(near, "*1\r\n$1\r\n1\r\n");
    it.world.expect(eve, "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    it.world.send(eve, redis("AUTH bob p"));
    it.world.expect(eve, "+OK\r\n");
    it.ask(eve, "GET b", near);
}

#[test]
fn a_client_without_a_word_may_have_a_route() {
    let of_default = text(ANN, "").replace(
        "default: on nopass ~* &* +@all",
        "default: {rules: on nopass ~* &* +@all, route: third}",
    );
    let mut it = played(&of_default);
    let (near, third) = (it.near, it.third);
    let client = it.client();
    it.ask(client, "GET a", third);
    it.world.send(client, redis("AUTH bob p"));
    it.world.expect(client, "+OK\r\n");
    it.ask(client, "GET a", near);
    it.world.send(client, redis("RESET"));
    it.world.expect(client, "+RESET\r\n");
    it.ask(client, "GET a", third);
}

#[test]
fn a_certificate_sends_requests_elsewhere() {
    let mut it = played(&text(ANN, ""));
    let (near, other) = (it.near, it.other);
    let client = it.client();
    it.world.engine.handle_identified(client, &["ann".to_owned()], it.world.now);
    it.world.tick();
    it.ask(client, "GET a", other);
    let stranger = it.client();
    it.world.engine.handle_identified(stranger, &["zoe".to_owned()], it.world.now);
    it.world.tick();
    it.ask(stranger, "GET a", near);
}

#[test]
fn who_cannot_take_along_what_it_has_stays() {
    let mut it = played(&text(ANN, ""));
    let (near, other) = (it.near, it.other);
    let client = it.client();
    it.world.send(client, redis("WATCH k"));
    let session = it.world.accept(0);
    it.world.expect(session, redis("WATCH k"));
    it.world.send(session, "+OK\r\n");
    it.world.expect(client, "+OK\r\n");
    it.world.send(client, redis("AUTH ann p"));
    let refusal = "-ERR a client with a transaction or WATCH cannot become user 'ann', whose \
                   requests go elsewhere\r\n";
    it.world.expect(client, refusal);
    // As somebody who stays it may log in.
    it.world.send(client, redis("AUTH bob p"));
    it.world.expect(client, "+OK\r\n");
    it.world.send(client, redis("UNWATCH"));
    it.world.expect(session, redis("UNWATCH"));
    it.world.send(session, "+OK\r\n");
    it.world.expect(client, "+OK\r\n");
    it.world.send(client, redis("AUTH ann p"));
    it.world.expect(client, "+OK\r\n");
    it.ask(client, "GET a", other);
    // A database that is not there either.
    let few = text(ANN, "").replace("other: {redis: true,", "other: {redis: true, databases: 2,");
    let mut it = played(&few);
    let client = it.user("bob");
    it.world.send(client, all(&["SELECT 5", "AUTH ann p", "SELECT 0", "AUTH ann p", "SELECT 5"]));
    it.world.expect(
        client,
        "+OK\r\n-ERR a client with this database cannot become user 'ann', whose requests go \
         elsewhere\r\n+OK\r\n+OK\r\n-ERR DB index is out of range\r\n",
    );
    assert!(!it.world.closed.contains(&client) && near.is_lane());
}

#[test]
fn a_transaction_is_where_the_user_is() {
    let mut it = played(&text(ANN, ""));
    let (near, other) = (it.near, it.other);
    let ann = it.user("ann");
    it.world.send(ann, all(&["WATCH a", "MULTI", "SET a 1", "EXEC"]));
    let session = it.world.accept(0);
    let place = it.world.engine.server_of_conn(session);
    assert_eq!(place, it.world.engine.server_of_conn(other));
    it.world.expect(session, all(&["WATCH a", "MULTI", "SET a 1", "EXEC"]));
    it.world.send(session, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    it.world.expect(ann, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    // A login behind a call that blocks waits for its end.
    it.world.send(ann, redis("BLPOP l 0") + &redis("AUTH bob p") + &redis("GET a"));
    let told = String::from_utf8(it.world.received(session)).unwrap();
    assert!(told.ends_with(&redis("BLPOP l 0")), "{told}");
    let is_named = told.contains("CLIENT");
    it.world.expect(near, "");
    let answer = "*2\r\n$1\r\nl\r\n$1\r\n1\r\n";
    it.world.send(session, format!("{}{answer}", if is_named { ":7\r\n" } else { "" }));
    it.world.expect(ann, format!("{answer}+OK\r\n"));
    it.world.expect(near, redis("GET a"));
}

#[test]
fn a_reload_moves_users() {
    let mut it = played(&text("", ""));
    let (near, other, third) = (it.near, it.other, it.third);
    let [ann, bob] = [it.user("ann"), it.user("bob")];
    it.ask(ann, "GET a", near);
    it.reload(&text(ANN, ""));
    it.ask(ann, "GET a", other);
    it.ask(bob, "GET a", near);
    it.reload(&text(", route: third", ""));
    it.ask(ann, "GET a", third);
    it.reload(&text(", route: by", ""));
    it.ask(ann, "GET a", other);
    it.ask(ann, "GET n:a", near);
    it.reload(&text("", ""));
    it.ask(ann, "GET a", near);
    assert_eq!(it.world.closed, []);
}

#[test]
fn what_is_on_its_way_at_a_reload_is_answered_before_what_goes_elsewhere() {
    let mut it = played(&text(ANN, ""));
    let (other, third) = (it.other, it.third);
    let ann = it.user("ann");
    it.world.send(ann, redis("SET a 1"));
    it.world.expect(other, redis("SET a 1"));
    it.reload(&text(", route: third", ""));
    it.world.send(ann, redis("GET a"));
    it.world.expect(third, "");
    it.world.send(other, "+OK\r\n");
    it.world.expect(ann, "+OK\r\n");
    it.world.expect(third, redis("GET a"));
    it.world.send(third, "$-1\r\n");
    it.world.expect(ann, "$-1\r\n");
}

#[test]
fn a_reload_closes_subscribers_whose_channels_are_elsewhere() {
    let mut it = played(&text(ANN, ""));
    let [ann, bob] = [it.user("ann"), it.user("bob")];
    for client in [ann, bob] {
        it.world.send(client, redis("SUBSCRIBE c"));
        let feed = it.world.accept(0);
        let told = String::from_utf8(it.world.received(feed)).unwrap();
        assert!(told.contains("subscribe"), "{told}");
        it.world.send(feed, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        it.world.expect(client, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    }
    it.reload(&text(", route: third", ""));
    assert_eq!(it.world.closed.iter().filter(|&&it| it == ann || it == bob).count(), 1);
    assert!(it.world.closed.contains(&ann));
}

#[test]
fn a_client_that_moves_goes_on_where_its_user_goes() {
    let mut it = played(&text(ANN, ""));
    let ann = it.user("ann");
    it.world.send(ann, redis("SELECT 3") + &redis("AUTH ann p"));
    it.world.expect(ann, "+OK\r\n+OK\r\n");
    it.world.engine.handle_leave(ann, it.world.now);
    it.world.tick();
    assert!(it.world.is_handed_off(ann));
    let left = it.world.engine.export(ann, it.world.now).unwrap();
    let mut there = played(&text(ANN, ""));
    let ann = there.world.adopt(left);
    there.world.send(ann, redis("GET a"));
    let lane = there.world.accept(0);
    there.world.expect(lane, redis("SELECT 3"));
    there.world.send(lane, "+OK\r\n");
    there.world.expect(lane, redis("GET a"));
    there.world.expect(there.near, "");
    there.world.send(lane, "$1\r\n1\r\n");
    there.world.expect(ann, "$1\r\n1\r\n");
    let [near, other, _] = [there.near, there.other, there.third];
    assert!(near != lane && other != lane);
    there.world.send(ann, redis("AUTH bob p") + &redis("SELECT 0"));
    there.world.expect(ann, "+OK\r\n+OK\r\n");
    there.ask(ann, "GET a", near);
}

#[test]
fn a_pool_that_is_held_holds_only_those_who_go_there() {
    let mut it = played(&text(ANN, ""));
    let (near, other) = (it.near, it.other);
    let [ann, bob] = [it.user("ann"), it.user("bob")];
    // Pools stand in the order of their names' lengths.
    let backend = BackendId::new(2);
    it.world.engine.handle_hold(backend, 1, 10_000, it.world.now);
    it.world.tick();
    it.world.send(ann, redis("GET a"));
    it.world.expect(other, "");
    it.ask(bob, "GET a", near);
    it.world.engine.handle_release(backend, 1, vec![true].into(), it.world.now, 0);
    it.world.tick();
    it.world.expect(other, redis("GET a"));
    it.world.send(other, "$1\r\n1\r\n");
    it.world.expect(ann, "$1\r\n1\r\n");
}

#[test]
fn memcached_clients_log_in_to_elsewhere() {
    let mut world = World::new(&snapshot(MEMCACHED));
    let [near, other] = std::array::from_fn(|_| world.accept(0));
    let log_in = |world: &mut World, user: &str| {
        let client = world.client();
        let word = format!("{user} p");
        world.send(client, format!("set x 0 0 {}\r\n{word}\r\nget a\r\n", word.len()));
        world.expect(client, "STORED\r\n");
        client
    };
    let ann = log_in(&mut world, "ann");
    world.expect(other, "get a\r\n");
    let bob = log_in(&mut world, "bob");
    world.expect(near, "get a\r\n");
    world.send(other, "VALUE a 0 1\r\n1\r\nEND\r\n");
    world.expect(ann, "VALUE a 0 1\r\n1\r\nEND\r\n");
    world.send(near, "END\r\n");
    world.expect(bob, "END\r\n");
    // A failure is a miss only where the pool says so.
    for (lane, client, answer) in [(other, ann, "SERVER_ERROR"), (near, bob, "END\r\n")] {
        world.send(client, "get b\r\n");
        world.close(lane, CloseReason::Reset);
        let told = String::from_utf8(world.received(client)).unwrap();
        assert!(told.starts_with(answer), "{told}");
    }
}

#[test]
fn memcached_clients_log_in_to_elsewhere_by_sasl() {
    let mut world = World::new(&snapshot(MEMCACHED));
    let [near, other] = std::array::from_fn(|_| world.accept(0));
    let packet = |opcode: u8, key: &str, value: &str| {
        let mut packet = vec![0x80, opcode, 0, key.len() as u8, 0, 0, 0, 0];
        packet.extend((key.len() as u32 + value.len() as u32).to_be_bytes());
        packet.extend([0; 12]);
        packet.extend([key.as_bytes(), value.as_bytes()].concat());
        packet
    };
    let login = |user: &str| packet(0x21, "PLAIN", &format!("\0{user}\0p"));
    let client = world.client();
    // What is ahead of a login goes where its client went.
    let asked = [login("ann"), packet(0, "a", ""), login("bob"), packet(0, "b", "")].concat();
    world.send(client, asked);
    assert!(world.received(client).ends_with(b"Authenticated"));
    // Lanes that speak the binary protocol.
    for (key, at) in [("a", other), ("b", near)] {
        let lane = world.accept(0);
        assert_eq!(world.engine.server_of_conn(lane), world.engine.server_of_conn(at));
        assert!(!world.connects_to(0));
        assert_eq!(world.received(lane), packet(0, key, ""));
        let mut answer = packet(0, "", "\0\0\0\0\x31");
        (answer[0], answer[4]) = (0x81, 4);
        world.send(lane, &answer);
        assert!(world.received(client).starts_with(&answer));
    }
}

const MEMCACHED: &str = "global: {worker_processes: 1}
pools:
  near: {listen: '127.0.0.1:6000', preconnect: true, servers: ['127.0.0.1:7000:1'], hide_topology: true, on_failure: miss,
    users: {ann: {rules: on >p ~* +@all, route: other}, bob: on >p ~* +@all}}
  other: {preconnect: true, servers: ['127.0.0.1:7001:1'], hide_topology: true}
";

/// The last is known elsewhere: as `app`, whose requests go to the second pool.
fn outside(near: &str, other: &str) -> String {
    let users = "default: off, app: {rules: on ~* &* +@all, route: other}, local: on >p ~* &* +@all, \
                 ann: {rules: on >p ~* &* +@all, route: other}";
    text(ANN, "")
        .lines()
        .map(|line| {
            let line = match line.trim_start() {
                it if it.starts_with("users:") => {
                    format!("    users: {{{users}}}, external_auth: {{url: 'http://a/'}}{near}}}")
                }
                it if it.starts_with("eve:") => return String::new(),
                it if it.starts_with("other:") => {
                    line.replace("redis: true,", &format!("redis: true,{other}"))
                }
                _ => line.to_owned(),
            };
            line + "\n"
        })
        .collect()
}

/// Logs the client in as `app` for so long.
fn log_in_outside(world: &mut World, client: ConnId, expires_in_ms: u64) {
    world.send(client, redis("AUTH zoe word"));
    let asked = world.actions.iter().rev().find_map(|action| match action {
        Action::Authenticate { conn, ticket, .. } => Some((*conn, *ticket)),
        _ => None,
    });
    let (conn, ticket) = asked.expect("it is asked about");
    let verdict = Verdict::User { user: "app".to_owned(), expires_in_ms: Some(expires_in_ms) };
    let answer = Authenticated { conn, ticket, verdict, is_cached: false };
    let now = world.now;
    world.engine.handle_authenticated("near", answer, now);
    world.tick();
    world.expect(client, "+OK\r\n");
}

fn confirmed(channel: &str, count: u32) -> String {
    format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:{count}\r\n", channel.len())
}

fn message(channel: &str) -> String {
    format!("*3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n$1\r\nm\r\n", channel.len())
}

/// Subscribes a client to a channel that nobody has yet; returns the feed of its pool, which is new.
fn subscribe(world: &mut World, client: ConnId, channel: &str) -> ConnId {
    world.send(client, redis(&format!("SUBSCRIBE {channel}")));
    let feed = world.accept(0);
    let told = String::from_utf8(world.received(feed)).unwrap();
    assert!(told.contains("subscribe"), "{told}");
    world.send(feed, confirmed(channel, 1));
    world.received(client);
    feed
}

#[test]
fn a_login_that_ends_takes_subscriptions_from_where_they_are() {
    for is_stuck in [false, true] {
        let mut it = played(&outside("", ""));
        let [client, local] = [it.client(), it.user("local")];
        log_in_outside(&mut it.world, client, 5000);
        let own = subscribe(&mut it.world, local, "x");
        let feed = subscribe(&mut it.world, client, "c");
        if is_stuck {
            it.world.stuck.push(client);
            it.world.send(feed, message("c"));
        }
        it.world.wait_ms(6000);
        assert_eq!(it.world.closed.contains(&client), !is_stuck);
        if is_stuck {
            it.world.stuck.clear();
            it.world.write(client);
            it.world.tick();
            it.world.expect(client, message("c"));
            assert!(it.world.closed.contains(&client));
        }
        let told = String::from_utf8(it.world.received(feed)).unwrap();
        assert!(told.contains("unsubscribe"), "{told}");
        it.world.expect(own, "");
        it.world.send(own, message("x"));
        it.world.expect(local, message("x"));
    }
}

/// Nobody need say who it is, and there are no users.
fn without_users() -> String {
    text(ANN, "")
        .lines()
        .map(|line| match line.trim_start() {
            it if it.starts_with("users:") => "    }\n".to_owned(),
            it if it.starts_with("eve:") => String::new(),
            _ => format!("{line}\n"),
        })
        .collect()
}

fn of_default(route: &str) -> String {
    text(ANN, "").replace(
        "default: on nopass ~* &* +@all",
        &format!("default: {{rules: on nopass ~* &* +@all, route: {route}}}"),
    )
}

#[test]
fn a_reload_that_gives_all_a_user_with_a_route_takes_nothing_along() {
    let mut it = played(&without_users());
    let third = it.third;
    let [listening, watching, plain] = std::array::from_fn(|_| it.client());
    let feed = subscribe(&mut it.world, listening, "c");
    it.world.send(watching, all(&["WATCH k", "MULTI", "SET k 1"]));
    let session = it.world.accept(0);
    it.world.expect(session, all(&["WATCH k", "MULTI", "SET k 1"]));
    it.world.send(session, "+OK\r\n+OK\r\n+QUEUED\r\n");
    it.world.expect(watching, "+OK\r\n+OK\r\n+QUEUED\r\n");
    it.reload(&of_default("third"));
    assert!(it.world.closed.contains(&listening));
    let told = String::from_utf8(it.world.received(feed)).unwrap();
    assert!(told.contains("unsubscribe"), "{told}");
    it.world.expect(session, redis("DISCARD"));
    it.world.send(session, "+OK\r\n");
    it.world.send(watching, all(&["SET k 2", "EXEC"]));
    it.world.expect(watching, "+QUEUED\r\n*-1\r\n");
    it.world.expect(session, "");
    for client in [watching, plain] {
        it.ask(client, "GET a", third);
    }
}

#[test]
fn a_reload_closes_subscribers_of_other_databases_and_dialects_too() {
    for agreed in ["HELLO 3", "SELECT 3"] {
        let mut it = played(&text(ANN, ""));
        let [ann, bob] = [it.user("ann"), it.user("bob")];
        // Somebody stays who has agreed on the same.
        let staying = it.user("eve");
        for client in [ann, bob, staying] {
            it.world.send(client, redis(agreed));
            it.world.received(client);
        }
        subscribe(&mut it.world, ann, "c");
        it.reload(&text(", route: third", ""));
        assert!(it.world.closed.contains(&ann), "{agreed}");
        it.reload(&text(", route: third", ", timeout: 1000"));
        // Nobody's lanes are closed under it, however long it asks nothing.
        it.world.wait_ms(30_000);
        for client in [staying, bob] {
            it.world.send(client, redis("GET a"));
            let lane = it.world.accept(0);
            assert!(!it.world.received(lane).is_empty());
            let greeting =
                if agreed == "HELLO 3" { "%1\r\n$5\r\nproto\r\n:3\r\n" } else { "+OK\r\n" };
            it.world.send(lane, greeting);
            it.world.expect(lane, redis("GET a"));
            it.world.send(lane, "$1\r\n1\r\n");
            it.world.expect(client, "$1\r\n1\r\n");
        }
    }
}

/// Where `other` is a cluster of one node.
fn clustered(text: &str) -> Snapshot {
    let mut snapshot = snapshot(text);
    let pool = snapshot.pools.iter_mut().find(|pool| pool.name == "other").unwrap();
    pool.cluster = Some(Cluster {
        seeds: Vec::new(),
        connections_max: 0,
        slots: vec![vec![SlotRange { first: 0, last: 16383 }]],
        moving: Vec::new(),
        epoch: 1,
        changes: 1,
    });
    let group = ServerGroup { name: "n".to_owned(), weight: 1, primary: 0, replicas: Vec::new() };
    pool.topology = Topology::Groups(vec![group]);
    snapshot
}

#[test]
fn what_was_begun_at_a_cluster_that_a_reload_leaves_is_not_done() {
    for (begun, answers, outcome) in [
        (&["WATCH k"][..], "+OK\r\n", "*-1\r\n"),
        (&["WATCH k", "MULTI", "SET k 1"], "+OK\r\n+OK\r\n+QUEUED\r\n", "*-1\r\n"),
        (
            &["MULTI", "SET k 1"],
            "+OK\r\n+QUEUED\r\n",
            "-EXECABORT Transaction discarded because its keys",
        ),
        (
            &["MULTI", "PING"],
            "+OK\r\n+QUEUED\r\n",
            "-EXECABORT Transaction discarded because its keys",
        ),
    ] {
        let mut world = World::new(&clustered(&text(ANN, "")));
        let [near, other, third] = std::array::from_fn(|_| world.accept(0));
        let mut it = Played { world, near, other, third };
        let ann = it.user("ann");
        it.world.send(ann, all(begun));
        let session = begun[0].starts_with("WATCH").then(|| it.world.accept(0));
        if let Some(session) = session {
            it.world.expect(session, redis("WATCH k"));
            it.world.send(session, "+OK\r\n");
        }
        it.world.expect(ann, answers);
        let next = clustered(&text(", route: third", ""));
        it.world.prepare(&next);
        it.world.pause(1000);
        it.world.commit(&next);
        if begun.len() == 1 {
            it.world.send(ann, redis("MULTI"));
            it.world.expect(ann, "+OK\r\n");
        }
        it.world.send(ann, all(&["SET k 2", "EXEC"]));
        let told = String::from_utf8(it.world.received(ann)).unwrap();
        assert!(told.starts_with(&format!("+QUEUED\r\n{outcome}")), "{begun:?}: {told}");
        if let Some(session) = session {
            it.world.expect(session, redis("UNWATCH"));
        }
        assert!(!it.world.connects_to(0), "nothing is sent");
        it.ask(ann, "GET a", third);
    }
}

#[test]
fn who_waits_for_a_connection_does_so_where_its_user_goes() {
    who_waits_moves(snapshot);
    who_waits_moves(clustered);
}

fn who_waits_moves(snapshot: impl Fn(&str) -> Snapshot) {
    let few = |of_ann: &str| {
        text(of_ann, "")
            .replace("other: {redis: true,", "other: {redis: true, session_connections: 1,")
    };
    let mut world = World::new(&snapshot(&few(ANN)));
    let [near, other, third] = std::array::from_fn(|_| world.accept(0));
    let mut it = Played { world, near, other, third };
    let [holding, waiting, eve] = [it.user("ann"), it.user("ann"), it.user("eve")];
    it.world.send(eve, redis("WATCH a"));
    let session = it.world.accept(0);
    it.world.send(session, "+OK\r\n");
    it.world.expect(eve, "+OK\r\n");
    it.world.received(session);
    for client in [holding, waiting] {
        it.world.send(client, redis("WATCH k"));
        it.world.expect(client, "");
    }
    let next = snapshot(&few(", route: third"));
    it.world.prepare(&next);
    it.world.pause(1000);
    it.world.commit(&next);
    // They have what they waited for where they are.
    for client in [holding, waiting] {
        let lane = it.world.accept(0);
        it.world.expect(lane, redis("WATCH k"));
        it.world.send(lane, "+OK\r\n");
        it.world.expect(client, "+OK\r\n");
    }
    it.world.send(eve, redis("UNWATCH"));
    it.world.expect(session, redis("UNWATCH"));
    it.world.send(session, "+OK\r\n");
    it.world.expect(eve, "+OK\r\n");
    it.world.wait_ms(60_000);
    for client in [holding, waiting, eve] {
        assert!(!it.world.closed.contains(&client));
    }
}

#[test]
fn who_waits_for_a_connection_when_its_login_ends_leaves_the_line() {
    let mut it = played(&outside("", " session_connections: 1,"));
    let [holding, waiting] = [it.user("ann"), it.client()];
    log_in_outside(&mut it.world, waiting, 1000);
    it.world.send(holding, redis("WATCH k"));
    let session = it.world.accept(0);
    it.world.send(session, "+OK\r\n");
    it.world.expect(holding, "+OK\r\n");
    it.world.received(session);
    it.world.send(waiting, redis("WATCH k"));
    it.world.expect(waiting, "");
    it.world.wait_ms(1100);
    it.world.expect(waiting, "-NOAUTH Authentication required.\r\n");
    it.world.close(waiting, CloseReason::Eof);
    let next = it.client();
    it.world.send(holding, redis("UNWATCH"));
    it.world.send(session, "+OK\r\n");
    it.world.expect(holding, "+OK\r\n");
    it.world.send(next, redis("AUTH ann p") + &redis("WATCH k"));
    it.world.expect(session, redis("UNWATCH") + &redis("WATCH k"));
}

#[test]
fn a_login_is_told_whether_its_own_servers_speak_resp3() {
    const NOPROTO: &str = "-NOPROTO unsupported protocol version\r\n";
    let mut it = played(&text(ANN, ""));
    let [ann, bob, zoe] = [it.user("ann"), it.user("bob"), it.user("bob")];
    for client in [ann, zoe] {
        it.world.send(client, redis("HELLO 3"));
        it.world.received(client);
    }
    it.world.send(ann, redis("GET a"));
    let lane = it.world.accept(0);
    it.world.send(lane, "-ERR unknown command 'HELLO'\r\n");
    it.world.expect(ann, NOPROTO);
    // Not there, but where it is.
    it.world.send(bob, redis("HELLO 3 AUTH ann p") + &redis("ACL WHOAMI"));
    it.world.expect(bob, format!("{NOPROTO}$3\r\nbob\r\n"));
    it.world.send(bob, redis("HELLO 3"));
    assert!(it.world.received(bob).starts_with(b"%7\r\n"));
    it.world.send(zoe, redis("AUTH ann p"));
    let refusal =
        "-ERR a client that speaks RESP3 cannot become user 'ann', whose requests go elsewhere\r\n";
    it.world.expect(zoe, refusal);
    // The other way round.
    let ann = it.user("ann");
    it.world.send(ann, redis("HELLO 3 AUTH bob p"));
    assert!(it.world.received(ann).starts_with(b"%7\r\n"));
}

#[test]
fn nobody_has_a_database_that_is_not_there() {
    let few = |of_ann: &str| {
        let text = text(of_ann, "");
        text.replace("third: {redis: true,", "third: {redis: true, databases: 2,")
    };
    let selecting = |it: &mut Played| {
        let [ann, other] = [it.user("ann"), it.user("ann")];
        it.world.send(ann, redis("SELECT 5"));
        it.world.send(other, redis("SELECT 1"));
        [ann, other].iter().for_each(|&client| it.world.expect(client, "+OK\r\n"));
        [ann, other]
    };
    // After a reload.
    let mut it = played(&few(ANN));
    let [ann, other] = selecting(&mut it);
    it.reload(&few(", route: third"));
    assert!(it.world.closed.contains(&ann) && !it.world.closed.contains(&other));
    // Where a route says that there are fewer than its pools have.
    let of_route =
        text(ANN, "").replace("  by: {redis: true,", "  by: {redis: true, databases: 4,");
    let mut by = played(&of_route);
    let [eve, ann] = [by.user("eve"), by.user("ann")];
    for client in [eve, ann] {
        by.world.send(client, all(&["SELECT 3", "SELECT 4"]));
    }
    by.world.expect(eve, "+OK\r\n-ERR DB index is out of range\r\n");
    by.world.expect(ann, "+OK\r\n+OK\r\n");
    // In another process.
    let mut one = played(&few(ANN));
    let ann = selecting(&mut one)[0];
    one.world.engine.handle_leave(ann, one.world.now);
    one.world.tick();
    let left = one.world.engine.export(ann, one.world.now).unwrap();
    let ann = it.world.adopt(left);
    assert!(it.world.closed.contains(&ann));
    // At the end of a login.
    let mut it = played(&outside(", databases: 2", ""));
    let [client, other] = [it.client(), it.client()];
    for (client, database) in [(client, 5), (other, 1)] {
        log_in_outside(&mut it.world, client, 1000);
        it.world.send(client, redis(&format!("SELECT {database}")));
        it.world.expect(client, "+OK\r\n");
    }
    it.world.wait_ms(1100);
    assert!(it.world.closed.contains(&client) && !it.world.closed.contains(&other));
}

#[test]
fn what_clients_ask_of_their_servers_is_answered_of_those() {
    let mut world = World::new(&clustered(&text(ANN, "")));
    let [near, other, third] = std::array::from_fn(|_| world.accept(0));
    let mut it = Played { world, near, other, third };
    let [ann, bob] = [it.user("ann"), it.user("bob")];
    for client in [ann, bob] {
        it.world.send(client, redis("CLUSTER KEYSLOT b"));
    }
    it.world.expect(ann, ":3300\r\n");
    it.world.expect(bob, "-ERR This instance has cluster support disabled\r\n");
    // Who answers reads: the pool with the zone and the replicas is the user's.
    let zoned = "redis: true, zone: z, servers: [{name: g, primary: '127.0.0.1:7001', replicas: ['127.0.0.1:7101']}],";
    let zoned = text(ANN, "")
        .replace("other: {redis: true,", &format!("other: {{{zoned}"))
        .replace("preconnect: true, servers: ['127.0.0.1:7001:1'], hide", "hide");
    let mut world = World::new(&snapshot(&zoned));
    let near = world.engine.listener_named("near").unwrap();
    let ann = world.client_of(near.number());
    world.send(ann, all(&["AUTH ann p", "CLIENT READS zone"]));
    world.expect(ann, "+OK\r\n+OK\r\n");
}
