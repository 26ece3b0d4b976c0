//! A connection to a server from its beginning until requests may be sent on it.

use cashew_metrics::{Evidence, ServerCounter};
use cashew_protocol::memcached::Expect;
use cashew_protocol::resp::encode;

use crate::base::action::Action;
use crate::base::failure::Failure;
use crate::base::id::{ConnId, LaneId};
use crate::base::time::Time;
use crate::engine::{Closed, Engine};
use crate::upstream::greeting::{greet, is_greeted};
use crate::upstream::lane::{Handshake, Lane, Link, Scan, Scanner};
use crate::upstream::liveness::Sign;
use crate::upstream::low_water::LowWater;
use crate::upstream::session_params::{SessionParams, WireProtocol};

/// Longest reply to AUTH, HELLO or SELECT; HELLO names all modules.
const HANDSHAKE_REPLY_MAX: usize = 64 * 1024;

impl Engine {
    pub(crate) fn connect(&mut self, index: LaneId) {
        self.lanes[index].is_early = false;
        self.connect_until(index, None);
    }

    /// As [`connect`](Self::connect), with a deadline that may be shorter.
    pub(crate) fn connect_until(&mut self, index: LaneId, deadline: Option<Time>) {
        let lane = &mut self.lanes[index];
        let backend = &self.backends[lane.backend];
        let server = &backend.servers[lane.server];
        let is_silent = server.is_silent();
        // Nobody would close the connection that it has.
        debug_assert!(matches!(lane.link, Link::Idle | Link::Backoff { .. }), "one at a time");
        // That it takes connections does not show that a copy may lead again.
        let is_trial = server.failing && backend.topology.writes_to_all();
        lane.asks |= (is_silent || is_trial) && lane.is_shared();
        lane.tried_at = self.now;
        if server.failing || is_silent {
            self.metrics.set_tried(server.metrics, self.now.as_micros());
        }
        let deadline = match deadline {
            _ if is_silent => backend.dial_deadline(server, lane.attempts, self.now),
            Some(deadline) => deadline,
            None if lane.asks => backend.first_sign(self.now),
            None => backend.connect_deadline(self.now),
        };
        lane.generation = lane.generation.wrapping_add(1);
        lane.conn = ConnId::of_lane(lane.slot, lane.generation);
        lane.link = Link::Connecting { deadline };
        self.session_links += u64::from(lane.is_session);
        lane.dirty = false;
        let (backend, server) = (lane.backend, lane.server);
        let conn = self.lane_conn(index);
        self.actions.push_back(Action::Connect { conn, backend, server });
        self.arm_lane(index, deadline);
    }

    /// The connection stands: say who we are, then send what waits.
    pub(crate) fn lane_connected(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let Link::Connecting { mut deadline } = lane.link else { return };
        let pool = &mut self.backends[lane.backend];
        let server = &mut pool.servers[lane.server];
        server.connect_us = self.now.micros_since(lane.tried_at).max(1);
        let is_silent = server.is_silent();
        server.count(&self.metrics, ServerCounter::Connects);
        let pool = &*pool;
        if lane.asks && is_silent {
            deadline = pool.sign_deadline(self.now);
        }
        let wire_protocol = pool.params_set[usize::from(lane.variant)].wire_protocol;
        lane.scanner = Scanner::new(wire_protocol);
        lane.tagger = None;
        lane.low_water = LowWater::Byte;
        lane.progress_at = self.now;
        let handshake = &mut lane.handshake;
        debug_assert!(handshake.output.is_empty() && handshake.reply.is_empty());
        (handshake.replies_owed, handshake.greetings) = (0, 0);
        (handshake.void, handshake.tried) = (0, 0);
        handshake.credentials = pool.servers[lane.server].credentials;
        self.introduce(index);
        let lane = &mut self.lanes[index];
        let is_greeting = lane.handshake.replies_owed > 0;
        lane.link = Link::Handshaking { deadline };
        let Lane { backend, server, .. } = self.lanes[index];
        self.redis_backends[backend].servers[server].forget_scripts();
        self.server_of(index).connections += 1;
        self.publish_connections(index);
        if is_greeting {
            self.mark_lane(index);
        } else {
            self.lane_ready(index);
        }
    }

