//! Single keys that go from one pool to another while all clients of both wait.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Protocol, TopologyState};
use tracing::warn;

use crate::side::{Access, Side};
use crate::{memcached, redis};

/// Clients wait no longer for the keys of one step, and the master for a little longer.
const STEP_MAX: Duration = Duration::from_millis(3500);
/// What is left behind is removed by then, or stays. Whatever comes next waits for it.
const REMOVE_MAX: Duration = Duration::from_secs(10);
/// A server that is asked before anybody waits answers within its pool's `timeout`, and no sooner or later than in these.
const PATIENCE_MIN: Duration = Duration::from_millis(200);
const PATIENCE_MAX: Duration = Duration::from_secs(2);
/// That of a pool without a `timeout`.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often it is looked whether that is over.
const PAUSE: Duration = Duration::from_millis(5);

const STILL_REMOVED: &str = "what the keys before have left behind is still being removed, since a server does not answer: try again";
pub(crate) const IS_THERE: &str = "the other pool has such a key, which would be lost; remove it, or use cashew migrate keys --overwrite";

/// Why keys cannot go, as was found out before anybody waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub why: String,
    /// The pool of which a server does not answer as it should: no other keys can go there or come from it, either.
    pub pool: Option<String>,
}

/// Which keys go where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carriage {
    pub from: String,
    pub to: String,
    pub keys: Vec<String>,
    /// Also if the other pool has something by their names.
    pub may_overwrite: bool,
}

/// Carries keys, one step after the other. What a step leaves behind is removed once that has been decided.
#[derive(Default)]
pub struct Carrier {
    step: Option<Arc<Step>>,
    /// The last thread, which whatever comes next waits for.
    last: Option<JoinHandle<()>>,
}

pub(crate) struct Step {
    pub(crate) from: Side,
    pub(crate) to: Side,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) may_overwrite: bool,
    protocol: Protocol,
    /// How long a server of either pool may take to answer.
    patience: [Duration; 2],
    /// The most bytes that a key may have in memory.
    size_max: Option<u64>,
    until: Instant,
    is_called_off: AtomicBool,
    /// Those that `to` has from here.
    written: Mutex<Vec<Vec<u8>>>,
}

impl Step {
    fn new(
        snapshot: &Snapshot,
        states: &[TopologyState],
        Carriage { from, to, keys, may_overwrite }: Carriage,
    ) -> Result<Self, String> {
        let find = |name: &str| {
            let at = snapshot.pools.iter().position(|pool| pool.name == name);
            let at = at.ok_or_else(|| format!("there is no pool {name}"))?;
            let pool = &snapshot.pools[at];
            let state = states.get(at).filter(|state| state.is_of(pool)).cloned();
            let side = Side::new(pool, &state.unwrap_or_else(|| TopologyState::whole(pool)));
            side.gap().map_or(Ok((side, pool)), Err)
        };
        let ((mut from, of_from), (mut to, of_to)) = (find(&from)?, find(&to)?);
        from.limit(&to.databases);
        to.limit(&from.databases);
        Ok(Self {
            from,
            to,
            keys: keys.into_iter().map(String::into_bytes).collect(),
            may_overwrite,
            protocol: of_from.protocol,
            patience: [of_from, of_to].map(patience),
            size_max: None,
            until: Instant::now() + STEP_MAX,
            is_called_off: AtomicBool::new(false),
            written: Mutex::default(),
        })
    }

    /// Both pools, of which everything is to be known in time.
    pub(crate) fn sides(&self) -> (Side, Side) {
        (self.from.clone().until(self.until), self.to.clone().until(self.until))
    }

    /// Whether the servers of the keys answer, those of `to` have no such keys, and those of `from` none that are too large.
    fn look(&self) -> Result<(), Refusal> {
        for (side, patience) in [&self.from, &self.to].into_iter().zip(self.patience) {
            for at in side.shards_of(&self.keys) {
                let until = Instant::now() + patience;
                let access =
                    Access { until: Some(until.min(self.until)), ..side.shards[at].clone() };
                let keys = self.keys.iter().filter(|key| side.place(key) == at);
                let keys: Vec<&[u8]> = keys.map(Vec::as_slice).collect();
                let (pool, server) = (&side.pool, &access.name);
                let obstacle = match side.pool == self.to.pool {
                    true => self.obstacle_there(side, &access, &keys),
                    false => self.obstacle_here(side, &access, &keys),
                };
                match obstacle {
                    Ok(None) => {}
                    Ok(Some(why)) => {
                        let why = format!("{why} (pool {pool}, server {server})");
                        return Err(Refusal { why, pool: None });
                    }
                    Err(error) => {
                        let why = format!("pool {pool} does not answer: server {server}: {error}");
                        return Err(Refusal { why, pool: Some(pool.clone()) });
                    }
                }
            }
        }
        Ok(())
    }

