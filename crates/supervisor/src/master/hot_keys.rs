//! What is done about hot keys: by the rules of their pools, and by operators.
//!
//! The list itself is in memory that all processes share ([`cashew_metrics::HotActs`]), and so outlives this program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{COPIES_DEFAULT, HotRule, Pool};
use cashew_metrics::{
    EventKind, HOT_ACTS_MAX, HotAct, HotCause, HotDeed, HotKey, HotKeys, KEY_SIZE_MAX, Ranking,
    WallClock, monotonic_ms,
};
use tracing::info;

use super::Master;
use super::hot_moves::HotMove;
use crate::command::{HotAction, Reply};
use crate::status::HotKeyStatus;

/// So long a key has to be cool until it is taken for that.
const COOLING: Duration = Duration::from_secs(60);
/// Of fewer requests, as the sketch counts them, shares mean nothing. They are those of some 15 seconds.
const SEEN_MIN: u64 = 1000;
const PPM: u128 = 1_000_000;

/// Since when keys that something is done about have been cool.
#[derive(Default)]
pub(super) struct Cooling(Vec<(HotAct, Instant)>);

impl Cooling {
    /// How long a key has been cool, if it is.
    fn note(&mut self, act: &HotAct, is_cool: bool, now: Instant) -> Duration {
        let known = self.0.iter().position(|(it, _)| it.is_like(act));
        match (known, is_cool) {
            (None, false) => Duration::ZERO,
            (Some(at), false) => {
                self.0.swap_remove(at);
                Duration::ZERO
            }
            (None, true) => {
                self.0.push((act.clone(), now));
                Duration::ZERO
            }
            (Some(at), true) => now.saturating_duration_since(self.0[at].1),
        }
    }

    fn forget_others(&mut self, acts: &[HotAct]) {
        self.0.retain(|(it, _)| acts.iter().any(|act| act.is_like(it)));
    }
}

/// The share of a key of all that its pool does, in millionths. `None` where too little is known.
fn share_ppm(hot: &HotKeys, is_it: impl Fn(&HotKey) -> bool) -> Option<u32> {
    if hot.total < SEEN_MIN {
        return None;
    }
    let weight = hot.keys.iter().find(|key| is_it(key)).map_or(0, |key| key.weight);
    Some((u128::from(weight) * PPM / u128::from(hot.total)).min(PPM) as u32)
}

pub(super) fn shown(key: &[u8], len: usize) -> String {
    let rest = if len > KEY_SIZE_MAX { "…" } else { "" };
    format!("\"{}\"{rest}", key.escape_ascii())
}

pub(super) fn percent(ppm: u32) -> String {
    format!("{:.1}%", f64::from(ppm) / 10_000.0)
}

/// Those of a pool that its rule wants, besides those that are there.
fn wanted(
    rule: &HotRule,
    hot: &HotKeys,
    pool: &str,
    acts: &[HotAct],
    is_able: impl Fn(&HotAct) -> bool,
) -> Vec<(HotAct, u32)> {
    let own = acts.iter().filter(|act| act.is_of_pool(pool));
    let by_rule = own.clone().filter(|act| act.cause == HotCause::Rule).count();
    let above_ppm = rule.above_percent * (PPM as u32 / 100);
    let is_new = |key: &&HotKey| !own.clone().any(|act| act.is_about_hot(key));
    let share = |key: &HotKey| share_ppm(hot, |it| it.hash == key.hash && it.len == key.len);
    let found = hot.keys.iter().filter(is_new).filter_map(|key| {
        let share = share(key).filter(|&share| share > above_ppm)?;
        let act = HotAct::of_sketch(pool, key, HotCause::Rule);
        let act = HotAct { limit_ppm: above_ppm / 2, ..act };
        is_able(&act).then_some((act, share))
    });
    found.take((rule.keys_max as usize).saturating_sub(by_rule)).collect()
}

