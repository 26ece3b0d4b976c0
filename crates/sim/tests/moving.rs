//! I1, I2, I3: clients that go from gateway to gateway while they talk get each reply once and in
//! order, and no connection is closed for that. More seeds with `CASHEW_SIM_SEEDS=<count>`, from
//! `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::number;

#[test]
fn clients_that_are_handed_over_do_not_notice() {
    let from = number("CASHEW_SIM_FROM").unwrap_or(1);
    let seeds = number("CASHEW_SIM_SEEDS").unwrap_or(60);
    let mut total = Counts::default();
    let mut failed = Vec::new();
    for seed in from..from + seeds {
        match std::panic::catch_unwind(|| run(&Scenario::moving(seed))) {
            Ok(report) => total += report.counts,
            Err(_) => failed.push(seed),
        }
    }
    println!("{total:?}");
    assert!(failed.is_empty(), "{} of {seeds} seeds fail: {failed:?}", failed.len());
    assert!(total.moves > 20 * seeds && total.moved_bytes > 100 * seeds, "{total:?}");
}
