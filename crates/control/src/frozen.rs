//! What never changes, whatever [`VERSION`](crate::VERSION) is.
//!
//! After an upgrade, a master of one version has workers of another as long as these have clients.
//! Between them only the messages listed here are used. Their names, fields and descriptors never
//! change, nor does the framing: a version byte before one JSON object. A field may be added if
//! messages without it are understood. Everything else may change with a new version, since only
//! master and children of the same version exchange it.
//!
//! The content of a [`Session`](crate::Session) has its own version.

use crate::{ToChild, ToMaster};

/// A message type of which some messages are frozen.
pub trait Frozen {
    /// Whether another version understands the message.
    fn is_frozen(&self) -> bool;
}

impl Frozen for ToChild {
    fn is_frozen(&self) -> bool {
        matches!(self, Self::Retire { .. } | Self::Keep | Self::Shutdown)
    }
}

impl Frozen for ToMaster {
    fn is_frozen(&self) -> bool {
        matches!(self, Self::HandOver { .. } | Self::Kept)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::AsFd;

    use rustix::net::SendFlags;

    use super::*;
    use crate::{MasterChannel, Session, VERSION, pair};

    /// As the first version wrote it. A change that breaks this test breaks upgrades.
    const HAND_OVER: &str = r#"{"type":"hand_over","session":{"version":1,"pool":"alpha","id":7,"authenticated":true,"name":[97],"swallow":0,"input":3,"output":2}}"#;

    const KEPT: &str = r#"{"type":"kept"}"#;

    #[test]
    fn frozen_messages_are_written_unchanged() {
        let expected = [
            (ToChild::Retire { timeout_ms: 5 }, r#"{"type":"retire","timeout_ms":5}"#),
            (ToChild::Keep, r#"{"type":"keep"}"#),
            (ToChild::Shutdown, r#"{"type":"shutdown"}"#),
        ];
        for (message, json) in expected {
            assert!(message.is_frozen());
            assert_eq!(serde_json::to_string(&message).unwrap(), json);
            assert_eq!(serde_json::from_str::<ToChild>(json).unwrap(), message);
        }
        let message: ToMaster = serde_json::from_str(HAND_OVER).unwrap();
        let session = Session {
            version: 1,
            pool: "alpha".into(),
            protocol: None,
            id: 7,
            authenticated: true,
            user: String::new(),
            name: Some(b"a".to_vec()),
            swallow: 0,
            dialect: String::new(),
            database: None,
            library: Vec::new(),
            library_version: Vec::new(),
            expires_in_us: None,
            no_evict: false,
            tracking: None,
            notified: 0,
            reads: String::new(),
            reply_off: false,
            reply_skip: false,
            overheard: false,
            called: String::new(),
            age_us: 0,
            totals: [0; 5],
            input: 3,
            output: 2,
            passed_from: None,
            passed_to: None,
            secured: None,
            paired: None,
        };
        assert_eq!(message, ToMaster::HandOver { session });
        assert!(message.is_frozen());
        assert_eq!(serde_json::to_string(&ToMaster::Kept).unwrap(), KEPT);
        assert!(ToMaster::Kept.is_frozen());
    }

    #[test]
    fn additions_of_a_later_version_are_ignored() {
        let json = r#"{"type":"retire","timeout_ms":5,"colour":"green"}"#;
        let message: ToChild = serde_json::from_str(json).unwrap();
        assert_eq!(message, ToChild::Retire { timeout_ms: 5 });
        let json = r#"{"type":"hand_over","session":{"version":2,"id":7,"colour":3}}"#;
        let message: ToMaster = serde_json::from_str(json).unwrap();
        let session = Session { version: 2, id: 7, ..Session::default() };
        assert_eq!(message, ToMaster::HandOver { session });
    }

    #[test]
    fn from_another_version_only_frozen_messages_are_received() {
        let (ours, theirs) = pair().unwrap();
        let other = VERSION + 1;
        let mut master = MasterChannel::speaking(ours, other);
        let say = |version: u8, json: &str| {
            let bytes = [&[version], json.as_bytes()].concat();
            rustix::net::send(&theirs, &bytes, SendFlags::empty()).unwrap();
        };
        say(other, r#"{"type":"sing"}"#);
        say(other, r#"{"type":"held","pool":1,"version":1}"#);
        say(other, r#"["not even an object"]"#);
        say(other, HAND_OVER);
        say(other, KEPT);
        let (message, _) = master.receive().unwrap().unwrap();
        assert!(matches!(message, ToMaster::HandOver { .. }));
        assert_eq!(master.receive().unwrap().unwrap().0, ToMaster::Kept);
        assert!(master.receive().unwrap().is_none());

        say(VERSION, r#"{"type":"ready"}"#);
        assert!(master.receive().is_err(), "it does not change its version");
    }

    #[test]
    fn to_another_version_only_frozen_messages_are_sent() {
        let (ours, theirs) = pair().unwrap();
        let master = MasterChannel::speaking(ours, VERSION + 1);
        assert_eq!(master.version(), VERSION + 1);
        let (_, end) = io::pipe().unwrap();
        assert!(master.send(&ToChild::Start, &[end.as_fd()]).is_err());
        master.send(&ToChild::Shutdown, &[]).unwrap();
        let mut buf = [0; 64];
        let (len, _) =
            rustix::net::recv(&theirs, &mut buf, rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(&buf[..len], [&[VERSION + 1], &br#"{"type":"shutdown"}"#[..]].concat());
    }
}
