//! I6: one server hangs, two clients ask it, two others never read; the rest must not notice. More
//! seeds with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Scenario, run};
use seeds::{play, range};

#[test]
fn slow_servers_and_clients_slow_nobody_else_down() {
    play(range(40), |seed| run(&Scenario::isolation(seed)));
}
