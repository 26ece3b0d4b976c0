//! I1, I2: where requests of many clients leave together, each gets its own replies. More seeds with
//! `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{play, range};

#[test]
fn what_leaves_together_comes_back_to_each() {
    let played = play(range(30), |seed| run(&Scenario::crowds(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{total:?}");
    assert!(total.shared > 20 * seeds, "{total:?}");
}
