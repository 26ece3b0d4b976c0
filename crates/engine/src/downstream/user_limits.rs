//! What users may use, over all workers, and who of their clients waits for it here.
//!
//! How much is used is kept where all workers see it: see [`cashew_metrics::UserId`].

use std::collections::VecDeque;

use cashew_config::snapshot::{OverLimit, Priority, UserOptions};
use cashew_metrics::{Rate, UserId, UserStat, Writer};

use crate::base::id::{ClientId, ConnId};
use crate::base::time::Time;

/// So many requests of users who have to wait for all others are on their way at a worker while others ask.
const LOW_IN_FLIGHT: u64 = 8;
/// So many of users who have to wait for those of high priority, while these ask.
const NORMAL_IN_FLIGHT: u64 = 32;
/// So many requests of a client go on at once that has waited for others, before it is the next user's turn.
pub(crate) const SHARE: u32 = 4;
/// So many clients go on at once at the most beyond those who wait: some have several turns.
pub(crate) const TURNS_MORE: usize = 2 * NORMAL_IN_FLIGHT as usize;
/// Others are there for so long after they have asked something.
const OTHERS_STAY_US: u64 = 100_000;
/// So long others are there who wait for an answer and ask nothing.
const WAITING_STAYS_US: u64 = 10_000;
/// For each counter that is summed up to know what others ask, so much time passes until the next look, and this at
/// the most.
const LOOK_PER_COUNTER_US: u64 = 4;
const LOOK_SELDOM_US: u64 = OTHERS_STAY_US / 4;
/// By so much what is counted of all may be ahead of what is counted of these users: they count one
/// behind the other.
const LAG_MAX: u64 = 64;

/// How often it is looked whether requests of other workers have been answered.
pub(crate) const LOOK_EVERY_US: u64 = 1000;

/// A user of a port who has limits.
pub(crate) struct UserLimits {
    pub(crate) options: UserOptions,
    /// Whom it waits for.
    yields_to: YieldsTo,
    id: UserId,
    /// Of this worker.
    connections: u64,
    in_flight: u64,
    /// Clients that wait until there is room, in the order in which they came.
    pub(crate) waiting: VecDeque<ConnId>,
}

/// Whom a user has to wait for while they ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum YieldsTo {
    Nobody,
    /// Those of high priority, which some user of its port has.
    High,
    /// All who are not of low priority, as it is.
    All,
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    Requests,
    Bytes,
    InFlight,
}

impl UserLimits {
    /// With `has_high`, some user of the port has a high priority.
    pub(crate) fn new(options: UserOptions, id: UserId, has_high: bool) -> Self {
        let yields_to = match options.priority {
            Priority::Low => YieldsTo::All,
            Priority::Normal if has_high => YieldsTo::High,
            Priority::Normal | Priority::High => YieldsTo::Nobody,
        };
        Self { options, yields_to, id, connections: 0, in_flight: 0, waiting: VecDeque::new() }
    }

    pub(crate) fn yields_to(&self) -> YieldsTo {
        self.yields_to
    }

    pub(crate) fn delays(&self) -> bool {
        self.options.over_limit == OverLimit::Delay
    }

    /// Which limit is in the way of a request, and for how many microseconds perhaps.
    pub(crate) fn reached(&self, metrics: &Writer, now: Time) -> Option<(Reached, u64)> {
        let now_us = now.as_micros();
        let wait = |per_second: u64, rate: Rate| match per_second {
            0 => 0,
            _ => metrics.quota_wait_us(self.id, rate, now_us),
        };
        let in_flight_max = u64::from(self.options.in_flight_max);
        let is_full =
            in_flight_max > 0 && metrics.sum_user(self.id, UserStat::InFlight) >= in_flight_max;
        let all = [
            (Reached::Requests, wait(self.options.requests_per_second.into(), Rate::Requests)),
            (Reached::Bytes, wait(self.options.bytes_per_second, Rate::Bytes)),
            (Reached::InFlight, if is_full { LOOK_EVERY_US } else { 0 }),
        ];
        all.into_iter().filter(|&(_, wait_us)| wait_us > 0).max_by_key(|&(_, wait_us)| wait_us)
    }

