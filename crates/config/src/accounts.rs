//! Users and groups of the operating system.

use std::fs;

use nix::unistd::{Group, User};

use crate::diagnostic::{At, Complaint, Report, nearest};
use crate::resolve::Context;
use crate::value::Text;

/// Kinds of accounts that a process can run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    User,
    Group,
}

impl Account {
    fn noun(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
        }
    }

    /// Whether the system knows it. One that cannot be looked up now may exist.
    pub(crate) fn exists(self, name: &str) -> bool {
        match self {
            Self::User => User::from_name(name).map_or(true, |found| found.is_some()),
            Self::Group => Group::from_name(name).map_or(true, |found| found.is_some()),
        }
    }

    /// Those of this machine alone, for suggestions.
    pub(crate) fn local_names(self) -> Vec<String> {
        let path = match self {
            Self::User => "/etc/passwd",
            Self::Group => "/etc/group",
        };
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
    }
}

/// Only root changes its user, and then the account is needed.
pub(crate) fn check(
    account: Account,
    name: Option<&At<Text>>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) {
    let Some(At { value: Text(name), pos }) = name else { return };
    if (context.has_account)(account, name) {
        return;
    }
    let noun = account.noun();
    let names = (context.account_names)(account);
    let suggestion = nearest(name, names.iter().map(String::as_str))
        .map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
    let complaint =
        Complaint::new(format!("option \"{noun}\": there is no {noun} \"{name}\"{suggestion}"));
    if context.is_root {
        report.error(*pos, complaint.hint("workers could not become it, and none would start"));
    } else {
        report.warning(*pos, complaint.hint("it matters when the instance is started by root"));
    }
}