    /// Why a server of `to` does not take one of these keys.
    fn obstacle_there(
        &self,
        side: &Side,
        access: &Access,
        keys: &[&[u8]],
    ) -> io::Result<Option<String>> {
        let asked = if self.may_overwrite { &[] } else { keys };
        let found = match self.protocol {
            Protocol::Redis => redis::first_there(access, &side.databases, asked)?,
            Protocol::Memcached | Protocol::Tcp => memcached::first_there(access, asked)?,
        };
        Ok(found.map(|at| format!("key \"{}\": {IS_THERE}", keys[at].escape_ascii())))
    }

    /// Why one of these keys cannot leave a server of `from`.
    fn obstacle_here(
        &self,
        side: &Side,
        access: &Access,
        keys: &[&[u8]],
    ) -> io::Result<Option<String>> {
        let most = self.size_max.unwrap_or(u64::MAX);
        let asked = if self.size_max.is_some() { keys } else { &[] };
        let found = match self.protocol {
            Protocol::Redis => redis::first_larger(access, &side.databases, (asked, most))?,
            Protocol::Memcached | Protocol::Tcp => memcached::first_larger(access, (asked, most))?,
        };
        Ok(found.map(|(at, size)| {
            let key = keys[at].escape_ascii();
            format!(
                "key \"{key}\" takes {size} bytes, and all clients would wait while it is copied: beyond {most} bytes use \
                 cashew migrate keys"
            )
        }))
    }

    /// Whether there is time left.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.is_called_off.load(Ordering::Relaxed) {
            return Err(io::Error::other("it was called off"));
        }
        match Instant::now() < self.until {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "it takes longer than {} s: move fewer keys at once",
                STEP_MAX.as_secs_f32()
            ))),
        }
    }

    /// `to` may have this from now on.
    pub(crate) fn write(&self, key: &[u8]) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(key.to_vec());
    }

    fn carry(&self) -> Result<(), String> {
        let (from, to) = self.sides();
        let part = |side: &Side| side.part(&Vec::from_iter(side.shards_of(&self.keys)));
        crate::apart::check(&part(&from), &part(&to), &[])?;
        let outcome = match self.protocol {
            Protocol::Redis => redis::carry(self),
            Protocol::Memcached | Protocol::Tcp => memcached::carry(self),
        };
        outcome.map_err(|error| error.to_string())
    }

    fn remove(&self, side: &Side, keys: &[Vec<u8>]) {
        let side = side.clone().until(Instant::now() + REMOVE_MAX);
        let outcome = match self.protocol {
            Protocol::Redis => redis::remove(&side, keys),
            Protocol::Memcached | Protocol::Tcp => memcached::remove(&side, keys),
        };
        if let Err(error) = outcome {
            let (pool, count) = (&side.pool, keys.len());
            warn!("pool {pool}: {count} keys that are elsewhere now are not removed: {error}");
        }
    }
}

fn patience(pool: &Pool) -> Duration {
    let own = pool.timeout_ms.map_or(PATIENCE, Duration::from_millis);
    own.clamp(PATIENCE_MIN, PATIENCE_MAX)
}

impl Carrier {
    /// Finds out whether keys can go of which none has more than so many bytes in memory, once all that was begun before
    /// is done, then calls back. Nothing changes, and nobody has to wait meanwhile.
    pub fn look(
        &mut self,
        (snapshot, states): (&Snapshot, &[TopologyState]),
        (carriage, size_max): (Carriage, Option<u64>),
        then: impl FnOnce(Result<(), Refusal>) + Send + 'static,
    ) {
        match Step::new(snapshot, states, carriage) {
            Err(why) => then(Err(Refusal { why, pool: None })),
            Ok(mut step) => self.next_unless_late(Some(PATIENCE_MAX), move |is_late| {
                step.until = Instant::now() + STEP_MAX;
                step.size_max = size_max;
                then(match is_late {
                    true => Err(Refusal { why: STILL_REMOVED.to_owned(), pool: None }),
                    false => step.look(),
                });
            }),
        }
    }

