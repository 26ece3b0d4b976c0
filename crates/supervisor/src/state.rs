//! All that the master's program must know to continue where another one stopped: a JSON text, and
//! the descriptors that it refers to by position.
//!
//! Two versions of cashew have to understand it. Unknown fields are ignored and missing fields have
//! their defaults. So a field may be added if its default is right for a state without it. For all
//! other changes there is [`FORMAT`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cashew_config::Snapshot;
use cashew_config::snapshot::LogFormat;
use cashew_metrics::{QUOTAS_MAX, SLOTS_MAX};
use serde::{Deserialize, Serialize};

use crate::child::Role;
use crate::discovered::{Known, Switched};
use crate::listeners::ListenersState;
use crate::ring::RingsState;
use crate::status::Outcome;
use crate::unix_socket::UnixSocketState;

/// Raised when programs that know only the format before cannot understand a state any more.
pub(crate) const FORMAT: u32 = 1;

/// The first descriptors are those that a rehearsal may use: the epoch, the metrics, and the memory
/// that all processes share.
pub(crate) const REHEARSED: usize = 3;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) format: u32,
    /// Version of the cashew that wrote it.
    pub(crate) version: String,
    /// The file of the program that wrote it, to go back to.
    pub(crate) program: Place,
    /// Why the program that took over has given it back.
    #[serde(default)]
    pub(crate) failed: Option<String>,
    /// The path of that program, and of the one that takes over.
    pub(crate) path: Text,
    pub(crate) next_path: Text,
    pub(crate) epoch: Place,
    pub(crate) metrics: Place,
    pub(crate) shared: Place,
    /// The highest epoch number ever used, whether it took effect or not.
    pub(crate) last_epoch: u64,
    /// The control version of the children that it started itself.
    pub(crate) control_version: u8,
    pub(crate) session_version: u32,
    pub(crate) listeners: ListenersState,
    /// Which workers accept from which listening socket.
    pub(crate) owners: BTreeMap<u32, BTreeSet<u32>>,
    pub(crate) members: Vec<MemberState>,
    /// What discovery knows of groups.
    #[serde(default)]
    pub(crate) known: Vec<Known>,
    #[serde(default)]
    pub(crate) switches: Vec<Switched>,
    /// Apart from the others, of which one without a slot is the admin.
    #[serde(default)]
    pub(crate) discovery: Option<MemberState>,
    pub(crate) generation: u64,
    pub(crate) rings: RingsState,
    /// The quota number of each pool, by the pool's name.
    pub(crate) quotas: BTreeMap<String, u32>,
    pub(crate) log_level: u8,
    #[serde(default)]
    pub(crate) log_format: LogFormat,
    /// Standard error as it was at the start. If missing, it is unchanged: the log file, if any, is
    /// that of the command line.
    #[serde(default)]
    pub(crate) standard_error: Option<Place>,
    /// The instance's start, in seconds since 1970.
    pub(crate) started_at: u64,
    #[serde(default)]
    pub(crate) operators: OperatorsState,
    /// Operators that wait for the outcome.
    #[serde(default)]
    pub(crate) askers: Vec<Place>,
    /// Reloads requested meanwhile, for after the upgrade.
    #[serde(default, flatten)]
    pub(crate) wanted: WantedReload,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WantedReload {
    /// Whether a reload is wanted by someone who gets no answer.
    pub(crate) reload_wanted: bool,
    pub(crate) reload_askers: Vec<ReloadAsker>,
}

/// An operator that waits for the outcome of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReloadAsker {
    pub(crate) socket: Place,
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// The part of a state that is understood whatever its format, so that there is always a way back.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Head {
    format: u32,
    #[serde(default)]
    version: String,
    pub(crate) program: Place,
    #[serde(default)]
    pub(crate) failed: Option<String>,
}

/// The operators' socket, and their answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OperatorsState {
    pub(crate) socket: Option<UnixSocketState>,
    pub(crate) last_reload: Option<Outcome>,
    pub(crate) server_drains: Vec<ServerDrainState>,
}

/// A server that is drained, or gets its keys again, in steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerDrainState {
    pub(crate) pool: String,
    pub(crate) server: String,
    pub(crate) shares: Vec<u16>,
    pub(crate) every_ms: u64,
}

