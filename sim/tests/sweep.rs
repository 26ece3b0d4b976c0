//! Many seeds on every push; more with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`;
//! one, with its events printed if it fails, with `CASHEW_SIM_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{number, play, range};

const SEEDS: u64 = 300;

#[test]
fn sweep() {
    let reports = play(range(SEEDS), |seed| run(&Scenario::of_seed(seed)));
    let seeds = reports.len() as u64;
    let steps: u64 = reports.iter().map(|report| report.steps).sum();
    let total: Counts = reports.iter().map(|report| report.counts).sum();
    println!("{seeds} seeds, {steps} steps, {total:?}");
    if seeds >= SEEDS {
        assert!(total.batches > 10 * seeds && total.torn_batches > seeds / 10, "{total:?}");
    }
}

#[test]
fn one_seed() {
    if let Some(seed) = number("CASHEW_SIM_SEED") {
        println!("{:#?}", Scenario::of_seed(seed));
        println!("{:#?}", run(&Scenario::of_seed(seed)));
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 1..=12 {
        let [one, two] = [(); 2].map(|()| run(&Scenario::of_seed(seed)));
        assert_eq!(one, two, "seed {seed}");
    }
}
