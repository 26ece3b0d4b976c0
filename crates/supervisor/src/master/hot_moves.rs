//! Hot keys that go to another pool by the list of keys of a route, and come back when they are cool.
//!
//! A step is that of `cashew migrate keys`: all workers pause both pools, the key is copied and compared, and the list that is
//! in effect before clients go on says where it is. So no write is lost, and no read finds what was before one.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Instant;

use cashew_config::Snapshot;
use cashew_config::snapshot::is_listable;
use cashew_metrics::{EventKind, HotAct, HotActs, HotCause, HotDeed, HotKeys, KEY_SIZE_MAX};
use cashew_process::log::EventRecord;
use tracing::{info, warn};

use super::Master;
use super::hot_keys::{percent, shown};
use super::hot_waits::{HotWaits, Off, WAIT_MIN};
use super::key_moves::{Hindrance, KeyWish};
use crate::command::Reply;
use crate::status::{HotWaitStatus, Status};

/// Bytes of a key in memory. All clients of both pools wait while one is copied and compared: at this size, which is some
/// 50,000 fields of a hash, for tenths of a second.
const SIZE_MAX: u64 = 4 << 20;

/// What is under way, and what could not be done a moment ago.
#[derive(Default)]
pub(super) struct HotMoves {
    under_way: Weak<()>,
    waits: Rc<RefCell<HotWaits>>,
}

impl HotMoves {
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.strong_count() > 0
    }

    /// What is left alone for now of a pool's.
    pub(super) fn waits_of(&self, pool: &str, now: Instant) -> Vec<HotWaitStatus> {
        self.waits.borrow().statuses_of(pool, now)
    }

    /// Whether this key is left alone for now, wherever it is to go.
    pub(super) fn is_key_off(&self, act: &HotAct, now: Instant) -> bool {
        self.waits.borrow().is_off(&Off::Key(act.clone()), now)
    }

    /// Whether this is left alone for now, for the key's sake or that of a pool.
    pub(super) fn is_off(&self, it: &HotMove, now: Instant) -> bool {
        let waits = self.waits.borrow();
        it.kinds_of_off().iter().any(|what| waits.is_off(what, now))
    }
}

/// A key that is to go, and what is said when it has gone.
pub(super) struct HotMove {
    pub(super) act: HotAct,
    route: String,
    key: String,
    /// The pool whose key it is.
    pool: String,
    from: String,
    to: String,
    text: String,
}

impl HotMove {
    fn is_back(&self) -> bool {
        self.to == self.pool
    }

    /// All that may be left alone, and this with it.
    fn kinds_of_off(&self) -> [Off; 4] {
        let (from, to) = (&self.from, &self.to);
        [
            Off::Key(self.act.clone()),
            Off::Pool(from.clone()),
            Off::Pool(to.clone()),
            Off::Way(from.clone(), to.clone()),
        ]
    }

    /// The key as lists of keys have it.
    fn key_of(act: &HotAct) -> Result<String, String> {
        if act.len > KEY_SIZE_MAX {
            return Err(format!(
                "of keys of more than {KEY_SIZE_MAX} bytes not all is known when they are cool: use cashew migrate keys"
            ));
        }
        let key = String::from_utf8(act.key.clone()).ok().filter(|key| is_listable(key));
        key.ok_or_else(|| format!("a file cannot list key {}", shown(&act.key, act.len)))
    }

    /// Whether a key can go anywhere.
    pub(super) fn is_able(act: &HotAct) -> bool {
        Self::key_of(act).is_ok()
    }

    /// To the pool `to`.
    pub(super) fn forth(
        snapshot: &Snapshot,
        (pool, to): (&str, &str),
        act: HotAct,
        why: &str,
    ) -> Result<Self, String> {
        let route = snapshot.route_of_hot((pool, to))?.to_owned();
        let key = Self::key_of(&act)?;
        match snapshot.led_to(&route, &key) {
            Some(it) if it == pool => {}
            Some(it) => return Err(format!("its list leads the key to pool {it} already")),
            None => return Err("its list leads the key to no pool".to_owned()),
        }
        let name = shown(&act.key, act.len);
        let text = format!("pool {pool}: key {name} goes to pool {to}: {why}");
        let (pool, to) = (pool.to_owned(), to.to_owned());
        Ok(Self { act, route, key, from: pool.clone(), pool, to, text })
    }

