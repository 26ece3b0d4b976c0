//! I1, I2, I3: transactions are executed whole or not at all, on lanes that are given back clean or
//! closed; what waits is answered once, wherever it waits. More seeds with
//! `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`; one, with its events printed if it
//! fails, with `CASHEW_SIM_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{number, play, range};

/// So many seeds are enough for all faults to hit all kinds of connections, but for sessions over RESP3: few clients
/// have a transaction or wait there, and even 600 seeds leave some out.
const COVERED_BY: u64 = 60;

fn sweep(scenario: impl Fn(u64) -> Scenario + Sync) -> Counts {
    let seeds = number("CASHEW_SIM_SEED").map_or_else(|| range(60), |seed| seed..seed + 1);
    let played = play(seeds, |seed| run(&scenario(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    if seeds > 1 {
        assert!(total.transactions > 3 * seeds && total.waits > 2 * seeds, "{total:?}");
    }
    total
}

#[test]
fn transactions_are_whole_and_who_waits_is_answered() {
    sweep(Scenario::sessions);
}

#[test]
fn the_same_while_epochs_change() {
    let total = sweep(Scenario::epochs_of_sessions);
    assert!(total.withdrawals > 0 || number("CASHEW_SIM_SEED").is_some(), "{total:?}");
}

#[test]
fn the_same_while_clients_are_handed_over() {
    let total = sweep(Scenario::moving_sessions);
    assert!(total.withdrawals > 0 || number("CASHEW_SIM_SEED").is_some(), "{total:?}");
}

#[test]
fn every_fault_comes_over_every_kind_of_connection() {
    let seeds = number("CASHEW_SIM_SEED").map_or_else(|| range(COVERED_BY), |seed| seed..seed + 1);
    let played = play(seeds, |seed| run(&Scenario::faults_over_sessions(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("faults over connections:{}", total.coverage);
    let mut missing = total.coverage.missing();
    missing.retain(|cell| !cell.contains("RESP3") || cell.ends_with("shared"));
    assert!(seeds < COVERED_BY || missing.is_empty(), "nothing has hit: {missing:#?}");
}

/// One in which a client ends its side while it waits, before the gateway stops, and one in which a call that
/// waits is written in part when a change comes.
#[test]
fn seeds_that_failed() {
    run(&Scenario::sessions(147));
    run(&Scenario::epochs_of_sessions(282));
}
