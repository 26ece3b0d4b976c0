//! Users of pools: what each may do, as the model understands it by itself.

use crate::random::Random;

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    All,
    /// Reads of every key.
    Reads,
    /// Everything with keys of clients, which begin with `c`.
    Own,
    /// GET, SET and STRLEN of keys of clients, each by a selector.
    Picks,
}

impl Role {
    pub(crate) const ALL: [Self; 4] = [Self::All, Self::Reads, Self::Own, Self::Picks];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Reads => "reads",
            Self::Own => "own",
            Self::Picks => "picks",
        }
    }

    pub(crate) fn password(self) -> String {
        format!("word-of-{}", self.name())
    }

    fn rules(self) -> &'static str {
        match self {
            Self::All => "~* &* +@all",
            Self::Reads => "%R~* +@read +@connection +acl|whoami",
            Self::Own => "~c* +@all",
            Self::Picks => "+@connection +acl|whoami (+get ~c*) (+set +strlen %R~c* %W~c*)",
        }
    }

    /// Whether all clients' common keys may be read.
    pub(crate) fn shares(self) -> bool {
        matches!(self, Self::All | Self::Reads)
    }

    /// Whether a client may have transactions and calls that wait.
    pub(crate) fn transacts(self) -> bool {
        matches!(self, Self::All | Self::Own)
    }
}

/// The users of a pool: those of [`Role`], of whom some may do more than any client tries, and others whose names
/// come before theirs, between them and behind them.
pub(crate) fn lines(random: &mut Random) -> Vec<String> {
    let mut lines = Vec::new();
    for role in Role::ALL {
        let more = random.pick(&["", "", " +hget", " +hget +lrange"]);
        let (name, password, rules) = (role.name(), role.password(), role.rules());
        // What stands in parentheses stays at the end.
        let (root, selectors) = rules.split_once(" (").unwrap_or((rules, ""));
        let selectors = if selectors.is_empty() { String::new() } else { format!(" ({selectors}") };
        lines.push(format!("user {name} on >{password} {root}{more}{selectors}"));
    }
    for name in ["aa", "bb", "oz", "pz", "rz", "zz"] {
        if random.percent(40) {
            lines.push(format!("user {name} on >other nopass -@all"));
        }
    }
    lines
}