    /// Back to its own pool. `None` if it is there.
    pub(super) fn back(snapshot: &Snapshot, pool: &str, act: HotAct, why: &str) -> Option<Self> {
        let route = snapshot.list_of(pool)?.to_owned();
        let key = Self::key_of(&act).ok()?;
        let from = snapshot.led_to(&route, &key).filter(|it| *it != pool)?.to_owned();
        let name = shown(&act.key, act.len);
        let text = format!("pool {pool}: key {name} is back from pool {from}: {why}");
        let pool = pool.to_owned();
        Some(Self { act, route, key, from, to: pool.clone(), pool, text })
    }
}

/// Whoever hears what became of it, before an operator does who has asked for it.
struct Moving {
    it: HotMove,
    list: HotActs,
    waits: Rc<RefCell<HotWaits>>,
    hindrance: Rc<RefCell<Hindrance>>,
    operator: Option<Box<dyn Reply>>,
    /// It is under way as long as this is there.
    _token: Rc<()>,
}

impl Moving {
    fn record(&mut self) {
        let HotMove { act, pool, text, .. } = &self.it;
        let mut acts = self.list.all();
        acts.retain(|it| !it.is_like(act));
        match self.it.is_back() {
            true => info!(kind = EventKind::HotKeyReleased.name(), pool, "{text}"),
            false => {
                info!(kind = EventKind::HotKeyMoved.name(), pool, "{text}");
                let since = Master::now_unix_s();
                acts.push(HotAct { deed: HotDeed::Move, since, ..act.clone() });
            }
        }
        self.list.set(&acts);
        let mut waits = self.waits.borrow_mut();
        self.it.kinds_of_off().iter().for_each(|what| waits.forget(what));
        drop(waits);
        if let Some(operator) = &mut self.operator {
            operator.line(text);
        }
    }
}

impl Moving {
    /// A rule lets go of what could not be done, for longer each time. What it lets go of, for the log.
    fn put_off(&self, why: &str) -> String {
        let HotMove { act, from, to, .. } = &self.it;
        let (mut waits, now) = (self.waits.borrow_mut(), Instant::now());
        let key = Off::Key(act.clone());
        match &*self.hindrance.borrow() {
            Hindrance::Key => {
                let wait = waits.put_off(key, why, WAIT_MIN, now).as_secs();
                format!("it is not tried again for {wait} s")
            }
            Hindrance::Pool(pool) => {
                let wait = waits.put_off(Off::Pool(pool.clone()), why, WAIT_MIN, now).as_secs();
                format!("no hot key goes to pool {pool} or comes from it for {wait} s")
            }
            Hindrance::Step => {
                // Others are tried before this one.
                waits.put_off(key, why, 2 * WAIT_MIN, now);
                let way = Off::Way(from.clone(), to.clone());
                let wait = waits.put_off(way, why, WAIT_MIN, now).as_secs();
                format!("no hot key goes from pool {from} to pool {to} for {wait} s")
            }
        }
    }
}

impl Reply for Moving {
    fn line(&mut self, _: &str) {}

    fn status(&mut self, _: Status) {}

    fn events(&mut self, _: Vec<EventRecord>) {}

    fn done(mut self: Box<Self>) {
        self.record();
        self.operator.into_iter().for_each(|it| it.done());
    }

    /// Somebody has moved it meanwhile.
    fn unchanged(self: Box<Self>) {
        self.done();
    }

    fn failed(self: Box<Self>, why: &str) {
        let HotMove { act, pool, .. } = &self.it;
        let name = shown(&act.key, act.len);
        match &self.operator {
            // What an operator tries is not what a rule has to wait for.
            Some(_) => warn!(pool, "pool {pool}: hot key {name} stays where it is: {why}"),
            None => {
                let put_off = self.put_off(why);
                warn!(pool, "pool {pool}: hot key {name} stays where it is: {why}; {put_off}");
            }
        }
        self.operator.into_iter().for_each(|it| it.failed(why));
    }

    fn is_awaited(&self) -> bool {
        true
    }
}