    /// As clients are told; behind a word that is an error in their protocol.
    pub(crate) fn text(&self, reached: Reached) -> String {
        let limit = match reached {
            Reached::Requests => format!("{} requests/s", self.options.requests_per_second),
            Reached::Bytes => format!("{} bytes/s", self.options.bytes_per_second),
            Reached::InFlight => format!("{} requests in flight", self.options.in_flight_max),
        };
        self.used_up(&limit)
    }

    fn used_up(&self, limit: &str) -> String {
        format!("quota of user '{}' is used up: {limit}", self.options.name)
    }

    /// Why nobody else may be this user now.
    pub(crate) fn refused_login(&self, metrics: &Writer) -> Option<String> {
        let max = u64::from(self.options.connections_max);
        if max == 0 || metrics.sum_user(self.id, UserStat::Connections) < max {
            return None;
        }
        metrics.add_limited(self.id, UserStat::Refused, 1);
        Some(self.used_up(&format!("{max} connections")))
    }

    pub(crate) fn count(&self, stat: UserStat, metrics: &Writer) {
        self.count_more(stat, 1, metrics);
    }

    pub(crate) fn count_more(&self, stat: UserStat, count: u64, metrics: &Writer) {
        metrics.add_limited(self.id, stat, count);
    }

    pub(crate) fn is_low(&self) -> bool {
        self.options.is_low()
    }

    pub(crate) fn is_high(&self) -> bool {
        self.options.is_high()
    }

    /// How many requests were taken, by all workers.
    pub(crate) fn taken(&self, metrics: &Writer) -> u64 {
        metrics.sum_user(self.id, UserStat::Requests)
    }

    /// A request was taken, which counts as so many.
    pub(crate) fn take_request(&self, count: u64, len: usize, metrics: &Writer, now: Time) {
        metrics.add_limited(self.id, UserStat::Requests, count);
        let per_second = u64::from(self.options.requests_per_second);
        if per_second > 0 {
            metrics.take_quota(self.id, Rate::Requests, 1, per_second, now.as_micros());
        }
        self.take_bytes(len as u64, metrics, now);
    }

    /// Of a request or of a reply.
    pub(crate) fn take_bytes(&self, bytes: u64, metrics: &Writer, now: Time) {
        metrics.add_limited(self.id, UserStat::Bytes, bytes);
        let per_second = self.options.bytes_per_second;
        if per_second > 0 {
            metrics.take_quota(self.id, Rate::Bytes, bytes, per_second, now.as_micros());
        }
    }

    fn change(&mut self, connections: i64, in_flight: i64, metrics: &Writer) {
        self.connections = self.connections.saturating_add_signed(connections);
        self.in_flight = self.in_flight.saturating_add_signed(in_flight);
        metrics.set_user(self.id, UserStat::Connections, self.connections);
        metrics.set_user(self.id, UserStat::InFlight, self.in_flight);
    }

    /// A client is this user from here on.
    pub(crate) fn enter(&mut self, metrics: &Writer) {
        self.change(1, 0, metrics);
    }

    /// A client is not any more.
    pub(crate) fn leave(&mut self, meter: Meter, metrics: &Writer) {
        self.change(-1, -i64::from(meter.in_flight), metrics);
    }

    /// A client is owed so many replies; says whether that is fewer.
    pub(crate) fn set_in_flight(&mut self, meter: &mut Meter, now: u16, metrics: &Writer) -> bool {
        let before = std::mem::replace(&mut meter.in_flight, now);
        self.change(0, i64::from(now) - i64::from(before), metrics);
        now < before
    }

    /// Nobody is this user yet.
    pub(crate) fn publish(&mut self, metrics: &Writer) {
        self.change(0, 0, metrics);
    }
}

/// What a client has of its user's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    /// The user, by its place among those of the port.
    pub(crate) user: u32,
    /// Requests that count as in flight.
    pub(crate) in_flight: u16,
    /// Bytes of replies that nobody pays for, since they say that there is no room.
    pub(crate) free: u32,
    /// How many requests keep others waiting, or have others wait: blocked ones do not.
    pub(crate) pressing: u16,
    /// How many requests it has made, of those that are counted.
    pub(crate) counted: u64,
}

