//! I1, I3, I6: servers answer nothing, twice, late, or what nobody asked for. A reply that does not fit
//! ends its connection with everything on it, and nothing else; nobody gets what came behind it, nobody
//! waits for ever, and afterwards all is right again. More seeds with `CASHEW_SIM_SEEDS=<count>`,
//! from `CASHEW_SIM_FROM=<seed>`; one, with its events printed if it fails, with
//! `CASHEW_SIM_SURPRISES_SEED=<seed>`.

mod seeds;

use cashew_sim::{Counts, Scenario, run};
use seeds::{number, play, range};

const SEEDS: u64 = 120;

#[test]
fn surprising_answers_reach_nobody_else() {
    let played = play(range(SEEDS), |seed| run(&Scenario::surprises(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{total:?}");
    assert!(total.surprises > 5 * seeds && total.misfits > seeds, "{total:?}");
}

#[test]
fn surprising_answers_to_transactions_harm_nobody_else() {
    let played = play(range(60), |seed| run(&Scenario::surprising_sessions(seed)).counts);
    let (seeds, total) = (played.len() as u64, played.into_iter().sum::<Counts>());
    println!("{total:?}");
    assert!(total.transactions > seeds && total.waits > seeds, "{total:?}");
}

#[test]
fn one_seed() {
    if let Some(seed) = number("CASHEW_SIM_SURPRISES_SEED") {
        if number("CASHEW_SIM_SESSIONS").is_some() {
            println!("{:#?}", run(&Scenario::surprising_sessions(seed)));
            return;
        }
        println!("{:#?}", Scenario::surprises(seed));
        println!("{:#?}", run(&Scenario::surprises(seed)));
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 1..=6 {
        let [one, two] = [(); 2].map(|()| run(&Scenario::surprises(seed)));
        assert_eq!(one, two, "seed {seed}");
    }
}

/// Two in which a server says once that it does not know `ms`, which a gateway heeds for a minute, one in which
/// `verbosity` is answered with the end of a table, and one in which a client guesses passwords.
#[test]
fn seeds_that_failed() {
    for seed in [437, 729, 763, 317] {
        run(&Scenario::surprises(seed));
    }
    run(&Scenario::surprising_sessions(368));
}
