//! The list of all statistics for the command line.

use crate::stats::{POOL_STATS, SERVER_STATS};

const REQUEST_LATENCY: &str =
    "Requests answered in at most 1, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000 ms and beyond";
const SERVER_LATENCY: &str =
    "Responses received in at most 1, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000 ms and beyond";

/// Names and descriptions of the statistics, laid out like `nutcracker -D`.
pub fn describe() -> String {
    let pool = POOL_STATS.map(|stat| (stat.stat().name, stat.stat().help));
    let server = SERVER_STATS.map(|stat| (stat.stat().name, stat.stat().help));
    let pool = pool.into_iter().chain([("request_latency", REQUEST_LATENCY)]);
    let server = server.into_iter().chain([("server_latency", SERVER_LATENCY)]);
    format!("pool stats:\n{}\nserver stats:\n{}", lines(pool), lines(server))
}

fn lines(stats: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    stats.map(|(name, help)| format!("  {name:<20}\"{help}\"\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of `nutcracker -D`.
    const NUTCRACKER: &str = "client_eof client_err client_connections server_ejects \
        forward_error fragments server_eof server_err server_timedout server_connections \
        server_ejected_at requests request_bytes responses response_bytes in_queue \
        in_queue_bytes out_queue out_queue_bytes";

    #[test]
    fn lists_nutcrackers_names_in_its_order() {
        let text = describe();
        let mut listed = text.lines().filter_map(|line| line.strip_prefix("  "));
        for name in NUTCRACKER.split_whitespace() {
            let found = listed.any(|line| line.split_whitespace().next() == Some(name));
            assert!(found, "{name} in {text}");
        }
    }
}
