//! A client's connection.

use std::num::NonZero;
use std::sync::Arc;

use cashew_acl::User;
use cashew_config::snapshot::{Notified, Protocol, Reads};
use cashew_protocol::redis::CommandId;
use cashew_protocol::{memcached, resp};

use crate::base::buffer::{BufPool, LARGE, Output};
use crate::base::fifo::Fifo;
use crate::base::id::{ConnId, ListenerId, RequestId};
use crate::base::time::Time;
use crate::downstream::activity::Activity;
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::listener::DestinationNumber;
use crate::downstream::session_modes::Modes;
use crate::downstream::totals::Totals;
use crate::downstream::upload::Upload;
use crate::downstream::window::UNKNOWN;
use crate::request::Request;
use crate::request::slab::Requests;
use crate::upstream::session_params::WireProtocol;

/// Everything about one client connection that the engine keeps.
///
/// The requests it is owed an answer to form one chain through `next_in_client`, from `head` to
/// `tail`.
pub(crate) struct Client {
    pub(crate) listener: ListenerId,
    /// Which of a server's lanes this client uses, modulo their number: always the same one, so
    /// that its requests to a server run in order.
    pub(crate) lane_choice: u16,
    /// By which its requests are known that nodes of clusters have sent to others, or 0: see [`crate::redis::sent_on`].
    pub(crate) asker: u32,
    /// Of which kind of lanes it is, by the backend's numbers: that of the session's dialect and
    /// database.
    pub(crate) variant: u16,
    /// Where its requests go, of what its port has.
    pub(crate) destination: DestinationNumber,
    /// What it called last.
    pub(crate) called: CommandId,
    pub(crate) head: RequestId,
    pub(crate) tail: RequestId,
    /// When it last had nothing to wait for and asked: see [`Activity`].
    pub(crate) asked_in: u32,
    /// Length of the chain.
    pub(crate) requests: u16,
    /// So many of its requests may be in flight: see [`crate::downstream::window`]. 0 where the next value is
    /// presumed to be large. Pipelines are never longer than fits into it.
    pub(crate) window: u16,
    /// Requests of late: see [`Activity::take_count`].
    pub(crate) asked: u32,
    /// Received and not consumed: the start of a request, or whatever came while paused.
    pub(crate) input: Vec<u8>,
    /// Where parsing the start of `input` got to, when it holds part of a request.
    pub(crate) parser: Option<Parser>,
    pub(crate) output: Output,
    /// Bytes of replies that wait in requests behind the head.
    pub(crate) held: u64,
    pub(crate) state: State,
    pub(crate) dirty: Dirty,
    /// Not read and not parsed until a limit is respected again.
    pub(crate) paused: bool,
    /// A large request or reply is on its way by another lane than the rest: nothing is dispatched
    /// before it is answered, or the order of requests to a server could change.
    pub(crate) fenced: bool,
    /// Listed among the clients that may go on.
    pub(crate) resumable: bool,
    /// It waits for replies, since its window has no more room.
    pub(crate) is_at_window: bool,
    /// Not read for want of memory.
    pub(crate) throttled: bool,
    /// The client has shut down its sending side: close when all is answered.
    pub(crate) read_closed: bool,
    /// The request being dispatched wants no reply: memcached's noreply, or CLIENT REPLY.
    pub(crate) noreply: bool,
    /// Its first byte is still to tell which of memcached's protocols it speaks.
    pub(crate) undecided: bool,
    /// The listener's `commands_version` when a server was asked about the command of the request at the
    /// front, or 0.
    pub(crate) looked_up: u8,
    /// How many it has given: see [`crate::downstream::password_guessing`].
    pub(crate) wrong_passwords: u8,
    pub(crate) skip: Skip,
    /// Its requests have to be looked at one by one, see [`Engine::update_off_fast_path`]: none takes the
    /// fast path.
    ///
    /// [`Engine::update_off_fast_path`]: crate::Engine::update_special
    pub(crate) off_fast_path: bool,
    /// That is so only as they do not go where others' go: they have a fast path of their own.
    pub(crate) goes_elsewhere: bool,
    /// Its connection is not read. One that waits for its server or for a lease is paused, but
    /// read, up to a limit.
    pub(crate) is_muted: bool,
    pub(crate) modes: Modes,
    /// It counts for `client_connections`; who is refused for that does not.
    pub(crate) has_place: bool,
    pub(crate) handoff: Handoff,
    /// Who answers its reads, if it has said so: see [`crate::redis::client_reads`]. It is of the session,
    /// but has room here.
    pub(crate) reads: Option<Reads>,
    pub(crate) totals: Totals,
    pub(crate) session: Session,
}

