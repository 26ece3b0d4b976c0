//! Why a rule is refused.

use std::fmt;

/// Its `Display` is Redis's text for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    UnknownCommand,
    Syntax,
    /// A pattern of keys where all are allowed already.
    KeyBehindAll,
    ChannelBehindAll,
    NoSuchPassword,
    BadHash,
    DuplicateUser,
    FirstArgOfSubcommand,
    UnmatchedParenthesis,
    /// In parentheses, where Redis would make one that allows nothing of it.
    UnbalancedQuotes,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::UnknownCommand => "Unknown command or category name in ACL",
            Self::Syntax => "Syntax error",
            Self::KeyBehindAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does \
                 not have any effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            Self::ChannelBehindAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and \
                 does not have any effect. Try 'resetchannels' to start with an empty list of channels"
            }
            Self::NoSuchPassword => {
                "The password you are trying to remove from the user does not exist"
            }
            Self::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase \
                 hexadecimal characters"
            }
            Self::DuplicateUser => {
                "Duplicate user found. A user can only be defined once in config files"
            }
            Self::FirstArgOfSubcommand => "Allowing first-arg of a subcommand is not supported",
            Self::UnmatchedParenthesis => "Unmatched parenthesis in selector definition",
            Self::UnbalancedQuotes => "Unbalanced quotes in selector definition",
        })
    }
}
