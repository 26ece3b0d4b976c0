//! What a worker does when what its clients make it hold nears its share of `memory_max`.
//!
//! From three quarters on those who cause it are not read: the clients that hold most of the pools
//! that have more than their share ([`crate::downstream::shares`]). What is half received goes on, since only
//! whole requests can leave, and servers are read as ever, since their replies are what drains. If
//! that is not enough they are closed: at the whole share, or when nothing has become better within
//! a second. Others do not notice. Only when closing frees nothing nobody is read. Sessions whose bytes
//! pass through are clients like others here, but for their servers, which are not read either.

use cashew_metrics::PoolCounter;

use crate::base::action::Action;
use crate::base::id::{ClientId, ConnId, ListenerId};
use crate::base::time::Time;
use crate::downstream::client::State;
use crate::downstream::shares::Shares;
use crate::engine::Engine;
use crate::request::Request;

/// Bytes that a request takes beside its buffers: its slot, and in its lane the time of its batch
/// in a queue that may be half empty.
pub(crate) const REQUEST_SIZE: usize =
    size_of::<Request>() + 2 * size_of::<crate::upstream::lane::Batch>();

/// How long nothing may become better.
const STALL_MS: u64 = 1000;
/// Who holds less is not closed for a stall: it would make no difference, unless there are so many
/// of them that what is held is theirs.
const STALL_HOLDING_MIN: usize = 64 * 1024;

/// As clients without a priority.
const PRIORITY_OF_PASSING: u8 = 1;

/// In so many steps from the first limit to the last it is looked anew who causes it.
const STEPS: usize = 8;

/// Limits of what is held, and whether the first is passed.
pub(crate) struct Pressure {
    max: usize,
    /// The next limit to act on.
    mark: usize,
    /// Since when some are not read, while they are.
    since: Option<Time>,
    /// Nobody is.
    is_total: bool,
    /// Clients in the middle of a request, which go on until it is whole.
    exempt: Vec<ConnId>,
}

impl Pressure {
    pub(crate) fn new(max: Option<u64>) -> Self {
        let max = max.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        Self { max, mark: max / 4 * 3, since: None, is_total: false, exempt: Vec::new() }
    }

    /// Another share of memory counts from here on.
    pub(crate) fn set_max(&mut self, max: Option<u64>) {
        let fresh = Self::new(max);
        if fresh.max == self.max {
            return;
        }
        self.max = fresh.max;
        self.mark = fresh.mark;
    }

    /// One part in so many of what may be held.
    pub(crate) fn share(&self, parts: u64) -> u64 {
        self.max as u64 / parts
    }

    /// From here on those who cause it are not read.
    fn high(&self) -> usize {
        self.max / 4 * 3
    }

    /// Below it all are read again.
    fn low(&self) -> usize {
        self.max / 8 * 5
    }

