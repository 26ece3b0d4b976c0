//! What clients that want to know are told before and after something befalls their connections.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where clients go while the instance drains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refuge {
    /// A name or an IPv4 address: no client splits an IPv6 address from its port.
    pub host: String,
    /// `None` is the port that the client's pool has here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl fmt::Display for Refuge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// An event that clients are told of, as a push of RESP3.
///
/// All connections are told of one event by the same number, by which clients know it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Maintenance {
    /// The instance goes in so many seconds. `None` is to the address that the client knows.
    Moving {
        seq: u64,
        seconds: u64,
        #[serde(default)]
        to: Option<Refuge>,
    },
    /// [`Maintenance::Moving`] is taken back: who comes yet is not told any more.
    Staying,
    /// A group is without a server that takes its writes, for so many seconds perhaps.
    FailingOver { seq: u64, seconds: u64, group: String },
    /// It has one.
    FailedOver { seq: u64, group: String },
}

/// What a client wants to be told of [`Maintenance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notified {
    #[default]
    No,
    Yes,
    /// It goes to the address that it knows, whatever it is told: `moving-endpoint-type none`.
    WithoutAddress,
}

impl Notified {
    /// As it is told to the process that the client goes to.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// What a process of another version may say is no.
    pub fn numbered(number: u8) -> Self {
        let all = [Self::No, Self::Yes, Self::WithoutAddress];
        all.into_iter().find(|it| it.number() == number).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back() {
        let all = [(0, Notified::No), (1, Notified::Yes), (2, Notified::WithoutAddress)];
        for (number, notified) in all {
            assert_eq!((notified.number(), Notified::numbered(number)), (number, notified));
        }
        assert_eq!(Notified::numbered(9), Notified::No, "a later version may say more");
    }

    #[test]
    fn events_are_read_as_they_are_written() {
        let to = Some(Refuge { host: "other".into(), port: None });
        let events = [
            Maintenance::Moving { seq: 1, seconds: 10, to },
            Maintenance::Moving { seq: 1, seconds: 10, to: None },
            Maintenance::Staying,
            Maintenance::FailingOver { seq: 2, seconds: 10, group: "g".into() },
            Maintenance::FailedOver { seq: 3, group: "g".into() },
        ];
        for event in events {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Maintenance>(&text).unwrap(), event, "{text}");
        }
    }
}
