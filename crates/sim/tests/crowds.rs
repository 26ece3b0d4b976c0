//! I1, I2: where requests of many clients leave together, each gets its own replies. More seeds with
//! `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Scenario, run};
use seeds::number;

#[test]
fn what_leaves_together_comes_back_to_each() {
    let from = number("CASHEW_SIM_FROM").unwrap_or(1);
    let seeds = number("CASHEW_SIM_SEEDS").unwrap_or(30);
    let is_bad = |&seed: &u64| std::panic::catch_unwind(|| run(&Scenario::crowds(seed))).is_err();
    let failed: Vec<u64> = (from..from + seeds).filter(is_bad).collect();
    assert!(failed.is_empty(), "{} of {seeds} seeds fail: {failed:?}", failed.len());
}
