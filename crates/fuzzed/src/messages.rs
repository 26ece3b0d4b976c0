//! What master, workers and the admin process tell each other, also those of another version, is read or refused; and
//! what was read is written so that it is read as the same.

use cashew_config::{from_json, to_json};
use cashew_control::{Epoch, Session, ToChild, ToMaster};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub fn read(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 5 {
        0 => comes_back::<ToChild>(bytes),
        1 => comes_back::<ToMaster>(bytes),
        2 => comes_back::<Session>(bytes),
        3 => _ = serde_json::from_slice::<Epoch>(bytes),
        _ => {
            if let Ok(snapshot) = from_json(bytes) {
                assert_eq!(from_json(&to_json(&snapshot)).expect("what was written"), snapshot);
            }
        }
    }
}

fn comes_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(bytes) else { return };
    let written = serde_json::to_vec(&message).expect("what was read");
    let again: T = serde_json::from_slice(&written).expect("what was written");
    assert_eq!(again, message);
}
