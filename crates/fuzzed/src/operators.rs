//! What operators ask for is refused or is one command: lines of the control socket, queries of the stats port and
//! bodies of the control API; and lists of keys, which they change while the gateway runs.

use cashew_api::Command;
use cashew_config::snapshot::{LedForeign, lead_foreign};

pub fn read(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 6 {
        0 => line(bytes),
        1 => key_list(bytes),
        kind => cashew_admin::read_request(kind, bytes),
    }
}

fn line(bytes: &[u8]) {
    let Ok(command) = serde_json::from_slice::<Command>(bytes) else { return };
    _ = command.check();
    let written = serde_json::to_vec(&command).expect("what was read");
    let again: Command = serde_json::from_slice(&written).expect("what was written");
    assert_eq!(again, command);
}

/// Lines of a list, an empty one, and keys that go from the pool `a` to the pool `b` and back: the file lists what the
/// route does.
fn key_list(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (text, keys) = text.split_once("\n\n").unwrap_or((text, "k"));
    let keys: Vec<String> = keys.split(',').map(str::to_owned).collect();
    let Some(LedForeign { listed, led }) = lead_foreign(text, &keys) else { return };
    assert_eq!(listed, led);
    let moved = |key: &&String| led[0].get(*key) != led[1].get(*key);
    for key in keys.iter().filter(moved) {
        assert_eq!(led[1].get(key).map(String::as_str), Some("b"));
        assert!(!led[2].contains_key(key), "it is where all others are");
    }
}
