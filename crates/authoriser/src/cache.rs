//! The last good answers, for when there are none.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::rand;

use crate::Verdict;

/// Most answers that are kept; the oldest goes first.
const ENTRIES_MAX: usize = 4096;

/// What an answer is known by: a hash that means nothing to another process.
pub(crate) type Place = [u8; 32];

pub(crate) struct Cache {
    key: [u8; 32],
    entries: HashMap<Place, Entry>,
}

struct Entry {
    user: String,
    since: Instant,
    until: Option<Instant>,
}

impl Cache {
    pub(crate) fn new() -> Result<Self, ()> {
        let mut key = [0; 32];
        rand::fill(&mut key).map_err(|_| ())?;
        Ok(Self { key, entries: HashMap::new() })
    }

    pub(crate) fn place(&self, names: &[&str], password: &[u8]) -> Place {
        let mut hash = Context::new(&SHA256);
        hash.update(&self.key);
        for part in names.iter().map(|name| name.as_bytes()).chain([password]) {
            // With lengths, or others could be written to look the same.
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut place = [0; 32];
        place.copy_from_slice(hash.finish().as_ref());
        place
    }

    pub(crate) fn keep(&mut self, place: Place, user: &str, expires_in: Option<Duration>) {
        if self.entries.len() >= ENTRIES_MAX && !self.entries.contains_key(&place) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.since);
            if let Some(oldest) = oldest.map(|(place, _)| *place) {
                self.entries.remove(&oldest);
            }
        }
        let since = Instant::now();
        let until = expires_in.and_then(|span| since.checked_add(span));
        self.entries.insert(place, Entry { user: user.to_owned(), since, until });
    }

    pub(crate) fn forget(&mut self, place: &Place) {
        self.entries.remove(place);
    }

    /// An answer that is no older, and whose time is not over.
    pub(crate) fn get(&mut self, place: &Place, age_max: Duration) -> Option<Verdict> {
        let now = Instant::now();
        let Entry { user, since, until } = self.entries.get(place)?;
        if now.duration_since(*since) >= age_max || until.is_some_and(|until| until <= now) {
            self.entries.remove(place);
            return None;
        }
        let expires_in = until.map(|until| until - now);
        Some(Verdict::User { user: user.clone(), expires_in })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn answers_are_known_by_all_that_was_asked() {
        let mut cache = Cache::new().unwrap();
        let place = cache.place(&["pool", "source", "ann"], b"word");
        cache.keep(place, "app", None);
        let user = Verdict::User { user: "app".to_owned(), expires_in: None };
        assert_eq!(cache.get(&place, LONG), Some(user));
        for (names, password) in [
            (["pool", "source", "ann"], "wore"),
            (["pool", "source", "annw"], "ord"),
            (["poo", "lsource", "ann"], "word"),
        ] {
            let other = cache.place(&names, password.as_bytes());
            assert_eq!(cache.get(&other, LONG), None, "{names:?}");
        }
        assert_ne!(Cache::new().unwrap().place(&["pool", "source", "ann"], b"word"), place);
        cache.forget(&place);
        assert_eq!(cache.get(&place, LONG), None);
    }

    #[test]
    fn answers_end_with_their_age_and_with_their_time() {
        let mut cache = Cache::new().unwrap();
        let place = cache.place(&["ann"], b"word");
        cache.keep(place, "app", Some(Duration::from_millis(20)));
        assert!(cache.get(&place, LONG).is_some());
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(cache.get(&place, LONG), None);
        cache.keep(place, "app", None);
        assert_eq!(cache.get(&place, Duration::ZERO), None);
    }

    #[test]
    fn there_are_so_many_at_most() {
        let mut cache = Cache::new().unwrap();
        let places: Vec<_> =
            (0..=ENTRIES_MAX).map(|n| cache.place(&["ann"], &n.to_le_bytes())).collect();
        places.iter().for_each(|place| cache.keep(*place, "app", None));
        assert_eq!(cache.entries.len(), ENTRIES_MAX);
        assert_eq!(cache.get(&places[0], LONG), None);
        assert!(cache.get(&places[ENTRIES_MAX], LONG).is_some());
    }
}
