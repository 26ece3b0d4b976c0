//! Makes a scenario that fails smaller, as long as it fails in the same way.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::scenario::Scenario;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread only tries whether something fails.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.get()
}

/// How a run failed: the start of what its panic said, without the numbers in it.
pub(crate) fn failure_of(run: impl FnOnce()) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !is_quiet() {
                before(info);
            }
        }));
    });
    let was_quiet = IS_QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IS_QUIET.set(was_quiet);
    outcome.err().map(|panic| kind_of(&*panic))
}

/// What a panic says, up to its first number.
fn kind_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    let text = text.strip_prefix("assertion `left == right` failed: ").unwrap_or(text);
    // I1 to I11 are names.
    let (promise, rest) = text.split_once(": ").unwrap_or(("", text));
    let words: String =
        rest.chars().take_while(|letter| !letter.is_ascii_digit()).take(40).collect();
    format!("{promise}: {words}")
}

/// A number of a scenario that may be smaller.
type Knob = fn(&mut Scenario) -> Option<&mut u64>;

/// Faults and changes, of which a run may do without.
const KNOBS: [Knob; 5] = [
    |scenario| scenario.faults.any().then_some(&mut scenario.faults.count_max),
    |scenario| Some(&mut scenario.reloads.count),
    |scenario| Some(&mut scenario.promotions.count),
    |scenario| scenario.resharding.as_mut().map(|resharding| &mut resharding.count),
    |scenario| scenario.moves.as_mut().map(|moves| &mut moves.count_max),
];

/// Requests and clients.
const SIZES: [fn(&mut Scenario) -> &mut u32; 3] = [
    |scenario| &mut scenario.clients_total,
    |scenario| &mut scenario.clients,
    |scenario| &mut scenario.temper.requests,
];

/// The smallest scenario found that still has the property, by trying each part without, and each number at less.
/// Tries `tries` runs at most.
pub(crate) fn shrunk(
    scenario: &Scenario,
    mut tries: u32,
    holds: impl Fn(&Scenario) -> bool,
) -> Scenario {
    let mut best = scenario.clone();
    let mut attempt = |best: &mut Scenario, change: &dyn Fn(&mut Scenario)| -> bool {
        let mut smaller = best.clone();
        change(&mut smaller);
        if tries == 0 {
            return false;
        }
        tries -= 1;
        let does_hold = holds(&smaller);
        if does_hold {
            *best = smaller;
        }
        does_hold
    };
    attempt(&mut best, &|scenario| scenario.faults.kinds.clear());
    attempt(&mut best, &|scenario| scenario.drain_at = None);
    attempt(&mut best, &|scenario| scenario.moves = None);
    for at in (0..best.faults.kinds.len()).rev() {
        if best.faults.kinds.len() > 1 {
            attempt(&mut best, &|scenario| _ = scenario.faults.kinds.remove(at));
        }
    }
    for knob in KNOBS {
        while let Some(count) = knob(&mut best).map(|count| *count).filter(|&count| count > 0) {
            let less = |by: u64| {
                move |scenario: &mut Scenario| {
                    if let Some(count) = knob(scenario) {
                        *count = by;
                    }
                }
            };
            if !attempt(&mut best, &less(0))
                && !attempt(&mut best, &less(count / 2))
                && !attempt(&mut best, &less(count - 1))
            {
                break;
            }
        }
    }
    for size in SIZES {
        loop {
            let count = *size(&mut best);
            if count <= 1 {
                break;
            }
            if !attempt(&mut best, &|scenario| *size(scenario) = count / 2)
                && !attempt(&mut best, &|scenario| *size(scenario) = count - 1)
            {
                break;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::play_once;

    /// In place of a fault of the gateway: something that takes two faults of servers and a few requests.
    fn has_it(scenario: &Scenario) -> bool {
        let counts = play_once(scenario).counts;
        counts.faults >= 2 && counts.replies >= 3
    }

    #[test]
    fn what_is_not_needed_is_left_out() {
        let scenario = (1..).map(Scenario::sessions).find(has_it).expect("some seed has it");
        let smaller = shrunk(&scenario, 200, has_it);
        assert!(has_it(&smaller));
        assert_eq!((smaller.faults.count_max, smaller.faults.kinds.len()), (2, 1));
        assert!(smaller.clients_total <= 2 && smaller.temper.requests <= 8, "{smaller:?}");
        let before = play_once(&scenario).steps;
        assert!(play_once(&smaller).steps < before / 4);
    }

    #[test]
    fn failures_are_alike_whatever_their_numbers() {
        let failure = |client: u32| failure_of(|| panic!("I3: client {client} waits for ever"));
        assert_eq!(failure(1).as_deref(), Some("I3: client "));
        assert_eq!(failure(1), failure(2));
        assert_ne!(failure(1), failure_of(|| panic!("I1: client 1 waits for ever")));
        let compared = failure_of(|| assert_eq!(1, 2, "I3: requests are left in gateway 5"));
        assert_eq!(compared.as_deref(), Some("I3: requests are left in gateway "));
        assert_eq!(failure_of(|| {}), None);
    }
}
