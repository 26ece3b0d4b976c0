//! Trackers of servers: connected where somebody wants to know which keys change, see [`crate::upstream::tracking`].
//!
//! # For whoever wants to know
//!
//! [`Engine::track`] says which keys of a backend are wanted; the trackers of its primaries are connected then, and
//! once a second where one is missing. [`Engine::tracker`] has the state of a server's. What is heard goes to
//! [`Engine::keys_changed`], which is the place to pass it on from.

use cashew_protocol::memcached::Expect;

use crate::base::action::Action;
use crate::base::id::{BackendId, LaneId, ServerId};
use crate::base::time::Time;
use crate::engine::{Closed, Engine};
use crate::upstream::lane::{Lane, Link, Scan, Scanner};
use crate::upstream::session_params::WireProtocol;
use crate::upstream::tracking::{Heard, Needed, TrackedKeys, Tracker};

/// Bytes of a server's error that are told.
const ERROR_SHOWN_MAX: usize = 200;

/// What has changed at a server, or may have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changed<'k> {
    Key(&'k [u8]),
    Everything,
}

impl Engine {
    /// From here on servers of a backend tell of these keys; of none if `keys` is `None`.
    pub(crate) fn track(&mut self, backend: BackendId, keys: Option<TrackedKeys>) {
        self.backends[backend].tracked = keys;
        self.maintain_trackers_of(backend);
    }

    /// What is known of a server's tracker.
    pub(crate) fn tracker(&self, backend: BackendId, server: ServerId) -> Option<&Tracker> {
        self.redis_backends[backend].servers.get(server)?.tracker.as_deref()
    }

    fn tracker_on(&mut self, lane: LaneId) -> &mut Tracker {
        let Lane { backend, server, .. } = self.lanes[lane];
        let tracker = self.redis_backends[backend].servers[server].tracker.as_deref_mut();
        tracker.expect("the lane of a tracker is its server's")
    }

    /// Something has changed at a server, by whomever. All who keep replies hear it from here.
    fn keys_changed(&mut self, place: (BackendId, ServerId), changed: Changed<'_>) {
        self.caches_hear(place, changed);
        match changed {
            // They are told of all keys of a message together.
            Changed::Key(_) => {}
            Changed::Everything => self.tell_of_all(place.0),
        }
    }

    /// Of which keys a server is to tell. Clients that keep what they read may have it from replicas, too.
    fn wanted_keys(&self, backend: BackendId, server: ServerId) -> Option<TrackedKeys> {
        if self.wants_tracking(backend) && !self.backends[backend].servers[server].ejected {
            return Some(TrackedKeys::default());
        }
        let keys = self.backends[backend].tracked.clone();
        keys.filter(|_| self.is_tracker_wanted_of(backend, server))
    }

    /// Connects trackers that are missing, and closes those that nobody needs. To be called once a second, and when
    /// something has changed about it.
    pub(crate) fn maintain_trackers(&mut self) {
        for backend in self.backends.ids() {
            let is_concerned = self.backends[backend].tracked.is_some()
                || self.wants_tracking(backend)
                || self.redis_backends[backend].servers.iter().any(|it| it.tracker.is_some());
            if is_concerned {
                self.maintain_trackers_of(backend);
            }
        }
    }

    pub(crate) fn maintain_trackers_of(&mut self, backend: BackendId) {
        let is_kept = self.backends[backend].tracked.is_some();
        for server in self.backends[backend].servers.ids() {
            let keys = self.wanted_keys(backend, server);
            let tracker = self.redis_backends[backend].servers[server].tracker.as_deref_mut();
            let tracker = tracker.filter(|_| !is_kept || keys.is_none());
            if tracker.is_some_and(Tracker::forget_needed) {
                self.metrics.note_keeping(self.backends[backend].servers[server].metrics, false);
            }
            let lane = self.tracker(backend, server).map(|tracker| tracker.lane);
            match (keys, lane) {
                (Some(keys), None) => {
                    let lane = self.add_tracker(backend, server, keys);
                    self.connect_tracker(lane);
                }
                (Some(keys), Some(lane)) => self.maintain_tracker(lane, keys),
                (None, Some(lane)) if self.lane(lane).has_connection() => {
                    self.tracker_lost(lane);
                    self.disconnect(lane, Closed::ByUs);
                }
                (None, _) => {}
            }
        }
    }

