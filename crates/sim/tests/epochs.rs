//! The configuration changes while requests are under way: I1 to I6 hold on, nobody is closed but
//! clients of pools that were removed, and no request fails but those that took longer than the
//! pause allows. More seeds with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`; one with
//! `CASHEW_SIM_EPOCHS_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{number, play, range};

const SEEDS: u64 = 120;

#[test]
fn epochs_change_under_load() {
    let played = play(range(SEEDS), |seed| run(&Scenario::epochs(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{total:?}");
    assert!(total.epochs > seeds, "{total:?}");
}

#[test]
fn epochs_change_under_uploads() {
    // They take ten times as long as others.
    let seeds = range(8);
    let seeds = number("CASHEW_SIM_SEEDS").map_or(seeds, |seeds| 1..seeds / 10 + 1);
    let count = seeds.end - seeds.start;
    let played = play(seeds, |seed| run(&Scenario::epochs_of_uploads(seed)).counts);
    let total: Counts = played.into_iter().sum();
    println!("{total:?}");
    assert!(total.uploads > count && total.epochs > count, "{total:?}");
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
