//! Sockets without waiting: connect, send and receive that say "not now" instead of blocking.

use crate::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send,
    socket_with, sockopt,
};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

/// On loopback nothing is lost and nothing needs pacing: the plainest algorithm costs the least.
/// Every Linux has this one, and lets anybody choose it.
const CONGESTION: &str = "reno";
/// Source addresses that short connections rotate through, so that ports never run out.
const SOURCES: u32 = 250;
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

pub fn open(target: SocketAddr, source: Option<u32>, reset: bool) -> io::Result<OwnedFd> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    sockopt::set_tcp_congestion(&fd, CONGESTION)?;
    if reset {
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
    }
    if let (Some(turn), true) = (source, target.is_ipv4() && target.ip().is_loopback()) {
        let address = Ipv4Addr::new(127, 0, 1, (turn % SOURCES + 1) as u8);
        bind(&fd, &SocketAddrV4::new(address, 0))?;
    }
    match connect(&fd, &target) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(error.into()),
    }
}

/// Bytes received; `None` when there is nothing now, `Some(0)` at the end of the stream.
pub fn receive(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match recv(fd, buffer, RecvFlags::empty()) {
        Ok((count, _)) => Ok(Some(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Bytes taken by the kernel, 0 when it takes none now.
pub fn transmit(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    match send(fd, bytes, SendFlags::NOSIGNAL) {
        Ok(count) => Ok(count),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Waits for one socket, where there is nothing else to do.
pub fn wait(fd: impl AsFd, events: PollFlags) -> Result<(), Failure> {
    match poll(&mut [PollFd::new(&fd, events)], Some(&PATIENCE)) {
        Ok(0) => Err(Failure::Stalled(1)),
        Ok(_) => Ok(()),
        Err(error) => Err(std::io::Error::from(error).into()),
    }
}

/// Edge-triggered: the kernel need not look at a drained socket a second time, and interest in
/// writing costs nothing until a send fell short. Whoever receives fewer bytes than asked for has
/// drained the socket; whoever receives as many must ask again.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(1024) })
    }

    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let interest = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), interest)?)
    }

    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let limit =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        self.events.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&limit),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub fn count(&self) -> usize {
        self.events.len()
    }

    /// Token, readable (or failed), writable.
    pub fn event(&self, index: usize) -> (u64, bool, bool) {
        let event = self.events[index];
        let flags = event.flags;
        let closed = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        (
            event.data.u64(),
            flags.intersects(epoll::EventFlags::IN | closed),
            flags.contains(epoll::EventFlags::OUT),
        )
    }
}