    fn is_tracker_wanted_of(&self, backend: BackendId, server: ServerId) -> bool {
        let state = &self.backends[backend];
        state.is_in_use()
            && state.topology.primary_of(server) == server
            && !state.servers[server].ejected
    }

    /// Whether a tracker's connection should be made again when it is lost.
    pub(crate) fn is_tracker_wanted(&self, lane: LaneId) -> bool {
        let Lane { backend, server, .. } = *self.lane(lane);
        self.wanted_keys(backend, server).is_some()
            && self.tracker(backend, server).is_some_and(|it| !it.is_refused(self.now))
    }

    fn add_tracker(&mut self, backend: BackendId, server: ServerId, keys: TrackedKeys) -> LaneId {
        let lane = self.add_lanes(1, (backend, server), 0, WireProtocol::Resp2);
        self.lanes[lane].is_feed = true;
        self.lanes[lane].is_tracker = true;
        self.backends[backend].servers[server].tracker_lane = lane;
        let tracker = Some(Box::new(Tracker::new(lane, keys)));
        self.redis_backends[backend].servers[server].tracker = tracker;
        lane
    }

    fn connect_tracker(&mut self, lane: LaneId) {
        let Lane { backend, server, link, .. } = *self.lane(lane);
        let is_silent = self.backends[backend].servers[server].is_silent();
        if link == Link::Idle && !is_silent && self.is_tracker_wanted(lane) {
            self.connect(lane);
        }
    }

    fn maintain_tracker(&mut self, lane: LaneId, keys: TrackedKeys) {
        if self.tracker_on(lane).tells_of_others(&keys) {
            self.tracker_on(lane).set_keys(keys);
            if self.lane(lane).has_connection() {
                // What is not told any more is forgotten with the rest.
                self.tracker_lost(lane);
                self.disconnect(lane, Closed::ByUs);
            }
        }
        let now = self.now;
        match self.lane(lane).link {
            Link::Ready { .. } => {
                if let Some(text) = self.tracker_on(lane).question(now) {
                    self.say_on_tracker(lane, text);
                }
            }
            _ => self.connect_tracker(lane),
        }
    }

    /// A server whose replies are to be kept has answered to something that this takes, with an error or without.
    pub(crate) fn note_needed(
        &mut self,
        (backend, server): (BackendId, ServerId),
        needed: Needed,
        error: Option<&[u8]>,
    ) {
        if self.backends[backend].tracked.is_none() {
            return;
        }
        let tracker = self.redis_backends[backend].servers[server].tracker.as_deref_mut();
        let Some(can) = tracker.and_then(|it| it.note_needed(needed, error.is_some())) else {
            return;
        };
        if !self.metrics.note_keeping(self.backends[backend].servers[server].metrics, !can) {
            return;
        }
        let why = error.filter(|_| !can).map(|error| {
            let text = error.strip_prefix(b"-").unwrap_or(error).trim_ascii_end();
            String::from_utf8_lossy(&text[..text.len().min(ERROR_SHOWN_MAX)]).into()
        });
        self.actions.push_back(Action::KeepingRefused { backend, server, why });
    }

    /// How many servers of a backend have replies that cannot be kept, since they refuse what that takes.
    pub(crate) fn refusing_to_be_kept(&self, backend: BackendId) -> u64 {
        let trackers =
            self.redis_backends[backend].servers.iter().filter_map(|it| it.tracker.as_ref());
        trackers.filter(|it| it.refuses_keeping()).count() as u64
    }

    fn say_on_tracker(&mut self, lane: LaneId, text: &[u8]) {
        self.lanes[lane].output.push(text, &mut self.bufs);
        self.mark_lane(lane);
        self.rearm(lane);
    }

