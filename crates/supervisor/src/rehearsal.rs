//! The part of a take-over that can be tried in advance, in a process that then exits.

use std::os::fd::AsFd;

use cashew_control::{Epoch, SESSION_VERSION, SESSION_VERSION_MIN, VERSION};
use cashew_metrics::{Layout, Segments, Shared};

use crate::handover;
use crate::state::{State, Unpack};

/// The result of a rehearsal.
#[derive(Debug)]
pub struct Rehearsal {
    /// What the program would serve.
    pub epoch: Epoch,
    /// What will change.
    pub notes: Vec<String>,
}

/// Reads a master's handover and changes nothing.
pub fn rehearse(input: impl AsFd) -> Result<Rehearsal, String> {
    let (text, descriptors) =
        handover::receive(input).map_err(|error| format!("there is no handover: {error}"))?;
    let state = State::read(&text)?;
    let kit = Unpack::new(descriptors);
    let Kit { epoch, segments, .. } = Kit::open(&state, &kit)?;
    let mut notes = Vec::new();
    if let Err(why) = segments {
        notes.push(format!("counters start from zero: {why}"));
    }
    if !understands_sessions(state.session_version) {
        notes.push(format!(
            "client connections are closed when they are idle: their sessions are of version {}, \
             this program uses {SESSION_VERSION}",
            state.session_version
        ));
    }
    if state.control_version != VERSION {
        notes.push(format!(
            "workers use control version {} until they are replaced, this program uses {VERSION}",
            state.control_version
        ));
    }
    Ok(Rehearsal { epoch, notes })
}

/// Whether this version's workers can adopt sessions of that version.
pub(crate) fn understands_sessions(version: u32) -> bool {
    (SESSION_VERSION_MIN..=SESSION_VERSION).contains(&version)
}

/// The shared memory of a state that may come from another version.
pub(crate) struct Kit {
    pub(crate) epoch: Epoch,
    pub(crate) shared: Shared,
    /// Or why the segments cannot be used here.
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
    fn only_sessions_of_known_versions_are_understood() {
        assert!(understands_sessions(SESSION_VERSION) && understands_sessions(SESSION_VERSION_MIN));
        assert!(!understands_sessions(SESSION_VERSION + 1));
        assert!(!understands_sessions(SESSION_VERSION_MIN - 1));
    }

    #[test]
    fn an_empty_handover_is_refused() {
        let why = rehearse(std::fs::File::open("/dev/null").unwrap()).unwrap_err();
        assert!(why.contains("there is no handover"), "{why}");
        let socket = handover::send(b"{}", &[]).unwrap();
        let why = rehearse(socket).unwrap_err();
        assert!(why.contains("the state cannot be read"), "{why}");
    }
}
