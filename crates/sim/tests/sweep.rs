//! Many seeds on every push; more with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`;
//! one, with its events printed if it fails, with `CASHEW_SIM_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Report, Scenario, run};
use seeds::number;

const SEEDS: u64 = 300;

#[test]
fn sweep() {
    let from = number("CASHEW_SIM_FROM").unwrap_or(1);
    let seeds = number("CASHEW_SIM_SEEDS").unwrap_or(SEEDS);
    let mut steps = 0;
    let mut total = Counts::default();
    let mut failed = Vec::new();
    for seed in from..from + seeds {
        match std::panic::catch_unwind(|| run(&Scenario::of_seed(seed))) {
            Ok(Report { steps: done, counts, .. }) => {
                steps += done;
                total += counts;
            }
            Err(_) => failed.push(seed),
        }
    }
    println!("{seeds} seeds, {steps} steps, {total:?}");
    if seeds >= SEEDS {
        assert!(total.batches > 10 * seeds && total.torn_batches > seeds / 10, "{total:?}");
    }
    assert!(failed.is_empty(), "{} of {seeds} seeds fail: {failed:?}", failed.len());
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