impl Master {
    pub(super) fn hot_keys_of(&self, index: usize) -> HotKeys {
        let segments = &self.current.segments;
        let pool = segments.layout().pool(index);
        segments.hot_keys(pool, Ranking::Requests, monotonic_ms() * 1000)
    }

    /// The share of a key of a pool of all that the pool does. `None` where too little is known.
    pub(super) fn hot_share(&self, index: usize, act: &HotAct) -> Option<u32> {
        share_ppm(&self.hot_keys_of(index), |it| act.is_about_hot(it))
    }

    pub(super) fn now_unix_s() -> u64 {
        WallClock::now().unix_ms(monotonic_ms()) / 1000
    }

    /// Does what the rules say. To be called once a second.
    pub(super) fn look_at_hot_keys(&mut self, now: Instant) {
        let list = self.shared.hot_acts();
        let pools = &self.current.snapshot.pools;
        let before = list.all();
        if !list.is_there() || before.is_empty() && pools.iter().all(|it| it.hot_rule.is_none()) {
            return;
        }
        let (mut acts, mut going) = (before.clone(), Vec::new());
        let snapshot = Arc::clone(&self.current.snapshot);
        for (index, pool) in snapshot.pools.iter().enumerate() {
            if pool.hot_rule.is_none() && !acts.iter().any(|act| act.is_of_pool(&pool.name)) {
                continue;
            }
            let hot = self.hot_keys_with_moved(index, &acts);
            let cooling = &mut self.cooling;
            acts.retain(|act| {
                let is_own = act.is_of_pool(&pool.name);
                let why = is_own.then(|| reason_to_end(act, pool, &hot, (&mut *cooling, now)));
                let Some(why) = why.flatten() else { return true };
                let back = (act.deed == HotDeed::Move)
                    .then(|| HotMove::back(&snapshot, &pool.name, act.clone(), &why))
                    .flatten();
                let is_kept = back.is_some();
                going.extend(back);
                if !is_kept {
                    say_released(&pool.name, act, &why);
                }
                is_kept
            });
            let Some(rule) = &pool.hot_rule else { continue };
            let is_able = |act: &HotAct| match rule.moves_to {
                Some(_) => HotMove::is_able(act) && !self.hot_moves.is_key_off(act, now),
                None => true,
            };
            for (act, share) in wanted(rule, &hot, &pool.name, &acts, is_able) {
                if acts.len() >= HOT_ACTS_MAX {
                    break;
                }
                let Some(to) = &rule.moves_to else {
                    let deed = deed_of(rule);
                    say_begun(
                        (&pool.name, pool),
                        &act,
                        deed,
                        &format!("it has {}", percent(share)),
                    );
                    acts.push(HotAct { since: Self::now_unix_s(), deed, ..act });
                    continue;
                };
                let why = format!("it has {} of the requests", percent(share));
                // What somebody has led elsewhere stays there.
                going.extend(HotMove::forth(&snapshot, (&pool.name, to), act, &why));
            }
        }
        acts.retain(|act| {
            let pool = snapshot.pools.iter().find(|pool| act.is_of_pool(&pool.name));
            let is_kept = pool.is_some_and(|pool| is_followed(&snapshot, &pool.name, act.deed));
            if !is_kept {
                let name = pool.map_or("", |pool| &pool.name);
                let cannot = pool.and_then(Pool::cannot_split);
                let why = match act.deed {
                    HotDeed::Split { .. } if cannot.is_some() => cannot.unwrap_or_default(),
                    HotDeed::Cache | HotDeed::Split { .. } => {
                        "no node keeps hot keys of its pool any more"
                    }
                    HotDeed::Move => "no route lists keys of its pool any more",
                };
                say_released(name, act, why);
            }
            is_kept
        });
        self.cooling.forget_others(&acts);
        if acts != before {
            list.set(&acts);
        }
        // Where one pool hangs the others' keys go on.
        let next = going.into_iter().find(|it| !self.hot_moves.is_off(it, now));
        if let Some(it) = next.filter(|_| !self.hot_moves.is_under_way()) {
            self.begin_hot_move(it, None);
        }
    }

