//! I1, I2: where requests of many clients leave together, each gets its own replies. More seeds with
//! `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::number;

#[test]
fn what_leaves_together_comes_back_to_each() {
    let from = number("CASHEW_SIM_FROM").unwrap_or(1);
    let seeds = number("CASHEW_SIM_SEEDS").unwrap_or(30);
    let mut total = Counts::default();
    let mut failed = Vec::new();
    for seed in from..from + seeds {
        match std::panic::catch_unwind(|| run(&Scenario::crowds(seed))) {
            Ok(report) => total += report.counts,
            Err(_) => failed.push(seed),
        }
    }
    println!("{total:?}");
    assert!(failed.is_empty(), "{} of {seeds} seeds fail: {failed:?}", failed.len());
    assert!(total.shared > 20 * seeds, "{total:?}");
}
