//! What a primary tells of the keys that change.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::link::{Link, TIMEOUT};
use crate::reply::Reply;
use crate::side::Access;

/// Bytes of the names that wait. Beyond that it is forgotten which they are, and all are walked over.
const WAITING_SIZE_MAX: usize = 128 << 20;
/// What a name takes beside its bytes, about.
const NAME_SIZE: usize = 128;
/// How long until a server is asked again that was busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How often the primary is asked whether it is there, while it tells nothing.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Keys that have changed since they were copied.
pub(crate) struct Feed {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Since when each waits.
    waiting: HashMap<Arc<[u8]>, Instant>,
    /// In the order in which they came.
    order: VecDeque<Arc<[u8]>>,
    size: usize,
    /// Why it is of no use any more.
    failure: Option<String>,
    pings: u64,
    pongs: u64,
    pings_wanted: u64,
    is_ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, key: Vec<u8>) {
        let key: Arc<[u8]> = key.into();
        if self.waiting.contains_key(&key) {
            return;
        }
        let size = self.size + key.len() + NAME_SIZE;
        if size > WAITING_SIZE_MAX {
            self.failure = Some("more keys change than can be copied".to_owned());
            return;
        }
        self.size = size;
        self.waiting.insert(Arc::clone(&key), Instant::now());
        self.order.push_back(key);
    }
}

impl Feed {
    /// Once it returns, all that changes is told.
    pub(crate) fn open(access: &Access) -> io::Result<Self> {
        let mut link = connect(access)?;
        track(&mut link, &[b"BCAST"])?;
        Self::read_from(link)
    }

    /// Tells of what others than this connection change, and of keys that expire or are evicted.
    pub(crate) fn of_others(access: &Access, writer: &mut Link) -> io::Result<Self> {
        let mut link = connect(access)?;
        let id = link.demand(&[b"CLIENT", b"ID"])?.integer().unwrap_or_default().to_string();
        let feed = Self::read_from(link)?;
        track(writer, &[b"REDIRECT", id.as_bytes(), b"BCAST", b"NOLOOP"])?;
        Ok(feed)
    }

