//! Connections that do not stay: connect, one GET, close, again.

use crate::meter::{Group, Meter};
use crate::socket::{self, Poller};
use crate::steady::Source;
use crate::wire::{Checker, Op, Pending, Wire};
use crate::{Failure, Plan};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::VecDeque;
use std::time::Duration;

const RECEIVE_BUFFER: usize = 1 << 20;
const STALL: u64 = 10_000_000_000;

/// One client, which lives through many connections.
#[derive(Default)]
struct Slot {
    fd: Option<OwnedFd>,
    /// Counts the connections, so that an event of an earlier one is not taken for this one's.
    turn: u32,
    out: Vec<u8>,
    asked: bool,
    pending: VecDeque<Pending>,
    checker: Checker,
}

struct Short<'a> {
    plan: &'a Plan,
    wire: &'a Wire,
    meter: &'a mut Meter,
    source: Source,
    poller: Poller,
    slots: Vec<Slot>,
    buffer: Vec<u8>,
    opened: u32,
    last_reply: u64,
}

pub fn run(plan: &Plan, wire: &Wire, meter: &mut Meter, source: Source) -> Result<(), Failure> {
    let mut short = Short {
        plan,
        wire,
        meter,
        source,
        poller: Poller::new()?,
        slots: (0..plan.connections).map(|_| Slot::default()).collect(),
        buffer: vec![0; RECEIVE_BUFFER],
        // Runs that follow each other start with other source addresses.
        opened: std::process::id(),
        last_reply: 0,
    };
    short.meter.begin();
    for index in 0..short.slots.len() {
        short.open(index)?;
    }
    short.serve()
}

impl Short<'_> {
    fn serve(&mut self) -> Result<(), Failure> {
        loop {
            let now = self.meter.now();
            self.meter.advance(now);
            let open = self.slots.iter().filter(|slot| slot.fd.is_some()).count();
            if self.meter.over() && open == 0 {
                return Ok(());
            }
            if now > self.last_reply + STALL {
                return Err(Failure::Stalled(open));
            }
            self.poller.wait(Duration::from_millis(20))?;
            for event in 0..self.poller.count() {
                let (token, readable, writable) = self.poller.event(event);
                let (index, turn) = ((token & 0xffff_ffff) as usize, (token >> 32) as u32);
                if self.slots[index].turn != turn || self.slots[index].fd.is_none() {
                    continue;
                }
                if writable && !self.slots[index].asked {
                    self.request(index)?;
                }
                if readable {
                    self.reply(index)?;
                }
            }
        }
    }

    fn open(&mut self, index: usize) -> Result<(), Failure> {
        if !self.meter.may_send() {
            return Ok(());
        }
        let now = self.meter.now();
        self.opened = self.opened.wrapping_add(1);
        let fd = socket::open(self.plan.target(index), Some(self.opened), self.plan.reset)?;
        let slot = &mut self.slots[index];
        let (_, key) = self.source.next(self.wire.key_count());
        slot.turn = slot.turn.wrapping_add(1);
        slot.out.clear();
        slot.pending.clear();
        slot.checker = Checker::default();
        self.wire.append(&mut slot.out, Op::Get, key);
        slot.pending.push_back(Pending { since: now, op: Op::Get, key });
        slot.fd = Some(fd);
        let token = u64::from(slot.turn) << 32 | index as u64;
        // On loopback a connection usually stands when connect() returns.
        self.request(index)?;
        let fd = self.slots[index].fd.as_ref().expect("just set");
        self.poller.add(fd.as_fd(), token)?;
        Ok(())
    }

    /// Sends the request, unless the connection does not stand yet. Requests here are so small
    /// that the kernel takes them whole.
    fn request(&mut self, index: usize) -> Result<(), Failure> {
        let slot = &mut self.slots[index];
        let fd = slot.fd.as_ref().expect("only called on an open slot");
        slot.asked = socket::transmit(fd, &slot.out)? == slot.out.len();
        Ok(())
    }

    fn reply(&mut self, index: usize) -> Result<(), Failure> {
        let slot = &mut self.slots[index];
        let fd = slot.fd.as_ref().expect("only called on an open slot");
        let received = match socket::receive(fd, &mut self.buffer) {
            Ok(None) => return Ok(()),
            Ok(Some(count)) => count,
            Err(_) => 0,
        };
        let now = self.meter.now();
        if received == 0 {
            self.meter.fail("connection closed before its reply");
        } else {
            let meter = &mut *self.meter;
            slot.checker.feed(
                self.wire,
                &self.buffer[..received],
                &mut slot.pending,
                |request, outcome| meter.finish(Group::Main, now, request, outcome),
            )?;
            if !slot.pending.is_empty() {
                return Ok(());
            }
            if let Some(error) = slot.checker.first_error.take() {
                self.meter.first_error.get_or_insert(error);
            }
        }
        self.last_reply = now;
        slot.fd = None;
        self.meter.advance(now);
        self.open(index)
    }
}