impl Master {
    /// Has a key go, if nothing else goes.
    pub(super) fn begin_hot_move(&mut self, it: HotMove, operator: Option<Box<dyn Reply>>) {
        if self.hot_moves.is_under_way() {
            operator
                .into_iter()
                .for_each(|it| it.failed("another hot key goes just now: try again"));
            return;
        }
        let token = Rc::new(());
        self.hot_moves.under_way = Rc::downgrade(&token);
        let wish = KeyWish::new((it.from.clone(), it.to.clone()), vec![it.key.clone()], false);
        // What an operator takes back may be of any size.
        let is_undone = operator.is_some() && it.is_back();
        let wish = wish.of_hot_key(it.route.clone(), (!is_undone).then_some(SIZE_MAX));
        let (list, waits) = (self.shared.hot_acts(), Rc::clone(&self.hot_moves.waits));
        let hindrance = wish.hindrance();
        let moving = Moving { it, list, waits, hindrance, operator, _token: token };
        self.want_keys(wish, Box::new(moving));
    }

    /// An operator wants a key to go to another pool.
    pub(super) fn move_hot_key(
        &mut self,
        (pool, key): (&str, &[u8]),
        to: Option<String>,
        mut reply: Box<dyn Reply>,
    ) {
        if let Some(line) = self.moved_already((pool, key), to.as_deref()) {
            reply.line(&line);
            return reply.unchanged();
        }
        match self.hot_move_of_operator((pool, key), to) {
            Ok(it) => self.begin_hot_move(it, Some(reply)),
            Err(why) => reply.failed(&why),
        }
    }

    /// What to say if the key is where it is to go.
    fn moved_already(&self, (pool, key): (&str, &[u8]), to: Option<&str>) -> Option<String> {
        let act = HotAct::of_key(pool, key, HotCause::Command);
        let acts = self.shared.hot_acts().all();
        acts.iter().find(|it| it.deed == HotDeed::Move && it.is_like(&act))?;
        let snapshot = &self.current.snapshot;
        let at = snapshot.led_to(snapshot.list_of(pool)?, std::str::from_utf8(key).ok()?)?;
        let name = shown(&act.key, act.len);
        to.is_none_or(|to| to == at).then(|| format!("key {name} is in pool {at} already"))
    }

    fn hot_move_of_operator(
        &self,
        (pool, key): (&str, &[u8]),
        to: Option<String>,
    ) -> Result<HotMove, String> {
        let snapshot = &self.current.snapshot;
        let index = snapshot.pools.iter().position(|it| it.name == pool);
        let index = index.ok_or("the pool has gone")?;
        let rule = snapshot.pools[index].hot_rule.as_ref();
        let to = to.or_else(|| rule.and_then(|rule| rule.moves_to.clone()));
        let to = to.ok_or("say to which pool it goes: --to POOL")?;
        let act = HotAct::of_key(pool, key, HotCause::Command);
        if let Some(it) = self.shared.hot_acts().all().iter().find(|it| it.is_like(&act)) {
            let name = shown(&act.key, act.len);
            return Err(format!(
                "key {name}: its rule or an operator has had it {}d already",
                match it.deed {
                    HotDeed::Cache => "cache",
                    HotDeed::Split { .. } => "split",
                    HotDeed::Move => "move",
                }
            ));
        }
        let share = self.hot_share(index, &act).unwrap_or(0);
        let act = HotAct { limit_ppm: share / 2, ..act };
        let why = format!("an operator wants it; it has {} of the requests", percent(share));
        HotMove::forth(snapshot, (pool, &to), act, &why)
    }

    /// The hot keys of a pool, those included that are in others.
    pub(super) fn hot_keys_with_moved(&self, index: usize, acts: &[HotAct]) -> HotKeys {
        let snapshot = &self.current.snapshot;
        let name = &snapshot.pools[index].name;
        let mut hot = self.hot_keys_of(index);
        let Some(route) = snapshot.list_of(name) else { return hot };
        let is_moved = |act: &&HotAct| act.deed == HotDeed::Move && act.is_of_pool(name);
        for act in acts.iter().filter(is_moved) {
            let key = HotMove::key_of(act).ok();
            let pool = key.and_then(|key| snapshot.led_to(route, &key));
            let at = pool.and_then(|pool| snapshot.pools.iter().position(|it| it.name == pool));
            let Some(at) = at.filter(|at| *at != index) else { continue };
            let elsewhere = self.hot_keys_of(at).keys;
            let Some(there) = elsewhere.into_iter().find(|key| act.is_about_hot(key)) else {
                continue;
            };
            hot.total += there.weight;
            match hot.keys.iter_mut().find(|key| act.is_about_hot(key)) {
                Some(here) => here.weight += there.weight,
                None => hot.keys.push(there),
            }
        }
        hot.keys.sort_by_key(|key| std::cmp::Reverse(key.weight));
        hot
    }
}