/// Whether it is listed among the connections with something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dirty {
    No,
    /// Among those that are owed more, whose replies had better go together.
    Patient,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// What it sends is the rest of a request that is being passed on.
    Uploading,
    /// Reads nothing more; closes when the replies owed are written.
    Closing,
}

/// Whether it goes to another process: see [`crate::downstream::handoff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Handoff {
    No,
    /// Its connection cannot go there.
    Tied,
    /// As soon as it is at rest; nothing more of it is dispatched.
    Asked,
    /// The driver is to let go of its connection.
    HandedOff,
}

impl Handoff {
    /// Whether it is to go.
    #[inline(always)]
    pub(crate) fn is_leaving(self) -> bool {
        self >= Self::Asked
    }
}

/// What a connection has agreed with its client: plain data, all that has to move with the
/// descriptor when a connection at rest goes to another process.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) protocol: Protocol,
    pub(crate) wire_protocol: WireProtocol,
    pub(crate) database: Selected,
    pub(crate) authenticated: bool,
    /// If it has said anything about itself, or is one of several users.
    pub(crate) profile: Option<Box<Profile>>,
    pub(crate) wishes: Wishes,
    /// When the client connected, in microseconds of the engine's time: perhaps to another process,
    /// before that began.
    pub(crate) since_us: i64,
}

/// What few clients ask for, in one byte, as each has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes(u8);

impl Wishes {
    const NO_EVICT: u8 = 1 << 7;

    pub(crate) fn new(no_evict: bool, notified: Notified) -> Self {
        let mut wishes = Self(notified.number());
        wishes.set_no_evict(no_evict);
        wishes
    }

    /// Set by CLIENT NO-EVICT: when memory is short, others are closed first.
    pub(crate) fn no_evict(self) -> bool {
        self.0 & Self::NO_EVICT != 0
    }

    pub(crate) fn set_no_evict(&mut self, on: bool) {
        self.0 = self.0 & !Self::NO_EVICT | if on { Self::NO_EVICT } else { 0 };
    }

    /// Set by CLIENT MAINT_NOTIFICATIONS.
    pub(crate) fn notified(self) -> Notified {
        Notified::numbered(self.0 & !Self::NO_EVICT)
    }

    pub(crate) fn set_notified(&mut self, notified: Notified) {
        *self = Self::new(self.no_evict(), notified);
    }
}

/// The database that a client has selected, if it has: as long as it has not it is to have its pool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selected(Option<NonZero<u32>>);

impl Selected {
    pub(crate) const NONE: Self = Self(None);

    /// Databases are below 2³¹.
    pub(crate) fn number(self) -> Option<u32> {
        self.0.map(|number| number.get() - 1)
    }
}

impl From<Option<u32>> for Selected {
    fn from(number: Option<u32>) -> Self {
        Self(number.and_then(|number| NonZero::new(number.wrapping_add(1))))
    }
}

/// What a client says of itself; empty where it has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Set by CLIENT SETNAME.
    pub name: Vec<u8>,
    /// Set by CLIENT SETINFO.
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    /// Who it has logged in as, where there are users. Only the name matters to where it moves.
    pub user: Option<Arc<User>>,
    /// When it has to log in again.
    pub expires_at: Option<Time>,
    /// What all keys of that user begin with. Known wherever it is.
    pub key_prefix: Option<Arc<KeyPrefix>>,
}

impl Profile {
    /// Its user by name; empty if there are no users, or if it is not known.
    pub fn user_name(&self) -> &str {
        self.user.as_ref().map_or("", |user| user.name())
    }