impl Meter {
    /// Of a client that has made so many requests before.
    pub(crate) fn new(user: usize, counted: u64) -> Self {
        Self { user: user as u32, in_flight: 0, free: 0, pressing: 0, counted }
    }
}

/// What users who have to wait for others know of these.
pub(crate) struct Others {
    in_flight_max: u64,
    /// Requests of these users on their way, at this worker, and of how many clients they are.
    in_flight: u64,
    clients: u32,
    looked_at: Time,
    look_every_us: u64,
    /// The most requests of others that were counted, over all workers.
    seen: u64,
    active_until: Time,
}

impl Others {
    fn new(in_flight_max: u64) -> Self {
        Self {
            in_flight_max,
            in_flight: 0,
            clients: 0,
            looked_at: Time::ZERO,
            look_every_us: 0,
            seen: 0,
            active_until: Time::ZERO,
        }
    }

    pub(crate) fn change(&mut self, from: u16, to: u16) {
        self.in_flight = self.in_flight + u64::from(to) - u64::from(from);
        self.clients = self.clients + u32::from(to > 0) - u32::from(from > 0);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_flight < self.in_flight_max
    }

    /// Whether it is time to look whether others ask.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now >= self.looked_at.plus_micros(self.look_every_us)
    }

    /// They have asked so much up to now, which so many counters say.
    pub(crate) fn look(&mut self, asked: u64, counters: usize, now: Time) {
        let is_known = now < self.looked_at.plus_micros(OTHERS_STAY_US);
        self.looked_at = now;
        let every_us = LOOK_PER_COUNTER_US.saturating_mul(counters as u64);
        self.look_every_us = every_us.clamp(LOOK_EVERY_US, LOOK_SELDOM_US);
        if !is_known || asked + LAG_MAX < self.seen {
            // Until the next look nobody knows whether others are there.
            self.seen = asked;
            self.active_until = now.plus_micros(2 * self.look_every_us);
        } else if asked > self.seen {
            self.seen = asked;
            self.active_until = now.plus_micros(OTHERS_STAY_US);
        }
    }

    /// So many clients of these users are owed an answer at this worker.
    pub(crate) fn clients(&self) -> u32 {
        self.clients
    }

    /// Others are owed an answer, or not: they wait for a slow server perhaps, and so ask nothing more.
    pub(crate) fn look_who_waits(&mut self, do_wait: bool, now: Time) {
        if do_wait && !self.are_active(now) {
            self.active_until = now.plus_micros(WAITING_STAYS_US);
        }
    }

    /// Whether they have asked something lately.
    pub(crate) fn are_active(&self, now: Time) -> bool {
        now < self.active_until
    }
}

/// Users of low priority of all ports, who wait for all others, at this worker.
pub(crate) struct Priorities {
    pub(crate) low: Others,
}

impl Default for Priorities {
    fn default() -> Self {
        Self { low: Others::new(LOW_IN_FLIGHT) }
    }
}

/// Users of high priority of a port, and those who wait for them, at this worker.
pub(crate) struct HighPriority {
    pub(crate) others: Others,
    /// So many clients of high priority are owed an answer.
    clients: u32,
}

impl Default for HighPriority {
    fn default() -> Self {
        Self { others: Others::new(NORMAL_IN_FLIGHT), clients: 0 }
    }
}

impl HighPriority {
    /// A client of a user of the port has so many requests that press, and had so many.
    pub(crate) fn change(&mut self, limits: &UserLimits, from: u16, to: u16) {
        match limits.yields_to {
            YieldsTo::High => self.others.change(from, to),
            YieldsTo::Nobody if limits.is_high() => {
                self.clients = self.clients + u32::from(to > 0) - u32::from(from > 0);
            }
            YieldsTo::Nobody | YieldsTo::All => {}
        }
    }

