//! Which lines answer which requests.
//!
//! Each request has its own set, as small as servers allow. So a stream of replies that is out of
//! step is detected at the first one that does not match.

/// A kind of request whose reply is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// set, add, replace, append, prepend, cas
    Store,
    Delete,
    /// incr, decr
    Number,
    Touch,
    /// Executed and confirmed: flush_all.
    Done,
    Version,
    /// ms
    MetaSet,
    /// ms with the flag `E`, which versions before 1.6.19 do not know.
    MetaSetGiven,
    /// md
    MetaDelete,
    /// me
    MetaDebug,
}

/// A server's error for an unknown flag. It has parsed the data as commands if it expects no size,
/// as in versions with an earlier form of meta commands.
const UNKNOWN_FLAG: &[u8] = b"CLIENT_ERROR invalid flag";
/// The start of a server's error for a line that it does not understand, such as one whose key is too long.
const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command";
/// How many bytes of a line, together with its length, show whether it matches.
pub(super) const OPENING_MAX: usize = UNKNOWN_FLAG.len();

const STORE: &[&[u8]] = &[b"STORED\r\n", b"NOT_STORED\r\n", b"EXISTS\r\n", b"NOT_FOUND\r\n"];
const DELETE: &[&[u8]] = &[b"DELETED\r\n", b"NOT_FOUND\r\n"];
const TOUCH: &[&[u8]] = &[b"TOUCHED\r\n", b"NOT_FOUND\r\n"];
/// Digits of the longest number of 64 bits.
const DIGITS_MAX: usize = 20;

impl Answer {
    /// Whether a whole line, including its end, may be the reply.
    #[inline]
    pub fn fits(self, line: &[u8]) -> bool {
        match self {
            Self::Store if line == b"STORED\r\n" => true,
            Self::MetaSet if line == b"HD\r\n" => true,
            _ => {
                self.is_whole(&line[..line.len().min(OPENING_MAX)], line.len())
                    && line.ends_with(b"\r\n")
            }
        }
    }

    /// The same by its first bytes and its length; its line end is not checked.
    pub(super) fn is_whole(self, opening: &[u8], len: usize) -> bool {
        let is_one_of = |words: &[&[u8]]| words.contains(&opening) && opening.len() == len;
        match self {
            Self::MetaSet | Self::MetaSetGiven if opening.starts_with(UNKNOWN_FLAG) => {
                return false;
            }
            Self::Store | Self::MetaSet | Self::MetaSetGiven if is_refused_line(opening) => {
                return false;
            }
            _ if is_error_line(opening) => return true,
            _ => {}
        }
        match self {
            Self::Store => is_one_of(STORE),
            Self::Delete => is_one_of(DELETE),
            Self::Touch => is_one_of(TOUCH),
            Self::Done => is_one_of(&[b"OK\r\n"]),
            Self::Version => opening.starts_with(b"VERSION "),
            Self::Number => {
                let digits = opening.iter().take_while(|byte| byte.is_ascii_digit()).count();
                is_one_of(&[b"NOT_FOUND\r\n"])
                    || ((1..=DIGITS_MAX).contains(&digits) && len == digits + 2)
            }
            Self::MetaSet | Self::MetaSetGiven | Self::MetaDelete => {
                is_meta(opening, &[b"HD", b"NS", b"EX", b"NF"])
            }
            Self::MetaDebug => opening == b"EN\r\n" || opening.starts_with(b"ME "),
        }
    }
}

/// Whether a server does not know `ms`, or not in this form. What it says to a line that is odd in another way shows
/// nothing of the next one.
pub fn is_unknown_set(opening: &[u8]) -> bool {
    opening.starts_with(b"ERROR") || opening.starts_with(UNKNOWN_FLAG)
}

/// Whether a server does not understand the line of a command with data. It may have parsed the data as commands:
/// nothing that follows can be trusted.
fn is_refused_line(opening: &[u8]) -> bool {
    opening.starts_with(b"ERROR") || opening.starts_with(BAD_LINE)
}

/// Whether a line begins with one of these codes of two letters.
pub(super) fn is_meta(opening: &[u8], codes: &[&[u8]]) -> bool {
    let is_ended = matches!(opening.get(2..), Some([b' ', ..] | [b'\r'] | [b'\r', b'\n', ..]));
    is_ended && codes.contains(&&opening[..2])
}

/// Whether a line is an error, by its first bytes.
pub(super) fn is_error_line(opening: &[u8]) -> bool {
    opening.starts_with(b"CLIENT_ERROR")
        || opening.starts_with(b"SERVER_ERROR")
        || opening
            .strip_prefix(b"ERROR")
            .is_some_and(|rest| matches!(rest.first(), Some(b'\r' | b' ' | b':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_answers() {
        let all = [
            "STORED",
            "NOT_STORED",
            "EXISTS",
            "NOT_FOUND",
            "DELETED",
            "TOUCHED",
            "OK",
            "RESET",
            "17",
            "VERSION 1.6.18",
            "HD",
            "HD c7",
            "NS",
            "EX",
            "NF",
            "EN",
            "VA 1",
            "MN",
            "ME a exp=-1",
            "END",
            "STAT a 1",
            "BUSY x",
        ];
        for (answer, expected) in [
            (Answer::Store, &["STORED", "NOT_STORED", "EXISTS", "NOT_FOUND"][..]),
            (Answer::Delete, &["NOT_FOUND", "DELETED"]),
            (Answer::Number, &["NOT_FOUND", "17"]),
            (Answer::Touch, &["NOT_FOUND", "TOUCHED"]),
            (Answer::Done, &["OK"]),
            (Answer::Version, &["VERSION 1.6.18"]),
            (Answer::MetaSet, &["HD", "HD c7", "NS", "EX", "NF"]),
            (Answer::MetaDelete, &["HD", "HD c7", "NS", "EX", "NF"]),
            (Answer::MetaDebug, &["EN", "ME a exp=-1"]),
        ] {
            let fit = |line: &&str| answer.fits(format!("{line}\r\n").as_bytes());
            let fitting: Vec<_> = all.into_iter().filter(fit).collect();
            assert_eq!(&fitting[..], expected, "{answer:?}");
            for error in ["CLIENT_ERROR x\r\n", "SERVER_ERROR x\r\n"] {
                assert!(answer.fits(error.as_bytes()), "{answer:?}");
            }
            let has_data = matches!(answer, Answer::Store | Answer::MetaSet);
            for refused in ["ERROR\r\n", "CLIENT_ERROR bad command line format\r\n"] {
                assert_eq!(answer.fits(refused.as_bytes()), !has_data, "{answer:?}");
            }
            let unknown_flag = b"CLIENT_ERROR invalid flag\r\n";
            assert_eq!(answer.fits(unknown_flag), answer != Answer::MetaSet, "{answer:?}");
            for odd in
                ["STORED \r\n", "STORED\n", "\r\n", "\n", "", "ERRORS\r\n", "x\r\n", "OK", "1x\r\n"]
            {
                assert!(!answer.fits(odd.as_bytes()), "{answer:?} {odd:?}");
            }
        }
    }

    #[test]
    fn numbers_have_all_their_digits() {
        for len in 1..=22 {
            let line = format!("{}\r\n", "1".repeat(len));
            assert_eq!(Answer::Number.fits(line.as_bytes()), len <= 20, "{len}");
            let odd = format!("{}x\r\n", "1".repeat(len));
            assert!(!Answer::Number.fits(odd.as_bytes()), "{len}");
        }
    }
}