    /// The limit behind the one that was acted on.
    fn next(&self, held: usize) -> usize {
        if held < self.max {
            // So that those whose turn is later cannot fill all that is left meanwhile.
            (held + (self.max - self.high()) / STEPS).min(self.max)
        } else {
            held + self.max / 16
        }
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

    /// Whether there is room for what may as well wait at the client: half of the share is not held.
    pub(crate) fn has_ample_room(&self) -> bool {
        self.held_bytes() <= self.pressure.max / 2
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
        // Nobody waits for what is only kept.
        if self.drop_kept() && self.held_bytes() <= self.pressure.mark {
            return;
        }
        if self.forget_reads(max / 16) && self.held_bytes() <= self.pressure.mark {
            return;
        }
        let is_full = self.held_bytes() > max;
        if is_full {
            self.shed(max / 8 * 7, 1);
        }
        let held = self.held_bytes();
        if held > self.pressure.high() {
            let is_first = self.pressure.since.is_none();
            if is_first {
                self.press();
            }
            // What is left then is not the clients', so that closing them frees nothing.
            match is_full && held > max / 8 * 7 {
                true => self.press_all(),
                false => self.press_heavy(is_first),
            }
        }
        self.pressure.mark = match self.pressure.since {
            Some(_) => self.pressure.next(self.held_bytes()),
            None => self.pressure.high(),
        };
    }

    /// From here on there is not enough for all.
    fn press(&mut self) {
        self.pressure.since = Some(self.now);
        self.metrics.add_pressed();
        // What nobody needs makes room for what is held.
        self.requests.release(&mut self.bufs);
        self.bufs.clear();
        self.publish_held();
    }

    /// Stops reading those who cause it, and goes on with those who do not any more.
    fn press_heavy(&mut self, is_said: bool) {
        if self.pressure.is_total {
            return;
        }
        let shares = self.shares();
        // Who is exempt and heavy still is so again below.
        self.pressure.exempt.clear();
        let mut heavy = vec![0; self.listeners.len()];
        for index in self.clients.indices().collect::<Vec<ClientId>>() {
            if shares.is_heavy(&self.clients[index], &self.lanes) {
                heavy[self.clients[index].listener.index()] += 1;
                self.throttle(index);
            } else if self.clients[index].throttled {
                self.read_again(index);
            }
        }
        self.press_passing(&shares, &mut heavy);
        for (pool, clients) in
            (0..).map(ListenerId::new).zip(heavy).filter(|&(_, clients)| is_said && clients > 0)
        {
            let (held, share) = (shares.held_by(pool) as u64, shares.each as u64);
            self.actions.push_back(Action::HeldBack { listener: pool, clients, held, share });
        }
    }

    /// The same of those whose bytes pass through.
    fn press_passing(&mut self, shares: &Shares, heavy: &mut [u32]) {
        let (tcp, mut cx) = self.tcp();
        for it in tcp.holdings().collect::<Vec<_>>() {
            if shares.is_much(it.listener, it.bytes) {
                heavy[it.listener.index()] += 1;
                tcp.throttle(&mut cx, it.conn);
            } else if it.is_throttled {
                tcp.read_again(&mut cx, it.conn);
            }
        }
    }

    /// Reads nobody any more.
    fn press_all(&mut self) {
        if std::mem::replace(&mut self.pressure.is_total, true) {
            return;
        }
        self.actions.push_back(Action::Pressed { held: self.held_bytes() as u64 });
        for index in self.clients.indices().collect::<Vec<ClientId>>() {
            self.throttle(index);
        }
        let (tcp, mut cx) = self.tcp();
        for it in tcp.holdings().collect::<Vec<_>>() {
            tcp.throttle(&mut cx, it.conn);
        }
    }

    /// Stops reading a client unless it is in the middle of a request.
    fn throttle(&mut self, index: ClientId) {
        let client = &self.clients[index];
        if client.state == State::Closing || client.throttled {
            return;
        }
        if client.parser.is_some() {
            let conn = self.client_conn(index);
            self.pressure.exempt.push(conn);
        } else {
            self.stop_reading(index);
        }
    }

    fn stop_reading(&mut self, index: ClientId) {
        let client = &mut self.clients[index];
        client.throttled = true;
        let metrics = self.listeners[client.listener].metrics;
        self.metrics.add_pool(metrics, PoolCounter::ClientsThrottled, 1);
        self.pause(index);
    }

    fn read_again(&mut self, index: ClientId) {
        self.clients[index].throttled = false;
        self.unblock(index);
    }

    /// A client that comes under pressure has to wait like the others.
    pub(crate) fn throttle_new(&mut self, index: ClientId) {
        if self.pressure.is_total {
            self.throttle(index);
        }
    }

    /// The same of one whose bytes pass through.
    pub(crate) fn throttle_new_passing(&mut self, conn: ConnId) {
        if self.pressure.is_total {
            let (tcp, mut cx) = self.tcp();
            tcp.throttle(&mut cx, conn);
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
            let index = conn.client();
            if !self.clients.is_current(index, conn.generation()) {
                return false;
            }
            let is_exempt = self.clients[index].parser.is_some();
            if !is_exempt && self.clients[index].state == State::Open {
                self.stop_reading(index);
            }
            is_exempt
        });
        self.pressure.exempt = exempt;
    }

    fn ease(&mut self) {
        self.pressure.since = None;
        self.pressure.is_total = false;
        self.pressure.mark = self.pressure.high();
        self.pressure.exempt = Vec::new();
        for index in self.clients.indices().collect::<Vec<ClientId>>() {
            if self.clients[index].throttled {
                self.read_again(index);
            }
        }
        let (tcp, mut cx) = self.tcp();
        for it in tcp.holdings().filter(|it| it.is_throttled).collect::<Vec<_>>() {
            tcp.read_again(&mut cx, it.conn);
        }
    }

