//! Who is no user here may be known elsewhere: see `external_auth` in the configuration.
//!
//! Whoever runs the engine asks; the engine only says so. The client's request stays where it is, and is looked at again
//! when the answer is there or is not to be waited for any more. Until then the client waits as one does that gave wrong
//! passwords, so it costs nobody else anything. What it may is the configured user's, whom the answer names.

use std::sync::Arc;

use cashew_acl::User;

use crate::base::id::ConnId;
use crate::base::time::Time;

/// What is known of somebody elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is this user, for so long if there is an end.
    User { user: String, expires_in_ms: Option<u64> },
    /// It is nobody.
    Refused,
    /// There is no answer.
    NoAnswer,
}

/// The answer to [`Action::Authenticate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    pub conn: ConnId,
    pub ticket: u64,
    pub verdict: Verdict,
    /// The verdict is an earlier one, as there is no answer.
    pub is_cached: bool,
}

/// What a client waits for.
pub(crate) struct Question {
    pub(crate) ticket: u64,
    /// The digest of the name and the password: an answer is for no other login.
    pub(crate) login: [u8; 20],
    pub(crate) answer: Option<Verdict>,
}

/// Who a client is by what is known elsewhere.
pub(crate) enum Outside {
    /// It is not for others to say.
    Unasked,
    /// The request is to be looked at again.
    Awaited,
    User {
        user: Arc<User>,
        until: Option<Time>,
    },
    Refused,
    Failed(&'static str),
}