/// One child, or the place for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberState {
    /// `None` is the admin process.
    pub(crate) slot: Option<u32>,
    pub(crate) rank: u32,
    /// Workers of an earlier generation are replaced.
    pub(crate) generation: u64,
    pub(crate) restarts: u64,
    /// It is retiring, and has this much time left.
    #[serde(default)]
    pub(crate) retire_within_ms: Option<u64>,
    /// `None` if it is to be started and is not running now.
    #[serde(default)]
    pub(crate) child: Option<ChildState>,
}

/// A process: it serves or retires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChildState {
    pub(crate) pid: i32,
    pub(crate) pidfd: Place,
    pub(crate) channel: Place,
    /// Its control version.
    pub(crate) control_version: u8,
    pub(crate) session_version: u32,
    /// Whether it counts in the metrics of this state.
    #[serde(default = "yes")]
    pub(crate) counts: bool,
}

/// Position of a descriptor among those passed along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place(u32);

/// A string of the operating system; any bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Text(Vec<u8>);

/// Descriptors to pass along.
#[derive(Debug, Default)]
pub(crate) struct Pack(Vec<Rc<OwnedFd>>);

/// Descriptors received.
#[derive(Debug)]
pub(crate) struct Unpack(Vec<Rc<OwnedFd>>);

impl Head {
    pub(crate) fn read(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(unreadable)
    }
}

fn unreadable(error: serde_json::Error) -> String {
    format!("the state cannot be read: {error}")
}

impl State {
    /// Reads the state that another program wrote, possibly of another version.
    pub(crate) fn read(text: &[u8]) -> Result<Self, String> {
        // First of all: nothing else may be understood if the format differs.
        let head = Head::read(text)?;
        if head.format != FORMAT {
            return Err(format!(
                "the state of cashew {} has format {}, this program understands {FORMAT}",
                head.version, head.format
            ));
        }
        serde_json::from_slice(text).map_err(unreadable)
    }

    /// Checks that it is complete and matches the configuration in effect. Errors must be found
    /// while there is a way back.
    pub(crate) fn check(&self, snapshot: &Snapshot) -> Result<(), String> {
        let pools = &snapshot.pools;
        for pool in pools {
            if self.quotas.get(&pool.name).is_none_or(|&quota| quota >= QUOTAS_MAX) {
                return Err(format!("the clients of pool '{}' are not counted", pool.name));
            }
        }
        if !self.rings.are_of(snapshot) {
            return Err("the rings are not those of the configuration in effect".into());
        }
        if let Some(pool) =
            self.listeners.pools().find(|&name| pools.iter().all(|pool| pool.name != name))
        {
            return Err(format!("there are sockets of pool '{pool}' and no such pool"));
        }
        if let Some(slot) = self.members.iter().find_map(|it| it.slot.filter(|&it| it >= SLOTS_MAX))
        {
            return Err(format!("there is no worker slot {slot}: there are {SLOTS_MAX}"));
        }
        let has_admin = self.members.iter().any(|member| member.slot.is_none());
        if has_admin && !self.listeners.has_stats() {
            return Err("the socket of the statistics is missing".into());
        }
        Ok(())
    }

    /// When the instance was started.
    pub(crate) fn started(&self) -> SystemTime {
        let since = Duration::from_secs(self.started_at);
        UNIX_EPOCH.checked_add(since).unwrap_or_else(SystemTime::now)
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a state has string keys and no failing serializer")
    }

    /// The same text, including fields unknown here, marked as a failed take-over, and with the
    /// reloads wanted by now if known.
    pub(crate) fn write_failed(text: &[u8], why: &str, wanted: Option<&WantedReload>) -> Vec<u8> {
        let failed = || -> serde_json::Result<Vec<u8>> {
            let mut state: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(text)?;
            state.insert("failed".into(), why.into());
            if let Some(WantedReload { reload_wanted, reload_askers }) = wanted {
                state.insert("reload_wanted".into(), (*reload_wanted).into());
                state.insert("reload_askers".into(), serde_json::to_value(reload_askers)?);
            }
            serde_json::to_vec(&state)
        };
        // Its writer understands what is not understood here.
        failed().unwrap_or_else(|_| text.to_vec())
    }
}

impl MemberState {
    pub(crate) fn role(&self) -> Role {
        self.slot.map_or(Role::Admin, |slot| Role::Worker { slot })
    }
}

