//! I6: one server hangs, two clients ask it, two others never read; the rest must not notice. More
//! seeds with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.

mod seeds;

use cashew_sim::{Scenario, run};
use seeds::{play, range};

#[test]
fn slow_servers_and_clients_slow_nobody_else_down() {
    play(range(40), |seed| run(&Scenario::isolation(seed)));
}

/// Its second client guesses four passwords and is slowed down for that, which is no fault of the others.
#[test]
fn who_guesses_passwords_slows_itself_down() {
    run(&Scenario::isolation(173));
}
