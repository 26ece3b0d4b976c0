//! Passes descriptors and a text to the next program in the same process, or to a process that
//! inspects them.
//!
//! They wait in a socket that the other program finds as its standard input. Nothing else survives
//! the exec, and a failed exec has changed nothing. Two versions of cashew meet here, so this
//! format must never change: messages of one byte with at most [`BATCH`] descriptors each, until
//! the end of the stream. The first descriptor is a sealed memfd with the text.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

/// Below the kernel's limit of 253 (SCM_MAX_FD).
const BATCH: usize = 200;

/// The socket with all of it. Closed on exec, like all descriptors of this process.
pub(crate) fn send(text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let memfd = cashew_control::seal(text)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let all: Vec<_> = std::iter::once(memfd.as_fd()).chain(descriptors.iter().copied()).collect();
    for batch in all.chunks(BATCH) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let pushed = control.push(SendAncillaryMessage::ScmRights(batch));
        assert!(pushed, "the space is for a batch");
        sendmsg(&ours, &[IoSlice::new(b"d")], &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(theirs)
}

/// Receives what [`send`] put there.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut descriptors = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut byte = [0];
        let received = recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // Most likely the limit of open files is too low.
            return Err(io::Error::other("descriptors are missing"));
        }
        if received.bytes == 0 {
            break;
        }
    }
    if descriptors.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let text = cashew_control::unseal(descriptors.remove(0))?;
    Ok((text, descriptors))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn everything_arrives_in_order() {
        let pipes: Vec<_> = (0..BATCH + 7).map(|_| io::pipe().unwrap()).collect();
        let ends: Vec<_> = pipes.iter().map(|(_, writer)| writer.as_fd()).collect();
        let socket = send(b"state", &ends).unwrap();
        let (text, descriptors) = receive(&socket).unwrap();
        assert_eq!((&*text, descriptors.len()), (&b"state"[..], BATCH + 7));
        let readers: Vec<_> = pipes.into_iter().map(|(reader, _)| reader).collect();
        for (number, descriptor) in descriptors.into_iter().enumerate() {
            writeln!(File::from(descriptor), "{number}").unwrap();
        }
        for (number, mut reader) in readers.into_iter().enumerate() {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            assert_eq!(text.trim().parse(), Ok(number));
        }
    }

    #[test]
    fn an_invalid_handover_is_refused() {
        assert!(receive(File::open("/dev/null").unwrap()).is_err());
        let (ours, theirs) = cashew_control::pair().unwrap();
        assert!(receive(&ours).is_err(), "it waits for nobody");
        drop(theirs);
        assert!(receive(&ours).is_err());
    }
}