    /// The user of that name, if it is not empty. The rules are those of where it arrives.
    pub fn user_named(name: &str) -> Option<Arc<User>> {
        (!name.is_empty()).then(|| Arc::new(User::new(name)))
    }

    /// Of a client that has said nothing but who it is.
    pub(crate) fn of_user(user: Option<Arc<User>>) -> Option<Box<Self>> {
        user.map(|user| Box::new(Self { user: Some(user), ..Self::default() }))
    }
}

impl Session {
    /// The user whose rules are to be looked at.
    #[inline]
    pub(crate) fn restricted_user(&self) -> Option<&Arc<User>> {
        self.user().filter(|user| !user.is_unrestricted())
    }

    pub(crate) fn user(&self) -> Option<&Arc<User>> {
        self.profile.as_ref()?.user.as_ref()
    }

    pub(crate) fn key_prefix(&self) -> Option<&Arc<KeyPrefix>> {
        self.profile.as_ref()?.key_prefix.as_ref()
    }

    /// When it has to say again who it is.
    pub(crate) fn expires_at(&self) -> Option<Time> {
        self.profile.as_ref()?.expires_at
    }

    pub(crate) fn user_name(&self) -> &str {
        self.user().map_or("default", |user| user.name())
    }

    /// As CLIENT GETNAME tells it.
    pub(crate) fn name(&self) -> Option<&[u8]> {
        let name = &self.profile.as_ref()?.name;
        (!name.is_empty()).then_some(name)
    }

    /// Bytes allocated for what the client has said of itself.
    pub(crate) fn profile_size(&self) -> usize {
        self.profile.as_deref().map_or(0, |profile| {
            let Profile { name, library, library_version, user: _, expires_at: _, key_prefix: _ } =
                profile;
            let texts = name.capacity() + library.capacity() + library_version.capacity();
            size_of::<Profile>() + texts
        })
    }
}

/// CLIENT REPLY SKIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    No,
    /// The request behind the one being dispatched is not answered.
    AfterThis,
    /// The next request is not answered.
    This,
}

/// What knows where in the middle of a request the client is.
pub(crate) enum Parser {
    Redis(Box<resp::RequestParser>),
    Memcached(Box<memcached::RequestParser>),
    Binary(Box<memcached::binary::RequestParser>),
    Upload(Box<Upload>),
    /// So many bytes to come belong to a request that is refused already. Never 0.
    Swallow(u64),
}

impl Parser {
    /// Bytes allocated.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Redis(parser) => size_of_val(&**parser) + parser.allocated(),
            Self::Memcached(parser) => size_of_val(&**parser) + parser.allocated(),
            Self::Binary(parser) => size_of_val(&**parser),
            Self::Upload(upload) => size_of_val(&**upload),
            Self::Swallow(_) => 0,
        }
    }
}

impl Client {
    /// Puts a request at the end of the chain. It is to be added to what the client `asked`, who joins
    /// the crowd if there was none before it.
    #[inline(always)]
    pub(crate) fn append(&mut self, request: RequestId, requests: &mut Requests) {
        if self.head == RequestId::NONE {
            self.head = request;
        } else {
            requests[self.tail].next_in_client = request;
        }
        self.tail = request;
        self.requests += 1;
    }

    /// Lists it, under its name, among the clients with something to send.
    #[inline(always)]
    pub(crate) fn mark(
        &mut self,
        conn: ConnId,
        dirty: &mut Fifo<ConnId>,
        deferred: &mut Fifo<ConnId>,
    ) {
        let is_deferred = self.head != RequestId::NONE && self.output.len() < LARGE as u64;
        match (self.dirty, is_deferred) {
            (Dirty::No, true) => {
                self.dirty = Dirty::Patient;
                deferred.push(conn);
            }
            (Dirty::No | Dirty::Patient, false) => {
                self.dirty = Dirty::Yes;
                dirty.push(conn);
            }
            (Dirty::Yes, _) | (Dirty::Patient, true) => {}
        }
    }

