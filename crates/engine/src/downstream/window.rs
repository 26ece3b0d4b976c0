//! How many requests of a client may be in flight while nobody knows how large their replies are.
//!
//! A server has all replies to a pipeline in its memory, and whoever asks behind them waits. So a
//! client has a window: so many of its requests may be unanswered. It grows by each small reply that
//! the client had to wait for, up to `client_requests_max`, as TCP's slow start does; a reply that is
//! not small leaves room for as many as fit into `client_output_pause`. After one of [`BULK_SIZE`] or
//! more the next value is presumed to be as large, until it turns out not to be: it is read alone, on
//! a connection apart from small ones ([`crate::upstream::streaming`]). Where few ask, they may have more at
//! once: `pipeline_start` is dealt out among all that wait for anything. Who comes first has a larger
//! share, so it is a few times as many requests in all.

use cashew_config::snapshot::Limits;

use crate::downstream::client::Client;
use crate::upstream::bulk::BULK_SIZE;

/// The window of a client of whose replies nothing is known.
pub(crate) const UNKNOWN: u16 = 1;

impl Client {
    /// How many requests of the client may be unanswered now, where `waiting` clients wait for
    /// anything; it has one at least. It is never more than `client_requests_max`.
    #[cold]
    pub(crate) fn pipeline_max(&self, limits: &Limits, waiting: u32) -> u32 {
        if self.window == 0 {
            return 1;
        }
        if self.window != UNKNOWN {
            return self.window.into();
        }
        let max = limits.client_requests_max;
        match limits.pipeline_start {
            0 => max,
            start => (start / waiting.max(1)).clamp(1, max),
        }
    }

    /// Whether it has as many requests in flight as its window has room for.
    #[inline]
    pub(crate) fn fills_window(&self) -> bool {
        self.window != 0 && self.requests >= self.window
    }

    /// Gives it a larger window, if there is room for it. Returns whether it did.
    #[inline]
    pub(crate) fn widen(&mut self, limits: &Limits, waiting: u32) -> bool {
        let max = self.pipeline_max(limits, waiting);
        let is_wider = max > self.requests.into();
        if is_wider {
            self.window = narrowed(max);
        }
        is_wider
    }

    /// It has to wait for replies before it may ask more. Returns whether that is news.
    pub(crate) fn wait_at_window(&mut self, limits: &Limits) -> bool {
        let is_narrow = u32::from(self.window) < limits.client_requests_max;
        is_narrow && !std::mem::replace(&mut self.is_at_window, true)
    }

    /// It goes on after it waited for replies: each small one makes room for one more.
    pub(crate) fn leave_window(&mut self, limits: &Limits, waiting: u32) {
        let allowed = self.pipeline_max(limits, waiting);
        self.is_at_window = false;
        if self.window > 0 {
            let window = u32::from(self.window);
            let answered = window.saturating_sub(self.requests.into());
            let max = limits.client_requests_max;
            self.window = narrowed((window + answered).max(allowed).min(max));
        }
    }

    /// It gets a reply of so many bytes, which is not small.
    pub(crate) fn narrow_window(&mut self, limits: &Limits, size: u64) {
        if limits.pipeline_start == 0 {
            return;
        }
        let room = limits.client_output_pause / size;
        let room = if size >= BULK_SIZE as u64 { 0 } else { room.max(u64::from(UNKNOWN) + 1) };
        // What was answered meanwhile shows nothing.
        self.is_at_window = false;
        self.window = self.window.min(narrowed(room.min(u32::MAX.into()) as u32));
    }
}

/// As much of it as a client has room for.
pub(crate) fn narrowed(window: u32) -> u16 {
    u16::try_from(window).unwrap_or(u16::MAX)
}
