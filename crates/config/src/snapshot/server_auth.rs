//! What servers are given before anything else.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The user that AUTH with a password alone means, as Redis has it.
pub const DEFAULT_USER: &str = "default";

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:***", self.user)
    }
}

impl Credentials {
    /// The words of Redis's AUTH. The default user is not named: servers before Redis 6 know none.
    pub fn auth_words(&self) -> Vec<&[u8]> {
        let (user, password) = (self.user.as_bytes(), self.password.as_bytes());
        match self.user == DEFAULT_USER {
            true => vec![b"AUTH", password],
            false => vec![b"AUTH", user, password],
        }
    }
}

/// The credentials of a pool's servers. Of several the first that a server takes is used: while they are changed,
/// some servers have the old ones and some the new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerAuth {
    pub all: Vec<Credentials>,
    /// By the name of a server or of a group, instead of `all`.
    pub by_server: BTreeMap<String, Vec<Credentials>>,
}

impl ServerAuth {
    /// Servers are given what clients must give, which may be nothing.
    pub fn of_clients(password: Option<&str>) -> Self {
        let credentials = password.map(|password| Credentials {
            user: DEFAULT_USER.to_owned(),
            password: password.to_owned(),
        });
        Self { all: Vec::from_iter(credentials), by_server: BTreeMap::new() }
    }

    pub fn is_of_clients(&self, password: Option<&str>) -> bool {
        *self == Self::of_clients(password)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.by_server.is_empty()
    }

    /// Those of a server, in the order in which they are tried. Servers that are found in a group are named by it and
    /// their address, with a slash between them.
    pub fn of(&self, server: &str) -> &[Credentials] {
        let group = || Some(server.split_once('/')?.0);
        let named = self.by_server.get(server);
        named.or_else(|| self.by_server.get(group()?)).unwrap_or(&self.all)
    }
}
