//! The command of a request.

use crate::CommandClass;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Gets,
    Gat,
    Gats,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    Delete,
    Incr,
    Decr,
    Touch,
    FlushAll,
    Verbosity,
    Version,
    Quit,
    Stats,
    /// Commands for every server: `cache_memlimit`, `slabs`, `lru`, `lru_crawler` and similar ones.
    Tune,
    /// `watch`, `shutdown`, and `metadump`: not for clients that share servers.
    Refused,
    MetaGet,
    MetaSet,
    MetaDelete,
    MetaArithmetic,
    MetaNoop,
    MetaDebug,
}

impl Verb {
    /// What it counts as.
    pub fn class(self) -> CommandClass {
        match self {
            Self::Get | Self::Gets | Self::Gat | Self::Gats | Self::MetaGet => CommandClass::Get,
            Self::Set
            | Self::Add
            | Self::Replace
            | Self::Append
            | Self::Prepend
            | Self::Cas
            | Self::MetaSet => CommandClass::Store,
            Self::Delete | Self::MetaDelete => CommandClass::Delete,
            Self::Incr | Self::Decr | Self::MetaArithmetic => CommandClass::Counter,
            Self::Touch | Self::MetaDebug => CommandClass::Key,
            Self::FlushAll
            | Self::Verbosity
            | Self::Version
            | Self::Quit
            | Self::Stats
            | Self::Tune
            | Self::Refused
            | Self::MetaNoop => CommandClass::Other,
        }
    }

    #[inline]
    pub fn from_word(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"get" | b"bget" => Self::Get,
            b"set" => Self::Set,
            b"gets" => Self::Gets,
            b"gat" => Self::Gat,
            b"gats" => Self::Gats,
            b"add" => Self::Add,
            b"replace" => Self::Replace,
            b"append" => Self::Append,
            b"prepend" => Self::Prepend,
            b"cas" => Self::Cas,
            b"delete" => Self::Delete,
            b"incr" => Self::Incr,
            b"decr" => Self::Decr,
            b"touch" => Self::Touch,
            b"flush_all" => Self::FlushAll,
            b"verbosity" => Self::Verbosity,
            b"version" => Self::Version,
            b"quit" => Self::Quit,
            b"mg" => Self::MetaGet,
            b"ms" => Self::MetaSet,
            b"md" => Self::MetaDelete,
            b"ma" => Self::MetaArithmetic,
            b"mn" => Self::MetaNoop,
            b"me" => Self::MetaDebug,
            b"stats" => Self::Stats,
            b"cache_memlimit" | b"slabs" | b"lru" | b"lru_crawler" | b"extstore"
            | b"refresh_certs" => Self::Tune,
            b"watch" | b"shutdown" => Self::Refused,
            _ => return None,
        })
    }
}
