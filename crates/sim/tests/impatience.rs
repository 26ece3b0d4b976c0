//! I3: with a timeout, requests are answered in time whatever their servers do.

use cashew_sim::{Scenario, run};

#[test]
fn servers_that_hang_keep_nobody_waiting_beyond_the_timeout() {
    for seed in 1..=60 {
        run(&Scenario::impatience(seed));
    }
}
