//! What a worker does when what its clients make it hold nears its share of `memory_max`.
//!
//! From three quarters on it takes no new requests; what is half received goes on, since only whole
//! requests can leave, and servers are read as ever, since their replies are what drains. Clients
//! that hold most are closed when that is not enough: at the whole share, or when nothing has
//! become better within a second.

use cashew_metrics::PoolCounter;

use crate::action::Action;
use crate::client::{Parser, State};
use crate::engine::Engine;
use crate::id::ConnId;
use crate::request::Request;
use crate::slab::NONE;
use crate::time::Time;

/// Bytes that a request takes beside its buffers: its slot, and in its lane the time of its batch
/// in a queue that may be half empty.
pub(crate) const REQUEST_SIZE: usize = size_of::<Request>() + 2 * size_of::<crate::lane::Batch>();

/// How long nothing may become better.
const STALL_MS: u64 = 1000;
/// Who holds less is not closed for a stall: it would make no difference, unless there are so many
/// of them that what is held is theirs.
const STALL_HOLDING_MIN: usize = 64 * 1024;

/// Limits of what is held, and whether the first is passed.
pub(crate) struct Pressure {
    max: usize,
    /// The next limit to act on: that of new requests, later `max`.
    mark: usize,
    /// When new requests were last refused, while they are.
    since: Option<Time>,
    /// Clients in the middle of a request, which go on until it is whole.
    exempt: Vec<ConnId>,
}

impl Pressure {
    pub(crate) fn new(max: Option<u64>) -> Self {
        let max = max.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        Self { max, mark: max / 4 * 3, since: None, exempt: Vec::new() }
    }

    /// Another share of memory counts from here on.
    pub(crate) fn set_max(&mut self, max: Option<u64>) {
        let fresh = Self::new(max);
        if fresh.max == self.max {
            return;
        }
        self.max = fresh.max;
        // While there is pressure it is the larger limit that is to be acted on next.
        self.mark = if self.since.is_some() { self.max } else { fresh.mark };
    }

    /// From here on new requests are not taken.
    fn high(&self) -> usize {
        self.max / 4 * 3
    }

    /// Below it they are taken again.
    fn low(&self) -> usize {
        self.max / 8 * 5
    }
}

