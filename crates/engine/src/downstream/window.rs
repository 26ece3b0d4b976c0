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

use cashew_metrics::PoolCounter;

use crate::base::buffer::LARGE;
use crate::base::id::{ClientId, RequestId};
use crate::engine::Engine;
use crate::upstream::bulk::BULK_SIZE;

/// The window of a client of whose replies nothing is known.
pub(crate) const UNKNOWN: u16 = 1;

impl Engine {
    /// How many requests of a client may be unanswered now; it has one at least. It is never more than
    /// `client_requests_max`.
    #[cold]
    pub(crate) fn pipeline_max(&self, index: ClientId) -> u32 {
        let client = &self.clients[index];
        if client.window == 0 {
            return 1;
        }
        if client.window != UNKNOWN {
            return client.window.into();
        }
        let limits = &self.listeners[client.listener].limits;
        let max = limits.client_requests_max;
        match limits.pipeline_start {
            0 => max,
            start => (start / self.activity.waiting.max(1)).clamp(1, max),
        }
    }

    /// Gives a client that has as many requests in flight as its window has room for a larger one, if
    /// there is room for it. Returns whether it did.
    #[inline]
    pub(crate) fn widen(&mut self, index: ClientId) -> bool {
        let client = &self.clients[index];
        if client.window == 0 || client.requests < client.window {
            return false;
        }
        let max = self.pipeline_max(index);
        let client = &mut self.clients[index];
        let is_wider = max > client.requests.into();
        if is_wider {
            client.window = narrowed(max);
        }
        is_wider
    }

    /// The client has to wait for replies before it may ask more.
    #[cold]
    pub(crate) fn wait_at_window(&mut self, index: ClientId) {
        let client = &mut self.clients[index];
        let listener = &self.listeners[client.listener];
        if u32::from(client.window) < listener.limits.client_requests_max && !client.is_at_window {
            client.is_at_window = true;
            self.metrics.add_pool(listener.metrics, PoolCounter::PipelinesPaused, 1);
        }
    }

    /// The client goes on after it waited for replies: each small one makes room for one more.
    #[cold]
    pub(crate) fn leave_window(&mut self, index: ClientId) {
        let allowed = self.pipeline_max(index);
        let client = &mut self.clients[index];
        client.is_at_window = false;
        if client.window > 0 {
            let max = self.listeners[client.listener].limits.client_requests_max;
            let window = u32::from(client.window);
            let answered = window.saturating_sub(client.requests.into());
            client.window = narrowed((window + answered).max(allowed).min(max));
        }
    }

    /// A client gets a reply of so many bytes, or its header says that it will be of so many.
    #[inline]
    pub(crate) fn learn_window(&mut self, request: RequestId, size: u64) {
        if size >= LARGE as u64 {
            self.narrow(request, size);
        }
    }

    #[cold]
    fn narrow(&mut self, request: RequestId, size: u64) {
        let index = self.waiting_client(request);
        if index == ClientId::NONE {
            return;
        }
        let client = &mut self.clients[index];
        let limits = &self.listeners[client.listener].limits;
        if limits.pipeline_start == 0 {
            return;
        }
        let room = limits.client_output_pause / size;
        let room = if size >= BULK_SIZE as u64 { 0 } else { room.max(u64::from(UNKNOWN) + 1) };
        // What was answered meanwhile shows nothing.
        client.is_at_window = false;
        client.window = client.window.min(narrowed(room.min(u32::MAX.into()) as u32));
    }
}

/// As much of it as a client has room for.
pub(crate) fn narrowed(window: u32) -> u16 {
    u16::try_from(window).unwrap_or(u16::MAX)
}