    /// What an operator wants to be done about a key.
    pub(super) fn act_on_hot_key(
        &mut self,
        (pool, key): (Option<String>, &[u8]),
        (action, to, copies): (HotAction, Option<String>, Option<u8>),
        mut reply: Box<dyn Reply>,
    ) {
        // What is done about a key is undone where it is done.
        let acted_in =
            if action == HotAction::Undo { self.pools_acted_in(key) } else { Vec::new() };
        let named = match &acted_in[..] {
            [only] if pool.is_none() => Some(only.clone()),
            _ => pool,
        };
        let is_named = named.is_some();
        let pool = match self.able_pool(named, action) {
            Ok(pool) => pool,
            Err(why) if action == HotAction::Undo && !is_named && acted_in.is_empty() => {
                reply.line(&format!("nothing is done about the key in any pool; {why}"));
                return reply.unchanged();
            }
            Err(why) => return reply.failed(&why),
        };
        let done = match action {
            HotAction::Move => return self.move_hot_key((&pool, key), to, reply),
            HotAction::Cache => self.keep_hot_key(&pool, key, HotDeed::Cache),
            HotAction::Split => {
                let copies = copies.unwrap_or_else(|| self.copies_of(&pool));
                self.keep_hot_key(&pool, key, HotDeed::Split { copies })
            }
            HotAction::Undo => match self.hot_move_back(&pool, key) {
                Some(it) => return self.begin_hot_move(it, Some(reply)),
                None => self.release_hot_key(&pool, key),
            },
        };
        match done {
            Ok((line, has_changed)) => {
                reply.line(&line);
                if has_changed { reply.done() } else { reply.unchanged() }
            }
            Err(why) => reply.failed(&why),
        }
    }

    /// What takes a key back that is in another pool.
    fn hot_move_back(&self, pool: &str, key: &[u8]) -> Option<HotMove> {
        let act = HotAct::of_key(pool, key, HotCause::Command);
        let known = self.shared.hot_acts().all().into_iter().find(|it| it.is_like(&act));
        let is_kept = known.is_some_and(|it| it.deed.is_of_caches());
        let back = HotMove::back(&self.current.snapshot, pool, act, "an operator wants it");
        back.filter(|_| !is_kept)
    }

    /// Over how many servers a key of a pool is split where an operator does not say.
    fn copies_of(&self, pool: &str) -> u8 {
        let pool = self.current.snapshot.pools.iter().find(|it| it.name == pool);
        let rule = pool.and_then(|pool| pool.hot_rule.as_ref());
        rule.and_then(|rule| rule.copies).unwrap_or(COPIES_DEFAULT)
    }

    /// The pools that something is done in about a key.
    fn pools_acted_in(&self, key: &[u8]) -> Vec<String> {
        let acts = self.shared.hot_acts().all();
        let is_acted_in = |pool: &&str| {
            let wanted = HotAct::of_key(pool, key, HotCause::Command);
            acts.iter().any(|act| act.is_like(&wanted))
        };
        let names = self.current.snapshot.pools.iter().map(|pool| &*pool.name);
        names.filter(is_acted_in).map(str::to_owned).collect()
    }

