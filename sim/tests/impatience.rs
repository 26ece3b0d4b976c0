//! I3: with a timeout, requests are answered in time whatever their servers do. More seeds with
//! `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Scenario, run};
use seeds::{play, range};

#[test]
fn servers_that_hang_keep_nobody_waiting_beyond_the_timeout() {
    play(range(60), |seed| run(&Scenario::impatience(seed)));
}
