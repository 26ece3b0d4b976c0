//! What a request asks for.

use super::super::Reticence;
use crate::CommandClass;

/// The commands, each with its quiet form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    Get,
    /// As `Get`, with the key in the reply.
    GetK,
    Set,
    Add,
    Replace,
    Delete,
    Increment,
    Decrement,
    Quit,
    Flush,
    Noop,
    Version,
    Append,
    Prepend,
    Stat,
    Verbosity,
    Touch,
    /// Get and touch.
    Gat,
    GatK,
    SaslList,
    SaslAuth,
    SaslStep,
}

/// By number: the command, and whether it is its quiet form.
const OPCODES: [Option<(Opcode, bool)>; 0x25] = {
    use Opcode::*;
    let mut opcodes = [None; 0x25];
    let all = [
        (Get, 0x00, 0x09),
        (Set, 0x01, 0x11),
        (Add, 0x02, 0x12),
        (Replace, 0x03, 0x13),
        (Delete, 0x04, 0x14),
        (Increment, 0x05, 0x15),
        (Decrement, 0x06, 0x16),
        (Quit, 0x07, 0x17),
        (Flush, 0x08, 0x18),
        (Noop, 0x0a, NEVER),
        (Version, 0x0b, NEVER),
        (GetK, 0x0c, 0x0d),
        (Append, 0x0e, 0x19),
        (Prepend, 0x0f, 0x1a),
        (Stat, 0x10, NEVER),
        (Verbosity, 0x1b, NEVER),
        (Touch, 0x1c, NEVER),
        (Gat, 0x1d, 0x1e),
        (SaslList, 0x20, NEVER),
        (SaslAuth, 0x21, NEVER),
        (SaslStep, 0x22, NEVER),
        (GatK, 0x23, 0x24),
    ];
    let mut at = 0;
    while at < all.len() {
        let (opcode, loud, quiet) = all[at];
        opcodes[loud] = Some((opcode, false));
        if quiet != NEVER {
            opcodes[quiet] = Some((opcode, true));
        }
        at += 1;
    }
    opcodes
};
const NEVER: usize = usize::MAX;

impl Opcode {
    /// What it counts as.
    #[inline]
    pub fn class(self) -> CommandClass {
        match self {
            Self::Get | Self::GetK | Self::Gat | Self::GatK => CommandClass::Get,
            Self::Set | Self::Add | Self::Replace | Self::Append | Self::Prepend => {
                CommandClass::Store
            }
            Self::Delete => CommandClass::Delete,
            Self::Increment | Self::Decrement => CommandClass::Counter,
            Self::Touch => CommandClass::Key,
            Self::Quit
            | Self::Flush
            | Self::Noop
            | Self::Version
            | Self::Stat
            | Self::Verbosity
            | Self::SaslList
            | Self::SaslAuth
            | Self::SaslStep => CommandClass::Other,
        }
    }

    /// The command of that number, and whether it is quiet.
    #[inline]
    pub fn from_byte(byte: u8) -> Option<(Self, bool)> {
        OPCODES.get(byte as usize).copied().flatten()
    }

    /// The number of the form that always has a reply.
    #[inline]
    pub fn byte(self) -> u8 {
        match self {
            Self::Get => 0x00,
            Self::Set => 0x01,
            Self::Add => 0x02,
            Self::Replace => 0x03,
            Self::Delete => 0x04,
            Self::Increment => 0x05,
            Self::Decrement => 0x06,
            Self::Quit => 0x07,
            Self::Flush => 0x08,
            Self::Noop => 0x0a,
            Self::Version => 0x0b,
            Self::GetK => 0x0c,
            Self::Append => 0x0e,
            Self::Prepend => 0x0f,
            Self::Stat => 0x10,
            Self::Verbosity => 0x1b,
            Self::Touch => 0x1c,
            Self::Gat => 0x1d,
            Self::SaslList => 0x20,
            Self::SaslAuth => 0x21,
            Self::SaslStep => 0x22,
            Self::GatK => 0x23,
        }
    }

    /// What its quiet form omits.
    #[inline]
    pub fn quiet(self) -> Reticence {
        match self {
            Self::Get | Self::GetK | Self::Gat | Self::GatK => Reticence::Miss,
            _ => Reticence::Success,
        }
    }

    /// Whether it fetches a value.
    #[inline]
    pub fn retrieves(self) -> bool {
        matches!(self, Self::Get | Self::GetK | Self::Gat | Self::GatK)
    }

    /// Whether its reply contains the key.
    #[inline]
    pub fn returns_key(self) -> bool {
        matches!(self, Self::GetK | Self::GatK)
    }

    /// Whether it goes to the server that has its key.
    #[inline]
    pub fn has_key(self) -> bool {
        match self {
            Self::Get
            | Self::GetK
            | Self::Set
            | Self::Add
            | Self::Replace
            | Self::Delete
            | Self::Increment
            | Self::Decrement
            | Self::Append
            | Self::Prepend
            | Self::Touch
            | Self::Gat
            | Self::GatK => true,
            Self::Quit
            | Self::Flush
            | Self::Noop
            | Self::Version
            | Self::Stat
            | Self::Verbosity
            | Self::SaslList
            | Self::SaslAuth
            | Self::SaslStep => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_commands_agree() {
        let known: Vec<u8> = (0..=255).filter(|&byte| Opcode::from_byte(byte).is_some()).collect();
        assert_eq!(known.len(), 22 + 14);
        for byte in known {
            let (opcode, is_quiet) = Opcode::from_byte(byte).unwrap();
            assert_eq!(Opcode::from_byte(opcode.byte()), Some((opcode, false)));
            assert_eq!(is_quiet, byte != opcode.byte());
        }
    }
}
