//! I1, I2, I3: clients that go from gateway to gateway while they talk get each reply once and in
//! order, and no connection is closed for that. More seeds with `CASHEW_SIM_SEEDS=<count>`, from
//! `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{play, range};

#[test]
fn clients_that_are_handed_over_do_not_notice() {
    let played = play(range(60), |seed| run(&Scenario::moving(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{total:?}");
    assert!(total.moves > 20 * seeds && total.moved_bytes > 100 * seeds, "{total:?}");
}

/// A server's reply is replaced by nonsense and cut short.
#[test]
fn a_seed_that_failed() {
    run(&Scenario::moving(106));
}
