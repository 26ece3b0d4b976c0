//! I1, I2, I3, I5 in groups: writes go to their primaries, reads to whom the pool's policy allows; once another
//! server has a primary's place, no gateway takes what the former one says of a write. Where replicas are
//! behind, clients read what they have written. More seeds with `CASHEW_SIM_SEEDS=<count>`, from
//! `CASHEW_SIM_FROM=<seed>`; one, with its events printed if it fails, with `CASHEW_SIM_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{number, play, range};

fn sweep(scenario: impl Fn(u64) -> Scenario + Sync) -> (u64, Counts) {
    let seeds = number("CASHEW_SIM_SEED").map_or_else(|| range(60), |seed| seed..seed + 1);
    let played = play(seeds, |seed| run(&scenario(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{total:?}");
    (seeds, total)
}

#[test]
fn a_server_that_was_superseded_acknowledges_nothing() {
    let (seeds, total) = sweep(Scenario::groups);
    assert!(
        seeds == 1 || total.promotions > 5 * seeds && total.late > 0 && total.hedged > seeds,
        "{total:?}"
    );
}

#[test]
fn clients_read_what_they_have_written() {
    let (seeds, total) = sweep(Scenario::replicated);
    assert!(seeds == 1 || total.stale > 0 && total.hedged > seeds, "{total:?}");
}

/// A gateway stops while the reply before a call that waits is written in part.
#[test]
fn a_seed_that_failed() {
    run(&Scenario::groups(134));
}
