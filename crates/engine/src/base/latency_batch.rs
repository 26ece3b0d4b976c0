//! Latencies of a tick, on their way into the statistics.

use cashew_metrics::{PoolCounter, PoolId, Writer};

use crate::base::command_stats::CommandStats;

/// Requests that arrived together and were answered together take equally long: they are counted
/// up and recorded at once, and with them what they are by class of commands and by prefix.
#[derive(Default)]
pub(crate) struct LatencyBatch {
    count: u64,
    latency_us: u64,
    pool: Option<PoolId>,
    /// All that has been published so far.
    pub(crate) total: Answered,
}

/// Requests that have been answered, and how long they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub count: u64,
    pub latency_us: u64,
}

impl LatencyBatch {
    /// Where requests of the pool are counted by class, the request is to be [ended](CommandStats::end) next.
    #[inline]
    pub(crate) fn add(
        &mut self,
        pool: PoolId,
        latency_us: u64,
        stats: &mut CommandStats,
        metrics: &Writer,
    ) {
        if self.latency_us != latency_us || self.pool != Some(pool) {
            self.publish(stats, metrics);
            (self.pool, self.latency_us) = (Some(pool), latency_us);
        }
        self.count += 1;
    }

    /// The pool that the numbers not published yet are of.
    pub(crate) fn pool(&mut self) -> Option<&mut PoolId> {
        self.pool.as_mut()
    }

    /// To be called at the end of every tick.
    #[inline]
    pub(crate) fn publish(&mut self, stats: &mut CommandStats, metrics: &Writer) {
        let count = std::mem::take(&mut self.count);
        if let (1.., Some(pool)) = (count, self.pool) {
            metrics.record_pool(pool, self.latency_us, count);
            metrics.add_pool(pool, PoolCounter::Responses, count);
            self.total.count += count;
            self.total.latency_us += self.latency_us * count;
            if stats.is_due() {
                stats.publish(pool, self.latency_us, metrics);
            }
        }
    }
}