    /// Ends a stall; for now and then.
    pub(crate) fn check_stall(&mut self) {
        self.publish_held();
        let Some(since) = self.pressure.since else { return };
        if self.now.micros_since(since) < STALL_MS * 1000 {
            return;
        }
        let low = self.pressure.low();
        let is_of_few = self.shed(low, STALL_HOLDING_MIN);
        let is_theirs = || {
            let shares = self.shares();
            shares.held_by_clients() >= self.held_bytes().saturating_sub(low)
        };
        if !is_of_few && is_theirs() {
            self.shed(low, 1);
        }
        self.press_heavy(false);
    }

    /// Closes those who hold most, and at least `least` bytes each, until no more than `target` is
    /// held: first those of users of low priority, those of high priority last, and of each first those of pools that
    /// have more than their share. Who asked to be spared by CLIENT NO-EVICT comes after all others of them. Returns
    /// whether there was anybody.
    fn shed(&mut self, target: usize, least: usize) -> bool {
        if self.held_bytes() <= target {
            return false;
        }
        let shares = self.shares();
        let rank = |index: ClientId| {
            let client = &self.clients[index];
            let bytes = client.holding(&self.lanes);
            let is_evictable = !client.session.wishes.no_evict();
            let priority = u8::from(self.is_low(index)) + u8::from(!self.is_high(index));
            let over = shares.is_over(client.listener);
            (priority, over, is_evictable, bytes, Holder::Client(index))
        };
        // They have no users, and no way to say that they want to be spared.
        let passing = self.tcp.holdings().map(|it| {
            let holder = Holder::Passing(it.conn.token(), it.listener, it.id);
            (PRIORITY_OF_PASSING, shares.is_over(it.listener), true, it.bytes, holder)
        });
        let mut holders: Vec<(u8, bool, bool, usize, Holder)> = self
            .clients
            .indices()
            .map(rank)
            .chain(passing)
            .filter(|holder| holder.3 >= least)
            .collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        let mut closed = vec![Closures::default(); self.listeners.len()];
        for (_, _, _, bytes, holder) in holders {
            if self.held_bytes() <= target {
                break;
            }
            match holder {
                Holder::Client(index) => {
                    let client = &self.clients[index];
                    closed[client.listener.index()].add(client.session.id, bytes);
                    self.cut_client(index, PoolCounter::ClientsShed);
                }
                Holder::Passing(token, listener, id) => {
                    let (tcp, mut cx) = self.tcp();
                    if tcp.shed(&mut cx, ConnId::from_token(token)) {
                        closed[listener.index()].add(id, bytes);
                    }
                }
            }
        }
        let mut is_any = false;
        for (pool, closed) in closed.into_iter().enumerate().filter(|(_, it)| it.clients > 0) {
            is_any = true;
            let pool = ListenerId::new(pool as u32);
            let (held, share) = (shares.held_by(pool) as u64, shares.each as u64);
            let Closures { clients, bytes, most, .. } = closed;
            let bytes = bytes as u64;
            self.actions.push_back(Action::Shed {
                listener: pool,
                clients,
                bytes,
                most,
                held,
                share,
            });
        }
        is_any
    }

    fn shares(&self) -> Shares {
        let passing = self.tcp.holdings().map(|it| (it.listener, it.bytes));
        Shares::new(&self.listeners, &self.lanes, &self.clients, passing, self.pressure.high())
    }

    fn publish_held(&self) {
        self.metrics.set_buffered(self.held_bytes() as u64);
    }
}

/// Who may be closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Client(ClientId),
    /// One whose bytes pass through: its connection's token, and its number.
    Passing(u64, ListenerId, u64),
}

/// Clients of one pool that are closed.
#[derive(Clone, Copy, Default)]
struct Closures {
    clients: u32,
    bytes: usize,
    /// Of which one held most, by the number that CLIENT ID tells.
    most: u64,
    largest: usize,
}

impl Closures {
    fn add(&mut self, id: u64, bytes: usize) {
        self.clients += 1;
        self.bytes += bytes;
        if bytes > self.largest {
            (self.most, self.largest) = (id, bytes);
        }
    }
}
