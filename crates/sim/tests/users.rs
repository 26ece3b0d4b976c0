//! I11, I1, I7: clients of many users that become others, move between gateways and have transactions, while users
//! and their rules change: each may do what its user may, and nothing else reaches a server. More seeds with
//! `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`; one, with its events printed if it fails, with
//! `CASHEW_SIM_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{number, play, range};

#[test]
fn nobody_does_what_another_user_may() {
    let seeds = number("CASHEW_SIM_SEED").map_or_else(|| range(40), |seed| seed..seed + 1);
    let played = play(seeds, |seed| run(&Scenario::users(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{seeds} seeds, {total:?}");
    let is_covered = total.denials > 20 * seeds
        && total.moves > 20 * seeds
        && total.epochs > seeds
        && total.transactions > seeds
        && total.errors < total.replies / 10;
    assert!(seeds == 1 || is_covered, "{total:?}");
}
