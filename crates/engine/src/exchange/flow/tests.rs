//! Flows as features will have them.

#[path = "../../../tests/world/mod.rs"]
mod world;

use super::*;
use crate::base::failure::CloseReason;
use crate::base::id::{ConnId, RequestId, ServerId};
use world::{World, pool, redis};

/// Goes where the error says.
#[derive(Debug)]
struct Redirect {
    left: u32,
}

impl Flow for Redirect {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _: RequestId, reply: &[u8]) -> Step {
        let Some(server) = reply.strip_prefix(b"-MOVED ").filter(|_| self.left > 0) else {
            return Step::Answer;
        };
        self.left -= 1;
        cx.fence();
        let server = ServerId::new((server[0] - b'0').into());
        Step::Send(Attempts::one(Target::Server(server), Text::Replay))
    }

    fn on_start(&mut self, _: &mut FlowContext<'_>, start: &[u8]) -> bool {
        start.starts_with(b"-")
    }
}

/// Asks the next server if one fails.
#[derive(Debug)]
struct Retry {
    next: u32,
}

impl Flow for Retry {
    fn on_reply(&mut self, _: &mut FlowContext<'_>, _: RequestId, _: &[u8]) -> Step {
        Step::Answer
    }

    fn on_failure(&mut self, cx: &mut FlowContext<'_>, _: RequestId, why: NamedFailure) -> Step {
        let servers = cx.engine.backends[cx.backend()].servers.len() as u32;
        if self.next == servers {
            return Step::Fail(why);
        }
        let server = ServerId::new(self.next);
        self.next += 1;
        Step::Send(Attempts::one(Target::Server(server), Text::Replay))
    }
}

/// Asks a second server if the first takes long.
#[derive(Debug)]
struct Hedge;

impl Flow for Hedge {
    fn on_reply(&mut self, _: &mut FlowContext<'_>, _: RequestId, _: &[u8]) -> Step {
        Step::Answer
    }

    fn on_failure(&mut self, cx: &mut FlowContext<'_>, _: RequestId, why: NamedFailure) -> Step {
        if cx.pending() > 0 { Step::Wait } else { Step::Fail(why) }
    }

    fn on_timeout(&mut self, _: &mut FlowContext<'_>) -> Step {
        Step::Send(Attempts::one(Target::Server(ServerId::new(1)), Text::Replay))
    }
}

fn two_servers() -> (World, ConnId, [ConnId; 2]) {
    World::with_client(&pool("redis: true\ntimeout: 400\npreconnect: true", 2))
}

/// Sends a request of the client's to the first server, watched by a flow.
fn watched(world: &mut World, client: ConnId, text: &str, flow: Box<dyn Flow>) {
    let engine = &mut world.engine;
    let lane = engine.lane_for(client.client(), ServerId::new(0), text.len()).unwrap();
    let request = engine.new_request(client.client());
    let replay = Replay::new(text.as_bytes(), &mut engine.bufs);
    engine.watch_reply(request, flow, Some(replay));
    engine.send(lane, request, Payload::Bytes(text.as_bytes()));
    world.tick();
}

fn hedged(world: &mut World, client: ConnId, text: &str) {
    let engine = &mut world.engine;
    let request = engine.new_request(client.client());
    let replay = Replay::new(text.as_bytes(), &mut engine.bufs);
    let first = Attempts::one(Target::Server(ServerId::new(0)), Text::Replay);
    engine.begin_flow(request, Box::new(Hedge), Some(replay), Step::Send(first));
    engine.wake_flow(request, engine.now.plus_millis(50));
    world.tick();
}

#[test]
fn a_redirect_is_followed_as_often_as_it_may_be() {
    let (mut world, client, [a, b]) = two_servers();
    let get = redis("GET x");
    for (last, answer) in [("$1\r\n", "$1\r\ny\r\n"), ("-MOVED ", "-MOVED 0\r\n")] {
        watched(&mut world, client, &get, Box::new(Redirect { left: 2 }));
        world.expect(a, &get);
        // In pieces: an error is not passed on before it is whole.
        world.send(a, "-MOV");
        world.send(a, "ED 1\r\n");
        world.expect(b, &get);
        world.send(b, "-MOVED 0\r\n");
        world.expect(a, &get);
        world.send(a, last);
        world.expect(client, "");
        world.send(a, &answer[last.len()..]);
        world.expect(client, answer);
        world.assert_idle();
    }
    assert_eq!(world.engine.flows.0.len(), 0);
}

#[test]
fn what_a_flow_does_not_want_whole_is_passed_on_as_it_comes() {
    let (mut world, client, [a, _]) = two_servers();
    let get = redis("GET x");
    watched(&mut world, client, &get, Box::new(Redirect { left: 2 }));
    world.expect(a, &get);
    let large = vec![b'x'; 1 << 20];
    world.send(a, format!("${}\r\n", large.len()));
    world.send(a, &large[..700_000]);
    assert!(world.received(client).len() > 500_000);
    world.send(a, &large[700_000..]);
    world.send(a, "\r\n");
    assert!(world.received(client).len() < 500_000);
    world.assert_idle();
}

#[test]
fn the_next_server_is_asked_if_one_fails() {
    let get = redis("GET x");
    for answers in [true, false] {
        let (mut world, client, [a, b]) = two_servers();
        watched(&mut world, client, &get, Box::new(Retry { next: 1 }));
        world.expect(a, &get);
        world.close(a, CloseReason::Reset);
        world.expect(b, &get);
        if answers {
            world.send(b, "$-1\r\n");
            world.expect(client, "$-1\r\n");
        } else {
            world.close(b, CloseReason::Reset);
            world.expect(client, "-ERR Connection reset by peer\r\n");
        }
        world.assert_idle();
    }
}

#[test]
fn the_first_of_two_replies_is_the_answer_and_the_other_is_for_nobody() {
    let get = redis("GET x");
    for first in [0, 1] {
        let (mut world, client, lanes) = two_servers();
        hedged(&mut world, client, &get);
        world.expect(lanes[0], &get);
        world.wait_ms(49);
        world.expect(lanes[1], "");
        world.wait_ms(1);
        world.expect(lanes[1], &get);
        world.send(lanes[first], "$3\r\none\r\n");
        world.expect(client, "$3\r\none\r\n");
        // The one behind it gets its own.
        world.send(client, redis("GET a") + &redis("GET b"));
        world.send(lanes[1 - first], "$3\r\ntwo\r\n");
        world.expect(client, "");
        world.send(lanes[0], "$1\r\na\r\n");
        world.send(lanes[1], "$1\r\nb\r\n");
        world.expect(client, "$1\r\na\r\n$1\r\nb\r\n");
        world.assert_idle();
    }
}

#[test]
fn a_hedge_that_is_answered_in_time_or_whose_client_has_gone_sends_no_more() {
    let (mut world, client, [a, b]) = two_servers();
    let get = redis("GET x");
    hedged(&mut world, client, &get);
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    hedged(&mut world, client, &get);
    world.close(client, CloseReason::Eof);
    world.wait_ms(100);
    world.expect(b, "");
    world.send(a, "$-1\r\n");
    world.assert_idle();
    assert_eq!(world.engine.flows.0.len(), 0);
}
