//! Clients who are known elsewhere: what waits for the answer, and when it is over.

use crate::world::{World, all, pool, redis};
use cashew_engine::{Action, Authenticated, CloseReason, ConnId, Verdict};
use cashew_metrics::{PoolCounter, PoolGauge};

const USERS: &str = "users: {default: off, app: on ~* &* +@all, local: on >here ~* &* +@all}\nexternal_auth: {url: http://a/}\ncommand_policy: admin";
const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";
const NO_ANSWER: &str = "-ERR the external authoriser does not answer\r\n";
const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

fn gateway(more: &str) -> (World, ConnId, ConnId) {
    let (mut world, [lane]) =
        World::connected(&pool(&format!("preconnect: true\n{USERS}\n{more}"), 1));
    let client = world.client();
    (world, client, lane)
}

/// Who is asked about, of whom nobody has been told yet.
fn asked(world: &mut World) -> Vec<(ConnId, u64, String)> {
    let questions = world.actions.iter().filter_map(|action| match action {
        Action::Authenticate { conn, ticket, login, .. } => {
            let password = String::from_utf8(login.password.clone()).unwrap();
            assert!(!format!("{action:?}").contains(&format!("\"{password}\"")));
            Some((*conn, *ticket, format!("{}:{password}", login.name)))
        }
        _ => None,
    });
    let questions = questions.collect();
    world.actions.retain(|action| !matches!(action, Action::Authenticate { .. }));
    questions
}

fn app(expires_in_ms: Option<u64>) -> Verdict {
    Verdict::User { user: "app".to_owned(), expires_in_ms }
}

fn tell(world: &mut World, (conn, ticket): (ConnId, u64), verdict: Verdict) {
    let answer = Authenticated { conn, ticket, verdict, is_cached: false };
    let now = world.now;
    world.engine.handle_authenticated("p", answer, now);
    world.tick();
}

/// Logs the client in.
fn log_in(world: &mut World, client: ConnId, expires_in_ms: Option<u64>) {
    world.send(client, redis("AUTH bob word"));
    let [(conn, ticket, _)] = &asked(world)[..] else { panic!("one is asked about") };
    tell(world, (*conn, *ticket), app(expires_in_ms));
    world.expect(client, "+OK\r\n");
}

fn count(world: &World, counter: PoolCounter) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), counter)
}

#[test]
fn who_waits_until_it_may_ask_more_is_told_when_its_login_is_over() {
    let delayed = USERS.replace(
        "app: on ~* &* +@all",
        "app: {rules: 'on ~* &* +@all', requests_per_second: 1, over_limit: delay}",
    );
    let options = format!("preconnect: true\n{delayed}\nredis: true");
    let (mut world, [lane]) = World::connected(&pool(&options, 1));
    let client = world.client();
    log_in(&mut world, client, Some(1500));
    world.send(client, all(&["GET a"; 9]));
    let mut got = Vec::new();
    for _ in 0..60 {
        let asked = world.received(lane).windows(3).filter(|it| it == b"GET").count();
        world.send(lane, "$-1\r\n".repeat(asked));
        world.wait_ms(100);
        got.extend(world.received(client));
    }
    let text = String::from_utf8(got).unwrap();
    let answered = text.matches("$-1").count();
    assert_eq!(
        (answered > 0, text),
        (true, "$-1\r\n".repeat(answered) + &NOAUTH.repeat(9 - answered))
    );
    world.assert_idle();
}

#[test]
fn what_comes_behind_waits_and_nobody_else_does() {
    let (mut world, client, lane) = gateway("redis: true");
    world.send(client, all(&["PING", "AUTH bob word", "GET a", "PING"]));
    // Strangers may not even PING.
    world.expect(client, NOAUTH);
    world.send(client, redis("GET b"));
    let questions = asked(&mut world);
    assert_eq!(questions.len(), 1);
    let (conn, ticket, login) = questions[0].clone();
    assert_eq!((conn, login.as_str()), (client, "bob:word"));
    world.expect(lane, "");
    let other = world.client();
    world.send(other, all(&["AUTH local here", "GET c"]));
    world.expect(other, "+OK\r\n");
    world.expect(lane, redis("GET c"));
    world.send(lane, "$-1\r\n");
    world.expect(other, "$-1\r\n");
    // Answers to others, or to an earlier question, mean nothing.
    tell(&mut world, (other, ticket), app(None));
    tell(&mut world, (client, ticket + 1), Verdict::Refused);
    world.expect(client, "");
    tell(&mut world, (client, ticket), app(None));
    world.expect(lane, all(&["GET a", "GET b"]));
    world.send(lane, "$1\r\na\r\n$1\r\nb\r\n");
    world.expect(client, "+OK\r\n$1\r\na\r\n+PONG\r\n$1\r\nb\r\n");
    tell(&mut world, (client, ticket), Verdict::Refused);
    // Who was refused stays who it was.
    world.send(client, all(&["HELLO 3 AUTH bob no", "ACL WHOAMI"]));
    let (conn, ticket, _) = asked(&mut world).remove(0);
    tell(&mut world, (conn, ticket), Verdict::Refused);
    world.expect(client, format!("{WRONG}$3\r\napp\r\n"));
    assert_eq!(count(&world, PoolCounter::ExternalAuthAsked), 2);
    // Nobody is asked about who is known here.
    world.send(client, all(&["AUTH app word", "AUTH local word"]));
    world.expect(client, WRONG.repeat(2));
    assert_eq!(asked(&mut world), []);
}

