//! Messages to the master, mainly sessions.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cashew_control::{
    ChildChannel, SESSION_VERSION, SESSION_VERSION_MIN, SESSION_VERSION_PAIRED,
    SESSION_VERSION_SECURED, SESSION_VERSION_TRACKING, SecuredSession, SendError, Session,
    ToMaster, unseal,
};
use cashew_driver::Luggage;

/// How many sessions may wait to be sent, including those being detached. Nobody serves their
/// clients meanwhile.
pub(crate) const UNSENT_MAX: usize = 256;

/// Messages that the channel has not taken yet, in order.
#[derive(Default)]
pub(crate) struct Outbox {
    mail: VecDeque<Mail>,
    /// How many of the messages are sessions.
    sessions: usize,
}

struct Mail {
    message: ToMaster,
    /// A memfd that goes with the message, unless it is a session.
    enclosed: Option<OwnedFd>,
    session: Option<Parcel>,
}

/// What goes with a session.
struct Parcel {
    socket: OwnedFd,
    /// That of the connection to the server, of a session whose bytes pass through.
    partner: Option<OwnedFd>,
    /// Input that was not consumed and output still to be written, if any.
    bytes: Option<OwnedFd>,
    /// The quota in which the client is counted, wherever it is served.
    quota: u32,
}

/// The result of sending the outbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) is_master_alive: bool,
    /// Quotas of clients whose sessions could not be sent and are closed now.
    pub(crate) lost: Vec<u32>,
}

impl Outbox {
    pub(crate) fn push(&mut self, message: ToMaster) {
        self.push_with(message, None);
    }

    pub(crate) fn push_with(&mut self, message: ToMaster, enclosed: Option<OwnedFd>) {
        self.mail.push_back(Mail { message, enclosed, session: None });
    }

    pub(crate) fn hand_over(
        &mut self,
        session: Session,
        socket: OwnedFd,
        bytes: Option<OwnedFd>,
        quota: u32,
    ) {
        self.hand_over_pair(session, (socket, None), bytes, quota);
    }

    /// As [`Outbox::hand_over`], with the socket of the connection to the server, if there is one.
    pub(crate) fn hand_over_pair(
        &mut self,
        session: Session,
        (socket, partner): (OwnedFd, Option<OwnedFd>),
        bytes: Option<OwnedFd>,
        quota: u32,
    ) {
        let message = ToMaster::HandOver { session };
        let session = Some(Parcel { socket, partner, bytes, quota });
        self.mail.push_back(Mail { message, enclosed: None, session });
        self.sessions += 1;
    }

    /// Messages not sent yet.
    pub(crate) fn len(&self) -> usize {
        self.mail.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mail.is_empty()
    }

    /// Sessions not sent yet.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions
    }

    /// Sends what the channel takes.
    pub(crate) fn send(&mut self, control: &ChildChannel) -> Sent {
        let mut lost = Vec::new();
        while let Some(Mail { message, enclosed, session }) = self.mail.front() {
            let result = match session {
                None => {
                    let enclosed: Vec<_> = enclosed.iter().map(AsFd::as_fd).collect();
                    control.send(message, &enclosed)
                }
                Some(parcel) => control.send(message, &parcel.descriptors()),
            };
            match result {
                Err(SendError::WouldBlock) => break,
                Err(SendError::Closed) => return Sent { is_master_alive: false, lost },
                Ok(()) => drop(self.next()),
                Err(error) => {
                    tracing::error!("cannot send a message to the master: {error}");
                    lost.extend(self.next());
                }
            }
        }
        Sent { is_master_alive: true, lost }
    }

    /// Removes the first message. Returns the quota if it is a session.
    fn next(&mut self) -> Option<u32> {
        let parcel = self.mail.pop_front()?.session?;
        self.sessions -= 1;
        Some(parcel.quota)
    }

    /// Closes all unsent sessions. Returns the quotas of their clients.
    pub(crate) fn give_up(&mut self) -> Vec<u32> {
        let quotas = self.mail.iter().filter_map(|mail| mail.session.as_ref().map(|p| p.quota));
        let quotas = quotas.collect();
        self.mail.retain(|mail| mail.session.is_none());
        self.sessions = 0;
        quotas
    }
}

impl Parcel {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [&self.socket]
            .into_iter()
            .chain(&self.partner)
            .chain(&self.bytes)
            .map(AsFd::as_fd)
            .collect()
    }
}

/// A session that has arrived.
pub(crate) struct Arrived {
    pub(crate) socket: OwnedFd,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    /// Of one with TLS.
    pub(crate) luggage: Option<Luggage>,
    /// The connection to the server, of a session whose bytes pass through.
    pub(crate) partner: Option<(OwnedFd, Option<Luggage>)>,
}