    /// The pool whose hot keys something can be done about: that of this name, or the only one.
    fn able_pool(&self, pool: Option<String>, action: HotAction) -> Result<String, String> {
        if !self.shared.hot_acts().is_there() {
            return Err("the instance was started by a version without this: restart it".to_owned());
        }
        let snapshot = &self.current.snapshot;
        let names = || snapshot.pools.iter().map(|pool| &*pool.name);
        let is_able = |pool: &&str| match action {
            HotAction::Cache => is_followed(snapshot, pool, HotDeed::Cache),
            HotAction::Split => {
                is_followed(snapshot, pool, HotDeed::Split { copies: COPIES_DEFAULT })
            }
            HotAction::Move => is_followed(snapshot, pool, HotDeed::Move),
            HotAction::Undo => {
                is_followed(snapshot, pool, HotDeed::Cache)
                    || is_followed(snapshot, pool, HotDeed::Move)
            }
        };
        let what = match action {
            HotAction::Move => "lists keys in a file and has all others in",
            HotAction::Cache | HotAction::Split | HotAction::Undo => {
                "has a node `cache` with `hot_only: true` for"
            }
        };
        let named =
            pool.as_ref().and_then(|name| snapshot.pools.iter().find(|it| it.name == *name));
        if action == HotAction::Split
            && let Some(pool) = named.filter(|pool| snapshot.keeps_hot_of(&pool.name))
            && let Some(why) = pool.cannot_split()
        {
            return Err(format!("keys of pool '{}' cannot be split: {why}", pool.name));
        }
        let able: Vec<&str> = names().filter(is_able).collect();
        match (pool, &able[..]) {
            (Some(pool), able) if able.contains(&&*pool) => Ok(pool),
            (Some(pool), _) if names().all(|name| name != pool) => {
                Err(format!("there is no pool '{pool}'"))
            }
            (Some(pool), _) => Err(format!("no route {what} pool '{pool}'")),
            (None, [pool]) => Ok((*pool).to_owned()),
            (None, []) if action == HotAction::Split => {
                Err(format!("no route {what} a pool of several servers of Redis"))
            }
            (None, []) => Err(format!("no route {what} a pool")),
            (None, several) => Err(format!("name one of the pools {}", several.join(", "))),
        }
    }

    /// What is done, and whether it was not before.
    fn keep_hot_key(
        &self,
        pool: &str,
        key: &[u8],
        deed: HotDeed,
    ) -> Result<(String, bool), String> {
        let list = self.shared.hot_acts();
        let mut acts = list.all();
        let mut act = HotAct::of_key(pool, key, HotCause::Command);
        let name = shown(&act.key, act.len);
        match acts.iter().find(|it| it.is_like(&act)).map(|it| it.deed) {
            Some(known) if known == deed => {
                let what = match deed {
                    HotDeed::Split { copies } => format!("split over {copies} servers"),
                    HotDeed::Cache | HotDeed::Move => "kept".to_owned(),
                };
                return Ok((format!("key {name} is {what} already"), false));
            }
            Some(HotDeed::Cache) => {
                return Err(format!("replies to reads of key {name} are kept: --undo first"));
            }
            Some(HotDeed::Split { copies }) => {
                return Err(format!("key {name} is split over {copies} servers: --undo first"));
            }
            Some(HotDeed::Move) => {
                return Err(format!("key {name} is in another pool: --undo first"));
            }
            None => {}
        }
        if acts.len() >= HOT_ACTS_MAX {
            return Err(format!("there are {HOT_ACTS_MAX} keys already"));
        }
        let index = self.current.snapshot.pools.iter().position(|it| it.name == pool);
        let index = index.ok_or("the pool has gone")?;
        let share = self.hot_share(index, &act).unwrap_or(0);
        (act.limit_ppm, act.since, act.deed) = (share / 2, Self::now_unix_s(), deed);
        let why = format!("an operator wants it; it has {}", percent(share));
        let text = say_begun((pool, &self.current.snapshot.pools[index]), &act, deed, &why);
        acts.push(act);
        list.set(&acts);
        let until = match share {
            0 => "until it is undone".to_owned(),
            _ => format!("until it has had less than {} for a minute", percent(share / 2)),
        };
        Ok((format!("{text}; {until}"), true))
    }

