//! One end of a control channel. It owns the socket and does the framing: a version byte, then one
//! JSON message, with descriptors attached. It never blocks; poll its descriptor to wait.

use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frozen::Frozen;

/// First byte of every message, raised with any change of a message that is not
/// [frozen](crate::frozen). Both ends are the same binary until an upgrade; then this shows the
/// difference.
///
/// With `CASHEW_TEST_BUMP` in the compiler's environment it is one more, as in a later release.
/// This is for tests of upgrades only.
pub const VERSION: u8 = 1 + option_env!("CASHEW_TEST_BUMP").is_some() as u8;

/// Largest message with its version byte. The largest valid one, the ring of a pool of 65,536
/// servers, takes a quarter of it. It must stay below the kernel's default socket buffer.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The most descriptors of one message.
pub const DESCRIPTORS_MAX: usize = 4;

/// One end of a channel, which sends `S` and receives `R`.
#[derive(Debug)]
pub struct Channel<S, R> {
    socket: OwnedFd,
    /// The version of the other end.
    version: u8,
    buf: Box<[u8]>,
    /// Descriptors of the last message are missing.
    is_stripped: bool,
    messages: PhantomData<fn(S) -> R>,
}

/// Why a message was not sent. No part of it was.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The other side has not read the earlier messages.
    #[error("the channel is full")]
    WouldBlock,
    #[error("the channel is closed")]
    Closed,
    #[error("a message of {0} bytes is too large for the channel")]
    TooLarge(usize),
    #[error("{0} descriptors are too many for one message")]
    TooManyDescriptors(usize),
    #[error("the message cannot be written as JSON: {0}")]
    Unwritable(serde_json::Error),
    #[error("the other side has version {0} and does not understand the message")]
    Version(u8),
    #[error("cannot send on the channel: {0}")]
    Io(io::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The other side closed its end, most likely by dying.
    #[error("the channel is closed")]
    Closed,
    #[error("a message came truncated")]
    Truncated,
    #[error("received a message of version {came} instead of {expected}")]
    Version { came: u8, expected: u8 },
    #[error("invalid message: {0}")]
    Malformed(serde_json::Error),
    #[error("cannot receive from the channel: {0}")]
    Io(io::Error),
}