    /// Moves replies that are complete and in turn into the output, which ends their requests;
    /// `ended` sees each of these with what was kept of its reply.
    #[inline]
    pub(crate) fn deliver_done(
        &mut self,
        requests: &mut Requests,
        bufs: &mut BufPool,
        activity: &mut Activity,
        mut ended: impl FnMut(RequestId, &Request),
    ) {
        while self.head != RequestId::NONE {
            let request = &mut requests[self.head];
            if !request.done {
                return;
            }
            ended(self.head, request);
            // It is empty if the reply went to the output by itself.
            if !request.reply.is_empty() {
                self.held -= request.reply.len() as u64;
                if request.silent {
                    request.reply.clear();
                } else if request.reply.len() < LARGE {
                    self.output.push(&request.reply, bufs);
                    request.reply.clear();
                } else {
                    self.output.push_buf(std::mem::take(&mut request.reply), bufs);
                }
            }
            self.end_head(requests, bufs, activity);
        }
    }

    /// The reply of the request that is next is in the output, which ends the request; returns when it
    /// began.
    #[inline(always)]
    pub(crate) fn end_head(
        &mut self,
        requests: &mut Requests,
        bufs: &mut BufPool,
        activity: &mut Activity,
    ) -> Time {
        let head = self.head;
        let request = &requests[head];
        let started = request.started;
        self.head = request.next_in_client;
        self.requests -= 1;
        requests.remove(head, bufs);
        if self.head == RequestId::NONE {
            activity.leave();
        }
        started
    }

    /// Its requests have to be looked at one by one from here on, until that is looked at anew.
    pub(crate) fn leave_fast_path(&mut self) {
        (self.off_fast_path, self.goes_elsewhere) = (true, false);
    }

    /// Whether its requests mean something else than those of most clients.
    pub(crate) fn is_odd(&self) -> bool {
        let modes = &self.modes;
        let has_mode =
            modes.transaction.is_some() || modes.subscriber.is_some() || modes.monitor.is_some();
        let replies_oddly = self.noreply || self.skip != Skip::No;
        let is_restricted = self.session.restricted_user().is_some();
        has_mode
            || modes.tracking.is_some()
            || self.undecided
            || replies_oddly
            || is_restricted
            || self.session.key_prefix().is_some()
            || modes.has_announcements()
    }

    /// Whether it asks nothing more and is owed nothing.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        let no_more = self.state == State::Closing || (self.read_closed && !self.paused);
        no_more && self.requests == 0 && self.output.is_empty()
    }

    /// What stands in for a client that is gone: it asks nothing, is owed nothing and is not read.
    pub(crate) fn closed(&self) -> Self {
        let Session { id, protocol, wire_protocol, database, since_us, .. } = self.session;
        let session = Session {
            id,
            protocol,
            wire_protocol,
            database,
            authenticated: false,
            profile: None,
            wishes: Wishes::default(),
            since_us,
        };
        Self {
            variant: self.variant,
            destination: self.destination,
            state: State::Closing,
            paused: true,
            off_fast_path: true,
            is_muted: true,
            ..Self::new(self.listener, self.lane_choice, session)
        }
    }

    pub(crate) fn new(listener: ListenerId, lane_choice: u16, session: Session) -> Self {
        Self {
            listener,
            lane_choice,
            variant: 0,
            destination: DestinationNumber::OWN,
            head: RequestId::NONE,
            tail: RequestId::NONE,

            asked_in: 0,
            requests: 0,
            window: UNKNOWN,
            asked: 0,
            asker: 0,
            called: CommandId::NONE,
            input: Vec::new(),
            parser: None,
            output: Output::default(),
            held: 0,
            state: State::Open,
            dirty: Dirty::No,
            paused: false,
            fenced: false,
            resumable: false,
            is_at_window: false,
            throttled: false,
            read_closed: false,
            noreply: false,
            undecided: false,
            looked_up: 0,
            wrong_passwords: 0,
            skip: Skip::No,
            off_fast_path: false,
            goes_elsewhere: false,
            is_muted: false,
            modes: Modes::default(),
            has_place: false,
            handoff: Handoff::No,
            reads: None,
            totals: Totals::default(),
            session,
        }
    }
}