    /// The same.
    fn release_hot_key(&self, pool: &str, key: &[u8]) -> Result<(String, bool), String> {
        let list = self.shared.hot_acts();
        let mut acts = list.all();
        let wanted = HotAct::of_key(pool, key, HotCause::Command);
        let name = shown(&wanted.key, wanted.len);
        let Some(at) = acts.iter().position(|it| it.is_like(&wanted)) else {
            return Ok((format!("pool '{pool}': nothing is done about key {name}"), false));
        };
        let act = acts.remove(at);
        say_released(pool, &act, "an operator wants it");
        list.set(&acts);
        Ok((format!("pool {pool}: {}", what_ends(&act)), true))
    }

    pub(super) fn hot_key_statuses(&self, index: u32, pool: &Pool) -> Vec<HotKeyStatus> {
        let acts = self.shared.hot_acts().all();
        if !acts.iter().any(|act| act.is_of_pool(&pool.name)) {
            return Vec::new();
        }
        let hot = self.hot_keys_with_moved(index as usize, &acts);
        let status = |act: HotAct| HotKeyStatus {
            key: shown(&act.key, act.len),
            action: act.deed.name().to_owned(),
            copies: match act.deed {
                HotDeed::Split { copies } => copies,
                HotDeed::Cache | HotDeed::Move => 0,
            },
            cause: act.cause.name().to_owned(),
            since: act.since,
            share_ppm: share_ppm(&hot, |key| act.is_about_hot(key)),
        };
        acts.into_iter().filter(|act| act.is_of_pool(&pool.name)).map(status).collect()
    }
}

/// Whether a route can do this about hot keys of a pool.
fn is_followed(snapshot: &Snapshot, pool: &str, deed: HotDeed) -> bool {
    match deed {
        HotDeed::Cache => snapshot.keeps_hot_of(pool),
        HotDeed::Split { .. } => {
            let found = snapshot.pools.iter().find(|it| it.name == pool);
            snapshot.keeps_hot_of(pool) && found.is_some_and(|it| it.cannot_split().is_none())
        }
        HotDeed::Move => snapshot.list_of(pool).is_some(),
    }
}

/// Why nothing is to be done about a key of a pool any more, if so.
fn reason_to_end(
    act: &HotAct,
    pool: &Pool,
    hot: &HotKeys,
    (cooling, now): (&mut Cooling, Instant),
) -> Option<String> {
    // Over how many servers may have changed, too.
    let is_in_rule = pool.hot_rule.as_ref().is_some_and(|rule| deed_of(rule) == act.deed);
    if act.cause == HotCause::Rule && !is_in_rule {
        return Some("the pool has no such rule any more".to_owned());
    }
    let share = share_ppm(hot, |key| act.is_about_hot(key)).unwrap_or(0);
    let is_cool = share < act.limit_ppm;
    let is_over = cooling.note(act, is_cool, now) >= COOLING;
    let limit = percent(act.limit_ppm);
    is_over.then(|| format!("it has had less than {limit} of the requests for a minute"))
}

/// What a rule does about hot keys.
fn deed_of(rule: &HotRule) -> HotDeed {
    match (&rule.moves_to, rule.copies) {
        (Some(_), _) => HotDeed::Move,
        (None, Some(copies)) => HotDeed::Split { copies },
        (None, None) => HotDeed::Cache,
    }
}

/// Says what is done about a key from here on, and returns it. `why` ends in a share.
fn say_begun((name, pool): (&str, &Pool), act: &HotAct, deed: HotDeed, why: &str) -> String {
    let key = shown(&act.key, act.len);
    let (kind, what) = match deed {
        HotDeed::Split { copies } => {
            // Nobody knows here how many nodes a cluster has.
            let servers = pool.shards().len();
            let most = if pool.cluster.is_some() { usize::MAX } else { servers };
            let over = most.min(copies.into());
            let what = format!("reads of key {key} go to copies, over {over} servers");
            (EventKind::HotKeySplit, what)
        }
        HotDeed::Cache | HotDeed::Move => {
            (EventKind::HotKeyCached, format!("replies to reads of key {key} are kept"))
        }
    };
    let text = format!("pool {name}: {what}: {why} of the requests");
    info!(kind = kind.name(), pool = name, "{text}");
    text
}

