//! All users of a pool.

use std::sync::Arc;

use crate::fault::Fault;
use crate::password::Hash;
use crate::user::{User, split_rules};

const DEFAULT: &str = "default";

/// Sorted by name. There is always one called `default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Users(Vec<Arc<User>>);

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineFault {
    /// It does not begin with `user` and a name.
    NoUser,
    BadName,
    Rule {
        /// Which one, from 1 on; 0 if that is not known.
        number: usize,
        /// Unless it may hold a password.
        rule: Option<String>,
        fault: Fault,
    },
}

impl Users {
    /// Those who are given and a `default`: unless they have one it is off, and nobody is served
    /// before logging in. Of two of a name the first is taken.
    pub fn new(users: impl IntoIterator<Item = User>) -> Self {
        let mut users: Vec<Arc<User>> = users.into_iter().map(Arc::new).collect();
        users.push(Arc::new(User::new(DEFAULT)));
        users.sort_by(|a, b| a.name().cmp(b.name()));
        users.dedup_by(|b, a| a.name() == b.name());
        Self(users)
    }

    /// Of lines of [`User::line`]; others are left out.
    pub fn of_lines(lines: &[String]) -> Self {
        Self::new(lines.iter().filter_map(|line| User::parse(line).ok()))
    }

    /// Of a pool without users of its own: one who may do everything, with this password if there
    /// is one.
    pub fn only_default(password: Option<&str>) -> Self {
        let password = password.map_or_else(|| "nopass".to_owned(), |text| format!(">{text}"));
        let rules = ["on", &password, "~*", "&*", "+@all"];
        let user = User::with_rules(DEFAULT, rules);
        Self(vec![Arc::new(user.expect("these rules are right"))])
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.0.iter()
    }

    pub fn named(&self, name: &[u8]) -> Option<&Arc<User>> {
        let at = self.0.binary_search_by(|user| user.name().as_bytes().cmp(name)).ok()?;
        self.0.get(at)
    }

    /// Whom everybody is until login, if that is possible.
    pub fn open_default(&self) -> Option<&Arc<User>> {
        self.named(DEFAULT.as_bytes()).filter(|user| user.is_open())
    }

    /// The user whose name and password these are. It takes the same time whoever is not there.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<&Arc<User>> {
        let hash = Hash::of(password);
        self.named(name).filter(|user| user.takes(&hash))
    }
}

impl User {
    /// Of a line of an ACL file: "user NAME rules…".
    pub fn parse(line: &str) -> Result<Self, LineFault> {
        let mut words = line.split_ascii_whitespace();
        let name = match (words.next(), words.next()) {
            (Some("user"), Some(name)) => name,
            _ => return Err(LineFault::NoUser),
        };
        // Behind the first two words, whatever is between them.
        let rules = words.collect::<Vec<&str>>().join(" ");
        let rules = split_rules(&rules).map_err(|fault| LineFault::Rule {
            number: 0,
            rule: None,
            fault,
        })?;
        Self::named(name, &rules)
    }

    /// Of a name and rules that are separate already.
    pub fn named(name: &str, rules: &[String]) -> Result<Self, LineFault> {
        if name.is_empty() || name.bytes().any(crate::selector::is_separator) {
            return Err(LineFault::BadName);
        }
        Self::with_rules(name, rules.iter().map(String::as_str)).map_err(|(at, fault)| {
            let is_secret = rules[at].starts_with(['>', '<', '#', '!']);
            // A misspelt rule may be a password without its sign.
            let may_be = is_secret || fault == Fault::Syntax;
            LineFault::Rule { number: at + 1, rule: (!may_be).then(|| rules[at].clone()), fault }
        })
    }
}

impl std::fmt::Display for LineFault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoUser => write!(out, "should start with user keyword followed by the username"),
            Self::BadName => write!(out, "usernames can't contain spaces or null characters"),
            Self::Rule { rule: Some(rule), fault, .. } => write!(out, "rule '{rule}': {fault}"),
            Self::Rule { number: 0, fault, .. } => write!(out, "{fault}"),
            Self::Rule { number, fault, .. } => write!(out, "rule {number}: {fault}"),
        }
    }
}
