//! I1 and I3 for requests that are passed on while they arrive: executed whole or not at all, and
//! answered once. More seeds with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{play, range};

#[test]
fn uploads_are_whole_or_never_happened() {
    let played = play(range(16), |seed| run(&Scenario::uploads(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{total:?}");
    assert!(total.uploads > 5 * seeds && total.errors > seeds / 3, "{total:?}");
}
