//! Whatever a hostile client sends, watched ones on the same connections to servers are answered what they must be.

use cashew_differential::foreign;
use cashew_differential::random::Random;

/// The first byte chooses the protocols, the others what happens.
pub fn play(data: &[u8]) {
    let Some((&pair, tape)) = data.split_first() else { return };
    foreign::play(usize::from(pair) % foreign::pairs(), &mut Random::of_tape(tape));
}
