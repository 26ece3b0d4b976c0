//! Numbers as every version of memcached parses them: digits, and a minus sign where allowed.
//!
//! Versions before 1.6.20 use `strtol`, which accepts more (white space, a plus sign, overflows
//! that are cut off). Later versions accept other additions (a minus sign without digits). Numbers
//! that only one of them accepts are refused here: if a server refused the line of a `set`, its
//! data would be parsed as commands.

/// Digits of the largest number of 64 bits.
const DIGITS_MAX: usize = 20;

/// A number of 64 bits without a sign.
#[inline]
pub(super) fn unsigned(word: &[u8]) -> Option<u64> {
    if word.is_empty() || word.len() > DIGITS_MAX {
        return None;
    }
    word.iter().try_fold(0u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { value.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

/// A number of 32 bits without a sign.
#[inline]
pub(super) fn unsigned32(word: &[u8]) -> Option<u32> {
    if word.len() > 10 {
        return None;
    }
    unsigned(word).and_then(|value| u32::try_from(value).ok())
}

/// A number of 32 bits that may have a minus sign.
#[inline]
pub(super) fn signed32(word: &[u8]) -> Option<i32> {
    let (negative, digits) = match word.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, word),
    };
    let magnitude = i64::from(unsigned32(digits)?);
    i32::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// Digits, optionally with a decimal point: what `strtod` always accepts.
pub(super) fn is_decimal(word: &[u8]) -> bool {
    let (whole, part) = match word.iter().position(|&byte| byte == b'.') {
        Some(at) => (&word[..at], Some(&word[at + 1..])),
        None => (word, None),
    };
    let is_digits = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    word.len() <= DIGITS_MAX && is_digits(whole) && part.is_none_or(is_digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_all_versions_read() {
        for (word, expected) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-1", Some(-1)),
            ("007", Some(7)),
            ("2147483647", Some(i32::MAX)),
            ("2147483648", None),
            ("-2147483648", Some(i32::MIN)),
            ("-2147483649", None),
            ("00000000001", None),
            ("+17", None),
            ("\t5", None),
            ("5\rx", None),
            ("", None),
            ("-", None),
            ("+-1", None),
            ("1x", None),
            ("0x1", None),
        ] {
            assert_eq!(signed32(word.as_bytes()), expected, "{word:?}");
        }
        for (word, expected) in [
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("-1", None),
            ("-0", None),
            ("", None),
        ] {
            assert_eq!(unsigned32(word.as_bytes()), expected, "{word:?}");
        }
        for (word, expected) in [
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("000000000000000000001", None),
            ("-1", None),
            (" 1", None),
        ] {
            assert_eq!(unsigned(word.as_bytes()), expected, "{word:?}");
        }
        for (word, expected) in [
            ("1", true),
            ("0.25", true),
            ("1.", false),
            (".5", false),
            ("-1", false),
            ("1e3", false),
            ("inf", false),
            ("1.2.3", false),
        ] {
            assert_eq!(is_decimal(word.as_bytes()), expected, "{word:?}");
        }
    }
}
