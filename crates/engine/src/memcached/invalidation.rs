//! Keys that some copies of a group may have otherwise than the one that leads, and are to forget.
//!
//! A copy has to forget a key in two cases. Writes of the key were on their way at once, on other connections, so
//! that they may have come in another order ([`cashew_metrics::WriteStamp`]). Or a copy has not got a write, or not
//! confirmed it. To forget is always safe: a cache may miss, but must not be wrong for good.
//!
//! It forgets a little later, when no more writes of the key are on their way, and not more often than that for one
//! key: many clients may write the same at once, as they have all missed it. If a write that was alone is confirmed by
//! all meanwhile, nobody has to forget. A copy that cannot be reached forgets when it is back.
//!
//! Why copies agree in the end: let the last that a copy got be a write that is not the leader's last. If it overlapped
//! with one that began later, it sees that, and the copy forgets afterwards. If not, the leader's last write began
//! earlier, was on its way then, sees it, and has the copy forget. That leaves a mark of its own, so that writes
//! that are on their way then have the copy forget again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cashew_config::snapshot;
use cashew_metrics::{ServerCounter, WriteKind, WriteLane};
use cashew_protocol::memcached::binary::{Opcode, write_request};
use cashew_protocol::memcached::{Answer, Expect, KEY_SIZE_MAX, encode_key};

