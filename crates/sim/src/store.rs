//! What a Redis server has: values, and how often they have changed.

use std::collections::BTreeMap;

use crate::server::Place;

#[derive(Default)]
pub(crate) struct Store {
    pub(crate) values: BTreeMap<Place, Vec<u8>>,
    changes: BTreeMap<Place, u64>,
}

impl Store {
    pub(crate) fn changes_of(&self, place: &Place) -> u64 {
        self.changes.get(place).copied().unwrap_or(0)
    }

    /// Who watches the place does not execute its transaction.
    pub(crate) fn note_change(&mut self, place: &Place) {
        *self.changes.entry(place.clone()).or_default() += 1;
    }
}