/// Unpacks the descriptors that came with a session.
pub(crate) fn unpack(session: &Session, descriptors: Vec<OwnedFd>) -> io::Result<Arrived> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let is_known = match session.secured {
        _ if session.paired.is_some() => session.version == SESSION_VERSION_PAIRED,
        _ if session.tracking.is_some() => session.version == SESSION_VERSION_TRACKING,
        None => (SESSION_VERSION_MIN..=SESSION_VERSION).contains(&session.version),
        Some(_) => session.version == SESSION_VERSION_SECURED,
    };
    if !is_known {
        return Err(invalid("it is of a version that is not known here"));
    }
    let mut descriptors = descriptors.into_iter();
    let socket = descriptors.next().ok_or_else(|| invalid("its socket is missing"))?;
    let paired = session.paired.as_deref();
    let partner = paired.map(|_| descriptors.next().ok_or_else(|| invalid("a socket is missing")));
    let partner = partner.transpose()?;
    let mut input = descriptors.next().map(unseal).transpose()?.unwrap_or_default();
    let encrypted_of = |secured: Option<&SecuredSession>| match secured {
        Some(&SecuredSession { input, output, .. }) => [input, output],
        None => [0, 0],
    };
    let secured_partner = paired.and_then(|paired| paired.secured.as_deref());
    let of_client = encrypted_of(session.secured.as_deref());
    let of_server = encrypted_of(secured_partner);
    let lengths = [[session.input, session.output], of_client, of_server].concat();
    let len = lengths.iter().try_fold(0_u64, |sum, len| sum.checked_add(*len));
    if len != Some(input.len() as u64) {
        return Err(invalid("its bytes are not as many as it says"));
    }
    let mut split = |[of_input, of_output]: [u64; 2], secured: Option<&SecuredSession>| {
        let encrypted = input.split_off(input.len() - (of_input + of_output) as usize);
        let (received, unwritten) = encrypted.split_at(of_input as usize);
        secured.map(|secured| Luggage {
            parted: secured.parted.clone(),
            input: received.to_vec(),
            output: unwritten.to_vec(),
            holds_byte: secured.holds_byte,
        })
    };
    // The last comes off first.
    let server_luggage = split(of_server, secured_partner);
    let luggage = split(of_client, session.secured.as_deref());
    let partner = partner.map(|socket| (socket, server_luggage));
    let output = input.split_off(session.input as usize);
    // Otherwise it would keep room for both as long as the client is idle.
    input.shrink_to_fit();
    Ok(Arrived { socket, input, output, luggage, partner })
}

#[cfg(test)]
mod tests {
    use cashew_control::{MasterChannel, pair, seal};

    use super::*;

    fn session() -> Session {
        Session { version: SESSION_VERSION, input: 2, output: 3, ..Session::default() }
    }

    #[test]
    fn sessions_are_sent_in_order_with_their_descriptors() {
        let (master, worker) = pair().unwrap();
        let (mut master, worker) = (MasterChannel::new(master), ChildChannel::new(worker));
        let mut outbox = Outbox::default();
        for id in 0..3000 {
            let (socket, _) = pair().unwrap();
            let bytes = (id % 2 == 0).then(|| seal(b"inout").unwrap());
            outbox.hand_over(Session { id, ..session() }, socket, bytes, 7);
            assert_eq!(outbox.send(&worker), Sent { is_master_alive: true, lost: Vec::new() });
        }
        outbox.push(ToMaster::Ready);
        assert!(outbox.sessions() > 0, "no channel takes so many");
        for expected in 0..3000 {
            outbox.send(&worker);
            let (message, descriptors) = master.receive().unwrap().unwrap();
            let ToMaster::HandOver { session } = message else { panic!("{message:?}") };
            assert_eq!(session.id, expected);
            assert_eq!(descriptors.len(), if expected % 2 == 0 { 2 } else { 1 });
            if descriptors.len() == 2 {
                let arrived = unpack(&session, descriptors).unwrap();
                assert_eq!((&*arrived.input, &*arrived.output), (&b"in"[..], &b"out"[..]));
            }
        }
        outbox.send(&worker);
        assert!(outbox.is_empty() && outbox.sessions() == 0);
        assert_eq!(master.receive().unwrap().unwrap().0, ToMaster::Ready);
    }

    #[test]
    fn a_session_too_large_for_a_message_is_lost_and_reported() {
        let (master, worker) = pair().unwrap();
        let (mut master, worker) = (MasterChannel::new(master), ChildChannel::new(worker));
        let mut outbox = Outbox::default();
        let name = Some(vec![0xff; 60_000]);
        outbox.hand_over(Session { name, ..session() }, pair().unwrap().0, None, 9);
        outbox.hand_over(session(), pair().unwrap().0, None, 8);
        assert_eq!(outbox.send(&worker), Sent { is_master_alive: true, lost: vec![9] });
        assert!(matches!(master.receive().unwrap().unwrap().0, ToMaster::HandOver { .. }));
    }

    #[test]
    fn unsent_sessions_can_be_given_up() {
        let mut outbox = Outbox::default();
        outbox.push(ToMaster::Ready);
        outbox.hand_over(session(), pair().unwrap().0, None, 3);
        outbox.hand_over(session(), pair().unwrap().0, None, 4);
        assert_eq!(outbox.give_up(), [3, 4]);
        assert_eq!((outbox.sessions(), outbox.is_empty()), (0, false));
    }

    #[test]
    fn inconsistent_sessions_are_refused() {
        let socket = || pair().unwrap().0;
        assert!(unpack(&session(), vec![]).is_err());
        assert!(unpack(&session(), vec![socket()]).is_err());
        assert!(unpack(&session(), vec![socket(), seal(b"inou").unwrap()]).is_err());
        assert!(unpack(&session(), vec![socket(), socket()]).is_err());
        let huge = Session { input: u64::MAX, output: 6, ..session() };
        assert!(unpack(&huge, vec![socket(), seal(b"inout").unwrap()]).is_err());
        let later = Session { version: SESSION_VERSION + 1, input: 0, output: 0, ..session() };
        assert!(unpack(&later, vec![socket()]).is_err());
        // One with TLS is no plain one, whatever its version.
        let secured =
            Session { version: SESSION_VERSION_SECURED, input: 0, output: 0, ..session() };
        assert!(unpack(&secured, vec![socket()]).is_err());
        let earlier = Session { version: SESSION_VERSION_MIN - 1, ..later };
        assert!(unpack(&earlier, vec![socket()]).is_err());
        let empty = Session { input: 0, output: 0, ..session() };
        assert!(unpack(&empty, vec![socket()]).is_ok());
    }
}
