//! `stats slow` and `stats hot`: what was slow here, and which keys are hot. No server has statistics of these
//! names.

use cashew_metrics::Ranking;

use crate::base::id::ClientId;
use crate::engine::Engine;
use crate::observe::{times, word};

/// Entries told of.
const SLOW_TOLD: usize = 50;
const HOT_TOLD: usize = 20;

impl Engine {
    /// Name and value of each statistic that `words` ask for, of which the first is `slow` or `hot`. `None` if they
    /// ask for something else.
    pub(super) fn own_stats<'a>(
        &mut self,
        client: ClientId,
        mut words: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Result<Vec<(String, String)>, String>> {
        match (words.next()?, words.next()) {
            (b"slow", None) => Some(Ok(self.slow_rows(client))),
            (b"slow", Some(_)) => Some(Err("usage: stats slow".to_owned())),
            (b"hot", by) => Some(self.hot_statistics(client, by.unwrap_or(b"requests"))),
            _ => None,
        }
    }

    /// By numbers: `STAT 17 1790000000 25000 us get key (gateway=0 …)`.
    fn slow_rows(&self, client: ClientId) -> Vec<(String, String)> {
        let is_hidden = self.listener_of(client).config.hide_topology;
        let seen = self.slow_requests_of(client, SLOW_TOLD);
        let row = |request: &cashew_metrics::SeenRequest| {
            let words: Vec<String> = request.arguments.iter().map(|it| word(it)).collect();
            let (at, total) = (request.at_us / 1_000_000, request.times.total_us());
            let who = match request.client.as_str() {
                "" => String::new(),
                client => format!(" from={client}"),
            };
            let times = times(request, is_hidden);
            let text = format!("{at} {total} us {} ({times}{who})", words.join(" "));
            (request.number.to_string(), text)
        };
        seen.iter().map(row).collect()
    }

    /// By keys: `STAT key 1200 12.5% server`.
    fn hot_statistics(
        &mut self,
        client: ClientId,
        by: &[u8],
    ) -> Result<Vec<(String, String)>, String> {
        let ranking = Ranking::named(&String::from_utf8_lossy(by))
            .ok_or("usage: stats hot [requests|bytes|time|size]")?;
        let rows = self.hot_keys_of(client, ranking, HOT_TOLD).into_iter().map(|row| {
            let parts = [row.key.weight.to_string(), row.share, row.server];
            let parts: Vec<&str> =
                parts.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
            (word(&row.key.key), parts.join(" "))
        });
        Ok(rows.collect())
    }
}
