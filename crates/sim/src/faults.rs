//! Faults of servers, and the errors that they excuse.

use crate::clock::Event;
use crate::gateway::Input;
use crate::network::Peer;
use crate::scenario::Fault;
use crate::server::Health;
use crate::surprise::Surprise;
use crate::world::{CONNECT_AGAIN_US, Fabric, World};

/// Longest time that a gateway waits before it tries a server again.
const BACKOFF_MAX_US: u64 = 1_050_000;

impl Fabric {
    /// When all gateways use a pool's servers again that are healthy from now on.
    fn end_of_trouble(&self, pool: u32) -> u64 {
        let config = &self.pools[pool as usize];
        let connect_ms = config.limits.server_connect_timeout_ms;
        let wait_ms = config.timeout_ms.map_or(connect_ms, |timeout| timeout.min(connect_ms));
        self.clock.now() + 2 * BACKOFF_MAX_US + CONNECT_AGAIN_US + wait_ms * 1000
    }

    /// A gateway closes a connection to a server. After a surprising reply it does not reconnect at
    /// once.
    pub(crate) fn wire_closed(&mut self, conn: u32) {
        if let Peer::Server(server) = self.network.conn(conn).peer
            && self.oracle.is_touched(conn)
        {
            let ((pool, server), from) = (self.server_of(server), self.clock.now());
            self.oracle.trouble_between(pool, server, from, self.end_of_trouble(pool));
        }
    }
}

impl World<'_> {
    /// A fault occurs, or ends early.
    pub(crate) fn fault(&mut self) {
        let faults = &self.scenario.faults;
        if self.healed || self.faults >= faults.count_max {
            return;
        }
        self.faults += 1;
        self.fabric.oracle.counts.faults += 1;
        let now = self.fabric.clock.now();
        let gap = self.fabric.random.below(faults.gap_max_us);
        self.fabric.clock.plan(now + gap, Event::Fault);
        let aims: Vec<usize> = match self.scenario.aims_at_sessions {
            true => (0..self.servers.len()).filter(|&at| self.servers[at].has_sessions()).collect(),
            false => Vec::new(),
        };
        let at = match aims.is_empty() {
            true => self.fabric.random.below(self.servers.len() as u64) as usize,
            false => self.fabric.random.pick(&aims),
        };
        // A server recovers before its next fault.
        if self.servers[at].health != Health::Well {
            self.recover(at);
            return;
        }
        let kind = self.fabric.random.pick(&faults.kinds);
        let length = self.fabric.random.range(100, faults.length_max_us);
        self.break_down(at, kind, length);
    }

    fn break_down(&mut self, at: usize, kind: Fault, length: u64) {
        let Self { fabric, servers, .. } = self;
        let server = &mut servers[at];
        let now = fabric.clock.now();
        let what: &'static str = match kind {
            Fault::HangUp { abruptly: true } => "fault: reset of",
            Fault::HangUp { abruptly: false } => "fault: close of",
            Fault::Break => "fault: break of",
            Fault::Garble => "fault: garble of",
            Fault::Stray => "fault: stray reply of",
            Fault::Restart => "fault: restart of",
            Fault::Hang => "fault: hang of",
            Fault::Down => "fault: down is",
            Fault::Unreachable => "fault: unreachable is",
            Fault::Slow => "fault: slow is",
            Fault::Unfriendly => "fault: unfriendly is",
            Fault::Moody => "fault: moody is",
            Fault::Surprise => "fault: surprise by",
        };
        fabric.trace.note(now, what, [at as u64, length, 0]);
        let coverage = &mut fabric.oracle.counts.coverage;
        coverage.note(kind, server.protocol, server.sessions.values());
        let conns: Vec<u32> = server.sessions.keys().copied().collect();
        let conn = match conns.is_empty() {
            true => None,
            false => Some(fabric.random.pick(&conns)),
        };
        let session = conn.and_then(|conn| server.sessions.get_mut(&conn));
        match kind {
            Fault::HangUp { abruptly } => {
                if let Some(conn) = conn {
                    server.hang_up(conn, abruptly, fabric);
                }
            }
            Fault::Break => {
                if let Some(session) = session {
                    // Large replies are on their way to the client before they end.
                    session.breaks = Some(fabric.random.pick(&[0, 20_000]));
                }
            }
            Fault::Garble => {
                if let Some(session) = session {
                    session.garbles = true;
                }
            }
            Fault::Surprise => {
                if let Some(session) = session {
                    session.surprise = Some(Surprise::any(&mut fabric.random));
                }
            }
            Fault::Stray => {
                if let Some(conn) = conn
                    && server.stray(conn, fabric)
                {
                    // It could not be told from the reply to a request that is written before it is
                    // read.
                    let gateway = fabric.network.conn(conn).gateway;
                    self.gateways[gateway as usize].push_first(Input::Readable { conn }, fabric);
                }
            }
            Fault::Restart | Fault::Down => {
                server.restart(fabric);
                server.health = Health::Down;
            }
            Fault::Hang => server.health = Health::Hung,
            Fault::Unreachable => {
                // Established connections are dead, too.
                server.health = Health::Unreachable;
                if fabric.random.percent(50) {
                    server.restart(fabric);
                }
            }
            Fault::Slow => server.health = Health::Slow,
            Fault::Unfriendly => server.health = Health::Unfriendly,
            Fault::Moody => server.health = Health::Moody,
        }
        let (pool, index) = (server.pool, server.index);
        // Broken and garbled replies come later; the session parameters of a connection may be
        // refused until the run is healed.
        self.fabric.oracle.trouble(pool, index, now);
        if self.servers[at].health != Health::Well {
            self.fabric.clock.plan(now + length, Event::Recover { server: at as u32 });
        } else if !matches!(kind, Fault::Break | Fault::Garble | Fault::Surprise) {
            self.end_trouble(at);
        }
    }

    /// Ends connections whose replies cannot be checked any more.
    pub(crate) fn end_lost(&mut self) {
        for conn in std::mem::take(&mut self.fabric.wires.lost) {
            if let Peer::Server(server) = self.fabric.network.conn(conn).peer {
                self.servers[server as usize].hang_up(conn, true, &mut self.fabric);
            }
        }
    }

    pub(crate) fn recover(&mut self, at: usize) {
        self.servers[at].recover(&mut self.fabric);
        self.fabric.trace.note(self.fabric.clock.now(), "recovers: server", [at as u64, 0, 0]);
        self.end_trouble(at);
    }

    /// Errors may be blamed on the server until gateways have tried again.
    fn end_trouble(&mut self, at: usize) {
        let (pool, server) = (self.servers[at].pool, self.servers[at].index);
        let until = self.fabric.end_of_trouble(pool);
        self.fabric.oracle.trouble_ends(pool, server, until);
    }

    /// From here on there are no faults.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
        self.fabric.trace.note(self.fabric.clock.now(), "all is healed", [0; 3]);
        for at in 0..self.servers.len() {
            self.recover(at);
        }
        self.heal_cluster();
        for client in &mut self.clients {
            client.calm(&mut self.fabric);
        }
    }
}
