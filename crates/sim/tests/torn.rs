//! I1: connections that end within requests and replies leave nobody with half of one, or with
//! somebody else's.

use cashew_sim::{Scenario, run};

#[test]
fn large_requests_and_replies_are_whole_or_their_connections_are_closed() {
    let mut cuts = 0;
    for seed in 1..=30 {
        cuts += run(&Scenario::torn(seed)).counts.cuts;
    }
    assert!(cuts > 3, "half a reply reached a client only {cuts} times");
}
