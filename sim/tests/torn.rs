//! I1: connections that end within requests and replies leave nobody with half of one, or with
//! somebody else's. More seeds with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Scenario, run};
use seeds::{play, range};

#[test]
fn large_requests_and_replies_are_whole_or_their_connections_are_closed() {
    let played = play(range(30), |seed| run(&Scenario::torn(seed)).counts.cuts);
    let (seeds, cuts) = (played.len() as u64, played.iter().sum::<u64>());
    assert!(cuts > seeds / 10, "half a reply reached a client only {cuts} times");
}