#[test]
fn a_login_waits_for_what_is_on_its_way_to_end_in_order() {
    let (mut world, client, lane) = gateway("redis: true");
    world.send(client, all(&["AUTH local here", "GET a", "AUTH bob word", "GET b"]));
    world.expect(client, "+OK\r\n");
    world.expect(lane, redis("GET a"));
    let (conn, ticket, _) = asked(&mut world).remove(0);
    tell(&mut world, (conn, ticket), app(None));
    world.send(lane, "$1\r\na\r\n");
    world.expect(lane, redis("GET b"));
    world.send(lane, "$1\r\nb\r\n");
    world.expect(client, "$1\r\na\r\n+OK\r\n$1\r\nb\r\n");
    assert_eq!(asked(&mut world), []);
}

#[test]
fn who_gets_no_answer_is_told_so_and_may_leave() {
    let (mut world, client, _) = gateway("redis: true");
    world.send(client, all(&["AUTH bob word", "GET a"]));
    let (conn, ticket, _) = asked(&mut world).remove(0);
    // A second for its turn, one for the answer, and one more.
    world.wait_ms(2990);
    world.expect(client, "");
    world.wait_ms(20);
    world.expect(client, format!("{NO_ANSWER}{NOAUTH}"));
    // Too late.
    tell(&mut world, (conn, ticket), app(None));
    world.expect(client, "");
    world.send(client, redis("AUTH bob word"));
    let (conn, ticket, _) = asked(&mut world).remove(0);
    tell(&mut world, (conn, ticket), Verdict::NoAnswer);
    world.expect(client, NO_ANSWER);
    assert_eq!(count(&world, PoolCounter::AuthFailures), 0);
    let lost = |world: &World| {
        world.metrics.pool_gauge(world.metrics.pool(0), PoolGauge::ExternalAuthLost)
    };
    assert_eq!((lost(&world), count(&world, PoolCounter::ExternalAuthOutages)), (1, 1));
    world.send(client, redis("AUTH bob word"));
    let (conn, ticket, _) = asked(&mut world).remove(0);
    let user = Verdict::User { user: "nobody".to_owned(), expires_in_ms: None };
    tell(&mut world, (conn, ticket), user);
    let odd = "-ERR the external authoriser names a user who is not configured here, or is off\r\n";
    world.expect(client, odd);
    assert_eq!(lost(&world), 0);
    world.send(client, redis("AUTH bob word"));
    let (conn, ticket, _) = asked(&mut world).remove(0);
    world.close(client, CloseReason::Eof);
    tell(&mut world, (conn, ticket), app(Some(1000)));
    world.wait_ms(3000);
    world.assert_idle();
}

#[test]
fn logins_end_and_what_is_on_its_way_does_not() {
    let (mut world, client, lane) = gateway("redis: true");
    let [listening, queueing] = [world.client(), world.client()];
    for conn in [client, listening, queueing] {
        log_in(&mut world, conn, Some(5000));
    }
    world.send(queueing, redis("MULTI"));
    world.expect(queueing, "+OK\r\n");
    world.send(listening, redis("MONITOR"));
    world.expect(listening, "+OK\r\n");
    world.send(client, redis("GET a"));
    world.expect(lane, redis("GET a"));
    world.wait_ms(5000);
    world.send(client, redis("GET b"));
    world.send(lane, "$1\r\na\r\n");
    world.expect(client, format!("$1\r\na\r\n{NOAUTH}"));
    world.expect(lane, "");
    let closed = world.closed.clone();
    assert!(closed.contains(&listening) && closed.contains(&queueing), "{closed:?}");
    // A new login has an end of its own, or none.
    log_in(&mut world, client, Some(5000));
    log_in(&mut world, client, Some(20_000));
    world.wait_ms(6000);
    world.send(client, redis("ACL WHOAMI"));
    world.expect(client, "$3\r\napp\r\n");
    world.send(client, redis("AUTH local here"));
    world.expect(client, "+OK\r\n");
    world.wait_ms(20_000);
    world.send(client, redis("ACL WHOAMI"));
    world.expect(client, "$5\r\nlocal\r\n");
}

