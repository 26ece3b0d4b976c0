//! Single keys that go from one pool to another while all clients of both wait.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Protocol, TopologyState};
use tracing::warn;

use crate::side::Side;
use crate::{memcached, redis};

/// Clients wait no longer for the keys of one step.
const STEP_MAX: Duration = Duration::from_secs(4);

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
            side.gap().map_or(Ok((side, pool.protocol)), Err)
        };
        let ((mut from, protocol), (mut to, _)) = (find(&from)?, find(&to)?);
        from.limit(&to.databases);
        to.limit(&from.databases);
        Ok(Self {
            from,
            to,
            keys: keys.into_iter().map(String::into_bytes).collect(),
            may_overwrite,
            protocol,
            until: Instant::now() + STEP_MAX,
            is_called_off: AtomicBool::new(false),
            written: Mutex::default(),
        })
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
                STEP_MAX.as_secs()
            ))),
        }
    }

    /// `to` may have this from now on.
    pub(crate) fn write(&self, key: &[u8]) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(key.to_vec());
    }

    fn carry(&self) -> Result<(), String> {
        crate::apart::check(&self.from, &self.to, &[])?;
        let outcome = match self.protocol {
            Protocol::Redis => redis::carry(self),
            Protocol::Memcached | Protocol::Tcp => memcached::carry(self),
        };
        outcome.map_err(|error| error.to_string())
    }

    fn remove(&self, side: &Side, keys: &[Vec<u8>]) {
        let outcome = match self.protocol {
            Protocol::Redis => redis::remove(side, keys),
            Protocol::Memcached | Protocol::Tcp => memcached::remove(side, keys),
        };
        if let Err(error) = outcome {
            let (pool, count) = (&side.pool, keys.len());
            warn!("pool {pool}: {count} keys that are elsewhere now are not removed: {error}");
        }
    }
}

impl Carrier {
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
        let last = self.last.take();
        let run = move || {
            if let Some(last) = last {
                drop(last.join());
            }
            act();
        };
        match thread::Builder::new().name("move-keys".to_owned()).spawn(run) {
            Ok(thread) => self.last = Some(thread),
            Err(error) => warn!("a thread cannot be started: {error}"),
        }
    }
}
