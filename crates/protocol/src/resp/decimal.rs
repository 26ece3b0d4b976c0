//! The decimal numbers of RESP headers.

/// Digits that the fast path reads: enough for every length and count that requests may have.
const DIGITS_MAX: usize = 10;

/// Parses `<digits>\r
/// ` at `at`: the number and the index after the line. `None` if the line is incomplete, not
/// canonical or too long; the caller then determines which on its slow path.
#[inline(always)]
pub(super) fn line(buf: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = buf.get(at..)?;
    let mut value = 0u64;
    for (i, &byte) in rest.iter().enumerate().take(DIGITS_MAX + 1) {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            value = value * 10 + u64::from(digit);
            continue;
        }
        let canonical = i == 1 || (i > 1 && rest[0] != b'0');
        if byte == b'\r' && canonical && rest.get(i + 1) == Some(&b'\n') {
            return Some((usize::try_from(value).ok()?, at + i + 2));
        }
        return None;
    }
    None
}

/// Redis's `string2ll`: an optional minus, no plus, no leading zero, no spaces, 64 bits.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [] => return None,
        [b'0'] if !negative => return Some(0),
        [b'0', ..] => return None,
        _ => {}
    }
    // Accumulated below zero, where i64 reaches one further.
    let mut value = 0i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_reads_canonical_numbers_only() {
        assert_eq!(line(b"*3\r\n$", 1), Some((3, 4)));
        assert_eq!(line(b"0\r\n", 0), Some((0, 3)));
        assert_eq!(line(b"1234567890\r\n", 0), Some((1_234_567_890, 12)));
        for bad in ["", "1", "1\r", "1\rx", "\r\n", "01\r\n", "-1\r\n", "+1\r\n", "12345678901\r\n"]
        {
            assert_eq!(line(bad.as_bytes(), 0), None, "{bad:?}");
        }
    }

    #[test]
    fn integer_is_strict_and_reaches_both_ends() {
        for good in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(integer(good.to_string().as_bytes()), Some(good));
        }
        for bad in ["", "-", "+1", "01", "-0", "-01", " 1", "1 ", "9223372036854775808", "a"] {
            assert_eq!(integer(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
