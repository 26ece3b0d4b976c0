//! For tests of what comes from outside: reads bytes as the files and texts that the master begins with.

use cashew_config::Snapshot;

use crate::state::State;
use crate::{found_state, primaries};

/// Reads bytes as a file of that kind, and takes from it what fits the snapshot. Whatever they are, they are read or
/// not, and nothing panics.
#[doc(hidden)]
pub fn read_state(kind: u8, bytes: &[u8], snapshot: &mut Snapshot) {
    match kind % 3 {
        0 => _ = found_state::take_text(bytes, snapshot),
        1 => _ = primaries::take_text(bytes, snapshot),
        // What another program has told this one, which tells the next one.
        _ => {
            let Ok(state) = serde_json::from_slice::<State>(bytes) else { return };
            let written = serde_json::to_value(&state).expect("what was read");
            let again: State = serde_json::from_value(written.clone()).expect("what was written");
            assert_eq!(serde_json::to_value(&again).expect("what was read"), written);
        }
    }
}