/// The two ends of a new channel.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl<S: Serialize + Frozen, R: DeserializeOwned + Frozen> Channel<S, R> {
    /// `socket` is one end of a [`pair`].
    pub fn new(socket: OwnedFd) -> Self {
        Self::speaking(socket, VERSION)
    }

    /// The other end may have another version. Then only [frozen](crate::frozen) messages are sent
    /// and received; all others are skipped.
    pub fn speaking(socket: OwnedFd, version: u8) -> Self {
        let buf = vec![0; MESSAGE_BYTES_MAX].into_boxed_slice();
        Self { socket, version, buf, is_stripped: false, messages: PhantomData }
    }

    /// The version of the other end.
    pub fn version(&self) -> u8 {
        self.version
    }

    fn is_foreign(&self) -> bool {
        self.version != VERSION
    }

    pub fn send(&self, message: &S, descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(SendError::TooManyDescriptors(descriptors.len()));
        }
        if self.is_foreign() && !message.is_frozen() {
            return Err(SendError::Version(self.version));
        }
        let mut bytes = vec![self.version];
        serde_json::to_writer(&mut bytes, message).map_err(SendError::Unwritable)?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(SendError::TooLarge(bytes.len()));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(pushed, "the space is for DESCRIPTORS_MAX");
        }
        // NOSIGNAL: a dead reader is an error to handle, not a SIGPIPE.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let iov = [IoSlice::new(&bytes)];
        match retry(|| rustix::net::sendmsg(&self.socket, &iov, &mut control, flags)) {
            Ok(sent) => {
                assert_eq!(sent, bytes.len(), "SOCK_SEQPACKET sends a whole message or none");
                Ok(())
            }
            // ETOOMANYREFS: too many descriptors of this user are in flight. This ends as the other
            // side reads.
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => Err(SendError::WouldBlock),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(SendError::Closed),
            Err(errno) => Err(SendError::Io(errno.into())),
        }
    }

    /// Whether the last message received has lost its descriptors because this process had no free
    /// one. The channel itself is fine.
    pub fn is_stripped(&self) -> bool {
        self.is_stripped
    }

    /// The next message with its descriptors, or `None` if there is none now. Without room for all
    /// descriptors it comes without any, see [`Channel::is_stripped`].
    pub fn receive(&mut self) -> Result<Option<(R, Vec<OwnedFd>)>, ReceiveError> {
        loop {
            let Some((len, descriptors)) = self.receive_bytes()? else { return Ok(None) };
            // Empty datagrams are never sent, so this is the end.
            let Some((&version, json)) = self.buf[..len].split_first() else {
                return Err(ReceiveError::Closed);
            };
            if version != self.version {
                return Err(ReceiveError::Version { came: version, expected: self.version });
            }
            match serde_json::from_slice::<R>(json) {
                Ok(message) if !self.is_foreign() || message.is_frozen() => {
                    return Ok(Some((message, descriptors)));
                }
                Err(error) if !self.is_foreign() => return Err(ReceiveError::Malformed(error)),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// The next datagram, in `buf`.
    fn receive_bytes(&mut self) -> Result<Option<(usize, Vec<OwnedFd>)>, ReceiveError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut iov = [IoSliceMut::new(&mut self.buf)];
        let received = loop {
            match rustix::net::recvmsg(&self.socket, &mut iov, &mut control, flags) {
                Ok(received) => break received,
                // The other side died with unread messages. The error comes once, before its own
                // messages.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(ReceiveError::Io(errno.into())),
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        // The kernel drops descriptors that find no free number. It reports this as if more came
        // than are ever sent.
        self.is_stripped = received.flags.contains(ReturnFlags::CTRUNC);
        let are_too_many = self.is_stripped && descriptors.len() >= DESCRIPTORS_MAX;
        if are_too_many || received.flags.contains(ReturnFlags::TRUNC) {
            return Err(ReceiveError::Truncated);
        }
        if self.is_stripped {
            descriptors.clear();
        }
        Ok(Some((received.bytes, descriptors)))
    }
}

impl<S, R> AsFd for Channel<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::{Promoted, TopologyState};
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;
    use crate::{ChildChannel, MasterChannel, ToChild, ToMaster};

    #[test]
    fn messages_keep_their_order_and_borders() {
        let (master, mut worker) = channels();
        for pool in 0..5 {
            master.send(&ToChild::Listen { listener: pool, pool }, &[]).unwrap();
        }
        for pool in 0..5 {
            let (message, descriptors) = worker.receive().unwrap().unwrap();
            assert_eq!(message, ToChild::Listen { listener: pool, pool });
            assert!(descriptors.is_empty());
        }
        assert!(worker.receive().unwrap().is_none());
    }

    #[test]
    fn descriptors_pass_and_do_not_survive_exec() {
        let (master, mut worker) = channels();
        let (mut first, sent_first) = io::pipe().unwrap();
        let (sent_second, mut second) = io::pipe().unwrap();
        master
            .send(
                &ToChild::Init { slot: 1, rank: 1, workers: 2 },
                &[sent_first.as_fd(), sent_second.as_fd()],
            )
            .unwrap();
        drop((sent_first, sent_second));

        let (_, descriptors) = worker.receive().unwrap().unwrap();
        let [writer, reader] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
        for descriptor in [&writer, &reader] {
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        File::from(writer).write_all(b"through").unwrap();
        let mut text = String::new();
        first.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        second.write_all(b"back").unwrap();
        drop(second);
        text.clear();
        File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "back");
    }

    #[test]
    fn a_dead_peer_shows_as_closed() {
        let (master, mut worker) = channels();
        master.send(&ToChild::Start, &[]).unwrap();
        drop(master);
        assert!(worker.receive().unwrap().is_some(), "what was sent before is still delivered");
        assert!(matches!(worker.receive(), Err(ReceiveError::Closed)));
        assert!(matches!(worker.send(&ToMaster::Ready, &[]), Err(SendError::Closed)));
    }

    #[test]
    fn messages_of_a_dead_peer_are_read_before_the_end() {
        let (mut master, worker) = channels();
        master.send(&ToChild::Start, &[]).unwrap();
        worker.send(&ToMaster::Ready, &[]).unwrap();
        drop(worker);
        let (message, _) = master.receive().unwrap().unwrap();
        assert_eq!(message, ToMaster::Ready);
        assert!(matches!(master.receive(), Err(ReceiveError::Closed)));
    }

    #[test]
    fn a_full_channel_does_not_block() {
        let (master, mut worker) = channels();
        let mut sent = 0;
        loop {
            match master.send(&ToChild::LogLevel { level: 5 }, &[]) {
                Ok(()) => sent += 1,
                Err(SendError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(worker.receive().unwrap().is_some());
        for _ in 1..sent {
            worker.receive().unwrap().unwrap();
        }
        assert!(worker.receive().unwrap().is_none());
    }

    #[test]
    fn the_largest_ring_fits() {
        let (master, mut worker) = channels();
        let live: Vec<bool> = (0..65_536).map(|server| server % 5 != 0).collect();
        let primaries = vec![Promoted { shard: 0, server: u32::MAX }];
        let topology = TopologyState {
            live,
            primaries,
            reigns: vec![(7, 1)],
            shares: vec![(u32::MAX, 999); 100],
        };
        let message = ToChild::Release { pool: u32::MAX, version: u64::MAX, topology };
        master.send(&message, &[]).unwrap();
        assert_eq!(worker.receive().unwrap().unwrap().0, message);
    }

    #[test]
    fn too_large_messages_are_not_sent() {
        let (mut master, worker) = channels();
        let why = "x".repeat(MESSAGE_BYTES_MAX);
        assert!(matches!(
            worker.send(&ToMaster::Failed { why }, &[]),
            Err(SendError::TooLarge(bytes)) if bytes > MESSAGE_BYTES_MAX
        ));
        let many = [worker.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(matches!(
            worker.send(&ToMaster::Ready, &many),
            Err(SendError::TooManyDescriptors(_))
        ));
        assert!(master.receive().unwrap().is_none());
    }

    #[test]
    fn too_large_messages_are_refused() {
        let (raw, end) = pair().unwrap();
        let mut worker = ChildChannel::new(end);
        let bytes = vec![VERSION; MESSAGE_BYTES_MAX + 1];
        rustix::net::send(&raw, &bytes, SendFlags::empty()).unwrap();
        assert!(matches!(worker.receive(), Err(ReceiveError::Truncated)));

        let many = [raw.as_fd(); 2 * DESCRIPTORS_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let bytes = [VERSION, b'1'];
        let iov = [IoSlice::new(&bytes)];
        rustix::net::sendmsg(&raw, &iov, &mut control, SendFlags::empty()).unwrap();
        assert!(matches!(worker.receive(), Err(ReceiveError::Truncated)));
        assert!(worker.receive().unwrap().is_none());
    }

    #[test]
    fn garbage_is_refused_and_skipped() {
        let (raw, end) = pair().unwrap();
        let mut worker = ChildChannel::new(end);
        let say = |version: u8, json: &str| {
            let bytes = [&[version], json.as_bytes()].concat();
            rustix::net::send(&raw, &bytes, SendFlags::empty()).unwrap();
        };
        for json in ["", "{", r#"{"type":"sing"}"#, r#"{"type":"hold"}"#] {
            say(VERSION, json);
            assert!(matches!(worker.receive(), Err(ReceiveError::Malformed(_))), "{json:?}");
        }
        let other = VERSION + 1;
        say(other, r#"{"type":"start"}"#);
        assert!(
            matches!(worker.receive(), Err(ReceiveError::Version { came, .. }) if came == other)
        );
        say(VERSION, r#"{"type":"start"}"#);
        assert_eq!(worker.receive().unwrap().unwrap().0, ToChild::Start);
    }

    fn channels() -> (MasterChannel, ChildChannel) {
        let (master, worker) = pair().unwrap();
        (MasterChannel::new(master), ChildChannel::new(worker))
    }
}
