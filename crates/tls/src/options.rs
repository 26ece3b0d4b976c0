//! What a configuration says of TLS, with the content of the files that it names.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::certificate::Unusable;

/// The oldest version that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Version {
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

impl Version {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        }
    }
}

/// Which of the cipher suites are spoken. All have forward secrecy and are authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ciphers {
    #[default]
    Default,
    /// Only those with keys of 256 bits.
    Strong,
}

impl Ciphers {
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Strong => "strong",
        }
    }
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    #[default]
    None,
    /// One that is shown must be valid.
    Optional,
    Required,
}

impl ClientAuth {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

/// Which of the names in a client's certificate is its user's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientUser {
    /// None.
    #[default]
    Off,
    /// The subject's common name.
    Cn,
    /// The alternative names of these kinds.
    SanDns,
    SanUri,
    SanEmail,
}

impl ClientUser {
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Cn => "cn",
            Self::SanDns => "san_dns",
            Self::SanUri => "san_uri",
            Self::SanEmail => "san_email",
        }
    }
}

/// A certificate with its chain and its key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The files of the certificate and of its key, for messages.
    pub file: String,
    pub key_file: String,
    /// PEM.
    pub chain: String,
    /// PEM. Never shown.
    pub key: String,
    /// DNS names and addresses that it is for.
    pub names: Vec<String>,
    /// Seconds since 1970.
    pub expires_at: u64,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:?}, expires at {}", self.file, self.names, self.expires_at)
    }
}

/// TLS towards clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerTls {
    /// The first is for clients that name none of the others. Never empty.
    pub identities: Vec<Identity>,
    /// PEM of the authorities that sign clients' certificates.
    pub client_ca: Option<String>,
    pub client_auth: ClientAuth,
    #[serde(default)]
    pub client_user: ClientUser,
    #[serde(default, skip_serializing_if = "ClientNames::is_empty")]
    pub client_names: ClientNames,
    pub min_version: Version,
    pub ciphers: Ciphers,
    /// How long a client may take to get through its handshake.
    pub handshake_timeout_ms: u64,
    /// Connections may go on in other processes, which get their keys.
    pub hand_over: bool,
}

/// What names in clients' certificates stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientNames {
    /// Users by name. Without any, a name is that of its user.
    pub map: BTreeMap<String, String>,
    /// Who has a name that stands for no user.
    pub default: Option<String>,
}

impl ClientNames {
    fn is_empty(&self) -> bool {
        self.map.is_empty() && self.default.is_none()
    }

    /// The users that these names of one certificate stand for, the first one first.
    pub fn users<'n>(&'n self, names: &'n [String]) -> impl Iterator<Item = &'n str> {
        let user = |name: &'n String| match self.map.is_empty() {
            true => Some(name.as_str()),
            false => self.map.get(name).map(String::as_str),
        };
        let default = self.default.as_deref().filter(|_| !names.is_empty());
        names.iter().filter_map(user).chain(default)
    }
}

/// TLS towards servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerTls {
    /// PEM of the authorities that sign servers' certificates. Empty if these are not verified.
    pub ca: String,
    /// The name that servers' certificates must be for; `None` is each server's own host.
    pub server_name: Option<String>,
    /// What servers are shown that want it.
    pub identity: Option<Identity>,
    pub verify: bool,
    pub min_version: Version,
    pub ciphers: Ciphers,
    /// Tells such options from others also when their files are forgotten: [`ServerTls::marked`].
    pub mark: u64,
    /// Tells options that trust others from these, also when their files are forgotten.
    #[serde(default)]
    pub trust_mark: u64,
}

impl ListenerTls {
    /// Removes the content of the files, once an acceptor is made of it.
    pub fn forget_files(&mut self) {
        self.client_ca = None;
        self.identities.iter_mut().for_each(Identity::forget_files);
    }
}

impl ServerTls {
    /// With a mark of all that these options are, and one of whom they trust.
    #[must_use]
    pub fn marked(mut self) -> Self {
        let Self { ca, server_name, identity, verify, min_version, ciphers, .. } = &self;
        let identity = identity.as_ref().map(|it| (&it.chain, &it.key));
        let mut hasher = DefaultHasher::new();
        (ca, server_name, verify, min_version.name(), ciphers.name()).hash(&mut hasher);
        let trust_mark = hasher.finish();
        identity.hash(&mut hasher);
        (self.mark, self.trust_mark) = (hasher.finish(), trust_mark);
        self
    }

    /// Whether who was trusted by the one is trusted by the other.
    pub fn trusts_as(&self, other: &Self) -> bool {
        self.trust_mark == other.trust_mark
    }

    /// Removes the content of the files, once a connector is made of it.
    pub fn forget_files(&mut self) {
        self.ca = String::new();
        self.identity.iter_mut().for_each(Identity::forget_files);
    }
}

impl Identity {
    /// Which file cannot be used, and why.
    pub(crate) fn complain(&self, why: &Unusable) -> String {
        match why {
            Unusable::NoKey | Unusable::BadKey | Unusable::Mismatch => {
                format!("{} {why}", self.key_file)
            }
            Unusable::NoCertificate | Unusable::BadCertificate => format!("{} {why}", self.file),
        }
    }

    fn forget_files(&mut self) {
        (self.chain, self.key) = (String::new(), String::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let identity = Identity {
            file: "/c.pem".to_owned(),
            key_file: "/k.pem".to_owned(),
            chain: String::new(),
            key: "SECRET".to_owned(),
            names: vec!["a".to_owned()],
            expires_at: 7,
        };
        assert!(!format!("{identity:?}").contains("SECRET"));
    }
}
