//! Connections that do nothing: each sends one GET, is held, and is asked once more at the end.

use crate::meter::{Group, Meter};
use crate::socket;
use crate::steady::Source;
use crate::wire::{Checker, Op, Pending, Wire};
use crate::{Failure, Plan};
use rustix::event::PollFlags;
use rustix::fd::OwnedFd;
use std::collections::VecDeque;

const RECEIVE_BUFFER: usize = 1 << 14;

pub fn run(plan: &Plan, wire: &Wire, meter: &mut Meter, mut source: Source) -> Result<(), Failure> {
    let mut connections = Vec::with_capacity(plan.connections);
    for index in 0..plan.connections {
        let connection = socket::open(plan.target(index), None, false)?;
        ask(&connection, wire, meter, &mut source)?;
        connections.push(connection);
    }
    meter.begin();
    while !meter.over() {
        std::thread::sleep(std::time::Duration::from_millis(10));
        meter.advance(meter.now());
    }
    for connection in &connections {
        ask(connection, wire, meter, &mut source)?;
    }
    Ok(())
}

fn ask(fd: &OwnedFd, wire: &Wire, meter: &mut Meter, source: &mut Source) -> Result<(), Failure> {
    let (_, key) = source.next(wire.key_count());
    let mut request = Vec::new();
    wire.append(&mut request, Op::Get, key);
    let mut pending = VecDeque::from([Pending { since: meter.now(), op: Op::Get, key }]);
    let mut checker = Checker::default();
    socket::wait(fd, PollFlags::OUT)?;
    if socket::transmit(fd, &request)? != request.len() {
        return Err(Failure::Closed);
    }
    let mut buffer = vec![0; RECEIVE_BUFFER];
    while !pending.is_empty() {
        socket::wait(fd, PollFlags::IN)?;
        match socket::receive(fd, &mut buffer)? {
            None => {}
            Some(0) => return Err(Failure::Closed),
            Some(count) => {
                checker.feed(wire, &buffer[..count], &mut pending, |request, outcome| {
                    meter.finish(Group::Main, request.since, request, outcome);
                })?
            }
        }
    }
    match checker.first_error.take() {
        Some(error) => Err(Failure::Refused(error)),
        None => Ok(()),
    }
}
