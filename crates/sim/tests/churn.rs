//! I5, I10, I1–I4: sources and Sentinels name other servers and groups all the time, by one epoch after the other, while
//! others become primaries and clients have transactions. No two workers route a key of a pool by different rings, nobody
//! who was superseded acknowledges a write, and connections to servers that are gone are gone. More seeds with
//! `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`; one, with its events printed if it fails, with
//! `CASHEW_SIM_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{number, play, range};

#[test]
fn servers_come_and_go_all_the_time() {
    let seeds = number("CASHEW_SIM_SEED").map_or_else(|| range(40), |seed| seed..seed + 1);
    let played = play(seeds, |seed| run(&Scenario::churn(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{seeds} seeds, {total:?}");
    let is_covered = total.epochs > 5 * seeds
        && total.promotions > seeds
        && total.ring_changes > seeds
        && total.transactions > seeds;
    assert!(seeds == 1 || is_covered, "{total:?}");
}