    /// Whether clients of high priority wait for an answer.
    pub(crate) fn has_waiting(&self) -> bool {
        self.clients > 0
    }
}

/// The most of them that wait to be written.
const FREE_MAX: u32 = 16 << 20;

/// By client. Beside the clients, since few have limits.
#[derive(Default)]
pub(crate) struct Meters(Vec<Option<Meter>>);

impl Meters {
    pub(crate) fn get(&self, client: ClientId) -> Option<Meter> {
        self.0.get(client.index()).copied().flatten()
    }

    pub(crate) fn set(&mut self, client: ClientId, meter: Meter) {
        if self.0.len() <= client.index() {
            self.0.resize(client.index() + 1, None);
        }
        self.0[client.index()] = Some(meter);
    }

    /// Such a reply of so many bytes is on its way.
    pub(crate) fn let_pass(&mut self, client: ClientId, bytes: usize) {
        if let Some(Some(meter)) = self.0.get_mut(client.index()) {
            let bytes = u32::try_from(bytes).unwrap_or(FREE_MAX);
            meter.free = meter.free.saturating_add(bytes).min(FREE_MAX);
        }
    }

    /// Of so many bytes that were written, those that nobody pays for.
    pub(crate) fn free_of(&mut self, client: ClientId, bytes: u64) -> u64 {
        let Some(Some(meter)) = self.0.get_mut(client.index()) else { return 0 };
        let free = meter.free.min(u32::try_from(bytes).unwrap_or(u32::MAX));
        meter.free -= free;
        free.into()
    }

    pub(crate) fn take(&mut self, client: ClientId) -> Option<Meter> {
        self.0.get_mut(client.index())?.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_seen_whatever_is_counted_late() {
        let mut others = Others::new(8);
        let mut now = Time::ZERO.plus_millis(1000);
        let mut look = |asked: u64| {
            now = now.plus_micros(LOOK_EVERY_US);
            others.look(asked, 1, now);
            others.are_active(now)
        };
        // One that was counted for all, and not yet for its user, is seen once.
        let seen: Vec<bool> = [100, 100, 100, 101, 100, 101, 100].map(&mut look).into();
        assert_eq!(seen, [true, true, false, true, true, true, true]);
        let seen: Vec<bool> = (0..200).map(|at| look(100 + at % 2)).collect();
        assert!(seen[0] && !seen[100..].iter().any(|&is_active| is_active));
        // Somebody who asks now and then is seen each time.
        assert!(look(102) && look(102));
        // The statistics begin anew.
        let seen: Vec<bool> = (0..200).map(|_| look(0)).collect();
        assert!(!seen[199] && look(1));
    }

    #[test]
    fn others_who_wait_are_those_who_are_not_of_low_priority() {
        let mut others = Others::new(8);
        let now = Time::ZERO.plus_millis(1000);
        for (from, to) in [(0, 3), (0, 1), (3, 5), (1, 0), (0, 2)] {
            others.change(from, to);
        }
        assert_eq!(others.clients(), 2);
        others.look_who_waits(2 > others.clients(), now);
        assert!(!others.are_active(now) && others.has_room());
        others.look_who_waits(3 > others.clients(), now);
        assert!(others.are_active(now) && !others.are_active(now.plus_micros(WAITING_STAYS_US)));
        others.change(0, 1);
        assert!(!others.has_room());
    }

    #[test]
    fn the_more_there_is_to_sum_up_the_less_often_it_is() {
        let mut others = Others::new(8);
        let mut now = Time::ZERO.plus_millis(1000);
        for (counters, every_us) in [(2, 1000), (500, 2000), (100_000, LOOK_SELDOM_US)] {
            others.look(7, counters, now);
            assert!(!others.is_due(now.plus_micros(every_us - 1)));
            now = now.plus_micros(every_us);
            assert!(others.is_due(now));
        }
        // What is asked is seen all the same.
        others.look(7, 100_000, now);
        now = now.plus_micros(2 * OTHERS_STAY_US / 3);
        others.look(7, 100_000, now);
        assert!(!others.are_active(now));
        others.look(8, 100_000, now);
        assert!(others.are_active(now));
    }
}
