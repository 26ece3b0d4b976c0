//! The configuration changes while requests are under way: I1 to I6 hold on, nobody is closed but
//! clients of pools that were removed, and no request fails but those that took longer than the
//! pause allows. More seeds with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`; one with
//! `CASHEW_SIM_EPOCHS_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::number;

const SEEDS: u64 = 200;

#[test]
fn epochs_change_under_load() {
    let from = number("CASHEW_SIM_FROM").unwrap_or(1);
    let seeds = number("CASHEW_SIM_SEEDS").unwrap_or(SEEDS);
    let mut total = Counts::default();
    let mut failed = Vec::new();
    for seed in from..from + seeds {
        match std::panic::catch_unwind(|| run(&Scenario::epochs(seed))) {
            Ok(report) => total += report.counts,
            Err(_) => failed.push(seed),
        }
    }
    println!("{total:?}");
    assert!(failed.is_empty(), "{} of {seeds} seeds fail: {failed:?}", failed.len());
    assert!(total.epochs > seeds, "{total:?}");
}

#[test]
fn epochs_change_under_uploads() {
    let seeds = number("CASHEW_SIM_SEEDS").map_or(12, |seeds| seeds / 10);
    let mut total = Counts::default();
    for seed in 1..=seeds {
        total += run(&Scenario::epochs_of_uploads(seed)).counts;
    }
    println!("{total:?}");
    assert!(total.uploads > seeds && total.epochs > seeds, "{total:?}");
}

#[test]
fn one_seed() {
    if let Some(seed) = number("CASHEW_SIM_EPOCHS_SEED") {
        println!("{:#?}", Scenario::epochs(seed));
        println!("{:#?}", run(&Scenario::epochs(seed)));
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 1..=12 {
        let [one, two] = [(); 2].map(|()| run(&Scenario::epochs(seed)));
        assert_eq!(one, two, "seed {seed}");
    }
}