    /// Says who we are, what is spoken, which database is meant, and asks for a sign of life if one is wanted.
    fn introduce(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let pool = &self.backends[lane.backend];
        let SessionParams { wire_protocol, database } = pool.params_set[usize::from(lane.variant)];
        let question = pool.question_of(lane);
        let all = pool.config.server_auth.of(&pool.config.servers[lane.server.index()].name);
        let owed_before = lane.handshake.replies_owed;
        let handshake = &mut lane.handshake;
        let has_auth = !all.is_empty();
        if has_auth {
            let credentials = &all[handshake.credentials % all.len()];
            handshake.replies_owed += 1;
            handshake.tried += 1;
            handshake.output.write_with(&mut self.bufs, 0, |out| match wire_protocol {
                WireProtocol::Resp2 | WireProtocol::Resp3 => {
                    encode::write_command(out, &credentials.auth_words());
                }
                WireProtocol::Text | WireProtocol::Binary => greet(wire_protocol, credentials, out),
            });
        }
        if wire_protocol == WireProtocol::Resp3 {
            handshake.owe_greeting();
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"HELLO", b"3"]);
            });
        }
        if database > 0 {
            handshake.replies_owed += 1;
            let database = database.to_string();
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"SELECT", database.as_bytes()]);
            });
        }
        if lane.asks {
            handshake.replies_owed += 1;
            handshake.output.push(question, &mut self.bufs);
        }
        handshake.auth_at = if has_auth { handshake.replies_owed - owed_before } else { 0 };
    }

    /// The server takes none of these credentials. Returns whether others are tried, on the same connection: what was
    /// said behind them is said again, and its first replies say nothing.
    fn try_others(&mut self, index: LaneId) -> bool {
        let lane = &mut self.lanes[index];
        let backend = &mut self.backends[lane.backend];
        let count =
            backend.config.server_auth.of(&backend.config.servers[lane.server.index()].name).len();
        let handshake = &mut lane.handshake;
        let is_auth = handshake.replies_owed == handshake.auth_at;
        let is_later =
            [&b"-BUSY"[..], b"-LOADING"].iter().any(|it| handshake.reply.starts_with(it));
        if !is_auth || is_later || handshake.tried >= count {
            return false;
        }
        let (refused, next) = (handshake.credentials, (handshake.credentials + 1) % count);
        handshake.credentials = next;
        // Other connections may have found out before.
        let server = &mut backend.servers[lane.server];
        let is_news = server.credentials % count == refused % count;
        if is_news {
            server.credentials = next;
        }
        handshake.reply.clear();
        handshake.replies_owed -= 1;
        handshake.greetings >>= 1;
        handshake.void = handshake.replies_owed;
        let (backend, server) = (lane.backend, lane.server);
        self.introduce(index);
        self.mark_lane(index);
        if is_news {
            self.actions.push_back(Action::CredentialsRefused { backend, server });
        }
        true
    }

    /// Agrees with the server on the lane's variant, which was another one so far. What is sent
    /// waits for that: it would mean something else.
    pub(crate) fn greet_again(&mut self, index: LaneId, before: u16) {
        let lane = &mut self.lanes[index];
        let backend = &self.backends[lane.backend];
        let (was, is) = (
            backend.params_set[usize::from(before)],
            backend.params_set[usize::from(lane.variant)],
        );
        let handshake = &mut lane.handshake;
        if let Link::Ready { .. } = lane.link {
            lane.link = Link::Handshaking { deadline: backend.connect_deadline(self.now) };
            (handshake.replies_owed, handshake.greetings, handshake.auth_at) = (0, 0, 0);
        }
        let owed_before = handshake.replies_owed;
        if was.wire_protocol != is.wire_protocol {
            if let Scanner::Redis(scanner) = &mut lane.scanner {
                scanner.set_resp3(is.wire_protocol == WireProtocol::Resp3);
            }
            let version: &[u8] = if is.wire_protocol == WireProtocol::Resp3 { b"3" } else { b"2" };
            handshake.owe_greeting();
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"HELLO", version]);
            });
        }
        if was.database != is.database || (was.wire_protocol != is.wire_protocol && is.database > 0)
        {
            let database = is.database.to_string();
            handshake.replies_owed += 1;
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"SELECT", database.as_bytes()]);
            });
        }
        let handshake = &mut self.lanes[index].handshake;
        if handshake.auth_at > 0 {
            handshake.auth_at += handshake.replies_owed - owed_before;
        }
        match handshake.replies_owed {
            0 => self.lane_ready(index),
            _ => self.mark_lane(index),
        }
        self.rearm(index);
    }

    /// A connection stands. If it was lost before, there may be another process.
    fn doubt_new_connection(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        if std::mem::take(&mut lane.was_lost) {
            let backend = &mut self.backends[lane.backend];
            let begun = self.metrics.board().begun(backend.metrics);
            backend.servers[lane.server].confirm_after = begun + 1;
        }
    }

    fn lane_ready(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        lane.link = Link::Ready { since: self.now };
        let has_asked = std::mem::take(&mut lane.asks);
        lane.is_early = false;
        let tried_at = lane.tried_at;
        let Lane { backend, server: number, .. } = *lane;
        self.doubt_new_connection(index);
        let now = self.now;
        let server = self.server_of(index);
        let was_hindered = server.local_error.take().is_some();
        let has_answered = has_asked || server.heard_at >= tried_at;
        if server.is_silent() {
            if has_asked {
                self.end_silence(backend, number);
                self.note_reached(backend, number);
            }
        } else if std::mem::take(&mut server.failing) || was_hindered {
            server.trial.begin(now);
            if was_hindered {
                self.actions.push_back(Action::ServerRecovered { backend, server: number });
            }
            self.note_reached(backend, number);
        }
        let evidence = if has_answered { Evidence::Answered } else { Evidence::Connected };
        self.note_evidence(backend, number, evidence);
        self.tell_role(index);
        self.wake_absent(backend, number);
        if self.lanes[index].unsent > 0 {
            self.mark_lane(index);
        }
        self.rearm(index);
        if self.backends[backend].has_to_forget(number, &self.metrics) {
            self.fail_unsent(index, Failure::Forgetting);
        }
        let lane = &self.lanes[index];
        if lane.is_feed {
            self.feed_ready(index);
        } else if lane.is_session {
            self.publish_session(index);
            self.serve_line(backend, number);
            self.wake_connecting(index);
        }
    }

    /// Consumes replies to the handshake; returns what is left of `bytes`.
    pub(crate) fn handshake_received<'b>(&mut self, index: LaneId, bytes: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index];
        let handshake = &mut lane.handshake;
        let (len, complete) = match lane.scanner.scan(Expect::Line, bytes) {
            Scan::Complete(len) => (len, true),
            Scan::Partial => (bytes.len(), false),
            Scan::Invalid => {
                self.misfit(index, "a reply to what is said first on a connection", bytes);
                return &[];
            }
        };
        handshake.reply.extend_from_slice(&bytes[..len]);
        if handshake.reply.len() > HANDSHAKE_REPLY_MAX {
            self.misfit(index, "a short reply to what is said first on a connection", bytes);
            return &[];
        }
        if complete {
            let wire_protocol =
                self.backends[lane.backend].params_set[usize::from(lane.variant)].wire_protocol;
            let is_sign = lane.asks && handshake.replies_owed == 1;
            if is_sign {
                match self.backends[lane.backend].sign_in(lane, &lane.handshake.reply) {
                    Sign::Fit => {}
                    Sign::Unfit(why) => {
                        self.lane_down(index, why, Closed::ByUs);
                        self.lanes[index].asks = true;
                        self.note_unfit(index, why);
                        return &[];
                    }
                    Sign::Misfit => {
                        self.misfit(index, "PONG, or an error", bytes);
                        return &[];
                    }
                }
            }
            let handshake = &mut self.lanes[index].handshake;
            let is_ok = match wire_protocol {
                // A sign of life, whatever it says.
                _ if is_sign => true,
                // A map, or an array, is the answer to HELLO, and to nothing else.
                WireProtocol::Resp2 | WireProtocol::Resp3 if handshake.greetings & 1 == 1 => {
                    matches!(handshake.reply.first(), Some(b'%' | b'*'))
                }
                WireProtocol::Resp2 | WireProtocol::Resp3 => handshake.reply == b"+OK\r\n",
                WireProtocol::Text | WireProtocol::Binary => {
                    is_greeted(wire_protocol, &handshake.reply)
                }
            };
            let is_void = handshake.void > 0;
            if !is_ok && !is_void {
                if self.try_others(index) {
                    return &bytes[len..];
                }
                let failure = self.refusal_of(index);
                self.lane_down(index, failure, Closed::ByUs);
                return &[];
            }
            handshake.void -= u32::from(is_void);
            handshake.reply.clear();
            handshake.replies_owed -= 1;
            handshake.greetings >>= 1;
            if handshake.replies_owed == 0 {
                self.lane_ready(index);
            }
        }
        &bytes[len..]
    }

    /// What the server refused with its reply to the handshake. Only what a client has asked for is
    /// its own affair: what the configuration asks of a server concerns all.
    fn refusal_of(&self, index: LaneId) -> Failure {
        let lane = &self.lanes[index];
        let backend = &self.backends[lane.backend];
        let SessionParams { wire_protocol, database } =
            backend.params_set[usize::from(lane.variant)];
        let behind = u32::from(lane.asks);
        let is_selecting = database > 0 && lane.handshake.replies_owed == 1 + behind;
        let hello_owed = 1 + u32::from(database > 0) + behind;
        let is_greeting =
            wire_protocol == WireProtocol::Resp3 && lane.handshake.replies_owed == hello_owed;
        let reply = lane.handshake.reply.as_slice();
        if reply.starts_with(b"-BUSY") {
            Failure::Busy
        } else if reply.starts_with(b"-LOADING") {
            Failure::Loading
        } else if is_selecting && database != backend.params_set[0].database {
            Failure::DatabaseRefused
        } else if is_greeting
            && (reply.starts_with(b"-NOPROTO") || reply.starts_with(b"-ERR unknown command"))
        {
            Failure::WireProtocolRefused
        } else {
            Failure::HandshakeRefused
        }
    }
}

impl Handshake {
    fn owe_greeting(&mut self) {
        self.greetings |= 1u64.checked_shl(self.replies_owed).unwrap_or(0);
        self.replies_owed += 1;
    }
}