impl Pack {
    pub(crate) fn put(&mut self, descriptor: &Rc<OwnedFd>) -> Place {
        self.0.push(Rc::clone(descriptor));
        Place(u32::try_from(self.0.len() - 1).expect("descriptors are numbered by an i32"))
    }

    pub(crate) fn put_copy(&mut self, descriptor: impl AsFd) -> io::Result<Place> {
        Ok(self.put(&Rc::new(descriptor.as_fd().try_clone_to_owned()?)))
    }

    /// For [`handover::send`](crate::handover::send): the first `count` of them.
    pub(crate) fn send(&self, text: &[u8], count: usize) -> io::Result<OwnedFd> {
        let descriptors: Vec<_> = self.0.iter().take(count).map(|it| it.as_fd()).collect();
        crate::handover::send(text, &descriptors)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Unpack {
    pub(crate) fn new(descriptors: Vec<OwnedFd>) -> Self {
        Self(descriptors.into_iter().map(Rc::new).collect())
    }

    pub(crate) fn get(&self, place: Place) -> Result<Rc<OwnedFd>, String> {
        let found = self.0.get(place.0 as usize).map(Rc::clone);
        found.ok_or_else(|| format!("descriptor {} is missing", place.0))
    }

    pub(crate) fn copy(&self, place: Place) -> Result<OwnedFd, String> {
        self.get(place)?.try_clone().map_err(|error| error.to_string())
    }

    /// To pass all of it on, as it came.
    pub(crate) fn repack(&self) -> Pack {
        Pack(self.0.clone())
    }
}

impl From<&Path> for Text {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<Text> for PathBuf {
    fn from(text: Text) -> Self {
        OsString::from_vec(text.0).into()
    }
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::ring::{RingConfig, Rings};

    /// As the first version wrote it. A change that breaks these tests breaks upgrades.
    const STATE: &str = r#"{"format":1,"version":"0.1.0","program":3,"failed":null,
        "path":[47,98],"next_path":[47,99],"epoch":0,"metrics":1,"shared":2,"last_epoch":4,
        "control_version":1,"session_version":1,
        "listeners":{"groups":[
            {"pool":"alpha","address":{"tcp":"127.0.0.1:1"},"sockets":[[0,4],[1,5]]},
            {"pool":"beta","address":{"unix":[47,115]},"inode":[1,2],"sockets":[[2,6]]}
        ],"stats":7,"next_id":3},
        "owners":{"0":[0],"1":[1],"2":[0,1]},
        "members":[
            {"slot":0,"rank":0,"generation":1,"restarts":2,"child":
                {"pid":42,"pidfd":8,"channel":9,"control_version":1,"session_version":1}},
            {"slot":1,"rank":1,"generation":1,"restarts":0},
            {"slot":null,"rank":0,"generation":0,"restarts":0,"retire_within_ms":5}
        ],
        "generation":1,
        "rings":{"version":7,"frozen":true,"workers":[0],"pools":[]},
        "quotas":{"alpha":0,"beta":1},"log_level":5,"started_at":1700000000}"#;

    #[test]
    fn the_first_version_s_state_is_understood() {
        let state = State::read(STATE.as_bytes()).unwrap();
        assert_eq!((state.program, state.epoch), (Place(3), Place(0)));
        assert_eq!(PathBuf::from(state.next_path.clone()), Path::new("/c"));
        assert_eq!(state.owners[&2], BTreeSet::from([0, 1]));
        assert_eq!(state.members[0].role(), Role::Worker { slot: 0 });
        let child = state.members[0].child.as_ref().unwrap();
        assert!(child.pid == 42 && child.counts);
        assert_eq!(state.members[1].child, None);
        assert_eq!(state.members[2].role(), Role::Admin);
        assert_eq!(state.members[2].retire_within_ms, Some(5));
        assert!(state.askers.is_empty() && state.failed.is_none());
        assert_eq!(state.wanted, WantedReload::default());
        let again = State::read(&state.write()).unwrap();
        assert_eq!(again.members, state.members);
    }

    #[test]
    fn a_state_of_another_format_can_be_given_back() {
        let text = STATE.replace("\"format\":1", "\"format\":2").replace("\"members\"", "\"folk\"");
        let why = State::read(text.as_bytes()).unwrap_err();
        assert!(why.contains("cashew 0.1.0 has format 2, this program understands 1"), "{why}");
        assert_eq!(Head::read(text.as_bytes()).unwrap().program, Place(3));
        for text in ["", "{", "[]", r#"{"format":1}"#] {
            assert!(State::read(text.as_bytes()).unwrap_err().contains("cannot be read"));
        }
    }

    #[test]
    fn a_state_goes_back_unchanged_with_the_reason() {
        let text = STATE.replace("\"format\":1", "\"colour\":\"green\",\"format\":1");
        let asker = ReloadAsker { socket: Place(9), dry_run: true };
        let wanted = WantedReload { reload_wanted: true, reload_askers: vec![asker] };
        let back = State::write_failed(text.as_bytes(), "no luck", Some(&wanted));
        let back: serde_json::Value = serde_json::from_slice(&back).unwrap();
        assert_eq!(back["colour"], "green");
        assert_eq!(back["failed"], "no luck");
        assert_eq!(back["members"][0]["child"]["pid"], 42);
        let state = State::read(&serde_json::to_vec(&back).unwrap()).unwrap();
        assert_eq!((state.failed.as_deref(), state.wanted), (Some("no luck"), wanted.clone()));
        // A program that failed before it read this keeps the earlier wishes.
        let text = serde_json::to_vec(&back).unwrap();
        let again = State::read(&State::write_failed(&text, "again", None)).unwrap();
        assert_eq!((again.failed.as_deref(), again.wanted), (Some("again"), wanted));
    }

    #[test]
    fn a_state_that_does_not_match_the_configuration_is_refused() {
        let yaml = "alpha:\n  listen: 127.0.0.1:1\n  servers:\n   - 127.0.0.1:2:1\n";
        let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
        let snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
        let rings = Rings::new(RingConfig::of(&snapshot)).state(Instant::now());
        let mut whole: serde_json::Value = serde_json::from_str(STATE).unwrap();
        whole["rings"] = serde_json::to_value(rings).unwrap();
        whole["listeners"]["groups"].as_array_mut().unwrap().pop();
        let check = |pointer: &str, value: serde_json::Value| {
            let mut state = whole.clone();
            *state.pointer_mut(pointer).unwrap() = value;
            State::read(state.to_string().as_bytes()).unwrap().check(&snapshot)
        };
        check("/started_at", u64::MAX.into()).unwrap();
        let out_of_range = serde_json::json!({"1": {"live": false, "why": ""}});
        let refused: [(&str, serde_json::Value, &str); 9] = [
            ("/quotas", serde_json::json!({"beta": 1}), "pool 'alpha' are not counted"),
            ("/quotas/alpha", QUOTAS_MAX.into(), "pool 'alpha' are not counted"),
            ("/rings/pools", serde_json::json!([]), "rings are not those"),
            ("/rings/pools/0/config/name", "other".into(), "rings are not those"),
            ("/rings/pools/0/servers", serde_json::json!([]), "rings are not those"),
            ("/rings/pools/0/wanted", out_of_range, "rings are not those"),
            ("/listeners/groups/0/pool", "other".into(), "no such pool"),
            ("/listeners/stats", serde_json::Value::Null, "statistics is missing"),
            ("/members/0/slot", SLOTS_MAX.into(), "no worker slot 256"),
        ];
        for (pointer, value, expected) in refused {
            let why = check(pointer, value).unwrap_err();
            assert!(why.contains(expected), "{pointer}: {why}");
        }
    }

    #[test]
    fn any_start_time_is_accepted() {
        let mut state = State::read(STATE.as_bytes()).unwrap();
        assert_eq!(state.started(), UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        state.started_at = u64::MAX;
        assert!(state.started() <= SystemTime::now());
    }

    #[test]
    fn descriptors_are_found_by_their_positions() {
        let (reader, writer) = io::pipe().unwrap();
        let mut pack = Pack::default();
        let first = pack.put_copy(&reader).unwrap();
        let second = pack.put_copy(&writer).unwrap();
        let socket = pack.send(b"text", 1).unwrap();
        let (text, descriptors) = crate::handover::receive(socket).unwrap();
        assert_eq!(text, b"text");
        let unpack = Unpack::new(descriptors);
        unpack.get(first).unwrap();
        assert_eq!(unpack.get(second).unwrap_err(), "descriptor 1 is missing");
    }
}