use super::Asked;
use super::copies::{is_bad, number_of};
use crate::base::id::{BackendId, ClientId, RequestId, ServerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::request::{Own, Role};
use crate::upstream::session_params::WireProtocol;

/// So many keys a worker keeps in mind. Copies forget others at once, if they can be reached.
const KEYS_MAX: usize = 4096;
/// How long nobody forgets a key since the last reason to.
const SETTLE_MS: u64 = 250;
/// How often it is looked whether a copy can be reached again, and for how long in all.
const RETRY_MS: u64 = 1000;
const GIVE_UP_MS: u64 = 600_000;
/// Nothing is sent while a ring changes.
const HELD_MS: u64 = 50;

#[derive(Default)]
pub(crate) struct Invalidations {
    keys: BTreeMap<u32, Invalidation>,
    numbers: HashMap<(BackendId, Vec<u8>), u32>,
    due: BTreeSet<(Time, u32)>,
    last: u32,
}

struct Invalidation {
    backend: BackendId,
    key: Vec<u8>,
    /// Of the client, in case that the others cannot name the key.
    variant: u16,
    copies: Vec<Copy>,
    due: Time,
    until: Time,
}

/// Never taken out: requests on their way go by its place.
struct Copy {
    server: ServerId,
    /// By which the server is numbered.
    config: Arc<snapshot::Pool>,
    is_owed: bool,
    /// Since when, at the latest.
    owed_at: Time,
    in_flight: u32,
}

/// Of a key, what is sent to have a server forget it.
struct Order {
    text: Vec<u8>,
    variant: u16,
    expect: Expect,
    asked: Asked,
}

impl Invalidations {
    fn set_due(&mut self, number: u32, at: Time) {
        let Some(it) = self.keys.get_mut(&number) else { return };
        self.due.remove(&(it.due, number));
        it.due = at;
        self.due.insert((at, number));
    }

    fn remove(&mut self, number: u32) {
        let Some(it) = self.keys.remove(&number) else { return };
        self.due.remove(&(it.due, number));
        self.numbers.remove(&(it.backend, it.key));
    }

    fn remove_if_settled(&mut self, number: u32) {
        let is_settled =
            |it: &Invalidation| it.copies.iter().all(|copy| !copy.is_owed && copy.in_flight == 0);
        if self.keys.get(&number).is_some_and(is_settled) {
            self.remove(number);
        }
    }

    /// Whether copies are about to forget something.
    pub(crate) fn awaits_replies(&self) -> bool {
        self.keys.values().any(|it| it.copies.iter().any(|copy| copy.in_flight > 0))
    }

    /// Backends have other numbers now, or are gone.
    pub(crate) fn renumber(&mut self, place_of: impl Fn(BackendId) -> Option<BackendId>) {
        let before = std::mem::take(&mut self.keys);
        self.numbers.clear();
        for (number, mut it) in before {
            match place_of(it.backend) {
                Some(backend) => {
                    it.backend = backend;
                    self.numbers.insert((backend, it.key.clone()), number);
                    self.keys.insert(number, it);
                }
                None => {
                    self.due.remove(&(it.due, number));
                }
            }
        }
    }
}

impl Invalidation {
    fn copy_of(&mut self, (server, config): (ServerId, &Arc<snapshot::Pool>)) -> Option<&mut Copy> {
        let endpoint = &config.servers[server.index()].endpoint;
        self.copies.iter_mut().find(|it| it.config.servers[it.server.index()].endpoint == *endpoint)
    }
}

impl Engine {
    /// These servers are to forget a key when no write of it is on its way any more.
    pub(super) fn invalidate(
        &mut self,
        (backend, variant): (BackendId, u16),
        key: &[u8],
        config: &Arc<snapshot::Pool>,
        servers: impl Iterator<Item = ServerId>,
    ) {
        let (now, due) = (self.now, self.now.plus_millis(SETTLE_MS));
        let all = &mut self.invalidations;
        let name = (backend, key.to_vec());
        let number = match all.numbers.get(&name) {
            Some(&number) => number,
            None if all.keys.len() >= KEYS_MAX => {
                let reached: Vec<ServerId> = servers
                    .filter_map(|server| number_of(config, server, &self.backends[backend]))
                    .filter(|&server| self.backends[backend].servers[server].is_up())
                    .collect();
                self.have_forgotten((backend, variant), key, &reached, |_| Own::Whatever);
                return;
            }
            None => {
                all.last = all.last.wrapping_add(1);
                let number = all.last;
                let it = Invalidation {
                    backend,
                    key: key.to_vec(),
                    variant,
                    copies: Vec::new(),
                    due,
                    until: now.plus_millis(GIVE_UP_MS),
                };
                all.keys.insert(number, it);
                all.numbers.insert(name, number);
                number
            }
        };
        let it = all.keys.get_mut(&number).expect("it was there, or is now");
        for server in servers {
            match it.copy_of((server, config)) {
                Some(copy) => (copy.is_owed, copy.owed_at) = (true, now),
                None => {
                    let config = Arc::clone(config);
                    let copy = Copy { server, config, is_owed: true, owed_at: now, in_flight: 0 };
                    it.copies.push(copy);
                }
            }
        }
        all.set_due(number, due);
        all.remove_if_settled(number);
        match self.draining {
            true => drop(self.settle_invalidation(number, true)),
            false => self.timers.arm(due, Timer::Invalidations),
        }
    }

    /// The worker is about to go, or nothing else is on its way to these backends, and another copy may lead
    /// next: nobody waits any longer. Returns whether something was sent.
    pub(crate) fn hurry_invalidations(&mut self, of: impl Fn(BackendId) -> bool) -> bool {
        let keys = self.invalidations.keys.iter().filter(|(_, it)| of(it.backend));
        let numbers: Vec<u32> = keys.map(|(&number, _)| number).collect();
        let sent: Vec<bool> =
            numbers.into_iter().map(|number| self.settle_invalidation(number, true)).collect();
        sent.contains(&true)
    }

    /// These copies have confirmed a write of a key, which was alone and began at that time. So they need not
    /// forget it for anything that was over before. What was on its way may have come behind it.
    #[inline]
    pub(super) fn absolve(
        &mut self,
        (backend, began): (BackendId, Time),
        key: &[u8],
        config: &Arc<snapshot::Pool>,
        servers: impl Iterator<Item = ServerId>,
    ) {
        let all = &mut self.invalidations;
        if all.keys.is_empty() {
            return;
        }
        let Some(&number) = all.numbers.get(&(backend, key.to_vec())) else { return };
        let it = all.keys.get_mut(&number).expect("each number is of one");
        for server in servers {
            if let Some(copy) = it.copy_of((server, config)) {
                copy.is_owed &= copy.owed_at >= began;
            }
        }
        all.remove_if_settled(number);
    }

    pub(crate) fn maintain_invalidations(&mut self) {
        while let Some(&(due, number)) = self.invalidations.due.first()
            && due <= self.now
        {
            self.settle_invalidation(number, false);
        }
        if let Some(&(due, _)) = self.invalidations.due.first() {
            self.timers.arm(due, Timer::Invalidations);
        }
    }

    /// Has copies forget a key that can be reached. Returns whether there were any. While a ring changes they wait,
    /// unless `is_urgent`.
    fn settle_invalidation(&mut self, number: u32, is_urgent: bool) -> bool {
        let now = self.now;
        let Some(it) = self.invalidations.keys.get_mut(&number) else { return false };
        let state = &self.backends[it.backend];
        if state.is_held() && !is_urgent {
            self.invalidations.set_due(number, now.plus_millis(HELD_MS));
            return false;
        }
        let is_over = it.until <= now;
        let mut reached = Vec::new();
        for (place, copy) in it.copies.iter_mut().enumerate().filter(|(_, copy)| copy.is_owed) {
            match number_of(&copy.config, copy.server, state) {
                Some(server) if state.servers[server].is_up() => reached.push((server, place)),
                Some(_) if !is_over => {}
                // It is in the group no more, or has been away for too long.
                _ => copy.is_owed = false,
            }
        }
        let (of, key) = ((it.backend, it.variant), it.key.clone());
        let servers: Vec<ServerId> = reached.iter().map(|&(server, _)| server).collect();
        let place_of = |server: ServerId| {
            let found = reached.iter().find(|&&(it, _)| it == server);
            found.map_or(0, |&(_, place)| place as u32)
        };
        let own = |server| Own::Invalidation { number, copy: place_of(server) };
        let sent = self.have_forgotten(of, &key, &servers, own);
        let is_sent = !sent.is_empty();
        if let Some(it) = self.invalidations.keys.get_mut(&number) {
            for server in sent {
                let copy = &mut it.copies[place_of(server) as usize];
                copy.is_owed = false;
                copy.in_flight += 1;
            }
        }
        self.invalidations.set_due(number, now.plus_millis(RETRY_MS));
        self.invalidations.remove_if_settled(number);
        is_sent
    }

    /// Has servers forget a key. Returns those that it was sent to.
    fn have_forgotten(
        &mut self,
        (backend, variant): (BackendId, u16),
        key: &[u8],
        servers: &[ServerId],
        own: impl Fn(ServerId) -> Own,
    ) -> Vec<ServerId> {
        if servers.is_empty() {
            return Vec::new();
        }
        let lane = WriteLane::unordered(self.slot);
        self.metrics.begin_write(key, lane, WriteKind::Ordered);
        let mut sent = Vec::new();
        for &server in servers {
            let Some(order) = self.order_for((backend, server), variant, key) else { continue };
            let lane = self.lane_of((backend, server), order.variant, 0, order.text.len());
            let Ok(lane) = lane else { continue };
            let (request, slot) = self.requests.add(backend, ClientId::NONE, self.now);
            slot.role = Role::Own(own(server));
            (slot.expect, slot.asked) = (order.expect, order.asked);
            self.send(lane, request, Payload::Bytes(&order.text));
            let metrics = self.backends[backend].servers[server].metrics;
            self.metrics.add_server(metrics, ServerCounter::Invalidated, 1);
            sent.push(server);
        }
        sent
    }

    /// By a connection of the first variant, or else of the client's: each protocol has keys that it
    /// cannot name.
    fn order_for(
        &self,
        (backend, server): (BackendId, ServerId),
        variant: u16,
        key: &[u8],
    ) -> Option<Order> {
        let state = &self.backends[backend];
        let wire = |variant: u16| {
            let params = state.params_set.get(usize::from(variant))?;
            let has_lanes = state.servers[server].has_lanes(variant);
            has_lanes.then_some(params.wire_protocol)
        };
        let is_plain =
            key.len() <= KEY_SIZE_MAX && key.iter().all(|&byte| byte > b' ' && byte != 0x7f);
        for variant in [0, variant] {
            match wire(variant) {
                Some(WireProtocol::Text) if is_plain => {
                    // `delete noreply` would be read as a request without a key.
                    let foot: &[u8] = if key == b"noreply" { b" 0\r\n" } else { b"\r\n" };
                    let text = [b"delete ", key, foot].concat();
                    let expect = Expect::Answer(Answer::Delete);
                    return Some(Order { text, variant, expect, asked: Asked::default() });
                }
                Some(WireProtocol::Binary) => {
                    let opcode = Opcode::Delete.byte();
                    let mut text = Vec::new();
                    write_request(opcode, key, b"", &mut text);
                    let asked = Asked { opcode, ..Asked::default() };
                    return Some(Order { text, variant, expect: Expect::Packet, asked });
                }
                _ => {}
            }
        }
        let variant = [0, variant].into_iter().find(|&it| wire(it) == Some(WireProtocol::Text))?;
        let mut text = b"md ".to_vec();
        encode_key(key, &mut text);
        if text.len() > b"md ".len() + KEY_SIZE_MAX {
            return None;
        }
        text.extend_from_slice(b" b\r\n");
        let expect = Expect::Answer(Answer::MetaDelete);
        Some(Order { text, variant, expect, asked: Asked::default() })
    }

    /// A copy has answered that it forgets a key.
    pub(crate) fn invalidated(&mut self, request: RequestId, own: Own, reply: &[u8]) {
        let is_failed = is_bad(self.requests[request].expect, reply);
        self.settle_copy(own, is_failed);
    }

    /// A copy has not answered.
    pub(crate) fn not_invalidated(&mut self, own: Own) {
        self.settle_copy(own, true);
    }

    fn settle_copy(&mut self, own: Own, is_failed: bool) {
        let Own::Invalidation { number, copy } = own else { return };
        let now = self.now;
        let Some(it) = self.invalidations.keys.get_mut(&number) else { return };
        let Some(copy) = it.copies.get_mut(copy as usize) else { return };
        copy.in_flight -= 1;
        if is_failed {
            (copy.is_owed, copy.owed_at) = (true, now);
        }
        self.invalidations.remove_if_settled(number);
    }
}