    /// The connection stands.
    pub(crate) fn tracker_ready(&mut self, lane: LaneId) {
        let now = self.now;
        if let Scanner::Redis(scanner) = &mut self.lanes[lane].scanner {
            scanner.set_resp3(true);
        }
        let text = self.tracker_on(lane).begin(now);
        self.say_on_tracker(lane, &text);
    }

    /// The connection is about to be given up: nothing is told any more.
    pub(crate) fn tracker_lost(&mut self, lane: LaneId) {
        let Lane { backend, server, .. } = *self.lane(lane);
        self.lanes[lane].output.clear(&mut self.bufs);
        let was_up = self.tracker_on(lane).is_up();
        let partial = self.tracker_on(lane).end();
        self.bufs.give(partial);
        self.caches_hear((backend, server), Changed::Everything);
        if was_up {
            self.tell_of_all(backend);
        }
    }

    /// When the server has to have said something.
    pub(crate) fn tracker_deadline(&self, lane: LaneId) -> Time {
        let Lane { backend, server, .. } = *self.lane(lane);
        self.tracker(backend, server).map_or(Time::NEVER, Tracker::deadline)
    }

    /// Bytes came on a tracker; returns those behind the first message.
    pub(crate) fn tracker_received<'b>(&mut self, lane: LaneId, bytes: &'b [u8]) -> &'b [u8] {
        let now = self.now;
        let Lane { backend, server, .. } = *self.lane(lane);
        let scan = self.lanes[lane].scanner.scan(Expect::Line, bytes);
        let tracker = self.redis_backends[backend].servers[server].tracker.as_deref_mut();
        let tracker = tracker.expect("the lane of a tracker is its server's");
        match scan {
            Scan::Complete(len) => {
                let (mut partial, is_whole) = tracker.take_partial(now);
                if !is_whole {
                    tracker.miss();
                    self.keys_changed((backend, server), Changed::Everything);
                } else if partial.is_empty() {
                    self.tracker_message(lane, &bytes[..len]);
                } else {
                    self.bufs.extend(&mut partial, &bytes[..len]);
                    self.tracker_message(lane, &partial);
                }
                self.bufs.give(partial);
                &bytes[len..]
            }
            Scan::Partial => {
                let bufs = &mut self.bufs;
                tracker.keep(bytes, now, |partial| bufs.extend(partial, bytes));
                &[]
            }
            Scan::Invalid => {
                self.misfit(lane, "names of keys that have changed", bytes);
                &[]
            }
        }
    }

    fn tracker_message(&mut self, lane: LaneId, message: &[u8]) {
        let Lane { backend, server, .. } = *self.lane(lane);
        let now = self.now;
        let tracker = self.redis_backends[backend].servers[server].tracker.as_deref_mut();
        let Some(tracker) = tracker else { return };
        match tracker.hear(message, now) {
            Heard::Keys(names) => {
                for key in names.clone() {
                    self.keys_changed((backend, server), Changed::Key(key));
                }
                if self.wants_tracking(backend) {
                    self.tell_of(backend, &names.collect::<Vec<&[u8]>>());
                }
            }
            Heard::Everything => self.keys_changed((backend, server), Changed::Everything),
            Heard::Say(text) => self.say_on_tracker(lane, &text),
            Heard::Up => {
                self.rearm(lane);
                self.note_needed((backend, server), Needed::Tracking, None);
                // Of what clients have read before it has not told.
                self.tell_of_all(backend);
                self.wake_tracking();
            }
            Heard::Nothing => self.rearm(lane),
            Heard::Refused => {
                tracker.note_refusal(message);
                self.note_needed((backend, server), Needed::Tracking, Some(message));
                self.tracker_lost(lane);
                self.disconnect(lane, Closed::ByUs);
                self.wake_tracking();
            }
            Heard::Misfit => {
                self.misfit(lane, "the answer to what was asked about changes", message);
            }
        }
    }
}
