//! Commands without keys: one server has them, or the gateway says why not.

use crate::world::{World, pool, redis};
use cashew_engine::{CloseReason, ConnId};

const OPTIONS: &str = "redis: true\npreconnect: true\nserver_failure_limit: 9";

#[test]
fn scripts_without_keys_go_to_the_first_server_that_is_well() {
    let (mut world, [a, b]): (World, [ConnId; 2]) = World::connected(&pool(OPTIONS, 2));
    let client = world.client();
    for request in ["EVAL x 0", "FCALL f 0 arg", "LOLWUT", "ACL GENPASS", "TIME"] {
        world.send(client, redis(request));
        world.expect(a, redis(request));
        world.send(a, "+ok\r\n");
        world.expect(client, "+ok\r\n");
    }
    world.close(a, CloseReason::Reset);
    world.send(client, redis("EVAL x 0"));
    world.expect(b, redis("EVAL x 0"));
    world.send(b, "+ok\r\n");
    world.expect(client, "+ok\r\n");
}

#[test]
fn what_only_one_server_can_do_is_done_where_there_is_one() {
    let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(OPTIONS, 1));
    let client = world.client();
    world.send(client, redis("SWAPDB 0 1"));
    world.expect(a, redis("SWAPDB 0 1"));
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();

    let (mut world, [_, _]): (World, [ConnId; 2]) = World::connected(&pool(OPTIONS, 2));
    let client = world.client();
    world.send(client, redis("SWAPDB 0 1"));
    let refusal = "-ERR SWAPDB cannot swap the databases of several servers at one instant: ask \
                   the servers themselves\r\n";
    world.expect(client, refusal);
    world.assert_idle();
}

#[test]
fn what_is_refused_says_why_and_the_connection_goes_on() {
    let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(OPTIONS, 1));
    let client = world.client();
    let requests = ["SHUTDOWN", "ACL SETUSER x", "CLUSTER INFO", "GET k", "ROLE", "ACL WHOAMI"];
    world.send(client, requests.map(redis).concat());
    world.expect(a, redis("GET k"));
    world.send(a, "$-1\r\n");
    world.expect(
        client,
        "-ERR SHUTDOWN would stop the servers of all clients: ask the servers themselves; QUIT \
         ends a connection\r\n\
         -ERR the users are those of the gateway's configuration: change its 'users' or 'acl_file', \
         and reload it\r\n\
         -ERR This instance has cluster support disabled\r\n\
         $-1\r\n\
         *3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n\
         $7\r\ndefault\r\n",
    );
    world.assert_idle();
}
