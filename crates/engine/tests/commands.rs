//! Commands that Redis itself does not have: configured, or learnt from the servers.

use crate::world::{World, pool, redis};
use cashew_config::Snapshot;
use cashew_engine::{CloseReason, ConnId};

const CONFIGURED: &str = "redis: true
preconnect: true
commands:
  - {name: json.get, arity: -2, first_key: 1, flags: [readonly]}
  - {name: json.mget, arity: -3, first_key: 1, last_key: -2, flags: [readonly]}
  - {name: ft.search, arity: -3, flags: [readonly]}
  - {name: json.debug, arity: -2}
  - {name: json.debug|memory, arity: -3, first_key: 2, flags: [readonly]}";

const LEARNING: &str = "redis: true\npreconnect: true\ncommands_from_servers: true";

/// As a server answers a COMMAND INFO about a command with one key.
fn told(name: &str) -> String {
    format!(
        "*1\r\n*10\r\n${}\r\n{name}\r\n:-2\r\n*2\r\n+readonly\r\n+module\r\n:1\r\n:1\r\n:1\r\n\
         *0\r\n*0\r\n*0\r\n*0\r\n",
        name.len()
    )
}

fn ask(name: &str) -> String {
    redis(&format!("COMMAND INFO {name}"))
}

/// `a` and `e` are keys of the first of the four servers, `b` of the second.
#[test]
fn configured_commands_go_where_their_keys_are() {
    let (mut world, [a, b, ..]): (World, [ConnId; 4]) = World::connected(&pool(CONFIGURED, 4));
    let client = world.client();
    for (request, lane) in [
        ("JSON.GET a $", a),
        ("json.get b", b),
        ("Json.MGet a e $", a),
        ("JSON.DEBUG Memory b $", b),
    ] {
        world.send(client, redis(request));
        world.expect(lane, redis(request));
        world.send(lane, "$2\r\n{}\r\n");
        world.expect(client, "$2\r\n{}\r\n");
    }
    for (request, error) in [
        ("json.get", "ERR wrong number of arguments for 'json.get' command"),
        ("json.debug nope", "ERR unknown subcommand 'nope'. Try JSON.DEBUG HELP."),
        ("json.set a", "ERR unknown command 'json.set', with args beginning with: 'a' "),
        (
            "ft.search i q",
            "ERR this command names no keys that would tell which of the servers it is for; with \
             one server it is forwarded",
        ),
    ] {
        world.send(client, redis(request));
        world.expect(client, format!("-{error}\r\n"));
    }
    world.send(client, redis("COMMAND GETKEYS JSON.MGET a b $"));
    world.expect(client, "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    world.assert_idle();
}

#[test]
fn a_configured_command_without_keys_is_served_by_the_only_server() {
    let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(CONFIGURED, 1));
    let client = world.client();
    world.send(client, redis("FT.SEARCH i q"));
    world.expect(a, redis("FT.SEARCH i q"));
    world.send(a, "*1\r\n:0\r\n");
    world.expect(client, "*1\r\n:0\r\n");
    world.assert_idle();
}

#[test]
fn a_server_is_asked_once_about_a_command_it_has() {
    let (mut world, [a, b]): (World, [ConnId; 2]) = World::connected(&pool(LEARNING, 2));
    let client = world.client();
    world.send(client, redis("GET b") + &redis("X.GET b") + &redis("GET b") + &redis("X.GET a"));
    world.expect(a, ask("X.GET"));
    world.expect(b, redis("GET b"));
    world.send(a, told("x.get"));
    // Nothing overtakes what the client is owed.
    world.expect(client, "");
    world.send(b, "$1\r\n1\r\n");
    world.expect(b, redis("X.GET b") + &redis("GET b"));
    world.expect(a, redis("X.GET a"));
    world.send(a, "$1\r\n4\r\n");
    world.send(b, "$1\r\n2\r\n$1\r\n3\r\n");
    world.expect(client, "$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n");
    let other = world.client();
    world.send(other, redis("x.get b"));
    world.expect(b, redis("x.get b"));
    world.send(b, "$-1\r\n");
    world.expect(other, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn what_no_server_knows_is_an_unknown_command() {
    let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(LEARNING, 1));
    let client = world.client();
    let error = "-ERR unknown command 'x.no', with args beginning with: 'k' \r\n";
    for answer in ["*1\r\n*-1\r\n", "-ERR unknown subcommand 'info'\r\n", "*1\r\n$-1\r\n"] {
        world.send(client, redis("x.no k") + &redis("PING"));
        world.expect(a, ask("x.no"));
        world.send(a, answer);
        world.expect(client, format!("{error}+PONG\r\n"));
    }
    world.send(client, redis("x.no k") + &redis("PING"));
    world.expect(a, ask("x.no"));
    world.close(a, CloseReason::Reset);
    world.expect(client, format!("{error}+PONG\r\n"));
    world.assert_idle();
}

#[test]
fn what_is_learnt_is_learnt_though_its_client_has_gone() {
    let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(LEARNING, 1));
    let (client, other) = (world.client(), world.client());
    world.send(client, redis("x.get k"));
    world.expect(a, ask("x.get"));
    world.send(other, redis("x.get k"));
    world.expect(a, ask("x.get"));
    world.close(client, CloseReason::Reset);
    world.send(a, told("x.get").repeat(2));
    world.expect(a, redis("x.get k"));
    world.send(a, "$-1\r\n");
    world.expect(other, "$-1\r\n");
    world.assert_idle();
}

fn change(world: &mut World, next: &Snapshot) {
    world.prepare(next);
    world.pause(0);
    world.commit(next);
}

#[test]
fn a_reload_brings_what_is_configured_and_forgets_what_was_learnt() {
    let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(LEARNING, 1));
    let client = world.client();
    world.send(client, redis("x.get k"));
    world.expect(a, ask("x.get"));
    world.send(a, told("x.get"));
    world.expect(a, redis("x.get k"));
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n");

    let mut next = pool(CONFIGURED, 1);
    next.epoch = 2;
    change(&mut world, &next);
    world.send(client, redis("x.get k"));
    world.expect(client, "-ERR unknown command 'x.get', with args beginning with: 'k' \r\n");
    world.send(client, redis("json.get k"));
    world.expect(a, redis("json.get k"));
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n");

    let mut next = pool(LEARNING, 1);
    next.epoch = 3;
    change(&mut world, &next);
    world.send(client, redis("x.get k"));
    world.expect(a, ask("x.get"));
    // A question of before a reload is no answer after it.
    next.epoch = 4;
    world.prepare(&next);
    world.pause(5000);
    world.commit(&next);
    world.send(a, "*1\r\n$-1\r\n");
    world.expect(a, ask("x.get"));
    world.send(a, told("x.get"));
    world.expect(a, redis("x.get k"));
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}