#[test]
fn other_rules_do_not_make_a_login_longer() {
    let (mut world, client, _) = gateway("redis: true");
    log_in(&mut world, client, Some(5000));
    let mut next = pool(&format!("redis: true\n{}", USERS.replace("app: on ~*", "app: on ~a*")), 1);
    next.epoch = 2;
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    world.tick();
    world.send(client, redis("ACL WHOAMI"));
    world.expect(client, "$3\r\napp\r\n");
    world.send(client, redis("GET b"));
    assert!(world.received(client).starts_with(b"-NOPERM"));
    world.wait_ms(5000);
    world.send(client, redis("GET a"));
    world.expect(client, NOAUTH);
}

#[test]
fn the_end_of_a_login_goes_where_its_client_goes() {
    let (mut one, client, _) = gateway("redis: true");
    let (mut two, _, _) = gateway("redis: true");
    two.wait_ms(1_000_000);
    log_in(&mut one, client, Some(5000));
    one.wait_ms(2000);
    let moved = hand_off(&mut one, client);
    assert_eq!(moved.parts.expires_in_us.map(|us| us.div_ceil(1_000_000)), Some(3));
    let client = two.adopt(moved);
    two.tick();
    two.wait_ms(2900);
    two.send(client, redis("ACL WHOAMI"));
    two.expect(client, "$3\r\napp\r\n");
    two.wait_ms(200);
    two.send(client, redis("ACL WHOAMI"));
    two.expect(client, NOAUTH);
    // One who waits for its answer is asked about again where it goes.
    two.send(client, redis("AUTH bob word"));
    let (conn, ticket, _) = asked(&mut two).remove(0);
    let moved = hand_off(&mut two, client);
    tell(&mut two, (conn, ticket), app(None));
    let client = one.adopt(moved);
    one.tick();
    let (conn, ticket, _) = asked(&mut one).remove(0);
    tell(&mut one, (conn, ticket), app(None));
    one.expect(client, "+OK\r\n");
}

fn hand_off(world: &mut World, client: ConnId) -> cashew_engine::Export {
    let now = world.now;
    world.engine.handle_leave(client, now);
    world.tick();
    assert!(world.is_handed_off(client));
    world.engine.export(client, now).expect("it is here")
}

#[test]
fn memcacheds_clients_wait_as_well() {
    let (mut world, client, lane) = gateway("");
    world.send(client, "set auth 0 0 8\r\nbob word\r\nget a\r\n");
    world.expect(client, "");
    let (conn, ticket, login) = asked(&mut world).remove(0);
    assert_eq!(login, "bob:word");
    tell(&mut world, (conn, ticket), app(Some(5000)));
    world.expect(lane, "get a\r\n");
    world.send(lane, "END\r\n");
    world.expect(client, "STORED\r\nEND\r\n");
    world.wait_ms(5000);
    world.send(client, "get a\r\n");
    world.expect(client, "CLIENT_ERROR unauthenticated\r\n");
    world.send(client, "set auth 0 0 8\r\nbob word\r\n");
    let (conn, ticket, _) = asked(&mut world).remove(0);
    tell(&mut world, (conn, ticket), Verdict::NoAnswer);
    world.expect(client, "SERVER_ERROR the external authoriser does not answer\r\n");
    world.expect(lane, "");
}

#[test]
fn what_is_owed_has_the_names_of_whom_it_was() {
    let users = "users: {app: {rules: on ~* +@all, key_prefix: 'a:'}, other: {rules: on ~* +@all, key_prefix: 'b:'}}";
    let options = format!("preconnect: true\nexternal_auth: {{url: http://a/}}\n{users}");
    let (mut world, [lane]) = World::connected(&pool(&options, 1));
    let client = world.client();
    let login = "set auth 0 0 8\r\nbob word\r\n";
    world.send(client, login);
    let (conn, ticket, _) = asked(&mut world).remove(0);
    tell(&mut world, (conn, ticket), app(Some(1000)));
    world.send(client, "get k\r\n");
    world.expect(client, "STORED\r\n");
    world.expect(lane, "get a:k\r\n");
    world.wait_ms(1100);
    world.send(client, login);
    assert_eq!(asked(&mut world), []);
    world.send(lane, "VALUE a:k 0 1\r\n1\r\nEND\r\n");
    world.expect(client, "VALUE k 0 1\r\n1\r\nEND\r\n");
    let (conn, ticket, _) = asked(&mut world).remove(0);
    let other = Verdict::User { user: "other".to_owned(), expires_in_ms: None };
    tell(&mut world, (conn, ticket), other);
    world.send(client, "get k\r\n");
    world.expect(client, "STORED\r\n");
    world.expect(lane, "get b:k\r\n");
}
