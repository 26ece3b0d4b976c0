//! Clients that move between gateways.

use cashew_engine::{CloseReason, ConnId, Export, ListenerId};

use crate::clock::Event;
use crate::gateway::{Gateway, Input, Socket, Wish};
use crate::network::{Peer, Side};
use crate::random::Random;
use crate::scenario::pool_id;
use crate::world::{Fabric, Letter, World};

/// How often and how long gateways hand clients over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moves {
    pub(crate) gap_max_us: u64,
    pub(crate) count_max: u64,
}

impl Moves {
    pub(crate) fn of(random: &mut Random) -> Self {
        Self {
            gap_max_us: random.pick(&[500, 3_000, 20_000]),
            count_max: random.pick(&[5, 40, 200]),
        }
    }
}

/// Which clients are to leave a gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    All,
    Share {
        permille: u32,
    },
    /// One of its clients, by any number.
    One(u64),
    /// That one may stay.
    NotOne(u64),
    Nobody,
}

impl World<'_> {
    /// A client is told to leave, or to stay after all.
    pub(crate) fn shift(&mut self) {
        let Some(moves) = self.scenario.moves else { return };
        if self.healed || self.shifts >= moves.count_max {
            return;
        }
        self.shifts += 1;
        let at = self.fabric.clock.now() + self.fabric.random.below(moves.gap_max_us);
        self.fabric.clock.plan(at, Event::Shift);
        let gateways = u64::from(self.scenario.gateways);
        let gateway = self.fabric.random.below(gateways) as u32;
        let number = self.fabric.random.next();
        let leave = match self.fabric.random.below(6) {
            0 | 1 if self.retired.contains(&gateway) => {
                self.retired.remove(&gateway);
                Leave::Nobody
            }
            // One gateway has to take them.
            0 if self.retired.len() as u64 + 1 < gateways => {
                self.retired.insert(gateway);
                Leave::All
            }
            0 | 1 => Leave::Share { permille: (number % 1001) as u32 },
            2 => Leave::NotOne(number),
            _ => Leave::One(number),
        };
        let numbers = [gateway.into(), self.shifts, 0];
        let what: &'static str = match leave {
            Leave::All => "all are to leave",
            Leave::Share { .. } => "a share is to leave",
            Leave::One(_) => "one is to leave",
            Leave::NotOne(_) => "one need not leave",
            Leave::Nobody => "nobody need leave",
        };
        self.fabric.trace.note(self.fabric.clock.now(), what, numbers);
        self.tell(gateway, Input::Leave(leave));
    }

    /// A client that has left a gateway goes to another one, if there is any.
    pub(crate) fn hand_over(&mut self, from: u32, conn: u32, export: Box<Export>) {
        let takes = |&gateway: &u32| !self.retired.contains(&gateway) && !self.has_drained(gateway);
        let mut takers: Vec<u32> = (0..self.scenario.gateways).filter(takes).collect();
        if takers.len() > 1 {
            takers.retain(|&gateway| gateway != from);
        }
        if takers.is_empty() {
            // The others are draining by now: it has to continue here.
            self.retired.remove(&from);
            self.tell(from, Input::Leave(Leave::Nobody));
            takers.push(from);
        }
        let gateway = self.fabric.random.pick(&takers);
        let at = self.fabric.clock.now() + self.fabric.random.range(10, 1_000);
        // It comes by the channel that orders come by.
        let last = &mut self.last_letter[gateway as usize];
        *last = at.max(*last);
        let at = *last;
        self.post(Letter::ToGateway { gateway, input: Input::Adopt { conn, export } }, at);
    }
}

impl Gateway {
    pub(crate) fn leave(&mut self, leave: Leave, fabric: &mut Fabric) {
        let now = fabric.clock.time();
        match leave {
            Leave::All => self.engine.leave_all(now),
            Leave::Nobody => self.engine.stay_all(now),
            Leave::Share { permille } => {
                self.engine.leave_share(permille, now);
            }
            Leave::One(number) | Leave::NotOne(number) => {
                let is_client = |socket: &Socket| {
                    let peer = socket.conn.map(|conn| fabric.network.conn(conn).peer);
                    matches!(peer, Some(Peer::Client(_)))
                };
                let clients = self.sockets.iter().filter(|(_, socket)| is_client(socket));
                let clients: Vec<u64> = clients.map(|(&token, _)| token).collect();
                if clients.is_empty() {
                    return;
                }
                let conn = ConnId::from_token(clients[number as usize % clients.len()]);
                match leave {
                    Leave::One(_) => self.engine.handle_leave(conn, now),
                    _ => self.engine.handle_stay(conn),
                }
            }
        }
    }

    /// The engine wants the connection detached, which may take a while.
    pub(crate) fn detach(&mut self, token: u64, fabric: &mut Fabric) {
        let Some(socket) = self.sockets.get_mut(&token) else { return };
        socket.detaching = true;
        self.push(Input::Detached { token }, fabric);
    }

    pub(crate) fn detached(&mut self, token: u64, fabric: &mut Fabric) {
        let Some(conn) = self.sockets.get(&token).and_then(|socket| socket.conn) else { return };
        // What the kernel had received already is reported first.
        if fabric.random.percent(50) {
            self.read(conn, fabric);
        }
        if fabric.network.is_reset(conn, Side::Gateway) {
            // That comes instead.
            return;
        }
        let now = fabric.clock.time();
        let Some(export) = self.engine.export(ConnId::from_token(token), now) else { return };
        self.remove(token);
        fabric.network.name(conn, 0);
        fabric.oracle.counts.moves += 1;
        let (input, output) = (export.input.len() as u64, export.output.len() as u64);
        fabric.oracle.counts.moved_bytes += input + output;
        let numbers = [u64::from(self.id), u64::from(conn), input];
        fabric.trace.note(fabric.clock.now(), "gateway lets go of", numbers);
        self.wishes.push(Wish::HandOver { conn, export: Box::new(export) });
    }

    pub(crate) fn adopt(&mut self, conn: u32, export: Box<Export>, fabric: &mut Fabric) {
        let now = fabric.clock.time();
        let Peer::Client(client) = fabric.network.conn(conn).peer else { return };
        let numbers = [u64::from(self.id), u64::from(conn), export.output.len() as u64];
        fabric.trace.note(fabric.clock.now(), "gateway takes in", numbers);
        fabric.oracle.moved(client, self.id);
        fabric.network.belong(conn, self.id);
        let Export { parts, input, output, .. } = *export;
        // It may have another place here, or none any more.
        let wanted = fabric.oracle.pool_of(client);
        let name = &fabric.pools[wanted as usize].name;
        let is_it = |&pool: &ListenerId| pool_id(self.engine.listener_config(pool)) == wanted;
        let Some(pool) = self.engine.listener_named(name).filter(is_it) else {
            self.close(conn, fabric);
            return;
        };
        let id = self.engine.handle_adopted(pool, parts, input, output, now);
        fabric.network.name(conn, id.token());
        let previous = self.sockets.insert(id.token(), Socket::of(conn));
        assert!(previous.is_none(), "a token names two");
        if fabric.network.is_reset(conn, Side::Gateway) {
            self.remove(id.token());
            self.engine.handle_closed(id, CloseReason::Reset, now);
        } else {
            self.push(Input::Readable { conn }, fabric);
        }
    }
}