/// What is not done any more.
fn what_ends(act: &HotAct) -> String {
    let key = shown(&act.key, act.len);
    match act.deed {
        HotDeed::Cache => format!("replies to reads of key {key} are not kept any more"),
        HotDeed::Split { .. } => format!("reads of key {key} go to its own server alone"),
        HotDeed::Move => format!("nothing is done about key {key} any more"),
    }
}

fn say_released(pool: &str, act: &HotAct, why: &str) {
    let what = what_ends(act);
    info!(kind = EventKind::HotKeyReleased.name(), pool, "pool {pool}: {what}: {why}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(weights: &[(&str, u64)], total: u64) -> HotKeys {
        let key = |&(key, weight): &(&str, u64)| HotKey {
            key: key.into(),
            len: key.len(),
            hash: key.bytes().map(u64::from).sum(),
            server: 0,
            weight,
            unseen: 0,
        };
        HotKeys { keys: weights.iter().map(key).collect(), total }
    }

    const RULE: HotRule = HotRule { above_percent: 5, keys_max: 2, moves_to: None, copies: None };

    #[test]
    fn a_rule_wants_the_hottest_and_no_more_than_it_may() {
        let names = |hot: &HotKeys, acts: &[HotAct]| -> Vec<String> {
            let found = wanted(&RULE, hot, "p", acts, |_| true);
            assert!(found.iter().all(|(act, _)| act.limit_ppm == 25_000));
            found.iter().map(|(act, _)| String::from_utf8(act.key.clone()).unwrap()).collect()
        };
        let three = hot(&[("a", 400), ("b", 300), ("c", 200), ("d", 50)], 1000);
        assert_eq!(names(&three, &[]), ["a", "b"]);
        let acts: Vec<HotAct> =
            wanted(&RULE, &three, "p", &[], |_| true).into_iter().map(|(act, _)| act).collect();
        assert!(names(&three, &acts).is_empty(), "it has as many as it may have");
        assert_eq!(names(&three, &acts[..1]), ["b"]);
        // What an operator wants, and what other pools have, takes no room.
        let by_command = HotAct { cause: HotCause::Command, ..acts[0].clone() };
        assert_eq!(names(&three, &[by_command]), ["b", "c"]);
        assert_eq!(wanted(&RULE, &three, "q", &acts, |_| true).len(), 2);
        // What cannot be done leaves its room to others.
        let able = wanted(&RULE, &three, "q", &[], |act| act.key != b"a");
        assert_eq!(able.iter().map(|(act, _)| &*act.key).collect::<Vec<_>>(), [b"b", b"c"]);
        assert!(names(&hot(&[("a", 50)], 1000), &[]).is_empty(), "no more than the limit");
        assert!(names(&hot(&[("a", 900)], 999), &[]).is_empty(), "too little is known");
    }

    #[test]
    fn a_key_is_cool_when_it_has_been_for_a_minute_without_a_break() {
        let mut cooling = Cooling::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let act = wanted(&RULE, &hot(&[("a", 400)], 1000), "p", &[], |_| true).remove(0).0;
        assert_eq!(cooling.note(&act, true, at(0)), Duration::ZERO);
        assert_eq!(cooling.note(&act, true, at(59)), Duration::from_secs(59));
        assert_eq!(cooling.note(&act, false, at(60)), Duration::ZERO);
        assert_eq!(cooling.note(&act, true, at(61)), Duration::ZERO);
        assert_eq!(cooling.note(&act, true, at(121)), COOLING);
        cooling.forget_others(&[]);
        assert_eq!(cooling.note(&act, true, at(122)), Duration::ZERO);
    }
}
