//! I1 and I3 for requests that are passed on while they arrive: executed whole or not at all, and
//! answered once. More seeds with `CASHEW_SIM_SEEDS=<count>`.

use cashew_sim::{Counts, Scenario, run};

#[test]
fn uploads_are_whole_or_never_happened() {
    let seeds = std::env::var("CASHEW_SIM_SEEDS").ok().and_then(|text| text.parse().ok());
    let mut total = Counts::default();
    for seed in 1..=seeds.unwrap_or(16) {
        total += run(&Scenario::uploads(seed)).counts;
    }
    println!("{total:?}");
    assert!(total.uploads > 80 && total.errors > 5, "{total:?}");
}