    /// Has one pool have what the other one has of some keys, and compares it, then calls back. Nobody may write
    /// meanwhile.
    pub fn carry(
        &mut self,
        (snapshot, states): (&Snapshot, &[TopologyState]),
        carriage: Carriage,
        then: impl FnOnce(Result<(), String>) + Send + 'static,
    ) {
        match Step::new(snapshot, states, carriage) {
            Err(why) => then(Err(why)),
            Ok(step) => {
                let step = Arc::new(step);
                self.step = Some(Arc::clone(&step));
                self.next(move || then(step.carry()));
            }
        }
    }

    /// The keys are served where they were carried to.
    pub fn commit(&mut self) {
        if let Some(step) = self.step.take() {
            self.next(move || step.remove(&step.from, &step.keys));
        }
    }

    /// They are served where they were.
    pub fn call_off(&mut self) {
        if let Some(step) = self.step.take() {
            step.is_called_off.store(true, Ordering::Relaxed);
            self.next(move || {
                let written = step.written.lock().unwrap_or_else(PoisonError::into_inner);
                step.remove(&step.to, &written);
            });
        }
    }

    /// Does something when all before it is done.
    fn next(&mut self, act: impl FnOnce() + Send + 'static) {
        self.next_unless_late(None, |_| act());
    }

    /// The same, but after so long at the latest. Whether it is too early then is what `act` is told. What comes next waits
    /// for all of it.
    fn next_unless_late(
        &mut self,
        most: Option<Duration>,
        act: impl FnOnce(bool) + Send + 'static,
    ) {
        let last = self.last.take();
        let run = move || {
            let since = Instant::now();
            let is_awaited = |last: &JoinHandle<()>| {
                !last.is_finished() && most.is_none_or(|most| since.elapsed() < most)
            };
            while most.is_some() && last.as_ref().is_some_and(is_awaited) {
                thread::sleep(PAUSE);
            }
            match last {
                Some(last) if most.is_some() && !last.is_finished() => {
                    act(true);
                    drop(last.join());
                }
                last => {
                    last.map(JoinHandle::join);
                    act(false);
                }
            }
        };
        match thread::Builder::new().name("move-keys".to_owned()).spawn(run) {
            Ok(thread) => self.last = Some(thread),
            Err(error) => warn!("a thread cannot be started: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::Context;

    use super::*;

    #[test]
    fn servers_have_their_pools_timeout_to_answer_but_nobody_waits_for_long() {
        let of = |option: &str| {
            let text =
                format!("a:\n  listen: 127.0.0.1:1\n  {option}\n  servers: [127.0.0.1:2:1]\n");
            let loaded = cashew_config::parse("f", &text, &Context::of_system()).unwrap();
            patience(&loaded.snapshot.pools[0]).as_millis()
        };
        assert_eq!(of("redis: true"), 1000);
        assert_eq!((of("timeout: 400"), of("timeout: 5"), of("timeout: 60000")), (400, 200, 2000));
    }

    #[test]
    fn who_looks_waits_a_moment_for_what_is_removed_and_who_carries_until_it_is_over() {
        let (mut carrier, (said, heard)) = (Carrier::default(), std::sync::mpsc::channel());
        let begun = Instant::now();
        carrier.next(|| thread::sleep(Duration::from_millis(400)));
        let tell = |what: &'static str| {
            let said = said.clone();
            move |is_late| said.send((what, is_late, begun.elapsed().as_millis())).unwrap()
        };
        carrier.next_unless_late(Some(Duration::from_millis(50)), tell("early"));
        carrier.next_unless_late(None, tell("after it"));
        carrier.next_unless_late(Some(Duration::from_secs(60)), tell("at once"));
        let found: Vec<_> = heard.iter().take(3).collect();
        let [("early", true, early), ("after it", false, after), ("at once", false, _)] = found[..]
        else {
            panic!("{found:?}")
        };
        assert!((50..400).contains(&early) && after >= 400, "{found:?}");
    }
}
