//! I6: one server hangs, two clients ask it, two others never read; the rest must not notice.

use cashew_sim::{Scenario, run};

#[test]
fn slow_servers_and_clients_slow_nobody_else_down() {
    for seed in 1..=40 {
        run(&Scenario::isolation(seed));
    }
}