    fn read_from(mut link: Link) -> io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let its = Arc::clone(&shared);
        std::thread::Builder::new().name("move-feed".to_owned()).spawn(move || {
            if let Err(error) = read(&mut link, &its) {
                its.state().failure.get_or_insert_with(|| error.to_string());
            }
            its.changed.notify_all();
        })?;
        Ok(Self { shared })
    }

    /// Some keys that have changed. They are told again if they change after this.
    pub(crate) fn take(&self, count: usize) -> io::Result<Vec<Arc<[u8]>>> {
        let mut state = self.shared.state();
        if let Some(why) = &state.failure {
            return Err(io::Error::other(why.clone()));
        }
        let count = count.min(state.order.len());
        let keys: Vec<Arc<[u8]>> = state.order.drain(..count).collect();
        for key in &keys {
            state.waiting.remove(key);
            state.size -= key.len() + NAME_SIZE;
        }
        Ok(keys)
    }

    /// As if they had changed.
    pub(crate) fn put_back(&self, keys: impl IntoIterator<Item = Vec<u8>>) {
        let mut state = self.shared.state();
        keys.into_iter().for_each(|key| state.add(key));
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.shared.state().waiting.contains_key(key)
    }

    /// How many wait, and for how long the first has.
    pub(crate) fn backlog(&self) -> (usize, Duration) {
        let state = self.shared.state();
        let oldest = state.order.front().and_then(|key| state.waiting.get(key));
        (state.order.len(), oldest.map_or(Duration::ZERO, Instant::elapsed))
    }

    /// Waits until something has changed, a moment at most.
    pub(crate) fn wait(&self, moment: Duration) {
        let state = self.shared.state();
        if state.order.is_empty() && state.failure.is_none() {
            drop(self.shared.changed.wait_timeout(state, moment));
        }
    }

    /// Waits until everything has been told that was done before this was called. Redis tells it at the end of a turn
    /// of its loop, which is after the reply to a PING of the same turn, but before that of the next one.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let mut state = self.shared.state();
        let wanted = state.pings + 2;
        state.pings_wanted = state.pings_wanted.max(wanted);
        while state.pongs < wanted {
            if let Some(why) = &state.failure {
                return Err(io::Error::other(why.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time"));
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

fn connect(access: &Access) -> io::Result<Link> {
    let mut link = Link::connect(access)?;
    match link.ask(&[b"HELLO", b"3"])? {
        Reply::Error(why) => {
            Err(io::Error::other(format!("Redis 6 or later is needed: HELLO 3: {why}")))
        }
        _ => Ok(link),
    }
}

fn track(link: &mut Link, options: &[&[u8]]) -> io::Result<()> {
    match link.ask(&[&[b"CLIENT".as_slice(), b"TRACKING", b"ON"], options].concat())? {
        Reply::Error(why) => Err(io::Error::other(format!("it does not tell what changes: {why}"))),
        _ => Ok(()),
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.state().is_ended = true;
    }
}

fn read(link: &mut Link, shared: &Shared) -> io::Result<()> {
    let mut pinged_at = Instant::now();
    loop {
        {
            let mut state = shared.state();
            if state.is_ended || state.failure.is_some() {
                return Ok(());
            }
            let is_owed = state.pings > state.pongs;
            if is_owed && pinged_at.elapsed() >= TIMEOUT {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time"));
            }
            let is_wanted = state.pings < state.pings_wanted;
            if !is_owed && (is_wanted || pinged_at.elapsed() >= PING_INTERVAL) {
                state.pings += 1;
                pinged_at = Instant::now();
                link.send(&[b"PING"]);
            }
        }
        let Some(reply) = link.poll()? else { continue };
        let mut state = shared.state();
        match reply {
            Reply::Push(push) => take_push(&mut state, push),
            // A script is running, and what it does is told when it is over.
            Reply::Error(why) if why.starts_with("BUSY ") => {
                state.pings -= 1;
                drop(state);
                std::thread::sleep(BUSY_PAUSE);
                continue;
            }
            Reply::Error(why) => return Err(io::Error::other(why)),
            _ => state.pongs += 1,
        }
        shared.changed.notify_all();
    }
}

fn take_push(state: &mut State, push: Vec<Reply>) {
    let mut push = push.into_iter();
    if push.next().and_then(Reply::bytes).as_deref() != Some(b"invalidate") {
        return;
    }
    match push.next() {
        Some(Reply::Array(keys)) => {
            keys.into_iter().filter_map(Reply::bytes).for_each(|key| state.add(key));
        }
        // Everything is gone, of one database or of all.
        _ => state.failure = Some("it was flushed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(keys: Reply) -> Vec<Reply> {
        vec![Reply::Bulk(b"invalidate".to_vec()), keys]
    }

    #[test]
    fn a_key_waits_once_and_is_told_again_after_it_was_taken() {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let feed = Feed { shared: Arc::clone(&shared) };
        let keys = || Reply::Array(vec![Reply::Bulk(b"a".to_vec()), Reply::Bulk(b"b".to_vec())]);
        take_push(&mut shared.state(), push(keys()));
        take_push(&mut shared.state(), push(keys()));
        assert_eq!(feed.backlog().0, 2);
        assert_eq!(*feed.take(1).unwrap()[0], *b"a");
        assert!(!feed.has(b"a") && feed.has(b"b"));
        take_push(&mut shared.state(), push(keys()));
        assert_eq!(feed.take(9).unwrap().len(), 2);
        assert_eq!(shared.state().size, 0);
        take_push(&mut shared.state(), push(Reply::Nil));
        assert!(feed.take(1).is_err());
    }

    #[test]
    fn what_waits_is_bounded() {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let key = vec![0; 1 << 20];
        for number in 0..200u32 {
            shared.state().add([&number.to_be_bytes()[..], &key].concat());
        }
        assert!(
            shared.state().failure.is_some() && shared.state().size < WAITING_SIZE_MAX + (2 << 20)
        );
    }
}
