//! Asks the stats port once a second, beside the terminal: a port that is slow keeps no key waiting.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::state::{History, State};
use crate::stats_port::{encoded, get};

const INTERVAL: Duration = Duration::from_secs(1);
/// Points of the history that are asked for: as many as a wide terminal has columns for.
const POINTS: usize = 240;

/// A pool and perhaps a server of it, whose history is shown.
pub(super) type Wanted = Option<(String, Option<String>)>;

/// What came, or why nothing did.
pub(super) type News = Result<(State, Option<(Wanted, History)>), String>;

pub(super) struct Feed {
    news: Receiver<News>,
    wanted: Arc<Mutex<Wanted>>,
    nudge: Sender<()>,
}

impl Feed {
    pub(super) fn start(address: String) -> Self {
        let (sender, news) = channel();
        let (nudge, nudged) = channel::<()>();
        let wanted: Arc<Mutex<Wanted>> = Arc::default();
        let of_thread = Arc::clone(&wanted);
        thread::spawn(move || {
            loop {
                let asked = Instant::now();
                if sender.send(ask(&address, &of_thread)).is_err() {
                    return;
                }
                // Sooner where something else is selected.
                let _ = nudged.recv_timeout(INTERVAL.saturating_sub(asked.elapsed()));
            }
        });
        Self { news, wanted, nudge }
    }

    pub(super) fn news(&self) -> impl Iterator<Item = News> {
        self.news.try_iter()
    }

    pub(super) fn want(&self, wanted: Wanted) {
        let mut current = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != wanted {
            *current = wanted;
            let _ = self.nudge.send(());
        }
    }
}

fn ask(address: &str, wanted: &Mutex<Wanted>) -> News {
    let state = state(address)?;
    let mut current = wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if current.is_none() {
        current = state.pools.first().map(|pool| (pool.name.clone(), None));
    }
    let Some((pool, server)) = &current else { return Ok((state, None)) };
    let mut path = format!("/history.json?last={POINTS}&pool={}", encoded(pool));
    if let Some(server) = server {
        path += &format!("&server={}", encoded(server));
    }
    // It may be of a server that is gone, or there is none of so many.
    let history = get(address, &path).ok();
    Ok((state, history.map(|history| (current, history))))
}

pub(super) fn state(address: &str) -> Result<State, String> {
    get(address, "/state.json")
}
