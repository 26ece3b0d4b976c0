//! `outstanding`: so many requests on their way at a time.

use std::sync::atomic::{AtomicU32, Ordering};

use super::super::answer::{Verdict, Word};

/// The flow counts down when the request is over.
pub(super) fn begin(max: u32, busy: &AtomicU32) -> Verdict {
    if busy.load(Ordering::Relaxed) >= max {
        return Verdict::Say(Word::Overloaded);
    }
    busy.fetch_add(1, Ordering::Relaxed);
    Verdict::ask([0])
}
