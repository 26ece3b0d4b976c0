//! Numbers as memcached reads them: with `strtol` and `strtoull`, white space and signs included.

/// A signed number of 64 bits.
#[inline]
pub(super) fn signed(word: &[u8]) -> Option<i64> {
    let (negative, magnitude) = integer(word)?;
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// An unsigned number of 64 bits. As `strtoull` negates what follows a minus sign and memcached
/// refuses only results with the top bit set, some numbers below zero pass.
#[inline]
pub(super) fn unsigned(word: &[u8]) -> Option<u64> {
    match integer(word)? {
        (false, magnitude) => Some(magnitude),
        (true, magnitude) => {
            Some(magnitude.wrapping_neg()).filter(|&value| value.cast_signed() >= 0)
        }
    }
}

/// Sign and magnitude. White space may come first, and after the digits hides whatever follows.
#[inline]
fn integer(word: &[u8]) -> Option<(bool, u64)> {
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        if !is_space(*first) {
            break;
        }
        rest = tail;
    }
    let negative = rest.first() == Some(&b'-');
    if let [b'-' | b'+', tail @ ..] = rest {
        rest = tail;
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || rest.get(digits).is_some_and(|&byte| !is_space(byte)) {
        return None;
    }
    let magnitude = rest[..digits].iter().try_fold(0u64, |value, &digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    Some((negative, magnitude))
}

/// What `isspace` holds for in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_strtol_reads() {
        for (word, expected) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("+17", Some(17)),
            ("-1", Some(-1)),
            ("\t5", Some(5)),
            ("5\rx", Some(5)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
            ("", None),
            ("-", None),
            ("+-1", None),
            ("1x", None),
            ("0x1", None),
            ("\t", None),
        ] {
            assert_eq!(signed(word.as_bytes()), expected, "{word:?}");
        }
    }

    #[test]
    fn reads_what_strtoull_reads() {
        for (word, expected) in [
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-0", Some(0)),
            ("-1", None),
            ("-9223372036854775808", None),
            ("-9223372036854775809", Some(9_223_372_036_854_775_807)),
            ("-18446744073709551615", Some(1)),
        ] {
            assert_eq!(unsigned(word.as_bytes()), expected, "{word:?}");
        }
    }
}
