//! The part of a take-over that can be tried beforehand, in a process that will not last.

use std::os::fd::AsFd;

use cashew_control::{Epoch, SESSION_VERSION, SESSION_VERSION_MIN, VERSION};
use cashew_metrics::{Layout, Segments, Shared};

use crate::handover;
use crate::state::{State, Unpack};

/// What a program finds when it rehearses.
#[derive(Debug)]
pub struct Rehearsal {
    /// What it would serve.
    pub epoch: Epoch,
    /// What will not go on as before.
    pub notes: Vec<String>,
}

/// Reads what a master would hand over, and changes nothing.
pub fn rehearse(input: impl AsFd) -> Result<Rehearsal, String> {
    let (text, descriptors) =
        handover::receive(input).map_err(|error| format!("nothing is handed over: {error}"))?;
    let state = State::read(&text)?;
    let kit = Unpack::new(descriptors);
    let Kit { epoch, segments, .. } = Kit::open(&state, &kit)?;
    let mut notes = Vec::new();
    if let Err(why) = segments {
        notes.push(format!("counters start anew: {why}"));
    }
    if !understands_sessions(state.session_version) {
        notes.push(format!(
            "connections of clients are closed as they come to rest: their sessions are of version \
             {}, and {SESSION_VERSION} is spoken here",
            state.session_version
        ));
    }
    if state.control_version != VERSION {
        notes.push(format!(
            "workers speak version {} until they are replaced, and {VERSION} is spoken here",
            state.control_version
        ));
    }
    Ok(Rehearsal { epoch, notes })
}

/// Whether sessions of that version can be adopted by workers of this one.
pub(crate) fn understands_sessions(version: u32) -> bool {
    (SESSION_VERSION_MIN..=SESSION_VERSION).contains(&version)
}

/// The memory that processes share, of a state that may come from another version.
pub(crate) struct Kit {
    pub(crate) epoch: Epoch,
    pub(crate) shared: Shared,
    /// Or why these cannot be used here.
    pub(crate) segments: Result<Segments, String>,
}

impl Kit {
    pub(crate) fn open(state: &State, descriptors: &Unpack) -> Result<Self, String> {
        let epoch = Epoch::unseal(&*descriptors.get(state.epoch)?)
            .map_err(|error| format!("the configuration in effect cannot be read: {error}"))?;
        state.check(&epoch.snapshot)?;
        let shared =
            Shared::open(&*descriptors.get(state.shared)?).map_err(|error| error.to_string())?;
        let segments =
            Segments::open(&*descriptors.get(state.metrics)?, &Layout::new(&epoch.snapshot))
                .map_err(|error| error.to_string());
        Ok(Self { epoch, shared, segments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_neighbouring_versions_are_told_from_others() {
        assert!(understands_sessions(SESSION_VERSION) && understands_sessions(SESSION_VERSION_MIN));
        assert!(!understands_sessions(SESSION_VERSION + 1));
        assert!(!understands_sessions(SESSION_VERSION_MIN - 1));
    }

    #[test]
    fn nothing_is_no_state() {
        let why = rehearse(std::fs::File::open("/dev/null").unwrap()).unwrap_err();
        assert!(why.contains("nothing is handed over"), "{why}");
        let socket = handover::send(b"{}", &[]).unwrap();
        let why = rehearse(socket).unwrap_err();
        assert!(why.contains("the state cannot be read"), "{why}");
    }
}