impl Engine {
    /// Bytes that clients make this worker hold: buffers, used or not, of clients, requests and
    /// lanes, and the requests themselves.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.bufs.held() - self.requests.kept() + self.requests.len() * REQUEST_SIZE
    }

    /// What buffers and the like may come to as long as requests are as many as now.
    pub(crate) fn buffers_max(&self) -> usize {
        let requests = self.requests.len() * REQUEST_SIZE;
        self.pressure.max.saturating_add(self.requests.kept()).saturating_sub(requests)
    }

    /// Acts if a limit is passed. Clients may be gone afterwards.
    #[inline(always)]
    pub(crate) fn check_pressure(&mut self) {
        if self.held_bytes() > self.pressure.mark {
            self.relieve();
        }
    }

    #[cold]
    fn relieve(&mut self) {
        let max = self.pressure.max;
        if self.held_bytes() > max {
            self.shed(max / 8 * 7, 1);
            // What is left is not the clients': looking for it again and again frees nothing.
            self.pressure.mark = max.max(self.held_bytes() + max / 16);
        }
        if self.pressure.since.is_none() && self.held_bytes() > self.pressure.high() {
            self.press();
        }
    }

    /// Takes no new requests from here on.
    fn press(&mut self) {
        self.pressure.since = Some(self.now);
        self.pressure.mark = self.pressure.mark.max(self.pressure.max);
        self.metrics.add_pressed();
        // What nobody needs makes room for what is held.
        self.requests.release(&mut self.bufs);
        self.bufs.clear();
        self.publish_held();
        self.actions.push_back(Action::Pressed { held: self.held_bytes() as u64 });
        for index in self.clients.indices().collect::<Vec<u32>>() {
            self.throttle(index);
        }
    }

    /// Stops reading a client unless it is in the middle of a request.
    fn throttle(&mut self, index: u32) {
        let client = &mut self.clients[index];
        if client.state == State::Closing {
            return;
        }
        if client.parser.is_some() {
            let conn = self.client_conn(index);
            self.pressure.exempt.push(conn);
        } else {
            client.throttled = true;
            self.pause(index);
        }
    }

    /// A client that comes under pressure has to wait like the others.
    pub(crate) fn throttle_new(&mut self, index: u32) {
        if self.pressure.since.is_some() {
            self.throttle(index);
        }
    }

    /// Ends the pressure, or finds out whom it concerns by now; for the end of a tick.
    #[inline]
    pub(crate) fn settle_pressure(&mut self) {
        self.check_pressure();
        if self.pressure.since.is_some() {
            self.follow_pressure();
        }
    }

    #[cold]
    fn follow_pressure(&mut self) {
        if self.held_bytes() < self.pressure.low() {
            self.ease();
            return;
        }
        let mut exempt = std::mem::take(&mut self.pressure.exempt);
        exempt.retain(|conn| {
            let index = conn.index();
            if !self.clients.is_current(index, conn.generation()) {
                return false;
            }
            let is_exempt = self.clients[index].parser.is_some();
            if !is_exempt && self.clients[index].state == State::Open {
                self.clients[index].throttled = true;
                self.pause(index);
            }
            is_exempt
        });
        self.pressure.exempt = exempt;
    }

    fn ease(&mut self) {
        self.pressure.since = None;
        self.pressure.mark = self.pressure.high();
        self.pressure.exempt = Vec::new();
        for index in self.clients.indices().collect::<Vec<u32>>() {
            if std::mem::take(&mut self.clients[index].throttled) {
                self.unblock(index);
            }
        }
    }

    /// Ends a stall; for now and then.
    pub(crate) fn check_stall(&mut self) {
        self.publish_held();
        if self.pressure.since.is_some_and(|since| self.now.micros_since(since) >= STALL_MS * 1000)
        {
            let low = self.pressure.low();
            let is_of_few = self.shed(low, STALL_HOLDING_MIN);
            if !is_of_few && self.held_by_clients() >= self.held_bytes().saturating_sub(low) {
                self.shed(low, 1);
            }
        }
    }

    /// Closes those who hold most, and at least `least` bytes each, until no more than `target` is
    /// held. Who asked to be spared by CLIENT NO-EVICT comes after all others. Returns whether there
    /// was anybody.
    fn shed(&mut self, target: usize, least: usize) -> bool {
        let before = self.held_bytes();
        let mut holders: Vec<(bool, usize, u32)> = self
            .clients
            .indices()
            .map(|index| (!self.clients[index].session.no_evict, self.holding(index), index))
            .filter(|&(_, bytes, _)| bytes >= least)
            .collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        let mut clients = 0;
        for (_, _, index) in holders {
            if self.held_bytes() <= target {
                break;
            }
            self.cut_client(index, PoolCounter::ClientsShed);
            clients += 1;
        }
        if clients > 0 {
            let bytes = before.saturating_sub(self.held_bytes()) as u64;
            self.actions.push_back(Action::Shed { clients, bytes });
        }
        clients > 0
    }

    /// Bytes that go when all clients go, about.
    fn held_by_clients(&self) -> usize {
        self.clients.indices().map(|index| self.holding(index)).sum()
    }

    /// Bytes that go when this client goes, about.
    fn holding(&self, index: u32) -> usize {
        let client = &self.clients[index];
        let parser = client.parser.as_ref().map_or(0, Parser::size);
        let passing = match &client.parser {
            Some(Parser::Upload(upload)) if upload.lane != NONE => {
                self.lanes[upload.lane as usize].output.len()
            }
            _ => 0,
        };
        let said = client.input.capacity() + parser + client.session.profile_size();
        said + (client.output.len() + client.held + passing) as usize
    }

    fn publish_held(&self) {
        self.metrics.set_buffered(self.held_bytes() as u64);
    }
}
